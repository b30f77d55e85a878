/* peaks.h - what this machine can do at most, measured. Thread: the pool's caller. */
#pragma once
#include "backend/cpu/kernel.h"
#include "backend/cpu/pool.h"

struct sy_peaks { /* of all threads of a pool together */
    int32_t n_thread;
    double f32, bf16, int8; /* operations/s of multiply-adds on registers; bf16 0: no instruction for it */
    double l1, l2, l3;      /* bytes/s read, each thread its own half of the cache (of L3 its share, 32 MiB at most);
                               0: there is no such cache, or its size is not known */
    double memory;          /* bytes/s read of a buffer of 256 MiB, a piece at a time */
};
/* The best of many short runs, about 0.1 s each: a limit is what shows when nothing else disturbs. */
void sy_peaks_compute(struct sy_pool *, const struct sy_kernels *, struct sy_peaks *); /* f32, bf16, int8 */
SY_CHECK sy_status sy_peaks_read(struct sy_pool *, const struct sy_kernels *, struct sy_peaks *, struct sy_err *);
/* Operations/s of the best arithmetic that kernels use with `compute`, on n_thread threads (0: all); takes 0.3 s. */
SY_CHECK sy_status sy_peaks_best(const struct sy_env *, int32_t n_thread, enum sy_compute, double *out,
                                 struct sy_err *);

/* The isa levels of this machine, worst first: names of folders that SYSTOLE_ISA takes. Returns how many of n_max. */
int sy_isa_levels(const char **name, int n_max);
