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

extern const struct sy_kernels_peak sy_peak_avx512bf16;
const struct sy_kernels_peak sy_peak_avx512bf16 = {.bf16 = bf16};
