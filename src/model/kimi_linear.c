/* Kimi Linear (transformers: KimiLinearForCausalLM; arXiv:2510.26692): Kimi Delta Attention, a delta rule that
 * forgets by key dimension, and latent attention without rope in between; experts as in DeepSeek-V3. */
#include <math.h>
#include <string.h>

#include "model/model.h"

struct kimi_linear {
    struct sy_decoder d;
    struct sy_mla mla;
    struct sy_moe_opt moe;
    int32_t n_dense;               /* first layers without experts */
    bool *full;                    /* [n_layer] latent attention */
    int32_t n_head, d_head, n_tap; /* of delta attention */
};

static sy_status open_delta(struct sy_arena *a, struct sy_jread *c, struct kimi_linear *m)
{
    struct sy_jread l = *c;
    l.obj = sy_json_get(c->obj, "linear_attn_config");
    const struct sy_json *full = sy_json_get(l.obj, "full_attn_layers");
    m->n_head = (int32_t)sy_jread_int(&l, "num_heads", 1, 4096);
    m->d_head = (int32_t)sy_jread_int(&l, "head_dim", 1, 8192);
    m->n_tap = (int32_t)sy_jread_int_or(&l, "short_conv_kernel_size", 4, 2, 64);
    m->full = sy_arena_array(a, (size_t)m->d.n_layer, sizeof *m->full);
    if (!m->full) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (l.st) return c->st = l.st;
    for (size_t i = 0; i < sy_json_len(full); i++) { /* counted from 1 */
        int64_t at = sy_json_int(sy_json_at(full, i), 0);
        if (at < 1 || at > m->d.n_layer)
            return sy_jread_refuse(c, SY_EFORMAT, "'full_attn_layers'[%zu]: expected 1 to %d, found %lld", i,
                                   m->d.n_layer, (long long)at);
        m->full[at - 1] = true;
    }
    return c->st;
}

static sy_status open_moe(struct sy_jread *c, struct kimi_linear *m)
{
    m->moe = (struct sy_moe_opt){
        .router = "model.layers.%d.block_sparse_moe.gate.weight",
        .choice_bias = "model.layers.%d.block_sparse_moe.gate.e_score_correction_bias",
        .experts_in = "model.layers.%d.block_sparse_moe.experts.#.{w1,w3}.weight",
        .experts_out = "model.layers.%d.block_sparse_moe.experts.#.w2.weight",
        .shared = "model.layers.%d.block_sparse_moe.shared_experts",
        .route = {.score = SY_SCORE_SIGMOID, .eps = 1e-20f},
    };
    if (sy_moe_open(c, "num_experts", "num_experts_per_token", "moe_intermediate_size", &m->moe)) return c->st;
    if (sy_moe_open_sigmoid(c, "num_expert_group", "moe_renormalize", &m->moe)) return c->st;
    if (strcmp(sy_jread_text_or(c, "moe_router_activation_func", "sigmoid"), "sigmoid"))
        return sy_jread_refuse(c, SY_ENOSUP, "'moe_router_activation_func': only sigmoid is supported");
    if (sy_jread_int_or(c, "moe_layer_freq", 1, 1, 1 << 20) != 1)
        return sy_jread_refuse(c, SY_ENOSUP, "'moe_layer_freq': only 1 is supported");
    m->n_dense = (int32_t)sy_jread_int_or(c, "first_k_dense_replace", 0, 0, 1 << 20);
    m->moe.d_shared = (int32_t)sy_jread_int_or(c, "num_shared_experts", 0, 0, 1024) * m->moe.moe.d_ff;
    return sy_fn_open(c, "hidden_act", "silu", &m->moe.moe.glu.fn);
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct kimi_linear *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info) || sy_mla_open(a, c, &m->mla)) return c->st;
    m->mla.no_rope = sy_jread_bool_or(c, "mla_use_nope", true);
    if (open_delta(a, c, m)) return c->st;
    return open_moe(c, m);
}

/* x / sqrt(sum of squares + 1e-6), times c, per head. */
static sy_val unit(struct sy_graph *g, sy_val x, int32_t d, float c)
{
    return sy_scale(g, sy_norm_unit(g, x, d, 1e-6f / (float)d), c / sqrtf((float)d));
}

/* A low-rank product: columns [at, at + rank) of x by a matrix of `all` rows. */
static sy_val raise(struct sy_graph *g, int l, sy_val x, int32_t at, const char *name, int32_t all, int32_t rank)
{
    return sy_linear(g, sy_part(g, x, at, at + rank), sy_weight(g, SY_BY_OUT, name, l, all, rank), SY_NONE);
}

#define ATTN "model.layers.%d.self_attn."

static sy_val delta_attention(struct sy_graph *g, const struct kimi_linear *m, int l, sy_val x)
{
    int32_t d = m->d_head, all = m->n_head * d, f = 3 * all, o = f + d, b = o + d, rows = b + m->n_head;
    const char *name = ATTN "{q_proj,k_proj,v_proj,f_a_proj,g_a_proj,b_proj}.weight";
    sy_val in = sy_linear(g, x, sy_weight(g, SY_BY_OUT, name, l, rows, m->d.d_model), SY_NONE);
    sy_val window =
        sy_state(g, (struct sy_state_spec){.kind = SY_SLOTS, .layer = l, .elems = (int64_t)(m->n_tap - 1) * f});
    sy_val taps = sy_vector(g, ATTN "{q,k,v}_conv1d.weight", l, (int64_t)f * m->n_tap, SY_AS_IS, 1);
    sy_val qkv = sy_act(g, sy_conv(g, sy_part(g, in, 0, f), taps, SY_NONE, window), SY_SILU);
    sy_val q = unit(g, sy_part(g, qkv, 0, all), d, 1 / sqrtf((float)d));
    sy_val k = unit(g, sy_part(g, qkv, all, 2 * all), d, 1), v = sy_part(g, qkv, 2 * all, f);
    sy_val decay = raise(g, l, in, f, ATTN "f_b_proj.weight", all, d);
    decay = sy_act(g, sy_add(g, decay, sy_vector(g, ATTN "dt_bias", l, all, SY_AS_IS, 1)), SY_SOFTPLUS);
    decay = sy_mul(g, decay, sy_vector(g, ATTN "A_log", l, all, SY_NEG_EXP, d));
    sy_val s = sy_state(g, (struct sy_state_spec){.kind = SY_SLOTS, .layer = l, .elems = (int64_t)all * d});
    sy_val y = sy_scan(g, q, k, v, decay, sy_act(g, sy_part(g, in, b, rows), SY_SIGMOID), s,
                       (struct sy_scan_dim){m->n_head, m->n_head, d, d, true});
    y = sy_norm(g, y, sy_norm_weight(g, ATTN "o_norm.weight", l, d, false), m->d.eps);
    y = sy_glu(g, raise(g, l, in, o, ATTN "g_b_proj.weight", all, d), y, SY_SIGMOID);
    return sy_linear(g, y, sy_weight(g, SY_BY_IN, ATTN "o_proj.weight", l, m->d.d_model, all), SY_NONE);
}

static sy_val feed_forward(struct sy_graph *g, const struct kimi_linear *m, int l, sy_val x)
{
    if (l < m->n_dense) return sy_build_mlp(g, &m->d, l, x, m->moe.moe.glu.fn, false);
    return sy_build_moe(g, &m->d, l, x, x, &m->moe);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct kimi_linear *m = hp;
    const struct sy_decoder *d = &m->d;
    sy_val x = sy_build_embed(g, d), none = SY_NONE;
    for (int l = 0; l < d->n_layer; l++) {
        sy_val n = sy_build_norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
        x = sy_add(g, m->full[l] ? sy_build_mla(g, d, l, n, &m->mla, &none, false) : delta_attention(g, m, l, n), x);
        n = sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, x);
        x = sy_add(g, feed_forward(g, m, l, n), x);
    }
    return sy_build_head(g, d, x, false, 0);
}

static const char *const claims[] = {"KimiLinearForCausalLM", NULL};
const struct sy_arch sy_arch_kimi_linear = {"kimi_linear", claims, open, build};
