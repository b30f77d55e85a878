/* Granite (transformers: GraniteForCausalLM): Llama with multipliers on embeddings, scores, residuals and logits. */
#include "model/model.h"

struct granite {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    enum sy_fn fn;
    bool bias, mlp_bias;
    float embedding, attention, residual, logits; /* multipliers; logits are divided */
};

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct granite *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info)) return c->st;
    m->bias = sy_jread_bool_or(c, "attention_bias", false);
    m->mlp_bias = sy_jread_bool_or(c, "mlp_bias", false);
    m->embedding = (float)sy_jread_num_or(c, "embedding_multiplier", 1, -1e6, 1e6);
    m->attention = (float)sy_jread_num_or(c, "attention_multiplier", 1, -1e6, 1e6);
    m->residual = (float)sy_jread_num_or(c, "residual_multiplier", 1, -1e6, 1e6);
    m->logits = (float)sy_jread_num_or(c, "logits_scaling", 1, 1e-6, 1e6);
    if (sy_fn_open(c, "hidden_act", "silu", &m->fn)) return c->st;
    return sy_rope_open(a, c, m->d.d_head, &m->rope);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct granite *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {.rope = &m->rope, .scale = m->attention, .bias = m->bias, .bias_out = m->bias};
    sy_val x = sy_scale(g, sy_build_embed(g, d), m->embedding);
    for (int l = 0; l < d->n_layer; l++) {
        sy_val n = sy_build_norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
        x = sy_add(g, sy_scale(g, sy_build_attention(g, d, l, n, &o), m->residual), x);
        n = sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, x);
        x = sy_add(g, sy_scale(g, sy_build_mlp(g, d, l, n, m->fn, m->mlp_bias), m->residual), x);
    }
    x = sy_build_norm(g, d, "model.norm.weight", -1, sy_rows(g, x));
    return sy_sample(g, sy_scale(g, sy_build_logits(g, d, x), 1 / m->logits));
}

static const char *const claims[] = {"GraniteForCausalLM", NULL};
const struct sy_arch sy_arch_granite = {"granite", claims, open, build};
