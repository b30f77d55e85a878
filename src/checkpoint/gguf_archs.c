/* gguf_archs.c - architectures that GGUF defines (ggml-org/ggml, docs/gguf.md; ggml-org/llama.cpp, gguf-py): what
 * each calls its tensors, by tables. */
#include <stdio.h>
#include <string.h>

#include "checkpoint/internal.h"

const struct sy_name_rule sy_gguf_whole[] = {
    {"token_embd", "model.embed_tokens", 0},
    {"output_norm", "model.norm", SY_NAME_NORM},
    {"output", "lm_head", 0},
    {"token_embd_norm", "model.embedding_norm", 0}, /* LFM2's last norm */
    {NULL, NULL, 0},
};
const struct sy_name_rule sy_gguf_block[] = {
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
/* What tables of several architectures have in common: experts, the one that all tokens pass, latent attention. */
#define EXPERTS(in, gate, up, down)                                                                                  \
    {"ffn_gate_exps", in "experts.#." gate, SY_NAME_EXPERTS}, {"ffn_up_exps", in "experts.#." up, SY_NAME_EXPERTS},  \
    {                                                                                                                \
        "ffn_down_exps", in "experts.#." down, SY_NAME_EXPERTS                                                       \
    }
#define SHARED_EXPERT(in)                                                                                            \
    {"ffn_gate_shexp", in "gate_proj", 0}, {"ffn_up_shexp", in "up_proj", 0}, { "ffn_down_shexp", in "down_proj", 0 }
#define LATENT                                                                                                       \
    {"attn_q_a", "self_attn.q_a_proj", 0}, {"attn_q_a_norm", "self_attn.q_a_layernorm", 0},                          \
        {"attn_q_b", "self_attn.q_b_proj", 0}, {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa", 0},                 \
        {"attn_kv_a_norm", "self_attn.kv_a_layernorm", 0}, {"attn_kv_b", "self_attn.kv_b_proj", 0},                  \
        {"attn_k_b", "self_attn.k_b_proj", SY_NAME_FLAT},                                                            \
    {                                                                                                                \
        "attn_v_b", "self_attn.v_b_proj", SY_NAME_FLAT                                                               \
    }
static const struct sy_name_rule block_mixtral[] = {
    {"ffn_gate_inp", "block_sparse_moe.gate", 0},
    EXPERTS("block_sparse_moe.", "w1", "w3", "w2"),
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_qwen_moe[] = {
    {"ffn_gate_inp", "mlp.gate", 0},
    EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate", SY_NAME_ROW},
    SHARED_EXPERT("mlp.shared_expert."),
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
static const struct sy_name_rule block_deepseek4[] = {
    {"attn_norm", "attn_norm", 0},
    {"ffn_norm", "ffn_norm", 0},
    {"attn_sinks", "attn.attn_sink", SY_NAME_BARE},
    {"attn_q_a", "attn.wq_a", 0},
    {"attn_q_a_norm", "attn.q_norm", 0},
    {"attn_q_b", "attn.wq_b", 0},
    {"attn_kv", "attn.wkv", 0},
    {"attn_kv_a_norm", "attn.kv_norm", 0},
    {"attn_output_a", "attn.wo_a", 0},
    {"attn_output_b", "attn.wo_b", 0},
    {"attn_compressor_ape", "attn.compressor.ape", SY_NAME_BARE},
    {"attn_compressor_kv", "attn.compressor.wkv", 0},
    {"attn_compressor_gate", "attn.compressor.wgate", 0},
    {"attn_compressor_norm", "attn.compressor.norm", 0},
    {"indexer.attn_q_b", "attn.indexer.wq_b", 0},
    {"indexer.proj", "attn.indexer.weights_proj", 0},
    {"indexer_compressor_ape", "attn.indexer.compressor.ape", SY_NAME_BARE},
    {"indexer_compressor_kv", "attn.indexer.compressor.wkv", 0},
    {"indexer_compressor_gate", "attn.indexer.compressor.wgate", 0},
    {"indexer_compressor_norm", "attn.indexer.compressor.norm", 0},
    {"hc_attn_fn", "hc_attn_fn", SY_NAME_BARE},
    {"hc_attn_base", "hc_attn_base", SY_NAME_BARE},
    {"hc_attn_scale", "hc_attn_scale", SY_NAME_BARE},
    {"hc_ffn_fn", "hc_ffn_fn", SY_NAME_BARE},
    {"hc_ffn_base", "hc_ffn_base", SY_NAME_BARE},
    {"hc_ffn_scale", "hc_ffn_scale", SY_NAME_BARE},
    {"exp_probs_b", "ffn.gate.bias", SY_NAME_BARE},
    {"ffn_gate_tid2eid", "ffn.gate.tid2eid", SY_NAME_BARE},
    {"ffn_gate_inp", "ffn.gate", 0},
    EXPERTS("ffn.", "w1", "w3", "w2"),
    {"ffn_gate_shexp", "ffn.shared_experts.w1", 0},
    {"ffn_up_shexp", "ffn.shared_experts.w3", 0},
    {"ffn_down_shexp", "ffn.shared_experts.w2", 0},
    {NULL, NULL, 0},
};
static const struct sy_name_rule whole_deepseek4[] = {
    {"output_hc_fn", "model.hc_head_fn", SY_NAME_BARE},
    {"output_hc_base", "model.hc_head_base", SY_NAME_BARE},
    {"output_hc_scale", "model.hc_head_scale", SY_NAME_BARE},
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_glm4_moe[] = {
    {"post_attention_norm", "post_attention_layernorm", 0},
    {"ffn_gate_inp", "mlp.gate", 0},
    {"exp_probs_b", "mlp.gate.e_score_correction_bias", SY_NAME_BARE},
    EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    SHARED_EXPERT("mlp.shared_experts."),
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_gpt_oss[] = {
    {"post_attention_norm", "post_attention_layernorm", 0},
    {"attn_sinks", "self_attn.sinks", SY_NAME_BARE},
    {"ffn_gate_inp", "mlp.router", 0},
    EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_deepseek[] = {
    LATENT,
    {"indexer.k_norm", "self_attn.indexer.k_norm", 0},
    {"indexer.proj", "self_attn.indexer.weights_proj", 0},
    {"indexer.attn_k", "self_attn.indexer.wk", 0},
    {"indexer.attn_q_b", "self_attn.indexer.wq_b", 0},
    {"ffn_gate_inp", "mlp.gate", 0},
    {"exp_probs_b", "mlp.gate.e_score_correction_bias", SY_NAME_BARE},
    EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    SHARED_EXPERT("mlp.shared_experts."),
    {NULL, NULL, 0},
};
/* What makes the result of lightning attention has another name than that of attention. */
static const struct sy_name_rule block_minimax_01[] = {
    {"attn_norm_2", "self_attn.norm", 0},           {"attn_qkv", "self_attn.qkv_proj", 0},
    {"attn_gate", "self_attn.output_gate", 0},      {"attn_output", "self_attn.out_proj", SY_NAME_LINEAR},
    {"attn_output", "self_attn.o_proj", 0},         {"ffn_gate_inp", "block_sparse_moe.gate", 0},
    EXPERTS("block_sparse_moe.", "w1", "w3", "w2"), {NULL, NULL, 0},
};
static const struct sy_name_rule block_minimax_m2[] = {
    {"ffn_gate_inp", "block_sparse_moe.gate", 0},
    {"exp_probs_b", "block_sparse_moe.e_score_correction_bias", SY_NAME_BARE},
    EXPERTS("block_sparse_moe.", "w1", "w3", "w2"),
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
    EXPERTS("feed_forward.", "w1", "w3", "w2"),
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_llama4[] = {
    {"ffn_gate_inp", "feed_forward.router", 0},
    EXPERTS("feed_forward.", "gate_proj", "up_proj", "down_proj"),
    SHARED_EXPERT("feed_forward.shared_expert."),
    {"ffn_gate", "feed_forward.gate_proj", 0},
    {"ffn_up", "feed_forward.up_proj", 0},
    {"ffn_down", "feed_forward.down_proj", 0},
    {NULL, NULL, 0},
};
/* The layers behind the last, which predict further tokens: names inside them, or of Qwen, which has them apart. */
static const struct sy_name_rule next_layers[] = {
    {"nextn.eh_proj", "eh_proj", 0},
    {"nextn.enorm", "enorm", 0},
    {"nextn.hnorm", "hnorm", 0},
    {"nextn.embed_tokens", "embed_tokens", 0},
    {"nextn.shared_head_norm", "shared_head.norm", 0},
    {"nextn.shared_head_head", "shared_head.head", 0},
    {NULL, NULL, 0},
};
static const struct sy_name_rule next_qwen[] = {
    {"nextn.eh_proj", "mtp.fc", 0},
    {"nextn.enorm", "mtp.pre_fc_norm_embedding", SY_NAME_NORM},
    {"nextn.hnorm", "mtp.pre_fc_norm_hidden", SY_NAME_NORM},
    {"nextn.shared_head_norm", "mtp.norm", SY_NAME_NORM},
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
    EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate", SY_NAME_ROW},
    SHARED_EXPERT("mlp.shared_expert."),
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_qwen35[] = {
    {"post_attention_norm", "post_attention_layernorm", SY_NAME_NORM},
    {"attn_qkv", "linear_attn.in_proj_qkv", SY_NAME_TILED},
    {"attn_gate", "linear_attn.in_proj_z", SY_NAME_TILED},
    {"ssm_beta", "linear_attn.in_proj_b", SY_NAME_TILED},
    {"ssm_alpha", "linear_attn.in_proj_a", SY_NAME_TILED},
    {"ssm_conv1d", "linear_attn.conv1d", SY_NAME_FILTER | SY_NAME_TILED},
    {"ssm_a", "linear_attn.A_log", SY_NAME_WHOLE | SY_NAME_NEG_EXP | SY_NAME_TILED},
    {"ssm_dt.bias", "linear_attn.dt_bias", SY_NAME_WHOLE | SY_NAME_TILED},
    {"ssm_norm", "linear_attn.norm", 0},
    {"ssm_out", "linear_attn.out_proj", SY_NAME_TILED_COLS},
    {"ffn_gate_inp", "mlp.gate", 0},
    EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    {"ffn_gate_up_exps", "mlp.experts.#.gate_proj", SY_NAME_EXPERTS | SY_NAME_HALVES},
    {"ffn_gate_up_exps", "mlp.experts.#.up_proj", SY_NAME_EXPERTS | SY_NAME_HALVES},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate", SY_NAME_ROW},
    SHARED_EXPERT("mlp.shared_expert."),
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
    EXPERTS("block_sparse_moe.", "gate_proj", "up_proj", "down_proj"),
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
static const struct sy_name_rule block_falcon_h1[] = {
    MAMBA2("mamba."),
    {"ffn_norm", "pre_ff_layernorm.weight", SY_NAME_WHOLE},
    {"ffn_gate", "feed_forward.gate_proj", 0},
    {"ffn_up", "feed_forward.up_proj", 0},
    {"ffn_down", "feed_forward.down_proj", 0},
    {NULL, NULL, 0},
};
static const struct sy_name_rule whole_falcon_h1[] = {{"output_norm", "model.final_layernorm", 0}, {NULL, NULL, 0}};
static const struct sy_name_rule block_kimi_linear[] = {
    {"ssm_conv1d_q", "self_attn.q_conv1d", SY_NAME_WIDE},
    {"ssm_conv1d_k", "self_attn.k_conv1d", SY_NAME_WIDE},
    {"ssm_conv1d_v", "self_attn.v_conv1d", SY_NAME_WIDE},
    {"ssm_f_a", "self_attn.f_a_proj", 0},
    {"ssm_f_b", "self_attn.f_b_proj", 0},
    {"ssm_g_a", "self_attn.g_a_proj", 0},
    {"ssm_g_b", "self_attn.g_b_proj", 0},
    {"ssm_beta", "self_attn.b_proj", 0},
    {"ssm_a", "self_attn.A_log", SY_NAME_WHOLE | SY_NAME_NEG_EXP},
    {"ssm_dt.bias", "self_attn.dt_bias", SY_NAME_WHOLE},
    {"ssm_norm", "self_attn.o_norm", 0},
    LATENT,
    {"ffn_gate_inp", "block_sparse_moe.gate", 0},
    {"exp_probs_b", "block_sparse_moe.gate.e_score_correction_bias", SY_NAME_BARE},
    EXPERTS("block_sparse_moe.", "w1", "w3", "w2"),
    SHARED_EXPERT("block_sparse_moe.shared_experts."),
    {NULL, NULL, 0},
};
/* Of Gemma 3n and 4: norms around the sublayers, an embedding for each layer. */
#define GEMMA3N                                                                                                      \
    {"post_attention_norm", "post_attention_layernorm", 0}, {"ffn_norm", "pre_feedforward_layernorm", 0},            \
        {"post_ffw_norm", "post_feedforward_layernorm", 0}, {"inp_gate", "per_layer_input_gate", 0},                 \
        {"proj", "per_layer_projection", 0},                                                                         \
    {                                                                                                                \
        "post_norm", "post_per_layer_input_norm", 0                                                                  \
    }
static const struct sy_name_rule block_gemma3n[] = {
    GEMMA3N,
    {"altup_correct_coef", "altup.correction_coefs", 0},
    {"altup_correct_scale", "altup.correct_output_scale", SY_NAME_BARE},
    {"altup_predict_coef", "altup.prediction_coefs", 0},
    {"altup_router", "altup.modality_router", 0},
    {"altup_router_norm", "altup.router_norm", 0},
    {"laurel_l", "laurel.linear_left", 0},
    {"laurel_r", "laurel.linear_right", 0},
    {"laurel_post_norm", "laurel.post_laurel_norm", 0},
    {NULL, NULL, 0},
};
static const struct sy_name_rule block_gemma4[] = {
    GEMMA3N,
    {"pre_ffw_norm_2", "pre_feedforward_layernorm_2", 0},
    {"post_ffw_norm_1", "post_feedforward_layernorm_1", 0},
    {"post_ffw_norm_2", "post_feedforward_layernorm_2", 0},
    {"layer_output_scale", "layer_scalar", SY_NAME_BARE},
    {"ffn_gate_inp.scale", "router.scale", SY_NAME_WHOLE},
    {"ffn_gate_inp", "router.proj", 0},
    {"ffn_down_exps.scale", "router.per_expert_scale", SY_NAME_WHOLE},
    {"ffn_down_exps", "experts.#.down_proj", SY_NAME_EXPERTS},
    {"ffn_gate_up_exps", "experts.#.gate_proj", SY_NAME_EXPERTS | SY_NAME_HALVES},
    {"ffn_gate_up_exps", "experts.#.up_proj", SY_NAME_EXPERTS | SY_NAME_HALVES},
    {NULL, NULL, 0},
};
static const struct sy_name_rule whole_gemma3n[] = {
    {"per_layer_token_embd", "model.embed_tokens_per_layer", 0},
    {"per_layer_model_proj", "model.per_layer_model_projection", 0},
    {"per_layer_proj_norm", "model.per_layer_projection_norm", 0},
    {"altup_proj", "model.altup_projections.#", SY_NAME_EXPERTS},
    {"altup_unembd_proj", "model.altup_unembed_projections.#", SY_NAME_EXPERTS},
    {NULL, NULL, 0},
};
static const struct sy_name_rule none[] = {{NULL, NULL, 0}};

/* Llama, Mistral and Mixtral are all converted to "llama"; gguf_config.c tells them apart by their keys. */
static const struct sy_gguf_arch archs[] = {
    {"cohere2", "Cohere2ForCausalLM", "cohere2", "silu", .pattern = 4, .names = none},
    {"deepseek2", "DeepseekV3ForCausalLM", "deepseek_v3", "silu", .latent = true, .names = block_deepseek},
    {"deepseek32", "DeepseekV32ForCausalLM", "deepseek_v32", "silu", .latent = true, .names = block_deepseek,
     .next = next_layers},
    {"deepseek4", "DeepseekV4ForCausalLM", "deepseek_v4", "silu", .part_rope = true, .names = block_deepseek4,
     .whole = whole_deepseek4},
    {"exaone4", "Exaone4ForCausalLM", "exaone4", "silu", .pattern = 4, .names = block_post_norm},
    {"falcon-h1", "FalconH1ForCausalLM", "falcon_h1", "silu", .names = block_falcon_h1, .whole = whole_falcon_h1},
    {"gemma2", "Gemma2ForCausalLM", "gemma2", "gelu_pytorch_tanh", .norm_plus_one = true, .pattern = 2,
     .names = block_gemma},
    {"gemma3", "Gemma3ForCausalLM", "gemma3_text", "gelu_pytorch_tanh", .norm_plus_one = true, .pattern = 6,
     .names = block_gemma},
    {"gemma3n", "Gemma3nForCausalLM", "gemma3n_text", "gelu_pytorch_tanh", .pattern = 5, .patterned = true,
     .names = block_gemma3n, .whole = whole_gemma3n},
    {"gemma4", "Gemma4ForCausalLM", "gemma4_text", "gelu_pytorch_tanh", .pattern = 6, .patterned = true,
     .kv_by_layer = true, .wide_global = true, .names = block_gemma4, .whole = whole_gemma3n},
    {"glm-dsa", "GlmMoeDsaForCausalLM", "glm_moe_dsa", "silu", .latent = true, .names = block_deepseek,
     .next = next_layers},
    {"glm4", "Glm4ForCausalLM", "glm4", "silu", .part_rope = true, .names = block_glm4},
    {"glm4moe", "Glm4MoeForCausalLM", "glm4_moe", "silu", .part_rope = true, .names = block_glm4_moe,
     .next = next_layers},
    {"gpt-oss", "GptOssForCausalLM", "gpt_oss", "silu", .pattern = 2, .names = block_gpt_oss},
    {"granite", "GraniteForCausalLM", "granite", "silu", .rope_pairs = true, .names = none},
    {"granitehybrid", "GraniteMoeHybridForCausalLM", "granitemoehybrid", "silu", .rope_pairs = true, .hybrid = true,
     .names = block_granite_hybrid, .dense = dense_granite_hybrid},
    {"kimi-linear", "KimiLinearForCausalLM", "kimi_linear", "silu", .latent = true, .kv_by_layer = true,
     .names = block_kimi_linear},
    {"lfm2", "Lfm2ForCausalLM", "lfm2", "silu", .kv_by_layer = true, .names = block_lfm2},
    {"lfm2moe", "Lfm2MoeForCausalLM", "lfm2_moe", "silu", .kv_by_layer = true, .names = block_lfm2},
    {"llama", "LlamaForCausalLM", "llama", "silu", .rope_pairs = true, .pattern = 1, .names = block_mixtral},
    {"llama4", "Llama4ForCausalLM", "llama4_text", "silu", .names = block_llama4},
    {"mamba2", "Mamba2ForCausalLM", "mamba2", "silu", .names = block_mamba2, .whole = whole_mamba,
     .layers = "backbone.layers."},
    {"minimax-01", "MiniMaxForCausalLM", "minimax", "silu", .part_rope = true, .names = block_minimax_01},
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
    {"qwen35", "Qwen3_5ForCausalLM", "qwen3_5_text", "silu", .norm_plus_one = true, .part_rope = true,
     .names = block_qwen35, .next = next_qwen, .next_at = "mtp.layers."},
    {"qwen35moe", "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", "silu", .norm_plus_one = true, .part_rope = true,
     .names = block_qwen35, .next = next_qwen, .next_at = "mtp.layers."},
    {"qwen3next", "Qwen3NextForCausalLM", "qwen3_next", "silu", .norm_plus_one = true, .part_rope = true,
     .names = block_qwen3_next, .next = next_qwen, .next_at = "mtp.layers."},
    {"smollm3", "SmolLM3ForCausalLM", "smollm3", "silu", .rope_pairs = true, .names = none},
};

const struct sy_gguf_arch *sy_gguf_arch_find(const struct sy_text *name)
{
    for (size_t i = 0; i < SY_COUNT(archs); i++)
        if (strlen(archs[i].name) == name->n && !memcmp(archs[i].name, name->at, name->n)) return &archs[i];
    return NULL;
}

const char *sy_gguf_arch_name(size_t i) { return i < SY_COUNT(archs) ? archs[i].name : NULL; }

/* Classes that go by another's architecture there. */
static const struct {
    const char *hf_class, *arch;
} also[] = {
    {"MistralForCausalLM", "llama"},
    {"MixtralForCausalLM", "llama"},
    {"Ministral3ForCausalLM", "mistral3"},
    {"Gemma3ForConditionalGeneration", "gemma3"},
    {"Glm4MoeLiteForCausalLM", "deepseek2"},
    {"KimiK25ForConditionalGeneration", "deepseek2"},
    {"Olmo3ForCausalLM", "olmo2"},
    {"Llama4ForConditionalGeneration", "llama4"},
    {"Gemma3nForConditionalGeneration", "gemma3n"},
    {"Gemma4ForConditionalGeneration", "gemma4"},
    {"Qwen3_5ForConditionalGeneration", "qwen35"},
    {"Qwen3_5MoeForConditionalGeneration", "qwen35moe"},
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
