#include "plan/calibrate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/stats.h"

enum { N = SY_CONST_COUNT, GROUP_POINTS = 256, ROUNDS = 6 };

/* Where constants lie before anything was measured, and how surely: seconds, shares, crowding. */
static const double first_guess[N] = {60e-6, 0.2e-6, 0.5, 0.4, 0.25, 0.03};
static const double first_spread[N] = {0.7, 1, 0.4, 0.6, 0.5, 0.8},
                    least_spread[N] = {0.25, 0.3, 0.25, 0.25, 0.25, 0.25};
static const double tput_sigma = 0.02, tpot_sigma = 0.06, huber = 2.5;
/* The same build reaches a smaller share of a faster chip: share ~ peak^-slope. */
static const double slope[N] = {0, 0, 0.4, 0.1, 0.25, 0};

const char *sy_reach_name(enum sy_reach r)
{
    static const char *const names[] = {"fitted",
                                        "predicted, same curve",
                                        "predicted, beyond the curve's points",
                                        "predicted, other workload",
                                        "predicted, other chip",
                                        "predicted, from kin",
                                        "roofline"};
    return (unsigned)r < SY_COUNT(names) ? names[r] : "?";
}

void sy_reach_say(const struct sy_calibration *c, enum sy_reach r, char *out, size_t n)
{
    if (r == SY_REACH_ROOFLINE) snprintf(out, n, "roofline, 2 to 5 times too fast");
    else if (!c->band[r].n) snprintf(out, n, "%s, too few points for a band", sy_reach_name(r));
    else snprintf(out, n, "%s, +-%.0f %%", sy_reach_name(r), 100 * expm1(c->band[r].width));
}

/* ---- kinship --------------------------------------------------------------------------------------------------- */

static size_t family(const char *framework) { return strcspn(framework, " ("); }

static bool same_family(const char *a, const char *b)
{
    size_t n = family(a);
    return n == family(b) && !memcmp(a, b, n);
}

static bool same_build(const struct sy_group *a, const struct sy_group *b)
{
    return !strcmp(a->framework, b->framework) && !strcmp(a->model, b->model) &&
           !strcmp(a->precision, b->precision) && !strcmp(a->date, b->date) && !strcmp(a->spec, b->spec);
}

static double kinship(const struct sy_group *a, const struct sy_group *b)
{
    double w = same_build(a, b) && !strcmp(a->vendor, b->vendor) ? 2 : 0;
    if ((a->unit_peaks || b->unit_peaks) && strcmp(a->hw, b->hw)) return 0;
    if (!strcmp(a->hw, b->hw)) w += 2;
    if (!strcmp(a->vendor, b->vendor)) w += 1.5;
    if (!strcmp(a->model, b->model)) w += 1.5;
    if (same_family(a->framework, b->framework)) w += 1;
    if (!strcmp(a->framework, b->framework) && !strcmp(a->date, b->date)) w += 1;
    if (!strcmp(a->precision, b->precision)) w += 1;
    if (!strncmp(a->spec, b->spec, 4)) w += 0.5;
    return exp(1.2 * w) * (a->n_point < 4 ? a->n_point / 4.0 : 1);
}

struct prior {
    double mean[N], spread[N];
    enum sy_reach reach; /* who stood behind it: CHIP, KIN, or nobody (ROOFLINE) */
};

/* How much group o is heard about g. skip_hw: the chip that must not be heard, or NULL. */
static double heard(const struct sy_group *o, const struct sy_group *g, const char *skip_hw)
{
    if (o == g || o->n_point == 0 || o->consts.v[SY_CONST_WEIGHT] <= 0 || (skip_hw && !strcmp(o->hw, skip_hw)))
        return 0;
    return !strcmp(o->hw, g->hw) && same_build(o, g) ? 0 : kinship(o, g);
}

static double constant(const struct sy_group *o, const struct sy_group *g, int k)
{
    return log(o->consts.v[k]) + slope[k] * log(o->peak[k] / g->peak[k]);
}

static struct prior prior_of(const struct sy_calibration *c, const struct sy_group *g, const char *skip_hw)
{
    double sum = 1.5 * exp(1.2 * 1.5), at[N], var[N] = {0};
    struct prior p = {.reach = SY_REACH_ROOFLINE};
    for (int k = 0; k < N; k++) at[k] = sum * log(first_guess[k]);
    for (size_t i = 0; i < c->n_group; i++) {
        const struct sy_group *o = &c->group[i];
        double w = heard(o, g, skip_hw);
        if (w <= 0) continue;
        if (same_build(o, g) && !strcmp(o->vendor, g->vendor)) p.reach = SY_REACH_CHIP;
        else if (p.reach == SY_REACH_ROOFLINE) p.reach = SY_REACH_KIN;
        sum += w;
        for (int k = 0; k < N; k++) at[k] += w * constant(o, g, k);
    }
    for (int k = 0; k < N; k++) p.mean[k] = at[k] / sum;
    for (size_t i = 0; i < c->n_group; i++)
        for (int k = 0; k < N; k++) {
            double w = heard(&c->group[i], g, skip_hw);
            if (w > 0) var[k] += w * pow(constant(&c->group[i], g, k) - p.mean[k], 2);
        }
    for (int k = 0; k < N; k++) {
        double s = sqrt(var[k] / sum + least_spread[k] * least_spread[k]);
        p.spread[k] = s < first_spread[k] && p.reach != SY_REACH_ROOFLINE ? s : first_spread[k];
        if (g->unit_peaks) p.spread[k] = 1.5;
    }
    return p;
}

/* ---- one group's fit: damped least squares in the logarithms of the constants ------------------------------------
 */

struct fit {
    const struct sy_points *points;
    size_t at[GROUP_POINTS];
    size_t n;
    struct prior prior;
};

static void predict(const struct sy_measured *p, const double *x, double *metric)
{
    struct sy_timer t = p->timer;
    struct sy_load_spec l = sy_load_of(p);
    for (int k = 0; k < N; k++) t.consts.v[k] = exp(x[k]);
    sy_fluid(&t, &l, metric);
}

static double missed(double predicted, double measured) { return measured > 0 ? log(predicted / measured) : 0; }

static double tput_missed(const struct sy_measured *p, const double *metric)
{
    enum sy_metric m = p->metric[SY_METRIC_TPUT] > 0 ? SY_METRIC_TPUT : SY_METRIC_OUT;
    return missed(metric[m], p->metric[m]);
}

/* Residuals: two of each point, then the prior's; returns how many, and their squares' sum. */
static size_t residuals(const struct fit *f, const double *x, double *r, double *sum)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++) {
        const struct sy_measured *p = &f->points->at[f->at[i]];
        double metric[SY_METRIC_COUNT];
        predict(p, x, metric);
        r[n++] = tput_missed(p, metric) / tput_sigma;
        r[n++] = missed(metric[SY_METRIC_TPOT], p->metric[SY_METRIC_TPOT]) / tpot_sigma;
    }
    for (int k = 0; k < N; k++) r[n++] = (x[k] - f->prior.mean[k]) / f->prior.spread[k];
    *sum = 0;
    for (size_t i = 0; i < n; i++) {
        /* Huber, "Robust estimation of a location parameter", 1964: beyond some deviations an error counts as its
         * size. */
        double a = fabs(r[i]);
        if (a > huber && i < n - N) r[i] = copysign(sqrt(huber * (2 * a - huber)), r[i]);
        *sum += r[i] * r[i];
    }
    return n;
}

/* Solves the N x N system a d = b by elimination; a is symmetric and positive. */
static void solve(double a[N][N], double *b)
{
    for (int k = 0; k < N; k++)
        for (int i = k + 1; i < N; i++) {
            double m = a[i][k] / a[k][k];
            for (int j = k; j < N; j++) a[i][j] -= m * a[k][j];
            b[i] -= m * b[k];
        }
    for (int k = N - 1; k >= 0; k--) {
        for (int j = k + 1; j < N; j++) b[k] -= a[k][j] * b[j];
        b[k] /= a[k][k];
    }
}

static void normal(const struct fit *f, const double *x, double h[N][N], double *g)
{
    double r0[2 * GROUP_POINTS + N], r[2 * GROUP_POINTS + N], jac[N][2 * GROUP_POINTS + N], sum;
    size_t n = residuals(f, x, r0, &sum);
    for (int k = 0; k < N; k++) {
        double y[N];
        memcpy(y, x, sizeof y);
        y[k] += 1e-4;
        residuals(f, y, r, &sum);
        for (size_t i = 0; i < n; i++) jac[k][i] = (r[i] - r0[i]) / 1e-4;
    }
    for (int k = 0; k < N; k++) {
        g[k] = 0;
        for (size_t i = 0; i < n; i++) g[k] -= jac[k][i] * r0[i];
        for (int j = 0; j < N; j++) {
            h[k][j] = 0;
            for (size_t i = 0; i < n; i++) h[k][j] += jac[k][i] * jac[j][i];
        }
    }
}

static void fit_group(const struct fit *f, double *x)
{
    double best, damp = 1e-2, r[2 * GROUP_POINTS + N];
    memcpy(x, f->prior.mean, N * sizeof *x);
    if (f->n == 0) return;
    residuals(f, x, r, &best);
    for (int round = 0; round < 30 && damp < 1e6; round++) {
        double h[N][N], g[N];
        normal(f, x, h, g);
        bool better = false;
        while (!better && damp < 1e6) {
            double a[N][N], d[N], y[N], sum;
            for (int k = 0; k < N; k++)
                for (int j = 0; j < N; j++) a[k][j] = h[k][j] * (k == j ? 1 + damp : 1);
            memcpy(d, g, sizeof d);
            solve(a, d);
            for (int k = 0; k < N; k++) y[k] = x[k] + (d[k] > 1 ? 1 : d[k] < -1 ? -1 : d[k]);
            residuals(f, y, r, &sum);
            better = sum < best;
            damp = better ? damp / 4 : damp * 4;
            if (!better) continue;
            if (best - sum < 1e-4) damp = 1e9;
            best = sum;
            memcpy(x, y, sizeof y);
        }
    }
}

/* ---- groups ------------------------------------------------------------------------------------------------------
 */

static void name_group(const struct sy_measured *p, struct sy_group *g)
{
    *g = (struct sy_group){0};
    snprintf(g->hw, sizeof g->hw, "%s", p->timer.chip.id[0] ? p->timer.chip.id : p->hw);
    snprintf(g->framework, sizeof g->framework, "%s", p->framework);
    snprintf(g->precision, sizeof g->precision, "%s", p->precision);
    snprintf(g->date, sizeof g->date, "%s", p->date);
    snprintf(g->spec, sizeof g->spec, "%s", p->spec);
    snprintf(g->model, sizeof g->model, "%s", p->model);
    snprintf(g->vendor, sizeof g->vendor, "%s", p->timer.chip.vendor);
    g->unit_peaks = p->timer.chip.unit_peaks;
    for (int k = 0; k < N; k++) g->peak[k] = 1;
    g->peak[SY_CONST_WEIGHT] = g->peak[SY_CONST_KV] = p->timer.bytes_s * p->timer.chip.devices;
    g->peak[SY_CONST_FLOPS] = p->timer.flops * p->timer.chip.devices;
}

static struct sy_group *find_group(const struct sy_calibration *c, const struct sy_group *key)
{
    for (size_t i = 0; i < c->n_group; i++) {
        struct sy_group *g = &c->group[i];
        if (!strcmp(g->hw, key->hw) && !strcmp(g->framework, key->framework) &&
            !strcmp(g->precision, key->precision) && !strcmp(g->date, key->date) && !strcmp(g->spec, key->spec) &&
            !strcmp(g->model, key->model))
            return g;
    }
    return NULL;
}

double sy_group_gap_ms(const struct sy_group *g, const char *chip)
{
    return g && !strcmp(g->hw, chip) ? g->gap_ms : 0;
}

const struct sy_group *sy_calibration_group(const struct sy_calibration *c, const struct sy_measured *p)
{
    struct sy_group key;
    name_group(p, &key);
    return find_group(c, &key);
}

/* The points of group g but those that `leave` tells to leave out. */
static void gather(const struct sy_calibration *c, size_t g,
                   bool (*leave)(const struct sy_measured *, const struct sy_measured *),
                   const struct sy_measured *out, struct fit *f)
{
    *f = (struct fit){.points = &c->points};
    for (size_t i = 0; i < c->points.n && f->n < GROUP_POINTS; i++) {
        const struct sy_measured *p = &c->points.at[i];
        if (p->group == (int32_t)g && !(leave && leave(p, out))) f->at[f->n++] = i;
    }
}

static sy_status make_groups(struct sy_calibration *c, struct sy_err *err)
{
    c->group = sy_arena_array(&c->arena, c->points.n + 1, sizeof *c->group);
    if (!c->group) return sy_fail(err, SY_ENOMEM, "no memory for %zu points", c->points.n);
    for (size_t i = 0; i < c->points.n; i++) {
        struct sy_measured *p = &c->points.at[i];
        struct sy_group key;
        p->group = -1;
        if (p->why_not[0]) continue;
        name_group(p, &key);
        struct sy_group *g = find_group(c, &key);
        if (!g) *(g = &c->group[c->n_group++]) = key;
        if (g->n_point == GROUP_POINTS) continue;
        g->n_point++;
        p->group = (int32_t)(g - c->group);
    }
    return SY_OK;
}

/* Groups lean on each other's constants, which move: a few rounds settle them. */
static void fit_all(struct sy_calibration *c)
{
    for (int round = 0; round < ROUNDS; round++)
        for (size_t g = 0; g < c->n_group; g++) {
            struct fit f;
            double x[N];
            gather(c, g, NULL, NULL, &f);
            f.prior = prior_of(c, &c->group[g], NULL);
            fit_group(&f, x);
            for (int k = 0; k < N; k++) c->group[g].consts.v[k] = exp(x[k]);
        }
}

/* ---- what was left out -------------------------------------------------------------------------------------------
 */

/* Of one workload: lengths of one's own results are the means of what was drawn, and differ a little. */
static bool same_lengths(const struct sy_measured *a, const struct sy_measured *b)
{
    return abs(a->isl - b->isl) <= 0.05 * a->isl && abs(a->osl - b->osl) <= 0.05 * a->osl;
}

static bool same_curve(const struct sy_measured *a, const struct sy_measured *b)
{
    return a->group == b->group && same_lengths(a, b) && a->tp == b->tp && a->dp == b->dp && a->chips == b->chips &&
           a->kind == b->kind && a->kind != SY_LOAD_AT_TPOT && a->kind != SY_LOAD_AT_E2E;
}

static bool leave_itself(const struct sy_measured *p, const struct sy_measured *out) { return p == out; }

static bool leave_workload(const struct sy_measured *p, const struct sy_measured *out)
{
    return same_lengths(p, out);
}

/* How a prediction of p reaches from the points in f. */
static enum sy_reach reach_from(const struct fit *f, const struct sy_measured *p)
{
    bool below = false, above = false, curve = false;
    for (size_t i = 0; i < f->n; i++) {
        const struct sy_measured *o = &f->points->at[f->at[i]];
        if (!same_curve(o, p)) continue;
        curve = true;
        below |= o->conc <= p->conc;
        above |= o->conc >= p->conc;
    }
    return !curve ? SY_REACH_WORKLOAD : below && above ? SY_REACH_BETWEEN : SY_REACH_BEYOND;
}

static struct sy_left_out left_out(const struct sy_calibration *c, const struct fit *f, const double *x, size_t i)
{
    const struct sy_measured *p = &c->points.at[i];
    double metric[SY_METRIC_COUNT];
    predict(p, x, metric);
    struct sy_left_out o = {
        .point = i, .reach = f->n ? reach_from(f, p) : f->prior.reach, .tput = tput_missed(p, metric), .tpot = NAN};
    if (p->metric[SY_METRIC_TPOT] > 0) o.tpot = missed(metric[SY_METRIC_TPOT], p->metric[SY_METRIC_TPOT]);
    return o;
}

size_t sy_calibration_cross(const struct sy_calibration *c, struct sy_left_out *out, size_t n_max)
{
    size_t n = 0;
    for (size_t i = 0; i < c->points.n; i++) {
        const struct sy_measured *p = &c->points.at[i];
        if (p->group < 0) continue;
        const struct sy_group *g = &c->group[p->group];
        struct fit f;
        double x[N];
        for (int how = 0; how < 3 && n < n_max; how++) {
            size_t all = (size_t)g->n_point;
            gather(c, (size_t)p->group, how == 0 ? leave_itself : leave_workload, p, &f);
            if (how == 1 && (f.n == 0 || f.n == all)) continue;
            if (how == 2) f.n = 0;
            f.prior = prior_of(c, g, how == 2 ? g->hw : NULL);
            if (f.n == 0 && f.prior.reach == SY_REACH_ROOFLINE) continue;
            if (how == 0 && f.n == 0) continue;
            fit_group(&f, x);
            out[n++] = left_out(c, &f, x, i);
        }
    }
    return n;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest band that would have held the claimed share of n + 1 errors: too few points earn none. */
static struct sy_band band_of(double *e, size_t n)
{
    size_t kth = (size_t)ceil((double)(n + 1) * SY_BAND_CLAIM / 100);
    struct sy_band b = {0};
    if (n == 0 || kth > n) return b;
    qsort(e, n, sizeof *e, by_size);
    b.n = (int32_t)n;
    b.width = e[kth - 1];
    b.median = sy_percentile(e, n, 50);
    b.largest = e[n - 1];
    for (size_t i = 0; i < n && n > 1; i++) {
        /* Without the i-th, the quantile is the same place of what is left. */
        size_t k = (size_t)ceil((double)n * SY_BAND_CLAIM / 100);
        double width = k <= n - 1 ? (k - 1 < i ? e[k - 1] : e[k]) : 1.5 * e[i == n - 1 ? n - 2 : n - 1];
        b.covered += (e[i] <= width) / (double)n;
    }
    return b;
}

static sy_status make_bands(struct sy_calibration *c, struct sy_err *err)
{
    size_t most = 3 * c->points.n + 1;
    struct sy_left_out *left = sy_arena_array(&c->arena, most, sizeof *left);
    double *e = sy_arena_array(&c->arena, most, sizeof *e);
    if (!left || !e) return sy_fail(err, SY_ENOMEM, "no memory for %zu points", c->points.n);
    size_t n = sy_calibration_cross(c, left, most);
    for (int r = 0; r < SY_REACH_COUNT; r++) {
        size_t k = 0;
        for (size_t i = 0; i < n; i++)
            if (left[i].reach == (enum sy_reach)r && !c->points.at[left[i].point].timer.chip.unit_peaks)
                e[k++] = fabs(left[i].tput);
        c->band[r] = band_of(e, k);
    }
    size_t k = 0; /* of the fit itself: not earned, but told */
    for (size_t i = 0; i < c->points.n; i++) {
        const struct sy_measured *p = &c->points.at[i];
        double x[N], metric[SY_METRIC_COUNT];
        if (p->group < 0 || p->timer.chip.unit_peaks) continue;
        for (int j = 0; j < N; j++) x[j] = log(c->group[p->group].consts.v[j]);
        predict(p, x, metric);
        e[k++] = fabs(tput_missed(p, metric));
    }
    c->band[SY_REACH_FITTED] = band_of(e, k);
    return SY_OK;
}

sy_status sy_calibrate_take(const struct sy_env *env, struct sy_points *points, struct sy_calibration *out,
                            struct sy_err *err)
{
    struct sy_calibration c = {.points = *points};
    *points = (struct sy_points){0};
    sy_arena_init(&c.arena, env, 0);
    sy_status st = make_groups(&c, err);
    if (!st) fit_all(&c);
    if (!st) st = make_bands(&c, err);
    if (st) sy_calibration_release(&c);
    else *out = c;
    return st;
}

struct sy_consts sy_calibration_for(const struct sy_calibration *c, const struct sy_measured *p, enum sy_reach *reach,
                                    const struct sy_group **nearest)
{
    struct sy_group key;
    struct sy_consts k = sy_consts_roofline;
    name_group(p, &key);
    const struct sy_group *g = find_group(c, &key);
    if (nearest) *nearest = g;
    if (g) {
        struct fit f;
        struct sy_measured q = *p;
        q.group = (int32_t)(g - c->group);
        gather(c, (size_t)q.group, NULL, NULL, &f);
        *reach = reach_from(&f, &q);
        for (size_t i = 0; i < f.n; i++) {
            const struct sy_measured *o = &c->points.at[f.at[i]];
            if (o == p || (same_curve(o, &q) && o->conc == q.conc)) *reach = SY_REACH_FITTED;
        }
        return g->consts;
    }
    struct prior prior = prior_of(c, &key, NULL);
    *reach = prior.reach;
    if (prior.reach == SY_REACH_ROOFLINE) return k;
    for (int i = 0; i < N; i++) k.v[i] = exp(prior.mean[i]);
    double best = 0;
    for (size_t i = 0; i < c->n_group && nearest; i++)
        if (c->group[i].n_point && kinship(&c->group[i], &key) > best) {
            best = kinship(&c->group[i], &key);
            *nearest = &c->group[i];
        }
    return k;
}

void sy_calibration_release(struct sy_calibration *c)
{
    sy_points_release(&c->points);
    if (c->arena.env) sy_arena_release(&c->arena);
    *c = (struct sy_calibration){0};
}
