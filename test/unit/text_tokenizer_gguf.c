/* Tokenizers from GGUF metadata, built here: SentencePiece BPE by score, byte-level BPE by name, Unigram, WordPiece;
 * and metadata that is refused. */
#include "text_tokenizer_made.h"

static void check_decode(const struct sy_tokenizer *t, const int32_t *ids, size_t n, bool skip, const char *want)
{
    struct sy_buf out;
    sy_buf_init(&out, sy_env_default(), 0);
    assert_int_equal(sy_tokenizer_decode(t, ids, n, skip, &out, NULL), SY_OK);
    assert_string_equal(out.at ? out.at : "", want);
    sy_buf_release(&out);
}

/* ---- SentencePiece ----------------------------------------------------------------------------------- */

static void sentencepiece(void **state)
{
    (void)state;
    struct made *m = made_llama();
    struct sy_tokenizer *t = finish(m);
    assert_int_equal(sy_tokenizer_bos(t), 1);
    assert_int_equal(sy_tokenizer_eos(t), 2);
    CHECK_IDS(encode(t, "hello", SY_ENCODE_SPECIAL), 1, 261, 262);
    CHECK_IDS(encode(t, "hello hello", 0), 261, 262, 261, 262);
    CHECK_IDS(encode(t, "  o", 0), 263, 265, 269);                /* prefix and two spaces */
    CHECK_IDS(encode(t, "\xc3\xa9", 0), 265, 3 + 0xc3, 3 + 0xa9); /* byte fallback */
    CHECK_IDS(encode(t, "<s>o</s>", 0), 1, 265, 269, 2);          /* a prefix after each control token */
    CHECK_IDS(encode(t, "<s>o", SY_ENCODE_PLAIN), 265, 270, 264,
              269); /* "<" and "s>" would join to a control token */
    CHECK_IDS(encode(t, "o[user]o", 0), 265, 269, 274, 265, 269);
    CHECK_IDS(encode(t, "o[user]", SY_ENCODE_PLAIN), 265, 269, 94, 120, 271, 267, 117, 96); /* looks like control */
    const int32_t ids[] = {1, 261, 262, 265, 3 + 0xf0, 3 + 0x9f, 3 + 0x98, 3 + 0x80, 2};
    check_decode(t, ids, SY_COUNT(ids), true, "hello \xf0\x9f\x98\x80");
    check_decode(t, ids, SY_COUNT(ids), false, "<s> hello \xf0\x9f\x98\x80</s>");
    sy_tokenizer_free(t);
    m->g.add_space_prefix = 0;
    m->g.add_bos = 0;
    m->g.add_eos = 1;
    t = finish(m);
    CHECK_IDS(encode(t, "hello", SY_ENCODE_SPECIAL), 260, 262, 2);
    check_decode(t, (const int32_t[]){265, 260}, 2, true, " he");
    sy_tokenizer_free(t);
    free(m);
}

/* ---- byte-level -------------------------------------------------------------------------------------- */

static void byte_level(void **state)
{
    (void)state;
    struct made *m = made_gpt2("gpt-2");
    struct sy_tokenizer *t = finish(m);
    CHECK_IDS(encode(t, "ab ab\n11", 0), 6, 7, 9, 8);
    CHECK_IDS(encode(t, "abab", SY_ENCODE_SPECIAL), 6, 6);
    CHECK_IDS(encode(t, "\xc3\xa9", 0), 4, 5);
    CHECK_IDS(encode(t, "a<|end|><tool \xc3\xa9>'s", 0), 0, 14, 15, 12);
    check_decode(t, (const int32_t[]){7, 4, 5, 15, 14}, 5, false, " ab\xc3\xa9<tool \xc3\xa9><|end|>");
    check_decode(t, (const int32_t[]){7, 4, 14}, 3, true, " ab\xef\xbf\xbd");
    assert_int_equal(sy_tokenizer_eos(t), -1);
    sy_tokenizer_free(t);
    m->g.pre = "smollm"; /* digits one by one */
    t = finish(m);
    CHECK_IDS(encode(t, "ab11", 0), 6, 2, 2);
    sy_tokenizer_free(t);
    m->g.pre = "llama-bpe"; /* whole words first, BOS, contractions in any case */
    t = finish(m);
    CHECK_IDS(encode(t, "abab", SY_ENCODE_SPECIAL), 14, 13);
    m->g.add_bos = 0;
    sy_tokenizer_free(t);
    t = finish(m);
    CHECK_IDS(encode(t, "abab", SY_ENCODE_SPECIAL), 13);
    sy_tokenizer_free(t);
    free(m);
}

/* Each published pre-tokenizer compiles and loses no byte. */
static void names(void **state)
{
    (void)state;
    const char *text = "Hello WORLD it's 12345 \xe4\xb8\xad\xe6\x96\x87\xef\xbc\x8c\xe3\x81\x82 \xc3\xa9 "
                       "<>[]{}\r\n\n  x\ty \xf0\x9f\x98\x80.";
    for (size_t i = 0; i < SY_COUNT(pre_names); i++) {
        struct made *m = made_alphabet(pre_names[i]);
        struct sy_tokenizer *t = finish(m);
        struct sy_ids ids = encode(t, text, 0);
        check_decode(t, ids.at, ids.n, false, text);
        sy_ids_release(&ids);
        char *run = malloc(200000);
        for (int k = 0; k < 3; k++) {
            memset(run, "a 1"[k], 200000);
            ids = encode_n(t, run, 200000, 0);
            assert_int_equal(ids.n, 200000);
            sy_ids_release(&ids);
        }
        free(run);
        sy_tokenizer_free(t);
        free(m);
    }
}

/* The byte-level fixtures as GGUF has them: the named pre-tokenizer gives the ids of tokenizer.json's. */
static void fixtures_by_name(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"bytelevel_gpt4", "dbrx"},  {"bytelevel_llama3", "llama-bpe"}, {"bytelevel_o200k", "gpt-4o"},
        {"bytelevel_qwen", "qwen2"}, {"bytelevel_qwen35", "qwen35"},    {"bytelevel_deepseek", "deepseek-v3"},
    };
    enum { N = 2048 };
    for (size_t f = 0; f < SY_COUNT(pairs); f++) {
        struct sy_json *j = load_json(pairs[f][0], "tokenizer.json"), *golden = load_json(pairs[f][0], "golden.json");
        const struct sy_json *model = sy_json_get(j, "model"), *added = sy_json_get(j, "added_tokens"), *value;
        const struct sy_json *merges = sy_json_get(model, "merges"), *cases = sy_json_get(golden, "cases");
        struct sy_text *token = calloc(N, sizeof *token), *merge = calloc(N, sizeof *merge);
        int32_t *type = calloc(N, sizeof *type);
        char *text = calloc(N, 64);
        size_t n = 0;
        const char *key;
        for (void *it = NULL; (it = sy_json_next(sy_json_get(model, "vocab"), it, &key, &value));) {
            size_t id = (size_t)sy_json_int(value, 0);
            assert_true(id < N);
            token[id] = (struct sy_text){key, strlen(key)};
            type[id] = 1;
            if (id >= n) n = id + 1;
        }
        bool clash = false; /* ids that a word and a control token share have no place in GGUF */
        for (size_t i = 0; i < sy_json_len(added); i++) {
            const struct sy_json *e = sy_json_at(added, i);
            size_t id = (size_t)sy_json_int(sy_json_get(e, "id"), 0);
            clash |= type[id] != 0;
            token[id].at = sy_json_text_n(sy_json_get(e, "content"), &token[id].n);
            type[id] = sy_json_bool(sy_json_get(e, "special"), false) ? 3 : 4;
            if (id >= n) n = id + 1;
        }
        for (size_t i = 0; i < n; i++)
            if (!type[i]) token[i] = (struct sy_text){"", 0}, type[i] = 5;
        for (size_t i = 0; i < sy_json_len(merges); i++) {
            const struct sy_json *e = sy_json_at(merges, i);
            snprintf(text + 64 * i, 64, "%s %s", sy_json_text(sy_json_at(e, 0)), sy_json_text(sy_json_at(e, 1)));
            merge[i] = (struct sy_text){text + 64 * i, strlen(text + 64 * i)};
        }
        struct made *m = begin("gpt2", pairs[f][1]);
        m->g.token = token;
        m->g.type = type;
        m->g.score = NULL;
        m->g.merge = merge;
        m->g.n_token = n;
        m->g.n_merge = sy_json_len(merges);
        m->g.add_bos = 0;
        struct sy_tokenizer *t = finish(m);
        size_t checked = 0;
        for (size_t i = 0; i < sy_json_len(cases); i++) {
            const struct sy_json *c = sy_json_at(cases, i), *want = sy_json_get(c, "ids");
            size_t len;
            const char *s = sy_json_text_n(sy_json_get(c, "text"), &len);
            struct sy_ids ids = encode_n(t, s, len, 0);
            bool same = ids.n == sy_json_len(want), whole = false;
            for (size_t k = 0; k < sy_json_len(want); k++) {
                int64_t id = sy_json_int(sy_json_at(want, k), -1);
                whole |= clash && id >= 1005;
                same = same && ids.at[k] == id;
            }
            if (!same && !whole) fail_msg("%s as %s: case %zu: wrong ids", pairs[f][0], pairs[f][1], i);
            checked += same;
            sy_ids_release(&ids);
        }
        assert_true(checked > 100);
        sy_tokenizer_free(t);
        free(m), free(token), free(merge), free(type), free(text);
        sy_json_free(j);
        sy_json_free(golden);
    }
}

/* ---- the other kinds --------------------------------------------------------------------------------- */

static void unigram(void **state)
{
    (void)state;
    struct made *m = made_t5();
    struct sy_tokenizer *t = finish(m);
    CHECK_IDS(encode(t, "  ab   b ", SY_ENCODE_SPECIAL), 3, 5, 3, 6, 1);
    CHECK_IDS(encode(t, "azz</s>", SY_ENCODE_PLAIN), 4, 2); /* unknown characters join, control text stays text */
    check_decode(t, (const int32_t[]){3, 5, 3, 6, 1}, 5, true, "ab b");
    sy_tokenizer_free(t);
    free(m);
}

static void word_pieces(void **state)
{
    (void)state;
    struct made *m = made_bert();
    struct sy_tokenizer *t = finish(m);
    CHECK_IDS(encode(t, "UnaffAble. Caf\xc3\xa9\xe4\xb8\xad unx", SY_ENCODE_SPECIAL), 1, 3, 4, 5, 6, 7, 8, 0, 2);
    check_decode(t, (const int32_t[]){3, 4, 5, 6, 7}, 5, true, "unaffable. cafe");
    sy_tokenizer_free(t);
    free(m);
}

static void gemma4(void **state)
{
    (void)state;
    struct made *m = made_gemma4();
    struct sy_tokenizer *t = finish(m);
    CHECK_IDS(encode(t, "a a\n\na\xc3\xa9", SY_ENCODE_SPECIAL), 1, 258, 260, 262, 258, 2 + 0xc3, 2 + 0xa9);
    check_decode(t, (const int32_t[]){1, 260, 262, 2 + 0xc3, 2 + 0xa9}, 5, true, " a\n\n\xc3\xa9");
    sy_tokenizer_free(t);
    free(m);
}

/* ---- refusals ---------------------------------------------------------------------------------------- */

static void refuse(struct made *m, sy_status want, const char *msg)
{
    struct sy_tokenizer *t = NULL;
    struct sy_err err = {0};
    sy_status st = sy_tokenizer_from_gguf(sy_env_default(), &m->g, "made.gguf", &t, &err);
    if (st != want || !strstr(err.msg, msg)) fail_msg("%s: '%s', expected '%s'", sy_status_name(st), err.msg, msg);
    assert_null(t);
    free(m);
}

static void refused(void **state)
{
    (void)state;
    struct made *m = begin("rwkv", NULL);
    refuse(m, SY_ENOSUP, "tokenizer.ggml.model: 'rwkv' is not supported");
    refuse(begin(NULL, NULL), SY_ENOSUP, "'(missing)' is not supported");
    refuse(begin("gpt2", "gpt-2"), SY_EFORMAT, "the vocabulary is empty");
    refuse(made_gpt2("no-such-name"), SY_ENOSUP, "the pre-tokenizer 'no-such-name' is not known");
    refuse(made_gpt2(NULL), SY_ENOSUP, "tokenizer.ggml.pre: missing");
    m = made_gpt2("gpt-2");
    m->g.eos = 17;
    refuse(m, SY_EFORMAT, "tokenizer.ggml.eos_token_id: 17, expected a token from 0 to 16");
    m = made_gpt2("gpt-2");
    m->g.unk = INT64_MAX;
    refuse(m, SY_EFORMAT, "tokenizer.ggml.unknown_token_id: 9223372036854775807");
    m = made_gpt2("gpt-2");
    m->type[3] = 77;
    refuse(m, SY_EFORMAT, "token 3 has type 77, expected 1 to 6");
    m = made_gpt2("gpt-2");
    m->g.merge = NULL;
    refuse(m, SY_EFORMAT, "tokenizer.ggml.merges: missing");
    m = made_gpt2("gpt-2");
    add_merge(m, "nospace");
    refuse(m, SY_EFORMAT, "merge 4: expected two tokens");
    m = made_gpt2("gpt-2");
    add_merge(m, "a nowhere"); /* it could never apply: left out, with a warning */
    struct sy_tokenizer *t = NULL;
    assert_int_equal(sy_tokenizer_from_gguf(sy_env_default(), &m->g, "made.gguf", &t, NULL), SY_OK);
    sy_tokenizer_free(t);
    free(m);
    m = made_gpt2("gpt-2");
    m->token[2] = (struct sy_text){"\xff", 1};
    refuse(m, SY_EFORMAT, "token 2: expected at most 8192 bytes of UTF-8");
    m = made_gpt2("gpt-2");
    m->token[2].n = (size_t)1 << 40;
    refuse(m, SY_EFORMAT, "token 2: expected at most 8192 bytes of UTF-8");
    m = made_gpt2("gpt-2");
    m->g.bos = -1;
    m->g.add_bos = 1;
    refuse(m, SY_EFORMAT, "add_bos_token is set, but there is no bos_token_id");
    m = made_llama();
    m->g.score = NULL;
    refuse(m, SY_EFORMAT, "tokenizer.ggml.scores: missing");
    m = made_llama();
    m->score[5] = 0.0f / 0.0f;
    refuse(m, SY_EFORMAT, "tokenizer.ggml.scores: token 5 has no finite score");
    m = begin("t5", NULL);
    add(m, "a", 1, 0);
    add(m, "b", 1, 0);
    add(m, "c", 1, 0);
    m->g.charsmap = (const unsigned char *)"\xff\xff\xff\xff";
    m->g.n_charsmap = 4;
    refuse(m, SY_EFORMAT, "precompiled_charsmap: a table of 4294967295 bytes in a map of 4");
}

/* A damaged map reads nothing outside itself, whatever its cells say. */
static void damaged_map(void **state)
{
    (void)state;
    struct made *m = begin("t5", NULL);
    add(m, "<pad>", 3, 0);
    add(m, "</s>", 3, 0);
    add(m, "<unk>", 2, 0);
    add(m, "a", 1, -1);
    unsigned char map[4 + 64 + 8];
    m->g.charsmap = map;
    m->g.n_charsmap = sizeof map;
    for (unsigned seed = 0; seed < 3000; seed++) {
        unsigned r = seed * 2654435761u + 1;
        for (size_t i = 0; i < sizeof map; i++)
            map[i] = (unsigned char)((r = r * 1103515245u + 12345u) >> (i % 3 ? 16 : 24));
        memcpy(map, "\x40\0\0", 4);
        struct sy_tokenizer *t = finish(m);
        struct sy_ids ids = encode(t, "a\x01\x02 hello \xc3\xa9\xff", 0);
        sy_ids_release(&ids);
        sy_tokenizer_free(t);
    }
    free(m);
}

static void out_of_memory(void **state)
{
    (void)state;
    struct made *const kinds[] = {made_llama(), made_gpt2("deepseek-llm")};
    for (size_t i = 0; i < SY_COUNT(kinds); i++) {
        struct failing fail = {.left = -1};
        struct sy_alloc alloc = failing_alloc(&fail);
        struct sy_env env = *sy_env_default();
        env.alloc = &alloc;
        sy_status st = SY_ENOMEM;
        for (long n = 0; st != SY_OK; n++) {
            struct sy_tokenizer *t = NULL;
            struct sy_err err = {0};
            fail = (struct failing){.left = n};
            st = sy_tokenizer_from_gguf(&env, &kinds[i]->g, "made.gguf", &t, &err);
            if (st != SY_OK && st != SY_ENOMEM) fail_msg("allocation %ld: %s", n, err.msg);
            sy_tokenizer_free(t);
            assert_int_equal(fail.live, 0);
        }
        free(kinds[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sentencepiece),    cmocka_unit_test(byte_level), cmocka_unit_test(names),
        cmocka_unit_test(fixtures_by_name), cmocka_unit_test(unigram),    cmocka_unit_test(word_pieces),
        cmocka_unit_test(gemma4),           cmocka_unit_test(refused),    cmocka_unit_test(damaged_map),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
