/* plan.c - lowering a graph to regions.
 *
 * A region is what runs between two barriers: a matrix product, attention, or a run of row ops. A row op computes a
 * row of its result from the same row of its operands, so any number of them run one after the other on a chunk of
 * rows while that chunk is in the cache: norm + quantise, the norms and ropes of q and k + the write to the KV cache,
 * GLU + quantise. A residual ADD behind a product becomes the product's epilogue. PART is a view. Elementwise ops
 * write over their operand where nobody else reads it. Buffers of values that never live in the same region share
 * memory. */
#include <string.h>

#include "backend/cpu/cpu_int.h"

struct buffer {
    size_t bytes, at;
    int first, last; /* regions */
};
struct plan {
    struct sy_program *p;
    const struct sy_weights *w;
    struct sy_err *err;
    sy_status st;
    uint32_t n_node;
    int *n_use;   /* by node: consumers */
    bool *on_out; /* by node */
    bool *fused;  /* ADD and GLU nodes that a product computes */
    struct buffer *buf;
    int n_buf, cap_buf;
    struct sy_xmat *x; /* prepared operands; their buffer and node beside them */
    int *x_buf;
    uint32_t *x_node;
    int n_x, cap_x;
    int32_t *state; /* by STATE node: index of its cache */
    int n_state;
    uint32_t now; /* the node being planned */
};

static sy_status out_of_memory(struct plan *l)
{
    if (!l->st) l->st = sy_fail(l->err, SY_ENOMEM, "no memory to plan a step");
    return l->st;
}

static const struct sy_node *node_of(const struct plan *l, uint32_t id) { return &l->p->node[id]; }

/* One row for all: a vector's weight, a constant. */
static bool is_row(const struct sy_node *n) { return n->op == SY_OP_WEIGHT || n->op == SY_OP_CONST; }

static int region_now(const struct plan *l) { return l->p->n_region - 1; }

/* ---- regions and ops ------------------------------------------------------------------------------------------ */

static struct op *push_op(struct plan *l, enum region_kind kind, bool on_out, const struct sy_node *n)
{
    struct sy_program *p = l->p;
    struct region *r = p->n_region ? &p->region[p->n_region - 1] : NULL;
    if (!r || p->b->opt.unfused || kind != REGION_ROWS || r->kind != REGION_ROWS || r->on_out != on_out) {
        r = &p->region[p->n_region++];
        *r = (struct region){.kind = kind, .on_out = on_out, .op0 = p->n_op};
    }
    r->n_op++;
    struct op *o = &p->op[p->n_op++];
    *o = (struct op){.node = n};
    return o;
}

/* ---- buffers ------------------------------------------------------------------------------------------------------
 */

static int new_buffer(struct plan *l, size_t bytes)
{
    sy_assert(l->n_buf < l->cap_buf);
    l->buf[l->n_buf] = (struct buffer){(bytes + 255) & ~(size_t)255, 0, region_now(l), region_now(l)};
    return l->n_buf++;
}

static void touch(struct plan *l, int buffer)
{
    if (buffer >= 0) l->buf[buffer].last = region_now(l);
}

static int64_t rows_max(const struct plan *l, bool on_out) { return on_out ? l->p->shape.out : l->p->shape.tok; }

static void own_value(struct plan *l, uint32_t id)
{
    struct value *v = &l->p->value[id];
    v->ld = (node_of(l, id)->dim[1] + 15) & ~(int64_t)15;
    v->buffer = new_buffer(l, (size_t)v->ld * sizeof(float) * (size_t)rows_max(l, l->on_out[id]));
}

/* True when the op planned now, for node `me`, may write over the rows of `id`: every other reader ran before. */
static bool last_reader(const struct plan *l, uint32_t id, uint32_t me)
{
    const struct sy_node *n = node_of(l, id);
    if (is_row(n) || n->op == SY_OP_INPUT) return false;
    uint32_t parent = n->op == SY_OP_PART ? n->in[0].id : 0;
    if (parent && node_of(l, parent)->op == SY_OP_PART) return false;
    for (uint32_t i = 1; i < l->n_node; i++) {
        const struct sy_node *m = node_of(l, i);
        for (size_t k = 0; k < SY_COUNT(m->in); k++) {
            if (m->in[k].id == id && i > l->now && i != me) return false;
            if (!parent || m->in[k].id != parent || i == id) continue;
            bool apart =
                m->op == SY_OP_PART && (m->attr.part.hi <= n->attr.part.lo || m->attr.part.lo >= n->attr.part.hi);
            if (!apart) return false;
        }
    }
    return true;
}

static void reads(struct plan *l, struct op *o, int k, sy_val v)
{
    o->in[k] = &l->p->value[v.id];
    touch(l, l->p->value[v.id].buffer);
}

/* The result over operand `over` where that is allowed, else in a buffer of its own. */
static void writes(struct plan *l, struct op *o, uint32_t id, uint32_t over)
{
    struct value *v = &l->p->value[id];
    if (over && node_of(l, over)->dim[1] == node_of(l, id)->dim[1] && last_reader(l, over, id)) {
        *v = l->p->value[over];
        touch(l, v->buffer);
    } else {
        own_value(l, id);
    }
    o->out = v;
}

static const float *vector(struct plan *l, sy_val v)
{
    const struct sy_node *n = node_of(l, v.id);
    if (n->op == SY_OP_CONST) return n->attr.constant;
    const struct wentry *e = cpu_weight(l->w, n->name);
    sy_assert(e && e->vec); /* load() saw the same graph */
    return e->vec;
}

/* ---- matrix products ---------------------------------------------------------------------------------------------
 */

/* The operand of a product, prepared as `kind`: made once, by a row op that joins the region of its producer. */
static struct sy_xmat *prepared(struct plan *l, uint32_t id, enum sy_xkind kind)
{
    for (int i = 0; i < l->n_x; i++)
        if (l->x_node[i] == id && l->x[i].kind == kind) {
            l->buf[l->x_buf[i]].last = region_now(l) + 1; /* the product's region comes next */
            return &l->x[i];
        }
    sy_assert(l->n_x < l->cap_x);
    int64_t m = rows_max(l, l->on_out[id]), k = node_of(l, id)->dim[1];
    struct op *o = push_op(l, REGION_ROWS, l->on_out[id], node_of(l, id));
    o->run = cpu_row_prepare;
    reads(l, o, 0, (sy_val){id});
    int i = l->n_x++;
    sy_xmat_init(&l->x[i], kind, m, k, NULL);
    l->x_node[i] = id;
    l->x_buf[i] = new_buffer(l, sy_xmat_bytes(kind, m, k));
    l->buf[l->x_buf[i]].last++;
    o->x[kind] = &l->x[i];
    return &l->x[i];
}

/* The ADD that can live in the epilogue of product `id`, or 0. */
static uint32_t residual_add(const struct plan *l, uint32_t id)
{
    if (l->n_use[id] != 1 || l->p->b->opt.unfused) return 0;
    for (uint32_t i = id + 1; i < l->n_node; i++) {
        const struct sy_node *m = node_of(l, i);
        bool first = m->in[0].id == id;
        if (!first && m->in[1].id != id) continue;
        uint32_t other = first ? m->in[1].id : m->in[0].id;
        bool fits =
            m->op == SY_OP_ADD && other < id && node_of(l, other)->dim[0] == m->dim[0] && !is_row(node_of(l, other));
        return fits ? i : 0;
    }
    return 0;
}

/* The only reader of node `id`, or 0. */
static uint32_t reader(const struct plan *l, uint32_t id)
{
    if (l->n_use[id] != 1) return 0;
    for (uint32_t i = id + 1; i < l->n_node; i++)
        for (size_t k = 0; k < SY_COUNT(node_of(l, i)->in); k++)
            if (node_of(l, i)->in[k].id == id) return i;
    return 0;
}

/* The GLU of the halves of product `id`, or 0 where a product cannot compute it: its one reader is another product.
 */
static uint32_t glu_of(const struct plan *l, uint32_t id)
{
    uint32_t glu = 0;
    if (l->n_use[id] != 2 || l->p->b->opt.unfused) return 0;
    for (uint32_t i = id + 1, n = 0; i < l->n_node && n < 2; i++) {
        if (node_of(l, i)->in[0].id != id) continue;
        if (node_of(l, i)->op != SY_OP_PART) return 0;
        uint32_t to = reader(l, i);
        if (!to || node_of(l, to)->op != SY_OP_GLU || (n++ && to != glu)) return 0;
        glu = to;
    }
    if (!glu) return 0;
    const struct sy_node *n = node_of(l, glu);
    const struct sy_glu_dim *d = &n->attr.glu;
    if (d->limit > 0 || d->up_add != 0 || n->dim[1] % SY_XGROUP || 2 * n->dim[1] != node_of(l, id)->dim[1]) return 0;
    const struct wentry *w = cpu_weight(l->w, node_of(l, node_of(l, id)->in[1].id)->name);
    for (int s = 0; s < w->n_seg; s++)
        if (w->seg[s].col0 % SY_PANEL) return 0;
    uint32_t next = reader(l, glu);
    return next && node_of(l, next)->op == SY_OP_LINEAR && node_of(l, next)->in[0].id == glu ? glu : 0;
}

/* Product `o`, whose region has begun, leaves the operand of the product behind the GLU. */
static void plan_glu(struct plan *l, struct op *o, uint32_t glu)
{
    const struct sy_node *n = node_of(l, glu), *next = node_of(l, reader(l, glu));
    o->glu = n;
    o->gate = node_of(l, n->in[0].id)->attr.part.lo;
    o->up = node_of(l, n->in[1].id)->attr.part.lo;
    l->fused[glu] = true;
    const struct wentry *w = cpu_weight(l->w, node_of(l, next->in[1].id)->name);
    sy_assert(w && w->seg);
    int64_t m = rows_max(l, l->on_out[o->node->in[0].id]);
    for (int s = 0; s < w->n_seg; s++) {
        enum sy_xkind kind = sy_layout_xkind(w->seg[s].p.layout);
        if (o->h[kind]) continue;
        sy_assert(l->n_x < l->cap_x);
        int i = l->n_x++;
        sy_xmat_init(&l->x[i], kind, m, n->dim[1], NULL);
        l->x_node[i] = glu;
        l->x_buf[i] = new_buffer(l, sy_xmat_bytes(kind, m, n->dim[1]));
        o->h[kind] = &l->x[i];
    }
    struct value *v = &l->p->value[glu]; /* which nobody else writes */
    size_t threads = (size_t)sy_pool_size(l->p->b->pool);
    v->buffer = new_buffer(l, threads * CPU_GLU_FLOATS * sizeof(float));
    o->scratch = v;
}

static void plan_linear(struct plan *l, uint32_t id)
{
    const struct sy_node *n = node_of(l, id);
    const struct wentry *w = cpu_weight(l->w, node_of(l, n->in[1].id)->name);
    sy_assert(w && w->seg);
    struct sy_xmat *x[SY_X_COUNT] = {0};
    for (int s = 0; s < w->n_seg; s++) {
        enum sy_xkind kind = sy_layout_xkind(w->seg[s].p.layout);
        if (!x[kind]) x[kind] = prepared(l, n->in[0].id, kind);
    }
    struct op *o = push_op(l, REGION_PRODUCT, l->on_out[id], n);
    o->w = w;
    memcpy(o->x, x, sizeof x);
    for (int i = 0; i < l->n_x; i++)
        if (l->x_node[i] == n->in[0].id) touch(l, l->x_buf[i]);
    if (n->in[2].id) o->epi.bias = vector(l, n->in[2]);
    uint32_t glu = glu_of(l, id), add = residual_add(l, id);
    if (glu) {
        plan_glu(l, o, glu);
        return;
    }
    if (!add) {
        writes(l, o, id, 0);
        return;
    }
    const struct sy_node *a = node_of(l, add);
    sy_val other = a->in[0].id == id ? a->in[1] : a->in[0];
    reads(l, o, 3, other); /* the residual */
    writes(l, o, add, other.id);
    l->p->value[id] = l->p->value[add];
    l->fused[add] = true;
}

/* ---- the other ops ------------------------------------------------------------------------------------------- */

static void plan_attend(struct plan *l, uint32_t id)
{
    const struct sy_node *n = node_of(l, id);
    struct sy_kv_dim kv = cpu_kv_dim(l->p->b, n, l->p->block_len);
    int32_t *state = &l->state[n->in[3].id];
    const struct sy_node *keeps = node_of(l, n->in[3].id);
    if (n->in[1].id) {
        *state = l->n_state++;
        struct op *w = push_op(l, REGION_ROWS, false, n);
        w->run = cpu_row_kv_write;
        reads(l, w, 1, n->in[1]);
        if (n->in[2].id) reads(l, w, 2, n->in[2]);
        w->kv = kv;
        w->state = *state;
        w->rows = sy_state_rows(l->p->shape, keeps);
    }
    enum region_kind kind = n->in[6].id ? REGION_KEPT : n->in[5].id ? REGION_CHOSEN : REGION_ATTEND;
    struct op *o = push_op(l, kind, false, n);
    if (n->in[6].id) {
        o->kept = cpu_kv_dim(l->p->b, node_of(l, n->in[6].id), l->p->block_len);
        o->kept_state = l->state[n->in[6].id];
    }
    reads(l, o, 0, n->in[0]);
    if (n->in[5].id) reads(l, o, 1, n->in[5]);
    o->kv = kv;
    o->state = *state;
    o->table = sy_state_table(l->p->shape, keeps);
    if (n->in[4].id) o->vec = vector(l, n->in[4]);
    writes(l, o, id, 0);
}

static void plan_index(struct plan *l, uint32_t id)
{
    const struct sy_node *n = node_of(l, id);
    struct op *w = push_op(l, REGION_ROWS, false, n);
    w->run = cpu_row_kv_write;
    reads(l, w, 1, n->in[1]);
    w->kv = cpu_kv_dim(l->p->b, n, l->p->block_len);
    w->state = l->n_state;
    w->rows = SY_ROW;
    struct sy_kv_dim kv = w->kv;
    struct op *o = push_op(l, REGION_INDEX, false, n);
    reads(l, o, 0, n->in[0]);
    reads(l, o, 2, n->in[2]);
    o->kv = kv;
    o->state = l->n_state++;
    writes(l, o, id, 0);
}

static void plan_keep(struct plan *l, uint32_t id)
{
    const struct sy_node *n = node_of(l, id);
    struct op *w = push_op(l, REGION_ROWS, false, n);
    w->run = cpu_row_kv_write;
    reads(l, w, 1, n->in[0]);
    w->kv = cpu_kv_dim(l->p->b, n, l->p->block_len);
    w->state = l->state[id] = l->n_state++;
    w->rows = SY_ROW;
}

static void plan_compress(struct plan *l, uint32_t id)
{
    const struct sy_node *n = node_of(l, id);
    struct op *o = push_op(l, REGION_COMPRESS, false, n);
    reads(l, o, 0, n->in[0]);
    o->vec = vector(l, n->in[1]);
    o->slot_offset = l->p->slot_planned;
    l->p->slot_planned += cpu_state_bytes(l->p->b, l->p->node, n);
    writes(l, o, id, 0);
}

static void plan_heads(struct plan *l, uint32_t id)
{
    const struct sy_node *n = node_of(l, id);
    const struct sy_heads_dim *d = &n->attr.heads;
    struct op *o = push_op(l, REGION_HEADS, l->on_out[id], n);
    o->w = cpu_weight_heads(l->w, node_of(l, n->in[1].id)->name, d);
    sy_assert(o->w && l->n_x < l->cap_x);
    enum sy_xkind kind = sy_layout_xkind(o->w->seg[0].p.layout);
    int64_t m = rows_max(l, l->on_out[id]);
    int i = l->n_x++;
    sy_xmat_init(&l->x[i], kind, m, d->d_in, NULL);
    l->x_node[i] = 0;
    l->x_buf[i] = new_buffer(l, sy_xmat_bytes(kind, m, d->d_in) * (size_t)d->n_head);
    o->x[kind] = &l->x[i];
    reads(l, o, 0, n->in[0]);
    writes(l, o, id, 0);
}

/* An operand of the experts' products, in a buffer of the region that runs. */
static void expert_operands(struct plan *l, const struct wentry *w, int64_t pairs, struct sy_xmat **by_kind)
{
    for (int s = 0; s < w->n_seg; s++) {
        enum sy_xkind kind = sy_layout_xkind(w->seg[s].p.layout);
        if (by_kind[kind]) continue;
        sy_assert(l->n_x < l->cap_x);
        int i = l->n_x++;
        by_kind[kind] = &l->x[i];
        sy_xmat_init(&l->x[i], kind, pairs, w->cols, NULL);
        l->x_node[i] = 0;
        l->x_buf[i] = new_buffer(l, sy_xmat_bytes(kind, pairs, w->cols));
    }
}

static struct value expert_rows(struct plan *l, int64_t pairs, int64_t cols)
{
    struct value v = {.ld = (cols + 15) & ~(int64_t)15};
    v.buffer = new_buffer(l, (size_t)v.ld * sizeof(float) * (size_t)pairs);
    return v;
}

static void plan_experts(struct plan *l, uint32_t id)
{
    const struct sy_node *n = node_of(l, id);
    const struct sy_moe_dim *d = &n->attr.moe;
    struct sy_arena *a = &l->p->arena;
    int64_t pairs = rows_max(l, l->on_out[id]) * d->n_used;
    struct op *o = push_op(l, REGION_EXPERTS, l->on_out[id], n);
    struct moe *m = o->moe = sy_arena_get(a, sizeof *m);
    if (!m) {
        (void)out_of_memory(l);
        return;
    }
    *m = (struct moe){.dim = d, .d_model = n->dim[1]};
    m->w_in = cpu_weight(l->w, node_of(l, n->in[2].id)->name);
    m->w_out = cpu_weight(l->w, node_of(l, n->in[3].id)->name);
    sy_assert(m->w_in && m->w_in->seg && m->w_out && m->w_out->seg);
    if (n->in[4].id) m->bias_in = vector(l, n->in[4]);
    if (n->in[5].id) m->bias_out = vector(l, n->in[5]);
    expert_operands(l, m->w_in, pairs, m->x);
    expert_operands(l, m->w_out, pairs, m->h);
    m->scratch = expert_rows(l, sy_pool_size(l->p->b->pool), CPU_GLU_FLOATS);
    m->y2 = expert_rows(l, pairs, n->dim[1]);
    m->pair = sy_arena_array(a, (size_t)pairs, sizeof *m->pair);
    m->place = sy_arena_array(a, (size_t)pairs, sizeof *m->place);
    m->next = sy_arena_array(a, (size_t)d->n_expert + 1, sizeof *m->next);
    m->run = sy_arena_array(a, (size_t)(pairs / CPU_EXPERT_ROWS + d->n_expert + 1), sizeof *m->run);
    if (!m->pair || !m->place || !m->next || !m->run) (void)out_of_memory(l);
    reads(l, o, 0, n->in[0]);
    reads(l, o, 1, n->in[1]);
    /* Adding a row's results is a row op: what follows joins its region. */
    struct op *sum = push_op(l, REGION_ROWS, l->on_out[id], n);
    sum->run = cpu_row_experts;
    sum->moe = m;
    touch(l, m->y2.buffer);
    reads(l, sum, 1, n->in[1]);
    writes(l, sum, id, 0);
}

static void plan_conv(struct plan *l, uint32_t id)
{
    const struct sy_node *n = node_of(l, id);
    struct op *o = push_op(l, REGION_CONV, false, n);
    reads(l, o, 0, n->in[0]);
    o->taps = cpu_taps(l->p, vector(l, n->in[1]), n->dim[1], node_of(l, n->in[1].id)->dim[1] / n->dim[1]);
    if (!o->taps) out_of_memory(l);
    if (n->in[2].id) o->vec = vector(l, n->in[2]);
    o->slot_offset = l->p->slot_planned;
    l->p->slot_planned += cpu_state_bytes(l->p->b, l->p->node, n);
    writes(l, o, id, 0);
}

static void plan_scan(struct plan *l, uint32_t id)
{
    const struct sy_node *n = node_of(l, id);
    struct op *o = push_op(l, REGION_SCAN, false, n);
    for (int i = 0; i < 5; i++)
        if (n->in[i].id && !is_row(node_of(l, n->in[i].id))) reads(l, o, i, n->in[i]);
    if (is_row(node_of(l, n->in[3].id))) o->vec = vector(l, n->in[3]);
    o->slot_offset = l->p->slot_planned;
    l->p->slot_planned += cpu_state_bytes(l->p->b, l->p->node, n);
    int64_t slice = (int64_t)SY_SCAN_SCRATCH(n->attr.scan.d_key);
    if (slice > l->p->scan_slice) l->p->scan_slice = slice;
    writes(l, o, id, n->in[2].id);
}

static const struct rope_table *rope_table(struct plan *l, const struct sy_rope_dim *d)
{
    struct sy_program *p = l->p;
    for (int i = 0; i < p->n_rope; i++)
        if (p->rope[i].dim.inv_freq == d->inv_freq && p->rope[i].dim.d_rot == d->d_rot &&
            p->rope[i].dim.every == d->every)
            return &p->rope[i];
    if (p->n_rope == (int)SY_COUNT(p->rope)) {
        if (!l->st) l->st = sy_fail(l->err, SY_ENOSUP, "a model with more than %d kinds of rope", p->n_rope);
        return &p->rope[0];
    }
    struct rope_table *t = &p->rope[p->n_rope++];
    t->dim = *d;
    t->cs = sy_arena_array(&p->arena, (size_t)p->shape.tok * (size_t)d->d_rot, sizeof(float));
    if (d->every > 1) t->pos = sy_arena_array(&p->arena, (size_t)p->shape.tok, sizeof *t->pos);
    if (!t->cs || (d->every > 1 && !t->pos)) out_of_memory(l);
    return t;
}

static void plan_row_op(struct plan *l, uint32_t id)
{
    const struct sy_node *n = node_of(l, id);
    struct op *o = push_op(l, REGION_ROWS, l->on_out[id], n);
    o->run = cpu_row_fns[n->op];
    sy_assert(o->run);
    switch (n->op) {
    case SY_OP_GIVEN: writes(l, o, id, 0); return;
    case SY_OP_EMBED:
        o->w = cpu_weight(l->w, node_of(l, n->in[0].id)->name);
        sy_assert(o->w && o->w->table);
        writes(l, o, id, 0);
        return;
    case SY_OP_NORM:
        if (n->in[1].id) o->vec = vector(l, n->in[1]);
        break;
    case SY_OP_ROPE: {
        const struct rope_table *t = rope_table(l, &n->attr.rope);
        o->rope_cs = t->cs;
        o->rope_n = t->dim.d_rot / 2;
        break;
    }
    case SY_OP_ROWS:
        reads(l, o, 0, n->in[0]);
        writes(l, o, id, 0);
        return;
    case SY_OP_JOIN:
        reads(l, o, 0, n->in[0]);
        reads(l, o, 1, n->in[1]);
        writes(l, o, id, 0);
        return;
    case SY_OP_SAMPLE: reads(l, o, 0, n->in[0]); return;
    case SY_OP_ROUTE:
        if (n->in[1].id) o->vec = vector(l, n->in[1]);
        if (n->in[2].id) o->vec2 = vector(l, n->in[2]);
        if (n->in[3].id) reads(l, o, 3, n->in[3]);
        reads(l, o, 0, n->in[0]);
        writes(l, o, id, 0);
        return;
    case SY_OP_GATES:
        o->vec = vector(l, n->in[1]);
        o->vec2 = vector(l, n->in[2]);
        break;
    case SY_OP_BLEND:
        for (int i = 0; i < 4; i++)
            if (n->in[i].id) reads(l, o, i, n->in[i]);
        writes(l, o, id, 0);
        return;
    case SY_OP_GLU:
    case SY_OP_ADD:
    case SY_OP_MATCH:
    case SY_OP_MUL:
        o->by_column = node_of(l, n->in[1].id)->dim[1] != n->dim[1];
        if (is_row(node_of(l, n->in[1].id))) o->vec = vector(l, n->in[1]);
        else reads(l, o, 1, n->in[1]);
        break;
    default: break;
    }
    reads(l, o, 0, n->in[0]);
    writes(l, o, id, n->in[0].id);
}

static void plan_part(struct plan *l, uint32_t id)
{
    const struct sy_node *n = node_of(l, id);
    struct value *v = &l->p->value[id];
    *v = l->p->value[n->in[0].id];
    v->offset += n->attr.part.lo;
}

static void plan_nodes(struct plan *l)
{
    for (uint32_t id = 1; id < l->n_node && !l->st; id++) {
        const struct sy_node *n = node_of(l, id);
        l->now = id;
        l->on_out[id] = n->op == SY_OP_ROWS || (n->in[0].id && n->op != SY_OP_EMBED && l->on_out[n->in[0].id]);
        switch (n->op) {
        case SY_OP_INPUT:
        case SY_OP_WEIGHT:
        case SY_OP_CONST:
        case SY_OP_STATE: break;
        case SY_OP_PART: plan_part(l, id); break;
        case SY_OP_LINEAR: plan_linear(l, id); break;
        case SY_OP_ATTEND: plan_attend(l, id); break;
        case SY_OP_EXPERTS: plan_experts(l, id); break;
        case SY_OP_CONV: plan_conv(l, id); break;
        case SY_OP_SCAN: plan_scan(l, id); break;
        case SY_OP_KEEP: plan_keep(l, id); break;
        case SY_OP_COMPRESS: plan_compress(l, id); break;
        case SY_OP_HEADS: plan_heads(l, id); break;
        case SY_OP_INDEX: plan_index(l, id); break;
        default:
            if (!l->fused[id]) plan_row_op(l, id);
        }
    }
}

/* Lowest offset at which buffer i fits beside those placed before it that live in some region with it. */
static size_t place(const struct plan *l, int i)
{
    const struct buffer *b = &l->buf[i];
    size_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int j = 0; j < i; j++) {
            const struct buffer *c = &l->buf[j];
            bool together = c->first <= b->last && b->first <= c->last;
            if (together && at < c->at + c->bytes && c->at < at + b->bytes) {
                at = c->at + c->bytes;
                moved = true;
            }
        }
    }
    return at;
}

static void place_value(const struct plan *l, struct value *v)
{
    if (v->buffer >= 0) v->at = (float *)(void *)(l->p->mem.at + l->buf[v->buffer].at) + v->offset;
}

static sy_status place_memory(struct plan *l)
{
    size_t bytes = 0;
    for (int i = 0; i < l->n_buf; i++) {
        l->buf[i].at = place(l, i);
        if (l->buf[i].at + l->buf[i].bytes > bytes) bytes = l->buf[i].at + l->buf[i].bytes;
    }
    sy_status st = sy_pages_new(&l->p->mem, bytes + 4096, !l->p->b->opt.no_huge_pages, l->err);
    if (st) return sy_while(l->err, st, "activations of a step of %d tokens", l->p->shape.tok);
    for (uint32_t id = 1; id < l->n_node; id++) place_value(l, &l->p->value[id]);
    for (int i = 0; i < l->n_x; i++)
        sy_xmat_init(&l->x[i], l->x[i].kind, l->x[i].m, l->x[i].k, l->p->mem.at + l->buf[l->x_buf[i]].at);
    for (int i = 0; i < l->p->n_op; i++) {
        struct op *o = &l->p->op[i];
        if (o->moe) {
            place_value(l, &o->moe->scratch);
            place_value(l, &o->moe->y2);
        }
        if (!o->w || !o->in[3]) continue;
        o->epi.add = o->in[3]->at;
        o->epi.ld_add = o->in[3]->ld;
    }
    return SY_OK;
}

int32_t cpu_attend_group(const struct sy_attn_dim *a)
{
    int32_t group = a->n_head / a->n_kv, n = group < CPU_ATTEND_HEADS ? group : CPU_ATTEND_HEADS;
    while (group % n) n--;
    return n;
}

static void gather_at_least(struct sy_program *p, int32_t d_key)
{
    int64_t each = (int64_t)SY_PARTITION * d_key;
    if (each > p->gathered_each) p->gathered_each = each;
}

/* Scratch of attention and scans: one slice per item in flight; items are few only when they outnumber no thread by
 * much. */
static sy_status plan_attention(struct plan *l)
{
    struct sy_program *p = l->p;
    int64_t keys = (int64_t)p->shape.block * p->block_len, n_part = (keys + SY_PARTITION - 1) / SY_PARTITION,
            slice = 1;
    size_t n_score = 0, n_group = 1, threads = (size_t)sy_pool_size(p->b->pool);
    p->attend_q = SY_ATTEND_Q;
    for (uint32_t i = 1; i < l->n_node; i++) {
        const struct sy_node *n = node_of(l, i);
        if (n->op == SY_OP_INDEX) {
            n_score = (size_t)keys * CPU_INDEX_ROWS;
            gather_at_least(p, n->attr.index.d);
        }
        if (n->op != SY_OP_ATTEND) continue;
        size_t groups = (size_t)(n->attr.attn.n_head / cpu_attend_group(&n->attr.attn));
        if (groups > n_group) n_group = groups;
        int32_t fit = CPU_ATTEND_ROWS / cpu_attend_group(&n->attr.attn);
        if (fit < p->attend_q) p->attend_q = fit;
        if (n->in[5].id || n->in[6].id) gather_at_least(p, n->attr.attn.d_key);
    }
    for (uint32_t i = 1; i < l->n_node; i++) {
        const struct sy_node *n = node_of(l, i);
        if (n->op != SY_OP_ATTEND) continue;
        const struct sy_attn_dim *a = &n->attr.attn;
        int64_t need = n_part * p->attend_q * cpu_attend_group(a) * (a->d_val + 2);
        if (need > slice) slice = need;
        /* One query, a list of no more keys than of each kind there are, two kinds. */
        need = n->in[6].id ? (2 * keys / SY_PARTITION + 1) * cpu_attend_group(a) * (a->d_val + 2) : 0;
        if (need > slice) slice = need;
    }
    p->partial_slice = slice;
    p->work = sy_arena_array(&p->arena, (size_t)p->shape.tok + (size_t)p->shape.seq, sizeof *p->work);
    size_t slices = 4 * threads > n_group ? 4 * threads : n_group;
    p->partial = sy_arena_array(&p->arena, (size_t)slice * slices, sizeof(float));
    p->chain = sy_arena_array(&p->arena, (size_t)p->shape.seq, sizeof *p->chain);
    p->scan_scratch = sy_arena_array(&p->arena, (size_t)p->scan_slice * threads + 1, sizeof(float));
    if (!p->work || !p->partial || !p->chain || !p->scan_scratch) return out_of_memory(l);
    if (p->gathered_each == 0) return SY_OK;
    p->score = sy_arena_array(&p->arena, n_score + 1, sizeof(float));
    p->row_seq = sy_arena_array(&p->arena, (size_t)p->shape.tok, sizeof *p->row_seq);
    p->gathered = sy_arena_array(&p->arena, (size_t)p->gathered_each * threads + 1, sizeof(float));
    p->one_block = sy_arena_array(&p->arena, (size_t)n_part + 1, sizeof *p->one_block);
    return p->score && p->row_seq && p->gathered && p->one_block ? SY_OK : out_of_memory(l);
}

static sy_status plan_tables(struct plan *l, const struct sy_graph *g, struct sy_arena *scratch)
{
    struct sy_program *p = l->p;
    const struct sy_node *node = sy_graph_nodes(g, &l->n_node);
    size_t n = l->n_node, n_expert = 0;
    for (size_t i = 0; i < n; i++) n_expert += node[i].op == SY_OP_EXPERTS;
    struct sy_node *copy = sy_arena_array(&p->arena, n, sizeof *copy);
    p->node = copy;
    p->value = sy_arena_array(&p->arena, n, sizeof *p->value);
    p->op = sy_arena_array(&p->arena, 3 * n, sizeof *p->op); /* each node: itself, preparations, a KV write */
    p->region = sy_arena_array(&p->arena, 3 * n, sizeof *p->region);
    p->token = sy_arena_array(&p->arena, (size_t)p->shape.out, sizeof *p->token);
    size_t cap_x = n + 2 * (size_t)SY_X_COUNT * n_expert, cap_buf = 2 * n + (2 * (size_t)SY_X_COUNT + 2) * n_expert;
    l->cap_x = (int)cap_x;
    l->x = sy_arena_array(&p->arena, cap_x, sizeof *l->x);
    l->x_buf = sy_arena_array(scratch, cap_x, sizeof *l->x_buf);
    l->x_node = sy_arena_array(scratch, cap_x, sizeof *l->x_node);
    l->cap_buf = (int)cap_buf;
    l->buf = sy_arena_array(scratch, cap_buf, sizeof *l->buf);
    l->n_use = sy_arena_array(scratch, n, sizeof *l->n_use);
    l->on_out = sy_arena_array(scratch, n, sizeof *l->on_out);
    l->fused = sy_arena_array(scratch, n, sizeof *l->fused);
    l->state = sy_arena_array(scratch, n, sizeof *l->state);
    if (!copy || !p->value || !p->op || !p->region || !p->token || !l->x || !l->x_buf || !l->x_node || !l->buf ||
        !l->n_use || !l->on_out || !l->fused || !l->state)
        return out_of_memory(l);
    memcpy(copy, node, n * sizeof *copy);
    for (uint32_t i = 0; i < l->n_node; i++) {
        p->value[i].buffer = -1;
        for (size_t k = 0; k < SY_COUNT(node[i].in); k++) l->n_use[node[i].in[k].id]++;
    }
    return SY_OK;
}

/* What a step hands out must outlive its last region: the logits, and the hidden state they were made from. */
static void keep_results(struct plan *l, uint32_t sample)
{
    struct sy_program *p = l->p;
    if (l->st) return;
    uint32_t logits = p->node[sample].in[0].id, linear = logits;
    p->result = &p->value[logits];
    p->n_vocab = (int32_t)p->node[logits].dim[1];
    touch(l, p->result->buffer);
    while (linear && p->node[linear].op != SY_OP_LINEAR) linear = p->node[linear].in[0].id;
    uint32_t hidden = p->node[linear].in[0].id;
    if (!hidden) return;
    p->hidden = &p->value[hidden];
    p->d_model = (int32_t)p->node[hidden].dim[1];
    touch(l, p->hidden->buffer);
    if (p->node[hidden].op != SY_OP_ROWS) return;
    p->all = &p->value[p->node[hidden].in[0].id];
    touch(l, p->all->buffer);
}

sy_status cpu_compile(struct sy_backend *b, const struct sy_graph *g, const struct sy_weights *w,
                      struct sy_cache_dim dim, struct sy_program **out, struct sy_err *err)
{
    struct sy_program *p = sy_new(b->env, sizeof *p);
    if (!p) return sy_fail(err, SY_ENOMEM, "no memory for a program");
    p->b = b;
    p->shape = sy_graph_shape(g);
    p->block_len = dim.block_len;
    sy_arena_init(&p->arena, b->env, 0);
    struct sy_arena scratch;
    sy_arena_init(&scratch, b->env, 0);
    struct plan l = {.p = p, .w = w, .err = err};
    sy_status st = plan_tables(&l, g, &scratch);
    if (!st) {
        plan_nodes(&l);
        keep_results(&l, sy_graph_result(g).id);
        st = l.st;
    }
    if (!st) st = place_memory(&l);
    if (!st) st = plan_attention(&l);
    sy_arena_release(&scratch);
    if (st) {
        cpu_program_free(p);
        return st;
    }
    *out = p;
    return SY_OK;
}

void cpu_program_free(struct sy_program *p)
{
    if (!p) return;
    const struct sy_env *env = p->b->env;
    sy_pages_free(&p->mem);
    sy_arena_release(&p->arena);
    sy_delete(env, p);
}
