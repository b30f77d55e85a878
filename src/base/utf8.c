#include "base/utf8.h"

/* Bytes wanted by lead byte b, and the range its second byte must lie in; 0 when b cannot lead. */
static int lead(unsigned char b, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (b < 0x80) return 1;
    if (b < 0xc2) return 0;
    if (b < 0xe0) return 2;
    if (b < 0xf0) {
        if (b == 0xe0) *lo = 0xa0;
        if (b == 0xed) *hi = 0x9f; /* surrogates */
        return 3;
    }
    if (b > 0xf4) return 0;
    if (b == 0xf0) *lo = 0x90;
    if (b == 0xf4) *hi = 0x8f;
    return 4;
}

/* Walks one sequence: `have` bytes are well formed, of `want`. */
static int walk(const char *s, size_t n, int *want)
{
    unsigned char lo, hi;
    *want = lead((unsigned char)s[0], &lo, &hi);
    if (*want == 0) return 0;
    int have = 1;
    for (; have < *want && (size_t)have < n; have++) {
        unsigned char b = (unsigned char)s[have];
        if (b < lo || b > hi) break;
        lo = 0x80;
        hi = 0xbf;
    }
    return have;
}

size_t sy_utf8_next(const char *s, size_t n, uint32_t *c)
{
    int want, have = walk(s, n, &want);
    if (have == 0 || have < want) {
        *c = 0xfffd;
        return have ? (size_t)have : 1;
    }
    static const unsigned char mask[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t v = (unsigned char)s[0] & mask[want];
    for (int i = 1; i < want; i++) v = v << 6 | ((unsigned char)s[i] & 63);
    *c = v;
    return (size_t)want;
}

bool sy_utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int want, have = walk(s + i, n - i, &want);
        if (have == 0 || have < want) return false;
        i += (size_t)want;
    }
    return true;
}

size_t sy_utf8_whole(const char *s, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char b = (unsigned char)s[n - back];
        if (b < 0x80) return n;
        if (b < 0xc0) continue;
        int want, have = walk(s + n - back, back, &want);
        return (size_t)have == back && want > have ? n - back : n;
    }
    return n;
}
