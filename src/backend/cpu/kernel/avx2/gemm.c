/* gemm.c - AVX2, FMA, F16C. A panel is two vectors of f32.
 *
 * Float products: a tile of 6 rows by one panel, 12 sums of 16 registers. Integer products: 4 rows by half a panel,
 * since each sum is an integer and a float one. VPMADDUBSW adds two products in 16 bits with saturation, which never
 * happens here: pairs are at most 2 * 15 * 127 for I4, where even the eight pairs of a group fit, 2 * 127 * 127 for
 * I8 without a zero point, and 2 * 128 * 127 with one, when the sign of the weight is moved to the activation. */
#include "backend/cpu/kernel/x86.h"
#include "backend/cpu/layout.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

enum { HALF = 8 /* columns of a vector */, FLOAT_ROWS = 6, INT_ROWS = 4 };

struct job {
    const struct sy_panels *w;
    const struct sy_xmat *x;
    float *y;
    int64_t ldy;
    const struct sy_epilogue *e;
};

/* Lanes of columns [column, column + 8) that the matrix has. */
SY_INLINE __m256i lanes(const struct job *j, int64_t column)
{
    int64_t n = j->w->n - column;
    __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n > HALF ? HALF : (int)n), index);
}

SY_INLINE void store(const struct job *j, int64_t row, int64_t column, __m256i mask, __m256 v)
{
    if (j->e && j->e->bias) v = _mm256_add_ps(v, _mm256_maskload_ps(j->e->bias + column, mask));
    if (j->e && j->e->add) v = _mm256_add_ps(v, _mm256_maskload_ps(j->e->add + row * j->e->ld_add + column, mask));
    _mm256_maskstore_ps(j->y + row * j->ldy + column, mask, v);
}

/* ---- float ------------------------------------------------------------------------------------------------------
 */

SY_INLINE __m256 upper(__m256i v)
{
    return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000)));
}

SY_INLINE __m256 lower(__m256i v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); }

/* Elements i and, if both, i + 1 of all rows; i is even. */
SY_INLINE void float_step(enum sy_layout layout, const int R, const bool both, const unsigned char *w,
                          const unsigned char *x, int64_t ld, int64_t i, __m256 (*acc)[2])
{
    const bool pairs = layout == SY_LAYOUT_BF16 || layout == SY_LAYOUT_WBF16;
    const int n = both ? 2 : 1;
    __m256 v[2][2];
    SY_UNROLL
    for (int h = 0; h < 2; h++) {
        if (pairs) {
            __m256i p = _mm256_loadu_si256((const void *)(w + i * 32 + h * 32));
            v[0][h] = lower(p);
            v[1][h] = upper(p);
        } else {
            SY_UNROLL
            for (int e = 0; e < n; e++)
                v[e][h] = layout == SY_LAYOUT_F32
                              ? _mm256_loadu_ps((const float *)(const void *)(w + (i + e) * 64 + h * 32))
                              : _mm256_cvtph_ps(_mm_loadu_si128((const void *)(w + (i + e) * 32 + h * 16)));
        }
    }
    SY_UNROLL
    for (int r = 0; r < R; r++) {
        SY_UNROLL
        for (int e = 0; e < n; e++) {
            __m256 a;
            if (layout == SY_LAYOUT_BF16) {
                int32_t pair;
                memcpy(&pair, x + r * ld + i * 2, sizeof pair);
                a = e ? upper(_mm256_set1_epi32(pair)) : lower(_mm256_set1_epi32(pair));
            } else {
                a = _mm256_broadcast_ss((const float *)(const void *)(x + r * ld + (i + e) * 4));
            }
            acc[r][0] = _mm256_fmadd_ps(a, v[e][0], acc[r][0]);
            acc[r][1] = _mm256_fmadd_ps(a, v[e][1], acc[r][1]);
        }
    }
}

SY_INLINE void float_tile(enum sy_layout layout, const int R, const struct job *j, int64_t row, int64_t panel)
{
    __m256 acc[FLOAT_ROWS][2];
    SY_UNROLL
    for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    const unsigned char *w = j->w->data + (size_t)panel * j->w->panel_bytes, *x = j->x->data + row * j->x->ld;
    int64_t i = 0, k = j->w->k, ld = j->x->ld;
    for (; i + 1 < k; i += 2) float_step(layout, R, true, w, x, ld, i, acc);
    if (i < k) float_step(layout, R, false, w, x, ld, i, acc);
    for (int h = 0; h < 2; h++) {
        int64_t column = panel * SY_PANEL + h * HALF;
        if (column >= j->w->n) break;
        __m256i mask = lanes(j, column);
        SY_UNROLL
        for (int r = 0; r < R; r++) store(j, row + r, column, mask, acc[r][h]);
    }
}

#define FLOAT_TILES(layout, R)                                                                                       \
    for (; row_hi - r >= R; r += R) float_tile(layout, R, &j, r, p)
#define MUL_FLOAT(name, layout)                                                                                      \
    static void name(const struct sy_panels *w, const struct sy_xmat *x, int64_t row_lo, int64_t row_hi,             \
                     int64_t panel_lo, int64_t panel_hi, float *y, int64_t ldy, const struct sy_epilogue *e)         \
    {                                                                                                                \
        struct job j = {w, x, y, ldy, e};                                                                            \
        for (int64_t p = panel_lo; p < panel_hi; p++) {                                                              \
            int64_t r = row_lo;                                                                                      \
            FLOAT_TILES(layout, 6);                                                                                  \
            FLOAT_TILES(layout, 4);                                                                                  \
            FLOAT_TILES(layout, 2);                                                                                  \
            FLOAT_TILES(layout, 1);                                                                                  \
        }                                                                                                            \
    }
MUL_FLOAT(mul_f32, SY_LAYOUT_F32)
MUL_FLOAT(mul_f16, SY_LAYOUT_F16)
MUL_FLOAT(mul_bf16, SY_LAYOUT_BF16)
MUL_FLOAT(mul_wbf16, SY_LAYOUT_WBF16)

/* ---- integer ----------------------------------------------------------------------------------------------------
 */

SY_INLINE __m256i quad(const int8_t *x, int64_t ld, const int r, const int i)
{
    int32_t v;
    memcpy(&v, x + r * ld + i * 4, sizeof v);
    return _mm256_set1_epi32(v);
}

SY_INLINE __m256 scales(const void *p) { return _mm256_cvtph_ps(_mm_load_si128(p)); }

SY_INLINE void scale(const int R, const void *w_scale, const float *x_scale, const __m256i *dot, __m256 *f)
{
    __m256 s = scales(w_scale);
    SY_UNROLL
    for (int r = 0; r < R; r++)
        f[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r]), _mm256_mul_ps(s, _mm256_set1_ps(x_scale[r])), f[r]);
}

/* A group of 16 or 32, from quad `from` of its block on: eight columns. */
SY_INLINE void group_i4(const int R, const int n, const bool high, const unsigned char *code, const int8_t *x,
                        int64_t ld, __m256i *pairs)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    SY_UNROLL
    for (int q = 0; q < n; q++) {
        __m256i v = _mm256_load_si256((const void *)(code + q * 64));
        v = _mm256_and_si256(high ? _mm256_srli_epi16(v, 4) : v, nibble);
        SY_UNROLL
        for (int r = 0; r < R; r++)
            pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(v, quad(x, ld, r, q + (high ? 4 : 0))));
    }
}

SY_INLINE void block_i4(const int group, const int R, bool zero, const unsigned char *code,
                        const unsigned char *w_scale, const int8_t *x, int64_t ld, const int32_t *sum,
                        const float *x_scale, int64_t ld_group, __m256 *f)
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256i pairs[INT_ROWS], dot[INT_ROWS];
    SY_UNROLL
    for (int part = 0; part < 32 / group; part++) {
        SY_UNROLL
        for (int r = 0; r < R; r++) pairs[r] = _mm256_setzero_si256();
        if (part == 0) group_i4(R, 4, false, code, x, ld, pairs);
        if (part == 1 || group == 32) group_i4(R, 4, true, code, x, ld, pairs);
        SY_UNROLL
        for (int r = 0; r < R; r++) {
            dot[r] = _mm256_madd_epi16(pairs[r], one);
            if (zero) dot[r] = _mm256_add_epi32(dot[r], _mm256_set1_epi32(sum[part * ld_group + r]));
        }
        scale(R, w_scale + part * 32, x_scale, dot, f);
    }
}

SY_INLINE void block_i8(const int group, const int R, bool zero, const unsigned char *code,
                        const unsigned char *w_scale, const int8_t *x, int64_t ld, const float *x_scale, __m256 *f)
{
    const __m256i one = _mm256_set1_epi16(1), flip = _mm256_set1_epi8((char)0x80);
    const int quads = group / 4;
    __m256i dot[INT_ROWS];
    SY_UNROLL
    for (int part = 0; part < 32 / group; part++) {
        SY_UNROLL
        for (int r = 0; r < R; r++) dot[r] = _mm256_setzero_si256();
        SY_UNROLL
        for (int q = part * quads; q < (part + 1) * quads; q++) {
            __m256i v = _mm256_load_si256((const void *)(code + q * 64)), size = v;
            if (zero) {
                v = _mm256_xor_si256(v, flip); /* signed */
                size = _mm256_abs_epi8(v);
            }
            SY_UNROLL
            for (int r = 0; r < R; r++) {
                __m256i a = quad(x, ld, r, q);
                if (zero) a = _mm256_sign_epi8(a, v);
                dot[r] = _mm256_add_epi32(dot[r], _mm256_madd_epi16(_mm256_maddubs_epi16(size, a), one));
            }
        }
        scale(R, w_scale + part * 32, x_scale, dot, f);
    }
}

/* Columns [8h, 8h + 8) of a panel. */
SY_INLINE void int_tile(enum sy_layout layout, const int group, const int R, bool zero, const struct job *j,
                        int64_t row, int64_t panel, int h)
{
    const struct sy_panels *w = j->w;
    int64_t column = panel * SY_PANEL + h * HALF, ld = j->x->ld, ld_group = j->x->ld_group;
    if (column >= w->n) return;
    const unsigned char *at = w->data + (size_t)panel * w->panel_bytes;
    struct sy_xplanes planes = j->x->planes;
    __m256 f[INT_ROWS];
    SY_UNROLL
    for (int r = 0; r < R; r++) f[r] = _mm256_setzero_ps();
    if (w->has_min) {
        const float *mass = (group == 16 ? planes.half_mass : planes.mass) + row;
        for (int64_t g = 0; g < w->k / group; g++, mass += ld_group) {
            __m256 min = scales(at + w->min_at + g * 32 + h * 16);
            SY_UNROLL
            for (int r = 0; r < R; r++) f[r] = _mm256_fmadd_ps(min, _mm256_set1_ps(mass[r]), f[r]);
        }
    }
    const unsigned char *code = at + w->code_at + h * 32, *w_scale = at + w->scale_at + h * 16;
    const int8_t *x = (const int8_t *)j->x->data + row * ld;
    const int32_t *sum = (group == 16 ? planes.half_sum : planes.sum) + row;
    const float *x_scale = planes.scale + row;
    for (int64_t k = 0; k < w->k; k += 32) {
        if (layout == SY_LAYOUT_I4) block_i4(group, R, zero, code, w_scale, x, ld, sum, x_scale, ld_group, f);
        else block_i8(group, R, zero, code, w_scale, x, ld, x_scale, f);
        code += layout == SY_LAYOUT_I4 ? 256 : 512;
        w_scale += 32 * (32 / group);
        x += 32;
        sum += ld_group * (32 / group);
        x_scale += ld_group;
    }
    __m256 factor = _mm256_load_ps((const float *)(const void *)at + h * HALF);
    __m256i mask = lanes(j, column);
    SY_UNROLL
    for (int r = 0; r < R; r++) store(j, row + r, column, mask, _mm256_mul_ps(f[r], factor));
}

#define INT_TILES(layout, group, R)                                                                                  \
    for (; hi - r >= R; r += R)                                                                                      \
        for (int h = 0; h < 2; h++) int_tile(layout, group, R, zero, j, r, panel, h)
#define INT_ROWS_OF(name, layout, group, zero_)                                                                      \
    static void name(const struct job *j, int64_t r, int64_t hi, int64_t panel)                                      \
    {                                                                                                                \
        const bool zero = zero_;                                                                                     \
        INT_TILES(layout, group, 4);                                                                                 \
        INT_TILES(layout, group, 2);                                                                                 \
        INT_TILES(layout, group, 1);                                                                                 \
    }
INT_ROWS_OF(i8_plain, SY_LAYOUT_I8, 32, false)
INT_ROWS_OF(i8_zero, SY_LAYOUT_I8, 32, true)
INT_ROWS_OF(i8_plain_halves, SY_LAYOUT_I8, 16, false)
INT_ROWS_OF(i8_zero_halves, SY_LAYOUT_I8, 16, true)
INT_ROWS_OF(i4_plain, SY_LAYOUT_I4, 32, false)
INT_ROWS_OF(i4_zero, SY_LAYOUT_I4, 32, true)
INT_ROWS_OF(i4_plain_halves, SY_LAYOUT_I4, 16, false)
INT_ROWS_OF(i4_zero_halves, SY_LAYOUT_I4, 16, true)

static void mul_int(const struct sy_panels *w, const struct sy_xmat *x, int64_t row_lo, int64_t row_hi,
                    int64_t panel_lo, int64_t panel_hi, float *y, int64_t ldy, const struct sy_epilogue *e)
{
    typedef void rows_fn(const struct job *, int64_t, int64_t, int64_t);
    static rows_fn *const rows[2][2][2] = {{{i8_plain, i8_zero}, {i8_plain_halves, i8_zero_halves}},
                                           {{i4_plain, i4_zero}, {i4_plain_halves, i4_zero_halves}}};
    struct job j = {w, x, y, ldy, e};
    rows_fn *run = rows[w->layout == SY_LAYOUT_I4][w->group == 16][w->zero != 0];
    for (int64_t p = panel_lo; p < panel_hi; p++) run(&j, row_lo, row_hi, p);
}

/* ---- activations ------------------------------------------------------------------------------------------------
 */

/* Eight numbers to bf16, rounded to nearest even as integers. */
SY_INLINE __m256i bf16_of(__m256 v)
{
    __m256i bits = _mm256_castps_si256(v), up = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(up, _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), _mm256_or_si256(up, _mm256_set1_epi32(0x40)), nan);
}

static void prepare_bf16(const float *x, int64_t ldx, int64_t lo, int64_t hi, struct sy_xmat *out)
{
    for (int64_t r = lo; r < hi; r++) {
        const float *from = x + r * ldx;
        uint16_t *to = (uint16_t *)(void *)(out->data + r * out->ld);
        int64_t i = 0;
        for (; i + 16 <= out->k; i += 16) {
            __m256i v =
                _mm256_packus_epi32(bf16_of(_mm256_loadu_ps(from + i)), bf16_of(_mm256_loadu_ps(from + i + 8)));
            _mm256_store_si256((void *)(to + i), _mm256_permute4x64_epi64(v, 0xd8));
        }
        for (; i < out->k; i++) to[i] = sy_f32_to_bf16(from[i]);
        for (; i % 32; i++) to[i] = 0;
    }
}

SY_INLINE int32_t total(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

/* The largest magnitude as bits: a NaN is above all numbers. */
SY_INLINE float magnitude(const float *x)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i max = _mm256_setzero_si256();
    for (int i = 0; i < SY_XGROUP; i += 8)
        max = _mm256_max_epu32(max, _mm256_and_si256(_mm256_loadu_si256((const void *)(x + i)), mask));
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(m));
}

SY_INLINE void quantise(const float *x, int64_t row, int64_t g, struct sy_xmat *out, const struct sy_xplanes *to)
{
    float max = magnitude(x);
    bool finite = max < INFINITY, live = finite && max >= 0x1p-100f;
    float s = live ? max / 127 : finite ? 0 : NAN;
    __m256 by = _mm256_set1_ps(live ? 127 / max : 0);
    __m256i q[4];
    for (int i = 0; i < 4; i++)
        q[i] = live ? _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i * 8), by)) : _mm256_setzero_si256();
    int32_t half[2] = {total(_mm256_add_epi32(q[0], q[1])), total(_mm256_add_epi32(q[2], q[3]))};
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_store_si256((void *)(out->data + row * out->ld + g * SY_XGROUP), bytes);

    int64_t at = g * out->ld_group + row, half_at = 2 * g * out->ld_group + row;
    to->scale[at] = s;
    to->sum[at] = -8 * (half[0] + half[1]);
    to->mass[at] = s * (float)(half[0] + half[1]);
    for (int h = 0; h < 2; h++, half_at += out->ld_group) {
        to->half_sum[half_at] = -8 * half[h];
        to->half_mass[half_at] = s * (float)half[h];
    }
}

static void prepare_i8(const float *x, int64_t ldx, int64_t lo, int64_t hi, struct sy_xmat *out)
{
    struct sy_xplanes to = out->planes;
    for (int64_t r = lo; r < hi; r++)
        for (int64_t g = 0; g < out->k / SY_XGROUP; g++) quantise(x + r * ldx + g * SY_XGROUP, r, g, out, &to);
}

extern const struct sy_kernels_gemm sy_gemm_avx2;
const struct sy_kernels_gemm sy_gemm_avx2 = {
    .prepare = {[SY_X_BF16] = prepare_bf16, [SY_X_I8] = prepare_i8},
    .mul =
        {
            [SY_LAYOUT_F32] = mul_f32,
            [SY_LAYOUT_F16] = mul_f16,
            [SY_LAYOUT_BF16] = mul_bf16,
            [SY_LAYOUT_WBF16] = mul_wbf16,
            [SY_LAYOUT_I8] = mul_int,
            [SY_LAYOUT_I4] = mul_int,
        },
};
