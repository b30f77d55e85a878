/* LFM2 (transformers: Lfm2ForCausalLM, Lfm2MoeForCausalLM): most layers are a gated short convolution, some are
 * attention. */
#include <math.h>
#include <string.h>

#include "model/model.h"

struct lfm2 {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    bool *full; /* [n_layer] attention */
    struct sy_moe_opt moe;
    int32_t n_dense; /* first layers without experts */
    int32_t n_tap;
    bool bias; /* of the convolution and its projections */
};

static void open_layers(struct sy_jread *c, struct lfm2 *m)
{
    const struct sy_json *types = sy_json_get(c->obj, "layer_types"), *full = sy_json_get(c->obj, "full_attn_idxs");
    if (sy_json_is_array(types) && sy_json_len(types) != (size_t)m->d.n_layer)
        sy_jread_refuse(c, SY_EFORMAT, "'layer_types': expected %d entries, found %zu", m->d.n_layer,
                        sy_json_len(types));
    for (int l = 0; l < m->d.n_layer; l++) {
        const char *type = sy_json_text(sy_json_at(types, (size_t)l));
        m->full[l] = !sy_json_is_array(types) && !sy_json_is_array(full);
        for (size_t i = 0; !sy_json_is_array(types) && i < sy_json_len(full); i++)
            m->full[l] |= sy_json_int(sy_json_at(full, i), -1) == l;
        if (!sy_json_is_array(types)) continue;
        m->full[l] = type && !strcmp(type, "full_attention");
        if (!type || (!m->full[l] && strcmp(type, "conv") != 0))
            sy_jread_refuse(c, SY_ENOSUP, "'layer_types'[%d]: '%s' is not supported", l, type ? type : "");
    }
}

static sy_status open_moe(struct sy_jread *c, struct lfm2 *m)
{
    m->n_dense = m->d.n_layer;
    if (!sy_jread_has(c, "num_experts")) return c->st;
    m->n_dense = (int32_t)sy_jread_int_or(c, "num_dense_layers", 0, 0, m->d.n_layer);
    m->moe = (struct sy_moe_opt){
        .router = "model.layers.%d.feed_forward.gate.weight",
        .experts_in = "model.layers.%d.feed_forward.experts.#.{w1,w3}.weight",
        .experts_out = "model.layers.%d.feed_forward.experts.#.w2.weight",
        .route = {.score = SY_SCORE_SIGMOID, .weighting = SY_WEIGHT_SCORE, .eps = 1e-6f},
    };
    if (sy_moe_open(c, "num_experts", "num_experts_per_tok", "moe_intermediate_size", &m->moe)) return c->st;
    if (sy_jread_bool_or(c, "use_expert_bias", true)) m->moe.choice_bias = "model.layers.%d.feed_forward.expert_bias";
    if (sy_jread_bool_or(c, "norm_topk_prob", true)) m->moe.route.weighting = SY_WEIGHT_NORMED;
    m->moe.route.scale = (float)sy_jread_num_or(c, "routed_scaling_factor", 1, -1e6, 1e6);
    m->moe.moe.glu.fn = SY_SILU;
    return c->st;
}

/* Two thirds of the nominal width, times a factor, rounded up. */
static int32_t ff_width(struct sy_jread *c)
{
    int64_t ff = sy_jread_int(c, sy_jread_has(c, "block_ff_dim") ? "block_ff_dim" : "intermediate_size", 1, 1 << 22);
    if (!sy_jread_bool_or(c, "block_auto_adjust_ff_dim", !sy_jread_has(c, "num_experts"))) return (int32_t)ff;
    ff = (int64_t)(2.0 * (double)ff / 3);
    if (!sy_jread_has(c, "block_ffn_dim_multiplier")) return (int32_t)ff;
    int64_t step = sy_jread_int_or(c, "block_multiple_of", 256, 1, 1 << 20);
    ff = (int64_t)(sy_jread_num(c, "block_ffn_dim_multiplier", 1e-3, 1e3) * (double)ff);
    return (int32_t)((ff + step - 1) / step * step);
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct lfm2 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    struct sy_decoder *d = &m->d;
    *d = (struct sy_decoder){.n_layer = (int32_t)sy_jread_int(c, "num_hidden_layers", 1, 1024),
                             .d_model = (int32_t)sy_jread_int(c, "hidden_size", 1, 1 << 20),
                             .n_head = (int32_t)sy_jread_int(c, "num_attention_heads", 1, 4096),
                             .n_vocab = (int32_t)sy_jread_int(c, "vocab_size", 1, 1 << 24),
                             .n_ctx = (int32_t)sy_jread_int_or(c, "max_position_embeddings", 128000, 1, 1 << 30),
                             .eps = (float)sy_jread_num_or(c, "norm_eps", 1e-5, 0, 1),
                             .d_ff = ff_width(c)};
    d->n_kv = (int32_t)sy_jread_int_or(c, "num_key_value_heads", d->n_head, 1, 4096);
    d->d_head = (int32_t)sy_jread_int_or(c, "head_dim", d->d_model / d->n_head, 2, 8192);
    d->tied = sy_jread_bool_or(c, "tie_embedding", sy_jread_bool_or(c, "tie_word_embeddings", true));
    m->n_tap = (int32_t)sy_jread_int_or(c, "conv_L_cache", 3, 2, 64);
    m->bias = sy_jread_bool_or(c, "conv_bias", false);
    m->full = sy_arena_array(a, (size_t)d->n_layer, sizeof *m->full);
    if (!m->full) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (d->n_head % d->n_kv)
        sy_jread_refuse(c, SY_EFORMAT, "'num_attention_heads' %d is not a multiple of 'num_key_value_heads' %d",
                        d->n_head, d->n_kv);
    open_layers(c, m);
    if (open_moe(c, m)) return c->st;
    *info = (struct sy_info){.n_vocab = d->n_vocab, .n_ctx = d->n_ctx, .n_layer = d->n_layer, .d_model = d->d_model};
    return c->st ? c->st : sy_rope_open(a, c, d->d_head, &m->rope);
}

static sy_val norm(struct sy_graph *g, const struct lfm2 *m, const char *name, int l, int32_t d, sy_val x)
{
    return sy_norm(g, x, sy_norm_weight(g, name, l, d, false), m->d.eps);
}

static sy_val linear(struct sy_graph *g, sy_val x, enum sy_split split, const char *name, const char *bias, int l,
                     int64_t rows, int64_t cols)
{
    return sy_linear(g, x, sy_weight(g, split, name, l, rows, cols),
                     bias ? sy_vector(g, bias, l, rows, SY_AS_IS, 1) : SY_NONE);
}

/* out(C * conv(B * x)) */
static sy_val short_conv(struct sy_graph *g, const struct lfm2 *m, int l, sy_val x)
{
    int32_t d = m->d.d_model;
    sy_val all = linear(g, x, SY_BY_OUT, "model.layers.%d.conv.in_proj.weight",
                        m->bias ? "model.layers.%d.conv.in_proj.bias" : NULL, l, 3 * (int64_t)d, d);
    sy_val b = sy_part(g, all, 0, d), c = sy_part(g, all, d, 2 * d), u = sy_mul(g, sy_part(g, all, 2 * d, 3 * d), b);
    sy_val slot =
        sy_state(g, (struct sy_state_spec){.kind = SY_SLOTS, .layer = l, .elems = (int64_t)(m->n_tap - 1) * d});
    sy_val w = sy_vector(g, "model.layers.%d.conv.conv.weight", l, (int64_t)d * m->n_tap, SY_AS_IS, 1);
    sy_val bias = m->bias ? sy_vector(g, "model.layers.%d.conv.conv.bias", l, d, SY_AS_IS, 1) : SY_NONE;
    sy_val y = sy_mul(g, sy_conv(g, u, w, bias, slot), c);
    return linear(g, y, SY_BY_IN, "model.layers.%d.conv.out_proj.weight",
                  m->bias ? "model.layers.%d.conv.out_proj.bias" : NULL, l, d, d);
}

static sy_val attention(struct sy_graph *g, const struct lfm2 *m, int l, sy_val x)
{
    const struct sy_decoder *d = &m->d;
    int32_t q_dim = d->n_head * d->d_head, kv_dim = d->n_kv * d->d_head, all = q_dim + 2 * kv_dim;
    sy_val qkv = linear(g, x, SY_BY_OUT, "model.layers.%d.self_attn.{q,k,v}_proj.weight", NULL, l, all, d->d_model);
    sy_val q = norm(g, m, "model.layers.%d.self_attn.q_layernorm.weight", l, d->d_head, sy_part(g, qkv, 0, q_dim));
    sy_val k = norm(g, m, "model.layers.%d.self_attn.k_layernorm.weight", l, d->d_head,
                    sy_part(g, qkv, q_dim, q_dim + kv_dim));
    sy_val kv = sy_state(g, (struct sy_state_spec){.kind = SY_BLOCKS, .layer = l, .elems = 2 * (int64_t)kv_dim});
    sy_val a = sy_attend(g, sy_rope(g, q, m->rope), sy_rope(g, k, m->rope), sy_part(g, qkv, q_dim + kv_dim, all), kv,
                         (struct sy_attn_dim){.n_head = d->n_head,
                                              .n_kv = d->n_kv,
                                              .d_key = d->d_head,
                                              .d_val = d->d_head,
                                              .scale = 1 / sqrtf((float)d->d_head)});
    return linear(g, a, SY_BY_IN, "model.layers.%d.self_attn.out_proj.weight", NULL, l, d->d_model, q_dim);
}

static sy_val feed_forward(struct sy_graph *g, const struct lfm2 *m, int l, sy_val x)
{
    const struct sy_decoder *d = &m->d;
    if (l >= m->n_dense) return sy_build_moe(g, d, l, x, x, &m->moe);
    sy_val both = linear(g, x, SY_BY_OUT, "model.layers.%d.feed_forward.{w1,w3}.weight", NULL, l,
                         2 * (int64_t)d->d_ff, d->d_model);
    sy_val h = sy_glu(g, sy_part(g, both, 0, d->d_ff), sy_part(g, both, d->d_ff, 2 * d->d_ff), SY_SILU);
    return linear(g, h, SY_BY_IN, "model.layers.%d.feed_forward.w2.weight", NULL, l, d->d_model, d->d_ff);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct lfm2 *m = hp;
    const struct sy_decoder *d = &m->d;
    sy_val x = sy_build_embed(g, d);
    for (int l = 0; l < d->n_layer; l++) {
        sy_val n = norm(g, m, "model.layers.%d.operator_norm.weight", l, d->d_model, x);
        x = sy_add(g, m->full[l] ? attention(g, m, l, n) : short_conv(g, m, l, n), x);
        x = sy_add(g, feed_forward(g, m, l, norm(g, m, "model.layers.%d.ffn_norm.weight", l, d->d_model, x)), x);
    }
    x = norm(g, m, "model.embedding_norm.weight", -1, d->d_model, sy_rows(g, x));
    const char *head = d->tied ? "model.embed_tokens.weight" : "lm_head.weight";
    return sy_sample(g, linear(g, x, SY_BY_OUT, head, NULL, -1, d->n_vocab, d->d_model));
}

static const char *const claims[] = {"Lfm2ForCausalLM", "Lfm2MoeForCausalLM", NULL};
const struct sy_arch sy_arch_lfm2 = {"lfm2", claims, open, build};
