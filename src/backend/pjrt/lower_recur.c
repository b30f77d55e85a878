/* lower_recur.c - convolutions and scans: ops whose tokens depend on those before them in their sequence, through a
 * slot. A sequence may stand in a step several times, each entry going on where the one before it stopped: a chain.
 * The convolution takes all tokens at once, and what lies before a chain from its first entry's slot. The scan takes
 * a token of each entry at once in a decode bucket (which has no chains), else loops over pieces of one entry, each
 * by matrix products. */
#include <string.h>

#include "backend/pjrt/lower_int.h"
#include "backend/pjrt/mosaic/kernels.h"

/* ---- CONV --------------------------------------------------------------------------------------------------------
 */

/* By entry: the first entry of its chain, and the slot it writes: 0 where the next entry writes the same one. */
static struct chain_value chains(struct lower *l)
{
    struct pj_hlo *h = &l->h;
    int64_t n = l->shape.seq;
    struct pj_type list = PJ_TYPE(PJ_I32, n), each = PJ_TYPE(PJ_I32, n, n);
    if (l->chain.head >= 0) return l->chain;
    int rd = lower_field(l, SY_SLOT_RD), wr = lower_field(l, SY_SLOT_WR), zero = pj_const(h, list, 0);
    int start = pj_slice(h, lower_field(l, SY_START), 0, 0, n), none = pj_const(h, PJ_TYPE(PJ_I32, 1), -1);
    if (n == 1) return l->chain = (struct chain_value){.head = zero, .wr = wr};
    int before = pj_concat(h, (const int[]){none, pj_slice(h, wr, 0, 0, n - 1)}, 2, 0);
    int after = pj_concat(h, (const int[]){pj_slice(h, wr, 0, 1, n), none}, 2, 0);
    int inside = pj_compare(h, "GT", pj_gather(h, lower_field(l, SY_POS), start), zero);
    int goes_on = pj_binary(h, "and", inside, pj_compare(h, "EQ", rd, before));
    int own = pj_select(h, goes_on, zero, pj_iota(h, list, 0)); /* heads are themselves, others below any head */
    int upto = pj_compare(h, "LE", pj_iota(h, each, 1), pj_iota(h, each, 0));
    int head = pj_select(h, upto, PJ_BROADCAST(h, own, each, 1), pj_const(h, each, 0));
    return l->chain = (struct chain_value){.head = pj_reduce(h, "maximum", head, 1, 0),
                                           .wr = pj_select(h, pj_compare(h, "EQ", wr, after), zero, wr)};
}

/* Rows of the slots [n, rest], zero where `fresh` (i1 [n]). */
static int read_slots(struct pj_hlo *h, int slots, int which, int fresh)
{
    int x = pj_convert(h, pj_gather(h, slots, which), PJ_F32);
    return pj_select(h, PJ_BROADCAST(h, fresh, *pj_type_of(h, x), 0), pj_splat(h, 0, x), x);
}

static int is_zero(struct pj_hlo *h, int x) { return pj_compare(h, "EQ", x, pj_splat(h, 0, x)); }

struct conv {
    struct lower *l;
    int64_t tok, n_seq, back, d; /* back: taps - 1, rows of a slot */
    int rows;                    /* [tok + n_seq * back, d]: inputs, then what each entry's chain begins with */
    int begin;                   /* i32 [n_seq] of its chain */
    int place;                   /* i32 [n_seq]: where its chain's slot lies in rows */
    bool in_units;               /* a slot lies as the kernel has it */
    struct mo_delta kernel;
};

/* Rows of what stood at tokens `at` of entries that began at `begin`: their input, or what the slot holds. */
static int look_back(struct conv *c, int at, int begin, int place)
{
    struct pj_hlo *h = &c->l->h;
    int off = pj_binary(h, "subtract", at, begin), inside = pj_compare(h, "GE", off, pj_splat(h, 0, off));
    int held = pj_binary(h, "add", place, pj_binary(h, "add", off, pj_splat(h, (double)c->back, off)));
    return pj_gather(h, c->rows, pj_select(h, inside, at, held));
}

static int tap(struct conv *c, const struct sy_node *n, int64_t i, int x)
{
    struct pj_hlo *h = &c->l->h;
    int w = PJ_RESHAPE(h, lower_vec(c->l, n->in[1]), c->d, c->back + 1);
    w = PJ_RESHAPE(h, pj_slice(h, w, 1, i, i + 1), c->d);
    return pj_binary(h, "multiply", x, PJ_BROADCAST(h, w, *pj_type_of(h, x), 1));
}

/* What each entry leaves: the last `back` of the inputs before it and its own. */
static void leave(struct conv *c, int *slots)
{
    struct lower *l = c->l;
    struct pj_hlo *h = &l->h;
    struct pj_type each = PJ_TYPE(PJ_I32, c->n_seq, c->back);
    int end = PJ_BROADCAST(h, pj_slice(h, lower_field(l, SY_START), 0, 1, c->n_seq + 1), each, 0);
    int at =
        pj_binary(h, "add", pj_binary(h, "subtract", end, pj_const(h, each, (double)c->back)), pj_iota(h, each, 1));
    int x = look_back(c, at, PJ_BROADCAST(h, c->begin, each, 0), PJ_BROADCAST(h, c->place, each, 0));
    if (c->in_units) x = lower_window_rows(h, &c->kernel, x);
    *slots = pj_scatter(h, *slots, chains(l).wr, x);
}

int lower_conv(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    int *slots = lower_state(l, n), x = l->val[n->in[0].id];
    int64_t tok = l->shape.tok, seq = l->shape.seq;
    int64_t back = l->node[n->in[3].id].attr.state.elems / n->dim[1];
    struct conv c = {.l = l, .tok = tok, .n_seq = seq, .back = back, .d = n->dim[1]};
    struct pj_type list = PJ_TYPE(PJ_I32, seq), tokens = PJ_TYPE(PJ_I32, tok);
    int head = chains(l).head, start = pj_slice(h, lower_field(l, SY_START), 0, 0, seq);
    c.begin = pj_gather(h, start, head);
    int fresh = is_zero(h, pj_gather(h, lower_field(l, SY_POS), c.begin));
    int held = read_slots(h, *slots, pj_gather(h, lower_field(l, SY_SLOT_RD), head), fresh);
    c.in_units = lower_delta_of_conv(l->node, l->n_node, n, &l->opt, &c.kernel);
    if (c.in_units) held = lower_window_columns(h, &c.kernel, held);
    c.rows = pj_concat(h, (const int[]){x, PJ_RESHAPE(h, held, seq * back, c.d)}, 2, 0);
    c.place = pj_binary(h, "multiply", pj_iota(h, list, 0), pj_const(h, list, (double)back));
    c.place = pj_binary(h, "add", c.place, pj_const(h, list, (double)tok));
    int entry = lower_entry_of_token(l), me = pj_iota(h, tokens, 0);
    int begin = pj_gather(h, c.begin, entry), place = pj_gather(h, c.place, entry), y = -1;
    for (int64_t i = 0; i <= back; i++) {
        int at = pj_binary(h, "subtract", me, pj_const(h, tokens, (double)(back - i)));
        int t = tap(&c, n, i, i == back ? x : look_back(&c, at, begin, place));
        y = y < 0 ? t : pj_binary(h, "add", y, t);
    }
    if (n->in[2].id) y = pj_binary(h, "add", y, PJ_BROADCAST(h, lower_vec(l, n->in[2]), *pj_type_of(h, y), 1));
    leave(&c, slots);
    return y;
}

/* ---- COMPRESS ----------------------------------------------------------------------------------------------------
 *
 * A mean weighted by softmax as its largest gate, the sum of exp(gate - largest) and that of the weighted values
 * (Milakov and Gimelshein, arXiv:1805.02867): what came before a chain is in its slot, and the step's tokens are
 * added, all at once, one place of a run after another. */

struct mean { /* f32 [tok, d] */
    int top, sum, value;
};
struct compress {
    struct lower *l;
    int64_t d;
    int32_t every;
    int gate, value; /* f32 [tok, cols] */
    int me, in_run, begin,
        pos0; /* i32 [tok]: its row; place in its run; its chain's first token; that one's position */
};

static struct mean mean_of_none(struct pj_hlo *h, struct pj_type t)
{
    int zero = pj_const(h, t, 0);
    return (struct mean){pj_const(h, t, LOWER_NEVER), zero, zero};
}

static struct mean merged(struct pj_hlo *h, struct mean a, struct mean b)
{
    int top = pj_binary(h, "maximum", a.top, b.top);
    int x = pj_unary(h, "exponential", pj_binary(h, "subtract", a.top, top));
    int y = pj_unary(h, "exponential", pj_binary(h, "subtract", b.top, top));
    return (struct mean){
        top, pj_binary(h, "add", pj_binary(h, "multiply", a.sum, x), pj_binary(h, "multiply", b.sum, y)),
        pj_binary(h, "add", pj_binary(h, "multiply", a.value, x), pj_binary(h, "multiply", b.value, y))};
}

/* The mean where the mask i1 [tok] has it, else none. */
static struct mean where(struct pj_hlo *h, int mask, struct mean a)
{
    struct pj_type t = *pj_type_of(h, a.top);
    struct mean none = mean_of_none(h, t);
    mask = PJ_BROADCAST(h, mask, t, 0);
    return (struct mean){pj_select(h, mask, a.top, none.top), pj_select(h, mask, a.sum, none.sum),
                         pj_select(h, mask, a.value, none.value)};
}

/* With the token at row `at` [tok] added, of columns [lo, lo + d), where it is in the step and the mask has it. */
static struct mean with_token(struct compress *c, struct mean m, int at, int mask, int64_t lo)
{
    struct pj_hlo *h = &c->l->h;
    mask = pj_binary(h, "and", mask, pj_compare(h, "GE", at, c->begin));
    at = pj_binary(h, "maximum", at, pj_splat(h, 0, at));
    int gate = pj_slice(h, pj_gather(h, c->gate, at), 1, lo, lo + c->d);
    int value = pj_slice(h, pj_gather(h, c->value, at), 1, lo, lo + c->d);
    struct mean one = {gate, pj_splat(h, 1, gate), value};
    return merged(h, m, where(h, mask, one));
}

/* Sums of a token's run, of columns [lo, lo + d), and (before) those of the run before, of the first d columns. */
static void step_sums(struct compress *c, int64_t lo, struct mean *m, struct mean *next)
{
    struct pj_hlo *h = &c->l->h;
    int zero = pj_const(h, pj_scalar(PJ_I32), 0), one = pj_const(h, pj_scalar(PJ_I32), 1);
    struct mean none = mean_of_none(h, PJ_TYPE(PJ_F32, c->l->shape.tok, c->d));
    int init[7] = {zero, none.top, none.sum, none.value, none.top, none.sum, none.value};
    int n = next ? 7 : 4;
    struct pj_loop loop; /* tokens ago, sums of this run and the one before, sums of its first columns */
    pj_while(h, &loop, init, n);
    pj_while_do(h, &loop, pj_compare(h, "LT", loop.var[0], pj_const(h, pj_scalar(PJ_I32), c->every)));
    struct pj_type list = *pj_type_of(h, c->me);
    int i = pj_broadcast(h, loop.var[0], list, NULL), at = pj_binary(h, "subtract", c->me, i);
    int here = pj_compare(h, "LE", i, c->in_run);
    struct mean a = with_token(c, (struct mean){loop.var[1], loop.var[2], loop.var[3]}, at, here, lo), b = none;
    if (next) {
        int before = pj_binary(h, "subtract", pj_binary(h, "subtract", at, c->in_run), pj_splat(h, 1, at));
        int all = pj_compare(h, "GE", i, pj_splat(h, 0, i));
        a = with_token(c, a, before, all, 0);
        b = with_token(c, (struct mean){loop.var[4], loop.var[5], loop.var[6]}, at, here, 0);
    }
    int left[7] = {pj_binary(h, "add", loop.var[0], one), a.top, a.sum, a.value, b.top, b.sum, b.value};
    pj_while_end(h, &loop, left);
    *m = (struct mean){loop.var[1], loop.var[2], loop.var[3]};
    if (next) *next = (struct mean){loop.var[4], loop.var[5], loop.var[6]};
}

static struct mean held(struct compress *c, int slots, int64_t at)
{
    struct pj_hlo *h = &c->l->h;
    int x[3];
    for (int i = 0; i < 3; i++)
        x[i] = PJ_RESHAPE(h, pj_slice(h, slots, 1, at + i, at + i + 1), c->l->shape.tok, c->d);
    return (struct mean){x[0], x[1], x[2]};
}

/* What each entry leaves: the sums behind its last token. */
static void leave_sums(struct compress *c, int *slots, const int *sums, int n)
{
    struct lower *l = c->l;
    struct pj_hlo *h = &l->h;
    int part[6], last = pj_slice(h, lower_field(l, SY_START), 0, 1, l->shape.seq + 1);
    last = pj_binary(h, "maximum", pj_binary(h, "subtract", last, pj_splat(h, 1, last)), pj_splat(h, 0, last));
    for (int i = 0; i < n; i++) part[i] = PJ_RESHAPE(h, pj_gather(h, sums[i], last), l->shape.seq, 1, c->d);
    *slots = pj_scatter(h, *slots, chains(l).wr, pj_concat(h, part, n, 1));
}

int lower_compress(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    const struct sy_compress_dim *k = &n->attr.compress;
    int *slots = lower_state(l, n), x = l->val[n->in[0].id], pos = lower_field(l, SY_POS);
    int64_t d = n->dim[1], cols = k->overlap ? 2 * d : d;
    struct compress c = {.l = l, .d = d, .every = k->every, .value = pj_slice(h, x, 1, 0, cols)};
    int head = chains(l).head, start = pj_slice(h, lower_field(l, SY_START), 0, 0, l->shape.seq);
    int first = pj_gather(h, start, head), entry = lower_entry_of_token(l), every = pj_splat(h, k->every, pos);
    c.me = pj_iota(h, *pj_type_of(h, pos), 0);
    c.in_run = pj_binary(h, "remainder", pos, every);
    c.begin = pj_gather(h, first, entry);
    c.pos0 = pj_gather(h, pos, c.begin);
    int bias = PJ_RESHAPE(h, lower_vec(l, n->in[1]), k->every, cols);
    c.gate = pj_binary(h, "add", pj_slice(h, x, 1, cols, 2 * cols), pj_gather(h, bias, c.in_run));
    int own = pj_gather(h, pj_gather(h, lower_field(l, SY_SLOT_RD), head), entry);
    int from = pj_convert(h, pj_gather(h, *slots, own), PJ_F32);
    int run0 = pj_binary(h, "subtract", pos, c.in_run), begun = pj_compare(h, "GT", c.pos0, run0);
    struct mean now, next, *both = k->overlap ? &next : NULL;
    step_sums(&c, k->overlap ? d : 0, &now, both);
    now = merged(h, now, where(h, begun, held(&c, from, 0)));
    if (both) {
        struct mean old = held(&c, from, 3);
        int zero = pj_splat(h, 0, pos), after = pj_compare(h, "GT", c.pos0, pj_binary(h, "subtract", run0, every));
        int before = pj_binary(h, "and", after, pj_compare(h, "LE", c.pos0, run0));
        before = pj_binary(h, "and", before, pj_compare(h, "GT", c.pos0, zero));
        now = merged(h, now, where(h, before, old));
        next = merged(h, next, where(h, begun, old));
    }
    int sums[6] = {now.top, now.sum, now.value};
    if (both) memcpy(sums + 3, (const int[]){next.top, next.sum, next.value}, 3 * sizeof *sums);
    leave_sums(&c, slots, sums, both ? 6 : 3);
    return pj_binary(h, "divide", now.value, now.sum);
}

/* ---- SCAN --------------------------------------------------------------------------------------------------------
 *
 * A piece of C tokens with states S_0 .. S_C, log decays g summed to G_i (per head, or per key dimension), and
 * u_j what token j adds to its key's row:
 *     S_i = e^(G_i) S_0 + sum over j <= i of e^(G_i - G_j) k_j u_j^T
 *     out_i = S_0^T (e^(G_i) q_i) + sum over j <= i of P_ij u_j,      P_ij = q_i . (e^(G_i - G_j) k_j)
 *     u_i + beta_i sum over j < i of A_ij u_j = beta_i (v_i - S_0^T (e^(G_i) k_i)), A the same with k_i for q_i
 * with `delta`, a triangular system; without it u_i = beta_i v_i (Yang et al., arXiv:2412.06464, section 3.3; Dao and
 * Gu, arXiv:2405.21060, section 6). No exponent is above 0, so nothing overflows. */

enum {
    CHUNK = 64,      /* tokens of a piece, decay per head */
    CHUNK_EACH = 16, /* decay per key dimension: e^(G_i - G_j) has a value for each pair and dimension */
};

struct scan {
    struct lower *l;
    const struct sy_scan_dim *d;
    int64_t rows; /* taken at once */
    bool each;    /* decay per key dimension */
    int q, k, v;  /* f32 [rows, n_val, d_key], the same, [rows, n_val, d_val] */
    int decay;    /* f32 [rows, n_val] or [rows, n_val, d_key] */
    int beta;     /* f32 [rows, n_val] */
};

static int head_rows(struct pj_hlo *h, int x, int64_t rows, int64_t n, int64_t d)
{
    return PJ_RESHAPE(h, x, rows, n, d);
}

/* Keys' heads as many as values have: value head j has key head j / (n_val / n_key). */
static int spread(struct scan *s, int x)
{
    struct pj_hlo *h = &s->l->h;
    const struct sy_scan_dim *d = s->d;
    x = head_rows(h, x, s->rows, d->n_key, d->d_key);
    if (d->n_key == d->n_val) return x;
    struct pj_type t = PJ_TYPE(PJ_F32, s->rows, d->n_key, d->n_val / d->n_key, d->d_key);
    return head_rows(h, PJ_BROADCAST(h, x, t, 0, 1, 3), s->rows, d->n_val, d->d_key);
}

/* Operands of rows tokens, [rows, columns] each; decay of one row is for all; beta -1: 1. */
static void take(struct scan *s, int q, int k, int v, int decay, int beta)
{
    struct pj_hlo *h = &s->l->h;
    const struct sy_scan_dim *d = s->d;
    s->q = spread(s, q);
    s->k = spread(s, k);
    s->v = head_rows(h, v, s->rows, d->n_val, d->d_val);
    struct pj_type t = *pj_type_of(h, decay);
    if (t.dim[0] != s->rows) {
        t.dim[0] = s->rows;
        decay = PJ_BROADCAST(h, decay, t, 0, 1);
    }
    s->decay = s->each ? head_rows(h, decay, s->rows, d->n_val, d->d_key) : decay;
    s->beta = beta >= 0 ? beta : pj_const(h, PJ_TYPE(PJ_F32, s->rows, d->n_val), 1);
}

/* x [rows, n_val, d] times f, which may lack the last dimension. */
static int times(struct pj_hlo *h, int x, int f)
{
    struct pj_type t = *pj_type_of(h, x);
    if (pj_type_of(h, f)->n_dim < t.n_dim) f = PJ_BROADCAST(h, f, t, 0, 1);
    return pj_binary(h, "multiply", x, f);
}

/* One token of each entry: states [rows, n_val, d_key, d_val]. */
static int one_token(struct scan *s, int *slots)
{
    struct lower *l = s->l;
    struct pj_hlo *h = &l->h;
    struct pj_type heads = PJ_TYPE(PJ_F32, s->rows, s->d->n_val, s->d->d_key);
    int state = read_slots(h, *slots, lower_field(l, SY_SLOT_RD), is_zero(h, lower_field(l, SY_POS)));
    struct pj_type t = *pj_type_of(h, state);
    int keep = pj_unary(h, "exponential", s->decay);
    if (!s->each) keep = PJ_BROADCAST(h, keep, heads, 0, 1);
    state = pj_binary(h, "multiply", state, PJ_BROADCAST(h, keep, t, 0, 1, 2));
    struct pj_dot read = {.n_batch = 2, .batch_a = {0, 1}, .batch_b = {0, 1}, .over_a = 2, .over_b = 2};
    int u = s->v;
    if (s->d->delta) u = pj_binary(h, "subtract", u, pj_dot(h, s->k, state, &read, PJ_F32));
    u = times(h, u, s->beta);
    int more = pj_binary(h, "multiply", PJ_BROADCAST(h, s->k, t, 0, 1, 2), PJ_BROADCAST(h, u, t, 0, 1, 3));
    state = pj_binary(h, "add", state, more);
    *slots = pj_scatter(h, *slots, lower_field(l, SY_SLOT_WR), pj_convert(h, state, pj_type_of(h, *slots)->elem));
    return PJ_RESHAPE(h, pj_dot(h, s->q, state, &read, PJ_F32), s->rows, (int64_t)s->d->n_val * s->d->d_val);
}

/* Sums over the rows up to each: by a triangle of ones. */
static int running_sum(struct scan *s, int x)
{
    struct pj_hlo *h = &s->l->h;
    struct pj_type t = PJ_TYPE(PJ_I32, s->rows, s->rows);
    int upto = pj_convert(h, pj_compare(h, "GE", pj_iota(h, t, 0), pj_iota(h, t, 1)), PJ_F32);
    return pj_dot(h, upto, x, &(struct pj_dot){.over_a = 1, .over_b = 0}, PJ_F32);
}

/* a_i . (e^(G_i - G_j) k_j) for j <= i, else 0: [n_val, rows, rows]. */
static int pairs(struct scan *s, int a, int sum)
{
    struct pj_hlo *h = &s->l->h;
    int64_t c = s->rows, n = s->d->n_val;
    struct pj_type t = s->each ? PJ_TYPE(PJ_F32, n, c, c, s->d->d_key) : PJ_TYPE(PJ_F32, n, c, c), ids = t;
    ids.elem = PJ_I32;
    int turned = pj_transpose(h, sum, s->each ? (const int[]){1, 0, 2} : (const int[]){1, 0, -1});
    int row = s->each ? PJ_BROADCAST(h, turned, t, 0, 1, 3) : PJ_BROADCAST(h, turned, t, 0, 1);
    int column = s->each ? PJ_BROADCAST(h, turned, t, 0, 2, 3) : PJ_BROADCAST(h, turned, t, 0, 2);
    int diff = pj_binary(h, "subtract", row, column);
    int seen = pj_compare(h, "GE", pj_iota(h, ids, 1), pj_iota(h, ids, 2));
    int decay = pj_unary(h, "exponential", pj_select(h, seen, diff, pj_splat(h, LOWER_NEVER, diff)));
    if (!s->each) {
        struct pj_dot dot = {.n_batch = 1, .batch_a = {1}, .batch_b = {1}, .over_a = 2, .over_b = 2};
        return pj_binary(h, "multiply", pj_dot(h, a, s->k, &dot, PJ_F32), decay);
    }
    const int order[] = {1, 0, 2};
    decay = pj_binary(h, "multiply", decay, PJ_BROADCAST(h, pj_transpose(h, a, order), t, 0, 1, 3));
    decay = pj_binary(h, "multiply", decay, PJ_BROADCAST(h, pj_transpose(h, s->k, order), t, 0, 2, 3));
    return pj_reduce(h, "add", decay, 3, 0);
}

/* u [n_val, rows, d_val] from the state before the piece [n_val, d_key, d_val]. */
static int additions(struct scan *s, int state, int sum, int grown)
{
    struct pj_hlo *h = &s->l->h;
    const int order[] = {1, 0, 2};
    struct pj_dot read = {.n_batch = 1, .batch_a = {1}, .batch_b = {0}, .over_a = 2, .over_b = 1};
    int u = pj_transpose(h, times(h, s->v, s->beta), order);
    if (!s->d->delta) return u;
    int known = pj_dot(h, times(h, times(h, s->k, grown), s->beta), state, &read, PJ_F32);
    int a = times(h, pairs(s, s->k, sum), pj_transpose(h, s->beta, (const int[]){1, 0}));
    return pj_solve_lower(h, a, pj_binary(h, "subtract", u, known));
}

/* The piece's outputs [rows, n_val * d_val]; *state becomes the one behind it. */
static int piece(struct scan *s, int *state)
{
    struct pj_hlo *h = &s->l->h;
    const int order[] = {1, 0, 2};
    int64_t c = s->rows, n = s->d->n_val;
    int sum = running_sum(s, s->decay), grown = pj_unary(h, "exponential", sum);
    int u = additions(s, *state, sum, grown);
    struct pj_dot read = {.n_batch = 1, .batch_a = {1}, .batch_b = {0}, .over_a = 2, .over_b = 1};
    struct pj_dot among = {.n_batch = 1, .batch_a = {0}, .batch_b = {0}, .over_a = 2, .over_b = 1};
    int out = pj_dot(h, times(h, s->q, grown), *state, &read, PJ_F32);
    out = pj_binary(h, "add", out, pj_dot(h, pairs(s, s->q, sum), u, &among, PJ_F32));
    int last = pj_slice(h, sum, 0, c - 1, c);
    struct pj_type t = *pj_type_of(h, sum), whole = *pj_type_of(h, *state);
    int left = s->each ? PJ_BROADCAST(h, last, t, 0, 1, 2) : PJ_BROADCAST(h, last, t, 0, 1);
    left = pj_unary(h, "exponential", pj_binary(h, "subtract", left, sum));
    struct pj_dot add = {.n_batch = 1, .batch_a = {1}, .batch_b = {0}, .over_a = 0, .over_b = 1};
    int more = pj_dot(h, times(h, s->k, left), u, &add, PJ_F32);
    int keep = pj_unary(h, "exponential", last);
    keep = s->each ? PJ_RESHAPE(h, keep, n, s->d->d_key) : PJ_RESHAPE(h, keep, n);
    keep = s->each ? PJ_BROADCAST(h, keep, whole, 0, 1) : PJ_BROADCAST(h, keep, whole, 0);
    *state = pj_binary(h, "add", pj_binary(h, "multiply", *state, keep), more);
    return PJ_RESHAPE(h, pj_transpose(h, out, order), c, n * s->d->d_val);
}

static int padded_piece(struct scan *s, int x, int at) { return pj_dynamic_slice(&s->l->h, x, 0, at, s->rows); }

/* x [rows, ...] with rows that are not the piece's as 0: no decay, nothing added. */
static int only(struct scan *s, int x, const struct pieces *p)
{
    struct pj_hlo *h = &s->l->h;
    struct pj_type t = *pj_type_of(h, x), ids = t;
    ids.elem = PJ_I32;
    int n = PJ_RESHAPE(h, pj_binary(h, "subtract", p->next, p->at), 1);
    int mine = pj_compare(h, "LT", pj_iota(h, ids, 0), PJ_BROADCAST(h, n, ids, 0));
    return pj_select(h, mine, x, pj_splat(h, 0, x));
}

static int many_tokens(struct scan *s, const struct sy_node *n, int *slots)
{
    struct lower *l = s->l;
    struct pj_hlo *h = &l->h;
    const struct sy_scan_dim *d = s->d;
    int64_t tok = l->shape.tok, most = s->each ? CHUNK_EACH : CHUNK;
    int in[5], rd = lower_field(l, SY_SLOT_RD), wr = lower_field(l, SY_SLOT_WR), pos = lower_field(l, SY_POS);
    s->rows = tok < most ? tok : most;
    for (int i = 0; i < 5; i++) {
        in[i] = n->in[i].id ? l->val[n->in[i].id] : -1;
        if (in[i] >= 0 && pj_type_of(h, in[i])->dim[0] == tok) in[i] = pj_pad_after(h, in[i], 0, s->rows);
    }
    int out = pj_const(h, PJ_TYPE(PJ_F32, tok + s->rows, (int64_t)d->n_val * d->d_val), 0);
    struct pieces p;
    lower_pieces(l, &p, s->rows, (const int[]){out, *slots}, 2);
    int part[5];
    for (int i = 0; i < 5; i++)
        part[i] = in[i] < 0 || pj_type_of(h, in[i])->dim[0] == 1 ? in[i] : padded_piece(s, in[i], p.at);
    take(s, part[0], part[1], part[2], part[3], part[4]);
    s->decay = only(s, s->decay, &p);
    s->beta = only(s, s->beta, &p);
    int to = lower_scalar_at(h, wr, p.entry), from = lower_scalar_at(h, rd, p.entry);
    from = pj_select(h, pj_compare(h, "EQ", p.at, p.begin), from, to);
    int first = PJ_RESHAPE(h, lower_scalar_at(h, pos, p.at), 1);
    int state = read_slots(h, p.carry[1], PJ_RESHAPE(h, from, 1), is_zero(h, first));
    state = PJ_RESHAPE(h, state, d->n_val, d->d_key, d->d_val);
    out = pj_dynamic_update(h, p.carry[0], piece(s, &state), 0, p.at);
    state = pj_convert(h, PJ_RESHAPE(h, state, 1, d->n_val, d->d_key, d->d_val), pj_type_of(h, *slots)->elem);
    int left = pj_dynamic_update(h, p.carry[1], state, 0, to);
    lower_pieces_end(l, &p, (const int[]){out, left});
    *slots = p.carry[1];
    return pj_slice(h, p.carry[0], 0, 0, tok);
}

int lower_scan(struct lower *l, const struct sy_node *n)
{
    const struct sy_scan_dim *d = &n->attr.scan;
    struct scan s = {.l = l, .d = d, .rows = l->shape.tok};
    int *slots = lower_state(l, n);
    s.each = l->node[n->in[3].id].dim[1] != d->n_val;
    if (!pj_is_decode(l->shape)) {
        bool kernel =
            l->opt.kernels & SY_KERNELS_CHUNK && !lower_chunk_refuses(l->node, n, l->opt.compute, l->opt.state_elem);
        return kernel ? lower_kernel_chunk(l, n) : many_tokens(&s, n, slots);
    }
    if (l->opt.kernels & SY_KERNELS_DELTA && !lower_delta_refuses(l->node, l->n_node, n, l->opt.state_elem))
        return lower_kernel_delta(l, n);
    int in[5];
    for (int i = 0; i < 5; i++) in[i] = n->in[i].id ? l->val[n->in[i].id] : -1;
    take(&s, in[0], in[1], in[2], in[3], in[4]);
    return one_token(&s, slots);
}
