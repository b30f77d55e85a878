/* pool_int.h - what pool.c and cpus.c share. Private to them and their tests. */
#pragma once
#include "base/base.h"

#include <sched.h>

/* The process's affinity mask, to be freed with CPU_FREE; n_bit: its size, n_set: CPUs in it. NULL: not to be had. */
cpu_set_t *sy_affinity(int32_t *n_bit, int32_t *n_set);
/* CPUs that the cgroups of the process grant, as text of /proc/self/cgroup (at `groups`) and the tree at `mount` say;
 * 0: no limit. */
double sy_cgroup_quota(const char *groups, const char *mount);
