/* Normalizers: Unicode normalization forms (UAX #15) over utf8proc, and the steps of tokenizer.json.
 *
 * Each step reads one side and writes the other, or leaves the text as it is. When tracing, each byte carries the
 * offset of the original byte it comes from, so that trust (sy_tokenizer_encode_spans) survives normalization. */
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/tokenizer_int.h"

struct step {
    struct work *w;
    const char *s; /* in */
    size_t n;
    const uint32_t *origin; /* of s, or NULL: itself */
    struct traced *out;
    bool lead; /* the first character out is (part of) the first character in */
};

static uint32_t origin_at(const struct step *t, size_t i) { return t->origin ? t->origin[i] : (uint32_t)i; }

/* n bytes that come from input offset `from`, in step with the input when `copied`. */
static void put(struct step *t, const char *bytes, size_t n, size_t from, bool copied)
{
    struct traced *o = t->out;
    if (t->w->trace && !o->text.failed) {
        if (!sy_vec_room(t->w->env, &o->origin, n, sizeof(uint32_t))) {
            o->text.failed = true;
            return;
        }
        uint32_t *at = o->origin.at;
        for (size_t i = 0; i < n; i++) at[o->origin.n++] = origin_at(t, copied ? from + i : from);
    }
    sy_buf_add(&o->text, bytes, n);
}

static void put_copy(struct step *t, size_t lo, size_t hi) { put(t, t->s + lo, hi - lo, lo, true); }

static void put_char(struct step *t, uint32_t c, size_t from)
{
    char u[4];
    put(t, u, sy_char_put(u, c), from, false);
}

/* The first character goes; what follows does not stand at the start any more. */
static void drop(struct step *t, size_t at)
{
    if (at == 0) t->lead = false;
}

/* ---- normalization forms ----------------------------------------------------------------------------- */

static int combining_class(uint32_t c) { return utf8proc_get_property((utf8proc_int32_t)c)->combining_class; }

/* Sorts a run of marks by combining class, stably, in linear time: text may be one long run of marks. */
static bool sort_marks(struct work *w, uint32_t *c, size_t n)
{
    if (n < 24) {
        for (size_t i = 1; i < n; i++) {
            uint32_t v = c[i];
            int k = combining_class(v);
            size_t j = i;
            for (; j > 0 && combining_class(c[j - 1]) > k; j--) c[j] = c[j - 1];
            c[j] = v;
        }
        return true;
    }
    size_t start[257] = {0};
    w->order.n = 0;
    if (!sy_vec_room(w->env, &w->order, n, sizeof(uint32_t))) return false;
    uint32_t *sorted = w->order.at;
    for (size_t i = 0; i < n; i++) start[(combining_class(c[i]) & 255) + 1]++;
    for (int k = 0; k < 256; k++) start[k + 1] += start[k];
    for (size_t i = 0; i < n; i++) sorted[start[combining_class(c[i]) & 255]++] = c[i];
    memcpy(c, sorted, n * sizeof *c);
    return true;
}

static bool canonical_order(struct work *w, uint32_t *c, size_t n)
{
    for (size_t i = 0; i < n;) {
        if (combining_class(c[i]) == 0) {
            i++;
            continue;
        }
        size_t end = i + 1;
        while (end < n && combining_class(c[end]) != 0) end++;
        if (end - i > 1 && !sort_marks(w, c + i, end - i)) return false;
        i = end;
    }
    return true;
}

/* Normalizes s[lo..hi), which no composition or reordering crosses. */
static void form_chunk(struct step *t, enum norm_kind kind, size_t lo, size_t hi)
{
    struct work *w = t->w;
    bool compat = kind == NORM_NFKC || kind == NORM_NFKD, compose = kind == NORM_NFC || kind == NORM_NFKC;
    int options =
        UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compat ? UTF8PROC_COMPAT : 0);
    w->chars.n = 0;
    for (size_t i = lo; i < hi;) {
        uint32_t c;
        i += sy_utf8_next(t->s + i, t->n - i, &c);
        if (!sy_vec_room(w->env, &w->chars, 32, sizeof(uint32_t))) goto no_memory;
        utf8proc_int32_t *at = (utf8proc_int32_t *)w->chars.at + w->chars.n;
        int last = 0;
        /* The longest decomposition, U+FDFA, has 18 characters. */
        utf8proc_ssize_t got = utf8proc_decompose_char((utf8proc_int32_t)c, at, 32, options, &last);
        if (got < 0 || got > 32) at[0] = (utf8proc_int32_t)c, got = 1;
        w->chars.n += (size_t)got;
    }
    if (!canonical_order(w, w->chars.at, w->chars.n)) goto no_memory;
    if (compose)
        w->chars.n = (size_t)utf8proc_normalize_utf32(w->chars.at, (utf8proc_ssize_t)w->chars.n,
                                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (size_t i = 0; i < w->chars.n; i++) put_char(t, ((uint32_t *)w->chars.at)[i], lo);
    return;
no_memory:
    t->out->text.failed = true;
}

/* A character below `stable` neither changes by itself nor joins what stands before it, so chunks end before it.
 * NFC: below U+0300, where the combining marks begin; the other forms: ASCII. */
static bool form(struct step *t, enum norm_kind kind)
{
    unsigned char lead = kind == NORM_NFC ? 0xcc : 0xc2;
    size_t done = 0, i = 0;
    while (i < t->n) {
        while (i < t->n && (unsigned char)t->s[i] < lead) i++;
        if (i == t->n) break;
        size_t lo = i;
        while (lo > done && ((unsigned char)t->s[--lo] & 0xc0) == 0x80) {
        } /* the character before: marks join it */
        size_t hi = i;
        while (hi < t->n && ((unsigned char)t->s[hi] >= lead || ((unsigned char)t->s[hi] & 0xc0) == 0x80)) hi++;
        put_copy(t, done, lo);
        form_chunk(t, kind, lo, hi);
        done = i = hi;
    }
    if (done == 0) return false;
    put_copy(t, done, t->n);
    return true;
}

/* ---- the simpler steps ------------------------------------------------------------------------------- */

/* sentencepiece's nmt_nfkc rules without NFKC: controls vanish, odd spaces become spaces. */
static uint32_t nmt(uint32_t c) /* UINT32_MAX: removed */
{
    if ((c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f)
        return UINT32_MAX;
    if (c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 || (c >= 0x200b && c <= 0x200f) || c == 0x2028 ||
        c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd)
        return ' ';
    return c;
}

static uint32_t clean(uint32_t c)
{
    if (c == '\t' || c == '\n' || c == '\r') return ' ';
    if (c == 0 || c == 0xfffd || sy_char_is_other(c)) return UINT32_MAX;
    return sy_char_is_space(c) ? ' ' : c;
}

enum per_char { CHAR_NMT, CHAR_CLEAN, CHAR_CJK, CHAR_NO_MARK, CHAR_NO_NONSPACING, CHAR_LOWER, CHAR_BYTES };

static bool map_chars(struct step *t, enum per_char how)
{
    for (size_t i = 0, len; i < t->n; i += len) {
        uint32_t c, to;
        len = sy_utf8_next(t->s + i, t->n - i, &c);
        to = c;
        if (how == CHAR_NMT) to = nmt(c);
        else if (how == CHAR_CLEAN) to = clean(c);
        else if (how == CHAR_NO_MARK) to = sy_char_is_mark(c) ? UINT32_MAX : c;
        else if (how == CHAR_NO_NONSPACING) to = sy_char_is_nonspacing(c) ? UINT32_MAX : c;
        else if (how == CHAR_LOWER) to = sy_char_lower(c);
        if (how == CHAR_BYTES) {
            for (size_t k = 0; k < len; k++) put_char(t, sy_byte_to_char((unsigned char)t->s[i + k]), i);
        } else if (how == CHAR_CJK && sy_char_is_cjk(c)) {
            put(t, " ", 1, i, false);
            put_copy(t, i, i + len);
            put(t, " ", 1, i, false);
        } else if (how == CHAR_LOWER && c == 0x130) { /* the only lower case of two characters */
            put(t, "i\xcc\x87", 3, i, false);
        } else if (to == UINT32_MAX) {
            drop(t, i);
        } else if (to == c) {
            put_copy(t, i, i + len);
        } else {
            put_char(t, to, i);
        }
    }
    return true;
}

static bool strip(struct step *t, bool left, bool right)
{
    size_t lo = 0, hi = t->n;
    uint32_t c;
    while (left && lo < hi) {
        size_t len = sy_utf8_next(t->s + lo, hi - lo, &c);
        if (!sy_char_is_space(c)) break;
        lo += len;
    }
    while (right && hi > lo) {
        size_t at = hi - 1;
        while (at > lo && ((unsigned char)t->s[at] & 0xc0) == 0x80) at--;
        sy_utf8_next(t->s + at, hi - at, &c);
        if (!sy_char_is_space(c)) break;
        hi = at;
    }
    if (lo == 0 && hi == t->n) return false;
    if (lo > 0) drop(t, 0);
    put_copy(t, lo, hi);
    return true;
}

static sy_status replace(struct step *t, const struct norm *m, bool *changed, struct sy_err *err)
{
    struct rx_walk k = rx_walk_over(&m->rx, t->s, t->n);
    size_t done = 0, lo, hi;
    bool found;
    sy_status st;
    while ((st = sy_rx_next(&t->w->rx, &k, &found, &lo, &hi, err)) == SY_OK && found) {
        *changed = true;
        put_copy(t, done, lo);
        put(t, m->text, m->n_text, lo, false);
        uint32_t c;
        /* What replaces several characters stands where the last of them stood. */
        if (lo == 0 && hi > 0 && (m->n_text == 0 || hi > sy_utf8_next(t->s, t->n, &c))) drop(t, 0);
        done = hi;
        if (t->out->text.failed) break;
    }
    if (st == SY_OK && *changed) put_copy(t, done, t->n);
    return st;
}

/* ---- sentencepiece's precompiled map ----------------------------------------------------------------- */

static uint32_t unit_at(const struct norm *m, size_t i)
{
    const unsigned char *b = m->map + 4 * i;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* Walks the double array (darts-clone) along s[0..n): the first or the longest key that is a prefix. Returns its
 * length, 0 when there is none; *at: where its replacement starts in the texts. */
static size_t map_prefix(const struct norm *m, const char *s, size_t n, uint32_t *at)
{
    size_t found = 0;
    uint32_t unit = unit_at(m, 0);
    uint32_t node = (unit >> 10) << ((unit & 512u) >> 6);
    for (size_t i = 0; i < n && s[i]; i++) {
        node ^= (unsigned char)s[i];
        if (node >= m->n_unit) break;
        unit = unit_at(m, node);
        if ((unit & 0x800000ffu) != (unsigned char)s[i]) break;
        node ^= (unit >> 10) << ((unit & 512u) >> 6);
        if (!(unit >> 8 & 1)) continue;
        if (node >= m->n_unit) break;
        *at = unit_at(m, node) & 0x7fffffffu;
        found = i + 1;
        if (!m->longest) break;
    }
    return found;
}

static void put_mapped(struct step *t, const struct norm *m, uint32_t at, size_t from)
{
    const char *texts = (const char *)m->map + 4 * m->n_unit;
    size_t n_text = m->n_map - 4 * m->n_unit;
    if (at < n_text) {
        size_t n = strnlen(texts + at, n_text - at);
        if (n) put(t, texts + at, n, from, false);
        else drop(t, from);
        return;
    }
    drop(t, from);
}

/* Hugging Face looks a whole grapheme of up to 5 bytes up, by its first matching prefix, then single characters. */
static bool map_graphemes(struct step *t, const struct norm *m)
{
    uint32_t at, c, next;
    for (size_t i = 0; i < t->n;) {
        utf8proc_int32_t state = 0;
        size_t end = i + sy_utf8_next(t->s + i, t->n - i, &c);
        while (end < t->n) {
            size_t len = sy_utf8_next(t->s + end, t->n - end, &next);
            if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)c, (utf8proc_int32_t)next, &state)) break;
            end += len;
            c = next;
        }
        if (end - i < 6 && map_prefix(m, t->s + i, end - i, &at)) {
            put_mapped(t, m, at, i);
            i = end;
            continue;
        }
        while (i < end) {
            size_t len = sy_utf8_next(t->s + i, end - i, &c);
            if (map_prefix(m, t->s + i, len, &at)) put_mapped(t, m, at, i);
            else put_copy(t, i, i + len);
            i += len;
        }
    }
    return true;
}

static bool map_longest(struct step *t, const struct norm *m)
{
    for (size_t i = 0, len; i < t->n; i += len) {
        uint32_t at, c;
        len = map_prefix(m, t->s + i, t->n - i, &at);
        if (len) {
            put_mapped(t, m, at, i);
        } else {
            len = sy_utf8_next(t->s + i, t->n - i, &c);
            put_copy(t, i, i + len);
        }
    }
    return true;
}

/* ---- all steps --------------------------------------------------------------------------------------- */

static sy_status run(struct step *t, const struct norm *m, bool *changed, struct sy_err *err)
{
    switch (m->kind) {
    case NORM_NFC:
    case NORM_NFD:
    case NORM_NFKC:
    case NORM_NFKD: *changed = form(t, m->kind); break;
    case NORM_NMT: *changed = map_chars(t, CHAR_NMT); break;
    case NORM_CLEAN: *changed = map_chars(t, CHAR_CLEAN); break;
    case NORM_CJK: *changed = map_chars(t, CHAR_CJK); break;
    case NORM_LOWERCASE: *changed = map_chars(t, CHAR_LOWER); break;
    case NORM_STRIP_ACCENTS: *changed = map_chars(t, CHAR_NO_MARK); break;
    case NORM_STRIP_NONSPACING: *changed = map_chars(t, CHAR_NO_NONSPACING); break;
    case NORM_BYTE_LEVEL: *changed = map_chars(t, CHAR_BYTES); break;
    case NORM_STRIP: *changed = strip(t, m->left, m->right); break;
    case NORM_REPLACE: return replace(t, m, changed, err);
    case NORM_PRECOMPILED: *changed = m->longest ? map_longest(t, m) : map_graphemes(t, m); break;
    case NORM_PREPEND:
        *changed = true;
        put(t, m->text, m->n_text, 0, false);
        put_copy(t, 0, t->n);
        break;
    }
    return SY_OK;
}

sy_status sy_normalize(struct work *w, const struct norm *m, size_t n_norm, const char *s, size_t n,
                       struct normed *out, struct sy_err *err)
{
    *out = (struct normed){s, n, NULL, true};
    for (size_t i = 0, side = 0; i < n_norm && out->n; i++) {
        struct traced *to = &w->norm[side];
        sy_buf_clear(&to->text);
        to->origin.n = 0;
        struct step t = {w, out->at, out->n, out->origin, to, true};
        bool changed = false;
        sy_status st = run(&t, &m[i], &changed, err);
        if (st != SY_OK) return st;
        if (to->text.failed) return fail_memory(err, "normalized text");
        if (!changed) continue;
        *out = (struct normed){to->text.len ? to->text.at : "", to->text.len, w->trace ? to->origin.at : NULL,
                               out->lead && t.lead};
        side ^= 1;
    }
    return SY_OK;
}
