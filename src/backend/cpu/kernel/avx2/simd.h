/* simd.h - AVX2 with FMA and F16C under the names that vec_simd.h and attend_simd.h are written in. Arithmetic is
 * that of the compilers' vector types: a + b, a * b. */
#pragma once
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define VF __m256
/* 12 sums, 2 vectors of B and one of A of the 16 registers */
enum { LANES = 8, REG_ROWS = 6, REG_COLS = 2 };
enum { FEW_ROWS = 6 }; /* widening the cache anew for each REG_ROWS of them costs less than a scratch tile */
#define INLINE static inline __attribute__((always_inline))

INLINE __m256i v_lane(void) { return _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0); }
INLINE __m256i v_first(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), v_lane()); }
INLINE VF v_set(float x) { return _mm256_set1_ps(x); }
INLINE VF v_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE VF v_load_n(const float *p, int n) { return _mm256_maskload_ps(p, v_first(n)); } /* others are 0 */
INLINE void v_store(float *p, VF x) { _mm256_storeu_ps(p, x); }
INLINE void v_store_n(float *p, VF x, int n) { _mm256_maskstore_ps(p, v_first(n), x); }
INLINE VF v_fma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }   /* a * b + c */
INLINE VF v_fnma(VF a, VF b, VF c) { return _mm256_fnmadd_ps(a, b, c); } /* c - a * b */
INLINE VF v_max(VF a, VF b) { return _mm256_max_ps(a, b); }              /* b where either is NaN */
INLINE VF v_min(VF a, VF b) { return _mm256_min_ps(a, b); }              /* b where either is NaN */
INLINE VF v_sqrt(VF a) { return _mm256_sqrt_ps(a); }
INLINE VF v_abs(VF a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
INLINE VF v_sign(VF size, VF sign) /* |size| with the sign of `sign` */
{
    return _mm256_or_ps(v_abs(size), _mm256_and_ps(_mm256_set1_ps(-0.0f), sign));
}
/* a < b ? x : y, y where a or b is NaN */
INLINE VF v_less(VF a, VF b, VF x, VF y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
/* Bit i: lane i of a equals that of b. */
INLINE uint32_t v_equal(VF a, VF b) { return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }
/* Some lane of a is above that of b. */
INLINE bool v_above(VF a, VF b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }
/* Lanes [lo, hi) of x, -inf in the others; lo and hi may lie outside. */
INLINE VF v_span(VF x, int lo, int hi)
{
    __m256i in = _mm256_andnot_si256(v_first(lo), v_first(hi));
    return _mm256_blendv_ps(v_set(-__builtin_inff()), x, _mm256_castsi256_ps(in));
}
INLINE float v_sum(VF x) /* halves, quarters, pairs */
{
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
INLINE float v_top(VF x)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
/* x * 2^n for an integral n of at most 254 in size: in two steps, so that subnormal results are rounded once. */
INLINE VF v_scale2(VF x, VF n)
{
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
    __m256i rest = _mm256_sub_epi32(whole, half);
    x = x * _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    return x * _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
}

/* Interleaved pairs: lane i of *even is p[2i]. */
INLINE void v_load_pairs(const float *p, VF *even, VF *odd)
{
    VF a = v_load(p), b = v_load(p + LANES);
    VF low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    *even = _mm256_shuffle_ps(low, high, 0x88);
    *odd = _mm256_shuffle_ps(low, high, 0xdd);
}
INLINE void v_store_pairs(float *p, VF even, VF odd)
{
    VF a = _mm256_unpacklo_ps(even, odd), b = _mm256_unpackhi_ps(even, odd);
    v_store(p, _mm256_permute2f128_ps(a, b, 0x20));
    v_store(p + LANES, _mm256_permute2f128_ps(a, b, 0x31));
}

/* bfloat16 and binary16 in memory. Narrowing rounds to nearest even; NaN stays NaN. */
INLINE __m128i v_halves(const void *p, int n)
{
    uint16_t h[LANES] = {0};
    memcpy(h, p, (size_t)n * sizeof *h);
    return _mm_loadu_si128((const __m128i *)h);
}
INLINE VF v_of_bf16(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
INLINE VF v_load_bf16(const void *p) { return v_of_bf16(_mm_loadu_si128(p)); }
INLINE VF v_load_bf16_n(const void *p, int n) { return v_of_bf16(v_halves(p, n)); }
INLINE VF v_load_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
INLINE VF v_load_f16_n(const void *p, int n) { return _mm256_cvtph_ps(v_halves(p, n)); }
INLINE void v_put_halves(void *p, __m128i h, int n)
{
    if (n == LANES) _mm_storeu_si128(p, h);
    else memcpy(p, &h, (size_t)n * sizeof(uint16_t));
}
INLINE VF v_set_f16(const void *p)
{
    int16_t h;
    memcpy(&h, p, sizeof h);
    return _mm256_cvtph_ps(_mm_set1_epi16(h));
}
INLINE void v_store_bf16_n(void *p, VF x, int n)
{
    __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    VF both = _mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(nan), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i h = _mm256_srli_epi32(_mm256_castps_si256(both), 16);
    v_put_halves(p, _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)), n);
}
INLINE void v_store_f16_n(void *p, VF x, int n)
{
    v_put_halves(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), n);
}

/* Signed bytes in memory. Storing rounds to nearest even; |x| <= 127. */
INLINE VF v_of_i8(__m128i b) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)); }
INLINE VF v_load_i8(const void *p) { return v_of_i8(_mm_loadl_epi64(p)); }
INLINE VF v_load_i8_n(const void *p, int n)
{
    int64_t b = 0;
    memcpy(&b, p, (size_t)n);
    return v_of_i8(_mm_cvtsi64_si128(b));
}
INLINE void v_store_i8_n(void *p, VF x, int n)
{
    __m256i w = _mm256_cvtps_epi32(x);
    __m128i h = _mm_packs_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    int64_t b = _mm_cvtsi128_si64(_mm_packs_epi16(h, h));
    memcpy(p, &b, (size_t)n);
}
