/* template_string.c - text whose every byte knows whether the template itself wrote it. A string is a view; cutting
 * copies nothing, and appending to a string that ends where its store ends extends the store in place, so that a
 * template which builds its prompt by repeated concatenation takes linear time and memory. */
#include <string.h>

#include "text/template_int.h"

const struct str sy_tpl_empty = {.at = "", .trust = TRUSTED};

struct store *sy_tpl_store(struct run *r, size_t cap)
{
    struct store *s = sy_tpl_get(r, 1, sizeof *s);
    if (!s) return NULL;
    s->piece = s->first;
    s->cap_piece = SY_COUNT(s->first);
    if (cap && !(s->at = sy_tpl_get(r, cap, 1))) return NULL;
    s->cap = cap;
    return s;
}

static bool mark(struct run *r, struct store *s, bool trusted)
{
    if (s->n_piece && s->piece[s->n_piece - 1].trusted == trusted) {
        s->piece[s->n_piece - 1].end = s->used;
        return true;
    }
    if (s->n_piece == s->cap_piece) {
        size_t cap = 4 * s->cap_piece;
        struct piece *p = sy_tpl_get(r, cap, sizeof *p);
        if (!p) return false;
        memcpy(p, s->piece, s->n_piece * sizeof *p);
        s->piece = p;
        s->cap_piece = cap;
    }
    s->piece[s->n_piece++] = (struct piece){s->used, trusted};
    return true;
}

bool sy_tpl_add(struct run *r, struct store *s, const char *at, size_t n, bool trusted)
{
    if (!n) return true;
    if (n > SIZE_MAX / 8) return sy_tpl_fail(r, SY_ENOMEM, "a text of %zu bytes", n);
    if (n > s->cap - s->used) {
        size_t cap = 2 * s->cap > s->used + n ? 2 * s->cap : s->used + n;
        if (cap < 64) cap = 64;
        char *more = sy_tpl_get(r, cap, 1);
        if (!more) return false;
        if (s->used) memcpy(more, s->at, s->used);
        s->at = more;
        s->cap = cap;
    }
    memcpy(s->at + s->used, at, n);
    s->used += n;
    return sy_tpl_spend(r, n / 64) && mark(r, s, trusted);
}

bool sy_tpl_add_char(struct run *r, struct store *s, uint32_t c, bool trusted)
{
    char u[4];
    size_t n = 1;
    if (c < 0x80) {
        u[0] = (char)c;
    } else if (c < 0x800) {
        u[0] = (char)(0xc0 | c >> 6);
        n = 2;
    } else if (c < 0x10000) {
        u[0] = (char)(0xe0 | c >> 12);
        n = 3;
    } else {
        u[0] = (char)(0xf0 | c >> 18);
        n = 4;
    }
    for (size_t i = 1; i < n; i++) u[i] = (char)(0x80 | (c >> 6 * (n - 1 - i) & 63));
    return sy_tpl_add(r, s, u, n, trusted);
}

size_t sy_tpl_piece(const struct str *s, size_t at, bool *trusted)
{
    if (s->trust != MIXED) {
        *trusted = s->trust == TRUSTED;
        return s->n;
    }
    size_t pos = (size_t)(s->at - s->store->at) + at, lo = 0, hi = s->store->n_piece - 1;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (s->store->piece[mid].end > pos) hi = mid;
        else lo = mid + 1;
    }
    *trusted = s->store->piece[lo].trusted;
    size_t end = s->store->piece[lo].end - (pos - at);
    return end < s->n ? end : s->n;
}

bool sy_tpl_trusted(const struct str *s)
{
    bool trusted = true;
    for (size_t i = 0; i < s->n && trusted;) i = sy_tpl_piece(s, i, &trusted);
    return trusted;
}

bool sy_tpl_add_part(struct run *r, struct store *to, const struct str *s, size_t at, size_t n)
{
    bool trusted;
    for (size_t end = at + n; at < end;) {
        size_t stop = sy_tpl_piece(s, at, &trusted);
        if (stop > end) stop = end;
        if (!sy_tpl_add(r, to, s->at + at, stop - at, trusted)) return false;
        at = stop;
    }
    return true;
}

bool sy_tpl_add_str(struct run *r, struct store *to, const struct str *s)
{
    return sy_tpl_add_part(r, to, s, 0, s->n);
}

bool sy_tpl_add_fill(struct run *r, struct store *to, const struct str *fill, int64_t times)
{
    if (times <= 0 || !fill->n) return true;
    if ((uint64_t)times > SY_TPL_PAD_MAX / fill->n)
        return sy_tpl_fail(r, SY_ENOMEM, "a text repeated or padded to more than %d bytes", SY_TPL_PAD_MAX);
    char block[512];
    bool trusted;
    size_t each = 1, n = fill->n;
    if (n < sizeof block && sy_tpl_piece(fill, 0, &trusted) == n) { /* many at a time */
        for (each = 0; (each + 1) * n <= sizeof block; each++) memcpy(block + each * n, fill->at, n);
        for (; times >= (int64_t)each; times -= (int64_t)each)
            if (!sy_tpl_add(r, to, block, each * n, trusted)) return false;
    }
    for (; times > 0; times--)
        if (!sy_tpl_add_str(r, to, fill)) return false;
    return true;
}

static const struct str *make(struct run *r, struct str s)
{
    struct str *p = sy_tpl_get(r, 1, sizeof *p);
    if (p) *p = s;
    return p;
}

static const struct str *whole(struct run *r, struct store *s)
{
    if (!s->used) return &sy_tpl_empty;
    bool mixed = s->n_piece > 1;
    return make(r, (struct str){.at = s->at,
                                .n = s->used,
                                .n_char = SIZE_MAX,
                                .store = s,
                                .trust = mixed                 ? MIXED
                                         : s->piece[0].trusted ? TRUSTED
                                                               : UNTRUSTED});
}

bool sy_tpl_took(struct run *r, struct store *s, struct val *out)
{
    const struct str *t = whole(r, s);
    if (t) *out = sy_tpl_of_str(t);
    return t != NULL;
}

const struct str *sy_tpl_string(struct run *r, const char *at, size_t n, bool trusted)
{
    return make(r, (struct str){.at = at, .n = n, .n_char = SIZE_MAX, .trust = trusted ? TRUSTED : UNTRUSTED});
}

const struct str *sy_tpl_copy(struct run *r, const char *at, size_t n, bool trusted)
{
    char *p = sy_tpl_get(r, n + 1, 1);
    if (!p) return NULL;
    if (n) memcpy(p, at, n);
    return sy_tpl_string(r, p, n, trusted);
}

/* A view into mixed text may itself be of one kind. */
static void settle(struct str *s)
{
    bool trusted;
    if (s->trust == MIXED && s->n && sy_tpl_piece(s, 0, &trusted) == s->n) s->trust = trusted ? TRUSTED : UNTRUSTED;
}

const struct str *sy_tpl_part(struct run *r, const struct str *s, size_t at, size_t n)
{
    if (n == s->n) return s;
    struct str part = *s;
    part.at += at;
    part.n = n;
    part.n_char = s->n_char == s->n ? n : SIZE_MAX; /* ASCII stays ASCII */
    settle(&part);
    return make(r, part);
}

const struct str *sy_tpl_concat(struct run *r, const struct str *a, const struct str *b)
{
    if (!b->n) return a;
    if (!a->n) return b;
    struct store *s = a->store;
    bool at_end = s && a->at + a->n == s->at + s->used;
    if (!at_end || b->n > s->cap - s->used) {
        /* Room for as much again if this is the second time, as in a loop. */
        size_t n = a->n + b->n;
        s = sy_tpl_store(r, at_end ? 2 * n : n);
        if (!s || !sy_tpl_add_str(r, s, a) || !sy_tpl_add_str(r, s, b)) return NULL;
        return whole(r, s);
    }
    struct str joined = {.at = a->at, .n = a->n + b->n, .n_char = SIZE_MAX, .store = s, .trust = MIXED};
    if (!sy_tpl_add_str(r, s, b)) return NULL;
    settle(&joined);
    return make(r, joined);
}

size_t sy_tpl_chars(struct run *r, const struct str *s)
{
    if (s->n_char != SIZE_MAX) return s->n_char;
    sy_tpl_cost(r, s->n / 64);
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) n += ((unsigned char)s->at[i] & 0xc0) != 0x80;
    ((struct str *)(uintptr_t)s)->n_char = n; /* only strings of a rendering are uncounted, and it owns them */
    return n;
}

size_t sy_tpl_offset(struct run *r, const struct str *s, size_t char_index)
{
    if (sy_tpl_chars(r, s) == s->n) return char_index;
    sy_tpl_cost(r, s->n / 16);
    size_t i = 0;
    for (; i < s->n; i++)
        if (((unsigned char)s->at[i] & 0xc0) != 0x80 && char_index-- == 0) break;
    return i;
}

bool sy_tpl_is(const struct str *s, const char *text)
{
    size_t n = strlen(text);
    return s->n == n && !memcmp(s->at, text, n);
}

size_t sy_tpl_find(struct run *r, const struct str *s, const struct str *what, size_t from)
{
    if (from > s->n) return SIZE_MAX;
    if (!what->n) return from;
    const char *p = memmem(s->at + from, s->n - from, what->at, what->n);
    sy_tpl_cost(r, ((p ? (size_t)(p - s->at) : s->n) - from + what->n) / 4); /* memmem's worst cases, not its best */
    return p ? (size_t)(p - s->at) : SIZE_MAX;
}

const struct str *sy_tpl_marked(struct run *r, const struct str *s, bool markup)
{
    struct str copy = *s;
    copy.markup = markup;
    return make(r, copy);
}

bool sy_tpl_escape(struct run *r, const struct str *s, struct val *out)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    if (s->markup) {
        *out = sy_tpl_of_str(s);
        return true;
    }
    struct store *st = sy_tpl_store(r, s->n + 16);
    if (!st) return false;
    sy_tpl_cost(r, s->n / 8);
    for (size_t i = 0; i < s->n; i++) {
        bool trusted;
        const char *hit = s->at[i] ? strchr(from, s->at[i]) : NULL;
        sy_tpl_piece(s, i, &trusted);
        const char *text = hit ? to[hit - from] : s->at + i;
        if (!sy_tpl_add(r, st, text, hit ? strlen(text) : 1, trusted)) return false;
    }
    const struct str *w = whole(r, st);
    if (!w || !(w = sy_tpl_marked(r, w, true))) return false;
    *out = sy_tpl_of_str(w);
    return true;
}

/* ---- stripping -------------------------------------------------------- */

/* What strip takes away: white space, or the characters of a text. */
struct strip {
    struct run *r;
    const struct str *chars;
    bool ascii[128];
};

static bool strips(struct strip *p, const char *c, size_t len)
{
    uint32_t cp;
    if (!p->chars) {
        sy_utf8_next(c, len, &cp);
        return sy_tpl_is_space(cp);
    }
    if (len == 1) return p->ascii[*c & 127];
    sy_tpl_cost(p->r, p->chars->n / 64 + 1);
    return p->r->steps_left && memmem(p->chars->at, p->chars->n, c, len);
}

/* Length of the last character of s[0..n). */
static size_t last_char(const char *s, size_t n)
{
    size_t len = 1;
    while (len < 4 && len < n && ((unsigned char)s[n - len] & 0xc0) == 0x80) len++;
    return len;
}

void sy_tpl_strip(struct run *r, const struct str *s, const struct str *chars, bool left, bool right, size_t *at,
                  size_t *n)
{
    struct strip p = {.r = r, .chars = chars};
    size_t lo = 0, hi = s->n;
    for (size_t i = 0; chars && i < chars->n; i++)
        if ((unsigned char)chars->at[i] < 128) p.ascii[(unsigned char)chars->at[i]] = true;
    while (left && lo < hi) {
        uint32_t cp;
        size_t len = sy_utf8_next(s->at + lo, hi - lo, &cp);
        if (!strips(&p, s->at + lo, len)) break;
        lo += len;
    }
    while (right && hi > lo) {
        size_t len = last_char(s->at + lo, hi - lo);
        if (!strips(&p, s->at + hi - len, len)) break;
        hi -= len;
    }
    sy_tpl_cost(r, (s->n - (hi - lo)) / 2 + (chars ? chars->n / 16 : 0));
    *at = lo;
    *n = hi - lo;
}

size_t sy_tpl_trim_end(const char *s, size_t n)
{
    struct strip p = {0};
    while (n) {
        size_t len = last_char(s, n);
        if (!strips(&p, s + n - len, len)) break;
        n -= len;
    }
    return n;
}
