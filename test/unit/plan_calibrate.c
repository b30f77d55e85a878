/* Calibration: finds the constants that made the points, tells how far it reaches, and earns its bands. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/rng.h"
#include "plan/calibrate.h"
#include "plan/published.h"

static const struct sy_env *env(void) { return sy_env_default(); }

/* Points of a made-up build whose constants are known, with some noise. */
static void put_points(struct sy_buf *b, const char *hw, const char *workload, const struct sy_consts *c, int32_t isl,
                       const int32_t *conc, size_t n, double noise)
{
    for (size_t i = 0; i < n; i++) {
        char text[600];
        struct sy_points p = {0};
        struct sy_err err = {0};
        double metric[SY_METRIC_COUNT];
        snprintf(
            text, sizeof text,
            "{\"points\":[{\"id\":\"%s%d\",\"hw\":\"%s\",\"chips\":8,\"model\":\"dsr1\",\"precision\":\"fp8\","
            "\"framework\":\"made\","
            "\"date\":\"d\",\"isl\":%d,\"osl\":1024,\"random_range_ratio\":1,\"conc\":%d,\"parallel\":{\"tp\":8},"
            "\"metrics\":{\"tput_per_gpu\":1}}]}",
            workload, conc[i], hw, isl, conc[i]);
        if (sy_points_text(env(), "made", text, strlen(text), NULL, &p, &err)) fail_msg("%s", err.msg);
        struct sy_timer t = p.at[0].timer;
        struct sy_load_spec l = sy_load_of(&p.at[0]);
        t.consts = *c;
        sy_fluid(&t, &l, metric);
        double off = exp(noise * (2 * sy_rng_unit(7, i + (uint64_t)isl) - 1));
        text[strlen(text) - strlen("1}}]}")] = 0;
        sy_buf_printf(b, "%s%s%.17g,\"mean_tpot_ms\":%.17g}}", b->len ? "," : "", text + strlen("{\"points\":["),
                      metric[SY_METRIC_TPUT] * off, 1e3 * metric[SY_METRIC_TPOT] / off);
        sy_points_release(&p);
    }
}

static void read_points(struct sy_buf *b, struct sy_points *out)
{
    struct sy_buf all;
    struct sy_err err = {0};
    sy_buf_init(&all, env(), 0);
    sy_buf_printf(&all, "{\"points\":[%s]}", b->at);
    *out = (struct sy_points){0};
    if (sy_points_text(env(), "made", all.at, all.len, NULL, out, &err)) fail_msg("%s", err.msg);
    sy_buf_release(&all);
}

static const struct sy_consts truth = {{[SY_CONST_LAYER_S] = 150e-6,
                                        [SY_CONST_SEQ_S] = 0.3e-6,
                                        [SY_CONST_WEIGHT] = 0.6,
                                        [SY_CONST_KV] = 0.3,
                                        [SY_CONST_FLOPS] = 0.2,
                                        [SY_CONST_CROWD] = 0.04}};

static void finds_constants(void **state)
{
    (void)state;
    static const int32_t seen[] = {4, 16, 64}, unseen[] = {1, 2, 8, 32, 48, 96};
    struct sy_buf b;
    struct sy_points made, asked;
    struct sy_calibration c;
    struct sy_err err = {0};
    sy_buf_init(&b, env(), 0);
    put_points(&b, "h200", "a", &truth, 8192, seen, SY_COUNT(seen), 0.01);
    read_points(&b, &made);
    if (sy_calibrate_take(env(), &made, &c, &err)) fail_msg("%s", err.msg);
    assert_int_equal(c.n_group, 1);
    sy_buf_clear(&b);
    put_points(&b, "h200", "b", &truth, 8192, unseen, SY_COUNT(unseen), 0);
    read_points(&b, &asked);
    for (size_t i = 0; i < asked.n; i++) {
        const struct sy_measured *p = &asked.at[i];
        enum sy_reach reach;
        double metric[SY_METRIC_COUNT];
        struct sy_timer t = p->timer;
        struct sy_load_spec l = sy_load_of(p);
        t.consts = sy_calibration_for(&c, p, &reach, NULL);
        sy_fluid(&t, &l, metric);
        bool between = p->conc > 4 && p->conc < 64;
        assert_int_equal(reach, between ? SY_REACH_BETWEEN : SY_REACH_BEYOND);
        double e = fabs(metric[SY_METRIC_TPUT] / p->metric[SY_METRIC_TPUT] - 1);
        if (e > (between ? 0.03 : 0.15)) fail_msg("conc %d: %.1f %% off", p->conc, 100 * e);
    }
    sy_points_release(&asked);
    sy_calibration_release(&c);
    sy_buf_release(&b);
}

/* A build known on one chip tells of another of the vendor; nothing known is the roofline and says so. */
static void reaches(void **state)
{
    (void)state;
    static const int32_t seen[] = {4, 16, 64}, one[] = {16};
    struct sy_buf b;
    struct sy_points made, asked;
    struct sy_calibration c;
    struct sy_err err = {0};
    enum sy_reach reach;
    sy_buf_init(&b, env(), 0);
    put_points(&b, "h200", "a", &truth, 8192, seen, SY_COUNT(seen), 0);
    read_points(&b, &made);
    if (sy_calibrate_take(env(), &made, &c, &err)) fail_msg("%s", err.msg);
    sy_buf_clear(&b);
    put_points(&b, "b200", "a", &truth, 8192, one, 1, 0);
    put_points(&b, "mi355x", "a", &truth, 8192, one, 1, 0);
    put_points(&b, "h200", "a", &truth, 1024, one, 1, 0);
    read_points(&b, &asked);
    (void)sy_calibration_for(&c, &asked.at[0], &reach, NULL);
    assert_int_equal(reach, SY_REACH_CHIP);
    (void)sy_calibration_for(&c, &asked.at[1], &reach, NULL);
    assert_int_equal(reach, SY_REACH_KIN);
    (void)sy_calibration_for(&c, &asked.at[2], &reach, NULL);
    assert_int_equal(reach, SY_REACH_WORKLOAD);
    sy_calibration_release(&c);
    made = (struct sy_points){0};
    if (sy_calibrate_take(env(), &made, &c, &err)) fail_msg("%s", err.msg);
    struct sy_consts k = sy_calibration_for(&c, &asked.at[0], &reach, NULL);
    assert_int_equal(reach, SY_REACH_ROOFLINE);
    assert_memory_equal(&k, &sy_consts_roofline, sizeof k);
    sy_calibration_release(&c);
    sy_points_release(&asked);
    sy_buf_release(&b);
}

/* Another chip of the vendor: all but two models', of which one had a kernel with a bad default on one of the two
 * chips, the other one point only. */
static void other_chips(const struct sy_calibration *c)
{
    size_t most = 3 * c->points.n, n_chip = 0;
    struct sy_left_out *left = calloc(most, sizeof *left);
    size_t n = sy_calibration_cross(c, left, most);
    for (size_t i = 0; i < n; i++) {
        const struct sy_measured *p = &c->points.at[left[i].point];
        if (left[i].reach != SY_REACH_CHIP || p->timer.chip.unit_peaks || !strcmp(p->model, "minimax-m3") ||
            !strcmp(p->model, "qwen3-8b"))
            continue;
        n_chip++;
        if (fabs(left[i].tput) > log(1.15)) fail_msg("%s: %.1f %% off", p->id, 100 * expm1(left[i].tput));
    }
    assert_true(n_chip >= 20);
    free(left);
}

/* The published points: the bands are earned on points left out, and hold what they claim. */
static void published(void **state)
{
    (void)state;
    struct sy_points p;
    struct sy_calibration c;
    struct sy_err err = {0};
    if (sy_points_own(env(), &p, &err)) fail_msg("%s", err.msg);
    if (sy_calibrate_take(env(), &p, &c, &err)) fail_msg("%s", err.msg);
    for (int r = SY_REACH_BETWEEN; r <= SY_REACH_KIN; r++) {
        assert_true(c.band[r].n >= 30);
        assert_true(c.band[r].covered >= SY_BAND_CLAIM / 100.0 - 0.03);
        assert_true(c.band[r].width > c.band[r].median);
    }
    assert_true(c.band[SY_REACH_BETWEEN].width < log(1.06) && c.band[SY_REACH_BEYOND].median < log(1.06));
    assert_true(c.band[SY_REACH_WORKLOAD].median < log(1.15));
    other_chips(&c);
    assert_true(c.band[SY_REACH_BETWEEN].width < c.band[SY_REACH_KIN].width);
    for (size_t i = 0; i < c.n_group; i++)
        for (int k = 0; k < SY_CONST_COUNT; k++)
            assert_true(isfinite(c.group[i].consts.v[k]) && c.group[i].consts.v[k] > 0);
    sy_calibration_release(&c);
}

static void tables(void **state)
{
    (void)state;
    struct sy_points p;
    struct sy_calibration c;
    struct sy_cells cells = {0};
    struct sy_buf b;
    struct sy_err err = {0};
    if (sy_points_own(env(), &p, &err)) fail_msg("%s", err.msg);
    if (sy_calibrate_take(env(), &p, &c, &err)) fail_msg("%s", err.msg);
    sy_buf_init(&b, env(), 0);
    if (sy_published_tables(env(), &c, false, &b, &cells, &err)) fail_msg("%s", err.msg);
    assert_true(cells.n >= 30);
    static const char *const holds[] = {"2.69", "2.81",  "57.00",      "50.4", "96.0",
                                        "76.7", "130.2", "unverified", "9364"};
    for (size_t i = 0; i < SY_COUNT(holds); i++)
        if (!strstr(b.at, holds[i])) fail_msg("the tables do not show %s", holds[i]);
    sy_published_total(&cells, &b);
    assert_non_null(strstr(b.at, "cells, median error"));
    sy_buf_release(&b);
    sy_calibration_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_constants),
        cmocka_unit_test(reaches),
        cmocka_unit_test(published),
        cmocka_unit_test(tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
