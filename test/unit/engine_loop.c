/* The engine's thread and its streams: many threads submit, cancel and read at once; the queue is bounded;
 * the engine's thread allocates nothing; failing allocations leave nothing behind. */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/loop.h"

enum { N_THREAD = 6, N_EACH = 40, N_GEN = 9 };
static const char model[] = "test/golden/models/llama";

static struct sy_engine *open_engine(const struct sy_env *env, int32_t seqs)
{
    struct sy_engine_opt o = {
        .model = model, .ctx_len = 96, .block_len = 8, .seq_max = seqs, .batch_tok_max = 24, .wait_max = 4096};
    o.backend_opt.n_thread = 1;
    struct sy_engine *e = NULL;
    struct sy_err err;
    if (sy_engine_new(env, &o, &e, &err)) fail_msg("%s", err.msg);
    return e;
}

static struct sy_stream *make(const struct sy_env *env, const struct sy_engine *e, uint64_t seed, int32_t n_sample,
                              void *owner)
{
    int32_t prompt[20], n = 1 + (int32_t)(sy_rng_u64(seed, 0) % 20);
    for (int32_t i = 0; i < n; i++) prompt[i] = (int32_t)(sy_rng_u64(seed, 1 + (uint64_t)i) % 300);
    struct sy_stream_opt o = {.request = {.prompt = prompt,
                                          .n_prompt = n,
                                          .n_max = N_GEN,
                                          .n_sample = n_sample,
                                          .ignore_eos = true,
                                          .sampling = {.temperature = 1, .seed = seed, .n_logprob = 2}},
                              .n_vocab = sy_engine_plan(e)->info.n_vocab,
                              .arrival_ns = sy_now_ns(env),
                              .owner = owner};
    struct sy_stream *s = NULL;
    struct sy_err err;
    if (sy_stream_new(env, &o, &s, &err)) fail_msg("%s", err.msg);
    return s;
}

static bool ended(const struct sy_stream *s)
{
    for (int32_t i = 0; i < s->n_reply; i++)
        if (atomic_load(&s->reply[i].finish) == SY_RUNNING) return false;
    return true;
}

/* Reads news until n streams have ended; the reader is the test's own thread. */
static void read_until(struct sy_loop *l, atomic_int *n_ended, int n)
{
    while (atomic_load(n_ended) < n) {
        struct pollfd p = {.fd = sy_loop_fd(l), .events = POLLIN};
        uint64_t count;
        assert_int_equal(poll(&p, 1, 20000), 1);
        (void)!read(p.fd, &count, sizeof count);
        for (struct sy_stream *s; (s = sy_loop_next(l)); sy_stream_unref(s)) {
            atomic_bool *told = s->owner;
            if (ended(s) && told && !atomic_exchange(told, true)) atomic_fetch_add(n_ended, 1);
        }
    }
}

struct client {
    struct sy_loop *loop;
    const struct sy_engine *engine;
    uint64_t seed;
    struct sy_stream *stream[N_EACH];
    atomic_bool told[N_EACH];
};

static void *submit_and_cancel(void *ctx)
{
    struct client *c = ctx;
    for (int i = 0; i < N_EACH; i++) {
        uint64_t r = sy_rng_u64(c->seed, 1000 + (uint64_t)i);
        c->stream[i] =
            make(sy_env_default(), c->engine, c->seed * 100 + (uint64_t)i, 1 + (int32_t)(r % 3), &c->told[i]);
        struct sy_err err;
        if (sy_loop_submit(c->loop, c->stream[i], &err)) fail_msg("%s", err.msg);
        if (r / 3 % 4 == 0) sy_loop_cancel(c->stream[i]);
        if (i > 5 && r / 12 % 4 == 0) sy_loop_cancel(c->stream[i - 5]);
    }
    return NULL;
}

static void test_many_threads(void **state)
{
    (void)state;
    struct sy_engine *e = open_engine(sy_env_default(), 5);
    struct sy_loop *l;
    struct sy_err err;
    assert_int_equal(sy_loop_new(sy_env_default(), e, N_THREAD * N_EACH, &l, &err), SY_OK);
    struct client *c = sy_new_array(sy_env_default(), N_THREAD, sizeof *c);
    pthread_t t[N_THREAD];
    atomic_int n = 0;
    for (int i = 0; i < N_THREAD; i++) {
        c[i].loop = l;
        c[i].engine = e;
        c[i].seed = 1 + (uint64_t)i;
        pthread_create(&t[i], NULL, submit_and_cancel, &c[i]);
    }
    read_until(l, &n, N_THREAD * N_EACH);
    for (int i = 0; i < N_THREAD; i++) pthread_join(t[i], NULL);
    assert_int_equal(sy_loop_open(l), 0);
    struct sy_engine_stats s = sy_loop_stats(l);
    assert_int_equal(s.block_leased, 0);
    assert_int_equal(s.block_free + s.block_cached, s.block_total);
    int whole = 0, cut = 0;
    for (int i = 0; i < N_THREAD; i++)
        for (int k = 0; k < N_EACH; k++) {
            const struct sy_stream *st = c[i].stream[k];
            for (int32_t a = 0; a < st->n_reply; a++) {
                int finish = atomic_load(&st->reply[a].finish), len = atomic_load(&st->reply[a].n);
                assert_true(finish == SY_FINISH_LENGTH ? len == N_GEN
                                                       : finish == SY_FINISH_CANCELLED && len <= N_GEN);
                whole += finish == SY_FINISH_LENGTH;
                cut += finish == SY_FINISH_CANCELLED;
            }
            sy_stream_unref(c[i].stream[k]);
        }
    assert_true(whole > 0 && cut > 0);
    const struct sy_loop_metrics *m = sy_loop_metrics(l);
    assert_int_equal(atomic_load(&m->finished[SY_FINISH_LENGTH]), whole);
    assert_int_equal(atomic_load(&m->finished[SY_FINISH_CANCELLED]), cut);
    sy_loop_free(l);
    sy_engine_free(e);
    sy_delete(sy_env_default(), c);
}

/* The door: no more than open_max; what ended makes room; freeing the loop ends what runs. */
static void test_bounds(void **state)
{
    (void)state;
    struct sy_engine *e = open_engine(sy_env_default(), 1);
    struct sy_loop *l;
    struct sy_err err;
    assert_int_equal(sy_loop_new(sy_env_default(), e, 3, &l, &err), SY_OK);
    struct sy_stream *s[40];
    int full = 0;
    for (int i = 0; i < 40; i++) {
        s[i] = make(sy_env_default(), e, 7 + (uint64_t)i, 1, NULL);
        sy_status st = sy_loop_submit(l, s[i], &err);
        assert_true(st == SY_OK || st == SY_FULL);
        full += st == SY_FULL;
        assert_true(sy_loop_open(l) <= 3);
    }
    assert_true(full > 0);
    struct sy_stream *bad = make(sy_env_default(), e, 5, 1, NULL);
    bad->request.sampling.temperature = 9;
    while (sy_loop_open(l) == 3) usleep(100);
    int32_t open = sy_loop_open(l);
    assert_int_equal(sy_loop_submit(l, bad, &err), SY_EARG);
    assert_true(sy_loop_open(l) <= open);
    sy_stream_unref(bad);
    sy_loop_free(l);
    for (int i = 0; i < 40; i++) {
        assert_true(!s[i]->loop || ended(s[i]));
        sy_stream_unref(s[i]);
    }
    sy_engine_free(e);
}

/* ---- who allocates ------------------------------------------------------------------------------------------- */

struct counting {
    pthread_t main;
    atomic_int others, left, live;
};
static void *count_get(void *ctx, size_t n)
{
    struct counting *c = ctx;
    if (!pthread_equal(pthread_self(), c->main)) atomic_fetch_add(&c->others, 1);
    if (atomic_fetch_sub(&c->left, 1) == 0) return NULL;
    void *p = sy_new(sy_env_default(), n);
    if (p) atomic_fetch_add(&c->live, 1);
    return p;
}
static void count_free(void *ctx, void *p)
{
    atomic_fetch_sub(&((struct counting *)ctx)->live, 1);
    sy_delete(sy_env_default(), p);
}
static void *count_resize(void *ctx, void *old, size_t n_old, size_t n)
{
    void *p = count_get(ctx, n);
    if (!p) return NULL;
    if (old) {
        memcpy(p, old, n_old < n ? n_old : n);
        count_free(ctx, old);
    }
    return p;
}

static void test_engine_thread_allocates_nothing(void **state)
{
    (void)state;
    struct counting c = {.main = pthread_self(), .left = INT32_MAX};
    struct sy_alloc alloc = {count_get, count_resize, count_free, &c};
    struct sy_env env = {&alloc, sy_env_default()->clock, sy_env_default()->log};
    struct sy_engine *e = open_engine(&env, 3);
    struct sy_loop *l;
    struct sy_err err;
    assert_int_equal(sy_loop_new(&env, e, 100, &l, &err), SY_OK);
    atomic_store(&c.others, 0); /* loading may use threads */
    atomic_bool told[20] = {0};
    atomic_int n = 0;
    for (int i = 0; i < 20; i++) {
        struct sy_stream *s = make(&env, e, 50 + (uint64_t)i, 1 + i % 3, &told[i]);
        assert_int_equal(sy_loop_submit(l, s, &err), SY_OK);
        if (i % 5 == 4) sy_loop_cancel(s);
        sy_stream_unref(s);
    }
    read_until(l, &n, 20);
    assert_int_equal(atomic_load(&c.others), 0);
    sy_loop_free(l);
    sy_engine_free(e);
    assert_int_equal(atomic_load(&c.live), 0);
}

static void test_memory(void **state)
{
    (void)state;
    struct sy_engine *e = open_engine(sy_env_default(), 1);
    bool done = false;
    for (int n = 0; !done && n < 60; n++) {
        struct counting c = {.main = pthread_self(), .left = n};
        struct sy_alloc alloc = {count_get, count_resize, count_free, &c};
        struct sy_env env = {&alloc, sy_env_default()->clock, sy_env_default()->log};
        struct sy_loop *l = NULL;
        struct sy_err err;
        sy_status st = sy_loop_new(&env, e, 2, &l, &err);
        assert_true(st == SY_OK || st == SY_ENOMEM);
        int32_t prompt[3] = {1, 2, 3};
        struct sy_stream_opt o = {
            .request = {.prompt = prompt, .n_prompt = 3, .n_max = 4, .sampling = {.n_logprob = 3}},
            .score_prompt = true,
            .n_prompt_top = 2,
            .n_vocab = 320};
        struct sy_stream *s = NULL;
        if (!st) st = sy_stream_new(&env, &o, &s, &err);
        assert_true(st == SY_OK || st == SY_ENOMEM);
        done = st == SY_OK;
        sy_stream_unref(s);
        sy_loop_free(l);
        assert_int_equal(atomic_load(&c.live), 0);
    }
    assert_true(done);
    sy_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_engine_thread_allocates_nothing),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
