/* nf4.c - bitsandbytes' 4-bit weights (Dettmers et al., arXiv:2305.14314): each code names one of 16 numbers, 64 or
 * so consecutive elements of the whole weight share a scale, and these may be codes themselves.
 *
 *   weight                   [n / 2, 1] U8, high nibble first; n elements in row order
 *   weight.absmax            [n / block] F32, or U8 when nested
 *   weight.quant_map         [16] F32: the numbers
 *   weight.nested_absmax     [blocks / nested block] F32, weight.nested_quant_map [256] F32: only when nested
 *   weight.quant_state.bitsandbytes__nf4 (or __fp4)   bytes of a JSON object: shape, blocksize, quant_type, dtype,
 *                            nested_blocksize, nested_offset
 *
 *   w[i] = map[code[i]] * absmax[i / block]
 *   nested: absmax[b] = nested_map[code[b]] * nested_absmax[b / nested block] + nested_offset */
#include "quant/scheme/scheme_int.h"

enum { CODES, ABSMAX, MAP, NESTED_ABSMAX, NESTED_MAP, STATE, STATE_BYTES_MAX = 4096 };

static bool claims(const struct sy_scheme_conf *c) { return !strcmp(c->format, "bitsandbytes"); }

static void row(const struct sy_parts *p, int64_t r, float *dst)
{
    const unsigned char *w = p->part[CODES].at;
    for (int64_t k = 0; k < p->cols; k++) {
        int64_t i = r * p->cols + k;
        dst[k] = sy_part_float(&p->part[MAP], w[i / 2] >> (i % 2 ? 0 : 4) & 15) * p->table[i / p->group];
    }
}

struct state {
    int64_t rows, cols, block, nested_block;
    float nested_offset;
};

static sy_status read_state(const struct sy_json *j, const struct sy_part *t, const char *type, struct state *s,
                            struct sy_err *err)
{
    struct sy_jread r = {.obj = j, .where = t->name, .err = err};
    const struct sy_json *shape = sy_json_get(j, "shape");
    s->block = sy_jread_int(&r, "blocksize", 1, 1 << 20);
    s->nested_block = sy_jread_int_or(&r, "nested_blocksize", 0, 0, 1 << 20);
    s->nested_offset = (float)sy_jread_num_or(&r, "nested_offset", 0, -1e30, 1e30);
    s->rows = sy_json_int(sy_json_at(shape, 0), 0);
    s->cols = sy_json_int(sy_json_at(shape, 1), 0);
    if (sy_json_len(shape) != 2 || s->rows < 1 || s->cols < 1 || s->rows > INT64_MAX / 2 / s->cols)
        sy_jread_refuse(&r, SY_EFORMAT, "'shape': expected two positive numbers");
    if (strcmp(sy_jread_text_or(&r, "quant_type", type), type))
        sy_jread_refuse(&r, SY_EFORMAT, "'quant_type': expected '%s' as the name of the tensor says", type);
    return r.st;
}

/* The scales as floats: decoded once, they are 1/64 of the weight. */
static sy_status read_scales(struct sy_arena *a, struct sy_parts *p, const struct state *s, struct sy_err *err)
{
    const struct sy_part *absmax = &p->part[ABSMAX], *nested = &p->part[NESTED_ABSMAX];
    int64_t n = sy_ceil_div(p->rows * p->cols, s->block);
    bool is_nested = absmax->type == SY_PART_U8;
    sy_status st = sy_part_shape(absmax, 1, n, 0, err);
    if (!st && is_nested) {
        st = sy_part_need(p, NESTED_ABSMAX, SY_TYPE(F32), "scales of scales", err);
        if (!st) st = sy_part_need(p, NESTED_MAP, SY_TYPE(F32), "map of scales", err);
        if (!st) st = sy_part_shape(&p->part[NESTED_MAP], 1, 256, 0, err);
        if (!st && s->nested_block < 1)
            st = sy_fail(err, SY_EFORMAT, "tensor '%s': 'nested_blocksize': expected a positive number",
                         p->part[STATE].name);
        if (!st) st = sy_part_shape(nested, 1, sy_ceil_div(n, s->nested_block), 0, err);
    }
    if (st) return st;
    float *v = sy_arena_array(a, (size_t)n, sizeof *v);
    if (!v) return sy_fail(err, SY_ENOMEM, "tensor '%s': no memory for its scales", p->part[CODES].name);
    for (int64_t b = 0; b < n; b++)
        v[b] = !is_nested
                   ? sy_part_float(absmax, b)
                   : sy_part_float(&p->part[NESTED_MAP], absmax->at[b]) * sy_part_float(nested, b / s->nested_block) +
                         s->nested_offset;
    p->table = v;
    return SY_OK;
}

static sy_status bind(struct sy_arena *a, const struct sy_scheme_conf *c, struct sy_parts *p, bool *mine,
                      struct sy_err *err)
{
    (void)c;
    const struct sy_part *w = &p->part[CODES], *text = &p->part[STATE];
    const char *type = p->names == 0 ? "nf4" : "fp4";
    *mine = text->name != NULL;
    if (!*mine) return SY_OK;
    sy_status st = sy_part_need(p, CODES, SY_TYPE(U8), "codes", err);
    if (!st) st = sy_part_need(p, ABSMAX, SY_TYPE(F32) | SY_TYPE(U8), "scales", err);
    if (!st) st = sy_part_need(p, MAP, SY_TYPE(F32), "map", err);
    if (!st) st = sy_part_shape(&p->part[MAP], 1, 16, 0, err);
    if (!st) st = sy_part_need(p, STATE, SY_TYPE(U8), "state", err);
    if (!st && text->n_bytes > STATE_BYTES_MAX)
        st = sy_fail(err, SY_EFORMAT, "tensor '%s': expected at most %d bytes, found %zu", text->name,
                     STATE_BYTES_MAX, text->n_bytes);
    if (st) return st;
    struct sy_json *j;
    struct state s = {0};
    st = sy_json_parse(a->env, (const char *)text->at, text->n_bytes, false, &j, err);
    if (st) return sy_while(err, st, "tensor '%s'", text->name);
    st = read_state(j, text, type, &s, err);
    sy_json_free(j);
    if (st) return st;
    p->n_dim = 2;
    p->dim[0] = p->rows = s.rows;
    p->dim[1] = p->cols = s.cols;
    p->group = s.block;
    if ((uint64_t)(s.rows * s.cols + 1) / 2 != w->n_bytes)
        return sy_fail(err, SY_ESHAPE, "tensor '%s': expected %lld bytes for [%lld, %lld], found %zu", w->name,
                       (long long)(s.rows * s.cols + 1) / 2, (long long)s.rows, (long long)s.cols, w->n_bytes);
    st = read_scales(a, p, &s, err);
    p->format = (struct sy_quant){.name = type, .gguf_type = -1, .block_len = 1, .row = row};
    return st;
}

#define PARTS(type)                                                                                                  \
    {                                                                                                                \
        ".weight", ".weight.absmax", ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map",       \
            ".weight.quant_state.bitsandbytes__" type                                                                \
    }
const struct sy_scheme sy_scheme_nf4 = {
    .name = "nf4",
    .names = {{".weight", PARTS("nf4")}, {".weight", PARTS("fp4")}},
    .claims = claims,
    .bind = bind,
};
