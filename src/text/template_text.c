/* template_text.c - values as text: Python's str() and repr(), and json.dumps(). What a value's own text is trusted
 * for follows the value: the brackets of a list that a message brought are as untrusted as its items. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template_int.h"

size_t sy_tpl_int_text(__int128 v, unsigned base, bool upper, char out[136])
{
    const char *digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
    unsigned __int128 u = v < 0 ? -(unsigned __int128)v : (unsigned __int128)v;
    size_t i = 135, n;
    out[i] = 0;
    do out[--i] = digits[u % base];
    while (u /= base);
    if (v < 0) out[--i] = '-';
    n = 135 - i;
    memmove(out, out + i, n + 1);
    return n;
}

size_t sy_tpl_float_text(double f, char out[40])
{
    if (isnan(f)) return (size_t)snprintf(out, 40, "nan");
    if (isinf(f)) return (size_t)snprintf(out, 40, f < 0 ? "-inf" : "inf");
    char text[40];
    for (int p = 0; p < 17; p++) {
        snprintf(text, sizeof text, "%.*e", p, fabs(f));
        if (strtod(text, NULL) == fabs(f)) break;
    }
    char digits[20];
    int n = 0, exp = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    for (const char *c = text; *c != 'e'; c++)
        if (*c >= '0' && *c <= '9') digits[n++] = *c;
    digits[n] = 0;
    const char *sign = signbit(f) ? "-" : "";
    if (exp < -4 || exp >= 16)
        return (size_t)snprintf(out, 40, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "", digits + 1,
                                exp < 0 ? '-' : '+', abs(exp));
    if (exp < 0) return (size_t)snprintf(out, 40, "%s0.%.*s%s", sign, -exp - 1, "0000", digits);
    if (n <= exp + 1) return (size_t)snprintf(out, 40, "%s%s%.*s.0", sign, digits, exp + 1 - n, "0000000000000000");
    return (size_t)snprintf(out, 40, "%s%.*s.%s", sign, exp + 1, digits, digits + exp + 1);
}

struct writer {
    struct run *r;
    struct store *st;
    const struct text_how *how; /* NULL: repr */
    size_t level;
};

static bool put(struct writer *w, const char *text, bool trusted)
{
    return sy_tpl_add(w->r, w->st, text, strlen(text), trusted);
}

/* ---- texts in quotes -------------------------------------------------------- */

/* How repr() shows a character; n = 0: as it is. */
static size_t repr_escape(uint32_t c, char quote, char out[16])
{
    if (c == '\\' || c == (unsigned char)quote) return (size_t)snprintf(out, 16, "\\%c", (int)c);
    if (c == '\n') return (size_t)snprintf(out, 16, "\\n");
    if (c == '\r') return (size_t)snprintf(out, 16, "\\r");
    if (c == '\t') return (size_t)snprintf(out, 16, "\\t");
    if (sy_tpl_is_printable(c)) return 0;
    return (size_t)snprintf(out, 16, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
}

static size_t json_escape(uint32_t c, bool ascii, char out[16])
{
    if (c == '"' || c == '\\') return (size_t)snprintf(out, 16, "\\%c", (int)c);
    if (c < 0x20) {
        static const char from[] = "\n\r\t\f\b", to[] = "nrtfb";
        const char *p = c ? strchr(from, (int)c) : NULL;
        return p ? (size_t)snprintf(out, 16, "\\%c", to[p - from])
                 : (size_t)snprintf(out, 16, "\\u%04x", (unsigned)c);
    }
    if (!ascii || c < 0x7f) return 0;
    if (c < 0x10000) return (size_t)snprintf(out, 16, "\\u%04x", (unsigned)c);
    c -= 0x10000;
    return (size_t)snprintf(out, 16, "\\u%04x\\u%04x", 0xd800 + (unsigned)(c >> 10), 0xdc00 + (unsigned)(c & 0x3ff));
}

static bool quoted(struct writer *w, const struct str *s)
{
    char quote[2] = "\"", esc[16];
    if (!w->how) quote[0] = memchr(s->at, '\'', s->n) && !memchr(s->at, '"', s->n) ? '"' : '\'';
    bool trusted = sy_tpl_trusted(s), markup = s->markup && !w->how;
    if ((markup && !put(w, "Markup(", trusted)) || !put(w, quote, trusted)) return false;
    sy_tpl_cost(w->r, s->n / 8);
    size_t plain = 0;
    for (size_t i = 0, len; i < s->n; i += len) {
        uint32_t c;
        len = sy_utf8_next(s->at + i, s->n - i, &c);
        size_t n = w->how ? json_escape(c, w->how->ascii, esc) : repr_escape(c, quote[0], esc);
        if (!n) continue;
        bool own;
        sy_tpl_piece(s, i, &own);
        if (!sy_tpl_add_part(w->r, w->st, s, plain, i - plain) || !sy_tpl_add(w->r, w->st, esc, n, own)) return false;
        plain = i + len;
    }
    return sy_tpl_add_part(w->r, w->st, s, plain, s->n - plain) && put(w, quote, trusted) &&
           (!markup || put(w, ")", trusted));
}

/* ---- scalars -------------------------------------------------------- */

static bool number(struct writer *w, const struct val *v)
{
    char text[136];
    size_t n = v->kind == V_INT ? sy_tpl_int_text(v->i, 10, false, text) : sy_tpl_float_text(v->f, text);
    if (w->how && v->kind == V_FLOAT && !isfinite(v->f))
        return put(w, isnan(v->f) ? "NaN" : v->f < 0 ? "-Infinity" : "Infinity", !v->taint);
    return sy_tpl_add(w->r, w->st, text, n, !v->taint);
}

static bool write_value(struct writer *w, const struct val *v);

static bool repr_list(struct writer *w, const struct val *v)
{
    bool tuple = v->kind == V_TUPLE, own = !v->taint;
    if (!put(w, tuple ? "(" : "[", own)) return false;
    for (size_t i = 0; i < v->list->n; i++)
        if ((i && !put(w, ", ", own)) || !write_value(w, &v->list->at[i])) return false;
    return put(w, !tuple ? "]" : v->list->n == 1 ? ",)" : ")", own);
}

static bool repr_dict(struct writer *w, const struct val *v)
{
    const struct dict *d = v->dict;
    bool own = !v->taint;
    if (!put(w, v->kind == V_NS ? "<Namespace {" : "{", own)) return false;
    for (size_t i = 0; i < d->n; i++)
        if ((i && !put(w, ", ", own)) || !write_value(w, &d->at[i].key) || !put(w, ": ", own) ||
            !write_value(w, &d->at[i].value))
            return false;
    return put(w, v->kind == V_NS ? "}>" : "}", own);
}

static bool repr_view(struct writer *w, const struct val *v)
{
    static const char *const names[] = {"dict_keys([", "dict_values([", "dict_items(["};
    struct walk walk;
    struct val item;
    bool more = true, own = !v->taint;
    if (!put(w, names[v->view->kind], own) || !sy_tpl_walk(w->r, v, &walk)) return false;
    for (bool first = true;; first = false) {
        if (!sy_tpl_next(w->r, &walk, &item, &more)) return false;
        if (!more) return put(w, "])", own);
        if ((!first && !put(w, ", ", own)) || !write_value(w, &item)) return false;
    }
}

static bool repr_loop(struct writer *w, struct loop *l)
{
    static const struct str index = {.at = "index", .n = 5}, length = {.at = "length", .n = 6};
    struct val i, n;
    bool there;
    return sy_tpl_loop_attr(w->r, l, &index, &there, &i) && sy_tpl_loop_attr(w->r, l, &length, &there, &n) &&
           put(w, "<LoopContext ", true) && number(w, &i) && put(w, "/", true) && number(w, &n) && put(w, ">", true);
}

static bool repr_other(struct writer *w, const struct val *v)
{
    char text[100];
    switch (v->kind) {
    case V_UNDEF: return put(w, "Undefined", true);
    case V_RANGE:
        snprintf(text, sizeof text,
                 v->range->step == 1 ? "range(%" PRId64 ", %" PRId64 ")"
                                     : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
                 v->range->start, v->range->stop, v->range->step);
        return put(w, text, !v->taint);
    case V_MACRO:
        if (v->macro->def->kind != S_MACRO) return put(w, "<Macro anonymous>", true);
        return put(w, "<Macro '", true) && sy_tpl_add_str(w->r, w->st, v->macro->def->text) && put(w, "'>", true);
    case V_LOOP: return repr_loop(w, v->loop);
    case V_METHOD:
        return put(w, "<built-in method ", true) && put(w, v->method->def->name, true) && put(w, ">", true);
    case V_FUNC: return put(w, "<function ", true) && put(w, v->func->name, true) && put(w, ">", true);
    case V_ITER: return put(w, "<", true) && put(w, v->iter->what, true) && put(w, " object>", true);
    default: return put(w, "<", true) && put(w, sy_tpl_type(v), true) && put(w, " object>", true);
    }
}

static bool repr(struct writer *w, const struct val *v)
{
    switch (v->kind) {
    case V_NONE: return put(w, "None", !v->taint);
    case V_BOOL: return put(w, v->b ? "True" : "False", !v->taint);
    case V_INT:
    case V_FLOAT: return number(w, v);
    case V_STR: return quoted(w, v->s);
    case V_LIST:
    case V_TUPLE: return repr_list(w, v);
    case V_DICT:
    case V_NS: return repr_dict(w, v);
    case V_VIEW: return repr_view(w, v);
    default: return repr_other(w, v);
    }
}

/* ---- JSON -------------------------------------------------------- */

static bool new_line(struct writer *w, bool own)
{
    if (!w->how->indent) return true;
    if (!put(w, "\n", own) || !sy_tpl_spend(w->r, w->level)) return false;
    for (size_t i = 0; i < w->level; i++)
        if (!sy_tpl_add(w->r, w->st, w->how->indent->at, w->how->indent->n, own)) return false;
    return true;
}

static bool separator(struct writer *w, const struct str *s, bool own)
{
    return sy_tpl_add(w->r, w->st, s->at, s->n, own);
}

static bool json_list(struct writer *w, const struct val *v)
{
    bool own = !v->taint;
    if (!v->list->n) return put(w, "[]", own);
    if (!put(w, "[", own)) return false;
    w->level++;
    for (size_t i = 0; i < v->list->n; i++)
        if ((i && !separator(w, w->how->item_sep, own)) || !new_line(w, own) || !write_value(w, &v->list->at[i]))
            return false;
    w->level--;
    return new_line(w, own) && put(w, "]", own);
}

static bool json_key(struct writer *w, const struct val *k)
{
    if (k->kind == V_STR) return quoted(w, k->s);
    if (k->kind > V_FLOAT || k->kind == V_UNDEF)
        return sy_tpl_fail(w->r, SY_EARG, "tojson: a key is of type %s; keys must be str, int, float, bool or None",
                           sy_tpl_type(k));
    return put(w, "\"", !k->taint) && write_value(w, k) && put(w, "\"", !k->taint);
}

/* The entries in order of their keys. */
static bool sorted(struct writer *w, const struct dict *d, struct val *key, struct val *value)
{
    for (size_t i = 0; i < d->n; i++) {
        key[i] = d->at[i].key;
        value[i] = d->at[i].value;
    }
    return !w->how->sort || sy_tpl_sort(w->r, value, key, d->n, false);
}

static bool json_dict(struct writer *w, const struct val *v)
{
    const struct dict *d = v->dict;
    bool own = !v->taint;
    if (!d->n) return put(w, "{}", own);
    struct val *key = NULL, *value = NULL;
    if (w->how->sort) {
        key = sy_tpl_get(w->r, d->n, sizeof *key);
        value = sy_tpl_get(w->r, d->n, sizeof *value);
        if (!key || !value || !sorted(w, d, key, value)) return false;
    }
    if (!put(w, "{", own)) return false;
    w->level++;
    for (size_t i = 0; i < d->n; i++) {
        if ((i && !separator(w, w->how->item_sep, own)) || !new_line(w, own) ||
            !json_key(w, key ? &key[i] : &d->at[i].key) || !separator(w, w->how->key_sep, own) ||
            !write_value(w, value ? &value[i] : &d->at[i].value))
            return false;
    }
    w->level--;
    return new_line(w, own) && put(w, "}", own);
}

static bool json(struct writer *w, const struct val *v)
{
    switch (v->kind) {
    case V_NONE: return put(w, "null", !v->taint);
    case V_BOOL: return put(w, v->b ? "true" : "false", !v->taint);
    case V_INT:
    case V_FLOAT: return number(w, v);
    case V_STR: return quoted(w, v->s);
    case V_LIST:
    case V_TUPLE: return json_list(w, v);
    case V_DICT: return json_dict(w, v);
    default: return sy_tpl_fail(w->r, SY_EARG, "tojson: a value of type %s is not JSON", sy_tpl_type(v));
    }
}

static bool write_value(struct writer *w, const struct val *v)
{
    if (!sy_tpl_enter(w->r)) return false;
    bool good = w->how ? json(w, v) : repr(w, v);
    w->r->depth--;
    return good;
}

static bool written(struct run *r, const struct val *v, const struct text_how *how, struct val *out)
{
    struct writer w = {.r = r, .st = sy_tpl_store(r, 0), .how = how};
    return w.st && write_value(&w, v) && sy_tpl_took(r, w.st, out);
}

bool sy_tpl_json(struct run *r, const struct val *v, const struct text_how *how, struct val *out)
{
    return written(r, v, how, out);
}

bool sy_tpl_repr(struct run *r, const struct val *v, const struct str **out)
{
    struct val text;
    if (!written(r, v, NULL, &text)) return false;
    *out = text.s;
    return true;
}

bool sy_tpl_str(struct run *r, const struct val *v, const struct str **out)
{
    if (v->kind == V_STR) *out = v->s;
    else if (v->kind == V_UNDEF || v->kind == V_MISSING) *out = &sy_tpl_empty;
    else return sy_tpl_repr(r, v, out);
    return true;
}
