ISA_ARCH_avx512vnni = x86_64
ISA_FLAGS_avx512vnni = $(ISA_FLAGS_avx512) -mavx512vnni
