/* packed.c - compressed-tensors' "pack-quantized": integers of 4 or 8 bits in words of 32.
 *
 *   weight_packed      [rows, cols / n] I32, n = 32 / bits: element j of a word at bits j * bits, moved up by half
 * the range weight_scale       [rows, cols / group] or [rows, 1]: F32, F16, BF16 weight_zero_point  [rows / n, cols /
 * group] I32, packed downwards; absent when symmetric weight_g_idx       [cols] I32: the group of each column; absent
 * unless ordered by activations ("actorder") weight_shape       [2] I64: rows, cols
 *
 *   w[r][i] = scale[r][g] * (code - zero[r][g]), g = i / group or g_idx[i] */
#include "quant/scheme/scheme_int.h"

enum { CODES, SCALE, ZERO, ORDER, SHAPE };

static bool claims(const struct sy_scheme_conf *c)
{
    return !strcmp(c->format, "pack-quantized") && !c->is_float && (c->bits == 4 || c->bits == 8);
}

static int code_at(const struct sy_parts *p, const unsigned char *words, int64_t i)
{
    return (int)(sy_u32_at(words + i * p->bits / 32 * 4) >> (i * p->bits % 32)) & ((1 << p->bits) - 1);
}

/* As stored: half the range stands for 0. */
static int zero_at(const struct sy_parts *p, int64_t r, int64_t g)
{
    if (!p->part[ZERO].name) return 1 << (p->bits - 1);
    int64_t n = 32 / p->bits, across = p->cols / p->group;
    uint32_t word = sy_u32_at(p->part[ZERO].at + 4 * (r / n * across + g));
    return (int)(word >> (r % n * p->bits)) & ((1 << p->bits) - 1);
}

static void row(const struct sy_parts *p, int64_t r, float *dst)
{
    const unsigned char *words = p->part[CODES].at + r * p->cols * p->bits / 8, *order = p->part[ORDER].at;
    int64_t across = p->cols / p->group;
    for (int64_t i = 0; i < p->cols; i++) {
        int64_t g = p->variant ? (int64_t)sy_u32_at(order + 4 * i) : i / p->group;
        dst[i] = (float)(code_at(p, words, i) - zero_at(p, r, g)) * sy_part_float(&p->part[SCALE], r * across + g);
    }
}

static void row_codes(const struct sy_parts *p, int64_t r, uint8_t *code, float *scale, float *min)
{
    const unsigned char *words = p->part[CODES].at + r * p->cols * p->bits / 8;
    int64_t across = p->cols / p->group;
    for (int64_t i = 0; i < p->cols; i++) code[i] = (uint8_t)code_at(p, words, i);
    for (int64_t k = 0; k < p->cols / p->format.affine.group; k++) {
        int64_t g = k / sy_parts_spread(p);
        scale[k] = sy_part_float(&p->part[SCALE], r * across + g);
        if (min) min[k] = -scale[k] * (float)zero_at(p, r, g);
    }
}

static sy_status bind_zero(const struct sy_scheme_conf *c, struct sy_parts *p, struct sy_err *err)
{
    const struct sy_part *z = &p->part[ZERO];
    if (!z->name && c->symmetric) return SY_OK;
    if (z->name && c->symmetric)
        return sy_fail(err, SY_ENOSUP, "tensor '%s' is there, but the quantization config says symmetric", z->name);
    sy_status st = sy_part_need(p, ZERO, SY_TYPE(I32), "zero points", err);
    return st ? st : sy_part_shape(z, 2, sy_ceil_div(p->rows, 32 / p->bits), p->cols / p->group, err);
}

static sy_status bind_order(const struct sy_scheme_conf *c, struct sy_parts *p, struct sy_err *err)
{
    if (!p->part[ORDER].name && !c->ordered) return SY_OK;
    int64_t odd = -1;
    sy_status st = sy_part_order(p, ORDER, &odd, err);
    if (!st && odd >= 0) p->variant = 1;
    return st;
}

static sy_status bind(struct sy_arena *a, const struct sy_scheme_conf *c, struct sy_parts *p, bool *mine,
                      struct sy_err *err)
{
    (void)a;
    const struct sy_part *w = &p->part[CODES], *shape = &p->part[SHAPE];
    *mine = true;
    sy_status st = sy_part_need(p, CODES, SY_TYPE(I32), "codes", err);
    if (!st) st = sy_part_shape(w, 2, -1, -1, err);
    if (!st) st = sy_part_need(p, SCALE, SY_TYPES_FLOAT, "scales", err);
    if (!st) st = sy_part_need(p, SHAPE, SY_TYPE(I64), "shape", err);
    if (!st) st = sy_part_shape(shape, 1, 2, 0, err);
    if (st) return st;
    int64_t dim[2], n = 32 / c->bits;
    memcpy(dim, shape->at, sizeof dim);
    if (dim[0] != w->dim[0] || w->dim[1] > INT64_MAX / 32 || dim[1] != w->dim[1] * n || dim[1] < 1)
        return sy_fail(err, SY_ESHAPE,
                       "tensor '%s': [%lld, %lld] of %d bits each: '%s' is [%lld, %lld], %lld to a word", shape->name,
                       (long long)dim[0], (long long)dim[1], c->bits, w->name, (long long)w->dim[0],
                       (long long)w->dim[1], (long long)n);
    p->n_dim = 2;
    p->dim[0] = p->rows = dim[0];
    p->dim[1] = p->cols = dim[1];
    p->bits = c->bits;
    p->group = c->group ? c->group : p->cols;
    if (p->cols % p->group)
        return sy_fail(err, SY_ENOSUP, "tensor '%s': groups of %lld do not divide rows of %lld", w->name,
                       (long long)p->group, (long long)p->cols);
    st = sy_part_shape(&p->part[SCALE], 2, p->rows, p->cols / p->group, err);
    if (!st) st = bind_zero(c, p, err);
    if (!st) st = bind_order(c, p, err);
    if (st) return st;
    p->format.row = row;
    p->format.row_codes = row_codes;
    bool moved = p->part[ZERO].name != NULL;
    const char *name = c->bits == 4 ? "int4 packed" : "int8 packed";
    p->format.name = name;
    p->format.gguf_type = -1;
    p->format.block_len = 1;
    /* Bytes with a moving zero point have no layout: a pair of their products needs more than 16 bits. */
    if (!p->variant && !(moved && c->bits == 8))
        sy_parts_affine(
            p, name, (struct sy_affine){.bits = c->bits, .zero = moved ? 0 : 1 << (c->bits - 1), .has_min = moved});
    return SY_OK;
}

const struct sy_scheme sy_scheme_packed = {
    .name = "packed",
    .names = {{".weight",
               {".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_g_idx", ".weight_shape"}}},
    .claims = claims,
    .bind = bind,
};
