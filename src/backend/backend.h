/* backend.h - a place steps run: backend/cpu, later others. One folder, one sy_backend_<folder>.
 *
 * All calls on an instance come from one thread. forward() may return at once; wait() returns the oldest step. No
 * request, scheduler or model in here. */
#pragma once
#include <math.h>

#include "checkpoint/checkpoint.h"
#include "graph/shard.h"

struct sy_backend; /* private to each, as are the next three */
struct sy_weights;
struct sy_program;
struct sy_kv_cache;
struct sy_kernels_attend;
struct sy_attend;

enum sy_compute { SY_COMPUTE_AUTO, SY_COMPUTE_F32, SY_COMPUTE_BF16, SY_COMPUTE_INT8 };
enum sy_kv_dtype { SY_KV_F32, SY_KV_BF16, SY_KV_F16, SY_KV_Q8_0, SY_KV_COUNT };
/* Of SCAN's matrices. Pair: the nearest bf16 number and, beside it, what is left, as another: 16 bits of mantissa. */
enum sy_state_dtype { SY_STATE_F32, SY_STATE_BF16, SY_STATE_PAIR, SY_STATE_DTYPES };
struct sy_device {
    char name[64];
    char isa[96];   /* instruction sets in use, as the user may force them */
    int64_t bytes;  /* memory */
    double bytes_s; /* measured or specified memory bandwidth; 0: not measured */
    int32_t n_thread;
    bool ragged;        /* one bucket, live counts honoured, no padding work */
    int64_t n_compiled; /* programs compiled since it was opened, those found in a cache not counted */
};
struct sy_backend_opt {
    const char *device; /* what stands after "name:" in --backend, or NULL */
    int32_t n_thread;   /* 0: as many as the process may use */
    enum sy_compute compute;
    bool one_sequence; /* cpu, SY_COMPUTE_AUTO: what reads weights fastest, not what multiplies many rows fastest */
    enum sy_kv_dtype kv_dtype;
    struct sy_shard shard; /* how devices share the model; zero: there is one */
    const char *cache_dir; /* folder for compiled programs, or NULL; outlives the backend */
    enum sy_state_dtype state_dtype;
    bool attend_bf16; /* attention's scores and sums in bf16, not f32 */
    bool own_kernels; /* pjrt on TPUs: hand-written kernels where one takes an op */
    bool no_huge_pages;
    /* For comparison, cpu alone; zero is what is best. */
    bool unfused;      /* every op runs between barriers of its own, and no product does more than a product */
    int32_t kv_offset; /* bytes, a multiple of 4, that KV blocks begin behind a multiple of 256 */
    void (*attend_part)(const struct sy_kernels_attend *, enum sy_kv_dtype, const struct sy_attend *,
                        bool rounded);        /* instead of sy_attend_part(); NULL: that */
    void (*progress)(void *ctx, double done); /* loading, 0..1; NULL: none */
    void *progress_ctx;
};
struct sy_cache_dim {
    int32_t block_len, n_block, n_slot; /* block 0 and slot 0 are padding, never leased */
    int32_t n_apart;                    /* blocks of layers with a window, of a graph whose shape is apart */
};

/* A run of block_len positions: the block that has it, and that of the layers whose blocks are apart (0: none). */
struct sy_spot {
    int32_t block, apart;
};
struct sy_copy {
    struct sy_spot from, to;
};
struct sy_want { /* of a step's result, beside the tokens */
    bool logits, hidden, all;
};

struct sy_backend_ops {
    const char *name;
    sy_status (*open)(const struct sy_env *, const struct sy_backend_opt *, struct sy_backend **out, struct sy_err *);
    void (*close)(struct sy_backend *);
    void (*device)(struct sy_backend *, struct sy_device *out, bool measure); /* measure: takes up to half a second */
    /* Binds WEIGHT nodes to a compute layout. The checkpoint must outlive the weights (some stay mapped). */
    sy_status (*load)(struct sy_backend *, const struct sy_graph *, const struct sy_checkpoint *,
                      struct sy_weights **out, struct sy_err *);
    /* Bytes that one token's forward reads of the weights (embedding rows excluded), and bytes held in memory. */
    void (*weights_bytes)(const struct sy_weights *, double *read_per_step, double *held);
    /* Lowers one bucket. cpu: a kernel list. */
    sy_status (*compile)(struct sy_backend *, const struct sy_graph *, const struct sy_weights *, struct sy_cache_dim,
                         struct sy_program **out, struct sy_err *);
    sy_status (*allocate_kv_cache)(struct sy_backend *, const struct sy_graph *, struct sy_cache_dim,
                                   struct sy_kv_cache **out, struct sy_err *);
    /* Copies of whole blocks, all layers: within the cache (in order), to host memory and back; kv_block_bytes()
     * each. Block 0 may be written. Where groups of ranks have blocks of their own (sy_shard_groups()), blocks are
     * numbered through all groups. */
    void (*copy_blocks)(struct sy_backend *, struct sy_kv_cache *, const struct sy_copy *, int32_t n);
    void (*save_block)(struct sy_backend *, struct sy_kv_cache *, struct sy_spot, void *host);
    void (*restore_block)(struct sy_backend *, struct sy_kv_cache *, struct sy_spot, const void *host);
    /* Of all layers; *apart: of those with a window among them. */
    int64_t (*kv_block_bytes)(struct sy_backend *, const struct sy_graph *, int32_t block_len, int64_t *apart);
    int64_t (*slot_bytes)(struct sy_backend *, const struct sy_graph *); /* of one sequence's slot; 0: no slots */
    /* The hot path: no allocation, no text; batch: one for each group of ranks with sequences of their own, all of
     * one shape, whose results follow one another, shape.out rows each. A failure is told by wait(). What wait() was
     * not asked for may be left undefined. */
    sy_status (*forward)(struct sy_backend *, struct sy_program *, struct sy_kv_cache *, const struct sy_batch *);
    sy_status (*wait)(struct sy_backend *, struct sy_want, struct sy_result *out, struct sy_err *);
    void (*weights_free)(struct sy_weights *);
    void (*program_free)(struct sy_program *);
    void (*free_kv_cache)(struct sy_kv_cache *);
};
/* A stored value of a vector as its WEIGHT node has it. */
static inline float sy_weight_value(enum sy_wmap map, const struct sy_tensor *t, float x)
{
    switch (map) {
    case SY_AS_IS: break;
    case SY_PLUS_ONE: return t->norm_plus_one ? x : x + 1;
    case SY_NEG_EXP: return t->neg_exp ? x : -expf(x);
    }
    return x;
}

extern const struct sy_backend_ops *const sy_backends[]; /* NULL-terminated; generated by the build */
