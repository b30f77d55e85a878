/* iq1_m.c - ggml type 29 of the GGUF specification: eight elements at a time are a point of a grid, moved by an
 * eighth.
 *
 *   byte 0..31   low 8 bits of the point of each 8 elements
 *   byte 32..47  a nibble for each 8 elements: high 3 bits of the point, a bit for moving down
 *   byte 48..55  four words of 16 bits: four times 3 bits s of 16 elements each; the top nibbles together are d,
 *                binary16, the lowest first
 *                w[i] = d * (2 s + 1) * (point[i] +- 1/8) */
#include "quant/iq1_grid.h"

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    (void)min;
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 256; k++, b += 56, scale += 16) {
        uint16_t half = 0;
        for (int j = 0; j < 4; j++) half |= (uint16_t)(sy_u16_at(b + 48 + 2 * j) >> 12 << (4 * j));
        float d = sy_f16_widen(half);
        for (int g = 0; g < 16; g++)
            scale[g] = d * (float)(2 * (sy_u16_at(b + 48 + g / 4 * 2) >> (g % 4 * 3) & 7) + 1) * 0.125f;
        for (int l = 0; l < 32; l++, code += 8) {
            int high = b[32 + l / 2] >> (l % 2 * 4) & 15;
            sy_iq1_point(b[l] | (high & 7) << 8, high >> 3, code);
        }
    }
}

extern const struct sy_quant sy_quant_iq1_m;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_iq1_m, src, dst, n); }

const struct sy_quant sy_quant_iq1_m = {
    .name = "iq1_m",
    .gguf_type = 29,
    .block_len = 256,
    .block_bytes = 56,
    .dequant = dequant,
    .affine = {.bits = 8, .group = 16, .zero = 128},
    .unpack = unpack,
};
