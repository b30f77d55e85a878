/* checkpoint_util.h - for the tests of checkpoint/: an environment that counts and fails allocations, byte
 * writers, and small files made in memory, whose parts a test changes before they are written. */
#pragma once
#include "base/buf.h"
#include "checkpoint/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- an allocator that counts -------------------------------------------------------------------------- */

struct counted {
    long n, fail_at;   /* the fail_at-th allocation fails; 0: none does */
    size_t live, peak; /* bytes */
    struct sy_alloc alloc;
    struct sy_env env;
};

static void *counted_get(void *ctx, size_t n)
{
    struct counted *c = ctx;
    if (++c->n == c->fail_at || n > SIZE_MAX / 2) return NULL;
    size_t *p = aligned_alloc(64, (n + 127) / 64 * 64);
    if (!p) return NULL;
    memset(p, 0, (n + 127) / 64 * 64);
    *p = n;
    c->live += n;
    if (c->live > c->peak) c->peak = c->live;
    return (char *)p + 64;
}

static void counted_free(void *ctx, void *p)
{
    struct counted *c = ctx;
    if (!p) return;
    size_t *head = (size_t *)(void *)((char *)p - 64);
    c->live -= *head;
    free(head);
}

static void *counted_resize(void *ctx, void *old, size_t n_old, size_t n)
{
    void *p = counted_get(ctx, n);
    if (!p) return NULL;
    if (old) memcpy(p, old, n_old < n ? n_old : n);
    counted_free(ctx, old);
    return p;
}

static void counted_init(struct counted *c, long fail_at)
{
    *c = (struct counted){.fail_at = fail_at};
    c->alloc = (struct sy_alloc){counted_get, counted_resize, counted_free, c};
    c->env = (struct sy_env){&c->alloc, sy_env_default()->clock, sy_env_default()->log};
}

/* ---- bytes --------------------------------------------------------------------------------------------- */

static inline void put_n(struct sy_buf *b, uint64_t v, size_t n) { sy_buf_add(b, &v, n); }
static inline void put_str(struct sy_buf *b, const char *s)
{
    put_n(b, strlen(s), 8);
    sy_buf_text(b, s);
}

static inline void write_file(const char *folder, const char *name, const void *at, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(at, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void write_text(const char *folder, const char *name, const char *text)
{
    write_file(folder, name, text, strlen(text));
}

/* A fresh folder; remove_folder() takes it away with what is in it. */
static inline char *make_folder(char *path, size_t n)
{
    snprintf(path, n, "/tmp/systole-test-XXXXXX");
    assert_non_null(mkdtemp(path));
    return path;
}

static inline void remove_folder(const char *path)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}
