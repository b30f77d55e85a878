/* skip.c - decode steps that are all alike, for whoever moves the clock and knows what each takes: a simulator. What
 * a step changes is written down here again, for such steps only; a test compares the two, step for step. */
#include "engine/engine_int.h"

/* Its next step takes one token, and nothing but its length can end it. */
static bool only_grows(const struct sy_engine *e, const struct seq *s)
{
    const struct seq_request *q = s->of;
    int32_t tail = s->n_done / e->plan.block_len;
    return s->n_tok - s->n_done == 1 && s->last_ns && !s->stopped && !q->cancelled && !q->deadline_ns &&
           !q->siblings && q->plain && q->ignore_eos && !q->n_stop_id && !q->on_logits && !q->on_hidden &&
           (tail >= s->n_block || !sy_cache_is_shared(cache_of(e, s), s->block[tail]));
}

/* Whoever waits first cannot come in before somebody leaves: places are taken, or blocks, of which those that run
 * take only more. With a prefix cache to look into it is tried instead. */
static bool nobody_joins(const struct sy_engine *e)
{
    const struct seq *s = e->wait;
    if (!s || e->n_running == 0) return !s;
    if (e->n_running >= e->plan.seq_max) return true;
    if (e->opt.scheduling != SY_CONTINUOUS && e->n_batch_left <= 0) return true;
    if (e->cache->enabled) return false;
    int32_t len = e->plan.block_len, spare = 0;
    for (int32_t i = 0; i < e->n_running; i++) spare += (int64_t)e->running[i]->n_block * len < e->running[i]->n_end;
    return blocks_of(s->n_tok, len) + spare > sy_cache_available(e->cache);
}

/* Blocks that s takes in n steps. */
static int32_t blocks_wanted(const struct sy_engine *e, const struct seq *s, int32_t n)
{
    int32_t want = blocks_of(s->n_tok + n - 1, e->plan.block_len);
    return want > s->n_block ? want - s->n_block : 0;
}

struct sy_alike sy_engine_alike(const struct sy_engine *e, int32_t n_max)
{
    struct sy_alike a = {.n = n_max};
    bool plain = !e->draft && e->opt.draft_max <= 0 && e->opt.gap_ms_max <= 0 && !e->n_swap_slot && !e->trace &&
                 !e->ladder.bucket && e->n_group == 1 && !e->plan.n_slot && !e->n_kv_window && !e->opt.on_batch;
    if (!plain || !nobody_joins(e)) a.n = 0;
    int32_t len = e->plan.block_len, in_block = n_max;
    for (int32_t i = 0; i < e->n_running && a.n > 0; i++) {
        const struct seq *s = e->running[i];
        int32_t end = s->n_stop < s->n_end ? s->n_stop : s->n_end, left = end - s->n_tok - 1;
        if (!only_grows(e, s)) left = 0;
        if (left < a.n) a.n = left;
        /* Until a block is full: it is offered to the prefix cache, and the next one is leased. */
        left = (s->n_done / len + 1) * len - s->n_tok;
        if (left < in_block) in_block = left;
        a.ctx += s->n_tok;
    }
    a.seq = e->n_running;
    int64_t want = 0;
    for (int32_t i = 0; i < e->n_running && a.n > 0; i++) want += blocks_wanted(e, e->running[i], a.n);
    if ((e->cache->enabled || want > sy_cache_available(e->cache)) && in_block < a.n) a.n = in_block;
    if (a.n < 0) a.n = 0;
    return a;
}

void sy_engine_skip(struct sy_engine *e, uint64_t began_ns, const uint64_t *end_ns, int32_t n, int32_t id)
{
    struct sy_engine_stats *t = &e->stats;
    if (e->n_running == 0 || n <= 0) return;
    uint64_t gap = 0;
    for (int32_t k = 1; k < n; k++)
        if (end_ns[k] - end_ns[k - 1] > gap) gap = end_ns[k] - end_ns[k - 1];
    for (int32_t i = 0; i < e->n_running; i++) {
        struct seq *s = e->running[i];
        int32_t more = blocks_wanted(e, s, n);
        sy_status st = sy_cache_lease(cache_of(e, s), more, &s->block[s->n_block]);
        sy_assert(!st); /* sy_engine_alike() counted them */
        s->n_block += more;
        if (end_ns[0] - s->last_ns > gap) gap = end_ns[0] - s->last_ns;
        for (int32_t k = 0; k < n; k++) s->tok[s->n_tok + k] = id;
        s->n_tok += n;
        s->n_done += n;
        s->n_sure = s->fed_end = s->n_tok - 1;
        s->last_ns = end_ns[n - 1];
    }
    uint64_t n_tok = (uint64_t)n * (uint64_t)e->n_running;
    e->now = n > 1 ? end_ns[n - 2] : began_ns;
    e->unmeasured = true;
    t->n_step += (uint64_t)n;
    t->step_ns_last = end_ns[n - 1] - e->now;
    t->last_batch_tok = t->last_batch_seq = e->n_running;
    t->decode_ns += end_ns[n - 1] - began_ns;
    t->decode_tok += n_tok;
    t->n_gen_tok += n_tok;
    if (gap > t->gap_ns_max) t->gap_ns_max = gap;
}
