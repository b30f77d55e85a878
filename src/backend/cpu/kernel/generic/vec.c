/* vec.c - rows of vectors in portable C: the meaning of struct sy_kernels_vec. */
#include "backend/cpu/kernel.h"

#include <math.h>
#include <string.h>

enum { LANES = 16 };

/* Sixteen running sums keep the error of a long row near that of its sixteenth part. */
static float sum_squares(const float *x, int64_t d)
{
    float lane[LANES] = {0};
    for (int64_t i = 0; i < d; i++) lane[i % LANES] += x[i] * x[i];
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) lane[i] += lane[i + n];
    return lane[0];
}

static void norm(const float *x, int64_t ldx, const float *w, float eps, int64_t rows, int64_t group, int64_t d,
                 float *y, int64_t ldy)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t g = 0; g < group; g++) {
            const float *from = x + r * ldx + g * d;
            float *to = y + r * ldy + g * d, c = 1 / sqrtf(sum_squares(from, d) / (float)d + eps);
            for (int64_t i = 0; i < d; i++) to[i] = w ? from[i] * c * w[i] : from[i] * c;
        }
    }
}

/* The product is rounded to f32 before cos and sin, as the models were trained: an angle of 1e5 radians is off by
 * 4e-3 then, and exact angles would be the deviation. */
static void rope_table(const float *inv_freq, int64_t n, float mscale, const int32_t *pos, int64_t rows, float *cs)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < n; i++) {
            float angle = (float)pos[r] * inv_freq[i];
            cs[(r * n + i) * 2] = cosf(angle) * mscale;
            cs[(r * n + i) * 2 + 1] = sinf(angle) * mscale;
        }
    }
}

static void rope(const float *x, int64_t ldx, int64_t rows, int64_t n_head, const struct sy_rope_dim *dim,
                 const float *cs, float *y, int64_t ldy)
{
    int64_t half = dim->d_rot / 2, step = dim->interleaved ? 2 : 1, other = dim->interleaved ? 1 : half;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t h = 0; h < n_head; h++) {
            const float *from = x + r * ldx + h * dim->d_head;
            float *to = y + r * ldy + h * dim->d_head;
            memmove(to, from, (size_t)dim->first * sizeof *to);
            from += dim->first;
            to += dim->first;
            for (int64_t i = 0; i < half; i++) {
                float c = cs[(r * half + i) * 2], s = cs[(r * half + i) * 2 + 1];
                float a = from[i * step], b = from[i * step + other];
                to[i * step] = a * c - b * s;
                to[i * step + other] = b * c + a * s;
            }
            memmove(to + 2 * half, from + 2 * half, (size_t)(dim->d_head - dim->first - 2 * half) * sizeof *to);
        }
    }
}

/* Limits are taken, not computed: -inf * 0 would be NaN where the functions tend to 0. */
static float apply(enum sy_fn fn, float x)
{
    float v = x < -200 ? -200 : x;
    switch (fn) {
    case SY_SILU: return v / (1 + expf(-v));
    case SY_GELU: return v * 0.5f * erfcf(v * -0.70710678118654752f);
    case SY_GELU_TANH: /* v/2 (1 + tanh(u)) = v / (1 + exp(-2u)) */
        return v / (1 + expf(v * (-1.5957691216057308f - 0.071354816272600f * v * v)));
    case SY_SIGMOID: return 1 / (1 + expf(-x));
    case SY_GELU_QUICK: return v / (1 + expf(v * -1.702f));
    case SY_RELU2: return x > 0 || x != x ? x * x : 0;
    case SY_TANH: return tanhf(x);
    case SY_SOFTPLUS: return x > 20 ? x : log1pf(expf(x));
    }
    return x;
}

static void act(enum sy_fn fn, const float *x, int64_t ldx, int64_t rows, int64_t d, float *y, int64_t ldy)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < d; i++) y[r * ldy + i] = apply(fn, x[r * ldx + i]);
}

static void glu(enum sy_fn fn, const float *gate, int64_t ldg, const float *up, int64_t ldu, int64_t rows, int64_t d,
                float *y, int64_t ldy)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < d; i++) y[r * ldy + i] = apply(fn, gate[r * ldg + i]) * up[r * ldu + i];
}

static void add(const float *a, int64_t lda, const float *b, int64_t ldb, int64_t rows, int64_t d, float *y,
                int64_t ldy)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < d; i++) y[r * ldy + i] = a[r * lda + i] + b[r * ldb + i];
}

static void mul(const float *a, int64_t lda, const float *b, int64_t ldb, int64_t rows, int64_t d, float *y,
                int64_t ldy)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < d; i++) y[r * ldy + i] = a[r * lda + i] * b[r * ldb + i];
}

static void scale(const float *x, int64_t ldx, float c, int64_t rows, int64_t d, float *y, int64_t ldy)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < d; i++) y[r * ldy + i] = x[r * ldx + i] * c;
}

static void softcap(const float *x, int64_t ldx, float c, int64_t rows, int64_t d, float *y, int64_t ldy)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < d; i++) y[r * ldy + i] = c * tanhf(x[r * ldx + i] / c);
}

static int32_t argmax(const float *x, int64_t n)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (best < 0 ? x[i] == x[i] : x[i] > x[best]) best = i;
    return best < 0 ? 0 : (int32_t)best;
}

const struct sy_kernels_vec sy_vec_generic = {
    .norm = norm,
    .rope_table = rope_table,
    .rope = rope,
    .act = act,
    .glu = glu,
    .add = add,
    .mul = mul,
    .scale = scale,
    .softcap = softcap,
    .argmax = argmax,
};
