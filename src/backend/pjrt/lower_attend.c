/* lower_attend.c - paged attention as plain StableHLO: keys and values are written by row, then read by block table
 * in runs of blocks, with a running maximum and sum (Milakov and Gimelshein, arXiv:1805.02867), so that no more than
 * one run of keys is ever copied out of the cache.
 *
 * A decode bucket takes all sequences at once, one query each, over runs common to all. Other buckets loop over
 * pieces of PIECE tokens of one sequence: as many as the step holds, each over as many runs as its context has, so
 * padding costs nothing. */
#include "backend/pjrt/lower_int.h"

enum {
    PIECE = 128,         /* queries taken at once */
    RUN_KEYS = 512,      /* keys taken at once, of one sequence */
    RUN_KEYS_MAX = 4096, /* the same where all keys of a decode bucket are taken at once */
};
#define NEVER (-1.0e30) /* a masked score: finite, so that a run of nothing but masked keys leaves no NaN */

struct attn { /* one ATTEND; shapes: s sequences (1 when looping), q queries of each, g heads to a KV head, n keys */
    struct lower *l;
    const struct sy_attn_dim *d;
    int64_t s, q, g, n_kv;
    int keys, vals;     /* the arrays [n_block, block_len, n_kv, d] */
    int64_t run, n_run; /* blocks of a run, runs that make up the longest context */
    int query;          /* [s, q, n_kv, g, d_key], in the type of the products */
    int pos;            /* i32 [s, q] */
    int table;          /* i32 [s, n_run * run] */
    enum pj_elem elem;  /* of the products */
};
struct sums { /* f32: maximum and sum [s, n_kv, q, g], values [s, n_kv, q, g, d_val] */
    int max, sum, acc;
};

static struct pj_type rows_type(const struct attn *a) { return PJ_TYPE(PJ_F32, a->s, a->n_kv, a->q, a->g); }
static struct pj_type acc_type(const struct attn *a)
{
    return PJ_TYPE(PJ_F32, a->s, a->n_kv, a->q, a->g, a->d->d_val);
}

/* The run's blocks of the array: [s, n_key, n_kv, d]. */
static int fetch(struct attn *a, int array, int blocks)
{
    struct pj_hlo *h = &a->l->h;
    struct pj_type t = *pj_type_of(h, array);
    int x = pj_gather(h, array, blocks);
    return pj_convert(h, PJ_RESHAPE(h, x, a->s, a->run * t.dim[1], t.dim[2], t.dim[3]), a->elem);
}

/* Scores [s, n_kv, q, g, n_key] of the keys from position key0 (i32 scalar; -1: 0) on, masked. */
static int scores(struct attn *a, int keys, int key0)
{
    struct pj_hlo *h = &a->l->h;
    const struct sy_attn_dim *d = a->d;
    int64_t n_key = pj_type_of(h, keys)->dim[1];
    /* query [s, q, n_kv, g, d] x keys [s, n, n_kv, d] -> [s, n_kv, q, g, n] */
    struct pj_dot dot = {.n_batch = 2, .batch_a = {0, 2}, .batch_b = {0, 2}, .over_a = 4, .over_b = 3};
    int x = pj_dot(h, a->query, keys, &dot, PJ_F32);
    x = pj_binary(h, "multiply", x, pj_splat(h, (double)d->scale, x));
    if (d->softcap > 0) {
        int c = pj_splat(h, (double)d->softcap, x);
        x = pj_binary(h, "multiply", c, pj_unary(h, "tanh", pj_binary(h, "divide", x, c)));
    }
    struct pj_type seen = PJ_TYPE(PJ_I32, a->s, a->q, n_key);
    int at = pj_iota(h, seen, 2);
    if (key0 >= 0) at = pj_binary(h, "add", at, PJ_BROADCAST(h, key0, seen, 0));
    int pos = PJ_BROADCAST(h, a->pos, seen, 0, 1);
    int mask = pj_compare(h, "LE", at, pos);
    if (d->window > 0) {
        int first = pj_binary(h, "subtract", pos, pj_splat(h, d->window, pos));
        mask = pj_binary(h, "and", mask, pj_compare(h, "GT", at, first));
    }
    mask = PJ_BROADCAST(h, mask, *pj_type_of(h, x), 0, 2, 4);
    return pj_select(h, mask, x, pj_splat(h, NEVER, x));
}

static struct sums start(struct attn *a)
{
    struct pj_hlo *h = &a->l->h;
    return (struct sums){pj_const(h, rows_type(a), NEVER), pj_const(h, rows_type(a), 0), pj_const(h, acc_type(a), 0)};
}

/* One run more: blocks i32 [s, run], whose first key has position key0. */
static struct sums more(struct attn *a, struct sums old, int blocks, int key0)
{
    struct pj_hlo *h = &a->l->h;
    int x = scores(a, fetch(a, a->keys, blocks), key0), vals = fetch(a, a->vals, blocks);
    struct sums now;
    now.max = pj_binary(h, "maximum", old.max, pj_reduce(h, "maximum", x, 4, NEVER));
    int p = pj_unary(h, "exponential",
                     pj_binary(h, "subtract", x, PJ_BROADCAST(h, now.max, *pj_type_of(h, x), 0, 1, 2, 3)));
    int keep = pj_unary(h, "exponential", pj_binary(h, "subtract", old.max, now.max));
    now.sum = pj_binary(h, "add", pj_binary(h, "multiply", old.sum, keep), pj_reduce(h, "add", p, 4, 0));
    /* p [s, n_kv, q, g, n] x vals [s, n, n_kv, d] -> [s, n_kv, q, g, d] */
    struct pj_dot dot = {.n_batch = 2, .batch_a = {0, 1}, .batch_b = {0, 2}, .over_a = 4, .over_b = 1};
    int y = pj_dot(h, pj_convert(h, p, a->elem), vals, &dot, PJ_F32);
    int kept = pj_binary(h, "multiply", old.acc, PJ_BROADCAST(h, keep, acc_type(a), 0, 1, 2, 3));
    now.acc = pj_binary(h, "add", kept, y);
    return now;
}

/* Runs lo (i32 scalar, -1: 0) to hi of each sequence's blocks. */
static struct sums all_runs(struct attn *a, int lo, int hi)
{
    struct pj_hlo *h = &a->l->h;
    struct sums s = start(a);
    if (a->n_run == 1) return more(a, s, a->table, -1);
    struct pj_loop loop;
    int first = lo >= 0 ? lo : pj_const(h, pj_scalar(PJ_I32), 0);
    pj_while(h, &loop, (const int[]){first, s.max, s.sum, s.acc}, 4);
    pj_while_do(h, &loop, pj_compare(h, "LT", loop.var[0], hi));
    int i = loop.var[0];
    int block0 = pj_binary(h, "multiply", i, pj_const(h, pj_scalar(PJ_I32), (double)a->run));
    int key0 = pj_binary(h, "multiply", block0, pj_const(h, pj_scalar(PJ_I32), a->l->opt.cache.block_len));
    s = more(a, (struct sums){loop.var[1], loop.var[2], loop.var[3]},
             pj_dynamic_slice(h, a->table, 1, block0, a->run), PJ_RESHAPE(h, key0, 1));
    int next = pj_binary(h, "add", i, pj_const(h, pj_scalar(PJ_I32), 1));
    pj_while_end(h, &loop, (const int[]){next, s.max, s.sum, s.acc});
    return (struct sums){loop.var[1], loop.var[2], loop.var[3]};
}

/* [s * q, n_head * d_val] */
static int finish(struct attn *a, struct sums s)
{
    struct pj_hlo *h = &a->l->h;
    int x = pj_binary(h, "divide", s.acc, PJ_BROADCAST(h, s.sum, acc_type(a), 0, 1, 2, 3));
    x = pj_transpose(h, x, (const int[]){0, 2, 1, 3, 4});
    return PJ_RESHAPE(h, x, a->s * a->q, (int64_t)a->d->n_head * a->d->d_val);
}

/* The run that holds a position: pos / keys of a run. */
static int run_of(struct attn *a, int pos)
{
    struct pj_hlo *h = &a->l->h;
    double keys = (double)(a->run * a->l->opt.cache.block_len);
    return pj_binary(h, "divide", pos, pj_const(h, pj_scalar(PJ_I32), keys));
}

/* First run that a query at pos sees, by its window. */
static int first_run(struct attn *a, int pos)
{
    struct pj_hlo *h = &a->l->h;
    if (a->d->window <= 0) return pj_const(h, pj_scalar(PJ_I32), 0);
    int first = pj_binary(h, "subtract", pos, pj_const(h, pj_scalar(PJ_I32), a->d->window - 1));
    return run_of(a, pj_binary(h, "maximum", first, pj_const(h, pj_scalar(PJ_I32), 0)));
}

static int scalar_of(struct pj_hlo *h, int vec, int at)
{
    return pj_reshape(h, pj_dynamic_slice(h, vec, 0, at, 1), 0, NULL);
}

static void set_runs(struct attn *a, int64_t run_keys)
{
    struct lower *l = a->l;
    int64_t blocks = l->shape.block, len = l->opt.cache.block_len;
    a->run = run_keys / len;
    if (a->run < 1) a->run = 1;
    if (a->run > blocks) a->run = blocks;
    a->n_run = (blocks + a->run - 1) / a->run;
    a->table = PJ_RESHAPE(&l->h, lower_field(l, SY_BLOCK_TABLE), l->shape.seq, blocks);
    int64_t more_blocks = a->n_run * a->run - blocks;
    if (more_blocks) a->table = pj_pad_after(&l->h, a->table, 1, more_blocks); /* block 0, past every context */
}

static int decode(struct attn *a, int q)
{
    struct lower *l = a->l;
    struct pj_hlo *h = &l->h;
    int64_t keys = (int64_t)l->shape.block * l->opt.cache.block_len;
    a->s = l->shape.seq;
    a->q = 1;
    set_runs(a, keys <= RUN_KEYS_MAX ? keys : RUN_KEYS);
    int pos = lower_field(l, SY_POS);
    a->pos = PJ_RESHAPE(h, pos, a->s, 1);
    a->query = PJ_RESHAPE(h, q, a->s, 1, a->n_kv, a->g, a->d->d_key);
    int last = pj_reduce(h, "maximum", pos, 0, 0);
    int hi = pj_binary(h, "add", run_of(a, last), pj_const(h, pj_scalar(PJ_I32), 1));
    return finish(a, all_runs(a, -1, hi));
}

/* Pieces in the order of their tokens: what a piece writes past its sequence's end, the next one writes again. */
static int pieces(struct attn *a, int q)
{
    struct lower *l = a->l;
    struct pj_hlo *h = &l->h;
    int64_t tok = l->shape.tok, n_out = (int64_t)a->d->n_head * a->d->d_val;
    int zero = pj_const(h, pj_scalar(PJ_I32), 0), one = pj_const(h, pj_scalar(PJ_I32), 1);
    a->s = 1;
    a->q = tok < PIECE ? tok : PIECE;
    set_runs(a, RUN_KEYS);
    int start_of = lower_field(l, SY_START), table = a->table;
    int pos = pj_pad_after(h, lower_field(l, SY_POS), 0, a->q);
    q = pj_pad_after(h, q, 0, a->q);
    int total = pj_reshape(h, pj_slice(h, start_of, 0, l->shape.seq, l->shape.seq + 1), 0, NULL);
    struct pj_loop loop; /* token, sequence, output */
    int out = pj_const(h, PJ_TYPE(PJ_F32, tok + a->q, n_out), 0);
    pj_while(h, &loop, (const int[]){zero, zero, out}, 3);
    pj_while_do(h, &loop, pj_compare(h, "LT", loop.var[0], total));
    int at = loop.var[0], seq = loop.var[1];
    int end = scalar_of(h, start_of, pj_binary(h, "add", seq, one));
    a->table = pj_dynamic_slice(h, table, 0, seq, 1);
    int pos_q = pj_dynamic_slice(h, pos, 0, at, a->q);
    a->pos = PJ_RESHAPE(h, pos_q, 1, a->q);
    a->query = PJ_RESHAPE(h, pj_dynamic_slice(h, q, 0, at, a->q), 1, a->q, a->n_kv, a->g, a->d->d_key);
    int next = pj_binary(h, "minimum", end, pj_binary(h, "add", at, pj_const(h, pj_scalar(PJ_I32), (double)a->q)));
    int pos_first = scalar_of(h, pos, at), pos_last = scalar_of(h, pos, pj_binary(h, "subtract", next, one));
    struct sums s = all_runs(a, first_run(a, pos_first), pj_binary(h, "add", run_of(a, pos_last), one));
    out = pj_dynamic_update(h, loop.var[2], finish(a, s), 0, at);
    int done = pj_compare(h, "GE", next, end);
    seq = pj_select(h, done, pj_binary(h, "add", seq, one), seq);
    pj_while_end(h, &loop, (const int[]){next, seq, out});
    return pj_slice(h, loop.var[2], 0, 0, tok);
}

/* The array with the step's rows written at ROW. */
static int write_rows(struct lower *l, int array, int x)
{
    struct pj_hlo *h = &l->h;
    struct pj_type t = *pj_type_of(h, array);
    int flat = PJ_RESHAPE(h, array, t.dim[0] * t.dim[1], t.dim[2], t.dim[3]);
    int update = pj_convert(h, PJ_RESHAPE(h, x, l->shape.tok, t.dim[2], t.dim[3]), t.elem);
    return pj_reshape(h, pj_scatter(h, flat, lower_field(l, SY_ROW), update), 4, t.dim);
}

void lower_attend(struct lower *l, uint32_t id)
{
    struct pj_hlo *h = &l->h;
    const struct sy_node *n = &l->node[id];
    const struct sy_attn_dim *d = &n->attr.attn;
    struct attn a = {.l = l, .d = d, .n_kv = d->n_kv, .g = d->n_head / d->n_kv};
    for (int side = 0; side < 2; side++)
        l->kv[l->n_kv + side] = write_rows(l, l->kv[l->n_kv + side], l->val[n->in[1 + side].id]);
    a.keys = l->kv[l->n_kv++];
    a.vals = l->kv[l->n_kv++];
    a.elem = l->opt.compute == SY_COMPUTE_BF16 && l->opt.kv_elem == PJ_BF16 ? PJ_BF16 : PJ_F32;
    int q = pj_convert(h, l->val[n->in[0].id], a.elem);
    l->val[id] = pj_is_decode(l->shape) ? decode(&a, q) : pieces(&a, q);
}
