/* q6_k.c - ggml type 14 of the GGUF specification: 6-bit codes around 32; 256 share a half scale, each 16 have
 * their own signed 8-bit multiple of it.
 *
 *   byte 0..127    low four bits: code 128c + 32j + l is nibble j/2 of byte 64c + 32 (j%2) + l   (c < 2, j < 4, l < 32)
 *   byte 128..191  high two bits: code 128c + 32j + l has bits 2j..2j+1 of byte 128 + 32c + l
 *   byte 192..207  s[16], two's complement
 *   byte 208..209  d, binary16        w[i] = d * s * (code[i] - 32), with s of group i/16 */
#include "quant/quant_int.h"

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    (void)min;
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 256; k++, b += 210, code += 256, scale += 16) {
        float d = sy_f16_at(b + 208);
        for (int g = 0; g < 16; g++) scale[g] = d * (float)(int8_t)b[192 + g];
        sy_pairs(b + 128, code);
        for (int c = 0; c < 2; c++)
            for (int l = 0; l < 64; l++) {
                uint8_t q = b[64 * c + l];
                code[128 * c + l] = (uint8_t)(code[128 * c + l] << 4 | (q & 15));
                code[128 * c + 64 + l] = (uint8_t)(code[128 * c + 64 + l] << 4 | q >> 4);
            }
    }
}

extern const struct sy_quant sy_quant_q6_k;

static void dequant(const void *src, float *dst, int64_t n)
{
    sy_affine_dequant(&sy_quant_q6_k, src, dst, n);
}

const struct sy_quant sy_quant_q6_k = {
    .name = "q6_k",
    .gguf_type = 14,
    .block_len = 256,
    .block_bytes = 210,
    .dequant = dequant,
    .affine = {.bits = 6, .group = 16, .zero = 32},
    .unpack = unpack,
};
