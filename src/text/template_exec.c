/* template_exec.c - statements: output, ifs, loops, assignments, macros. */
#include <string.h>

#include "text/template_int.h"

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAIL };
enum { SPANS_MAX = 1 << 20 };

static enum flow run_body(struct run *r, struct frame *f, const struct node *body);

/* ---- output -------------------------------------------------------- */

static bool mark(struct run *r, size_t lo, size_t hi, bool trusted)
{
    struct sy_rendered *o = r->out;
    if (o->n_span && o->span[o->n_span - 1].trusted == trusted) {
        o->span[o->n_span - 1].hi = hi;
        return true;
    }
    if (o->n_span == r->cap_span) {
        size_t cap = r->cap_span ? 2 * r->cap_span : 64;
        if (cap > SPANS_MAX)
            return sy_tpl_fail(r, SY_ENOMEM, "the output changes its origin more than %d times", SPANS_MAX);
        struct sy_span *s = sy_resize(r->env, o->span, r->cap_span * sizeof *s, cap * sizeof *s);
        if (!s) return sy_tpl_fail(r, SY_ENOMEM, "no memory for the spans of the output");
        o->span = s;
        r->cap_span = cap;
    }
    o->span[o->n_span++] = (struct sy_span){lo, hi, trusted};
    return true;
}

bool sy_tpl_emit(struct run *r, const struct str *s)
{
    if (r->capture) return sy_tpl_add_str(r, r->capture, s);
    struct sy_buf *b = &r->out->text;
    size_t at = b->len;
    bool trusted;
    sy_buf_add(b, s->at, s->n);
    if (b->failed) {
        bool full = s->n > b->limit || b->len > b->limit - s->n;
        if (full) return sy_tpl_fail(r, SY_ENOMEM, "the output is larger than the %zu bytes it may have", b->limit);
        return sy_tpl_fail(r, SY_ENOMEM, "no memory for the output");
    }
    for (size_t i = 0, end; i < s->n; i = end) {
        end = sy_tpl_piece(s, i, &trusted);
        if (!mark(r, at + i, at + end, trusted)) return false;
    }
    return sy_tpl_spend(r, s->n / 64);
}

static bool emit_value(struct run *r, const struct val *v)
{
    const struct str *s;
    return sy_tpl_str(r, v, &s) && sy_tpl_emit(r, s);
}

/* Runs the body with its output going into a text. */
static enum flow capture(struct run *r, struct frame *f, const struct node *body, struct val *out)
{
    struct store *outer = r->capture;
    r->capture = sy_tpl_store(r, 0);
    enum flow flow = r->capture ? run_body(r, f, body) : FLOW_FAIL;
    if (flow == FLOW_ON && !sy_tpl_took(r, r->capture, out)) flow = FLOW_FAIL;
    r->capture = outer;
    return flow;
}

/* ---- frames -------------------------------------------------------- */

static void enter_frame(struct run *r, struct frame *f)
{
    const struct scope *s = f->scope;
    for (size_t i = 0; i < s->n; i++) {
        const struct slot *slot = &s->slot[i];
        if (slot->action == SLOT_PARAM) continue;
        f->slot[i] = (struct val){.kind = V_MISSING};
        if (slot->action == SLOT_RESOLVE) {
            const struct val *v = sy_tpl_dict_text(r->vars, slot->name->at, slot->name->n);
            const struct func *g = v ? NULL : sy_tpl_global(slot->name->at, slot->name->n);
            if (v) f->slot[i] = *v;
            else if (g) f->slot[i] = (struct val){.kind = V_FUNC, .func = g};
        } else if (slot->action == SLOT_ALIAS) {
            const struct frame *from = f;
            for (unsigned up = slot->outer.up; up; up--) from = from->parent;
            f->slot[i] = from->slot[slot->outer.slot];
        }
    }
    sy_tpl_cost(r, s->n / 4);
}

struct frame *sy_tpl_frame(struct run *r, struct frame *parent, const struct scope *scope)
{
    struct frame *f = sy_tpl_get(r, 1, sizeof *f + scope->n * sizeof f->slot[0]);
    if (!f) return NULL;
    f->parent = parent;
    f->scope = scope;
    enter_frame(r, f); /* memory comes zeroed: parameters are V_MISSING */
    return f;
}

/* ---- macros -------------------------------------------------------- */

static const char *macro_name(const struct node *def) { return def->kind == S_MACRO ? def->text->at : "caller"; }

/* Named arguments: to parameters no position has filled, to caller, or left over for kwargs. */
static bool bind_named(struct run *r, const struct node *def, struct frame *f, const struct args *args)
{
    const struct scope *s = def->scope;
    struct dict *rest = NULL;
    struct val caller = {.kind = V_MISSING};
    for (size_t k = 0; k < args->n_kw; k++) {
        const struct named *a = &args->kw[k];
        size_t i = args->n < def->n_kw ? args->n : def->n_kw;
        if (!sy_tpl_spend(r, def->n_kw / 4)) return false;
        while (i < def->n_kw &&
               (def->kw[i].name->n != a->name->n || memcmp(def->kw[i].name->at, a->name->at, a->name->n)))
            i++;
        if (i < def->n_kw) {
            f->slot[i] = a->value;
            continue;
        }
        if (s->caller >= 0 && sy_tpl_is(a->name, "caller")) {
            caller = a->value;
            continue;
        }
        if (s->kwargs < 0)
            return sy_tpl_fail(r, SY_EARG, "macro '%.60s' takes no keyword argument '%.*s'", macro_name(def),
                               (int)(a->name->n < 60 ? a->name->n : 60), a->name->at);
        struct val key = sy_tpl_of_str(a->name);
        if ((!rest && !(rest = sy_tpl_dict(r, 0))) || !sy_tpl_dict_set(r, rest, &key, &a->value)) return false;
    }
    if (s->kwargs >= 0) {
        if (!rest && !(rest = sy_tpl_dict(r, 0))) return false;
        f->slot[s->kwargs] = (struct val){.kind = V_DICT, .dict = rest};
    }
    if (s->caller < 0) return true;
    if ((caller.kind == V_MISSING || caller.kind == V_NONE) &&
        !sy_tpl_undefined(r, NULL, NULL, "no caller defined", &caller))
        return false;
    f->slot[s->caller] = caller;
    return true;
}

static bool bind_positions(struct run *r, const struct node *def, struct frame *f, const struct args *args)
{
    const struct scope *s = def->scope;
    for (size_t i = 0; i < args->n && i < def->n_kw; i++) f->slot[i] = args->at[i];
    size_t extra = args->n > def->n_kw ? args->n - def->n_kw : 0;
    if (s->varargs >= 0) {
        struct list *l = sy_tpl_list(r, extra);
        if (!l) return false;
        if (extra) memcpy(l->at, args->at + def->n_kw, extra * sizeof *l->at);
        f->slot[s->varargs] = sy_tpl_of_list(V_TUPLE, l, false);
    } else if (extra) {
        return sy_tpl_fail(r, SY_EARG, "macro '%.60s' takes not more than %zu arguments, found %zu", macro_name(def),
                           def->n_kw, args->n);
    }
    return true;
}

bool sy_tpl_call_macro(struct run *r, const struct macro *m, const struct args *args, struct val *out)
{
    const struct node *def = m->def;
    if (r->calls >= r->t->limit.depth)
        return sy_tpl_fail(r, SY_EARG, "macro calls nest deeper than %d in '%.60s'", r->t->limit.depth,
                           macro_name(def));
    if (!sy_tpl_enter(r)) return false;
    struct frame *f = sy_tpl_frame(r, m->closure, def->scope);
    if (!f || !bind_positions(r, def, f, args) || !bind_named(r, def, f, args)) return false;
    for (size_t i = 0; i < def->n_kw; i++) {
        if (f->slot[i].kind != V_MISSING) continue;
        if (!(def->kw[i].value
                  ? sy_tpl_eval(r, f, def->kw[i].value, &f->slot[i])
                  : sy_tpl_undefined(r, def->kw[i].name, NULL, "a parameter was not provided", &f->slot[i])))
            return false;
    }
    int line = r->line;
    r->calls++;
    enum flow flow = capture(r, f, def->kid[0], out);
    r->calls--;
    r->depth--;
    if (flow == FLOW_ON) r->line = line;
    return flow == FLOW_ON;
}

static bool new_macro(struct run *r, struct frame *f, const struct node *def, struct val *out)
{
    struct macro *m = sy_tpl_get(r, 1, sizeof *m);
    if (!m) return false;
    *m = (struct macro){def, f};
    *out = (struct val){.kind = V_MACRO, .macro = m};
    return true;
}

static bool run_macro(struct run *r, struct frame *f, const struct node *n)
{
    struct val v;
    if (!new_macro(r, f, n, &v)) return false;
    for (unsigned up = n->ref.up; up; up--) f = f->parent;
    f->slot[n->ref.slot] = v;
    return true;
}

static bool run_call(struct run *r, struct frame *f, const struct node *n)
{
    static const struct str name = {.at = "caller", .n = 6, .n_char = 6, .trust = TRUSTED};
    struct val callee, caller, result;
    struct args args;
    if (!new_macro(r, f, n, &caller) || !sy_tpl_eval(r, f, n->a->a, &callee) ||
        !sy_tpl_arguments(r, f, n->a, &args, 1))
        return false;
    args.kw[args.n_kw++] = (struct named){&name, caller};
    r->line = n->line;
    return sy_tpl_call(r, &callee, &args, &result) && emit_value(r, &result);
}

static bool run_generation(struct run *r, struct frame *f, const struct node *n)
{
    struct sy_rendered *o = r->out;
    struct val text;
    struct macro m = {n, f};
    if (!sy_tpl_call_macro(r, &m, &(struct args){0}, &text)) return false;
    if (o->n_generation == r->cap_generation) {
        size_t cap = r->cap_generation ? 2 * r->cap_generation : 16, size = sizeof *o->generation;
        void *more = cap <= SPANS_MAX ? sy_resize(r->env, o->generation, r->cap_generation * size, cap * size) : NULL;
        if (!more) return sy_tpl_fail(r, SY_ENOMEM, "no memory for %zu generation blocks", cap);
        o->generation = more;
        r->cap_generation = cap;
    }
    size_t lo = o->text.len; /* inside a macro this is too early; transformers counts so as well */
    o->generation[o->n_generation].lo = lo;
    o->generation[o->n_generation++].hi = lo + text.s->n;
    return sy_tpl_emit(r, text.s);
}

/* ---- loops -------------------------------------------------------- */

struct loop {
    const struct node *def;
    struct frame *outer, *test;
    struct walk walk;
    int64_t index0, depth0;
    struct val now, before, peeked, changed;
    bool has_peeked, has_length;
    size_t length;
};

/* Tuple targets of a filtered loop are taken apart before the filter sees them, and put together again after. */
static bool repack(struct run *r, const struct frame *f, const struct node *target, struct val *out)
{
    if (target->kind == E_NAME) {
        *out = f->slot[target->ref.slot];
        return true;
    }
    struct list *l = sy_tpl_list(r, target->n_kid);
    for (size_t i = 0; l && i < l->n; i++)
        if (!repack(r, f, target->kid[i], &l->at[i])) return false;
    if (l) *out = sy_tpl_of_list(V_TUPLE, l, false);
    return l != NULL;
}

/* The next item that the loop's own filter lets through. */
static bool pull(struct run *r, struct loop *l, struct val *out, bool *more)
{
    struct val pass;
    for (;;) {
        if (!sy_tpl_spend(r, 1) || !sy_tpl_next(r, &l->walk, out, more)) return false;
        if (!*more || !l->test) return true;
        if (!sy_tpl_assign(r, l->test, l->def->a, out) || !sy_tpl_eval(r, l->test, l->def->c, &pass)) return false;
        if (sy_tpl_truth(&pass)) return repack(r, l->test, l->def->a, out);
    }
}

static bool advance(struct run *r, struct loop *l, bool *more)
{
    struct val v = l->peeked;
    *more = true;
    if (!l->has_peeked && !pull(r, l, &v, more)) return false;
    l->has_peeked = false;
    if (!*more) return true;
    l->index0++;
    l->before = l->now;
    l->now = v;
    return true;
}

static bool peek(struct run *r, struct loop *l, bool *there)
{
    *there = l->has_peeked;
    if (*there) return true;
    if (!pull(r, l, &l->peeked, there)) return false;
    l->has_peeked = *there;
    return true;
}

/* The number of items; what can only be counted by taking it is taken into a list first. */
static bool loop_length(struct run *r, struct loop *l, size_t *out)
{
    if (!l->has_length && !l->test && l->walk.of.kind != V_ITER) {
        if (!sy_tpl_len(r, &l->walk.of, &l->length)) return false;
        l->has_length = true;
    }
    if (!l->has_length) {
        struct list *rest = sy_tpl_list(r, 0);
        size_t cap = 0;
        bool more = true;
        struct val v;
        if (!rest) return false;
        for (;;) {
            if (!pull(r, l, &v, &more)) return false;
            if (!more) break;
            if (rest->n == cap) {
                struct val *at = sy_tpl_get(r, cap ? 2 * cap : 16, sizeof *at);
                if (!at) return false;
                if (cap) memcpy(at, rest->at, cap * sizeof *at);
                rest->at = at;
                cap = cap ? 2 * cap : 16;
            }
            rest->at[rest->n++] = v;
        }
        l->length = rest->n + (size_t)(l->index0 + 1) + l->has_peeked;
        l->has_length = true;
        l->test = NULL;
        l->walk = (struct walk){.of = sy_tpl_of_list(V_LIST, rest, false), .n = rest->n};
    }
    *out = l->length;
    return true;
}

static enum flow run_loop(struct run *r, struct frame *outer, const struct node *n, const struct val *over,
                          int64_t depth0)
{
    struct loop *l = sy_tpl_get(r, 1, sizeof *l);
    struct frame *f = l ? sy_tpl_frame(r, outer, n->scope) : NULL;
    bool more = true, completed = false;
    if (!f || !sy_tpl_walk(r, over, &l->walk)) return FLOW_FAIL;
    l->def = n;
    l->outer = outer;
    l->index0 = -1;
    l->depth0 = depth0;
    if (n->c && !(l->test = sy_tpl_frame(r, outer, n->scope2))) return FLOW_FAIL;
    if (n->scope->loop >= 0) f->slot[n->scope->loop] = (struct val){.kind = V_LOOP, .loop = l};
    for (bool first = true;; first = false) {
        if (!advance(r, l, &more)) return FLOW_FAIL;
        if (!more) break;
        if (!sy_tpl_assign(r, f, n->a, &l->now)) return FLOW_FAIL;
        if (!first) enter_frame(r, f);
        enum flow flow = run_body(r, f, n->kid[0]);
        if (flow == FLOW_FAIL) return flow;
        if (flow == FLOW_BREAK) break;
        completed |= flow == FLOW_ON;
        r->line = n->line;
    }
    if (completed || n->n_kid < 2) return FLOW_ON; /* jinja2: else runs unless a turn came to its end */
    struct frame *e = sy_tpl_frame(r, outer, n->scope3);
    return e ? run_body(r, e, n->kid[1]) : FLOW_FAIL;
}

bool sy_tpl_call_loop(struct run *r, struct loop *l, const struct args *args, struct val *out)
{
    if (!l->def->flag) return sy_tpl_fail(r, SY_EARG, "a loop can call itself only if it is marked 'recursive'");
    if (args->n != 1 || args->n_kw) return sy_tpl_fail(r, SY_EARG, "loop() takes one iterable");
    if (r->calls >= r->t->limit.depth) return sy_tpl_fail(r, SY_EARG, "loops nest deeper than %d", r->t->limit.depth);
    if (!sy_tpl_enter(r)) return false;
    struct store *outer = r->capture;
    r->capture = sy_tpl_store(r, 0);
    r->calls++;
    bool good = r->capture && run_loop(r, l->outer, l->def, &args->at[0], l->depth0 + 1) != FLOW_FAIL &&
                sy_tpl_took(r, r->capture, out);
    r->calls--;
    r->capture = outer;
    r->depth--;
    return good;
}

static bool loop_cycle(struct run *r, const struct val *self, const struct args *args, struct val *out)
{
    if (!args->n) return sy_tpl_fail(r, SY_EARG, "loop.cycle needs something to cycle through");
    *out = args->at[(size_t)self->loop->index0 % args->n];
    return true;
}

static bool loop_changed(struct run *r, const struct val *self, const struct args *args, struct val *out)
{
    struct list *l = sy_tpl_list(r, args->n);
    bool same = false;
    if (!l) return false;
    if (args->n) memcpy(l->at, args->at, args->n * sizeof *l->at);
    struct val now = sy_tpl_of_list(V_TUPLE, l, false);
    if (!sy_tpl_equal(r, &self->loop->changed, &now, &same)) return false;
    self->loop->changed = now;
    *out = sy_tpl_bool(!same, false);
    return true;
}

static bool loop_item(struct run *r, struct loop *l, bool next, struct val *out)
{
    bool there = l->index0 > 0;
    if (next && !peek(r, l, &there)) return false;
    if (there) *out = next ? l->peeked : l->before;
    return there ||
           sy_tpl_undefined(r, NULL, NULL, next ? "there is no next item" : "there is no previous item", out);
}

bool sy_tpl_loop_attr(struct run *r, struct loop *l, const struct str *name, bool *there, struct val *out)
{
    static const struct method_def cycle = {.name = "cycle", .free_call = loop_cycle};
    static const struct method_def changed = {.name = "changed", .free_call = loop_changed};
    int64_t i = l->index0;
    size_t n;
    *there = true;
    if (sy_tpl_is(name, "index0")) *out = sy_tpl_int(i, false);
    else if (sy_tpl_is(name, "index")) *out = sy_tpl_int(i + 1, false);
    else if (sy_tpl_is(name, "first")) *out = sy_tpl_bool(i == 0, false);
    else if (sy_tpl_is(name, "depth0")) *out = sy_tpl_int(l->depth0, false);
    else if (sy_tpl_is(name, "depth")) *out = sy_tpl_int(l->depth0 + 1, false);
    else if (sy_tpl_is(name, "previtem") || sy_tpl_is(name, "nextitem"))
        return loop_item(r, l, *name->at == 'n', out);
    else if (sy_tpl_is(name, "last")) {
        bool next;
        if (!peek(r, l, &next)) return false;
        *out = sy_tpl_bool(!next, false);
    } else if (sy_tpl_is(name, "length") || sy_tpl_is(name, "revindex") || sy_tpl_is(name, "revindex0")) {
        if (!loop_length(r, l, &n)) return false;
        int64_t less = name->n == 6 ? 0 : name->n == 8 ? i : i + 1;
        *out = sy_tpl_int((__int128)n - less, false);
    } else if (sy_tpl_is(name, "cycle") || sy_tpl_is(name, "changed")) {
        struct method *m = sy_tpl_get(r, 1, sizeof *m);
        if (!m) return false;
        *m = (struct method){{.kind = V_LOOP, .loop = l}, name->n == 5 ? &cycle : &changed};
        *out = (struct val){.kind = V_METHOD, .method = m};
    } else {
        *there = false;
    }
    return true;
}

static enum flow run_for(struct run *r, struct frame *f, const struct node *n)
{
    struct val over;
    if (!sy_tpl_eval(r, f, n->b, &over)) return FLOW_FAIL;
    r->line = n->line;
    return run_loop(r, f, n, &over, 0);
}

/* ---- the other statements -------------------------------------------------------- */

static enum flow run_if(struct run *r, struct frame *f, const struct node *n)
{
    for (size_t i = 0; i < n->n_kid; i += 2) {
        struct val test;
        if (!sy_tpl_eval(r, f, n->kid[i], &test)) return FLOW_FAIL;
        if (sy_tpl_truth(&test)) return run_body(r, f, n->kid[i + 1]);
    }
    return n->a ? run_body(r, f, n->a) : FLOW_ON;
}

static bool run_set(struct run *r, struct frame *f, const struct node *n)
{
    struct val v;
    if (!sy_tpl_eval(r, f, n->b, &v)) return false;
    r->line = n->line;
    return sy_tpl_assign(r, f, n->a, &v);
}

/* {% set x %} and {% filter %}: the body's text, through filters if there are any. */
static enum flow run_captured(struct run *r, struct frame *f, const struct node *n)
{
    bool is_set = n->kind == S_SET_BLOCK;
    const struct node *filters = is_set ? n->b : n->a;
    struct frame *inner = sy_tpl_frame(r, f, n->scope);
    struct val text;
    if (!inner) return FLOW_FAIL;
    enum flow flow = capture(r, inner, n->kid[0], &text);
    if (flow != FLOW_ON) return flow;
    r->captured = text;
    if (filters && !sy_tpl_eval(r, inner, filters, &text)) return FLOW_FAIL;
    r->line = n->line;
    return (is_set ? sy_tpl_assign(r, f, n->a, &text) : emit_value(r, &text)) ? FLOW_ON : FLOW_FAIL;
}

static enum flow run_with(struct run *r, struct frame *f, const struct node *n)
{
    struct frame *inner = sy_tpl_frame(r, f, n->scope);
    if (!inner) return FLOW_FAIL;
    for (size_t i = 0; i + 1 < n->n_kid; i += 2) {
        struct val v;
        if (!sy_tpl_eval(r, f, n->kid[i + 1], &v) || !sy_tpl_assign(r, inner, n->kid[i], &v)) return FLOW_FAIL;
    }
    return run_body(r, inner, n->kid[n->n_kid - 1]);
}

static bool run_print(struct run *r, struct frame *f, const struct node *n)
{
    struct val v;
    return sy_tpl_eval(r, f, n->a, &v) && emit_value(r, &v);
}

static enum flow run_statement(struct run *r, struct frame *f, const struct node *n)
{
    bool good;
    r->line = n->line;
    switch (n->kind) {
    case S_DATA: good = sy_tpl_emit(r, n->text); break;
    case S_PRINT: good = run_print(r, f, n); break;
    case S_SET: good = run_set(r, f, n); break;
    case S_MACRO: good = run_macro(r, f, n); break;
    case S_CALL: good = run_call(r, f, n); break;
    case S_GENERATION: good = run_generation(r, f, n); break;
    case S_IF: return run_if(r, f, n);
    case S_FOR: return run_for(r, f, n);
    case S_SET_BLOCK:
    case S_FILTER: return run_captured(r, f, n);
    case S_WITH: return run_with(r, f, n);
    case S_BREAK: return FLOW_BREAK;
    case S_CONTINUE: return FLOW_CONTINUE;
    default: return run_body(r, f, n);
    }
    return good ? FLOW_ON : FLOW_FAIL;
}

static enum flow run_body(struct run *r, struct frame *f, const struct node *body)
{
    enum flow flow = FLOW_ON;
    if (!sy_tpl_enter(r)) return FLOW_FAIL;
    for (size_t i = 0; i < body->n_kid && flow == FLOW_ON; i++) {
        if (!sy_tpl_spend(r, 1)) return FLOW_FAIL;
        flow = run_statement(r, f, body->kid[i]);
    }
    r->depth--;
    return flow;
}

bool sy_tpl_execute(struct run *r)
{
    struct frame *f = sy_tpl_frame(r, NULL, r->t->scope);
    return f && run_body(r, f, r->t->root) == FLOW_ON;
}
