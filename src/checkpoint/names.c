/* Tensor names: a GGUF's to the Hugging Face names of its architecture, and a composite model's to those of
 * its text model. What a GGUF converter does to q and k rows and to norms stands here too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/internal.h"

static const struct sy_name_rule whole_model[] = {
    {"token_embd", "model.embed_tokens", 0},
    {"output_norm", "model.norm", SY_NAME_NORM},
    {"output", "lm_head", 0},
    {"token_embd_norm", "model.embedding_norm", 0}, /* LFM2's last norm */
    {NULL, NULL, 0},
};
static const struct sy_name_rule block[] = {
    {"attn_norm", "input_layernorm", SY_NAME_NORM},
    {"attn_q", "self_attn.q_proj", SY_NAME_ROPE},
    {"attn_k", "self_attn.k_proj", SY_NAME_ROPE},
    {"attn_v", "self_attn.v_proj", 0},
    {"attn_output", "self_attn.o_proj", 0},
    {"attn_q_norm", "self_attn.q_norm", SY_NAME_NORM},
    {"attn_k_norm", "self_attn.k_norm", SY_NAME_NORM},
    {"ffn_norm", "post_attention_layernorm", SY_NAME_NORM},
    {"ffn_gate", "mlp.gate_proj", 0},
    {"ffn_up", "mlp.up_proj", 0},
    {"ffn_down", "mlp.down_proj", 0},
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_gemma[] = {
    {"post_attention_norm", "post_attention_layernorm", SY_NAME_NORM},
    {"ffn_norm", "pre_feedforward_layernorm", SY_NAME_NORM},
    {"post_ffw_norm", "post_feedforward_layernorm", SY_NAME_NORM},
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_mixtral[] = {
    {"ffn_gate_inp", "block_sparse_moe.gate", 0},
    {"ffn_gate_exps", "block_sparse_moe.experts.#.w1", SY_NAME_EXPERTS},
    {"ffn_down_exps", "block_sparse_moe.experts.#.w2", SY_NAME_EXPERTS},
    {"ffn_up_exps", "block_sparse_moe.experts.#.w3", SY_NAME_EXPERTS},
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_qwen_moe[] = {
    {"ffn_gate_inp", "mlp.gate", 0},
    {"ffn_gate_exps", "mlp.experts.#.gate_proj", SY_NAME_EXPERTS},
    {"ffn_up_exps", "mlp.experts.#.up_proj", SY_NAME_EXPERTS},
    {"ffn_down_exps", "mlp.experts.#.down_proj", SY_NAME_EXPERTS},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate", SY_NAME_ROW},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj", 0},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj", 0},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj", 0},
    {NULL, NULL, 0},
};
/* Norms behind the sublayers alone. */
static const struct sy_name_rule block_post_norm[] = {
    {"post_attention_norm", "post_attention_layernorm", 0},
    {"post_ffw_norm", "post_feedforward_layernorm", 0},
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_phi3[] = {
    {"attn_qkv", "self_attn.qkv_proj", 0},
    {"ffn_up", "mlp.gate_up_proj", 0},
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_glm4[] = {
    {"post_attention_norm", "post_self_attn_layernorm", 0},
    {"post_ffw_norm", "post_mlp_layernorm", 0},
    {"ffn_up", "mlp.gate_up_proj", 0},
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_glm4_moe[] = {
    {"post_attention_norm", "post_attention_layernorm", 0},
    {"ffn_gate_inp", "mlp.gate", 0},
    {"exp_probs_b", "mlp.gate.e_score_correction_bias", SY_NAME_BARE},
    {"ffn_gate_exps", "mlp.experts.#.gate_proj", SY_NAME_EXPERTS},
    {"ffn_up_exps", "mlp.experts.#.up_proj", SY_NAME_EXPERTS},
    {"ffn_down_exps", "mlp.experts.#.down_proj", SY_NAME_EXPERTS},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj", 0},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj", 0},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj", 0},
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_gpt_oss[] = {
    {"post_attention_norm", "post_attention_layernorm", 0},
    {"attn_sinks", "self_attn.sinks", SY_NAME_BARE},
    {"ffn_gate_inp", "mlp.router", 0},
    {"ffn_gate_exps", "mlp.experts.#.gate_proj", SY_NAME_EXPERTS},
    {"ffn_up_exps", "mlp.experts.#.up_proj", SY_NAME_EXPERTS},
    {"ffn_down_exps", "mlp.experts.#.down_proj", SY_NAME_EXPERTS},
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_deepseek[] = {
    {"attn_q_a", "self_attn.q_a_proj", 0},
    {"attn_q_a_norm", "self_attn.q_a_layernorm", 0},
    {"attn_q_b", "self_attn.q_b_proj", 0},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa", 0},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm", 0},
    {"attn_kv_b", "self_attn.kv_b_proj", 0},
    {"attn_k_b", "self_attn.k_b_proj", SY_NAME_FLAT},
    {"attn_v_b", "self_attn.v_b_proj", SY_NAME_FLAT},
    {"ffn_gate_inp", "mlp.gate", 0},
    {"exp_probs_b", "mlp.gate.e_score_correction_bias", SY_NAME_BARE},
    {"ffn_gate_exps", "mlp.experts.#.gate_proj", SY_NAME_EXPERTS},
    {"ffn_up_exps", "mlp.experts.#.up_proj", SY_NAME_EXPERTS},
    {"ffn_down_exps", "mlp.experts.#.down_proj", SY_NAME_EXPERTS},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj", 0},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj", 0},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj", 0},
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_minimax_m2[] = {
    {"ffn_gate_inp", "block_sparse_moe.gate", 0},
    {"exp_probs_b", "block_sparse_moe.e_score_correction_bias", SY_NAME_BARE},
    {"ffn_gate_exps", "block_sparse_moe.experts.#.w1", SY_NAME_EXPERTS},
    {"ffn_up_exps", "block_sparse_moe.experts.#.w3", SY_NAME_EXPERTS},
    {"ffn_down_exps", "block_sparse_moe.experts.#.w2", SY_NAME_EXPERTS},
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_lfm2[] = {
    {"attn_norm", "operator_norm", 0},
    {"attn_q_norm", "self_attn.q_layernorm", 0},
    {"attn_k_norm", "self_attn.k_layernorm", 0},
    {"attn_output", "self_attn.out_proj", 0},
    {"shortconv.conv", "conv.conv", SY_NAME_FILTER},
    {"shortconv.in_proj", "conv.in_proj", 0},
    {"shortconv.out_proj", "conv.out_proj", 0},
    {"ffn_norm", "ffn_norm", 0},
    {"ffn_gate", "feed_forward.w1", 0},
    {"ffn_up", "feed_forward.w3", 0},
    {"ffn_down", "feed_forward.w2", 0},
    {"ffn_gate_inp", "feed_forward.gate", 0},
    {"exp_probs_b", "feed_forward.expert_bias", SY_NAME_BARE},
    {"ffn_gate_exps", "feed_forward.experts.#.w1", SY_NAME_EXPERTS},
    {"ffn_up_exps", "feed_forward.experts.#.w3", SY_NAME_EXPERTS},
    {"ffn_down_exps", "feed_forward.experts.#.w2", SY_NAME_EXPERTS},
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_llama4[] = {
    {"ffn_gate_inp", "feed_forward.router", 0},
    {"ffn_gate_exps", "feed_forward.experts.#.gate_proj", SY_NAME_EXPERTS},
    {"ffn_up_exps", "feed_forward.experts.#.up_proj", SY_NAME_EXPERTS},
    {"ffn_down_exps", "feed_forward.experts.#.down_proj", SY_NAME_EXPERTS},
    {"ffn_gate_shexp", "feed_forward.shared_expert.gate_proj", 0},
    {"ffn_up_shexp", "feed_forward.shared_expert.up_proj", 0},
    {"ffn_down_shexp", "feed_forward.shared_expert.down_proj", 0},
    {"ffn_gate", "feed_forward.gate_proj", 0},
    {"ffn_up", "feed_forward.up_proj", 0},
    {"ffn_down", "feed_forward.down_proj", 0},
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_qwen3_next[] = {
    {"post_attention_norm", "post_attention_layernorm", SY_NAME_NORM},
    {"ssm_in", "linear_attn.in_proj_qkvz", 0},
    {"attn_qkv", "linear_attn.in_proj_qkv", 0},
    {"attn_gate", "linear_attn.in_proj_z", 0},
    {"ssm_ba", "linear_attn.in_proj_ba", 0},
    {"ssm_conv1d", "linear_attn.conv1d", SY_NAME_FILTER},
    {"ssm_a", "linear_attn.A_log", SY_NAME_WHOLE | SY_NAME_NEG_EXP},
    {"ssm_dt.bias", "linear_attn.dt_bias", SY_NAME_WHOLE},
    {"ssm_norm", "linear_attn.norm", 0},
    {"ssm_out", "linear_attn.out_proj", 0},
    {"ffn_gate_inp", "mlp.gate", 0},
    {"ffn_gate_exps", "mlp.experts.#.gate_proj", SY_NAME_EXPERTS},
    {"ffn_up_exps", "mlp.experts.#.up_proj", SY_NAME_EXPERTS},
    {"ffn_down_exps", "mlp.experts.#.down_proj", SY_NAME_EXPERTS},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate", SY_NAME_ROW},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj", 0},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj", 0},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj", 0},
    {NULL, NULL, 0},
};
/* Tensors of a Mamba-2 mixer, which stands in "mixer." or "mamba.". */
#define MAMBA2(in)                                                                                                   \
    {"ssm_in", in "in_proj", 0}, {"ssm_conv1d", in "conv1d", SY_NAME_FILTER},                                        \
        {"ssm_a", in "A_log", SY_NAME_WHOLE | SY_NAME_NEG_EXP | SY_NAME_COLUMN},                                     \
        {"ssm_d", in "D", SY_NAME_WHOLE | SY_NAME_COLUMN}, {"ssm_dt.bias", in "dt_bias", SY_NAME_WHOLE},             \
        {"ssm_norm", in "norm", SY_NAME_GROUPS},                                                                     \
    {                                                                                                                \
        "ssm_out", in "out_proj", 0                                                                                  \
    }
static const struct sy_name_rule block_mamba2[] = {MAMBA2("mixer."), {"attn_norm", "norm", 0}, {NULL, NULL, 0}};
static const struct sy_name_rule block_nemotron_h[] = {
    MAMBA2("mixer."),
    {"attn_norm", "norm", 0},
    {"attn_q", "mixer.q_proj", 0},
    {"attn_k", "mixer.k_proj", 0},
    {"attn_v", "mixer.v_proj", 0},
    {"attn_output", "mixer.o_proj", 0},
    {"ffn_up", "mixer.up_proj", 0},
    {"ffn_down", "mixer.down_proj", 0},
    {"ffn_gate_inp", "mixer.gate", 0},
    {"exp_probs_b.bias", "mixer.gate.e_score_correction_bias", SY_NAME_WHOLE},
    {"ffn_up_exps", "mixer.experts.#.up_proj", SY_NAME_EXPERTS},
    {"ffn_down_exps", "mixer.experts.#.down_proj", SY_NAME_EXPERTS},
    {"ffn_up_shexp", "mixer.shared_experts.up_proj", 0},
    {"ffn_down_shexp", "mixer.shared_experts.down_proj", 0},
    {NULL, NULL, 0},
};
static const struct sy_name_rule whole_mamba[] = {
    {"token_embd", "backbone.embeddings", 0}, {"output_norm", "backbone.norm_f", 0}, {NULL, NULL, 0}};
static const struct sy_name_rule block_granite_hybrid[] = {
    MAMBA2("mamba."),
    {"ffn_gate_inp", "block_sparse_moe.router.layer", 0},
    {"ffn_gate_exps", "block_sparse_moe.experts.#.gate_proj", SY_NAME_EXPERTS},
    {"ffn_up_exps", "block_sparse_moe.experts.#.up_proj", SY_NAME_EXPERTS},
    {"ffn_down_exps", "block_sparse_moe.experts.#.down_proj", SY_NAME_EXPERTS},
    {"ffn_gate_shexp", "shared_mlp.gate_proj", 0},
    {"ffn_up_shexp", "shared_mlp.up_proj", 0},
    {"ffn_down_shexp", "shared_mlp.output_linear", 0},
    {"ffn_gate", "shared_mlp.gate_proj", 0},
    {"ffn_up", "shared_mlp.up_proj", 0},
    {"ffn_down", "shared_mlp.output_linear", 0},
    {NULL, NULL, 0},
};
static const struct sy_name_rule dense_granite_hybrid[] = {
    {"ffn_gate", "shared_mlp.gate_proj", 0},
    {"ffn_up", "shared_mlp.up_proj", 0},
    {"ffn_down", "shared_mlp.output_linear", 0},
    {NULL, NULL, 0},
};
static const struct sy_name_rule none[] = {{NULL, NULL, 0}};

/* Llama, Mistral and Mixtral are all converted to "llama"; gguf_config.c tells them apart by their keys. */
static const struct sy_gguf_arch archs[] = {
    {"cohere2", "Cohere2ForCausalLM", "cohere2", "silu", .pattern = 4, .names = none},
    {"deepseek2", "DeepseekV3ForCausalLM", "deepseek_v3", "silu", .names = block_deepseek},
    {"exaone4", "Exaone4ForCausalLM", "exaone4", "silu", .pattern = 4, .names = block_post_norm},
    {"gemma2", "Gemma2ForCausalLM", "gemma2", "gelu_pytorch_tanh", .norm_plus_one = true, .pattern = 2,
     .names = block_gemma},
    {"gemma3", "Gemma3ForCausalLM", "gemma3_text", "gelu_pytorch_tanh", .norm_plus_one = true, .pattern = 6,
     .names = block_gemma},
    {"glm4", "Glm4ForCausalLM", "glm4", "silu", .part_rope = true, .names = block_glm4},
    {"glm4moe", "Glm4MoeForCausalLM", "glm4_moe", "silu", .part_rope = true, .names = block_glm4_moe},
    {"gpt-oss", "GptOssForCausalLM", "gpt_oss", "silu", .pattern = 2, .names = block_gpt_oss},
    {"granite", "GraniteForCausalLM", "granite", "silu", .rope_pairs = true, .names = none},
    {"granitehybrid", "GraniteMoeHybridForCausalLM", "granitemoehybrid", "silu", .rope_pairs = true, .hybrid = true,
     .names = block_granite_hybrid, .dense = dense_granite_hybrid},
    {"lfm2", "Lfm2ForCausalLM", "lfm2", "silu", .names = block_lfm2},
    {"lfm2moe", "Lfm2MoeForCausalLM", "lfm2_moe", "silu", .names = block_lfm2},
    {"llama", "LlamaForCausalLM", "llama", "silu", .rope_pairs = true, .pattern = 1, .names = block_mixtral},
    {"llama4", "Llama4ForCausalLM", "llama4_text", "silu", .names = block_llama4},
    {"mamba2", "Mamba2ForCausalLM", "mamba2", "silu", .names = block_mamba2, .whole = whole_mamba,
     .layers = "backbone.layers."},
    {"minimax-m2", "MiniMaxM2ForCausalLM", "minimax_m2", "silu", .part_rope = true, .names = block_minimax_m2},
    {"mistral3", "MistralForCausalLM", "mistral", "silu", .rope_pairs = true, .names = none},
    {"nemotron_h", "NemotronHForCausalLM", "nemotron_h", "relu2", .hybrid = true, .names = block_nemotron_h,
     .whole = whole_mamba, .layers = "backbone.layers.", .sparse = "nemotron_h_moe"},
    {"nemotron_h_moe", "NemotronHForCausalLM", "nemotron_h", "relu2", .hybrid = true, .names = block_nemotron_h,
     .whole = whole_mamba, .layers = "backbone.layers."},
    {"olmo2", "Olmo2ForCausalLM", "olmo2", "silu", .pattern = 4, .names = block_post_norm},
    {"phi3", "Phi3ForCausalLM", "phi3", "silu", .part_rope = true, .pattern = 1, .names = block_phi3},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", "silu", .names = none},
    {"qwen2moe", "Qwen2MoeForCausalLM", "qwen2_moe", "silu", .names = block_qwen_moe},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", "silu", .names = none},
    {"qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe", "silu", .names = block_qwen_moe},
    {"qwen3next", "Qwen3NextForCausalLM", "qwen3_next", "silu", .norm_plus_one = true, .part_rope = true,
     .names = block_qwen3_next},
    {"smollm3", "SmolLM3ForCausalLM", "smollm3", "silu", .rope_pairs = true, .names = none},
};

const struct sy_gguf_arch *sy_gguf_arch_find(const struct sy_text *name)
{
    for (size_t i = 0; i < SY_COUNT(archs); i++)
        if (strlen(archs[i].name) == name->n && !memcmp(archs[i].name, name->at, name->n)) return &archs[i];
    return NULL;
}

void sy_gguf_arch_list(char *text, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < SY_COUNT(archs) && at < n; i++)
        at += (size_t)snprintf(text + at, n - at, "%s%s", i ? ", " : "", archs[i].name);
}

/* Classes that go by another's architecture there. */
static const struct {
    const char *hf_class, *arch;
} also[] = {
    {"MistralForCausalLM", "llama"},         {"MixtralForCausalLM", "llama"},
    {"Ministral3ForCausalLM", "mistral3"},   {"Gemma3ForConditionalGeneration", "gemma3"},
    {"Glm4MoeLiteForCausalLM", "deepseek2"}, {"KimiK25ForConditionalGeneration", "deepseek2"},
    {"Olmo3ForCausalLM", "olmo2"},           {"Llama4ForConditionalGeneration", "llama4"},
};

const struct sy_gguf_arch *sy_gguf_arch_of_class(const char *hf_class, bool sparse)
{
    const char *name = NULL;
    for (size_t i = 0; i < SY_COUNT(also); i++)
        if (!strcmp(also[i].hf_class, hf_class)) name = also[i].arch;
    for (size_t i = 0; i < SY_COUNT(archs); i++) {
        if (name ? strcmp(archs[i].name, name) : strcmp(archs[i].hf_class, hf_class)) continue;
        if (!sparse || !archs[i].sparse) return &archs[i];
        struct sy_text other = {archs[i].sparse, strlen(archs[i].sparse)};
        return sy_gguf_arch_find(&other);
    }
    return NULL;
}

/* ---- GGUF names ---------------------------------------------------------------------------------------- */

static bool is_named(const struct sy_name_rule *r, const char *stem)
{
    size_t n = strlen(r->gguf);
    if (r->flags & SY_NAME_WHOLE) return !strcmp(r->gguf, stem);
    return !strncmp(r->gguf, stem, n) && (!strcmp(stem + n, ".weight") || !strcmp(stem + n, ".bias"));
}

/* Of what a GGUF calls `stem`, with ".weight" or ".bias" where its rule is not whole; r may be NULL. */
static const struct sy_name_rule *rule_for(const struct sy_name_rule *r, const char *stem)
{
    for (; r && r->gguf; r++)
        if (is_named(r, stem)) return r;
    return NULL;
}

static const char *layers_of(const struct sy_gguf_arch *a) { return a->layers ? a->layers : "model.layers."; }

/* A decimal number without leading zeros, below limit, up to the dot; -1: none. Moves *s behind the dot. */
static int64_t number(const char **s, int64_t limit)
{
    const char *p = *s;
    int64_t v = 0;
    if (*p == '0' && p[1] != '.') return -1;
    for (; *p >= '0' && *p <= '9'; p++) {
        v = 10 * v + (*p - '0');
        if (v >= limit) return -1;
    }
    if (p == *s || *p != '.') return -1;
    *s = p + 1;
    return v;
}

/* The rule for a GGUF name, with its layer (-1: none) and what follows the last dot; NULL: no rule. */
static const struct sy_name_rule *parse(const char *name, const struct sy_gguf_dims *d, int64_t *layer,
                                        const char **suffix)
{
    const char *dot = strrchr(name, '.'), *stem = name + 4;
    const struct sy_name_rule *r;
    *suffix = dot ? dot + 1 : "";
    *layer = -1;
    if (strncmp(name, "blk.", 4)) {
        r = rule_for(d->arch->whole, name);
        return r ? r : rule_for(whole_model, name);
    }
    *layer = number(&stem, d->n_layer);
    if (*layer < 0) return NULL;
    r = rule_for(d->arch->names, stem);
    return r ? r : rule_for(block, stem);
}

/* One tensor per expert: slices of the stored one, where they lie. */
static sy_status map_experts(struct sy_checkpoint *c, struct sy_tensor t, const struct sy_name_rule *r, int64_t layer,
                             const char *suffix, const struct sy_gguf_dims *d, struct sy_err *err)
{
    bool bias = !strcmp(suffix, "bias");
    if (t.n_dim != (bias ? 2 : 3) || t.dim[0] != d->n_expert)
        return sy_fail(err, SY_ESHAPE,
                       "'%s': tensor '%s': expected %d dimensions with %lld experts outermost "
                       "(expert_count), found %d with %lld",
                       t.file, t.file_name, bias ? 2 : 3, (long long)d->n_expert, t.n_dim, (long long)t.dim[0]);
    const char *mark = strchr(r->hf, '#');
    t.n_dim--;
    t.dim[0] = t.dim[1];
    t.dim[1] = t.dim[2];
    t.dim[2] = 1;
    t.n_bytes /= (size_t)d->n_expert;
    for (int64_t i = 0; i < d->n_expert; i++) {
        t.name = sy_arena_printf(&c->mem, "%s%lld.%.*s%lld%s.%s", layers_of(d->arch), (long long)layer,
                                 (int)(mark - r->hf), r->hf, (long long)i, mark + 1, suffix);
        if (!t.name) return sy_ckpt_nomem(c, err);
        sy_status st = sy_ckpt_add(c, &t, err);
        if (st) return st;
        t.data += t.n_bytes;
    }
    return SY_OK;
}

static sy_status map_one(struct sy_checkpoint *c, struct sy_tensor t, const struct sy_gguf_dims *d,
                         struct sy_err *err)
{
    int64_t layer;
    const char *suffix;
    const struct sy_name_rule *r = parse(t.file_name, d, &layer, &suffix);
    if (!r) return sy_ckpt_add(c, &t, err);
    if (r->flags & SY_NAME_EXPERTS) return map_experts(c, t, r, layer, suffix, d, err);
    bool bare = r->flags & (SY_NAME_BARE | SY_NAME_WHOLE);
    if (layer < 0) t.name = sy_arena_printf(&c->mem, "%s%s%s", r->hf, bare ? "" : ".", bare ? "" : suffix);
    else
        t.name = sy_arena_printf(&c->mem, "%s%lld.%s%s%s", layers_of(d->arch), (long long)layer, r->hf,
                                 bare ? "" : ".", bare ? "" : suffix);
    if (!t.name) return sy_ckpt_nomem(c, err);
    if (((r->flags & SY_NAME_COLUMN) && t.n_dim == 2 && t.dim[1] == 1) ||
        ((r->flags & SY_NAME_GROUPS) && t.n_dim == 2)) {
        t.n_dim = 1;
        t.dim[0] *= t.dim[1];
        t.dim[1] = 1;
    }
    if ((r->flags & SY_NAME_ROW) && t.n_dim == 1) {
        t.n_dim = 2;
        t.dim[1] = t.dim[0];
        t.dim[0] = 1;
    }
    if ((r->flags & SY_NAME_FILTER) && t.n_dim == 2) {
        t.n_dim = 3;
        t.dim[2] = t.dim[1];
        t.dim[1] = 1;
    }
    if ((r->flags & SY_NAME_FLAT) && t.n_dim == 3) {
        t.n_dim = 2;
        t.dim[0] *= t.dim[1];
        t.dim[1] = t.dim[2];
        t.dim[2] = 1;
    }
    if ((r->flags & SY_NAME_ROPE) && d->arch->rope_pairs) {
        if (t.n_dim > 2 || t.dim[0] % d->head_dim)
            return sy_fail(err, SY_ESHAPE,
                           "'%s': tensor '%s': expected whole heads of %lld rows, found %lld rows in %d "
                           "dimensions",
                           t.file, t.file_name, (long long)d->head_dim, (long long)t.dim[0], t.n_dim);
        t.head_rows = (int32_t)d->head_dim;
    }
    t.norm_plus_one = (r->flags & SY_NAME_NORM) && d->arch->norm_plus_one && !strcmp(suffix, "weight");
    t.neg_exp = r->flags & SY_NAME_NEG_EXP;
    return sy_ckpt_add(c, &t, err);
}

sy_status sy_names_map(struct sy_checkpoint *c, const struct sy_gguf *g, const struct sy_gguf_dims *d,
                       struct sy_err *err)
{
    for (size_t i = 0; i < g->n_raw; i++) {
        sy_status st = map_one(c, g->raw[i], d, err);
        if (st) return st;
    }
    return SY_OK;
}

/* ---- back: the GGUF name of a Hugging Face name ------------------------------------------------------------ */

/* Whether rest, what follows the layer's number, is what the rule makes; then *suffix is "weight" or "bias". */
static bool undo(const struct sy_name_rule *r, const char *rest, int64_t *expert, const char **suffix)
{
    const char *mark = strchr(r->hf, '#');
    size_t n = strlen(r->hf);
    *expert = -1;
    if (r->flags & SY_NAME_WHOLE) {
        *suffix = NULL;
        return !strcmp(rest, r->hf);
    }
    if (r->flags & SY_NAME_BARE) {
        /* e_score_correction_bias and the like are biases there, the others weights. */
        *suffix = !strcmp(r->gguf, "exp_probs_b") ? "bias" : "weight";
        return !strcmp(rest, r->hf);
    }
    if (mark) {
        if (strncmp(rest, r->hf, (size_t)(mark - r->hf))) return false;
        rest += mark - r->hf;
        *expert = number(&rest, SY_CKPT_EXPERTS_MAX);
        if (*expert < 0) return false;
        n -= (size_t)(mark + 2 - r->hf);
        if (strncmp(rest, mark + 2, n)) return false;
    } else if (strncmp(rest, r->hf, n)) {
        return false;
    }
    *suffix = rest + n + 1;
    return rest[n] == '.' && (!strcmp(*suffix, "weight") || !strcmp(*suffix, "bias"));
}

static bool has_rule(const struct sy_name_rule *r, const char *gguf)
{
    while (r && r->gguf && strcmp(r->gguf, gguf) != 0) r++;
    return r && r->gguf;
}

static const struct sy_name_rule *undo_any(const struct sy_name_rule *r, const struct sy_name_rule *before,
                                           const char *rest, int64_t *expert, const char **suffix)
{
    for (; r && r->gguf; r++)
        if (undo(r, rest, expert, suffix) && !has_rule(before, r->gguf)) return r;
    return NULL;
}

const struct sy_name_rule *sy_names_back(const struct sy_gguf_arch *arch, bool dense, const char *name, char *gguf,
                                         size_t n, int64_t *layer, int64_t *expert)
{
    const struct sy_name_rule *r;
    const char *suffix, *rest = name;
    size_t prefix = strlen(layers_of(arch));
    *layer = -1;
    if (strncmp(name, layers_of(arch), prefix)) {
        r = undo_any(arch->whole, NULL, name, expert, &suffix);
        if (!r) r = undo_any(whole_model, arch->whole, name, expert, &suffix);
        if (r) snprintf(gguf, n, "%s%s%s", r->gguf, suffix ? "." : "", suffix ? suffix : "");
        return r;
    }
    rest += prefix;
    *layer = number(&rest, SY_CKPT_LAYERS_MAX);
    if (*layer < 0) return NULL;
    r = dense ? undo_any(arch->dense, NULL, rest, expert, &suffix) : NULL;
    if (!r) r = undo_any(arch->names, NULL, rest, expert, &suffix);
    if (!r) r = undo_any(block, arch->names, rest, expert, &suffix);
    if (r) snprintf(gguf, n, "blk.%lld.%s%s%s", (long long)*layer, r->gguf, suffix ? "." : "", suffix ? suffix : "");
    return r;
}

/* ---- Hugging Face names -------------------------------------------------------------------------------- */

static bool starts(const char *s, const char *with) { return !strncmp(s, with, strlen(with)); }
static bool ends(const char *s, const char *with)
{
    size_t n = strlen(s), m = strlen(with);
    return n >= m && !strcmp(s + n - m, with);
}

const char *sy_names_text(struct sy_checkpoint *c, const char *name)
{
    static const struct {
        const char *composite, *text;
    } prefix[] = {
        {"model.language_model.", "model."},
        {"language_model.model.", "model."},
        {"language_model.lm_head.", "lm_head."},
        {"model.text_model.", "model."},
        /* DeepSeek-V4 as released, and as transformers writes it. */
        {"layers.", "model.layers."},
        {"embed.weight", "model.embed_tokens.weight"},
        {"norm.weight", "model.norm.weight"},
        {"head.weight", "lm_head.weight"},
        {"hc_head_", "model.hc_head_"},
        {"model.hc_head.hc_", "model.hc_head_"},
    };
    for (size_t i = 0; i < SY_COUNT(prefix); i++)
        if (starts(name, prefix[i].composite))
            return sy_arena_printf(&c->mem, "%s%s", prefix[i].text, name + strlen(prefix[i].composite));
    /* What transformers itself writes where it undoes its own renaming too far. */
    static const struct {
        const char *written, *meant;
    } inner[] = {{".block_sparse_moe.gate_proj.", ".mlp.gate_proj."},
                 {".block_sparse_moe.up_proj.", ".mlp.up_proj."},
                 {".block_sparse_moe.down_proj.", ".mlp.down_proj."},
                 {".attn.norm.weight", ".attn.kv_norm.weight"},
                 {".compressor.kv_norm.weight", ".compressor.norm.weight"}};
    for (size_t i = 0; i < SY_COUNT(inner); i++) {
        const char *at = starts(name, "model.layers.") ? strstr(name, inner[i].written) : NULL;
        if (at)
            return sy_arena_printf(&c->mem, "%.*s%s%s", (int)(at - name), name, inner[i].meant,
                                   at + strlen(inner[i].written));
    }
    return name;
}

bool sy_names_ignorable(const char *name, const struct sy_json *config)
{
    /* Other modalities, and heads for multi-token prediction (Qwen's own; DeepSeek's are layers, below). */
    static const char *const parts[] = {
        "visual.",       "vision_tower.",          "vision_model.", "vision_encoder.", "audio_tower.",
        "mm_projector.", "multi_modal_projector.", "embed_vision.", "embed_audio.",    "connector.",
        "mtp.",
    };
    /* Tables that follow from the config, and scales of activations or of a quantised cache. */
    static const char *const tails[] = {
        ".rotary_emb.inv_freq",
        ".attn_rot_embd.weight",
        ".input_scale",
        ".input_global_scale",
        ".k_scale",
        ".v_scale",
        /* of MiniMax's lightning attention: follow from the number of heads */
        ".slope_rate",
        ".query_decay",
        ".key_decay",
        ".diagonal_decay",
    };
    const char *inner = starts(name, "model.") ? name + 6 : name;
    for (size_t i = 0; i < SY_COUNT(parts); i++)
        if (starts(inner, parts[i])) return true;
    for (size_t i = 0; i < SY_COUNT(tails); i++)
        if (ends(name, tails[i])) return true;
    if (!strcmp(name, "rope_freqs.weight")) return true; /* gguf_config.c put it into the config */
    if (!strcmp(name, "lm_head.weight")) return sy_json_bool(sy_json_get(config, "tie_word_embeddings"), false);
    if (!strncmp(name, "rope_factors_", 13)) return true; /* as rope_freqs */
    if (!starts(name, "model.layers.") && !starts(name, "blk.")) return false;
    const char *digits = strchr(name, '.') + 1; /* a GGUF's layers behind the last have kept their names */
    if (*name == 'm') digits = name + 13;
    int64_t n_layer = sy_json_int(sy_json_get(config, "num_hidden_layers"), 0);
    int64_t n_next = sy_json_int(sy_json_get(config, "num_nextn_predict_layers"), 0);
    int64_t layer = number(&digits, SY_CKPT_LAYERS_MAX);
    /* Layers that read another's keys may come with projections nobody uses. */
    int64_t n_shared = sy_json_int(sy_json_get(config, "num_kv_shared_layers"), 0);
    bool keys = starts(digits, "self_attn.k_") || starts(digits, "self_attn.v_");
    if (keys && layer >= 0 && n_shared > 0 && layer < n_layer && layer >= n_layer - n_shared) return true;
    return layer >= n_layer && n_layer > 0 && n_next > 0 && layer - n_layer < n_next;
}
