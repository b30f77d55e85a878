/* Gemma 3n, text (transformers: Gemma3nForCausalLM): several streams of the residual of which one is computed and the
 * others predicted and corrected (AltUp, arXiv:2301.13310), a low-rank residual (LAuReL, arXiv:2411.07501), sparse
 * activations, per-layer embeddings, shared keys. */
#include <math.h>
#include <stdio.h>

#include "base/normal.h"
#include "model/block/gemma.h"

enum { STREAMS_MAX = 16 };

struct gemma3n {
    struct sy_gemma m;
    int32_t n_stream, active, laurel;
    bool scaled;
    float *sparsity; /* [n_layer] deviations above the mean at which activations begin; 0: all count */
};

static sy_status open_sparsity(struct sy_arena *a, struct sy_jread *c, struct gemma3n *m)
{
    const struct sy_json *list = sy_json_get(c->obj, "activation_sparsity_pattern");
    size_t n = (size_t)m->m.d.n_layer;
    m->sparsity = sy_arena_array(a, n, sizeof *m->sparsity);
    if (!m->sparsity) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_json_len(list) != n)
        return sy_jread_refuse(c, SY_EFORMAT, "'activation_sparsity_pattern': expected %zu entries, found %zu", n,
                               sy_json_len(list));
    for (size_t l = 0; l < n; l++) {
        double p = sy_json_number(sy_json_at(list, l), -1);
        if (!(p >= 0 && p < 1))
            return sy_jread_refuse(c, SY_EFORMAT, "'activation_sparsity_pattern'[%zu]: expected a share below 1", l);
        m->sparsity[l] = p > 0 ? (float)sy_normal_quantile(p) : 0;
        if (p > 0 && m->sparsity[l] == 0) m->sparsity[l] = 1e-30f; /* half of them: from the mean on */
    }
    return c->st;
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct gemma3n *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    struct sy_gemma *s = &m->m;
    if (sy_decoder_open(c, &s->d, true, info)) return c->st;
    if (sy_layers_open(a, c, s->d.n_layer, 5, &s->full) || sy_gemma_open(a, c, s)) return c->st;
    if (s->d_ple < 1) return sy_jread_refuse(c, SY_EFORMAT, "'hidden_size_per_layer_input': expected at least 1");
    s->d_head_full = s->d.d_head;
    s->n_kv_full = s->d.n_kv;
    m->n_stream = (int32_t)sy_jread_int_or(c, "altup_num_inputs", 4, 1, STREAMS_MAX);
    m->active = (int32_t)sy_jread_int_or(c, "altup_active_idx", 0, 0, m->n_stream - 1);
    m->scaled = sy_jread_bool_or(c, "altup_correct_scale", true);
    m->laurel = (int32_t)sy_jread_int_or(c, "laurel_rank", 64, 1, 1 << 16);
    if (open_sparsity(a, c, m)) return c->st;
    return sy_rope_open_two(a, c, s->d.d_head, &s->rope_full, &s->rope_local);
}

/* [tok, n]: n coefficients of each token, made from stream x. */
static sy_val coefficients(struct sy_graph *g, const struct gemma3n *m, int l, sy_val x, const char *name, int64_t n)
{
    const struct sy_decoder *d = &m->m.d;
    sy_val r = sy_build_norm(g, d, "model.layers.%d.altup.router_norm.weight", l, x);
    sy_val w = sy_weight_exact(g, "model.layers.%d.altup.modality_router.weight", l, m->n_stream, d->d_model);
    r = sy_act(g, sy_linear(g, sy_scale(g, r, 1 / (float)d->d_model), w, SY_NONE), SY_TANH);
    return sy_linear(g, r, sy_weight_exact(g, name, l, n, m->n_stream), SY_NONE);
}

static void predict(struct sy_graph *g, const struct gemma3n *m, int l, const sy_val *s, sy_val *pred)
{
    int32_t n = m->n_stream;
    sy_val c = coefficients(g, m, l, s[m->active], "model.layers.%d.altup.prediction_coefs.weight", n * n);
    for (int32_t a = 0; a < n; a++) {
        pred[a] = s[a];
        for (int32_t b = 0; b < n; b++)
            pred[a] = sy_add(g, pred[a], sy_mul(g, s[b], sy_part(g, c, a * n + b, a * n + b + 1)));
    }
}

static void correct(struct sy_graph *g, const struct gemma3n *m, int l, const sy_val *pred, sy_val active, sy_val *s)
{
    int32_t n = m->n_stream;
    sy_val c = coefficients(g, m, l, active, "model.layers.%d.altup.correction_coefs.weight", n);
    sy_val news = sy_add(g, active, sy_scale(g, pred[m->active], -1));
    for (int32_t a = 0; a < n; a++)
        s[a] = sy_add(g, sy_add(g, pred[a], news), sy_mul(g, news, sy_part(g, c, a, a + 1)));
}

static sy_val laurel(struct sy_graph *g, const struct gemma3n *m, int l, sy_val x)
{
    const struct sy_decoder *d = &m->m.d;
    sy_val w = sy_weight(g, SY_WHOLE, "model.layers.%d.laurel.linear_left.weight", l, m->laurel, d->d_model);
    sy_val y = sy_linear(g, x, w, SY_NONE);
    w = sy_weight(g, SY_WHOLE, "model.layers.%d.laurel.linear_right.weight", l, d->d_model, m->laurel);
    y = sy_build_norm(g, d, "model.layers.%d.laurel.post_laurel_norm.weight", l, sy_linear(g, y, w, SY_NONE));
    return sy_add(g, y, x);
}

static sy_val mlp(struct sy_graph *g, const struct gemma3n *m, int l, sy_val x)
{
    const struct sy_decoder *d = &m->m.d;
    if (m->sparsity[l] == 0) return sy_build_mlp(g, d, l, x, m->m.fn, false);
    int64_t wide = 2 * (int64_t)d->d_ff;
    sy_val w = sy_weight(g, SY_BY_OUT, "model.layers.%d.mlp.{gate,up}_proj.weight", l, wide, d->d_model);
    sy_val both = sy_linear(g, x, w, SY_NONE);
    sy_val gate = sy_sparsify(g, sy_part(g, both, 0, d->d_ff), m->sparsity[l]);
    sy_val h = sy_glu(g, gate, sy_part(g, both, d->d_ff, 2 * d->d_ff), m->m.fn);
    return sy_linear(g, h, sy_weight(g, SY_BY_IN, "model.layers.%d.mlp.down_proj.weight", l, d->d_model, d->d_ff),
                     SY_NONE);
}

static void layer(struct sy_graph *g, const struct gemma3n *m, int l, sy_val *s, sy_val ple, sy_val *state)
{
    const struct sy_decoder *d = &m->m.d;
    sy_val pred[STREAMS_MAX];
    predict(g, m, l, s, pred);
    sy_val x = pred[m->active], n = sy_build_norm(g, d, "model.layers.%d.input_layernorm.weight", l, x);
    sy_val side = laurel(g, m, l, n), a = sy_gemma_attention(g, &m->m, l, n, state);
    a = sy_build_norm(g, d, "model.layers.%d.post_attention_layernorm.weight", l, a);
    x = sy_scale(g, sy_add(g, sy_add(g, a, x), side), sqrtf(0.5f));
    n = sy_build_norm(g, d, "model.layers.%d.pre_feedforward_layernorm.weight", l, x);
    n = sy_build_norm(g, d, "model.layers.%d.post_feedforward_layernorm.weight", l, mlp(g, m, l, n));
    correct(g, m, l, pred, sy_add(g, n, x), s);
    sy_val first = s[m->active];
    if (m->scaled)
        first =
            sy_mul(g, first, sy_weight(g, SY_WHOLE, "model.layers.%d.altup.correct_output_scale", l, 1, d->d_model));
    first = sy_gemma_ple_layer(g, &m->m, l, first, ple);
    for (int32_t i = 1; i < m->n_stream; i++) s[i] = sy_add(g, s[i], first);
}

/* Stream i through its own matrix, with the size of stream 0. */
static sy_val project(struct sy_graph *g, const struct gemma3n *m, const char *stem, int32_t i, sy_val x, sy_val like)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%d.weight", stem, i - 1);
    sy_val w = sy_weight(g, SY_WHOLE, name, -1, m->m.d.d_model, m->m.d.d_model);
    return sy_match(g, sy_linear(g, x, w, SY_NONE), like, 1e-5f);
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct gemma3n *m = hp;
    const struct sy_decoder *d = &m->m.d;
    sy_val s[STREAMS_MAX], state[1024];
    s[0] = sy_scale(g, sy_build_embed(g, d), sqrtf((float)d->d_model));
    sy_val ple = sy_gemma_ple(g, &m->m, s[0]);
    for (int32_t i = 1; i < m->n_stream; i++) s[i] = project(g, m, "model.altup_projections", i, s[0], s[0]);
    for (int l = 0; l < d->n_layer; l++) layer(g, m, l, s, ple, state);
    sy_val first = sy_rows(g, s[0]), sum = first;
    for (int32_t i = 1; i < m->n_stream; i++)
        sum = sy_add(g, sum, project(g, m, "model.altup_unembed_projections", i, sy_rows(g, s[i]), first));
    sum = sy_build_norm(g, d, "model.norm.weight", -1, sy_scale(g, sum, 1 / (float)m->n_stream));
    sy_val logits = sy_build_logits(g, d, sum);
    return sy_sample(g, m->m.softcap > 0 ? sy_softcap(g, logits, m->m.softcap) : logits);
}

static const char *const claims[] = {"Gemma3nForCausalLM", "Gemma3nForConditionalGeneration", NULL};
const struct sy_arch sy_arch_gemma3n = {"gemma3n", claims, open, build};
