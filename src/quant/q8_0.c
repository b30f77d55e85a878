/* q8_0.c - ggml type 8 of the GGUF specification: signed bytes with a scale for each 32.
 *
 *   byte 0..1   d, binary16
 *   byte 2..33  q[32], two's complement        w[i] = d * q[i] */
#include "quant/quant_int.h"

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    (void)min;
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 32; k++, b += 34, code += 32) {
        scale[k] = sy_f16_at(b);
        for (int i = 0; i < 32; i += 8) { /* two's complement -> offset 128 */
            uint64_t v;
            memcpy(&v, b + 2 + i, sizeof v);
            v ^= 0x8080808080808080u;
            memcpy(code + i, &v, sizeof v);
        }
    }
}

extern const struct sy_quant sy_quant_q8_0;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_q8_0, src, dst, n); }

static void quantise(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst, code[32];
    float x[32];
    for (int64_t k = 0; k < n / 32; k++, b += 34, src += 32) {
        sy_fit_load(src, x, 32);
        float d = sy_fit_half_scale(sy_fit_scale(x, 32, -128, 127), b);
        sy_fit_codes(x, 32, d, 0, -128, 127, code);
        for (int i = 0; i < 32; i++) b[2 + i] = code[i] ^ 0x80;
    }
}

const struct sy_quant sy_quant_q8_0 = {
    .name = "q8_0",
    .gguf_type = 8,
    .block_len = 32,
    .block_bytes = 34,
    .dequant = dequant,
    .affine = {.bits = 8, .group = 32, .zero = 128},
    .unpack = unpack,
    .quantise = quantise,
};
