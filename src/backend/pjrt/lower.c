/* lower.c - a graph as a StableHLO program: one table from op to the function that writes it. Values between ops are
 * f32 [rows, cols]; products take their operands in the compute type and sum in f32. */
#include <math.h>
#include <string.h>

#include "backend/pjrt/lower_int.h"

enum { HALVES_TOK = 256 }; /* of a step whose products are limited by arithmetic */

static int in(const struct lower *l, const struct sy_node *n, int k) { return l->val[n->in[k].id]; }

int lower_field(struct lower *l, enum sy_field f)
{
    if (l->field[f] >= 0) return l->field[f];
    int64_t at = 0;
    for (int i = 0; i < (int)f; i++) at += sy_field_len((enum sy_field)i, l->shape);
    return l->field[f] = pj_slice(&l->h, l->step, 0, at, at + sy_field_len(f, l->shape));
}

int lower_dot(struct lower *l, int a, int b, const struct pj_dot *d)
{
    enum pj_elem e = l->opt.compute == SY_COMPUTE_F32 ? PJ_F32 : PJ_BF16;
    return pj_dot(&l->h, pj_convert(&l->h, a, e), pj_convert(&l->h, b, e), d, PJ_F32);
}

/* A vector [d] (or [1, d]) as rows of the shape of `like` [rows, d]. */
static int as_rows(struct lower *l, int vec, int like)
{
    struct pj_type t = *pj_type_of(&l->h, like), v = *pj_type_of(&l->h, vec);
    int flat = v.n_dim == 1 ? vec : PJ_RESHAPE(&l->h, vec, t.dim[1]);
    return PJ_BROADCAST(&l->h, flat, t, 1);
}

int lower_vec(struct lower *l, sy_val v)
{
    const struct pj_wentry *e = pj_weight(l->w, l->node[v.id].name);
    sy_assert(e->vec >= 0);
    return l->arg0 + e->vec;
}

/* The second operand of an elementwise op: a weight, or one row for all, or a value of the same shape. */
static int second(struct lower *l, const struct sy_node *n, int like)
{
    const struct sy_node *b = &l->node[n->in[1].id];
    if (b->op == SY_OP_WEIGHT) return as_rows(l, lower_vec(l, n->in[1]), like);
    int v = in(l, n, 1);
    if (b->dim[1] != n->dim[1]) return PJ_BROADCAST(&l->h, v, *pj_type_of(&l->h, like), 0, 1); /* a column for all */
    return b->dim[0] == n->dim[0] ? v : as_rows(l, v, like);
}

int lower_share(struct lower *l, const struct sy_share *s)
{
    struct pj_hlo *h = &l->h;
    int r = pj_binary(h, "remainder", pj_replica_id(h), pj_const(h, pj_scalar(PJ_I32), s->period));
    return pj_binary(h, "subtract", r, pj_const(h, pj_scalar(PJ_I32), s->first));
}

int lower_is_rank(struct lower *l, int stride, int n, int at)
{
    struct pj_hlo *h = &l->h;
    struct pj_type one = pj_scalar(PJ_I32);
    int r = pj_binary(h, "divide", pj_replica_id(h), pj_const(h, one, stride));
    return pj_compare(h, "EQ", pj_binary(h, "remainder", r, pj_const(h, one, n)), pj_const(h, one, at));
}

/* ---- products ------------------------------------------------------------------------------------------------- */

/* One of 16 numbers by the bits of a code, lowest first: halves of the table, halves of those. */
static int from_book(struct pj_hlo *h, const int8_t *book, int code)
{
    int x[16];
    code = pj_convert(h, code, PJ_U8);
    struct pj_type t = *pj_type_of(h, code);
    t.elem = PJ_F32;
    for (int i = 0; i < 16; i++) x[i] = pj_const(h, t, book[i]);
    for (int bit = 1, n = 8; n > 0; bit *= 2, n /= 2) {
        int set = pj_binary(h, "and", code, pj_splat(h, bit, code));
        set = pj_compare(h, "NE", set, pj_splat(h, 0, code));
        for (int i = 0; i < n; i++) x[i] = pj_select(h, set, x[2 * i + 1], x[2 * i]);
    }
    return x[0];
}

static int number_of(struct pj_hlo *h, const struct pj_wseg *s, int code)
{
    switch (s->code) {
    case PJ_CODE_INT: break;
    case PJ_CODE_E2M1: code = pj_bitcast(h, code, PJ_E2M1); break;
    case PJ_CODE_E4M3: code = pj_bitcast(h, code, PJ_E4M3); break;
    case PJ_CODE_E5M2: code = pj_bitcast(h, code, PJ_E5M2); break;
    case PJ_CODE_BOOK: return from_book(h, s->format->affine.codebook, code);
    }
    return pj_convert(h, code, PJ_F32);
}

int lower_dequantised(struct lower *l, const struct pj_wseg *s, int code, int scale, int min)
{
    struct pj_hlo *h = &l->h;
    if (scale < 0) return number_of(h, s, code);
    struct pj_type t = *pj_type_of(h, code), grouped = PJ_TYPE(PJ_F32, t.dim[0], s->cols / s->group, s->group);
    if (s->wide > 0) grouped = PJ_TYPE(PJ_F32, t.dim[0], t.dim[1], t.dim[2]);
    int x = number_of(h, s, pj_reshape(h, code, 3, grouped.dim)), row = s->wide > 0 ? 2 : 1;
    x = pj_binary(h, "multiply", x, PJ_BROADCAST(h, scale, grouped, 0, row));
    if (min >= 0) x = pj_binary(h, "add", x, PJ_BROADCAST(h, min, grouped, 0, row));
    return s->wide > 0 ? x : PJ_RESHAPE(h, x, t.dim[0], s->cols);
}

int lower_product(struct lower *l, const struct pj_wseg *s, int x, const int part[3], bool exact)
{
    struct pj_hlo *h = &l->h;
    struct pj_dot d = {.over_a = 1, .over_b = 1};
    bool after = part[1] >= 0 && part[2] < 0 && s->group == s->cols; /* one scale for all that is summed */
    int numbers = s->kind == PJ_DENSE ? part[0] : lower_dequantised(l, s, part[0], after ? -1 : part[1], part[2]);
    if (s->wide > 0) { /* both dimensions summed over: a reshape between would put all numbers into memory */
        x = PJ_RESHAPE(h, x, pj_type_of(h, x)->dim[0], s->cols / s->group, s->group);
        d = (struct pj_dot){.over_a = 1, .over_b = 0, .n_more = 1};
    }
    int y = exact ? pj_dot(h, x, pj_convert(h, numbers, PJ_F32), &d, PJ_F32) : lower_dot(l, x, numbers, &d);
    if (s->wide > pj_wseg_rows(s)) y = pj_slice(h, y, 1, 0, pj_wseg_rows(s));
    if (!after) return y;
    struct pj_type t = *pj_type_of(h, y);
    return pj_binary(h, "multiply", y, PJ_BROADCAST(h, PJ_RESHAPE(h, part[1], t.dim[1]), t, 1));
}

static int seg_product(struct lower *l, const struct pj_wseg *s, int x, bool exact)
{
    int arg = l->arg0 + s->arg;
    const int part[] = {arg, s->has_scale ? arg + 1 : -1, s->has_min ? arg + 2 : -1};
    return lower_product(l, s, x, part, exact);
}

static int seg_matrix(struct lower *l, const struct pj_wseg *s)
{
    int arg = l->arg0 + s->arg;
    if (s->kind == PJ_DENSE) return arg;
    return lower_dequantised(l, s, arg, s->has_scale ? arg + 1 : -1, s->has_min ? arg + 2 : -1);
}

int lower_matrix(struct lower *l, sy_val weight)
{
    const struct pj_wentry *e = pj_weight(l->w, l->node[weight.id].name);
    sy_assert(e->n_seg == 1);
    return seg_matrix(l, e->seg);
}

static int linear(struct lower *l, const struct sy_node *n)
{
    const struct pj_wentry *e = pj_weight(l->w, l->node[n->in[1].id].name);
    int part[16], x = in(l, n, 0);
    sy_assert(e->n_seg > 0 && e->n_seg <= (int)SY_COUNT(part));
    bool exact = l->node[n->in[1].id].attr.weight.exact;
    for (int i = 0; i < e->n_seg; i++) part[i] = seg_product(l, &e->seg[i], x, exact);
    int y = pj_concat(&l->h, part, e->n_seg, 1);
    return n->in[2].id ? pj_binary(&l->h, "add", y, as_rows(l, lower_vec(l, n->in[2]), y)) : y;
}

/* Ids among the rank's own rows, 0 for others; returns which they are, i1 [rows]. */
static int own_rows(struct lower *l, const struct pj_wseg *s, int *id)
{
    struct pj_hlo *h = &l->h;
    struct pj_type t = *pj_type_of(h, *id), one = pj_scalar(PJ_I32);
    int first = pj_binary(h, "multiply", lower_share(l, &s->share), pj_const(h, one, (double)s->rows));
    int x = pj_binary(h, "subtract", *id, PJ_BROADCAST(h, first, t, 0)), zero = pj_splat(h, 0, *id);
    int own =
        pj_binary(h, "and", pj_compare(h, "GE", x, zero), pj_compare(h, "LT", x, pj_const(h, t, (double)s->rows)));
    *id = pj_select(h, own, x, zero);
    return own;
}

static int zero_rows(struct lower *l, int x, int own)
{
    struct pj_type mask = *pj_type_of(&l->h, x);
    mask.elem = PJ_PRED;
    return pj_select(&l->h, PJ_BROADCAST(&l->h, own, mask, 0), x, pj_splat(&l->h, 0, x));
}

static int embed(struct lower *l, const struct sy_node *n)
{
    const struct pj_wentry *e = pj_weight(l->w, l->node[n->in[0].id].name);
    const struct pj_wseg *s = e->seg;
    sy_assert(e->n_seg == 1);
    int id = in(l, n, 1), arg = l->arg0 + s->arg, none = pj_splat(&l->h, 0, id), own = -1;
    int n_row = pj_splat(&l->h, (double)s->rows * (s->share.n > 0 ? s->share.n : 1), id);
    id = pj_select(&l->h, pj_compare(&l->h, "LT", id, n_row), id, none);
    if (s->share.n > 0) own = own_rows(l, s, &id);
    int x = pj_gather(&l->h, arg, id);
    if (s->kind == PJ_CODED)
        x = lower_dequantised(l, s, x, s->has_scale ? pj_gather(&l->h, arg + 1, id) : -1,
                              s->has_min ? pj_gather(&l->h, arg + 2, id) : -1);
    x = pj_convert(&l->h, x, PJ_F32);
    return own < 0 ? x : zero_rows(l, x, own);
}

/* ---- rows -------------------------------------------------------------------------------------------------------
 */

int lower_fn(struct lower *l, enum sy_fn f, int x)
{
    struct pj_hlo *h = &l->h;
    int half = pj_splat(h, 0.5, x), one = pj_splat(h, 1, x), y;
    switch (f) {
    case SY_SILU: return pj_binary(h, "multiply", x, pj_unary(h, "logistic", x));
    case SY_SOFTPLUS: {
        int soft = pj_unary(h, "log_plus_one", pj_unary(h, "exponential", x));
        return pj_select(h, pj_compare(h, "GT", x, pj_splat(h, 20, x)), x, soft);
    }
    case SY_SIGMOID: return pj_unary(h, "logistic", x);
    case SY_TANH: return pj_unary(h, "tanh", x);
    case SY_GELU_QUICK:
        y = pj_unary(h, "logistic", pj_binary(h, "multiply", x, pj_splat(h, 1.702, x)));
        return pj_binary(h, "multiply", x, y);
    case SY_RELU2: y = pj_binary(h, "maximum", x, pj_splat(h, 0, x)); return pj_binary(h, "multiply", y, y);
    case SY_GELU: y = pj_unary(h, "chlo.erf", pj_binary(h, "multiply", x, pj_splat(h, sqrt(0.5), x))); break;
    case SY_GELU_TANH: { /* Hendrycks and Gimpel, arXiv:1606.08415 */
        int cube = pj_binary(h, "multiply", x, pj_binary(h, "multiply", x, x));
        y = pj_binary(h, "add", x, pj_binary(h, "multiply", cube, pj_splat(h, 0.044715, x)));
        y = pj_unary(h, "tanh", pj_binary(h, "multiply", y, pj_splat(h, sqrt(2 / 3.14159265358979323846), x)));
        break;
    }
    default: sy_assert(!"an activation without a lowering"); return x;
    }
    return pj_binary(h, "multiply", pj_binary(h, "multiply", x, half), pj_binary(h, "add", y, one));
}

int lower_glu(struct lower *l, const struct sy_glu_dim *d, int gate, int up)
{
    struct pj_hlo *h = &l->h;
    if (d->limit > 0) {
        int limit = pj_splat(h, (double)d->limit, gate), low = pj_splat(h, -(double)d->limit, gate);
        gate = pj_binary(h, "minimum", gate, limit);
        up = pj_binary(h, "maximum", pj_binary(h, "minimum", up, limit), low);
    }
    if (d->up_add != 0) up = pj_binary(h, "add", up, pj_splat(h, (double)d->up_add, up));
    return pj_binary(h, "multiply", lower_fn(l, d->fn, gate), up);
}

static int act(struct lower *l, const struct sy_node *n) { return lower_fn(l, n->attr.fn, in(l, n, 0)); }
static int glu(struct lower *l, const struct sy_node *n)
{
    int a = in(l, n, 0);
    return pj_binary(&l->h, "multiply", lower_fn(l, n->attr.fn, a), second(l, n, a));
}
static int add(struct lower *l, const struct sy_node *n)
{
    int a = in(l, n, 0);
    return pj_binary(&l->h, "add", a, second(l, n, a));
}
static int mul(struct lower *l, const struct sy_node *n)
{
    int a = in(l, n, 0);
    return pj_binary(&l->h, "multiply", a, second(l, n, a));
}
static int scale(struct lower *l, const struct sy_node *n)
{
    int a = in(l, n, 0);
    return pj_binary(&l->h, "multiply", a, pj_splat(&l->h, (double)n->attr.c, a));
}
static int softcap(struct lower *l, const struct sy_node *n)
{
    int a = in(l, n, 0), c = pj_splat(&l->h, (double)n->attr.c, a);
    return pj_binary(&l->h, "multiply", c, pj_unary(&l->h, "tanh", pj_binary(&l->h, "divide", a, c)));
}
/* Half of a large product's columns, as gate and up are: a product with those rows of the weight, since the whole
 * would go through memory before the halves are multiplied. -1: something else. */
static int half_of_product(struct lower *l, const struct sy_node *n)
{
    const struct sy_node *of = &l->node[n->in[0].id];
    if (of->op != SY_OP_LINEAR || of->in[2].id || l->shape.tok < HALVES_TOK) return -1;
    const struct sy_node *weight = &l->node[of->in[1].id];
    const struct pj_wentry *e = pj_weight(l->w, weight->name);
    int64_t lo = n->attr.part.lo, hi = n->attr.part.hi;
    if (e->n_seg != 1 || e->seg->kind != PJ_DENSE || weight->attr.weight.exact || 2 * (hi - lo) != e->seg->rows)
        return -1;
    struct pj_dot d = {.over_a = 1, .over_b = 1};
    return lower_dot(l, in(l, of, 0), pj_slice(&l->h, seg_matrix(l, e->seg), 0, lo, hi), &d);
}

static int part(struct lower *l, const struct sy_node *n)
{
    int half = half_of_product(l, n);
    if (half >= 0) return half;
    return pj_slice(&l->h, in(l, n, 0), 1, n->attr.part.lo, n->attr.part.hi);
}
static struct pj_group group(const struct lower *l, const struct sy_node *n)
{
    return (struct pj_group){n->attr.rank.n, n->attr.rank.stride, l->opt.n_rank};
}
static int rank_sum(struct lower *l, const struct sy_node *n)
{
    return pj_all_reduce(&l->h, in(l, n, 0), group(l, n));
}
static int rank_join(struct lower *l, const struct sy_node *n)
{
    return pj_all_gather(&l->h, in(l, n, 0), 1, group(l, n));
}
static int rank_rows(struct lower *l, const struct sy_node *n)
{
    return pj_all_gather(&l->h, in(l, n, 0), 0, group(l, n));
}
static int rank_share(struct lower *l, const struct sy_node *n)
{
    return pj_reduce_scatter(&l->h, in(l, n, 0), group(l, n));
}
static int rank_shift(struct lower *l, const struct sy_node *n) { return pj_shift(&l->h, in(l, n, 0), group(l, n)); }
/* The sum of what one has and of others' zeros. */
static int rank_pick(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    const struct sy_rank_dim *d = &n->attr.rank;
    int x = in(l, n, 0), one = lower_is_rank(l, d->stride, d->n, d->at);
    struct pj_type mask = *pj_type_of(h, x);
    mask.elem = PJ_PRED;
    return pj_all_reduce(h, pj_select(h, PJ_BROADCAST(h, one, mask, 0), x, pj_splat(h, 0, x)), group(l, n));
}
static int rows(struct lower *l, const struct sy_node *n) { return pj_gather(&l->h, in(l, n, 0), in(l, n, 1)); }

/* The lowest id among the largest; within the vocabulary whatever the logits are. */
static int sample(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    int x = in(l, n, 0);
    struct pj_type t = *pj_type_of(h, x), ids = t;
    ids.elem = PJ_I32;
    int top = PJ_BROADCAST(h, pj_reduce(h, "maximum", x, 1, -3.0e38), t, 0);
    int last = pj_const(h, ids, (double)(t.dim[1] - 1));
    int id = pj_select(h, pj_compare(h, "GE", x, top), pj_iota(h, ids, 1), last);
    return pj_reduce(h, "minimum", id, 1, (double)(t.dim[1] - 1));
}

/* ---- the program ------------------------------------------------------------------------------------------------
 */

static int input(struct lower *l, const struct sy_node *n) { return lower_field(l, n->attr.field); }
static int constant(struct lower *l, const struct sy_node *n)
{
    return PJ_RESHAPE(&l->h, pj_const_f32(&l->h, n->attr.constant, n->dim[1]), 1, n->dim[1]);
}
static int given(struct lower *l, const struct sy_node *n)
{
    sy_assert(l->given >= 0 && pj_type_of(&l->h, l->given)->dim[1] == n->dim[1]);
    return l->given;
}
static int nothing(struct lower *l, const struct sy_node *n)
{
    (void)l;
    (void)n;
    return -1;
}
static int join(struct lower *l, const struct sy_node *n)
{
    return pj_concat(&l->h, (const int[]){in(l, n, 0), in(l, n, 1)}, 2, 1);
}

static int (*const lowerings[SY_OP_COUNT])(struct lower *, const struct sy_node *) = {
    [SY_OP_INPUT] = input,
    [SY_OP_GIVEN] = given,
    [SY_OP_WEIGHT] = nothing,
    [SY_OP_CONST] = constant,
    [SY_OP_STATE] = nothing,
    [SY_OP_EMBED] = embed,
    [SY_OP_LINEAR] = linear,
    [SY_OP_NORM] = lower_norm,
    [SY_OP_ROPE] = lower_rope,
    [SY_OP_ACT] = act,
    [SY_OP_GLU] = glu,
    [SY_OP_ADD] = add,
    [SY_OP_MUL] = mul,
    [SY_OP_SCALE] = scale,
    [SY_OP_SOFTCAP] = softcap,
    [SY_OP_TEMPER] = lower_temper,
    [SY_OP_MATCH] = lower_match,
    [SY_OP_SPARSIFY] = lower_sparsify,
    [SY_OP_PART] = part,
    [SY_OP_JOIN] = join,
    [SY_OP_HEADS] = lower_heads,
    [SY_OP_ROWS] = rows,
    [SY_OP_RANK_SUM] = rank_sum,
    [SY_OP_RANK_JOIN] = rank_join,
    [SY_OP_RANK_ROWS] = rank_rows,
    [SY_OP_RANK_SHARE] = rank_share,
    [SY_OP_RANK_SHIFT] = rank_shift,
    [SY_OP_RANK_PICK] = rank_pick,
    [SY_OP_INDEX] = lower_index,
    [SY_OP_ATTEND] = lower_attend,
    [SY_OP_ROUTE] = lower_route,
    [SY_OP_EXPERTS] = lower_experts,
    [SY_OP_CONV] = lower_conv,
    [SY_OP_SCAN] = lower_scan,
    [SY_OP_GATES] = lower_gates,
    [SY_OP_BLEND] = lower_blend,
    [SY_OP_COMPRESS] = lower_compress,
    [SY_OP_KEEP] = lower_keep,
    [SY_OP_SAMPLE] = sample,
};

sy_status pj_lower_check(const struct sy_graph *g, struct sy_err *err)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node);
    for (uint32_t i = 1; i < n_node; i++)
        if (!lowerings[node[i].op])
            return sy_fail(err, SY_ENOSUP, "the pjrt backend has no lowering of the op %s; use --backend cpu",
                           sy_op_name(node[i].op));
    return SY_OK;
}

static void declare(struct lower *l, const struct pj_type *type)
{
    int64_t n_step = 0;
    for (int f = 0; f < SY_FIELD_COUNT; f++) {
        n_step += sy_field_len((enum sy_field)f, l->shape);
        l->field[f] = -1;
    }
    l->step = pj_arg(&l->h, PJ_TYPE(PJ_I32, n_step), -1);
    for (int i = 0; i < l->n_kv; i++) l->kv[i] = pj_arg(&l->h, type[i], i);
    l->arg0 = l->h.n_arg;
    for (int i = 0; i < l->w->n_arg; i++) (void)pj_arg(&l->h, l->w->type[i], -1);
    for (uint32_t i = 1; i < l->n_node; i++) {
        if (l->node[i].op != SY_OP_GIVEN || l->given >= 0) continue;
        l->given = pj_arg(&l->h, PJ_TYPE(PJ_F32, l->shape.tok, l->node[i].dim[1]), -1);
    }
}

sy_status lower_nodes(struct lower *l)
{
    for (uint32_t i = 1; i < l->n_node && l->opt.kv_elem == PJ_I8; i++) {
        const char *why = lower_q8_refuses(&l->node[i]);
        if (why)
            return sy_fail(l->err, SY_ENOSUP,
                           "--kv-dtype q8_0: the pjrt backend has none with %s; use f32, bf16 or f16", why);
    }
    for (uint32_t i = 1; i < l->n_node && !l->st && !l->h.failed; i++) {
        const struct sy_node *n = &l->node[i];
        if (!l->inside[i]) l->val[i] = lowerings[n->op](l, n);
    }
    return l->st;
}

/* The node whose rows the last product before the sampling read. */
static uint32_t hidden_of(const struct lower *l, uint32_t sample_id)
{
    uint32_t id = l->node[sample_id].in[0].id;
    while (id && l->node[id].op != SY_OP_LINEAR) id = l->node[id].in[0].id;
    return l->node[id].in[0].id;
}

sy_status pj_lower(const struct sy_env *env, const struct sy_graph *g, const struct sy_weights *w,
                   const struct pj_lower_opt *opt, struct sy_buf *text, struct pj_results *out, struct sy_err *err)
{
    struct lower l = {.shape = sy_graph_shape(g), .w = w, .opt = *opt, .err = err, .entry_of_token = -1, .given = -1};
    l.chain.head = -1;
    struct sy_arena a;
    sy_arena_init(&a, env, 0);
    pj_hlo_init(&l.h, env);
    l.node = sy_graph_nodes(g, &l.n_node);
    l.val = sy_arena_array(&a, l.n_node, sizeof *l.val);
    l.inside = sy_arena_array(&a, l.n_node, sizeof *l.inside);
    l.kv = sy_arena_array(&a, PJ_ARRAYS_MAX * (size_t)l.n_node, sizeof *l.kv);
    l.first = sy_arena_array(&a, l.n_node, sizeof *l.first);
    struct pj_type *type = sy_arena_array(&a, PJ_ARRAYS_MAX * (size_t)l.n_node, sizeof *type);
    int *result = sy_arena_array(&a, PJ_ARRAYS_MAX * (size_t)l.n_node + 4, sizeof *result);
    bool ok = l.val && l.inside && l.kv && l.first && type && result;
    sy_status st = ok ? SY_OK : sy_fail(err, SY_ENOMEM, "no memory to lower a graph");
    if (!st) {
        l.n_kv = pj_state_arrays(g, opt, type, l.first).n;
        declare(&l, type);
        lower_delta_mark(&l);
        st = lower_nodes(&l);
    }
    if (!st) {
        uint32_t last = sy_graph_result(g).id, logits = l.node[last].in[0].id, hidden = hidden_of(&l, last);
        int n = l.n_kv;
        memcpy(result, l.kv, (size_t)n * sizeof *result);
        result[n++] = l.val[last];
        result[n++] = l.val[logits];
        result[n++] = l.val[hidden];
        bool all = sy_graph_keeps_hidden(g) && l.node[hidden].op == SY_OP_ROWS;
        if (all) result[n++] = l.val[l.node[hidden].in[0].id];
        *out = (struct pj_results){.experts = l.experts,
                                   .n_kv = l.n_kv,
                                   .n_out = l.shape.out,
                                   .d_given = l.given < 0 ? 0 : (int32_t)pj_type_of(&l.h, l.given)->dim[1],
                                   .all = all,
                                   .n_vocab = (int32_t)l.node[logits].dim[1],
                                   .d_model = (int32_t)l.node[hidden].dim[1]};
        st = pj_hlo_end(&l.h, opt->n_rank, result, n, text, err);
    }
    pj_hlo_release(&l.h);
    sy_arena_release(&a);
    return st;
}
