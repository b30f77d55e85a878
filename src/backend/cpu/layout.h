/* layout.h - compute layouts of weights: what a matrix product reads. Few, the same for every instruction set.
 *
 * A matrix W [n, k] (y = x W^T) is cut in panels of 16 columns of y (rows of W), the width of a 512-bit vector of
 * f32; the last panel is padded with zeros. Within a panel all k of its 16 columns are contiguous, so a product
 * streams memory in order. Bytes of a panel (c: column 0..15; everything little-endian, planes start at multiples of
 * 64):
 *
 *   F32    [k][c] f32                                                       x: f32
 *   F16    [k][c] f16, rounded to nearest even                              x: f32
 *   BF16   [k/2][c][2] bf16: pairs of k, padded with 0 to a multiple of 32  x: bf16, padded alike
 *   WBF16  the same bytes, widened exactly in the product                   x: f32
 *   I8     factor [c] f32 | min [k/group][c] f16 (if has_min) | scale [k/group][c] f16 | code [k/4][c][4] u8
 *   I4     the same, but code [k/32][4][c][4] u8: byte j of quad q < 4 of a block of 32 holds code 4q+j in its low
 *          nibble and code 16+4q+j in its high one                          x: int8
 *   B8     the planes of I8, but code [k/2][c][2] s8, zero taken off         x: bf16, padded alike
 *   B4     the planes of I8, but code [k/32][4][c][2] u16: nibble t of word e of quad q of a block of 32 holds code
 *          8q + 2t + e                                                      x: bf16, padded alike
 *
 *   I8, I4: w[c][i] = factor[c] * (scale[i/group][c] * (code - zero) + min[i/group][c])
 *
 * factor is a power of two that brings the largest scale or min of the column near 2^14, so that none of the others
 * becomes subnormal in f16: scales stored as f16 in the file stay exact, products of two (K-quants) are rounded to
 * 11 bits. Codes are moved so that zero is 128 (I8), 8 (I4), or 0 when the format has none.
 *
 * B8 and B4 are for machines whose matrix units multiply bf16 far faster than integers in groups can be scaled: codes
 * become bf16 on their way into the product. So that this takes few instructions it is done in f16 arithmetic:
 *
 *   B8: h = scale * code + min                      B4: h = scale * (1 + code/16) + min, where scale is 16 times the
 *   w[c][i] = factor[c] * bf16(h)                   format's and min holds what that adds; none stored: -1.5 * scale
 *
 * each rounded once to f16, with factor chosen so that |h| < 2; bf16() rounds the lower three bits off (halves away
 * from 0), and takes |h| < 2^-14 for something between 2^-15 and 2^-14 of its sign.
 *
 * Activations for I8 and I4 are quantised in groups of 32: scale = max |x| / 127, q = rint(x * (127 / max |x|)).
 * A group whose maximum is below 2^-100 counts as zero; one that holds an infinity or a NaN gives NaN. */
#pragma once
#include "backend/cpu/kernel.h"
#include "checkpoint/checkpoint.h"

enum { SY_PANEL = 16, SY_XGROUP = 32 };

struct sy_panels { /* a packed matrix, or a run of rows of one */
    enum sy_layout layout;
    int64_t n, k;
    int group, zero; /* I8, I4: see above */
    bool has_min;
    unsigned char *data; /* 64-byte aligned; owned by the weights */
    size_t n_bytes, panel_bytes;
    size_t min_at, scale_at, code_at; /* where the planes of a panel start */
    struct sy_regroup regroup;        /* of the stored rows, when packing */
};
/* What belongs to int8 codes: planes of numbers by group, rows side by side, so that a tile of rows finds those of a
 * group in one cache line. Group g of row r is at [g * ld_group + r]; g is elements 32g .. 32g+31, a half h is
 * 16h .. 16h+15. The sums of codes that a zero point or a min needs are made once, here. */
struct sy_xplanes {
    float *scale;      /* [k/32] */
    int32_t *sum;      /* [k/32] -8 * sum of codes: the start value that takes a zero point of 8 off */
    int32_t *half_sum; /* [k/16] the same of halves */
    float *mass;       /* [k/32] scale * sum of codes: what a min is multiplied by */
    float *half_mass;  /* [k/16] */
};
struct sy_xmat { /* activations prepared for a layout: caller's memory */
    enum sy_xkind kind;
    int64_t m, k;
    unsigned char *data;      /* sy_xmat_bytes() of them, 64-byte aligned */
    int64_t ld;               /* bytes from row to row */
    struct sy_xplanes planes; /* int8: in the same memory, behind the rows */
    int64_t ld_group;         /* int8: elements from group to group of the planes */
};

/* Which layout a stored format takes under a compute mode; refused when the mode cannot be honoured (int8 for a float
 * format). f32: every format becomes F32. bf16: every format becomes BF16. auto: affine formats become I4 or I8; bf16
 * and what is stored as codes that are not affine by groups of a row (scaled FP8, nf4, GPTQ in another order) becomes
 * BF16 where the machine multiplies bf16 and WBF16 elsewhere; f16 stays F16, the rest F32; B8 and B4 take the
 * place of I8 and I4 where the kernels in use ask for it. doc/numerics.md has the loss of each. */
SY_CHECK sy_status sy_layout_choose(const struct sy_quant *, enum sy_compute, const struct sy_kernels *,
                                    enum sy_layout *out, struct sy_err *);
enum sy_xkind sy_layout_xkind(enum sy_layout);
/* Fills in *p but for data. k must be a multiple of the format's block_len, which any stored row is. */
void sy_panels_plan(struct sy_panels *p, enum sy_layout, const struct sy_quant *, int64_t n, int64_t k);
/* Packs panels [lo, hi) of a stored matrix whose row r of the panels is row sy_tensor_row(t, regrouped(row0 + r)) of
 * t. scratch: sy_panels_scratch() floats, one per thread. */
void sy_panels_pack(const struct sy_panels *p, const struct sy_tensor *t, int64_t row0, int64_t lo, int64_t hi,
                    float *scratch);
size_t sy_panels_scratch(int64_t k);
/* The same of the transpose: column i of the panels is row row0 + i of t. Float layouts only. */
void sy_panels_pack_transposed(const struct sy_panels *p, const struct sy_tensor *t, int64_t row0, int64_t lo,
                               int64_t hi, float *scratch);
size_t sy_panels_scratch_transposed(int64_t n, int64_t k);
size_t sy_xmat_bytes(enum sy_xkind, int64_t m, int64_t k);
void sy_xmat_init(struct sy_xmat *, enum sy_xkind, int64_t m, int64_t k, void *mem);
/* Rows [row, row + m) and elements [col, col + k) of each, in place. col: a multiple of 32. */
struct sy_xmat sy_xmat_view(const struct sy_xmat *, int64_t row, int64_t m, int64_t col, int64_t k);
const char *sy_layout_name(enum sy_layout);
