/* q4_k.c - ggml type 12 of the GGUF specification: 4-bit codes; 256 share two half scales, each 32 have their
 * own 6-bit multiples of them.
 *
 *   byte 0..1     d, binary16
 *   byte 2..3     dmin, binary16
 *   byte 4..15    the 6-bit multiples s[8] and m[8]: see sy_kscales()
 *   byte 16..143  code 64c + l is the low nibble of byte 16 + 32c + l, code 64c + 32 + l the high one (c < 4,
 *   l < 32)
 *                 w[i] = d * s * code[i] - dmin * m, with s and m of group i/32 */
#include "quant/quant_int.h"

#include <math.h>

static void unpack(const void *src, uint8_t *code, float *scale, float *min, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t k = 0; k < n / 256; k++, b += 144, code += 256, scale += 8, min += 8) {
        sy_kscales(b, scale, min);
        for (int c = 0; c < 4; c++) sy_nibbles(b + 16 + 32 * c, code + 64 * c, code + 64 * c + 32, 32);
    }
}

extern const struct sy_quant sy_quant_q4_k;

static void dequant(const void *src, float *dst, int64_t n) { sy_affine_dequant(&sy_quant_q4_k, src, dst, n); }

struct fit {
    float x[256], d, dmin; /* d and dmin as stored */
    uint8_t half[4], s[8], m[8], code[256];
};

/* The multiple of unit nearest to want. */
static int multiple(float want, float unit)
{
    float ratio = unit > 0 ? want / unit : 0;
    return ratio < 0 ? 0 : ratio < 63 ? (int)(ratio + 0.5f) : 63;
}

/* Tries the multiples s and m for group g: keeps them and their codes when the squared error is less than
 * best. */
static double try_pair(struct fit *f, int g, int s, int m, double best)
{
    uint8_t code[32];
    if (s < 0 || s > 63 || m < 0 || m > 63) return best;
    double error = sy_fit_codes(f->x + 32 * g, 32, f->d * (float)s, -(f->dmin * (float)m), 0, 15, code);
    if (error >= best) return best;
    f->s[g] = (uint8_t)s;
    f->m[g] = (uint8_t)m;
    memcpy(f->code + 32 * g, code, sizeof code);
    return error;
}

/* The multiples of one group: the nearest to what the group alone would like, or one beside them, since
 * rounding the scale shifts the best minimum; or no scale at all and the mean, where d is too coarse for the
 * group. */
static double fit_group(struct fit *f, int g, float scale, float shift)
{
    double best = HUGE_VAL, sum = 0;
    int s0 = multiple(scale, f->d), m0 = multiple(shift, f->dmin);
    for (int s = s0 - 1; s <= s0 + 1; s++)
        for (int m = m0 - 1; m <= m0 + 1; m++) best = try_pair(f, g, s, m, best);
    for (int i = 0; i < 32; i++) sum += (double)f->x[32 * g + i];
    return try_pair(f, g, 0, multiple((float)(-sum / 32), f->dmin), best);
}

/* With multiples and codes fixed, x ~ d A - dmin B is linear in d and dmin, with A = s code and B = m: solves
 * the normal equations of the 256 elements. False: they do not determine both, or lead where no scale can be.
 * */
static bool solve(const struct fit *f, float *d, float *dmin)
{
    double aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;
    for (int i = 0; i < 256; i++) {
        double a = f->s[i / 32] * f->code[i], b = f->m[i / 32];
        aa += a * a;
        ab += a * b;
        bb += b * b;
        xa += (double)f->x[i] * a;
        xb += (double)f->x[i] * b;
    }
    double det = aa * bb - ab * ab;
    if (bb == 0 && aa > 0) { /* no group has a shift */
        *d = (float)(xa / aa);
        *dmin = f->dmin;
        return *d > 0;
    }
    if (det <= 1e-9 * aa * bb) return false;
    *d = (float)((xa * bb - xb * ab) / det);
    *dmin = (float)((xa * ab - xb * aa) / det);
    return *d > 0 && *dmin >= 0;
}

static void quantise_block(const float *src, uint8_t *b)
{
    struct fit f, best;
    float scale[8], shift[8], d = 0, dmin = 0;
    double best_error = 0;
    sy_fit_load(src, f.x, 256);
    for (int g = 0; g < 8; g++) {
        sy_fit_line(f.x + 32 * g, 32, 15, 0, &scale[g], &shift[g]);
        shift[g] = -shift[g];
        d = scale[g] > d ? scale[g] : d;
        dmin = shift[g] > dmin ? shift[g] : dmin;
    }
    d /= 63;
    dmin /= 63;
    for (int round = 0; round < 3; round++) {
        f.d = sy_fit_half_scale(d, f.half);
        f.dmin = sy_fit_half_scale(dmin, f.half + 2);
        double error = 0;
        for (int g = 0; g < 8; g++) error += fit_group(&f, g, scale[g], shift[g]);
        if (round > 0 && error >= best_error) break;
        best_error = error;
        best = f;
        if (!solve(&f, &d, &dmin)) break;
    }
    memcpy(b, best.half, 4);
    sy_pack_kscales(best.s, best.m, b + 4);
    for (int c = 0; c < 4; c++) {
        const uint8_t *low = best.code + 64 * c;
        sy_pack_nibbles(low, low + 32, b + 16 + 32 * c, 32);
    }
}

static void quantise(const float *src, void *dst, int64_t n)
{
    for (int64_t k = 0; k < n / 256; k++) quantise_block(src + 256 * k, (uint8_t *)dst + 144 * k);
}

const struct sy_quant sy_quant_q4_k = {
    .name = "q4_k",
    .gguf_type = 12,
    .block_len = 256,
    .block_bytes = 144,
    .dequant = dequant,
    .affine = {.bits = 4, .group = 32, .has_min = true},
    .unpack = unpack,
    .quantise = quantise,
};
