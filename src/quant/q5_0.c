/* q5_0.c - ggml type 6 of the GGUF specification: 5-bit codes around 16 with a scale for each 32.
 *
 *   byte 0..1   d, binary16
 *   byte 2..5   the fifth bits: bit i of this little-endian word belongs to code i
 *   byte 6..21  low nibble of byte 6+i: code i, high nibble: code 16+i        w[i] = d * (code[i] - 16) */
#include "quant/quant_int.h"

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    (void)min;
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 32; k++, b += 22, code += 32) {
        scale[k] = sy_f16_at(b);
        sy_nibbles(b + 6, code, code + 16, 16);
        sy_fifth_bits(sy_u32_at(b + 2), code);
    }
}

extern const struct sy_quant sy_quant_q5_0;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_q5_0, src, dst, n); }

static void quantise(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst, code[32];
    float x[32];
    for (int64_t k = 0; k < n / 32; k++, b += 22, src += 32) {
        sy_fit_load(src, x, 32);
        float d = sy_fit_half_scale(sy_fit_scale(x, 32, -16, 15), b);
        sy_fit_codes(x, 32, d, 0, -16, 15, code);
        uint32_t high = sy_pack_fifth_bits(code);
        memcpy(b + 2, &high, sizeof high);
        sy_pack_nibbles(code, code + 16, b + 6, 16);
    }
}

const struct sy_quant sy_quant_q5_0 = {
    .name = "q5_0",
    .gguf_type = 6,
    .block_len = 32,
    .block_bytes = 22,
    .dequant = dequant,
    .affine = {.bits = 5, .group = 32, .zero = 16},
    .unpack = unpack,
    .quantise = quantise,
};
