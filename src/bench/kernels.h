/* kernels.h - every kernel on every instruction set level of this machine, beside what the machine can do.
 *
 * Shapes are those of SmolLM2-135M, Qwen2.5-0.5B and gemma-3-270m. Weights and keys that are read once per call come
 * from a buffer beyond the caches, of the size the memory's bandwidth was measured with; what a step reads again is
 * hot, as it is in a step. Thread: the caller's, which becomes worker 0. */
#pragma once
#include "bench/peaks.h"
#include "bench/watch.h"

#define SY_BENCH_SUMS "64 values of 512 keys" /* shape of attention's sums in f32 and in bf16 */
struct sy_kernel_result {
    const char *isa;    /* level */
    const char *family; /* "gemm", "attend", "vec" */
    char kernel[32];    /* "int4 (q4_0)", "decode bf16", "norm" */
    char shape[64];
    int64_t rows;
    double seconds;    /* of a call on all threads: the median */
    double bytes, ops; /* of a call: read from beyond the caches (vec: moved), multiply-adds count two */
    double share;      /* of the machine's limit: the larger of bytes / bandwidth and operations / peak, of seconds */
};
struct sy_kernels_opt {
    const char *isa;     /* one level; NULL: all */
    const char *family;  /* one family; NULL: all */
    const char *shape;   /* those whose name has it in it; NULL: all */
    const int32_t *rows; /* of matrix products */
    size_t n_rows;
    int32_t n_thread; /* 0: all */
    size_t footprint; /* bytes of weights or keys that calls go through; 0: 256 MiB */
    double seconds;   /* spent on a case, at least one call */
    void (*on_peaks)(void *ctx, const char *isa, const struct sy_peaks *); /* isa NULL: memory and caches */
    void (*on_result)(void *ctx, const struct sy_kernel_result *);
    struct sy_watch watch;
    void *ctx;
};
SY_CHECK sy_status sy_kernels_measure(const struct sy_env *, const struct sy_kernels_opt *, struct sy_err *);
