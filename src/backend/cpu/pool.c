/* pool.c - threads that meet at atomics and, when that takes long, at futexes (futex(2)).
 *
 * `job` numbers the work: odd while a job is open, even between jobs. A worker enters an open job by counting itself
 * `inside` and then looking at `job` again; the caller closes the job and then waits for `inside` to be 0. Both sides
 * write before they read, sequentially consistent, so either the worker sees the job closed or the caller sees the
 * worker. A worker that the system did not schedule in time thus misses a job instead of delaying it.
 *
 * Waiting: spin up to `spin` pauses, then sleep. The count is fixed: one that shrank after waits that ended asleep
 * kept a worker asleep long after the machine was quiet again, since waking takes longer than the work between two
 * jobs. With more threads than CPUs a spinning thread holds up the one it waits for: few pauses.
 */
#include "backend/cpu/pool.h"
#include "backend/cpu/pool_int.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    THREADS_MAX = 4096,
    STACK_BYTES = 2 << 20, /* kernels keep tiles on the stack; what the C library gives differs */
    SPIN_FEW = 16,         /* pauses */
    SPIN = 2048,           /* about 100 us where one takes 140 cycles, 30 us where it takes 40 */
};

/* A counter to wait on, alone on its cache line. */
struct word {
    _Alignas(64) _Atomic uint32_t v;
    _Atomic uint32_t n_asleep;
};
struct worker {
    _Alignas(64) struct sy_pool *pool;
    pthread_t thread;
    int32_t id;
    _Alignas(64) _Atomic int64_t next; /* of its share of the job's items */
    int64_t end;
};
struct sy_pool {
    const struct sy_env *env;
    int32_t n, n_started;
    uint32_t spin;
    bool stop, all;
    void (*item)(void *, int64_t, int32_t);
    void (*each)(void *, int32_t, int32_t);
    void *ctx;
    int64_t chunk;
    struct word job, inside, finished, met, phase;
    struct worker worker[];
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void wake(struct word *w, int32_t n)
{
    if (atomic_load(&w->n_asleep) > 0) syscall(SYS_futex, &w->v, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Returns once ready(value, arg). Whoever makes it ready changes the word (seq_cst) and then calls wake(): the
 * sleeper counts itself before the kernel compares the word, so one of the two notices the other. */
static void await(struct word *w, bool (*ready)(uint32_t, uint32_t), uint32_t arg, uint32_t spin)
{
    for (uint32_t i = 0; i < spin; i++) {
        if (ready(atomic_load_explicit(&w->v, memory_order_acquire), arg)) return;
        relax();
    }
    for (uint32_t v; !ready(v = atomic_load(&w->v), arg);) {
        atomic_fetch_add(&w->n_asleep, 1);
        syscall(SYS_futex, &w->v, FUTEX_WAIT_PRIVATE, v, NULL, NULL, 0);
        atomic_fetch_sub(&w->n_asleep, 1);
    }
}

static bool is_new_job(uint32_t v, uint32_t seen) { return (v & 1) && v != seen; }
static bool is_equal(uint32_t v, uint32_t want) { return v == want; }
static bool is_other(uint32_t v, uint32_t old) { return v != old; }

/* Its own share first: neighbouring items read neighbouring memory. Then what others have not begun. */
static void do_items(struct sy_pool *p, int32_t id)
{
    for (int32_t k = 0; k < p->n; k++) {
        struct worker *w = &p->worker[id + k < p->n ? id + k : id + k - p->n];
        for (;;) {
            int64_t i = atomic_fetch_add_explicit(&w->next, p->chunk, memory_order_relaxed), end = i + p->chunk;
            if (i >= w->end) break;
            for (end = end < w->end ? end : w->end; i < end; i++) p->item(p->ctx, i, id);
        }
    }
}

static void leave(struct word *w, uint32_t want, bool up)
{
    uint32_t now = up ? atomic_fetch_add(&w->v, 1) + 1 : atomic_fetch_sub(&w->v, 1) - 1;
    if (now == want) wake(w, 1);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct sy_pool *p = w->pool;
    for (uint32_t seen = 0;;) {
        await(&p->job, is_new_job, seen, p->spin);
        atomic_fetch_add(&p->inside.v, 1);
        uint32_t job = atomic_load(&p->job.v);
        bool open = is_new_job(job, seen), stop = false;
        if (open) {
            seen = job;
            stop = p->stop;
            if (!stop && p->all) p->each(p->ctx, w->id, p->n);
            if (!stop && !p->all) do_items(p, w->id);
            if (!stop && p->all) leave(&p->finished, (uint32_t)p->n - 1, true);
        }
        leave(&p->inside, 0, false);
        if (stop) return NULL;
    }
}

static void open_job(struct sy_pool *p, int32_t n_wanted)
{
    atomic_fetch_add(&p->job.v, 1);
    wake(&p->job, n_wanted);
}

static void close_job(struct sy_pool *p)
{
    atomic_fetch_add(&p->job.v, 1);
    await(&p->inside, is_equal, 0, p->spin);
}

void sy_pool_run(struct sy_pool *p, int64_t n_item, void (*fn)(void *ctx, int64_t item, int32_t thread), void *ctx)
{
    if (n_item <= 1 || p->n == 1) {
        for (int64_t i = 0; i < n_item; i++) fn(ctx, i, 0);
        return;
    }
    p->item = fn;
    p->ctx = ctx;
    p->all = false;
    p->chunk = n_item / ((int64_t)p->n * 16);
    if (p->chunk < 1) p->chunk = 1;
    for (int32_t i = 0; i < p->n; i++) {
        p->worker[i].end = n_item * (i + 1) / p->n;
        atomic_store_explicit(&p->worker[i].next, n_item * i / p->n, memory_order_relaxed);
    }
    open_job(p, n_item < p->n ? (int32_t)n_item - 1 : p->n - 1);
    do_items(p, 0);
    close_job(p);
}

void sy_pool_all(struct sy_pool *p, void (*fn)(void *ctx, int32_t thread, int32_t n_thread), void *ctx)
{
    if (p->n == 1) {
        fn(ctx, 0, 1);
        return;
    }
    p->each = fn;
    p->ctx = ctx;
    p->all = true;
    atomic_store_explicit(&p->finished.v, 0, memory_order_relaxed);
    open_job(p, p->n - 1);
    fn(ctx, 0, p->n);
    await(&p->finished, is_equal, (uint32_t)p->n - 1, p->spin);
    close_job(p);
}

void sy_pool_barrier(struct sy_pool *p)
{
    if (p->n == 1) return;
    uint32_t phase = atomic_load(&p->phase.v);
    if (atomic_fetch_add(&p->met.v, 1) + 1 == (uint32_t)p->n) {
        atomic_store(&p->met.v, 0);
        atomic_fetch_add(&p->phase.v, 1);
        wake(&p->phase, p->n);
    } else {
        await(&p->phase, is_other, phase, p->spin);
    }
}

/* Worker i takes the i-th CPU of the mask. The caller is left alone: threads that it starts later would inherit. */
static void pin(struct sy_pool *p)
{
    int32_t n_bit = 0, n_set = 0, at = 0;
    cpu_set_t *mask = sy_affinity(&n_bit, &n_set), *one = mask ? CPU_ALLOC((size_t)n_bit) : NULL;
    size_t bytes = CPU_ALLOC_SIZE((size_t)n_bit);
    for (int32_t cpu = 0; one && n_set == p->n && cpu < n_bit; cpu++) {
        if (!CPU_ISSET_S((size_t)cpu, bytes, mask)) continue;
        CPU_ZERO_S(bytes, one);
        CPU_SET_S((size_t)cpu, bytes, one);
        if (at > 0) pthread_setaffinity_np(p->worker[at].thread, bytes, one); /* refused: it runs anywhere */
        at++;
    }
    CPU_FREE(one);
    CPU_FREE(mask);
}

static int start(struct sy_pool *p)
{
    pthread_attr_t attr;
    sigset_t all, old;
    int failed = pthread_attr_init(&attr);
    if (failed) return failed;
    failed = pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all); /* signals are the process's other threads' */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (int32_t i = 0; i < p->n && !failed; i++) {
        p->worker[i] = (struct worker){.pool = p, .id = i};
        if (i == 0) continue;
        failed = pthread_create(&p->worker[i].thread, &attr, work, &p->worker[i]);
        if (failed) break;
        p->n_started++;
        char name[24]; /* at most 15 are set */
        snprintf(name, sizeof name, "sy-cpu-%d", i);
        pthread_setname_np(p->worker[i].thread, name);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return failed;
}

sy_status sy_pool_new(const struct sy_env *env, int32_t n_thread, struct sy_pool **out, struct sy_err *err)
{
    int32_t n_cpu = sy_cpus_allowed();
    if (n_thread < 0 || n_thread > THREADS_MAX)
        return sy_fail(err, SY_EARG, "%d threads: must be from 0 (one per CPU) to %d", n_thread, THREADS_MAX);
    if (n_thread == 0) n_thread = n_cpu < THREADS_MAX ? n_cpu : THREADS_MAX;
    struct sy_pool *p = sy_new(env, sizeof *p + (size_t)n_thread * sizeof p->worker[0]);
    if (!p) return sy_fail(err, SY_ENOMEM, "no memory for a pool of %d threads", n_thread);
    p->env = env;
    p->n = n_thread;
    p->spin = n_thread > n_cpu ? SPIN_FEW : SPIN;
    int failed = start(p);
    if (failed) {
        sy_status st = sy_fail(err, failed == ENOMEM ? SY_ENOMEM : SY_EIO, "cannot start thread %d of %d: %s",
                               p->n_started + 2, n_thread, strerror(failed));
        sy_pool_free(p);
        return st;
    }
    pin(p);
    *out = p;
    return SY_OK;
}

void sy_pool_free(struct sy_pool *p)
{
    if (!p) return;
    p->stop = true;
    open_job(p, p->n);
    for (int32_t i = 1; i <= p->n_started; i++) pthread_join(p->worker[i].thread, NULL);
    sy_delete(p->env, p);
}

int32_t sy_pool_size(const struct sy_pool *p) { return p->n; }

const struct sy_env *sy_pool_env(const struct sy_pool *p) { return p->env; }
