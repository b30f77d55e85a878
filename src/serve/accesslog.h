/* accesslog.h - lines written by a thread of their own: a reader that is slow, or a pipe that nobody
 * reads, costs lines and never an answer. Any thread may add. */
#pragma once
#include "base/buf.h"

struct sy_accesslog;
SY_CHECK sy_status sy_accesslog_new(const struct sy_env *, const char *path, struct sy_accesslog **out,
                                    struct sy_err *);                     /* "-": stdout */
void sy_accesslog_free(struct sy_accesslog *);                            /* writes what is left; NULL is fine */
void sy_accesslog_add(struct sy_accesslog *, const char *line, size_t n); /* a newline is added; NULL log is fine */
uint64_t sy_accesslog_lost(struct sy_accesslog *);
