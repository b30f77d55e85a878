/* Matrix products of the CPU backend: every instruction set this machine has, every layout, every storage format, odd
 * sizes, against double precision; and that no bit depends on how rows and panels are split over calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "backend/cpu/layout.h"

struct rnd {
    uint64_t s;
};

static uint32_t next(struct rnd *r)
{
    r->s = r->s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->s >> 32);
}

static float uniform(struct rnd *r) { return (float)(int32_t)next(r) * 0x1p-31f; }

static void *get(size_t n)
{
    void *p = aligned_alloc(64, (n + 63) / 64 * 64);
    assert_non_null(p);
    memset(p, 0xa5, (n + 63) / 64 * 64);
    return p;
}

/* A stored matrix of any bit patterns that mean modest numbers: codes the quantisers never choose are in it too. */
static void fill(const struct sy_quant *q, unsigned char *to, int64_t n, struct rnd *r)
{
    float v[256];
    for (int64_t i = 0; i < n; i += q->block_len, to += q->block_bytes) {
        if (!q->affine.bits && q->quantise) {
            for (int j = 0; j < q->block_len; j++) v[j] = uniform(r);
            q->quantise(v, to, q->block_len);
            continue;
        }
        for (bool fine = false; !fine;) {
            for (int j = 0; j < q->block_bytes; j++) to[j] = (unsigned char)(next(r) >> 8);
            q->dequant(to, v, q->block_len);
            float most = 0;
            for (int j = 0; j < q->block_len; j++) most = fmaxf(most, fabsf(v[j]));
            fine = most < 50 && most > 1e-15f; /* a scale of MXFP4 may be any power of two */
        }
    }
}

/* The f16 nearest to v, of those around the rounded float. */
static double half(double v)
{
    uint16_t h = sy_f32_to_f16((float)v), best = h;
    for (int i = -1; i < 2; i++) {
        uint16_t other = (uint16_t)(h + i);
        double d = fabs(sy_f16_to_f32(other) - v), least = fabs(sy_f16_to_f32(best) - v);
        if (d < least || (d == least && other % 2 == 0)) best = other;
    }
    return sy_f16_to_f32(best);
}

/* A code of B8 or B4 and its scale and min, all as stored, to bf16: |h| < 2. */
static double widened(double scale, double code, double min)
{
    double h = half(scale * code + min), a = fabs(h), w = 0x1p-15;
    if (a >= 0x1p-14) {
        double ulp = ldexp(1, ilogb(a) - 7);
        w = floor(a / ulp + 0.5) * ulp;
    } else {
        w += floor(a / 0x1p-21 + 0.5) * 0x1p-22;
    }
    return signbit(h) ? -w : w;
}

/* Weight [c][i] as layout.h says it is read; *mass: the sum of what it is made of, to measure errors against. */
static double weight(const struct sy_panels *p, int64_t c, int64_t i, double *mass)
{
    const unsigned char *at = p->data + (size_t)(c / 16) * p->panel_bytes;
    float f;
    uint16_t h;
    c %= 16;
    switch (p->layout) {
    case SY_LAYOUT_F32: memcpy(&f, at + (i * 16 + c) * 4, 4); break;
    case SY_LAYOUT_F16:
        memcpy(&h, at + (i * 16 + c) * 2, 2);
        f = sy_f16_to_f32(h);
        break;
    case SY_LAYOUT_BF16:
    case SY_LAYOUT_WBF16:
        memcpy(&h, at + ((i / 2 * 16 + c) * 2 + i % 2) * 2, 2);
        f = sy_bf16_to_f32(h);
        break;
    case SY_LAYOUT_B8:
    case SY_LAYOUT_B4: {
        int64_t g = i / p->group;
        memcpy(&f, at + c * 4, 4);
        memcpy(&h, at + p->scale_at + (size_t)(g * 16 + c) * 2, 2);
        double scale = sy_f16_to_f32(h), min = 0, code;
        if (p->layout == SY_LAYOUT_B4) min = half(-1.5 * scale);
        if (p->has_min) {
            memcpy(&h, at + p->min_at + (size_t)(g * 16 + c) * 2, 2);
            min = sy_f16_to_f32(h);
        }
        if (p->layout == SY_LAYOUT_B8) {
            code = (int8_t)at[p->code_at + (size_t)((i / 2 * 16 + c) * 2 + i % 2)];
        } else {
            memcpy(&h, at + p->code_at + (size_t)(((i / 8 * 16 + c) * 2 + i % 2) * 2), 2);
            code = 1 + (h >> i % 8 / 2 * 4 & 15) / 16.0;
        }
        double w = (double)f * widened(scale, code, min);
        *mass = fabs(w);
        return w;
    }
    default: {
        int64_t g = i / p->group;
        double min = 0;
        int code = p->layout == SY_LAYOUT_I8
                       ? at[p->code_at + (size_t)((i / 4 * 16 + c) * 4 + i % 4)]
                       : at[p->code_at + (size_t)(i / 32 * 256 + (i % 16 / 4 * 16 + c) * 4 + i % 4)];
        if (p->layout == SY_LAYOUT_I4) code = i % 32 < 16 ? code & 15 : code >> 4;
        memcpy(&f, at + c * 4, 4);
        memcpy(&h, at + p->scale_at + (size_t)(g * 16 + c) * 2, 2);
        double w = (double)f * sy_f16_to_f32(h) * (code - p->zero);
        if (p->has_min) {
            memcpy(&h, at + p->min_at + (size_t)(g * 16 + c) * 2, 2);
            min = (double)f * sy_f16_to_f32(h);
        }
        *mass = fabs(w) + fabs(min);
        return w + min;
    }
    }
    *mass = fabs((double)f);
    return f;
}

static double activation(const struct sy_xmat *x, int64_t r, int64_t i)
{
    float f;
    uint16_t h;
    if (x->kind == SY_X_F32) {
        memcpy(&f, x->data + r * x->ld + i * 4, 4);
        return f;
    }
    if (x->kind == SY_X_BF16) {
        memcpy(&h, x->data + r * x->ld + i * 2, 2);
        return sy_bf16_to_f32(h);
    }
    return (double)(int8_t)x->data[r * x->ld + i] * x->planes.scale[i / 32 * x->ld_group + r];
}

struct problem {
    const struct sy_quant *format;
    enum sy_layout layout;
    int64_t m, n, k;
    unsigned char *stored;
    float *x, *bias, *add;
    struct sy_panels w;
    struct sy_xmat xm;
    double *want, *bound; /* [m][n]: products, and sums of absolute values */
};

static const struct sy_kernels_gemm *table(const char *isa)
{
    for (const struct sy_kernel_entry *e = sy_kernel_entries; e->family; e++)
        if (strcmp(e->family, "gemm") == 0 && strcmp(e->isa, isa) == 0) return e->table;
    return NULL;
}

static void pose(struct problem *p, const struct sy_quant *format, enum sy_layout layout, int64_t m, int64_t n,
                 int64_t k)
{
    struct rnd r = {(uint64_t)(m * 1000003 + n * 1009 + k) * 31 + layout};
    *p = (struct problem){.format = format, .layout = layout, .m = m, .n = n, .k = k};
    p->stored = get((size_t)(n * sy_quant_row_bytes(format, k)));
    fill(format, p->stored, n * k, &r);
    p->x = malloc((size_t)(m * k) * sizeof *p->x);
    p->bias = malloc((size_t)n * sizeof *p->bias);
    p->add = malloc((size_t)(m * n) * sizeof *p->add);
    assert_true(p->x && p->bias && p->add);
    for (int64_t i = 0; i < m * k; i++) p->x[i] = uniform(&r) * (i % 97 == 0 ? 30 : 1);
    for (int64_t i = 0; i < n; i++) p->bias[i] = uniform(&r);
    for (int64_t i = 0; i < m * n; i++) p->add[i] = uniform(&r);

    sy_panels_plan(&p->w, layout, format, n, k);
    p->w.data = get(p->w.n_bytes);
    struct sy_tensor t = {.format = format, .n_dim = 2, .dim = {n, k, 1, 1}, .data = p->stored};
    float *scratch = malloc(sy_panels_scratch(k) * sizeof *scratch);
    assert_non_null(scratch);
    sy_panels_pack(&p->w, &t, 0, 0, (n + 15) / 16, scratch);
    free(scratch);

    enum sy_xkind kind = sy_layout_xkind(layout);
    sy_xmat_init(&p->xm, kind, m, k, get(sy_xmat_bytes(kind, m, k)));
    table("generic")->prepare[kind](p->x, k, 0, m, &p->xm);

    p->want = calloc((size_t)(m * n), sizeof *p->want);
    p->bound = calloc((size_t)(m * n), sizeof *p->bound);
    assert_true(p->want && p->bound);
    for (int64_t c = 0; c < n; c++)
        for (int64_t i = 0; i < k; i++) {
            double mass, w = weight(&p->w, c, i, &mass);
            for (int64_t row = 0; row < m; row++) {
                double a = activation(&p->xm, row, i);
                p->want[row * n + c] += w * a;
                p->bound[row * n + c] += mass * fabs(a);
            }
        }
}

static void drop(struct problem *p)
{
    free(p->stored);
    free(p->x);
    free(p->bias);
    free(p->add);
    free(p->w.data);
    free(p->xm.data);
    free(p->want);
    free(p->bound);
}

typedef void mul_fn(const struct sy_panels *, const struct sy_xmat *, int64_t, int64_t, int64_t, int64_t, float *,
                    int64_t, const struct sy_epilogue *);

/* Runs the product over a grid of calls, with a bias and a residual in place, and checks what lies around y. */
static float *run(const struct problem *p, mul_fn *mul, int64_t rows, int64_t panels)
{
    int64_t ldy = p->n + 3, n_panel = (p->n + 15) / 16;
    float *y = malloc((size_t)(p->m * ldy) * sizeof *y);
    assert_non_null(y);
    for (int64_t i = 0; i < p->m * ldy; i++) y[i] = i % ldy < p->n ? p->add[i / ldy * p->n + i % ldy] : 1234;
    struct sy_epilogue e = {.bias = p->bias, .add = y, .ld_add = ldy};
    for (int64_t r = 0; r < p->m; r += rows)
        for (int64_t c = 0; c < n_panel; c += panels)
            mul(&p->w, &p->xm, r, r + rows < p->m ? r + rows : p->m, c, c + panels < n_panel ? c + panels : n_panel,
                y, ldy, &e);
    for (int64_t i = 0; i < p->m * ldy; i++)
        if (i % ldy >= p->n) assert_true(y[i] == 1234);
    for (int64_t r = 1; r < p->m; r++) memmove(y + r * p->n, y + r * ldy, (size_t)p->n * sizeof *y);
    return y;
}

static void check(const struct problem *p, const char *isa, mul_fn *mul)
{
    int64_t cut[][2] = {{1, 1000}, {1000, 1}, {1, 1}, {7, 3}, {13, 2}, {16, 5}};
    float *y = run(p, mul, p->m, (p->n + 15) / 16);
    for (int64_t i = 0; i < p->m * p->n; i++) {
        double want = p->want[i] + p->bias[i % p->n] + p->add[i];
        double limit = 3e-6 * (p->bound[i] + fabs(p->bias[i % p->n]) + fabs(p->add[i])) + 1e-30;
        if (!(fabs(y[i] - want) <= limit))
            fail_msg("%s %s of %s, m %d n %d k %d: y[%d][%d] is %.9g, not %.9g (limit %.2g)", isa,
                     sy_layout_name(p->layout), p->format->name, (int)p->m, (int)p->n, (int)p->k, (int)(i / p->n),
                     (int)(i % p->n), (double)y[i], want, limit);
    }
    for (size_t i = 0; i < SY_COUNT(cut); i++) {
        float *z = run(p, mul, cut[i][0], cut[i][1]);
        if (memcmp(y, z, (size_t)(p->m * p->n) * sizeof *y) != 0)
            fail_msg("%s %s of %s, m %d n %d k %d: calls of %d rows and %d panels change bits", isa,
                     sy_layout_name(p->layout), p->format->name, (int)p->m, (int)p->n, (int)p->k, (int)cut[i][0],
                     (int)cut[i][1]);
        free(z);
    }
    /* Without the extras, columns may be written with no distance between rows. */
    float *z = malloc((size_t)(p->m * p->n) * sizeof *z);
    assert_non_null(z);
    mul(&p->w, &p->xm, 0, p->m, 0, (p->n + 15) / 16, z, p->n, NULL);
    for (int64_t i = 0; i < p->m * p->n; i++) {
        float v = z[i] + p->bias[i % p->n];
        v += p->add[i];
        assert_memory_equal(&v, y + i, sizeof v);
    }
    free(z);
    free(y);
}

static void check_all(const struct problem *p)
{
    for (const struct sy_kernel_entry *e = sy_kernel_entries; e->family; e++) {
        if (strcmp(e->family, "isa") != 0 || !((const struct sy_kernels_isa *)e->table)->usable()) continue;
        const struct sy_kernels_gemm *t = table(e->isa);
        if (t && t->mul[p->layout]) check(p, e->isa, t->mul[p->layout]);
    }
}

static bool takes(const struct sy_quant *q, enum sy_layout l)
{
    static const enum sy_compute mode[] = {SY_COMPUTE_AUTO, SY_COMPUTE_F32, SY_COMPUTE_BF16, SY_COMPUTE_INT8};
    for (size_t i = 0; i < SY_COUNT(mode); i++)
        for (int bf16 = 0; bf16 < 3; bf16++) {
            struct sy_kernels k = {.bf16 = bf16 > 0, .bf16_codes = bf16 > 1};
            enum sy_layout got;
            if (!sy_layout_choose(q, mode[i], &k, &got, NULL) && got == l) return true;
        }
    return false;
}

/* Sizes are drawn, small ones and those around a tile more often; the work of a case is bounded. */
static void test_products(void **state)
{
    (void)state;
    static const int64_t edge[] = {1, 2, 3, 4, 5, 7, 8, 12, 13, 15, 16, 17, 31, 32, 33, 48, 49, 65};
    struct rnd r = {2024};
    for (const struct sy_quant *const *q = sy_quants; *q; q++)
        for (enum sy_layout l = 0; l < SY_LAYOUT_COUNT; l++) {
            if (!takes(*q, l)) continue;
            for (int i = 0; i < ((*q)->block_len == 256 ? 6 : 24); i++) {
                int64_t m = edge[next(&r) % SY_COUNT(edge)], n = edge[next(&r) % SY_COUNT(edge)];
                if (i % 6 == 5) m = 1 + next(&r) % 70;
                if (i % 5 == 4) n = 1 + next(&r) % 130;
                int64_t room = 400000 / (m * n), k = (*q)->block_len;
                int64_t n_block = 1 + next(&r) % (k == 1 ? 700 : k == 32 ? 40 : 6);
                if (k == 1 && i % 3 == 0) n_block = edge[next(&r) % SY_COUNT(edge)];
                k *= n_block * k < room ? n_block : room / k > 0 ? room / k : 1;
                struct problem p;
                pose(&p, *q, l, m, n, k);
                check_all(&p);
                drop(&p);
            }
        }
    /* More rows than any kernel takes at once, and more elements than a chunk. */
    static const char *const names[] = {"q4_1", "q8_0", "bf16", "f16"};
    for (size_t i = 0; i < SY_COUNT(names); i++)
        for (enum sy_layout l = 0; l < SY_LAYOUT_COUNT; l++) {
            if (!takes(sy_quant_by_name(names[i]), l)) continue;
            struct problem p;
            pose(&p, sy_quant_by_name(names[i]), l, 531, 17, 96);
            check_all(&p);
            drop(&p);
            pose(&p, sy_quant_by_name(names[i]), l, 35, 3, 4128);
            check_all(&p);
            drop(&p);
        }
}

/* Packed weights against dequant(): equal where scales are halves in the file, 11 bits where they are products. */
static void test_packing(void **state)
{
    (void)state;
    for (const struct sy_quant *const *q = sy_quants; *q; q++)
        for (enum sy_layout l = 0; l < SY_LAYOUT_COUNT; l++) {
            if (!takes(*q, l)) continue;
            struct problem p;
            int64_t n = 37, k = (*q)->block_len == 1 ? 77 : (*q)->block_len * 2;
            pose(&p, *q, l, 1, n, k);
            float *row = malloc((size_t)k * sizeof *row);
            assert_non_null(row);
            double unit = l == SY_LAYOUT_F32                            ? 0
                          : l == SY_LAYOUT_BF16 || l == SY_LAYOUT_WBF16 ? (strcmp((*q)->name, "bf16") ? 0x1p-8 : 0)
                          : (*q)->block_len == 256                      ? 0x1p-11
                                                                        : 0;
            for (int64_t c = 0; c < n; c++) {
                (*q)->dequant(p.stored + c * sy_quant_row_bytes(*q, k), row, k);
                double most = 0;
                for (int64_t i = 0; i < k; i++) most = fmax(most, fabs(row[i]));
                for (int64_t i = 0; i < k; i++) {
                    double mass, w = weight(&p.w, c, i, &mass);
                    /* The sum with a min was rounded to float32; a column's smallest scales may lose bits. */
                    double limit = (unit + 0x1p-24) * mass + (unit > 0 ? 1e-7 : 0) + most * 0x1p-36;
                    /* bf16, f16 scales and mins of up to 24 (K-quants: any number of) steps, small numbers */
                    if (l == SY_LAYOUT_B8 || l == SY_LAYOUT_B4) limit = 0x1p-8 * fabs(w) + most * 0x1p-8;
                    if (!(fabs(w - row[i]) <= limit))
                        fail_msg("%s as %s: w[%d][%d] is %.9g, stored %.9g", (*q)->name, sy_layout_name(l), (int)c,
                                 (int)i, w, (double)row[i]);
                }
            }
            free(row);
            drop(&p);
        }
}

/* Rows of a part of a tensor, in the order that undoes GGUF's permutation of rotary heads. */
static void test_rows(void **state)
{
    (void)state;
    const struct sy_quant *q = sy_quant_by_name("f32");
    enum { N = 64, K = 3 };
    float v[N * K];
    for (int i = 0; i < N * K; i++) v[i] = (float)i;
    struct sy_tensor t = {.format = q, .n_dim = 2, .dim = {N, K, 1, 1}, .data = (unsigned char *)v, .head_rows = 8};
    struct sy_panels p;
    sy_panels_plan(&p, SY_LAYOUT_F32, q, 20, K);
    p.data = get(p.n_bytes);
    float *scratch = malloc(sy_panels_scratch(K) * sizeof *scratch);
    assert_non_null(scratch);
    sy_panels_pack(&p, &t, 24, 1, 2, scratch);
    sy_panels_pack(&p, &t, 24, 0, 1, scratch);
    free(scratch);
    for (int64_t c = 0; c < 20; c++)
        for (int64_t i = 0; i < K; i++) {
            double mass;
            assert_true(weight(&p, c, i, &mass) == v[sy_tensor_row(&t, 24 + c) * K + i]);
        }
    free(p.data);
}

/* One prepared row, as bytes in a row: codes and what belongs to them. */
static size_t row_of(const struct sy_xmat *x, int64_t r, unsigned char *to)
{
    size_t n = x->kind == SY_X_F32    ? (size_t)x->k * 4
               : x->kind == SY_X_BF16 ? (size_t)(x->k + 31) / 32 * 64
                                      : (size_t)x->k;
    memcpy(to, x->data + r * x->ld, n);
    if (x->kind != SY_X_I8) return n;
    struct sy_xplanes p = x->planes;
    for (int64_t g = 0; g < x->k / 32 * 7; g++, n += 4) memcpy(to + n, p.scale + g * x->ld_group + r, 4);
    return n;
}

/* Every instruction set prepares the same bytes, row by row or all at once, at any alignment. */
static void test_prepare(void **state)
{
    (void)state;
    enum { M = 21, K = 1056 };
    struct rnd r = {77};
    static const int64_t ks[] = {32, 64, 96, 128, 160, 576, 1056};
    for (enum sy_xkind kind = 0; kind < SY_X_COUNT; kind++)
        for (size_t c = 0; c < SY_COUNT(ks); c++) {
            int64_t k = ks[c] - (kind == SY_X_I8 ? 0 : (int64_t)c), ldx = k + 1;
            float *x = malloc((size_t)(M * ldx) * sizeof *x);
            assert_non_null(x);
            for (int64_t i = 0; i < M * ldx; i++) x[i] = ldexpf(uniform(&r), (int)(next(&r) % 40) - 20);
            for (int64_t i = 0; i < k; i++)
                x[i] = i < 32 ? 0 : i < 64 ? 1e-38f : i < 96 ? 3e38f : 127 - (float)(i % 64) / 2;
            x[ldx] = NAN;
            x[ldx + k - 1] = -INFINITY;
            for (int64_t i = 0; i < k; i++) x[2 * ldx + i] = i % 2 ? -FLT_MAX : FLT_MAX;
            struct sy_xmat a, b;
            sy_xmat_init(&a, kind, M, k, get(sy_xmat_bytes(kind, M, k)));
            sy_xmat_init(&b, kind, M, k, get(sy_xmat_bytes(kind, M, k)));
            table("generic")->prepare[kind](x, ldx, 0, M, &a);
            for (const struct sy_kernel_entry *e = sy_kernel_entries; e->family; e++) {
                if (strcmp(e->family, "isa") != 0 || !((const struct sy_kernels_isa *)e->table)->usable()) continue;
                const struct sy_kernels_gemm *t = table(e->isa);
                if (!t || !t->prepare[kind]) continue;
                for (int64_t row = 0, n = 1; row < M; row += n, n += 5)
                    t->prepare[kind](x, ldx, row, row + n < M ? row + n : M, &b);
                for (int64_t row = 0; row < M; row++) {
                    unsigned char one[K * 4], other[K * 4];
                    size_t n = row_of(&a, row, one);
                    row_of(&b, row, other);
                    /* Which NaN it is, is not defined. */
                    for (size_t i = (size_t)(kind == SY_X_I8 ? k : 0); kind != SY_X_BF16 && i < n; i += 4) {
                        float f, g;
                        memcpy(&f, one + i, 4);
                        memcpy(&g, other + i, 4);
                        if (isnan(f) && isnan(g)) memcpy(other + i, one + i, 4);
                    }
                    for (size_t i = 0; kind == SY_X_BF16 && row == 1 && i < n; i += 2)
                        if ((one[i + 1] & other[i + 1]) == 0x7f) memcpy(other + i, one + i, 2);
                    if (memcmp(one, other, n) != 0)
                        fail_msg("%s prepares row %d of kind %d, k %d, otherwise than generic", e->isa, (int)row,
                                 kind, (int)k);
                }
            }
            if (kind == SY_X_I8)
                for (int64_t g = 0; g < k / 32; g++) {
                    struct sy_xplanes p = a.planes;
                    bool bad = g == 0 || g == k / 32 - 1;
                    assert_true(isnan(p.scale[g * a.ld_group + 1]) == bad &&
                                isnan(p.mass[g * a.ld_group + 1]) == bad);
                }
            free(a.data);
            free(b.data);
            free(x);
        }
}

/* The int8 form is within half a step of x, and its sums are those of its codes. */
static void test_quantised(void **state)
{
    (void)state;
    struct rnd r = {5};
    float x[4 * 64];
    for (int i = 0; i < 4 * 64; i++) x[i] = uniform(&r) * 9;
    struct sy_xmat a;
    sy_xmat_init(&a, SY_X_I8, 4, 64, get(sy_xmat_bytes(SY_X_I8, 4, 64)));
    table("generic")->prepare[SY_X_I8](x, 64, 0, 4, &a);
    struct sy_xplanes p = a.planes;
    for (int i = 0; i < 4 * 64; i++) {
        int row = i / 64, g = i % 64 / 32, sum[2] = {0, 0};
        int64_t at = g * a.ld_group + row, half_at = 2 * g * a.ld_group + row;
        for (int j = 0; j < 32; j++) sum[j / 16] += (int8_t)a.data[row * a.ld + g * 32 + j];
        assert_true(fabs(x[i] - activation(&a, row, i % 64)) <= 0.5001 * (double)p.scale[at]);
        assert_int_equal(p.sum[at], -8 * (sum[0] + sum[1]));
        assert_int_equal(p.half_sum[half_at + a.ld_group], -8 * sum[1]);
        assert_true(p.mass[at] == p.scale[at] * (float)(sum[0] + sum[1]));
        assert_true(p.half_mass[half_at] == p.scale[at] * (float)sum[0]);
    }
    free(a.data);
}

/* NaN and infinite activations or scales end in NaN or infinity of their own row or column, never in a crash. */
static void test_not_finite(void **state)
{
    (void)state;
    for (enum sy_layout l = 0; l < SY_LAYOUT_COUNT; l++) {
        bool int4 = l == SY_LAYOUT_I4 || l == SY_LAYOUT_B4, int8 = l == SY_LAYOUT_I8 || l == SY_LAYOUT_B8;
        struct problem p;
        pose(&p, sy_quant_by_name(int4 ? "q4_0" : int8 ? "q8_0" : "bf16"), l, 5, 40, 64);
        for (const struct sy_kernel_entry *e = sy_kernel_entries; e->family; e++) {
            if (strcmp(e->family, "isa") != 0 || !((const struct sy_kernels_isa *)e->table)->usable()) continue;
            const struct sy_kernels_gemm *t = table(e->isa);
            if (!t || !t->mul[l]) continue;
            p.x[2 * 64 + 7] = NAN;
            p.x[3 * 64 + 9] = INFINITY;
            table("generic")->prepare[sy_layout_xkind(l)](p.x, 64, 0, 5, &p.xm);
            float y[5 * 40];
            t->mul[l](&p.w, &p.xm, 0, 5, 0, 3, y, 40, NULL);
            for (int i = 0; i < 5 * 40; i++) assert_true(!isfinite(y[i]) == (i / 40 == 2 || i / 40 == 3));
        }
        drop(&p);
    }
}

static void test_choose(void **state)
{
    (void)state;
    static const struct {
        const char *format;
        enum sy_compute mode;
        bool bf16;
        int layout; /* -1: refused */
    } want[] = {
        {"q4_0", SY_COMPUTE_AUTO, true, SY_LAYOUT_I4},
        {"q4_1", SY_COMPUTE_INT8, false, SY_LAYOUT_I4},
        {"q4_k", SY_COMPUTE_AUTO, true, SY_LAYOUT_I4},
        {"q2_k", SY_COMPUTE_AUTO, true, SY_LAYOUT_I4},
        {"q3_k", SY_COMPUTE_AUTO, true, SY_LAYOUT_I4},
        {"q5_0", SY_COMPUTE_AUTO, true, SY_LAYOUT_I8},
        {"q5_1", SY_COMPUTE_AUTO, true, SY_LAYOUT_I8},
        {"q6_k", SY_COMPUTE_AUTO, true, SY_LAYOUT_I8},
        {"q8_0", SY_COMPUTE_INT8, true, SY_LAYOUT_I8},
        {"q8_0", SY_COMPUTE_BF16, false, SY_LAYOUT_BF16},
        {"q8_0", SY_COMPUTE_F32, true, SY_LAYOUT_F32},
        {"bf16", SY_COMPUTE_AUTO, true, SY_LAYOUT_BF16},
        {"bf16", SY_COMPUTE_AUTO, false, SY_LAYOUT_WBF16},
        {"f16", SY_COMPUTE_AUTO, true, SY_LAYOUT_F16},
        {"f32", SY_COMPUTE_AUTO, true, SY_LAYOUT_F32},
        {"bf16", SY_COMPUTE_F32, true, SY_LAYOUT_F32},
        {"f16", SY_COMPUTE_BF16, true, SY_LAYOUT_BF16},
        {"f32", SY_COMPUTE_INT8, true, -1},
        {"f16", SY_COMPUTE_INT8, true, -1},
        {"bf16", SY_COMPUTE_INT8, true, -1},
    };
    struct sy_kernels wide = {.bf16 = true, .bf16_codes = true};
    enum sy_layout l;
    assert_int_equal(sy_layout_choose(sy_quant_by_name("q4_0"), SY_COMPUTE_AUTO, &wide, &l, NULL), SY_OK);
    assert_int_equal(l, SY_LAYOUT_B4);
    assert_int_equal(sy_layout_choose(sy_quant_by_name("q8_0"), SY_COMPUTE_AUTO, &wide, &l, NULL), SY_OK);
    assert_int_equal(l, SY_LAYOUT_B8);
    assert_int_equal(sy_layout_choose(sy_quant_by_name("q8_0"), SY_COMPUTE_INT8, &wide, &l, NULL), SY_OK);
    assert_int_equal(l, SY_LAYOUT_I8);
    for (size_t i = 0; i < SY_COUNT(want); i++) {
        struct sy_kernels k = {.bf16 = want[i].bf16};
        struct sy_err err = {0};
        enum sy_layout got;
        sy_status st = sy_layout_choose(sy_quant_by_name(want[i].format), want[i].mode, &k, &got, &err);
        if (want[i].layout < 0) {
            assert_int_equal(st, SY_ENOSUP);
            assert_non_null(strstr(err.msg, want[i].format));
        } else {
            assert_int_equal(st, SY_OK);
            assert_int_equal(got, want[i].layout);
        }
    }
}

static void test_pick(void **state)
{
    (void)state;
    struct sy_kernels k;
    struct sy_err err = {0};
    assert_int_equal(sy_kernels_pick("generic", &k, &err), SY_OK);
    assert_string_equal(k.isa, "generic");
    assert_false(k.bf16);
    for (int i = 0; i < SY_LAYOUT_COUNT; i++) assert_non_null(k.gemm.mul[i]);
    for (int i = 0; i < SY_X_COUNT; i++) assert_non_null(k.gemm.prepare[i]);
    assert_int_equal(sy_kernels_pick("sse9", &k, &err), SY_EARG);
    assert_non_null(strstr(err.msg, "sse9"));
    assert_non_null(strstr(err.msg, "generic"));
    assert_int_equal(sy_kernels_pick("", &k, NULL), SY_EARG);
    for (const struct sy_kernel_entry *e = sy_kernel_entries; e->family; e++) {
        if (strcmp(e->family, "isa") != 0) continue;
        const struct sy_kernels_isa *isa = e->table;
        sy_status st = sy_kernels_pick(e->isa, &k, &err);
        assert_int_equal(st, isa->usable() ? SY_OK : SY_ENOSUP);
        if (st) continue;
        assert_non_null(strstr(k.isa, e->isa));
        assert_memory_equal(k.isa, "generic", 7);
        for (const struct sy_kernel_entry *o = sy_kernel_entries; o->family; o++)
            if (strcmp(o->family, "isa") == 0 &&
                ((const struct sy_kernels_isa *)o->table)->rank / 10 > isa->rank / 10 && strstr(k.isa, o->isa))
                fail_msg("%s lets %s in", e->isa, o->isa);
    }
    assert_int_equal(sy_kernels_pick(NULL, &k, &err), SY_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pick),     cmocka_unit_test(test_choose),     cmocka_unit_test(test_rows),
        cmocka_unit_test(test_packing),  cmocka_unit_test(test_quantised),  cmocka_unit_test(test_prepare),
        cmocka_unit_test(test_products), cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests_name("cpu gemm", tests, NULL, NULL);
}
