/* watch.h - how a long measurement talks to whoever waits for it. */
#pragma once
#include <stdbool.h>

struct sy_watch {                             /* each may be NULL */
    void (*progress)(void *ctx, double done); /* 0..1 */
    bool (*stop)(void *ctx);                  /* asked often: the measurement then fails with SY_EIO */
    void *ctx;
};
