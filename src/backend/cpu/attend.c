/* attend.c - sizes and ranges of attention on the CPU; attend_int.h has the layout of a block. */
#include "backend/cpu/attend_int.h"

#include <string.h>

#include "quant/quant.h"

int64_t sy_kv_block_bytes(int32_t n_kv, int32_t d_key, int32_t d_val, int32_t block_len, enum sy_kv_dtype dtype)
{
    if (n_kv < 1 || d_key < 1 || d_val < 0 || block_len < 1) return 0;
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

static float half_at(const unsigned char *p, enum sy_kv_dtype dtype)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return dtype == SY_KV_BF16 ? sy_bf16_to_f32(h) : sy_f16_to_f32(h);
}

/* K of position `off` of a block; element d goes to to[d * SY_KV_PANEL]. */
static void gather_key(const struct sy_kv_dim *kv, int32_t head, const unsigned char *block, int32_t off, float *to)
{
    int32_t width;
    if (kv->dtype == SY_KV_Q8_0) {
        int64_t scale, code = sy_kv_q8_key(kv, head, off, &width, &scale);
        float s = 0;
        for (int32_t d = 0; d < kv->d_key; d++, code += width, to += SY_KV_PANEL) {
            if (d % SY_KV_GROUP == 0) {
                s = half_at(block + scale, SY_KV_F16);
                scale += 2 * (int64_t)width;
            }
            *to = (float)(int8_t)block[code] * s;
        }
        return;
    }
    int64_t es = sy_kv_elem_bytes(kv->dtype);
    const unsigned char *from = block + (sy_kv_head(kv, head) + sy_kv_key(kv, off, &width)) * es;
    for (int32_t d = 0; d < kv->d_key; d++, from += width * es, to += SY_KV_PANEL) {
        if (kv->dtype == SY_KV_F32) memcpy(to, from, sizeof *to);
        else *to = half_at(from, kv->dtype);
    }
}

void sy_attend_gather_one(const struct sy_kv_dim *kv, int32_t head, const unsigned char *block, int32_t off,
                          int32_t i, float *to)
{
    int32_t first = i / SY_KV_PANEL * SY_KV_PANEL;
    gather_key(kv, head, block, off, to + (int64_t)first * kv->d_key + (i - first));
}

void sy_attend_gather(const struct sy_attend *a, const float *pos, int32_t n, float *to)
{
    const struct sy_kv_dim *kv = a->kv;
    memset(to, 0, (size_t)SY_PARTITION * (size_t)kv->d_key * sizeof *to);
    for (int32_t i = 0; i < n; i++) {
        int32_t p = (int32_t)pos[i];
        sy_attend_gather_one(kv, a->kv_head, sy_kv_block(a, p), p % kv->block_len, i, to);
    }
}
