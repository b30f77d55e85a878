/* Statistics, prices, frontiers and the JSON writer of the benchmarks. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/rng.h"
#include "bench/report.h"
#include "bench/stats.h"

static bool is_near(double a, double b) { return fabs(a - b) <= 1e-9 * (1 + fabs(b)); }
#define NEAR(a, b) assert_true(is_near(a, b))

static void percentiles(void **state)
{
    (void)state;
    /* numpy.percentile([3, 1, 4, 1, 5, 9, 2, 6], p) */
    double v[] = {3, 1, 4, 1, 5, 9, 2, 6};
    struct sy_summary s = sy_summary_of(v, SY_COUNT(v));
    NEAR(s.mean, 3.875);
    NEAR(s.median, 3.5);
    NEAR(s.std, 2.5708704751503917);
    NEAR(s.p90, 6.9);
    NEAR(s.p99, 8.79);
    NEAR(s.p999, 8.979);
    NEAR(s.min, 1);
    NEAR(s.max, 9);
    NEAR(sy_percentile(v, SY_COUNT(v), 0), 1);
    NEAR(sy_percentile(v, SY_COUNT(v), 100), 9);
    NEAR(sy_percentile(v, SY_COUNT(v), 25), 1.75);

    double one[] = {7};
    s = sy_summary_of(one, 1);
    NEAR(s.median, 7);
    NEAR(s.p999, 7);
    NEAR(s.std, 0);
    s = sy_summary_of(NULL, 0);
    NEAR(s.p99, 0);
    assert_int_equal(s.n, 0);
    NEAR(sy_median(NULL, 0), 0);
}

static void poisson(void **state)
{
    (void)state;
    enum { N = 20000 };
    const double rate = 8;
    double sum = 0, squares = 0;
    int below = 0; /* the median of an exponential gap is ln 2 / rate */
    for (uint64_t i = 0; i < N; i++) {
        double g = sy_poisson_gap(42, i, rate);
        assert_true(g >= 0 && isfinite(g));
        sum += g;
        squares += g * g;
        below += g < log(2) / rate;
    }
    double mean = sum / N, var = squares / N - mean * mean;
    assert_true(fabs(mean * rate - 1) < 0.03);
    assert_true(fabs(var * rate * rate - 1) < 0.08);
    assert_true(abs(below - N / 2) < N / 50);
    NEAR(sy_poisson_gap(42, 7, rate), sy_poisson_gap(42, 7, rate));
    assert_true(sy_poisson_gap(43, 7, rate) != sy_poisson_gap(42, 7, rate));
}

static void uniform(void **state)
{
    (void)state;
    int seen[5] = {0};
    for (uint64_t i = 0; i < 5000; i++) {
        int64_t v = sy_uniform(1, i, 10, 14);
        assert_in_range(v, 10, 14);
        seen[v - 10]++;
    }
    for (int i = 0; i < 5; i++) assert_in_range(seen[i], 850, 1150);
    assert_int_equal(sy_uniform(1, 0, 3, 3), 3);
}

static void prices(void **state)
{
    (void)state;
    /* A chip at 1.21 $/h that makes 1,000 tokens/s: 1.21 / 3.6 dollars a million. */
    struct sy_dollars d = sy_dollars_of((struct sy_price){1.21, 1}, 800, 200);
    NEAR(d.total, 1.21 / 3.6);
    NEAR(d.input, 1.21 / (0.8 * 3.6));
    NEAR(d.output, 1.21 / (0.2 * 3.6));
    NEAR(d.tok_per_dollar, 3.6e6 / 1.21);
    d = sy_dollars_of((struct sy_price){8, 4}, 0, 100);
    NEAR(d.total, 32 / 0.36);
    assert_true(isinf(d.input));
    NEAR(d.tok_per_dollar, 100 * 3600 / 32.0);
}

static struct sy_point point(double load, double cost, double interactivity, double e2e)
{
    return (struct sy_point){.load = load, .cost = {.total = cost}, .interactivity = interactivity, .e2e_s = e2e};
}

static void frontier(void **state)
{
    (void)state;
    struct sy_point p[] = {
        point(1, 10, 50, 1),          point(4, 5, 40, 2),  point(8, 6, 30, 3), /* worse than 4 in both */
        point(16, 2, 20, 4),          point(32, 2, 20, 4),                     /* the same again */
        point(64, INFINITY, 99, 0.1),                                          /* nothing was answered */
    };
    sy_pareto(p, SY_COUNT(p));
    const bool want[] = {true, true, false, true, true, false};
    for (size_t i = 0; i < SY_COUNT(p); i++) {
        assert_int_equal(p[i].best_interactivity, want[i]);
        assert_int_equal(p[i].best_e2e, want[i]);
    }
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    sy_pareto_print(p, SY_COUNT(p), "concurrency", &b);
    assert_non_null(strstr(b.at, "interactivity"));
    int lines = 0;
    for (const char *at = b.at; (at = strchr(at, '\n')); at++) lines++;
    assert_int_equal(lines, 2 * (3 + 4));
    sy_buf_release(&b);
}

/* Points at random: those marked are monotone, and each that is not is beaten by one that is. */
static void frontier_at_random(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct sy_point p[12];
        for (size_t i = 0; i < SY_COUNT(p); i++)
            p[i] = point((double)i, (double)sy_uniform(seed, 3 * i, 1, 9), (double)sy_uniform(seed, 3 * i + 1, 1, 9),
                         (double)sy_uniform(seed, 3 * i + 2, 1, 9));
        sy_pareto(p, SY_COUNT(p));
        for (size_t i = 0; i < SY_COUNT(p); i++) {
            bool beaten = false;
            for (size_t k = 0; k < SY_COUNT(p); k++) {
                if (!p[k].best_interactivity) continue;
                double cost = p[k].cost.total - p[i].cost.total, good = p[k].interactivity - p[i].interactivity;
                beaten |= cost <= 0 && good >= 0 && (cost < 0 || good > 0);
                if (p[i].best_interactivity && cost < 0) assert_true(good < 0);
            }
            assert_int_equal(beaten, !p[i].best_interactivity);
        }
    }
}

static void writes_json(void **state)
{
    (void)state;
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    struct sy_jout j = {&b, false};
    sy_jout_open(&j, NULL, '{');
    sy_jout_open(&j, "list", '[');
    for (int i = 0; i < 3; i++) {
        sy_jout_line(&j);
        sy_jout_open(&j, NULL, '{');
        sy_jout_int(&j, "i", i);
        sy_jout_num(&j, "half", (double)i / 2);
        sy_jout_close(&j, '}');
    }
    sy_jout_close(&j, ']');
    sy_jout_text(&j, "text", "a \"quoted\"\n\x01 \xff line");
    sy_jout_text(&j, "none", NULL);
    sy_jout_num(&j, "inf", INFINITY);
    sy_jout_num(&j, "nan", NAN);
    sy_jout_bool(&j, "yes", true);
    sy_jout_open(&j, "empty", '{');
    sy_jout_close(&j, '}');
    sy_jout_close(&j, '}');
    struct sy_json *o;
    struct sy_err err;
    if (sy_json_parse(sy_env_default(), b.at, b.len, false, &o, &err)) fail_msg("%s in %s", err.msg, b.at);
    assert_int_equal(sy_json_len(sy_json_get(o, "list")), 3);
    NEAR(sy_json_number(sy_json_get(sy_json_at(sy_json_get(o, "list"), 1), "half"), 0), 0.5);
    assert_string_equal(sy_json_text(sy_json_get(o, "text")), "a \"quoted\"\n\x01 \xef\xbf\xbd line");
    assert_true(sy_json_is_null(sy_json_get(o, "inf")) && sy_json_is_null(sy_json_get(o, "nan")));
    assert_true(sy_json_is_null(sy_json_get(o, "none")));
    assert_true(sy_json_bool(sy_json_get(o, "yes"), false));
    assert_true(sy_json_is_object(sy_json_get(o, "empty")));
    sy_json_free(o);
    sy_buf_release(&b);
}

static void keeps_samples(void **state)
{
    (void)state;
    struct sy_samples s;
    sy_samples_init(&s, sy_env_default());
    for (int i = 0; i < 1000; i++) sy_samples_add(&s, i);
    assert_int_equal(s.n, 1000);
    NEAR(s.at[999], 999);
    NEAR(sy_median(s.at, s.n), 499.5);
    sy_samples_release(&s);
    assert_int_equal(s.n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles), cmocka_unit_test(poisson),       cmocka_unit_test(uniform),
        cmocka_unit_test(prices),      cmocka_unit_test(frontier),      cmocka_unit_test(frontier_at_random),
        cmocka_unit_test(writes_json), cmocka_unit_test(keeps_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
