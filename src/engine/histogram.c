#include "engine/histogram.h"

void sy_histogram_init(struct sy_histogram *h, const double *bound, int n)
{
    sy_assert(n <= SY_HISTOGRAM_MAX);
    h->bound = bound;
    h->n = n;
    for (int i = 0; i <= SY_HISTOGRAM_MAX; i++) atomic_init(&h->count[i], 0);
    atomic_init(&h->sum, 0);
}

void sy_histogram_add(struct sy_histogram *h, double v)
{
    int i = 0;
    while (i < h->n && v > h->bound[i]) i++;
    /* One writer: a load and a store are enough, and cheaper than a locked addition. */
    uint64_t n = atomic_load_explicit(&h->count[i], memory_order_relaxed);
    atomic_store_explicit(&h->count[i], n + 1, memory_order_relaxed);
    double sum = atomic_load_explicit(&h->sum, memory_order_relaxed);
    atomic_store_explicit(&h->sum, sum + v, memory_order_relaxed);
}
