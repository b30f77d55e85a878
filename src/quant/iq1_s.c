/* iq1_s.c - ggml type 19 of the GGUF specification: eight elements at a time are a point of a grid, moved by an
 * eighth.
 *
 *   byte 0..1    d, binary16
 *   byte 2..33   low 8 bits of the point of each 8 elements
 *   byte 34..49  a word of 16 bits for each 32 elements: four times the high 3 bits of a point, 3 bits s, a bit for
 *                moving down
 *                w[i] = d * (2 s + 1) * (point[i] +- 1/8) */
#include "quant/iq1_grid.h"

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    (void)min;
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 256; k++, b += 50, scale += 8) {
        float d = sy_f16_at(b);
        for (int g = 0; g < 8; g++) {
            int word = sy_u16_at(b + 34 + 2 * g);
            scale[g] = d * (float)(2 * (word >> 12 & 7) + 1) * 0.125f;
            for (int l = 0; l < 4; l++, code += 8)
                sy_iq1_point(b[2 + 4 * g + l] | (word >> (3 * l) & 7) << 8, word >> 15, code);
        }
    }
}

extern const struct sy_quant sy_quant_iq1_s;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_iq1_s, src, dst, n); }

const struct sy_quant sy_quant_iq1_s = {
    .name = "iq1_s",
    .gguf_type = 19,
    .block_len = 256,
    .block_bytes = 50,
    .dequant = dequant,
    .affine = {.bits = 8, .group = 32, .zero = 128},
    .unpack = unpack,
};
