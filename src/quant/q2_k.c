/* q2_k.c - ggml type 10 of the GGUF specification: 2-bit codes; 256 share two half scales, each 16 have their
 * own 4-bit multiples of them.
 *
 *   byte 0..15   group g of 16: low nibble s[g] scales, high nibble m[g] shifts
 *   byte 16..79  2-bit codes: code 128c + 32j + l is in bits 2j..2j+1 of byte 16 + 32c + l   (c < 2, j < 4, l
 *   < 32)
 *   byte 80..81  d, binary16
 *   byte 82..83  dmin, binary16        w[i] = d * s * code[i] - dmin * m, with s and m of group i/16 */
#include "quant/quant_int.h"

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 256; k++, b += 84, code += 256, scale += 16, min += 16) {
        float d = sy_f16_at(b + 80), dmin = sy_f16_at(b + 82);
        for (int g = 0; g < 16; g++) {
            scale[g] = d * (float)(b[g] & 15);
            min[g] = -(dmin * (float)(b[g] >> 4));
        }
        sy_pairs(b + 16, code);
    }
}

extern const struct sy_quant sy_quant_q2_k;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_q2_k, src, dst, n); }

const struct sy_quant sy_quant_q2_k = {
    .name = "q2_k",
    .gguf_type = 10,
    .block_len = 256,
    .block_bytes = 84,
    .dequant = dequant,
    .affine = {.bits = 2, .group = 16, .has_min = true},
    .unpack = unpack,
};
