/* attend.c - attention in portable C: the meaning of struct sy_kernels_attend.
 *
 * A row is one query head of one query. Rows are handled SY_ROW_TILE at a time, so that an element of the cache is
 * widened to f32 once for all of them. Within a row nothing depends on the others: keys come in tiles at absolute
 * positions, a tile's masked keys are left out, and every sum runs upwards. */
#include "backend/cpu/attend_int.h"
#include "backend/cpu/kernel/index.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 64 };               /* elements of V widened at once */
#define LOG2E 1.44269504088896341f /* maxima are in units of log2, in every instruction set: e^x = 2^(x LOG2E) */

static inline float bf16_at(const void *p, int64_t i)
{
    uint16_t h;
    memcpy(&h, (const unsigned char *)p + 2 * i, sizeof h);
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void widen(enum sy_kv_dtype dtype, const unsigned char *base, int64_t first, int32_t n, float *to)
{
    const unsigned char *from = base + first * sy_kv_elem_bytes(dtype);
    if (dtype == SY_KV_F32) {
        memcpy(to, from, (size_t)n * sizeof *to);
    } else if (dtype == SY_KV_BF16) {
        for (int32_t i = 0; i < n; i++) to[i] = bf16_at(from, i);
    } else {
        for (int32_t i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, from + 2 * i, sizeof h);
            to[i] = sy_f16_to_f32(h);
        }
    }
}

static float f16_at(const unsigned char *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return sy_f16_to_f32(h);
}

/* Element d of K of the `width` keys from j on, which lie in one panel. */
static void key_row(const struct sy_attend *a, enum sy_kv_dtype dtype, int32_t j, int32_t d, int32_t width, float *to)
{
    const struct sy_kv_dim *kv = a->kv;
    const unsigned char *block = sy_kv_block(a, j);
    int32_t off = j % kv->block_len, stride;
    if (dtype != SY_KV_Q8_0) {
        int64_t at = sy_kv_head(kv, a->kv_head) + sy_kv_key(kv, off, &stride);
        widen(dtype, block, at + (int64_t)d * stride, width, to);
        return;
    }
    int64_t scale, code = sy_kv_q8_key(kv, a->kv_head, off, &stride, &scale) + (int64_t)d * stride;
    scale += 2 * (int64_t)(d / SY_KV_GROUP) * stride;
    for (int32_t i = 0; i < width; i++) to[i] = (float)(int8_t)block[code + i] * f16_at(block + scale + 2 * i);
}

/* Elements [d, d + width) of V of key j. */
static void value_row(const struct sy_attend *a, enum sy_kv_dtype dtype, int32_t j, int32_t d, int32_t width,
                      float *to)
{
    const struct sy_kv_dim *kv = a->kv;
    if (kv->shared) {
        for (int32_t i = 0; i < width; i++) key_row(a, dtype, j, d + i, 1, to + i);
        return;
    }
    const unsigned char *block = sy_kv_block(a, j);
    int32_t off = j % kv->block_len;
    if (dtype != SY_KV_Q8_0) {
        int64_t at = sy_kv_head(kv, a->kv_head) + (int64_t)kv->block_len * kv->d_key + (int64_t)off * kv->d_val + d;
        widen(dtype, block, at, width, to);
        return;
    }
    int64_t scale, code = sy_kv_q8_value(kv, a->kv_head, off, &scale);
    for (int32_t i = d; i < d + width; i++)
        to[i - d] = (float)(int8_t)block[code + i] * f16_at(block + scale + 2 * (i / SY_KV_GROUP));
}

struct row {
    const float *q;
    float *sum; /* d_val sums, maximum, denominator */
    struct sy_span seen;
    float score[SY_KEY_TILE];
};

/* score[j - t] = q . k for the keys j of `keys`, which lie in the tile from t on. */
static void scores(const struct sy_attend *a, enum sy_kv_dtype dtype, int32_t t, struct sy_span keys, struct row *row,
                   int32_t n)
{
    const struct sy_kv_dim *kv = a->kv;
    float k[SY_KV_PANEL];
    for (int32_t j = keys.lo, width; j < keys.hi; j += width) {
        int32_t off = j % kv->block_len;
        sy_kv_key(kv, off, &width);
        width -= off % SY_KV_PANEL;
        if (width > keys.hi - j) width = keys.hi - j;
        for (int32_t r = 0; r < n; r++)
            for (int32_t i = 0; i < width; i++) row[r].score[j - t + i] = 0;
        for (int32_t d = 0; d < kv->d_key; d++) {
            key_row(a, dtype, j, d, width, k);
            for (int32_t r = 0; r < n; r++) {
                float q = row[r].q[d], *score = row[r].score + (j - t);
                for (int32_t i = 0; i < width; i++) score[i] += q * k[i];
            }
        }
    }
}

/* One tile's softmax: score becomes 2^(score - maximum), and what the row summed before is brought to that maximum.
 */
static void soften(const struct sy_attend *a, struct sy_span keys, int32_t t, struct row *row)
{
    int32_t d_val = a->kv->d_val;
    float *sum = row->sum, *score = row->score, old = sum[d_val], max = old;
    for (int32_t j = keys.lo; j < keys.hi; j++) {
        float s = score[j - t] * a->scale;
        if (a->softcap > 0) s = a->softcap * tanhf(s / a->softcap);
        score[j - t] = s *= LOG2E;
        if (s > max) max = s;
    }
    /* All scores can be -inf: 2^(-inf - 0) is the zero that 2^(-inf - -inf) is not. */
    float ref = max == -INFINITY ? 0 : max, total = 0;
    for (int32_t j = keys.lo; j < keys.hi; j++) total += score[j - t] = exp2f(score[j - t] - ref);
    if (max != old) {
        float less = exp2f(old - ref);
        for (int32_t d = 0; d < d_val; d++) sum[d] *= less;
        sum[d_val + 1] *= less;
    }
    sum[d_val] = max;
    sum[d_val + 1] += total;
}

/* sum += p . v over the keys that each row sees in the tile. */
static void values(const struct sy_attend *a, enum sy_kv_dtype dtype, int32_t t, struct sy_span keys,
                   const struct row *row, int32_t n)
{
    const struct sy_kv_dim *kv = a->kv;
    float v[CHUNK];
    for (int32_t d = 0; d < kv->d_val; d += CHUNK) {
        int32_t width = kv->d_val - d < CHUNK ? kv->d_val - d : CHUNK;
        for (int32_t j = keys.lo; j < keys.hi; j++) {
            value_row(a, dtype, j, d, width, v);
            for (int32_t r = 0; r < n; r++) {
                /* What lies at a key that is not seen may be infinite: 0 * v is no way to leave it out. */
                if (j < row[r].seen.lo || j >= row[r].seen.hi) continue;
                float p = row[r].score[j - t], *sum = row[r].sum + d;
                for (int32_t i = 0; i < width; i++) sum[i] += p * v[i];
            }
        }
    }
}

static void rows(const struct sy_attend *a, enum sy_kv_dtype dtype, int32_t row0, int32_t n)
{
    struct row row[SY_ROW_TILE];
    int32_t d_val = a->kv->d_val, begin = a->part * SY_PARTITION, end = begin + SY_PARTITION;
    for (int32_t r = 0; r < n; r++) {
        row[r].q = sy_attend_q(a, row0 + r);
        row[r].sum = sy_attend_partial(a, a->part, row0 + r);
        row[r].seen = sy_span_cut(sy_attend_span(a, (row0 + r) / a->n_group), begin, end);
        memset(row[r].sum, 0, ((size_t)d_val + 2) * sizeof *row[r].sum);
        row[r].sum[d_val] = -INFINITY;
    }
    struct sy_span all = {row[0].seen.lo, row[n - 1].seen.hi};
    for (int32_t t = all.lo / SY_KEY_TILE * SY_KEY_TILE; t < all.hi; t += SY_KEY_TILE) {
        struct sy_span keys = sy_span_cut(all, t, t + SY_KEY_TILE);
        scores(a, dtype, t, keys, row, n);
        for (int32_t r = 0; r < n; r++) {
            struct sy_span seen = sy_span_cut(row[r].seen, keys.lo, keys.hi);
            if (seen.lo < seen.hi) soften(a, seen, t, &row[r]);
        }
        values(a, dtype, t, keys, row, n);
    }
}

static void part(const struct sy_attend *a, enum sy_kv_dtype dtype)
{
    int32_t all = a->n_q * a->n_group;
    for (int32_t r = 0; r < all; r += SY_ROW_TILE) rows(a, dtype, r, all - r < SY_ROW_TILE ? all - r : SY_ROW_TILE);
}

static void part_f32(const struct sy_attend *a) { part(a, SY_KV_F32); }
static void part_bf16(const struct sy_attend *a) { part(a, SY_KV_BF16); }
static void part_f16(const struct sy_attend *a) { part(a, SY_KV_F16); }
static void part_q8_0(const struct sy_attend *a) { part(a, SY_KV_Q8_0); }

/* Folds the partitions in ascending order. A partition of which the row sees nothing has the maximum -inf and counts
 * for nothing; if that is so of all, 0 / 0 tells. */
static void merge(const struct sy_attend *a)
{
    int32_t d_val = a->kv->d_val, lo, hi;
    sy_attend_range(a, &lo, &hi);
    for (int32_t r = 0; r < a->n_q * a->n_group; r++) {
        float *out = a->out + r / a->n_group * a->ldo + (int64_t)(r % a->n_group) * d_val;
        float max = -INFINITY, total = 0;
        memset(out, 0, (size_t)d_val * sizeof *out);
        for (int32_t p = lo; p < hi; p++) {
            const float *sum = sy_attend_partial(a, p, r);
            if (sum[d_val] == -INFINITY && !(sum[d_val + 1] != 0)) continue;
            float both = sum[d_val] > max ? sum[d_val] : max, ref = both == -INFINITY ? 0 : both;
            float old = exp2f(max - ref), add = exp2f(sum[d_val] - ref);
            for (int32_t d = 0; d < d_val; d++) out[d] = out[d] * old + sum[d] * add;
            total = total * old + sum[d_val + 1] * add;
            max = both;
        }
        float old = 1;
        if (a->sink) {
            float sink = a->sink[r % a->n_group] * LOG2E, both = sink > max ? sink : max;
            old = exp2f(max - both);
            total = total * old + exp2f(sink - both);
        }
        for (int32_t d = 0; d < d_val; d++) out[d] = out[d] * old / total;
    }
}

static void narrow(enum sy_kv_dtype dtype, float x, unsigned char *base, int64_t at)
{
    uint16_t h = dtype == SY_KV_BF16 ? sy_f32_to_bf16(x) : sy_f32_to_f16(x);
    if (dtype == SY_KV_F32) memcpy(base + 4 * at, &x, sizeof x);
    else memcpy(base + 2 * at, &h, sizeof h);
}

static void write(const struct sy_kv_dim *kv, enum sy_kv_dtype dtype, unsigned char *layer, const float *k,
                  int64_t ldk, const float *v, int64_t ldv, const int32_t *row, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        unsigned char *block = layer + row[i] / kv->block_len * kv->block_bytes;
        int32_t off = row[i] % kv->block_len, stride;
        for (int32_t h = 0; h < kv->n_kv; h++) {
            int64_t at = sy_kv_head(kv, h) + sy_kv_key(kv, off, &stride);
            for (int32_t d = 0; d < kv->d_key; d++)
                narrow(dtype, k[i * ldk + (int64_t)h * kv->d_key + d], block, at + (int64_t)d * stride);
            if (kv->shared) continue;
            at = sy_kv_head(kv, h) + (int64_t)kv->block_len * kv->d_key + (int64_t)off * kv->d_val;
            for (int32_t d = 0; d < kv->d_val; d++)
                narrow(dtype, v[i * ldv + (int64_t)h * kv->d_val + d], block, at + d);
        }
    }
}

#define WRITE(name, dtype)                                                                                           \
    static void name(const struct sy_kv_dim *kv, unsigned char *layer, const float *k, int64_t ldk, const float *v,  \
                     int64_t ldv, const int32_t *row, int32_t n)                                                     \
    {                                                                                                                \
        write(kv, dtype, layer, k, ldk, v, ldv, row, n);                                                             \
    }
WRITE(write_f32, SY_KV_F32)
WRITE(write_bf16, SY_KV_BF16)
WRITE(write_f16, SY_KV_F16)

/* A group of n elements; code[i] goes to code + i * step. */
static void quantise(const float *x, int32_t n, unsigned char *code, int64_t step, unsigned char *scale)
{
    float max = 0, bad = 0;
    for (int32_t i = 0; i < n; i++) {
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
        bad += x[i] - x[i]; /* 0, or NaN where x is not finite */
    }
    float s = max / 127 + bad;
    if (s > SY_KV_SCALE_MAX) s = SY_KV_SCALE_MAX;
    uint16_t h = sy_f32_to_f16(s);
    memcpy(scale, &h, sizeof h);
    s = sy_f16_to_f32(h);
    float inverse = s != 0 ? 1 / s : 0;
    for (int32_t i = 0; i < n; i++) {
        float c = x[i] * inverse;
        c = c < 127 ? c : 127;
        c = c > -127 ? c : -127;
        code[i * step] = (unsigned char)(int8_t)lrintf(c);
    }
}

static void quantise_row(const float *x, int32_t d, unsigned char *code, int64_t step, unsigned char *scale,
                         int64_t scale_step)
{
    for (int32_t i = 0; i < d; i += SY_KV_GROUP, scale += 2 * scale_step)
        quantise(x + i, d - i < SY_KV_GROUP ? d - i : SY_KV_GROUP, code + i * step, step, scale);
}

static void write_q8_0(const struct sy_kv_dim *kv, unsigned char *layer, const float *k, int64_t ldk, const float *v,
                       int64_t ldv, const int32_t *row, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        unsigned char *block = layer + row[i] / kv->block_len * kv->block_bytes;
        int32_t off = row[i] % kv->block_len, stride;
        int64_t scale, code;
        for (int32_t h = 0; h < kv->n_kv; h++) {
            code = sy_kv_q8_key(kv, h, off, &stride, &scale);
            quantise_row(k + i * ldk + (int64_t)h * kv->d_key, kv->d_key, block + code, stride, block + scale,
                         stride);
            if (kv->shared) continue;
            code = sy_kv_q8_value(kv, h, off, &scale);
            quantise_row(v + i * ldv + (int64_t)h * kv->d_val, kv->d_val, block + code, 1, block + scale, 1);
        }
    }
}

const struct sy_kernels_attend sy_attend_generic = {
    .write = {[SY_KV_F32] = write_f32, [SY_KV_BF16] = write_bf16, [SY_KV_F16] = write_f16, [SY_KV_Q8_0] = write_q8_0},
    .part = {[SY_KV_F32] = part_f32, [SY_KV_BF16] = part_bf16, [SY_KV_F16] = part_f16, [SY_KV_Q8_0] = part_q8_0},
    .merge = merge,
    .index = sy_index_scores,
};
