ISA_ARCH_avx512 = x86_64
ISA_FLAGS_avx512 = -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl
