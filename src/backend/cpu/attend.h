/* attend.h - the KV cache's bytes and the shape of attention work on the CPU.
 *
 * One layer's cache is n_block blocks; block b starts at b * block_bytes, a multiple of 256. A block holds K and V of
 * block_len positions for every kv head; attend_int.h documents the order. Softmax is online (Milakov and Gimelshein,
 * arXiv:1805.02867), in f32, over tiles of keys at absolute positions, and a long context is cut in partitions of
 * SY_PARTITION keys at absolute positions that are merged in order: so neither chunking, batch nor threads change a
 * bit. */
#pragma once
#include "backend/cpu/kernel.h"

enum { SY_PARTITION = 512 };

struct sy_kv_dim {
    int32_t n_kv, d_key, d_val, block_len;
    enum sy_kv_dtype dtype;
    int64_t block_bytes; /* sy_kv_block_bytes() */
    bool shared;         /* V is the first d_val elements of K, and not stored */
};
/* 0: a dimension below 1, or more bytes than an int64_t counts. d_val 0: V is not stored. */
int64_t sy_kv_block_bytes(int32_t n_kv, int32_t d_key, int32_t d_val, int32_t block_len, enum sy_kv_dtype);

/* One work item: n_q consecutive positions of one sequence, one kv head with its `n_group` query heads, the keys of
 * one partition (part) or all of them (merge). */
struct sy_attend {
    const struct sy_kv_dim *kv;
    const unsigned char *layer; /* the layer's cache */
    const int32_t *table;       /* the sequence's block table */
    int32_t kv_head, n_group;
    int32_t n_q, pos0; /* positions pos0 .. pos0 + n_q - 1; the last one's own key is already written */
    int32_t window, chunk;
    float scale, softcap;
    const float *sink; /* [n_group] a score without a value for each head; NULL: none */
    const float *q;    /* row 0, first query head of the group; head g at q + g * d_key */
    int64_t ldq;
    float *out; /* the same for the output, heads d_val apart */
    int64_t ldo;
    const struct sy_attend
        *next;            /* what will be attended to after this one, to be fetched beside it; NULL: not known */
    int32_t part, n_part; /* partition, lo <= part < hi of sy_attend_range(); hi - lo */
    float
        *partial; /* [n_part][n_q][n_group][d_val + 2]: sums, maximum (times log2 e), denominator; starts with `lo` */
};
enum { SY_ATTEND_Q = 32 }; /* most queries in one work item */
/* Keys of a cache by number, brought to f32 in the order of a cache of one block of SY_PARTITION positions: key i is
 * number pos[i]; the positions behind the n hold zeros. to: [SY_PARTITION * d_key] */
void sy_attend_gather(const struct sy_attend *, const float *pos, int32_t n, float *to);
/* The same for one key, at position `off` of a block, as number i of at most SY_PARTITION. */
void sy_attend_gather_one(const struct sy_kv_dim *, int32_t head, const unsigned char *block, int32_t off, int32_t i,
                          float *to);

/* Scores of an indexer's keys lo <= j < hi: score[j - lo] = sum over heads of w[h] max(0, q[h] . k_j). */
struct sy_attend_index {
    const struct sy_kv_dim *kv; /* d_key at most SY_INDEX_DIM_MAX */
    const unsigned char *layer;
    const int32_t *table;
    int32_t n_head, lo, hi;
    const float *q, *w; /* [n_head][d_key], [n_head] */
    float *score;
};
/* First partition that any of the item's queries sees (windows skip the rest), and one past the last. part() must run
 * for each of them, in any order and on any thread, before merge(). */
void sy_attend_range(const struct sy_attend *, int32_t *lo, int32_t *hi);
/* One partition by the fastest kernel that there is. rounded: queries and weights may be rounded to bf16. */
static inline void sy_attend_part(const struct sy_kernels_attend *k, enum sy_kv_dtype dtype,
                                  const struct sy_attend *a, bool rounded)
{
    if (rounded && k->part_bf16[dtype] && k->part_bf16[dtype](a)) return;
    k->part[dtype](a);
}
