/* Gemma 2 (transformers: Gemma2ForCausalLM; arXiv:2408.00118): norms of (1 + w) before and after each sublayer,
 * bounds on scores and logits, every other layer slides. */
#include <math.h>

#include "model/model.h"

struct gemma2 {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    enum sy_fn fn;
    bool bias;
    bool *full; /* [n_layer] */
    int32_t window;
    float scale, softcap_attn, softcap_final;
};

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct gemma2 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (!sy_jread_has(c, "head_dim")) return sy_jread_refuse(c, SY_EFORMAT, "'head_dim' is missing");
    if (sy_decoder_open(c, &m->d, true, info)) return c->st;
    m->bias = sy_jread_bool_or(c, "attention_bias", false);
    m->window = (int32_t)sy_jread_int_or(c, "sliding_window", 4096, 1, 1 << 30);
    m->scale = (float)(1 / sqrt(sy_jread_num_or(c, "query_pre_attn_scalar", 256, 1e-3, 1e6)));
    m->softcap_attn = sy_softcap_open(c, "attn_logit_softcapping", 50);
    m->softcap_final = sy_softcap_open(c, "final_logit_softcapping", 30);
    if (sy_fn_open(c, "hidden_activation", "gelu_pytorch_tanh", &m->fn)) return c->st;
    if (sy_layers_open(a, c, m->d.n_layer, 2, &m->full)) return c->st;
    return sy_rope_open(a, c, m->d.d_head, &m->rope);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct gemma2 *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {
        .rope = &m->rope, .scale = m->scale, .softcap = m->softcap_attn, .bias = m->bias, .bias_out = m->bias};
    sy_val x = sy_scale(g, sy_build_embed(g, d), sqrtf((float)d->d_model));
    for (int l = 0; l < d->n_layer; l++) {
        o.window = m->full[l] ? 0 : m->window;
        x = sy_build_sandwich(g, d, l, x, &o, m->fn);
    }
    return sy_build_head(g, d, x, true, m->softcap_final);
}

static const char *const claims[] = {"Gemma2ForCausalLM", NULL};
const struct sy_arch sy_arch_gemma2 = {"gemma2", claims, open, build};
