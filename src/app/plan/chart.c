/* chart.c - what a search found, as a report. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "app/plan/ask.h"
#include "plan/report.h"

enum { POINTS_MAX = 1500 };

static struct sy_report_point report_point(const struct sy_asked *p, const struct sy_candidate *c)
{
    char name[48], label[128], said[96], figures[160];
    struct sy_arena *a = &p->a->arena;
    sy_sharding_name(&c->timer.layout, name, sizeof name);
    snprintf(label, sizeof label, "%d chips, %s, %d users", c->timer.layout.chips, name, c->users);
    sy_reach_say(&p->calibration, c->reach, said, sizeof said);
    snprintf(figures, sizeof figures, "%s; %s", c->simulated ? "simulated" : "estimated", said);
    double tpot = c->simulated ? c->tpot[0] : c->metric[SY_METRIC_TPOT], w = c->timer.chip.all_in_w;
    const char *l = sy_arena_text(a, label, strlen(label)), *f = sy_arena_text(a, figures, strlen(figures));
    return (struct sy_report_point){.series = c->chip,
                                    .label = l ? l : "",
                                    .figures = f ? f : "",
                                    .users = c->users,
                                    .tok_s_chip = c->tput,
                                    .tok_s_user = 1 / tpot,
                                    .ttft_s = c->simulated ? c->ttft[0] : c->metric[SY_METRIC_TTFT],
                                    .e2e_s = c->simulated ? c->e2e[0] : c->metric[SY_METRIC_E2E],
                                    .usd_mtok = c->usd,
                                    .kept = c->missed <= 1,
                                    .tok_s_mw = w > 0 ? c->tput / w * 1e6 : NAN};
}

sy_status sy_plan_chart(const struct sy_asked *p, struct sy_err *err)
{
    const struct sy_plan_found *f = &p->found;
    const char *slo = sy_arg_text(p->a, "slo");
    char title[160], about[1200];
    snprintf(title, sizeof title, "%s: what a million tokens costs", p->card.name);
    snprintf(
        about, sizeof about,
        "%s, %.0f tokens in, %.0f out, prices '%s'. %zu configurations, costed from the model's %s.\nNothing here "
        "is measured: figures are simulated, or estimated by the simulator's closed form, with constants fitted to "
        "%zu measured points; each says how far its prediction reaches and how far off such predictions were (%d %% "
        "of them, on points not used).\nLines join what no other configuration of the same chip beats in both axes.",
        p->o.precision, p->o.in, p->o.out, p->prices.name, f->n, p->card.from, p->calibration.points.n,
        SY_BAND_CLAIM);
    struct sy_report_point *point = sy_arena_array(&p->a->arena, f->n + 1, sizeof *point);
    if (!point) return sy_fail(err, SY_ENOMEM, "no memory for the report");
    struct sy_report r = {.title = title,
                          .about = about,
                          .promise = *slo ? slo : NULL,
                          .point = point,
                          .n = f->n < POINTS_MAX ? f->n : POINTS_MAX};
    for (size_t i = 0; i < r.n; i++) point[i] = report_point(p, &f->at[i]);
    return sy_report_files(&p->a->app->env, &r, sy_arg_text(p->a, "report"), err);
}
