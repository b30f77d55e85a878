/* q6_k.c - ggml type 14 of the GGUF specification: 6-bit codes around 32; 256 share a half scale, each 16
 * have their own signed 8-bit multiple of it.
 *
 *   byte 0..127    low four bits: code 128c + 32j + l is nibble j/2 of byte 64c + 32 (j%2) + l
 *                  (c < 2, j < 4, l < 32)
 *   byte 128..191  high two bits: code 128c + 32j + l has bits 2j..2j+1 of byte 128 + 32c + l
 *   byte 192..207  s[16], two's complement
 *   byte 208..209  d, binary16        w[i] = d * s * (code[i] - 32), with s of group i/16 */
#include "quant/quant_int.h"

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    (void)min;
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 256; k++, b += 210, code += 256, scale += 16) {
        float d = sy_f16_at(b + 208);
        for (int g = 0; g < 16; g++) scale[g] = d * (float)(int8_t)b[192 + g];
        sy_pairs(b + 128, code);
        for (int c = 0; c < 2; c++)
            for (int l = 0; l < 64; l++) {
                uint8_t q = b[64 * c + l];
                code[128 * c + l] = (uint8_t)(code[128 * c + l] << 4 | (q & 15));
                code[128 * c + 64 + l] = (uint8_t)(code[128 * c + 64 + l] << 4 | q >> 4);
            }
    }
}

extern const struct sy_quant sy_quant_q6_k;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_q6_k, src, dst, n); }

struct fit {
    float x[256], d; /* d as stored */
    uint8_t half[2], code[256];
    int s[16];
};

/* The multiple of one group: the nearest to what the group alone would like, or one beside it. */
static double fit_group(struct fit *f, int g, float scale)
{
    uint8_t code[16];
    double best = -1;
    float want = f->d > 0 ? scale / f->d : 0;
    int s0 = (int)(want < -128 ? -128 : want > 127 ? 127 : want);
    for (int s = s0 - 1; s <= s0 + 1; s++) {
        if (s < -128 || s > 127) continue;
        double error = sy_fit_codes(f->x + 16 * g, 16, f->d * (float)s, 0, -32, 31, code);
        if (best >= 0 && error >= best) continue;
        best = error;
        f->s[g] = s;
        memcpy(f->code + 16 * g, code, sizeof code);
    }
    return best;
}

/* d that is best for the multiples and codes as they are; 0 when they are all zero. */
static float solve(const struct fit *f)
{
    double aa = 0, xa = 0;
    for (int i = 0; i < 256; i++) {
        double a = f->s[i / 16] * (f->code[i] - 32);
        aa += a * a;
        xa += (double)f->x[i] * a;
    }
    return aa > 0 ? (float)(xa / aa) : 0;
}

static void quantise_block(const float *src, uint8_t *b)
{
    struct fit f, best;
    float scale[16], d = 0;
    double best_error = 0;
    sy_fit_load(src, f.x, 256);
    for (int g = 0; g < 16; g++) {
        scale[g] = sy_fit_scale(f.x + 16 * g, 16, -32, 31);
        float size = scale[g] < 0 ? -scale[g] : scale[g];
        d = size > d ? size : d;
    }
    d /= 127;
    for (int round = 0; round < 3; round++) {
        f.d = sy_fit_half_scale(d, f.half);
        double error = 0;
        for (int g = 0; g < 16; g++) error += fit_group(&f, g, scale[g]);
        if (round > 0 && error >= best_error) break;
        best_error = error;
        best = f;
        d = solve(&f);
    }
    memset(b, 0, 192);
    for (int c = 0; c < 2; c++)
        for (int j = 0; j < 4; j++)
            for (int l = 0; l < 32; l++) {
                int q = best.code[128 * c + 32 * j + l];
                b[64 * c + 32 * (j % 2) + l] |= (uint8_t)((q & 15) << j / 2 * 4);
                b[128 + 32 * c + l] |= (uint8_t)(q >> 4 << 2 * j);
            }
    for (int g = 0; g < 16; g++) b[192 + g] = (uint8_t)best.s[g];
    memcpy(b + 208, best.half, 2);
}

static void quantise(const float *src, void *dst, int64_t n)
{
    for (int64_t k = 0; k < n / 256; k++) quantise_block(src + 256 * k, (uint8_t *)dst + 210 * k);
}

const struct sy_quant sy_quant_q6_k = {
    .name = "q6_k",
    .gguf_type = 14,
    .block_len = 256,
    .block_bytes = 210,
    .dequant = dequant,
    .affine = {.bits = 6, .group = 16, .zero = 32},
    .unpack = unpack,
    .quantise = quantise,
};
