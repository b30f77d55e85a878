/* gemm.c - the meaning of every matrix product, in portable C. A block of 32 elements of a panel is turned into plain
 * numbers once and used for a few rows; each of the 16 results of a panel is one chain of additions in the order of
 * k. Loops over 16 columns are what compilers make vectors of. */
#include "backend/cpu/layout.h"

#include <math.h>
#include <string.h>

enum { BLOCK = SY_XGROUP, ROWS = 32 };

static void prepare_f32(const float *x, int64_t ldx, int64_t lo, int64_t hi, struct sy_xmat *out)
{
    for (int64_t r = lo; r < hi; r++) memcpy(out->data + r * out->ld, x + r * ldx, (size_t)out->k * sizeof *x);
}

static void prepare_bf16(const float *x, int64_t ldx, int64_t lo, int64_t hi, struct sy_xmat *out)
{
    for (int64_t r = lo; r < hi; r++) {
        uint16_t *to = (uint16_t *)(void *)(out->data + r * out->ld);
        for (int64_t i = 0; i < out->k; i++) to[i] = sy_f32_to_bf16(x[r * ldx + i]);
        for (int64_t i = out->k; i % 32; i++) to[i] = 0;
    }
}

static void quantise_group(const float *x, int8_t *q, float *scale)
{
    uint32_t max = 0; /* the largest |x|, compared as bits: a NaN is above all numbers */
    for (int i = 0; i < SY_XGROUP; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        if (bits > max) max = bits;
    }
    float amax;
    memcpy(&amax, &max, sizeof amax);
    memset(q, 0, SY_XGROUP);
    *scale = isfinite(amax) ? 0 : NAN;
    if (!(amax >= 0x1p-100f) || !isfinite(amax)) return;
    *scale = amax / 127;
    float inverse = 127 / amax;
    for (int i = 0; i < SY_XGROUP; i++) q[i] = (int8_t)rintf(x[i] * inverse);
}

static void prepare_i8(const float *x, int64_t ldx, int64_t lo, int64_t hi, struct sy_xmat *out)
{
    struct sy_xplanes to = out->planes;
    for (int64_t r = lo; r < hi; r++)
        for (int64_t g = 0; g < out->k / SY_XGROUP; g++) {
            int8_t *q = (int8_t *)out->data + r * out->ld + g * SY_XGROUP;
            int64_t at = g * out->ld_group + r;
            quantise_group(x + r * ldx + g * SY_XGROUP, q, to.scale + at);
            int32_t half[2] = {0, 0};
            for (int i = 0; i < SY_XGROUP; i++) half[i / 16] += q[i];
            to.sum[at] = -8 * (half[0] + half[1]);
            to.mass[at] = to.scale[at] * (float)(half[0] + half[1]);
            for (int h = 0; h < 2; h++) {
                int64_t half_at = (2 * g + h) * out->ld_group + r;
                to.half_sum[half_at] = -8 * half[h];
                to.half_mass[half_at] = to.scale[at] * (float)half[h];
            }
        }
}

static void store(const struct sy_panels *w, int64_t row, int64_t panel, const float *acc, float *y, int64_t ldy,
                  const struct sy_epilogue *e)
{
    int64_t c0 = panel * SY_PANEL;
    for (int c = 0; c < SY_PANEL && c0 + c < w->n; c++) {
        float v = acc[c];
        if (e && e->bias) v += e->bias[c0 + c];
        if (e && e->add) v += e->add[row * e->ld_add + c0 + c];
        y[row * ldy + c0 + c] = v;
    }
}

/* Sixteen f16 of plane `at`, group g. */
static void load_halves(const unsigned char *panel, size_t at, int64_t g, float *to)
{
    for (int c = 0; c < SY_PANEL; c++) {
        uint16_t h;
        memcpy(&h, panel + at + (size_t)(g * SY_PANEL + c) * 2, sizeof h);
        to[c] = sy_f16_to_f32(h);
    }
}

/* a * b + c of three numbers of f16, rounded once: exact in double, and rounded to odd on the way through float. */
static float fma_f16(float a, float b, float c)
{
    double exact = (double)a * b + c;
    float f = (float)exact;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((double)f != exact && !(bits & 1)) bits += ((double)f < exact) == (f > 0) ? 1 : -1u;
    memcpy(&f, &bits, sizeof f);
    return sy_f16_to_f32(sy_f32_to_f16(f));
}

/* |h| < 2 in f16 to bf16: sign, four bits of exponent of which the first is known, seven of the fraction. */
static float bf16_of_f16(float h)
{
    int16_t bits = (int16_t)sy_f32_to_f16(h);
    return sy_bf16_to_f32((uint16_t)(((bits + 4) >> 3 & 0x87ff) | 0x3800));
}

static void load_widened(const struct sy_panels *w, const unsigned char *panel, int64_t i, float *to)
{
    float scale[SY_PANEL], min[SY_PANEL];
    load_halves(panel, w->scale_at, i / w->group, scale);
    load_halves(panel, w->min_at, i / w->group, min); /* there is none: whatever stands there, unused */
    for (int c = 0; c < SY_PANEL; c++) {
        const unsigned char *code = panel + w->code_at;
        if (w->layout == SY_LAYOUT_B8) {
            float v = (float)(int8_t)code[(i / 2 * SY_PANEL + c) * 2 + i % 2];
            to[c] = bf16_of_f16(fma_f16(scale[c], v, w->has_min ? min[c] : 0));
        } else {
            uint16_t word;
            memcpy(&word, code + i / 8 * 64 + c * 4 + i % 2 * 2, sizeof word);
            float v = 1 + (float)(word >> i % 8 / 2 * 4 & 15) / 16, m = fma_f16(scale[c], -1.5f, 0);
            to[c] = bf16_of_f16(fma_f16(scale[c], v, w->has_min ? min[c] : m));
        }
    }
}

/* The 16 weights of element i of a panel, as f32. */
static void load_weights(const struct sy_panels *w, const unsigned char *panel, int64_t i, float *to)
{
    if (w->layout == SY_LAYOUT_B8 || w->layout == SY_LAYOUT_B4) {
        load_widened(w, panel, i, to);
        return;
    }
    for (int c = 0; c < SY_PANEL; c++) {
        uint16_t h;
        switch (w->layout) {
        case SY_LAYOUT_F32: memcpy(to + c, panel + (i * SY_PANEL + c) * 4, 4); break;
        case SY_LAYOUT_F16:
            memcpy(&h, panel + (i * SY_PANEL + c) * 2, 2);
            to[c] = sy_f16_to_f32(h);
            break;
        default: memcpy(&h, panel + ((i / 2 * SY_PANEL + c) * 2 + i % 2) * 2, 2); to[c] = sy_bf16_to_f32(h);
        }
    }
}

static float load_x(const struct sy_xmat *x, int64_t row, int64_t i)
{
    const unsigned char *at = x->data + row * x->ld;
    float v;
    uint16_t h;
    if (x->kind == SY_X_F32) {
        memcpy(&v, at + i * 4, sizeof v);
        return v;
    }
    memcpy(&h, at + i * 2, sizeof h);
    return sy_bf16_to_f32(h);
}

/* Panels of codes begin with the factors of their columns. */
static void scale_columns(const unsigned char *panel, float *acc)
{
    float factor[SY_PANEL];
    memcpy(factor, panel, sizeof factor);
    for (int c = 0; c < SY_PANEL; c++) acc[c] *= factor[c];
}

/* Rows [lo, hi), at most ROWS of them, of one panel. */
static void float_rows(const struct sy_panels *w, const struct sy_xmat *x, int64_t lo, int64_t hi, int64_t p,
                       float *y, int64_t ldy, const struct sy_epilogue *e)
{
    const unsigned char *panel = w->data + (size_t)p * w->panel_bytes;
    float acc[ROWS][SY_PANEL] = {0}, v[BLOCK][SY_PANEL];
    for (int64_t i = 0; i < w->k; i += BLOCK) {
        int64_t n = w->k - i < BLOCK ? w->k - i : BLOCK;
        for (int64_t j = 0; j < n; j++) load_weights(w, panel, i + j, v[j]);
        for (int64_t r = lo; r < hi; r++)
            for (int64_t j = 0; j < n; j++) {
                float a = load_x(x, r, i + j), *sum = acc[r - lo];
                for (int c = 0; c < SY_PANEL; c++) sum[c] += a * v[j][c];
            }
    }
    for (int64_t r = lo; r < hi; r++) {
        if (w->group) scale_columns(panel, acc[r - lo]);
        store(w, r, p, acc[r - lo], y, ldy, e);
    }
}

static void mul_float(const struct sy_panels *w, const struct sy_xmat *x, int64_t row_lo, int64_t row_hi,
                      int64_t panel_lo, int64_t panel_hi, float *y, int64_t ldy, const struct sy_epilogue *e)
{
    for (int64_t p = panel_lo; p < panel_hi; p++)
        for (int64_t r = row_lo; r < row_hi; r += ROWS)
            float_rows(w, x, r, row_hi - r < ROWS ? row_hi : r + ROWS, p, y, ldy, e);
}

/* The codes of BLOCK elements from element i on. */
static void load_codes(const struct sy_panels *w, const unsigned char *panel, int64_t i, int16_t (*to)[SY_PANEL])
{
    const unsigned char *code = panel + w->code_at;
    for (int j = 0; j < BLOCK; j++)
        for (int c = 0; c < SY_PANEL; c++)
            if (w->layout == SY_LAYOUT_I8) {
                to[j][c] = code[((i + j) / 4 * SY_PANEL + c) * 4 + j % 4];
            } else {
                int v = code[i / BLOCK * 256 + (j % 16 / 4 * SY_PANEL + c) * 4 + j % 4];
                to[j][c] = (int16_t)(j < 16 ? v & 15 : v >> 4);
            }
}

static void int_rows(const struct sy_panels *w, const struct sy_xmat *x, int64_t lo, int64_t hi, int64_t p, float *y,
                     int64_t ldy, const struct sy_epilogue *e)
{
    const unsigned char *panel = w->data + (size_t)p * w->panel_bytes;
    struct sy_xplanes planes = x->planes;
    bool halves = w->group < SY_XGROUP;
    const int32_t *sums = halves ? planes.half_sum : planes.sum;
    const float *masses = halves ? planes.half_mass : planes.mass;
    float acc[ROWS][SY_PANEL] = {0}, v[SY_PANEL];
    for (int64_t g = 0; w->has_min && g < w->k / w->group; g++) {
        load_halves(panel, w->min_at, g, v);
        for (int64_t r = lo; r < hi; r++)
            for (int c = 0; c < SY_PANEL; c++) acc[r - lo][c] += v[c] * masses[g * x->ld_group + r];
    }
    for (int64_t i = 0; i < w->k; i += BLOCK) {
        int16_t code[BLOCK][SY_PANEL];
        load_codes(w, panel, i, code);
        for (int j = 0; j < BLOCK; j += w->group) {
            int64_t g = (i + j) / w->group;
            load_halves(panel, w->scale_at, g, v);
            for (int64_t r = lo; r < hi; r++) {
                const int8_t *q = (const int8_t *)x->data + r * x->ld + i;
                float scale = planes.scale[i / SY_XGROUP * x->ld_group + r];
                int32_t dot[SY_PANEL];
                for (int c = 0; c < SY_PANEL; c++) dot[c] = sums[g * x->ld_group + r] * (w->zero / 8);
                for (int l = j; l < j + w->group; l++)
                    for (int c = 0; c < SY_PANEL; c++) dot[c] += code[l][c] * q[l];
                for (int c = 0; c < SY_PANEL; c++) acc[r - lo][c] += (float)dot[c] * (v[c] * scale);
            }
        }
    }
    for (int64_t r = lo; r < hi; r++) {
        scale_columns(panel, acc[r - lo]);
        store(w, r, p, acc[r - lo], y, ldy, e);
    }
}

static void mul_int(const struct sy_panels *w, const struct sy_xmat *x, int64_t row_lo, int64_t row_hi,
                    int64_t panel_lo, int64_t panel_hi, float *y, int64_t ldy, const struct sy_epilogue *e)
{
    for (int64_t p = panel_lo; p < panel_hi; p++)
        for (int64_t r = row_lo; r < row_hi; r += ROWS)
            int_rows(w, x, r, row_hi - r < ROWS ? row_hi : r + ROWS, p, y, ldy, e);
}

extern const struct sy_kernels_gemm sy_gemm_generic;
const struct sy_kernels_gemm sy_gemm_generic = {
    .prepare = {[SY_X_F32] = prepare_f32, [SY_X_BF16] = prepare_bf16, [SY_X_I8] = prepare_i8},
    .mul =
        {
            [SY_LAYOUT_F32] = mul_float,
            [SY_LAYOUT_F16] = mul_float,
            [SY_LAYOUT_BF16] = mul_float,
            [SY_LAYOUT_WBF16] = mul_float,
            [SY_LAYOUT_I8] = mul_int,
            [SY_LAYOUT_I4] = mul_int,
            [SY_LAYOUT_B8] = mul_float,
            [SY_LAYOUT_B4] = mul_float,
        },
};
