/* i32.c - whole numbers of 32 bits, safetensors I32: tables of ids. Numbers beyond 2^24 lose their last bits as
 * floats. */
#include "quant/quant_int.h"

static void dequant(const void *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int32_t x;
        memcpy(&x, (const char *)src + 4 * i, sizeof x);
        dst[i] = (float)x;
    }
}

const struct sy_quant sy_quant_i32 = {
    .name = "i32",
    .gguf_type = 26,
    .st_dtype = "I32",
    .block_len = 1,
    .block_bytes = 4,
    .dequant = dequant,
};
