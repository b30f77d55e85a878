/* Storage formats: golden vectors of the reference implementation, agreement of unpack and dequant,
 * conversions of half and bfloat16 over all their values, quantising within error bounds. */
#include "base/rng.h"
#include "quant/quant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t bits_of(float f)
{
    uint32_t b;
    memcpy(&b, &f, sizeof b);
    return b;
}

static float of_bits(uint32_t b)
{
    float f;
    memcpy(&f, &b, sizeof f);
    return f;
}

static bool same(float a, float b) { return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b)); }

static void *slurp(const char *name, const char *ext, size_t *n)
{
    char path[256];
    snprintf(path, sizeof path, "test/golden/quantfmt/%s.%s", name, ext);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("cannot open '%s' (run the tests from the project's root)", path);
    unsigned char *at = malloc(1 << 16);
    assert_non_null(at);
    *n = fread(at, 1, 1 << 16, f);
    fclose(f);
    return at;
}

/* ---- golden vectors ------------------------------------------------------------------------------------------ */

static void test_golden(void **state)
{
    (void)state;
    for (const struct sy_quant *const *it = sy_quants; *it; it++) {
        const struct sy_quant *q = *it;
        size_t n_raw, n_want;
        unsigned char *raw = slurp(q->name, "raw", &n_raw);
        float *want = slurp(q->name, "f32", &n_want);
        int64_t n = (int64_t)n_raw / q->block_bytes * q->block_len;
        assert_int_equal(n_raw, sy_quant_row_bytes(q, n));
        assert_int_equal(n_want, (size_t)n * sizeof(float));
        assert_true(n >= 2048);
        float *got = malloc((size_t)n * sizeof *got);
        unsigned char *odd = malloc(n_raw + 1);
        assert_true(got && odd);
        memcpy(odd + 1, raw, n_raw); /* files do not align blocks */
        q->dequant(odd + 1, got, n);
        for (int64_t i = 0; i < n; i++)
            if (!same(got[i], want[i]))
                fail_msg("%s[%d]: %08x, expected %08x", q->name, (int)i, bits_of(got[i]), bits_of(want[i]));
        /* One block at a time, in any order, gives the same: nothing is carried over. */
        float one[256];
        for (int64_t k = n / q->block_len - 1; k >= 0; k--) {
            q->dequant(raw + k * q->block_bytes, one, q->block_len);
            for (int i = 0; i < q->block_len; i++) assert_true(same(one[i], want[k * q->block_len + i]));
        }
        free(odd);
        free(got);
        free(want);
        free(raw);
    }
}

/* ---- unpack -------------------------------------------------------------------------------------------------- */

static bool in_codebook(const int8_t *book, int v)
{
    for (int i = 0; i < 16; i++)
        if (book[i] == v) return true;
    return false;
}

static void check_unpack(const struct sy_quant *q, const unsigned char *raw, int64_t n)
{
    const struct sy_affine *a = &q->affine;
    float *w = malloc((size_t)n * sizeof *w), *scale = malloc((size_t)n * sizeof *scale), *min = NULL;
    uint8_t *code = malloc((size_t)n);
    if (a->has_min) min = malloc((size_t)n * sizeof *min);
    assert_true(w && scale && code);
    q->dequant(raw, w, n);
    q->unpack(raw, code, scale, min, n);
    for (int64_t i = 0; i < n; i++) {
        int64_t g = i / a->group;
        int c = code[i] - a->zero;
        assert_true(code[i] >> a->bits == 0);
        if (a->codebook) assert_true(in_codebook(a->codebook, c));
        float v = scale[g] * (float)c;
        if (min) v += min[g];
        if (!same(v, w[i])) fail_msg("%s: element %d: unpack gives %a, dequant %a", q->name, (int)i, v, w[i]);
    }
    free(min);
    free(code);
    free(scale);
    free(w);
}

static void test_unpack(void **state)
{
    (void)state;
    for (const struct sy_quant *const *it = sy_quants; *it; it++) {
        const struct sy_quant *q = *it;
        if (q->affine.bits == 0) {
            assert_null(q->unpack);
            continue;
        }
        assert_non_null(q->unpack);
        size_t n_raw;
        unsigned char *raw = slurp(q->name, "raw", &n_raw);
        check_unpack(q, raw, (int64_t)n_raw / q->block_bytes * q->block_len);
        free(raw);
        /* Other bytes than the golden ones, lengths of 1 to 11 blocks, odd addresses. */
        unsigned char *b = malloc(12 * 256);
        assert_non_null(b);
        for (int blocks = 1; blocks <= 11; blocks++) {
            for (int i = 0; i < blocks * q->block_bytes; i++) b[blocks + i] = (uint8_t)sy_rng_u64(blocks, i);
            check_unpack(q, b + blocks, (int64_t)blocks * q->block_len);
        }
        free(b);
    }
}

/* ---- the table ----------------------------------------------------------------------------------------------- */

static void test_table(void **state)
{
    (void)state;
    static const struct {
        const char *name, *st;
        int type, len, bytes, bits, group, zero, has_min;
    } want[] = {
        {"f32", "F32", 0, 1, 4, 0, 0, 0, 0},        {"f16", "F16", 1, 1, 2, 0, 0, 0, 0},
        {"bf16", "BF16", 30, 1, 2, 0, 0, 0, 0},     {"q4_0", NULL, 2, 32, 18, 4, 32, 8, 0},
        {"q4_1", NULL, 3, 32, 20, 4, 32, 0, 1},     {"q5_0", NULL, 6, 32, 22, 5, 32, 16, 0},
        {"q5_1", NULL, 7, 32, 24, 5, 32, 0, 1},     {"q8_0", NULL, 8, 32, 34, 8, 32, 128, 0},
        {"q2_k", NULL, 10, 256, 84, 2, 16, 0, 1},   {"q3_k", NULL, 11, 256, 110, 3, 16, 4, 0},
        {"q4_k", NULL, 12, 256, 144, 4, 32, 0, 1},  {"q5_k", NULL, 13, 256, 176, 5, 32, 0, 1},
        {"q6_k", NULL, 14, 256, 210, 6, 16, 32, 0}, {"iq4_nl", NULL, 20, 32, 18, 8, 32, 128, 0},
    };
    for (size_t i = 0; i < SY_COUNT(want); i++) {
        const struct sy_quant *q = sy_quant_by_name(want[i].name);
        assert_non_null(q);
        assert_ptr_equal(q, sy_quant_by_gguf(want[i].type));
        if (want[i].st) assert_ptr_equal(q, sy_quant_by_st(want[i].st));
        else assert_null(q->st_dtype);
        assert_int_equal(q->block_len, want[i].len);
        assert_int_equal(q->block_bytes, want[i].bytes);
        assert_int_equal(q->affine.bits, want[i].bits);
        assert_int_equal(q->affine.group, want[i].group);
        assert_int_equal(q->affine.zero, want[i].zero);
        assert_int_equal(q->affine.has_min, want[i].has_min);
        assert_int_equal(sy_quant_row_bytes(q, 768), 768 / want[i].len * want[i].bytes);
    }
    assert_ptr_equal(sy_quant_by_name("Q4_K"), sy_quant_by_name("q4_k"));
    assert_null(sy_quant_by_name("q4"));
    assert_null(sy_quant_by_name(""));
    assert_null(sy_quant_by_st("I8"));
    assert_null(sy_quant_by_gguf(-1));
    assert_null(sy_quant_by_gguf(4)); /* a type number that was withdrawn */
    assert_null(sy_quant_by_gguf(1000));
    for (const struct sy_quant *const *a = sy_quants; *a; a++)
        for (const struct sy_quant *const *b = a + 1; *b; b++) {
            assert_true(strcmp((*a)->name, (*b)->name) != 0);
            assert_true((*a)->gguf_type < 0 || (*a)->gguf_type != (*b)->gguf_type);
        }
    for (const struct sy_quant *const *a = sy_quants; *a; a++)
        for (int i = 1; (*a)->affine.codebook && i < 16; i++)
            assert_true((*a)->affine.codebook[i - 1] < (*a)->affine.codebook[i]);
}

/* ---- half and bfloat16 --------------------------------------------------------------------------------------- */

/* The plain meaning of the bits: sign, exponent, fraction of the given widths. NaN for NaN. */
static double meaning(uint32_t bits, int n_exp, int n_frac)
{
    uint32_t frac = bits & ((1u << n_frac) - 1), exp = bits >> n_frac & ((1u << n_exp) - 1);
    int bias = (1 << (n_exp - 1)) - 1;
    double size;
    if (exp == (1u << n_exp) - 1) size = frac ? NAN : INFINITY;
    else if (exp == 0) size = ldexp(frac, 1 - bias - n_frac);
    else size = ldexp((1u << n_frac) + frac, (int)exp - bias - n_frac);
    return bits >> (n_exp + n_frac) & 1 ? -size : size;
}

/* Nearest even by definition: the two neighbours are found by counting quanta of the exponent. */
static uint32_t slow_narrow(float f, int n_exp, int n_frac)
{
    uint32_t sign = (uint32_t)(signbit(f) != 0) << (n_exp + n_frac), inf = ((1u << n_exp) - 1) << n_frac;
    int bias = (1 << (n_exp - 1)) - 1, e;
    double a = fabs((double)f);
    if (isinf(f)) return sign | inf;
    frexp(a, &e); /* a in [2^(e-1), 2^e) */
    e -= 1;
    if (a == 0 || e < 1 - bias) e = 1 - bias;
    double quanta = ldexp(a, n_frac - e), whole = floor(quanta), rest = quanta - whole;
    uint64_t count = (uint64_t)whole;
    if (rest > 0.5 || (rest == 0.5 && (count & 1))) count++;
    /* count in [2^n_frac, 2^(n_frac+1)] for normals; the sum carries into the exponent by itself. */
    uint64_t code = ((uint64_t)(e + bias - 1) << n_frac) + count;
    return sign | (uint32_t)(code > inf ? inf : code);
}

static void check_f16(float f)
{
    uint32_t want = slow_narrow(f, 5, 10), got = sy_f32_to_f16(f);
    if (want != got) fail_msg("%a to half: %04x, expected %04x", (double)f, got, want);
}

static void check_bf16(float f)
{
    uint32_t want = slow_narrow(f, 8, 7), got = sy_f32_to_bf16(f);
    if (want != got) fail_msg("%a to bfloat16: %04x, expected %04x", (double)f, got, want);
}

static void test_half_all(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = sy_f16_to_f32((uint16_t)h), b = sy_bf16_to_f32((uint16_t)h);
        double want_f = meaning(h, 5, 10), want_b = meaning(h, 8, 7);
        if (isnan(want_f)) {
            /* Sign and payload survive the way up; the way down makes it quiet. */
            assert_int_equal(bits_of(f), (h & 0x8000) << 16 | 0x7f800000 | (h & 0x3ff) << 13);
            assert_int_equal(sy_f32_to_f16(f), h | 0x200);
        } else {
            assert_true((double)f == want_f && !signbit(f) == !signbit(want_f));
            assert_int_equal(sy_f32_to_f16(f), h);
        }
        assert_int_equal(bits_of(b), h << 16);
        if (isnan(want_b)) {
            assert_int_equal(sy_f32_to_bf16(b), h | 0x40);
        } else {
            assert_true((double)b == want_b && !signbit(b) == !signbit(want_b));
            assert_int_equal(sy_f32_to_bf16(b), h);
        }
    }
}

/* Around every half and bfloat16: itself, the midpoint to the next and both neighbours of each, both signs.
 * */
static void test_narrow_ties(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 2 * 0x7c00; h++) {
        uint32_t sign = h & 1 ? 0x80000000u : 0, code = h / 2;
        double lo = meaning(code, 5, 10), hi = code == 0x7bff ? 65536 : meaning(code + 1, 5, 10);
        uint32_t at = bits_of((float)lo), mid = bits_of((float)((lo + hi) / 2));
        for (uint32_t k = 0; k < 3; k++) {
            check_f16(of_bits((at ? at - 1 + k : k) | sign));
            check_f16(of_bits((mid - 1 + k) | sign));
        }
        /* Ties go to even. */
        assert_int_equal(sy_f32_to_f16(of_bits(mid | sign)), (sign >> 16 | code) + (code & 1));
    }
    for (uint32_t h = 0; h < 65536; h++) {
        if ((h & 0x7fff) >= 0x7f80) continue;
        for (uint32_t k = 0; k < 3; k++) {
            check_bf16(of_bits((h << 16) + 0x7fff + k));
            check_bf16(of_bits((h << 16) + k));
        }
    }
}

static void test_narrow_sweep(void **state)
{
    (void)state;
    for (uint64_t b = 0; b < (uint64_t)1 << 32; b += 4099) {
        float f = of_bits((uint32_t)b);
        if (isnan(f)) {
            uint32_t h = sy_f32_to_f16(f), t = sy_f32_to_bf16(f);
            assert_true((h & 0x7e00) == 0x7e00 && h >> 15 == (uint32_t)b >> 31);
            assert_true((t & 0x7fc0) == 0x7fc0 && t >> 15 == (uint32_t)b >> 31);
            continue;
        }
        check_f16(f);
        check_bf16(f);
    }
    static const float corner[] = {
        0,         -0.0f,         65504,    65519.996f, 65520,           -65520,   65536,
        0x1p-14f,  0x1.ffcp-15f,  0x1p-24f, 0x1p-25f,   0x1.000002p-25f, 0x1p-26f, 0x1p-126f,
        0x1p-149f, 3.4028235e38f, 3.39e38f, INFINITY,   -INFINITY,
    };
    for (size_t i = 0; i < SY_COUNT(corner); i++) {
        check_f16(corner[i]);
        check_bf16(corner[i]);
    }
    /* A NaN whose payload is in the low bits only must not become an infinity. */
    assert_int_equal(sy_f32_to_f16(of_bits(0x7f800001)), 0x7e00);
    assert_int_equal(sy_f32_to_bf16(of_bits(0xff800001)), 0xffc0);
}

/* ---- quantising ---------------------------------------------------------------------------------------------- */

enum { N = 64 * 256 };

static float gauss(uint64_t seed, uint64_t i)
{
    double u = sy_rng_unit(seed, 2 * i), v = sy_rng_unit(seed, 2 * i + 1);
    return (float)(sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v));
}

/* Root mean square of the error of storing x, relative to x. */
static double loss(const struct sy_quant *q, const float *x, int64_t n, float *y)
{
    unsigned char *raw = malloc((size_t)sy_quant_row_bytes(q, n) + 1);
    assert_non_null(raw);
    q->quantise(x, raw + 1, n);
    q->dequant(raw + 1, y, n);
    free(raw);
    double off = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
        assert_true(isfinite(y[i]));
        off += ((double)y[i] - x[i]) * ((double)y[i] - x[i]);
        all += (double)x[i] * x[i];
    }
    return all > 0 ? sqrt(off / all) : off;
}

/* Expected losses of Gaussian weights. The bound of an integer format is what plain rounding with the extreme
 * value at the end of the code range gives on this data (q4_0: 8.6 %, q4_1: 7.8 %, q5_0: 4.3 %, q5_1: 3.8 %,
 * q8_0: 0.54 %): the search must do better. */
static const struct {
    const char *name;
    double gauss, laplace, again;
} bound[] = {
    {"f32", 0, 0, 0},
    {"f16", 0.0003, 0.0003, 0},
    {"bf16", 0.002, 0.002, 0},
    {"q8_0", 0.0051, 0.0065, 0.0005},
    {"q4_0", 0.083, 0.105, 1e-3},
    {"q4_1", 0.072, 0.085, 1e-3},
    {"q5_0", 0.041, 0.0525, 1e-3},
    {"q5_1", 0.035, 0.041, 1e-3},
    {"q4_k", 0.072, 0.085, 5e-3},
    {"q6_k", 0.0175, 0.0215, 5e-3},
    {"mxfp4", 0.122, 0.125, 1e-3},
};

static void expect_loss(const struct sy_quant *q, const char *what, const float *x, float *y, double most)
{
    double got = loss(q, x, N, y);
    if (got > most) fail_msg("%s: loss %g of %s weights, expected at most %g", q->name, got, what, most);
}

static void test_quantise_loss(void **state)
{
    (void)state;
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y), *z = malloc(N * sizeof *z);
    assert_true(x && y && z);
    for (size_t k = 0; k < SY_COUNT(bound); k++) {
        const struct sy_quant *q = sy_quant_by_name(bound[k].name);
        assert_non_null(q->quantise);
        for (int i = 0; i < N; i++) x[i] = 0.02f * gauss(7, (uint64_t)i);
        expect_loss(q, "Gaussian", x, y, bound[k].gauss);
        expect_loss(q, "already quantised", y, z, bound[k].again);
        for (int i = 0; i < N; i++) x[i] = (float)log(1 - sy_rng_unit(9, (uint64_t)i)) * (i & 1 ? -3 : 3);
        expect_loss(q, "Laplace", x, y, bound[k].laplace);
    }
    free(z);
    free(y);
    free(x);
}

static void test_quantise_odd(void **state)
{
    (void)state;
    float x[512], y[512];
    for (const struct sy_quant *const *it = sy_quants; *it; it++) {
        const struct sy_quant *q = *it;
        if (!q->quantise || strcmp(q->name, "mxfp4") == 0) continue; /* its scales are powers of two: see below */
        unsigned char raw[2048];
        memset(raw, 0xa5, sizeof raw);
        q->quantise(x, raw, 0);
        assert_int_equal(raw[0], 0xa5);
        memset(x, 0, sizeof x);
        assert_true(loss(q, x, 512, y) == 0);
        for (int i = 0; i < 512; i++) x[i] = i == 77 ? -3.0f : 0;
        assert_true(loss(q, x, 512, y) < 0.01);
        for (int i = 0; i < 512; i++) assert_true(i == 77 ? fabsf(y[i] + 3) < 0.03f : fabsf(y[i]) < 0.01f);
        for (int i = 0; i < 512; i++) x[i] = 0.3f;
        assert_true(loss(q, x, 512, y) < 0.005);
        for (int i = 0; i < 512; i++) x[i] = -123.25f;
        assert_true(loss(q, x, 512, y) < 0.005);
        /* Magnitudes where the half scale itself is a subnormal: coarse, but not nothing, and never worse
         * than 0. */
        for (float size = 1e-5f; size > 1e-12f; size /= 3) {
            for (int i = 0; i < 512; i++) x[i] = size * gauss(3, (uint64_t)i);
            assert_true(loss(q, x, 512, y) <= (size > 1e-6f ? 0.12 : 1.0));
        }
        /* Groups of very different sizes inside one block. */
        static const float size_of[3] = {1e-4f, 1, 50};
        for (int i = 0; i < 512; i++) x[i] = gauss(4, (uint64_t)i) * size_of[i / 32 % 3];
        assert_true(loss(q, x, 512, y) < 0.12);
    }
}

/* No value is farther from its code than half a step of e2m1 under the best power of two: 5, from 4 or 6, a fifth. */
static void test_quantise_mxfp4(void **state)
{
    (void)state;
    const struct sy_quant *q = sy_quant_by_name("mxfp4");
    float x[512], y[512];
    memset(x, 0, sizeof x);
    assert_true(loss(q, x, 512, y) == 0);
    for (float v = 1e-30f; v < 1e12f; v *= 3.7f) {
        for (int i = 0; i < 512; i++) x[i] = i & 1 ? v : -v;
        assert_true(loss(q, x, 512, y) <= 0.2001);
    }
    /* Every element exactly, where one power fits all. */
    static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int i = 0; i < 512; i++) x[i] = e2m1[i % 8] * (i & 8 ? -0.125f : 0.125f);
    assert_true(loss(q, x, 512, y) == 0);
}

/* Values that no scale can hold: saturated, never infinite or NaN; float formats say infinity where it is
 * one. */
static void test_quantise_wild(void **state)
{
    (void)state;
    for (const struct sy_quant *const *it = sy_quants; *it; it++) {
        const struct sy_quant *q = *it;
        if (!q->quantise) continue;
        float x[512], y[512];
        unsigned char raw[2048];
        for (int round = 0; round < 40; round++) {
            for (int i = 0; i < 512; i++) {
                uint64_t r = sy_rng_u64(11, (uint64_t)(round * 512 + i));
                x[i] = round < 20 ? of_bits((uint32_t)r) : gauss(12, r >> 40) * 1e30f;
                if (round >= 30 && r % 7 == 0) x[i] = r & 8 ? NAN : r & 16 ? INFINITY : -INFINITY;
            }
            q->quantise(x, raw, 512);
            q->dequant(raw, y, 512);
            for (int i = 0; i < 512; i++) {
                if (q->affine.bits) assert_true(isfinite(y[i]));
                else if (isnan(x[i])) assert_true(isnan(y[i]));
                else if (isinf(x[i])) assert_true(x[i] == y[i]);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),        cmocka_unit_test(test_unpack),
        cmocka_unit_test(test_table),         cmocka_unit_test(test_half_all),
        cmocka_unit_test(test_narrow_ties),   cmocka_unit_test(test_narrow_sweep),
        cmocka_unit_test(test_quantise_loss), cmocka_unit_test(test_quantise_odd),
        cmocka_unit_test(test_quantise_wild), cmocka_unit_test(test_quantise_mxfp4),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
