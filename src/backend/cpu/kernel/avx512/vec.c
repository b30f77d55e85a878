/* vec.c - rows of vectors with AVX-512. */
#include "backend/cpu/kernel/avx512/simd.h"

#include "backend/cpu/kernel/vec_simd.h"

const struct sy_kernels_vec sy_vec_avx512 = {
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
