/* attend.c - ragged paged attention. A tile's rows are its tokens times the queries of a key head. The text's order
 * is the order of work: products of all heads of a group, then all maxima, all exponentials, all products with the
 * values, since the compiler does not interleave by itself and each step has some hundred cycles of latency. */
#include <math.h>

#include "backend/pjrt/mosaic/kernels.h"

#define NEVER (-1.0e30) /* a masked score: finite, so that nothing but masked ones leaves no NaN */
#define LOG2E 1.4426950408889634
enum {
    SUMS = 128, /* a row's sum is kept in as many parts, and added up once */
    PARTS = 8,  /* of a fetch */
};

struct attend {
    struct mosaic *m;
    const struct mo_attend *a;
    int table, start, ctx, live, q, k, v, scales, out;              /* operands */
    int qbuf, kbuf, vbuf, sbuf, obuf, qsem, ksem, vsem, ssem, osem; /* scratch */
    int none, zero_acc, zero_score;
    int32_t keys, rows, parts; /* of a fetch, of a tile; of a fetch, worked on one after the other */
    struct mo_type score, acc, column;
    enum mo_elem elem; /* of the cache */
};
struct work { /* one tile: i32 values */
    int seq, token, pos, block, n_block, n_fetch, n_tile;
};
struct head { /* what is carried from fetch to fetch: maximum [rows, 1], sums [rows, SUMS], values [rows, d] */
    int max, sum, acc;
};

static int op(struct attend *x, const char *name, int a, int b) { return mo_binary(x->m, name, a, b); }
static int num(struct attend *x, int32_t n) { return mo_i32(x->m, n); }

static void declare(struct attend *x)
{
    struct mosaic *m = x->m;
    const struct mo_attend *a = x->a;
    int32_t width = a->n_kv * a->d;
    x->elem = a->bytes ? MO_I8 : MO_BF16;
    x->table = mo_prefetch(m, a->n_seq * a->n_table);
    x->start = mo_prefetch(m, a->n_seq + 1);
    x->ctx = mo_prefetch(m, a->n_seq);
    x->live = mo_prefetch(m, 1);
    struct mo_type query = MO_TYPE(MO_HBM, MO_BF16, mo_attend_rows(a), a->n_kv, a->g, a->d);
    x->q = mo_input(m, query);
    x->keys = a->fetch * a->block_len;
    x->parts = x->keys / a->part;
    x->k = mo_input(m, MO_TYPE(MO_HBM, x->elem, a->n_block, a->block_len, width));
    x->v = mo_input(m, MO_TYPE(MO_HBM, x->elem, a->n_block, a->block_len, width));
    int32_t wide = mo_attend_wide(a);
    if (a->bytes) x->scales = mo_input(m, MO_TYPE(MO_HBM, MO_I8, a->n_block, a->block_len, wide));
    x->out = mo_output(m, query);
    x->qbuf = mo_scratch(m, MO_TYPE(MO_VMEM, MO_BF16, 2, a->tile, a->n_kv, a->g, a->d));
    int (*cache)(struct mosaic *, struct mo_type) = mo_attend_tiled(a) ? mo_scratch_tiled : mo_scratch;
    x->kbuf = cache(m, MO_TYPE(MO_VMEM, x->elem, a->slots, a->fetch, a->block_len, width));
    x->vbuf = cache(m, MO_TYPE(MO_VMEM, x->elem, a->slots, a->fetch, a->block_len, width));
    if (a->bytes) x->sbuf = mo_scratch(m, MO_TYPE(MO_VMEM, MO_I8, a->slots, a->fetch, a->block_len, wide));
    x->obuf = mo_scratch(m, MO_TYPE(MO_VMEM, MO_BF16, a->tile, a->n_kv, a->g, a->d));
    x->qsem = mo_scratch(m, MO_TYPE(MO_SEMAPHORES, MO_SEM, 2));
    x->ksem = mo_scratch(m, MO_TYPE(MO_SEMAPHORES, MO_SEM, a->slots));
    x->vsem = mo_scratch(m, MO_TYPE(MO_SEMAPHORES, MO_SEM, a->slots));
    if (a->bytes) x->ssem = mo_scratch(m, MO_TYPE(MO_SEMAPHORES, MO_SEM, a->slots));
    x->osem = mo_scratch(m, MO_TYPE(MO_SEMAPHORES, MO_SEM, 1));
    x->rows = a->tile * a->g;
    x->score = MO_VEC(MO_F32, x->rows, a->part);
    x->acc = MO_VEC(MO_F32, x->rows, a->d);
    x->column = MO_VEC(MO_F32, x->rows, 1);
    x->none = mo_splat(m, x->score, NEVER);
    x->zero_acc = mo_splat(m, x->acc, 0);
    x->zero_score = mo_splat(m, x->score, 0);
}

/* ---- what there is to do ----------------------------------------------------------------------------------------
 */

static struct work work_of(struct attend *x, int seq, int tile)
{
    const struct mo_attend *a = x->a;
    struct work w = {.seq = seq};
    int first = mo_get(x->m, x->start, seq), end = mo_get(x->m, x->start, mo_add(x->m, seq, num(x, 1)));
    int ctx = mo_get(x->m, x->ctx, seq);
    w.token = mo_add(x->m, first, mo_times(x->m, tile, a->tile));
    int after = mo_min(x->m, mo_add(x->m, w.token, num(x, a->tile)), end);
    w.pos = mo_sub(x->m, ctx, mo_sub(x->m, end, w.token)); /* of the tile's first token */
    int last = mo_sub(x->m, ctx, mo_add(x->m, mo_sub(x->m, end, after), num(x, 1)));
    w.block = num(x, 0);
    if (a->window > 0)
        w.block =
            mo_over(x->m, op(x, "arith.maxsi", mo_sub(x->m, w.pos, num(x, a->window - 1)), num(x, 0)), a->block_len);
    w.n_block = mo_add(x->m, mo_sub(x->m, mo_over(x->m, last, a->block_len), w.block), num(x, 1));
    w.n_fetch = mo_over_up(x->m, w.n_block, a->fetch);
    w.n_tile = mo_over_up(x->m, mo_sub(x->m, end, first), a->tile);
    return w;
}

/* ---- transfers --------------------------------------------------------------------------------------------------
 */

static int blocks_of(struct attend *x, const struct work *w, int fetch)
{
    int first = mo_times(x->m, fetch, x->a->fetch);
    return mo_min(x->m, mo_sub(x->m, w->n_block, first), num(x, x->a->fetch));
}

/* Asks for n blocks from the fetch's i-th on. All are read from the table first: a read waits for transfers that the
 * text begins before it. */
static void blocks_start(struct attend *x, int place, int i, int32_t n, int slot)
{
    struct mosaic *m = x->m;
    int block[MO_TURN_MAX], ksem = MO_AT(m, x->ksem, slot), vsem = MO_AT(m, x->vsem, slot),
                            from = mo_add(m, place, i);
    int ssem = x->a->bytes ? MO_AT(m, x->ssem, slot) : -1;
    for (int32_t k = 0; k < n; k++) block[k] = mo_get(m, x->table, mo_add(m, from, num(x, k)));
    for (int32_t k = 0; k < n; k++) {
        int at = mo_add(m, i, num(x, k));
        mo_copy_start(m, MO_AT(m, x->k, block[k]), MO_AT(m, x->kbuf, slot, at), ksem);
        mo_copy_start(m, MO_AT(m, x->v, block[k]), MO_AT(m, x->vbuf, slot, at), vsem);
        if (ssem >= 0) mo_copy_start(m, MO_AT(m, x->scales, block[k]), MO_AT(m, x->sbuf, slot, at), ssem);
    }
}

/* Asks for the blocks of a tile's fetch. What no block is written to in a slot's first use is cleared: a masked key
 * has weight 0, but 0 times whatever the memory held may be NaN. Of bytes it is their scales that may. */
static void fetch_start(struct attend *x, const struct work *w, int fetch, int count)
{
    struct mosaic *m = x->m;
    const struct mo_attend *a = x->a;
    int n = blocks_of(x, w, fetch), slot = op(x, "arith.remsi", count, num(x, a->slots));
    int place =
        mo_add(x->m, mo_add(x->m, mo_times(x->m, w->seq, a->n_table), w->block), mo_times(x->m, fetch, a->fetch));
    int32_t turn = mo_attend_turn(a);
    int turns = mo_over(m, n, turn), i = mo_for(m, num(x, 0), turns, NULL, 0);
    blocks_start(x, place, mo_times(m, i, turn), turn, slot);
    mo_for_end(m, NULL, NULL, 0);
    i = mo_for(m, mo_times(m, turns, turn), n, NULL, 0);
    blocks_start(x, place, i, 1, slot);
    mo_for_end(m, NULL, NULL, 0);
    mo_if(m, mo_compare(m, "slt", count, num(x, a->slots)));
    i = mo_for(m, n, num(x, a->fetch), NULL, 0);
    int32_t width = a->bytes ? mo_attend_wide(a) : a->n_kv * a->d;
    int zero = mo_splat(m, MO_VEC(x->elem, 1, 1, a->block_len, width), 0);
    mo_store(m, a->bytes ? x->sbuf : x->vbuf, (const int[]){slot, i, -1, -1}, zero);
    mo_for_end(m, NULL, NULL, 0);
    mo_if_end(m);
}

/* One wait for all of a fetch's bytes. */
static void fetch_wait(struct attend *x, int array, int buffer, int sems, int slot, int n)
{
    struct mosaic *m = x->m;
    int to = mo_span_of(m, MO_AT(m, buffer, slot), num(x, 0), n);
    mo_copy_wait(m, mo_span_of(m, array, num(x, 0), n), to, MO_AT(m, sems, slot));
}

static int query_part(struct attend *x, int token) { return mo_span(x->m, x->q, token, x->a->tile); }

static void query_start(struct attend *x, const struct work *w, int slot)
{
    mo_copy_start(x->m, query_part(x, w->token), MO_AT(x->m, x->qbuf, slot), MO_AT(x->m, x->qsem, slot));
}

static void query_wait(struct attend *x, int slot)
{
    mo_copy_wait(x->m, query_part(x, num(x, 0)), MO_AT(x->m, x->qbuf, slot), MO_AT(x->m, x->qsem, slot));
}

static void out_wait(struct attend *x)
{
    mo_copy_wait(x->m, x->obuf, mo_span(x->m, x->out, num(x, 0), x->a->tile), MO_AT(x->m, x->osem, num(x, 0)));
}

/* ---- arithmetic of one fetch ------------------------------------------------------------------------------------
 */

/* Keys or values of a part of a fetch: [part, d]. */
static int keys_of(struct attend *x, int buffer, int slot, int32_t part, int32_t head)
{
    const struct mo_attend *a = x->a;
    int32_t n = a->part / a->block_len;
    const int at[] = {slot, num(x, part * n), -1, num(x, head * a->d)};
    int v = mo_load(x->m, buffer, at, MO_VEC(x->elem, 1, n, a->block_len, a->d));
    return mo_convert(x->m, MO_RESHAPE(x->m, v, a->part, a->d), MO_BF16);
}

/* The scales of a part, [heads, part]: of keys, then of values. Bytes of a position lie beside one another, as
 * lower_q8.c says it: a product with 128 and 1 where they belong turns them and makes one number of both, which is
 * the upper half of the scale's bits, less 128 * 128. */
static int scales_of(struct attend *x, int slot, int32_t part)
{
    struct mosaic *m = x->m;
    const struct mo_attend *a = x->a;
    if (!a->bytes) return -1;
    int32_t n = a->part / a->block_len, rows = (2 * a->n_kv + 7) / 8 * 8, wide = mo_attend_wide(a);
    struct mo_type choice = MO_VEC(MO_I32, rows, wide), all = MO_VEC(MO_F32, rows, a->part), bits = all;
    bits.elem = MO_I32;
    int row = mo_iota(m, choice, 0), column = mo_iota(m, choice, 1);
    /* Keys' upper bytes, their lower, values' upper, their lower. */
    int values = mo_compare(m, "sge", row, mo_splat(m, choice, a->n_kv));
    int upper = op(x, "arith.addi", row, mo_select(m, values, mo_splat(m, choice, a->n_kv), mo_splat(m, choice, 0)));
    int lower = op(x, "arith.addi", upper, mo_splat(m, choice, a->n_kv));
    choice.elem = MO_F32;
    int is = mo_select(m, mo_compare(m, "eq", column, lower), mo_splat(m, choice, 1), mo_splat(m, choice, 0));
    is = mo_select(m, mo_compare(m, "eq", column, upper), mo_splat(m, choice, 128), is);
    int v =
        mo_load(m, x->sbuf, (const int[]){slot, num(x, part * n), -1, -1}, MO_VEC(MO_I8, 1, n, a->block_len, wide));
    v = mo_convert(m, MO_RESHAPE(m, v, a->part, wide), MO_BF16);
    v = mo_convert(m, mo_product(m, mo_convert(m, is, MO_BF16), v, true, mo_splat(m, all, 0)), MO_I32);
    v = op(x, "arith.muli", op(x, "arith.addi", v, mo_splat(m, bits, 128 * 128)), mo_splat(m, bits, 1 << 16));
    return mo_bitcast(m, v, MO_F32);
}

/* v [rows, part] with each column scaled: row `row` of the scales. */
static int scaled(struct attend *x, int v, int by, int32_t row)
{
    if (by < 0) return v;
    return op(x, "arith.mulf", v, mo_broadcast(x->m, mo_rows(x->m, by, row, 1), x->score));
}

/* Which keys (columns, the first at position key0) each row sees. */
static int mask_of(struct attend *x, const struct work *w, int key0)
{
    struct mosaic *m = x->m;
    struct mo_type whole = x->score;
    whole.elem = MO_I32;
    int key = mo_iota(m, whole, 1), limit = mo_broadcast(m, mo_sub(x->m, w->pos, key0), whole);
    if (x->a->tile > 1) {
        int row = op(x, "arith.shrsi", mo_iota(m, whole, 0), mo_splat(m, whole, mo_log2(x->a->g)));
        limit = mo_add(x->m, limit, row);
    }
    int mask = mo_compare(m, "sle", key, limit);
    if (x->a->window <= 0) return mask;
    int low = op(x, "arith.subi", limit, mo_splat(m, whole, x->a->window));
    return op(x, "arith.andi", mask, mo_compare(m, "sgt", key, low));
}

/* Scores in powers of two, masked. */
static int scores(struct attend *x, int q, int slot, int32_t part, int32_t head, int mask, int by)
{
    struct mosaic *m = x->m;
    const struct mo_attend *a = x->a;
    int s = mo_product(m, q, keys_of(x, x->kbuf, slot, part, head), true, x->zero_score);
    double scale = (double)a->scale;
    s = scaled(x, s, by, head);
    if (a->softcap > 0) {
        s = op(x, "arith.mulf", s, mo_splat(m, x->score, scale / (double)a->softcap));
        s = mo_unary(m, "math.tanh", s);
        scale = (double)a->softcap;
    }
    s = op(x, "arith.mulf", s, mo_splat(m, x->score, scale * LOG2E));
    return mo_select(m, mask, s, x->none);
}

static int sums_of(struct attend *x, int p)
{
    int sum = -1;
    for (int32_t from = 0; from < x->a->part; from += SUMS) {
        int some = mo_columns(x->m, p, from, SUMS);
        sum = sum < 0 ? some : op(x, "arith.addf", sum, some);
    }
    return sum;
}

/* A part's scores s of heads h0 to h1, of which top are the largest, and its values, into what is carried; by: its
 * scales. */
static void weigh(struct attend *x, int slot, int32_t part, const int *s, const int *top, int by, int32_t h0,
                  int32_t h1, struct head *head)
{
    struct mosaic *m = x->m;
    struct mo_type sums = MO_VEC(MO_F32, x->rows, SUMS);
    int max[MO_CARRY_MAX], p[MO_CARRY_MAX], keep[MO_CARRY_MAX], y[MO_CARRY_MAX];
    for (int32_t h = h0; h < h1; h++) {
        max[h] = op(x, "arith.maximumf", head[h].max, top[h]);
        p[h] = mo_unary(m, "math.exp2", op(x, "arith.subf", s[h], mo_broadcast(m, max[h], x->score)));
        keep[h] = mo_unary(m, "math.exp2", op(x, "arith.subf", head[h].max, max[h]));
    }
    for (int32_t h = h0; h < h1; h++) {
        int v = keys_of(x, x->vbuf, slot, part, h);
        int some = mo_convert(m, scaled(x, p[h], by, x->a->n_kv + h), MO_BF16);
        y[h] = mo_product(m, some, v, false, x->zero_acc);
    }
    for (int32_t h = h0; h < h1; h++) {
        int sum = op(x, "arith.mulf", mo_broadcast(m, keep[h], sums), head[h].sum);
        int acc = op(x, "arith.mulf", mo_broadcast(m, keep[h], x->acc), head[h].acc);
        head[h].sum = op(x, "arith.addf", sum, sums_of(x, p[h]));
        head[h].acc = op(x, "arith.addf", acc, y[h]);
        head[h].max = max[h];
    }
}

/* Of several parts, each is multiplied with the queries while the maxima of the one before are on their way,
 * and all are before exponentials and values of the first follow: the matrix unit has work while results are
 * waited for. */
static void one_fetch(struct attend *x, const struct work *w, const int *q, int fetch, int slot, struct head *head)
{
    struct mosaic *m = x->m;
    const struct mo_attend *a = x->a;
    int n = blocks_of(x, w, fetch), s[PARTS][MO_CARRY_MAX], top[PARTS][MO_CARRY_MAX], by[PARTS], mask[PARTS];
    int32_t most = x->parts > 1, rest = x->parts > 1 ? x->parts : 0; /* parts between products and maxima, values */
    int key0 = mo_times(x->m, mo_add(x->m, w->block, mo_times(x->m, fetch, a->fetch)), a->block_len);
    for (int32_t i = 0; i < x->parts; i++) mask[i] = mask_of(x, w, mo_add(m, key0, num(x, i * a->part)));
    fetch_wait(x, x->k, x->kbuf, x->ksem, slot, n);
    fetch_wait(x, x->v, x->vbuf, x->vsem, slot, n); /* here: a wait further down keeps work from moving past it */
    if (a->bytes) fetch_wait(x, x->scales, x->sbuf, x->ssem, slot, n);
    for (int32_t h0 = 0; h0 < a->n_kv; h0 += a->heads) {
        int32_t h1 = h0 + a->heads < a->n_kv ? h0 + a->heads : a->n_kv;
        for (int32_t i = 0; i < x->parts + rest; i++) {
            if (h0 == 0 && i < x->parts) by[i] = scales_of(x, slot, i);
            for (int32_t h = h0; h < h1 && i < x->parts; h++) s[i][h] = scores(x, q[h], slot, i, h, mask[i], by[i]);
            for (int32_t h = h0, k = i - most; h < h1 && k >= 0 && k < x->parts; h++)
                top[k][h] = mo_reduce(m, "maximumf", s[k][h], 1);
            if (i >= rest) weigh(x, slot, i - rest, s[i - rest], top[i - rest], by[i - rest], h0, h1, head);
        }
    }
}

/* ---- loops ------------------------------------------------------------------------------------------------------
 */

/* Asks for what comes after a fetch: the tile's next, or the first of the next tile or sequence, with its queries. */
static void next_start(struct attend *x, const struct work *w, int tile, int fetch, int count, int items)
{
    struct mosaic *m = x->m;
    int zero = num(x, 0), fetch1 = mo_add(x->m, fetch, num(x, 1)), tile1 = mo_add(x->m, tile, num(x, 1));
    int same = mo_compare(m, "slt", fetch1, w->n_fetch);
    int more = x->a->tile > 1 ? mo_compare(m, "slt", tile1, w->n_tile) : -1;
    int tile2 = more < 0 ? zero : mo_select(m, more, tile1, zero), seq1 = mo_add(x->m, w->seq, num(x, 1));
    int seq2 = more < 0 ? seq1 : mo_select(m, more, w->seq, seq1);
    int seq = mo_select(m, same, w->seq, seq2);
    int is = mo_compare(m, "slt", seq, mo_get(m, x->live, zero));
    mo_if(m, is);
    struct work then = work_of(x, seq, mo_select(m, same, tile, tile2));
    fetch_start(x, &then, mo_select(m, same, fetch1, zero), mo_add(x->m, count, num(x, 1)));
    mo_if(m, mo_compare(m, "sge", fetch1, w->n_fetch));
    query_start(x, &then, op(x, "arith.andi", mo_add(x->m, items, num(x, 1)), num(x, 1)));
    mo_if_end(m);
    mo_if_end(m);
}

static void finish_tile(struct attend *x, const struct work *w, const struct head *head, int items)
{
    struct mosaic *m = x->m;
    const struct mo_attend *a = x->a;
    int y[MO_CARRY_MAX];
    for (int32_t h = 0; h < a->n_kv; h++) {
        int sum = mo_broadcast(m, mo_reduce(m, "add", head[h].sum, 1), x->acc);
        y[h] = mo_convert(m, op(x, "arith.divf", head[h].acc, sum), MO_BF16);
    }
    mo_if(m, mo_compare(m, "sgt", items, num(x, 0))); /* tiles overlap: one is written after the other */
    out_wait(x);
    mo_if_end(m);
    for (int32_t h = 0; h < a->n_kv; h++)
        mo_store(m, x->obuf, (const int[]){-1, num(x, h), -1, -1}, MO_RESHAPE(m, y[h], a->tile, 1, a->g, a->d));
    mo_copy_start(m, x->obuf, mo_span(m, x->out, w->token, a->tile), MO_AT(m, x->osem, num(x, 0)));
}

/* All fetches of one tile; count and items: fetches and tiles before it. Returns the fetches then. */
static int one_tile(struct attend *x, int seq, int tile, int count, int items)
{
    struct mosaic *m = x->m;
    const struct mo_attend *a = x->a;
    struct work w = work_of(x, seq, tile);
    int q[MO_CARRY_MAX], carry[MO_CARRY_MAX], n = 3 * a->n_kv, slot = op(x, "arith.andi", items, num(x, 1));
    struct head head[MO_CARRY_MAX];
    query_wait(x, slot);
    for (int32_t h = 0; h < a->n_kv; h++) {
        const int at[] = {slot, -1, num(x, h), -1, -1};
        q[h] = MO_RESHAPE(m, mo_load(m, x->qbuf, at, MO_VEC(MO_BF16, 1, a->tile, 1, a->g, a->d)), x->rows, a->d);
        carry[3 * h] = mo_splat(m, x->column, NEVER);
        carry[3 * h + 1] = mo_splat(m, MO_VEC(MO_F32, x->rows, SUMS), 0);
        carry[3 * h + 2] = x->zero_acc;
    }
    int fetch = mo_for(m, num(x, 0), w.n_fetch, carry, n), now = mo_add(x->m, count, fetch);
    for (int32_t h = 0; h < a->n_kv; h++) head[h] = (struct head){carry[3 * h], carry[3 * h + 1], carry[3 * h + 2]};
    next_start(x, &w, tile, fetch, now, items);
    one_fetch(x, &w, q, fetch, op(x, "arith.remsi", now, num(x, a->slots)), head);
    for (int32_t h = 0; h < a->n_kv; h++) {
        carry[3 * h] = head[h].max;
        carry[3 * h + 1] = head[h].sum;
        carry[3 * h + 2] = head[h].acc;
    }
    mo_for_end(m, carry, carry, n);
    for (int32_t h = 0; h < a->n_kv; h++) head[h] = (struct head){carry[3 * h], carry[3 * h + 1], carry[3 * h + 2]};
    finish_tile(x, &w, head, items);
    return mo_add(x->m, count, w.n_fetch);
}

void mo_attend(struct mosaic *m, const struct mo_attend *a)
{
    struct attend x = {.m = m, .a = a};
    sy_assert(3 * a->n_kv <= MO_CARRY_MAX && a->slots >= 2 && a->fetch * a->block_len % SUMS == 0 && a->d % 128 == 0);
    sy_assert(!a->bytes || a->block_len % 32 == 0);
    sy_assert(a->part % SUMS == 0 && a->part % a->block_len == 0 && a->fetch * a->block_len % a->part == 0);
    sy_assert(a->fetch * a->block_len / a->part <= PARTS);
    declare(&x);
    int zero = num(&x, 0), live = mo_get(m, x.live, zero), carry[2] = {zero, zero};
    int any = mo_compare(m, "sgt", live, zero);
    mo_if(m, any);
    struct work first = work_of(&x, zero, zero);
    fetch_start(&x, &first, zero, zero);
    query_start(&x, &first, zero);
    mo_if_end(m);
    int seq = mo_for(m, zero, live, carry, 2);
    if (a->tile == 1) {
        int count = one_tile(&x, seq, zero, carry[0], carry[1]);
        carry[1] = mo_add(m, carry[1], num(&x, 1));
        carry[0] = count;
    } else {
        struct work w = work_of(&x, seq, zero);
        int tile = mo_for(m, zero, w.n_tile, carry, 2);
        int count = one_tile(&x, seq, tile, carry[0], carry[1]);
        mo_for_end(m, (const int[]){count, mo_add(m, carry[1], num(&x, 1))}, carry, 2);
    }
    mo_for_end(m, carry, carry, 2);
    mo_if(m, any);
    out_wait(&x);
    mo_if_end(m);
}
