/* template_eval.c - expressions: a walk over the nodes, in Python's order of evaluation. */
#include <string.h>

#include "text/template_int.h"

static bool eval_name(struct run *r, struct frame *f, const struct node *n, struct val *out)
{
    for (unsigned up = n->ref.up; up; up--) f = f->parent;
    *out = f->slot[n->ref.slot];
    return out->kind != V_MISSING || sy_tpl_undefined(r, n->text, NULL, NULL, out);
}

static bool eval_list(struct run *r, struct frame *f, const struct node *n, struct val *out)
{
    struct list *l = sy_tpl_list(r, n->n_kid);
    for (size_t i = 0; l && i < n->n_kid; i++)
        if (!sy_tpl_eval(r, f, n->kid[i], &l->at[i])) return false;
    if (l) *out = sy_tpl_of_list(n->kind == E_LIST ? V_LIST : V_TUPLE, l, false);
    return l != NULL;
}

static bool eval_dict(struct run *r, struct frame *f, const struct node *n, struct val *out)
{
    struct dict *d = sy_tpl_dict(r, n->n_kid / 2);
    for (size_t i = 0; d && i < n->n_kid; i += 2) {
        struct val key, value;
        if (!sy_tpl_eval(r, f, n->kid[i], &key) || !sy_tpl_eval(r, f, n->kid[i + 1], &value) ||
            !sy_tpl_dict_set(r, d, &key, &value))
            return false;
    }
    if (d) *out = (struct val){.kind = V_DICT, .dict = d};
    return d != NULL;
}

static bool eval_concat(struct run *r, struct frame *f, const struct node *n, struct val *out)
{
    const struct str *all = &sy_tpl_empty, *s;
    for (size_t i = 0; i < n->n_kid; i++) {
        struct val v;
        if (!sy_tpl_eval(r, f, n->kid[i], &v) || !sy_tpl_str(r, &v, &s) || !(all = sy_tpl_concat(r, all, s)))
            return false;
    }
    if (all->markup && !(all = sy_tpl_marked(r, all, false))) return false;
    *out = sy_tpl_of_str(all);
    return true;
}

static bool eval_compare(struct run *r, struct frame *f, const struct node *n, struct val *out)
{
    struct val left, right;
    bool yes = true, taint = false;
    if (!sy_tpl_eval(r, f, n->a, &left)) return false;
    for (size_t i = 0; i < n->n_kid && yes; i++) {
        if (!sy_tpl_eval(r, f, n->kid[i]->a, &right)) return false;
        r->line = n->kid[i]->line;
        if (!sy_tpl_compare(r, (enum compare_op)n->kid[i]->op, &left, &right, &yes)) return false;
        taint |= left.taint || right.taint;
        left = right;
    }
    *out = sy_tpl_bool(yes, taint);
    return true;
}

static bool eval_logic(struct run *r, struct frame *f, const struct node *n, struct val *out)
{
    if (!sy_tpl_eval(r, f, n->a, out)) return false;
    if (n->kind == E_NOT) {
        *out = sy_tpl_bool(!sy_tpl_truth(out), out->taint);
        return true;
    }
    return sy_tpl_truth(out) == (n->kind == E_OR) || sy_tpl_eval(r, f, n->b, out);
}

static bool eval_cond(struct run *r, struct frame *f, const struct node *n, struct val *out)
{
    struct val test;
    if (!sy_tpl_eval(r, f, n->a, &test)) return false;
    if (sy_tpl_truth(&test)) return sy_tpl_eval(r, f, n->b, out);
    if (n->c) return sy_tpl_eval(r, f, n->c, out);
    return sy_tpl_undefined(r, NULL, NULL, "the inline if was false and has no else", out);
}

static bool eval_item(struct run *r, struct frame *f, const struct node *n, struct val *out)
{
    struct val of, key, bound[3] = {sy_tpl_none(), sy_tpl_none(), sy_tpl_none()};
    const struct node *k = n->b;
    if (!sy_tpl_eval(r, f, n->a, &of)) return false;
    if (k->kind != E_SLICE) {
        if (!sy_tpl_eval(r, f, k, &key)) return false;
        r->line = n->line;
        return sy_tpl_item(r, &of, &key, out);
    }
    const struct node *parts[] = {k->a, k->b, k->c};
    for (int i = 0; i < 3; i++)
        if (parts[i] && !sy_tpl_eval(r, f, parts[i], &bound[i])) return false;
    r->line = n->line;
    return sy_tpl_slice(r, &of, bound, out);
}

/* ---- calls -------------------------------------------------------- */

static bool star_args(struct run *r, const struct val *v, struct args *args)
{
    struct list *more = sy_tpl_to_list(r, v);
    struct val *at = more && sy_tpl_spend(r, more->n) ? sy_tpl_get(r, args->n + more->n + 1, sizeof *at) : NULL;
    if (!at) return false;
    if (args->n) memcpy(at, args->at, args->n * sizeof *at);
    if (more->n) memcpy(at + args->n, more->at, more->n * sizeof *at);
    args->at = at;
    args->n += more->n;
    return true;
}

static bool star_kwargs(struct run *r, const struct val *v, struct args *args, size_t extra_kw)
{
    if (v->kind != V_DICT) return sy_tpl_fail(r, SY_EARG, "** needs a dict, found '%s'", sy_tpl_type(v));
    const struct dict *d = v->dict;
    struct named *kw = sy_tpl_spend(r, d->n) ? sy_tpl_get(r, args->n_kw + d->n + extra_kw + 1, sizeof *kw) : NULL;
    if (!kw) return false;
    if (args->n_kw) memcpy(kw, args->kw, args->n_kw * sizeof *kw);
    args->kw = kw;
    size_t n_own = args->n_kw;
    for (size_t i = 0; i < d->n; i++) {
        if (d->at[i].key.kind != V_STR) return sy_tpl_fail(r, SY_EARG, "** needs a dict whose keys are strings");
        const struct str *name = d->at[i].key.s;
        if (!sy_tpl_spend(r, n_own / 4)) return false;
        for (size_t k = 0; k < n_own; k++)
            if (kw[k].name->n == name->n && !memcmp(kw[k].name->at, name->at, name->n))
                return sy_tpl_fail(r, SY_EARG, "the argument '%.*s' is given twice",
                                   (int)(name->n < 60 ? name->n : 60), name->at);
        kw[args->n_kw++] = (struct named){name, d->at[i].value};
    }
    return true;
}

bool sy_tpl_arguments(struct run *r, struct frame *f, const struct node *n, struct args *args, size_t extra_kw)
{
    struct val v;
    *args = (struct args){.n = n->n_kid, .n_kw = n->n_kw};
    if (n->n_kid && !(args->at = sy_tpl_get(r, n->n_kid, sizeof *args->at))) return false;
    if (n->n_kw + extra_kw && !(args->kw = sy_tpl_get(r, n->n_kw + extra_kw, sizeof *args->kw))) return false;
    for (size_t i = 0; i < n->n_kid; i++)
        if (!sy_tpl_eval(r, f, n->kid[i], &args->at[i])) return false;
    for (size_t i = 0; i < n->n_kw; i++) {
        args->kw[i].name = n->kw[i].name;
        if (!sy_tpl_eval(r, f, n->kw[i].value, &args->kw[i].value)) return false;
    }
    if (n->b && (!sy_tpl_eval(r, f, n->b, &v) || !star_args(r, &v, args))) return false;
    return !n->c || (sy_tpl_eval(r, f, n->c, &v) && star_kwargs(r, &v, args, extra_kw));
}

static bool call_joiner(struct run *r, struct joiner *j, const struct args *args, struct val *out)
{
    if (args->n || args->n_kw) return sy_tpl_fail(r, SY_EARG, "a joiner takes no arguments");
    *out = sy_tpl_of_str(j->used ? j->sep : &sy_tpl_empty);
    j->used = true;
    return true;
}

bool sy_tpl_call(struct run *r, const struct val *callee, const struct args *args, struct val *out)
{
    switch (callee->kind) {
    case V_MACRO: return sy_tpl_call_macro(r, callee->macro, args, out);
    case V_METHOD: return sy_tpl_method_call(r, callee->method, args, out);
    case V_FUNC: return callee->func->call(r, args, out);
    case V_LOOP: return sy_tpl_call_loop(r, callee->loop, args, out);
    case V_JOINER: return call_joiner(r, callee->joiner, args, out);
    case V_UNDEF: return sy_tpl_undef_fail(r, callee);
    default: return sy_tpl_fail(r, SY_EARG, "a %s cannot be called", sy_tpl_type(callee));
    }
}

static bool eval_call(struct run *r, struct frame *f, const struct node *n, struct val *out)
{
    struct val callee;
    struct args args;
    if (!sy_tpl_eval(r, f, n->a, &callee) || !sy_tpl_arguments(r, f, n, &args, 0)) return false;
    r->line = n->line;
    return sy_tpl_call(r, &callee, &args, out);
}

static bool unknown(struct run *r, const struct node *n)
{
    const char *why = n->kind == E_FILTER ? sy_tpl_refused_filter(n->text->at, n->text->n) : NULL;
    r->line = n->line;
    if (why) return sy_tpl_fail(r, SY_ENOSUP, "the filter '%.60s' is not supported: %s", n->text->at, why);
    return sy_tpl_fail(r, SY_EARG, "no %s named '%.60s'", n->kind == E_FILTER ? "filter" : "test", n->text->at);
}

static bool eval_filter(struct run *r, struct frame *f, const struct node *n, struct val *out)
{
    struct val v;
    struct args args;
    if (!n->fn) return unknown(r, n);
    if (!sy_tpl_eval(r, f, n->a, &v) || !sy_tpl_arguments(r, f, n, &args, 0)) return false;
    r->line = n->line;
    if (n->kind == E_FILTER) return sy_tpl_filter_call(r, n->fn, &v, &args, out);
    bool yes;
    if (!sy_tpl_test_call(r, n->fn, &v, &args, &yes)) return false;
    *out = sy_tpl_bool(yes, v.taint);
    return true;
}

static bool eval_arith(struct run *r, struct frame *f, const struct node *n, struct val *out)
{
    struct val a, b;
    if (!sy_tpl_eval(r, f, n->a, &a)) return false;
    if (n->kind == E_BINARY && !sy_tpl_eval(r, f, n->b, &b)) return false;
    r->line = n->line;
    if (n->kind != E_BINARY) return sy_tpl_negate(r, &a, n->kind == E_NEG, out);
    return sy_tpl_arith(r, (enum token_kind)n->op, &a, &b, out);
}

static bool eval_attr(struct run *r, struct frame *f, const struct node *n, struct val *out)
{
    struct val of;
    if (!sy_tpl_eval(r, f, n->a, &of)) return false;
    r->line = n->line;
    return sy_tpl_attr(r, &of, n->text, out);
}

static bool dispatch(struct run *r, struct frame *f, const struct node *n, struct val *out)
{
    switch (n->kind) {
    case E_TUPLE:
    case E_LIST: return eval_list(r, f, n, out);
    case E_DICT: return eval_dict(r, f, n, out);
    case E_NOT:
    case E_AND:
    case E_OR: return eval_logic(r, f, n, out);
    case E_NEG:
    case E_POS:
    case E_BINARY: return eval_arith(r, f, n, out);
    case E_CONCAT: return eval_concat(r, f, n, out);
    case E_COMPARE: return eval_compare(r, f, n, out);
    case E_COND: return eval_cond(r, f, n, out);
    case E_ATTR: return eval_attr(r, f, n, out);
    case E_ITEM: return eval_item(r, f, n, out);
    case E_CALL: return eval_call(r, f, n, out);
    default: return eval_filter(r, f, n, out); /* and E_TEST */
    }
}

bool sy_tpl_eval(struct run *r, struct frame *f, const struct node *n, struct val *out)
{
    if (!n || n->kind == E_CONST) { /* no node: the text a filter block has captured, put there by its owner */
        *out = n ? n->value : r->captured;
        return true;
    }
    r->line = n->line;
    if (!sy_tpl_enter(r)) return false;
    bool good = n->kind == E_NAME ? eval_name(r, f, n, out) : dispatch(r, f, n, out);
    r->depth--;
    return good;
}

bool sy_tpl_assign(struct run *r, struct frame *f, const struct node *target, const struct val *v)
{
    if (target->kind == E_TUPLE) {
        struct list *l = sy_tpl_is_iterable(v) ? sy_tpl_to_list(r, v) : NULL;
        if (!l && r->st == SY_OK) return sy_tpl_fail(r, SY_EARG, "cannot unpack a %s", sy_tpl_type(v));
        if (!l) return false;
        if (l->n != target->n_kid)
            return sy_tpl_fail(r, SY_EARG, "cannot unpack %zu values into %zu names", l->n, target->n_kid);
        for (size_t i = 0; i < l->n; i++)
            if (!sy_tpl_assign(r, f, target->kid[i], &l->at[i])) return false;
        return true;
    }
    for (unsigned up = target->ref.up; up; up--) f = f->parent;
    struct val *slot = &f->slot[target->ref.slot];
    if (target->kind == E_NAME) {
        *slot = *v;
        return true;
    }
    const struct str *name = target->value.s;
    if (slot->kind != V_NS) return sy_tpl_fail(r, SY_EARG, "cannot assign an attribute to what is not a namespace");
    if (name->n && name->at[0] == '_')
        return sy_tpl_fail(r, SY_EARG, "a namespace cannot have an attribute that begins with '_', found '%.60s'",
                           name->at);
    return sy_tpl_dict_set(r, slot->dict, &target->value, v);
}
