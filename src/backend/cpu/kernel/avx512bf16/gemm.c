/* gemm.c - AVX-512 BF16: VDPBF16PS adds the products of a pair of elements to each of 16 sums.
 *
 * A tile is R rows by P panels: 12 x 2 sums of 32 registers, two hold weights, one a broadcast pair. Few rows take
 * four panels at once to hide the latency of the unit. The instruction flushes subnormals and defines its own order.
 */
#include "backend/cpu/kernel/avx512/tile.h"

#include <string.h>

SY_INLINE void tile(const int R, const int P, const struct sy_job *j, int64_t row, int64_t panel)
{
    __m512 acc[4][12];
    SY_UNROLL
    for (int p = 0; p < P; p++) {
        SY_UNROLL
        for (int r = 0; r < R; r++) acc[p][r] = _mm512_setzero_ps();
    }
    struct sy_rows x = sy_rows_at(j->x, row);
    const unsigned char *w = sy_panel_at(j, panel);
    for (int64_t i = 0; i < j->w->k; i += 2, w += 64) {
        __m512bh v[4];
        SY_UNROLL
        for (int p = 0; p < P; p++) v[p] = (__m512bh)_mm512_load_si512(w + (size_t)p * j->w->panel_bytes);
        SY_UNROLL
        for (int r = 0; r < R; r++) {
            int32_t pair;
            memcpy(&pair, sy_rows_get(&x, r), sizeof pair);
            __m512bh a = (__m512bh)_mm512_set1_epi32(pair);
            SY_UNROLL
            for (int p = 0; p < P; p++) acc[p][r] = _mm512_dpbf16_ps(acc[p][r], v[p], a);
        }
        sy_rows_move(&x, R, 4);
    }
    SY_UNROLL
    for (int p = 0; p < P; p++) {
        __mmask16 columns = sy_columns(j, panel + p);
        SY_UNROLL
        for (int r = 0; r < R; r++) sy_store_row(j, row + r, panel + p, columns, acc[p][r]);
    }
}

#define TILES(R, P)                                                                                                  \
    for (; hi - lo >= R; lo += R) tile(R, P, j, lo, panel)
#define ROWS(P)                                                                                                      \
    static void rows_##P(const struct sy_job *j, int64_t lo, int64_t hi, int64_t panel)                              \
    {                                                                                                                \
        if (P <= 2) TILES(12, P);                                                                                    \
        TILES(4, P);                                                                                                 \
        TILES(2, P);                                                                                                 \
        TILES(1, P);                                                                                                 \
    }
ROWS(1)
ROWS(2)
ROWS(4)

static void mul(const struct sy_panels *w, const struct sy_xmat *x, int64_t row_lo, int64_t row_hi, int64_t panel_lo,
                int64_t panel_hi, float *y, int64_t ldy, const struct sy_epilogue *e)
{
    struct sy_job j = {w, x, y, ldy, e};
    int64_t p = panel_lo;
    if (row_hi - row_lo <= 4)
        for (; p + 4 <= panel_hi; p += 4) rows_4(&j, row_lo, row_hi, p);
    for (; p + 2 <= panel_hi; p += 2) rows_2(&j, row_lo, row_hi, p);
    for (; p < panel_hi; p++) rows_1(&j, row_lo, row_hi, p);
}

extern const struct sy_kernels_gemm sy_gemm_avx512bf16;
const struct sy_kernels_gemm sy_gemm_avx512bf16 = {.mul = {[SY_LAYOUT_BF16] = mul}};
