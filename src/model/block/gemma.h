/* gemma.h - what Gemma 3n and Gemma 4 share: layers that reuse the keys and values of an earlier one, and embeddings
 * of every layer. */
#pragma once
#include "model/model.h"

struct sy_gemma {
    struct sy_decoder d;
    struct sy_rope_dim rope_full, rope_local;
    enum sy_fn fn;
    bool *full;           /* [n_layer] */
    int32_t *owner;       /* [n_layer] whose keys and values a layer reads: mostly its own */
    int32_t window;       /* of layers that are not full */
    int32_t d_head_full;  /* head size of full layers */
    int32_t n_kv_full;    /* and their heads of keys */
    bool k_is_v;          /* full layers have no v_proj: values are the keys before their norm */
    int32_t d_ple, n_ple; /* per-layer embeddings: width (0: none), rows of their table */
    float softcap;        /* of the logits */
};
/* num_kv_shared_layers and the keys of the per-layer embeddings. */
sy_status sy_gemma_open(struct sy_arena *, struct sy_jread *, struct sy_gemma *);
/* Attention of layer l on the normed x. state: [n_layer], filled as layers are built. */
sy_val sy_gemma_attention(struct sy_graph *, const struct sy_gemma *, int l, sy_val x, sy_val *state);
/* [tok, n_layer * d_ple] from the scaled embeddings x. */
sy_val sy_gemma_ple(struct sy_graph *, const struct sy_gemma *, sy_val x);
/* What layer l makes of x and its part of ple. */
sy_val sy_gemma_ple_layer(struct sy_graph *, const struct sy_gemma *, int l, sy_val x, sy_val ple);
