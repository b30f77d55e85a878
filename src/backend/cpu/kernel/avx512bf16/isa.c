#include "backend/cpu/kernel.h"

/* The compiler's run-time tells what the CPU has and the operating system saves. */
static bool usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bf16");
}

extern const struct sy_kernels_isa sy_isa_avx512bf16;
const struct sy_kernels_isa sy_isa_avx512bf16 = {.rank = 22, .usable = usable, .bf16 = true};
