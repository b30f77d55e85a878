/* GGUF files made here, whole and broken: what they become, and the sentence that each broken one gets. */
#include "checkpoint_gguf_make.h"

#include <glob.h>

static struct sy_checkpoint *open_ok(struct model *m)
{
    struct sy_bytes f = model_write(m, "m.gguf");
    struct sy_checkpoint *c = NULL;
    struct sy_err err = {0};
    if (sy_checkpoint_from_gguf(sy_env_default(), &f, 1, &c, &err)) fail_msg("%s", err.msg);
    return c;
}

/* ---- whole files --------------------------------------------------------------------------------------- */

static void test_tensors(void **state)
{
    (void)state;
    struct model m;
    model_init(&m, "llama");
    struct sy_checkpoint *c = open_ok(&m);
    assert_int_equal(sy_checkpoint_count(c), 11);
    assert_string_equal(sy_checkpoint_kind(c), "gguf");
    const struct sy_tensor *t = sy_checkpoint_find(c, "model.layers.0.mlp.down_proj.weight");
    assert_non_null(t);
    assert_ptr_equal(t, sy_checkpoint_at(c, sy_checkpoint_index(c, t)));
    assert_string_equal(t->file_name, "blk.0.ffn_down.weight");
    assert_string_equal(t->file, "m.gguf");
    assert_string_equal(t->format->name, "f32");
    assert_int_equal(t->n_dim, 2);
    assert_int_equal(t->dim[0], HIDDEN);
    assert_int_equal(t->dim[1], FF);
    assert_int_equal(t->n_bytes, 4 * HIDDEN * FF);
    assert_int_equal(t->head_rows, 0);
    assert_int_equal(sy_tensor_row(t, 5), 5);
    assert_null(sy_checkpoint_find(c, "model.layers.1.mlp.down_proj.weight"));
    assert_non_null(sy_checkpoint_find(c, "model.embed_tokens.weight"));
    assert_non_null(sy_checkpoint_find(c, "model.norm.weight"));
    assert_null(sy_checkpoint_find(c, "lm_head.weight"));

    /* Head of 8 rows: logical rows 0..3 are the first halves of the pairs, 4..7 the second ones. */
    t = sy_checkpoint_find(c, "model.layers.0.self_attn.q_proj.weight");
    static const int64_t stored[] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
    for (int64_t r = 0; r < 16; r++) assert_int_equal(sy_tensor_row(t, r), stored[r]);
    assert_int_equal(sy_checkpoint_find(c, "model.layers.0.self_attn.k_proj.weight")->head_rows, HEAD);
    assert_int_equal(sy_checkpoint_find(c, "model.layers.0.self_attn.v_proj.weight")->head_rows, 0);

    bool used[11] = {false};
    struct sy_err err;
    assert_int_equal(sy_checkpoint_check_extra(c, used, &err), SY_ENOSUP);
    for (size_t i = 0; i < 11; i++) used[i] = true;
    assert_int_equal(sy_checkpoint_check_extra(c, used, &err), SY_OK);
    sy_checkpoint_free(c);
    model_release(&m);
}

static double num(const struct sy_checkpoint *c, const char *key)
{
    const struct sy_json *j = sy_json_get(sy_checkpoint_config(c), key);
    if (!sy_json_is_number(j)) fail_msg("config has no number '%s'", key);
    return sy_json_number(j, -1);
}
static const char *text(const struct sy_checkpoint *c, const char *key)
{
    const char *s = sy_json_text(sy_json_get(sy_checkpoint_config(c), key));
    return s ? s : "";
}
static const char *class_of(const struct sy_checkpoint *c)
{
    return sy_json_text(sy_json_at(sy_json_get(sy_checkpoint_config(c), "architectures"), 0));
}
static bool flag(const struct sy_checkpoint *c, const char *key)
{
    return sy_json_bool(sy_json_get(sy_checkpoint_config(c), key), false);
}

static void test_config(void **state)
{
    (void)state;
    struct model m;
    model_init(&m, "llama");
    tensor_f32(&m, "output.weight", HIDDEN, VOCAB);
    tensor_f32(&m, "blk.0.attn_q.bias", N_HEAD * HEAD, 0);
    kv_f32(&m, "llama.rope.freq_base", 500000);
    struct sy_checkpoint *c = open_ok(&m);
    assert_string_equal(class_of(c), "LlamaForCausalLM");
    assert_string_equal(text(c, "model_type"), "llama");
    assert_string_equal(text(c, "hidden_act"), "silu");
    assert_true(num(c, "hidden_size") == HIDDEN && num(c, "num_hidden_layers") == N_LAYER);
    assert_true(num(c, "num_attention_heads") == N_HEAD && num(c, "num_key_value_heads") == N_KV);
    assert_true(num(c, "head_dim") == HEAD && num(c, "intermediate_size") == FF);
    assert_true(num(c, "vocab_size") == VOCAB && num(c, "max_position_embeddings") == 128);
    assert_true((float)num(c, "rms_norm_eps") == 1e-5f && num(c, "rope_theta") == 500000);
    assert_false(flag(c, "tie_word_embeddings"));
    assert_true(flag(c, "attention_bias"));
    assert_null(sy_json_get(sy_checkpoint_config(c), "rope_scaling"));
    assert_non_null(sy_checkpoint_find(c, "lm_head.weight"));
    const struct sy_tensor *bias = sy_checkpoint_find(c, "model.layers.0.self_attn.q_proj.bias");
    assert_int_equal(bias->head_rows, HEAD);
    assert_int_equal(bias->n_dim, 1);
    sy_checkpoint_free(c);
    model_release(&m);
}

static void test_rope_factors(void **state)
{
    (void)state;
    struct model m;
    model_init(&m, "llama");
    /* Data counts up from 0: the factors go where it says 8 and on, and the first tensor makes room. */
    tensor_f32(&m, "rope_freqs.weight", HEAD / 2, 0)->offset = 32;
    m.t[0].offset = 64;
    m.t[0].n_bytes += 64;
    struct sy_checkpoint *c = open_ok(&m);
    const struct sy_json *rope = sy_json_get(sy_checkpoint_config(c), "rope_scaling");
    assert_string_equal(sy_json_text(sy_json_get(rope, "rope_type")), "factors");
    const struct sy_json *list = sy_json_get(rope, "factors");
    assert_int_equal(sy_json_len(list), HEAD / 2);
    for (size_t i = 0; i < HEAD / 2; i++) assert_true(sy_json_number(sy_json_at(list, i), 0) == (double)(8 + i));
    bool used[12];
    for (size_t i = 0; i < 12; i++) used[i] = strcmp(sy_checkpoint_at(c, i)->name, "rope_freqs.weight") != 0;
    assert_int_equal(sy_checkpoint_check_extra(c, used, NULL), SY_OK);
    sy_checkpoint_free(c);
    model_release(&m);
}

static void test_rope_scaling(void **state)
{
    (void)state;
    struct model m;
    model_init(&m, "qwen2");
    kv_str(&m, "qwen2.rope.scaling.type", "yarn");
    kv_f32(&m, "qwen2.rope.scaling.factor", 4);
    kv_u32(&m, "qwen2.rope.scaling.original_context_length", 32);
    kv_f32(&m, "qwen2.rope.scaling.yarn_beta_fast", 16);
    kv_f32(&m, "qwen2.rope.scaling.yarn_attn_factor", 0.5f);
    struct sy_checkpoint *c = open_ok(&m);
    const struct sy_json *rope = sy_json_get(sy_checkpoint_config(c), "rope_scaling");
    assert_string_equal(sy_json_text(sy_json_get(rope, "rope_type")), "yarn");
    assert_true(sy_json_number(sy_json_get(rope, "factor"), 0) == 4);
    assert_true(sy_json_number(sy_json_get(rope, "beta_fast"), 0) == 16);
    assert_true(sy_json_number(sy_json_get(rope, "attention_factor"), 0) == 0.5);
    assert_int_equal(sy_json_int(sy_json_get(rope, "original_max_position_embeddings"), 0), 32);
    assert_int_equal(sy_checkpoint_find(c, "model.layers.0.self_attn.q_proj.weight")->head_rows, 0);
    sy_checkpoint_free(c);

    kv_str(&m, "qwen2.rope.scaling.type", "linear");
    c = open_ok(&m);
    rope = sy_json_get(sy_checkpoint_config(c), "rope_scaling");
    assert_string_equal(sy_json_text(sy_json_get(rope, "rope_type")), "linear");
    assert_true(sy_json_number(sy_json_get(rope, "factor"), 0) == 4);
    sy_checkpoint_free(c);

    kv_str(&m, "qwen2.rope.scaling.type", "none");
    c = open_ok(&m);
    assert_null(sy_json_get(sy_checkpoint_config(c), "rope_scaling"));
    sy_checkpoint_free(c);
    model_release(&m);
}

static void test_gemma3(void **state)
{
    (void)state;
    struct model m;
    model_init(&m, "gemma3");
    kv_u32(&m, "gemma3.attention.key_length", HEAD);
    kv_u32(&m, "gemma3.attention.value_length", HEAD);
    kv_u32(&m, "gemma3.attention.sliding_window", 16);
    kv_str(&m, "gemma3.rope.scaling.type", "linear");
    kv_f32(&m, "gemma3.rope.scaling.factor", 8);
    tensor_f32(&m, "blk.0.attn_q_norm.weight", HEAD, 0);
    tensor_f32(&m, "blk.0.attn_k_norm.weight", HEAD, 0);
    tensor_f32(&m, "blk.0.post_attention_norm.weight", HIDDEN, 0);
    tensor_f32(&m, "blk.0.post_ffw_norm.weight", HIDDEN, 0);
    struct sy_checkpoint *c = open_ok(&m);
    static const char *const norms[] = {
        "model.norm.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.0.pre_feedforward_layernorm.weight",
        "model.layers.0.post_feedforward_layernorm.weight",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.self_attn.k_norm.weight",
    };
    for (size_t i = 0; i < SY_COUNT(norms); i++) {
        const struct sy_tensor *t = sy_checkpoint_find(c, norms[i]);
        if (!t || !t->norm_plus_one) fail_msg("%s: expected a norm with its 1 added", norms[i]);
    }
    assert_string_equal(sy_checkpoint_find(c, norms[2])->file_name, "blk.0.post_attention_norm.weight");
    assert_string_equal(sy_checkpoint_find(c, norms[3])->file_name, "blk.0.ffn_norm.weight");
    assert_false(sy_checkpoint_find(c, "model.embed_tokens.weight")->norm_plus_one);
    assert_int_equal(sy_checkpoint_find(c, "model.layers.0.self_attn.q_proj.weight")->head_rows, 0);
    assert_string_equal(class_of(c), "Gemma3ForCausalLM");
    assert_true(num(c, "sliding_window") == 16 && num(c, "sliding_window_pattern") == 6);
    assert_true(num(c, "rope_local_base_freq") == 10000 && num(c, "query_pre_attn_scalar") == HEAD);
    assert_true(flag(c, "tie_word_embeddings"));
    assert_string_equal(text(c, "hidden_activation"), "gelu_pytorch_tanh");
    sy_checkpoint_free(c);

    put_n(kv_array(&m, "gemma3.attention.sliding_window_pattern", SY_GGUF_BOOL, 1), 1, 1);
    c = open_ok(&m);
    const struct sy_json *types = sy_json_get(sy_checkpoint_config(c), "layer_types");
    assert_string_equal(sy_json_text(sy_json_at(types, 0)), "sliding_attention");
    sy_checkpoint_free(c);

    kv_u32(&m, "gemma3.block_count", 62); /* the 27B model: hidden / heads; its other layers may be missing here */
    kv_u32(&m, "gemma3.attention.sliding_window_pattern", 6);
    kv_u32(&m, "gemma3.attention.head_count", 2);
    c = open_ok(&m);
    assert_true(num(c, "query_pre_attn_scalar") == HIDDEN / 2);
    sy_checkpoint_free(c);
    model_release(&m);
}

static void test_experts(void **state)
{
    (void)state;
    struct model m;
    model_init(&m, "llama");
    kv_u32(&m, "llama.expert_count", 3);
    kv_u32(&m, "llama.expert_used_count", 2);
    static const char *const names[] = {"blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight",
                                        "blk.0.ffn_down_exps.weight"};
    for (int i = 0; i < 3; i++) {
        struct tensor *t = &m.t[7 + i]; /* in place of the dense ones */
        t->name = names[i];
        t->n_dim = 3;
        t->dim[2] = 3;
        t->n_bytes *= 3;
    }
    tensor_f32(&m, "blk.0.ffn_gate_inp.weight", HIDDEN, 3);
    struct sy_checkpoint *c = open_ok(&m);
    assert_string_equal(class_of(c), "MixtralForCausalLM");
    assert_true(num(c, "num_local_experts") == 3 && num(c, "num_experts_per_tok") == 2);
    const struct sy_tensor *a = sy_checkpoint_find(c, "model.layers.0.block_sparse_moe.experts.0.w2.weight");
    const struct sy_tensor *b = sy_checkpoint_find(c, "model.layers.0.block_sparse_moe.experts.2.w2.weight");
    assert_true(a && b && b->data == a->data + 2 * a->n_bytes);
    assert_true(a->n_dim == 2 && a->dim[0] == HIDDEN && a->dim[1] == FF && a->dim[2] == 1);
    assert_int_equal(a->n_bytes, 4 * HIDDEN * FF);
    assert_non_null(sy_checkpoint_find(c, "model.layers.0.block_sparse_moe.gate.weight"));
    assert_null(sy_checkpoint_find(c, "model.layers.0.block_sparse_moe.experts.3.w2.weight"));
    sy_checkpoint_free(c);
    model_release(&m);
}

static void test_vocab(void **state)
{
    (void)state;
    struct model m;
    model_init(&m, "llama");
    struct sy_checkpoint *c = open_ok(&m);
    const struct sy_gguf_vocab *v = sy_checkpoint_gguf_vocab(c);
    assert_non_null(v);
    assert_null(sy_checkpoint_tokenizer_json(c));
    assert_string_equal(v->model, "llama");
    assert_string_equal(v->pre, "default");
    assert_true(v->n_token == VOCAB && v->n_merge == 1);
    assert_true(v->token[4].n == 1 && v->token[4].at[0] == 'b' && v->merge[0].n == 3);
    assert_true(v->score[3] == -3 && v->type[2] == 3 && v->type[3] == 1);
    assert_true(v->bos == 1 && v->eos == 2 && v->eot == 4 && v->unk == -1 && v->pad == -1 && v->mask == -1);
    assert_true(v->add_bos == 1 && v->add_eos == -1 && v->n_charsmap == 0);
    const struct sy_json *ends = sy_json_get(sy_checkpoint_generation(c), "eos_token_id");
    assert_int_equal(sy_json_len(ends), 2);
    assert_int_equal(sy_json_int(sy_json_at(ends, 1), -1), 4);
    size_t n;
    assert_memory_equal(sy_checkpoint_chat_template(c, &n), "{{ messages }}", 14);
    assert_int_equal(n, 14);
    sy_checkpoint_free(c);

    for (size_t i = m.n_kv; i-- > 0;)
        if (!strncmp(m.kv[i].key, "tokenizer.", 10)) kv_drop(&m, m.kv[i].key);
    c = open_ok(&m);
    assert_null(sy_checkpoint_gguf_vocab(c));
    assert_null(sy_checkpoint_generation(c));
    assert_null(sy_checkpoint_chat_template(c, &n));
    sy_checkpoint_free(c);
    model_release(&m);
}

/* ---- broken files: each by one change, with the sentence it gets --------------------------------------- */

static void v1(struct model *m) { m->version = 1; }
static void v4(struct model *m) { m->version = 4; }
static void big_endian(struct model *m) { m->version = 0x03000000; }
static void many_tensors(struct model *m) { m->count_t = SIZE_MAX / 112; }
static void many_keys(struct model *m) { m->count_kv = UINT64_MAX / 2; }
static void one_key_more(struct model *m) { m->count_kv = m->n_kv + 1; }
static void no_arch(struct model *m) { kv_drop(m, "general.architecture"); }
static void other_arch(struct model *m) { kv_str(m, "general.architecture", "rwkv6"); }
static void arch_type(struct model *m) { kv_u32(m, "general.architecture", 1); }
static void key_twice(struct model *m) { put_n(kv_new(m, "llama.block_count", SY_GGUF_U32), 1, 4); }
static void key_empty(struct model *m) { put_n(kv_new(m, "", SY_GGUF_U32), 1, 4); }
static void value_type(struct model *m) { put_n(kv_new(m, "x", 13), 1, 4); }
static void array_huge(struct model *m) { kv_array(m, "x", SY_GGUF_U8, 1ull << 63); }
static void array_huge_f64(struct model *m) { kv_array(m, "x", SY_GGUF_F64, 1ull << 61); }
static void array_strings(struct model *m) { kv_array(m, "x", SY_GGUF_STRING, 1ull << 40); }
static void array_nested(struct model *m) { kv_array(m, "x", SY_GGUF_ARRAY, 1); }
static void array_unknown(struct model *m) { kv_array(m, "x", 77, 1); }
static void string_long(struct model *m) { put_n(kv_set(m, "general.name", SY_GGUF_STRING), UINT64_MAX - 3, 8); }
static void bool_two(struct model *m) { kv_bool(m, "x", 2); }
static void align_3(struct model *m) { kv_u32(m, "general.alignment", 48); }
static void align_0(struct model *m) { kv_u32(m, "general.alignment", 0); }
static void align_type(struct model *m) { kv_str(m, "general.alignment", "32"); }
static void layers_0(struct model *m) { kv_u32(m, "llama.block_count", 0); }
static void layers_many(struct model *m) { kv_u32(m, "llama.block_count", UINT32_MAX); }
static void layers_float(struct model *m) { kv_f32(m, "llama.block_count", 1); }
static void layers_none(struct model *m) { kv_drop(m, "llama.block_count"); }
static void heads_0(struct model *m) { kv_u32(m, "llama.attention.head_count", 0); }
static void heads_odd(struct model *m) { kv_u32(m, "llama.attention.head_count", 3); }
static void heads_array(struct model *m)
{
    kv_u32(m, "llama.block_count", 2);
    struct sy_buf *b = kv_array(m, "llama.attention.head_count", SY_GGUF_I32, 2);
    put_n(b, 4, 4);
    put_n(b, 8, 4);
}
static void heads_short(struct model *m) { put_n(kv_array(m, "llama.attention.head_count", SY_GGUF_I32, 0), 0, 0); }
static void eps_nan(struct model *m) { kv_f32(m, "llama.attention.layer_norm_rms_epsilon", 0.0f / 0.0f); }
static void eps_int(struct model *m) { kv_str(m, "llama.attention.layer_norm_rms_epsilon", "1e-5"); }
static void value_length(struct model *m) { kv_u32(m, "llama.attention.value_length", 16); }
static void key_length(struct model *m) { kv_u32(m, "llama.attention.key_length", 7); }
static void part_rotated(struct model *m) { kv_u32(m, "llama.rope.dimension_count", 4); }
static void rope_type(struct model *m) { kv_str(m, "llama.rope.scaling.type", "longrope"); }
static void rope_zero(struct model *m) { tensor_f32(m, "rope_freqs.weight", 4, 0)->offset = 0; }
static void rope_size(struct model *m) { tensor_f32(m, "rope_freqs.weight", 5, 0)->offset = -1; }

static void scores_u8(struct model *m) { sy_buf_text(kv_array(m, "tokenizer.ggml.scores", SY_GGUF_U8, 5), "12345"); }
static void types_u8(struct model *m)
{
    sy_buf_text(kv_array(m, "tokenizer.ggml.token_type", SY_GGUF_U8, 5), "12345");
}
static void scores_scalar(struct model *m) { kv_f32(m, "tokenizer.ggml.scores", 1); }
static void scores_few(struct model *m) { put_n(kv_array(m, "tokenizer.ggml.scores", SY_GGUF_F32, 1), 0, 4); }
static void types_many(struct model *m)
{
    struct sy_buf *b = kv_array(m, "tokenizer.ggml.token_type", SY_GGUF_I32, 6);
    for (int i = 0; i < 6; i++) put_n(b, 1, 4);
}
static void types_range(struct model *m)
{
    struct sy_buf *b = kv_array(m, "tokenizer.ggml.token_type", SY_GGUF_I32, VOCAB);
    for (uint64_t i = 0; i < VOCAB; i++) put_n(b, 3 + i, 4);
}
static void scores_nan(struct model *m)
{
    struct sy_buf *b = kv_array(m, "tokenizer.ggml.scores", SY_GGUF_F32, VOCAB);
    for (int i = 0; i < VOCAB; i++) sy_buf_add(b, &(float){i == 2 ? 0.0f / 0.0f : 1.0f}, 4);
}
static void tokens_ints(struct model *m)
{
    struct sy_buf *b = kv_array(m, "tokenizer.ggml.tokens", SY_GGUF_I32, VOCAB);
    for (int i = 0; i < VOCAB; i++) put_n(b, 1, 4);
}
static void tokens_none(struct model *m) { kv_drop(m, "tokenizer.ggml.tokens"); }
static void tokens_more(struct model *m)
{
    struct tensor *t = tensor_find(m, "token_embd.weight");
    t->dim[1] = 4;
}
static void merges_ints(struct model *m) { put_n(kv_array(m, "tokenizer.ggml.merges", SY_GGUF_U32, 1), 1, 4); }
static void bos_range(struct model *m) { kv_u32(m, "tokenizer.ggml.bos_token_id", 5); }
static void bos_type(struct model *m) { kv_str(m, "tokenizer.ggml.bos_token_id", "<s>"); }
static void add_bos_type(struct model *m) { kv_u32(m, "tokenizer.ggml.add_bos_token", 1); }
static void model_type(struct model *m) { kv_u32(m, "tokenizer.ggml.model", 1); }
static void template_type(struct model *m) { kv_u32(m, "tokenizer.chat_template", 1); }

static void dims_0(struct model *m) { m->t[1].n_dim = 0; }
static void dims_5(struct model *m) { m->t[1].n_dim = 5; }
static void dim_zero(struct model *m) { m->t[1].dim[0] = 0; }
static void dim_huge(struct model *m) { m->t[0].dim[0] = 1ull << 63; }
static void dim_product(struct model *m) { m->t[0].dim[0] = m->t[0].dim[1] = 1ull << 32; }
static void bytes_overflow(struct model *m) { m->t[0].dim[0] = m->t[0].dim[1] = 1ull << 31; }
static void type_unknown(struct model *m) { m->t[2].type = 99; }
static void type_max(struct model *m) { m->t[2].type = UINT32_MAX; }
static void row_blocks(struct model *m)
{
    m->t[2].type = 2; /* q4_0 */
    m->t[2].dim[0] = 33;
}
static void offset_far(struct model *m) { m->t[2].offset = 1 << 20; }
static void offset_max(struct model *m) { m->t[2].offset = INT64_MAX / 32 * 32; }
static void offset_unaligned(struct model *m) { m->t[2].offset = 8; }
static void offset_overlap(struct model *m) { m->t[2].offset = 0; }
static void end_cut(struct model *m) { m->n_cut = 1; }
static void tensor_twice(struct model *m) { tensor_f32(m, "output_norm.weight", HIDDEN, 0); }
static void q_rows(struct model *m) { m->t[2].dim[1] = 12; }
static void no_embed(struct model *m) { m->t[0].name = "token_embd.weights"; }
static void embed_1d(struct model *m) { m->t[0].n_dim = 1; }
static void experts_2d(struct model *m)
{
    kv_u32(m, "llama.expert_count", 3);
    kv_u32(m, "llama.expert_used_count", 2);
    m->t[7].name = "blk.0.ffn_gate_exps.weight";
}
static void split_alone(struct model *m) { kv_u32(m, "split.count", 2); }
static void split_second(struct model *m)
{
    kv_u32(m, "split.count", 2);
    kv_u32(m, "split.no", 1);
}
static void split_tensors(struct model *m) { kv_u32(m, "split.tensors.count", 12); }

static const struct {
    void (*change)(struct model *);
    sy_status code;
    const char *says;
} broken[] = {
    {v1, SY_ENOSUP, "'m.gguf': expected GGUF version 2 or 3, found 1"},
    {v4, SY_ENOSUP, "'m.gguf': expected GGUF version 2 or 3, found 4"},
    {big_endian, SY_ENOSUP,
     "'m.gguf': big-endian GGUF files are not supported; convert it anew on a little-endian machine"},
    {no_arch, SY_EFORMAT, "'m.gguf': key 'general.architecture': expected a string, found nothing"},
    {arch_type, SY_EFORMAT, "'m.gguf': key 'general.architecture': expected a string, found a uint32"},
    {other_arch, SY_ENOSUP,
     "'m.gguf': key 'general.architecture': 'rwkv6' is not supported as GGUF; 'systole help models' lists those that "
     "are"},
    {key_twice, SY_EFORMAT, "'m.gguf': key 'llama.block_count' is there twice, expected once"},
    {value_type, SY_EFORMAT, "'m.gguf': key 'x': unknown value type 13, expected 0 to 12"},
    {array_nested, SY_EFORMAT, "'m.gguf': key 'x': arrays of arrays (element type 9) are not supported"},
    {array_unknown, SY_EFORMAT, "'m.gguf': key 'x': arrays of an unknown type (element type 77) are not supported"},
    {bool_two, SY_EFORMAT, "'m.gguf': key 'x': expected a bool of 0 or 1, found 2"},
    {align_3, SY_EFORMAT, "'m.gguf': key 'general.alignment': expected a power of two from 8 to 1048576, found 48"},
    {align_0, SY_EFORMAT, "'m.gguf': key 'general.alignment': expected an integer from 8 to 1048576, found 0"},
    {align_type, SY_EFORMAT,
     "'m.gguf': key 'general.alignment': expected an integer from 8 to 1048576, found a string"},
    {layers_0, SY_EFORMAT, "'m.gguf': key 'llama.block_count': expected an integer from 1 to 16384, found 0"},
    {layers_many, SY_EFORMAT,
     "'m.gguf': key 'llama.block_count': expected an integer from 1 to 16384, found 4294967295"},
    {layers_float, SY_EFORMAT,
     "'m.gguf': key 'llama.block_count': expected an integer from 1 to 16384, found a float32"},
    {layers_none, SY_EFORMAT,
     "'m.gguf': key 'llama.block_count': expected an integer from 1 to 16384, found nothing"},
    {heads_0, SY_EFORMAT,
     "'m.gguf': key 'llama.attention.head_count': expected an integer from 1 to 2147483647, found 0"},
    {heads_odd, SY_EFORMAT,
     "'m.gguf': key 'llama.attention.key_length' is missing, and 'embedding_length' 32 is no multiple of the "
     "3 heads"},
    {heads_array, SY_ENOSUP,
     "'m.gguf': key 'llama.attention.head_count': layers that differ are not supported for this "
     "architecture: "
     "expected 4 in every layer, found 8 in layer 1"},
    {heads_short, SY_EFORMAT,
     "'m.gguf': key 'llama.attention.head_count': expected one integer, or one for each of 1 layers, found "
     "an array "
     "of 0 int32"},
    {eps_nan, SY_EFORMAT,
     "'m.gguf': key 'llama.attention.layer_norm_rms_epsilon': expected a number from 0 to 1e+30, found nan"},
    {eps_int, SY_EFORMAT,
     "'m.gguf': key 'llama.attention.layer_norm_rms_epsilon': expected a number from 0 to 1e+30, found a "
     "string"},
    {value_length, SY_ENOSUP,
     "'m.gguf': key 'llama.attention.value_length': expected the key length 8, found 16; heads whose values "
     "differ in "
     "size are not supported for this architecture"},
    {key_length, SY_EFORMAT, "'m.gguf': key 'llama.attention.key_length': expected an even head size, found 7"},
    {part_rotated, SY_ENOSUP,
     "'m.gguf': key 'llama.rope.dimension_count': expected the head size 8, found 4; partial rotation is not "
     "supported for this architecture"},
    {rope_type, SY_ENOSUP,
     "'m.gguf': key 'llama.rope.scaling.type': expected 'none', 'linear' or 'yarn', found 'longrope'"},
    {rope_size, SY_ESHAPE,
     "'m.gguf': tensor 'rope_freqs.weight': expected 4 numbers of f32 (half the head), found 5 of f32 in 1 "
     "dimensions"},
    {rope_zero, SY_EFORMAT, "'m.gguf': tensors 'token_embd.weight' and 'rope_freqs.weight' overlap at data offset 0"},
    {scores_u8, SY_EFORMAT,
     "'m.gguf': key 'tokenizer.ggml.scores': expected an array of float32, found an array of 5 uint8"},
    {types_u8, SY_EFORMAT,
     "'m.gguf': key 'tokenizer.ggml.token_type': expected an array of int32, found an array of 5 uint8"},
    {scores_scalar, SY_EFORMAT,
     "'m.gguf': key 'tokenizer.ggml.scores': expected an array of float32, found a float32"},
    {scores_few, SY_EFORMAT,
     "'m.gguf': key 'tokenizer.ggml.scores': expected one element for each of the 5 tokens, found 1"},
    {types_many, SY_EFORMAT,
     "'m.gguf': key 'tokenizer.ggml.token_type': expected one element for each of the 5 tokens, found 6"},
    {types_range, SY_EFORMAT,
     "'m.gguf': key 'tokenizer.ggml.token_type': expected types from 0 to 6, found 7 for token 4"},
    {scores_nan, SY_EFORMAT, "'m.gguf': key 'tokenizer.ggml.scores': expected finite numbers, found nan for token 2"},
    {tokens_ints, SY_EFORMAT,
     "'m.gguf': key 'tokenizer.ggml.tokens': expected an array of string, found an array of 5 int32"},
    {tokens_none, SY_EFORMAT,
     "'m.gguf': key 'tokenizer.ggml.tokens': expected an array of 1 to 16777216 strings for tokenizer model "
     "'llama', "
     "found 0"},
    {tokens_more, SY_EFORMAT,
     "'m.gguf': key 'tokenizer.ggml.tokens': 5 tokens, but tensor 'token_embd.weight' has only 4 rows"},
    {merges_ints, SY_EFORMAT,
     "'m.gguf': key 'tokenizer.ggml.merges': expected an array of string, found an array of 1 uint32"},
    {bos_range, SY_EFORMAT, "'m.gguf': key 'tokenizer.ggml.bos_token_id': expected a token from 0 to 4, found 5"},
    {bos_type, SY_EFORMAT,
     "'m.gguf': key 'tokenizer.ggml.bos_token_id': expected an integer from -9223372036854775808 to "
     "9223372036854775807, found a string"},
    {add_bos_type, SY_EFORMAT, "'m.gguf': key 'tokenizer.ggml.add_bos_token': expected a bool, found a uint32"},
    {model_type, SY_EFORMAT, "'m.gguf': key 'tokenizer.ggml.model': expected a string, found a uint32"},
    {template_type, SY_EFORMAT, "'m.gguf': key 'tokenizer.chat_template': expected a string, found a uint32"},
    {dims_0, SY_EFORMAT, "'m.gguf': tensor 'blk.0.attn_norm.weight': expected 1 to 4 dimensions, found 0"},
    {dims_5, SY_EFORMAT, "'m.gguf': tensor 'blk.0.attn_norm.weight': expected 1 to 4 dimensions, found 5"},
    {dim_zero, SY_EFORMAT,
     "'m.gguf': tensor 'blk.0.attn_norm.weight': dimension 0 of size 0 makes an impossible number of "
     "elements"},
    {dim_huge, SY_EFORMAT,
     "'m.gguf': tensor 'token_embd.weight': dimension 0 of size 9223372036854775808 makes an impossible "
     "number of "
     "elements"},
    {dim_product, SY_EFORMAT,
     "'m.gguf': tensor 'token_embd.weight': dimension 1 of size 4294967296 makes an impossible number of "
     "elements"},
    {bytes_overflow, SY_EFORMAT, "'m.gguf': tensor 'token_embd.weight': its size in bytes overflows"},
    {type_unknown, SY_ENOSUP,
     "'m.gguf': tensor 'blk.0.attn_q.weight': stored as GGUF tensor type 99, which is not supported"},
    {type_max, SY_ENOSUP,
     "'m.gguf': tensor 'blk.0.attn_q.weight': stored as GGUF tensor type 4294967295, which is not supported"},
    {row_blocks, SY_EFORMAT,
     "'m.gguf': tensor 'blk.0.attn_q.weight': rows of 33 elements are not whole blocks of 32, as q4_0 needs"},
    {offset_far, SY_EFORMAT,
     "'m.gguf': tensor 'blk.0.attn_q.weight': 4096 bytes at data offset 1048576 reach beyond the end of the "
     "file, "
     "which has 31744 bytes of data"},
    {offset_max, SY_EFORMAT,
     "'m.gguf': tensor 'blk.0.attn_q.weight': 4096 bytes at data offset 9223372036854775776 reach beyond the "
     "end of "
     "the file, which has 31744 bytes of data"},
    {offset_unaligned, SY_EFORMAT,
     "'m.gguf': tensor 'blk.0.attn_q.weight': offset 8 is not a multiple of the alignment 32"},
    {end_cut, SY_EFORMAT,
     "'m.gguf': tensor 'output_norm.weight': 128 bytes at data offset 31616 reach beyond the end of the "
     "file, which "
     "has 31743 bytes of data"},
    {tensor_twice, SY_EFORMAT, "'m.gguf': tensor 'output_norm.weight' is there twice, expected once"},
    {q_rows, SY_ESHAPE,
     "'m.gguf': tensor 'blk.0.attn_q.weight': expected whole heads of 8 rows, found 12 rows in 2 dimensions"},
    {no_embed, SY_EFORMAT,
     "'m.gguf': tensor 'token_embd.weight': expected a matrix [vocabulary, embedding], found nothing"},
    {embed_1d, SY_EFORMAT,
     "'m.gguf': tensor 'token_embd.weight': expected a matrix [vocabulary, embedding], found another shape"},
    {experts_2d, SY_ESHAPE,
     "'m.gguf': tensor 'blk.0.ffn_gate_exps.weight': expected 3 dimensions with 3 experts outermost "
     "(expert_count), "
     "found 2 with 48"},
    {split_alone, SY_EFORMAT, "'m.gguf': expected 2 shards, found 1"},
    {split_second, SY_EARG, "'m.gguf': this is shard 2 of 2; name the first one (-00001-of-00002.gguf)"},
    {split_tensors, SY_EFORMAT,
     "'m.gguf': key 'split.tensors.count': expected the 11 tensors that its shards have, found 12"},
};

/* Cases whose numbers depend on where things lie in the file: these words must be in the sentence. */
static const struct {
    void (*change)(struct model *);
    const char *words[4];
} broken_at[] = {
    {many_tensors, {"'m.gguf'", "count of 164703072086692425 tensors", "can describe at most"}},
    {many_keys, {"'m.gguf'", "count of 9223372036854775807 metadata keys", "can hold at most"}},
    {one_key_more, {"'m.gguf'"}},
    {key_empty, {"'m.gguf'", "metadata key 21 of 21", "expected a length from 1 to 65535 bytes, found 0"}},
    {array_huge, {"'m.gguf': key 'x': 9223372036854775808 elements of uint8 cannot fit"}},
    {array_huge_f64, {"'m.gguf': key 'x': 2305843009213693952 elements of float64 cannot fit"}},
    {array_strings, {"'m.gguf': key 'x': 1099511627776 elements of string cannot fit"}},
    {string_long, {"'m.gguf': key 'general.name': expected 18446744073709551612 bytes at offset", "found only"}},
    {offset_overlap, {"'m.gguf': tensors '", "blk.0.attn_q.weight", "overlap at data offset 0"}},
};

static void refuse(void (*change)(struct model *), struct sy_err *err, sy_status *st)
{
    struct model m;
    model_init(&m, "llama");
    change(&m);
    struct sy_bytes f = model_write(&m, "m.gguf");
    struct counted c;
    counted_init(&c, 0);
    struct sy_checkpoint *ck = NULL;
    *st = sy_checkpoint_from_gguf(&c.env, &f, 1, &ck, err);
    assert_null(ck);
    assert_int_equal(c.live, 0);
    assert_true(c.peak < 16 * f.n); /* memory follows the file, not what it claims */
    model_release(&m);
}

static void test_broken(void **state)
{
    (void)state;
    struct sy_err err;
    sy_status st;
    for (size_t i = 0; i < SY_COUNT(broken); i++) {
        err.msg[0] = 0;
        refuse(broken[i].change, &err, &st);
        assert_string_equal(err.msg, broken[i].says);
        assert_int_equal(st, broken[i].code);
        refuse(broken[i].change, NULL, &st); /* nobody need want the sentence */
        assert_int_equal(st, broken[i].code);
    }
    for (size_t i = 0; i < SY_COUNT(broken_at); i++) {
        refuse(broken_at[i].change, &err, &st);
        assert_int_equal(st, SY_EFORMAT);
        for (int k = 0; k < 4 && broken_at[i].words[k]; k++)
            if (!strstr(err.msg, broken_at[i].words[k]))
                fail_msg("'%s' is not in: %s", broken_at[i].words[k], err.msg);
    }
}

/* ---- ends, alignments, versions ------------------------------------------------------------------------------ */

static void test_accepted(void **state)
{
    (void)state;
    struct model m;
    model_init(&m, "llama"); /* ends with its last tensor's last byte: every other test relies on that, too */
    sy_checkpoint_free(open_ok(&m));
    m.n_extra = 77; /* padding and more behind */
    sy_checkpoint_free(open_ok(&m));
    m.version = 2;
    sy_checkpoint_free(open_ok(&m));
    static const uint32_t align[] = {8, 16, 64, 4096};
    for (size_t i = 0; i < SY_COUNT(align); i++) {
        kv_u32(&m, "general.alignment", align[i]);
        m.align = align[i];
        sy_checkpoint_free(open_ok(&m));
    }
    m.t[2].n_bytes = 0; /* holes between tensors are allowed, and their order is free */
    m.t[2].offset = 32 * 4096;
    m.n_extra = 40 * 4096;
    sy_checkpoint_free(open_ok(&m));
    model_release(&m);
}

static void test_small(void **state)
{
    (void)state;
    /* F02: 24 bytes of header, one key, and an array that claims 2^63 elements. */
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    sy_buf_text(&b, "GGUF");
    put_n(&b, 3, 4);
    put_n(&b, 0, 8);
    put_n(&b, 1, 8);
    put_str(&b, "a");
    put_n(&b, SY_GGUF_ARRAY, 4);
    put_n(&b, SY_GGUF_U32, 4);
    put_n(&b, 1ull << 63, 8);
    struct sy_err err;
    struct sy_checkpoint *c = NULL;
    struct sy_bytes f = {"x", (const unsigned char *)b.at, b.len};
    assert_int_equal(sy_checkpoint_from_gguf(sy_env_default(), &f, 1, &c, &err), SY_EFORMAT);
    assert_string_equal(err.msg, "'x': key 'a': 9223372036854775808 elements of uint32 cannot fit in the 0 "
                                 "bytes left "
                                 "in the file");
    /* F04: a header that claims as many tensors as would overflow an array of them. */
    sy_buf_clear(&b);
    sy_buf_text(&b, "GGUF");
    put_n(&b, 3, 4);
    put_n(&b, SIZE_MAX / sizeof(struct sy_tensor) + 1, 8);
    put_n(&b, 0, 8);
    f = (struct sy_bytes){"x", (const unsigned char *)b.at, b.len};
    assert_int_equal(sy_checkpoint_from_gguf(sy_env_default(), &f, 1, &c, &err), SY_EFORMAT);
    assert_non_null(strstr(err.msg, "the 0 bytes after the header can describe at most 0"));
    f.n = 3;
    assert_int_equal(sy_checkpoint_from_gguf(sy_env_default(), &f, 1, &c, &err), SY_EFORMAT);
    assert_string_equal(err.msg, "'x': header: expected 4 bytes at offset 0, found only 3 before the end of "
                                 "the file");
    f = (struct sy_bytes){"x", (const unsigned char *)"PK\3\4 and so on", 14};
    assert_int_equal(sy_checkpoint_from_gguf(sy_env_default(), &f, 1, &c, &err), SY_EFORMAT);
    assert_string_equal(err.msg, "'x': expected a GGUF file (it starts with 'GGUF') or the folder of a "
                                 "Hugging Face model, found a file of another kind");
    assert_null(c);
    sy_buf_release(&b);
}

/* Every prefix of a file is refused, and no change of one byte does harm. */
static void test_every_byte(void **state)
{
    (void)state;
    struct model m;
    model_init(&m, "llama");
    struct sy_bytes f = model_write(&m, "m.gguf");
    size_t n_head = f.n - 31744; /* data need no walk */
    unsigned char *copy = malloc(f.n);
    for (size_t n = 0; n < f.n; n += n < n_head ? 1 : 997) {
        unsigned char *cut = malloc(n ? n : 1); /* its own block, so that reading behind it is seen */
        memcpy(cut, f.at, n);
        struct sy_checkpoint *c = NULL;
        struct sy_bytes part = {"m.gguf", cut, n};
        assert_int_not_equal(sy_checkpoint_from_gguf(sy_env_default(), &part, 1, &c, NULL), SY_OK);
        free(cut);
    }
    static const unsigned char flip[] = {1, 0x80, 0xff};
    for (size_t i = 0; i < n_head; i++)
        for (size_t k = 0; k < SY_COUNT(flip); k++) {
            memcpy(copy, f.at, f.n);
            copy[i] ^= flip[k];
            struct sy_checkpoint *c = NULL;
            struct sy_bytes part = {"m.gguf", copy, f.n};
            if (sy_checkpoint_from_gguf(sy_env_default(), &part, 1, &c, NULL) == SY_OK) sy_checkpoint_free(c);
        }
    free(copy);
    model_release(&m);
}

static void test_no_memory(void **state)
{
    (void)state;
    struct model m;
    model_init(&m, "llama");
    struct sy_bytes f = model_write(&m, "m.gguf");
    bool done = false;
    for (long i = 1; !done; i++) {
        struct counted c;
        counted_init(&c, i);
        struct sy_checkpoint *ck = NULL;
        struct sy_err err = {0};
        sy_status st = sy_checkpoint_from_gguf(&c.env, &f, 1, &ck, &err);
        done = c.n < i;
        assert_int_equal(st, done ? SY_OK : SY_ENOMEM);
        sy_checkpoint_free(ck);
        assert_int_equal(c.live, 0);
        assert_true(i < 1000);
    }
    model_release(&m);
}

/* ---- shards -------------------------------------------------------------------------------------------------- */

static const char shard_2[] = "m-00002-of-00002.gguf";

/* The second shard: no more than its place, and two tensors. */
static void second_init(struct model *m)
{
    *m = (struct model){.version = 3, .count_t = UINT64_MAX, .count_kv = UINT64_MAX, .align = 32};
    sy_buf_init(&m->out, sy_env_default(), 0);
    put_n(kv_set(m, "split.no", SY_GGUF_U16), 1, 2);
    put_n(kv_set(m, "split.count", SY_GGUF_U16), 2, 2);
    put_n(kv_set(m, "split.tensors.count", SY_GGUF_I32), 13, 4);
    tensor_f32(m, "output.weight", HIDDEN, VOCAB);
    tensor_f32(m, "blk.0.attn_q.bias", N_HEAD * HEAD, 0);
}

static void first_init(struct model *m)
{
    model_init(m, "llama");
    put_n(kv_set(m, "split.no", SY_GGUF_U16), 0, 2);
    put_n(kv_set(m, "split.count", SY_GGUF_U16), 2, 2);
    put_n(kv_set(m, "split.tensors.count", SY_GGUF_I32), 13, 4);
}

static sy_status open_file(const char *folder, const char *name, struct sy_checkpoint **c, struct sy_err *err)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return sy_checkpoint_open(sy_env_default(), path, c, err);
}

static void write_model(const char *folder, const char *name, struct model *m)
{
    struct sy_bytes f = model_write(m, name);
    write_file(folder, name, f.at, f.n);
}

static void test_shards(void **state)
{
    (void)state;
    static const char first[] = "m-00001-of-00002.gguf";
    char folder[64];
    make_folder(folder, sizeof folder);
    struct model a, b;
    first_init(&a);
    second_init(&b);
    write_model(folder, first, &a);
    struct sy_checkpoint *c = NULL;
    struct sy_err err = {0};
    assert_int_equal(open_file(folder, first, &c, &err), SY_EIO);
    assert_non_null(strstr(err.msg, shard_2));
    write_model(folder, shard_2, &b);
    if (open_file(folder, first, &c, &err)) fail_msg("%s", err.msg);
    assert_int_equal(sy_checkpoint_count(c), 13);
    assert_false(flag(c, "tie_word_embeddings"));
    assert_non_null(strstr(sy_checkpoint_find(c, "lm_head.weight")->file, shard_2));
    sy_checkpoint_free(c);
    c = NULL;

    assert_int_equal(open_file(folder, shard_2, &c, &err), SY_EARG);
    assert_non_null(strstr(err.msg, "this is shard 2 of 2; name the first one (-00001-of-00002.gguf)"));
    write_model(folder, "renamed.gguf", &a);
    assert_int_equal(open_file(folder, "renamed.gguf", &c, &err), SY_EFORMAT);
    assert_non_null(strstr(err.msg, "expected a file name that ends in '-00001-of-00002.gguf'"));

    b.t[1].name = "output_norm.weight"; /* in the first shard, too */
    write_model(folder, shard_2, &b);
    assert_int_equal(open_file(folder, first, &c, &err), SY_EFORMAT);
    assert_non_null(strstr(err.msg, "tensor 'output_norm.weight' is there twice"));
    b.t[1].name = "blk.0.attn_k.bias";
    b.t[1].dim[0] = N_KV * HEAD;
    put_n(kv_set(&b, "split.no", SY_GGUF_U16), 0, 2);
    write_model(folder, shard_2, &b);
    assert_int_equal(open_file(folder, first, &c, &err), SY_EFORMAT);
    assert_non_null(strstr(err.msg, "expected shard 2 of 2 (split.no 1, split.count 2), found shard 1 of 2"));
    put_n(kv_set(&b, "split.no", SY_GGUF_U16), 1, 2);
    b.n_t = 1;
    write_model(folder, shard_2, &b);
    assert_int_equal(open_file(folder, first, &c, &err), SY_EFORMAT);
    assert_non_null(strstr(err.msg, "'split.tensors.count': expected the 12 tensors that its shards have, "
                                    "found 13"));
    assert_null(c);
    model_release(&a);
    model_release(&b);
    remove_folder(folder);
}

static void test_paths(void **state)
{
    (void)state;
    char folder[64];
    make_folder(folder, sizeof folder);
    struct model m;
    model_init(&m, "llama");
    write_model(folder, "m.gguf", &m);
    write_text(folder, "empty.gguf", "");
    write_text(folder, "m.bin", "{\"a\": 1}");
    write_model(folder, "sha256-c0ffee", &m); /* the name says nothing */
    struct sy_checkpoint *c = NULL;
    struct sy_err err = {0};
    if (open_file(folder, "m.gguf", &c, &err)) fail_msg("%s", err.msg);
    assert_non_null(strstr(sy_checkpoint_path(c), "/m.gguf"));
    sy_checkpoint_free(c);
    c = NULL;
    if (open_file(folder, "sha256-c0ffee", &c, &err)) fail_msg("%s", err.msg);
    sy_checkpoint_free(c);
    c = NULL;
    assert_int_equal(open_file(folder, "empty.gguf", &c, &err), SY_EFORMAT);
    assert_non_null(strstr(err.msg, "is empty"));
    assert_int_equal(open_file(folder, "m.bin", &c, &err), SY_EFORMAT);
    assert_non_null(strstr(err.msg, "m.bin': expected a GGUF file (it starts with 'GGUF') or the folder"));
    assert_int_equal(open_file(folder, "none.gguf", &c, &err), SY_EIO);
    assert_non_null(strstr(err.msg, "No such file"));
    assert_int_equal(sy_checkpoint_open(sy_env_default(), "/dev/zero", &c, &err), SY_EIO);
    assert_null(c);
    model_release(&m);
    remove_folder(folder);
}

/* Every GGUF of the golden data, against the config of the model it was converted from. */
static void test_golden(void **state)
{
    (void)state;
    glob_t found;
    assert_int_equal(glob("test/golden/quant/*/model.gguf", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct sy_checkpoint *c = NULL;
        struct sy_err err = {0};
        if (sy_checkpoint_open(sy_env_default(), found.gl_pathv[i], &c, &err)) fail_msg("%s", err.msg);
        char path[512], *want_text;
        snprintf(path, sizeof path, "%.*s/config.reference.json", (int)strlen(found.gl_pathv[i]) - 11,
                 found.gl_pathv[i]);
        size_t n;
        struct sy_json *want = NULL;
        assert_int_equal(sy_file_read(sy_env_default(), path, 1 << 20, &want_text, &n, &err), SY_OK);
        assert_int_equal(sy_json_parse(sy_env_default(), want_text, n, true, &want, &err), SY_OK);
        sy_delete(sy_env_default(), want_text);
        static const char *const keys[] = {
            "hidden_size",         "intermediate_size", "num_hidden_layers",       "num_attention_heads",
            "num_key_value_heads", "head_dim",          "max_position_embeddings", "rms_norm_eps",
            "rope_theta",          "vocab_size"};
        for (size_t k = 0; k < SY_COUNT(keys); k++)
            assert_true((float)num(c, keys[k]) == (float)sy_json_number(sy_json_get(want, keys[k]), -1));
        assert_string_equal(class_of(c), sy_json_text(sy_json_at(sy_json_get(want, "architectures"), 0)));
        assert_string_equal(text(c, "model_type"), sy_json_text(sy_json_get(want, "model_type")));
        assert_int_equal(flag(c, "tie_word_embeddings"),
                         sy_json_bool(sy_json_get(want, "tie_word_embeddings"), false));
        for (size_t k = 0; k < sy_checkpoint_count(c); k++) {
            const struct sy_tensor *t = sy_checkpoint_at(c, k);
            if (!strncmp(t->name, "blk.", 4)) fail_msg("%s: '%s' has no name", path, t->name);
            bool qk = strstr(t->name, "q_proj") || strstr(t->name, "k_proj");
            bool pairs = !strcmp(text(c, "model_type"), "llama");
            assert_int_equal(t->head_rows, qk && pairs ? (int)num(c, "head_dim") : 0);
        }
        sy_json_free(want);
        sy_checkpoint_free(c);
    }
    globfree(&found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),      cmocka_unit_test(test_config),     cmocka_unit_test(test_rope_factors),
        cmocka_unit_test(test_rope_scaling), cmocka_unit_test(test_gemma3),     cmocka_unit_test(test_experts),
        cmocka_unit_test(test_vocab),        cmocka_unit_test(test_broken),     cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_small),        cmocka_unit_test(test_every_byte), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_shards),       cmocka_unit_test(test_paths),      cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
