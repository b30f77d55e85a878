/* Ministral 3 (transformers: Ministral3ForCausalLM): Mistral with YaRN and queries that grow with the position. */
#include <math.h>

#include "model/model.h"

struct ministral3 {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    struct sy_temper_dim temper; /* beta 0: none */
    enum sy_fn fn;
    int32_t window;
};

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct ministral3 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info)) return c->st;
    m->window = (int32_t)sy_jread_int_or(c, "sliding_window", 0, 0, 1 << 30);
    struct sy_jread s = *c;
    s.obj = sy_json_get(c->obj, "rope_parameters");
    if (!s.obj) s.obj = sy_json_get(c->obj, "rope_scaling");
    m->temper.beta = (float)sy_jread_num_or(&s, "llama_4_scaling_beta", 0, 0, 1e6);
    m->temper.every = (int32_t)sy_jread_int_or(&s, "original_max_position_embeddings", m->d.n_ctx, 1, 1 << 30);
    if (s.st) return c->st = s.st;
    if (sy_fn_open(c, "hidden_act", "silu", &m->fn)) return c->st;
    return sy_rope_open(a, c, m->d.d_head, &m->rope);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct ministral3 *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {.rope = &m->rope,
                             .scale = 1 / sqrtf((float)d->d_head),
                             .window = m->window,
                             .temper = m->temper.beta > 0 ? &m->temper : NULL};
    sy_val x = sy_build_embed(g, d);
    for (int l = 0; l < d->n_layer; l++) {
        sy_val n = sy_build_norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
        x = sy_add(g, sy_build_attention(g, d, l, n, &o), x);
        n = sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, x);
        x = sy_add(g, sy_build_mlp(g, d, l, n, m->fn, false), x);
    }
    return sy_build_head(g, d, x, false, 0);
}

static const char *const claims[] = {"Ministral3ForCausalLM", NULL};
const struct sy_arch sy_arch_ministral3 = {"ministral3", claims, open, build};
