ISA_ARCH_generic = any
ISA_FLAGS_generic =
