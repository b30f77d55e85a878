/* Pre-tokenizers: cutting text into the pieces within which a model merges. Each step cuts the pieces of the step
 * before; a piece is a text of its own to it (look-ahead ends at its end). Steps that change text rewrite all pieces
 * into the other side buffer. */
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer_int.h"

struct split_match {
    uint32_t lo, hi;
    bool is;
};

static bool add_piece(struct work *w, size_t lo, size_t hi)
{
    if (lo == hi) return true;
    struct vec *v = &w->piece[1];
    if (v->n == v->cap && !sy_vec_room(w->env, v, 1, sizeof(struct piece))) return false;
    ((struct piece *)v->at)[v->n++] = (struct piece){(uint32_t)lo, (uint32_t)hi};
    return true;
}

static bool add_match(struct work *w, size_t lo, size_t hi, bool is)
{
    if (!sy_vec_room(w->env, &w->match, 1, sizeof(struct split_match))) return false;
    ((struct split_match *)w->match.at)[w->match.n++] = (struct split_match){(uint32_t)lo, (uint32_t)hi, is};
    return true;
}

/* The new pieces become the old ones. */
static void take_pieces(struct work *w)
{
    struct vec t = w->piece[0];
    w->piece[0] = w->piece[1];
    w->piece[1] = t;
    w->piece[1].n = 0;
}

/* ---- splitting --------------------------------------------------------------------------------------- */

static bool in_class(const struct pre *p, uint32_t c)
{
    switch (p->cls) {
    case CLASS_SPACE: return sy_char_is_space(c);
    case CLASS_PUNCTUATION: return sy_char_is_punctuation(c);
    case CLASS_NUMBER: return sy_char_is_number(c);
    case CLASS_CHAR: return c == p->ch;
    }
    return false;
}

/* Spans that cover s[0..n): matches and what lies between them. */
static sy_status find_class(struct work *w, const struct pre *p, const char *s, size_t n, struct sy_err *err)
{
    size_t done = 0;
    bool ok = true;
    for (size_t i = 0, len; i < n && ok; i += len) {
        uint32_t c;
        len = sy_utf8_next(s + i, n - i, &c);
        if (!in_class(p, c)) continue;
        if (done < i) ok = add_match(w, done, i, false);
        ok = ok && add_match(w, i, i + len, true);
        done = i + len;
    }
    if (ok && done < n) ok = add_match(w, done, n, false);
    return ok ? SY_OK : fail_memory(err, "pre-tokenized text");
}

static sy_status find_regex(struct work *w, const struct pre *p, const char *s, size_t n, struct sy_err *err)
{
    struct rx_walk k = rx_walk_over(&p->rx, s, n);
    size_t done = 0, lo, hi;
    bool found, ok = true;
    sy_status st;
    while ((st = sy_rx_next(&w->rx, &k, &found, &lo, &hi, err)) == SY_OK && found && ok) {
        if (done < lo) ok = add_match(w, done, lo, p->invert);
        ok = ok && add_match(w, lo, hi, !p->invert);
        done = hi;
    }
    if (st != SY_OK) return st;
    if (ok && done < n) ok = add_match(w, done, n, p->invert);
    return ok ? SY_OK : fail_memory(err, "pre-tokenized text");
}

/* Joins spans as the behaviour says. MergedWithNext walks backwards and leaves its result at the end. */
static size_t fold(struct split_match *m, size_t n, enum split_behavior how)
{
    size_t kept = 0;
    bool previous = false;
    for (size_t i = 0; i < n; i++) {
        bool back = how == SPLIT_NEXT;
        struct split_match at = m[back ? n - 1 - i : i], *last = !kept ? NULL : back ? &m[n - kept] : &m[kept - 1];
        bool join = last && (how == SPLIT_CONTIGUOUS ? at.is == previous : at.is && !previous);
        previous = at.is;
        if (join && back) last->lo = at.lo;
        else if (join) last->hi = at.hi;
        else if (back) m[n - ++kept] = at;
        else m[kept++] = at;
    }
    return kept;
}

static sy_status split_piece(struct work *w, const struct pre *p, const char *text, struct piece in,
                             struct sy_err *err)
{
    w->match.n = 0;
    const char *s = text + in.lo;
    size_t n = in.hi - in.lo;
    sy_status st = p->kind == PRE_CLASS ? find_class(w, p, s, n, err) : find_regex(w, p, s, n, err);
    if (st != SY_OK) return st;
    struct split_match *m = w->match.at;
    size_t n_match = w->match.n;
    if (p->behavior == SPLIT_PREVIOUS || p->behavior == SPLIT_NEXT || p->behavior == SPLIT_CONTIGUOUS) {
        size_t kept = fold(m, n_match, p->behavior);
        if (p->behavior == SPLIT_NEXT) m += n_match - kept;
        n_match = kept;
    }
    for (size_t i = 0; i < n_match; i++)
        if (!(p->behavior == SPLIT_REMOVED && m[i].is) && !add_piece(w, in.lo + m[i].lo, in.lo + m[i].hi))
            return fail_memory(err, "pre-tokenized text");
    return SY_OK;
}

/* Isolated matches need no list of spans: the usual case, and the fast one. */
static sy_status isolate_piece(struct work *w, const struct rx *rx, const char *text, struct piece in,
                               struct sy_err *err)
{
    struct rx_walk k = rx_walk_over(rx, text + in.lo, in.hi - in.lo);
    size_t done = 0, lo, hi;
    bool found;
    sy_status st;
    while ((st = sy_rx_next(&w->rx, &k, &found, &lo, &hi, err)) == SY_OK && found) {
        if (!add_piece(w, in.lo + done, in.lo + lo) || !add_piece(w, in.lo + lo, in.lo + hi))
            return fail_memory(err, "pre-tokenized text");
        done = hi;
    }
    if (st == SY_OK && !add_piece(w, in.lo + done, in.hi)) return fail_memory(err, "pre-tokenized text");
    return st;
}

static sy_status split_all(struct work *w, const struct pre *p, const char *text, struct sy_err *err)
{
    const struct piece *in = w->piece[0].at;
    sy_status st = SY_OK;
    for (size_t i = 0; i < w->piece[0].n && st == SY_OK; i++) {
        bool plain = p->kind == PRE_BYTE_LEVEL || (p->kind == PRE_SPLIT && p->behavior == SPLIT_ISOLATED);
        st = plain ? isolate_piece(w, &p->rx, text, in[i], err) : split_piece(w, p, text, in[i], err);
    }
    if (st == SY_OK) take_pieces(w);
    return st;
}

static sy_status split_fixed(struct work *w, const struct pre *p, const char *text, struct sy_err *err)
{
    const struct piece *in = w->piece[0].at;
    for (size_t i = 0; i < w->piece[0].n; i++) {
        size_t lo = in[i].lo, at = lo, chars = 0;
        while (at < in[i].hi) {
            uint32_t c;
            at += sy_utf8_next(text + at, in[i].hi - at, &c);
            if (++chars < p->length && at < in[i].hi) continue;
            if (!add_piece(w, lo, at)) return fail_memory(err, "pre-tokenized text");
            lo = at;
            chars = 0;
        }
    }
    take_pieces(w);
    return SY_OK;
}

/* ---- rewriting --------------------------------------------------------------------------------------- */

enum rewrite { REWRITE_SPACE_BEFORE, REWRITE_METASPACE, REWRITE_BYTES };

static void write_metaspace(struct sy_buf *b, const struct pre *p, const char *s, size_t n, bool at_start)
{
    bool marked = n && (s[0] == ' ' || (n >= p->n_mark && !memcmp(s, p->mark, p->n_mark)));
    if (!marked && (p->scheme == PREPEND_ALWAYS || (p->scheme == PREPEND_FIRST && at_start)))
        sy_buf_add(b, p->mark, p->n_mark);
    for (size_t i = 0; i < n;) {
        const char *space = memchr(s + i, ' ', n - i);
        size_t to = space ? (size_t)(space - s) : n;
        sy_buf_add(b, s + i, to - i);
        if (space) sy_buf_add(b, p->mark, p->n_mark);
        i = to + 1;
    }
}

static void write_bytes(struct sy_buf *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) sy_buf_utf8(b, sy_byte_to_char((unsigned char)s[i]));
}

static sy_status rewrite_all(struct work *w, const struct pre *p, enum rewrite how, const char **text, bool *at_start,
                             struct sy_err *err)
{
    struct sy_buf *to = *text == w->side[0].at ? &w->side[1] : &w->side[0];
    sy_buf_clear(to);
    const struct piece *in = w->piece[0].at;
    bool first = *at_start && w->piece[0].n && in[0].lo == 0;
    for (size_t i = 0; i < w->piece[0].n; i++) {
        const char *s = *text + in[i].lo;
        size_t n = in[i].hi - in[i].lo, lo = to->len;
        if (how == REWRITE_METASPACE) {
            write_metaspace(to, p, s, n, first && i == 0);
        } else if (how == REWRITE_BYTES) {
            write_bytes(to, s, n);
        } else {
            if (s[0] != ' ') sy_buf_char(to, ' ');
            sy_buf_add(to, s, n);
        }
        if (to->failed || !add_piece(w, lo, to->len)) return fail_memory(err, "pre-tokenized text");
    }
    take_pieces(w);
    *text = to->at;
    *at_start = first;
    return SY_OK;
}

static sy_status metaspace(struct work *w, const struct pre *p, const char **text, bool *at_start, struct sy_err *err)
{
    sy_status st = rewrite_all(w, p, REWRITE_METASPACE, text, at_start, err);
    return st == SY_OK && p->split ? split_all(w, p, *text, err) : st;
}

static sy_status byte_level(struct work *w, const struct pre *p, const char **text, bool *at_start,
                            struct sy_err *err)
{
    sy_status st = SY_OK;
    if (p->prefix_space) st = rewrite_all(w, p, REWRITE_SPACE_BEFORE, text, at_start, err);
    if (st == SY_OK && p->has_rx) st = split_all(w, p, *text, err);
    if (st == SY_OK && p->map_bytes) st = rewrite_all(w, p, REWRITE_BYTES, text, at_start, err);
    return st;
}

sy_status sy_pretokenize(struct work *w, const char **text, size_t n, bool at_start, struct sy_err *err)
{
    w->piece[0].n = w->piece[1].n = 0;
    if (!add_piece(w, 0, n)) return fail_memory(err, "pre-tokenized text");
    take_pieces(w);
    sy_status st = SY_OK;
    for (size_t i = 0; i < w->tok->n_pre && st == SY_OK; i++) {
        const struct pre *p = &w->tok->pre[i];
        switch (p->kind) {
        case PRE_SPLIT:
        case PRE_CLASS: st = split_all(w, p, *text, err); break;
        case PRE_FIXED: st = split_fixed(w, p, *text, err); break;
        case PRE_METASPACE: st = metaspace(w, p, text, &at_start, err); break;
        case PRE_BYTE_LEVEL: st = byte_level(w, p, text, &at_start, err); break;
        }
    }
    return st;
}
