/* template_filter.c - jinja2's filters over texts and numbers, and the table of them; those over sequences are in
 * template_filter_seq.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/template_int.h"

static bool given(const struct val *v) { return v->kind != V_MISSING; }

static bool give(const struct str *s, struct val *out)
{
    if (s) *out = sy_tpl_of_str(s);
    return s != NULL;
}

static bool f_case(struct run *r, const struct val *arg, enum case_op op, struct val *out)
{
    const struct str *s;
    return sy_tpl_str(r, &arg[0], &s) && sy_tpl_case(r, s, op, out);
}
static bool f_upper(struct run *r, const struct val *arg, struct val *out) { return f_case(r, arg, CASE_UPPER, out); }
static bool f_lower(struct run *r, const struct val *arg, struct val *out) { return f_case(r, arg, CASE_LOWER, out); }
static bool f_capitalize(struct run *r, const struct val *arg, struct val *out)
{
    return f_case(r, arg, CASE_CAPITALIZE, out);
}

/* Not str.title(): words begin behind white space and -({[< only. */
static bool f_title(struct run *r, const struct val *arg, struct val *out)
{
    const struct str *s;
    struct store *st = sy_tpl_store(r, 0);
    if (!st || !sy_tpl_str(r, &arg[0], &s) || !sy_tpl_spend(r, s->n / 8)) return false;
    for (size_t i = 0; i < s->n;) {
        size_t end = i;
        uint32_t c;
        bool gap = false;
        for (size_t len; end < s->n && !gap; end += gap ? 0 : len) {
            len = sy_utf8_next(s->at + end, s->n - end, &c);
            gap = sy_tpl_is_space(c) || (c && c < 0x80 && strchr("-({[<", (int)c));
        }
        size_t first = end > i ? sy_utf8_next(s->at + i, s->n - i, &c) : 0;
        const struct str *head = sy_tpl_part(r, s, i, first), *tail = sy_tpl_part(r, s, i + first, end - i - first);
        struct val up, low;
        if (!head || !tail || !sy_tpl_case(r, head, CASE_UPPER, &up) || !sy_tpl_case(r, tail, CASE_LOWER, &low))
            return false;
        size_t sep = end < s->n ? sy_utf8_next(s->at + end, s->n - end, &c) : 0;
        if (!sy_tpl_add_str(r, st, up.s) || !sy_tpl_add_str(r, st, low.s) || !sy_tpl_add_part(r, st, s, end, sep))
            return false;
        i = end + sep;
    }
    return sy_tpl_took(r, st, out);
}

static bool f_string(struct run *r, const struct val *arg, struct val *out)
{
    const struct str *s;
    return sy_tpl_str(r, &arg[0], &s) && give(s, out);
}

static bool f_trim(struct run *r, const struct val *arg, struct val *out)
{
    const struct str *s;
    return sy_tpl_str(r, &arg[0], &s) && sy_tpl_str_op(r, "strip", s, arg + 1, 1, out);
}

static bool f_center(struct run *r, const struct val *arg, struct val *out)
{
    const struct str *s;
    struct val width = given(&arg[1]) ? arg[1] : sy_tpl_int(80, false);
    return sy_tpl_str(r, &arg[0], &s) && sy_tpl_str_op(r, "center", s, &width, 1, out);
}

static bool f_replace(struct run *r, const struct val *arg, struct val *out)
{
    const struct str *s, *old, *new;
    if (!sy_tpl_str(r, &arg[0], &s) || !sy_tpl_str(r, &arg[1], &old) || !sy_tpl_str(r, &arg[2], &new)) return false;
    struct val rest[3] = {sy_tpl_of_str(old), sy_tpl_of_str(new), arg[3]};
    return sy_tpl_str_op(r, "replace", s, rest, 3, out);
}

static bool f_format(struct run *r, const struct val *value, const struct args *args, struct val *out)
{
    const struct str *s;
    if (!sy_tpl_str(r, value, &s)) return false;
    if (args->n && args->n_kw) return sy_tpl_fail(r, SY_EARG, "format takes positional or named arguments, not both");
    if (args->n_kw) {
        struct dict *d = sy_tpl_dict(r, args->n_kw);
        for (size_t i = 0; d && i < args->n_kw; i++) {
            struct val key = sy_tpl_of_str(args->kw[i].name);
            if (!sy_tpl_dict_set(r, d, &key, &args->kw[i].value)) return false;
        }
        return d && sy_tpl_percent(r, s, &(struct val){.kind = V_DICT, .dict = d}, out);
    }
    struct list *l = sy_tpl_list(r, args->n);
    if (!l) return false;
    if (args->n) memcpy(l->at, args->at, args->n * sizeof *l->at);
    struct val tuple = sy_tpl_of_list(V_TUPLE, l, false);
    return sy_tpl_percent(r, s, &tuple, out);
}

static bool need_text(struct run *r, const char *what, const struct val *v)
{
    if (v->kind == V_STR) return true;
    if (v->kind == V_UNDEF) return sy_tpl_undef_fail(r, v);
    return sy_tpl_fail(r, SY_EARG, "%s needs a string, found '%s'", what, sy_tpl_type(v));
}

static bool f_indent(struct run *r, const struct val *arg, struct val *out)
{
    static const struct str spaces = {.at = " ", .n = 1, .n_char = 1, .trust = TRUSTED};
    static const struct str newline = {.at = "\n", .n = 1, .n_char = 1, .trust = TRUSTED};
    int64_t width = 4;
    struct val lines;
    if (!need_text(r, "indent", &arg[0])) return false;
    bool text = given(&arg[1]) && arg[1].kind == V_STR, first = sy_tpl_truth(&arg[2]), blank = sy_tpl_truth(&arg[3]);
    if (given(&arg[1]) && !text && !sy_tpl_index(&arg[1], &width))
        return sy_tpl_fail(r, SY_EARG, "indent: the width must be an integer or a string");
    const struct str *s = sy_tpl_concat(r, arg[0].s, &newline), *by = text ? arg[1].s : &spaces;
    struct store *st = sy_tpl_store(r, s ? s->n : 0);
    if (!s || !st || !sy_tpl_str_op(r, "splitlines", s, NULL, 0, &lines)) return false;
    if (text) width = 1;
    if (first && !sy_tpl_add_fill(r, st, by, width)) return false;
    for (size_t i = 0; i < lines.list->n; i++) {
        const struct str *line = lines.list->at[i].s;
        if (i && (!sy_tpl_add_str(r, st, &newline) || ((blank || line->n) && !sy_tpl_add_fill(r, st, by, width))))
            return false;
        if (!sy_tpl_add_str(r, st, line)) return false;
    }
    return sy_tpl_took(r, st, out);
}

static bool f_truncate(struct run *r, const struct val *arg, struct val *out)
{
    static const struct str dots = {.at = "...", .n = 3, .n_char = 3, .trust = TRUSTED};
    static const struct str space = {.at = " ", .n = 1, .n_char = 1, .trust = TRUSTED};
    int64_t length = 255, leeway = 5;
    size_t n;
    if (!sy_tpl_len(r, &arg[0], &n) || (given(&arg[3]) && !need_text(r, "truncate", &arg[3]))) return false;
    const struct str *s = arg[0].s, *end = given(&arg[3]) ? arg[3].s : &dots;
    if ((given(&arg[1]) && !sy_tpl_index(&arg[1], &length)) ||
        (given(&arg[4]) && arg[4].kind != V_NONE && !sy_tpl_index(&arg[4], &leeway)))
        return sy_tpl_fail(r, SY_EARG, "truncate: length and leeway must be integers");
    int64_t n_end = (int64_t)sy_tpl_chars(r, end);
    if (length < n_end || leeway < 0)
        return sy_tpl_fail(r, SY_EARG,
                           "truncate: the length must not be below that of the end mark, nor the leeway below 0");
    if ((int64_t)n <= length + leeway) {
        *out = arg[0]; /* of whatever type: jinja2 looks no closer */
        return true;
    }
    if (!need_text(r, "truncate", &arg[0])) return false;
    const struct str *head = sy_tpl_part(r, s, 0, sy_tpl_offset(r, s, (size_t)(length - n_end)));
    if (head && !sy_tpl_truth(&arg[2])) {
        struct val sep[2] = {sy_tpl_of_str(&space), sy_tpl_int(1, false)}, words;
        if (!sy_tpl_str_op(r, "rsplit", head, sep, 2, &words)) return false;
        head = words.list->at[0].s;
    }
    return head && give(sy_tpl_concat(r, head, end), out);
}

static bool f_wordcount(struct run *r, const struct val *arg, struct val *out)
{
    const struct str *s;
    size_t n = 0;
    bool in_word = false;
    if (!sy_tpl_str(r, &arg[0], &s) || !sy_tpl_spend(r, s->n / 8)) return false;
    for (size_t i = 0; i < s->n;) {
        uint32_t c;
        i += sy_utf8_next(s->at + i, s->n - i, &c);
        bool word = sy_tpl_is_word(c);
        n += word && !in_word;
        in_word = word;
    }
    *out = sy_tpl_int((__int128)n, sy_tpl_tainted(&arg[0]));
    return true;
}

static bool f_escape(struct run *r, const struct val *arg, struct val *out)
{
    const struct str *s;
    return sy_tpl_str(r, &arg[0], &s) && sy_tpl_escape(r, s, out);
}

static bool f_forceescape(struct run *r, const struct val *arg, struct val *out)
{
    const struct str *s;
    if (!sy_tpl_str(r, &arg[0], &s)) return false;
    struct str plain = *s;
    plain.markup = false;
    return sy_tpl_escape(r, &plain, out);
}

static bool f_safe(struct run *r, const struct val *arg, struct val *out)
{
    const struct str *s;
    return sy_tpl_str(r, &arg[0], &s) && give(sy_tpl_marked(r, s, true), out);
}

static bool quote(struct run *r, struct store *st, const struct val *v, bool query)
{
    const struct str *s;
    if (!sy_tpl_str(r, v, &s) || !sy_tpl_spend(r, s->n / 8)) return false;
    for (size_t i = 0; i < s->n; i++) {
        char c = s->at[i], hex[4];
        bool plain = c && ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || strchr("_.-~", c)),
             trusted;
        sy_tpl_piece(s, i, &trusted);
        if (plain || (c == '/' && !query)) hex[0] = c;
        else if (c == ' ' && query) hex[0] = '+';
        else snprintf(hex, sizeof hex, "%%%02X", (unsigned char)c);
        if (!sy_tpl_add(r, st, hex, hex[0] == '%' ? 3 : 1, trusted)) return false;
    }
    return true;
}

static bool f_urlencode(struct run *r, const struct val *arg, struct val *out)
{
    struct val of = arg[0], pair, view;
    struct walk w;
    bool more = true;
    struct store *st = sy_tpl_store(r, 0);
    if (!st) return false;
    if (of.kind == V_STR || !sy_tpl_is_iterable(&of)) return quote(r, st, &of, false) && sy_tpl_took(r, st, out);
    struct view items = {of.dict, VIEW_ITEMS};
    view = (struct val){.kind = V_VIEW, .taint = of.taint, .view = &items};
    if (!sy_tpl_walk(r, of.kind == V_DICT ? &view : &of, &w)) return false;
    for (bool first = true;; first = false) {
        if (!sy_tpl_next(r, &w, &pair, &more)) return false;
        if (!more) return sy_tpl_took(r, st, out);
        struct list *two = sy_tpl_is_iterable(&pair) ? sy_tpl_to_list(r, &pair) : NULL;
        if (!two || two->n != 2) return sy_tpl_fail(r, SY_EARG, "urlencode needs a string, a dict or pairs");
        if ((!first && !sy_tpl_add(r, st, "&", 1, true)) || !quote(r, st, &two->at[0], true) ||
            !sy_tpl_add(r, st, "=", 1, true) || !quote(r, st, &two->at[1], true))
            return false;
    }
}

/* ---- numbers -------------------------------------------------------- */

static bool f_abs(struct run *r, const struct val *arg, struct val *out)
{
    double d;
    if (!sy_tpl_as_float(&arg[0], &d))
        return sy_tpl_fail(r, SY_EARG, "abs needs a number, found '%s'", sy_tpl_type(&arg[0]));
    bool minus = arg[0].kind == V_FLOAT ? signbit(arg[0].f) : arg[0].kind == V_INT && arg[0].i < 0;
    return sy_tpl_negate(r, &arg[0], minus, out);
}

static bool f_round(struct run *r, const struct val *arg, struct val *out)
{
    static const struct str common = {.at = "common", .n = 6};
    int64_t digits = 0;
    double d;
    if (given(&arg[1]) && !sy_tpl_index(&arg[1], &digits))
        return sy_tpl_fail(r, SY_EARG, "round: the precision must be an integer");
    if (given(&arg[2]) && !need_text(r, "round", &arg[2])) return false;
    const struct str *method = given(&arg[2]) ? arg[2].s : &common;
    bool up = sy_tpl_is(method, "ceil");
    if (!up && !sy_tpl_is(method, "floor")) {
        if (!sy_tpl_is(method, "common"))
            return sy_tpl_fail(r, SY_EARG, "round: the method must be common, ceil or floor");
        return sy_tpl_round(r, &arg[0], digits, out);
    }
    if (!sy_tpl_as_float(&arg[0], &d))
        return sy_tpl_fail(r, SY_EARG, "round needs a number, found '%s'", sy_tpl_type(&arg[0]));
    double unit = pow(10, (double)digits), whole = up ? ceil(d * unit) : floor(d * unit);
    if (!isfinite(whole)) return sy_tpl_fail(r, SY_EARG, "round: the number is not finite");
    *out = sy_tpl_float(whole / unit, arg[0].taint);
    return true;
}

static bool f_int(struct run *r, const struct val *arg, struct val *out)
{
    const struct val *v = &arg[0];
    int64_t base = 10;
    __int128 i;
    double d;
    bool taint = sy_tpl_tainted(v);
    if (v->kind == V_UNDEF) return sy_tpl_undef_fail(r, v);
    if (given(&arg[2]) && (!sy_tpl_index(&arg[2], &base) || base < 0 || base > 36 || base == 1)) base = 10;
    if (v->kind == V_INT || v->kind == V_BOOL) {
        *out = sy_tpl_int(v->kind == V_BOOL ? v->b : v->i, taint);
        return true;
    }
    if (v->kind == V_FLOAT && isinf(v->f)) return sy_tpl_fail(r, SY_EARG, "int: the number is infinite");
    bool good = v->kind == V_STR && sy_tpl_parse_int(v->s->at, v->s->n, (unsigned)base, &i);
    if (!good && v->kind == V_STR) good = sy_tpl_parse_float(v->s->at, v->s->n, &d) && sy_tpl_trunc(d, &i);
    if (v->kind == V_FLOAT) good = sy_tpl_trunc(v->f, &i);
    *out = good ? sy_tpl_int(i, taint) : given(&arg[1]) ? arg[1] : sy_tpl_int(0, false);
    return true;
}

static bool f_float(struct run *r, const struct val *arg, struct val *out)
{
    double d;
    if (arg[0].kind == V_UNDEF) return sy_tpl_undef_fail(r, &arg[0]);
    bool good =
        arg[0].kind == V_STR ? sy_tpl_parse_float(arg[0].s->at, arg[0].s->n, &d) : sy_tpl_as_float(&arg[0], &d);
    *out = good ? sy_tpl_float(d, sy_tpl_tainted(&arg[0])) : given(&arg[1]) ? arg[1] : sy_tpl_float(0, false);
    return true;
}

static bool f_filesizeformat(struct run *r, const struct val *arg, struct val *out)
{
    static const char *const decimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    static const char *const binary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    struct val number = {0};
    char text[400];
    if (!f_float(r, (const struct val[]){arg[0], {.kind = V_NONE}}, &number)) return false;
    if (number.kind == V_NONE)
        return sy_tpl_fail(r, SY_EARG, "filesizeformat needs a number, found '%s'", sy_tpl_type(&arg[0]));
    bool is_binary = sy_tpl_truth(&arg[1]);
    double base = is_binary ? 1024 : 1000, v = number.f, unit = base;
    size_t i = 0;
    if (v == 1) snprintf(text, sizeof text, "1 Byte");
    else if (v < base) snprintf(text, sizeof text, "%.0f Bytes", trunc(v) + 0.0 /* no -0 */);
    else {
        for (unit *= base; i < 7 && v >= unit; i++) unit *= base;
        snprintf(text, sizeof text, "%.1f %s", base * v / unit, (is_binary ? binary : decimal)[i]);
    }
    return give(sy_tpl_copy(r, text, strlen(text), !number.taint), out);
}

/* ---- the rest -------------------------------------------------------- */

static bool f_default(struct run *r, const struct val *arg, struct val *out)
{
    (void)r;
    bool missing = arg[0].kind == V_UNDEF || (sy_tpl_truth(&arg[2]) && !sy_tpl_truth(&arg[0]));
    *out = !missing ? arg[0] : given(&arg[1]) ? arg[1] : sy_tpl_of_str(&sy_tpl_empty);
    return true;
}

static bool f_attr(struct run *r, const struct val *arg, struct val *out)
{
    bool there;
    if (!need_text(r, "attr", &arg[1]) || !sy_tpl_own_attr(r, &arg[0], arg[1].s, &there, out)) return false;
    return there || sy_tpl_undefined(r, arg[1].s, sy_tpl_type(&arg[0]), NULL, out);
}

static bool f_tojson(struct run *r, const struct val *arg, struct val *out)
{
    static const struct str comma = {.at = ", ", .n = 2, .trust = TRUSTED},
                            colon = {.at = ": ", .n = 2, .trust = TRUSTED},
                            tight = {.at = ",", .n = 1, .trust = TRUSTED};
    struct text_how how = {.ascii = sy_tpl_truth(&arg[1]), .sort = sy_tpl_truth(&arg[4])};
    int64_t width;
    if (given(&arg[2]) && arg[2].kind != V_NONE) {
        struct store *st = sy_tpl_store(r, 0);
        struct val by;
        if (arg[2].kind == V_STR) {
            how.indent = arg[2].s;
        } else {
            static const struct str space = {.at = " ", .n = 1, .n_char = 1, .trust = TRUSTED};
            if (!sy_tpl_index(&arg[2], &width))
                return sy_tpl_fail(r, SY_EARG, "tojson: indent must be an integer or a string");
            if (!st || !sy_tpl_add_fill(r, st, &space, width) || !sy_tpl_took(r, st, &by)) return false;
            how.indent = by.s;
        }
    }
    how.item_sep = how.indent ? &tight : &comma;
    how.key_sep = &colon;
    if (given(&arg[3]) && arg[3].kind != V_NONE) {
        const struct val *sep = &arg[3];
        if ((sep->kind != V_TUPLE && sep->kind != V_LIST) || sep->list->n != 2 || sep->list->at[0].kind != V_STR ||
            sep->list->at[1].kind != V_STR)
            return sy_tpl_fail(r, SY_EARG, "tojson: separators must be two strings");
        how.item_sep = sep->list->at[0].s;
        how.key_sep = sep->list->at[1].s;
    }
    return sy_tpl_json(r, &arg[0], &how, out);
}

static const struct filter filters[] = {
    {"abs", f_abs, {0}, 0, NULL},
    {"attr", f_attr, {"name"}, 1, NULL},
    {"capitalize", f_capitalize, {0}, 0, NULL},
    {"center", f_center, {"width"}, 0, NULL},
    {"d", f_default, {"default_value", "boolean"}, 0, NULL},
    {"default", f_default, {"default_value", "boolean"}, 0, NULL},
    {"e", f_escape, {0}, 0, NULL},
    {"escape", f_escape, {0}, 0, NULL},
    {"filesizeformat", f_filesizeformat, {"binary"}, 0, NULL},
    {"float", f_float, {"default"}, 0, NULL},
    {"forceescape", f_forceescape, {0}, 0, NULL},
    {"format", NULL, {0}, 0, f_format},
    {"indent", f_indent, {"width", "first", "blank"}, 0, NULL},
    {"int", f_int, {"default", "base"}, 0, NULL},
    {"lower", f_lower, {0}, 0, NULL},
    {"replace", f_replace, {"old", "new", "count"}, 2, NULL},
    {"round", f_round, {"precision", "method"}, 0, NULL},
    {"safe", f_safe, {0}, 0, NULL},
    {"string", f_string, {0}, 0, NULL},
    {"title", f_title, {0}, 0, NULL},
    {"tojson", f_tojson, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, NULL},
    {"trim", f_trim, {"chars"}, 0, NULL},
    {"truncate", f_truncate, {"length", "killwords", "end", "leeway"}, 0, NULL},
    {"upper", f_upper, {0}, 0, NULL},
    {"urlencode", f_urlencode, {0}, 0, NULL},
    {"wordcount", f_wordcount, {0}, 0, NULL},
};

static bool named(const char *have, const char *name, size_t n)
{
    return strlen(have) == n && !memcmp(have, name, n);
}

const struct filter *sy_tpl_filter_find(const char *name, size_t n)
{
    for (size_t i = 0; i < SY_COUNT(filters); i++)
        if (named(filters[i].name, name, n)) return &filters[i];
    for (const struct filter *f = sy_tpl_list_filters; f->name; f++)
        if (named(f->name, name, n)) return f;
    return NULL;
}

const char *sy_tpl_refused_filter(const char *name, size_t n)
{
    static const char *const refused[][2] = {
        {"random", "a prompt must not differ from one rendering to the next"},
        {"urlize", "it makes HTML"},
        {"xmlattr", "it makes HTML"},
        {"striptags", "it reads HTML"},
        {"pprint", "use tojson or string"},
        {"wordwrap", "use truncate or indent"},
    };
    for (size_t i = 0; i < SY_COUNT(refused); i++)
        if (named(refused[i][0], name, n)) return refused[i][1];
    return NULL;
}

bool sy_tpl_filter_call(struct run *r, const struct filter *f, const struct val *v, const struct args *args,
                        struct val *out)
{
    struct val arg[1 + SY_TPL_PARAM_MAX] = {*v};
    if (!sy_tpl_enter(r)) return false;
    bool good = f->free_call
                    ? f->free_call(r, v, args, out)
                    : sy_tpl_bind(r, f->name, f->param, f->n_required, args, arg + 1) && f->call(r, arg, out);
    r->depth--;
    return good;
}
