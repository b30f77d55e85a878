#include "backend/cpu/kernel.h"

#include <cpuid.h>

/* The compiler's run-time tells what the CPU has and the operating system saves; it knows no name for F16C. */
static bool usable(void)
{
    unsigned a, b, c = 0, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
           (c & bit_F16C);
}

extern const struct sy_kernels_isa sy_isa_avx2;
const struct sy_kernels_isa sy_isa_avx2 = {.rank = 10, .usable = usable};
