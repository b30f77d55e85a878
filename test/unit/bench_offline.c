/* The offline sweep and the comparison of batchings, over a small model: that figures are there and agree with each
 * other, not how large they are. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/offline.h"
#include "checkpoint_util.h"

static const char model[] = "test/golden/models/llama";

static sy_status sweep(const struct sy_env *env, const struct sy_offline_opt *o, struct sy_offline_row *row,
                       double *bytes_s, struct sy_engine_opt e, struct sy_err *err)
{
    struct sy_engine *engine = NULL;
    e.model = model;
    e.backend_opt.n_thread = 1;
    sy_status st = sy_offline_plan(o, &e, err);
    if (!st) st = sy_engine_new(env, &e, &engine, err);
    if (!st) st = sy_offline_run(env, engine, o, row, bytes_s, err);
    sy_engine_free(engine);
    return st;
}

static void on_progress(void *ctx, double done)
{
    double *last = ctx;
    assert_true(done >= *last && done <= 1 + 1e-9);
    *last = done;
}

static void figures(void **state)
{
    (void)state;
    static const int32_t batch[] = {1, 3, 8};
    double last = 0, bytes_s = 0;
    struct sy_offline_opt o = {.batch = batch,
                               .n_batch = 3,
                               .n_in = 50,
                               .n_out = 12,
                               .n_repeat = 2,
                               .seed = 4,
                               .watch = {on_progress, NULL, &last}};
    for (int kind = 0; kind < 3; kind++) {
        struct sy_offline_row row[3];
        struct sy_err err;
        struct sy_engine_opt e = {.block_len = kind == 1 ? 16 : 32,
                                  .batch_tok_max = kind == 1 ? 24 : 512,
                                  .scheduling = kind == 2 ? SY_STATIC : SY_CONTINUOUS};
        last = 0;
        if (sweep(sy_env_default(), &o, row, &bytes_s, e, &err)) fail_msg("%s", err.msg);
        assert_true(fabs(last - 1) < 1e-9 && bytes_s > 0);
        for (int i = 0; i < 3; i++) {
            const struct sy_offline_row *r = &row[i];
            assert_int_equal(r->batch, batch[i]);
            assert_true(r->prefill_tok_s > 0 && r->ttft_ms > 0 && r->ttft_ms <= r->prefill_ms + 1e-9);
            assert_true(fabs(r->prefill_tok_s - r->batch * 50 / r->prefill_ms * 1e3) < 1e-6 * r->prefill_tok_s);
            assert_true(fabs(r->decode_tok_s - r->batch / r->tpot_ms * 1e3) < 1e-6 * r->decode_tok_s);
            assert_true(r->weight_bytes > 0 && r->kv_bytes > 0);
            double share = (r->weight_bytes + r->kv_bytes) / (r->tpot_ms / 1e3) / bytes_s;
            assert_true(fabs(share - r->bandwidth_share) < 1e-6 * share);
        }
        /* Keys and values grow with the batch; weights are read once for all. */
        assert_true(row[1].kv_bytes > 2.8 * row[0].kv_bytes && row[1].kv_bytes < 3.4 * row[0].kv_bytes);
        assert_true(fabs(row[2].weight_bytes - row[0].weight_bytes) < 1);
    }
}

/* Layers with a sliding window read no more of a long sequence than of one that fills the window. */
static void windows(void **state)
{
    (void)state;
    static const int32_t batch[] = {1};
    double kv[2];
    for (int i = 0; i < 2; i++) {
        struct sy_offline_opt o = {.batch = batch, .n_batch = 1, .n_in = i ? 60 : 30, .n_out = 3, .n_repeat = 1};
        struct sy_engine_opt e = {.model = "test/golden/models/gemma3", .block_len = 8, .batch_tok_max = 64};
        struct sy_engine *engine;
        struct sy_offline_row row;
        struct sy_err err;
        double bytes_s;
        assert_int_equal(sy_offline_plan(&o, &e, &err), SY_OK);
        if (sy_engine_new(sy_env_default(), &e, &engine, &err)) fail_msg("%s", err.msg);
        assert_int_equal(sy_offline_run(sy_env_default(), engine, &o, &row, &bytes_s, &err), SY_OK);
        kv[i] = row.kv_bytes;
        sy_engine_free(engine);
    }
    assert_true(kv[1] > 1.05 * kv[0] && kv[1] < 1.7 * kv[0]);
}

static void no_room(void **state)
{
    (void)state;
    static const int32_t batch[] = {8};
    struct sy_offline_opt o = {.batch = batch, .n_batch = 1, .n_in = 50, .n_out = 12, .n_repeat = 1};
    struct sy_engine_opt e = {.block_len = 16, .batch_tok_max = 512};
    struct sy_offline_row row;
    struct sy_engine *engine;
    struct sy_err err;
    double bytes_s;
    e.model = model;
    assert_int_equal(sy_offline_plan(&o, &e, &err), SY_OK);
    assert_int_equal(sy_engine_new(sy_env_default(), &e, &engine, &err), SY_OK);
    const struct sy_engine_plan *p = sy_engine_plan(engine);
    e.kv_bytes_max = p->kv_bytes / p->n_block * 20;
    sy_engine_free(engine);
    assert_int_equal(sweep(sy_env_default(), &o, &row, &bytes_s, e, &err), SY_ENOMEM);
    assert_non_null(strstr(err.msg, "--kv-memory"));
    o.n_in = 1 << 30;
    assert_int_equal(sweep(sy_env_default(), &o, &row, &bytes_s, e, &err), SY_EARG);
}

static bool at_once(void *ctx)
{
    (void)ctx;
    return true;
}

static void is_stopped(void **state)
{
    (void)state;
    static const int32_t batch[] = {2};
    struct sy_offline_opt o = {
        .batch = batch, .n_batch = 1, .n_in = 5, .n_out = 12, .n_repeat = 1, .watch = {.stop = at_once}};
    struct sy_offline_row row;
    struct sy_err err;
    double bytes_s;
    assert_int_equal(sweep(sy_env_default(), &o, &row, &bytes_s,
                           (struct sy_engine_opt){.block_len = 32, .batch_tok_max = 64}, &err),
                     SY_EIO);
}

static void batchings(void **state)
{
    (void)state;
    struct sy_engine_opt e = {.model = model, .block_len = 16, .batch_tok_max = 64};
    struct sy_mixed_opt o = {
        .n_request = 12, .seq_max = 4, .n_in = 30, .n_out = 20, .range = 0.1, .n_repeat = 2, .seed = 1};
    struct sy_mixed m;
    struct sy_err err;
    e.backend_opt.n_thread = 1;
    if (sy_mixed_run(sy_env_default(), &e, &o, &m, &err)) fail_msg("%s", err.msg);
    for (int i = 0; i < 2; i++)
        assert_true(m.out_tok_s[i] > 0 && m.request_s[i] > 0 && m.seconds[i] > 0 && m.mean_e2e_s[i] > 0 &&
                    m.mean_e2e_s[i] <= m.seconds[i] * 1.5);
    assert_true(m.gain > -1);
}

static void each_allocation_fails(void **state)
{
    (void)state;
    static const int32_t batch[] = {2};
    struct sy_offline_opt o = {.batch = batch, .n_batch = 1, .n_in = 3, .n_out = 2, .n_repeat = 1};
    for (long i = 1;; i++) {
        struct counted c;
        struct sy_offline_row row;
        struct sy_err err = {0};
        double bytes_s;
        counted_init(&c, i);
        sy_status st =
            sweep(&c.env, &o, &row, &bytes_s, (struct sy_engine_opt){.block_len = 32, .batch_tok_max = 64}, &err);
        assert_int_equal(c.live, 0);
        if (c.n < i && st) fail_msg("%s", err.msg);
        if (c.n < i) {
            assert_int_equal(st, SY_OK);
            break;
        }
        if (st != SY_ENOMEM && st != SY_OK) fail_msg("allocation %ld: %s", i, err.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures),    cmocka_unit_test(windows),   cmocka_unit_test(no_room),
        cmocka_unit_test(is_stopped), cmocka_unit_test(batchings), cmocka_unit_test(each_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
