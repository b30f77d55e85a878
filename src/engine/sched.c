/* sched.c - who computes what in the next step.
 *
 * A step is {sequence: n_tokens} within one budget of tokens, without phases. Running sequences that have one token
 * to compute come first, then those with more (prompts, in chunks), then waiting ones are admitted, by priority and
 * arrival. A chunk is shrunk so that the step, by what steps have cost so far (pace.h), keeps the bound on the gap
 * between two tokens of a running sequence. When blocks run out the youngest running sequence gives its blocks back
 * and waits: its tokens are recomputed later, or its blocks are kept in host memory, whichever is cheaper. The oldest
 * is never the victim of a younger one, and alone it fits (the door checked), so it always gets on. */
#include <stdio.h>
#include <string.h>

#include "engine/engine_int.h"

static bool older(const struct seq *a, const struct seq *b)
{
    if (a->of->priority != b->of->priority) return a->of->priority < b->of->priority;
    if (a->of->id != b->of->id) return a->of->id < b->of->id;
    return a->sample < b->sample;
}

void sched_wait(struct sy_engine *e, struct seq *s)
{
    struct seq **at = &e->wait;
    while (*at && older(*at, s)) at = &(*at)->next;
    s->next = *at;
    *at = s;
    s->state = SEQ_WAITING;
    e->n_wait++;
}

static void unwait(struct sy_engine *e, struct seq *s)
{
    struct seq **at = &e->wait;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    s->next = NULL;
    e->n_wait--;
}

static void start(struct sy_engine *e, struct seq *s)
{
    int32_t i = e->n_running++;
    for (; i > 0 && older(s, e->running[i - 1]); i--) e->running[i] = e->running[i - 1];
    e->running[i] = s;
    s->state = SEQ_RUNNING;
    window_promise(e, s);
}

static void stop_running(struct sy_engine *e, struct seq *s)
{
    int32_t i = 0;
    while (e->running[i] != s) i++;
    memmove(&e->running[i], &e->running[i + 1], (size_t)(e->n_running - i - 1) * sizeof *e->running);
    e->n_running--;
    window_forget(e, s);
}

/* Last block first: of cached blocks the end of a prefix is then taken before its beginning. */
static void give_blocks(struct sy_engine *e, struct seq *s)
{
    while (s->n_block > 0) sy_cache_return(cache_of(e, s), s->block[--s->n_block]);
    s->n_done = s->n_learned = 0;
    window_give(e, s);
    if (s->slot) sy_cache_item_return(cache_of(e, s), SY_CACHE_SLOT, s->slot);
    if (s->draft_slot) sy_cache_item_return(cache_of(e, s), SY_CACHE_SLOT, s->draft_slot);
    s->slot = s->draft_slot = s->tail_block = s->tail_slot = s->n_draft = 0;
    s->slot_owed = false;
    draft_forget(e, s);
}

static void give_swap(struct sy_engine *e, struct seq *s)
{
    while (s->n_swap > 0) e->swap_free[e->n_swap_free++] = s->swap[--s->n_swap];
}

/* ---- ending -------------------------------------------------------------------------------------------------- */

static void close_answer(struct sy_engine *e, struct seq *s, enum sy_finish why, bool tell)
{
    struct seq_request *q = s->of;
    s->state = SEQ_ENDED;
    trace_end(e, s, why, tell);
    if (tell && q->on_event)
        q->on_event(q->ctx, &(struct sy_event){.request = q->id,
                                               .sample = s->sample,
                                               .n_cached = s->n_cached,
                                               .id = -1,
                                               .finish = why,
                                               .started_ns = q->started_ns});
    if (--q->n_open > 0) return;
    struct sy_arena a = q->arena; /* q and s live in it */
    sy_arena_release(&a);
}

void sched_end(struct sy_engine *e, struct seq *s, enum sy_finish why, bool tell)
{
    if (s->state == SEQ_RUNNING) stop_running(e, s);
    else unwait(e, s);
    give_blocks(e, s);
    give_swap(e, s);
    struct seq *sibling = s->of->siblings;
    s->of->siblings = NULL; /* they wait for this one's prompt, and end with it */
    for (struct seq *next; sibling; sibling = next) {
        next = sibling->next;
        close_answer(e, sibling, why, true);
    }
    close_answer(e, s, why, tell);
}

static void drop(struct sy_engine *e, struct seq *s)
{
    const struct seq_request *q = s->of;
    if (q->cancelled) sched_end(e, s, SY_FINISH_CANCELLED, true);
    else if (q->deadline_ns && e->now >= q->deadline_ns) sched_end(e, s, SY_FINISH_DEADLINE, true);
    else if (s->stopped && !q->siblings) sched_end(e, s, SY_FINISH_STOP, true); /* not before they have its prompt */
}

void sched_drop(struct sy_engine *e)
{
    for (int32_t i = e->n_running - 1; i >= 0; i--) drop(e, e->running[i]);
    for (struct seq *s = e->wait, *next; s; s = next) {
        next = s->next;
        drop(e, s);
    }
}

/* ---- preemption ---------------------------------------------------------------------------------------------- */

/* Keys that n tokens after position p0 attend to, all together; a window's layers count by their share. */
static double keys_seen(const struct sy_engine *e, int32_t p0, int32_t n)
{
    double all = (double)n * p0 + 0.5 * n * (n + 1.0), sum = e->n_kv_window ? 0 : all;
    for (int32_t i = 0; i < e->n_kv_window; i++) {
        int32_t w = e->kv_window[i].window, below = w - p0 < n ? w - p0 : n; /* tokens that see all before them */
        if (below < 0) below = 0;
        double some = (double)below * p0 + 0.5 * below * (below + 1.0) + (double)(n - below) * w;
        sum += e->kv_window[i].share * (w > 0 ? some : all);
    }
    return sum;
}

static bool swap_is_cheaper(const struct sy_engine *e, const struct seq *s)
{
    if (s->n_block > e->n_swap_free) return false;
    /* Out and in again, at what one core copies at least. */
    double swap_ns = 2 * (double)s->n_block * (double)e->block_bytes / 4.0;
    struct sy_pace_load again = {{[SY_PACE_TOK] = s->n_done, [SY_PACE_PAIR] = keys_seen(e, 0, s->n_done)}};
    return swap_ns < sy_pace_predict(&e->pace, &again);
}

static struct sy_spot nth_place(const struct sy_engine *e, const struct seq *s, int32_t i)
{
    return place_of(e, s, s->block[i], s->apart ? s->apart[i] : 0);
}

static void preempt(struct sy_engine *e, struct seq *s)
{
    if (swap_is_cheaper(e, s)) {
        for (s->n_swap = 0; s->n_swap < s->n_block; s->n_swap++) {
            int32_t slot = e->swap_free[--e->n_swap_free];
            s->swap[s->n_swap] = slot;
            e->ops->save_block(e->backend, e->kv, nth_place(e, s, s->n_swap), e->swap_mem + slot * e->block_bytes);
        }
        int32_t n_done = s->n_done;
        give_blocks(e, s);
        s->n_done = n_done;
        e->stats.n_preempt_swap++;
    } else {
        give_blocks(e, s);
        e->stats.n_preempt_recompute++;
    }
    stop_running(e, s);
    sched_wait(e, s);
}

/* The youngest of those whose blocks are where s has its own. */
static struct seq *youngest(const struct sy_engine *e, const struct seq *s)
{
    int32_t i = e->n_running - 1;
    while (e->running[i]->home != s->home) i--;
    return e->running[i];
}

/* Makes room for position n - 1 of s; false: s itself had to give way. */
static bool grow(struct sy_engine *e, struct seq *s, int32_t n)
{
    int32_t want = blocks_of(n, e->plan.block_len);
    while (want > s->n_block) {
        if (!sy_cache_lease(cache_of(e, s), want - s->n_block, &s->block[s->n_block])) {
            s->n_block = want;
            break;
        }
        struct seq *victim = youngest(e, s);
        preempt(e, victim);
        if (victim == s) return false;
    }
    return true;
}

/* A block that s is about to write and others hold too becomes its own; false: s had to give way. */
static bool own_block(struct sy_engine *e, struct seq *s, int32_t i)
{
    if (i >= s->n_block || !sy_cache_is_shared(cache_of(e, s), s->block[i])) return true;
    int32_t fresh;
    while (sy_cache_lease(cache_of(e, s), 1, &fresh)) {
        struct seq *victim = youngest(e, s);
        preempt(e, victim);
        if (victim == s) return false;
        if (!sy_cache_is_shared(cache_of(e, s), s->block[i])) return true;
    }
    struct sy_copy *copy = &e->copy[e->n_copy++];
    copy->from = nth_place(e, s, i);
    /* The source stays leased by its other holders, and is not written before the copies are made. */
    sy_cache_return(cache_of(e, s), s->block[i]);
    s->block[i] = fresh;
    window_own(e, s, i);
    copy->to = nth_place(e, s, i);
    return true;
}

/* ---- what a prefix is known by -------------------------------------------------------------------------------- */

/* A block of s became known. The state behind it is kept where the step was cut for that; of an answer that grows
 * only the last one, which is where the conversation will go on. */
static void keep(struct sy_engine *e, struct seq *s, int32_t known, int32_t pos)
{
    for (int32_t i = 0; i < e->batch.n_seq; i++) {
        const struct entry *x = &e->entry[i];
        if (x->seq != s || x->end != pos || x->keep == KEEP_NOT) continue;
        if (!sy_cache_keep(cache_of(e, s), SY_CACHE_SLOT, known, x->slot, x->keep == KEEP_GUESS)) return;
        if (x->keep != KEEP_TAIL) return;
        sy_cache_unkeep(cache_of(e, s), s->tail_block, s->tail_slot);
        s->tail_block = known;
        s->tail_slot = x->slot;
        return;
    }
}

/* Full blocks of s are offered to the prefix cache. */
static void learn(struct sy_engine *e, struct seq *s)
{
    int32_t len = e->plan.block_len;
    int32_t n_right = s->n_done - s->n_draft; /* guesses are not known to be right yet */
    if (s->n_learned == 0 && n_right >= len) s->key = sy_cache_root(seq_domain(e, s));
    for (; (s->n_learned + 1) * len <= n_right; s->n_learned++) {
        int32_t known = sy_cache_learn(cache_of(e, s), s->block[s->n_learned], &s->key, s->tok + s->n_learned * len);
        if (known) window_keep(e, s, s->n_learned, known);
        if (known && has_slots(e)) keep(e, s, known, (s->n_learned + 1) * len);
    }
}

void sched_learn(struct sy_engine *e)
{
    for (int32_t i = 0; i < e->n_running; i++) {
        learn(e, e->running[i]);
        e->running[i]->slot_owed = false;
    }
    for (; e->n_slot_drop > 0; e->n_slot_drop--) {
        const struct slot_drop *d = &e->slot_drop[e->n_slot_drop - 1];
        sy_cache_item_return(&e->cache[d->home], SY_CACHE_SLOT, d->slot);
    }
}

/* Where snapshots of a prompt are worth a cut: where another sequence went another way, since more may follow it; and
 * at the end, which the next turn of the conversation shares. */
static void plan_snapshots(struct seq *s, int32_t fork, int32_t end)
{
    int32_t n = 0;
    s->cut[0] = s->cut[1] = 0;
    if (fork > s->n_done && fork < end) s->cut[n++] = fork;
    if (end > s->n_done) s->cut[n] = end;
}

/* ---- admission ----------------------------------------------------------------------------------------------- */

static bool restore(struct sy_engine *e, struct seq *s)
{
    int32_t n = s->n_swap;
    int32_t want = blocks_of(s->n_tok, e->plan.block_len);
    if (sy_cache_lease(cache_of(e, s), want, s->block)) return false;
    s->n_block = want;
    window_restore(e, s);
    for (int32_t i = 0; i < n; i++)
        e->ops->restore_block(e->backend, e->kv, nth_place(e, s, i), e->swap_mem + s->swap[i] * e->block_bytes);
    give_swap(e, s);
    /* Its blocks are offered to the prefix cache again as if they had just been computed. */
    s->n_learned = 0;
    learn(e, s);
    return true;
}

/* Takes what the prefix cache knows of s; at least one token is left to compute, and every row that is wanted. */
static void adopt(struct sy_engine *e, struct seq *s)
{
    int32_t limit = s->n_tok - 1;
    if (s->score_from < limit) limit = s->score_from;
    if (s->of->no_cache_read) limit = 0;
    int32_t len = e->plan.block_len;
    struct sy_prefix p = sy_cache_match(cache_of(e, s), seq_domain(e, s), s->tok, limit / len, s->block, s->apart);
    s->apart_first = p.first;
    s->apart_end = s->apart ? p.n_block : 0;
    s->n_block = s->n_learned = p.n_block;
    s->n_done = s->kept = p.n_block * len;
    s->key = p.key;
    s->slot = p.slot;
    draft_adopt(e, s);
    plan_snapshots(s, p.n_known * len, (s->n_tok - 1) / len * len);
}

/* Why not more of a prompt came from the prefix cache, for whoever wonders. */
static void explain_cached(const struct sy_engine *e, const struct seq *s)
{
    int32_t len = e->plan.block_len, whole = (s->n_tok - 1) / len;
    char why[96];
    if (!e->env->log || e->env->log->level < SY_LOG_DEBUG) return;
    if (s->n_done == whole * len) snprintf(why, sizeof why, "all there is in whole blocks of %d", len);
    else if (!cache_of(e, s)->enabled) snprintf(why, sizeof why, "the prefix cache is off");
    else if (s->of->no_cache_read) snprintf(why, sizeof why, "the request reads no cache");
    else if (s->score_from < s->n_done + len) snprintf(why, sizeof why, "rows of the prompt are asked for");
    else {
        int32_t same = sy_cache_common(cache_of(e, s), s->key, s->tok + s->n_done);
        if (same == len) snprintf(why, sizeof why, "more is known, but no recurrent state behind it was kept");
        else if (same >= 0) snprintf(why, sizeof why, "token %d is another than in what is cached", s->n_done + same);
        else
            snprintf(why, sizeof why,
                     "nothing that follows is cached for this key and salt: new, or dropped for others");
    }
    sy_log_at(e->env, SY_LOG_DEBUG, "request %llu: %d of %d prompt tokens cached: %s", (unsigned long long)s->of->id,
              s->n_done, s->n_tok, why);
}

/* A group runs its share of the sequences at most: so many have blocks, slots and entries of a step. */
static bool is_full(const struct sy_engine *e, int32_t group)
{
    int32_t n = 0;
    for (int32_t i = 0; i < e->n_running && e->n_group > 1; i++) n += e->running[i]->home == group;
    return n >= e->plan.seq_group && e->n_group > 1;
}

/* Tokens that a group has still to compute, and one for each sequence that it runs. */
static int64_t group_load(const struct sy_engine *e, int32_t group)
{
    int64_t n = 0;
    for (int32_t i = 0; i < e->n_running; i++)
        if (e->running[i]->home == group) n += e->running[i]->n_tok - e->running[i]->n_done + 1;
    return n;
}

/* The group of ranks that computes s: where the least is left to compute, what it has of the prompt counted; one with
 * room, if any has it. */
static int32_t home_for(struct sy_engine *e, struct seq *s)
{
    int32_t best = -1, len = e->plan.block_len, want = blocks_of(s->n_tok, len);
    int64_t least = 0;
    for (int32_t g = 0; g < e->n_group; g++) {
        s->home = g;
        adopt(e, s);
        int64_t load = group_load(e, g) - s->n_done;
        if (want - s->n_block > sy_cache_available(&e->cache[g]) || !window_fits(e, s)) load += INT32_MAX;
        if (is_full(e, g)) load += 2 * (int64_t)INT32_MAX;
        give_blocks(e, s);
        if (best >= 0 && load >= least) continue;
        best = g;
        least = load;
    }
    return best;
}

static bool admit_one(struct sy_engine *e, struct seq *s)
{
    int32_t len = e->plan.block_len, spare = 0; /* a block for each running sequence that will want one */
    if (e->n_group > 1 && !s->n_swap) s->home = home_for(e, s);
    for (int32_t i = 0; i < e->n_running; i++)
        spare += e->running[i]->home == s->home && (int64_t)e->running[i]->n_block * len < e->running[i]->n_end;
    int32_t want = blocks_of(s->n_tok, len);
    if (is_full(e, s->home) || !window_fits(e, s)) return false;
    if (s->n_swap) {
        if (want + spare > sy_cache_available(cache_of(e, s)) || !restore(e, s)) return false;
    } else {
        bool first = s->n_tok == s->of->n_prompt && s->last_ns == 0;
        adopt(e, s);
        int32_t rest = want - s->n_block;
        if (rest + spare > sy_cache_available(cache_of(e, s)) ||
            sy_cache_lease(cache_of(e, s), rest, &s->block[s->n_block])) {
            give_blocks(e, s);
            return false;
        }
        s->n_block = want;
        if (first && s->of->n_given > s->n_done) s->n_done = s->of->n_given;
        if (first) {
            s->n_cached = s->n_done;
            e->stats.n_cache_query_tok += (uint64_t)s->n_tok;
            e->stats.n_cache_hit_tok += (uint64_t)s->n_done;
            explain_cached(e, s);
        }
    }
    unwait(e, s);
    start(e, s);
    return true;
}

/* ---- the step ------------------------------------------------------------------------------------------------ */

static bool wants_row(const struct seq *s, int32_t pos)
{
    bool sample = pos + 1 >= s->n_tok && pos + 1 < s->n_end;
    return sample || (pos >= s->score_from && pos < s->of->n_prompt);
}

/* An answer that goes on, by one token or by some that were guessed before. */
static bool is_decode(const struct sy_engine *e, const struct seq *s, int32_t n)
{
    return s->last_ns > 0 && n <= 1 + e->opt.draft_max;
}

static void add_load(const struct sy_engine *e, const struct seq *s, int32_t n, int32_t rows, struct sy_pace_load *l)
{
    bool decode = is_decode(e, s, n);
    l->x[SY_PACE_FIXED] = 1;
    l->x[SY_PACE_TOK] += n;
    l->x[SY_PACE_ROW] += rows;
    l->x[decode ? SY_PACE_KEY : SY_PACE_PAIR] += keys_seen(e, s->n_done, n);
}

/* The slot that s writes in its next entry; the one it reads is left in *from. A state that others go on from, or
 * that is a snapshot, is not written over: the slot changes instead. */
static int32_t slot_to_write(struct sy_engine *e, struct seq *s, int32_t *from)
{
    *from = s->slot;
    if (!has_slots(e) || (s->slot && !s->slot_owed && sy_cache_slot_is_own(cache_of(e, s), s->slot))) return s->slot;
    if (s->slot)
        e->slot_drop[e->n_slot_drop++] =
            (struct slot_drop){s->home, s->slot}; /* read by the step: given back when it ran */
    s->slot = sy_cache_item_lease(cache_of(e, s), SY_CACHE_SLOT);
    sy_assert(s->slot); /* two for each running sequence are there */
    s->slot_owed = false;
    return s->slot;
}

/* A snapshot behind `end` is worth a slot: it was planned, or the answer grew by a block, or a long prompt stops here
 * anyway and has none yet in the last third of what lies between: guesses lie the denser the nearer to its end. */
static enum keep worth_keeping(const struct sy_engine *e, const struct seq *s, int32_t end)
{
    if (!has_slots(e) || !cache_of(e, s)->enabled || end % e->plan.block_len) return KEEP_NOT;
    if (end == s->cut[0] || end == s->cut[1]) return KEEP_CUT;
    if (s->last_ns) return KEEP_TAIL;
    int32_t last = s->cut[1] ? s->cut[1] : s->cut[0];
    return end < last && 2 * (end - s->kept) >= last - end ? KEEP_GUESS : KEEP_NOT;
}

/* Entries of the step beyond those set aside for sequences of the same group that are still to come. */
static int32_t entries_left(const struct sy_engine *e, const struct seq *s, int32_t *to_come)
{
    const struct group_put *g = &e->group_put[s->home];
    *to_come = e->plan.seq_group - g->n_put;
    return sy_engine_group_seqs(&e->plan) - g->n_entry - *to_come;
}

/* Tokens up to the next place where s must be cut, n at most. A cut takes a slot and an entry beyond those that are
 * set aside for the sequences to come. */
static int32_t until_cut(const struct sy_engine *e, const struct seq *s, int32_t n)
{
    int32_t to_come, entries = entries_left(e, s, &to_come);
    if (sy_cache_items_available(cache_of(e, s), SY_CACHE_SLOT) < 2 * to_come + 2 || entries < 2) return n;
    for (int i = 0; i < 2 && has_slots(e); i++)
        if (s->cut[i] > s->n_done && s->cut[i] < s->n_done + n) return s->cut[i] - s->n_done;
    int32_t len = e->plan.block_len, end = (s->n_done / len + 1) * len; /* the tail of an answer that grew by more */
    return has_slots(e) && cache_of(e, s)->enabled && is_decode(e, s, n) && end < s->n_done + n ? end - s->n_done : n;
}

/* n tokens of s, from slot rd to slot wr. */
static void put_tokens(struct sy_engine *e, struct seq *s, int32_t n, int32_t rd, int32_t wr, enum keep keep)
{
    struct sy_batch *b = &e->batch;
    b->field[SY_SLOT_RD][b->n_seq] = rd;
    b->field[SY_SLOT_WR][b->n_seq] = wr;
    e->entry[b->n_seq] = (struct entry){s, s->n_done + n, wr, keep};
    e->group_put[s->home].n_entry++;
    int32_t len = e->plan.block_len, *table = b->field[SY_BLOCK_TABLE] + (int64_t)b->n_seq * b->shape.block;
    int32_t n_out = b->n_out;
    memcpy(table, s->block, (size_t)s->n_block * sizeof *table);
    int32_t *rows_apart = s->apart ? b->field[SY_ROW_APART] : NULL;
    if (rows_apart)
        memcpy(b->field[SY_TABLE_APART] + (int64_t)b->n_seq * b->shape.block, s->apart,
               (size_t)s->apart_end * sizeof *table);
    for (int32_t i = 0; i < n; i++) {
        int32_t pos = s->n_done + i, at = b->n_tok + i;
        b->field[SY_TOK][at] = s->tok[pos];
        b->field[SY_POS][at] = pos;
        b->field[SY_SPAN][at] = pos < s->of->n_prompt ? s->of->n_prompt : pos + 1;
        b->field[SY_ROW][at] = s->block[pos / len] * len + pos % len;
        if (rows_apart) rows_apart[at] = s->apart[pos / len] * len + pos % len;
        if (!wants_row(s, pos)) continue;
        e->out[b->n_out] =
            (struct out_row){s, pos, pos + 1 >= s->n_tok && pos + 1 < s->n_end, pos >= s->n_tok, b->n_out};
        b->field[SY_OUT][b->n_out++] = at;
    }
    add_load(e, s, n, b->n_out - n_out, &e->load);
    b->field[SY_START][b->n_seq] = b->n_tok;
    b->field[SY_CTX][b->n_seq] = s->n_done + n;
    b->field[SY_START][++b->n_seq] = b->n_tok += n;
    s->n_done += n;
}

/* n sure tokens. */
static void put_sure(struct sy_engine *e, struct seq *s, int32_t n)
{
    int32_t from, to = slot_to_write(e, s, &from);
    enum keep keep = worth_keeping(e, s, s->n_done + n);
    if (keep != KEEP_NOT) {
        s->slot_owed = true;
        s->kept = s->n_done + n;
    }
    put_tokens(e, s, n, from, to, keep);
}

/* The guesses, where a slot and an entry are left for them. */
static void put_drafts(struct sy_engine *e, struct seq *s)
{
    int32_t to_come, entries = entries_left(e, s, &to_come);
    bool room = sy_cache_items_available(cache_of(e, s), SY_CACHE_SLOT) >= 2 * to_come + 1 && entries >= 1;
    s->draft_slot = room ? sy_cache_item_lease(cache_of(e, s), SY_CACHE_SLOT) : 0;
    if (s->draft_slot) put_tokens(e, s, s->n_draft, s->slot, s->draft_slot, KEEP_NOT);
    else s->n_draft = 0;
}

/* Adds n tokens of s to the step, its guesses, and the rows of logits they owe. */
static void put(struct sy_engine *e, struct seq *s, int32_t n)
{
    if (!is_decode(e, s, n)) e->n_prefill += n; /* recomputed answers count as prompts */
    if (!s->of->started_ns) s->of->started_ns = e->now;
    e->group_put[s->home].n_put++;
    s->draft.fed_row = e->batch.n_tok;
    s->draft.fed_pos = s->n_done;
    window_grow(e, s, s->n_done + n + s->n_draft);
    if (!has_slots(e)) n += s->n_draft;
    for (int32_t part; n > 0; n -= part) {
        part = until_cut(e, s, n);
        put_sure(e, s, part);
    }
    if (has_slots(e) && s->n_draft) put_drafts(e, s);
    s->n_sure = s->n_tok;
    s->fed_end = s->n_tok + s->n_draft;
    s->draft.fed_n = e->batch.n_tok - s->draft.fed_row;
}

enum { CHUNK_LEAST = 16 };

/* Of n tokens of s, those that the step may hold beside running sequences so that it ends within the bound on the
 * gap. Prompts get on by CHUNK_LEAST tokens a step, whatever the bound. */
static int32_t within_gap(const struct sy_engine *e, const struct seq *s, int32_t n)
{
    /* The less has been seen, the more is kept in hand. */
    double bound = 1e6 * e->opt.gap_ms_max * (e->pace.kind[1].n < SY_PACE_STEPS / 2 ? 0.7 : 0.8);
    if (bound <= 0 || !e->has_decode) return n;
    int32_t least = CHUNK_LEAST - e->n_prefill, lo = 0, hi = n;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo + 1) / 2;
        struct sy_pace_load l = e->load;
        add_load(e, s, mid, 1, &l);
        if (sy_pace_knows(&e->pace, &l) && sy_pace_predict(&e->pace, &l) <= bound) lo = mid;
        else hi = mid - 1;
    }
    if (lo < least) lo = least;
    return lo < n ? lo : n;
}

/* Tokens of s that fit: the step's, its rows of logits, and the bound on the gap. */
static int32_t room_for(const struct sy_engine *e, const struct seq *s)
{
    const struct sy_batch *b = &e->batch;
    int32_t n = s->n_tok - s->n_done, left = b->shape.tok - b->n_tok;
    if (n > left) n = left;
    int32_t rows = b->shape.out - b->n_out;
    int32_t quiet = s->score_from > s->n_done ? s->score_from - s->n_done : 0;
    if (s->score_from >= s->of->n_prompt) n = rows > 0 ? n : 0;
    else if (n > quiet + rows) n = quiet + rows;
    return within_gap(e, s, n);
}

/* The same; a chunk that does not reach the end of the tokens ends with a block where it can, for snapshots. */
static int32_t chunk_for(const struct sy_engine *e, const struct seq *s)
{
    int32_t n = room_for(e, s), end = (s->n_done + n) / e->plan.block_len * e->plan.block_len;
    return has_slots(e) && s->n_done + n < s->n_tok && end > s->n_done ? end - s->n_done : n;
}

static void fill_decodes(struct sy_engine *e)
{
    for (int32_t i = 0; i < e->n_running;) {
        struct seq *s = e->running[i];
        int32_t n = s->n_tok - s->n_done;
        if (n != 1 && !is_decode(e, s, n)) {
            i++;
            continue;
        }
        if (!grow(e, s, s->n_tok) || !own_block(e, s, s->n_done / e->plan.block_len)) continue; /* s left the list */
        int32_t after = e->n_running - i - 1, left = e->batch.shape.tok - e->batch.n_tok - after;
        int32_t rows = e->batch.shape.out - e->batch.n_out - after; /* one of each for every sequence to come */
        if (n > left) n = left;
        else spec_draft(e, s, left - n < rows - 1 ? left - n : rows - 1);
        put(e, s, n);
        e->has_decode |= s->last_ns > 0;
        i++;
    }
}

/* A static batch is whoever waited when it began; it may take several steps to get through the door. */
static bool may_join(const struct sy_engine *e)
{
    if (!e->wait || e->n_running >= e->plan.seq_max) return false;
    return e->opt.scheduling == SY_CONTINUOUS || e->n_batch_left > 0;
}

void sched_fill(struct sy_engine *e)
{
    struct sy_batch *b = &e->batch;
    b->n_tok = b->n_seq = b->n_out = e->n_prefill = e->n_copy = 0;
    memset(e->group_put, 0, (size_t)e->n_group * sizeof *e->group_put);
    e->has_decode = false;
    e->load = (struct sy_pace_load){0};
    for (int32_t i = 0; i < e->n_running; i++) e->running[i]->draft.fed_n = 0;
    uint64_t preempted = e->stats.n_preempt_recompute + e->stats.n_preempt_swap;
    if (e->n_running == 0) e->n_batch_left = e->n_wait < e->plan.seq_max ? e->n_wait : e->plan.seq_max;
    fill_decodes(e);
    for (int32_t i = 0; i < e->n_running; i++) {
        struct seq *s = e->running[i];
        int32_t n = s->n_tok - s->n_done;
        n = n > 1 && !is_decode(e, s, n) ? chunk_for(e, s) : 0;
        if (n > 0) put(e, s, n);
    }
    if (e->stats.n_preempt_recompute + e->stats.n_preempt_swap != preempted) return; /* no room for anybody new */
    while (may_join(e) && b->n_tok < b->shape.tok && b->n_out < b->shape.out && within_gap(e, e->wait, 1) > 0) {
        struct seq *s = e->wait;
        if (!admit_one(e, s)) return;
        e->n_batch_left--;
        int32_t n = chunk_for(e, s);
        if (n > 0) put(e, s, n);
    }
}

void sched_fork(struct sy_engine *e, struct seq *s)
{
    struct seq *sibling = s->of->siblings;
    s->of->siblings = NULL;
    for (struct seq *next; sibling; sibling = next) {
        next = sibling->next;
        sibling->next = NULL;
        sibling->n_cached = s->n_cached;
        sibling->home = s->home;
        sibling->last_ns = s->last_ns;
        if (e->n_running == e->plan.seq_max || is_full(e, s->home) || !window_fits(e, sibling)) {
            sched_wait(e, sibling);
            continue;
        }
        for (int32_t i = 0; i < s->n_block; i++) {
            sibling->block[i] = s->block[i];
            sy_cache_share(cache_of(e, s), s->block[i]);
        }
        sibling->n_block = s->n_block;
        sibling->n_done = s->n_done;
        sibling->n_learned = s->n_learned;
        sibling->key = s->key;
        sibling->slot = s->slot;
        sibling->kept = s->kept;
        draft_fork(e, s, sibling);
        if (s->slot) sy_cache_item_share(cache_of(e, s), SY_CACHE_SLOT, s->slot);
        window_share(e, s, sibling);
        start(e, sibling);
    }
}
