/* gemm.c - AVX-512 VNNI: int8 activations times 8- and 4-bit codes. VPDPBUSD multiplies unsigned codes by signed
 * activations, four to a lane, exactly in int32; a group's sum then becomes f32 once.
 *
 * A tile is R rows by one panel: R integer sums and R float sums, 24 of 32 registers for 12 rows; the rest holds two
 * vectors of codes, the mask of a nibble and the scales. Activations are broadcast by the multiply itself. One panel
 * at a time makes the weights one stream of memory; the reorder buffer holds enough groups to hide latencies, even
 * of a single row. */
#include "backend/cpu/kernel/avx512/tile.h"

#include <string.h>

enum { ROWS_MAX = 12, AHEAD = 65536 /* bytes that codes are asked for before they are needed */ };

struct job {
    struct sy_job j;
    struct sy_xplanes planes;
    const int32_t *sum; /* of groups or halves, as the weights are grouped */
    const float *mass;
    bool zero; /* there is a zero point */
};

SY_INLINE __m512i dot(__m512i acc, __m512i codes, const struct sy_rows *x, const int r, const int quad)
{
    int32_t v;
    memcpy(&v, (const char *)sy_rows_get(x, r) + quad * 4, sizeof v);
    return _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(v));
}

/* The sums of group g of all rows start at minus the zero point times the activations. */
SY_INLINE void start(const struct job *t, enum sy_layout layout, const int R, const int32_t *sum, __m512i *acc)
{
    if (!t->zero) {
        SY_UNROLL
        for (int r = 0; r < R; r++) acc[r] = _mm512_setzero_si512();
        return;
    }
    SY_UNROLL
    for (int r = 0; r < R; r++) {
        __m512i v = _mm512_set1_epi32(sum[r]);
        acc[r] = layout == SY_LAYOUT_I8 ? _mm512_slli_epi32(v, 4) : v; /* 128 = 8 << 4 */
    }
}

SY_INLINE void finish(const int R, const void *w_scale, const float *x_scale, const __m512i *acc, __m512 *f)
{
    __m512 scale = sy_load_f16(w_scale);
    SY_UNROLL
    for (int r = 0; r < R; r++)
        f[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r]), _mm512_mul_ps(scale, _mm512_set1_ps(x_scale[r])), f[r]);
}

/* One block of 32 elements, one group of 32 or two of 16. */
SY_INLINE void block(const struct job *t, enum sy_layout layout, const int group, const int R,
                     const unsigned char *code, const unsigned char *w_scale, const struct sy_rows *x,
                     const int32_t *sum, const float *x_scale, __m512 *f)
{
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512i acc[2][ROWS_MAX];
    start(t, layout, R, sum, acc[0]);
    if (group == 16) start(t, layout, R, sum + t->j.x->ld_group, acc[1]);
    if (layout == SY_LAYOUT_I4) {
        SY_UNROLL
        for (int q = 0; q < 4; q++) {
            __m512i both = _mm512_load_si512(code + q * 64);
            __m512i low = _mm512_and_si512(both, nibble), high = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
            SY_UNROLL
            for (int r = 0; r < R; r++) acc[0][r] = dot(acc[0][r], low, x, r, q);
            SY_UNROLL
            for (int r = 0; r < R; r++) acc[group == 16][r] = dot(acc[group == 16][r], high, x, r, q + 4);
        }
    } else {
        SY_UNROLL
        for (int q = 0; q < 8; q++) {
            __m512i codes = _mm512_load_si512(code + q * 64);
            const int half = group == 16 && q >= 4;
            SY_UNROLL
            for (int r = 0; r < R; r++) acc[half][r] = dot(acc[half][r], codes, x, r, q);
        }
    }
    finish(R, w_scale, x_scale, acc[0], f);
    if (group == 16) finish(R, w_scale + 32, x_scale, acc[1], f);
}

SY_INLINE void tile(const struct job *t, enum sy_layout layout, const int group, const int R, int64_t row,
                    int64_t panel)
{
    const struct sy_panels *w = t->j.w;
    const unsigned char *at = sy_panel_at(&t->j, panel);
    int64_t ld_group = t->j.x->ld_group, step = 32 / group;
    __m512 f[ROWS_MAX];
    SY_UNROLL
    for (int r = 0; r < R; r++) f[r] = _mm512_setzero_ps();
    if (w->has_min) {
        const float *mass = t->mass + row;
        for (int64_t g = 0; g < w->k / group; g++, mass += ld_group) {
            __m512 min = sy_load_f16(at + w->min_at + g * 32);
            SY_UNROLL
            for (int r = 0; r < R; r++) f[r] = _mm512_fmadd_ps(min, _mm512_set1_ps(mass[r]), f[r]);
        }
    }
    struct sy_rows x = sy_rows_at(t->j.x, row);
    const unsigned char *code = at + w->code_at, *w_scale = at + w->scale_at;
    const int32_t *sum = t->sum + row;
    const float *x_scale = t->planes.scale + row;
    const int code_bytes = layout == SY_LAYOUT_I8 ? 512 : 256;
    /* Evenly through all planes of the panels to come, a line more than codes alone have. */
    const char *ahead = (const char *)at + AHEAD;
    const size_t each = w->panel_bytes / (size_t)(w->k / 32);
    for (int64_t k = 0; k < w->k; k += 32, ahead += each) {
        if (R <= 4) {
            SY_UNROLL
            for (int i = 0; i <= code_bytes; i += 64) _mm_prefetch(ahead + i, _MM_HINT_T1);
        }
        block(t, layout, group, R, code, w_scale, &x, sum, x_scale, f);
        code += code_bytes;
        w_scale += 32 * step;
        sum += ld_group * step;
        x_scale += ld_group;
        sy_rows_move(&x, R, 32);
    }
    __m512 factor = _mm512_load_ps(at);
    __mmask16 columns = sy_columns(&t->j, panel);
    SY_UNROLL
    for (int r = 0; r < R; r++) sy_store_row(&t->j, row + r, panel, columns, _mm512_mul_ps(f[r], factor));
}

#define TILES(layout, group, R)                                                                                      \
    for (; hi - lo >= R; lo += R) tile(t, layout, group, R, lo, panel)
/* All rows of a panel. Two float sums and their integers do not fit in registers for halves of 12 rows. */
#define ROWS(name, layout, group)                                                                                    \
    static void name(const struct job *t, int64_t lo, int64_t hi, int64_t panel)                                     \
    {                                                                                                                \
        if (group == 32) TILES(layout, group, 12);                                                                   \
        TILES(layout, group, 8);                                                                                     \
        TILES(layout, group, 4);                                                                                     \
        TILES(layout, group, 2);                                                                                     \
        TILES(layout, group, 1);                                                                                     \
    }
ROWS(rows_i8, SY_LAYOUT_I8, 32)
ROWS(rows_i8_halves, SY_LAYOUT_I8, 16)
ROWS(rows_i4, SY_LAYOUT_I4, 32)
ROWS(rows_i4_halves, SY_LAYOUT_I4, 16)

static void mul(const struct sy_panels *w, const struct sy_xmat *x, int64_t row_lo, int64_t row_hi, int64_t panel_lo,
                int64_t panel_hi, float *y, int64_t ldy, const struct sy_epilogue *e)
{
    struct job t = {.j = {w, x, y, ldy, e}, .planes = x->planes, .zero = w->zero != 0};
    bool halves = w->group == 16, int8 = w->layout == SY_LAYOUT_I8;
    t.sum = halves ? t.planes.half_sum : t.planes.sum;
    t.mass = halves ? t.planes.half_mass : t.planes.mass;
    void (*rows)(const struct job *, int64_t, int64_t, int64_t) =
        int8 ? (halves ? rows_i8_halves : rows_i8) : (halves ? rows_i4_halves : rows_i4);
    for (int64_t p = panel_lo; p < panel_hi; p++) rows(&t, row_lo, row_hi, p);
}

extern const struct sy_kernels_gemm sy_gemm_avx512vnni;
const struct sy_kernels_gemm sy_gemm_avx512vnni = {.mul = {[SY_LAYOUT_I8] = mul, [SY_LAYOUT_I4] = mul}};
