/* scan.c - what runs along a sequence, with AVX2, FMA and F16C. */
#include "backend/cpu/kernel/avx2/simd.h"

#include "backend/cpu/kernel/scan_simd.h"

const struct sy_kernels_scan sy_scan_avx2 = {
    .conv = conv, .scan = {[SY_STATE_F32] = scan_f32, [SY_STATE_BF16] = scan_bf16, [SY_STATE_PAIR] = scan_pair}};
