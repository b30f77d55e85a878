/* pjrt_util.h - the plugin that tests of lowered programs run on. */
#pragma once
#include "backend/pjrt/plugin.h"

#include <stdlib.h>

/* The plugin for CPUs that SYSTOLE_CPU_PLUGIN names, with as many devices; a test without one is skipped, with a
 * word. */
static inline void open_cpu_plugin(struct pj_client *c, int n_device)
{
    const char *path = getenv("SYSTOLE_CPU_PLUGIN");
    if (!path || !*path) {
        print_message("SYSTOLE_CPU_PLUGIN is not set\n");
        skip();
    }
    struct sy_err err = {0};
    if (pj_client_open(sy_env_default(), path, n_device, c, &err)) fail_msg("%s", err.msg);
}
