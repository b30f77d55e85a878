/* scaled.c - 8-bit elements with scales: FP8 (e4m3, e5m2) and int8.
 *
 *   weight            [rows, cols]  F8_E4M3, F8_E5M2 or I8
 *   weight_scale_inv  [ceil(rows / block), ceil(cols / block)] (a multiplier in spite of its name), or
 *   weight_scale      the same, [rows] or [rows, 1] (one for each row), or a single number: F32, F16, BF16, E8M0
 *
 *   w[r][i] = weight[r][i] * scale[r / block rows][i / block columns]
 *
 * Published as transformers' "fp8" (DeepSeek-V3, Qwen3-FP8), compressed-tensors' "float-quantized" and
 * "int-quantized", ModelOpt's "FP8". Scales of activations are not needed for weights. */
#include "quant/scheme/scheme_int.h"

enum { CODES, SCALE, ZERO };

static bool claims(const struct sy_scheme_conf *c)
{
    bool floats = !strcmp(c->format, "fp8") || !strcmp(c->format, "float-quantized") ||
                  (!strcmp(c->format, "naive-quantized") && c->is_float);
    bool ints = !strcmp(c->format, "int-quantized") || (!strcmp(c->format, "naive-quantized") && !c->is_float);
    return c->bits == 8 && ((floats && c->is_float) || (ints && !c->is_float));
}

static float scale_at(const struct sy_parts *p, int64_t r, int64_t i)
{
    int64_t across = sy_ceil_div(p->cols, p->group);
    return sy_part_float(&p->part[SCALE], r / p->group_rows * across + i / p->group);
}

static void row(const struct sy_parts *p, int64_t r, float *dst)
{
    struct sy_part w = p->part[CODES];
    w.at += r * p->cols;
    for (int64_t i = 0; i < p->cols; i += p->group) {
        float s = scale_at(p, r, i);
        int64_t end = i + p->group < p->cols ? i + p->group : p->cols;
        if (w.type == SY_PART_E4M3)
            for (int64_t k = i; k < end; k++) dst[k] = sy_e4m3_widen(w.at[k]) * s;
        else if (w.type == SY_PART_E5M2)
            for (int64_t k = i; k < end; k++) dst[k] = sy_e5m2_widen(w.at[k]) * s;
        else
            for (int64_t k = i; k < end; k++) dst[k] = (float)(int8_t)w.at[k] * s;
    }
}

static void row_codes(const struct sy_parts *p, int64_t r, uint8_t *code, float *scale, float *min)
{
    (void)min;
    const unsigned char *w = p->part[CODES].at + r * p->cols;
    for (int64_t i = 0; i < p->cols; i++) code[i] = w[i] ^ 0x80;
    for (int64_t g = 0; g < p->cols / p->format.affine.group; g++)
        scale[g] = scale_at(p, r, g * p->format.affine.group);
}

static void row_f8(const struct sy_parts *p, int64_t r, uint8_t *code, float *scale)
{
    memcpy(code, p->part[CODES].at + r * p->cols, (size_t)p->cols);
    for (int64_t i = 0; i < p->cols; i += p->group) scale[i / p->group] = scale_at(p, r, i);
}

/* The scales' shape tells what shares one; the config must agree where it says. */
static sy_status read_grid(const struct sy_scheme_conf *c, struct sy_parts *p, struct sy_err *err)
{
    const struct sy_part *s = &p->part[SCALE];
    int64_t n = s->n_dim > 0 ? s->dim[0] : 1;
    p->group_rows = 1;
    p->group = p->cols;
    if (c->block[0]) {
        p->group_rows = c->block[0];
        p->group = c->block[1];
        return sy_part_shape(s, 2, sy_ceil_div(p->rows, c->block[0]), sy_ceil_div(p->cols, c->block[1]), err);
    }
    if (c->group) {
        p->group = c->group;
        return sy_part_shape(s, 2, p->rows, sy_ceil_div(p->cols, c->group), err);
    }
    bool column = s->n_dim == 1 || (s->n_dim == 2 && s->dim[1] == 1);
    if (s->n_dim == 0 || (column && n == 1)) {
        p->group_rows = p->rows;
        return SY_OK;
    }
    if (column && n == p->rows) return SY_OK;
    return sy_part_shape(s, 2, p->rows, 1, err);
}

static sy_status bind(struct sy_arena *a, const struct sy_scheme_conf *c, struct sy_parts *p, bool *mine,
                      struct sy_err *err)
{
    (void)a;
    const struct sy_part *w = &p->part[CODES];
    bool is_float = w->type == SY_PART_E4M3 || w->type == SY_PART_E5M2;
    *mine = is_float || w->type == SY_PART_I8;
    if (!*mine) {
        if (!p->part[SCALE].name) return SY_OK;
        return sy_fail(err, SY_ENOSUP,
                       "tensor '%s': expected F8_E4M3, F8_E5M2 or I8 as there are scales for it, found %s", w->name,
                       w->dtype);
    }
    if (is_float != c->is_float)
        return sy_fail(err, SY_ENOSUP, "tensor '%s': expected %s as the quantization config says, found %s", w->name,
                       c->is_float ? "floats of 8 bits" : "integers of 8 bits", w->dtype);
    if (p->part[ZERO].name)
        return sy_fail(err, SY_ENOSUP, "tensor '%s': zero points are not supported for elements of 8 bits",
                       p->part[ZERO].name);
    sy_status st = sy_part_shape(w, 2, -1, -1, err);
    if (!st) st = sy_part_need(p, SCALE, SY_TYPES_FLOAT | SY_TYPE(E8M0), "scales", err);
    if (st) return st;
    p->n_dim = 2;
    p->dim[0] = p->rows = w->dim[0];
    p->dim[1] = p->cols = w->dim[1];
    st = read_grid(c, p, err);
    if (st) return st;
    p->format = (struct sy_quant){.name = w->type == SY_PART_E4M3   ? "f8_e4m3 scaled"
                                          : w->type == SY_PART_E5M2 ? "f8_e5m2 scaled"
                                                                    : "int8 scaled",
                                  .gguf_type = -1,
                                  .block_len = 1,
                                  .row = row};
    if (is_float) {
        p->format.f8 = w->type == SY_PART_E4M3 ? SY_F8_E4M3 : SY_F8_E5M2;
        p->format.f8_group = p->group;
        p->format.row_f8 = row_f8;
        return SY_OK;
    }
    p->format.row_codes = row_codes;
    sy_parts_affine(p, "int8 scaled", (struct sy_affine){.bits = 8, .zero = 128});
    return SY_OK;
}

const struct sy_scheme sy_scheme_scaled = {
    .name = "scaled",
    .names = {{".weight", {".weight", ".weight_scale_inv", ".weight_zero_point"}},
              {".weight", {".weight", ".weight_scale", ".weight_zero_point"}}},
    .claims = claims,
    .bind = bind,
};
