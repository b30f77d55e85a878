/* Qwen3-Next and Qwen3.5, text (transformers: Qwen3NextForCausalLM, Qwen3_5ForConditionalGeneration and their
 * like): three layers of
 * Gated DeltaNet (arXiv:2412.06464) to one of gated attention. They differ in how tensors are cut. */
#include <math.h>
#include <string.h>

#include "model/model.h"

struct qwen3_next {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    enum sy_fn fn;
    struct sy_moe_opt moe;
    bool *sparse;                              /* [n_layer] experts; NULL: no layer has them */
    bool *full;                                /* [n_layer] attention */
    bool fused;                                /* b and a of a key head lie side by side in one tensor */
    bool fused_qkvz;                           /* so do q, k, v, z */
    int32_t n_key, n_val, d_key, d_val, n_tap; /* of DeltaNet layers */
};

static void open_layers(struct sy_jread *c, struct qwen3_next *m)
{
    const struct sy_json *types = sy_json_get(c->obj, "layer_types");
    int64_t every = sy_jread_int_or(c, "full_attention_interval", 4, 1, 1024);
    if (sy_json_is_array(types) && sy_json_len(types) != (size_t)m->d.n_layer)
        sy_jread_refuse(c, SY_EFORMAT, "'layer_types': expected %d entries, found %zu", m->d.n_layer,
                        sy_json_len(types));
    for (int l = 0; l < m->d.n_layer; l++) {
        const char *type = sy_json_text(sy_json_at(types, (size_t)l));
        m->full[l] = type ? !strcmp(type, "full_attention") : (l + 1) % every == 0;
        if (type && !m->full[l] && strcmp(type, "linear_attention") != 0)
            sy_jread_refuse(c, SY_ENOSUP, "'layer_types'[%d]: '%s' is not supported", l, type);
    }
}

static sy_status open_moe(struct sy_arena *a, struct sy_jread *c, struct qwen3_next *m)
{
    if (sy_jread_int_or(c, "num_experts", 0, 0, SY_EXPERTS_MAX) == 0) return c->st;
    if (sy_moe_open_qwen(c, true, true, &m->moe)) return c->st;
    m->moe.moe.glu.fn = m->fn;
    return sy_sparse_layers_open(a, c, m->d.n_layer, &m->sparse);
}

/* Products of x: *mix [q | k | v], *z, *b and *a of all heads. */
static void project(struct sy_graph *g, const struct qwen3_next *m, int l, sy_val x, sy_val *mix, sy_val *z,
                    sy_val *b, sy_val *a)
{
    int32_t key = m->n_key * m->d_key, val = m->n_val * m->d_val, r = m->n_val / m->n_key, d = m->d.d_model;
    sy_val qkvz, ba;
    if (m->fused_qkvz)
        qkvz = sy_weight_regrouped(g, SY_BY_OUT, "model.layers.%d.linear_attn.in_proj_qkvz.weight", l,
                                   2 * (int64_t)(key + val), d,
                                   (struct sy_regroup){m->n_key, {m->d_key, m->d_key, r * m->d_val, r * m->d_val}});
    else
        qkvz = sy_weight(g, SY_BY_OUT, "model.layers.%d.linear_attn.in_proj_{qkv,z}.weight", l,
                         2 * (int64_t)(key + val), d);
    if (m->fused)
        ba = sy_weight_regrouped(g, SY_BY_OUT, "model.layers.%d.linear_attn.in_proj_ba.weight", l,
                                 2 * (int64_t)m->n_val, d, (struct sy_regroup){m->n_key, {r, r}});
    else
        ba = sy_weight(g, SY_BY_OUT, "model.layers.%d.linear_attn.in_proj_{b,a}.weight", l, 2 * (int64_t)m->n_val, d);
    qkvz = sy_linear(g, x, qkvz, SY_NONE);
    ba = sy_linear(g, x, ba, SY_NONE);
    *mix = sy_part(g, qkvz, 0, 2 * key + val);
    *z = sy_part(g, qkvz, 2 * key + val, 2 * (key + val));
    *b = sy_part(g, ba, 0, m->n_val);
    *a = sy_part(g, ba, m->n_val, 2 * m->n_val);
}

/* x / sqrt(sum of squares + 1e-6), times c, per head. */
static sy_val unit(struct sy_graph *g, sy_val x, int32_t d, float c)
{
    return sy_scale(g, sy_norm_unit(g, x, d, 1e-6f / (float)d), c / sqrtf((float)d));
}

static sy_val delta_net(struct sy_graph *g, const struct qwen3_next *m, int l, sy_val x)
{
    int32_t key = m->n_key * m->d_key, val = m->n_val * m->d_val, mixed = 2 * key + val;
    sy_val mix, z, b, a;
    project(g, m, l, x, &mix, &z, &b, &a);
    sy_val window =
        sy_state(g, (struct sy_state_spec){.kind = SY_SLOTS, .layer = l, .elems = (int64_t)(m->n_tap - 1) * mixed});
    sy_val taps =
        sy_vector(g, "model.layers.%d.linear_attn.conv1d.weight", l, (int64_t)mixed * m->n_tap, SY_AS_IS, 1);
    mix = sy_act(g, sy_conv(g, mix, taps, SY_NONE, window), SY_SILU);
    sy_val q = unit(g, sy_part(g, mix, 0, key), m->d_key, 1 / sqrtf((float)m->d_key));
    sy_val k = unit(g, sy_part(g, mix, key, 2 * key), m->d_key, 1), v = sy_part(g, mix, 2 * key, mixed);
    a = sy_add(g, a, sy_vector(g, "model.layers.%d.linear_attn.dt_bias", l, m->n_val, SY_AS_IS, 1));
    sy_val decay = sy_mul(g, sy_act(g, a, SY_SOFTPLUS),
                          sy_vector(g, "model.layers.%d.linear_attn.A_log", l, m->n_val, SY_NEG_EXP, 1));
    sy_val s = sy_state(g, (struct sy_state_spec){.kind = SY_SLOTS, .layer = l, .elems = (int64_t)val * m->d_key});
    sy_val y = sy_scan(g, q, k, v, decay, sy_act(g, b, SY_SIGMOID), s,
                       (struct sy_scan_dim){m->n_key, m->n_val, m->d_key, m->d_val, true});
    y = sy_norm(g, y, sy_norm_weight(g, "model.layers.%d.linear_attn.norm.weight", l, m->d_val, false), m->d.eps);
    sy_val w = sy_weight(g, SY_BY_IN, "model.layers.%d.linear_attn.out_proj.weight", l, m->d.d_model, val);
    return sy_linear(g, sy_glu(g, z, y, SY_SILU), w, SY_NONE);
}

/* Each head of q_proj is a query and the gate of its output. */
static sy_val attention(struct sy_graph *g, const struct qwen3_next *m, int l, sy_val x)
{
    const struct sy_decoder *d = &m->d;
    int32_t q_dim = d->n_head * d->d_head, kv_dim = d->n_kv * d->d_head;
    sy_val wq = sy_weight_regrouped(g, SY_BY_OUT, "model.layers.%d.self_attn.q_proj.weight", l, 2 * (int64_t)q_dim,
                                    d->d_model, (struct sy_regroup){d->n_head, {d->d_head, d->d_head}});
    sy_val qg = sy_linear(g, x, wq, SY_NONE);
    sy_val wkv =
        sy_weight(g, SY_BY_OUT, "model.layers.%d.self_attn.{k,v}_proj.weight", l, 2 * (int64_t)kv_dim, d->d_model);
    sy_val both = sy_linear(g, x, wkv, SY_NONE);
    sy_val q = sy_norm(g, sy_part(g, qg, 0, q_dim),
                       sy_norm_weight(g, "model.layers.%d.self_attn.q_norm.weight", l, d->d_head, true), d->eps);
    sy_val k = sy_norm(g, sy_part(g, both, 0, kv_dim),
                       sy_norm_weight(g, "model.layers.%d.self_attn.k_norm.weight", l, d->d_head, true), d->eps);
    sy_val kv = sy_state(g, (struct sy_state_spec){.kind = SY_BLOCKS, .layer = l, .elems = 2 * (int64_t)kv_dim});
    sy_val o = sy_attend(g, sy_rope(g, q, m->rope), sy_rope(g, k, m->rope), sy_part(g, both, kv_dim, 2 * kv_dim), kv,
                         (struct sy_attn_dim){.n_head = d->n_head,
                                              .n_kv = d->n_kv,
                                              .d_key = d->d_head,
                                              .d_val = d->d_head,
                                              .scale = 1 / sqrtf((float)d->d_head)});
    o = sy_glu(g, sy_part(g, qg, q_dim, 2 * q_dim), o, SY_SIGMOID);
    return sy_linear(g, o, sy_weight(g, SY_BY_IN, "model.layers.%d.self_attn.o_proj.weight", l, d->d_model, q_dim),
                     SY_NONE);
}

static sy_val layer(struct sy_graph *g, const struct qwen3_next *m, int l, sy_val x, bool full, bool sparse)
{
    const struct sy_decoder *d = &m->d;
    sy_val n =
        sy_norm(g, x, sy_norm_weight(g, "model.layers.%d.input_layernorm.weight", l, d->d_model, true), d->eps);
    x = sy_add(g, full ? attention(g, m, l, n) : delta_net(g, m, l, n), x);
    n = sy_norm(g, x, sy_norm_weight(g, "model.layers.%d.post_attention_layernorm.weight", l, d->d_model, true),
                d->eps);
    return sy_add(g, sparse ? sy_build_moe(g, d, l, n, n, &m->moe) : sy_build_mlp(g, d, l, n, m->fn, false), x);
}

static sy_val build_mtp(struct sy_graph *g, const void *hp)
{
    const struct qwen3_next *m = hp;
    sy_val x = sy_build_mtp_input(g, &m->d, -1,
                                  &(struct sy_mtp_opt){"mtp.pre_fc_norm_embedding.weight",
                                                       "mtp.pre_fc_norm_hidden.weight", "mtp.fc.weight", true});
    sy_graph_rename(g, "model.layers.", "mtp.layers.");
    x = layer(g, m, 0, x, true, m->sparse != NULL);
    sy_graph_rename(g, NULL, NULL);
    return sy_build_mtp_head(g, &m->d, -1, x, "mtp.norm.weight", true);
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct qwen3_next *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info) || sy_fn_open(c, "hidden_act", "silu", &m->fn)) return c->st;
    m->fused = !strcmp(sy_jread_text_or(c, "model_type", ""), "qwen3_next");
    /* As newer GGUFs have it; no config of the hub says so. */
    m->fused_qkvz = m->fused && !sy_jread_bool_or(c, "linear_qkvz_split", false);
    m->n_key = (int32_t)sy_jread_int(c, "linear_num_key_heads", 1, 4096);
    m->n_val = (int32_t)sy_jread_int(c, "linear_num_value_heads", 1, 4096);
    m->d_key = (int32_t)sy_jread_int(c, "linear_key_head_dim", 1, 8192);
    m->d_val = (int32_t)sy_jread_int(c, "linear_value_head_dim", 1, 8192);
    m->n_tap = (int32_t)sy_jread_int_or(c, "linear_conv_kernel_dim", 4, 2, 64);
    m->full = sy_arena_array(a, (size_t)m->d.n_layer, sizeof *m->full);
    if (!m->full) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (m->n_val % m->n_key)
        sy_jread_refuse(c, SY_EFORMAT, "'linear_num_value_heads' %d is not a multiple of 'linear_num_key_heads' %d",
                        m->n_val, m->n_key);
    if (sy_jread_bool_or(c, "attention_bias", false))
        sy_jread_refuse(c, SY_ENOSUP, "'attention_bias' is not supported");
    open_layers(c, m);
    /* Qwen3-Next's config does not tell: whether there is a head shows when it is loaded. */
    if (sy_jread_int_or(c, "mtp_num_hidden_layers", m->fused, 0, 64) == 1 &&
        !sy_jread_bool_or(c, "mtp_use_dedicated_embeddings", false))
        info->build_mtp = build_mtp;
    if (open_moe(a, c, m)) return c->st;
    return sy_rope_open(a, c, m->d.d_head, &m->rope);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct qwen3_next *m = hp;
    sy_val x = sy_build_embed(g, &m->d);
    for (int l = 0; l < m->d.n_layer; l++) x = layer(g, m, l, x, m->full[l], m->sparse && m->sparse[l]);
    return sy_build_head(g, &m->d, x, true, 0);
}

static const char *const claims[] = {"Qwen3NextForCausalLM",  "Qwen3_5ForConditionalGeneration",
                                     "Qwen3_5ForCausalLM",    "Qwen3_5MoeForConditionalGeneration",
                                     "Qwen3_5MoeForCausalLM", NULL};
const struct sy_arch sy_arch_qwen3_next = {"qwen3_next", claims, open, build};
