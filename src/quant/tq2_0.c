/* tq2_0.c - ggml type 35 of the GGUF specification: ternary elements in 2 bits, a scale for 256.
 *
 *   byte 0..63   code 128c + 32j + l is in bits 2j..2j+1 of byte 32c + l
 *   byte 64..65  d, binary16        w[i] = d * (code[i] - 1) */
#include "quant/quant_int.h"

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    (void)min;
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 256; k++, b += 66, code += 256, scale += 8) {
        for (int g = 0; g < 8; g++) scale[g] = sy_f16_at(b + 64);
        sy_pairs(b, code);
    }
}

extern const struct sy_quant sy_quant_tq2_0;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_tq2_0, src, dst, n); }

const struct sy_quant sy_quant_tq2_0 = {
    .name = "tq2_0",
    .gguf_type = 35,
    .block_len = 256,
    .block_bytes = 66,
    .dequant = dequant,
    .affine = {.bits = 2, .group = 32, .zero = 1},
    .unpack = unpack,
};
