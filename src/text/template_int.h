/* template_int.h - shared by template*.c and by nobody else.
 *
 * A template goes lexer -> tokens -> parser -> nodes -> scope analysis (names become slots) and is then immutable.
 * A rendering walks the nodes with a struct run, which owns the arena that every value lives in. Values are
 * immutable but for namespaces, loops, cyclers and joiners; text is shared, never copied to be cut.
 *
 * Functions that can fail return false after sy_tpl_fail() wrote the first error; later ones are ignored. */
#pragma once
#include "base/arena.h"
#include "base/utf8.h"
#include "text/template.h"

enum {
    SY_TPL_NEST_MAX = 200,       /* brackets, blocks and expressions inside each other, in the source          */
    SY_TPL_HEIGHT_MAX = 500,     /* of a syntax tree: 'a' + 'b' + ... grows it by one per term                 */
    SY_TPL_WALK_MAX = 1500,      /* C recursion while rendering, all kinds together: about 1 MB of stack       */
    SY_TPL_DATA_DEPTH_MAX = 500, /* lists in lists, in data from outside or made by a template                 */
    SY_TPL_RANGE_MAX = 100000,   /* transformers' sandbox has the same                                          */
    SY_TPL_PAD_MAX = 1 << 20,    /* bytes that one repetition or padding may make out of nothing               */
};

/* ---- text with provenance ------------------------------------------------------------------------------- */

enum trust { UNTRUSTED, TRUSTED, MIXED };
struct piece { /* bytes up to `end`, from where the piece before it ended */
    size_t end;
    bool trusted;
};
struct store { /* bytes that grow; strings are views into it, and what is appended behind them leaves them alone */
    char *at;
    size_t used, cap;
    struct piece *piece;
    size_t n_piece, cap_piece;
    struct piece first[2];
};
struct str {
    const char *at;
    size_t n, n_char;    /* bytes; code points, SIZE_MAX: not counted yet                               */
    struct store *store; /* where it lies, if it can be appended to or is MIXED                           */
    uint8_t trust;       /* enum trust; MIXED: ask store->piece                                           */
    bool markup;         /* came from |safe or |escape: + escapes what it meets                           */
};

/* ---- values --------------------------------------------------------------------------------------------- */

enum kind {
    V_MISSING,
    V_UNDEF,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STR,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_VIEW,
    V_RANGE,
    V_ITER,
    V_NS,
    V_MACRO,
    V_METHOD,
    V_FUNC,
    V_LOOP,
    V_CYCLER,
    V_JOINER,
};
enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };

struct val {
    uint8_t kind;
    bool taint; /* came from outside the template; for V_STR the string itself knows */
    union {
        bool b;
        __int128 i; /* Python's integers, as far as 128 bits reach; beyond is an error */
        double f;
        const struct str *s;
        struct list *list;
        struct dict *dict; /* V_DICT, V_NS */
        struct view *view;
        struct range *range;
        struct iter *iter;
        struct undef *undef;
        struct macro *macro;
        struct method *method;
        const struct func *func;
        struct loop *loop;
        struct cycler *cycler;
        struct joiner *joiner;
    };
};
struct list {
    size_t n;
    struct val *at;
    bool group; /* a tuple (grouper, list) from groupby: its items have names */
};
struct entry {
    struct val key, value;
    uint32_t hash;
};
struct dict { /* in insertion order; index: open addressing over entries, once there are many */
    struct entry *at;
    size_t n, cap;
    uint32_t *index;
    size_t n_index;
};
struct view {
    struct dict *dict;
    enum view_kind kind;
};
struct range {
    int64_t start, stop, step;
    size_t n;
};
struct iter { /* a generator: what is left of a list; no length, always true */
    struct list *list;
    size_t at;
    const char *what;
    const char *error; /* what failed behind the list's last item: told to whoever gets there */
};
struct undef {
    const struct str *name;
    const char *hint;  /* the message; NULL: made of the others                      */
    const char *owner; /* type of the object that had no such attribute; NULL: a variable */
};
struct macro {
    const struct node *def;
    struct frame *closure;
};
struct cycler {
    struct list *items;
    size_t at;
};
struct joiner {
    const struct str *sep;
    bool used;
};

struct keyword { /* an argument in a call, or a parameter with its default (NULL: none) */
    const struct str *name;
    struct node *value;
};
struct named {
    const struct str *name;
    struct val value;
};
struct args {
    struct val *at;
    size_t n;
    struct named *kw;
    size_t n_kw;
};
/* Filters, tests, methods: at most 6 parameters, bound by position or name; V_MISSING where not given. Parameters of
 * methods whose name is "" cannot be named. */
enum { SY_TPL_PARAM_MAX = 6 };
struct run;
struct filter {
    const char *name;
    bool (*call)(struct run *, const struct val *arg, struct val *out); /* arg[0] is the filtered value   */
    const char *param[SY_TPL_PARAM_MAX];                                /* after the value                */
    int n_required;
    bool (*free_call)(struct run *, const struct val *value, const struct args *, struct val *out); /* instead */
};
struct test {
    const char *name;
    bool (*call)(struct run *, const struct val *arg, bool *out);
    const char *param[2];
    int n_required;
};
struct method_def {
    const char *name;
    bool (*call)(struct run *, int op, const struct val *arg,
                 struct val *out); /* arg[0] is the object; NULL: unsafe */
    int op;                        /* for functions that several methods share */
    const char *param[SY_TPL_PARAM_MAX];
    int n_required;
    bool (*free_call)(struct run *, const struct val *self, const struct args *, struct val *out); /* instead */
};
struct method {
    struct val self;
    const struct method_def *def;
};
struct func {
    const char *name;
    bool (*call)(struct run *, const struct args *, struct val *out);
};

/* ---- source: tokens and nodes ----------------------------------------------------------------------------- */

enum token_kind {
    T_EOF,
    T_DATA,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_ADD,
    T_SUB,
    T_MUL,
    T_DIV,
    T_FLOORDIV,
    T_MOD,
    T_POW,
    T_TILDE,
    T_EQ,
    T_NE,
    T_LT,
    T_LE,
    T_GT,
    T_GE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON,
    T_LPAREN,
    T_RPAREN,
    T_LBRACKET,
    T_RBRACKET,
    T_LBRACE,
    T_RBRACE,
};
struct token {
    enum token_kind kind;
    int line;
    const char *at; /* text: of the source, or unescaped for strings */
    size_t n;
    union {
        __int128 i;
        double f;
    };
};
struct compile { /* what lexer, parser and scope analysis share */
    struct sy_arena *arena, *scratch;
    struct sy_err *err;
    sy_status st;
    struct token *tok;
    size_t n_tok, cap_tok;
};

enum node_kind {
    E_CONST,
    E_NAME,
    E_TUPLE,
    E_LIST,
    E_DICT,
    E_NOT,
    E_NEG,
    E_POS,
    E_BINARY,
    E_AND,
    E_OR,
    E_CONCAT,
    E_COMPARE,
    E_OPERAND,
    E_COND,
    E_ATTR,
    E_ITEM,
    E_SLICE,
    E_CALL,
    E_FILTER,
    E_TEST,
    E_NSREF,
    S_BODY,
    S_DATA,
    S_PRINT,
    S_IF,
    S_FOR,
    S_SET,
    S_SET_BLOCK,
    S_MACRO,
    S_CALL,
    S_FILTER,
    S_WITH,
    S_GENERATION,
    S_BREAK,
    S_CONTINUE,
};
enum compare_op { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE, CMP_IN, CMP_NOT_IN };

struct ref { /* a variable: `up` frames outwards, then its slot */
    uint16_t up, slot;
};
enum slot_action { SLOT_PARAM, SLOT_UNDEFINED, SLOT_RESOLVE, SLOT_ALIAS };
struct slot {
    const struct str *name;
    enum slot_action action;
    struct ref outer; /* SLOT_ALIAS: copied from there when the frame is entered */
};
struct scope {
    struct scope *parent;
    struct slot *slot;
    size_t n, cap;
    int loop, caller, kwargs, varargs; /* slots of the special names, -1: not used in the body */
};
/* kind      a          b          c         kid                     other
 * E_NAME                                                            text, ref; flag: assigned
 * E_NSREF                                                           text, ref, value: the attribute
 * E_BINARY  left       right                                        op: token_kind
 * E_COMPARE first                           E_OPERAND...            E_OPERAND: a, op: compare_op
 * E_COND    test       then       else
 * E_ATTR    object                                                  text
 * E_ITEM    object     index or E_SLICE (a start, b stop, c step; each may be NULL)
 * E_CALL    callee     *args      **kwargs  arguments               kw
 * E_FILTER  value or NULL, the rest as E_CALL; text, fn; flag: an unknown one fails only when reached
 * E_TEST    value, the rest as E_CALL; text, fn; flag as E_FILTER
 * E_DICT                                    key, value, ...
 * S_IF                 else                 test, body, ...
 * S_FOR     target     iterable   test      body, else or NULL      flag: recursive; scope, scope2 test, scope3 else
 * S_SET     target     value
 * S_SET_BLOCK target   filters              body                    scope
 * S_MACRO                                   body                    text, ref, kw: parameters, scope
 * S_CALL    call                            body                    kw: parameters, scope
 * S_FILTER  filters                         body                    scope
 * S_WITH                                    target, value, ... body scope
 * S_GENERATION                              body                    scope */
struct node {
    uint8_t kind, op;
    bool flag;
    uint16_t height;
    int line;
    struct node *a, *b, *c;
    struct node **kid;
    size_t n_kid;
    struct keyword *kw;
    size_t n_kw;
    const struct str *text;
    struct val value;
    struct ref ref;
    struct scope *scope, *scope2, *scope3;
    const void *fn;
};

struct sy_template {
    struct sy_arena arena;
    const struct sy_env *env;
    struct sy_template_limits limit;
    const char *source; /* continue_final_message looks for field names in it */
    size_t n_source;
    struct node *root; /* S_BODY */
    struct scope *scope;
};

/* ---- a rendering ------------------------------------------------------------------------------------------ */

struct frame { /* the variables of one scope, while it runs */
    struct frame *parent;
    const struct scope *scope;
    struct val slot[];
};
struct run {
    const struct sy_template *t;
    struct sy_arena arena;
    const struct sy_env *env;
    struct sy_err error;
    sy_status st;
    uint64_t steps_left;
    int depth, calls, line;
    struct dict *vars; /* what the caller gave; the built-in functions lie under it */
    int64_t now;
    struct sy_rendered *out;
    size_t cap_span, cap_generation;
    struct store *capture; /* where output goes; NULL: to out */
    struct val captured;   /* what the filters of a filter or set block start from */
};

/* template_lex.c, template_parse.c, template_expr.c, template_scope.c; template.c: sy_tpl_error */
bool sy_tpl_error(struct compile *, sy_status, int line, const char *fmt, ...) SY_PRINTF(4, 5);
bool sy_tpl_lex(struct compile *, const char *source, size_t n);
struct node *sy_tpl_parse(struct compile *);
struct scope *sy_tpl_analyse(struct compile *, struct node *root);
void *sy_tpl_alloc(struct compile *, size_t n, size_t size); /* from the template's arena; NULL: failed */
const struct str *sy_tpl_literal(struct compile *, const char *at, size_t n); /* trusted; NULL: failed */

struct parser {
    struct compile *c;
    const struct token *tok;
    int nest, loops; /* loops: enclosing for statements in the same function, for break and continue */
};
struct node *sy_tpl_node(struct parser *, enum node_kind, int line);
bool sy_tpl_grow(struct parser *, struct node *parent, const struct node *child); /* height; NULL child is fine */
bool sy_tpl_kid(struct parser *, struct node *parent, struct node *child);        /* false if child is NULL     */
bool sy_tpl_expect(struct parser *, enum token_kind, const char *what);
bool sy_tpl_is_name(const struct token *, const char *name);
bool sy_tpl_skip_name(struct parser *, const char *name);
bool sy_tpl_unexpected(struct parser *, const char *wanted);
struct node *sy_tpl_expression(struct parser *, bool with_cond);
enum tuple_end { END_PLAIN, END_IN, END_RECURSIVE };
struct node *sy_tpl_tuple(struct parser *, bool with_cond, enum tuple_end, bool parenthesised);
struct node *sy_tpl_primary(struct parser *, bool with_namespace);
struct node *sy_tpl_filters(struct parser *, struct node *value, bool start_inline);

/* template_value.c */
bool sy_tpl_fail(struct run *, sy_status, const char *fmt, ...) SY_PRINTF(3, 4); /* always false */
void *sy_tpl_get(struct run *, size_t n, size_t size);
bool sy_tpl_spend(struct run *, uint64_t steps);
void sy_tpl_cost(struct run *, uint64_t steps); /* for work without a way to fail: the next spend notices */
bool sy_tpl_enter(struct run *);                /* one level of C recursion; leave with r->depth-- */
struct val sy_tpl_none(void);
struct val sy_tpl_bool(bool, bool taint);
struct val sy_tpl_int(__int128, bool taint);
struct val sy_tpl_float(double, bool taint);
struct val sy_tpl_of_str(const struct str *);
struct val sy_tpl_of_list(enum kind, struct list *, bool taint);
bool sy_tpl_undefined(struct run *, const struct str *name, const char *owner, const char *hint, struct val *out);
bool sy_tpl_undef_fail(struct run *, const struct val *undefined);
struct list *sy_tpl_list(struct run *, size_t n);
bool sy_tpl_iter(struct run *, struct list *, const char *what, bool taint, struct val *out);
struct dict *sy_tpl_dict(struct run *, size_t cap);
bool sy_tpl_dict_set(struct run *, struct dict *, const struct val *key, const struct val *value);
bool sy_tpl_dict_get(struct run *, const struct dict *, const struct val *key, const struct val **value);
const struct val *sy_tpl_dict_text(const struct dict *, const char *key, size_t n);
const char *sy_tpl_type(const struct val *);
bool sy_tpl_truth(const struct val *);
bool sy_tpl_tainted(const struct val *);
bool sy_tpl_hashable(const struct val *);
bool sy_tpl_equal(struct run *, const struct val *, const struct val *, bool *out);
bool sy_tpl_compare(struct run *, enum compare_op, const struct val *, const struct val *, bool *out);
bool sy_tpl_contains(struct run *, const struct val *item, const struct val *in, bool *out);
bool sy_tpl_len(struct run *, const struct val *, size_t *n); /* fails where Python's len() does */
bool sy_tpl_is_iterable(const struct val *);
struct walk { /* over anything iterable, without copying it */
    struct val of;
    size_t i, n;
};
bool sy_tpl_walk(struct run *, const struct val *, struct walk *);
bool sy_tpl_next(struct run *, struct walk *, struct val *out, bool *more);
struct list *sy_tpl_to_list(struct run *, const struct val *); /* a new list, or the value's own */
bool sy_tpl_index(const struct val *, int64_t *out);           /* an int or bool, clamped to 64 bits */
bool sy_tpl_sort(struct run *, struct val *item, struct val *key, size_t n, bool reverse); /* stable, by key */
bool sy_tpl_bind(struct run *, const char *what, const char *const *param, int n_required, const struct args *,
                 struct val *arg);

/* template_string.c: strings as immutable views, counted in code points */
extern const struct str sy_tpl_empty;
struct store *sy_tpl_store(struct run *, size_t cap);
bool sy_tpl_add(struct run *, struct store *, const char *at, size_t n, bool trusted);
bool sy_tpl_add_char(struct run *, struct store *, uint32_t code_point, bool trusted);
bool sy_tpl_add_part(struct run *, struct store *, const struct str *, size_t at, size_t n);
bool sy_tpl_add_str(struct run *, struct store *, const struct str *);
bool sy_tpl_add_fill(struct run *, struct store *, const struct str *fill, int64_t times);
bool sy_tpl_took(struct run *, struct store *, struct val *out); /* the store's text as a value */
const struct str *sy_tpl_string(struct run *, const char *at, size_t n, bool trusted); /* borrowed bytes */
const struct str *sy_tpl_copy(struct run *, const char *at, size_t n, bool trusted);
const struct str *sy_tpl_part(struct run *, const struct str *, size_t at, size_t n);
const struct str *sy_tpl_concat(struct run *, const struct str *, const struct str *);
size_t sy_tpl_piece(const struct str *, size_t at, bool *trusted); /* where the run of equal trust from `at` ends */
bool sy_tpl_trusted(const struct str *);
size_t sy_tpl_chars(struct run *, const struct str *);
size_t sy_tpl_offset(struct run *, const struct str *, size_t char_index); /* in bytes */
bool sy_tpl_is(const struct str *, const char *text);
size_t sy_tpl_find(struct run *, const struct str *, const struct str *what, size_t from); /* bytes; SIZE_MAX: no */
const struct str *sy_tpl_marked(struct run *, const struct str *, bool markup);
bool sy_tpl_escape(struct run *, const struct str *, struct val *out); /* & < > ' " */
void sy_tpl_strip(struct run *, const struct str *, const struct str *chars, bool left, bool right, size_t *at,
                  size_t *n);
size_t sy_tpl_trim_end(const char *s, size_t n); /* n without trailing white space */

/* template_unicode.c: what Python's str knows of Unicode */
bool sy_tpl_is_space(uint32_t c);
bool sy_tpl_is_word(uint32_t c); /* \w */
bool sy_tpl_is_printable(uint32_t c);
bool sy_tpl_is_class(const struct str *, const char *which); /* isalpha, isdigit, ... */
enum case_op { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE, CASE_SWAP, CASE_FOLD };
bool sy_tpl_case(struct run *, const struct str *, enum case_op, struct val *out);

/* template_text.c: values as text */
struct text_how { /* json.dumps */
    bool ascii, sort;
    const struct str *indent; /* NULL: on one line */
    const struct str *item_sep, *key_sep;
};
bool sy_tpl_str(struct run *, const struct val *, const struct str **out);  /* str() */
bool sy_tpl_repr(struct run *, const struct val *, const struct str **out); /* repr() */
bool sy_tpl_json(struct run *, const struct val *, const struct text_how *, struct val *out);
size_t sy_tpl_float_text(double, char out[40]); /* shortest that reads back, as repr() */
size_t sy_tpl_int_text(__int128, unsigned base, bool upper, char out[136]);

/* template_format.c */
bool sy_tpl_percent(struct run *, const struct str *fmt, const struct val *arg, struct val *out);
bool sy_tpl_format(struct run *, const struct str *fmt, const struct args *, const struct dict *map, struct val *out);
bool sy_tpl_strftime(struct run *, const struct str *fmt, struct val *out);

/* template_number.c */
bool sy_tpl_arith(struct run *, enum token_kind op, const struct val *, const struct val *, struct val *out);
bool sy_tpl_negate(struct run *, const struct val *, bool minus, struct val *out);
bool sy_tpl_parse_int(const char *s, size_t n, unsigned base, __int128 *out);
bool sy_tpl_parse_float(const char *s, size_t n, double *out);
bool sy_tpl_trunc(double, __int128 *out); /* false: not finite, or beyond 128 bits */
bool sy_tpl_round(struct run *, const struct val *, int64_t digits, struct val *out);
bool sy_tpl_as_float(const struct val *, double *out); /* a number or bool */

/* template_attr.c, template_method.c */
bool sy_tpl_attr(struct run *, const struct val *, const struct str *name, struct val *out); /* object.name     */
bool sy_tpl_item(struct run *, const struct val *, const struct val *key, struct val *out);  /* object[key]     */
bool sy_tpl_own_attr(struct run *, const struct val *, const struct str *name, bool *there, struct val *out);
bool sy_tpl_slice(struct run *, const struct val *, const struct val bound[3], struct val *out);
const struct method_def *sy_tpl_str_method(const char *name, size_t n); /* NULL: none */
bool sy_tpl_method_call(struct run *, const struct method *, const struct args *, struct val *out);
bool sy_tpl_str_op(struct run *, const char *method, const struct str *, const struct val *arg, size_t n,
                   struct val *out);

/* template_filter*.c, template_test.c */
const struct filter *sy_tpl_filter_find(const char *name, size_t n);
const struct test *sy_tpl_test_find(const char *name, size_t n);
const char *sy_tpl_refused_filter(const char *name, size_t n); /* why jinja2's filter is not here; NULL: unknown */
bool sy_tpl_filter_call(struct run *, const struct filter *, const struct val *, const struct args *,
                        struct val *out);
bool sy_tpl_test_call(struct run *, const struct test *, const struct val *, const struct args *, bool *out);
extern const struct filter sy_tpl_list_filters[];

/* template_eval.c, template_exec.c, template_global.c */
bool sy_tpl_eval(struct run *, struct frame *, const struct node *, struct val *out);
bool sy_tpl_call(struct run *, const struct val *callee, const struct args *, struct val *out);
bool sy_tpl_arguments(struct run *, struct frame *, const struct node *, struct args *, size_t extra_kw);
bool sy_tpl_assign(struct run *, struct frame *, const struct node *target, const struct val *);
bool sy_tpl_execute(struct run *);
bool sy_tpl_call_macro(struct run *, const struct macro *, const struct args *, struct val *out);
bool sy_tpl_call_loop(struct run *, struct loop *, const struct args *, struct val *out);
bool sy_tpl_loop_attr(struct run *, struct loop *, const struct str *name, bool *there, struct val *out);
struct frame *sy_tpl_frame(struct run *, struct frame *parent, const struct scope *);
const struct func *sy_tpl_global(const char *name, size_t n);
bool sy_tpl_emit(struct run *, const struct str *);

/* template_chat.c: the conversation as transformers hands it to a template */
bool sy_tpl_from_json(struct run *, const struct sy_json *, int depth, struct val *out);
struct chat_end { /* of continue_final_message */
    bool on;
    const struct str *text; /* what the final message said, stripped */
};
bool sy_tpl_chat(struct run *, const struct sy_render *, struct chat_end *);
bool sy_tpl_cut(struct run *, const struct chat_end *);
