/* peak.c - 512-bit multiply-adds: VFMADD, and VPMADDUBSW with VPMADDWD for int8. */
#include "backend/cpu/kernel.h"

#include <immintrin.h>

enum { SUMS = 16 };

static int64_t f32(int64_t rounds, void *sink)
{
    __m512 acc[SUMS], a = _mm512_loadu_ps(sink), b = _mm512_loadu_ps((float *)sink + 16);
    for (int i = 0; i < SUMS; i++) acc[i] = _mm512_setzero_ps();
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < SUMS; i++) acc[i] = _mm512_fmadd_ps(a, b, acc[i]);
    }
    for (int i = 1; i < SUMS; i++) acc[0] = _mm512_add_ps(acc[0], acc[i]);
    _mm512_storeu_ps(sink, acc[0]);
    return rounds * SUMS * 16 * 2;
}

static int64_t int8(int64_t rounds, void *sink)
{
    __m512i acc[SUMS], a = _mm512_loadu_si512(sink), b = _mm512_loadu_si512((char *)sink + 64),
                       ones = _mm512_set1_epi16(1);
    for (int i = 0; i < SUMS; i++) acc[i] = _mm512_setzero_si512();
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < SUMS; i++) {
            __asm__("" : "+v"(a)); /* or one product would serve all sums */
            acc[i] = _mm512_add_epi32(acc[i], _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), ones));
        }
    }
    for (int i = 1; i < SUMS; i++) acc[0] = _mm512_add_epi32(acc[0], acc[i]);
    _mm512_storeu_si512(sink, acc[0]);
    return rounds * SUMS * 64 * 2;
}

static uint64_t read_all(const void *at, size_t n)
{
    __m512i sum[16];
    const char *from = at, *end = from + n;
    for (int i = 0; i < 16; i++) sum[i] = _mm512_setzero_si512();
    for (; from < end; from += 1024) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) sum[i] = _mm512_xor_si512(sum[i], _mm512_loadu_si512(from + 64 * i));
    }
    for (int i = 1; i < 16; i++) sum[0] = _mm512_xor_si512(sum[0], sum[i]);
    return (uint64_t)_mm512_reduce_add_epi64(sum[0]);
}

extern const struct sy_kernels_peak sy_peak_avx512;
const struct sy_kernels_peak sy_peak_avx512 = {.f32 = f32, .int8 = int8, .read = read_all};
