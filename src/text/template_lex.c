/* template_lex.c - the source as tokens, with jinja2's rules for white space around tags under trim_blocks and
 * lstrip_blocks. Documentation: Jinja 3.1, "Template Designer", Whitespace Control. */
#include <stdlib.h>
#include <string.h>

#include "text/template_int.h"

struct lex {
    struct compile *c;
    const char *s;
    size_t n, i;
    int line;
    bool line_start;            /* the last thing read ended in a newline */
    char open[SY_TPL_NEST_MAX]; /* closing brackets awaited in the tag */
    int n_open;
};

static struct token *push(struct lex *l, enum token_kind kind)
{
    struct compile *c = l->c;
    if (c->n_tok == c->cap_tok) {
        /* Not from an arena: it would keep every smaller array. A byte of source makes one token at most. */
        size_t cap = c->cap_tok ? 2 * c->cap_tok : 256;
        struct token *t = sy_resize(c->arena->env, c->tok, c->cap_tok * sizeof *t, cap * sizeof *t);
        if (!t) {
            sy_tpl_error(c, SY_ENOMEM, l->line, "no memory for %zu tokens", cap);
            return NULL;
        }
        c->tok = t;
        c->cap_tok = cap;
    }
    struct token *t = &c->tok[c->n_tok++];
    *t = (struct token){.kind = kind, .line = l->line};
    return t;
}

static void advance(struct lex *l, size_t to)
{
    for (; l->i < to; l->i++)
        if (l->s[l->i] == '\n') l->line++;
    if (to) l->line_start = l->s[to - 1] == '\n';
}

static size_t skip_space(const struct lex *l, size_t i)
{
    while (i < l->n) {
        uint32_t cp;
        size_t len = sy_utf8_next(l->s + i, l->n - i, &cp);
        if (!sy_tpl_is_space(cp)) break;
        i += len;
    }
    return i;
}

static bool at(const struct lex *l, size_t i, const char *text)
{
    size_t n = strlen(text);
    return l->n - i >= n && !memcmp(l->s + i, text, n);
}

/* Text in front of a tag, cut as the tag's sign asks; `is_print`: lstrip_blocks spares {{. */
static bool data(struct lex *l, size_t end, char sign, bool is_print, bool line_start)
{
    size_t lo = l->i, n = end - lo;
    const char *s = l->s + lo;
    if (sign == '-') {
        n = sy_tpl_trim_end(s, n);
    } else if (sign != '+' && !is_print) {
        const char *nl = n ? memrchr(s, '\n', n) : NULL;
        size_t from = nl ? (size_t)(nl - s) + 1 : 0;
        if ((from || line_start) && sy_tpl_trim_end(s + from, n - from) == 0) n = from;
    }
    if (n) {
        struct token *t = push(l, T_DATA);
        if (!t) return false;
        t->at = s;
        t->n = n;
    }
    advance(l, end);
    return true;
}

/* The end of a comment, block or raw tag whose closing text is `close`: where the next text starts, or 0. */
static size_t tag_end(const struct lex *l, size_t i, const char *close, bool is_print)
{
    char sign = i < l->n ? l->s[i] : 0;
    if (sign == '-' && at(l, i + 1, close)) return skip_space(l, i + 3);
    if (is_print) return at(l, i, close) ? i + 2 : 0;
    if (sign == '+' && at(l, i + 1, close)) return i + 3;
    if (!at(l, i, close)) return 0;
    return i + 2 < l->n && l->s[i + 2] == '\n' ? i + 3 : i + 2;
}

static bool comment(struct lex *l)
{
    for (size_t i = l->i; i < l->n; i++) {
        size_t end = tag_end(l, i, "#}", false);
        if (!end) continue;
        advance(l, end);
        return true;
    }
    return sy_tpl_error(l->c, SY_EFORMAT, l->line, "the comment that starts here has no end: expected '#}'");
}

/* {% raw %}: 0 unless it stands at i; then where the raw text starts. It has no trim_blocks: jinja2 is so. */
static size_t raw_begin(const struct lex *l, size_t i)
{
    i += 2;
    if (i < l->n && (l->s[i] == '-' || l->s[i] == '+')) i++;
    i = skip_space(l, i);
    if (!at(l, i, "raw")) return 0;
    i = skip_space(l, i + 3);
    if (at(l, i, "-%}")) return skip_space(l, i + 3);
    return at(l, i, "%}") ? i + 2 : 0;
}

static bool raw(struct lex *l, size_t begin)
{
    int line = l->line;
    advance(l, begin);
    bool line_start = l->line_start;
    for (size_t i = begin; i + 1 < l->n; i++) {
        if (l->s[i] != '{' || l->s[i + 1] != '%') continue;
        size_t j = i + 2;
        char sign = j < l->n ? l->s[j] : 0;
        if (sign == '-' || sign == '+') j++;
        j = skip_space(l, j);
        if (!at(l, j, "endraw")) continue;
        size_t end = tag_end(l, skip_space(l, j + 6), "%}", false);
        if (!end) continue;
        if (!data(l, i, sign, false, line_start)) return false;
        advance(l, end);
        return true;
    }
    return sy_tpl_error(l->c, SY_EFORMAT, line, "the raw block that starts here has no end: expected {%% endraw %%}");
}

/* ---- inside a tag -------------------------------------------------------- */

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads up to max digits of the base; returns how many. */
static size_t digits(const char *s, size_t n, size_t max, int base, uint32_t *v)
{
    size_t k = 0;
    for (*v = 0; k < max && k < n; k++) {
        int d = hex_value(s[k]);
        if (d < 0 || d >= base) break;
        *v = *v * (uint32_t)base + (uint32_t)d;
    }
    return k;
}

/* One escape after a backslash, at s[0..n), appended to out; returns the bytes used, 0: malformed. */
static size_t escape(struct sy_buf *out, const char *s, size_t n)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    uint32_t v;
    const char *simple = s[0] ? strchr(from, s[0]) : NULL;
    if (s[0] == '\n') return 1;
    if (simple) {
        sy_buf_char(out, to[simple - from]);
        return 1;
    }
    if (s[0] >= '0' && s[0] <= '7') {
        size_t k = digits(s, n, 3, 8, &v);
        sy_buf_utf8(out, v);
        return k;
    }
    size_t want = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    if (want) {
        if (digits(s + 1, n - 1, want, 16, &v) != want || v > 0x10ffff) return 0;
        size_t used = 1 + want;
        uint32_t low;
        if (v >= 0xd800 && v < 0xdc00 && n - used >= 6 && s[used] == '\\' && s[used + 1] == 'u' &&
            digits(s + used + 2, 4, 4, 16, &low) == 4 && low >= 0xdc00 && low < 0xe000) {
            v = 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
            used += 6;
        }
        if (v >= 0xd800 && v < 0xe000) return 0; /* half of a pair cannot be text */
        sy_buf_utf8(out, v);
        return used;
    }
    if (s[0] == 'N') return 0; /* \N{NAME}: needs the table of all names */
    if ((unsigned char)s[0] < 0x80) {
        sy_buf_char(out, '\\');
        sy_buf_char(out, s[0]);
        return 1;
    }
    size_t used = sy_utf8_next(s, n, &v); /* Python unescapes after writing it as \xe9, so the escape is cut off */
    sy_buf_printf(out, v < 0x100 ? "\\x%02x" : v < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)v);
    return used;
}

static bool unescape(struct lex *l, struct token *t)
{
    if (!memchr(t->at, '\\', t->n)) return true;
    struct sy_buf b;
    sy_buf_init(&b, l->c->arena->env, 0);
    bool good = true;
    for (size_t i = 0; i < t->n && good;) {
        if (t->at[i] != '\\') {
            sy_buf_char(&b, t->at[i++]);
            continue;
        }
        size_t used = escape(&b, t->at + i + 1, t->n - i - 1);
        good = used > 0;
        i += 1 + used;
    }
    char *copy = good && !b.failed ? sy_arena_text(l->c->scratch, b.at ? b.at : "", b.len) : NULL;
    t->n = b.len;
    sy_buf_release(&b);
    t->at = copy;
    if (!good) return sy_tpl_error(l->c, SY_EFORMAT, l->line, "a string holds a malformed or unsupported escape");
    return copy || sy_tpl_error(l->c, SY_ENOMEM, l->line, "no memory for a string");
}

static bool string(struct lex *l)
{
    char quote = l->s[l->i];
    size_t i = l->i + 1;
    while (i < l->n && l->s[i] != quote) i += l->s[i] == '\\' ? 2 : 1;
    if (i >= l->n) return sy_tpl_error(l->c, SY_EFORMAT, l->line, "the string that starts here has no end");
    struct token *t = push(l, T_STRING);
    if (!t) return false;
    t->at = l->s + l->i + 1;
    t->n = i - l->i - 1;
    if (!unescape(l, t)) return false;
    advance(l, i + 1);
    return true;
}

static bool is_digit(const struct lex *l, size_t i) { return i < l->n && l->s[i] >= '0' && l->s[i] <= '9'; }

/* Digits with single underscores between them; returns where they end (i: none). */
static size_t digit_run(const struct lex *l, size_t i)
{
    if (!is_digit(l, i)) return i;
    while (is_digit(l, i) || (i < l->n && l->s[i] == '_' && is_digit(l, i + 1))) i++;
    return i;
}

static size_t float_end(const struct lex *l, size_t i)
{
    if (i && l->s[i - 1] == '.') return 0;
    size_t end = digit_run(l, i), good = 0;
    if (end < l->n && l->s[end] == '.' && is_digit(l, end + 1)) good = end = digit_run(l, end + 1);
    if (end < l->n && (l->s[end] | 32) == 'e') {
        size_t e = end + 1;
        if (e < l->n && (l->s[e] == '+' || l->s[e] == '-')) e++;
        if (is_digit(l, e)) good = digit_run(l, e);
    }
    return good;
}

static size_t int_end(const struct lex *l, size_t i, unsigned *base)
{
    *base = 10;
    char mark = l->s[i] == '0' && i + 1 < l->n ? l->s[i + 1] | 32 : 0;
    unsigned b = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (b) {
        size_t j = i + 2;
        for (;;) {
            size_t k = j + (j < l->n && l->s[j] == '_');
            int v = k < l->n ? hex_value(l->s[k]) : -1;
            if (v < 0 || v >= (int)b) break;
            j = k + 1;
        }
        if (j > i + 2) {
            *base = b;
            return j;
        }
    }
    if (l->s[i] != '0') return digit_run(l, i);
    i++;
    while (i < l->n && (l->s[i] == '0' || (l->s[i] == '_' && i + 1 < l->n && l->s[i + 1] == '0'))) i++;
    return i;
}

static bool number(struct lex *l)
{
    unsigned base = 10;
    size_t fe = float_end(l, l->i), end = fe ? fe : int_end(l, l->i, &base);
    size_t from = l->i + (base == 10 ? 0 : 2), n = 0;
    struct token *t = push(l, fe ? T_FLOAT : T_INT);
    char *text = t ? sy_arena_get(l->c->scratch, end - l->i + 1) : NULL;
    if (!text) return sy_tpl_error(l->c, SY_ENOMEM, l->line, "no memory for a number");
    for (size_t i = from; i < end; i++)
        if (l->s[i] != '_') text[n++] = l->s[i];
    bool good = fe ? sy_tpl_parse_float(text, n, &t->f) : sy_tpl_parse_int(text, n, base, &t->i);
    t->at = text;
    t->n = n;
    advance(l, end);
    return good || sy_tpl_error(l->c, SY_ENOSUP, l->line, "the number %.40s is beyond 128 bits", text);
}

static bool name(struct lex *l, bool *is_name)
{
    size_t i = l->i;
    while (i < l->n) {
        uint32_t cp;
        size_t len = sy_utf8_next(l->s + i, l->n - i, &cp);
        if (!sy_tpl_is_word(cp)) break;
        i += len;
    }
    *is_name = i > l->i;
    if (!*is_name) return true;
    struct token *t = push(l, T_NAME);
    if (!t) return false;
    t->at = l->s + l->i;
    t->n = i - l->i;
    advance(l, i);
    return true;
}

static bool operator(struct lex *l)
{
    static const struct {
        const char text[3];
        enum token_kind kind;
    } ops[] = {{"//", T_FLOORDIV}, {"**", T_POW},   {"==", T_EQ},      {"!=", T_NE},      {">=", T_GE},
               {"<=", T_LE},       {"+", T_ADD},    {"-", T_SUB},      {"*", T_MUL},      {"/", T_DIV},
               {"%", T_MOD},       {"~", T_TILDE},  {"<", T_LT},       {">", T_GT},       {"=", T_ASSIGN},
               {".", T_DOT},       {":", T_COLON},  {"|", T_PIPE},     {",", T_COMMA},    {";", T_SEMICOLON},
               {"(", T_LPAREN},    {")", T_RPAREN}, {"[", T_LBRACKET}, {"]", T_RBRACKET}, {"{", T_LBRACE},
               {"}", T_RBRACE}};
    size_t k = 0;
    while (k < SY_COUNT(ops) && !at(l, l->i, ops[k].text)) k++;
    char c = l->s[l->i];
    if (k == SY_COUNT(ops)) {
        uint32_t cp;
        sy_utf8_next(l->s + l->i, l->n - l->i, &cp);
        return sy_tpl_error(l->c, SY_EFORMAT, l->line, "unexpected character '%c' (U+%04X) in a tag",
                            cp < 0x80 ? c : '?', (unsigned)cp);
    }
    if (c == '(' || c == '[' || c == '{') {
        if (l->n_open == SY_TPL_NEST_MAX)
            return sy_tpl_error(l->c, SY_EFORMAT, l->line, "brackets nest deeper than %d", SY_TPL_NEST_MAX);
        l->open[l->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (!l->n_open) return sy_tpl_error(l->c, SY_EFORMAT, l->line, "unexpected '%c'", c);
        char want = l->open[--l->n_open];
        if (want != c) return sy_tpl_error(l->c, SY_EFORMAT, l->line, "unexpected '%c', expected '%c'", c, want);
    }
    if (!push(l, ops[k].kind)) return false;
    advance(l, l->i + strlen(ops[k].text));
    return true;
}

static bool tag(struct lex *l, bool is_print)
{
    l->n_open = 0;
    for (;;) {
        size_t end = l->n_open ? 0 : tag_end(l, l->i, is_print ? "}}" : "%}", is_print);
        if (end) {
            if (!push(l, is_print ? T_VAR_END : T_BLOCK_END)) return false;
            advance(l, end);
            return true;
        }
        size_t next = skip_space(l, l->i);
        if (next > l->i) {
            advance(l, next);
            continue;
        }
        if (l->i == l->n) return true; /* the parser names what it still expected */
        bool done;
        if (is_digit(l, l->i)) done = number(l);
        else if (l->s[l->i] == '"' || l->s[l->i] == '\'') done = string(l);
        else {
            bool was_name;
            done = name(l, &was_name) && (was_name || operator(l));
        }
        if (!done) return false;
    }
}

/* One stretch of text and the tag behind it. */
static bool step(struct lex *l)
{
    size_t i = l->i;
    while (i + 1 < l->n && !(l->s[i] == '{' && strchr("%{#", l->s[i + 1]) && l->s[i + 1])) i++;
    if (i + 1 >= l->n) return data(l, l->n, '+', false, false);
    char kind = l->s[i + 1], sign = i + 2 < l->n ? l->s[i + 2] : 0;
    bool is_print = kind == '{';
    if (!data(l, i, sign, is_print, l->line_start)) return false;
    size_t begin = kind == '%' ? raw_begin(l, i) : 0;
    if (begin) return raw(l, begin);
    if (kind != '#' && !push(l, is_print ? T_VAR_BEGIN : T_BLOCK_BEGIN)) return false;
    advance(l, i + 2 + (sign == '-' || sign == '+'));
    return kind == '#' ? comment(l) : tag(l, is_print);
}

bool sy_tpl_lex(struct compile *c, const char *source, size_t n)
{
    /* Newlines of any kind become \n, and one at the very end does not count. */
    char *s = sy_arena_get(c->scratch, n + 1);
    if (!s) return sy_tpl_error(c, SY_ENOMEM, 1, "no memory for %zu bytes of source", n);
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n') continue;
        s[len++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (len && s[len - 1] == '\n') len--;
    struct lex l = {.c = c, .s = s, .n = len, .line = 1, .line_start = true};
    while (l.i < l.n)
        if (!step(&l)) return false;
    return push(&l, T_EOF) != NULL;
}
