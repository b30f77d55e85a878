/* q3_k.c - ggml type 11 of the GGUF specification: 3-bit codes around 4; 256 share a half scale, each 16 have
 * their own 6-bit multiple of it, stored around 32.
 *
 *   byte 0..31    third bits: that of code 32t + l is bit t of byte l   (t < 8, l < 32)
 *   byte 32..95   low two bits: code 128c + 32j + l is in bits 2j..2j+1 of byte 32 + 32c + l   (c < 2, j < 4)
 *   byte 96..107  the 6-bit multiples. Low four bits of s[g]: nibble g/8 of byte 96 + g%8;
 *                 high two: bits 2t and 2t+1 of byte 104 + g%4 with t = g/4
 *   byte 108..109 d, binary16        w[i] = d * (s - 32) * (code[i] - 4), with s of group i/16 */
#include "quant/quant_int.h"

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    (void)min;
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 256; k++, b += 110, code += 256, scale += 16) {
        float d = sy_f16_at(b + 108);
        for (int g = 0; g < 16; g++) {
            int low = b[96 + g % 8] >> (g / 8 * 4) & 15, high = b[104 + g % 4] >> (g / 4 * 2) & 3;
            scale[g] = d * (float)((low | high << 4) - 32);
        }
        sy_pairs(b + 32, code);
        for (int t = 0; t < 8; t++)
            for (int l = 0; l < 32; l++) code[32 * t + l] |= (uint8_t)((b[l] >> t & 1) << 2);
    }
}

extern const struct sy_quant sy_quant_q3_k;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_q3_k, src, dst, n); }

const struct sy_quant sy_quant_q3_k = {
    .name = "q3_k",
    .gguf_type = 11,
    .block_len = 256,
    .block_bytes = 110,
    .dequant = dequant,
    .affine = {.bits = 3, .group = 16, .zero = 4},
    .unpack = unpack,
};
