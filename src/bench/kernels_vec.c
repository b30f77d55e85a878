/* kernels_vec.c - what happens to rows of activations between the products: hot in the caches. */
#include <math.h>
#include <stdio.h>

#include "bench/kernels_int.h"

enum { ROWS = 64, CHUNK = 8, VOCAB = 49152 };

static const struct model {
    const char *name;
    int64_t d, d_ff;
    int32_t n_head, d_head;
} models[] = {
    {"SmolLM2-135M", 576, 1536, 9, 64}, {"Qwen2.5-0.5B", 896, 4864, 14, 64}, {"gemma-3-270m", 640, 2048, 4, 256}};
_Static_assert(SY_COUNT(models) == VEC_GROUPS, "the progress counts groups");

struct rows {
    const struct sy_kernels *k;
    const struct model *m;
    struct sy_arena arena;
    float *x, *y, *z, *w, *cs;
    struct sy_rope_dim rope;
    int32_t pos[ROWS];
    int64_t turn;
};
typedef void row_case(struct rows *, int64_t lo);

static void norm(struct rows *t, int64_t lo)
{
    int64_t d = t->m->d;
    t->k->vec.norm(t->x + lo * d, d, t->w, 1e-6f, CHUNK, 1, d, t->z + lo * d, d);
}
static void rope_table(struct rows *t, int64_t lo)
{
    t->k->vec.rope_table(t->rope.inv_freq, t->rope.d_rot / 2, 1, t->pos + lo, CHUNK, t->cs + lo * t->rope.d_rot);
}
static void rope(struct rows *t, int64_t lo)
{
    int64_t wide = (int64_t)t->m->n_head * t->m->d_head;
    t->k->vec.rope(t->x + lo * wide, wide, CHUNK, t->m->n_head, &t->rope, t->cs + lo * t->rope.d_rot,
                   t->z + lo * wide, wide);
}
static void add(struct rows *t, int64_t lo)
{
    int64_t d = t->m->d;
    t->k->vec.add(t->x + lo * d, d, t->y + lo * d, d, CHUNK, d, t->z + lo * d, d);
}
static void mul(struct rows *t, int64_t lo)
{
    int64_t d = t->m->d;
    t->k->vec.mul(t->x + lo * d, d, t->y + lo * d, d, CHUNK, d, t->z + lo * d, d);
}
static void scale(struct rows *t, int64_t lo)
{
    int64_t d = t->m->d;
    t->k->vec.scale(t->x + lo * d, d, 0.5f, CHUNK, d, t->z + lo * d, d);
}
static void softcap(struct rows *t, int64_t lo)
{
    int64_t d = t->m->d;
    t->k->vec.softcap(t->x + lo * d, d, 30, CHUNK, d, t->z + lo * d, d);
}
static void glu_silu(struct rows *t, int64_t lo)
{
    int64_t d = t->m->d_ff;
    t->k->vec.glu(SY_SILU, t->x + lo * d, d, t->y + lo * d, d, CHUNK, d, t->z + lo * d, d);
}
static void glu_gelu(struct rows *t, int64_t lo)
{
    int64_t d = t->m->d_ff;
    t->k->vec.glu(SY_GELU_TANH, t->x + lo * d, d, t->y + lo * d, d, CHUNK, d, t->z + lo * d, d);
}
static void act_gelu(struct rows *t, int64_t lo)
{
    int64_t d = t->m->d_ff;
    t->k->vec.act(SY_GELU, t->x + lo * d, d, CHUNK, d, t->z + lo * d, d);
}
static void argmax(struct rows *t, int64_t lo) { t->pos[lo] = t->k->vec.argmax(t->x, VOCAB); }

/* moved: numbers read and written for each row */
static const struct {
    const char *name;
    row_case *run;
    int n_moved;
    enum { OF_D, OF_FF, OF_HEADS, OF_ROT, OF_VOCAB } wide;
} cases[] = {
    {"norm", norm, 2, OF_D},
    {"rope table", rope_table, 1, OF_ROT},
    {"rope", rope, 2, OF_HEADS},
    {"add", add, 3, OF_D},
    {"mul", mul, 3, OF_D},
    {"scale", scale, 2, OF_D},
    {"softcap", softcap, 2, OF_D},
    {"glu silu", glu_silu, 3, OF_FF},
    {"glu gelu tanh", glu_gelu, 3, OF_FF},
    {"act gelu", act_gelu, 2, OF_FF},
    {"argmax", argmax, 1, OF_VOCAB},
};

struct call {
    struct rows *t;
    row_case *run;
};
static void run_item(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    struct call *c = ctx;
    c->run(c->t, item * CHUNK);
}

static int64_t width(const struct model *m, int wide)
{
    switch (wide) {
    case OF_FF: return m->d_ff;
    case OF_HEADS: return (int64_t)m->n_head * m->d_head;
    case OF_ROT: return m->d_head;
    case OF_VOCAB: return VOCAB;
    default: return m->d;
    }
}

static sy_status make(struct bench *b, struct rows *t, const struct model *m, struct sy_err *err)
{
    *t = (struct rows){.m = m};
    size_t n = (size_t)ROWS * (size_t)m->d_ff;
    if (n < VOCAB) n = VOCAB;
    if (n < (size_t)(ROWS * m->n_head * m->d_head)) n = (size_t)(ROWS * m->n_head * m->d_head);
    sy_arena_init(&t->arena, b->env, 0);
    t->x = sy_arena_array(&t->arena, n, sizeof(float));
    t->y = sy_arena_array(&t->arena, n, sizeof(float));
    t->z = sy_arena_array(&t->arena, n, sizeof(float));
    t->w = sy_arena_array(&t->arena, (size_t)m->d, sizeof(float));
    t->cs = sy_arena_array(&t->arena, (size_t)(ROWS * m->d_head), sizeof(float));
    float *freq = sy_arena_array(&t->arena, (size_t)m->d_head, sizeof *freq);
    if (!t->x || !t->y || !t->z || !t->w || !t->cs || !freq) return sy_fail(err, SY_ENOMEM, "no memory for rows");
    for (size_t i = 0; i < n; i++) t->x[i] = t->y[n - 1 - i] = (float)(i % 253) / 64 - 2;
    for (int64_t i = 0; i < m->d; i++) t->w[i] = 1;
    for (int32_t i = 0; i < ROWS; i++) t->pos[i] = i * 31;
    for (int32_t i = 0; i < m->d_head / 2; i++) freq[i] = powf(10000, -2 * (float)i / (float)m->d_head);
    t->rope = (struct sy_rope_dim){.d_head = m->d_head, .d_rot = m->d_head, .mscale = 1, .inv_freq = freq};
    return SY_OK;
}

sy_status bench_vec(struct bench *b, struct sy_err *err)
{
    sy_status st = SY_OK;
    for (size_t m = 0; !st && m < SY_COUNT(models); m++) {
        struct rows t;
        if (!bench_wants(b, models[m].name)) continue;
        st = make(b, &t, &models[m], err);
        for (int i = 0; !st && i < b->n_level; i++)
            for (size_t c = 0; c < SY_COUNT(cases); c++) {
                struct call call = {&t, cases[c].run};
                struct sy_kernel_result r = {.isa = b->level[i].name, .family = "vec", .rows = ROWS};
                t.k = &b->level[i].k;
                int64_t wide = width(&models[m], cases[c].wide);
                if (cases[c].wide == OF_VOCAB) r.rows = ROWS / CHUNK; /* an item is one row of logits */
                snprintf(r.kernel, sizeof r.kernel, "%s", cases[c].name);
                snprintf(r.shape, sizeof r.shape, "%s %lld", models[m].name, (long long)wide);
                r.seconds = bench_time(b, ROWS / CHUNK, run_item, &call, &t.turn);
                r.bytes = (double)r.rows * (double)wide * cases[c].n_moved * sizeof(float);
                bench_tell(b, &r, 0, b->machine.l2);
            }
        sy_arena_release(&t.arena);
        if (!st) st = bench_next(b, err);
    }
    return st;
}
