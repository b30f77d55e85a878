/* kernel.h - the CPU's kernels: tables of functions, one table per family and instruction set.
 *
 * kernel/<isa>/<family>.c defines `const struct sy_kernels_<family> sy_<family>_<isa>`; isa.mk gives the folder's
 * compiler flags, isa.c (family "isa") says whether this machine can run it. kernel/generic/ is the meaning:
 * complete, portable scalar C. Another folder overrides by leaving entries non-NULL. sy_kernels_pick() merges the
 * tables of the usable folders, slowest first, so an entry comes from the best folder that has it.
 *
 * All kernels: one thread per call, no allocation, any alignment of f32 rows, any sizes >= 1. One result element is
 * always computed in the same order of operations, whatever the number of rows in the call, the tile it falls in or
 * the thread: a batch changes no bit. Dims are elements, ld* is the distance of rows in elements. */
#pragma once
#include "backend/backend.h"
#include "graph/graph.h"

struct sy_kernels_isa {
    int rank;             /* generic 0, avx2 10, avx512 20, avx512vnni 21, ... : tens are what SYSTOLE_ISA names */
    bool (*usable)(void); /* asks the CPU and the operating system; executes nothing of the set itself */
    bool bf16;            /* multiplies bfloat16 in hardware */
    bool bf16_codes;      /* so much faster than int8 that codes are better widened to it: layouts B8, B4 */
};

/* ---- matrix products: layouts in layout.h ------------------------------------------------------------------- */

enum sy_layout {
    SY_LAYOUT_F32,
    SY_LAYOUT_F16,
    SY_LAYOUT_BF16,
    SY_LAYOUT_WBF16,
    SY_LAYOUT_I8,
    SY_LAYOUT_I4,
    SY_LAYOUT_B8,
    SY_LAYOUT_B4,
    SY_LAYOUT_COUNT
};
enum sy_xkind { SY_X_F32, SY_X_BF16, SY_X_I8, SY_X_COUNT };
struct sy_panels;
struct sy_xmat;
struct sy_epilogue {   /* y = acc (+ bias[col]) (+ add[row][col]); NULL: not */
    const float *bias; /* indexed by the matrix's own columns */
    const float *add;  /* may be y itself (residual) */
    int64_t ld_add;
};
struct sy_kernels_gemm {
    /* Rows [lo, hi) of x (f32, [m, k]) into the prepared form. */
    void (*prepare[SY_X_COUNT])(const float *x, int64_t ldx, int64_t lo, int64_t hi, struct sy_xmat *out);
    /* y[r][c] for r in [row_lo, row_hi), panels [panel_lo, panel_hi) of w; y points at row 0, column 0. */
    void (*mul[SY_LAYOUT_COUNT])(const struct sy_panels *w, const struct sy_xmat *x, int64_t row_lo, int64_t row_hi,
                                 int64_t panel_lo, int64_t panel_hi, float *y, int64_t ldy,
                                 const struct sy_epilogue *);
};

/* ---- attention: KV layout in attend.h ----------------------------------------------------------------------- */

struct sy_kv_dim;
struct sy_attend;
struct sy_attend_index;
struct sy_kernels_attend {
    /* Writes k [d_key], v [d_val] of every kv head of n tokens to their rows (block * block_len + offset). */
    void (*write[SY_KV_COUNT])(const struct sy_kv_dim *, unsigned char *layer, const float *k, int64_t ldk,
                               const float *v, int64_t ldv, const int32_t *row, int32_t n);
    /* Partial attention of one work item over one partition of keys; by kv dtype. */
    void (*part[SY_KV_COUNT])(const struct sy_attend *);
    /* The same with queries and the softmax's weights rounded to bf16, for all but SY_COMPUTE_F32; NULL: no faster
     * than part, or the shape is refused (false): then part does it. */
    bool (*part_bf16[SY_KV_COUNT])(const struct sy_attend *);
    /* Merges the partitions of one work item, in order, into the output rows. */
    void (*merge)(const struct sy_attend *);
    /* Scores of an indexer's keys. */
    void (*index)(const struct sy_attend_index *);
};

/* ---- rows of vectors ------------------------------------------------------------------------------------------ */

struct sy_kernels_vec {
    /* y = x / sqrt(mean(x^2) + eps) * w over each of `group` consecutive runs of d in a row; w NULL: 1. y may be x.
     */
    void (*norm)(const float *x, int64_t ldx, const float *w, float eps, int64_t rows, int64_t group, int64_t d,
                 float *y, int64_t ldy);
    /* cos and sin of pos * inv_freq[i], times mscale: cs [rows][n][2] */
    void (*rope_table)(const float *inv_freq, int64_t n, float mscale, const int32_t *pos, int64_t rows, float *cs);
    /* Rotates n_head heads of each row; y may be x. */
    void (*rope)(const float *x, int64_t ldx, int64_t rows, int64_t n_head, const struct sy_rope_dim *,
                 const float *cs, float *y, int64_t ldy);
    void (*act)(enum sy_fn, const float *x, int64_t ldx, int64_t rows, int64_t d, float *y, int64_t ldy);
    void (*glu)(enum sy_fn, const float *gate, int64_t ldg, const float *up, int64_t ldu, int64_t rows, int64_t d,
                float *y, int64_t ldy);
    /* ldb 0: one row of b serves all rows (a bias) */
    void (*add)(const float *a, int64_t lda, const float *b, int64_t ldb, int64_t rows, int64_t d, float *y,
                int64_t ldy);
    void (*mul)(const float *a, int64_t lda, const float *b, int64_t ldb, int64_t rows, int64_t d, float *y,
                int64_t ldy);
    void (*scale)(const float *x, int64_t ldx, float c, int64_t rows, int64_t d, float *y, int64_t ldy);
    void (*softcap)(const float *x, int64_t ldx, float c, int64_t rows, int64_t d, float *y, int64_t ldy);
    int32_t (*argmax)(const float *x, int64_t n); /* lowest index wins; NaN never wins unless all are */
};

/* ---- along a sequence -------------------------------------------------------------------------------------------
 */

struct sy_conv_run {           /* d columns of n_tok consecutive tokens of one sequence */
    const float *x, *w, *bias; /* w [n_tap][ldw], the last row for the token itself; bias NULL: 0 */
    const float *from;         /* the n_tap - 1 inputs before, oldest first, ld_state apart; NULL: zeros */
    float *to;                 /* what is to be found there next time; may be from */
    float *y;                  /* not x */
    int64_t ldx, ldw, ld_state, ldy, d;
    int32_t n_tap, n_tok;
};
/* SCAN of n_tok consecutive tokens, for some columns of one value head. A state is panels of SY_SCAN_PANEL columns,
 * each [d_key][SY_SCAN_PANEL]; columns beyond d_val are 0. Of pairs, the SY_SCAN_PANEL high ones come before their
 * low ones. It is read and written once for SY_SCAN_TOK tokens. */
enum { SY_SCAN_PANEL = 16, SY_SCAN_TOK = 16 };
struct sy_scan_run {
    const float *q, *k, *v, *decay, *beta; /* of the first token; beta NULL: 1 */
    int64_t ldq, ldk, ldv, ld_decay, ld_beta;
    const unsigned char *from; /* NULL: zeros */
    unsigned char *to;         /* may be from */
    float *y;                  /* may be v */
    int64_t ldy;
    float *scratch; /* SY_SCAN_SCRATCH(d_key) */
    int32_t d_key, d_val, n_tok;
    bool delta, decay_each; /* decay_each: decay is [d_key] per token */
};
/* Byte of the high part of element i of a state of pairs; the low one is SY_SCAN_PANEL numbers behind. */
#define SY_SCAN_PAIR(i)        (4 * (int64_t)(i)-2 * ((int64_t)(i) % SY_SCAN_PANEL))
#define SY_SCAN_SCRATCH(d_key) ((size_t)SY_SCAN_TOK * (4 * (((size_t)(d_key) + 15) / 16 * 16) + 1))
struct sy_kernels_scan {
    void (*conv)(const struct sy_conv_run *);
    void (*scan[SY_STATE_DTYPES])(const struct sy_scan_run *);
};

/* ---- what the machine can do at most --------------------------------------------------------------------------- */

enum { SY_SUM_ROWS = 4, SY_SUM_COLS = 64 };
struct sy_kernels_peak { /* f32, bf16, int8: multiply-adds on registers only, `rounds` times a few; return how many
                            operations that were (a multiply-add is two). sink: 128 bytes of finite numbers, 64-byte
                            aligned, read and written. bf16 NULL: there is no instruction for it. */
    int64_t (*f32)(int64_t rounds, void *sink);
    int64_t (*bf16)(int64_t rounds, void *sink);
    int64_t (*int8)(int64_t rounds, void *sink);
    uint64_t (*read)(const void *, size_t n); /* reads n bytes, a multiple of 1,024 */
    /* sum[r][d] += p[k][r] v[k][d] for n keys k, as attention sums values of bf16: sums in f32, and rounded to bf16
     * after every key. */
    void (*sum_f32)(const float (*p)[SY_SUM_ROWS], const uint16_t (*v)[SY_SUM_COLS], int64_t n,
                    float (*sum)[SY_SUM_COLS]);
    void (*sum_bf16)(const float (*p)[SY_SUM_ROWS], const uint16_t (*v)[SY_SUM_COLS], int64_t n,
                     uint16_t (*sum)[SY_SUM_COLS]);
};

struct sy_kernels {
    struct sy_kernels_gemm gemm;
    struct sy_kernels_attend attend;
    struct sy_kernels_vec vec;
    struct sy_kernels_scan scan;
    struct sy_kernels_peak peak;
    bool bf16, bf16_codes; /* of one of the folders in use */
    char isa[96];          /* folders in use, best last: "generic avx2 avx512 avx512vnni" */
};
struct sy_kernel_entry {
    const char *family, *isa;
    const void *table;
};
extern const struct sy_kernel_entry sy_kernel_entries[]; /* ends with a NULL family; generated by the build */

/* isa: NULL (best), or the name of a folder: nothing of a higher ten of ranks is used ("avx512" allows its
 * extensions, "avx2" forbids them). Refused when unknown or not usable here. */
SY_CHECK sy_status sy_kernels_pick(const char *isa, struct sy_kernels *out, struct sy_err *);
