/* sweep_sim.c - a sweep on chips that are not here. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/bench/serving.h"
#include "app/plan/plan.h"
#include "plan/search.h"

enum { REQUESTS_LEAST = 64, BLOCK_LEN = 64 };
static const double memory_share = 0.9;

struct sim {
    struct sy_args *a;
    struct sy_card card;
    struct sy_calibration calibration;
    struct sy_prices prices;
    const char *precision, *chip, *model; /* texts of rows lie in the arena: these structures end before them */
    int32_t chips;
    double *users;
    size_t n_users;
    struct sy_sweep_row *row;
    size_t n;
};
struct config {
    const char *chip;
    int32_t chips, tp, dp, ep, chunk, block_len;
};

/* "sim:b200x8" */
static sy_status read_backend(struct sim *s, struct sy_err *err)
{
    const char *name = sy_arg_text(s->a, "backend");
    if (strncmp(name, "sim:", 4) || !name[4])
        return sy_fail(err, SY_EARG,
                       "bench sweep: a model card needs --backend sim:CHIP or sim:CHIPxN, found '%.60s'", name);
    const char *times = strrchr(name + 4, 'x');
    char *end = NULL;
    long n = times && times[1] >= '1' && times[1] <= '9' ? strtol(times + 1, &end, 10) : 1;
    bool several = end && !*end;
    s->chips = sy_arg_given(s->a, "chips") ? (int32_t)sy_arg_int(s->a, "chips") : several ? (int32_t)n : 1;
    s->chip = sy_arena_text(&s->a->arena, name + 4, several ? (size_t)(times - name - 4) : strlen(name + 4));
    if (!s->chip) return sy_fail(err, SY_ENOMEM, "no memory for --backend");
    if (n < 1 || n > 65536) return sy_fail(err, SY_EARG, "--backend: expected 1 to 65536 chips, found '%.60s'", name);
    return SY_OK;
}

static sy_status read_config(const struct sim *s, const struct sy_grid *g, size_t point, struct config *c,
                             struct sy_err *err)
{
    const struct {
        const char *name;
        int32_t *v;
    } known[] = {{"chips", &c->chips}, {"tp", &c->tp},       {"dp-attention", &c->dp},
                 {"ep", &c->ep},       {"chunk", &c->chunk}, {"block-size", &c->block_len}};
    *c = (struct config){.chip = s->chip, .chips = s->chips, .block_len = BLOCK_LEN};
    if (sy_arg_given(s->a, "block-size")) c->block_len = (int32_t)sy_arg_int(s->a, "block-size");
    if (sy_arg_given(s->a, "max-batched-tokens")) c->chunk = (int32_t)sy_arg_int(s->a, "max-batched-tokens");
    if (sy_arg_given(s->a, "tp")) c->tp = (int32_t)sy_arg_int(s->a, "tp");
    for (size_t k = 0; k < g->n; k++) {
        const char *name = g->axis[k].name, *value = sy_grid_value(g, point, k);
        if (!strcmp(name, "chip")) {
            c->chip = value;
            continue;
        }
        size_t i = 0;
        while (i < SY_COUNT(known) && strcmp(known[i].name, name)) i++;
        char *end;
        long v = strtol(value, &end, 10);
        if (i == SY_COUNT(known))
            return sy_fail(err, SY_EARG,
                           "--vary %s: simulated sweeps vary chip, chips, tp, dp-attention, ep, chunk and block-size",
                           name);
        if (*end || v < 1 || v > 1 << 24)
            return sy_fail(err, SY_EARG, "--vary %s: expected whole numbers above 0, found '%.40s'", name, value);
        *known[i].v = (int32_t)v;
    }
    return SY_OK;
}

/* What is not said follows: all devices, whole experts spread where ranks of attention are. */
static struct sy_sharding layout_of(const struct config *c, const struct sy_chip *chip, const struct sy_card *card)
{
    int32_t devices = c->chips * chip->devices, dp = c->dp > 0 ? c->dp : c->tp > 0 ? devices / c->tp : 1;
    if (dp < 1) dp = 1;
    int32_t tp = c->tp > 0 ? c->tp : devices / dp;
    bool spread = c->ep > 0 ? c->ep > 1 : card->profile.n_expert > 0 && (dp > 1 || chip->static_shapes);
    return (struct sy_sharding){.chips = c->chips, .tp = tp, .dp = dp, .pp = 1, .expert_parallel = spread};
}

static sy_status one_load(struct sim *s, const struct config *c, const struct sy_placed *at, int32_t users,
                          struct sy_sim_seen *seen, struct sy_err *err)
{
    const struct sy_args *a = s->a;
    int32_t in = (int32_t)sy_arg_int(a, "input-len"), out = (int32_t)sy_arg_int(a, "output-len");
    double range = sy_arg_given(a, "random-range") ? sy_arg_num(a, "random-range") : 0.8;
    size_t n = sy_arg_given(a, "num-prompts") ? (size_t)sy_arg_int(a, "num-prompts") : 4 * (size_t)users;
    uint64_t seed = (uint64_t)sy_arg_int(a, "seed");
    struct sy_workload w;
    if (n < REQUESTS_LEAST && !sy_arg_given(a, "num-prompts")) n = REQUESTS_LEAST;
    sy_status st = sy_workload_random(&a->app->env, n, in, out, range, seed, &w, err);
    if (st) return st;
    struct sy_sim_opt o = {.timer = &at->timer,
                           .n_replica = 1,
                           .chunk = c->chunk,
                           .seq_max = users / at->timer.layout.dp + 1,
                           .ctx_len = in + out + 32,
                           .block_len = c->block_len,
                           .gap_ms_max = sy_group_gap_ms(at->group, at->timer.chip.id),
                           .memory_share = memory_share,
                           .accepted = 1,
                           .users = users,
                           .seed = seed};
    st = sy_simulate(&a->app->env, &o, &w, seen, err);
    sy_workload_release(&w);
    return st;
}

static const char *keep(struct sim *s, const char *text) { return sy_arena_text(&s->a->arena, text, strlen(text)); }

static const char *figures_of(struct sim *s, const struct sy_placed *at)
{
    char said[96], text[128];
    sy_reach_say(&s->calibration, at->reach, said, sizeof said);
    snprintf(text, sizeof text, "simulated; %s", said);
    return keep(s, text);
}

static sy_status one_config(struct sim *s, const struct sy_grid *g, size_t point, struct sy_err *err)
{
    struct config c;
    struct sy_chip chip;
    struct sy_placed at;
    FILE *f = sy_bench_table(s->a);
    int32_t in = (int32_t)sy_arg_int(s->a, "input-len"), out = (int32_t)sy_arg_int(s->a, "output-len");
    sy_status st = read_config(s, g, point, &c, err);
    if (!st) st = sy_chip_find(&s->a->app->env, c.chip, &chip, err);
    if (st) return st;
    if (c.chunk == 0) c.chunk = sy_plan_chunk(&chip, in);
    struct sy_place where = {.calibration = &s->calibration,
                             .card = &s->card,
                             .chip = &chip,
                             .precision = s->precision,
                             .layout = layout_of(&c, &chip, &s->card),
                             .in = in,
                             .out = out};
    st = sy_plan_place(&where, &at, err);
    if (st) return st;
    char text[160];
    snprintf(text, sizeof text, "%d x %s, tp %d, dp %d%s, chunk %d, blocks of %d", c.chips, chip.id, where.layout.tp,
             where.layout.dp, where.layout.expert_parallel ? ", ep" : "", c.chunk, c.block_len);
    const char *label = keep(s, text), *figures = figures_of(s, &at), *name = keep(s, chip.id);
    const char *framework = at.group ? keep(s, at.group->framework) : NULL;
    if (!label || !figures || !name || (at.group && !framework))
        return sy_fail(err, SY_ENOMEM, "no memory for %zu configurations", g->n_point);
    double ctx = in + out, hold = sy_timer_fit(&at.timer, memory_share, ctx).tokens / ctx;
    if (hold < where.layout.dp) {
        fprintf(f, "%s: does not fit: %.1f GB of weights a device of %.0f GB\n", label,
                sy_timer_fit(&at.timer, memory_share, ctx).weights / 1e9, chip.memory_bytes / chip.devices / 1e9);
        return SY_OK;
    }
    double price = sy_price_of(&s->prices, chip.id);
    for (size_t i = 0; i < s->n_users && !st; i++) {
        struct sy_sim_seen v;
        st = one_load(s, &c, &at, (int32_t)s->users[i], &v, err);
        if (st) break;
        struct sy_sweep_row *r = &s->row[s->n++];
        *r =
            (struct sy_sweep_row){.says = {.model = s->model,
                                           .hw = name,
                                           .framework = framework,
                                           .precision = s->precision,
                                           .configuration = label,
                                           .figures = figures,
                                           .chips = c.chips,
                                           .tp = where.layout.tp,
                                           .ep = where.layout.expert_parallel ? where.layout.tp * where.layout.dp : 1,
                                           .dp = where.layout.dp,
                                           .pp = 1,
                                           .price = {price, c.chips}},
                                  .seen = {.concurrency = s->users[i],
                                           .duration_s = v.seconds,
                                           .n_request = (int64_t)v.n_request,
                                           .n_done = (int64_t)v.n_request,
                                           .n_in = (int64_t)v.in_tok,
                                           .n_out = (int64_t)v.out_tok,
                                           .ttft = v.ttft,
                                           .tpot = v.tpot,
                                           .e2e = v.e2e},
                                  .series = name,
                                  .watts = chip.all_in_w > 0 ? chip.all_in_w : NAN};
        r->point = sy_serving_point(&r->seen);
        fprintf(f, "%s, %g users: %.1f tokens/s/chip, TPOT %.2f ms, TTFT %.2f s, p99 %.2f s; %s\n", label,
                s->users[i], (v.in_tok + v.out_tok) / v.seconds / c.chips, 1e3 * v.tpot.median, v.ttft.median,
                v.ttft.p99, figures);
        fflush(f);
    }
    return st;
}

static sy_status open_calibration(struct sim *s, struct sy_err *err)
{
    const struct sy_env *env = &s->a->app->env;
    struct sy_points points;
    if (sy_arg_given(s->a, "calibration"))
        return sy_calibration_open(env, sy_arg_text(s->a, "calibration"), &s->calibration, err);
    sy_status st = sy_points_own(env, &points, err);
    return st ? st : sy_calibrate_take(env, &points, &s->calibration, err);
}

sy_status sy_sweep_simulated(struct sy_args *a, const struct sy_grid *g, struct sy_sweep_row **row, size_t *n,
                             struct sy_err *err)
{
    struct sim s = {.a = a};
    if (sy_arg_given(a, "url") || sy_arg_given(a, "rate") || sy_arg_given(a, "trace") || sy_arg_given(a, "dataset"))
        return sy_fail(err, SY_EARG,
                       "bench sweep: --url, --rate, --trace and --dataset mean nothing to a simulation; "
                       "'systole plan --workload trace:FILE' takes a trace");
    sy_status st = read_backend(&s, err);
    if (!st) st = sy_plan_card(a, &s.card, &s.precision, err);
    if (!st && !(s.model = keep(&s, s.card.name))) st = sy_fail(err, SY_ENOMEM, "no memory for the model's name");
    if (!st) st = sy_prices_open(&a->app->env, sy_arg_text(a, "tco"), &s.prices, err);
    if (!st)
        st =
            sy_bench_list(a, "concurrency", sy_arg_text(a, "concurrency"), 1, 65536, true, &s.users, &s.n_users, err);
    if (!st && !(s.row = sy_arena_array(&a->arena, g->n_point * s.n_users, sizeof *s.row)))
        st = sy_fail(err, SY_ENOMEM, "no memory for %zu points", g->n_point * s.n_users);
    if (!st) st = open_calibration(&s, err);
    for (size_t i = 0; i < g->n_point && !st; i++) st = one_config(&s, g, i, err);
    sy_calibration_release(&s.calibration);
    if (!st && s.n == 0)
        return sy_fail(err, SY_ENOMEM, "nothing fits: no configuration holds the model and its sequences");
    *row = s.row;
    *n = s.n;
    return st;
}
