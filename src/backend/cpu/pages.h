/* pages.h - big memory: zeroed anonymous pages on 2 MiB boundaries, on huge pages where the system allows it. */
#pragma once
#include "base/base.h"

struct sy_pages {
    unsigned char *at;
    size_t n;
    bool huge; /* asked for and granted (as far as madvise tells) */
};
SY_CHECK sy_status sy_pages_new(struct sy_pages *, size_t n, bool want_huge, struct sy_err *);
void sy_pages_free(struct sy_pages *); /* a zeroed struct is fine */
/* Bytes per second that n_thread threads of the pool read from a buffer well beyond the caches: median of a few runs,
 * about 0.2 s and at most 256 MiB. */
struct sy_pool;
double sy_measure_bandwidth(struct sy_pool *);
