/* Llama 4, text (transformers: Llama4ForCausalLM): most layers see a chunk of positions and have rope on pairs of
 * neighbours, then norms of q and k without weights; the others see everything, have no rope, and queries that grow
 * with the position. One expert a token, its input weighted, beside one that all share. */
#include <math.h>

#include "model/model.h"

struct llama4 {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    struct sy_temper_dim temper;
    struct sy_moe_opt moe;
    bool *roped, *sparse; /* [n_layer] */
    bool bias, qk_unit, tempered;
    int32_t chunk, d_dense;
};

static sy_status open_layers(struct sy_arena *a, struct sy_jread *c, struct llama4 *m)
{
    const struct sy_json *ropes = sy_json_get(c->obj, "no_rope_layers"), *moe = sy_json_get(c->obj, "moe_layers");
    int32_t n = m->d.n_layer;
    int64_t every = sy_jread_int_or(c, "no_rope_layer_interval", 4, 1, 1 << 20);
    int64_t step = sy_jread_int_or(c, "interleave_moe_layer_step", 1, 1, 1 << 20);
    m->roped = sy_arena_array(a, (size_t)n, sizeof *m->roped);
    m->sparse = sy_arena_array(a, (size_t)n, sizeof *m->sparse);
    if (!m->roped || !m->sparse) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_json_len(ropes) != 0 && sy_json_len(ropes) != (size_t)n)
        return sy_jread_refuse(c, SY_EFORMAT, "'no_rope_layers': expected %d entries, found %zu", n,
                               sy_json_len(ropes));
    for (int32_t l = 0; l < n; l++) { /* 0: no rope, despite the name */
        m->roped[l] = sy_json_len(ropes) ? sy_json_int(sy_json_at(ropes, (size_t)l), 1) != 0 : (l + 1) % every != 0;
        m->sparse[l] = !sy_json_is_array(moe) && (l + 1) % step == 0;
    }
    for (size_t i = 0; i < sy_json_len(moe); i++) {
        int64_t l = sy_json_int(sy_json_at(moe, i), -1);
        if (l < 0 || l >= n) return sy_jread_refuse(c, SY_EFORMAT, "'moe_layers'[%zu]: no such layer", i);
        m->sparse[l] = true;
    }
    return c->st;
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct llama4 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info)) return c->st;
    m->bias = sy_jread_bool_or(c, "attention_bias", false);
    m->qk_unit = sy_jread_bool_or(c, "use_qk_norm", true);
    m->tempered = sy_jread_bool_or(c, "attn_temperature_tuning", true);
    m->temper = (struct sy_temper_dim){.beta = (float)sy_jread_num_or(c, "attn_scale", 0.1, -1e6, 1e6),
                                       .every = (int32_t)sy_jread_int_or(c, "floor_scale", 8192, 1, 1 << 30),
                                       .offset = 1};
    m->chunk = (int32_t)sy_jread_int_or(c, "attention_chunk_size", 8192, 1, 1 << 30);
    m->d_dense = (int32_t)sy_jread_int_or(c, "intermediate_size_mlp", 2 * m->d.d_ff, 1, 1 << 22);
    m->moe = (struct sy_moe_opt){
        .router = "model.layers.%d.feed_forward.router.weight",
        .experts_in = "model.layers.%d.feed_forward.experts.#.{gate,up}_proj.weight",
        .experts_out = "model.layers.%d.feed_forward.experts.#.down_proj.weight",
        .shared = "model.layers.%d.feed_forward.shared_expert",
        .d_shared = m->d.d_ff,
        .route = {.score = SY_SCORE_SIGMOID},
        .moe = {.weigh_input = true},
    };
    if (sy_moe_open(c, "num_local_experts", "num_experts_per_tok", "intermediate_size", &m->moe)) return c->st;
    if (sy_fn_open(c, "hidden_act", "silu", &m->moe.moe.glu.fn)) return c->st;
    if (open_layers(a, c, m) || sy_rope_open(a, c, m->d.d_head, &m->rope)) return c->st;
    m->rope.interleaved = true;
    return c->st;
}

static sy_val feed(struct sy_graph *g, const struct llama4 *m, int l, sy_val n)
{
    if (!m->sparse[l])
        return sy_build_ffn(g, &m->d, l, n, "model.layers.%d.feed_forward", m->d_dense, m->moe.moe.glu.fn);
    return sy_build_moe(g, &m->d, l, n, n, &m->moe);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct llama4 *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {.scale = 1 / sqrtf((float)d->d_head), .bias = m->bias, .bias_out = m->bias};
    sy_val x = sy_build_embed(g, d);
    for (int l = 0; l < d->n_layer; l++) {
        o.rope = m->roped[l] ? &m->rope : NULL;
        o.qk_unit = m->roped[l] && m->qk_unit;
        o.chunk = m->roped[l] ? m->chunk : 0;
        o.temper = !m->roped[l] && m->tempered ? &m->temper : NULL;
        sy_val n = sy_build_norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
        x = sy_add(g, sy_build_attention(g, d, l, n, &o), x);
        n = sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, x);
        x = sy_add(g, feed(g, m, l, n), x);
    }
    return sy_build_head(g, d, x, false, 0);
}

static const char *const claims[] = {"Llama4ForCausalLM", "Llama4ForConditionalGeneration", NULL};
const struct sy_arch sy_arch_llama4 = {"llama4", claims, open, build};
