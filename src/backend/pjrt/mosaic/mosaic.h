/* mosaic.h - writes a TPU kernel as the textual MLIR that libtpu takes inside a custom call: the dialects func,
 * arith, math, vector, memref, scf and Mosaic's tpu (jax-ml/jax, jaxlib/mosaic/dialect/tpu). Values are numbers; the
 * writer keeps their types. Scalars that index or count are i32; index casts are made here. Errors stick: after
 * memory ran out calls do nothing and mo_end() reports it. A mismatch of shapes is a bug of the kernel and asserts.
 * Private to this folder and its tests. */
#pragma once
#include "base/buf.h"

enum mo_elem { MO_F32, MO_BF16, MO_I8, MO_E4M3, MO_I32, MO_I1, MO_SEM, MO_INDEX };
enum mo_space { MO_REG, MO_HBM, MO_VMEM, MO_SMEM, MO_SEMAPHORES }; /* REG: a vector, or with no dimension a scalar */
enum { MO_DIM_MAX = 6, MO_ARG_MAX = 40, MO_CARRY_MAX = 64, MO_DEPTH_MAX = 8 };
struct mo_type {
    enum mo_elem elem;
    enum mo_space space;
    int n_dim;
    int32_t dim[MO_DIM_MAX]; /* -1: known when it runs */
};
struct mo_type mo_type(enum mo_space, enum mo_elem, int n_dim, const int32_t *dim);
#define MO_TYPE(space, elem, ...)                                                                                    \
    mo_type(space, elem, (int)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)), (const int32_t[]){__VA_ARGS__})
#define MO_VEC(elem, ...) MO_TYPE(MO_REG, elem, __VA_ARGS__)
int mo_elem_bytes(enum mo_elem);

struct mo_loop { /* open ones, innermost last */
    int n, result[MO_CARRY_MAX];
    struct mo_type type[MO_CARRY_MAX];
};
struct mosaic {
    const struct sy_env *env;
    struct sy_buf fixed, body; /* constants, which stand first, and what follows */
    struct mo_type *type;      /* by value */
    int n, cap, depth;
    struct mo_loop loop[MO_DEPTH_MAX];
    int n_loop;
    /* Arguments, in this order: scalars fetched before it starts, inputs and outputs in HBM, scratch. */
    int arg[MO_ARG_MAX], n_arg, n_prefetch, n_operand, n_result, n_scratch;
    int tiled[MO_ARG_MAX]; /* by argument: the value of mo_scratch_tiled(); 0: it is of another kind */
    int alias[MO_ARG_MAX]; /* by result: the operand whose memory it is, scalars counted too; -1: its own */
    bool failed;
};
void mo_init(struct mosaic *, const struct sy_env *);
void mo_release(struct mosaic *);
struct mo_type mo_type_of(const struct mosaic *, int v);

/* Arguments come before everything else. */
int mo_prefetch(struct mosaic *, int32_t n); /* i32 [n] in SMEM */
int mo_input(struct mosaic *, struct mo_type);
int mo_output(struct mosaic *, struct mo_type);
int mo_output_in(struct mosaic *, int input); /* its memory, changed in place */
int mo_scratch(struct mosaic *, struct mo_type);
/* VMEM whose vectors lie as XLA lays them out in HBM, in tiles of 8 rows, on chips too whose compiler would take
 * more: a transfer between wider arrays that lie differently has its strides written down first, which takes three
 * times as long as asking for it. */
int mo_scratch_tiled(struct mosaic *, struct mo_type);
SY_CHECK sy_status mo_end(struct mosaic *, struct sy_buf *out, struct sy_err *);
/* backend_config of the custom call tpu_custom_call: the kernel's text, its operands of HBM kept there, at most that
 * much VMEM. It checks no bounds when it runs: the interpreter of the tests does. */
void mo_config(const struct mosaic *, const struct sy_buf *kernel, int64_t vmem_bytes, struct sy_buf *out);

/* ---- values --------------------------------------------------------------------------------------------------- */

int mo_i32(struct mosaic *, int32_t);
int mo_splat(struct mosaic *, struct mo_type, double); /* the same value everywhere; +-INFINITY too */
int mo_iota(struct mosaic *, struct mo_type, int dim);
/* Elementwise, by MLIR's name ("arith.addi", "math.exp2"); operands of one type. */
int mo_unary(struct mosaic *, const char *op, int a);
int mo_binary(struct mosaic *, const char *op, int a, int b);
/* Of i32; the last three by a constant, n a power of two for over and over_up, which round down and up. */
int mo_add(struct mosaic *, int a, int b);
int mo_sub(struct mosaic *, int a, int b);
int mo_min(struct mosaic *, int a, int b);
int mo_times(struct mosaic *, int a, int32_t n);
int mo_over(struct mosaic *, int a, int32_t n);
int mo_over_up(struct mosaic *, int a, int32_t n);
int mo_log2(int32_t n); /* of a power of two */
/* a, of which the compiler cannot see that it is a multiple of n. */
int mo_multiple(struct mosaic *, int a, int32_t n);
int mo_compare(struct mosaic *, const char *how, int a, int b); /* "slt", "eq", ...; of floats "olt", ... */
int mo_select(struct mosaic *, int mask, int a, int b);         /* mask: of their shape, or one for all */
int mo_convert(struct mosaic *, int a, enum mo_elem);           /* a itself where it is of that type */
int mo_bitcast(struct mosaic *, int a, enum mo_elem);           /* of as many bits */
int mo_reshape(struct mosaic *, int a, int n_dim, const int32_t *dim);
#define MO_RESHAPE(m, a, ...)                                                                                        \
    mo_reshape(m, a, (int)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)), (const int32_t[]){__VA_ARGS__})
int mo_broadcast(struct mosaic *, int a, struct mo_type);        /* a scalar, or [n, 1] or [1, m] to [n, m] */
int mo_columns(struct mosaic *, int a, int32_t from, int32_t n); /* of a matrix */
int mo_rows(struct mosaic *, int a, int32_t from, int32_t n);
int mo_transpose(struct mosaic *, int a);
int mo_concat(struct mosaic *, int a, int b, int dim); /* matrices */
/* op "maximumf" or "add" over dimension dim of a matrix of f32, which becomes 1. */
int mo_reduce(struct mosaic *, const char *op, int a, int dim);
/* acc + a b, or a b^T when by_rows (over both second dimensions); acc f32. */
int mo_product(struct mosaic *, int a, int b, bool by_rows, int acc);

/* ---- memory -----------------------------------------------------------------------------------------------------
 */

int mo_get(struct mosaic *, int mem, int at); /* a scalar of SMEM */
void mo_put(struct mosaic *, int mem, int at, int value);
/* A vector from VMEM, and to it; at: an i32 for each dimension, -1: 0. */
int mo_load(struct mosaic *, int mem, const int *at, struct mo_type);
void mo_store(struct mosaic *, int mem, const int *at, int value);
/* The part of an array at the first n of its indices (i32). */
int mo_at(struct mosaic *, int mem, int n, const int *at);
#define MO_AT(m, mem, ...)                                                                                           \
    mo_at(m, mem, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (const int[]){__VA_ARGS__})
/* The part of shape t, its leading `gone` dimensions of 1 left out; at: an i32 for each dimension, -1: 0. */
int mo_part(struct mosaic *, int mem, const int *at, struct mo_type t, int gone);
/* n of an array's first dimension from `from` (i32) on; n is a value when it is only known at run time. */
int mo_span(struct mosaic *, int mem, int from, int32_t n);
int mo_span_of(struct mosaic *, int mem, int from, int n);
void mo_copy_start(struct mosaic *, int from, int to, int semaphore);
void mo_copy_wait(struct mosaic *, int from, int to, int semaphore); /* for as many bytes as `to` has */

/* ---- flow -------------------------------------------------------------------------------------------------------
 */

/* for i = lo; i < hi; i++: returns i; carry [n] become the values inside, then, after mo_for_end(), those left. */
int mo_for(struct mosaic *, int lo, int hi, int *carry, int n);
void mo_for_end(struct mosaic *, const int *next, int *left, int n);
void mo_if(struct mosaic *, int condition);
void mo_if_end(struct mosaic *);
