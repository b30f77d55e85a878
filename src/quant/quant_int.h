/* quant_int.h - what the format files share: little-endian loads from unaligned file bytes, the half
 * conversions as inlines (a row of f16 must cost a few cycles per element, not a call), nibble splitting, and
 * the search for error-minimising scales. Private to quant/.
 *
 * Non-finite scales in a file are not errors here: they give what the formula gives in IEEE arithmetic (inf *
 * 0 is NaN). The sign and payload of a NaN are unspecified, everything else is defined bit by bit. */
#pragma once
#include "quant/quant.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian and are read in place");

static inline uint16_t sy_u16_at(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint32_t sy_u32_at(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline float sy_f32_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline uint32_t sy_bits_of_f32(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* IEEE 754-2019 binary16 -> binary32. Moving exponent and fraction up by 13 bits leaves the exponent biased
 * by 15 instead of 127: normals add the difference (112), infinities and NaN add it twice. A subnormal m *
 * 2^-24 is made by reading its bits as (1 + m/1024) * 2^-14 and subtracting 2^-14, which is exact. */
static inline float sy_f16_widen(uint16_t h)
{
    /* Signed compares turned into masks: what compilers make vector code of, without SSE4. */
    int32_t em = (h & 0x7fff) << 13;
    uint32_t is_big = -(uint32_t)(em > 0x0f7fffff), is_tiny = -(uint32_t)(em < 0x00800000);
    uint32_t normal = (uint32_t)em + (112u << 23) + (is_big & 112u << 23);
    uint32_t tiny = sy_bits_of_f32(sy_f32_of_bits((uint32_t)em + (113u << 23)) - 0x1p-14f);
    return sy_f32_of_bits((uint32_t)(h & 0x8000) << 16 | (is_tiny & tiny) | (~is_tiny & normal));
}

/* binary32 -> binary16, round to nearest even. Normals: add half a unit of the last kept place (minus one
 * when that place is even) and cut; a carry into the exponent is the right answer. Results below 2^-14:
 * adding 0.5, whose last place is 2^-24 like that of a half subnormal, lets the adder round. From 65520 on:
 * infinity. */
static inline uint16_t sy_f16_narrow(float f)
{
    uint32_t bits = sy_bits_of_f32(f), sign = bits >> 16 & 0x8000, a = bits & 0x7fffffff;
    uint32_t normal = ((a + 0xfff + (a >> 13 & 1)) >> 13) - (112u << 10);
    uint32_t tiny = sy_bits_of_f32(sy_f32_of_bits(a < 0x38800000u ? a : 0) + 0.5f) - 0x3f000000u;
    uint32_t big = a > 0x7f800000u ? 0x7e00 | (a >> 13 & 0x3ff) : 0x7c00; /* NaN: quiet, top of the payload */
    return (uint16_t)(sign | (a < 0x38800000u ? tiny : a < 0x477ff000u ? normal : big));
}

/* bfloat16 is the upper half of binary32. */
static inline float sy_bf16_widen(uint16_t b) { return sy_f32_of_bits((uint32_t)b << 16); }
static inline uint16_t sy_bf16_narrow(float f)
{
    uint32_t bits = sy_bits_of_f32(f), up = bits + 0x7fff + (bits >> 16 & 1);
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000u ? bits >> 16 | 0x40 : up >> 16);
}

/* OCP FP8 (OFP8 1.0). e4m3 has no infinities and one NaN; moved into the places of a binary16 its value is 2^-8 of
 * what it stands for, subnormals too. e5m2 is the upper half of a binary16. */
static inline float sy_e4m3_widen(uint8_t b)
{
    if ((b & 0x7f) == 0x7f) return sy_f32_of_bits(0x7fc00000u);
    return sy_f16_widen((uint16_t)((b & 0x80) << 8 | (b & 0x7f) << 7)) * 0x1p8f;
}
static inline float sy_e5m2_widen(uint8_t b) { return sy_f16_widen((uint16_t)(b << 8)); }
/* Nearest, ties to even; beyond the largest finite number that one, NaN counts as 0: what quantise() promises. */
static inline uint8_t sy_e4m3_narrow(float f)
{
    float a = f == f ? (f < 0 ? -f : f) : 0;
    uint8_t sign = (uint8_t)(sy_bits_of_f32(f == f ? f : 0) >> 31 << 7);
    if (a >= 448) return sign | 0x7e;
    /* Below 2^-6 the step is 2^-9, which the adder rounds to; above, the exponent says it. */
    if (a < 0x1p-6f) return (uint8_t)(sign | (uint32_t)((a + 0x1.8p14f - 0x1.8p14f) * 0x1p9f));
    uint32_t bits = sy_bits_of_f32(a);
    return (uint8_t)(sign | (((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120u << 3)));
}
static inline uint8_t sy_e5m2_narrow(float f)
{
    float a = f == f ? (f < 0 ? -f : f) : 0;
    uint8_t sign = (uint8_t)(sy_bits_of_f32(f == f ? f : 0) >> 31 << 7);
    if (a >= 57344) return sign | 0x7b;
    if (a < 0x1p-14f) return (uint8_t)(sign | (uint32_t)((a + 0x1.8p7f - 0x1.8p7f) * 0x1p16f));
    uint32_t bits = sy_bits_of_f32(a);
    return (uint8_t)(sign | (((bits + 0xfffff + (bits >> 21 & 1)) >> 21) - (112u << 2)));
}
/* OCP Microscaling Formats 1.0: a power of two; 255 is NaN. 2^-127 is a subnormal. */
static inline float sy_e8m0_widen(uint8_t e)
{
    return sy_f32_of_bits(e == 255 ? 0x7fc00000u : e ? (uint32_t)e << 23 : 0x00400000u);
}
/* e2m1 (Microscaling Formats 1.0), twice its value. */
static const int8_t sy_e2m1_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static inline float sy_f16_at(const void *p) { return sy_f16_widen(sy_u16_at(p)); }

/* n bytes (a multiple of 8) of two 4-bit codes: low nibbles to lo[n], high ones to hi[n]. Eight at once: where a
 * compiler must suppose that q is among what is written, it makes no vectors of bytes. */
static inline void sy_nibbles(const uint8_t *q, uint8_t *lo, uint8_t *hi, int n)
{
    const uint64_t low = 0x0f0f0f0f0f0f0f0fu;
    for (int i = 0; i < n; i += 8) {
        uint64_t v, l, h;
        memcpy(&v, q + i, sizeof v);
        l = v & low;
        h = v >> 4 & low;
        memcpy(lo + i, &l, sizeof l);
        memcpy(hi + i, &h, sizeof h);
    }
}

/* Bit i of `high` becomes bit 4 of code[i], i < 32. */
static inline void sy_fifth_bits(uint32_t high, uint8_t *code)
{
    for (int i = 0; i < 32; i++) code[i] |= (uint8_t)((high >> i & 1) << 4);
}
/* 64 bytes of four 2-bit numbers: number 128c + 32j + l is in bits 2j..2j+1 of byte 32c + l. */
static inline void sy_pairs(const uint8_t *q, uint8_t *code)
{
    for (int c = 0; c < 2; c++)
        for (int j = 0; j < 4; j++)
            for (int l = 0; l < 32; l++) code[128 * c + 32 * j + l] = q[32 * c + l] >> (2 * j) & 3;
}
/* The first 16 bytes of q4_k and q5_k: d, dmin (binary16), then eight 6-bit scales s and eight 6-bit shifts m
 * in 12 bytes p. For g < 4: s[g] is the low six bits of p[g], m[g] those of p[4+g]. For g >= 4, p[4+g] has
 * the low four bits of both (s in the low nibble), and their high two bits are the top bits of p[g-4] (s) and
 * p[g] (m). scale[g] = d * s[g]; min[g] = -(dmin * m[g]). Both products are exact. */
static inline void sy_kscales(const uint8_t *b, float *scale, float *min)
{
    const uint8_t *p = b + 4;
    float d = sy_f16_at(b), dmin = sy_f16_at(b + 2);
    for (int g = 0; g < 4; g++) {
        scale[g] = d * (float)(p[g] & 63);
        min[g] = -(dmin * (float)(p[4 + g] & 63));
        scale[4 + g] = d * (float)((p[8 + g] & 15) | p[g] >> 6 << 4);
        min[4 + g] = -(dmin * (float)(p[8 + g] >> 4 | p[4 + g] >> 6 << 4));
    }
}

/* A point of a grid: n numbers of `bits` bits that name sizes, with a sign for each, as codes around 128. */
static inline void sy_grid_point(uint32_t point, int bits, const uint8_t *size, int n, uint32_t signs, uint8_t *code)
{
    for (int i = 0; i < n; i++) {
        int v = size[point >> (bits * i) & ((1u << bits) - 1)];
        code[i] = (uint8_t)(128 + (signs >> i & 1 ? -v : v));
    }
}
/* Seven signs; the eighth makes the number of minuses even. */
static inline uint32_t sy_even_signs(uint32_t seven)
{
    seven &= 127;
    return seven | (uint32_t)__builtin_parity(seven) << 7;
}
/* dequant of an affine format from its unpack: scale * (code - zero) [+ min], each step rounded to float32.
 * */
void sy_affine_dequant(const struct sy_quant *, const void *src, float *dst, int64_t n);

/* ---- quantising: least squares over the scales a block may have
 * ------------------------------------------------
 *
 * For given codes the best scale is a quotient of sums; for a given scale the best codes are the nearest
 * ones. What is left is which codes to start from: a few ways to map the extreme value near the ends of the
 * code range are tried and the one with the smallest squared error wins. Sums are doubles, so any block that
 * sy_fit_load() made works. n is a multiple of 4 and at most 32 throughout. */

/* Copies n values in a form the search can take: NaN becomes 0, magnitudes stop at 2^40, beyond every format
 * here. Any n. */
void sy_fit_load(const float *src, float *x, int n);
/* d minimising the sum of (x - d q)^2 over integer q in [lo, hi], lo < 0 < hi. 0 for a block of zeros. */
float sy_fit_scale(const float *x, int n, int lo, int hi);
/* d >= 0 and m minimising the sum of (x - d q - m)^2 over integer q in [0, hi]; m_max bounds m from above. */
void sy_fit_line(const float *x, int n, int hi, float m_max, float *d, float *m);
/* Nearest codes for d and m as stored, code = q - lo with q in [lo, hi]; returns the squared error. */
double sy_fit_codes(const float *x, int n, float d, float m, int lo, int hi, uint8_t *code);
/* Stores the nearest finite binary16; returns its value. The second does not let a scale vanish: codes that
 * are multiples of the smallest binary16 beat a block of zeros. */
float sy_fit_half(float v, void *stored);
float sy_fit_half_scale(float v, void *stored);

/* The inverses of the unpacking helpers above. */
static inline void sy_pack_nibbles(const uint8_t *lo, const uint8_t *hi, uint8_t *q, int n)
{
    for (int i = 0; i < n; i++) q[i] = (uint8_t)((lo[i] & 15) | hi[i] << 4);
}
static inline uint32_t sy_pack_fifth_bits(const uint8_t *code)
{
    uint32_t high = 0;
    for (int i = 0; i < 32; i++) high |= (uint32_t)(code[i] >> 4 & 1) << i;
    return high;
}
static inline void sy_pack_kscales(const uint8_t *s, const uint8_t *m, uint8_t *p)
{
    for (int g = 0; g < 4; g++) {
        p[g] = (uint8_t)(s[g] | s[4 + g] >> 4 << 6);
        p[4 + g] = (uint8_t)(m[g] | m[4 + g] >> 4 << 6);
        p[8 + g] = (uint8_t)((s[4 + g] & 15) | (m[4 + g] & 15) << 4);
    }
}
