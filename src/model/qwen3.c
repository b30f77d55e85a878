/* Qwen3 (transformers: Qwen3ForCausalLM): Llama with a norm of each head of q and k before rope. */
#include <math.h>

#include "model/model.h"

struct qwen3 {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    enum sy_fn fn;
    bool slide, bias;
    int32_t window, slide_from;
};

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct qwen3 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info)) return c->st;
    m->slide = sy_jread_bool_or(c, "use_sliding_window", false);
    m->window = (int32_t)sy_jread_int_or(c, "sliding_window", 0, 0, 1 << 30);
    m->slide_from = (int32_t)sy_jread_int_or(c, "max_window_layers", m->d.n_layer, 0, 1 << 20);
    m->bias = sy_jread_bool_or(c, "attention_bias", false);
    if (sy_fn_open(c, "hidden_act", "silu", &m->fn)) return c->st;
    return sy_rope_open(a, c, m->d.d_head, &m->rope);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct qwen3 *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {.rope = &m->rope,
                             .scale = 1 / sqrtf((float)d->d_head),
                             .qk_norm = true,
                             .bias = m->bias,
                             .bias_out = m->bias};
    sy_val x = sy_build_embed(g, d);
    for (int l = 0; l < d->n_layer; l++) {
        o.window = m->slide && l >= m->slide_from ? m->window : 0;
        sy_val n =
            sy_norm(g, x, sy_norm_weight(g, "model.layers.%d.input_layernorm.weight", l, d->d_model, false), d->eps);
        x = sy_add(g, sy_build_attention(g, d, l, n, &o), x);
        n = sy_norm(g, x, sy_norm_weight(g, "model.layers.%d.post_attention_layernorm.weight", l, d->d_model, false),
                    d->eps);
        x = sy_add(g, sy_build_mlp(g, d, l, n, m->fn, false), x);
    }
    return sy_build_head(g, d, x, false, 0);
}

static const char *const claims[] = {"Qwen3ForCausalLM", NULL};
const struct sy_arch sy_arch_qwen3 = {"qwen3", claims, open, build};
