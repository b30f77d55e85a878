/* The offline sweep and the comparison of batchings, over a small model: that figures are there and agree with each
 * other, not how large they are. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/peaks.h"
#include "bench/plot.h"
#include "checkpoint_util.h"

static const char model[] = "test/golden/models/llama";

static sy_status sweep(const struct sy_env *env, const struct sy_offline_opt *o, struct sy_offline_row *row,
                       struct sy_engine_opt e, struct sy_err *err)
{
    struct sy_engine *engine = NULL;
    e.model = model;
    e.backend_opt.n_thread = 1;
    sy_status st = sy_offline_plan(o, &e, err);
    if (!st) st = sy_engine_new(env, &e, &engine, err);
    if (!st) st = sy_offline_run(env, &engine, 1, o, row, err);
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
    double last = 0;
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
        if (sweep(sy_env_default(), &o, row, e, &err)) fail_msg("%s", err.msg);
        assert_true(fabs(last - 1) < 1e-9);
        for (int i = 0; i < 3; i++) {
            const struct sy_offline_row *r = &row[i];
            assert_int_equal(r->batch, batch[i]);
            assert_true(r->prefill_tok_s > 0 && r->ttft_ms > 0 && r->ttft_ms <= r->prefill_ms + 1e-9);
            assert_true(fabs(r->prefill_tok_s - r->batch * 50 / r->prefill_ms * 1e3) < 1e-6 * r->prefill_tok_s);
            assert_true(fabs(r->decode_tok_s - r->batch / r->tpot_ms * 1e3) < 1e-6 * r->decode_tok_s);
            assert_true(r->weight_bytes > 0 && r->kv_bytes > 0);
            double share = (r->weight_bytes + r->kv_bytes) / (r->tpot_ms / 1e3) / r->bytes_s;
            assert_true(r->bytes_s > 0 && r->n_thread == 1);
            assert_true(fabs(share - r->bandwidth_share) < 1e-6 * share);
        }
        /* Keys and values grow with the batch; weights are read once for all. */
        assert_true(row[1].kv_bytes > 2.8 * row[0].kv_bytes && row[1].kv_bytes < 3.4 * row[0].kv_bytes);
        assert_true(fabs(row[2].weight_bytes - row[0].weight_bytes) < 1);
    }
}

/* Two engines take turns on the same prompts; the first is what the other is compared with. */
static void engines_take_turns(void **state)
{
    (void)state;
    static const int32_t batch[] = {1, 4};
    struct sy_offline_opt o = {.batch = batch, .n_batch = 2, .n_in = 40, .n_out = 6, .n_repeat = 3};
    struct sy_engine *e[2];
    struct sy_offline_row row[4];
    struct sy_err err;
    if (sy_peaks_best(sy_env_default(), 1, SY_COMPUTE_F32, &o.ops_s, &err)) fail_msg("%s", err.msg);
    assert_true(o.ops_s > 1e7);
    o.ops_s = 1e6; /* then arithmetic is the limit, and not memory */
    for (int i = 0; i < 2; i++) {
        struct sy_engine_opt opt = {.model = model, .block_len = i ? 8 : 32, .batch_tok_max = 64};
        opt.backend_opt.n_thread = 1;
        opt.backend_opt.compute = SY_COMPUTE_F32;
        assert_int_equal(sy_offline_plan(&o, &opt, &err), SY_OK);
        if (sy_engine_new(sy_env_default(), &opt, &e[i], &err)) fail_msg("%s", err.msg);
    }
    if (sy_offline_run(sy_env_default(), e, 2, &o, row, &err)) fail_msg("%s", err.msg);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(row[i].batch, batch[i % 2]);
        assert_true(row[i].prefill_tok_s > 0 && row[i].decode_tok_s > 0);
        if (i < 2) assert_true(row[i].prefill_ratio == 1 && row[i].decode_ratio == 1);
        else assert_true(row[i].prefill_ratio > 0 && row[i].decode_ratio > 0);
        double by_bytes = row[i].batch * row[i].bytes_s / (row[i].weight_bytes + row[i].kv_bytes);
        assert_true(row[i].decode_limit_tok_s > 0 && row[i].decode_limit_tok_s < by_bytes);
        assert_true(row[i].prefill_limit_tok_s > 0);
    }
    /* A token costs the same in any batch. */
    assert_true(fabs(row[1].decode_limit_tok_s / row[0].decode_limit_tok_s - 1) < 1e-6);
    o.ops_s = 0;
    if (sy_offline_run(sy_env_default(), e, 1, &o, row, &err)) fail_msg("%s", err.msg);
    for (int i = 0; i < 2; i++) {
        double by_bytes = row[i].batch * row[i].bytes_s / (row[i].weight_bytes + row[i].kv_bytes);
        assert_true(fabs(row[i].decode_limit_tok_s / by_bytes - 1) < 1e-6);
    }
    sy_engine_free(e[0]);
    sy_engine_free(e[1]);
}

static size_t times(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++) n++;
    return n;
}

/* What grows is drawn from left to right, whatever order the rows come in; the other dimensions name the lines. */
static void drawn(void **state)
{
    (void)state;
    static const int32_t len[] = {512, 128, 2048}, batch[] = {1, 8};
    struct sy_offline_row row[6];
    struct sy_buf b;
    for (int i = 0; i < 6; i++)
        row[i] = (struct sy_offline_row){.batch = batch[i / 3],
                                         .n_in = len[i % 3],
                                         .n_thread = 2,
                                         .prefill_tok_s = 1000,
                                         .decode_tok_s = 100.0 * batch[i / 3],
                                         .decode_limit_tok_s = 250.0 * batch[i / 3]};
    sy_buf_init(&b, sy_env_default(), 0);
    sy_offline_svg(row, 6, "a < b", &b);
    assert_false(b.failed);
    assert_non_null(strstr(b.at, "a &lt; b"));
    assert_non_null(strstr(b.at, ">batch 1<"));
    assert_non_null(strstr(b.at, ">batch 8<"));
    assert_non_null(strstr(b.at, "tokens of the prompt"));
    assert_null(strstr(b.at, "threads<")); /* one number of threads names no line */
    assert_int_equal(times(b.at, "<circle class=\"d\""), 12);
    assert_non_null(strstr(b.at, "batch 8, prompt 128, 2 threads: 800 tokens/s, 40 % of 2000"));
    double last = 0;
    const char *at = strstr(b.at, " d=\"M"); /* the legend's */
    for (at = strstr(at + 1, " d=\"M"); at; at = strstr(at + 1, " d=\"M")) {
        last = 0;
        for (const char *p = at + 4; *p == 'M' || *p == 'L'; p += strcspn(p + 1, "ML\"") + 1) {
            double x = strtod(p + 1, NULL);
            assert_true(x > last && x < 860);
            last = x;
        }
        assert_true(last > 0);
    }
    /* Of one row there is a picture too, and of none. */
    for (size_t n = 0; n < 2; n++) {
        sy_buf_clear(&b);
        sy_offline_svg(row, n, "few", &b);
        assert_int_equal(times(b.at, "<circle class=\"d\""), 2 * n);
        assert_null(strstr(b.at, "nan"));
        assert_null(strstr(b.at, "inf"));
    }
    sy_buf_release(&b);
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
        assert_int_equal(sy_offline_plan(&o, &e, &err), SY_OK);
        if (sy_engine_new(sy_env_default(), &e, &engine, &err)) fail_msg("%s", err.msg);
        assert_int_equal(sy_offline_run(sy_env_default(), &engine, 1, &o, &row, &err), SY_OK);
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
    e.model = model;
    assert_int_equal(sy_offline_plan(&o, &e, &err), SY_OK);
    assert_int_equal(sy_engine_new(sy_env_default(), &e, &engine, &err), SY_OK);
    const struct sy_engine_plan *p = sy_engine_plan(engine);
    e.kv_bytes_max = p->kv_bytes / p->n_block * 20;
    sy_engine_free(engine);
    assert_int_equal(sweep(sy_env_default(), &o, &row, e, &err), SY_ENOMEM);
    assert_non_null(strstr(err.msg, "--kv-memory"));
    o.n_in = 1 << 30;
    assert_int_equal(sweep(sy_env_default(), &o, &row, e, &err), SY_EARG);
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
    assert_int_equal(
        sweep(sy_env_default(), &o, &row, (struct sy_engine_opt){.block_len = 32, .batch_tok_max = 64}, &err),
        SY_EIO);
}

static void batchings(void **state)
{
    (void)state;
    struct sy_engine_opt e[2] = {{.model = model, .block_len = 16, .batch_tok_max = 64}};
    struct sy_mixed_opt o = {
        .n_request = 12, .seq_max = 4, .n_in = 30, .n_out = 20, .range = 0.1, .n_repeat = 2, .seed = 1};
    struct sy_mixed m;
    struct sy_err err;
    e[0].backend_opt.n_thread = 1;
    e[1] = e[0];
    e[1].scheduling = SY_STATIC;
    if (sy_mixed_run(sy_env_default(), e, &o, &m, &err)) fail_msg("%s", err.msg);
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
        counted_init(&c, i);
        sy_status st = sweep(&c.env, &o, &row, (struct sy_engine_opt){.block_len = 32, .batch_tok_max = 64}, &err);
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
        cmocka_unit_test(figures),
        cmocka_unit_test(windows),
        cmocka_unit_test(no_room),
        cmocka_unit_test(is_stopped),
        cmocka_unit_test(engines_take_turns),
        cmocka_unit_test(drawn),
        cmocka_unit_test(batchings),
        cmocka_unit_test(each_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
