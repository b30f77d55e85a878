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
    float *sizes, *x, *up, *down; /* weights: codes, of 8 bits */
    float *up_scale, *down_scale; /* of 8 bits */
};

static int32_t padded(int32_t n) { return (n + ROWS - 1) / ROWS * ROWS; }

/* Of a number in -1 .. 1, whose codes are it times 100 or so; any sign, and no code that is not a number. */
static float code_of(float x, enum mo_elem e)
{
    int c = (int)(x * 100);
    return (float)(e == MO_I8 || c >= 0 ? c : c - 28 < -127 ? -127 : c - 28);
}

/* Scales, none like the next, with which codes are numbers of the size of 1 / by. */
static float *scales(int64_t n, uint64_t seed, enum mo_elem e, float by)
{
    float *x = numbers(n, seed);
    for (int64_t i = 0; i < n; i++) x[i] = (1.5F + x[i]) / by / (e == MO_I8 ? 100 : 200);
    return x;
}

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
    bool coded = a->weight != MO_BF16;
    for (int64_t i = 0; i < n; i++)
        d.down[i] = coded ? code_of(d.down[i], a->weight) : in_round(IN_BF16, d.down[i] / 16);
    for (int64_t i = 0; i < 2 * n; i++)
        d.up[i] = coded ? code_of(d.up[i], a->weight) : in_round(IN_BF16, d.up[i] / 8);
    bool scaled = a->group_up > 0;
    d.up_scale = scaled ? scales(2 * n / a->group_up, 5, a->weight, 8) : NULL;
    d.down_scale = scaled ? scales(n / a->group_down, 6, a->weight, 16) : NULL;
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
    float *all[] = {d->sizes, d->x, d->up, d->down, d->up_scale, d->down_scale};
    for (size_t i = 0; i < SY_COUNT(all); i++) free(all[i]);
}

static double number(const struct experts_data *d, float code)
{
    return d->a.weight == MO_E4M3 ? in_e4m3((int)code) : (double)code;
}

/* x times row r of the expert's matrix of n_row rows. */
static double dot(const struct experts_data *d, const float *x, const float *w, const float *scale, int32_t group,
                  int32_t e, int32_t n_row, int32_t r, int32_t n)
{
    double sum = 0;
    w += ((int64_t)e * n_row + r) * n;
    for (int32_t i = 0; i < n; i++) {
        double by = scale ? (double)scale[((int64_t)e * (n / group) + i / group) * n_row + r] : 1;
        sum += (double)x[i] * number(d, w[i]) * by;
    }
    return sum;
}

/* The largest difference to one row's result, in which the inner columns are rounded as the kernel's products are. */
static double row_error(const struct experts_data *d, int32_t e, const float *x, const float *y, double *largest)
{
    const struct mo_experts *a = &d->a;
    double worst = 0;
    float h[512];
    for (int32_t i = 0; i < a->d_ff; i++) {
        double g = dot(d, x, d->up, d->up_scale, a->group_up, e, 2 * a->d_ff, i, a->d);
        double u = dot(d, x, d->up, d->up_scale, a->group_up, e, 2 * a->d_ff, a->d_ff + i, a->d);
        h[i] = (float)(g / (1 + exp(-g)) * u);
    }
    for (int32_t k = 0; k < a->d; k++) {
        double want = dot(d, h, d->down, d->down_scale, a->group_down, e, a->d, k, a->d_ff);
        double error = fabs(want - (double)y[k]);
        worst = error <= worst ? worst : isnan(error) ? (double)INFINITY : error;
        *largest = fabs(want) > *largest ? fabs(want) : *largest;
    }
    return worst;
}

/* In parts of the largest result. */
static double error_of(const struct experts_data *d, const float *out)
{
    double worst = 0, largest = 1e-30;
    int64_t row = 0;
    for (int32_t e = 0; e < d->a.n_expert; row += padded(d->size[e++]))
        for (int32_t i = 0; i < d->size[e]; i++) {
            double w = row_error(d, e, d->x + (row + i) * d->a.d, out + (row + i) * d->a.d, &largest);
            worst = w > worst ? w : worst;
        }
    return worst / largest;
}

/* Bytes that have to be moved: rows in and out, the weights of each item. */
static double bytes_of(const struct experts_data *d)
{
    const struct mo_experts *a = &d->a;
    double rows = 0, items = 0, each = 6.0 * a->d * a->d_ff;
    if (a->weight != MO_BF16) each /= 2;
    if (a->group_up > 0) { /* a scale of down is read by each tile that it stands for */
        double tiles = a->group_down > a->tile ? a->d_ff / a->tile : a->d_ff / a->group_down;
        each += 4 * (2.0 * a->d / a->group_up * a->d_ff + tiles * a->d);
    }
    for (int32_t e = 0; e < a->n_expert; e++) {
        rows += padded(d->size[e]);
        items += (padded(d->size[e]) + a->hold - 1) / a->hold;
    }
    return 4 * rows * a->d + items * each;
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
    float *plain[] = {d->sizes, d->x, d->up, d->down};
    float *coded[] = {d->sizes, d->x, d->up, d->up_scale, d->down, d->down_scale};
    int n = d->up_scale ? (int)SY_COUNT(coded) : (int)SY_COUNT(plain);
    double e = interp(m, text, d->up_scale ? coded : plain, n) ? error_of(d, m->array[n].x) : (double)INFINITY;
    snprintf(why, 300, "%s", m->error);
    *copied = m->copied;
    in_close(m);
    free(m);
    return e;
}

#define LIMIT 8e-3
#define SHAPE(experts, width, inner, columns, at_once, held, ring)                                                   \
    .n_expert = (experts), .d = (width), .d_ff = (inner), .tile = (columns), .rows = (at_once), .hold = (held),      \
    .slots = (ring), .weight = MO_BF16
#define SHAPE8(elem, up, down, experts, width, inner, columns, at_once, held, ring)                                  \
    .n_expert = (experts), .d = (width), .d_ff = (inner), .tile = (columns), .rows = (at_once), .hold = (held),      \
    .slots = (ring), .weight = (elem), .group_up = (up), .group_down = (down)
static const struct case_of cases[] = {
    /* ragged, none, exact tiles of rows, more than are held, exactly what is held */
    {{SHAPE(8, 128, 256, 128, 16, 64, 2)}, {3, 0, 16, 17, 0, 70, 64, 1}},
    {{SHAPE(4, 128, 384, 128, 32, 64, 3)}, {0, 33, 64, 5}},
    {{SHAPE(3, 256, 128, 128, 16, 16, 2)}, {16, 0, 40}}, /* one step an item */
    {{SHAPE(5, 128, 256, 128, 16, 32, 3)}, {0, 0, 0, 0, 1}},
    {{SHAPE(2, 128, 256, 256, 64, 64, 2)}, {100, 28}},
    {{SHAPE(4, 128, 256, 128, 16, 32, 2)}, {0}}, /* nothing to do */
    /* 8 bits: a scale for 128 columns, several groups to a tile, a scale for a row */
    {{SHAPE8(MO_E4M3, 128, 128, 8, 256, 256, 128, 16, 64, 3)}, {3, 0, 16, 17, 0, 70, 64, 1}},
    {{SHAPE8(MO_E4M3, 128, 128, 3, 384, 512, 256, 32, 32, 2)}, {16, 0, 34}},
    {{SHAPE8(MO_I8, 256, 384, 3, 256, 384, 128, 32, 64, 3)}, {33, 0, 16}},
    {{SHAPE8(MO_I8, 128, 128, 2, 256, 256, 256, 16, 16, 2)}, {5, 16}},
    {{SHAPE8(MO_E4M3, 0, 0, 2, 128, 256, 128, 16, 16, 2)}, {3, 17}}, /* none */
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

static const struct mistake mistakes8[] = {
    {"a wait for scales of gates is missing", "wait_dma2", "2x1x128xf32", NULL, NULL, 0, NULL},
    {"a wait for scales of up is missing", "wait_dma2", "2x1x128xf32", NULL, NULL, 1, NULL},
    {"a wait for scales of down is missing", "wait_dma2", "1x1x256xf32", NULL, NULL, 0, NULL},
    {"a sum is not scaled", "arith.mulf", "16x128xf32", "arith.mulf", "arith.minimumf", 1, NULL},
    {"a result is not scaled", "arith.mulf", "16x256xf32", "arith.mulf", "arith.maximumf", 0, NULL},
    {"a group is left out", "arith.addf", "16x128xf32", "arith.addf", "arith.minimumf", 0, NULL},
    {"codes are taken for numbers", "arith.bitcast", "vector", "arith.bitcast", "arith.sitofp", -1, NULL},
    {"up has the scales of gates", "arith.addi", ": i32", "arith.addi", "arith.andi", -1, NULL},
};

static double run_on(const void *data, const struct sy_buf *text, bool *moved, char why[300])
{
    double copied, e = run(data, text, &copied, why);
    *moved = copied == bytes_of(data);
    return e;
}

static void find(const struct case_of *c, const struct mistake *list, size_t n)
{
    struct experts_data d = data_of(c);
    struct sy_buf text;
    text_of(&d.a, &text);
    all_found(&text, list, n, LIMIT, run_on, &d);
    sy_buf_release(&text);
    data_free(&d);
}

static void test_mistakes(void **state)
{
    (void)state;
    find(&cases[0], mistakes, SY_COUNT(mistakes));
    find(&cases[6], mistakes8, SY_COUNT(mistakes8));
}

static void write_one(struct mosaic *m, const void *shape) { mo_experts(m, shape); }
static void test_memory(void **state)
{
    (void)state;
    memory_is_told(write_one, &cases[6].a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_experts), cmocka_unit_test(test_mistakes),
                                       cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
