/* Sampling: greedy and ties, each truncation against a plain sort, penalties, log probabilities, draws that depend on
 * seed and counter alone and follow the distribution, hostile logits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/sample.h"

enum { N = 200 };

static struct sy_sample_out draw(const float *x, int n, struct sy_sampling how, uint64_t k)
{
    void *scratch = malloc(sy_sample_scratch_bytes(n));
    assert_non_null(scratch);
    struct sy_sample_in in = {.logits = x, .n_vocab = n, .how = &how, .draw = k};
    struct sy_sample_out out;
    sy_sample_draw(&in, scratch, &out);
    free(scratch);
    return out;
}

static void fill(float *x, int n, uint64_t seed)
{
    for (int i = 0; i < n; i++) x[i] = (float)(6 * sy_rng_unit(seed, (uint64_t)i));
}

static void greedy_takes_the_first_of_the_best(void **state)
{
    (void)state;
    float x[] = {1, 5, 5, -INFINITY, NAN, 2};
    assert_int_equal(draw(x, 6, (struct sy_sampling){.n_logprob = -1}, 0).id, 1);
    float none[] = {NAN, -INFINITY, NAN};
    assert_in_range(draw(none, 3, (struct sy_sampling){.temperature = 1, .n_logprob = 2}, 0).id, 0, 2);
    float tiny[] = {0, 1};
    assert_int_equal(draw(tiny, 2, (struct sy_sampling){.temperature = 1e-9f, .n_logprob = -1}, 3).id, 1);
}

/* The share of each id over many draws is its probability among the ids that `allowed` leaves. */
static void check_shares(struct sy_sampling how, const bool *allowed, const float *x, double temperature)
{
    static int seen[N];
    double p[N], sum = 0, worst = 0;
    int n_draw = 20000;
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < N; i++) sum += p[i] = allowed[i] ? exp((double)x[i] / temperature) : 0;
    for (int k = 0; k < n_draw; k++) seen[draw(x, N, how, (uint64_t)k).id]++;
    for (int i = 0; i < N; i++) {
        if (!allowed[i]) assert_int_equal(seen[i], 0);
        /* In standard deviations of the count, 2 added where it is expected to be small and far from normal. The
         * draws are fixed, so this is no matter of luck. */
        double want = p[i] / sum * n_draw, off = fabs(seen[i] - want) / (2 + sqrt(want));
        if (off > worst) worst = off;
    }
    assert_true(worst < 4);
}

static int by_logit_down(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static void truncations_keep_what_they_should(void **state)
{
    (void)state;
    float x[N], sorted[N];
    bool all[N], keep[N];
    fill(x, N, 11);
    memcpy(sorted, x, sizeof x);
    qsort(sorted, N, sizeof *sorted, by_logit_down);
    for (int i = 0; i < N; i++) all[i] = true;
    check_shares((struct sy_sampling){.temperature = 1, .seed = 1, .n_logprob = -1}, all, x, 1);
    check_shares((struct sy_sampling){.temperature = 0.5f, .seed = 2, .n_logprob = -1}, all, x, 0.5);
    for (int i = 0; i < N; i++) keep[i] = x[i] >= sorted[6];
    check_shares((struct sy_sampling){.temperature = 1, .top_k = 7, .seed = 3, .n_logprob = -1}, keep, x, 1);
    double sum = 0, mass = 0;
    for (int i = 0; i < N; i++) sum += exp((double)x[i]);
    int n = 0;
    while (mass < 0.3 * sum) mass += exp((double)sorted[n++]);
    for (int i = 0; i < N; i++) keep[i] = x[i] >= sorted[n - 1];
    check_shares((struct sy_sampling){.temperature = 1, .top_p = 0.3f, .seed = 4, .n_logprob = -1}, keep, x, 1);
    for (int i = 0; i < N; i++) keep[i] = exp((double)x[i] - (double)sorted[0]) >= 0.2;
    check_shares((struct sy_sampling){.temperature = 1, .min_p = 0.2f, .seed = 5, .n_logprob = -1}, keep, x, 1);
}

static void typical_keeps_what_surprises_as_expected(void **state)
{
    (void)state;
    /* p = 0.6, 0.2, 0.1, 0.1: entropy 1.09; surprises 0.51, 1.61, 2.30, 2.30: 1.61 is nearest, then 0.51. */
    float x[] = {logf(0.6f), logf(0.2f), logf(0.1f), logf(0.1f)};
    bool seen[4] = {0};
    for (uint64_t k = 0; k < 500; k++)
        seen[draw(x, 4, (struct sy_sampling){.temperature = 1, .typical_p = 0.7f, .n_logprob = -1}, k).id] = true;
    assert_true(seen[0] && seen[1] && !seen[2] && !seen[3]);
    for (uint64_t k = 0; k < 200; k++)
        assert_int_equal(draw(x, 4, (struct sy_sampling){.temperature = 1, .typical_p = 0.1f, .n_logprob = -1}, k).id,
                         1);
}

static void draws_repeat(void **state)
{
    (void)state;
    float x[N];
    fill(x, N, 5);
    struct sy_sampling how = {.temperature = 1.5f, .seed = 77, .n_logprob = -1};
    int differ = 0;
    for (uint64_t k = 0; k < 50; k++) {
        int32_t id = draw(x, N, how, k).id;
        assert_int_equal(draw(x, N, how, k).id, id);
        how.seed = 78;
        differ += draw(x, N, how, k).id != id;
        how.seed = 77;
    }
    assert_true(differ > 30);
}

static void penalties_follow_their_formulas(void **state)
{
    (void)state;
    float x[] = {3, 2.9f, -1, 0};
    uint16_t prompt[] = {1, 0, 0, 0}, output[] = {2, 0, 0, 0};
    static char scratch[4 * 64];
    struct sy_sampling how = {.frequency_penalty = 0.1f, .n_logprob = 3};
    struct sy_sample_in in = {.logits = x, .n_vocab = 4, .how = &how, .count_prompt = prompt, .count_output = output};
    struct sy_sample_out out;
    sy_sample_draw(&in, scratch, &out); /* 3 - 2 * 0.1 = 2.8 */
    assert_int_equal(out.id, 1);
    how = (struct sy_sampling){.presence_penalty = 0.05f, .n_logprob = -1};
    sy_sample_draw(&in, scratch, &out); /* 2.95 */
    assert_int_equal(out.id, 0);
    how = (struct sy_sampling){.repeat_penalty = 1.1f, .n_logprob = -1};
    sy_sample_draw(&in, scratch, &out); /* 3 / 1.1 = 2.73 */
    assert_int_equal(out.id, 1);
    struct sy_bias bias = {3, 50};
    how = (struct sy_sampling){.bias = &bias, .n_bias = 1, .n_logprob = -1};
    sy_sample_draw(&in, scratch, &out);
    assert_int_equal(out.id, 3);
    int32_t barred[] = {0, 1};
    how = (struct sy_sampling){.n_logprob = -1};
    in.barred = barred;
    in.n_barred = 2;
    sy_sample_draw(&in, scratch, &out);
    assert_int_equal(out.id, 3);
}

static void logprobs_are_those_of_the_softmax(void **state)
{
    (void)state;
    float x[N];
    fill(x, N, 21);
    struct sy_sample_out o = draw(x, N, (struct sy_sampling){.n_logprob = 5}, 0);
    double sum = 0;
    for (int i = 0; i < N; i++) sum += exp((double)x[i]);
    assert_int_equal(o.n_top, 5);
    assert_int_equal(o.top[0].id, o.id);
    for (int i = 0; i < 5; i++) {
        assert_true(fabs((double)o.top[i].logprob - ((double)x[o.top[i].id] - log(sum))) < 1e-5);
        if (i) assert_true(o.top[i].logprob <= o.top[i - 1].logprob);
    }
    assert_int_equal(draw(x, 3, (struct sy_sampling){.n_logprob = 20}, 0).n_top, 3);
}

static void parameters_out_of_range_are_refused_by_name(void **state)
{
    (void)state;
    struct sy_bias far = {N, 1}, big = {1, 101};
    const struct {
        struct sy_sampling how;
        const char *name;
    } bad[] = {
        {{.temperature = -1}, "temperature"},
        {{.temperature = 2.0001f}, "temperature"},
        {{.temperature = NAN}, "temperature"},
        {{.top_p = 1.1f}, "top_p"},
        {{.min_p = 2}, "min_p"},
        {{.top_k = -2}, "top_k"},
        {{.presence_penalty = 3}, "presence"},
        {{.frequency_penalty = -3}, "frequency"},
        {{.n_logprob = 21}, "logprobs"},
        {{.bias = &far, .n_bias = 1}, "logit_bias"},
        {{.bias = &big, .n_bias = 1}, "logit_bias"},
    };
    for (size_t i = 0; i < SY_COUNT(bad); i++) {
        struct sy_err err;
        assert_int_equal(sy_sampling_check(&bad[i].how, N, &err), SY_EARG);
        assert_non_null(strstr(err.msg, bad[i].name));
    }
    assert_int_equal(sy_sampling_check(&(struct sy_sampling){.temperature = 2, .top_p = 1, .n_logprob = -1}, N, NULL),
                     SY_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_of_the_best),
        cmocka_unit_test(truncations_keep_what_they_should),
        cmocka_unit_test(typical_keeps_what_surprises_as_expected),
        cmocka_unit_test(draws_repeat),
        cmocka_unit_test(penalties_follow_their_formulas),
        cmocka_unit_test(logprobs_are_those_of_the_softmax),
        cmocka_unit_test(parameters_out_of_range_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
