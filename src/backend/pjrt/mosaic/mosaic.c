/* mosaic.c - the writer of kernels. */
#include "backend/pjrt/mosaic/mosaic.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ZERO, ONE, ZERO_INDEX, FIXED_COUNT }; /* the values that every kernel begins with */

struct mo_type mo_type(enum mo_space space, enum mo_elem e, int n_dim, const int32_t *dim)
{
    struct mo_type t = {.elem = e, .space = space, .n_dim = n_dim};
    sy_assert(n_dim <= MO_DIM_MAX);
    for (int i = 0; i < n_dim; i++) t.dim[i] = dim[i];
    return t;
}

int mo_elem_bytes(enum mo_elem e)
{
    static const int bytes[] = {
        [MO_F32] = 4, [MO_BF16] = 2, [MO_I8] = 1, [MO_E4M3] = 1, [MO_I32] = 4, [MO_I1] = 1, [MO_SEM] = 4};
    return bytes[e];
}

static int value(struct mosaic *m, struct mo_type t)
{
    if (m->failed) return 0;
    if (m->n == m->cap) {
        int cap = m->cap ? 2 * m->cap : 512;
        struct mo_type *more = sy_resize(m->env, m->type, (size_t)m->cap * sizeof *more, (size_t)cap * sizeof *more);
        if (!more) {
            m->failed = true;
            return 0;
        }
        m->type = more;
        m->cap = cap;
    }
    m->type[m->n] = t;
    return m->n++;
}

void mo_init(struct mosaic *m, const struct sy_env *env)
{
    *m = (struct mosaic){.env = env, .depth = 1};
    sy_buf_init(&m->fixed, env, 0);
    sy_buf_init(&m->body, env, 0);
    struct mo_type number = {.elem = MO_I32}, place = {.elem = MO_INDEX};
    (void)value(m, number);
    (void)value(m, number);
    (void)value(m, place);
    sy_buf_printf(&m->fixed, "  %%%d = arith.constant 0 : i32\n  %%%d = arith.constant 1 : i32\n", ZERO, ONE);
    sy_buf_printf(&m->fixed, "  %%%d = arith.constant 0 : index\n", ZERO_INDEX);
}

void mo_release(struct mosaic *m)
{
    sy_buf_release(&m->fixed);
    sy_buf_release(&m->body);
    sy_delete(m->env, m->type);
    m->type = NULL;
}

struct mo_type mo_type_of(const struct mosaic *m, int v)
{
    static const struct mo_type none = {.n_dim = MO_DIM_MAX, .dim = {1, 1, 1, 1, 1, 1}};
    if (m->failed) return none;
    sy_assert(v >= 0 && v < m->n);
    return m->type[v];
}

static bool same(const struct mo_type *a, const struct mo_type *b)
{
    if (a->elem != b->elem || a->n_dim != b->n_dim) return false;
    for (int i = 0; i < a->n_dim; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

static int64_t count(const struct mo_type *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dim; i++) n *= t->dim[i];
    return n;
}

/* ---- text -------------------------------------------------------------------------------------------------------
 */

/* Tiles of 8 rows of 128, rows in pairs or fours where they are of fewer bytes; strides count tiles. */
static void put_tiles(struct sy_buf *b, const struct mo_type *t)
{
    int n = t->n_dim;
    int64_t stride[MO_DIM_MAX], all = 1;
    for (int i = n - 1; i >= 0; i--) {
        stride[i] = all;
        all *= i == n - 1 ? sy_ceil_div(t->dim[i], 128) : i == n - 2 ? sy_ceil_div(t->dim[i], 8) : t->dim[i];
    }
    sy_buf_printf(b, ", #tpu.tiled<(8,128)(%d,1),[", 4 / mo_elem_bytes(t->elem));
    for (int i = 0; i < n; i++) sy_buf_printf(b, i ? ",%lld" : "%lld", (long long)stride[i]);
    sy_buf_text(b, "]>");
}

static void put_type_as(struct sy_buf *b, const struct mo_type *t, bool tiled)
{
    static const char *const elem[] = {"f32", "bf16", "i8", "f8E4M3FN", "i32", "i1", "!tpu.dma_semaphore", "index"};
    static const char *const space[] = {"", "hbm", "vmem", "smem", "semaphore_mem"};
    bool memory = t->space != MO_REG;
    if (!memory && t->n_dim == 0) {
        sy_buf_text(b, elem[t->elem]);
        return;
    }
    sy_buf_text(b, memory ? "memref<" : "vector<");
    for (int i = 0; i < t->n_dim; i++)
        if (t->dim[i] < 0) sy_buf_text(b, "?x");
        else sy_buf_printf(b, "%dx", t->dim[i]);
    sy_buf_text(b, elem[t->elem]);
    if (tiled) put_tiles(b, t);
    if (memory) sy_buf_printf(b, ", #tpu.memory_space<%s>", space[t->space]);
    sy_buf_char(b, '>');
}

static void put_type(struct sy_buf *b, const struct mo_type *t) { put_type_as(b, t, false); }

/* Writes into the body: %v a value, %t the type of one, %T a type, %d a number, %s text. */
static void put(struct mosaic *m, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    for (const char *at = fmt; *at; at++) {
        if (*at != '%') {
            sy_buf_char(&m->body, *at);
            continue;
        }
        switch (*++at) {
        case 'v': sy_buf_printf(&m->body, "%%%d", va_arg(ap, int)); break;
        case 't': {
            struct mo_type t = mo_type_of(m, va_arg(ap, int));
            put_type(&m->body, &t);
            break;
        }
        case 'T': put_type(&m->body, va_arg(ap, const struct mo_type *)); break;
        case 'd': sy_buf_printf(&m->body, "%d", va_arg(ap, int)); break;
        case 's': sy_buf_text(&m->body, va_arg(ap, const char *)); break;
        default: sy_assert(!"a conversion that put() has not");
        }
    }
    va_end(ap);
}

static void indent(struct mosaic *m)
{
    for (int i = 0; i < m->depth; i++) sy_buf_text(&m->body, "  ");
}

/* Begins a line "%v = ". */
static int result(struct mosaic *m, struct mo_type t)
{
    int v = value(m, t);
    indent(m);
    put(m, "%v = ", v);
    return v;
}

/* ---- arguments and the whole ------------------------------------------------------------------------------------
 */

static int argument(struct mosaic *m, struct mo_type t, int *n)
{
    int v = value(m, t);
    sy_assert(m->n_arg < MO_ARG_MAX && m->body.len == 0);
    m->arg[m->n_arg++] = v;
    ++*n;
    return v;
}

int mo_prefetch(struct mosaic *m, int32_t n)
{
    sy_assert(m->n_operand + m->n_result + m->n_scratch == 0);
    return argument(m, MO_TYPE(MO_SMEM, MO_I32, n), &m->n_prefetch);
}

int mo_input(struct mosaic *m, struct mo_type t)
{
    sy_assert(m->n_result + m->n_scratch == 0);
    return argument(m, t, &m->n_operand);
}

int mo_output(struct mosaic *m, struct mo_type t)
{
    sy_assert(m->n_scratch == 0);
    m->alias[m->n_result] = -1;
    return argument(m, t, &m->n_result);
}

int mo_output_in(struct mosaic *m, int input)
{
    int k = 0;
    while (k < m->n_arg && m->arg[k] != input) k++;
    int v = mo_output(m, mo_type_of(m, input));
    sy_assert(m->failed || k < m->n_prefetch + m->n_operand);
    m->alias[m->n_result - 1] = k;
    return v;
}

int mo_scratch(struct mosaic *m, struct mo_type t) { return argument(m, t, &m->n_scratch); }

int mo_scratch_tiled(struct mosaic *m, struct mo_type t)
{
    int n = m->n_arg;
    (void)mo_scratch(m, t);
    return m->tiled[n] = value(m, t);
}

/* What follows says shapes alone. */
static void put_erased(const struct mosaic *m, struct sy_buf *out)
{
    for (int i = 0; i < m->n_arg && !m->failed; i++) {
        if (!m->tiled[i]) continue;
        const struct mo_type *t = &m->type[m->arg[i]];
        sy_buf_printf(out, "  %%%d = \"tpu.erase_memref_layout\"(%%%d) : (", m->tiled[i], m->arg[i]);
        put_type_as(out, t, true);
        sy_buf_text(out, ") -> ");
        put_type(out, t);
        sy_buf_char(out, '\n');
    }
}

sy_status mo_end(struct mosaic *m, struct sy_buf *out, struct sy_err *err)
{
    sy_assert(m->failed || (m->n_loop == 0 && m->depth == 1));
    sy_buf_text(out, "module {\nfunc.func @kernel(%step: i32");
    for (int i = 0; i < m->n_arg && !m->failed; i++) {
        sy_buf_printf(out, ", %%%d: ", m->arg[i]);
        put_type_as(out, &m->type[m->arg[i]], m->tiled[i] > 0);
    }
    sy_buf_printf(out,
                  ") attributes {dimension_semantics = [#tpu.dimension_semantics<arbitrary>], iteration_bounds = "
                  "array<i64: 1>, scalar_prefetch = %d : i64, scratch_operands = %d : i64, tpu.core_type = "
                  "#tpu.core_type<tc>, window_params = [",
                  m->n_prefetch, m->n_scratch);
    for (int i = 0; i < m->n_operand + m->n_result; i++) sy_buf_text(out, i ? ", {}" : "{}");
    sy_buf_text(out, "]} {\n");
    put_erased(m, out);
    if (m->fixed.len) sy_buf_add(out, m->fixed.at, m->fixed.len);
    if (m->body.len) sy_buf_add(out, m->body.at, m->body.len);
    sy_buf_text(out, "  return\n}\n}\n");
    return m->failed || m->fixed.failed || m->body.failed || out->failed
               ? sy_fail(err, SY_ENOMEM, "no memory for the text of a kernel")
               : SY_OK;
}

void mo_config(const struct mosaic *m, const struct sy_buf *kernel, int64_t vmem_bytes, struct sy_buf *out)
{
    sy_buf_text(out, "{\"custom_call_config\":{\"body\":\"");
    if (kernel->len) sy_buf_base64(out, kernel->at, kernel->len);
    sy_buf_text(out, "\",\"needs_layout_passes\":true,\"disable_bounds_checks\":true,"
                     "\"disable_semaphore_checks\":true,\"input_memory_space_colors\":[");
    for (int i = 0; i < m->n_operand; i++)
        sy_buf_printf(out, "%s{\"operand_index\":%d,\"color\":0}", i ? "," : "", m->n_prefetch + i);
    /* A compiler wants to know it of both sides of an alias. */
    for (int i = 0, n = 0; i < m->n_result; i++)
        if (m->alias[i] >= 0)
            sy_buf_printf(out, "%s{\"color\":0,\"shape_index\":[%d]}",
                          n++ ? "," : "],\"output_memory_space_colors\":[", i);
    sy_buf_printf(out, "]},\"scoped_memory_configs\":[{\"memory_space\":1,\"offset\":0,\"size\":%lld}]}",
                  (long long)vmem_bytes);
}

/* ---- values -----------------------------------------------------------------------------------------------------
 */

int mo_i32(struct mosaic *m, int32_t x)
{
    if (x == 0 || x == 1) return x ? ONE : ZERO;
    int v = value(m, (struct mo_type){.elem = MO_I32});
    sy_buf_printf(&m->fixed, "  %%%d = arith.constant %d : i32\n", v, x);
    return v;
}

int mo_splat(struct mosaic *m, struct mo_type t, double x)
{
    int v = value(m, t);
    struct sy_buf *b = &m->fixed;
    sy_buf_printf(b, "  %%%d = arith.constant %s", v, t.n_dim ? "dense<" : "");
    if (isinf(x)) sy_buf_text(b, x > 0 ? "0x7F800000" : "0xFF800000");
    else if (t.elem == MO_F32 || t.elem == MO_BF16) sy_buf_printf(b, "%.9e", x);
    else sy_buf_printf(b, "%lld", (long long)x);
    sy_buf_text(b, t.n_dim ? "> : " : " : ");
    put_type(b, &t);
    sy_buf_char(b, '\n');
    return v;
}

int mo_iota(struct mosaic *m, struct mo_type t, int dim)
{
    int v = result(m, t);
    put(m, "tpu.iota {dimensions = array<i32: %d>} : %T\n", dim, &t);
    return v;
}

int mo_unary(struct mosaic *m, const char *op, int a)
{
    int v = result(m, mo_type_of(m, a));
    put(m, "%s %v : %t\n", op, a, a);
    return v;
}

int mo_binary(struct mosaic *m, const char *op, int a, int b)
{
    struct mo_type t = mo_type_of(m, a), u = mo_type_of(m, b);
    sy_assert(m->failed || same(&t, &u));
    int v = result(m, t);
    put(m, "%s %v, %v : %t\n", op, a, b, a);
    return v;
}

int mo_add(struct mosaic *m, int a, int b) { return mo_binary(m, "arith.addi", a, b); }
int mo_sub(struct mosaic *m, int a, int b) { return mo_binary(m, "arith.subi", a, b); }
int mo_min(struct mosaic *m, int a, int b) { return mo_binary(m, "arith.minsi", a, b); }
int mo_times(struct mosaic *m, int a, int32_t n) { return n > 1 ? mo_binary(m, "arith.muli", a, mo_i32(m, n)) : a; }

int mo_log2(int32_t n)
{
    int k = 0;
    while ((1 << k) < n) k++;
    sy_assert(1 << k == n);
    return k;
}

int mo_over(struct mosaic *m, int a, int32_t n)
{
    return n > 1 ? mo_binary(m, "arith.shrsi", a, mo_i32(m, mo_log2(n))) : a;
}

int mo_over_up(struct mosaic *m, int a, int32_t n)
{
    return n > 1 ? mo_over(m, mo_add(m, a, mo_i32(m, n - 1)), n) : a;
}

int mo_multiple(struct mosaic *m, int a, int32_t n)
{
    int v = result(m, mo_type_of(m, a));
    put(m, "tpu.assume_multiple %v, %d : %t\n", a, n, a);
    return v;
}

int mo_compare(struct mosaic *m, const char *how, int a, int b)
{
    struct mo_type t = mo_type_of(m, a), u = mo_type_of(m, b);
    sy_assert(m->failed || same(&t, &u));
    bool real = t.elem == MO_F32;
    t.elem = MO_I1;
    int v = result(m, t);
    put(m, "%s %s, %v, %v : %t\n", real ? "arith.cmpf" : "arith.cmpi", how, a, b, a);
    return v;
}

int mo_select(struct mosaic *m, int mask, int a, int b)
{
    struct mo_type t = mo_type_of(m, a), u = mo_type_of(m, b), k = mo_type_of(m, mask);
    sy_assert(m->failed || (same(&t, &u) && k.elem == MO_I1 && (k.n_dim == t.n_dim || k.n_dim == 0)));
    int v = result(m, t);
    if (k.n_dim) put(m, "arith.select %v, %v, %v : %t, %t\n", mask, a, b, mask, a);
    else put(m, "arith.select %v, %v, %v : %t\n", mask, a, b, a);
    return v;
}

int mo_convert(struct mosaic *m, int a, enum mo_elem to)
{
    struct mo_type t = mo_type_of(m, a), from = t;
    if (from.elem == to || m->failed) return a;
    const char *op = from.elem == MO_F32 && to == MO_BF16   ? "arith.truncf"
                     : from.elem == MO_BF16 && to == MO_F32 ? "arith.extf"
                     : from.elem == MO_I1                   ? "arith.extui"
                     : to == MO_I32 && from.elem == MO_I8   ? "arith.extsi"
                     : from.elem == MO_F32                  ? "arith.fptosi"
                                                            : "arith.sitofp";
    t.elem = to;
    int v = result(m, t);
    put(m, "%s %v : %t to %T\n", op, a, a, &t);
    return v;
}

int mo_bitcast(struct mosaic *m, int a, enum mo_elem to)
{
    struct mo_type t = mo_type_of(m, a);
    sy_assert(m->failed || mo_elem_bytes(t.elem) == mo_elem_bytes(to));
    t.elem = to;
    int v = result(m, t);
    put(m, "arith.bitcast %v : %t to %T\n", a, a, &t);
    return v;
}

int mo_reshape(struct mosaic *m, int a, int n_dim, const int32_t *dim)
{
    struct mo_type from = mo_type_of(m, a), t = mo_type(MO_REG, from.elem, n_dim, dim);
    if (same(&from, &t)) return a;
    sy_assert(m->failed || count(&from) == count(&t));
    int v = result(m, t);
    put(m, "vector.shape_cast %v : %t to %T\n", a, a, &t);
    return v;
}

int mo_broadcast(struct mosaic *m, int a, struct mo_type t)
{
    struct mo_type from = mo_type_of(m, a);
    if (same(&from, &t)) return a;
    sy_assert(m->failed || (from.elem == t.elem && (from.n_dim == 0 || from.n_dim == t.n_dim)));
    int v = result(m, t);
    put(m, "vector.broadcast %v : %t to %T\n", a, a, &t);
    return v;
}

/* n of dimension dim of a matrix. */
static int lines(struct mosaic *m, int a, int dim, int32_t from, int32_t n)
{
    struct mo_type t = mo_type_of(m, a);
    if (from == 0 && t.dim[dim] == n) return a;
    sy_assert(m->failed || (t.n_dim == 2 && from >= 0 && from + n <= t.dim[dim]));
    t.dim[dim] = n;
    int v = result(m, t);
    put(m, "\"vector.extract_strided_slice\"(%v) <{offsets = [%d, %d], sizes = [%d, %d], strides = [1, 1]}> : ", a,
        dim ? 0 : from, dim ? from : 0, t.dim[0], t.dim[1]);
    put(m, "(%t) -> %T\n", a, &t);
    return v;
}

int mo_columns(struct mosaic *m, int a, int32_t from, int32_t n) { return lines(m, a, 1, from, n); }
int mo_rows(struct mosaic *m, int a, int32_t from, int32_t n) { return lines(m, a, 0, from, n); }

int mo_transpose(struct mosaic *m, int a)
{
    struct mo_type t = mo_type_of(m, a), u = t;
    sy_assert(m->failed || t.n_dim == 2);
    u.dim[0] = t.dim[1];
    u.dim[1] = t.dim[0];
    int v = result(m, u);
    put(m, "tpu.transpose %v, [1, 0] : %t -> %T\n", a, a, &u);
    return v;
}

int mo_concat(struct mosaic *m, int a, int b, int dim)
{
    struct mo_type t = mo_type_of(m, a), u = mo_type_of(m, b);
    sy_assert(m->failed || (t.n_dim == 2 && u.n_dim == 2 && t.elem == u.elem && t.dim[1 - dim] == u.dim[1 - dim]));
    t.dim[dim] += u.dim[dim];
    int v = result(m, t);
    put(m, "tpu.concatenate %v, %v in %d : %t, %t -> %T\n", a, b, dim, a, b, &t);
    return v;
}

int mo_reduce(struct mosaic *m, const char *op, int a, int dim)
{
    struct mo_type t = mo_type_of(m, a), flat = {.elem = t.elem, .n_dim = 1, .dim = {t.dim[1 - dim]}};
    sy_assert(m->failed || (t.n_dim == 2 && t.elem == MO_F32));
    int start = mo_splat(m, flat, op[0] == 'm' ? (double)-INFINITY : 0);
    int v = result(m, flat);
    put(m, "vector.multi_reduction <%s>, %v, %v [%d] : %t to %T\n", op, a, start, dim, a, &flat);
    t.dim[dim] = 1;
    return mo_reshape(m, v, 2, t.dim);
}

int mo_product(struct mosaic *m, int a, int b, bool by_rows, int acc)
{
    struct mo_type x = mo_type_of(m, a), y = mo_type_of(m, b), z = mo_type_of(m, acc);
    sy_assert(m->failed || (x.dim[1] == y.dim[by_rows] && z.dim[0] == x.dim[0] && z.dim[1] == y.dim[!by_rows]));
    int v = result(m, z);
    put(m,
        "tpu.matmul %v, %v, %v {dimension_numbers = #tpu.dot_dimension_numbers<%s>, transpose_lhs_hint = false} : ",
        a, b, acc, by_rows ? "[1], [1], [0], [0], [0, 0, 1, 0], [], []" : "[1], [0], [0], [1], [0, 0, 1, 1], [], []");
    put(m, "%t, %t, %t -> %t\n", a, b, acc, acc);
    return v;
}

/* ---- memory -----------------------------------------------------------------------------------------------------
 */

static int place(struct mosaic *m, int at)
{
    if (at < 0 || at == ZERO) return ZERO_INDEX;
    int v = result(m, (struct mo_type){.elem = MO_INDEX});
    put(m, "arith.index_cast %v : i32 to index\n", at);
    return v;
}

int mo_get(struct mosaic *m, int mem, int at)
{
    int i = place(m, at), v = result(m, (struct mo_type){.elem = MO_I32});
    put(m, "memref.load %v[%v] : %t\n", mem, i, mem);
    return v;
}

void mo_put(struct mosaic *m, int mem, int at, int x)
{
    int i = place(m, at);
    indent(m);
    put(m, "memref.store %v, %v[%v] : %t\n", x, mem, i, mem);
}

static void put_places(struct mosaic *m, const int *at, int n)
{
    for (int i = 0; i < n; i++) put(m, i ? ", %v" : "[%v", at[i]);
    put(m, "]");
}

int mo_load(struct mosaic *m, int mem, const int *at, struct mo_type t)
{
    int i[MO_DIM_MAX], n = m->failed ? 0 : mo_type_of(m, mem).n_dim; /* after a failure values may be any */
    for (int k = 0; k < n; k++) i[k] = place(m, at[k]);
    int v = result(m, t);
    put(m, "vector.load %v", mem);
    put_places(m, i, n);
    put(m, " : %t, %T\n", mem, &t);
    return v;
}

void mo_store(struct mosaic *m, int mem, const int *at, int x)
{
    int i[MO_DIM_MAX], n = m->failed ? 0 : mo_type_of(m, mem).n_dim;
    sy_assert(m->failed || n == mo_type_of(m, x).n_dim);
    for (int k = 0; k < n; k++) i[k] = place(m, at[k]);
    indent(m);
    put(m, "tpu.vector_store %v", mem);
    put_places(m, i, n);
    put(m, ", %v {strides = array<i32>} : %t, %t,\n", x, mem, x);
}

/* A slice of mem as type t from `at` on, `size` (-1: none) its first dimension when only known at run time. */
static int slice(struct mosaic *m, int mem, const int *at, int n_at, int size, struct mo_type t)
{
    int i[MO_DIM_MAX];
    for (int k = 0; k < t.n_dim; k++) i[k] = k < n_at && at[k] >= 0 ? at[k] : ZERO;
    int v = result(m, t);
    put(m, "tpu.memref_slice %v", mem);
    put_places(m, i, t.n_dim);
    if (size >= 0) put(m, " <%v>", size);
    put(m, " : %t -> %T\n", mem, &t);
    return v;
}

int mo_part(struct mosaic *m, int mem, const int *at, struct mo_type t, int gone)
{
    struct mo_type whole = mo_type_of(m, mem), rest;
    sy_assert(m->failed || (t.n_dim == whole.n_dim && gone <= t.n_dim));
    t.space = whole.space;
    int part = slice(m, mem, at, t.n_dim, -1, t);
    if (gone == 0) return part;
    rest = mo_type(whole.space, whole.elem, t.n_dim - gone, t.dim + gone);
    int v = result(m, rest);
    put(m, "tpu.memref_squeeze %v : %t -> %T\n", part, part, &rest);
    return v;
}

int mo_at(struct mosaic *m, int mem, int n, const int *at)
{
    struct mo_type t = mo_type_of(m, mem);
    int from[MO_DIM_MAX];
    sy_assert(m->failed || n <= t.n_dim);
    for (int i = 0; i < t.n_dim; i++) from[i] = i < n ? at[i] : -1;
    for (int i = 0; i < n; i++) t.dim[i] = 1;
    return mo_part(m, mem, from, t, n);
}

int mo_span(struct mosaic *m, int mem, int from, int32_t n)
{
    struct mo_type t = mo_type_of(m, mem);
    if (t.dim[0] == n) return mem;
    t.dim[0] = n;
    return slice(m, mem, &from, 1, -1, t);
}

int mo_span_of(struct mosaic *m, int mem, int from, int n)
{
    struct mo_type t = mo_type_of(m, mem);
    t.dim[0] = -1;
    return slice(m, mem, &from, 1, n, t);
}

void mo_copy_start(struct mosaic *m, int from, int to, int sem)
{
    indent(m);
    put(m, "tpu.enqueue_dma source(%v : %t) target(%v : %t) target_semaphore(%v : %t)\n", from, from, to, to, sem,
        sem);
}

void mo_copy_wait(struct mosaic *m, int from, int to, int sem)
{
    indent(m);
    put(m, "tpu.wait_dma2 semaphore(%v : %t) src(%v : %t) dst(%v : %t)\n", sem, sem, from, from, to, to);
}

/* ---- flow -------------------------------------------------------------------------------------------------------
 */

static void put_values(struct mosaic *m, const int *v, int n)
{
    for (int i = 0; i < n; i++) put(m, i ? ", %v" : "%v", v[i]);
}

static void put_types(struct mosaic *m, const struct mo_type *t, int n)
{
    for (int i = 0; i < n; i++) put(m, i ? ", %T" : "%T", &t[i]);
}

int mo_for(struct mosaic *m, int lo, int hi, int *carry, int n)
{
    sy_assert(n <= MO_CARRY_MAX && m->n_loop < MO_DEPTH_MAX);
    struct mo_loop *l = &m->loop[m->n_loop++];
    l->n = n;
    for (int i = 0; i < n; i++) {
        l->type[i] = mo_type_of(m, carry[i]);
        l->result[i] = value(m, l->type[i]);
    }
    int v = value(m, (struct mo_type){.elem = MO_I32});
    indent(m);
    put_values(m, l->result, n);
    put(m, n ? " = scf.for %v = %v to %v step %v" : "scf.for %v = %v to %v step %v", v, lo, hi, ONE);
    if (n) put(m, " iter_args(");
    for (int i = 0; i < n; i++) {
        int inside = value(m, l->type[i]);
        put(m, i ? ", %v = %v" : "%v = %v", inside, carry[i]);
        carry[i] = inside;
    }
    if (n) {
        put(m, ") -> (");
        put_types(m, l->type, n);
        put(m, ")");
    }
    put(m, " : i32 {\n");
    m->depth++;
    return v;
}

void mo_for_end(struct mosaic *m, const int *next, int *left, int n)
{
    sy_assert(m->n_loop > 0);
    struct mo_loop *l = &m->loop[--m->n_loop];
    sy_assert(l->n == n);
    if (n) {
        indent(m);
        put(m, "scf.yield ");
        put_values(m, next, n);
        put(m, " : ");
        put_types(m, l->type, n);
        put(m, "\n");
    }
    m->depth--;
    indent(m);
    put(m, "}\n");
    for (int i = 0; i < n; i++) left[i] = l->result[i];
}

void mo_if(struct mosaic *m, int condition)
{
    indent(m);
    put(m, "scf.if %v {\n", condition);
    m->depth++;
}

void mo_if_end(struct mosaic *m)
{
    m->depth--;
    indent(m);
    put(m, "}\n");
}
