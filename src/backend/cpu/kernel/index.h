/* index.h - the scores of an indexer's keys, in plain C that each instruction set's attend.c compiles for itself. A
 * panel of keys is widened to f32 once and all heads meet it there; its lanes are positions, of which none depends on
 * another: so neither the span asked for nor what lies around it changes a bit. */
#pragma once
#include "backend/cpu/attend_int.h"

#include <string.h>

#include "quant/quant.h"

static inline float sy_index_half(const unsigned char *p, enum sy_kv_dtype dtype)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return dtype == SY_KV_BF16 ? sy_bf16_to_f32(h) : sy_f16_to_f32(h);
}

/* to[d][i] = element d of key j + i, i < n, which lie in one panel from its position `off` of the block on. */
static inline void sy_index_widen(const struct sy_kv_dim *kv, const unsigned char *block, int32_t off, int32_t n,
                                  float (*to)[SY_KV_PANEL])
{
    int32_t width;
    if (kv->dtype == SY_KV_Q8_0) {
        int64_t scale, code = sy_kv_q8_key(kv, 0, off, &width, &scale);
        for (int32_t d = 0; d < kv->d_key; d++)
            for (int32_t i = 0; i < n; i++) {
                int64_t s = scale + 2 * ((int64_t)(d / SY_KV_GROUP) * width + i);
                to[d][i] = (float)(int8_t)block[code + (int64_t)d * width + i] * sy_index_half(block + s, SY_KV_F16);
            }
        return;
    }
    int64_t es = sy_kv_elem_bytes(kv->dtype);
    const unsigned char *from = block + sy_kv_key(kv, off, &width) * es;
    for (int32_t d = 0; d < kv->d_key; d++, from += width * es)
        for (int32_t i = 0; i < n; i++) {
            if (kv->dtype == SY_KV_F32) memcpy(&to[d][i], from + 4 * i, sizeof(float));
            else to[d][i] = sy_index_half(from + 2 * i, kv->dtype);
        }
}

static void sy_index_scores(const struct sy_attend_index *a)
{
    const struct sy_kv_dim *kv = a->kv;
    _Alignas(64) float tile[SY_INDEX_DIM_MAX][SY_KV_PANEL];
    memset(tile, 0, (size_t)kv->d_key * sizeof tile[0]);
    for (int32_t j = a->lo, n; j < a->hi; j += n) {
        int32_t off = j % kv->block_len, width;
        (void)sy_kv_key(kv, off, &width);
        n = width - off % SY_KV_PANEL;
        if (n > a->hi - j) n = a->hi - j;
        sy_index_widen(kv, sy_kv_at(kv, a->layer, a->table, j), off, n, tile);
        float sum[SY_KV_PANEL] = {0};
        const float *q = a->q;
        for (int32_t h = 0; h < a->n_head; h++, q += kv->d_key) {
            float dot[SY_KV_PANEL] = {0};
            for (int32_t d = 0; d < kv->d_key; d++)
                for (int32_t i = 0; i < SY_KV_PANEL; i++) dot[i] += q[d] * tile[d][i];
            for (int32_t i = 0; i < SY_KV_PANEL; i++) sum[i] += a->w[h] * (dot[i] > 0 ? dot[i] : 0);
        }
        memcpy(a->score + (j - a->lo), sum, (size_t)n * sizeof *sum);
    }
}
