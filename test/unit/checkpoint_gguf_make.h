/* checkpoint_gguf_make.h - a small model as a GGUF file in memory, whose parts a test changes first. */
#pragma once
#include "checkpoint_util.h"

enum { N_LAYER = 1, HIDDEN = 32, N_HEAD = 4, N_KV = 2, HEAD = 8, FF = 48, VOCAB = 5 };

struct kv {
    const char *key;
    uint32_t type;
    struct sy_buf value;
};
struct tensor {
    const char *name;
    uint32_t n_dim, type;
    uint64_t dim[5];
    int64_t offset; /* -1: where the one before ends */
    uint64_t n_bytes;
};
struct model {
    struct kv kv[80];
    size_t n_kv;
    struct tensor t[40];
    size_t n_t;
    uint32_t version;
    uint64_t count_t, count_kv;   /* what the header says; UINT64_MAX: the truth */
    size_t align, n_extra, n_cut; /* padding of data; bytes appended; bytes cut off the end */
    struct sy_buf out;
};

static struct sy_buf *kv_new(struct model *m, const char *key, uint32_t type)
{
    struct kv *k = &m->kv[m->n_kv++];
    assert_true(m->n_kv <= SY_COUNT(m->kv));
    *k = (struct kv){.key = key, .type = type};
    sy_buf_init(&k->value, sy_env_default(), 0);
    return &k->value;
}

/* The value's buffer, emptied, under a type; the key is added when it is not there. */
static struct sy_buf *kv_set(struct model *m, const char *key, uint32_t type)
{
    for (size_t i = 0; i < m->n_kv; i++)
        if (!strcmp(m->kv[i].key, key)) {
            m->kv[i].type = type;
            sy_buf_clear(&m->kv[i].value);
            return &m->kv[i].value;
        }
    return kv_new(m, key, type);
}

static void kv_drop(struct model *m, const char *key)
{
    for (size_t i = 0; i < m->n_kv; i++)
        if (!strcmp(m->kv[i].key, key)) {
            sy_buf_release(&m->kv[i].value);
            memmove(&m->kv[i], &m->kv[i + 1], (--m->n_kv - i) * sizeof m->kv[0]);
            return;
        }
    fail_msg("no key %s", key);
}

static void kv_u32(struct model *m, const char *key, uint32_t v) { put_n(kv_set(m, key, SY_GGUF_U32), v, 4); }
static void kv_f32(struct model *m, const char *key, float v) { sy_buf_add(kv_set(m, key, SY_GGUF_F32), &v, 4); }
static void kv_str(struct model *m, const char *key, const char *v) { put_str(kv_set(m, key, SY_GGUF_STRING), v); }
static void kv_bool(struct model *m, const char *key, int v) { put_n(kv_set(m, key, SY_GGUF_BOOL), (uint64_t)v, 1); }

/* The head of an array; its elements are for the caller to add. */
static struct sy_buf *kv_array(struct model *m, const char *key, uint32_t elem, uint64_t n)
{
    struct sy_buf *b = kv_set(m, key, SY_GGUF_ARRAY);
    put_n(b, elem, 4);
    put_n(b, n, 8);
    return b;
}

static struct tensor *tensor_find(struct model *m, const char *name)
{
    for (size_t i = 0; i < m->n_t; i++)
        if (!strcmp(m->t[i].name, name)) return &m->t[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static struct tensor *tensor_f32(struct model *m, const char *name, uint64_t d0, uint64_t d1)
{
    struct tensor *t = &m->t[m->n_t++];
    assert_true(m->n_t <= SY_COUNT(m->t));
    *t = (struct tensor){name, d1 ? 2 : 1, 0, {d0, d1 ? d1 : 1, 1, 1, 1}, -1, 4 * d0 * (d1 ? d1 : 1)};
    return t;
}

static void tokenizer(struct model *m)
{
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "a", "b"};
    kv_str(m, "tokenizer.ggml.model", "llama");
    kv_str(m, "tokenizer.ggml.pre", "default");
    struct sy_buf *b = kv_array(m, "tokenizer.ggml.tokens", SY_GGUF_STRING, VOCAB);
    for (int i = 0; i < VOCAB; i++) put_str(b, tokens[i]);
    b = kv_array(m, "tokenizer.ggml.scores", SY_GGUF_F32, VOCAB);
    for (int i = 0; i < VOCAB; i++) sy_buf_add(b, &(float){(float)-i}, 4);
    b = kv_array(m, "tokenizer.ggml.token_type", SY_GGUF_I32, VOCAB);
    for (int i = 0; i < VOCAB; i++) put_n(b, i < 3 ? 3 : 1, 4);
    b = kv_array(m, "tokenizer.ggml.merges", SY_GGUF_STRING, 1);
    put_str(b, "a b");
    kv_u32(m, "tokenizer.ggml.bos_token_id", 1);
    kv_u32(m, "tokenizer.ggml.eos_token_id", 2);
    kv_u32(m, "tokenizer.ggml.eot_token_id", 4);
    kv_u32(m, "tokenizer.ggml.padding_token_id", UINT32_MAX);
    kv_bool(m, "tokenizer.ggml.add_bos_token", 1);
    kv_str(m, "tokenizer.chat_template", "{{ messages }}");
}

static void model_init(struct model *m, const char *arch)
{
    static const char *const name[] = {"block_count",         "context_length",       "embedding_length",
                                       "feed_forward_length", "attention.head_count", "attention.head_count_kv"};
    static const uint32_t value[] = {N_LAYER, 128, HIDDEN, FF, N_HEAD, N_KV};
    static char keys[8][64];
    *m = (struct model){.version = 3, .count_t = UINT64_MAX, .count_kv = UINT64_MAX, .align = 32};
    sy_buf_init(&m->out, sy_env_default(), 0);
    kv_str(m, "general.architecture", arch);
    for (size_t i = 0; i < SY_COUNT(name); i++) {
        snprintf(keys[i], sizeof keys[i], "%s.%s", arch, name[i]);
        kv_u32(m, keys[i], value[i]);
    }
    snprintf(keys[6], sizeof keys[6], "%s.attention.layer_norm_rms_epsilon", arch);
    kv_f32(m, keys[6], 1e-5f);
    tokenizer(m);
    tensor_f32(m, "token_embd.weight", HIDDEN, VOCAB);
    tensor_f32(m, "blk.0.attn_norm.weight", HIDDEN, 0);
    tensor_f32(m, "blk.0.attn_q.weight", HIDDEN, N_HEAD * HEAD);
    tensor_f32(m, "blk.0.attn_k.weight", HIDDEN, N_KV * HEAD);
    tensor_f32(m, "blk.0.attn_v.weight", HIDDEN, N_KV * HEAD);
    tensor_f32(m, "blk.0.attn_output.weight", N_HEAD * HEAD, HIDDEN);
    tensor_f32(m, "blk.0.ffn_norm.weight", HIDDEN, 0);
    tensor_f32(m, "blk.0.ffn_gate.weight", HIDDEN, FF);
    tensor_f32(m, "blk.0.ffn_up.weight", HIDDEN, FF);
    tensor_f32(m, "blk.0.ffn_down.weight", FF, HIDDEN);
    tensor_f32(m, "output_norm.weight", HIDDEN, 0);
}

/* The file's bytes, valid until the model is released. Data counts upwards in float32. */
static struct sy_bytes model_write(struct model *m, const char *name)
{
    struct sy_buf *b = &m->out;
    sy_buf_clear(b);
    sy_buf_text(b, "GGUF");
    put_n(b, m->version, 4);
    put_n(b, m->count_t == UINT64_MAX ? m->n_t : m->count_t, 8);
    put_n(b, m->count_kv == UINT64_MAX ? m->n_kv : m->count_kv, 8);
    for (size_t i = 0; i < m->n_kv; i++) {
        put_str(b, m->kv[i].key);
        put_n(b, m->kv[i].type, 4);
        sy_buf_add(b, m->kv[i].value.at, m->kv[i].value.len);
    }
    uint64_t at = 0, end = 0;
    for (size_t i = 0; i < m->n_t; i++) {
        const struct tensor *t = &m->t[i];
        put_str(b, t->name);
        put_n(b, t->n_dim, 4);
        for (uint32_t k = 0; k < t->n_dim && k < 5; k++) put_n(b, t->dim[k], 8);
        put_n(b, t->type, 4);
        put_n(b, t->offset >= 0 ? (uint64_t)t->offset : at, 8);
        end = at + t->n_bytes;
        at = (end + m->align - 1) / m->align * m->align;
    }
    while (m->n_t && b->len % m->align) sy_buf_char(b, 0);
    for (uint64_t i = 0; i < end; i += 4) sy_buf_add(b, &(float){(float)(i / 4)}, 4);
    for (size_t i = 0; i < m->n_extra; i++) sy_buf_char(b, 0);
    assert_false(b->failed);
    return (struct sy_bytes){name, (const unsigned char *)b->at, b->len - m->n_cut};
}

static void model_release(struct model *m)
{
    for (size_t i = 0; i < m->n_kv; i++) sy_buf_release(&m->kv[i].value);
    sy_buf_release(&m->out);
}
