/* spec.c - speculative decoding by looking up: what followed the last time the answer's end stood in the text.
 *
 * Answers that quote their prompt (edited code, summaries) repeat runs of it (LLMA, arXiv:2304.04487). The tokens
 * that followed then are guesses now: they are fed behind the last token in the same step, each with a row of logits,
 * and rows are sampled in order for as long as the token drawn is the one that was fed. A guess is never taken in a
 * draw's place and rows have the same bits as alone, so answers are those of plain decoding to the last random
 * number.
 *
 * A state cannot be cut back as blocks can: guesses run in an entry of their own, from the slot behind the sure
 * tokens to a second one, which becomes the sequence's if all were right. Otherwise it is dropped, and the right ones
 * are fed again as sure tokens of the next step. */
#include "engine/engine_int.h"

enum { NGRAM_LEAST = 2, NGRAM_MOST = 8, FIRST_LEN = 4, WAIT_MOST = 64 };

/* Guesses behind tok[0, n), written there; how many, k at most. The longest run that ends like the text wins, then
 * the latest. A guess may be a repetition that runs on into itself. */
static int32_t look_up(int32_t *tok, int32_t n, int32_t k)
{
    int32_t best = 0, from = 0;
    for (int32_t at = n - 2; at >= NGRAM_LEAST - 1 && best < NGRAM_MOST; at--) {
        if (tok[at] != tok[n - 1]) continue;
        int32_t len = 1;
        while (len < NGRAM_MOST && len <= at && tok[at - len] == tok[n - 1 - len]) len++;
        if (len <= best) continue;
        best = len;
        from = at + 1;
    }
    if (best < NGRAM_LEAST) return 0;
    for (int32_t i = 0; i < k; i++) tok[n + i] = tok[from + i];
    return k;
}

void spec_draft(struct sy_engine *e, struct seq *s, int32_t n_max)
{
    if (e->opt.draft_max <= 0 || s->last_ns == 0 || s->of->siblings) return;
    if (s->draft_rest > 0) {
        s->draft_rest--;
        return;
    }
    if (s->draft_len == 0) s->draft_len = FIRST_LEN;
    int32_t len = e->plan.block_len, k = s->draft_len < e->opt.draft_max ? s->draft_len : e->opt.draft_max;
    if (k > n_max) k = n_max;
    if (k > s->n_end - s->n_tok - 1) k = s->n_end - s->n_tok - 1;
    if (k <= 0 || (k = look_up(s->tok, s->n_tok, k)) == 0) return;
    int32_t want = (s->n_tok + k + len - 1) / len - s->n_block;
    /* Guesses take no block that a running sequence may want in this step. */
    bool leased = want <= 0 || (want + e->n_running <= sy_cache_available(&e->cache) &&
                                !sy_cache_lease(&e->cache, want, &s->block[s->n_block]));
    if (leased && want > 0) s->n_block += want;
    if (!leased) k = s->n_block * len - s->n_tok;
    s->n_draft = k;
}

/* Twice as many after a full hit, none for a while after a miss, and the longer the more misses follow each other. */
static void adapt(struct seq *s, int32_t hit, int32_t draft_max)
{
    if (hit == 0) {
        s->draft_wait = s->draft_wait ? 2 * s->draft_wait : 2;
        if (s->draft_wait > WAIT_MOST) s->draft_wait = WAIT_MOST;
        s->draft_rest = s->draft_wait;
        s->draft_len = s->draft_len > 1 ? s->draft_len / 2 : 1;
        return;
    }
    s->draft_wait = 0;
    s->draft_len = hit == s->n_draft ? 2 * s->draft_len : hit + 1;
    if (s->draft_len > draft_max) s->draft_len = draft_max;
}

void spec_settle(struct sy_engine *e)
{
    int32_t len = e->plan.block_len;
    for (int32_t i = 0; i < e->n_running; i++) {
        struct seq *s = e->running[i];
        if (s->n_draft == 0) continue;
        int32_t hit = s->fed_end - s->n_sure;
        e->stats.n_draft_tok += (uint64_t)s->n_draft;
        e->stats.n_draft_hit_tok += (uint64_t)hit;
        s->n_done = s->n_sure + hit;
        if (s->draft_slot) {
            int32_t kept = hit == s->n_draft ? s->draft_slot : s->slot;
            sy_cache_slot_return(&e->cache, kept == s->slot ? s->draft_slot : s->slot);
            if (kept == s->slot) s->n_done = s->n_sure;
            s->slot = kept;
            s->draft_slot = 0;
        }
        adapt(s, hit, e->opt.draft_max);
        s->n_draft = 0;
        while (s->n_block > (s->n_tok + len - 1) / len) sy_cache_return(&e->cache, s->block[--s->n_block]);
    }
}
