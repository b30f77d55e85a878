#include "model/block/gemma.h"

#include <math.h>

sy_status sy_gemma_open(struct sy_arena *a, struct sy_jread *r, struct sy_gemma *m)
{
    int32_t n = m->d.n_layer, shared = (int32_t)sy_jread_int_or(r, "num_kv_shared_layers", 0, 0, n - 1);
    m->owner = sy_arena_array(a, (size_t)n, sizeof *m->owner);
    if (!m->owner) return sy_jread_refuse(r, SY_ENOMEM, "no memory");
    for (int32_t l = 0; l < n; l++) {
        int32_t from = l;
        if (l >= n - shared)
            for (from = n - shared - 1; from >= 0 && m->full[from] != m->full[l];) from--;
        if (from < 0)
            return sy_jread_refuse(r, SY_EFORMAT, "'num_kv_shared_layers': layer %d finds no earlier one of its kind",
                                   l);
        m->owner[l] = from;
    }
    m->window = (int32_t)sy_jread_int_or(r, "sliding_window", 512, 1, 1 << 30);
    m->d_ple = (int32_t)sy_jread_int_or(r, "hidden_size_per_layer_input", 256, 0, 1 << 16);
    m->n_ple = (int32_t)sy_jread_int_or(r, "vocab_size_per_layer_input", 262144, 1, 1 << 24);
    m->softcap = sy_softcap_open(r, "final_logit_softcapping", 30);
    if (sy_jread_bool_or(r, "attention_bias", false))
        return sy_jread_refuse(r, SY_ENOSUP, "'attention_bias': true is not supported for this architecture");
    return sy_fn_open(r, "hidden_activation", "gelu_pytorch_tanh", &m->fn);
}

struct heads {
    int32_t d, n_kv;
    const struct sy_rope_dim *rope;
};

static sy_val head_norm(struct sy_graph *g, const struct sy_gemma *m, const char *name, int l, int32_t d, sy_val x)
{
    return sy_norm(g, x, sy_norm_weight(g, name, l, d, false), m->d.eps);
}

/* A layer with keys of its own: q, k and v, normed and turned. */
static sy_val own_qkv(struct sy_graph *g, const struct sy_gemma *m, int l, sy_val x, const struct heads *h, sy_val *k,
                      sy_val *v)
{
    bool k_is_v = m->k_is_v && m->full[l];
    int32_t q_dim = m->d.n_head * h->d, kv_dim = h->n_kv * h->d, all = q_dim + (k_is_v ? 1 : 2) * kv_dim;
    const char *name =
        k_is_v ? "model.layers.%d.self_attn.{q,k}_proj.weight" : "model.layers.%d.self_attn.{q,k,v}_proj.weight";
    sy_val qkv = sy_linear(g, x, sy_weight(g, SY_BY_OUT, name, l, all, m->d.d_model), SY_NONE);
    *k = sy_part(g, qkv, q_dim, q_dim + kv_dim);
    *v = sy_norm_unit(g, k_is_v ? *k : sy_part(g, qkv, q_dim + kv_dim, all), h->d, m->d.eps);
    *k = head_norm(g, m, "model.layers.%d.self_attn.k_norm.weight", l, h->d, *k);
    *k = sy_rope(g, *k, *h->rope);
    return sy_part(g, qkv, 0, q_dim);
}

sy_val sy_gemma_attention(struct sy_graph *g, const struct sy_gemma *m, int l, sy_val x, sy_val *state)
{
    bool full = m->full[l];
    struct heads h = {.d = full ? m->d_head_full : m->d.d_head,
                      .n_kv = full ? m->n_kv_full : m->d.n_kv,
                      .rope = full ? &m->rope_full : &m->rope_local};
    int32_t q_dim = m->d.n_head * h.d, window = full ? 0 : m->window;
    sy_val q, k = SY_NONE, v = SY_NONE;
    if (m->owner[l] == l) {
        q = own_qkv(g, m, l, x, &h, &k, &v);
        state[l] =
            sy_state(g, (struct sy_state_spec){
                            .kind = SY_BLOCKS, .layer = l, .window = window, .elems = 2 * (int64_t)h.n_kv * h.d});
    } else {
        sy_val w = sy_weight(g, SY_BY_OUT, "model.layers.%d.self_attn.q_proj.weight", l, q_dim, m->d.d_model);
        q = sy_linear(g, x, w, SY_NONE);
    }
    q = sy_rope(g, head_norm(g, m, "model.layers.%d.self_attn.q_norm.weight", l, h.d, q), *h.rope);
    struct sy_attn_dim dim = {
        .n_head = m->d.n_head, .n_kv = h.n_kv, .d_key = h.d, .d_val = h.d, .window = window, .scale = 1};
    sy_val a = sy_attend(g, q, k, v, state[m->owner[l]], dim);
    sy_val wo = sy_weight(g, SY_BY_IN, "model.layers.%d.self_attn.o_proj.weight", l, m->d.d_model, q_dim);
    return sy_linear(g, a, wo, SY_NONE);
}

sy_val sy_gemma_ple(struct sy_graph *g, const struct sy_gemma *m, sy_val x)
{
    int64_t all = (int64_t)m->d.n_layer * m->d_ple;
    sy_val table = sy_weight(g, SY_WHOLE, "model.embed_tokens_per_layer.weight", -1, m->n_ple, all);
    sy_val own = sy_scale(g, sy_embed(g, table, sy_input(g, SY_TOK)), sqrtf((float)m->d_ple));
    sy_val w = sy_weight(g, SY_BY_OUT, "model.per_layer_model_projection.weight", -1, all, m->d.d_model);
    sy_val p = sy_scale(g, sy_linear(g, x, w, SY_NONE), 1 / sqrtf((float)m->d.d_model));
    p = sy_norm(g, p, sy_norm_weight(g, "model.per_layer_projection_norm.weight", -1, m->d_ple, false), m->d.eps);
    return sy_scale(g, sy_add(g, p, own), sqrtf(0.5f));
}

sy_val sy_gemma_ple_layer(struct sy_graph *g, const struct sy_gemma *m, int l, sy_val x, sy_val ple)
{
    sy_val w = sy_weight(g, SY_WHOLE, "model.layers.%d.per_layer_input_gate.weight", l, m->d_ple, m->d.d_model);
    sy_val y = sy_glu(g, sy_linear(g, x, w, SY_NONE), sy_part(g, ple, l * m->d_ple, (l + 1) * m->d_ple), m->fn);
    w = sy_weight(g, SY_WHOLE, "model.layers.%d.per_layer_projection.weight", l, m->d.d_model, m->d_ple);
    return sy_build_norm(g, &m->d, "model.layers.%d.post_per_layer_input_norm.weight", l,
                         sy_linear(g, y, w, SY_NONE));
}
