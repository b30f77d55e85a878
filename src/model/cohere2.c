/* Command R7B and A (transformers: Cohere2ForCausalLM): attention and MLP beside each other on one normed input,
 * norms that take the mean off, rope (on pairs of neighbours) only where a layer slides. */
#include <math.h>

#include "model/model.h"

struct cohere2 {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    enum sy_fn fn;
    bool bias;
    bool *full; /* [n_layer] */
    int32_t window;
    float logit_scale;
};

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct cohere2 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, true, info)) return c->st;
    m->d.eps = (float)sy_jread_num_or(c, "layer_norm_eps", 1e-5, 0, 1);
    m->bias = sy_jread_bool_or(c, "attention_bias", false);
    m->window = (int32_t)sy_jread_int_or(c, "sliding_window", 4096, 1, 1 << 30);
    m->logit_scale = (float)sy_jread_num_or(c, "logit_scale", 0.0625, -1e6, 1e6);
    if (sy_jread_bool_or(c, "use_qk_norm", false))
        return sy_jread_refuse(c, SY_ENOSUP, "'use_qk_norm': true is not supported for this architecture");
    if (sy_layers_open(a, c, m->d.n_layer, 4, &m->full)) return c->st;
    if (sy_fn_open(c, "hidden_act", "silu", &m->fn)) return c->st;
    if (sy_rope_open(a, c, m->d.d_head, &m->rope)) return c->st;
    m->rope.interleaved = true;
    return c->st;
}

static sy_val norm(struct sy_graph *g, const struct sy_decoder *d, const char *name, int l, sy_val x)
{
    return sy_norm_centred(g, x, sy_norm_weight(g, name, l, d->d_model, false), d->eps);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct cohere2 *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {.scale = 1 / sqrtf((float)d->d_head), .bias = m->bias, .bias_out = m->bias};
    sy_val x = sy_build_embed(g, d);
    for (int l = 0; l < d->n_layer; l++) {
        o.rope = m->full[l] ? NULL : &m->rope;
        o.window = m->full[l] ? 0 : m->window;
        sy_val n = norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
        x = sy_add(g, sy_build_attention(g, d, l, n, &o), x);
        x = sy_add(g, sy_build_mlp(g, d, l, n, m->fn, false), x);
    }
    x = norm(g, d, "model.norm.weight", -1, sy_rows(g, x));
    return sy_sample(g, sy_scale(g, sy_build_logits(g, d, x), m->logit_scale));
}

static const char *const claims[] = {"Cohere2ForCausalLM", NULL};
const struct sy_arch sy_arch_cohere2 = {"cohere2", claims, open, build};
