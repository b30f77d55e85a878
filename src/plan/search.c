#include "plan/search.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CANDIDATE_MAX = 200000, REFUSED_MAX = 256, REQUESTS_LEAST = 48 };

sy_status sy_slo_parse(const char *text, struct sy_slo *out, struct sy_err *err)
{
    static const char *const kinds[] = {"ttft_", "tpot_", "e2e_"}, *const parts[] = {"p50<", "p90<", "p99<"};
    *out = (struct sy_slo){0};
    for (const char *at = text; *at;) {
        double *bound = NULL;
        for (int k = 0; k < SY_SLO_COUNT && !bound; k++)
            for (int i = 0; i < 3; i++) {
                size_t n = strlen(kinds[k]);
                if (strncmp(at, kinds[k], n) || strncmp(at + n, parts[i], 4)) continue;
                bound = &out->bound[k][i];
                at += n + 4;
                break;
            }
        char *end;
        double v = bound ? strtod(at, &end) : 0;
        double unit = bound && !strncmp(end, "ms", 2) ? 1e-3 : bound && *end == 's' ? 1 : 0;
        if (bound) end += unit == 1e-3 ? 2 : 1;
        if (!bound || unit <= 0 || !(v > 0 && v < 1e6) || (*end && *end != ','))
            return sy_fail(err, SY_EARG,
                           "--slo: expected bounds as 'ttft_p99<2s,tpot_p50<50ms' (ttft, tpot, e2e; p50, "
                           "p90, p99; above 0), found '%.40s'",
                           at);
        *bound = v * unit;
        at = *end ? end + 1 : end;
    }
    return SY_OK;
}

struct search {
    const struct sy_env *env;
    struct sy_arena *arena;
    const struct sy_plan_opt *o;
    struct sy_plan_found *found;
    size_t cap;
    struct sy_err *err;
};

SY_PRINTF(5, 6)
static void refuse(struct search *s, const char *chip, int32_t chips, double lacks, const char *fmt, ...)
{
    struct sy_plan_found *f = s->found;
    if (f->n_refused == REFUSED_MAX) return;
    struct sy_refused *r = &f->refused[f->n_refused++];
    *r = (struct sy_refused){.chips = chips, .lacks = lacks};
    snprintf(r->chip, sizeof r->chip, "%s", chip);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->why, sizeof r->why, fmt, ap);
    va_end(ap);
}

static struct sy_load_spec load_of(const struct sy_plan_opt *o, int32_t users, int32_t chunk)
{
    double half = (1 + o->range) / 2;
    return (struct sy_load_spec){.kind = SY_LOAD_CLOSED,
                                 .in = o->in * half,
                                 .out = o->out * half,
                                 .conc = users,
                                 .chunk = chunk,
                                 .hit = o->hit,
                                 .accepted = 1,
                                 .memory_share = o->memory_share};
}

/* Largest ratio of what is to what may be. percentile -1: means stand in for medians, and tails are not looked at. */
static double missed(const struct sy_slo *slo, const double *ttft, const double *tpot, const double *e2e, int n)
{
    const double *const is[SY_SLO_COUNT] = {ttft, tpot, e2e};
    double most = 0;
    for (int k = 0; k < SY_SLO_COUNT; k++)
        for (int i = 0; i < n; i++) {
            double ratio = slo->bound[k][i] > 0 ? is[k][i] / slo->bound[k][i] : 0;
            if (ratio > most) most = ratio;
        }
    return most;
}

static bool begins(const char *text, const char *with) { return !with || !strncmp(text, with, strlen(with)); }

void sy_plan_build(const struct sy_calibration *c, const char *framework, const char *date, struct sy_measured *p)
{
    const struct sy_group *best = NULL;
    int rank = -1;
    for (size_t i = 0; i < c->n_group; i++) {
        const struct sy_group *g = &c->group[i];
        if (strcmp(g->hw, p->hw) || strncmp(g->spec, "none", 4)) continue;
        if (!begins(g->framework, framework) || !begins(g->date, date)) continue;
        int r = 2 * !strcmp(g->model, p->model) + !strcmp(g->precision, p->precision);
        if (r < rank || (r == rank && strcmp(g->date, best->date) <= 0)) continue;
        best = g;
        rank = r;
    }
    p->framework = best ? best->framework : framework ? framework : "unknown";
    p->date = best ? best->date : date ? date : "";
}

static sy_status add(struct search *s, const struct sy_candidate *c)
{
    struct sy_plan_found *f = s->found;
    if (f->n == CANDIDATE_MAX)
        return sy_fail(s->err, SY_EARG, "more than %d configurations: name fewer", CANDIDATE_MAX);
    if (f->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 256;
        struct sy_candidate *all = sy_arena_array(s->arena, cap, sizeof *all);
        if (!all) return sy_fail(s->err, SY_ENOMEM, "no memory for %zu configurations", cap);
        if (f->n) memcpy(all, f->at, f->n * sizeof *all);
        f->at = all;
        s->cap = cap;
    }
    f->at[f->n++] = *c;
    return SY_OK;
}

static sy_status try_users(struct search *s, struct sy_candidate *c, double price)
{
    const struct sy_plan_opt *o = s->o;
    double half = (1 + o->range) / 2, ctx = o->in * half + o->out * half;
    struct sy_fit fit = sy_timer_fit(&c->timer, o->memory_share, ctx);
    double room = fit.tokens / ctx;
    sy_status st = SY_OK;
    const struct sy_sharding *l = &c->timer.layout;
    double device = c->timer.chip.memory_bytes / c->timer.chip.devices, each = fit.per_token * ctx + fit.per_seq;
    if (fit.room <= 0 || room < l->dp) {
        refuse(s, c->chip, l->chips, (fit.weights + each) / (o->memory_share * device),
               "tp %d dp %d pp %d: %.0f GB of weights and a sequence of %.1f GB do not fit %.0f %% of a device's "
               "%.0f GB",
               l->tp, l->dp, l->pp, fit.weights / 1e9, each / 1e9, 100 * o->memory_share, device / 1e9);
        return SY_OK;
    }
    for (size_t i = 0; i < o->n_users && !st; i++) {
        c->users = (int32_t)o->users[i];
        if (c->users < l->dp) {
            if (o->n_users == 1)
                refuse(s, c->chip, l->chips, 0, "tp %d dp %d pp %d: %d users are fewer than its ranks", l->tp, l->dp,
                       l->pp, c->users);
            continue;
        }
        if (c->users > room) {
            if (o->n_users == 1)
                refuse(s, c->chip, l->chips, c->users / room,
                       "tp %d dp %d pp %d: the cache holds %.0f sequences, not %d", l->tp, l->dp, l->pp, floor(room),
                       c->users);
            continue;
        }
        struct sy_load_spec load = load_of(o, c->users, c->chunk);
        sy_fluid(&c->timer, &load, c->metric);
        c->tput = c->metric[SY_METRIC_TPUT];
        c->usd = sy_usd_per_mtok(price, c->tput);
        c->missed =
            missed(&o->slo, &c->metric[SY_METRIC_TTFT], &c->metric[SY_METRIC_TPOT], &c->metric[SY_METRIC_E2E], 1);
        st = add(s, c);
    }
    return st;
}

sy_status sy_plan_place(const struct sy_place *w, struct sy_placed *out, struct sy_err *err)
{
    struct sy_path path;
    struct sy_measured p = {
        .hw = w->chip->id, .model = w->card->name, .precision = w->precision, .spec = "none", .conc = -1};
    sy_status st = sy_path_named(w->precision, w->chip, &path, err);
    if (!st) st = sy_timer_init(&out->timer, &w->card->profile, w->chip, &path, w->layout, sy_consts_roofline, err);
    if (st) return st;
    p.timer = out->timer;
    p.chips = w->layout.chips;
    p.tp = w->layout.tp;
    p.dp = w->layout.dp;
    p.isl = w->in;
    p.osl = w->out;
    sy_plan_build(w->calibration, w->framework, w->build, &p);
    out->timer.consts = sy_calibration_for(w->calibration, &p, &out->reach, &out->group);
    return SY_OK;
}

static sy_status try_sharding(struct search *s, const struct sy_chip *chip, struct sy_sharding l, double price)
{
    const struct sy_plan_opt *o = s->o;
    struct sy_candidate c = {.n_replica = 1};
    struct sy_place where = {.calibration = o->calibration,
                             .card = o->card,
                             .chip = chip,
                             .precision = o->precision,
                             .framework = o->framework,
                             .build = o->build,
                             .layout = l,
                             .in = (int32_t)o->in,
                             .out = (int32_t)o->out};
    struct sy_placed at;
    sy_status st = sy_plan_place(&where, &at, s->err);
    if (st) return st;
    snprintf(c.chip, sizeof c.chip, "%s", chip->id);
    c.timer = at.timer;
    c.reach = at.reach;
    c.group = at.group;
    c.chunk = o->chunk > 0 ? o->chunk : sy_plan_chunk(chip, o->in);
    return try_users(s, &c, price);
}

int32_t sy_plan_chunk(const struct sy_chip *chip, double in)
{
    return !chip->static_shapes ? 8192 : in >= 4096 ? 1024 : 2048;
}

/* Experts are spread where the layout says so, or where engines are known to do it. */
static bool spreads(const struct sy_plan_opt *o, const struct sy_chip *chip, int32_t holders, int32_t dp,
                    bool *wanted)
{
    *wanted = !o->ep || o->ep == 1 || (o->card->profile.n_expert > 0 && o->ep == holders);
    if (o->ep) return o->ep > 1;
    return o->card->profile.n_expert > 0 && (dp > 1 || chip->static_shapes || o->afd[0]);
}

static sy_status try_count(struct search *s, const struct sy_chip *chip, int32_t chips, double price)
{
    const struct sy_plan_opt *o = s->o;
    int32_t ffn = o->afd[0] ? chips - o->afd[0] : 0, devices = (chips - ffn) * chip->devices;
    bool any = false, wanted = true;
    sy_status st = SY_OK;
    if (chips > 1 && chip->topology == SY_LINK_NONE) {
        refuse(s, chip->id, chips, 0, "its card has no 'link': more than one cannot work together");
        return SY_OK;
    }
    for (int32_t pp = 1; pp <= devices && !st; pp *= 2)
        for (int32_t dp = 1; dp * pp <= devices && !st; dp *= 2) {
            int32_t tp = devices / dp / pp;
            if (tp * dp * pp != devices || (o->tp && tp != o->tp && tp * dp != o->tp) || (o->dp && dp != o->dp))
                continue;
            if (o->tp && !o->dp && tp != o->tp) continue;
            if (o->pp ? pp != o->pp : pp > 1) continue;
            if (pp > o->card->profile.n_layer) continue;
            bool ep = spreads(o, chip, ffn ? ffn * chip->devices : tp * dp, dp, &wanted);
            if (!wanted) continue;
            any = true;
            st = try_sharding(s, chip, (struct sy_sharding){chips, tp, dp, pp, ep, ffn}, price);
        }
    if (!st && !any)
        refuse(s, chip->id, chips, 0, "its %d devices cannot be laid out as asked (--tp, --ep, --dp-attention, --pp)",
               devices);
    return st;
}

static sy_status try_chip(struct search *s, const char *name)
{
    const struct sy_plan_opt *o = s->o;
    struct sy_chip chip;
    sy_status st = sy_chip_find(s->env, name, &chip, s->err);
    if (st) return st;
    double price = sy_price_of(o->prices, chip.id);
    bool own = strcmp(chip.id, name) != 0; /* a file: what it lacks, its owner can mend */
    const char *lacks = chip.memory_bytes <= 0     ? "memory_bytes"
                        : chip.memory_bytes_s <= 0 ? "memory_bytes_s"
                        : sy_chip_flops(&chip, SY_ARITH_FP4) <= 0 && sy_chip_flops(&chip, SY_ARITH_INT8) <= 0
                            ? "flops"
                            : NULL;
    if (lacks && own)
        return sy_fail(s->err, SY_EFORMAT, "chip '%s': expected a figure '%s', found none", name, lacks);
    if (price <= 0 && o->n_chip == 1)
        return sy_fail(s->err, SY_EARG,
                       "price list '%s' has no price of '%s': add it, or name another list with --tco",
                       o->prices->name, chip.id);
    if (price <= 0) refuse(s, chip.id, 0, 0, "price list '%s' has no price of it", o->prices->name);
    else if (lacks) refuse(s, chip.id, 0, 0, "its card has no '%s': it is not public", lacks);
    if (price <= 0 || lacks) return SY_OK;
    for (size_t i = 0; i < o->n_count && !st; i++) st = try_count(s, &chip, (int32_t)o->count[i], price);
    return st;
}

/* Kept before missed; then by cost, and among the missed by how much. */
static int better(const void *a, const void *b)
{
    const struct sy_candidate *x = a, *y = b;
    bool kx = x->missed <= 1, ky = y->missed <= 1;
    if (kx != ky) return kx ? -1 : 1;
    double p = kx ? x->usd : x->missed, q = ky ? y->usd : y->missed;
    return (p > q) - (p < q);
}

static void percentiles(const struct sy_summary *v, double *out)
{
    out[0] = v->median;
    out[1] = v->p90;
    out[2] = v->p99;
}

/* As many replicas as were asked for, or as the mean rate fills to four fifths; the trace decides whether that was
 * enough. */
static sy_status simulate_trace(struct search *s, struct sy_candidate *c, struct sy_sim_seen *seen)
{
    const struct sy_plan_opt *o = s->o;
    double rate = (double)o->trace->n / (o->trace_s > 1 ? o->trace_s : 1);
    double capacity = c->metric[SY_METRIC_TPUT] * c->timer.layout.chips / (o->in + o->out);
    c->n_replica = o->n_replica > 0 ? o->n_replica : (int32_t)ceil(rate / (0.8 * capacity));
    if (c->n_replica < 1) c->n_replica = 1;
    struct sy_sim_opt so = {.timer = &c->timer,
                            .n_replica = c->n_replica,
                            .chunk = c->chunk,
                            .seq_max = c->users / c->timer.layout.dp + 1,
                            .ctx_len = o->trace_ctx + 32,
                            .block_len = o->hit > 0 ? 1024 : 64, /* prefixes are shared by whole blocks */
                            .gap_ms_max = sy_group_gap_ms(c->group, c->timer.chip.id),
                            .memory_share = o->memory_share,
                            .accepted = 1,
                            .routed = true,
                            .prefix_cache = o->hit <= 0, /* else the share is given, and texts are not looked at */
                            .hit = o->hit,
                            .seed = o->seed};
    return sy_simulate(s->env, &so, o->trace, seen, s->err);
}

static sy_status simulate_users(struct search *s, struct sy_candidate *c, struct sy_sim_seen *out)
{
    const struct sy_plan_opt *o = s->o;
    int32_t dp = c->timer.layout.dp, n = 4 * c->users;
    struct sy_workload w;
    sy_status st = sy_workload_random(s->env, (size_t)(n < REQUESTS_LEAST ? REQUESTS_LEAST : n), (int32_t)o->in,
                                      (int32_t)o->out, o->range, o->seed, &w, s->err);
    if (st) return st;
    struct sy_sim_opt so = {.timer = &c->timer,
                            .n_replica = 1,
                            .chunk = c->chunk,
                            .seq_max = c->users / dp + 1,
                            .ctx_len = (int32_t)(o->in + o->out) + 32,
                            .block_len = 256,
                            .gap_ms_max = sy_group_gap_ms(c->group, c->timer.chip.id),
                            .memory_share = 0,
                            .accepted = 1,
                            .users = c->users,
                            .hit = o->hit,
                            .seed = o->seed};
    st = sy_simulate(s->env, &so, &w, out, s->err);
    sy_workload_release(&w);
    return st;
}

static sy_status simulate(struct search *s, struct sy_candidate *c)
{
    const struct sy_plan_opt *o = s->o;
    struct sy_sim_seen seen;
    sy_status st = o->trace ? simulate_trace(s, c, &seen) : simulate_users(s, c, &seen);
    if (st) return st;
    percentiles(&seen.ttft, c->ttft);
    percentiles(&seen.tpot, c->tpot);
    percentiles(&seen.e2e, c->e2e);
    c->tput = (seen.in_tok + seen.out_tok) / seen.seconds / c->timer.layout.chips / c->n_replica;
    c->usd = sy_usd_per_mtok(sy_price_of(o->prices, c->chip), c->tput);
    c->missed = missed(&o->slo, c->ttft, c->tpot, c->e2e, 3);
    c->simulated = true;
    return SY_OK;
}

sy_status sy_plan_find(const struct sy_env *env, struct sy_arena *arena, const struct sy_plan_opt *o,
                       struct sy_plan_found *out, struct sy_err *err)
{
    struct sy_plan_found f = {0};
    struct search s = {.env = env, .arena = arena, .o = o, .found = &f, .err = err};
    f.refused = sy_arena_array(arena, REFUSED_MAX, sizeof *f.refused);
    if (!f.refused) return sy_fail(err, SY_ENOMEM, "no memory for the search");
    sy_status st = SY_OK;
    for (size_t i = 0; i < o->n_chip && !st; i++) st = try_chip(&s, o->chip[i]);
    if (st) return st;
    if (f.n > 1) qsort(f.at, f.n, sizeof *f.at, better);
    /* Tails only exist in the simulation: go down the list until enough have kept the promise in it. */
    int32_t kept = 0;
    size_t looked = 0;
    for (size_t i = 0; i < f.n && kept < o->n_simulate && looked < (size_t)(4 * o->n_simulate) && !st;
         i++, looked++) {
        st = simulate(&s, &f.at[i]);
        kept += !st && f.at[i].missed <= 1;
    }
    if (st) return st;
    /* What was not simulated is not compared with what was: it stays behind. */
    if (looked) qsort(f.at, looked, sizeof *f.at, better);
    for (size_t i = 0; i < f.n_refused && f.n == 0; i++)
        if (f.refused[i].lacks > 0 && (!f.nearest || f.refused[i].lacks < f.nearest->lacks))
            f.nearest = &f.refused[i];
    f.n_simulated = looked;
    f.kept = f.n > 0 && f.at[0].missed <= 1;
    *out = f;
    return SY_OK;
}

struct sy_load_spec sy_candidate_load(const struct sy_candidate *c, const struct sy_plan_opt *o)
{
    return load_of(o, c->users, c->chunk);
}

double sy_candidate_usd(const struct sy_candidate *c, const struct sy_plan_opt *o, double in, double out, double hit,
                        double price)
{
    struct sy_plan_opt other = *o;
    double metric[SY_METRIC_COUNT];
    other.in = in;
    other.out = out;
    other.hit = hit;
    struct sy_load_spec l = load_of(&other, c->users, c->chunk);
    sy_fluid(&c->timer, &l, metric);
    return sy_usd_per_mtok(price, metric[SY_METRIC_TPUT]);
}
