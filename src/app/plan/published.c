/* published.c - points and tables beside what the calibration says of them. */
#include <stdio.h>

#include "app/plan/plan.h"
#include "bench/report.h"
#include "plan/published.h"

/* What the user's own benchmark ran on, from --chip, --model-card and --precision; NULL: not all are there. */
static const struct sy_machine *machine_of(const struct sy_args *a, struct sy_machine *m)
{
    m->hw = sy_arg_text(a, "chip");
    m->model = sy_arg_text(a, "model-card");
    m->precision = sy_arg_text(a, "precision");
    m->framework = sy_arg_text(a, "engine") ? sy_arg_text(a, "engine") : "systole";
    m->chips = m->tp = 1;
    m->chunk = (int32_t)sy_arg_int(a, "chunk");
    return m->hw && m->model ? m : NULL;
}

sy_status sy_plan_calibration(struct sy_args *a, struct sy_calibration *out, struct sy_err *err)
{
    const struct sy_env *env = &a->app->env;
    struct sy_points points;
    struct sy_machine m;
    const char *file = sy_arg_text(a, "points");
    sy_status st =
        file ? sy_points_file(env, file, machine_of(a, &m), &points, err) : sy_points_own(env, &points, err);
    return st ? st : sy_calibrate_take(env, &points, NULL, out, err);
}

static sy_status finish(struct sy_buf *b, sy_status st, struct sy_err *err)
{
    if (!st) st = sy_report_write(b, "-", err);
    sy_buf_release(b);
    return st;
}

sy_status sy_plan_published(struct sy_args *a, struct sy_err *err)
{
    const struct sy_env *env = &a->app->env;
    struct sy_calibration c;
    struct sy_cells cells = {0};
    struct sy_buf b;
    sy_status st = sy_plan_calibration(a, &c, err);
    if (st) return st;
    sy_buf_init(&b, env, 0);
    sy_buf_text(&b, "Ours are the closed form of the simulator with constants fitted to the points below.\n\n");
    st = sy_published_tables(env, &c, sy_arg_given(a, "simulate") && sy_arg_int(a, "simulate") > 0, &b, &cells, err);
    sy_buf_text(&b, "\n");
    if (!st) st = sy_published_points(env, &c, NULL, &b, &cells, err);
    sy_published_bands(&c, &b);
    sy_buf_text(&b, "\n");
    if (!st) sy_published_total(&cells, &b);
    sy_calibration_release(&c);
    return finish(&b, st, err);
}

sy_status sy_plan_check(struct sy_args *a, struct sy_err *err)
{
    const struct sy_env *env = &a->app->env;
    struct sy_calibration c;
    struct sy_points asked;
    struct sy_cells cells = {0};
    struct sy_buf b;
    struct sy_machine m;
    const char *against = sy_arg_text(a, "against");
    if (!against) return sy_fail(err, SY_EARG, "plan check: expected --against FILE, found none");
    sy_status st = sy_points_file(env, against, machine_of(a, &m), &asked, err);
    if (st) return st;
    st = sy_plan_calibration(a, &c, err);
    if (st) {
        sy_points_release(&asked);
        return st;
    }
    sy_buf_init(&b, env, 0);
    st = sy_published_points(env, &c, &asked, &b, &cells, err);
    sy_buf_text(&b, "\n");
    if (!st) sy_published_total(&cells, &b);
    sy_points_release(&asked);
    sy_calibration_release(&c);
    return finish(&b, st, err);
}

sy_status sy_plan_list(struct sy_args *a, struct sy_err *err)
{
    (void)a;
    (void)err;
    for (const struct sy_data *d = sy_data_files; d->path; d++) puts(d->path);
    return SY_OK;
}
