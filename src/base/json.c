#include "base/json.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* A value of ours is jansson's, unchanged: no copies, no second tree. */
static json_t *jan(const struct sy_json *j) { return (json_t *)(uintptr_t)j; }
static struct sy_json *our(json_t *j) { return (struct sy_json *)j; }

/* Inside a string or a number, jansson's reader goes on without the character for which it got no memory, and calls
 * the result good. So its requests are watched, in each thread by itself, and a text during which one failed is not
 * taken. The memory is malloc's as before: whoever else uses jansson in this process sees no difference. */
static bool *starved(void)
{
    static _Thread_local bool yes;
    return &yes;
}
static void *watched_get(size_t n)
{
    void *p = malloc(n);
    if (!p && n) *starved() = true;
    return p;
}
__attribute__((constructor)) static void watch_memory(void) { json_set_alloc_funcs(watched_get, free); }

static const char big[] = "1.7976931348623157e308";

/* Replaces the bare tokens Infinity and NaN outside strings. */
static void standardise(struct sy_buf *out, const char *s, size_t n)
{
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string) {
            if (s[i] == '\\' && i + 1 < n) sy_buf_char(out, s[i++]);
            else if (s[i] == '"') in_string = false;
        } else if (s[i] == '"') {
            in_string = true;
        } else if (n - i >= 8 && !memcmp(s + i, "Infinity", 8)) {
            sy_buf_text(out, big);
            i += 7;
            continue;
        } else if (n - i >= 3 && !memcmp(s + i, "NaN", 3)) {
            sy_buf_text(out, "null");
            i += 2;
            continue;
        }
        sy_buf_char(out, s[i]);
    }
}

sy_status sy_json_parse(const struct sy_env *env, const char *text, size_t n, bool lax, struct sy_json **out,
                        struct sy_err *err)
{
    struct sy_buf std;
    sy_buf_init(&std, env, 0);
    if (lax && (memmem(text, n, "Infinity", 8) || memmem(text, n, "NaN", 3))) {
        standardise(&std, text, n);
        if (std.failed) {
            sy_buf_release(&std);
            return sy_fail(err, SY_ENOMEM, "no memory to read %zu bytes of JSON", n);
        }
        text = std.at;
        n = std.len;
    }
    json_error_t e;
    *starved() = false;
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    sy_buf_release(&std);
    if (*starved()) {
        json_decref(j);
        return sy_fail(err, SY_ENOMEM, "no memory to read %zu bytes of JSON", n);
    }
    if (!j) return sy_fail(err, SY_EFORMAT, "not valid JSON: %s (line %d, column %d)", e.text, e.line, e.column);
    *out = our(j);
    return SY_OK;
}

void sy_json_free(struct sy_json *j) { json_decref(jan(j)); }

const struct sy_json *sy_json_get(const struct sy_json *o, const char *key)
{
    return our(json_object_get(jan(o), key));
}
const struct sy_json *sy_json_at(const struct sy_json *a, size_t i) { return our(json_array_get(jan(a), i)); }
size_t sy_json_len(const struct sy_json *j)
{
    return json_is_array(jan(j)) ? json_array_size(jan(j)) : json_object_size(jan(j));
}
bool sy_json_is_object(const struct sy_json *j) { return json_is_object(jan(j)); }
bool sy_json_is_array(const struct sy_json *j) { return json_is_array(jan(j)); }
bool sy_json_is_text(const struct sy_json *j) { return json_is_string(jan(j)); }
bool sy_json_is_number(const struct sy_json *j) { return json_is_number(jan(j)); }
bool sy_json_is_int(const struct sy_json *j) { return json_is_integer(jan(j)); }
bool sy_json_is_bool(const struct sy_json *j) { return json_is_boolean(jan(j)); }
bool sy_json_is_null(const struct sy_json *j) { return json_is_null(jan(j)); }
const char *sy_json_text(const struct sy_json *j) { return json_string_value(jan(j)); }
const char *sy_json_text_n(const struct sy_json *j, size_t *n)
{
    *n = json_string_length(jan(j));
    return json_string_value(jan(j));
}
double sy_json_number(const struct sy_json *j, double otherwise)
{
    return json_is_number(jan(j)) ? json_number_value(jan(j)) : otherwise;
}
int64_t sy_json_int(const struct sy_json *j, int64_t otherwise)
{
    return json_is_integer(jan(j)) ? json_integer_value(jan(j)) : otherwise;
}
bool sy_json_bool(const struct sy_json *j, bool otherwise)
{
    return json_is_boolean(jan(j)) ? json_is_true(jan(j)) : otherwise;
}

void *sy_json_next(const struct sy_json *o, void *it, const char **key, const struct sy_json **value)
{
    it = it ? json_object_iter_next(jan(o), it) : json_object_iter(jan(o));
    if (!it) return NULL;
    *key = json_object_iter_key(it);
    *value = our(json_object_iter_value(it));
    return it;
}

struct sy_json *sy_json_new_object(void) { return our(json_object()); }
struct sy_json *sy_json_new_array(void) { return our(json_array()); }
struct sy_json *sy_json_new_int(int64_t v) { return our(json_integer(v)); }
struct sy_json *sy_json_new_number(double v) { return our(json_real(v)); }
struct sy_json *sy_json_new_bool(bool v) { return our(json_boolean(v)); }
struct sy_json *sy_json_new_text(const char *s, size_t n) { return our(json_stringn(s, n)); }
struct sy_json *sy_json_share(const struct sy_json *j) { return our(json_incref(jan(j))); }
bool sy_json_set_take(struct sy_json *o, const char *key, struct sy_json *v)
{
    return json_object_set_new(jan(o), key, jan(v)) == 0;
}
bool sy_json_push_take(struct sy_json *a, struct sy_json *v) { return json_array_append_new(jan(a), jan(v)) == 0; }

void sy_json_truncate(struct sy_json *a, size_t n)
{
    while (json_array_size(jan(a)) > n) json_array_remove(jan(a), json_array_size(jan(a)) - 1);
}

/* ---- the reader ----------------------------------------------------------------------------------------- */

static const char *kind_name(const struct sy_json *j)
{
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};
    return j ? names[json_typeof(jan(j))] : "nothing";
}

sy_status sy_jread_refuse(struct sy_jread *r, sy_status st, const char *fmt, ...)
{
    if (r->st != SY_OK) return r->st;
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return r->st = sy_fail(r->err, st, "%s: %s", r->where, msg);
}

bool sy_jread_has(const struct sy_jread *r, const char *key)
{
    const struct sy_json *j = sy_json_get(r->obj, key);
    return j && !sy_json_is_null(j);
}

int64_t sy_jread_int(struct sy_jread *r, const char *key, int64_t lo, int64_t hi)
{
    const struct sy_json *j = sy_json_get(r->obj, key);
    double num = sy_json_number(j, NAN);
    bool whole = sy_json_is_int(j) || (num == floor(num) && fabs(num) < 9e15);
    int64_t v = sy_json_is_int(j) ? sy_json_int(j, 0) : whole ? (int64_t)num : 0;
    if (!whole)
        sy_jread_refuse(r, SY_EFORMAT, "'%s': expected an integer from %lld to %lld, found %s", key, (long long)lo,
                        (long long)hi, kind_name(j));
    else if (v < lo || v > hi)
        sy_jread_refuse(r, SY_EFORMAT, "'%s': expected an integer from %lld to %lld, found %lld", key, (long long)lo,
                        (long long)hi, (long long)v);
    else return v;
    return lo;
}

int64_t sy_jread_int_or(struct sy_jread *r, const char *key, int64_t otherwise, int64_t lo, int64_t hi)
{
    return sy_jread_has(r, key) ? sy_jread_int(r, key, lo, hi) : otherwise;
}

double sy_jread_num(struct sy_jread *r, const char *key, double lo, double hi)
{
    const struct sy_json *j = sy_json_get(r->obj, key);
    double v = sy_json_number(j, NAN);
    if (!sy_json_is_number(j))
        sy_jread_refuse(r, SY_EFORMAT, "'%s': expected a number from %g to %g, found %s", key, lo, hi, kind_name(j));
    else if (!(v >= lo && v <= hi))
        sy_jread_refuse(r, SY_EFORMAT, "'%s': expected a number from %g to %g, found %g", key, lo, hi, v);
    else return v;
    return lo;
}

double sy_jread_num_or(struct sy_jread *r, const char *key, double otherwise, double lo, double hi)
{
    return sy_jread_has(r, key) ? sy_jread_num(r, key, lo, hi) : otherwise;
}

bool sy_jread_bool_or(struct sy_jread *r, const char *key, bool otherwise)
{
    const struct sy_json *j = sy_json_get(r->obj, key);
    if (!sy_jread_has(r, key)) return otherwise;
    if (!sy_json_is_bool(j))
        sy_jread_refuse(r, SY_EFORMAT, "'%s': expected true or false, found %s", key, kind_name(j));
    return sy_json_bool(j, otherwise);
}

const char *sy_jread_text(struct sy_jread *r, const char *key)
{
    const struct sy_json *j = sy_json_get(r->obj, key);
    if (!sy_json_is_text(j)) sy_jread_refuse(r, SY_EFORMAT, "'%s': expected a string, found %s", key, kind_name(j));
    return sy_json_is_text(j) ? sy_json_text(j) : "";
}

const char *sy_jread_text_or(struct sy_jread *r, const char *key, const char *otherwise)
{
    return sy_jread_has(r, key) ? sy_jread_text(r, key) : otherwise;
}

void sy_json_quote(struct sy_buf *b, const char *s, size_t n)
{
    sy_buf_char(b, '"');
    for (size_t i = 0; i < n;) {
        uint32_t c;
        size_t len = sy_utf8_next(s + i, n - i, &c);
        i += len;
        if (c == '"' || c == '\\') sy_buf_printf(b, "\\%c", (int)c);
        else if (c == '\n') sy_buf_text(b, "\\n");
        else if (c == '\t') sy_buf_text(b, "\\t");
        else if (c == '\r') sy_buf_text(b, "\\r");
        else if (c < 0x20 || c == 0x7f) sy_buf_printf(b, "\\u%04x", (unsigned)c);
        else sy_buf_utf8(b, c);
    }
    sy_buf_char(b, '"');
}

static int add_some(const char *text, size_t n, void *ctx)
{
    struct sy_buf *b = ctx;
    sy_buf_add(b, text, n);
    return b->failed ? -1 : 0;
}

void sy_json_write(struct sy_buf *b, const struct sy_json *j)
{
    if (json_dump_callback(jan(j), add_some, b, JSON_COMPACT | JSON_ENCODE_ANY)) b->failed = true;
}
