/* buf.h - a growing byte buffer. Caller's storage: init / release. Errors stick: once memory or the limit ran
 * out, appends do nothing and `failed` is set, so a writer checks once at the end. Not thread safe. */
#pragma once
#include "base/base.h"

struct sy_buf {
    const struct sy_env *env;
    char *at; /* NUL-terminated once anything was appended; NULL before */
    size_t len, cap, limit;
    bool failed;
};

void sy_buf_init(struct sy_buf *, const struct sy_env *, size_t limit); /* limit 0: none; allocates nothing */
void sy_buf_release(struct sy_buf *);
void sy_buf_clear(struct sy_buf *); /* keeps the memory, forgets the failure */
void sy_buf_add(struct sy_buf *, const void *bytes, size_t n);
void sy_buf_text(struct sy_buf *, const char *text);
void sy_buf_char(struct sy_buf *, char c);
void sy_buf_utf8(struct sy_buf *, uint32_t code_point);           /* must be a scalar value */
void sy_buf_base64(struct sy_buf *, const void *bytes, size_t n); /* RFC 4648, section 4, with padding */
void sy_buf_printf(struct sy_buf *, const char *fmt, ...) SY_PRINTF(2, 3);
