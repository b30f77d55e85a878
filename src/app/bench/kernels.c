/* kernels.c - every kernel on every instruction set level, beside what the machine can do. */
#include "bench/kernels.h"

#include <stdio.h>

#include "app/bench/bench.h"

enum { ROWS_MAX = 4096 };

struct shown {
    FILE *table;
    struct sy_bench_watcher w;
    struct sy_watch watch;
    struct sy_buf machine, results; /* parts of the JSON */
    struct sy_jout levels, list;
};

static void giga(double v, char out[static 16])
{
    if (v > 0) snprintf(out, 16, "%.1f", v / 1e9);
    else snprintf(out, 16, "-");
}

static void on_peaks(void *ctx, const char *isa, const struct sy_peaks *p)
{
    struct shown *s = ctx;
    char a[4][16];
    sy_progress_end(&s->w.bar);
    if (isa) {
        giga(p->f32, a[0]);
        giga(p->bf16, a[1]);
        giga(p->int8, a[2]);
        fprintf(s->table, "%-10s multiply-add, GOP/s:  f32 %s  bf16 %s  int8 %s  (%d threads)\n", isa, a[0], a[1],
                a[2], p->n_thread);
        sy_jout_line(&s->levels);
        sy_jout_open(&s->levels, NULL, '{');
        sy_jout_text(&s->levels, "isa", isa);
        sy_jout_num(&s->levels, "f32_gop_s", p->f32 / 1e9);
        sy_jout_num(&s->levels, "bf16_gop_s", p->bf16 / 1e9);
        sy_jout_num(&s->levels, "int8_gop_s", p->int8 / 1e9);
        sy_jout_close(&s->levels, '}');
        return;
    }
    giga(p->memory, a[0]);
    giga(p->l3, a[1]);
    giga(p->l2, a[2]);
    giga(p->l1, a[3]);
    fprintf(s->table, "%-10s read, GB/s:  memory %s  L3 %s  L2 %s  L1 %s  (%d threads)\n\n", "machine", a[0], a[1],
            a[2], a[3], p->n_thread);
    struct sy_jout j = {&s->machine, true};
    sy_jout_int(&j, "threads", p->n_thread);
    sy_jout_num(&j, "memory_gb_s", p->memory / 1e9);
    sy_jout_num(&j, "l3_gb_s", p->l3 / 1e9);
    sy_jout_num(&j, "l2_gb_s", p->l2 / 1e9);
    sy_jout_num(&j, "l1_gb_s", p->l1 / 1e9);
    fprintf(s->table, "%-10s %-7s %-18s %-36s %6s %12s %9s %10s %9s\n", "isa", "family", "kernel", "shape", "rows",
            "us", "GB/s", "GOP/s", "of limit");
}

static void on_result(void *ctx, const struct sy_kernel_result *r)
{
    struct shown *s = ctx;
    char ops[16];
    sy_progress_end(&s->w.bar);
    giga(r->seconds > 0 ? r->ops / r->seconds : 0, ops);
    fprintf(s->table, "%-10s %-7s %-18s %-36s %6lld %12.2f %9.2f %10s %8.0f%%\n", r->isa, r->family, r->kernel,
            r->shape, (long long)r->rows, r->seconds * 1e6, r->seconds > 0 ? r->bytes / r->seconds / 1e9 : 0, ops,
            r->share * 100);
    fflush(s->table);
    struct sy_jout *j = &s->list;
    sy_jout_line(j);
    sy_jout_open(j, NULL, '{');
    sy_jout_text(j, "isa", r->isa);
    sy_jout_text(j, "family", r->family);
    sy_jout_text(j, "kernel", r->kernel);
    sy_jout_text(j, "shape", r->shape);
    sy_jout_int(j, "rows", r->rows);
    sy_jout_num(j, "us", r->seconds * 1e6);
    sy_jout_num(j, "gb_s", r->bytes / r->seconds / 1e9);
    sy_jout_num(j, "gop_s", r->ops / r->seconds / 1e9);
    sy_jout_num(j, "limit_share", r->share);
    sy_jout_close(j, '}');
}

static void on_progress(void *ctx, double done)
{
    struct shown *s = ctx;
    s->watch.progress(s->watch.ctx, done);
}

static bool on_stop(void *ctx)
{
    struct shown *s = ctx;
    return s->watch.stop(s->watch.ctx);
}

/* Memory by the number of threads: where it stops growing, more of them only wait. */
static sy_status by_threads(struct sy_args *a, struct shown *s, int32_t most, struct sy_err *err)
{
    struct sy_jout j = {&s->machine, true};
    sy_jout_open(&j, "by_threads", '[');
    for (int32_t n = 1; n <= most; n = n < most && n * 2 > most ? most : n * 2) {
        struct sy_pool *pool;
        struct sy_kernels k;
        struct sy_peaks p = {0};
        sy_status st = sy_kernels_pick(NULL, &k, err);
        if (!st) st = sy_pool_new(&a->app->env, n, &pool, err);
        if (st) return st;
        st = sy_peaks_read(pool, &k, &p, err);
        sy_peaks_compute(pool, &k, &p);
        sy_pool_free(pool);
        if (st) return st;
        char f[7][16];
        const double v[7] = {p.memory, p.l3, p.l2, p.l1, p.f32, p.bf16, p.int8};
        for (int i = 0; i < 7; i++) giga(v[i], f[i]);
        fprintf(s->table, "%3d thread%s  GB/s: memory %s  L3 %s  L2 %s  L1 %s   GOP/s: f32 %s  bf16 %s  int8 %s\n", n,
                n == 1 ? " " : "s", f[0], f[1], f[2], f[3], f[4], f[5], f[6]);
        sy_jout_open(&j, NULL, '{');
        static const char *const name[7] = {"memory_gb_s", "l3_gb_s",    "l2_gb_s",   "l1_gb_s",
                                            "f32_gop_s",   "bf16_gop_s", "int8_gop_s"};
        sy_jout_int(&j, "threads", n);
        for (int i = 0; i < 7; i++) sy_jout_num(&j, name[i], v[i] / 1e9);
        sy_jout_close(&j, '}');
        if (n == most) break;
    }
    sy_jout_close(&j, ']');
    return SY_OK;
}

static sy_status write_json(const struct sy_args *a, const struct shown *s, const struct sy_buf *levels,
                            struct sy_err *err)
{
    struct sy_buf b;
    sy_buf_init(&b, &a->app->env, 0);
    b.failed = s->machine.failed || s->results.failed || levels->failed;
    sy_buf_printf(&b, "{\"version\":\"%s\"%s,\"levels\":[%s\n],\"results\":[%s\n]}\n", SY_VERSION,
                  s->machine.len ? s->machine.at : "", levels->len ? levels->at : "",
                  s->results.len ? s->results.at : "");
    sy_status st = sy_report_write(&b, sy_arg_text(a, "json"), err);
    sy_buf_release(&b);
    return st;
}

sy_status sy_bench_kernels(struct sy_args *a, struct sy_err *err)
{
    double *list;
    struct shown s = {.table = sy_bench_table(a)};
    struct sy_buf levels;
    struct sy_kernels_opt o = {.isa = sy_arg_text(a, "isa"),
                               .family = sy_arg_text(a, "family"),
                               .shape = sy_arg_text(a, "shape"),
                               .seconds = sy_arg_num(a, "seconds"),
                               .n_thread = (int32_t)sy_arg_int(a, "threads"),
                               .on_peaks = on_peaks,
                               .on_result = on_result,
                               .watch = {on_progress, on_stop, &s},
                               .ctx = &s};
    sy_status st = sy_bench_list(a, "rows", sy_arg_text(a, "rows"), 1, ROWS_MAX, true, &list, &o.n_rows, err);
    int32_t *rows = st ? NULL : sy_arena_array(&a->arena, o.n_rows, sizeof *rows);
    struct sy_kernels known;
    if (!st) st = sy_kernels_pick(o.isa, &known, err); /* before anything is measured */
    if (!st && !rows) st = sy_fail(err, SY_ENOMEM, "no memory for --rows");
    if (st) return st;
    for (size_t i = 0; i < o.n_rows; i++) rows[i] = (int32_t)list[i];
    o.rows = rows;
    sy_buf_init(&levels, &a->app->env, 0);
    sy_buf_init(&s.machine, &a->app->env, 0);
    sy_buf_init(&s.results, &a->app->env, 0);
    s.levels = (struct sy_jout){&levels, false};
    s.list = (struct sy_jout){&s.results, false};
    sy_interrupt_hold(a->app->interrupt);
    s.watch = sy_bench_watch(&s.w, a->app, "kernels");
    st = by_threads(a, &s, o.n_thread > 0 ? o.n_thread : sy_cpus_allowed(), err);
    if (!st) st = sy_kernels_measure(&a->app->env, &o, err);
    sy_progress_end(&s.w.bar);
    sy_interrupt_drop(a->app->interrupt);
    if (!st && sy_arg_given(a, "json")) st = write_json(a, &s, &levels, err);
    sy_buf_release(&levels);
    sy_buf_release(&s.machine);
    sy_buf_release(&s.results);
    return st;
}
