/* kernels_int.h - what the kernels' benchmarks share. Private to them. */
#pragma once
#include "base/arena.h"
#include "bench/kernels.h"

enum { LEVELS = 8 };
struct level {
    const char *name;
    struct sy_kernels k;
    struct sy_peaks peak;
};
struct bench {
    const struct sy_env *env;
    const struct sy_kernels_opt *o;
    size_t footprint;
    struct sy_pool *pool;
    struct sy_peaks machine; /* the best of all levels, and memory */
    struct level level[LEVELS];
    int n_level;
    double slow[LEVELS]; /* seconds that a call took at the last number of rows; for products that grow too long */
    int n_done, n_all;   /* groups of cases, for the progress */
};

/* Medians of calls that take o->seconds together; each is fn over n_item items on all threads, turn counts calls. */
double bench_time(const struct bench *, int64_t n_item, void (*fn)(void *ctx, int64_t item, int32_t thread),
                  void *ctx, int64_t *turn);
/* Fills in the share and tells the result. ops_peak, bytes_peak: what the machine could do. */
void bench_tell(const struct bench *, struct sy_kernel_result *, double ops_peak, double bytes_peak);
bool bench_wants(const struct bench *, const char *shape);
SY_CHECK sy_status bench_next(struct bench *, struct sy_err *); /* a group is done; fails when asked to stop */
enum { GEMM_GROUPS = 7 * 6, ATTEND_GROUPS = 3 * 4 + 1, VEC_GROUPS = 3 };
SY_CHECK sy_status bench_gemm(struct bench *, struct sy_err *);
SY_CHECK sy_status bench_attend(struct bench *, struct sy_err *);
SY_CHECK sy_status bench_vec(struct bench *, struct sy_err *);
