/* attend.c - sizes and ranges of attention on the CPU; attend_int.h has the layout of a block. */
#include "backend/cpu/attend_int.h"

int64_t sy_kv_block_bytes(int32_t n_kv, int32_t d_key, int32_t d_val, int32_t block_len, enum sy_kv_dtype dtype)
{
    if (n_kv < 1 || d_key < 1 || d_val < 1 || block_len < 1) return 0;
    int64_t n, each = ((int64_t)d_key + d_val) * sy_kv_elem_bytes(dtype);
    if (dtype == SY_KV_Q8_0)
        each +=
            2 * (((int64_t)d_key + SY_KV_GROUP - 1) / SY_KV_GROUP + ((int64_t)d_val + SY_KV_GROUP - 1) / SY_KV_GROUP);
    if (__builtin_mul_overflow(each, (int64_t)n_kv * block_len, &n) || n > INT64_MAX - (SY_KV_ALIGN - 1)) return 0;
    return (n + SY_KV_ALIGN - 1) / SY_KV_ALIGN * SY_KV_ALIGN;
}

void sy_attend_range(const struct sy_attend *a, int32_t *lo, int32_t *hi)
{
    *lo = sy_attend_span(a, 0).lo / SY_PARTITION;
    *hi = (a->pos0 + a->n_q - 1) / SY_PARTITION + 1;
}
