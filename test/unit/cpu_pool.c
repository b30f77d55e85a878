/* The CPU backend's threads: every item once, on fewer and on more threads than CPUs; barriers; sleep and wake;
 * failures to allocate and to start; quotas; pages. */
#include "backend/cpu/pages.h"
#include "backend/cpu/pool.h"
#include "backend/cpu/pool_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { ITEMS_MAX = 5000 };
static const int32_t sizes[] = {1, 2, 3, 4, 9};

struct count {
    int32_t n_thread;
    int32_t done[ITEMS_MAX]; /* not atomic: the pool must order these itself */
    _Atomic int32_t bad;
};

static void count_item(void *ctx, int64_t item, int32_t thread)
{
    struct count *c = ctx;
    c->done[item]++;
    if (thread < 0 || thread >= c->n_thread) atomic_fetch_add(&c->bad, 1);
}

static void test_run(void **state)
{
    (void)state;
    static const int64_t counts[] = {0, 1, 2, 3, 5, 31, 1000, ITEMS_MAX};
    for (size_t s = 0; s < SY_COUNT(sizes); s++) {
        struct sy_pool *p;
        assert_int_equal(sy_pool_new(sy_env_default(), sizes[s], &p, NULL), SY_OK);
        assert_int_equal(sy_pool_size(p), sizes[s]);
        struct count *c = calloc(1, sizeof *c);
        c->n_thread = sizes[s];
        int32_t want[ITEMS_MAX] = {0};
        for (int i = 0; i < 400; i++) {
            int64_t n = counts[(size_t)i % SY_COUNT(counts)];
            sy_pool_run(p, n, count_item, c);
            for (int64_t j = 0; j < n; j++) want[j]++;
            if (i % 50 == 0) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* lets the workers sleep */
        }
        assert_memory_equal(want, c->done, sizeof want);
        assert_int_equal(c->bad, 0);
        free(c);
        sy_pool_free(p);
    }
}

struct meet {
    struct sy_pool *pool;
    int32_t seat[16];
    _Atomic int32_t bad;
};

/* Each thread writes its seat, all meet, each reads all seats, all meet again. */
static void meet(void *ctx, int32_t thread, int32_t n_thread)
{
    struct meet *m = ctx;
    for (int32_t round = 1; round <= 50; round++) {
        m->seat[thread] = round;
        sy_pool_barrier(m->pool);
        for (int32_t i = 0; i < n_thread; i++)
            if (m->seat[i] != round) atomic_fetch_add(&m->bad, 1);
        sy_pool_barrier(m->pool);
    }
}

static void test_all(void **state)
{
    (void)state;
    for (size_t s = 0; s < SY_COUNT(sizes); s++) {
        struct meet m = {0};
        assert_int_equal(sy_pool_new(sy_env_default(), sizes[s], &m.pool, NULL), SY_OK);
        for (int i = 0; i < 20; i++) {
            sy_pool_all(m.pool, meet, &m);
            sy_pool_run(m.pool, 3, count_item, &(struct count){.n_thread = sizes[s]});
        }
        assert_int_equal(m.bad, 0);
        sy_pool_free(m.pool);
    }
}

static void test_life(void **state)
{
    (void)state;
    struct sy_err err;
    struct sy_pool *p;
    for (int i = 0; i < 200; i++) {
        assert_int_equal(sy_pool_new(sy_env_default(), i % 7, &p, NULL), SY_OK);
        assert_int_equal(sy_pool_size(p), i % 7 ? i % 7 : sy_cpus_allowed());
        sy_pool_free(p);
    }
    sy_pool_free(NULL);
    assert_int_equal(sy_pool_new(sy_env_default(), -1, &p, &err), SY_EARG);
    assert_int_equal(sy_pool_new(sy_env_default(), 1 << 20, &p, &err), SY_EARG);
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void test_idle(void **state)
{
    (void)state;
    struct sy_pool *p;
    struct count *c = calloc(1, sizeof *c);
    c->n_thread = 4;
    assert_int_equal(sy_pool_new(sy_env_default(), 4, &p, NULL), SY_OK);
    sy_pool_run(p, 100, count_item, c);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    double before = cpu_seconds();
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    assert_true(cpu_seconds() - before < 0.02);
    sy_pool_run(p, 100, count_item, c);
    for (int i = 0; i < 100; i++) assert_int_equal(c->done[i], 2);
    sy_pool_free(p);
    free(c);
}

struct failing {
    int left, live;
};
static void *failing_get(void *ctx, size_t n)
{
    struct failing *f = ctx;
    if (f->left-- == 0) return NULL;
    f->live++;
    return sy_env_default()->alloc->get(NULL, n);
}
static void failing_free(void *ctx, void *p)
{
    if (p) ((struct failing *)ctx)->live--;
    sy_env_default()->alloc->free(NULL, p);
}

static void test_no_memory(void **state)
{
    (void)state;
    for (int n = 0;; n++) {
        struct failing f = {.left = n};
        struct sy_alloc alloc = {.get = failing_get, .free = failing_free, .ctx = &f};
        struct sy_env env = *sy_env_default();
        env.alloc = &alloc;
        struct sy_pool *p = NULL;
        struct sy_err err;
        sy_status st = sy_pool_new(&env, 3, &p, &err);
        if (st == SY_OK) {
            sy_pool_free(p);
            assert_int_equal(f.live, 0);
            assert_true(n > 0);
            return;
        }
        assert_int_equal(st, SY_ENOMEM);
        assert_int_equal(f.live, 0);
    }
}

/* No room for the stacks: the threads that did start end, and one sentence says why. */
static void test_no_threads(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* a limit on the address space stops the sanitizer first */
#else
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {400u << 20, 400u << 20};
        struct sy_pool *p = NULL;
        struct sy_err err;
        setrlimit(RLIMIT_AS, &limit);
        if (mmap(NULL, limit.rlim_cur, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) _exit(2);
        sy_status st = sy_pool_new(sy_env_default(), 1000, &p, &err);
        _exit((st == SY_EIO || st == SY_ENOMEM) && !p && strstr(err.msg, "of 1000") ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2) skip(); /* an emulator that knows no limit on the address space */
    assert_int_equal(WEXITSTATUS(status), 0);
#endif
}

/* ---- CPUs ------------------------------------------------------------------------------------------------ */

static void put(const char *dir, const char *path, const char *text)
{
    char name[512];
    snprintf(name, sizeof name, "%s/%s", dir, path);
    for (char *c = name + strlen(dir) + 1; (c = strchr(c, '/')); *c++ = '/') {
        *c = 0;
        mkdir(name, 0777);
    }
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static double quota(const char *dir, const char *groups)
{
    char name[512], mount[512];
    put(dir, "groups", groups);
    snprintf(name, sizeof name, "%s/groups", dir);
    snprintf(mount, sizeof mount, "%s/fs", dir);
    return sy_cgroup_quota(name, mount);
}

static void test_quota(void **state)
{
    (void)state;
    char dir[] = "/tmp/sy-quota-XXXXXX", rm[64];
    assert_non_null(mkdtemp(dir));
    assert_true(quota(dir, "0::/\n") == 0);
    put(dir, "fs/a/b/cpu.max", "150000 100000\n");
    put(dir, "fs/a/cpu.max", "max 100000\n");
    assert_true(quota(dir, "0::/a/b\n") == 1.5);
    assert_true(quota(dir, "0::/a\n") == 0);
    put(dir, "fs/a/cpu.max", "50000 100000\n");
    assert_true(quota(dir, "0::/a/b\n") == 0.5); /* a parent's limit binds too */
    put(dir, "fs/cpu.max", "40000 10000\n");
    assert_true(quota(dir, "0::/not/under/the/mount\n") == 4);
    put(dir, "fs/cpu,cpuacct/x/cpu.cfs_quota_us", "300000\n");
    put(dir, "fs/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
    put(dir, "fs/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    assert_true(quota(dir, "3:memory:/a\n2:cpu,cpuacct:/x\n") == 3);
    assert_true(quota(dir, "3:cpuset:/x\n") == 0);
    put(dir, "fs/a/b/cpu.max", "nonsense");
    put(dir, "fs/a/cpu.max", "-1 0");
    assert_true(quota(dir, "0::/a/b\n") == 4);
    assert_true(quota(dir, "::::\n\n0:\n") == 0);
    snprintf(rm, sizeof rm, "rm -r %s", dir);
    assert_int_equal(system(rm), 0);
    int32_t n = sy_cpus_allowed();
    assert_true(n >= 1 && n <= sysconf(_SC_NPROCESSORS_CONF));
}

/* ---- pages ----------------------------------------------------------------------------------------------- */

static void test_pages(void **state)
{
    (void)state;
    static const size_t bytes[] = {1, 4096, 5000, (2u << 20) - 1, 2u << 20, (5u << 20) + 3};
    struct sy_pages p = {0};
    struct sy_err err;
    sy_pages_free(&p);
    for (size_t i = 0; i < 2 * SY_COUNT(bytes); i++) {
        size_t n = bytes[i / 2];
        assert_int_equal(sy_pages_new(&p, n, i & 1, &err), SY_OK);
        assert_true((uintptr_t)p.at % (2 << 20) == 0 && p.n == n);
        assert_true(!p.huge || (i & 1));
        for (size_t j = 0; j < n; j += 509) assert_int_equal(p.at[j], 0);
        memset(p.at, 1, n);
        sy_pages_free(&p);
        assert_null(p.at);
    }
    assert_int_equal(sy_pages_new(&p, 0, true, &err), SY_OK);
    assert_null(p.at);
    assert_int_equal(sy_pages_new(&p, SIZE_MAX, true, &err), SY_ENOMEM);
    assert_int_equal(sy_pages_new(&p, SIZE_MAX / 4, true, &err), SY_ENOMEM);
    assert_null(p.at);
}

static void test_bandwidth(void **state)
{
    (void)state;
    struct sy_pool *pool;
    assert_int_equal(sy_pool_new(sy_env_default(), 0, &pool, NULL), SY_OK);
    double rate = sy_measure_bandwidth(pool);
    print_message("%.1f GB/s on %d threads\n", rate * 1e-9, sy_pool_size(pool));
    assert_true(rate > 1e7 && rate < 1e14);
    sy_pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run),   cmocka_unit_test(test_all),       cmocka_unit_test(test_life),
        cmocka_unit_test(test_idle),  cmocka_unit_test(test_no_memory), cmocka_unit_test(test_no_threads),
        cmocka_unit_test(test_quota), cmocka_unit_test(test_pages),     cmocka_unit_test(test_bandwidth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
