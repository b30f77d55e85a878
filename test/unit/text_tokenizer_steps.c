/* Every step, model, decoder and post-processor of tokenizer.json on its own, against what Hugging Face's tokenizers
 * makes of it (test/golden/tokenizers/steps.json); files that are refused, and why; memory that runs out. */
#include "text_tokenizer_util.h"

static void check_decoded(const struct sy_tokenizer *t, size_t i, const struct sy_json *d)
{
    int32_t ids[32];
    size_t n = sy_json_len(sy_json_at(d, 0));
    assert_true(n <= SY_COUNT(ids));
    for (size_t k = 0; k < n; k++) ids[k] = (int32_t)sy_json_int(sy_json_at(sy_json_at(d, 0), k), -1);
    for (int skip = 0; skip < 2; skip++) {
        struct sy_buf whole, part;
        struct sy_detok k;
        struct sy_err err = {0};
        size_t n_want;
        const char *want = sy_json_text_n(sy_json_at(d, skip ? 2 : 1), &n_want);
        sy_buf_init(&whole, sy_env_default(), 0);
        sy_buf_init(&part, sy_env_default(), 0);
        assert_int_equal(sy_tokenizer_decode(t, ids, n, skip, &whole, &err), SY_OK);
        sy_detok_init(&k, t, skip);
        for (size_t j = 0; j < n; j++) sy_detok_feed(&k, ids[j], &part);
        sy_detok_finish(&k, &part);
        if (whole.len != n_want || (n_want && memcmp(whole.at, want, n_want)))
            fail_msg("tokenizer %zu: decoded '%s', expected '%s'", i, whole.at ? whole.at : "", want);
        if (part.len != n_want || (n_want && memcmp(part.at, want, n_want)))
            fail_msg("tokenizer %zu: streamed '%s', expected '%s'", i, part.at ? part.at : "", want);
        sy_buf_release(&whole);
        sy_buf_release(&part);
    }
}

static void steps(void **state)
{
    (void)state;
    struct sy_json *all = load_json(".", "steps.json");
    assert_true(sy_json_len(all) > 100);
    for (size_t i = 0; i < sy_json_len(all); i++) {
        const struct sy_json *e = sy_json_at(all, i), *cases = sy_json_get(e, "cases"),
                             *dec = sy_json_get(e, "decodes");
        struct sy_tokenizer *t = NULL;
        struct sy_err err = {0};
        if (sy_tokenizer_from_json(sy_env_default(), sy_json_get(e, "tokenizer"), NULL, "steps", &t, &err) != SY_OK)
            fail_msg("tokenizer %zu: %s", i, err.msg);
        for (size_t k = 0; k < sy_json_len(cases); k++) {
            size_t n;
            const char *s = sy_json_text_n(sy_json_at(sy_json_at(cases, k), 0), &n);
            const struct sy_json *want = sy_json_at(sy_json_at(cases, k), 1);
            struct sy_ids ids = encode_n(t, s, n, SY_ENCODE_SPECIAL);
            bool same = ids.n == sy_json_len(want);
            for (size_t j = 0; same && j < ids.n; j++) same = ids.at[j] == sy_json_int(sy_json_at(want, j), -1);
            if (!same) {
                print_ids("found", ids.at, ids.n);
                fail_msg("tokenizer %zu (line %zu): text %zu '%s': wrong ids", i, i + 2, k, s);
            }
            sy_ids_release(&ids);
        }
        for (size_t k = 0; k < sy_json_len(dec); k++) check_decoded(t, i, sy_json_at(dec, k));
        sy_tokenizer_free(t);
    }
    sy_json_free(all);
}

/* ---- small tokenizers -------------------------------------------------------------------------------- */

static sy_status try_open(const char *text, struct sy_tokenizer **t, struct sy_err *err)
{
    struct sy_json *j = parse(text);
    *t = NULL;
    sy_status st = sy_tokenizer_from_json(sy_env_default(), j, NULL, "tokenizer.json", t, err);
    sy_json_free(j);
    return st;
}

static struct sy_tokenizer *open_text(const char *text)
{
    struct sy_tokenizer *t;
    struct sy_err err = {0};
    if (try_open(text, &t, &err) != SY_OK) fail_msg("%s", err.msg);
    return t;
}

#define WORDS "\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"?\":0,\"a\":1,\"b\":2},\"unk_token\":\"?\"}"

static void refused(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        sy_status st;
        const char *msg;
    } cases[] = {
        {"[]", SY_EFORMAT, "expected an object"},
        {"{}", SY_EFORMAT, "'model': expected an object"},
        {"{\"model\":{\"type\":\"Word2Vec\"}}", SY_ENOSUP, "model type 'Word2Vec' is not supported"},
        {"{\"model\":{\"type\":\"BPE\"}}", SY_EFORMAT, "model.vocab: expected an object"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", SY_EFORMAT, "the vocabulary is empty"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1}}}", SY_EFORMAT, "'a': expected a token id"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999}}}", SY_EFORMAT, "'a': expected a token id"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", SY_EFORMAT,
         "token id 0 is given to 'a' and to 'b'"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", SY_EFORMAT, "model.merges: expected an array"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", SY_EFORMAT,
         "merge 0: expected two tokens"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", SY_EFORMAT,
         "merge 0: 'aa' is not in the vocabulary"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"c\"]]}}", SY_EFORMAT,
         "merge 0: 'c' is not in the vocabulary"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", SY_EFORMAT,
         "entry 0: expected [\"token\", score]"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]],\"unk_id\":1}}", SY_EFORMAT, "'unk_id'"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}", SY_EFORMAT, "model.unk_token"},
        {"{" WORDS ",\"normalizer\":{\"type\":\"Unheard\"}}", SY_ENOSUP, "normalizer 'Unheard' is not supported"},
        {"{" WORDS ",\"normalizer\":{}}", SY_EFORMAT, "normalizer: expected an object with a 'type'"},
        {"{" WORDS ",\"normalizer\":{\"type\":\"Sequence\"}}", SY_EFORMAT, "'normalizers': expected an array"},
        {"{" WORDS ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"////AAAA\"}}", SY_EFORMAT,
         "precompiled_charsmap: a table of"},
        {"{" WORDS ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"*\"}}", SY_EFORMAT,
         "not base64"},
        {"{" WORDS ",\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}}", SY_ENOSUP,
         "pre_tokenizer 'UnicodeScripts' is not supported"},
        {"{" WORDS ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}}",
         SY_ENOSUP, "regular expression '(': missing closing parenthesis"},
        {"{" WORDS
         ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?~a)\"},\"behavior\":\"Isolated\"}}",
         SY_ENOSUP, "this kind of group at offset 2 is not supported"},
        {"{" WORDS
         ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a\"},\"behavior\":\"Isolated\"}}",
         SY_ENOSUP, "an unclosed class"},
        {"{" WORDS
         ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[z-a]\"},\"behavior\":\"Isolated\"}}",
         SY_ENOSUP, "a range that runs backwards"},
        {"{" WORDS ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"\"},\"behavior\":\"Isolated\"}}",
         SY_ENOSUP, "an empty string"},
        {"{" WORDS ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Odd\"}}",
         SY_ENOSUP, "'behavior' 'Odd' is not supported"},
        {"{" WORDS ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}}", SY_EFORMAT,
         "'replacement': expected a single character"},
        {"{" WORDS ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}}", SY_ENOSUP,
         "expected Sequence A once"},
        {"{" WORDS
         ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}}",
         SY_EFORMAT, "'special_tokens': 'x' is missing"},
        {"{" WORDS ",\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"x\",7],\"cls\":[\"y\",1]}}",
         SY_EFORMAT, "7 is not a token of the vocabulary"},
        {"{" WORDS ",\"post_processor\":{\"type\":\"Sequence\",\"processors\":["
         "{\"type\":\"BertProcessing\",\"sep\":[\"a\",1],\"cls\":[\"b\",2]},"
         "{\"type\":\"RobertaProcessing\",\"sep\":[\"a\",1],\"cls\":[\"b\",2]}]}}",
         SY_ENOSUP, "post_processor 'RobertaProcessing': a second step that adds tokens"},
        {"{" WORDS ",\"decoder\":{\"type\":\"CTC\"}}", SY_ENOSUP, "decoder 'CTC' is not supported"},
        {"{" WORDS
         ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"ByteLevel\"}]}}",
         SY_ENOSUP, "decoder 'ByteLevel': not the first decoder"},
        {"{" WORDS ",\"added_tokens\":[{\"content\":\"x\"}]}", SY_EFORMAT, "added_tokens: 'id': expected an integer"},
        {"{" WORDS ",\"added_tokens\":[{\"id\":3}]}", SY_EFORMAT, "entry 0: 'content': expected a string"},
        {"{" WORDS ",\"added_tokens\":[{\"id\":3,\"content\":\"x\"},{\"id\":3,\"content\":\"y\"}]}", SY_EFORMAT,
         "token id 3 is given to 'x' and to 'y'"},
    };
    for (size_t i = 0; i < SY_COUNT(cases); i++) {
        struct sy_tokenizer *t;
        struct sy_err err = {0};
        sy_status st = try_open(cases[i].json, &t, &err);
        if (st != cases[i].st || !strstr(err.msg, cases[i].msg) || strncmp(err.msg, "tokenizer.json: ", 16))
            fail_msg("%s: %s, '%s'; expected '%s'", cases[i].json, sy_status_name(st), err.msg, cases[i].msg);
    }
}

static void deep_sequence(void **state)
{
    (void)state;
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    sy_buf_text(&b, "{" WORDS ",\"normalizer\":");
    for (int i = 0; i < 400; i++) sy_buf_text(&b, "{\"type\":\"Sequence\",\"normalizers\":[");
    sy_buf_text(&b, "{\"type\":\"NFC\"}");
    for (int i = 0; i < 400; i++) sy_buf_text(&b, "]}");
    sy_buf_text(&b, "}");
    struct sy_tokenizer *t;
    struct sy_err err = {0};
    assert_int_equal(try_open(b.at, &t, &err), SY_ENOSUP);
    assert_non_null(strstr(err.msg, "nested beyond 16"));
    sy_buf_release(&b);
}

/* A pattern made to take quadratic or exponential time ends in an error, not in a hang. */
static void runaway_regex(void **state)
{
    (void)state;
    static const char *const patterns[] = {"(a+)+b", "(?:a|a|a)*b", "(?:a*a*)*b"};
    char text[4000];
    memset(text, 'a', sizeof text); /* a b stands out of reach, lest the search ends before it begins */
    memcpy(text + sizeof text - 2, "cb", 2);
    for (size_t i = 0; i < SY_COUNT(patterns); i++) {
        char json[400];
        snprintf(json, sizeof json,
                 "{" WORDS
                 ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\"}}",
                 patterns[i]);
        struct sy_tokenizer *t = open_text(json);
        struct sy_ids ids;
        struct sy_err err = {0};
        sy_ids_init(&ids, sy_env_default());
        assert_int_equal(sy_tokenizer_encode(t, text, sizeof text, 0, &ids, &err), SY_ENOSUP);
        assert_non_null(strstr(err.msg, "regular expression"));
        assert_int_equal(ids.n, 0);
        sy_ids_release(&ids);
        sy_tokenizer_free(t);
    }
}

static void plain_text(void **state)
{
    (void)state;
    struct sy_tokenizer *t =
        open_text("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"<\":0,\"s\":1,\">\":2,\"s>\":3,\"<s>\":4,\"x\":5},"
                  "\"merges\":[\"s >\",\"< s>\"]},\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true},"
                  "{\"id\":6,\"content\":\"<x>\",\"special\":false,\"normalized\":false}]}");
    CHECK_IDS(encode(t, "x<s>x<x>", 0), 5, 4, 5, 6);
    CHECK_IDS(encode(t, "x<s>x", SY_ENCODE_PLAIN), 5, 0, 3, 5); /* no merge makes a control token either */
    CHECK_IDS(encode(t, "<x>", SY_ENCODE_PLAIN), 0, 5, 2);      /* nor does one that is not called special match */
    assert_true(sy_tokenizer_is_control(t, 4) && sy_tokenizer_is_control(t, 6) && !sy_tokenizer_is_control(t, 99));
    assert_int_equal(sy_tokenizer_size(t), 7);
    assert_true(sy_tokenizer_is_special(t, 4) && !sy_tokenizer_is_special(t, 6) && !sy_tokenizer_is_special(t, 99));
    assert_int_equal(sy_tokenizer_find(t, "<x>", 3), 6);
    assert_int_equal(sy_tokenizer_find(t, "nothing", 7), -1);
    assert_string_equal(sy_tokenizer_token(t, 3, NULL), "s>");
    assert_null(sy_tokenizer_token(t, 7, NULL));
    sy_tokenizer_free(t);
}

/* By their looks: what steers a model is control, parts of a page and plain text are not. */
static void control_tokens(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool control;
    } all[] = {{"<think>", true},      {"</tool_call>", true}, {"<|fim_prefix|>", true},
               {"[TOOL_CALLS]", true}, {"<unused0>", true},    {"\xe2\x96\x81<EOT>", true},
               {"<video>", true},      {"<table>", false},     {"</h1>", false},
               {"<>", false},          {"<h", false},          {"  ", false},
               {"\\n\\n", false},      {"->", false},          {"word", false},
               {"<a b>", true}};
    char json[1024];
    int n = snprintf(json, sizeof json, "{" WORDS ",\"added_tokens\":[");
    for (size_t i = 0; i < SY_COUNT(all); i++)
        n += snprintf(json + n, sizeof json - (size_t)n, "%s{\"id\":%zu,\"content\":\"%s\"}", i ? "," : "", 50 + i,
                      all[i].text);
    snprintf(json + n, sizeof json - (size_t)n, "]}");
    struct sy_tokenizer *t = open_text(json);
    for (size_t i = 0; i < SY_COUNT(all); i++) {
        int32_t id = 50 + (int32_t)i;
        if (sy_tokenizer_is_control(t, id) != all[i].control) fail_msg("'%s' is taken for the other", all[i].text);
        size_t n_text;
        const char *s = sy_tokenizer_token(t, id, &n_text);
        struct sy_ids whole = encode_n(t, s, n_text, 0), plain = encode_n(t, s, n_text, SY_ENCODE_PLAIN);
        assert_true(whole.n == 1 && whole.at[0] == id);
        assert_int_equal(plain.n == 1 && plain.at[0] == id, !all[i].control);
        sy_ids_release(&whole);
        sy_ids_release(&plain);
    }
    sy_tokenizer_free(t);
}

/* Control tokens that are matched in normalized text obey spans too: trust follows the text through normalization. */
static void normalized_spans(void **state)
{
    (void)state;
    struct sy_tokenizer *t = open_text(
        "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"?\":0,\"\xc3\xa9\":1,\"<s>\":2,\"s\":3},\"unk_token\":\"?\"}"
        ","
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]},"
        "\"added_tokens\":[{\"id\":2,\"content\":\"<S>\",\"special\":true,\"normalized\":true},"
        "{\"id\":4,\"content\":\"e\\u0301!\",\"special\":true,\"normalized\":true}]}");
    struct sy_err err = {0};
    const char *s = "e\xcc\x81<S>e\xcc\x81<S>\xc3\x89!";
    const struct sy_span spans[] = {{0, 6, true}, {6, 9, false}, {9, 12, true}, {12, 15, false}};
    struct sy_ids ids;
    sy_ids_init(&ids, sy_env_default());
    assert_int_equal(sy_tokenizer_encode_spans(t, s, spans, 4, 0, &ids, &err), SY_OK);
    check_ids(&ids, (const int32_t[]){1, 2, 1, 2, 0}, 5, "trusted tokens");
    const struct sy_span other[] = {{0, 3, true}, {3, 6, false}, {6, 12, false}, {12, 15, true}};
    assert_int_equal(sy_tokenizer_encode_spans(t, s, other, 4, 0, &ids, &err), SY_OK);
    check_ids(&ids, (const int32_t[]){0, 4}, 2, "the untrusted ones are text");
    sy_tokenizer_free(t);
}

static void config_tokens(void **state)
{
    (void)state;
    struct sy_json *j = parse("{" WORDS "}"),
                   *c = parse("{\"bos_token\":\"a\",\"eos_token\":{\"content\":\"b\"},\"pad_token\":null}");
    struct sy_tokenizer *t = NULL;
    assert_int_equal(sy_tokenizer_from_json(sy_env_default(), j, c, "x", &t, NULL), SY_OK);
    assert_int_equal(sy_tokenizer_bos(t), 1);
    assert_int_equal(sy_tokenizer_eos(t), 2);
    assert_int_equal(sy_tokenizer_pad(t), -1);
    sy_tokenizer_free(t);
    sy_json_free(j);
    sy_json_free(c);
}

/* Every allocation fails once: an error, no leak, and the ids that were there stay. */
static void out_of_memory(void **state)
{
    (void)state;
    static const char *const names[] = {"bytelevel_qwen", "spm_bpe_llama2", "unigram", "bytelevel_deepseek"};
    const char *text =
        "Hello e\xcc\x81 <|im_start|> w\xff orld \xf0\x9f\x98\x80 1234 supercalifragilisticexpialidocious-ness";
    for (size_t f = 0; f < SY_COUNT(names); f++) {
        struct sy_json *j = load_json(names[f], "tokenizer.json");
        struct failing fail = {.left = -1};
        struct sy_alloc alloc = failing_alloc(&fail);
        struct sy_env env = *sy_env_default();
        env.alloc = &alloc;
        sy_status st = SY_ENOMEM;
        for (long n = 0; st != SY_OK; n++) {
            struct sy_tokenizer *t = NULL;
            struct sy_err err = {0};
            struct sy_ids ids;
            struct sy_buf out;
            fail = (struct failing){.left = n};
            sy_ids_init(&ids, &env);
            sy_buf_init(&out, &env, 0);
            st = sy_tokenizer_from_json(&env, j, NULL, names[f], &t, &err);
            if (st == SY_OK) st = sy_tokenizer_encode(t, text, strlen(text), SY_ENCODE_SPECIAL, &ids, &err);
            if (st != SY_OK) assert_int_equal(ids.n, 0);
            if (st == SY_OK) st = sy_tokenizer_decode(t, ids.at, ids.n, false, &out, &err);
            if (st != SY_OK && st != SY_ENOMEM) fail_msg("allocation %ld: %s", n, err.msg);
            sy_ids_release(&ids);
            sy_buf_release(&out);
            sy_tokenizer_free(t);
            assert_int_equal(fail.live, 0);
            assert_true(n < 2000);
        }
        sy_json_free(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps),
        cmocka_unit_test(refused),
        cmocka_unit_test(deep_sequence),
        cmocka_unit_test(runaway_regex),
        cmocka_unit_test(plain_text),
        cmocka_unit_test(control_tokens),
        cmocka_unit_test(normalized_spans),
        cmocka_unit_test(config_tokens),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
