/* step.c - requests in, steps, tokens out. */
#include <string.h>

#include "engine/engine_int.h"

/* ---- submitting ------------------------------------------------------------------------------------------------ */

static sy_status check_request(const struct sy_engine *e, const struct sy_request *r, struct sy_err *err)
{
    int32_t ctx = e->plan.ctx_len, n_vocab = e->model.info.n_vocab;
    if (r->n_prompt < 1) return sy_fail(err, SY_EARG, "prompt: expected at least one token, found none");
    if (r->n_max < 0 || (r->n_max == 0 && !r->on_logits))
        return sy_fail(err, SY_EARG, "max_tokens: expected at least 1, found %d", r->n_max);
    if (r->n_prompt > ctx || (r->n_prompt == ctx && r->n_max > 0))
        return sy_fail(err, SY_EARG, "prompt: %d tokens do not fit the context of %d tokens%s", r->n_prompt, ctx,
                       r->n_prompt == ctx ? " with room for an answer" : "");
    for (int32_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= n_vocab)
            return sy_fail(err, SY_EARG, "prompt: token %d at position %d is outside the vocabulary of %d", r->prompt[i], i, n_vocab);
    for (int32_t i = 0; i < r->n_stop_id; i++)
        if (r->stop_id[i] < 0 || r->stop_id[i] >= n_vocab)
            return sy_fail(err, SY_EARG, "stop_token_ids: %d is outside the vocabulary of %d", r->stop_id[i], n_vocab);
    return sy_sampling_check(&r->sampling, n_vocab, err);
}

static bool penalised(const struct sy_sampling *s)
{
    return (s->repeat_penalty > 0 && s->repeat_penalty != 1) || s->presence_penalty != 0 || s->frequency_penalty != 0;
}

static void count(uint16_t *n, int32_t id)
{
    if (n && n[id] < UINT16_MAX) n[id]++;
}

static void *copied(struct sy_arena *a, const void *from, int32_t n, size_t size)
{
    void *to = sy_arena_array(a, (size_t)n + 1, size);
    if (to && n) memcpy(to, from, (size_t)n * size);
    return to;
}

static struct seq *new_seq(struct sy_engine *e, const struct sy_request *r)
{
    struct sy_arena a;
    sy_arena_init(&a, e->env, 0);
    struct seq *s = sy_arena_get(&a, sizeof *s);
    if (!s) return NULL;
    int32_t ctx = e->plan.ctx_len;
    int32_t n_end = r->n_max > ctx - r->n_prompt ? ctx : r->n_prompt + r->n_max;
    *s = (struct seq){.n_prompt = r->n_prompt,
                      .n_tok = r->n_prompt,
                      .n_end = n_end,
                      .n_block = (n_end + e->plan.block_len - 1) / e->plan.block_len,
                      .n_min = r->n_min,
                      .logits_from = r->logits_from,
                      .n_stop_id = r->n_stop_id,
                      .ignore_eos = r->ignore_eos,
                      .how = r->sampling,
                      .on_event = r->on_event,
                      .on_logits = r->on_logits,
                      .ctx = r->ctx};
    s->plain = r->sampling.temperature <= 0 && r->sampling.n_logprob < 0 && r->sampling.n_bias == 0 &&
               !penalised(&r->sampling) && r->n_min <= 0;
    s->tok = sy_arena_array(&a, (size_t)n_end, sizeof *s->tok);
    s->block = sy_arena_array(&a, (size_t)s->n_block, sizeof *s->block);
    s->stop_id = copied(&a, r->stop_id, r->n_stop_id, sizeof *s->stop_id);
    s->how.bias = copied(&a, r->sampling.bias, r->sampling.n_bias, sizeof *s->how.bias);
    bool ok = s->tok && s->block && s->stop_id && s->how.bias;
    if (ok && penalised(&s->how)) {
        s->count_prompt = sy_arena_array(&a, (size_t)e->model.info.n_vocab, sizeof *s->count_prompt);
        s->count_output = sy_arena_array(&a, (size_t)e->model.info.n_vocab, sizeof *s->count_output);
        ok = s->count_prompt && s->count_output;
    }
    if (!ok) {
        sy_arena_release(&a);
        return NULL;
    }
    memcpy(s->tok, r->prompt, (size_t)r->n_prompt * sizeof *s->tok);
    for (int32_t i = 0; i < r->n_prompt; i++) count(s->count_prompt, r->prompt[i]);
    s->arena = a;
    return s;
}

sy_status sy_engine_submit(struct sy_engine *e, const struct sy_request *r, uint64_t *id, struct sy_err *err)
{
    sy_status st = check_request(e, r, err);
    if (st) return st;
    if (e->n_wait == e->wait_max) return sy_fail(err, SY_FULL, "%d requests are waiting already", e->n_wait);
    struct seq *s = new_seq(e, r);
    if (!s) return sy_fail(err, SY_ENOMEM, "no memory for a request of %d tokens", r->n_prompt);
    s->id = e->next_id++;
    if (e->wait_last) e->wait_last->next = s;
    else e->wait_first = s;
    e->wait_last = s;
    e->n_wait++;
    if (id) *id = s->id;
    return SY_OK;
}

void sy_engine_cancel(struct sy_engine *e, uint64_t id)
{
    for (struct seq *s = e->wait_first; s; s = s->next)
        if (s->id == id) s->cancelled = true;
    for (int32_t i = 0; i < e->n_running; i++)
        if (e->running[i]->id == id) e->running[i]->cancelled = true;
}

/* ---- ending --------------------------------------------------------------------------------------------------------- */

static void emit(struct seq *s, const struct sy_event *ev)
{
    if (s->on_event) s->on_event(s->ctx, ev);
}

void engine_seq_free(struct seq *s)
{
    struct sy_arena a = s->arena; /* s lives in it */
    sy_arena_release(&a);
}

static void end_seq(struct seq *s, enum sy_finish why)
{
    emit(s, &(struct sy_event){.request = s->id, .id = -1, .finish = why});
    engine_seq_free(s);
}

static void drop_running(struct sy_engine *e, int32_t i)
{
    sy_blocks_return(&e->blocks, e->running[i]->block, e->running[i]->n_block);
    memmove(&e->running[i], &e->running[i + 1], (size_t)(e->n_running - i - 1) * sizeof *e->running);
    e->n_running--;
}

static void drop_cancelled(struct sy_engine *e)
{
    for (int32_t i = e->n_running - 1; i >= 0; i--) {
        struct seq *s = e->running[i];
        if (!s->cancelled) continue;
        drop_running(e, i);
        end_seq(s, SY_FINISH_CANCELLED);
    }
    struct seq *last = NULL;
    for (struct seq *s = e->wait_first, *next; s; s = next) {
        next = s->next;
        if (!s->cancelled) {
            last = s;
            continue;
        }
        if (last) last->next = next;
        else e->wait_first = next;
        e->n_wait--;
        end_seq(s, SY_FINISH_CANCELLED);
    }
    e->wait_last = last;
}

/* ---- a step ------------------------------------------------------------------------------------------------------------ */

/* First come, first served: the first waiting request is admitted when a place and all its blocks are free. */
static void admit(struct sy_engine *e)
{
    while (e->wait_first && e->n_running < e->plan.seq_max) {
        struct seq *s = e->wait_first;
        if (sy_blocks_lease(&e->blocks, s->n_block, s->block)) return;
        e->wait_first = s->next;
        if (!e->wait_first) e->wait_last = NULL;
        e->n_wait--;
        s->next = NULL;
        e->running[e->n_running++] = s;
    }
}

/* Adds n tokens of s to the step, and the rows of logits they owe. */
static void put_seq(struct sy_engine *e, struct seq *s, int32_t n)
{
    struct sy_batch *b = &e->batch;
    int32_t block_len = e->plan.block_len, *table = b->field[SY_BLOCK_TABLE] + (int64_t)b->n_seq * b->shape.block;
    memcpy(table, s->block, (size_t)s->n_block * sizeof *table);
    for (int32_t i = 0; i < n; i++) {
        int32_t pos = s->n_done + i, at = b->n_tok + i;
        b->field[SY_TOK][at] = s->tok[pos];
        b->field[SY_POS][at] = pos;
        b->field[SY_ROW][at] = s->block[pos / block_len] * block_len + pos % block_len;
        bool sample = pos + 1 == s->n_tok && s->n_tok < s->n_end;
        bool logits = s->on_logits && pos >= s->logits_from && pos < s->n_prompt;
        if (!sample && !logits) continue;
        e->out[b->n_out] = (struct out_row){s, pos, sample};
        b->field[SY_OUT][b->n_out++] = at;
    }
    b->field[SY_START][b->n_seq] = b->n_tok;
    b->field[SY_CTX][b->n_seq] = s->n_done + n;
    int32_t prompt = s->n_prompt - s->n_done;
    e->n_prefill += prompt < 0 ? 0 : prompt < n ? prompt : n;
    b->n_tok += n;
    b->n_seq++;
    b->field[SY_START][b->n_seq] = b->n_tok;
    s->n_done += n;
}

/* Most tokens of s that fit the step: the token budget, and the rows of logits. */
static int32_t room_for(const struct sy_engine *e, const struct seq *s, int32_t reserve)
{
    const struct sy_batch *b = &e->batch;
    int32_t n = s->n_tok - s->n_done, left = b->shape.tok - b->n_tok - reserve;
    if (n > left) n = left;
    if (!s->on_logits) return n;
    int32_t rows = b->shape.out - b->n_out - reserve, quiet = s->logits_from > s->n_done ? s->logits_from - s->n_done : 0;
    return n > quiet + rows ? quiet + rows : n;
}

static void fill_batch(struct sy_engine *e)
{
    struct sy_batch *b = &e->batch;
    b->n_tok = b->n_seq = b->n_out = e->n_prefill = 0;
    for (int32_t i = 0; i < e->n_running; i++) {
        int32_t n = room_for(e, e->running[i], e->n_running - 1 - i); /* one token is kept for each that follows */
        if (n > 0) put_seq(e, e->running[i], n);
    }
}

static bool ends(const struct sy_engine *e, const struct seq *s, int32_t id)
{
    if (s->n_tok - s->n_prompt <= s->n_min) return false; /* id itself is counted already */
    for (int32_t i = 0; i < s->n_stop_id; i++)
        if (s->stop_id[i] == id) return true;
    return !s->ignore_eos && sy_engine_is_end(e, id);
}

static void take_token(struct sy_engine *e, struct seq *s, const struct sy_result *r, int32_t row)
{
    struct sy_sample_out o = {.id = r->token[row]};
    if (!s->plain) {
        struct sy_sample_in in = {.logits = r->logits + row * r->ld,
                                  .n_vocab = r->n_vocab,
                                  .how = &s->how,
                                  .count_prompt = s->count_prompt,
                                  .count_output = s->count_output,
                                  .draw = s->n_draw++};
        if (s->n_tok - s->n_prompt < s->n_min) {
            in.barred = e->end_id;
            in.n_barred = e->n_end_id;
        }
        sy_sample_draw(&in, e->scratch, &o);
    }
    s->tok[s->n_tok++] = o.id;
    count(s->count_output, o.id);
    e->stats.n_gen_tok++;
    enum sy_finish f = ends(e, s, o.id) ? SY_FINISH_STOP : s->n_tok == s->n_end ? SY_FINISH_LENGTH : SY_RUNNING;
    struct sy_event ev = {.request = s->id, .id = o.id, .finish = f, .logprob = o.logprob, .top = o.top, .n_top = o.n_top};
    if (f != SY_RUNNING) s->n_end = s->n_tok; /* complete: collected below */
    emit(s, &ev);
}

static void collect(struct sy_engine *e, const struct sy_result *r)
{
    for (int32_t i = 0; i < r->n; i++) {
        const struct out_row *o = &e->out[i];
        if (o->seq->on_logits && o->pos >= o->seq->logits_from && o->pos < o->seq->n_prompt)
            o->seq->on_logits(o->seq->ctx, o->pos, r->logits + i * r->ld, r->n_vocab);
        if (o->sample) take_token(e, o->seq, r, i);
    }
    for (int32_t i = e->n_running - 1; i >= 0; i--) {
        struct seq *s = e->running[i];
        bool scored = s->n_end == s->n_prompt && s->n_done == s->n_prompt;
        if (s->n_tok < s->n_end || !(scored || s->n_tok > s->n_prompt)) continue;
        drop_running(e, i);
        if (scored) end_seq(s, SY_FINISH_LENGTH);
        else engine_seq_free(s); /* its last token's event said so already */
    }
}

static void account(struct sy_engine *e, uint64_t ns)
{
    struct sy_engine_stats *t = &e->stats;
    t->n_step++;
    t->n_prompt_tok += (uint64_t)e->n_prefill;
    if (e->n_prefill > 0) {
        t->prefill_ns += ns;
        t->prefill_tok += (uint64_t)e->n_prefill;
        return;
    }
    t->decode_ns += ns;
    t->decode_tok += (uint64_t)e->batch.n_tok;
    for (int32_t i = 0; i < e->batch.n_seq; i++)
        t->kv_bytes_read_decode += (double)e->batch.field[SY_CTX][i] / e->plan.block_len *
                                   ((double)e->plan.kv_bytes / e->plan.n_block);
}

sy_status sy_engine_step(struct sy_engine *e, bool *worked, struct sy_err *err)
{
    *worked = false;
    drop_cancelled(e);
    admit(e);
    fill_batch(e);
    if (e->batch.n_tok == 0) return SY_OK;
    *worked = true;
    uint64_t t0 = sy_now_ns(e->env);
    struct sy_result r;
    sy_status st = e->ops->forward(e->backend, e->program, e->kv, &e->batch);
    if (!st) st = e->ops->wait(e->backend, &r, err);
    if (st) return st;
    collect(e, &r);
    account(e, sy_now_ns(e->env) - t0);
    return SY_OK;
}
