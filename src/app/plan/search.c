/* search.c - the cheapest way to keep a promise, what else was tried, and what would change it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "app/plan/ask.h"

enum { SHOWN = 10, JSON_MAX = 2000 };

/* ---- what is printed ------------------------------------------------------------------------------------------- */

void sy_sharding_name(const struct sy_sharding *l, char *s, size_t n)
{
    struct {
        const char *name;
        int32_t v;
    } part[] = {{" dp", l->dp}, {" pp", l->pp}};
    int at = snprintf(s, n, "tp%d", l->tp);
    for (size_t i = 0; i < SY_COUNT(part) && at < (int)n; i++)
        if (part[i].v > 1) at += snprintf(s + at, n - (size_t)at, "%s%d", part[i].name, part[i].v);
    if (l->expert_parallel && at < (int)n) at += snprintf(s + at, n - (size_t)at, " ep");
    if (l->ffn_chips && at < (int)n)
        snprintf(s + at, n - (size_t)at, " %d+%d", l->chips - l->ffn_chips, l->ffn_chips);
}

static void put_candidate(const struct sy_asked *p, const struct sy_candidate *c, int i, struct sy_buf *b)
{
    char name[48];
    sy_sharding_name(&c->timer.layout, name, sizeof name);
    char said[96];
    double tpot = c->simulated ? c->tpot[0] : c->metric[SY_METRIC_TPOT];
    double ttft = c->simulated ? c->ttft[0] : c->metric[SY_METRIC_TTFT];
    double e2e = c->simulated ? c->e2e[0] : c->metric[SY_METRIC_E2E];
    sy_buf_printf(b, "%4d %-9s %5d %-14s %6d %9.4f %9.0f %9.2f %8.2f", i, c->chip, c->timer.layout.chips, name,
                  c->users, c->usd, c->tput, 1e3 * tpot, ttft);
    if (c->simulated) sy_buf_printf(b, " %8.2f", c->ttft[2]);
    else sy_buf_printf(b, " %8s", "-");
    sy_buf_printf(b, " %8.2f  ", e2e);
    if (c->n_replica > 1) sy_buf_printf(b, "%d replicas, ", c->n_replica);
    sy_reach_say(&p->calibration, c->reach, said, sizeof said);
    sy_buf_printf(b, "%s; %s\n", c->simulated ? "simulated" : "estimated", said);
}

/* In what products are costed where that is not what the precision is called. */
static void put_arithmetic(const struct sy_asked *p, size_t shown, struct sy_buf *b)
{
    for (size_t i = 0; i < shown; i++) {
        const struct sy_timer *t = &p->found.at[i].timer;
        enum sy_arith a = sy_chip_arith(&t->chip, t->path.arith);
        bool narrow = t->path.b_weight < 1 && a != SY_ARITH_FP4, said = a == t->path.arith && !narrow;
        for (size_t k = 0; k < i && !said; k++) said = !strcmp(p->found.at[k].chip, p->found.at[i].chip);
        if (!said)
            sy_buf_printf(b, "     %s: products of %s at its %s peak\n", p->found.at[i].chip, p->o.precision,
                          sy_arith_name(a));
    }
}

static void put_sensitivity(const struct sy_asked *p, const struct sy_candidate *c, struct sy_buf *b)
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
static void put_hybrid(const struct sy_asked *p, const struct sy_plan_found *all, struct sy_buf *b)
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

static void put_found(const struct sy_asked *p, const struct sy_plan_found *all, struct sy_buf *b)
{
    const struct sy_plan_found *f = &p->found;
    sy_buf_printf(b, "%s (costed from its %s), %s, %.0f in, %.0f out, prices '%s'; %zu configurations\n\n",
                  p->card.name, p->card.from, p->o.precision, p->o.in, p->o.out, p->prices.name, all->n);
    if (f->n == 0) {
        const struct sy_refused *r = f->nearest;
        sy_buf_text(b, "nothing fits");
        if (r)
            sy_buf_printf(b, "; the nearest is %d x %s, which needs %.2f times the memory there is:\n  %s\n",
                          r->chips, r->chip, r->lacks, r->why);
        else sy_buf_text(b, ": nothing can be laid out as asked\n");
        put_refused(f, b);
        return;
    }
    size_t shown = f->n_simulated ? f->n_simulated : f->n;
    if (!f->kept)
        sy_buf_printf(b, "nothing keeps the promise; the nearest misses a bound by a factor of %.2f:\n",
                      f->at[0].missed);
    sy_buf_printf(b, "%4s %-9s %5s %-14s %6s %9s %9s %9s %8s %8s %8s\n", "rank", "chip", "chips", "sharding", "users",
                  "$/M tok", "tok/s/chp", "TPOT ms", "TTFT s", "p99", "E2E s");
    if (shown > SHOWN) shown = SHOWN;
    for (size_t i = 0; i < shown; i++) put_candidate(p, &f->at[i], (int)i + 1, b);
    put_arithmetic(p, shown, b);
    put_sensitivity(p, &f->at[0], b);
    put_hybrid(p, all, b);
    put_refused(f, b);
}

static void put_configuration(const struct sy_asked *p, const struct sy_candidate *c, struct sy_jout *j)
{
    const struct sy_sharding *l = &c->timer.layout;
    const struct sy_band *band = &p->calibration.band[c->reach];
    const struct sy_load_spec load = sy_candidate_load(c, &p->o);
    double tpot = c->simulated ? c->tpot[0] : c->metric[SY_METRIC_TPOT], part = load.in / (load.in + load.out);
    double w = c->timer.chip.all_in_w;
    sy_jout_line(j);
    sy_jout_open(j, NULL, '{');
    sy_jout_text(j, "hw", c->chip);
    sy_jout_text(j, "model", p->card.name);
    sy_jout_text(j, "precision", p->o.precision);
    sy_jout_text(j, "arithmetic", sy_arith_name(sy_chip_arith(&c->timer.chip, c->timer.path.arith)));
    sy_jout_text(j, "framework", c->group ? c->group->framework : "none");
    sy_jout_text(j, "build", c->group ? c->group->date : "");
    sy_jout_num(j, "isl", p->o.in);
    sy_jout_num(j, "osl", p->o.out);
    sy_jout_int(j, "conc", c->users);
    sy_jout_int(j, "chips", l->chips);
    sy_jout_int(j, "tp", l->tp);
    sy_jout_int(j, "dp", l->dp);
    sy_jout_int(j, "pp", l->pp);
    sy_jout_int(j, "ep",
                l->expert_parallel ? (l->ffn_chips ? l->ffn_chips * c->timer.chip.devices : l->tp * l->dp) : 1);
    sy_jout_int(j, "ffn_chips", l->ffn_chips);
    sy_jout_int(j, "chunk", c->chunk);
    sy_jout_int(j, "replicas", c->n_replica);
    sy_jout_num(j, "usd_per_mtok_total", c->usd);
    sy_jout_num(j, "tput_per_gpu", c->tput);
    sy_jout_num(j, "input_tput_per_gpu", c->tput * part);
    sy_jout_num(j, "output_tput_per_gpu", c->tput * (1 - part));
    sy_jout_num(j, "tok_s_per_mw", w > 0 ? c->tput / w * 1e6 : NAN);
    sy_jout_num(j, "median_intvty", 1 / tpot);
    sy_jout_num(j, "median_tpot_ms", 1e3 * tpot);
    sy_jout_num(j, "p99_tpot_ms", c->simulated ? 1e3 * c->tpot[2] : NAN);
    sy_jout_num(j, "median_ttft_s", c->simulated ? c->ttft[0] : c->metric[SY_METRIC_TTFT]);
    sy_jout_num(j, "p99_ttft_s", c->simulated ? c->ttft[2] : NAN);
    sy_jout_num(j, "median_e2el_s", c->simulated ? c->e2e[0] : c->metric[SY_METRIC_E2E]);
    sy_jout_text(j, "figures", c->simulated ? "simulated" : "estimated");
    sy_jout_text(j, "constants", sy_reach_name(c->reach));
    sy_jout_num(j, "band", band->n ? expm1(band->width) : NAN);
    sy_jout_num(j, "missed", c->missed);
    sy_jout_close(j, '}');
}

static void put_refusals(const struct sy_plan_found *f, struct sy_jout *j)
{
    sy_jout_open(j, "not_considered", '[');
    for (size_t i = 0; i < f->n_refused; i++) {
        const struct sy_refused *r = &f->refused[i];
        sy_jout_line(j);
        sy_jout_open(j, NULL, '{');
        sy_jout_text(j, "hw", r->chip);
        sy_jout_int(j, "chips", r->chips);
        sy_jout_text(j, "why", r->why);
        if (r->lacks > 0) sy_jout_num(j, "times_memory", r->lacks);
        if (r == f->nearest) sy_jout_bool(j, "nearest", true);
        sy_jout_close(j, '}');
    }
    sy_jout_close(j, ']');
}

static void put_json(const struct sy_asked *p, struct sy_buf *b)
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
    sy_jout_int(&j, "tried", (int64_t)f->n);
    sy_jout_bool(&j, "fits", f->n > 0);
    sy_jout_open(&j, "configurations", '[');
    for (size_t i = 0; i < f->n && i < JSON_MAX; i++) put_configuration(p, &f->at[i], &j);
    sy_jout_close(&j, ']');
    put_refusals(f, &j);
    sy_jout_close(&j, '}');
    sy_buf_char(b, '\n');
}

static sy_status report(struct sy_asked *p, const struct sy_plan_found *all, struct sy_err *err)
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
    if (!st && sy_arg_given(p->a, "report")) st = sy_plan_chart(p, err);
    if (!st && !(json && !strcmp(json, "-"))) {
        put_found(p, all, &b);
        st = sy_report_write(&b, "-", err);
    }
    sy_buf_release(&b);
    return st;
}

sy_status sy_plan_search(struct sy_args *a, struct sy_err *err)
{
    struct sy_asked p = {.a = a};
    struct sy_plan_found all = {0};
    sy_status st = sy_asked_read(&p, err);
    if (!st) {
        struct sy_plan_opt closed = p.o;
        closed.n_simulate = 0;
        st = sy_plan_find(&a->app->env, &a->arena, &closed, &all, err);
    }
    if (!st) st = sy_plan_find(&a->app->env, &a->arena, &p.o, &p.found, err);
    if (!st) st = report(&p, &all, err);
    sy_asked_release(&p);
    return st;
}
