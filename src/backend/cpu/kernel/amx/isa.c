#include "backend/cpu/kernel.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Tile data is the one state that Linux saves only for processes that ask (Documentation/arch/x86/xstate.rst). */
enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, AMX_BF16 = 1 << 22, AVX512_FP16 = 1 << 23, AMX_TILE = 1 << 24 };

static bool usable(void)
{
    unsigned a, b, c, d = 0, need = AMX_TILE | AMX_BF16 | AVX512_FP16;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & need) != need) return false;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512bf16"))
        return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

extern const struct sy_kernels_isa sy_isa_amx;
const struct sy_kernels_isa sy_isa_amx = {.rank = 30, .usable = usable, .bf16 = true, .bf16_codes = true};
