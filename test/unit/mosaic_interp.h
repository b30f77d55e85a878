/* mosaic_interp.h - runs a kernel's text on a CPU, as a test wants it run: scratch and results begin as NaN, bytes as
 * the largest, which makes no number of two that are one, every index is checked, and a transfer has happened only
 * when it was waited for. Until then its target may be neither read nor written and its source not written, by
 * anything. A wait must be for all that its semaphore has under way, since nothing says which of several transfers
 * arrived first. Reads the text, not the writer's memory of it; knows the ops that src/backend/pjrt/mosaic writes and
 * refuses others. */
#pragma once
#include "base/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <ctype.h>
#include <math.h>

enum { IN_DIMS = 6, IN_OPERANDS = 160, IN_NAME = 32, IN_FLIGHTS = 4096 };
enum in_elem { IN_F32, IN_BF16, IN_I8, IN_E4M3, IN_I32, IN_I1, IN_SEM, IN_INDEX };
struct in_type {
    enum in_elem elem;
    bool memory;
    int n;
    int64_t dim[IN_DIMS]; /* -1: set by the op */
};
struct in_array { /* storage; each element's transfers under way */
    float *x;
    unsigned char *writes, *reads;
    int64_t n;
};
struct in_value {
    struct in_type t;
    int64_t i; /* a scalar */
    float *x;  /* a vector */
    struct in_array *a;
    int64_t offset, stride[IN_DIMS];
};
struct in_op {
    char name[IN_NAME];
    const char *rest; /* behind the name */
    int res[80], n_res, arg[IN_OPERANDS], n_arg;
    struct in_type type[3]; /* the line's last ones, the last of all first */
    int n_type, end;        /* line of the closing brace */
    bool closes;
};
struct in_flight {
    struct in_value from, to;
    int64_t sem;
};
struct interp {
    char *text;
    struct in_op *op;
    int n_op, n_value;
    struct in_value *value;
    struct in_array array[64];
    int n_array;
    struct in_flight flight[IN_FLIGHTS];
    int n_flight;
    double copied; /* bytes of all transfers */
    char error[300];
};

#define IN_FAIL(m, ...)                                                                                              \
    do {                                                                                                             \
        if (!(m)->error[0]) snprintf((m)->error, sizeof(m)->error, __VA_ARGS__);                                     \
    } while (0)

/* ---- reading ----------------------------------------------------------------------------------------------------
 */

static int64_t in_count(const struct in_type *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n; i++) n *= t->dim[i];
    return n;
}

static int in_bytes(enum in_elem e) { return e == IN_BF16 ? 2 : e == IN_I8 || e == IN_E4M3 || e == IN_I1 ? 1 : 4; }

/* A type at text "vector<", "memref<" or a scalar's name. */
static struct in_type in_read_type(const char *s)
{
    static const char *const name[] = {"f32", "bf16", "i8", "f8E4M3FN", "i32", "i1", "!tpu.dma_semaphore", "index"};
    struct in_type t = {.memory = !strncmp(s, "memref<", 7)};
    if (t.memory || !strncmp(s, "vector<", 7)) s += 7;
    for (;; s++) {
        char *end;
        if (*s == '?') {
            t.dim[t.n++] = -1;
            s++;
        } else if (isdigit((unsigned char)*s)) {
            t.dim[t.n++] = strtoll(s, &end, 10);
            s = end;
        } else break;
        assert_true(*s == 'x' && t.n <= IN_DIMS);
    }
    for (size_t i = 0; i < SY_COUNT(name); i++)
        if (!strncmp(s, name[i], strlen(name[i]))) t.elem = (enum in_elem)i;
    return t;
}

static void in_read_line(struct interp *m, char *s, struct in_op *o)
{
    while (*s == ' ') s++;
    *o = (struct in_op){.closes = *s == '}'};
    char *eq = strstr(s, " = "), *at = s;
    if (*s == '%' && eq) {
        for (at = s; at < eq; at++)
            if (*at == '%') o->res[o->n_res++] = atoi(at + 1);
        s = eq + 3;
    }
    if (*s == '"') s++;
    size_t n = strcspn(s, " (\"");
    snprintf(o->name, sizeof o->name, "%.*s", (int)(n < IN_NAME ? n : IN_NAME - 1), s);
    o->rest = s + n;
    for (at = s + n; *at; at++) {
        if (*at == '%' && isdigit((unsigned char)at[1])) {
            assert_true(o->n_arg < IN_OPERANDS);
            o->arg[o->n_arg++] = atoi(at + 1);
        }
        if (!strncmp(at, "vector<", 7) || !strncmp(at, "memref<", 7)) {
            for (int k = 2; k > 0; k--) o->type[k] = o->type[k - 1];
            o->type[0] = in_read_type(at);
            o->n_type++;
        }
    }
    for (int i = 0; i < o->n_res; i++) m->n_value = o->res[i] >= m->n_value ? o->res[i] + 1 : m->n_value;
    for (int i = 0; i < o->n_arg; i++) m->n_value = o->arg[i] >= m->n_value ? o->arg[i] + 1 : m->n_value;
}

static struct in_value in_new_array(struct interp *m, struct in_type t, const float *data)
{
    assert_true(m->n_array < (int)SY_COUNT(m->array));
    struct in_array *a = &m->array[m->n_array++];
    a->n = in_count(&t);
    a->x = malloc((size_t)a->n * sizeof *a->x + 1);
    a->writes = calloc((size_t)a->n + 1, 1);
    a->reads = calloc((size_t)a->n + 1, 1);
    for (int64_t i = 0; i < a->n; i++) a->x[i] = data ? data[i] : t.elem == IN_I8 ? 127 : NAN;
    struct in_value v = {.t = t, .a = a};
    int64_t stride = 1;
    for (int i = t.n - 1; i >= 0; i--, stride *= t.dim[i + 1 < t.n ? i + 1 : i]) v.stride[i] = stride;
    for (int i = t.n - 1; i >= 0; i--) v.stride[i] = i == t.n - 1 ? 1 : v.stride[i + 1] * t.dim[i + 1];
    return v;
}

/* The signature: operands get the arrays given, results and scratch begin unknown; of results that lie where an
 * operand does, alias has its number, else -1. */
static void in_read_signature(struct interp *m, char *s, float *const *array, int n_in, const int *alias, int n_out)
{
    int k = 0, id[IN_OPERANDS];
    struct in_op o;
    in_read_line(m, s, &o);
    m->value = calloc((size_t)m->n_value + 1, sizeof *m->value);
    for (char *at = strstr(s, "%step: i32"); at && (at = strchr(at + 1, '%')); k++) {
        id[k] = atoi(at + 1);
        int of = k >= n_in && k < n_in + n_out ? alias[k - n_in] : -1;
        m->value[id[k]] = of >= 0 ? m->value[id[of]]
                                  : in_new_array(m, in_read_type(strstr(at, ": ") + 2), k < n_in ? array[k] : NULL);
    }
}

static void in_open(struct interp *m, const char *text, size_t n, float *const *array, int n_in, const int *alias,
                    int n_out)
{
    *m = (struct interp){0};
    m->text = strndup(text, n);
    int lines = 1, open[16], depth = 0;
    for (char *at = m->text; *at; at++) lines += *at == '\n';
    m->op = calloc((size_t)lines, sizeof *m->op);
    char *signature = NULL, *save = NULL;
    for (char *s = strtok_r(m->text, "\n", &save); s; s = strtok_r(NULL, "\n", &save)) {
        if (!strncmp(s, "module", 6)) continue;
        if (!strncmp(s, "func.func", 9)) {
            signature = s;
            continue;
        }
        struct in_op *o = &m->op[m->n_op];
        in_read_line(m, s, o);
        if (o->closes) {
            if (depth == 0) break; /* of the function */
            m->op[open[--depth]].end = m->n_op;
        } else if (s[strlen(s) - 1] == '{') {
            open[depth++] = m->n_op;
        }
        m->n_op++;
    }
    assert_true(signature && depth == 0);
    in_read_signature(m, signature, array, n_in, alias, n_out);
}

static void in_close(struct interp *m)
{
    for (int i = 0; i < m->n_array; i++) {
        free(m->array[i].x);
        free(m->array[i].writes);
        free(m->array[i].reads);
    }
    for (int i = 0; i < m->n_value; i++) free(m->value[i].x);
    free(m->value);
    free(m->op);
    free(m->text);
}

/* ---- memory -----------------------------------------------------------------------------------------------------
 */

/* Calls of f for every element of a view, in order. */
#define IN_EACH(view, place)                                                                                         \
    for (int64_t in_k = 0, in_n = in_count(&(view)->t), place = in_place(view, 0); in_k < in_n;                      \
         place = ++in_k < in_n ? in_place(view, in_k) : 0)
static int64_t in_place(const struct in_value *v, int64_t k)
{
    int64_t at = v->offset;
    for (int i = v->t.n - 1; i >= 0; i--) {
        at += k % v->t.dim[i] * v->stride[i];
        k /= v->t.dim[i];
    }
    return at;
}

/* The view of mem from the indices on, of the shape of t. */
static struct in_value in_view(struct interp *m, const struct in_op *o, const struct in_value *mem, const int *at,
                               struct in_type t)
{
    struct in_value v = *mem;
    if (t.n != mem->t.n) IN_FAIL(m, "%s: another number of dimensions", o->name);
    for (int i = 0; i < t.n && !m->error[0]; i++) {
        int64_t from = m->value[at[i]].i;
        if (from < 0 || t.dim[i] < 0 || from + t.dim[i] > mem->t.dim[i])
            IN_FAIL(m, "%s: out of bounds: %lld and %lld more of %lld in dimension %d", o->name, (long long)from,
                    (long long)t.dim[i], (long long)mem->t.dim[i], i);
        v.offset += from * mem->stride[i];
        v.t.dim[i] = t.dim[i];
    }
    return v;
}

static void in_may_read(struct interp *m, const struct in_op *o, const struct in_value *v)
{
    if (m->error[0]) return;
    IN_EACH(v, p)
    if (v->a->writes[p]) {
        IN_FAIL(m, "%s: reads what a transfer under way is writing", o->name);
        return;
    }
}

static void in_may_write(struct interp *m, const struct in_op *o, const struct in_value *v)
{
    if (m->error[0]) return;
    IN_EACH(v, p)
    if (v->a->writes[p] || v->a->reads[p]) {
        IN_FAIL(m, "%s: writes what a transfer under way uses", o->name);
        return;
    }
}

static void in_start(struct interp *m, const struct in_op *o)
{
    struct in_value from = m->value[o->arg[0]], to = m->value[o->arg[1]], *sem = &m->value[o->arg[2]];
    if (in_count(&from.t) != in_count(&to.t) || from.t.elem != to.t.elem) IN_FAIL(m, "%s: unlike sides", o->name);
    if (sem->t.elem != IN_SEM || m->n_flight == IN_FLIGHTS) IN_FAIL(m, "%s: no semaphore, or too many", o->name);
    in_may_read(m, o, &from);
    in_may_write(m, o, &to);
    if (m->error[0]) return;
    IN_EACH(&from, p) from.a->reads[p]++;
    IN_EACH(&to, p)
    {
        to.a->writes[p]++;
        to.a->x[p] = NAN;
    }
    m->copied += (double)in_count(&to.t) * in_bytes(to.t.elem);
    m->flight[m->n_flight++] = (struct in_flight){from, to, (int64_t)(sem->a - m->array) << 32 | sem->offset};
}

static void in_wait(struct interp *m, const struct in_op *o)
{
    const struct in_value *sem = &m->value[o->arg[0]], *to = &m->value[o->arg[2]];
    int64_t id = (int64_t)(sem->a - m->array) << 32 | sem->offset, left = in_count(&to->t) * in_bytes(to->t.elem);
    int kept = 0;
    for (int i = 0; i < m->n_flight; i++) {
        struct in_flight *f = &m->flight[i];
        if (f->sem != id) {
            m->flight[kept++] = *f;
            continue;
        }
        left -= in_count(&f->to.t) * in_bytes(f->to.t.elem);
        for (int64_t k = 0, n = in_count(&f->to.t); k < n; k++) {
            int64_t p = in_place(&f->from, k), q = in_place(&f->to, k);
            f->to.a->x[q] = f->from.a->x[p];
            f->to.a->writes[q]--;
            f->from.a->reads[p]--;
        }
    }
    m->n_flight = kept;
    if (left > 0) IN_FAIL(m, "%s: waits for %lld bytes that nobody sends", o->name, (long long)left);
    if (left < 0) IN_FAIL(m, "%s: waits for %lld bytes too few", o->name, (long long)-left);
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------
 */

static float in_round(enum in_elem e, float x)
{
    if (e != IN_BF16 || !isfinite(x)) return x;
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &u, sizeof u);
    return x;
}

static double in_binary(struct interp *m, const char *name, double a, double b)
{
    const char *op = strchr(name, '.') + 1;
    if (op[0] == 'a' && op[1] == 'd') return a + b;
    if (!strncmp(op, "sub", 3)) return a - b;
    if (!strncmp(op, "mul", 3)) return a * b;
    if (!strncmp(op, "div", 3)) return op[3] == 'f' ? a / b : trunc(a / b);
    if (!strcmp(op, "remsi")) return a - b * trunc(a / b);
    if (!strncmp(op, "min", 3)) return isnan(a) || isnan(b) ? (double)NAN : a < b ? a : b;
    if (!strncmp(op, "max", 3)) return isnan(a) || isnan(b) ? (double)NAN : a > b ? a : b;
    if (!strcmp(op, "andi")) return (double)((int64_t)a & (int64_t)b);
    if (!strcmp(op, "ori")) return (double)((int64_t)a | (int64_t)b);
    if (!strcmp(op, "xori")) return (double)((int64_t)a ^ (int64_t)b);
    if (!strcmp(op, "shrsi")) return (double)((int64_t)a >> (int64_t)b);
    IN_FAIL(m, "no such op: %s", name);
    return 0;
}

/* The number of a code, -128 .. 127: OCP OFP8 1.0. */
static double in_e4m3(int code)
{
    int e = code >> 3 & 15, f = code & 7;
    double x = e ? ldexp(1 + f / 8.0, e - 7) : ldexp(f / 8.0, -6);
    if (e == 15 && f == 7) return (double)NAN;
    return code < 0 ? -x : x;
}

static double in_unary(struct interp *m, const char *name, double a)
{
    const char *op = strchr(name, '.') + 1;
    if (!strcmp(op, "exp2")) return exp2(a);
    if (!strcmp(op, "exp")) return exp(a);
    if (!strcmp(op, "tanh")) return tanh(a);
    if (!strcmp(op, "rsqrt")) return 1 / sqrt(a);
    if (!strcmp(op, "fptosi")) return trunc(a);
    if (!strcmp(op, "bitcast")) return in_e4m3((int)a);
    if (!strcmp(op, "truncf") || !strcmp(op, "extf") || !strncmp(op, "sitofp", 6) || !strncmp(op, "ext", 3)) return a;
    IN_FAIL(m, "no such op: %s", name);
    return 0;
}

static bool in_compare(const char *how, double a, double b)
{
    how += how[0] == 's' || how[0] == 'o';
    if (!strncmp(how, "lt", 2)) return a < b;
    if (!strncmp(how, "le", 2)) return a <= b;
    if (!strncmp(how, "gt", 2)) return a > b;
    if (!strncmp(how, "ge", 2)) return a >= b;
    return !strncmp(how, "ne", 2) ? a != b : a == b;
}

/* The op's result, a vector of its type; its memory is the value's own and used again. */
static struct in_value *in_result(struct interp *m, const struct in_op *o, struct in_type t)
{
    struct in_value *v = &m->value[o->res[0]];
    if (!v->x) v->x = malloc((size_t)in_count(&t) * sizeof *v->x + 1);
    v->t = t;
    return v;
}

static double in_item(const struct in_value *v, int64_t k) { return v->t.n || v->x ? (double)v->x[k] : (double)v->i; }

/* Elementwise over vectors or scalars. */
static void in_elementwise(struct interp *m, const struct in_op *o)
{
    struct in_value *a = &m->value[o->arg[0]], *b = &m->value[o->arg[o->n_arg > 1]],
                    *c = &m->value[o->arg[o->n_arg - 1]];
    bool compares = !strncmp(o->name, "arith.cmp", 9), selects = !strcmp(o->name, "arith.select");
    const char *how = o->rest + 1;
    if (o->n_type == 0) {
        int64_t r = compares  ? in_compare(how, (double)a->i, (double)b->i)
                    : selects ? (a->i ? b->i : c->i)
                    : !strcmp(o->name, "arith.index_cast")
                        ? a->i
                        : (int64_t)in_binary(m, o->name, (double)a->i, (double)b->i);
        m->value[o->res[0]] = (struct in_value){.t = {.elem = IN_I32}, .i = r};
        return;
    }
    struct in_type t = o->type[0];
    struct in_value *v = in_result(m, o, t);
    int64_t n = in_count(&t);
    bool one = selects && a->t.n == 0; /* choice for all */
    if (!strcmp(o->name, "arith.bitcast") && t.elem == IN_F32) {
        for (int64_t k = 0; k < n; k++) {
            int32_t bits = (int32_t)a->x[k];
            memcpy(&v->x[k], &bits, sizeof bits);
        }
        return;
    }
    if ((!one && (a->t.n != t.n || in_count(&a->t) != n)) || in_count(&b->t) != n)
        IN_FAIL(m, "%s: unlike shapes", o->name);
    for (int64_t k = 0; k < n && !m->error[0]; k++)
        v->x[k] = in_round(t.elem, compares       ? in_compare(how, (double)a->x[k], (double)b->x[k])
                                   : selects      ? ((one ? a->i != 0 : a->x[k] != 0) ? b->x[k] : c->x[k])
                                   : o->n_arg > 1 ? (float)in_binary(m, o->name, (double)a->x[k], (double)b->x[k])
                                                  : (float)in_unary(m, o->name, (double)a->x[k]));
}

static void in_constant(struct interp *m, const struct in_op *o)
{
    const char *s = strstr(o->rest, "dense<");
    s = s ? s + 6 : o->rest + 1;
    uint32_t bits = (uint32_t)strtoul(s, NULL, 16);
    float x;
    memcpy(&x, &bits, sizeof x);
    if (strncmp(s, "0x", 2) != 0) x = strtof(s, NULL);
    if (o->n_type == 0) {
        m->value[o->res[0]] = (struct in_value){.t = {.elem = IN_I32}, .i = strtoll(s, NULL, 10)};
        return;
    }
    struct in_value *v = in_result(m, o, o->type[0]);
    for (int64_t k = 0; k < in_count(&v->t); k++) v->x[k] = in_round(v->t.elem, x);
}

static void in_broadcast(struct interp *m, const struct in_op *o)
{
    const struct in_value *a = &m->value[o->arg[0]];
    struct in_value *v = in_result(m, o, o->type[0]);
    int64_t inner = v->t.dim[v->t.n - 1];
    for (int64_t k = 0; k < in_count(&v->t); k++) {
        int64_t row = k / inner, column = k % inner, width = a->t.n ? a->t.dim[a->t.n - 1] : 1;
        int64_t rows = a->t.n ? in_count(&a->t) / width : 1;
        v->x[k] = (float)in_item(a, (rows == 1 ? 0 : row) * width + (width == 1 ? 0 : column));
    }
}

static void in_product(struct interp *m, const struct in_op *o)
{
    const struct in_value *a = &m->value[o->arg[0]], *b = &m->value[o->arg[1]], *c = &m->value[o->arg[2]];
    bool by_rows = strstr(o->rest, "<[1], [1]") != NULL;
    struct in_value *v = in_result(m, o, o->type[0]);
    int64_t n = v->t.dim[1], over = a->t.dim[1];
    if (a->t.dim[0] != v->t.dim[0] || b->t.dim[by_rows ? 1 : 0] != over || b->t.dim[by_rows ? 0 : 1] != n)
        IN_FAIL(m, "%s: shapes that do not meet", o->name);
    for (int64_t i = 0; i < v->t.dim[0] && !m->error[0]; i++) {
        const float *x = &a->x[i * over];
        float *y = &v->x[i * n];
        memmove(y, &c->x[i * n], (size_t)n * sizeof *y);
        for (int64_t k = 0; k < over && !by_rows; k++) /* so that a compiler can take several columns at once */
            for (int64_t j = 0; j < n; j++) y[j] += x[k] * b->x[k * n + j];
        for (int64_t j = 0; j < n && by_rows; j++)
            for (int64_t k = 0; k < over; k++) y[j] += x[k] * b->x[j * over + k];
    }
}

static void in_reduce(struct interp *m, const struct in_op *o)
{
    const struct in_value *a = &m->value[o->arg[0]], *c = &m->value[o->arg[1]];
    struct in_value *v = in_result(m, o, o->type[0]);
    bool max = strstr(o->rest, "<maximumf>") != NULL, columns = strstr(o->rest, "[1]") != NULL;
    int64_t width = a->t.dim[1];
    memcpy(v->x, c->x, (size_t)in_count(&v->t) * sizeof *v->x);
    for (int64_t k = 0; k < in_count(&a->t); k++) {
        float *y = &v->x[columns ? k / width : k % width], x = a->x[k];
        *y = max ? (isnan(x) || x > *y ? x : *y) : *y + x;
    }
}

/* ---- running ----------------------------------------------------------------------------------------------------
 */

static void in_memory_op(struct interp *m, const struct in_op *o)
{
    struct in_value *mem = &m->value[o->arg[0]];
    if (!strcmp(o->name, "memref.load") || !strcmp(o->name, "memref.store")) {
        bool put = o->name[7] == 's';
        struct in_value *at = &m->value[o->arg[put]];
        struct in_type one = {.n = 1, .dim = {1}, .memory = true};
        struct in_value v = in_view(m, o, at, &o->arg[put + 1], one);
        if (!put) at = mem;
        v = in_view(m, o, at, &o->arg[put + 1], one);
        if (m->error[0]) return;
        if (put) v.a->x[v.offset] = (float)mem->i;
        else m->value[o->res[0]] = (struct in_value){.t = {.elem = IN_I32}, .i = (int64_t)v.a->x[v.offset]};
    } else if (!strcmp(o->name, "vector.load")) {
        struct in_value v = in_view(m, o, mem, &o->arg[1], o->type[0]), *r = in_result(m, o, o->type[0]);
        in_may_read(m, o, &v);
        if (m->error[0]) return;
        IN_EACH(&v, p) r->x[in_k] = v.a->x[p];
    } else {
        const struct in_value *x = &m->value[o->arg[o->n_arg - 1]];
        struct in_value v = in_view(m, o, mem, &o->arg[1], x->t);
        in_may_write(m, o, &v);
        if (m->error[0]) return;
        IN_EACH(&v, p) v.a->x[p] = x->x[in_k];
    }
}

static void in_slice(struct interp *m, const struct in_op *o)
{
    const struct in_value *mem = &m->value[o->arg[0]];
    struct in_type t = o->type[0];
    if (t.dim[0] < 0) t.dim[0] = m->value[o->arg[1 + mem->t.n]].i;
    m->value[o->res[0]] = in_view(m, o, mem, &o->arg[1], t);
}

static void in_squeeze(struct interp *m, const struct in_op *o)
{
    struct in_value v = m->value[o->arg[0]];
    int gone = v.t.n - o->type[0].n;
    for (int i = 0; i < gone; i++)
        if (v.t.dim[i] != 1) IN_FAIL(m, "%s: of more than one", o->name);
    v.t.n -= gone;
    for (int i = 0; i < v.t.n; i++) {
        v.t.dim[i] = v.t.dim[i + gone];
        v.stride[i] = v.stride[i + gone];
    }
    m->value[o->res[0]] = v;
}

static void in_one(struct interp *m, const struct in_op *o)
{
    const char *n = o->name;
    struct in_value *a = &m->value[o->arg[0]];
    if (!strcmp(n, "arith.constant")) in_constant(m, o);
    else if (!strcmp(n, "vector.broadcast")) in_broadcast(m, o);
    else if (!strcmp(n, "tpu.matmul")) in_product(m, o);
    else if (!strcmp(n, "vector.multi_reduction")) in_reduce(m, o);
    else if (!strcmp(n, "tpu.memref_slice")) in_slice(m, o);
    else if (!strcmp(n, "tpu.assume_multiple")) {
        int64_t of = atoll(strchr(o->rest, ',') + 1);
        if (a->i % of) IN_FAIL(m, "%s: %lld is none of %lld", n, (long long)a->i, (long long)of);
        m->value[o->res[0]] = (struct in_value){.t = {.elem = IN_I32}, .i = a->i};
    } else if (!strcmp(n, "tpu.memref_squeeze") || !strcmp(n, "tpu.erase_memref_layout")) in_squeeze(m, o);
    else if (!strcmp(n, "tpu.enqueue_dma")) in_start(m, o);
    else if (!strcmp(n, "tpu.wait_dma2")) in_wait(m, o);
    else if (!strncmp(n, "memref.", 7) || !strcmp(n, "vector.load") || !strcmp(n, "tpu.vector_store"))
        in_memory_op(m, o);
    else if (!strcmp(n, "tpu.iota")) {
        struct in_value *v = in_result(m, o, o->type[0]);
        bool columns = strstr(o->rest, "i32: 1>") != NULL;
        for (int64_t k = 0, w = v->t.dim[1]; k < in_count(&v->t); k++) v->x[k] = (float)(columns ? k % w : k / w);
    } else if (!strcmp(n, "tpu.concatenate")) {
        const struct in_value *b = &m->value[o->arg[1]];
        struct in_value *v = in_result(m, o, o->type[0]);
        bool rows = strstr(o->rest, " in 0 ") != NULL;
        int64_t w = v->t.dim[1], left = a->t.dim[1], n_a = in_count(&a->t);
        for (int64_t k = 0; k < in_count(&v->t); k++)
            v->x[k] = rows           ? (k < n_a ? a->x[k] : b->x[k - n_a])
                      : k % w < left ? a->x[k / w * left + k % w]
                                     : b->x[k / w * (w - left) + k % w - left];
    } else if (!strcmp(n, "tpu.transpose")) {
        struct in_value *v = in_result(m, o, o->type[0]);
        int64_t rows = a->t.dim[0], columns = a->t.dim[1];
        for (int64_t k = 0; k < rows * columns; k++) v->x[k] = a->x[k % rows * columns + k / rows];
    } else if (!strcmp(n, "vector.shape_cast")) {
        struct in_value *v = in_result(m, o, o->type[0]);
        memcpy(v->x, a->x, (size_t)in_count(&v->t) * sizeof *v->x);
    } else if (!strcmp(n, "vector.extract_strided_slice")) {
        struct in_value *v = in_result(m, o, o->type[0]);
        int64_t row = atoll(strstr(o->rest, "[") + 1), from = atoll(strstr(o->rest, ", ") + 2), w = v->t.dim[1];
        for (int64_t k = 0; k < in_count(&v->t); k++) v->x[k] = a->x[(row + k / w) * a->t.dim[1] + from + k % w];
    } else if (!strncmp(n, "arith.", 6) || !strncmp(n, "math.", 5)) in_elementwise(m, o);
    else IN_FAIL(m, "no such op: %s", n);
}

static void in_copy(struct interp *m, int from, int to)
{
    struct in_value *a = &m->value[from], *b = &m->value[to];
    if (a->t.n == 0) { /* or nothing yet, after an error */
        free(b->x);
        *b = *a;
        return;
    }
    size_t bytes = (size_t)in_count(&a->t) * sizeof *a->x;
    if (!b->x) b->x = malloc(bytes + 1);
    b->t = a->t;
    memcpy(b->x, a->x, bytes);
}

static void in_run(struct interp *m, int from, int to);

/* arg: its variable, lo, hi, step, then (inside, from outside) pairs */
static void in_loop(struct interp *m, int at)
{
    const struct in_op *o = &m->op[at], *yield = &m->op[o->end - 1];
    int n = o->n_res;
    int64_t hi = m->value[o->arg[2]].i;
    for (int k = 0; k < n; k++) in_copy(m, o->arg[5 + 2 * k], o->arg[4 + 2 * k]);
    for (int64_t i = m->value[o->arg[1]].i; i < hi && !m->error[0]; i++) {
        m->value[o->arg[0]] = (struct in_value){.t = {.elem = IN_I32}, .i = i};
        in_run(m, at + 1, o->end);
        for (int k = 0; k < n; k++)
            in_copy(m, yield->arg[k], o->res[k]); /* first all, since they may change places */
        for (int k = 0; k < n; k++) in_copy(m, o->res[k], o->arg[4 + 2 * k]);
    }
    for (int k = 0; k < n; k++) in_copy(m, o->arg[4 + 2 * k], o->res[k]);
}

static void in_run(struct interp *m, int from, int to)
{
    for (int i = from; i < to && !m->error[0]; i++) {
        const struct in_op *o = &m->op[i];
        if (o->closes || !strcmp(o->name, "return") || !strcmp(o->name, "scf.yield")) continue;
        if (!strcmp(o->name, "scf.for")) in_loop(m, i);
        else if (!strcmp(o->name, "scf.if")) {
            if (m->value[o->arg[0]].i) in_run(m, i + 1, o->end);
        } else {
            in_one(m, o);
            continue;
        }
        i = o->end;
    }
}

/* Runs the kernel on operands (numbers of the array's type already), the first n_out results in the memory of the
 * operand alias[i] or (-1) their own; results of their own are read from the arrays behind those of the operands.
 * False: m->error says why. */
static bool interp_in_place(struct interp *m, const struct sy_buf *text, float *const *array, int n_in,
                            const int *alias, int n_out)
{
    in_open(m, text->at, text->len, array, n_in, alias, n_out);
    in_run(m, 0, m->n_op);
    if (m->n_flight) IN_FAIL(m, "ends with %d transfers under way", m->n_flight);
    return !m->error[0];
}

static inline bool interp(struct interp *m, const struct sy_buf *text, float *const *array, int n_in)
{
    return interp_in_place(m, text, array, n_in, NULL, 0);
}
