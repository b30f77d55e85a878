/* vec_simd.h - rows of vectors for the names of a simd.h: included once by each instruction set's vec.c.
 *
 * The last lanes of a row go through the same arithmetic as the others, by loads and stores of n lanes, so an
 * element's value does not depend on where in a row it lies. */
#include "backend/cpu/kernel.h"
#include "backend/cpu/kernel/math_simd.h"

#include <string.h>

/* The sums run in 4 vectors, element i in vector i / LANES % 4, and meet in a fixed tree. */
static float sum_squares(const float *x, int64_t d)
{
    VF s[4] = {v_set(0), v_set(0), v_set(0), v_set(0)};
    int64_t i = 0;
    for (; i + 4 * LANES <= d; i += 4 * LANES) {
        for (int j = 0; j < 4; j++) {
            VF v = v_load(x + i + j * LANES);
            s[j] = v_fma(v, v, s[j]);
        }
    }
    for (int j = 0; i < d; i += LANES, j++) {
        VF v = d - i < LANES ? v_load_n(x + i, (int)(d - i)) : v_load(x + i);
        s[j] = v_fma(v, v, s[j]);
    }
    return v_sum((s[0] + s[1]) + (s[2] + s[3]));
}

static void norm(const float *x, int64_t ldx, const float *w, float eps, int64_t rows, int64_t group, int64_t d,
                 float *y, int64_t ldy)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t g = 0; g < group; g++) {
            const float *from = x + r * ldx + g * d;
            float *to = y + r * ldy + g * d;
            VF c = v_set(1 / __builtin_sqrtf(sum_squares(from, d) / (float)d + eps));
            int64_t i = 0;
            for (; i + LANES <= d; i += LANES) {
                VF v = v_load(from + i) * c;
                if (w) v *= v_load(w + i);
                v_store(to + i, v);
            }
            int n = (int)(d - i);
            if (n == 0) continue;
            VF v = v_load_n(from + i, n) * c;
            if (w) v *= v_load_n(w + i, n);
            v_store_n(to + i, v, n);
        }
    }
}

INLINE void rotate(VF *a, VF *b, VF c, VF s)
{
    VF first = v_fnma(*b, s, *a * c);
    *b = v_fma(*b, c, *a * s);
    *a = first;
}

/* Pairs (i, i + half) of one head; cs is [half][2]. */
static void rotate_halves(const float *x, int64_t half, const float *cs, float *y)
{
    int64_t i = 0;
    VF c, s;
    for (; i + LANES <= half; i += LANES) {
        VF a = v_load(x + i), b = v_load(x + half + i);
        v_load_pairs(cs + 2 * i, &c, &s);
        rotate(&a, &b, c, s);
        v_store(y + i, a);
        v_store(y + half + i, b);
    }
    int n = (int)(half - i);
    if (n == 0) return;
    float pad[2 * LANES] = {0};
    memcpy(pad, cs + 2 * i, (size_t)(2 * n) * sizeof *pad);
    VF a = v_load_n(x + i, n), b = v_load_n(x + half + i, n);
    v_load_pairs(pad, &c, &s);
    rotate(&a, &b, c, s);
    v_store_n(y + i, a, n);
    v_store_n(y + half + i, b, n);
}

/* Pairs (2i, 2i + 1). */
static void rotate_pairs(const float *x, int64_t half, const float *cs, float *y)
{
    for (int64_t i = 0; i < half; i += LANES) {
        float px[2 * LANES] = {0}, pc[2 * LANES] = {0};
        int64_t n = half - i;
        const float *from = x + 2 * i, *by = cs + 2 * i;
        if (n < LANES) {
            memcpy(px, from, (size_t)(2 * n) * sizeof *px);
            memcpy(pc, by, (size_t)(2 * n) * sizeof *pc);
            from = px;
            by = pc;
        }
        VF a, b, c, s;
        v_load_pairs(from, &a, &b);
        v_load_pairs(by, &c, &s);
        rotate(&a, &b, c, s);
        v_store_pairs(n < LANES ? px : y + 2 * i, a, b);
        if (n < LANES) memcpy(y + 2 * i, px, (size_t)(2 * n) * sizeof *px);
    }
}

static void rope(const float *x, int64_t ldx, int64_t rows, int64_t n_head, const struct sy_rope_dim *dim,
                 const float *cs, float *y, int64_t ldy)
{
    int64_t half = dim->d_rot / 2;
    for (int64_t r = 0; r < rows; r++, cs += 2 * half) {
        for (int64_t h = 0; h < n_head; h++) {
            const float *from = x + r * ldx + h * dim->d_head;
            float *to = y + r * ldy + h * dim->d_head;
            if (to != from) memmove(to, from, (size_t)dim->first * sizeof *to);
            from += dim->first;
            to += dim->first;
            if (dim->interleaved) rotate_pairs(from, half, cs, to);
            else rotate_halves(from, half, cs, to);
            if (to != from)
                memmove(to + 2 * half, from + 2 * half, (size_t)(dim->d_head - dim->first - 2 * half) * sizeof *to);
        }
    }
}

/* A loop over [rows, d]: EXPR of the vectors a (of x) and b (of z), lanes beyond d being 0. */
#define EACH(EXPR)                                                                                                   \
    for (int64_t r = 0; r < rows; r++) {                                                                             \
        const float *p = x + r * ldx, *q = z + r * ldz;                                                              \
        float *to = y + r * ldy;                                                                                     \
        int64_t i = 0;                                                                                               \
        for (; i + LANES <= d; i += LANES) {                                                                         \
            VF a = v_load(p + i), b = v_load(q + i);                                                                 \
            (void)b;                                                                                                 \
            v_store(to + i, EXPR);                                                                                   \
        }                                                                                                            \
        int n = (int)(d - i);                                                                                        \
        if (n > 0) {                                                                                                 \
            VF a = v_load_n(p + i, n), b = v_load_n(q + i, n);                                                       \
            (void)b;                                                                                                 \
            v_store_n(to + i, EXPR, n);                                                                              \
        }                                                                                                            \
    }

static void act(enum sy_fn fn, const float *x, int64_t ldx, int64_t rows, int64_t d, float *y, int64_t ldy)
{
    const float *z = x;
    int64_t ldz = ldx;
    switch (fn) {
    case SY_SILU: EACH(v_silu(a)) break;
    case SY_GELU: EACH(v_gelu(a)) break;
    case SY_GELU_TANH: EACH(v_gelu_tanh(a)) break;
    case SY_SIGMOID: EACH(v_sigmoid(a)) break;
    case SY_GELU_QUICK: EACH(v_gelu_quick(a)) break;
    case SY_RELU2: EACH(v_relu2(a)) break;
    case SY_TANH: EACH(v_tanh(a)) break;
    case SY_SOFTPLUS: EACH(v_softplus(a)) break;
    }
}

static void glu(enum sy_fn fn, const float *x, int64_t ldx, const float *z, int64_t ldz, int64_t rows, int64_t d,
                float *y, int64_t ldy)
{
    switch (fn) {
    case SY_SILU: EACH(v_silu(a) * b) break;
    case SY_GELU: EACH(v_gelu(a) * b) break;
    case SY_GELU_TANH: EACH(v_gelu_tanh(a) * b) break;
    case SY_SIGMOID: EACH(v_sigmoid(a) * b) break;
    case SY_GELU_QUICK: EACH(v_gelu_quick(a) * b) break;
    case SY_RELU2: EACH(v_relu2(a) * b) break;
    case SY_TANH: EACH(v_tanh(a) * b) break;
    case SY_SOFTPLUS: EACH(v_softplus(a) * b) break;
    }
}

static void add(const float *x, int64_t ldx, const float *z, int64_t ldz, int64_t rows, int64_t d, float *y,
                int64_t ldy)
{
    EACH(a + b)
}

static void mul(const float *x, int64_t ldx, const float *z, int64_t ldz, int64_t rows, int64_t d, float *y,
                int64_t ldy)
{
    EACH(a * b)
}

static void scale(const float *x, int64_t ldx, float c, int64_t rows, int64_t d, float *y, int64_t ldy)
{
    const float *z = x;
    int64_t ldz = ldx;
    EACH(a * v_set(c))
}

static void softcap(const float *x, int64_t ldx, float c, int64_t rows, int64_t d, float *y, int64_t ldy)
{
    const float *z = x;
    int64_t ldz = ldx;
    EACH(v_set(c) * v_tanh(a / v_set(c)))
}

/* The maximum first, then the first element equal to it: both passes need no indices in vectors. */
static int32_t argmax(const float *x, int64_t n)
{
    VF top[4];
    float most = -__builtin_inff();
    int64_t i = 0;
    for (int j = 0; j < 4; j++) top[j] = v_set(most);
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int j = 0; j < 4; j++) top[j] = v_max(v_load(x + i + j * LANES), top[j]); /* NaN leaves top as it is */
    most = v_top(v_max(v_max(top[0], top[1]), v_max(top[2], top[3])));
    for (; i < n; i++) most = x[i] > most ? x[i] : most;
    for (i = 0; i + LANES <= n; i += LANES) {
        uint32_t hit = v_equal(v_load(x + i), v_set(most));
        if (hit) return (int32_t)(i + __builtin_ctz(hit));
    }
    for (; i < n; i++)
        if (x[i] == most) return (int32_t)i;
    return 0; /* all are NaN */
}
