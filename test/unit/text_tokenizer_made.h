/* Tokenizers as GGUF metadata has them, made here. */
#pragma once
#include "text_tokenizer_util.h"

enum { TOKENS_MAX = 400 };
#define MARK "\xe2\x96\x81"
#define SPACE_AB                                                                                                     \
    "\xc4\xa0"                                                                                                       \
    "ab"

struct made {
    struct sy_gguf_vocab g;
    struct sy_text token[TOKENS_MAX], merge[64];
    char byte_name[256][8];
    float score[TOKENS_MAX];
    int32_t type[TOKENS_MAX];
};

static inline struct made *begin(const char *model, const char *pre)
{
    struct made *m = calloc(1, sizeof *m);
    m->g = (struct sy_gguf_vocab){.model = model, .pre = pre, .token = m->token, .score = m->score, .type = m->type};
    m->g.bos = m->g.eos = m->g.eot = m->g.unk = m->g.pad = m->g.sep = m->g.cls = m->g.mask = -1;
    m->g.add_bos = m->g.add_eos = m->g.add_space_prefix = m->g.remove_extra_whitespaces = -1;
    return m;
}

static inline int32_t add(struct made *m, const char *text, int32_t type, float score)
{
    size_t i = m->g.n_token++;
    assert_true(i < TOKENS_MAX);
    m->token[i] = (struct sy_text){text, strlen(text)};
    m->type[i] = type;
    m->score[i] = score;
    return (int32_t)i;
}

static inline void add_merge(struct made *m, const char *text)
{
    assert_true(m->g.n_merge < SY_COUNT(m->merge));
    m->merge[m->g.n_merge++] = (struct sy_text){text, strlen(text)};
    m->g.merge = m->merge;
}

static inline void add_bytes(struct made *m)
{
    for (int b = 0; b < 256; b++) {
        snprintf(m->byte_name[b], sizeof m->byte_name[b], "<0x%02X>", (unsigned)b);
        add(m, m->byte_name[b], 6, 0);
    }
}

static inline struct sy_tokenizer *finish(struct made *m)
{
    struct sy_tokenizer *t = NULL;
    struct sy_err err = {0};
    if (sy_tokenizer_from_gguf(sy_env_default(), &m->g, "made.gguf", &t, &err) != SY_OK) fail_msg("%s", err.msg);
    return t;
}

/* ids: 0 <unk>, 1 <s>, 2 </s>, 3.. bytes, 259.. pieces */
static inline struct made *made_llama(void)
{
    struct made *m = begin("llama", NULL);
    add(m, "<unk>", 2, 0);
    add(m, "<s>", 3, 0);
    add(m, "</s>", 3, 0);
    add_bytes(m);
    static const char *const pieces[] = {"ll", "he", MARK "he", "llo", MARK MARK, "s>", MARK, "h",
                                         "e",  "l",  "o",       "<",   "s",       ">",  "/"};
    for (size_t i = 0; i < SY_COUNT(pieces); i++) add(m, pieces[i], 1, -(float)i);
    add(m, "[user]", 4, 0);
    return m;
}

static inline struct made *made_gpt2(const char *pre)
{
    static const char *const tokens[] = {"a",      "b",  "1",        "\xc4\xa0", "\xc3\x83", "\xc2\xa9", "ab",
                                         SPACE_AB, "11", "\xc4\x8a", "'",        "s",        "'s",       "abab"};
    struct made *m = begin("gpt2", pre);
    for (size_t i = 0; i < SY_COUNT(tokens); i++) add(m, tokens[i], 1, 0);
    add(m, "<|end|>", 3, 0); /* 14 */
    add(m, "<tool \xc3\xa9>", 4, 0);
    add(m, "[PAD16]", 5, 0);
    add_merge(m, "a b");
    add_merge(m, "\xc4\xa0 ab");
    add_merge(m, "1 1");
    add_merge(m, "' s");
    m->g.bos = 14;
    m->g.score = NULL;
    return m;
}

/* Bytes alone, cut as `pre` says, and one merge. */
static inline struct made *made_alphabet(const char *pre)
{
    static char alphabet[256][3];
    struct made *m = begin("gpt2", pre);
    for (int b = 0, extra = 0x100; b < 256; b++) {
        bool self = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        int c = self ? b : extra++;
        alphabet[b][0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6);
        alphabet[b][1] = (char)(c < 0x80 ? 0 : 0x80 | (c & 63));
        add(m, alphabet[b], 1, 0);
    }
    add_merge(m, "H e");
    add(m, "He", 1, 0);
    m->g.bos = 0;
    return m;
}

static inline struct made *made_t5(void)
{
    struct made *m = begin("t5", NULL);
    add(m, "<pad>", 3, 0);
    add(m, "</s>", 3, 0);
    add(m, "<unk>", 2, 0);
    add(m, MARK, 1, -2);
    add(m, MARK "a", 1, -3);
    add(m, "ab", 1, -2.5f);
    add(m, "b", 1, -4);
    add(m, "a", 1, -4);
    m->g.remove_extra_whitespaces = 1;
    return m;
}

static inline struct made *made_bert(void)
{
    struct made *m = begin("bert", NULL);
    static const char *const tokens[] = {MARK "un", "aff", "able", MARK ".", MARK "cafe", MARK "\xe4\xb8\xad"};
    add(m, "[UNK]", 3, 0);
    add(m, "[CLS]", 3, 0);
    add(m, "[SEP]", 3, 0);
    for (size_t i = 0; i < SY_COUNT(tokens); i++) add(m, tokens[i], 1, 0);
    m->g.unk = 0;
    m->g.cls = 1;
    m->g.sep = 2;
    return m;
}

static inline struct made *made_gemma4(void)
{
    struct made *m = begin("gemma4", "gemma4");
    add(m, "<unk>", 2, 0);
    add(m, "<bos>", 3, 0);
    add_bytes(m);
    add(m, "a", 1, 0); /* 258 */
    add(m, MARK, 1, 0);
    add(m, MARK "a", 1, 0);
    add(m, "\n", 1, 0);
    add(m, "\n\n", 1, 0);
    add_merge(m, MARK " a");
    m->g.bos = 1;
    m->g.unk = 0;
    return m;
}

/* Names of published pre-tokenizers. */
static const char *const pre_names[] = {
    "default",       "gpt-2",
    "phi-2",         "mpt",
    "olmo",          "smollm",
    "starcoder",     "refact",
    "codeshell",     "exaone",
    "exaone4",       "command-r",
    "falcon",        "llama3",
    "llama-v3",      "llama-bpe",
    "falcon3",       "falcon-h1",
    "pixtral",       "lfm2",
    "dbrx",          "smaug-bpe",
    "glm4",          "chatglm-bpe",
    "qwen2",         "deepseek-r1-qwen",
    "qwen35",        "stablelm2",
    "megrez",        "hunyuan",
    "grok-2",        "seed-coder",
    "gpt-4o",        "llama4",
    "minimax-m2",    "tekken",
    "kimi-k2",       "deepseek-v3",
    "hunyuan-dense", "deepseek-coder",
    "deepseek-llm",  "bloom",
    "viking",        "granite-docling",
    "trillion",      "jais",
    "solar-open",
};
