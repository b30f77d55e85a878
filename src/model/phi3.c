/* Phi-3 and 4 (transformers: Phi3ForCausalLM; arXiv:2404.14219): Llama with q, k, v in one tensor, gate and up in
 * another; rope by one of two sets of factors, for short and for long prompts (LongRoPE, arXiv:2402.13753). */
#include <math.h>
#include <string.h>

#include "model/model.h"

struct phi3 {
    struct sy_decoder d;
    struct sy_rope_dim rope;
    enum sy_fn fn;
    int32_t window;
};

static const float *scaled(struct sy_arena *a, struct sy_jread *s, const char *key, const struct sy_rope_dim *rope)
{
    const struct sy_json *list = sy_json_get(s->obj, key);
    int32_t n = rope->d_rot / 2;
    float *freq = sy_arena_array(a, (size_t)n, sizeof *freq);
    if (!freq) sy_jread_refuse(s, SY_ENOMEM, "no memory for rope");
    if (sy_json_len(list) != (size_t)n)
        sy_jread_refuse(s, SY_EFORMAT, "'%s': expected %d factors, found %zu", key, n, sy_json_len(list));
    for (int32_t i = 0; i < n && !s->st; i++) {
        double f = sy_json_number(sy_json_at(list, (size_t)i), 0);
        if (!(f > 1e-6 && f < 1e9)) sy_jread_refuse(s, SY_EFORMAT, "'%s'[%d]: expected a positive number", key, i);
        else freq[i] = (float)(rope->inv_freq[i] / f);
    }
    return freq;
}

/* HF's forward() takes the long factors when the tokens it is given reach beyond the original context. */
static sy_status open_rope(struct sy_arena *a, struct sy_jread *c, struct phi3 *m)
{
    const struct sy_json *params = sy_json_get(c->obj, "rope_parameters");
    struct sy_jread s = *c;
    s.obj = params ? params : sy_json_get(c->obj, "rope_scaling");
    const char *type = sy_jread_text_or(&s, "rope_type", sy_jread_text_or(&s, "type", "default"));
    if (strcmp(type, "longrope") != 0 && strcmp(type, "su") != 0) return sy_rope_open(a, c, m->d.d_head, &m->rope);
    struct sy_jread top = *c;
    if (sy_json_get(params, "partial_rotary_factor")) top.obj = params;
    if (sy_rope_plain(a, &top, m->d.d_head, sy_rope_theta(c, NULL), &m->rope)) return c->st = top.st;
    double old = sy_jread_num_or(c, "original_max_position_embeddings", m->d.n_ctx, 2, 1e9);
    old = sy_jread_num_or(&s, "original_max_position_embeddings", old, 2, 1e9);
    if (sy_jread_has(&s, "short_mscale") || sy_jread_has(&s, "long_mscale"))
        sy_jread_refuse(&s, SY_ENOSUP, "'short_mscale' and 'long_mscale' are not supported");
    double factor = m->d.n_ctx / old, own = factor > 1 ? sqrt(1 + log(factor) / log(old)) : 1;
    const float *near = scaled(a, &s, "short_factor", &m->rope), *far = scaled(a, &s, "long_factor", &m->rope);
    m->rope.mscale = (float)sy_jread_num_or(&s, "attention_factor", own, 1e-3, 1e3);
    m->rope.inv_freq = near;
    m->rope.inv_freq_long = far;
    m->rope.n_short = (int32_t)old;
    return c->st = s.st;
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct phi3 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info)) return c->st;
    m->window = (int32_t)sy_jread_int_or(c, "sliding_window", 0, 0, 1 << 30);
    if (sy_jread_bool_or(c, "attention_bias", false))
        return sy_jread_refuse(c, SY_ENOSUP, "'attention_bias': true is not supported for this architecture");
    if (sy_fn_open(c, "hidden_act", "silu", &m->fn)) return c->st;
    return open_rope(a, c, m);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct phi3 *m = hp;
    const struct sy_decoder *d = &m->d;
    struct sy_block_opt o = {
        .rope = &m->rope, .scale = 1 / sqrtf((float)d->d_head), .window = m->window, .fused = true};
    sy_val x = sy_build_embed(g, d);
    for (int l = 0; l < d->n_layer; l++) {
        sy_val n = sy_build_norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
        x = sy_add(g, sy_build_attention(g, d, l, n, &o), x);
        n = sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, x);
        x = sy_add(g, sy_build_mlp_fused(g, d, l, n, m->fn), x);
    }
    return sy_build_head(g, d, x, false, 0);
}

static const char *const claims[] = {"Phi3ForCausalLM", NULL};
const struct sy_arch sy_arch_phi3 = {"phi3", claims, open, build};
