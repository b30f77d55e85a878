/* GLM-4.5 to 4.7 (transformers: Glm4MoeForCausalLM; arXiv:2508.06471): grouped-query attention with biases and
 * partial rope, sigmoid routing with a bias for choosing, an expert that every token shares; the first layers are
 * dense. */
#include <math.h>

#include "model/model.h"

struct glm4_moe {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    struct sy_moe_opt moe;
    bool bias, qk_norm;
    int32_t n_dense;
};

static sy_val layer(struct sy_graph *g, const struct glm4_moe *m, int l, sy_val x)
{
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {
        .rope = &m->rope, .scale = 1 / sqrtf((float)d->d_head), .bias = m->bias, .qk_norm = m->qk_norm};
    sy_val n = sy_build_norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
    x = sy_add(g, sy_build_attention(g, d, l, n, &o), x);
    n = sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, x);
    return sy_add(
        g, l < m->n_dense ? sy_build_mlp(g, d, l, n, m->moe.moe.glu.fn, false) : sy_build_moe(g, d, l, n, n, &m->moe),
        x);
}

/* The first of the layers behind the model's own. */
static sy_val build_mtp(struct sy_graph *g, const void *hp)
{
    const struct glm4_moe *m = hp;
    int l = m->d.n_layer;
    sy_val x = sy_build_mtp_input(g, &m->d, l,
                                  &(struct sy_mtp_opt){"model.layers.%d.enorm.weight", "model.layers.%d.hnorm.weight",
                                                       "model.layers.%d.eh_proj.weight", false});
    return sy_build_mtp_head(g, &m->d, l, layer(g, m, l, x), "model.layers.%d.shared_head.norm.weight", false);
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct glm4_moe *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info)) return c->st;
    m->bias = sy_jread_bool_or(c, "attention_bias", false);
    m->qk_norm = sy_jread_bool_or(c, "use_qk_norm", false);
    m->n_dense = (int32_t)sy_jread_int_or(c, "first_k_dense_replace", 1, 0, 1 << 20);
    if (sy_moe_open_deepseek(c, 1, &m->moe)) return c->st;
    if (sy_jread_int_or(c, "num_nextn_predict_layers", 0, 0, 64) > 0) info->build_mtp = build_mtp;
    if (sy_fn_open(c, "hidden_act", "silu", &m->moe.moe.glu.fn)) return c->st;
    return sy_rope_open(a, c, m->d.d_head, &m->rope);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct glm4_moe *m = hp;
    sy_val x = sy_build_embed(g, &m->d);
    for (int l = 0; l < m->d.n_layer; l++) x = layer(g, m, l, x);
    return sy_build_head(g, &m->d, x, false, 0);
}

static const char *const claims[] = {"Glm4MoeForCausalLM", NULL};
const struct sy_arch sy_arch_glm4_moe = {"glm4_moe", claims, open, build};
