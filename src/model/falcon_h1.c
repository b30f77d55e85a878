/* Falcon-H1 (transformers: FalconH1ForCausalLM; arXiv:2507.22448): attention and a Mamba-2 mixer side by side in
 * every layer, with a multiplier on every path. */
#include <math.h>

#include "model/model.h"

struct falcon_h1 {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    struct sy_mamba2 mixer;
    float embed, head, key, attn_in, attn_out, ssm_out, gate, down;
};

static float factor(struct sy_jread *c, const char *key) { return (float)sy_jread_num_or(c, key, 1, -1e6, 1e6); }

static float factor_at(struct sy_jread *c, const char *key, size_t i, size_t n)
{
    const struct sy_json *list = sy_json_get(c->obj, key);
    if (!list || sy_json_is_null(list)) return 1;
    if (sy_json_len(list) != n || !sy_json_is_number(sy_json_at(list, i)))
        sy_jread_refuse(c, SY_EFORMAT, "'%s': expected %zu numbers, found %zu entries", key, n, sy_json_len(list));
    return (float)sy_json_number(sy_json_at(list, i), 1);
}

/* What in_proj gives is z, x, B, C and dt, each with a multiplier of its own; the one of its input joins them. */
static sy_status open_scale(struct sy_arena *a, struct sy_jread *c, struct sy_mamba2 *m)
{
    int32_t d = m->n_head * m->d_head, side = m->n_group * m->d_state, width[] = {d, d, side, side, m->n_head};
    float *scale = sy_arena_array(a, 2 * (size_t)d + 2 * (size_t)side + (size_t)m->n_head, sizeof *scale);
    if (!scale) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    m->in_scale = scale;
    for (size_t i = 0; i < SY_COUNT(width); i++) {
        float each = factor(c, "ssm_in_multiplier") * factor_at(c, "ssm_multipliers", i, SY_COUNT(width));
        for (int32_t k = 0; k < width[i]; k++) *scale++ = each;
    }
    return c->st;
}

static sy_status open_mixer(struct sy_arena *a, struct sy_jread *c, struct falcon_h1 *m)
{
    struct sy_mamba2 *x = &m->mixer;
    *x = (struct sy_mamba2){.prefix = "model.layers.%d.mamba.",
                            .d_model = m->d.d_model,
                            .n_head = (int32_t)sy_jread_int_or(c, "mamba_n_heads", 128, 1, 1 << 16),
                            .n_group = (int32_t)sy_jread_int_or(c, "mamba_n_groups", 1, 1, 1 << 16),
                            .d_state = (int32_t)sy_jread_int_or(c, "mamba_d_state", 256, 1, 8192),
                            .n_tap = (int32_t)sy_jread_int_or(c, "mamba_d_conv", 4, 2, 64),
                            .conv_bias = sy_jread_bool_or(c, "mamba_conv_bias", true),
                            .eps = m->d.eps};
    int64_t d = sy_jread_int_or(c, "mamba_d_ssm", 0, 0, 1 << 22);
    if (d == 0) d = sy_jread_int_or(c, "mamba_expand", 2, 1, 64) * m->d.d_model;
    x->n_norm_group = x->n_group;
    x->norm = SY_MAMBA_NO_NORM;
    if (sy_jread_bool_or(c, "mamba_rms_norm", false))
        x->norm = sy_jread_bool_or(c, "mamba_norm_before_gate", true) ? SY_MAMBA_NORM_FIRST : SY_MAMBA_GATE_FIRST;
    x->d_head = (int32_t)(d / x->n_head);
    if (d % x->n_head || x->n_head % x->n_group)
        return sy_jread_refuse(c, SY_EFORMAT, "'mamba_d_ssm' %d of %d heads in %d groups: expected multiples", (int)d,
                               x->n_head, x->n_group);
    static const char *const biases[] = {"attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias"};
    for (size_t i = 0; i < SY_COUNT(biases); i++)
        if (sy_jread_bool_or(c, biases[i], false))
            return sy_jread_refuse(c, SY_ENOSUP, "'%s' is not supported", biases[i]);
    return c->st ? c->st : open_scale(a, c, x);
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct falcon_h1 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    enum sy_fn fn;
    if (sy_decoder_open(c, &m->d, false, info) || sy_fn_open(c, "hidden_act", "silu", &fn)) return c->st;
    if (fn != SY_SILU) return sy_jread_refuse(c, SY_ENOSUP, "'hidden_act': only silu is supported");
    m->embed = factor(c, "embedding_multiplier");
    m->head = factor(c, "lm_head_multiplier");
    m->key = factor(c, "key_multiplier");
    m->attn_in = factor(c, "attention_in_multiplier");
    m->attn_out = factor(c, "attention_out_multiplier");
    m->ssm_out = factor(c, "ssm_out_multiplier");
    m->gate = factor_at(c, "mlp_multipliers", 0, 2);
    m->down = factor_at(c, "mlp_multipliers", 1, 2);
    if (open_mixer(a, c, m) || sy_mamba2_limits(c)) return c->st;
    return sy_rope_open(a, c, m->d.d_head, &m->rope);
}

/* Multipliers in front of a projection are those behind it: the projections are linear. */
static sy_val attention(struct sy_graph *g, const struct falcon_h1 *m, int l, sy_val x)
{
    const struct sy_decoder *d = &m->d;
    int32_t q_dim = d->n_head * d->d_head, kv_dim = d->n_kv * d->d_head, all = q_dim + 2 * kv_dim;
    sy_val w = sy_weight(g, SY_BY_OUT, "model.layers.%d.self_attn.{q,k,v}_proj.weight", l, all, d->d_model);
    sy_val qkv = sy_scale(g, sy_linear(g, x, w, SY_NONE), m->attn_in);
    sy_val q = sy_rope(g, sy_part(g, qkv, 0, q_dim), m->rope);
    sy_val k = sy_rope(g, sy_scale(g, sy_part(g, qkv, q_dim, q_dim + kv_dim), m->key), m->rope);
    sy_val kv = sy_state(g, (struct sy_state_spec){.kind = SY_BLOCKS, .layer = l, .elems = 2 * (int64_t)kv_dim});
    sy_val a = sy_attend(g, q, k, sy_part(g, qkv, q_dim + kv_dim, all), kv,
                         (struct sy_attn_dim){.n_head = d->n_head,
                                              .n_kv = d->n_kv,
                                              .d_key = d->d_head,
                                              .d_val = d->d_head,
                                              .scale = 1 / sqrtf((float)d->d_head)});
    sy_val wo = sy_weight(g, SY_BY_IN, "model.layers.%d.self_attn.o_proj.weight", l, d->d_model, q_dim);
    return sy_linear(g, sy_scale(g, a, m->attn_out), wo, SY_NONE);
}

static sy_val feed_forward(struct sy_graph *g, const struct falcon_h1 *m, int l, sy_val x)
{
    int32_t ff = m->d.d_ff;
    sy_val w = sy_weight(g, SY_BY_OUT, "model.layers.%d.feed_forward.{gate,up}_proj.weight", l, 2 * (int64_t)ff,
                         m->d.d_model);
    sy_val both = sy_linear(g, x, w, SY_NONE);
    sy_val gate = sy_scale(g, sy_part(g, both, 0, ff), m->gate);
    sy_val up = sy_scale(g, sy_part(g, both, ff, 2 * ff), m->down);
    sy_val down = sy_weight(g, SY_BY_IN, "model.layers.%d.feed_forward.down_proj.weight", l, m->d.d_model, ff);
    return sy_linear(g, sy_glu(g, gate, up, SY_SILU), down, SY_NONE);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct falcon_h1 *m = hp;
    const struct sy_decoder *d = &m->d;
    sy_val x = sy_scale(g, sy_build_embed(g, d), m->embed);
    for (int l = 0; l < d->n_layer; l++) {
        sy_val n =
            sy_norm(g, x, sy_norm_weight(g, "model.layers.%d.input_layernorm.weight", l, d->d_model, false), d->eps);
        x = sy_add(g, sy_scale(g, sy_build_mamba2(g, &m->mixer, l, n), m->ssm_out), x);
        x = sy_add(g, attention(g, m, l, n), x);
        n = sy_norm(g, x, sy_norm_weight(g, "model.layers.%d.pre_ff_layernorm.weight", l, d->d_model, false), d->eps);
        x = sy_add(g, feed_forward(g, m, l, n), x);
    }
    x = sy_norm(g, sy_rows(g, x), sy_norm_weight(g, "model.final_layernorm.weight", -1, d->d_model, false), d->eps);
    const char *head = d->tied ? "model.embed_tokens.weight" : "lm_head.weight";
    sy_val logits = sy_linear(g, x, sy_weight(g, SY_BY_OUT, head, -1, d->n_vocab, d->d_model), SY_NONE);
    return sy_sample(g, sy_scale(g, logits, m->head));
}

static const char *const claims[] = {"FalconH1ForCausalLM", NULL};
const struct sy_arch sy_arch_falcon_h1 = {"falcon_h1", claims, open, build};
