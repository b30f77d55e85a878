/* lower_moe.c - mixtures of experts as plain StableHLO. ROUTE takes the best one after another, as often as experts
 * are used. EXPERTS sorts the (row, choice) pairs by expert and loops over tiles of pairs of one expert: as many as
 * the step has, so an expert that nobody chose is never read, and padding goes to no expert. */
#include "backend/pjrt/lower_int.h"

#define TAKEN (-3.0e38) /* below every score */

/* ---- ROUTE --------------------------------------------------------------------------------------------------------
 */

/* Takes the largest of each row of *x [rows, n], the lowest id of equal ones: its mask [rows, n]; *x loses it. */
static int take_best(struct pj_hlo *h, int *x, int *id)
{
    struct pj_type t = *pj_type_of(h, *x), ids = t;
    ids.elem = PJ_I32;
    int iota = pj_iota(h, ids, 1), none = pj_const(h, ids, (double)(t.dim[1] - 1));
    int top = PJ_BROADCAST(h, pj_reduce(h, "maximum", *x, 1, TAKEN), t, 0);
    int at = pj_select(h, pj_compare(h, "GE", *x, top), iota, none);
    *id = pj_reduce(h, "minimum", at, 1, (double)(t.dim[1] - 1));
    int mask = pj_compare(h, "EQ", iota, PJ_BROADCAST(h, *id, ids, 0));
    *x = pj_select(h, mask, pj_splat(h, TAKEN, *x), *x);
    return mask;
}

static int softmax(struct pj_hlo *h, int x)
{
    struct pj_type t = *pj_type_of(h, x);
    int top = PJ_BROADCAST(h, pj_reduce(h, "maximum", x, 1, TAKEN), t, 0);
    x = pj_unary(h, "exponential", pj_binary(h, "subtract", x, top));
    return pj_binary(h, "divide", x, PJ_BROADCAST(h, pj_reduce(h, "add", x, 1, 0), t, 0));
}

static int scores(struct pj_hlo *h, enum sy_score kind, int x)
{
    switch (kind) {
    case SY_SCORE_SOFTMAX: return softmax(h, x);
    case SY_SCORE_SIGMOID: return pj_unary(h, "logistic", x);
    case SY_SCORE_LOGIT: return x;
    case SY_SCORE_SQRT_SOFTPLUS: break;
    }
    int soft = pj_unary(h, "log_plus_one", pj_unary(h, "exponential", x));
    int large = pj_compare(h, "GT", x, pj_splat(h, 20, x));
    return pj_unary(h, "sqrt", pj_select(h, large, x, soft));
}

/* Experts outside the best groups are taken out of choice [rows, n_expert]. */
static int keep_groups(struct pj_hlo *h, const struct sy_route_dim *d, int choice)
{
    struct pj_type t = *pj_type_of(h, choice);
    int64_t rows = t.dim[0], n = d->n_expert / d->n_group;
    struct pj_type by_group = PJ_TYPE(PJ_F32, rows, d->n_group, n);
    int x = PJ_RESHAPE(h, choice, rows * d->n_group, n), id;
    int first = pj_reduce(h, "maximum", x, 1, TAKEN);
    (void)take_best(h, &x, &id);
    int sum = pj_binary(h, "add", first, pj_reduce(h, "maximum", x, 1, TAKEN));
    sum = PJ_RESHAPE(h, sum, rows, d->n_group);
    int kept = -1;
    for (int32_t k = 0; k < d->n_group_used; k++) {
        int mask = take_best(h, &sum, &id);
        kept = kept < 0 ? mask : pj_binary(h, "or", kept, mask);
    }
    int all = PJ_BROADCAST(h, kept, by_group, 0, 1);
    x = pj_reshape(h, choice, 3, by_group.dim);
    return pj_reshape(h, pj_select(h, all, x, pj_splat(h, TAKEN, x)), 2, t.dim);
}

static int chosen(struct pj_hlo *h, int mask, int x)
{
    return pj_reduce(h, "add", pj_select(h, mask, x, pj_splat(h, 0, x)), 1, 0);
}

static int row_vector(struct pj_hlo *h, int vec, struct pj_type like) { return PJ_BROADCAST(h, vec, like, 1); }

/* Padding chooses an expert that there is not. Rows after ROWS have no padding told apart: they are few. */
static int without_padding(struct lower *l, int ids)
{
    struct pj_hlo *h = &l->h;
    struct pj_type t = *pj_type_of(h, ids), at = t;
    at.elem = PJ_I32;
    if (t.dim[0] != l->shape.tok) return ids;
    int total = pj_slice(h, lower_field(l, SY_START), 0, l->shape.seq, l->shape.seq + 1);
    int live = pj_compare(h, "LT", pj_iota(h, at, 0), PJ_BROADCAST(h, total, at, 1));
    return pj_select(h, live, ids, pj_const(h, t, 2.0 * SY_EXPERTS_MAX));
}

/* The mask [rows, n] of the expert whose number is column k of ids; *id: the numbers, i32 [rows]. */
static int given(struct pj_hlo *h, int ids, int32_t k, struct pj_type t, int *id)
{
    struct pj_type all = t;
    all.elem = PJ_I32;
    *id = PJ_RESHAPE(h, pj_convert(h, pj_slice(h, ids, 1, k, k + 1), PJ_I32), t.dim[0]);
    return pj_compare(h, "EQ", pj_iota(h, all, 1), PJ_BROADCAST(h, *id, all, 0));
}

/* [rows, 2 n_used]: ids as numbers, then weights. */
int lower_route(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    const struct sy_route_dim *d = &n->attr.route;
    int score = scores(h, d->score, l->val[n->in[0].id]), choice = score;
    struct pj_type t = *pj_type_of(h, score), column = PJ_TYPE(PJ_F32, t.dim[0], 1);
    if (n->in[1].id) choice = pj_binary(h, "add", score, row_vector(h, lower_vec(l, n->in[1]), t));
    if (d->n_group > 1) choice = keep_groups(h, d, choice);
    int gain = n->in[2].id ? row_vector(h, lower_vec(l, n->in[2]), t) : -1;
    int part[3 * 64], gains[64], id;
    sy_assert(d->n_used <= 64);
    for (int32_t k = 0; k < d->n_used; k++) {
        int mask = n->in[3].id ? given(h, l->val[n->in[3].id], k, t, &id) : take_best(h, &choice, &id);
        part[k] = pj_reshape(h, pj_convert(h, id, PJ_F32), 2, column.dim);
        part[d->n_used + k] = pj_reshape(h, chosen(h, mask, score), 2, column.dim);
        if (gain >= 0) gains[k] = pj_reshape(h, chosen(h, mask, gain), 2, column.dim);
    }
    int ids = pj_concat(h, part, d->n_used, 1), w = pj_concat(h, part + d->n_used, d->n_used, 1);
    struct pj_type wt = *pj_type_of(h, w);
    if (d->weighting == SY_WEIGHT_SOFTMAX) w = softmax(h, w);
    if (d->weighting == SY_WEIGHT_NORMED) {
        int sum = pj_reduce(h, "add", w, 1, (double)d->eps);
        w = pj_binary(h, "divide", w, PJ_BROADCAST(h, sum, wt, 0));
    }
    w = pj_binary(h, "multiply", w, pj_splat(h, (double)d->scale, w));
    if (gain >= 0) w = pj_binary(h, "multiply", w, pj_concat(h, gains, d->n_used, 1));
    return pj_concat(h, (const int[]){without_padding(l, ids), w}, 2, 1);
}

/* ---- EXPERTS ------------------------------------------------------------------------------------------------------
 */

struct experts {
    struct lower *l;
    const struct sy_node *n;
    const struct sy_moe_dim *d;
    int64_t rows, pairs, tile;
};

/* Expert e's scales or minima, of an array of all experts'. */
static int expert_scales(struct experts *x, const struct pj_wseg *s, int array, int e)
{
    struct pj_hlo *h = &x->l->h;
    int64_t n = s->cols / s->group;
    int from = pj_binary(h, "multiply", e, pj_const(h, pj_scalar(PJ_I32), (double)n));
    int some = pj_dynamic_slice(h, array, 0, from, n);
    if (s->wide > 0) return some;
    return pj_transpose(h, PJ_RESHAPE(h, some, n, s->stack), (const int[]){1, 0});
}

/* x [tile, k] times the matrix [n_row, k] of expert e, plus its bias. */
static int product(struct experts *x, int a, sy_val w, sy_val bias, int e, int64_t n_row)
{
    struct lower *l = x->l;
    struct pj_hlo *h = &l->h;
    const struct pj_wentry *of = pj_weight(l->w, l->node[w.id].name);
    sy_assert(of->n_seg == 1);
    const struct pj_wseg *s = of->seg;
    int64_t n = s->wide > 0 ? s->cols / s->group : n_row;
    int from = pj_binary(h, "multiply", e, pj_const(h, pj_scalar(PJ_I32), (double)n)), arg = l->arg0 + s->arg;
    const int part[] = {pj_dynamic_slice(h, arg, 0, from, n), s->has_scale ? expert_scales(x, s, arg + 1, e) : -1,
                        s->has_min ? expert_scales(x, s, arg + 2, e) : -1};
    int y = lower_product(l, s, a, part, false);
    if (!bias.id) return y;
    from = pj_binary(h, "multiply", e, pj_const(h, pj_scalar(PJ_I32), (double)n_row));
    int b = pj_dynamic_slice(h, lower_vec(l, bias), 0, from, n_row);
    return pj_binary(h, "add", y, row_vector(h, b, *pj_type_of(h, y)));
}

static int feed_forward(struct experts *x, int a, int e)
{
    struct lower *l = x->l;
    struct pj_hlo *h = &l->h;
    const struct sy_moe_dim *d = x->d;
    int64_t f = d->d_ff;
    int y = product(x, a, x->n->in[2], x->n->in[4], e, d->gated ? 2 * f : f);
    if (!d->gated) {
        y = lower_fn(l, d->glu.fn, y);
    } else {
        y = lower_glu(l, &d->glu, pj_slice(h, y, 1, 0, f), pj_slice(h, y, 1, f, 2 * f));
    }
    return product(x, y, x->n->in[3], x->n->in[5], e, x->n->dim[1]);
}

/* Expert of each pair, i32 [pairs], of the rank's own; n_expert, which no tile takes, in place of others' and of
 * padding. */
static int pair_experts(struct experts *x, int ids)
{
    struct pj_hlo *h = &x->l->h;
    const struct sy_share *s = &x->d->share;
    struct pj_type t = PJ_TYPE(PJ_I32, x->rows, x->d->n_used), one = pj_scalar(PJ_I32);
    int e = pj_convert(h, ids, PJ_I32), none = pj_const(h, t, x->d->n_expert);
    if (s->n > 0) {
        int first = pj_binary(h, "multiply", lower_share(x->l, s), pj_const(h, one, x->d->n_expert));
        e = pj_binary(h, "subtract", e, PJ_BROADCAST(h, first, t, 0));
        e = pj_select(h, pj_compare(h, "LT", e, pj_splat(h, 0, e)), none, e);
    }
    return PJ_RESHAPE(h, pj_binary(h, "minimum", e, none), x->pairs);
}

/* Rows [pairs, d_model] through their experts, pairs sorted by expert. */
static int run_tiles(struct experts *x, int sorted, int a)
{
    struct pj_hlo *h = &x->l->h;
    struct pj_type one = pj_scalar(PJ_I32), list = PJ_TYPE(PJ_I32, x->pairs);
    int64_t d_model = x->n->dim[1];
    a = pj_pad_after(h, a, 0, x->tile);
    int n = pj_compare(h, "LT", sorted, pj_const(h, list, x->d->n_expert));
    n = pj_reduce(h, "add", pj_convert(h, n, PJ_I32), 0, 0);
    struct pj_loop loop; /* pair, results */
    int out = pj_const(h, PJ_TYPE(PJ_F32, x->pairs + x->tile, d_model), 0);
    pj_while(h, &loop, (const int[]){pj_const(h, one, 0), out}, 2);
    pj_while_do(h, &loop, pj_compare(h, "LT", loop.var[0], n));
    int at = loop.var[0];
    int e = pj_dynamic_slice(h, sorted, 0, at, 1);
    int until = pj_compare(h, "LE", sorted, PJ_BROADCAST(h, e, list, 0));
    int end = pj_reduce(h, "add", pj_convert(h, until, PJ_I32), 0, 0);
    int next = pj_binary(h, "minimum", end, pj_binary(h, "add", at, pj_const(h, one, (double)x->tile)));
    int y = feed_forward(x, pj_dynamic_slice(h, a, 0, at, x->tile), pj_reshape(h, e, 0, NULL));
    out = pj_dynamic_update(h, loop.var[1], y, 0, at);
    pj_while_end_named(h, &loop, (const int[]){next, out}, PJ_EXPERTS_LOOP);
    int y_all = pj_slice(h, loop.var[1], 0, 0, x->pairs);
    if (x->d->share.n == 0) return y_all;
    /* What the last tile wrote past the rank's own pairs is other ranks' to give. */
    struct pj_type index = *pj_type_of(h, y_all);
    index.elem = PJ_I32;
    int own = pj_compare(h, "LT", pj_iota(h, index, 0), PJ_BROADCAST(h, n, index, 0));
    return pj_select(h, own, y_all, pj_splat(h, 0, y_all));
}

static bool takes_kernel(struct lower *l, const struct sy_node *n)
{
    if (!(l->opt.kernels & SY_KERNELS_EXPERTS)) return false;
    const char *why = lower_experts_refuses(l, n);
    l->experts.n_kernel += why == NULL;
    if (why && l->experts.n_plain++ == 0) l->experts.why = why;
    return !why;
}

/* What the pairs, by their numbers i32 [any], take of x: [any, d_model]. */
int lower_pair_rows(struct lower *l, const struct sy_node *n, int pairs)
{
    struct pj_hlo *h = &l->h;
    const struct sy_moe_dim *d = &n->attr.moe;
    int a = pj_gather(h, l->val[n->in[0].id], pj_binary(h, "divide", pairs, pj_splat(h, d->n_used, pairs)));
    if (!d->weigh_input) return a;
    int weight = pj_slice(h, l->val[n->in[1].id], 1, d->n_used, 2 * (int64_t)d->n_used);
    int w = pj_gather(h, PJ_RESHAPE(h, weight, n->dim[0] * d->n_used), pairs);
    return pj_binary(h, "multiply", a, PJ_BROADCAST(h, w, *pj_type_of(h, a), 0));
}

int lower_experts(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    const struct sy_moe_dim *d = &n->attr.moe;
    struct experts x = {.l = l, .n = n, .d = d, .rows = n->dim[0], .pairs = n->dim[0] * d->n_used};
    x.tile = pj_expert_tile(d, x.rows);
    int64_t used = d->n_used, d_model = n->dim[1];
    struct pj_type list = PJ_TYPE(PJ_I32, x.pairs), parts = PJ_TYPE(PJ_F32, x.rows, used, d_model);
    int route = l->val[n->in[1].id], weight = pj_slice(h, route, 1, used, 2 * used);
    int order, sorted, back, back_key;
    pj_sort(h, pair_experts(&x, pj_slice(h, route, 1, 0, used)), pj_iota(h, list, 0), &sorted, &order);
    pj_sort(h, order, pj_iota(h, list, 0), &back_key, &back);
    int y;
    if (takes_kernel(l, n)) {
        y = lower_kernel_experts(l, n, sorted, order, back);
    } else {
        y = pj_gather(h, run_tiles(&x, sorted, lower_pair_rows(l, n, order)), back);
    }
    y = pj_reshape(h, y, 3, parts.dim);
    if (!d->weigh_input) y = pj_binary(h, "multiply", y, PJ_BROADCAST(h, weight, parts, 0, 1));
    return pj_reduce(h, "add", y, 1, 0);
}
