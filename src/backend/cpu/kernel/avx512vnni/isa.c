#include "backend/cpu/kernel.h"

/* The compiler's run-time tells what the CPU has and the operating system saves. */
static bool usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

extern const struct sy_kernels_isa sy_isa_avx512vnni;
const struct sy_kernels_isa sy_isa_avx512vnni = {.rank = 21, .usable = usable};
