/* cache.h - which sequence holds which KV block, and which blocks remember a prefix. Bookkeeping only: the bytes are
 * the backend's. Owned by the engine thread; no locks; no allocation after sy_cache_init().
 *
 * A block is free, leased (by one sequence or several) or cached (by none, but its content is known). Full blocks are
 * known by what they hold: block i of a sequence has the key (key of block i-1, its block_len tokens), the first
 * one's predecessor being the domain, so tenants never meet. A lookup compares tokens, it does not trust a hash.
 * Cached blocks are taken least recently used first, the end of a prefix before its beginning. At any time free +
 * cached + leased = all but block 0, which is padding. */
#pragma once
#include "base/base.h"

struct sy_cache_block {
    uint64_t key, parent; /* key 0: content not known */
    int32_t n_ref;
    int32_t prev, next; /* in the free list (next only) or the list of cached blocks */
    int32_t chain;      /* next block in its hash bucket, 0: last */
};
struct sy_cache {
    int32_t block_len, n_block;
    struct sy_cache_block *block;
    int32_t *tok;                            /* [n_block][block_len] tokens of known blocks */
    int32_t *bucket;                         /* [n_bucket] first block, 0: none */
    uint32_t n_bucket;                       /* a power of two */
    int32_t free_first, lru_first, lru_last; /* 0: none */
    int32_t n_free, n_cached, n_leased;
    uint64_t next_key;
    bool enabled; /* false: nothing is remembered */
};
SY_CHECK sy_status sy_cache_init(struct sy_cache *, const struct sy_env *, int32_t block_len, int32_t n_block,
                                 bool enabled, struct sy_err *);
void sy_cache_release(struct sy_cache *, const struct sy_env *);
static inline int32_t sy_cache_available(const struct sy_cache *c) { return c->n_free + c->n_cached; }
SY_CHECK sy_status sy_cache_lease(struct sy_cache *, int32_t n, int32_t *out); /* all or SY_FULL */
void sy_cache_share(struct sy_cache *, int32_t block);                         /* one more holder */
void sy_cache_return(struct sy_cache *, int32_t block);                        /* one holder less */
bool sy_cache_is_shared(const struct sy_cache *, int32_t block);
/* Longest run of blocks known for tok[0, n_block_max * block_len); leases them to the caller, writes them to out and
 * the key of the last one to *key (the domain's when none). */
int32_t sy_cache_match(struct sy_cache *, uint64_t domain, const int32_t *tok, int32_t n_block_max, int32_t *out,
                       uint64_t *key);
/* The block now holds these block_len tokens after `parent`: remembers it, unless such a block is known already.
 * Returns the content's key. */
uint64_t sy_cache_learn(struct sy_cache *, int32_t block, uint64_t parent, const int32_t *tok);
uint64_t sy_cache_root(uint64_t domain);       /* the predecessor of a first block */
void sy_cache_verify(const struct sy_cache *); /* all invariants; asserts */
