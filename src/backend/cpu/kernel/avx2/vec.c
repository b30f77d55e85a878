/* vec.c - rows of vectors with AVX2 and FMA. */
#include "backend/cpu/kernel/avx2/simd.h"

#include "backend/cpu/kernel/vec_simd.h"

const struct sy_kernels_vec sy_vec_avx2 = {
    .norm = norm,
    .rope = rope,
    .act = act,
    .glu = glu,
    .add = add,
    .mul = mul,
    .scale = scale,
    .softcap = softcap,
    .argmax = argmax,
};
