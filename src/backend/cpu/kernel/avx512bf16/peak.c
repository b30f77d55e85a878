/* peak.c - VDPBF16PS: 32 products of bf16 added to 16 sums. */
#include "backend/cpu/kernel.h"

#include <immintrin.h>

enum { SUMS = 16 };

static int64_t bf16(int64_t rounds, void *sink)
{
    __m512 acc[SUMS];
    __m512bh a = (__m512bh)_mm512_loadu_si512(sink), b = (__m512bh)_mm512_loadu_si512((char *)sink + 64);
    for (int i = 0; i < SUMS; i++) acc[i] = _mm512_setzero_ps();
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < SUMS; i++) acc[i] = _mm512_dpbf16_ps(acc[i], a, b);
    }
    for (int i = 1; i < SUMS; i++) acc[0] = _mm512_add_ps(acc[0], acc[i]);
    _mm512_storeu_ps(sink, acc[0]);
    return rounds * SUMS * 32 * 2;
}

enum { ROWS = SY_SUM_ROWS, VECS = SY_SUM_COLS / 16 };

static __m512 wide(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }

/* 16 vectors of sums in registers, 4 of values. */
static inline __attribute__((always_inline)) void sums(const float (*p)[ROWS], const uint16_t (*v)[SY_SUM_COLS],
                                                       int64_t n, void *sum, const bool narrow)
{
    float(*f32)[SY_SUM_COLS] = sum;
    uint16_t(*h)[SY_SUM_COLS] = sum;
    __m512 acc[ROWS][VECS], x[VECS];
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < VECS; i++)
            acc[r][i] =
                narrow ? wide(_mm256_loadu_si256((const void *)(h[r] + i * 16))) : _mm512_loadu_ps(f32[r] + i * 16);
    for (int64_t k = 0; k < n; k++) {
#pragma GCC unroll 4
        for (int i = 0; i < VECS; i++) x[i] = wide(_mm256_loadu_si256((const void *)(v[k] + i * 16)));
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            __m512 one = _mm512_set1_ps(p[k][r]);
#pragma GCC unroll 4
            for (int i = 0; i < VECS; i++) {
                acc[r][i] = _mm512_fmadd_ps(one, x[i], acc[r][i]);
                if (narrow) acc[r][i] = wide((__m256i)_mm512_cvtneps_pbh(acc[r][i]));
            }
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < VECS; i++) {
            if (narrow) _mm256_storeu_si256((void *)(h[r] + i * 16), (__m256i)_mm512_cvtneps_pbh(acc[r][i]));
            else _mm512_storeu_ps(f32[r] + i * 16, acc[r][i]);
        }
}

static void sum_f32(const float (*p)[ROWS], const uint16_t (*v)[SY_SUM_COLS], int64_t n, float (*sum)[SY_SUM_COLS])
{
    sums(p, v, n, sum, false);
}

static void sum_bf16(const float (*p)[ROWS], const uint16_t (*v)[SY_SUM_COLS], int64_t n,
                     uint16_t (*sum)[SY_SUM_COLS])
{
    sums(p, v, n, sum, true);
}

extern const struct sy_kernels_peak sy_peak_avx512bf16;
const struct sy_kernels_peak sy_peak_avx512bf16 = {.bf16 = bf16, .sum_f32 = sum_f32, .sum_bf16 = sum_bf16};
