/* lower_state.c - what sequences leave behind as arrays of the device, how the tokens of a step belong to them, and
 * the loop over pieces of them. */
#include "backend/pjrt/lower_int.h"
#include "backend/pjrt/mosaic/kernels.h"

/* ---- arrays ------------------------------------------------------------------------------------------------------
 */

/* Runs of `every` tokens that end in a block, at most. */
static int64_t runs_of(int32_t block_len, int32_t every)
{
    return every > 1 ? ((int64_t)block_len + every - 1) / every : block_len;
}

enum kind { PLAIN, APART, SLOTS, KINDS }; /* blocks, those of layers with a window where they are apart, slots */

/* The arrays of the kind that a node owns. */
static int arrays_of(const struct sy_graph *g, const struct sy_node *n, const struct pj_lower_opt *o, enum kind kind,
                     struct pj_type t[PJ_ARRAYS_MAX])
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node);
    const struct sy_cache_dim *c = &o->cache;
    const struct sy_attn_dim *a = &n->attr.attn;
    const struct sy_scan_dim *s = &n->attr.scan;
    struct mo_delta delta;
    int64_t n_block;
    int sides;
    switch (n->op) {
    case SY_OP_ATTEND:
        /* Without keys of its own: another layer's; of a later stage: the ranks' own layer of the first. */
        if (kind == SLOTS || !n->in[1].id || a->stage > 0) return 0;
        if (sy_state_is_apart(sy_graph_shape(g), &node[n->in[3].id]) != (kind == APART)) return 0;
        n_block = kind == APART ? c->n_apart : c->n_block;
        t[0] = PJ_TYPE(o->kv_elem, n_block, c->block_len, a->n_kv, a->d_key);
        t[1] = PJ_TYPE(o->kv_elem, n_block, c->block_len, a->n_kv, a->d_val);
        if (lower_kernel_takes(n, o))
            t[0] = t[1] = PJ_TYPE(o->kv_elem, n_block, c->block_len, (int64_t)a->n_kv * a->d_key);
        sides = a->shared ? 1 : 2;
        if (o->kv_elem != PJ_I8) return sides;
        t[sides] = PJ_TYPE(PJ_I8, n_block, c->block_len, lower_q8_width(a, lower_kernel_takes(n, o)));
        return sides + 1;
    case SY_OP_INDEX:
        t[0] = PJ_TYPE(o->kv_elem, c->n_block, runs_of(c->block_len, n->attr.index.every), 1, n->attr.index.d);
        return kind == PLAIN;
    case SY_OP_KEEP:
        t[0] = PJ_TYPE(o->kv_elem, c->n_block, runs_of(c->block_len, n->attr.every), 1, n->dim[1]);
        return kind == PLAIN;
    case SY_OP_COMPRESS:
        t[0] = PJ_TYPE(PJ_F32, c->n_slot, node[n->in[3].id].attr.state.elems / n->dim[1], n->dim[1]);
        return kind == SLOTS;
    case SY_OP_CONV:
        if (lower_delta_of_conv(node, n_node, n, o, &delta)) {
            t[0] = PJ_TYPE(PJ_F32, c->n_slot, mo_delta_units(&delta), delta.n_tap - 1, mo_delta_rows(&delta), 128);
            return kind == SLOTS;
        }
        t[0] = PJ_TYPE(PJ_F32, c->n_slot, node[n->in[3].id].attr.state.elems / n->dim[1], n->dim[1]);
        return kind == SLOTS;
    case SY_OP_SCAN: t[0] = PJ_TYPE(o->state_elem, c->n_slot, s->n_val, s->d_key, s->d_val); return kind == SLOTS;
    default: return 0;
    }
}

/* The operand that is the node's STATE. */
static sy_val state_operand(const struct sy_node *n) { return n->in[n->op == SY_OP_SCAN ? 5 : 3]; }

struct pj_arrays pj_state_arrays(const struct sy_graph *g, const struct pj_lower_opt *o, struct pj_type *type,
                                 int *first)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node);
    int n = 0, end[KINDS];
    for (enum kind kind = PLAIN; kind < KINDS; kind++) {
        for (uint32_t i = 1; i < n_node; i++) {
            struct pj_type t[PJ_ARRAYS_MAX];
            int own = arrays_of(g, &node[i], o, kind, t);
            if (own && first) first[state_operand(&node[i]).id] = n;
            for (int k = 0; k < own; k++, n++)
                if (type) type[n] = t[k];
        }
        end[kind] = n;
    }
    return (struct pj_arrays){end[PLAIN], end[APART], end[SLOTS]};
}

struct pj_bytes pj_state_bytes(const struct sy_graph *g, const struct pj_lower_opt *o)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node);
    struct pj_bytes sum = {0};
    for (uint32_t i = 1; i < n_node; i++)
        for (enum kind kind = PLAIN; kind < KINDS; kind++) {
            struct pj_type t[PJ_ARRAYS_MAX];
            int own = arrays_of(g, &node[i], o, kind, t);
            double each = 0;
            for (int k = 0; k < own; k++) each += pj_type_device_bytes(&t[k]);
            if (own == 0) continue;
            if (kind == SLOTS) sum.slots += each;
            else sum.blocks += each;
            if (kind != SLOTS && node[state_operand(&node[i]).id].attr.state.window > 0) sum.window += each;
        }
    return sum;
}

int *lower_state(struct lower *l, const struct sy_node *n) { return &l->kv[l->first[state_operand(n).id]]; }

/* ---- tokens and the entries they belong to -----------------------------------------------------------------------
 */

int lower_entry_of_token(struct lower *l)
{
    struct pj_hlo *h = &l->h;
    if (l->entry_of_token >= 0) return l->entry_of_token;
    struct pj_type each = PJ_TYPE(PJ_I32, l->shape.tok, l->shape.seq);
    int start = pj_slice(h, lower_field(l, SY_START), 0, 0, l->shape.seq);
    int begun = pj_compare(h, "LE", PJ_BROADCAST(h, start, each, 1), pj_iota(h, each, 0));
    int n = pj_reduce(h, "add", pj_convert(h, begun, PJ_I32), 1, 0);
    return l->entry_of_token = pj_binary(h, "subtract", n, pj_splat(h, 1, n));
}

/* ---- pieces ------------------------------------------------------------------------------------------------------
 */

int lower_scalar_at(struct pj_hlo *h, int vec, int at)
{
    return pj_reshape(h, pj_dynamic_slice(h, vec, 0, at, 1), 0, NULL);
}

void lower_pieces(struct lower *l, struct pieces *p, int64_t n_tok, const int *carry, int n_carry)
{
    struct pj_hlo *h = &l->h;
    int init[PJ_LOOP_MAX], start = lower_field(l, SY_START);
    sy_assert(n_carry + 2 <= PJ_LOOP_MAX);
    int total = pj_reshape(h, pj_slice(h, start, 0, l->shape.seq, l->shape.seq + 1), 0, NULL);
    p->one = pj_const(h, pj_scalar(PJ_I32), 1);
    int many = pj_const(h, pj_scalar(PJ_I32), (double)n_tok);
    init[0] = init[1] = pj_const(h, pj_scalar(PJ_I32), 0);
    for (int i = 0; i < n_carry; i++) init[2 + i] = carry[i];
    pj_while(h, &p->loop, init, 2 + n_carry);
    pj_while_do(h, &p->loop, pj_compare(h, "LT", p->loop.var[0], total));
    p->at = p->loop.var[0];
    p->entry = p->loop.var[1];
    for (int i = 0; i < n_carry; i++) p->carry[i] = p->loop.var[2 + i];
    p->begin = lower_scalar_at(h, start, p->entry);
    p->end = lower_scalar_at(h, start, pj_binary(h, "add", p->entry, p->one));
    p->next = pj_binary(h, "minimum", p->end, pj_binary(h, "add", p->at, many));
}

void lower_pieces_end(struct lower *l, struct pieces *p, const int *carry)
{
    struct pj_hlo *h = &l->h;
    int next[PJ_LOOP_MAX], n = p->loop.n;
    int done = pj_compare(h, "GE", p->next, p->end);
    next[0] = p->next;
    next[1] = pj_select(h, done, pj_binary(h, "add", p->entry, p->one), p->entry);
    for (int i = 2; i < n; i++) next[i] = carry[i - 2];
    pj_while_end(h, &p->loop, next);
    for (int i = 2; i < n; i++) p->carry[i - 2] = p->loop.var[i];
}

/* ---- the cache of blocks -----------------------------------------------------------------------------------------
 */

int lower_write_rows(struct lower *l, int array, int x, int rows)
{
    struct pj_hlo *h = &l->h;
    struct pj_type t = *pj_type_of(h, array);
    int64_t each[] = {t.dim[0] * t.dim[1], t.dim[2], t.dim[3]};
    int flat = pj_reshape(h, array, t.n_dim - 1, each);
    each[0] = l->shape.tok;
    int update = pj_convert(h, pj_reshape(h, x, t.n_dim - 1, each), t.elem);
    return pj_reshape(h, pj_scatter(h, flat, rows, update), t.n_dim, t.dim);
}

int lower_run_rows(struct lower *l, int32_t every)
{
    struct pj_hlo *h = &l->h;
    int pos = lower_field(l, SY_POS), row = lower_field(l, SY_ROW), zero = pj_splat(h, 0, pos);
    int n = pj_splat(h, every, pos), len = pj_splat(h, l->opt.cache.block_len, pos), one = pj_splat(h, 1, pos);
    int begin = pj_binary(h, "subtract", pos, pj_binary(h, "remainder", row, len)); /* of the block */
    int at = pj_binary(h, "subtract", pj_binary(h, "divide", pos, n), pj_binary(h, "divide", begin, n));
    int each = pj_splat(h, (double)runs_of(l->opt.cache.block_len, every), pos);
    int to = pj_binary(h, "add", pj_binary(h, "multiply", pj_binary(h, "divide", row, len), each), at);
    int over = pj_binary(h, "remainder", pj_binary(h, "add", pos, one), n);
    return pj_select(h, pj_compare(h, "EQ", over, zero), to, zero);
}

enum pj_elem lower_kv_elem(const struct lower *l)
{
    bool narrow = l->opt.kv_elem == PJ_BF16 || l->opt.kv_elem == PJ_I8;
    return l->opt.compute == SY_COMPUTE_BF16 && narrow ? PJ_BF16 : PJ_F32;
}

struct runs lower_runs(struct lower *l, const struct sy_node *n, int64_t run_keys)
{
    int64_t blocks = l->shape.block;
    struct runs r = {.run = run_keys / l->opt.cache.block_len};
    if (r.run < 1) r.run = 1;
    if (r.run > blocks) r.run = blocks;
    r.n_run = (blocks + r.run - 1) / r.run;
    r.table = PJ_RESHAPE(&l->h, lower_field(l, sy_state_table(l->shape, &l->node[state_operand(n).id])), l->shape.seq,
                         blocks);
    int64_t more = r.n_run * r.run - blocks;
    if (more) r.table = pj_pad_after(&l->h, r.table, 1, more); /* block 0, past every context */
    return r;
}

struct runs lower_decode_runs(struct lower *l, const struct sy_node *n)
{
    int64_t keys = (int64_t)l->shape.block * l->opt.cache.block_len;
    return lower_runs(l, n, keys <= LOWER_RUN_KEYS_MAX ? keys : LOWER_RUN_KEYS);
}

int lower_fetch(struct lower *l, int array, int blocks, enum pj_elem elem)
{
    struct pj_hlo *h = &l->h;
    struct pj_type t = *pj_type_of(h, array), at = *pj_type_of(h, blocks);
    int x = pj_gather(h, array, blocks);
    const int64_t dim[] = {at.dim[0], at.dim[1] * t.dim[1], t.dim[2], t.dim[3]};
    return pj_convert(h, pj_reshape(h, x, t.n_dim, dim), elem);
}

int lower_run_of(struct lower *l, const struct runs *r, int pos)
{
    double keys = (double)(r->run * l->opt.cache.block_len);
    return pj_binary(&l->h, "divide", pos, pj_const(&l->h, pj_scalar(PJ_I32), keys));
}

int lower_attend_dot(struct lower *l, int a, int b, const struct pj_dot *d)
{
    int x = pj_dot(&l->h, a, b, d, l->opt.attend_bf16 ? PJ_BF16 : PJ_F32);
    return pj_convert(&l->h, x, PJ_F32);
}
