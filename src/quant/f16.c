/* f16.c - IEEE 754 binary16, ggml type 1 of the GGUF specification, safetensors F16. A block is a number. */
#include "quant/quant_int.h"

static void dequant(const void *src, float *dst, int64_t n)
{
    const unsigned char *from = src;
    for (int64_t i = 0; i < n; i++) dst[i] = sy_f16_at(from + 2 * i);
}

static void quantise(const float *src, void *dst, int64_t n)
{
    unsigned char *to = dst;
    for (int64_t i = 0; i < n; i++) {
        uint16_t v = sy_f16_narrow(src[i]);
        memcpy(to + 2 * i, &v, sizeof v);
    }
}

const struct sy_quant sy_quant_f16 = {
    .name = "f16",
    .gguf_type = 1,
    .st_dtype = "F16",
    .block_len = 1,
    .block_bytes = 2,
    .exact = SY_EXACT_F16,
    .dequant = dequant,
    .quantise = quantise,
};
