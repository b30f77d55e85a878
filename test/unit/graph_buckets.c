/* Which static shapes are decided, and which one a step gets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/rng.h"
#include "graph/buckets.h"

static bool is_decode(struct sy_shape s) { return s.tok == s.seq; }

static void check_plan(struct sy_shape max, int32_t block_len)
{
    struct sy_buckets b;
    sy_buckets_plan(max, block_len, &b);
    assert_in_range(b.n, 2, SY_BUCKET_MAX);
    for (int32_t i = 0; i < b.n; i++) {
        struct sy_shape s = b.shape[i];
        assert_true(s.tok >= 1 && s.seq >= 1 && s.seq <= max.seq && s.block >= 1 && s.block <= max.block);
        assert_true(s.out >= 1 && (s.out <= max.out || s.out <= s.seq) && s.tok >= s.seq);
        for (int32_t k = 0; k < i; k++) /* no two are the same */
            assert_false(b.shape[k].tok == s.tok && b.shape[k].seq == s.seq && b.shape[k].block == s.block);
    }
    struct sy_shape all = {max.seq, max.seq, max.block, max.seq, 0};
    assert_true(sy_buckets_pick(&b, all) >= 0);
}

static void test_plans(void **state)
{
    (void)state;
    const int32_t some[] = {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 256, 512, 1000, 4096};
    for (size_t t = 0; t < SY_COUNT(some); t++)
        for (size_t s = 0; s < SY_COUNT(some) && some[s] <= some[t]; s++)
            for (size_t k = 0; k < SY_COUNT(some); k++)
                check_plan((struct sy_shape){some[t], some[s], some[k], some[s] > 64 ? some[s] : 64, 0}, 32);
}

/* Whatever fits in the largest step finds a bucket that holds it, and no earlier one would have. */
static void test_picks(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        struct sy_shape max = {0}, need = {0};
        max.seq = 1 + (int32_t)(sy_rng_u64(1, 8 * i) % 300);
        max.tok = max.seq + (int32_t)(sy_rng_u64(1, 8 * i + 1) % 3000);
        max.block = 1 + (int32_t)(sy_rng_u64(1, 8 * i + 2) % 512);
        max.out = max.seq > 64 ? max.seq : 64;
        need.seq = 1 + (int32_t)(sy_rng_u64(1, 8 * i + 3) % (uint64_t)max.seq);
        need.tok = need.seq + (int32_t)(sy_rng_u64(1, 8 * i + 4) % (uint64_t)(max.tok - need.seq + 1));
        need.block = 1 + (int32_t)(sy_rng_u64(1, 8 * i + 5) % (uint64_t)max.block);
        int32_t rows = need.tok < max.out ? need.tok : max.out;
        need.out = (int32_t)(sy_rng_u64(1, 8 * i + 6) % (uint64_t)(rows + 1));
        struct sy_buckets b;
        sy_buckets_plan(max, 32, &b);
        int32_t at = sy_buckets_pick(&b, need);
        assert_in_range(at, 0, b.n - 1);
        struct sy_shape s = b.shape[at];
        assert_true(s.tok >= need.tok && s.seq >= need.seq && s.block >= need.block && s.out >= need.out);
        assert_true(!is_decode(s) || need.tok == need.seq);
    }
}

/* The small ones that matter: one, four and sixteen sequences decode in steps of their own. */
static void test_small(void **state)
{
    (void)state;
    struct sy_buckets b;
    sy_buckets_plan((struct sy_shape){512, 64, 256, 64, 0}, 32, &b);
    const int32_t live[][2] = {{1, 1}, {2, 4}, {4, 4}, {5, 16}, {17, 64}, {64, 64}};
    for (size_t i = 0; i < SY_COUNT(live); i++) {
        int32_t n = live[i][0], at = sy_buckets_pick(&b, (struct sy_shape){n, n, 3, n, 0});
        assert_int_equal(b.shape[at].seq, live[i][1]);
        assert_true(is_decode(b.shape[at]) && b.shape[at].block == 64);
    }
    int32_t at = sy_buckets_pick(&b, (struct sy_shape){64, 64, 256, 64, 0});
    assert_int_equal(b.shape[at].block, 256);
    assert_int_equal(sy_buckets_pick(&b, (struct sy_shape){513, 3, 256, 1, 0}), -1);
    assert_int_equal(sy_buckets_pick(&b, (struct sy_shape){512, 64, 257, 64, 0}), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plans), cmocka_unit_test(test_picks),
                                       cmocka_unit_test(test_small)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
