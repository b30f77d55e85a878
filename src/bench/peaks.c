#include "bench/peaks.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/pages.h"

enum {
    RUNS = 15,
    LINE = 64,
    READ_MULTIPLE = 1024,
    L3_BYTES_MAX = 32 << 20,
    THREADS_MAX = 4096,
    MEMORY_BYTES = 256 << 20,
    PIECE = 2 << 20
};
/* Short enough to fit between the moments in which a busy machine gives the CPU to others. */
static const double run_s = 0.002;

struct team { /* what all threads do at once */
    const struct sy_env *env;
    int64_t (*compute)(int64_t rounds, void *sink);
    uint64_t (*read)(const void *, size_t);
    int64_t rounds;
    unsigned char *mem; /* a stretch per thread */
    size_t stretch, n_read;
    double *best; /* [thread] operations or bytes per second, by the thread's own times */
};

/* Operations or bytes. */
static int64_t work_once(const struct team *t, int32_t thread)
{
    _Alignas(LINE) float sink[2 * LINE / sizeof(float)];
    for (size_t i = 0; i < SY_COUNT(sink); i++) sink[i] = 1;
    if (t->compute) {
        int64_t done = t->compute(t->rounds, sink);
        __asm__ volatile("" : : "r"(sink) : "memory");
        return done;
    }
    uint64_t sum = 0;
    for (int64_t i = 0; i < t->rounds; i++) sum += t->read(t->mem + (size_t)thread * t->stretch, t->n_read);
    __asm__ volatile("" : : "r"(sum)); /* or nothing need be read */
    return t->rounds * (int64_t)t->n_read;
}

static void work(void *ctx, int32_t thread, int32_t n_thread)
{
    (void)n_thread;
    struct team *t = ctx;
    uint64_t start = sy_now_ns(t->env);
    int64_t done = work_once(t, thread);
    double s = (double)(sy_now_ns(t->env) - start) / 1e9, rate = s > 0 ? (double)done / s : 0;
    if (rate > t->best[thread]) t->best[thread] = rate;
}

/* Doubles the rounds until the caller alone takes run_s, in the least disturbed of three tries. */
static void choose_rounds(struct team *t)
{
    for (t->rounds = 1; t->rounds < INT64_MAX / 4; t->rounds *= 2) {
        double least = run_s;
        for (int i = 0; i < 3; i++) {
            uint64_t start = sy_now_ns(t->env);
            (void)work_once(t, 0);
            double s = (double)(sy_now_ns(t->env) - start) / 1e9;
            least = s < least ? s : least;
        }
        if (least >= run_s) return;
    }
}

/* A limit is what the best run shows: others were disturbed. Each thread's best counts, for two that are undisturbed
 * at once are rare on a busy machine. */
static double best_rate(struct sy_pool *pool, struct team *t)
{
    double best[THREADS_MAX] = {0}, sum = 0;
    int32_t n = sy_pool_size(pool) < THREADS_MAX ? sy_pool_size(pool) : THREADS_MAX;
    t->env = sy_pool_env(pool);
    t->best = best;
    choose_rounds(t);
    for (int i = 0; i < RUNS; i++) sy_pool_all(pool, work, t);
    for (int32_t i = 0; i < n; i++) sum += best[i];
    return sum;
}

static double compute_rate(struct sy_pool *pool, int64_t (*fn)(int64_t, void *))
{
    struct team t = {.compute = fn};
    return fn ? best_rate(pool, &t) : 0;
}

void sy_peaks_compute(struct sy_pool *pool, const struct sy_kernels *k, struct sy_peaks *out)
{
    out->n_thread = sy_pool_size(pool);
    out->f32 = compute_rate(pool, k->peak.f32);
    out->bf16 = compute_rate(pool, k->peak.bf16);
    out->int8 = compute_rate(pool, k->peak.int8);
}

sy_status sy_peaks_best(const struct sy_env *env, int32_t n_thread, enum sy_compute compute, double *out,
                        struct sy_err *err)
{
    struct sy_kernels k;
    struct sy_pool *pool;
    struct sy_peaks p;
    sy_status st = sy_kernels_pick(getenv("SYSTOLE_ISA"), &k, err);
    if (!st) st = sy_pool_new(env, n_thread, &pool, err);
    if (st) return st;
    sy_peaks_compute(pool, &k, &p);
    sy_pool_free(pool);
    *out = p.f32;
    if (compute != SY_COMPUTE_F32 && p.bf16 > *out) *out = p.bf16;
    bool codes = compute == SY_COMPUTE_INT8 || (compute == SY_COMPUTE_AUTO && !k.bf16_codes);
    if (codes && p.int8 > *out) *out = p.int8;
    return SY_OK;
}

/* Bytes that a thread reads so that they stay in the cache, 0: not this cache. */
static size_t share(long cache, long below, int32_t n_thread, bool common)
{
    if (cache <= 0) return 0;
    size_t n = (size_t)cache / 2;
    if (common) n = n / (size_t)n_thread < L3_BYTES_MAX ? n / (size_t)n_thread : L3_BYTES_MAX;
    if (below > 0 && n <= 2 * (size_t)below) return 0; /* would mostly be the one below */
    return n / READ_MULTIPLE * READ_MULTIPLE;
}

/* Piece by piece through a buffer far beyond the caches, twice round. */
static sy_status memory_rate(struct sy_pool *pool, const struct sy_kernels *k, double *rate, struct sy_err *err)
{
    struct sy_pages mem;
    size_t each = PIECE * (size_t)sy_pool_size(pool), n = MEMORY_BYTES / each * each;
    double ignored[THREADS_MAX] = {0};
    struct team t = {.env = sy_pool_env(pool),
                     .read = k->peak.read,
                     .n_read = PIECE,
                     .stretch = PIECE,
                     .rounds = 1,
                     .best = ignored};
    if (n < 2 * each) n = 2 * each;
    sy_status st = sy_pages_new(&mem, n, true, err);
    if (st) return st;
    memset(mem.at, 1, mem.n);
    *rate = 0;
    for (size_t at = 0; at < 2 * n; at += each) {
        t.mem = mem.at + at % n;
        uint64_t start = sy_now_ns(t.env);
        sy_pool_all(pool, work, &t);
        double s = (double)(sy_now_ns(t.env) - start) / 1e9, now = s > 0 ? (double)each / s : 0;
        if (at && now > *rate) *rate = now; /* the first piece woke the threads up */
    }
    sy_pages_free(&mem);
    return SY_OK;
}

sy_status sy_peaks_read(struct sy_pool *pool, const struct sy_kernels *k, struct sy_peaks *out, struct sy_err *err)
{
    long l1 = sysconf(_SC_LEVEL1_DCACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE),
         l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    int32_t n = sy_pool_size(pool);
    const size_t bytes[3] = {share(l1, 0, n, false), share(l2, l1, n, false), share(l3, l2, n, true)};
    double *const rate[3] = {&out->l1, &out->l2, &out->l3};
    out->n_thread = n;
    for (int i = 0; i < 3; i++) {
        *rate[i] = 0;
        if (!bytes[i]) continue;
        struct sy_pages mem;
        struct team t = {.read = k->peak.read, .n_read = bytes[i], .stretch = bytes[i] + 4096};
        sy_status st = sy_pages_new(&mem, t.stretch * (size_t)n, true, err);
        if (st) return st;
        memset(mem.at, 1, mem.n); /* pages never written all read the same zero page */
        t.mem = mem.at;
        *rate[i] = best_rate(pool, &t);
        sy_pages_free(&mem);
    }
    return memory_rate(pool, k, &out->memory, err);
}

int sy_isa_levels(const char **name, int n_max)
{
    enum { TEN = 10 };
    int n = 0;
    for (int rank = 0; n < n_max; rank += TEN) {
        int highest = -1;
        for (const struct sy_kernel_entry *e = sy_kernel_entries; e->family; e++) {
            if (strcmp(e->family, "isa")) continue;
            const struct sy_kernels_isa *isa = e->table;
            highest = isa->rank > highest ? isa->rank : highest;
            if (isa->rank == rank && isa->usable()) name[n++] = e->isa;
            if (n == n_max) break;
        }
        if (rank > highest) break;
    }
    return n;
}
