/* Request bodies: what is read, what is refused, with which status and which field named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "serve/request.h"

enum { OK = 0 };
static const char *const names[] = {"tiny", "/models/tiny.gguf"};

static struct sy_ask_limits limits(void)
{
    return (struct sy_ask_limits){.n_vocab = 320,
                                  .ctx_len = 128,
                                  .d_model = 64,
                                  .choices_max = 8,
                                  .has_tokenizer = true,
                                  .has_template = true,
                                  .model = names,
                                  .n_model = 2,
                                  .defaults = {.temperature = 1, .top_p = 1, .typical_p = 1, .repeat_penalty = 1}};
}

struct row {
    enum sy_api api;
    const char *body;
    int status; /* 0: accepted */
    const char *param, *code;
};
#define USER       "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
#define CHAT(more) SY_API_CHAT, "{" USER more "}"
#define COMP(more) SY_API_COMPLETION, "{\"prompt\":\"a\"" more "}"
#define MSG(list)  SY_API_CHAT, "{\"messages\":" list "}"
#define CALL(id, fn)                                                                                                 \
    MSG("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{"          \
        "\"id\":" id ",\"type\":\"function\",\"function\":" fn "}]}]")

/* clang-format off */
static const struct row rows[] = {
    /* A18: bodies */
    {SY_API_CHAT, "", 400, "", "invalid_json"},
    {SY_API_CHAT, " \n\t", 400, "", "invalid_json"},
    {SY_API_CHAT, "{:", 400, "", "invalid_json"},
    {SY_API_CHAT, "[]", 400, "", "invalid_json"},
    {SY_API_CHAT, "null", 400, "", "invalid_json"},
    {SY_API_CHAT, "\xef\xbb\xbf{}", 400, "", "invalid_json"},
    {SY_API_CHAT, "{\"a\":\"\xd6\xd0\"}", 400, "", "invalid_json"},
    {SY_API_CHAT, "{\"a\":\"\\ud83d\"}", 400, "", "invalid_json"},
    {SY_API_CHAT, "{\"a\":\"\\udc00\\ud83d\"}", 400, "", "invalid_json"},
    {SY_API_CHAT, "{\"a\":1,\"a\":2}", 400, "", "invalid_json"},
    {SY_API_CHAT, "{\"a\":1e400}", 400, "", "invalid_json"},
    {SY_API_CHAT, "{\"a\":NaN}", 400, "", "invalid_json"},
    {SY_API_CHAT, "{\"a\":1}{", 400, "", "invalid_json"},
    {SY_API_CHAT, "{}", 400, "messages", NULL},
    {CHAT(",\"\\u0000\":1"), 400, "", "invalid_json"},
    /* what is left out, and null for it */
    {CHAT(""), OK, NULL, NULL},
    {CHAT(",\"seed\":null,\"model\":null"), OK, NULL, NULL},
    {CHAT(",\"temperature\":null,\"n\":null,\"stop\":null,\"tools\":null"), OK, NULL, NULL},
    {CHAT(",\"model\":\"tiny\""), OK, NULL, NULL},
    {CHAT(",\"model\":\"/models/tiny.gguf\""), OK, NULL, NULL},
    {CHAT(",\"model\":\"gpt-4\""), 404, "model", "model_not_found"},
    {CHAT(",\"model\":7"), 400, "model", NULL},
    /* A12: numbers */
    {CHAT(",\"temperature\":-1"), 400, "temperature", NULL},
    {CHAT(",\"temperature\":2.0001"), 400, "temperature", NULL},
    {CHAT(",\"temperature\":1e300"), 400, "temperature", NULL},
    {CHAT(",\"temperature\":\"0\""), 400, "temperature", NULL},
    {CHAT(",\"temperature\":true"), 400, "temperature", NULL},
    {CHAT(",\"temperature\":1e-9"), OK, NULL, NULL},
    {CHAT(",\"temperature\":2"), OK, NULL, NULL},
    {CHAT(",\"top_p\":0"), 400, "top_p", NULL},
    {CHAT(",\"top_p\":-0.1"), 400, "top_p", NULL},
    {CHAT(",\"top_p\":1.1"), 400, "top_p", NULL},
    {CHAT(",\"top_p\":1"), OK, NULL, NULL},
    {CHAT(",\"min_p\":2"), 400, "min_p", NULL},
    {CHAT(",\"top_k\":-2"), 400, "top_k", NULL},
    {CHAT(",\"top_k\":-1"), OK, NULL, NULL},
    {CHAT(",\"presence_penalty\":3"), 400, "presence_penalty", NULL},
    {CHAT(",\"frequency_penalty\":-3"), 400, "frequency_penalty", NULL},
    {CHAT(",\"repetition_penalty\":0"), 400, "repetition_penalty", NULL},
    {CHAT(",\"n\":0"), 400, "n", NULL},
    {CHAT(",\"n\":9"), 400, "n", NULL},
    {CHAT(",\"n\":8"), OK, NULL, NULL},
    {CHAT(",\"n\":9223372036854775807"), 400, "n", NULL},
    {CHAT(",\"max_tokens\":0"), 400, "max_tokens", NULL},
    {CHAT(",\"max_tokens\":1.5"), 400, "max_tokens", NULL},
    {CHAT(",\"max_tokens\":4.0"), OK, NULL, NULL},
    {CHAT(",\"max_completion_tokens\":0"), 400, "max_completion_tokens", NULL},
    {CHAT(",\"min_tokens\":5,\"max_tokens\":4"), 400, "min_tokens", NULL},
    {CHAT(",\"seed\":-9223372036854775808"), OK, NULL, NULL},
    {CHAT(",\"seed\":\"1\""), 400, "seed", NULL},
    /* A10: log probabilities */
    {CHAT(",\"top_logprobs\":2"), 400, "top_logprobs", NULL},
    {CHAT(",\"logprobs\":true,\"top_logprobs\":0"), OK, NULL, NULL},
    {CHAT(",\"logprobs\":true,\"top_logprobs\":20"), OK, NULL, NULL},
    {CHAT(",\"logprobs\":true,\"top_logprobs\":21"), 400, "top_logprobs", NULL},
    {CHAT(",\"logprobs\":true,\"top_logprobs\":1000000000"), 400, "top_logprobs", NULL},
    {CHAT(",\"logprobs\":true,\"top_logprobs\":-1"), 400, "top_logprobs", NULL},
    {CHAT(",\"logprobs\":1"), 400, "logprobs", NULL},
    {COMP(",\"logprobs\":20"), OK, NULL, NULL},
    {COMP(",\"logprobs\":21"), 400, "logprobs", NULL},
    {COMP(",\"logprobs\":false"), OK, NULL, NULL},
    {COMP(",\"logprobs\":true"), 400, "logprobs", NULL},
    /* A16: stop strings */
    {CHAT(",\"stop\":\"x\""), OK, NULL, NULL},
    {CHAT(",\"stop\":[\"a\",\"b\",\"c\",\"d\"]"), OK, NULL, NULL},
    {CHAT(",\"stop\":[]"), OK, NULL, NULL},
    {CHAT(",\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]"), 400, "stop", NULL},
    {CHAT(",\"stop\":\"\""), 400, "stop", NULL},
    {CHAT(",\"stop\":[\"a\",\"\"]"), 400, "stop", NULL},
    {CHAT(",\"stop\":7"), 400, "stop", NULL},
    {CHAT(",\"stop_token_ids\":[1,319]"), OK, NULL, NULL},
    {CHAT(",\"stop_token_ids\":[320]"), 400, "stop_token_ids[0]", NULL},
    {CHAT(",\"logit_bias\":{\"5\":-100,\"6\":100}"), OK, NULL, NULL},
    {CHAT(",\"logit_bias\":{\"320\":1}"), 400, "logit_bias", NULL},
    {CHAT(",\"logit_bias\":{\"-1\":1}"), 400, "logit_bias", NULL},
    {CHAT(",\"logit_bias\":{\"99999999999\":1}"), 400, "logit_bias", NULL},
    {CHAT(",\"logit_bias\":{\"5\":101}"), 400, "logit_bias", NULL},
    {CHAT(",\"logit_bias\":{\"5\":\"1\"}"), 400, "logit_bias", NULL},
    /* streaming */
    {CHAT(",\"stream\":true,\"stream_options\":{\"include_usage\":true}"), OK, NULL, NULL},
    {CHAT(",\"stream_options\":{\"include_usage\":true}"), 400, "stream_options", NULL},
    {CHAT(",\"stream\":true,\"stream_options\":{\"include_usage\":1}"), 400, "stream_options.include_usage", NULL},
    {CHAT(",\"stream\":\"true\""), 400, "stream", NULL},
    /* what comes later is refused, not ignored; what asks for nothing is accepted */
    {CHAT(",\"tools\":[{\"type\":\"function\"}]"), 400, "tools", NULL},
    {CHAT(",\"tools\":[{\"type\":\"function\"}],\"tool_choice\":\"auto\""), 400, "tools", NULL},
    {CHAT(",\"tools\":[{\"type\":\"function\"}],\"tool_choice\":\"none\""), OK, NULL, NULL},
    {CHAT(",\"tools\":[],\"tool_choice\":\"auto\""), OK, NULL, NULL},
    {CHAT(",\"tool_choice\":\"required\""), 400, "tool_choice", NULL},
    {CHAT(",\"tool_choice\":{\"type\":\"function\"}"), 400, "tool_choice", NULL},
    {CHAT(",\"response_format\":{\"type\":\"text\"}"), OK, NULL, NULL},
    {CHAT(",\"response_format\":{\"type\":\"json_object\"}"), 400, "response_format", NULL},
    {CHAT(",\"response_format\":{\"type\":\"json_schema\"}"), 400, "response_format", NULL},
    {CHAT(",\"response_format\":{}"), 400, "response_format", NULL},
    {CHAT(",\"guided_regex\":\"^+[a-z]$\""), 400, "guided_regex", NULL},
    {CHAT(",\"audio\":{}"), 400, "audio", NULL},
    {CHAT(",\"use_beam_search\":true"), 400, "use_beam_search", NULL},
    {CHAT(",\"use_beam_search\":false"), OK, NULL, NULL},
    {CHAT(",\"user\":\"me\",\"store\":true,\"metadata\":{},\"service_tier\":\"auto\""), OK, NULL, NULL},
    {COMP(",\"suffix\":\"x\""), 400, "suffix", NULL},
    {COMP(",\"best_of\":2"), 400, "best_of", NULL},
    {COMP(",\"best_of\":1"), OK, NULL, NULL},
    /* prompts */
    {SY_API_COMPLETION, "{\"prompt\":\"\"}", OK, NULL, NULL},
    {SY_API_COMPLETION, "{\"prompt\":[\"a\",\"b\"]}", OK, NULL, NULL},
    {SY_API_COMPLETION, "{\"prompt\":[1,2,3]}", OK, NULL, NULL},
    {SY_API_COMPLETION, "{\"prompt\":[[1],[2,3]]}", OK, NULL, NULL},
    {SY_API_COMPLETION, "{\"prompt\":[[1],\"a\"]}", OK, NULL, NULL},
    {SY_API_COMPLETION, "{}", 400, "prompt", NULL},
    {SY_API_COMPLETION, "{\"prompt\":null}", 400, "prompt", NULL},
    {SY_API_COMPLETION, "{\"prompt\":7}", 400, "prompt", NULL},
    {SY_API_COMPLETION, "{\"prompt\":[]}", 400, "prompt", NULL},
    {SY_API_COMPLETION, "{\"prompt\":[[]]}", 400, "prompt[0]", NULL},
    {SY_API_COMPLETION, "{\"prompt\":[\"a\",5]}", 400, "prompt[1]", NULL},
    {SY_API_COMPLETION, "{\"prompt\":[320]}", 400, "prompt[0]", NULL},
    {SY_API_COMPLETION, "{\"prompt\":[0,-1]}", 400, "prompt[1]", NULL},
    {SY_API_COMPLETION, "{\"prompt\":[0,1.5]}", 400, "prompt[1]", NULL},
    {SY_API_COMPLETION, "{\"prompt\":[[0],[320]]}", 400, "prompt[1][0]", NULL},
    {COMP(",\"max_tokens\":0,\"echo\":true,\"logprobs\":5"), OK, NULL, NULL},
    {COMP(",\"deadline_ms\":0"), 400, "deadline_ms", NULL},
    {COMP(",\"cache_salt\":\"\""), 400, "cache_salt", NULL},
    /* T08: conversations */
    {MSG("[]"), 400, "messages", NULL},
    {MSG("{}"), 400, "messages", NULL},
    {MSG("[7]"), 400, "messages[0]", NULL},
    {MSG("[{\"content\":\"a\"}]"), 400, "messages[0].role", NULL},
    {MSG("[{\"role\":\"robot\",\"content\":\"a\"}]"), 400, "messages[0].role", NULL},
    {MSG("[{\"role\":\"user\"}]"), 400, "messages[0].content", NULL},
    {MSG("[{\"role\":\"user\",\"content\":null}]"), 400, "messages[0].content", NULL},
    {MSG("[{\"role\":\"user\",\"content\":[]}]"), 400, "messages[0].content", NULL},
    {MSG("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]"), OK, NULL, NULL},
    {MSG("[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]"), 400, "messages[0].content[0]", NULL},
    {MSG("[{\"role\":\"user\",\"content\":[\"a\"]}]"), 400, "messages[0].content[0]", NULL},
    {MSG("[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]"), 400, "messages[0].content[0]", NULL},
    {CALL("\"c\"", "{\"name\":\"f\",\"arguments\":\"{}\"}"), OK, NULL, NULL},
    {CALL("\"c\"", "{\"name\":\"f\",\"arguments\":\"not json\"}"), OK, NULL, NULL},
    {CALL("\"c\"", "{\"name\":\"f\",\"arguments\":{}}"), 400, "messages[1].tool_calls[0].function.arguments", NULL},
    {CALL("\"c\"", "{\"name\":\"f\"}"), 400, "messages[1].tool_calls[0].function.arguments", NULL},
    {CALL("\"c\"", "{\"arguments\":\"{}\"}"), 400, "messages[1].tool_calls[0].function.name", NULL},
    {CALL("\"c\"", "7"), 400, "messages[1].tool_calls[0].function", NULL},
    {CALL("null", "{\"name\":\"f\",\"arguments\":\"{}\"}"), 400, "messages[1].tool_calls[0].id", NULL},
    {CALL("\"\"", "{\"name\":\"f\",\"arguments\":\"{}\"}"), 400, "messages[1].tool_calls[0].id", NULL},
    {MSG("[{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"x\"}]"), 400, "messages[0].tool_call_id", NULL},
    {MSG("[{\"role\":\"tool\",\"tool_call_id\":null,\"content\":\"x\"}]"), 400, "messages[0].tool_call_id", NULL},
    {MSG("[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":{}}]"), 400, "messages[0].tool_calls", NULL},
    /* the others */
    {SY_API_EMBEDDING, "{\"input\":\"a\"}", OK, NULL, NULL},
    {SY_API_EMBEDDING, "{\"input\":\"\"}", 400, "input", NULL},
    {SY_API_EMBEDDING, "{\"input\":\"a\",\"dimensions\":65}", 400, "dimensions", NULL},
    {SY_API_EMBEDDING, "{\"input\":\"a\",\"dimensions\":64,\"encoding_format\":\"base64\"}", OK, NULL, NULL},
    {SY_API_EMBEDDING, "{\"input\":\"a\",\"encoding_format\":\"int8\"}", 400, "encoding_format", NULL},
    {SY_API_TOKENIZE, "{\"content\":\"a\",\"add_special\":true}", OK, NULL, NULL},
    {SY_API_TOKENIZE, "{\"prompt\":\"a\"}", OK, NULL, NULL},
    {SY_API_TOKENIZE, "{\"content\":\"a\",\"prompt\":\"a\"}", 400, "prompt", NULL},
    {SY_API_TOKENIZE, "{}", 400, "content", NULL},
    {SY_API_DETOKENIZE, "{\"tokens\":[]}", OK, NULL, NULL},
    {SY_API_DETOKENIZE, "{\"tokens\":[320]}", 400, "tokens[0]", NULL},
    {SY_API_TEMPLATE, "{" USER ",\"tools\":[{\"type\":\"function\"}]}", OK, NULL, NULL},
    {SY_API_TEMPLATE, "{}", 400, "messages", NULL},
};
/* clang-format on */

static void test_rows(void **state)
{
    (void)state;
    struct sy_ask_limits l = limits();
    for (size_t i = 0; i < SY_COUNT(rows); i++) {
        const struct row *t = &rows[i];
        struct sy_ask ask;
        struct sy_problem p = {0};
        bool ok = sy_ask_parse(sy_env_default(), t->api, t->body, strlen(t->body), &l, &ask, &p);
        if (ok != (t->status == OK) || p.status != t->status)
            fail_msg("%s: status %d, '%s'", t->body, p.status, p.message);
        if (t->param && strcmp(t->param, p.param))
            fail_msg("%s: param '%s', expected '%s'", t->body, p.param, t->param);
        if (t->code && (!p.code || strcmp(t->code, p.code)))
            fail_msg("%s: code '%s'", t->body, p.code ? p.code : "none");
        sy_ask_release(&ask);
    }
}

static struct sy_ask parse(enum sy_api api, const char *body)
{
    struct sy_ask_limits l = limits();
    struct sy_ask a;
    struct sy_problem p = {0};
    if (!sy_ask_parse(sy_env_default(), api, body, strlen(body), &l, &a, &p)) fail_msg("%s: %s", body, p.message);
    return a;
}

static void test_values(void **state)
{
    (void)state;
    struct sy_ask a = parse(
        SY_API_CHAT, "{" USER ",\"temperature\":0.5,\"top_k\":-1,\"seed\":7,\"logprobs\":true,\"top_logprobs\":3,"
                     "\"stop\":[\"x\",\"yz\"],\"max_tokens\":5,\"max_completion_tokens\":9,\"bogus\":1,\"b d\":2,"
                     "\"other-one\":{}}");
    assert_true(a.sampling.temperature == 0.5f && a.sampling.top_k == 0 && a.sampling.seed == 7 && a.seed_given);
    assert_int_equal(a.sampling.n_logprob, 3);
    assert_int_equal(a.n_max, 9);
    assert_true(a.n_stop == 2 && a.stop_len[1] == 2 && !memcmp(a.stop[1], "yz", 2));
    assert_string_equal(a.ignored, "bogus,other-one");
    sy_ask_release(&a);
    a = parse(SY_API_COMPLETION, "{\"prompt\":[[1,2],[3]],\"echo\":true}");
    assert_true(a.n_prompt == 2 && a.prompt[0].n_ids == 2 && a.prompt[1].ids[0] == 3 && a.n_max == 16 && a.echo);
    assert_true(a.sampling.temperature == 1 && a.sampling.n_logprob == -1 && a.skip_special);
    sy_ask_release(&a);
    a = parse(
        SY_API_CHAT,
        "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
        "\"text\":\"b\"}],\"name\":\"n\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"function\":{"
        "\"name\":\"f\",\"arguments\":\"{\\\"x\\\":[1]}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":"
        "\"r\"}]}");
    const struct sy_json *m = sy_json_at(a.messages, 0);
    assert_string_equal(sy_json_text(sy_json_get(m, "role")), "system");
    assert_string_equal(sy_json_text(sy_json_get(m, "content")), "a\nb");
    assert_string_equal(sy_json_text(sy_json_get(m, "name")), "n");
    const struct sy_json *call = sy_json_at(sy_json_get(sy_json_at(a.messages, 1), "tool_calls"), 0);
    const struct sy_json *x = sy_json_get(sy_json_get(sy_json_get(call, "function"), "arguments"), "x");
    assert_int_equal(sy_json_int(sy_json_at(x, 0), 0), 1);
    assert_int_equal(sy_json_len(a.messages), 3);
    sy_ask_release(&a);
}

static void expect_refused(const char *body, size_t n, int status)
{
    struct sy_ask_limits l = limits();
    struct sy_ask a;
    struct sy_problem p = {0};
    assert_false(sy_ask_parse(sy_env_default(), SY_API_CHAT, body, n, &l, &a, &p));
    assert_int_equal(p.status, status);
    sy_ask_release(&a);
}

/* Work and memory are bounded by the size of the body, recursion by a constant. */
static void test_hostile(void **state)
{
    (void)state;
    enum { N = 3000000 };
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    for (int i = 0; i < N; i++) sy_buf_char(&b, '[');
    expect_refused(b.at, b.len, 400);
    sy_buf_clear(&b);
    for (int i = 0; i < N / 5; i++) sy_buf_text(&b, "{\"a\":");
    expect_refused(b.at, b.len, 400);
    sy_buf_clear(&b);
    sy_buf_text(&b, "{\"a\":[");
    for (int i = 0; i < N / 3; i++) sy_buf_text(&b, "{},");
    sy_buf_text(&b, "{}]}");
    expect_refused(b.at, b.len, 413);
    sy_buf_clear(&b);
    sy_buf_text(&b, "{\"a\":\"");
    for (int i = 0; i < N; i++) sy_buf_char(&b, '[');
    sy_buf_text(&b, "\"}");
    expect_refused(b.at, b.len, 400); /* no messages: in a string they nest nothing */
    sy_buf_clear(&b);
    for (int i = 0; i < N; i++) sy_buf_char(&b, '\n');
    expect_refused(b.at, b.len, 400);
    sy_buf_release(&b);
}

static void test_problem(void **state)
{
    (void)state;
    struct sy_problem p = {0};
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    assert_false(sy_problem_set(&p, 429, "queue_full", NULL, "full \"%s\"", "x\n"));
    sy_problem_set(&p, 400, "later", "x", "the first one counts");
    sy_problem_json(&p, &b);
    assert_string_equal(b.at,
                        "{\"error\":{\"message\":\"full "
                        "\\\"x\\n\\\"\",\"type\":\"rate_limit_error\",\"param\":null,\"code\":\"queue_full\"}}");
    sy_buf_release(&b);
}

/* ---- failing allocations ------------------------------------------------------------------------------- */

struct failing {
    int left, live;
};
static void *fail_get(void *ctx, size_t n)
{
    struct failing *f = ctx;
    if (f->left-- == 0) return NULL;
    void *p = sy_new(sy_env_default(), n);
    f->live += p != NULL;
    return p;
}
static void fail_free(void *ctx, void *p)
{
    ((struct failing *)ctx)->live--;
    sy_delete(sy_env_default(), p);
}
static void *fail_resize(void *ctx, void *old, size_t n_old, size_t n)
{
    void *p = fail_get(ctx, n);
    if (!p) return NULL;
    if (old) {
        memcpy(p, old, n_old < n ? n_old : n);
        fail_free(ctx, old);
    }
    return p;
}

static void test_memory(void **state)
{
    (void)state;
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{"
                               "\"type\":\"text\",\"text\":\"b\"}]}],"
                               "\"logit_bias\":{\"5\":1},\"stop_token_ids\":[1]}";
    struct sy_ask_limits l = limits();
    bool ok = false;
    for (int n = 0; !ok && n < 100; n++) {
        struct failing f = {.left = n};
        struct sy_alloc alloc = {fail_get, fail_resize, fail_free, &f};
        struct sy_env env = {&alloc, sy_env_default()->clock, sy_env_default()->log};
        struct sy_ask a;
        struct sy_problem p = {0};
        ok = sy_ask_parse(&env, SY_API_CHAT, body, strlen(body), &l, &a, &p);
        if (!ok) assert_int_equal(p.status, 503);
        sy_ask_release(&a);
        assert_int_equal(f.live, 0);
    }
    assert_true(ok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),    cmocka_unit_test(test_values), cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_problem), cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
