#include "bench/stats.h"

#include <math.h>
#include <stdlib.h>

#include "base/rng.h"

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double sy_percentile(const double *sorted, size_t n, double p)
{
    if (n == 0) return 0;
    double at = p / 100 * (double)(n - 1);
    size_t lo = (size_t)at;
    if (lo + 1 >= n) return sorted[n - 1];
    return sorted[lo] + (at - (double)lo) * (sorted[lo + 1] - sorted[lo]);
}

double sy_median(double *v, size_t n)
{
    if (n) qsort(v, n, sizeof *v, ascending);
    return sy_percentile(v, n, 50);
}

struct sy_summary sy_summary_of(double *v, size_t n)
{
    struct sy_summary s = {.n = n};
    if (n == 0) return s;
    qsort(v, n, sizeof *v, ascending);
    double sum = 0, off = 0;
    for (size_t i = 0; i < n; i++) sum += v[i];
    s.mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) off += (v[i] - s.mean) * (v[i] - s.mean);
    s.std = sqrt(off / (double)n);
    s.median = sy_percentile(v, n, 50);
    s.p90 = sy_percentile(v, n, 90);
    s.p99 = sy_percentile(v, n, 99);
    s.p999 = sy_percentile(v, n, 99.9);
    s.min = v[0];
    s.max = v[n - 1];
    return s;
}

double sy_poisson_gap(uint64_t seed, uint64_t i, double rate) { return -log1p(-sy_rng_unit(seed, i)) / rate; }

int64_t sy_uniform(uint64_t seed, uint64_t i, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(sy_rng_unit(seed, i) * (double)(hi - lo + 1));
}

void sy_samples_init(struct sy_samples *s, const struct sy_env *env) { *s = (struct sy_samples){.env = env}; }

void sy_samples_add(struct sy_samples *s, double v)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 256;
        double *at =
            cap > SIZE_MAX / 2 / sizeof *at ? NULL : sy_resize(s->env, s->at, s->cap * sizeof *at, cap * sizeof *at);
        if (!at) {
            s->failed = true;
            return;
        }
        s->at = at;
        s->cap = cap;
    }
    s->at[s->n++] = v;
}

void sy_samples_release(struct sy_samples *s)
{
    sy_delete(s->env, s->at);
    *s = (struct sy_samples){.env = s->env};
}
