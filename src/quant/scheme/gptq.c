/* gptq.c - AutoGPTQ's and GPTQModel's layout: integers of 2, 4 or 8 bits in words of 32, transposed.
 *
 *   qweight  [cols / n, rows] I32, n = 32 / bits: column i is in line i / n at bits (i % n) * bits
 *   qzeros   [groups, rows / n] I32, packed along the rows; checkpoint_format "gptq" stores zero - 1, "gptq_v2" zero
 *   scales   [groups, rows] F16, BF16 or F32
 *   g_idx    [cols] I32: the group of each column; may be absent when columns are not ordered by activations
 *
 *   w[r][i] = scale[g][r] * (code - zero[g][r]), g = g_idx[i] or i / group */
#include "quant/scheme/scheme_int.h"

enum { CODES, ZERO, SCALE, ORDER };
enum { ORDERED = 1, ZERO_LESS_ONE = 2 }; /* variant */

static bool claims(const struct sy_scheme_conf *c)
{
    return !strcmp(c->format, "gptq") && (c->bits == 2 || c->bits == 4 || c->bits == 8);
}

static int code_at(const struct sy_parts *p, int64_t r, int64_t i)
{
    int64_t n = 32 / p->bits;
    uint32_t word = sy_u32_at(p->part[CODES].at + 4 * (i / n * p->rows + r));
    return (int)(word >> (i % n * p->bits)) & ((1 << p->bits) - 1);
}

/* Storing zero - 1 wraps around: 0 is all ones. */
static int zero_at(const struct sy_parts *p, int64_t r, int64_t g)
{
    int64_t n = 32 / p->bits;
    uint32_t word = sy_u32_at(p->part[ZERO].at + 4 * (g * (p->rows / n) + r / n));
    int stored = (int)(word >> (r % n * p->bits)) & ((1 << p->bits) - 1);
    return (stored + (p->variant & ZERO_LESS_ONE ? 1 : 0)) & ((1 << p->bits) - 1);
}

static void row(const struct sy_parts *p, int64_t r, float *dst)
{
    for (int64_t i = 0; i < p->cols; i++) {
        int64_t g = p->variant & ORDERED ? (int64_t)sy_u32_at(p->part[ORDER].at + 4 * i) : i / p->group;
        dst[i] = (float)(code_at(p, r, i) - zero_at(p, r, g)) * sy_part_float(&p->part[SCALE], g * p->rows + r);
    }
}

static void row_codes(const struct sy_parts *p, int64_t r, uint8_t *code, float *scale, float *min)
{
    for (int64_t i = 0; i < p->cols; i++) code[i] = (uint8_t)code_at(p, r, i);
    for (int64_t k = 0; k < p->cols / p->format.affine.group; k++) {
        int64_t g = k / sy_parts_spread(p);
        scale[k] = sy_part_float(&p->part[SCALE], g * p->rows + r);
        if (min) min[k] = -scale[k] * (float)zero_at(p, r, g);
    }
}

/* Groups must exist, and be the plain ones unless the config says that columns are ordered. */
static sy_status bind_order(const struct sy_scheme_conf *c, struct sy_parts *p, struct sy_err *err)
{
    const struct sy_part *o = &p->part[ORDER];
    if (!o->name && !c->ordered) return SY_OK;
    int64_t odd = -1;
    sy_status st = sy_part_order(p, ORDER, &odd, err);
    if (st || odd < 0) return st;
    p->variant |= ORDERED;
    if (c->ordered) return SY_OK;
    return sy_fail(err, SY_EFORMAT,
                   "tensor '%s': column %lld is of group %u, but the quantization config says 'desc_act': false",
                   o->name, (long long)odd, sy_u32_at(o->at + 4 * odd));
}

/* Whether all zero points are the middle of the range: what a symmetric checkpoint must have. */
static bool all_middle(const struct sy_parts *p, int64_t n_group)
{
    for (int64_t g = 0; g < n_group; g++)
        for (int64_t r = 0; r < p->rows; r++)
            if (zero_at(p, r, g) != 1 << (p->bits - 1)) return false;
    return true;
}

static sy_status bind(struct sy_arena *a, const struct sy_scheme_conf *c, struct sy_parts *p, bool *mine,
                      struct sy_err *err)
{
    (void)a;
    const struct sy_part *w = &p->part[CODES];
    const char *version = sy_json_text(sy_json_get(c->json, "checkpoint_format"));
    *mine = true;
    sy_status st = sy_part_need(p, CODES, SY_TYPE(I32), "codes", err);
    if (!st) st = sy_part_shape(w, 2, -1, -1, err);
    if (!st) st = sy_part_need(p, ZERO, SY_TYPE(I32), "zeros", err);
    if (!st) st = sy_part_need(p, SCALE, SY_TYPES_FLOAT, "scales", err);
    if (st) return st;
    int64_t n = 32 / c->bits;
    p->bits = c->bits;
    p->n_dim = 2;
    p->dim[0] = p->rows = w->dim[1];
    p->dim[1] = p->cols = n * w->dim[0];
    p->group = c->group ? c->group : p->cols;
    p->variant = version && !strcmp(version, "gptq_v2") ? 0 : ZERO_LESS_ONE;
    if (p->rows % n)
        return sy_fail(err, SY_ENOSUP, "tensor '%s': %lld rows: expected a multiple of %lld", w->name,
                       (long long)p->rows, (long long)n);
    int64_t n_group = sy_ceil_div(p->cols, p->group);
    st = sy_part_shape(&p->part[ZERO], 2, n_group, p->rows / n, err);
    if (!st) st = sy_part_shape(&p->part[SCALE], 2, n_group, p->rows, err);
    if (!st) st = bind_order(c, p, err);
    if (st) return st;
    const char *name = c->bits == 4 ? "gptq4" : c->bits == 8 ? "gptq8" : "gptq2";
    p->format = (struct sy_quant){.name = name, .gguf_type = -1, .block_len = 1, .row = row, .row_codes = row_codes};
    bool moved = !all_middle(p, n_group);
    if (moved && c->symmetric)
        return sy_fail(err, SY_ENOSUP,
                       "tensor '%s': zero points differ, but the quantization config says 'sym': true",
                       p->part[ZERO].name);
    /* Bytes with a moving zero point have no layout: a pair of their products needs more than 16 bits. */
    if (!(p->variant & ORDERED) && !(moved && c->bits == 8))
        sy_parts_affine(
            p, name, (struct sy_affine){.bits = c->bits, .zero = moved ? 0 : 1 << (c->bits - 1), .has_min = moved});
    return SY_OK;
}

const struct sy_scheme sy_scheme_gptq = {
    .name = "gptq",
    .names = {{".weight", {".qweight", ".qzeros", ".scales", ".g_idx"}}},
    .claims = claims,
    .bind = bind,
};
