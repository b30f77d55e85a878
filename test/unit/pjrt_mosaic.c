/* Kernels for TPUs, run by an interpreter that knows when a transfer has arrived: against a double precision
 * reference on ragged shapes, exact multiples of a block and of a fetch among them; and kernels with a mistake
 * planted, which must be found. */
#include "mosaic_util.h"

#include "backend/pjrt/mosaic/kernels.h"
#include "backend/pjrt/mosaic/measure.h"

/* ---- attention --------------------------------------------------------------------------------------------------
 */

enum { SEQ_MAX = 8 };
struct case_of {
    struct mo_attend a;
    int32_t n_new[SEQ_MAX],
        ctx[SEQ_MAX]; /* tokens of the step and length with them, of each sequence; 0: none more */
};
struct attend_data {
    struct mo_attend a;
    int32_t live, n_tok;
    float *table, *start, *ctx, *live_field, *q, *k, *v, *scales; /* of bytes: codes, and bytes of their scales */
};

/* A scale as a cache of bytes has it, what it stands beside being no scale's. */
static void put_scales(struct attend_data *d, int64_t rows)
{
    int32_t n = d->a.n_kv, wide = mo_attend_wide(&d->a);
    float *x = numbers(rows * 2 * n, 5);
    d->scales = malloc((size_t)(rows * wide) * sizeof *d->scales);
    for (int64_t i = 0; i < rows * wide; i++) d->scales[i] = 99;
    for (int64_t i = 0; i < rows * 2 * n; i++) {
        float scale = (0.75F + x[i] / 4) / 127, *at = d->scales + i / (2 * n) * wide;
        uint32_t bits;
        memcpy(&bits, &scale, sizeof bits);
        int32_t side = i % (2 * n) >= n, head = (int32_t)(i % n);
        at[side * 2 * n + head] = (float)(bits >> 23) - 128;
        at[side * 2 * n + n + head] = (float)(bits >> 16 & 127);
    }
    free(x);
}

static struct attend_data attend_data(const struct case_of *c)
{
    struct attend_data d = {.a = c->a};
    struct mo_attend *a = &d.a;
    while (d.live < a->n_seq && c->n_new[d.live]) d.n_tok += c->n_new[d.live++];
    a->n_tok = d.n_tok + 3; /* padding */
    int64_t width = (int64_t)a->n_kv * a->d, rows = (int64_t)a->n_block * a->block_len;
    d.table = numbers((int64_t)a->n_seq * a->n_table, 1);
    d.start = numbers(a->n_seq + 1, 1);
    d.ctx = numbers(a->n_seq, 1);
    d.live_field = numbers(1, 1);
    d.live_field[0] = (float)d.live;
    d.q = numbers((int64_t)mo_attend_rows(a) * a->n_kv * a->g * a->d, 2);
    d.k = numbers(rows * width, 3);
    d.v = numbers(rows * width, 4);
    d.scales = NULL;
    if (a->bytes) put_scales(&d, rows);
    for (int64_t i = 0; i < rows * width && a->bytes; i++) {
        d.k[i] = rintf(d.k[i] * 127);
        d.v[i] = rintf(d.v[i] * 127);
    }
    int32_t tok = 0, block = 0;
    for (int32_t s = 0; s < a->n_seq; s++) {
        d.start[s] = (float)tok;
        d.ctx[s] = s < d.live ? (float)c->ctx[s] : -999;
        tok += s < d.live ? c->n_new[s] : 0;
        /* Blocks in an order that is not theirs; what no sequence has, or no window sees, is no block. */
        for (int32_t b = 0; b < a->n_table; b++) {
            int32_t low = a->window > 0 ? c->ctx[s] - c->n_new[s] - a->window + 1 : 0;
            bool has = s < d.live && b * a->block_len < c->ctx[s] && (b + 1) * a->block_len > low;
            d.table[s * a->n_table + b] = has ? (float)(block++ * 7 % a->n_block) : -999;
        }
    }
    assert_true(block <= a->n_block && a->n_block % 7);
    d.start[a->n_seq] = (float)tok;
    return d;
}

static void attend_free(struct attend_data *d)
{
    float *all[] = {d->table, d->start, d->ctx, d->live_field, d->q, d->k, d->v, d->scales};
    for (size_t i = 0; i < SY_COUNT(all); i++) free(all[i]);
}

/* The scale of the key (side 0) or value in a row of the cache. */
static double scale_at(const struct attend_data *d, int64_t row, int side, int32_t head)
{
    if (!d->a.bytes) return 1;
    const float *at = d->scales + row * mo_attend_wide(&d->a) + side * 2 * d->a.n_kv + head;
    return ldexp(1 + (double)at[d->a.n_kv] / 128, (int)at[0] + 128 - 127);
}

/* One query [d] over its keys, as the formula says it. */
static void attend_one(const struct attend_data *d, int32_t seq, int32_t pos, int32_t head, const float *q, double *y)
{
    const struct mo_attend *a = &d->a;
    int32_t first = a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
    double sum = 0, width = (double)a->n_kv * a->d;
    for (int32_t i = 0; i < a->d; i++) y[i] = 0;
    for (int32_t j = first; j <= pos; j++) {
        int64_t block = (int64_t)d->table[seq * a->n_table + j / a->block_len];
        int64_t row = block * a->block_len + j % a->block_len, at = row * (int64_t)width + (int64_t)head * a->d;
        double x = 0;
        for (int32_t i = 0; i < a->d; i++) x += (double)q[i] * (double)d->k[at + i];
        x *= (double)a->scale * scale_at(d, row, 0, head);
        if (a->softcap > 0) x = (double)a->softcap * tanh(x / (double)a->softcap);
        double p = exp(x); /* scores here are small */
        sum += p;
        for (int32_t i = 0; i < a->d; i++) y[i] += p * (double)d->v[at + i] * scale_at(d, row, 1, head);
    }
    for (int32_t i = 0; i < a->d; i++) y[i] /= sum;
}

static double attend_error(const struct attend_data *d, const float *out)
{
    const struct mo_attend *a = &d->a;
    double worst = 0, y[512];
    for (int32_t s = 0; s < d->live; s++)
        for (int32_t t = (int32_t)d->start[s]; t < (int32_t)d->start[s + 1]; t++)
            for (int32_t h = 0; h < a->n_kv * a->g; h++) {
                int64_t at = ((int64_t)t * a->n_kv * a->g + h) * a->d;
                attend_one(d, s, (int32_t)d->ctx[s] - ((int32_t)d->start[s + 1] - t), h / a->g, d->q + at, y);
                for (int32_t i = 0; i < a->d; i++) {
                    double e = fabs(y[i] - (double)out[at + i]);
                    worst = e <= worst ? worst : isnan(e) ? (double)INFINITY : e;
                }
            }
    return worst;
}

static void attend_text(const struct mo_attend *a, struct sy_buf *text)
{
    struct mosaic m;
    sy_buf_init(text, sy_env_default(), 0);
    mo_init(&m, sy_env_default());
    mo_attend(&m, a);
    assert_int_equal(mo_end(&m, text, NULL), SY_OK);
    mo_release(&m);
}

/* The largest error of a result; what the interpreter refuses is infinitely wrong, and said in `why`. */
static double attend_run(const struct attend_data *d, const struct sy_buf *text, char why[300])
{
    struct interp *m = malloc(sizeof *m);
    float *operand[] = {d->table, d->start, d->ctx, d->live_field, d->q, d->k, d->v, d->scales};
    int n = d->a.bytes ? 8 : 7;
    double e = interp(m, text, operand, n) ? attend_error(d, m->array[n].x) : (double)INFINITY;
    snprintf(why, 300, "%s", m->error);
    in_close(m);
    free(m);
    return e;
}

#define SHAPE(seq, table, block, len, kv, group, dim, q, f, side)                                                    \
    .n_seq = (seq), .n_table = (table), .n_block = (block), .block_len = (len), .n_kv = (kv), .g = (group),          \
    .d = (dim), .tile = (q), .fetch = (f), .part = 128, .slots = 2, .heads = (side), .scale = 0.0884f
static const struct case_of attend_cases[] = {
    /* one token each: ragged, one key, exact blocks, exact fetches, several fetches */
    {{SHAPE(7, 20, 64, 16, 2, 4, 128, 1, 8, 2)}, {1, 1, 1, 1, 1, 1}, {1, 128, 129, 300, 16, 256}},
    {{SHAPE(3, 6, 16, 32, 1, 8, 128, 1, 4, 1)}, {1, 1, 1}, {33, 128, 150}},
    {{SHAPE(3, 6, 16, 32, 3, 4, 128, 1, 4, 2), .softcap = 2}, {1, 1}, {100, 64}},
    {{SHAPE(2, 4, 9, 64, 2, 4, 256, 1, 2, 2)}, {1, 1}, {128, 200}},
    {{SHAPE(4, 20, 64, 16, 1, 4, 128, 1, 8, 1), .window = 40}, {1, 1, 1, 1}, {300, 17, 160, 40}},
    {{SHAPE(4, 20, 64, 16, 1, 4, 128, 1, 8, 1)}, {0}, {0}}, /* nothing to do */
    /* pieces of prompts, beginning anywhere, beside single tokens */
    {{SHAPE(5, 20, 64, 16, 2, 4, 128, 8, 8, 1)}, {1, 19, 8, 16, 1}, {140, 19, 136, 256, 1}},
    {{SHAPE(3, 20, 64, 16, 1, 4, 128, 4, 8, 1), .window = 24}, {9, 4, 1}, {170, 4, 128}},
    {{SHAPE(2, 6, 16, 32, 2, 8, 128, 16, 4, 2), .softcap = 2}, {33, 1}, {160, 7}},
    /* bytes: one token each, then pieces of prompts beside single tokens */
    {{SHAPE(6, 10, 64, 32, 2, 4, 128, 1, 4, 2), .bytes = true}, {1, 1, 1, 1, 1}, {1, 128, 129, 300, 256}},
    {{SHAPE(4, 10, 48, 32, 1, 4, 128, 8, 4, 1), .bytes = true}, {1, 19, 8}, {140, 19, 256}},
    /* bytes and windows; softcaps; heads that are no power of two */
    {{SHAPE(4, 10, 48, 32, 1, 4, 128, 1, 4, 1), .bytes = true, .window = 40}, {1, 1, 1, 1}, {300, 17, 160, 40}},
    {{SHAPE(3, 10, 48, 32, 3, 4, 128, 4, 4, 2), .bytes = true, .window = 24, .softcap = 2}, {9, 4, 1}, {170, 4, 128}},
    /* fetches worked on in parts, of more blocks than are asked for in one turn, and of fewer */
    {{SHAPE(6, 44, 110, 16, 1, 8, 128, 1, 32, 1)}, {1, 1, 1, 1, 1, 1}, {700, 512, 1, 128, 17, 256}},
    {{SHAPE(3, 44, 110, 16, 2, 4, 128, 4, 32, 2), .window = 300}, {9, 1, 4}, {700, 512, 4}},
    {{SHAPE(4, 20, 64, 32, 2, 4, 128, 1, 16, 2), .bytes = true}, {1, 1, 1, 1}, {640, 512, 33, 128}},
};

static void test_attend(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT(attend_cases); i++) {
        struct attend_data d = attend_data(&attend_cases[i]);
        struct sy_buf text;
        char why[300];
        attend_text(&d.a, &text);
        double e = attend_run(&d, &text, why);
        if (!(e < 4e-3)) fail_msg("case %zu: error %g %s", i, e, why);
        sy_buf_release(&text);
        attend_free(&d);
    }
}

/* ---- mistakes ---------------------------------------------------------------------------------------------------
 */

static const struct mistake mistakes[] = {
    {"a wait for queries is missing", "wait_dma2", "2x4x128xbf16", NULL, NULL, 0, NULL},
    {"a wait for keys is missing", "wait_dma2", "memref<?x", NULL, NULL, 0, NULL},
    {"a wait for values is missing", "wait_dma2", "memref<?x", NULL, NULL, 1, NULL},
    {"the last wait for a result is missing", "wait_dma2", "dst(", NULL, NULL, 4, NULL},
    {"the mask sees one key too few", "arith.cmpi sle", "vector", "sle", "slt", -1, NULL},
    {"the mask sees keys to come", "arith.cmpi sle", "vector", "sle", "ne", -1, NULL},
    {"one buffer instead of two: a stale one is read", "arith.remsi", "", "arith.remsi", "arith.shrsi", -1, NULL},
    {"the old sum is not scaled again", "arith.maximumf", "", "arith.maximumf", "arith.minimumf", 0, NULL},
    {"what no block is written to is not cleared", "vector_store", "1x1x16x256xbf16", NULL, NULL, -1, NULL},
    {"a fetch is read from the other slot", "arith.remsi", "", "arith.remsi", "arith.divsi", 2, NULL},
    {"a block too many where the length is a multiple of it", "arith.addi", ", %1 :", "%1 :", "%0 :", -1,
     "arith.subi"},
};

static const struct mistake window_mistakes[] = {
    {"the window is one key too wide", "arith.cmpi sgt", "vector", "sgt", "sge", -1, NULL},
    {"the window's first block is one too late", "arith.subi", ": i32", "arith.subi", "arith.addi", 4, NULL},
};

static const struct mistake bytes_mistakes[] = {
    {"a wait for scales is missing", "wait_dma2", "memref<?x32x128xi8", NULL, NULL, 0, NULL},
    {"keys are not scaled", "arith.mulf", "4x128xf32", "arith.mulf", "arith.maximumf", 0, NULL},
    {"values are not scaled", "arith.mulf", "4x128xf32", "arith.mulf", "arith.minimumf", 4, NULL},
    {"values have the scales of keys", "arith.cmpi sge", "vector<8x128", "sge", "sgt", 0, NULL},
    {"a scale's lower byte is not its own", "arith.cmpi eq", "vector<8x128", "eq", "ne", 0, NULL},
    {"a scale's upper byte is taken for the whole", "arith.cmpi eq", "vector<8x128", "eq", "sge", 1, NULL},
    {"a scale's sign is its exponent's", "arith.addi", "vector<8x128xi32", "arith.addi", "arith.subi", 2, NULL},
    {"scales that no block is written to are not cleared", "vector_store", "1x1x32x128xi8", NULL, NULL, -1, NULL},
};

static const struct mistake part_mistakes[] = {
    {"a part sees one key too few", "arith.cmpi sle", "vector", "sle", "slt", 1, NULL},
    {"a part's old sum is not scaled again", "arith.maximumf", "", "arith.maximumf", "arith.minimumf", 1, NULL},
    {"blocks of whole turns are asked for twice", "arith.muli", "i32", "arith.muli", "arith.addi", 4, NULL},
};

static double run_on(const void *data, const struct sy_buf *text, bool *moved, char why[300])
{
    *moved = true; /* their count is not what these mistakes change */
    return attend_run(data, text, why);
}

static void find(const struct case_of *c, const struct mistake *mistake, size_t n)
{
    struct attend_data d = attend_data(c);
    struct sy_buf text;
    attend_text(&d.a, &text);
    all_found(&text, mistake, n, 4e-3, run_on, &d);
    sy_buf_release(&text);
    attend_free(&d);
}

static void write_one(struct mosaic *m, const void *shape) { mo_attend(m, shape); }
static void test_memory(void **state)
{
    (void)state;
    memory_is_told(write_one, &attend_cases[6].a);
}

static void test_mistakes(void **state)
{
    (void)state;
    find(&attend_cases[0], mistakes, SY_COUNT(mistakes));
    find(&attend_cases[4], window_mistakes, SY_COUNT(window_mistakes));
    find(&attend_cases[9], bytes_mistakes, SY_COUNT(bytes_mistakes));
    find(&attend_cases[13], part_mistakes, SY_COUNT(part_mistakes));
}

/* ---- costs ------------------------------------------------------------------------------------------------------
 */

static void test_schedule(void **state)
{
    (void)state;
    static const char text[] =
        "LB: loop body\n"
        "   0x12   :  { %36 = sbr.rel (%p0) target bundleno = 80 (0x50), region = 5 }\n"
        "   0x20 LB: > { nothing }\n"
        "   0x28 LB: >> { nothing }\n"
        "   0x2e   : >> {  ;;  %55 = sbr.rel (!%p4) target bundleno = 40 (0x28), region = 1 }\n"
        "   0x33 PF: > { nothing }\n"
        "   0x3f   : > { %12 = sbr.rel (!%p5) target bundleno = 32 (0x20), region = 2 }\n"
        "   0x40 PF:  { done";
    struct sy_schedule_loop l[SY_SCHEDULE_LOOPS];
    assert_int_equal(sy_schedule_loops(text, sizeof text - 1, l), 2);
    assert_true(l[0].from == 0x20 && l[0].to == 0x40 && l[1].from == 0x28 && l[1].to == 0x33);
    assert_int_equal(sy_schedule_loops(text, 100, l), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attend), cmocka_unit_test(test_memory),
                                       cmocka_unit_test(test_mistakes), cmocka_unit_test(test_schedule)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
