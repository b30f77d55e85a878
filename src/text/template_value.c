/* template_value.c - values as Python has them: truth, equality, order, containers, iteration, argument binding. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/template_int.h"

bool sy_tpl_fail(struct run *r, sy_status st, const char *fmt, ...)
{
    if (r->st != SY_OK) return false;
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    msg[sy_utf8_whole(msg, strlen(msg))] = 0;
    r->st = sy_fail(&r->error, st, "chat template, line %d: %s", r->line, msg);
    return false;
}

void *sy_tpl_get(struct run *r, size_t n, size_t size)
{
    void *p = sy_arena_array(&r->arena, n, size);
    if (p) return p;
    size_t limit = r->arena.limit;
    if (n > limit / size || r->arena.used > limit - n * size)
        sy_tpl_fail(r, SY_ENOMEM, "rendering needs more than the %zu bytes of memory it may use", limit);
    else sy_tpl_fail(r, SY_ENOMEM, "no memory for %zu bytes", n * size);
    return NULL;
}

void sy_tpl_cost(struct run *r, uint64_t steps)
{
    if (r) r->steps_left -= steps < r->steps_left ? steps : r->steps_left;
}

bool sy_tpl_spend(struct run *r, uint64_t steps)
{
    if (steps < r->steps_left) {
        r->steps_left -= steps;
        return true;
    }
    r->steps_left = 0;
    return sy_tpl_fail(r, SY_EARG, "rendering takes more than %llu steps; is there a loop without end?",
                       (unsigned long long)r->t->limit.steps);
}

bool sy_tpl_enter(struct run *r)
{
    if (!sy_tpl_spend(r, 1)) return false;
    if (++r->depth <= SY_TPL_WALK_MAX) return true;
    return sy_tpl_fail(r, SY_EARG, "calls or data nest too deeply");
}

struct val sy_tpl_none(void) { return (struct val){.kind = V_NONE}; }
struct val sy_tpl_bool(bool b, bool taint) { return (struct val){.kind = V_BOOL, .taint = taint, .b = b}; }
struct val sy_tpl_int(__int128 i, bool taint) { return (struct val){.kind = V_INT, .taint = taint, .i = i}; }
struct val sy_tpl_float(double f, bool taint) { return (struct val){.kind = V_FLOAT, .taint = taint, .f = f}; }
struct val sy_tpl_of_str(const struct str *s) { return (struct val){.kind = V_STR, .s = s}; }
struct val sy_tpl_of_list(enum kind kind, struct list *l, bool taint)
{
    return (struct val){.kind = (uint8_t)kind, .taint = taint, .list = l};
}

bool sy_tpl_undefined(struct run *r, const struct str *name, const char *owner, const char *hint, struct val *out)
{
    struct undef *u = sy_tpl_get(r, 1, sizeof *u);
    if (!u) return false;
    *u = (struct undef){name, hint, owner};
    *out = (struct val){.kind = V_UNDEF, .undef = u};
    return true;
}

bool sy_tpl_undef_fail(struct run *r, const struct val *v)
{
    const struct undef *u = v->undef;
    const struct str *s = u->name ? u->name : &sy_tpl_empty;
    int n = (int)sy_utf8_whole(s->at, s->n < 120 ? s->n : 120);
    if (u->hint) return sy_tpl_fail(r, SY_EARG, "%s ('%.*s')", u->hint, n, s->at);
    if (u->owner)
        return sy_tpl_fail(r, SY_EARG, "'%s object' has no attribute or element '%.*s'", u->owner, n, s->at);
    return sy_tpl_fail(r, SY_EARG, "'%.*s' is undefined", n, s->at);
}

struct list *sy_tpl_list(struct run *r, size_t n)
{
    struct list *l = sy_tpl_get(r, 1, sizeof *l);
    if (!l || (n && !(l->at = sy_tpl_get(r, n, sizeof *l->at)))) return NULL;
    l->n = n;
    return l;
}

bool sy_tpl_iter(struct run *r, struct list *l, const char *what, bool taint, struct val *out)
{
    struct iter *it = l ? sy_tpl_get(r, 1, sizeof *it) : NULL;
    if (!it) return false;
    *it = (struct iter){.list = l, .what = what};
    *out = (struct val){.kind = V_ITER, .taint = taint, .iter = it};
    return true;
}

const char *sy_tpl_type(const struct val *v)
{
    static const char *const names[] = {
        "missing", "Undefined", "NoneType", "bool",        "int",    "float",     "str",
        "list",    "tuple",     "dict",     "dict view",   "range",  "generator", "Namespace",
        "Macro",   "method",    "function", "LoopContext", "Cycler", "Joiner",
    };
    return names[v->kind];
}

bool sy_tpl_truth(const struct val *v)
{
    switch (v->kind) {
    case V_MISSING:
    case V_UNDEF:
    case V_NONE: return false;
    case V_BOOL: return v->b;
    case V_INT: return v->i != 0;
    case V_FLOAT: return v->f != 0;
    case V_STR: return v->s->n > 0;
    case V_LIST:
    case V_TUPLE: return v->list->n > 0;
    case V_DICT: return v->dict->n > 0;
    case V_VIEW: return v->view->dict->n > 0;
    case V_RANGE: return v->range->n > 0;
    default: return true;
    }
}

bool sy_tpl_tainted(const struct val *v) { return v->kind == V_STR ? !sy_tpl_trusted(v->s) : v->taint; }

/* ---- dicts -------------------------------------------------------- */

bool sy_tpl_hashable(const struct val *v)
{
    if (v->kind == V_LIST || v->kind == V_DICT) return false;
    for (size_t i = 0; v->kind == V_TUPLE && i < v->list->n; i++)
        if (v->list->at[i].kind == V_TUPLE || !sy_tpl_hashable(&v->list->at[i]))
            return false; /* flat ones are enough */
    return true;
}

static uint32_t hash_bytes(const void *at, size_t n)
{
    const unsigned char *p = at;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 16777619u;
    return h;
}

/* Equal values have equal hashes: 1, 1.0 and true are one key. */
static uint32_t hash(const struct val *v)
{
    __int128 whole = 0;
    if (v->kind == V_STR) return hash_bytes(v->s->at, v->s->n);
    if (v->kind == V_TUPLE) {
        uint32_t h = 17;
        for (size_t i = 0; i < v->list->n; i++) h = h * 31 + hash(&v->list->at[i]);
        return h;
    }
    if (v->kind == V_INT) whole = v->i;
    else if (v->kind == V_BOOL) whole = v->b;
    else if (v->kind == V_FLOAT && v->f == floor(v->f) && fabs(v->f) < 1e18) whole = (__int128)v->f;
    else if (v->kind == V_FLOAT) return hash_bytes(&v->f, sizeof v->f);
    return hash_bytes(&whole, sizeof whole);
}

struct dict *sy_tpl_dict(struct run *r, size_t cap)
{
    struct dict *d = sy_tpl_get(r, 1, sizeof *d);
    if (!d || (cap && !(d->at = sy_tpl_get(r, cap, sizeof *d->at)))) return NULL;
    d->cap = cap;
    return d;
}

static void index_add(struct dict *d, size_t entry)
{
    size_t i = d->at[entry].hash & (d->n_index - 1);
    while (d->index[i]) i = (i + 1) & (d->n_index - 1);
    d->index[i] = (uint32_t)entry + 1;
}

enum { INDEX_FROM = 9 }; /* a scan of up to 8 entries is faster */

static bool dict_find(struct run *r, const struct dict *d, const struct val *key, uint32_t h, struct entry **found)
{
    size_t i = d->index ? h & (d->n_index - 1) : 0;
    bool same = false;
    *found = NULL;
    for (;;) {
        size_t k;
        if (d->index) {
            if (!d->index[i]) return true;
            k = d->index[i] - 1;
            i = (i + 1) & (d->n_index - 1);
        } else if ((k = i++) >= d->n) {
            return true;
        }
        sy_tpl_cost(r, 1);
        if (d->at[k].hash != h) continue;
        if (!sy_tpl_equal(r, &d->at[k].key, key, &same)) return false;
        if (!same) continue;
        *found = &d->at[k];
        return true;
    }
}

static bool dict_grow(struct run *r, struct dict *d)
{
    if (d->n < d->cap) return true;
    size_t cap = d->cap ? 2 * d->cap : 4;
    struct entry *at = cap < UINT32_MAX / 4 ? sy_tpl_get(r, cap, sizeof *at) : NULL;
    if (!at) return false;
    if (d->n) memcpy(at, d->at, d->n * sizeof *at);
    d->at = at;
    d->cap = cap;
    return true;
}

bool sy_tpl_dict_set(struct run *r, struct dict *d, const struct val *key, const struct val *value)
{
    struct entry *e;
    if (!sy_tpl_hashable(key)) return sy_tpl_fail(r, SY_EARG, "a %s cannot be a key of a dict", sy_tpl_type(key));
    uint32_t h = hash(key);
    if (!sy_tpl_spend(r, 1) || !dict_find(r, d, key, h, &e)) return false;
    if (e) {
        e->value = *value;
        return true;
    }
    if (!dict_grow(r, d)) return false;
    d->at[d->n++] = (struct entry){*key, *value, h};
    if (d->n < INDEX_FROM) return true;
    if (d->index && d->n * 2 <= d->n_index) {
        index_add(d, d->n - 1);
        return true;
    }
    size_t n = 32;
    while (n < d->n * 4) n *= 2;
    d->index = sy_tpl_get(r, n, sizeof *d->index);
    d->n_index = d->index ? n : 0;
    for (size_t i = 0; d->index && i < d->n; i++) index_add(d, i);
    return d->index != NULL;
}

bool sy_tpl_dict_get(struct run *r, const struct dict *d, const struct val *key, const struct val **value)
{
    struct entry *e = NULL;
    if (sy_tpl_hashable(key) && !dict_find(r, d, key, hash(key), &e)) return false;
    *value = e ? &e->value : NULL;
    return true;
}

const struct val *sy_tpl_dict_text(const struct dict *d, const char *key, size_t n)
{
    uint32_t h = hash_bytes(key, n);
    size_t i = d->index ? h & (d->n_index - 1) : 0;
    for (;;) {
        size_t k;
        if (d->index) {
            if (!d->index[i]) return NULL;
            k = d->index[i] - 1;
            i = (i + 1) & (d->n_index - 1);
        } else if ((k = i++) >= d->n) {
            return NULL;
        }
        const struct val *v = &d->at[k].key;
        if (d->at[k].hash == h && v->kind == V_STR && v->s->n == n && !memcmp(v->s->at, key, n))
            return &d->at[k].value;
    }
}

/* ---- equality and order -------------------------------------------------------- */

static bool is_number(const struct val *v) { return v->kind == V_BOOL || v->kind == V_INT || v->kind == V_FLOAT; }

static __int128 as_int(const struct val *v) { return v->kind == V_BOOL ? v->b : v->i; }

/* -1, 0, 1; 2 with a NaN. A float that is whole is compared as an integer, so that 2^53 + 1 != 2.0^53. */
static int number_order(const struct val *a, const struct val *b)
{
    if (a->kind != V_FLOAT && b->kind != V_FLOAT) {
        __int128 x = as_int(a), y = as_int(b);
        return (x > y) - (x < y);
    }
    if (a->kind == V_FLOAT && b->kind == V_FLOAT) {
        if (isnan(a->f) || isnan(b->f)) return 2;
        return (a->f > b->f) - (a->f < b->f);
    }
    if (b->kind == V_FLOAT) {
        int o = number_order(b, a);
        return o == 2 ? 2 : -o;
    }
    if (isnan(a->f)) return 2;
    double down = floor(a->f);
    __int128 x, y = as_int(b);
    if (!sy_tpl_trunc(down, &x)) return a->f > 0 ? 1 : -1;
    return x != y ? (x > y) - (x < y) : a->f > down;
}

static bool list_equal(struct run *r, const struct list *a, const struct list *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++)
        if (!sy_tpl_equal(r, &a->at[i], &b->at[i], out)) return false;
    return true;
}

static bool dict_equal(struct run *r, const struct dict *a, const struct dict *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        const struct val *other;
        if (!sy_tpl_dict_get(r, b, &a->at[i].key, &other)) return false;
        *out = false;
        if (other && !sy_tpl_equal(r, &a->at[i].value, other, out)) return false;
    }
    return true;
}

static bool same_object(const struct val *a, const struct val *b)
{
    if (a->kind != b->kind) return false;
    if (a->kind == V_VIEW) return a->view->dict == b->view->dict && a->view->kind == b->view->kind;
    if (a->kind == V_METHOD)
        return a->method->def == b->method->def && same_object(&a->method->self, &b->method->self);
    if (a->kind == V_RANGE)
        return a->range->n == b->range->n &&
               (!a->range->n ||
                (a->range->start == b->range->start && (a->range->n == 1 || a->range->step == b->range->step)));
    return a->list == b->list; /* any pointer of the union */
}

bool sy_tpl_equal(struct run *r, const struct val *a, const struct val *b, bool *out)
{
    if (is_number(a) && is_number(b)) {
        *out = number_order(a, b) == 0;
        return true;
    }
    *out = false;
    if (a->kind != b->kind) return true;
    switch (a->kind) {
    case V_UNDEF:
    case V_NONE: *out = true; return true;
    case V_STR:
        *out = a->s->n == b->s->n && !memcmp(a->s->at, b->s->at, a->s->n);
        sy_tpl_cost(r, a->s->n == b->s->n ? a->s->n / 64 : 0);
        return true;
    case V_LIST:
    case V_TUPLE:
    case V_DICT: break;
    default: *out = same_object(a, b); return true;
    }
    if (!sy_tpl_enter(r)) return false;
    bool good = a->kind == V_DICT ? dict_equal(r, a->dict, b->dict, out) : list_equal(r, a->list, b->list, out);
    r->depth--;
    return good;
}

static bool order(struct run *r, const struct val *a, const struct val *b, const char *op, int *out);

static bool list_order(struct run *r, const struct list *a, const struct list *b, const char *op, int *out)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same;
        if (!sy_tpl_equal(r, &a->at[i], &b->at[i], &same)) return false;
        if (!same) return order(r, &a->at[i], &b->at[i], op, out);
    }
    *out = (a->n > b->n) - (a->n < b->n);
    return true;
}

static bool order(struct run *r, const struct val *a, const struct val *b, const char *op, int *out)
{
    if (is_number(a) && is_number(b)) {
        *out = number_order(a, b);
        return true;
    }
    if (a->kind == V_STR && b->kind == V_STR) {
        size_t n = a->s->n < b->s->n ? a->s->n : b->s->n;
        int c = memcmp(a->s->at, b->s->at, n);
        sy_tpl_cost(r, n / 64);
        *out = c ? c : (a->s->n > b->s->n) - (a->s->n < b->s->n);
        return true;
    }
    if (a->kind == V_UNDEF || b->kind == V_UNDEF) return sy_tpl_undef_fail(r, a->kind == V_UNDEF ? a : b);
    if (a->kind != b->kind || (a->kind != V_LIST && a->kind != V_TUPLE))
        return sy_tpl_fail(r, SY_EARG, "'%s' not supported between '%s' and '%s'", op, sy_tpl_type(a),
                           sy_tpl_type(b));
    if (!sy_tpl_enter(r)) return false;
    bool good = list_order(r, a->list, b->list, op, out);
    r->depth--;
    return good;
}

bool sy_tpl_compare(struct run *r, enum compare_op op, const struct val *a, const struct val *b, bool *out)
{
    static const char *const names[] = {"==", "!=", "<", "<=", ">", ">="};
    int o;
    bool flip = op == CMP_NE || op == CMP_NOT_IN;
    if (op == CMP_EQ || op == CMP_NE || op == CMP_IN || op == CMP_NOT_IN) {
        if (!(op == CMP_EQ || op == CMP_NE ? sy_tpl_equal(r, a, b, out) : sy_tpl_contains(r, a, b, out)))
            return false;
        *out ^= flip;
        return true;
    }
    if (!order(r, a, b, names[op], &o)) return false;
    *out = o != 2 && (op == CMP_LT ? o < 0 : op == CMP_LE ? o <= 0 : op == CMP_GT ? o > 0 : o >= 0);
    return true;
}

static bool range_contains(const struct range *g, const struct val *v)
{
    if (!is_number(v) || !g->n) return false;
    __int128 x;
    if (v->kind == V_FLOAT && (v->f != floor(v->f) || !sy_tpl_trunc(v->f, &x))) return false;
    if (v->kind != V_FLOAT) x = as_int(v);
    __int128 last = (__int128)g->start + (__int128)g->step * (__int128)(g->n - 1);
    __int128 lo = g->step > 0 ? g->start : last, hi = g->step > 0 ? last : g->start;
    return x >= lo && x <= hi && (x - g->start) % g->step == 0;
}

bool sy_tpl_contains(struct run *r, const struct val *item, const struct val *in, bool *out)
{
    *out = false;
    if (in->kind == V_STR) {
        if (item->kind != V_STR)
            return sy_tpl_fail(r, SY_EARG, "'in <string>' needs a string on its left, found '%s'", sy_tpl_type(item));
        *out = sy_tpl_find(r, in->s, item->s, 0) != SIZE_MAX;
        return true;
    }
    if (in->kind == V_DICT || (in->kind == V_VIEW && in->view->kind == VIEW_KEYS)) {
        const struct val *found;
        if (!sy_tpl_hashable(item))
            return sy_tpl_fail(r, SY_EARG, "a %s cannot be a key of a dict", sy_tpl_type(item));
        if (!sy_tpl_dict_get(r, in->kind == V_DICT ? in->dict : in->view->dict, item, &found)) return false;
        *out = found != NULL;
        return true;
    }
    if (in->kind == V_RANGE) {
        *out = range_contains(in->range, item);
        return true;
    }
    struct walk w;
    struct val v;
    bool more = true;
    if (!sy_tpl_walk(r, in, &w)) return false;
    while (!*out) {
        if (!sy_tpl_next(r, &w, &v, &more)) return false;
        if (!more) break;
        if (!sy_tpl_spend(r, 1) || !sy_tpl_equal(r, &v, item, out)) return false;
    }
    return true;
}

/* ---- length and iteration -------------------------------------------------------- */

bool sy_tpl_is_iterable(const struct val *v) { return (v->kind >= V_STR && v->kind <= V_ITER) || v->kind == V_UNDEF; }

bool sy_tpl_len(struct run *r, const struct val *v, size_t *n)
{
    switch (v->kind) {
    case V_UNDEF: *n = 0; return true;
    case V_STR: *n = sy_tpl_chars(r, v->s); return true;
    case V_LIST:
    case V_TUPLE: *n = v->list->n; return true;
    case V_DICT: *n = v->dict->n; return true;
    case V_VIEW: *n = v->view->dict->n; return true;
    case V_RANGE: *n = v->range->n; return true;
    default: return sy_tpl_fail(r, SY_EARG, "a %s has no length", sy_tpl_type(v));
    }
}

bool sy_tpl_walk(struct run *r, const struct val *v, struct walk *w)
{
    if (!sy_tpl_is_iterable(v)) return sy_tpl_fail(r, SY_EARG, "a %s cannot be iterated over", sy_tpl_type(v));
    *w = (struct walk){.of = *v};
    if (v->kind == V_STR) w->n = v->s->n;
    else if (v->kind == V_ITER) w->n = v->iter->list->n;
    else if (!sy_tpl_len(r, v, &w->n)) return false;
    return true;
}

static bool view_item(struct run *r, const struct view *v, size_t i, bool taint, struct val *out)
{
    const struct entry *e = &v->dict->at[i];
    *out = v->kind == VIEW_VALUES ? e->value : e->key;
    if (v->kind != VIEW_ITEMS) return true;
    struct list *pair = sy_tpl_list(r, 2);
    if (!pair) return false;
    pair->at[0] = e->key;
    pair->at[1] = e->value;
    *out = sy_tpl_of_list(V_TUPLE, pair, taint);
    return true;
}

bool sy_tpl_next(struct run *r, struct walk *w, struct val *out, bool *more)
{
    const struct val *v = &w->of;
    size_t i = w->i;
    if (v->kind == V_ITER) i = v->iter->at;
    *more = i < w->n;
    if (!*more && v->kind == V_ITER && v->iter->error) {
        r->st = sy_fail(&r->error, SY_EARG, "%s", v->iter->error);
        return false;
    }
    if (!*more) return true;
    w->i++;
    switch (v->kind) {
    case V_STR: {
        uint32_t cp;
        size_t len = sy_utf8_next(v->s->at + i, v->s->n - i, &cp);
        const struct str *c = sy_tpl_part(r, v->s, i, len);
        if (c && c->markup) c = sy_tpl_marked(r, c, false);
        w->i = i + len;
        if (c) *out = sy_tpl_of_str(c);
        return c != NULL;
    }
    case V_LIST:
    case V_TUPLE: *out = v->list->at[i]; return true;
    case V_DICT: *out = v->dict->at[i].key; return true;
    case V_VIEW: return view_item(r, v->view, i, v->taint, out);
    case V_RANGE: *out = sy_tpl_int(v->range->start + (__int128)v->range->step * (__int128)i, v->taint); return true;
    default: *out = v->iter->list->at[v->iter->at++]; return true; /* V_ITER: what is taken is gone */
    }
}

struct list *sy_tpl_to_list(struct run *r, const struct val *v)
{
    if (v->kind == V_LIST || v->kind == V_TUPLE) return v->list;
    struct walk w;
    if (!sy_tpl_walk(r, v, &w)) return NULL;
    size_t n = w.n;
    if (v->kind == V_ITER) n -= v->iter->at;
    if (v->kind == V_STR) n = sy_tpl_chars(r, v->s);
    struct list *l = sy_tpl_spend(r, n) ? sy_tpl_list(r, n) : NULL;
    bool more = true;
    for (size_t i = 0; l && i < n; i++)
        if (!sy_tpl_next(r, &w, &l->at[i], &more)) return NULL;
    struct val none;
    return l && sy_tpl_next(r, &w, &none, &more) ? l : NULL; /* a generator may fail at its end */
}

bool sy_tpl_index(const struct val *v, int64_t *out)
{
    if (v->kind != V_INT && v->kind != V_BOOL) return false;
    __int128 i = as_int(v);
    *out = i > INT64_MAX / 4 ? INT64_MAX / 4 : i < INT64_MIN / 4 ? INT64_MIN / 4 : (int64_t)i;
    return true;
}

/* ---- sorting -------------------------------------------------------- */

static bool merge(struct run *r, const struct val *key, const size_t *from, size_t lo, size_t mid, size_t hi,
                  bool reverse, size_t *to)
{
    size_t i = lo, j = mid;
    for (size_t k = lo; k < hi; k++) {
        bool right = i == mid;
        if (!right && j < hi) {
            const struct val *a = &key[from[i]], *b = &key[from[j]];
            if (!sy_tpl_spend(r, 1) || !sy_tpl_compare(r, CMP_LT, reverse ? a : b, reverse ? b : a, &right))
                return false;
        }
        to[k] = right ? from[j++] : from[i++];
    }
    return true;
}

bool sy_tpl_sort(struct run *r, struct val *item, struct val *key, size_t n, bool reverse)
{
    if (n < 2) return true;
    size_t *a = sy_tpl_get(r, n, sizeof *a), *b = sy_tpl_get(r, n, sizeof *b);
    struct val *old_item = sy_tpl_get(r, n, sizeof *old_item), *old_key = sy_tpl_get(r, n, sizeof *old_key);
    if (!a || !b || !old_item || !old_key) return false;
    for (size_t i = 0; i < n; i++) a[i] = i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n, hi = lo + 2 * width < n ? lo + 2 * width : n;
            if (!merge(r, key, a, lo, mid, hi, reverse, b)) return false;
        }
        size_t *swap = a;
        a = b;
        b = swap;
    }
    memcpy(old_item, item, n * sizeof *item);
    memcpy(old_key, key, n * sizeof *key);
    for (size_t i = 0; i < n; i++) {
        item[i] = old_item[a[i]];
        key[i] = old_key[a[i]];
    }
    return true;
}

/* ---- arguments -------------------------------------------------------- */

bool sy_tpl_bind(struct run *r, const char *what, const char *const *param, int n_required, const struct args *args,
                 struct val *arg)
{
    size_t n_param = 0;
    while (n_param < SY_TPL_PARAM_MAX && param[n_param]) n_param++;
    if (args->n > n_param)
        return sy_tpl_fail(r, SY_EARG, "%s takes at most %zu arguments, found %zu", what, n_param, args->n);
    for (size_t i = 0; i < n_param; i++) arg[i] = i < args->n ? args->at[i] : (struct val){.kind = V_MISSING};
    for (size_t k = 0; k < args->n_kw; k++) {
        const struct str *name = args->kw[k].name;
        size_t i = 0;
        while (i < n_param && (!*param[i] || !sy_tpl_is(name, param[i]))) i++;
        if (i == n_param)
            return sy_tpl_fail(r, SY_EARG, "%s has no argument named '%.*s'", what,
                               (int)(name->n < 60 ? name->n : 60), name->at);
        if (arg[i].kind != V_MISSING)
            return sy_tpl_fail(r, SY_EARG, "%s: argument '%s' is given twice", what, param[i]);
        arg[i] = args->kw[k].value;
    }
    for (int i = 0; i < n_required; i++)
        if (arg[i].kind == V_MISSING)
            return sy_tpl_fail(r, SY_EARG, "%s: argument %d%s%s is missing", what, i + 1, *param[i] ? ", " : "",
                               param[i]);
    return true;
}
