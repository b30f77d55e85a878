/* template_expr.c - expressions: jinja2's precedence, from loosest to tightest: inline if, or, and, not, comparisons,
 * + -, ~, * / // %, **, unary, then calls, subscripts, filters and tests. */
#include <string.h>

#include "text/template_int.h"

enum { ARGS_MAX = 1000 }; /* named arguments of one call */

struct node *sy_tpl_node(struct parser *p, enum node_kind kind, int line)
{
    struct node *n = sy_tpl_alloc(p->c, 1, sizeof *n);
    if (n) {
        n->kind = (uint8_t)kind;
        n->line = line;
        n->height = 1;
    }
    return n;
}

bool sy_tpl_grow(struct parser *p, struct node *parent, const struct node *child)
{
    if (!child) return true;
    if (child->height >= SY_TPL_HEIGHT_MAX)
        return sy_tpl_error(p->c, SY_EFORMAT, child->line, "expressions or blocks nest deeper than %d",
                            SY_TPL_HEIGHT_MAX);
    if (parent->height <= child->height) parent->height = (uint16_t)(child->height + 1);
    return true;
}

/* Room doubles; the old array stays in the arena. */
static bool room(struct parser *p, void *at, size_t n, size_t size)
{
    if (n & (n - 1) || n == 1) return true; /* full at 0, 2, 4, 8, ... */
    void *old, *more = sy_tpl_alloc(p->c, n ? 2 * n : 2, size);
    if (!more) return false;
    memcpy(&old, at, sizeof old);
    if (n) memcpy(more, old, n * size);
    memcpy(at, &more, sizeof more);
    return true;
}

bool sy_tpl_kid(struct parser *p, struct node *parent, struct node *child)
{
    if (!child || !sy_tpl_grow(p, parent, child) || !room(p, &parent->kid, parent->n_kid, sizeof(struct node *)))
        return false;
    parent->kid[parent->n_kid++] = child;
    return true;
}

static bool keyword(struct parser *p, struct node *parent, const struct str *name, struct node *value)
{
    if (!name || !value || !sy_tpl_grow(p, parent, value) ||
        !room(p, &parent->kw, parent->n_kw, sizeof(struct keyword)))
        return false;
    parent->kw[parent->n_kw++] = (struct keyword){name, value};
    return true;
}

bool sy_tpl_is_name(const struct token *t, const char *name)
{
    return t->kind == T_NAME && t->n == strlen(name) && !memcmp(t->at, name, t->n);
}

bool sy_tpl_skip_name(struct parser *p, const char *name)
{
    if (!sy_tpl_is_name(p->tok, name)) return false;
    p->tok++;
    return true;
}

bool sy_tpl_unexpected(struct parser *p, const char *wanted)
{
    static const char *const names[] = {
        "the end of the template",
        "text",
        "'{{'",
        "'}}'",
        "'{%'",
        "'%}'",
        "a name",
        "a string",
        "an integer",
        "a number",
        "'+'",
        "'-'",
        "'*'",
        "'/'",
        "'//'",
        "'%'",
        "'**'",
        "'~'",
        "'=='",
        "'!='",
        "'<'",
        "'<='",
        "'>'",
        "'>='",
        "'='",
        "'.'",
        "':'",
        "'|'",
        "','",
        "';'",
        "'('",
        "')'",
        "'['",
        "']'",
        "'{'",
        "'}'",
    };
    const struct token *t = p->tok;
    if (t->kind == T_NAME)
        return sy_tpl_error(p->c, SY_EFORMAT, t->line, "expected %s, found '%.*s'", wanted,
                            (int)(t->n < 60 ? t->n : 60), t->at);
    return sy_tpl_error(p->c, SY_EFORMAT, t->line, "expected %s, found %s", wanted, names[t->kind]);
}

bool sy_tpl_expect(struct parser *p, enum token_kind kind, const char *what)
{
    if (p->tok->kind != kind) return sy_tpl_unexpected(p, what);
    p->tok++;
    return true;
}

static bool nest(struct parser *p)
{
    if (++p->nest <= SY_TPL_NEST_MAX) return true;
    return sy_tpl_error(p->c, SY_EFORMAT, p->tok->line, "expressions nest deeper than %d", SY_TPL_NEST_MAX);
}

/* A node with operands; NULL if one is missing because its parsing failed. */
static struct node *join(struct parser *p, enum node_kind kind, int line, struct node *a, struct node *b)
{
    struct node *n = a ? sy_tpl_node(p, kind, line) : NULL;
    if (!n || !sy_tpl_grow(p, n, a) || !sy_tpl_grow(p, n, b)) return NULL;
    n->a = a;
    n->b = b;
    return n;
}

static struct node *constant(struct parser *p, int line, struct val v)
{
    struct node *n = sy_tpl_node(p, E_CONST, line);
    if (n) n->value = v;
    return n;
}

/* ---- calls, subscripts, filters, tests -------------------------------------------------------- */

static bool argument(struct parser *p, struct node *call)
{
    const struct token *t = p->tok;
    bool bad = false;
    if (t->kind == T_MUL) {
        p->tok++;
        bad = call->b || call->c;
        if (!bad && (!(call->b = sy_tpl_expression(p, true)) || !sy_tpl_grow(p, call, call->b))) return false;
    } else if (t->kind == T_POW) {
        p->tok++;
        bad = call->c;
        if (!bad && (!(call->c = sy_tpl_expression(p, true)) || !sy_tpl_grow(p, call, call->c))) return false;
    } else if (t->kind == T_NAME && t[1].kind == T_ASSIGN) {
        p->tok += 2;
        bad = call->c || call->n_kw == ARGS_MAX;
        for (size_t i = 0; i < call->n_kw; i++) bad |= sy_tpl_is_name(t, call->kw[i].name->at);
        if (!bad && !keyword(p, call, sy_tpl_literal(p->c, t->at, t->n), sy_tpl_expression(p, true))) return false;
    } else {
        bad = call->b || call->c || call->n_kw;
        if (!bad && !sy_tpl_kid(p, call, sy_tpl_expression(p, true))) return false;
    }
    return !bad || sy_tpl_error(p->c, SY_EFORMAT, t->line,
                                "an argument stands where none may, is given twice, or is "
                                "one of more than %d",
                                ARGS_MAX);
}

static bool arguments(struct parser *p, struct node *call)
{
    if (!sy_tpl_expect(p, T_LPAREN, "'('")) return false;
    for (bool first = true; p->tok->kind != T_RPAREN; first = false) {
        if (!first) {
            if (!sy_tpl_expect(p, T_COMMA, "',' or ')'")) return false;
            if (p->tok->kind == T_RPAREN) break;
        }
        if (!argument(p, call)) return false;
    }
    p->tok++;
    return true;
}

static struct node *call(struct parser *p, struct node *callee)
{
    struct node *n = join(p, E_CALL, p->tok->line, callee, NULL);
    return n && arguments(p, n) ? n : NULL;
}

static bool slice_bound(struct parser *p, struct node *slice, struct node **bound)
{
    enum token_kind k = p->tok->kind;
    if (k == T_COLON || k == T_RBRACKET || k == T_COMMA) return true;
    *bound = sy_tpl_expression(p, true);
    return *bound && sy_tpl_grow(p, slice, *bound);
}

static struct node *subscribed(struct parser *p)
{
    int line = p->tok->line;
    struct node *first = NULL;
    if (p->tok->kind != T_COLON) {
        first = sy_tpl_expression(p, true);
        if (!first || p->tok->kind != T_COLON) return first;
    }
    p->tok++;
    struct node *n = sy_tpl_node(p, E_SLICE, line);
    if (!n || !sy_tpl_grow(p, n, first)) return NULL;
    n->a = first;
    if (!slice_bound(p, n, &n->b)) return NULL;
    if (p->tok->kind == T_COLON) {
        p->tok++;
        if (!slice_bound(p, n, &n->c)) return NULL;
    }
    return n;
}

static struct node *subscript(struct parser *p, struct node *object)
{
    const struct token *t = p->tok++;
    if (t->kind == T_DOT) {
        const struct token *name = p->tok;
        if (name->kind != T_NAME && name->kind != T_INT) {
            sy_tpl_unexpected(p, "a name or number after '.'");
            return NULL;
        }
        p->tok++;
        struct node *n = join(p, name->kind == T_NAME ? E_ATTR : E_ITEM, t->line, object, NULL);
        if (!n) return NULL;
        if (name->kind == T_NAME) return (n->text = sy_tpl_literal(p->c, name->at, name->n)) ? n : NULL;
        n->b = constant(p, name->line, (struct val){.kind = V_INT, .i = name->i});
        return n->b && sy_tpl_grow(p, n, n->b) ? n : NULL;
    }
    struct node *index = NULL, *tuple = NULL;
    while (p->tok->kind != T_RBRACKET) {
        if (index && !sy_tpl_expect(p, T_COMMA, "',' or ']'")) return NULL;
        struct node *next = subscribed(p);
        if (!next) return NULL;
        if (index && (next->kind == E_SLICE || index->kind == E_SLICE)) {
            sy_tpl_error(p->c, SY_EFORMAT, t->line, "a slice cannot be part of a tuple of subscripts");
            return NULL;
        }
        if (index && !tuple && (!(tuple = sy_tpl_node(p, E_TUPLE, t->line)) || !sy_tpl_kid(p, tuple, index)))
            return NULL;
        if (tuple && !sy_tpl_kid(p, tuple, next)) return NULL;
        index = next;
    }
    p->tok++;
    if (!index && !(tuple = sy_tpl_node(p, E_TUPLE, t->line))) return NULL; /* x[] is x[()] to jinja2 */
    return join(p, E_ITEM, t->line, object, tuple ? tuple : index);
}

static struct node *postfix(struct parser *p, struct node *n)
{
    while (n) {
        enum token_kind k = p->tok->kind;
        if (k == T_DOT || k == T_LBRACKET) n = subscript(p, n);
        else if (k == T_LPAREN) n = call(p, n);
        else break;
    }
    return n;
}

/* The name of a filter or test, dots allowed as jinja2 has them; NULL: failed. */
static const struct str *dotted(struct parser *p, const char *what)
{
    const struct token *t = p->tok;
    if (!sy_tpl_expect(p, T_NAME, what)) return NULL;
    const char *end = t->at + t->n;
    while (p->tok->kind == T_DOT) {
        const struct token *next = ++p->tok;
        if (!sy_tpl_expect(p, T_NAME, "a name after '.'")) return NULL;
        end = next->at + next->n;
    }
    return sy_tpl_literal(p->c, t->at, (size_t)(end - t->at));
}

struct node *sy_tpl_filters(struct parser *p, struct node *value, bool start_inline)
{
    struct node *n = value;
    while (start_inline || p->tok->kind == T_PIPE) {
        if (!start_inline) p->tok++;
        start_inline = false;
        struct node *f = sy_tpl_node(p, E_FILTER, p->tok->line);
        if (!f || !sy_tpl_grow(p, f, n) || !(f->text = dotted(p, "the name of a filter"))) return NULL;
        f->a = n;
        f->fn = sy_tpl_filter_find(f->text->at, f->text->n);
        if (p->tok->kind == T_LPAREN && !arguments(p, f)) return NULL;
        n = f;
    }
    return n;
}

static struct node *test(struct parser *p, struct node *value)
{
    int line = p->tok->line;
    p->tok++;
    bool negated = sy_tpl_skip_name(p, "not");
    struct node *n = join(p, E_TEST, line, value, NULL);
    if (!n || !(n->text = dotted(p, "the name of a test"))) return NULL;
    n->fn = sy_tpl_test_find(n->text->at, n->text->n);
    const struct token *t = p->tok;
    enum token_kind k = t->kind;
    if (k == T_LPAREN) {
        if (!arguments(p, n)) return NULL;
    } else if ((k == T_NAME || k == T_STRING || k == T_INT || k == T_FLOAT || k == T_LBRACKET || k == T_LBRACE) &&
               !sy_tpl_is_name(t, "else") && !sy_tpl_is_name(t, "or") && !sy_tpl_is_name(t, "and")) {
        if (sy_tpl_is_name(t, "is")) {
            sy_tpl_error(p->c, SY_EFORMAT, line, "tests cannot be chained with 'is'");
            return NULL;
        }
        if (!sy_tpl_kid(p, n, postfix(p, sy_tpl_primary(p, false)))) return NULL;
    }
    return negated ? join(p, E_NOT, line, n, NULL) : n;
}

static struct node *filters_and_tests(struct parser *p, struct node *n)
{
    while (n) {
        if (p->tok->kind == T_PIPE) n = sy_tpl_filters(p, n, false);
        else if (sy_tpl_is_name(p->tok, "is")) n = test(p, n);
        else if (p->tok->kind == T_LPAREN) n = call(p, n);
        else break;
    }
    return n;
}

/* ---- literals -------------------------------------------------------- */

static struct node *strings(struct parser *p)
{
    int line = p->tok->line;
    size_t n = 0;
    const struct token *end = p->tok;
    for (; end->kind == T_STRING; end++) n += end->n;
    char *text = sy_tpl_alloc(p->c, n + 1, 1);
    if (!text) return NULL;
    for (n = 0; p->tok < end; n += p->tok->n, p->tok++)
        if (p->tok->n) memcpy(text + n, p->tok->at, p->tok->n);
    const struct str *s = sy_tpl_literal(p->c, text, n);
    return s ? constant(p, line, sy_tpl_of_str(s)) : NULL;
}

static struct node *list(struct parser *p)
{
    struct node *n = sy_tpl_node(p, E_LIST, p->tok->line);
    p->tok++;
    while (n && p->tok->kind != T_RBRACKET) {
        if (n->n_kid && !sy_tpl_expect(p, T_COMMA, "',' or ']'")) return NULL;
        if (p->tok->kind == T_RBRACKET) break;
        if (!sy_tpl_kid(p, n, sy_tpl_expression(p, true))) return NULL;
    }
    p->tok++;
    return n;
}

static struct node *dict(struct parser *p)
{
    struct node *n = sy_tpl_node(p, E_DICT, p->tok->line);
    p->tok++;
    while (n && p->tok->kind != T_RBRACE) {
        if (n->n_kid && !sy_tpl_expect(p, T_COMMA, "',' or '}'")) return NULL;
        if (p->tok->kind == T_RBRACE) break;
        if (!sy_tpl_kid(p, n, sy_tpl_expression(p, true)) || !sy_tpl_expect(p, T_COLON, "':'") ||
            !sy_tpl_kid(p, n, sy_tpl_expression(p, true)))
            return NULL;
    }
    p->tok++;
    return n;
}

static struct node *name(struct parser *p, bool with_namespace)
{
    const struct token *t = p->tok++;
    bool yes = sy_tpl_is_name(t, "true") || sy_tpl_is_name(t, "True");
    if (yes || sy_tpl_is_name(t, "false") || sy_tpl_is_name(t, "False"))
        return constant(p, t->line, sy_tpl_bool(yes, false));
    if (sy_tpl_is_name(t, "none") || sy_tpl_is_name(t, "None")) return constant(p, t->line, sy_tpl_none());
    bool dot = with_namespace && p->tok->kind == T_DOT;
    struct node *n = sy_tpl_node(p, dot ? E_NSREF : E_NAME, t->line);
    if (!n || !(n->text = sy_tpl_literal(p->c, t->at, t->n))) return NULL;
    if (!dot) return n;
    const struct token *attr = ++p->tok;
    if (!sy_tpl_expect(p, T_NAME, "a name after '.'")) return NULL;
    const struct str *s = sy_tpl_literal(p->c, attr->at, attr->n);
    if (!s) return NULL;
    n->value = sy_tpl_of_str(s);
    return n;
}

struct node *sy_tpl_primary(struct parser *p, bool with_namespace)
{
    const struct token *t = p->tok;
    struct node *n = NULL;
    if (!nest(p)) return NULL;
    switch (t->kind) {
    case T_NAME: n = name(p, with_namespace); break;
    case T_STRING: n = strings(p); break;
    case T_INT:
        p->tok++;
        n = constant(p, t->line, (struct val){.kind = V_INT, .i = t->i});
        break;
    case T_FLOAT:
        p->tok++;
        n = constant(p, t->line, (struct val){.kind = V_FLOAT, .f = t->f});
        break;
    case T_LPAREN:
        p->tok++;
        n = sy_tpl_tuple(p, true, END_PLAIN, true);
        if (n && !sy_tpl_expect(p, T_RPAREN, "')'")) n = NULL;
        break;
    case T_LBRACKET: n = list(p); break;
    case T_LBRACE: n = dict(p); break;
    default: sy_tpl_unexpected(p, "an expression");
    }
    p->nest--;
    return n;
}

static bool tuple_ends(const struct parser *p, enum tuple_end end)
{
    enum token_kind k = p->tok->kind;
    if (k == T_VAR_END || k == T_BLOCK_END || k == T_RPAREN) return true;
    return (end == END_IN && sy_tpl_is_name(p->tok, "in")) ||
           (end == END_RECURSIVE && sy_tpl_is_name(p->tok, "recursive"));
}

struct node *sy_tpl_tuple(struct parser *p, bool with_cond, enum tuple_end end, bool parenthesised)
{
    int line = p->tok->line;
    struct node *first = NULL, *tuple = NULL;
    for (;;) {
        if (tuple_ends(p, end)) break;
        struct node *n = sy_tpl_expression(p, with_cond);
        if (!n) return NULL;
        if (tuple && !sy_tpl_kid(p, tuple, n)) return NULL;
        if (!first) first = n;
        if (p->tok->kind != T_COMMA) break;
        p->tok++;
        if (!tuple && (!(tuple = sy_tpl_node(p, E_TUPLE, line)) || !sy_tpl_kid(p, tuple, n))) return NULL;
    }
    if (tuple) return tuple;
    if (first) return first;
    if (parenthesised) return sy_tpl_node(p, E_TUPLE, line);
    sy_tpl_unexpected(p, "an expression");
    return NULL;
}

/* ---- operators -------------------------------------------------------- */

static struct node *unary(struct parser *p, bool with_filter)
{
    int line = p->tok->line;
    enum token_kind k = p->tok->kind;
    struct node *n;
    if (!nest(p)) return NULL;
    if (k == T_SUB || k == T_ADD) {
        p->tok++;
        n = join(p, k == T_SUB ? E_NEG : E_POS, line, unary(p, false), NULL);
    } else {
        n = sy_tpl_primary(p, false);
    }
    p->nest--;
    n = postfix(p, n);
    return with_filter ? filters_and_tests(p, n) : n;
}

static bool at_level(enum token_kind k, int level)
{
    switch (level) {
    case 0: return k == T_ADD || k == T_SUB;
    case 1: return k == T_TILDE;
    case 2: return k == T_MUL || k == T_DIV || k == T_FLOORDIV || k == T_MOD;
    default: return k == T_POW;
    }
}

static struct node *binary(struct parser *p, int level)
{
    if (level == 4) return unary(p, true);
    int line = p->tok->line;
    struct node *left = binary(p, level + 1), *concat = NULL;
    while (left && at_level(p->tok->kind, level)) {
        enum token_kind op = p->tok->kind;
        p->tok++;
        struct node *right = binary(p, level + 1);
        if (!right) return NULL;
        if (op != T_TILDE) {
            left = join(p, E_BINARY, line, left, right);
            if (left) left->op = (uint8_t)op;
            continue;
        }
        if (!concat && (!(concat = sy_tpl_node(p, E_CONCAT, line)) || !sy_tpl_kid(p, concat, left))) return NULL;
        if (!sy_tpl_kid(p, concat, right)) return NULL;
        left = concat;
    }
    return left;
}

static bool compare_op(struct parser *p, uint8_t *op)
{
    enum token_kind k = p->tok->kind;
    if (k >= T_EQ && k <= T_GE) *op = (uint8_t)(CMP_EQ + (k - T_EQ));
    else if (sy_tpl_is_name(p->tok, "in")) *op = CMP_IN;
    else if (sy_tpl_is_name(p->tok, "not") && sy_tpl_is_name(p->tok + 1, "in")) *op = CMP_NOT_IN;
    else return false;
    p->tok += *op == CMP_NOT_IN ? 2 : 1;
    return true;
}

static struct node *compare(struct parser *p)
{
    int line = p->tok->line;
    struct node *first = binary(p, 0), *n = NULL;
    uint8_t op;
    while (first && compare_op(p, &op)) {
        struct node *operand = join(p, E_OPERAND, p->tok->line, binary(p, 0), NULL);
        if (!operand) return NULL;
        operand->op = op;
        if (!n && !(n = join(p, E_COMPARE, line, first, NULL))) return NULL;
        if (!sy_tpl_kid(p, n, operand)) return NULL;
    }
    return n ? n : first;
}

static struct node * not(struct parser * p)
{
    int line = p->tok->line;
    if (!sy_tpl_skip_name(p, "not")) return compare(p);
    if (!nest(p)) return NULL;
    struct node *n = join(p, E_NOT, line, not(p), NULL);
    p->nest--;
    return n;
}

static struct node *logical(struct parser *p, bool is_or)
{
    int line = p->tok->line;
    struct node *left = is_or ? logical(p, false) : not(p);
    while (left && sy_tpl_skip_name(p, is_or ? "or" : "and")) {
        struct node *right = is_or ? logical(p, false) : not(p);
        if (!right) return NULL;
        left = join(p, is_or ? E_OR : E_AND, line, left, right);
    }
    return left;
}

struct node *sy_tpl_expression(struct parser *p, bool with_cond)
{
    int line = p->tok->line;
    if (!nest(p)) return NULL;
    struct node *n = logical(p, true);
    while (with_cond && n && sy_tpl_skip_name(p, "if")) {
        struct node *test_node = logical(p, true), *otherwise = NULL;
        if (!test_node) return NULL;
        if (sy_tpl_skip_name(p, "else") && !(otherwise = sy_tpl_expression(p, true))) return NULL;
        struct node *cond = join(p, E_COND, line, test_node, n);
        if (!cond || !sy_tpl_grow(p, cond, otherwise)) return NULL;
        cond->c = otherwise;
        n = cond;
    }
    p->nest--;
    return n;
}
