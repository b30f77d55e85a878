/* compare.c - two results of the same kind beside each other, at equal speed for the user. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/bench/bench.h"
#include "base/file.h"
#include "base/json.h"
#include "plan/report.h"

enum { ROW_MAX = 10000, FILE_BYTES_MAX = 256 << 20 };

struct side {
    const char *path;
    struct row {
        double speed, tput, e2e, conc; /* tokens/s a user sees, tokens/s/chip of both kinds, seconds */
    } * row;
    size_t n;
};

static double number(const struct sy_json *o, const char *key) { return sy_json_number(sy_json_get(o, key), 0); }

static bool read_row(const struct sy_json *o, struct row *r)
{
    *r = (struct row){number(o, "median_intvty"), number(o, "tput_per_gpu"), number(o, "median_e2el"),
                      number(o, "conc")};
    double tpot = number(o, "median_tpot");
    if (r->speed <= 0 && tpot > 0) r->speed = 1 / tpot;
    double ms = number(o, "median_tpot_ms");
    if (r->speed <= 0 && ms > 0) r->speed = 1e3 / ms;
    if (r->e2e <= 0) r->e2e = number(o, "median_e2el_s");
    return r->speed > 0 && r->tput > 0;
}

/* Drops what another point beats in both, then sorts by speed. */
static void keep_front(struct side *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        bool beaten = false;
        for (size_t k = 0; k < s->n && !beaten; k++) {
            const struct row *a = &s->row[k], *b = &s->row[i];
            beaten =
                a->speed >= b->speed && a->tput >= b->tput && (a->speed > b->speed || a->tput > b->tput || k < i);
        }
        s->row[i].conc = beaten ? -1 : s->row[i].conc;
    }
    for (size_t i = 0; i < s->n; i++)
        if (s->row[i].conc >= 0) s->row[n++] = s->row[i];
    s->n = n;
    for (size_t i = 1; i < n; i++)
        for (size_t k = i; k > 0 && s->row[k].speed < s->row[k - 1].speed; k--) {
            struct row t = s->row[k];
            s->row[k] = s->row[k - 1];
            s->row[k - 1] = t;
        }
}

/* InferenceX's files hold one object a point, or a list of them; ours and plan's hold a list under a name. */
static sy_status read_side(struct sy_args *a, struct side *s, struct sy_err *err)
{
    const struct sy_env *env = &a->app->env;
    char *text;
    size_t n;
    struct sy_json *root;
    sy_status st = sy_file_read(env, s->path, FILE_BYTES_MAX, &text, &n, err);
    if (st) return st;
    st = sy_json_parse(env, text, n, false, &root, err);
    sy_delete(env, text);
    if (st) return sy_while(err, st, "'%s'", s->path);
    const struct sy_json *list = sy_json_get(root, "results");
    if (!list) list = sy_json_get(root, "configurations");
    if (!list) list = root;
    size_t more = sy_json_is_array(list) ? sy_json_len(list) : 1;
    if (more > ROW_MAX) more = ROW_MAX;
    s->row = sy_arena_array(&a->arena, more + 1, sizeof *s->row);
    if (!s->row) st = sy_fail(err, SY_ENOMEM, "no memory for %zu points", more);
    for (size_t i = 0; i < more && !st; i++)
        s->n += read_row(sy_json_is_array(list) ? sy_json_at(list, i) : list, &s->row[s->n]);
    sy_json_free(root);
    if (!st && s->n == 0)
        return sy_fail(err, SY_EFORMAT,
                       "'%s': expected points with 'tput_per_gpu' and 'median_intvty' or 'median_tpot', "
                       "found none",
                       s->path);
    if (!st) keep_front(s);
    return st;
}

static double at_speed(const struct side *s, double speed, double *x, double *y)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (n && s->row[i].speed <= x[n - 1]) continue;
        x[n] = s->row[i].speed;
        y[n++] = s->row[i].tput;
    }
    return sy_monotone_at(x, y, n, speed);
}

static void put_value(double v)
{
    if (isfinite(v)) printf(" %12.1f", v);
    else printf(" %12s", "unreachable");
}

static void put_same_load(const struct side *s)
{
    bool any = false;
    for (size_t i = 0; i < s[0].n; i++)
        for (size_t k = 0; k < s[1].n; k++) {
            const struct row *p = &s[0].row[i], *q = &s[1].row[k];
            if (p->conc <= 0 || p->conc != q->conc) continue;
            if (!any)
                printf("\nat the same number of users:\n%8s %24s %24s %24s\n", "users", "tokens/s/chip",
                       "tokens/s/user", "E2E s");
            any = true;
            printf("%8g %11.1f %11.1f  %11.2f %11.2f  %11.2f %11.2f   %+.1f %%\n", p->conc, p->tput, q->tput,
                   p->speed, q->speed, p->e2e, q->e2e, 100 * (q->tput / p->tput - 1));
        }
}

sy_status sy_bench_compare(struct sy_args *a, struct sy_err *err)
{
    struct side s[2] = {{.path = NULL}};
    if (a->n_operand != 3)
        return sy_fail(err, SY_EARG, "bench compare: expected two files, found %zu", a->n_operand - 1);
    double *x = NULL, *y = NULL;
    sy_status st = SY_OK;
    for (int i = 0; i < 2 && !st; i++) {
        s[i].path = a->operand[i + 1];
        st = read_side(a, &s[i], err);
    }
    if (st) return st;
    size_t most = (s[0].n > s[1].n ? s[0].n : s[1].n) + 1;
    x = sy_arena_array(&a->arena, most, sizeof *x);
    y = sy_arena_array(&a->arena, most, sizeof *y);
    if (!x || !y) return sy_fail(err, SY_ENOMEM, "no memory to compare %zu points", most);
    printf("A: %s, %zu points on its frontier\nB: %s, %zu\n\ntokens/s/chip at equal interactivity, monotone between "
           "points:\n",
           s[0].path, s[0].n, s[1].path, s[1].n);
    printf("%12s %12s %12s %9s\n", "tok/s/user", "A", "B", "B over A");
    double lo = fmin(s[0].row[0].speed, s[1].row[0].speed),
           hi = fmax(s[0].row[s[0].n - 1].speed, s[1].row[s[1].n - 1].speed);
    for (int i = 0; i <= 10; i++) {
        double speed = lo * pow(hi / lo, i / 10.0), p = at_speed(&s[0], speed, x, y),
               q = at_speed(&s[1], speed, x, y);
        printf("%12.2f", speed);
        put_value(p);
        put_value(q);
        if (isfinite(p) && isfinite(q)) printf(" %+8.1f%%", 100 * (q / p - 1));
        putchar('\n');
    }
    put_same_load(s);
    return SY_OK;
}
