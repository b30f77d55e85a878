/* q4_0.c - ggml type 2 of the GGUF specification: 4-bit codes around 8 with a scale for each 32.
 *
 *   byte 0..1   d, binary16
 *   byte 2..17  low nibble of byte 2+i: code i, high nibble: code 16+i        w[i] = d * (code[i] - 8) */
#include "quant/quant_int.h"

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    (void)min;
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 32; k++, b += 18, code += 32) {
        scale[k] = sy_f16_at(b);
        sy_nibbles(b + 2, code, code + 16, 16);
    }
}

extern const struct sy_quant sy_quant_q4_0;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_q4_0, src, dst, n); }

static void quantise(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst, code[32];
    float x[32];
    for (int64_t k = 0; k < n / 32; k++, b += 18, src += 32) {
        sy_fit_load(src, x, 32);
        float d = sy_fit_half_scale(sy_fit_scale(x, 32, -8, 7), b);
        sy_fit_codes(x, 32, d, 0, -8, 7, code);
        sy_pack_nibbles(code, code + 16, b + 2, 16);
    }
}

const struct sy_quant sy_quant_q4_0 = {
    .name = "q4_0",
    .gguf_type = 2,
    .block_len = 32,
    .block_bytes = 18,
    .dequant = dequant,
    .affine = {.bits = 4, .group = 32, .zero = 8},
    .unpack = unpack,
    .quantise = quantise,
};
