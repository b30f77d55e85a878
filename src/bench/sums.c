#include "bench/sums.h"

#include <math.h>

#include "backend/cpu/attend_int.h"
#include "quant/quant.h"

static float rounded_to_bf16(float x) { return sy_bf16_to_f32(sy_f32_to_bf16(x)); }

/* sum, more: d_val sums, their maximum (an exponent of 2), the denominator. */
static void add(float *sum, const float *more, int32_t d_val)
{
    float top = fmaxf(sum[d_val], more[d_val]);
    if (top == -INFINITY) return; /* nothing seen yet */
    float old = exp2f(sum[d_val] - top), own = exp2f(more[d_val] - top);
    for (int32_t i = 0; i < d_val; i++) sum[i] = rounded_to_bf16(rounded_to_bf16(sum[i] * old) + more[i] * own);
    sum[d_val] = top;
    sum[d_val + 1] = rounded_to_bf16(rounded_to_bf16(sum[d_val + 1] * old) + more[d_val + 1] * own);
}

/* Keys [lo, hi) alone, as the last ones of a sequence that begins with the block they begin in. */
static void one_tile(const struct sy_kernels_attend *k, enum sy_kv_dtype dtype, struct sy_attend row, int32_t lo,
                     int32_t hi, bool rounded, float *sum)
{
    float own[SY_SUM_VALUES + 2];
    int32_t begin = lo / row.kv->block_len * row.kv->block_len;
    row.table += begin / row.kv->block_len;
    row.pos0 = hi - 1 - begin;
    row.window = hi - lo;
    row.chunk = 0;
    row.part = (lo - begin) / SY_PARTITION;
    row.n_part = 1;
    row.partial = own;
    sy_attend_part(k, dtype, &row, rounded);
    add(sum, own, row.kv->d_val);
}

void sy_attend_part_bf16_sums(const struct sy_kernels_attend *k, enum sy_kv_dtype dtype, const struct sy_attend *a,
                              bool rounded)
{
    int32_t d_val = a->kv->d_val, begin = a->part * SY_PARTITION;
    sy_assert(d_val <= SY_SUM_VALUES);
    for (int32_t r = 0; r < a->n_q * a->n_group; r++) {
        struct sy_span seen = sy_span_cut(sy_attend_span(a, r / a->n_group), begin, begin + SY_PARTITION);
        struct sy_attend row = *a;
        row.q = sy_attend_q(a, r);
        row.n_q = row.n_group = 1;
        float *sum = sy_attend_partial(a, a->part, r);
        for (int32_t i = 0; i < d_val + 2; i++) sum[i] = 0;
        sum[d_val] = -INFINITY;
        for (int32_t lo = seen.lo, hi; lo < seen.hi; lo = hi) {
            hi = lo / SY_SUM_KEYS * SY_SUM_KEYS + SY_SUM_KEYS;
            if (hi > seen.hi) hi = seen.hi;
            one_tile(k, dtype, row, lo, hi, rounded, sum);
        }
    }
}
