/* lower_kernel_moe.c - mixtures of experts by a hand-written kernel for TPUs: pairs of a row and a chosen expert are
 * laid out by expert, each expert's first at a multiple of 16, as the kernel's transfers have it. Places are sums of
 * comparisons, which a TPU makes faster than it sorts or scatters. */
#include "backend/pjrt/lower_int.h"
#include "backend/pjrt/mosaic/kernels.h"

enum {
    LANES = 128,          /* of a vector register */
    ROWS = 16,            /* of a transfer */
    HOLD_MAX = 128,       /* rows of an expert that its weights are read once for */
    RING_BYTES = 36 << 20 /* of weights in memory at once */
};

/* Whether the kernel takes weights that lie so, and how. */
static const char *weight_of(const struct pj_wentry *w, enum mo_elem *elem, int32_t *group)
{
    const struct pj_wseg *s = w->seg;
    if (w->n_seg != 1) return "experts of several formats";
    *elem = MO_BF16;
    if (s->kind == PJ_DENSE) return NULL;
    if ((s->code != PJ_CODE_INT && s->code != PJ_CODE_E4M3) || s->has_min)
        return "quantised experts that are not int8 or fp8 (e4m3)";
    if (s->has_scale && s->group % LANES != 0) return "quantised experts with a scale for fewer than 128 columns";
    *elem = s->code == PJ_CODE_INT ? MO_I8 : MO_E4M3;
    *group = s->has_scale ? (int32_t)s->group : 0;
    return NULL;
}

/* What the weights say of the kernel. */
static const char *weights_of(const struct lower *l, const struct sy_node *n, struct mo_experts *a)
{
    enum mo_elem down;
    const struct pj_wentry *w[2];
    *a = (struct mo_experts){0};
    for (int k = 0; k < 2; k++) w[k] = pj_weight(l->w, l->node[n->in[2 + k].id].name);
    const char *why = weight_of(w[0], &a->weight, &a->group_up);
    if (!why) why = weight_of(w[1], &down, &a->group_down);
    if (why) return why;
    for (int k = 0; k < 2 && a->weight == MO_I8; k++)
        if (l->w->type[w[k]->seg->arg].elem != PJ_I8) return "experts of integers of other than 8 bits";
    return down != a->weight || !a->group_up != !a->group_down ? "experts of several formats" : NULL;
}

const char *lower_experts_refuses(const struct lower *l, const struct sy_node *n)
{
    const struct sy_moe_dim *d = &n->attr.moe;
    struct mo_experts a;
    const char *why = weights_of(l, n, &a);
    return why                                 ? why
           : l->opt.compute != SY_COMPUTE_BF16 ? "products not of bf16"
           : !d->gated || d->glu.fn != SY_SILU || d->glu.limit > 0 || d->glu.up_add != 0
               ? "experts that are not silu(gate) times up"
           : n->in[4].id || n->in[5].id                  ? "experts with biases"
           : n->dim[1] % 128 != 0 || d->d_ff % 128 != 0  ? "experts whose widths are no multiples of 128"
           : !mo_experts_of(d, n->dim[1], n->dim[0], &a) ? "experts so wide that no part fits"
                                                         : NULL;
}

bool mo_experts_of(const struct sy_moe_dim *d, int64_t d_model, int64_t rows, struct mo_experts *a)
{
    int64_t pairs = rows * d->n_used, most = d->n_expert < pairs ? d->n_expert : pairs;
    double all = (double)d->n_expert * (d->share.n > 0 ? d->share.n : 1), each = (double)pairs / all;
    bool coded = a->weight != MO_BF16;
    a->n_expert = d->n_expert;
    a->n_row = (int32_t)((pairs + most * (ROWS - 1) + ROWS - 1) / ROWS * ROWS);
    a->d = (int32_t)d_model;
    a->d_ff = d->d_ff;
    a->slots = coded ? 3 : 2; /* smaller tiles take less time than it takes the first bytes of the next to come */
    a->tile = 0;
    for (a->rows = ROWS; a->rows < 64 && a->rows < each;) a->rows *= 2;
    for (a->hold = a->rows; a->hold < HOLD_MAX && a->hold < 2 * each;) a->hold *= 2;
    for (int32_t tile = LANES; tile <= d->d_ff; tile += LANES) {
        bool whole =
            d->d_ff % tile == 0 && (a->group_down == 0 || a->group_down == d->d_ff || tile % a->group_down == 0);
        if (whole && (int64_t)a->slots * 3 * tile * d_model * (coded ? 1 : 2) <= RING_BYTES) a->tile = tile;
    }
    return a->tile > 0;
}

struct places {
    struct lower *l;
    int64_t n_expert, pairs, n_row;
    int sizes; /* i32 [n_expert] */
    int shift; /* i32 [n_expert]: places that padding before an expert takes */
    int end;   /* i32 [n_expert]: behind its last, with padding */
};

/* Of i32 [n], the sum of those before each. */
static int before(struct pj_hlo *h, int x, int64_t n)
{
    struct pj_type t = PJ_TYPE(PJ_I32, n, n);
    int earlier = pj_compare(h, "LT", pj_iota(h, t, 0), pj_iota(h, t, 1)), all = PJ_BROADCAST(h, x, t, 0);
    return pj_reduce(h, "add", pj_select(h, earlier, all, pj_splat(h, 0, all)), 0, 0);
}

static struct places places_of(struct lower *l, const struct mo_experts *a, int sorted, int64_t pairs)
{
    struct pj_hlo *h = &l->h;
    struct places p = {.l = l, .n_expert = a->n_expert, .pairs = pairs, .n_row = a->n_row};
    struct pj_type each = PJ_TYPE(PJ_I32, pairs, a->n_expert), list = PJ_TYPE(PJ_I32, a->n_expert);
    int is = pj_compare(h, "EQ", PJ_BROADCAST(h, sorted, each, 0), pj_iota(h, each, 1));
    p.sizes = pj_reduce(h, "add", pj_convert(h, is, PJ_I32), 0, 0);
    int whole = pj_binary(h, "add", p.sizes, pj_const(h, list, ROWS - 1));
    whole = pj_binary(h, "subtract", whole, pj_binary(h, "remainder", whole, pj_const(h, list, ROWS)));
    int first = before(h, whole, a->n_expert);
    p.shift = pj_binary(h, "subtract", first, before(h, p.sizes, a->n_expert));
    p.end = pj_binary(h, "add", first, whole);
    return p;
}

/* The shift of experts i32 [n]; of none like the last one's. */
static int shift_of(const struct places *p, int expert)
{
    struct pj_hlo *h = &p->l->h;
    return pj_gather(h, p->shift, pj_binary(h, "minimum", expert, pj_splat(h, (double)(p->n_expert - 1), expert)));
}

/* The sorted pair that stands in each row, some pair where none does: i32 [n_row]. */
static int pair_of_row(const struct places *p)
{
    struct pj_hlo *h = &p->l->h;
    struct pj_type each = PJ_TYPE(PJ_I32, p->n_row, p->n_expert), list = PJ_TYPE(PJ_I32, p->n_row);
    int behind = pj_compare(h, "GE", pj_iota(h, each, 0), PJ_BROADCAST(h, p->end, each, 1));
    int expert = pj_reduce(h, "add", pj_convert(h, behind, PJ_I32), 1, 0);
    int pair = pj_binary(h, "subtract", pj_iota(h, list, 0), shift_of(p, expert));
    return pj_binary(h, "minimum", pair, pj_const(h, list, (double)(p->pairs - 1)));
}

int lower_kernel_experts(struct lower *l, const struct sy_node *n, int sorted, int order, int place)
{
    struct pj_hlo *h = &l->h;
    const struct sy_moe_dim *d = &n->attr.moe;
    struct mo_experts a;
    (void)weights_of(l, n, &a);
    (void)mo_experts_of(d, n->dim[1], n->dim[0], &a);
    if (l->experts.n_kernel == 1) {
        bool int8 = a.weight == MO_I8;
        l->experts.weight.format = a.weight == MO_BF16 ? SY_EXPERTS_BF16 : int8 ? SY_EXPERTS_INT8 : SY_EXPERTS_FP8;
        l->experts.weight.group = a.group_up < a.d ? a.group_up : SY_EXPERTS_ROW;
    }
    int64_t pairs = n->dim[0] * d->n_used;
    struct pj_type list = PJ_TYPE(PJ_I32, pairs), tiles = PJ_TYPE(PJ_BF16, a.n_row / ROWS, ROWS, a.d);
    struct places p = places_of(l, &a, sorted, pairs);
    int x = lower_pair_rows(l, n, pj_gather(h, order, pair_of_row(&p)));
    x = pj_reshape(h, pj_convert(h, x, PJ_BF16), 3, tiles.dim);
    int operand[] = {p.sizes, x, 0, 0, 0, 0}, count = 2;
    for (int k = 2; k < 4; k++) {
        int w = l->arg0 + pj_weight(l->w, l->node[n->in[k].id].name)->seg->arg;
        int64_t rows = k == 2 ? 2 * (int64_t)a.d_ff : a.d, cols = k == 2 ? a.d : a.d_ff;
        int32_t group = k == 2 ? a.group_up : a.group_down;
        operand[count++] = k == 2 ? PJ_RESHAPE(h, w, a.n_expert, 2, a.d_ff / a.tile, a.tile, a.d)
                                  : PJ_RESHAPE(h, w, a.n_expert, a.d, a.d_ff);
        if (group > 0) operand[count++] = PJ_RESHAPE(h, w + 1, a.n_expert, cols / group, 1, rows);
    }
    struct mosaic m;
    mo_init(&m, h->env);
    mo_experts(&m, &a);
    int y;
    lower_kernel_call(h, &m, operand, &y);
    y = PJ_RESHAPE(h, y, a.n_row, a.d);
    /* Where each sorted pair stands, then each pair; what no expert of the rank has is 0. */
    int row = pj_binary(h, "add", pj_iota(h, list, 0), shift_of(&p, sorted));
    row = pj_binary(h, "minimum", row, pj_const(h, list, a.n_row - 1));
    y = pj_convert(h, pj_gather(h, y, pj_gather(h, row, place)), PJ_F32);
    int own = pj_compare(h, "LT", pj_gather(h, sorted, place), pj_const(h, list, a.n_expert));
    struct pj_type mask = {PJ_PRED, 2, {pairs, a.d}};
    return pj_select(h, PJ_BROADCAST(h, own, mask, 0), y, pj_splat(h, 0, y));
}
