/* lower_attend.c - paged attention as plain StableHLO: keys and values are written by row, then read by block table
 * in runs of blocks, with a running maximum and sum (Milakov and Gimelshein, arXiv:1805.02867), so that no more than
 * one run of keys is ever copied out of the cache.
 *
 * A decode bucket takes all sequences at once, one query each, over runs common to all. Other buckets loop over
 * pieces of one sequence's tokens: as many as the step holds, each over as many runs as its context has, so padding
 * costs nothing. A sink is where the running maximum and sum start from. */
#include "backend/pjrt/lower_int.h"

struct attn { /* one ATTEND; shapes: s sequences (1 when looping), q queries of each, g heads to a KV head, n keys */
    struct lower *l;
    const struct sy_node *node;
    const struct sy_attn_dim *d;
    int64_t s, q, g, n_kv;
    int keys, vals;   /* the arrays [n_block, block_len, n_kv, d]; vals -1: the keys' first d_val */
    const int *bytes; /* of a cache of bytes: its arrays; NULL */
    struct runs runs;
    int table;         /* i32 [s, n_run * run] */
    int query;         /* [s, n_kv, g, q, d_key], in the type of the products */
    int pos;           /* i32 [s, q] */
    int sinks;         /* f32 [n_kv, g]; -1: none */
    enum pj_elem elem; /* of the products */
};
struct sums { /* f32: maximum and sum [s, n_kv, g, q], values [s, n_kv, g, q, d_val] */
    int max, sum, acc;
};

static struct pj_type rows_type(const struct attn *a) { return PJ_TYPE(PJ_F32, a->s, a->n_kv, a->g, a->q); }
static struct pj_type acc_type(const struct attn *a)
{
    return PJ_TYPE(a->l->opt.attend_bf16 ? PJ_BF16 : PJ_F32, a->s, a->n_kv, a->g, a->q, a->d->d_val);
}

/* Scores [s, n_kv, g, q, n_key] of the keys from position key0 (i32 scalar; -1: 0) on, masked. */
static int scores(struct attn *a, int keys, int key0)
{
    struct pj_hlo *h = &a->l->h;
    const struct sy_attn_dim *d = a->d;
    int64_t n_key = pj_type_of(h, keys)->dim[1];
    /* query [s, n_kv, g, q, d] x keys [s, n, n_kv, d] -> [s, n_kv, g, q, n] */
    struct pj_dot dot = {.n_batch = 2, .batch_a = {0, 1}, .batch_b = {0, 2}, .over_a = 4, .over_b = 3};
    int x = lower_attend_dot(a->l, a->query, keys, &dot);
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
    if (d->chunk > 0) {
        int over = pj_binary(h, "remainder", pos, pj_splat(h, d->chunk, pos));
        mask = pj_binary(h, "and", mask, pj_compare(h, "GE", at, pj_binary(h, "subtract", pos, over)));
    }
    mask = PJ_BROADCAST(h, mask, *pj_type_of(h, x), 0, 3, 4);
    return pj_select(h, mask, x, pj_splat(h, LOWER_NEVER, x));
}

static struct sums start(struct attn *a)
{
    struct pj_hlo *h = &a->l->h;
    bool sink = a->sinks >= 0;
    int max = sink ? PJ_BROADCAST(h, a->sinks, rows_type(a), 1, 2) : pj_const(h, rows_type(a), LOWER_NEVER);
    return (struct sums){max, pj_const(h, rows_type(a), sink ? 1 : 0), pj_const(h, acc_type(a), 0)};
}

/* The run's blocks of an array: [s, n_key, n_kv, d], however the array has them. */
static int fetch(struct attn *a, int array, int blocks)
{
    if (a->bytes) return lower_q8_fetch(a->l, a->d, a->bytes, blocks, array == a->vals, a->elem);
    int x = lower_fetch(a->l, array, blocks, a->elem);
    struct pj_type t = *pj_type_of(&a->l->h, x);
    return t.n_dim == 4 ? x : PJ_RESHAPE(&a->l->h, x, t.dim[0], t.dim[1], a->n_kv, t.dim[2] / a->n_kv);
}

/* One run more: blocks i32 [s, run], whose first key has position key0. */
static struct sums more(struct attn *a, struct sums old, int blocks, int key0)
{
    struct pj_hlo *h = &a->l->h;
    int keys = fetch(a, a->keys, blocks), x = scores(a, keys, key0);
    int vals = a->vals < 0 ? pj_slice(h, keys, 3, 0, a->d->d_val) : fetch(a, a->vals, blocks);
    struct sums now;
    now.max = pj_binary(h, "maximum", old.max, pj_reduce(h, "maximum", x, 4, LOWER_NEVER));
    int p = pj_unary(h, "exponential",
                     pj_binary(h, "subtract", x, PJ_BROADCAST(h, now.max, *pj_type_of(h, x), 0, 1, 2, 3)));
    int keep = pj_unary(h, "exponential", pj_binary(h, "subtract", old.max, now.max));
    now.sum = pj_binary(h, "add", pj_binary(h, "multiply", old.sum, keep), pj_reduce(h, "add", p, 4, 0));
    /* p [s, n_kv, g, q, n] x vals [s, n, n_kv, d] -> [s, n_kv, g, q, d] */
    struct pj_dot dot = {.n_batch = 2, .batch_a = {0, 1}, .batch_b = {0, 2}, .over_a = 4, .over_b = 1};
    int y = pj_convert(h, lower_attend_dot(a->l, pj_convert(h, p, a->elem), vals, &dot), acc_type(a).elem);
    keep = pj_convert(h, keep, acc_type(a).elem);
    int kept = pj_binary(h, "multiply", old.acc, PJ_BROADCAST(h, keep, acc_type(a), 0, 1, 2, 3));
    now.acc = pj_binary(h, "add", kept, y);
    return now;
}

/* Runs lo (i32 scalar, -1: 0) to hi of each sequence's blocks. */
static struct sums all_runs(struct attn *a, int lo, int hi)
{
    struct pj_hlo *h = &a->l->h;
    struct sums s = start(a);
    if (a->runs.n_run == 1) return more(a, s, a->table, -1);
    struct pj_loop loop;
    int first = lo >= 0 ? lo : pj_const(h, pj_scalar(PJ_I32), 0);
    pj_while(h, &loop, (const int[]){first, s.max, s.sum, s.acc}, 4);
    pj_while_do(h, &loop, pj_compare(h, "LT", loop.var[0], hi));
    int i = loop.var[0];
    int block0 = pj_binary(h, "multiply", i, pj_const(h, pj_scalar(PJ_I32), (double)a->runs.run));
    int key0 = pj_binary(h, "multiply", block0, pj_const(h, pj_scalar(PJ_I32), a->l->opt.cache.block_len));
    s = more(a, (struct sums){loop.var[1], loop.var[2], loop.var[3]},
             pj_dynamic_slice(h, a->table, 1, block0, a->runs.run), PJ_RESHAPE(h, key0, 1));
    int next = pj_binary(h, "add", i, pj_const(h, pj_scalar(PJ_I32), 1));
    pj_while_end(h, &loop, (const int[]){next, s.max, s.sum, s.acc});
    return (struct sums){loop.var[1], loop.var[2], loop.var[3]};
}

/* [s * q, n_head * d_val] */
static int finish(struct attn *a, struct sums s)
{
    struct pj_hlo *h = &a->l->h;
    int x = pj_convert(h, s.acc, PJ_F32);
    x = pj_binary(h, "divide", x, PJ_BROADCAST(h, s.sum, *pj_type_of(h, x), 0, 1, 2, 3));
    x = pj_transpose(h, x, (const int[]){0, 3, 1, 2, 4});
    return PJ_RESHAPE(h, x, a->s * a->q, (int64_t)a->d->n_head * a->d->d_val);
}

/* First run that a query at pos sees, by its window or chunk. */
static int first_run(struct attn *a, int pos)
{
    struct pj_hlo *h = &a->l->h;
    int first = pj_const(h, pj_scalar(PJ_I32), 0);
    if (a->d->window > 0) {
        int back = pj_binary(h, "subtract", pos, pj_const(h, pj_scalar(PJ_I32), a->d->window - 1));
        first = pj_binary(h, "maximum", back, first);
    }
    if (a->d->chunk > 0) {
        int over = pj_binary(h, "remainder", pos, pj_const(h, pj_scalar(PJ_I32), a->d->chunk));
        first = pj_binary(h, "maximum", pj_binary(h, "subtract", pos, over), first);
    }
    return lower_run_of(a->l, &a->runs, first);
}

static int after(struct attn *a, int run) /* a run's number, plus one */
{
    return pj_binary(&a->l->h, "add", run, pj_const(&a->l->h, pj_scalar(PJ_I32), 1));
}

static int decode(struct attn *a, int q)
{
    struct lower *l = a->l;
    struct pj_hlo *h = &l->h;
    a->s = l->shape.seq;
    a->q = 1;
    a->runs = lower_decode_runs(l, a->node);
    a->table = a->runs.table;
    int pos = lower_field(l, SY_POS);
    a->pos = PJ_RESHAPE(h, pos, a->s, 1);
    a->query = PJ_RESHAPE(h, q, a->s, a->n_kv, a->g, 1, a->d->d_key);
    int last = pj_reduce(h, "maximum", pos, 0, 0);
    return finish(a, all_runs(a, -1, after(a, lower_run_of(l, &a->runs, last))));
}

/* Pieces in the order of their tokens: what a piece writes past its sequence's end, the next one writes again. */
static int pieces(struct attn *a, int q)
{
    struct lower *l = a->l;
    struct pj_hlo *h = &l->h;
    int64_t tok = l->shape.tok, n_out = (int64_t)a->d->n_head * a->d->d_val;
    a->s = 1;
    a->q = pj_piece(l->shape);
    a->runs = lower_runs(l, a->node, pj_run_keys(l->shape));
    int pos = pj_pad_after(h, lower_field(l, SY_POS), 0, a->q);
    q = pj_pad_after(h, q, 0, a->q);
    int out = pj_const(h, PJ_TYPE(PJ_F32, tok + a->q, n_out), 0);
    struct pieces p;
    lower_pieces(l, &p, a->q, &out, 1);
    a->table = pj_dynamic_slice(h, a->runs.table, 0, p.entry, 1);
    a->pos = PJ_RESHAPE(h, pj_dynamic_slice(h, pos, 0, p.at, a->q), 1, a->q);
    int piece = PJ_RESHAPE(h, pj_dynamic_slice(h, q, 0, p.at, a->q), 1, a->q, a->n_kv, a->g, a->d->d_key);
    a->query = pj_transpose(h, piece, (const int[]){0, 2, 3, 1, 4});
    int pos_first = lower_scalar_at(h, pos, p.at);
    int pos_last = lower_scalar_at(h, pos, pj_binary(h, "subtract", p.next, p.one));
    struct sums s = all_runs(a, first_run(a, pos_first), after(a, lower_run_of(l, &a->runs, pos_last)));
    out = pj_dynamic_update(h, p.carry[0], finish(a, s), 0, p.at);
    lower_pieces_end(l, &p, &out);
    return pj_slice(h, p.carry[0], 0, 0, tok);
}

/* Where keys and values are written: block 0, which nobody reads, on ranks of other stages. */
static int rows_to_write(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    const struct sy_attn_dim *d = &n->attr.attn;
    int rows = lower_field(l, sy_state_rows(l->shape, &l->node[n->in[3].id]));
    if (d->stage_ranks == 0) return rows;
    struct pj_type mask = *pj_type_of(h, rows);
    mask.elem = PJ_PRED;
    int own = lower_is_rank(l, d->stage_ranks, l->opt.n_rank / d->stage_ranks, d->stage);
    return pj_select(h, PJ_BROADCAST(h, own, mask, 0), rows, pj_splat(h, 0, rows));
}

int lower_attend(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    const struct sy_attn_dim *d = &n->attr.attn;
    int *state = lower_state(l, n);
    struct attn a = {.l = l, .node = n, .d = d, .n_kv = d->n_kv, .g = d->n_head / d->n_kv, .vals = -1, .sinks = -1};
    int rows = n->in[1].id ? rows_to_write(l, n) : -1;
    bool bytes = l->opt.kv_elem == PJ_I8;
    if (n->in[1].id && bytes) lower_q8_write(l, n, state, rows);
    if (n->in[1].id && !bytes) state[0] = lower_write_rows(l, state[0], l->val[n->in[1].id], rows);
    if (n->in[2].id && !bytes) state[1] = lower_write_rows(l, state[1], l->val[n->in[2].id], rows);
    if (bytes) a.bytes = state;
    a.keys = state[0];
    if (!d->shared) a.vals = state[1];
    if (n->in[6].id) return lower_attend_kept(l, n, a.keys);
    if (n->in[5].id && l->val[n->in[5].id] >= 0) return lower_attend_chosen(l, n, a.keys);
    if (lower_kernel_takes(n, &l->opt) && l->opt.kernels & lower_kernels_of(l->shape))
        return lower_kernel_attend(l, n, l->val[n->in[0].id], state);
    a.elem = lower_kv_elem(l);
    if (n->in[4].id) a.sinks = PJ_RESHAPE(h, lower_vec(l, n->in[4]), a.n_kv, a.g);
    int q = pj_convert(h, l->val[n->in[0].id], a.elem);
    return pj_is_decode(l->shape) ? decode(&a, q) : pieces(&a, q);
}
