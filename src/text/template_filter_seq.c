/* template_filter_seq.c - jinja2's filters over sequences. Those that are generators there give a V_ITER here: made
 * at once, but used up by whoever walks over it, without a length, and failing for whoever gets to where it failed.
 */
#include <string.h>

#include "text/template_int.h"

static bool given(const struct val *v) { return v->kind != V_MISSING && v->kind != V_NONE; }

/* A generator of what `l` got before it was full or, if not `good`, before something failed. depth: as before. */
static bool generator(struct run *r, bool good, struct list *l, int depth, bool taint, struct val *out)
{
    static const char what[] = "generator";
    if (good) return sy_tpl_iter(r, l, what, taint, out);
    if (r->st != SY_EARG || !r->steps_left) return false;
    r->st = SY_OK;
    r->depth = depth;
    char *why = sy_arena_text(&r->arena, r->error.msg, strlen(r->error.msg));
    if (!why) return sy_tpl_fail(r, SY_ENOMEM, "no memory for a message");
    if ((!l && !(l = sy_tpl_list(r, 0))) || !sy_tpl_iter(r, l, what, taint, out)) return false;
    out->iter->error = why;
    return true;
}

/* An empty list with room for n items. */
static struct list *room(struct run *r, size_t n)
{
    struct list *l = sy_tpl_list(r, n);
    if (l) l->n = 0;
    return l;
}

/* ---- attributes by path: "a.b.0" -------------------------------------------------------- */

enum { PARTS_MAX = 16 };
struct path {
    struct val part[PARTS_MAX];
    size_t n;
    const struct val *otherwise; /* for what is undefined; NULL: leave it so */
    bool ignore_case;
};

static bool path_parts(struct run *r, const struct str *s, struct path *p)
{
    for (size_t i = 0; i <= s->n;) {
        const char *dot = i < s->n ? memchr(s->at + i, '.', s->n - i) : NULL;
        size_t end = dot ? (size_t)(dot - s->at) : s->n, k = i;
        const struct str *part = sy_tpl_part(r, s, i, end - i);
        if (p->n == PARTS_MAX) return sy_tpl_fail(r, SY_EARG, "an attribute path has more than %d parts", PARTS_MAX);
        if (!part) return false;
        while (k < end && s->at[k] >= '0' && s->at[k] <= '9') k++;
        __int128 index;
        bool number = k == end && end > i && sy_tpl_parse_int(part->at, part->n, 10, &index);
        p->part[p->n++] = number ? sy_tpl_int(index, false) : sy_tpl_of_str(part);
        i = end + 1;
    }
    return true;
}

static bool path_of(struct run *r, const struct val *attribute, struct path *p)
{
    if (attribute->kind == V_MISSING || attribute->kind == V_NONE) return true;
    if (attribute->kind == V_STR) return path_parts(r, attribute->s, p);
    p->part[p->n++] = *attribute;
    return true;
}

static bool fold(struct run *r, struct val *v) { return v->kind != V_STR || sy_tpl_case(r, v->s, CASE_LOWER, v); }

static bool follow(struct run *r, const struct path *p, const struct val *item, struct val *out)
{
    struct val at = *item;
    for (size_t i = 0; i < p->n; i++) {
        struct val of = at;
        if (!sy_tpl_spend(r, 1) || !sy_tpl_item(r, &of, &p->part[i], &at)) return false;
        if (p->otherwise && at.kind == V_UNDEF) at = *p->otherwise;
    }
    *out = at;
    return !p->ignore_case || fold(r, out);
}

/* ---- map, select, reject -------------------------------------------------------- */

static bool named_filter(struct run *r, const struct val *name, const struct filter **f)
{
    *f = name->kind == V_STR ? sy_tpl_filter_find(name->s->at, name->s->n) : NULL;
    if (*f) return true;
    if (name->kind != V_STR) return sy_tpl_fail(r, SY_EARG, "map needs the name of a filter");
    return sy_tpl_fail(r, SY_EARG, "no filter named '%.*s'", (int)(name->s->n < 60 ? name->s->n : 60), name->s->at);
}

static bool map_path(struct run *r, const struct args *args, struct path *p)
{
    const struct val *attribute = NULL;
    for (size_t i = 0; i < args->n_kw; i++) {
        if (sy_tpl_is(args->kw[i].name, "attribute")) attribute = &args->kw[i].value;
        else if (sy_tpl_is(args->kw[i].name, "default"))
            p->otherwise = given(&args->kw[i].value) ? &args->kw[i].value : NULL;
        else return sy_tpl_fail(r, SY_EARG, "map: unexpected argument '%.60s'", args->kw[i].name->at);
    }
    if (!attribute) return sy_tpl_fail(r, SY_EARG, "map needs the name of a filter or attribute=...");
    return path_of(r, attribute, p);
}

static bool map(struct run *r, const struct val *value, const struct args *args, struct list **l)
{
    struct path p = {0};
    const struct filter *f = NULL;
    struct list *in;
    if (!sy_tpl_truth(value)) return (*l = room(r, 0)) != NULL;
    if (!(args->n ? named_filter(r, &args->at[0], &f) : map_path(r, args, &p))) return false;
    if (!(in = sy_tpl_to_list(r, value)) || !(*l = room(r, in->n))) return false;
    struct args rest = {
        .at = args->n ? args->at + 1 : NULL, .n = args->n ? args->n - 1 : 0, .kw = args->kw, .n_kw = args->n_kw};
    for (size_t i = 0; i < in->n; i++) {
        struct val *to = &(*l)->at[i];
        if (!(f ? sy_tpl_filter_call(r, f, &in->at[i], &rest, to) : follow(r, &p, &in->at[i], to))) return false;
        (*l)->n++;
    }
    return true;
}

static bool f_map(struct run *r, const struct val *value, const struct args *args, struct val *out)
{
    struct list *l = NULL;
    int depth = r->depth;
    bool good = map(r, value, args, &l);
    return generator(r, good, l, depth, sy_tpl_tainted(value), out);
}

static bool named_test(struct run *r, const struct val *name, const struct test **t)
{
    *t = name->kind == V_STR ? sy_tpl_test_find(name->s->at, name->s->n) : NULL;
    if (*t) return true;
    if (name->kind != V_STR) return sy_tpl_fail(r, SY_EARG, "select and reject need the name of a test");
    return sy_tpl_fail(r, SY_EARG, "no test named '%.*s'", (int)(name->s->n < 60 ? name->s->n : 60), name->s->at);
}

static bool select_into(struct run *r, const struct val *value, const struct args *args, bool by_attr, bool want,
                        struct list **l)
{
    struct path p = {0};
    const struct test *test = NULL;
    struct list *in;
    size_t off = by_attr ? 1 : 0;
    if (!sy_tpl_truth(value)) return (*l = room(r, 0)) != NULL;
    if (args->n < off) return sy_tpl_fail(r, SY_EARG, "selectattr and rejectattr need the name of an attribute");
    if (by_attr && !path_of(r, &args->at[0], &p)) return false;
    if (args->n > off && !named_test(r, &args->at[off], &test)) return false;
    if (!(in = sy_tpl_to_list(r, value)) || !(*l = room(r, in->n))) return false;
    size_t used = args->n > off ? off + 1 : args->n;
    struct args rest = {.at = used ? args->at + used : NULL, .n = args->n - used, .kw = args->kw, .n_kw = args->n_kw};
    for (size_t i = 0; i < in->n; i++) {
        struct val v;
        bool yes;
        if (!sy_tpl_spend(r, 1) || !follow(r, &p, &in->at[i], &v)) return false;
        if (!test) yes = sy_tpl_truth(&v);
        else if (!sy_tpl_test_call(r, test, &v, &rest, &yes)) return false;
        if (yes == want) (*l)->at[(*l)->n++] = in->at[i];
    }
    return true;
}

static bool choose(struct run *r, const struct val *value, const struct args *args, bool by_attr, bool want,
                   struct val *out)
{
    struct list *l = NULL;
    int depth = r->depth;
    bool good = select_into(r, value, args, by_attr, want, &l);
    return generator(r, good, l, depth, sy_tpl_tainted(value), out);
}

static bool f_select(struct run *r, const struct val *v, const struct args *a, struct val *out)
{
    return choose(r, v, a, false, true, out);
}
static bool f_reject(struct run *r, const struct val *v, const struct args *a, struct val *out)
{
    return choose(r, v, a, false, false, out);
}
static bool f_selectattr(struct run *r, const struct val *v, const struct args *a, struct val *out)
{
    return choose(r, v, a, true, true, out);
}
static bool f_rejectattr(struct run *r, const struct val *v, const struct args *a, struct val *out)
{
    return choose(r, v, a, true, false, out);
}

/* ---- taking -------------------------------------------------------- */

static bool f_length(struct run *r, const struct val *arg, struct val *out)
{
    size_t n;
    if (!sy_tpl_len(r, &arg[0], &n)) return false;
    *out = sy_tpl_int((__int128)n, sy_tpl_tainted(&arg[0]));
    return true;
}

static bool f_list(struct run *r, const struct val *arg, struct val *out)
{
    struct list *l = sy_tpl_to_list(r, &arg[0]), *copy = l ? sy_tpl_list(r, 0) : NULL;
    if (!copy) return false;
    copy->n = l->n; /* another list of the same items */
    copy->at = l->at;
    *out = sy_tpl_of_list(V_LIST, copy, sy_tpl_tainted(&arg[0]));
    return true;
}

static bool f_first(struct run *r, const struct val *arg, struct val *out)
{
    struct walk w;
    bool more = true;
    if (!sy_tpl_walk(r, &arg[0], &w) || !sy_tpl_next(r, &w, out, &more)) return false;
    return more || sy_tpl_undefined(r, NULL, NULL, "no first item, the sequence was empty", out);
}

static bool f_last(struct run *r, const struct val *arg, struct val *out)
{
    const struct val *v = &arg[0];
    size_t n;
    if (!sy_tpl_is_iterable(v) || v->kind == V_ITER)
        return sy_tpl_fail(r, SY_EARG, "last: a %s cannot be reversed", sy_tpl_type(v));
    if (!sy_tpl_len(r, v, &n)) return false;
    if (!n) return sy_tpl_undefined(r, NULL, NULL, "no last item, the sequence was empty", out);
    if (v->kind == V_STR || v->kind == V_LIST || v->kind == V_TUPLE || v->kind == V_RANGE) {
        struct val index = sy_tpl_int(-1, false);
        return sy_tpl_item(r, v, &index, out);
    }
    struct list *l = sy_tpl_to_list(r, v);
    if (l) *out = l->at[n - 1];
    return l != NULL;
}

static bool f_reverse(struct run *r, const struct val *arg, struct val *out)
{
    const struct val *v = &arg[0];
    if (v->kind == V_STR) {
        struct val bound[3] = {sy_tpl_none(), sy_tpl_none(), sy_tpl_int(-1, false)};
        return sy_tpl_slice(r, v, bound, out);
    }
    struct list *in = sy_tpl_to_list(r, v), *l = in ? sy_tpl_list(r, in->n) : NULL;
    for (size_t i = 0; l && i < in->n; i++) l->at[i] = in->at[in->n - 1 - i];
    if (!l || v->kind != V_ITER) return sy_tpl_iter(r, l, "reverse iterator", v->taint, out);
    *out = sy_tpl_of_list(V_LIST, l, v->taint);
    return true;
}

static bool items(struct run *r, const struct val *v, struct list **l)
{
    if (v->kind == V_UNDEF) return (*l = room(r, 0)) != NULL;
    if (v->kind != V_DICT) return sy_tpl_fail(r, SY_EARG, "items: expected a mapping, found '%s'", sy_tpl_type(v));
    struct view items_of = {v->dict, VIEW_ITEMS};
    struct val view = {.kind = V_VIEW, .taint = v->taint, .view = &items_of};
    return (*l = sy_tpl_to_list(r, &view)) != NULL;
}

static bool f_items(struct run *r, const struct val *arg, struct val *out)
{
    struct list *l = NULL;
    int depth = r->depth;
    bool good = items(r, &arg[0], &l);
    return generator(r, good, l, depth, arg[0].taint, out);
}

static bool f_join(struct run *r, const struct val *arg, struct val *out)
{
    struct path p = {0};
    struct walk w;
    struct val v;
    const struct str *sep = &sy_tpl_empty, *s;
    bool more = true;
    struct store *st = sy_tpl_store(r, 0);
    if (!st || (arg[1].kind != V_MISSING && !sy_tpl_str(r, &arg[1], &sep)) || !path_of(r, &arg[2], &p) ||
        !sy_tpl_walk(r, &arg[0], &w))
        return false;
    for (bool first = true;; first = false) {
        if (!sy_tpl_spend(r, 1) || !sy_tpl_next(r, &w, &v, &more)) return false;
        if (!more) return sy_tpl_took(r, st, out);
        if (!follow(r, &p, &v, &v) || !sy_tpl_str(r, &v, &s)) return false;
        if ((!first && !sy_tpl_add_str(r, st, sep)) || !sy_tpl_add_str(r, st, s)) return false;
    }
}

/* ---- ordering -------------------------------------------------------- */

static struct list *copied(struct run *r, const struct val *v)
{
    struct list *in = sy_tpl_to_list(r, v), *l = in && sy_tpl_spend(r, in->n) ? sy_tpl_list(r, in->n) : NULL;
    if (l && l->n) memcpy(l->at, in->at, l->n * sizeof *l->at);
    return l;
}

static bool sort_key(struct run *r, const struct path *path, size_t n, const struct val *item, struct val *key)
{
    struct list *l = sy_tpl_list(r, n);
    for (size_t i = 0; l && i < n; i++)
        if (!follow(r, &path[i], item, &l->at[i])) return false;
    if (l) *key = sy_tpl_of_list(V_LIST, l, false);
    return l != NULL;
}

static bool f_sort(struct run *r, const struct val *arg, struct val *out)
{
    enum { KEYS_MAX = 8 };
    struct path *path = sy_tpl_get(r, KEYS_MAX, sizeof *path);
    size_t n = 0;
    struct val names = arg[3];
    if (!path) return false;
    if (names.kind == V_STR) {
        static const struct str comma = {.at = ",", .n = 1, .n_char = 1, .trust = TRUSTED};
        struct val sep = sy_tpl_of_str(&comma), split;
        if (!sy_tpl_str_op(r, "split", names.s, &sep, 1, &split)) return false;
        if (split.list->n > KEYS_MAX) return sy_tpl_fail(r, SY_EARG, "sort: more than %d attributes", KEYS_MAX);
        for (; n < split.list->n; n++)
            if (!path_of(r, &split.list->at[n], &path[n])) return false;
    } else if (!path_of(r, &names, &path[n++])) {
        return false;
    }
    for (size_t i = 0; i < n; i++) path[i].ignore_case = !sy_tpl_truth(&arg[2]);
    struct list *l = copied(r, &arg[0]);
    struct val *key = l ? sy_tpl_get(r, l->n + 1, sizeof *key) : NULL;
    if (!key) return false;
    for (size_t i = 0; i < l->n; i++)
        if (!sort_key(r, path, n, &l->at[i], &key[i])) return false;
    *out = sy_tpl_of_list(V_LIST, l, sy_tpl_tainted(&arg[0]));
    return sy_tpl_sort(r, l->at, key, l->n, sy_tpl_truth(&arg[1]));
}

static bool f_dictsort(struct run *r, const struct val *arg, struct val *out)
{
    bool by_value = arg[2].kind == V_STR && sy_tpl_is(arg[2].s, "value");
    if (arg[0].kind == V_UNDEF) return sy_tpl_undef_fail(r, &arg[0]);
    if (arg[0].kind != V_DICT)
        return sy_tpl_fail(r, SY_EARG, "dictsort: expected a dict, found '%s'", sy_tpl_type(&arg[0]));
    if (arg[2].kind != V_MISSING && !by_value && !(arg[2].kind == V_STR && sy_tpl_is(arg[2].s, "key")))
        return sy_tpl_fail(r, SY_EARG, "dictsort: can sort by 'key' or 'value' only");
    struct view items = {arg[0].dict, VIEW_ITEMS};
    struct val view = {.kind = V_VIEW, .taint = arg[0].taint, .view = &items};
    struct list *l = sy_tpl_to_list(r, &view);
    struct val *key = l ? sy_tpl_get(r, l->n + 1, sizeof *key) : NULL;
    if (!key) return false;
    for (size_t i = 0; i < l->n; i++) {
        key[i] = l->at[i].list->at[by_value];
        if (!sy_tpl_truth(&arg[1]) && !fold(r, &key[i])) return false;
    }
    *out = sy_tpl_of_list(V_LIST, l, arg[0].taint);
    return sy_tpl_sort(r, l->at, key, l->n, sy_tpl_truth(&arg[3]));
}

static bool unique(struct run *r, const struct val *arg, struct list **l)
{
    struct path p = {.ignore_case = !sy_tpl_truth(&arg[1])};
    struct dict *seen = sy_tpl_dict(r, 0);
    struct list *in = sy_tpl_to_list(r, &arg[0]);
    if (!seen || !in || !(*l = room(r, in->n)) || !path_of(r, &arg[2], &p)) return false;
    for (size_t i = 0; i < in->n; i++) {
        struct val key;
        size_t before = seen->n;
        if (!follow(r, &p, &in->at[i], &key) || !sy_tpl_dict_set(r, seen, &key, &key)) return false;
        if (seen->n > before) (*l)->at[(*l)->n++] = in->at[i];
    }
    return true;
}

static bool f_unique(struct run *r, const struct val *arg, struct val *out)
{
    struct list *l = NULL;
    int depth = r->depth;
    bool good = unique(r, arg, &l);
    return generator(r, good, l, depth, sy_tpl_tainted(&arg[0]), out);
}

static bool extreme(struct run *r, const struct val *arg, bool max, struct val *out)
{
    struct path p = {.ignore_case = !sy_tpl_truth(&arg[1])};
    struct list *l = sy_tpl_to_list(r, &arg[0]);
    struct val best, key;
    if (!l || !path_of(r, &arg[2], &p)) return false;
    if (!l->n) return sy_tpl_undefined(r, NULL, NULL, "no aggregated item, the sequence was empty", out);
    for (size_t i = 0; i < l->n; i++) {
        bool better = i == 0;
        if (!sy_tpl_spend(r, 1) || !follow(r, &p, &l->at[i], &key)) return false;
        if (i && !sy_tpl_compare(r, CMP_LT, max ? &best : &key, max ? &key : &best, &better)) return false;
        if (!better) continue;
        best = key;
        *out = l->at[i];
    }
    return true;
}

static bool f_min(struct run *r, const struct val *arg, struct val *out) { return extreme(r, arg, false, out); }
static bool f_max(struct run *r, const struct val *arg, struct val *out) { return extreme(r, arg, true, out); }

static bool f_sum(struct run *r, const struct val *arg, struct val *out)
{
    struct path p = {0};
    struct walk w;
    struct val v, sum = arg[2].kind == V_MISSING ? sy_tpl_int(0, false) : arg[2];
    bool more = true;
    if (sum.kind == V_STR) return sy_tpl_fail(r, SY_EARG, "sum: strings cannot be summed; use join");
    if (!path_of(r, &arg[1], &p) || !sy_tpl_walk(r, &arg[0], &w)) return false;
    for (;;) {
        if (!sy_tpl_spend(r, 1) || !sy_tpl_next(r, &w, &v, &more)) return false;
        if (!more) break;
        struct val before = sum;
        if (!follow(r, &p, &v, &v) || !sy_tpl_arith(r, T_ADD, &before, &v, &sum)) return false;
    }
    *out = sum;
    return true;
}

/* ---- grouping -------------------------------------------------------- */

static bool add_row(struct run *r, struct list *l, const struct list *in, size_t from, size_t have, size_t want,
                    const struct val *fill, bool taint)
{
    struct list *row = sy_tpl_spend(r, want + 1) ? sy_tpl_list(r, want) : NULL;
    if (!row) return false;
    for (size_t k = 0; k < want; k++) row->at[k] = k < have ? in->at[from + k] : *fill;
    l->at[l->n++] = sy_tpl_of_list(V_LIST, row, taint);
    return true;
}

static bool batch(struct run *r, const struct val *arg, struct list **l)
{
    int64_t size;
    struct list *in = sy_tpl_to_list(r, &arg[0]);
    if (!in) return false;
    if (!sy_tpl_index(&arg[1], &size)) return sy_tpl_fail(r, SY_EARG, "batch: the size must be an integer");
    if (size > SY_TPL_RANGE_MAX && given(&arg[2]))
        return sy_tpl_fail(r, SY_ENOMEM, "batch: more than %d items", SY_TPL_RANGE_MAX);
    size_t by = size > 0 ? (size_t)size : SIZE_MAX / 2, n = in->n ? (in->n - 1) / by + 1 : 0;
    if (!(*l = room(r, n))) return false;
    for (size_t i = 0; i < n; i++) {
        size_t have = in->n - i * by < by ? in->n - i * by : by;
        size_t want = given(&arg[2]) && size > 0 ? by : have;
        if (!add_row(r, *l, in, i * by, have, want, &arg[2], sy_tpl_tainted(&arg[0]))) return false;
    }
    return true;
}

static bool f_batch(struct run *r, const struct val *arg, struct val *out)
{
    struct list *l = NULL;
    int depth = r->depth;
    bool good = batch(r, arg, &l);
    return generator(r, good, l, depth, sy_tpl_tainted(&arg[0]), out);
}

static bool slice(struct run *r, const struct val *arg, struct list **l)
{
    int64_t slices;
    struct list *in = sy_tpl_to_list(r, &arg[0]);
    if (!in) return false;
    if (!sy_tpl_index(&arg[1], &slices)) return sy_tpl_fail(r, SY_EARG, "slice: the number must be an integer");
    if (slices == 0) return sy_tpl_fail(r, SY_EARG, "slice: division by zero");
    if (slices > SY_TPL_RANGE_MAX) return sy_tpl_fail(r, SY_ENOMEM, "slice: more than %d slices", SY_TPL_RANGE_MAX);
    if (slices < 0) slices = 0;
    size_t n = (size_t)slices, each = n ? in->n / n : 0, extra = n ? in->n % n : 0, from = 0;
    if (!(*l = room(r, n))) return false;
    for (size_t i = 0; i < n; i++) {
        size_t have = each + (i < extra), want = have + (given(&arg[2]) && i >= extra);
        if (!add_row(r, *l, in, from, have, want, &arg[2], sy_tpl_tainted(&arg[0]))) return false;
        from += have;
    }
    return true;
}

static bool f_slice(struct run *r, const struct val *arg, struct val *out)
{
    struct list *l = NULL;
    int depth = r->depth;
    bool good = slice(r, arg, &l);
    return generator(r, good, l, depth, sy_tpl_tainted(&arg[0]), out);
}

static bool group(struct run *r, const struct list *items, size_t from, size_t to, const struct path *p,
                  struct val *out)
{
    struct list *members = sy_tpl_list(r, to - from), *pair = sy_tpl_list(r, 2);
    if (!members || !pair) return false;
    memcpy(members->at, items->at + from, (to - from) * sizeof *members->at);
    struct path real = *p;
    real.ignore_case = false; /* the key shows as the first member has it */
    if (!follow(r, &real, &members->at[0], &pair->at[0])) return false;
    pair->at[1] = sy_tpl_of_list(V_LIST, members, false);
    pair->group = true;
    *out = sy_tpl_of_list(V_TUPLE, pair, false);
    return true;
}

static bool f_groupby(struct run *r, const struct val *arg, struct val *out)
{
    struct path p = {.ignore_case = !sy_tpl_truth(&arg[3]), .otherwise = given(&arg[2]) ? &arg[2] : NULL};
    struct list *l = copied(r, &arg[0]);
    struct val *key = l && path_of(r, &arg[1], &p) ? sy_tpl_get(r, l->n + 1, sizeof *key) : NULL;
    if (!key) return false;
    for (size_t i = 0; i < l->n; i++)
        if (!follow(r, &p, &l->at[i], &key[i])) return false;
    if (!sy_tpl_sort(r, l->at, key, l->n, false)) return false;
    struct list *groups = sy_tpl_list(r, l->n);
    size_t n = 0;
    for (size_t from = 0, to; groups && from < l->n; from = to) {
        bool same = true;
        for (to = from + 1; to < l->n; to++) {
            if (!sy_tpl_equal(r, &key[from], &key[to], &same)) return false;
            if (!same) break;
        }
        if (!group(r, l, from, to, &p, &groups->at[n++])) return false;
    }
    if (!groups) return false;
    groups->n = n;
    *out = sy_tpl_of_list(V_LIST, groups, false);
    return true;
}

const struct filter sy_tpl_list_filters[] = {
    {"batch", f_batch, {"linecount", "fill_with"}, 1, NULL},
    {"count", f_length, {0}, 0, NULL},
    {"dictsort", f_dictsort, {"case_sensitive", "by", "reverse"}, 0, NULL},
    {"first", f_first, {0}, 0, NULL},
    {"groupby", f_groupby, {"attribute", "default", "case_sensitive"}, 1, NULL},
    {"items", f_items, {0}, 0, NULL},
    {"join", f_join, {"d", "attribute"}, 0, NULL},
    {"last", f_last, {0}, 0, NULL},
    {"length", f_length, {0}, 0, NULL},
    {"list", f_list, {0}, 0, NULL},
    {"map", NULL, {0}, 0, f_map},
    {"max", f_max, {"case_sensitive", "attribute"}, 0, NULL},
    {"min", f_min, {"case_sensitive", "attribute"}, 0, NULL},
    {"reject", NULL, {0}, 0, f_reject},
    {"rejectattr", NULL, {0}, 0, f_rejectattr},
    {"reverse", f_reverse, {0}, 0, NULL},
    {"select", NULL, {0}, 0, f_select},
    {"selectattr", NULL, {0}, 0, f_selectattr},
    {"slice", f_slice, {"slices", "fill_with"}, 1, NULL},
    {"sort", f_sort, {"reverse", "case_sensitive", "attribute"}, 0, NULL},
    {"sum", f_sum, {"attribute", "start"}, 0, NULL},
    {"unique", f_unique, {"case_sensitive", "attribute"}, 0, NULL},
    {.name = NULL},
};
