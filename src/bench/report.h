/* report.h - JSON out, what tokens cost, and which points of a sweep are worth having. Thread: any. */
#pragma once
#include "base/buf.h"

/* A JSON writer: commas and quotes are its care, nesting the caller's. Names NULL: an element of an array. Numbers
 * that JSON cannot say (infinite, NaN) are null. Failures stick in the buffer. */
struct sy_jout {
    struct sy_buf *b;
    bool more; /* a comma is due */
};
void sy_jout_open(struct sy_jout *, const char *name, char bracket); /* '{' or '[' */
void sy_jout_close(struct sy_jout *, char bracket);                  /* '}' or ']' */
void sy_jout_line(struct sy_jout *);                                 /* the next value begins a line */
void sy_jout_num(struct sy_jout *, const char *name, double v);
void sy_jout_int(struct sy_jout *, const char *name, int64_t v);
void sy_jout_bool(struct sy_jout *, const char *name, bool v);
void sy_jout_text(struct sy_jout *, const char *name, const char *v); /* NULL: null */

/* Writes what a buffer holds to a file ("-": standard output); half a file is removed again. */
SY_CHECK sy_status sy_report_write(const struct sy_buf *, const char *path, struct sy_err *);
/* Refuses (SY_EIO) a path that sy_report_write could not write; leaves nothing there. */
SY_CHECK sy_status sy_report_check(const char *path, struct sy_err *);

/* ---- money ------------------------------------------------------------------------------------------------------
 */

struct sy_price {
    double chip_hour; /* dollars that one chip costs an hour; 0: not asked for */
    int chips;
};
struct sy_dollars { /* per million tokens: of both kinds, and all money laid on one kind */
    double total, input, output;
    double tok_per_dollar; /* of both kinds */
};
struct sy_dollars sy_dollars_of(struct sy_price, double in_tok_s, double out_tok_s);

/* ---- a sweep ----------------------------------------------------------------------------------------------------
 */

struct sy_point {
    double load; /* batch, concurrency or rate: how the point is called */
    double in_tok_s, out_tok_s;
    double interactivity; /* tokens/s that one user sees: 1 / TPOT */
    double e2e_s;         /* median of the time from request to last token */
    struct sy_dollars cost;
    bool best_interactivity, best_e2e; /* no other point is at least as good in both and better in one */
};
/* Sets the two marks: cost per million tokens against interactivity, and against E2E. */
void sy_pareto(struct sy_point *, size_t n);
/* Prints the frontiers, each sorted so that it is monotone: cheaper is slower. what: "batch", "concurrency". */
void sy_pareto_print(const struct sy_point *, size_t n, const char *what, struct sy_buf *);
void sy_dollars_json(struct sy_jout *, const struct sy_point *); /* fields of an open object */
