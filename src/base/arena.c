#include "base/arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK_BYTES_MIN = 1 << 14 };

struct sy_arena_block {
    struct sy_arena_block *next;
    size_t used, size;
    _Alignas(16) unsigned char mem[];
};

void sy_arena_init(struct sy_arena *a, const struct sy_env *env, size_t limit)
{
    *a = (struct sy_arena){.env = env, .limit = limit ? limit : SIZE_MAX};
}

void sy_arena_release(struct sy_arena *a)
{
    for (struct sy_arena_block *b = a->block, *next; b; b = next) {
        next = b->next;
        sy_delete(a->env, b);
    }
    a->block = NULL;
    a->used = 0;
}

void *sy_arena_get(struct sy_arena *a, size_t n)
{
    if (n > SIZE_MAX / 4) return NULL;
    n = (n + 15) & ~(size_t)15;
    if (n > a->limit || a->used > a->limit - n) return NULL;
    struct sy_arena_block *b = a->block;
    if (!b || b->size - b->used < n) {
        size_t size = b ? 2 * b->size : BLOCK_BYTES_MIN;
        if (size > (1u << 20)) size = 1u << 20;
        if (size < n) size = n;
        b = sy_new(a->env, sizeof *b + size);
        if (!b) return NULL;
        b->size = size;
        b->next = a->block;
        a->block = b;
    }
    void *p = b->mem + b->used;
    b->used += n;
    a->used += n;
    return p;
}

void *sy_arena_array(struct sy_arena *a, size_t n, size_t size)
{
    size_t total;
    return __builtin_mul_overflow(n, size, &total) ? NULL : sy_arena_get(a, total);
}

char *sy_arena_text(struct sy_arena *a, const char *s, size_t n)
{
    char *p = n < SIZE_MAX ? sy_arena_get(a, n + 1) : NULL;
    if (p && n) memcpy(p, s, n);
    return p;
}

char *sy_arena_printf(struct sy_arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *p = n < 0 ? NULL : sy_arena_get(a, (size_t)n + 1);
    if (p) vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    return p;
}
