/* Granite 4 hybrid (transformers: GraniteMoeHybridForCausalLM): Mamba-2 layers, some of attention, then experts
 * beside an MLP that every token takes; Granite's multipliers. */
#include <string.h>

#include "model/model.h"

struct granite_hybrid {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    struct sy_mamba2 mixer;
    struct sy_moe_opt moe; /* moe.moe.n_expert 0: none */
    enum sy_fn fn;
    bool *mamba; /* [n_layer] */
    bool roped;
    int32_t d_shared;
    float embedding, attention, residual, logits; /* multipliers; logits are divided */
};

static sy_status open_layers(struct sy_arena *a, struct sy_jread *c, struct granite_hybrid *m)
{
    const struct sy_json *types = sy_json_get(c->obj, "layer_types");
    m->mamba = sy_arena_array(a, (size_t)m->d.n_layer, sizeof *m->mamba);
    if (!m->mamba) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_json_len(types) != (size_t)m->d.n_layer)
        return sy_jread_refuse(c, SY_EFORMAT, "'layer_types': expected %d entries, found %zu", m->d.n_layer,
                               sy_json_len(types));
    for (int l = 0; l < m->d.n_layer; l++) {
        const char *type = sy_json_text(sy_json_at(types, (size_t)l));
        m->mamba[l] = type && (!strcmp(type, "mamba") || !strcmp(type, "linear_attention"));
        bool full = type && (!strcmp(type, "attention") || !strcmp(type, "full_attention"));
        if (!m->mamba[l] && !full)
            return sy_jread_refuse(c, SY_ENOSUP, "'layer_types'[%d]: '%s' is not supported", l, type ? type : "");
    }
    return c->st;
}

static sy_status open_mixer(struct sy_jread *c, struct granite_hybrid *m)
{
    int32_t d = (int32_t)sy_jread_int_or(c, "mamba_expand", 2, 1, 64) * m->d.d_model;
    struct sy_mamba2 *x = &m->mixer;
    *x = (struct sy_mamba2){.prefix = "model.layers.%d.mamba.",
                            .d_model = m->d.d_model,
                            .n_head = (int32_t)sy_jread_int_or(c, "mamba_n_heads", 128, 1, 1 << 16),
                            .n_group = (int32_t)sy_jread_int_or(c, "mamba_n_groups", 1, 1, 1 << 16),
                            .d_state = (int32_t)sy_jread_int_or(c, "mamba_d_state", 256, 1, 8192),
                            .n_tap = (int32_t)sy_jread_int_or(c, "mamba_d_conv", 4, 2, 64),
                            .conv_bias = sy_jread_bool_or(c, "mamba_conv_bias", true),
                            .proj_bias = sy_jread_bool_or(c, "mamba_proj_bias", false),
                            .norm = SY_MAMBA_GATE_FIRST,
                            .eps = m->d.eps};
    x->n_norm_group = x->n_group;
    x->d_head = d / x->n_head;
    if (d % x->n_head || x->n_head % x->n_group)
        return sy_jread_refuse(c, SY_EFORMAT,
                               "%d columns of 'mamba_n_heads' %d in 'mamba_n_groups' %d: expected "
                               "multiples",
                               d, x->n_head, x->n_group);
    return sy_mamba2_limits(c);
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct granite_hybrid *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info) || sy_fn_open(c, "hidden_act", "silu", &m->fn)) return c->st;
    m->embedding = (float)sy_jread_num_or(c, "embedding_multiplier", 1, -1e6, 1e6);
    m->attention = (float)sy_jread_num_or(c, "attention_multiplier", 1, -1e6, 1e6);
    m->residual = (float)sy_jread_num_or(c, "residual_multiplier", 1, -1e6, 1e6);
    m->logits = (float)sy_jread_num_or(c, "logits_scaling", 1, 1e-6, 1e6);
    m->d_shared = (int32_t)sy_jread_int(c, "shared_intermediate_size", 1, 1 << 20);
    m->moe = (struct sy_moe_opt){
        .router = "model.layers.%d.block_sparse_moe.router.layer.weight",
        .experts_in = "model.layers.%d.block_sparse_moe.experts.#.{gate,up}_proj.weight",
        .experts_out = "model.layers.%d.block_sparse_moe.experts.#.down_proj.weight",
        .route = {.score = SY_SCORE_LOGIT, .weighting = SY_WEIGHT_SOFTMAX},
    };
    if (sy_jread_int_or(c, "num_local_experts", 0, 0, SY_EXPERTS_MAX) > 0 &&
        sy_moe_open(c, "num_local_experts", "num_experts_per_tok", "intermediate_size", &m->moe))
        return c->st;
    m->moe.moe.glu.fn = m->fn;
    if (sy_jread_bool_or(c, "attention_bias", false))
        return sy_jread_refuse(c, SY_ENOSUP, "'attention_bias' is not supported");
    m->roped = !strcmp(sy_jread_text_or(c, "position_embedding_type", "nope"), "rope");
    if (open_layers(a, c, m) || open_mixer(c, m)) return c->st;
    return sy_rope_open(a, c, m->d.d_head, &m->rope);
}

static sy_val shared_mlp(struct sy_graph *g, const struct granite_hybrid *m, int l, sy_val x)
{
    int32_t ff = m->d_shared;
    sy_val w =
        sy_weight(g, SY_BY_OUT, "model.layers.%d.shared_mlp.{gate,up}_proj.weight", l, 2 * (int64_t)ff, m->d.d_model);
    sy_val both = sy_linear(g, x, w, SY_NONE);
    sy_val h = sy_glu(g, sy_part(g, both, 0, ff), sy_part(g, both, ff, 2 * ff), m->fn);
    w = sy_weight(g, SY_BY_IN, "model.layers.%d.shared_mlp.output_linear.weight", l, m->d.d_model, ff);
    return sy_linear(g, h, w, SY_NONE);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct granite_hybrid *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {.rope = m->roped ? &m->rope : NULL, .scale = m->attention};
    sy_val x = sy_scale(g, sy_build_embed(g, d), m->embedding);
    for (int l = 0; l < d->n_layer; l++) {
        sy_val n = sy_build_norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
        sy_val y = m->mamba[l] ? sy_build_mamba2(g, &m->mixer, l, n) : sy_build_attention(g, d, l, n, &o);
        x = sy_add(g, sy_scale(g, y, m->residual), x);
        n = sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, x);
        y = shared_mlp(g, m, l, n);
        if (m->moe.moe.n_expert) y = sy_add(g, y, sy_build_moe(g, d, l, n, n, &m->moe));
        x = sy_add(g, sy_scale(g, y, m->residual), x);
    }
    x = sy_build_norm(g, d, "model.norm.weight", -1, sy_rows(g, x));
    return sy_sample(g, sy_scale(g, sy_build_logits(g, d, x), 1 / m->logits));
}

static const char *const claims[] = {"GraniteMoeHybridForCausalLM", NULL};
const struct sy_arch sy_arch_granitemoehybrid = {"granitemoehybrid", claims, open, build};
