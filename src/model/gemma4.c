/* Gemma 4, text (transformers: Gemma4ForCausalLM): Gemma's four norms a layer (plain w), larger heads and partial
 * rope on layers that see everything, per-layer embeddings and shared keys in the small models, experts beside the
 * MLP in the sparse one. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/block/gemma.h"

struct gemma4 {
    struct sy_gemma m;
    bool wide_shared, sparse;
    struct sy_moe_opt moe;
};

static sy_status open_experts(struct sy_jread *c, struct gemma4 *m)
{
    m->moe = (struct sy_moe_opt){
        .router = "model.layers.%d.router.proj.weight",
        .router_gain = "model.layers.%d.router.per_expert_scale",
        .experts_in = "model.layers.%d.experts.#.{gate,up}_proj.weight",
        .experts_out = "model.layers.%d.experts.#.down_proj.weight",
        .route = {.score = SY_SCORE_SOFTMAX, .weighting = SY_WEIGHT_NORMED},
        .moe = {.glu = {.fn = m->m.fn}},
    };
    return sy_moe_open(c, "num_experts", "top_k_experts", "moe_intermediate_size", &m->moe);
}

/* "per_layer_config": what layers that see everything have of their own, in newer configs. */
static sy_status open_full(struct sy_jread *c, struct sy_gemma *s)
{
    struct sy_jread r = *c;
    const struct sy_json *own = sy_json_get(c->obj, "per_layer_config");
    int32_t seen = 0;
    for (int32_t l = 0; sy_json_is_object(own) && l < s->d.n_layer; l++) {
        char key[16];
        snprintf(key, sizeof key, "%d", l);
        r.obj = sy_json_get(own, key);
        int32_t d = s->d.d_head, n = s->d.n_kv;
        if (sy_json_is_object(r.obj)) {
            d = (int32_t)sy_jread_int_or(&r, "head_dim", d, 1, 8192);
            n = (int32_t)sy_jread_int_or(&r, "num_key_value_heads", n, 1, 4096);
        }
        if (r.st) return c->st = r.st;
        bool first = s->full[l] && seen++ == 0;
        if (first) {
            s->d_head_full = d;
            s->n_kv_full = n;
        }
        if (s->full[l] ? d != s->d_head_full || n != s->n_kv_full : d != s->d.d_head || n != s->d.n_kv)
            return sy_jread_refuse(c, SY_ENOSUP,
                                   "'per_layer_config' of layer %d: only one size of heads for all layers with "
                                   "full attention is supported",
                                   l);
    }
    return c->st;
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct gemma4 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    struct sy_gemma *s = &m->m;
    if (sy_decoder_open(c, &s->d, true, info)) return c->st;
    if (sy_layers_open(a, c, s->d.n_layer, 6, &s->full) || sy_gemma_open(a, c, s)) return c->st;
    s->k_is_v = sy_jread_bool_or(c, "attention_k_eq_v", false);
    s->d_head_full = (int32_t)sy_jread_int_or(c, "global_head_dim", s->d.d_head, 1, 8192);
    s->n_kv_full = s->d.n_kv;
    if (s->k_is_v) s->n_kv_full = (int32_t)sy_jread_int_or(c, "num_global_key_value_heads", s->d.n_kv, 1, 4096);
    if (open_full(c, s)) return c->st;
    m->wide_shared = sy_jread_bool_or(c, "use_double_wide_mlp", false);
    m->sparse = sy_jread_bool_or(c, "enable_moe_block", false);
    const char *both = sy_json_text(sy_json_get(c->obj, "use_bidirectional_attention"));
    if (both && strcmp(both, "vision") != 0)
        return sy_jread_refuse(c, SY_ENOSUP, "'use_bidirectional_attention': '%s' is not supported", both);
    if (m->sparse && open_experts(c, m)) return c->st;
    if (sy_rope_open_kind(a, c, "sliding_attention", s->d.d_head, &s->rope_local)) return c->st;
    return sy_rope_open_kind(a, c, "full_attention", s->d_head_full, &s->rope_full);
}

static sy_val feed(struct sy_graph *g, const struct gemma4 *m, int l, sy_val x)
{
    struct sy_decoder d = m->m.d;
    if (m->wide_shared && m->m.owner[l] != l) d.d_ff *= 2;
    sy_val n = sy_build_norm(g, &d, "model.layers.%d.pre_feedforward_layernorm.weight", l, x);
    sy_val y = sy_build_mlp(g, &d, l, n, m->m.fn, false);
    if (m->sparse) {
        sy_val w = sy_norm_weight(g, "model.layers.%d.router.scale", l, d.d_model, false);
        sy_val routed = sy_scale(g, sy_norm(g, x, w, d.eps), 1 / sqrtf((float)d.d_model));
        n = sy_build_norm(g, &d, "model.layers.%d.pre_feedforward_layernorm_2.weight", l, x);
        n = sy_build_moe(g, &d, l, n, routed, &m->moe);
        n = sy_build_norm(g, &d, "model.layers.%d.post_feedforward_layernorm_2.weight", l, n);
        y = sy_build_norm(g, &d, "model.layers.%d.post_feedforward_layernorm_1.weight", l, y);
        y = sy_add(g, y, n);
    }
    return sy_build_norm(g, &d, "model.layers.%d.post_feedforward_layernorm.weight", l, y);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct gemma4 *m = hp;
    const struct sy_decoder *d = &m->m.d;
    sy_val state[1024]; /* as many layers as a config may have */
    sy_val x = sy_scale(g, sy_build_embed(g, d), sqrtf((float)d->d_model)), ple = SY_NONE;
    if (m->m.d_ple > 0) ple = sy_gemma_ple(g, &m->m, x);
    for (int l = 0; l < d->n_layer; l++) {
        sy_val n = sy_build_norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
        n = sy_gemma_attention(g, &m->m, l, n, state);
        x = sy_add(g, sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, n), x);
        x = sy_add(g, feed(g, m, l, x), x);
        if (ple.id) x = sy_add(g, sy_gemma_ple_layer(g, &m->m, l, x, ple), x);
        x = sy_mul(g, x, sy_weight(g, SY_WHOLE, "model.layers.%d.layer_scalar", l, 1, 1));
    }
    return sy_build_head(g, d, x, false, m->m.softcap);
}

static const char *const claims[] = {"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", NULL};
const struct sy_arch sy_arch_gemma4 = {"gemma4", claims, open, build};
