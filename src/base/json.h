/* json.h - reading JSON (RFC 8259) from outside: jansson behind our errors, and a reader whose errors stick.
 *
 * Depth is bounded (2048 by jansson), duplicate keys are refused, text must be valid UTF-8. Key order is kept.
 * With `lax` the bare tokens Infinity, -Infinity and NaN are accepted too, as some published config.json files
 * have them: they read as +-1.8e308 and null. */
#pragma once
#include "base/buf.h"

struct sy_json; /* one value; borrowed from the root, which sy_json_free() frees */

SY_CHECK sy_status sy_json_parse(const struct sy_env *, const char *text, size_t n, bool lax, struct sy_json **out,
                                 struct sy_err *);
void sy_json_free(struct sy_json *); /* NULL is fine */

/* Looking around; every function accepts NULL and answers "not there". Lengths are bytes. */
const struct sy_json *sy_json_get(const struct sy_json *object, const char *key);
const struct sy_json *sy_json_at(const struct sy_json *array, size_t i);
size_t sy_json_len(const struct sy_json *array_or_object);
bool sy_json_is_object(const struct sy_json *);
bool sy_json_is_array(const struct sy_json *);
bool sy_json_is_text(const struct sy_json *);
bool sy_json_is_number(const struct sy_json *);
bool sy_json_is_int(const struct sy_json *);
bool sy_json_is_bool(const struct sy_json *);
bool sy_json_is_null(const struct sy_json *);                  /* JSON null; NULL (not there) is not null */
const char *sy_json_text(const struct sy_json *);              /* NULL unless a string; NUL-terminated */
const char *sy_json_text_n(const struct sy_json *, size_t *n); /* the same, may hold NULs */
double sy_json_number(const struct sy_json *, double otherwise);
int64_t sy_json_int(const struct sy_json *, int64_t otherwise);
bool sy_json_bool(const struct sy_json *, bool otherwise);
/* Walks an object in file order: for (void *it = NULL; (it = sy_json_next(o, it, &key, &value));) */
void *sy_json_next(const struct sy_json *object, void *it, const char **key, const struct sy_json **value);

/* Building: a writer makes text (sy_buf); this makes values, for readers that are fed by other formats. */
struct sy_json *sy_json_new_object(void);
struct sy_json *sy_json_new_array(void);
struct sy_json *sy_json_new_int(int64_t);
struct sy_json *sy_json_new_number(double); /* finite, or it fails */
struct sy_json *sy_json_new_bool(bool);
struct sy_json *sy_json_new_text(const char *, size_t n); /* fails on invalid UTF-8 */
struct sy_json *sy_json_share(const struct sy_json *);    /* one more owner of the same value; sy_json_free() each */
bool sy_json_set_take(struct sy_json *object, const char *key, struct sy_json *value); /* takes value, even NULL */
bool sy_json_push_take(struct sy_json *array, struct sy_json *value);                  /* false: it failed */

void sy_json_truncate(struct sy_json *array, size_t n); /* drops elements n, n+1, ... */

/* A config reader: asks for keys by type and range; the first failure sticks in *err and `st`, later calls return
 * a harmless in-range value. `where` names the file in messages: "config.json: 'hidden_size': ...". */
struct sy_jread {
    const struct sy_json *obj;
    const char *where;
    struct sy_err *err;
    sy_status st;
};
int64_t sy_jread_int(struct sy_jread *, const char *key, int64_t lo, int64_t hi); /* required */
int64_t sy_jread_int_or(struct sy_jread *, const char *key, int64_t otherwise, int64_t lo, int64_t hi);
double sy_jread_num(struct sy_jread *, const char *key, double lo, double hi); /* required */
double sy_jread_num_or(struct sy_jread *, const char *key, double otherwise, double lo, double hi);
bool sy_jread_bool_or(struct sy_jread *, const char *key, bool otherwise);
const char *sy_jread_text(struct sy_jread *, const char *key); /* required */
const char *sy_jread_text_or(struct sy_jread *, const char *key, const char *otherwise);
bool sy_jread_has(const struct sy_jread *, const char *key); /* there and not null */
sy_status sy_jread_refuse(struct sy_jread *, sy_status, const char *fmt, ...) SY_PRINTF(3, 4); /* if none before */

void sy_json_write(struct sy_buf *, const struct sy_json *);     /* appends the value as compact text */
void sy_json_quote(struct sy_buf *, const char *text, size_t n); /* appends a JSON string, ASCII-safe escapes of
                                                            control characters; invalid UTF-8 becomes U+FFFD */
