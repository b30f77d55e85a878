/* nvfp4.c - NVIDIA's NVFP4: e2m1 elements, an e4m3 scale for 16 of them, one float for the whole weight.
 *
 *   weight_packed  [rows, cols / 2] U8, low nibble first          ModelOpt: weight
 *   weight_scale   [rows, cols / 16] F8_E4M3
 *   weight_global_scale  one F32, a divisor                       ModelOpt: weight_scale_2, a factor
 *
 *   w[r][i] = e2m1[i] * scale[r][i / 16] / global                          ... * scale_2 */
#include "quant/scheme/scheme_int.h"

enum { CODES, SCALE, WHOLE, PRE };

static bool claims(const struct sy_scheme_conf *c)
{
    return !strcmp(c->format, "nvfp4-pack-quantized") && c->is_float && c->bits == 4;
}

static void row_codes(const struct sy_parts *p, int64_t r, uint8_t *code, float *scale, float *min)
{
    (void)min;
    const unsigned char *w = p->part[CODES].at + r * p->cols / 2;
    for (int64_t i = 0; i < p->cols; i++) code[i] = (uint8_t)(sy_e2m1_twice[w[i / 2] >> (i % 2 * 4) & 15] + 128);
    for (int64_t g = 0; g < p->cols / 16; g++)
        scale[g] = sy_e4m3_widen(p->part[SCALE].at[r * (p->cols / 16) + g]) * p->scale;
}

static void row(const struct sy_parts *p, int64_t r, float *dst)
{
    const unsigned char *w = p->part[CODES].at + r * p->cols / 2, *s = p->part[SCALE].at + r * (p->cols / 16);
    for (int64_t i = 0; i < p->cols; i++)
        dst[i] = (float)sy_e2m1_twice[w[i / 2] >> (i % 2 * 4) & 15] * (sy_e4m3_widen(s[i / 16]) * p->scale);
}

static sy_status bind(struct sy_arena *a, const struct sy_scheme_conf *c, struct sy_parts *p, bool *mine,
                      struct sy_err *err)
{
    (void)a;
    const struct sy_part *w = &p->part[CODES], *whole = &p->part[WHOLE];
    *mine = w->type == SY_PART_U8 || p->part[SCALE].name;
    if (!*mine) return SY_OK;
    sy_status st = sy_part_need(p, CODES, SY_TYPE(U8), "codes", err);
    if (!st) st = sy_part_shape(w, 2, -1, -1, err);
    if (!st) st = sy_part_need(p, SCALE, SY_TYPE(E4M3), "scales", err);
    if (!st) st = sy_part_need(p, WHOLE, SY_TYPE(F32), "scale of the whole", err);
    if (st) return st;
    if (whole->n_dim > 1 || whole->n_bytes != 4) return sy_part_shape(whole, 0, 0, 0, err);
    if (p->part[PRE].name)
        return sy_fail(err, SY_ENOSUP, "tensor '%s': scales of inputs are not supported", p->part[PRE].name);
    if (c->group != 16 || w->dim[1] > INT64_MAX / 2 || w->dim[1] % 8)
        return sy_fail(err, SY_ENOSUP, "tensor '%s': groups of %lld in rows of 2 x %lld: expected whole groups of 16",
                       w->name, (long long)c->group, (long long)w->dim[1]);
    p->n_dim = 2;
    p->dim[0] = p->rows = w->dim[0];
    p->dim[1] = p->cols = 2 * w->dim[1];
    p->group = 16;
    st = sy_part_shape(&p->part[SCALE], 2, p->rows, p->cols / 16, err);
    if (st) return st;
    float v = sy_part_float(whole, 0);
    p->scale = 0.5f * (p->names == 0 ? 1 / v : v);
    if (!(p->scale > 0 && p->scale < 0x1p100f && p->scale > 0x1p-100f))
        return sy_fail(err, SY_EFORMAT, "tensor '%s': expected a positive number, found %g", whole->name, (double)v);
    p->format.row = row;
    p->format.row_codes = row_codes;
    sy_parts_affine(p, "nvfp4", (struct sy_affine){.bits = 8, .zero = 128, .e2m1 = true, .unit = p->scale});
    return SY_OK;
}

const struct sy_scheme sy_scheme_nvfp4 = {
    .name = "nvfp4",
    .names = {{".weight", {".weight_packed", ".weight_scale", ".weight_global_scale", ".pre_quant_scale"}},
              {".weight", {".weight", ".weight_scale", ".weight_scale_2", ".pre_quant_scale"}}},
    .claims = claims,
    .bind = bind,
};
