/* Mixtral (transformers: MixtralForCausalLM; arXiv:2401.04088): Mistral with experts, the softmax of all router
 * logits normalised over the chosen ones. */
#include <math.h>

#include "model/model.h"

struct mixtral {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    struct sy_moe_opt moe;
    int32_t window;
};

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct mixtral *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info)) return c->st;
    m->window = (int32_t)sy_jread_int_or(c, "sliding_window", 0, 0, 1 << 30);
    m->moe = (struct sy_moe_opt){
        .router = "model.layers.%d.block_sparse_moe.gate.weight",
        .experts_in = "model.layers.%d.block_sparse_moe.experts.#.{w1,w3}.weight",
        .experts_out = "model.layers.%d.block_sparse_moe.experts.#.w2.weight",
        .route = {.score = SY_SCORE_SOFTMAX, .weighting = SY_WEIGHT_NORMED},
    };
    if (sy_moe_open(c, "num_local_experts", "num_experts_per_tok", "intermediate_size", &m->moe)) return c->st;
    if (sy_fn_open(c, "hidden_act", "silu", &m->moe.moe.glu.fn)) return c->st;
    return sy_rope_open(a, c, m->d.d_head, &m->rope);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct mixtral *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {.rope = &m->rope, .scale = 1 / sqrtf((float)d->d_head), .window = m->window};
    sy_val x = sy_build_embed(g, d);
    for (int l = 0; l < d->n_layer; l++) {
        sy_val n = sy_build_norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
        x = sy_add(g, sy_build_attention(g, d, l, n, &o), x);
        n = sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, x);
        x = sy_add(g, sy_build_moe(g, d, l, n, n, &m->moe), x);
    }
    return sy_build_head(g, d, x, false, 0);
}

static const char *const claims[] = {"MixtralForCausalLM", NULL};
const struct sy_arch sy_arch_mixtral = {"mixtral", claims, open, build};
