/* cpus.c - how many CPUs the process may use: sched_getaffinity(2), and the quotas of cgroup v1 (cpu.cfs_quota_us,
 * Documentation/scheduler/sched-bwc.rst) and v2 (cpu.max, Documentation/admin-guide/cgroup-v2.rst). */
#include "backend/cpu/pool.h"
#include "backend/cpu/pool_int.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CPUS_MAX = 1 << 16 };

cpu_set_t *sy_affinity(int32_t *n_bit, int32_t *n_set)
{
    /* The kernel refuses a mask smaller than its own; sizes beyond glibc's 1024 exist. */
    for (int32_t n = CPU_SETSIZE; n <= CPUS_MAX; n *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)n);
        if (!set) return NULL;
        if (sched_getaffinity(0, CPU_ALLOC_SIZE((size_t)n), set) == 0) {
            *n_bit = n;
            *n_set = CPU_COUNT_S(CPU_ALLOC_SIZE((size_t)n), set);
            return set;
        }
        CPU_FREE(set);
    }
    return NULL;
}

static bool read_text(const char *path, char *buf, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t got = read(fd, buf, n - 1);
    close(fd);
    buf[got > 0 ? got : 0] = 0;
    return got > 0;
}

/* CPUs of one group's directory; 0: no limit, or none of these files. */
static double group_quota(const char *dir)
{
    char path[1400], text[64];
    double quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (read_text(path, text, sizeof text))
        return sscanf(text, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0 ? quota / period : 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
    if (!read_text(path, text, sizeof text) || sscanf(text, "%lf", &quota) != 1 || quota <= 0) return 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
    if (!read_text(path, text, sizeof text) || sscanf(text, "%lf", &period) != 1 || period <= 0) return 0;
    return quota / period;
}

/* The least of the quotas from the group up to the mount: each of them binds. In a container the path may be the
 * host's and not exist under the mount, whose top then is the container's own group. */
static double path_quota(const char *mount, const char *group)
{
    char dir[1300];
    double least = 0;
    int n = snprintf(dir, sizeof dir, "%s%s", mount, group);
    if (n < 0 || (size_t)n >= sizeof dir) return 0;
    for (;;) {
        double q = group_quota(dir);
        if (q > 0 && (least <= 0 || q < least)) least = q;
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < strlen(mount)) return least;
        *slash = 0;
    }
}

static bool names_cpu(const char *list)
{
    for (const char *at = list; at; at = strchr(at, ',')) {
        if (*at == ',') at++;
        if (!strncmp(at, "cpu", 3) && (at[3] == ',' || !at[3])) return true;
    }
    return false;
}

double sy_cgroup_quota(const char *groups, const char *mount)
{
    char text[8192], at[1024];
    double least = 0;
    if (!read_text(groups, text, sizeof text)) return 0;
    for (char *line = text, *end; *line; line = end) { /* id:controllers:/path */
        end = line + strcspn(line, "\n");
        if (*end) *end++ = 0;
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (!group || group[1] != '/') continue;
        *group++ = 0;
        list++;
        const char *under[] = {"", *list ? list : "unified", *list ? "cpu" : ""};
        if (*list && !names_cpu(list)) continue;
        for (size_t i = 0; i < SY_COUNT(under); i++) {
            snprintf(at, sizeof at, "%s%s%s", mount, *under[i] ? "/" : "", under[i]);
            double q = path_quota(at, strcmp(group, "/") ? group : "");
            if (q > 0 && (least <= 0 || q < least)) least = q;
        }
    }
    return least;
}

int32_t sy_cpus_allowed(void)
{
    int32_t n_bit, n = 1;
    cpu_set_t *set = sy_affinity(&n_bit, &n);
    CPU_FREE(set);
    double quota = sy_cgroup_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    /* Rounded down: threads that spin through the last part of a CPU get the whole group throttled. */
    if (quota > 0 && quota < n) n = (int32_t)quota;
    return n < 1 ? 1 : n;
}
