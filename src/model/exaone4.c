/* EXAONE 4 (transformers: Exaone4ForCausalLM; arXiv:2507.11407): norms after each sublayer only and of each head of q
 * and k; where some layers slide, the others have no rope. */
#include <math.h>

#include "model/model.h"

struct exaone4 {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    enum sy_fn fn;
    bool *full; /* [n_layer] */
    int32_t window;
};

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct exaone4 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info)) return c->st;
    m->window = (int32_t)sy_jread_int_or(c, "sliding_window", 0, 0, 1 << 30);
    if (m->window > 0 && sy_layers_open(a, c, m->d.n_layer, 4, &m->full)) return c->st;
    if (sy_fn_open(c, "hidden_act", "silu", &m->fn)) return c->st;
    return sy_rope_open(a, c, m->d.d_head, &m->rope);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct exaone4 *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {.scale = 1 / sqrtf((float)d->d_head), .qk_norm = true};
    sy_val x = sy_build_embed(g, d);
    for (int l = 0; l < d->n_layer; l++) {
        bool slides = m->full && !m->full[l];
        o.rope = slides || !m->full ? &m->rope : NULL;
        o.window = slides ? m->window : 0;
        sy_val a = sy_build_attention(g, d, l, x, &o);
        x = sy_add(g, sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, a), x);
        sy_val y = sy_build_mlp(g, d, l, x, m->fn, false);
        x = sy_add(g, sy_build_norm(g, d, "model.layers.%d.post_feedforward_layernorm.weight", l, y), x);
    }
    return sy_build_head(g, d, x, false, 0);
}

static const char *const claims[] = {"Exaone4ForCausalLM", NULL};
const struct sy_arch sy_arch_exaone4 = {"exaone4", claims, open, build};
