/* Qwen2 MoE (transformers: Qwen2MoeForCausalLM; arXiv:2407.10671): Qwen2 attention; on sparse layers experts, and one
 * that every token shares, behind a gate of its own. */
#include <math.h>

#include "model/model.h"

struct qwen2_moe {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    struct sy_moe_opt moe;
    bool *sparse; /* [n_layer] */
    bool bias;
    int32_t window, slide_from;
};

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct qwen2_moe *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info)) return c->st;
    bool slide = sy_jread_bool_or(c, "use_sliding_window", false);
    m->window = slide ? (int32_t)sy_jread_int_or(c, "sliding_window", 0, 0, 1 << 30) : 0;
    m->slide_from = (int32_t)sy_jread_int_or(c, "max_window_layers", m->d.n_layer, 0, 1 << 20);
    m->bias = sy_jread_bool_or(c, "qkv_bias", true);
    if (sy_moe_open_qwen(c, false, true, &m->moe)) return c->st;
    if (sy_fn_open(c, "hidden_act", "silu", &m->moe.moe.glu.fn)) return c->st;
    if (sy_sparse_layers_open(a, c, m->d.n_layer, &m->sparse)) return c->st;
    return sy_rope_open(a, c, m->d.d_head, &m->rope);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct qwen2_moe *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {.rope = &m->rope, .scale = 1 / sqrtf((float)d->d_head), .bias = m->bias};
    sy_val x = sy_build_embed(g, d);
    for (int l = 0; l < d->n_layer; l++) {
        o.window = l >= m->slide_from ? m->window : 0;
        sy_val n = sy_build_norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
        x = sy_add(g, sy_build_attention(g, d, l, n, &o), x);
        n = sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, x);
        x = sy_add(g,
                   m->sparse[l] ? sy_build_moe(g, d, l, n, n, &m->moe)
                                : sy_build_mlp(g, d, l, n, m->moe.moe.glu.fn, false),
                   x);
    }
    return sy_build_head(g, d, x, false, 0);
}

static const char *const claims[] = {"Qwen2MoeForCausalLM", NULL};
const struct sy_arch sy_arch_qwen2_moe = {"qwen2_moe", claims, open, build};
