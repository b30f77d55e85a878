/* schedule.h - a kernel's schedule and programs, as the files that measure share them. Private to this folder and its
 * tests. */
#pragma once
#include "backend/pjrt/mosaic/kernels.h"
#include "backend/pjrt/mosaic/measure.h"

struct mo_schedule {
    struct sy_schedule_loop loop[SY_SCHEDULE_LOOPS];
    int n;
    double compile_s;
};
/* Compiles the kernel alone, releases it, and reads the loops of its schedule. */
SY_CHECK sy_status mo_schedule(const struct sy_env *, const char *plugin, const struct sy_aot_target *,
                               struct mosaic *, struct mo_schedule *, struct sy_err *);
sy_status mo_schedule_unknown(struct sy_err *); /* the error for loops that are not the kernel's */
/* The longest loop inside another, or of all (in -1); -1: none. */
int mo_longest(const struct sy_schedule_loop *, int n, int in);
static inline int64_t mo_length(struct sy_schedule_loop l) { return l.to - l.from; }
/* The layer as the lowering writes it: of the step's block, window, state, x, decay, beta and taps; window, state and
 * results of n_tok tokens. (measure_delta.c) */
SY_CHECK sy_status mo_delta_program(const struct sy_env *, const struct sy_delta_shape *, int32_t n_tok,
                                    unsigned kernels, struct sy_buf *out, struct sy_err *);
