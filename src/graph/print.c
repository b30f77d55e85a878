#include "graph/graph.h"

static const char *fn_name(enum sy_fn f)
{
    static const char *const names[] = {"silu",       "gelu",  "gelu_tanh", "sigmoid",
                                        "gelu_quick", "relu2", "tanh",      "softplus"};
    return (unsigned)f < SY_COUNT(names) ? names[f] : "?";
}

static void print_route(const struct sy_route_dim *d, struct sy_buf *b)
{
    static const char *const score[] = {"softmax", "sigmoid", "logit", "sqrt_softplus"};
    static const char *const weighting[] = {"", " normed", " then softmax"};
    sy_buf_printf(b, " %d of %d experts by %s%s", d->n_used, d->n_expert, score[d->score], weighting[d->weighting]);
    if (d->n_group > 1) sy_buf_printf(b, " in %d of %d groups", d->n_group_used, d->n_group);
    if (d->scale != 1) sy_buf_printf(b, " times %g", (double)d->scale);
}

static void print_glu(const struct sy_glu_dim *d, struct sy_buf *b)
{
    sy_buf_printf(b, " %s", fn_name(d->fn));
    if (d->limit > 0) sy_buf_printf(b, " within %g", (double)d->limit);
    if (d->up_add != 0) sy_buf_printf(b, " up + %g", (double)d->up_add);
}

static void print_heads(const struct sy_heads_dim *d, struct sy_buf *b)
{
    sy_buf_printf(b, " %d of %d to %d by rows [%d, %d) of %d%s", d->n_head, d->d_in, d->d_out, d->row0,
                  d->row0 + (d->transposed ? d->d_in : d->d_out), d->w_rows, d->transposed ? " transposed" : "");
}

static void print_attr(const struct sy_node *n, struct sy_buf *b)
{
    const struct sy_attn_dim *a = &n->attr.attn;
    switch (n->op) {
    case SY_OP_INPUT: sy_buf_printf(b, " %s", sy_field_name(n->attr.field)); break;
    case SY_OP_WEIGHT: {
        static const char *const maps[] = {"", " (1+w)", " (-exp w)"};
        sy_buf_printf(b, " '%s'%s", n->name, maps[n->attr.weight.map]);
        if (n->attr.weight.regroup.n_group) sy_buf_printf(b, " of %d groups", n->attr.weight.regroup.n_group);
        break;
    }
    case SY_OP_STATE:
        sy_buf_printf(b, " %s %lld elements", n->attr.state.kind == SY_BLOCKS ? "blocks" : "slots",
                      (long long)n->attr.state.elems);
        if (n->attr.state.every > 1) sy_buf_printf(b, " every %d", n->attr.state.every);
        if (n->attr.state.window) sy_buf_printf(b, " window %d", n->attr.state.window);
        break;
    case SY_OP_NORM:
        sy_buf_printf(b, " of %d eps %g%s", n->attr.norm.d, (double)n->attr.norm.eps,
                      n->attr.norm.centred ? " centred" : "");
        break;
    case SY_OP_TEMPER:
        sy_buf_printf(b, " %g every %d from %d", (double)n->attr.temper.beta, n->attr.temper.every,
                      n->attr.temper.offset);
        break;
    case SY_OP_ROPE:
        sy_buf_printf(b, " %d of %d dims%s", n->attr.rope.d_rot, n->attr.rope.d_head,
                      n->attr.rope.interleaved ? " interleaved" : "");
        if (n->attr.rope.inv_freq_long) sy_buf_printf(b, " long above %d", n->attr.rope.n_short);
        if (n->attr.rope.first) sy_buf_printf(b, " from %d", n->attr.rope.first);
        if (n->attr.rope.every > 1) sy_buf_printf(b, " every %d", n->attr.rope.every);
        break;
    case SY_OP_ACT: sy_buf_printf(b, " %s", fn_name(n->attr.fn)); break;
    case SY_OP_GLU: print_glu(&n->attr.glu, b); break;
    case SY_OP_GATES:
        sy_buf_printf(b, " %d streams, %d rounds, eps %g", n->attr.gates.n, n->attr.gates.n_round,
                      (double)n->attr.gates.eps);
        break;
    case SY_OP_BLEND: sy_buf_printf(b, " %d streams to %d", n->attr.blend.n_in, n->attr.blend.n_out); break;
    case SY_OP_COMPRESS:
        sy_buf_printf(b, " %d%s", n->attr.compress.every, n->attr.compress.overlap ? " overlapping" : "");
        break;
    case SY_OP_KEEP: sy_buf_printf(b, " every %d", n->attr.every); break;
    case SY_OP_SCALE:
    case SY_OP_SPARSIFY:
    case SY_OP_MATCH:
    case SY_OP_SOFTCAP: sy_buf_printf(b, " %g", (double)n->attr.c); break;
    case SY_OP_PART: sy_buf_printf(b, " [%d, %d)", n->attr.part.lo, n->attr.part.hi); break;
    case SY_OP_ATTEND:
        sy_buf_printf(b, " %d/%d heads of %d/%d scale %g", a->n_head, a->n_kv, a->d_key, a->d_val, (double)a->scale);
        if (a->window) sy_buf_printf(b, " window %d", a->window);
        if (a->chunk) sy_buf_printf(b, " chunks of %d", a->chunk);
        if (a->softcap > 0) sy_buf_printf(b, " softcap %g", (double)a->softcap);
        if (a->shared) sy_buf_printf(b, " v in k");
        break;
    case SY_OP_HEADS: print_heads(&n->attr.heads, b); break;
    case SY_OP_INDEX:
        sy_buf_printf(b, " %d by %d heads of %d", n->attr.index.n_top, n->attr.index.n_head, n->attr.index.d);
        break;
    case SY_OP_ROUTE: print_route(&n->attr.route, b); break;
    case SY_OP_EXPERTS:
        sy_buf_printf(b, " %d of %d experts of %d", n->attr.moe.n_used, n->attr.moe.n_expert, n->attr.moe.d_ff);
        print_glu(&n->attr.moe.glu, b);
        if (!n->attr.moe.gated) sy_buf_printf(b, " ungated");
        if (n->attr.moe.weigh_input) sy_buf_printf(b, " weighing input");
        break;
    case SY_OP_SCAN:
        sy_buf_printf(b, " %d/%d heads of %d/%d%s", n->attr.scan.n_key, n->attr.scan.n_val, n->attr.scan.d_key,
                      n->attr.scan.d_val, n->attr.scan.delta ? " delta" : "");
        break;
    case SY_OP_RANK_SUM:
    case SY_OP_RANK_JOIN:
    case SY_OP_RANK_ROWS:
    case SY_OP_RANK_SHARE:
    case SY_OP_RANK_SHIFT:
    case SY_OP_RANK_PICK:
        sy_buf_printf(b, " of %d by %d at %d", n->attr.rank.n, n->attr.rank.stride, n->attr.rank.at);
        break;
    case SY_OP_CONST:
    case SY_OP_CONV:
    case SY_OP_GIVEN:
    case SY_OP_EMBED:
    case SY_OP_LINEAR:
    case SY_OP_ADD:
    case SY_OP_MUL:
    case SY_OP_JOIN:
    case SY_OP_ROWS:
    case SY_OP_SAMPLE:
    case SY_OP_COUNT: break;
    }
}

/* What an op holds by pointer. */
static void print_numbers(const struct sy_node *n, struct sy_buf *b)
{
    const struct sy_rope_dim *r = &n->attr.rope;
    if (n->op == SY_OP_ROPE) {
        sy_buf_printf(b, " times %g by", (double)r->mscale);
        for (int i = 0; i < r->d_rot / 2; i++) sy_buf_printf(b, " %g", (double)r->inv_freq[i]);
        for (int i = 0; i < r->d_rot / 2 && r->inv_freq_long; i++)
            sy_buf_printf(b, " %g", (double)r->inv_freq_long[i]);
    }
    for (int64_t i = 0; n->op == SY_OP_CONST && i < n->dim[1]; i++)
        sy_buf_printf(b, " %g", (double)n->attr.constant[i]);
}

void sy_graph_print(const struct sy_graph *g, bool numbers, struct sy_buf *b)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node);
    for (uint32_t i = 1; i < n_node; i++) {
        const struct sy_node *n = &node[i];
        sy_buf_printf(b, "%%%-4u = %-7s", i, sy_op_name(n->op));
        for (size_t k = 0; k < SY_COUNT(n->in); k++)
            if (n->in[k].id) sy_buf_printf(b, " %%%u", n->in[k].id);
        print_attr(n, b);
        if (numbers) print_numbers(n, b);
        sy_buf_printf(b, " : [%lld, %lld] %s\n", (long long)n->dim[0], (long long)n->dim[1],
                      n->dtype == SY_I32 ? "i32" : "f32");
    }
}
