/* f32.c - IEEE 754 binary32, ggml type 0 of the GGUF specification, safetensors F32. A block is a number. */
#include "quant/quant_int.h"

static void dequant(const void *src, float *dst, int64_t n) { memcpy(dst, src, (size_t)n * sizeof *dst); }

static void quantise(const float *src, void *dst, int64_t n) { memcpy(dst, src, (size_t)n * sizeof *src); }

const struct sy_quant sy_quant_f32 = {
    .name = "f32",
    .gguf_type = 0,
    .st_dtype = "F32",
    .block_len = 1,
    .block_bytes = 4,
    .dequant = dequant,
    .quantise = quantise,
};
