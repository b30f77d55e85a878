#include "bench/sse.h"

#include <string.h>

#include "base/json.h"

void sy_sse_init(struct sy_sse *s, const struct sy_env *env)
{
    *s = (struct sy_sse){0};
    sy_buf_init(&s->line, env, SY_SSE_EVENT_MAX);
    sy_buf_init(&s->data, env, SY_SSE_EVENT_MAX);
}

void sy_sse_release(struct sy_sse *s)
{
    sy_buf_release(&s->line);
    sy_buf_release(&s->data);
}

void sy_sse_clear(struct sy_sse *s)
{
    sy_buf_clear(&s->line);
    sy_buf_clear(&s->data);
    s->has_data = s->after_cr = s->started = false;
}

static void take_line(struct sy_sse *s)
{
    const char *at = s->line.at;
    size_t n = s->line.len;
    if (!s->started && n >= 3 && !memcmp(at, "\xef\xbb\xbf", 3)) {
        at += 3;
        n -= 3;
    }
    s->started = true;
    /* "data:value", "data: value"; a line without a colon is a field with an empty value. */
    if (n < 4 || memcmp(at, "data", 4) || (n > 4 && at[4] != ':')) return;
    size_t skip = n > 4 ? 5 : 4;
    if (n > 5 && at[5] == ' ') skip = 6;
    if (s->has_data) sy_buf_char(&s->data, '\n');
    sy_buf_add(&s->data, at + skip, n - skip);
    s->has_data = true;
}

static sy_status end_line(struct sy_sse *s, sy_status (*on_data)(void *, const char *, size_t, struct sy_err *),
                          void *ctx, struct sy_err *err)
{
    sy_status st = SY_OK;
    if (s->line.len > 0) take_line(s);
    else if (s->has_data) {
        st = on_data(ctx, s->data.len ? s->data.at : "", s->data.len, err);
        s->has_data = false;
        sy_buf_clear(&s->data);
    }
    if (!s->data.failed) sy_buf_clear(&s->line);
    return st;
}

sy_status sy_sse_feed(struct sy_sse *s, const char *bytes, size_t n,
                      sy_status (*on_data)(void *, const char *, size_t, struct sy_err *), void *ctx,
                      struct sy_err *err)
{
    for (size_t i = 0; i < n;) {
        char c = bytes[i];
        bool lf_of_crlf = c == '\n' && s->after_cr;
        s->after_cr = c == '\r';
        if (lf_of_crlf) {
            i++;
        } else if (c == '\n' || c == '\r') {
            sy_status st = end_line(s, on_data, ctx, err);
            if (st) return st;
            i++;
        } else {
            size_t run = 1;
            while (i + run < n && bytes[i + run] != '\n' && bytes[i + run] != '\r') run++;
            sy_buf_add(&s->line, bytes + i, run);
            i += run;
        }
        if (s->line.failed || s->data.failed)
            return sy_fail(err, SY_EFORMAT, "an event of the stream is longer than %d MiB", SY_SSE_EVENT_MAX >> 20);
    }
    return SY_OK;
}

/* ---- events of a completion -------------------------------------------------------------------------------------
 */

static const char *error_of(const struct sy_json *root)
{
    const struct sy_json *e = sy_json_get(root, "error");
    if (!e || sy_json_is_null(e)) return NULL;
    const char *text = sy_json_text(e);
    if (!text) text = sy_json_text(sy_json_get(e, "message"));
    return text ? text : "unknown error";
}

static void read_choice(const struct sy_json *choice, struct sy_chunk *c)
{
    const struct sy_json *delta = sy_json_get(choice, "delta");
    const struct sy_json *text = delta ? sy_json_get(delta, "content") : sy_json_get(choice, "text");
    if (delta && !sy_json_is_text(text)) text = sy_json_get(delta, "reasoning_content"); /* llama-server */
    if (delta && !sy_json_is_text(text)) text = sy_json_get(delta, "reasoning");         /* vLLM */
    c->text = sy_json_text_n(text, &c->n_text);
    if (!c->text) c->n_text = 0;
    const struct sy_json *ids = sy_json_get(choice, "token_ids");
    if (sy_json_is_array(ids) && sy_json_len(ids) > 0) c->ids = ids;
    c->finish = sy_json_text(sy_json_get(choice, "finish_reason"));
    /* A token may end within a character: it comes as an empty text. So do the first chunk of a chat, which only
     * names the role, and a last one that only says why it ended: those are no tokens. */
    bool empty_token = !delta && c->text && !c->finish;
    c->has_token = c->n_text > 0 || c->ids || empty_token;
}

sy_status sy_chunk_read(const struct sy_env *env, const char *data, size_t n, struct sy_chunk *c, struct sy_err *err)
{
    *c = (struct sy_chunk){.n_prompt = -1, .n_output = -1};
    if (n == 6 && !memcmp(data, "[DONE]", 6)) {
        c->done = true;
        return SY_OK;
    }
    sy_status st = sy_json_parse(env, data, n, false, &c->json, err);
    if (st) return sy_while(err, st, "an event of the stream");
    if (!sy_json_is_object(c->json)) {
        sy_chunk_release(c);
        return sy_fail(err, SY_EFORMAT, "an event of the stream: expected a JSON object");
    }
    c->error = error_of(c->json);
    const struct sy_json *choice = sy_json_at(sy_json_get(c->json, "choices"), 0),
                         *usage = sy_json_get(c->json, "usage");
    if (choice) read_choice(choice, c);
    int64_t prompt = sy_json_int(sy_json_get(usage, "prompt_tokens"), -1);
    int64_t output = sy_json_int(sy_json_get(usage, "completion_tokens"), -1);
    const int64_t most = 1 << 30;
    if (prompt >= 0 && prompt <= most) c->n_prompt = prompt;
    if (output >= 0 && output <= most) c->n_output = output;
    return SY_OK;
}

void sy_chunk_release(struct sy_chunk *c)
{
    sy_json_free(c->json);
    c->json = NULL;
}
