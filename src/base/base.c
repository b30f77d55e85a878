#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const status_names[] = {
    [SY_OK] = "ok",
    [SY_FULL] = "full",
    [SY_EIO] = "input/output error",
    [SY_EFORMAT] = "malformed file",
    [SY_ESHAPE] = "wrong shape",
    [SY_ENOSUP] = "not supported",
    [SY_ENOMEM] = "out of memory",
    [SY_ECOMM] = "communication failed",
    [SY_EARG] = "bad argument",
};

const char *sy_status_name(sy_status s)
{
    return (unsigned)s < SY_COUNT(status_names) ? status_names[s] : "unknown status";
}

sy_status sy_fail_at(struct sy_err *err, const char *file, int line, sy_status code, const char *fmt, ...)
{
    if (!err) return code;
    err->code = code;
    err->file = file;
    err->line = line;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    /* Messages quote bytes of files: a control character must not reach a terminal or a log line. */
    for (char *c = err->msg; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return code;
}

sy_status sy_while(struct sy_err *err, sy_status code, const char *fmt, ...)
{
    if (!err || code == SY_OK) return code;
    char head[sizeof err->msg], whole[2 * sizeof err->msg + 2];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    snprintf(whole, sizeof whole, "%s: %s", head, err->msg);
    whole[sizeof err->msg - 1] = 0;
    memcpy(err->msg, whole, strlen(whole) + 1);
    return code;
}

_Noreturn void sy_assert_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "systole: %s:%d: invariant '%s' does not hold; this is a bug\n", file, line, cond);
    abort();
}

/* ---- the default environment ---------------------------------------------------------------------------- */

static void *heap_get(void *ctx, size_t n)
{
    (void)ctx;
    size_t up = (n + 63) & ~(size_t)63;
    if (up < n) return NULL;
    void *p = aligned_alloc(64, up ? up : 64);
    return p ? memset(p, 0, up) : NULL;
}

static void heap_free(void *ctx, void *p)
{
    (void)ctx;
    free(p);
}

static void *heap_resize(void *ctx, void *old, size_t n_old, size_t n)
{
    void *p = heap_get(ctx, n);
    if (!p) return NULL;
    if (old) memcpy(p, old, n_old < n ? n_old : n);
    heap_free(ctx, old);
    return p;
}

static uint64_t monotonic_ns(void *ctx)
{
    (void)ctx;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void stderr_line(void *ctx, enum sy_log_level level, const char *line)
{
    (void)ctx;
    static const char *const names[] = {"error", "warning", "info", "debug"};
    fprintf(stderr, "systole: %s: %s\n", names[level], line);
}

const struct sy_env *sy_env_default(void)
{
    static const struct sy_alloc alloc = {heap_get, heap_resize, heap_free, NULL};
    static const struct sy_clock clock = {monotonic_ns, NULL};
    static const struct sy_log log = {SY_LOG_WARN, stderr_line, NULL};
    static const struct sy_env env = {&alloc, &clock, &log};
    return &env;
}

void *sy_new(const struct sy_env *env, size_t n) { return env->alloc->get(env->alloc->ctx, n); }

void *sy_new_array(const struct sy_env *env, size_t n, size_t size)
{
    size_t total;
    return __builtin_mul_overflow(n, size, &total) ? NULL : sy_new(env, total);
}

void *sy_resize(const struct sy_env *env, void *p, size_t n_old, size_t n)
{
    return env->alloc->resize(env->alloc->ctx, p, n_old, n);
}

void sy_delete(const struct sy_env *env, void *p)
{
    if (p) env->alloc->free(env->alloc->ctx, p);
}

uint64_t sy_now_ns(const struct sy_env *env) { return env->clock->now_ns(env->clock->ctx); }

void sy_log_at(const struct sy_env *env, enum sy_log_level level, const char *fmt, ...)
{
    if (level > env->log->level) return;
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    env->log->write(env->log->ctx, level, line);
}
