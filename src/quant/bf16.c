/* bf16.c - bfloat16, ggml type 30 of the GGUF specification, safetensors BF16. A block is one number: the
 * upper half of a binary32. */
#include "quant/quant_int.h"

static void dequant(const void *src, float *dst, int64_t n)
{
    const unsigned char *from = src;
    for (int64_t i = 0; i < n; i++) dst[i] = sy_bf16_widen(sy_u16_at(from + 2 * i));
}

static void quantise(const float *src, void *dst, int64_t n)
{
    unsigned char *to = dst;
    for (int64_t i = 0; i < n; i++) {
        uint16_t v = sy_bf16_narrow(src[i]);
        memcpy(to + 2 * i, &v, sizeof v);
    }
}

const struct sy_quant sy_quant_bf16 = {
    .name = "bf16",
    .gguf_type = 30,
    .st_dtype = "BF16",
    .block_len = 1,
    .block_bytes = 2,
    .exact = SY_EXACT_BF16,
    .dequant = dequant,
    .quantise = quantise,
};
