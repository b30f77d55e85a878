/* layout.h - compute layouts of weights: what a matrix product reads. Few, the same for every instruction set.
 *
 * A matrix W [n, k] (y = x W^T) is cut in panels of 16 columns of y (rows of W), the width of a 512-bit vector of f32;
 * the last panel is padded with zeros. Within a panel all k of its 16 columns are contiguous, so a product streams
 * memory in order. layout.c documents the bytes of each layout. */
#pragma once
#include "backend/cpu/kernel.h"

enum { SY_PANEL = 16, SY_XGROUP = 32 };

struct sy_panels {          /* a packed matrix, or a run of rows of one */
    enum sy_layout layout;
    int64_t n, k;
    int group, zero;        /* I8, I4: as sy_affine; zero is folded into the layout where that is cheaper */
    bool has_min;
    unsigned char *data;    /* 64-byte aligned; owned by the weights */
    size_t n_bytes, panel_bytes;
};
struct sy_xmat {            /* activations prepared for a layout: caller's memory */
    enum sy_xkind kind;
    int64_t m, k;
    unsigned char *data;    /* sy_xmat_bytes() of them, 64-byte aligned */
    int64_t ld;             /* bytes from row to row */
};

/* Which layout a stored format takes under a compute mode; refused when the mode cannot be honoured (int8 for a float
 * format). f32: every format becomes F32. auto: affine formats become I4 or I8, F16/BF16 become BF16 where the
 * machine multiplies bf16 and F16/F32 otherwise; loss of each in doc/numerics.md. */
SY_CHECK sy_status sy_layout_choose(const struct sy_quant *, enum sy_compute, const struct sy_kernels *,
                                    enum sy_layout *out, struct sy_err *);
enum sy_xkind sy_layout_xkind(enum sy_layout);
/* Fills in *p but for data. k must be a multiple of the format's block_len, which any stored row is. */
void sy_panels_plan(struct sy_panels *p, enum sy_layout, const struct sy_quant *, int64_t n, int64_t k);
/* Packs panels [lo, hi) of a stored matrix whose row r of the panels is row sy_tensor_row(t, row0 + r) of t.
 * scratch: sy_panels_scratch() floats, one per thread. */
void sy_panels_pack(const struct sy_panels *p, const struct sy_tensor *t, int64_t row0, int64_t lo, int64_t hi,
                    float *scratch);
size_t sy_panels_scratch(int64_t k);
size_t sy_xmat_bytes(enum sy_xkind, int64_t m, int64_t k);
void sy_xmat_init(struct sy_xmat *, enum sy_xkind, int64_t m, int64_t k, void *mem);
const char *sy_layout_name(enum sy_layout);
