#include "engine/cache.h"

#include <string.h>

#include "base/rng.h"

sy_status sy_cache_init(struct sy_cache *c, const struct sy_env *env, int32_t block_len, int32_t n_block,
                        int32_t n_slot, bool enabled, struct sy_err *err)
{
    *c = (struct sy_cache){.block_len = block_len,
                           .n_block = n_block,
                           .n_slot = n_slot,
                           .enabled = enabled,
                           .next_key = 1,
                           .n_bucket = 16};
    while (c->n_bucket < 2 * (uint32_t)n_block) c->n_bucket *= 2;
    c->block = sy_new_array(env, (size_t)n_block, sizeof *c->block);
    c->bucket = sy_new_array(env, c->n_bucket, sizeof *c->bucket);
    if (enabled) c->tok = sy_new_array(env, (size_t)n_block * (size_t)block_len, sizeof *c->tok);
    if (n_slot) c->slot = sy_new_array(env, (size_t)n_slot, sizeof *c->slot);
    if (!c->block || !c->bucket || (enabled && !c->tok) || (n_slot && !c->slot)) {
        sy_cache_release(c, env);
        return sy_fail(err, SY_ENOMEM, "no memory for a table of %d blocks and %d slots", n_block, n_slot);
    }
    for (int32_t i = n_slot - 1; i > 0; i--) {
        c->slot[i].next = c->slot_free;
        c->slot_free = i;
        c->n_slot_free++;
    }
    for (int32_t i = n_block - 1; i > 0; i--) {
        c->block[i].next = c->free_first;
        c->free_first = i;
        c->n_free++;
    }
    return SY_OK;
}

void sy_cache_release(struct sy_cache *c, const struct sy_env *env)
{
    sy_delete(env, c->block);
    sy_delete(env, c->bucket);
    sy_delete(env, c->tok);
    sy_delete(env, c->slot);
    *c = (struct sy_cache){0};
}

/* ---- the list of cached blocks: first is taken first ----------------------------------------------------------- */

static void lru_append(struct sy_cache *c, int32_t i)
{
    struct sy_cache_block *b = &c->block[i];
    b->prev = c->lru_last;
    b->next = 0;
    if (c->lru_last) c->block[c->lru_last].next = i;
    else c->lru_first = i;
    c->lru_last = i;
    c->n_cached++;
}

static void lru_remove(struct sy_cache *c, int32_t i)
{
    struct sy_cache_block *b = &c->block[i];
    if (b->prev) c->block[b->prev].next = b->next;
    else c->lru_first = b->next;
    if (b->next) c->block[b->next].prev = b->prev;
    else c->lru_last = b->prev;
    b->prev = b->next = 0;
    c->n_cached--;
}

/* ---- slots ------------------------------------------------------------------------------------------------------
 */

static void keep_remove(struct sy_cache *c, int32_t i)
{
    struct sy_cache_slot *s = &c->slot[i];
    if (s->prev) c->slot[s->prev].next = s->next;
    else c->keep_first = s->next;
    if (s->next) c->slot[s->next].prev = s->prev;
    else c->keep_last = s->prev;
    s->prev = s->next = 0;
    c->n_slot_kept--;
}

/* A snapshot that nobody holds: the first of the list goes first. */
static void keep_insert(struct sy_cache *c, int32_t i)
{
    struct sy_cache_slot *s = &c->slot[i];
    s->prev = s->cold ? 0 : c->keep_last;
    s->next = s->cold ? c->keep_first : 0;
    if (s->prev) c->slot[s->prev].next = i;
    else c->keep_first = i;
    if (s->next) c->slot[s->next].prev = i;
    else c->keep_last = i;
    c->n_slot_kept++;
}

static void slot_to_free(struct sy_cache *c, int32_t i)
{
    c->slot[i] = (struct sy_cache_slot){.next = c->slot_free};
    c->slot_free = i;
    c->n_slot_free++;
}

static void drop_snapshot(struct sy_cache *c, int32_t block)
{
    int32_t i = c->block[block].slot;
    if (!i) return;
    c->block[block].slot = 0;
    c->slot[i].block = 0;
    if (c->slot[i].n_ref) return;
    keep_remove(c, i);
    slot_to_free(c, i);
}

int32_t sy_cache_slot_lease(struct sy_cache *c)
{
    if (!c->slot_free && c->keep_first) drop_snapshot(c, c->slot[c->keep_first].block);
    int32_t i = c->slot_free;
    if (!i) return 0;
    c->slot_free = c->slot[i].next;
    c->slot[i] = (struct sy_cache_slot){.n_ref = 1};
    c->n_slot_free--;
    c->n_slot_leased++;
    return i;
}

void sy_cache_slot_share(struct sy_cache *c, int32_t slot)
{
    struct sy_cache_slot *s = &c->slot[slot];
    sy_assert(slot > 0 && (s->n_ref > 0 || s->block));
    if (s->n_ref++) return;
    keep_remove(c, slot);
    c->n_slot_leased++;
}

void sy_cache_slot_return(struct sy_cache *c, int32_t slot)
{
    struct sy_cache_slot *s = &c->slot[slot];
    sy_assert(slot > 0 && s->n_ref > 0);
    if (--s->n_ref > 0) return;
    c->n_slot_leased--;
    if (s->block) keep_insert(c, slot);
    else slot_to_free(c, slot);
}

bool sy_cache_slot_is_own(const struct sy_cache *c, int32_t slot)
{
    return c->slot[slot].n_ref == 1 && !c->slot[slot].block;
}

bool sy_cache_keep(struct sy_cache *c, int32_t block, int32_t slot, bool cold)
{
    sy_assert(c->slot[slot].n_ref > 0);
    if (!c->block[block].key || c->block[block].slot || c->slot[slot].block) return false;
    c->block[block].slot = slot;
    c->slot[slot].block = block;
    c->slot[slot].cold = cold;
    return true;
}

void sy_cache_unkeep(struct sy_cache *c, int32_t block, int32_t slot)
{
    if (slot && c->block[block].slot == slot && !c->slot[slot].hit) drop_snapshot(c, block);
}

/* ---- content ------------------------------------------------------------------------------------------------------
 */

static int32_t *bucket_of(const struct sy_cache *c, uint64_t parent, const int32_t *tok)
{
    uint64_t h = parent * 0x9E3779B97F4A7C15u;
    for (int32_t i = 0; i < c->block_len; i++) h = (h ^ (uint32_t)tok[i]) * 0xD6E8FEB86659FD93u, h ^= h >> 32;
    return &c->bucket[h & (c->n_bucket - 1)];
}

static int32_t *tokens(const struct sy_cache *c, int32_t block) { return c->tok + (int64_t)block * c->block_len; }

static int32_t find(const struct sy_cache *c, uint64_t parent, const int32_t *tok)
{
    size_t n = (size_t)c->block_len * sizeof *tok;
    int32_t i = *bucket_of(c, parent, tok);
    while (i && (c->block[i].parent != parent || memcmp(tokens(c, i), tok, n) != 0)) i = c->block[i].chain;
    return i;
}

static void forget(struct sy_cache *c, int32_t block)
{
    struct sy_cache_block *b = &c->block[block];
    if (b->key == 0) return;
    int32_t *at = bucket_of(c, b->parent, tokens(c, block));
    while (*at != block) at = &c->block[*at].chain;
    *at = b->chain;
    b->key = b->parent = 0;
    b->chain = 0;
    drop_snapshot(c, block);
}

/* Keys count up from 1; domains have the top bit, so the two never meet. */
uint64_t sy_cache_root(uint64_t domain) { return sy_rng_u64(domain, 0) | (uint64_t)1 << 63; }

int32_t sy_cache_learn(struct sy_cache *c, int32_t block, uint64_t *key, const int32_t *tok)
{
    if (!c->enabled) return 0;
    struct sy_cache_block *b = &c->block[block];
    sy_assert(b->n_ref > 0);
    int32_t known = find(c, *key, tok);
    if (!known) {
        sy_assert(b->key == 0);
        memcpy(tokens(c, block), tok, (size_t)c->block_len * sizeof *tok);
        int32_t *first = bucket_of(c, *key, tok);
        b->key = c->next_key++;
        b->parent = *key;
        b->chain = *first;
        *first = known = block;
    }
    *key = c->block[known].key;
    return known;
}

/* ---- leases -------------------------------------------------------------------------------------------------- */

sy_status sy_cache_lease(struct sy_cache *c, int32_t n, int32_t *out)
{
    if (n > sy_cache_available(c)) return SY_FULL;
    for (int32_t k = 0; k < n; k++) {
        int32_t i = c->free_first;
        if (i) {
            c->free_first = c->block[i].next;
            c->n_free--;
        } else {
            i = c->lru_first;
            lru_remove(c, i);
            forget(c, i);
        }
        c->block[i].next = 0;
        c->block[i].n_ref = 1;
        c->n_leased++;
        out[k] = i;
    }
    return SY_OK;
}

void sy_cache_share(struct sy_cache *c, int32_t block)
{
    struct sy_cache_block *b = &c->block[block];
    sy_assert(block > 0 && (b->n_ref > 0 || b->key));
    if (b->n_ref++ == 0) {
        lru_remove(c, block);
        c->n_leased++;
    }
}

void sy_cache_return(struct sy_cache *c, int32_t block)
{
    struct sy_cache_block *b = &c->block[block];
    sy_assert(block > 0 && b->n_ref > 0);
    if (--b->n_ref > 0) return;
    c->n_leased--;
    if (b->key) {
        lru_append(c, block);
        return;
    }
    b->next = c->free_first;
    c->free_first = block;
    c->n_free++;
}

bool sy_cache_is_shared(const struct sy_cache *c, int32_t block) { return c->block[block].n_ref > 1; }

struct sy_prefix sy_cache_match(struct sy_cache *c, uint64_t domain, const int32_t *tok, int32_t n_max, int32_t *out)
{
    struct sy_prefix p = {.key = sy_cache_root(domain)};
    uint64_t key = p.key;
    for (; c->enabled && p.n_known < n_max; p.n_known++) {
        int32_t i = find(c, key, tok + (int64_t)p.n_known * c->block_len);
        if (!i) break;
        out[p.n_known] = i;
        key = c->block[i].key;
        if (c->n_slot && !c->block[i].slot) continue;
        p.n_block = p.n_known + 1;
        p.slot = c->block[i].slot;
        p.key = key;
    }
    for (int32_t n = 0; n < p.n_block; n++) sy_cache_share(c, out[n]);
    if (p.slot) {
        sy_cache_slot_share(c, p.slot);
        c->slot[p.slot].hit = true;
        c->slot[p.slot].cold = false;
    }
    return p;
}

static void verify_slots(const struct sy_cache *c)
{
    int32_t n_free = 0, n_kept = 0, n_leased = 0;
    for (int32_t i = c->slot_free; i; i = c->slot[i].next) {
        sy_assert(c->slot[i].n_ref == 0 && c->slot[i].block == 0);
        n_free++;
    }
    for (int32_t i = c->keep_first; i; i = c->slot[i].next) {
        sy_assert(c->slot[i].n_ref == 0 && c->slot[i].block > 0);
        n_kept++;
    }
    for (int32_t i = 1; i < c->n_slot; i++) {
        n_leased += c->slot[i].n_ref > 0;
        sy_assert(c->slot[i].block == 0 || c->block[c->slot[i].block].slot == i);
    }
    for (int32_t i = 1; i < c->n_block && c->n_slot; i++) {
        int32_t s = c->block[i].slot;
        sy_assert(s == 0 || (c->slot[s].block == i && c->block[i].key));
    }
    sy_assert(n_free == c->n_slot_free && n_kept == c->n_slot_kept && n_leased == c->n_slot_leased);
    sy_assert(c->n_slot == 0 || n_free + n_kept + n_leased == c->n_slot - 1);
}

int32_t sy_cache_common(const struct sy_cache *c, uint64_t parent, const int32_t *tok)
{
    int32_t most = -1;
    for (int32_t i = 1; c->enabled && i < c->n_block; i++) {
        if (!c->block[i].key || c->block[i].parent != parent) continue;
        int32_t n = 0;
        while (n < c->block_len && tokens(c, i)[n] == tok[n]) n++;
        if (n > most) most = n;
    }
    return most;
}

void sy_cache_verify(const struct sy_cache *c)
{
    int32_t n_free = 0, n_cached = 0, n_leased = 0, n_known = 0, n_chained = 0;
    for (int32_t i = c->free_first; i; i = c->block[i].next) {
        sy_assert(c->block[i].n_ref == 0 && c->block[i].key == 0);
        n_free++;
    }
    for (int32_t i = c->lru_first; i; i = c->block[i].next) {
        sy_assert(c->block[i].n_ref == 0 && c->block[i].key != 0);
        n_cached++;
    }
    for (int32_t i = 1; i < c->n_block; i++) {
        n_leased += c->block[i].n_ref > 0;
        n_known += c->block[i].key != 0;
    }
    for (uint32_t h = 0; h < c->n_bucket; h++)
        for (int32_t i = c->bucket[h]; i; i = c->block[i].chain) n_chained++;
    sy_assert(n_free == c->n_free && n_cached == c->n_cached && n_leased == c->n_leased);
    sy_assert(n_free + n_cached + n_leased == c->n_block - 1);
    sy_assert(n_known == n_chained);
    verify_slots(c);
}
