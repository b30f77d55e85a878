/* What the template tests share: fixtures, rendering in one call, an allocator that counts and fails. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "text/template.h"

static inline char *load_text(const char *file, size_t *n)
{
    char path[256], *text;
    struct sy_err err = {0};
    snprintf(path, sizeof path, "test/golden/templates/%s", file);
    if (sy_file_read(sy_env_default(), path, 1 << 24, &text, n, &err) != SY_OK) fail_msg("%s: %s", path, err.msg);
    return text;
}

static inline struct sy_json *parse_n(const char *text, size_t n)
{
    struct sy_err err = {0};
    struct sy_json *j = NULL;
    if (sy_json_parse(sy_env_default(), text, n, false, &j, &err) != SY_OK) fail_msg("%s in %s", err.msg, text);
    return j;
}

static inline struct sy_json *parse(const char *text) { return parse_n(text, strlen(text)); }

static inline struct sy_json *load_json(const char *file)
{
    size_t n;
    char *text = load_text(file, &n);
    struct sy_json *j = parse_n(text, n);
    sy_delete(sy_env_default(), text);
    return j;
}

static inline struct sy_template *compile(const char *source)
{
    struct sy_err err = {0};
    struct sy_template *t = NULL;
    if (sy_template_compile(sy_env_default(), source, strlen(source), NULL, &t, &err) != SY_OK)
        fail_msg("%s: %s", source, err.msg);
    return t;
}

/* Spans must partition the text, in order, and neighbours must differ. */
static inline void check_spans(const struct sy_rendered *o)
{
    size_t at = 0;
    for (size_t i = 0; i < o->n_span; i++) {
        assert_int_equal(o->span[i].lo, at);
        assert_true(o->span[i].hi > at);
        assert_true(i == 0 || o->span[i].trusted != o->span[i - 1].trusted);
        at = o->span[i].hi;
    }
    assert_int_equal(at, o->text.len);
    for (size_t i = 0; i < o->n_generation; i++)
        assert_true(o->generation[i].lo <= o->generation[i].hi && o->generation[i].hi <= o->text.len);
}

/* Compiles and renders; SY_OK: *o must be released. messages and kwargs are JSON texts. */
static inline sy_status render_with(const struct sy_env *env, const char *source, const char *messages,
                                    const char *kwargs, const struct sy_template_limits *limits,
                                    struct sy_rendered *o, struct sy_err *err)
{
    struct sy_json *m = parse(messages), *k = kwargs ? parse(kwargs) : NULL;
    struct sy_template *t = NULL;
    struct sy_render in = {.messages = m, .kwargs = k, .bos = "<s>", .eos = "</s>", .now = 1741529107};
    sy_status st = sy_template_compile(env, source, strlen(source), limits, &t, err);
    if (!st) st = sy_template_render(t, env, &in, o, err);
    sy_template_free(t);
    sy_json_free(m);
    sy_json_free(k);
    return st;
}

static const char one_message[] = "[{\"role\":\"user\",\"content\":\"hi\"}]";

static inline void check_text(const char *source, const char *messages, const char *kwargs, const char *want)
{
    struct sy_rendered o;
    struct sy_err err = {0};
    if (render_with(sy_env_default(), source, messages, kwargs, NULL, &o, &err) != SY_OK)
        fail_msg("%s: %s", source, err.msg);
    if (strlen(want) != o.text.len || memcmp(want, o.text.at, o.text.len))
        fail_msg("%s: '%s', expected '%s'", source, o.text.at, want);
    check_spans(&o);
    sy_rendered_release(&o, sy_env_default());
}

/* It must fail with this status and say this. */
static inline void check_error(const char *source, const char *messages, const char *kwargs, sy_status want,
                               const char *says)
{
    struct sy_rendered o;
    struct sy_err err = {0};
    sy_status st = render_with(sy_env_default(), source, messages, kwargs, NULL, &o, &err);
    if (st == SY_OK) fail_msg("%s: '%s', expected an error", source, o.text.at);
    if (st != want || !strstr(err.msg, says))
        fail_msg("%s: %s: %s, expected %s: ...%s...", source, sy_status_name(st), err.msg, sy_status_name(want),
                 says);
}

/* ---- an allocator that counts and fails -------------------------------------------------------------- */

struct counting {
    long left;  /* allocations until the one that fails; negative: none does */
    long live;  /* blocks not freed yet */
    size_t max; /* largest single block */
};
static inline bool fails(struct counting *c, size_t n)
{
    if (n > c->max) c->max = n;
    return c->left >= 0 && c->left-- == 0;
}
static inline void *counting_get(void *ctx, size_t n)
{
    struct counting *c = ctx;
    void *p = fails(c, n) ? NULL : sy_new(sy_env_default(), n);
    c->live += p != NULL;
    return p;
}
static inline void *counting_resize(void *ctx, void *old, size_t n_old, size_t n)
{
    struct counting *c = ctx;
    void *p = fails(c, n) ? NULL : sy_resize(sy_env_default(), old, n_old, n);
    c->live += p && !old;
    return p;
}
static inline void counting_free(void *ctx, void *p)
{
    ((struct counting *)ctx)->live--;
    sy_delete(sy_env_default(), p);
}
