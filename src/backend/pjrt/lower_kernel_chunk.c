/* lower_kernel_chunk.c - the gated delta rule of steps with prompts by a hand-written kernel for TPUs. Sequences are
 * cut at positions that are multiples of 64, wherever a step begins, and each token stands in its piece where its
 * position says: what is computed of it does not depend on how a prompt was cut into steps. */
#include "backend/pjrt/lower_int.h"
#include "backend/pjrt/mosaic/kernels.h"

enum {
    C = 64,
    D = 128,
    UNIT = 8,
    SIDE = 2,      /* pieces side by side */
    SIDE_LONG = 4, /* of long steps: a quarter less of a piece's time on v6e and v7, and twice as long to compile */
    LONG = 1024    /* tokens of a step */
};

struct mo_chunk mo_chunk_of(const struct sy_scan_dim *d, bool bf16, int32_t n_tok, int32_t n_seq, int32_t n_slot)
{
    int32_t each = d->n_val / d->n_key, entries = n_seq < n_tok ? n_seq : n_tok;
    struct mo_chunk a = {.n_slot = n_slot, .n_key = d->n_key, .n_val = d->n_val, .bf16 = bf16};
    a.side = n_tok < LONG ? SIDE : SIDE_LONG;
    a.n_chunk = (n_tok + 2 * (C - 1) * entries) / C; /* an entry may begin and end within a piece */
    a.n_chunk = (a.n_chunk + a.side - 1) / a.side * a.side;
    for (int32_t n = each; n <= UNIT && each % 2 == 0; n += each)
        if (d->n_val % n == 0) a.unit = n;
    return a;
}

const char *lower_chunk_refuses(const struct sy_node *node, const struct sy_node *scan, enum sy_compute compute,
                                enum pj_elem state)
{
    const struct sy_scan_dim *d = &scan->attr.scan;
    return compute != SY_COMPUTE_BF16                 ? "products not of bf16"
           : !d->delta || !scan->in[4].id             ? "a recurrence other than the gated delta rule"
           : d->d_key != D || d->d_val != D           ? "heads of another width than 128"
           : node[scan->in[3].id].dim[1] != d->n_val  ? "a decay for each key dimension"
           : state != PJ_F32 && state != PJ_BF16      ? "states of another type than f32 and bf16"
           : mo_chunk_of(d, false, 1, 1, 1).unit == 0 ? "value heads that do not go in pairs of a key head"
                                                      : NULL;
}

struct cut { /* how the step's tokens stand in pieces */
    struct lower *l;
    struct mo_chunk a;
    int64_t tok, n_seq, units, keys;
    int start, first, off; /* i32 [n_seq]: first token, first piece, place of that token in it */
    int token, mask;       /* by piece and place: token i32, where none another of the sequence; i1 [n_chunk, C] */
    int read, write, live;
};

static int like(struct pj_hlo *h, double x, int as) { return pj_splat(h, x, as); }
static int op(struct cut *c, const char *name, int a, int b) { return pj_binary(&c->l->h, name, a, b); }

/* Of i32 [n], the sum of those before each. */
static int before(struct pj_hlo *h, int x, int64_t n)
{
    struct pj_type t = PJ_TYPE(PJ_I32, n, n);
    int earlier = pj_compare(h, "LT", pj_iota(h, t, 0), pj_iota(h, t, 1)), all = PJ_BROADCAST(h, x, t, 0);
    return pj_reduce(h, "add", pj_select(h, earlier, all, like(h, 0, all)), 0, 0);
}

static struct cut cut_of(struct lower *l, const struct mo_chunk *a)
{
    struct pj_hlo *h = &l->h;
    struct cut c = {.l = l, .a = *a, .tok = l->shape.tok, .n_seq = l->shape.seq, .units = a->n_val / a->unit};
    struct pj_type list = PJ_TYPE(PJ_I32, a->n_chunk), each = PJ_TYPE(PJ_I32, a->n_chunk, c.n_seq);
    struct pj_type grid = PJ_TYPE(PJ_I32, a->n_chunk, C);
    int all = lower_field(l, SY_START), end = pj_slice(h, all, 0, 1, c.n_seq + 1);
    c.keys = a->n_key / c.units;
    c.start = pj_slice(h, all, 0, 0, c.n_seq);
    int n = op(&c, "subtract", end, c.start), zero = like(h, 0, n), wide = like(h, C, n);
    int pos = pj_gather(h, lower_field(l, SY_POS), c.start);
    c.off = op(&c, "remainder", pos, wide);
    int pieces = op(&c, "divide", op(&c, "add", op(&c, "add", c.off, n), like(h, C - 1, n)), wide);
    pieces = pj_select(h, pj_compare(h, "GT", n, zero), pieces, zero);
    c.first = before(h, pieces, c.n_seq);
    c.live = PJ_RESHAPE(h, pj_reduce(h, "add", pieces, 0, 0), 1);
    /* The entry of each piece, and which of the entry's it is. */
    int me = pj_iota(h, list, 0), behind = op(&c, "add", c.first, pieces);
    int past = pj_compare(h, "GE", pj_iota(h, each, 0), PJ_BROADCAST(h, behind, each, 1));
    int entry = pj_reduce(h, "add", pj_convert(h, past, PJ_I32), 1, 0);
    entry = op(&c, "minimum", entry, like(h, (double)(c.n_seq - 1), entry));
    int which = op(&c, "subtract", me, pj_gather(h, c.first, entry));
    int is = pj_compare(h, "LT", me, PJ_BROADCAST(h, c.live, list, 0));
    int begin = op(&c, "subtract", pj_gather(h, c.start, entry), pj_gather(h, c.off, entry));
    begin = op(&c, "add", begin, op(&c, "multiply", which, like(h, C, which)));
    c.token = op(&c, "add", PJ_BROADCAST(h, begin, grid, 0), pj_iota(h, grid, 1));
    int from = PJ_BROADCAST(h, pj_gather(h, c.start, entry), grid, 0);
    int to = PJ_BROADCAST(h, pj_gather(h, end, entry), grid, 0);
    c.mask = op(&c, "and", pj_compare(h, "GE", c.token, from), pj_compare(h, "LT", c.token, to));
    c.mask = op(&c, "and", c.mask, PJ_BROADCAST(h, is, ((struct pj_type){PJ_PRED, 2, {a->n_chunk, C}}), 0));
    c.token = op(&c, "minimum", c.token, op(&c, "subtract", to, like(h, 1, to)));
    c.token = op(&c, "maximum", op(&c, "maximum", c.token, from), like(h, 0, from));
    int rd = pj_select(h, pj_compare(h, "EQ", pos, zero), like(h, -1, zero), lower_field(l, SY_SLOT_RD));
    int head = op(&c, "and", is, pj_compare(h, "EQ", which, like(h, 0, which)));
    int last = pj_compare(h, "EQ", which, op(&c, "subtract", pj_gather(h, pieces, entry), like(h, 1, which)));
    c.read = pj_select(h, head, pj_gather(h, rd, entry), like(h, -2, which));
    c.write =
        pj_select(h, op(&c, "and", is, last), pj_gather(h, lower_field(l, SY_SLOT_WR), entry), like(h, -1, which));
    return c;
}

static int decay_of(struct cut *c, int x)
{
    struct pj_hlo *h = &c->l->h;
    if (pj_type_of(h, x)->dim[0] != c->tok) x = PJ_BROADCAST(h, x, PJ_TYPE(PJ_F32, c->tok, c->a.n_val), 0, 1);
    return x;
}

/* Gates as the kernel takes them: [n_chunk, C, units * D], 0 where no token is. */
static int gates(struct cut *c, int decay, int beta)
{
    struct pj_hlo *h = &c->l->h;
    const int side[] = {decay_of(c, decay), beta};
    int part[2];
    for (int i = 0; i < 2; i++)
        part[i] = pj_pad_after(h, PJ_RESHAPE(h, side[i], c->tok, c->units, c->a.unit), 2, UNIT - c->a.unit);
    int x = pj_pad_after(h, pj_concat(h, part, 2, 2), 2, D - 2 * UNIT);
    x = pj_pad_after(h, PJ_RESHAPE(h, x, c->tok, c->units * D), 0, 1);
    return pj_gather(h, x, pj_select(h, c->mask, c->token, like(h, (double)c->tok, c->token)));
}

/* Results [n_chunk, C, n_val * D] by token, 0 for padding. */
static int back(struct cut *c, int y)
{
    struct pj_hlo *h = &c->l->h;
    struct pj_type list = PJ_TYPE(PJ_I32, c->tok);
    int64_t width = (int64_t)c->a.n_val * D;
    y = PJ_RESHAPE(h, y, (int64_t)c->a.n_chunk * C, width);
    int entry = lower_entry_of_token(c->l), me = pj_iota(h, list, 0);
    int at = op(c, "multiply", c->first, like(h, C, c->first));
    at = op(c, "subtract", op(c, "add", at, c->off), c->start);
    y = pj_gather(h, y, op(c, "add", me, pj_gather(h, at, entry)));
    int all = pj_slice(h, lower_field(c->l, SY_START), 0, c->n_seq, c->n_seq + 1);
    int is = pj_compare(h, "LT", me, PJ_BROADCAST(h, all, list, 0));
    return pj_select(h, PJ_BROADCAST(h, is, ((struct pj_type){PJ_PRED, 2, {c->tok, width}}), 0), y, like(h, 0, y));
}

/* Queries, keys and values [tok, columns] of the kernel, which takes their norm where it may. */
static int columns_of(struct lower *l, const struct sy_node *n, struct mo_chunk *a)
{
    struct pj_hlo *h = &l->h;
    struct lower_normed from;
    a->norm = lower_delta_normed(l->node, n, &from);
    if (a->norm) {
        a->eps = from.eps;
        a->q_scale = from.scale[0];
        a->k_scale = from.scale[1];
        return pj_convert(h, l->val[from.all.id], PJ_BF16);
    }
    int in[3];
    for (int i = 0; i < 3; i++) in[i] = pj_convert(h, l->val[n->in[i].id], PJ_BF16);
    return pj_concat(h, in, 3, 1);
}

int lower_kernel_chunk(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    const struct sy_scan_dim *d = &n->attr.scan;
    struct mo_chunk a = mo_chunk_of(d, l->opt.state_elem == PJ_BF16, l->shape.tok, l->shape.seq, l->opt.cache.n_slot);
    struct cut c = cut_of(l, &a);
    int result[2], *state = lower_state(l, n), x = pj_gather(h, columns_of(l, n, &a), c.token);
    int gate = gates(&c, l->val[n->in[3].id], l->val[n->in[4].id]);
    struct mosaic m;
    mo_init(&m, h->env);
    mo_chunk(&m, &a);
    const int operand[] = {c.read, c.write, c.live, *state, x, gate};
    lower_kernel_call(h, &m, operand, result);
    *state = result[0];
    return back(&c, result[1]);
}
