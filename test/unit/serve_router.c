/* The router's policy: who takes a request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "serve/router.h"

static void roles(void **state)
{
    (void)state;
    struct sy_route_backend b[3] = {
        {SY_ROUTE_ONLINE, true, false, 0}, {SY_ROUTE_BATCH, true, false, 0}, {SY_ROUTE_ONLINE, true, false, 0}};
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(sy_route_pick(b, 3, SY_ROUTE_BATCH, i), 1);
        assert_int_not_equal(sy_route_pick(b, 3, SY_ROUTE_ONLINE, i), 1);
    }
    b[1].healthy = false; /* the other kind serves */
    assert_int_not_equal(sy_route_pick(b, 3, SY_ROUTE_BATCH, 1), 1);
    b[0].draining = b[2].draining = true;
    assert_int_equal(sy_route_pick(b, 3, SY_ROUTE_ONLINE, 1), -1);
    b[1].healthy = true;
    assert_int_equal(sy_route_pick(b, 3, SY_ROUTE_ONLINE, 1), 1);
    assert_int_equal(sy_route_pick(b, 0, SY_ROUTE_ONLINE, 1), -1);
}

/* The same beginning goes to the same engine, another engine's loss moves only what it held, and nobody is flooded.
 */
static void affinity(void **state)
{
    (void)state;
    struct sy_route_backend b[4] = {{0}};
    int32_t count[4] = {0}, where[200];
    for (int i = 0; i < 4; i++) b[i] = (struct sy_route_backend){SY_ROUTE_ONLINE, true, false, 0};
    for (int i = 0; i < 200; i++)
        count[where[i] = sy_route_pick(b, 4, SY_ROUTE_ONLINE, sy_rng_u64(1, (uint64_t)i))]++;
    for (int i = 0; i < 4; i++) assert_in_range(count[i], 25, 80);
    b[2].healthy = false;
    for (int i = 0; i < 200; i++) {
        int32_t now = sy_route_pick(b, 4, SY_ROUTE_ONLINE, sy_rng_u64(1, (uint64_t)i));
        if (where[i] != 2) assert_int_equal(now, where[i]);
        else assert_int_not_equal(now, 2);
    }
    b[2].healthy = true;
    for (int i = 0; i < 400; i++) b[sy_route_pick(b, 4, SY_ROUTE_ONLINE, 7)].n_open++; /* one prefix for all */
    for (int i = 0; i < 4; i++) assert_in_range(b[i].n_open, 20, 127);
}

static void classes(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        enum sy_route_role role;
    } cases[] = {
        {"{\"prompt\":\"a\"}", SY_ROUTE_ONLINE},
        {"{\"prompt\":\"a\",\"priority\":1}", SY_ROUTE_BATCH},
        {"{\"prompt\":\"a\",\"priority\":0}", SY_ROUTE_ONLINE},
        {"{\"prompt\":\"a\",\"service_tier\":\"flex\"}", SY_ROUTE_BATCH},
        {"{\"prompt\":\"a\",\"service_tier\":\"auto\"}", SY_ROUTE_ONLINE},
        {"not json", SY_ROUTE_ONLINE},
        {"", SY_ROUTE_ONLINE},
        {"[1]", SY_ROUTE_ONLINE},
    };
    uint64_t p, q;
    for (size_t i = 0; i < SY_COUNT(cases); i++)
        assert_int_equal(sy_route_classify(sy_env_default(), cases[i].body, strlen(cases[i].body), 64, &p),
                         cases[i].role);
    static const char a[] = "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"long ago\"}]}";
    static const char b[] =
        "{\"temperature\":0,\"messages\":[{\"role\":\"system\",\"content\":\"long ago, and more\"}]}";
    sy_route_classify(sy_env_default(), a, sizeof a - 1, 36, &p);
    sy_route_classify(sy_env_default(), b, sizeof b - 1, 36, &q);
    assert_true(p == q); /* only what is asked counts, and only its beginning */
    sy_route_classify(sy_env_default(), b, sizeof b - 1, 400, &q);
    assert_true(p != q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(roles),
        cmocka_unit_test(affinity),
        cmocka_unit_test(classes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
