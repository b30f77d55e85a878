#include "app/session/compare.h"

#include <math.h>
#include <string.h>

static void keep_row(void *ctx, int32_t pos, const float *x, int32_t n)
{
    (void)pos;
    struct sy_compare *c = ctx;
    memcpy(c->row + (int64_t)c->n_row++ * n, x, (size_t)n * sizeof *x);
}

static int32_t best(const float *x, int32_t n)
{
    int32_t b = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[b]) b = i;
    return b;
}

static double log_sum_exp(const float *x, int32_t n, float top)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += exp((double)x[i] - (double)top);
    return (double)top + log(sum);
}

/* KL(p || q) of p = softmax(reference), q = softmax(x). */
static void compare_row(void *ctx, int32_t pos, const float *x, int32_t n)
{
    (void)pos;
    struct sy_compare *c = ctx;
    const float *p = c->row + (int64_t)c->at++ * n;
    int32_t bp = best(p, n), bq = best(x, n);
    double zp = log_sum_exp(p, n, p[bp]), zq = log_sum_exp(x, n, x[bq]), kl = 0;
    for (int32_t i = 0; i < n; i++) {
        double lp = (double)p[i] - zp;
        if (lp > -80) kl += exp(lp) * (lp - ((double)x[i] - zq));
    }
    c->kl_sum += kl;
    if (kl > c->kl_max) c->kl_max = kl;
    c->n_same += bp == bq;
    c->n++;
}

static void on_event(void *ctx, const struct sy_event *ev)
{
    struct sy_compare *c = ctx;
    if (ev->finish != SY_RUNNING) c->done = true;
}

sy_status sy_compare_window(struct sy_compare *c, struct sy_engine *e, const int32_t *ids, int32_t n,
                            struct sy_err *err)
{
    struct sy_request q = {.prompt = ids,
                           .n_prompt = n,
                           .sampling = {.n_logprob = -1},
                           .no_cache_read = true,
                           .on_logits = keep_row,
                           .ctx = c};
    sy_status st = sy_engine_submit(c->ref, &q, NULL, err);
    q.on_logits = compare_row;
    q.on_event = on_event;
    if (!st) st = sy_engine_submit(e, &q, NULL, err);
    c->done = false;
    for (bool worked = true; !st && !c->done && worked;) {
        c->n_row = c->at = 0;
        st = sy_engine_step(c->ref, &worked, err);
        if (!st) st = sy_engine_step(e, &worked, err);
        if (!st && c->at != c->n_row)
            st = sy_fail(err, SY_ESHAPE, "the two forwards went out of step: %d rows and %d", c->n_row, c->at);
    }
    return st;
}
