/* peak.c - what portable code reaches: the compiler's scalars, or what it makes of them. */
#include "backend/cpu/kernel.h"
#include "quant/quant.h"

enum { LANES = 32 };

static int64_t f32(int64_t rounds, void *sink)
{
    float acc[LANES] = {0}, *out = sink;
    const volatile float one = 1.0f, half = 0.5f; /* read here, so that nothing is computed beforehand */
    float a = one, b = half;
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < LANES; i++) acc[i] = acc[i] * a + b;
    for (int i = 0; i < LANES; i++) out[i % 16] += acc[i];
    return rounds * LANES * 2;
}

static int64_t int8(int64_t rounds, void *sink)
{
    int32_t acc[LANES] = {0}, *out = sink;
    int8_t a[LANES], b[LANES];
    const volatile int8_t source = 3;
    for (int i = 0; i < LANES; i++) a[i] = b[i] = source;
    for (int64_t r = 0; r < rounds; r++) {
        for (int i = 0; i < LANES; i++) acc[i] += (int16_t)a[i] * (int16_t)b[i];
        a[r % LANES] ^= 1;
    }
    for (int i = 0; i < LANES; i++) out[i % 16] += acc[i];
    return rounds * LANES * 2;
}

static uint64_t read_all(const void *at, size_t n)
{
    uint64_t sum[8] = {0};
    const uint64_t *from = at;
    for (size_t i = 0; i < n / sizeof *from; i += 8)
        for (size_t k = 0; k < 8; k++) sum[k] += from[i + k];
    for (int k = 1; k < 8; k++) sum[0] += sum[k];
    return sum[0];
}

static void sum_f32(const float (*p)[SY_SUM_ROWS], const uint16_t (*v)[SY_SUM_COLS], int64_t n,
                    float (*sum)[SY_SUM_COLS])
{
    for (int64_t k = 0; k < n; k++)
        for (int r = 0; r < SY_SUM_ROWS; r++)
            for (int d = 0; d < SY_SUM_COLS; d++) sum[r][d] += p[k][r] * sy_bf16_to_f32(v[k][d]);
}

static void sum_bf16(const float (*p)[SY_SUM_ROWS], const uint16_t (*v)[SY_SUM_COLS], int64_t n,
                     uint16_t (*sum)[SY_SUM_COLS])
{
    for (int64_t k = 0; k < n; k++)
        for (int r = 0; r < SY_SUM_ROWS; r++)
            for (int d = 0; d < SY_SUM_COLS; d++)
                sum[r][d] = sy_f32_to_bf16(sy_bf16_to_f32(sum[r][d]) + p[k][r] * sy_bf16_to_f32(v[k][d]));
}

extern const struct sy_kernels_peak sy_peak_generic;
const struct sy_kernels_peak sy_peak_generic = {
    .f32 = f32, .int8 = int8, .read = read_all, .sum_f32 = sum_f32, .sum_bf16 = sum_bf16};
