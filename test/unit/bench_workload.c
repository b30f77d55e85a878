/* Workloads: lengths drawn as asked, files of conversations and traces, prompts that share what they should. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/workload.h"
#include "checkpoint_util.h"

static struct sy_workload random_of(size_t n, int32_t in, int32_t out, double range, uint64_t seed)
{
    struct sy_workload w;
    struct sy_err err;
    if (sy_workload_random(sy_env_default(), n, in, out, range, seed, &w, &err)) fail_msg("%s", err.msg);
    return w;
}

static void lengths(void **state)
{
    (void)state;
    struct sy_workload w = random_of(3000, 1000, 50, 0.8, 5);
    double in = 0, out = 0;
    int32_t least = 1000, most = 0;
    assert_int_equal(w.n, 3000);
    for (size_t i = 0; i < w.n; i++) {
        const struct sy_turn *t = w.session[i].turn;
        assert_int_equal(w.session[i].n_turn, 1);
        assert_in_range(t->n_in, 800, 1000);
        assert_in_range(t->n_out, 40, 50);
        in += t->n_in;
        out += t->n_out;
        least = t->n_in < least ? t->n_in : least;
        most = t->n_in > most ? t->n_in : most;
    }
    assert_true(in / 3000 > 892 && in / 3000 < 908 && out / 3000 > 44.7 && out / 3000 < 45.3);
    assert_true(least < 803 && most > 997);
    sy_workload_release(&w);
    w = random_of(20, 10, 7, 1, 5);
    for (size_t i = 0; i < w.n; i++) assert_true(w.session[i].turn->n_in == 10 && w.session[i].turn->n_out == 7);
    sy_workload_release(&w);
    w = random_of(200, 3, 2, 0, 5); /* never none */
    for (size_t i = 0; i < w.n; i++) assert_true(w.session[i].turn->n_in >= 1 && w.session[i].turn->n_out >= 1);
    sy_workload_release(&w);
}

static void tokens(void **state)
{
    (void)state;
    struct sy_workload w = random_of(2, 40, 4, 1, 9), again = random_of(2, 40, 4, 1, 9);
    struct sy_buf a, b;
    sy_buf_init(&a, sy_env_default(), 0);
    sy_buf_init(&b, sy_env_default(), 0);
    sy_turn_ids(w.session[0].turn, 100, &a);
    sy_turn_ids(again.session[0].turn, 100, &b);
    assert_string_equal(a.at, b.at);
    int n = 0;
    for (char *at = a.at; *at; n++) {
        assert_in_range(strtol(at, &at, 10), 0, 99);
        if (*at == ',') at++;
    }
    assert_int_equal(n, 40);
    sy_buf_clear(&b);
    sy_turn_ids(w.session[1].turn, 100, &b);
    assert_string_not_equal(a.at, b.at);
    sy_buf_clear(&b);
    sy_turn_words(w.session[1].turn, &b);
    n = 1;
    for (const char *at = b.at; *at; at++) {
        assert_true(*at == ' ' || (*at >= 'a' && *at <= 'z'));
        n += *at == ' ';
    }
    assert_int_equal(n, 40);
    sy_buf_release(&a);
    sy_buf_release(&b);
    sy_workload_release(&w);
    sy_workload_release(&again);
}

static void datasets(void **state)
{
    (void)state;
    const char text[] =
        "[{\"id\":\"a\",\"conversations\":[{\"from\":\"human\",\"value\":\"12345678\"},{\"from\":\"gpt\",\"value\":"
        "\"123456789\"}]},"
        "{\"conversations\":[{\"from\":\"system\",\"value\":\"s\"},{\"from\":\"user\",\"value\":\"x\"},"
        "{\"from\":\"assistant\",\"value\":\"y\"}]},"
        "{\"conversations\":[{\"from\":\"gpt\",\"value\":\"answer first\"}]},{\"conversations\":7},{},8,"
        "{\"conversations\":[{\"from\":\"human\",\"value\":\"\"},{\"from\":\"gpt\",\"value\":\"z\"}]}]";
    for (uint64_t seed = 0; seed < 8; seed++) {
        struct sy_workload w;
        struct sy_err err;
        if (sy_workload_dataset(sy_env_default(), text, sizeof text - 1, 0, seed, &w, &err)) fail_msg("%s", err.msg);
        assert_int_equal(w.n, 2);
        const struct sy_turn *t = w.session[0].turn, *u = w.session[1].turn;
        if (t->n_text == 1) {
            const struct sy_turn *swap = t;
            t = u;
            u = swap;
        }
        assert_true(t->n_text == 8 && !memcmp(t->text, "12345678", 8) && t->n_in == 2 && t->n_out == 3);
        assert_true(u->n_text == 1 && *u->text == 'x' && u->n_in == 1 && u->n_out == 1);
        sy_workload_release(&w);
        assert_int_equal(sy_workload_dataset(sy_env_default(), text, sizeof text - 1, 77, seed, &w, &err), SY_OK);
        assert_int_equal(w.session[0].turn->n_out, 77);
        sy_workload_release(&w);
    }
}

static void traces(void **state)
{
    (void)state;
    const char text[] = "{\"timestamp\":1000,\"input_length\":1100,\"output_length\":8,\"hash_ids\":[1,2,3]}\n\n"
                        "{\"timestamp\":2500,\"input_length\":700,\"output_length\":9,\"hash_ids\":[1]}\r\n"
                        "{\"timestamp\":2500,\"turns\":[{\"input_length\":5,\"output_length\":6},"
                        "{\"input_length\":7,\"output_length\":8,\"delay_ms\":1.5}]}";
    struct sy_workload w;
    struct sy_err err;
    if (sy_workload_trace(sy_env_default(), text, sizeof text - 1, 1, &w, &err)) fail_msg("%s", err.msg);
    assert_int_equal(w.n, 3);
    assert_true(w.timed && w.session[1].start_ns == 2500000000);
    assert_int_equal(w.session[2].n_turn, 2);
    assert_int_equal(w.session[2].turn[1].delay_ns, 1500000);
    assert_int_equal(w.session[2].turn[1].n_out, 8);
    struct sy_buf a, b;
    sy_buf_init(&a, sy_env_default(), 0);
    sy_buf_init(&b, sy_env_default(), 0);
    sy_turn_ids(w.session[0].turn, 1000, &a);
    sy_turn_ids(w.session[1].turn, 1000, &b);
    size_t same = 0, commas = 0;
    for (; a.at[same] == b.at[same]; same++) commas += a.at[same] == ',';
    assert_in_range(commas, 511, 513); /* block 1 is 512 tokens of both, the rest is each one's own */
    commas = 0;
    for (const char *at = a.at; *at; at++) commas += *at == ',';
    assert_int_equal(commas, 1099);
    sy_buf_release(&a);
    sy_buf_release(&b);
    sy_workload_release(&w);
}

static void malformed(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "found none"},
        {"\n \n", "found none"},
        {"{", "line 1"},
        {"{\"input_length\":5,\"output_length\":6}\n7\n", "line 2"},
        {"{\"input_length\":0,\"output_length\":6}\n", "'input_length'"},
        {"{\"input_length\":99999999999,\"output_length\":6}\n", "'input_length'"},
        {"{\"input_length\":1}\n", "'output_length'"},
        {"{\"turns\":[]}\n", "'turns'"},
        {"{\"turns\":7}\n", "'turns'"},
        {"{\"turns\":[7]}\n", "'turns'"},
        {"{\"turns\":[{\"input_length\":5,\"output_length\":6,\"delay_ms\":-1}]}\n", "'delay_ms'"},
        {"{\"input_length\":5,\"output_length\":6,\"hash_ids\":[\"x\"]}\n", "'hash_ids'"},
        {"{\"timestamp\":5,\"input_length\":5,\"output_length\":6}\n{\"timestamp\":4,\"input_length\":5,\"output_"
         "length\":6}\n",
         "line 2: 'timestamp'"},
        {"{\"timestamp\":1e300,\"input_length\":5,\"output_length\":6}\n", "'timestamp'"},
    };
    struct sy_workload w;
    struct sy_err err;
    for (size_t i = 0; i < SY_COUNT(bad); i++) {
        assert_int_equal(sy_workload_trace(sy_env_default(), bad[i].text, strlen(bad[i].text), 1, &w, &err),
                         SY_EFORMAT);
        if (!strstr(err.msg, bad[i].says)) fail_msg("case %d: %s", (int)i, err.msg);
    }
    static const char *const no_dataset[] = {"", "{}", "[]", "[{\"conversations\":[]}]", "7"};
    for (size_t i = 0; i < SY_COUNT(no_dataset); i++)
        assert_int_equal(sy_workload_dataset(sy_env_default(), no_dataset[i], strlen(no_dataset[i]), 0, 1, &w, &err),
                         SY_EFORMAT);
}

static sy_status make(const struct sy_env *env, int kind, struct sy_workload *w)
{
    const char talk[] =
        "[{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"gpt\",\"value\":\"b\"}]}]";
    const char trace[] = "{\"input_length\":5,\"output_length\":6,\"hash_ids\":[1]}\n";
    if (kind == 0) return sy_workload_random(env, 5, 3, 3, 1, 1, w, NULL);
    if (kind == 1) return sy_workload_dataset(env, talk, sizeof talk - 1, 0, 1, w, NULL);
    return sy_workload_trace(env, trace, sizeof trace - 1, 1, w, NULL);
}

static void each_allocation_fails(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (long i = 1;; i++) {
            struct counted c;
            struct sy_workload w;
            counted_init(&c, i);
            sy_status st = make(&c.env, kind, &w);
            if (!st) sy_workload_release(&w);
            assert_int_equal(c.live, 0);
            if (c.n < i) {
                assert_int_equal(st, SY_OK);
                break;
            }
            assert_int_equal(st, SY_ENOMEM);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths), cmocka_unit_test(tokens),    cmocka_unit_test(datasets),
        cmocka_unit_test(traces),  cmocka_unit_test(malformed), cmocka_unit_test(each_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
