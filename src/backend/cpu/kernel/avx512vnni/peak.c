/* peak.c - VPDPBUSD: 64 products of int8 added to 16 sums. */
#include "backend/cpu/kernel.h"

#include <immintrin.h>

enum { SUMS = 16 };

static int64_t int8(int64_t rounds, void *sink)
{
    __m512i acc[SUMS], a = _mm512_loadu_si512(sink), b = _mm512_loadu_si512((char *)sink + 64);
    for (int i = 0; i < SUMS; i++) acc[i] = _mm512_setzero_si512();
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < SUMS; i++) acc[i] = _mm512_dpbusd_epi32(acc[i], a, b);
    }
    for (int i = 1; i < SUMS; i++) acc[0] = _mm512_add_epi32(acc[0], acc[i]);
    _mm512_storeu_si512(sink, acc[0]);
    return rounds * SUMS * 64 * 2;
}

extern const struct sy_kernels_peak sy_peak_avx512vnni;
const struct sy_kernels_peak sy_peak_avx512vnni = {.int8 = int8};
