/* study.c - questions about scheduling that need chips nobody here has: each is a table in Markdown. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "app/plan/plan.h"
#include "bench/report.h"
#include "plan/search.h"

struct study {
    struct sy_args *a;
    struct sy_calibration calibration;
    struct sy_card card;
    struct sy_buf b;
    struct sy_err *err;
};
struct bed { /* where a question is asked */
    const char *chip;
    struct sy_sharding layout;
    int32_t chunk, in, out, users, per_user; /* per_user: requests of each */
    double range;
};
struct way { /* one answer to it */
    char name[64];
    struct bed d;
    enum sy_balance balance;
    enum sy_scheduling scheduling;
    int32_t drafted;
    int32_t replicas, prefill; /* 0: one; of them those that compute prompts only */
    double hit, tier_hit;      /* shares of a prompt that the cache knows, and a tier behind it */
    double link_bytes_s;       /* of a replica */
    bool base;                 /* what follows is compared with it */
};

/* fp8 is the precision of every table here. */
static sy_status place(struct study *s, const struct bed *d, struct sy_placed *at)
{
    struct sy_chip chip;
    struct sy_place where = {.calibration = &s->calibration,
                             .card = &s->card,
                             .chip = &chip,
                             .precision = "fp8",
                             .layout = d->layout,
                             .in = d->in,
                             .out = d->out};
    sy_status st = sy_chip_find(&s->a->app->env, d->chip, &chip, s->err);
    return st ? st : sy_plan_place(&where, at, s->err);
}

static int32_t replicas_of(const struct way *w) { return w->replicas > 0 ? w->replicas : 1; }

static sy_status run(struct study *s, const struct way *w, const struct sy_placed *at, struct sy_sim_seen *seen)
{
    const struct bed *d = &w->d;
    const struct sy_env *env = &s->a->app->env;
    struct sy_workload load;
    struct sy_sim_opt o = {.timer = &at->timer,
                           .n_replica = replicas_of(w),
                           .n_prefill = w->prefill,
                           .hit = w->hit,
                           .tier_hit = w->tier_hit,
                           .link_bytes_s = w->link_bytes_s,
                           .chunk = d->chunk,
                           .seq_max = d->users, /* whoever is pinned to a rank stays there */
                           .ctx_len = d->in + d->out + 32,
                           .block_len = 256,
                           .balance = w->balance,
                           .scheduling = w->scheduling,
                           .drafted = w->drafted,
                           .accepted = s->card.accepted[w->drafted],
                           .users = d->users,
                           .seed = 1};
    sy_status st =
        sy_workload_random(env, (size_t)d->users * (size_t)d->per_user, d->in, d->out, d->range, 1, &load, s->err);
    if (st) return st;
    st = sy_simulate(env, &o, &load, seen, s->err);
    sy_workload_release(&load);
    return st;
}

static void said_of(struct study *s, const char *how, enum sy_reach reach)
{
    char said[96];
    sy_reach_say(&s->calibration, reach, said, sizeof said);
    sy_buf_printf(&s->b, "\n%s; %s%s\n", how, reach == SY_REACH_ROOFLINE ? "" : "constants ", said);
}

/* Simulates every way and writes a line for each. */
static sy_status table(struct study *s, const char *about, const struct way *w, size_t n)
{
    double base = 0;
    struct sy_placed at = {.reach = SY_REACH_ROOFLINE};
    sy_buf_printf(
        &s->b,
        "%s\n\n| | tokens/s/chip | gain | TPOT ms | TTFT s | TTFT p99 s | live |\n|---|--:|--:|--:|--:|--:|--:|\n",
        about);
    for (size_t i = 0; i < n; i++) {
        struct sy_sim_seen v;
        sy_status st = place(s, &w[i].d, &at);
        if (!st) st = run(s, &w[i], &at, &v);
        if (st) return sy_while(s->err, st, "%s", w[i].name);
        double now = (v.in_tok + v.out_tok) / v.seconds / w[i].d.layout.chips / replicas_of(&w[i]);
        if (w[i].base) base = now;
        sy_buf_printf(&s->b, "| %s | %.0f | %+.1f %% | %.2f | %.2f | %.2f | %.0f %% |\n", w[i].name, now,
                      100 * (now / base - 1), 1e3 * v.tpot.median, v.ttft.median, v.ttft.p99, 100 * v.fill);
    }
    said_of(s, "simulated", at.reach);
    return SY_OK;
}

static const struct sy_sharding v7_dp8 = {.chips = 4, .tp = 1, .dp = 8, .pp = 1, .expert_parallel = true};
static const struct sy_sharding b200_tp4 = {.chips = 4, .tp = 4, .dp = 1, .pp = 1};

/* Eight ranks step together and wait for the fullest: who gets the next request, and what if prompts could be cut
 * over all ranks. live: tokens that were wanted among those that the padded steps computed. */
static sy_status balance(struct study *s)
{
    static const struct {
        const char *name;
        enum sy_balance how;
    } ways[] = {{"pinned in turn", SY_BALANCE_PINNED},
                {"to the rank with least to do", SY_BALANCE_LEAST},
                {"prompts cut over all ranks", SY_BALANCE_SPREAD}};
    struct way w[6] = {{.base = true}};
    for (size_t i = 0; i < SY_COUNT(w); i++) {
        int32_t users = i < SY_COUNT(ways) ? 128 : 256;
        w[i].d = (struct bed){"tpu_v7", v7_dp8, 1024, 8192, 1024, users, 4, 0.8};
        w[i].balance = ways[i % SY_COUNT(ways)].how;
        w[i].base = i % SY_COUNT(ways) == 0;
        snprintf(w[i].name, sizeof w[i].name, "%d users, %s", users, ways[i % SY_COUNT(ways)].name);
    }
    return table(s, "8 ranks of attention on 4 TPU v7, Qwen3.5-397B fp8, 8k1k", w, SY_COUNT(w));
}

static sy_status batching(struct study *s)
{
    struct way w[4] = {{.base = true}};
    for (int i = 0; i < 4; i++) {
        bool mixed = i >= 2;
        w[i].d = (struct bed){"b200", b200_tp4, 8192, 2048, 1024, 32, 8, mixed ? 0.1 : 1};
        w[i].scheduling = i % 2 ? SY_CONTINUOUS : SY_STATIC;
        w[i].base = i % 2 == 0;
        snprintf(w[i].name, sizeof w[i].name, "%s, %s", mixed ? "lengths from a tenth on" : "equal lengths",
                 i % 2 ? "continuous" : "static");
    }
    return table(s, "Static against continuous batching on 4 B200, Qwen3.5-397B fp8, 2048 in, 1024 out, 32 users", w,
                 4);
}

static sy_status chunks(struct study *s)
{
    struct way w[10] = {{.base = true}};
    for (int i = 0; i < 10; i++) {
        bool tpu = i < 5;
        int32_t chunk = (tpu ? 256 : 1024) << i % 5;
        w[i].d = (struct bed){tpu ? "tpu_v7" : "b200", tpu ? v7_dp8 : b200_tp4, chunk, 8192, 1024, 128, 6, 0.8};
        w[i].base = i % 5 == 0;
        snprintf(w[i].name, sizeof w[i].name, "%s, %d", tpu ? "4 TPU v7, 8 ranks" : "4 B200", chunk);
    }
    return table(s, "Tokens of a rank's step, Qwen3.5-397B fp8, 8k1k, 128 users", w, 10);
}

static sy_status speculation(struct study *s)
{
    static const int32_t drafted[] = {0, 1, 3, 5};
    struct way w[12] = {{.base = true}};
    for (size_t i = 0; i < SY_COUNT(w); i++) {
        int32_t users = 4 << 2 * (i / SY_COUNT(drafted)), n = drafted[i % SY_COUNT(drafted)];
        w[i].d = (struct bed){"b200", b200_tp4, 8192 + users * n, 8192, 1024, users, 6, 0.8};
        w[i].drafted = n;
        w[i].base = n == 0;
        snprintf(w[i].name, sizeof w[i].name, "%d users, %d drafted, %.2f accepted", users, n, s->card.accepted[n]);
    }
    return table(s,
                 "Speculative decoding on 4 B200, Qwen3.5-397B fp8, 8k1k, published acceptance lengths (coding, "
                 "thinking on)",
                 w, SY_COUNT(w));
}

/* Some replicas only prefill, and keys go to the others over a link that each of them has: at the rate of the
 * scale-out network, and at a fiftieth of it. */
static sy_status disaggregation(struct study *s)
{
    struct way w[10] = {{.base = true}};
    struct sy_chip chip;
    sy_status st = sy_chip_find(&s->a->app->env, "b200", &chip, s->err);
    if (st) return st;
    for (int i = 0; i < 10; i++) {
        static const int32_t prefill[] = {0, 1, 2, 1, 2};
        bool slow = i % 5 >= 3;
        int32_t users = i < 5 ? 64 : 256;
        w[i] = (struct way){.d = {"b200", b200_tp4, 8192, 8192, 1024, users, 4, 0.8},
                            .replicas = 4,
                            .prefill = prefill[i % 5],
                            .link_bytes_s = chip.scale_out_bytes_s * b200_tp4.chips / (slow ? 50 : 1),
                            .base = i % 5 == 0};
        if (w[i].prefill)
            snprintf(w[i].name, sizeof w[i].name, "%d users, %d of 4 prefill%s", users, w[i].prefill,
                     slow ? ", a fiftieth of the link" : "");
        else snprintf(w[i].name, sizeof w[i].name, "%d users, together", users);
    }
    return table(s,
                 "Prefill and decode apart: 4 replicas of 4 B200, Qwen3.5-397B fp8, 8k1k; keys queue for the link of "
                 "the replica that has them",
                 w, 10);
}

/* What a tier of slower memory behind the cache is worth: prompts found there are loaded, not computed, and queue for
 * its bandwidth. */
static sy_status tiers(struct study *s)
{
    static const struct {
        const char *name;
        double hit, slow, chip_bytes_s; /* shares of a prompt: known to the cache, to the tier */
    } tier[] = {{"nothing is kept", 0, 0, 0},
                {"device memory knows half", 0.5, 0, 0},
                {"and host memory 40 % more, 50 GB/s a chip", 0.5, 0.4, 50e9},
                {"and a disk 40 % more, 6 GB/s a chip", 0.5, 0.4, 6e9},
                {"and a store 40 % more, 1 GB/s a chip", 0.5, 0.4, 1e9},
                {"and a store 40 % more, 0.1 GB/s a chip", 0.5, 0.4, 0.1e9}};
    struct way w[SY_COUNT(tier)] = {{.base = true}};
    for (size_t i = 0; i < SY_COUNT(tier); i++) {
        w[i] = (struct way){.d = {"b200", b200_tp4, 8192, 32768, 512, 32, 6, 0.8},
                            .hit = tier[i].hit,
                            .tier_hit = tier[i].slow,
                            .link_bytes_s = tier[i].chip_bytes_s * b200_tp4.chips,
                            .base = i == 0};
        snprintf(w[i].name, sizeof w[i].name, "%s", tier[i].name);
    }
    return table(s,
                 "Tiers of cache behind 4 B200, Qwen3.5-397B fp8, sessions of 32k in, 512 out, 32 users; loads queue "
                 "for the tier's bandwidth",
                 w, SY_COUNT(tier));
}

struct pool { /* replicas of a kind behind the router */
    const char *chip;
    struct sy_sharding layout;
    int32_t chunk, replicas;
    struct sy_placed at;
};
struct hybrid {
    const char *name;
    struct pool users, batch; /* batch.replicas 0: users' replicas take all */
};

enum { HYBRID_USERS = 64, HYBRID_WAITS = 512, HYBRID_IN = 8192, HYBRID_OUT = 1024 };

static sy_status run_hybrid(struct study *s, struct hybrid *h, struct sy_sim_seen *seen)
{
    struct pool *const pool[2] = {&h->users, &h->batch};
    const struct sy_env *env = &s->a->app->env;
    struct sy_workload load;
    sy_status st = SY_OK;
    for (int k = 0; k < 2 && !st && pool[k]->replicas; k++) {
        struct bed d = {.chip = pool[k]->chip, .layout = pool[k]->layout, .in = HYBRID_IN, .out = HYBRID_OUT};
        st = place(s, &d, &pool[k]->at);
    }
    if (st) return st;
    int32_t all = HYBRID_USERS + HYBRID_WAITS;
    struct sy_sim_opt o = {.timer = &h->users.at.timer,
                           .n_replica = h->users.replicas + h->batch.replicas,
                           .chunk = h->users.chunk,
                           .seq_max = all,
                           .ctx_len = HYBRID_IN + HYBRID_OUT + 32,
                           .block_len = 256,
                           .accepted = 1,
                           .routed = true,
                           .n_batch = h->batch.replicas,
                           .batch_timer = h->batch.replicas ? &h->batch.at.timer : NULL,
                           .batch_chunk = h->batch.chunk,
                           .batch_seq_max = all,
                           .users = all,
                           .n_waits = HYBRID_WAITS,
                           .seed = 1};
    st = sy_workload_random(env, 4 * (size_t)all, HYBRID_IN, HYBRID_OUT, 0.8, 1, &load, s->err);
    if (st) return st;
    st = sy_simulate(env, &o, &load, seen, s->err);
    sy_workload_release(&load);
    return st;
}

/* Users and work that can wait behind one router: on the same replicas, or each on its own, of one kind or of two. */
static sy_status hybrid(struct study *s)
{
    const struct pool gpu = {.chip = "b200", .layout = b200_tp4, .chunk = 8192},
                      tpu = {.chip = "tpu_v7", .layout = v7_dp8, .chunk = 1024};
    struct hybrid h[] = {{"4 x 4 B200, all take all", gpu, gpu},
                         {"4 B200 for users, 3 x 4 B200 for the rest", gpu, gpu},
                         {"4 B200 for users, 3 x 4 TPU v7 for the rest", gpu, tpu},
                         {"4 TPU v7 for users, 3 x 4 TPU v7 for the rest", tpu, tpu},
                         {"4 x 4 TPU v7, all take all", tpu, tpu}};
    struct sy_prices prices;
    double base = 0;
    sy_status st = sy_prices_open(&s->a->app->env, "external", &prices, s->err);
    if (st) return st;
    sy_buf_printf(&s->b,
                  "%d users and %d requests at once that can wait, behind the router, Qwen3.5-397B fp8, 8k1k, prices "
                  "'external'\n\n| | tokens/s/chip | $/M tokens | saves | users' TPOT ms | TTFT s | TTFT p99 s "
                  "|\n|---|--:|--:|--:|--:|--:|--:|\n",
                  HYBRID_USERS, HYBRID_WAITS);
    for (size_t i = 0; i < SY_COUNT(h); i++) {
        struct sy_sim_seen v;
        bool apart = i > 0 && i + 1 < SY_COUNT(h);
        h[i].users.replicas = apart ? 1 : 4;
        h[i].batch.replicas = apart ? 3 : 0;
        st = run_hybrid(s, &h[i], &v);
        if (st) return sy_while(s->err, st, "%s", h[i].name);
        double chips = 4.0 * (h[i].users.replicas + h[i].batch.replicas);
        double hour = 4 * (h[i].users.replicas * sy_price_of(&prices, h[i].users.chip) +
                           h[i].batch.replicas * sy_price_of(&prices, h[i].batch.chip));
        double tput = (v.in_tok + v.out_tok) / v.seconds, usd = sy_usd_per_mtok(hour, tput);
        if (i == 0) base = usd;
        sy_buf_printf(&s->b, "| %s | %.0f | %.4f | %+.1f %% | %.2f | %.2f | %.2f |\n", h[i].name, tput / chips, usd,
                      100 * (1 - usd / base), 1e3 * v.tpot.median, v.ttft.median, v.ttft.p99);
    }
    said_of(s, "simulated", h[2].batch.at.reach);
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
               {"tiers", tiers},
               {"hybrid", hybrid}};

sy_status sy_plan_study(struct sy_args *a, struct sy_err *err)
{
    struct study s = {.a = a, .err = err};
    const char *name = a->n_operand > 1 ? a->operand[1] : "all";
    size_t only = 0;
    while (only < SY_COUNT(studies) && strcmp(name, studies[only].name)) only++;
    if (only == SY_COUNT(studies) && strcmp(name, "all"))
        return sy_fail(err, SY_EARG,
                       "plan study: expected balance, batching, chunks, speculation, disaggregation, tiers, "
                       "hybrid or all, "
                       "found '%.40s'",
                       name);
    sy_status st = sy_plan_calibration(a, &s.calibration, err);
    if (st) return st;
    sy_buf_init(&s.b, &a->app->env, 0);
    st = sy_card_find(&a->app->env, "qwen3.5-397b-a17b", &s.card, err);
    for (size_t i = 0; i < SY_COUNT(studies) && !st; i++) {
        if (only < SY_COUNT(studies) && i != only) continue;
        if (s.b.len) sy_buf_char(&s.b, '\n');
        st = studies[i].run(&s);
    }
    if (!st) st = sy_report_write(&s.b, "-", err);
    sy_buf_release(&s.b);
    sy_calibration_release(&s.calibration);
    return st;
}
