/* q5_k.c - ggml type 13 of the GGUF specification: 5-bit codes; 256 share two half scales, each 32 have their
 * own 6-bit multiples of them.
 *
 *   byte 0..1     d, binary16
 *   byte 2..3     dmin, binary16
 *   byte 4..15    the 6-bit multiples s[8] and m[8]: see sy_kscales()
 *   byte 16..47   fifth bits: that of code 32g + l is bit g of byte 16 + l   (g < 8, l < 32)
 *   byte 48..175  code 64c + l is the low nibble of byte 48 + 32c + l, code 64c + 32 + l the high one (c < 4)
 *                 w[i] = d * s * code[i] - dmin * m, with s and m of group i/32 */
#include "quant/quant_int.h"

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 256; k++, b += 176, code += 256, scale += 8, min += 8) {
        sy_kscales(b, scale, min);
        for (int c = 0; c < 4; c++) sy_nibbles(b + 48 + 32 * c, code + 64 * c, code + 64 * c + 32, 32);
        for (int g = 0; g < 8; g++)
            for (int l = 0; l < 32; l++) code[32 * g + l] |= (uint8_t)((b[16 + l] >> g & 1) << 4);
    }
}

extern const struct sy_quant sy_quant_q5_k;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_q5_k, src, dst, n); }

const struct sy_quant sy_quant_q5_k = {
    .name = "q5_k",
    .gguf_type = 13,
    .block_len = 256,
    .block_bytes = 176,
    .dequant = dequant,
    .affine = {.bits = 5, .group = 32, .has_min = true},
    .unpack = unpack,
};
