/* mxfp4.c - ggml type 39 of the GGUF specification: MXFP4 (OCP Microscaling Formats 1.0), e2m1 elements with a power
 * of two for each 32.
 *
 *   byte 0      e: the power is 2^(e - 127)
 *   byte 1..16  low nibble of byte 1+i: element i, high nibble: element 16+i        w[i] = 2^(e - 127) * e2m1[i]
 *
 * Unlike the OCP specification e = 255 is a number. Codes are twice the elements, which are integers. */
#include "quant/quant_int.h"

/* 2^(e - 128): for e < 2 a subnormal. */
static float half_power(int e) { return sy_f32_of_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23); }

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    (void)min;
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 32; k++, b += 17, code += 32) {
        scale[k] = half_power(b[0]);
        for (int i = 0; i < 16; i++) {
            code[i] = (uint8_t)(sy_e2m1_twice[b[1 + i] & 15] + 128);
            code[16 + i] = (uint8_t)(sy_e2m1_twice[b[1 + i] >> 4] + 128);
        }
    }
}

extern const struct sy_quant sy_quant_mxfp4;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_mxfp4, src, dst, n); }

const struct sy_quant sy_quant_mxfp4 = {
    .name = "mxfp4",
    .gguf_type = 39,
    .block_len = 32,
    .block_bytes = 17,
    .dequant = dequant,
    .affine = {.bits = 8, .group = 32, .zero = 128},
    .unpack = unpack,
};
