/* aot.h - what a bucket's program costs on a chip that is not here: the same lowering through the vendor's own
 * compiler, for a described topology. Compiling runs in the caller's process; a plugin may end it, so run it in a
 * child. */
#pragma once
#include "backend/backend.h"

struct sy_aot_target {
    const char *name;     /* as users know it: "v5e-8" */
    const char *topology; /* as the plugin knows it: "v5e:2x4" */
    int32_t n_device;
    /* Of one device, as published: memory, its bandwidth, bf16 arithmetic; the clock that gives that arithmetic. */
    double hbm_bytes, hbm_bytes_s, flops_s, clock_hz;
};
const struct sy_aot_target *sy_aot_target(const char *name); /* NULL: unknown */
const struct sy_aot_target *sy_aot_targets(int32_t *n);

struct sy_aot_program { /* text of a bucket and what it holds, before any compiler saw it */
    struct sy_shape shape;
    struct sy_buf text;
    double weight_bytes, kv_bytes, step_bytes; /* of one device; step_bytes: weights that a step reads */
};
struct sy_aot_opt {
    enum sy_compute compute;
    enum sy_kv_dtype kv_dtype;
    const struct sy_quant *assume; /* format of the matrices when there is no checkpoint */
    struct sy_cache_dim cache;
    int32_t n_rank;
};
/* Lowers a graph (already one rank's, when n_rank > 1). ckpt NULL: all matrices are of the assumed format. */
SY_CHECK sy_status sy_aot_lower(const struct sy_env *, const struct sy_graph *, const struct sy_checkpoint *,
                                const struct sy_aot_opt *, struct sy_aot_program *out, struct sy_err *);
void sy_aot_program_release(struct sy_aot_program *);

enum { SY_AOT_LOOPS = 2 };
struct sy_aot_result { /* plain: goes through a pipe */
    double compile_s;
    int64_t code, argument, output, alias, temp, peak; /* bytes of one device's memory */
    double flops, bytes; /* as the compiler counts them, loop bodies once; 0: it does not say */
    double cycles;       /* its estimates summed, loop bodies by the trips assumed; 0: it does not say */
    int32_t n_estimated, n_collective;
    double collective_bytes;
};
/* trips: how often a loop at each depth runs where the program itself does not fix it. */
SY_CHECK sy_status sy_aot_compile(const struct sy_env *, const char *plugin, const struct sy_aot_target *,
                                  const struct sy_buf *text, int32_t n_rank, const double trips[SY_AOT_LOOPS],
                                  struct sy_aot_result *, struct sy_err *);
/* The assumed trips of a bucket's attention loops when one sequence fills it. */
void sy_aot_trips(struct sy_shape, int32_t block_len, double trips[SY_AOT_LOOPS]);
/* Sums the estimates in an optimised program (HloModuleProto, with or without its configuration); false: malformed.
 */
bool sy_aot_estimate(const void *hlo, size_t n, const double trips[SY_AOT_LOOPS], struct sy_aot_result *);
