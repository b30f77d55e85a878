/* f8_e5m2.c - OCP FP8 e5m2 (OFP8 1.0), without scales: the upper half of a binary16. */
#include "quant/quant_int.h"

static void dequant(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t i = 0; i < n; i++) dst[i] = sy_e5m2_widen(b[i]);
}

const struct sy_quant sy_quant_f8_e5m2 = {
    .name = "f8_e5m2",
    .gguf_type = -1,
    .st_dtype = "F8_E5M2",
    .block_len = 1,
    .block_bytes = 1,
    .exact = SY_EXACT_BF16,
    .dequant = dequant,
    .f8 = SY_F8_E5M2,
};
