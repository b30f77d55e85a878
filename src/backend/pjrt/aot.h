/* aot.h - what a bucket's program costs on a chip that is not here: the same lowering through the vendor's own
 * compiler, for a described topology. Compiling runs in the caller's process; a plugin may end it, so run it in a
 * child. */
#pragma once
#include "backend/backend.h"

enum sy_aot_kind { SY_AOT_TPU, SY_AOT_GPU, SY_AOT_CPU }; /* CPU: the plugin's own machine */
struct sy_aot_target {
    const char *name;     /* as users know it: "v5e-8" */
    const char *topology; /* as the plugin knows it: "v5e:2x4" */
    int32_t n_device;
    enum sy_aot_kind kind;
    /* Of one device, as published: memory, its bandwidth, bf16 arithmetic; the clock that gives that arithmetic. 0:
     * not known. */
    double hbm_bytes, hbm_bytes_s, flops_s, clock_hz;
};
const struct sy_aot_target *sy_aot_target(const char *name); /* NULL: unknown */
const struct sy_aot_target *sy_aot_targets(int32_t *n);
enum { SY_AOT_GPU_TEXT = 2048 };
void sy_aot_gpu_text(const struct sy_aot_target *, char *text, size_t n); /* describes a GPU to NVIDIA's plugin */

/* Attention of steps of these kinds, experts of any, the gated delta rule of decode steps and of others. */
enum sy_kernels {
    SY_KERNELS_DECODE = 1,
    SY_KERNELS_PROMPT = 2,
    SY_KERNELS_EXPERTS = 4,
    SY_KERNELS_DELTA = 8,
    SY_KERNELS_CHUNK = 16,
    SY_KERNELS_ALL = 31
};
/* How a kernel's experts are stored. */
struct sy_experts_weight {
    enum { SY_EXPERTS_BF16, SY_EXPERTS_INT8, SY_EXPERTS_FP8 } format;
    int32_t group; /* of 8 bits: columns of a row that share a scale; 0: there is none */
};
#define SY_EXPERTS_ROW INT32_MAX /* all columns share one */
/* EXPERTS of a program: those that kernels took, and those that none takes and why. */
struct sy_experts_use {
    int32_t n_kernel, n_plain;
    const char *why;
    struct sy_experts_weight weight; /* of the first that a kernel took */
};
struct sy_aot_program { /* text of a bucket and what it holds, before any compiler saw it */
    struct sy_shape shape;
    struct sy_buf text;
    /* Of one device; step_bytes: weights that a step of one token reads; expert_bytes: those of all experts. */
    double weight_bytes, kv_bytes, step_bytes, expert_bytes;
    struct sy_experts_use experts; /* when opt->kernels has experts */
};
struct sy_aot_opt {
    enum sy_compute compute;
    enum sy_kv_dtype kv_dtype;
    bool attend_bf16;
    const struct sy_quant *assume; /* format of the matrices when there is no checkpoint */
    struct sy_cache_dim cache;
    unsigned kernels; /* hand-written ones for TPUs, see mosaic/: of enum sy_kernels */
    struct sy_shard shard;
};
/* Lowers a graph (already one rank's, where there are several). ckpt NULL: all matrices are of the assumed format. */
SY_CHECK sy_status sy_aot_lower(const struct sy_env *, const struct sy_graph *, const struct sy_checkpoint *,
                                const struct sy_aot_opt *, struct sy_aot_program *out, struct sy_err *);
void sy_aot_program_release(struct sy_aot_program *);

struct sy_aot_bytes { /* of a block of the KV cache, its layers with a window among it, a slot of recurrent states */
    int64_t block, window, slot;
};
struct sy_aot_bytes sy_aot_state_bytes(const struct sy_graph *, const struct sy_aot_opt *); /* of one device */
/* The programs that move blocks, which serving needs besides: which 0 .. SY_AOT_MOVES - 1. */
enum { SY_AOT_MOVES = 4 };
SY_CHECK sy_status sy_aot_lower_move(const struct sy_env *, const struct sy_graph *, const struct sy_aot_opt *,
                                     int which, struct sy_buf *out, struct sy_err *);

enum { SY_AOT_LOOPS = 3 };
enum sy_aot_collective {
    SY_ALL_REDUCE,
    SY_ALL_GATHER,
    SY_REDUCE_SCATTER,
    SY_ALL_TO_ALL,
    SY_PERMUTE,
    SY_AOT_COLLECTIVES
};
const char *sy_aot_collective_name(enum sy_aot_collective); /* "all-reduce" */
struct sy_aot_result {                                      /* plain: goes through a pipe */
    double compile_s;
    int64_t code, argument, output, alias, temp, peak; /* bytes of one device's memory */
    double flops, bytes; /* as the compiler counts them, loop bodies once; 0: it does not say */
    double cycles;       /* its estimates summed, loop bodies by the trips assumed; 0: it does not say */
    int32_t n_estimated;
    int32_t
        n_collective[SY_AOT_COLLECTIVES]; /* by kind: in the program's text, and bytes that a step's results have */
    double collective_bytes[SY_AOT_COLLECTIVES];
};
struct sy_aot_job { /* borrowed */
    const char *plugin;
    const struct sy_aot_target *target;
    const struct sy_buf *text;
    int32_t n_rank;
    double trips[SY_AOT_LOOPS]; /* how often loops run where the program does not fix it: see sy_aot_trips() */
    const char *store;          /* folder that keeps the executable for serving; NULL: none */
};
SY_CHECK sy_status sy_aot_compile(const struct sy_env *, const struct sy_aot_job *, struct sy_aot_result *,
                                  struct sy_err *);
/* Assumed trips: of attention's loops, outer and inner, when one sequence fills the bucket; of a loop over tiles of
 * experts, were choices even. */
void sy_aot_trips(const struct sy_graph *, int32_t block_len, double trips[SY_AOT_LOOPS]);
void sy_aot_trips_of(struct sy_shape, int32_t block_len, double trips[2]); /* attention's alone */
/* EXPERTS of that many rows, were choices even: own experts that some row chooses, and rows of each own expert. */
void sy_aot_expert_load(const struct sy_moe_dim *, int64_t rows, double *chosen, double *each);
/* Sums the estimates in an optimised program (HloModuleProto, with or without its configuration); false: malformed.
 */
bool sy_aot_estimate(const void *hlo, size_t n, const double trips[SY_AOT_LOOPS], struct sy_aot_result *);
