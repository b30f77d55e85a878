/* peak.c - 256-bit multiply-adds: VFMADD, and VPMADDUBSW with VPMADDWD for int8. 12 sums, 2 operands, 1 of ones: 15
 * of 16 registers; two additions of 4 cycles' latency start in each cycle, so 8 sums would do. */
#include "backend/cpu/kernel.h"

#include <immintrin.h>

enum { SUMS = 12 };

static int64_t f32(int64_t rounds, void *sink)
{
    __m256 acc[SUMS], a = _mm256_loadu_ps(sink), b = _mm256_loadu_ps((float *)sink + 8);
    for (int i = 0; i < SUMS; i++) acc[i] = _mm256_setzero_ps();
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < SUMS; i++) acc[i] = _mm256_fmadd_ps(a, b, acc[i]);
    }
    for (int i = 1; i < SUMS; i++) acc[0] = _mm256_add_ps(acc[0], acc[i]);
    _mm256_storeu_ps(sink, acc[0]);
    return rounds * SUMS * 8 * 2;
}

static int64_t int8(int64_t rounds, void *sink)
{
    __m256i acc[SUMS], a = _mm256_loadu_si256(sink), b = _mm256_loadu_si256((__m256i *)sink + 1),
                       ones = _mm256_set1_epi16(1);
    for (int i = 0; i < SUMS; i++) acc[i] = _mm256_setzero_si256();
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < SUMS; i++) {
            __asm__("" : "+x"(a)); /* or one product would serve all sums */
            acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
        }
    }
    for (int i = 1; i < SUMS; i++) acc[0] = _mm256_add_epi32(acc[0], acc[i]);
    _mm256_storeu_si256(sink, acc[0]);
    return rounds * SUMS * 32 * 2;
}

static uint64_t read_all(const void *at, size_t n)
{
    __m256i sum[8];
    const __m256i *from = at, *end = from + n / sizeof *from;
    for (int i = 0; i < 8; i++) sum[i] = _mm256_setzero_si256();
    for (; from < end; from += 8) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) sum[i] = _mm256_xor_si256(sum[i], _mm256_loadu_si256(from + i));
    }
    for (int i = 1; i < 8; i++) sum[0] = _mm256_xor_si256(sum[0], sum[i]);
    return (uint64_t)_mm256_extract_epi64(sum[0], 0);
}

extern const struct sy_kernels_peak sy_peak_avx2;
const struct sy_kernels_peak sy_peak_avx2 = {.f32 = f32, .int8 = int8, .read = read_all};
