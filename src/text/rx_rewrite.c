#include "text/rx_rewrite.h"

#include <string.h>

#include "base/utf8.h"

enum { NEST_MAX = 64, GROUP_MAX = 250, PATTERN_LIMIT = 1 << 19 };

/* White_Space as class items: PCRE2's \s also takes U+180E, which left the property in Unicode 6.3. */
#define SPACE                                                                                                        \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
/* Oniguruma's Unicode word characters; PCRE2's \w differs in marks and connectors. Outside a class Oniguruma's \w
 * also takes Latin-1's superscripts and fractions, from a table of its own for that range. */
#define POSIX_WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD       POSIX_WORD "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
#define HEX        "0-9A-Fa-f"

struct rewrite {
    struct rx_env *env;
    const char *pattern, *p, *end;
    struct sy_buf *out;
    size_t n_pattern, atom; /* where the last atom starts in out */
    size_t group[GROUP_MAX];
    int depth;
    struct sy_err *err;
};

static sy_status refuse(struct rewrite *r, const char *what)
{
    return sy_fail(r->err, SY_ENOSUP, "regular expression '%.*s': %s at offset %zu is not supported",
                   (int)(r->n_pattern < 160 ? r->n_pattern : 160), r->pattern, what, (size_t)(r->p - r->pattern));
}

/* ---- properties -------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *code;
} property_names[] = {
    {"letter", "L"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"other", "C"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"surrogate", "Cs"},
    {"privateuse", "Co"},
    {"unassigned", "Cn"},
    {"alpha", "Alphabetic"},
    {"space", "White_Space"},
    {"digit", "Nd"},
    {"upper", "Uppercase"},
    {"lower", "Lowercase"},
    {"cntrl", "Cc"},
    {"punct", "P"},
};
/* The general categories, which partition the characters: the complement of some is the others. */
static const char gc[][3] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                             "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                             "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

static uint32_t gc_mask(const char *name)
{
    uint32_t mask = 0;
    for (size_t i = 0; i < SY_COUNT(gc); i++)
        if (name[0] == gc[i][0] && (!name[1] || !strcmp(name, gc[i]))) mask |= 1u << i;
    return mask;
}

/* A bare script name means Script in Oniguruma and Script_Extensions in PCRE2: ask PCRE2 whether it is one. */
static sy_status is_script(struct rewrite *r, const char *name, bool *yes)
{
    char probe[64];
    size_t n = strlen(name);
    *yes = false;
    if (n <= 2 || n > 40) return SY_OK;
    memcpy(probe, "\\p{sc:", 6);
    memcpy(probe + 6, name, n);
    probe[6 + n] = '}';
    int code;
    PCRE2_SIZE where;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)probe, n + 7, PCRE2_UTF, &code, &where, r->env->compile);
    if (!c && code == PCRE2_ERROR_HEAP_FAILED)
        return sy_fail(r->err, SY_ENOMEM, "no memory for a regular expression");
    *yes = c != NULL;
    if (c) pcre2_code_free(c);
    return SY_OK;
}

/* After \p or \P: reads {name} and appends the property. *mask: its general categories, when it is positive. */
static sy_status property(struct rewrite *r, bool negated, struct sy_buf *out, uint32_t *mask)
{
    const char *close = r->p < r->end && *r->p == '{' ? memchr(r->p, '}', (size_t)(r->end - r->p)) : NULL;
    if (!close || close - r->p > 48) return refuse(r, "a property without {name}");
    const char *s = r->p + 1;
    if (s < close && *s == '^') {
        negated = !negated;
        s++;
    }
    char name[64], flat[64];
    size_t n = 0, m = 0;
    for (; s < close; s++) {
        name[n++] = *s;
        char lower = *s >= 'A' && *s <= 'Z' ? (char)(*s + 32) : *s;
        if (lower != '_' && lower != '-' && lower != ' ') flat[m++] = lower;
    }
    name[n] = flat[m] = 0;
    const char *code = name;
    for (size_t i = 0; i < SY_COUNT(property_names); i++)
        if (!strcmp(flat, property_names[i].name)) code = property_names[i].code;
    r->p = close + 1;
    *mask = negated ? 0 : gc_mask(code);
    bool script = false;
    sy_status st = code == name ? is_script(r, name, &script) : SY_OK;
    if (st != SY_OK) return st;
    sy_buf_printf(out, "\\%c{%s%s}", negated ? 'P' : 'p', script ? "sc:" : "", code);
    return SY_OK;
}

/* ---- escapes that name one character ----------------------------------------------------------------- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Up to n_max hexadecimal digits at p. */
static uint32_t hex(struct rewrite *r, int n_max, int *n)
{
    uint32_t v = 0;
    for (*n = 0; *n < n_max && r->p < r->end && hex_digit(*r->p) >= 0; (*n)++, r->p++)
        v = v << 4 | (uint32_t)hex_digit(*r->p);
    return v;
}

/* p stands after the backslash, on c. *ok false: it does not name a character. */
static sy_status escaped_char(struct rewrite *r, uint32_t *v, bool *ok)
{
    static const char letters[] = "tnrfvae", values[] = "\t\n\r\f\v\a\033";
    char c = *r->p;
    const char *at = strchr(letters, c);
    *ok = true;
    int n;
    if (c && at) {
        *v = (unsigned char)values[at - letters];
        r->p++;
    } else if (c == 'u' || c == 'x') {
        r->p++;
        bool braces = c == 'x' && r->p < r->end && *r->p == '{';
        if (braces) r->p++;
        *v = hex(r, braces ? 6 : c == 'u' ? 4 : 2, &n);
        if (braces && (r->p == r->end || *r->p++ != '}')) return refuse(r, "an unclosed \\x{");
        if (n == 0 || (c == 'u' && n != 4)) return refuse(r, "an incomplete \\u or \\x");
        /* \xHH is a byte to Oniguruma, part of a UTF-8 sequence from 0x80 on. */
        if (c == 'x' && !braces && *v >= 0x80) return refuse(r, "a single byte \\xHH beyond 7f");
        if (*v > 0x10ffff || (*v >= 0xd800 && *v < 0xe000)) return refuse(r, "a code point that is no character");
    } else if ((unsigned char)c >= 0x80 || !((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'))) {
        r->p += sy_utf8_next(r->p, (size_t)(r->end - r->p), v);
    } else {
        *ok = false;
    }
    return SY_OK;
}

/* ---- classes ----------------------------------------------------------------------------------------- */

/* A union: `items` fit inside one PCRE2 class, `subs` are alternatives of their own, each led by '|'. */
struct set {
    struct sy_buf items, subs, inner; /* inner: the items of the one sub, when that is a negated plain class */
    uint32_t mask;                    /* general categories among the items */
    bool only_gc;
    int n_sub;
};

static void set_init(struct set *s, const struct sy_env *env)
{
    *s = (struct set){.only_gc = true};
    sy_buf_init(&s->items, env, PATTERN_LIMIT);
    sy_buf_init(&s->subs, env, PATTERN_LIMIT);
    sy_buf_init(&s->inner, env, PATTERN_LIMIT);
}

static void set_release(struct set *s)
{
    sy_buf_release(&s->items);
    sy_buf_release(&s->subs);
    sy_buf_release(&s->inner);
}

static void add_negated(struct set *s, const char *items, size_t n)
{
    sy_buf_text(&s->subs, "|[^");
    sy_buf_add(&s->subs, items, n);
    sy_buf_char(&s->subs, ']');
    sy_buf_clear(&s->inner);
    if (s->n_sub++ == 0) sy_buf_add(&s->inner, items, n);
}

static void write_set(const struct set *s, struct sy_buf *out)
{
    out->failed |= s->items.failed | s->subs.failed | s->inner.failed;
    if (s->n_sub == 0) {
        sy_buf_text(out, s->items.len ? "[" : "(?!"); /* nothing: never matches */
        sy_buf_add(out, s->items.at, s->items.len);
        sy_buf_text(out, s->items.len ? "]" : ")");
        return;
    }
    sy_buf_text(out, "(?:");
    if (s->items.len) sy_buf_printf(out, "[%s]", s->items.at);
    size_t skip = s->items.len ? 0 : 1; /* the leading '|' */
    if (s->subs.len >= skip && s->subs.at) sy_buf_add(out, s->subs.at + skip, s->subs.len - skip);
    sy_buf_char(out, ')');
}

static sy_status posix_class(struct rewrite *r, struct set *s, bool *taken)
{
    static const struct {
        const char *name, *items;
    } posix[] = {
        {"alpha", "\\p{Alphabetic}"},
        {"digit", "\\p{Nd}"},
        {"alnum", "\\p{Alphabetic}\\p{Nd}"},
        {"space", SPACE},
        {"upper", "\\p{Uppercase}"},
        {"lower", "\\p{Lowercase}"},
        {"word", POSIX_WORD},
        {"xdigit", HEX},
        {"cntrl", "\\p{Cc}"},
        {"blank", "\\p{Zs}\\x09"},
        {"punct", "\\p{P}\\p{S}"},
    };
    *taken = false;
    size_t rest = (size_t)(r->end - r->p);
    if (rest < 4 || r->p[1] != ':') return SY_OK;
    const char *close = memmem(r->p + 2, rest - 2, ":]", 2);
    if (!close || close - r->p > 12) return SY_OK;
    bool negated = r->p[2] == '^';
    const char *name = r->p + 2 + negated;
    for (size_t i = 0; i < SY_COUNT(posix); i++) {
        if (strlen(posix[i].name) != (size_t)(close - name) || memcmp(posix[i].name, name, (size_t)(close - name)))
            continue;
        if (negated) add_negated(s, posix[i].items, strlen(posix[i].items));
        else sy_buf_text(&s->items, posix[i].items);
        s->only_gc = false;
        *taken = true;
        r->p = close + 2;
        return SY_OK;
    }
    return refuse(r, "a POSIX class of this name");
}

/* \s and the like inside a class. *taken false: the escape names a character. */
static sy_status class_escape(struct rewrite *r, struct set *s, bool *taken)
{
    char c = r->p[1];
    const char *items = c == 's' ? SPACE : c == 'w' ? POSIX_WORD : c == 'h' ? HEX : c == 'd' ? "\\p{Nd}" : NULL;
    const char *negated = c == 'W' ? POSIX_WORD : c == 'H' ? HEX : NULL;
    *taken = true;
    if (c == 'p' || c == 'P') {
        r->p += 2;
        uint32_t mask;
        sy_status st = property(r, c == 'P', &s->items, &mask);
        s->mask |= mask;
        if (!mask) s->only_gc = false;
        return st;
    }
    if (c == 'S') items = "\\P{White_Space}";
    if (c == 'D') items = "\\P{Nd}";
    *taken = items || negated;
    if (!*taken) return SY_OK;
    r->p += 2;
    s->only_gc = false;
    if (items) sy_buf_text(&s->items, items);
    else add_negated(s, negated, strlen(negated));
    return SY_OK;
}

static sy_status class_char(struct rewrite *r, uint32_t *v)
{
    if (*r->p != '\\') {
        r->p += sy_utf8_next(r->p, (size_t)(r->end - r->p), v);
        return SY_OK;
    }
    if (++r->p == r->end) return refuse(r, "a backslash at the end");
    if (*r->p == 'b' || *r->p == '0') {
        *v = *r->p == 'b' ? 8 : 0;
        r->p++;
        return SY_OK;
    }
    bool ok;
    sy_status st = escaped_char(r, v, &ok);
    if (st != SY_OK) return st;
    return ok ? SY_OK : refuse(r, "this escape in a class");
}

/* A character or a range. */
static sy_status class_range(struct rewrite *r, struct set *s)
{
    uint32_t lo, hi;
    sy_status st = class_char(r, &lo);
    if (st != SY_OK) return st;
    hi = lo;
    size_t rest = (size_t)(r->end - r->p);
    bool shorthand = rest >= 3 && r->p[1] == '\\' && strchr("sSwWdDhHpP", r->p[2]);
    if (rest >= 2 && r->p[0] == '-' && r->p[1] != ']' && r->p[1] != '[' && !shorthand) {
        r->p++;
        if ((st = class_char(r, &hi)) != SY_OK) return st;
        if (hi < lo) return refuse(r, "a range that runs backwards");
    }
    s->only_gc = false;
    sy_buf_printf(&s->items, hi == lo ? "\\x{%x}" : "\\x{%x}-\\x{%x}", (unsigned)lo, (unsigned)hi);
    return SY_OK;
}

static sy_status class_at(struct rewrite *r, struct sy_buf *out, struct set *parent, int depth);

/* One operand of &&, up to "&&" or ']'. */
static sy_status class_operand(struct rewrite *r, struct set *s, bool first, int depth)
{
    for (bool start = first;; start = false) {
        size_t rest = (size_t)(r->end - r->p);
        if (rest == 0) return refuse(r, "an unclosed class");
        if ((*r->p == ']' && !start) || (rest >= 2 && r->p[0] == '&' && r->p[1] == '&')) return SY_OK;
        bool taken = false;
        sy_status st = SY_OK;
        if (*r->p == '[') {
            st = posix_class(r, s, &taken);
            if (st == SY_OK && !taken) {
                r->p++;
                st = class_at(r, NULL, s, depth + 1);
                taken = true;
            }
        } else if (*r->p == '\\' && rest >= 2) {
            st = class_escape(r, s, &taken);
        }
        if (st == SY_OK && !taken) st = class_range(r, s);
        if (st != SY_OK) return st;
    }
}

/* [general categories && [^items]]: one plain class, by the complement of the complement. */
static bool write_gc_and_not(const struct set *a, const struct set *b, struct sy_buf *out)
{
    if (!a->only_gc || !a->mask || a->n_sub || b->n_sub != 1 || b->items.len || !b->inner.len) return false;
    sy_buf_text(out, "[^");
    for (size_t i = 0; i < SY_COUNT(gc); i++)
        if (!(a->mask >> i & 1)) sy_buf_printf(out, "\\p{%s}", gc[i]);
    sy_buf_printf(out, "%s]", b->inner.at);
    return true;
}

/* Joins a nested class, plain or written out as one expression, to the class around it. */
static void join_parent(struct set *parent, const struct set *a, bool plain, bool negated, const struct sy_buf *whole)
{
    if (plain && negated) {
        add_negated(parent, a->items.at, a->items.len);
    } else if (plain) {
        sy_buf_add(&parent->items, a->items.at, a->items.len);
        parent->mask |= a->mask;
        parent->only_gc = parent->only_gc && a->only_gc;
    } else {
        sy_buf_char(&parent->subs, '|');
        if (negated) sy_buf_text(&parent->subs, "(?:(?!");
        sy_buf_add(&parent->subs, whole->at, whole->len);
        if (negated) sy_buf_text(&parent->subs, ")(?s:.))");
        sy_buf_clear(&parent->inner);
        parent->n_sub++;
    }
    parent->inner.failed |= a->items.failed | a->subs.failed | a->inner.failed | whole->failed;
}

/* Operands joined by &&, up to ']': the last one is left in *a, unless *whole has become the whole class. */
static sy_status class_operands(struct rewrite *r, struct set *a, struct sy_buf *whole, bool *plain, int depth)
{
    sy_status st = class_operand(r, a, true, depth);
    *plain = st == SY_OK && *r->p == ']' && a->n_sub == 0;
    if (st != SY_OK || *plain) return st;
    struct set b;
    sy_buf_text(whole, "(?:");
    while (st == SY_OK && *r->p == '&') {
        r->p += 2;
        set_init(&b, r->env->env);
        st = class_operand(r, &b, false, depth);
        if (st == SY_OK && whole->len == 3 && *r->p == ']' && write_gc_and_not(a, &b, whole)) {
            set_release(&b);
            sy_buf_char(whole, ')');
            return SY_OK;
        }
        sy_buf_text(whole, "(?=");
        write_set(a, whole);
        sy_buf_char(whole, ')');
        set_release(a);
        *a = b;
    }
    write_set(a, whole);
    sy_buf_char(whole, ')');
    return st;
}

/* After '[': the class is written to out, or, nested (out NULL), joined to its parent. */
static sy_status class_at(struct rewrite *r, struct sy_buf *out, struct set *parent, int depth)
{
    if (depth > NEST_MAX) return refuse(r, "a class nested this deep");
    bool negated = r->p < r->end && *r->p == '^', plain;
    if (negated) r->p++;
    struct set a;
    struct sy_buf whole;
    set_init(&a, r->env->env);
    sy_buf_init(&whole, r->env->env, PATTERN_LIMIT);
    sy_status st = class_operands(r, &a, &whole, &plain, depth);
    if (st == SY_OK) {
        r->p++; /* ']' */
        if (!out) {
            join_parent(parent, &a, plain, negated, &whole);
        } else {
            sy_buf_text(out, plain ? negated ? "[^" : "[" : negated ? "(?:(?!" : "");
            sy_buf_add(out, plain ? a.items.at : whole.at, plain ? a.items.len : whole.len);
            sy_buf_text(out, plain ? "]" : negated ? ")(?s:.))" : "");
            out->failed |= a.items.failed | a.subs.failed | a.inner.failed | whole.failed;
        }
    }
    set_release(&a);
    sy_buf_release(&whole);
    return st;
}

/* ---- outside classes --------------------------------------------------------------------------------- */

static sy_status escape(struct rewrite *r)
{
    static const struct {
        char c;
        const char *text;
    } known[] = {
        {'s', "[" SPACE "]"},
        {'S', "[^" SPACE "]"},
        {'w', "[" WORD "]"},
        {'W', "[^" WORD "]"},
        {'d', "\\p{Nd}"},
        {'D', "\\P{Nd}"},
        {'h', "[" HEX "]"},
        {'H', "[^" HEX "]"},
        {'O', "(?s:.)"},
        {'b', "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))"},
        {'B', "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))"},
    };
    if (++r->p == r->end) return refuse(r, "a backslash at the end");
    r->atom = r->out->len;
    char c = *r->p;
    for (size_t i = 0; i < SY_COUNT(known); i++) {
        if (known[i].c != c) continue;
        sy_buf_text(r->out, known[i].text);
        r->p++;
        return SY_OK;
    }
    if (c == 'p' || c == 'P') {
        r->p++;
        uint32_t mask;
        return property(r, c == 'P', r->out, &mask);
    }
    uint32_t v;
    bool ok;
    sy_status st = escaped_char(r, &v, &ok);
    if (st != SY_OK) return st;
    if (ok) {
        sy_buf_printf(r->out, "\\x{%x}", (unsigned)v);
        return SY_OK;
    }
    if (c && !strchr("NRXAzZGKkg123456789", c)) return refuse(r, "this escape");
    sy_buf_char(r->out, '\\');
    sy_buf_char(r->out, c);
    r->p++;
    return SY_OK;
}

/* Wraps the last atom and its interval: the next quantifier repeats both. */
static void wrap(struct rewrite *r)
{
    sy_buf_text(r->out, "(?:)");
    if (r->out->failed) return;
    char *at = r->out->at + r->atom;
    memmove(at + 3, at, r->out->len - r->atom - 4);
    memcpy(at, "(?:", 3);
    r->out->at[r->out->len - 1] = ')';
}

/* {n}, {n,}, {,m}, {n,m}; anything else is a literal brace. In Ruby's syntax {n,m}+ is a repeated repetition, not a
 * possessive one, and {n}? is optional, not lazy. */
static void interval(struct rewrite *r)
{
    const char *p = r->p + 1;
    int n_lo = 0, n_hi = 0;
    bool comma = false;
    for (; p < r->end && *p >= '0' && *p <= '9'; p++) n_lo++;
    if (p < r->end && *p == ',') {
        comma = true;
        for (p++; p < r->end && *p >= '0' && *p <= '9'; p++) n_hi++;
    }
    if (p == r->end || *p != '}' || n_lo + n_hi == 0) {
        r->atom = r->out->len;
        sy_buf_text(r->out, "\\{");
        r->p++;
        return;
    }
    sy_buf_text(r->out, n_lo ? "{" : "{0");
    sy_buf_add(r->out, r->p + 1, (size_t)(p - r->p));
    r->p = p + 1;
    if (r->p < r->end && (*r->p == '+' || (*r->p == '?' && !comma))) wrap(r);
    if (r->p < r->end && (*r->p == '+' || *r->p == '?')) sy_buf_char(r->out, *r->p++);
}

static sy_status open_group(struct rewrite *r)
{
    if (r->depth == GROUP_MAX) return refuse(r, "a group nested this deep");
    r->group[r->depth++] = r->out->len;
    sy_buf_char(r->out, *r->p++);
    if (r->p == r->end || *r->p != '?') return SY_OK;
    sy_buf_char(r->out, *r->p++);
    /* Option letters: Ruby's m lets '.' match newlines, which is s here. */
    for (; r->p < r->end && strchr("imx-", *r->p) && *r->p; r->p++) {
        if (*r->p == 'x') return refuse(r, "the option x");
        sy_buf_char(r->out, *r->p == 'm' ? 's' : *r->p);
    }
    if (r->p < r->end && *r->p == '#') return refuse(r, "a comment");
    if (r->p < r->end && strchr(":=!<>", *r->p) && *r->p) sy_buf_char(r->out, *r->p++);
    else if (r->p < r->end && *r->p != ')') return refuse(r, "this kind of group");
    return SY_OK;
}

sy_status sy_rx_rewrite(struct rx_env *env, const char *pattern, size_t n, struct sy_buf *out, struct sy_err *err)
{
    struct rewrite r = {
        .env = env, .pattern = pattern, .p = pattern, .end = pattern + n, .n_pattern = n, .out = out, .err = err};
    sy_status st = SY_OK;
    while (st == SY_OK && r.p < r.end) {
        size_t at = out->len;
        switch (*r.p) {
        case '\\': st = escape(&r); break;
        case '(': st = open_group(&r); break;
        case '{': interval(&r); break;
        case '[':
            r.p++;
            r.atom = at;
            st = class_at(&r, out, NULL, 0);
            break;
        case ')':
            if (r.depth) r.atom = r.group[--r.depth];
            sy_buf_char(out, *r.p++);
            break;
        case '*':
        case '+':
        case '?':
        case '|': sy_buf_char(out, *r.p++); break;
        default:
            r.atom = at;
            uint32_t c;
            size_t len = sy_utf8_next(r.p, (size_t)(r.end - r.p), &c);
            sy_buf_add(out, r.p, len);
            r.p += len;
        }
    }
    if (st == SY_OK && out->failed) st = sy_fail(err, SY_ENOMEM, "no memory for a regular expression");
    return st;
}
