/* gemm.c - AVX-512F: products with f32 activations, and the preparation of activations.
 *
 * A tile is R rows by P panels with all sums in registers: 12 x 2 = 24 of 32, two hold weights, one a broadcast. Each
 * result is one chain of fused multiply-adds in the order of k. Few rows take more panels at once instead, so that
 * the chains hide the latency of the adder and more streams of weights are under way. */
#include "backend/cpu/kernel/avx512/tile.h"

#include <math.h>
#include <string.h>

SY_INLINE __m512 broadcast(const struct sy_rows *x, const int r, const int i)
{
    float v;
    memcpy(&v, (const char *)sy_rows_get(x, r) + i * (int)sizeof v, sizeof v);
    return _mm512_set1_ps(v);
}

/* n elements from one on, n <= 2, at w in every panel. Those of bf16 share a vector: it is the upper half of f32. */
SY_INLINE void step(enum sy_layout layout, const int R, const int P, const int n, const unsigned char *w,
                    size_t panel_bytes, const struct sy_rows *x, __m512 (*acc)[12])
{
    __m512 v[2][4];
    SY_UNROLL
    for (int p = 0; p < P; p++, w += panel_bytes) {
        if (layout == SY_LAYOUT_WBF16) {
            __m512i both = _mm512_loadu_si512(w);
            v[0][p] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
            v[1][p] = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000)));
        } else {
            SY_UNROLL
            for (int i = 0; i < n; i++)
                v[i][p] = layout == SY_LAYOUT_F32 ? _mm512_loadu_ps(w + i * 64) : sy_load_f16(w + i * 32);
        }
    }
    SY_UNROLL
    for (int i = 0; i < n; i++) {
        SY_UNROLL
        for (int r = 0; r < R; r++) {
            __m512 a = broadcast(x, r, i);
            SY_UNROLL
            for (int p = 0; p < P; p++) acc[p][r] = _mm512_fmadd_ps(a, v[i][p], acc[p][r]);
        }
    }
}

SY_INLINE void tile(enum sy_layout layout, const int R, const int P, const struct sy_job *j, int64_t row,
                    int64_t panel)
{
    __m512 acc[4][12];
    SY_UNROLL
    for (int p = 0; p < P; p++) {
        SY_UNROLL
        for (int r = 0; r < R; r++) acc[p][r] = _mm512_setzero_ps();
    }
    struct sy_rows x = sy_rows_at(j->x, row);
    const unsigned char *w = sy_panel_at(j, panel);
    size_t panel_bytes = j->w->panel_bytes;
    int64_t k = j->w->k;
    for (; k >= 2; k -= 2) {
        step(layout, R, P, 2, w, panel_bytes, &x, acc);
        w += layout == SY_LAYOUT_F32 ? 128 : 64;
        sy_rows_move(&x, R, 8);
    }
    if (k) step(layout, R, P, 1, w, panel_bytes, &x, acc);
    SY_UNROLL
    for (int p = 0; p < P; p++) {
        __mmask16 columns = sy_columns(j, panel + p);
        SY_UNROLL
        for (int r = 0; r < R; r++) sy_store_row(j, row + r, panel + p, columns, acc[p][r]);
    }
}

/* Rows [lo, hi) of P panels: tiles of 12 rows, the rest in smaller ones. */
#define ROWS(name, layout, P)                                                                                        \
    static void name(const struct sy_job *j, int64_t lo, int64_t hi, int64_t panel)                                  \
    {                                                                                                                \
        for (; hi - lo >= 12; lo += 12) tile(layout, 12, P, j, lo, panel);                                           \
        for (; hi - lo >= 8; lo += 8) tile(layout, 8, P, j, lo, panel);                                              \
        for (; hi - lo >= 4; lo += 4) tile(layout, 4, P, j, lo, panel);                                              \
        for (; hi - lo >= 2; lo += 2) tile(layout, 2, P, j, lo, panel);                                              \
        for (; hi - lo >= 1; lo += 1) tile(layout, 1, P, j, lo, panel);                                              \
    }
#define FEW_ROWS(name, layout, P)                                                                                    \
    static void name(const struct sy_job *j, int64_t lo, int64_t hi, int64_t panel)                                  \
    {                                                                                                                \
        for (; hi - lo >= 4; lo += 4) tile(layout, 4, P, j, lo, panel);                                              \
        for (; hi - lo >= 2; lo += 2) tile(layout, 2, P, j, lo, panel);                                              \
        for (; hi - lo >= 1; lo += 1) tile(layout, 1, P, j, lo, panel);                                              \
    }
#define MUL(name, layout)                                                                                            \
    ROWS(name##_1, layout, 1)                                                                                        \
    ROWS(name##_2, layout, 2)                                                                                        \
    FEW_ROWS(name##_4, layout, 4)                                                                                    \
    static void name(const struct sy_panels *w, const struct sy_xmat *x, int64_t row_lo, int64_t row_hi,             \
                     int64_t panel_lo, int64_t panel_hi, float *y, int64_t ldy, const struct sy_epilogue *e)         \
    {                                                                                                                \
        struct sy_job j = {w, x, y, ldy, e};                                                                         \
        int64_t p = panel_lo;                                                                                        \
        if (row_hi - row_lo <= 4)                                                                                    \
            for (; p + 4 <= panel_hi; p += 4) name##_4(&j, row_lo, row_hi, p);                                       \
        for (; p + 2 <= panel_hi; p += 2) name##_2(&j, row_lo, row_hi, p);                                           \
        for (; p < panel_hi; p++) name##_1(&j, row_lo, row_hi, p);                                                   \
    }
MUL(mul_f32, SY_LAYOUT_F32)
MUL(mul_f16, SY_LAYOUT_F16)
MUL(mul_wbf16, SY_LAYOUT_WBF16)

/* Round to nearest even as integers, as the generic kernel does: VCVTNEPS2BF16 would flush subnormals. */
static void prepare_bf16(const float *x, int64_t ldx, int64_t lo, int64_t hi, struct sy_xmat *out)
{
    const __m512i one = _mm512_set1_epi32(1), half = _mm512_set1_epi32(0x7fff), quiet = _mm512_set1_epi32(0x40);
    for (int64_t r = lo; r < hi; r++)
        for (int64_t i = 0; i < (out->k + 31) / 32 * 32; i += 16) {
            int64_t n = out->k - i;
            __mmask16 has = n >= 16 ? (__mmask16)0xffff : n > 0 ? (__mmask16)((1u << n) - 1) : 0;
            __m512 v = _mm512_maskz_loadu_ps(has, x + r * ldx + (n > 0 ? i : 0));
            __m512i bits = _mm512_castps_si512(v), up = _mm512_srli_epi32(bits, 16);
            __m512i odd = _mm512_and_si512(up, one);
            __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(half, odd)), 16);
            __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
            rounded = _mm512_mask_or_epi32(rounded, nan, up, quiet);
            _mm256_store_si256((void *)(out->data + r * out->ld + i * 2), _mm512_cvtepi32_epi16(rounded));
        }
}

/* Group g of up to 16 rows: the arithmetic of scales is done for all rows at once. */
SY_INLINE void quantise(const float *x, int64_t ldx, int64_t row, int rows, int64_t g, struct sy_xmat *out,
                        const struct sy_xplanes *to)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    uint32_t max[16] __attribute__((aligned(64))) = {0};
    float inverse[16] __attribute__((aligned(64)));
    int32_t sum[2][16] __attribute__((aligned(64)));
    x += row * ldx + g * SY_XGROUP;
    for (int r = 0; r < rows; r++) {
        __m512i a = _mm512_and_si512(_mm512_loadu_si512(x + r * ldx), magnitude);
        __m512i b = _mm512_and_si512(_mm512_loadu_si512(x + r * ldx + 16), magnitude);
        max[r] = _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
    }
    __m512 amax = _mm512_load_ps(max);
    __mmask16 finite = _mm512_cmp_ps_mask(amax, _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
    __mmask16 live = _mm512_mask_cmp_ps_mask(finite, amax, _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ);
    __m512 scale = _mm512_maskz_div_ps(live, amax, _mm512_set1_ps(127));
    scale = _mm512_mask_mov_ps(_mm512_set1_ps(NAN), finite, scale);
    _mm512_store_ps(inverse, _mm512_maskz_div_ps(live, _mm512_set1_ps(127), amax));
    for (int r = 0; r < rows; r++) {
        __mmask16 on = (live >> r & 1) ? (__mmask16)0xffff : 0;
        __m512 by = _mm512_set1_ps(inverse[r]);
        __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(on, x + r * ldx), by));
        __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(on, x + r * ldx + 16), by));
        unsigned char *q = out->data + (row + r) * out->ld + g * SY_XGROUP;
        _mm_store_si128((void *)q, _mm512_cvtepi32_epi8(a));
        _mm_store_si128((void *)(q + 16), _mm512_cvtepi32_epi8(b));
        sum[0][r] = _mm512_reduce_add_epi32(a);
        sum[1][r] = _mm512_reduce_add_epi32(b);
    }
    __mmask16 has = (__mmask16)((1u << rows) - 1);
    int64_t at = g * out->ld_group + row, half_at = 2 * g * out->ld_group + row;
    __m512i half[2] = {_mm512_load_si512(sum[0]), _mm512_load_si512(sum[1])},
            all = _mm512_add_epi32(half[0], half[1]);
    __m512i zero = _mm512_setzero_si512();
    _mm512_mask_storeu_ps(to->scale + at, has, scale);
    _mm512_mask_storeu_epi32(to->sum + at, has, _mm512_sub_epi32(zero, _mm512_slli_epi32(all, 3)));
    _mm512_mask_storeu_ps(to->mass + at, has, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(all)));
    for (int h = 0; h < 2; h++, half_at += out->ld_group) {
        _mm512_mask_storeu_epi32(to->half_sum + half_at, has, _mm512_sub_epi32(zero, _mm512_slli_epi32(half[h], 3)));
        _mm512_mask_storeu_ps(to->half_mass + half_at, has, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(half[h])));
    }
}

static void prepare_i8(const float *x, int64_t ldx, int64_t lo, int64_t hi, struct sy_xmat *out)
{
    struct sy_xplanes to = out->planes;
    for (int64_t g, r = lo; r < hi; r += 16)
        for (g = 0; g < out->k / SY_XGROUP; g++) quantise(x, ldx, r, hi - r < 16 ? (int)(hi - r) : 16, g, out, &to);
}

extern const struct sy_kernels_gemm sy_gemm_avx512;
const struct sy_kernels_gemm sy_gemm_avx512 = {
    .prepare = {[SY_X_BF16] = prepare_bf16, [SY_X_I8] = prepare_i8},
    .mul = {[SY_LAYOUT_F32] = mul_f32, [SY_LAYOUT_F16] = mul_f16, [SY_LAYOUT_WBF16] = mul_wbf16},
};
