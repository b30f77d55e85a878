/* mla.c - multi-head latent attention, absorbed, and its indexer. */
#include <math.h>
#include <string.h>

#include "model/model.h"

enum { DIM_MAX = 8192 };
static const float inner_eps = 1e-6f; /* of the norms inside, whatever "rms_norm_eps" says */

static sy_status open_index(struct sy_jread *c, struct sy_mla *m)
{
    if (!sy_jread_has(c, "index_topk")) return c->st;
    m->index_top = (int32_t)sy_jread_int(c, "index_topk", 1, 1 << 20);
    m->index_head = (int32_t)sy_jread_int(c, "index_n_heads", 1, 4096);
    m->index_d = (int32_t)sy_jread_int(c, "index_head_dim", 1, SY_INDEX_DIM_MAX);
    m->index_interleaved = sy_jread_bool_or(c, "indexer_rope_interleave", false);
    if (!c->st && m->q_rank == 0) sy_jread_refuse(c, SY_ENOSUP, "'q_lora_rank': an indexer ('index_topk') needs it");
    if (!c->st && m->index_d < m->d_rope)
        sy_jread_refuse(c, SY_EFORMAT, "'index_head_dim' %d is less than 'qk_rope_head_dim' %d", m->index_d,
                        m->d_rope);
    return c->st;
}

sy_status sy_mla_open(struct sy_arena *a, struct sy_jread *c, struct sy_mla *m)
{
    m->q_rank = (int32_t)sy_jread_int_or(c, "q_lora_rank", 0, 1, 1 << 20);
    m->kv_rank = (int32_t)sy_jread_int(c, "kv_lora_rank", 1, DIM_MAX);
    m->d_nope = (int32_t)sy_jread_int(c, "qk_nope_head_dim", 1, DIM_MAX);
    m->d_rope = (int32_t)sy_jread_int(c, "qk_rope_head_dim", 2, DIM_MAX);
    m->d_val = (int32_t)sy_jread_int(c, "v_head_dim", 1, DIM_MAX);
    m->bias = sy_jread_bool_or(c, "attention_bias", false);
    m->split = sy_jread_bool_or(c, "kv_b_split", false); /* of GGUF: checkpoint/gguf_config.c */
    if (c->st || open_index(c, m)) return c->st;
    m->scale = (float)(sy_rope_score_scale(c) / sqrt((double)m->d_nope + m->d_rope));
    if (c->st || sy_rope_open(a, c, m->d_rope, &m->rope)) return c->st;
    m->rope.interleaved = sy_jread_bool_or(c, "rope_interleave", true);
    return c->st;
}

#define ATTN "model.layers.%d.self_attn."

/* Columns [0, q_rank) are the compressed query (not with q_rank 0), the others the latent and the rotated key. */
static sy_val compress(struct sy_graph *g, const struct sy_decoder *d, int l, sy_val x, const struct sy_mla *m)
{
    int32_t rows = m->q_rank + m->kv_rank + m->d_rope;
    const char *w = ATTN "kv_a_proj_with_mqa.weight", *b = ATTN "kv_a_proj_with_mqa.bias";
    if (m->q_rank) {
        w = ATTN "{q_a_proj,kv_a_proj_with_mqa}.weight";
        b = ATTN "{q_a_proj,kv_a_proj_with_mqa}.bias";
    }
    sy_val bias = m->bias ? sy_weight(g, SY_WHOLE, b, l, 1, rows) : SY_NONE;
    return sy_linear(g, x, sy_weight(g, SY_WHOLE, w, l, rows, d->d_model), bias);
}

static sy_val choose(struct sy_graph *g, const struct sy_decoder *d, int l, sy_val x, sy_val q_low,
                     const struct sy_mla *m)
{
    struct sy_rope_dim rope = m->rope;
    rope.d_head = m->index_d;
    rope.interleaved = m->index_interleaved;
    int32_t all = m->index_head * m->index_d, dk = m->index_d;
    sy_val q = sy_linear(g, q_low, sy_weight(g, SY_BY_OUT, ATTN "indexer.wq_b.weight", l, all, m->q_rank), SY_NONE);
    sy_val w = sy_weight(g, SY_WHOLE, ATTN "indexer.{wk,weights_proj}.weight", l, dk + m->index_head, d->d_model);
    sy_val both = sy_linear(g, x, w, SY_NONE);
    sy_val k = sy_norm_centred(g, sy_part(g, both, 0, dk),
                               sy_norm_weight(g, ATTN "indexer.k_norm.weight", l, dk, false), inner_eps);
    k = sy_add(g, k, sy_weight(g, SY_WHOLE, ATTN "indexer.k_norm.bias", l, 1, dk));
    sy_val kv = sy_state(g, (struct sy_state_spec){.kind = SY_BLOCKS, .layer = l, .elems = dk});
    return sy_index(g, sy_rope(g, q, rope), sy_rope(g, k, rope), sy_part(g, both, dk, dk + m->index_head), kv,
                    (struct sy_index_dim){.n_head = m->index_head, .d = dk, .n_top = m->index_top});
}

sy_val sy_build_mla(struct sy_graph *g, const struct sy_decoder *d, int l, sy_val x, const struct sy_mla *m,
                    sy_val *chosen, bool reuse)
{
    int32_t n = m->d_nope, r = m->d_rope, rank = m->kv_rank, w_rows = n + m->d_val, head = n + r;
    sy_val low = compress(g, d, l, x, m), q_low = x;
    if (m->q_rank)
        q_low = sy_norm(g, sy_part(g, low, 0, m->q_rank),
                        sy_norm_weight(g, ATTN "q_a_layernorm.weight", l, m->q_rank, false), inner_eps);
    const char *name = m->q_rank ? ATTN "q_b_proj.weight" : ATTN "q_proj.weight";
    int32_t d_low = m->q_rank ? m->q_rank : d->d_model;
    sy_val q = sy_linear(g, q_low, sy_weight(g, SY_BY_OUT, name, l, (int64_t)d->n_head * head, d_low), SY_NONE);
    sy_val c = sy_norm(g, sy_part(g, low, m->q_rank, m->q_rank + rank),
                       sy_norm_weight(g, ATTN "kv_a_layernorm.weight", l, rank, false), inner_eps);
    sy_val k = sy_part(g, low, m->q_rank + rank, m->q_rank + rank + r);
    if (!m->no_rope) {
        struct sy_rope_dim rope = m->rope;
        k = sy_rope(g, k, rope);
        rope.d_head = head;
        rope.first = n;
        q = sy_rope(g, q, rope);
    }
    if (m->index_top && !reuse) *chosen = choose(g, d, l, x, q_low, m);

    struct sy_heads_dim into = {.n_head = d->n_head, .d_in = n, .d_out = rank, .w_rows = w_rows, .transposed = true};
    struct sy_heads_dim back = {.n_head = d->n_head, .d_in = rank, .d_out = m->d_val, .w_rows = w_rows, .row0 = n};
    sy_val up, down;
    if (m->split) {
        into.w_rows = rank;
        into.transposed = false;
        back.w_rows = m->d_val;
        back.row0 = 0;
        up = sy_weight(g, SY_BY_OUT, ATTN "k_b_proj.weight", l, (int64_t)d->n_head * rank, n);
        down = sy_weight(g, SY_BY_OUT, ATTN "v_b_proj.weight", l, (int64_t)d->n_head * m->d_val, rank);
    } else {
        up = down = sy_weight(g, SY_BY_OUT, ATTN "kv_b_proj.weight", l, (int64_t)d->n_head * w_rows, rank);
    }
    q = sy_heads(g, q, up, into);
    sy_val kv = sy_state(g, (struct sy_state_spec){.kind = SY_BLOCKS, .layer = l, .elems = (int64_t)rank + r});
    struct sy_attn_dim dim = {
        .n_head = d->n_head, .n_kv = 1, .d_key = rank + r, .d_val = rank, .scale = m->scale, .shared = true};
    k = sy_join(g, c, k);
    sy_val o = m->index_top ? sy_attend_chosen(g, q, k, *chosen, kv, dim) : sy_attend(g, q, k, SY_NONE, kv, dim);
    o = sy_heads(g, o, down, back);
    sy_val bo = m->bias ? sy_weight(g, SY_WHOLE, ATTN "o_proj.bias", l, 1, d->d_model) : SY_NONE;
    return sy_linear(g, o, sy_weight(g, SY_BY_IN, ATTN "o_proj.weight", l, d->d_model, (int64_t)d->n_head * m->d_val),
                     bo);
}
