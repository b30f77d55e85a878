/* bench.h - the modes of `systole bench`, and what they share. */
#pragma once
#include "app/app.h"
#include "bench/offline.h"
#include "bench/report.h"

sy_status sy_bench_kernels(struct sy_args *, struct sy_err *);
sy_status sy_bench_design(struct sy_args *, struct sy_err *);
sy_status sy_bench_mosaic(struct sy_args *, struct sy_err *);
sy_status sy_bench_offline(struct sy_args *, struct sy_err *);
sy_status sy_bench_replay(struct sy_args *, struct sy_err *);
sy_status sy_bench_compare(struct sy_args *, struct sy_err *);
sy_status sy_bench_serve(struct sy_args *, struct sy_err *);
sy_status sy_bench_sweep(struct sy_args *, struct sy_err *);
extern const struct sy_flag sy_flags_bench[];
enum { SY_BENCH_LEN_MAX = 16777216 }; /* tokens of a prompt or an answer */

/* "1,2,4" of numbers within lo..hi; ".." after two of them goes on as they began, by doubling or in steps, up to the
 * one that follows: 1,2,..,64 and 16,32,..,128 double, 10,15,..,30 counts in fives. In the arguments' arena. */
SY_CHECK sy_status sy_bench_list(struct sy_args *, const char *flag, const char *text, double lo, double hi,
                                 bool whole, double **out, size_t *n, struct sy_err *);
uint64_t sy_bench_seed(uint64_t seed, uint64_t i); /* the i-th of the seeds that one gives */
struct sy_price sy_bench_price(const struct sy_args *);
/* Progress goes to the bar, Ctrl-C stops. Hold the interrupt while it is used. */
struct sy_bench_watcher {
    struct sy_app *app;
    struct sy_progress bar;
};
struct sy_watch sy_bench_watch(struct sy_bench_watcher *, struct sy_app *, const char *label);
/* Where tables go: standard output, unless that is where --json goes. */
FILE *sy_bench_table(const struct sy_args *);
/* A JSON text to where --json says, if it is given; releases it. */
SY_CHECK sy_status sy_bench_write_json(const struct sy_args *, struct sy_buf *, struct sy_err *);
/* Prints a table, then the frontiers of a sweep when there is a price. */
void sy_bench_print(const struct sy_args *, struct sy_buf *table, struct sy_point *, size_t n, const char *what,
                    struct sy_price);
