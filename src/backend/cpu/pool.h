/* pool.h - the CPU backend's threads: workers that spin for a moment, then sleep on a futex.
 *
 * The calling thread is worker 0 and does its share. Threads are pinned when the process's affinity leaves one CPU
 * per thread. Owned by one caller thread. */
#pragma once
#include "base/base.h"

struct sy_pool;
/* n_thread 0: as many as the affinity mask and the cgroup's cpu.max allow. */
SY_CHECK sy_status sy_pool_new(const struct sy_env *, int32_t n_thread, struct sy_pool **out, struct sy_err *);
void sy_pool_free(struct sy_pool *);
int32_t sy_pool_size(const struct sy_pool *);
const struct sy_env *sy_pool_env(const struct sy_pool *);
/* Calls fn(ctx, item, thread) for every item in [0, n_item), handing items out dynamically; returns when all are
 * done. No allocation. n_item 1 or one thread: runs inline. */
void sy_pool_run(struct sy_pool *, int64_t n_item, void (*fn)(void *ctx, int64_t item, int32_t thread), void *ctx);
/* Runs fn(ctx, thread, n_thread) once on every thread: for regions with their own barriers. */
void sy_pool_all(struct sy_pool *, void (*fn)(void *ctx, int32_t thread, int32_t n_thread), void *ctx);
void sy_pool_barrier(struct sy_pool *); /* inside sy_pool_all only: all threads meet */
int32_t sy_cpus_allowed(void);          /* affinity and cgroup quota, at least 1 */
