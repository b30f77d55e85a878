/* Every fixture of test/golden/tokenizers: ids and texts as Hugging Face's tokenizers gives them, whole and streamed;
 * long and hostile texts in linear time. */
#include "text_tokenizer_util.h"

#include "base/rng.h"
#include "base/utf8.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
