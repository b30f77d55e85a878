/* mxfp4.c - MXFP4 (OCP Microscaling Formats 1.0): e2m1 elements, a power of two for 32 of them.
 *
 *   NAME_blocks  [experts, rows, cols / 32, 16] U8, low nibble first      compressed-tensors: NAME.weight_packed
 *   NAME_scales  [experts, rows, cols / 32] U8, biased by 127             [rows, cols / 2], NAME.weight_scale
 *
 *   w[r][i] = e2m1[i] * 2^(scale[r][i / 32] - 127)
 *
 * gpt-oss stores its experts so, as NAME [experts, outputs, inputs]: the transpose of what its unquantised
 * checkpoints hold under NAME. */
#include "quant/scheme/scheme_int.h"

enum { CODES, SCALE };

static bool claims(const struct sy_scheme_conf *c)
{
    return c->is_float && c->bits == 4 && (!strcmp(c->format, "mxfp4") || !strcmp(c->format, "mxfp4-pack-quantized"));
}

static void row_codes(const struct sy_parts *p, int64_t r, uint8_t *code, float *scale, float *min)
{
    (void)min;
    const unsigned char *w = p->part[CODES].at + r * p->cols / 2, *s = p->part[SCALE].at + r * (p->cols / 32);
    for (int64_t i = 0; i < p->cols; i++) code[i] = (uint8_t)(sy_e2m1_twice[w[i / 2] >> (i % 2 * 4) & 15] + 128);
    for (int64_t g = 0; g < p->cols / 32; g++) scale[g] = 0.5f * sy_e8m0_widen(s[g]);
}

static void row(const struct sy_parts *p, int64_t r, float *dst)
{
    const unsigned char *w = p->part[CODES].at + r * p->cols / 2, *s = p->part[SCALE].at + r * (p->cols / 32);
    for (int64_t i = 0; i < p->cols; i++)
        dst[i] = (float)sy_e2m1_twice[w[i / 2] >> (i % 2 * 4) & 15] * (0.5f * sy_e8m0_widen(s[i / 32]));
}

static sy_status wrong(const struct sy_part *t, const char *want, struct sy_err *err)
{
    return sy_fail(err, SY_ESHAPE, "tensor '%s': expected %s, found %d dimensions, [%lld, %lld, %lld, %lld]", t->name,
                   want, t->n_dim, (long long)t->dim[0], (long long)t->dim[1], (long long)t->dim[2],
                   (long long)t->dim[3]);
}

static sy_status bind(struct sy_arena *a, const struct sy_scheme_conf *c, struct sy_parts *p, bool *mine,
                      struct sy_err *err)
{
    (void)a;
    const struct sy_part *w = &p->part[CODES], *s = &p->part[SCALE];
    *mine = true;
    sy_status st = sy_part_need(p, CODES, SY_TYPE(U8), "codes", err);
    if (!st) st = sy_part_need(p, SCALE, SY_TYPE(U8) | SY_TYPE(E8M0), "scales", err);
    if (st) return st;
    if (c->group != 32)
        return sy_fail(err, SY_ENOSUP, "tensor '%s': groups of %lld: expected 32", w->name, (long long)c->group);
    if (p->names == 0) {
        if (w->n_dim != 4 || w->dim[3] != 16) return wrong(w, "[experts, rows, groups, 16]", err);
        if (s->n_dim != 3 || s->dim[0] != w->dim[0] || s->dim[1] != w->dim[1] || s->dim[2] != w->dim[2])
            return wrong(s, "[experts, rows, groups] of the codes", err);
        p->n_dim = 3;
        p->dim[0] = w->dim[0];
        p->dim[1] = w->dim[1];
        p->dim[2] = 32 * w->dim[2];
        p->rows = p->dim[0] * p->dim[1];
        p->cols = p->dim[2];
    } else {
        if (w->n_dim != 2 || w->dim[1] % 16) return wrong(w, "[rows, groups x 16]", err);
        st = sy_part_shape(s, 2, w->dim[0], w->dim[1] / 16, err);
        if (st) return st;
        p->n_dim = 2;
        p->dim[0] = p->rows = w->dim[0];
        p->dim[1] = p->cols = 2 * w->dim[1];
    }
    p->group = 32;
    p->format.row = row;
    p->format.row_codes = row_codes;
    sy_parts_affine(p, "mxfp4", (struct sy_affine){.bits = 8, .zero = 128, .e2m1 = true});
    return SY_OK;
}

const struct sy_scheme sy_scheme_mxfp4 = {
    .name = "mxfp4",
    .names = {{"", {"_blocks", "_scales"}}, {".weight", {".weight_packed", ".weight_scale"}}},
    .claims = claims,
    .bind = bind,
};
