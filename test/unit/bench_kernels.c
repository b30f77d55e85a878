/* The kernels' benchmark: every level and family runs, every figure is there. Not how fast. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/kernels.h"
#include "quant/quant.h"

struct seen {
    int n_level, n_result, n_by_level[8], at_level;
    bool machine;
    char kernel[400][32];
    const char *level[8];
    double best_f32;
};

static void on_peaks(void *ctx, const char *isa, const struct sy_peaks *p)
{
    struct seen *s = ctx;
    if (!isa) {
        assert_true(p->memory > 1e6 && isfinite(p->memory));
        s->machine = true;
        return;
    }
    s->level[s->n_level++] = isa;
    assert_true(p->f32 > 1e6 && p->int8 > 1e6 && p->bf16 >= 0 && isfinite(p->f32) && p->n_thread == 1);
    if (p->f32 > s->best_f32) s->best_f32 = p->f32;
}

static void on_result(void *ctx, const struct sy_kernel_result *r)
{
    struct seen *s = ctx;
    assert_true(s->machine && s->n_result < 400);
    assert_true(r->seconds > 0 && r->bytes > 0 && r->ops >= 0 && r->share > 0 && isfinite(r->share) && r->rows > 0);
    assert_true(strlen(r->kernel) > 0 && strlen(r->shape) > 0);
    int level = 0;
    while (level < s->n_level && strcmp(s->level[level], r->isa)) level++;
    assert_true(level < s->n_level);
    s->n_by_level[level]++;
    memcpy(s->kernel[s->n_result++], r->kernel, sizeof r->kernel);
}

static bool ran(const struct seen *s, const char *start)
{
    for (int i = 0; i < s->n_result; i++)
        if (!strncmp(s->kernel[i], start, strlen(start))) return true;
    return false;
}

static struct seen measure(const char *family, const char *shape, const char *isa)
{
    static const int32_t rows[] = {1, 5};
    struct seen s = {0};
    struct sy_err err;
    struct sy_kernels_opt o = {.isa = isa,
                               .family = family,
                               .shape = shape,
                               .rows = rows,
                               .n_rows = 2,
                               .n_thread = 1,
                               .footprint = 1 << 20,
                               .on_peaks = on_peaks,
                               .on_result = on_result,
                               .ctx = &s};
    if (sy_kernels_measure(sy_env_default(), &o, &err)) fail_msg("%s", err.msg);
    for (int i = 1; i < s.n_level; i++) assert_int_equal(s.n_by_level[i], s.n_by_level[0]);
    return s;
}

static void products(void **state)
{
    (void)state;
    struct seen s = measure("gemm", "SmolLM2-135M down", NULL);
    assert_int_equal(s.n_result, s.n_level * 6 * 2);
    assert_true(ran(&s, "f32 (f32)") && ran(&s, "f16 (f16)") && ran(&s, "int8 (q8_0)") && ran(&s, "int4 (q4_1)"));
}

static void attention(void **state)
{
    (void)state;
    struct seen s = measure("attend", "Qwen2.5", NULL);
    assert_int_equal(s.n_result, s.n_level * SY_KV_COUNT * 4);
    assert_true(ran(&s, "decode f32") && ran(&s, "prefill bf16") && ran(&s, "write f16"));
}

/* Sums in f32 and bf16: both are measured, and mean the same at every level. */
static void sums(void **state)
{
    (void)state;
    struct seen s = measure("attend", SY_BENCH_SUMS, NULL);
    assert_int_equal(s.n_result, s.n_level * 2);
    assert_true(ran(&s, "sums in f32") && ran(&s, "sums in bf16"));
    static float p[40][SY_SUM_ROWS], f32[8][SY_SUM_ROWS][SY_SUM_COLS];
    static uint16_t v[40][SY_SUM_COLS], bf16[8][SY_SUM_ROWS][SY_SUM_COLS];
    for (int k = 0; k < 40; k++) {
        for (int r = 0; r < SY_SUM_ROWS; r++) p[k][r] = (float)(1 + (k * 5 + r) % 9) / 8;
        for (int d = 0; d < SY_SUM_COLS; d++) v[k][d] = sy_f32_to_bf16((float)((k * 7 + d * 3) % 11 + 1) / 4);
    }
    for (int l = 0; l < s.n_level; l++) {
        struct sy_kernels kern;
        assert_int_equal(sy_kernels_pick(s.level[l], &kern, NULL), SY_OK);
        kern.peak.sum_f32(p, (const uint16_t(*)[SY_SUM_COLS])v, 40, f32[l]);
        kern.peak.sum_bf16(p, (const uint16_t(*)[SY_SUM_COLS])v, 40, bf16[l]);
    }
    /* Products and f32 sums of these are exact. */
    bool rounded = false;
    for (int r = 0; r < SY_SUM_ROWS; r++)
        for (int d = 0; d < SY_SUM_COLS; d++) {
            float want = 0, narrow = 0;
            for (int k = 0; k < 40; k++) {
                want += p[k][r] * sy_bf16_to_f32(v[k][d]);
                narrow = sy_bf16_to_f32(sy_f32_to_bf16(narrow + p[k][r] * sy_bf16_to_f32(v[k][d])));
            }
            rounded |= narrow != want;
            for (int l = 0; l < s.n_level; l++)
                assert_true(f32[l][r][d] == want && sy_bf16_to_f32(bf16[l][r][d]) == narrow);
        }
    assert_true(rounded);
}

static void vectors(void **state)
{
    (void)state;
    struct seen s = measure("vec", NULL, NULL);
    assert_int_equal(s.n_result, s.n_level * 3 * 11);
    assert_true(ran(&s, "norm") && ran(&s, "rope") && ran(&s, "argmax") && ran(&s, "glu silu"));
}

static void one_level(void **state)
{
    (void)state;
    struct seen s = measure("vec", "gemma", "generic");
    assert_int_equal(s.n_level, 1);
    assert_string_equal(s.level[0], "generic");
    struct sy_err err;
    struct sy_kernels_opt o = {.isa = "pentium", .n_thread = 1, .on_result = on_result, .ctx = &s};
    assert_int_equal(sy_kernels_measure(sy_env_default(), &o, &err), SY_EARG);
    assert_non_null(strstr(err.msg, "pentium"));
}

static bool at_once(void *ctx)
{
    (void)ctx;
    return true;
}

static void is_stopped(void **state)
{
    (void)state;
    struct seen s = {0};
    struct sy_err err;
    struct sy_kernels_opt o = {.family = "vec",
                               .n_thread = 1,
                               .on_peaks = on_peaks,
                               .on_result = on_result,
                               .ctx = &s,
                               .watch = {.stop = at_once}};
    assert_int_equal(sy_kernels_measure(sy_env_default(), &o, &err), SY_EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products), cmocka_unit_test(attention), cmocka_unit_test(sums),
        cmocka_unit_test(vectors),  cmocka_unit_test(one_level), cmocka_unit_test(is_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
