/* sums.h - attention whose sums are kept in bf16: what hardware that adds in bf16 would answer. For measuring what
 * f32 sums are worth, hence not one of the backend's own kernels. Thread: any. */
#pragma once
#include "backend/cpu/attend.h"

/* As sy_attend_part(), for sy_backend_opt.attend_part: the machine's kernels take SY_SUM_KEYS keys at a time, and
 * what they sum up is added to sums of bf16. Heads of up to SY_SUM_VALUES values. */
enum { SY_SUM_KEYS = 64, SY_SUM_VALUES = 1024 };
void sy_attend_part_bf16_sums(const struct sy_kernels_attend *, enum sy_kv_dtype, const struct sy_attend *,
                              bool rounded);
