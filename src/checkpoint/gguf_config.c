/* GGUF metadata (ggml-org/ggml, docs/gguf.md) to a config in the Hugging Face dialect, by tables: a key and
 * what it is called there. What differs between architectures beyond a key has a small function below. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/internal.h"

struct build {
    struct sy_gguf_meta m;
    struct sy_json *o; /* the config */
    const struct sy_gguf_arch *arch;
    struct sy_gguf_dims *d;
    int64_t n_head;
    bool nomem;
    char key[160];
};

/* "rope.freq_base" to "llama.rope.freq_base"; valid until the next call. */
static const char *own(struct build *b, const char *tail)
{
    snprintf(b->key, sizeof b->key, "%s.%s", b->arch->name, tail);
    return b->key;
}

static void put(struct build *b, struct sy_json *o, const char *name, struct sy_json *v)
{
    if (!sy_json_set_take(o, name, v)) b->nomem = true;
}
static void put_int(struct build *b, const char *name, int64_t v) { put(b, b->o, name, sy_json_new_int(v)); }
static void put_num(struct build *b, const char *name, double v) { put(b, b->o, name, sy_json_new_number(v)); }
static void put_bool(struct build *b, const char *name, bool v) { put(b, b->o, name, sy_json_new_bool(v)); }
static void put_text(struct build *b, const char *name, const char *v)
{
    put(b, b->o, name, sy_json_new_text(v, strlen(v)));
}

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

static void put_keys(struct build *b, const struct sy_key_rule *r)
{
    for (; r->gguf; r++) {
        const char *key = own(b, r->gguf);
        if (!r->required && !sy_gguf_find(&b->m, key)) continue;
        if (r->type == SY_KEY_NUM) put_num(b, r->hf, sy_gguf_num(&b->m, key, 0, 1e30));
        else if (r->type <= SY_KEY_COUNT)
            put_int(b, r->hf, sy_gguf_int(&b->m, key, r->type == SY_KEY_INT, INT32_MAX));
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
    bool qwen3 = !strcmp(b->arch->name, "qwen3moe");
    put_bool(b, "norm_topk_prob", sy_gguf_bool_or(&b->m, own(b, "expert_weights_norm"), qwen3) != 0);
}

static void smollm3_keys(struct build *b) { put_int(b, "no_rope_layer_interval", 4); }
static void qwen_keys(struct build *b) { put_bool(b, "use_sliding_window", false); }

/* A number (every n-th layer is global) or one bool a layer (true: sliding). */
static void put_pattern(struct build *b)
{
    const struct sy_gguf_kv *kv = sy_gguf_find(&b->m, own(b, "attention.sliding_window_pattern"));
    if (!kv || kv->type != SY_GGUF_ARRAY) {
        put_int(b, "sliding_window_pattern", sy_gguf_int_or(&b->m, b->key, b->arch->pattern, 1, INT32_MAX));
        return;
    }
    if (!(kv = sy_gguf_array(&b->m, b->key, SY_GGUF_BOOL))) return;
    if (kv->n != (uint64_t)b->d->n_layer) {
        sy_gguf_refuse(&b->m, SY_EFORMAT, "key '%s': expected one bool for each of %lld layers, found %llu", b->key,
                       (long long)b->d->n_layer, (unsigned long long)kv->n);
        return;
    }
    struct sy_json *list = sy_json_new_array();
    for (uint64_t i = 0; i < kv->n; i++) {
        const char *type = kv->at[i] ? "sliding_attention" : "full_attention";
        if (!sy_json_push_take(list, sy_json_new_text(type, strlen(type)))) b->nomem = true;
    }
    put(b, b->o, "layer_types", list);
}

/* layers_27b: the one size of the family whose queries are scaled by hidden_size / heads, not head size. */
static void gemma_keys(struct build *b, int64_t layers_27b)
{
    int64_t hidden = sy_gguf_int(&b->m, own(b, "embedding_length"), 1, INT32_MAX);
    double scale = sy_gguf_num_or(&b->m, own(b, "attention.scale"), 0, 0, 1e6);
    if (scale > 0) put_num(b, "query_pre_attn_scalar", 1 / (scale * scale));
    else put_int(b, "query_pre_attn_scalar", b->d->n_layer == layers_27b ? hidden / b->n_head : b->d->head_dim);
    put_text(b, "hidden_activation", b->arch->act);
}

static void gemma2_keys(struct build *b)
{
    gemma_keys(b, 46);
    put_int(b, "sliding_window", sy_gguf_int_or(&b->m, own(b, "attention.sliding_window"), 4096, 1, INT32_MAX));
    put_pattern(b);
    put_num(b, "attn_logit_softcapping", sy_gguf_num_or(&b->m, own(b, "attn_logit_softcapping"), 50, 1e-6, 1e6));
    put_num(b, "final_logit_softcapping", sy_gguf_num_or(&b->m, own(b, "final_logit_softcapping"), 30, 1e-6, 1e6));
}

static void gemma3_keys(struct build *b)
{
    gemma_keys(b, 62);
    put_num(b, "rope_local_base_freq", sy_gguf_num_or(&b->m, own(b, "rope.freq_base_swa"), 10000, 1e-3, 1e12));
    int64_t window = sy_gguf_int_or(&b->m, own(b, "attention.sliding_window"), 0, 0, INT32_MAX);
    if (window > 0) {
        put_int(b, "sliding_window", window);
        put_pattern(b);
    } else {
        put_int(b, "sliding_window_pattern", 1); /* every layer is global */
    }
    double cap = sy_gguf_num_or(&b->m, own(b, "final_logit_softcapping"), 0, 0, 1e6);
    if (cap > 0) put_num(b, "final_logit_softcapping", cap);
}

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
    if (b->arch->pattern > 1) put_pattern(b);
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

/* Latent attention: head_dim is that of the part that turns. */
static void deepseek_keys(struct build *b)
{
    put_sigmoid_moe(b);
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
    put_bool(b, "kv_b_split", sy_gguf_raw(b->m.g, "blk.0.attn_k_b.weight") != NULL);
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

static const struct more {
    const char *arch;
    void (*add)(struct build *); /* NULL: nothing */
    const struct sy_key_rule *keys[SY_KEY_TABLES - 1];
    bool dense_too; /* its keys are of experts, which it may lack */
} more[] = {
    {"cohere2", cohere2_keys, {NULL}, false},
    {"deepseek2", deepseek_keys, {sigmoid_moe_keys, mla_keys}, false},
    {"exaone4", exaone4_keys, {NULL}, false},
    {"gemma2", gemma2_keys, {NULL}, false},
    {"gemma3", gemma3_keys, {NULL}, false},
    {"glm4moe", glm4_moe_keys, {sigmoid_moe_keys}, false},
    {"gpt-oss", gpt_oss_keys, {local_moe_keys}, false},
    {"granite", NULL, {granite_keys}, false},
    {"lfm2", lfm2_keys, {NULL}, false},
    {"lfm2moe", lfm2_keys, {qwen_moe_keys}, false},
    {"llama", llama_keys, {mixtral_keys}, true},
    {"minimax-m2", minimax_m2_keys, {local_moe_keys}, false},
    {"mistral3", mistral3_keys, {NULL}, false},
    {"olmo2", olmo2_keys, {NULL}, false},
    {"phi3", phi3_keys, {NULL}, false},
    {"qwen2", qwen_keys, {NULL}, false},
    {"qwen2moe", qwen_moe_only, {qwen_moe_keys}, false},
    {"qwen3", qwen_keys, {NULL}, false},
    {"qwen3moe", qwen_moe_only, {qwen_moe_keys}, false},
    {"smollm3", smollm3_keys, {NULL}, false},
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
    table[n++] = common_keys;
    for (size_t i = 0; m && i < SY_COUNT(m->keys); i++)
        if (m->keys[i]) table[n++] = m->keys[i];
    table[n] = NULL;
}

/* ---- together ------------------------------------------------------------------------------------------ */

static void put_heads(struct build *b)
{
    int64_t hidden = sy_gguf_int(&b->m, own(b, "embedding_length"), 1, INT32_MAX);
    b->n_head = sy_gguf_int_layers(&b->m, own(b, "attention.head_count"), b->d->n_layer, 1, INT32_MAX);
    int64_t n_kv = b->n_head;
    bool mixed = !strncmp(b->arch->name, "lfm2", 4); /* lfm2_keys() */
    if (!mixed && sy_gguf_find(&b->m, own(b, "attention.head_count_kv")))
        n_kv = sy_gguf_int_layers(&b->m, b->key, b->d->n_layer, 1, INT32_MAX);
    put_int(b, "num_key_value_heads", n_kv);
    if (!strcmp(b->arch->name, "deepseek2")) { /* deepseek_keys() */
        b->d->head_dim = sy_gguf_int(&b->m, own(b, "rope.dimension_count"), 2, 1 << 20);
        return;
    }
    int64_t d = sy_gguf_int_or(&b->m, own(b, "attention.key_length"), 0, 1, 1 << 20);
    if (d == 0 && hidden % b->n_head)
        sy_gguf_refuse(&b->m, SY_EFORMAT,
                       "key '%s' is missing, and 'embedding_length' %lld is no multiple of the %lld "
                       "heads",
                       b->key, (long long)hidden, (long long)b->n_head);
    if (d == 0) d = hidden / b->n_head;
    int64_t d_v = sy_gguf_int_or(&b->m, own(b, "attention.value_length"), d, 1, 1 << 20);
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
    if (next < b->d->n_layer) b->d->n_layer -= next;
    b->d->n_expert = sy_gguf_int_or(&b->m, own(b, "expert_count"), 0, 0, SY_CKPT_EXPERTS_MAX);
    put_int(b, "num_hidden_layers", b->d->n_layer);
    name_class(b, b->arch->hf_class, b->arch->model_type);
    put_keys(b, common_keys);
    put_heads(b);
    put_text(b, "hidden_act", b->arch->act);
    put_rope(b, g);
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
    const struct more *m = more_of(b->arch);
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
    if (!b.arch) {
        char known[400];
        sy_gguf_arch_list(known, sizeof known);
        return sy_gguf_refuse(&b.m, SY_ENOSUP,
                              "key 'general.architecture': '%.*s' is not supported as GGUF; expected "
                              "one of %s",
                              (int)(name.n < 60 ? name.n : 60), name.at, known);
    }
    b.o = ck->config = sy_json_new_object();
    if (!b.o) return sy_ckpt_nomem(ck, err);
    put_all(&b, g);
    if (b.m.st) return b.m.st;
    return b.nomem ? sy_ckpt_nomem(ck, err) : SY_OK;
}
