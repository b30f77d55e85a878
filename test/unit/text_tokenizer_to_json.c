/* What convert writes of a GGUF's tokenizer into a folder: it is read back with the same ids, or it is refused. */
#include "text_tokenizer_made.h"

static sy_status write_json(const struct made *m, struct sy_buf *json, struct sy_buf *config, struct sy_err *err)
{
    static const char template[] = "{{ messages }} \"\xc3\xa9\"\n";
    sy_buf_init(json, sy_env_default(), 0);
    sy_buf_init(config, sy_env_default(), 0);
    return sy_tokenizer_to_json(sy_env_default(), &m->g, template, sizeof template - 1, json, config, err);
}

static struct sy_json *parse_buf(const struct sy_buf *b)
{
    struct sy_json *j = NULL;
    struct sy_err err = {0};
    if (sy_json_parse(sy_env_default(), b->at, b->len, false, &j, &err)) fail_msg("%s", err.msg);
    return j;
}

/* The tokenizer as it is read back; its JSON in *json, which the caller frees. */
static struct sy_tokenizer *there_and_back(const struct made *m, struct sy_json **json)
{
    struct sy_buf text, config;
    struct sy_err err = {0};
    struct sy_tokenizer *back = NULL;
    if (write_json(m, &text, &config, &err)) fail_msg("%s, %s: %s", m->g.model, m->g.pre, err.msg);
    struct sy_json *c = parse_buf(&config);
    *json = parse_buf(&text);
    if (sy_tokenizer_from_json(sy_env_default(), *json, c, "tokenizer.json", &back, &err)) fail_msg("%s", err.msg);
    assert_string_equal(sy_json_text(sy_json_get(c, "chat_template")), "{{ messages }} \"\xc3\xa9\"\n");
    sy_json_free(c);
    sy_buf_release(&text);
    sy_buf_release(&config);
    return back;
}

static void same_ids(const struct sy_tokenizer *t, const struct sy_tokenizer *back, const char *s, const char *what)
{
    for (unsigned flags = 0; flags < 4; flags++) {
        struct sy_ids a = encode(t, s, flags), b = encode(back, s, flags);
        if (a.n != b.n || (a.n && memcmp(a.at, b.at, a.n * sizeof *a.at))) {
            print_ids("GGUF", a.at, a.n);
            print_ids("JSON", b.at, b.n);
            fail_msg("%s: '%s'", what, s);
        }
        sy_ids_release(&a);
        sy_ids_release(&b);
    }
}

/* Frees m. */
static void check(struct made *m, const char *what)
{
    static const char *const texts[] = {
        "",
        "hello hello",
        "  he",
        "abab 11 'S's\n\n\n",
        "a<s>o</s>h[user]o",
        "<|end|>ab<tool \xc3\xa9> b",
        "UnaffAble. Caf\xc3\xa9 \xe4\xb8\xad unx",
        " \xf0\x9f\x98\x80\xe2\x96\x81 ab \xe2\x96\x81",
        "<0x41>[PAD16]",
    };
    struct sy_tokenizer *t = finish(m);
    struct sy_json *json;
    struct sy_tokenizer *back = there_and_back(m, &json);
    for (size_t i = 0; i < SY_COUNT(texts); i++) same_ids(t, back, texts[i], what);
    assert_int_equal(sy_tokenizer_bos(t), sy_tokenizer_bos(back));
    assert_int_equal(sy_tokenizer_eos(t), sy_tokenizer_eos(back));
    assert_int_equal(sy_tokenizer_pad(t), sy_tokenizer_pad(back));
    for (int32_t id = 0; id < sy_tokenizer_size(back); id++) {
        assert_int_equal(sy_tokenizer_is_special(t, id), sy_tokenizer_is_special(back, id));
        assert_int_equal(sy_tokenizer_is_control(t, id), sy_tokenizer_is_control(back, id));
    }
    sy_tokenizer_free(t);
    sy_tokenizer_free(back);
    sy_json_free(json);
    free(m);
}

static void kinds(void **state)
{
    (void)state;
    for (int flags = 0; flags < 16; flags++) {
        struct made *m = made_llama();
        m->g.add_space_prefix = flags & 1;
        m->g.add_bos = flags >> 1 & 1;
        m->g.add_eos = flags >> 2 & 1;
        m->g.pad = flags & 8 ? 0 : -1;
        check(m, "llama");
        m = made_t5();
        m->g.add_space_prefix = flags & 1;
        m->g.remove_extra_whitespaces = flags >> 1 & 1;
        m->g.add_eos = flags >> 2 & 1;
        m->g.pad = flags & 8 ? 0 : -1;
        check(m, "t5");
    }
    struct made *m = made_gpt2("llama-bpe");
    m->g.eos = m->g.bos; /* around a text on both sides */
    m->g.add_eos = 1;
    check(m, "gpt2");
    check(made_bert(), "bert");
    check(made_gemma4(), "gemma4");
    for (size_t i = 0; i < SY_COUNT(pre_names); i++) {
        check(made_gpt2(pre_names[i]), pre_names[i]);
        check(made_alphabet(pre_names[i]), pre_names[i]);
    }
}

static const struct sy_json *model_of(const struct sy_json *json, const char *key)
{
    return sy_json_get(sy_json_get(json, "model"), key);
}

/* Merges of scores: best token first, cut in every way; tokens of rows without one are left out. */
static void merges(void **state)
{
    (void)state;
    static const char *const want[][2] = {
        {"l", "l"},  {"h", "e"},   {MARK, "he"}, {MARK "h", "e"}, {"l", "lo"},
        {"ll", "o"}, {MARK, MARK}, {"s", ">"},   {"l", "o"},      {MARK, "h"},
    };
    struct made *m = made_llama();
    add(m, "lo", 1, -100);
    add(m, MARK "h", 1, -200);
    add(m, "[PAD277]", 5, 0);
    struct sy_json *json;
    struct sy_tokenizer *back = there_and_back(m, &json);
    const struct sy_json *list = model_of(json, "merges");
    assert_int_equal(sy_json_len(list), SY_COUNT(want));
    for (size_t i = 0; i < SY_COUNT(want); i++)
        for (size_t k = 0; k < 2; k++)
            assert_string_equal(sy_json_text(sy_json_at(sy_json_at(list, i), k)), want[i][k]);
    assert_null(sy_json_get(model_of(json, "vocab"), "[PAD277]"));
    assert_int_equal(sy_json_int(sy_json_get(model_of(json, "vocab"), "lo"), 0), 275);
    sy_tokenizer_free(back);
    sy_json_free(json);
    free(m);
    m = made_gpt2("gpt-2"); /* a merge that could never apply */
    add_merge(m, "a nowhere");
    back = there_and_back(m, &json);
    assert_int_equal(sy_json_len(model_of(json, "merges")), 4);
    sy_tokenizer_free(back);
    sy_json_free(json);
    free(m);
}

static void refuse(struct made *m, const char *msg)
{
    struct sy_buf text, config;
    struct sy_err err = {0};
    sy_status st = write_json(m, &text, &config, &err);
    if (st != SY_ENOSUP || !strstr(err.msg, msg))
        fail_msg("%s: '%s', expected '%s'", sy_status_name(st), err.msg, msg);
    sy_buf_release(&text);
    sy_buf_release(&config);
    free(m);
}

static void refused(void **state)
{
    (void)state;
    struct made *m = made_gpt2("gpt-2");
    add(m, "ab", 1, 0);
    refuse(m, "two tokens have the same text");
    m = made_gpt2("gpt-2");
    add(m, "\xc3\xa9", 4, 0); /* as text an e with an accent; in tokenizer.json the byte E9 */
    refuse(m, "no tokenizer.json is known that cuts and decodes texts as this GGUF's tokenizer does");
    m = made_llama();
    add(m, "h\xc3\xa9", 1, -50); /* made of h and of a character that is no token */
    refuse(m, "it has tokens of characters that are none");
    m = made_llama();
    char *run = malloc(8193);
    memset(run, 'l', 8192);
    run[8192] = 0;
    for (int i = 0; i < 5; i++) add(m, run + i, 1, -50);
    refuse(m, "its tokens are too long to be cut everywhere");
    free(run);
    refuse(made_gpt2("no-such-name"), "the pre-tokenizer 'no-such-name' is not known");
}

static void out_of_memory(void **state)
{
    (void)state;
    struct made *const kinds[] = {made_llama(), made_gpt2("gpt-2"), made_bert()};
    for (size_t i = 0; i < SY_COUNT(kinds); i++) {
        struct failing fail = {.left = -1};
        struct sy_alloc alloc = failing_alloc(&fail);
        struct sy_env env = *sy_env_default();
        env.alloc = &alloc;
        sy_status st = SY_ENOMEM;
        for (long n = 0; st != SY_OK; n += n < 64 ? 1 : n / 8) {
            struct sy_buf text, config;
            struct sy_err err = {0};
            sy_buf_init(&text, &env, 0);
            sy_buf_init(&config, &env, 0);
            fail = (struct failing){.left = n};
            st = sy_tokenizer_to_json(&env, &kinds[i]->g, NULL, 0, &text, &config, &err);
            if (st != SY_OK && st != SY_ENOMEM) fail_msg("allocation %ld: %s", n, err.msg);
            sy_buf_release(&text);
            sy_buf_release(&config);
            assert_int_equal(fail.live, 0);
        }
        free(kinds[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds),
        cmocka_unit_test(merges),
        cmocka_unit_test(refused),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
