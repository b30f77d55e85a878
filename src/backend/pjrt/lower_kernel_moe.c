/* lower_kernel_moe.c - mixtures of experts by a hand-written kernel for TPUs: pairs of a row and a chosen expert are
 * laid out by expert, each expert's first at a multiple of 16, as the kernel's transfers have it. Places are sums of
 * comparisons, which a TPU makes faster than it sorts or scatters. */
#include "backend/pjrt/lower_int.h"
#include "backend/pjrt/mosaic/kernels.h"

enum {
    ROWS = 16,            /* of a transfer */
    HOLD_MAX = 128,       /* rows of an expert that its weights are read once for */
    RING_BYTES = 36 << 20 /* of weights in memory at once */
};

const char *lower_experts_refuses(const struct lower *l, const struct sy_node *n)
{
    const struct sy_moe_dim *d = &n->attr.moe;
    struct mo_experts a;
    for (int k = 2; k < 4; k++) {
        const struct pj_wentry *w = pj_weight(l->w, l->node[n->in[k].id].name);
        if (w->n_seg != 1 || w->seg->kind != PJ_DENSE) return "quantised experts";
    }
    return l->opt.compute != SY_COMPUTE_BF16 ? "products not of bf16"
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
    *a = (struct mo_experts){.n_expert = d->n_expert,
                             .n_row = (int32_t)((pairs + most * (ROWS - 1) + ROWS - 1) / ROWS * ROWS),
                             .d = (int32_t)d_model,
                             .d_ff = d->d_ff,
                             .rows = ROWS,
                             .slots = 2};
    while (a->rows < 64 && a->rows < each) a->rows *= 2;
    for (a->hold = a->rows; a->hold < HOLD_MAX && a->hold < 2 * each;) a->hold *= 2;
    for (int32_t tile = 128; tile <= d->d_ff; tile += 128)
        if (d->d_ff % tile == 0 && (int64_t)a->slots * 3 * tile * d_model * 2 <= RING_BYTES) a->tile = tile;
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
    (void)mo_experts_of(d, n->dim[1], n->dim[0], &a);
    int64_t pairs = n->dim[0] * d->n_used;
    struct pj_type list = PJ_TYPE(PJ_I32, pairs), tiles = PJ_TYPE(PJ_BF16, a.n_row / ROWS, ROWS, a.d);
    struct places p = places_of(l, &a, sorted, pairs);
    int x = lower_pair_rows(l, n, pj_gather(h, order, pair_of_row(&p)));
    x = pj_reshape(h, pj_convert(h, x, PJ_BF16), 3, tiles.dim);
    int up = lower_matrix(l, n->in[2]), down = lower_matrix(l, n->in[3]);
    up = PJ_RESHAPE(h, up, a.n_expert, 2, a.d_ff / a.tile, a.tile, a.d);
    down = PJ_RESHAPE(h, down, a.n_expert, a.d, a.d_ff);
    struct mosaic m;
    mo_init(&m, h->env);
    mo_experts(&m, &a);
    const int operand[] = {p.sizes, x, up, down};
    int y = lower_kernel_call(h, &m, operand, (int)SY_COUNT(operand), tiles);
    y = PJ_RESHAPE(h, y, a.n_row, a.d);
    /* Where each sorted pair stands, then each pair; what no expert of the rank has is 0. */
    int row = pj_binary(h, "add", pj_iota(h, list, 0), shift_of(&p, sorted));
    row = pj_binary(h, "minimum", row, pj_const(h, list, a.n_row - 1));
    y = pj_convert(h, pj_gather(h, y, pj_gather(h, row, place)), PJ_F32);
    int own = pj_compare(h, "LT", pj_gather(h, sorted, place), pj_const(h, list, a.n_expert));
    struct pj_type mask = {PJ_PRED, 2, {pairs, a.d}};
    return pj_select(h, PJ_BROADCAST(h, own, mask, 0), y, pj_splat(h, 0, y));
}
