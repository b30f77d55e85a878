/* kernels.h - the kernels, each generated from shapes. A kernel's operands and results are written beside its
 * function, in order; all are in HBM, row major. Private to the pjrt backend and its tests. */
#pragma once
#include "backend/backend.h"
#include "backend/pjrt/mosaic/mosaic.h"

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
/* The kernel of a decode bucket, with what it fetches at once. (lower_kernel.c) */
struct mo_attend mo_attend_of(const struct sy_attn_dim *, const struct sy_cache_dim *, struct sy_shape);
