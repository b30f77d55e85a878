/* messages.c - a conversation in OpenAI's shape, checked, and brought into the shape chat templates are
 * written for: content is one string, the arguments of tool calls are values. */
#include <stdio.h>
#include <string.h>

#include "serve/request_int.h"

enum { PATH_BYTES = 160 }; /* of a path into the body, for messages */

static bool known_role(const char *role)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    for (size_t i = 0; i < SY_COUNT(roles); i++)
        if (!strcmp(role, roles[i])) return true;
    return false;
}

/* Text parts, joined by line breaks as vLLM joins them. NULL: refused. */
static struct sy_json *join_parts(struct reader *r, const struct sy_json *parts, const char *path)
{
    struct sy_buf b;
    sy_buf_init(&b, r->env, 0);
    struct sy_json *out = NULL;
    for (size_t i = 0; i < sy_json_len(parts); i++) {
        char at[PATH_BYTES + 32];
        snprintf(at, sizeof at, "%s[%zu]", path, i);
        const struct sy_json *p = sy_json_at(parts, i);
        const char *type = sy_json_text(sy_json_get(p, "type"));
        size_t n = 0;
        const char *text = sy_json_text_n(sy_json_get(p, "text"), &n);
        if (type && !strcmp(type, "refusal")) text = sy_json_text_n(sy_json_get(p, "refusal"), &n);
        if (!type) {
            request_refuse(r, at, "expected an object with a 'type', found %s", request_kind(p));
            goto done;
        }
        if (strcmp(type, "text") && strcmp(type, "refusal")) {
            request_refuse(r, at, "parts of type '%.40s' are not supported, only 'text'", type);
            goto done;
        }
        if (!text) {
            request_refuse(r, at, "expected a string in '%s'", strcmp(type, "text") ? "refusal" : "text");
            goto done;
        }
        if (i) sy_buf_char(&b, '\n');
        sy_buf_add(&b, text, n);
    }
    if (sy_json_len(parts) == 0) request_refuse(r, path, "expected at least one part, found none");
    else if (b.failed || !(out = sy_json_new_text(b.at, b.len))) request_no_memory(r);
done:
    sy_buf_release(&b);
    return out;
}

static struct sy_json *read_content(struct reader *r, const struct sy_json *m, const char *role, const char *path)
{
    const struct sy_json *c = sy_json_get(m, "content");
    if (sy_json_is_text(c)) return sy_json_share(c);
    if (sy_json_is_array(c)) return join_parts(r, c, path);
    bool nothing = !c || sy_json_is_null(c);
    bool calls = sy_json_len(sy_json_get(m, "tool_calls")) > 0 ||
                 sy_json_is_object(sy_json_get(m, "function_call")) || sy_json_is_text(sy_json_get(m, "refusal"));
    if (nothing && !strcmp(role, "assistant") && calls) return sy_json_new_text("", 0);
    request_refuse(r, path, "expected a string or an array of parts, found %s", request_kind(c));
    return NULL;
}

/* One call: its arguments come as a string of JSON and go as the value. NULL: refused. */
static struct sy_json *read_call(struct reader *r, const struct sy_json *call, const char *path)
{
    char at[PATH_BYTES + 64];
    const struct sy_json *fn = sy_json_get(call, "function");
    const char *id = sy_json_text(sy_json_get(call, "id")), *name = sy_json_text(sy_json_get(fn, "name"));
    const char *type = sy_json_text(sy_json_get(call, "type"));
    size_t n;
    const char *text = sy_json_text_n(sy_json_get(fn, "arguments"), &n);
    const struct {
        bool ok;
        const char *field, *want;
        const struct sy_json *found;
    } checks[] = {
        {id && *id, "id", "a string that is not empty", sy_json_get(call, "id")},
        {!sy_json_get(call, "type") || (type && !strcmp(type, "function")), "type", "'function'",
         sy_json_get(call, "type")},
        {sy_json_is_object(fn), "function", "an object", fn},
        {name && *name, "function.name", "a string that is not empty", sy_json_get(fn, "name")},
        {text != NULL, "function.arguments", "a string of JSON", sy_json_get(fn, "arguments")},
    };
    for (size_t i = 0; i < SY_COUNT(checks); i++) {
        if (checks[i].ok) continue;
        snprintf(at, sizeof at, "%s.%s", path, checks[i].field);
        request_refuse(r, at, "expected %s, found %s", checks[i].want, request_kind(checks[i].found));
        return NULL;
    }
    struct sy_json *arguments = NULL;
    struct sy_problem none = {0};
    if (n == 0) arguments = sy_json_new_object();
    else if (!request_scan(text, n, &none) || sy_json_parse(r->env, text, n, false, &arguments, NULL)) {
        /* A model may have written anything here: the template then gets it as text, as it came. */
        arguments = sy_json_share(sy_json_get(fn, "arguments"));
    }
    struct sy_json *f = sy_json_new_object(), *c = sy_json_new_object();
    bool ok = f && sy_json_set_take(f, "name", sy_json_share(sy_json_get(fn, "name")));
    ok = ok ? sy_json_set_take(f, "arguments", arguments) : (sy_json_free(arguments), false);
    ok = ok && c && sy_json_set_take(c, "id", sy_json_share(sy_json_get(call, "id")));
    ok = ok && sy_json_set_take(c, "type", sy_json_new_text("function", 8));
    ok = ok ? sy_json_set_take(c, "function", f) : (sy_json_free(f), false);
    ok = ok && sy_json_set_take(r->called, id, sy_json_new_bool(true));
    if (ok) return c;
    sy_json_free(c);
    request_no_memory(r);
    return NULL;
}

static struct sy_json *read_calls(struct reader *r, const struct sy_json *calls, const char *path)
{
    struct sy_json *out = sy_json_new_array();
    for (size_t i = 0; out && i < sy_json_len(calls); i++) {
        char at[PATH_BYTES + 32];
        snprintf(at, sizeof at, "%s[%zu]", path, i);
        struct sy_json *c = read_call(r, sy_json_at(calls, i), at);
        if (c && sy_json_push_take(out, c)) continue;
        sy_json_free(out);
        return NULL;
    }
    if (!out) request_no_memory(r);
    return out;
}

static bool check_tool_message(struct reader *r, const struct sy_json *messages, size_t i)
{
    char at[PATH_BYTES];
    snprintf(at, sizeof at, "messages[%zu].tool_call_id", i);
    const struct sy_json *v = sy_json_get(sy_json_at(messages, i), "tool_call_id");
    const char *id = sy_json_text(v);
    if (!id || !*id) return request_refuse(r, at, "expected a string that is not empty, found %s", request_kind(v));
    if (!sy_json_get(r->called, id))
        return request_refuse(r, at, "no earlier message of the assistant has a tool call '%.40s'", id);
    return true;
}

static struct sy_json *read_message(struct reader *r, const struct sy_json *messages, size_t i)
{
    char at[PATH_BYTES];
    const struct sy_json *m = sy_json_at(messages, i), *v;
    const char *role = sy_json_text(sy_json_get(m, "role")), *key;
    snprintf(at, sizeof at, "messages[%zu]%s", i, sy_json_is_object(m) ? ".role" : "");
    if (!sy_json_is_object(m)) {
        request_refuse(r, at, "expected an object, found %s", request_kind(m));
        return NULL;
    }
    if (!role || !known_role(role)) {
        request_refuse(r, at, "expected system, developer, user, assistant or tool, found %s%.40s",
                       role ? "" : request_kind(sy_json_get(m, "role")), role ? role : "");
        return NULL;
    }
    if (!strcmp(role, "tool") && !check_tool_message(r, messages, i)) return NULL;
    const struct sy_json *calls = sy_json_get(m, "tool_calls");
    bool has_calls = calls && !sy_json_is_null(calls);
    snprintf(at, sizeof at, "messages[%zu].tool_calls", i);
    if (has_calls && !sy_json_is_array(calls)) {
        request_refuse(r, at, "expected an array, found %s", request_kind(calls));
        return NULL;
    }
    struct sy_json *out = sy_json_new_object(), *done = has_calls && out ? read_calls(r, calls, at) : NULL;
    snprintf(at, sizeof at, "messages[%zu].content", i);
    struct sy_json *content = out && (done || !has_calls) ? read_content(r, m, role, at) : NULL;
    bool ok = out && content;
    if (!ok) sy_json_free(content);
    bool system = !strcmp(role, "developer") && !r->limits->knows_developer;
    ok = ok && sy_json_set_take(out, "role",
                                system ? sy_json_new_text("system", 6) : sy_json_share(sy_json_get(m, "role")));
    if (ok) ok = sy_json_set_take(out, "content", content);
    for (void *it = NULL; ok && (it = sy_json_next(m, it, &key, &v));) {
        if (!strcmp(key, "role") || !strcmp(key, "content")) continue;
        bool mine = !strcmp(key, "tool_calls") && done;
        ok = sy_json_set_take(out, key, mine ? done : sy_json_share(v));
        if (mine) done = NULL;
    }
    sy_json_free(done);
    if (ok) return out;
    sy_json_free(out);
    request_no_memory(r); /* unless there is a better reason already */
    return NULL;
}

bool request_messages(struct reader *r, const struct sy_json *v)
{
    if (!sy_json_is_array(v)) return request_refuse(r, "messages", "expected an array, found %s", request_kind(v));
    if (!sy_json_len(v)) return request_refuse(r, "messages", "expected at least one message, found none");
    r->ask->messages = sy_json_new_array();
    r->called = sy_json_new_object();
    bool ok = r->ask->messages && r->called;
    for (size_t i = 0; ok && i < sy_json_len(v); i++) {
        struct sy_json *m = read_message(r, v, i);
        ok = m && sy_json_push_take(r->ask->messages, m);
    }
    sy_json_free(r->called);
    return ok || request_no_memory(r); /* unless there is a better reason already */
}
