/* Server-sent events cut at every place, and what a completion's chunks say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/rng.h"
#include "bench/sse.h"

struct heard {
    char text[4096];
    int n, fail_at;
};

static sy_status on_data(void *ctx, const char *data, size_t n, struct sy_err *err)
{
    struct heard *h = ctx;
    size_t at = strlen(h->text);
    assert_true(at + n + 2 < sizeof h->text);
    h->text[at] = '[';
    memcpy(h->text + at + 1, data, n);
    memcpy(h->text + at + 1 + n, "]", 2);
    h->n++;
    return h->n == h->fail_at ? sy_fail(err, SY_EFORMAT, "as asked") : SY_OK;
}

static void feed(struct sy_sse *s, const char *text, size_t n, struct heard *h)
{
    struct sy_err err;
    if (sy_sse_feed(s, text, n, on_data, h, &err)) fail_msg("%s", err.msg);
}

/* Whole, cut in two at every place, cut in three at every pair of places, and byte by byte. */
static void hears(const char *stream, size_t n, const char *want)
{
    struct sy_sse s;
    sy_sse_init(&s, sy_env_default());
    for (size_t a = 0; a <= n; a++)
        for (size_t b = a; b <= n; b++) {
            struct heard h = {0};
            sy_sse_clear(&s);
            feed(&s, stream, a, &h);
            feed(&s, stream + a, b - a, &h);
            feed(&s, stream + b, n - b, &h);
            if (strcmp(h.text, want)) fail_msg("cut at %zu and %zu: %s instead of %s", a, b, h.text, want);
        }
    struct heard h = {0};
    sy_sse_clear(&s);
    for (size_t i = 0; i < n; i++) feed(&s, stream + i, 1, &h);
    assert_string_equal(h.text, want);
    sy_sse_release(&s);
}
#define HEARS(stream, want) hears(stream, sizeof(stream) - 1, want)

static void events(void **state)
{
    (void)state;
    HEARS("data: one\n\ndata:two\n\ndata:  three\n\n", "[one][two][ three]");
    HEARS("data: one\r\n\r\ndata: two\r\n\r\n", "[one][two]");
    HEARS("data: one\r\rdata: two\r\r", "[one][two]");
    HEARS("data: one\r\n\ndata: two\n\r\ndata: 3\n\r", "[one][two][3]");
    HEARS("data: a\ndata: b\ndata\ndata:\n\n", "[a\nb\n\n]");
    HEARS(": comment\nevent: x\nid: 1\nretry: 5\ndata: y\n\n", "[y]");
    HEARS("\n\n\r\r\n", "");
    HEARS("event: only\n\n", "");
    HEARS("data\n\n", "[]");
    HEARS("dataset: no\n\ndat: no\n\ndata : no\n\n", "");
    HEARS("\xef\xbb\xbf"
          "data: bom\n\n\xef\xbb\xbf"
          "data: not\n\n",
          "[bom]");
    HEARS("data: not ended\n", "");
    HEARS("data: {\"a\":\"\xc3\xa4\"}\n\n", "[{\"a\":\"\xc3\xa4\"}]");
}

static void failure_stops(void **state)
{
    (void)state;
    struct sy_sse s;
    struct heard h = {.fail_at = 2};
    struct sy_err err;
    const char stream[] = "data: 1\n\ndata: 2\n\ndata: 3\n\n";
    sy_sse_init(&s, sy_env_default());
    assert_int_equal(sy_sse_feed(&s, stream, sizeof stream - 1, on_data, &h, &err), SY_EFORMAT);
    assert_string_equal(err.msg, "as asked");
    assert_int_equal(h.n, 2);
    sy_sse_release(&s);
}

static void too_long(void **state)
{
    (void)state;
    enum { PIECE = 64 << 10 };
    static char piece[PIECE];
    struct sy_sse s;
    struct heard h = {0};
    struct sy_err err;
    for (int many_lines = 0; many_lines < 2; many_lines++) {
        memset(piece, 'x', sizeof piece);
        if (many_lines)
            for (size_t i = 0; i + 7 < sizeof piece; i += 64) memcpy(piece + i, "\ndata: ", 7);
        sy_sse_init(&s, sy_env_default());
        sy_status st = sy_sse_feed(&s, "data: ", 6, on_data, &h, &err);
        for (int i = 0; i < 2 * SY_SSE_EVENT_MAX / PIECE && !st; i++)
            st = sy_sse_feed(&s, piece, sizeof piece, on_data, &h, &err);
        assert_int_equal(st, SY_EFORMAT);
        assert_non_null(strstr(err.msg, "longer than 4 MiB"));
        sy_sse_release(&s);
    }
    assert_int_equal(h.n, 0);
}

/* ---- chunks -------------------------------------------------------------------------------------------------- */

static struct sy_chunk read(const char *text)
{
    struct sy_chunk c;
    struct sy_err err;
    if (sy_chunk_read(sy_env_default(), text, strlen(text), &c, &err)) fail_msg("%s", err.msg);
    return c;
}

static void completions(void **state)
{
    (void)state;
    struct sy_chunk c = read("{\"choices\":[{\"text\":\" hi\",\"finish_reason\":null}],\"usage\":null}");
    assert_true(c.has_token && !c.done && !c.finish && !c.error);
    assert_string_equal(c.text, " hi");
    assert_int_equal(c.n_prompt, -1);
    sy_chunk_release(&c);

    c = read("{\"choices\":[{\"text\":\"\"}]}"); /* half a character */
    assert_true(c.has_token);
    sy_chunk_release(&c);

    c = read("{\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}");
    assert_true(!c.has_token);
    assert_string_equal(c.finish, "length");
    sy_chunk_release(&c);

    c = read("{\"choices\":[{\"text\":\"x\",\"token_ids\":[5,6],\"finish_reason\":\"length\"}],"
             "\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9}}");
    assert_true(c.has_token && sy_json_len(c.ids) == 2);
    assert_int_equal(c.n_prompt, 7);
    assert_int_equal(c.n_output, 9);
    sy_chunk_release(&c);

    c = read("{\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}");
    assert_true(!c.has_token && c.n_prompt == 3 && c.n_output == 4);
    sy_chunk_release(&c);

    c = read("[DONE]");
    assert_true(c.done && !c.has_token);
    sy_chunk_release(&c);
}

static void chats(void **state)
{
    (void)state;
    struct sy_chunk c =
        read("{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}");
    assert_true(!c.has_token);
    sy_chunk_release(&c);
    c = read("{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}");
    assert_true(!c.has_token && !c.text);
    sy_chunk_release(&c);
    c = read("{\"choices\":[{\"delta\":{\"content\":\"yes\"}}]}");
    assert_true(c.has_token && c.n_text == 3);
    sy_chunk_release(&c);
    c = read("{\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}");
    assert_true(c.has_token && c.n_text == 2);
    sy_chunk_release(&c);
    c = read("{\"choices\":[{\"delta\":{\"reasoning\":\"hmm\",\"content\":null}}]}");
    assert_true(c.has_token && c.n_text == 3);
    sy_chunk_release(&c);
    c = read("{\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}");
    assert_true(!c.has_token && !strcmp(c.finish, "stop"));
    sy_chunk_release(&c);
}

static void odd_chunks(void **state)
{
    (void)state;
    struct sy_chunk c = read("{\"error\":{\"message\":\"too busy\",\"code\":503}}");
    assert_string_equal(c.error, "too busy");
    sy_chunk_release(&c);
    c = read("{\"error\":\"plain\"}");
    assert_string_equal(c.error, "plain");
    sy_chunk_release(&c);
    c = read("{\"error\":{}}");
    assert_string_equal(c.error, "unknown error");
    sy_chunk_release(&c);
    c = read("{\"error\":null,\"choices\":7,\"usage\":{\"prompt_tokens\":-4,\"completion_tokens\":1e99}}");
    assert_true(!c.error && !c.has_token && c.n_prompt == -1 && c.n_output == -1);
    sy_chunk_release(&c);

    static const char *const bad[] = {"", "[1]", "7", "{", "nonsense", "[DONE", "{\"a\":1}x"};
    for (size_t i = 0; i < SY_COUNT(bad); i++) {
        struct sy_err err;
        assert_int_equal(sy_chunk_read(sy_env_default(), bad[i], strlen(bad[i]), &c, &err), SY_EFORMAT);
        assert_true(strlen(err.msg) > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events),      cmocka_unit_test(failure_stops), cmocka_unit_test(too_long),
        cmocka_unit_test(completions), cmocka_unit_test(chats),         cmocka_unit_test(odd_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
