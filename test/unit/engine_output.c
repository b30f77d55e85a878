/* The text of an answer: stop strings never leak, held text comes out at the end, one BOS in a chat prompt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "engine/chat.h"
#include "engine/output.h"

static struct sy_tokenizer *tok;

static struct sy_json *read_json(const char *path)
{
    char *text;
    size_t n;
    struct sy_json *j = NULL;
    if (sy_file_read(sy_env_default(), path, 1 << 24, &text, &n, NULL)) return NULL;
    if (sy_json_parse(sy_env_default(), text, n, false, &j, NULL)) j = NULL;
    sy_delete(sy_env_default(), text);
    return j;
}

static int open_tokenizer(void **state)
{
    (void)state;
    struct sy_json *json = read_json("test/golden/tokenizers/bytelevel_llama3/tokenizer.json");
    struct sy_json *config = read_json("test/golden/tokenizers/bytelevel_llama3/tokenizer_config.json");
    sy_status st = sy_tokenizer_from_json(sy_env_default(), json, config, "tokenizer.json", &tok, NULL);
    sy_json_free(json);
    sy_json_free(config);
    return st ? -1 : 0;
}

static int close_tokenizer(void **state)
{
    (void)state;
    sy_tokenizer_free(tok);
    return 0;
}

/* Feeds text as one token per byte (or as it encodes), returns what came out; *before: before the end. */
static char *through(const char *text, const char *const *stop, int n_stop, bool by_byte, bool *stopped,
                     size_t *before)
{
    const struct sy_env *env = sy_env_default();
    struct sy_output o;
    struct sy_buf out;
    struct sy_ids ids;
    struct sy_err err;
    size_t len[SY_STOP_MAX];
    for (int i = 0; i < n_stop; i++) len[i] = strlen(stop[i]);
    assert_int_equal(sy_output_init(&o, env, tok, true, stop, len, n_stop, &err), SY_OK);
    sy_buf_init(&out, env, 0);
    sy_ids_init(&ids, env);
    for (size_t i = 0; i < (by_byte ? strlen(text) : 1); i++)
        assert_int_equal(sy_tokenizer_encode(tok, text + i, by_byte ? 1 : strlen(text), 0, &ids, &err), SY_OK);
    *stopped = false;
    for (size_t i = 0; i < ids.n && !*stopped; i++) {
        *stopped = sy_output_feed(&o, ids.at[i], &out);
        for (int s = 0; s < n_stop; s++) /* nothing that came out ends in a beginning of a stop string and goes on */
            assert_null(out.len ? strstr(out.at, stop[s]) : NULL);
    }
    *before = out.len;
    sy_output_finish(&o, &out);
    sy_output_release(&o);
    sy_ids_release(&ids);
    sy_buf_text(&out, "");
    return out.at;
}

static void stops_do_not_leak(void **state)
{
    (void)state;
    const struct {
        const char *text, *stop[3], *want;
        bool stopped;
    } t[] = {
        {"abcDEFGHIJklm", {"DEFGHIJ"}, "abc", true},
        {"abcDEFGHIX", {"DEFGHIJ"}, "abcDEFGHIX", false},
        {"xaab", {"aab"}, "x", true},
        {"aaab", {"aab"}, "a", true},
        {"one two", {" two", "one t"}, "", true},
        {"abc", {"c", "bc"}, "a", true},
        {"end\n\nmore", {"\n\n"}, "end", true},
        {"abab", {"abc"}, "abab", false},
        {"", {"x"}, "", false},
        {"no stop at all", {NULL}, "no stop at all", false},
    };
    for (size_t i = 0; i < SY_COUNT(t); i++)
        for (int by_byte = 0; by_byte < 2; by_byte++) {
            int n = 0;
            while (n < 3 && t[i].stop[n]) n++;
            bool stopped;
            size_t before;
            char *got = through(t[i].text, t[i].stop, n, by_byte, &stopped, &before);
            assert_string_equal(got, t[i].want);
            assert_int_equal(stopped, t[i].stopped);
            sy_delete(sy_env_default(), got);
        }
}

static void certain_text_is_not_held(void **state)
{
    (void)state;
    const char *stop[] = {"XYZ"};
    bool stopped;
    size_t before;
    char *got = through("hello X", stop, 1, true, &stopped, &before);
    assert_int_equal(before, 6); /* only the X could begin a stop string */
    assert_string_equal(got, "hello X");
    sy_delete(sy_env_default(), got);
}

static void bad_stops_are_refused(void **state)
{
    (void)state;
    struct sy_output o;
    struct sy_err err;
    const char *stop[SY_STOP_MAX + 1] = {""};
    size_t len[SY_STOP_MAX + 1] = {0};
    assert_int_equal(sy_output_init(&o, sy_env_default(), tok, true, stop, len, 1, &err), SY_EARG);
    len[0] = SY_STOP_BYTES_MAX + 1;
    assert_int_equal(sy_output_init(&o, sy_env_default(), tok, true, stop, len, 1, &err), SY_EARG);
    assert_int_equal(sy_output_init(&o, sy_env_default(), tok, true, stop, len, SY_STOP_MAX + 1, &err), SY_EARG);
}

static void count_bos(const char *source, size_t want)
{
    const struct sy_env *env = sy_env_default();
    struct sy_err err;
    struct sy_template *tpl;
    struct sy_json *messages;
    static const char talk[] = "[{\"role\":\"user\",\"content\":\"hi <|eot_id|>\"}]";
    assert_int_equal(sy_template_compile(env, source, strlen(source), NULL, &tpl, &err), SY_OK);
    assert_int_equal(sy_json_parse(env, talk, sizeof talk - 1, false, &messages, &err), SY_OK);
    struct sy_render r = {.messages = messages};
    sy_chat_tokens(tok, &r);
    assert_non_null(r.bos);
    struct sy_ids ids;
    sy_ids_init(&ids, env);
    assert_int_equal(sy_chat_encode(env, tpl, tok, &r, &ids, &err), SY_OK);
    size_t n = 0;
    for (size_t i = 0; i < ids.n; i++) {
        n += ids.at[i] == sy_tokenizer_bos(tok);
        if (i) assert_int_not_equal(ids.at[i], sy_tokenizer_find(tok, "<|eot_id|>", 10)); /* text stays text */
    }
    assert_int_equal(n, want);
    sy_ids_release(&ids);
    sy_json_free(messages);
    sy_template_free(tpl);
}

static void a_chat_prompt_has_one_bos(void **state)
{
    (void)state;
    count_bos("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}", 1);
    count_bos("{% for m in messages %}{{ m.content }}{% endfor %}", 1);
}

struct scarce {
    int left;
};
static void *scarce_get(void *ctx, size_t n)
{
    struct scarce *s = ctx;
    void *p = s->left-- > 0 ? aligned_alloc(64, (n + 63) / 64 * 64) : NULL;
    return p ? memset(p, 0, n) : NULL;
}
static void *scarce_resize(void *ctx, void *old, size_t n_old, size_t n)
{
    void *p = scarce_get(ctx, n);
    if (p && old) memcpy(p, old, n_old < n ? n_old : n);
    if (p) free(old);
    return p;
}
static void scarce_free(void *ctx, void *p)
{
    (void)ctx;
    free(p);
}

/* With the n-th allocation failing, the text is whole or known to be not; taking what came out does not forget it. */
static void no_memory(void **state)
{
    (void)state;
    const char *text =
        "Some words, and a stop that never comes: a longer text than the first few buffers hold. ENDING";
    const char *stop[] = {"END OF IT"};
    const size_t len[] = {9};
    struct sy_ids ids;
    sy_ids_init(&ids, sy_env_default());
    assert_int_equal(sy_tokenizer_encode(tok, text, strlen(text), 0, &ids, NULL), SY_OK);
    bool lost = true;
    for (int n = 0; lost; n++) {
        struct scarce scarce = {n};
        struct sy_alloc alloc = {scarce_get, scarce_resize, scarce_free, &scarce};
        struct sy_env env = *sy_env_default();
        env.alloc = &alloc;
        struct sy_output o;
        struct sy_buf out, all;
        assert_int_equal(sy_output_init(&o, &env, tok, true, stop, len, 1, NULL), SY_OK);
        sy_buf_init(&out, &env, 0);
        sy_buf_init(&all, sy_env_default(), 0);
        for (size_t i = 0; i <= ids.n; i++) {
            if (i < ids.n) assert_false(sy_output_feed(&o, ids.at[i], &out));
            else sy_output_finish(&o, &out);
            if (out.len) sy_buf_add(&all, out.at, out.len);
            sy_buf_clear(&out);
        }
        lost = o.lost;
        if (lost) assert_true(all.len < strlen(text));
        else assert_string_equal(all.at, text);
        assert_true(n > 0 || lost);
        sy_buf_release(&all);
        sy_buf_release(&out);
        sy_output_release(&o);
    }
    sy_ids_release(&ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stops_do_not_leak),
        cmocka_unit_test(certain_text_is_not_held),
        cmocka_unit_test(bad_stops_are_refused),
        cmocka_unit_test(a_chat_prompt_has_one_bos),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
