/* calibrate.c - constants from points, written down with the points. */
#include "app/plan/plan.h"
#include "bench/report.h"
#include "plan/published.h"

sy_status sy_plan_calibrate(struct sy_args *a, struct sy_err *err)
{
    struct sy_calibration c;
    struct sy_buf b, table;
    const char *out = sy_arg_text(a, "output");
    sy_status st = sy_plan_calibration(a, &c, err);
    if (st) return st;
    sy_buf_init(&b, &a->app->env, 0);
    sy_buf_init(&table, &a->app->env, 0);
    sy_calibration_put(&c, &b);
    sy_published_bands(&c, &table);
    sy_calibration_release(&c);
    if (out) st = sy_report_write(&b, out, err);
    if (!st) st = sy_report_write(&table, "-", err);
    sy_buf_release(&b);
    sy_buf_release(&table);
    return st;
}
