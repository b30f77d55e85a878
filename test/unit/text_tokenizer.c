/* Every fixture of test/golden/tokenizers: ids and texts as Hugging Face's tokenizers gives them, whole and streamed;
 * long and hostile texts in linear time. */
#include "text_tokenizer_util.h"

#include <pthread.h>
#include <time.h>

#include "base/rng.h"
#include "base/utf8.h"

static const char *const fixtures[] = {
    "bytelevel_deepseek", "bytelevel_gpt4", "bytelevel_llama3", "bytelevel_o200k",         "bytelevel_qwen",
    "bytelevel_qwen35",   "spm_bpe_gemma",  "spm_bpe_llama2",   "spm_bpe_metaspace_first", "unigram",
};

static void check_json_ids(const char *name, size_t i, struct sy_ids ids, const struct sy_json *want)
{
    bool same = ids.n == sy_json_len(want);
    for (size_t k = 0; same && k < ids.n; k++) same = ids.at[k] == sy_json_int(sy_json_at(want, k), -1);
    if (!same) {
        print_ids("found", ids.at, ids.n);
        printf("expected:");
        for (size_t k = 0; k < sy_json_len(want) && k < 60; k++)
            printf(" %d", (int)sy_json_int(sy_json_at(want, k), -1));
        printf("\n");
        fail_msg("%s: case %zu: wrong ids", name, i);
    }
    sy_ids_release(&ids);
}

static struct sy_ids json_ids(const struct sy_json *j)
{
    struct sy_ids ids;
    sy_ids_init(&ids, sy_env_default());
    for (size_t i = 0; i < sy_json_len(j); i++)
        assert_int_equal(sy_ids_push(&ids, (int32_t)sy_json_int(sy_json_at(j, i), -1), NULL), SY_OK);
    return ids;
}

static void check_text(const char *name, const char *what, size_t i, struct sy_buf *found, const struct sy_json *want)
{
    size_t n;
    const char *s = sy_json_text_n(want, &n);
    assert_non_null(s);
    if (found->len != n || (n && memcmp(found->at, s, n)))
        fail_msg("%s: %s %zu: '%.*s', expected '%s'", name, what, i, (int)found->len, found->at ? found->at : "", s);
    sy_buf_release(found);
}

/* Streams ids, asserting that only whole characters come out, and that what came out is never taken back. */
static struct sy_buf stream(const struct sy_tokenizer *t, const int32_t *ids, size_t n, bool skip)
{
    struct sy_detok k;
    struct sy_buf out;
    sy_buf_init(&out, sy_env_default(), 0);
    sy_detok_init(&k, t, skip);
    for (size_t i = 0; i < n; i++) {
        sy_detok_feed(&k, ids[i], &out);
        assert_true(sy_utf8_valid(out.at, out.len));
    }
    sy_detok_finish(&k, &out);
    return out;
}

static struct sy_buf decode(const struct sy_tokenizer *t, const int32_t *ids, size_t n, bool skip)
{
    struct sy_buf out;
    struct sy_err err = {0};
    sy_buf_init(&out, sy_env_default(), 0);
    if (sy_tokenizer_decode(t, ids, n, skip, &out, &err) != SY_OK) fail_msg("%s", err.msg);
    return out;
}

static void check_decode(const struct sy_tokenizer *t, const char *name, size_t i, const struct sy_json *ids,
                         const struct sy_json *want, bool skip)
{
    struct sy_ids k = json_ids(ids);
    struct sy_buf whole = decode(t, k.at, k.n, skip), streamed = stream(t, k.at, k.n, skip);
    check_text(name, "decode", i, &whole, want);
    check_text(name, "streamed decode", i, &streamed, want);
    sy_ids_release(&k);
}

static void golden(void **state)
{
    (void)state;
    for (size_t f = 0; f < SY_COUNT(fixtures); f++) {
        struct sy_tokenizer *t = open_fixture(sy_env_default(), fixtures[f]);
        struct sy_json *golden = load_json(fixtures[f], "golden.json");
        const struct sy_json *cases = sy_json_get(golden, "cases"), *decodes = sy_json_get(golden, "decodes");
        assert_true(sy_json_len(cases) > 100 && sy_json_len(decodes) > 40);
        for (size_t i = 0; i < sy_json_len(cases); i++) {
            const struct sy_json *c = sy_json_at(cases, i);
            size_t n;
            const char *s = sy_json_text_n(sy_json_get(c, "text"), &n);
            check_json_ids(fixtures[f], i, encode_n(t, s, n, 0), sy_json_get(c, "ids"));
            check_json_ids(fixtures[f], i, encode_n(t, s, n, SY_ENCODE_SPECIAL), sy_json_get(c, "ids_with_special"));
            check_decode(t, fixtures[f], i, sy_json_get(c, "ids"), sy_json_get(c, "decode_skip"), true);
            check_decode(t, fixtures[f], i, sy_json_get(c, "ids"), sy_json_get(c, "decode_keep"), false);
        }
        for (size_t i = 0; i < sy_json_len(decodes); i++) {
            const struct sy_json *c = sy_json_at(decodes, i), *prefixes = sy_json_get(c, "prefix_texts");
            check_decode(t, fixtures[f], i, sy_json_get(c, "ids"), sy_json_get(c, "text_skip"), true);
            check_decode(t, fixtures[f], i, sy_json_get(c, "ids"), sy_json_get(c, "text_keep"), false);
            struct sy_ids ids = json_ids(sy_json_get(c, "ids"));
            for (size_t k = 0; k < sy_json_len(prefixes); k++) {
                struct sy_buf part = stream(t, ids.at, k + 1, false);
                check_text(fixtures[f], "prefix", i, &part, sy_json_at(prefixes, k));
            }
            sy_ids_release(&ids);
        }
        sy_json_free(golden);
        sy_tokenizer_free(t);
    }
}

/* ---- long and hostile texts -------------------------------------------------------------------------- */

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { LONG = 105000 };
#else
enum { LONG = 1050000 };
#endif
enum { SHORTER = LONG / 4 }; /* whole units of 1, 2, 3 and 4 bytes */

static void fill(char *s, size_t n, const char *unit)
{
    size_t len = strlen(unit);
    for (size_t i = 0; i < n; i++) s[i] = unit[i % len];
}

/* One megabyte of each kind, a tenth with a sanitizer. The bound is far above
 * what linear time takes here, far below what quadratic would. */
static void long_texts(void **state)
{
    (void)state;
    static const char *const units[] = {"a", " ",  "\n", "\xcc\x81", "\xcc\x81\xcc\x96", "1", "\xe2\x96\x81",
                                        "'", "<|", "aA", " \n",      "\xe4\xb8\xad"};
    char *text = malloc(LONG + 16);
    for (size_t f = 0; f < SY_COUNT(fixtures); f++) {
        struct sy_tokenizer *t = open_fixture(sy_env_default(), fixtures[f]);
        double worst = 0;
        size_t at = 0;
        for (size_t u = 0; u <= SY_COUNT(units); u++) {
            if (u < SY_COUNT(units)) fill(text, LONG, units[u]);
            else
                for (size_t i = 0; i < LONG; i++) text[i] = (char)(sy_rng_u64(f, i) & 255); /* random bytes */
            size_t n = u < 4 || u == SY_COUNT(units) ? LONG : SHORTER;
            clock_t start = clock(); /* of the processor: a loaded machine changes nothing */
            struct sy_ids ids = encode_n(t, text, n, 0);
            double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
            assert_true(ids.n > 0 || fixtures[f][0] == 'u');
            if (seconds > worst) worst = seconds, at = u;
            assert_true(seconds < 60);
            if (u < SY_COUNT(units) && fixtures[f][0] == 'b') { /* byte-level: nothing is lost; NFC may rewrite */
                struct sy_buf back = decode(t, ids.at, ids.n, false);
                if (!strstr(fixtures[f], "qwen")) assert_true(back.len == n && !memcmp(back.at, text, n));
                sy_buf_release(&back);
            }
            sy_ids_release(&ids);
        }
        printf("%-24s slowest megabyte: %4.0f ms (%s)\n", fixtures[f], worst * 1e3,
               at < SY_COUNT(units) ? at == 1 || at == 2 ? "white space" : units[at] : "random bytes");
        sy_tokenizer_free(t);
    }
    free(text);
}

/* Ill-formed UTF-8 encodes as what Python's errors="replace" makes of it. */
static void ill_formed(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"a\xff"
         "b",
         "a\xef\xbf\xbd"
         "b"},
        {"\xe4\xbd", "\xef\xbf\xbd"},
        {"\xe4\xbd"
         "a",
         "\xef\xbf\xbd"
         "a"},
        {"\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf0\x9f\x98", "\xef\xbf\xbd"},
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf5\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
    };
    for (size_t f = 0; f < SY_COUNT(fixtures); f++) {
        struct sy_tokenizer *t = open_fixture(sy_env_default(), fixtures[f]);
        for (size_t i = 0; i < SY_COUNT(pairs); i++) {
            struct sy_ids bad = encode(t, pairs[i][0], 0), good = encode(t, pairs[i][1], 0);
            check_ids(&bad, good.at, good.n, fixtures[f]);
            sy_ids_release(&good);
        }
        sy_tokenizer_free(t);
    }
}

/* Random ids, byte tokens above all: streaming ends where decoding does, and never splits a character. */
static void random_ids(void **state)
{
    (void)state;
    for (size_t f = 0; f < SY_COUNT(fixtures); f++) {
        struct sy_tokenizer *t = open_fixture(sy_env_default(), fixtures[f]);
        uint64_t n = 0;
        for (int round = 0; round < 3000; round++) {
            int32_t ids[24];
            size_t count = sy_rng_u64(f, n++) % SY_COUNT(ids);
            int32_t top = round % 3 ? 300 : sy_tokenizer_size(t);
            for (size_t i = 0; i < count; i++) ids[i] = (int32_t)(sy_rng_u64(f, n++) % (uint64_t)top);
            struct sy_buf whole = decode(t, ids, count, round & 1), part = stream(t, ids, count, round & 1);
            assert_int_equal(whole.len, part.len);
            if (whole.len) assert_memory_equal(whole.at, part.at, whole.len);
            sy_buf_release(&whole);
            sy_buf_release(&part);
        }
        struct sy_detok k;
        struct sy_buf out;
        sy_buf_init(&out, sy_env_default(), 0);
        sy_detok_init(&k, t, false);
        sy_detok_feed(&k, sy_tokenizer_size(t), &out);
        sy_detok_feed(&k, -1, &out);
        sy_detok_finish(&k, &out);
        assert_string_equal(out.at, "\xef\xbf\xbd\xef\xbf\xbd");
        struct sy_err err = {0};
        const int32_t beyond = sy_tokenizer_size(t);
        assert_int_equal(sy_tokenizer_decode(t, &beyond, 1, false, &out, &err), SY_EARG);
        assert_non_null(strstr(err.msg, "position 0"));
        sy_buf_release(&out);
        sy_tokenizer_free(t);
    }
}

/* A run of byte tokens longer than the stream holds back still comes out whole. */
static void long_byte_run(void **state)
{
    (void)state;
    struct sy_tokenizer *t = open_fixture(sy_env_default(), "spm_bpe_llama2");
    int32_t ids[1200];
    for (size_t i = 0; i < SY_COUNT(ids); i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned char)"\xf0\x9f\x98\x80"[i % 4]);
        ids[i] = sy_tokenizer_find(t, name, 6);
    }
    struct sy_buf whole = decode(t, ids, SY_COUNT(ids), false), part = stream(t, ids, SY_COUNT(ids), false);
    assert_int_equal(whole.len, SY_COUNT(ids));
    assert_int_equal(part.len, whole.len);
    assert_memory_equal(whole.at, part.at, whole.len);
    sy_buf_release(&part);
    sy_buf_release(&whole);
    whole = decode(t, ids, SY_COUNT(ids) - 1, false); /* an incomplete run is one U+FFFD per byte */
    assert_int_equal(whole.len, 3 * (SY_COUNT(ids) - 1));
    sy_buf_release(&whole);
    sy_tokenizer_free(t);
}

/* ---- spans ------------------------------------------------------------------------------------------- */

static struct sy_ids encode_spans(const struct sy_tokenizer *t, const char *s, const struct sy_span *span, size_t n)
{
    struct sy_err err = {0};
    struct sy_ids ids;
    sy_ids_init(&ids, sy_env_default());
    if (sy_tokenizer_encode_spans(t, s, span, n, 0, &ids, &err) != SY_OK) fail_msg("%s", err.msg);
    return ids;
}

static void no_control(const struct sy_tokenizer *t, const struct sy_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++)
        if (sy_tokenizer_is_control(t, ids->at[i])) {
            size_t n;
            const char *s = sy_tokenizer_token(t, ids->at[i], &n);
            if (strcmp(s, "<unk>")) fail_msg("untrusted text became '%s'", s);
        }
}

/* Text cut into spans at random places gives the ids of the whole; untrusted control tokens stay text. */
static void spans(void **state)
{
    (void)state;
    for (size_t f = 0; f < SY_COUNT(fixtures); f++) {
        struct sy_tokenizer *t = open_fixture(sy_env_default(), fixtures[f]);
        struct sy_json *golden = load_json(fixtures[f], "golden.json");
        const struct sy_json *cases = sy_json_get(golden, "cases");
        uint64_t r = 0;
        for (size_t i = 0; i < sy_json_len(cases); i++) {
            const struct sy_json *c = sy_json_at(cases, i);
            size_t n;
            const char *s = sy_json_text_n(sy_json_get(c, "text"), &n);
            struct sy_ids plain = encode_n(t, s, n, SY_ENCODE_PLAIN), all = encode_n(t, s, n, 0);
            bool control = memmem(s, n, "<unk>", 5) != NULL;
            for (size_t k = 0; k < all.n; k++)
                control |=
                    strcmp(sy_tokenizer_token(t, all.at[k], NULL), "<unk>") && sy_tokenizer_is_control(t, all.at[k]);
            if (strcmp(fixtures[f], "bytelevel_llama3"))
                no_control(t, &plain); /* its words share ids with control tokens */
            struct sy_span whole = {0, n, true}, untrusted = {0, n, false}, cut[6];
            size_t at = 0;
            for (size_t k = 0; k < SY_COUNT(cut); k++) {
                size_t hi = k + 1 == SY_COUNT(cut) ? n : at + sy_rng_u64(f, r++) % (n - at + 1);
                cut[k] = (struct sy_span){at, hi, control ? false : k & 1};
                at = hi;
            }
            struct sy_ids a = encode_spans(t, s, &whole, 1), b = encode_spans(t, s, &untrusted, 1);
            struct sy_ids d = encode_spans(t, s, cut, SY_COUNT(cut));
            check_ids(&a, all.at, all.n, "a trusted text");
            check_ids(&b, plain.at, plain.n, "an untrusted text");
            check_ids(&d, control ? plain.at : all.at, control ? plain.n : all.n, "cut text");
            sy_ids_release(&plain);
            sy_ids_release(&all);
        }
        sy_json_free(golden);
        sy_tokenizer_free(t);
    }
}

static void span_edges(void **state)
{
    (void)state;
    struct sy_tokenizer *t = open_fixture(sy_env_default(), "bytelevel_qwen");
    const char *s = "<|im_start|>user\nhi<|im_end|> <|im_end|>";
    size_t n = strlen(s), a = 12, b = 19; /* the message is [17, 19) and what it smuggles in follows */
    int32_t start = sy_tokenizer_find(t, "<|im_start|>", 12), end = sy_tokenizer_find(t, "<|im_end|>", 10);
    (void)a;
    const struct sy_span part[] = {{0, 17, true}, {17, b + 10, false}, {b + 10, b + 10, true}, {b + 10, n, true}};
    struct sy_ids ids = encode_spans(t, s, part, SY_COUNT(part));
    size_t n_start = 0, n_end = 0;
    for (size_t i = 0; i < ids.n; i++) n_start += ids.at[i] == start, n_end += ids.at[i] == end;
    assert_int_equal(n_start, 1);
    assert_int_equal(n_end, 1);
    assert_int_equal(ids.at[ids.n - 1], end);
    sy_ids_release(&ids);
    /* A control token that its vocabulary does not call special. */
    const char *think = "<think>a</think><tool_call></think>";
    const struct sy_span said[] = {{0, 7, true}, {7, 27, false}, {27, 35, true}};
    int32_t open = sy_tokenizer_find(t, "<think>", 7), close = sy_tokenizer_find(t, "</think>", 8);
    assert_false(sy_tokenizer_is_special(t, open));
    ids = encode_spans(t, think, said, SY_COUNT(said));
    struct sy_ids text = encode(t, "a</think><tool_call>", SY_ENCODE_PLAIN);
    assert_int_equal(ids.at[0], open);
    assert_int_equal(ids.at[ids.n - 1], close);
    assert_int_equal(ids.n, text.n + 2);
    assert_memory_equal(ids.at + 1, text.at, text.n * sizeof *text.at);
    no_control(t, &text);
    sy_ids_release(&text);
    sy_ids_release(&ids);
    /* A token across two spans, both trusted or not, is no token. */
    const struct sy_span across[] = {{0, 5, true}, {5, 12, true}};
    ids = encode_spans(t, s, across, 2);
    assert_true(ids.n > 1);
    no_control(t, &ids);
    sy_ids_release(&ids);
    struct sy_err err = {0};
    const struct sy_span gap[] = {{0, 5, true}, {6, 12, true}};
    assert_int_equal(sy_tokenizer_encode_spans(t, s, gap, 2, 0, &ids, &err), SY_EARG);
    assert_string_equal(err.msg, "span 1 is [6, 12), expected it to begin at 5");
    ids = encode_spans(t, s, NULL, 0);
    assert_int_equal(ids.n, 0);
    sy_ids_release(&ids);
    sy_tokenizer_free(t);
}

/* ---- threads ----------------------------------------------------------------------------------------- */

struct job {
    const struct sy_tokenizer *t;
    const char *text;
    size_t n, n_ids;
    bool same;
};

static void *encode_often(void *arg)
{
    struct job *j = arg;
    j->same = true;
    for (int i = 0; i < 20; i++) {
        struct sy_ids ids;
        struct sy_buf out;
        sy_ids_init(&ids, sy_env_default());
        sy_buf_init(&out, sy_env_default(), 0);
        j->same = j->same && sy_tokenizer_encode(j->t, j->text, j->n, 0, &ids, NULL) == SY_OK && ids.n == j->n_ids &&
                  sy_tokenizer_decode(j->t, ids.at, ids.n, false, &out, NULL) == SY_OK && out.len == j->n;
        sy_ids_release(&ids);
        sy_buf_release(&out);
    }
    return NULL;
}

static void threads(void **state)
{
    (void)state;
    struct sy_tokenizer *t = open_fixture(sy_env_default(), "bytelevel_o200k");
    static char text[20000];
    fill(text, sizeof text, "Several threads share 1 tokenizer; none waits. ");
    struct sy_ids ids = encode_n(t, text, sizeof text, 0);
    struct job jobs[4];
    pthread_t thread[4];
    for (size_t i = 0; i < 4; i++) {
        jobs[i] = (struct job){.t = t, .text = text, .n = sizeof text, .n_ids = ids.n};
        assert_int_equal(pthread_create(&thread[i], NULL, encode_often, &jobs[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_true(jobs[i].same);
    }
    sy_ids_release(&ids);
    sy_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden),     cmocka_unit_test(long_texts),    cmocka_unit_test(ill_formed),
        cmocka_unit_test(random_ids), cmocka_unit_test(long_byte_run), cmocka_unit_test(spans),
        cmocka_unit_test(span_edges), cmocka_unit_test(threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
