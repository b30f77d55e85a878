/* profile.h - what a model costs, however it is known: from its graph, or from the hyper-parameters on a card.
 *
 * Counts are of the whole model, in elements, so that storage (struct sy_path) and sharding (struct sy_sharding) come
 * later. Plain data. */
#pragma once
#include "graph/graph.h"

struct sy_kv_group {     /* attention layers that read the cache alike */
    int32_t window;      /* keys read at most; 0: all */
    double elems;        /* per token of context, all its layers */
    double key_flops;    /* per query token and key: decoding */
    double prompt_flops; /* the same in a prompt, where latent keys are expanded first */
};
struct sy_profile {
    double attn_params;   /* attention and linear attention, all layers */
    double ffn_params;    /* dense feed-forward, shared experts, routers */
    double expert_params; /* one routed expert of one layer */
    int32_t n_expert, top_k, n_moe_layer;
    double head_params, embed_params; /* embed: held in memory only; 0 when tied to the head */
    struct sy_kv_group kv[4];
    int32_t n_kv, kv_heads;                     /* heads that can be spread; more devices than that hold copies */
    double state_elems, state_bytes, tok_flops; /* recurrent state of a sequence; flops on it per token */
    int32_t n_layer, d_model, n_vocab, n_ctx;
    bool from_graph;
};
/* Reads weights, states, attention and experts of a built graph. */
void sy_profile_of_graph(const struct sy_graph *, int32_t n_ctx, struct sy_profile *out);
double sy_profile_params(const struct sy_profile *); /* all of them */
double sy_profile_active(const struct sy_profile *); /* those that one token meets, embedding rows excluded */
