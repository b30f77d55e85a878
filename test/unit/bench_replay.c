/* Runs that were recorded come out the same again, step for step; a changed option is noticed, and where. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/rng.h"
#include "bench/replay.h"
#include "checkpoint_util.h"

static const char model[] = "test/golden/models/llama";
enum { CTX = 160, N_REQUEST = 24 };

/* ---- a recorded run ------------------------------------------------------------------------------------------ */

struct dice {
    uint64_t seed, n;
};
static int roll(struct dice *d, int n) { return (int)(sy_rng_u64(d->seed, d->n++) % (uint64_t)n); }

static void on_row(void *ctx, int32_t pos, const float *row, int32_t n) { (void)ctx, (void)pos, (void)row, (void)n; }

static void ask(struct sy_engine *e, struct dice *d, uint64_t *id)
{
    int32_t prompt[CTX], n_vocab = sy_engine_plan(e)->info.n_vocab, n = 1 + roll(d, 100), stop[3];
    int family = roll(d, 3); /* prompts of a family begin alike */
    for (int32_t i = 0; i < n; i++)
        prompt[i] = (int32_t)(sy_rng_u64(i < 40 ? (uint64_t)family : d->n, (uint64_t)i) % (uint64_t)n_vocab);
    for (int i = 0; i < 3; i++) stop[i] = roll(d, n_vocab);
    struct sy_bias bias = {roll(d, n_vocab), 3};
    struct sy_request r = {.prompt = prompt,
                           .n_prompt = n,
                           .n_max = 1 + roll(d, 50),
                           .n_sample = 1 + roll(d, 4) / 2,
                           .priority = roll(d, 5) == 0,
                           .cache_domain = UINT64_MAX - (uint64_t)roll(d, 2),
                           .no_cache_read = roll(d, 6) == 0,
                           .n_min = roll(d, 3) == 0 ? 5 : 0,
                           .sampling = {.n_logprob = -1}};
    if (roll(d, 2))
        r.sampling = (struct sy_sampling){.temperature = 0.9f,
                                          .top_p = 0.8f,
                                          .seed = UINT64_MAX - (uint64_t)roll(d, 99),
                                          .repeat_penalty = 1.2f,
                                          .bias = &bias,
                                          .n_bias = roll(d, 2),
                                          .n_logprob = 2};
    if (roll(d, 3) == 0) {
        r.stop_id = stop;
        r.n_stop_id = 3;
    }
    if (roll(d, 4) == 0) {
        r.on_logits = on_row;
        r.logits_from = roll(d, n);
        if (roll(d, 2)) {
            r.n_max = 0;
            r.n_sample = 1;
        }
    }
    if (roll(d, 5) == 0) r.deadline_ns = sy_now_ns(sy_env_default()) + (uint64_t)roll(d, 4) * 1000000;
    struct sy_err err;
    if (sy_engine_submit(e, &r, id, &err)) fail_msg("%s", err.msg);
}

/* Returns how often a sequence had to make room. */
static uint64_t record(const struct sy_engine_opt *o, uint64_t seed)
{
    struct sy_engine *e;
    struct sy_err err;
    struct dice d = {seed, 0};
    uint64_t id[N_REQUEST];
    int asked = 0;
    if (sy_engine_new(sy_env_default(), o, &e, &err)) fail_msg("%s", err.msg);
    for (bool worked = true; worked || asked < N_REQUEST;) {
        while (asked < N_REQUEST && roll(&d, 3)) ask(e, &d, &id[asked++]);
        if (asked && roll(&d, 12) == 0) sy_engine_cancel(e, id[roll(&d, asked)]);
        if (asked && roll(&d, 8) == 0) sy_engine_stop(e, id[roll(&d, asked)], roll(&d, 2));
        if (sy_engine_step(e, &worked, &err)) fail_msg("%s", err.msg);
    }
    struct sy_engine_stats s = sy_engine_stats(e);
    sy_engine_free(e);
    return o->swap_bytes ? s.n_preempt_swap : s.n_preempt_recompute;
}

static struct sy_engine_opt options(const char *trace, int kind)
{
    struct sy_engine_opt o = {
        .model = model, .ctx_len = CTX, .block_len = 8, .seq_max = 6, .batch_tok_max = 48, .trace = trace};
    o.backend_opt.n_thread = 1;
    if (kind == 1) o.gap_ms_max = 0.4;
    if (kind == 2) o.scheduling = SY_STATIC;
    if (kind == 3) o.no_prefix_cache = true;
    if (kind < 4) return o;
    struct sy_engine *e; /* tight: a sequence and a little more; the same with room to swap */
    struct sy_engine_opt plain = o;
    plain.trace = NULL;
    assert_int_equal(sy_engine_new(sy_env_default(), &plain, &e, NULL), SY_OK);
    int64_t block = sy_engine_plan(e)->kv_bytes / sy_engine_plan(e)->n_block;
    sy_engine_free(e);
    o.kv_bytes_max = block * (CTX / o.block_len + 5);
    if (kind == 5) o.swap_bytes = block * 12;
    return o;
}

static struct sy_replay replay(const char *trace, void (*change)(struct sy_engine_opt *))
{
    struct sy_trace *t;
    struct sy_err err;
    struct sy_replay r;
    if (sy_trace_open(sy_env_default(), trace, &t, &err)) fail_msg("%s", err.msg);
    struct sy_engine_opt o = {.model = model};
    o.backend_opt.n_thread = 2;
    sy_trace_options(t, &o);
    if (change) change(&o);
    if (sy_replay_run(sy_env_default(), t, &o, NULL, &r, &err)) fail_msg("%s", err.msg);
    sy_trace_close(t);
    return r;
}

static void larger_blocks(struct sy_engine_opt *o) { o->block_len = 16; }
static void smaller_chunks(struct sy_engine_opt *o) { o->batch_tok_max = 31; }
static void fewer_sequences(struct sy_engine_opt *o) { o->seq_max = 3; }

static void same_again(void **state)
{
    (void)state;
    char folder[64], path[100];
    make_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/trace.jsonl", folder);
    uint64_t n_preempt[6] = {0};
    for (int kind = 0; kind < 6; kind++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            struct sy_engine_opt o = options(path, kind);
            n_preempt[kind] += record(&o, seed * 10 + (uint64_t)kind);
            struct sy_replay r = replay(path, NULL);
            if (!r.same) fail_msg("kind %d, seed %d, step %d: %s", kind, (int)seed, (int)r.step, r.difference);
            assert_int_equal(r.n_request, N_REQUEST);
            assert_true(r.n_step > 20 && r.n_token > 400 && r.recorded_s > 0 && r.now_s > 0);
        }
    assert_true(n_preempt[4] > 0 && n_preempt[5] > 0);
    remove_folder(folder);
}

static void changes_are_noticed(void **state)
{
    (void)state;
    char folder[64], path[100];
    make_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/trace.jsonl", folder);
    struct sy_engine_opt o = options(path, 0);
    record(&o, 7);
    void (*const change[])(struct sy_engine_opt *) = {larger_blocks, smaller_chunks, fewer_sequences};
    for (size_t i = 0; i < SY_COUNT(change); i++) {
        struct sy_replay r = replay(path, change[i]);
        assert_false(r.same);
        assert_true(strstr(r.difference, "recorded") && strstr(r.difference, "now"));
        assert_int_equal(r.n_step, r.step + 1); /* steps count from 0 */
    }
    remove_folder(folder);
}

/* A record that a kill cut off is good up to where it was cut. */
static void cut_off(void **state)
{
    (void)state;
    char folder[64], path[100], *text;
    size_t n;
    make_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/trace.jsonl", folder);
    struct sy_engine_opt o = options(path, 0);
    record(&o, 3);
    assert_int_equal(sy_file_read(sy_env_default(), path, 1 << 24, &text, &n, NULL), SY_OK);
    for (int i = 1; i < 4; i++) {
        write_file(folder, "cut.jsonl", text, n * (size_t)i / 4);
        char cut[120];
        snprintf(cut, sizeof cut, "%s/cut.jsonl", folder);
        struct sy_replay r = replay(cut, NULL);
        if (!r.same) fail_msg("cut at %d/4, step %d: %s", i, (int)r.step, r.difference);
    }
    sy_delete(sy_env_default(), text);
    remove_folder(folder);
}

/* ---- malformed records --------------------------------------------------------------------------------------- */

#define HEAD                                                                                                         \
    "{\"trace\":1,\"model\":\"m\",\"ctx_len\":64,\"block_len\":8,\"seq_max\":2,\"batch_tok_max\":16,"                \
    "\"score_row_max\":0,\"wait_max\":0,\"kv_bytes_max\":0,\"swap_bytes\":0,\"gap_ms_max\":0}\n"
#define ARRIVE "{\"arrive\":1,\"t\":5,\"n_max\":3,\"prompt\":[1,2]}\n"

static void malformed(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "empty"},
        {"{}\n", "'trace'"},
        {"{\"trace\":2}\n", "'trace'"},
        {"[1]\n", "expected an object"},
        {"nonsense\n", "trace line 1"},
        {HEAD "{\"what\":1}\n", "trace line 2: expected"},
        {HEAD "{\"arrive\":1,\"t\":5,\"n_max\":3,\"prompt\":[]}\n", "'prompt'"},
        {HEAD "{\"arrive\":1,\"t\":5,\"n_max\":3}\n", "'prompt'"},
        {HEAD "{\"arrive\":1,\"t\":5,\"n_max\":-3,\"prompt\":[1]}\n", "'n_max'"},
        {HEAD "{\"arrive\":1,\"t\":5,\"n_max\":3,\"n_sample\":1000000000,\"prompt\":[1]}\n", "'n_sample'"},
        {HEAD ARRIVE ARRIVE, "ascend"},
        {HEAD "{\"end\":1,\"n_tok\":3}\n", "no such request"},
        {HEAD ARRIVE "{\"end\":1,\"sample\":1,\"n_tok\":3}\n", "'sample'"},
        {HEAD ARRIVE "{\"end\":1,\"n_tok\":6}\n", "'n_tok'"},
        {HEAD ARRIVE "{\"step\":0,\"t\":9,\"end\":8,\"seq\":[[1,0,2]]}\n", "'end'"},
        {HEAD ARRIVE "{\"step\":0,\"t\":9,\"end\":10,\"seq\":[]}\n", "'seq'"},
        {HEAD ARRIVE "{\"step\":0,\"t\":9,\"end\":10,\"seq\":[[2,0,2]]}\n", "'seq'"},
        {HEAD ARRIVE "{\"step\":0,\"t\":9,\"end\":10,\"seq\":[[1,1,2]]}\n", "'seq'"},
        {HEAD ARRIVE "{\"step\":0,\"t\":9,\"end\":10,\"seq\":[[1,0,0]]}\n", "'seq'"},
        {HEAD ARRIVE "{\"step\":0,\"t\":9,\"end\":10,\"seq\":[7]}\n", "'seq'"},
    };
    for (size_t i = 0; i < SY_COUNT(bad); i++) {
        struct sy_err err = {0};
        assert_int_equal(sy_trace_check(sy_env_default(), bad[i].text, strlen(bad[i].text), &err), SY_EFORMAT);
        if (!strstr(err.msg, bad[i].says)) fail_msg("case %d: %s", (int)i, err.msg);
    }
    const char good[] = HEAD ARRIVE
        "{\"step\":0,\"t\":9,\"end\":10,\"seq\":[[1,0,2]]}\n{\"end\":1,\"n_tok\":3,\"reason\":\"stop\"}\n";
    assert_int_equal(sy_trace_check(sy_env_default(), good, sizeof good - 1, NULL), SY_OK);
    struct sy_trace *t;
    struct sy_err err;
    assert_int_equal(sy_trace_open(sy_env_default(), "test/no-such-file", &t, &err), SY_EIO);
    assert_non_null(strstr(err.msg, "test/no-such-file"));
}

/* A record whose requests the model cannot take. */
static void another_model(void **state)
{
    (void)state;
    char folder[64], path[100];
    make_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/t", folder);
    write_text(folder, "t", HEAD "{\"arrive\":1,\"t\":5,\"n_max\":3,\"prompt\":[1,2000000000]}\n");
    struct sy_trace *t;
    struct sy_replay r;
    struct sy_err err;
    struct sy_engine_opt o = {.model = model};
    assert_int_equal(sy_trace_open(sy_env_default(), path, &t, &err), SY_OK);
    sy_trace_options(t, &o);
    assert_int_equal(sy_replay_run(sy_env_default(), t, &o, NULL, &r, &err), SY_EARG);
    assert_non_null(strstr(err.msg, "trace line 2: prompt: token 2000000000"));
    sy_trace_close(t);
    remove_folder(folder);
}

static void each_allocation_fails(void **state)
{
    (void)state;
    char folder[64], path[100];
    make_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/t", folder);
    write_text(folder, "t",
               HEAD ARRIVE "{\"step\":0,\"t\":9,\"end\":10,\"seq\":[[1,0,2]]}\n"
                           "{\"step\":1,\"t\":11,\"end\":12,\"seq\":[[1,0,1]]}\n"
                           "{\"end\":1,\"n_tok\":4,\"reason\":\"stop\"}\n");
    for (long i = 1;; i++) {
        struct counted c;
        struct sy_trace *t;
        struct sy_err err = {0};
        struct sy_replay r;
        counted_init(&c, i);
        sy_status st = sy_trace_open(&c.env, path, &t, &err);
        if (!st) {
            struct sy_engine_opt o = {.model = model};
            o.backend_opt.n_thread = 1;
            sy_trace_options(t, &o);
            st = sy_replay_run(&c.env, t, &o, NULL, &r, &err);
            sy_trace_close(t);
        }
        assert_int_equal(c.live, 0);
        if (c.n < i) {
            assert_int_equal(st, SY_OK);
            if (!r.same) fail_msg("%s", r.difference);
            break;
        }
        if (st != SY_ENOMEM) fail_msg("allocation %ld: status %d: %s", i, st, err.msg);
    }
    remove_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_again), cmocka_unit_test(changes_are_noticed), cmocka_unit_test(cut_off),
        cmocka_unit_test(malformed),  cmocka_unit_test(another_model),       cmocka_unit_test(each_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
