/* Cards and price lists: everything that is shipped reads, and what is wrong in one of a user's is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/sim/chip.h"
#include "plan/points.h"
#include "plan/prices.h"

static const struct sy_env *env(void) { return sy_env_default(); }

static void shipped(void **state)
{
    (void)state;
    int chips = 0, models = 0, prices = 0;
    for (const struct sy_data *d = sy_data_files; d->path; d++) {
        struct sy_err err = {0};
        struct sy_chip chip;
        struct sy_card card;
        struct sy_prices list;
        char name[64];
        const char *base = strchr(d->path, '/') + 1;
        snprintf(name, sizeof name, "%.*s", (int)(strlen(base) - 5), base);
        assert_int_equal(d->at[d->n], 0);
        assert_ptr_equal(sy_data_find(d->path), d);
        if (!strncmp(d->path, "chips/", 6)) {
            if (sy_chip_read(env(), name, d->at, d->n, &chip, &err)) fail_msg("%s", err.msg);
            assert_string_equal(chip.id, name);
            chips++;
        } else if (!strncmp(d->path, "models/", 7)) {
            if (sy_card_find(env(), name, &card, &err)) fail_msg("%s", err.msg);
            assert_string_equal(card.name, name);
            assert_true(sy_profile_active(&card.profile) > 0);
            models++;
        } else if (!strncmp(d->path, "prices/", 7)) {
            if (sy_prices_open(env(), name, &list, &err)) fail_msg("%s", err.msg);
            prices++;
        }
    }
    assert_true(chips >= 20 && models >= 20 && prices >= 5);
    assert_null(sy_data_find("chips/none.json"));
}

static void aliases(void **state)
{
    (void)state;
    struct sy_card a, b;
    assert_int_equal(sy_card_find(env(), "dsr1", &a, NULL), SY_OK);
    assert_int_equal(sy_card_find(env(), "deepseek-r1", &b, NULL), SY_OK);
    assert_memory_equal(&a.profile, &b.profile, sizeof a.profile);
    assert_int_equal(sy_card_find(env(), "no-such-model", &a, NULL), SY_EARG);
}

/* Text with the first `from` replaced. */
static char *changed(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    size_t n = strlen(text) + strlen(to) + 1;
    assert_non_null(at);
    char *s = test_malloc(n);
    snprintf(s, n, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return s;
}

static const char chip[] =
    "{\"name\":\"A\",\"vendor\":\"V\",\"devices\":2,\"flops\":{\"bf16\":{\"value\":1e12,\"source\":\"x\"}},"
    "\"memory_bytes\":{\"value\":8e9,\"source\":\"x\"},\"memory_bytes_s\":{\"value\":1e11,\"source\":\"x\"},"
    "\"link\":{\"topology\":\"torus\",\"dims\":3,\"world\":64,\"bytes_s\":{\"value\":1e9,\"source\":\"x\"}}}";

static void chips(void **state)
{
    (void)state;
    static const char *const wrong[][3] = {
        {"\"source\":\"x\"", "\"source\":\"\"", "source"},
        {"1e12", "-1", "bf16"},
        {"1e12", "0", "bf16"},
        {"1e12", "\"fast\"", "bf16"},
        {"8e9", "1e30", "memory_bytes"},
        {"torus", "ring", "topology"},
        {"\"dims\":3", "\"dims\":4", "dims"},
        {"\"world\":64", "\"world\":1", "world"},
        {"\"devices\":2", "\"devices\":0", "devices"},
        {"\"name\":\"A\",", "", "name"},
        {"\"vendor\":\"V\"", "\"vendor\":\"a vendor whose name is much too long for it\"", "vendor"},
        {"}}}", "}", "chip 'a'"},
    };
    struct sy_chip c;
    struct sy_path p;
    struct sy_err err;
    assert_int_equal(sy_chip_read(env(), "a", chip, sizeof chip - 1, &c, NULL), SY_OK);
    assert_true(c.topology == SY_LINK_TORUS && c.dims == 3 && c.flops[SY_ARITH_BF16] == 1e12);
    assert_true(sy_chip_flops(&c, SY_ARITH_FP4) == 1e12);
    assert_int_equal(sy_path_named("fp16", &c, &p, NULL), SY_OK);
    assert_int_equal(sy_path_named("f32", &c, &p, NULL), SY_EARG); /* nothing wider has a peak */
    assert_int_equal(sy_path_named("fp3", &c, &p, NULL), SY_EARG);
    for (size_t i = 0; i < SY_COUNT(wrong); i++) {
        char *s = changed(chip, wrong[i][0], wrong[i][1]);
        memset(&err, 0, sizeof err);
        assert_int_equal(sy_chip_read(env(), "a", s, strlen(s), &c, &err), SY_EFORMAT);
        if (!strstr(err.msg, wrong[i][2])) fail_msg("'%s' does not name '%s'", err.msg, wrong[i][2]);
        test_free(s);
    }
}

static const char model[] =
    "{\"name\":\"m\",\"layers\":2,\"hidden\":64,\"vocab\":100,\"context\":512,\"attention\":{\"kind\":\"gqa\","
    "\"layers\":2,"
    "\"q_heads\":4,\"kv_heads\":2,\"head_dim\":16},\"moe\":{\"experts\":8,\"top_k\":2,\"intermediate\":32,"
    "\"shared_experts\":1},\"dense_layers\":1,\"intermediate\":128,\"total_params\":123456}";

static void models(void **state)
{
    (void)state;
    static const char *const wrong[][3] = {
        {"\"top_k\":2", "\"top_k\":9", "top_k"},
        {"\"q_heads\":4", "\"q_heads\":5", "q_heads"},
        {"\"q_heads\":4", "\"q_heads\":-4", "q_heads"},
        {"\"layers\":2,\"hidden\"", "\"layers\":0,\"hidden\"", "layers"},
        {"\"kind\":\"gqa\"", "\"kind\":\"linear\"", "kind"},
        {"\"hidden\":64", "\"hidden\":\"wide\"", "hidden"},
        {"\"intermediate\":128,", "", "intermediate"},
        {"\"name\":\"m\",", "", "name"},
        {"123456", "200000", "total_params"},
    };
    /* attention 2 x 64 x (64 x 2 + 64), dense 3 x 64 x 128, shared expert and router, 8 experts, head, embedding */
    double params = 2 * 64 * 192 + 3 * 64 * 128 + 64 * (3 * 32 + 8) + 8 * 3 * 64 * 32 + 2 * 64 * 100;
    char total[32];
    struct sy_card c;
    struct sy_err err;
    snprintf(total, sizeof total, "%.0f", params);
    char *right = changed(model, "123456", total);
    if (sy_card_read(env(), "m", right, strlen(right), &c, &err)) fail_msg("%s", err.msg);
    assert_true(sy_profile_params(&c.profile) == params);
    assert_true(sy_profile_active(&c.profile) == params - 6 * 3 * 64 * 32 - 64 * 100);
    for (size_t i = 0; i < SY_COUNT(wrong); i++) {
        char *s = changed(i == SY_COUNT(wrong) - 1 ? model : right, wrong[i][0], wrong[i][1]);
        memset(&err, 0, sizeof err);
        assert_int_equal(sy_card_read(env(), "m", s, strlen(s), &c, &err), SY_EFORMAT);
        if (!strstr(err.msg, wrong[i][2])) fail_msg("'%s' does not name '%s'", err.msg, wrong[i][2]);
        test_free(s);
    }
    test_free(right);
}

static sy_status write_and_open(const char *text, struct sy_prices *out, struct sy_err *err)
{
    char path[] = "/tmp/systole_prices_XXXXXX.json";
    int fd = mkstemps(path, 5);
    FILE *f = fdopen(fd, "w");
    fputs(text, f);
    fclose(f);
    sy_status st = sy_prices_open(env(), path, out, err);
    remove(path);
    return st;
}

static void prices(void **state)
{
    (void)state;
    struct sy_prices p;
    struct sy_err err;
    assert_int_equal(write_and_open("{\"name\":\"mine\",\"chip_hour\":{\"b200\":2.5}}", &p, &err), SY_OK);
    assert_true(sy_price_of(&p, "b200") == 2.5 && sy_price_of(&p, "h100") == 0);
    assert_int_equal(write_and_open("{\"chip_hour\":{\"b200\":0}}", &p, &err), SY_EFORMAT);
    assert_non_null(strstr(err.msg, "b200"));
    assert_int_equal(write_and_open("{\"chip_hour\":{}}", &p, &err), SY_EFORMAT);
    assert_int_equal(write_and_open("{\"chip_hour\":[1]}", &p, &err), SY_EFORMAT);
    assert_true(sy_usd_per_mtok(12, 1240) > 2.68 && sy_usd_per_mtok(12, 1240) < 2.70); /* the published $2.69 */
}

static void points(void **state)
{
    (void)state;
    static const char text[] = "{\"points\":[{\"id\":\"a\",\"hw\":\"h200\",\"chips\":8,\"model\":\"dsr1\","
                               "\"precision\":\"fp8\",\"isl\":8192,\"osl\":1024,"
                               "\"random_range_ratio\":0.8,\"conc\":4,\"parallel\":{\"tp\":8},\"metrics\":{\"tput_"
                               "per_gpu\":400,\"median_intvty\":100}}]}";
    static const char *const wrong[][2] = {{"400", "-1"},
                                           {"\"isl\":8192", "\"isl\":0"},
                                           {"\"conc\":4", "\"conc\":0"},
                                           {"\"metrics\":{", "\"metric\":{"},
                                           {"[{", "{"}};
    struct sy_points p = {0};
    struct sy_err err;
    if (sy_points_text(env(), "here", text, sizeof text - 1, NULL, &p, &err)) fail_msg("%s", err.msg);
    assert_int_equal(p.n, 1);
    assert_string_equal(p.at[0].why_not, "");
    assert_true(p.at[0].metric[SY_METRIC_TPUT] == 400 && p.at[0].metric[SY_METRIC_TPOT] == 0.01);
    sy_points_release(&p);
    char *s = changed(text, "\"tp\":8", "\"tp\":4");
    assert_int_equal(sy_points_text(env(), "here", s, strlen(s), NULL, &p, &err), SY_OK);
    assert_non_null(strstr(p.at[0].why_not, "layout")); /* kept, and it says why it cannot be simulated */
    test_free(s);
    sy_points_release(&p);
    for (size_t i = 0; i < SY_COUNT(wrong); i++) {
        s = changed(text, wrong[i][0], wrong[i][1]);
        assert_int_equal(sy_points_text(env(), "here", s, strlen(s), NULL, &p, &err), SY_EFORMAT);
        assert_non_null(strstr(err.msg, "here"));
        test_free(s);
        sy_points_release(&p);
    }
    if (sy_points_own(env(), &p, &err)) fail_msg("%s", err.msg);
    assert_true(p.n >= 240);
    sy_points_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shipped), cmocka_unit_test(aliases), cmocka_unit_test(chips),
        cmocka_unit_test(models),  cmocka_unit_test(prices),  cmocka_unit_test(points),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
