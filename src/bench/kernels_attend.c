/* kernels_attend.c - attention over a paged cache: one token of many sequences, chunks of prompts, and writing keys.
 */
#include <math.h>
#include <stdio.h>

#include "backend/cpu/attend.h"
#include "backend/cpu/pages.h"
#include "base/rng.h"
#include "bench/kernels_int.h"

enum { BLOCK_LEN = 32, CTX = 1024, CTX_LONG = 8192, WRITE_TOK = 64, PARTS = CTX_LONG / SY_PARTITION };

static const struct model {
    const char *name;
    int32_t n_kv, n_group, d;
} models[] = {{"SmolLM2-135M", 3, 3, 64}, {"Qwen2.5-0.5B", 2, 7, 64}, {"gemma-3-270m", 1, 4, 256}};
static const char *const dtypes[] = {"f32", "bf16", "f16", "q8_0"};
_Static_assert(SY_COUNT(models) * SY_COUNT(dtypes) + 1 == ATTEND_GROUPS, "the progress counts groups");

struct attention {
    const struct sy_kernels *k;
    const struct model *m;
    struct sy_kv_dim kv;
    struct sy_pages layer;
    struct sy_arena arena;
    int32_t *table;        /* [n_block]: sequence i begins at i * blocks */
    float *q, *out, *rows; /* rows: keys and values to write */
    int32_t *row;
    float *partial; /* a slice per thread */
    int64_t slice;
    int32_t n_block, ctx, n_q;
    int64_t turn;
};

static void attend(void *ctx, int64_t item, int32_t thread)
{
    struct attention *t = ctx;
    const struct model *m = t->m;
    int64_t seq = item / m->n_kv, wide = (int64_t)m->n_kv * m->n_group * m->d;
    int32_t head = (int32_t)(item % m->n_kv), lo, hi;
    struct sy_attend a = {
        .kv = &t->kv,
        .layer = t->layer.at,
        .table = t->table + seq * (t->ctx / BLOCK_LEN),
        .kv_head = head,
        .n_group = m->n_group,
        .n_q = t->n_q,
        .pos0 = t->ctx - t->n_q,
        .scale = 0.125f,
        .q = t->q + head * m->n_group * m->d,
        .ldq = wide,
        .out = t->out + (int64_t)thread * SY_ATTEND_Q * wide + head * m->n_group * m->d,
        .ldo = wide,
        .partial = t->partial + thread * t->slice,
    };
    sy_attend_range(&a, &lo, &hi);
    a.n_part = hi - lo;
    for (a.part = lo; a.part < hi; a.part++) sy_attend_part(&t->k->attend, t->kv.dtype, &a, true);
    a.part = lo;
    t->k->attend.merge(&a);
}

static void write(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    struct attention *t = ctx;
    int64_t wide = (int64_t)t->m->n_kv * t->m->d, at = (t->turn * 8 + item) % (t->n_block / 8) * 8;
    for (int32_t i = 0; i < WRITE_TOK / 8; i++) t->row[item * WRITE_TOK / 8 + i] = (int32_t)(at * BLOCK_LEN + i * 3);
    t->k->attend.write[t->kv.dtype](&t->kv, t->layer.at, t->rows, wide, t->rows + wide, wide,
                                    t->row + item * WRITE_TOK / 8, WRITE_TOK / 8);
}

static sy_status make(struct bench *b, struct attention *t, const struct model *m, enum sy_kv_dtype dtype,
                      struct sy_err *err)
{
    *t = (struct attention){.m = m};
    t->kv = (struct sy_kv_dim){
        m->n_kv, m->d, m->d, BLOCK_LEN, dtype, sy_kv_block_bytes(m->n_kv, m->d, m->d, BLOCK_LEN, dtype), false};
    const int64_t per_seq = CTX_LONG / BLOCK_LEN;
    t->n_block = (int32_t)((int64_t)b->footprint / t->kv.block_bytes / per_seq * per_seq);
    if (t->n_block < per_seq) t->n_block = (int32_t)per_seq;
    size_t threads = (size_t)sy_pool_size(b->pool), wide = (size_t)(m->n_kv * m->n_group * m->d);
    t->slice = (int64_t)PARTS * SY_ATTEND_Q * m->n_group * (m->d + 2);
    sy_arena_init(&t->arena, b->env, 0);
    t->table = sy_arena_array(&t->arena, (size_t)t->n_block, sizeof *t->table);
    t->q = sy_arena_array(&t->arena, SY_ATTEND_Q * wide, sizeof(float));
    t->out = sy_arena_array(&t->arena, threads * SY_ATTEND_Q * wide, sizeof(float));
    t->rows = sy_arena_array(&t->arena, (size_t)(2 * m->n_kv * m->d * BLOCK_LEN), sizeof(float));
    t->row = sy_arena_array(&t->arena, WRITE_TOK + BLOCK_LEN, sizeof *t->row);
    t->partial = sy_arena_array(&t->arena, threads * (size_t)t->slice, sizeof(float));
    if (!t->table || !t->q || !t->out || !t->rows || !t->row || !t->partial)
        return sy_fail(err, SY_ENOMEM, "no memory for attention");
    sy_status st = sy_pages_new(&t->layer, (size_t)t->n_block * (size_t)t->kv.block_bytes, true, err);
    if (st) return st;
    for (size_t i = 0; i < SY_ATTEND_Q * wide; i++) t->q[i] = (float)sy_rng_unit(2, i) - 0.5f;
    for (int32_t i = 0; i < 2 * m->n_kv * m->d * BLOCK_LEN; i++)
        t->rows[i] = (float)sy_rng_unit(3, (uint64_t)i) - 0.5f;
    const struct sy_kernels *best = &b->level[b->n_level - 1].k;
    int64_t wide_kv = (int64_t)m->n_kv * m->d;
    for (int32_t i = 0; i < t->n_block; i++) {
        t->table[i] = (int32_t)((int64_t)i * 7919 % t->n_block); /* blocks of a sequence lie anywhere */
        for (int32_t k = 0; k < BLOCK_LEN; k++) t->row[WRITE_TOK + k] = i * BLOCK_LEN + k;
        best->attend.write[dtype](&t->kv, t->layer.at, t->rows, wide_kv, t->rows + wide_kv * BLOCK_LEN, wide_kv,
                                  t->row + WRITE_TOK, BLOCK_LEN);
    }
    return SY_OK;
}

static void one_case(struct bench *b, struct attention *t, const struct level *l, const char *what, int32_t ctx,
                     int32_t n_q)
{
    const struct model *m = t->m;
    t->k = &l->k;
    t->ctx = ctx;
    t->n_q = n_q;
    int32_t n_seq = t->n_block / (ctx / BLOCK_LEN), threads = sy_pool_size(b->pool);
    if (n_q > 1 && n_seq > threads) n_seq = threads; /* a chunk's keys are read by all its queries */
    struct sy_kernel_result r = {.isa = l->name, .family = "attend", .rows = (int64_t)n_seq * n_q};
    snprintf(r.kernel, sizeof r.kernel, "%s %s", what, dtypes[t->kv.dtype]);
    snprintf(r.shape, sizeof r.shape, "%s context %d", m->name, ctx);
    r.seconds = bench_time(b, (int64_t)n_seq * m->n_kv, attend, t, &t->turn);
    r.ops = 4.0 * n_seq * m->n_kv * m->n_group * m->d * n_q * (ctx - (n_q - 1) / 2.0);
    r.bytes = (double)n_seq * (ctx / BLOCK_LEN) * (double)t->kv.block_bytes;
    bench_tell(b, &r, b->machine.f32, b->machine.memory);
}

static void one_write(struct bench *b, struct attention *t, const struct level *l)
{
    t->k = &l->k;
    struct sy_kernel_result r = {.isa = l->name, .family = "attend", .rows = WRITE_TOK};
    snprintf(r.kernel, sizeof r.kernel, "write %s", dtypes[t->kv.dtype]);
    snprintf(r.shape, sizeof r.shape, "%s", t->m->name);
    r.seconds = bench_time(b, 8, write, t, &t->turn);
    r.bytes = (double)WRITE_TOK * t->m->n_kv * t->m->d * 2 * sizeof(float);
    bench_tell(b, &r, 0, b->machine.l2);
}

/* ---- sums in f32 and in bf16 -------------------------------------------------------------------------------------
 */

enum { SUM_KEYS = 512, SUM_ITEMS = 64 };
struct sums { /* keys and values stay in the caches */
    const struct sy_kernels_peak *k;
    bool bf16;
    float p[SUM_KEYS][SY_SUM_ROWS];
    uint16_t v[SUM_KEYS][SY_SUM_COLS];
};

static void sum_once(void *ctx, int64_t item, int32_t thread)
{
    (void)item, (void)thread;
    const struct sums *s = ctx;
    float f32[SY_SUM_ROWS][SY_SUM_COLS] = {0};
    uint16_t bf16[SY_SUM_ROWS][SY_SUM_COLS] = {0};
    if (s->bf16) s->k->sum_bf16(s->p, (const uint16_t(*)[SY_SUM_COLS])s->v, SUM_KEYS, bf16);
    else s->k->sum_f32(s->p, (const uint16_t(*)[SY_SUM_COLS])s->v, SUM_KEYS, f32);
    __asm__ volatile("" : : "r"(f32), "r"(bf16) : "memory");
}

static sy_status bench_sums(struct bench *b, struct sy_err *err)
{
    static const char shape[] = SY_BENCH_SUMS;
    if (!bench_wants(b, shape)) return SY_OK;
    struct sums *s = sy_new(b->env, sizeof *s);
    if (!s) return sy_fail(err, SY_ENOMEM, "no memory for sums");
    for (int k = 0; k < SUM_KEYS; k++) {
        for (int r = 0; r < SY_SUM_ROWS; r++) s->p[k][r] = (float)sy_rng_unit(4, (uint64_t)(k * SY_SUM_ROWS + r));
        for (int d = 0; d < SY_SUM_COLS; d++) s->v[k][d] = (uint16_t)(0x3f00 + (k * 31 + d * 7) % 128);
    }
    for (int i = 0; i < b->n_level; i++)
        for (int how = 0; how < 2; how++) {
            s->k = &b->level[i].k.peak;
            s->bf16 = how;
            int64_t turn;
            struct sy_kernel_result r = {.isa = b->level[i].name, .family = "attend", .rows = SY_SUM_ROWS};
            snprintf(r.kernel, sizeof r.kernel, "sums in %s", how ? "bf16" : "f32");
            snprintf(r.shape, sizeof r.shape, "%s", shape);
            r.seconds = bench_time(b, SUM_ITEMS, sum_once, s, &turn);
            r.ops = 2.0 * SUM_ITEMS * SUM_KEYS * SY_SUM_ROWS * SY_SUM_COLS;
            r.bytes = (double)SUM_ITEMS * sizeof s->v;
            bench_tell(b, &r, b->machine.f32, b->machine.l2);
        }
    sy_delete(b->env, s);
    return bench_next(b, err);
}

sy_status bench_attend(struct bench *b, struct sy_err *err)
{
    sy_status st = bench_sums(b, err);
    for (size_t m = 0; !st && m < SY_COUNT(models); m++)
        for (int d = 0; !st && d < (int)SY_COUNT(dtypes); d++) {
            struct attention t;
            if (!bench_wants(b, models[m].name)) continue;
            st = make(b, &t, &models[m], (enum sy_kv_dtype)d, err);
            for (int i = 0; !st && i < b->n_level; i++) {
                one_case(b, &t, &b->level[i], "decode", CTX, 1);
                one_case(b, &t, &b->level[i], "decode", CTX_LONG, 1);
                one_case(b, &t, &b->level[i], "prefill", CTX, SY_ATTEND_Q);
                one_write(b, &t, &b->level[i]);
            }
            sy_pages_free(&t.layer);
            sy_arena_release(&t.arena);
            if (!st) st = bench_next(b, err);
        }
    return st;
}
