/* search.c - the cheapest way to keep a promise, what else was tried, and what would change it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/bench/bench.h"
#include "app/plan/plan.h"
#include "base/file.h"
#include "plan/report.h"
#include "plan/search.h"

enum { SHOWN = 10, CHIP_MAX = 64 };

struct plan {
    struct sy_args *a;
    struct sy_plan_opt o;
    struct sy_card card;
    struct sy_prices prices;
    struct sy_calibration calibration;
    struct sy_plan_found found;
    struct sy_workload trace;
    char *trace_text;
};

static sy_status read_trace(struct plan *p, const char *path, struct sy_err *err)
{
    const struct sy_env *env = &p->a->app->env;
    size_t n, n_turn = 0;
    sy_status st = sy_file_read(env, path, 1 << 30, &p->trace_text, &n, err);
    if (!st) st = sy_workload_trace(env, p->trace_text, n, (uint64_t)sy_arg_int(p->a, "seed"), &p->trace, err);
    if (st) return sy_while(err, st, "'%s'", path);
    double in = 0, out = 0, last = 0;
    int64_t longest = 0;
    for (size_t i = 0; i < p->trace.n; i++) {
        const struct sy_user_session *u = &p->trace.session[i];
        int64_t said = 0;
        for (size_t k = 0; k < u->n_turn; k++, n_turn++) {
            said += u->turn[k].n_in;
            in += (double)said; /* a turn's prompt is all that was said before */
            out += u->turn[k].n_out;
            said += u->turn[k].n_out;
        }
        if (said > longest) longest = said;
        last = 1e-9 * (double)u->start_ns;
    }
    if (n_turn == 0 || longest > 1 << 24)
        return sy_fail(err, SY_EFORMAT, "'%s': expected conversations of at most %d tokens", path, 1 << 24);
    p->o.trace = &p->trace;
    p->o.trace_s = last - 1e-9 * (double)p->trace.session[0].start_ns;
    p->o.trace_ctx = (int32_t)longest;
    p->o.in = in / (double)n_turn;
    p->o.out = out / (double)n_turn;
    p->o.range = 1;
    return SY_OK;
}

static sy_status read_workload(struct plan *p, struct sy_err *err)
{
    static const struct {
        const char *name;
        double in, out;
    } known[] = {{"8k1k", 8192, 1024}, {"1k1k", 1024, 1024}, {"1k8k", 1024, 8192}};
    const char *w = sy_arg_text(p->a, "workload");
    p->o.range = sy_arg_num(p->a, "random-range");
    p->o.hit = sy_arg_num(p->a, "hit-rate");
    if (!strncmp(w, "trace:", 6)) return read_trace(p, w + 6, err);
    for (size_t i = 0; i < SY_COUNT(known); i++)
        if (!strcmp(w, known[i].name)) {
            p->o.in = known[i].in;
            p->o.out = known[i].out;
            return SY_OK;
        }
    char *end;
    p->o.in = strtod(w, &end);
    p->o.out = *end == '/' ? strtod(end + 1, &end) : 0;
    if (!*end && p->o.in >= 1 && p->o.out >= 1 && p->o.in + p->o.out < 1e7) return SY_OK;
    return sy_fail(err, SY_EARG, "--workload: expected 8k1k, 1k1k, 1k8k, IN/OUT tokens or trace:FILE, found '%.40s'",
                   w);
}

/* Names with commas between; into the arguments' arena. */
static sy_status read_names(struct plan *p, const char *text, struct sy_err *err)
{
    const char **list = sy_arena_array(&p->a->arena, CHIP_MAX, sizeof *list);
    if (!list) return sy_fail(err, SY_ENOMEM, "no memory for --chip");
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, ",");
        if (n == 0 || p->o.n_chip == CHIP_MAX)
            return sy_fail(err, SY_EARG, "--chip: expected 1 to %d names with commas between, found '%.60s'",
                           CHIP_MAX, text);
        if (!(list[p->o.n_chip++] = sy_arena_text(&p->a->arena, at, n)))
            return sy_fail(err, SY_ENOMEM, "no memory for --chip");
        at += n + (at[n] == ',');
    }
    p->o.chip = list;
    return SY_OK;
}

static sy_status read_chips(struct plan *p, struct sy_err *err)
{
    struct sy_args *a = p->a;
    const char *names = sy_arg_text(a, "chip"), *counts = sy_arg_text(a, "chips");
    double *list;
    if (counts[0] < '0' || counts[0] > '9') {
        if (names) return sy_fail(err, SY_EARG, "--chips: expected numbers beside --chip, found '%.60s'", counts);
        names = counts;
        counts = "1,2,4,8";
    }
    if (!names)
        return sy_fail(err, SY_EARG, "plan: expected --chip NAMES, found none; 'systole plan list' shows them");
    sy_status st = read_names(p, names, err);
    if (!st) st = sy_bench_list(a, "chips", counts, 1, 65536, true, &list, &p->o.n_count, err);
    p->o.count = st ? NULL : list;
    return st;
}

static sy_status read_all(struct plan *p, struct sy_err *err)
{
    struct sy_args *a = p->a;
    const struct sy_env *env = &a->app->env;
    const char *card = sy_arg_text(a, "model-card");
    double *users;
    if (!card)
        return sy_fail(err, SY_EARG, "plan: expected --model-card NAME, found none; 'systole plan list' shows them");
    sy_status st = sy_card_find(env, card, &p->card, err);
    if (!st) st = sy_prices_open(env, sy_arg_text(a, "tco"), &p->prices, err);
    if (!st) st = read_workload(p, err);
    if (!st) st = read_chips(p, err);
    if (!st) st = sy_slo_parse(sy_arg_text(a, "slo"), &p->o.slo, err);
    if (!st)
        st = sy_bench_list(a, "concurrency", sy_arg_text(a, "concurrency"), 1, 1 << 20, true, &users, &p->o.n_users,
                           err);
    if (!st) st = sy_plan_calibration(a, &p->calibration, err);
    if (st) return st;
    p->o.users = users;
    p->o.card = &p->card;
    p->o.prices = &p->prices;
    p->o.calibration = &p->calibration;
    p->o.precision = sy_arg_text(a, "precision");
    p->o.framework = sy_arg_text(a, "engine");
    p->o.tp = (int32_t)sy_arg_int(a, "tp");
    p->o.dp = (int32_t)sy_arg_int(a, "dp-attention");
    p->o.pp = (int32_t)sy_arg_int(a, "pp");
    p->o.chunk = (int32_t)sy_arg_int(a, "chunk");
    p->o.memory_share = sy_arg_num(a, "memory-share");
    p->o.n_simulate = (int32_t)sy_arg_int(a, "simulate");
    p->o.seed = (uint64_t)sy_arg_int(a, "seed");
    return SY_OK;
}

/* ---- what is printed ------------------------------------------------------------------------------------------- */

static void sharding_name(const struct sy_candidate *c, char *s, size_t n)
{
    const struct sy_sharding *l = &c->timer.layout;
    int at = snprintf(s, n, "tp%d", l->tp);
    if (l->dp > 1) at += snprintf(s + at, n - (size_t)at, " dp%d", l->dp);
    if (l->pp > 1) at += snprintf(s + at, n - (size_t)at, " pp%d", l->pp);
    if (l->expert_parallel) snprintf(s + at, n - (size_t)at, " ep");
}

static void put_candidate(const struct plan *p, const struct sy_candidate *c, int i, struct sy_buf *b)
{
    char name[48];
    sharding_name(c, name, sizeof name);
    const struct sy_band *band = &p->calibration.band[c->reach];
    double tpot = c->simulated ? c->tpot[0] : c->metric[SY_METRIC_TPOT];
    double ttft = c->simulated ? c->ttft[0] : c->metric[SY_METRIC_TTFT];
    double e2e = c->simulated ? c->e2e[0] : c->metric[SY_METRIC_E2E];
    sy_buf_printf(b, "%4d %-9s %5d %-14s %6d %9.4f %9.0f %9.2f %8.2f", i, c->chip, c->timer.layout.chips, name,
                  c->users, c->usd, c->tput, 1e3 * tpot, ttft);
    if (c->simulated) sy_buf_printf(b, " %8.2f", c->ttft[2]);
    else sy_buf_printf(b, " %8s", "-");
    sy_buf_printf(b, " %8.2f  ", e2e);
    if (c->n_replica > 1) sy_buf_printf(b, "%d replicas, ", c->n_replica);
    sy_buf_printf(b, "%s; ", c->simulated ? "simulated" : "estimated");
    if (c->reach == SY_REACH_ROOFLINE) sy_buf_text(b, "roofline, 2 to 5 times too fast");
    else if (band->n) sy_buf_printf(b, "%s, +-%.0f %%", sy_reach_name(c->reach), 100 * expm1(band->width));
    else sy_buf_text(b, sy_reach_name(c->reach));
    sy_buf_char(b, '\n');
}

static void put_sensitivity(const struct plan *p, const struct sy_candidate *c, struct sy_buf *b)
{
    const struct sy_plan_opt *o = &p->o;
    double price = sy_price_of(o->prices, c->chip), base = sy_candidate_usd(c, o, o->in, o->out, o->hit, price);
    const struct {
        const char *what;
        double usd;
    } lines[] = {
        {"price 20 % higher", sy_candidate_usd(c, o, o->in, o->out, o->hit, 1.2 * price)},
        {"price 20 % lower", sy_candidate_usd(c, o, o->in, o->out, o->hit, 0.8 * price)},
        {"half of the prompt cached", sy_candidate_usd(c, o, o->in, o->out, 0.5, price)},
        {"prompts twice as long", sy_candidate_usd(c, o, 2 * o->in, o->out, o->hit, price)},
        {"prompts half as long", sy_candidate_usd(c, o, 0.5 * o->in, o->out, o->hit, price)},
        {"answers twice as long", sy_candidate_usd(c, o, o->in, 2 * o->out, o->hit, price)},
        {"answers half as long", sy_candidate_usd(c, o, o->in, 0.5 * o->out, o->hit, price)},
    };
    sy_buf_printf(b, "\nwhat would change the first (closed form, %.4f $/M now):\n", base);
    for (size_t i = 0; i < SY_COUNT(lines); i++)
        sy_buf_printf(b, "  %-28s %9.4f $/M %+7.1f %%\n", lines[i].what, lines[i].usd,
                      100 * (lines[i].usd / base - 1));
}

/* The cheapest of a chip (NULL: of all) that keeps the promise, or without one; closed form. */
static double cheapest(const struct sy_plan_found *f, const char *chip, bool keeps, const char **which)
{
    double best = INFINITY;
    for (size_t i = 0; i < f->n; i++)
        if ((!chip || !strcmp(f->at[i].chip, chip)) && (!keeps || f->at[i].missed <= 1) && f->at[i].usd < best) {
            best = f->at[i].usd;
            if (which) *which = f->at[i].chip;
        }
    return best;
}

/* Online requests keep the promise, offline ones need not: one chip for both, or the best for each. */
static void put_hybrid(const struct plan *p, const struct sy_plan_found *all, struct sy_buf *b)
{
    const char *on = NULL, *off = NULL;
    double online = cheapest(all, NULL, true, &on), offline = cheapest(all, NULL, false, &off);
    if (!isfinite(online)) return;
    sy_buf_printf(
        b, "\nonline on %s at %.4f $/M within the promise, offline on %s at %.4f $/M without one (closed form)\n", on,
        online, off, offline);
    sy_buf_printf(b, "  %-14s %-20s %-10s %-22s %s\n", "online share", "one chip for both", "$/M",
                  "each on its best, $/M", "saves");
    for (int k = 0; k <= 4; k++) {
        double share = 0.25 * k, single = INFINITY;
        const char *which = "";
        for (size_t i = 0; i < p->o.n_chip; i++) {
            double a = cheapest(all, p->o.chip[i], true, NULL), c = cheapest(all, p->o.chip[i], false, NULL);
            double cost = share > 0 ? share * a + (1 - share) * c : c;
            if (cost < single) {
                single = cost;
                which = p->o.chip[i];
            }
        }
        double both = share * online + (1 - share) * offline;
        sy_buf_printf(b, "  %-14.0f %-20s %-10.4f %-22.4f %.1f %%\n", 100 * share, which, single, both,
                      100 * (1 - both / single));
    }
    if (!strcmp(on, off))
        sy_buf_printf(b, "  the same chip is best for both: a second kind does not pay at any mix\n");
}

static void put_refused(const struct sy_plan_found *f, struct sy_buf *b)
{
    if (!f->n_refused) return;
    sy_buf_text(b, "\nnot considered:\n");
    for (size_t i = 0; i < f->n_refused && i < SHOWN; i++)
        sy_buf_printf(b, "  %-9s %4d chips: %s\n", f->refused[i].chip, f->refused[i].chips, f->refused[i].why);
    if (f->n_refused > SHOWN) sy_buf_printf(b, "  and %zu more\n", f->n_refused - SHOWN);
}

static void put_found(const struct plan *p, const struct sy_plan_found *all, struct sy_buf *b)
{
    const struct sy_plan_found *f = &p->found;
    sy_buf_printf(b, "%s (costed from its %s), %s, %.0f in, %.0f out, prices '%s'; %zu configurations\n\n",
                  p->card.name, p->card.from, p->o.precision, p->o.in, p->o.out, p->prices.name, f->n_tried);
    if (f->n == 0) {
        sy_buf_text(b, "nothing fits: no configuration holds the model and a sequence\n");
        put_refused(f, b);
        return;
    }
    if (!f->kept)
        sy_buf_printf(b, "nothing keeps the promise; the nearest misses a bound by a factor of %.2f:\n",
                      f->at[0].missed);
    sy_buf_printf(b, "%4s %-9s %5s %-14s %6s %9s %9s %9s %8s %8s %8s\n", "rank", "chip", "chips", "sharding", "users",
                  "$/M tok", "tok/s/chp", "TPOT ms", "TTFT s", "p99", "E2E s");
    for (size_t i = 0; i < f->n && i < SHOWN; i++) put_candidate(p, &f->at[i], (int)i + 1, b);
    put_sensitivity(p, &f->at[0], b);
    put_hybrid(p, all, b);
    put_refused(f, b);
}

static void put_json(const struct plan *p, struct sy_buf *b)
{
    struct sy_jout j = {.b = b};
    const struct sy_plan_found *f = &p->found;
    sy_jout_open(&j, NULL, '{');
    sy_jout_text(&j, "model", p->card.name);
    sy_jout_text(&j, "costed_from", p->card.from);
    sy_jout_text(&j, "precision", p->o.precision);
    sy_jout_num(&j, "isl", p->o.in);
    sy_jout_num(&j, "osl", p->o.out);
    sy_jout_text(&j, "prices", p->prices.name);
    sy_jout_bool(&j, "promise_kept", f->kept);
    sy_jout_int(&j, "tried", (int64_t)f->n_tried);
    sy_jout_open(&j, "configurations", '[');
    for (size_t i = 0; i < f->n && i < 100; i++) {
        const struct sy_candidate *c = &f->at[i];
        const struct sy_band *band = &p->calibration.band[c->reach];
        sy_jout_line(&j);
        sy_jout_open(&j, NULL, '{');
        sy_jout_text(&j, "hw", c->chip);
        sy_jout_int(&j, "chips", c->timer.layout.chips);
        sy_jout_int(&j, "tp", c->timer.layout.tp);
        sy_jout_int(&j, "dp", c->timer.layout.dp);
        sy_jout_int(&j, "pp", c->timer.layout.pp);
        sy_jout_bool(&j, "ep", c->timer.layout.expert_parallel);
        sy_jout_int(&j, "conc", c->users);
        sy_jout_num(&j, "usd_per_mtok_total", c->usd);
        sy_jout_num(&j, "tput_per_gpu", c->tput);
        sy_jout_num(&j, "median_tpot_ms", 1e3 * (c->simulated ? c->tpot[0] : c->metric[SY_METRIC_TPOT]));
        sy_jout_num(&j, "median_ttft_s", c->simulated ? c->ttft[0] : c->metric[SY_METRIC_TTFT]);
        sy_jout_num(&j, "p99_ttft_s", c->simulated ? c->ttft[2] : NAN);
        sy_jout_num(&j, "median_e2el_s", c->simulated ? c->e2e[0] : c->metric[SY_METRIC_E2E]);
        sy_jout_text(&j, "figures", c->simulated ? "simulated" : "estimated");
        sy_jout_text(&j, "constants", sy_reach_name(c->reach));
        sy_jout_num(&j, "band", band->n ? expm1(band->width) : NAN);
        sy_jout_num(&j, "missed", c->missed);
        sy_jout_close(&j, '}');
    }
    sy_jout_close(&j, ']');
    sy_jout_close(&j, '}');
    sy_buf_char(b, '\n');
}

/* ---- the report ------------------------------------------------------------------------------------------------ */

static sy_status one_file(const char *path, const char *suffix, const struct sy_report *r, int kind,
                          const struct sy_env *env, struct sy_err *err)
{
    struct sy_buf b;
    char name[4096];
    size_t n = strlen(path);
    if (*suffix && n > 5 && !strcmp(path + n - 5, ".html")) n -= 5;
    if (snprintf(name, sizeof name, "%.*s%s", (int)n, path, suffix) >= (int)sizeof name)
        return sy_fail(err, SY_EARG, "--report: the path is too long");
    sy_buf_init(&b, env, 0);
    if (kind < 0) sy_report_html(r, &b);
    else if (kind == SY_CHART_COUNT) sy_report_csv(r, &b);
    else sy_report_svg(r, (enum sy_chart)kind, &b);
    sy_status st = sy_report_write(&b, name, err);
    sy_buf_release(&b);
    return st;
}

static struct sy_report_point report_point(const struct plan *p, const struct sy_candidate *c)
{
    char name[48], label[128], figures[160];
    const struct sy_band *band = &p->calibration.band[c->reach];
    struct sy_arena *a = &p->a->arena;
    sharding_name(c, name, sizeof name);
    snprintf(label, sizeof label, "%d chips, %s, %d users", c->timer.layout.chips, name, c->users);
    snprintf(figures, sizeof figures, "%s; %s, +-%.0f %%", c->simulated ? "simulated" : "estimated",
             sy_reach_name(c->reach), 100 * expm1(band->width));
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
                                    .tok_s_mw = w > 0 ? c->tput / w * 1e6 : NAN};
}

static sy_status write_report(const struct plan *p, const struct sy_plan_found *all, const char *path,
                              struct sy_err *err)
{
    const struct sy_env *env = &p->a->app->env;
    char title[160], about[900];
    snprintf(title, sizeof title, "%s: what a million tokens costs", p->card.name);
    snprintf(
        about, sizeof about,
        "%s, %.0f tokens in, %.0f out, prices '%s'. %zu configurations, costed from the model's %s.\nAll figures are "
        "estimated by the simulator's closed form with constants fitted to published measurements; each point says "
        "how far "
        "its prediction reaches and how far off such predictions were (80 %% of them, on points not used).\nStrong "
        "points are "
        "those that no other of their chip beats in both axes. A click on a name hides it.",
        p->o.precision, p->o.in, p->o.out, p->prices.name, all->n, p->card.from);
    struct sy_report_point *point = sy_arena_array(&p->a->arena, all->n + 1, sizeof *point);
    if (!point) return sy_fail(err, SY_ENOMEM, "no memory for the report");
    struct sy_report r = {.title = title, .about = about, .point = point, .n = all->n < 1500 ? all->n : 1500};
    for (size_t i = 0; i < r.n; i++) point[i] = report_point(p, &all->at[i]);
    sy_status st = one_file(path, "", &r, -1, env, err);
    if (!st) st = one_file(path, ".csv", &r, SY_CHART_COUNT, env, err);
    if (!st) st = one_file(path, ".svg", &r, SY_CHART_COST_USER, env, err);
    return st;
}

static sy_status report(struct plan *p, const struct sy_plan_found *all, struct sy_err *err)
{
    struct sy_buf b;
    const char *json = sy_arg_text(p->a, "json");
    sy_buf_init(&b, &p->a->app->env, 0);
    sy_status st = SY_OK;
    if (json) {
        put_json(p, &b);
        st = sy_report_write(&b, json, err);
        sy_buf_clear(&b);
    }
    if (!st && sy_arg_text(p->a, "report")) st = write_report(p, all, sy_arg_text(p->a, "report"), err);
    if (!st && !(json && !strcmp(json, "-"))) {
        put_found(p, all, &b);
        st = sy_report_write(&b, "-", err);
    }
    sy_buf_release(&b);
    return st;
}

sy_status sy_plan_search(struct sy_args *a, struct sy_err *err)
{
    struct plan p = {.a = a};
    struct sy_plan_found all = {0};
    sy_status st = read_all(&p, err);
    if (!st) {
        struct sy_plan_opt closed = p.o;
        closed.n_simulate = 0;
        st = sy_plan_find(&a->app->env, &a->arena, &closed, &all, err);
    }
    if (!st) st = sy_plan_find(&a->app->env, &a->arena, &p.o, &p.found, err);
    if (!st) st = report(&p, &all, err);
    sy_calibration_release(&p.calibration);
    sy_workload_release(&p.trace);
    sy_delete(&a->app->env, p.trace_text);
    return st;
}
