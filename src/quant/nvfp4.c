/* nvfp4.c - ggml type 40 of the GGUF specification: e2m1 elements, an unsigned e4m3 scale for each 16, 64 in a block.
 *
 *   byte 0..3   the scales: bit 7 is not looked at, 0x7f counts as 0
 *   byte 4..35  low nibble of byte 4 + 8g + i: element 16g + i, high nibble: element 16g + 8 + i        (i < 8)
 *
 * Codes are twice the elements, which are integers. */
#include "quant/quant_int.h"

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    (void)min;
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 64; k++, b += 36, scale += 4)
        for (int g = 0; g < 4; g++, code += 16) {
            scale[g] = b[g] == 0x7f ? 0 : 0.5f * sy_f16_widen((uint16_t)((b[g] & 0x7f) << 7)) * 0x1p8f;
            for (int i = 0; i < 8; i++) {
                code[i] = (uint8_t)(sy_e2m1_twice[b[4 + 8 * g + i] & 15] + 128);
                code[8 + i] = (uint8_t)(sy_e2m1_twice[b[4 + 8 * g + i] >> 4] + 128);
            }
        }
}

extern const struct sy_quant sy_quant_nvfp4;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_nvfp4, src, dst, n); }

const struct sy_quant sy_quant_nvfp4 = {
    .name = "nvfp4",
    .gguf_type = 40,
    .block_len = 64,
    .block_bytes = 36,
    .dequant = dequant,
    .affine = {.bits = 8, .group = 16, .zero = 128, .e2m1 = true},
    .unpack = unpack,
};
