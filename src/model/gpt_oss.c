/* gpt-oss (transformers: GptOssForCausalLM; arXiv:2508.10925): sinks, every other layer slides, biases everywhere;
 * experts whose gate and up are bounded, weighted by the softmax of the chosen logits. */
#include <math.h>

#include "model/model.h"

struct gpt_oss {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    struct sy_moe_opt moe;
    bool *full; /* [n_layer] */
    bool bias;
    int32_t window;
};

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct gpt_oss *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info)) return c->st;
    enum sy_fn fn; /* named, but its own: x sigmoid(1.702 x) */
    m->bias = sy_jread_bool_or(c, "attention_bias", true);
    m->window = (int32_t)sy_jread_int_or(c, "sliding_window", 128, 1, 1 << 30);
    m->moe = (struct sy_moe_opt){
        .router = "model.layers.%d.mlp.router.weight",
        .router_bias = "model.layers.%d.mlp.router.bias",
        .experts_in = "model.layers.%d.mlp.experts.#.{gate,up}_proj.weight",
        .experts_out = "model.layers.%d.mlp.experts.#.down_proj.weight",
        .bias = true,
        .route = {.score = SY_SCORE_LOGIT, .weighting = SY_WEIGHT_SOFTMAX},
        .moe = {.glu = {.fn = SY_GELU_QUICK, .up_add = 1}},
    };
    if (sy_moe_open(c, "num_local_experts", "num_experts_per_tok", "intermediate_size", &m->moe)) return c->st;
    m->moe.moe.glu.limit = (float)sy_jread_num_or(c, "swiglu_limit", 7, 1e-3, 1e6);
    if (sy_fn_open(c, "hidden_act", "silu", &fn)) return c->st;
    if (fn != SY_SILU) return sy_jread_refuse(c, SY_ENOSUP, "'hidden_act': only 'silu' is supported");
    if (sy_layers_open(a, c, m->d.n_layer, 2, &m->full)) return c->st;
    return sy_rope_open(a, c, m->d.d_head, &m->rope);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct gpt_oss *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {
        .rope = &m->rope, .scale = 1 / sqrtf((float)d->d_head), .bias = m->bias, .bias_out = m->bias, .sinks = true};
    sy_val x = sy_build_embed(g, d);
    for (int l = 0; l < d->n_layer; l++) {
        o.window = m->full[l] ? 0 : m->window;
        sy_val n = sy_build_norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
        x = sy_add(g, sy_build_attention(g, d, l, n, &o), x);
        n = sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, x);
        x = sy_add(g, sy_build_moe(g, d, l, n, n, &m->moe), x);
    }
    return sy_build_head(g, d, x, false, 0);
}

static const char *const claims[] = {"GptOssForCausalLM", NULL};
const struct sy_arch sy_arch_gpt_oss = {"gpt_oss", claims, open, build};
