/* Vector kernels of every instruction set of this machine: against double precision over odd lengths and special
 * values, without touching what lies beyond a row, and the same bits for a row alone as among others. */
#include "backend/cpu/kernel.h"
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 3, D_MAX = 1100, LD = D_MAX + 5, N = ROWS * LD };

static const int64_t lengths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 576, 1023, 1100};
static const float specials[] = {0.0f,    -0.0f,   1e-30f, -1e-30f, 1e-42f, 87.0f,  -87.5f,   88.5f,    -88.9f,
                                 -103.0f, -105.0f, 200.0f, -200.0f, 3e38f,  -3e38f, INFINITY, -INFINITY};

static float a[N], b[N], y[N], z[N];

static void fill(float *x, uint64_t seed, float size)
{
    for (int i = 0; i < N; i++) x[i] = (float)(2 * sy_rng_unit(seed, (uint64_t)i) - 1) * size;
}

static void guard(float *x)
{
    for (int i = 0; i < N; i++) x[i] = 12345;
}

/* Nothing was written outside [ROWS, d] */
static void check_guard(const float *x, int64_t d)
{
    for (int64_t i = 0; i < N; i++)
        if (i % LD >= d) assert_true(x[i] == 12345);
}

static void close_to(const char *isa, const char *what, float got, double want, double error)
{
    if (isnan(want)                          ? isnan(got)
        : isinf(want) || fabs(want) > 3.4e38 ? got == (float)want
                                             : fabs(got - want) <= error)
        return;
    fail_msg("%s: %s: %.9g, expected %.9g +- %.2g", isa, what, (double)got, want, error);
}

static void each_isa(void (*check)(const char *isa, const struct sy_kernels_vec *))
{
    for (const struct sy_kernel_entry *e = sy_kernel_entries; e->family; e++) {
        struct sy_kernels kern;
        if (strcmp(e->family, "vec") != 0) continue;
        sy_status st = sy_kernels_pick(e->isa, &kern, NULL);
        if (st == SY_OK) check(e->isa, &kern.vec);
        else assert_int_equal(st, SY_ENOSUP);
    }
}

static void norms(const char *isa, const struct sy_kernels_vec *vec)
{
    for (size_t l = 0; l < SY_COUNT(lengths); l++) {
        int64_t d = lengths[l], group = d * 3 <= D_MAX ? 3 : 1;
        for (int with_w = 0; with_w < 2; with_w++) {
            fill(a, 1, 3);
            fill(b, 2, 2);
            guard(y);
            vec->norm(a, LD, with_w ? b : NULL, 1e-6f, ROWS, group, d, y, LD);
            check_guard(y, group * d);
            for (int64_t r = 0; r < ROWS * group; r++) {
                const float *x = a + r / group * LD + r % group * d, *out = y + (x - a);
                double ss = 0;
                for (int64_t i = 0; i < d; i++) ss += (double)x[i] * x[i];
                double c = 1 / sqrt(ss / (double)d + 1e-6f);
                for (int64_t i = 0; i < d; i++) {
                    double want = x[i] * c * (with_w ? b[i] : 1);
                    close_to(isa, "norm", out[i], want, 5e-7 * fabs(want));
                }
                vec->norm(x, 1, with_w ? b : NULL, 1e-6f, 1, 1, d, z, 1);
                assert_memory_equal(z, out, (size_t)d * sizeof *z);
            }
            vec->norm(a, LD, with_w ? b : NULL, 1e-6f, ROWS, group, d, a, LD);
            for (int64_t r = 0; r < ROWS; r++)
                assert_memory_equal(a + r * LD, y + r * LD, (size_t)(group * d) * sizeof *a);
        }
    }
    float big[4] = {1e-20f, 1e-20f, -1e-20f, 0}, nan3[3] = {1, NAN, 2}, zero[5] = {0};
    vec->norm(big, 4, NULL, 1e-6f, 1, 1, 4, y, 4);
    close_to(isa, "norm of tiny numbers", y[0], 1e-17, 1e-23);
    vec->norm(nan3, 3, NULL, 1e-6f, 1, 1, 3, y, 3);
    for (int i = 0; i < 3; i++) assert_true(isnan(y[i]));
    vec->norm(zero, 5, NULL, 1e-6f, 1, 1, 5, y, 5);
    for (int i = 0; i < 5; i++) assert_true(y[i] == 0);
}

static void test_norm(void **state)
{
    (void)state;
    each_isa(norms);
}

static void ropes(const char *isa, const struct sy_kernels_vec *vec)
{
    static const int32_t pos[ROWS] = {0, 77, 131071};
    static const struct {
        int32_t d_head, d_rot, n_head;
    } dims[] = {{2, 2, 1},   {64, 64, 9},  {80, 20, 3}, {33, 22, 5}, {128, 128, 4},
                {96, 70, 2}, {256, 64, 3}, {7, 6, 2},   {9, 0, 3}};
    for (size_t k = 0; k < 2 * SY_COUNT(dims); k++) {
        struct sy_rope_dim dim = {.d_head = dims[k / 2].d_head, .d_rot = dims[k / 2].d_rot, .interleaved = k & 1};
        int64_t half = dim.d_rot / 2, n_head = dims[k / 2].n_head, d = n_head * dim.d_head;
        float freq[128], cs[ROWS * 256];
        for (int64_t i = 0; i < half; i++) freq[i] = (float)pow(1e4, -2.0 * (double)i / dim.d_rot);
        if (half) vec->rope_table(freq, half, 1.25f, pos, ROWS, cs);
        for (int64_t i = 0; i < ROWS * half; i++) {
            float angle = (float)pos[i / half] * freq[i % half];
            close_to(isa, "cos", cs[2 * i], 1.25 * cos(angle), 2e-7);
            close_to(isa, "sin", cs[2 * i + 1], 1.25 * sin(angle), 2e-7);
        }
        fill(a, 5, 2);
        guard(y);
        vec->rope(a, LD, ROWS, n_head, &dim, cs, y, LD);
        check_guard(y, d);
        for (int64_t i = 0; i < ROWS * d; i++) {
            const float *x = a + i / d * LD + i % d, *head = x - i % d % dim.d_head;
            int64_t e = i % d % dim.d_head;
            float got = y[x - a];
            if (e >= 2 * half) {
                assert_true(got == *x);
                continue;
            }
            int64_t pair = dim.interleaved ? e / 2 : e % half;
            bool second = dim.interleaved ? e % 2 : e >= half;
            double c = cs[2 * (i / d * half + pair)], s = cs[2 * (i / d * half + pair) + 1];
            double p = head[dim.interleaved ? 2 * pair : pair],
                   q = head[dim.interleaved ? 2 * pair + 1 : pair + half];
            close_to(isa, "rope", got, second ? q * c + p * s : p * c - q * s, 6e-7);
        }
        for (int64_t r = 0; r < ROWS; r++) {
            vec->rope(a + r * LD, 1, 1, n_head, &dim, cs + r * half * 2, z, 1);
            assert_memory_equal(z, y + r * LD, (size_t)d * sizeof *z);
        }
        vec->rope(a, LD, ROWS, n_head, &dim, cs, a, LD);
        for (int64_t r = 0; r < ROWS; r++) assert_memory_equal(a + r * LD, y + r * LD, (size_t)d * sizeof *a);
    }
}

static void test_rope(void **state)
{
    (void)state;
    each_isa(ropes);
}

static double exact(enum sy_fn fn, double x)
{
    if (isinf(x) && fn == SY_TANH) return x > 0 ? 1 : -1;
    if (isinf(x)) return x > 0 ? (fn == SY_SIGMOID ? 1 : x) : 0;
    switch (fn) {
    case SY_SILU: return x / (1 + exp(-x));
    case SY_GELU: return x * 0.5 * erfc(-x * 0.70710678118654752440);
    case SY_GELU_TANH: return x / (1 + exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case SY_SIGMOID: return 1 / (1 + exp(-x));
    case SY_GELU_QUICK: return x / (1 + exp(-1.702f * x));
    case SY_RELU2: return x > 0 ? x * x : 0;
    case SY_TANH: return tanh(x);
    case SY_SOFTPLUS: return x > 20 ? x : log1p(exp(x));
    }
    return NAN;
}

static void acts(const char *isa, const struct sy_kernels_vec *vec)
{
    static const char *const names[] = {"silu",       "gelu",  "gelu_tanh", "sigmoid",
                                        "gelu_quick", "relu2", "tanh",      "softplus"};
    static const bool rough[] = {
        [SY_GELU] = true, [SY_GELU_TANH] = true, [SY_GELU_QUICK] = true, [SY_SOFTPLUS] = true};
    for (int fn = SY_SILU; fn <= SY_SOFTPLUS; fn++) {
        double worst = 0, tiny = rough[fn] ? 1e-2 : 1e-30; /* beside which an error counts */
        for (size_t l = 0; l < SY_COUNT(lengths) + 20; l++) {
            bool many = l >= SY_COUNT(lengths);
            int64_t d = many ? D_MAX : lengths[l];
            fill(a, 10 + l, l % 3 == 0 ? 100 : l % 3 == 1 ? 8 : 1);
            for (size_t i = 0; !many && i < SY_COUNT(specials); i++)
                if ((int64_t)i < d) a[LD + i] = specials[(i + l) % SY_COUNT(specials)];
            fill(b, 11, 2);
            guard(y);
            vec->act((enum sy_fn)fn, a, LD, ROWS, d, y, LD);
            check_guard(y, d);
            for (int64_t i = 0; i < ROWS * d; i++) {
                int64_t at = i / d * LD + i % d;
                double want = exact((enum sy_fn)fn, a[at]);
                double rel = fabs(y[at] - want) / (fabs(want) + tiny);
                if (rel > worst) worst = rel;
                close_to(isa, names[fn], y[at], want, 6e-7 * (fabs(want) + tiny));
            }
            guard(z);
            vec->glu((enum sy_fn)fn, a, LD, b, LD, ROWS, d, z, LD);
            check_guard(z, d);
            for (int64_t i = 0; i < ROWS * d; i++) {
                int64_t at = i / d * LD + i % d;
                assert_true(z[at] == y[at] * b[at]);
            }
            vec->glu((enum sy_fn)fn, a + LD, 1, b + LD, 1, 1, d, b + LD, 1);
            assert_memory_equal(b + LD, z + LD, (size_t)d * sizeof *b);
        }
        print_message("%s: %s: error %.2e\n", isa, names[fn], worst);
        float nan3[3] = {1, NAN, -1};
        vec->act((enum sy_fn)fn, nan3, 3, 1, 3, y, 3);
        assert_true(!isnan(y[0]) && isnan(y[1]) && !isnan(y[2]));
    }
}

static void test_act(void **state)
{
    (void)state;
    each_isa(acts);
}

static void simple(const char *isa, const struct sy_kernels_vec *vec)
{
    for (size_t l = 0; l < SY_COUNT(lengths); l++) {
        int64_t d = lengths[l];
        fill(a, 20 + l, l % 2 ? 200 : 3);
        fill(b, 21 + l, 3);
        for (int64_t ldb = 0; ldb <= LD; ldb += LD) {
            guard(y);
            vec->add(a, LD, b, ldb, ROWS, d, y, LD);
            check_guard(y, d);
            for (int64_t i = 0; i < ROWS * d; i++)
                assert_true(y[i / d * LD + i % d] == a[i / d * LD + i % d] + b[i / d * ldb + i % d]);
            guard(y);
            vec->mul(a, LD, b, ldb, ROWS, d, y, LD);
            check_guard(y, d);
            for (int64_t i = 0; i < ROWS * d; i++)
                assert_true(y[i / d * LD + i % d] == a[i / d * LD + i % d] * b[i / d * ldb + i % d]);
        }
        guard(y);
        vec->scale(a, LD, 0.37f, ROWS, d, y, LD);
        check_guard(y, d);
        for (int64_t i = 0; i < ROWS * d; i++) assert_true(y[i / d * LD + i % d] == a[i / d * LD + i % d] * 0.37f);
        a[0] = l % 2 ? INFINITY : -INFINITY;
        if (d > 1) a[1] = 1e-30f;
        guard(y);
        vec->softcap(a, LD, 30, ROWS, d, y, LD);
        check_guard(y, d);
        for (int64_t i = 0; i < ROWS * d; i++) {
            double x = a[i / d * LD + i % d], want = 30 * tanh(x / 30);
            close_to(isa, "softcap", y[i / d * LD + i % d], want, 5e-7 * fabs(want));
        }
        vec->softcap(a, LD, 30, ROWS, d, a, LD);
        for (int64_t r = 0; r < ROWS; r++) assert_memory_equal(a + r * LD, y + r * LD, (size_t)d * sizeof *a);
    }
    float nan3[3] = {1, NAN, -1};
    vec->softcap(nan3, 3, 5, 1, 3, y, 3);
    assert_true(!isnan(y[0]) && isnan(y[1]) && !isnan(y[2]));
}

static void test_simple(void **state)
{
    (void)state;
    each_isa(simple);
}

static void argmaxes(const char *isa, const struct sy_kernels_vec *vec)
{
    (void)isa;
    for (size_t l = 0; l < SY_COUNT(lengths); l++) {
        int64_t n = lengths[l];
        for (int64_t at = 0; at < n; at += 1 + n / 37) {
            fill(a, 30 + l, 1);
            a[at] = 2;
            if (at + 1 < n) a[n - 1] = 2; /* the lowest index wins */
            if (at + 2 < n) a[at + 1] = NAN;
            if (at > 0) a[0] = NAN;
            assert_int_equal(vec->argmax(a, n), at);
        }
        for (int64_t i = 0; i < n; i++) a[i] = -INFINITY;
        assert_int_equal(vec->argmax(a, n), 0);
        a[0] = NAN;
        assert_int_equal(vec->argmax(a, n), n > 1);
        for (int64_t i = 0; i < n; i++) a[i] = NAN;
        assert_int_equal(vec->argmax(a, n), 0);
        for (int64_t i = 0; i < n; i++) a[i] = -0.0f;
        a[n - 1] = 0;
        assert_int_equal(vec->argmax(a, n), 0);
    }
}

static void test_argmax(void **state)
{
    (void)state;
    each_isa(argmaxes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm),   cmocka_unit_test(test_rope),   cmocka_unit_test(test_act),
        cmocka_unit_test(test_simple), cmocka_unit_test(test_argmax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
