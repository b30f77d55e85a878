/* Gemma 3, text (transformers: Gemma3ForCausalLM; Gemma 3 report, arXiv:2503.19786): norms of (1 + w) before and
 * after each sublayer, norms of q and k, five sliding layers with a rope of their own to one global layer. */
#include <math.h>
#include <string.h>

#include "model/model.h"

struct gemma3 {
    struct sy_decoder d;
    struct sy_rope_dim rope_global, rope_local;
    enum sy_fn fn;
    bool bias;
    bool *global; /* [n_layer] */
    int32_t window;
    float scale, softcap_attn, softcap_final;
};

static sy_status open_layers(struct sy_jread *c, struct gemma3 *m)
{
    const struct sy_json *types = sy_json_get(c->obj, "layer_types");
    int64_t pattern = sy_jread_int_or(c, "sliding_window_pattern",
                                      sy_jread_int_or(c, "_sliding_window_pattern", 6, 1, 1024), 1, 1024);
    if (sy_json_is_array(types) && sy_json_len(types) != (size_t)m->d.n_layer)
        return sy_jread_refuse(c, SY_EFORMAT, "'layer_types': expected %d entries, found %zu", m->d.n_layer,
                               sy_json_len(types));
    for (int l = 0; l < m->d.n_layer; l++) {
        const char *type = sy_json_text(sy_json_at(types, (size_t)l));
        m->global[l] = (l + 1) % pattern == 0;
        if (!type) continue;
        m->global[l] = !strcmp(type, "full_attention");
        if (!m->global[l] && strcmp(type, "sliding_attention") != 0)
            return sy_jread_refuse(c, SY_ENOSUP, "'layer_types'[%d]: '%s' is not supported", l, type);
    }
    return c->st;
}

/* Newer configs keep one rope per kind of layer inside rope_parameters. */
static sy_status open_ropes(struct sy_arena *a, struct sy_jread *c, struct gemma3 *m)
{
    const struct sy_json *params = sy_json_get(c->obj, "rope_parameters");
    const struct sy_json *full = sy_json_get(params, "full_attention"),
                         *local = sy_json_get(params, "sliding_attention");
    if (full && local) {
        struct sy_jread f = *c, l = *c;
        f.obj = full;
        l.obj = local;
        /* Each is itself a flat set of rope keys: read it as the scaling of its own theta. */
        double theta = sy_jread_num_or(&f, "rope_theta", 1e6, 1, 1e12),
               near = sy_jread_num_or(&l, "rope_theta", 1e4, 1, 1e12);
        sy_rope_plain(a, &l, m->d.d_head, near, &m->rope_local);
        sy_rope_plain(a, &f, m->d.d_head, theta, &m->rope_global);
        double factor = sy_jread_num_or(&f, "factor", 1, 1e-3, 1e6);
        const char *type = sy_jread_text_or(&f, "rope_type", "default");
        if (strcmp(type, "default") != 0 && strcmp(type, "linear") != 0)
            sy_jread_refuse(&f, SY_ENOSUP, "'rope_parameters': type '%s' is not supported", type);
        float *freq = (float *)(uintptr_t)m->rope_global.inv_freq;
        for (int i = 0; i < m->rope_global.d_rot / 2 && !f.st; i++) freq[i] = (float)(freq[i] / factor);
        return c->st = f.st ? f.st : l.st;
    }
    if (sy_rope_plain(a, c, m->d.d_head, sy_jread_num_or(c, "rope_local_base_freq", 10000, 1, 1e12), &m->rope_local))
        return c->st;
    return sy_rope_open(a, c, m->d.d_head, &m->rope_global);
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct gemma3 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (!sy_jread_has(c, "head_dim")) return sy_jread_refuse(c, SY_EFORMAT, "'head_dim' is missing");
    if (sy_decoder_open(c, &m->d, true, info)) return c->st;
    m->bias = sy_jread_bool_or(c, "attention_bias", false);
    m->window = (int32_t)sy_jread_int_or(c, "sliding_window", 4096, 1, 1 << 30);
    m->scale = (float)(1 / sqrt(sy_jread_num_or(c, "query_pre_attn_scalar", 256, 1e-3, 1e6)));
    m->softcap_attn = (float)sy_jread_num_or(c, "attn_logit_softcapping", 0, 0, 1e6);
    m->softcap_final = (float)sy_jread_num_or(c, "final_logit_softcapping", 0, 0, 1e6);
    m->global = sy_arena_array(a, (size_t)m->d.n_layer, sizeof *m->global);
    if (!m->global) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_fn_open(c, "hidden_activation", "gelu_pytorch_tanh", &m->fn)) return c->st;
    if (open_layers(c, m)) return c->st;
    return open_ropes(a, c, m);
}

static sy_val norm(struct sy_graph *g, const struct gemma3 *m, const char *name, int l, sy_val x)
{
    return sy_norm(g, x, sy_norm_weight(g, name, l, m->d.d_model, true), m->d.eps);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct gemma3 *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {.scale = m->scale,
                             .softcap = m->softcap_attn,
                             .bias = m->bias,
                             .bias_out = m->bias,
                             .qk_norm = true,
                             .norm_plus_one = true};
    sy_val x = sy_scale(g, sy_build_embed(g, d), sqrtf((float)d->d_model));
    for (int l = 0; l < d->n_layer; l++) {
        o.rope = m->global[l] ? &m->rope_global : &m->rope_local;
        o.window = m->global[l] ? 0 : m->window;
        sy_val n = norm(g, m, "model.layers.%d.input_layernorm.weight", l, x);
        n = norm(g, m, "model.layers.%d.post_attention_layernorm.weight", l, sy_build_attention(g, d, l, n, &o));
        x = sy_add(g, n, x);
        n = norm(g, m, "model.layers.%d.pre_feedforward_layernorm.weight", l, x);
        n = norm(g, m, "model.layers.%d.post_feedforward_layernorm.weight", l,
                 sy_build_mlp(g, d, l, n, m->fn, false));
        x = sy_add(g, n, x);
    }
    return sy_build_head(g, d, x, true, m->softcap_final);
}

static const char *const claims[] = {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", NULL};
const struct sy_arch sy_arch_gemma3 = {"gemma3", claims, open, build};
