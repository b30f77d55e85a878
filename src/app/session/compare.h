/* compare.h - how far one forward is from another: Kullback-Leibler divergence of its next-token distributions from
 * the reference's, and how often both put the same token first. Thread: main. */
#pragma once
#include "engine/engine.h"

struct sy_compare {
    struct sy_engine *ref;
    float *row; /* [n_row_max][n_vocab] rows of the reference that wait for the other's */
    int32_t n_row, at;
    double kl_sum, kl_max; /* in nats */
    int64_t n, n_same;
    bool done;
};
/* Runs the window through ref and through e, row by row in step. The two must have the same sizes. */
SY_CHECK sy_status sy_compare_window(struct sy_compare *, struct sy_engine *e, const int32_t *ids, int32_t n,
                                     struct sy_err *);
