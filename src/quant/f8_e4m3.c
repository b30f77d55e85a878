/* f8_e4m3.c - OCP FP8 e4m3 (OFP8 1.0; "fn": no infinities, 0x7f and 0xff are NaN), without scales: each fits in
 * bfloat16 and binary16. */
#include "quant/quant_int.h"

static void dequant(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t i = 0; i < n; i++) dst[i] = sy_e4m3_widen(b[i]);
}

const struct sy_quant sy_quant_f8_e4m3 = {
    .name = "f8_e4m3",
    .gguf_type = -1,
    .st_dtype = "F8_E4M3",
    .block_len = 1,
    .block_bytes = 1,
    .exact = SY_EXACT_BF16,
    .dequant = dequant,
    .f8 = SY_F8_E4M3,
};
