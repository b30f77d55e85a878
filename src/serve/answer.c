/* answer.c - what a call came to, as OpenAI's response objects and server-sent events (HTML standard,
 * "Server-sent events"). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/chat.h"
#include "serve/call.h"

static const struct sy_tokenizer *tokenizer(const struct sy_call *c)
{
    return sy_engine_tokenizer(c->service->engine);
}
static bool is_chat(const struct sy_call *c) { return c->ask.api == SY_API_CHAT; }
static bool shows_ids(const struct sy_call *c) { return c->ask.return_ids || !tokenizer(c); }

static void add_quoted(struct sy_buf *b, const char *text) { sy_json_quote(b, text, strlen(text)); }

static void add_head(const struct sy_call *c, const char *object, struct sy_buf *b)
{
    sy_buf_printf(b, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", c->id, object,
                  (long long)c->created);
    add_quoted(b, c->service->names[0]);
    sy_buf_text(b, ",\"system_fingerprint\":\"systole-" SY_VERSION "\"");
}

static void put_usage(const struct sy_call *c, int64_t completion, struct sy_buf *b)
{
    struct sy_usage u = sy_call_usage(c);
    sy_buf_printf(b, "\"usage\":{\"prompt_tokens\":%lld,", (long long)u.prompt);
    if (c->ask.api != SY_API_EMBEDDING) sy_buf_printf(b, "\"completion_tokens\":%lld,", (long long)completion);
    sy_buf_printf(b, "\"total_tokens\":%lld,\"prompt_tokens_details\":{\"cached_tokens\":%lld}}",
                  (long long)(u.prompt + completion), (long long)u.cached);
}

static void add_usage(const struct sy_call *c, struct sy_buf *b) { put_usage(c, sy_call_usage(c).completion, b); }

static void add_finish(const struct sy_call *c, const struct sy_choice *k, struct sy_buf *b)
{
    if (k->finish == SY_RUNNING) {
        sy_buf_text(b, "\"finish_reason\":null");
        return;
    }
    sy_buf_printf(b, "\"finish_reason\":\"%s\",\"stop_reason\":", sy_finish_name(k->finish));
    if (k->stop >= 0) sy_json_quote(b, c->ask.stop[k->stop], c->ask.stop_len[k->stop]);
    else sy_buf_text(b, "null");
}

static void add_ids(const int32_t *id, size_t n, struct sy_buf *b)
{
    sy_buf_char(b, '[');
    for (size_t i = 0; i < n; i++) sy_buf_printf(b, "%s%d", i ? "," : "", id[i]);
    sy_buf_char(b, ']');
}

/* JSON has no infinity; OpenAI writes -9999 for what is impossible. */
static void add_logprob(float v, struct sy_buf *b) { sy_buf_printf(b, "%.9g", v >= -9999 ? (double)v : -9999.0); }

static struct sy_reply *reply_of(const struct sy_call *c, int32_t choice, struct sy_stream **stream)
{
    *stream = c->item[choice / c->ask.n].stream;
    int32_t k = (int32_t)(choice % c->ask.n);
    return &(*stream)->reply[k < (*stream)->n_reply ? k : 0];
}

/* ---- log probabilities of chat ------------------------------------------------------------------------- */

static void add_token(const struct sy_call *c, int32_t id, float logprob, struct sy_buf *b)
{
    size_t n = 0;
    const char *s = tokenizer(c) ? sy_tokenizer_bytes(tokenizer(c), id, &n) : NULL;
    sy_buf_text(b, "{\"token\":");
    sy_json_quote(b, s ? s : "", n);
    sy_buf_text(b, ",\"logprob\":");
    add_logprob(logprob, b);
    sy_buf_text(b, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++) sy_buf_printf(b, "%s%u", i ? "," : "", (unsigned)(unsigned char)s[i]);
    sy_buf_char(b, ']');
}

static void add_chat_logprobs(const struct sy_call *c, int32_t choice, int32_t lo, int32_t hi, struct sy_buf *b)
{
    if (c->ask.logprobs < 0) {
        sy_buf_text(b, "\"logprobs\":null");
        return;
    }
    struct sy_stream *s;
    const struct sy_reply *r = reply_of(c, choice, &s);
    sy_buf_text(b, "\"logprobs\":{\"content\":[");
    for (int32_t i = lo; i < hi; i++) {
        if (i > lo) sy_buf_char(b, ',');
        add_token(c, r->id[i], r->logprob[i], b);
        sy_buf_text(b, ",\"top_logprobs\":[");
        for (int32_t k = 0; k < s->n_top; k++) {
            const struct sy_logprob *t = &r->top[(size_t)i * (size_t)s->n_top + (size_t)k];
            if (k) sy_buf_char(b, ',');
            add_token(c, t->id, t->logprob, b);
            sy_buf_char(b, '}');
        }
        sy_buf_text(b, "]}");
    }
    sy_buf_text(b, "],\"refusal\":null}");
}

/* ---- log probabilities of completions ------------------------------------------------------------------ */

struct scored { /* tokens in the order of the text: prompt (with echo), then answer */
    int32_t id;
    bool first; /* of all: nothing predicted it */
    float logprob;
    const struct sy_logprob *top;
    int32_t n_top;
};

static struct scored scored_at(const struct sy_call *c, int32_t choice, int32_t i, int32_t n_prompt)
{
    struct sy_stream *s;
    const struct sy_reply *r = reply_of(c, choice, &s);
    if (i < n_prompt)
        return (struct scored){s->request.prompt[i], i == 0, s->prompt_logprob[i],
                               &s->prompt_top[(size_t)i * (size_t)s->n_prompt_top], s->n_prompt_top};
    i -= n_prompt;
    return (struct scored){r->id[i], false, r->logprob[i], &r->top[(size_t)i * (size_t)s->n_top], s->n_top};
}

/* A token as text; one that is not whole characters as OpenAI's old API wrote them: "bytes:\xe2\x82". */
static void add_name(const struct sy_call *c, int32_t id, struct sy_buf *b)
{
    size_t n = 0;
    const char *s = tokenizer(c) ? sy_tokenizer_bytes(tokenizer(c), id, &n) : NULL;
    if (!s) {
        sy_buf_printf(b, "\"%d\"", id);
    } else if (sy_utf8_valid(s, n)) {
        sy_json_quote(b, s, n);
    } else {
        sy_buf_text(b, "\"bytes:");
        for (size_t i = 0; i < n; i++) sy_buf_printf(b, "\\\\x%02x", (unsigned)(unsigned char)s[i]);
        sy_buf_char(b, '"');
    }
}

/* Two tokens may have one text; the likelier one keeps the name, as a JSON object has each key once. */
static bool named_before(const struct sy_call *c, const struct scored *t, int32_t k)
{
    size_t n, m;
    const char *s = tokenizer(c) ? sy_tokenizer_bytes(tokenizer(c), t->top[k].id, &n) : NULL;
    for (int32_t i = 0; s && i < k; i++) {
        const char *o = sy_tokenizer_bytes(tokenizer(c), t->top[i].id, &m);
        if (o && m == n && !memcmp(o, s, n)) return true;
    }
    return false;
}

static size_t n_chars(const char *s, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) k += ((unsigned char)s[i] & 0xc0) != 0x80;
    return k;
}

/* Where each token's text begins, in characters from *at on: the text that was certain before it came. */
static void add_offsets(const struct sy_call *c, int32_t choice, int32_t lo, int32_t hi, int32_t n_prompt, size_t at,
                        struct sy_buf *b)
{
    const struct sy_choice *k = &c->choice[choice];
    struct sy_detok d;
    struct sy_buf text;
    size_t seen = 0;
    struct sy_stream *s;
    reply_of(c, choice, &s);
    sy_buf_init(&text, c->service->env, 0);
    if (tokenizer(c)) sy_detok_init(&d, tokenizer(c), true);
    sy_buf_text(b, "],\"text_offset\":[");
    for (int32_t i = lo; i < hi; i++) {
        sy_buf_printf(b, "%s%zu", i > lo ? "," : "", at);
        if (i < n_prompt) {
            if (tokenizer(c)) sy_detok_feed(&d, s->request.prompt[i], &text);
            at += text.len ? n_chars(text.at + seen, text.len - seen) : 0;
            seen = text.len;
        } else {
            int32_t t = i - n_prompt;
            uint32_t from = t ? k->text_end[t - 1] : 0;
            at += k->text.len ? n_chars(k->text.at + from, k->text_end[t] - from) : 0;
        }
    }
    b->failed |= text.failed;
    sy_buf_release(&text);
}

/* Tokens lo..hi-1 of prompt (n_prompt of them count) and answer. */
static void add_completion_logprobs(const struct sy_call *c, int32_t choice, int32_t lo, int32_t hi, int32_t n_prompt,
                                    size_t at, struct sy_buf *b)
{
    if (c->ask.logprobs < 0) {
        sy_buf_text(b, "\"logprobs\":null");
        return;
    }
    sy_buf_text(b, "\"logprobs\":{\"tokens\":[");
    for (int32_t i = lo; i < hi; i++) {
        if (i > lo) sy_buf_char(b, ',');
        add_name(c, scored_at(c, choice, i, n_prompt).id, b);
    }
    sy_buf_text(b, "],\"token_logprobs\":[");
    for (int32_t i = lo; i < hi; i++) {
        struct scored t = scored_at(c, choice, i, n_prompt);
        if (i > lo) sy_buf_char(b, ',');
        if (t.first) sy_buf_text(b, "null");
        else add_logprob(t.logprob, b);
    }
    sy_buf_text(b, "],\"top_logprobs\":[");
    for (int32_t i = lo; i < hi; i++) {
        struct scored t = scored_at(c, choice, i, n_prompt);
        if (i > lo) sy_buf_char(b, ',');
        if (t.first || t.n_top == 0) {
            sy_buf_text(b, "null");
            continue;
        }
        sy_buf_char(b, '{');
        for (int32_t k = 0, n = 0; k < t.n_top; k++) {
            if (named_before(c, &t, k)) continue;
            if (n++) sy_buf_char(b, ',');
            add_name(c, t.top[k].id, b);
            sy_buf_char(b, ':');
            add_logprob(t.top[k].logprob, b);
        }
        sy_buf_char(b, '}');
    }
    add_offsets(c, choice, lo, hi, n_prompt, at, b);
    sy_buf_text(b, "]}");
}

/* The prompt as text, for echo: as it came, or what its ids decode to. */
static void echo_text(const struct sy_call *c, int32_t choice, struct sy_buf *text)
{
    int32_t i = (int32_t)(choice / c->ask.n);
    const struct sy_prompt *p = &c->ask.prompt[i];
    const struct sy_ids *ids = &c->item[i].prompt;
    if (p->text) sy_buf_add(text, p->text, p->n_text);
    else if (tokenizer(c) && sy_tokenizer_decode(tokenizer(c), ids->at, ids->n, true, text, NULL))
        text->failed = true;
}

/* ---- whole answers ------------------------------------------------------------------------------------- */

static void add_chat_choice(const struct sy_call *c, int32_t i, struct sy_buf *b)
{
    const struct sy_choice *k = &c->choice[i];
    sy_buf_printf(b, "{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", i);
    sy_json_quote(b, k->text.len ? k->text.at : "", k->text.len);
    sy_buf_text(b, ",\"refusal\":null},");
    add_chat_logprobs(c, i, 0, k->n_token, b);
    sy_buf_char(b, ',');
    add_finish(c, k, b);
    if (shows_ids(c)) {
        struct sy_stream *s;
        sy_buf_text(b, ",\"token_ids\":");
        add_ids(reply_of(c, i, &s)->id, (size_t)k->n_token, b);
    }
    sy_buf_char(b, '}');
}

static void add_completion_choice(const struct sy_call *c, int32_t i, struct sy_buf *b)
{
    const struct sy_choice *k = &c->choice[i];
    struct sy_stream *s;
    const struct sy_reply *r = reply_of(c, i, &s);
    struct sy_buf text;
    sy_buf_init(&text, c->service->env, 0);
    if (c->ask.echo) echo_text(c, i, &text);
    sy_buf_add(&text, k->text.len ? k->text.at : "", k->text.len);
    sy_buf_printf(b, "{\"index\":%d,\"text\":", i);
    sy_json_quote(b, text.len ? text.at : "", text.len);
    b->failed |= text.failed;
    sy_buf_release(&text);
    sy_buf_char(b, ',');
    int32_t n_prompt = c->ask.echo ? s->request.n_prompt : 0;
    add_completion_logprobs(c, i, 0, n_prompt + k->n_token, n_prompt, 0, b);
    sy_buf_char(b, ',');
    add_finish(c, k, b);
    if (shows_ids(c)) {
        sy_buf_text(b, ",\"token_ids\":");
        add_ids(r->id, (size_t)k->n_token, b);
        sy_buf_text(b, ",\"prompt_token_ids\":");
        add_ids(s->request.prompt, (size_t)s->request.n_prompt, b);
    }
    sy_buf_char(b, '}');
}

static void add_generation(const struct sy_call *c, struct sy_buf *b)
{
    add_head(c, is_chat(c) ? "chat.completion" : "text_completion", b);
    sy_buf_text(b, ",\"choices\":[");
    for (int32_t i = 0; i < c->n_choice; i++) {
        if (i) sy_buf_char(b, ',');
        if (is_chat(c)) add_chat_choice(c, i, b);
        else add_completion_choice(c, i, b);
    }
    sy_buf_text(b, "],");
    if (is_chat(c) && c->ask.return_ids) {
        sy_buf_text(b, "\"prompt_token_ids\":");
        add_ids(c->item[0].prompt.at, c->item[0].prompt.n, b);
        sy_buf_char(b, ',');
    }
    add_usage(c, b);
    sy_buf_char(b, '}');
}

static void add_vector(const struct sy_call *c, const double *v, struct sy_buf *b)
{
    int32_t n = c->ask.dimensions ? (int32_t)c->ask.dimensions : c->service->limits.d_model;
    double square = 0;
    for (int32_t i = 0; i < n; i++) square += v[i] * v[i];
    double scale = square > 0 ? 1 / sqrt(square) : 0;
    sy_buf_char(b, c->ask.base64 ? '"' : '[');
    unsigned char some[768 * 4]; /* a multiple of 3 bytes: pieces join without padding */
    size_t at = 0;
    for (int32_t i = 0; i < n; i++) {
        float f = (float)(v[i] * scale);
        if (!c->ask.base64) {
            sy_buf_printf(b, "%s%.9g", i ? "," : "", (double)f);
            continue;
        }
        memcpy(some + at, &f, sizeof f);
        at += sizeof f;
        if (at < sizeof some && i + 1 < n) continue;
        sy_buf_base64(b, some, at);
        at = 0;
    }
    sy_buf_char(b, c->ask.base64 ? '"' : ']');
}

static void add_embeddings(const struct sy_call *c, struct sy_buf *b)
{
    sy_buf_text(b, "{\"object\":\"list\",\"data\":[");
    for (int32_t i = 0; i < c->ask.n_prompt; i++) {
        sy_buf_printf(b, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", i ? "," : "", i);
        add_vector(c, c->item[i].stream->pooled, b);
        sy_buf_char(b, '}');
    }
    sy_buf_text(b, "],\"model\":");
    add_quoted(b, c->service->names[0]);
    sy_buf_char(b, ',');
    add_usage(c, b);
    sy_buf_char(b, '}');
}

static void add_tokens(const struct sy_call *c, struct sy_buf *b)
{
    const struct sy_ids *ids = &c->item[0].prompt;
    sy_buf_text(b, "{\"tokens\":");
    add_ids(ids->at, ids->n, b);
    sy_buf_printf(b, ",\"count\":%zu,\"max_model_len\":%d", ids->n, c->service->limits.ctx_len);
    if (c->ask.token_strings) {
        sy_buf_text(b, ",\"token_strs\":[");
        for (size_t i = 0; i < ids->n; i++) {
            size_t n = 0;
            const char *s = sy_tokenizer_token(tokenizer(c), ids->at[i], &n);
            if (i) sy_buf_char(b, ',');
            sy_json_quote(b, s ? s : "", n);
        }
        sy_buf_char(b, ']');
    }
    sy_buf_char(b, '}');
}

static void add_text(const char *key, const struct sy_buf *text, struct sy_buf *b)
{
    sy_buf_printf(b, "{\"%s\":", key);
    sy_json_quote(b, text->len ? text->at : "", text->len);
    sy_buf_char(b, '}');
}

static void add_detokenized(struct sy_call *c, struct sy_buf *b)
{
    const struct sy_prompt *p = c->ask.prompt;
    if (sy_tokenizer_decode(tokenizer(c), p->ids, (size_t)p->n_ids, c->ask.skip_special, &c->text, NULL))
        b->failed = true;
    add_text("content", &c->text, b);
}

void sy_call_body(struct sy_call *c, struct sy_buf *b)
{
    if (c->cancelled)
        sy_problem_set(&c->problem, 503, "unavailable", NULL, "the request was cancelled; the server is stopping");
    if (!c->problem.status) {
        switch (c->ask.api) {
        case SY_API_CHAT:
        case SY_API_COMPLETION: add_generation(c, b); break;
        case SY_API_EMBEDDING: add_embeddings(c, b); break;
        case SY_API_TOKENIZE: add_tokens(c, b); break;
        case SY_API_DETOKENIZE: add_detokenized(c, b); break;
        case SY_API_TEMPLATE: add_text("prompt", &c->text, b); break;
        }
        if (!b->failed && !c->text.failed) return;
        sy_buf_clear(b);
        sy_problem_set(&c->problem, 503, "unavailable", NULL, "no memory for the answer");
    }
    sy_problem_json(&c->problem, b);
}

/* ---- events -------------------------------------------------------------------------------------------- */

/* n_new: tokens in it. */
static void open_chunk(const struct sy_call *c, int32_t n_new, struct sy_buf *b)
{
    int64_t sent = n_new;
    sy_buf_text(b, "data: ");
    add_head(c, is_chat(c) ? "chat.completion.chunk" : "text_completion", b);
    for (int32_t i = 0; i < c->n_choice; i++) sent += c->choice[i].n_sent;
    if (c->ask.include_usage) sy_buf_char(b, ',');
    if (c->ask.include_usage && c->ask.usage_each) put_usage(c, sent, b);
    else if (c->ask.include_usage) sy_buf_text(b, "\"usage\":null");
    sy_buf_text(b, ",\"choices\":[");
}

static void close_chunk(struct sy_buf *b) { sy_buf_text(b, "]}\n\n"); }

/* A piece of text with the tokens lo..hi-1 it came with. */
static void add_piece(const struct sy_call *c, int32_t i, const char *text, size_t n, int32_t lo, int32_t hi,
                      struct sy_buf *b)
{
    open_chunk(c, hi - lo, b);
    if (is_chat(c)) {
        sy_buf_printf(b, "{\"index\":%d,\"delta\":{\"content\":", i);
        sy_json_quote(b, text, n);
        sy_buf_text(b, "},");
        if (hi > lo) add_chat_logprobs(c, i, lo, hi, b);
        else sy_buf_text(b, "\"logprobs\":null");
    } else {
        sy_buf_printf(b, "{\"index\":%d,\"text\":", i);
        sy_json_quote(b, text, n);
        sy_buf_char(b, ',');
        if (hi > lo) add_completion_logprobs(c, i, lo, hi, 0, c->choice[i].n_sent_chars, b);
        else sy_buf_text(b, "\"logprobs\":null");
    }
    sy_buf_text(b, ",\"finish_reason\":null");
    if (shows_ids(c)) {
        struct sy_stream *s;
        sy_buf_text(b, ",\"token_ids\":");
        add_ids(reply_of(c, i, &s)->id + lo, (size_t)(hi - lo), b);
    }
    sy_buf_char(b, '}');
    close_chunk(b);
}

static void add_opening(struct sy_call *c, int32_t i, struct sy_buf *b)
{
    if (is_chat(c)) {
        open_chunk(c, 0, b);
        sy_buf_printf(b,
                      "{\"index\":%d,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_"
                      "reason\":null}",
                      i);
        close_chunk(b);
        return;
    }
    if (!c->ask.echo) return;
    struct sy_stream *s;
    struct sy_buf text;
    reply_of(c, i, &s);
    sy_buf_init(&text, c->service->env, 0);
    echo_text(c, i, &text);
    open_chunk(c, 0, b);
    sy_buf_printf(b, "{\"index\":%d,\"text\":", i);
    sy_json_quote(b, text.len ? text.at : "", text.len);
    sy_buf_char(b, ',');
    c->choice[i].n_sent_chars = n_chars(text.len ? text.at : "", text.len);
    b->failed |= text.failed;
    sy_buf_release(&text);
    add_completion_logprobs(c, i, 0, s->request.n_prompt, s->request.n_prompt, 0, b);
    sy_buf_text(b, ",\"finish_reason\":null}");
    close_chunk(b);
}

static void add_closing(const struct sy_call *c, int32_t i, struct sy_buf *b)
{
    open_chunk(c, 0, b);
    sy_buf_printf(b,
                  is_chat(c) ? "{\"index\":%d,\"delta\":{},\"logprobs\":null,"
                             : "{\"index\":%d,\"text\":\"\",\"logprobs\":null,",
                  i);
    add_finish(c, &c->choice[i], b);
    sy_buf_char(b, '}');
    close_chunk(b);
}

static void add_choice_events(struct sy_call *c, int32_t i, struct sy_buf *b)
{
    struct sy_choice *k = &c->choice[i];
    if (k->closed || (k->n_token == 0 && k->finish == SY_RUNNING)) return;
    if (!k->opened) add_opening(c, i, b);
    k->opened = true;
    while (k->n_sent < k->n_token) {
        size_t n = k->text_end[k->n_sent] - k->n_sent_bytes;
        const char *text = k->text.at ? k->text.at + k->n_sent_bytes : "";
        add_piece(c, i, text, n, k->n_sent, k->n_sent + 1, b);
        k->n_sent_bytes += n;
        k->n_sent_chars += n_chars(text, n);
        k->n_sent++;
    }
    if (k->finish == SY_RUNNING || k->finish == SY_FINISH_ERROR) return;
    if (k->text.len > k->n_sent_bytes) { /* held back until it could not become a stop string */
        add_piece(c, i, k->text.at + k->n_sent_bytes, k->text.len - k->n_sent_bytes, k->n_sent, k->n_sent, b);
        k->n_sent_bytes = k->text.len;
    }
    add_closing(c, i, b);
    k->closed = true;
}

bool sy_call_events(struct sy_call *c, struct sy_buf *b)
{
    if (c->tail_sent) return true;
    for (int32_t i = 0; i < c->n_choice; i++)
        if (c->item[i / c->ask.n].stream) add_choice_events(c, i, b);
    if (!sy_call_done(c)) return false;
    if (c->problem.status) { /* too late for a status line: the stream says it */
        sy_buf_text(b, "data: ");
        sy_problem_json(&c->problem, b);
        sy_buf_text(b, "\n\n");
    } else if (c->ask.include_usage) {
        sy_buf_text(b, "data: ");
        add_head(c, is_chat(c) ? "chat.completion.chunk" : "text_completion", b);
        sy_buf_text(b, ",\"choices\":[],");
        add_usage(c, b);
        sy_buf_text(b, "}\n\n");
    }
    sy_buf_text(b, "data: [DONE]\n\n");
    return c->tail_sent = true;
}
