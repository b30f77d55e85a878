/* common.c - lists, prices and progress of the benchmark modes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/bench/bench.h"
#include "base/rng.h"

enum { LIST_MAX = 1000 };

static sy_status refuse(const char *flag, const char *at, double lo, double hi, bool whole, struct sy_err *err)
{
    return sy_fail(err, SY_EARG, "--%s: expected %s from %.10g to %.10g with commas between, found '%.40s'", flag,
                   whole ? "whole numbers" : "numbers", lo, hi, at);
}

static bool read_one(const char **at, double lo, double hi, bool whole, double *v)
{
    char *end;
    *v = strtod(*at, &end);
    if (end == *at || (*end && *end != ',') || !(*v >= lo && *v <= hi) || (whole && *v != floor(*v))) return false;
    *at = *end ? end + 1 : end;
    return *end != ',' || *at[0];
}

/* a, b, .., last: doubles when b is twice a, else counts. False: never arrives at `last`, or takes too many. */
static bool fill(double *v, size_t *n, double last)
{
    double a = v[*n - 2], b = v[*n - 1];
    bool doubles = b == 2 * a;
    if (b <= a) return false;
    for (double x = doubles ? 2 * b : b + (b - a); x < last; x = doubles ? 2 * x : x + (b - a)) {
        if (*n == LIST_MAX) return false;
        v[(*n)++] = x;
    }
    return last > v[*n - 1];
}

sy_status sy_bench_list(struct sy_args *a, const char *flag, const char *text, double lo, double hi, bool whole,
                        double **out, size_t *n, struct sy_err *err)
{
    double *v = sy_arena_array(&a->arena, LIST_MAX + 1, sizeof *v);
    if (!v) return sy_fail(err, SY_ENOMEM, "no memory for --%s", flag);
    *n = 0;
    const char *at = text;
    do {
        const char *start = at;
        bool gap = *n >= 2 && !strncmp(at, "..,", 3);
        if (gap) at += 3;
        double x;
        if (!read_one(&at, lo, hi, whole, &x)) return refuse(flag, start, lo, hi, whole, err);
        if (gap && !fill(v, n, x)) return refuse(flag, start, lo, hi, whole, err);
        if (*n == LIST_MAX) return sy_fail(err, SY_EARG, "--%s: expected at most %d numbers", flag, LIST_MAX);
        v[(*n)++] = x;
    } while (*at);
    *out = v;
    return SY_OK;
}

uint64_t sy_bench_seed(uint64_t seed, uint64_t i) { return sy_rng_u64(seed, i); }

struct sy_price sy_bench_price(const struct sy_args *a)
{
    return (struct sy_price){sy_arg_num(a, "price"), (int)sy_arg_int(a, "chips")};
}

static void on_progress(void *ctx, double done)
{
    struct sy_bench_watcher *w = ctx;
    sy_progress_share(&w->bar, done);
}

static bool on_stop(void *ctx)
{
    const struct sy_bench_watcher *w = ctx;
    return sy_interrupt_seen(w->app->interrupt);
}

struct sy_watch sy_bench_watch(struct sy_bench_watcher *w, struct sy_app *app, const char *label)
{
    w->app = app;
    sy_progress_init(&w->bar, &app->env, app->progress, label);
    return (struct sy_watch){on_progress, on_stop, w};
}

sy_status sy_bench_write_json(const struct sy_args *a, struct sy_buf *b, struct sy_err *err)
{
    sy_buf_char(b, '\n');
    sy_status st = sy_arg_given(a, "json") ? sy_report_write(b, sy_arg_text(a, "json"), err) : SY_OK;
    sy_buf_release(b);
    return st;
}

FILE *sy_bench_table(const struct sy_args *a)
{
    const char *json = sy_arg_text(a, "json");
    return json && !strcmp(json, "-") ? stderr : stdout;
}

void sy_bench_print(const struct sy_args *a, struct sy_buf *table, struct sy_point *p, size_t n, const char *what,
                    struct sy_price price)
{
    for (size_t i = 0; i < n; i++) p[i].cost = sy_dollars_of(price, p[i].in_tok_s, p[i].out_tok_s);
    if (price.chip_hour > 0) {
        sy_pareto(p, n);
        sy_pareto_print(p, n, what, table);
    }
    FILE *to = sy_bench_table(a);
    if (table->len) fwrite(table->at, 1, table->len, to);
    fflush(to);
}
