/* lower_kernel_delta.c - the gated delta rule with what stands before it, from the convolution on, by a hand-written
 * kernel for TPUs: CONV, silu, its parts q, k and v, of which the norm divides q and k, and SCAN. */
#include "backend/pjrt/lower_int.h"
#include "backend/pjrt/mosaic/kernels.h"

enum {
    UNIT = 8,  /* value heads: rows of a register */
    SIDE = 4,  /* units side by side: more compile for long, and gain little */
    SLOTS = 4, /* rounds in memory: two on their way in or at work, two on their way out */
    D = 128,
};

struct mo_delta mo_delta_of(const struct sy_scan_dim *d, int32_t n_tap, bool bf16, int32_t n_seq, int32_t n_slot)
{
    struct mo_delta a = {.n_seq = n_seq,
                         .n_slot = n_slot,
                         .n_key = d->n_key,
                         .n_val = d->n_val,
                         .n_tap = n_tap,
                         .slots = SLOTS,
                         .bf16 = bf16};
    int32_t each = d->n_val / d->n_key; /* value heads of a key head */
    for (int32_t n = each; n <= UNIT; n += each)
        if (d->n_val % n == 0) a.unit = n;
    if (a.unit == 0) return a;
    int32_t n = mo_delta_units(&a), side = 1;
    while (side < SIDE && (n % (2 * side) == 0 || (2 * side % n == 0 && 2 * side / n < 2 * n_seq))) side *= 2;
    a.side = side;
    if (side > n) a.n_seq = (int32_t)(sy_ceil_div(n_seq, side / n) * (side / n));
    return a;
}

/* ---- what the kernel takes --------------------------------------------------------------------------------------
 */

struct chain { /* nodes of one SCAN, those inside by number */
    uint32_t inside[12];
    int n;
    const struct sy_node *conv;
    float eps, scale[2];
};

/* The operand of the op, which then is inside. */
static const struct sy_node *back(struct chain *c, const struct sy_node *node, sy_val v, enum sy_op op)
{
    if (!v.id || node[v.id].op != op || c->n == (int)SY_COUNT(c->inside)) return NULL;
    c->inside[c->n++] = v.id;
    return &node[v.id];
}

/* Follows v back to the convolution, of whose columns it must be those from lo on; i < 2: through scale and norm. */
static bool follow(struct chain *c, const struct sy_node *node, sy_val v, int i, int64_t lo)
{
    if (i < 2) {
        const struct sy_node *s = back(c, node, v, SY_OP_SCALE), *n = s ? back(c, node, s->in[0], SY_OP_NORM) : NULL;
        if (!n || n->in[1].id || n->attr.norm.centred || n->attr.norm.d != D) return false;
        if (i == 1 && n->attr.norm.eps != c->eps) return false;
        c->eps = n->attr.norm.eps;
        c->scale[i] = s->attr.c;
        v = n->in[0];
    }
    const struct sy_node *p = back(c, node, v, SY_OP_PART);
    if (!p || p->attr.part.lo != lo) return false;
    if (c->conv) return node[p->in[0].id].op == SY_OP_ACT && &node[node[p->in[0].id].in[0].id] == c->conv;
    const struct sy_node *a = back(c, node, p->in[0], SY_OP_ACT);
    if (!a || a->attr.fn != SY_SILU) return false;
    c->conv = back(c, node, a->in[0], SY_OP_CONV);
    return c->conv != NULL;
}

static bool is_inside(const struct chain *c, uint32_t id)
{
    for (int i = 0; i < c->n; i++)
        if (c->inside[i] == id) return true;
    return false;
}

/* Nothing but the SCAN looks at what is inside. */
static bool is_closed(const struct chain *c, const struct sy_node *node, uint32_t n_node, const struct sy_node *scan)
{
    for (uint32_t i = 1; i < n_node; i++) {
        if (&node[i] == scan || is_inside(c, i)) continue;
        for (size_t k = 0; k < SY_COUNT(node[i].in); k++)
            if (node[i].in[k].id && is_inside(c, node[i].in[k].id)) return false;
    }
    return true;
}

bool lower_delta_normed(const struct sy_node *node, const struct sy_node *scan, struct lower_normed *out)
{
    struct chain c = {0};
    const struct sy_scan_dim *d = &scan->attr.scan;
    int64_t key = (int64_t)d->n_key * D;
    if (!follow(&c, node, scan->in[0], 0, 0) || !follow(&c, node, scan->in[1], 1, key) ||
        !follow(&c, node, scan->in[2], 2, 2 * key) || c.conv->dim[1] != 2 * key + (int64_t)d->n_val * D)
        return false;
    *out = (struct lower_normed){node[scan->in[2].id].in[0], c.eps, {c.scale[0], c.scale[1]}};
    return true;
}

static const char *refuses(const struct sy_node *node, uint32_t n_node, const struct sy_node *scan,
                           enum pj_elem state, struct chain *c)
{
    const struct sy_scan_dim *d = &scan->attr.scan;
    int64_t key = (int64_t)d->n_key * D;
    *c = (struct chain){0};
    if (!d->delta || !scan->in[4].id) return "a recurrence other than the gated delta rule";
    if (d->d_key != D || d->d_val != D) return "heads of another width than 128";
    if (node[scan->in[3].id].dim[1] != d->n_val) return "a decay for each key dimension";
    if (state != PJ_F32 && state != PJ_BF16) return "states of another type than f32 and bf16";
    if (mo_delta_of(d, 4, false, 1, 1).unit == 0) return "more than 8 value heads to a key head";
    if (!follow(c, node, scan->in[0], 0, 0) || !follow(c, node, scan->in[1], 1, key) ||
        !follow(c, node, scan->in[2], 2, 2 * key))
        return "keys that come otherwise than from a convolution, silu and a norm";
    if (c->conv->in[2].id || c->conv->dim[1] != 2 * key + (int64_t)d->n_val * D) return "a convolution with a bias";
    if (node[c->conv->in[3].id].attr.state.elems / c->conv->dim[1] > 7) return "a convolution of more than 8 taps";
    return is_closed(c, node, n_node, scan) ? NULL : "a convolution that others look at";
}

const char *lower_delta_refuses(const struct sy_node *node, uint32_t n_node, const struct sy_node *scan,
                                enum pj_elem state)
{
    struct chain c;
    return refuses(node, n_node, scan, state, &c);
}

bool lower_delta_of_conv(const struct sy_node *node, uint32_t n_node, const struct sy_node *conv,
                         const struct pj_lower_opt *o, struct mo_delta *a)
{
    struct chain c;
    for (uint32_t i = 1; i < n_node && o->kernels & SY_KERNELS_DELTA; i++) {
        if (node[i].op != SY_OP_SCAN || refuses(node, n_node, &node[i], o->state_elem, &c) || c.conv != conv)
            continue;
        int64_t back = node[conv->in[3].id].attr.state.elems / conv->dim[1];
        *a = mo_delta_of(&node[i].attr.scan, (int32_t)back + 1, o->state_elem == PJ_BF16, 1, o->cache.n_slot);
        return true;
    }
    return false;
}

void lower_delta_mark(struct lower *l)
{
    struct chain c;
    if (!(l->opt.kernels & SY_KERNELS_DELTA)) return;
    for (uint32_t i = 1; i < l->n_node; i++) {
        if (l->node[i].op != SY_OP_SCAN) continue;
        const char *why = refuses(l->node, l->n_node, &l->node[i], l->opt.state_elem, &c);
        for (int k = 0; k < c.n && !why && pj_is_decode(l->shape); k++) l->inside[c.inside[k]] = true;
    }
}

/* ---- how it lies ------------------------------------------------------------------------------------------------
 */

int lower_delta_rows(struct pj_hlo *h, const struct mo_delta *a, int x)
{
    int64_t n = pj_type_of(h, x)->dim[0], units = mo_delta_units(a), keys = mo_delta_keys(a), at = 0;
    const int64_t each[] = {keys, keys, a->unit};
    int part[3];
    for (int i = 0; i < 3; i++) {
        part[i] = PJ_RESHAPE(h, pj_slice(h, x, 1, at, at + units * each[i] * D), n, units, each[i], D);
        at += units * each[i] * D;
    }
    x = pj_concat(h, part, 3, 2);
    int64_t more = mo_delta_rows(a) - 2 * keys - a->unit;
    return more ? pj_pad_after(h, x, 2, more) : x;
}

static struct mo_delta kernel_of(const struct lower *l, const struct chain *c, const struct sy_scan_dim *d)
{
    int64_t back = l->node[c->conv->in[3].id].attr.state.elems / c->conv->dim[1];
    struct mo_delta a =
        mo_delta_of(d, (int32_t)back + 1, l->opt.state_elem == PJ_BF16, l->shape.seq, l->opt.cache.n_slot);
    a.eps = c->eps;
    a.q_scale = c->scale[0];
    a.k_scale = c->scale[1];
    return a;
}

/* f32 [n or 1, n_val] in a row of 128 for each head: [n, units, heads, 128]. */
static int gate_rows(struct pj_hlo *h, const struct mo_delta *a, int64_t n, int x)
{
    int64_t units = mo_delta_units(a), more = mo_delta_heads(a) - a->unit;
    if (pj_type_of(h, x)->dim[0] != n) x = PJ_BROADCAST(h, x, PJ_TYPE(PJ_F32, n, a->n_val), 0, 1);
    x = PJ_RESHAPE(h, x, n, units, a->unit);
    if (more) x = pj_pad_after(h, x, 2, more);
    return PJ_BROADCAST(h, x, PJ_TYPE(PJ_F32, n, units, mo_delta_heads(a), D), 0, 1, 2);
}

int lower_kernel_delta(struct lower *l, const struct sy_node *n)
{
    struct pj_hlo *h = &l->h;
    struct chain c;
    if (refuses(l->node, l->n_node, n, l->opt.state_elem, &c)) return -1;
    struct mo_delta a = kernel_of(l, &c, &n->attr.scan);
    int *state = lower_state(l, n), *window = lower_state(l, c.conv), result[3];
    int rd = lower_field(l, SY_SLOT_RD), start = lower_field(l, SY_START), pos = lower_field(l, SY_POS);
    int fresh = pj_compare(h, "EQ", pos, pj_splat(h, 0, pos));
    int64_t n_seq = l->shape.seq, more = a.n_seq - n_seq; /* so many more make whole rounds */
    int has = pj_compare(h, "LT", pj_slice(h, start, 0, 0, n_seq), pj_slice(h, start, 0, 1, n_seq + 1));
    int live = PJ_RESHAPE(h, pj_reduce(h, "add", pj_convert(h, has, PJ_I32), 0, 0), 1);
    int taps = PJ_RESHAPE(h, lower_vec(l, c.conv->in[1]), c.conv->dim[1], a.n_tap);
    taps = lower_delta_rows(h, &a, pj_transpose(h, taps, (const int[]){1, 0}));
    const int token[] = {lower_delta_rows(h, &a, l->val[c.conv->in[0].id]),
                         gate_rows(h, &a, n_seq, pj_unary(h, "exponential", l->val[n->in[3].id])),
                         gate_rows(h, &a, n_seq, l->val[n->in[4].id])};
    int read = pj_select(h, fresh, pj_splat(h, -1, rd), rd), write = lower_field(l, SY_SLOT_WR);
    int x = pj_concat(h, token, 3, 2);
    if (more) {
        read = pj_pad_after(h, read, 0, more);
        write = pj_pad_after(h, write, 0, more);
        x = pj_pad_after(h, x, 0, more);
    }
    taps = pj_transpose(h, taps, (const int[]){1, 0, 2, 3});
    const int operand[] = {read, write, live, *state, *window, taps, x};
    struct mosaic m;
    mo_init(&m, h->env);
    mo_delta(&m, &a);
    lower_kernel_call(h, &m, operand, result);
    *state = result[0];
    *window = result[1];
    int y = pj_slice(h, pj_slice(h, result[2], 0, 0, n_seq), 2, 0, a.unit);
    y = PJ_RESHAPE(h, y, n_seq, (int64_t)a.n_val * D);
    /* Rows of padding are not written. */
    struct pj_type mask = {PJ_PRED, 2, {n_seq, (int64_t)a.n_val * D}};
    return pj_select(h, PJ_BROADCAST(h, has, mask, 0), y, pj_splat(h, 0, y));
}

/* ---- the convolution by plain operations, whose window lies as the kernel has it --------------------------------
 */

int lower_window_rows(struct pj_hlo *h, const struct mo_delta *a, int x)
{
    struct pj_type t = *pj_type_of(h, x);
    int64_t n = t.dim[0], back = t.dim[1], units = mo_delta_units(a);
    x = lower_delta_rows(h, a, PJ_RESHAPE(h, x, n * back, t.dim[2]));
    x = PJ_RESHAPE(h, x, n, back, units, mo_delta_rows(a), D);
    return pj_transpose(h, x, (const int[]){0, 2, 1, 3, 4});
}

int lower_window_columns(struct pj_hlo *h, const struct mo_delta *a, int x)
{
    int64_t n = pj_type_of(h, x)->dim[0], back = a->n_tap - 1, units = mo_delta_units(a), keys = mo_delta_keys(a);
    const int64_t each[] = {keys, keys, a->unit};
    int part[3];
    x = pj_transpose(h, x, (const int[]){0, 2, 1, 3, 4});
    for (int64_t i = 0, at = 0; i < 3; at += each[i++])
        part[i] = PJ_RESHAPE(h, pj_slice(h, x, 3, at, at + each[i]), n, back, units * each[i] * D);
    return pj_concat(h, part, 3, 2);
}
