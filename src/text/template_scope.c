/* template_scope.c - names become slots of frames, by jinja2's static rules: which block a name belongs to is decided
 * by the source, not by what ran before. A loop, macro, call, filter, with, generation or set block is a scope; an
 * if is not. A name first seen as assigned, outside of any if, hides what the caller gave under that name. */
#include <string.h>

#include "text/template_int.h"

enum { SLOTS_MAX = 4096 };
/* Comparisons of names while compiling; real templates need some ten thousand. */
enum { WORK_MAX = 20000000 };

struct cx {
    struct compile *c;
    size_t work;
    int in_for;
};

static bool same(const struct str *a, const struct str *b) { return a->n == b->n && !memcmp(a->at, b->at, a->n); }

static int own_slot(struct cx *x, const struct scope *s, const struct str *name)
{
    for (size_t i = 0; i < s->n; i++) {
        x->work++;
        if (same(s->slot[i].name, name)) return (int)i;
    }
    return -1;
}

static bool find(struct cx *x, const struct scope *s, const struct str *name, struct ref *ref)
{
    unsigned up = 0;
    for (; s; s = s->parent, up++) {
        int slot = own_slot(x, s, name);
        if (slot < 0) continue;
        *ref = (struct ref){(uint16_t)up, (uint16_t)slot};
        return true;
    }
    return false;
}

static int add(struct cx *x, struct scope *s, const struct str *name, enum slot_action action)
{
    if (s->n == SLOTS_MAX || x->work > WORK_MAX) {
        sy_tpl_error(x->c, SY_EFORMAT, 1, "more names than a template may use (%d in one block)", SLOTS_MAX);
        return -1;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 8;
        struct slot *slot = sy_tpl_alloc(x->c, cap, sizeof *slot);
        if (!slot) return -1;
        if (s->n) memcpy(slot, s->slot, s->n * sizeof *slot);
        s->slot = slot;
        s->cap = cap;
    }
    s->slot[s->n] = (struct slot){.name = name, .action = action};
    return (int)s->n++;
}

static bool load(struct cx *x, struct scope *s, const struct str *name)
{
    struct ref ref;
    return find(x, s, name, &ref) || add(x, s, name, SLOT_RESOLVE) >= 0;
}

static bool store(struct cx *x, struct scope *s, const struct str *name, bool in_if)
{
    if (own_slot(x, s, name) >= 0) return true;
    struct ref outer;
    bool has_outer = s->parent && find(x, s->parent, name, &outer);
    int slot = add(x, s, name, has_outer ? SLOT_ALIAS : in_if ? SLOT_RESOLVE : SLOT_UNDEFINED);
    if (slot < 0) return false;
    if (has_outer) s->slot[slot].outer = (struct ref){(uint16_t)(outer.up + 1), outer.slot};
    return true;
}

static int param(struct cx *x, struct scope *s, const struct str *name)
{
    int slot = own_slot(x, s, name);
    if (slot < 0) return add(x, s, name, SLOT_PARAM);
    s->slot[slot].action = SLOT_PARAM;
    return slot;
}

static bool target_params(struct cx *x, struct scope *s, const struct node *target)
{
    if (target->kind == E_NAME) return param(x, s, target->text) >= 0;
    for (size_t i = 0; i < target->n_kid; i++)
        if (!target_params(x, s, target->kid[i])) return false;
    return true;
}

/* ---- first pass over a scope: which names it has -------------------------------------------------------- */

static bool visit(struct cx *x, struct scope *s, const struct node *n, bool in_if)
{
    if (!n) return true;
    switch (n->kind) {
    case E_NAME: return n->flag ? store(x, s, n->text, in_if) : load(x, s, n->text);
    case E_NSREF: return load(x, s, n->text);
    case S_MACRO: return store(x, s, n->text, in_if);
    case S_SET: return visit(x, s, n->b, in_if) && visit(x, s, n->a, in_if);
    case S_SET_BLOCK: /* their bodies are scopes of their own */
    case S_CALL:
    case S_FILTER: return visit(x, s, n->a, in_if);
    case S_FOR: return visit(x, s, n->b, in_if);
    case S_GENERATION: return true;
    case S_WITH:
        for (size_t i = 1; i + 1 < n->n_kid; i += 2)
            if (!visit(x, s, n->kid[i], in_if)) return false;
        return true;
    case S_IF:
        for (size_t i = 0; i < n->n_kid; i++)
            if (!visit(x, s, n->kid[i], in_if || i > 0)) return false;
        return visit(x, s, n->a, true);
    default: break;
    }
    if (!visit(x, s, n->a, in_if) || !visit(x, s, n->b, in_if) || !visit(x, s, n->c, in_if)) return false;
    for (size_t i = 0; i < n->n_kid; i++)
        if (!visit(x, s, n->kid[i], in_if)) return false;
    for (size_t i = 0; i < n->n_kw; i++)
        if (!visit(x, s, n->kw[i].value, in_if)) return false;
    return true;
}

/* Is the name read anywhere inside, before something there assigns it? 1: read, -1: assigned, 0: neither. */
static int uses(const struct node *n, const char *name)
{
    if (!n) return 0;
    if (n->kind == E_NAME && !strcmp(n->text->at, name)) return n->flag ? -1 : 1;
    const struct node *order[] = {n->a, n->b, n->kind == S_FOR ? NULL : n->c};
    int found = 0;
    for (size_t i = 0; i < SY_COUNT(order) && !found; i++) found = uses(order[i], name);
    for (size_t i = 0; i < n->n_kw && !found; i++) {
        if (n->kind >= S_BODY && !strcmp(n->kw[i].name->at, name)) found = -1;
        else found = uses(n->kw[i].value, name);
    }
    for (size_t i = 0; i < n->n_kid && !found; i++) found = uses(n->kid[i], name);
    if (n->kind == S_FOR && !found) found = uses(n->c, name);
    return found;
}

/* ---- second pass: every name knows its slot -------------------------------------------------------- */

static bool resolve(struct cx *x, struct scope *s, struct node *n, bool soft);

static struct scope *inner(struct cx *x, struct scope *parent)
{
    struct scope *s = sy_tpl_alloc(x->c, 1, sizeof *s);
    if (!s) return NULL;
    *s = (struct scope){.parent = parent, .loop = -1, .caller = -1, .kwargs = -1, .varargs = -1};
    return s;
}

static bool special(struct cx *x, struct scope *s, const struct node *body, const char *name, int *slot)
{
    if (uses(body, name) <= 0) return true;
    const struct str *text = sy_tpl_literal(x->c, name, strlen(name));
    return text && (*slot = param(x, s, text)) >= 0;
}

/* A macro, call block or generation block: parameters, then whatever of caller, kwargs, varargs the body reads. */
static bool function(struct cx *x, struct scope *s, struct node *n)
{
    struct scope *f = n->scope = inner(x, s);
    struct node *body = n->kid[0];
    bool own[3] = {0};
    if (!f) return false;
    for (size_t i = 0; i < n->n_kw; i++) {
        if (param(x, f, n->kw[i].name) < 0) return false;
        bool is_caller = !strcmp(n->kw[i].name->at, "caller");
        if (is_caller && !n->kw[i].value && uses(body, "caller") > 0)
            return sy_tpl_error(x->c, SY_EFORMAT, n->line, "the parameter 'caller' needs a default");
        own[0] |= is_caller;
        own[1] |= !strcmp(n->kw[i].name->at, "kwargs");
        own[2] |= !strcmp(n->kw[i].name->at, "varargs");
    }
    if ((!own[0] && !special(x, f, body, "caller", &f->caller)) ||
        (!own[1] && !special(x, f, body, "kwargs", &f->kwargs)) ||
        (!own[2] && !special(x, f, body, "varargs", &f->varargs)))
        return false;
    for (size_t i = 0; i < n->n_kw; i++)
        if (!visit(x, f, n->kw[i].value, false)) return false;
    if (!visit(x, f, body, false)) return false;
    for (size_t i = 0; i < n->n_kw; i++)
        if (!resolve(x, f, n->kw[i].value, false)) return false;
    return resolve(x, f, body, false);
}

static bool resolve_for(struct cx *x, struct scope *s, struct node *n, bool soft)
{
    if (!resolve(x, s, n->b, soft)) return false;
    struct scope *body = n->scope = inner(x, s), *test = n->scope2 = inner(x, s), *other = n->scope3 = inner(x, s);
    if (!body || !test || !other) return false;
    /* The target has the same slots in the body's and in the test's frame: it comes first in both. */
    if (!target_params(x, body, n->a) || !target_params(x, test, n->a)) return false;
    if (n->flag || uses(n->kid[0], "loop") > 0) {
        const struct str *text = sy_tpl_literal(x->c, "loop", 4);
        if (!text || (body->loop = param(x, body, text)) < 0) return false;
    }
    if (!visit(x, body, n->kid[0], false) || !visit(x, test, n->c, false)) return false;
    if (n->n_kid > 1 && !visit(x, other, n->kid[1], false)) return false;
    x->in_for++;
    bool good = resolve(x, body, n->a, false) && resolve(x, body, n->kid[0], false) &&
                resolve(x, test, n->c, false) && (n->n_kid < 2 || resolve(x, other, n->kid[1], false));
    x->in_for--;
    return good;
}

static bool resolve_with(struct cx *x, struct scope *s, struct node *n, bool soft)
{
    struct scope *w = n->scope = inner(x, s);
    if (!w) return false;
    size_t pairs = n->n_kid - 1;
    for (size_t i = 0; i < pairs; i += 2)
        if (!target_params(x, w, n->kid[i]) || !resolve(x, s, n->kid[i + 1], soft)) return false;
    if (!visit(x, w, n->kid[pairs], false)) return false;
    int in_for = x->in_for;
    x->in_for = 0; /* with may name something 'loop' */
    for (size_t i = 0; i < pairs; i += 2)
        if (!resolve(x, w, n->kid[i], false)) return false;
    x->in_for = in_for;
    return resolve(x, w, n->kid[pairs], false);
}

/* {% filter %} and {% set x %}: a body and filters over it, in one scope. */
static bool resolve_captured(struct cx *x, struct scope *s, struct node *n, struct node *filters)
{
    n->scope = inner(x, s);
    return n->scope && visit(x, n->scope, filters, false) && visit(x, n->scope, n->kid[0], false) &&
           resolve(x, n->scope, filters, false) && resolve(x, n->scope, n->kid[0], false);
}

static bool resolve_name(struct cx *x, struct scope *s, struct node *n)
{
    if (n->kind == E_NAME && n->flag && x->in_for && !strcmp(n->text->at, "loop"))
        return sy_tpl_error(x->c, SY_EFORMAT, n->line, "cannot assign to 'loop' inside a for");
    if (!load(x, s, n->text)) return false;
    return find(x, s, n->text, &n->ref);
}

static bool check_known(struct cx *x, struct node *n, bool soft)
{
    bool is_filter = n->kind == E_FILTER;
    if (n->fn || soft) return true; /* jinja2 leaves what stands under an if to the rendering */
    const char *why = is_filter ? sy_tpl_refused_filter(n->text->at, n->text->n) : NULL;
    if (why)
        return sy_tpl_error(x->c, SY_ENOSUP, n->line, "the filter '%.60s' is not supported: %s", n->text->at, why);
    return sy_tpl_error(x->c, SY_EFORMAT, n->line, "no %s named '%.60s'", is_filter ? "filter" : "test", n->text->at);
}

static bool resolve(struct cx *x, struct scope *s, struct node *n, bool soft)
{
    if (!n) return true;
    switch (n->kind) {
    case E_NAME:
    case E_NSREF: return resolve_name(x, s, n);
    case E_FILTER:
    case E_TEST:
        if (!check_known(x, n, soft)) return false;
        break;
    case E_COND:
    case S_IF: soft = true; break;
    case S_FOR: return resolve_for(x, s, n, soft);
    case S_WITH: return resolve_with(x, s, n, soft);
    case S_FILTER: return resolve_captured(x, s, n, n->a);
    case S_SET_BLOCK: return resolve(x, s, n->a, soft) && resolve_captured(x, s, n, n->b);
    case S_MACRO: return find(x, s, n->text, &n->ref) && function(x, s, n);
    case S_CALL: return resolve(x, s, n->a, soft) && function(x, s, n);
    case S_GENERATION: return function(x, s, n);
    default: break;
    }
    if (!resolve(x, s, n->a, soft) || !resolve(x, s, n->b, soft) || !resolve(x, s, n->c, soft)) return false;
    for (size_t i = 0; i < n->n_kid; i++)
        if (!resolve(x, s, n->kid[i], soft)) return false;
    for (size_t i = 0; i < n->n_kw; i++)
        if (!resolve(x, s, n->kw[i].value, soft)) return false;
    return x->work <= WORK_MAX || sy_tpl_error(x->c, SY_EFORMAT, n->line, "more names than a template may use");
}

struct scope *sy_tpl_analyse(struct compile *c, struct node *root)
{
    struct cx x = {.c = c};
    struct scope *s = inner(&x, NULL);
    return s && visit(&x, s, root, false) && resolve(&x, s, root, false) ? s : NULL;
}
