/* sim.h - the backend that only keeps time. `--backend sim:CHIP` runs the production engine with a model's real graph
 * and answers with made-up tokens after the time the chip would take; a simulator opens it without a model, on a
 * virtual clock that it moves itself. */
#pragma once
#include "backend/backend.h"
#include "backend/sim/timer.h"

extern const struct sy_backend_ops sy_backend_sim;

/* A rank of a simulated replica. forward() notes what the step holds; whoever drives it decides when it ends. */
SY_CHECK sy_status sy_sim_rank_new(const struct sy_env *, int32_t out_max, int32_t n_vocab, struct sy_backend **out,
                                   struct sy_err *);
struct sy_rank_load sy_sim_rank_load(const struct sy_backend *); /* of the last forward() */
