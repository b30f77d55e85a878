/* q5_1.c - ggml type 7 of the GGUF specification: 5-bit codes with a scale and a minimum for each 32.
 *
 *   byte 0..1   d, binary16
 *   byte 2..3   m, binary16
 *   byte 4..7   the fifth bits: bit i of this little-endian word belongs to code i
 *   byte 8..23  low nibble of byte 8+i: code i, high nibble: code 16+i        w[i] = d * code[i] + m */
#include "quant/quant_int.h"

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 32; k++, b += 24, code += 32) {
        scale[k] = sy_f16_at(b);
        min[k] = sy_f16_at(b + 2);
        sy_nibbles(b + 8, code, code + 16, 16);
        sy_fifth_bits(sy_u32_at(b + 4), code);
    }
}

extern const struct sy_quant sy_quant_q5_1;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_q5_1, src, dst, n); }

static void quantise(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst, code[32];
    float x[32], d, m;
    for (int64_t k = 0; k < n / 32; k++, b += 24, src += 32) {
        sy_fit_load(src, x, 32);
        sy_fit_line(x, 32, 31, 0x1p40f, &d, &m);
        d = sy_fit_half_scale(d, b);
        m = sy_fit_half(m, b + 2);
        sy_fit_codes(x, 32, d, m, 0, 31, code);
        uint32_t high = sy_pack_fifth_bits(code);
        memcpy(b + 4, &high, sizeof high);
        sy_pack_nibbles(code, code + 16, b + 8, 16);
    }
}

const struct sy_quant sy_quant_q5_1 = {
    .name = "q5_1",
    .gguf_type = 7,
    .block_len = 32,
    .block_bytes = 24,
    .dequant = dequant,
    .affine = {.bits = 5, .group = 32, .has_min = true},
    .unpack = unpack,
    .quantise = quantise,
};
