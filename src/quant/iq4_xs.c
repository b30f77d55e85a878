/* iq4_xs.c - ggml type 23 of the GGUF specification: 4-bit indices into 16 fixed values; 256 share a half scale, each
 * 32 have their own 6-bit multiple of it, stored around 32.
 *
 *   byte 0..1    d, binary16
 *   byte 2..3    high 2 bits of the multiples s[8]
 *   byte 4..7    their low 4 bits, low nibble first
 *   byte 8..135  index 32g + l is the low nibble of byte 8 + 16g + l, index 32g + 16 + l the high one (l < 16)
 *                w[i] = d * (s - 32) * value[index[i]], with s of group i/32 */
#include "quant/quant_int.h"

static const int8_t value[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    (void)min;
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 256; k++, b += 136, scale += 8) {
        float d = sy_f16_at(b);
        for (int g = 0; g < 8; g++, code += 32) {
            int low = b[4 + g / 2] >> (g % 2 * 4) & 15, high = sy_u16_at(b + 2) >> (2 * g) & 3;
            scale[g] = d * (float)((low | high << 4) - 32);
            for (int l = 0; l < 16; l++) {
                code[l] = (uint8_t)(value[b[8 + 16 * g + l] & 15] + 128);
                code[16 + l] = (uint8_t)(value[b[8 + 16 * g + l] >> 4] + 128);
            }
        }
    }
}

extern const struct sy_quant sy_quant_iq4_xs;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_iq4_xs, src, dst, n); }

const struct sy_quant sy_quant_iq4_xs = {
    .name = "iq4_xs",
    .gguf_type = 23,
    .block_len = 256,
    .block_bytes = 136,
    .dequant = dequant,
    .affine = {.bits = 8, .group = 32, .zero = 128, .codebook = value},
    .unpack = unpack,
};
