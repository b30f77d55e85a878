/* MiniMax-01 (transformers: MiniMaxForCausalLM; arXiv:2501.08313): lightning attention, with softmax attention in
 * between, and experts. The residual is the normed input. */
#include <math.h>
#include <string.h>

#include "model/model.h"

struct mix {
    float alpha, beta; /* x = alpha n + beta f(n) */
};
struct minimax {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    struct sy_moe_opt moe;
    bool *full;   /* [n_layer] softmax attention */
    float *decay; /* [n_layer][n_head] */
    struct mix linear_mix, full_mix, mlp_mix;
};

static struct mix open_mix(struct sy_jread *c, const char *alpha, const char *beta)
{
    return (struct mix){(float)sy_jread_num_or(c, alpha, 1, -1e6, 1e6),
                        (float)sy_jread_num_or(c, beta, 1, -1e6, 1e6)};
}

static sy_status open_layers(struct sy_arena *a, struct sy_jread *c, struct minimax *m)
{
    int32_t n = m->d.n_layer, heads = m->d.n_head;
    const struct sy_json *types = sy_json_get(c->obj, "layer_types");
    m->full = sy_arena_array(a, (size_t)n, sizeof *m->full);
    m->decay = sy_arena_array(a, (size_t)n * (size_t)heads, sizeof *m->decay);
    if (!m->full || !m->decay) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_json_len(types) != (size_t)n)
        return sy_jread_refuse(c, SY_EFORMAT, "'layer_types': expected %d entries, found %zu", n, sy_json_len(types));
    for (int l = 0; l < n; l++) {
        const char *type = sy_json_text(sy_json_at(types, (size_t)l));
        m->full[l] = type && !strcmp(type, "full_attention");
        if (!type || (!m->full[l] && strcmp(type, "linear_attention") != 0))
            return sy_jread_refuse(c, SY_ENOSUP, "'layer_types'[%d]: '%s' is not supported", l, type ? type : "");
        double depth = 1 - l / (n - 1 + 1e-5) + 1e-5; /* heads of later layers forget less */
        for (int h = 0; h < heads; h++) m->decay[l * heads + h] = (float)(-exp2(-8.0 * (h + 1) / heads) * depth);
    }
    return c->st;
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct minimax *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info)) return c->st;
    m->moe = (struct sy_moe_opt){
        .router = "model.layers.%d.block_sparse_moe.gate.weight",
        .experts_in = "model.layers.%d.block_sparse_moe.experts.#.{w1,w3}.weight",
        .experts_out = "model.layers.%d.block_sparse_moe.experts.#.w2.weight",
        .route = {.score = SY_SCORE_SOFTMAX, .weighting = SY_WEIGHT_NORMED},
    };
    if (sy_moe_open(c, "num_local_experts", "num_experts_per_tok", "intermediate_size", &m->moe)) return c->st;
    if (sy_fn_open(c, "hidden_act", "silu", &m->moe.moe.glu.fn)) return c->st;
    m->linear_mix = open_mix(c, "linear_attn_alpha_factor", "linear_attn_beta_factor");
    m->full_mix = open_mix(c, "full_attn_alpha_factor", "full_attn_beta_factor");
    m->mlp_mix = open_mix(c, "mlp_alpha_factor", "mlp_beta_factor");
    if (open_layers(a, c, m)) return c->st;
    return sy_rope_open(a, c, m->d.d_head, &m->rope);
}

/* Rows of qkv_proj lie head by head. */
static sy_val lightning(struct sy_graph *g, const struct minimax *m, int l, sy_val x)
{
    const struct sy_decoder *d = &m->d;
    int32_t all = d->n_head * d->d_head;
    sy_val w = sy_weight_regrouped(g, SY_BY_OUT, "model.layers.%d.self_attn.qkv_proj.weight", l, 3 * (int64_t)all,
                                   d->d_model, (struct sy_regroup){d->n_head, {d->d_head, d->d_head, d->d_head}});
    sy_val qkv = sy_act(g, sy_linear(g, x, w, SY_NONE), SY_SILU);
    sy_val q = sy_part(g, qkv, 0, all), k = sy_part(g, qkv, all, 2 * all), v = sy_part(g, qkv, 2 * all, 3 * all);
    sy_val s = sy_state(g, (struct sy_state_spec){.kind = SY_SLOTS, .layer = l, .elems = (int64_t)all * d->d_head});
    sy_val y = sy_scan(g, q, k, v, sy_const(g, m->decay + l * d->n_head, d->n_head), SY_NONE, s,
                       (struct sy_scan_dim){d->n_head, d->n_head, d->d_head, d->d_head, false});
    y = sy_norm(g, y, sy_norm_weight(g, "model.layers.%d.self_attn.norm.weight", l, all, false), d->eps);
    sy_val wg = sy_weight(g, SY_BY_OUT, "model.layers.%d.self_attn.output_gate.weight", l, all, d->d_model);
    y = sy_glu(g, sy_linear(g, x, wg, SY_NONE), y, SY_SIGMOID);
    sy_val wo = sy_weight(g, SY_BY_IN, "model.layers.%d.self_attn.out_proj.weight", l, d->d_model, all);
    return sy_linear(g, y, wo, SY_NONE);
}

static sy_val mixed(struct sy_graph *g, struct mix m, sy_val n, sy_val f)
{
    return sy_add(g, sy_scale(g, n, m.alpha), sy_scale(g, f, m.beta));
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct minimax *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {.rope = &m->rope, .scale = 1 / sqrtf((float)d->d_head)};
    sy_val x = sy_build_embed(g, d);
    for (int l = 0; l < d->n_layer; l++) {
        sy_val n = sy_build_norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
        x = m->full[l] ? mixed(g, m->full_mix, n, sy_build_attention(g, d, l, n, &o))
                       : mixed(g, m->linear_mix, n, lightning(g, m, l, n));
        n = sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, x);
        x = mixed(g, m->mlp_mix, n, sy_build_moe(g, d, l, n, n, &m->moe));
    }
    return sy_build_head(g, d, x, false, 0);
}

static const char *const claims[] = {"MiniMaxForCausalLM", NULL};
const struct sy_arch sy_arch_minimax = {"minimax", claims, open, build};
