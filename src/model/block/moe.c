/* moe.c - mixtures of experts as most models have them: a router, experts in a grouped product. */
#include <stdio.h>
#include <string.h>

#include "model/model.h"

sy_status sy_moe_open(struct sy_jread *r, const char *n_expert_key, const char *n_used_key, const char *d_ff_key,
                      struct sy_moe_opt *o)
{
    /* The same number by another name, as newer versions of transformers write it. */
    static const char *const others[] = {"num_local_experts", "num_experts", "n_routed_experts"};
    for (size_t i = 0; i < SY_COUNT(others) && !sy_jread_has(r, n_expert_key); i++)
        if (sy_jread_has(r, others[i])) n_expert_key = others[i];
    int32_t n = (int32_t)sy_jread_int(r, n_expert_key, 1, SY_EXPERTS_MAX);
    int32_t used = (int32_t)sy_jread_int(r, n_used_key, 1, SY_EXPERTS_MAX);
    int32_t d_ff = (int32_t)sy_jread_int(r, d_ff_key, 1, 1 << 20);
    if (!r->st && used > n)
        sy_jread_refuse(r, SY_EFORMAT, "'%s' %d is more than the %d of '%s'", n_used_key, used, n, n_expert_key);
    o->route.n_expert = o->moe.n_expert = n;
    o->route.n_used = o->moe.n_used = used;
    o->route.scale = 1;
    o->moe.d_ff = d_ff;
    o->moe.gated = true;
    return r->st;
}

sy_status sy_moe_open_sigmoid(struct sy_jread *r, const char *n_group_key, const char *normed_key,
                              struct sy_moe_opt *o)
{
    struct sy_route_dim *d = &o->route;
    d->n_group = (int32_t)sy_jread_int_or(r, n_group_key, 1, 1, d->n_expert);
    d->n_group_used = (int32_t)sy_jread_int_or(r, "topk_group", 1, 1, d->n_group);
    d->weighting = sy_jread_bool_or(r, normed_key, true) ? SY_WEIGHT_NORMED : SY_WEIGHT_SCORE;
    d->scale = (float)sy_jread_num_or(r, "routed_scaling_factor", 1, -1e6, 1e6);
    if (r->st || d->n_group == 1) return r->st;
    if (d->n_expert % d->n_group || d->n_expert / d->n_group < 2 ||
        d->n_used > d->n_expert / d->n_group * d->n_group_used)
        return sy_jread_refuse(r, SY_EFORMAT, "'%s' %d and 'topk_group' %d do not fit %d of %d experts", n_group_key,
                               d->n_group, d->n_group_used, d->n_used, d->n_expert);
    return r->st;
}

sy_status sy_moe_open_deepseek(struct sy_jread *r, int32_t n_shared, struct sy_moe_opt *o)
{
    *o = (struct sy_moe_opt){
        .router = "model.layers.%d.mlp.gate.weight",
        .choice_bias = "model.layers.%d.mlp.gate.e_score_correction_bias",
        .experts_in = "model.layers.%d.mlp.experts.#.{gate,up}_proj.weight",
        .experts_out = "model.layers.%d.mlp.experts.#.down_proj.weight",
        .shared = "model.layers.%d.mlp.shared_experts",
        .route = {.score = SY_SCORE_SIGMOID, .eps = 1e-20f},
    };
    if (sy_moe_open(r, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", o)) return r->st;
    if (sy_moe_open_sigmoid(r, "n_group", "norm_topk_prob", o)) return r->st;
    int64_t d_shared = sy_jread_int_or(r, "n_shared_experts", n_shared, 0, 1024) * o->moe.d_ff;
    if (d_shared > INT32_MAX / 2) return sy_jread_refuse(r, SY_EFORMAT, "'n_shared_experts' is too large");
    o->d_shared = (int32_t)d_shared;
    return r->st;
}

sy_status sy_moe_open_qwen(struct sy_jread *r, bool normed, bool shared, struct sy_moe_opt *o)
{
    *o = (struct sy_moe_opt){
        .router = "model.layers.%d.mlp.gate.weight",
        .experts_in = "model.layers.%d.mlp.experts.#.{gate,up}_proj.weight",
        .experts_out = "model.layers.%d.mlp.experts.#.down_proj.weight",
        .route = {.score = SY_SCORE_SOFTMAX},
    };
    if (shared) {
        o->shared = "model.layers.%d.mlp.shared_expert";
        o->shared_gate = "model.layers.%d.mlp.shared_expert_gate.weight";
        o->d_shared = (int32_t)sy_jread_int(r, "shared_expert_intermediate_size", 1, 1 << 20);
    }
    if (sy_moe_open(r, "num_experts", "num_experts_per_tok", "moe_intermediate_size", o)) return r->st;
    o->route.weighting = sy_jread_bool_or(r, "norm_topk_prob", normed) ? SY_WEIGHT_NORMED : SY_WEIGHT_SCORE;
    return r->st;
}

sy_status sy_sparse_layers_open(struct sy_arena *a, struct sy_jread *r, int32_t n_layer, bool **sparse)
{
    const struct sy_json *dense = sy_json_get(r->obj, "mlp_only_layers");
    int64_t step = sy_jread_int_or(r, "decoder_sparse_step", 1, 1, 1 << 20);
    bool *on = *sparse = sy_arena_array(a, (size_t)n_layer, sizeof *on);
    if (!on) return sy_jread_refuse(r, SY_ENOMEM, "no memory");
    for (int32_t l = 0; l < n_layer; l++) on[l] = (l + 1) % step == 0;
    for (size_t i = 0; i < sy_json_len(dense); i++) {
        int64_t l = sy_json_int(sy_json_at(dense, i), -1);
        if (l < 0 || l >= n_layer)
            return sy_jread_refuse(r, SY_EFORMAT, "'mlp_only_layers'[%zu]: expected a layer below %d", i, n_layer);
        on[l] = false;
    }
    return r->st;
}

/* "...weight" with its end replaced. */
static void bias_name(const char *weight, char *buf, size_t n)
{
    snprintf(buf, n, "%.*sbias", (int)(strlen(weight) - strlen("weight")), weight);
}

static sy_val shared_expert(struct sy_graph *g, const struct sy_decoder *d, int l, sy_val x,
                            const struct sy_moe_opt *o)
{
    sy_val y = sy_build_ffn(g, d, l, x, o->shared, o->d_shared, o->moe.glu.fn);
    if (!o->shared_gate) return y;
    sy_val gate = sy_linear(g, x, sy_weight_exact(g, o->shared_gate, l, 1, d->d_model), SY_NONE);
    return sy_mul(g, y, sy_act(g, gate, SY_SIGMOID));
}

sy_val sy_build_moe(struct sy_graph *g, const struct sy_decoder *d, int l, sy_val x, sy_val routed,
                    const struct sy_moe_opt *o)
{
    int32_t n = o->moe.n_expert, n_in = (o->moe.gated ? 2 : 1) * o->moe.d_ff;
    sy_val bias = o->router_bias ? sy_weight(g, SY_WHOLE, o->router_bias, l, 1, n) : SY_NONE;
    sy_val logits = sy_linear(g, routed, sy_weight_exact(g, o->router, l, n, d->d_model), bias);
    sy_val choice = o->choice_bias ? sy_weight(g, SY_WHOLE, o->choice_bias, l, 1, n) : SY_NONE;
    sy_val gain = o->router_gain ? sy_weight(g, SY_WHOLE, o->router_gain, l, 1, n) : SY_NONE;
    sy_val route = sy_route(g, logits, choice, gain, o->route);
    struct sy_expert_weights w = {
        .w_in = sy_weight_experts(g, o->experts_in, l, n, n_in, d->d_model),
        .w_out = sy_weight_experts(g, o->experts_out, l, n, d->d_model, o->moe.d_ff),
    };
    if (o->bias) {
        char name[128];
        bias_name(o->experts_in, name, sizeof name);
        w.bias_in = sy_weight_experts(g, name, l, n, n_in, 0);
        bias_name(o->experts_out, name, sizeof name);
        w.bias_out = sy_weight_experts(g, name, l, n, d->d_model, 0);
    }
    sy_val y = sy_experts(g, x, route, w, o->moe);
    return o->d_shared ? sy_add(g, y, shared_expert(g, d, l, x, o)) : y;
}

sy_val sy_build_ffn(struct sy_graph *g, const struct sy_decoder *d, int l, sy_val x, const char *stem, int32_t d_ff,
                    enum sy_fn fn)
{
    char name[160];
    snprintf(name, sizeof name, "%s.{gate,up}_proj.weight", stem);
    sy_val both = sy_linear(g, x, sy_weight(g, SY_BY_OUT, name, l, 2 * (int64_t)d_ff, d->d_model), SY_NONE);
    sy_val h = sy_glu(g, sy_part(g, both, 0, d_ff), sy_part(g, both, d_ff, 2 * d_ff), fn);
    snprintf(name, sizeof name, "%s.down_proj.weight", stem);
    return sy_linear(g, h, sy_weight(g, SY_BY_IN, name, l, d->d_model, d_ff), SY_NONE);
}
