/* Step times: what bounds them, what sharding divides and what it does not, and graph and card costing alike. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/sim/timer.h"
#include "plan/card.h"

static struct sy_chip chip_named(const char *name)
{
    char path[64];
    struct sy_chip c;
    struct sy_err err = {0};
    snprintf(path, sizeof path, "chips/%s.json", name);
    const struct sy_data *d = sy_data_find(path);
    assert_non_null(d);
    if (sy_chip_read(sy_env_default(), name, d->at, d->n, &c, &err)) fail_msg("%s", err.msg);
    return c;
}

static struct sy_timer timer_of(const char *chip, const char *model, const char *precision, struct sy_sharding l)
{
    struct sy_chip c = chip_named(chip);
    struct sy_card card;
    struct sy_path path;
    struct sy_timer t = {0};
    struct sy_err err = {0};
    if (sy_card_find(sy_env_default(), model, &card, &err) || sy_path_named(precision, &c, &path, &err) ||
        sy_timer_init(&t, &card.profile, &c, &path, l, sy_consts_roofline, &err))
        fail_msg("%s", err.msg);
    return t;
}

static struct sy_rank_load decode(double n, double ctx)
{
    return (struct sy_rank_load){.tok = n, .out = n, .seq = n, .keys = n * ctx, .ctx = n * ctx};
}

static double step(const struct sy_timer *t, struct sy_rank_load l) { return sy_timer_step(t, &l, 1); }

static void bounds(void **state)
{
    (void)state;
    struct sy_timer t =
        timer_of("h200", "llama-3.1-8b", "bf16",
                 (struct sy_sharding){.chips = 1, .tp = 1, .dp = 1, .pp = 1, .expert_parallel = false});
    double weights = 2 * sy_profile_active(&t.model), one = step(&t, decode(1, 1));
    assert_true(one > weights / 4.8e12 && one < 1.1 * weights / 4.8e12); /* one token reads every weight once */
    double keys = step(&t, decode(64, 100000)) - step(&t, decode(64, 1)), bytes = 64.0 * 99999 * 131072;
    assert_true(keys > bytes / 4.8e12 && keys < 1.1 * bytes / 4.8e12);
    struct sy_rank_load prompt = {.tok = 8192, .out = 1, .seq = 1, .prompt = 8192};
    double flops = 2 * 8192 * (sy_profile_active(&t.model) - t.model.head_params);
    assert_true(step(&t, prompt) > flops / 989e12 && step(&t, prompt) < 1.2 * flops / 989e12 + one);
    double last = 0;
    for (double n = 1; n <= 4096; n *= 2) {
        double now = step(&t, decode(n, 1000));
        assert_true(now > last);
        last = now;
    }
}

/* The graph's own cost rules count the same products and bytes as the profile read from it. */
static void graph_agrees(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen3-0.6b", "llama-3.1-8b", "smollm2-135m", "kimi-7b-dense",
                                        "qwen3-30b-a3b"};
    for (size_t i = 0; i < SY_COUNT(names); i++) {
        struct sy_card card;
        struct sy_err err = {0};
        if (sy_card_find(sy_env_default(), names[i], &card, &err)) fail_msg("%s", err.msg);
        assert_true(card.profile.from_graph);
        assert_true(!strncmp(card.from, "graph of ", 9));
        assert_true(fabs(sy_profile_params(&card.profile) / card.stated_params - 1) < 0.01);
    }
}

static void sharding(void **state)
{
    (void)state;
    struct sy_timer one =
        timer_of("h200", "llama-3.1-8b", "bf16",
                 (struct sy_sharding){.chips = 1, .tp = 1, .dp = 1, .pp = 1, .expert_parallel = false});
    struct sy_timer eight =
        timer_of("h200", "llama-3.1-8b", "bf16",
                 (struct sy_sharding){.chips = 8, .tp = 8, .dp = 1, .pp = 1, .expert_parallel = false});
    struct sy_timer many =
        timer_of("h200", "llama-3.1-8b", "bf16",
                 (struct sy_sharding){.chips = 16, .tp = 16, .dp = 1, .pp = 1, .expert_parallel = false});
    assert_true(step(&eight, decode(1, 1)) < step(&one, decode(1, 1)));
    assert_true(step(&eight, decode(1, 1)) > step(&one, decode(1, 1)) / 8); /* collectives are not free */
    /* 8 key heads: the ninth device holds copies */
    double ctx = 1e6, eight_kv = sy_timer_fit(&eight, 1, ctx).per_token,
           many_kv = sy_timer_fit(&many, 1, ctx).per_token;
    assert_true(sy_timer_fit(&one, 1, ctx).per_token == 8 * eight_kv && many_kv == eight_kv);
    struct sy_timer latent =
        timer_of("h200", "deepseek-r1", "fp8",
                 (struct sy_sharding){.chips = 8, .tp = 8, .dp = 1, .pp = 1, .expert_parallel = false});
    assert_true(sy_timer_fit(&latent, 1, ctx).per_token == 35136); /* a latent is whole on every device */
    struct sy_timer ranks =
        timer_of("h200", "deepseek-r1", "fp8",
                 (struct sy_sharding){.chips = 8, .tp = 1, .dp = 8, .pp = 1, .expert_parallel = true});
    assert_true(sy_timer_fit(&ranks, 0.9, ctx).tokens > 4 * sy_timer_fit(&latent, 0.9, ctx).tokens);
    struct sy_chip c = chip_named("h200");
    struct sy_timer t = {0};
    struct sy_err err = {0};
    assert_int_equal(
        sy_timer_init(&t, &one.model, &c, &one.path,
                      (struct sy_sharding){.chips = 8, .tp = 4, .dp = 1, .pp = 1, .expert_parallel = false},
                      sy_consts_roofline, &err),
        SY_EARG);
    assert_non_null(strstr(err.msg, "layout"));
}

static void experts_and_padding(void **state)
{
    (void)state;
    struct sy_timer t =
        timer_of("b200", "qwen3.5-397b-a17b", "fp8",
                 (struct sy_sharding){.chips = 8, .tp = 8, .dp = 1, .pp = 1, .expert_parallel = false});
    double few = step(&t, decode(1, 1)), lots = step(&t, decode(512, 1));
    double all = t.model.expert_params * t.model.n_expert * t.model.n_moe_layer / 8 / 8e12;
    assert_true(lots > all && few < all / 3); /* 512 tokens meet every expert, one meets ten */
    struct sy_timer v7 =
        timer_of("tpu_v7", "qwen3.5-397b-a17b", "fp8",
                 (struct sy_sharding){.chips = 4, .tp = 1, .dp = 8, .pp = 1, .expert_parallel = true});
    assert_true(sy_timer_padded(&v7, 1) == 8 && sy_timer_padded(&v7, 9) == 16 && sy_timer_padded(&v7, 1024) == 1024);
    assert_true(sy_timer_padded(&t, 9) == 9);
    struct sy_rank_load even[8], uneven[8] = {{0}};
    for (int i = 0; i < 8; i++) even[i] = decode(8, 4000);
    uneven[3] = decode(64, 4000);
    assert_true(sy_timer_step(&v7, uneven, 8) > sy_timer_step(&v7, even, 8)); /* the fullest rank is waited for */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds),
        cmocka_unit_test(graph_agrees),
        cmocka_unit_test(sharding),
        cmocka_unit_test(experts_and_padding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
