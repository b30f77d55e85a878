/* lower_index.c - sparse attention: INDEX scores all keys that a token sees and keeps the places of the best, ATTEND
 * gathers just those. Where no context is longer than what is kept there is nothing to choose, and INDEX has no
 * value. Places come best first: attention does not mind the order. */
#include "backend/pjrt/lower_int.h"

enum { TOGETHER = 16 }; /* tokens whose keys are gathered at once */

struct index {
    struct lower *l;
    const struct sy_node *node;
    const struct sy_index_dim *d;
    int64_t s, q; /* sequences (1 when looping), queries of each */
    struct runs runs;
    int table, keys; /* i32 [s, n_run * run]; the array */
    int query;       /* [s, q * n_head, d], of the products' type */
    int weight;      /* f32 [s, q, n_head] */
    int pos;         /* i32 [s, q] */
    enum pj_elem elem;
};

/* The last token of each run of `every`. */
static int last_token(struct pj_hlo *h, int at, int32_t every)
{
    if (every <= 1) return at;
    int end = pj_binary(h, "multiply", pj_binary(h, "add", at, pj_splat(h, 1, at)), pj_splat(h, every, at));
    return pj_binary(h, "subtract", end, pj_splat(h, 1, end));
}

/* Which run each place of a context's keys is of, i32; past every position where a block has fewer than it could. */
static int number_of(struct index *x, int place)
{
    struct pj_hlo *h = &x->l->h;
    int32_t every = x->d->every, block_len = x->l->opt.cache.block_len;
    if (every <= 1) return place;
    int each = pj_splat(h, (double)pj_type_of(h, x->keys)->dim[1], place), len = pj_splat(h, block_len, place);
    int begin = pj_binary(h, "multiply", pj_binary(h, "divide", place, each), len);
    int run = pj_binary(h, "divide", begin, pj_splat(h, every, place));
    run = pj_binary(h, "add", run, pj_binary(h, "remainder", place, each));
    int ends = pj_compare(h, "LT", last_token(h, run, every), pj_binary(h, "add", begin, len));
    return pj_select(h, ends, run, pj_splat(h, (double)x->l->shape.block * block_len, run));
}

/* f32 [s, q, n] of the run's keys, the first at position key0 (i32 [1]; -1: 0). */
static int scores(struct index *x, int blocks, int key0)
{
    struct pj_hlo *h = &x->l->h;
    int keys = lower_fetch(x->l, x->keys, blocks, x->elem);
    int64_t n = pj_type_of(h, keys)->dim[1];
    struct pj_type each = PJ_TYPE(PJ_F32, x->s, x->q, x->d->n_head, n), all = PJ_TYPE(PJ_I32, x->s, x->q, n);
    keys = PJ_RESHAPE(h, keys, x->s, n, x->d->d);
    struct pj_dot dot = {.n_batch = 1, .batch_a = {0}, .batch_b = {0}, .over_a = 2, .over_b = 2};
    int y = pj_reshape(h, pj_dot(h, x->query, keys, &dot, PJ_F32), 4, each.dim);
    y = pj_binary(h, "maximum", y, pj_splat(h, 0, y));
    y = pj_binary(h, "multiply", y, PJ_BROADCAST(h, x->weight, each, 0, 1, 2));
    y = pj_reduce(h, "add", y, 2, 0);
    /* -0 is 0: ties go by place, and bits tell the two apart. */
    int zero = pj_splat(h, 0, y);
    y = pj_select(h, pj_compare(h, "EQ", y, zero), zero, y);
    int at = pj_iota(h, all, 2);
    if (key0 >= 0) at = pj_binary(h, "add", at, PJ_BROADCAST(h, key0, all, 0));
    int seen = pj_compare(h, "LE", last_token(h, number_of(x, at), x->d->every), PJ_BROADCAST(h, x->pos, all, 0, 1));
    return pj_select(h, seen, y, pj_splat(h, LOWER_NEVER, y));
}

/* i32 [s, q, n_top]; hi: the run behind the last that any of the queries sees. */
static int choose(struct index *x, int hi)
{
    struct pj_hlo *h = &x->l->h;
    int64_t n = x->runs.run * pj_type_of(h, x->keys)->dim[1];
    if (x->runs.n_run == 1) return pj_top(h, scores(x, x->table, -1), x->d->n_top);
    int one = pj_const(h, pj_scalar(PJ_I32), 1), first = pj_const(h, pj_scalar(PJ_I32), 0);
    int all = pj_const(h, PJ_TYPE(PJ_F32, x->s, x->q, x->runs.n_run * n), LOWER_NEVER);
    struct pj_loop loop; /* run, scores */
    pj_while(h, &loop, (const int[]){first, all}, 2);
    pj_while_do(h, &loop, pj_compare(h, "LT", loop.var[0], hi));
    int i = loop.var[0];
    int block0 = pj_binary(h, "multiply", i, pj_const(h, pj_scalar(PJ_I32), (double)x->runs.run));
    int key0 = pj_binary(h, "multiply", i, pj_const(h, pj_scalar(PJ_I32), (double)n));
    int blocks = pj_dynamic_slice(h, x->table, 1, block0, x->runs.run);
    all = pj_dynamic_update(h, loop.var[1], scores(x, blocks, PJ_RESHAPE(h, key0, 1)), 2, key0);
    pj_while_end(h, &loop, (const int[]){pj_binary(h, "add", i, one), all});
    return pj_top(h, loop.var[1], x->d->n_top);
}

static int decode(struct index *x, int q, int w)
{
    struct lower *l = x->l;
    struct pj_hlo *h = &l->h;
    x->s = l->shape.seq;
    x->q = 1;
    x->runs = lower_decode_runs(l, x->node);
    x->table = x->runs.table;
    int pos = lower_field(l, SY_POS), last = lower_run_of(l, &x->runs, pj_reduce(h, "maximum", pos, 0, 0));
    x->pos = PJ_RESHAPE(h, pos, x->s, 1);
    x->query = PJ_RESHAPE(h, q, x->s, x->d->n_head, x->d->d);
    x->weight = PJ_RESHAPE(h, w, x->s, 1, x->d->n_head);
    int chosen = choose(x, pj_binary(h, "add", last, pj_const(h, pj_scalar(PJ_I32), 1)));
    return PJ_RESHAPE(h, number_of(x, chosen), x->s, x->d->n_top);
}

static int pieces(struct index *x, int q, int w)
{
    struct lower *l = x->l;
    struct pj_hlo *h = &l->h;
    int64_t tok = l->shape.tok;
    x->s = 1;
    x->q = tok < LOWER_PIECE ? tok : LOWER_PIECE;
    x->runs = lower_runs(l, x->node, LOWER_RUN_KEYS);
    int pos = pj_pad_after(h, lower_field(l, SY_POS), 0, x->q);
    q = pj_pad_after(h, q, 0, x->q);
    w = pj_pad_after(h, w, 0, x->q);
    int out = pj_const(h, PJ_TYPE(PJ_I32, tok + x->q, x->d->n_top), 0);
    struct pieces p;
    lower_pieces(l, &p, x->q, &out, 1);
    x->table = pj_dynamic_slice(h, x->runs.table, 0, p.entry, 1);
    x->pos = PJ_RESHAPE(h, pj_dynamic_slice(h, pos, 0, p.at, x->q), 1, x->q);
    x->query = PJ_RESHAPE(h, pj_dynamic_slice(h, q, 0, p.at, x->q), 1, x->q * x->d->n_head, x->d->d);
    x->weight = PJ_RESHAPE(h, pj_dynamic_slice(h, w, 0, p.at, x->q), 1, x->q, x->d->n_head);
    int last = lower_run_of(l, &x->runs, lower_scalar_at(h, pos, pj_binary(h, "subtract", p.next, p.one)));
    int chosen = choose(x, pj_binary(h, "add", last, p.one));
    chosen = PJ_RESHAPE(h, number_of(x, chosen), x->q, x->d->n_top);
    out = pj_dynamic_update(h, p.carry[0], chosen, 0, p.at);
    lower_pieces_end(l, &p, &out);
    return pj_slice(h, p.carry[0], 0, 0, tok);
}

int lower_index(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    struct index x = {.l = l, .node = n, .d = &n->attr.index, .elem = lower_kv_elem(l)};
    int *state = lower_state(l, n);
    int32_t every = x.d->every > 1 ? x.d->every : 1;
    int rows = every > 1 ? lower_run_rows(l, every) : lower_field(l, SY_ROW);
    x.keys = *state = lower_write_rows(l, *state, l->val[n->in[1].id], rows);
    if (x.d->n_top >= (int64_t)l->shape.block * l->opt.cache.block_len / every) return -1;
    int q = pj_convert(h, l->val[n->in[0].id], x.elem), w = l->val[n->in[2].id];
    return pj_is_decode(l->shape) ? decode(&x, q, w) : pieces(&x, q, w);
}

/* ---- ATTEND ------------------------------------------------------------------------------------------------------
 */

/* Rows, i32 [tok, n], of the positions, or runs of `every`, that a token reads in an array of blocks. */
static int rows_of(struct lower *l, enum sy_field table, int place, int32_t every)
{
    struct pj_hlo *h = &l->h;
    struct pj_type t = *pj_type_of(h, place);
    int32_t block_len = l->opt.cache.block_len;
    int len = pj_splat(h, block_len, place), entry = lower_entry_of_token(l), off;
    int number = pj_binary(h, "divide", last_token(h, place, every), len);
    int base = pj_binary(h, "multiply", entry, pj_splat(h, l->shape.block, entry));
    int block = pj_gather(h, lower_field(l, table), pj_binary(h, "add", PJ_BROADCAST(h, base, t, 0), number));
    if (every <= 1) {
        off = pj_binary(h, "remainder", place, len);
    } else {
        int begin = pj_binary(h, "divide", pj_binary(h, "multiply", number, len), pj_splat(h, every, place));
        off = pj_binary(h, "subtract", place, begin);
        len = pj_splat(h, (block_len + every - 1) / every, place);
    }
    return pj_binary(h, "add", pj_binary(h, "multiply", block, len), off);
}

/* Queries [q, n_head, d_key] over keys [q, n, d_key] of their own, of which `seen` [q, n] count: [q, n_head * d_val].
 */
static int attend_own(struct lower *l, const struct sy_node *n, int query, int keys, int seen)
{
    struct pj_hlo *h = &l->h;
    const struct sy_attn_dim *d = &n->attr.attn;
    struct pj_dot over_key = {.n_batch = 1, .batch_a = {0}, .batch_b = {0}, .over_a = 2, .over_b = 2};
    struct pj_dot over_place = {.n_batch = 1, .batch_a = {0}, .batch_b = {0}, .over_a = 2, .over_b = 1};
    int x = lower_attend_dot(l, query, keys, &over_key);
    struct pj_type t = *pj_type_of(h, x), rows = PJ_TYPE(PJ_F32, t.dim[0], d->n_head);
    x = pj_binary(h, "multiply", x, pj_splat(h, (double)d->scale, x));
    if (d->softcap > 0) {
        int c = pj_splat(h, (double)d->softcap, x);
        x = pj_binary(h, "multiply", c, pj_unary(h, "tanh", pj_binary(h, "divide", x, c)));
    }
    x = pj_select(h, PJ_BROADCAST(h, seen, t, 0, 2), x, pj_splat(h, LOWER_NEVER, x));
    int sink = n->in[4].id ? PJ_BROADCAST(h, lower_vec(l, n->in[4]), rows, 1) : -1;
    int max = pj_reduce(h, "maximum", x, 2, LOWER_NEVER);
    if (sink >= 0) max = pj_binary(h, "maximum", max, sink);
    x = pj_unary(h, "exponential", pj_binary(h, "subtract", x, PJ_BROADCAST(h, max, t, 0, 1)));
    int sum = pj_reduce(h, "add", x, 2, 0);
    if (sink >= 0) sum = pj_binary(h, "add", sum, pj_unary(h, "exponential", pj_binary(h, "subtract", sink, max)));
    int vals = pj_slice(h, keys, 2, 0, d->d_val);
    int y = lower_attend_dot(l, pj_convert(h, x, pj_type_of(h, vals)->elem), vals, &over_place);
    y = pj_binary(h, "divide", y, PJ_BROADCAST(h, sum, *pj_type_of(h, y), 0, 1));
    return PJ_RESHAPE(h, y, t.dim[0], (int64_t)d->n_head * d->d_val);
}

/* Keys that some tokens read, by their places: rows of an array. */
struct places {
    int array;     /* [n_row, d] */
    int row, seen; /* i32 and i1 [tok, n] */
};

/* A loop over a few tokens at a time, each over the keys that are its own. */
static int attend_places(struct lower *l, const struct sy_node *n, const struct places *p, int n_places)
{
    struct pj_hlo *h = &l->h;
    const struct sy_attn_dim *d = &n->attr.attn;
    enum pj_elem elem = lower_kv_elem(l);
    int64_t tok = l->shape.tok, q = tok < TOGETHER ? tok : TOGETHER, n_out = (int64_t)d->n_head * d->d_val;
    int row[2], seen[2], start = lower_field(l, SY_START);
    for (int i = 0; i < n_places; i++) {
        row[i] = pj_pad_after(h, p[i].row, 0, q);
        seen[i] = pj_pad_after(h, pj_convert(h, p[i].seen, PJ_I32), 0, q);
    }
    int query = pj_pad_after(h, pj_convert(h, l->val[n->in[0].id], elem), 0, q);
    int total = pj_reshape(h, pj_slice(h, start, 0, l->shape.seq, l->shape.seq + 1), 0, NULL);
    int step = pj_const(h, pj_scalar(PJ_I32), (double)q), first = pj_const(h, pj_scalar(PJ_I32), 0);
    struct pj_loop loop; /* token, output */
    int out = pj_const(h, PJ_TYPE(PJ_F32, tok + q, n_out), 0);
    pj_while(h, &loop, (const int[]){first, out}, 2);
    pj_while_do(h, &loop, pj_compare(h, "LT", loop.var[0], total));
    int at = loop.var[0], keys[2], counts[2];
    for (int i = 0; i < n_places; i++) {
        keys[i] = pj_convert(h, pj_gather(h, p[i].array, pj_dynamic_slice(h, row[i], 0, at, q)), elem);
        counts[i] = pj_dynamic_slice(h, seen[i], 0, at, q);
    }
    int own = n_places > 1 ? pj_concat(h, keys, n_places, 1) : keys[0];
    int count = n_places > 1 ? pj_concat(h, counts, n_places, 1) : counts[0];
    count = pj_compare(h, "NE", count, pj_splat(h, 0, count));
    int x = PJ_RESHAPE(h, pj_dynamic_slice(h, query, 0, at, q), q, d->n_head, d->d_key);
    out = pj_dynamic_update(h, loop.var[1], attend_own(l, n, x, own, count), 0, at);
    pj_while_end(h, &loop, (const int[]){pj_binary(h, "add", at, step), out});
    return pj_slice(h, loop.var[1], 0, 0, tok);
}

static int flat(struct pj_hlo *h, int array)
{
    struct pj_type t = *pj_type_of(h, array);
    return PJ_RESHAPE(h, array, t.dim[0] * t.dim[1], t.dim[3]);
}

/* i32 [tok, n]: each token's position. */
static int positions(struct lower *l, int64_t n)
{
    return PJ_BROADCAST(&l->h, lower_field(l, SY_POS), PJ_TYPE(PJ_I32, l->shape.tok, n), 0);
}

int lower_attend_chosen(struct lower *l, const struct sy_node *n, int keys)
{
    struct pj_hlo *h = &l->h;
    int chosen = l->val[n->in[5].id], pos = positions(l, pj_type_of(h, chosen)->dim[1]);
    struct places p = {flat(h, keys), rows_of(l, SY_BLOCK_TABLE, chosen, 1), pj_compare(h, "LE", chosen, pos)};
    return attend_places(l, n, &p, 1);
}

/* The window's keys, and of what a KEEP wrote the runs that an INDEX chose, or all that are complete. */
int lower_attend_kept(struct lower *l, const struct sy_node *n, int keys)
{
    struct pj_hlo *h = &l->h;
    const struct sy_node *keep = &l->node[n->in[6].id];
    int32_t every = keep->attr.every;
    int64_t most = (int64_t)l->shape.block * l->opt.cache.block_len, window = n->attr.attn.window;
    if (window > most) window = most;
    int pos = positions(l, window), back = pj_iota(h, *pj_type_of(h, pos), 1);
    int near = pj_binary(h, "subtract", pos, back), zero = pj_splat(h, 0, near);
    int inside = pj_compare(h, "GE", near, zero), chosen = n->in[5].id ? l->val[n->in[5].id] : -1;
    enum sy_field table = sy_state_table(l->shape, &l->node[n->in[3].id]);
    struct places p[2] = {{flat(h, keys), rows_of(l, table, pj_select(h, inside, near, zero), 1), inside}};
    int64_t n_run = chosen < 0 ? most / every : pj_type_of(h, chosen)->dim[1];
    if (n_run == 0) return attend_places(l, n, p, 1);
    pos = positions(l, n_run);
    if (chosen < 0) chosen = pj_iota(h, *pj_type_of(h, pos), 1);
    int seen = pj_compare(h, "LE", last_token(h, chosen, every), pos);
    chosen = pj_select(h, seen, chosen, pj_splat(h, 0, chosen));
    p[1] = (struct places){flat(h, *lower_state(l, keep)), rows_of(l, SY_BLOCK_TABLE, chosen, every), seen};
    return attend_places(l, n, p, 2);
}

int lower_keep(struct lower *l, const struct sy_node *n)
{
    int *state = lower_state(l, n);
    *state = lower_write_rows(l, *state, l->val[n->in[0].id], lower_run_rows(l, n->attr.every));
    return -1;
}
