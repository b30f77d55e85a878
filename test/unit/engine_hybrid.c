/* Prefix caching of models with recurrent states: what is found, from the second request on, and that what goes on
 * from a snapshot is what would have been computed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/engine.h"

enum { BLOCK = 8, GEN = 13, TOK = 400 };

static const char *const models[] = {"test/golden/models/lfm2",       "test/golden/models/mamba2",
                                     "test/golden/models/falcon_h1",  "test/golden/models/qwen3_5",
                                     "test/golden/models/nemotron_h", "test/golden/models/minimax"};

struct answer {
    int32_t id[GEN], n, n_cached;
    float logprob[GEN];
};

static void on_event(void *ctx, const struct sy_event *ev)
{
    struct answer *a = ctx;
    a->id[a->n] = ev->id;
    a->logprob[a->n++] = ev->logprob;
    a->n_cached = ev->n_cached;
}

static struct sy_engine *open_engine(const char *model, bool cached, int32_t chunk)
{
    struct sy_engine_opt o = {
        .model = model, .ctx_len = TOK + GEN, .block_len = BLOCK, .batch_tok_max = chunk, .no_prefix_cache = !cached};
    o.backend_opt.n_thread = 1;
    struct sy_engine *e;
    struct sy_err err;
    if (sy_engine_new(sy_env_default(), &o, &e, &err)) fail_msg("%s", err.msg);
    return e;
}

static struct answer ask(struct sy_engine *e, const int32_t *prompt, int32_t n)
{
    struct answer a = {0};
    struct sy_request r = {.prompt = prompt,
                           .n_prompt = n,
                           .n_max = GEN,
                           .ignore_eos = true,
                           .on_event = on_event,
                           .ctx = &a,
                           .sampling = {.n_logprob = 0}};
    struct sy_err err;
    if (sy_engine_submit(e, &r, NULL, &err)) fail_msg("%s", err.msg);
    for (bool worked = true; worked;) assert_int_equal(sy_engine_step(e, &worked, &err), SY_OK);
    sy_engine_verify(e);
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

/* The same prompt again: all of its blocks but what must be computed for the first token. */
static void second_request_hits(void **state)
{
    (void)state;
    static const int32_t length[] = {BLOCK + 1, 2 * BLOCK, 37, 150};
    for (size_t m = 0; m < SY_COUNT(models); m++)
        for (size_t i = 0; i < SY_COUNT(length); i++) {
            struct sy_engine *e = open_engine(models[m], true, i % 2 ? 512 : 24);
            int32_t tok[TOK], n = length[i];
            random_tokens(tok, 0, n, i);
            struct answer a = ask(e, tok, n), b = ask(e, tok, n);
            assert_int_equal(a.n_cached, 0);
            assert_int_equal(b.n_cached, (n - 1) / BLOCK * BLOCK);
            same(&a, &b);
            sy_engine_free(e);
        }
}

/* Each turn's prompt is the last one, its answer and a question: only what is new is computed, but for part of a
 * block. */
static void conversation_goes_on(void **state)
{
    (void)state;
    for (size_t m = 0; m < SY_COUNT(models); m++) {
        struct sy_engine *e = open_engine(models[m], true, 64), *plain = open_engine(models[m], false, 64);
        int32_t tok[TOK], n = 61;
        random_tokens(tok, 0, n, m);
        for (int turn = 0, before = 0; turn < 6; turn++) {
            struct answer a = ask(e, tok, n), b = ask(plain, tok, n);
            same(&a, &b);
            assert_int_equal(b.n_cached, 0);
            if (turn > 0) assert_true(a.n_cached > before - 2 * BLOCK);
            memcpy(tok + n, a.id, sizeof a.id);
            before = n + GEN;
            n = before + 17;
            random_tokens(tok, before, n, 100 + (uint64_t)turn);
        }
        sy_engine_free(e);
        sy_engine_free(plain);
    }
}

/* Prompts with one beginning: the second finds a part of it, and leaves a snapshot where they part for the third. */
static void common_prefix_is_found(void **state)
{
    (void)state;
    enum { SHARED = 200, ALL = 260 };
    for (size_t m = 0; m < SY_COUNT(models); m++) {
        struct sy_engine *e = open_engine(models[m], true, 32);
        int32_t tok[TOK], cached[3];
        for (uint64_t k = 0; k < 3; k++) {
            random_tokens(tok, 0, SHARED, 7);
            random_tokens(tok, SHARED, ALL, 8 + k);
            cached[k] = ask(e, tok, ALL).n_cached;
        }
        assert_int_equal(cached[0], 0);
        assert_true(cached[1] >= SHARED / 2);
        assert_int_equal(cached[2], SHARED / BLOCK * BLOCK);
        sy_engine_free(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(second_request_hits), cmocka_unit_test(conversation_goes_on),
                                       cmocka_unit_test(common_prefix_is_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
