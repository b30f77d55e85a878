/* arena.h - memory with one lifetime: everything taken from an arena is freed with it, in one call.
 * Caller's storage: init / release. Not thread safe. limit bounds the bytes it may ever hand out. */
#pragma once
#include "base/base.h"

struct sy_arena_block;
struct sy_arena {
    const struct sy_env *env;
    struct sy_arena_block *block;
    size_t used, limit;
};

void sy_arena_init(struct sy_arena *, const struct sy_env *, size_t limit); /* limit 0: none; allocates nothing */
void sy_arena_release(struct sy_arena *);                                   /* usable again afterwards */
void *sy_arena_get(struct sy_arena *, size_t n); /* zeroed, 16-byte aligned; NULL when out of memory or limit */
void *sy_arena_array(struct sy_arena *, size_t n, size_t size);  /* overflow checked */
char *sy_arena_text(struct sy_arena *, const char *s, size_t n); /* a NUL-terminated copy */
char *sy_arena_printf(struct sy_arena *, const char *fmt, ...) SY_PRINTF(2, 3);
