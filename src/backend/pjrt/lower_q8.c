/* lower_q8.c - a KV cache of bytes (--kv-dtype q8_0). Numbers of a head share a scale by groups of the largest size
 * that divides 128 and the head's width, so that a kernel for TPUs can scale sums of whole heads; the cpu backend has
 * groups of 32. A scale is the largest magnitude / 127, rounded up to bfloat16, and a code is the number / scale,
 * rounded to nearest even. Scales lie in an array of their own, i8 [n_block, block_len, 2 * groups, or more]: the
 * upper bytes of those of keys, their lower bytes, then the same of values, then nothing; all arrays of a cache are
 * of one type, whichever moves them. A kernel asks for blocks of that array too, of rows as wide as vectors. */
#include "backend/pjrt/lower_int.h"

static int64_t group_of(int64_t d)
{
    int64_t n = 128;
    while (d % n) n /= 2;
    return n;
}

int64_t lower_q8_groups(int64_t n_head, int64_t d) { return n_head * (d / group_of(d)); }

int64_t lower_q8_width(const struct sy_attn_dim *d, bool kernel)
{
    int64_t n = lower_q8_groups(d->n_kv, d->d_key) + (d->shared ? 0 : lower_q8_groups(d->n_kv, d->d_val));
    return kernel ? sy_ceil_div(2 * n, 128) * 128 : 2 * n;
}

static int bits_of(struct pj_hlo *h, int x) { return pj_bitcast(h, x, PJ_I32); }
static int shifted(struct pj_hlo *h, const char *how, int x, int n)
{
    return pj_binary(h, how, x, pj_splat(h, n, x));
}

/* Codes f32 [rows, n_head * d] of x, and the bytes of their scales i8 [rows, 2 * groups]. */
static int codes(struct pj_hlo *h, int x, int64_t n_head, int64_t d, int *scale_bytes)
{
    int64_t rows = pj_type_of(h, x)->dim[0], n = lower_q8_groups(n_head, d);
    struct pj_type t = PJ_TYPE(PJ_F32, rows, n, group_of(d));
    x = pj_reshape(h, x, 3, t.dim);
    int scale = pj_reduce(h, "maximum", pj_unary(h, "abs", x), 2, 0);
    scale = pj_binary(h, "multiply", scale, pj_splat(h, 1.0 / 127, scale));
    int bits = pj_binary(h, "add", bits_of(h, scale), pj_const(h, PJ_TYPE(PJ_I32, rows, n), 65535));
    bits = pj_binary(h, "minimum", bits, pj_splat(h, 0x7f800000, bits)); /* not finite: infinite */
    int upper = shifted(h, "shift_right_logical", bits, 16);
    scale = pj_bitcast(h, shifted(h, "shift_left", upper, 16), PJ_F32);
    int is = pj_compare(h, "GT", scale, pj_splat(h, 0, scale));
    int by = pj_select(h, is, pj_binary(h, "divide", pj_splat(h, 1, scale), scale), pj_splat(h, 0, scale));
    x = pj_binary(h, "multiply", x, PJ_BROADCAST(h, by, t, 0, 1));
    x = pj_unary(h, "round_nearest_even", x);
    x = pj_binary(h, "maximum", pj_binary(h, "minimum", x, pj_splat(h, 127, x)), pj_splat(h, -127, x));
    int part[] = {shifted(h, "shift_right_logical", upper, 7), shifted(h, "and", upper, 127)};
    part[0] = shifted(h, "subtract", part[0], 128);
    for (int i = 0; i < 2; i++) part[i] = pj_convert(h, part[i], PJ_I8);
    *scale_bytes = pj_concat(h, part, 2, 1);
    return PJ_RESHAPE(h, x, rows, n_head * d);
}

void lower_q8_write(struct lower *l, const struct sy_node *n, int *state, int rows)
{
    struct pj_hlo *h = &l->h;
    const struct sy_attn_dim *d = &n->attr.attn;
    int scale[2], sides = d->shared ? 1 : 2;
    for (int i = 0; i < sides; i++) {
        int x = codes(h, l->val[n->in[1 + i].id], d->n_kv, i ? d->d_val : d->d_key, &scale[i]);
        state[i] = lower_write_rows(l, state[i], x, rows);
    }
    int all = pj_concat(h, scale, sides, 1);
    int64_t more = pj_type_of(h, state[sides])->dim[2] - pj_type_of(h, all)->dim[1];
    if (more > 0) all = pj_pad_after(h, all, 1, more);
    state[sides] = lower_write_rows(l, state[sides], all, rows);
}

/* Scales f32 [.., groups] from their bytes [.., of all], those of keys or of values. */
static int scales_of(struct pj_hlo *h, const struct sy_attn_dim *d, int bytes, int side)
{
    int last = pj_type_of(h, bytes)->n_dim - 1;
    int64_t keys = lower_q8_groups(d->n_kv, d->d_key), n = side ? lower_q8_groups(d->n_kv, d->d_val) : keys;
    int64_t from = side ? 2 * keys : 0;
    int upper = pj_convert(h, pj_slice(h, bytes, last, from, from + n), PJ_I32);
    int lower = pj_convert(h, pj_slice(h, bytes, last, from + n, from + 2 * n), PJ_I32);
    upper = shifted(h, "shift_left", shifted(h, "add", upper, 128), 23);
    return pj_bitcast(h, pj_binary(h, "or", upper, shifted(h, "shift_left", lower, 16)), PJ_F32);
}

/* Scales of a table's blocks i32 [s, blocks]: f32 [s, blocks * block_len, groups]. */
static int fetch_scales(struct lower *l, const struct sy_attn_dim *d, int array, int blocks, int side)
{
    struct pj_hlo *h = &l->h;
    struct pj_type t = *pj_type_of(h, array), at = *pj_type_of(h, blocks);
    int x = PJ_RESHAPE(h, pj_gather(h, array, blocks), at.dim[0], at.dim[1] * t.dim[1], t.dim[2]);
    return scales_of(h, d, x, side);
}

int lower_q8_fetch(struct lower *l, const struct sy_attn_dim *d, const int *arrays, int blocks, int side,
                   enum pj_elem elem)
{
    struct pj_hlo *h = &l->h;
    int codes = lower_fetch(l, arrays[side], blocks, PJ_F32);
    struct pj_type t = *pj_type_of(h, codes);
    int64_t width = side ? d->d_val : d->d_key, n = lower_q8_groups(d->n_kv, width);
    struct pj_type grouped = PJ_TYPE(PJ_F32, t.dim[0], t.dim[1], n, group_of(width));
    int scale = fetch_scales(l, d, arrays[d->shared ? 1 : 2], blocks, side);
    int x = pj_binary(h, "multiply", pj_reshape(h, codes, 4, grouped.dim), PJ_BROADCAST(h, scale, grouped, 0, 1, 2));
    return pj_convert(h, PJ_RESHAPE(h, x, t.dim[0], t.dim[1], d->n_kv, width), elem);
}

const char *lower_q8_refuses(const struct sy_node *n)
{
    return n->op == SY_OP_INDEX || n->op == SY_OP_KEEP || (n->op == SY_OP_ATTEND && (n->in[5].id || n->in[6].id))
               ? "keys that an indexer chooses or that are kept of runs"
           : n->op == SY_OP_ATTEND && n->attr.attn.stage_ranks != 0 ? "stages of layers"
                                                                    : NULL;
}
