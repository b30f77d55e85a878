/* template_format.c - printf-style % formatting, str.format() and its specification language, strftime. Described in
 * the Python library reference: "printf-style String Formatting", "Format String Syntax". */
#include <ctype.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "text/template_int.h"

enum { PRECISION_MAX = 500 };

struct spec {
    char align; /* < > = ^, 0: by type */
    const struct str *fill;
    char sign, type; /* + - or space; 0: none */
    bool alt, zero, comma, under;
    int64_t width, precision; /* -1: none */
};

/* Reads digits at s[*i]; false when there are none. What is beyond the limit reads so, and is refused later. */
static bool read_number(const struct str *s, size_t *i, int64_t *v)
{
    size_t from = *i;
    for (*v = 0; *i < s->n && isdigit((unsigned char)s->at[*i]); ++*i)
        if (*v < 1 << 30) *v = *v * 10 + (s->at[*i] - '0');
    return *i > from;
}

/* body, padded to the width; prefix is what zeros go behind: a sign, 0x. */
static bool padded(struct run *r, struct store *to, const struct spec *f, char align, const struct str *prefix,
                   const struct str *body)
{
    static const struct str space = {.at = " ", .n = 1, .n_char = 1, .trust = TRUSTED};
    const struct str *fill = f->fill ? f->fill : &space;
    int64_t room = f->width - (int64_t)sy_tpl_chars(r, body) - (int64_t)sy_tpl_chars(r, prefix);
    int64_t left = align == '>' ? room : align == '^' ? room / 2 : 0;
    int64_t right = align == '<' ? room : align == '^' ? room - room / 2 : 0;
    if (room <= 0) left = right = room = 0;
    return sy_tpl_add_fill(r, to, fill, left) && sy_tpl_add_str(r, to, prefix) &&
           (align != '=' || sy_tpl_add_fill(r, to, fill, room)) && sy_tpl_add_str(r, to, body) &&
           sy_tpl_add_fill(r, to, fill, right);
}

static bool put_text(struct run *r, struct store *to, const struct spec *f, const struct str *s)
{
    if (f->precision >= 0 && (size_t)f->precision < sy_tpl_chars(r, s))
        s = sy_tpl_part(r, s, 0, sy_tpl_offset(r, s, (size_t)f->precision));
    return s && padded(r, to, f, f->align ? f->align : '<', &sy_tpl_empty, s);
}

/* A number's digits with their sign and prefix, padded. */
static bool put_digits(struct run *r, struct store *to, const struct spec *f, bool minus, const char *mark,
                       const char *digits, bool trusted)
{
    char prefix[4];
    snprintf(prefix, sizeof prefix, "%s%s", minus ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "", mark);
    const struct str *p = sy_tpl_copy(r, prefix, strlen(prefix), trusted);
    const struct str *d = sy_tpl_copy(r, digits, strlen(digits), trusted);
    return p && d && padded(r, to, f, f->align ? f->align : '>', p, d);
}

static bool group_digits(const char *digits, size_t every, char sep, char *out, size_t size)
{
    size_t whole = strspn(digits, "0123456789abcdefABCDEF"), n = 0;
    if (every == 3) whole = strspn(digits, "0123456789");
    for (size_t i = 0; digits[i]; i++) {
        if (n + 2 >= size) return false;
        if (i && i < whole && (whole - i) % every == 0) out[n++] = sep;
        out[n++] = digits[i];
    }
    out[n] = 0;
    return true;
}

static bool put_int(struct run *r, struct store *to, const struct spec *f, __int128 v, bool trusted)
{
    unsigned base = f->type == 'x' || f->type == 'X' ? 16 : f->type == 'o' ? 8 : f->type == 'b' ? 2 : 10;
    char raw[136], text[PRECISION_MAX + 136], grouped[2 * sizeof text];
    size_t n = sy_tpl_int_text(v, base, f->type == 'X', raw) - (v < 0), zeros = 0;
    if (f->precision > PRECISION_MAX) return sy_tpl_fail(r, SY_EARG, "a precision above %d", PRECISION_MAX);
    if (f->precision > (int64_t)n) zeros = (size_t)f->precision - n;
    memset(text, '0', zeros);
    memcpy(text + zeros, raw + (v < 0), n + 1);
    const char *mark = "";
    if (f->alt && base != 10) mark = base == 8 ? "0o" : base == 2 ? "0b" : f->type == 'X' ? "0X" : "0x";
    if (!f->comma && !f->under) return put_digits(r, to, f, v < 0, mark, text, trusted);
    group_digits(text, base == 10 ? 3 : 4, f->comma ? ',' : '_', grouped, sizeof grouped);
    return put_digits(r, to, f, v < 0, mark, grouped, trusted);
}

static bool put_float(struct run *r, struct store *to, const struct spec *f, double v, bool trusted)
{
    char text[PRECISION_MAX + 340], fmt[16], grouped[2 * sizeof text];
    char type = f->type ? f->type : 'g';
    bool percent = type == '%', upper = isupper((unsigned char)type);
    int precision = f->precision < 0 ? 6 : (int)f->precision;
    size_t n;
    if (f->precision > PRECISION_MAX) return sy_tpl_fail(r, SY_EARG, "a precision above %d", PRECISION_MAX);
    if (percent) v *= 100;
    if (!isfinite(v)) {
        n = (size_t)snprintf(text, sizeof text, "%s", isnan(v) ? (upper ? "NAN" : "nan") : upper ? "INF" : "inf");
    } else if (!f->type && f->precision < 0) {
        n = sy_tpl_float_text(fabs(v), text);
    } else {
        snprintf(fmt, sizeof fmt, "%%%s.*%c", f->alt ? "#" : "", percent ? 'f' : type == 'n' ? 'g' : type);
        n = (size_t)snprintf(text, sizeof text, fmt, precision, fabs(v));
        if (!f->type && !strpbrk(text, ".e")) /* a float without type still looks like one */
            n += (size_t)snprintf(text + n, sizeof text - n, ".0");
    }
    if (percent) snprintf(text + n, sizeof text - n, "%%");
    bool minus = signbit(v) && !isnan(v);
    if (!f->comma && !f->under) return put_digits(r, to, f, minus, "", text, trusted);
    group_digits(text, 3, f->comma ? ',' : '_', grouped, sizeof grouped);
    return put_digits(r, to, f, minus, "", grouped, trusted);
}

static bool put_char(struct run *r, struct store *to, const struct spec *f, const struct val *v)
{
    int64_t c = -1;
    if (v->kind == V_STR && sy_tpl_chars(r, v->s) == 1) return put_text(r, to, f, v->s);
    if (!sy_tpl_index(v, &c) || c < 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return sy_tpl_fail(r, SY_EARG, "%%c needs one character or its number");
    struct store *st = sy_tpl_store(r, 4);
    struct val text;
    return st && sy_tpl_add_char(r, st, (uint32_t)c, !v->taint) && sy_tpl_took(r, st, &text) &&
           put_text(r, to, f, text.s);
}

/* ---- "%s" % x -------------------------------------------------------- */

struct percent {
    struct run *r;
    const struct str *fmt;
    const struct val *arg;
    size_t i, used; /* position in fmt; arguments used */
    struct val key_value;
    bool has_key;
};

static bool next_arg(struct percent *p, struct val *out)
{
    if (p->has_key) {
        *out = p->key_value;
        return true;
    }
    bool tuple = p->arg->kind == V_TUPLE;
    if (p->used >= (tuple ? p->arg->list->n : 1))
        return sy_tpl_fail(p->r, SY_EARG, "%%: not enough arguments for the format");
    *out = tuple ? p->arg->list->at[p->used] : *p->arg;
    p->used++;
    return true;
}

static bool percent_key(struct percent *p)
{
    size_t from = ++p->i, depth = 1;
    for (; p->i < p->fmt->n; p->i++) {
        if (p->fmt->at[p->i] == '(') depth++;
        if (p->fmt->at[p->i] == ')' && --depth == 0) break;
    }
    if (p->i == p->fmt->n) return sy_tpl_fail(p->r, SY_EARG, "%%(...: expected ')'");
    const struct str *name = sy_tpl_part(p->r, p->fmt, from, p->i++ - from);
    if (!name) return false;
    if (p->arg->kind != V_DICT) return sy_tpl_fail(p->r, SY_EARG, "%%(name)s needs a dict");
    struct val key = sy_tpl_of_str(name);
    const struct val *found;
    if (!sy_tpl_dict_get(p->r, p->arg->dict, &key, &found)) return false;
    if (!found)
        return sy_tpl_fail(p->r, SY_EARG, "%%: the dict has no '%.*s'", (int)(name->n < 60 ? name->n : 60), name->at);
    p->key_value = *found;
    p->has_key = true;
    return true;
}

static bool percent_size(struct percent *p, int64_t *v)
{
    if (p->i < p->fmt->n && p->fmt->at[p->i] == '*') {
        struct val n;
        p->i++;
        if (!next_arg(p, &n)) return false;
        return sy_tpl_index(&n, v) || sy_tpl_fail(p->r, SY_EARG, "%%*: a width or precision must be an integer");
    }
    int64_t n;
    if (read_number(p->fmt, &p->i, &n)) *v = n;
    return true;
}

static bool percent_spec(struct percent *p, struct spec *f)
{
    static const struct str zero = {.at = "0", .n = 1, .n_char = 1, .trust = TRUSTED};
    const struct str *s = p->fmt;
    bool left = false;
    if (p->i < s->n && s->at[p->i] == '(' && !percent_key(p)) return false;
    for (; p->i < s->n && s->at[p->i] && strchr("-+ #0", s->at[p->i]); p->i++) {
        char c = s->at[p->i];
        left |= c == '-';
        f->alt |= c == '#';
        f->zero |= c == '0';
        if (c == '+' || (c == ' ' && f->sign != '+')) f->sign = c;
    }
    if (!percent_size(p, &f->width)) return false;
    if (f->width < 0) {
        left = true;
        f->width = -f->width;
    }
    if (p->i < s->n && s->at[p->i] == '.') {
        p->i++;
        f->precision = 0;
        if (!percent_size(p, &f->precision)) return false;
        if (f->precision < 0) f->precision = 0;
    }
    if (p->i < s->n && s->at[p->i] && strchr("hlL", s->at[p->i])) p->i++;
    if (p->i == s->n) return sy_tpl_fail(p->r, SY_EARG, "%%: the format ends inside a specification");
    f->type = s->at[p->i++];
    f->align = left ? '<' : '>';
    if (f->zero && !left && strchr("diuoxXeEfFgG", f->type)) {
        f->fill = &zero;
        f->align = '=';
    }
    return true;
}

static bool percent_one(struct percent *p, struct store *to)
{
    struct spec f = {.precision = -1};
    struct run *r = p->r;
    struct val v;
    const struct str *text;
    double d;
    p->has_key = false;
    if (!percent_spec(p, &f)) return false;
    if (f.type == '%') return sy_tpl_add(r, to, "%", 1, true);
    if (!f.type || !strchr("srdiuoxXeEfFgGca", f.type))
        return sy_tpl_fail(r, SY_EARG, "%%: unknown format character '%c'", f.type);
    if (!next_arg(p, &v)) return false;
    if (f.type == 'c') return put_char(r, to, &f, &v);
    if (f.type == 's') return sy_tpl_str(r, &v, &text) && put_text(r, to, &f, text);
    if (f.type == 'r' || f.type == 'a') return sy_tpl_repr(r, &v, &text) && put_text(r, to, &f, text);
    if (!sy_tpl_as_float(&v, &d))
        return sy_tpl_fail(r, SY_EARG, "%%%c needs a number, found '%s'", f.type, sy_tpl_type(&v));
    if (strchr("eEfFgG", f.type)) return put_float(r, to, &f, d, !v.taint);
    __int128 i = v.kind == V_BOOL ? v.b : v.i;
    if (v.kind == V_FLOAT) {
        if (strchr("oxX", f.type)) return sy_tpl_fail(r, SY_EARG, "%%%c needs an integer, found a float", f.type);
        if (!sy_tpl_trunc(v.f, &i)) return sy_tpl_fail(r, SY_EARG, "%%%c: the float has no integer", f.type);
    }
    return put_int(r, to, &f, i, !v.taint);
}

bool sy_tpl_percent(struct run *r, const struct str *fmt, const struct val *arg, struct val *out)
{
    struct store *to = sy_tpl_store(r, fmt->n);
    struct percent p = {.r = r, .fmt = fmt, .arg = arg};
    if (!to) return false;
    while (p.i < fmt->n) {
        const char *c = memchr(fmt->at + p.i, '%', fmt->n - p.i);
        size_t stop = c ? (size_t)(c - fmt->at) : fmt->n;
        if (!sy_tpl_add_part(r, to, fmt, p.i, stop - p.i)) return false;
        p.i = stop + 1;
        if (c && !percent_one(&p, to)) return false;
    }
    bool keyed = arg->kind == V_DICT || arg->kind == V_LIST || arg->kind == V_RANGE || arg->kind == V_UNDEF;
    if (!keyed && p.used < (arg->kind == V_TUPLE ? arg->list->n : 1))
        return sy_tpl_fail(r, SY_EARG, "%%: not all arguments are used by the format");
    return sy_tpl_took(r, to, out);
}

/* ---- "{}".format(x) -------------------------------------------------------- */

struct fmt {
    struct run *r;
    const struct args *args;
    const struct dict *map;
    int64_t next;  /* automatic numbering; -1: numbered by hand */
    bool numbered; /* any automatic number used */
};

static bool read_spec(struct run *r, const struct str *s, struct spec *f)
{
    size_t i = 0, len = 0;
    uint32_t c;
    *f = (struct spec){.precision = -1};
    if (s->n) len = sy_utf8_next(s->at, s->n, &c);
    if (s->n > len && len && s->at[len] && strchr("<>=^", s->at[len])) {
        if (!(f->fill = sy_tpl_part(r, s, 0, len))) return false;
        f->align = s->at[len];
        i = len + 1;
    } else if (s->n && s->at[0] && strchr("<>=^", s->at[0])) {
        f->align = s->at[i++];
    }
    if (i < s->n && s->at[i] && strchr("+- ", s->at[i])) f->sign = s->at[i++];
    f->alt = i < s->n && s->at[i] == '#';
    i += f->alt;
    f->zero = i < s->n && s->at[i] == '0';
    i += f->zero;
    read_number(s, &i, &f->width);
    f->comma = i < s->n && s->at[i] == ',';
    f->under = i < s->n && s->at[i] == '_';
    i += f->comma || f->under;
    if (i < s->n && s->at[i] == '.') {
        i++;
        if (!read_number(s, &i, &f->precision)) return sy_tpl_fail(r, SY_EARG, "format: a precision is missing");
    }
    if (i < s->n) f->type = s->at[i++];
    return i == s->n ||
           sy_tpl_fail(r, SY_EARG, "format: malformed specification '%.*s'", (int)(s->n < 60 ? s->n : 60), s->at);
}

static bool format_number(struct run *r, struct store *to, struct spec *f, const struct val *v)
{
    double d;
    sy_tpl_as_float(v, &d);
    bool whole = v->kind != V_FLOAT;
    if (whole && f->type == 'c') return put_char(r, to, f, v);
    if (f->type && (!strchr("bdoxXn", f->type) || !whole)) {
        if (!strchr("eEfFgGn%", f->type))
            return sy_tpl_fail(r, SY_EARG, "format: unknown type '%c' for a %s", f->type, sy_tpl_type(v));
        return put_float(r, to, f, d, !v->taint);
    }
    if (!whole) return put_float(r, to, f, d, !v->taint);
    if (f->precision >= 0) return sy_tpl_fail(r, SY_EARG, "format: an integer has no precision");
    return put_int(r, to, f, v->kind == V_BOOL ? v->b : v->i, !v->taint);
}

static bool format_value(struct run *r, struct store *to, const struct val *v, const struct str *spec)
{
    static const struct str zero = {.at = "0", .n = 1, .n_char = 1, .trust = TRUSTED};
    struct spec f;
    const struct str *text;
    double d;
    if (!spec->n) return sy_tpl_str(r, v, &text) && sy_tpl_add_str(r, to, text);
    if (!read_spec(r, spec, &f)) return false;
    bool is_number = sy_tpl_as_float(v, &d);
    if (f.zero && !f.fill) f.fill = &zero;
    if (f.zero && !f.align) f.align = is_number ? '=' : '<';
    if (is_number) return format_number(r, to, &f, v);
    if (v->kind != V_STR) return sy_tpl_fail(r, SY_EARG, "format: a %s takes no specification", sy_tpl_type(v));
    if (f.sign || f.align == '=' || f.comma || f.under || f.alt || (f.type && f.type != 's'))
        return sy_tpl_fail(r, SY_EARG, "format: the specification '%.*s' is not for a text",
                           (int)(spec->n < 60 ? spec->n : 60), spec->at);
    return put_text(r, to, &f, v->s);
}

static bool field_start(struct fmt *x, const struct str *name, struct val *out)
{
    size_t i = 0;
    int64_t index;
    bool number = read_number(name, &i, &index) && i == name->n;
    if (!name->n || number) {
        if (number ? x->numbered : x->next < 0)
            return sy_tpl_fail(x->r, SY_EARG, "format: numbered and unnumbered fields are mixed");
        if (!number) {
            index = x->next++;
            x->numbered = true;
        } else {
            x->next = -1;
        }
        if (x->map || (size_t)index >= x->args->n)
            return sy_tpl_fail(x->r, SY_EARG, "format: there is no argument %d", (int)index);
        *out = x->args->at[index];
        return true;
    }
    for (size_t k = 0; !x->map && k < x->args->n_kw; k++) {
        const struct str *s = x->args->kw[k].name;
        if (s->n != name->n || memcmp(s->at, name->at, s->n)) continue;
        *out = x->args->kw[k].value;
        return true;
    }
    const struct val *found = x->map ? sy_tpl_dict_text(x->map, name->at, name->n) : NULL;
    if (found) *out = *found;
    return found || sy_tpl_fail(x->r, SY_EARG, "format: there is no argument '%.*s'",
                                (int)(name->n < 60 ? name->n : 60), name->at);
}

/* name.attribute[item]... */
static bool field(struct fmt *x, const struct str *path, struct val *out)
{
    size_t i = 0;
    while (i < path->n && path->at[i] != '.' && path->at[i] != '[') i++;
    const struct str *name = sy_tpl_part(x->r, path, 0, i);
    if (!name || !field_start(x, name, out)) return false;
    while (i < path->n) {
        bool item = path->at[i] == '[';
        size_t from = ++i, end;
        while (i < path->n && (item ? path->at[i] != ']' : path->at[i] != '.' && path->at[i] != '[')) i++;
        end = i;
        if (item && (i == path->n || (++i < path->n && path->at[i] != '.' && path->at[i] != '[')))
            return sy_tpl_fail(x->r, SY_EARG, "format: malformed field '%.*s'", (int)(path->n < 60 ? path->n : 60),
                               path->at);
        struct val key, of = *out;
        int64_t index;
        size_t k = 0;
        if (!(name = sy_tpl_part(x->r, path, from, end - from))) return false;
        key = sy_tpl_of_str(name);
        if (item && read_number(name, &k, &index) && k == name->n) key = sy_tpl_int(index, false);
        if (!(item ? sy_tpl_item(x->r, &of, &key, out) : sy_tpl_attr(x->r, &of, name, out))) return false;
    }
    return true;
}

static bool format_into(struct fmt *x, struct store *to, const struct str *s, int depth);

/* s[*i] is behind a '{'. */
static bool replacement(struct fmt *x, struct store *to, const struct str *s, size_t *i, int depth)
{
    struct run *r = x->r;
    size_t from = *i, level = 1;
    while (*i < s->n && level) {
        level += s->at[*i] == '{';
        level -= s->at[*i] == '}';
        ++*i;
    }
    if (level) return sy_tpl_fail(r, SY_EARG, "format: expected '}'");
    size_t end = *i - 1, name_end = from, spec_at = end;
    int bracket = 0;
    while (name_end < end && (bracket || (s->at[name_end] != '!' && s->at[name_end] != ':'))) {
        bracket += s->at[name_end] == '[';
        if (s->at[name_end] == ']' && bracket) bracket--;
        name_end++;
    }
    char conversion = name_end < end && s->at[name_end] == '!' && name_end + 1 < end ? s->at[name_end + 1] : 0;
    size_t colon = name_end + (conversion ? 2 : 0);
    if (colon < end && s->at[colon] != ':') return sy_tpl_fail(r, SY_EARG, "format: expected ':' after a conversion");
    if (colon < end) spec_at = colon + 1;
    const struct str *path = sy_tpl_part(r, s, from, name_end - from),
                     *spec = sy_tpl_part(r, s, spec_at, end - spec_at), *text;
    struct val v;
    if (!path || !spec || !field(x, path, &v)) return false;
    if (conversion && !strchr("rsa", conversion))
        return sy_tpl_fail(r, SY_EARG, "format: unknown conversion '%c'", conversion);
    if (conversion && !(conversion == 's' ? sy_tpl_str(r, &v, &text) : sy_tpl_repr(r, &v, &text))) return false;
    if (conversion) v = sy_tpl_of_str(text);
    if (spec->n && memchr(spec->at, '{', spec->n)) {
        struct store *inner = sy_tpl_store(r, 0);
        struct val made;
        if (!inner || !format_into(x, inner, spec, depth + 1) || !sy_tpl_took(r, inner, &made)) return false;
        spec = made.s;
    }
    return format_value(r, to, &v, spec);
}

static bool format_into(struct fmt *x, struct store *to, const struct str *s, int depth)
{
    if (depth > 1) return sy_tpl_fail(x->r, SY_EARG, "format: specifications nest too deeply");
    size_t plain = 0;
    for (size_t i = 0; i < s->n;) {
        char c = s->at[i++];
        if (c != '{' && c != '}') continue;
        bool twice = i < s->n && s->at[i] == c;
        if (!sy_tpl_add_part(x->r, to, s, plain, i - plain - !twice)) return false;
        if (twice) i++;
        else if (c == '}') return sy_tpl_fail(x->r, SY_EARG, "format: single '}'");
        else if (!replacement(x, to, s, &i, depth)) return false;
        plain = i;
    }
    return sy_tpl_add_part(x->r, to, s, plain, s->n - plain);
}

bool sy_tpl_format(struct run *r, const struct str *s, const struct args *args, const struct dict *map,
                   struct val *out)
{
    struct fmt x = {.r = r, .args = args, .map = map};
    struct store *to = sy_tpl_store(r, s->n);
    return to && format_into(&x, to, s, 0) && sy_tpl_took(r, to, out);
}

/* ---- strftime -------------------------------------------------------- */

bool sy_tpl_strftime(struct run *r, const struct str *fmt, struct val *out)
{
    struct tm tm;
    time_t now = (time_t)r->now;
    bool trusted = sy_tpl_trusted(fmt);
    struct store *to = sy_tpl_store(r, 0);
    if (!to) return false;
    if (!gmtime_r(&now, &tm))
        return sy_tpl_fail(r, SY_EARG, "strftime_now: the time %lld is out of range", (long long)now);
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) return sy_tpl_fail(r, SY_ENOMEM, "no memory for a locale");
    bool good = true;
    for (size_t i = 0; good && i < fmt->n;) {
        char one[8] = "%", text[256];
        size_t n = 1;
        if (fmt->at[i] != '%' || i + 1 == fmt->n) {
            good = sy_tpl_add(r, to, fmt->at + i++, 1, trusted);
            continue;
        }
        i++;
        while (n < 6 && i + 1 < fmt->n && fmt->at[i] && strchr("_-0^#EO", fmt->at[i])) one[n++] = fmt->at[i++];
        char c = one[n] = fmt->at[i++];
        size_t len = c == 'f' ? (size_t)snprintf(text, sizeof text, "000000") : 0;
        if (c == 's') len = (size_t)snprintf(text, sizeof text, "%lld", (long long)now);
        else if (c != 'f' && c != 'z' && c != 'Z' && c) len = strftime_l(text, sizeof text, one, &tm, plain);
        good = sy_tpl_add(r, to, text, len, trusted);
    }
    freelocale(plain);
    return good && sy_tpl_took(r, to, out);
}
