/* stats.h - what a run of measurements comes down to. Thread: any. */
#pragma once
#include "base/base.h"

struct sy_summary {
    size_t n;
    double mean, median, std, p90, p99, p999, min, max; /* all 0 when n is 0; std: of the population, as numpy's */
};
struct sy_summary sy_summary_of(double *v, size_t n); /* sorts v */

/* Percentile 0..100 of sorted numbers, linear between neighbours (type 7 of Hyndman and Fan, "Sample quantiles in
 * statistical packages", 1996; numpy's default). n 0: 0. */
double sy_percentile(const double *sorted, size_t n, double p);
double sy_median(double *v, size_t n); /* sorts v */

/* The i-th gap of a Poisson process of `rate` arrivals per second, in seconds. */
double sy_poisson_gap(uint64_t seed, uint64_t i, double rate);
/* The i-th draw of an integer uniform in [lo, hi]. */
int64_t sy_uniform(uint64_t seed, uint64_t i, int64_t lo, int64_t hi);

/* Samples as they come. Caller's storage; release. When memory runs out `failed` is set and samples are dropped. */
struct sy_samples {
    const struct sy_env *env;
    double *at;
    size_t n, cap;
    bool failed;
};
void sy_samples_init(struct sy_samples *, const struct sy_env *);
void sy_samples_add(struct sy_samples *, double);
void sy_samples_release(struct sy_samples *);
