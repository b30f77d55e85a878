/* target.c - chips that programs can be compiled for without having one. Figures are the vendors' published ones
 * (docs.cloud.google.com/tpu/docs for v5e, v6e and tpu7x), per device: a tpu7x chip is two devices. Clocks are those
 * that give the published bf16 arithmetic with the units the chip has; none is published. */
#include <string.h>

#include "backend/pjrt/aot.h"

#define V5E 16e9, 819e9, 197e12, 1.5e9            /* 4 units of 128 x 128 */
#define V6E 34359738368.0, 1640e9, 918e12, 1.75e9 /* 4 of 256 x 256 */
#define V7  103079215104.0, 3690e9, 1153.5e12, 2.2e9
static const struct sy_aot_target targets[] = {
    {"v5e-1", "v5e:1x1", 1, V5E},   {"v5e-4", "v5e:2x2", 4, V5E},     {"v5e-8", "v5e:2x4", 8, V5E},
    {"v5e-16", "v5e:4x4", 16, V5E}, {"v6e-1", "v6e:1x1", 1, V6E},     {"v6e-4", "v6e:2x2", 4, V6E},
    {"v6e-8", "v6e:2x4", 8, V6E},   {"v6e-16", "v6e:4x4", 16, V6E},   {"v7-2", "tpu7x:1x1x1", 2, V7},
    {"v7-8", "tpu7x:2x2x1", 8, V7}, {"v7-16", "tpu7x:2x2x2", 16, V7},
};

const struct sy_aot_target *sy_aot_targets(int32_t *n)
{
    *n = (int32_t)SY_COUNT(targets);
    return targets;
}

const struct sy_aot_target *sy_aot_target(const char *name)
{
    for (size_t i = 0; i < SY_COUNT(targets); i++)
        if (!strcmp(targets[i].name, name)) return &targets[i];
    return NULL;
}
