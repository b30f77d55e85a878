/* target.c - chips that programs can be compiled for without having one. Figures are the vendors' published ones
 * (docs.cloud.google.com/tpu/docs for v5e, v6e and tpu7x; NVIDIA's data sheets of H100 SXM and B200), per device: a
 * tpu7x chip is two devices. Clocks of TPUs are those that give the published bf16 arithmetic with the units the chip
 * has; none is published. */
#include <stdio.h>
#include <string.h>

#include "backend/pjrt/aot.h"

#define V5E  SY_AOT_TPU, 16e9, 819e9, 197e12, 1.5e9            /* 4 units of 128 x 128 */
#define V6E  SY_AOT_TPU, 34359738368.0, 1640e9, 918e12, 1.75e9 /* 4 of 256 x 256 */
#define V7   SY_AOT_TPU, 103079215104.0, 3690e9, 1153.5e12, 2.2e9
#define H100 SY_AOT_GPU, 80e9, 3352e9, 989e12, 0
#define B200 SY_AOT_GPU, 180e9, 8000e9, 2250e12, 0
#define HERE SY_AOT_CPU, 0, 0, 0, 0
static const struct sy_aot_target targets[] = {
    {"v5e-1", "v5e:1x1", 1, V5E},
    {"v5e-4", "v5e:2x2", 4, V5E},
    {"v5e-8", "v5e:2x4", 8, V5E},
    {"v5e-16", "v5e:4x4", 16, V5E},
    {"v5e-32", "v5e:4x8", 32, V5E},
    {"v6e-1", "v6e:1x1", 1, V6E},
    {"v6e-4", "v6e:2x2", 4, V6E},
    {"v6e-8", "v6e:2x4", 8, V6E},
    {"v6e-16", "v6e:4x4", 16, V6E},
    {"v6e-32", "v6e:4x8", 32, V6E},
    {"v7-2", "tpu7x:1x1x1", 2, V7},
    {"v7-8", "tpu7x:2x2x1", 8, V7},
    {"v7-16", "tpu7x:2x2x2", 16, V7},
    {"v7-32", "tpu7x:2x2x4", 32, V7},
    {"h100", "1x1x1", 1, H100},
    {"h100x2", "1x1x2", 2, H100},
    {"h100x4", "1x1x4", 4, H100},
    {"h100x8", "1x1x8", 8, H100},
    {"b200", "1x1x1", 1, B200},
    {"b200x2", "1x1x2", 2, B200},
    {"b200x4", "1x1x4", 4, B200},
    {"b200x8", "1x1x8", 8, B200},
    {"cpu", "", 1, HERE},
    {"cpu-2", "", 2, HERE},
    {"cpu-8", "", 8, HERE},
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

/* What NVIDIA's plugin asks of a chip that is not here: a GpuTargetConfigProto (openxla/xla,
 * xla/stream_executor/device_description.proto) as text. What both chips have alike stands in the text. */
static const struct gpu {
    const char *name, *description;
    int cores, major;
    double l2, memory, memory_s;
} gpus[] = {
    {"h100", "NVIDIA H100 80GB HBM3", 132, 9, 50.0 * 1048576, 81010.0 * 1048576, 3352.32e9},
    {"b200", "NVIDIA B200", 148, 10, 126.5 * 1048576, 182642.375 * 1048576, 7672.32e9},
};

void sy_aot_gpu_text(const struct sy_aot_target *t, char *text, size_t n)
{
    const struct gpu *g = &gpus[0];
    for (size_t i = 0; i < SY_COUNT(gpus); i++)
        if (!strncmp(t->name, gpus[i].name, strlen(gpus[i].name))) g = &gpus[i];
    snprintf(text, n,
             "gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 "
             "shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448 threads_per_core_limit: 2048 "
             "core_count: %d fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 "
             "block_dim_limit_z: 65535 memory_bandwidth: %.0f l2_cache_size: %.0f clock_rate_ghz: 1.98 "
             "device_memory_size: %.0f cuda_compute_capability { major: %d feature_extension: ACCELERATED_FEATURES } "
             "registers_per_core_limit: 65536 registers_per_block_limit: 65536 thread_dim_limit_x: 1024 "
             "thread_dim_limit_y: 1024 thread_dim_limit_z: 64 device_address_bits: 64 driver_version: \"13.0.0\" "
             "runtime_version: \"13.0.0\" compile_time_toolkit_version: \"13.0.0\" dnn_version: \"9.10.0\" } "
             "platform_name: \"CUDA\" dnn_version_info { major: 9 minor: 10 } device_description_str: \"%s\"\n",
             g->cores, g->memory_s, g->l2, g->memory, g->major, g->description);
}
