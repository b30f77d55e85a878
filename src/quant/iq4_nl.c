/* iq4_nl.c - ggml type 20 of the GGUF specification: 4-bit indices into 16 fixed values, with a scale for
 * each 32.
 *
 *   byte 0..1   d, binary16
 *   byte 2..17  low nibble of byte 2+i: index i, high nibble: index 16+i        w[i] = d * value[index[i]]
 *
 * unpack() gives value + 128 as an 8-bit code, which every affine layout takes; affine.codebook tells a
 * layout that wants four bits which 16 codes there are. */
#include "quant/quant_int.h"

static const int8_t value[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    (void)min;
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 32; k++, b += 18, code += 32) {
        scale[k] = sy_f16_at(b);
        for (int i = 0; i < 16; i++) {
            code[i] = (uint8_t)(value[b[2 + i] & 15] + 128);
            code[16 + i] = (uint8_t)(value[b[2 + i] >> 4] + 128);
        }
    }
}

extern const struct sy_quant sy_quant_iq4_nl;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_iq4_nl, src, dst, n); }

const struct sy_quant sy_quant_iq4_nl = {
    .name = "iq4_nl",
    .gguf_type = 20,
    .block_len = 32,
    .block_bytes = 18,
    .dequant = dequant,
    .affine = {.bits = 8, .group = 32, .zero = 128, .codebook = value},
    .unpack = unpack,
};
