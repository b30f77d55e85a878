/* template_parse.c - statements: {% for %}, {% if %}, {% set %}, {% macro %} and their kin, as nodes. */
#include <string.h>

#include "text/template_int.h"

/* Where a body ends: one of the names, up to three. */
struct ends {
    const char *name[3];
};

static struct node *statements(struct parser *p, const struct ends *);

/* The body of a block up to one of its end names, which is left as the current token. */
static struct node *body(struct parser *p, const struct ends *ends)
{
    if (p->tok->kind == T_COLON) p->tok++;
    if (!sy_tpl_expect(p, T_BLOCK_END, "'%}'")) return NULL;
    return statements(p, ends);
}

/* body, then its only end name, passed. */
static struct node *body_to(struct parser *p, const char *end)
{
    struct node *n = body(p, &(struct ends){{end}});
    if (n) p->tok++;
    return n;
}

/* What break and continue may leave: loops outside a macro's body do not count, nor those outside a call's. */
static struct node *function_body_to(struct parser *p, const char *end)
{
    int loops = p->loops;
    p->loops = 0;
    struct node *n = body_to(p, end);
    p->loops = loops;
    return n;
}

static bool can_assign(struct parser *p, const struct node *n)
{
    static const char *const kinds[] = {[E_CONST] = "a constant", [E_LIST] = "a list", [E_DICT] = "a dict"};
    if (n->kind == E_NAME || n->kind == E_NSREF) return true;
    if (n->kind != E_TUPLE)
        return sy_tpl_error(p->c, SY_EFORMAT, n->line, "cannot assign to %s",
                            n->kind < SY_COUNT(kinds) && kinds[n->kind] ? kinds[n->kind] : "an expression");
    for (size_t i = 0; i < n->n_kid; i++)
        if (!can_assign(p, n->kid[i])) return false;
    return true;
}

static void mark_assigned(struct node *n)
{
    if (n->kind == E_NAME) n->flag = true;
    for (size_t i = 0; i < n->n_kid; i++) mark_assigned(n->kid[i]);
}

/* a, (b, c) or ns.x: what for, set and with assign to. */
static struct node *target(struct parser *p, bool with_namespace, bool ends_at_in)
{
    int line = p->tok->line;
    struct node *first = NULL, *tuple = NULL;
    for (;;) {
        enum token_kind k = p->tok->kind;
        if (k == T_VAR_END || k == T_BLOCK_END || k == T_RPAREN || (ends_at_in && sy_tpl_is_name(p->tok, "in")))
            break;
        struct node *n = sy_tpl_primary(p, with_namespace);
        if (!n || (tuple && !sy_tpl_kid(p, tuple, n))) return NULL;
        if (!first) first = n;
        if (p->tok->kind != T_COMMA) break;
        p->tok++;
        if (!tuple && (!(tuple = sy_tpl_node(p, E_TUPLE, line)) || !sy_tpl_kid(p, tuple, n))) return NULL;
    }
    struct node *n = tuple ? tuple : first;
    if (!n) sy_tpl_unexpected(p, "something to assign to");
    if (!n || !can_assign(p, n)) return NULL;
    mark_assigned(n);
    return n;
}

static struct node *begin(struct parser *p, enum node_kind kind)
{
    struct node *n = sy_tpl_node(p, kind, p->tok->line);
    p->tok++;
    return n;
}

static struct node *operand(struct parser *p, struct node *parent, struct node *child)
{
    return child && sy_tpl_grow(p, parent, child) ? child : NULL;
}

static struct node *parse_set(struct parser *p)
{
    struct node *n = begin(p, S_SET);
    if (!n || !(n->a = operand(p, n, target(p, true, false)))) return NULL;
    if (p->tok->kind == T_ASSIGN) {
        p->tok++;
        n->b = operand(p, n, sy_tpl_tuple(p, true, END_PLAIN, false));
        return n->b ? n : NULL;
    }
    n->kind = S_SET_BLOCK;
    if (p->tok->kind == T_PIPE && !(n->b = operand(p, n, sy_tpl_filters(p, NULL, false)))) return NULL;
    return sy_tpl_kid(p, n, body_to(p, "endset")) ? n : NULL;
}

static struct node *parse_for(struct parser *p)
{
    struct node *n = begin(p, S_FOR), *otherwise = NULL;
    if (!n || !(n->a = operand(p, n, target(p, false, true)))) return NULL;
    if (!sy_tpl_skip_name(p, "in")) {
        sy_tpl_unexpected(p, "'in'");
        return NULL;
    }
    if (!(n->b = operand(p, n, sy_tpl_tuple(p, false, END_RECURSIVE, false)))) return NULL;
    if (sy_tpl_skip_name(p, "if") && !(n->c = operand(p, n, sy_tpl_expression(p, true)))) return NULL;
    n->flag = sy_tpl_skip_name(p, "recursive");
    p->loops++;
    if (!sy_tpl_kid(p, n, body(p, &(struct ends){{"endfor", "else"}}))) return NULL;
    p->loops--;
    bool has_else = sy_tpl_is_name(p->tok++, "else");
    if (has_else && (!(otherwise = body_to(p, "endfor")) || !sy_tpl_kid(p, n, otherwise))) return NULL;
    return n;
}

static struct node *parse_if(struct parser *p)
{
    static const struct ends ends = {{"elif", "else", "endif"}};
    struct node *n = sy_tpl_node(p, S_IF, p->tok->line);
    if (!n) return NULL;
    do {
        p->tok++;
        if (!sy_tpl_kid(p, n, sy_tpl_tuple(p, false, END_PLAIN, false)) || !sy_tpl_kid(p, n, body(p, &ends)))
            return NULL;
    } while (sy_tpl_is_name(p->tok, "elif"));
    if (sy_tpl_is_name(p->tok++, "else") && !(n->a = operand(p, n, body_to(p, "endif")))) return NULL;
    return n;
}

static bool parameter(struct parser *p, struct node *n)
{
    const struct token *t = p->tok;
    if (!sy_tpl_expect(p, T_NAME, "the name of a parameter")) return false;
    const struct str *name = sy_tpl_literal(p->c, t->at, t->n);
    if (!name) return false;
    struct node *value = NULL;
    if (p->tok->kind == T_ASSIGN) {
        p->tok++;
        if (!(value = operand(p, n, sy_tpl_expression(p, true)))) return false;
    } else if (n->n_kw && n->kw[n->n_kw - 1].value) {
        return sy_tpl_error(p->c, SY_EFORMAT, t->line,
                            "the parameter '%.60s' needs a default, as the one before it has", name->at);
    }
    for (size_t i = 0; i < n->n_kw; i++)
        if (sy_tpl_is_name(t, n->kw[i].name->at))
            return sy_tpl_error(p->c, SY_EFORMAT, t->line, "the parameter '%.60s' is there twice", name->at);
    struct keyword *kw = sy_tpl_alloc(p->c, n->n_kw + 1, sizeof *kw);
    if (!kw) return false;
    if (n->n_kw) memcpy(kw, n->kw, n->n_kw * sizeof *kw);
    kw[n->n_kw++] = (struct keyword){name, value};
    n->kw = kw;
    return n->n_kw <= 64 || sy_tpl_error(p->c, SY_EFORMAT, t->line, "a macro has more than 64 parameters");
}

static bool signature(struct parser *p, struct node *n)
{
    if (!sy_tpl_expect(p, T_LPAREN, "'('")) return false;
    while (p->tok->kind != T_RPAREN) {
        if (n->n_kw && !sy_tpl_expect(p, T_COMMA, "',' or ')'")) return false;
        if (!parameter(p, n)) return false;
    }
    p->tok++;
    return true;
}

static struct node *parse_macro(struct parser *p)
{
    struct node *n = begin(p, S_MACRO);
    const struct token *t = p->tok;
    if (!n || !sy_tpl_expect(p, T_NAME, "the name of the macro") || !(n->text = sy_tpl_literal(p->c, t->at, t->n)))
        return NULL;
    return signature(p, n) && sy_tpl_kid(p, n, function_body_to(p, "endmacro")) ? n : NULL;
}

static struct node *parse_call(struct parser *p)
{
    struct node *n = begin(p, S_CALL);
    if (!n || (p->tok->kind == T_LPAREN && !signature(p, n))) return NULL;
    if (!(n->a = operand(p, n, sy_tpl_expression(p, true)))) return NULL;
    if (n->a->kind != E_CALL) {
        sy_tpl_error(p->c, SY_EFORMAT, n->line, "expected a call after {%% call");
        return NULL;
    }
    return sy_tpl_kid(p, n, function_body_to(p, "endcall")) ? n : NULL;
}

static struct node *parse_filter(struct parser *p)
{
    struct node *n = begin(p, S_FILTER);
    if (!n || !(n->a = operand(p, n, sy_tpl_filters(p, NULL, true)))) return NULL;
    return sy_tpl_kid(p, n, body_to(p, "endfilter")) ? n : NULL;
}

static struct node *parse_with(struct parser *p)
{
    struct node *n = begin(p, S_WITH);
    while (n && p->tok->kind != T_BLOCK_END) {
        if (n->n_kid && !sy_tpl_expect(p, T_COMMA, "','")) return NULL;
        if (!sy_tpl_kid(p, n, target(p, false, false)) || !sy_tpl_expect(p, T_ASSIGN, "'='") ||
            !sy_tpl_kid(p, n, sy_tpl_expression(p, true)))
            return NULL;
    }
    return n && sy_tpl_kid(p, n, body_to(p, "endwith")) ? n : NULL;
}

static struct node *parse_generation(struct parser *p)
{
    struct node *n = begin(p, S_GENERATION);
    return n && sy_tpl_kid(p, n, function_body_to(p, "endgeneration")) ? n : NULL;
}

static struct node *parse_jump(struct parser *p)
{
    bool is_break = sy_tpl_is_name(p->tok, "break");
    struct node *n = begin(p, is_break ? S_BREAK : S_CONTINUE);
    if (p->loops) return n;
    sy_tpl_error(p->c, SY_EFORMAT, p->tok->line, "'%s' outside a loop", is_break ? "break" : "continue");
    return NULL;
}

static struct node *parse_print(struct parser *p)
{
    struct node *n = begin(p, S_BODY);
    while (n && p->tok->kind != T_BLOCK_END) {
        if (n->n_kid && !sy_tpl_expect(p, T_COMMA, "','")) return NULL;
        struct node *print = sy_tpl_node(p, S_PRINT, p->tok->line);
        if (!print || !(print->a = operand(p, print, sy_tpl_expression(p, true))) || !sy_tpl_kid(p, n, print))
            return NULL;
    }
    return n;
}

static struct node *parse_refused(struct parser *p)
{
    sy_tpl_error(p->c, SY_ENOSUP, p->tok->line,
                 "{%% %.*s %%} is not supported: a chat template stands alone and cannot use others, blocks or "
                 "autoescaping",
                 (int)p->tok->n, p->tok->at);
    return NULL;
}

static const struct {
    const char *name;
    struct node *(*parse)(struct parser *);
} tags[] = {
    {"for", parse_for},
    {"if", parse_if},
    {"set", parse_set},
    {"macro", parse_macro},
    {"call", parse_call},
    {"filter", parse_filter},
    {"with", parse_with},
    {"generation", parse_generation},
    {"break", parse_jump},
    {"continue", parse_jump},
    {"print", parse_print},
    {"include", parse_refused},
    {"import", parse_refused},
    {"from", parse_refused},
    {"extends", parse_refused},
    {"block", parse_refused},
    {"autoescape", parse_refused},
};

static struct node *statement(struct parser *p, const struct ends *ends)
{
    const struct token *t = p->tok;
    if (t->kind != T_NAME) {
        sy_tpl_unexpected(p, "the name of a tag");
        return NULL;
    }
    struct node *n = NULL;
    for (size_t i = 0; i < SY_COUNT(tags); i++) {
        if (!sy_tpl_is_name(t, tags[i].name)) continue;
        if (++p->nest > SY_TPL_NEST_MAX) {
            sy_tpl_error(p->c, SY_EFORMAT, t->line, "blocks nest deeper than %d", SY_TPL_NEST_MAX);
            return NULL;
        }
        n = tags[i].parse(p);
        p->nest--;
        return n;
    }
    const char *want = ends ? ends->name[0] : NULL;
    sy_tpl_error(p->c, SY_EFORMAT, t->line, "unknown tag '%.*s'%s%s%s", (int)(t->n < 60 ? t->n : 60), t->at,
                 want ? "; the block it stands in ends with '" : "", want ? want : "", want ? "'" : "");
    return NULL;
}

static bool one_of(const struct token *t, const struct ends *ends)
{
    for (size_t i = 0; ends && i < SY_COUNT(ends->name) && ends->name[i]; i++)
        if (sy_tpl_is_name(t, ends->name[i])) return true;
    return false;
}

static struct node *piece(struct parser *p)
{
    const struct token *t = p->tok++;
    struct node *n = sy_tpl_node(p, t->kind == T_DATA ? S_DATA : S_PRINT, t->line);
    if (!n) return NULL;
    if (t->kind == T_DATA) return (n->text = sy_tpl_literal(p->c, t->at, t->n)) ? n : NULL;
    n->a = operand(p, n, sy_tpl_tuple(p, true, END_PLAIN, false));
    return n->a && sy_tpl_expect(p, T_VAR_END, "'}}'") ? n : NULL;
}

static struct node *statements(struct parser *p, const struct ends *ends)
{
    int line = p->tok->line;
    struct node *n = sy_tpl_node(p, S_BODY, line);
    while (n && p->tok->kind != T_EOF) {
        if (p->tok->kind != T_BLOCK_BEGIN) {
            if (!sy_tpl_kid(p, n, piece(p))) return NULL;
            continue;
        }
        p->tok++;
        if (one_of(p->tok, ends)) return n;
        if (!sy_tpl_kid(p, n, statement(p, ends)) || !sy_tpl_expect(p, T_BLOCK_END, "'%}'")) return NULL;
    }
    if (n && ends) {
        sy_tpl_error(p->c, SY_EFORMAT, line, "the block whose body starts here has no end: expected {%% %s %%}",
                     ends->name[0]);
        return NULL;
    }
    return n;
}

struct node *sy_tpl_parse(struct compile *c)
{
    struct parser p = {.c = c, .tok = c->tok};
    return statements(&p, NULL);
}
