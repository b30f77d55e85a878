/* OLMo 2 and 3 (transformers: Olmo2ForCausalLM, Olmo3ForCausalLM; arXiv:2501.00656): norms after each sublayer only,
 * and of q and k over all heads. OLMo 3 slides on most layers; only those that see everything have their rope scaled.
 */
#include <math.h>
#include <string.h>

#include "model/model.h"

struct olmo2 {
    struct sy_decoder d;
    struct sy_rope_dim rope_full, rope_local;
    enum sy_fn fn;
    bool bias;
    bool *full; /* [n_layer] */
    int32_t window;
};

static sy_status open_olmo3(struct sy_arena *a, struct sy_jread *c, struct olmo2 *m)
{
    m->window = (int32_t)sy_jread_int_or(c, "sliding_window", 4096, 1, 1 << 30);
    if (sy_layers_open(a, c, m->d.n_layer, 4, &m->full)) return c->st;
    if (sy_json_get(sy_json_get(c->obj, "rope_parameters"), "sliding_attention"))
        return sy_rope_open_kind(a, c, "sliding_attention", m->d.d_head, &m->rope_local);
    return sy_rope_plain(a, c, m->d.d_head, sy_rope_theta(c, NULL), &m->rope_local);
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct olmo2 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info)) return c->st;
    m->bias = sy_jread_bool_or(c, "attention_bias", false);
    if (sy_fn_open(c, "hidden_act", "silu", &m->fn)) return c->st;
    const char *name = sy_json_text(sy_json_at(sy_json_get(c->obj, "architectures"), 0));
    if (name && !strcmp(name, "Olmo3ForCausalLM") && open_olmo3(a, c, m)) return c->st;
    return sy_rope_open_kind(a, c, "full_attention", m->d.d_head, &m->rope_full);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct olmo2 *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {
        .scale = 1 / sqrtf((float)d->d_head), .qk_norm_wide = true, .bias = m->bias, .bias_out = m->bias};
    sy_val x = sy_build_embed(g, d);
    for (int l = 0; l < d->n_layer; l++) {
        bool full = !m->full || m->full[l];
        o.rope = full ? &m->rope_full : &m->rope_local;
        o.window = full ? 0 : m->window;
        sy_val a = sy_build_attention(g, d, l, x, &o);
        x = sy_add(g, sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, a), x);
        sy_val y = sy_build_mlp(g, d, l, x, m->fn, false);
        x = sy_add(g, sy_build_norm(g, d, "model.layers.%d.post_feedforward_layernorm.weight", l, y), x);
    }
    return sy_build_head(g, d, x, false, 0);
}

static const char *const claims[] = {"Olmo2ForCausalLM", "Olmo3ForCausalLM", NULL};
const struct sy_arch sy_arch_olmo2 = {"olmo2", claims, open, build};
