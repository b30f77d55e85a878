/* step.c - one step: what sched.c decided goes to the backend, and its results to the requests. */
#include <string.h>

#include "engine/engine_int.h"

static bool ends(const struct sy_engine *e, const struct seq *s, int32_t id)
{
    const struct seq_request *q = s->of;
    if (s->n_tok >= s->n_stop) return true;
    if (s->n_tok - q->n_prompt <= q->n_min) return false; /* id itself is counted already */
    for (int32_t i = 0; i < q->n_stop_id; i++)
        if (q->stop_id[i] == id) return true;
    return !q->ignore_eos && sy_engine_is_end(e, id);
}

static void choose(struct sy_engine *e, struct seq *s, const struct sy_result *r, int32_t row,
                   struct sy_sample_out *o)
{
    const struct seq_request *q = s->of;
    *o = (struct sy_sample_out){.id = r->token[row]};
    if (q->plain) return;
    struct sy_sampling how = q->how;
    how.seed += (uint64_t)s->sample;
    struct sy_sample_in in = {.logits = r->logits + row * r->ld,
                              .n_vocab = r->n_vocab,
                              .how = &how,
                              .count_prompt = q->count_prompt,
                              .count_output = s->count_output,
                              .draw = s->n_draw++};
    if (s->n_tok - q->n_prompt < q->n_min) {
        in.barred = e->end_id;
        in.n_barred = e->n_end_id;
    }
    sy_sample_draw(&in, e->scratch, o);
}

/* False when it was its last one: s may be gone. */
static bool take_token(struct sy_engine *e, struct seq *s, const struct sy_result *r, int32_t row, uint64_t now)
{
    struct seq_request *q = s->of;
    struct sy_sample_out o;
    choose(e, s, r, row, &o);
    if (s->n_tok < s->fed_end && s->tok[s->n_tok] != o.id) s->fed_end = s->n_tok;
    s->tok[s->n_tok++] = o.id;
    if (s->count_output && s->count_output[o.id] < UINT16_MAX) s->count_output[o.id]++;
    e->stats.n_gen_tok++;
    if (s->last_ns && now - s->last_ns > e->stats.gap_ns_max) e->stats.gap_ns_max = now - s->last_ns;
    s->last_ns = now;
    enum sy_finish f = ends(e, s, o.id) ? SY_FINISH_STOP : s->n_tok == s->n_end ? SY_FINISH_LENGTH : SY_RUNNING;
    if (q->on_event)
        q->on_event(q->ctx, &(struct sy_event){.request = q->id,
                                               .sample = s->sample,
                                               .n_cached = s->n_cached,
                                               .id = o.id,
                                               .finish = f,
                                               .logprob = o.logprob,
                                               .top = o.top,
                                               .n_top = o.n_top,
                                               .started_ns = q->started_ns});
    if (f == SY_RUNNING) return true;
    sched_end(e, s, f, false);
    return false;
}

/* The siblings' first tokens come from the same row, each by its own draw. */
static void take_siblings(struct sy_engine *e, struct seq *s, const struct sy_result *r, int32_t row, uint64_t now)
{
    struct seq *list[128];
    int32_t n = 0;
    for (struct seq *x = s->of->siblings; x; x = x->next) list[n++] = x;
    if (n == 0) return;
    sched_fork(e, s);
    for (int32_t i = 0; i < n; i++) (void)take_token(e, list[i], r, row, now);
}

static void collect(struct sy_engine *e, const struct sy_result *r, uint64_t now)
{
    sched_learn(e);
    const struct seq *gone = NULL;
    uint64_t n_gen = e->stats.n_gen_tok;
    for (int32_t i = 0; i < r->n; i++) {
        const struct out_row *o = &e->out[i];
        if (o->seq == gone) continue;
        const struct seq_request *q = o->seq->of;
        bool wanted = o->pos >= o->seq->score_from && o->pos < q->n_prompt; /* once, even if it was preempted */
        if (wanted) o->seq->score_from = o->pos + 1;
        if (wanted && q->on_logits) q->on_logits(q->ctx, o->pos, r->logits + o->row * r->ld, r->n_vocab);
        if (wanted && q->on_hidden) q->on_hidden(q->ctx, o->pos, r->hidden + o->row * r->ld_hidden, r->d_model);
        if (!o->sample) continue;
        /* Behind a wrong guess, or its reader has what it needs. */
        if (o->draft && (o->pos >= o->seq->fed_end || o->seq->stopped || q->cancelled)) continue;
        take_siblings(e, o->seq, r, o->row, now);
        if (!take_token(e, o->seq, r, o->row, now)) gone = o->seq;
    }
    spec_settle(e);
    for (int32_t i = 0; i < e->n_running; i++) window_shed(e, e->running[i]);
    if (e->n_prefill == 0) e->stats.decode_tok += e->stats.n_gen_tok - n_gen;
    spec_account(e, e->stats.n_gen_tok - n_gen);
    for (int32_t i = e->n_running - 1; i >= 0; i--) { /* those that only wanted rows of their prompt */
        struct seq *s = e->running[i];
        if (s->n_done == s->n_end) sched_end(e, s, SY_FINISH_LENGTH, true);
    }
}

static double kv_bytes_read(const struct sy_engine *e, int32_t ctx)
{
    double sum = 0, per_key = (double)e->block_bytes / e->plan.block_len;
    for (int32_t i = 0; i < e->n_kv_window; i++) {
        const struct kv_window *w = &e->kv_window[i];
        sum += w->share * per_key * (w->window > 0 && w->window < ctx ? w->window : ctx);
    }
    return sum;
}

static void account(struct sy_engine *e, uint64_t ns)
{
    struct sy_engine_stats *t = &e->stats;
    t->n_step++;
    t->step_ns_last = ns;
    t->last_batch_tok = e->batch.n_tok;
    t->last_batch_seq = e->batch.n_seq;
    t->n_prompt_tok += (uint64_t)e->n_prefill;
    if (e->n_prefill > 0) {
        t->prefill_ns += ns;
        t->prefill_tok += (uint64_t)e->n_prefill;
        return;
    }
    t->decode_ns += ns;
    for (int32_t i = 0; i < e->batch.n_seq; i++)
        t->kv_bytes_read_decode += kv_bytes_read(e, e->batch.field[SY_CTX][i]);
}

/* A step costs what passes until the next one begins: sampling and handing on tokens too. */
static void measure(struct sy_engine *e, uint64_t began)
{
    if (e->opt.gap_ms_max > 0 || e->n_swap_slot) sy_pace_add(&e->pace, &e->load, e->n_prefill > 0, e->now - began);
    e->unmeasured = false;
}

/* What the step's rows are read for: a greedy answer needs the token alone. */
static struct sy_want wanted(const struct sy_engine *e)
{
    struct sy_want w = {.all = e->draft && e->draft->mtp};
    for (int32_t i = 0; i < e->batch.n_out; i++) {
        const struct seq_request *q = e->out[i].seq->of;
        w.logits |= q->on_logits || (e->out[i].sample && !q->plain);
        w.hidden |= q->on_hidden != NULL;
    }
    return w;
}

/* The step in the shape of a bucket. */
static sy_status fit(struct sy_engine *e, struct bucket **out, struct sy_err *err)
{
    struct ladder_step step = {&e->batch, e->home, e->first, e->row};
    for (int32_t i = 0; i < e->batch.n_seq; i++) e->home[i] = e->entry[i].seq->home;
    uint64_t before = e->ladder.compile_ns;
    sy_status st = buckets_fit(e, &e->ladder, &step, out, err);
    e->now += e->ladder.compile_ns - before;
    for (int32_t i = 0; i < e->batch.n_out && !st; i++) e->out[i].row = e->row[i];
    for (int32_t i = 0; i < e->batch.n_seq && !st; i++) /* entries of a sequence follow one another */
        if (i == 0 || e->entry[i - 1].seq != e->entry[i].seq) e->entry[i].seq->draft.fed_row = e->first[i];
    return st;
}

sy_status sy_engine_step_begin(struct sy_engine *e, bool *worked, struct sy_err *err)
{
    uint64_t began = e->now;
    bool last = e->unmeasured;
    *worked = false;
    e->now = sy_now_ns(e->env);
    if (last) measure(e, began);
    sched_drop(e);
    sched_fill(e);
    if (e->batch.n_tok == 0) {
        if (last) trace_idle(e);
        return SY_OK;
    }
    *worked = true;
    if (e->n_copy) e->ops->copy_blocks(e->backend, e->kv, e->copy, e->n_copy);
    if (e->n_copy && e->draft) e->ops->copy_blocks(e->backend, e->draft->kv, e->copy, e->n_copy);
    struct bucket *b = NULL;
    sy_status st = e->ladder.bucket ? fit(e, &b, err) : SY_OK;
    if (st) return st;
    st = e->ops->forward(e->backend, b ? b->program : e->program, e->kv, b ? b->batch : &e->batch);
    return st ? sy_fail(err, st, "the backend refused a step") : SY_OK;
}

sy_status sy_engine_step_end(struct sy_engine *e, struct sy_err *err)
{
    struct sy_result r;
    sy_status st = e->ops->wait(e->backend, wanted(e), &r, err);
    if (st) return st;
    r.n = e->batch.n_out; /* what was padded too is nobody's */
    uint64_t now = sy_now_ns(e->env);
    if (e->ladder.bucket) {
        struct sy_device d;
        e->ops->device(e->backend, &d, false);
        e->stats.n_compile = (uint64_t)(d.n_compiled - e->n_compiled);
    }
    trace_step(e, now);
    account(e, now - e->now);
    spec_step_cost(e, now - e->now);
    collect(e, &r, now);
    e->unmeasured = true;
    return e->draft ? draft_run(e, &r, err) : SY_OK;
}

sy_status sy_engine_step(struct sy_engine *e, bool *worked, struct sy_err *err)
{
    sy_status st = sy_engine_step_begin(e, worked, err);
    return st || !*worked ? st : sy_engine_step_end(e, err);
}

struct sy_engine_stats sy_engine_stats(const struct sy_engine *e)
{
    struct sy_engine_stats s = e->stats;
    s.n_running = e->n_running;
    s.n_waiting = e->n_wait;
    for (int32_t g = 0; g < e->n_group; g++) {
        const struct sy_cache *c = &e->cache[g];
        s.block_free += c->n_free;
        s.block_cached += c->n_cached;
        s.block_leased += c->n_leased;
        s.block_total += c->n_block - 1;
        s.slot_free += c->pool[SY_CACHE_SLOT].n_free;
        s.slot_kept += c->pool[SY_CACHE_SLOT].n_kept;
        s.slot_leased += c->pool[SY_CACHE_SLOT].n_leased;
        s.apart_free += c->pool[SY_CACHE_APART].n_free;
        s.apart_kept += c->pool[SY_CACHE_APART].n_kept;
        s.apart_leased += c->pool[SY_CACHE_APART].n_leased;
    }
    const struct ladder *l = &e->ladder;
    s.n_bucket = l->plan.n;
    for (int32_t i = 0; i < l->plan.n; i++)
        s.bucket[i] = (struct sy_bucket_stats){l->plan.shape[i], l->bucket[i].n_step, l->bucket[i].n_tok};
    return s;
}

void sy_engine_verify(const struct sy_engine *e)
{
    for (int32_t g = 0; g < e->n_group; g++) sy_cache_verify(&e->cache[g]);
    int32_t n_wait = 0, n_swap = 0;
    for (const struct seq *s = e->wait; s; s = s->next) {
        sy_assert(s->state == SEQ_WAITING && s->n_block == 0 && (s->n_swap || s->n_done == 0) && s->slot == 0);
        sy_assert(s->apart_end == 0 && s->n_promised == 0);
        n_wait++;
        n_swap += s->n_swap;
    }
    sy_assert(n_wait == e->n_wait && n_swap + e->n_swap_free == e->n_swap_slot);
    for (int32_t i = 0; i < e->n_running; i++) {
        const struct seq *s = e->running[i];
        sy_assert(s->state == SEQ_RUNNING && s->n_swap == 0 && s->n_done <= s->n_tok && s->n_tok <= s->n_end);
        sy_assert(s->n_done <= s->n_block * e->plan.block_len);
        for (int32_t k = 0; k < s->n_block; k++) sy_assert(cache_of(e, s)->block[s->block[k]].n_ref > 0);
        bool holds = has_slots(e) && s->n_done > 0;
        sy_assert(holds ? cache_of(e, s)->pool[SY_CACHE_SLOT].item[s->slot].n_ref > 0 : s->slot == 0);
        window_verify(e, s);
    }
    for (int32_t g = 0; g < e->n_group && e->n_running == 0; g++)
        sy_assert(e->cache[g].n_leased == 0 && e->cache[g].pool[SY_CACHE_SLOT].n_leased == 0 &&
                  e->cache[g].pool[SY_CACHE_APART].n_leased == 0 && e->cache[g].n_promised == 0);
    if (e->n_running == 0 && e->draft && e->draft->recurrent) sy_assert(e->draft->n_slot_free == e->plan.seq_max);
}
