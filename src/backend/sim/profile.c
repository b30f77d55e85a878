#include "backend/sim/profile.h"

#include <string.h>

static void add_kv(struct sy_profile *p, int32_t window, double elems, double key_flops)
{
    int32_t i = 0;
    while (i < p->n_kv && p->kv[i].window != window && i + 1 < (int32_t)SY_COUNT(p->kv)) i++;
    if (i == p->n_kv) p->kv[p->n_kv++].window = window;
    p->kv[i].elems += elems;
    p->kv[i].key_flops += key_flops;
    p->kv[i].prompt_flops += key_flops;
}

static bool only_embeds(const struct sy_node *node, uint32_t n, uint32_t id)
{
    for (uint32_t i = 1; i < n; i++)
        for (size_t k = 0; k < SY_COUNT(node[i].in); k++)
            if (node[i].in[k].id == id && node[i].op != SY_OP_EMBED) return false;
    return true;
}

void sy_profile_of_graph(const struct sy_graph *g, int32_t n_ctx, struct sy_profile *out)
{
    uint32_t n;
    const struct sy_node *node = sy_graph_nodes(g, &n);
    struct sy_profile p = {.n_ctx = n_ctx, .from_graph = true, .kv_heads = INT32_MAX};
    double experts = 0;
    for (uint32_t i = 1; i < n; i++) {
        const struct sy_node *v = &node[i];
        if (v->layer >= p.n_layer) p.n_layer = v->layer + 1;
        if (v->op == SY_OP_WEIGHT) {
            double size = (double)v->dim[0] * (double)v->dim[1];
            if (v->attr.weight.split == SY_BY_EXPERT) experts += size;
            else if (v->layer >= 0) *(strstr(v->name, "mlp") ? &p.ffn_params : &p.attn_params) += size;
            else if (only_embeds(node, n, i)) p.embed_params += size;
            else p.head_params += size;
        } else if (v->op == SY_OP_STATE && v->attr.state.kind == SY_SLOTS) {
            p.state_elems += (double)v->attr.state.elems;
        } else if (v->op == SY_OP_ATTEND) {
            const struct sy_attn_dim *a = &v->attr.attn;
            double per = (double)a->d_key + a->d_val;
            add_kv(&p, a->window, a->n_kv * per, 2.0 * a->n_head * per);
            if (a->n_kv < p.kv_heads) p.kv_heads = a->n_kv;
        } else if (v->op == SY_OP_EXPERTS) {
            p.n_moe_layer++;
            p.n_expert = v->attr.moe.n_expert;
            p.top_k = v->attr.moe.n_used;
        } else if (v->op == SY_OP_EMBED) {
            p.d_model = (int32_t)v->dim[1];
        } else if (v->op == SY_OP_SAMPLE) {
            p.n_vocab = (int32_t)node[v->in[0].id].dim[1];
        }
    }
    p.state_bytes = 4 * p.state_elems;
    if (p.n_moe_layer) p.expert_params = experts / p.n_expert / p.n_moe_layer;
    *out = p;
}

double sy_profile_params(const struct sy_profile *p)
{
    return p->attn_params + p->ffn_params + p->expert_params * p->n_expert * p->n_moe_layer + p->head_params +
           p->embed_params;
}

double sy_profile_active(const struct sy_profile *p)
{
    return p->attn_params + p->ffn_params + p->expert_params * p->top_k * p->n_moe_layer + p->head_params;
}
