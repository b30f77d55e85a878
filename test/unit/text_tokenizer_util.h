/* What the tokenizer tests share: loading a fixture, comparing ids, an allocator that fails. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "text/tokenizer.h"

static inline struct sy_json *load_json(const char *name, const char *file)
{
    char path[256], *text;
    size_t n;
    struct sy_err err = {0};
    struct sy_json *j = NULL;
    snprintf(path, sizeof path, "test/golden/tokenizers/%s/%s", name, file);
    if (sy_file_read(sy_env_default(), path, 1 << 24, &text, &n, &err) != SY_OK) fail_msg("%s: %s", path, err.msg);
    if (sy_json_parse(sy_env_default(), text, n, false, &j, &err) != SY_OK) fail_msg("%s: %s", path, err.msg);
    sy_delete(sy_env_default(), text);
    return j;
}

static inline struct sy_json *parse(const char *text)
{
    struct sy_err err = {0};
    struct sy_json *j = NULL;
    if (sy_json_parse(sy_env_default(), text, strlen(text), false, &j, &err) != SY_OK)
        fail_msg("%s in %s", err.msg, text);
    return j;
}

static inline struct sy_tokenizer *open_fixture(const struct sy_env *env, const char *name)
{
    struct sy_err err = {0};
    struct sy_tokenizer *t = NULL;
    struct sy_json *j = load_json(name, "tokenizer.json"), *config = load_json(name, "tokenizer_config.json");
    if (sy_tokenizer_from_json(env, j, config, name, &t, &err) != SY_OK) fail_msg("%s", err.msg);
    sy_json_free(j);
    sy_json_free(config);
    return t;
}

static inline struct sy_ids encode_n(const struct sy_tokenizer *t, const char *s, size_t n, unsigned flags)
{
    struct sy_err err = {0};
    struct sy_ids ids;
    sy_ids_init(&ids, sy_env_default());
    if (sy_tokenizer_encode(t, s, n, flags, &ids, &err) != SY_OK) fail_msg("%s", err.msg);
    return ids;
}

static inline struct sy_ids encode(const struct sy_tokenizer *t, const char *s, unsigned flags)
{
    return encode_n(t, s, strlen(s), flags);
}

static inline void print_ids(const char *what, const int32_t *ids, size_t n)
{
    printf("%s:", what);
    for (size_t i = 0; i < n && i < 60; i++) printf(" %d", ids[i]);
    printf("\n");
}

static inline void check_ids(struct sy_ids *ids, const int32_t *want, size_t n, const char *what)
{
    if (ids->n != n || (n && memcmp(ids->at, want, n * sizeof *want))) {
        print_ids("found", ids->at, ids->n);
        print_ids("expected", want, n);
        fail_msg("%s: wrong ids", what);
    }
    sy_ids_release(ids);
}
#define CHECK_IDS(ids, ...)                                                                                          \
    do {                                                                                                             \
        struct sy_ids found_ = ids;                                                                                  \
        check_ids(&found_, (const int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / 4, #ids);              \
    } while (0)

/* An allocator over the default one that fails its n-th call, counted from 0; -1: never. */
struct failing {
    long left, live;
};
static void *failing_get(void *ctx, size_t n)
{
    struct failing *f = ctx;
    if (f->left == 0) return NULL;
    if (f->left > 0) f->left--;
    f->live++;
    return sy_new(sy_env_default(), n);
}
static void *failing_resize(void *ctx, void *old, size_t n_old, size_t n)
{
    struct failing *f = ctx;
    if (f->left == 0) return NULL;
    if (f->left > 0) f->left--;
    f->live += !old;
    return sy_resize(sy_env_default(), old, n_old, n);
}
static void failing_free(void *ctx, void *p)
{
    ((struct failing *)ctx)->live--;
    sy_delete(sy_env_default(), p);
}
static inline struct sy_alloc failing_alloc(struct failing *f)
{
    return (struct sy_alloc){failing_get, failing_resize, failing_free, f};
}
