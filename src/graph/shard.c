#include "graph/shard.h"

#include <string.h>

struct pass {
    struct sy_graph *g; /* the rank's */
    const struct sy_node *node;
    uint32_t n_node;
    int32_t n;
    sy_val *val; /* by node of the whole graph */
    bool *split; /* its columns are this rank's */
    int32_t *lo; /* of a PART of split columns: where they begin in the rank's */
};

int64_t sy_shard_rows(int64_t rows, int32_t n_rank, int32_t unit)
{
    int64_t each = rows / n_rank;
    return each > unit ? each : unit;
}

int64_t sy_shard_first(int64_t rows, int32_t n_rank, int32_t unit, int32_t rank)
{
    int64_t each = sy_shard_rows(rows, n_rank, unit), shares = rows / each;
    return rank * shares / n_rank * each;
}

static const struct sy_node *operand(const struct pass *p, const struct sy_node *n, int k)
{
    return &p->node[n->in[k].id];
}

/* Rows can be given to ranks: evenly, or (fewer units than ranks) each to as many ranks. */
static bool divides(int64_t rows, int32_t n, int32_t unit)
{
    int64_t each = sy_shard_rows(rows, n, unit);
    return rows % each == 0 && each % unit == 0 && n % (rows / each) == 0 && (rows / each == n || each == unit);
}

/* The PART that an operand of attention comes from, through ops that keep its columns. */
static uint32_t part_of(const struct pass *p, uint32_t id)
{
    while (id && p->node[id].op != SY_OP_PART)
        id = p->node[id].op == SY_OP_NORM || p->node[id].op == SY_OP_ROPE ? p->node[id].in[0].id : 0;
    return id;
}

/* Columns of LINEAR id that must stay together: a head, where attention reads them. */
static int32_t unit_of(const struct pass *p, uint32_t id)
{
    for (uint32_t i = id + 1; i < p->n_node; i++) {
        const struct sy_node *n = &p->node[i];
        for (int k = 0; n->op == SY_OP_ATTEND && k < 3; k++) {
            uint32_t part = part_of(p, n->in[k].id);
            if (part && p->node[part].in[0].id == id) return n->attr.attn.d_key;
        }
    }
    return 1;
}

/* Places the PARTs of LINEAR id side by side in the rank's columns; returns how many columns those are, 0: cannot. */
static int64_t place_parts(struct pass *p, uint32_t id, int32_t unit)
{
    const struct sy_node *n = &p->node[id];
    int64_t at = 0, done = 0;
    bool any = false;
    while (done < n->dim[1]) {
        uint32_t found = 0;
        for (uint32_t i = id + 1; i < p->n_node && !found; i++) {
            const struct sy_node *m = &p->node[i];
            if (m->op == SY_OP_PART && m->in[0].id == id && m->attr.part.lo == done) found = i;
        }
        if (!found) break;
        int64_t rows = p->node[found].dim[1];
        if (!divides(rows, p->n, unit)) return 0;
        for (uint32_t i = found; i < p->n_node; i++)
            if (p->node[i].op == SY_OP_PART && p->node[i].in[0].id == id && p->node[i].attr.part.lo == done)
                p->lo[i] = (int32_t)at;
        at += sy_shard_rows(rows, p->n, unit);
        done += rows;
        any = true;
    }
    if (!any) return divides(n->dim[1], p->n, 1) ? n->dim[1] / p->n : 0;
    bool joined = strchr(operand(p, n, 1)->name, '{') != NULL;
    return done == n->dim[1] && joined ? at : 0;
}

static sy_val weight(struct pass *p, sy_val v, int64_t rows, int64_t cols, int32_t n, int32_t unit)
{
    return v.id ? sy_weight_rank(p->g, &p->node[v.id], rows, cols, n, unit) : SY_NONE;
}

static sy_val whole_weight(struct pass *p, sy_val v)
{
    const struct sy_node *w = &p->node[v.id];
    return weight(p, v, w->dim[0], w->dim[1], 1, 1);
}

static sy_val linear(struct pass *p, uint32_t id)
{
    const struct sy_node *n = &p->node[id], *w = operand(p, n, 1);
    sy_val x = p->val[n->in[0].id], bias = n->in[2];
    bool x_split = p->split[n->in[0].id];
    if (w->attr.weight.split == SY_BY_IN && x_split) {
        sy_val y = sy_linear(p->g, x, weight(p, n->in[1], w->dim[0], w->dim[1] / p->n, p->n, 1), SY_NONE);
        y = sy_rank_sum(p->g, y);
        return bias.id ? sy_add(p->g, y, whole_weight(p, bias)) : y;
    }
    if (x_split) {
        sy_graph_refuse(p->g, SY_ENOSUP, "'%s' cannot be given to %d ranks: its operand is split", w->name, p->n);
        return SY_NONE;
    }
    int32_t unit = unit_of(p, id);
    int64_t cols = w->attr.weight.split == SY_BY_OUT && p->n > 1 ? place_parts(p, id, unit) : 0;
    if (cols == 0) return sy_linear(p->g, x, whole_weight(p, n->in[1]), bias.id ? whole_weight(p, bias) : SY_NONE);
    p->split[id] = true;
    return sy_linear(p->g, x, weight(p, n->in[1], cols, w->dim[1], p->n, unit), weight(p, bias, 1, cols, p->n, unit));
}

/* How many columns of a value of the whole graph the rank has. */
static int64_t columns(const struct pass *p, sy_val v)
{
    uint32_t n;
    return sy_graph_nodes(p->g, &n)[p->val[v.id].id].dim[1];
}

/* The value whole on every rank. */
static sy_val joined(struct pass *p, sy_val v)
{
    sy_val x = p->val[v.id];
    if (!p->split[v.id]) return x;
    if (columns(p, v) * p->n != p->node[v.id].dim[1])
        sy_graph_refuse(p->g, SY_ENOSUP, "%d ranks hold the same KV heads, which a norm over all heads cannot have",
                        p->n);
    return sy_rank_join(p->g, x, p->n);
}

static sy_val attend(struct pass *p, const struct sy_node *n)
{
    struct sy_attn_dim d = n->attr.attn;
    bool split = p->split[n->in[0].id];
    if (split != p->split[n->in[1].id] || split != p->split[n->in[2].id]) {
        sy_graph_refuse(p->g, SY_ENOSUP, "%d heads and %d KV heads cannot be given to %d ranks", d.n_head, d.n_kv,
                        p->n);
        return SY_NONE;
    }
    if (!n->in[1].id || n->in[4].id) {
        sy_graph_refuse(p->g, SY_ENOSUP, "attention %s cannot be given to %d ranks",
                        n->in[4].id ? "with sinks" : "on another layer's keys", p->n);
        return SY_NONE;
    }
    struct sy_state_spec spec = operand(p, n, 3)->attr.state;
    if (split) {
        d.n_head /= p->n;
        d.n_kv = d.n_kv > p->n ? d.n_kv / p->n : 1;
        spec.elems = (int64_t)d.n_kv * (d.d_key + d.d_val);
    }
    p->split[n - p->node] = split;
    sy_val kv = sy_state(p->g, spec);
    return sy_attend(p->g, p->val[n->in[0].id], p->val[n->in[1].id], p->val[n->in[2].id], kv, d);
}

static sy_val norm(struct pass *p, const struct sy_node *n)
{
    bool over_all = columns(p, n->in[0]) % n->attr.norm.d != 0; /* the rank has not all of a run */
    sy_val x = over_all ? joined(p, n->in[0]) : p->val[n->in[0].id];
    p->split[n - p->node] = p->split[n->in[0].id] && !over_all;
    if (n->attr.norm.centred) return sy_norm_centred(p->g, x, whole_weight(p, n->in[1]), n->attr.norm.eps);
    if (!n->in[1].id) return sy_norm_unit(p->g, x, n->attr.norm.d, n->attr.norm.eps);
    return sy_norm(p->g, x, whole_weight(p, n->in[1]), n->attr.norm.eps);
}

/* Both operands of an elementwise op split alike. */
static bool pair(struct pass *p, const struct sy_node *n, sy_val *a, sy_val *b)
{
    bool is_weight = operand(p, n, 1)->op == SY_OP_WEIGHT, split = p->split[n->in[0].id];
    bool alike = !is_weight && split == p->split[n->in[1].id];
    *a = alike ? p->val[n->in[0].id] : joined(p, n->in[0]);
    *b = is_weight ? whole_weight(p, n->in[1]) : alike ? p->val[n->in[1].id] : joined(p, n->in[1]);
    return p->split[n - p->node] = alike && split;
}

static sy_val part(struct pass *p, uint32_t id)
{
    const struct sy_node *n = &p->node[id];
    sy_val x = p->val[n->in[0].id];
    if (!p->split[n->in[0].id]) return sy_part(p->g, x, n->attr.part.lo, n->attr.part.hi);
    int32_t unit = unit_of(p, n->in[0].id), rows = n->attr.part.hi - n->attr.part.lo;
    p->split[id] = true;
    return sy_part(p->g, x, p->lo[id], p->lo[id] + (int32_t)sy_shard_rows(rows, p->n, unit));
}

/* Every rank has all experts. */
static sy_val experts(struct pass *p, const struct sy_node *n)
{
    sy_val w[4];
    for (int k = 0; k < 4; k++) w[k] = n->in[2 + k].id ? whole_weight(p, n->in[2 + k]) : SY_NONE;
    return sy_experts(p->g, joined(p, n->in[0]), p->val[n->in[1].id],
                      (struct sy_expert_weights){w[0], w[1], w[2], w[3]}, n->attr.moe);
}

static sy_val rewrite(struct pass *p, uint32_t id)
{
    const struct sy_node *n = &p->node[id];
    struct sy_graph *g = p->g;
    sy_val x = p->val[n->in[0].id], a, b;
    switch (n->op) {
    case SY_OP_INPUT: return sy_input(g, n->attr.field);
    case SY_OP_GIVEN: return sy_given(g, n->dim[1]);
    case SY_OP_CONST: return sy_const(g, n->attr.constant, n->dim[1]);
    case SY_OP_WEIGHT:
    case SY_OP_STATE: return SY_NONE; /* made where they are used */
    case SY_OP_EMBED: return sy_embed(g, whole_weight(p, n->in[0]), p->val[n->in[1].id]);
    case SY_OP_LINEAR: return linear(p, id);
    case SY_OP_NORM: return norm(p, n);
    case SY_OP_PART: return part(p, id);
    case SY_OP_ATTEND: return attend(p, n);
    case SY_OP_ROUTE:
        return sy_route(g, joined(p, n->in[0]), n->in[1].id ? whole_weight(p, n->in[1]) : SY_NONE,
                        n->in[2].id ? whole_weight(p, n->in[2]) : SY_NONE, n->attr.route);
    case SY_OP_EXPERTS: return experts(p, n);
    case SY_OP_SAMPLE: return sy_sample(g, joined(p, n->in[0]));
    default: break;
    }
    p->split[id] = p->split[n->in[0].id];
    switch (n->op) {
    case SY_OP_ROPE: return sy_rope(g, x, n->attr.rope);
    case SY_OP_ACT: return sy_act(g, x, n->attr.fn);
    case SY_OP_TEMPER: return sy_temper(g, x, n->attr.temper);
    case SY_OP_SCALE: return sy_scale(g, x, n->attr.c);
    case SY_OP_SOFTCAP: return sy_softcap(g, x, n->attr.c);
    case SY_OP_ROWS: return sy_rows(g, x);
    case SY_OP_GLU: pair(p, n, &a, &b); return sy_glu(g, a, b, n->attr.fn);
    case SY_OP_ADD: pair(p, n, &a, &b); return sy_add(g, a, b);
    case SY_OP_MUL: pair(p, n, &a, &b); return sy_mul(g, a, b);
    default:
        sy_graph_refuse(g, SY_ENOSUP, "the op %s cannot be given to %d ranks", sy_op_name(n->op), p->n);
        return SY_NONE;
    }
}

sy_status sy_graph_shard(const struct sy_env *env, const struct sy_graph *whole, int32_t n_rank,
                         struct sy_graph **out, struct sy_err *err)
{
    struct pass p = {.n = n_rank};
    p.node = sy_graph_nodes(whole, &p.n_node);
    struct sy_arena a;
    sy_arena_init(&a, env, 0);
    sy_status st = sy_graph_new(env, sy_graph_shape(whole), &p.g, err);
    p.val = sy_arena_array(&a, p.n_node, sizeof *p.val);
    p.split = sy_arena_array(&a, p.n_node, sizeof *p.split);
    p.lo = sy_arena_array(&a, p.n_node, sizeof *p.lo);
    if (!st && (!p.val || !p.split || !p.lo)) st = sy_fail(err, SY_ENOMEM, "no memory to shard a graph");
    for (uint32_t i = 1; i < p.n_node && !st; i++) p.val[i] = rewrite(&p, i);
    if (!st) st = sy_graph_finish(p.g, p.val[sy_graph_result(whole).id], err);
    sy_arena_release(&a);
    if (st) sy_graph_free(p.g);
    else *out = p.g;
    return st;
}
