/* child.h - work in a process of its own: foreign code may end it, and only that is lost. Call it while the program
 * has one thread. */
#pragma once
#include "base/base.h"

/* Runs work(ctx, result, err) in a child; its result (n bytes, plain) comes back through a pipe. A child that ends
 * otherwise is SY_ENOSUP, with the last line it wrote to stderr; nothing else of its stderr is shown. */
SY_CHECK sy_status sy_child_run(sy_status (*work)(void *ctx, void *result, struct sy_err *), void *ctx, void *result,
                                size_t n, struct sy_err *);
