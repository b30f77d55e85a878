#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void sy_buf_init(struct sy_buf *b, const struct sy_env *env, size_t limit)
{
    *b = (struct sy_buf){.env = env, .limit = limit ? limit : SIZE_MAX / 4};
}

void sy_buf_release(struct sy_buf *b)
{
    sy_delete(b->env, b->at);
    sy_buf_init(b, b->env, b->limit);
}

void sy_buf_clear(struct sy_buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->at) b->at[0] = 0;
}

static bool room_for(struct sy_buf *b, size_t n)
{
    if (b->failed || n > b->limit || b->len > b->limit - n) {
        b->failed = true;
        return false;
    }
    size_t need = b->len + n + 1;
    if (need <= b->cap) return true;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need) cap *= 2;
    char *p = sy_resize(b->env, b->at, b->cap, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->at = p;
    b->cap = cap;
    return true;
}

void sy_buf_add(struct sy_buf *b, const void *bytes, size_t n)
{
    if (!room_for(b, n)) return;
    if (n) memcpy(b->at + b->len, bytes, n);
    b->len += n;
    b->at[b->len] = 0;
}

void sy_buf_text(struct sy_buf *b, const char *text) { sy_buf_add(b, text, strlen(text)); }

void sy_buf_char(struct sy_buf *b, char c) { sy_buf_add(b, &c, 1); }

void sy_buf_utf8(struct sy_buf *b, uint32_t c)
{
    char u[4];
    size_t n = 0;
    if (c < 0x80) {
        u[n++] = (char)c;
    } else if (c < 0x800) {
        u[n++] = (char)(0xc0 | c >> 6);
        u[n++] = (char)(0x80 | (c & 63));
    } else if (c < 0x10000) {
        u[n++] = (char)(0xe0 | c >> 12);
        u[n++] = (char)(0x80 | (c >> 6 & 63));
        u[n++] = (char)(0x80 | (c & 63));
    } else {
        u[n++] = (char)(0xf0 | (c >> 18 & 7));
        u[n++] = (char)(0x80 | (c >> 12 & 63));
        u[n++] = (char)(0x80 | (c >> 6 & 63));
        u[n++] = (char)(0x80 | (c & 63));
    }
    sy_buf_add(b, u, n);
}

void sy_buf_base64(struct sy_buf *b, const void *bytes, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *s = bytes;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)s[i] << 16 | (i + 1 < n ? (uint32_t)s[i + 1] << 8 : 0) | (i + 2 < n ? s[i + 2] : 0);
        char u[4] = {digit[v >> 18], digit[v >> 12 & 63], i + 1 < n ? digit[v >> 6 & 63] : '=',
                     i + 2 < n ? digit[v & 63] : '='};
        sy_buf_add(b, u, 4);
    }
}

void sy_buf_printf(struct sy_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) b->failed = true;
    if (n >= 0 && room_for(b, (size_t)n)) {
        vsnprintf(b->at + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}
