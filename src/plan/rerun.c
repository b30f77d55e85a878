#include "plan/rerun.h"

#include <math.h>
#include <string.h>

#include "plan/simulate.h"

/* Loops that take more are not simulated so often; nor, of tokens of all users, at all. */
enum { GAP_STEPS = 25, GAP_POINTS_MAX = 8, GAP_IN_MAX = 1 << 18, GAP_OUT_MAX = 1 << 15, TOKENS_MAX = 1 << 28 };
/* The server's usual bound of 200 ms, over what steps of a shared machine overrun their forecasts by (engine/pace.h),
 * and how surely it is that; how well times to the first token are known to come out. No bound: as unlikely. */
static const double gap_usual_ms = 150, gap_spread = 0.2, ttft_spread = 0.3, no_gap = 4;

static double middle(const struct sy_summary *v, bool mean) { return mean ? v->mean : v->median; }

static sy_status rerun(const struct sy_env *env, const struct sy_timer *t, const struct sy_measured *p, double gap_ms,
                       double *metric, struct sy_err *err)
{
    struct sy_workload w;
    struct sy_sim_seen seen;
    sy_status st = sy_workload_random(env, 10 * (size_t)p->conc, p->isl, p->osl, p->range, 1, &w, err);
    if (st) return st;
    struct sy_sim_opt o = {.timer = t,
                           .n_replica = 1,
                           .chunk = p->chunk,
                           .seq_max = p->conc,
                           .ctx_len = p->isl + p->osl + 20,
                           .block_len = 256,
                           .gap_ms_max = gap_ms,
                           .accepted = p->accepted,
                           .drafted = p->drafted,
                           .users = p->conc,
                           .seed = 1};
    st = sy_simulate(env, &o, &w, &seen, err);
    sy_workload_release(&w);
    if (st) return st;
    metric[SY_METRIC_TPUT] = (seen.in_tok + seen.out_tok) / seen.seconds / p->chips;
    metric[SY_METRIC_OUT] = seen.out_tok / seen.seconds / p->chips;
    metric[SY_METRIC_TPOT] = middle(&seen.tpot, p->mean[SY_METRIC_TPOT]);
    metric[SY_METRIC_TTFT] = middle(&seen.ttft, p->mean[SY_METRIC_TTFT]);
    metric[SY_METRIC_E2E] = middle(&seen.e2e, p->mean[SY_METRIC_E2E]);
    return SY_OK;
}

sy_status sy_rerun(const struct sy_env *env, const struct sy_calibration *c, const struct sy_measured *p,
                   double *metric, struct sy_err *err)
{
    enum sy_reach reach;
    const struct sy_group *g;
    struct sy_timer t = p->timer;
    if (p->kind != SY_LOAD_CLOSED || p->why_not[0])
        return sy_fail(err, SY_EARG, "point %.40s: expected a closed loop", p->id);
    if (p->osl < 1 || (double)p->conc * ((double)p->isl + p->osl) > TOKENS_MAX)
        return sy_fail(err, SY_EARG, "point %.40s: %d users of %d/%d tokens are too many to simulate", p->id, p->conc,
                       p->isl, p->osl);
    t.consts = sy_calibration_for(c, p, &reach, &g);
    return rerun(env, &t, p, sy_group_gap_ms(g, t.chip.id), metric, err);
}

static bool tells_gap(const struct sy_measured *p, size_t group)
{
    return p->group == (int32_t)group && p->kind == SY_LOAD_CLOSED && p->conc > 1 && p->osl > 0 &&
           (double)p->conc * p->isl <= GAP_IN_MAX && (double)p->conc * p->osl <= GAP_OUT_MAX &&
           p->metric[SY_METRIC_TTFT] > 0;
}

/* Squared errors of times to the first token, in the logarithm. */
static sy_status gap_missed(const struct sy_env *env, const struct sy_calibration *c, size_t group, double gap_ms,
                            double *sum, struct sy_err *err)
{
    *sum = 0;
    for (size_t i = 0, n = 0; i < c->points.n && n < GAP_POINTS_MAX; i++) {
        const struct sy_measured *p = &c->points.at[i];
        double metric[SY_METRIC_COUNT];
        if (!tells_gap(p, group)) continue;
        n++;
        struct sy_timer t = p->timer;
        t.consts = c->group[group].consts;
        sy_status st = rerun(env, &t, p, gap_ms, metric, err);
        if (st) return st;
        if (metric[SY_METRIC_TTFT] <= 0) continue;
        *sum += pow(log(metric[SY_METRIC_TTFT] / p->metric[SY_METRIC_TTFT]) / ttft_spread, 2);
    }
    return SY_OK;
}

sy_status sy_rerun_gaps(const struct sy_env *env, struct sy_calibration *c, struct sy_err *err)
{
    for (size_t g = 0; g < c->n_group; g++) {
        double best, sum;
        bool any = false;
        for (size_t i = 0; i < c->points.n; i++) any |= tells_gap(&c->points.at[i], g);
        if (!any || strcmp(c->group[g].framework, "systole")) continue;
        sy_status st = gap_missed(env, c, g, 0, &best, err);
        best += no_gap;
        for (int k = 0; k < GAP_STEPS && !st; k++) {
            double away = (k - GAP_STEPS / 2) * gap_spread / 4, gap_ms = gap_usual_ms * exp(away);
            st = gap_missed(env, c, g, gap_ms, &sum, err);
            sum += pow(away / gap_spread, 2);
            if (st || sum >= best) continue;
            best = sum;
            c->group[g].gap_ms = gap_ms;
        }
        if (st) return st;
    }
    return SY_OK;
}
