#include "backend/cpu/layout.h"

#include <math.h>
#include <string.h>

enum { HALF_GROUP = SY_XGROUP / 2, FACTOR_BITS = 14, EXP_MIN = -100, PLANES = 7 /* of struct sy_xplanes */ };

static const struct {
    const char *name;
    enum sy_xkind x;
} layouts[SY_LAYOUT_COUNT] = {
    [SY_LAYOUT_F32] = {"f32", SY_X_F32},          [SY_LAYOUT_F16] = {"f16", SY_X_F32},
    [SY_LAYOUT_BF16] = {"bf16", SY_X_BF16},       [SY_LAYOUT_WBF16] = {"bf16 x f32", SY_X_F32},
    [SY_LAYOUT_I8] = {"int8", SY_X_I8},           [SY_LAYOUT_I4] = {"int4", SY_X_I8},
    [SY_LAYOUT_B8] = {"int8 as bf16", SY_X_BF16}, [SY_LAYOUT_B4] = {"int4 as bf16", SY_X_BF16},
};

const char *sy_layout_name(enum sy_layout l) { return layouts[l].name; }

enum sy_xkind sy_layout_xkind(enum sy_layout l) { return layouts[l].x; }

/* Codes of `bits` around `zero`, moved to be around `middle`, stay within [0, 2 * middle). */
static bool centred(const struct sy_affine *a, int middle)
{
    return a->zero <= middle && (1 << a->bits) - 1 - a->zero < middle;
}

/* Without a zero point codes stay as they are. I8 then takes 7 bits: a pair of products must fit in 16 bits on
 * machines that have no better instruction (2 * 127 * 127). */
static bool fits(const struct sy_quant *q, enum sy_layout l)
{
    const struct sy_affine *a = &q->affine;
    if (!(q->unpack || q->row_codes) || a->bits <= 0 || a->bits > 8) return false;
    if ((a->group != HALF_GROUP && a->group != SY_XGROUP) || q->block_len % SY_XGROUP) return false;
    if (l == SY_LAYOUT_I4) return a->bits <= 4 && (a->zero == 0 || centred(a, 8));
    return a->zero == 0 ? a->bits <= 7 : centred(a, 128);
}

sy_status sy_layout_choose(const struct sy_quant *q, enum sy_compute mode, const struct sy_kernels *kernels,
                           enum sy_layout *out, struct sy_err *err)
{
    if (q == &sy_quant_ids)
        return sy_fail(err, SY_ENOSUP, "expected numbers of a weight, found whole numbers (%s)", q->st_dtype);
    bool int4 = fits(q, SY_LAYOUT_I4), int8 = fits(q, SY_LAYOUT_I8);
    enum sy_layout exact = SY_LAYOUT_F32;
    if (q->exact == SY_EXACT_F16) exact = SY_LAYOUT_F16;
    /* Codes of 8 bits or fewer with scales that go by columns, or by no line: bf16 rounds them less than they were.
     */
    bool scaled = q->exact == SY_EXACT_F32 && q->row;
    if (q->exact == SY_EXACT_BF16 || scaled) exact = kernels->bf16 ? SY_LAYOUT_BF16 : SY_LAYOUT_WBF16;
    switch (mode) {
    case SY_COMPUTE_F32: *out = SY_LAYOUT_F32; return SY_OK;
    case SY_COMPUTE_BF16: *out = SY_LAYOUT_BF16; return SY_OK;
    case SY_COMPUTE_INT8:
        if (!int4 && !int8)
            return sy_fail(err, SY_ENOSUP,
                           "--compute int8 needs quantised weights, but these are stored as %s; "
                           "use --compute auto",
                           q->name);
        break;
    case SY_COMPUTE_AUTO: break;
    }
    bool widen = mode == SY_COMPUTE_AUTO && kernels->bf16_codes;
    /* B4 adds -24 scales for a zero point, rounded to 11 bits: too coarse beside codes of one or two scales. */
    if (widen && q->affine.zero && q->affine.bits < 3) int4 = false;
    *out = int4 ? (widen ? SY_LAYOUT_B4 : SY_LAYOUT_I4) : int8 ? (widen ? SY_LAYOUT_B8 : SY_LAYOUT_I8) : exact;
    return SY_OK;
}

/* Rows (and panels) an odd number of cache lines apart: a power of two would put those that are used together in
 * the same few sets of the L1 cache. */
static size_t odd_lines(size_t n)
{
    size_t lines = (n + 63) / 64;
    return (lines | 1) * 64;
}

static size_t line_up(size_t n) { return (n + 63) / 64 * 64; }

static bool is_int4(enum sy_layout l) { return l == SY_LAYOUT_I4 || l == SY_LAYOUT_B4; }

/* A tile of the matrix units takes 32 elements of bf16 at once. */
static int64_t pad_bf16(int64_t k) { return (k + 31) / 32 * 32; }

void sy_panels_plan(struct sy_panels *p, enum sy_layout layout, const struct sy_quant *q, int64_t n, int64_t k)
{
    *p = (struct sy_panels){.layout = layout, .n = n, .k = k};
    size_t columns = SY_PANEL, len = (size_t)k, bytes;
    switch (layout) {
    case SY_LAYOUT_F32: bytes = len * columns * sizeof(float); break;
    case SY_LAYOUT_F16: bytes = len * columns * sizeof(uint16_t); break;
    case SY_LAYOUT_BF16:
    case SY_LAYOUT_WBF16: bytes = (size_t)pad_bf16(k) * columns * sizeof(uint16_t); break;
    default:
        p->group = q->affine.group;
        p->has_min = q->affine.has_min;
        p->zero = q->affine.zero == 0 ? 0 : is_int4(layout) ? 8 : 128;
        size_t plane = line_up(len / (size_t)p->group * columns * sizeof(uint16_t));
        p->min_at = columns * sizeof(float);
        p->scale_at = p->min_at + (p->has_min ? plane : 0);
        p->code_at = p->scale_at + plane;
        bytes = p->code_at + len * columns / (is_int4(layout) ? 2 : 1);
    }
    p->panel_bytes = odd_lines(bytes);
    p->n_bytes = p->panel_bytes * (size_t)((n + SY_PANEL - 1) / SY_PANEL);
}

static int exponent(float max)
{
    if (max == 0 || !isfinite(max)) return 0;
    int e = ilogbf(max);
    return e < EXP_MIN ? EXP_MIN : e;
}

/* The power of two of a column: see layout.h. Non-finite scales are kept as they are. */
static int scale_exponent(const float *scale, const float *min, int64_t n)
{
    float max = 0;
    for (int64_t i = 0; i < n; i++) max = fmaxf(max, fabsf(scale[i]));
    for (int64_t i = 0; min && i < n; i++) max = fmaxf(max, fabsf(min[i]));
    return max > 0 ? exponent(max) - FACTOR_BITS : 0;
}

/* B8 and B4: the largest weight the codes of a column can make. */
static float weight_max(const struct sy_affine *a, const float *scale, const float *min, int64_t n)
{
    float max = 0;
    for (int64_t i = 0; i < n; i++)
        for (int end = 0; end < 2; end++) {
            float code = (float)((end ? (1 << a->bits) - 1 : 0) - a->zero);
            max = fmaxf(max, fabsf(scale[i] * code + (min ? min[i] : 0)));
        }
    return max;
}

static void put_halves(unsigned char *to, const float *v, int64_t n, int e)
{
    float by = ldexpf(1, -e);
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = sy_f32_to_f16(v[i] * by);
        memcpy(to + i * SY_PANEL * (int64_t)sizeof h, &h, sizeof h);
    }
}

/* Four codes, moved; each stays within its byte. */
static uint32_t quad(const uint8_t *code, uint32_t move)
{
    uint32_t v;
    memcpy(&v, code, sizeof v);
    return v + move;
}

/* Codes of a column in the order of a layout; `to` is the column's place in the first vector of 64 bytes. */
static void put_codes(const struct sy_panels *p, const uint8_t *code, uint32_t move, unsigned char *to)
{
    if (p->layout == SY_LAYOUT_I8)
        for (int64_t i = 0; i < p->k; i += 4, to += 64) {
            uint32_t v = quad(code + i, move);
            memcpy(to, &v, sizeof v);
        }
    else if (p->layout == SY_LAYOUT_I4)
        for (int64_t i = 0; i < p->k; i += SY_XGROUP)
            for (int64_t j = i; j < i + HALF_GROUP; j += 4, to += 64) {
                uint32_t v = quad(code + j, move) | quad(code + j + HALF_GROUP, move) << 4;
                memcpy(to, &v, sizeof v);
            }
    else
        for (int64_t i = 0; i < p->k; i += 8, to += 64) {
            /* Bytes 0 and 2, 4 and 6 of eight are the even codes of a pair: word 0; the others are word 1. */
            uint32_t v = 0;
            for (int j = 0; j < 8; j++) v |= (code[i + j] + (move & 255)) << (j % 2 * 16 + j / 2 * 4);
            memcpy(to, &v, sizeof v);
        }
}

static void put_signed(const struct sy_panels *p, const uint8_t *code, int zero, unsigned char *to)
{
    for (int64_t i = 0; i < p->k; i += 2, to += 2 * SY_PANEL) {
        to[0] = (unsigned char)(code[i] - zero);
        to[1] = (unsigned char)(code[i + 1] - zero);
    }
}

static void pack_codes(const struct sy_panels *p, const struct sy_tensor *t, int64_t row, unsigned char *panel,
                       int column, float *scratch)
{
    const struct sy_quant *q = t->format;
    int64_t n_group = p->k / p->group;
    int zero = q->affine.zero;
    float *scale = scratch, *min = p->has_min ? scratch + n_group : NULL;
    uint8_t *code = (uint8_t *)(scratch + 2 * n_group);
    float unit = q->affine.unit;
    sy_tensor_codes(t, row, code, scale, min);
    for (int64_t g = 0; unit > 0 && g < n_group; g++) scale[g] /= unit;
    int e = scale_exponent(scale, min, n_group);
    float factor = ldexpf(1, e);
    if (p->layout == SY_LAYOUT_B8 || p->layout == SY_LAYOUT_B4) {
        /* Below 1.94, from where rounding to f16 does not reach 2. Nothing but zeros: see layout.h for |h| < 2^-14.
         */
        float max = weight_max(&q->affine, scale, min, n_group);
        e = exponent(max / 0.97f);
        factor = max > 0 ? ldexpf(1, e) : 0;
    }
    if (p->layout == SY_LAYOUT_B4)
        for (int64_t g = 0; g < n_group; g++) {
            if (min) min[g] -= scale[g] * (float)(16 + p->zero);
            scale[g] *= 16;
        }
    if (unit > 0) factor *= unit;
    memcpy(panel + column * (int)sizeof factor, &factor, sizeof factor);
    put_halves(panel + p->scale_at + column * 2, scale, n_group, e);
    if (min) put_halves(panel + p->min_at + column * 2, min, n_group, e);
    if (p->layout == SY_LAYOUT_B8) put_signed(p, code, zero, panel + p->code_at + column * 2);
    else put_codes(p, code, 0x01010101u * (uint32_t)(p->zero - zero), panel + p->code_at + column * 4);
}

static void put_floats(const struct sy_panels *p, const float *v, unsigned char *panel, int column)
{
    for (int64_t i = 0; i < p->k; i++) {
        if (p->layout == SY_LAYOUT_F32) {
            memcpy(panel + (i * SY_PANEL + column) * 4, v + i, 4);
            continue;
        }
        bool f16 = p->layout == SY_LAYOUT_F16;
        uint16_t h = f16 ? sy_f32_to_f16(v[i]) : sy_f32_to_bf16(v[i]);
        int64_t at = f16 ? i * SY_PANEL + column : (i / 2 * SY_PANEL + column) * 2 + i % 2;
        memcpy(panel + at * 2, &h, sizeof h);
    }
}

void sy_panels_pack(const struct sy_panels *p, const struct sy_tensor *t, int64_t row0, int64_t lo, int64_t hi,
                    float *scratch)
{
    for (int64_t i = lo; i < hi; i++) {
        unsigned char *panel = p->data + (size_t)i * p->panel_bytes;
        memset(panel, 0, p->panel_bytes);
        for (int c = 0; c < SY_PANEL && i * SY_PANEL + c < p->n; c++) {
            int64_t row = sy_regroup_row(&p->regroup, row0 + i * SY_PANEL + c);
            if (p->group) pack_codes(p, t, row, panel, c, scratch);
            else {
                sy_tensor_floats(t, row, scratch);
                put_floats(p, scratch, panel, c);
            }
        }
    }
}

/* Floats of a whole row, or its codes (k/4 floats) with scales and mins (k/16 each at most). */
size_t sy_panels_scratch(int64_t k) { return (size_t)k; }

void sy_panels_pack_transposed(const struct sy_panels *p, const struct sy_tensor *t, int64_t row0, int64_t lo,
                               int64_t hi, float *scratch)
{
    float *column = scratch + p->k * p->n;
    for (int64_t r = 0; r < p->k; r++) sy_tensor_floats(t, row0 + r, scratch + r * p->n);
    for (int64_t i = lo; i < hi; i++) {
        unsigned char *panel = p->data + (size_t)i * p->panel_bytes;
        memset(panel, 0, p->panel_bytes);
        for (int c = 0; c < SY_PANEL && i * SY_PANEL + c < p->n; c++) {
            for (int64_t k = 0; k < p->k; k++) column[k] = scratch[k * p->n + i * SY_PANEL + c];
            put_floats(p, column, panel, c);
        }
    }
}

size_t sy_panels_scratch_transposed(int64_t n, int64_t k) { return (size_t)k * (size_t)n + (size_t)k; }

static size_t row_bytes_of(enum sy_xkind kind, int64_t k)
{
    if (kind == SY_X_F32) return odd_lines((size_t)k * sizeof(float));
    if (kind == SY_X_BF16) return odd_lines((size_t)pad_bf16(k) * sizeof(uint16_t));
    return odd_lines((size_t)k);
}

/* Few rows stand tight, many whole lines apart. */
static size_t plane_row(int64_t m)
{
    return m < SY_PANEL ? (size_t)m : odd_lines((size_t)m * sizeof(float)) / sizeof(float);
}

size_t sy_xmat_bytes(enum sy_xkind kind, int64_t m, int64_t k)
{
    size_t n = row_bytes_of(kind, k) * (size_t)m;
    if (kind == SY_X_I8) n += line_up((size_t)(k / SY_XGROUP) * PLANES * plane_row(m) * sizeof(float));
    return n;
}

void sy_xmat_init(struct sy_xmat *x, enum sy_xkind kind, int64_t m, int64_t k, void *mem)
{
    *x = (struct sy_xmat){.kind = kind, .m = m, .k = k, .data = mem, .ld = (int64_t)row_bytes_of(kind, k)};
    if (kind == SY_X_I8) x->ld_group = (int64_t)plane_row(m);
}
