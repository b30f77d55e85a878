/* template_attr.c - object.name and object[key], as the sandbox of transformers lets a template see them: attributes
 * before items for a dot, items before attributes for brackets; what is private or changes its object is undefined.
 */
#include <string.h>

#include "text/template_int.h"

static bool m_get(struct run *r, int op, const struct val *arg, struct val *out)
{
    (void)op;
    const struct val *found;
    if (!sy_tpl_hashable(&arg[1]))
        return sy_tpl_fail(r, SY_EARG, "a %s cannot be a key of a dict", sy_tpl_type(&arg[1]));
    if (!sy_tpl_dict_get(r, arg[0].dict, &arg[1], &found)) return false;
    *out = found ? *found : arg[2].kind == V_MISSING ? sy_tpl_none() : arg[2];
    return true;
}

static bool m_view(struct run *r, int op, const struct val *arg, struct val *out)
{
    struct view *v = sy_tpl_get(r, 1, sizeof *v);
    if (!v) return false;
    *v = (struct view){arg[0].dict, (enum view_kind)op};
    *out = (struct val){.kind = V_VIEW, .taint = arg[0].taint, .view = v};
    return true;
}

static bool m_copy(struct run *r, int op, const struct val *arg, struct val *out)
{
    (void)r, (void)op;
    *out = arg[0]; /* nothing can change it */
    return true;
}

enum { COUNT, INDEX };

static bool m_search(struct run *r, int op, const struct val *arg, struct val *out)
{
    const struct list *l = sy_tpl_to_list(r, &arg[0]);
    if (!l) return false;
    int64_t n = (int64_t)l->n, from = 0, to = n, count = 0;
    if (op == INDEX && ((arg[2].kind != V_MISSING && !sy_tpl_index(&arg[2], &from)) ||
                        (arg[3].kind != V_MISSING && !sy_tpl_index(&arg[3], &to))))
        return sy_tpl_fail(r, SY_EARG, "index: expected integers for start and stop");
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (to < 0) to += n;
    for (int64_t i = from; i < n && i < to; i++) {
        bool same;
        if (!sy_tpl_spend(r, 1) || !sy_tpl_equal(r, &l->at[i], &arg[1], &same)) return false;
        count += same;
        if (!same || op == COUNT) continue;
        *out = sy_tpl_int(i, arg[0].taint);
        return true;
    }
    if (op == INDEX) return sy_tpl_fail(r, SY_EARG, "index: the value is not in the %s", sy_tpl_type(&arg[0]));
    *out = sy_tpl_int(count, arg[0].taint);
    return true;
}

static bool m_whole(struct run *r, int op, const struct val *arg, struct val *out)
{
    (void)r, (void)op;
    __int128 i;
    *out = sy_tpl_bool(sy_tpl_trunc(arg[0].f, &i) ? (double)i == arg[0].f : arg[0].f - arg[0].f == 0, arg[0].taint);
    return true;
}

static bool m_bits(struct run *r, int op, const struct val *arg, struct val *out)
{
    (void)r, (void)op;
    unsigned __int128 u = arg[0].i < 0 ? -(unsigned __int128)arg[0].i : (unsigned __int128)arg[0].i;
    int n = 0;
    for (; u; u >>= 1) n++;
    *out = sy_tpl_int(n, arg[0].taint);
    return true;
}

static bool m_cycle(struct run *r, int op, const struct val *arg, struct val *out)
{
    (void)r;
    struct cycler *c = arg[0].cycler;
    *out = op ? c->items->at[c->at] : sy_tpl_none();
    c->at = op ? (c->at + 1) % c->items->n : 0;
    return true;
}

static const struct method_def dict_methods[] = {
    {"get", m_get, 0, {"", ""}, 1, NULL},
    {"items", m_view, VIEW_ITEMS, {0}, 0, NULL},
    {"keys", m_view, VIEW_KEYS, {0}, 0, NULL},
    {"values", m_view, VIEW_VALUES, {0}, 0, NULL},
    {"copy", m_copy, 0, {0}, 0, NULL},
    {.name = "clear"},
    {.name = "pop"},
    {.name = "popitem"},
    {.name = "setdefault"},
    {.name = "update"},
    {.name = NULL},
};
static const struct method_def list_methods[] = {
    {"count", m_search, COUNT, {""}, 1, NULL},
    {"index", m_search, INDEX, {"", "", ""}, 1, NULL},
    {"copy", m_copy, 0, {0}, 0, NULL},
    {.name = "append"},
    {.name = "clear"},
    {.name = "pop"},
    {.name = "reverse"},
    {.name = "insert"},
    {.name = "sort"},
    {.name = "extend"},
    {.name = "remove"},
    {.name = NULL},
};
static const struct method_def tuple_methods[] = {
    {"count", m_search, COUNT, {""}, 1, NULL},
    {"index", m_search, INDEX, {"", "", ""}, 1, NULL},
    {.name = NULL},
};
static const struct method_def float_methods[] = {{"is_integer", m_whole, 0, {0}, 0, NULL}, {.name = NULL}};
static const struct method_def int_methods[] = {{"bit_length", m_bits, 0, {0}, 0, NULL}, {.name = NULL}};
static const struct method_def cycler_methods[] = {
    {"next", m_cycle, 1, {0}, 0, NULL},
    {"reset", m_cycle, 0, {0}, 0, NULL},
    {.name = NULL},
};

static const struct method_def *find_method(const struct val *v, const struct str *name)
{
    const struct method_def *m = NULL;
    switch (v->kind) {
    case V_STR: return sy_tpl_str_method(name->at, name->n);
    case V_DICT: m = dict_methods; break;
    case V_LIST: m = list_methods; break;
    case V_RANGE:
    case V_TUPLE: m = tuple_methods; break;
    case V_FLOAT: m = float_methods; break;
    case V_INT: m = int_methods; break;
    case V_CYCLER: m = cycler_methods; break;
    default: return NULL;
    }
    for (; m->name; m++)
        if (sy_tpl_is(name, m->name)) return m;
    return NULL;
}

/* Python's own attributes, which every object has and no template may see. */
static bool is_internal(const struct str *name)
{
    static const char *const names[] = {
        "class",        "doc",      "init",    "new",        "dict",          "module",  "eq",      "ne",
        "lt",           "le",       "gt",      "ge",         "hash",          "repr",    "str",     "format",
        "dir",          "sizeof",   "reduce",  "reduce_ex",  "getattribute",  "setattr", "delattr", "init_subclass",
        "subclasshook", "getstate", "len",     "getitem",    "contains",      "iter",    "add",     "mul",
        "rmul",         "mod",      "rmod",    "getnewargs", "call",          "func",    "self",    "name",
        "qualname",     "globals",  "code",    "bool",       "int",           "float",   "or",      "ror",
        "ior",          "reversed", "setitem", "delitem",    "class_getitem", "iadd",    "imul",
    };
    if (name->n < 5 || memcmp(name->at, "__", 2) || memcmp(name->at + name->n - 2, "__", 2)) return false;
    for (size_t i = 0; i < SY_COUNT(names); i++)
        if (strlen(names[i]) == name->n - 4 && !memcmp(names[i], name->at + 2, name->n - 4)) return true;
    return false;
}

static bool macro_attr(struct run *r, const struct macro *m, const struct str *name, bool *there, struct val *out)
{
    const struct node *def = m->def;
    *there = true;
    if (sy_tpl_is(name, "name")) {
        *out = def->kind == S_MACRO ? sy_tpl_of_str(def->text) : sy_tpl_none();
    } else if (sy_tpl_is(name, "arguments")) {
        struct list *l = sy_tpl_list(r, def->n_kw);
        if (!l) return false;
        for (size_t i = 0; i < l->n; i++) l->at[i] = sy_tpl_of_str(def->kw[i].name);
        *out = sy_tpl_of_list(V_TUPLE, l, false);
    } else if (sy_tpl_is(name, "caller")) {
        *out = sy_tpl_bool(def->scope->caller >= 0, false);
    } else if (sy_tpl_is(name, "catch_kwargs")) {
        *out = sy_tpl_bool(def->scope->kwargs >= 0, false);
    } else if (sy_tpl_is(name, "catch_varargs")) {
        *out = sy_tpl_bool(def->scope->varargs >= 0, false);
    } else {
        *there = false;
    }
    return true;
}

static bool small_attr(const struct val *v, const struct str *name, struct val *out)
{
    if (v->kind == V_TUPLE && v->list->group && (sy_tpl_is(name, "grouper") || sy_tpl_is(name, "list"))) {
        *out = v->list->at[name->n == 4];
        return true;
    }
    if (v->kind == V_RANGE && (sy_tpl_is(name, "start") || sy_tpl_is(name, "stop") || sy_tpl_is(name, "step"))) {
        *out = sy_tpl_int(name->at[2] == 'a'   ? v->range->start
                          : name->at[2] == 'o' ? v->range->stop
                                               : v->range->step,
                          v->taint);
        return true;
    }
    if (v->kind == V_CYCLER && sy_tpl_is(name, "current")) {
        *out = v->cycler->items->at[v->cycler->at];
        return true;
    }
    return false;
}

bool sy_tpl_own_attr(struct run *r, const struct val *v, const struct str *name, bool *there, struct val *out)
{
    *there = true;
    if (v->kind == V_UNDEF) return sy_tpl_undef_fail(r, v);
    const struct method_def *def = find_method(v, name);
    if (v->kind != V_NS && (is_internal(name) || (def && !def->call && !def->free_call)))
        return sy_tpl_undefined(r, name, NULL, "access to a private or changing attribute is unsafe", out);
    if (def) {
        struct method *m = sy_tpl_get(r, 1, sizeof *m);
        if (!m) return false;
        *m = (struct method){*v, def};
        *out = (struct val){.kind = V_METHOD, .taint = v->taint, .method = m};
        return true;
    }
    if (v->kind == V_MACRO) return macro_attr(r, v->macro, name, there, out);
    if (v->kind == V_LOOP) return sy_tpl_loop_attr(r, v->loop, name, there, out);
    if (v->kind == V_NS) {
        const struct val *found = sy_tpl_dict_text(v->dict, name->at, name->n);
        *there = found != NULL;
        if (found) *out = *found;
        return true;
    }
    *there = small_attr(v, name, out);
    return true;
}

bool sy_tpl_attr(struct run *r, const struct val *v, const struct str *name, struct val *out)
{
    bool there;
    if (!sy_tpl_own_attr(r, v, name, &there, out)) return false;
    if (there) return true;
    const struct val *found = v->kind == V_DICT ? sy_tpl_dict_text(v->dict, name->at, name->n) : NULL;
    if (found) *out = *found;
    return found || sy_tpl_undefined(r, name, sy_tpl_type(v), NULL, out);
}

/* The i-th of n, from the end if negative. */
static bool at_index(int64_t i, size_t n, size_t *at)
{
    if (i < 0) i += (int64_t)n;
    *at = (size_t)i;
    return i >= 0 && (size_t)i < n;
}

static bool str_at(struct run *r, const struct str *s, size_t i, struct val *out)
{
    size_t at = sy_tpl_offset(r, s, i);
    uint32_t cp;
    const struct str *c = sy_tpl_part(r, s, at, sy_utf8_next(s->at + at, s->n - at, &cp));
    if (c) *out = sy_tpl_of_str(c);
    return c != NULL;
}

/* object[key] where the object has items; *there is false if it has none such. */
static bool own_item(struct run *r, const struct val *v, const struct val *key, bool *there, struct val *out)
{
    int64_t i;
    size_t at;
    *there = false;
    if (v->kind == V_DICT) {
        const struct val *found;
        if (!sy_tpl_dict_get(r, v->dict, key, &found)) return false;
        *there = found != NULL;
        if (found) *out = *found;
        return true;
    }
    if (!sy_tpl_index(key, &i)) return true;
    if (v->kind == V_STR) {
        if (!at_index(i, sy_tpl_chars(r, v->s), &at)) return true;
        *there = true;
        return str_at(r, v->s, at, out);
    }
    if (v->kind == V_LIST || v->kind == V_TUPLE) {
        *there = at_index(i, v->list->n, &at);
        if (*there) *out = v->list->at[at];
    } else if (v->kind == V_RANGE) {
        *there = at_index(i, v->range->n, &at);
        if (*there) *out = sy_tpl_int(v->range->start + (__int128)v->range->step * (__int128)at, v->taint);
    }
    return true;
}

bool sy_tpl_item(struct run *r, const struct val *v, const struct val *key, struct val *out)
{
    bool there;
    if (v->kind == V_UNDEF) return sy_tpl_undef_fail(r, v);
    if (!own_item(r, v, key, &there, out)) return false;
    if (there) return true;
    if (key->kind == V_STR) {
        if (!sy_tpl_own_attr(r, v, key->s, &there, out)) return false;
        if (there) return true;
    }
    const struct str *name = &sy_tpl_empty;
    if (!sy_tpl_str(r, key, &name)) return false;
    return sy_tpl_undefined(r, name, sy_tpl_type(v), NULL, out);
}

/* ---- slices -------------------------------------------------------- */

struct slice {
    int64_t start, stop, step;
    size_t n; /* how many */
};

/* Python's slice.indices(). */
static bool slice_indices(struct run *r, const struct val bound[3], size_t len, struct slice *s)
{
    int64_t n = (int64_t)len, v[3] = {0, 0, 1};
    bool given[3];
    for (int i = 0; i < 3; i++) {
        given[i] = bound[i].kind != V_NONE;
        if (given[i] && !sy_tpl_index(&bound[i], &v[i]))
            return sy_tpl_fail(r, SY_EARG, "slice indices must be integers or None, found '%s'",
                               sy_tpl_type(&bound[i]));
    }
    if (v[2] == 0) return sy_tpl_fail(r, SY_EARG, "a slice cannot have step 0");
    bool down = v[2] < 0;
    int64_t lo = down ? -1 : 0, hi = down ? n - 1 : n;
    for (int i = 0; i < 2; i++) {
        if (!given[i]) v[i] = (i == 0) == down ? hi : lo;
        else if (v[i] < 0) v[i] = v[i] + n < lo ? lo : v[i] + n;
        else if (v[i] > hi) v[i] = hi;
    }
    int64_t span = down ? v[0] - v[1] : v[1] - v[0], size = down ? -v[2] : v[2];
    *s = (struct slice){v[0], v[1], v[2], span > 0 ? (size_t)((span - 1) / size + 1) : 0};
    return true;
}

static bool slice_str(struct run *r, const struct str *s, const struct slice *c, struct val *out)
{
    const struct str *part = NULL;
    if (c->step == 1 || !c->n) {
        size_t lo = c->n ? sy_tpl_offset(r, s, (size_t)c->start) : 0;
        size_t hi = c->n ? sy_tpl_offset(r, s, (size_t)c->start + c->n) : 0;
        part = sy_tpl_part(r, s, lo, hi - lo);
        if (part) *out = sy_tpl_of_str(part);
        return part != NULL;
    }
    /* Where each character starts, so that a walk backwards or in strides is linear. */
    size_t n_char = sy_tpl_chars(r, s), k = 0;
    size_t *at = sy_tpl_get(r, n_char + 1, sizeof *at);
    struct store *st = sy_tpl_store(r, c->n);
    if (!at || !st || !sy_tpl_spend(r, s->n / 4)) return false;
    for (size_t i = 0; i < s->n; i++)
        if (((unsigned char)s->at[i] & 0xc0) != 0x80) at[k++] = i;
    at[k] = s->n;
    for (size_t i = 0; i < c->n; i++) {
        size_t j = (size_t)(c->start + (int64_t)i * c->step);
        if (!sy_tpl_add_part(r, st, s, at[j], at[j + 1] - at[j])) return false;
    }
    return sy_tpl_took(r, st, out);
}

bool sy_tpl_slice(struct run *r, const struct val *v, const struct val bound[3], struct val *out)
{
    struct slice c = {0};
    size_t len;
    if (v->kind == V_UNDEF) return sy_tpl_undef_fail(r, v);
    if (v->kind != V_STR && v->kind != V_LIST && v->kind != V_TUPLE && v->kind != V_RANGE)
        return sy_tpl_fail(r, SY_EARG, "a %s cannot be sliced", sy_tpl_type(v));
    if (!sy_tpl_len(r, v, &len) || !slice_indices(r, bound, len, &c)) return false;
    if (v->kind == V_STR) return slice_str(r, v->s, &c, out);
    if (v->kind == V_RANGE) {
        struct range *g = sy_tpl_get(r, 1, sizeof *g);
        if (!g) return false;
        __int128 start = v->range->start + (__int128)v->range->step * c.start,
                 step = (__int128)v->range->step * c.step;
        if (step > INT64_MAX || step < INT64_MIN) step = step > 0 ? INT64_MAX : INT64_MIN; /* then n is 1 at most */
        __int128 stop = v->range->start + (__int128)v->range->step * c.stop;
        *g = (struct range){(int64_t)start, (int64_t)stop, (int64_t)step, c.n};
        *out = (struct val){.kind = V_RANGE, .taint = v->taint, .range = g};
        return true;
    }
    struct list *l = sy_tpl_spend(r, c.n / 8) ? sy_tpl_list(r, c.n) : NULL;
    if (!l) return false;
    for (size_t i = 0; i < c.n; i++) l->at[i] = v->list->at[c.start + (int64_t)i * c.step];
    *out = sy_tpl_of_list(v->kind, l, v->taint);
    return true;
}
