/* tq1_0.c - ggml type 34 of the GGUF specification: five ternary elements in a byte, a scale for 256.
 *
 *   byte 0..31   element 32j + l is digit j of byte l          (j < 5, l < 32)
 *   byte 32..47  element 160 + 16j + l is digit j of byte 32 + l  (l < 16)
 *   byte 48..51  element 240 + 4j + l is digit j of byte 48 + l   (j < 4, l < 4)
 *   byte 52..53  d, binary16        w[i] = d * (digit - 1)
 *
 * A byte is a fraction of 256; its digits to base 3 come first to last by multiplying with 3. */
#include "quant/quant_int.h"

static void digits(const uint8_t *b, int n, int count, uint8_t *code)
{
    for (int l = 0; l < n; l++) {
        uint8_t rest = b[l];
        for (int j = 0; j < count; j++, rest = (uint8_t)(3 * rest)) code[j * n + l] = (uint8_t)(3 * rest >> 8);
    }
}

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    (void)min;
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 256; k++, b += 54, code += 256, scale += 8) {
        for (int g = 0; g < 8; g++) scale[g] = sy_f16_at(b + 52);
        digits(b, 32, 5, code);
        digits(b + 32, 16, 5, code + 160);
        digits(b + 48, 4, 4, code + 240);
    }
}

extern const struct sy_quant sy_quant_tq1_0;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_tq1_0, src, dst, n); }

const struct sy_quant sy_quant_tq1_0 = {
    .name = "tq1_0",
    .gguf_type = 34,
    .block_len = 256,
    .block_bytes = 54,
    .dequant = dequant,
    .affine = {.bits = 2, .group = 32, .zero = 1},
    .unpack = unpack,
};
