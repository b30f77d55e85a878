/* hlo.c - the writer of StableHLO text. */
#include "backend/pjrt/hlo.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct pj_type pj_type(enum pj_elem e, int n_dim, const int64_t *dim)
{
    struct pj_type t = {.elem = e, .n_dim = n_dim};
    sy_assert(n_dim <= PJ_DIM_MAX);
    for (int i = 0; i < n_dim; i++) t.dim[i] = dim[i];
    return t;
}

struct pj_type pj_scalar(enum pj_elem e) { return (struct pj_type){.elem = e}; }

void pj_hlo_init(struct pj_hlo *h, const struct sy_env *env)
{
    *h = (struct pj_hlo){.env = env};
    sy_buf_init(&h->args, env, 0);
    sy_buf_init(&h->body, env, 0);
}

void pj_hlo_release(struct pj_hlo *h)
{
    sy_buf_release(&h->args);
    sy_buf_release(&h->body);
    sy_delete(h->env, h->type);
    h->type = NULL;
}

const struct pj_type *pj_type_of(const struct pj_hlo *h, int v)
{
    static const struct pj_type none = {.n_dim = 1, .dim = {1}};
    if (h->failed) return &none;
    sy_assert(v >= 0 && v < h->n);
    return &h->type[v];
}

static int value(struct pj_hlo *h, struct pj_type t)
{
    if (h->failed) return 0;
    if (h->n == h->cap) {
        int cap = h->cap ? 2 * h->cap : 1024;
        struct pj_type *more = sy_resize(h->env, h->type, (size_t)h->cap * sizeof *more, (size_t)cap * sizeof *more);
        if (!more) {
            h->failed = true;
            return 0;
        }
        h->type = more;
        h->cap = cap;
    }
    h->type[h->n] = t;
    return h->n++;
}

static void put_type(struct sy_buf *b, const struct pj_type *t)
{
    sy_buf_text(b, "tensor<");
    for (int i = 0; i < t->n_dim; i++) sy_buf_printf(b, "%lldx", (long long)t->dim[i]);
    sy_buf_printf(b, "%s>", pj_elem_name(t->elem));
}

/* " : (types of a) -> type of the value" */
static void put_signature(struct pj_hlo *h, const int *a, int n, int result)
{
    sy_buf_text(&h->body, " : (");
    for (int i = 0; i < n; i++) {
        if (i) sy_buf_text(&h->body, ", ");
        put_type(&h->body, pj_type_of(h, a[i]));
    }
    sy_buf_text(&h->body, ") -> ");
    put_type(&h->body, pj_type_of(h, result));
    sy_buf_char(&h->body, '\n');
}

static void put_types(struct pj_hlo *h, const int *a, int n)
{
    for (int i = 0; i < n; i++) {
        if (i) sy_buf_text(&h->body, ", ");
        put_type(&h->body, pj_type_of(h, a[i]));
    }
}

static void put_list(struct sy_buf *b, const int *at, int n)
{
    for (int i = 0; i < n; i++) sy_buf_printf(b, "%s%d", i ? ", " : "", at[i]);
}

static bool same_shape(const struct pj_type *a, const struct pj_type *b)
{
    if (a->n_dim != b->n_dim) return false;
    for (int i = 0; i < a->n_dim; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

/* ---- the module ----------------------------------------------------------------------------------------------- */

int pj_arg(struct pj_hlo *h, struct pj_type t, int alias)
{
    int v = value(h, t);
    sy_assert(h->failed || (v == h->n_arg && h->body.len == 0));
    sy_buf_printf(&h->args, "%s%%%d: ", h->n_arg++ ? ", " : "", v);
    put_type(&h->args, &t);
    if (alias >= 0) sy_buf_printf(&h->args, " {tf.aliasing_output = %d : i32}", alias);
    return v;
}

sy_status pj_hlo_end(struct pj_hlo *h, int n_replica, const int *result, int n_result, struct sy_buf *out,
                     struct sy_err *err)
{
    if (h->failed || h->args.failed || h->body.failed)
        return sy_fail(err, SY_ENOMEM, "no memory for the text of a program");
    sy_buf_printf(out, "module @step attributes {mhlo.num_replicas = %d : i32, mhlo.num_partitions = 1 : i32} {\n",
                  n_replica);
    sy_buf_text(out, "func.func public @main(");
    sy_buf_add(out, h->args.at, h->args.len);
    sy_buf_text(out, ") -> (");
    for (int i = 0; i < n_result; i++) {
        if (i) sy_buf_text(out, ", ");
        put_type(out, pj_type_of(h, result[i]));
    }
    sy_buf_text(out, ") {\n");
    if (h->body.len) sy_buf_add(out, h->body.at, h->body.len);
    sy_buf_text(out, "return ");
    for (int i = 0; i < n_result; i++) sy_buf_printf(out, "%s%%%d", i ? ", " : "", result[i]);
    sy_buf_text(out, " : ");
    for (int i = 0; i < n_result; i++) {
        if (i) sy_buf_text(out, ", ");
        put_type(out, pj_type_of(h, result[i]));
    }
    sy_buf_text(out, "\n}\n}\n");
    return out->failed ? sy_fail(err, SY_ENOMEM, "no memory for the text of a program") : SY_OK;
}

/* ---- constants --------------------------------------------------------------------------------------------------
 */

static void put_number(struct sy_buf *b, enum pj_elem e, double x)
{
    bool real = e == PJ_F32 || e == PJ_F16 || e == PJ_BF16;
    if (real) sy_buf_printf(b, "%.9e", x);
    else sy_buf_printf(b, "%lld", (long long)x);
}

int pj_const(struct pj_hlo *h, struct pj_type t, double x)
{
    int v = value(h, t);
    sy_assert(isfinite(x));
    sy_buf_printf(&h->body, "%%%d = stablehlo.constant dense<", v);
    put_number(&h->body, t.elem, x);
    sy_buf_text(&h->body, "> : ");
    put_type(&h->body, &t);
    sy_buf_char(&h->body, '\n');
    return v;
}

int pj_const_f32(struct pj_hlo *h, const float *x, int64_t n)
{
    struct pj_type t = PJ_TYPE(PJ_F32, n);
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = stablehlo.constant dense<[", v);
    for (int64_t i = 0; i < n; i++) {
        if (i) sy_buf_text(&h->body, ", ");
        put_number(&h->body, PJ_F32, (double)x[i]);
    }
    sy_buf_text(&h->body, "]> : ");
    put_type(&h->body, &t);
    sy_buf_char(&h->body, '\n');
    return v;
}

int pj_splat(struct pj_hlo *h, double x, int like) { return pj_const(h, *pj_type_of(h, like), x); }

int pj_iota(struct pj_hlo *h, struct pj_type t, int dim)
{
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = stablehlo.iota dim = %d : ", v, dim);
    put_type(&h->body, &t);
    sy_buf_char(&h->body, '\n');
    return v;
}

/* ---- elementwise -------------------------------------------------------------------------------------------- */

int pj_unary(struct pj_hlo *h, const char *op, int a)
{
    struct pj_type t = *pj_type_of(h, a);
    int v = value(h, t);
    bool chlo = !strncmp(op, "chlo.", 5); /* the one op of another dialect: erf */
    sy_buf_printf(&h->body, "%%%d = %s%s %%%d : ", v, chlo ? "" : "stablehlo.", op, a);
    put_type(&h->body, &t);
    if (chlo) {
        sy_buf_text(&h->body, " -> ");
        put_type(&h->body, &t);
    }
    sy_buf_char(&h->body, '\n');
    return v;
}

int pj_binary(struct pj_hlo *h, const char *op, int a, int b)
{
    struct pj_type t = *pj_type_of(h, a);
    sy_assert(h->failed || (same_shape(&t, pj_type_of(h, b)) && t.elem == pj_type_of(h, b)->elem));
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = stablehlo.%s %%%d, %%%d : ", v, op, a, b);
    put_type(&h->body, &t);
    sy_buf_char(&h->body, '\n');
    return v;
}

int pj_compare(struct pj_hlo *h, const char *how, int a, int b)
{
    struct pj_type t = *pj_type_of(h, a);
    sy_assert(h->failed || (same_shape(&t, pj_type_of(h, b)) && t.elem == pj_type_of(h, b)->elem));
    t.elem = PJ_PRED;
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = stablehlo.compare %s, %%%d, %%%d", v, how, a, b);
    put_signature(h, (const int[]){a, b}, 2, v);
    return v;
}

int pj_select(struct pj_hlo *h, int mask, int a, int b)
{
    struct pj_type t = *pj_type_of(h, a);
    sy_assert(h->failed || (same_shape(&t, pj_type_of(h, b)) && same_shape(&t, pj_type_of(h, mask))));
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = stablehlo.select %%%d, %%%d, %%%d : ", v, mask, a, b);
    put_type(&h->body, pj_type_of(h, mask));
    sy_buf_text(&h->body, ", ");
    put_type(&h->body, &t);
    sy_buf_char(&h->body, '\n');
    return v;
}

static int convert(struct pj_hlo *h, const char *op, int a, enum pj_elem e)
{
    struct pj_type t = *pj_type_of(h, a);
    if (t.elem == e) return a;
    t.elem = e;
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = stablehlo.%s %%%d", v, op, a);
    put_signature(h, &a, 1, v);
    return v;
}

int pj_convert(struct pj_hlo *h, int a, enum pj_elem e) { return convert(h, "convert", a, e); }
int pj_bitcast(struct pj_hlo *h, int a, enum pj_elem e) { return convert(h, "bitcast_convert", a, e); }

/* ---- shapes -----------------------------------------------------------------------------------------------------
 */

int pj_reshape(struct pj_hlo *h, int a, int n_dim, const int64_t *dim)
{
    struct pj_type t = pj_type(pj_type_of(h, a)->elem, n_dim, dim);
    sy_assert(h->failed || pj_type_count(&t) == pj_type_count(pj_type_of(h, a)));
    if (same_shape(&t, pj_type_of(h, a))) return a;
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = stablehlo.reshape %%%d", v, a);
    put_signature(h, &a, 1, v);
    return v;
}

int pj_broadcast(struct pj_hlo *h, int a, struct pj_type like, const int *at)
{
    struct pj_type from = *pj_type_of(h, a);
    like.elem = from.elem;
    for (int i = 0; i < from.n_dim; i++) sy_assert(h->failed || from.dim[i] == 1 || from.dim[i] == like.dim[at[i]]);
    int v = value(h, like);
    sy_buf_printf(&h->body, "%%%d = stablehlo.broadcast_in_dim %%%d, dims = [", v, a);
    put_list(&h->body, at, from.n_dim);
    sy_buf_char(&h->body, ']');
    put_signature(h, &a, 1, v);
    return v;
}

int pj_transpose(struct pj_hlo *h, int a, const int *order)
{
    struct pj_type from = *pj_type_of(h, a), t = from;
    for (int i = 0; i < from.n_dim; i++) t.dim[i] = from.dim[order[i]];
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = stablehlo.transpose %%%d, dims = [", v, a);
    put_list(&h->body, order, from.n_dim);
    sy_buf_char(&h->body, ']');
    put_signature(h, &a, 1, v);
    return v;
}

int pj_slice(struct pj_hlo *h, int a, int dim, int64_t lo, int64_t hi)
{
    struct pj_type from = *pj_type_of(h, a), t = from;
    sy_assert(h->failed || (lo >= 0 && lo < hi && hi <= from.dim[dim]));
    t.dim[dim] = hi - lo;
    if (lo == 0 && hi == from.dim[dim]) return a;
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = stablehlo.slice %%%d [", v, a);
    for (int i = 0; i < from.n_dim; i++)
        sy_buf_printf(&h->body, "%s%lld:%lld", i ? ", " : "", i == dim ? (long long)lo : 0LL,
                      i == dim ? (long long)hi : (long long)from.dim[i]);
    sy_buf_char(&h->body, ']');
    put_signature(h, &a, 1, v);
    return v;
}

int pj_concat(struct pj_hlo *h, const int *a, int n, int dim)
{
    if (n == 1) return a[0];
    struct pj_type t = *pj_type_of(h, a[0]);
    for (int i = 1; i < n; i++) t.dim[dim] += pj_type_of(h, a[i])->dim[dim];
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = stablehlo.concatenate ", v);
    for (int i = 0; i < n; i++) sy_buf_printf(&h->body, "%s%%%d", i ? ", " : "", a[i]);
    sy_buf_printf(&h->body, ", dim = %d", dim);
    put_signature(h, a, n, v);
    return v;
}

int pj_pad_after(struct pj_hlo *h, int a, int dim, int64_t n)
{
    struct pj_type t = *pj_type_of(h, a);
    t.dim[dim] = n;
    int zero = pj_const(h, t, 0);
    return pj_concat(h, (const int[]){a, zero}, 2, dim);
}

/* The start indices of a dynamic slice: zero everywhere but at dim. */
static void put_starts(struct pj_hlo *h, int n_dim, int dim, int at, int zero)
{
    for (int i = 0; i < n_dim; i++) sy_buf_printf(&h->body, ", %%%d", i == dim ? at : zero);
}

static void put_start_types(struct pj_hlo *h, int n_dim)
{
    for (int i = 0; i < n_dim; i++) sy_buf_text(&h->body, ", tensor<i32>");
}

int pj_dynamic_slice(struct pj_hlo *h, int a, int dim, int at, int64_t n)
{
    int zero = pj_const(h, pj_scalar(PJ_I32), 0);
    struct pj_type from = *pj_type_of(h, a), t = from;
    t.dim[dim] = n;
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = stablehlo.dynamic_slice %%%d", v, a);
    put_starts(h, t.n_dim, dim, at, zero);
    sy_buf_text(&h->body, ", sizes = [");
    for (int i = 0; i < t.n_dim; i++) sy_buf_printf(&h->body, "%s%lld", i ? ", " : "", (long long)t.dim[i]);
    sy_buf_text(&h->body, "] : (");
    put_type(&h->body, &from);
    put_start_types(h, t.n_dim);
    sy_buf_text(&h->body, ") -> ");
    put_type(&h->body, &t);
    sy_buf_char(&h->body, '\n');
    return v;
}

int pj_dynamic_update(struct pj_hlo *h, int a, int update, int dim, int at)
{
    int zero = pj_const(h, pj_scalar(PJ_I32), 0);
    struct pj_type t = *pj_type_of(h, a);
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = stablehlo.dynamic_update_slice %%%d, %%%d", v, a, update);
    put_starts(h, t.n_dim, dim, at, zero);
    sy_buf_text(&h->body, " : (");
    put_type(&h->body, &t);
    sy_buf_text(&h->body, ", ");
    put_type(&h->body, pj_type_of(h, update));
    put_start_types(h, t.n_dim);
    sy_buf_text(&h->body, ") -> ");
    put_type(&h->body, &t);
    sy_buf_char(&h->body, '\n');
    return v;
}

/* ---- reductions, products, gathers ----------------------------------------------------------------------------- */

int pj_reduce(struct pj_hlo *h, const char *op, int a, int dim, double init)
{
    struct pj_type from = *pj_type_of(h, a), t = from;
    int zero = pj_const(h, pj_scalar(from.elem), init);
    for (int i = dim; i + 1 < from.n_dim; i++) t.dim[i] = from.dim[i + 1];
    t.n_dim--;
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = stablehlo.reduce(%%%d init: %%%d) applies stablehlo.%s across dimensions = [%d]",
                  v, a, zero, op, dim);
    put_signature(h, (const int[]){a, zero}, 2, v);
    return v;
}

int pj_dot(struct pj_hlo *h, int a, int b, const struct pj_dot *d, enum pj_elem out)
{
    struct pj_type x = *pj_type_of(h, a), y = *pj_type_of(h, b), t = {.elem = out};
    sy_assert(h->failed || (x.elem == y.elem && d->n_more <= 1));
    for (int i = 0; i <= d->n_more; i++) sy_assert(h->failed || x.dim[d->over_a + i] == y.dim[d->over_b + i]);
    for (int i = 0; i < d->n_batch; i++) t.dim[t.n_dim++] = x.dim[d->batch_a[i]];
    for (int side = 0; side < 2; side++) {
        const struct pj_type *s = side ? &y : &x;
        const int *batch = side ? d->batch_b : d->batch_a;
        for (int i = 0; i < s->n_dim; i++) {
            int over = side ? d->over_b : d->over_a;
            bool gone = i >= over && i <= over + d->n_more;
            for (int k = 0; k < d->n_batch; k++) gone = gone || i == batch[k];
            if (!gone) t.dim[t.n_dim++] = s->dim[i];
        }
    }
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = stablehlo.dot_general %%%d, %%%d, ", v, a, b);
    if (d->n_batch) {
        sy_buf_text(&h->body, "batching_dims = [");
        put_list(&h->body, d->batch_a, d->n_batch);
        sy_buf_text(&h->body, "] x [");
        put_list(&h->body, d->batch_b, d->n_batch);
        sy_buf_text(&h->body, "], ");
    }
    /* A TPU multiplies f32 in one pass of bf16 unless told otherwise. */
    sy_buf_text(&h->body, "contracting_dims = [");
    put_list(&h->body, (const int[]){d->over_a, d->over_a + 1}, 1 + d->n_more);
    sy_buf_text(&h->body, "] x [");
    put_list(&h->body, (const int[]){d->over_b, d->over_b + 1}, 1 + d->n_more);
    sy_buf_printf(&h->body, "]%s", x.elem == PJ_F32 ? ", precision = [HIGHEST, HIGHEST]" : "");
    put_signature(h, (const int[]){a, b}, 2, v);
    return v;
}

int pj_solve_lower(struct pj_hlo *h, int a, int b)
{
    int v = value(h, *pj_type_of(h, b));
    sy_buf_printf(
        &h->body,
        "%%%d = \"stablehlo.triangular_solve\"(%%%d, %%%d) <{left_side = true, lower = true, unit_diagonal = "
        "true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>}>",
        v, a, b);
    put_signature(h, (const int[]){a, b}, 2, v);
    return v;
}

int pj_top(struct pj_hlo *h, int a, int64_t n)
{
    struct pj_type t = *pj_type_of(h, a);
    t.dim[t.n_dim - 1] = n;
    int best = value(h, t);
    t.elem = PJ_I32;
    int at = value(h, t);
    sy_buf_printf(&h->body, "%%%d, %%%d = chlo.top_k(%%%d, k = %lld) : ", best, at, a, (long long)n);
    put_types(h, &a, 1);
    sy_buf_text(&h->body, " -> (");
    put_types(h, (const int[]){best, at}, 2);
    sy_buf_text(&h->body, ")\n");
    return at;
}

int pj_gather(struct pj_hlo *h, int a, int indices)
{
    struct pj_type from = *pj_type_of(h, a), at = *pj_type_of(h, indices), t = at;
    t.elem = from.elem;
    for (int i = 1; i < from.n_dim; i++) t.dim[t.n_dim++] = from.dim[i];
    int v = value(h, t);
    sy_buf_printf(&h->body,
                  "%%%d = \"stablehlo.gather\"(%%%d, %%%d) <{dimension_numbers = #stablehlo.gather<"
                  "offset_dims = [",
                  v, a, indices);
    for (int i = at.n_dim; i < t.n_dim; i++) sy_buf_printf(&h->body, "%s%d", i > at.n_dim ? ", " : "", i);
    sy_buf_printf(&h->body,
                  "], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = %d>, "
                  "slice_sizes = array<i64: 1",
                  at.n_dim);
    for (int i = 1; i < from.n_dim; i++) sy_buf_printf(&h->body, ", %lld", (long long)from.dim[i]);
    sy_buf_text(&h->body, ">, indices_are_sorted = false}>");
    put_signature(h, (const int[]){a, indices}, 2, v);
    return v;
}

int pj_scatter(struct pj_hlo *h, int a, int indices, int update)
{
    struct pj_type t = *pj_type_of(h, a);
    int v = value(h, t);
    const char *e = pj_elem_name(t.elem);
    sy_buf_printf(&h->body,
                  "%%%d = \"stablehlo.scatter\"(%%%d, %%%d, %%%d) <{scatter_dimension_numbers = "
                  "#stablehlo.scatter<update_window_dims = [",
                  v, a, indices, update);
    for (int i = 1; i < t.n_dim; i++) sy_buf_printf(&h->body, "%s%d", i > 1 ? ", " : "", i);
    sy_buf_printf(&h->body,
                  "], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, "
                  "indices_are_sorted = false, unique_indices = false}> ({\n^bb0(%%old: tensor<%s>, %%new: "
                  "tensor<%s>):\nstablehlo.return %%new : tensor<%s>\n})",
                  e, e, e);
    put_signature(h, (const int[]){a, indices, update}, 3, v);
    return v;
}

void pj_sort(struct pj_hlo *h, int key, int val, int *key_out, int *val_out)
{
    struct pj_type t = *pj_type_of(h, key);
    *key_out = value(h, t);
    *val_out = value(h, t);
    sy_buf_printf(
        &h->body,
        "%%%d, %%%d = \"stablehlo.sort\"(%%%d, %%%d) <{dimension = 0 : i64, is_stable = true}> ({\n^bb0(%%old: "
        "tensor<i32>, %%new: tensor<i32>, %%c: tensor<i32>, %%d: tensor<i32>):\n%%less = stablehlo.compare LT, "
        "%%old, %%new : (tensor<i32>, tensor<i32>) -> tensor<i1>\nstablehlo.return %%less : "
        "tensor<i1>\n}) : (",
        *key_out, *val_out, key, val);
    put_types(h, (const int[]){key, val}, 2);
    sy_buf_text(&h->body, ") -> (");
    put_types(h, (const int[]){*key_out, *val_out}, 2);
    sy_buf_text(&h->body, ")\n");
}

void pj_kernel(struct pj_hlo *h, const struct sy_buf *config, const int *a, int n, const struct pj_type *t,
               const int *alias, int n_result, int *result)
{
    const char *sep = "";
    h->failed |= config->failed;
    for (int i = 0; i < n_result; i++) {
        result[i] = value(h, t[i]);
        sy_buf_printf(&h->body, "%s%%%d", i ? ", " : "", result[i]);
    }
    sy_buf_text(&h->body, " = stablehlo.custom_call @tpu_custom_call(");
    for (int i = 0; i < n; i++) sy_buf_printf(&h->body, "%s%%%d", i ? ", " : "", a[i]);
    sy_buf_text(&h->body, ") {backend_config = \"");
    for (size_t i = 0; i < config->len; i++)
        if (config->at[i] == '"') sy_buf_text(&h->body, "\\22");
        else sy_buf_char(&h->body, config->at[i]);
    sy_buf_text(&h->body, "\", output_operand_aliases = [");
    for (int i = 0; i < n_result; i++) {
        if (alias[i] < 0) continue;
        sy_buf_printf(&h->body,
                      "%s#stablehlo.output_operand_alias<output_tuple_indices = [%.*d], operand_index = %d, "
                      "operand_tuple_indices = []>",
                      sep, n_result > 1, i, alias[i]);
        sep = ", ";
    }
    sy_buf_text(&h->body, "]} : (");
    put_types(h, a, n);
    sy_buf_text(&h->body, n_result > 1 ? ") -> (" : ") -> ");
    put_types(h, result, n_result);
    sy_buf_text(&h->body, n_result > 1 ? ")\n" : "\n");
}

/* ---- collectives ------------------------------------------------------------------------------------------------
 */

static bool is_first(struct pj_group g, int replica) { return replica / g.stride % g.n == 0; }

static void put_replicas(struct pj_hlo *h, struct pj_group g)
{
    const char *sep = "";
    sy_buf_text(&h->body, "replica_groups = dense<[");
    for (int r = 0; r < g.total; r++) {
        if (!is_first(g, r)) continue;
        sy_buf_printf(&h->body, "%s[", sep);
        for (int i = 0; i < g.n; i++) sy_buf_printf(&h->body, "%s%d", i ? ", " : "", r + i * g.stride);
        sy_buf_char(&h->body, ']');
        sep = ", ";
    }
    sy_buf_printf(&h->body, "]> : tensor<%dx%dxi64>", g.total / g.n, g.n);
}

static void put_sum(struct pj_hlo *h, enum pj_elem elem)
{
    const char *e = pj_elem_name(elem);
    sy_buf_printf(&h->body,
                  "}> ({\n^bb0(%%old: tensor<%s>, %%new: tensor<%s>):\n%%sum = stablehlo.add %%old, %%new : "
                  "tensor<%s>\nstablehlo.return %%sum : tensor<%s>\n})",
                  e, e, e, e);
}

int pj_replica_id(struct pj_hlo *h)
{
    int v = value(h, pj_scalar(PJ_I32));
    sy_buf_printf(&h->body,
                  "%%replica%d = stablehlo.replica_id : tensor<ui32>\n%%%d = stablehlo.convert %%replica%d : "
                  "(tensor<ui32>) -> tensor<i32>\n",
                  v, v, v);
    return v;
}

int pj_all_reduce(struct pj_hlo *h, int a, struct pj_group g)
{
    struct pj_type t = *pj_type_of(h, a);
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = \"stablehlo.all_reduce\"(%%%d) <{", v, a);
    put_replicas(h, g);
    put_sum(h, t.elem);
    put_signature(h, &a, 1, v);
    return v;
}

int pj_all_gather(struct pj_hlo *h, int a, int dim, struct pj_group g)
{
    struct pj_type t = *pj_type_of(h, a);
    t.dim[dim] *= g.n;
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = \"stablehlo.all_gather\"(%%%d) <{all_gather_dim = %d : i64, ", v, a, dim);
    put_replicas(h, g);
    sy_buf_text(&h->body, "}>");
    put_signature(h, &a, 1, v);
    return v;
}

int pj_reduce_scatter(struct pj_hlo *h, int a, struct pj_group g)
{
    struct pj_type t = *pj_type_of(h, a);
    t.dim[0] /= g.n;
    int v = value(h, t);
    sy_buf_printf(&h->body, "%%%d = \"stablehlo.reduce_scatter\"(%%%d) <{scatter_dimension = 0 : i64, ", v, a);
    put_replicas(h, g);
    put_sum(h, t.elem);
    put_signature(h, &a, 1, v);
    return v;
}

int pj_shift(struct pj_hlo *h, int a, struct pj_group g)
{
    int v = value(h, *pj_type_of(h, a)), n = 0;
    sy_buf_printf(&h->body, "%%%d = \"stablehlo.collective_permute\"(%%%d) <{source_target_pairs = dense<[", v, a);
    for (int r = 0; r < g.total; r++)
        if (!is_first(g, r)) sy_buf_printf(&h->body, "%s[%d, %d]", n++ ? ", " : "", r - g.stride, r);
    sy_buf_printf(&h->body, "]> : tensor<%dx2xi64>}>", n);
    put_signature(h, &a, 1, v);
    return v;
}

/* ---- loops -------------------------------------------------------------------------------------------------- */

/* "^bb0(%7: tensor<i32>, ...):" with new values of the types of the loop's. */
static void block_values(struct pj_hlo *h, struct pj_loop *l)
{
    sy_buf_text(&h->body, "^bb0(");
    for (int i = 0; i < l->n; i++) {
        struct pj_type t = *pj_type_of(h, l->result[i]);
        l->var[i] = value(h, t);
        sy_buf_printf(&h->body, "%s%%%d: ", i ? ", " : "", l->var[i]);
        put_type(&h->body, &t);
    }
    sy_buf_text(&h->body, "):\n");
}

void pj_while(struct pj_hlo *h, struct pj_loop *l, const int *init, int n)
{
    sy_assert(n <= PJ_LOOP_MAX);
    l->n = n;
    for (int i = 0; i < n; i++) {
        l->init[i] = init[i];
        l->result[i] = value(h, *pj_type_of(h, init[i]));
        sy_buf_printf(&h->body, "%s%%%d", i ? ", " : "", l->result[i]);
    }
    sy_buf_text(&h->body, " = \"stablehlo.while\"(");
    for (int i = 0; i < n; i++) sy_buf_printf(&h->body, "%s%%%d", i ? ", " : "", init[i]);
    sy_buf_text(&h->body, ") ({\n");
    block_values(h, l);
}

void pj_while_do(struct pj_hlo *h, struct pj_loop *l, int condition)
{
    sy_buf_printf(&h->body, "stablehlo.return %%%d : tensor<i1>\n}, {\n", condition);
    block_values(h, l);
}

void pj_while_end(struct pj_hlo *h, struct pj_loop *l, const int *next) { pj_while_end_named(h, l, next, NULL); }

void pj_while_end_named(struct pj_hlo *h, struct pj_loop *l, const int *next, const char *name)
{
    sy_buf_text(&h->body, "stablehlo.return ");
    for (int i = 0; i < l->n; i++) sy_buf_printf(&h->body, "%s%%%d", i ? ", " : "", next[i]);
    sy_buf_text(&h->body, " : ");
    put_types(h, next, l->n);
    sy_buf_text(&h->body, "\n}) : (");
    put_types(h, l->init, l->n);
    sy_buf_text(&h->body, ") -> (");
    put_types(h, l->result, l->n);
    sy_buf_char(&h->body, ')');
    if (name) sy_buf_printf(&h->body, " loc(\"%s\")", name);
    sy_buf_char(&h->body, '\n');
    for (int i = 0; i < l->n; i++) l->var[i] = l->result[i];
}
