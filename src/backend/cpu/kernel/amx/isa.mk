ISA_ARCH_amx = x86_64
ISA_FLAGS_amx = $(ISA_FLAGS_avx512) -mavx512fp16 -mavx512bf16 -mamx-tile -mamx-bf16 -mamx-int8
