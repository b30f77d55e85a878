#include "bench/offline.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"

struct user { /* one request of a batch */
    const struct sy_env *env;
    uint64_t id, t_first, t_last;
    int32_t n_tok;
    bool done;
};
struct figures { /* of one measurement */
    double prefill_s, ttft_s, step_s, kv_bytes;
};
struct run {
    const struct sy_env *env;
    struct sy_engine *const *engine;
    size_t n_engine;
    struct sy_engine *e; /* the one that is measured */
    const struct sy_offline_opt *o;
    struct sy_arena arena;
    int32_t batch_max;
    struct user *user;   /* [batch_max] */
    int32_t *prompt;     /* [batch_max, n_in] */
    double *sort;        /* [max of batch_max and n_repeat] */
    struct figures *fig; /* [n_engine, n_batch, n_repeat] */
};

static int32_t largest(const struct sy_offline_opt *o)
{
    int32_t max = 1;
    for (size_t i = 0; i < o->n_batch; i++) max = o->batch[i] > max ? o->batch[i] : max;
    return max;
}

/* Steps from the first sequence's first decode until the last one decodes too: of a cached prompt less than a block
 * and a token is computed again. */
static int64_t gather_steps(int64_t batch, int64_t block_len, int64_t batch_tok_max)
{
    return 2 + (batch * (block_len + 1) + batch_tok_max - 1) / batch_tok_max;
}

sy_status sy_offline_plan(const struct sy_offline_opt *o, struct sy_engine_opt *e, struct sy_err *err)
{
    e->seq_max = largest(o);
    if (e->batch_tok_max < e->seq_max) e->batch_tok_max = e->seq_max;
    int64_t ctx = (int64_t)o->n_in + o->n_out + gather_steps(e->seq_max, e->block_len, e->batch_tok_max);
    if (ctx > INT32_MAX)
        return sy_fail(err, SY_EARG, "--input-len %d and --output-len %d are too long together", o->n_in, o->n_out);
    e->ctx_len = (int32_t)ctx;
    return SY_OK;
}

static void on_event(void *ctx, const struct sy_event *ev)
{
    struct user *u = ctx;
    if (ev->id >= 0) {
        u->t_last = sy_now_ns(u->env);
        if (u->n_tok++ == 0) u->t_first = u->t_last;
    }
    if (ev->finish != SY_RUNNING) u->done = true;
}

static sy_status submit(struct run *r, int32_t batch, int32_t n_max, struct sy_err *err)
{
    for (int32_t i = 0; i < batch; i++) {
        struct user *u = &r->user[i];
        *u = (struct user){.env = r->env};
        struct sy_request q = {.prompt = r->prompt + (int64_t)i * r->o->n_in,
                               .n_prompt = r->o->n_in,
                               .n_max = n_max,
                               .ignore_eos = true,
                               .sampling = {.n_logprob = -1},
                               .on_event = on_event,
                               .ctx = u};
        sy_status st = sy_engine_submit(r->e, &q, &u->id, err);
        if (st) return st;
    }
    return SY_OK;
}

static sy_status stopped(const struct sy_watch *w, struct sy_err *err)
{
    return w->stop && w->stop(w->ctx) ? sy_fail(err, SY_EIO, "the measurement was stopped") : SY_OK;
}

static sy_status drain(struct sy_engine *e, const struct sy_watch *w, struct sy_err *err)
{
    bool worked = true;
    sy_status st = SY_OK;
    while (!st && worked) {
        st = sy_engine_step(e, &worked, err);
        if (!st && w) st = stopped(w, err);
    }
    return st;
}

static sy_status measure_prefill(struct run *r, int32_t batch, struct figures *f, struct sy_err *err)
{
    uint64_t t0 = sy_now_ns(r->env), last = t0;
    sy_status st = submit(r, batch, 1, err);
    if (!st) st = drain(r->e, &r->o->watch, err);
    for (int32_t i = 0; i < batch; i++) {
        r->sort[i] = (double)(r->user[i].t_first - t0) / 1e9;
        if (r->user[i].t_first > last) last = r->user[i].t_first;
    }
    f->ttft_s = sy_median(r->sort, (size_t)batch);
    f->prefill_s = (double)(last - t0) / 1e9;
    return st;
}

static bool all_run(const struct run *r, int32_t batch, bool *ended)
{
    bool all = true;
    for (int32_t i = 0; i < batch; i++) {
        all &= r->user[i].n_tok > 0;
        *ended |= r->user[i].done;
    }
    return all;
}

static sy_status measure_decode(struct run *r, int32_t batch, struct figures *f, struct sy_err *err)
{
    int32_t want = r->o->n_out > 1 ? r->o->n_out - 1 : 1, n_step = 0; /* the first token comes with the prompt */
    const struct sy_engine_plan *p = sy_engine_plan(r->e);
    sy_status st = submit(r, batch, p->ctx_len - r->o->n_in, err);
    bool worked = true, ended = false, started = false;
    uint64_t ns = 0;
    double kv0 = 0;
    while (!st && n_step < want && worked && !ended) {
        if (!started && all_run(r, batch, &ended)) {
            started = true;
            kv0 = sy_engine_stats(r->e).kv_bytes_read_decode;
        }
        uint64_t t = sy_now_ns(r->env);
        st = sy_engine_step(r->e, &worked, err);
        if (!st) st = stopped(&r->o->watch, err);
        if (!started) continue;
        ns += sy_now_ns(r->env) - t;
        n_step++;
        (void)all_run(r, batch, &ended);
    }
    f->step_s = n_step ? (double)ns / 1e9 / n_step : 0;
    f->kv_bytes = n_step ? (sy_engine_stats(r->e).kv_bytes_read_decode - kv0) / n_step : 0;
    for (int32_t i = 0; i < batch; i++) sy_engine_cancel(r->e, r->user[i].id);
    if (!st) st = drain(r->e, NULL, err);
    if (!st && n_step < want)
        return sy_fail(
            err, SY_ENOMEM,
            "batch %d: only %d of %d decode steps ran with all sequences in them; the KV cache of %d blocks "
            "is too small for it (--kv-memory)",
            batch, n_step, want, p->n_block);
    return st;
}

static void draw_prompts(struct run *r, uint64_t stream)
{
    int32_t n_vocab = sy_engine_plan(r->e)->info.n_vocab;
    int64_t n = (int64_t)r->batch_max * r->o->n_in;
    uint64_t seed = sy_rng_u64(r->o->seed, stream);
    for (int64_t i = 0; i < n; i++) r->prompt[i] = (int32_t)sy_uniform(seed, (uint64_t)i, 0, n_vocab - 1);
}

static struct figures *figures_of(const struct run *r, size_t engine, size_t batch)
{
    return r->fig + (engine * r->o->n_batch + batch) * (size_t)r->o->n_repeat;
}

/* One batch through every engine; who goes first changes from repeat to repeat. */
static sy_status measure_round(struct run *r, size_t batch, size_t repeat, struct sy_err *err)
{
    sy_status st = SY_OK;
    draw_prompts(r, 1 + repeat * r->o->n_batch + batch);
    for (size_t i = 0; !st && i < r->n_engine; i++) {
        size_t k = repeat % 2 ? r->n_engine - 1 - i : i;
        struct figures *f = figures_of(r, k, batch) + repeat;
        r->e = r->engine[k];
        st = measure_prefill(r, r->o->batch[batch], f, err);
        if (!st) st = measure_decode(r, r->o->batch[batch], f, err);
    }
    return st;
}

static sy_status measure(struct run *r, struct sy_err *err)
{
    const struct sy_offline_opt *o = r->o;
    /* A first round that is not counted: pages come in, caches and the scheduler's estimates settle. */
    struct figures warm;
    sy_status st = SY_OK;
    draw_prompts(r, 0);
    for (size_t i = 0; !st && i < r->n_engine; i++) {
        r->e = r->engine[i];
        st = measure_prefill(r, r->batch_max, &warm, err);
    }
    double done = 0, total = 0;
    for (size_t i = 0; i < o->n_batch; i++) total += o->batch[i] + 8; /* about how long each takes */
    for (size_t k = 0; !st && k < (size_t)o->n_repeat; k++)
        for (size_t i = 0; !st && i < o->n_batch; i++) {
            st = measure_round(r, i, k, err);
            done += o->batch[i] + 8;
            if (o->watch.progress) o->watch.progress(o->watch.ctx, done / (total * o->n_repeat));
        }
    return st;
}

static double figure_at(const struct figures *f, size_t offset)
{
    double v;
    memcpy(&v, (const char *)f + offset, sizeof v);
    return v;
}

static double median_of(struct run *r, size_t engine, size_t batch, size_t offset)
{
    size_t n = (size_t)r->o->n_repeat;
    for (size_t k = 0; k < n; k++) r->sort[k] = figure_at(figures_of(r, engine, batch) + k, offset);
    return sy_median(r->sort, n);
}
#define MEDIAN(r, engine, batch, field) median_of(r, engine, batch, offsetof(struct figures, field))

/* Of a time: how much faster than the first engine in the same repeat. */
static double ratio_of(struct run *r, size_t engine, size_t batch, size_t offset)
{
    size_t n = 0;
    for (size_t k = 0; k < (size_t)r->o->n_repeat; k++) {
        double own = figure_at(figures_of(r, engine, batch) + k, offset),
               first = figure_at(figures_of(r, 0, batch) + k, offset);
        if (own > 0) r->sort[n++] = first / own;
    }
    return sy_median(r->sort, n);
}
#define RATIO(r, engine, batch, field) ratio_of(r, engine, batch, offsetof(struct figures, field))

/* Tokens/s at most, of steps that take `flops` and read `bytes` together; 0: nothing is known. */
static double limit(const struct run *r, double tok, double flops, double bytes, double bytes_s)
{
    double by_ops = r->o->ops_s > 0 ? flops / r->o->ops_s : 0, by_bytes = bytes_s > 0 ? bytes / bytes_s : 0;
    double s = by_ops > by_bytes ? by_ops : by_bytes;
    return s > 0 ? tok / s : 0;
}

static void fill_limits(const struct run *r, const struct sy_engine *e, struct sy_offline_row *row)
{
    const struct sy_graph *g = sy_engine_graph(e);
    double b = row->batch, n_in = row->n_in, ctx = n_in + row->n_out / 2.0;
    struct sy_load prefill = {
        .tok = b * n_in, .out = b, .keys = b * n_in * (n_in + 1) / 2, .ctx = b * n_in, .seq = b};
    struct sy_load decode = {.tok = b, .out = b, .keys = b * ctx, .ctx = b * ctx, .seq = b};
    double steps = ceil(prefill.tok / sy_engine_plan(e)->batch_tok_max);
    row->prefill_limit_tok_s =
        limit(r, prefill.tok, sy_graph_cost(g, &prefill).flops, row->weight_bytes * steps, row->bytes_s);
    row->decode_limit_tok_s =
        limit(r, b, sy_graph_cost(g, &decode).flops, row->weight_bytes + row->kv_bytes, row->bytes_s);
}

static void fill_row(struct run *r, size_t engine, size_t i, struct sy_offline_row *row)
{
    const struct sy_offline_opt *o = r->o;
    const struct sy_engine *e = r->engine[engine];
    const struct sy_engine_plan *p = sy_engine_plan(e);
    double b = o->batch[i], prefill = MEDIAN(r, engine, i, prefill_s), step = MEDIAN(r, engine, i, step_s);
    *row = (struct sy_offline_row){
        .batch = o->batch[i],
        .n_in = o->n_in,
        .n_out = o->n_out,
        .n_thread = p->device.n_thread,
        .prefill_tok_s = prefill > 0 ? b * o->n_in / prefill : 0,
        .decode_tok_s = step > 0 ? b / step : 0,
        .prefill_ratio = RATIO(r, engine, i, prefill_s),
        .decode_ratio = RATIO(r, engine, i, step_s),
        .ttft_ms = MEDIAN(r, engine, i, ttft_s) * 1e3,
        .tpot_ms = step * 1e3,
        .prefill_ms = prefill * 1e3,
        .weight_bytes = p->weight_bytes_step,
        .kv_bytes = MEDIAN(r, engine, i, kv_bytes),
        .bytes_s = sy_engine_bandwidth(r->engine[engine]),
    };
    if (step > 0 && row->bytes_s > 0)
        row->bandwidth_share = (row->weight_bytes + row->kv_bytes) / step / row->bytes_s;
    fill_limits(r, e, row);
}

sy_status sy_offline_run(const struct sy_env *env, struct sy_engine *const *engine, size_t n_engine,
                         const struct sy_offline_opt *o, struct sy_offline_row *row, struct sy_err *err)
{
    struct run r = {.env = env, .engine = engine, .n_engine = n_engine, .o = o, .batch_max = largest(o)};
    size_t batch = (size_t)r.batch_max, repeat = (size_t)o->n_repeat;
    r.e = engine[0];
    sy_arena_init(&r.arena, env, 0);
    r.user = sy_arena_array(&r.arena, batch, sizeof *r.user);
    r.prompt = sy_arena_array(&r.arena, batch * (size_t)o->n_in, sizeof *r.prompt);
    r.sort = sy_arena_array(&r.arena, batch > repeat ? batch : repeat, sizeof *r.sort);
    r.fig = sy_arena_array(&r.arena, n_engine * o->n_batch * repeat, sizeof *r.fig);
    sy_status st = SY_OK;
    if (!r.user || !r.prompt || !r.sort || !r.fig)
        st = sy_fail(err, SY_ENOMEM, "no memory for %d prompts", r.batch_max);
    if (!st) st = measure(&r, err);
    for (size_t k = 0; !st && k < n_engine; k++)
        for (size_t i = 0; i < o->n_batch; i++) fill_row(&r, k, i, &row[k * o->n_batch + i]);
    sy_arena_release(&r.arena);
    return st;
}

/* ---- requests of mixed lengths ----------------------------------------------------------------------------------
 */

struct mixed_run {
    double seconds, out_tok, mean_e2e_s;
};

static sy_status submit_mixed(const struct sy_env *env, struct sy_engine *e, const struct sy_mixed_opt *o,
                              struct user *user, int32_t *prompt, uint64_t seed, double *out_tok, struct sy_err *err)
{
    int32_t n_vocab = sy_engine_plan(e)->info.n_vocab, in_lo = (int32_t)(o->range * o->n_in),
            out_lo = (int32_t)(o->range * o->n_out);
    for (int32_t i = 0; i < o->n_request; i++) {
        uint64_t own = sy_rng_u64(seed, (uint64_t)i);
        int32_t n_in = (int32_t)sy_uniform(own, 0, in_lo > 1 ? in_lo : 1, o->n_in);
        int32_t n_out = (int32_t)sy_uniform(own, 1, out_lo > 1 ? out_lo : 1, o->n_out);
        for (int32_t k = 0; k < n_in; k++) prompt[k] = (int32_t)sy_uniform(own, (uint64_t)k + 2, 0, n_vocab - 1);
        user[i] = (struct user){.env = env};
        struct sy_request q = {.prompt = prompt,
                               .n_prompt = n_in,
                               .n_max = n_out,
                               .ignore_eos = true,
                               .sampling = {.n_logprob = -1},
                               .on_event = on_event,
                               .ctx = &user[i]};
        sy_status st = sy_engine_submit(e, &q, NULL, err);
        if (st) return st;
        *out_tok += n_out;
    }
    return SY_OK;
}

static sy_status mixed_once(const struct sy_env *env, const struct sy_engine_opt *base, const struct sy_mixed_opt *o,
                            uint64_t seed, struct user *user, int32_t *prompt, struct mixed_run *m,
                            struct sy_err *err)
{
    struct sy_engine_opt opt = *base;
    struct sy_engine *e;
    opt.no_prefix_cache = true;
    opt.seq_max = o->seq_max;
    opt.ctx_len = o->n_in + o->n_out;
    opt.wait_max = o->n_request;
    sy_status st = sy_engine_new(env, &opt, &e, err);
    if (st) return st;
    struct sy_mixed_opt warm = *o;
    warm.n_request = o->n_request < o->seq_max ? o->n_request : o->seq_max;
    warm.n_out = 2;
    double ignored = 0;
    st = submit_mixed(env, e, &warm, user, prompt, seed, &ignored, err);
    if (!st) st = drain(e, &o->watch, err);
    uint64_t t0 = sy_now_ns(env);
    *m = (struct mixed_run){0};
    if (!st) st = submit_mixed(env, e, o, user, prompt, seed, &m->out_tok, err);
    if (!st) st = drain(e, &o->watch, err);
    m->seconds = (double)(sy_now_ns(env) - t0) / 1e9;
    for (int32_t i = 0; !st && i < o->n_request; i++)
        m->mean_e2e_s += (double)(user[i].t_last - t0) / 1e9 / o->n_request;
    sy_engine_free(e);
    return st;
}

sy_status sy_mixed_run(const struct sy_env *env, const struct sy_engine_opt opt[static 2],
                       const struct sy_mixed_opt *o, struct sy_mixed *out, struct sy_err *err)
{
    struct sy_arena a;
    sy_arena_init(&a, env, 0);
    size_t n = (size_t)o->n_repeat;
    struct user *user = sy_arena_array(&a, (size_t)o->n_request, sizeof *user);
    int32_t *prompt = sy_arena_array(&a, (size_t)o->n_in, sizeof *prompt);
    double *v = sy_arena_array(&a, 9 * n, sizeof *v); /* 4 figures of each engine, the gains */
    sy_status st = user && prompt && v ? SY_OK : sy_fail(err, SY_ENOMEM, "no memory for %d requests", o->n_request);
    for (size_t k = 0; !st && k < n; k++) {
        for (int i = 0; !st && i < 2; i++) {
            int how = k % 2 ? 1 - i : i; /* who goes first changes too */
            struct mixed_run m;
            st = mixed_once(env, &opt[how], o, sy_rng_u64(o->seed, k), user, prompt, &m, err);
            if (st) break;
            double *f = v + (size_t)how * 4 * n + k;
            f[0] = m.out_tok / m.seconds;
            f[n] = o->n_request / m.seconds;
            f[2 * n] = m.seconds;
            f[3 * n] = m.mean_e2e_s;
            if (o->watch.progress) o->watch.progress(o->watch.ctx, (double)(2 * k + (size_t)i + 1) / (double)(2 * n));
        }
        if (!st) v[8 * n + k] = v[k] / v[4 * n + k] - 1;
    }
    for (size_t how = 0; !st && how < 2; how++) {
        double *f = v + how * 4 * n;
        out->out_tok_s[how] = sy_median(f, n);
        out->request_s[how] = sy_median(f + n, n);
        out->seconds[how] = sy_median(f + 2 * n, n);
        out->mean_e2e_s[how] = sy_median(f + 3 * n, n);
    }
    if (!st) out->gain = sy_median(v + 8 * n, n);
    sy_arena_release(&a);
    return st;
}

/* ---- static shapes ------------------------------------------------------------------------------------------------
 */

static void read_stats(const struct sy_engine *e, struct sy_shapes_run *r)
{
    struct sy_engine_stats s = sy_engine_stats(e);
    double live = 0, all = 0;
    for (int32_t i = 0; i < s.n_bucket; i++) {
        live += (double)s.bucket[i].n_tok;
        all += (double)s.bucket[i].n_step * s.bucket[i].shape.tok;
    }
    r->n_ready = (uint64_t)sy_engine_plan(e)->device.n_compiled;
    r->n_later = s.n_compile;
    r->live = all > 0 ? live / all : 1;
}

static sy_status shapes_once(const struct sy_env *env, const struct sy_engine_opt *base, const struct sy_mixed_opt *o,
                             enum sy_shapes how, struct user *user, int32_t *prompt, struct sy_shapes_run *r,
                             struct sy_err *err)
{
    struct sy_engine_opt opt = *base;
    struct sy_engine *e;
    opt.shapes = how;
    opt.no_prefix_cache = true;
    opt.seq_max = o->seq_max;
    opt.ctx_len = o->n_in + o->n_out;
    opt.wait_max = o->n_request;
    opt.backend_opt.cache_dir = NULL; /* nothing is compiled beforehand */
    double out_tok = 0;
    uint64_t t0 = sy_now_ns(env);
    sy_status st = sy_engine_new(env, &opt, &e, err);
    if (st) return st;
    r->start_s = (double)(sy_now_ns(env) - t0) / 1e9;
    if (sy_engine_plan(e)->device.ragged)
        st = sy_fail(err, SY_ENOSUP, "--shapes: backend %s takes steps of any shape; expected pjrt:PLUGIN.so",
                     sy_engine_plan(e)->device.name);
    t0 = sy_now_ns(env);
    if (!st) st = submit_mixed(env, e, o, user, prompt, sy_rng_u64(o->seed, 0), &out_tok, err);
    if (!st) st = drain(e, &o->watch, err);
    r->seconds = (double)(sy_now_ns(env) - t0) / 1e9;
    r->out_tok_s = out_tok / r->seconds;
    read_stats(e, r);
    sy_engine_free(e);
    return st;
}

sy_status sy_shapes_compare(const struct sy_env *env, const struct sy_engine_opt *base, const struct sy_mixed_opt *o,
                            struct sy_shapes_run out[3], struct sy_err *err)
{
    struct sy_arena a;
    sy_arena_init(&a, env, 0);
    struct user *user = sy_arena_array(&a, (size_t)o->n_request, sizeof *user);
    int32_t *prompt = sy_arena_array(&a, (size_t)o->n_in, sizeof *prompt);
    sy_status st = user && prompt ? SY_OK : sy_fail(err, SY_ENOMEM, "no memory for %d requests", o->n_request);
    for (int how = 0; how < 3 && !st; how++) {
        st = shapes_once(env, base, o, (enum sy_shapes)how, user, prompt, &out[how], err);
        if (!st && o->watch.progress) o->watch.progress(o->watch.ctx, (how + 1) / 3.0);
    }
    sy_arena_release(&a);
    return st;
}
