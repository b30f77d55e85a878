/* rerun.h - measured closed loops, run again on the simulator: the production scheduler on a virtual clock.
 *
 * What the closed form does not know is known here: queues, times to the first token, percentiles. */
#pragma once
#include "plan/calibrate.h"

/* metric[SY_METRIC_COUNT] as the point's are, means or medians, of 10 requests for each user, which is what
 * InferenceX's client sends. Points of other kinds are refused. */
SY_CHECK sy_status sy_rerun(const struct sy_env *, const struct sy_calibration *, const struct sy_measured *,
                            double *metric, struct sy_err *);
/* Finds the bound on the gap between two tokens that Systole's own server kept, for each group of results of
 * `bench serve`: the one with which times to the first token come out as they were measured. */
SY_CHECK sy_status sy_rerun_gaps(const struct sy_env *, struct sy_calibration *, struct sy_err *);
