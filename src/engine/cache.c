#include "engine/cache.h"

#include <string.h>

#include "base/rng.h"

static bool pool_init(struct sy_cache_pool *p, const struct sy_env *env, int32_t n)
{
    p->n = n;
    if (n == 0) return true;
    p->item = sy_new_array(env, (size_t)n, sizeof *p->item);
    for (int32_t i = n - 1; i > 0 && p->item; i--) {
        p->item[i].next = p->free;
        p->free = i;
        p->n_free++;
    }
    return p->item != NULL;
}

sy_status sy_cache_init(struct sy_cache *c, const struct sy_env *env, struct sy_cache_size n, bool enabled,
                        struct sy_err *err)
{
    *c = (struct sy_cache){.block_len = n.block_len,
                           .n_block = n.n_block,
                           .enabled = enabled,
                           .window = n.n_apart ? n.window : 0,
                           .next_key = 1,
                           .n_bucket = 16};
    while (c->n_bucket < 2 * (uint32_t)n.n_block) c->n_bucket *= 2;
    c->block = sy_new_array(env, (size_t)n.n_block, sizeof *c->block);
    c->bucket = sy_new_array(env, c->n_bucket, sizeof *c->bucket);
    if (enabled) c->tok = sy_new_array(env, (size_t)n.n_block * (size_t)n.block_len, sizeof *c->tok);
    bool ok =
        pool_init(&c->pool[SY_CACHE_SLOT], env, n.n_slot) && pool_init(&c->pool[SY_CACHE_APART], env, n.n_apart);
    if (!c->block || !c->bucket || (enabled && !c->tok) || !ok) {
        sy_cache_release(c, env);
        return sy_fail(err, SY_ENOMEM, "no memory for a table of %d blocks and %d slots", n.n_block, n.n_slot);
    }
    for (int32_t i = n.n_block - 1; i > 0; i--) {
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
    for (int k = 0; k < SY_CACHE_KINDS; k++) sy_delete(env, c->pool[k].item);
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

/* ---- what is kept by known blocks ------------------------------------------------------------------------------ */

static void keep_remove(struct sy_cache_pool *p, int32_t i)
{
    struct sy_cache_item *s = &p->item[i];
    if (s->prev) p->item[s->prev].next = s->next;
    else p->keep_first = s->next;
    if (s->next) p->item[s->next].prev = s->prev;
    else p->keep_last = s->prev;
    s->prev = s->next = 0;
    p->n_kept--;
}

/* Kept, and nobody holds it: the first of the list goes first. */
static void keep_insert(struct sy_cache_pool *p, int32_t i)
{
    struct sy_cache_item *s = &p->item[i];
    s->prev = s->cold ? 0 : p->keep_last;
    s->next = s->cold ? p->keep_first : 0;
    if (s->prev) p->item[s->prev].next = i;
    else p->keep_first = i;
    if (s->next) p->item[s->next].prev = i;
    else p->keep_last = i;
    p->n_kept++;
}

static void to_free(struct sy_cache_pool *p, int32_t i)
{
    p->item[i] = (struct sy_cache_item){.next = p->free};
    p->free = i;
    p->n_free++;
}

static void drop_kept(struct sy_cache *c, enum sy_cache_kind k, int32_t block)
{
    struct sy_cache_pool *p = &c->pool[k];
    int32_t i = c->block[block].has[k];
    if (!i) return;
    c->block[block].has[k] = 0;
    p->item[i].block = 0;
    if (p->item[i].n_ref) return;
    keep_remove(p, i);
    to_free(p, i);
}

int32_t sy_cache_item_lease(struct sy_cache *c, enum sy_cache_kind k)
{
    struct sy_cache_pool *p = &c->pool[k];
    if (!p->free && p->keep_first) drop_kept(c, k, p->item[p->keep_first].block);
    int32_t i = p->free;
    if (!i) return 0;
    p->free = p->item[i].next;
    p->item[i] = (struct sy_cache_item){.n_ref = 1};
    p->n_free--;
    p->n_leased++;
    return i;
}

void sy_cache_item_share(struct sy_cache *c, enum sy_cache_kind k, int32_t item)
{
    struct sy_cache_item *s = &c->pool[k].item[item];
    sy_assert(item > 0 && (s->n_ref > 0 || s->block));
    if (s->n_ref++) return;
    keep_remove(&c->pool[k], item);
    c->pool[k].n_leased++;
}

void sy_cache_item_return(struct sy_cache *c, enum sy_cache_kind k, int32_t item)
{
    struct sy_cache_item *s = &c->pool[k].item[item];
    sy_assert(item > 0 && s->n_ref > 0);
    if (--s->n_ref > 0) return;
    c->pool[k].n_leased--;
    if (s->block) keep_insert(&c->pool[k], item);
    else to_free(&c->pool[k], item);
}

void sy_cache_item_return_cold(struct sy_cache *c, enum sy_cache_kind k, int32_t item)
{
    struct sy_cache_item *s = &c->pool[k].item[item];
    s->cold = !s->hit;
    sy_cache_item_return(c, k, item);
}

bool sy_cache_item_is_shared(const struct sy_cache *c, enum sy_cache_kind k, int32_t item)
{
    return c->pool[k].item[item].n_ref > 1;
}

bool sy_cache_slot_is_own(const struct sy_cache *c, int32_t slot)
{
    const struct sy_cache_item *s = &c->pool[SY_CACHE_SLOT].item[slot];
    return s->n_ref == 1 && !s->block;
}

bool sy_cache_keep(struct sy_cache *c, enum sy_cache_kind k, int32_t block, int32_t item, bool cold)
{
    struct sy_cache_item *s = &c->pool[k].item[item];
    sy_assert(s->n_ref > 0);
    if (!c->block[block].key || c->block[block].has[k] || s->block) return false;
    c->block[block].has[k] = item;
    s->block = block;
    s->cold = cold;
    return true;
}

void sy_cache_unkeep(struct sy_cache *c, int32_t block, int32_t slot)
{
    if (slot && c->block[block].has[SY_CACHE_SLOT] == slot && !c->pool[SY_CACHE_SLOT].item[slot].hit)
        drop_kept(c, SY_CACHE_SLOT, block);
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
    for (int k = 0; k < SY_CACHE_KINDS; k++) drop_kept(c, (enum sy_cache_kind)k, block);
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

/* An item that somebody goes on from. */
static int32_t go_on(struct sy_cache *c, enum sy_cache_kind k, int32_t item)
{
    sy_cache_item_share(c, k, item);
    c->pool[k].item[item].hit = true;
    c->pool[k].item[item].cold = false;
    return item;
}

struct sy_prefix sy_cache_match(struct sy_cache *c, uint64_t domain, const int32_t *tok, int32_t n_max, int32_t *out,
                                int32_t *apart)
{
    struct sy_prefix p = {.key = sy_cache_root(domain)};
    uint64_t key = p.key;
    int32_t run = 0; /* blocks without a gap that have one apart, up to here */
    for (; c->enabled && p.n_known < n_max; p.n_known++) {
        int32_t i = find(c, key, tok + (int64_t)p.n_known * c->block_len), n = p.n_known + 1;
        if (!i) break;
        out[p.n_known] = i;
        key = c->block[i].key;
        run = c->block[i].has[SY_CACHE_APART] ? run + 1 : 0;
        if (c->pool[SY_CACHE_SLOT].n && !c->block[i].has[SY_CACHE_SLOT]) continue;
        if (apart && run < n - sy_cache_first(c, n * c->block_len)) continue;
        p.n_block = n;
        p.slot = c->block[i].has[SY_CACHE_SLOT];
        p.key = key;
    }
    p.first = apart ? sy_cache_first(c, p.n_block * c->block_len) : 0;
    for (int32_t n = 0; n < p.n_block; n++) {
        sy_cache_share(c, out[n]);
        if (apart) apart[n] = n < p.first ? 0 : go_on(c, SY_CACHE_APART, c->block[out[n]].has[SY_CACHE_APART]);
    }
    if (p.slot) (void)go_on(c, SY_CACHE_SLOT, p.slot);
    return p;
}

static void verify_pool(const struct sy_cache *c, enum sy_cache_kind k)
{
    const struct sy_cache_pool *p = &c->pool[k];
    int32_t n_free = 0, n_kept = 0, n_leased = 0;
    for (int32_t i = p->free; i; i = p->item[i].next) {
        sy_assert(p->item[i].n_ref == 0 && p->item[i].block == 0);
        n_free++;
    }
    for (int32_t i = p->keep_first; i; i = p->item[i].next) {
        sy_assert(p->item[i].n_ref == 0 && p->item[i].block > 0);
        n_kept++;
    }
    for (int32_t i = 1; i < p->n; i++) {
        n_leased += p->item[i].n_ref > 0;
        sy_assert(p->item[i].block == 0 || c->block[p->item[i].block].has[k] == i);
    }
    for (int32_t i = 1; i < c->n_block && p->n; i++) {
        int32_t s = c->block[i].has[k];
        sy_assert(s == 0 || (p->item[s].block == i && c->block[i].key));
    }
    sy_assert(n_free == p->n_free && n_kept == p->n_kept && n_leased == p->n_leased);
    sy_assert(p->n == 0 || n_free + n_kept + n_leased == p->n - 1);
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
    for (int k = 0; k < SY_CACHE_KINDS; k++) verify_pool(c, (enum sy_cache_kind)k);
}
