/* rng.h - random numbers by counter: the n-th number of a stream depends on (seed, n) alone, so a request's
 * sampling depends on its seed and position and on nothing else that runs.
 * Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
#pragma once
#include "base/base.h"

uint64_t sy_rng_u64(uint64_t seed, uint64_t counter);
double sy_rng_unit(uint64_t seed, uint64_t counter); /* uniform in [0, 1), 53 bits */
