#include "serve/request.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "serve/request_int.h"

/* Bytes that the values of one body may take as a tree: a body of a few megabytes can hold millions of
 * empty objects. */
enum { TREE_BYTES_MAX = 256 << 20 };

/* ---- problems ------------------------------------------------------------------------------------------ */

static const char *type_of(int status)
{
    return status == 401   ? "authentication_error"
           : status == 429 ? "rate_limit_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

static void set(struct sy_problem *p, int status, const char *code, const char *param, const char *message)
{
    if (p->status) return;
    p->status = status;
    p->type = type_of(status);
    p->code = code;
    snprintf(p->param, sizeof p->param, "%s", param ? param : "");
    snprintf(p->message, sizeof p->message, "%s", message);
}

bool sy_problem_set(struct sy_problem *p, int status, const char *code, const char *param, const char *fmt, ...)
{
    char message[sizeof p->message];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    set(p, status, code, param, message);
    return false;
}

static void add_text(struct sy_buf *b, const char *key, const char *text)
{
    sy_buf_printf(b, ",\"%s\":", key);
    if (text && *text) sy_json_quote(b, text, strlen(text));
    else sy_buf_text(b, "null");
}

void sy_problem_json(const struct sy_problem *p, struct sy_buf *b)
{
    sy_buf_text(b, "{\"error\":{\"message\":");
    sy_json_quote(b, p->message, strlen(p->message));
    add_text(b, "type", p->type);
    add_text(b, "param", p->param);
    add_text(b, "code", p->code);
    sy_buf_text(b, "}}");
}

bool request_refuse(struct reader *r, const char *param, const char *fmt, ...)
{
    char text[400], message[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(message, sizeof message, "%.96s: %s", param, text);
    set(r->problem, 400, "invalid_value", param, message);
    return false;
}

bool request_no_memory(struct reader *r)
{
    set(r->problem, 503, "out_of_memory", NULL, "no memory for this request");
    return false;
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

bool request_scan(const char *s, size_t n, struct sy_problem *p)
{
    size_t depth = 0, bytes = 0;
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (quoted) {
            if (c == '\\') i++;
            else if (c == '"') quoted = false;
            continue;
        }
        switch (c) {
        case '"':
            quoted = true;
            bytes += 48;
            break;
        case '{':
            bytes += 256;
            depth++;
            break;
        case '[':
            bytes += 128;
            depth++;
            break;
        case '}':
        case ']': depth -= depth > 0; break;
        case ':': bytes += 64; break;
        case ',': bytes += 48; break;
        default: break;
        }
        if (depth > SY_JSON_DEPTH_MAX)
            return sy_problem_set(p, 400, "invalid_json", NULL, "the body nests deeper than %d levels (byte %zu)",
                                  SY_JSON_DEPTH_MAX, i);
        if (bytes > TREE_BYTES_MAX)
            return sy_problem_set(p, 413, "body_too_large", NULL, "the body holds too many JSON values (byte %zu)",
                                  i);
    }
    return true;
}

static bool parse(const struct sy_env *env, const char *s, size_t n, struct sy_json **out, struct sy_problem *p)
{
    size_t space = 0;
    while (space < n && strchr(" \t\r\n", s[space]) && s[space]) space++;
    if (space == n) return sy_problem_set(p, 400, "invalid_json", NULL, "the body is empty; expected a JSON object");
    if (n >= 3 && !memcmp(s, "\xef\xbb\xbf", 3))
        return sy_problem_set(p, 400, "invalid_json", NULL,
                              "the body begins with a byte order mark; expected a JSON object");
    if (!sy_utf8_valid(s, n)) return sy_problem_set(p, 400, "invalid_json", NULL, "the body is not valid UTF-8");
    if (!request_scan(s, n, p)) return false;
    struct sy_err err;
    sy_status st = sy_json_parse(env, s, n, false, out, &err);
    if (st == SY_ENOMEM) return sy_problem_set(p, 503, "out_of_memory", NULL, "no memory for this request");
    if (st) return sy_problem_set(p, 400, "invalid_json", NULL, "the body is %s", err.msg);
    if (!sy_json_is_object(*out))
        return sy_problem_set(p, 400, "invalid_json", NULL, "expected a JSON object, found %s", request_kind(*out));
    return true;
}

const char *request_kind(const struct sy_json *j)
{
    return !j                     ? "nothing"
           : sy_json_is_object(j) ? "an object"
           : sy_json_is_array(j)  ? "an array"
           : sy_json_is_text(j)   ? "a string"
           : sy_json_is_int(j)    ? "an integer"
           : sy_json_is_number(j) ? "a number"
           : sy_json_is_bool(j)   ? (sy_json_bool(j, false) ? "true" : "false")
                                  : "null";
}

/* JSON does not tell 16 from 16.0, and neither does this. */
bool request_int(struct reader *r, const char *param, const struct sy_json *v, int64_t lo, int64_t hi, int64_t *out)
{
    double d = sy_json_number(v, NAN);
    if (sy_json_is_int(v)) *out = sy_json_int(v, 0);
    else if (d == floor(d) && fabs(d) < 9e15) *out = (int64_t)d;
    else
        return request_refuse(r, param, "expected an integer from %lld to %lld, found %s", (long long)lo,
                              (long long)hi, request_kind(v));
    if (*out < lo || *out > hi)
        return request_refuse(r, param, "expected an integer from %lld to %lld, found %lld", (long long)lo,
                              (long long)hi, (long long)*out);
    return true;
}

bool request_id(struct reader *r, const char *param, const struct sy_json *v, int32_t *out)
{
    int64_t id = 0;
    if (!request_int(r, param, v, 0, r->limits->n_vocab - 1, &id)) return false;
    *out = (int32_t)id;
    return true;
}

/* ---- the table's plain values -------------------------------------------------------------------------- */

static bool read_number(struct reader *r, const struct field *f, const struct sy_json *v, double *out)
{
    double d = sy_json_number(v, NAN);
    if (!sy_json_is_number(v))
        return request_refuse(r, f->name, "expected a number from %g to %g, found %s", f->lo, f->hi, request_kind(v));
    if (!(d >= f->lo && d <= f->hi) || (f->above && d == f->lo))
        return request_refuse(r, f->name, "expected a number %s %g to %g, found %g", f->above ? "above" : "from",
                              f->lo, f->hi, d);
    *out = d;
    return true;
}

static bool read_field(struct reader *r, const struct field *f, const struct sy_json *v)
{
    char *at = (char *)r->ask + f->at;
    switch (f->kind) {
    case FIELD_BOOL:
        if (!sy_json_is_bool(v))
            return request_refuse(r, f->name, "expected true or false, found %s", request_kind(v));
        *(bool *)at = sy_json_bool(v, false);
        return true;
    case FIELD_INT: return request_int(r, f->name, v, (int64_t)f->lo, (int64_t)f->hi, (int64_t *)(void *)at);
    case FIELD_NUM: return read_number(r, f, v, (double *)(void *)at);
    case FIELD_OTHER: return f->read(r, v);
    case FIELD_REFUSED: /* `false` asks for nothing */
        if (sy_json_is_bool(v) && !sy_json_bool(v, true)) return true;
        return request_refuse(r, f->name, "not supported by this version; leave it out");
    case FIELD_NEUTRAL: return true;
    }
    return false;
}

static bool read_fields(struct reader *r)
{
    for (const struct field *f = request_fields; f->name; f++) {
        if (!(f->apis & r->ask->api)) continue;
        const struct sy_json *v = sy_json_get(r->ask->root, f->name);
        /* null is "left out" everywhere: clients write it for what the user did not set. */
        if (v && !sy_json_is_null(v) && !read_field(r, f, v)) return false;
    }
    return true;
}

static void note_ignored(struct sy_ask *a)
{
    const char *key;
    const struct sy_json *v;
    size_t n = 0;
    for (void *it = NULL; (it = sy_json_next(a->root, it, &key, &v));) {
        const struct field *f = request_fields;
        while (f->name && (!(f->apis & a->api) || strcmp(f->name, key))) f++;
        size_t len = strlen(key);
        bool plain = len && strspn(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == len;
        if (f->name || !plain || n + len + 2 > sizeof a->ignored) continue; /* this goes into a header */
        n += (size_t)snprintf(a->ignored + n, sizeof a->ignored - n, "%s%s", n ? "," : "", key);
    }
}

/* ---- what fields mean together ------------------------------------------------------------------------- */

static bool check_prompt(struct reader *r)
{
    struct sy_ask *a = r->ask;
    switch (a->api) {
    case SY_API_CHAT:
    case SY_API_TEMPLATE:
        if (!r->limits->has_template)
            return request_refuse(r, "messages", "this model has no chat template; use /v1/completions");
        return a->messages ? true : request_refuse(r, "messages", "expected an array, found nothing");
    case SY_API_COMPLETION:
        return a->n_prompt ? true : request_refuse(r, "prompt", "expected a prompt, found nothing");
    case SY_API_EMBEDDING: return a->n_prompt ? true : request_refuse(r, "input", "expected an input, found nothing");
    case SY_API_TOKENIZE:
        return a->n_prompt ? true : request_refuse(r, "content", "expected a string, found nothing");
    case SY_API_DETOKENIZE:
        if (!r->limits->has_tokenizer) return request_refuse(r, "tokens", "this model has no tokenizer");
        return a->n_prompt ? true : request_refuse(r, "tokens", "expected an array of token ids, found nothing");
    }
    return false;
}

static bool check_generation(struct reader *r)
{
    struct sy_ask *a = r->ask;
    bool chat = a->api == SY_API_CHAT;
    if (a->n > r->limits->choices_max)
        return request_refuse(r, "n", "this server answers at most %d at once (--max-seqs), found %lld",
                              r->limits->choices_max, (long long)a->n);
    if (a->n * a->n_prompt > SY_PROMPTS_MAX)
        return request_refuse(r, "n", "at most %d answers in all, found %d prompts and n %lld", SY_PROMPTS_MAX,
                              a->n_prompt, (long long)a->n);
    if (a->n_max_new >= 0) a->n_max = a->n_max_new;
    if (a->n_max < 0 && !chat) a->n_max = 16;
    if (a->n_max >= 0 && a->n_min > a->n_max)
        return request_refuse(r, "min_tokens", "expected at most max_tokens %lld, found %lld", (long long)a->n_max,
                              (long long)a->n_min);
    if (a->top_logprobs >= 0 && !a->logprobs_on)
        return request_refuse(r, "top_logprobs", "expected 'logprobs' to be true with it");
    if (chat && a->logprobs_on) a->logprobs = a->top_logprobs < 0 ? 0 : a->top_logprobs;
    if (a->include_usage && !a->stream)
        return request_refuse(r, "stream_options", "expected 'stream' to be true with it");
    struct sy_sampling *s = &a->sampling;
    s->temperature = (float)a->temperature;
    s->top_k = a->top_k < 0 ? 0 : (int32_t)a->top_k;
    s->top_p = (float)a->top_p;
    s->min_p = (float)a->min_p;
    s->typical_p = (float)a->typical_p;
    s->repeat_penalty = (float)a->repetition_penalty;
    s->presence_penalty = (float)a->presence_penalty;
    s->frequency_penalty = (float)a->frequency_penalty;
    s->n_logprob = (int32_t)a->logprobs;
    s->seed = (uint64_t)a->seed;
    return true;
}

static void set_defaults(struct sy_ask *a, enum sy_api api, const struct sy_ask_limits *l)
{
    const struct sy_sampling *d = &l->defaults;
    *a = (struct sy_ask){.api = api,
                         .n = 1,
                         .n_max = -1,
                         .n_max_new = -1,
                         .top_logprobs = -1,
                         .logprobs = -1,
                         .top_k = d->top_k,
                         .temperature = (double)d->temperature,
                         .top_p = (double)d->top_p,
                         .min_p = (double)d->min_p,
                         .typical_p = (double)d->typical_p,
                         .repetition_penalty = (double)d->repeat_penalty,
                         .skip_special = api != SY_API_DETOKENIZE,
                         .generation_prompt = true,
                         .parse_special = true};
    a->sampling = (struct sy_sampling){.n_logprob = -1};
}

bool sy_ask_parse(const struct sy_env *env, enum sy_api api, const char *body, size_t n,
                  const struct sy_ask_limits *limits, struct sy_ask *a, struct sy_problem *p)
{
    set_defaults(a, api, limits);
    sy_arena_init(&a->arena, env, 0);
    struct reader r = {.ask = a, .limits = limits, .problem = p, .env = env};
    if (!parse(env, body, n, &a->root, p) || !read_fields(&r) || !check_prompt(&r)) return false;
    if ((api == SY_API_CHAT || api == SY_API_COMPLETION) && !check_generation(&r)) return false;
    if (api == SY_API_EMBEDDING && a->dimensions > limits->d_model)
        return request_refuse(&r, "dimensions", "expected at most %d, found %lld", limits->d_model,
                              (long long)a->dimensions);
    note_ignored(a);
    return true;
}

void sy_ask_release(struct sy_ask *a)
{
    sy_json_free(a->messages);
    sy_json_free(a->root);
    sy_arena_release(&a->arena);
}
