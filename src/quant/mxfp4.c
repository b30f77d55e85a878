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

/* Nearest of the eight sizes, twice: 0 1 2 3 4 6 8 12. */
static int nearest(float v)
{
    float a = v < 0 ? -v : v;
    int code = a < 0.5f ? 0 : a < 1.5f ? 1 : a < 2.5f ? 2 : a < 3.5f ? 3 : a < 5 ? 4 : a < 7 ? 5 : a < 10 ? 6 : 7;
    return v < 0 ? code | 8 : code;
}

static double try_power(const float *x, int e, uint8_t *code)
{
    double error = 0;
    float s = half_power(e), inv = 1 / s;
    for (int i = 0; i < 32; i++) {
        code[i] = (uint8_t)nearest(x[i] * inv);
        double off = (double)x[i] - (double)((float)sy_e2m1_twice[code[i]] * s);
        error += off * off;
    }
    return error;
}

/* Of the powers that put the largest value near the top of the range the one with the least squared error. */
static void quantise(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst, code[32], best[32];
    float x[32];
    for (int64_t k = 0; k < n / 32; k++, b += 17, src += 32) {
        float max = 0;
        double least = -1;
        sy_fit_load(src, x, 32);
        for (int i = 0; i < 32; i++) max = x[i] > max ? x[i] : -x[i] > max ? -x[i] : max;
        int top = (int)(sy_bits_of_f32(max) >> 23) - 2; /* max is 2^2 to 2^3 of this power: e2m1 ends at 6 */
        b[0] = 0;
        memset(best, 0, sizeof best);
        for (int e = top - 1; e <= top + 1 && max > 0; e++) {
            if (e < 2 || e > 254) continue;
            double error = try_power(x, e, code);
            if (least >= 0 && error >= least) continue;
            least = error;
            b[0] = (uint8_t)e;
            memcpy(best, code, sizeof best);
        }
        sy_pack_nibbles(best, best + 16, b + 1, 16);
    }
}

const struct sy_quant sy_quant_mxfp4 = {
    .name = "mxfp4",
    .gguf_type = 39,
    .block_len = 32,
    .block_bytes = 17,
    .dequant = dequant,
    .affine = {.bits = 8, .group = 32, .zero = 128, .e2m1 = true},
    .unpack = unpack,
    .quantise = quantise,
};
