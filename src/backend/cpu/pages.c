/* pages.c - anonymous memory on huge pages (mmap(2), madvise(2), Documentation/admin-guide/mm/transhuge.rst), and how
 * fast memory is read. */
#include "backend/cpu/pages.h"
#include "backend/cpu/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_BYTES = 2 << 20 };

/* "always [madvise] never": the mode in brackets. Absent: a kernel without huge pages. */
static bool huge_allowed(void)
{
    char text[64];
    int fd = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return false;
    text[n] = 0;
    return !strstr(text, "[never]");
}

static size_t mapped(size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (n + page - 1) / page * page;
}

sy_status sy_pages_new(struct sy_pages *p, size_t n, bool want_huge, struct sy_err *err)
{
    *p = (struct sy_pages){0};
    if (n == 0) return SY_OK;
    if (n > SIZE_MAX / 2) return sy_fail(err, SY_ENOMEM, "cannot map %zu bytes: more than the address space", n);
    size_t whole = mapped(n) + HUGE_BYTES;
    unsigned char *at = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return sy_fail(err, SY_ENOMEM, "cannot map %.1f MiB of memory: %s", (double)n / 1048576, strerror(errno));
    size_t head = -(uintptr_t)at % HUGE_BYTES, tail = HUGE_BYTES - head;
    if (head) munmap(at, head);
    if (tail) munmap(at + head + mapped(n), tail);
    p->at = at + head;
    p->n = n;
    p->huge = want_huge && n >= HUGE_BYTES && huge_allowed() && madvise(p->at, mapped(n), MADV_HUGEPAGE) == 0;
    if (!want_huge) (void)madvise(p->at, mapped(n), MADV_NOHUGEPAGE); /* matters where the mode is "always" */
    return SY_OK;
}

void sy_pages_free(struct sy_pages *p)
{
    if (p->at) munmap(p->at, mapped(p->n));
    *p = (struct sy_pages){0};
}

/* ---- bandwidth ------------------------------------------------------------------------------------------- */

enum { MEASURE_BYTES = 256 << 20, CHUNK = 1 << 20, RUNS = 5 };
struct measure {
    uint64_t *at;
    uint64_t sum[MEASURE_BYTES / CHUNK]; /* kept, so that the reads are not optimised away */
};

static void fill(void *ctx, int64_t item, int32_t thread)
{
    struct measure *m = ctx;
    (void)thread;
    memset((unsigned char *)m->at + item * CHUNK, 1, CHUNK); /* pages never written all read the same zero page */
}

static void read_chunk(void *ctx, int64_t item, int32_t thread)
{
    struct measure *m = ctx;
    (void)thread;
    const uint64_t *from = m->at + item * (CHUNK / 8);
    uint64_t lane[16] = {0};
    for (int64_t i = 0; i < CHUNK / 8; i += 16)
        for (int j = 0; j < 16; j++) lane[j] += from[i + j];
    for (int j = 0; j < 16; j++) m->sum[item] += lane[j];
}

double sy_measure_bandwidth(struct sy_pool *pool)
{
    const struct sy_env *env = sy_pool_env(pool);
    struct measure *m = sy_new(env, sizeof *m);
    struct sy_pages pages;
    double rate[RUNS] = {0};
    if (!m) return 0;
    if (sy_pages_new(&pages, MEASURE_BYTES, true, NULL) == SY_OK) {
        m->at = (uint64_t *)pages.at;
        sy_pool_run(pool, MEASURE_BYTES / CHUNK, fill, m);
        for (int i = 0; i < RUNS; i++) {
            uint64_t t = sy_now_ns(env);
            sy_pool_run(pool, MEASURE_BYTES / CHUNK, read_chunk, m);
            t = sy_now_ns(env) - t;
            double now = t ? (double)MEASURE_BYTES / ((double)t * 1e-9) : 0;
            int at = i;
            for (; at > 0 && rate[at - 1] > now; at--) rate[at] = rate[at - 1];
            rate[at] = now;
        }
        sy_pages_free(&pages);
    }
    sy_delete(env, m);
    return rate[RUNS / 2];
}
