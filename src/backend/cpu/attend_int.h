/* attend_int.h - where a key or value lies in the KV cache, and which keys a query sees. Shared by attend.c and the
 * attention kernels, private to them.
 *
 * A block holds, for each kv head in turn, K and then V of its block_len positions:
 *   K  panels of up to SY_KV_PANEL positions, each [d_key][width]: lanes are positions, so a vector of scores is a
 * plain sum over d_key, with no reduction across lanes. Only a block's last panel can be narrower than SY_KV_PANEL.
 *   V  [block_len][d_val]: lanes are elements of the output.
 * The heads' bytes follow each other without gaps; the block is padded to SY_KV_ALIGN.
 *
 * q8_0: elements are codes of one byte, in groups of up to SY_KV_GROUP elements of one position with a binary16 scale
 * each. After a head's codes of K come the scales of K, in panels [groups of d_key][width]; after those of V the
 * scales of V, [block_len][groups of d_val].
 *
 * Where V is shared only K is there: one read more of K's panels in the order of V costs less than twice the cache.
 */
#pragma once
#include "backend/cpu/attend.h"

enum { SY_KV_PANEL = 16, SY_KV_ALIGN = 256 };
/* Keys per step of the online softmax, at absolute positions; the rows a kernel handles at once. */
enum { SY_KEY_TILE = 64, SY_ROW_TILE = 96 };
_Static_assert(SY_PARTITION % SY_KEY_TILE == 0 && SY_KEY_TILE % SY_KV_PANEL == 0, "tiles cut partitions evenly");

static inline int64_t sy_kv_elem_bytes(enum sy_kv_dtype dtype)
{
    return dtype == SY_KV_F32 ? 4 : dtype == SY_KV_Q8_0 ? 1 : 2;
}

/* Elements of V that are stored beside K. */
static inline int32_t sy_kv_stored(const struct sy_kv_dim *kv) { return kv->shared ? 0 : kv->d_val; }

/* First element of a head's K in its block; its V follows after block_len * d_key elements. */
static inline int64_t sy_kv_head(const struct sy_kv_dim *kv, int32_t head)
{
    return (int64_t)head * kv->block_len * ((int64_t)kv->d_key + sy_kv_stored(kv));
}

/* Where position `off` of a block has its element 0 of K, relative to the head's K; element d is d * *width further.
 */
static inline int64_t sy_kv_key(const struct sy_kv_dim *kv, int32_t off, int32_t *width)
{
    int32_t first = off / SY_KV_PANEL * SY_KV_PANEL, left = kv->block_len - first;
    *width = left < SY_KV_PANEL ? left : SY_KV_PANEL;
    return (int64_t)first * kv->d_key + (off - first);
}

static inline const unsigned char *sy_kv_at(const struct sy_kv_dim *kv, const unsigned char *layer,
                                            const int32_t *table, int32_t pos)
{
    return layer + table[pos / kv->block_len] * kv->block_bytes;
}
static inline const unsigned char *sy_kv_block(const struct sy_attend *a, int32_t pos)
{
    return sy_kv_at(a->kv, a->layer, a->table, pos);
}

/* ---- q8_0: offsets in bytes from the block's start ------------------------------------------------------------ */

/* Per group, for x[0..n) of one position: scale = largest |x| / 127 rounded to binary16, at most its largest finite
 * number, NaN if an x is not finite; code = x * (1 / scale), rounded to nearest even, within [-127, 127], 0 where the
 * scale is 0. code * scale is exact in f32. */
enum { SY_KV_GROUP = 32 };
#define SY_KV_SCALE_MAX 65504.0f
static inline int32_t sy_kv_groups(int32_t d) { return (d + SY_KV_GROUP - 1) / SY_KV_GROUP; }
/* One head's K or V of d elements per position: its codes, then its scales. */
static inline int64_t sy_kv_q8_side(const struct sy_kv_dim *kv, int32_t d)
{
    return kv->block_len * ((int64_t)d + 2 * sy_kv_groups(d));
}
/* Element 0 of K of position `off`; element d is d * *width further. *scale: its group 0; group g is g * *width
 * scales further. */
static inline int64_t sy_kv_q8_key(const struct sy_kv_dim *kv, int32_t head, int32_t off, int32_t *width,
                                   int64_t *scale)
{
    int64_t base = head * (sy_kv_q8_side(kv, kv->d_key) + sy_kv_q8_side(kv, sy_kv_stored(kv)));
    int32_t first = off / SY_KV_PANEL * SY_KV_PANEL;
    int64_t code = base + sy_kv_key(kv, off, width);
    *scale = base + (int64_t)kv->block_len * kv->d_key + 2 * ((int64_t)first * sy_kv_groups(kv->d_key) + off - first);
    return code;
}
/* Element 0 of V of position `off`, and the scale of its group 0. */
static inline int64_t sy_kv_q8_value(const struct sy_kv_dim *kv, int32_t head, int32_t off, int64_t *scale)
{
    int64_t side = sy_kv_q8_side(kv, kv->d_key);
    int64_t base = head * (side + sy_kv_q8_side(kv, kv->d_val)) + side;
    *scale = base + (int64_t)kv->block_len * kv->d_val + 2 * (int64_t)off * sy_kv_groups(kv->d_val);
    return base + (int64_t)off * kv->d_val;
}

/* The head's keys of a panel of SY_KV_PANEL positions from j on, in a block of whole panels, and their values; in a
 * q8_0 cache the scales of both. */
struct sy_kv_panel {
    const unsigned char *key, *value, *key_scale, *value_scale;
};
static inline struct sy_kv_panel sy_kv_panel_at(const struct sy_attend *a, enum sy_kv_dtype dtype, int32_t j)
{
    const struct sy_kv_dim *kv = a->kv;
    const int64_t es = sy_kv_elem_bytes(dtype), head = sy_kv_head(kv, a->kv_head);
    const unsigned char *block = sy_kv_block(a, j);
    int32_t off = j % kv->block_len, width;
    if (dtype == SY_KV_Q8_0) {
        int64_t k_scale, v_scale, k = sy_kv_q8_key(kv, a->kv_head, off, &width, &k_scale);
        int64_t v = sy_kv_q8_value(kv, a->kv_head, off, &v_scale);
        return (struct sy_kv_panel){block + k, block + v, block + k_scale, block + v_scale};
    }
    int64_t k = head + (int64_t)off * kv->d_key;
    int64_t v = head + (int64_t)kv->block_len * kv->d_key + (int64_t)off * kv->d_val;
    return (struct sy_kv_panel){.key = block + k * es, .value = block + v * es};
}

struct sy_span {
    int32_t lo, hi; /* keys lo <= j < hi; empty when hi <= lo */
};
static inline struct sy_span sy_span_cut(struct sy_span s, int32_t lo, int32_t hi)
{
    return (struct sy_span){s.lo > lo ? s.lo : lo, s.hi < hi ? s.hi : hi};
}
/* Keys that query q of the item sees. */
static inline struct sy_span sy_attend_span(const struct sy_attend *a, int32_t q)
{
    int32_t pos = a->pos0 + q, lo = a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
    int32_t first = a->chunk > 0 ? pos - pos % a->chunk : 0;
    return (struct sy_span){lo > first ? lo : first, pos + 1};
}

/* Row r of an item is query r / n_group, head r % n_group of the group. */
static inline const float *sy_attend_q(const struct sy_attend *a, int32_t r)
{
    return a->q + r / a->n_group * a->ldq + (int64_t)(r % a->n_group) * a->kv->d_key;
}
static inline float *sy_attend_partial(const struct sy_attend *a, int32_t part, int32_t r)
{
    int32_t lo = sy_attend_span(a, 0).lo / SY_PARTITION;
    return a->partial + ((int64_t)(part - lo) * a->n_q * a->n_group + r) * ((int64_t)a->kv->d_val + 2);
}
