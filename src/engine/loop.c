#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/loop_int.h"

/* ---- queues between threads: stacks that are taken whole ----------------------------------------------- */

/* A pusher only ever replaces the head by itself, and the taker empties the stack at once: no ABA. */
#define PUSH(head, s, link)                                                                                          \
    do {                                                                                                             \
        (s)->link = atomic_load(head);                                                                               \
        while (!atomic_compare_exchange_weak(head, &(s)->link, (s))) {                                               \
        }                                                                                                            \
    } while (0)

/* Everything on the stack, oldest first. */
#define TAKE(head, out, link)                                                                                        \
    do {                                                                                                             \
        struct sy_stream *newest = atomic_exchange(head, NULL), *older;                                              \
        for ((out) = NULL; newest; newest = older) {                                                                 \
            older = newest->link;                                                                                    \
            newest->link = (out);                                                                                    \
            (out) = newest;                                                                                          \
        }                                                                                                            \
    } while (0)

static void futex(_Atomic uint32_t *at, int op, uint32_t value, const struct timespec *limit)
{
    syscall(SYS_futex, (uint32_t *)at, op | FUTEX_PRIVATE_FLAG, value, limit, NULL, 0);
}

static void wake(struct sy_loop *l)
{
    if (atomic_exchange(&l->asleep, 0)) futex(&l->asleep, FUTEX_WAKE, 1, NULL);
}

/* ---- any thread --------------------------------------------------------------------------------------------------
 */

sy_status sy_loop_submit(struct sy_loop *l, struct sy_stream *s, struct sy_err *err)
{
    if (atomic_load(&l->failed)) return sy_fail(err, SY_EIO, "the engine has failed; restart the server");
    int32_t open = atomic_load(&l->n_open);
    do {
        if (open >= l->open_max) return sy_fail(err, SY_FULL, "%d requests are queued or running already", open);
    } while (!atomic_compare_exchange_weak(&l->n_open, &open, open + 1));
    /* Here, so that the engine thread takes no memory. */
    sy_status st = sy_engine_prepare(l->engine, &s->request, &s->prepared, err);
    if (st) {
        atomic_fetch_sub(&l->n_open, 1);
        return st;
    }
    s->loop = l;
    s->n_running = s->n_reply;
    sy_stream_ref(s);
    PUSH(&l->in, s, next_in);
    wake(l);
    return SY_OK;
}

static void push_cancel(struct sy_stream *s)
{
    struct sy_loop *l = s->loop;
    if (atomic_exchange(&s->in_cancel, true)) return; /* it has not been taken yet, and this will be seen too */
    sy_stream_ref(s);
    PUSH(&l->cancel, s, next_cancel);
    wake(l);
}

void sy_loop_cancel(struct sy_stream *s)
{
    if (s->loop && !atomic_exchange(&s->cancelled, true)) push_cancel(s);
}

void sy_loop_stop(struct sy_stream *s, int32_t reply)
{
    if (s->loop && !atomic_exchange(&s->reply[reply].stopped, true)) push_cancel(s);
}

int sy_loop_fd(const struct sy_loop *l) { return l->fd; }

struct sy_stream *sy_loop_next(struct sy_loop *l)
{
    if (!l->taken) TAKE(&l->ready, l->taken, next_ready);
    struct sy_stream *s = l->taken;
    if (!s) return NULL;
    l->taken = s->next_ready;
    atomic_store(&s->ready, false); /* from here on it may be pushed again: next_ready is not ours any more */
    return s;
}

int32_t sy_loop_open(const struct sy_loop *l) { return atomic_load(&l->n_open); }
bool sy_loop_failed(const struct sy_loop *l) { return atomic_load(&l->failed); }
const struct sy_loop_metrics *sy_loop_metrics(const struct sy_loop *l) { return &l->metrics; }

uint64_t sy_loop_step_age_ns(const struct sy_loop *l)
{
    uint64_t since = atomic_load(&l->step_since), now = sy_now_ns(l->env);
    return since && now > since ? now - since : 0;
}

struct sy_engine_stats sy_loop_stats(const struct sy_loop *l)
{
    uint64_t word[SY_COUNT(l->stats)], before, after;
    do {
        before = atomic_load_explicit(&l->version, memory_order_acquire);
        for (size_t i = 0; i < SY_COUNT(word); i++)
            word[i] = atomic_load_explicit(&l->stats[i], memory_order_acquire);
        after = atomic_load_explicit(&l->version, memory_order_relaxed);
    } while (before != after || before % 2);
    struct sy_engine_stats s;
    memcpy(&s, word, sizeof s);
    return s;
}

/* ---- the engine thread -------------------------------------------------------------------------------------------
 */

_Static_assert(sizeof(struct sy_engine_stats) % 8 == 0, "stats are published by words");

static void publish_stats(struct sy_loop *l)
{
    struct sy_engine_stats s = sy_engine_stats(l->engine);
    uint64_t word[SY_COUNT(l->stats)], v = atomic_load_explicit(&l->version, memory_order_relaxed);
    memcpy(word, &s, sizeof s);
    atomic_store_explicit(&l->version, v + 1, memory_order_relaxed);
    for (size_t i = 0; i < SY_COUNT(word); i++) atomic_store_explicit(&l->stats[i], word[i], memory_order_release);
    atomic_store_explicit(&l->version, v + 2, memory_order_release);
}

void loop_news(struct sy_stream *s)
{
    struct sy_loop *l = s->loop;
    l->news = true;
    if (atomic_exchange(&s->ready, true)) return; /* its reader has not taken it yet, and will see this too */
    sy_stream_ref(s);
    PUSH(&l->ready, s, next_ready);
}

static void observe_end(struct sy_stream *s, enum sy_finish last)
{
    struct sy_loop_metrics *m = &s->loop->metrics;
    uint64_t now = sy_now_ns(s->loop->env);
    for (int32_t i = 0; i < s->n_reply; i++)
        atomic_fetch_add_explicit(&m->finished[atomic_load_explicit(&s->reply[i].finish, memory_order_relaxed)], 1,
                                  memory_order_relaxed);
    if (last == SY_FINISH_CANCELLED || last == SY_FINISH_ERROR) return;
    sy_histogram_add(&m->e2e, (double)(now - s->arrival_ns) / 1e9);
    sy_histogram_add(&m->prompt_tok, s->request.n_prompt);
    sy_histogram_add(&m->gen_tok, s->n_token);
    if (!s->t_started) return;
    sy_histogram_add(&m->queue, (double)(s->t_started - s->arrival_ns) / 1e9);
    sy_histogram_add(&m->inference, (double)(now - s->t_started) / 1e9);
    if (!s->t_first) return;
    sy_histogram_add(&m->prefill, (double)(s->t_first - s->t_started) / 1e9);
    sy_histogram_add(&m->decode, (double)(now - s->t_first) / 1e9);
    if (s->n_reply == 1 && s->n_token > 1)
        sy_histogram_add(&m->tpot, (double)(now - s->t_first) / 1e9 / (s->n_token - 1));
}

void loop_ended(struct sy_stream *s, enum sy_finish last)
{
    struct sy_loop *l = s->loop;
    observe_end(s, last);
    if (s->live) {
        if (s->prev) s->prev->next = s->next;
        else l->live = s->next;
        if (s->next) s->next->prev = s->prev;
        s->live = false;
    }
    loop_news(s);
    atomic_fetch_sub(&l->n_open, 1); /* after the news: who sees 0 finds all of them */
    sy_stream_unref(s);              /* the reader holds one more, so this does not free it */
}

static void end_all(struct sy_stream *s, enum sy_finish why)
{
    for (int32_t i = 0; i < s->n_reply; i++) {
        if (atomic_load_explicit(&s->reply[i].finish, memory_order_relaxed) != SY_RUNNING) continue;
        atomic_store_explicit(&s->reply[i].finish, why, memory_order_release);
    }
    s->n_running = 0;
    loop_ended(s, why);
}

static void take_submitted(struct sy_loop *l)
{
    struct sy_stream *s, *next;
    TAKE(&l->in, s, next_in);
    for (; s; s = next) {
        next = s->next_in;
        struct sy_prepared *p = s->prepared;
        s->prepared = NULL;
        if (atomic_load(&s->cancelled) || atomic_load(&l->quit)) {
            sy_prepared_free(p);
            end_all(s, SY_FINISH_CANCELLED);
        } else if (atomic_load(&l->failed)) { /* it came in while that happened */
            sy_prepared_free(p);
            sy_fail(&s->error, SY_EIO, "the engine has failed; restart the server");
            end_all(s, SY_FINISH_ERROR);
        } else if (sy_engine_submit_take(l->engine, p, &s->id, &s->error)) {
            end_all(s, SY_FINISH_ERROR);
        } else {
            s->live = true;
            s->next = l->live;
            if (l->live) l->live->prev = s;
            l->live = s;
        }
    }
}

static void take_cancelled(struct sy_loop *l)
{
    struct sy_stream *s, *next;
    TAKE(&l->cancel, s, next_cancel);
    for (; s; s = next) {
        next = s->next_cancel;
        atomic_store(&s->in_cancel, false); /* from here on next_cancel is not ours any more */
        if (s->live && atomic_load(&s->cancelled)) sy_engine_cancel(l->engine, s->id);
        for (int32_t i = 0; s->live && i < s->n_reply; i++)
            if (atomic_load(&s->reply[i].stopped)) sy_engine_stop(l->engine, s->id, i);
        sy_stream_unref(s);
    }
}

static void fail_all(struct sy_loop *l, const struct sy_err *err)
{
    sy_log_at(l->env, SY_LOG_ERROR, "the engine has failed: %s", err->msg);
    atomic_store(&l->failed, true);
    while (l->live) {
        l->live->error = *err;
        end_all(l->live, SY_FINISH_ERROR);
    }
}

static void tell(struct sy_loop *l)
{
    if (!l->news) return;
    l->news = false;
    uint64_t one = 1;
    (void)!write(l->fd, &one, sizeof one);
}

static void nap(struct sy_loop *l)
{
    /* Nothing to do and nothing live: as long as it takes. With live streams a step that did nothing is a
     * wait for memory or a deadline. */
    struct timespec brief = {.tv_nsec = 2000000};
    atomic_store(&l->asleep, 1);
    if (!atomic_load(&l->in) && !atomic_load(&l->cancel) && !atomic_load(&l->quit))
        futex(&l->asleep, FUTEX_WAIT, 1, l->live ? &brief : NULL);
    atomic_store(&l->asleep, 0);
}

static void one_step(struct sy_loop *l)
{
    struct sy_err err = {0};
    bool worked = false;
    uint64_t t0 = sy_now_ns(l->env), decode_ns = sy_engine_stats(l->engine).decode_ns;
    atomic_store_explicit(&l->step_since, t0, memory_order_relaxed);
    sy_status st = sy_engine_step(l->engine, &worked, &err);
    atomic_store_explicit(&l->step_since, 0, memory_order_relaxed);
    if (st) fail_all(l, &err);
    publish_stats(l);
    if (worked) {
        struct sy_engine_stats s = sy_engine_stats(l->engine);
        sy_histogram_add(&l->metrics.step, (double)(sy_now_ns(l->env) - t0) / 1e9);
        sy_histogram_add(&l->metrics.step_tok, s.last_batch_tok);
        if (s.decode_ns > decode_ns) atomic_fetch_add_explicit(&l->metrics.n_decode_step, 1, memory_order_relaxed);
    }
    tell(l);
    if (!worked) nap(l);
}

static void *run(void *ctx)
{
    struct sy_loop *l = ctx;
    while (!atomic_load(&l->quit) || l->live) {
        take_submitted(l);
        take_cancelled(l);
        if (atomic_load(&l->quit))
            for (struct sy_stream *s = l->live; s; s = s->next) sy_engine_cancel(l->engine, s->id);
        if (atomic_load(&l->failed)) {
            tell(l);
            nap(l);
        } else {
            one_step(l);
        }
    }
    take_submitted(l);
    take_cancelled(l);
    publish_stats(l);
    tell(l);
    return NULL;
}

/* ---- life --------------------------------------------------------------------------------------------------------
 */

/* The bounds that vLLM's metrics of the same names have, so that dashboards made for them fit. */
static const double ttft_s[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
static const double itl_s[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                               0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
static const double request_s[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                   30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double step_tokens[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
static const double request_tokens[] = {1,    2,    5,   10,  20,  50,  100, 200, 500, 1000,
                                        2000, 5000, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6};
static const double short_s[] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10};

static void init_metrics(struct sy_loop_metrics *m)
{
    const struct {
        struct sy_histogram *h;
        const double *bound;
        size_t n;
    } all[] = {
        {&m->ttft, ttft_s, SY_COUNT(ttft_s)},
        {&m->itl, itl_s, SY_COUNT(itl_s)},
        {&m->tpot, itl_s, SY_COUNT(itl_s)},
        {&m->e2e, request_s, SY_COUNT(request_s)},
        {&m->queue, request_s, SY_COUNT(request_s)},
        {&m->prefill, request_s, SY_COUNT(request_s)},
        {&m->decode, request_s, SY_COUNT(request_s)},
        {&m->inference, request_s, SY_COUNT(request_s)},
        {&m->step, short_s, SY_COUNT(short_s)},
        {&m->prompt_tok, request_tokens, SY_COUNT(request_tokens)},
        {&m->gen_tok, request_tokens, SY_COUNT(request_tokens)},
        {&m->step_tok, step_tokens, SY_COUNT(step_tokens)},
    };
    for (size_t i = 0; i < SY_COUNT(all); i++) sy_histogram_init(all[i].h, all[i].bound, (int)all[i].n);
}

sy_status sy_loop_new(const struct sy_env *env, struct sy_engine *e, int32_t open_max, struct sy_loop **out,
                      struct sy_err *err)
{
    struct sy_loop *l = sy_new(env, sizeof *l);
    if (!l) return sy_fail(err, SY_ENOMEM, "no memory for the engine's loop");
    *l = (struct sy_loop){.env = env, .engine = e, .open_max = open_max, .fd = -1};
    init_metrics(&l->metrics);
    publish_stats(l);
    sy_status st = SY_OK;
    l->scratch = sy_new(env, sy_sample_scratch_bytes(sy_engine_plan(e)->info.n_vocab));
    if (!l->scratch) st = sy_fail(err, SY_ENOMEM, "no memory for the engine's loop");
    if (!st && (l->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        st = sy_fail(err, SY_EIO, "cannot make an eventfd: %s", strerror(errno));
    int failed = st ? 0 : pthread_create(&l->thread, NULL, run, l);
    if (failed) st = sy_fail(err, SY_EIO, "cannot start a thread: %s", strerror(failed));
    if (st) {
        if (l->fd >= 0) close(l->fd);
        sy_delete(env, l->scratch);
        sy_delete(env, l);
        return st;
    }
    *out = l;
    return SY_OK;
}

void sy_loop_free(struct sy_loop *l)
{
    if (!l) return;
    atomic_store(&l->quit, true);
    wake(l);
    pthread_join(l->thread, NULL);
    for (struct sy_stream *s; (s = sy_loop_next(l));) sy_stream_unref(s);
    close(l->fd);
    sy_delete(l->env, l->scratch);
    sy_delete(l->env, l);
}
