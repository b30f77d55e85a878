/* lower.c - a graph as a StableHLO program: one table from op to the function that writes it. Values between ops are
 * f32 [rows, cols]; products take their operands in the compute type and sum in f32. */
#include <math.h>
#include <string.h>

#include "backend/pjrt/lower_int.h"

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

/* ---- products ------------------------------------------------------------------------------------------------- */

int lower_dequantised(struct lower *l, const struct pj_wseg *s, int code, int scale, int min)
{
    struct pj_hlo *h = &l->h;
    int64_t rows = pj_type_of(h, code)->dim[0];
    struct pj_type grouped = PJ_TYPE(PJ_F32, rows, s->cols / s->group, s->group);
    int x = pj_convert(h, pj_reshape(h, code, 3, grouped.dim), PJ_F32);
    x = pj_binary(h, "multiply", x, PJ_BROADCAST(h, scale, grouped, 0, 1));
    if (min >= 0) x = pj_binary(h, "add", x, PJ_BROADCAST(h, min, grouped, 0, 1));
    return PJ_RESHAPE(h, x, rows, s->cols);
}

static int seg_matrix(struct lower *l, const struct pj_wseg *s)
{
    int arg = l->arg0 + s->arg;
    return s->kind == PJ_DENSE ? arg : lower_dequantised(l, s, arg, arg + 1, s->has_min ? arg + 2 : -1);
}

static int linear(struct lower *l, const struct sy_node *n)
{
    const struct pj_wentry *e = pj_weight(l->w, l->node[n->in[1].id].name);
    int part[16], x = in(l, n, 0);
    sy_assert(e->n_seg > 0 && e->n_seg <= (int)SY_COUNT(part));
    struct pj_dot d = {.over_a = 1, .over_b = 1};
    bool exact = l->node[n->in[1].id].attr.weight.exact;
    for (int i = 0; i < e->n_seg; i++) {
        int w = seg_matrix(l, &e->seg[i]);
        part[i] = exact ? pj_dot(&l->h, x, pj_convert(&l->h, w, PJ_F32), &d, PJ_F32) : lower_dot(l, x, w, &d);
    }
    int y = pj_concat(&l->h, part, e->n_seg, 1);
    return n->in[2].id ? pj_binary(&l->h, "add", y, as_rows(l, lower_vec(l, n->in[2]), y)) : y;
}

static int embed(struct lower *l, const struct sy_node *n)
{
    const struct pj_wentry *e = pj_weight(l->w, l->node[n->in[0].id].name);
    const struct pj_wseg *s = e->seg;
    sy_assert(e->n_seg == 1);
    int id = in(l, n, 1), arg = l->arg0 + s->arg, x = pj_gather(&l->h, arg, id);
    if (s->kind == PJ_AFFINE)
        x = lower_dequantised(l, s, x, pj_gather(&l->h, arg + 1, id),
                              s->has_min ? pj_gather(&l->h, arg + 2, id) : -1);
    return pj_convert(&l->h, x, PJ_F32);
}

/* ---- rows -------------------------------------------------------------------------------------------------------
 */

static int norm(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    int64_t d = n->attr.norm.d, rows = n->dim[0], groups = n->dim[1] / d;
    struct pj_type t = PJ_TYPE(PJ_F32, rows, groups, d);
    int x = pj_reshape(h, in(l, n, 0), 3, t.dim);
    int mean = pj_reduce(h, "add", pj_binary(h, "multiply", x, x), 2, 0);
    mean = pj_binary(h, "multiply", mean, pj_splat(h, 1.0 / (double)d, mean));
    mean = pj_binary(h, "add", mean, pj_splat(h, (double)n->attr.norm.eps, mean));
    x = pj_binary(h, "multiply", x, PJ_BROADCAST(h, pj_unary(h, "rsqrt", mean), t, 0, 1));
    if (n->in[1].id) x = pj_binary(h, "multiply", x, PJ_BROADCAST(h, lower_vec(l, n->in[1]), t, 2));
    return PJ_RESHAPE(h, x, rows, n->dim[1]);
}

/* cos and sin of every token's position, [tok, d_rot / 2]: made once for each kind of rope. */
static struct rope_value rope_tables(struct lower *l, const struct sy_rope_dim *d)
{
    struct pj_hlo *h = &l->h;
    for (int i = 0; i < l->n_rope; i++)
        if (l->rope[i].inv_freq == d->inv_freq && l->rope[i].n == d->d_rot / 2) return l->rope[i];
    struct pj_type t = PJ_TYPE(PJ_F32, l->shape.tok, d->d_rot / 2);
    int pos = PJ_BROADCAST(h, pj_convert(h, lower_field(l, SY_POS), PJ_F32), t, 0);
    int angle = pj_binary(h, "multiply", pos, PJ_BROADCAST(h, pj_const_f32(h, d->inv_freq, t.dim[1]), t, 1));
    int scale = pj_const(h, t, (double)d->mscale);
    struct rope_value r = {.inv_freq = d->inv_freq, .n = d->d_rot / 2};
    r.cos = pj_binary(h, "multiply", pj_unary(h, "cosine", angle), scale);
    r.sin = pj_binary(h, "multiply", pj_unary(h, "sine", angle), scale);
    if (l->n_rope < (int)SY_COUNT(l->rope)) l->rope[l->n_rope++] = r;
    return r;
}

static int rope(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    const struct sy_rope_dim *d = &n->attr.rope;
    struct rope_value r = rope_tables(l, d);
    int64_t rows = n->dim[0], heads = n->dim[1] / d->d_head, half = d->d_rot / 2;
    struct pj_type t = PJ_TYPE(PJ_F32, rows, heads, half);
    int x = PJ_RESHAPE(h, in(l, n, 0), rows, heads, d->d_head), a, b;
    int turned = pj_slice(h, x, 2, d->first, d->first + d->d_rot);
    if (d->interleaved) {
        int pairs = PJ_RESHAPE(h, turned, rows, heads, half, 2);
        a = pj_reshape(h, pj_slice(h, pairs, 3, 0, 1), 3, t.dim);
        b = pj_reshape(h, pj_slice(h, pairs, 3, 1, 2), 3, t.dim);
    } else {
        a = pj_slice(h, turned, 2, 0, half);
        b = pj_slice(h, turned, 2, half, d->d_rot);
    }
    int c = PJ_BROADCAST(h, r.cos, t, 0, 2), s = PJ_BROADCAST(h, r.sin, t, 0, 2);
    int lo = pj_binary(h, "subtract", pj_binary(h, "multiply", a, c), pj_binary(h, "multiply", b, s));
    int hi = pj_binary(h, "add", pj_binary(h, "multiply", b, c), pj_binary(h, "multiply", a, s));
    if (d->interleaved) {
        lo = PJ_RESHAPE(h, lo, rows, heads, half, 1);
        hi = PJ_RESHAPE(h, hi, rows, heads, half, 1);
        turned = PJ_RESHAPE(h, pj_concat(h, (const int[]){lo, hi}, 2, 3), rows, heads, d->d_rot);
    } else {
        turned = pj_concat(h, (const int[]){lo, hi}, 2, 2);
    }
    int end = d->first + d->d_rot;
    if (d->first > 0) turned = pj_concat(h, (const int[]){pj_slice(h, x, 2, 0, d->first), turned}, 2, 2);
    if (end < d->d_head) turned = pj_concat(h, (const int[]){turned, pj_slice(h, x, 2, end, d->d_head)}, 2, 2);
    return PJ_RESHAPE(h, turned, rows, n->dim[1]);
}

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
static int part(struct lower *l, const struct sy_node *n)
{
    return pj_slice(&l->h, in(l, n, 0), 1, n->attr.part.lo, n->attr.part.hi);
}
static int rank_sum(struct lower *l, const struct sy_node *n)
{
    return pj_all_reduce(&l->h, in(l, n, 0), l->opt.n_rank);
}
static int rank_join(struct lower *l, const struct sy_node *n)
{
    return pj_all_gather(&l->h, in(l, n, 0), 1, l->opt.n_rank);
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
static int nothing(struct lower *l, const struct sy_node *n)
{
    (void)l;
    (void)n;
    return -1;
}
static int attend(struct lower *l, const struct sy_node *n)
{
    lower_attend(l, (uint32_t)(n - l->node));
    return l->val[n - l->node];
}

static int (*const lowerings[SY_OP_COUNT])(struct lower *, const struct sy_node *) = {
    [SY_OP_INPUT] = input,       [SY_OP_WEIGHT] = nothing,
    [SY_OP_STATE] = nothing,     [SY_OP_EMBED] = embed,
    [SY_OP_LINEAR] = linear,     [SY_OP_NORM] = norm,
    [SY_OP_ROPE] = rope,         [SY_OP_ACT] = act,
    [SY_OP_GLU] = glu,           [SY_OP_ADD] = add,
    [SY_OP_MUL] = mul,           [SY_OP_SCALE] = scale,
    [SY_OP_SOFTCAP] = softcap,   [SY_OP_PART] = part,
    [SY_OP_ROWS] = rows,         [SY_OP_ATTEND] = attend,
    [SY_OP_ROUTE] = lower_route, [SY_OP_EXPERTS] = lower_experts,
    [SY_OP_CONST] = constant,    [SY_OP_SAMPLE] = sample,
    [SY_OP_RANK_SUM] = rank_sum, [SY_OP_RANK_JOIN] = rank_join,
};

struct pj_type pj_kv_type(const struct sy_node *attend_node, bool values, const struct pj_lower_opt *o)
{
    const struct sy_attn_dim *a = &attend_node->attr.attn;
    return PJ_TYPE(o->kv_elem, o->cache.n_block, o->cache.block_len, a->n_kv, values ? a->d_val : a->d_key);
}

/* Operands and attributes that only some models use and no lowering here handles. */
static bool plain(const struct sy_node *node, const struct sy_node *n)
{
    switch (n->op) {
    case SY_OP_NORM: return !n->attr.norm.centred;
    case SY_OP_MUL: {
        const struct sy_node *b = &node[n->in[1].id];
        return b->op != SY_OP_WEIGHT || b->dim[1] == n->dim[1]; /* no single number */
    }
    case SY_OP_ROPE: return !n->attr.rope.inv_freq_long;
    case SY_OP_ATTEND: return n->in[1].id && !n->in[4].id && n->attr.attn.chunk == 0;
    default: return true;
    }
}

sy_status pj_lower_check(const struct sy_graph *g, struct sy_err *err)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node);
    for (uint32_t i = 1; i < n_node; i++)
        if (!lowerings[node[i].op] || !plain(node, &node[i]))
            return sy_fail(err, SY_ENOSUP,
                           "the pjrt backend has no lowering of the op %s as this model uses it; use --backend cpu",
                           sy_op_name(node[i].op));
    return SY_OK;
}

static void declare(struct lower *l)
{
    int64_t n_step = 0;
    for (int f = 0; f < SY_FIELD_COUNT; f++) {
        n_step += sy_field_len((enum sy_field)f, l->shape);
        l->field[f] = -1;
    }
    l->step = pj_arg(&l->h, PJ_TYPE(PJ_I32, n_step), -1);
    for (uint32_t i = 1; i < l->n_node; i++)
        for (int side = 0; side < 2 && l->node[i].op == SY_OP_ATTEND; side++, l->n_kv++)
            l->kv[l->n_kv] = pj_arg(&l->h, pj_kv_type(&l->node[i], side == 1, &l->opt), l->n_kv);
    l->arg0 = l->h.n_arg;
    for (int i = 0; i < l->w->n_arg; i++) (void)pj_arg(&l->h, l->w->type[i], -1);
    l->n_kv = 0; /* counts the arrays again as they are written */
}

static sy_status write_nodes(struct lower *l)
{
    for (uint32_t i = 1; i < l->n_node && !l->st && !l->h.failed; i++) {
        const struct sy_node *n = &l->node[i];
        l->val[i] = lowerings[n->op](l, n);
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
    struct lower l = {.shape = sy_graph_shape(g), .w = w, .opt = *opt, .err = err};
    struct sy_arena a;
    sy_arena_init(&a, env, 0);
    pj_hlo_init(&l.h, env);
    l.node = sy_graph_nodes(g, &l.n_node);
    l.val = sy_arena_array(&a, l.n_node, sizeof *l.val);
    l.kv = sy_arena_array(&a, 2 * (size_t)l.n_node, sizeof *l.kv);
    int *result = sy_arena_array(&a, 2 * (size_t)l.n_node + 3, sizeof *result);
    sy_status st = l.val && l.kv && result ? SY_OK : sy_fail(err, SY_ENOMEM, "no memory to lower a graph");
    if (!st) {
        declare(&l);
        st = write_nodes(&l);
    }
    if (!st) {
        uint32_t last = sy_graph_result(g).id, logits = l.node[last].in[0].id, hidden = hidden_of(&l, last);
        int n = l.n_kv;
        memcpy(result, l.kv, (size_t)n * sizeof *result);
        result[n++] = l.val[last];
        result[n++] = l.val[logits];
        result[n++] = l.val[hidden];
        *out = (struct pj_results){.n_kv = l.n_kv,
                                   .n_out = l.shape.out,
                                   .n_vocab = (int32_t)l.node[logits].dim[1],
                                   .d_model = (int32_t)l.node[hidden].dim[1]};
        st = pj_hlo_end(&l.h, opt->n_rank, result, n, text, err);
    }
    pj_hlo_release(&l.h);
    sy_arena_release(&a);
    return st;
}
