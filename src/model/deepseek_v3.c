/* DeepSeek-V3 and what is built like it (transformers: DeepseekV3ForCausalLM, DeepseekV32ForCausalLM,
 * Glm4MoeLiteForCausalLM, GlmMoeDsaForCausalLM; Kimi K2 and K2.5; arXiv:2412.19437, arXiv:2512.02556): multi-head
 * latent attention, from V3.2 on over the keys that an indexer chooses; sigmoid routing in groups with a bias for
 * choosing, an expert that every token shares; the first layers are dense. */
#include <math.h>
#include <string.h>

#include "model/model.h"

struct deepseek {
    struct sy_decoder d;
    struct sy_mla mla;
    struct sy_moe_opt moe;
    bool *dense; /* by layer */
    bool *reuse; /* by layer: has no indexer, attends to the keys of the last one that has */
};

/* "mlp_layer_types" tells them one by one, "first_k_dense_replace" how many come first. */
static sy_status open_layers(struct sy_arena *a, struct sy_jread *c, struct deepseek *m)
{
    const struct sy_json *types = sy_json_get(c->obj, "mlp_layer_types");
    int64_t first = sy_jread_int_or(c, "first_k_dense_replace", 1, 0, 1 << 20);
    m->dense = sy_arena_array(a, (size_t)m->d.n_layer, sizeof *m->dense);
    if (!m->dense) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    for (int32_t l = 0; l < m->d.n_layer; l++) m->dense[l] = l < first;
    if (!sy_json_is_array(types)) return c->st;
    if (sy_json_len(types) != (size_t)m->d.n_layer)
        return sy_jread_refuse(c, SY_EFORMAT, "'mlp_layer_types': expected %d entries, found %zu", m->d.n_layer,
                               sy_json_len(types));
    for (int32_t l = 0; l < m->d.n_layer; l++) {
        const char *type = sy_json_text(sy_json_at(types, (size_t)l));
        m->dense[l] = type && !strcmp(type, "dense");
        if (!m->dense[l] && (!type || strcmp(type, "sparse") != 0))
            return sy_jread_refuse(c, SY_ENOSUP, "'mlp_layer_types'[%d]: '%s' is not supported", l, type ? type : "");
    }
    return c->st;
}

/* Which layers share the keys that an earlier one chose: "indexer_types" ("full", "shared"), or "index_topk_pattern"
 * (letters F and S, or such a list), or every "index_topk_freq"-th chooses, from "index_skip_topk_offset" on. */
static sy_status open_sharing(struct sy_arena *a, struct sy_jread *c, struct deepseek *m)
{
    const struct sy_json *types = sy_json_get(c->obj, "indexer_types"), *pattern;
    pattern = sy_json_get(c->obj, "index_topk_pattern");
    const char *letters = sy_json_text(pattern);
    if (!sy_json_is_array(types)) types = pattern;
    int64_t every = sy_jread_int_or(c, "index_topk_freq", 1, 1, 1 << 20);
    int64_t offset = sy_jread_int_or(c, "index_skip_topk_offset", 2, 0, 1 << 20);
    m->reuse = sy_arena_array(a, (size_t)m->d.n_layer, sizeof *m->reuse);
    if (!m->reuse) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (letters && strlen(letters) != (size_t)m->d.n_layer)
        return sy_jread_refuse(c, SY_EFORMAT, "'index_topk_pattern': expected %d letters F and S", m->d.n_layer);
    for (int32_t l = 0; l < m->d.n_layer; l++) {
        const char *type = sy_json_text(sy_json_at(types, (size_t)l));
        char kind = l >= offset && (l - offset + 1) % every ? 'S' : 'F';
        if (sy_json_is_array(types))
            kind = type && !strcmp(type, "full") ? 'F' : type && !strcmp(type, "shared") ? 'S' : '?';
        else if (letters) kind = letters[l];
        m->reuse[l] = kind == 'S';
        if ((kind != 'F' && kind != 'S') || (l == 0 && m->reuse[l]))
            return sy_jread_refuse(
                c, SY_EFORMAT, "layer %d: expected an indexer, full or shared, and a full one first; found '%s'", l,
                type      ? type
                : letters ? letters
                          : "nothing");
    }
    return c->st;
}

/* What the formulas below are not. */
static sy_status refuse_others(struct sy_jread *c)
{
    static const struct {
        const char *key, *value;
    } text[] = {{"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}};
    for (size_t i = 0; i < SY_COUNT(text); i++) {
        const char *found = sy_jread_text_or(c, text[i].key, text[i].value);
        if (strcmp(found, text[i].value) != 0)
            return sy_jread_refuse(c, SY_ENOSUP, "'%s': '%s' is not supported, only '%s'", text[i].key, found,
                                   text[i].value);
    }
    if (sy_jread_int_or(c, "moe_layer_freq", 1, 1, 1 << 20) != 1)
        return sy_jread_refuse(c, SY_ENOSUP, "'moe_layer_freq': only 1 is supported");
    return c->st;
}

static sy_val layer(struct sy_graph *g, const struct deepseek *m, int l, sy_val x, sy_val *chosen, bool reuse,
                    bool dense)
{
    const struct sy_decoder *d = &m->d;
    sy_val n = sy_build_norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
    x = sy_add(g, sy_build_mla(g, d, l, n, &m->mla, chosen, reuse), x);
    n = sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, x);
    return sy_add(
        g, dense ? sy_build_mlp(g, d, l, n, m->moe.moe.glu.fn, false) : sy_build_moe(g, d, l, n, n, &m->moe), x);
}

/* The first of the layers behind the model's own. */
static sy_val build_mtp(struct sy_graph *g, const void *hp)
{
    const struct deepseek *m = hp;
    int l = m->d.n_layer;
    sy_val chosen = SY_NONE;
    sy_val x = sy_build_mtp_input(g, &m->d, l,
                                  &(struct sy_mtp_opt){"model.layers.%d.enorm.weight", "model.layers.%d.hnorm.weight",
                                                       "model.layers.%d.eh_proj.weight", false});
    x = layer(g, m, l, x, &chosen, false, false);
    return sy_build_mtp_head(g, &m->d, l, x, "model.layers.%d.shared_head.norm.weight", false);
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct deepseek *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info) || refuse_others(c) || sy_mla_open(a, c, &m->mla)) return c->st;
    /* GLM-5's indexer turns pairs side by side. */
    const char *class = sy_json_text(sy_json_at(sy_json_get(c->obj, "architectures"), 0));
    if (class && !strcmp(class, "GlmMoeDsaForCausalLM"))
        m->mla.index_interleaved = sy_jread_bool_or(c, "indexer_rope_interleave", true);
    if (open_layers(a, c, m) || open_sharing(a, c, m)) return c->st;
    if (sy_moe_open_deepseek(c, 0, &m->moe)) return c->st;
    if (sy_jread_int_or(c, "num_nextn_predict_layers", 0, 0, 64) > 0) info->build_mtp = build_mtp;
    return sy_fn_open(c, "hidden_act", "silu", &m->moe.moe.glu.fn);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct deepseek *m = hp;
    sy_val x = sy_build_embed(g, &m->d), chosen = SY_NONE;
    for (int l = 0; l < m->d.n_layer; l++) x = layer(g, m, l, x, &chosen, m->reuse[l], m->dense[l]);
    return sy_build_head(g, &m->d, x, false, 0);
}

static const char *const claims[] = {
    "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM",          "Glm4MoeLiteForCausalLM",
    "GlmMoeDsaForCausalLM",  "KimiK25ForConditionalGeneration", NULL,
};
const struct sy_arch sy_arch_deepseek_v3 = {"deepseek_v3", claims, open, build};
