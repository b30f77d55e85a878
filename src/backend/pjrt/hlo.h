/* hlo.h - writes a StableHLO program as text (openxla/stablehlo, docs/spec.md). Values are numbers; the writer keeps
 * their types, so that callers name only what an op cannot infer. Errors stick: after memory ran out calls do nothing
 * and pj_hlo_end() reports it. A mismatch of shapes is a bug of the lowering and asserts. Private to this folder. */
#pragma once
#include "backend/pjrt/plugin.h"

struct pj_hlo {
    const struct sy_env *env;
    struct sy_buf args, body; /* of @main */
    struct pj_type *type;     /* by value */
    int n, cap, n_arg;
    bool failed;
};
struct pj_type pj_type(enum pj_elem, int n_dim, const int64_t *dim);
#define PJ_TYPE(elem, ...)                                                                                           \
    pj_type(elem, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__})
struct pj_type pj_scalar(enum pj_elem);

void pj_hlo_init(struct pj_hlo *, const struct sy_env *);
void pj_hlo_release(struct pj_hlo *);
const struct pj_type *pj_type_of(const struct pj_hlo *, int v); /* borrowed until the next value */

/* Arguments come before everything else. alias: the result whose memory it becomes; -1: none. */
int pj_arg(struct pj_hlo *, struct pj_type, int alias);
/* Writes the whole module into out. */
SY_CHECK sy_status pj_hlo_end(struct pj_hlo *, int n_replica, const int *result, int n_result, struct sy_buf *out,
                              struct sy_err *);

int pj_const(struct pj_hlo *, struct pj_type, double value); /* the same value everywhere */
int pj_const_f32(struct pj_hlo *, const float *, int64_t n); /* a vector */
int pj_iota(struct pj_hlo *, struct pj_type, int dim);
/* Elementwise, by StableHLO's name ("add", "exponential"). */
int pj_unary(struct pj_hlo *, const char *op, int a);
int pj_binary(struct pj_hlo *, const char *op, int a, int b);
int pj_compare(struct pj_hlo *, const char *how, int a, int b); /* "LT", ... */
int pj_select(struct pj_hlo *, int mask, int a, int b);
int pj_convert(struct pj_hlo *, int a, enum pj_elem);
int pj_bitcast(struct pj_hlo *, int a, enum pj_elem); /* of as many bits */
int pj_reshape(struct pj_hlo *, int a, int n_dim, const int64_t *dim);
#define PJ_RESHAPE(h, a, ...)                                                                                        \
    pj_reshape(h, a, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__})
/* Dimension i of a becomes dimension at[i] of the result. */
int pj_broadcast(struct pj_hlo *, int a, struct pj_type like, const int *at);
#define PJ_BROADCAST(h, a, like, ...) pj_broadcast(h, a, like, (const int[]){__VA_ARGS__})
int pj_splat(struct pj_hlo *, double value, int like); /* a constant of like's type */
int pj_transpose(struct pj_hlo *, int a, const int *order);
int pj_slice(struct pj_hlo *, int a, int dim, int64_t lo, int64_t hi);
int pj_concat(struct pj_hlo *, const int *a, int n, int dim);
int pj_pad_after(struct pj_hlo *, int a, int dim, int64_t n); /* zeros */
/* Whole but for one dimension, of which n from the scalar i32 `at`. */
int pj_dynamic_slice(struct pj_hlo *, int a, int dim, int at, int64_t n);
int pj_dynamic_update(struct pj_hlo *, int a, int update, int dim, int at);
/* op: "add" or "maximum" or "minimum", from init, over one dimension, which goes. */
int pj_reduce(struct pj_hlo *, const char *op, int a, int dim, double init);
struct pj_dot {
    int n_batch, batch_a[2], batch_b[2]; /* results come as batch, the rest of a, the rest of b */
    int over_a, over_b;
    int n_more; /* 1: the dimensions behind over_a and over_b are summed over too */
};
int pj_dot(struct pj_hlo *, int a, int b, const struct pj_dot *, enum pj_elem out);
/* x of (1 + a) x = b, a [batch, n, n] of which what is below the diagonal counts, b [batch, n, m]. */
int pj_solve_lower(struct pj_hlo *, int a, int b);
/* The n largest of the last dimension, lower places first among equals: their places, i32. */
int pj_top(struct pj_hlo *, int a, int64_t n);
/* Entries of a's first dimension by the i32 indices (of any shape): [indices..., rest of a]. */
int pj_gather(struct pj_hlo *, int a, int indices);
/* a with entries of its first dimension replaced: indices [n], update [n, rest of a]. */
int pj_scatter(struct pj_hlo *, int a, int indices, int update);
/* Both i32 [n], by ascending key, stable. */
void pj_sort(struct pj_hlo *, int key, int val, int *key_out, int *val_out);
/* Replicas in groups of those that are equal but for (replica / stride) % n. */
struct pj_group {
    int n, stride, total;
};
int pj_replica_id(struct pj_hlo *); /* i32 scalar */
/* Over each group: the sum of all theirs; theirs side by side in dimension dim; the sum, of which each has its part
 * of dimension 0; what the one before has, zeros for the first. */
int pj_all_reduce(struct pj_hlo *, int a, struct pj_group);
int pj_all_gather(struct pj_hlo *, int a, int dim, struct pj_group);
int pj_reduce_scatter(struct pj_hlo *, int a, struct pj_group);
int pj_shift(struct pj_hlo *, int a, struct pj_group);
/* A kernel for TPUs; config as mo_config() writes it; alias: by result the operand whose memory it is, -1: its own.
 */
void pj_kernel(struct pj_hlo *, const struct sy_buf *config, const int *a, int n, const struct pj_type *,
               const int *alias, int n_result, int *result);
/* A loop over n values: var are those of the condition after pj_while(), of the body after pj_while_do() of a scalar
 * i1, and those left after pj_while_end(). */
enum { PJ_LOOP_MAX = 8 };
struct pj_loop {
    int n, var[PJ_LOOP_MAX], init[PJ_LOOP_MAX], result[PJ_LOOP_MAX];
};
void pj_while(struct pj_hlo *, struct pj_loop *, const int *init, int n);
void pj_while_do(struct pj_hlo *, struct pj_loop *, int condition);
void pj_while_end(struct pj_hlo *, struct pj_loop *, const int *next);
/* The same; compilers carry the name along, as op_name of the optimised program. */
void pj_while_end_named(struct pj_hlo *, struct pj_loop *, const int *next, const char *name);
