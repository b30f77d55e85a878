/* measure.h - what a kernel costs by the schedule that libtpu's compiler makes of it, and what the plain StableHLO
 * in whose place it stands costs by that compiler's estimates. Nothing here is measured on a chip. */
#pragma once
#include "backend/pjrt/aot.h"

/* A step's attention: each of n_seq sequences has n_new queries, the last of its n_keys keys. */
struct sy_attend_shape {
    int32_t n_seq, n_new, n_keys, n_kv, n_group, d, block_len; /* n_group: queries to a key head */
    int32_t window;                                            /* 0: none */
    int32_t tile;                                              /* queries taken at once */
    int32_t fetch;                                             /* keys fetched at once, a multiple of block_len */
    int32_t elem_bytes;                                        /* of the cache: 2, or 1 for q8_0 */
};
struct sy_attend_cost {        /* cycles */
    double fetch, block, tile; /* arithmetic of a fetch; asking for one block; a tile besides its fetches */
    double memory;             /* a fetch's bytes at the memory's full bandwidth */
    double all;                /* the step: of each fetch the larger of work and memory */
    double compile_s;
};
struct sy_twin_cost { /* seconds */
    double estimate;  /* by the compiler's cycles, which leave out most of a gather */
    double memory;    /* the bytes it says are accessed, at full bandwidth */
};
/* The ATTENDs of a graph when opt->kernels: those that kernels take, alike ones together, and those that none takes.
 */
enum { SY_ATTEND_KINDS = 4 };
struct sy_attend_use {
    int32_t n_kind, n_kernel, n_plain;
    const char *why; /* the first that none takes has, such as "sinks" */
    struct sy_attend_shape shape[SY_ATTEND_KINDS];
    int32_t n[SY_ATTEND_KINDS];
};
struct sy_attend_use sy_attend_use_of(const struct sy_graph *, const struct sy_aot_opt *);
/* A twin's cost is that of the op without kernels or, `around`, of what stands around the kernel in its place, of
 * which the estimate alone counts. All compile in the caller's process and change its environment: run them in a
 * child of their own. */
SY_CHECK sy_status sy_attend_cost(const struct sy_env *, const char *plugin, const struct sy_aot_target *,
                                  const struct sy_attend_shape *, struct sy_attend_cost *, struct sy_err *);
SY_CHECK sy_status sy_attend_twin_cost(const struct sy_env *, const char *plugin, const struct sy_aot_target *,
                                       const struct sy_attend_shape *, bool around, struct sy_twin_cost *,
                                       struct sy_err *);
/* A layer of experts, of the given rows: choices are taken to be even. */
struct sy_experts_shape {
    struct sy_moe_dim dim;
    int32_t d_model, rows;
    struct sy_experts_weight weight;
};
struct sy_experts_cost { /* cycles */
    double step, memory; /* a tile of an expert's inner columns: arithmetic, and its bytes at full bandwidth */
    double item;         /* an expert besides its steps */
    double all;          /* of all experts that some row chooses, of each step the larger of work and memory */
    double compile_s;
    int32_t tile, rows; /* columns of a step, rows taken at once */
};
int32_t sy_experts_shape_of(const struct sy_graph *,
                            struct sy_experts_shape *); /* of the first; how many there are */
SY_CHECK sy_status sy_experts_cost(const struct sy_env *, const char *plugin, const struct sy_aot_target *,
                                   const struct sy_experts_shape *, struct sy_experts_cost *, struct sy_err *);
SY_CHECK sy_status sy_experts_twin_cost(const struct sy_env *, const char *plugin, const struct sy_aot_target *,
                                        const struct sy_experts_shape *, bool around, struct sy_twin_cost *,
                                        struct sy_err *);
/* A layer of the gated delta rule, with its convolution. */
struct sy_delta_shape {
    struct sy_scan_dim dim;
    int32_t n_seq, n_tap;
    bool bf16;     /* the state; else f32 */
    int32_t n_tok; /* 0: one of each sequence; else of one prompt from its start, which fills the step */
};
struct sy_delta_cost { /* cycles */
    double round,
        memory; /* of `side` tokens, or pieces, of `unit` value heads: arithmetic, bytes at full bandwidth */
    double all; /* of each round the larger of both, and a prompt's states */
    double compile_s;
    int32_t side, unit;
};
SY_CHECK sy_status sy_delta_cost(const struct sy_env *, const char *plugin, const struct sy_aot_target *,
                                 const struct sy_delta_shape *, struct sy_delta_cost *, struct sy_err *);
SY_CHECK sy_status sy_delta_twin_cost(const struct sy_env *, const char *plugin, const struct sy_aot_target *,
                                      const struct sy_delta_shape *, bool around, struct sy_twin_cost *,
                                      struct sy_err *);
/* The gated delta rules of a graph: those that the kernel takes for its kind of step, of the first one's shape, and
 * those that none takes and why. */
struct sy_delta_use {
    int32_t n_kernel, n_plain;
    const char *why;
    struct sy_delta_shape shape;
};
struct sy_delta_use sy_delta_use_of(const struct sy_graph *, const struct sy_aot_opt *);
/* Loops of a schedule: an address for each cycle, idle ones included, and backward branches. By their first cycle. */
struct sy_schedule_loop {
    int64_t from, to;
};
enum { SY_SCHEDULE_LOOPS = 64 };
int sy_schedule_loops(const char *text, size_t n, struct sy_schedule_loop loop[SY_SCHEDULE_LOOPS]);
