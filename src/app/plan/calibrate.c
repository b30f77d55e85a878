/* calibrate.c - constants from points, written down with the points. */
#include <math.h>
#include <stdio.h>

#include "app/plan/plan.h"
#include "bench/report.h"
#include "plan/published.h"

static void put_group(struct sy_jout *j, const struct sy_calibration *c, size_t i)
{
    const struct sy_group *g = &c->group[i];
    sy_jout_open(j, NULL, '{');
    sy_jout_text(j, "chip", g->hw);
    sy_jout_text(j, "engine", g->framework);
    sy_jout_text(j, "build", g->date);
    sy_jout_text(j, "precision", g->precision);
    sy_jout_text(j, "speculation", g->spec);
    sy_jout_text(j, "model", g->model);
    sy_jout_open(j, "constants", '{');
    for (int k = 0; k < SY_CONST_COUNT; k++)
        sy_jout_num(j, sy_const_name((enum sy_const)k), g->consts.v[k] * (k == SY_CONST_LAYER_S ? 1e6 : 1));
    sy_jout_close(j, '}');
    sy_jout_open(j, "points", '[');
    for (size_t p = 0; p < c->points.n; p++) {
        const struct sy_measured *m = &c->points.at[p];
        double metric[SY_METRIC_COUNT];
        struct sy_timer t = m->timer;
        struct sy_load_spec l = sy_load_of(m);
        if (m->group != (int32_t)i) continue;
        t.consts = g->consts;
        sy_fluid(&t, &l, metric);
        sy_jout_line(j);
        sy_jout_open(j, NULL, '{');
        sy_jout_text(j, "id", m->id);
        sy_jout_num(j, "measured_tok_s_chip",
                    m->metric[m->metric[SY_METRIC_TPUT] > 0 ? SY_METRIC_TPUT : SY_METRIC_OUT]);
        sy_jout_num(j, "fitted_tok_s_chip", metric[m->metric[SY_METRIC_TPUT] > 0 ? SY_METRIC_TPUT : SY_METRIC_OUT]);
        sy_jout_close(j, '}');
    }
    sy_jout_close(j, ']');
    sy_jout_close(j, '}');
}

static void put_all(struct sy_jout *j, const struct sy_calibration *c)
{
    sy_jout_open(j, NULL, '{');
    sy_jout_int(j, "calibration", 1);
    sy_jout_open(j, "groups", '[');
    for (size_t i = 0; i < c->n_group; i++) {
        sy_jout_line(j);
        put_group(j, c, i);
    }
    sy_jout_close(j, ']');
    sy_jout_open(j, "bands", '[');
    for (int r = 0; r < SY_REACH_COUNT; r++) {
        const struct sy_band *d = &c->band[r];
        if (!d->n) continue;
        sy_jout_line(j);
        sy_jout_open(j, NULL, '{');
        sy_jout_text(j, "reach", sy_reach_name((enum sy_reach)r));
        sy_jout_num(j, "claim", SY_BAND_CLAIM / 100.0);
        sy_jout_num(j, "error", expm1(d->width));
        sy_jout_num(j, "covered", d->covered);
        sy_jout_num(j, "median", expm1(d->median));
        sy_jout_int(j, "points", d->n);
        sy_jout_close(j, '}');
    }
    sy_jout_close(j, ']');
    sy_jout_close(j, '}');
}

sy_status sy_plan_calibrate(struct sy_args *a, struct sy_err *err)
{
    struct sy_calibration c;
    struct sy_buf b, table;
    struct sy_jout j = {.b = &b};
    const char *out = sy_arg_text(a, "output");
    sy_status st = sy_plan_calibration(a, &c, err);
    if (st) return st;
    sy_buf_init(&b, &a->app->env, 0);
    sy_buf_init(&table, &a->app->env, 0);
    put_all(&j, &c);
    sy_buf_text(&b, "\n");
    sy_published_bands(&c, &table);
    sy_calibration_release(&c);
    if (out) st = sy_report_write(&b, out, err);
    if (!st) st = sy_report_write(&table, "-", err);
    sy_buf_release(&b);
    sy_buf_release(&table);
    return st;
}
