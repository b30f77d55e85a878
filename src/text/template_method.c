/* template_method.c - the methods of Python's str. Texts are counted in code points; parts of one are views of it. */
#include <string.h>

#include "text/template_int.h"

/* The n-th argument as a text; a default where it is not given or None. */
static bool text_arg(struct run *r, const struct val *arg, const struct str **out)
{
    if (arg->kind == V_MISSING || arg->kind == V_NONE) return true;
    if (arg->kind != V_STR) return sy_tpl_fail(r, SY_EARG, "expected a string, found '%s'", sy_tpl_type(arg));
    *out = arg->s;
    return true;
}

static bool int_arg(struct run *r, const struct val *arg, int64_t *out)
{
    if (arg->kind == V_MISSING || arg->kind == V_NONE) return true;
    return sy_tpl_index(arg, out) || sy_tpl_fail(r, SY_EARG, "expected an integer, found '%s'", sy_tpl_type(arg));
}

static bool give(const struct str *s, struct val *out)
{
    if (s) *out = sy_tpl_of_str(s);
    return s != NULL;
}

static bool m_case(struct run *r, int op, const struct val *arg, struct val *out)
{
    return sy_tpl_case(r, arg[0].s, (enum case_op)op, out);
}

static const char *const classes[] = {"isalnum", "isalpha",   "isascii",     "isdecimal", "isdigit", "isidentifier",
                                      "islower", "isnumeric", "isprintable", "isspace",   "istitle", "isupper"};

static bool m_is(struct run *r, int op, const struct val *arg, struct val *out)
{
    sy_tpl_cost(r, arg[0].s->n / 2);
    *out = sy_tpl_bool(sy_tpl_is_class(arg[0].s, classes[op]), sy_tpl_tainted(&arg[0]));
    return true;
}

enum { LEFT = 1, RIGHT = 2 };

static bool m_strip(struct run *r, int op, const struct val *arg, struct val *out)
{
    const struct str *chars = NULL;
    size_t at, n;
    if (!text_arg(r, &arg[1], &chars)) return false;
    sy_tpl_strip(r, arg[0].s, chars, op & LEFT, op & RIGHT, &at, &n);
    return give(sy_tpl_part(r, arg[0].s, at, n), out);
}

/* ---- splitting -------------------------------------------------------- */

/* Ranges of bytes, gathered before the list's length is known. */
struct cuts {
    size_t *at; /* pairs: from, length */
    size_t n, cap;
};

static bool cut(struct run *r, struct cuts *c, size_t from, size_t n)
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 8, *more = sy_tpl_get(r, 2 * cap, sizeof *more);
        if (!more) return false;
        if (c->n) memcpy(more, c->at, 2 * c->n * sizeof *more);
        c->at = more;
        c->cap = cap;
    }
    c->at[2 * c->n] = from;
    c->at[2 * c->n++ + 1] = n;
    return sy_tpl_spend(r, 1);
}

static bool cuts_list(struct run *r, const struct str *s, const struct cuts *c, bool backwards, struct val *out)
{
    struct list *l = sy_tpl_list(r, c->n);
    for (size_t i = 0; l && i < c->n; i++) {
        size_t k = backwards ? c->n - 1 - i : i;
        if (!give(sy_tpl_part(r, s, c->at[2 * k], c->at[2 * k + 1]), &l->at[i])) return false;
    }
    if (l) *out = sy_tpl_of_list(V_LIST, l, !sy_tpl_trusted(s));
    return l != NULL;
}

static size_t rfind(struct run *r, const struct str *s, const struct str *what, size_t end)
{
    if (what->n > end) return SIZE_MAX;
    for (size_t i = end - what->n + 1; i-- > 0 && r->steps_left;) {
        sy_tpl_cost(r, (i & 3) == 0);
        if (s->at[i] != what->at[0]) continue;
        sy_tpl_cost(r, what->n / 32);
        if (!memcmp(s->at + i, what->at, what->n)) return i;
    }
    return SIZE_MAX;
}

static bool split_at(struct run *r, const struct str *s, const struct str *sep, int64_t max, bool right,
                     struct cuts *c)
{
    size_t from = 0, end = s->n;
    for (; max != 0; max--) {
        size_t hit = right ? rfind(r, s, sep, end) : sy_tpl_find(r, s, sep, from);
        if (hit == SIZE_MAX) break;
        if (!(right ? cut(r, c, hit + sep->n, end - hit - sep->n) : cut(r, c, from, hit - from))) return false;
        if (right) end = hit;
        else from = hit + sep->n;
    }
    return right ? cut(r, c, 0, end) : cut(r, c, from, s->n - from);
}

static bool split_space(struct run *r, const struct str *s, int64_t max, bool right, struct cuts *c)
{
    struct str rest = *s;
    size_t at, n, base = 0;
    for (;;) {
        sy_tpl_strip(r, &rest, NULL, !right, right, &at, &n);
        base += at;
        rest.at += at;
        rest.n = n;
        rest.trust = UNTRUSTED; /* only its bytes are looked at */
        if (!n) return true;
        if (max-- == 0) { /* the remainder, with the space at its far end taken off */
            return cut(r, c, base, n);
        }
        size_t word = 0, len;
        uint32_t cp;
        if (right) {
            while (word < n) {
                len = 1;
                while (len < n - word && ((unsigned char)rest.at[n - word - len] & 0xc0) == 0x80) len++;
                sy_utf8_next(rest.at + n - word - len, len, &cp);
                if (sy_tpl_is_space(cp)) break;
                word += len;
            }
            if (!cut(r, c, base + n - word, word)) return false;
            rest.n = n - word;
        } else {
            while (word < n) {
                len = sy_utf8_next(rest.at + word, n - word, &cp);
                if (sy_tpl_is_space(cp)) break;
                word += len;
            }
            if (!cut(r, c, base, word)) return false;
            base += word;
            rest.at += word;
            rest.n = n - word;
        }
        sy_tpl_cost(r, word / 16);
    }
}

static bool m_split(struct run *r, int op, const struct val *arg, struct val *out)
{
    const struct str *sep = NULL;
    int64_t max = -1;
    struct cuts c = {0};
    if (!text_arg(r, &arg[1], &sep) || !int_arg(r, &arg[2], &max)) return false;
    if (sep && !sep->n) return sy_tpl_fail(r, SY_EARG, "split: the separator is empty");
    if (!(sep ? split_at(r, arg[0].s, sep, max, op, &c) : split_space(r, arg[0].s, max, op, &c))) return false;
    return cuts_list(r, arg[0].s, &c, op, out);
}

/* Length of the line break at s[i], 0 if there is none. */
static size_t line_break(const struct str *s, size_t i)
{
    unsigned char c = (unsigned char)s->at[i];
    if (c == '\r') return i + 1 < s->n && s->at[i + 1] == '\n' ? 2 : 1;
    if ((c >= 10 && c <= 12) || (c >= 0x1c && c <= 0x1e)) return 1;
    if (c == 0xc2 && i + 1 < s->n && (unsigned char)s->at[i + 1] == 0x85) return 2;
    return c == 0xe2 && s->n - i >= 3 &&
                   (!memcmp(s->at + i, "\xe2\x80\xa8", 3) || !memcmp(s->at + i, "\xe2\x80\xa9", 3))
               ? 3
               : 0;
}

static bool m_splitlines(struct run *r, int op, const struct val *arg, struct val *out)
{
    (void)op;
    const struct str *s = arg[0].s;
    bool keep = sy_tpl_truth(&arg[1]);
    struct cuts c = {0};
    size_t from = 0;
    sy_tpl_cost(r, s->n / 16);
    for (size_t i = 0; i < s->n;) {
        size_t len = line_break(s, i);
        if (len && !cut(r, &c, from, i - from + (keep ? len : 0))) return false;
        i += len ? len : 1;
        if (len) from = i;
    }
    if (from < s->n && !cut(r, &c, from, s->n - from)) return false;
    return cuts_list(r, s, &c, false, out);
}

/* (before, separator, after); without a hit the text stays whole, at the front or, from the right, at the back. */
static bool m_partition(struct run *r, int op, const struct val *arg, struct val *out)
{
    const struct str *s = arg[0].s, *sep = NULL;
    if (!text_arg(r, &arg[1], &sep)) return false;
    if (!sep || !sep->n) return sy_tpl_fail(r, SY_EARG, "partition: the separator is empty");
    size_t hit = op ? rfind(r, s, sep, s->n) : sy_tpl_find(r, s, sep, 0);
    struct list *l = sy_tpl_list(r, 3);
    if (!l) return false;
    const struct str *none = &sy_tpl_empty;
    if (hit == SIZE_MAX) {
        for (size_t i = 0; i < 3; i++) l->at[i] = sy_tpl_of_str(i == (op ? 2u : 0u) ? s : none);
    } else if (!give(sy_tpl_part(r, s, 0, hit), &l->at[0]) || !give(sy_tpl_part(r, s, hit, sep->n), &l->at[1]) ||
               !give(sy_tpl_part(r, s, hit + sep->n, s->n - hit - sep->n), &l->at[2])) {
        return false;
    }
    *out = sy_tpl_of_list(V_TUPLE, l, !sy_tpl_trusted(s));
    return true;
}

/* ---- searching -------------------------------------------------------- */

/* start and end, counted in characters and from the end if negative, as bytes. *inside: start is not past the end. */
static bool window(struct run *r, const struct str *s, const struct val *start, const struct val *end, size_t *lo,
                   size_t *hi, bool *inside)
{
    int64_t from = 0, to = INT64_MAX / 8, n = (int64_t)sy_tpl_chars(r, s);
    if (!int_arg(r, start, &from) || !int_arg(r, end, &to)) return false;
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (to < 0) to = to + n < 0 ? 0 : to + n;
    if (to > n) to = n;
    *inside = from <= to;
    *lo = *inside ? sy_tpl_offset(r, s, (size_t)from) : 0;
    *hi = *inside ? sy_tpl_offset(r, s, (size_t)to) : 0;
    return true;
}

static bool m_starts(struct run *r, int op, const struct val *arg, struct val *out)
{
    size_t lo, hi;
    bool inside, hit = false;
    const struct val *what = &arg[1];
    size_t n = 1;
    if (what->kind == V_TUPLE) {
        n = what->list->n;
        what = what->list->at;
    }
    if (!window(r, arg[0].s, &arg[2], &arg[3], &lo, &hi, &inside)) return false;
    for (size_t i = 0; i < n && !hit; i++) {
        if (what[i].kind != V_STR)
            return sy_tpl_fail(r, SY_EARG, "%s: expected a string or a tuple of strings, found '%s'",
                               op ? "endswith" : "startswith", sy_tpl_type(&what[i]));
        const struct str *t = what[i].s;
        sy_tpl_cost(r, 1 + t->n / 64);
        hit = inside && t->n <= hi - lo && !memcmp(arg[0].s->at + (op ? hi - t->n : lo), t->at, t->n);
    }
    *out = sy_tpl_bool(hit, sy_tpl_tainted(&arg[0]));
    return true;
}

enum { FIND, RFIND, INDEX, RINDEX };

static bool m_find(struct run *r, int op, const struct val *arg, struct val *out)
{
    const struct str *s = arg[0].s, *what = NULL;
    size_t lo, hi, hit = SIZE_MAX;
    bool inside;
    if (!text_arg(r, &arg[1], &what) || !window(r, s, &arg[2], &arg[3], &lo, &hi, &inside)) return false;
    if (!what) return sy_tpl_fail(r, SY_EARG, "find: expected a string, found 'NoneType'");
    struct str part = *s;
    part.n = hi;
    if (inside && !what->n) hit = op == RFIND || op == RINDEX ? hi : lo;
    else if (inside && (op == FIND || op == INDEX)) hit = sy_tpl_find(r, &part, what, lo);
    else if (inside) hit = rfind(r, s, what, hi);
    if (hit != SIZE_MAX && hit < lo) hit = SIZE_MAX;
    if (hit == SIZE_MAX && op >= INDEX) return sy_tpl_fail(r, SY_EARG, "index: the substring is not there");
    part = *s;
    part.n = hit;
    part.n_char = SIZE_MAX;
    *out = sy_tpl_int(hit == SIZE_MAX ? -1 : (__int128)sy_tpl_chars(r, &part), sy_tpl_tainted(&arg[0]));
    return true;
}

static bool m_count(struct run *r, int op, const struct val *arg, struct val *out)
{
    (void)op;
    const struct str *s = arg[0].s, *what = NULL;
    size_t lo, hi, n = 0;
    bool inside;
    if (!text_arg(r, &arg[1], &what) || !window(r, s, &arg[2], &arg[3], &lo, &hi, &inside)) return false;
    if (!what) return sy_tpl_fail(r, SY_EARG, "count: expected a string, found 'NoneType'");
    struct str part = *s;
    part.n = hi;
    if (inside && !what->n) {
        const struct str *w = sy_tpl_part(r, s, lo, hi - lo);
        if (!w) return false;
        n = sy_tpl_chars(r, w) + 1;
    }
    while (inside && what->n && (lo = sy_tpl_find(r, &part, what, lo)) != SIZE_MAX) {
        lo += what->n;
        n++;
        sy_tpl_cost(r, 1);
    }
    *out = sy_tpl_int((__int128)n, sy_tpl_tainted(&arg[0]));
    return true;
}

/* ---- building -------------------------------------------------------- */

static bool m_replace(struct run *r, int op, const struct val *arg, struct val *out)
{
    (void)op;
    const struct str *s = arg[0].s, *old = NULL, *new = NULL;
    int64_t max = -1;
    if (!text_arg(r, &arg[1], &old) || !text_arg(r, &arg[2], &new) || !int_arg(r, &arg[3], &max)) return false;
    if (!old || !new) return sy_tpl_fail(r, SY_EARG, "replace: expected a string, found 'NoneType'");
    size_t hit = max ? sy_tpl_find(r, s, old, 0) : SIZE_MAX, from = 0;
    if (hit == SIZE_MAX) return give(s, out);
    struct store *st = sy_tpl_store(r, s->n);
    if (!st) return false;
    for (; hit != SIZE_MAX && max != 0; max--) {
        if (!sy_tpl_spend(r, 1) || !sy_tpl_add_part(r, st, s, from, hit - from) || !sy_tpl_add_str(r, st, new))
            return false;
        from = hit + old->n;
        uint32_t cp;
        size_t skip = old->n ? 0 : hit < s->n ? sy_utf8_next(s->at + hit, s->n - hit, &cp) : SIZE_MAX;
        hit = skip == SIZE_MAX ? SIZE_MAX : sy_tpl_find(r, s, old, from + skip);
    }
    return sy_tpl_add_part(r, st, s, from, s->n - from) && sy_tpl_took(r, st, out);
}

static bool m_join(struct run *r, int op, const struct val *arg, struct val *out)
{
    (void)op;
    struct walk w;
    struct val v;
    bool more = true;
    struct store *st = sy_tpl_store(r, 0);
    if (!st || !sy_tpl_walk(r, &arg[1], &w)) return false;
    for (bool first = true;; first = false) {
        if (!sy_tpl_next(r, &w, &v, &more)) return false;
        if (!more) return sy_tpl_took(r, st, out);
        if (v.kind != V_STR) return sy_tpl_fail(r, SY_EARG, "join: expected strings, found '%s'", sy_tpl_type(&v));
        if (!sy_tpl_spend(r, 1) || (!first && !sy_tpl_add_str(r, st, arg[0].s)) || !sy_tpl_add_str(r, st, v.s))
            return false;
    }
}

static bool m_remove(struct run *r, int op, const struct val *arg, struct val *out)
{
    const struct str *s = arg[0].s, *what = NULL;
    if (!text_arg(r, &arg[1], &what)) return false;
    if (!what) return sy_tpl_fail(r, SY_EARG, "removeprefix: expected a string, found 'NoneType'");
    bool hit = what->n <= s->n && !memcmp(op ? s->at + s->n - what->n : s->at, what->at, what->n);
    if (!hit) return give(s, out);
    return give(sy_tpl_part(r, s, op ? 0 : what->n, s->n - what->n), out);
}

enum { PAD_CENTER, PAD_LEFT, PAD_RIGHT };

static bool m_pad(struct run *r, int op, const struct val *arg, struct val *out)
{
    static const struct str space = {.at = " ", .n = 1, .n_char = 1, .trust = TRUSTED};
    const struct str *s = arg[0].s, *fill = &space;
    int64_t width = 0;
    if (!int_arg(r, &arg[1], &width) || !text_arg(r, &arg[2], &fill)) return false;
    if (sy_tpl_chars(r, fill) != 1) return sy_tpl_fail(r, SY_EARG, "the fill character must be one character");
    int64_t room = width - (int64_t)sy_tpl_chars(r, s);
    if (room <= 0) return give(s, out);
    int64_t left = op == PAD_CENTER ? room / 2 + (room & width & 1) : op == PAD_LEFT ? 0 : room;
    struct store *st = sy_tpl_store(r, s->n);
    return st && sy_tpl_add_fill(r, st, fill, left) && sy_tpl_add_str(r, st, s) &&
           sy_tpl_add_fill(r, st, fill, room - left) && sy_tpl_took(r, st, out);
}

static bool m_zfill(struct run *r, int op, const struct val *arg, struct val *out)
{
    (void)op;
    static const struct str zero = {.at = "0", .n = 1, .n_char = 1, .trust = TRUSTED};
    const struct str *s = arg[0].s;
    int64_t width = 0;
    if (!int_arg(r, &arg[1], &width)) return false;
    size_t sign = s->n && (s->at[0] == '-' || s->at[0] == '+');
    struct store *st = sy_tpl_store(r, s->n);
    return st && sy_tpl_add_part(r, st, s, 0, sign) &&
           sy_tpl_add_fill(r, st, &zero, width - (int64_t)sy_tpl_chars(r, s)) &&
           sy_tpl_add_part(r, st, s, sign, s->n - sign) && sy_tpl_took(r, st, out);
}

static bool m_expandtabs(struct run *r, int op, const struct val *arg, struct val *out)
{
    (void)op;
    static const struct str space = {.at = " ", .n = 1, .n_char = 1, .trust = TRUSTED};
    const struct str *s = arg[0].s;
    int64_t tab = 8, column = 0;
    struct store *st = sy_tpl_store(r, s->n);
    if (!st || !int_arg(r, &arg[1], &tab) || !sy_tpl_spend(r, s->n / 8)) return false;
    for (size_t i = 0; i < s->n; i++) {
        char c = s->at[i];
        if (c == '\t') {
            int64_t n = tab > 0 ? tab - column % tab : 0;
            if (!sy_tpl_add_fill(r, st, &space, n)) return false;
            column += n;
            continue;
        }
        if (!sy_tpl_add_part(r, st, s, i, 1)) return false;
        if (c == '\n' || c == '\r') column = 0;
        else if (((unsigned char)c & 0xc0) != 0x80) column++;
    }
    return sy_tpl_took(r, st, out);
}

static bool m_format(struct run *r, const struct val *self, const struct args *args, struct val *out)
{
    return sy_tpl_format(r, self->s, args, NULL, out);
}

static bool m_format_map(struct run *r, int op, const struct val *arg, struct val *out)
{
    (void)op;
    if (arg[1].kind != V_DICT)
        return sy_tpl_fail(r, SY_EARG, "format_map: expected a dict, found '%s'", sy_tpl_type(&arg[1]));
    return sy_tpl_format(r, arg[0].s, &(struct args){0}, arg[1].dict, out);
}

static bool m_refused(struct run *r, int op, const struct val *arg, struct val *out)
{
    (void)op, (void)arg, (void)out;
    return sy_tpl_fail(r, SY_ENOSUP, "encode, translate and maketrans are not supported in a chat template");
}

static const struct method_def methods[] = {
    {.name = "upper", m_case, CASE_UPPER},
    {.name = "lower", m_case, CASE_LOWER},
    {.name = "title", m_case, CASE_TITLE},
    {.name = "capitalize", m_case, CASE_CAPITALIZE},
    {.name = "swapcase", m_case, CASE_SWAP},
    {.name = "casefold", m_case, CASE_FOLD},
    {.name = "isalnum", m_is, 0},
    {.name = "isalpha", m_is, 1},
    {.name = "isascii", m_is, 2},
    {.name = "isdecimal", m_is, 3},
    {.name = "isdigit", m_is, 4},
    {.name = "isidentifier", m_is, 5},
    {.name = "islower", m_is, 6},
    {.name = "isnumeric", m_is, 7},
    {.name = "isprintable", m_is, 8},
    {.name = "isspace", m_is, 9},
    {.name = "istitle", m_is, 10},
    {.name = "isupper", m_is, 11},
    {.name = "strip", m_strip, LEFT | RIGHT, {""}, 0},
    {.name = "lstrip", m_strip, LEFT, {""}, 0},
    {.name = "rstrip", m_strip, RIGHT, {""}, 0},
    {.name = "split", m_split, 0, {"sep", "maxsplit"}, 0},
    {.name = "rsplit", m_split, 1, {"sep", "maxsplit"}, 0},
    {.name = "splitlines", m_splitlines, 0, {"keepends"}, 0},
    {.name = "partition", m_partition, 0, {""}, 1},
    {.name = "rpartition", m_partition, 1, {""}, 1},
    {.name = "startswith", m_starts, 0, {"", "", ""}, 1},
    {.name = "endswith", m_starts, 1, {"", "", ""}, 1},
    {.name = "find", m_find, FIND, {"", "", ""}, 1},
    {.name = "rfind", m_find, RFIND, {"", "", ""}, 1},
    {.name = "index", m_find, INDEX, {"", "", ""}, 1},
    {.name = "rindex", m_find, RINDEX, {"", "", ""}, 1},
    {.name = "count", m_count, 0, {"", "", ""}, 1},
    {.name = "replace", m_replace, 0, {"", "", "count"}, 2},
    {.name = "join", m_join, 0, {""}, 1},
    {.name = "removeprefix", m_remove, 0, {""}, 1},
    {.name = "removesuffix", m_remove, 1, {""}, 1},
    {.name = "center", m_pad, PAD_CENTER, {"", ""}, 1},
    {.name = "ljust", m_pad, PAD_LEFT, {"", ""}, 1},
    {.name = "rjust", m_pad, PAD_RIGHT, {"", ""}, 1},
    {.name = "zfill", m_zfill, 0, {""}, 1},
    {.name = "expandtabs", m_expandtabs, 0, {"tabsize"}, 0},
    {.name = "format", .free_call = m_format},
    {.name = "format_map", m_format_map, 0, {""}, 1},
    {.name = "encode", m_refused, 0, {"encoding", "errors"}, 0},
    {.name = "translate", m_refused, 0, {""}, 0},
    {.name = "maketrans", m_refused, 0, {"", "", ""}, 0},
};

const struct method_def *sy_tpl_str_method(const char *name, size_t n)
{
    for (size_t i = 0; i < SY_COUNT(methods); i++)
        if (strlen(methods[i].name) == n && !memcmp(methods[i].name, name, n)) return &methods[i];
    return NULL;
}

bool sy_tpl_method_call(struct run *r, const struct method *m, const struct args *args, struct val *out)
{
    struct val arg[1 + SY_TPL_PARAM_MAX] = {m->self};
    if (!sy_tpl_spend(r, 1)) return false;
    if (m->def->free_call) return m->def->free_call(r, &m->self, args, out);
    return sy_tpl_bind(r, m->def->name, m->def->param, m->def->n_required, args, arg + 1) &&
           m->def->call(r, m->def->op, arg, out);
}

bool sy_tpl_str_op(struct run *r, const char *method, const struct str *s, const struct val *arg, size_t n,
                   struct val *out)
{
    struct val copy[SY_TPL_PARAM_MAX];
    struct method m = {sy_tpl_of_str(s), sy_tpl_str_method(method, strlen(method))};
    while (n && arg[n - 1].kind == V_MISSING) n--;
    if (n) memcpy(copy, arg, n * sizeof *arg);
    return sy_tpl_method_call(r, &m, &(struct args){.at = copy, .n = n}, out);
}
