/* cache.h - which sequence holds which KV block and which slot, and what remembers a prefix. Bookkeeping only: the
 * bytes are the backend's. Owned by the engine thread; no locks; no allocation after sy_cache_init().
 *
 * A block is free, leased (by one sequence or several) or cached (by none, but its content is known). Full blocks are
 * known by what they hold: block i of a sequence has the key (key of block i-1, its block_len tokens), the first
 * one's predecessor being the domain, so tenants never meet. A lookup compares tokens, it does not trust a hash.
 * Cached blocks are taken least recently used first, the end of a prefix before its beginning. At any time free +
 * cached + leased = all but block 0, which is padding.
 *
 * A model with recurrent states has slots besides: one holds all states of a sequence at one position. A slot is
 * free, leased, or kept: the snapshot of the state behind a known block, which goes when the block is forgotten, or
 * when a slot is wanted and it is the least recently used one. A prefix is a hit as far as it has blocks and a
 * snapshot at their end; going on from a snapshot, or from a state that becomes one, is reading one slot and writing
 * another: nothing is copied. At any time free + kept + leased = all but slot 0.
 *
 * Layers with a window may have blocks apart, for the positions that some query still sees and no others. They are
 * kept like snapshots, each by the known block of the same tokens, and go alone, so that a prefix is a hit as far as
 * it has blocks, and blocks apart for the window at their end. */
#pragma once
#include "base/base.h"

enum sy_cache_kind {
    SY_CACHE_SLOT,  /* kept: the states behind the block's last token */
    SY_CACHE_APART, /* kept: keys and values of the block's tokens in layers with a window */
    SY_CACHE_KINDS
};
struct sy_cache_block {
    uint64_t key, parent; /* key 0: content not known */
    int32_t n_ref;
    int32_t prev, next;          /* in the free list (next only) or the list of cached blocks */
    int32_t chain;               /* next block in its hash bucket, 0: last */
    int32_t has[SY_CACHE_KINDS]; /* what is kept by it, 0: nothing */
};
struct sy_cache_item {
    int32_t n_ref, block; /* block: by which it is kept, 0: none */
    int32_t prev, next;   /* in the free list (next only) or the list of what is kept and not leased */
    bool cold, hit;       /* cold: goes first among the kept; hit: somebody went on from it */
};
struct sy_cache_pool {
    struct sy_cache_item *item; /* [n]; n 0: the model has none */
    int32_t n;
    int32_t free, keep_first, keep_last; /* 0: none */
    int32_t n_free, n_kept, n_leased;
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
    bool enabled;   /* false: nothing is remembered */
    int32_t window; /* of layers whose blocks are apart; 0: none are */
    struct sy_cache_pool pool[SY_CACHE_KINDS];
    int32_t n_promised; /* blocks apart that sequences may come to hold, by whoever leases them */
};
struct sy_cache_size {
    int32_t block_len, n_block, n_slot, n_apart, window; /* n_slot, n_apart 0: none */
};
SY_CHECK sy_status sy_cache_init(struct sy_cache *, const struct sy_env *, struct sy_cache_size, bool enabled,
                                 struct sy_err *);
void sy_cache_release(struct sy_cache *, const struct sy_env *);
static inline int32_t sy_cache_available(const struct sy_cache *c) { return c->n_free + c->n_cached; }
SY_CHECK sy_status sy_cache_lease(struct sy_cache *, int32_t n, int32_t *out); /* all or SY_FULL */
void sy_cache_share(struct sy_cache *, int32_t block);                         /* one more holder */
void sy_cache_return(struct sy_cache *, int32_t block);                        /* one holder less */
bool sy_cache_is_shared(const struct sy_cache *, int32_t block);
struct sy_prefix {   /* what is known of a sequence's beginning */
    int32_t n_block; /* leased to the caller */
    int32_t n_known; /* known blocks, n_block and those behind the last snapshot */
    int32_t slot;    /* leased to the caller: the states behind the n_block blocks; 0: none are needed */
    int32_t first;   /* blocks apart are leased to the caller from the first-th on */
    uint64_t key;    /* of the last of n_block, the domain's when none */
};
/* Longest run of blocks known for tok[0, n_block_max * block_len), with slots ending in a snapshot, and with all that
 * a window at its end sees; written to out, and apart unless it is NULL, which have room for n_block_max. */
struct sy_prefix sy_cache_match(struct sy_cache *, uint64_t domain, const int32_t *tok, int32_t n_block_max,
                                int32_t *out, int32_t *apart);
/* The first block apart that a token at the position sees. */
static inline int32_t sy_cache_first(const struct sy_cache *c, int32_t pos)
{
    return pos < c->window ? 0 : (pos - c->window + 1) / c->block_len;
}
/* For messages, and slow: -1: no block that follows `parent` is known; else how many of tok's first tokens the one
 * that is most like it has. */
int32_t sy_cache_common(const struct sy_cache *, uint64_t parent, const int32_t *tok);
/* The block now holds these block_len tokens after *key: remembers it, unless such a block is known already. *key
 * becomes the content's key; returns the block that is known for it (0 where nothing is remembered). */
int32_t sy_cache_learn(struct sy_cache *, int32_t block, uint64_t *key, const int32_t *tok);

static inline int32_t sy_cache_items_available(const struct sy_cache *c, enum sy_cache_kind k)
{
    return c->pool[k].n_free + c->pool[k].n_kept;
}
int32_t sy_cache_item_lease(struct sy_cache *, enum sy_cache_kind);             /* 0: all are leased */
void sy_cache_item_share(struct sy_cache *, enum sy_cache_kind, int32_t item);  /* one more holder */
void sy_cache_item_return(struct sy_cache *, enum sy_cache_kind, int32_t item); /* one holder less */
/* The same; if it is kept, and nobody ever went on from it, it is among the first to go. */
void sy_cache_item_return_cold(struct sy_cache *, enum sy_cache_kind, int32_t item);
bool sy_cache_item_is_shared(const struct sy_cache *, enum sy_cache_kind, int32_t item);
bool sy_cache_slot_is_own(const struct sy_cache *, int32_t slot); /* one holder and no snapshot: may be written */
/* The item is what its kind says of the known block: kept by it from now on, unless it has one. cold: a guess, given
 * up before others. Returns whether it was taken. */
bool sy_cache_keep(struct sy_cache *, enum sy_cache_kind, int32_t block, int32_t item, bool cold);
/* Gives up the snapshot if it is still this slot and nobody went on from it. */
void sy_cache_unkeep(struct sy_cache *, int32_t block, int32_t slot);
uint64_t sy_cache_root(uint64_t domain);       /* the predecessor of a first block */
void sy_cache_verify(const struct sy_cache *); /* all invariants; asserts */
