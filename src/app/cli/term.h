/* term.h - the terminal: Ctrl-C, progress bars, text that must not control it. */
#pragma once
#include <stdio.h>

#include "base/base.h"

enum { SY_EXIT_INTERRUPTED = 130 };

/* SIGINT, taken by a thread of its own so that no handler and no global is needed. Until someone holds it, Ctrl-C
 * ends the process with status 130; while held, it is counted and makes fd readable, and the fourth in a row ends the
 * process all the same. Any thread may ask. */
struct sy_interrupt;
SY_CHECK sy_status sy_interrupt_new(const struct sy_env *, struct sy_interrupt **out, struct sy_err *);
void sy_interrupt_hold(struct sy_interrupt *);
void sy_interrupt_drop(struct sy_interrupt *); /* Ctrl-C ends the process again */
bool sy_interrupt_seen(const struct sy_interrupt *);
void sy_interrupt_clear(struct sy_interrupt *); /* forgets those seen */
int sy_interrupt_fd(const struct sy_interrupt *);

/* For servers: a descriptor that SIGTERM is read from (signalfd), instead of ending the process; SIGPIPE and SIGHUP
 * are ignored: a server outlives its clients, and the terminal it was started from. Before threads are made: they
 * inherit it. */
SY_CHECK sy_status sy_terminate_fd(int *fd, struct sy_err *);

/* A line that is drawn over itself on a terminal; elsewhere (--progress into a file) a line per tenth. */
struct sy_progress {
    const struct sy_env *env;
    bool on, terminal, drawn;
    char label[64];
    uint64_t t_start, t_drawn;
    double done_start; /* where this run began, for the speed of a resumed download */
    int tenth;
};
void sy_progress_init(struct sy_progress *, const struct sy_env *, bool on, const char *label);
void sy_progress_bytes(struct sy_progress *, double done, double total); /* bytes, speed, time left */
void sy_progress_share(struct sy_progress *, double done);               /* 0..1 */
void sy_progress_end(struct sy_progress *);                              /* erases the line on a terminal */

/* Writes what a model or a file says to standard output: as it is into a pipe or a file; on a terminal with U+FFFD
 * for control characters, so that no text can act on the terminal. */
void sy_text_print(const char *text, size_t n);

/* "1.5 GB", "12.3 MB": decimal units, as vendors and disks count. */
void sy_size_text(double bytes, char out[static 16]);
