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
 *   q bf16 [n_tok + tile, n_kv, g, d]; k, v bf16 [n_block, block_len, n_kv * d]
 * Result: bf16 like q; only rows of tokens are meant, others hold anything. */
struct mo_attend {
    int32_t n_seq, n_tok, n_table, n_block, block_len, n_kv;
    int32_t g;     /* queries to a key head: a power of two, 4 or more */
    int32_t d;     /* a multiple of 128 */
    int32_t tile;  /* a power of two */
    int32_t fetch; /* a power of two; fetch * block_len is a multiple of 128 */
    int32_t slots; /* fetches in memory at once: 2 or more */
    int32_t heads; /* key heads worked on side by side, so that their latencies overlap */
    int32_t window;
    float scale, softcap; /* softcap, window 0: none */
};
void mo_attend(struct mosaic *, const struct mo_attend *);
/* The kernel of a bucket, with how much it takes at once; heads side by side of tiles of that many rows.
 * (lower_kernel.c) */
struct mo_attend mo_attend_of(const struct sy_attn_dim *, const struct sy_cache_dim *, struct sy_shape);
int32_t mo_attend_heads(int32_t n_kv, int32_t rows);

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
/* Ends the kernel and calls it; releases it. (lower_kernel.c) */
int lower_kernel_call(struct pj_hlo *, struct mosaic *, const int *operand, int n, struct pj_type);
