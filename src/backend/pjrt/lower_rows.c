/* lower_rows.c - ops on rows, each row by itself. */
#include "backend/pjrt/lower_int.h"

static int in(const struct lower *l, const struct sy_node *n, int k) { return l->val[n->in[k].id]; }

/* Mean over the last dimension, and x without it where asked for. */
static int mean(struct pj_hlo *h, int x)
{
    struct pj_type t = *pj_type_of(h, x);
    int sum = pj_reduce(h, "add", x, t.n_dim - 1, 0);
    return pj_binary(h, "multiply", sum, pj_splat(h, 1.0 / (double)t.dim[t.n_dim - 1], sum));
}

int lower_norm(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    int64_t d = n->attr.norm.d, rows = n->dim[0], groups = n->dim[1] / d;
    struct pj_type t = PJ_TYPE(PJ_F32, rows, groups, d);
    int x = pj_reshape(h, in(l, n, 0), 3, t.dim);
    if (n->attr.norm.centred) x = pj_binary(h, "subtract", x, PJ_BROADCAST(h, mean(h, x), t, 0, 1));
    int square = mean(h, pj_binary(h, "multiply", x, x));
    square = pj_binary(h, "add", square, pj_splat(h, (double)n->attr.norm.eps, square));
    x = pj_binary(h, "multiply", x, PJ_BROADCAST(h, pj_unary(h, "rsqrt", square), t, 0, 1));
    if (n->in[1].id) x = pj_binary(h, "multiply", x, PJ_BROADCAST(h, lower_vec(l, n->in[1]), t, 2));
    return PJ_RESHAPE(h, x, rows, n->dim[1]);
}

/* x * (1 + beta ln(1 + floor((position + offset) / every))); positions and offsets are not negative. */
int lower_temper(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    const struct sy_temper_dim *d = &n->attr.temper;
    int x = in(l, n, 0), pos = lower_field(l, SY_POS);
    int step = pj_binary(h, "add", pos, pj_splat(h, d->offset, pos));
    step = pj_convert(h, pj_binary(h, "divide", step, pj_splat(h, d->every, step)), PJ_F32);
    int f = pj_unary(h, "log_plus_one", step);
    f = pj_binary(h, "add", pj_binary(h, "multiply", f, pj_splat(h, (double)d->beta, f)), pj_splat(h, 1, f));
    return pj_binary(h, "multiply", x, PJ_BROADCAST(h, f, *pj_type_of(h, x), 0));
}

int lower_sparsify(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    int x = in(l, n, 0), middle = mean(h, x);
    struct pj_type t = *pj_type_of(h, x);
    int off = pj_binary(h, "subtract", x, PJ_BROADCAST(h, middle, t, 0));
    int deviation = pj_unary(h, "sqrt", mean(h, pj_binary(h, "multiply", off, off)));
    int bound = pj_binary(h, "multiply", deviation, pj_splat(h, (double)n->attr.c, deviation));
    bound = pj_binary(h, "add", middle, bound);
    return pj_binary(h, "maximum", pj_binary(h, "subtract", x, PJ_BROADCAST(h, bound, t, 0)), pj_splat(h, 0, x));
}

int lower_match(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    int a = in(l, n, 0), b = in(l, n, 1);
    int have = mean(h, pj_binary(h, "multiply", a, a)), want = mean(h, pj_binary(h, "multiply", b, b));
    have = pj_binary(h, "maximum", have, pj_splat(h, (double)n->attr.c, have));
    int f = pj_unary(h, "sqrt", pj_binary(h, "divide", want, have));
    return pj_binary(h, "multiply", a, PJ_BROADCAST(h, f, *pj_type_of(h, a), 0));
}

/* Each head's first columns by a matrix of its own. */
int lower_heads(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    const struct sy_heads_dim *d = &n->attr.heads;
    int64_t rows = n->dim[0], each = pj_type_of(h, in(l, n, 0))->dim[1] / d->n_head;
    int w = lower_matrix(l, n->in[1]), x = PJ_RESHAPE(h, in(l, n, 0), rows, d->n_head, each);
    w = PJ_RESHAPE(h, w, d->n_head, d->w_rows, pj_type_of(h, w)->dim[1]);
    w = pj_slice(h, w, 1, d->row0, d->row0 + (d->transposed ? d->d_in : d->d_out));
    /* x [rows, heads, d_in] by w [heads, d_out, d_in], or its transpose -> [heads, rows, d_out] */
    struct pj_dot dot = {.n_batch = 1, .batch_a = {1}, .batch_b = {0}, .over_a = 2, .over_b = d->transposed ? 1 : 2};
    int y = lower_dot(l, pj_slice(h, x, 2, 0, d->d_in), w, &dot);
    y = pj_transpose(h, y, (const int[]){1, 0, 2});
    if (each > d->d_in) y = pj_concat(h, (const int[]){y, pj_slice(h, x, 2, d->d_in, each)}, 2, 2);
    return PJ_RESHAPE(h, y, rows, n->dim[1]);
}

/* ---- streams -----------------------------------------------------------------------------------------------------
 */

/* Each divided by the sum over one dimension of m [rows, n, n], plus eps. */
static int balanced(struct pj_hlo *h, int m, int dim, double eps)
{
    struct pj_type t = *pj_type_of(h, m);
    int sum = pj_reduce(h, "add", m, dim, eps);
    return pj_binary(h, "divide", m, pj_broadcast(h, sum, t, dim == 2 ? (const int[]){0, 1} : (const int[]){0, 2}));
}

/* Rows and columns of a positive matrix divided by their sums in turn (Sinkhorn and Knopp, 1967). */
static int mixing(struct pj_hlo *h, int m, const struct sy_gates_dim *d)
{
    double eps = (double)d->eps;
    struct pj_type t = *pj_type_of(h, m);
    int top = PJ_BROADCAST(h, pj_reduce(h, "maximum", m, 2, LOWER_NEVER), t, 0, 1),
        one = pj_const(h, pj_scalar(PJ_I32), 1);
    m = balanced(h, pj_unary(h, "exponential", pj_binary(h, "subtract", m, top)), 2, 0);
    m = balanced(h, pj_binary(h, "add", m, pj_splat(h, eps, m)), 1, eps);
    struct pj_loop loop; /* round, matrices */
    pj_while(h, &loop, (const int[]){one, m}, 2);
    pj_while_do(h, &loop, pj_compare(h, "LT", loop.var[0], pj_const(h, pj_scalar(PJ_I32), d->n_round)));
    m = balanced(h, balanced(h, loop.var[1], 2, eps), 1, eps);
    pj_while_end(h, &loop, (const int[]){pj_binary(h, "add", loop.var[0], one), m});
    return loop.var[1];
}

int lower_gates(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    const struct sy_gates_dim *d = &n->attr.gates;
    int64_t rows = n->dim[0], at[] = {0, d->n, 2 * d->n, n->dim[1]};
    int x = in(l, n, 0), scale = lower_vec(l, n->in[1]), base = lower_vec(l, n->in[2]), part[3];
    for (int i = 0; i < 3; i++) {
        struct pj_type t = PJ_TYPE(PJ_F32, rows, at[i + 1] - at[i]);
        int s = PJ_BROADCAST(h, PJ_RESHAPE(h, pj_slice(h, scale, 0, i, i + 1), 1, 1), t, 0, 1);
        part[i] = pj_binary(h, "multiply", pj_slice(h, x, 1, at[i], at[i + 1]), s);
        part[i] = pj_binary(h, "add", part[i], PJ_BROADCAST(h, pj_slice(h, base, 0, at[i], at[i + 1]), t, 1));
        if (i < 2) part[i] = pj_unary(h, "logistic", part[i]);
    }
    part[0] = pj_binary(h, "add", part[0], pj_splat(h, (double)d->eps, part[0]));
    part[1] = pj_binary(h, "add", part[1], part[1]);
    part[2] = mixing(h, PJ_RESHAPE(h, part[2], rows, d->n, d->n), d);
    part[2] = PJ_RESHAPE(h, part[2], rows, (int64_t)d->n * d->n);
    return pj_concat(h, part, 3, 1);
}

int lower_blend(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    const struct sy_blend_dim *d = &n->attr.blend;
    int64_t rows = n->dim[0], each = n->dim[1] / d->n_out;
    struct pj_type t = PJ_TYPE(PJ_F32, rows, d->n_out, each);
    int x = PJ_RESHAPE(h, in(l, n, 0), rows, d->n_in, each), w = PJ_RESHAPE(h, in(l, n, 1), rows, d->n_in, d->n_out);
    struct pj_dot dot = {.n_batch = 1, .batch_a = {0}, .batch_b = {0}, .over_a = 1, .over_b = 1};
    int y = pj_dot(h, w, x, &dot, PJ_F32);
    if (n->in[2].id) {
        int more = PJ_BROADCAST(h, in(l, n, 2), t, 0, 2), gain = PJ_BROADCAST(h, in(l, n, 3), t, 0, 1);
        y = pj_binary(h, "add", y, pj_binary(h, "multiply", more, gain));
    }
    return PJ_RESHAPE(h, y, rows, n->dim[1]);
}

/* ---- rope --------------------------------------------------------------------------------------------------------
 */

/* Angles per position of each token [tok, n]: one row for all, or by its SPAN one of two. */
static int frequencies(struct lower *l, const struct sy_rope_dim *d, struct pj_type t)
{
    struct pj_hlo *h = &l->h;
    int f = PJ_BROADCAST(h, pj_const_f32(h, d->inv_freq, t.dim[1]), t, 1);
    if (!d->inv_freq_long) return f;
    int other = PJ_BROADCAST(h, pj_const_f32(h, d->inv_freq_long, t.dim[1]), t, 1), span = lower_field(l, SY_SPAN);
    int is_long = pj_compare(h, "GT", span, pj_splat(h, d->n_short, span));
    return pj_select(h, PJ_BROADCAST(h, is_long, t, 0), other, f);
}

/* cos and sin of every token's position, [tok, d_rot / 2]: made once for each kind of rope. */
static struct rope_value rope_tables(struct lower *l, const struct sy_rope_dim *d)
{
    struct pj_hlo *h = &l->h;
    for (int i = 0; i < l->n_rope; i++)
        if (l->rope[i].inv_freq == d->inv_freq && l->rope[i].n == d->d_rot / 2 && l->rope[i].every == d->every)
            return l->rope[i];
    struct pj_type t = PJ_TYPE(PJ_F32, l->shape.tok, d->d_rot / 2);
    int pos = lower_field(l, SY_POS);
    if (d->every > 1) pos = pj_binary(h, "subtract", pos, pj_binary(h, "remainder", pos, pj_splat(h, d->every, pos)));
    pos = PJ_BROADCAST(h, pj_convert(h, pos, PJ_F32), t, 0);
    int angle = pj_binary(h, "multiply", pos, frequencies(l, d, t));
    int scale = pj_const(h, t, (double)d->mscale);
    struct rope_value r = {.inv_freq = d->inv_freq, .n = d->d_rot / 2, .every = d->every};
    r.cos = pj_binary(h, "multiply", pj_unary(h, "cosine", angle), scale);
    r.sin = pj_binary(h, "multiply", pj_unary(h, "sine", angle), scale);
    if (l->n_rope < (int)SY_COUNT(l->rope)) l->rope[l->n_rope++] = r;
    return r;
}

int lower_rope(struct lower *l, const struct sy_node *n)
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
