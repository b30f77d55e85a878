/* GGUF metadata (ggml-org/ggml, docs/gguf.md) to a config in the Hugging Face dialect, by tables: a key and
 * what it is called there. What differs between architectures beyond a key has a small function below. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/gguf_build.h"

/* ---- keys that only change their name ------------------------------------------------------------------ */

static const struct sy_key_rule common_keys[] = {
    {"embedding_length", "hidden_size", SY_KEY_INT, true},
    {"context_length", "max_position_embeddings", SY_KEY_INT, true},
    {"feed_forward_length", "intermediate_size", SY_KEY_LAYERS, false},
    {"attention.head_count", "num_attention_heads", SY_KEY_LAYERS, true},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", SY_KEY_NUM, false},
    {"attention.layer_norm_epsilon", "layer_norm_eps", SY_KEY_NUM, false},
    {"nextn_predict_layers", "num_nextn_predict_layers", SY_KEY_COUNT, false},
    {NULL, NULL, SY_KEY_INT, false},
};
/* Experts as in DeepSeek-V3. */
static const struct sy_key_rule sigmoid_moe_keys[] = {
    {"expert_count", "n_routed_experts", SY_KEY_INT, true},
    {"expert_used_count", "num_experts_per_tok", SY_KEY_INT, true},
    {"expert_feed_forward_length", "moe_intermediate_size", SY_KEY_LAYERS, true},
    {"expert_shared_count", "n_shared_experts", SY_KEY_INT, false},
    {"leading_dense_block_count", "first_k_dense_replace", SY_KEY_COUNT, false},
    {"expert_weights_scale", "routed_scaling_factor", SY_KEY_NUM, false},
    {"expert_group_count", "n_group", SY_KEY_INT, false},
    {"expert_group_used_count", "topk_group", SY_KEY_INT, false},
    {NULL, NULL, SY_KEY_INT, false},
};
static const struct sy_key_rule local_moe_keys[] = {
    {"expert_count", "num_local_experts", SY_KEY_INT, true},
    {"expert_used_count", "num_experts_per_tok", SY_KEY_INT, true},
    {"expert_feed_forward_length", "intermediate_size", SY_KEY_LAYERS, true},
    {NULL, NULL, SY_KEY_INT, false},
};
static const struct sy_key_rule qwen_moe_keys[] = {
    {"expert_count", "num_experts", SY_KEY_INT, true},
    {"expert_used_count", "num_experts_per_tok", SY_KEY_INT, true},
    {"expert_feed_forward_length", "moe_intermediate_size", SY_KEY_LAYERS, true},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", SY_KEY_INT, false},
    {NULL, NULL, SY_KEY_INT, false},
};
static const struct sy_key_rule mixtral_keys[] = {
    {"expert_count", "num_local_experts", SY_KEY_INT, true},
    {"expert_used_count", "num_experts_per_tok", SY_KEY_INT, true},
    {NULL, NULL, SY_KEY_INT, false},
};
static const struct sy_key_rule granite_keys[] = {
    {"embedding_scale", "embedding_multiplier", SY_KEY_NUM, true},
    {"attention.scale", "attention_multiplier", SY_KEY_NUM, true},
    {"residual_scale", "residual_multiplier", SY_KEY_NUM, true},
    {"logit_scale", "logits_scaling", SY_KEY_NUM, true},
    {NULL, NULL, SY_KEY_INT, false},
};

static const struct sy_key_rule mla_keys[] = {
    {"attention.q_lora_rank", "q_lora_rank", SY_KEY_INT, false},
    {"attention.kv_lora_rank", "kv_lora_rank", SY_KEY_INT, true},
    {"rope.dimension_count", "qk_rope_head_dim", SY_KEY_INT, true},
    {NULL, NULL, SY_KEY_INT, false},
};

static const struct sy_key_rule delta_keys[] = {
    {"ssm.conv_kernel", "linear_conv_kernel_dim", SY_KEY_INT, true},
    {"ssm.state_size", "linear_key_head_dim", SY_KEY_INT, true},
    {"ssm.group_count", "linear_num_key_heads", SY_KEY_INT, true},
    {"ssm.time_step_rank", "linear_num_value_heads", SY_KEY_INT, true},
    {"full_attention_interval", "full_attention_interval", SY_KEY_INT, false},
    {NULL, NULL, SY_KEY_INT, false},
};
static const struct sy_key_rule llama4_keys[] = {
    {"expert_count", "num_local_experts", SY_KEY_INT, true},
    {"expert_used_count", "num_experts_per_tok", SY_KEY_INT, true},
    {"expert_feed_forward_length", "intermediate_size", SY_KEY_INT, true},
    {"interleave_moe_layer_step", "interleave_moe_layer_step", SY_KEY_INT, true},
    {"attention.temperature_length", "floor_scale", SY_KEY_INT, false},
    {"attention.temperature_scale", "attn_scale", SY_KEY_NUM, false},
    {NULL, NULL, SY_KEY_INT, false},
};
static const struct sy_key_rule indexer_keys[] = {
    {"attention.indexer.head_count", "index_n_heads", SY_KEY_INT, true},
    {"attention.indexer.key_length", "index_head_dim", SY_KEY_INT, true},
    {"attention.indexer.top_k", "index_topk", SY_KEY_INT, true},
    {NULL, NULL, SY_KEY_INT, false},
};
static const struct sy_key_rule deepseek4_keys[] = {
    {"expert_count", "n_routed_experts", SY_KEY_INT, true},
    {"expert_used_count", "num_experts_per_tok", SY_KEY_INT, true},
    {"expert_feed_forward_length", "moe_intermediate_size", SY_KEY_LAYERS, true},
    {"expert_shared_count", "n_shared_experts", SY_KEY_INT, true},
    {"expert_weights_scale", "routed_scaling_factor", SY_KEY_NUM, true},
    {"attention.q_lora_rank", "q_lora_rank", SY_KEY_INT, true},
    {"rope.dimension_count", "qk_rope_head_dim", SY_KEY_INT, true},
    {"attention.sliding_window", "sliding_window", SY_KEY_INT, true},
    {"attention.output_group_count", "o_groups", SY_KEY_INT, true},
    {"attention.output_lora_rank", "o_lora_rank", SY_KEY_INT, true},
    {"attention.compress_rope_freq_base", "compress_rope_theta", SY_KEY_NUM, true},
    {"hyper_connection.count", "hc_mult", SY_KEY_INT, true},
    {"hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters", SY_KEY_INT, true},
    {"hyper_connection.epsilon", "hc_eps", SY_KEY_NUM, true},
    {"hash_layer_count", "num_hash_layers", SY_KEY_COUNT, true},
    {NULL, NULL, SY_KEY_INT, false},
};
static const struct sy_key_rule kimi_moe_keys[] = {
    {"expert_count", "num_experts", SY_KEY_INT, true},
    {"expert_used_count", "num_experts_per_token", SY_KEY_INT, true},
    {"expert_feed_forward_length", "moe_intermediate_size", SY_KEY_INT, true},
    {"expert_shared_count", "num_shared_experts", SY_KEY_INT, false},
    {"leading_dense_block_count", "first_k_dense_replace", SY_KEY_COUNT, false},
    {"expert_weights_scale", "routed_scaling_factor", SY_KEY_NUM, false},
    {"expert_group_count", "num_expert_group", SY_KEY_INT, false},
    {"expert_group_used_count", "topk_group", SY_KEY_INT, false},
    {NULL, NULL, SY_KEY_INT, false},
};
static const struct sy_key_rule gemma3n_keys[] = {
    {"altup.num_inputs", "altup_num_inputs", SY_KEY_INT, true},
    {"altup.active_idx", "altup_active_idx", SY_KEY_COUNT, true},
    {"embedding_length_per_layer_input", "hidden_size_per_layer_input", SY_KEY_INT, true},
    {"attention.shared_kv_layers", "num_kv_shared_layers", SY_KEY_COUNT, true},
    {NULL, NULL, SY_KEY_INT, false},
};
static const struct sy_key_rule gemma4_keys[] = {
    {"embedding_length_per_layer_input", "hidden_size_per_layer_input", SY_KEY_COUNT, true},
    {"attention.shared_kv_layers", "num_kv_shared_layers", SY_KEY_COUNT, true},
    {"expert_count", "num_experts", SY_KEY_COUNT, false},
    {"expert_used_count", "top_k_experts", SY_KEY_COUNT, false},
    {"expert_feed_forward_length", "moe_intermediate_size", SY_KEY_COUNT, false},
    {NULL, NULL, SY_KEY_INT, false},
};
static const struct sy_key_rule falcon_h1_keys[] = {
    {"ssm.conv_kernel", "mamba_d_conv", SY_KEY_INT, true},
    {"ssm.state_size", "mamba_d_state", SY_KEY_INT, true},
    {"ssm.time_step_rank", "mamba_n_heads", SY_KEY_INT, true},
    {"ssm.group_count", "mamba_n_groups", SY_KEY_INT, true},
    {"ssm.inner_size", "mamba_d_ssm", SY_KEY_INT, true},
    {NULL, NULL, SY_KEY_INT, false},
};
/* All that a model of nothing but mixers has. */
static const struct sy_key_rule mamba2_keys[] = {
    {"embedding_length", "hidden_size", SY_KEY_INT, true},
    {"context_length", "max_position_embeddings", SY_KEY_INT, true},
    {"attention.layer_norm_rms_epsilon", "layer_norm_epsilon", SY_KEY_NUM, true},
    {"ssm.conv_kernel", "conv_kernel", SY_KEY_INT, true},
    {"ssm.state_size", "state_size", SY_KEY_INT, true},
    {"ssm.time_step_rank", "num_heads", SY_KEY_INT, true},
    {"ssm.group_count", "n_groups", SY_KEY_INT, true},
    {NULL, NULL, SY_KEY_INT, false},
};
static const struct sy_key_rule nemotron_h_keys[] = {
    {"ssm.conv_kernel", "conv_kernel", SY_KEY_INT, true},
    {"ssm.state_size", "ssm_state_size", SY_KEY_INT, true},
    {"ssm.time_step_rank", "mamba_num_heads", SY_KEY_INT, true},
    {"ssm.group_count", "n_groups", SY_KEY_INT, true},
    {"attention.layer_norm_rms_epsilon", "layer_norm_epsilon", SY_KEY_NUM, true},
    {"expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size", SY_KEY_INT, false},
    {NULL, NULL, SY_KEY_INT, false},
};
static const struct sy_key_rule granite_hybrid_keys[] = {
    {"ssm.conv_kernel", "mamba_d_conv", SY_KEY_INT, true},
    {"ssm.state_size", "mamba_d_state", SY_KEY_INT, true},
    {"ssm.time_step_rank", "mamba_n_heads", SY_KEY_INT, true},
    {"ssm.group_count", "mamba_n_groups", SY_KEY_INT, true},
    {"expert_count", "num_local_experts", SY_KEY_COUNT, false},
    {"expert_used_count", "num_experts_per_tok", SY_KEY_COUNT, false},
    {"expert_shared_feed_forward_length", "shared_intermediate_size", SY_KEY_INT, false},
    {NULL, NULL, SY_KEY_INT, false},
};

/* Of a hybrid's layers, where the others have 0; same: all that have more must have as much. */
static int64_t most_of_layers(struct build *b, const char *key, bool same)
{
    const struct sy_gguf_kv *kv = sy_gguf_find(&b->m, key);
    int64_t most = 0;
    if (!kv || kv->type != SY_GGUF_ARRAY) return sy_gguf_int(&b->m, key, 1, INT32_MAX);
    if ((kv->elem != SY_GGUF_I32 && kv->elem != SY_GGUF_U32) || kv->n != (uint64_t)b->d->n_layer)
        sy_gguf_refuse(&b->m, SY_EFORMAT, "key '%s': expected an integer for each of %lld layers", key,
                       (long long)b->d->n_layer);
    for (uint64_t i = 0; !b->m.st && i < kv->n; i++) {
        int64_t v = sy_gguf_elem_int(kv, i);
        if (v < 0 || (same && v > 0 && most > 0 && v != most))
            sy_gguf_refuse(&b->m, SY_ENOSUP,
                           "key '%s': expected 0 or the same number in every layer, found %lld in layer %llu", key,
                           (long long)v, (unsigned long long)i);
        if (v > most) most = v;
    }
    return most > 0 ? most : 1;
}

/* Of a family whose layers may differ, and say how elsewhere: the first one's. */
static int64_t first_of_layers(struct build *b, const char *key)
{
    const struct sy_gguf_kv *kv = sy_gguf_find(&b->m, key);
    if (!kv || kv->type != SY_GGUF_ARRAY) return sy_gguf_int(&b->m, key, 1, INT32_MAX);
    bool ints = (kv->elem == SY_GGUF_I32 || kv->elem == SY_GGUF_U32) && kv->n == (uint64_t)b->d->n_layer;
    int64_t v = ints ? sy_gguf_elem_int(kv, 0) : 0;
    if (v < 1)
        sy_gguf_refuse(&b->m, SY_EFORMAT, "key '%s': expected an integer above 0 for each of %lld layers", key,
                       (long long)b->d->n_layer);
    return v > 0 ? v : 1;
}

static void put_keys(struct build *b, const struct sy_key_rule *r)
{
    for (; r->gguf; r++) {
        const char *key = own(b, r->gguf);
        if (!r->required && !sy_gguf_find(&b->m, key)) continue;
        if (r->type == SY_KEY_NUM) put_num(b, r->hf, sy_gguf_num(&b->m, key, 0, 1e30));
        else if (r->type <= SY_KEY_COUNT)
            put_int(b, r->hf, sy_gguf_int(&b->m, key, r->type == SY_KEY_INT, INT32_MAX));
        else if (b->arch->hybrid) put_int(b, r->hf, most_of_layers(b, key, false));
        else if (b->arch->patterned) put_int(b, r->hf, first_of_layers(b, key));
        else put_int(b, r->hf, sy_gguf_int_layers(&b->m, key, b->d->n_layer, 1, INT32_MAX));
    }
}

/* ---- rope ---------------------------------------------------------------------------------------------- */

/* Llama 3's frequency bands come as a tensor that divides the angles. */
static void put_rope_factors(struct build *b, const struct sy_tensor *t)
{
    int64_t n = b->d->head_dim / 2;
    if (strcmp(t->format->name, "f32") || t->n_dim != 1 || t->dim[0] != n) {
        sy_gguf_refuse(&b->m, SY_ESHAPE,
                       "tensor 'rope_freqs.weight': expected %lld numbers of f32 (half the head), "
                       "found %lld of %s in %d dimensions",
                       (long long)n, (long long)t->dim[t->n_dim - 1], t->format->name, t->n_dim);
        return;
    }
    struct sy_json *rope = sy_json_new_object(), *list = sy_json_new_array();
    for (int64_t i = 0; i < n; i++) {
        float f;
        memcpy(&f, t->data + 4 * i, 4);
        if (!(f > 0 && f < 1e30f)) {
            sy_gguf_refuse(&b->m, SY_EFORMAT,
                           "tensor 'rope_freqs.weight': expected positive factors, found %g at %lld", (double)f,
                           (long long)i);
            break;
        }
        if (!sy_json_push_take(list, sy_json_new_number(sy_gguf_meant(f)))) b->nomem = true;
    }
    put(b, rope, "rope_type", sy_json_new_text("factors", 7));
    put(b, rope, "factors", list);
    put(b, b->o, "rope_scaling", rope);
}

static void put_yarn(struct build *b, struct sy_json *rope, int64_t n_ctx)
{
    static const struct {
        const char *gguf, *hf;
    } same[] = {
        {"rope.scaling.yarn_beta_fast", "beta_fast"},
        {"rope.scaling.yarn_beta_slow", "beta_slow"},
        {"rope.scaling.yarn_attn_factor", "attention_factor"},
        {"rope.scaling.yarn_log_multiplier", "mscale_all_dim"},
    };
    for (size_t i = 0; i < SY_COUNT(same); i++)
        if (sy_gguf_find(&b->m, own(b, same[i].gguf)))
            put(b, rope, same[i].hf, sy_json_new_number(sy_gguf_num(&b->m, b->key, 0, 1e6)));
    /* The file has no key for it: whoever writes the one means 1 by the other. */
    if (sy_gguf_find(&b->m, own(b, "rope.scaling.yarn_log_multiplier")))
        put(b, rope, "mscale", sy_json_new_number(1));
    double ext = sy_gguf_num_or(&b->m, own(b, "rope.scaling.yarn_ext_factor"), 1, -1e6, 1e6);
    if (ext != 1 && ext >= 0) /* negative: the default */
        sy_gguf_refuse(&b->m, SY_ENOSUP, "key '%s': only 1 is supported, found %g", b->key, ext);
    int64_t old = sy_gguf_int_or(&b->m, own(b, "rope.scaling.original_context_length"), n_ctx, 1, INT32_MAX);
    put(b, rope, "original_max_position_embeddings", sy_json_new_int(old));
}

static void put_rope(struct build *b, const struct sy_gguf *g)
{
    put_num(b, "rope_theta", sy_gguf_num_or(&b->m, own(b, "rope.freq_base"), 10000, 1e-3, 1e12));
    int64_t n_rot = sy_gguf_int_or(&b->m, own(b, "rope.dimension_count"), b->d->head_dim, 0, INT32_MAX);
    if (n_rot != b->d->head_dim && b->arch->part_rope && n_rot > 0 && n_rot < b->d->head_dim)
        put_int(b, "rotary_dim", n_rot);
    else if (n_rot != b->d->head_dim)
        sy_gguf_refuse(&b->m, SY_ENOSUP,
                       "key '%s': expected the head size %lld, found %lld; partial rotation is not "
                       "supported for this architecture",
                       b->key, (long long)b->d->head_dim, (long long)n_rot);
    int64_t n_ctx = sy_gguf_int(&b->m, own(b, "context_length"), 1, INT32_MAX);
    double factor = sy_gguf_num_or(&b->m, own(b, "rope.scale_linear"), 0, 0, 1e6); /* the key's first name */
    factor = sy_gguf_num_or(&b->m, own(b, "rope.scaling.factor"), factor, 0, 1e6);
    double attn = sy_gguf_num_or(&b->m, own(b, "rope.scaling.attn_factor"), 1, 0, 1e6);
    /* LongRoPE's follows from the lengths. */
    if (attn != 1 && !sy_gguf_raw(g, "rope_factors_long.weight"))
        sy_gguf_refuse(&b->m, SY_ENOSUP, "key '%s': only 1 is supported, found %g", b->key, attn);

    struct sy_text type = {"linear", 6};
    (void)sy_gguf_text(&b->m, own(b, "rope.scaling.type"), &type);
    bool linear = type.n == 6 && !memcmp(type.at, "linear", 6), yarn = type.n == 4 && !memcmp(type.at, "yarn", 4);
    bool off = type.n == 4 && !memcmp(type.at, "none", 4);
    if (!linear && !yarn && !off)
        sy_gguf_refuse(&b->m, SY_ENOSUP, "key '%s': expected 'none', 'linear' or 'yarn', found '%.*s'", b->key,
                       (int)(type.n < 60 ? type.n : 60), type.at);
    bool scaled = !off && factor != 0 && (yarn || factor != 1);
    const struct sy_tensor *factors = sy_gguf_raw(g, "rope_freqs.weight");
    if (factors && scaled)
        sy_gguf_refuse(&b->m, SY_ENOSUP, "tensor 'rope_freqs.weight' together with key '%s' of %g is not supported",
                       own(b, "rope.scaling.factor"), factor);
    else if (factors && b->m.st == SY_OK) put_rope_factors(b, factors);
    if (b->m.st || !scaled) return;
    struct sy_json *rope = sy_json_new_object();
    put(b, rope, "rope_type", sy_json_new_text(type.at, type.n));
    put(b, rope, "factor", sy_json_new_number(factor));
    if (yarn) put_yarn(b, rope, n_ctx);
    put(b, b->o, "rope_scaling", rope);
}

/* ---- what single architectures have more --------------------------------------------------------------- */

static void name_class(struct build *b, const char *hf_class, const char *model_type)
{
    struct sy_json *list = sy_json_new_array();
    if (!sy_json_push_take(list, sy_json_new_text(hf_class, strlen(hf_class)))) b->nomem = true;
    put(b, b->o, "architectures", list);
    put_text(b, "model_type", model_type);
}

static void llama_keys(struct build *b)
{
    int64_t window = sy_gguf_int_or(&b->m, own(b, "attention.sliding_window"), 0, 0, INT32_MAX);
    if (b->d->n_expert > 0) {
        name_class(b, "MixtralForCausalLM", "mixtral");
    } else if (window > 0) {
        name_class(b, "MistralForCausalLM", "mistral");
    }
    if (window > 0) put_int(b, "sliding_window", window);
}

/* Ministral 3 scales its queries by position; its config keeps that with the rope. */
static void mistral3_keys(struct build *b)
{
    if (!sy_gguf_find(&b->m, own(b, "attention.temperature_scale"))) return;
    double beta = sy_gguf_num(&b->m, b->key, 0, 1e6);
    name_class(b, "Ministral3ForCausalLM", "ministral3");
    const struct sy_json *old = sy_json_get(b->o, "rope_scaling"), *v;
    const char *key;
    if (!sy_json_get(old, "original_max_position_embeddings")) {
        sy_gguf_refuse(&b->m, SY_ENOSUP, "key '%s' is supported only together with '%s.rope.scaling.type' yarn",
                       b->key, b->arch->name);
        return;
    }
    struct sy_json *rope = sy_json_new_object();
    for (void *it = NULL; (it = sy_json_next(old, it, &key, &v));) put(b, rope, key, sy_json_share(v));
    put(b, rope, "llama_4_scaling_beta", sy_json_new_number(beta));
    put(b, b->o, "rope_scaling", rope);
}

static void qwen_moe_only(struct build *b)
{
    put_int(b, "decoder_sparse_step", 1);
    /* Where the file does not say: as the released models of the family do. */
    bool normed = strcmp(b->arch->name, "qwen2moe") != 0;
    put_bool(b, "norm_topk_prob", sy_gguf_bool_or(&b->m, own(b, "expert_weights_norm"), normed) != 0);
}

static void smollm3_keys(struct build *b) { put_int(b, "no_rope_layer_interval", 4); }
static void qwen_keys(struct build *b) { put_bool(b, "use_sliding_window", false); }

/* LongRoPE's two tables (phi3). */
static void put_long_rope(struct build *b)
{
    static const char *const tensor[] = {"rope_factors_short.weight", "rope_factors_long.weight"};
    static const char *const key[] = {"short_factor", "long_factor"};
    if (!sy_gguf_raw(b->m.g, tensor[1])) return;
    int64_t old = sy_gguf_int(&b->m, own(b, "rope.scaling.original_context_length"), 1, INT32_MAX);
    struct sy_json *rope = sy_json_new_object();
    put(b, rope, "rope_type", sy_json_new_text("longrope", 8));
    put(b, rope, "original_max_position_embeddings", sy_json_new_int(old));
    for (int i = 0; i < 2; i++) {
        const struct sy_tensor *t = sy_gguf_raw(b->m.g, tensor[i]);
        struct sy_json *list = sy_json_new_array();
        if (!t || strcmp(t->dtype, "f32") || t->n_dim != 1 || t->dim[0] > 1 << 16)
            sy_gguf_refuse(&b->m, SY_ESHAPE, "tensor '%s': expected a vector of f32", tensor[i]);
        else
            for (int64_t k = 0; k < t->dim[0]; k++) {
                float f;
                memcpy(&f, t->data + 4 * k, 4);
                if (!(f > 0 && f < 1e30f))
                    sy_gguf_refuse(&b->m, SY_EFORMAT, "tensor '%s': expected positive factors", tensor[i]);
                if (!sy_json_push_take(list, sy_json_new_number(b->m.st ? 1 : sy_gguf_meant(f)))) b->nomem = true;
            }
        put(b, rope, key[i], list);
    }
    put(b, b->o, "rope_scaling", rope);
}

static void put_window(struct build *b)
{
    int64_t window = sy_gguf_int_or(&b->m, own(b, "attention.sliding_window"), 0, 0, INT32_MAX);
    if (window == 0) return;
    put_int(b, "sliding_window", window);
    if (b->arch->pattern > 1) sy_gguf_pattern(b);
}

static void phi3_keys(struct build *b)
{
    put_window(b);
    put_long_rope(b);
}

static void olmo2_keys(struct build *b)
{
    if (sy_gguf_int_or(&b->m, own(b, "attention.sliding_window"), 0, 0, INT32_MAX) > 0)
        name_class(b, "Olmo3ForCausalLM", "olmo3");
    put_window(b);
}

static void exaone4_keys(struct build *b) { put_window(b); }

static void cohere2_keys(struct build *b)
{
    put_window(b);
    put_num(b, "logit_scale", sy_gguf_num_or(&b->m, own(b, "logit_scale"), 0.0625, -1e6, 1e6));
}

/* expert_gating_func: 1 softmax, 2 sigmoid; absent: what the family is released with. */
static void put_sigmoid_moe(struct build *b)
{
    int64_t gate = sy_gguf_int_or(&b->m, own(b, "expert_gating_func"), 2, 0, INT32_MAX);
    if (gate != 2)
        sy_gguf_refuse(&b->m, SY_ENOSUP, "key '%s': only 2 (sigmoid) is supported, found %lld", b->key,
                       (long long)gate);
    put_bool(b, "norm_topk_prob", sy_gguf_bool_or(&b->m, own(b, "expert_weights_norm"), true) != 0);
}

static void glm4_moe_keys(struct build *b)
{
    put_sigmoid_moe(b);
    put_bool(b, "use_qk_norm", sy_gguf_raw(b->m.g, "blk.0.attn_q_norm.weight") != NULL);
}

static void gpt_oss_keys(struct build *b)
{
    put_window(b);
    struct sy_json *rope = sy_json_new_object();
    const struct sy_json *old = sy_json_get(b->o, "rope_scaling"), *v;
    const char *key;
    if (!sy_json_is_object(old)) {
        sy_json_free(rope);
        return;
    }
    for (void *it = NULL; (it = sy_json_next(old, it, &key, &v));) put(b, rope, key, sy_json_share(v));
    put(b, rope, "truncate", sy_json_new_bool(false)); /* the file has no key for it */
    put(b, b->o, "rope_scaling", rope);
}

static void minimax_m2_keys(struct build *b)
{
    put_bool(b, "use_qk_norm", sy_gguf_raw(b->m.g, "blk.0.attn_q_norm.weight") != NULL);
}

/* A float, or as many equal ones as there are layers, or more. */
static double same_in_layers(struct build *b, const char *key)
{
    const struct sy_gguf_kv *kv = sy_gguf_find(&b->m, key);
    if (!kv || kv->type != SY_GGUF_ARRAY) return sy_gguf_num(&b->m, key, 1e-3, 1e6);
    bool fits = kv->elem == SY_GGUF_F32 && kv->n >= (uint64_t)b->d->n_layer;
    float first = 0, x;
    if (fits) memcpy(&first, kv->at, sizeof first);
    for (int64_t l = 0; fits && l < b->d->n_layer; l++) {
        memcpy(&x, kv->at + 4 * l, sizeof x);
        fits = x == first && x >= 1e-3f && x <= 1e6f;
    }
    if (!fits)
        sy_gguf_refuse(&b->m, SY_ENOSUP,
                       "key '%s': expected the same float32 from 0.001 to 1e6 for each of %lld layers", key,
                       (long long)b->d->n_layer);
    return fits ? sy_gguf_meant(first) : 1;
}

/* How many tokens one of a layer's further keys stands for says of which kind it is. */
static void deepseek4_layers(struct build *b)
{
    const struct sy_gguf_kv *kv = sy_gguf_find(&b->m, own(b, "attention.compress_ratios"));
    struct sy_json *list = sy_json_new_array();
    if (!kv || kv->type != SY_GGUF_ARRAY || (kv->elem != SY_GGUF_I32 && kv->elem != SY_GGUF_U32) ||
        kv->n < (uint64_t)b->d->n_layer)
        sy_gguf_refuse(&b->m, SY_EFORMAT, "key '%s': expected an integer for each of %lld layers", b->key,
                       (long long)b->d->n_layer);
    for (int64_t l = 0; l < b->d->n_layer && !b->m.st; l++) {
        int64_t ratio = sy_gguf_elem_int(kv, (uint64_t)l);
        const char *type = ratio == 0     ? "sliding_attention"
                           : ratio == 4   ? "compressed_sparse_attention"
                           : ratio == 128 ? "heavily_compressed_attention"
                                          : NULL;
        if (!type)
            sy_gguf_refuse(&b->m, SY_ENOSUP, "key '%s': layer %lld: expected 0, 4 or 128, found %lld", b->key,
                           (long long)l, (long long)ratio);
        else if (!sy_json_push_take(list, sy_json_new_text(type, strlen(type)))) b->nomem = true;
    }
    put(b, b->o, "layer_types", list);
}

static void deepseek4_more(struct build *b)
{
    int64_t gate = sy_gguf_int_or(&b->m, own(b, "expert_gating_func"), 4, 0, INT32_MAX);
    if (gate != 4)
        sy_gguf_refuse(&b->m, SY_ENOSUP, "key '%s': only 4 (square root of softplus) is supported, found %lld",
                       b->key, (long long)gate);
    put_bool(b, "norm_topk_prob", sy_gguf_bool_or(&b->m, own(b, "expert_weights_norm"), true) != 0);
    double limit = same_in_layers(b, own(b, "swiglu_clamp_exp"));
    if (sy_gguf_find(&b->m, own(b, "swiglu_clamp_shexp")) && same_in_layers(b, b->key) != limit)
        sy_gguf_refuse(&b->m, SY_ENOSUP, "key '%s': expected the bound %g of the other experts", b->key, limit);
    put_num(b, "swiglu_limit", limit);
    deepseek4_layers(b);
}

/* One number stands for what the residual is multiplied by, and what is added to it is not; every so-manieth layer
 * attends, or the layers that do not are listed. */
static void minimax_01_keys(struct build *b)
{
    static const char *const alpha[] = {"full_attn_alpha_factor", "linear_attn_alpha_factor", "mlp_alpha_factor"};
    static const char *const beta[] = {"full_attn_beta_factor", "linear_attn_beta_factor", "mlp_beta_factor"};
    double scale = sy_gguf_num(&b->m, own(b, "residual_scale"), -1e6, 1e6);
    for (size_t i = 0; i < SY_COUNT(alpha); i++) {
        put_num(b, alpha[i], scale);
        put_num(b, beta[i], 1);
    }
    int64_t every = sy_gguf_int_or(&b->m, own(b, "full_attention_interval"), 8, 1, INT32_MAX);
    const struct sy_gguf_kv *kv = sy_gguf_array(&b->m, own(b, "attention.recurrent_layers"), SY_GGUF_BOOL);
    struct sy_json *list = sy_json_new_array();
    if (kv && kv->n != (uint64_t)b->d->n_layer)
        sy_gguf_refuse(&b->m, SY_EFORMAT, "key '%s': expected one bool for each of %lld layers, found %llu", b->key,
                       (long long)b->d->n_layer, (unsigned long long)kv->n);
    for (int64_t l = 0; l < b->d->n_layer && !b->m.st; l++) {
        bool linear = kv ? kv->at[l] : (l + 1) % every != 0;
        const char *type = linear ? "linear_attention" : "full_attention";
        if (!sy_json_push_take(list, sy_json_new_text(type, strlen(type)))) b->nomem = true;
    }
    put(b, b->o, "layer_types", list);
}

/* The layer that has t as its `tail`; -1: none. */
int64_t sy_gguf_layer_with(const struct build *b, const struct sy_tensor *t, const char *tail)
{
    const char *p = t->name;
    int64_t layer = 0;
    if (strncmp(p, "blk.", 4)) return -1;
    for (p += 4; *p >= '0' && *p <= '9' && layer < b->d->n_layer; p++) layer = 10 * layer + (*p - '0');
    return *p == '.' && layer < b->d->n_layer && !strcmp(p + 1, tail) ? layer : -1;
}

/* A tensor that some layer has, or NULL. */
static const struct sy_tensor *any_layers(const struct build *b, const char *tail)
{
    for (size_t i = 0; i < b->m.g->n_raw; i++)
        if (sy_gguf_layer_with(b, &b->m.g->raw[i], tail) >= 0) return &b->m.g->raw[i];
    return NULL;
}

/* Latent attention: head_dim is that of the part that turns. */
static void latent_keys(struct build *b)
{
    bool latent = sy_gguf_find(&b->m, own(b, "attention.key_length_mla")) != NULL;
    int64_t rope = sy_gguf_int(&b->m, own(b, "rope.dimension_count"), 1, 1 << 20);
    int64_t d_key =
        sy_gguf_int(&b->m, own(b, latent ? "attention.key_length_mla" : "attention.key_length"), 1, 1 << 20);
    int64_t d_val =
        sy_gguf_int(&b->m, own(b, latent ? "attention.value_length_mla" : "attention.value_length"), 1, 1 << 20);
    if (d_key <= rope)
        sy_gguf_refuse(&b->m, SY_EFORMAT, "key '%s': expected more than the %lld dims that turn, found %lld",
                       own(b, "attention.key_length"), (long long)rope, (long long)d_key);
    put_int(b, "qk_nope_head_dim", d_key - rope);
    put_int(b, "v_head_dim", d_val);
    put_int(b, "num_key_value_heads", b->n_head);
    put_bool(b, "kv_b_split", any_layers(b, "attn_k_b.weight") != NULL);
}

static void deepseek_keys(struct build *b)
{
    put_sigmoid_moe(b);
    latent_keys(b);
    double log_mul = sy_gguf_num_or(&b->m, own(b, "rope.scaling.yarn_log_multiplier"), 0, 0, 1e6);
    const struct sy_json *old = sy_json_get(b->o, "rope_scaling"), *v;
    const char *key;
    if (log_mul <= 0 || !sy_json_is_object(old)) return;
    /* The file holds a tenth of mscale_all_dim, which stands for both. */
    struct sy_json *scaling = sy_json_new_object();
    for (void *it = NULL; (it = sy_json_next(old, it, &key, &v));)
        if (strncmp(key, "mscale", 6)) put(b, scaling, key, sy_json_share(v));
    put(b, scaling, "mscale", sy_json_new_number(10 * log_mul));
    put(b, scaling, "mscale_all_dim", sy_json_new_number(10 * log_mul));
    put(b, b->o, "rope_scaling", scaling);
}

/* Layers without KV heads are convolutions. */
static void lfm2_keys(struct build *b)
{
    const struct sy_gguf_kv *kv = sy_gguf_array(&b->m, own(b, "attention.head_count_kv"), SY_GGUF_I32);
    if (!kv || kv->n != (uint64_t)b->d->n_layer) {
        sy_gguf_refuse(&b->m, SY_EFORMAT, "key '%s': expected a number for each layer", b->key);
        return;
    }
    struct sy_json *list = sy_json_new_array();
    int64_t n_kv = 0;
    for (uint64_t i = 0; i < kv->n; i++) {
        int64_t n = sy_gguf_elem_int(kv, i);
        const char *type = n > 0 ? "full_attention" : "conv";
        if (n > 0 && n_kv > 0 && n != n_kv)
            sy_gguf_refuse(&b->m, SY_ENOSUP, "key '%s': layers of different numbers of heads are not supported",
                           b->key);
        if (n > 0) n_kv = n;
        if (!sy_json_push_take(list, sy_json_new_text(type, strlen(type)))) b->nomem = true;
    }
    put(b, b->o, "layer_types", list);
    put_int(b, "num_key_value_heads", n_kv > 0 ? n_kv : 1);
    put_bool(b, "block_auto_adjust_ff_dim", false); /* feed_forward_length is what it comes to */
    put_num(b, "norm_eps", sy_gguf_num(&b->m, own(b, "attention.layer_norm_rms_epsilon"), 0, 1));
    put_int(b, "conv_L_cache", sy_gguf_int(&b->m, own(b, "shortconv.l_cache"), 1, 1024));
    if (b->d->n_expert == 0) return;
    put_int(b, "num_dense_layers", sy_gguf_int_or(&b->m, own(b, "leading_dense_block_count"), 0, 0, INT32_MAX));
    put_bool(b, "norm_topk_prob", true);
    put_bool(b, "use_expert_bias", true);
}

/* What layers are, by their tensors: a list of types. */
struct layer_sign {
    const char *tail, *type;
};
static void put_layer_types(struct build *b, const char *name, const char *otherwise, const struct layer_sign *sign,
                            size_t n)
{
    const char *type[SY_CKPT_LAYERS_MAX];
    for (int64_t l = 0; l < b->d->n_layer; l++) type[l] = otherwise;
    for (size_t i = 0; i < b->m.g->n_raw; i++)
        for (size_t k = 0; k < n; k++) {
            int64_t l = sy_gguf_layer_with(b, &b->m.g->raw[i], sign[k].tail);
            if (l >= 0) type[l] = sign[k].type;
        }
    struct sy_json *list = sy_json_new_array();
    for (int64_t l = 0; l < b->d->n_layer; l++)
        if (!sy_json_push_take(list, sy_json_new_text(type[l], strlen(type[l])))) b->nomem = true;
    put(b, b->o, name, list);
}

/* Columns of a head of a state-space mixer: the inner size over the number of heads. */
static int64_t ssm_head(struct build *b)
{
    int64_t n = sy_gguf_int(&b->m, own(b, "ssm.time_step_rank"), 1, INT32_MAX);
    int64_t inner = sy_gguf_int(&b->m, own(b, "ssm.inner_size"), 1, INT32_MAX);
    if (inner % n)
        sy_gguf_refuse(&b->m, SY_EFORMAT, "key '%s': expected a multiple of the %lld heads, found %lld", b->key,
                       (long long)n, (long long)inner);
    return inner / n;
}

/* GGUF has value heads tiled where several share a key head. */
static void qwen35_keys(struct build *b)
{
    int64_t n_key = sy_gguf_int(&b->m, own(b, "ssm.group_count"), 1, 4096), d = ssm_head(b);
    int64_t n_val = sy_gguf_int(&b->m, own(b, "ssm.time_step_rank"), 1, 4096);
    if (b->d->n_expert > 0) qwen_moe_only(b);
    put_int(b, "linear_value_head_dim", d);
    put_int(b, "mtp_num_hidden_layers", b->d->n_next);
    if (!b->m.st && (n_val % n_key || d > 1 << 13))
        sy_gguf_refuse(&b->m, SY_EFORMAT, "key '%s': expected a multiple of the %lld key heads, found %lld",
                       own(b, "ssm.time_step_rank"), (long long)n_key, (long long)n_val);
    if (!b->m.st && n_key > 1 && n_val > n_key)
        b->d->tiles = (struct sy_vheads){(int32_t)n_key, (int32_t)(n_val / n_key), (int32_t)d, 0};
}

/* Its multipliers are in the weights. */
static void falcon_h1_more(struct build *b)
{
    put_bool(b, "mamba_conv_bias", any_layers(b, "ssm_conv1d.bias") != NULL);
    put_bool(b, "mamba_rms_norm", any_layers(b, "ssm_norm.weight") != NULL);
    put_bool(b, "mamba_norm_before_gate", false);
    put_bool(b, "mamba_proj_bias", any_layers(b, "ssm_in.bias") != NULL);
}

/* Layers without KV heads have delta attention, of as many heads as the others. */
static void kimi_linear_keys(struct build *b)
{
    const struct sy_gguf_kv *kv = sy_gguf_array(&b->m, own(b, "attention.head_count_kv"), SY_GGUF_I32);
    struct sy_json *full = sy_json_new_array(), *delta = sy_json_new_object();
    if (!kv || kv->n != (uint64_t)b->d->n_layer)
        sy_gguf_refuse(&b->m, SY_EFORMAT, "key '%s': expected a number for each layer", b->key);
    for (uint64_t i = 0; !b->m.st && i < kv->n; i++)
        if (sy_gguf_elem_int(kv, i) > 0 && !sy_json_push_take(full, sy_json_new_int((int64_t)i + 1))) b->nomem = true;
    put(b, delta, "full_attn_layers", full);
    put(b, delta, "num_heads", sy_json_new_int(b->n_head));
    put(b, delta, "head_dim", sy_json_new_int(sy_gguf_int(&b->m, own(b, "kda.head_dim"), 1, 8192)));
    put(b, delta, "short_conv_kernel_size", sy_json_new_int(sy_gguf_int(&b->m, own(b, "ssm.conv_kernel"), 2, 64)));
    put(b, b->o, "linear_attn_config", delta);
    put_bool(b, "mla_use_nope", true);
    put_bool(b, "moe_renormalize", sy_gguf_bool_or(&b->m, own(b, "expert_weights_norm"), true) != 0);
    if (sy_gguf_int_or(&b->m, own(b, "expert_gating_func"), 2, 0, INT32_MAX) != 2)
        sy_gguf_refuse(&b->m, SY_ENOSUP, "key '%s': only 2 (sigmoid) is supported", b->key);
    latent_keys(b);
}

static void qwen3_next_keys(struct build *b)
{
    qwen_moe_only(b);
    put_int(b, "linear_value_head_dim", ssm_head(b));
    put_int(b, "mtp_num_hidden_layers", b->d->n_next);
    put_bool(b, "linear_qkvz_split", any_layers(b, "attn_qkv.weight") != NULL);
}

static void mamba2_more(struct build *b)
{
    put_int(b, "head_dim", ssm_head(b));
    put_bool(b, "use_bias", any_layers(b, "ssm_in.bias") != NULL);
    put_bool(b, "use_conv_bias", any_layers(b, "ssm_conv1d.bias") != NULL);
}

static void nemotron_h_more(struct build *b)
{
    static const struct layer_sign signs[] = {
        {"ssm_in.weight", "mamba"}, {"attn_q.weight", "attention"}, {"ffn_gate_inp.weight", "moe"}};
    put_layer_types(b, "layers_block_type", "mlp", signs, SY_COUNT(signs));
    put_int(b, "mamba_head_dim", ssm_head(b));
    put_bool(b, "mamba_proj_bias", any_layers(b, "ssm_in.bias") != NULL);
    put_bool(b, "use_conv_bias", any_layers(b, "ssm_conv1d.bias") != NULL);
    if (b->d->n_expert == 0) return;
    put_bool(b, "norm_topk_prob", sy_gguf_bool_or(&b->m, own(b, "expert_weights_norm"), true) != 0);
    /* Its dense layers may be of another width than its experts. */
    const struct sy_tensor *up = any_layers(b, "ffn_up.weight");
    if (up && up->n_dim == 2) put_int(b, "intermediate_size", up->dim[0]);
}

static void granite_hybrid_more(struct build *b)
{
    static const struct layer_sign sign = {"ssm_in.weight", "mamba"};
    put_layer_types(b, "layer_types", "attention", &sign, 1);
    int64_t hidden = sy_gguf_int(&b->m, own(b, "embedding_length"), 1, INT32_MAX);
    int64_t inner = sy_gguf_int(&b->m, own(b, "ssm.inner_size"), 1, INT32_MAX);
    if (inner % hidden)
        sy_gguf_refuse(&b->m, SY_ENOSUP, "key '%s': expected a multiple of %lld, found %lld", b->key,
                       (long long)hidden, (long long)inner);
    put_int(b, "mamba_expand", inner / hidden);
    put_bool(b, "mamba_proj_bias", any_layers(b, "ssm_in.bias") != NULL);
    put_bool(b, "mamba_conv_bias", any_layers(b, "ssm_conv1d.bias") != NULL);
    /* The key that llama.cpp's files say it by. */
    bool rope = sy_gguf_bool_or(&b->m, own(b, "rope.scaling.finetuned"), false) != 0;
    put_text(b, "position_embedding_type", rope ? "rope" : "nope");
    const struct sy_tensor *gate = any_layers(b, "ffn_gate.weight");
    if (gate && gate->n_dim == 2) put_int(b, "shared_intermediate_size", gate->dim[0]);
}

static void llama4_more(struct build *b)
{
    put_int(b, "intermediate_size_mlp", sy_gguf_int(&b->m, own(b, "feed_forward_length"), 1, INT32_MAX));
    /* Maverick, of 128 experts, is the one that has no norm of q and k. */
    put_bool(b, "use_qk_norm", b->d->n_expert != 128);
    int64_t chunk = sy_gguf_int_or(&b->m, own(b, "attention.sliding_window"), 8192, 0, INT32_MAX);
    put_int(b, "attention_chunk_size", chunk ? chunk : INT32_MAX / 2);
    const struct sy_gguf_kv *kv = sy_gguf_array(&b->m, own(b, "attention.sliding_window_pattern"), SY_GGUF_BOOL);
    struct sy_json *list = sy_json_new_array();
    if (kv && kv->n != (uint64_t)b->d->n_layer)
        sy_gguf_refuse(&b->m, SY_EFORMAT, "key '%s': expected one bool for each layer", b->key);
    for (int64_t l = 0; l < b->d->n_layer && !b->m.st; l++) {
        bool roped = kv ? kv->at[l] : chunk == 0 || (l + 1) % 4 != 0;
        if (!sy_json_push_take(list, sy_json_new_int(roped))) b->nomem = true;
    }
    put(b, b->o, "no_rope_layers", list);
}

static const struct more {
    const char *arch;
    void (*add)(struct build *); /* NULL: nothing */
    const struct sy_key_rule *keys[SY_KEY_TABLES - 1];
    bool dense_too; /* its keys are of experts, which it may lack */
    bool alone;     /* it has none of the common keys, nor attention */
} more[] = {
    {.arch = "cohere2", .add = cohere2_keys},
    {.arch = "deepseek2", .add = deepseek_keys, .keys = {sigmoid_moe_keys, mla_keys}},
    {.arch = "exaone4", .add = exaone4_keys},
    {.arch = "falcon-h1", .add = falcon_h1_more, .keys = {falcon_h1_keys}},
    {.arch = "gemma2", .add = sy_gguf_gemma2},
    {.arch = "gemma3", .add = sy_gguf_gemma3},
    {.arch = "gemma3n", .add = sy_gguf_gemma3n, .keys = {gemma3n_keys}},
    {.arch = "gemma4", .add = sy_gguf_gemma4, .keys = {gemma4_keys}},
    {.arch = "deepseek32", .add = deepseek_keys, .keys = {sigmoid_moe_keys, mla_keys, indexer_keys}},
    {.arch = "deepseek4", .add = deepseek4_more, .keys = {deepseek4_keys, indexer_keys}},
    {.arch = "glm-dsa", .add = deepseek_keys, .keys = {sigmoid_moe_keys, mla_keys, indexer_keys}},
    {.arch = "glm4moe", .add = glm4_moe_keys, .keys = {sigmoid_moe_keys}},
    {.arch = "gpt-oss", .add = gpt_oss_keys, .keys = {local_moe_keys}},
    {.arch = "granite", .keys = {granite_keys}},
    {.arch = "granitehybrid", .add = granite_hybrid_more, .keys = {granite_keys, granite_hybrid_keys}},
    {.arch = "kimi-linear", .add = kimi_linear_keys, .keys = {kimi_moe_keys, mla_keys}},
    {.arch = "lfm2", .add = lfm2_keys},
    {.arch = "lfm2moe", .add = lfm2_keys, .keys = {qwen_moe_keys}},
    {.arch = "llama", .add = llama_keys, .keys = {mixtral_keys}, .dense_too = true},
    {.arch = "llama4", .add = llama4_more, .keys = {llama4_keys}},
    {.arch = "mamba2", .add = mamba2_more, .keys = {mamba2_keys}, .alone = true},
    {.arch = "minimax-01", .add = minimax_01_keys, .keys = {mixtral_keys}},
    {.arch = "minimax-m2", .add = minimax_m2_keys, .keys = {local_moe_keys}},
    {.arch = "mistral3", .add = mistral3_keys},
    {.arch = "nemotron_h", .add = nemotron_h_more, .keys = {nemotron_h_keys}},
    {.arch = "nemotron_h_moe", .add = nemotron_h_more, .keys = {nemotron_h_keys, sigmoid_moe_keys}},
    {.arch = "olmo2", .add = olmo2_keys},
    {.arch = "phi3", .add = phi3_keys},
    {.arch = "qwen2", .add = qwen_keys},
    {.arch = "qwen2moe", .add = qwen_moe_only, .keys = {qwen_moe_keys}},
    {.arch = "qwen3", .add = qwen_keys},
    {.arch = "qwen3moe", .add = qwen_moe_only, .keys = {qwen_moe_keys}},
    {.arch = "qwen3next", .add = qwen3_next_keys, .keys = {qwen_moe_keys, delta_keys}},
    {.arch = "qwen35", .add = qwen35_keys, .keys = {delta_keys}},
    {.arch = "qwen35moe", .add = qwen35_keys, .keys = {qwen_moe_keys, delta_keys}},
    {.arch = "smollm3", .add = smollm3_keys},
};

static const struct more *more_of(const struct sy_gguf_arch *arch)
{
    for (size_t i = 0; i < SY_COUNT(more); i++)
        if (!strcmp(more[i].arch, arch->name)) return &more[i];
    return NULL;
}

void sy_gguf_keys(const struct sy_gguf_arch *arch, const struct sy_key_rule *table[SY_KEY_TABLES + 1])
{
    const struct more *m = more_of(arch);
    size_t n = 0;
    if (!m || !m->alone) table[n++] = common_keys;
    for (size_t i = 0; m && i < SY_COUNT(m->keys); i++)
        if (m->keys[i]) table[n++] = m->keys[i];
    table[n] = NULL;
}

/* ---- together ------------------------------------------------------------------------------------------ */

static void put_heads(struct build *b)
{
    int64_t hidden = sy_gguf_int(&b->m, own(b, "embedding_length"), 1, INT32_MAX);
    const char *heads = own(b, "attention.head_count");
    b->n_head = b->arch->hybrid ? most_of_layers(b, heads, true)
                                : sy_gguf_int_layers(&b->m, heads, b->d->n_layer, 1, INT32_MAX);
    int64_t n_kv = b->n_head;
    if (!b->arch->kv_by_layer && sy_gguf_find(&b->m, own(b, "attention.head_count_kv")))
        n_kv = b->arch->hybrid ? most_of_layers(b, b->key, true)
                               : sy_gguf_int_layers(&b->m, b->key, b->d->n_layer, 1, INT32_MAX);
    put_int(b, "num_key_value_heads", n_kv);
    if (b->arch->latent) {
        b->d->head_dim = sy_gguf_int(&b->m, own(b, "rope.dimension_count"), 2, 1 << 20);
        return;
    }
    bool swa = b->arch->wide_global;
    int64_t d = swa ? sy_gguf_int(&b->m, own(b, "attention.key_length_swa"), 1, 1 << 20)
                    : sy_gguf_int_or(&b->m, own(b, "attention.key_length"), 0, 1, 1 << 20);
    if (d == 0 && hidden % b->n_head)
        sy_gguf_refuse(&b->m, SY_EFORMAT,
                       "key '%s' is missing, and 'embedding_length' %lld is no multiple of the %lld "
                       "heads",
                       b->key, (long long)hidden, (long long)b->n_head);
    if (d == 0) d = hidden / b->n_head;
    int64_t d_v =
        sy_gguf_int_or(&b->m, own(b, swa ? "attention.value_length_swa" : "attention.value_length"), d, 1, 1 << 20);
    if (d_v != d)
        sy_gguf_refuse(&b->m, SY_ENOSUP,
                       "key '%s': expected the key length %lld, found %lld; heads whose values differ "
                       "in size are not supported for this architecture",
                       b->key, (long long)d, (long long)d_v);
    if (d < 2 || d % 2)
        sy_gguf_refuse(&b->m, SY_EFORMAT, "key '%s': expected an even head size, found %lld",
                       own(b, "attention.key_length"), (long long)d);
    b->d->head_dim = b->m.st ? 2 : d;
    put_int(b, "head_dim", d);
}

static void put_all(struct build *b, const struct sy_gguf *g)
{
    b->d->n_layer = sy_gguf_int(&b->m, own(b, "block_count"), 1, SY_CKPT_LAYERS_MAX);
    /* Counts the layers that predict further tokens, too. */
    int64_t next = sy_gguf_int_or(&b->m, own(b, "nextn_predict_layers"), 0, 0, SY_CKPT_LAYERS_MAX);
    b->d->n_next = next < b->d->n_layer ? next : 0;
    b->d->n_layer -= b->d->n_next;
    b->d->n_expert = sy_gguf_int_or(&b->m, own(b, "expert_count"), 0, 0, SY_CKPT_EXPERTS_MAX);
    put_int(b, "num_hidden_layers", b->d->n_layer);
    name_class(b, b->arch->hf_class, b->arch->model_type);
    const struct more *m = more_of(b->arch);
    put_text(b, "hidden_act", b->arch->act);
    if (!m || !m->alone) {
        put_keys(b, common_keys);
        put_heads(b);
        if (!b->arch->wide_global) put_rope(b, g);
    } else {
        b->d->head_dim = 2; /* of rows that no rope turns */
    }
    const struct sy_tensor *embed = sy_gguf_raw(g, "token_embd.weight");
    if (!embed || embed->n_dim != 2)
        sy_gguf_refuse(&b->m, SY_EFORMAT,
                       "tensor 'token_embd.weight': expected a matrix [vocabulary, embedding], found "
                       "%s",
                       embed ? "another shape" : "nothing");
    else put_int(b, "vocab_size", embed->dim[0]);
    put_bool(b, "tie_word_embeddings", !sy_gguf_raw(g, "output.weight"));
    put_bool(b, "attention_bias", sy_gguf_raw(g, "blk.0.attn_q.bias") != NULL);
    put_bool(b, "mlp_bias", sy_gguf_raw(g, "blk.0.ffn_up.bias") != NULL);
    for (size_t i = 0; m && i < SY_COUNT(m->keys) && m->keys[i]; i++)
        if (!m->dense_too || b->d->n_expert > 0) put_keys(b, m->keys[i]);
    if (m && m->add) m->add(b);
}

sy_status sy_gguf_config(struct sy_checkpoint *ck, const struct sy_gguf *g, struct sy_gguf_dims *d,
                         struct sy_err *err)
{
    struct build b = {.m = {g, err, SY_OK}, .d = d};
    struct sy_text name = {"", 0};
    if (!sy_gguf_text(&b.m, "general.architecture", &name))
        return sy_gguf_refuse(&b.m, SY_EFORMAT, "key 'general.architecture': expected a string, found nothing");
    b.arch = d->arch = sy_gguf_arch_find(&name);
    if (!b.arch)
        return sy_gguf_refuse(&b.m, SY_ENOSUP,
                              "key 'general.architecture': '%.*s' is not supported as GGUF; 'systole help models' "
                              "lists those that are",
                              (int)(name.n < 60 ? name.n : 60), name.at);
    b.o = ck->config = sy_json_new_object();
    if (!b.o) return sy_ckpt_nomem(ck, err);
    put_all(&b, g);
    if (b.m.st) return b.m.st;
    return b.nomem ? sy_ckpt_nomem(ck, err) : SY_OK;
}
