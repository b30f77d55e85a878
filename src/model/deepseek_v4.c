/* DeepSeek-V4 (transformers: DeepseekV4ForCausalLM), tensors named as released, under model. The residual is n
 * streams (manifold-constrained hyper-connections, arXiv:2512.24880). Attention has one head of keys, which are the
 * values too: those of a window, and means over runs of tokens, either all of them (heavily compressed) or those that
 * an indexer chooses (compressed sparse). What attention gives is turned back by the query's position, so that values
 * count by relative position. Experts by sqrt(softplus), in the first layers by a table of the token. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/model.h"

enum kind { SLIDING, SPARSE, HEAVY };

struct turn { /* of the last d_rope dims of a head, there and back */
    struct sy_rope_dim there, back;
};

struct v4 {
    struct sy_decoder d;
    enum kind *kind; /* by layer */
    bool *hashed;    /* by layer: experts by the token's table */
    int32_t every[3];
    int32_t q_rank, d_rope, window, n_out_group, out_rank;
    struct turn main, packed; /* of layers that slide; of others */
    struct sy_index_dim index;
    struct sy_gates_dim gates;
    const float *gates_eps; /* [gates.n] */
    struct sy_moe_opt moe;
};

/* ---- config ------------------------------------------------------------------------------------------------------
 */

static const char *const kinds[] = {
    [SLIDING] = "sliding_attention",
    [SPARSE] = "compressed_sparse_attention",
    [HEAVY] = "heavily_compressed_attention",
};

/* "layer_types", or older "compress_ratios" (0, 4, 128), or the published pattern. */
static sy_status open_kinds(struct sy_arena *a, struct sy_jread *c, struct v4 *m)
{
    const struct sy_json *types = sy_json_get(c->obj, "layer_types"),
                         *ratios = sy_json_get(c->obj, "compress_ratios");
    size_t n = (size_t)m->d.n_layer;
    m->kind = sy_arena_array(a, n, sizeof *m->kind);
    if (!m->kind) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    const struct sy_json *list = sy_json_is_array(types) ? types : sy_json_is_array(ratios) ? ratios : NULL;
    if (list && sy_json_len(list) < n)
        return sy_jread_refuse(c, SY_EFORMAT, "'%s': expected %zu entries, found %zu",
                               list == types ? "layer_types" : "compress_ratios", n, sy_json_len(list));
    for (size_t l = 0; l < n; l++) {
        m->kind[l] = l < 2 || l % 2 == 0 ? HEAVY : SPARSE;
        if (!list) continue;
        int known = -1;
        const char *name = sy_json_text(sy_json_at(list, l));
        int64_t ratio = sy_json_int(sy_json_at(list, l), -1);
        for (int k = 0; k < 3; k++)
            if (list == types ? name && !strcmp(name, kinds[k]) : ratio == (int64_t[]){0, 4, 128}[k]) known = k;
        if (known < 0)
            return sy_jread_refuse(c, SY_ENOSUP, "layer %zu: attention '%s' is not supported", l,
                                   name ? name : "of this compression");
        m->kind[l] = (enum kind)known;
    }
    return c->st;
}

static sy_status open_rates(struct sy_jread *c, struct v4 *m)
{
    static const char *const old[] = {[SPARSE] = "compress_rate_csa", [HEAVY] = "compress_rate_hca"};
    struct sy_jread r = *c;
    r.obj = sy_json_get(c->obj, "compress_rates");
    for (int k = SPARSE; k <= HEAVY; k++) {
        int64_t usual = k == SPARSE ? 4 : 128;
        if (sy_json_is_object(r.obj)) usual = sy_jread_int_or(&r, kinds[k], usual, 2, 1 << 16);
        m->every[k] = (int32_t)sy_jread_int_or(c, old[k], usual, 2, 1 << 16);
    }
    return c->st ? c->st : (c->st = r.st);
}

/* "mlp_layer_types", or how many layers go by the table ("num_hash_layers"). */
static sy_status open_hashed(struct sy_arena *a, struct sy_jread *c, struct v4 *m)
{
    const struct sy_json *types = sy_json_get(c->obj, "mlp_layer_types");
    int64_t first = sy_jread_int_or(c, "num_hash_layers", 3, 0, 1 << 20);
    m->hashed = sy_arena_array(a, (size_t)m->d.n_layer, sizeof *m->hashed);
    if (!m->hashed) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    for (int32_t l = 0; l < m->d.n_layer; l++) {
        const char *type = sy_json_text(sy_json_at(types, (size_t)l));
        m->hashed[l] = type ? !strcmp(type, "hash_moe") : l < first;
        if (sy_json_is_array(types) && (!type || (strcmp(type, "hash_moe") && strcmp(type, "moe"))))
            return sy_jread_refuse(c, SY_ENOSUP, "'mlp_layer_types'[%d]: '%s' is not supported", l, type ? type : "");
    }
    return c->st;
}

static sy_status turn_of(struct sy_arena *a, struct sy_jread *c, struct sy_rope_dim rope, int32_t d_head,
                         struct turn *t)
{
    float *back = sy_arena_array(a, (size_t)rope.d_rot / 2, sizeof *back);
    if (!back) return sy_jread_refuse(c, SY_ENOMEM, "no memory for rope");
    for (int32_t i = 0; i < rope.d_rot / 2; i++) back[i] = -rope.inv_freq[i];
    rope.interleaved = true;
    rope.d_head = d_head;
    rope.first = d_head - rope.d_rot;
    t->there = t->back = rope;
    t->back.inv_freq = back;
    return c->st;
}

/* Layers that slide turn by rope_theta alone; the others by compress_rope_theta and what rope_scaling says, without
 * YaRN's factor. Newer configs have both under "rope_parameters". */
static sy_status open_ropes(struct sy_arena *a, struct sy_jread *c, struct v4 *m)
{
    const struct sy_json *both = sy_json_get(c->obj, "rope_parameters"), *scaling;
    bool nested = sy_json_is_object(sy_json_get(both, "compress"));
    struct sy_rope_dim main, packed;
    double theta = sy_rope_theta(c, nested ? "main" : NULL);
    double packed_theta =
        nested ? sy_rope_theta(c, "compress") : sy_jread_num_or(c, "compress_rope_theta", 160000, 1, 1e12);
    scaling = nested                    ? sy_json_get(both, "compress")
              : sy_json_is_object(both) ? both
                                        : sy_json_get(c->obj, "rope_scaling");
    if (c->st || sy_rope_scaled(a, c, NULL, m->d_rope, theta, &main) ||
        sy_rope_scaled(a, c, scaling, m->d_rope, packed_theta, &packed))
        return c->st;
    struct sy_jread s = {.obj = scaling, .where = c->where, .err = c->err};
    packed.mscale = sy_json_is_object(scaling) ? (float)sy_jread_num_or(&s, "attention_factor", 1, 1e-3, 1e3) : 1;
    if (s.st) return c->st = s.st;
    if (turn_of(a, c, main, m->d.d_head, &m->main)) return c->st;
    return turn_of(a, c, packed, m->d.d_head, &m->packed);
}

static sy_status open_moe(struct sy_jread *c, struct v4 *m)
{
    m->moe = (struct sy_moe_opt){
        .router = "model.layers.%d.ffn.gate.weight",
        .choice_bias = "model.layers.%d.ffn.gate.bias",
        .experts_in = "model.layers.%d.ffn.experts.#.{w1,w3}.weight",
        .experts_out = "model.layers.%d.ffn.experts.#.w2.weight",
        .route = {.score = SY_SCORE_SQRT_SOFTPLUS, .weighting = SY_WEIGHT_NORMED, .eps = 1e-20f},
    };
    if (sy_moe_open(c, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", &m->moe)) return c->st;
    m->moe.route.scale = (float)sy_jread_num_or(c, "routed_scaling_factor", 1.5, -1e6, 1e6);
    m->moe.moe.glu.limit = (float)sy_jread_num_or(c, "swiglu_limit", 10, 1e-3, 1e6);
    if (strcmp(sy_jread_text_or(c, "scoring_func", "sqrtsoftplus"), "sqrtsoftplus"))
        return sy_jread_refuse(c, SY_ENOSUP, "'scoring_func': only 'sqrtsoftplus' is supported");
    if (!sy_jread_bool_or(c, "norm_topk_prob", true))
        return sy_jread_refuse(c, SY_ENOSUP, "'norm_topk_prob': only true is supported");
    if (sy_jread_int_or(c, "n_shared_experts", 1, 0, 1024) != 1)
        return sy_jread_refuse(c, SY_ENOSUP, "'n_shared_experts': only 1 is supported");
    return sy_fn_open(c, "hidden_act", "silu", &m->moe.moe.glu.fn);
}

static sy_status check_sizes(struct sy_jread *c, const struct v4 *m)
{
    if (sy_jread_bool_or(c, "attention_bias", false) || sy_jread_bool_or(c, "mlp_bias", false))
        return sy_jread_refuse(c, SY_ENOSUP, "'attention_bias', 'mlp_bias': only false is supported");
    if (m->d_rope % 2 || m->d_rope > m->d.d_head || m->d_rope > m->index.d)
        return sy_jread_refuse(c, SY_EFORMAT,
                               "'qk_rope_head_dim' %d: expected an even number up to the heads' %d, %d", m->d_rope,
                               m->d.d_head, m->index.d);
    if (m->d.n_head % m->n_out_group)
        return sy_jread_refuse(c, SY_EFORMAT, "'o_groups' %d does not divide %d heads", m->n_out_group, m->d.n_head);
    return c->st;
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct v4 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info) || open_kinds(a, c, m) || open_rates(c, m) || open_hashed(a, c, m) ||
        open_moe(c, m))
        return c->st;
    double share = sy_jread_num_or(c, "partial_rotary_factor", 64.0 / 512, 0, 1);
    m->d_rope = (int32_t)sy_jread_int_or(c, "qk_rope_head_dim", (int32_t)(m->d.d_head * share), 2, 8192);
    m->q_rank = (int32_t)sy_jread_int(c, "q_lora_rank", 1, 1 << 20);
    m->window = (int32_t)sy_jread_int_or(c, "sliding_window", 128, 1, 1 << 30);
    m->n_out_group = (int32_t)sy_jread_int_or(c, "o_groups", 8, 1, 4096);
    m->out_rank = (int32_t)sy_jread_int_or(c, "o_lora_rank", 1024, 1, 1 << 20);
    m->index = (struct sy_index_dim){.n_head = (int32_t)sy_jread_int_or(c, "index_n_heads", 64, 1, 4096),
                                     .d = (int32_t)sy_jread_int_or(c, "index_head_dim", 128, 1, SY_INDEX_DIM_MAX),
                                     .n_top = (int32_t)sy_jread_int_or(c, "index_topk", 512, 1, 1 << 20),
                                     .every = m->every[SPARSE]};
    m->gates = (struct sy_gates_dim){.n = (int32_t)sy_jread_int_or(c, "hc_mult", 4, 1, SY_STREAMS_MAX),
                                     .n_round = (int32_t)sy_jread_int_or(c, "hc_sinkhorn_iters", 20, 1, 1000),
                                     .eps = (float)sy_jread_num_or(c, "hc_eps", 1e-6, 0, 1)};
    float *eps = sy_arena_array(a, (size_t)m->gates.n, sizeof *eps);
    if (!eps) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    for (int32_t i = 0; i < m->gates.n; i++) eps[i] = m->gates.eps;
    m->gates_eps = eps;
    if (c->st || check_sizes(c, m)) return c->st;
    return open_ropes(a, c, m);
}

/* ---- graph -------------------------------------------------------------------------------------------------------
 */

#define ATTN "model.layers.%d.attn."

/* What is kept of runs of tokens: their mean by the weights under `name`, normed and turned by the run's start. */
static sy_val compress(struct sy_graph *g, const struct v4 *m, int l, sy_val x, const char *name, int32_t d)
{
    bool overlap = m->kind[l] == SPARSE;
    int32_t cols = overlap ? 2 * d : d, every = m->every[m->kind[l]];
    char w[96], ape[96], norm[96];
    snprintf(w, sizeof w, "model.layers.%%d.attn.%scompressor.{wkv,wgate}.weight", name);
    snprintf(ape, sizeof ape, "model.layers.%%d.attn.%scompressor.ape", name);
    snprintf(norm, sizeof norm, "model.layers.%%d.attn.%scompressor.norm.weight", name);
    sy_val both = sy_linear(g, x, sy_weight(g, SY_WHOLE, w, l, 2 * (int64_t)cols, m->d.d_model), SY_NONE);
    sy_val slot = sy_state(g, (struct sy_state_spec){.kind = SY_SLOTS, .layer = l, .elems = 3 * (int64_t)cols});
    sy_val mean = sy_compress(g, both, sy_vector_flat(g, ape, l, (int64_t)every * cols), slot,
                              (struct sy_compress_dim){every, overlap});
    mean = sy_norm(g, mean, sy_norm_weight(g, norm, l, d, false), m->d.eps);
    struct sy_rope_dim rope = m->packed.there;
    rope.d_head = d;
    rope.first = d - rope.d_rot;
    rope.every = every;
    return sy_rope(g, mean, rope);
}

static sy_val choose(struct sy_graph *g, const struct v4 *m, int l, sy_val x, sy_val q_low)
{
    const struct sy_index_dim *d = &m->index;
    struct sy_rope_dim rope = m->packed.there;
    rope.d_head = d->d;
    rope.first = d->d - rope.d_rot;
    sy_val wq = sy_weight(g, SY_BY_OUT, ATTN "indexer.wq_b.weight", l, (int64_t)d->n_head * d->d, m->q_rank);
    sy_val q = sy_rope(g, sy_linear(g, q_low, wq, SY_NONE), rope);
    sy_val w = sy_weight(g, SY_WHOLE, ATTN "indexer.weights_proj.weight", l, d->n_head, m->d.d_model);
    sy_val kv = sy_state(g, (struct sy_state_spec){.kind = SY_BLOCKS, .layer = l, .elems = d->d, .every = d->every});
    return sy_index(g, q, compress(g, m, l, x, "indexer.", d->d), sy_linear(g, x, w, SY_NONE), kv, *d);
}

static sy_val attention(struct sy_graph *g, const struct v4 *m, int l, sy_val x)
{
    const struct sy_decoder *d = &m->d;
    int32_t rank = m->q_rank, head = d->d_head, every = m->every[m->kind[l]];
    const struct turn *turn = m->kind[l] == SLIDING ? &m->main : &m->packed;
    sy_val low =
        sy_linear(g, x, sy_weight(g, SY_WHOLE, ATTN "{wq_a,wkv}.weight", l, rank + head, d->d_model), SY_NONE);
    sy_val q_low =
        sy_norm(g, sy_part(g, low, 0, rank), sy_norm_weight(g, ATTN "q_norm.weight", l, rank, false), d->eps);
    sy_val wq = sy_weight(g, SY_BY_OUT, ATTN "wq_b.weight", l, (int64_t)d->n_head * head, rank);
    sy_val q = sy_rope(g, sy_norm_unit(g, sy_linear(g, q_low, wq, SY_NONE), head, d->eps), turn->there);
    sy_val k = sy_norm(g, sy_part(g, low, rank, rank + head),
                       sy_norm_weight(g, ATTN "kv_norm.weight", l, head, false), d->eps);
    k = sy_rope(g, k, turn->there);
    struct sy_state_spec spec = {.kind = SY_BLOCKS, .layer = l, .window = m->window, .elems = head};
    sy_val kv = sy_state(g, spec), sinks = sy_weight(g, SY_BY_OUT, ATTN "attn_sink", l, 1, d->n_head), o;
    struct sy_attn_dim dim = {.n_head = d->n_head,
                              .n_kv = 1,
                              .d_key = head,
                              .d_val = head,
                              .window = m->window,
                              .scale = 1 / sqrtf((float)head),
                              .shared = true};
    if (m->kind[l] == SLIDING) {
        o = sy_attend_sinks(g, q, k, SY_NONE, kv, sinks, dim);
    } else {
        sy_val chosen = m->kind[l] == SPARSE ? choose(g, m, l, x, q_low) : SY_NONE;
        spec = (struct sy_state_spec){.kind = SY_BLOCKS, .layer = l, .elems = head, .every = every};
        sy_val kept = sy_keep(g, compress(g, m, l, x, "", head), sy_state(g, spec));
        o = sy_attend_kept(g, q, k, kv, sinks, kept, chosen, dim);
    }
    o = sy_rope(g, o, turn->back);
    int32_t n = m->n_out_group, width = d->n_head / n * head;
    sy_val wa = sy_weight(g, SY_BY_OUT, ATTN "wo_a.weight", l, (int64_t)n * m->out_rank, width);
    o = sy_heads(g, o, wa,
                 (struct sy_heads_dim){.n_head = n, .d_in = width, .d_out = m->out_rank, .w_rows = m->out_rank});
    return sy_linear(g, o, sy_weight(g, SY_BY_IN, ATTN "wo_b.weight", l, d->d_model, (int64_t)n * m->out_rank),
                     SY_NONE);
}

static sy_val experts(struct sy_graph *g, const struct v4 *m, int l, sy_val x)
{
    const struct sy_decoder *d = &m->d;
    const struct sy_moe_opt *o = &m->moe;
    int32_t n = o->moe.n_expert, ff = o->moe.d_ff;
    sy_val logits = sy_linear(g, x, sy_weight_exact(g, o->router, l, n, d->d_model), SY_NONE), route;
    if (m->hashed[l]) {
        sy_val table = sy_weight_exact(g, "model.layers.%d.ffn.gate.tid2eid", l, d->n_vocab, o->moe.n_used);
        route = sy_route_given(g, logits, sy_embed(g, table, sy_input(g, SY_TOK)), o->route);
    } else {
        route = sy_route(g, logits, sy_weight(g, SY_WHOLE, o->choice_bias, l, 1, n), SY_NONE, o->route);
    }
    struct sy_expert_weights w = {
        .w_in = sy_weight_experts(g, o->experts_in, l, n, 2 * ff, d->d_model),
        .w_out = sy_weight_experts(g, o->experts_out, l, n, d->d_model, ff),
    };
    sy_val y = sy_experts(g, x, route, w, o->moe);
    sy_val both = sy_linear(
        g, x,
        sy_weight(g, SY_BY_OUT, "model.layers.%d.ffn.shared_experts.{w1,w3}.weight", l, 2 * (int64_t)ff, d->d_model),
        SY_NONE);
    sy_val h = sy_glu_bounded(g, sy_part(g, both, 0, ff), sy_part(g, both, ff, 2 * ff), o->moe.glu);
    sy_val down = sy_weight(g, SY_BY_IN, "model.layers.%d.ffn.shared_experts.w2.weight", l, d->d_model, ff);
    return sy_add(g, y, sy_linear(g, h, down, SY_NONE));
}

/* The streams, normed together, through the matrix `name` of their mixture's weights. */
static sy_val mixture(struct sy_graph *g, const struct v4 *m, int l, sy_val x, const char *name, int32_t rows)
{
    int32_t all = m->gates.n * m->d.d_model;
    return sy_linear(g, sy_norm_unit(g, x, all, m->d.eps), sy_weight_exact(g, name, l, rows, all), SY_NONE);
}

/* A sublayer on the streams: what it reads and where its result goes are weighed by gates of the streams. */
static sy_val sublayer(struct sy_graph *g, const struct v4 *m, int l, sy_val x, bool ffn)
{
    int32_t n = m->gates.n, rows = n * (n + 2);
    sy_val f = mixture(g, m, l, x, ffn ? "model.layers.%d.hc_ffn_fn" : "model.layers.%d.hc_attn_fn", rows);
    sy_val scale =
        sy_weight(g, SY_WHOLE, ffn ? "model.layers.%d.hc_ffn_scale" : "model.layers.%d.hc_attn_scale", l, 1, 3);
    sy_val base =
        sy_weight(g, SY_WHOLE, ffn ? "model.layers.%d.hc_ffn_base" : "model.layers.%d.hc_attn_base", l, 1, rows);
    sy_val gates = sy_gates(g, f, scale, base, m->gates);
    sy_val y = sy_blend(g, x, sy_part(g, gates, 0, n), SY_NONE, SY_NONE, (struct sy_blend_dim){n, 1});
    y = sy_build_norm(g, &m->d, ffn ? "model.layers.%d.ffn_norm.weight" : "model.layers.%d.attn_norm.weight", l, y);
    y = ffn ? experts(g, m, l, y) : attention(g, m, l, y);
    return sy_blend(g, x, sy_part(g, gates, 2 * n, rows), y, sy_part(g, gates, n, 2 * n),
                    (struct sy_blend_dim){n, n});
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct v4 *m = hp;
    const struct sy_decoder *d = &m->d;
    int32_t n = m->gates.n;
    sy_val e = sy_build_embed(g, d), x = e;
    for (int32_t i = 1; i < n; i++) x = sy_join(g, x, e);
    for (int l = 0; l < d->n_layer; l++) x = sublayer(g, m, l, sublayer(g, m, l, x, false), true);
    x = sy_rows(g, x);
    sy_val w = mixture(g, m, -1, x, "model.hc_head_fn", n);
    w = sy_mul(g, w, sy_vector(g, "model.hc_head_scale", -1, n, SY_AS_IS, n));
    w = sy_act(g, sy_add(g, w, sy_weight(g, SY_WHOLE, "model.hc_head_base", -1, 1, n)), SY_SIGMOID);
    w = sy_add(g, w, sy_const(g, m->gates_eps, n));
    x = sy_blend(g, x, w, SY_NONE, SY_NONE, (struct sy_blend_dim){n, 1});
    return sy_sample(g, sy_build_logits(g, d, sy_build_norm(g, d, "model.norm.weight", -1, x)));
}

static const char *const claims[] = {"DeepseekV4ForCausalLM", NULL};
const struct sy_arch sy_arch_deepseek_v4 = {"deepseek_v4", claims, open, build};
