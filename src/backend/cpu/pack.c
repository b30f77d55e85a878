/* pack.c - weights on their way from a file into the layouts of layout.h.
 *
 * A panel is made of 16 rows at once. Each is first brought into the order of its own column: a "lane". Where a
 * format stores numbers as the layout wants them, the file's bytes serve as they are. Then the 16 are woven into one
 * another word by word, so that every line of memory is read and written once, whole. */
#include "backend/cpu/layout.h"

#include <math.h>
#include <string.h>

enum { HALF_GROUP = SY_XGROUP / 2, FACTOR_BITS = 14, EXP_MIN = -100, ZEROS = SY_PANEL /* the lane of no column */ };

struct lanes {
    unsigned char *at;
    size_t each;
    float *row; /* a row of floats, or its codes, scales and mins */
};

/* Lanes an odd number of cache lines apart: sixteen of the same set would push each other out of the L1 cache. */
static size_t lane_floats(int64_t k) { return (((size_t)k + 15) / 16 | 1) * 16; }

/* Lanes, and floats of a whole row, or its codes (k/4 floats) with scales and mins (k/16 each at most). */
size_t sy_panels_scratch(int64_t k) { return (SY_PANEL + 1) * lane_floats(k) + (size_t)k; }

size_t sy_panels_scratch_transposed(int64_t n, int64_t k) { return sy_panels_scratch(k) + (size_t)k * (size_t)n; }

static struct lanes lanes_of(const struct sy_panels *p, float *scratch)
{
    size_t n = lane_floats(p->k);
    return (struct lanes){(unsigned char *)scratch, n * sizeof(float), scratch + (SY_PANEL + 1) * n};
}

static unsigned char *lane(const struct lanes *l, int c) { return l->at + (size_t)c * l->each; }

/* ---- weaving --------------------------------------------------------------------------------------------------- */

/* to[i][c] = from[c][i] for n words of 32 bits. */
static void weave_words(const unsigned char *const from[SY_PANEL], int64_t n, unsigned char *to)
{
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int c = 0; c < SY_PANEL; c += 4) {
            uint32_t __attribute__((vector_size(16))) v[4], a, b, x, y;
            for (int j = 0; j < 4; j++) memcpy(&v[j], from[c + j] + 4 * i, sizeof v[j]);
            a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5);
            b = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
            x = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
            y = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
            v[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
            v[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
            v[2] = __builtin_shufflevector(x, y, 0, 1, 4, 5);
            v[3] = __builtin_shufflevector(x, y, 2, 3, 6, 7);
            for (int j = 0; j < 4; j++) memcpy(to + 4 * ((i + j) * SY_PANEL + c), &v[j], sizeof v[j]);
        }
    for (; i < n; i++)
        for (int c = 0; c < SY_PANEL; c++) memcpy(to + 4 * (i * SY_PANEL + c), from[c] + 4 * i, 4);
}

/* The same for n units of 16 bits. */
static void weave_halves(const unsigned char *const from[SY_PANEL], int64_t n, unsigned char *to)
{
    int64_t i = 0;
    for (; i + 2 <= n; i += 2)
        for (int c = 0; c < SY_PANEL; c += 2) {
            uint32_t a, b, even, odd;
            memcpy(&a, from[c] + 2 * i, sizeof a);
            memcpy(&b, from[c + 1] + 2 * i, sizeof b);
            even = (a & 0xffff) | b << 16;
            odd = a >> 16 | (b & 0xffff0000);
            memcpy(to + 2 * (i * SY_PANEL + c), &even, sizeof even);
            memcpy(to + 2 * ((i + 1) * SY_PANEL + c), &odd, sizeof odd);
        }
    for (; i < n; i++)
        for (int c = 0; c < SY_PANEL; c++) memcpy(to + 2 * (i * SY_PANEL + c), from[c] + 2 * i, 2);
}

/* The codes or floats of a panel, and zeros from there to its end. */
static void weave(const struct sy_panels *p, const unsigned char *const from[SY_PANEL], unsigned char *panel)
{
    unsigned char *to = panel + p->code_at;
    int64_t halves = 0, words = 0;
    switch (p->layout) {
    case SY_LAYOUT_F32: words = p->k; break;
    case SY_LAYOUT_F16: halves = p->k; break;
    case SY_LAYOUT_B8: halves = p->k / 2; break;
    case SY_LAYOUT_I8: words = p->k / 4; break;
    case SY_LAYOUT_I4:
    case SY_LAYOUT_B4: words = p->k / 8; break;
    default: words = (p->k + 1) / 2;
    }
    if (halves) weave_halves(from, halves, to);
    else weave_words(from, words, to);
    size_t end = p->code_at + (size_t)(4 * words + 2 * halves) * SY_PANEL;
    memset(panel + end, 0, p->panel_bytes - end);
}

/* ---- scales ---------------------------------------------------------------------------------------------------- */

/* NaN is never larger. */
static float larger(float max, float v) { return fabsf(v) > max ? fabsf(v) : max; }

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
    for (int64_t i = 0; i < n; i++) max = larger(max, scale[i]);
    for (int64_t i = 0; min && i < n; i++) max = larger(max, min[i]);
    return max > 0 ? exponent(max) - FACTOR_BITS : 0;
}

/* B8 and B4: the largest weight the codes of a column can make. */
static float weight_max(const struct sy_affine *a, const float *scale, const float *min, int64_t n)
{
    float max = 0;
    for (int64_t i = 0; i < n; i++)
        for (int end = 0; end < 2; end++) {
            float code = (float)((end ? (1 << a->bits) - 1 : 0) - a->zero);
            max = larger(max, scale[i] * code + (min ? min[i] : 0));
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

/* ---- lanes ----------------------------------------------------------------------------------------------------- */

/* Codes of a column in the order of a layout; move is added to each, which stays within its byte. */
static void put_codes(const struct sy_panels *p, const uint8_t *restrict code, uint8_t move,
                      unsigned char *restrict to)
{
    if (p->layout == SY_LAYOUT_I8 || p->layout == SY_LAYOUT_B8)
        for (int64_t i = 0; i < p->k; i++) to[i] = (unsigned char)(code[i] + move);
    else if (p->layout == SY_LAYOUT_I4)
        for (int64_t i = 0; i < p->k; i += SY_XGROUP, to += HALF_GROUP)
            for (int j = 0; j < HALF_GROUP; j++)
                to[j] = (unsigned char)((code[i + j] + move) | (code[i + j + HALF_GROUP] + move) << 4);
    else
        for (int64_t i = 0; i < p->k; i += 8, to += 4) {
            uint64_t v;
            memcpy(&v, code + i, sizeof v);
            v += 0x0101010101010101u * move;
            v |= v >> 12; /* bytes 0, 1, 4, 5: codes 0 and 2, 1 and 3, 4 and 6, 5 and 7 */
            uint32_t w = (uint32_t)((v & 0xff) | (v >> 24 & 0xff00) | (v << 8 & 0xff0000) | (v >> 16 & 0xff000000));
            memcpy(to, &w, sizeof w);
        }
}

/* Codes to the lane, scales and the factor to the panel. */
static void pack_codes(const struct sy_panels *p, const struct sy_tensor *t, int64_t row, unsigned char *panel,
                       int column, const struct lanes *l)
{
    const struct sy_quant *q = t->format;
    int64_t n_group = p->k / p->group;
    float *scale = l->row, *min = p->has_min ? scale + n_group : NULL;
    uint8_t *code = (uint8_t *)(scale + 2 * n_group);
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
    int zero = p->layout == SY_LAYOUT_B8 ? 0 : p->zero;
    put_codes(p, code, (uint8_t)(zero - q->affine.zero), lane(l, column));
}

/* Floats to the lane, as the layout has them; a last pair of bf16 that lacks one gets 0. */
static void put_floats(const struct sy_panels *p, const float *v, unsigned char *to)
{
    uint16_t *half = (uint16_t *)(void *)to;
    if (p->layout == SY_LAYOUT_F32) {
        memcpy(to, v, (size_t)p->k * sizeof *v);
    } else if (p->layout == SY_LAYOUT_F16) {
        sy_f16_row(v, half, p->k);
    } else {
        sy_bf16_row(v, half, p->k);
        if (p->k % 2) half[p->k] = 0;
    }
}

/* The row as it is stored, where those are the layout's numbers; else NULL. */
static const unsigned char *as_stored(const struct sy_panels *p, const struct sy_tensor *t, int64_t row)
{
    const struct sy_quant *q = t->format;
    bool f32 = p->layout == SY_LAYOUT_F32;
    enum sy_exact want = f32 ? SY_EXACT_F32 : p->layout == SY_LAYOUT_F16 ? SY_EXACT_F16 : SY_EXACT_BF16;
    if (q->exact != want || q->block_len != 1 || q->block_bytes != (f32 ? 4 : 2) || (p->k % 2 && !f32)) return NULL;
    return sy_tensor_stored(t, row);
}

/* ---- panels ---------------------------------------------------------------------------------------------------- */

/* Begins panel number i: *n columns, lanes for them, zeros for the others, and nothing in the planes of scales. */
static unsigned char *start(const struct sy_panels *p, const struct lanes *l, int64_t i,
                            const unsigned char *from[SY_PANEL], int64_t *n)
{
    unsigned char *panel = p->data + (size_t)i * p->panel_bytes;
    *n = p->n - i * SY_PANEL < SY_PANEL ? p->n - i * SY_PANEL : SY_PANEL;
    if (*n < SY_PANEL) memset(lane(l, ZEROS), 0, l->each);
    for (int c = 0; c < SY_PANEL; c++) from[c] = lane(l, c < *n ? c : ZEROS);
    memset(panel, 0, p->code_at);
    return panel;
}

void sy_panels_pack(const struct sy_panels *p, const struct sy_tensor *t, int64_t row0, int64_t lo, int64_t hi,
                    float *scratch)
{
    struct lanes l = lanes_of(p, scratch);
    const unsigned char *from[SY_PANEL];
    for (int64_t n, i = lo; i < hi; i++) {
        unsigned char *panel = start(p, &l, i, from, &n);
        for (int c = 0; c < n; c++) {
            int64_t row = sy_regroup_row(&p->regroup, row0 + i * SY_PANEL + c);
            const unsigned char *stored = p->group ? NULL : as_stored(p, t, row);
            if (stored) {
                from[c] = stored;
            } else if (p->group) {
                pack_codes(p, t, row, panel, c, &l);
            } else {
                sy_tensor_floats(t, row, l.row);
                put_floats(p, l.row, lane(&l, c));
            }
        }
        weave(p, from, panel);
    }
}

void sy_panels_pack_transposed(const struct sy_panels *p, const struct sy_tensor *t, int64_t row0, int64_t lo,
                               int64_t hi, float *scratch)
{
    struct lanes l = lanes_of(p, scratch);
    float *all = scratch + sy_panels_scratch(p->k);
    const unsigned char *from[SY_PANEL];
    for (int64_t r = 0; r < p->k; r++) sy_tensor_floats(t, row0 + r, all + r * p->n);
    for (int64_t n, i = lo; i < hi; i++) {
        unsigned char *panel = start(p, &l, i, from, &n);
        for (int c = 0; c < n; c++) {
            for (int64_t k = 0; k < p->k; k++) l.row[k] = all[k * p->n + i * SY_PANEL + c];
            put_floats(p, l.row, lane(&l, c));
        }
        weave(p, from, panel);
    }
}
