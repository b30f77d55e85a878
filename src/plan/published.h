/* published.h - published tables beside ours, each cell with its error. */
#pragma once
#include "plan/calibrate.h"

struct sy_cells {  /* what a comparison came to */
    double *error; /* [n] |ours / theirs - 1|; in the calibration's arena */
    int32_t n, n_fitted, n_predicted;
    /* Points by how far the prediction reaches, and those of them whose throughput its band holds. */
    int32_t n_reach[SY_REACH_COUNT], n_held[SY_REACH_COUNT];
};
/* Points of `points` (NULL: those the calibration was made from) against it: a line each. simulate: closed loops run
 * on the production scheduler instead of the closed form, and times to the first token stand beside. */
SY_CHECK sy_status sy_published_points(const struct sy_env *, struct sy_calibration *, const struct sy_points *points,
                                       bool simulate, struct sy_buf *, struct sy_cells *, struct sy_err *);
/* The v5e-8 against A100 sweep, and Qwen3.5-397B at 8k1k, with their price arithmetic. simulate: times to the first
 * token too, which takes seconds. */
SY_CHECK sy_status sy_published_tables(const struct sy_env *, struct sy_calibration *, bool simulate, struct sy_buf *,
                                       struct sy_cells *, struct sy_err *);
void sy_published_held(const struct sy_calibration *, const struct sy_cells *, struct sy_buf *); /* bands kept? */
void sy_published_bands(const struct sy_calibration *, struct sy_buf *);
void sy_published_total(const struct sy_cells *, struct sy_buf *); /* the last line; sorts the errors */
