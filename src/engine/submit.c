/* submit.c - requests in. */
#include <string.h>

#include "engine/engine_int.h"

static sy_status check_request(const struct sy_engine *e, const struct sy_request *r, struct sy_err *err)
{
    int32_t ctx = e->plan.ctx_len, n_vocab = e->plan.info.n_vocab, n_sample = r->n_sample > 0 ? r->n_sample : 1;
    bool score = r->on_logits || r->on_hidden;
    if (r->n_prompt < 1) return sy_fail(err, SY_EARG, "prompt: expected at least one token, found none");
    if (r->n_max < 0 || (r->n_max == 0 && !score))
        return sy_fail(err, SY_EARG, "max_tokens: expected at least 1, found %d", r->n_max);
    if (r->n_prompt > ctx || (r->n_prompt == ctx && r->n_max > 0))
        return sy_fail(err, SY_EARG, "prompt: %d tokens do not fit the context of %d tokens%s", r->n_prompt, ctx,
                       r->n_prompt == ctx ? " with room for an answer" : "");
    if (r->n_given < 0 || r->n_given >= r->n_prompt || (r->n_given > 0 && e->ckpt))
        return sy_fail(err, SY_EARG, "n_given: expected 0 to %d, and 0 where keys are real, found %d",
                       r->n_prompt - 1, r->n_given);
    if (n_sample > 128 || (r->n_max == 0 && n_sample > 1))
        return sy_fail(err, SY_EARG, "n: expected 1 to %d, found %d", r->n_max == 0 ? 1 : 128, n_sample);
    for (int32_t i = 0; r->n_stop_each && i < n_sample; i++)
        if (r->n_stop_each[i] < 1 || r->n_stop_each[i] > r->n_max)
            return sy_fail(err, SY_EARG, "end of answer %d: expected 1 to %d, found %d", i, r->n_max,
                           r->n_stop_each[i]);
    for (int32_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= n_vocab)
            return sy_fail(err, SY_EARG, "prompt: token %d at position %d is outside the vocabulary of %d",
                           r->prompt[i], i, n_vocab);
    for (int32_t i = 0; i < r->n_stop_id; i++)
        if (r->stop_id[i] < 0 || r->stop_id[i] >= n_vocab)
            return sy_fail(err, SY_EARG, "stop_token_ids: %d is outside the vocabulary of %d", r->stop_id[i],
                           n_vocab);
    int32_t n_end = r->n_max > ctx - r->n_prompt ? ctx : r->n_prompt + r->n_max, len = e->plan.block_len;
    if (blocks_of(n_end, len) > e->plan.n_block - 1)
        return sy_fail(err, SY_EARG,
                       "prompt and answer of %d tokens can never fit the KV cache of %lld tokens; ask for fewer or "
                       "raise --kv-memory",
                       n_end, (long long)(e->plan.n_block - 1) * len);
    return sy_sampling_check(&r->sampling, n_vocab, err);
}

static bool penalised(const struct sy_sampling *s)
{
    return (s->repeat_penalty > 0 && s->repeat_penalty != 1) || s->presence_penalty != 0 || s->frequency_penalty != 0;
}

static void *copied(struct sy_arena *a, const void *from, int32_t n, size_t size)
{
    void *to = sy_arena_array(a, (size_t)n + 1, size);
    if (to && n) memcpy(to, from, (size_t)n * size);
    return to;
}

static struct seq *new_seq(const struct sy_engine *e, struct sy_arena *a, struct seq_request *q,
                           const struct sy_request *r, int32_t sample)
{
    int32_t ctx = e->plan.ctx_len, len = e->plan.block_len;
    int32_t n_end = r->n_max > ctx - r->n_prompt ? ctx : r->n_prompt + r->n_max, n_block = blocks_of(n_end, len);
    struct seq *s = sy_arena_get(a, sizeof *s);
    if (!s) return NULL;
    *s = (struct seq){.of = q, .sample = sample, .n_tok = r->n_prompt, .n_end = n_end, .score_from = r->n_prompt};
    s->n_stop = r->n_stop_each ? r->n_prompt + r->n_stop_each[sample] : INT32_MAX;
    if (sample == 0 && (r->on_logits || r->on_hidden)) s->score_from = r->logits_from > 0 ? r->logits_from : 0;
    s->tok = sy_arena_array(a, (size_t)n_end, sizeof *s->tok);
    s->block = sy_arena_array(a, (size_t)n_block, sizeof *s->block);
    if (e->plan.n_apart) s->apart = sy_arena_array(a, (size_t)n_block, sizeof *s->apart);
    if (e->n_swap_slot) s->swap = sy_arena_array(a, (size_t)n_block, sizeof *s->swap);
    if (penalised(&r->sampling))
        s->count_output = sy_arena_array(a, (size_t)e->plan.info.n_vocab, sizeof *s->count_output);
    if (!s->tok || !s->block || (e->plan.n_apart && !s->apart) || (e->n_swap_slot && !s->swap) ||
        (penalised(&r->sampling) && !s->count_output))
        return NULL;
    memcpy(s->tok, r->prompt, (size_t)r->n_prompt * sizeof *s->tok);
    return s;
}

/* The request and its answers, chained through `next`; NULL when out of memory. */
static struct seq *new_request(const struct sy_engine *e, struct sy_arena *a, const struct sy_request *r)
{
    struct seq_request *q = sy_arena_get(a, sizeof *q);
    if (!q) return NULL;
    int32_t n_sample = r->n_sample > 0 ? r->n_sample : 1;
    *q = (struct seq_request){.n_prompt = r->n_prompt,
                              .n_open = n_sample,
                              .n_given = r->n_given,
                              .n_min = r->n_min,
                              .n_stop_id = r->n_stop_id,
                              .priority = r->priority,
                              .ignore_eos = r->ignore_eos,
                              .no_cache_read = r->no_cache_read,
                              .deadline_ns = r->deadline_ns,
                              .domain = r->cache_domain,
                              .how = r->sampling,
                              .on_event = r->on_event,
                              .on_logits = r->on_logits,
                              .on_hidden = r->on_hidden,
                              .ctx = r->ctx};
    q->plain = r->sampling.temperature <= 0 && r->sampling.n_logprob < 0 && r->sampling.n_bias == 0 &&
               !penalised(&r->sampling) && r->n_min <= 0;
    q->stop_id = copied(a, r->stop_id, r->n_stop_id, sizeof *q->stop_id);
    q->how.bias = copied(a, r->sampling.bias, r->sampling.n_bias, sizeof *q->how.bias);
    if (!q->stop_id || !q->how.bias) return NULL;
    if (penalised(&q->how)) {
        q->count_prompt = sy_arena_array(a, (size_t)e->plan.info.n_vocab, sizeof *q->count_prompt);
        if (!q->count_prompt) return NULL;
        for (int32_t i = 0; i < r->n_prompt; i++)
            q->count_prompt[r->prompt[i]] += q->count_prompt[r->prompt[i]] < UINT16_MAX;
    }
    struct seq *first = NULL;
    for (int32_t i = n_sample - 1; i >= 0; i--) {
        struct seq *s = new_seq(e, a, q, r, i);
        if (!s) return NULL;
        s->next = first;
        first = s;
    }
    return first;
}

sy_status sy_engine_prepare(const struct sy_engine *e, const struct sy_request *r, struct sy_prepared **out,
                            struct sy_err *err)
{
    sy_status st = check_request(e, r, err);
    if (st) return st;
    struct sy_arena a;
    sy_arena_init(&a, e->env, 0);
    struct seq *first = new_request(e, &a, r);
    if (!first) {
        sy_arena_release(&a);
        return sy_fail(err, SY_ENOMEM, "no memory for a request of %d tokens", r->n_prompt);
    }
    struct seq_request *q = first->of;
    q->arena = a;
    q->siblings = first->next;
    first->next = NULL;
    *out = (struct sy_prepared *)first;
    return SY_OK;
}

void sy_prepared_free(struct sy_prepared *p)
{
    if (!p) return;
    struct sy_arena a = ((struct seq *)p)->of->arena; /* p lives in it */
    sy_arena_release(&a);
}

sy_status sy_engine_submit_take(struct sy_engine *e, struct sy_prepared *p, uint64_t *id, struct sy_err *err)
{
    struct seq *first = (struct seq *)p;
    struct seq_request *q = first->of;
    int32_t wait_max = e->opt.wait_max > 0 ? e->opt.wait_max : 4096;
    if (e->n_wait >= wait_max) {
        sy_prepared_free(p);
        return sy_fail(err, SY_FULL, "%d requests are waiting already", e->n_wait);
    }
    q->id = e->next_id++;
    trace_arrive(e, q, first, q->on_logits || q->on_hidden);
    sched_wait(e, first);
    if (id) *id = q->id;
    return SY_OK;
}

sy_status sy_engine_submit(struct sy_engine *e, const struct sy_request *r, uint64_t *id, struct sy_err *err)
{
    struct sy_prepared *p;
    sy_status st = sy_engine_prepare(e, r, &p, err);
    return st ? st : sy_engine_submit_take(e, p, id, err);
}

void sy_engine_cancel(struct sy_engine *e, uint64_t id)
{
    for (struct seq *s = e->wait; s; s = s->next)
        if (s->of->id == id) s->of->cancelled = true;
    for (int32_t i = 0; i < e->n_running; i++)
        if (e->running[i]->of->id == id) e->running[i]->of->cancelled = true;
}

void sy_engine_stop(struct sy_engine *e, uint64_t id, int32_t sample)
{
    for (struct seq *s = e->wait; s; s = s->next) s->stopped |= s->of->id == id && s->sample == sample;
    for (int32_t i = 0; i < e->n_running; i++)
        e->running[i]->stopped |= e->running[i]->of->id == id && e->running[i]->sample == sample;
}
