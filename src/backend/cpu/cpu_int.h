/* cpu_int.h - what the CPU backend's files share. cpu.c opens and loads, plan.c lowers a graph to a list of regions,
 * run.c runs them. Private to this folder. */
#pragma once
#include "backend/cpu/attend.h"
#include "backend/cpu/layout.h"
#include "backend/cpu/pages.h"
#include "backend/cpu/pool.h"

struct sy_backend {
    const struct sy_env *env;
    struct sy_backend_opt opt;
    struct sy_kernels kern;
    struct sy_pool *pool;
    void (*attend_part)(const struct sy_kernels_attend *, enum sy_kv_dtype, const struct sy_attend *, bool rounded);
    double bytes_s;          /* measured bandwidth, 0 before */
    struct sy_result result; /* of the last forward */
};

/* ---- weights: one entry per WEIGHT name of the graph --------------------------------------------------------------
 */

struct wseg { /* rows of a joined matrix that share a layout */
    struct sy_panels p;
    const struct sy_tensor *tensor;
    int64_t col0;    /* first column of y */
    int64_t row0;    /* first of the tensor's rows */
    bool transposed; /* the panels' columns are the tensor's rows */
};
struct wentry {
    const char *name;
    int64_t rows, cols;
    struct wseg *seg; /* as a matrix; NULL: not used as one */
    int n_seg;
    const struct sy_heads_dim *heads; /* of an entry for HEADS: one segment per head; else NULL */
    float *vec;                       /* as a vector [cols] */
    const struct sy_tensor *table;    /* as an embedding table, as stored */
};
struct sy_weights {
    struct sy_backend *b;
    struct sy_arena arena;
    struct sy_pages mem;
    struct wentry *entry;
    int n_entry;
    double bytes_step;
};
const struct wentry *cpu_weight(const struct sy_weights *, const char *name);
const struct wentry *cpu_weight_heads(const struct sy_weights *, const char *name, const struct sy_heads_dim *);

/* ---- KV cache ------------------------------------------------------------------------------------------------ */

struct sy_kv_cache {
    struct sy_backend *b;
    struct sy_pages mem;
    int n_layer;
    int64_t layer_bytes[2048]; /* where the i-th op's starts; a layer has two at most */
    int64_t block_bytes[2048]; /* of a block of it */
    bool apart[2048];          /* its blocks have numbers of their own */
    int64_t slot_at;           /* where slots start; each holds all its states, in the order of the graph's nodes */
    int64_t slot_bytes;
};

/* ---- a lowered graph ----------------------------------------------------------------------------------------- */

struct value {      /* where a node's rows are */
    float *at;      /* NULL until memory is placed */
    int64_t offset; /* floats from the start of its buffer */
    int64_t ld;
    int buffer; /* index of the buffer it lives in, -1: none */
};
static inline float *cpu_row(const struct value *v, int64_t r) { return v->at + r * v->ld; }
/* Scratch of an EXPERTS op, which runs over pairs (row, choice) sorted by expert: see moe.c. */
enum { CPU_EXPERT_ROWS = 256 };    /* rows of one expert that a product takes at most */
struct moe_run {                   /* up to some rows of one expert, in the order of pairs */
    int32_t expert, lo, hi, chunk; /* chunk: what an item takes, see moe.c */
    int64_t item0;
};
struct moe {
    const struct sy_moe_dim *dim;
    int64_t d_model;
    const struct wentry *w_in, *w_out;
    const float *bias_in, *bias_out;               /* NULL: none */
    struct sy_xmat *x[SY_X_COUNT], *h[SY_X_COUNT]; /* operands of the two products, by kind */
    struct value scratch;                          /* [thread][CPU_GLU_FLOATS] */
    struct value y2;                               /* [tok * n_used][d_model] results of the second */
    int32_t *pair, *place;                         /* [tok * n_used] row * n_used + choice; where it stands */
    int32_t *next;                                 /* [n_expert + 1] */
    struct moe_run *run;                           /* [n_run] */
    int32_t n_run;
};
/* Rows of a product's operand that an item takes at most; floats of a gate and an up that it makes of them. */
enum { CPU_PRODUCT_ROWS = 512, CPU_GLU_FLOATS = 1 << 16 };
struct op;
typedef void (*row_fn)(const struct sy_program *, const struct op *, int64_t lo, int64_t hi);
struct op {
    row_fn run; /* row ops; NULL for a product or attention */
    const struct sy_node *node;
    const struct value *in[7], *out;
    const float *vec, *vec2; /* a norm's weight, a bias */
    const struct wentry *w;
    struct moe *moe;
    bool by_column;                /* MUL: the second operand is one column for all */
    struct sy_epilogue epi;        /* product */
    struct sy_xmat *x[SY_X_COUNT]; /* product: its operand, by kind; preparation: what to fill */
    /* A product of gate and up that leaves nothing but the operand of the product behind the GLU. */
    const struct sy_node *glu;     /* NULL: any other product */
    int64_t gate, up;              /* first columns */
    struct sy_xmat *h[SY_X_COUNT]; /* what to fill, by kind */
    const struct value *scratch;   /* [thread][CPU_GLU_FLOATS] */
    const float *rope_cs;          /* table of the step */
    int64_t rope_n;
    struct sy_kv_dim kv;
    int32_t state;             /* index of the attention's layer cache */
    enum sy_field rows, table; /* of the step: rows of it that are written, blocks of it that are read */
    struct sy_kv_dim kept;     /* the cache of keys that stand for runs of tokens */
    int32_t kept_state;
    int64_t slot_offset; /* where the state of a convolution or scan starts in a slot, bytes */
    const float *taps;   /* a convolution's weights, [n_tap][columns] */
};
enum region_kind {
    REGION_ROWS,
    REGION_PRODUCT,
    REGION_ATTEND,
    REGION_EXPERTS,
    REGION_CONV,
    REGION_SCAN,
    REGION_HEADS,
    REGION_INDEX,
    REGION_CHOSEN, /* attention to the keys that an INDEX chose */
    REGION_KEPT,   /* attention to a window and to kept keys */
    REGION_COMPRESS,
};
struct region { /* what runs between two barriers */
    enum region_kind kind;
    bool on_out; /* rows are the step's outputs, not its tokens */
    int op0, n_op;
};
struct rope_table {
    struct sy_rope_dim dim;
    int32_t *pos; /* [tok] rounded positions; NULL: the step's own */
    float *cs;    /* [tok][d_rot/2][2] */
};
struct work { /* attention of up to attend_q queries of one sequence */
    int32_t seq, q0, n_q, pos0, n_part;
};
/* Query heads of a kv head that a work item takes together: all but where very many share one. */
enum { CPU_ATTEND_HEADS = 64, CPU_ATTEND_ROWS = 256, CPU_INDEX_ROWS = 16 };
int32_t cpu_attend_group(const struct sy_attn_dim *);
struct chain { /* consecutive entries of the step that continue one sequence: each reads the slot written before it */
    int32_t seq0, n_seq;
};
struct sy_program {
    struct sy_backend *b;
    struct sy_arena arena;
    struct sy_pages mem; /* activations */
    struct sy_shape shape;
    int32_t block_len;
    const struct sy_node *node; /* the graph's, copied */
    struct value *value;        /* by node */
    struct op *op;
    int n_op;
    struct region *region;
    int n_region;
    struct rope_table rope[8];
    int n_rope;
    const struct value *result; /* the logits */
    const struct value *hidden; /* operand of the product that made the logits; NULL: none */
    const struct value *all;    /* the same of all tokens; NULL: the graph does not keep it */
    int32_t d_model;
    int32_t *token; /* [out] */
    int32_t n_vocab;
    /* attention */
    struct work *work;     /* [tok] at most */
    float *partial;        /* one slice per thread, or per item when items are few */
    int64_t partial_slice; /* floats */
    int32_t attend_q;      /* queries in one work item at most */
    float *score;          /* INDEX: [CPU_INDEX_ROWS][keys of the longest sequence]; NULL: no such op */
    float *gathered;       /* chosen keys: [thread][SY_PARTITION * d_key] */
    int64_t gathered_each;
    const int32_t *one_block; /* a table of zeros, for a cache of one block */
    int32_t *row_seq;         /* [tok] sequence of each token */
    /* convolutions and scans */
    struct chain *chain;  /* [seq] */
    float *scan_scratch;  /* a slice per thread */
    int64_t scan_slice;   /* floats */
    int64_t slot_planned; /* bytes of a slot's states so far */
    /* of the step that runs */
    const struct sy_batch *batch;
    struct sy_kv_cache *kv;
    int32_t n_work, n_chain;
};
void cpu_run(struct sy_program *);
/* Some segments of a matrix and what they are multiplied with. */
struct product {
    const struct wseg *seg;
    int n_seg;
    struct sy_xmat *const *x; /* by kind */
    struct sy_epilogue epi;   /* of row 0; bias of the matrix's own columns */
};
/* Rows [row_lo, row_hi) of panels [lo, hi), which are numbered through all segments; column `first` of row row_lo
 * comes to y. */
void cpu_multiply(const struct sy_kernels_gemm *, const struct product *, int64_t row_lo, int64_t row_hi, int64_t lo,
                  int64_t hi, float *y, int64_t ldy, int64_t first);
extern const row_fn cpu_row_fns[SY_OP_COUNT];
/* recur.c: what runs along a sequence */
int64_t cpu_state_bytes(const struct sy_backend *, const struct sy_node *nodes,
                        const struct sy_node *); /* in a slot */
int64_t cpu_slot_bytes(const struct sy_backend *, const struct sy_graph *);
const float *cpu_taps(struct sy_program *, const float *w, int64_t d, int64_t n_tap); /* NULL: no memory */
void cpu_plan_chains(struct sy_program *);
void cpu_region_conv(struct sy_program *, const struct op *);
void cpu_region_scan(struct sy_program *, const struct op *);
void cpu_row_prepare(const struct sy_program *, const struct op *, int64_t lo, int64_t hi);
void cpu_row_kv_write(const struct sy_program *, const struct op *, int64_t lo, int64_t hi);
void cpu_row_route(const struct sy_program *, const struct op *, int64_t lo, int64_t hi);
void cpu_row_experts(const struct sy_program *, const struct op *, int64_t lo, int64_t hi);
void cpu_region_experts(const struct sy_program *, const struct op *, int64_t rows);
void cpu_region_heads(const struct sy_program *, const struct op *, int64_t rows);
void cpu_region_index(const struct sy_program *, const struct op *, int64_t rows);
void cpu_region_chosen(const struct sy_program *, const struct op *, int64_t rows);
void cpu_region_kept(const struct sy_program *, const struct op *, int64_t rows);
void cpu_region_compress(struct sy_program *, const struct op *);
/* Work item `w` for the `group`-th group of query heads, all of its partitions. */
struct sy_attend cpu_attend_item(const struct sy_program *, const struct op *, const struct work *w, int32_t group);
sy_status cpu_compile(struct sy_backend *, const struct sy_graph *, const struct sy_weights *, struct sy_cache_dim,
                      struct sy_program **out, struct sy_err *);
void cpu_program_free(struct sy_program *);
/* An ATTEND without keys has no cache of its own. */
static inline bool cpu_has_cache(const struct sy_node *n)
{
    return (n->op == SY_OP_ATTEND && n->in[1].id) || n->op == SY_OP_INDEX || n->op == SY_OP_KEEP;
}
/* Tokens to a key of the node's cache. Its blocks are those of the sequence: the key of a run lies in the block of
 * the run's last token, behind those of the block's runs before. */
static inline int32_t cpu_keeps_every(const struct sy_node *n)
{
    int32_t every = n->op == SY_OP_INDEX ? n->attr.index.every : n->op == SY_OP_KEEP ? n->attr.every : 1;
    return every > 1 ? every : 1;
}
struct sy_kv_dim cpu_kv_dim(const struct sy_backend *, const struct sy_node *, int32_t block_len);
