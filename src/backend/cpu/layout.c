#include "backend/cpu/layout.h"

#include <string.h>

enum { HALF_GROUP = SY_XGROUP / 2, PLANES = 7 /* of struct sy_xplanes */ };

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
    if (q->whole) return sy_fail(err, SY_ENOSUP, "expected numbers of a weight, found whole numbers (%s)", q->name);
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
    if (kind != SY_X_I8 || !mem) return;
    x->ld_group = (int64_t)plane_row(m);
    int64_t n = k / SY_XGROUP * x->ld_group;
    float *scale = (float *)(void *)(x->data + m * x->ld);
    int32_t *sum = (int32_t *)(scale + n);
    float *mass = (float *)(sum + 3 * n);
    x->planes = (struct sy_xplanes){scale, sum, sum + n, mass, mass + n};
}

struct sy_xmat sy_xmat_view(const struct sy_xmat *x, int64_t row, int64_t m, int64_t col, int64_t k)
{
    static const int64_t element[SY_X_COUNT] = {[SY_X_F32] = 4, [SY_X_BF16] = 2, [SY_X_I8] = 1};
    struct sy_xmat v = *x;
    v.m = m;
    v.k = k;
    v.data += row * x->ld + col * element[x->kind];
    if (x->kind != SY_X_I8) return v;
    int64_t at = col / SY_XGROUP * x->ld_group + row, half_at = col / HALF_GROUP * x->ld_group + row;
    v.planes = (struct sy_xplanes){x->planes.scale + at, x->planes.sum + at, x->planes.half_sum + half_at,
                                   x->planes.mass + at, x->planes.half_mass + half_at};
    return v;
}
