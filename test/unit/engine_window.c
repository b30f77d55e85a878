/* Layers with a window: their blocks go back when no query sees them any more, prefixes are found all the same, and
 * answers are those of an engine that keeps everything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/engine.h"

enum { BLOCK = 4, GEN = 13, CTX = 512, CHUNK = 24, N_TOGETHER = 6 };

/* Some layers or all have a window, of 16 to 50 tokens. */
static const struct {
    const char *path;
    bool all;
} models[] = {{"test/golden/models/gemma3", false},
              {"test/golden/models/mistral", true},
              {"test/golden/models/gpt_oss", false},
              {"test/golden/models/phi3", true},
              {"test/golden/models/gemma3n", false}};

struct answer {
    int32_t id[GEN], n, n_cached;
    float logprob[GEN];
};

static void on_event(void *ctx, const struct sy_event *ev)
{
    struct answer *a = ctx;
    if (ev->id < 0) return;
    a->id[a->n] = ev->id;
    a->logprob[a->n++] = ev->logprob;
    a->n_cached = ev->n_cached;
}

static struct sy_engine *open_engine(const char *model, int32_t ctx, int32_t seqs, int64_t kv_bytes)
{
    struct sy_engine_opt o = {.model = model,
                              .ctx_len = ctx,
                              .block_len = BLOCK,
                              .batch_tok_max = CHUNK,
                              .seq_max = seqs,
                              .kv_bytes_max = kv_bytes};
    o.backend_opt.n_thread = 1;
    struct sy_engine *e;
    struct sy_err err;
    if (sy_engine_new(sy_env_default(), &o, &e, &err)) fail_msg("%s", err.msg);
    return e;
}

static void submit(struct sy_engine *e, const int32_t *prompt, int32_t n, struct answer *a)
{
    *a = (struct answer){0};
    struct sy_request r = {.prompt = prompt,
                           .n_prompt = n,
                           .n_max = GEN,
                           .ignore_eos = true,
                           .on_event = on_event,
                           .ctx = a,
                           .sampling = {.n_logprob = 0}};
    struct sy_err err;
    if (sy_engine_submit(e, &r, NULL, &err)) fail_msg("%s", err.msg);
}

/* The most blocks apart that were held at once. */
static int32_t run_all(struct sy_engine *e)
{
    struct sy_err err;
    int32_t most = 0;
    for (bool worked = true; worked;) {
        assert_int_equal(sy_engine_step(e, &worked, &err), SY_OK);
        sy_engine_verify(e);
        if (sy_engine_stats(e).apart_leased > most) most = sy_engine_stats(e).apart_leased;
    }
    struct sy_engine_stats s = sy_engine_stats(e);
    assert_int_equal(s.block_leased + s.apart_leased, 0);
    assert_int_equal(s.block_free + s.block_cached, s.block_total);
    return most;
}

static struct answer ask(struct sy_engine *e, const int32_t *prompt, int32_t n)
{
    struct answer a;
    submit(e, prompt, n, &a);
    (void)run_all(e);
    assert_int_equal(a.n, GEN);
    return a;
}

static void random_tokens(int32_t *tok, int32_t lo, int32_t hi, uint64_t seed)
{
    for (int32_t i = lo; i < hi; i++) tok[i] = (int32_t)(sy_rng_u64(seed, (uint64_t)i) % 320);
}

static void same(const struct answer *a, const struct answer *b)
{
    assert_memory_equal(a->id, b->id, sizeof a->id);
    assert_memory_equal(a->logprob, b->logprob, sizeof a->logprob);
}

struct long_answer {
    int32_t id[CTX], n;
};
static void on_long(void *ctx, const struct sy_event *ev)
{
    struct long_answer *a = ctx;
    if (ev->id >= 0) a->id[a->n++] = ev->id;
}

static void submit_long(struct sy_engine *e, int k, int32_t n_prompt, int32_t n, struct long_answer *a)
{
    int32_t prompt[CTX];
    random_tokens(prompt, 0, n_prompt, (uint64_t)k);
    a->n = 0;
    struct sy_request r = {.prompt = prompt,
                           .n_prompt = n_prompt,
                           .n_max = n,
                           .ignore_eos = true,
                           .on_event = on_long,
                           .ctx = a,
                           .sampling = {.n_logprob = -1, .temperature = (float)(k % 2), .seed = (uint64_t)k}};
    struct sy_err err;
    if (sy_engine_submit(e, &r, NULL, &err)) fail_msg("%s", err.msg);
}

/* What long contexts take: of layers with a window, what their windows take. */
static void dead_blocks_go_back(void **state)
{
    (void)state;
    for (size_t m = 0; m < SY_COUNT(models); m++) {
        struct sy_engine *e = open_engine(models[m].path, CTX, N_TOGETHER, 0);
        const struct sy_engine_plan *p = sy_engine_plan(e);
        int64_t whole = p->n_block * (p->block_bytes + p->apart_bytes);
        assert_true(p->n_apart > 0 && p->window > 0 && models[m].all == (p->block_bytes == 0));
        assert_int_equal(p->kv_bytes, p->n_block * p->block_bytes + p->n_apart * p->apart_bytes);
        assert_true(p->kv_bytes < whole);
        int32_t tok[CTX];
        struct answer a[N_TOGETHER];
        for (int k = 0; k < N_TOGETHER; k++) {
            random_tokens(tok, 0, CTX - GEN, (uint64_t)k);
            submit(e, tok, CTX - GEN, &a[k]);
        }
        int32_t most = run_all(e), window = (p->window - 1) / BLOCK + 2;
        print_message(
            "%s, %d sequences of %d tokens: %d blocks of %lld bytes and %d of %lld bytes (window %d), of which "
            "%d were held at most: %.0f %% of %lld bytes\n",
            models[m].path, N_TOGETHER, CTX, p->n_block, (long long)p->block_bytes, p->n_apart,
            (long long)p->apart_bytes, p->window, most, 100 * (double)p->kv_bytes / (double)whole, (long long)whole);
        assert_true(most <= N_TOGETHER * (window + 1) + CHUNK / BLOCK + 1);
        for (int k = 0; k < N_TOGETHER; k++) assert_int_equal(a[k].n, GEN);
        sy_engine_free(e);
    }
}

/* With a context that is not worth it, the same engine keeps every block. */
static void answers_are_the_same(void **state)
{
    (void)state;
    enum { SHORT = 77, N = SHORT - GEN };
    for (size_t m = 0; m < SY_COUNT(models); m++) {
        struct sy_engine *e = open_engine(models[m].path, CTX, N_TOGETHER, 0),
                         *keeps = open_engine(models[m].path, SHORT, 1, 0);
        assert_true(sy_engine_plan(e)->n_apart > 0 && sy_engine_plan(keeps)->n_apart == 0);
        int32_t tok[N_TOGETHER][N];
        struct answer a[N_TOGETHER];
        for (int k = 0; k < N_TOGETHER; k++) {
            random_tokens(tok[k], 0, N, (uint64_t)k);
            submit(e, tok[k], N, &a[k]);
        }
        (void)run_all(e);
        for (int k = 0; k < N_TOGETHER; k++) {
            struct answer b = ask(keeps, tok[k], N);
            same(&a[k], &b);
        }
        sy_engine_free(e);
        sy_engine_free(keeps);
    }
}

/* The second request of a prompt finds all whole blocks, and so does each turn of a conversation. */
static void prefixes_are_found(void **state)
{
    (void)state;
    for (size_t m = 0; m < SY_COUNT(models); m++) {
        struct sy_engine *e = open_engine(models[m].path, CTX, 1, 0);
        assert_true(sy_engine_plan(e)->n_apart > 0);
        int32_t tok[CTX], n = 201, before = n - 1;
        random_tokens(tok, 0, n, m);
        struct answer a = ask(e, tok, n);
        assert_int_equal(a.n_cached, 0);
        for (int turn = 0; turn < 6; turn++) {
            struct answer b = ask(e, tok, n);
            if (turn == 0) same(&a, &b);
            assert_int_equal(b.n_cached, before / BLOCK * BLOCK);
            memcpy(tok + n, b.id, sizeof b.id);
            before = n + GEN - 1; /* the last token's keys were never computed */
            n += GEN + 17;
            random_tokens(tok, n - 17, n, 100 + (uint64_t)turn);
        }
        struct sy_engine *fresh = open_engine(models[m].path, CTX, 1, 0);
        struct answer c = ask(e, tok, n), d = ask(fresh, tok, n);
        assert_true(c.n_cached > 0 && d.n_cached == 0);
        same(&c, &d);
        sy_engine_free(e);
        sy_engine_free(fresh);
    }
}

/* Prompts with one beginning: where the first window at its end is gone, the second leaves one for the third. */
static void common_prefix_is_found(void **state)
{
    (void)state;
    enum { SHARED = 200, ALL = 400 };
    for (size_t m = 0; m < SY_COUNT(models); m++) {
        struct sy_engine *e = open_engine(models[m].path, CTX, 1, 0);
        int32_t tok[CTX], cached[3];
        for (uint64_t k = 0; k < 3; k++) {
            random_tokens(tok, 0, SHARED, 7);
            random_tokens(tok, SHARED, ALL, 8 + k);
            cached[k] = ask(e, tok, ALL).n_cached;
        }
        assert_int_equal(cached[0], 0);
        assert_int_equal(cached[2], SHARED / BLOCK * BLOCK);
        sy_engine_free(e);
    }
}

/* A cap is kept: the smallest one that holds a sequence runs them all, one after the other if need be. */
static void cap_is_kept(void **state)
{
    (void)state;
    for (size_t m = 0; m < SY_COUNT(models); m++) {
        struct sy_engine *e = open_engine(models[m].path, CTX, N_TOGETHER, 0);
        int64_t all = sy_engine_plan(e)->kv_bytes, cap = all / 2;
        sy_engine_free(e);
        e = open_engine(models[m].path, CTX, N_TOGETHER, cap);
        const struct sy_engine_plan *p = sy_engine_plan(e);
        assert_true(p->kv_bytes <= cap && p->kv_bytes > cap / 2);
        int32_t tok[CTX];
        struct answer a[N_TOGETHER];
        for (int k = 0; k < N_TOGETHER; k++) {
            random_tokens(tok, 0, CTX - GEN, (uint64_t)k % 4);
            submit(e, tok, CTX - GEN, &a[k]);
        }
        (void)run_all(e);
        for (int k = 0; k < N_TOGETHER; k++) assert_int_equal(a[k].n, GEN);
        for (int k = 4; k < N_TOGETHER; k++) same(&a[k], &a[k % 4]);
        sy_engine_free(e);
        struct sy_engine_opt o = {.model = models[m].path,
                                  .ctx_len = CTX,
                                  .block_len = BLOCK,
                                  .batch_tok_max = CHUNK,
                                  .kv_bytes_max = all / 50};
        struct sy_err err;
        assert_int_equal(sy_engine_new(sy_env_default(), &o, &e, &err), SY_ENOMEM);
        assert_non_null(strstr(err.msg, "--kv-memory: one sequence of 512 tokens needs"));
    }
}

/* Short prompts, long answers: they outgrow a small cache together, and some wait in host memory or start again. */
static void preempted_is_the_same(void **state)
{
    (void)state;
    enum { SHORT = 128, N = 9 };
    for (size_t m = 0; m < 2 * SY_COUNT(models); m++) {
        const char *path = models[m / 2].path;
        if (models[m / 2].all) continue; /* nothing runs out */
        struct sy_engine *e = open_engine(path, SHORT, N_TOGETHER, 0), *alone = open_engine(path, CTX, 1, 0);
        struct sy_engine_opt o = {.model = path,
                                  .ctx_len = SHORT,
                                  .block_len = BLOCK,
                                  .batch_tok_max = CHUNK,
                                  .seq_max = N_TOGETHER,
                                  .kv_bytes_max = sy_engine_plan(e)->kv_bytes * 2 / 5};
        struct sy_err err;
        o.swap_bytes = m % 2 ? o.kv_bytes_max : 0;
        assert_true(sy_engine_plan(e)->n_apart > 0);
        sy_engine_free(e);
        if (sy_engine_new(sy_env_default(), &o, &e, &err)) fail_msg("%s", err.msg);
        struct long_answer a[N_TOGETHER], b;
        for (int k = 0; k < N_TOGETHER; k++) submit_long(e, k, N, SHORT - N, &a[k]);
        (void)run_all(e);
        struct sy_engine_stats s = sy_engine_stats(e);
        assert_true((m % 2 ? s.n_preempt_swap : s.n_preempt_recompute) > 0);
        for (int k = 0; k < N_TOGETHER; k++) {
            submit_long(alone, k, N, SHORT - N, &b);
            (void)run_all(alone);
            assert_int_equal(a[k].n, SHORT - N);
            assert_memory_equal(a[k].id, b.id, (SHORT - N) * sizeof *b.id);
        }
        sy_engine_free(e);
        sy_engine_free(alone);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dead_blocks_go_back), cmocka_unit_test(answers_are_the_same),
        cmocka_unit_test(prefixes_are_found),  cmocka_unit_test(common_prefix_is_found),
        cmocka_unit_test(cap_is_kept),         cmocka_unit_test(preempted_is_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
