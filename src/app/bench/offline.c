/* offline.c - batches of random prompts without a server. */
#include <stdio.h>
#include <string.h>

#include "app/bench/bench.h"
#include "app/session/session.h"
#include "bench/peaks.h"
#include "bench/plot.h"

struct list {
    double *at;
    size_t n;
};
struct sweep { /* rows: by threads, by prompt, by batch */
    struct sy_engine_opt engine;
    struct sy_offline_opt o;
    struct list n_in, threads; /* empty: as --input-len and --threads say */
    struct sy_offline_row *row;
    struct sy_point *point;
    size_t n_row;
    struct sy_engine_plan plan; /* of the last engine */
};

/* What a batch comes to when its requests run from first to last together. */
static struct sy_point point_of(const struct sy_offline_row *r)
{
    double e2e = (r->ttft_ms + (r->n_out - 1) * r->tpot_ms) / 1e3,
           all = (r->prefill_ms + (r->n_out - 1) * r->tpot_ms) / 1e3;
    return (struct sy_point){.load = r->batch,
                             .in_tok_s = all > 0 ? r->batch * (double)r->n_in / all : 0,
                             .out_tok_s = all > 0 ? r->batch * (double)r->n_out / all : 0,
                             .interactivity = r->tpot_ms > 0 ? 1e3 / r->tpot_ms : 0,
                             .e2e_s = e2e};
}

static double share(double v, double limit) { return limit > 0 ? 100 * v / limit : 0; }

static void print_table(const struct sweep *s, struct sy_buf *b)
{
    sy_buf_printf(b, "%7s %6s %6s %6s %12s %9s %10s %11s %9s %10s %8s %10s\n", "threads", "batch", "input", "output",
                  "prefill t/s", "of limit", "TTFT ms", "decode t/s", "of limit", "TPOT ms", "GB/s", "of memory");
    double lo = s->row[0].bytes_s, hi = lo;
    for (size_t i = 0; i < s->n_row; i++) {
        const struct sy_offline_row *r = &s->row[i];
        double gb_s = r->tpot_ms > 0 ? (r->weight_bytes + r->kv_bytes) / (r->tpot_ms * 1e6) : 0;
        sy_buf_printf(b, "%7d %6d %6d %6d %12.1f %8.0f%% %10.2f %11.1f %8.0f%% %10.2f %8.2f %9.0f%%\n", r->n_thread,
                      r->batch, r->n_in, r->n_out, r->prefill_tok_s, share(r->prefill_tok_s, r->prefill_limit_tok_s),
                      r->ttft_ms, r->decode_tok_s, share(r->decode_tok_s, r->decode_limit_tok_s), r->tpot_ms, gb_s,
                      r->bandwidth_share * 100);
        lo = r->bytes_s < lo ? r->bytes_s : lo;
        hi = r->bytes_s > hi ? r->bytes_s : hi;
    }
    if (hi > lo)
        sy_buf_printf(b, "memory reads %.1f to %.1f GB/s; medians of %d\n", lo / 1e9, hi / 1e9, s->o.n_repeat);
    else sy_buf_printf(b, "memory reads %.1f GB/s; medians of %d\n", lo / 1e9, s->o.n_repeat);
}

static void put_options(struct sy_jout *j, const struct sy_args *a, const struct sy_engine_plan *p)
{
    sy_jout_text(j, "model", sy_arg_text(a, "model"));
    sy_jout_int(j, "threads", p->device.n_thread);
    sy_jout_text(j, "isa", p->device.isa);
    sy_jout_text(j, "version", SY_VERSION);
    sy_jout_int(j, "block_size", p->block_len);
    sy_jout_int(j, "max_batched_tokens", p->batch_tok_max);
    sy_jout_text(j, "kv_dtype", sy_arg_text(a, "kv-dtype"));
    sy_jout_text(j, "compute", sy_arg_text(a, "compute"));
    sy_jout_text(j, "scheduling", sy_arg_text(a, "scheduling"));
}

static sy_status write_json(const struct sy_args *a, const struct sweep *s, struct sy_err *err)
{
    struct sy_buf b;
    sy_buf_init(&b, &a->app->env, 0);
    struct sy_jout j = {&b, false};
    sy_jout_open(&j, NULL, '{');
    sy_jout_open(&j, "results", '[');
    for (size_t i = 0; i < s->n_row; i++) {
        const struct sy_offline_row *r = &s->row[i];
        const struct sy_point *p = &s->point[i];
        sy_jout_line(&j);
        sy_jout_open(&j, NULL, '{');
        sy_jout_int(&j, "batch", r->batch);
        sy_jout_int(&j, "threads", r->n_thread);
        sy_jout_int(&j, "input_len", r->n_in);
        sy_jout_int(&j, "output_len", r->n_out);
        sy_jout_num(&j, "prefill_tok_s", r->prefill_tok_s);
        sy_jout_num(&j, "decode_tok_s", r->decode_tok_s);
        sy_jout_num(&j, "prefill_limit_tok_s", r->prefill_limit_tok_s);
        sy_jout_num(&j, "decode_limit_tok_s", r->decode_limit_tok_s);
        sy_jout_num(&j, "ttft_ms", r->ttft_ms);
        sy_jout_num(&j, "tpot_ms", r->tpot_ms);
        sy_jout_num(&j, "weight_bytes", r->weight_bytes);
        sy_jout_num(&j, "kv_bytes", r->kv_bytes);
        sy_jout_num(&j, "bandwidth_share", r->bandwidth_share);
        sy_jout_num(&j, "e2e_ms", p->e2e_s * 1e3);
        sy_jout_num(&j, "input_tok_s", p->in_tok_s);
        sy_jout_num(&j, "output_tok_s", p->out_tok_s);
        if (sy_arg_num(a, "price") > 0) sy_dollars_json(&j, p);
        sy_jout_close(&j, '}');
    }
    sy_buf_char(&b, '\n');
    sy_jout_close(&j, ']');
    put_options(&j, a, &s->plan);
    sy_jout_int(&j, "repeat", s->o.n_repeat);
    sy_jout_int(&j, "seed", (int64_t)s->o.seed);
    sy_jout_num(&j, "bandwidth", s->row[0].bytes_s);
    sy_jout_close(&j, '}');
    return sy_bench_write_json(a, &b, err);
}

static sy_status write_svg(const struct sy_args *a, const struct sweep *s, struct sy_err *err)
{
    struct sy_buf b;
    char title[160];
    const char *name = strrchr(s->engine.model, '/');
    snprintf(title, sizeof title, "%.80s, measured on %d threads", name && name[1] ? name + 1 : s->engine.model,
             s->plan.device.n_thread);
    if (s->threads.n > 1) *strstr(title, ", measured") = 0;
    sy_buf_init(&b, &a->app->env, 0);
    sy_offline_svg(s->row, s->n_row, title, &b);
    sy_buf_char(&b, '\n');
    sy_status st = sy_report_write(&b, sy_arg_text(a, "svg"), err);
    sy_buf_release(&b);
    return st;
}

/* The batches of one engine: its prompts' length and its threads are the engine's. */
static sy_status run_engine(struct sy_args *a, struct sweep *s, struct sy_err *err)
{
    struct sy_engine_opt opt = s->engine;
    struct sy_engine *e;
    struct sy_bench_watcher w;
    sy_status st = sy_offline_plan(&s->o, &opt, err);
    if (!st) st = sy_engine_new(&a->app->env, &opt, &e, err);
    if (st) return st;
    s->plan = *sy_engine_plan(e);
    if (!strcmp(s->plan.device.name, "cpu") && s->o.ops_s <= 0)
        st = sy_peaks_best(&a->app->env, s->plan.device.n_thread, opt.backend_opt.compute, &s->o.ops_s, err);
    s->o.watch = sy_bench_watch(&w, a->app, "offline");
    if (!st) st = sy_offline_run(&a->app->env, &e, 1, &s->o, s->row + s->n_row, err);
    sy_progress_end(&w.bar);
    if (!st) s->n_row += s->o.n_batch;
    sy_engine_free(e);
    return st;
}

static sy_status run_sweep(struct sy_args *a, struct sweep *s, struct sy_err *err)
{
    sy_status st = SY_OK;
    size_t n_thread = s->threads.n ? s->threads.n : 1, n_in = s->n_in.n ? s->n_in.n : 1,
           n = n_thread * n_in * s->o.n_batch;
    s->row = sy_arena_array(&a->arena, n, sizeof *s->row);
    s->point = sy_arena_array(&a->arena, n, sizeof *s->point);
    if (!s->row || !s->point) return sy_fail(err, SY_ENOMEM, "no memory for %zu rows", n);
    for (size_t t = 0; !st && t < n_thread; t++) {
        if (s->threads.n) s->engine.backend_opt.n_thread = (int32_t)s->threads.at[t];
        s->o.ops_s = 0; /* of so many threads: measured with the first engine */
        for (size_t i = 0; !st && i < n_in; i++) {
            if (s->n_in.n) s->o.n_in = (int32_t)s->n_in.at[i];
            st = run_engine(a, s, err);
        }
    }
    struct sy_buf b;
    sy_buf_init(&b, &a->app->env, 0);
    if (!st) {
        for (size_t i = 0; i < n; i++) s->point[i] = point_of(&s->row[i]);
        print_table(s, &b);
        sy_bench_print(a, &b, s->point, n, "batch", sy_bench_price(a));
        if (sy_arg_given(a, "json")) st = write_json(a, s, err);
        if (!st && sy_arg_given(a, "svg")) st = write_svg(a, s, err);
    }
    sy_buf_release(&b);
    return st;
}

static struct sy_mixed_opt mixed_opt(struct sy_args *a, const struct sweep *s)
{
    struct sy_mixed_opt o = {.seq_max = 1,
                             .n_in = s->o.n_in,
                             .n_out = s->o.n_out,
                             .n_repeat = s->o.n_repeat,
                             .seed = s->o.seed,
                             .range = sy_arg_given(a, "random-range") ? sy_arg_num(a, "random-range") : 0.1};
    for (size_t i = 0; i < s->o.n_batch; i++) o.seq_max = s->o.batch[i] > o.seq_max ? s->o.batch[i] : o.seq_max;
    o.n_request = sy_arg_given(a, "num-prompts") ? (int32_t)sy_arg_int(a, "num-prompts") : 4 * o.seq_max;
    return o;
}

static sy_status run_mixed(struct sy_args *a, struct sweep *s, struct sy_err *err)
{
    static const char *const name[] = {"continuous", "static"};
    struct sy_bench_watcher w;
    struct sy_mixed m;
    struct sy_mixed_opt o = mixed_opt(a, s);
    o.watch = sy_bench_watch(&w, a->app, "mixed");
    struct sy_engine_opt pair[2] = {s->engine, s->engine};
    pair[0].scheduling = SY_CONTINUOUS;
    pair[1].scheduling = SY_STATIC;
    sy_status st = sy_mixed_run(&a->app->env, pair, &o, &m, err);
    sy_progress_end(&w.bar);
    if (st) return st;
    struct sy_buf b;
    sy_buf_init(&b, &a->app->env, 0);
    struct sy_jout j = {&b, false};
    FILE *to = sy_bench_table(a);
    sy_jout_open(&j, NULL, '{');
    fprintf(to, "%d requests, %d at once, %.0f..%d in, %.0f..%d out; medians of %d\n", o.n_request, o.seq_max,
            o.range * o.n_in, o.n_in, o.range * o.n_out, o.n_out, o.n_repeat);
    fprintf(to, "%-12s %14s %10s %12s %10s\n", "batching", "output tok/s", "req/s", "mean E2E s", "seconds");
    for (int i = 0; i < 2; i++) {
        fprintf(to, "%-12s %14.1f %10.3f %12.3f %10.2f\n", name[i], m.out_tok_s[i], m.request_s[i], m.mean_e2e_s[i],
                m.seconds[i]);
        sy_jout_open(&j, name[i], '{');
        sy_jout_num(&j, "output_tok_s", m.out_tok_s[i]);
        sy_jout_num(&j, "request_s", m.request_s[i]);
        sy_jout_num(&j, "mean_e2e_ms", m.mean_e2e_s[i] * 1e3);
        sy_jout_num(&j, "seconds", m.seconds[i]);
        sy_jout_close(&j, '}');
    }
    fprintf(to, "continuous over static: %+.1f %%\n", m.gain * 100);
    sy_jout_num(&j, "gain", m.gain);
    sy_jout_close(&j, '}');
    return sy_bench_write_json(a, &b, err);
}

static sy_status run_shapes(struct sy_args *a, struct sweep *s, struct sy_err *err)
{
    static const char *const name[] = {"buckets", "one shape", "each its own"}, *const key[] = {"buckets", "one",
                                                                                                "exact"};
    struct sy_bench_watcher w;
    struct sy_shapes_run r[3];
    struct sy_mixed_opt o = mixed_opt(a, s);
    o.watch = sy_bench_watch(&w, a->app, "shapes");
    sy_status st = sy_shapes_compare(&a->app->env, &s->engine, &o, r, err);
    sy_progress_end(&w.bar);
    if (st) return st;
    struct sy_buf b;
    sy_buf_init(&b, &a->app->env, 0);
    struct sy_jout j = {&b, false};
    FILE *to = sy_bench_table(a);
    sy_jout_open(&j, NULL, '{');
    fprintf(to, "%d requests, %d at once, %.0f..%d in, %.0f..%d out\n", o.n_request, o.seq_max, o.range * o.n_in,
            o.n_in, o.range * o.n_out, o.n_out);
    fprintf(to, "%-14s %12s %10s %10s %14s %8s\n", "steps", "output tok/s", "seconds", "start s", "compiled", "live");
    for (int i = 0; i < 3; i++) {
        fprintf(to, "%-14s %12.1f %10.2f %10.2f %6llu + %5llu %7.1f%%\n", name[i], r[i].out_tok_s, r[i].seconds,
                r[i].start_s, (unsigned long long)r[i].n_ready, (unsigned long long)r[i].n_later, 100 * r[i].live);
        sy_jout_open(&j, key[i], '{');
        sy_jout_num(&j, "output_tok_s", r[i].out_tok_s);
        sy_jout_num(&j, "seconds", r[i].seconds);
        sy_jout_num(&j, "start_s", r[i].start_s);
        sy_jout_int(&j, "compiled_before", (int64_t)r[i].n_ready);
        sy_jout_int(&j, "compiled_after", (int64_t)r[i].n_later);
        sy_jout_num(&j, "live_share", r[i].live);
        sy_jout_close(&j, '}');
    }
    sy_jout_close(&j, '}');
    return sy_bench_write_json(a, &b, err);
}

/* Nothing when the flag is not given and has no default. */
static sy_status read_list(struct sy_args *a, const char *flag, double lo, double hi, struct list *out,
                           struct sy_err *err)
{
    *out = (struct list){0};
    if (!sy_arg_text(a, flag)) return SY_OK;
    return sy_bench_list(a, flag, sy_arg_text(a, flag), lo, hi, true, &out->at, &out->n, err);
}

sy_status sy_bench_offline(struct sy_args *a, struct sy_err *err)
{
    struct list batch;
    struct sweep s = {.o = {.n_in = (int32_t)sy_arg_int(a, "input-len"),
                            .n_out = (int32_t)sy_arg_int(a, "output-len"),
                            .n_repeat = (int32_t)sy_arg_int(a, "repeat"),
                            .seed = (uint64_t)sy_arg_int(a, "seed")}};
    sy_status st = sy_session_opt(a, &s.engine, err);
    s.engine.scheduling = (enum sy_scheduling)sy_arg_choice(a, "scheduling");
    if (!st) st = read_list(a, "batch", 1, 4096, &batch, err);
    if (!st) st = read_list(a, "sweep-input", 1, SY_BENCH_LEN_MAX, &s.n_in, err);
    if (!st) st = read_list(a, "sweep-threads", 1, 1024, &s.threads, err);
    if (!st) st = sy_session_models(a, &s.engine, err);
    if (st) return st;
    bool mixed = sy_arg_on(a, "mixed") || sy_arg_on(a, "shapes");
    if (mixed && (s.n_in.n || s.threads.n || sy_arg_given(a, "svg")))
        return sy_fail(err, SY_EARG,
                       "bench offline: --mixed and --shapes go with none of --sweep-input, --sweep-threads, --svg");
    int32_t *whole = sy_arena_array(&a->arena, batch.n, sizeof *whole);
    if (!whole) return sy_fail(err, SY_ENOMEM, "no memory for --batch");
    for (size_t i = 0; i < batch.n; i++) whole[i] = (int32_t)batch.at[i];
    s.o.batch = whole;
    s.o.n_batch = batch.n;
    s.engine.backend_opt.one_sequence =
        batch.n == 1 && whole[0] == 1 && !s.n_in.n && sy_answer_outweighs(s.o.n_in, s.o.n_out); /* as 'systole run' */
    sy_interrupt_hold(a->app->interrupt);
    st = sy_arg_on(a, "shapes")  ? run_shapes(a, &s, err)
         : sy_arg_on(a, "mixed") ? run_mixed(a, &s, err)
                                 : run_sweep(a, &s, err);
    sy_interrupt_drop(a->app->interrupt);
    return st;
}
