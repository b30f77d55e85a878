#include "plan/published.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/stats.h"
#include "plan/prices.h"
#include "plan/rerun.h"

static double cell(struct sy_cells *c, double ours, double theirs, bool fitted)
{
    double e = ours / theirs - 1;
    c->error[c->n++] = fabs(e);
    *(fitted ? &c->n_fitted : &c->n_predicted) += 1;
    return 100 * e;
}

static sy_status room_for(struct sy_calibration *c, struct sy_cells *cells, size_t more, struct sy_err *err)
{
    double *all = sy_arena_array(&c->arena, (size_t)cells->n + more + 1, sizeof *all);
    if (!all) return sy_fail(err, SY_ENOMEM, "no memory for %zu cells", more);
    if (cells->n) memcpy(all, cells->error, (size_t)cells->n * sizeof *all);
    cells->error = all;
    return SY_OK;
}

/* What the calibration says of a point. */
static enum sy_reach ours(const struct sy_calibration *c, const struct sy_measured *p, double *metric)
{
    enum sy_reach reach;
    struct sy_timer t = p->timer;
    struct sy_load_spec l = sy_load_of(p);
    t.consts = sy_calibration_for(c, p, &reach, NULL);
    sy_fluid(&t, &l, metric);
    return reach;
}

static void put_layout(const struct sy_measured *p, char *s, size_t n)
{
    snprintf(s, n, "tp%d%s", p->tp, "");
    if (p->dp > 1) snprintf(s, n, "dp%dtp%d", p->dp, p->tp);
    if (p->ep > 1) snprintf(s + strlen(s), n - strlen(s), "ep%d", p->ep);
}

static void put_load(const struct sy_measured *p, char *s, size_t n)
{
    if (p->kind == SY_LOAD_AT_TPOT) snprintf(s, n, "%.0ft/s", 1 / p->target);
    else if (p->kind == SY_LOAD_AT_E2E) snprintf(s, n, "%.0fsE2E", p->target);
    else snprintf(s, n, "%d", p->conc);
}

static bool same_series(const struct sy_measured *a, const struct sy_measured *b)
{
    return a->kind == SY_LOAD_CLOSED && b->kind == SY_LOAD_CLOSED && !strcmp(a->hw, b->hw) &&
           !strcmp(a->model, b->model) && !strcmp(a->precision, b->precision) &&
           !strcmp(a->framework, b->framework) && !strcmp(a->date, b->date) && !strcmp(a->spec, b->spec) &&
           a->isl == b->isl && a->osl == b->osl && a->tp == b->tp && a->dp == b->dp && a->chips == b->chips;
}

/* What in the published figures themselves no step time explains: that more users get less, or that a request mostly
 * waits for its first token, which a limit on running requests does that nobody published. */
static void put_oddity(const struct sy_points *all, const struct sy_measured *p, struct sy_buf *b)
{
    double tput = p->metric[SY_METRIC_TPUT], half = (1 + p->range) / 2;
    if (p->kind != SY_LOAD_CLOSED || tput <= 0) return;
    const struct sy_measured *most = NULL;
    for (size_t i = 0; i < all->n; i++) {
        const struct sy_measured *o = &all->at[i];
        if (!o->why_not[0] && o->conc < p->conc && same_series(o, p) &&
            o->metric[SY_METRIC_TPUT] > (most ? most->metric[SY_METRIC_TPUT] : 1.1 * tput))
            most = o;
    }
    if (most) sy_buf_printf(b, "; theirs falls, from %.1f at %d users", most->metric[SY_METRIC_TPUT], most->conc);
    double e2e = p->conc * half * (p->isl + p->osl) / (tput * p->chips); /* Little's law */
    double before = 1 - p->metric[SY_METRIC_TPOT] * (half * p->osl - 1) / e2e;
    if (p->metric[SY_METRIC_TPOT] > 0 && before > 0.4)
        sy_buf_printf(b, "; by theirs %.0f %% of a request is the wait for its first token", 100 * before);
}

/* simulate: loops run on the scheduler, and their times to the first token are shown. */
static sy_status put_point(const struct sy_env *env, const struct sy_calibration *c, const struct sy_points *all,
                           const struct sy_measured *p, bool simulate, struct sy_buf *b, struct sy_cells *cells,
                           struct sy_err *err)
{
    static const enum sy_metric shown[] = {SY_METRIC_TPUT, SY_METRIC_TPOT, SY_METRIC_TTFT};
    char layout[32], load[24];
    double metric[SY_METRIC_COUNT];
    enum sy_reach reach = ours(c, p, metric);
    bool loop = simulate && p->kind == SY_LOAD_CLOSED;
    sy_status st = loop ? sy_rerun(env, c, p, metric, err) : SY_OK;
    if (st) return st;
    put_layout(p, layout, sizeof layout);
    put_load(p, load, sizeof load);
    sy_buf_printf(b, "%-5.5s %-9.9s %-17.17s %-5.5s %-18.18s %-10.10s %5d/%-5d %-9.9s", p->id, p->hw, p->model,
                  p->precision, p->framework, p->date, p->isl, p->osl, layout);
    sy_buf_printf(b, " %7s", load);
    for (size_t i = 0; i < SY_COUNT(shown) - !simulate; i++) {
        enum sy_metric m = shown[i];
        double unit = m == SY_METRIC_TPOT ? 1e3 : 1, theirs = p->metric[m];
        if (m == SY_METRIC_TPUT && theirs <= 0) theirs = p->metric[m = SY_METRIC_OUT];
        int digits = m == SY_METRIC_TPOT || m == SY_METRIC_TTFT ? 2 : 1;
        if (theirs <= 0 || (m == SY_METRIC_TTFT && !loop)) sy_buf_printf(b, " %9s %9s %7s", "-", "-", "-");
        else
            sy_buf_printf(b, " %9.*f %9.*f %+6.1f%%", digits, unit * theirs, digits, unit * metric[m],
                          cell(cells, metric[m], theirs, reach == SY_REACH_FITTED && m != SY_METRIC_TTFT));
    }
    sy_buf_printf(b, "  %s", sy_reach_name(reach));
    const struct sy_band *band = &c->band[reach];
    if (p->timer.chip.unit_peaks) sy_buf_text(b, ", no band: the chip's peaks are not public");
    else if (band->n) {
        enum sy_metric m = p->metric[SY_METRIC_TPUT] > 0 ? SY_METRIC_TPUT : SY_METRIC_OUT;
        sy_buf_printf(b, ", +-%.0f %%", 100 * expm1(band->width));
        cells->n_reach[reach]++;
        cells->n_held[reach] += fabs(log(metric[m] / p->metric[m])) <= band->width;
    }
    put_oddity(all, p, b);
    sy_buf_char(b, '\n');
    return SY_OK;
}

sy_status sy_published_points(const struct sy_env *env, struct sy_calibration *c, const struct sy_points *points,
                              bool simulate, struct sy_buf *b, struct sy_cells *cells, struct sy_err *err)
{
    const struct sy_points *all = points ? points : &c->points;
    sy_status st = room_for(c, cells, 3 * all->n, err);
    if (st) return st;
    sy_buf_printf(b, "%-5s %-9s %-17s %-5s %-18s %-10s %11s %-9s %7s %9s %9s %7s %9s %9s %7s", "point", "chip",
                  "model", "prec", "engine", "build", "in/out", "sharding", "users", "tok/s/chp", "ours", "error",
                  "TPOT ms", "ours", "error");
    if (simulate) sy_buf_printf(b, " %9s %9s %7s", "TTFT s", "ours", "error");
    sy_buf_char(b, '\n');
    for (size_t i = 0; i < all->n && !st; i++)
        if (!all->at[i].why_not[0]) st = put_point(env, c, all, &all->at[i], simulate, b, cells, err);
    if (st) return st;
    size_t n_not = 0;
    for (size_t i = 0; i < all->n; i++) n_not += all->at[i].why_not[0] != 0;
    if (n_not) sy_buf_printf(b, "\nnot simulated, %zu points:\n", n_not);
    for (size_t i = 0; i < all->n; i++)
        if (all->at[i].why_not[0])
            sy_buf_printf(b, "  %-5.5s %-9.9s %-20.20s %s\n", all->at[i].id, all->at[i].hw, all->at[i].model,
                          all->at[i].why_not);
    return SY_OK;
}

/* ---- v5e-8 against A100 ---------------------------------------------------------------------------------------- */

static const struct sy_measured *find(const struct sy_calibration *c, const char *hw, const char *model,
                                      enum sy_load_kind kind, int32_t conc, const char *date)
{
    const struct sy_measured *found = NULL;
    for (size_t i = 0; i < c->points.n; i++) {
        const struct sy_measured *p = &c->points.at[i];
        if (!p->why_not[0] && !strcmp(p->hw, hw) && !strcmp(p->model, model) && p->kind == kind &&
            (!conc || p->conc == conc) && (!date || !strcmp(p->date, date)))
            found = p;
    }
    return found;
}

static void sweep_line(const struct sy_calibration *c, int32_t batch, const char *model, struct sy_buf *b,
                       struct sy_cells *cells, double best[2][2])
{
    static const char *const chips[2] = {"tpu_v5e", "a100_80"};
    sy_buf_printf(b, "%6d", batch);
    for (int i = 0; i < 2; i++) {
        const struct sy_measured *p = find(c, chips[i], model, SY_LOAD_DECODE, batch, NULL);
        double metric[SY_METRIC_COUNT];
        if (!p) {
            sy_buf_printf(b, "  %30s", "-");
            continue;
        }
        enum sy_reach reach = ours(c, p, metric);
        best[i][0] = p->metric[SY_METRIC_OUT] * p->chips;
        best[i][1] = metric[SY_METRIC_OUT] * p->chips;
        sy_buf_printf(b, "  %9.0f %10.1f %+8.1f%%", best[i][0], best[i][1],
                      cell(cells, best[i][1], best[i][0], reach == SY_REACH_FITTED));
    }
    sy_buf_text(b, "\n");
}

static void sweep_table(const struct sy_calibration *c, const struct sy_prices *prices, struct sy_buf *b,
                        struct sy_cells *cells)
{
    static const char model[] = "'Kimi 7B dense'";
    double best[2][2] = {{0}};
    sy_buf_text(
        b, "v5e-8 against A100, a 7B model at 32K context: tok/s by batch. Their figures are an unverified blog's, "
           "ours are re-fitted to them;\n64 such contexts hold 120 GB, more than the A100 has.\n\n");
    sy_buf_printf(b, "%6s  %9s %10s %9s  %9s %10s %9s\n", "batch", "v5e-8", "ours", "error", "A100", "ours", "error");
    for (int32_t batch = 1; batch <= 64; batch = batch == 1 ? 4 : batch * 2)
        sweep_line(c, batch, model, b, cells, best);
    if (best[1][0] <= 0) return;
    static const double theirs[3] = {57, 2.69, 2.81};
    double hour[2] = {8 * sy_price_of(prices, "tpu_v5e"), sy_price_of(prices, "a100_80")};
    double mine[3] = {100 * (best[0][1] / best[1][1] - 1), sy_usd_per_mtok(hour[0], best[0][1]),
                      sy_usd_per_mtok(hour[1], best[1][1])};
    static const char *const what[3] = {"v5e-8 over A100 at batch 64, %", "v5e-8, $ per million answer tokens",
                                        "A100, $ per million answer tokens"};
    sy_buf_printf(b, "\n%-42s %8s %8s %8s   ($%.0f and $%.0f an hour)\n", "price arithmetic", "theirs", "ours",
                  "error", hour[0], hour[1]);
    for (int i = 0; i < 3; i++)
        sy_buf_printf(b, "%-42s %8.2f %8.2f %+7.1f%%\n", what[i], theirs[i], mine[i],
                      cell(cells, mine[i], theirs[i], true));
}

/* ---- Qwen3.5 on TPU v7, B200, B300 -------------------------------------------------------------------------------
 */

struct offer {
    const char *chip, *date, *framework;
    double hour[2];  /* external and internal */
    double at[4][2]; /* by line: theirs, ours in tokens/s/chip */
    bool fitted[4];
    double ttft[2];
};

static sy_status fill_offer(const struct sy_env *env, const struct sy_calibration *c, bool simulate, struct offer *o,
                            struct sy_err *err)
{
    static const struct {
        enum sy_load_kind kind;
        int32_t conc;
    } lines[4] = {{SY_LOAD_CLOSED, 256}, {SY_LOAD_AT_TPOT, 0}, {SY_LOAD_AT_E2E, 0}, {SY_LOAD_CLOSED, 256}};
    for (int i = 0; i < 3; i++) {
        const struct sy_measured *p = find(c, o->chip, "qwen3.5-397b-a17b", lines[i].kind, lines[i].conc, o->date);
        double metric[SY_METRIC_COUNT];
        if (!p) continue;
        o->fitted[i] = ours(c, p, metric) == SY_REACH_FITTED;
        o->at[i][0] = p->metric[SY_METRIC_TPUT];
        o->at[i][1] = metric[SY_METRIC_TPUT];
        if (i || !simulate) continue;
        o->ttft[0] = p->metric[SY_METRIC_TTFT];
        struct sy_measured asked = *p; /* the article's are means */
        asked.mean[SY_METRIC_TTFT] = true;
        sy_status st = sy_rerun(env, c, &asked, metric, err);
        if (st) return st;
        o->ttft[1] = metric[SY_METRIC_TTFT];
    }
    return SY_OK;
}

static void offer_lines(struct offer *o, struct sy_buf *b, struct sy_cells *cells)
{
    static const char *const what[3] = {"20 (256 users)", "100", "20 s E2E"};
    for (int i = 0; i < 3; i++) {
        if (o->at[i][0] <= 0) continue;
        double cost[2] = {sy_usd_per_mtok(o->hour[0], o->at[i][0]), sy_usd_per_mtok(o->hour[0], o->at[i][1])};
        sy_buf_printf(b, "%-8s %-16s %10.0f %10.0f %+7.1f%% %9.4f %9.4f %+7.1f%%", o->chip, what[i], o->at[i][0],
                      o->at[i][1], cell(cells, o->at[i][1], o->at[i][0], o->fitted[i]), cost[0], cost[1],
                      cell(cells, cost[1], cost[0], o->fitted[i]));
        if (i == 0 && o->ttft[0] > 0)
            sy_buf_printf(b, " %9.2f %9.2f %+7.1f%%", o->ttft[0], o->ttft[1],
                          cell(cells, o->ttft[1], o->ttft[0], false));
        sy_buf_text(b, "\n");
    }
}

/* The closed loop of a chip and date that was measured with the number of users nearest to conc. */
static const struct sy_measured *nearest(const struct sy_calibration *c, const struct offer *o, int32_t conc)
{
    const struct sy_measured *found = NULL;
    double least = INFINITY;
    for (size_t i = 0; i < c->points.n; i++) {
        const struct sy_measured *p = &c->points.at[i];
        double away = p->conc > 0 ? fabs(log((double)p->conc / conc)) : INFINITY;
        if (p->why_not[0] || strcmp(p->hw, o->chip) || strcmp(p->model, "qwen3.5-397b-a17b") || p->isl != 8192 ||
            p->kind != SY_LOAD_CLOSED || strcmp(p->date, o->date))
            continue;
        /* Of two that are as near the one with more users, and of the same the one that tells more. */
        bool tied = found && fabs(away - least) < 1e-9;
        bool more = tied && (p->conc > found->conc || (p->conc == found->conc && found->metric[SY_METRIC_TPOT] <= 0));
        if (tied ? !more : away >= least) continue;
        found = p;
        least = away;
    }
    return found;
}

/* What users get against what a chip gives: ours at every number of users, theirs where it was published. */
static void curve_lines(const struct sy_calibration *c, const struct offer *o, struct sy_buf *b,
                        struct sy_cells *cells)
{
    for (int32_t conc = 4; conc <= 256; conc *= 2) {
        const struct sy_measured *p = nearest(c, o, conc);
        if (!p) continue;
        struct sy_measured at = *p;
        double metric[SY_METRIC_COUNT];
        char layout[32];
        bool told = p->conc == conc;
        at.conc = conc;
        enum sy_reach reach = ours(c, &at, metric);
        put_layout(p, layout, sizeof layout);
        const double mine[2] = {1 / metric[SY_METRIC_TPOT], metric[SY_METRIC_TPUT]};
        const double theirs[2] = {told && p->metric[SY_METRIC_TPOT] > 0 ? 1 / p->metric[SY_METRIC_TPOT] : 0,
                                  told ? p->metric[SY_METRIC_TPUT] : 0};
        sy_buf_printf(b, "%-8s %6d %-10s", o->chip, conc, layout);
        for (int k = 0; k < 2; k++) {
            if (theirs[k] > 0)
                sy_buf_printf(b, " %10.1f %9.1f %+7.1f%%", theirs[k], mine[k],
                              cell(cells, mine[k], theirs[k], reach == SY_REACH_FITTED));
            else sy_buf_printf(b, " %10s %9.1f %8s", "-", mine[k], "-");
        }
        sy_buf_printf(b, "  %s\n", sy_reach_name(reach));
    }
}

static void ratio_line(const struct offer *a, const struct offer *o, int price, double theirs, struct sy_buf *b,
                       struct sy_cells *cells)
{
    double mine = 100 * (a->at[0][1] / a->hour[price] / (o->at[0][1] / o->hour[0]) - 1);
    double published = 100 * (a->at[0][0] / a->hour[price] / (o->at[0][0] / o->hour[0]) - 1);
    char what[80];
    snprintf(what, sizeof what, "%s at %s price over %s, %% more tokens per $", a->chip,
             price ? "internal" : "external", o->chip);
    sy_buf_printf(b, "%-56s %9.1f %12.1f %9.1f %+7.1f%%\n", what, theirs, published, mine,
                  cell(cells, mine, theirs, true));
}

static sy_status qwen_table(const struct sy_env *env, const struct sy_calibration *c, bool simulate, struct sy_buf *b,
                            struct sy_cells *cells, struct sy_err *err)
{
    struct sy_prices list[2];
    struct offer o[3] = {{.chip = "tpu_v7", .date = "2026-08-26"},
                         {.chip = "b200", .date = "2026-09-07"},
                         {.chip = "b300", .date = "2026-09-07"}};
    sy_status st = sy_prices_open(env, "external", &list[0], err);
    if (!st) st = sy_prices_open(env, "internal", &list[1], err);
    if (st) return st;
    sy_buf_printf(b, "\nQwen3.5-397B-A17B, fp8, 8k1k\n\n%-8s %-16s %10s %10s %8s %9s %9s %8s %9s %9s %8s\n", "chip",
                  "tok/s/user", "tok/s/chip", "ours", "error", "$/M tok", "ours", "error", "TTFT s", "simulated",
                  "error");
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 2; k++) o[i].hour[k] = sy_price_of(&list[k], o[i].chip);
        st = fill_offer(env, c, simulate, &o[i], err);
        if (st) return st;
        offer_lines(&o[i], b, cells);
    }
    sy_buf_printf(b, "\n%-8s %6s %-10s %10s %9s %8s %10s %9s %8s\n", "chip", "users", "sharding", "tok/s/user",
                  "ours", "error", "tok/s/chip", "ours", "error");
    for (int i = 0; i < 3; i++) curve_lines(c, &o[i], b, cells);
    if (o[0].at[0][0] <= 0 || o[1].at[0][0] <= 0 || o[2].at[0][0] <= 0) return SY_OK;
    sy_buf_printf(b, "\n%-56s %9s %12s %9s %8s\n", "ratios at 256 users", "printed", "recomputed", "ours", "error");
    ratio_line(&o[0], &o[1], 0, 50.4, b, cells);
    ratio_line(&o[0], &o[2], 0, 96.0, b, cells);
    ratio_line(&o[0], &o[1], 1, 76.7, b, cells);
    ratio_line(&o[0], &o[2], 1, 130.2, b, cells);
    return SY_OK;
}

sy_status sy_published_tables(const struct sy_env *env, struct sy_calibration *c, bool simulate, struct sy_buf *b,
                              struct sy_cells *cells, struct sy_err *err)
{
    struct sy_prices blog;
    sy_status st = room_for(c, cells, 192, err);
    if (!st) st = sy_prices_open(env, "v5e-a100-blog", &blog, err);
    if (st) return st;
    sweep_table(c, &blog, b, cells);
    return qwen_table(env, c, simulate, b, cells, err);
}

void sy_published_bands(const struct sy_calibration *c, struct sy_buf *b)
{
    sy_buf_printf(
        b, "\nerrors of tok/s/chip; a band claims to hold %d %% of what is predicted, coverage is cross-validated\n",
        SY_BAND_CLAIM);
    sy_buf_printf(b, "%-40s %7s %9s %9s %8s %9s\n", "how far the prediction reaches", "points", "median", "band",
                  "covered", "largest");
    for (int r = 0; r < SY_REACH_COUNT; r++) {
        const struct sy_band *d = &c->band[r];
        if (d->n)
            sy_buf_printf(b, "%-40s %7d %8.1f%% %8.1f%% %7.0f%% %8.1f%%\n", sy_reach_name((enum sy_reach)r), d->n,
                          100 * expm1(d->median), 100 * expm1(d->width), 100 * d->covered, 100 * expm1(d->largest));
    }
}

void sy_published_held(const struct sy_calibration *c, const struct sy_cells *cells, struct sy_buf *b)
{
    for (int r = 0; r < SY_REACH_COUNT; r++)
        if (r != SY_REACH_FITTED && cells->n_reach[r])
            sy_buf_printf(b, "%s: its band of +-%.0f %%, which claims %d %%, holds %d of %d points\n",
                          sy_reach_name((enum sy_reach)r), 100 * expm1(c->band[r].width), SY_BAND_CLAIM,
                          cells->n_held[r], cells->n_reach[r]);
}

void sy_published_total(const struct sy_cells *cells, struct sy_buf *b)
{
    double median = sy_median(cells->error, (size_t)cells->n);
    sy_buf_printf(b, "%d cells, median error %.1f %%, largest %.1f %%, %d fitted, %d predicted\n", cells->n,
                  100 * median, cells->n ? 100 * cells->error[cells->n - 1] : 0, cells->n_fitted, cells->n_predicted);
}
