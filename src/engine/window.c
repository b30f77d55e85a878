/* window.c - blocks of layers with a window, where they are apart: a sequence holds those that its next token sees
 * and those that a step writes, no others.
 *
 * A sequence at rest holds no more than R blocks (window_most()), and in a step one more for each block_len tokens
 * that it computes beyond 1 + draft_max. Whoever runs was promised R, or all its blocks where they are fewer, and
 * beside what was promised there is room for a whole step's tokens: so a lease never fails, and nobody is preempted
 * for want of these blocks. What is left over remembers windows: of the blocks that fall behind, those at whose end a
 * prompt may part from others or its conversation may go on are kept longest. */
#include <math.h>
#include <string.h>

#include "engine/engine_int.h"

/* The window may begin anywhere in a block, what a step writes may end anywhere, and so may the tokens beyond. */
static int32_t window_most(int32_t window, int32_t draft_max, int32_t len)
{
    return (int32_t)(((int64_t)window + draft_max) / len) + 3;
}

sy_status window_plan(const struct sy_engine_opt *o, int32_t per_seq, const struct sy_engine_bytes *each,
                      struct sy_engine_plan *p, struct sy_err *err)
{
    int32_t n_group = sy_shard_groups(&o->backend_opt.shard), seqs = p->seq_group;
    int32_t most = window_most(each->window, o->draft_max > 0 ? o->draft_max : 0, p->block_len);
    int64_t step = blocks_of(p->batch_tok_max, p->block_len), full = 1 + (int64_t)seqs * per_seq;
    p->n_apart = 0;
    if (each->window <= 0 || most >= per_seq) return SY_OK;
    /* As many for what is remembered, and a few. */
    int64_t apart = 1 + (o->no_prefix_cache ? seqs : 2 * (int64_t)seqs + 3) * most + step;
    if (apart >= full) return SY_OK;
    int64_t least = 1 + (most + step < per_seq ? most + step : per_seq),
            whole = each->block - each->apart + each->draft;
    double need = (double)(1 + per_seq) * (double)whole + (double)least * (double)each->apart;
    double want = (double)full * (double)whole + (double)apart * (double)each->apart;
    double have = o->kv_bytes_max > 0 ? floor((double)o->kv_bytes_max / n_group) : want;
    if (have < need)
        return sy_fail(err, SY_ENOMEM,
                       "--kv-memory: one sequence of %d tokens needs %.0f bytes, the limit is %lld; raise it or "
                       "lower --ctx-size",
                       p->ctx_len, need * n_group, (long long)o->kv_bytes_max);
    if (have < want) { /* both kinds shrink by the same part of the way from most to least */
        apart = least + (int64_t)((have - need) / (want - need) * (double)(apart - least));
        double left = have - (double)apart * (double)each->apart;
        if (whole > 0 && left < (double)full * (double)whole) full = (int64_t)(left / (double)whole);
    }
    if (want > 1e15 || full * n_group > INT32_MAX / p->block_len)
        return sy_fail(err, SY_ENOMEM, "%d sequences of %d tokens are too many; lower --max-seqs or --ctx-size",
                       p->seq_max, p->ctx_len);
    p->n_block = (int32_t)full;
    p->n_apart = (int32_t)apart;
    p->window = each->window;
    p->block_bytes = each->block - each->apart;
    p->apart_bytes = each->apart;
    p->kv_bytes = n_group * (full * p->block_bytes + apart * p->apart_bytes);
    p->draft_kv_bytes = n_group * full * each->draft;
    return SY_OK;
}

/* ---- what may be held --------------------------------------------------------------------------------------------
 */

static int32_t promise_of(const struct sy_engine *e, const struct seq *s)
{
    int32_t len = e->plan.block_len, all = blocks_of(s->n_end, len);
    int32_t most = window_most(e->plan.window, e->opt.draft_max > 0 ? e->opt.draft_max : 0, len);
    return all < most ? all : most;
}

bool window_fits(const struct sy_engine *e, const struct seq *s)
{
    const struct sy_cache *c = cache_of(e, s);
    if (!s->apart || c->n_promised == 0) return true; /* one alone always does */
    int32_t step = blocks_of(e->plan.batch_tok_max, e->plan.block_len);
    return (int64_t)c->n_promised + promise_of(e, s) + step <= c->pool[SY_CACHE_APART].n - 1;
}

void window_promise(struct sy_engine *e, struct seq *s)
{
    if (s->apart) cache_of(e, s)->n_promised += s->n_promised = promise_of(e, s);
}

void window_forget(struct sy_engine *e, struct seq *s)
{
    cache_of(e, s)->n_promised -= s->n_promised;
    s->n_promised = 0;
}

/* ---- what is held ------------------------------------------------------------------------------------------------
 */

void window_grow(struct sy_engine *e, struct seq *s, int32_t n_tok)
{
    for (int32_t end = blocks_of(n_tok, e->plan.block_len); s->apart && s->apart_end < end; s->apart_end++) {
        s->apart[s->apart_end] = sy_cache_item_lease(cache_of(e, s), SY_CACHE_APART);
        sy_assert(s->apart[s->apart_end]); /* promised */
    }
}

/* Somebody may want to go on from the end of a window that the block is in. */
static bool is_wanted(const struct sy_engine *e, const struct seq *s, int32_t block)
{
    for (int i = 0; i < 2; i++)
        if (block < s->cut[i] / e->plan.block_len && block >= sy_cache_first(cache_of(e, s), s->cut[i])) return true;
    return false;
}

void window_shed(struct sy_engine *e, struct seq *s)
{
    struct sy_cache *c = cache_of(e, s);
    if (!s->apart) return;
    for (int32_t end = blocks_of(s->n_done, e->plan.block_len);
         s->apart_end > end && s->apart_end > s->apart_first;) {
        sy_cache_item_return(c, SY_CACHE_APART, s->apart[--s->apart_end]);
        s->apart[s->apart_end] = 0;
    }
    for (int32_t first = sy_cache_first(c, s->n_done); s->apart_first < first; s->apart_first++) {
        int32_t *at = &s->apart[s->apart_first];
        if (is_wanted(e, s, s->apart_first)) sy_cache_item_return(c, SY_CACHE_APART, *at);
        else sy_cache_item_return_cold(c, SY_CACHE_APART, *at);
        *at = 0;
    }
}

void window_give(struct sy_engine *e, struct seq *s)
{
    if (!s->apart) return;
    while (s->apart_end > s->apart_first) {
        sy_cache_item_return(cache_of(e, s), SY_CACHE_APART, s->apart[--s->apart_end]);
        s->apart[s->apart_end] = 0;
    }
    s->apart_first = s->apart_end = 0;
}

void window_restore(struct sy_engine *e, struct seq *s)
{
    if (!s->apart) return;
    s->apart_first = s->apart_end = sy_cache_first(cache_of(e, s), s->n_done);
    window_grow(e, s, s->n_done);
}

void window_share(struct sy_engine *e, const struct seq *s, struct seq *to)
{
    if (!s->apart) return;
    to->apart_first = s->apart_first;
    to->apart_end = s->apart_end;
    memcpy(to->apart, s->apart, (size_t)s->apart_end * sizeof *to->apart);
    for (int32_t i = s->apart_first; i < s->apart_end; i++)
        sy_cache_item_share(cache_of(e, s), SY_CACHE_APART, s->apart[i]);
}

void window_own(struct sy_engine *e, struct seq *s, int32_t i)
{
    if (!s->apart || i >= s->apart_end || !sy_cache_item_is_shared(cache_of(e, s), SY_CACHE_APART, s->apart[i]))
        return;
    int32_t fresh = sy_cache_item_lease(cache_of(e, s), SY_CACHE_APART);
    sy_assert(fresh); /* promised: the others hold the one that is shared */
    sy_cache_item_return(cache_of(e, s), SY_CACHE_APART, s->apart[i]);
    s->apart[i] = fresh;
}

void window_keep(struct sy_engine *e, struct seq *s, int32_t i, int32_t known)
{
    if (s->apart && i >= s->apart_first && i < s->apart_end)
        (void)sy_cache_keep(cache_of(e, s), SY_CACHE_APART, known, s->apart[i], false);
}

void window_verify(const struct sy_engine *e, const struct seq *s)
{
    const struct sy_cache *c = cache_of(e, s);
    int32_t len = e->plan.block_len, end = blocks_of(s->n_done, len);
    if (!s->apart) return;
    sy_assert(s->apart_first == sy_cache_first(c, s->n_done) && s->apart_end == end);
    sy_assert(s->n_promised == promise_of(e, s) && end - s->apart_first <= s->n_promised);
    for (int32_t i = 0; i < s->apart_end; i++)
        sy_assert(i < s->apart_first ? s->apart[i] == 0 : c->pool[SY_CACHE_APART].item[s->apart[i]].n_ref > 0);
}
