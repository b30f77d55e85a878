/* fluid.h - a closed loop in steady state, in closed form: what calibration differentiates and a search sorts by.
 *
 * A request takes as many steps as its prompt has chunks and its answer has tokens; each step costs what `conc`
 * decoding sequences cost and, as often as chunks are due, a chunk on top. Close to the simulator's means (doc/
 * simulator.md says how close), a million times faster, blind to queues and percentiles. */
#pragma once
#include "plan/points.h"

struct sy_load_spec {
    enum sy_load_kind kind;
    double in, out; /* mean tokens of a prompt and an answer; DECODE: in is the context */
    int32_t conc, chunk, drafted;
    double target;                 /* of AT_TPOT and AT_E2E, seconds */
    double hit;                    /* share of a prompt that the prefix cache knows */
    double accepted, memory_share; /* of a device, for weights and cache; 0: memory is not looked at */
};
struct sy_load_spec sy_load_of(const struct sy_measured *);
/* metric[SY_METRIC_COUNT], all but E2E's percentiles: means. Throughputs are per chip of the timer's sharding. */
void sy_fluid(const struct sy_timer *, const struct sy_load_spec *, double *metric);
