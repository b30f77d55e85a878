#include "app/session/nll.h"

#include <math.h>

static void on_logits(void *ctx, int32_t pos, const float *x, int32_t n_vocab)
{
    struct sy_nll *s = ctx;
    if (pos + 1 >= s->n) return;
    float top = x[0];
    for (int32_t i = 1; i < n_vocab; i++) top = x[i] > top ? x[i] : top;
    double sum = 0;
    for (int32_t i = 0; i < n_vocab; i++) sum += exp((double)x[i] - (double)top);
    double nll = log(sum) + (double)top - (double)x[s->window[pos + 1]];
    s->sum += nll;
    s->sum2 += nll * nll;
    s->count++;
}

static void on_event(void *ctx, const struct sy_event *ev)
{
    struct sy_nll *s = ctx;
    if (ev->finish != SY_RUNNING) s->done = true;
}

sy_status sy_nll_window(struct sy_engine *e, struct sy_nll *s, struct sy_err *err)
{
    struct sy_request q = {.prompt = s->window,
                           .n_prompt = s->n,
                           .sampling = {.n_logprob = -1},
                           .no_cache_read = true,
                           .on_event = on_event,
                           .on_logits = on_logits,
                           .ctx = s};
    sy_status st = sy_engine_submit(e, &q, NULL, err);
    s->done = false;
    bool worked = true;
    while (!st && !s->done && worked) st = sy_engine_step(e, &worked, err);
    return st;
}

sy_status sy_windows_init(struct sy_windows *w, const struct sy_env *env, const struct sy_tokenizer *t,
                          const struct sy_ids *ids, int32_t *window, int32_t ctx, struct sy_err *err)
{
    struct sy_ids probe;
    sy_ids_init(&probe, env);
    sy_status st = sy_tokenizer_encode(t, "", 0, SY_ENCODE_SPECIAL, &probe, err);
    *w = (struct sy_windows){.tok = t, .ids = ids->at, .n_id = (int64_t)ids->n, .window = window, .ctx = ctx};
    w->bos = probe.n && probe.at[0] == sy_tokenizer_bos(t);
    sy_ids_release(&probe);
    return st;
}

int32_t sy_windows_next(struct sy_windows *w)
{
    int64_t step = w->ctx - w->bos, n = w->n_id - w->at < step ? w->n_id - w->at : step;
    if (n + w->bos < 2) return 0; /* nothing to predict */
    if (w->bos) w->window[0] = sy_tokenizer_bos(w->tok);
    for (int64_t i = 0; i < n; i++) w->window[i + w->bos] = w->ids[w->at + i];
    w->at += n;
    return (int32_t)(n + w->bos);
}
