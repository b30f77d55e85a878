/* replay.c - a recorded run again, step for step. */
#include <stdio.h>

#include "app/bench/bench.h"
#include "app/hub/hub.h"
#include "app/session/session.h"
#include "bench/replay.h"

/* The record's options, but for those that the user gives. */
static sy_status choose(struct sy_args *a, const struct sy_trace *t, struct sy_engine_opt *o, struct sy_err *err)
{
    struct sy_engine_opt given;
    sy_status st = sy_session_opt(a, &given, err);
    if (st) return st;
    sy_trace_options(t, o);
    o->backend = given.backend;
    o->backend_opt = given.backend_opt;
    if (sy_arg_given(a, "ctx-size")) o->ctx_len = given.ctx_len;
    if (sy_arg_given(a, "block-size")) o->block_len = given.block_len;
    if (sy_arg_given(a, "max-seqs")) o->seq_max = given.seq_max;
    if (sy_arg_given(a, "max-batched-tokens")) o->batch_tok_max = given.batch_tok_max;
    if (sy_arg_given(a, "kv-memory")) o->kv_bytes_max = given.kv_bytes_max;
    if (sy_arg_given(a, "scheduling")) o->scheduling = (enum sy_scheduling)sy_arg_choice(a, "scheduling");
    return SY_OK;
}

static sy_status write_json(const struct sy_args *a, const struct sy_replay *r, struct sy_err *err)
{
    struct sy_buf b;
    sy_buf_init(&b, &a->app->env, 0);
    struct sy_jout j = {&b, false};
    sy_jout_open(&j, NULL, '{');
    sy_jout_bool(&j, "same", r->same);
    sy_jout_int(&j, "steps", (int64_t)r->n_step);
    sy_jout_int(&j, "requests", (int64_t)r->n_request);
    sy_jout_int(&j, "tokens", (int64_t)r->n_token);
    sy_jout_num(&j, "recorded_s", r->recorded_s);
    sy_jout_num(&j, "now_s", r->now_s);
    if (!r->same) {
        sy_jout_int(&j, "step", (int64_t)r->step);
        sy_jout_text(&j, "difference", r->difference);
    }
    sy_jout_close(&j, '}');
    return sy_bench_write_json(a, &b, err);
}

sy_status sy_bench_replay(struct sy_args *a, struct sy_err *err)
{
    struct sy_trace *t = NULL;
    struct sy_engine_opt o = {0};
    struct sy_replay r;
    struct sy_bench_watcher w;
    sy_status st = sy_model_path(a, sy_arg_text(a, "model"), &o.model, err);
    if (!st) st = sy_trace_open(&a->app->env, sy_arg_text(a, "trace"), &t, err);
    if (st) return st;
    st = choose(a, t, &o, err);
    sy_interrupt_hold(a->app->interrupt);
    struct sy_watch watch = sy_bench_watch(&w, a->app, "replay");
    if (!st) st = sy_replay_run(&a->app->env, t, &o, &watch, &r, err);
    sy_progress_end(&w.bar);
    sy_interrupt_drop(a->app->interrupt);
    sy_trace_close(t);
    if (!st && sy_arg_given(a, "json")) st = write_json(a, &r, err);
    if (st) return st;
    if (!r.same)
        return sy_fail(err, SY_EIO, "step %llu differs from the record, %s", (unsigned long long)r.step,
                       r.difference);
    fprintf(sy_bench_table(a),
            "%llu requests, %llu steps, %llu tokens: the same, step for step; %.3f s in steps then, %.3f s now\n",
            (unsigned long long)r.n_request, (unsigned long long)r.n_step, (unsigned long long)r.n_token,
            r.recorded_s, r.now_s);
    return SY_OK;
}
