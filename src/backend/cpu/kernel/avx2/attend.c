/* attend.c - attention with AVX2, FMA and F16C. */
#include "backend/cpu/kernel/avx2/simd.h"

#include "backend/cpu/kernel/attend_simd.h"

const struct sy_kernels_attend sy_attend_avx2 = {
    .write = {[SY_KV_F32] = write_f32, [SY_KV_BF16] = write_bf16, [SY_KV_F16] = write_f16, [SY_KV_Q8_0] = write_q8_0},
    .part = {[SY_KV_F32] = part_f32, [SY_KV_BF16] = part_bf16, [SY_KV_F16] = part_f16, [SY_KV_Q8_0] = part_q8_0},
    .merge = merge,
    .index = sy_index_scores,
};
