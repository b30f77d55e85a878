#include "backend/cpu/kernel.h"

/* The compiler's run-time tells what the CPU has and the operating system saves. */
static bool usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

extern const struct sy_kernels_isa sy_isa_avx512;
const struct sy_kernels_isa sy_isa_avx512 = {.rank = 20, .usable = usable};
