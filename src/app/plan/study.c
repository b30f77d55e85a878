/* study.c - questions about scheduling that need chips nobody here has: each is a table, simulated. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "app/bench/bench.h"
#include "app/plan/plan.h"
#include "plan/search.h"

struct study {
    struct sy_args *a;
    struct sy_calibration calibration;
    struct sy_card card;
    struct sy_buf b;
    struct sy_err *err;
};
struct bed { /* where a question is asked */
    const char *chip, *precision;
    struct sy_sharding layout;
    int32_t chunk, in, out, users, n_request;
    double range;
};

static sy_status timer_of(struct study *s, const struct bed *d, struct sy_timer *t)
{
    struct sy_chip chip;
    struct sy_placed at;
    struct sy_place where = {.calibration = &s->calibration,
                             .card = &s->card,
                             .chip = &chip,
                             .precision = d->precision,
                             .layout = d->layout,
                             .in = d->in,
                             .out = d->out};
    sy_status st = sy_chip_find(&s->a->app->env, d->chip, &chip, s->err);
    if (!st) st = sy_plan_place(&where, &at, s->err);
    if (!st) *t = at.timer;
    return st;
}

static struct sy_sim_opt usual(const struct bed *d, const struct sy_timer *t)
{
    return (struct sy_sim_opt){.timer = t,
                               .n_replica = 1,
                               .chunk = d->chunk,
                               .seq_max = d->users / d->layout.dp + 8,
                               .ctx_len = d->in + d->out + 32,
                               .block_len = 256,
                               .accepted = 1,
                               .users = d->users,
                               .seed = 1};
}

static sy_status run(struct study *s, const struct bed *d, const struct sy_sim_opt *o, struct sy_sim_seen *seen)
{
    struct sy_workload w;
    sy_status st = sy_workload_random(&s->a->app->env, (size_t)d->n_request, d->in, d->out, d->range, 1, &w, s->err);
    if (st) return st;
    st = sy_simulate(&s->a->app->env, o, &w, seen, s->err);
    sy_workload_release(&w);
    return st;
}

static double per_chip(const struct sy_sim_seen *v, const struct bed *d)
{
    return (v->in_tok + v->out_tok) / v->seconds / d->layout.chips;
}

static void row(struct study *s, const char *what, const struct bed *d, const struct sy_sim_seen *v, double base)
{
    double now = per_chip(v, d);
    sy_buf_printf(&s->b, "%-34s %9.0f %+7.1f%% %9.2f %9.2f %9.2f %8.0f%%\n", what, now,
                  base > 0 ? 100 * (now / base - 1) : 0, 1e3 * v->tpot.median, v->ttft.median, v->ttft.p99,
                  100 * v->fill);
}

static void head(struct study *s, const char *about)
{
    sy_buf_printf(&s->b, "%s\n\n%-34s %9s %8s %9s %9s %9s %9s\n", about, "", "tok/s/chp", "gain", "TPOT ms", "TTFT s",
                  "p99", "live");
}

/* Ranks of attention that are pinned in turn, or given what comes by what they have to do; prompts of mixed lengths.
 */
static sy_status balance(struct study *s)
{
    static const struct {
        const char *name;
        enum sy_balance how;
    } ways[] = {{"pinned in turn", SY_BALANCE_PINNED}, {"to the rank with least to do", SY_BALANCE_LEAST}};
    struct bed d = {"tpu_v7", "fp8", {.chips = 4, .tp = 1, .dp = 8, .pp = 1, .expert_parallel = true},
                    1024,     8192,  1024,
                    128,      384,   0.1};
    struct sy_timer t;
    sy_status st = timer_of(s, &d, &t);
    double base = 0;
    head(s, "8 attention ranks on 4 TPU v7, Qwen3.5-397B fp8, 819 to 8192 in, 128 users: who gets the next request");
    for (size_t i = 0; i < SY_COUNT(ways) && !st; i++) {
        struct sy_sim_opt o = usual(&d, &t);
        struct sy_sim_seen v;
        o.balance = ways[i].how;
        o.seq_max = d.users;
        st = run(s, &d, &o, &v);
        if (st) return st;
        row(s, ways[i].name, &d, &v, base);
        if (i == 0) base = per_chip(&v, &d);
    }
    return st;
}

static sy_status batching(struct study *s)
{
    struct bed d = {"b200", "fp8", {.chips = 4, .tp = 4, .dp = 1, .pp = 1, .expert_parallel = false},
                    8192,   2048,  1024,
                    32,     256,   0.1};
    struct sy_timer t;
    sy_status st = timer_of(s, &d, &t);
    double base = 0;
    head(s,
         "static against continuous batching on 4 B200, Qwen3.5-397B fp8, 205 to 2048 in, 102 to 1024 out, 32 users");
    for (int i = 0; i < 2 && !st; i++) {
        struct sy_sim_opt o = usual(&d, &t);
        struct sy_sim_seen v;
        o.scheduling = i ? SY_CONTINUOUS : SY_STATIC;
        st = run(s, &d, &o, &v);
        if (st) return st;
        row(s, i ? "continuous" : "static", &d, &v, base);
        if (i == 0) base = per_chip(&v, &d);
    }
    return st;
}

static sy_status chunks(struct study *s)
{
    struct bed d = {"tpu_v7", "fp8", {.chips = 4, .tp = 1, .dp = 8, .pp = 1, .expert_parallel = true},
                    256,      8192,  1024,
                    128,      256,   0.8};
    struct sy_timer t;
    sy_status st = timer_of(s, &d, &t);
    double base = 0;
    head(s, "tokens of a rank's step on 4 TPU v7 (8 ranks), Qwen3.5-397B fp8, 8k1k, 128 users");
    for (d.chunk = 256; d.chunk <= 4096 && !st; d.chunk *= 2) {
        char name[32];
        struct sy_sim_opt o = usual(&d, &t);
        struct sy_sim_seen v;
        st = run(s, &d, &o, &v);
        if (st) return st;
        snprintf(name, sizeof name, "%d", d.chunk);
        row(s, name, &d, &v, base);
        if (d.chunk == 256) base = per_chip(&v, &d);
    }
    return st;
}

static sy_status speculation(struct study *s)
{
    sy_status st = SY_OK;
    head(s, "speculative decoding on 4 B200, Qwen3.5-397B fp8, 8k1k, published acceptance lengths (thinking on)");
    for (int32_t users = 4; users <= 64 && !st; users *= 4) {
        struct bed d = {"b200", "fp8",     {.chips = 4, .tp = 4, .dp = 1, .pp = 1, .expert_parallel = false},
                        8192,   8192,      1024,
                        users,  3 * users, 0.8};
        struct sy_timer t;
        double base = 0;
        st = timer_of(s, &d, &t);
        for (int32_t drafted = 0; drafted <= 5 && !st; drafted += drafted ? 2 : 1) {
            char name[384];
            struct sy_sim_opt o = usual(&d, &t);
            struct sy_sim_seen v;
            o.drafted = drafted;
            o.accepted = s->card.accepted[drafted];
            o.chunk = d.chunk + users * drafted;
            st = run(s, &d, &o, &v);
            if (st) return st;
            snprintf(name, sizeof name, "%d users, %d drafted, %.2f accepted", users, drafted, o.accepted);
            row(s, name, &d, &v, base);
            if (drafted == 0) base = per_chip(&v, &d);
        }
    }
    return st;
}

/* Chips that only prefill and chips that only decode, each in closed form; the split that wastes least. */
static sy_status disaggregation(struct study *s)
{
    struct bed d = {"b200", "fp8", {.chips = 4, .tp = 4, .dp = 1, .pp = 1, .expert_parallel = false},
                    8192,   8192,  1024,
                    64,     0,     0.8};
    struct sy_timer t;
    sy_status st = timer_of(s, &d, &t);
    if (st) return st;
    double in = d.in * 0.9, out = d.out * 0.9;
    sy_buf_printf(
        &s->b,
        "prefill and decode on replicas of their own (4 B200 each), Qwen3.5-397B fp8, 8k1k, closed form; KV moves "
        "at the scale-out rate\n\n%-34s %9s %9s %9s %9s\n",
        "", "tok/s/chp", "TPOT ms", "TTFT s", "prefill share");
    for (int32_t users = 16; users <= 256; users *= 4) {
        double mixed[SY_METRIC_COUNT], alone[SY_METRIC_COUNT], prompt[SY_METRIC_COUNT];
        struct sy_load_spec l = {.in = in, .out = out, .conc = users, .chunk = d.chunk, .accepted = 1};
        sy_fluid(&t, &l, mixed);
        struct sy_load_spec dec = {
            .kind = SY_LOAD_DECODE, .in = in + out / 2, .out = 1, .conc = users, .chunk = d.chunk, .accepted = 1};
        struct sy_load_spec pre = {.kind = SY_LOAD_PREFILL, .in = in, .conc = 1, .chunk = d.chunk, .accepted = 1};
        sy_fluid(&t, &dec, alone);
        sy_fluid(&t, &pre, prompt);
        double move =
            in * sy_timer_fit(&t, 1, in).per_token * t.layout.tp / (t.chip.scale_out_bytes_s * t.layout.chips);
        double served = alone[SY_METRIC_OUT] * 4 / out,
               filled = prompt[SY_METRIC_TPUT] * 4 / in; /* requests/s of a replica */
        double share = served / (served + filled), both = served * (1 - share) * (in + out) / 4;
        sy_buf_printf(&s->b, "%3d users, together                %9.0f %9.2f %9.2f %9s\n", users,
                      mixed[SY_METRIC_TPUT], 1e3 * mixed[SY_METRIC_TPOT], mixed[SY_METRIC_TTFT], "-");
        sy_buf_printf(&s->b, "%3d decoding, apart                %9.0f %9.2f %9.2f %8.0f%%\n", users, both,
                      1e3 * alone[SY_METRIC_TPOT], prompt[SY_METRIC_TTFT] + move, 100 * share);
    }
    return SY_OK;
}

/* What a tier of slower memory behind the cache is worth: prompts found there are loaded, not computed. */
static sy_status tiers(struct study *s)
{
    struct bed d = {"b200", "fp8", {.chips = 4, .tp = 4, .dp = 1, .pp = 1, .expert_parallel = false},
                    8192,   32768, 512,
                    32,     0,     0.8};
    static const struct {
        const char *name;
        double hit, bytes_s;
    } tier[] = {{"none, everything computed", 0, 0},
                {"device memory holds half", 0.5, 0},
                {"and host memory the rest, 50 GB/s", 0.9, 50e9},
                {"and a disk the rest, 6 GB/s", 0.9, 6e9}};
    struct sy_timer t;
    sy_status st = timer_of(s, &d, &t);
    if (st) return st;
    sy_buf_printf(
        &s->b,
        "tiers of cache behind 4 B200, Qwen3.5-397B fp8, sessions of 32k in, 512 out, 32 users, closed form; the "
        "load of what a tier has is charged to the request\n\n%-34s %9s %9s %9s\n",
        "", "tok/s/chp", "TTFT s", "E2E s");
    for (size_t i = 0; i < SY_COUNT(tier); i++) {
        double metric[SY_METRIC_COUNT], in = d.in * 0.9;
        struct sy_load_spec l = {
            .in = in, .out = d.out * 0.9, .conc = d.users, .chunk = d.chunk, .accepted = 1, .hit = tier[i].hit};
        sy_fluid(&t, &l, metric);
        double moved =
            (tier[i].hit > 0.5 ? tier[i].hit - 0.5 : 0) * in * sy_timer_fit(&t, 1, in).per_token * t.layout.tp;
        double wait =
            tier[i].bytes_s > 0 ? moved / tier[i].bytes_s * d.users / 4 : 0; /* links are shared by those who load */
        double e2e = metric[SY_METRIC_E2E] + wait;
        sy_buf_printf(&s->b, "%-34s %9.0f %9.2f %9.2f\n", tier[i].name,
                      metric[SY_METRIC_TPUT] * metric[SY_METRIC_E2E] / e2e, metric[SY_METRIC_TTFT] + wait, e2e);
    }
    return SY_OK;
}

static const struct {
    const char *name;
    sy_status (*run)(struct study *);
} studies[] = {{"balance", balance},
               {"batching", batching},
               {"chunks", chunks},
               {"speculation", speculation},
               {"disaggregation", disaggregation},
               {"tiers", tiers}};

sy_status sy_plan_study(struct sy_args *a, struct sy_err *err)
{
    struct study s = {.a = a, .err = err};
    const char *name = sy_arg_text(a, "study");
    bool any = false;
    sy_status st = sy_plan_calibration(a, &s.calibration, err);
    if (st) return st;
    sy_buf_init(&s.b, &a->app->env, 0);
    st = sy_card_find(&a->app->env, "qwen3.5-397b-a17b", &s.card, err);
    for (size_t i = 0; i < SY_COUNT(studies) && !st; i++) {
        if (strcmp(name, "all") && strcmp(name, studies[i].name)) continue;
        if (any) sy_buf_text(&s.b, "\n");
        any = true;
        st = studies[i].run(&s);
    }
    if (!st && !any)
        st = sy_fail(err, SY_EARG,
                     "--study: expected balance, batching, chunks, speculation, disaggregation, tiers or all, "
                     "found '%.40s'",
                     name);
    if (!st) st = sy_report_write(&s.b, "-", err);
    sy_buf_release(&s.b);
    sy_calibration_release(&s.calibration);
    return st;
}
