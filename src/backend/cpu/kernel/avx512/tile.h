/* tile.h - what the 512-bit matrix products share: one vector is one row of one panel. */
#pragma once
#include "backend/cpu/kernel/x86.h"
#include "backend/cpu/layout.h"

#include <immintrin.h>

/* One call of mul(), as tiles see it. */
struct sy_job {
    const struct sy_panels *w;
    const struct sy_xmat *x;
    float *y;
    int64_t ldy;
    const struct sy_epilogue *e;
};

SY_INLINE const unsigned char *sy_panel_at(const struct sy_job *j, int64_t panel)
{
    return j->w->data + (size_t)panel * j->w->panel_bytes;
}

/* Columns of a panel that the matrix has. */
SY_INLINE __mmask16 sy_columns(const struct sy_job *j, int64_t panel)
{
    int64_t n = j->w->n - panel * SY_PANEL;
    return n < SY_PANEL ? (__mmask16)((1u << n) - 1) : (__mmask16)0xffff;
}

SY_INLINE void sy_store_row(const struct sy_job *j, int64_t row, int64_t panel, __mmask16 columns, __m512 v)
{
    int64_t c = panel * SY_PANEL;
    if (j->e && j->e->bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(columns, j->e->bias + c));
    if (j->e && j->e->add) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(columns, j->e->add + row * j->e->ld_add + c));
    _mm512_mask_storeu_ps(j->y + row * j->ldy + c, columns, v);
}

/* Where the rows of a tile stand: a pointer for every third row, the others at one and two distances from it, which
 * the addressing modes of x86 express; a pointer for each would take all registers. */
struct sy_rows {
    const unsigned char *third[4];
    int64_t ld;
};
SY_INLINE struct sy_rows sy_rows_at(const struct sy_xmat *x, int64_t row)
{
    const unsigned char *at = x->data + row * x->ld;
    return (struct sy_rows){{at, at + 3 * x->ld, at + 6 * x->ld, at + 9 * x->ld}, x->ld};
}
SY_INLINE void sy_rows_move(struct sy_rows *a, const int R, const int bytes)
{
    SY_UNROLL
    for (int i = 0; i < (R + 2) / 3; i++) {
        a->third[i] += bytes;
        __asm__("" : "+r"(a->third[i])); /* or the compiler would make pointers to all rows again */
    }
}
SY_INLINE const void *sy_rows_get(const struct sy_rows *a, const int r) { return a->third[r / 3] + r % 3 * a->ld; }

SY_INLINE __m512 sy_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
