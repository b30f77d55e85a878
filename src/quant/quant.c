#include "quant/quant_int.h"

#include <strings.h>

const struct sy_quant *sy_quant_by_gguf(int type)
{
    for (const struct sy_quant *const *q = sy_quants; *q; q++)
        if (type >= 0 && (*q)->gguf_type == type) return *q;
    return type == sy_quant_ids32.gguf_type ? &sy_quant_ids32 : NULL;
}

const struct sy_quant *sy_quant_by_st(const char *dtype)
{
    for (const struct sy_quant *const *q = sy_quants; *q; q++)
        if ((*q)->st_dtype && strcmp((*q)->st_dtype, dtype) == 0) return *q;
    return strcmp(dtype, sy_quant_ids.st_dtype) ? NULL : &sy_quant_ids;
}

/* Whole numbers of that type as floats, and back; 0 for what does not fit. */
#define IDS(bits)                                                                                                    \
    static void ids##bits(const void *src, float *dst, int64_t n)                                                    \
    {                                                                                                                \
        for (int64_t i = 0; i < n; i++) {                                                                            \
            int##bits##_t x;                                                                                         \
            memcpy(&x, (const char *)src + bits / 8 * i, sizeof x);                                                  \
            dst[i] = (float)x;                                                                                       \
        }                                                                                                            \
    }                                                                                                                \
    static void put_ids##bits(const float *src, void *dst, int64_t n)                                                \
    {                                                                                                                \
        for (int64_t i = 0; i < n; i++) {                                                                            \
            bool fits = src[i] > -0x1p##bits##f / 4 && src[i] < 0x1p##bits##f / 4;                                   \
            int##bits##_t x = fits ? (int##bits##_t)src[i] : 0;                                                      \
            memcpy((char *)dst + bits / 8 * i, &x, sizeof x);                                                        \
        }                                                                                                            \
    }
IDS(32)
IDS(64)

const struct sy_quant sy_quant_ids = {.name = "i64",
                                      .gguf_type = -1,
                                      .st_dtype = "I64",
                                      .block_len = 1,
                                      .block_bytes = 8,
                                      .whole = true,
                                      .dequant = ids64,
                                      .quantise = put_ids64};
const struct sy_quant sy_quant_ids32 = {.name = "i32",
                                        .gguf_type = 26,
                                        .block_len = 1,
                                        .block_bytes = 4,
                                        .whole = true,
                                        .dequant = ids32,
                                        .quantise = put_ids32};

const struct sy_quant *sy_quant_by_name(const char *name)
{
    for (const struct sy_quant *const *q = sy_quants; *q; q++)
        if (strcasecmp((*q)->name, name) == 0) return *q;
    return NULL;
}

float sy_f16_to_f32(uint16_t h) { return sy_f16_widen(h); }

uint16_t sy_f32_to_f16(float f) { return sy_f16_narrow(f); }

float sy_bf16_to_f32(uint16_t b) { return sy_bf16_widen(b); }

uint16_t sy_f32_to_bf16(float f) { return sy_bf16_narrow(f); }

void sy_f16_row(const float *from, uint16_t *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = sy_f16_narrow(from[i]);
}

void sy_bf16_row(const float *from, uint16_t *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = sy_bf16_narrow(from[i]);
}

/* 256 elements at a time: one block of the largest format, and whole blocks of every other. */
enum { CHUNK = 256, GROUP_MIN = 16 };

void sy_affine_dequant(const struct sy_quant *q, const void *src, float *dst, int64_t n)
{
    const struct sy_affine *a = &q->affine;
    uint8_t code[CHUNK];
    float scale[CHUNK / GROUP_MIN], min[CHUNK / GROUP_MIN];
    const unsigned char *from = src;
    while (n > 0) {
        int64_t part = n < CHUNK ? n : CHUNK;
        q->unpack(from, code, scale, a->has_min ? min : NULL, part);
        for (int64_t i = 0; i < part; i += a->group) {
            float s = scale[i / a->group], m = a->has_min ? min[i / a->group] : 0;
            for (int64_t k = i; k < i + a->group; k++) dst[k] = s * (float)(code[k] - a->zero);
            /* Not added when there is none: 0 would turn a negative zero into a positive one. */
            if (a->has_min)
                for (int64_t k = i; k < i + a->group; k++) dst[k] += m;
        }
        from += sy_quant_row_bytes(q, part);
        dst += part;
        n -= part;
    }
}

/* ---- the search for scales ----------------------------------------------------------------------------------- */

/* Extremes are mapped from TRY_UNDER below the end of the code range to TRY_OVER above it (where they are
 * clipped), in steps of a quarter code. */
static const float try_under = 1.0f, try_over = 0.5f, try_step = 0.25f;
enum { REFINE_MAX = 4, GROUP_MAX = 32 };

void sy_fit_load(const float *src, float *x, int n)
{
    for (int i = 0; i < n; i++) {
        float v = src[i] == src[i] ? src[i] : 0;
        x[i] = v > 0x1p40f ? 0x1p40f : v < -0x1p40f ? -0x1p40f : v;
    }
}

float sy_fit_half(float v, void *stored)
{
    uint16_t h = sy_f16_narrow(v > 65504 ? 65504 : v < -65504 ? -65504 : v);
    memcpy(stored, &h, sizeof h);
    return sy_f16_widen(h);
}

float sy_fit_half_scale(float v, void *stored)
{
    float least = v > 0 ? 0x1p-24f : -0x1p-24f;
    return sy_fit_half(v != 0 && v < 0x1p-24f && v > -0x1p-24f ? least : v, stored);
}

/* The integer nearest to v in [lo, hi] (|lo|, |hi| < 2^22), ties to even: the adder rounds, because the last
 * place of 1.5 * 2^23 is 1. */
static inline float nearest(float v, float lo, float hi)
{
    v = v < lo ? lo : v;
    v = v > hi ? hi : v;
    return (v + 0x1.8p23f) - 0x1.8p23f;
}

struct sums {
    double q, qq, x, xq; /* of code, code^2, value, value * code */
};

static struct sums sum_up(const float *x, int n, float inv, float m, int lo, int hi)
{
    /* Loops of one kind of operation with four running sums each: compilers make vector code of them. Sums of
     * codes and their squares are integers below 2^24, exact in float. n is a multiple of 4, at most
     * GROUP_MAX. */
    double sx[4] = {0}, sxq[4] = {0};
    float sq[4] = {0}, sqq[4] = {0}, low = (float)lo, high = (float)hi, q[GROUP_MAX];
    for (int i = 0; i < n; i++) q[i] = nearest((x[i] - m) * inv, low, high);
    for (int i = 0; i < n; i += 4)
        for (int l = 0; l < 4; l++) sq[l] += q[i + l];
    for (int i = 0; i < n; i += 4)
        for (int l = 0; l < 4; l++) sqq[l] += q[i + l] * q[i + l];
    for (int i = 0; i < n; i += 4)
        for (int l = 0; l < 4; l++) sx[l] += (double)x[i + l];
    for (int i = 0; i < n; i += 4)
        for (int l = 0; l < 4; l++) sxq[l] += (double)x[i + l] * (double)q[i + l];
    return (struct sums){(double)(sq[0] + sq[1] + sq[2] + sq[3]), (double)(sqq[0] + sqq[1] + sqq[2] + sqq[3]),
                         sx[0] + sx[1] + (sx[2] + sx[3]), sxq[0] + sxq[1] + (sxq[2] + sxq[3])};
}

/* What the best d for the codes of inverse scale `inv` takes off the squared error: (sum x q)^2 / sum q^2. */
static double scale_gain(const float *x, int n, float inv, int lo, int hi, float *d)
{
    struct sums s = sum_up(x, n, inv, 0, lo, hi);
    *d = s.qq > 0 ? (float)(s.xq / s.qq) : 0;
    return s.qq > 0 ? s.xq * s.xq / s.qq : 0;
}

float sy_fit_scale(const float *x, int n, int lo, int hi)
{
    float extreme = 0, best_d = 0;
    for (int i = 0; i < n; i++)
        if (x[i] > extreme || -x[i] > extreme) extreme = x[i] < 0 ? -x[i] : x[i];
    /* Far below half of the smallest binary16: every scale that can be stored is worse than 0. */
    if (extreme < 0x1p-60f) return 0;
    double best = 0, gain;
    for (int sign = -1; sign <= 1; sign += 2)
        for (float t = (float)hi - try_under; t <= (float)-lo + try_over; t += try_step) {
            float d;
            if ((gain = scale_gain(x, n, (float)sign * t / extreme, lo, hi, &d)) <= best) continue;
            best = gain;
            best_d = d;
        }
    for (int k = 0; k < REFINE_MAX && best > 0; k++) {
        float d;
        if ((gain = scale_gain(x, n, 1 / best_d, lo, hi, &d)) <= best) break;
        best = gain;
        best_d = d;
    }
    return best_d;
}

/* The best line for the codes of inverse scale `inv` and minimum `at`. Normal equations: d qq + m q = xq,
 * d q + m n = x. Returns what it takes off the squared error: d xq + m x at the solution, the full expression
 * when m is held at its bound. Negative: no line with d >= 0. */
static double line_gain(const float *x, int n, float inv, float at, int hi, float m_max, float *d, float *m)
{
    struct sums s = sum_up(x, n, inv, at, 0, hi);
    double det = s.qq * n - s.q * s.q, slope = 0, level = s.x / n;
    if (det > 0) {
        slope = (s.xq * n - s.x * s.q) / det;
        level = (s.qq * s.x - s.q * s.xq) / det;
    }
    if (level > (double)m_max) {
        level = (double)m_max;
        slope = s.qq > 0 ? (s.xq - level * s.q) / s.qq : 0;
    }
    *d = (float)slope;
    *m = (float)level;
    if (slope < 0) return -1;
    return slope * (2 * s.xq - slope * s.qq - 2 * level * s.q) + level * (2 * s.x - level * n);
}

void sy_fit_line(const float *x, int n, int hi, float m_max, float *d, float *m)
{
    float low = x[0], high = x[0];
    for (int i = 1; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    low = low > m_max ? m_max : low;
    *d = 0;
    *m = low;
    if (high - low < 0x1p-60f) return;
    double best = -1, gain;
    float d_new, m_new;
    for (float t = (float)hi - try_under; t <= (float)hi + 2 * try_over; t += try_step) {
        if ((gain = line_gain(x, n, t / (high - low), low, hi, m_max, &d_new, &m_new)) <= best) continue;
        best = gain;
        *d = d_new;
        *m = m_new;
    }
    for (int k = 0; k<REFINE_MAX && * d> 0x1p-60f; k++) {
        if ((gain = line_gain(x, n, 1 / *d, *m, hi, m_max, &d_new, &m_new)) <= best) break;
        best = gain;
        *d = d_new;
        *m = m_new;
    }
}

double sy_fit_codes(const float *x, int n, float d, float m, int lo, int hi, uint8_t *code)
{
    double error = 0;
    float inv = d != 0 ? 1 / d : 0;
    for (int i = 0; i < n; i++) {
        float q = nearest((x[i] - m) * inv, (float)lo, (float)hi);
        double off = (double)x[i] - (double)d * (double)q - (double)m;
        code[i] = (uint8_t)((int)q - lo);
        error += off * off;
    }
    return error;
}
