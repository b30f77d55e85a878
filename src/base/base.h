/* base.h - what every other file may use: status, errors, environment. Depends on libc only.
 *
 * Errors: a fallible function returns sy_status and takes `struct sy_err *err` last (NULL: the code is
 * enough). Whoever detects a failure writes one sentence with sy_fail(): what, where, expected, found, what to
 * do. Whoever passes it on may put its own context in front with sy_while(). Thread: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SY_CHECK             __attribute__((warn_unused_result))
#define SY_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define SY_COUNT(array)      (sizeof(array) / sizeof((array)[0]))

/* a / b rounded up; a >= 0, b > 0. */
static inline int64_t sy_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

typedef enum {
    SY_OK,
    SY_FULL,    /* back-pressure, not an error: try again later                */
    SY_EIO,     /* the operating system or the network refused                 */
    SY_EFORMAT, /* a file is malformed                                         */
    SY_ESHAPE,  /* a tensor or value has the wrong shape or type               */
    SY_ENOSUP,  /* well-formed, but not supported here                         */
    SY_ENOMEM,  /* memory ran out, or a stated limit on it was met             */
    SY_ECOMM,   /* a peer process failed                                       */
    SY_EARG,    /* a caller's (user's) argument or request is out of range     */
} sy_status;

/* Filled by whoever fails, extended by whoever passes it on. Owned by the caller, on its stack. */
struct sy_err {
    sy_status code;
    const char *file; /* source position of the failure, for the debug log */
    int line;
    char msg[464];
};

/* Both return the code, so that `return sy_fail(err, SY_EFORMAT, "...")` reads as a sentence. */
sy_status sy_fail_at(struct sy_err *err, const char *file, int line, sy_status code, const char *fmt, ...)
    SY_PRINTF(5, 6);
sy_status sy_while(struct sy_err *err, sy_status code, const char *fmt, ...) SY_PRINTF(3, 4);
#define sy_fail(err, code, ...) sy_fail_at(err, __FILE__, __LINE__, code, __VA_ARGS__)
const char *sy_status_name(sy_status);

/* Memory. get() returns zeroed memory aligned to 64 bytes, or NULL; free() accepts NULL. */
struct sy_alloc {
    void *(*get)(void *ctx, size_t n);
    void *(*resize)(void *ctx, void *old, size_t n_old, size_t n); /* new bytes are zero; NULL keeps old */
    void (*free)(void *ctx, void *p);
    void *ctx;
};
struct sy_clock {
    uint64_t (*now_ns)(void *ctx); /* monotonic */
    void *ctx;
};
enum sy_log_level { SY_LOG_ERROR, SY_LOG_WARN, SY_LOG_INFO, SY_LOG_DEBUG };
struct sy_log {
    enum sy_log_level level;
    void (*write)(void *ctx, enum sy_log_level, const char *line); /* any thread */
    void *ctx;
};

/* All that a constructor may touch beyond its arguments. There is no other ambient state. */
struct sy_env {
    const struct sy_alloc *alloc; /* tests use counting and failing ones */
    const struct sy_clock *clock; /* monotonic, or virtual under the simulator */
    const struct sy_log *log;
};
const struct sy_env *sy_env_default(void); /* malloc, CLOCK_MONOTONIC, warnings to stderr */

void *sy_new(const struct sy_env *, size_t n); /* zeroed, 64-byte aligned; NULL when out of memory */
void *sy_new_array(const struct sy_env *, size_t n, size_t size); /* the same, overflow checked */
void *sy_resize(const struct sy_env *, void *p, size_t n_old, size_t n);
void sy_delete(const struct sy_env *, void *p); /* NULL is fine */
uint64_t sy_now_ns(const struct sy_env *);
void sy_log_at(const struct sy_env *, enum sy_log_level, const char *fmt, ...) SY_PRINTF(3, 4);

/* Invariants of our own code, kept in release builds. Nothing that a file or a client sends reaches one. */
#define sy_assert(cond) ((cond) ? (void)0 : sy_assert_failed(#cond, __FILE__, __LINE__))
_Noreturn void sy_assert_failed(const char *cond, const char *file, int line);
