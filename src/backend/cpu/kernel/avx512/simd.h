/* simd.h - AVX-512 (F, BW, DQ, VL) under the names that vec_simd.h and attend_simd.h are written in. Arithmetic is
 * that of the compilers' vector types: a + b, a * b. */
#pragma once
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define VF __m512
/* 24 sums, 4 vectors of B and one of A of the 32 registers */
enum { LANES = 16, REG_ROWS = 6, REG_COLS = 4 };
enum { FEW_ROWS = 24 }; /* widening the cache anew for each REG_ROWS of them costs less than a scratch tile */
#define INLINE static inline __attribute__((always_inline))

INLINE __mmask16 v_first(int n) { return (__mmask16)((1u << n) - 1); }
INLINE VF v_set(float x) { return _mm512_set1_ps(x); }
INLINE VF v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE VF v_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(v_first(n), p); } /* others are 0 */
INLINE void v_store(float *p, VF x) { _mm512_storeu_ps(p, x); }
INLINE void v_store_n(float *p, VF x, int n) { _mm512_mask_storeu_ps(p, v_first(n), x); }
INLINE VF v_fma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }   /* a * b + c */
INLINE VF v_fnma(VF a, VF b, VF c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a * b */
INLINE VF v_max(VF a, VF b) { return _mm512_max_ps(a, b); }              /* b where either is NaN */
INLINE VF v_min(VF a, VF b) { return _mm512_min_ps(a, b); }              /* b where either is NaN */
INLINE VF v_sqrt(VF a) { return _mm512_sqrt_ps(a); }
INLINE VF v_abs(VF a) { return _mm512_abs_ps(a); }
INLINE VF v_sign(VF size, VF sign) /* |size| with the sign of `sign` */
{
    __m512i s = _mm512_castps_si512(sign), top = _mm512_set1_epi32(INT32_MIN);
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(top, s, _mm512_castps_si512(size), 0xca));
}
/* a < b ? x : y, y where a or b is NaN */
INLINE VF v_less(VF a, VF b, VF x, VF y) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x); }
/* Bit i: lane i of a equals that of b. */
INLINE uint32_t v_equal(VF a, VF b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
/* Some lane of a is above that of b. */
INLINE bool v_above(VF a, VF b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
/* Lanes [lo, hi) of x, -inf in the others; lo and hi may lie outside. */
INLINE VF v_span(VF x, int lo, int hi)
{
    lo = lo < 0 ? 0 : lo < LANES ? lo : LANES;
    hi = hi < 0 ? 0 : hi < LANES ? hi : LANES;
    return _mm512_mask_mov_ps(v_set(-__builtin_inff()), (__mmask16)(v_first(hi) & ~v_first(lo)), x);
}
INLINE float v_sum(VF x) /* halves, quarters, eighths, pairs */
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
INLINE float v_top(VF x)
{
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
/* x * 2^n for an integral n */
INLINE VF v_scale2(VF x, VF n) { return _mm512_scalef_ps(x, n); }

/* Interleaved pairs: lane i of *even is p[2i]. */
INLINE void v_load_pairs(const float *p, VF *even, VF *odd)
{
    const __m512i at = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    VF a = v_load(p), b = v_load(p + LANES);
    *even = _mm512_permutex2var_ps(a, at, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(at, _mm512_set1_epi32(1)), b);
}
INLINE void v_store_pairs(float *p, VF even, VF odd)
{
    const __m512i at = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    v_store(p, _mm512_permutex2var_ps(even, at, odd));
    v_store(p + LANES, _mm512_permutex2var_ps(even, _mm512_add_epi32(at, _mm512_set1_epi32(8)), odd));
}

/* bfloat16 and binary16 in memory. Narrowing rounds to nearest even; NaN stays NaN. */
INLINE VF v_of_bf16(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
INLINE VF v_load_bf16(const void *p) { return v_of_bf16(_mm256_loadu_si256(p)); }
INLINE VF v_load_bf16_n(const void *p, int n) { return v_of_bf16(_mm256_maskz_loadu_epi16(v_first(n), p)); }
INLINE VF v_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
INLINE VF v_load_f16_n(const void *p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v_first(n), p)); }
INLINE VF v_set_f16(const void *p)
{
    int16_t h;
    memcpy(&h, p, sizeof h);
    return _mm512_cvtph_ps(_mm256_set1_epi16(h));
}
INLINE void v_store_bf16_n(void *p, VF x, int n)
{
    __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    up = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_mask_storeu_epi16(p, v_first(n), _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16)));
}
INLINE void v_store_f16_n(void *p, VF x, int n)
{
    _mm256_mask_storeu_epi16(p, v_first(n), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Signed bytes in memory. Storing rounds to nearest even; |x| <= 127. */
INLINE VF v_of_i8(__m128i b) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b)); }
INLINE VF v_load_i8(const void *p) { return v_of_i8(_mm_loadu_si128(p)); }
INLINE VF v_load_i8_n(const void *p, int n) { return v_of_i8(_mm_maskz_loadu_epi8(v_first(n), p)); }
INLINE void v_store_i8_n(void *p, VF x, int n)
{
    _mm_mask_storeu_epi8(p, v_first(n), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}
