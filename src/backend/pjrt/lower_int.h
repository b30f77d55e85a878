/* lower_int.h - what the lower*.c files share. */
#pragma once
#include "backend/pjrt/pjrt_int.h"

struct rope_value {
    const float *inv_freq;
    int32_t n, every;
    int cos, sin; /* f32 [tok, n] */
};
struct chain_value { /* i32 [seq], see lower_recur.c */
    int head, wr;
};
struct lower {
    struct pj_hlo h;
    const struct sy_node *node;
    uint32_t n_node;
    struct sy_shape shape;
    const struct sy_weights *w;
    struct pj_lower_opt opt;
    int *val;     /* by node: its value; -1: none */
    bool *inside; /* by node: not written, since another's kernel does it */
    int step;     /* the step's int32 block */
    int field[SY_FIELD_COUNT];
    int arg0;   /* of the weights */
    int given;  /* argument; -1: none */
    int *kv;    /* [n_kv] the state's arrays as they are now: see pj_state_arrays() */
    int *first; /* by STATE node: its first array */
    int n_kv;
    struct rope_value rope[8];
    int n_rope;
    int entry_of_token; /* -1: not made yet */
    struct chain_value chain;
    struct sy_experts_use experts;
    sy_status st;
    struct sy_err *err;
};
/* i1 scalar: (this replica / stride) % n is at. */
int lower_is_rank(struct lower *, int stride, int n, int at);
int lower_share(struct lower *,
                const struct sy_share *);       /* i32 scalar: this replica's; outside [0, n): it has none */
int lower_field(struct lower *, enum sy_field); /* the step's field, i32 [its length] */
/* a * b over one dimension each, as the graph's arithmetic has it: operands of the compute type, sums in f32. */
int lower_dot(struct lower *, int a, int b, const struct pj_dot *);
int lower_vec(struct lower *, sy_val weight);    /* a WEIGHT used as a vector, f32 [cols] */
int lower_matrix(struct lower *, sy_val weight); /* a WEIGHT of one segment, [rows, cols] */
int lower_fn(struct lower *, enum sy_fn, int x);
int lower_glu(struct lower *, const struct sy_glu_dim *, int gate, int up);
/* Numbers of a quantised [rows, cols]: scale * code + min (-1: none of these), each group of a row with its own. */
int lower_dequantised(struct lower *, const struct pj_wseg *, int code, int scale, int min);
/* x [any, cols] times the numbers of codes, scales and minima (-1: none), as they are stored: f32 [any, rows]. */
int lower_product(struct lower *, const struct pj_wseg *, int x, const int part[3], bool exact);
int lower_attend(struct lower *, const struct sy_node *);
/* lower_kernel.c: whether attention is a kernel's, whose KV arrays are [n_block, block_len, n_kv * d]; the step's
 * attention by it: q [tok, n_head * d], what a token sees of the node's arrays. */
bool lower_kernel_takes(const struct sy_node *, const struct pj_lower_opt *);
const char *lower_kernel_refuses(const struct sy_node *, const struct pj_lower_opt *); /* why an ATTEND; NULL: no */
static inline unsigned lower_kernels_of(struct sy_shape s)
{
    return pj_is_decode(s) ? SY_KERNELS_DECODE : SY_KERNELS_PROMPT;
}
int lower_kernel_attend(struct lower *, const struct sy_node *, int q, const int *arrays);
/* lower_kernel_moe.c: why no kernel takes an EXPERTS; NULL: one does. Its pairs' results f32 [pairs, d_model] by it:
 * expert of each pair i32 [pairs], ascending (n_expert: of none), the pairs in that order, and where each stands. */
const char *lower_experts_refuses(const struct lower *, const struct sy_node *);
int lower_pair_rows(struct lower *, const struct sy_node *, int pairs); /* lower_moe.c */
int lower_kernel_experts(struct lower *, const struct sy_node *, int sorted, int order, int place);
/* lower_kernel_delta.c: why no kernel takes a SCAN; NULL: one does, with all from its convolution on. */
struct mo_delta;
const char *lower_delta_refuses(const struct sy_node *, uint32_t n_node, const struct sy_node *scan,
                                enum pj_elem state);
/* True for the CONV of a SCAN that a kernel takes, whose window is [n_slot, units, taps - 1, rows, 128] then. */
bool lower_delta_of_conv(const struct sy_node *, uint32_t n_node, const struct sy_node *conv,
                         const struct pj_lower_opt *, struct mo_delta *);
void lower_delta_mark(struct lower *); /* what such kernels do in place of their nodes is inside */
int lower_kernel_delta(struct lower *, const struct sy_node *scan);
/* Columns [n, d] of a convolution as rows of units [n, units, rows, 128]; the same of windows [n, taps - 1, d], as
 * they lie, and back. */
int lower_delta_rows(struct pj_hlo *, const struct mo_delta *, int x);
int lower_window_rows(struct pj_hlo *, const struct mo_delta *, int x);
int lower_window_columns(struct pj_hlo *, const struct mo_delta *, int x);
/* Queries, keys and values of a SCAN as its convolution and silu leave them, [tok, columns], where norm and scale
 * alone stand between. */
struct lower_normed {
    sy_val all;
    float eps, scale[2];
};
bool lower_delta_normed(const struct sy_node *, const struct sy_node *scan, struct lower_normed *);
/* lower_kernel_chunk.c: why no kernel takes a SCAN of steps with prompts; NULL: one does. */
const char *lower_chunk_refuses(const struct sy_node *, const struct sy_node *scan, enum sy_compute,
                                enum pj_elem state);
int lower_kernel_chunk(struct lower *, const struct sy_node *scan);
sy_status lower_nodes(struct lower *); /* lower.c: of all that are not inside */
/* lower_q8.c: a cache of bytes, whose arrays are codes of keys, of values where they are no part of the keys, and
 * scales. What of a graph has none; groups of n_head heads of d; the step's rows into an ATTEND's arrays; keys or
 * (side 1) values of blocks i32 [s, n], as lower_fetch() gives them; bytes of a position's scales, of which a kernel
 * wants whole vectors. */
const char *lower_q8_refuses(const struct sy_node *);
int64_t lower_q8_groups(int64_t n_head, int64_t d);
void lower_q8_write(struct lower *, const struct sy_node *, int *state, int rows);
int lower_q8_fetch(struct lower *, const struct sy_attn_dim *, const int *arrays, int blocks, int side, enum pj_elem);
int64_t lower_q8_width(const struct sy_attn_dim *, bool kernel);
int lower_index(struct lower *, const struct sy_node *);
int lower_attend_chosen(struct lower *, const struct sy_node *, int keys);
int lower_route(struct lower *, const struct sy_node *);
int lower_experts(struct lower *, const struct sy_node *);
int lower_conv(struct lower *, const struct sy_node *);
int lower_scan(struct lower *, const struct sy_node *);
int lower_norm(struct lower *, const struct sy_node *);
int lower_rope(struct lower *, const struct sy_node *);
int lower_temper(struct lower *, const struct sy_node *);
int lower_sparsify(struct lower *, const struct sy_node *);
int lower_match(struct lower *, const struct sy_node *);
int lower_heads(struct lower *, const struct sy_node *);
int lower_gates(struct lower *, const struct sy_node *);
int lower_blend(struct lower *, const struct sy_node *);
int lower_compress(struct lower *, const struct sy_node *);
int lower_keep(struct lower *, const struct sy_node *);
int lower_attend_kept(struct lower *, const struct sy_node *, int keys);

/* ---- state (lower_state.c) --------------------------------------------------------------------------------------
 */

int *lower_state(struct lower *, const struct sy_node *); /* the arrays of the node's STATE, to be replaced */
/* An array [n_block, block_len, n, d] with the step's rows x [tok, n * d] written at rows i32 [tok], mostly ROW. */
int lower_write_rows(struct lower *, int array, int x, int rows);
/* Keys of runs of `every` tokens: a block has those whose runs end in it. i32 [tok]: the row that a token's run has
 * in such an array, 0 unless the token is its run's last. */
int lower_run_rows(struct lower *, int32_t every);
int lower_entry_of_token(struct lower *); /* i32 [tok]; of padding the last entry */
int lower_scalar_at(struct pj_hlo *, int vec, int at);

/* A loop over pieces of at most n tokens of one entry of the step, in their order: as many as there are. Between the
 * two calls the values are those of one piece (i32 scalars): its first token, its entry, the entry's first token and
 * its end, the token behind the piece; carry goes from each to the next, and is what was left after the second call.
 * What the body reads of the step must have been read before. */
struct pieces {
    struct pj_loop loop;
    int at, entry, begin, end, next, one;
    int carry[PJ_LOOP_MAX];
};
void lower_pieces(struct lower *, struct pieces *, int64_t n, const int *carry, int n_carry);
void lower_pieces_end(struct lower *, struct pieces *, const int *carry);

/* Runs of blocks, in which the keys of a context are read. */
struct runs {
    int64_t run, n_run; /* blocks of a run, runs that make up the longest context */
    int table;          /* i32 [seq, n_run * run] */
};
struct runs lower_runs(struct lower *, const struct sy_node *, int64_t run_keys); /* of the node's STATE */
struct runs lower_decode_runs(struct lower *, const struct sy_node *); /* all keys at once where they are few */
/* Blocks i32 [s, run] of an array [n_block, block_len, n, d]: [s, run * block_len, n, d] of the type. */
int lower_fetch(struct lower *, int array, int blocks, enum pj_elem);
/* A product of attention: its sums, and what is kept of them, are f32 or, where asked for, bf16. */
int lower_attend_dot(struct lower *, int a, int b, const struct pj_dot *);
int lower_run_of(struct lower *, const struct runs *, int pos); /* the run that holds a position: i32 scalars */
enum pj_elem lower_kv_elem(const struct lower *);               /* of products with the cache */
#define LOWER_NEVER (-1.0e30) /* a masked score: finite, so that nothing but masked ones leaves no NaN */
enum {
    LOWER_PIECE = 128,         /* queries taken at once */
    LOWER_RUN_KEYS = 512,      /* keys taken at once, of one sequence */
    LOWER_RUN_KEYS_MAX = 4096, /* the same where all keys of a decode bucket are taken at once */
};
