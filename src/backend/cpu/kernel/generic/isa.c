#include "backend/cpu/kernel.h"

static bool usable(void) { return true; }

extern const struct sy_kernels_isa sy_isa_generic;
const struct sy_kernels_isa sy_isa_generic = {.rank = 0, .usable = usable};
