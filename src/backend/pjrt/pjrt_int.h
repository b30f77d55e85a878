/* pjrt_int.h - what this folder's files share: pjrt.c is the backend, weights.c decides how weights lie on the device
 * and loads them, lower*.c write a graph as StableHLO, plugin.c talks to the plugin. Private to this folder. */
#pragma once
#include "backend/backend.h"
#include "backend/pjrt/aot.h"
#include "backend/pjrt/hlo.h"

struct sy_backend {
    const struct sy_env *env;
    struct sy_backend_opt opt;
    struct pj_client client;
    enum sy_compute compute; /* F32 or BF16, decided */
    int32_t n_rank;          /* devices */
    int32_t n_group;         /* groups of them that have sequences of their own */
    struct sy_err failed;    /* of a call that cannot say so: told by the next step */
    struct sy_program *running;
    int32_t n_out; /* rows of the step that runs */
};
void pj_buffers_free(struct sy_backend *, void **buffer, int n); /* those that are there */

/* ---- weights ------------------------------------------------------------------------------------------------ */

enum pj_wkind {
    PJ_DENSE, /* numbers */
    PJ_CODED, /* codes, mostly with a scale (and a minimum) for each `group` of a row's: as in quant.h */
};
enum pj_coding {               /* what a code stands for */
                 PJ_CODE_INT,  /* itself */
                 PJ_CODE_E2M1, /* a float of 4 bits */
                 PJ_CODE_E4M3, /* of 8 bits */
                 PJ_CODE_E5M2,
                 PJ_CODE_BOOK, /* one of 16 numbers */
};
struct pj_wseg { /* rows of a joined matrix that lie alike; arguments arg (data), arg+1 (scale), arg+2 (minimum) */
    enum pj_wkind kind;
    int64_t rows, cols;
    enum pj_coding code;
    int64_t group;
    int64_t stack; /* of experts: rows of each, whose scales lie [experts * groups, 1, rows]; 0: [rows, groups] */
    int64_t wide;  /* above 0: codes lie [groups, group, wide], scales and minima [groups, wide], of each expert if
                    * stack > 0; rows and zeros to a multiple of 128 */
    bool has_scale, has_min;
    bool by_in;        /* a rank's share is some of the columns, else of the rows */
    bool dense, exact; /* numbers whatever the format; f32 whatever the compute type */
    int32_t n_rank;
    struct sy_share share;
    int64_t n_own, own0, whole0; /* of the weight: the rank's rows, and its first here; the first of the whole */
    struct sy_regroup regroup;
    int arg, part0, n_part; /* parts of the joined name */
    const struct sy_quant *format;
};
static inline int64_t pj_wseg_rows(const struct pj_wseg *s) /* of one matrix */
{
    return s->stack > 0 ? s->stack : s->rows;
}
struct pj_wentry {
    const char *name;
    int64_t rows, cols;
    enum sy_wmap map; /* of a vector, as the next two */
    int32_t repeat;
    bool flat;
    int32_t n_rank;
    struct sy_share share;
    struct pj_wseg *seg; /* as a matrix or a table; NULL: used as neither */
    int n_seg;
    int vec; /* argument, f32 [cols]; -1: not used as a vector */
};
struct pj_weights_opt {
    enum sy_compute compute;       /* F32 or BF16: what numbers become */
    const struct sy_quant *assume; /* the format of all matrices where there is no checkpoint */
    int32_t n_rank;                /* devices, each with its share */
};
struct sy_weights {
    struct sy_backend *b; /* NULL: planned only */
    struct sy_arena arena;
    struct pj_wentry *entry;
    int n_entry;
    struct pj_type *type; /* [n_arg] of the arguments, in the order programs take them */
    void **buffer;        /* [n_rank][n_arg] on the devices */
    int n_arg, n_rank;
    double bytes_step, bytes_held; /* of a rank; step: that one token's step reads */
    double bytes_experts;          /* held, counted for every EXPERTS that reads them */
};
/* Decides how each WEIGHT of the graph lies on the device. ckpt NULL: there is none yet. */
SY_CHECK sy_status pj_weights_plan(const struct sy_env *, const struct sy_graph *, const struct sy_checkpoint *,
                                   const struct pj_weights_opt *, struct sy_weights **out, struct sy_err *);
SY_CHECK sy_status pj_weights_load(struct sy_backend *, struct sy_weights *, const struct sy_checkpoint *,
                                   struct sy_err *);
void pj_weights_free(struct sy_weights *);
const struct pj_wentry *pj_weight(const struct sy_weights *, const char *name); /* asserts that it is there */

/* ---- lowering ------------------------------------------------------------------------------------------------- */

struct pj_lower_opt {
    enum sy_compute compute;          /* F32 or BF16: operands of the matrix products; sums are f32 */
    enum pj_elem kv_elem, state_elem; /* of blocks; of SCAN's matrices */
    bool attend_bf16;                 /* attention's scores and sums */
    struct sy_cache_dim cache;
    unsigned kernels; /* of enum sy_kernels: where one takes the op; with any, KV arrays lie as these read them */
    int32_t n_rank;   /* devices that run the program, each with its own share of weights and KV cache */
};
/* Results are the state's arrays, then tokens, logits, hidden states of their rows and, with `all`, of all tokens. */
struct pj_results {
    int n_kv;
    int32_t n_out, n_vocab, d_model;
    int32_t d_given; /* columns of the last argument, f32 [tok, d_given], which GIVEN reads; 0: there is none */
    bool all;
    struct sy_experts_use experts;
};
/* The arrays of what a graph's sequences leave behind. First those of blocks, [n_block, block_len, heads, d]: keys
 * and values (which may be a part of the keys, and then have none) of each ATTEND that has its own, with scales where
 * they are bytes (lower_q8.c), keys of each INDEX. Then the same of blocks that are apart, [n_apart, ..]. Then those
 * of slots: [n_slot, taps - 1, d] of each CONV, [n_slot, heads, d_key, d_val] of each SCAN. type, and first by STATE
 * node, may be NULL. */
struct pj_arrays {
    int n_plain, n_block, n; /* blocks that are not apart; all blocks; all */
};
enum { PJ_ARRAYS_MAX = 3 }; /* of a node */
struct pj_arrays pj_state_arrays(const struct sy_graph *, const struct pj_lower_opt *, struct pj_type *type,
                                 int *first);
struct pj_bytes { /* of the arrays; window: of blocks of layers with a window, apart or not */
    double blocks, slots, window;
};
struct pj_bytes pj_state_bytes(const struct sy_graph *, const struct pj_lower_opt *);
/* Refuses, by its name, an op that cannot be lowered. */
SY_CHECK sy_status pj_lower_check(const struct sy_graph *, struct sy_err *);
/* The program of one bucket: takes the step's int32 block, the state's arrays (donated), weights, GIVEN's rows. */
SY_CHECK sy_status pj_lower(const struct sy_env *, const struct sy_graph *, const struct sy_weights *,
                            const struct pj_lower_opt *, struct sy_buf *text, struct pj_results *, struct sy_err *);
/* True where each sequence of the bucket has one token: attention needs no loop over pieces of prompts then. */
static inline bool pj_is_decode(struct sy_shape s) { return s.tok == s.seq; }
/* Queries of a sequence that attention to a prompt takes at once, and keys: half a large step's tokens, since an
 * iteration costs a TPU some 27,000 cycles whatever is in it. */
static inline int64_t pj_piece(struct sy_shape s)
{
    int64_t n = s.tok / 2 < 128 ? 128 : s.tok / 2 < 512 ? s.tok / 2 : 512;
    return n < s.tok ? n : s.tok;
}
/* Rows of one expert that are taken at once, and what the loop over them is called in a program. */
static inline int64_t pj_expert_tile(const struct sy_moe_dim *d, int64_t rows)
{
    int64_t tile = 8;
    while (tile < 128 && tile * d->n_expert < rows * d->n_used) tile *= 2;
    return tile;
}
#define PJ_EXPERTS_LOOP "experts"
static inline int64_t pj_run_keys(struct sy_shape s) { return pj_piece(s) > 128 ? 1024 : 512; }
/* Programs that move blocks of all layers: copy (arrays of blocks, n pairs in order), save (arrays, block -> bytes),
 * restore (arrays, block, bytes); and one that makes arrays of zeros. A block is a struct sy_spot, two numbers: the
 * first n_plain arrays go by the first one, the others by the second. */
enum { PJ_PAIRS = 64 }; /* copies of one PJ_MOVE_COPY */
enum pj_move { PJ_MOVE_ZERO, PJ_MOVE_COPY, PJ_MOVE_SAVE, PJ_MOVE_RESTORE, PJ_MOVE_COUNT };
SY_CHECK sy_status pj_lower_move(const struct sy_env *, enum pj_move, const struct pj_type *kv, struct pj_arrays,
                                 int32_t n_rank, struct sy_buf *text, struct sy_err *);
int64_t pj_block_count(const struct pj_type *kv, int n_kv); /* elements of a block of all arrays */
