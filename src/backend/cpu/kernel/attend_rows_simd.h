/* attend_rows_simd.h - the online softmax of a work item's rows, for the names of a simd.h. A row is one query head
 * of one query; its scores of SY_KEY_TILE keys at a time become weights, and what it has summed so far follows its
 * maximum.
 */
#include "backend/cpu/attend_int.h"
#include "backend/cpu/kernel/math_simd.h"

#include <string.h>

#define LOG2E 1.44269504088896341f

struct rows {
    const struct sy_attend *a;
    int32_t n_row;
    float factor;                                 /* of scores, before they are exponents of 2 */
    float *sum[SY_ROW_TILE];                      /* d_val sums, maximum, denominator */
    struct sy_span seen[SY_ROW_TILE];             /* keys of the partition */
    struct sy_span now[SY_ROW_TILE];              /* keys of the tile */
    float top[SY_ROW_TILE];                       /* maximum so far */
    _Alignas(64) float total[SY_ROW_TILE][LANES]; /* denominator so far, in lanes */
    _Alignas(64) float score[SY_ROW_TILE][SY_KEY_TILE];
};

/* Rows [row0, row0 + n) of an item; returns the keys of the partition that some of them see. */
INLINE struct sy_span rows_begin(struct rows *w, const struct sy_attend *a, int32_t row0, int32_t n)
{
    int32_t d_val = a->kv->d_val, begin = a->part * SY_PARTITION;
    w->a = a;
    w->n_row = n;
    w->factor = (a->softcap > 0 ? a->softcap : a->scale) * LOG2E;
    for (int32_t r = 0; r < n; r++) {
        w->sum[r] = sy_attend_partial(a, a->part, row0 + r);
        w->seen[r] = sy_span_cut(sy_attend_span(a, (row0 + r) / a->n_group), begin, begin + SY_PARTITION);
        w->top[r] = -__builtin_inff();
        v_store(w->total[r], v_set(0));
        memset(w->sum[r], 0, (size_t)d_val * sizeof *w->sum[r]);
    }
    return (struct sy_span){w->seen[0].lo, w->seen[n - 1].hi};
}

INLINE void rows_end(struct rows *w)
{
    int32_t d_val = w->a->kv->d_val;
    for (int32_t r = 0; r < w->n_row; r++) {
        w->sum[r][d_val] = w->top[r];
        w->sum[r][d_val + 1] = v_sum(v_load(w->total[r]));
    }
}

/* A larger maximum: what row r summed so far is brought to it. */
static __attribute__((noinline)) void raise_top(struct rows *w, int32_t r, float top)
{
    float *sum = w->sum[r], old = w->top[r];
    int32_t d_val = w->a->kv->d_val, d = 0;
    w->top[r] = top;
    if (old == -__builtin_inff()) return; /* nothing yet */
    VF less = v_exp2(v_set(old - top));
    v_store(w->total[r], v_load(w->total[r]) * less);
    for (; d + LANES <= d_val; d += LANES) v_store(sum + d, v_load(sum + d) * less);
    if (d < d_val) v_store_n(sum + d, v_load_n(sum + d, d_val - d) * less, d_val - d);
}

/* One tile's softmax of row r: scores become 2^(score - maximum). Keys that are not seen become -inf,
 * hence exactly 0. */
INLINE void soften(struct rows *w, int32_t r, int32_t t)
{
    enum { N = SY_KEY_TILE / LANES };
    const struct sy_attend *a = w->a;
    int32_t lo = w->now[r].lo - t, hi = w->now[r].hi - t;
    float *p = w->score[r];
    VF s[N], tree[N];
    for (int i = 0; i < N; i++) {
        s[i] = v_load(p + i * LANES);
        if (a->softcap > 0) s[i] = v_tanh(s[i] * v_set(a->scale / a->softcap));
        s[i] = s[i] * v_set(w->factor);
    }
    if (hi - lo < SY_KEY_TILE)
        for (int i = 0; i < N; i++) s[i] = v_span(s[i], lo - i * LANES, hi - i * LANES);
    for (int i = 0; i < N; i++) tree[i] = s[i];
    for (int n = N / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) tree[i] = v_max(tree[i], tree[i + n]);
    if (v_above(tree[0], v_set(w->top[r]))) raise_top(w, r, v_top(tree[0]));
    /* All scores so far can be -inf: 2^(-inf - 0) is the zero that 2^(-inf - -inf) is not. */
    VF top = v_set(w->top[r] == -__builtin_inff() ? 0 : w->top[r]);
    for (int i = 0; i < N; i++) {
        tree[i] = v_exp2(s[i] - top);
        v_store(p + i * LANES, tree[i]);
    }
    for (int n = N / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) tree[i] = tree[i] + tree[i + n];
    v_store(w->total[r], v_load(w->total[r]) + tree[0]);
}

/* The tile at t, of which `keys` are seen by some row. */
INLINE void rows_soften(struct rows *w, int32_t t, struct sy_span keys)
{
    for (int32_t r = 0; r < w->n_row; r++) {
        w->now[r] = sy_span_cut(w->seen[r], keys.lo, keys.hi);
        if (w->now[r].lo < w->now[r].hi) soften(w, r, t);
    }
}

/* All rows see all of `keys`. */
INLINE bool rows_same(const struct rows *w, struct sy_span keys)
{
    bool same = true;
    for (int32_t r = 0; r < w->n_row; r++) same &= w->now[r].lo == keys.lo && w->now[r].hi == keys.hi;
    return same;
}
