/* answer.c - one request from prompt to last token, and what it cost. */
#include <stdio.h>
#include <string.h>

#include "app/session/session.h"
#include "engine/output.h"

struct run {
    const struct sy_env *env;
    const struct sy_answer_opt *opt;
    struct sy_answer *answer;
    struct sy_output out;
    struct sy_buf text;
    struct sy_engine *engine;
    uint64_t id, t_start;
    bool done, stopped; /* stopped: by a stop string */
};

static void give(struct run *r)
{
    if (r->text.len && r->opt->on_text) r->opt->on_text(r->opt->ctx, r->text.at, r->text.len);
    sy_buf_clear(&r->text);
}

static void on_event(void *ctx, const struct sy_event *ev)
{
    struct run *r = ctx;
    if (ev->finish != SY_RUNNING) {
        r->done = true;
        r->answer->finish = r->stopped ? SY_FINISH_STOP : ev->finish;
    }
    if (ev->id < 0 || r->stopped) return;
    if (r->answer->n_gen++ == 0) r->answer->first_s = (double)(sy_now_ns(r->env) - r->t_start) / 1e9;
    if (r->opt->on_id) r->opt->on_id(r->opt->ctx, ev->id);
    bool end = ev->finish == SY_FINISH_STOP; /* the token that ended it is no text */
    if (!r->opt->wants_text || end) return;
    r->stopped = sy_output_feed(&r->out, ev->id, &r->text);
    give(r);
    if (r->stopped || r->out.lost) sy_engine_cancel(r->engine, r->id);
    if (r->stopped && r->done) r->answer->finish = SY_FINISH_STOP;
}

static sy_status open_output(struct run *r, size_t *len, struct sy_err *err)
{
    const struct sy_answer_opt *o = r->opt;
    if (o->n_stop > SY_STOP_MAX)
        return sy_fail(err, SY_EARG, "--stop: expected at most %d, found %zu", SY_STOP_MAX, o->n_stop);
    for (size_t i = 0; i < o->n_stop; i++) len[i] = strlen(o->stop[i]);
    return sy_output_init(&r->out, r->env, sy_engine_tokenizer(r->engine), true, o->stop, len, (int)o->n_stop, err);
}

static sy_status loop(struct run *r, struct sy_app *app, struct sy_err *err)
{
    bool worked = true;
    sy_status st = SY_OK;
    while (!st && !r->done && worked) {
        if (sy_interrupt_seen(app->interrupt)) sy_engine_cancel(r->engine, r->id);
        st = sy_engine_step(r->engine, &worked, err);
    }
    return st;
}

static void measure(struct run *r, const struct sy_engine_stats *a, const struct sy_engine_stats *b)
{
    struct sy_answer *w = r->answer;
    double prefill_s = (double)(b->prefill_ns - a->prefill_ns) / 1e9,
           decode_s = (double)(b->decode_ns - a->decode_ns) / 1e9;
    double n_decode = (double)(b->decode_tok - a->decode_tok);
    if (prefill_s > 0) w->prefill_tok_s = (double)(b->prefill_tok - a->prefill_tok) / prefill_s;
    if (decode_s <= 0) return;
    w->decode_tok_s = n_decode / decode_s;
    double weights = n_decode * sy_engine_plan(r->engine)->weight_bytes_step;
    w->bytes_s = (weights + b->kv_bytes_read_decode - a->kv_bytes_read_decode) / decode_s;
}

sy_status sy_answer(struct sy_app *app, struct sy_engine *e, const struct sy_answer_opt *o, struct sy_answer *answer,
                    struct sy_err *err)
{
    *answer = (struct sy_answer){.n_prompt = (int32_t)o->prompt->n, .finish = SY_FINISH_CANCELLED};
    struct run r = {.env = &app->env, .opt = o, .answer = answer, .engine = e, .t_start = sy_now_ns(&app->env)};
    sy_buf_init(&r.text, &app->env, 0);
    size_t len[SY_STOP_MAX];
    sy_status st = o->wants_text ? open_output(&r, len, err) : SY_OK;
    if (st) return st;
    struct sy_request q = {.prompt = o->prompt->at,
                           .n_prompt = (int32_t)o->prompt->n,
                           .n_max = o->n_max,
                           .ignore_eos = o->ignore_eos,
                           .sampling = o->sampling,
                           .on_event = on_event,
                           .ctx = &r};
    struct sy_engine_stats before = sy_engine_stats(e);
    st = sy_engine_submit(e, &q, &r.id, err);
    if (!st) st = loop(&r, app, err);
    if (!st && o->wants_text && !r.stopped) {
        sy_output_finish(&r.out, &r.text);
        give(&r);
    }
    if (!st && r.out.lost) st = sy_fail(err, SY_ENOMEM, "no memory for the answer's text");
    struct sy_engine_stats after = sy_engine_stats(e);
    measure(&r, &before, &after);
    if (o->wants_text) sy_output_release(&r.out);
    sy_buf_release(&r.text);
    return st;
}

void sy_answer_report(struct sy_engine *e, const struct sy_answer *w)
{
    const struct sy_engine_plan *p = sy_engine_plan(e);
    char limit[48] = "";
    double peak = w->bytes_s > 0 ? sy_engine_bandwidth(e) : 0;
    if (peak > 0) snprintf(limit, sizeof limit, " (%.1f of %.1f GB/s)", w->bytes_s / 1e9, peak / 1e9);
    const char *isa = strrchr(p->device.isa, ' '); /* the best of those in use stands last */
    fprintf(stderr,
            "prompt %d tokens, %.0f tok/s; answer %d tokens, %.1f tok/s%s; first after %.2f s; %d threads, %s\n",
            w->n_prompt, w->prefill_tok_s, w->n_gen, w->decode_tok_s, limit, w->first_s, p->device.n_thread,
            isa ? isa + 1 : p->device.isa);
}
