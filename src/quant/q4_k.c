/* q4_k.c - ggml type 12 of the GGUF specification: 4-bit codes; 256 share two half scales, each 32 have their own
 * 6-bit multiples of them.
 *
 *   byte 0..1     d, binary16
 *   byte 2..3     dmin, binary16
 *   byte 4..15    the 6-bit multiples s[8] and m[8]: see sy_kscales()
 *   byte 16..143  code 64c + l is the low nibble of byte 16 + 32c + l, code 64c + 32 + l the high one (c < 4, l < 32)
 *                 w[i] = d * s * code[i] - dmin * m, with s and m of group i/32 */
#include "quant/quant_int.h"

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 256; k++, b += 144, code += 256, scale += 8, min += 8) {
        sy_kscales(b, scale, min);
        for (int c = 0; c < 4; c++) sy_nibbles(b + 16 + 32 * c, code + 64 * c, code + 64 * c + 32, 32);
    }
}

extern const struct sy_quant sy_quant_q4_k;

static void dequant(const void *src, float *dst, int64_t n)
{
    sy_affine_dequant(&sy_quant_q4_k, src, dst, n);
}

const struct sy_quant sy_quant_q4_k = {
    .name = "q4_k",
    .gguf_type = 12,
    .block_len = 256,
    .block_bytes = 144,
    .dequant = dequant,
    .affine = {.bits = 4, .group = 32, .has_min = true},
    .unpack = unpack,
};
