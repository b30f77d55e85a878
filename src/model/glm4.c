/* GLM-4 (transformers: Glm4ForCausalLM): norms before and after each sublayer, rope on pairs of neighbours in the
 * first part of each head, gate and up in one tensor. */
#include <math.h>

#include "model/model.h"

struct glm4 {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    enum sy_fn fn;
    bool bias;
};

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct glm4 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info)) return c->st;
    m->bias = sy_jread_bool_or(c, "attention_bias", false);
    if (sy_fn_open(c, "hidden_act", "silu", &m->fn)) return c->st;
    if (sy_rope_open(a, c, m->d.d_head, &m->rope)) return c->st;
    m->rope.interleaved = true;
    return c->st;
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct glm4 *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {.rope = &m->rope, .scale = 1 / sqrtf((float)d->d_head), .bias = m->bias};
    sy_val x = sy_build_embed(g, d);
    for (int l = 0; l < d->n_layer; l++) {
        sy_val n = sy_build_norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
        n = sy_build_norm(g, d, "model.layers.%d.post_self_attn_layernorm.weight", l,
                          sy_build_attention(g, d, l, n, &o));
        x = sy_add(g, n, x);
        n = sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, x);
        n = sy_build_norm(g, d, "model.layers.%d.post_mlp_layernorm.weight", l,
                          sy_build_mlp_fused(g, d, l, n, m->fn));
        x = sy_add(g, n, x);
    }
    return sy_build_head(g, d, x, false, 0);
}

static const char *const claims[] = {"Glm4ForCausalLM", NULL};
const struct sy_arch sy_arch_glm4 = {"glm4", claims, open, build};
