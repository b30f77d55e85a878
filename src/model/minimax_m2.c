/* MiniMax M2 (transformers: MiniMaxM2ForCausalLM): norms of q and k over all heads, partial rope, sigmoid routing
 * with a bias for choosing. */
#include <math.h>
#include <string.h>

#include "model/model.h"

struct minimax_m2 {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    struct sy_moe_opt moe;
    bool qk_norm;
};

/* What the released models all have, and would change the result if they had not. */
static sy_status check(struct sy_jread *c)
{
    const char *score = sy_jread_text_or(c, "scoring_func", "sigmoid");
    if (strcmp(score, "sigmoid") != 0)
        return sy_jread_refuse(c, SY_ENOSUP, "'scoring_func': '%s' is not supported", score);
    const char *norm = sy_jread_text_or(c, "qk_norm_type", "per_layer");
    if (strcmp(norm, "per_layer") != 0)
        return sy_jread_refuse(c, SY_ENOSUP, "'qk_norm_type': '%s' is not supported", norm);
    if (sy_jread_int_or(c, "shared_intermediate_size", 0, 0, 1 << 20) > 0)
        return sy_jread_refuse(c, SY_ENOSUP, "'shared_intermediate_size' above 0 is not supported");
    const struct sy_json *types = sy_json_get(c->obj, "attn_type_list");
    for (size_t i = 0; i < sy_json_len(types); i++)
        if (sy_json_int(sy_json_at(types, i), 0) != 1)
            return sy_jread_refuse(c, SY_ENOSUP, "'attn_type_list'[%zu]: expected 1 (softmax attention)", i);
    return c->st;
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct minimax_m2 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info) || check(c)) return c->st;
    m->qk_norm = sy_jread_bool_or(c, "use_qk_norm", true);
    bool biased = sy_jread_bool_or(c, "use_routing_bias", true);
    m->moe = (struct sy_moe_opt){
        .router = "model.layers.%d.block_sparse_moe.gate.weight",
        .choice_bias = biased ? "model.layers.%d.block_sparse_moe.e_score_correction_bias" : NULL,
        .experts_in = "model.layers.%d.block_sparse_moe.experts.#.{w1,w3}.weight",
        .experts_out = "model.layers.%d.block_sparse_moe.experts.#.w2.weight",
        .route = {.score = SY_SCORE_SIGMOID, .weighting = SY_WEIGHT_NORMED},
    };
    if (sy_moe_open(c, "num_local_experts", "num_experts_per_tok", "intermediate_size", &m->moe)) return c->st;
    if (sy_fn_open(c, "hidden_act", "silu", &m->moe.moe.glu.fn)) return c->st;
    return sy_rope_open(a, c, m->d.d_head, &m->rope);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct minimax_m2 *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {.rope = &m->rope, .scale = 1 / sqrtf((float)d->d_head), .qk_norm_wide = m->qk_norm};
    sy_val x = sy_build_embed(g, d);
    for (int l = 0; l < d->n_layer; l++) {
        sy_val n = sy_build_norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
        x = sy_add(g, sy_build_attention(g, d, l, n, &o), x);
        n = sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, x);
        x = sy_add(g, sy_build_moe(g, d, l, n, n, &m->moe), x);
    }
    return sy_build_head(g, d, x, false, 0);
}

static const char *const claims[] = {"MiniMaxM2ForCausalLM", NULL};
const struct sy_arch sy_arch_minimax_m2 = {"minimax_m2", claims, open, build};
