#include "graph/graph.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sy_graph {
    struct sy_arena arena;
    struct sy_node *node;
    uint32_t n, cap;
    struct sy_shape shape;
    sy_val result;
    int32_t layer; /* of the weight named last: the layer ops are said to belong to */
    bool keep_hidden;
    const char *from, *to; /* of names; NULL: as they are */
    struct sy_err err;
};

const char *sy_op_name(enum sy_op op)
{
    static const char *const names[] = {
#define X(name, doc) #name,
        SY_OPS(X)
#undef X
    };
    return (unsigned)op < SY_COUNT(names) ? names[op] : "?";
}

sy_status sy_graph_new(const struct sy_env *env, struct sy_shape shape, struct sy_graph **out, struct sy_err *err)
{
    struct sy_graph *g = sy_new(env, sizeof *g);
    if (!g) return sy_fail(err, SY_ENOMEM, "no memory for a graph");
    sy_arena_init(&g->arena, env, 0);
    g->shape = shape;
    g->layer = -1;
    g->cap = 64;
    g->node = sy_arena_array(&g->arena, g->cap, sizeof *g->node);
    if (!g->node) {
        sy_graph_free(g);
        return sy_fail(err, SY_ENOMEM, "no memory for a graph");
    }
    g->n = 1; /* node 0 is SY_NONE */
    *out = g;
    return SY_OK;
}

void sy_graph_free(struct sy_graph *g)
{
    if (!g) return;
    const struct sy_env *env = g->arena.env;
    sy_arena_release(&g->arena);
    sy_delete(env, g);
}

void sy_graph_refuse(struct sy_graph *g, sy_status code, const char *fmt, ...)
{
    if (g->err.code) return;
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    (void)sy_fail(&g->err, code, "building the graph: %s", msg);
}

void sy_graph_keep_hidden(struct sy_graph *g) { g->keep_hidden = true; }
bool sy_graph_keeps_hidden(const struct sy_graph *g) { return g->keep_hidden; }

void sy_graph_rename(struct sy_graph *g, const char *from, const char *to)
{
    g->from = from;
    g->to = to;
}

static struct sy_node *push(struct sy_graph *g, enum sy_op op, int64_t rows, int64_t cols)
{
    if (g->err.code) return NULL;
    if (g->n == g->cap) {
        struct sy_node *more = sy_arena_array(&g->arena, 2 * (size_t)g->cap, sizeof *more);
        if (!more) {
            sy_graph_refuse(g, SY_ENOMEM, "no memory for %u nodes", 2 * g->cap);
            return NULL;
        }
        memcpy(more, g->node, g->n * sizeof *more);
        g->node = more;
        g->cap *= 2;
    }
    struct sy_node *n = &g->node[g->n++];
    *n = (struct sy_node){.op = op, .dtype = SY_F32, .layer = g->layer, .dim = {rows, cols}};
    return n;
}

static sy_val last(const struct sy_graph *g, const struct sy_node *n) { return n ? (sy_val){g->n - 1} : SY_NONE; }

/* The operand, or NULL (and an error) when it is missing. */
static const struct sy_node *use(struct sy_graph *g, sy_val v, const char *op)
{
    if (g->err.code) return NULL;
    if (v.id == 0 || v.id >= g->n) {
        sy_graph_refuse(g, SY_ESHAPE, "%s: an operand is missing", op);
        return NULL;
    }
    return &g->node[v.id];
}

/* ---- sources -------------------------------------------------------------------------------------------- */

sy_val sy_input(struct sy_graph *g, enum sy_field f)
{
    for (uint32_t i = 1; i < g->n; i++)
        if (g->node[i].op == SY_OP_INPUT && g->node[i].attr.field == f) return (sy_val){i};
    struct sy_node *n = push(g, SY_OP_INPUT, sy_field_len(f, g->shape), 1);
    if (n) {
        n->dtype = SY_I32;
        n->attr.field = f;
    }
    return last(g, n);
}

sy_val sy_given(struct sy_graph *g, int64_t d) { return last(g, push(g, SY_OP_GIVEN, g->shape.tok, d)); }

static sy_val weight(struct sy_graph *g, const char *fmt, int layer, int64_t rows, int64_t cols, union sy_attr attr)
{
    if (g->err.code) return SY_NONE;
    char name[2048]; /* ranks of several stages know a weight by several names */
    size_t n_from = g->from ? strlen(g->from) : 0;
    bool renamed = n_from && !strncmp(fmt, g->from, n_from);
    const char *rest = renamed ? fmt + n_from : fmt, *stem = renamed ? g->to : "", *d = strstr(rest, "%d");
    if (d) snprintf(name, sizeof name, "%s%.*s%d%s", stem, (int)(d - rest), rest, layer, d + 2);
    else snprintf(name, sizeof name, "%s%s", stem, rest);
    for (uint32_t i = 1; i < g->n; i++)
        if (g->node[i].op == SY_OP_WEIGHT && !strcmp(g->node[i].name, name)) return (sy_val){i};
    g->layer = d ? layer : -1;
    char *copy = sy_arena_text(&g->arena, name, strlen(name));
    struct sy_node *n = push(g, SY_OP_WEIGHT, rows, cols);
    if (!copy) sy_graph_refuse(g, SY_ENOMEM, "no memory for a name");
    if (!n || !copy) return SY_NONE;
    n->name = copy;
    n->attr = attr;
    return last(g, n);
}

sy_val sy_weight(struct sy_graph *g, enum sy_split split, const char *name, int layer, int64_t rows, int64_t cols)
{
    return weight(g, name, layer, rows, cols, (union sy_attr){.weight = {.split = split}});
}

sy_val sy_weight_exact(struct sy_graph *g, const char *name, int layer, int64_t rows, int64_t cols)
{
    return weight(g, name, layer, rows, cols, (union sy_attr){.weight = {.split = SY_WHOLE, .exact = true}});
}

sy_val sy_weight_experts(struct sy_graph *g, const char *name, int layer, int32_t n_expert, int64_t rows,
                         int64_t cols)
{
    char all[256];
    const char *mark = strchr(name, '#');
    sy_assert(mark); /* a model file's own words */
    snprintf(all, sizeof all, "%.*s{0..%d}%s", (int)(mark - name), name, n_expert - 1, mark + 1);
    union sy_attr attr = {.weight = {.split = SY_BY_EXPERT}};
    if (cols == 0) return weight(g, all, layer, 1, n_expert * rows, attr);
    return weight(g, all, layer, n_expert * rows, cols, attr);
}

sy_val sy_weight_regrouped(struct sy_graph *g, enum sy_split split, const char *name, int layer, int64_t rows,
                           int64_t cols, struct sy_regroup r)
{
    int64_t all = (int64_t)r.part[0] + r.part[1] + r.part[2] + r.part[3];
    if (r.n_group > 0 && all * r.n_group == rows && !strchr(name, '{'))
        return weight(g, name, layer, rows, cols, (union sy_attr){.weight = {.split = split, .regroup = r}});
    sy_graph_refuse(g, SY_ESHAPE, "WEIGHT '%s': %d groups of %lld rows are not %lld rows", name, r.n_group,
                    (long long)all, (long long)rows);
    return SY_NONE;
}

sy_val sy_norm_weight(struct sy_graph *g, const char *name, int layer, int64_t d, bool plus_one)
{
    return sy_vector(g, name, layer, d, plus_one ? SY_PLUS_ONE : SY_AS_IS, 1);
}

sy_val sy_vector(struct sy_graph *g, const char *name, int layer, int64_t d, enum sy_wmap map, int32_t repeat)
{
    if (repeat >= 1 && d % repeat == 0)
        return weight(g, name, layer, 1, d, (union sy_attr){.weight = {.map = map, .repeat = repeat}});
    sy_graph_refuse(g, SY_ESHAPE, "WEIGHT '%s': %lld columns of %d each", name, (long long)d, repeat);
    return SY_NONE;
}

sy_val sy_weight_rank(struct sy_graph *g, const struct sy_node *whole, const char *name, int64_t rows, int64_t cols,
                      struct sy_share share)
{
    union sy_attr attr = whole->attr;
    attr.weight.share = share;
    sy_val v = weight(g, name, -1, rows, cols, attr);
    if (v.id) g->layer = g->node[v.id].layer = whole->layer;
    return v;
}

/* Part i of a name with one list {a,b,c} or none. *n_part: how many there are. */
static bool list_part(const char *name, int i, char *buf, size_t n_buf, int *n_part)
{
    const char *open = strchr(name, '{'), *close = open ? strchr(open, '}') : NULL;
    *n_part = 1;
    if (!close) {
        snprintf(buf, n_buf, "%s", name);
        return i == 0;
    }
    const char *part = NULL, *end = NULL, *from = open + 1;
    for (const char *p = from; p <= close; p++) {
        if (*p != ',' && p != close) continue;
        if (i-- == 0) {
            part = from;
            end = p;
        }
        from = p + 1;
        *n_part += p != close;
    }
    if (!part) return false;
    snprintf(buf, n_buf, "%.*s%.*s%s", (int)(open - name), name, (int)(end - part), part, close + 1);
    return true;
}

void sy_weight_stage(const char *name, int32_t stage, char *buf, size_t n_buf)
{
    for (const char *end; stage > 0 && (end = strchr(name, '|')); stage--) name = end + 1;
    snprintf(buf, n_buf, "%.*s", (int)strcspn(name, "|"), name);
}

bool sy_weight_part(const char *name, int i, char *buf, size_t n_buf)
{
    const char *range = strstr(name, "{0.."), *close = range ? strchr(range, '}') : NULL;
    int n_part;
    if (!close) return list_part(name, i, buf, n_buf, &n_part);
    char one[300];
    long last_expert = strtol(range + 4, NULL, 10); /* our own text: models write names */
    (void)list_part(close + 1, 0, one, sizeof one, &n_part);
    if (i / n_part > last_expert) return false;
    snprintf(one, sizeof one, "%.*s%d%s", (int)(range - name), name, i / n_part, close + 1);
    return list_part(one, i % n_part, buf, n_buf, &n_part);
}

sy_val sy_vector_flat(struct sy_graph *g, const char *name, int layer, int64_t d)
{
    return weight(g, name, layer, 1, d, (union sy_attr){.weight = {.repeat = 1, .flat = true}});
}

sy_val sy_const(struct sy_graph *g, const float *x, int64_t d)
{
    struct sy_node *n = push(g, SY_OP_CONST, 1, d);
    if (n) n->attr.constant = x;
    return last(g, n);
}

sy_val sy_state(struct sy_graph *g, struct sy_state_spec spec)
{
    struct sy_node *n = push(g, SY_OP_STATE, 1, spec.elems);
    if (n) {
        n->layer = spec.layer;
        n->attr.state = spec;
    }
    return last(g, n);
}

/* ---- ops ------------------------------------------------------------------------------------------------- */

static sy_val unary(struct sy_graph *g, enum sy_op op, sy_val x, union sy_attr attr)
{
    const struct sy_node *a = use(g, x, sy_op_name(op));
    if (!a) return SY_NONE;
    struct sy_node *n = push(g, op, a->dim[0], a->dim[1]);
    if (n) {
        n->in[0] = x;
        n->attr = attr;
    }
    return last(g, n);
}

/* Elementwise over equal shapes; b may be one row for all, and of MUL one column. */
static sy_val binary(struct sy_graph *g, enum sy_op op, sy_val a, sy_val b, union sy_attr attr)
{
    const struct sy_node *x = use(g, a, sy_op_name(op)), *y = use(g, b, sy_op_name(op));
    if (!x || !y) return SY_NONE;
    bool column = op == SY_OP_MUL && y->dim[1] == 1;
    if ((x->dim[1] != y->dim[1] && !column) || (x->dim[0] != y->dim[0] && y->dim[0] != 1)) {
        sy_graph_refuse(g, SY_ESHAPE, "%s: [%lld, %lld] with [%lld, %lld]", sy_op_name(op), (long long)x->dim[0],
                        (long long)x->dim[1], (long long)y->dim[0], (long long)y->dim[1]);
        return SY_NONE;
    }
    struct sy_node *n = push(g, op, x->dim[0], x->dim[1]);
    if (n) {
        n->in[0] = a;
        n->in[1] = b;
        n->attr = attr;
    }
    return last(g, n);
}

sy_val sy_embed(struct sy_graph *g, sy_val table, sy_val ids)
{
    const struct sy_node *t = use(g, table, "EMBED"), *i = use(g, ids, "EMBED");
    if (!t || !i) return SY_NONE;
    struct sy_node *n = push(g, SY_OP_EMBED, i->dim[0], t->dim[1]);
    if (n) {
        n->in[0] = table;
        n->in[1] = ids;
    }
    return last(g, n);
}

sy_val sy_linear(struct sy_graph *g, sy_val x, sy_val w, sy_val bias)
{
    const struct sy_node *a = use(g, x, "LINEAR"), *b = use(g, w, "LINEAR");
    const struct sy_node *c = bias.id ? use(g, bias, "LINEAR") : NULL;
    if (!a || !b) return SY_NONE;
    if (a->dim[1] != b->dim[1] || (c && c->dim[1] != b->dim[0])) {
        sy_graph_refuse(g, SY_ESHAPE, "LINEAR '%s' [%lld, %lld] on %lld columns", b->name, (long long)b->dim[0],
                        (long long)b->dim[1], (long long)a->dim[1]);
        return SY_NONE;
    }
    int64_t rows = a->dim[0], cols = b->dim[0];
    struct sy_node *n = push(g, SY_OP_LINEAR, rows, cols);
    if (n) {
        n->in[0] = x;
        n->in[1] = w;
        n->in[2] = bias;
    }
    return last(g, n);
}

static sy_val norm(struct sy_graph *g, sy_val x, sy_val w, struct sy_norm_dim dim)
{
    const struct sy_node *a = use(g, x, "NORM"), *b = w.id ? use(g, w, "NORM") : NULL;
    if (!a || (w.id && !b)) return SY_NONE;
    int64_t d = b ? b->dim[1] : dim.d;
    if (d <= 0 || a->dim[1] % d != 0) {
        sy_graph_refuse(g, SY_ESHAPE, "NORM '%s' of %lld on %lld columns", b ? b->name : "", (long long)d,
                        (long long)a->dim[1]);
        return SY_NONE;
    }
    dim.d = (int32_t)d;
    sy_val v = unary(g, SY_OP_NORM, x, (union sy_attr){.norm = dim});
    if (v.id) g->node[v.id].in[1] = w;
    return v;
}

sy_val sy_norm(struct sy_graph *g, sy_val x, sy_val w, float eps)
{
    if (!use(g, w, "NORM")) return SY_NONE;
    return norm(g, x, w, (struct sy_norm_dim){.eps = eps});
}

sy_val sy_norm_centred(struct sy_graph *g, sy_val x, sy_val w, float eps)
{
    if (!use(g, w, "NORM")) return SY_NONE;
    return norm(g, x, w, (struct sy_norm_dim){.eps = eps, .centred = true});
}

sy_val sy_norm_unit(struct sy_graph *g, sy_val x, int32_t d, float eps)
{
    return norm(g, x, SY_NONE, (struct sy_norm_dim){.eps = eps, .d = d});
}

sy_val sy_temper(struct sy_graph *g, sy_val x, struct sy_temper_dim d)
{
    sy_val pos = sy_input(g, SY_POS);
    if (d.every <= 0) sy_graph_refuse(g, SY_ESHAPE, "TEMPER every %d positions", d.every);
    sy_val v = unary(g, SY_OP_TEMPER, x, (union sy_attr){.temper = d});
    if (v.id) g->node[v.id].in[1] = pos;
    return v;
}

sy_val sy_sparsify(struct sy_graph *g, sy_val x, float c)
{
    return unary(g, SY_OP_SPARSIFY, x, (union sy_attr){.c = c});
}

sy_val sy_match(struct sy_graph *g, sy_val a, sy_val b, float eps)
{
    return binary(g, SY_OP_MATCH, a, b, (union sy_attr){.c = eps});
}

sy_val sy_rope(struct sy_graph *g, sy_val x, struct sy_rope_dim d)
{
    const struct sy_node *a = use(g, x, "ROPE");
    if (!a) return SY_NONE;
    if (d.d_head <= 0 || a->dim[1] % d.d_head || d.first < 0 || d.d_rot > d.d_head - d.first || d.d_rot % 2) {
        sy_graph_refuse(g, SY_ESHAPE, "ROPE of %d of %d dims on %lld columns", d.d_rot, d.d_head,
                        (long long)a->dim[1]);
        return SY_NONE;
    }
    return unary(g, SY_OP_ROPE, x, (union sy_attr){.rope = d});
}

sy_val sy_act(struct sy_graph *g, sy_val x, enum sy_fn fn)
{
    return unary(g, SY_OP_ACT, x, (union sy_attr){.fn = fn});
}
sy_val sy_glu(struct sy_graph *g, sy_val gate, sy_val up, enum sy_fn fn)
{
    return sy_glu_bounded(g, gate, up, (struct sy_glu_dim){.fn = fn});
}
sy_val sy_glu_bounded(struct sy_graph *g, sy_val gate, sy_val up, struct sy_glu_dim d)
{
    return binary(g, SY_OP_GLU, gate, up, (union sy_attr){.glu = d});
}
sy_val sy_add(struct sy_graph *g, sy_val a, sy_val b) { return binary(g, SY_OP_ADD, a, b, (union sy_attr){0}); }
sy_val sy_mul(struct sy_graph *g, sy_val a, sy_val b) { return binary(g, SY_OP_MUL, a, b, (union sy_attr){0}); }
sy_val sy_scale(struct sy_graph *g, sy_val x, float c) { return unary(g, SY_OP_SCALE, x, (union sy_attr){.c = c}); }
sy_val sy_softcap(struct sy_graph *g, sy_val x, float c)
{
    return unary(g, SY_OP_SOFTCAP, x, (union sy_attr){.c = c});
}

sy_val sy_part(struct sy_graph *g, sy_val x, int32_t lo, int32_t hi)
{
    const struct sy_node *a = use(g, x, "PART");
    if (!a) return SY_NONE;
    if (lo < 0 || hi <= lo || hi > a->dim[1]) {
        sy_graph_refuse(g, SY_ESHAPE, "PART [%d, %d) of %lld columns", lo, hi, (long long)a->dim[1]);
        return SY_NONE;
    }
    int64_t rows = a->dim[0];
    struct sy_node *n = push(g, SY_OP_PART, rows, hi - lo);
    if (n) {
        n->in[0] = x;
        n->attr.part.lo = lo;
        n->attr.part.hi = hi;
    }
    return last(g, n);
}

sy_val sy_join(struct sy_graph *g, sy_val a, sy_val b)
{
    const struct sy_node *x = use(g, a, "JOIN"), *y = use(g, b, "JOIN");
    if (!x || !y) return SY_NONE;
    if (x->dim[0] != y->dim[0]) {
        sy_graph_refuse(g, SY_ESHAPE, "JOIN of %lld and %lld rows", (long long)x->dim[0], (long long)y->dim[0]);
        return SY_NONE;
    }
    int64_t rows = x->dim[0], cols = x->dim[1] + y->dim[1];
    struct sy_node *n = push(g, SY_OP_JOIN, rows, cols);
    if (n) {
        n->in[0] = a;
        n->in[1] = b;
    }
    return last(g, n);
}

sy_val sy_heads(struct sy_graph *g, sy_val x, sy_val w, struct sy_heads_dim d)
{
    const struct sy_node *a = use(g, x, "HEADS"), *b = use(g, w, "HEADS");
    if (!a || !b) return SY_NONE;
    int64_t each = d.n_head > 0 ? a->dim[1] / d.n_head : 0;
    bool ok = d.n_head > 0 && a->dim[1] % d.n_head == 0 && d.d_in > 0 && d.d_in <= each && d.d_out > 0 &&
              b->dim[0] == (int64_t)d.n_head * d.w_rows && b->dim[1] == (d.transposed ? d.d_out : d.d_in) &&
              d.row0 >= 0 && d.row0 <= d.w_rows - (d.transposed ? d.d_in : d.d_out);
    if (!ok) {
        sy_graph_refuse(g, SY_ESHAPE, "HEADS '%s' [%lld, %lld]: %d of %d to %d on %lld columns", b->name,
                        (long long)b->dim[0], (long long)b->dim[1], d.n_head, d.d_in, d.d_out, (long long)a->dim[1]);
        return SY_NONE;
    }
    int64_t rows = a->dim[0];
    struct sy_node *n = push(g, SY_OP_HEADS, rows, d.n_head * (each - d.d_in + d.d_out));
    if (n) {
        n->in[0] = x;
        n->in[1] = w;
        n->attr.heads = d;
    }
    return last(g, n);
}

sy_val sy_index(struct sy_graph *g, sy_val q, sy_val k, sy_val w, sy_val state, struct sy_index_dim d)
{
    const struct sy_node *a = use(g, q, "INDEX"), *b = use(g, k, "INDEX"), *c = use(g, w, "INDEX");
    const struct sy_node *s = use(g, state, "INDEX");
    if (!a || !b || !c || !s) return SY_NONE;
    bool ok = d.n_head > 0 && d.d > 0 && d.d <= SY_INDEX_DIM_MAX && d.n_top > 0 && d.every == s->attr.state.every &&
              a->dim[1] == (int64_t)d.n_head * d.d && b->dim[1] == d.d && c->dim[1] == d.n_head &&
              s->op == SY_OP_STATE && s->attr.state.elems == d.d && s->attr.state.window == 0;
    if (!ok) {
        sy_graph_refuse(g, SY_ESHAPE, "INDEX of %d by %d heads of %d (at most %d) on %lld, %lld, %lld columns",
                        d.n_top, d.n_head, d.d, SY_INDEX_DIM_MAX, (long long)a->dim[1], (long long)b->dim[1],
                        (long long)c->dim[1]);
        return SY_NONE;
    }
    int64_t rows = a->dim[0];
    struct sy_node *n = push(g, SY_OP_INDEX, rows, d.n_top);
    if (n) {
        n->in[0] = q;
        n->in[1] = k;
        n->in[2] = w;
        n->in[3] = state;
        n->attr.index = d;
    }
    return last(g, n);
}

/* A vector operand of n elements, or none. */
static bool vector_fits(struct sy_graph *g, sy_val v, int64_t n)
{
    if (!v.id) return true;
    const struct sy_node *a = use(g, v, "a vector");
    return a && a->dim[0] == 1 && a->dim[1] == n;
}

/* ---- streams, runs of tokens ------------------------------------------------------------------------------- */

sy_val sy_gates(struct sy_graph *g, sy_val x, sy_val scale, sy_val base, struct sy_gates_dim d)
{
    const struct sy_node *a = use(g, x, "GATES"), *b = use(g, scale, "GATES"), *c = use(g, base, "GATES");
    if (!a || !b || !c) return SY_NONE;
    int64_t n = d.n * ((int64_t)d.n + 2);
    if (d.n < 1 || d.n > SY_STREAMS_MAX || d.n_round < 1 || a->dim[1] != n || !vector_fits(g, scale, 3) ||
        !vector_fits(g, base, n)) {
        sy_graph_refuse(g, SY_ESHAPE, "GATES of %d streams (at most %d) on %lld columns", d.n, SY_STREAMS_MAX,
                        (long long)a->dim[1]);
        return SY_NONE;
    }
    sy_val v = unary(g, SY_OP_GATES, x, (union sy_attr){.gates = d});
    if (!v.id) return v;
    g->node[v.id].in[1] = scale;
    g->node[v.id].in[2] = base;
    return v;
}

sy_val sy_blend(struct sy_graph *g, sy_val x, sy_val weight, sy_val y, sy_val gain, struct sy_blend_dim d)
{
    const struct sy_node *a = use(g, x, "BLEND"), *b = use(g, weight, "BLEND");
    const struct sy_node *c = y.id ? use(g, y, "BLEND") : NULL, *e = gain.id ? use(g, gain, "BLEND") : NULL;
    if (!a || !b) return SY_NONE;
    int64_t each = d.n_in > 0 ? a->dim[1] / d.n_in : 0, rows = a->dim[0];
    bool ok = d.n_in > 0 && d.n_in <= SY_STREAMS_MAX && d.n_out > 0 && d.n_out <= SY_STREAMS_MAX &&
              a->dim[1] % d.n_in == 0 && b->dim[1] == (int64_t)d.n_in * d.n_out && b->dim[0] == rows && !c == !e &&
              (!c || (c->dim[1] == each && e->dim[1] == d.n_out && c->dim[0] == rows && e->dim[0] == rows));
    if (!ok) {
        sy_graph_refuse(g, SY_ESHAPE, "BLEND of %d streams to %d on %lld, %lld columns", d.n_in, d.n_out,
                        (long long)a->dim[1], (long long)b->dim[1]);
        return SY_NONE;
    }
    struct sy_node *n = push(g, SY_OP_BLEND, rows, d.n_out * each);
    if (n) {
        const sy_val operand[] = {x, weight, y, gain};
        memcpy(n->in, operand, sizeof operand);
        n->attr.blend = d;
    }
    return last(g, n);
}

sy_val sy_compress(struct sy_graph *g, sy_val x, sy_val w, sy_val slot, struct sy_compress_dim d)
{
    const struct sy_node *a = use(g, x, "COMPRESS"), *s = use(g, slot, "COMPRESS");
    if (!a || !s) return SY_NONE;
    int64_t c = a->dim[1] / 2, cols = d.overlap ? c / 2 : c, rows = a->dim[0];
    if (d.every < 2 || cols < 1 || a->dim[1] != 2 * cols * (d.overlap ? 2 : 1) || !vector_fits(g, w, d.every * c) ||
        s->op != SY_OP_STATE || s->attr.state.kind != SY_SLOTS || s->attr.state.elems != 3 * c) {
        sy_graph_refuse(g, SY_ESHAPE, "COMPRESS of runs of %d on %lld columns", d.every, (long long)a->dim[1]);
        return SY_NONE;
    }
    struct sy_node *n = push(g, SY_OP_COMPRESS, rows, cols);
    if (n) {
        n->in[0] = x;
        n->in[1] = w;
        n->in[3] = slot;
        n->attr.compress = d;
    }
    return last(g, n);
}

sy_val sy_keep(struct sy_graph *g, sy_val x, sy_val state)
{
    const struct sy_node *a = use(g, x, "KEEP"), *s = use(g, state, "KEEP");
    if (!a || !s) return SY_NONE;
    if (s->op != SY_OP_STATE || s->attr.state.kind != SY_BLOCKS || s->attr.state.every < 2 ||
        s->attr.state.elems != a->dim[1] || s->attr.state.window) {
        sy_graph_refuse(g, SY_ESHAPE, "KEEP of %lld columns", (long long)a->dim[1]);
        return SY_NONE;
    }
    int32_t every = s->attr.state.every;
    sy_val v = unary(g, SY_OP_KEEP, x, (union sy_attr){.every = every});
    if (v.id) g->node[v.id].in[3] = state;
    return v;
}

sy_val sy_rows(struct sy_graph *g, sy_val x)
{
    sy_val out = sy_input(g, SY_OUT);
    const struct sy_node *a = use(g, x, "ROWS");
    if (!a) return SY_NONE;
    struct sy_node *n = push(g, SY_OP_ROWS, g->shape.out, g->node[x.id].dim[1]);
    if (n) {
        n->in[0] = x;
        n->in[1] = out;
        n->layer = -1;
    }
    return last(g, n);
}

static sy_val rank_op(struct sy_graph *g, enum sy_op op, sy_val x, struct sy_rank_dim d)
{
    const struct sy_node *a = use(g, x, sy_op_name(op));
    if (!a) return SY_NONE;
    int64_t rows = a->dim[0], cols = a->dim[1];
    if (op == SY_OP_RANK_JOIN) cols *= d.n;
    if (op == SY_OP_RANK_ROWS) rows *= d.n;
    if (op == SY_OP_RANK_SHARE) rows /= d.n;
    struct sy_node *n = push(g, op, rows, cols);
    if (n) {
        n->in[0] = x;
        n->attr.rank = d;
    }
    return last(g, n);
}

sy_val sy_rank_sum(struct sy_graph *g, sy_val x, struct sy_rank_dim d) { return rank_op(g, SY_OP_RANK_SUM, x, d); }
sy_val sy_rank_join(struct sy_graph *g, sy_val x, struct sy_rank_dim d) { return rank_op(g, SY_OP_RANK_JOIN, x, d); }
sy_val sy_rank_rows(struct sy_graph *g, sy_val x, struct sy_rank_dim d) { return rank_op(g, SY_OP_RANK_ROWS, x, d); }
sy_val sy_rank_share(struct sy_graph *g, sy_val x, struct sy_rank_dim d)
{
    return rank_op(g, SY_OP_RANK_SHARE, x, d);
}
sy_val sy_rank_shift(struct sy_graph *g, sy_val x, struct sy_rank_dim d)
{
    return rank_op(g, SY_OP_RANK_SHIFT, x, d);
}
sy_val sy_rank_pick(struct sy_graph *g, sy_val x, struct sy_rank_dim d) { return rank_op(g, SY_OP_RANK_PICK, x, d); }

sy_val sy_attend_sinks(struct sy_graph *g, sy_val q, sy_val k, sy_val v, sy_val kv, sy_val sinks,
                       struct sy_attn_dim d)
{
    const struct sy_node *a = use(g, q, "ATTEND"), *s = use(g, kv, "ATTEND");
    const struct sy_node *b = k.id ? use(g, k, "ATTEND") : NULL, *c = v.id ? use(g, v, "ATTEND") : NULL;
    if (!a || !s) return SY_NONE;
    int64_t stored = d.n_kv * ((int64_t)d.d_key + (d.shared ? 0 : d.d_val));
    int32_t seen = d.window > 0 && (d.chunk == 0 || d.window < d.chunk) ? d.window : d.chunk;
    if (s->op == SY_OP_STATE && s->attr.state.window > 0 && (seen == 0 || seen > s->attr.state.window)) {
        sy_graph_refuse(g, SY_ESHAPE, "ATTEND to %d keys (0: all) of a state that keeps %d", seen,
                        s->attr.state.window);
        return SY_NONE;
    }
    bool values = d.shared ? !c && d.d_val <= d.d_key : !b == !c;
    bool ok = d.n_kv > 0 && d.n_head % d.n_kv == 0 && a->dim[1] == (int64_t)d.n_head * d.d_key && values &&
              (!b || b->dim[1] == (int64_t)d.n_kv * d.d_key) && (!c || c->dim[1] == (int64_t)d.n_kv * d.d_val) &&
              s->op == SY_OP_STATE && s->attr.state.elems == stored && vector_fits(g, sinks, d.n_head);
    if (!ok) {
        sy_graph_refuse(g, SY_ESHAPE, "ATTEND of %d/%d heads of %d/%d on %lld, %lld, %lld columns", d.n_head, d.n_kv,
                        d.d_key, d.d_val, (long long)a->dim[1], (long long)(b ? b->dim[1] : 0),
                        (long long)(c ? c->dim[1] : 0));
        return SY_NONE;
    }
    int64_t rows = a->dim[0];
    struct sy_node *n = push(g, SY_OP_ATTEND, rows, (int64_t)d.n_head * d.d_val);
    if (n) {
        const sy_val operand[] = {q, k, v, kv, sinks};
        memcpy(n->in, operand, sizeof operand);
        n->attr.attn = d;
    }
    return last(g, n);
}

sy_val sy_attend(struct sy_graph *g, sy_val q, sy_val k, sy_val v, sy_val kv, struct sy_attn_dim d)
{
    return sy_attend_sinks(g, q, k, v, kv, SY_NONE, d);
}

sy_val sy_attend_chosen(struct sy_graph *g, sy_val q, sy_val k, sy_val chosen, sy_val kv, struct sy_attn_dim d)
{
    const struct sy_node *a = use(g, chosen, "ATTEND");
    if (!a) return SY_NONE;
    if (a->op != SY_OP_INDEX || !d.shared || d.n_kv != 1 || d.window || d.chunk) {
        sy_graph_refuse(g, SY_ESHAPE, "ATTEND to chosen keys: of one kv head, shared, without a window or chunks");
        return SY_NONE;
    }
    sy_val v = sy_attend(g, q, k, SY_NONE, kv, d);
    if (v.id) g->node[v.id].in[5] = chosen;
    return v;
}

sy_val sy_attend_kept(struct sy_graph *g, sy_val q, sy_val k, sy_val kv, sy_val sinks, sy_val kept, sy_val chosen,
                      struct sy_attn_dim d)
{
    const struct sy_node *a = use(g, kept, "ATTEND"), *b = chosen.id ? use(g, chosen, "ATTEND") : NULL;
    if (!a || !k.id) return SY_NONE;
    bool fits = a->op == SY_OP_KEEP && a->dim[1] == d.d_key && d.shared && d.n_kv == 1 && d.window > 0 && !d.chunk &&
                d.softcap <= 0 && (!b || (b->op == SY_OP_INDEX && b->attr.index.every == a->attr.every));
    if (!fits) {
        sy_graph_refuse(g, SY_ESHAPE, "ATTEND to kept keys: of one kv head, shared, in a window, all alike");
        return SY_NONE;
    }
    sy_val v = sy_attend_sinks(g, q, k, SY_NONE, kv, sinks, d);
    if (!v.id) return v;
    g->node[v.id].in[5] = chosen;
    g->node[v.id].in[6] = kept;
    return v;
}

sy_val sy_route_given(struct sy_graph *g, sy_val logits, sy_val ids, struct sy_route_dim d)
{
    const struct sy_node *a = use(g, ids, "ROUTE");
    if (!a) return SY_NONE;
    if (a->op != SY_OP_EMBED || a->dim[1] != d.n_used || d.n_group > 1) {
        sy_graph_refuse(g, SY_ESHAPE, "ROUTE to %d given experts on %lld columns", d.n_used, (long long)a->dim[1]);
        return SY_NONE;
    }
    sy_val v = sy_route(g, logits, SY_NONE, SY_NONE, d);
    if (v.id) g->node[v.id].in[3] = ids;
    return v;
}

sy_val sy_route(struct sy_graph *g, sy_val logits, sy_val bias, sy_val gain, struct sy_route_dim d)
{
    const struct sy_node *a = use(g, logits, "ROUTE");
    if (!a) return SY_NONE;
    int32_t per_group = d.n_group > 1 ? d.n_expert / d.n_group : d.n_expert;
    bool ok = d.n_expert > 0 && d.n_expert <= SY_EXPERTS_MAX && a->dim[1] == d.n_expert && d.n_used > 0 &&
              vector_fits(g, bias, d.n_expert) && vector_fits(g, gain, d.n_expert);
    if (d.n_group > 1)
        ok = ok && d.n_expert % d.n_group == 0 && per_group >= 2 && d.n_group_used > 0 &&
             d.n_group_used <= d.n_group && d.n_used <= per_group * d.n_group_used;
    if (!ok || d.n_used > d.n_expert) {
        sy_graph_refuse(g, SY_ESHAPE, "ROUTE to %d of %d experts in %d of %d groups on %lld columns", d.n_used,
                        d.n_expert, d.n_group_used, d.n_group, (long long)a->dim[1]);
        return SY_NONE;
    }
    int64_t rows = a->dim[0];
    struct sy_node *n = push(g, SY_OP_ROUTE, rows, 2 * (int64_t)d.n_used);
    if (n) {
        n->in[0] = logits;
        n->in[1] = bias;
        n->in[2] = gain;
        n->attr.route = d;
    }
    return last(g, n);
}

sy_val sy_experts(struct sy_graph *g, sy_val x, sy_val route, struct sy_expert_weights w, struct sy_moe_dim d)
{
    const struct sy_node *a = use(g, x, "EXPERTS"), *r = use(g, route, "EXPERTS");
    const struct sy_node *in = use(g, w.w_in, "EXPERTS"), *out = use(g, w.w_out, "EXPERTS");
    if (!a || !r || !in || !out) return SY_NONE;
    int64_t n_in = (int64_t)(d.gated ? 2 : 1) * d.d_ff, d_model = a->dim[1];
    bool own = r->op == SY_OP_ROUTE && r->attr.route.n_expert == d.n_expert && r->attr.route.n_used == d.n_used;
    bool ranks = d.share.n > 0 && r->dim[1] == 2 * d.n_used; /* the choice may come from other ranks */
    bool ok = (own || ranks) && a->dim[0] == r->dim[0] && in->dim[0] == d.n_expert * n_in && in->dim[1] == d_model &&
              out->dim[0] == d.n_expert * d_model && out->dim[1] == d.d_ff &&
              vector_fits(g, w.bias_in, d.n_expert * n_in) && vector_fits(g, w.bias_out, d.n_expert * d_model);
    if (!ok) {
        sy_graph_refuse(g, SY_ESHAPE, "EXPERTS: %d of %d experts of %d on [%lld, %lld]", d.n_used, d.n_expert, d.d_ff,
                        (long long)a->dim[0], (long long)d_model);
        return SY_NONE;
    }
    struct sy_node *n = push(g, SY_OP_EXPERTS, a->dim[0], d_model);
    if (n) {
        const sy_val operand[] = {x, route, w.w_in, w.w_out, w.bias_in, w.bias_out};
        memcpy(n->in, operand, sizeof operand);
        n->attr.moe = d;
    }
    return last(g, n);
}

sy_val sy_conv(struct sy_graph *g, sy_val x, sy_val w, sy_val bias, sy_val slot)
{
    const struct sy_node *a = use(g, x, "CONV"), *b = use(g, w, "CONV"), *s = use(g, slot, "CONV");
    const struct sy_node *c = bias.id ? use(g, bias, "CONV") : NULL;
    if (!a || !b || !s) return SY_NONE;
    int64_t n = a->dim[1], taps = b->dim[1] / n;
    if (b->dim[1] % n || taps < 2 || (c && c->dim[1] != n) || s->op != SY_OP_STATE ||
        s->attr.state.kind != SY_SLOTS || s->attr.state.elems != (taps - 1) * n) {
        sy_graph_refuse(g, SY_ESHAPE, "CONV '%s' of %lld weights on %lld columns", b->name, (long long)b->dim[1],
                        (long long)n);
        return SY_NONE;
    }
    sy_val v = unary(g, SY_OP_CONV, x, (union sy_attr){0});
    if (!v.id) return v;
    g->node[v.id].in[1] = w;
    g->node[v.id].in[2] = bias;
    g->node[v.id].in[3] = slot;
    return v;
}

sy_val sy_scan(struct sy_graph *g, sy_val q, sy_val k, sy_val v, sy_val decay, sy_val beta, sy_val slot,
               struct sy_scan_dim d)
{
    const struct sy_node *a = use(g, q, "SCAN"), *b = use(g, k, "SCAN"), *c = use(g, v, "SCAN");
    const struct sy_node *s = use(g, slot, "SCAN"), *e = use(g, decay, "SCAN");
    const struct sy_node *f = beta.id ? use(g, beta, "SCAN") : NULL;
    if (!a || !b || !c || !s || !e) return SY_NONE;
    int64_t key = (int64_t)d.n_key * d.d_key, val = (int64_t)d.n_val * d.d_val;
    bool ok = d.n_key > 0 && d.d_key > 0 && d.d_val > 0 && d.n_val % d.n_key == 0 && a->dim[1] == key &&
              b->dim[1] == key && c->dim[1] == val && s->op == SY_OP_STATE && s->attr.state.kind == SY_SLOTS &&
              s->attr.state.elems == val * d.d_key && (!f || f->dim[1] == d.n_val) &&
              (e->dim[1] == d.n_val || e->dim[1] == (int64_t)d.n_val * d.d_key);
    if (!ok) {
        sy_graph_refuse(g, SY_ESHAPE, "SCAN of %d/%d heads of %d/%d on %lld, %lld, %lld columns", d.n_key, d.n_val,
                        d.d_key, d.d_val, (long long)a->dim[1], (long long)b->dim[1], (long long)c->dim[1]);
        return SY_NONE;
    }
    sy_val y = unary(g, SY_OP_SCAN, v, (union sy_attr){.scan = d});
    if (!y.id) return y;
    const sy_val in[] = {q, k, v, decay, beta, slot};
    memcpy(g->node[y.id].in, in, sizeof in);
    return y;
}

sy_val sy_sample(struct sy_graph *g, sy_val logits)
{
    const struct sy_node *a = use(g, logits, "SAMPLE");
    if (!a) return SY_NONE;
    int64_t rows = a->dim[0];
    struct sy_node *n = push(g, SY_OP_SAMPLE, rows, 1);
    if (n) {
        n->in[0] = logits;
        n->dtype = SY_I32;
        n->layer = -1;
    }
    return last(g, n);
}

/* ---- the finished graph ------------------------------------------------------------------------------------ */

sy_status sy_graph_finish(struct sy_graph *g, sy_val result, struct sy_err *err)
{
    if (!g->err.code && (result.id == 0 || g->node[result.id].op != SY_OP_SAMPLE))
        sy_graph_refuse(g, SY_ESHAPE, "a model must return sampled tokens");
    if (g->err.code) {
        if (err) *err = g->err;
        return g->err.code;
    }
    g->result = result;
    return SY_OK;
}

const struct sy_node *sy_graph_nodes(const struct sy_graph *g, uint32_t *n)
{
    *n = g->n;
    return g->node;
}
sy_val sy_graph_result(const struct sy_graph *g) { return g->result; }
struct sy_shape sy_graph_shape(const struct sy_graph *g) { return g->shape; }

int32_t sy_graph_window(const struct sy_graph *g)
{
    int32_t most = 0;
    for (uint32_t i = 1; i < g->n; i++) {
        const struct sy_node *n = &g->node[i];
        if (n->op == SY_OP_STATE && n->attr.state.window > most) most = n->attr.state.window;
    }
    return most;
}
