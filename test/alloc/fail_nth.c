/* fail_nth.c - a library to preload that makes one allocation of a program fail.
 *
 * FAIL_AT=n: the n-th call of malloc, calloc, realloc, aligned_alloc, posix_memalign or anonymous mmap answers "no
 * memory"; FAIL_FROM=n: that one and every later one. COUNT_TO=FILE: the number of calls is written there at the end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static atomic_long calls;
static long fail_at = -1, fail_from = -1;

static long number(const char *name)
{
    const char *s = getenv(name);
    return s ? strtol(s, NULL, 10) : -1;
}

__attribute__((constructor)) static void start(void)
{
    fail_at = number("FAIL_AT");
    fail_from = number("FAIL_FROM");
    atomic_store(&calls, 0); /* what ran before main() is the loader's */
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("COUNT_TO");
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666) : -1;
    if (fd < 0) return;
    char text[24];
    int n = snprintf(text, sizeof text, "%ld\n", atomic_load(&calls));
    (void)!write(fd, text, (size_t)n);
    close(fd);
}

static int fails(void)
{
    long n = atomic_fetch_add(&calls, 1) + 1;
    if (n != fail_at && (fail_from < 0 || n < fail_from)) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n) { return fails() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return fails() ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return fails() ? NULL : __libc_realloc(p, n); }
void *aligned_alloc(size_t align, size_t n) { return fails() ? NULL : __libc_memalign(align, n); }

int posix_memalign(void **out, size_t align, size_t n)
{
    void *p = fails() ? NULL : __libc_memalign(align, n);
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    if ((flags & MAP_ANONYMOUS) && fails()) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, offset);
}
