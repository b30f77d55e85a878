/* i64.c - whole numbers of 64 bits, safetensors I64: tables of ids. Numbers beyond 2^24 lose their last bits as
 * floats. */
#include "quant/quant_int.h"

static void dequant(const void *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t x;
        memcpy(&x, (const char *)src + 8 * i, sizeof x);
        dst[i] = (float)x;
    }
}

const struct sy_quant sy_quant_i64 = {
    .name = "i64",
    .gguf_type = 27,
    .st_dtype = "I64",
    .block_len = 1,
    .block_bytes = 8,
    .dequant = dequant,
};
