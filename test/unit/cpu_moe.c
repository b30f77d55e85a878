/* Routing against a plain search over random logits; ties, numbers that are none, and bounds. */
#include "backend/cpu/cpu_int.h"
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 32, USED = 6 };

static void route(struct sy_route_dim d, float *logits, const float *bias, const float *gain, float *out)
{
    struct sy_node n = {.op = SY_OP_ROUTE, .dim = {1, 2 * (int64_t)d.n_used}, .attr = {.route = d}};
    struct value in = {.at = logits, .ld = d.n_expert}, to = {.at = out, .ld = 2 * (int64_t)d.n_used};
    struct op o = {.node = &n, .in = {&in}, .out = &to, .vec = bias, .vec2 = gain};
    cpu_row_route(NULL, &o, 0, 1);
}

static double score(const struct sy_route_dim *d, const float *x, int i)
{
    double sum = 0;
    switch (d->score) {
    case SY_SCORE_SIGMOID: return 1 / (1 + exp(-(double)x[i]));
    case SY_SCORE_LOGIT: return x[i];
    case SY_SCORE_SQRT_SOFTPLUS: return sqrt(log1p(exp((double)x[i])));
    case SY_SCORE_SOFTMAX: break;
    }
    for (int k = 0; k < d->n_expert; k++) sum += exp((double)x[k]);
    return exp((double)x[i]) / sum;
}

/* The sum of a group's two best. */
static double group_score(const struct sy_route_dim *d, const double *c, int group)
{
    int n = d->n_expert / d->n_group, lo = group * n;
    double best = -1e9;
    for (int a = lo; a < lo + n; a++)
        for (int b = a + 1; b < lo + n; b++) best = fmax(best, c[a] + c[b]);
    return best;
}

/* Whether the expert's group takes part; slack: what rounding may decide either way. */
static bool open_to(const struct sy_route_dim *d, const double *c, int expert, double slack)
{
    if (d->n_group <= 1) return true;
    int mine = expert / (d->n_expert / d->n_group), better = 0;
    for (int g = 0; g < d->n_group; g++)
        better += g != mine && group_score(d, c, g) > group_score(d, c, mine) + slack;
    return better < d->n_group_used;
}

static void check(struct sy_route_dim d, uint64_t seed, bool biased)
{
    float x[N], bias[N], gain[N], out[2 * USED];
    double c[N], all = d.eps, soft = 0;
    for (int i = 0; i < N; i++) {
        x[i] = (float)(8 * sy_rng_unit(seed, (uint64_t)i) - 4);
        bias[i] = (float)sy_rng_unit(seed + 1, (uint64_t)i);
        gain[i] = (float)(0.5 + sy_rng_unit(seed + 2, (uint64_t)i));
    }
    for (int i = 0; i < N; i++) c[i] = score(&d, x, i) + (biased ? bias[i] : 0);
    route(d, x, biased ? bias : NULL, gain, out);
    for (int k = 0; k < d.n_used; k++) {
        int e = (int)out[k], better = 0;
        assert_true(e >= 0 && e < N && out[k] == (float)e && open_to(&d, c, e, 1e-5));
        for (int i = 0; i < N; i++) better += open_to(&d, c, i, -1e-5) && c[i] > c[e] + 1e-5;
        assert_true(better <= k);
        all += score(&d, x, e);
        soft += exp(score(&d, x, e));
    }
    for (int k = 0; k < d.n_used; k++) {
        int e = (int)out[k];
        double w = score(&d, x, e);
        if (d.weighting == SY_WEIGHT_NORMED) w /= all;
        if (d.weighting == SY_WEIGHT_SOFTMAX) w = exp(w) / soft;
        w *= d.scale * gain[e];
        if (fabs(out[d.n_used + k] - w) > 1e-5 * (1 + fabs(w)))
            fail_msg("weight %g, expected %g", (double)out[d.n_used + k], w);
    }
}

static void routes_are_the_best(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 600; seed += 3)
        for (int kind = SY_SCORE_SOFTMAX; kind <= SY_SCORE_SQRT_SOFTPLUS; kind++) {
            struct sy_route_dim d = {.n_expert = N, .n_used = USED, .score = (enum sy_score)kind, .scale = 1};
            check(d, seed, false);
            d.weighting = SY_WEIGHT_SOFTMAX;
            check(d, seed, true);
            d = (struct sy_route_dim){N, USED, 8, 3, (enum sy_score)kind, SY_WEIGHT_NORMED, 1e-3f, 2.5f};
            check(d, seed, true);
            d.n_group_used = 8;
            check(d, seed, false);
        }
}

static void equal_scores_go_to_the_first(void **state)
{
    (void)state;
    struct sy_route_dim d = {.n_expert = 8, .n_used = 3, .score = SY_SCORE_SIGMOID, .scale = 1};
    float x[8] = {1, 2, 2, 1, 2, 2, 0, 2}, out[6];
    route(d, x, NULL, NULL, out);
    assert_true(out[0] == 1 && out[1] == 2 && out[2] == 4);
    /* Both sigmoids round to 1; the larger logit is still the better one. */
    float big[8] = {0, 30, 0, 40, 0, 0, 0, 0};
    route(d, big, NULL, NULL, out);
    assert_true(out[0] == 3 && out[1] == 1 && out[2] == 0 && out[3] == 1);
}

static void whatever_comes_experts_exist(void **state)
{
    (void)state;
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 0};
    for (uint64_t seed = 0; seed < 500; seed++) {
        struct sy_route_dim d = {N, USED, seed % 2 ? 4 : 1, 2, (enum sy_score)(seed % 4), SY_WEIGHT_NORMED, 0, 1};
        float x[N], out[2 * USED];
        for (int i = 0; i < N; i++) x[i] = odd[(int)(6 * sy_rng_unit(seed, (uint64_t)i)) % 6];
        route(d, x, NULL, NULL, out);
        for (int a = 0; a < USED; a++) {
            assert_true(out[a] >= 0 && out[a] < N && out[a] == floorf(out[a]));
            for (int b = 0; b < a; b++) assert_true(out[a] != out[b]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routes_are_the_best),
        cmocka_unit_test(equal_scores_go_to_the_first),
        cmocka_unit_test(whatever_comes_experts_exist),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
