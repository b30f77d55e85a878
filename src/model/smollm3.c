/* SmolLM3 (transformers: SmolLM3ForCausalLM): Llama, but some layers have no rope (NoPE, arXiv:2501.18795). */
#include <math.h>

#include "model/model.h"

struct smollm3 {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    enum sy_fn fn;
    bool bias, mlp_bias;
    bool *roped; /* [n_layer] */
};

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct smollm3 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, true, info)) return c->st;
    m->bias = sy_jread_bool_or(c, "attention_bias", false);
    m->mlp_bias = sy_jread_bool_or(c, "mlp_bias", false);
    if (sy_jread_bool_or(c, "use_sliding_window", false))
        return sy_jread_refuse(c, SY_ENOSUP, "'use_sliding_window': true is not supported for this architecture");
    m->roped = sy_arena_array(a, (size_t)m->d.n_layer, sizeof *m->roped);
    if (!m->roped) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    const struct sy_json *list = sy_json_get(c->obj, "no_rope_layers"); /* 0: no rope, despite the name */
    int64_t every = sy_jread_int_or(c, "no_rope_layer_interval", 4, 1, 1 << 20);
    if (sy_json_is_array(list) && sy_json_len(list) != (size_t)m->d.n_layer)
        return sy_jread_refuse(c, SY_EFORMAT, "'no_rope_layers': expected %d entries, found %zu", m->d.n_layer,
                               sy_json_len(list));
    for (int l = 0; l < m->d.n_layer; l++)
        m->roped[l] =
            sy_json_is_array(list) ? sy_json_int(sy_json_at(list, (size_t)l), 1) != 0 : (l + 1) % every != 0;
    if (sy_fn_open(c, "hidden_act", "silu", &m->fn)) return c->st;
    return sy_rope_open(a, c, m->d.d_head, &m->rope);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct smollm3 *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {.scale = 1 / sqrtf((float)d->d_head), .bias = m->bias, .bias_out = m->bias};
    sy_val x = sy_build_embed(g, d);
    for (int l = 0; l < d->n_layer; l++) {
        o.rope = m->roped[l] ? &m->rope : NULL;
        sy_val n =
            sy_norm(g, x, sy_norm_weight(g, "model.layers.%d.input_layernorm.weight", l, d->d_model, false), d->eps);
        x = sy_add(g, sy_build_attention(g, d, l, n, &o), x);
        n = sy_norm(g, x, sy_norm_weight(g, "model.layers.%d.post_attention_layernorm.weight", l, d->d_model, false),
                    d->eps);
        x = sy_add(g, sy_build_mlp(g, d, l, n, m->fn, m->mlp_bias), x);
    }
    return sy_build_head(g, d, x, false, 0);
}

static const char *const claims[] = {"SmolLM3ForCausalLM", NULL};
const struct sy_arch sy_arch_smollm3 = {"smollm3", claims, open, build};
