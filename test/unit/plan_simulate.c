/* The simulator: every token is accounted for, ranks wait for each other, times add up, and the closed form agrees.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/fluid.h"
#include "plan/search.h"
#include "plan/simulate.h"

static const struct sy_env *env(void) { return sy_env_default(); }

static struct sy_timer timer_of(const char *chip, const char *model, struct sy_sharding l)
{
    char *text;
    size_t n;
    struct sy_chip c;
    struct sy_card card;
    struct sy_path path;
    struct sy_timer t = {0};
    struct sy_err err = {0};
    const struct sy_consts k = {{[SY_CONST_LAYER_S] = 50e-6,
                                 [SY_CONST_WEIGHT] = 0.6,
                                 [SY_CONST_KV] = 0.5,
                                 [SY_CONST_FLOPS] = 0.3,
                                 [SY_CONST_CROWD] = 0.02}};
    if (sy_data_open(env(), "chips", chip, &text, &n, &err) || sy_chip_read(env(), chip, text, n, &c, &err) ||
        sy_card_find(env(), model, &card, &err) || sy_path_named("fp8", &c, &path, &err) ||
        sy_timer_init(&t, &card.profile, &c, &path, l, k, &err))
        fail_msg("%s", err.msg);
    sy_delete(env(), text);
    return t;
}

static struct sy_sim_seen run(const struct sy_sim_opt *o, const struct sy_workload *w)
{
    struct sy_sim_seen seen;
    struct sy_err err = {0};
    if (sy_simulate(env(), o, w, &seen, &err)) fail_msg("%s", err.msg);
    return seen;
}

static struct sy_workload random_of(size_t n, int32_t in, int32_t out, double range)
{
    struct sy_workload w;
    assert_int_equal(sy_workload_random(env(), n, in, out, range, 3, &w, NULL), SY_OK);
    return w;
}

static struct sy_sim_opt usual(const struct sy_timer *t, int32_t users)
{
    return (struct sy_sim_opt){.timer = t,
                               .n_replica = 1,
                               .chunk = 1024,
                               .seq_max = users,
                               .ctx_len = 4096,
                               .block_len = 64,
                               .accepted = 1,
                               .users = users,
                               .seed = 1};
}

/* Alone, a request takes its chunks and then a step for each token but the first. */
static void one_request(void **state)
{
    (void)state;
    struct sy_timer t =
        timer_of("h200", "llama-3.1-8b",
                 (struct sy_sharding){.chips = 1, .tp = 1, .dp = 1, .pp = 1, .expert_parallel = false});
    struct sy_workload w = random_of(1, 2048, 10, 1);
    struct sy_sim_opt o = usual(&t, 1);
    struct sy_sim_seen s = run(&o, &w);
    double want = 0, first = 0;
    for (int32_t at = 0; at < 2048; at += 1024) {
        double keys = 1024.0 * (at + 1024) - 1024.0 * 1023 / 2;
        struct sy_rank_load l = {.tok = 1024,
                                 .out = at > 0,
                                 .seq = 1,
                                 .keys = keys,
                                 .ctx = at + 1024,
                                 .prompt = 1024,
                                 .prompt_keys = keys};
        want += sy_timer_step(&t, &l, 1);
    }
    first = want;
    for (int i = 1; i < 10; i++) {
        double ctx = 2048 + i;
        struct sy_rank_load l = {.tok = 1, .out = 1, .seq = 1, .keys = ctx, .ctx = ctx};
        want += sy_timer_step(&t, &l, 1);
    }
    assert_int_equal(s.n_step, 11);
    assert_true(fabs(s.seconds / want - 1) < 1e-4 && fabs(s.ttft.mean / first - 1) < 1e-4);
    assert_true(fabs(s.tpot.mean / ((want - first) / 9) - 1) < 1e-4);
    assert_true(s.in_tok == 2048 && s.out_tok == 10 && s.n_request == 1);
    sy_workload_release(&w);
}

static void conserves(void **state)
{
    (void)state;
    struct sy_timer t =
        timer_of("tpu_v7", "qwen3.5-397b-a17b",
                 (struct sy_sharding){.chips = 4, .tp = 1, .dp = 8, .pp = 1, .expert_parallel = true});
    struct sy_workload w = random_of(150, 1500, 60, 0.2);
    double in = 0, out = 0;
    for (size_t i = 0; i < w.n; i++) {
        in += w.session[i].turn->n_in;
        out += w.session[i].turn->n_out;
    }
    struct sy_sim_opt o = usual(&t, 40);
    struct sy_sim_seen s = run(&o, &w), again = run(&o, &w);
    assert_true(s.in_tok == in && s.out_tok == out && s.n_request == 150 && s.ttft.n == 150);
    assert_true(s.seconds == again.seconds && s.n_step == again.n_step); /* the same every time */
    assert_true(s.fill > 0 && s.fill < 1);
    o.balance = SY_BALANCE_PINNED;
    assert_true(run(&o, &w).n_request == 150);
    o.n_replica = 3;
    struct sy_sim_seen three = run(&o, &w);
    assert_true(three.seconds < s.seconds && three.n_request == 150);
    o.n_replica = 1;
    o.scheduling = SY_STATIC;
    assert_true(run(&o, &w).seconds > s.seconds);
    sy_workload_release(&w);
}

/* The closed form against the simulator, over users and shapes. */
static void closed_form(void **state)
{
    (void)state;
    static const int32_t users[] = {1, 4, 16, 48};
    struct sy_timer t = timer_of(
        "b200", "deepseek-r1", (struct sy_sharding){.chips = 8, .tp = 8, .dp = 1, .pp = 1, .expert_parallel = false});
    for (size_t i = 0; i < SY_COUNT(users); i++) {
        struct sy_workload w = random_of(10 * (size_t)users[i], 2000, 200, 0.8);
        struct sy_sim_opt o = usual(&t, users[i]);
        struct sy_sim_seen s = run(&o, &w);
        struct sy_load_spec l = {.in = 1800, .out = 180, .conc = users[i], .chunk = 1024, .accepted = 1};
        double metric[SY_METRIC_COUNT], tput = (s.in_tok + s.out_tok) / s.seconds / 8;
        sy_fluid(&t, &l, metric);
        if (fabs(metric[SY_METRIC_TPUT] / tput - 1) > 0.12 || fabs(metric[SY_METRIC_TPOT] / s.tpot.mean - 1) > 0.12)
            fail_msg("%d users: %.0f against %.0f tok/s/chip, TPOT %.2f against %.2f ms", users[i],
                     metric[SY_METRIC_TPUT], tput, 1e3 * metric[SY_METRIC_TPOT], 1e3 * s.tpot.mean);
        sy_workload_release(&w);
    }
}

/* Turns of a session come back to what the cache knows; arrivals have their times. */
static void sessions(void **state)
{
    (void)state;
    static const char trace[] = "{\"timestamp\":0,\"turns\":[{\"input_length\":600,\"output_length\":20},"
                                "{\"input_length\":50,\"output_length\":20,\"delay_ms\":500}]}\n"
                                "{\"timestamp\":3000,\"turns\":[{\"input_length\":100,\"output_length\":5}]}\n";
    struct sy_timer t =
        timer_of("h200", "llama-3.1-8b",
                 (struct sy_sharding){.chips = 1, .tp = 1, .dp = 1, .pp = 1, .expert_parallel = false});
    struct sy_workload w;
    struct sy_err err = {0};
    if (sy_workload_trace(env(), trace, sizeof trace - 1, 1, &w, &err)) fail_msg("%s", err.msg);
    struct sy_sim_opt o = usual(&t, 4);
    o.users = 0;
    o.prefix_cache = true;
    struct sy_sim_seen s = run(&o, &w);
    assert_true(s.cached_tok == 576); /* of 600 and the answer's 20, in whole blocks whose last token is computed */
    assert_true(s.n_request == 3 && s.in_tok == 600 + 670 + 100 && s.out_tok == 45);
    assert_true(s.seconds > 3 && s.seconds < 4);
    assert_true(s.ttft.max < 0.5); /* pauses are the user's, not ours */
    o.prefix_cache = false;
    assert_true(run(&o, &w).cached_tok == 0);
    sy_workload_release(&w);
}

/* Prompts that begin alike are found in the cache, also those of others; a session that outgrows the context forgets
 * its beginning, and what is cached of it. */
static void prefixes(void **state)
{
    (void)state;
    static const char same[] = "{\"timestamp\":0,\"input_length\":500,\"output_length\":2,\"hash_ids\":[7]}\n"
                               "{\"timestamp\":900,\"input_length\":500,\"output_length\":2,\"hash_ids\":[7]}\n";
    static const char other[] = "{\"timestamp\":0,\"input_length\":500,\"output_length\":2,\"hash_ids\":[7]}\n"
                                "{\"timestamp\":900,\"input_length\":500,\"output_length\":2,\"hash_ids\":[8]}\n";
    static const char grown[] = "{\"timestamp\":0,\"turns\":[{\"input_length\":600,\"output_length\":20},"
                                "{\"input_length\":300,\"output_length\":20}]}\n";
    static const struct {
        const char *text;
        double cached;
    } cases[] = {{same, 448}, {other, 0}, {grown, 0}};
    struct sy_timer t =
        timer_of("h200", "llama-3.1-8b",
                 (struct sy_sharding){.chips = 1, .tp = 1, .dp = 1, .pp = 1, .expert_parallel = false});
    struct sy_sim_opt o = usual(&t, 4);
    o.users = 0;
    o.prefix_cache = true;
    o.ctx_len = 700;
    for (size_t i = 0; i < SY_COUNT(cases); i++) {
        struct sy_workload w;
        struct sy_err err = {0};
        if (sy_workload_trace(env(), cases[i].text, strlen(cases[i].text), 1, &w, &err)) fail_msg("%s", err.msg);
        assert_true(run(&o, &w).cached_tok == cases[i].cached);
        sy_workload_release(&w);
    }
}

/* A link that serves one after the other, asked at random times: Pollaczek and Khinchine say that the mean wait is
 * rho S / 2 (1 - rho) where every load takes S. */
static void links_queue(void **state)
{
    (void)state;
    struct sy_timer t =
        timer_of("h200", "llama-3.1-8b",
                 (struct sy_sharding){.chips = 1, .tp = 1, .dp = 1, .pp = 1, .expert_parallel = false});
    struct sy_workload w = random_of(30000, 4000, 1, 1);
    double bytes = 2000 * sy_timer_fit(&t, 1, 4096).per_token, load_s = 2;
    for (int i = 0; i < 2; i++) {
        double rho = i ? 0.7 : 0.4;
        struct sy_sim_opt o = usual(&t, 64);
        o.users = 0;
        o.tier_hit = 0.5;
        o.link_bytes_s = bytes / load_s;
        o.rate = rho / load_s;
        struct sy_sim_seen s = run(&o, &w);
        double wait = s.link_wait_s / 30000, want = rho * load_s / (2 * (1 - rho));
        if (fabs(wait / want - 1) > 0.1) fail_msg("rho %.1f: waits %.3f s, expected %.3f s", rho, wait, want);
        assert_true(fabs(s.link_busy_s / (30000 * load_s) - 1) < 1e-6 && s.n_request == 30000);
        assert_true(s.ttft.mean > wait + load_s && s.ttft.mean < wait + load_s + 0.2);
    }
    sy_workload_release(&w);
}

/* Prompts computed on other replicas: all arrive, whoever waits for keys waits longer over half the link, and decode
 * steps are no longer held up by prompts. */
static void prefill_apart(void **state)
{
    (void)state;
    struct sy_timer t = timer_of(
        "b200", "deepseek-r1", (struct sy_sharding){.chips = 8, .tp = 8, .dp = 1, .pp = 1, .expert_parallel = false});
    struct sy_workload w = random_of(400, 3000, 100, 0.8);
    double in = 0, bytes = 3000 * 8 * sy_timer_fit(&t, 1, 4096).per_token, wait = 0, ttft = 0;
    for (size_t i = 0; i < w.n; i++) in += w.session[i].turn->n_in;
    struct sy_sim_opt o = usual(&t, 64);
    o.n_replica = 3;
    struct sy_sim_seen together = run(&o, &w);
    o.n_prefill = 1;
    struct sy_sim_seen apart = run(&o, &w);
    assert_true(apart.n_request == 400 && apart.in_tok == in && apart.ttft.n == 400 && apart.link_busy_s == 0);
    assert_true(apart.tpot.p99 < 0.7 * together.tpot.p99);
    for (int half = 0; half < 2; half++) {
        o.link_bytes_s = bytes / (half ? 0.2 : 0.1);
        struct sy_sim_seen s = run(&o, &w);
        assert_true(s.n_request == 400 && s.ttft.mean > apart.ttft.mean);
        if (half) assert_true(s.link_wait_s > 2 * wait && s.ttft.mean > ttft + 0.1);
        wait = s.link_wait_s;
        ttft = s.ttft.mean;
    }
    o.n_prefill = 3;
    struct sy_sim_seen none;
    assert_int_equal(sy_simulate(env(), &o, &w, &none, NULL), SY_EARG);
    sy_workload_release(&w);
}

/* Keys that are given take blocks and are attended to: a request costs what it would, but for its prompt. */
static void given(void **state)
{
    (void)state;
    struct sy_timer t =
        timer_of("h200", "llama-3.1-8b",
                 (struct sy_sharding){.chips = 1, .tp = 1, .dp = 1, .pp = 1, .expert_parallel = false});
    struct sy_workload w = random_of(1, 2000, 10, 1);
    struct sy_sim_opt o = usual(&t, 1);
    o.chunk = 4000;
    struct sy_sim_seen all = run(&o, &w);
    o.hit = 0.9;
    struct sy_sim_seen known = run(&o, &w);
    assert_true(known.n_step == all.n_step && fabs(known.tpot.mean / all.tpot.mean - 1) < 1e-6);
    assert_true(known.ttft.mean < all.ttft.mean);
    assert_true(known.in_tok == 2000);
    o.hit = 0.6;
    o.tier_hit = 0.4;
    assert_int_equal(sy_simulate(env(), &o, &w, &known, NULL), SY_EARG);
    sy_workload_release(&w);
}

/* Steps that are alike are timed without being run: not one of their times, nor what follows from them, is another.
 */
static void alike(void **state)
{
    (void)state;
    static const char talk[] = "{\"timestamp\":%d,\"turns\":[{\"input_length\":%d,\"output_length\":%d},"
                               "{\"input_length\":50,\"output_length\":%d,\"delay_ms\":500}]}\n";
    struct sy_timer ranks =
        timer_of("tpu_v7", "qwen3.5-397b-a17b",
                 (struct sy_sharding){.chips = 4, .tp = 1, .dp = 8, .pp = 1, .expert_parallel = true});
    struct sy_timer one = timer_of(
        "b200", "deepseek-r1", (struct sy_sharding){.chips = 8, .tp = 8, .dp = 1, .pp = 1, .expert_parallel = false});
    static const struct sy_sim_opt cases[] = {
        {.users = 12},
        {.users = 3, .n_replica = 5, .chunk = 64},
        {.users = 40, .seq_max = 4, .n_replica = 2, .block_len = 16}, /* most wait */
        {.users = 40, .memory_share = 0.95, .seq_max = 40},           /* blocks run out */
        {.users = 12, .prefix_cache = true, .block_len = 16},
        {.rate = 30, .n_replica = 3},
        {.rate = 300, .n_replica = 3, .prefix_cache = true},
        {.rate = 40, .n_replica = 3, .n_prefill = 1, .link_bytes_s = 20e9},
        {.rate = 20, .hit = 0.3, .tier_hit = 0.4, .link_bytes_s = 5e9},
        {.users = 12, .scheduling = SY_STATIC},
        {.users = 12, .balance = SY_BALANCE_SPREAD, .drafted = 2, .accepted = 1.7},
        {.rate = 50, .balance = SY_BALANCE_PINNED, .n_replica = 2},
    };
    struct sy_workload w[3];
    struct sy_err err = {0};
    char text[60 * 160];
    size_t n = 0;
    for (int i = 0; i < 60; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, talk, 40 * i, 100 + 37 * i % 900, 1 + i % 70, 5 + i % 40);
    if (sy_workload_trace(env(), text, n, 1, &w[0], &err)) fail_msg("%s", err.msg);
    w[1] = random_of(120, 900, 80, 0.1);
    w[2] = random_of(120, 300, 60, 1); /* many steps end at the same time */
    for (size_t i = 0; i < SY_COUNT(cases); i++)
        for (int k = 0; k < 6; k++) {
            struct sy_sim_opt o = cases[i];
            struct sy_sim_seen fast, slow;
            o.timer = k & 1 ? &ranks : &one;
            o.ctx_len = 4096;
            o.seed = 1;
            if (!o.n_replica) o.n_replica = 1;
            if (!o.chunk) o.chunk = 512;
            if (!o.seq_max) o.seq_max = 16;
            if (!o.block_len) o.block_len = 64;
            if (!o.accepted) o.accepted = 1;
            memset(&fast, 0, sizeof fast);
            memset(&slow, 0, sizeof slow);
            fast = run(&o, &w[k / 2]);
            o.each_step = true;
            slow = run(&o, &w[k / 2]);
            assert_true(slow.n_request >= 120 && slow.n_step > 100);
            if (memcmp(&fast, &slow, sizeof fast))
                fail_msg("case %zu.%d: %.9f s against %.9f s, %llu steps against %llu, TTFT %.9f against %.9f s", i,
                         k, fast.seconds, slow.seconds, (unsigned long long)fast.n_step,
                         (unsigned long long)slow.n_step, fast.ttft.mean, slow.ttft.mean);
        }
    for (int i = 0; i < 3; i++) sy_workload_release(&w[i]);
}

/* Behind the router: an idle pool changes nothing, those who can wait are kept from the others and out of their
 * times, a pool may be of another kind with other ranks, and sessions that begin alike meet. */
static void routed(void **state)
{
    (void)state;
    struct sy_timer t = timer_of("b200", "llama-3.1-8b", (struct sy_sharding){.chips = 1, .tp = 1, .dp = 1, .pp = 1}),
                    other = timer_of("tpu_v7", "llama-3.1-8b",
                                     (struct sy_sharding){.chips = 1, .tp = 1, .dp = 2, .pp = 1});
    struct sy_workload w = random_of(96, 800, 100, 0.8);
    struct sy_sim_opt o = usual(&t, 24), all;
    struct sy_sim_seen alone = run(&o, &w), s;
    o.routed = true;
    o.n_replica = 2;
    o.n_batch = 1;
    o.batch_timer = &other;
    o.batch_chunk = 512;
    o.batch_seq_max = 24;
    s = run(&o, &w);
    assert_true(s.seconds == alone.seconds && s.tpot.median == alone.tpot.median && s.out_tok == alone.out_tok);
    o.n_waits = o.users;
    s = run(&o, &w);
    assert_true(s.out_tok == alone.out_tok && s.ttft.n == 0 && s.e2e.n == 0 && s.seconds != alone.seconds);
    o.n_waits = 16;
    s = run(&o, &w);
    assert_true(s.out_tok == alone.out_tok && s.ttft.n > 0 && s.ttft.n < 96);
    assert_true(s.tpot.median < alone.tpot.median); /* 8 of 24 have a chip of their own */
    all = o;
    all.n_batch = all.n_replica = 1;
    struct sy_err err = {0};
    assert_int_equal(sy_simulate(env(), &all, &w, &s, &err), SY_EARG); /* nobody for users */
    sy_workload_release(&w);

    char trace[4096];
    size_t n = 0;
    for (int i = 0; i < 24; i++)
        n += (size_t)snprintf(trace + n, sizeof trace - n,
                              "{\"timestamp\":%d,\"input_length\":500,\"output_length\":2,\"hash_ids\":[%d]}\n",
                              900 * i, i / 2 % 4);
    if (sy_workload_trace(env(), trace, n, 1, &w, &err)) fail_msg("%s", err.msg);
    o = usual(&t, 8);
    o.users = 0;
    o.n_replica = 3;
    o.prefix_cache = true;
    double least = run(&o, &w).cached_tok;
    o.routed = true;
    double cached = run(&o, &w).cached_tok;
    assert_true(cached == 20 * 448 && cached > least); /* all but the first of each beginning */
    sy_workload_release(&w);
}

static void too_small(void **state)
{
    (void)state;
    struct sy_timer t = timer_of(
        "h100", "deepseek-r1", (struct sy_sharding){.chips = 4, .tp = 4, .dp = 1, .pp = 1, .expert_parallel = false});
    struct sy_workload w = random_of(4, 100, 10, 1);
    struct sy_sim_opt o = usual(&t, 4);
    struct sy_sim_seen s;
    struct sy_err err = {0};
    o.memory_share = 0.9;
    assert_int_equal(sy_simulate(env(), &o, &w, &s, &err), SY_ENOMEM);
    assert_non_null(strstr(err.msg, "weights"));
    sy_workload_release(&w);
}

static void promises(void **state)
{
    (void)state;
    struct sy_slo s;
    struct sy_err err = {0};
    assert_int_equal(sy_slo_parse("ttft_p99<2s,tpot_p50<50ms", &s, &err), SY_OK);
    assert_true(s.bound[SY_SLO_TTFT][2] == 2 && s.bound[SY_SLO_TPOT][0] == 0.05 && s.bound[SY_SLO_E2E][0] == 0);
    static const char *const wrong[] = {"ttft<2s",     "ttft_p99<2",     "ttft_p99<-1s",
                                        "ttft_p99<0s", "tpot_p50<50ms;", "x"};
    for (size_t i = 0; i < SY_COUNT(wrong); i++) assert_int_equal(sy_slo_parse(wrong[i], &s, &err), SY_EARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request),   cmocka_unit_test(conserves), cmocka_unit_test(closed_form),
        cmocka_unit_test(sessions),      cmocka_unit_test(prefixes),  cmocka_unit_test(links_queue),
        cmocka_unit_test(prefill_apart), cmocka_unit_test(given),     cmocka_unit_test(alike),
        cmocka_unit_test(routed),        cmocka_unit_test(too_small), cmocka_unit_test(promises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
