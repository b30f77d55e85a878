/* kernels_gemm.c - matrix products. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/layout.h"
#include "backend/cpu/pages.h"
#include "base/rng.h"
#include "bench/kernels_int.h"
#include "quant/quant.h"

enum { ROW_TILE = 96, ITEMS_PER_THREAD = 6 };
static const double too_long_s = 0.5;

static const struct shape {
    const char *name;
    int64_t n, k;
} shapes[] = {
    {"SmolLM2-135M gate|up", 3072, 576}, {"SmolLM2-135M down", 576, 1536}, {"SmolLM2-135M lm_head", 49152, 576},
    {"Qwen2.5-0.5B gate|up", 9728, 896}, {"Qwen2.5-0.5B down", 896, 4864}, {"gemma-3-270m gate|up", 4096, 640},
    {"gemma-3-270m down", 640, 2048},
};
static const char *const formats[] = {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"};
_Static_assert(SY_COUNT(shapes) * SY_COUNT(formats) == GEMM_GROUPS, "the progress counts groups");

struct product {
    const struct sy_kernels *k;
    struct sy_panels w;  /* the first copy */
    struct sy_pages mem; /* copies of it, which calls take in turn */
    int64_t n_copy, turn;
    size_t stride;
    struct sy_xmat x;
    const float *from; /* activations [rows, k] */
    float *y;
    int64_t rows, row_chunk, n_row, panels, panel_chunk;
};

/* The same cut as the backend makes: tiles of rows by runs of panels. */
static void multiply(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    struct product *p = ctx;
    struct sy_panels w = p->w;
    w.data += (size_t)(p->turn % p->n_copy) * p->stride;
    int64_t row = item % p->n_row * p->row_chunk, panel = item / p->n_row * p->panel_chunk;
    int64_t row_hi = row + p->row_chunk < p->rows ? row + p->row_chunk : p->rows;
    int64_t panel_hi = panel + p->panel_chunk < p->panels ? panel + p->panel_chunk : p->panels;
    p->k->gemm.mul[w.layout](&w, &p->x, row, row_hi, panel, panel_hi, p->y, w.n, NULL);
}

static void prepare(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    struct product *p = ctx;
    int64_t hi = item * 16 + 16 < p->rows ? item * 16 + 16 : p->rows;
    p->k->gemm.prepare[p->x.kind](p->from, p->x.k, item * 16, hi, &p->x);
}

/* Random weights as a file would hold them, packed, and copied until they are far more than caches keep. */
static sy_status make_weights(struct bench *b, struct product *p, enum sy_layout layout, const struct sy_quant *q,
                              const struct shape *s, struct sy_err *err)
{
    struct sy_arena a;
    sy_arena_init(&a, b->env, 0);
    sy_panels_plan(&p->w, layout, q, s->n, s->k);
    size_t row_bytes = (size_t)sy_quant_row_bytes(q, s->k);
    unsigned char *rows = sy_arena_array(&a, (size_t)s->n, row_bytes);
    float *row = sy_arena_array(&a, (size_t)s->k, sizeof *row),
          *scratch = sy_arena_array(&a, sy_panels_scratch(s->k), sizeof *scratch);
    p->stride = (p->w.n_bytes + 4095) & ~(size_t)4095;
    p->n_copy = (int64_t)(b->footprint / p->stride) + 1;
    sy_pages_free(&p->mem);
    sy_status st = rows && row && scratch
                       ? SY_OK
                       : sy_fail(err, SY_ENOMEM, "no memory for a matrix of %zu bytes", row_bytes * (size_t)s->n);
    if (!st) st = sy_pages_new(&p->mem, p->stride * (size_t)p->n_copy, true, err);
    /* A few different rows will do: what they are changes no time. */
    for (int64_t i = 0; !st && i < s->n; i++) {
        for (int64_t k = 0; i < 16 && k < s->k; k++) row[k] = (float)sy_rng_unit(1, (uint64_t)(i * s->k + k)) - 0.5f;
        if (i < 16) q->quantise(row, rows + (size_t)i * row_bytes, s->k);
        else memcpy(rows + (size_t)i * row_bytes, rows + (size_t)(i % 16) * row_bytes, row_bytes);
    }
    if (!st) {
        struct sy_tensor t = {.name = s->name,
                              .file_name = s->name,
                              .format = q,
                              .n_dim = 2,
                              .dim = {s->n, s->k},
                              .data = rows,
                              .n_bytes = row_bytes * (size_t)s->n};
        p->w.data = p->mem.at;
        p->panels = sy_ceil_div(s->n, SY_PANEL);
        sy_panels_pack(&p->w, &t, 0, 0, p->panels, scratch);
        for (int64_t i = 1; i < p->n_copy; i++) memcpy(p->mem.at + (size_t)i * p->stride, p->mem.at, p->w.n_bytes);
    }
    sy_arena_release(&a);
    return st;
}

static double peak_of(const struct bench *b, enum sy_layout l)
{
    enum sy_xkind x = sy_layout_xkind(l);
    if (x == SY_X_I8) return b->machine.int8;
    return x == SY_X_F32 || b->machine.bf16 <= 0 ? b->machine.f32 : b->machine.bf16;
}

static void one_size(struct bench *b, struct product *p, int at_level, const struct shape *s, const char *format,
                     int64_t rows)
{
    const struct level *l = &b->level[at_level];
    p->rows = rows;
    p->n_row = sy_ceil_div(rows, ROW_TILE);
    p->row_chunk = sy_ceil_div(rows, p->n_row);
    p->panel_chunk = sy_ceil_div(p->panels, sy_ceil_div(ITEMS_PER_THREAD * sy_pool_size(b->pool), p->n_row));
    struct sy_kernel_result r = {.isa = l->name, .family = "gemm", .rows = rows};
    snprintf(r.kernel, sizeof r.kernel, "%s (%s)", sy_layout_name(p->w.layout), format);
    snprintf(r.shape, sizeof r.shape, "%s %lldx%lld", s->name, (long long)s->n, (long long)s->k);
    int64_t items = p->n_row * sy_ceil_div(p->panels, p->panel_chunk);
    r.seconds = bench_time(b, items, multiply, p, &p->turn);
    r.ops = 2.0 * (double)rows * (double)s->n * (double)s->k;
    r.bytes = (double)p->w.n_bytes;
    bench_tell(b, &r, peak_of(b, p->w.layout), b->machine.memory);
    b->slow[at_level] = r.seconds / (double)rows;
}

static void one_prepare(struct bench *b, struct product *p, int at_level, const struct shape *s)
{
    static const char *const names[SY_X_COUNT] = {
        [SY_X_F32] = "to f32", [SY_X_BF16] = "to bf16", [SY_X_I8] = "to int8"};
    const char *to = names[p->x.kind] ? names[p->x.kind] : "with sums";
    struct sy_kernel_result r = {.isa = b->level[at_level].name, .family = "gemm", .rows = p->rows};
    snprintf(r.kernel, sizeof r.kernel, "prepare %s", to);
    snprintf(r.shape, sizeof r.shape, "%s %lld", s->name, (long long)s->k);
    int64_t turn;
    r.seconds = bench_time(b, sy_ceil_div(p->rows, 16), prepare, p, &turn);
    r.bytes = (double)p->rows * (double)s->k * sizeof(float);
    bench_tell(b, &r, 0, b->machine.l2);
}

static sy_status one_layout(struct bench *b, struct product *p, int at_level, const struct shape *s,
                            const char *format, int32_t rows_max, bool with_prepare, struct sy_err *err)
{
    struct sy_pages x;
    sy_status st = sy_pages_new(&x, sy_xmat_bytes(sy_layout_xkind(p->w.layout), rows_max, s->k) + 64, true, err);
    if (st) return st;
    p->k = &b->level[at_level].k;
    b->slow[at_level] = 0;
    for (size_t i = 0; i < b->o->n_rows; i++) {
        int32_t rows = b->o->rows[i];
        if (b->slow[at_level] * rows > too_long_s) continue; /* portable code with many rows says nothing new */
        sy_xmat_init(&p->x, sy_layout_xkind(p->w.layout), rows, s->k, x.at);
        p->rows = rows;
        sy_pool_run(b->pool, sy_ceil_div(rows, 16), prepare, p);
        if (with_prepare && i + 1 == b->o->n_rows) one_prepare(b, p, at_level, s);
        one_size(b, p, at_level, s, format, rows);
    }
    sy_pages_free(&x);
    return SY_OK;
}

static sy_status one_shape(struct bench *b, struct product *p, const struct shape *s, const char *format,
                           int32_t rows_max, struct sy_err *err)
{
    const struct sy_quant *q = sy_quant_by_name(format);
    int packed = -1;
    /* Preparing operands is shown once for each kind. */
    bool first = s == &shapes[0] && (!strcmp(format, "f32") || !strcmp(format, "bf16") || !strcmp(format, "q8_0"));
    sy_status st = SY_OK;
    for (int i = 0; !st && i < b->n_level; i++) {
        enum sy_layout layout;
        st = sy_layout_choose(q, SY_COMPUTE_AUTO, &b->level[i].k, &layout, err);
        if (!st && (int)layout != packed) st = make_weights(b, p, layout, q, s, err);
        packed = (int)layout;
        if (!st) st = one_layout(b, p, i, s, format, rows_max, first, err);
    }
    return st ? st : bench_next(b, err);
}

sy_status bench_gemm(struct bench *b, struct sy_err *err)
{
    struct product p = {0};
    struct sy_pages y, from = {0};
    int32_t rows_max = 16;
    for (size_t i = 0; i < b->o->n_rows; i++) rows_max = b->o->rows[i] > rows_max ? b->o->rows[i] : rows_max;
    int64_t n = 0, k = 0;
    for (size_t i = 0; i < SY_COUNT(shapes); i++) {
        n = shapes[i].n > n ? shapes[i].n : n;
        k = shapes[i].k > k ? shapes[i].k : k;
    }
    sy_status st = sy_pages_new(&y, (size_t)(rows_max * n) * sizeof(float), true, err);
    if (!st) st = sy_pages_new(&from, (size_t)(rows_max * k) * sizeof(float), true, err);
    float *x = (float *)(void *)from.at;
    for (int64_t i = 0; !st && i < rows_max * k; i++) x[i] = (float)(i % 251 - 125) / 64;
    p.y = (float *)(void *)y.at;
    p.from = x;
    for (size_t f = 0; !st && f < SY_COUNT(formats); f++)
        for (size_t s = 0; !st && s < SY_COUNT(shapes); s++)
            if (bench_wants(b, shapes[s].name)) st = one_shape(b, &p, &shapes[s], formats[f], rows_max, err);
    sy_pages_free(&p.mem);
    sy_pages_free(&y);
    sy_pages_free(&from);
    return st;
}
