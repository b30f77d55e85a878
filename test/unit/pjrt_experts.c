/* The TPU kernel of a mixture's experts, run by the interpreter against a double precision reference: ragged rows,
 * experts without any, exact multiples, more rows than are held; weights are read once; and planted mistakes. */
#include "mosaic_util.h"

#include "backend/pjrt/mosaic/kernels.h"

enum { EXPERTS_MAX = 8, ROWS = 16 };
struct case_of {
    struct mo_experts a;
    int32_t size[EXPERTS_MAX];
};
struct experts_data {
    struct mo_experts a;
    const int32_t *size;
    float *sizes, *x, *up, *down;
};

static int32_t padded(int32_t n) { return (n + ROWS - 1) / ROWS * ROWS; }

static struct experts_data data_of(const struct case_of *c)
{
    struct experts_data d = {.a = c->a, .size = c->size};
    struct mo_experts *a = &d.a;
    a->n_row = ROWS; /* one tile more than there are rows */
    for (int32_t e = 0; e < a->n_expert; e++) a->n_row += padded(c->size[e]);
    int64_t n = (int64_t)a->n_expert * a->d * a->d_ff;
    d.sizes = numbers(a->n_expert, 1);
    d.x = numbers((int64_t)a->n_row * a->d, 2);
    d.up = numbers(2 * n, 3);
    d.down = numbers(n, 4);
    for (int64_t i = 0; i < n; i++) d.down[i] = in_round(IN_BF16, d.down[i] / 16);
    for (int64_t i = 0; i < 2 * n; i++) d.up[i] = in_round(IN_BF16, d.up[i] / 8);
    int32_t row = 0;
    for (int32_t e = 0; e < a->n_expert; row += padded(c->size[e++])) {
        d.sizes[e] = (float)c->size[e];
        for (int64_t i = (int64_t)(row + c->size[e]) * a->d; i < (int64_t)(row + padded(c->size[e])) * a->d; i++)
            d.x[i] = NAN; /* padding */
    }
    return d;
}

static void data_free(struct experts_data *d)
{
    float *all[] = {d->sizes, d->x, d->up, d->down};
    for (size_t i = 0; i < SY_COUNT(all); i++) free(all[i]);
}

static double dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* The largest difference to one row's result, in which the inner columns are rounded as the kernel's products are. */
static double row_error(const struct experts_data *d, int32_t e, const float *x, const float *y)
{
    const struct mo_experts *a = &d->a;
    const float *up = d->up + (int64_t)e * 2 * a->d_ff * a->d, *down = d->down + (int64_t)e * a->d_ff * a->d;
    double worst = 0;
    float h[512];
    for (int32_t i = 0; i < a->d_ff; i++) {
        double g = dot(x, up + (int64_t)i * a->d, a->d), u = dot(x, up + (int64_t)(a->d_ff + i) * a->d, a->d);
        h[i] = (float)(g / (1 + exp(-g)) * u);
    }
    for (int32_t k = 0; k < a->d; k++) {
        double want = dot(h, down + (int64_t)k * a->d_ff, a->d_ff), error = fabs(want - (double)y[k]);
        worst = error <= worst ? worst : isnan(error) ? (double)INFINITY : error;
    }
    return worst;
}

static double error_of(const struct experts_data *d, const float *out)
{
    double worst = 0;
    int64_t row = 0;
    for (int32_t e = 0; e < d->a.n_expert; row += padded(d->size[e++]))
        for (int32_t i = 0; i < d->size[e]; i++) {
            double w = row_error(d, e, d->x + (row + i) * d->a.d, out + (row + i) * d->a.d);
            worst = w > worst ? w : worst;
        }
    return worst;
}

/* Bytes that have to be moved: rows in and out, the weights of each item. */
static double bytes_of(const struct experts_data *d)
{
    const struct mo_experts *a = &d->a;
    double rows = 0, items = 0;
    for (int32_t e = 0; e < a->n_expert; e++) {
        rows += padded(d->size[e]);
        items += (padded(d->size[e]) + a->hold - 1) / a->hold;
    }
    return 2 * (2 * rows * a->d + items * 3 * a->d * a->d_ff);
}

static void text_of(const struct mo_experts *a, struct sy_buf *text)
{
    struct mosaic m;
    sy_buf_init(text, sy_env_default(), 0);
    mo_init(&m, sy_env_default());
    mo_experts(&m, a);
    assert_int_equal(mo_end(&m, text, NULL), SY_OK);
    mo_release(&m);
}

static double run(const struct experts_data *d, const struct sy_buf *text, double *copied, char why[300])
{
    struct interp *m = malloc(sizeof *m);
    float *operand[] = {d->sizes, d->x, d->up, d->down};
    double e =
        interp(m, text, operand, SY_COUNT(operand)) ? error_of(d, m->array[SY_COUNT(operand)].x) : (double)INFINITY;
    snprintf(why, 300, "%s", m->error);
    *copied = m->copied;
    in_close(m);
    free(m);
    return e;
}

#define LIMIT 4e-3
#define SHAPE(experts, width, inner, columns, at_once, held, ring)                                                   \
    .n_expert = (experts), .d = (width), .d_ff = (inner), .tile = (columns), .rows = (at_once), .hold = (held),      \
    .slots = (ring)
static const struct case_of cases[] = {
    /* ragged, none, exact tiles of rows, more than are held, exactly what is held */
    {{SHAPE(8, 128, 256, 128, 16, 64, 2)}, {3, 0, 16, 17, 0, 70, 64, 1}},
    {{SHAPE(4, 128, 384, 128, 32, 64, 3)}, {0, 33, 64, 5}},
    {{SHAPE(3, 256, 128, 128, 16, 16, 2)}, {16, 0, 40}}, /* one step an item */
    {{SHAPE(5, 128, 256, 128, 16, 32, 3)}, {0, 0, 0, 0, 1}},
    {{SHAPE(2, 128, 256, 256, 64, 64, 2)}, {100, 28}},
    {{SHAPE(4, 128, 256, 128, 16, 32, 2)}, {0}}, /* nothing to do */
};

static void test_experts(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT(cases); i++) {
        struct experts_data d = data_of(&cases[i]);
        struct sy_buf text;
        char why[300];
        double copied;
        text_of(&d.a, &text);
        double e = run(&d, &text, &copied, why);
        print_message("case %zu: error %g\n", i, e);
        if (!(e < LIMIT)) fail_msg("case %zu: error %g %s", i, e, why);
        if (copied != bytes_of(&d)) fail_msg("case %zu: moves %g bytes, not %g", i, copied, bytes_of(&d));
        sy_buf_release(&text);
        data_free(&d);
    }
}

static const struct mistake mistakes[] = {
    {"a wait for rows is missing", "wait_dma2", "memref<?x16x128xbf16, #tpu.memory_space<hbm>>) dst", NULL, NULL, 0,
     NULL},
    {"a wait for gates is missing", "wait_dma2", "128x128", NULL, NULL, 0, NULL},
    {"a wait for down is missing", "wait_dma2", "128x128", NULL, NULL, 2, NULL},
    {"a wait for results is missing", "wait_dma2", "memref<?x16x128xbf16, #tpu.memory_space<vmem>>) dst", NULL, NULL,
     0, NULL},
    {"the last wait for results is missing", "wait_dma2", "memref<?x16x128xbf16, #tpu.memory_space<vmem>>) dst", NULL,
     NULL, 2, NULL},
    {"rows are counted down to whole tiles", "arith.shrsi", "", "arith.shrsi", "arith.subi", 0, NULL},
    {"an item begins at its expert's first row", "arith.muli", "", "arith.muli", "arith.andi", 0, NULL},
    {"sums are not begun anew", "arith.cmpi eq", "", "eq", "slt", 4, NULL},
    {"up in place of the gate", "arith.subf", "", "arith.subf", "arith.addf", 0, NULL},
    {"the ring asks for a tile too many of an expert", "arith.cmpi eq", "", "eq", "sgt", 2, NULL},
    {"the slot in work is always the first", "arith.cmpi eq", "", "eq", "sle", 5, NULL},
};

static void test_mistakes(void **state)
{
    (void)state;
    struct experts_data d = data_of(&cases[0]);
    struct sy_buf text, bad;
    double copied;
    text_of(&d.a, &text);
    for (size_t i = 0; i < SY_COUNT(mistakes); i++) {
        char why[300];
        assert_true(plant(&text, &mistakes[i], &bad) > 0);
        double e = run(&d, &bad, &copied, why);
        bool same = copied == bytes_of(&d);
        print_message("%s: error %g%s %s\n", mistakes[i].name, e, same ? "" : ", other bytes", why);
        if (e < LIMIT && same) fail_msg("not found: %s", mistakes[i].name);
        sy_buf_release(&bad);
    }
    sy_buf_release(&text);
    data_free(&d);
}

static void write_one(struct mosaic *m, const void *shape) { mo_experts(m, shape); }
static void test_memory(void **state)
{
    (void)state;
    memory_is_told(write_one, &cases[0].a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_experts), cmocka_unit_test(test_mistakes),
                                       cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
