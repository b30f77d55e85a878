/* histogram.h - counts of observations by size, as Prometheus's histograms. One thread observes, any
 * thread reads; no locks. Buckets hold what is at most their bound. */
#pragma once
#include <stdatomic.h>

#include "base/base.h"

enum { SY_HISTOGRAM_MAX = 24 };
struct sy_histogram {
    const double *bound; /* [n], ascending; borrowed */
    int n;
    _Atomic uint64_t count[SY_HISTOGRAM_MAX + 1]; /* the last: above every bound */
    _Atomic double sum;
};
void sy_histogram_init(struct sy_histogram *, const double *bound, int n);
void sy_histogram_add(struct sy_histogram *, double value);
