/* kernels.h - the kernels, each generated from shapes. A kernel's operands and results are written beside its
 * function, in order; all are in HBM, row major. Private to the pjrt backend and its tests. */
#pragma once
#include "backend/backend.h"
#include "backend/pjrt/hlo.h"
#include "backend/pjrt/mosaic/mosaic.h"

enum { MO_VMEM_BYTES = 60 << 20 }; /* that a kernel may take: a tpu7x has 64 MiB */

/* Ragged paged attention (Kwon et al., arXiv:2309.06180) with a running maximum and sum (Milakov and Gimelshein,
 * arXiv:1805.02867). Each sequence's tokens of the step are taken `tile` at a time (1: decode), its keys `fetch`
 * blocks at a time: while one fetch is worked on, the next, of the next tile or sequence where need be, is on its
 * way. Only blocks that a tile sees are fetched. Operands:
 *   table i32 [n_seq * n_table]: the block of each block_len positions
 *   start i32 [n_seq + 1]: the first token of each sequence
 *   ctx i32 [n_seq]: its length once the step has run
 *   live i32 [1]: sequences that have tokens; they come first
 *   q bf16 [mo_attend_rows(), n_kv, g, d]; k, v [n_block, block_len, n_kv * d], bf16 or, of bytes, i8
 *   of bytes: scales [n_block, block_len, wide] i8, a bfloat16 of each head's key and value of a position in two
 *   bytes, as lower_q8.c has them, to a multiple of 128 bytes
 * Result: bf16 like q; only rows of tokens are meant, others hold anything. */
struct mo_attend {
    int32_t n_seq, n_tok, n_table, n_block, block_len, n_kv;
    int32_t g;     /* queries to a key head: a power of two, 4 or more */
    int32_t d;     /* a multiple of 128 */
    int32_t tile;  /* a power of two */
    int32_t fetch; /* a power of two; fetch * block_len is a multiple of 128 */
    int32_t part;  /* keys worked on at once: whole blocks, a multiple of 128, of which a fetch has up to 8 */
    int32_t slots; /* fetches in memory at once: 2 or more */
    int32_t heads; /* key heads worked on side by side, so that their latencies overlap */
    int32_t window;
    float scale, softcap; /* softcap, window 0: none */
    bool bytes;           /* blocks of 32 positions or more then, and heads of 128 */
};
void mo_attend(struct mosaic *, const struct mo_attend *);
static inline int32_t mo_attend_rows(const struct mo_attend *a) /* of q: the last tile reaches over the tokens */
{
    return a->n_tok + (a->tile > 1 ? a->tile : 0);
}
static inline int32_t mo_attend_wide(const struct mo_attend *a) { return (4 * a->n_kv + 127) / 128 * 128; }
/* Keys and values lie in memory as in HBM: asking for blocks is cheaper then, loading of them dearer. */
static inline bool mo_attend_tiled(const struct mo_attend *a)
{
    return !a->bytes && a->n_kv * a->d > 128 && a->n_kv * a->block_len <= 256;
}
enum { MO_TURN_MAX = 16 };
static inline int32_t mo_attend_turn(const struct mo_attend *a) /* blocks asked for at once */
{
    return a->fetch < MO_TURN_MAX ? a->fetch : MO_TURN_MAX;
}
/* The kernel of a bucket, with how much it takes at once; heads side by side of tiles of that many rows.
 * (lower_kernel.c) */
struct mo_attend mo_attend_of(const struct sy_attn_dim *, const struct sy_cache_dim *, bool bytes, struct sy_shape);
int32_t mo_attend_heads(int32_t n_kv, int32_t rows);
int32_t mo_attend_part(const struct mo_attend *); /* what it has else */

/* Experts of a mixture (Gale et al., arXiv:2211.15841, group rows the same way): for each row of expert e,
 * down_e (silu(gate_e x) * up_e x). Rows are sorted by expert, each expert's first at a multiple of 16. Weights of an
 * expert that has rows are read once, or once for each `hold` rows of it; others' are not read. Operands:
 *   sizes i32 [n_expert]: rows of each expert
 *   x bf16 [n_row / 16, 16, d]
 *   gate and up [n_expert, 2, d_ff / tile, tile, d]; with scales: f32 [n_expert, d / group_up, 1, 2 * d_ff]
 *   down [n_expert, d, d_ff]; with scales: f32 [n_expert, d_ff / group_down, 1, d]
 * Weights are bf16, or codes of 8 bits, mostly times a scale for each group of columns: the codes enter the products
 * as they are, and the sums of each group are scaled.
 * Result: bf16 like x; rows behind an expert's last, of which there may be up to 15, hold anything. */
struct mo_experts {
    int32_t n_expert, n_row, d, d_ff; /* d a multiple of 128 */
    int32_t tile;                     /* inner columns taken at once: a multiple of 128 that divides d_ff */
    int32_t rows, hold;               /* taken at once; held of one expert: 16 times a power of two each */
    int32_t slots;                    /* tiles in memory at once: 2 or more */
    enum mo_elem weight;              /* bf16, i8, or e4m3, whose operands are i8 all the same */
    int32_t group_up, group_down;     /* 0: no scales; multiples of 128, the first of which divides d, the second
                                       * tile, or is d_ff */
};
void mo_experts(struct mosaic *, const struct mo_experts *);
/* The kernel of that many rows, n_used of n_expert experts each; false: no tile of d_ff columns fits.
 * (lower_kernel_moe.c) */
bool mo_experts_of(const struct sy_moe_dim *, int64_t d_model, int64_t rows, struct mo_experts *);
/* One token of each sequence through a short convolution, silu and the gated delta rule (Yang et al.,
 * arXiv:2412.06464): with x behind convolution and silu, q and k of a key head divided by the root of their mean
 * square (plus eps) and scaled, u = S^T k, w = S^T q, d = beta (v - e u), y = e w + d (k . q), S <- e S + k d^T, so
 * that a state is read once and written once. Value heads, of 128, are taken `unit` at a time, with their key heads;
 * `side` units are worked on side by side; while they are, the next are on their way, and those before on theirs
 * back. A slot that one sequence writes is read by no other. Rows of a unit: q of its key heads, k, v, to a multiple
 * of 8. Operands: read i32 [n_seq]: the slot that holds the sequence's state, -1: none yet; write i32 [n_seq] live
 * i32 [1]: sequences that have a token; they come first state [n_slot, n_val, 128, 128] f32 or bf16, key by value
 *   window f32 [n_slot, n_unit, n_tap - 1, rows, 128]: what the convolution saw last
 *   taps f32 [n_unit, n_tap, rows, 128]
 *   x f32 [n_seq, n_unit, rows + 2 heads, 128]: the token; then, a row for each value head, e and beta everywhere
 * Results: state and window, in place; y f32 [n_seq, n_unit, heads, 128], of which other sequences and other rows
 * hold anything. */
enum { MO_DELTA_SIDE = 8 }; /* units at most */
struct mo_delta {
    int32_t n_seq, n_slot, n_key, n_val, n_tap;
    int32_t unit;  /* at most 8; whole key heads */
    int32_t side;  /* divides n_val / unit, or is a multiple of it, by which n_seq is one of side / (n_val / unit) */
    int32_t slots; /* rounds in memory at once: 3 or more, of which two are not yet written back */
    bool bf16;     /* the state */
    float eps, q_scale, k_scale;
};
void mo_delta(struct mosaic *, const struct mo_delta *);
/* The kernel of n_seq sequences, scales left out; unit 0: the heads do not go into units. (lower_kernel_delta.c) */
struct mo_delta mo_delta_of(const struct sy_scan_dim *, int32_t n_tap, bool bf16, int32_t n_seq, int32_t n_slot);
static inline int32_t mo_delta_units(const struct mo_delta *a) { return a->n_val / a->unit; }
static inline int32_t mo_delta_keys(const struct mo_delta *a) { return a->n_key / mo_delta_units(a); } /* of a unit */
static inline int32_t mo_delta_heads(const struct mo_delta *a) { return (a->unit + 7) / 8 * 8; }
static inline int32_t mo_delta_rows(const struct mo_delta *a) { return (2 * mo_delta_keys(a) + a->unit + 7) / 8 * 8; }

/* The gated delta rule over pieces of 64 tokens (Yang et al., arXiv:2412.06464, section 3.3), which the caller
 * cuts where it likes: places of a piece that are no token's have beta and log decays of 0, and change nothing then
 * if the rest is finite. Pieces of a sequence follow one another; its state stays in memory from the first to the
 * last. Two value heads of one key head are taken as matrices of 128 by 128, `side` pieces of `unit` heads at once.
 * With A below the diagonal, A_ij = beta_i e^(G_i - G_j) k_i . k_j, G the sums of log decays, the inverse of 1 + A
 * comes by halves: X, right in blocks of w, becomes X - X (A where blocks of w meet) X, right in those of 2 w;
 * products of powers of A would lose all digits where keys are alike. Operands:
 *   read i32 [n_chunk]: the slot from which a piece that is its sequence's first begins; -1: zeros; -2: goes on
 *   write i32 [n_chunk]: the slot for what a sequence's last piece leaves; -1: it is not the last
 *   live i32 [1]: pieces; they come first; read by -2 past them to a multiple of side
 *   state [n_slot, n_val, 128, 128] f32 or bf16
 *   x bf16 [n_chunk, 64, (2 n_key + n_val) * 128]: q of all heads, k, v, as a projection writes them
 *   gates f32 [n_chunk, 64, n_unit * 128]: of each unit the log decay of head h at h, its beta at 8 + h
 * Results: state, in place; y f32 [n_chunk, 64, n_val * 128], as the next product reads it. */
struct mo_chunk {
    int32_t n_chunk, n_slot, n_key, n_val;
    int32_t unit; /* at most 8; whole key heads of an even number of value heads */
    int32_t side; /* divides n_chunk */
    bool bf16;    /* the state */
    bool norm;    /* q and k are to be divided by the root of their mean square (plus eps) and scaled */
    float eps, q_scale, k_scale;
};
void mo_chunk(struct mosaic *, const struct mo_chunk *);
/* The kernel of n_tok tokens of up to n_seq sequences, norm left out; unit 0: value heads do not go in pairs of a key
 * head.
 * (lower_kernel_chunk.c) */
struct mo_chunk mo_chunk_of(const struct sy_scan_dim *, bool bf16, int32_t n_tok, int32_t n_seq, int32_t n_slot);

/* Ends the kernel and calls it with all its operands; releases it. The type of one of its arguments.
 * (lower_kernel.c) */
void lower_kernel_call(struct pj_hlo *, struct mosaic *, const int *operand, int *result);
struct pj_type lower_kernel_type(const struct mosaic *, int argument);
