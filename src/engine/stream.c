/* stream.c - what a client's request becomes: memory laid out by the io thread, filled by the engine
 * thread. */
#include <math.h>
#include <string.h>

#include "engine/loop_int.h"

static const void *copied(struct sy_arena *a, const void *from, int32_t n, size_t size)
{
    void *to = sy_arena_array(a, (size_t)n + 1, size);
    if (to && n) memcpy(to, from, (size_t)n * size);
    return to;
}

static bool copy_request(struct sy_stream *s, const struct sy_request *r)
{
    struct sy_request *q = &s->request;
    *q = *r;
    q->prompt = copied(&s->arena, r->prompt, r->n_prompt, sizeof *r->prompt);
    q->stop_id = copied(&s->arena, r->stop_id, r->n_stop_id, sizeof *r->stop_id);
    q->sampling.bias = copied(&s->arena, r->sampling.bias, r->sampling.n_bias, sizeof *r->sampling.bias);
    return q->prompt && q->stop_id && q->sampling.bias;
}

static bool make_replies(struct sy_stream *s)
{
    size_t n = (size_t)s->request.n_max;
    s->reply = sy_arena_array(&s->arena, (size_t)s->n_reply, sizeof *s->reply);
    for (int32_t i = 0; s->reply && i < s->n_reply; i++) {
        struct sy_reply *r = &s->reply[i];
        atomic_init(&r->n, 0);
        atomic_init(&r->finish, SY_RUNNING);
        atomic_init(&r->end, -1);
        r->id = sy_arena_array(&s->arena, n, sizeof *r->id);
        if (!r->id) return false;
        if (s->request.sampling.n_logprob < 0) continue;
        r->logprob = sy_arena_array(&s->arena, n, sizeof *r->logprob);
        r->top = sy_arena_array(&s->arena, n * (size_t)s->n_top, sizeof *r->top);
        if (!r->logprob || !r->top) return false;
    }
    return s->reply != NULL;
}

static bool make_prompt_results(struct sy_stream *s, const struct sy_stream_opt *o)
{
    size_t n = (size_t)s->request.n_prompt;
    if (o->score_prompt) {
        s->prompt_logprob = sy_arena_array(&s->arena, n, sizeof *s->prompt_logprob);
        s->prompt_top = sy_arena_array(&s->arena, n * (size_t)s->n_prompt_top, sizeof *s->prompt_top);
        s->request.on_logits = stream_on_logits;
        s->request.logits_from = 0;
        if (!s->prompt_logprob || !s->prompt_top) return false;
    } else if (o->pooling != SY_POOL_NONE) {
        s->pooled = sy_arena_array(&s->arena, (size_t)o->d_model, sizeof *s->pooled);
        s->request.on_hidden = stream_on_hidden;
        s->request.logits_from = o->pooling == SY_POOL_LAST ? s->request.n_prompt - 1 : 0;
        if (!s->pooled) return false;
    } else if (s->request.n_max == 0) {
        /* The prompt is all that is wanted: no row of it, and no token either. */
        s->request.on_logits = stream_on_logits;
        s->request.logits_from = s->request.n_prompt;
    }
    return true;
}

sy_status sy_stream_new(const struct sy_env *env, const struct sy_stream_opt *o, struct sy_stream **out,
                        struct sy_err *err)
{
    struct sy_arena a;
    sy_arena_init(&a, env, 0);
    struct sy_stream *s = sy_arena_get(&a, sizeof *s);
    if (!s) return sy_fail(err, SY_ENOMEM, "no memory for a request");
    *s = (struct sy_stream){.owner = o->owner,
                            .n_reply = o->request.n_sample > 0 ? o->request.n_sample : 1,
                            .n_prompt_top = o->n_prompt_top < o->n_vocab ? o->n_prompt_top : o->n_vocab,
                            .pooling = o->pooling,
                            .d_model = o->d_model,
                            .arrival_ns = o->arrival_ns};
    int32_t top = o->request.sampling.n_logprob;
    s->n_top = top < 0 ? 0 : top < o->n_vocab ? top : o->n_vocab;
    s->arena = a;
    atomic_init(&s->refs, 1);
    atomic_init(&s->n_cached, 0);
    bool ok = copy_request(s, &o->request) && make_replies(s) && make_prompt_results(s, o);
    s->request.on_event = stream_on_event;
    s->request.ctx = s;
    if (!ok) {
        sy_stream_unref(s);
        return sy_fail(err, SY_ENOMEM, "no memory for a request of %d and up to %d tokens", o->request.n_prompt,
                       o->request.n_max);
    }
    *out = s;
    return SY_OK;
}

void sy_stream_ref(struct sy_stream *s) { atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed); }

void sy_stream_unref(struct sy_stream *s)
{
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    struct sy_arena a = s->arena; /* s lives in it */
    sy_arena_release(&a);
}

/* ---- the engine thread's side: append, publish, nothing else ------------------------------------------- */

static void count_token(struct sy_stream *s, struct sy_reply *r, uint64_t now)
{
    struct sy_loop_metrics *m = &s->loop->metrics;
    if (!s->t_first) {
        s->t_first = now;
        sy_histogram_add(&m->ttft, (double)(now - s->arrival_ns) / 1e9);
    }
    if (r->t_last) sy_histogram_add(&m->itl, (double)(now - r->t_last) / 1e9);
    r->t_last = now;
    s->n_token++;
}

void stream_on_event(void *ctx, const struct sy_event *ev)
{
    struct sy_stream *s = ctx;
    struct sy_reply *r = &s->reply[ev->sample];
    s->t_started = ev->started_ns;
    atomic_store_explicit(&s->n_cached, ev->n_cached, memory_order_relaxed);
    if (ev->id >= 0) {
        int32_t n = atomic_load_explicit(&r->n, memory_order_relaxed);
        r->id[n] = ev->id;
        if (r->logprob) {
            r->logprob[n] = ev->logprob;
            if (s->n_top) memcpy(&r->top[(size_t)n * (size_t)s->n_top], ev->top, (size_t)s->n_top * sizeof *r->top);
        }
        count_token(s, r, sy_now_ns(s->loop->env));
        if (ev->finish == SY_FINISH_STOP) atomic_store_explicit(&r->end, n, memory_order_relaxed);
        atomic_store_explicit(&r->n, n + 1, memory_order_release);
    }
    if (ev->finish != SY_RUNNING) {
        if (ev->error) s->error = *ev->error;
        atomic_store_explicit(&r->finish, ev->finish, memory_order_release);
        if (--s->n_running == 0) {
            loop_ended(s, ev->finish);
            return;
        }
    }
    loop_news(s);
}

void stream_on_logits(void *ctx, int32_t pos, const float *logits, int32_t n_vocab)
{
    struct sy_stream *s = ctx;
    /* The row after position pos is about the token at pos + 1; the last row's token is the answer's. */
    if (!s->prompt_logprob || pos + 1 >= s->request.n_prompt) return;
    struct sy_sample_out o;
    sy_sample_score(logits, n_vocab, s->request.prompt[pos + 1], s->n_prompt_top, s->loop->scratch, &o);
    s->prompt_logprob[pos + 1] = o.logprob;
    if (o.n_top > 0)
        memcpy(&s->prompt_top[(size_t)(pos + 1) * (size_t)s->n_prompt_top], o.top, (size_t)o.n_top * sizeof *o.top);
}

void stream_on_hidden(void *ctx, int32_t pos, const float *hidden, int32_t d_model)
{
    struct sy_stream *s = ctx;
    (void)pos;
    double share = s->pooling == SY_POOL_MEAN ? 1.0 / s->request.n_prompt : 1;
    for (int32_t i = 0; i < d_model && i < s->d_model; i++) s->pooled[i] += share * (double)hidden[i];
}
