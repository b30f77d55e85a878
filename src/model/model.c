#include "model/model.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "graph/rope.h"

sy_status sy_model_open(const struct sy_env *env, const struct sy_json *config, const char *where, struct sy_model *m,
                        struct sy_err *err)
{
    *m = (struct sy_model){0};
    sy_arena_init(&m->arena, env, 0);
    const struct sy_json *names = sy_json_get(config, "architectures");
    const char *name = sy_json_text(sy_json_at(names, 0));
    if (!name) return sy_fail(err, SY_EFORMAT, "%s: 'architectures': expected a list with the model's class", where);
    for (int i = 0; sy_archs[i] && !m->arch; i++)
        for (const char *const *c = sy_archs[i]->claims; *c; c++)
            if (!strcmp(*c, name)) m->arch = sy_archs[i];
    if (!m->arch)
        return sy_fail(err, SY_ENOSUP,
                       "%s: architecture '%s' is not supported; 'systole help models' lists those that are", where,
                       name);
    struct sy_jread r = {.obj = config, .where = where, .err = err};
    sy_status st = m->arch->open(&m->arena, &r, &m->info, &m->hp);
    if (!st) st = r.st;
    if (st) sy_model_release(m);
    return st;
}

void sy_model_release(struct sy_model *m)
{
    if (m->arena.env) sy_arena_release(&m->arena);
    m->hp = NULL;
}

sy_status sy_model_build(const struct sy_env *env, const struct sy_model *m, struct sy_shape shape,
                         struct sy_graph **out, struct sy_err *err)
{
    return sy_model_build_part(env, m, SY_MODEL_ALONE, shape, out, err);
}

sy_status sy_model_build_part(const struct sy_env *env, const struct sy_model *m, enum sy_model_part part,
                              struct sy_shape shape, struct sy_graph **out, struct sy_err *err)
{
    struct sy_graph *g;
    sy_status st = sy_graph_new(env, shape, &g, err);
    if (st) return st;
    if (part != SY_MODEL_ALONE) sy_graph_keep_hidden(g);
    sy_val y = part == SY_MODEL_HEAD ? SY_NONE : m->arch->build(g, m->hp);
    sy_val head = part == SY_MODEL_HEAD || part == SY_MODEL_BOTH ? m->info.build_mtp(g, m->hp) : SY_NONE;
    st = sy_graph_finish(g, y.id ? y : head, err);
    if (st) {
        sy_graph_free(g);
        return sy_while(err, st, "model '%s'", m->arch->name);
    }
    *out = g;
    return SY_OK;
}

/* ---- configs ------------------------------------------------------------------------------------------------- */

/* A number, or one for each layer, which must be equal. */
static int32_t open_width(struct sy_jread *r)
{
    const struct sy_json *list = sy_json_get(r->obj, "intermediate_size");
    /* A model whose layers all have experts may name no other width. */
    bool experts_only = !list && sy_jread_has(r, "moe_intermediate_size");
    if (!sy_json_is_array(list))
        return (int32_t)sy_jread_int(r, experts_only ? "moe_intermediate_size" : "intermediate_size", 1, 1 << 22);
    int64_t first = sy_json_int(sy_json_at(list, 0), 0);
    for (size_t i = 0; i < sy_json_len(list); i++)
        if (sy_json_int(sy_json_at(list, i), 0) != first)
            sy_jread_refuse(r, SY_ENOSUP, "'intermediate_size': layers of different widths are not supported");
    if (first < 1 || first > 1 << 22)
        sy_jread_refuse(r, SY_EFORMAT, "'intermediate_size': expected numbers from 1 to %d", 1 << 22);
    return r->st ? 1 : (int32_t)first;
}

sy_status sy_decoder_open(struct sy_jread *r, struct sy_decoder *d, bool tied_default, struct sy_info *info)
{
    const struct sy_json *kinds = sy_json_get(r->obj, "layers_block_type"); /* says it too, in newer Nemotron-H */
    d->n_layer = (int32_t)sy_json_len(kinds);
    if (!sy_json_is_array(kinds) || d->n_layer < 1 || d->n_layer > 1024 || sy_jread_has(r, "num_hidden_layers"))
        d->n_layer = (int32_t)sy_jread_int(r, "num_hidden_layers", 1, 1024);
    d->d_model = (int32_t)sy_jread_int(r, "hidden_size", 1, 1 << 20);
    d->n_head = (int32_t)sy_jread_int(r, "num_attention_heads", 1, 4096);
    d->n_kv = (int32_t)sy_jread_int_or(r, "num_key_value_heads", d->n_head, 1, 4096);
    d->d_ff = open_width(r);
    d->n_vocab = (int32_t)sy_jread_int(r, "vocab_size", 1, 1 << 24);
    d->n_ctx = (int32_t)sy_jread_int_or(r, "max_position_embeddings", 2048, 1, 1 << 30);
    d->eps = (float)sy_jread_num_or(r, "rms_norm_eps", 1e-6, 0, 1);
    d->tied = sy_jread_bool_or(r, "tie_word_embeddings", tied_default);
    d->d_head = (int32_t)sy_jread_int_or(r, "head_dim", d->d_model / d->n_head, 1, 8192);
    if (d->n_head % d->n_kv)
        sy_jread_refuse(r, SY_EFORMAT, "'num_attention_heads' %d is not a multiple of 'num_key_value_heads' %d",
                        d->n_head, d->n_kv);
    bool own_dims = sy_jread_has(r, "head_dim") || sy_jread_has(r, "kv_lora_rank");
    if (!own_dims && d->d_model % d->n_head)
        sy_jread_refuse(r, SY_EFORMAT, "'hidden_size' %d is not a multiple of 'num_attention_heads' %d", d->d_model,
                        d->n_head);
    *info = (struct sy_info){.n_vocab = d->n_vocab, .n_ctx = d->n_ctx, .n_layer = d->n_layer, .d_model = d->d_model};
    return r->st;
}

sy_status sy_fn_open(struct sy_jread *r, const char *key, const char *otherwise, enum sy_fn *out)
{
    static const struct {
        const char *name;
        enum sy_fn fn;
    } known[] = {{"silu", SY_SILU},
                 {"swish", SY_SILU},
                 {"gelu", SY_GELU},
                 {"gelu_pytorch_tanh", SY_GELU_TANH},
                 {"gelu_new", SY_GELU_TANH}};
    const char *name = sy_jread_text_or(r, key, otherwise);
    for (size_t i = 0; i < SY_COUNT(known); i++)
        if (!strcmp(known[i].name, name)) {
            *out = known[i].fn;
            return r->st;
        }
    *out = SY_SILU;
    return sy_jread_refuse(r, SY_ENOSUP, "'%s': activation '%s' is not supported", key, name);
}

float sy_softcap_open(struct sy_jread *r, const char *key, double usual)
{
    bool absent = !sy_json_get(r->obj, key);
    return (float)sy_jread_num_or(r, key, absent ? usual : 0, 0, 1e6);
}

/* ---- rope ------------------------------------------------------------------------------------------------------ */

struct yarn {
    double factor, old, fast, slow;
    bool truncate;
};

/* Dimension at which a wave makes `turns` turns within the original context (YaRN, arXiv:2309.00071, section 3.2). */
static double yarn_dim(double turns, double old, double base, int d_rot)
{
    return d_rot * log(old / (2 * M_PI * turns)) / (2 * log(base));
}

static void scale_yarn(float *f, int d_rot, double base, const struct yarn *y)
{
    double lo = yarn_dim(y->fast, y->old, base, d_rot), hi = yarn_dim(y->slow, y->old, base, d_rot);
    if (y->truncate) {
        lo = floor(lo);
        hi = ceil(hi);
    }
    lo = fmax(lo, 0);
    hi = fmin(hi, d_rot - 1);
    if (lo == hi) hi += 0.001;
    for (int i = 0; i < d_rot / 2; i++) {
        double ramp = fmin(fmax((i - lo) / (hi - lo), 0), 1);
        f[i] = (float)(f[i] * (1 - ramp) + f[i] / y->factor * ramp);
    }
}

static void open_yarn(struct sy_jread *s, double base, int32_t n_ctx, float *freq, struct sy_rope_dim *out)
{
    struct yarn y = {.factor = sy_jread_num(s, "factor", 1e-3, 1e6),
                     .old = sy_jread_num_or(s, "original_max_position_embeddings", n_ctx, 1, 1e9),
                     .fast = sy_jread_num_or(s, "beta_fast", 32, 1e-6, 1e6),
                     .slow = sy_jread_num_or(s, "beta_slow", 1, 1e-6, 1e6),
                     .truncate = sy_jread_bool_or(s, "truncate", true)};
    double m = sy_jread_num_or(s, "mscale", 0, 0, 1e3), all = sy_jread_num_or(s, "mscale_all_dim", 0, 0, 1e3);
    out->mscale = (float)sy_jread_num_or(s, "attention_factor", sy_rope_yarn_scale(y.factor, m, all), 1e-3, 1e3);
    if (!s->st) scale_yarn(freq, out->d_rot, base, &y);
}

static void open_llama3(struct sy_jread *s, float *freq, int32_t d_rot)
{
    double factor = sy_jread_num(s, "factor", 1e-3, 1e6), low = sy_jread_num(s, "low_freq_factor", 1e-6, 1e6);
    double high = sy_jread_num(s, "high_freq_factor", 1e-6, 1e6);
    double old = sy_jread_num(s, "original_max_position_embeddings", 1, 1e9);
    if (!s->st && high <= low)
        sy_jread_refuse(s, SY_EFORMAT, "'high_freq_factor' %g must be above 'low_freq_factor' %g", high, low);
    if (!s->st) sy_rope_bands(freq, d_rot, factor, low, high, old);
}

static void open_factors(struct sy_jread *s, float *freq, int32_t d_rot)
{
    const struct sy_json *list = sy_json_get(s->obj, "factors");
    if (sy_json_len(list) != (size_t)d_rot / 2)
        sy_jread_refuse(s, SY_EFORMAT, "rope factors: expected %d, found %zu", d_rot / 2, sy_json_len(list));
    for (int i = 0; i < d_rot / 2 && !s->st; i++) {
        double f = sy_json_number(sy_json_at(list, (size_t)i), 0);
        if (!(f > 1e-6 && f < 1e9))
            sy_jread_refuse(s, SY_EFORMAT, "rope factor %d is %g, expected a positive number", i, f);
        else freq[i] = (float)(freq[i] / f);
    }
}

static sy_status plain_rope(struct sy_arena *a, struct sy_jread *r, int32_t d_head, int32_t d_rot, double theta,
                            struct sy_rope_dim *out)
{
    if (d_rot < 2 || d_rot % 2)
        return sy_jread_refuse(r, SY_EFORMAT, "rope over %d of %d dims: expected an even number", d_rot, d_head);
    float *freq = sy_arena_array(a, (size_t)d_rot / 2, sizeof *freq);
    if (!freq) return sy_jread_refuse(r, SY_ENOMEM, "no memory for rope");
    sy_rope_freqs(freq, d_rot, theta);
    *out = (struct sy_rope_dim){.d_head = d_head, .d_rot = d_rot, .mscale = 1, .inv_freq = freq};
    return r->st;
}

sy_status sy_rope_plain(struct sy_arena *a, struct sy_jread *r, int32_t d_head, double theta, struct sy_rope_dim *out)
{
    int32_t d_rot = (int32_t)(d_head * sy_jread_num_or(r, "partial_rotary_factor", 1, 0, 1));
    d_rot = (int32_t)sy_jread_int_or(r, "rotary_dim", d_rot, 2, d_head);
    return plain_rope(a, r, d_head, d_rot, theta, out);
}

/* The keys of one kind of layer, of all, or NULL: the older dialect, beside the other keys. */
static const struct sy_json *rope_parameters(const struct sy_jread *r, const char *kind)
{
    const struct sy_json *all = sy_json_get(r->obj, "rope_parameters"), *mine = kind ? sy_json_get(all, kind) : NULL;
    return sy_json_is_object(mine) ? mine : sy_json_is_object(all) ? all : NULL;
}

double sy_rope_score_scale(struct sy_jread *r)
{
    const struct sy_json *params = rope_parameters(r, NULL);
    struct sy_jread s = *r;
    s.obj = params ? params : sy_json_get(r->obj, "rope_scaling");
    if (!sy_json_is_object(s.obj)) return 1;
    const char *type = sy_jread_text_or(&s, "rope_type", sy_jread_text_or(&s, "type", "default"));
    double all = sy_jread_num_or(&s, "mscale_all_dim", 0, 0, 1e3), m = 1;
    if (all > 0 && strcmp(type, "default") != 0) m = sy_rope_yarn_mscale(sy_jread_num(&s, "factor", 1e-3, 1e6), all);
    if (!r->st) r->st = s.st;
    return m * m;
}

double sy_rope_theta(struct sy_jread *r, const char *kind)
{
    struct sy_jread top = *r;
    const struct sy_json *params = rope_parameters(r, kind);
    if (params) top.obj = params;
    double theta = sy_jread_num_or(&top, "rope_theta", sy_jread_num_or(r, "rope_theta", 10000, 1, 1e12), 1, 1e12);
    if (!r->st) r->st = top.st;
    return theta;
}

/* Applies what `scaling` says to a plain rope. */
static sy_status scale_rope(struct sy_arena *a, struct sy_jread *r, const struct sy_json *scaling, int32_t d_head,
                            double theta, struct sy_rope_dim *out)
{
    int32_t n_ctx = (int32_t)sy_jread_int_or(r, "max_position_embeddings", 2048, 1, 1 << 30);
    if (!sy_json_is_object(scaling)) return r->st;
    struct sy_jread s = {.obj = scaling, .where = r->where, .err = r->err};
    const char *type = sy_jread_text_or(&s, "rope_type", sy_jread_text_or(&s, "type", "default"));
    float *freq = (float *)(uintptr_t)out->inv_freq; /* ours until returned */
    if (!strcmp(type, "linear")) {
        double factor = sy_jread_num(&s, "factor", 1e-3, 1e6);
        for (int i = 0; i < out->d_rot / 2; i++) freq[i] = (float)(freq[i] / factor);
    } else if (!strcmp(type, "llama3")) {
        open_llama3(&s, freq, out->d_rot);
    } else if (!strcmp(type, "yarn")) {
        open_yarn(&s, theta, n_ctx, freq, out);
    } else if (!strcmp(type, "proportional")) {
        /* The rest of the head has the angle 0; the exponent's denominator is the whole head. */
        double share = sy_jread_num_or(&s, "partial_rotary_factor", 1, 0, 1);
        if (plain_rope(a, r, d_head, d_head, theta, out)) return r->st;
        freq = (float *)(uintptr_t)out->inv_freq;
        for (int i = (int)(share * d_head / 2); i < d_head / 2; i++) freq[i] = 0;
    } else if (!strcmp(type, "factors")) {
        open_factors(&s, freq, out->d_rot);
    } else if (strcmp(type, "default") != 0) {
        sy_jread_refuse(&s, SY_ENOSUP, "'rope_scaling': type '%s' is not supported", type);
    }
    return r->st = s.st;
}

sy_status sy_rope_open_kind(struct sy_arena *a, struct sy_jread *r, const char *kind, int32_t d_head,
                            struct sy_rope_dim *out)
{
    double theta = sy_rope_theta(r, kind);
    const struct sy_json *params = rope_parameters(r, kind);
    const char *type = sy_json_text(sy_json_get(params, "rope_type"));
    /* "proportional" has a part of the angles, not of the dims. */
    if (type && !strcmp(type, "proportional")) return scale_rope(a, r, params, d_head, theta, out);
    struct sy_jread top = *r;
    if (sy_json_get(params, "partial_rotary_factor")) top.obj = params;
    if (sy_rope_plain(a, &top, d_head, theta, out)) return r->st = top.st;
    return scale_rope(a, r, params ? params : sy_json_get(r->obj, "rope_scaling"), d_head, theta, out);
}

sy_status sy_rope_scaled(struct sy_arena *a, struct sy_jread *r, const struct sy_json *scaling, int32_t d_rot,
                         double theta, struct sy_rope_dim *out)
{
    if (plain_rope(a, r, d_rot, d_rot, theta, out)) return r->st;
    return scale_rope(a, r, scaling, d_rot, theta, out);
}

sy_status sy_rope_open_two(struct sy_arena *a, struct sy_jread *r, int32_t d_head, struct sy_rope_dim *full,
                           struct sy_rope_dim *local)
{
    if (sy_json_get(sy_json_get(r->obj, "rope_parameters"), "sliding_attention")) {
        if (sy_rope_open_kind(a, r, "sliding_attention", d_head, local)) return r->st;
    } else {
        double theta = sy_jread_num_or(r, "rope_local_base_freq", 10000, 1, 1e12);
        if (sy_rope_plain(a, r, d_head, theta, local)) return r->st;
    }
    return sy_rope_open_kind(a, r, "full_attention", d_head, full);
}

sy_status sy_rope_open(struct sy_arena *a, struct sy_jread *r, int32_t d_head, struct sy_rope_dim *out)
{
    return sy_rope_open_kind(a, r, NULL, d_head, out);
}

/* ---- blocks that most decoders share ----------------------------------------------------------------------------
 */

sy_val sy_build_norm(struct sy_graph *g, const struct sy_decoder *d, const char *name, int l, sy_val x)
{
    return sy_norm(g, x, sy_norm_weight(g, name, l, d->d_model, false), d->eps);
}

sy_val sy_build_attention(struct sy_graph *g, const struct sy_decoder *d, int l, sy_val x,
                          const struct sy_block_opt *o)
{
    int32_t q_dim = d->n_head * d->d_head, kv_dim = d->n_kv * d->d_head, all = q_dim + 2 * kv_dim;
    const char *name =
        o->fused ? "model.layers.%d.self_attn.qkv_proj.weight" : "model.layers.%d.self_attn.{q,k,v}_proj.weight";
    sy_val w = sy_weight(g, SY_BY_OUT, name, l, all, d->d_model);
    sy_val b = o->bias ? sy_weight(g, SY_BY_OUT, "model.layers.%d.self_attn.{q,k,v}_proj.bias", l, 1, all) : SY_NONE;
    sy_val qkv = sy_linear(g, x, w, b);
    sy_val q = sy_part(g, qkv, 0, q_dim), k = sy_part(g, qkv, q_dim, q_dim + kv_dim);
    sy_val v = sy_part(g, qkv, q_dim + kv_dim, all);
    if (o->qk_norm || o->qk_norm_wide) {
        int32_t dq = o->qk_norm_wide ? q_dim : d->d_head, dk = o->qk_norm_wide ? kv_dim : d->d_head;
        q = sy_norm(g, q, sy_norm_weight(g, "model.layers.%d.self_attn.q_norm.weight", l, dq, o->norm_plus_one),
                    d->eps);
        k = sy_norm(g, k, sy_norm_weight(g, "model.layers.%d.self_attn.k_norm.weight", l, dk, o->norm_plus_one),
                    d->eps);
    }
    if (o->rope) {
        q = sy_rope(g, q, *o->rope);
        k = sy_rope(g, k, *o->rope);
    }
    if (o->qk_unit) {
        q = sy_norm_unit(g, q, d->d_head, d->eps);
        k = sy_norm_unit(g, k, d->d_head, d->eps);
    }
    if (o->temper) q = sy_temper(g, q, *o->temper);
    int32_t window = o->window > 0 ? o->window : o->chunk;
    sy_val kv = sy_state(
        g, (struct sy_state_spec){.kind = SY_BLOCKS, .layer = l, .window = window, .elems = 2 * (int64_t)kv_dim});
    struct sy_attn_dim dim = {.n_head = d->n_head,
                              .n_kv = d->n_kv,
                              .d_key = d->d_head,
                              .d_val = d->d_head,
                              .window = o->window,
                              .chunk = o->chunk,
                              .scale = o->scale,
                              .softcap = o->softcap};
    sy_val sinks = o->sinks ? sy_weight(g, SY_BY_OUT, "model.layers.%d.self_attn.sinks", l, 1, d->n_head) : SY_NONE;
    sy_val a = sy_attend_sinks(g, q, k, v, kv, sinks, dim);
    sy_val wo = sy_weight(g, SY_BY_IN, "model.layers.%d.self_attn.o_proj.weight", l, d->d_model, q_dim);
    sy_val bo =
        o->bias_out ? sy_weight(g, SY_WHOLE, "model.layers.%d.self_attn.o_proj.bias", l, 1, d->d_model) : SY_NONE;
    return sy_linear(g, a, wo, bo);
}

sy_val sy_build_mlp(struct sy_graph *g, const struct sy_decoder *d, int l, sy_val x, enum sy_fn fn, bool bias)
{
    sy_val w =
        sy_weight(g, SY_BY_OUT, "model.layers.%d.mlp.{gate,up}_proj.weight", l, 2 * (int64_t)d->d_ff, d->d_model);
    sy_val b = bias ? sy_weight(g, SY_BY_OUT, "model.layers.%d.mlp.{gate,up}_proj.bias", l, 1, 2 * (int64_t)d->d_ff)
                    : SY_NONE;
    sy_val both = sy_linear(g, x, w, b);
    sy_val h = sy_glu(g, sy_part(g, both, 0, d->d_ff), sy_part(g, both, d->d_ff, 2 * d->d_ff), fn);
    sy_val wd = sy_weight(g, SY_BY_IN, "model.layers.%d.mlp.down_proj.weight", l, d->d_model, d->d_ff);
    sy_val bd = bias ? sy_weight(g, SY_WHOLE, "model.layers.%d.mlp.down_proj.bias", l, 1, d->d_model) : SY_NONE;
    return sy_linear(g, h, wd, bd);
}

sy_val sy_build_mlp_fused(struct sy_graph *g, const struct sy_decoder *d, int l, sy_val x, enum sy_fn fn)
{
    sy_val w =
        sy_weight(g, SY_BY_OUT, "model.layers.%d.mlp.gate_up_proj.weight", l, 2 * (int64_t)d->d_ff, d->d_model);
    sy_val both = sy_linear(g, x, w, SY_NONE);
    sy_val h = sy_glu(g, sy_part(g, both, 0, d->d_ff), sy_part(g, both, d->d_ff, 2 * d->d_ff), fn);
    return sy_linear(g, h, sy_weight(g, SY_BY_IN, "model.layers.%d.mlp.down_proj.weight", l, d->d_model, d->d_ff),
                     SY_NONE);
}

static sy_val norm_plus_one(struct sy_graph *g, const struct sy_decoder *d, const char *name, int l, sy_val x)
{
    return sy_norm(g, x, sy_norm_weight(g, name, l, d->d_model, true), d->eps);
}

sy_val sy_build_sandwich(struct sy_graph *g, const struct sy_decoder *d, int l, sy_val x,
                         const struct sy_block_opt *o, enum sy_fn fn)
{
    sy_val n = norm_plus_one(g, d, "model.layers.%d.input_layernorm.weight", l, x);
    n = sy_build_attention(g, d, l, n, o);
    x = sy_add(g, norm_plus_one(g, d, "model.layers.%d.post_attention_layernorm.weight", l, n), x);
    n = norm_plus_one(g, d, "model.layers.%d.pre_feedforward_layernorm.weight", l, x);
    n = sy_build_mlp(g, d, l, n, fn, false);
    return sy_add(g, norm_plus_one(g, d, "model.layers.%d.post_feedforward_layernorm.weight", l, n), x);
}

sy_val sy_build_embed(struct sy_graph *g, const struct sy_decoder *d)
{
    sy_val table = sy_weight(g, SY_WHOLE, "model.embed_tokens.weight", -1, d->n_vocab, d->d_model);
    return sy_embed(g, table, sy_input(g, SY_TOK));
}

sy_val sy_build_logits(struct sy_graph *g, const struct sy_decoder *d, sy_val x)
{
    const char *name = d->tied ? "model.embed_tokens.weight" : "lm_head.weight";
    return sy_linear(g, x, sy_weight(g, SY_BY_OUT, name, -1, d->n_vocab, d->d_model), SY_NONE);
}

sy_val sy_build_head(struct sy_graph *g, const struct sy_decoder *d, sy_val x, bool norm_plus_one, float softcap)
{
    bool all = sy_graph_keeps_hidden(g);
    if (!all) x = sy_rows(g, x);
    x = sy_norm(g, x, sy_norm_weight(g, "model.norm.weight", -1, d->d_model, norm_plus_one), d->eps);
    if (all) x = sy_rows(g, x);
    sy_val logits = sy_build_logits(g, d, x);
    if (softcap > 0) logits = sy_softcap(g, logits, softcap);
    return sy_sample(g, logits);
}
