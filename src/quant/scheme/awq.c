/* awq.c - AutoAWQ's "gemm" layout: integers of 4 bits in words of 32, transposed.
 *
 *   qweight  [cols, rows / 8] I32: element (row, column) is in word row / 8 of a column; of eight rows number j is at
 *            bits 4 * place[j]
 *   qzeros   [cols / group, rows / 8] I32, packed alike
 *   scales   [cols / group, rows] F16 or BF16
 *
 *   w[r][i] = scale[i / group][r] * (code - zero[i / group][r]) */
#include "quant/scheme/scheme_int.h"

enum { CODES, ZERO, SCALE };

static bool claims(const struct sy_scheme_conf *c) { return !strcmp(c->format, "awq") && c->bits == 4; }

static int nibble_at(const struct sy_parts *p, const struct sy_part *t, int64_t line, int64_t r)
{
    static const uint8_t place[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return (int)(sy_u32_at(t->at + 4 * (line * (p->rows / 8) + r / 8)) >> (4 * place[r % 8])) & 15;
}

static void row(const struct sy_parts *p, int64_t r, float *dst)
{
    for (int64_t i = 0; i < p->cols; i++) {
        int64_t g = i / p->group;
        float s = sy_part_float(&p->part[SCALE], g * p->rows + r);
        dst[i] = (float)(nibble_at(p, &p->part[CODES], i, r) - nibble_at(p, &p->part[ZERO], g, r)) * s;
    }
}

static void row_codes(const struct sy_parts *p, int64_t r, uint8_t *code, float *scale, float *min)
{
    for (int64_t i = 0; i < p->cols; i++) code[i] = (uint8_t)nibble_at(p, &p->part[CODES], i, r);
    for (int64_t k = 0; k < p->cols / p->format.affine.group; k++) {
        int64_t g = k / sy_parts_spread(p);
        scale[k] = sy_part_float(&p->part[SCALE], g * p->rows + r);
        min[k] = -scale[k] * (float)nibble_at(p, &p->part[ZERO], g, r);
    }
}

static sy_status bind(struct sy_arena *a, const struct sy_scheme_conf *c, struct sy_parts *p, bool *mine,
                      struct sy_err *err)
{
    (void)a;
    const struct sy_part *w = &p->part[CODES];
    *mine = true;
    sy_status st = sy_part_need(p, CODES, SY_TYPE(I32), "codes", err);
    if (!st) st = sy_part_shape(w, 2, -1, -1, err);
    if (!st) st = sy_part_need(p, ZERO, SY_TYPE(I32), "zeros", err);
    if (!st) st = sy_part_need(p, SCALE, SY_TYPES_FLOAT, "scales", err);
    if (st) return st;
    if (c->symmetric)
        return sy_fail(err, SY_ENOSUP, "tensor '%s' is there, but the quantization config says 'zero_point': false",
                       p->part[ZERO].name);
    p->n_dim = 2;
    p->dim[0] = p->rows = 8 * w->dim[1];
    p->dim[1] = p->cols = w->dim[0];
    p->group = c->group ? c->group : p->cols;
    if (p->cols % p->group)
        return sy_fail(err, SY_ENOSUP, "tensor '%s': groups of %lld do not divide rows of %lld", w->name,
                       (long long)p->group, (long long)p->cols);
    st = sy_part_shape(&p->part[ZERO], 2, p->cols / p->group, p->rows / 8, err);
    if (!st) st = sy_part_shape(&p->part[SCALE], 2, p->cols / p->group, p->rows, err);
    p->format.row = row;
    p->format.row_codes = row_codes;
    sy_parts_affine(p, "awq", (struct sy_affine){.bits = 4, .has_min = true});
    return st;
}

const struct sy_scheme sy_scheme_awq = {
    .name = "awq",
    .names = {{".weight", {".qweight", ".qzeros", ".scales"}}},
    .claims = claims,
    .bind = bind,
};
