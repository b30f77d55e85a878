/* What each op costs: the rules the simulator, the roofline of a benchmark and inspect share. */
#include "graph/graph.h"

#include <math.h>

static double min2(double a, double b) { return a < b ? a : b; }

static double weight_bytes(const struct sy_load *l, const struct sy_node *w)
{
    double each = l->weight_bytes ? l->weight_bytes(l->weight_ctx, w) : 2;
    return each * (double)w->dim[0] * (double)w->dim[1];
}

/* The share of the experts that some row chooses, were each row's choice even and independent. */
static double coverage(const struct sy_moe_dim *d, double rows)
{
    double all = (double)d->n_expert * (d->share.n > 0 ? d->share.n : 1);
    return 1 - pow(1 - d->n_used / all, rows);
}

static struct sy_cost attend_cost(const struct sy_node *node, const struct sy_node *n, const struct sy_load *l,
                                  double b_act)
{
    const struct sy_attn_dim *d = &n->attr.attn;
    double window = d->window > 0 ? d->window : d->chunk > 0 ? d->chunk : 1e18;
    double top = n->in[5].id ? (double)node[n->in[5].id].attr.index.n_top : 1e18;
    double kept = n->in[6].id ? node[n->in[6].id].attr.every : 0; /* tokens to a key beside the window's */
    if (kept == 0 && n->in[5].id) window = top;
    double keys = min2(l->keys, l->tok * window), per = d->d_key + d->d_val;
    double stored = d->shared ? d->d_key : per, read = n->in[5].id || kept > 0 ? min2(l->ctx, keys) : l->ctx;
    if (kept > 0) {
        double more = min2(l->keys / kept, l->tok * top);
        keys += more;
        read += min2(l->ctx / kept, more);
    }
    return (struct sy_cost){.flops = 2 * keys * d->n_head * per,
                            .b_state = (read + l->tok) * d->n_kv * stored * l->kv_elem_bytes,
                            .b_act = b_act};
}

struct sy_cost sy_node_cost(const struct sy_graph *g, uint32_t id, const struct sy_load *l)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node), *n = &node[id];
    const struct sy_node *in0 = &node[n->in[0].id], *in1 = &node[n->in[1].id];
    /* Live rows: a value has a row per token before ROWS and a row per output after. */
    bool after = n->op == SY_OP_ROWS || n->op == SY_OP_SAMPLE || (n->layer < 0 && n->op != SY_OP_EMBED);
    double rows = after ? l->out : l->tok, elems = rows * (double)n->dim[1], f32 = 4;
    switch (n->op) {
    case SY_OP_INPUT:
    case SY_OP_WEIGHT:
    case SY_OP_CONST:
    case SY_OP_STATE:
    case SY_OP_PART: return (struct sy_cost){0};
    case SY_OP_GIVEN: return (struct sy_cost){.b_act = f32 * elems};
    case SY_OP_EMBED:
        return (struct sy_cost){.b_weight = weight_bytes(l, in0) / (double)in0->dim[0] * rows, .b_act = f32 * elems};
    case SY_OP_LINEAR:
        return (struct sy_cost){.flops = 2 * elems * (double)in1->dim[1],
                                .b_weight = weight_bytes(l, in1),
                                .b_act = f32 * (elems + rows * (double)in1->dim[1])};
    case SY_OP_ATTEND: return attend_cost(node, n, l, f32 * (elems + rows * (double)in0->dim[1]));
    case SY_OP_INDEX: {
        const struct sy_index_dim *d = &n->attr.index;
        double per = d->every > 1 ? d->every : 1;
        return (struct sy_cost){.flops = 2 * l->keys / per * d->n_head * (d->d + 1.0),
                                .b_state = (l->ctx + l->tok) / per * d->d * l->kv_elem_bytes,
                                .b_act = f32 * (elems + rows * (double)in0->dim[1])};
    }
    case SY_OP_HEADS: {
        const struct sy_heads_dim *d = &n->attr.heads;
        double used = d->transposed ? d->d_in : d->d_out;
        return (struct sy_cost){.flops = 2 * rows * d->n_head * d->d_in * d->d_out,
                                .b_weight = weight_bytes(l, in1) * used / d->w_rows,
                                .b_act = f32 * (elems + rows * (double)in0->dim[1])};
    }
    case SY_OP_CONV: {
        double taps = (double)in1->dim[1] / (double)n->dim[1];
        return (struct sy_cost){.flops = 2 * taps * elems,
                                .b_state = 2 * f32 * l->seq * (taps - 1) * (double)n->dim[1],
                                .b_act = 2 * f32 * elems};
    }
    case SY_OP_COMPRESS: {
        double in = rows * (double)in0->dim[1];
        return (struct sy_cost){
            .flops = 8 * in, .b_state = 2 * f32 * l->seq * 1.5 * (double)in0->dim[1], .b_act = f32 * (elems + in)};
    }
    case SY_OP_KEEP:
        return (struct sy_cost){.b_state = l->tok / n->attr.every * (double)n->dim[1] * l->kv_elem_bytes,
                                .b_act = f32 * elems};
    case SY_OP_GATES:
        return (struct sy_cost){.flops = elems * (10 + 4.0 * n->attr.gates.n_round), .b_act = 2 * f32 * elems};
    case SY_OP_BLEND:
        return (struct sy_cost){.flops = 2 * elems * (n->attr.blend.n_in + 1),
                                .b_act = f32 * (2 * elems + rows * (double)in0->dim[1])};
    case SY_OP_SCAN: {
        const struct sy_scan_dim *d = &n->attr.scan;
        double state = (double)n->dim[1] * d->d_key, per = d->delta ? 8 : 6; /* S k, S q, S a + k u */
        return (struct sy_cost){.flops = per * l->tok * state,
                                .b_state = 2 * f32 * l->seq * state,
                                .b_act = f32 * l->tok * (2 * (double)in0->dim[1] + 2 * (double)n->dim[1])};
    }
    case SY_OP_NORM:
    case SY_OP_TEMPER:
    case SY_OP_SPARSIFY:
    case SY_OP_MATCH:
    case SY_OP_ROPE: return (struct sy_cost){.flops = 4 * elems, .b_act = 2 * f32 * elems};
    case SY_OP_ACT:
    case SY_OP_SOFTCAP: return (struct sy_cost){.flops = 10 * elems, .b_act = 2 * f32 * elems};
    case SY_OP_GLU: return (struct sy_cost){.flops = 11 * elems, .b_act = 3 * f32 * elems};
    case SY_OP_ADD:
    case SY_OP_MUL: return (struct sy_cost){.flops = elems, .b_act = 3 * f32 * elems};
    case SY_OP_JOIN: return (struct sy_cost){.b_act = 2 * f32 * elems};
    case SY_OP_SCALE: return (struct sy_cost){.flops = elems, .b_act = 2 * f32 * elems};
    case SY_OP_ROUTE:
        return (struct sy_cost){.flops = 10 * rows * (double)in0->dim[1],
                                .b_act = f32 * (elems + rows * (double)in0->dim[1])};
    case SY_OP_EXPERTS: {
        const struct sy_moe_dim *d = &n->attr.moe;
        if (d->share.n > 0) rows *= (double)n->dim[0] / (double)sy_graph_shape(g).tok; /* other ranks' come along */
        double pairs = rows * d->n_used / (d->share.n > 0 ? d->share.n : 1), wide = (d->gated ? 3.0 : 2.0) * d->d_ff,
               d_model = (double)n->dim[1];
        double bytes = weight_bytes(l, &node[n->in[2].id]) + weight_bytes(l, &node[n->in[3].id]);
        return (struct sy_cost){.flops = 2 * pairs * wide * d_model + 10 * pairs * d->d_ff,
                                .b_weight = bytes * coverage(d, rows),
                                .b_act = f32 * (elems + pairs * (2 * d_model + 2 * wide))};
    }
    case SY_OP_RANK_SUM:
    case SY_OP_RANK_JOIN:
    case SY_OP_RANK_ROWS:
    case SY_OP_RANK_SHARE:
    case SY_OP_RANK_SHIFT:
    case SY_OP_RANK_PICK:
    case SY_OP_ROWS: return (struct sy_cost){.b_act = 2 * f32 * elems};
    case SY_OP_SAMPLE:
        return (struct sy_cost){.flops = rows * (double)in0->dim[1], .b_act = f32 * rows * (double)in0->dim[1]};
    case SY_OP_COUNT: break;
    }
    return (struct sy_cost){0};
}

struct sy_cost sy_graph_cost(const struct sy_graph *g, const struct sy_load *l)
{
    uint32_t n;
    sy_graph_nodes(g, &n);
    struct sy_cost sum = {0};
    for (uint32_t i = 1; i < n; i++) {
        struct sy_cost c = sy_node_cost(g, i, l);
        sum.flops += c.flops;
        sum.b_weight += c.b_weight;
        sum.b_state += c.b_state;
        sum.b_act += c.b_act;
    }
    return sum;
}
