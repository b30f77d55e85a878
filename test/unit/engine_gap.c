/* The bound on the gap between two tokens of a running answer, on a clock of its own: a fake backend whose steps cost
 * what steps cost (weights, tokens, rows, attention that grows with the context), with noise, while long prompts keep
 * coming. The scheduler is told nothing of these costs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/engine_int.h"

enum { VOCAB = 8, CTX = 4096, SEQ_MAX = 8, BATCH = 512, OUT = 64 };

struct cost { /* ns */
    double step, tok, row, key, pair, noise;
    int32_t window;
};
struct machine {
    struct sy_engine e;
    struct sy_env env;
    struct sy_clock clock;
    struct cost cost;
    uint64_t now, dice, seed;
    float logits[OUT * VOCAB];
    int32_t token[OUT];
    struct sy_result result;
    double mixed_ns; /* time of steps that held both kinds of tokens */
    uint64_t n_mixed;
};

static uint64_t clock_now(void *ctx) { return ((struct machine *)ctx)->now; }
static double dice(struct machine *m) { return sy_rng_unit(m->seed, m->dice++); }

static double keys_of(const struct cost *c, int32_t pos)
{
    return c->window && pos + 1 > c->window ? c->window : pos + 1;
}

static sy_status forward(struct sy_backend *bk, struct sy_program *p, struct sy_kv_cache *kv,
                         const struct sy_batch *b)
{
    (void)p;
    (void)kv;
    struct machine *m = (struct machine *)(void *)bk;
    const struct cost *c = &m->cost;
    double ns = c->step + c->tok * b->n_tok + c->row * b->n_out;
    int32_t prompt = 0;
    for (int32_t s = 0; s < b->n_seq; s++) {
        int32_t lo = b->field[SY_START][s], hi = b->field[SY_START][s + 1];
        for (int32_t i = lo; i < hi; i++) ns += (hi - lo > 1 ? c->pair : c->key) * keys_of(c, b->field[SY_POS][i]);
        prompt += hi - lo > 1 ? hi - lo : 0;
    }
    ns *= 1 + c->noise * (2 * dice(m) - 1);
    if (prompt && m->e.has_decode) {
        m->mixed_ns += ns;
        m->n_mixed++;
    }
    m->now += (uint64_t)ns;
    m->result =
        (struct sy_result){.token = m->token, .logits = m->logits, .ld = VOCAB, .n = b->n_out, .n_vocab = VOCAB};
    return SY_OK;
}

static sy_status done(struct sy_backend *b, struct sy_want want, struct sy_result *out, struct sy_err *err)
{
    (void)want;
    (void)err;
    *out = ((struct machine *)(void *)b)->result;
    return SY_OK;
}

static const struct sy_backend_ops fake = {.name = "fake", .forward = forward, .wait = done};

static void start(struct machine *m, struct cost cost, double gap_ms, uint64_t seed)
{
    struct sy_err err;
    *m = (struct machine){.cost = cost, .seed = seed};
    m->clock = (struct sy_clock){clock_now, m};
    m->env = *sy_env_default();
    m->env.clock = &m->clock;
    struct sy_engine *e = &m->e;
    e->env = &m->env;
    e->ops = &fake;
    e->backend = (struct sy_backend *)(void *)m;
    e->plan = (struct sy_engine_plan){.ctx_len = CTX, .block_len = 32, .seq_max = SEQ_MAX, .batch_tok_max = BATCH};
    e->plan.n_block = 1 + SEQ_MAX * CTX / 32;
    e->plan.info.n_vocab = VOCAB;
    e->plan.kv_bytes = e->plan.n_block;
    e->opt.gap_ms_max = gap_ms;
    e->opt.no_prefix_cache = true;
    if (cost.window) e->kv_window[e->n_kv_window++] = (struct kv_window){cost.window, 1};
    assert_int_equal(engine_tables_new(e, (struct sy_shape){BATCH, SEQ_MAX, CTX / 32, OUT, 0}, &err), SY_OK);
}

static void submit(struct machine *m, int32_t n_prompt, int32_t n_max)
{
    static int32_t prompt[CTX];
    struct sy_request r = {
        .prompt = prompt, .n_prompt = n_prompt, .n_max = n_max, .ignore_eos = true, .sampling = {.n_logprob = -1}};
    struct sy_err err;
    assert_int_equal(sy_engine_submit(&m->e, &r, NULL, &err), SY_OK);
}

static bool step(struct machine *m)
{
    struct sy_err err;
    bool worked;
    assert_int_equal(sy_engine_step(&m->e, &worked, &err), SY_OK);
    return worked;
}

/* Answers of some hundred tokens with prompts of 10 to 3,500 beside them, after an idle start, and again after a
 * pause. */
static double overload(struct machine *m, int32_t prompts)
{
    for (int round = 0; round < 2; round++) {
        submit(m, 5, 400);
        for (int i = 0; i < 3; i++) step(m);
        for (int32_t n = 0; n < prompts;) {
            if (m->e.n_wait < 2) {
                int32_t n_prompt = dice(m) < 0.3 ? 10 + (int32_t)(90 * dice(m)) : 1000 + (int32_t)(2500 * dice(m));
                submit(m, n_prompt, 20 + (int32_t)(200 * dice(m)));
                n++;
            }
            step(m);
        }
        while (step(m)) continue;
        m->now += 1000000000;
    }
    double worst = (double)sy_engine_stats(&m->e).gap_ns_max / 1e6;
    assert_int_equal(sy_engine_stats(&m->e).block_leased, 0);
    return worst;
}

static void bound_holds(void **state)
{
    (void)state;
    static const struct cost costs[] = {
        {.step = 4e6, .tok = 2e5, .row = 1e5, .key = 200, .pair = 150, .noise = 0.05}, /* attention as dear as the
                                                                                          rest */
        {.step = 12e6, .tok = 5e4, .row = 4e5, .key = 100, .pair = 20, .noise = 0.15}, /* large weights */
        {.step = 1e6, .tok = 3e5, .row = 2e5, .key = 900, .pair = 300, .noise = 0.1, .window = 1024},
        {.step = 2e5, .tok = 2e4, .row = 1e4, .key = 50, .pair = 250, .noise = 0.02}, /* little but attention */
    };
    static struct machine m;
    for (size_t i = 0; i < SY_COUNT(costs); i++) {
        double worst = 0, used = 1e9;
        for (uint64_t seed = 1; seed <= 12; seed++) {
            start(&m, costs[i], 50, seed);
            double gap = overload(&m, 40), mean = m.mixed_ns / (double)m.n_mixed / 1e6;
            if (gap > worst) worst = gap;
            if (mean < used) used = mean;
            if (gap > 50) fail_msg("machine %zu, seed %d: a gap of %.1f ms", i, (int)seed, gap);
            if (mean < 25) fail_msg("machine %zu, seed %d: only %.1f of 50 ms used", i, (int)seed, mean);
            engine_tables_free(&m.e);
        }
        print_message("machine %zu: worst gap %.1f ms; steps of both kinds take %.1f ms at least\n", i, worst, used);
    }
}

/* No bound: whole chunks. A bound that tokens alone break: prompts still get on. */
static void at_the_ends(void **state)
{
    (void)state;
    static struct machine m;
    struct cost c = {.step = 30e6, .tok = 2e5, .row = 4e6, .key = 100, .pair = 100};
    start(&m, c, 0, 1);
    double worst = overload(&m, 20);
    if (worst < 100) fail_msg("without a bound the worst gap is %.1f ms", worst);
    engine_tables_free(&m.e);
    start(&m, c, 5, 1);
    worst = overload(&m, 20);
    assert_true(m.n_mixed > 0 && m.mixed_ns / (double)m.n_mixed > 5e6);
    double least = (double)c.step / 1e6 + SEQ_MAX * ((double)c.row + CTX * (double)c.key + 3e5) / 1e6;
    if (worst > least + 16 * (2e5 + CTX * 100.0) / 1e6) fail_msg("worst gap %.1f ms", worst);
    engine_tables_free(&m.e);
}

/* A machine that gets three times as slow is followed within a few steps. */
static void slower(void **state)
{
    (void)state;
    static struct machine m;
    start(&m, (struct cost){.step = 3e6, .tok = 5e4, .row = 1e5, .key = 50, .pair = 20}, 50, 1);
    submit(&m, 5, 4000);
    int late = 0;
    for (int i = 0; i < 1200; i++) {
        if (m.e.n_wait + m.e.n_running < 3) submit(&m, 3000, 1);
        if (i == 600) {
            m.cost = (struct cost){.step = 9e6, .tok = 15e4, .row = 3e5, .key = 150, .pair = 60};
            m.e.stats.gap_ns_max = 0;
        }
        if (i == 608) {
            late = (int)(m.e.stats.gap_ns_max / 1000000);
            m.e.stats.gap_ns_max = 0;
        }
        step(&m);
    }
    print_message("at first %d ms, then %.1f ms\n", late, (double)m.e.stats.gap_ns_max / 1e6);
    assert_true(m.e.stats.gap_ns_max < 50000000);
    engine_tables_free(&m.e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bound_holds), cmocka_unit_test(at_the_ends),
                                       cmocka_unit_test(slower)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
