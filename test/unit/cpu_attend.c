/* Attention kernels of every instruction set of this machine: against a double precision reference over odd shapes,
 * and bit for bit against themselves over every way to cut the queries. What a query must not see is poisoned: keys
 * and values with NaN, block table entries with addresses that fault. */
#include "backend/cpu/attend.h"
#include "base/rng.h"
#include "quant/quant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_BLOCK_BAD = 1 << 30 };

struct shape {
    int32_t n_kv, n_group, d_key, d_val, block_len;
};
struct cache {
    struct sy_kv_dim kv;
    struct shape shape;
    int32_t ctx;
    float *k, *v, *q; /* [ctx][heads][d], k and v as the cache holds them */
    unsigned char *layer;
    int32_t *table;
    int32_t n_entry;
    uint64_t seed;
    float magnitude;
    bool rounded; /* by the kernels that round queries and weights to bf16, where there are some */
};

static float draw(struct cache *c)
{
    uint64_t u = sy_rng_u64(7, c->seed++);
    float sum = (float)((u & 0x1fffff) + (u >> 21 & 0x1fffff) + (u >> 42 & 0x1fffff)); /* of three uniform numbers */
    return (sum * 0x1p-20f - 3) * c->magnitude;                                        /* variance 1 */
}

/* One group of q8_0, as attend_int.h defines it. */
static void store_group(float *x, int32_t n)
{
    float max = 0;
    for (int32_t i = 0; i < n; i++) max = fmaxf(max, fabsf(x[i]));
    float scale = sy_f16_to_f32(sy_f32_to_f16(fminf(max / 127, 65504)));
    for (int32_t i = 0; i < n; i++) {
        float code = scale > 0 ? rintf(x[i] * (1 / scale)) : 0;
        x[i] = fmaxf(-127, fminf(127, code)) * scale;
    }
}

/* What the cache keeps of x[n][d]. */
static void stored(enum sy_kv_dtype dtype, float *x, size_t n, int32_t d)
{
    for (size_t i = 0; i < n * (size_t)d; i++) {
        if (dtype == SY_KV_BF16) x[i] = sy_bf16_to_f32(sy_f32_to_bf16(x[i]));
        if (dtype == SY_KV_F16) x[i] = sy_f16_to_f32(sy_f32_to_f16(x[i]));
    }
    for (size_t i = 0; dtype == SY_KV_Q8_0 && i < n; i++, x += d)
        for (int32_t g = 0; g < d; g += 32) store_group(x + g, d - g < 32 ? d - g : 32);
}

/* A cache of ctx positions in blocks of random order, written in two calls; all bytes not written are 0xff, which is
 * NaN in each dtype. */
static void cache_make(struct cache *c, const struct sy_kernels *kern, struct shape s, enum sy_kv_dtype dtype,
                       int32_t ctx, float magnitude)
{
    *c = (struct cache){.shape = s, .ctx = ctx, .magnitude = magnitude, .seed = (uint64_t)s.d_key * 1000003};
    c->kv = (struct sy_kv_dim){.n_kv = s.n_kv,
                               .d_key = s.d_key,
                               .d_val = s.d_val,
                               .block_len = s.block_len,
                               .dtype = dtype,
                               .block_bytes = sy_kv_block_bytes(s.n_kv, s.d_key, s.d_val, s.block_len, dtype)};
    assert_true(c->kv.block_bytes > 0 && c->kv.block_bytes % 256 == 0);
    size_t nk = (size_t)ctx * (size_t)(s.n_kv * s.d_key), nv = (size_t)ctx * (size_t)(s.n_kv * s.d_val);
    size_t nq = nk * (size_t)s.n_group;
    c->k = malloc(nk * sizeof(float));
    c->v = malloc(nv * sizeof(float));
    c->q = malloc(nq * sizeof(float));
    for (size_t i = 0; i < nk; i++) c->k[i] = draw(c);
    for (size_t i = 0; i < nv; i++) c->v[i] = draw(c);
    for (size_t i = 0; i < nq; i++) c->q[i] = draw(c);
    c->n_entry = (ctx + s.block_len - 1) / s.block_len + 3;
    c->table = malloc((size_t)c->n_entry * sizeof *c->table);
    for (int32_t i = 0; i < c->n_entry; i++) c->table[i] = i;
    for (int32_t i = c->n_entry - 1; i > 0; i--) {
        int32_t j = (int32_t)(sy_rng_u64(3, c->seed++) % (uint64_t)(i + 1)), t = c->table[i];
        c->table[i] = c->table[j];
        c->table[j] = t;
    }
    size_t n = (size_t)c->n_entry * (size_t)c->kv.block_bytes;
    c->layer = aligned_alloc(256, n);
    memset(c->layer, 0xff, n);
    int32_t *row = malloc((size_t)ctx * sizeof *row), half = ctx / 2;
    for (int32_t i = 0; i < ctx; i++) row[i] = c->table[i / s.block_len] * s.block_len + i % s.block_len;
    int64_t ldk = s.n_kv * s.d_key, ldv = s.n_kv * s.d_val;
    if (half) kern->attend.write[dtype](&c->kv, c->layer, c->k, ldk, c->v, ldv, row, half);
    kern->attend.write[dtype](&c->kv, c->layer, c->k + half * ldk, ldk, c->v + half * ldv, ldv, row + half,
                              ctx - half);
    free(row);
    stored(dtype, c->k, nk / (size_t)s.d_key, s.d_key);
    stored(dtype, c->v, nv / (size_t)s.d_val, s.d_val);
}

static void cache_free(struct cache *c)
{
    free(c->k);
    free(c->v);
    free(c->q);
    free(c->table);
    free(c->layer);
}

/* Queries [pos0, pos0 + n_q) of one kv head, partitions in descending order. out: [n_q][n_group][d_val] */
static void attend(const struct cache *c, const struct sy_kernels *kern, int32_t head, int32_t pos0, int32_t n_q,
                   int32_t window, float scale, float softcap, float *out)
{
    const struct shape *s = &c->shape;
    int32_t lo, hi, bl = s->block_len, first = window && pos0 >= window ? pos0 - window + 1 : 0;
    int32_t *table = malloc((size_t)c->n_entry * sizeof *table);
    for (int32_t i = 0; i < c->n_entry; i++)
        table[i] = i >= first / bl && i <= (pos0 + n_q - 1) / bl ? c->table[i] : N_BLOCK_BAD;
    int64_t ldq = s->n_kv * s->n_group * s->d_key;
    struct sy_attend a = {.kv = &c->kv,
                          .layer = c->layer,
                          .table = table,
                          .kv_head = head,
                          .n_group = s->n_group,
                          .n_q = n_q,
                          .pos0 = pos0,
                          .window = window,
                          .scale = scale,
                          .softcap = softcap,
                          .q = c->q + pos0 * ldq + head * s->n_group * s->d_key,
                          .ldq = ldq,
                          .out = out,
                          .ldo = s->n_group * s->d_val};
    sy_attend_range(&a, &lo, &hi);
    assert_true(lo >= 0 && lo < hi && hi == (pos0 + n_q - 1) / SY_PARTITION + 1);
    a.n_part = hi - lo;
    size_t n = (size_t)a.n_part * (size_t)(n_q * s->n_group) * (size_t)(s->d_val + 2);
    a.partial = malloc(n * sizeof(float));
    memset(a.partial, 0xff, n * sizeof(float));
    for (a.part = hi - 1; a.part >= lo; a.part--) sy_attend_part(&kern->attend, c->kv.dtype, &a, c->rounded);
    kern->attend.merge(&a);
    free(a.partial);
    free(table);
}

static void reference(const struct cache *c, int32_t head, int32_t pos, int32_t g, int32_t window, float scale,
                      float softcap, double *out)
{
    const struct shape *s = &c->shape;
    int32_t first = window && pos >= window ? pos - window + 1 : 0;
    const float *q = c->q + ((int64_t)pos * s->n_kv * s->n_group + head * s->n_group + g) * s->d_key;
    double *p = malloc((size_t)(pos + 1) * sizeof *p), max = -INFINITY, sum = 0;
    for (int32_t j = first; j <= pos; j++) {
        const float *k = c->k + ((int64_t)j * s->n_kv + head) * s->d_key;
        double dot = 0;
        for (int32_t d = 0; d < s->d_key; d++) dot += (double)q[d] * k[d];
        dot *= scale;
        if (softcap > 0) dot = softcap * tanh(dot / softcap);
        p[j] = dot;
        if (dot > max) max = dot;
    }
    for (int32_t j = first; j <= pos; j++) sum += p[j] = exp(p[j] - max);
    for (int32_t d = 0; d < s->d_val; d++) {
        double x = 0;
        for (int32_t j = first; j <= pos; j++) x += p[j] * c->v[((int64_t)j * s->n_kv + head) * s->d_val + d];
        out[d] = x / sum;
    }
    free(p);
}

/* Largest error of an item, relative to the values' magnitude. */
static double item_error(const struct cache *c, const struct sy_kernels *kern, int32_t pos0, int32_t n_q,
                         int32_t window, float scale, float softcap)
{
    const struct shape *s = &c->shape;
    size_t n = (size_t)(n_q * s->n_group * s->d_val);
    float *out = malloc(n * sizeof *out);
    double *want = malloc((size_t)s->d_val * sizeof *want), worst = 0;
    for (int32_t h = 0; h < s->n_kv; h++) {
        attend(c, kern, h, pos0, n_q, window, scale, softcap, out);
        for (int32_t r = 0; r<n_q * s->n_group; r += n_q> 4 ? 3 : 1) {
            reference(c, h, pos0 + r / s->n_group, r % s->n_group, window, scale, softcap, want);
            for (int32_t d = 0; d < s->d_val; d++) {
                double e = fabs(out[r * s->d_val + d] - want[d]) / c->magnitude;
                if (!(e <= worst)) worst = isnan(e) ? INFINITY : e;
            }
        }
    }
    free(out);
    free(want);
    return worst;
}

/* Calls check for each instruction set that has attention kernels and that this machine runs. */
static void each_isa(void (*check)(const char *isa, const struct sy_kernels *))
{
    for (const struct sy_kernel_entry *e = sy_kernel_entries; e->family; e++) {
        struct sy_kernels kern;
        if (strcmp(e->family, "attend") != 0) continue;
        sy_status st = sy_kernels_pick(e->isa, &kern, NULL);
        if (st == SY_OK) check(e->isa, &kern);
        else assert_int_equal(st, SY_ENOSUP);
    }
}

static const struct shape shapes[] = {
    {1, 1, 1, 1, 1},    {2, 3, 64, 64, 16}, {1, 4, 256, 256, 32}, {3, 1, 80, 96, 2},   {1, 8, 192, 128, 16},
    {2, 5, 17, 33, 7},  {1, 64, 16, 8, 3},  {1, 2, 576, 512, 32}, {2, 2, 128, 128, 1}, {1, 7, 96, 80, 256},
    {1, 3, 32, 65, 24}, {2, 9, 31, 15, 16}, {1, 16, 64, 128, 64}, {1, 1, 130, 200, 8},
};

/* Three partitions, or two where rows are long. */
static int32_t ctx_of(const struct shape *s) { return s->d_key * s->n_group > 400 ? 640 : 1120; }

static void accuracy_of(const char *isa, const struct sy_kernels *kern, bool rounded)
{
    static const struct {
        int32_t pos0, n_q, window;
        float softcap;
    } items[] = {{0, 1, 0, 0},      {0, 16, 0, 0},     {1, 3, 0, 5},     {60, 9, 0, 0},   {60, 9, 13, 0},
                 {505, 16, 0, 0},   {505, 16, 1, 30},  {505, 16, 7, 0},  {1111, 1, 0, 0}, {1111, 1, 512, 0},
                 {1100, 16, 0, 20}, {1030, 16, 20, 0}, {1100, 5, 600, 0}};
    double worst = 0;
    for (size_t i = 0; i < SY_COUNT(shapes); i++) {
        for (int t = SY_KV_F32; t < SY_KV_COUNT; t++) {
            struct cache c;
            if (rounded && !kern->attend.part_bf16[t]) continue;
            cache_make(&c, kern, shapes[i], (enum sy_kv_dtype)t, ctx_of(&shapes[i]), 1);
            c.rounded = rounded;
            for (size_t j = i < 2 ? 0 : (i + (size_t)t) % 3; j < SY_COUNT(items); j += i < 2 ? 1 : 3) {
                if (items[j].pos0 + items[j].n_q > c.ctx) continue;
                double e = item_error(&c, kern, items[j].pos0, items[j].n_q, items[j].window,
                                      1 / sqrtf((float)shapes[i].d_key), items[j].softcap);
                if (e > worst) worst = e;
                if (e > (rounded ? 0.02 : 4e-6))
                    fail_msg("%s, shape %zu, dtype %d, item %zu: error %g", isa, i, t, j, e);
            }
            cache_free(&c);
        }
    }
    print_message("%s%s: error at most %.2e\n", isa, rounded ? ", rounded to bf16" : "", worst);
}

static void accuracy(const char *isa, const struct sy_kernels *kern)
{
    accuracy_of(isa, kern, false);
    accuracy_of(isa, kern, true);
}

static void test_accuracy(void **state)
{
    (void)state;
    each_isa(accuracy);
}

/* Every cut of [pos0, pos0 + 16) gives the bits that one query at a time gives. */
static void same_bits(const struct cache *c, const struct sy_kernels *kern, int32_t pos0, int32_t window,
                      float softcap)
{
    enum { N = SY_ATTEND_Q };
    const struct shape *s = &c->shape;
    size_t row = (size_t)(s->n_group * s->d_val);
    if (pos0 + N > c->ctx) return;
    float *one = malloc(N * row * sizeof(float)), *cut = malloc(N * row * sizeof(float));
    for (int32_t h = 0; h < s->n_kv; h++) {
        for (int32_t i = 0; i < N; i++) attend(c, kern, h, pos0 + i, 1, window, 0.2f, softcap, one + (size_t)i * row);
        for (int32_t n = 2; n <= N; n += n < 8 ? 3 : 4) {
            for (int32_t i = 0; i < N; i += n)
                attend(c, kern, h, pos0 + i, N - i < n ? N - i : n, window, 0.2f, softcap, cut + (size_t)i * row);
            assert_memory_equal(one, cut, N * row * sizeof(float));
        }
    }
    free(one);
    free(cut);
}

static void identity_of(const struct sy_kernels *kern, bool rounded)
{
    for (size_t i = 0; i < SY_COUNT(shapes); i++) {
        for (int t = SY_KV_F32; t < SY_KV_COUNT; t++) {
            struct cache c;
            if (rounded && !kern->attend.part_bf16[t]) continue;
            cache_make(&c, kern, shapes[i], (enum sy_kv_dtype)t, ctx_of(&shapes[i]), 1);
            c.rounded = rounded;
            same_bits(&c, kern, 505, 0, 0);
            if (t != SY_KV_F16) same_bits(&c, kern, 57, 3, 2);
            if (t != SY_KV_F32) same_bits(&c, kern, 1020, 11, 0);
            if (t == (int)i % SY_KV_COUNT) same_bits(&c, kern, 1025, 0, 10);
            same_bits(&c, kern, 0, 0, 0);
            cache_free(&c);
        }
    }
}

static void identity(const char *isa, const struct sy_kernels *kern)
{
    (void)isa;
    identity_of(kern, false);
    identity_of(kern, true);
}

static void test_identity(void **state)
{
    (void)state;
    each_isa(identity);
}

/* Scores of +-1e5 and more: the softmax picks single keys, nothing overflows. */
static void extremes(const char *isa, const struct sy_kernels *kern)
{
    struct shape s = {1, 3, 64, 64, 16};
    for (int t = SY_KV_F32; t < SY_KV_COUNT; t++) {
        struct cache c;
        cache_make(&c, kern, s, (enum sy_kv_dtype)t, 700, 100);
        double e = item_error(&c, kern, 640, 16, 0, 1, 0);
        if (e > 1e-3) fail_msg("%s: error %g", isa, e);
        e = item_error(&c, kern, 640, 16, 0, 1, 50);
        if (e > 1e-4) fail_msg("%s with softcap: error %g", isa, e);
        cache_free(&c);
    }
}

static void test_extremes(void **state)
{
    (void)state;
    each_isa(extremes);
}

/* Keys with a score of -inf count for nothing, in part of a context or in whole partitions; NaN stays visible. */
static void infinities(const char *isa, const struct sy_kernels *kern)
{
    (void)isa;
    struct shape s = {1, 2, 8, 4, 16};
    struct cache c;
    float out[8], one = 1;
    cache_make(&c, kern, s, SY_KV_F32, 1120, 1);
    for (int32_t i = 0; i < 1120 * 16; i++) c.q[i] = one;
    int32_t row;
    float k[8], v[4];
    for (int32_t j = 0; j < 1120; j++) {
        for (int d = 0; d < 8; d++) k[d] = j == 1050 ? 0.25f : -INFINITY;
        for (int d = 0; d < 4; d++) v[d] = (float)(j + d);
        row = c.table[j / 16] * 16 + j % 16;
        kern->attend.write[SY_KV_F32](&c.kv, c.layer, k, 8, v, 4, &row, 1);
    }
    attend(&c, kern, 0, 1110, 1, 0, 1, 0, out);
    for (int i = 0; i < 8; i++) assert_true(out[i] == (float)(1050 + i % 4));
    attend(&c, kern, 0, 1040, 1, 0, 1, 0, out);
    for (int i = 0; i < 8; i++) assert_true(isnan(out[i])); /* every score is -inf */
    k[3] = NAN;
    row = c.table[3] * 16;
    kern->attend.write[SY_KV_F32](&c.kv, c.layer, k, 8, v, 4, &row, 1);
    attend(&c, kern, 0, 1110, 1, 0, 1, 0, out);
    for (int i = 0; i < 8; i++) assert_true(isnan(out[i]));
    attend(&c, kern, 0, 1110, 1, 1000, 1, 0, out);
    for (int i = 0; i < 8; i++) assert_true(out[i] == (float)(1050 + i % 4));
    cache_free(&c);
}

static void test_infinities(void **state)
{
    (void)state;
    each_isa(infinities);
}

/* A value that is not finite reaches the queries that see its key, and no others beside them. */
static void later_infinity(const char *isa, const struct sy_kernels *kern)
{
    enum { N = SY_ATTEND_Q, POS0 = 70, AT = POS0 + 5 };
    struct shape s = {1, 3, 32, 32, 16};
    for (int t = SY_KV_F32; t < SY_KV_COUNT; t++) {
        for (int rounded = 0; rounded < 2; rounded++) {
            struct cache c;
            float k[32] = {0}, v[32] = {[7] = INFINITY}, *before = malloc(N * 96 * sizeof *before), *after;
            cache_make(&c, kern, s, (enum sy_kv_dtype)t, POS0 + N, 1);
            c.rounded = rounded;
            after = malloc(N * 96 * sizeof *after);
            attend(&c, kern, 0, POS0, N, 0, 0.2f, 0, before);
            int32_t row = c.table[AT / 16] * 16 + AT % 16;
            kern->attend.write[t](&c.kv, c.layer, k, 32, v, 32, &row, 1);
            attend(&c, kern, 0, POS0, N, 0, 0.2f, 0, after);
            assert_memory_equal(before, after, (AT - POS0) * 96 * sizeof *before);
            for (int i = (AT - POS0) * 96 + 7; i < N * 96; i += 32)
                if (isfinite(after[i])) fail_msg("%s, dtype %d: row %d hides an infinity", isa, t, i / 32);
            free(before);
            free(after);
            cache_free(&c);
        }
    }
}

static void test_later_infinity(void **state)
{
    (void)state;
    each_isa(later_infinity);
}

/* q8_0 at the ends of its range: zero, what binary16 cannot hold as a scale on either side, and what is not finite.
 */
static void q8_range(const char *isa, const struct sy_kernels *kern)
{
    enum { D = 40 };
    static const struct {
        float x, want, within;
    } values[] = {{0, 0, 0},          {1e-9f, 0, 1e-9f},         {9e-6f, 9e-6f, 2e-6f},       {-3, -3, 0.01f},
                  {8e6f, 8e6f, 3e4f}, {1e9f, 65504.0f * 127, 0}, {-1e30f, -65504.0f * 127, 0}};
    struct sy_kv_dim kv = {1, D, D, 16, SY_KV_Q8_0, sy_kv_block_bytes(1, D, D, 16, SY_KV_Q8_0), false};
    unsigned char *layer = aligned_alloc(256, (size_t)kv.block_bytes);
    for (size_t i = 0; i <= SY_COUNT(values); i++) {
        float k[D] = {0}, v[D], q[D] = {0}, out[D], partial[D + 2];
        int32_t row = 0, table = 0;
        for (int d = 0; d < D; d++) v[d] = i < SY_COUNT(values) ? values[i].x : d == 33 ? INFINITY : 1;
        kern->attend.write[SY_KV_Q8_0](&kv, layer, k, D, v, D, &row, 1);
        struct sy_attend a = {.kv = &kv,
                              .layer = layer,
                              .table = &table,
                              .n_group = 1,
                              .n_q = 1,
                              .scale = 1,
                              .q = q,
                              .ldq = D,
                              .out = out,
                              .ldo = D,
                              .n_part = 1,
                              .partial = partial};
        kern->attend.part[SY_KV_Q8_0](&a);
        kern->attend.merge(&a);
        for (int d = 0; d < D; d++) {
            if (i == SY_COUNT(values)) assert_true(d < 32 ? fabsf(out[d] - 1) < 0.005f : isnan(out[d]));
            else if (!(fabsf(out[d] - values[i].want) <= values[i].within))
                fail_msg("%s: %g came back as %g", isa, values[i].x, out[d]);
        }
    }
    free(layer);
}

static void test_q8_range(void **state)
{
    (void)state;
    each_isa(q8_range);
}

/* Values that are the first elements of keys, stored once: the same bits as stored twice. */
static void shared_values(const char *isa, const struct sy_kernels *kern)
{
    enum { N = 100, D = 80, V = 64, GROUP = 5, Q = 3 };
    (void)isa;
    for (int dtype = 0; dtype < SY_KV_COUNT; dtype++)
        for (int32_t block_len = 16; block_len <= 24; block_len += 8) {
            struct cache c;
            cache_make(&c, kern, (struct shape){1, GROUP, D, V, block_len}, (enum sy_kv_dtype)dtype, N, 1);
            struct sy_kv_dim twice = c.kv, once = c.kv;
            once.shared = true;
            once.block_bytes = sy_kv_block_bytes(1, D, 0, block_len, (enum sy_kv_dtype)dtype);
            assert_true(once.block_bytes < twice.block_bytes);
            unsigned char *layer = aligned_alloc(256, (size_t)c.n_entry * (size_t)once.block_bytes);
            int32_t row[N];
            for (int32_t i = 0; i < N; i++) row[i] = c.table[i / block_len] * block_len + i % block_len;
            kern->attend.write[dtype](&twice, c.layer, c.k, D, c.k, D, row, N);
            kern->attend.write[dtype](&once, layer, c.k, D, NULL, 0, row, N);
            float want[Q * GROUP * V], got[Q * GROUP * V];
            attend(&c, kern, 0, N - Q, Q, 0, 0.1f, 0, want);
            unsigned char *both = c.layer;
            c.layer = layer;
            c.kv = once;
            c.rounded = true; /* kernels that cannot must say so */
            attend(&c, kern, 0, N - Q, Q, 0, 0.1f, 0, got);
            assert_memory_equal(want, got, sizeof want);
            c.layer = both;
            free(layer);
            cache_free(&c);
        }
}
static void test_shared_values(void **state)
{
    (void)state;
    each_isa(shared_values);
}

/* Chosen keys are copied as they are read, whatever the cache keeps them in. */
static void gather_of(const char *isa, const struct sy_kernels *kern)
{
    enum { N = 60, D = 40, CHOSEN = 21 };
    (void)isa;
    static float to[SY_PARTITION * D];
    for (int dtype = 0; dtype < SY_KV_COUNT; dtype++) {
        struct cache c;
        cache_make(&c, kern, (struct shape){1, 1, D, D, 24}, (enum sy_kv_dtype)dtype, N, 1);
        struct sy_attend a = {.kv = &c.kv, .layer = c.layer, .table = c.table};
        float pos[CHOSEN];
        for (int i = 0; i < CHOSEN; i++) pos[i] = (float)(i * 59 / 20);
        sy_attend_gather(&a, pos, CHOSEN, to);
        for (int32_t i = 0; i < SY_PARTITION; i++)
            for (int32_t d = 0; d < D; d++) {
                float want = i < CHOSEN ? c.k[(int32_t)pos[i < CHOSEN ? i : 0] * D + d] : 0;
                assert_true(to[i / 16 * 16 * D + d * 16 + i % 16] == want);
            }
        cache_free(&c);
    }
}
static void test_gather(void **state)
{
    (void)state;
    each_isa(gather_of);
}

/* Scores of an indexer against sums in double; the span asked for changes no bit. */
static void index_of(const char *isa, const struct sy_kernels *kern)
{
    enum { N = 90, D = 40, HEADS = 7, MIDDLE = 37 };
    (void)isa;
    for (int dtype = 0; dtype < SY_KV_COUNT; dtype++) {
        struct cache c;
        cache_make(&c, kern, (struct shape){1, HEADS, D, D, 24}, (enum sy_kv_dtype)dtype, N, 1);
        struct sy_kv_dim once = c.kv;
        float w[HEADS], all[N], some[N];
        const float *q = c.q + (N - 1) * HEADS * D;
        for (int h = 0; h < HEADS; h++) w[h] = draw(&c);
        struct sy_attend_index a = {&once, c.layer, c.table, HEADS, 0, N, q, w, all};
        once.shared = true;
        once.d_val = 0; /* head 0 starts the block either way */
        kern->attend.index(&a);
        for (int32_t j = 0; j < N; j++) {
            double want = 0, size = 0;
            for (int h = 0; h < HEADS; h++) {
                double dot = 0;
                for (int d = 0; d < D; d++) dot += (double)q[h * D + d] * c.k[j * D + d];
                want += w[h] * fmax(dot, 0);
                size += fabs(w[h] * dot) + D;
            }
            assert_true(fabs(all[j] - want) <= 1e-6 * size);
        }
        a.lo = MIDDLE;
        a.score = some;
        kern->attend.index(&a);
        assert_memory_equal(some, all + MIDDLE, (N - MIDDLE) * sizeof *some);
        cache_free(&c);
    }
}
static void test_index(void **state)
{
    (void)state;
    each_isa(index_of);
}

static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(sy_kv_block_bytes(3, 64, 64, 16, SY_KV_BF16), 3 * 128 * 16 * 2);
    assert_int_equal(sy_kv_block_bytes(1, 1, 1, 1, SY_KV_F16), 256);
    assert_int_equal(sy_kv_block_bytes(1, 64, 64, 1, SY_KV_F32), 512);
    assert_int_equal(sy_kv_block_bytes(3, 64, 80, 16, SY_KV_Q8_0), 3 * 16 * (64 + 80 + 2 * (2 + 3)) + 32);
    assert_int_equal(sy_kv_block_bytes(1, INT32_MAX, INT32_MAX, 1, SY_KV_Q8_0) % 256, 0);
    assert_int_equal(sy_kv_block_bytes(0, 64, 64, 16, SY_KV_F32), 0);
    assert_int_equal(sy_kv_block_bytes(INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, SY_KV_F32), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_values),  cmocka_unit_test(test_gather),
        cmocka_unit_test(test_index),          cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_accuracy),       cmocka_unit_test(test_identity),
        cmocka_unit_test(test_extremes),       cmocka_unit_test(test_infinities),
        cmocka_unit_test(test_later_infinity), cmocka_unit_test(test_q8_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
