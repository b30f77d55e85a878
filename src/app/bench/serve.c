/* serve.c - a load on a server, and what its users see. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "app/bench/bench.h"
#include "app/bench/serving.h"
#include "base/file.h"

enum { FILE_BYTES_MAX = 1 << 30, SESSIONS_MAX = 1000000, RATE_SECONDS = 30, RATE_LEAST = 20 };

struct sweep {
    struct sy_args *a;
    struct sy_load_opt o;
    struct sy_workload file; /* of --dataset or --trace */
    char *text;
    const double *at; /* concurrencies or rates; one 0: the trace's own times */
    size_t n;
    bool by_rate;
    char salt[48];
    struct sy_load_seen *seen;
    struct sy_point *point;
};

/* A server that hears from thousands at once needs as many descriptors on this side too. */
static void allow_many_files(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur == l.rlim_max) return;
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
}

static sy_status read_file(struct sweep *s, struct sy_err *err)
{
    const struct sy_args *a = s->a;
    bool trace = sy_arg_given(a, "trace");
    const char *path = sy_arg_text(a, trace ? "trace" : "dataset");
    if (!path) return SY_OK;
    if (trace && sy_arg_given(a, "dataset"))
        return sy_fail(err, SY_EARG, "bench serve: expected --dataset or --trace, found both");
    const struct sy_env *env = &a->app->env;
    size_t n;
    sy_status st = sy_file_read(env, path, FILE_BYTES_MAX, &s->text, &n, err);
    if (st) return st;
    uint64_t seed = s->o.seed;
    int32_t n_out = sy_arg_given(a, "output-len") ? (int32_t)sy_arg_int(a, "output-len") : 0;
    st = trace ? sy_workload_trace(env, s->text, n, seed, &s->file, err)
               : sy_workload_dataset(env, s->text, n, n_out, seed, &s->file, err);
    return st ? sy_while(err, st, "'%s'", path) : SY_OK;
}

static sy_status read_points(struct sweep *s, struct sy_err *err)
{
    struct sy_args *a = s->a;
    static const double as_recorded[1];
    double *list;
    s->by_rate = sy_arg_given(a, "rate");
    if (s->by_rate && sy_arg_given(a, "concurrency"))
        return sy_fail(err, SY_EARG, "bench serve: expected --concurrency or --rate, found both");
    if (!s->by_rate && !sy_arg_given(a, "concurrency") && s->file.timed) {
        s->at = as_recorded;
        s->n = 1;
        return SY_OK;
    }
    const char *flag = s->by_rate ? "rate" : "concurrency";
    sy_status st =
        sy_bench_list(a, flag, sy_arg_text(a, flag), s->by_rate ? 1e-3 : 1, 65536, !s->by_rate, &list, &s->n, err);
    s->at = list;
    return st;
}

static sy_status choose_prompts(struct sweep *s, struct sy_err *err)
{
    const struct sy_args *a = s->a;
    struct sy_load_opt *o = &s->o;
    struct sy_client *c;
    struct sy_server_says says;
    sy_status st = sy_client_new(&a->app->env, &o->client, &c, err);
    if (st) return st;
    st = sy_client_probe(c, &says, err);
    sy_client_free(c);
    if (st) return st;
    if (!o->model) o->model = sy_arena_text(&s->a->arena, says.model, strlen(says.model));
    if (!o->model) return sy_fail(err, SY_ENOMEM, "no memory for the model's name");
    o->ids = !o->client.chat && !sy_arg_on(a, "text") && !sy_arg_given(a, "dataset");
    o->n_vocab =
        sy_arg_given(a, "vocab-size") || !says.n_vocab ? (int32_t)sy_arg_int(a, "vocab-size") : (int32_t)says.n_vocab;
    return SY_OK;
}

/* Sessions of a point: 10 per user; of a rate, half a minute's; of a trace with times, all of it. */
static size_t sessions_of(const struct sweep *s, double at)
{
    double n = at == 0 ? (double)s->file.n : s->by_rate ? at * RATE_SECONDS : 10 * at;
    if (s->by_rate && n < RATE_LEAST) n = RATE_LEAST;
    if (sy_arg_given(s->a, "num-prompts")) n = (double)sy_arg_int(s->a, "num-prompts");
    return n < SESSIONS_MAX ? (size_t)n : SESSIONS_MAX;
}

static sy_status run_load(struct sweep *s, size_t n, uint64_t seed, double users, double rate,
                          struct sy_load_seen *seen, struct sy_err *err)
{
    const struct sy_args *a = s->a;
    if (s->file.n) return sy_load_run(&a->app->env, &s->o, &s->file, n, users, rate, seen, err);
    struct sy_workload w;
    double range = sy_arg_given(a, "random-range") ? sy_arg_num(a, "random-range") : 0.8;
    sy_status st = sy_workload_random(&a->app->env, n, (int32_t)sy_arg_int(a, "input-len"),
                                      (int32_t)sy_arg_int(a, "output-len"), range, seed, &w, err);
    if (st) return st;
    st = sy_load_run(&a->app->env, &s->o, &w, n, users, rate, seen, err);
    sy_workload_release(&w);
    return st;
}

static sy_status run_point(struct sweep *s, size_t i, struct sy_err *err)
{
    struct sy_args *a = s->a;
    struct sy_load_seen warm;
    struct sy_bench_watcher w;
    double at = s->at[i], users = s->by_rate ? 0 : at, rate = s->by_rate ? at : 0;
    double wanted = sy_arg_given(a, "warmups") ? (double)sy_arg_int(a, "warmups")
                    : s->by_rate || at == 0    ? 2
                                               : 2 * at;
    size_t n_warm = (size_t)wanted;
    char label[40];
    snprintf(label, sizeof label, s->by_rate ? "rate %g" : "concurrency %g", at);
    snprintf(s->salt, sizeof s->salt, "bench-%lld-%zu-warm", (long long)s->o.seed, i);
    sy_status st = SY_OK;
    s->o.watch = sy_bench_watch(&w, a->app, "warm-up");
    if (n_warm) st = run_load(s, n_warm, sy_bench_seed(s->o.seed, 2 * i), users > 0 ? users : 1, 0, &warm, err);
    sy_progress_end(&w.bar);
    snprintf(s->salt, sizeof s->salt, "bench-%lld-%zu", (long long)s->o.seed, i);
    s->o.watch = sy_bench_watch(&w, a->app, label);
    if (!st) st = run_load(s, sessions_of(s, at), sy_bench_seed(s->o.seed, 2 * i + 1), users, rate, &s->seen[i], err);
    sy_progress_end(&w.bar);
    if (st) return st;
    sy_serving_print(sy_bench_table(a), &s->seen[i]);
    s->point[i] = sy_serving_point(&s->seen[i]);
    return SY_OK;
}

static sy_status run_points(struct sweep *s, struct sy_err *err)
{
    struct sy_args *a = s->a;
    s->seen = sy_arena_array(&a->arena, s->n, sizeof *s->seen);
    s->point = sy_arena_array(&a->arena, s->n, sizeof *s->point);
    if (!s->seen || !s->point) return sy_fail(err, SY_ENOMEM, "no memory for %zu points", s->n);
    sy_status st = SY_OK;
    for (size_t i = 0; !st && i < s->n; i++) st = run_point(s, i, err);
    return st;
}

sy_status sy_serving_answered(const struct sy_serving_set *v, struct sy_err *err)
{
    for (size_t i = 0; i < v->n; i++)
        if (v->seen[i].n_done) return SY_OK;
    return sy_fail(err, SY_EIO, "no request was answered: %s", v->seen[0].error[0].kind);
}

sy_status sy_serving_load(struct sy_args *a, const char *url, struct sy_serving_set *out, struct sy_err *err)
{
    struct sweep *s = sy_arena_get(&a->arena, sizeof *s);
    if (!s) return sy_fail(err, SY_ENOMEM, "no memory for the load");
    *s = (struct sweep){.a = a,
                        .o = {.client = {.url = url,
                                         .api_key = sy_arg_text(a, "api-key"),
                                         .chat = !strcmp(sy_arg_text(a, "endpoint"), "chat"),
                                         .timeout_s = sy_arg_num(a, "timeout"),
                                         .parallel = 1},
                              .model = sy_arg_given(a, "url") ? sy_arg_text(a, "model") : NULL,
                              .seed = (uint64_t)sy_arg_int(a, "seed")}};
    allow_many_files();
    sy_interrupt_hold(a->app->interrupt);
    sy_status st = read_file(s, err);
    /* Prompts of a file are the same at every point: a prefix cache must not carry them from one to the next. */
    if (!st && s->file.n) s->o.cache_salt = s->salt;
    if (!st) st = read_points(s, err);
    if (!st) st = choose_prompts(s, err);
    if (!st) st = run_points(s, err);
    sy_interrupt_drop(a->app->interrupt);
    sy_workload_release(&s->file);
    sy_delete(&a->app->env, s->text);
    *out = (struct sy_serving_set){&s->o, s->seen, s->point, s->n, s->by_rate};
    return st;
}

static sy_status write_json(struct sy_args *a, const struct sy_serving_set *v, struct sy_err *err)
{
    struct sy_buf b;
    sy_buf_init(&b, &a->app->env, 0);
    struct sy_jout j = {&b, false};
    struct sy_serving_says says = sy_serving_usual(a, v->o->model);
    sy_jout_open(&j, NULL, '{');
    sy_jout_open(&j, "results", '[');
    for (size_t i = 0; i < v->n; i++) {
        sy_jout_line(&j);
        sy_serving_put(&j, a, &says, &v->seen[i], &v->point[i]);
    }
    sy_buf_char(&b, '\n');
    sy_jout_close(&j, ']');
    sy_jout_text(&j, "url", v->o->client.url);
    sy_jout_text(&j, "endpoint", v->o->client.chat ? "chat" : "completions");
    sy_jout_text(&j, "prompts", v->o->ids ? "token ids" : "text");
    sy_jout_int(&j, "seed", (int64_t)v->o->seed);
    sy_jout_text(&j, "version", SY_VERSION);
    sy_jout_close(&j, '}');
    return sy_bench_write_json(a, &b, err);
}

sy_status sy_bench_serve(struct sy_args *a, struct sy_err *err)
{
    struct sy_serving_set v;
    sy_status st = sy_serving_check(a, err);
    if (!st) st = sy_serving_load(a, sy_arg_text(a, "url"), &v, err);
    if (st) return st;
    struct sy_buf b;
    sy_buf_init(&b, &a->app->env, 0);
    sy_bench_print(a, &b, v.point, v.n, v.by_rate ? "rate" : "concurrency", sy_bench_price(a));
    sy_buf_release(&b);
    if (sy_arg_given(a, "json")) st = write_json(a, &v, err);
    struct sy_sweep_row *row = sy_arena_array(&a->arena, v.n, sizeof *row);
    if (!st && !row) st = sy_fail(err, SY_ENOMEM, "no memory for %zu points", v.n);
    for (size_t i = 0; i < v.n && !st; i++)
        row[i] = (struct sy_sweep_row){sy_serving_usual(a, v.o->model), v.seen[i], v.point[i], v.o->client.url, NAN};
    if (!st && sy_arg_given(a, "report")) st = sy_sweep_report(a, v.o->client.url, row, v.n, err);
    return st ? st : sy_serving_answered(&v, err);
}
