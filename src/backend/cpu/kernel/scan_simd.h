/* scan_simd.h - what runs along a sequence, for the names of a simd.h: included once by each instruction set's
 * scan.c.
 *
 * SCAN keeps a tile of COLS vectors of columns in the first cache and takes a run of tokens through it. For each
 * token the arrays a, k, a k, a q over the key dimension are made once per head (`prepare`). Then u = beta (v - S^T
 * (a k)),  out = S^T (a q) + u (k q),  S = a S + k u and the update by one token and the two products of the next are
 * one pass over the tile: a load, a store and four multiply-adds for each vector, so the units that multiply are the
 * limit, not the cache. A column is a chain of operations over ascending key dimensions, even and odd ones apart,
 * whatever the number of tokens in a call: cutting a sequence anywhere changes no bit. A bf16 state is rounded after
 * each token for the same reason. */
#include "backend/cpu/kernel/conv.h"
#include "backend/cpu/kernel/math_simd.h"

/* ---- convolution --------------------------------------------------------------------------------------------- */

INLINE VF load_some(const float *p, int n) { return n == LANES ? v_load(p) : v_load_n(p, n); }
INLINE void store_some(float *p, VF x, int n)
{
    if (n == LANES) v_store(p, x);
    else v_store_n(p, x, n);
}

static void conv(const struct sy_conv_run *r)
{
    int32_t rows = r->n_tap - 1;
    for (int32_t t = 0; t < r->n_tok; t++) {
        for (int64_t c = 0; c < r->d; c += LANES) {
            int n = r->d - c < LANES ? (int)(r->d - c) : LANES;
            VF sum = r->bias ? load_some(r->bias + c, n) : v_set(0);
            for (int32_t i = 0; i < r->n_tap; i++) {
                int32_t at = t - rows + i;
                if (at < 0 && !r->from) continue;
                const float *x = at >= 0 ? r->x + at * r->ldx : r->from + (rows + at) * r->ld_state;
                sum = v_fma(load_some(r->w + i * r->ldw + c, n), load_some(x + c, n), sum);
            }
            store_some(r->y + t * r->ldy + c, sum, n);
        }
    }
    sy_conv_keep(r);
}

/* ---- scan ---------------------------------------------------------------------------------------------------- */

enum { COLS = 2, PER_PANEL = SY_SCAN_PANEL / LANES }; /* vectors of a tile; of a panel */

struct tok { /* one token of one head, [ld] each */
    const float *a, *k, *ak, *aq;
    float kq;
};

static int64_t padded(int32_t d_key) { return (d_key + 15) / 16 * 16; }

INLINE struct tok token(const struct sy_scan_run *r, int32_t i)
{
    int64_t ld = padded(r->d_key);
    const float *at = r->scratch + i * (4 * ld + 1);
    return (struct tok){at, at + ld, at + 2 * ld, at + 3 * ld, at[4 * ld]};
}

/* The arrays of token t into place i. */
static void prepare(const struct sy_scan_run *r, int32_t t, int32_t i)
{
    int64_t ld = padded(r->d_key);
    float *at = r->scratch + i * (4 * ld + 1);
    const float *q = r->q + t * r->ldq, *k = r->k + t * r->ldk, *decay = r->decay + t * r->ld_decay;
    VF one = v_exp(v_set(decay[0])), kq = v_set(0);
    for (int32_t d = 0; d < r->d_key; d += LANES) {
        int n = r->d_key - d < LANES ? r->d_key - d : LANES;
        VF x = load_some(k + d, n), y = load_some(q + d, n), a = r->decay_each ? v_exp(load_some(decay + d, n)) : one;
        v_store(at + d, a);
        v_store(at + ld + d, x);
        v_store(at + 2 * ld + d, a * x);
        v_store(at + 3 * ld + d, a * y);
        kq = v_fma(x, y, kq);
    }
    at[4 * ld] = v_sum(kq);
}

INLINE VF state_load(enum sy_state_dtype dtype, const unsigned char *p, int64_t i)
{
    if (dtype == SY_STATE_F32) return v_load((const float *)(const void *)p + i);
    if (dtype == SY_STATE_BF16) return v_load_bf16(p + 2 * i);
    p += SY_SCAN_PAIR(i);
    return v_load_bf16(p) + v_load_bf16(p + 2 * SY_SCAN_PANEL);
}

/* What is stored, as it will be read. */
INLINE VF state_store(enum sy_state_dtype dtype, unsigned char *p, int64_t i, VF x)
{
    if (dtype == SY_STATE_F32) {
        v_store((float *)(void *)p + i, x);
        return x;
    }
    p += dtype == SY_STATE_BF16 ? 2 * i : SY_SCAN_PAIR(i);
    v_store_bf16_n(p, x, LANES);
    VF high = v_load_bf16(p);
    if (dtype == SY_STATE_BF16) return high;
    v_store_bf16_n(p + 2 * SY_SCAN_PANEL, x - high, LANES);
    return high + v_load_bf16(p + 2 * SY_SCAN_PANEL);
}

struct tile { /* COLS vectors of columns; their elements of key dimension i are at at[j] + i * SY_SCAN_PANEL */
    int64_t at[COLS];
    int32_t col[COLS], n[COLS]; /* first column of the head, live lanes (0: none) */
};
struct sums {
    VF k[COLS], q[COLS];
};

/* One pass over the tile: with `update` S = a S + k u of token *now; with `next` the products of the token after. */
INLINE void pass(const struct sy_scan_run *r, enum sy_state_dtype dtype, const struct tile *c, const int cols,
                 const unsigned char *from, const struct tok *now, const VF u[COLS], const struct tok *next,
                 struct sums *out)
{
    VF sk[2][COLS], sq[2][COLS];
    for (int o = 0; o < 2; o++)
        for (int j = 0; j < cols; j++) sk[o][j] = sq[o][j] = v_set(0);
    const int64_t elem = dtype == SY_STATE_BF16 ? 2 : 4, ahead = elem * r->d_key * LANES * COLS;
    for (int32_t i = 0; i < r->d_key; i += 2) {
#pragma GCC unroll 2
        for (int o = 0; o < 2; o++) {
            if (i + o == r->d_key) break;
            VF a = v_set(0), k = a, ak = a, aq = a;
            if (now) a = v_set(now->a[i + o]), k = v_set(now->k[i + o]);
            if (next) ak = v_set(next->ak[i + o]), aq = v_set(next->aq[i + o]);
#pragma GCC unroll 2
            for (int j = 0; j < cols; j++) {
                int64_t at = c->at[j] + (int64_t)(i + o) * SY_SCAN_PANEL;
                /* The first pass waits for memory: the tile after this one is asked for meanwhile. */
                if (!now) __builtin_prefetch(from + ahead + at * elem);
                VF s = state_load(dtype, from, at);
                if (now) s = state_store(dtype, r->to, at, v_fma(k, u[j], a * s));
                if (!next) continue;
                if (r->delta) sk[o][j] = v_fma(ak, s, sk[o][j]);
                sq[o][j] = v_fma(aq, s, sq[o][j]);
            }
        }
    }
    for (int j = 0; next && j < cols; j++) {
        out->k[j] = sk[0][j] + sk[1][j];
        out->q[j] = sq[0][j] + sq[1][j];
    }
}

INLINE void tile_tokens(const struct sy_scan_run *r, enum sy_state_dtype dtype, const struct tile *c, const int cols,
                        int32_t t0, int32_t n)
{
    const unsigned char *from = t0 ? r->to : r->from;
    struct sums sum;
    VF u[COLS];
    struct tok now = token(r, 0), next;
    pass(r, dtype, c, cols, from, NULL, NULL, &now, &sum);
    for (int32_t i = 0; i < n; i++, now = next, from = r->to) {
        VF beta = v_set(r->beta ? r->beta[(t0 + i) * r->ld_beta] : 1), kq = v_set(now.kq);
        for (int j = 0; j < cols; j++) {
            VF v = load_some(r->v + (t0 + i) * r->ldv + c->col[j], c->n[j]);
            if (r->delta) v -= sum.k[j];
            u[j] = beta * v;
            store_some(r->y + (t0 + i) * r->ldy + c->col[j], v_fma(u[j], kq, sum.q[j]), c->n[j]);
        }
        if (i + 1 == n) {
            pass(r, dtype, c, cols, from, &now, u, NULL, &sum);
            break;
        }
        next = token(r, i + 1);
        pass(r, dtype, c, cols, from, &now, u, &next, &sum);
    }
}

INLINE void scan(const struct sy_scan_run *r, enum sy_state_dtype dtype)
{
    int32_t n_panel = (r->d_val + SY_SCAN_PANEL - 1) / SY_SCAN_PANEL, n_vec = n_panel * PER_PANEL;
    struct sy_scan_run own = *r;
    if (!r->from) {
        size_t elem = dtype == SY_STATE_BF16 ? sizeof(uint16_t) : sizeof(float);
        memset(r->to, 0, (size_t)n_panel * SY_SCAN_PANEL * (size_t)r->d_key * elem);
        own.from = r->to;
    }
    for (int32_t t = 0; t < r->n_tok; t += SY_SCAN_TOK) {
        int32_t n = r->n_tok - t < SY_SCAN_TOK ? r->n_tok - t : SY_SCAN_TOK;
        for (int32_t i = 0; i < n; i++) prepare(r, t + i, i);
        for (int32_t v = 0; v < n_vec; v += COLS) {
            struct tile c;
            for (int j = 0; j < COLS; j++) {
                int32_t x = v + j, col = x * LANES, left = r->d_val - col;
                c.at[j] = (int64_t)(x / PER_PANEL) * r->d_key * SY_SCAN_PANEL + x % PER_PANEL * LANES;
                c.col[j] = left > 0 ? col : 0;
                c.n[j] = left < 0 ? 0 : left < LANES ? left : LANES;
            }
            if (v + 1 < n_vec) tile_tokens(&own, dtype, &c, 2, t, n);
            else tile_tokens(&own, dtype, &c, 1, t, n);
        }
    }
}

static void scan_f32(const struct sy_scan_run *r) { scan(r, SY_STATE_F32); }
static void scan_bf16(const struct sy_scan_run *r) { scan(r, SY_STATE_BF16); }
static void scan_pair(const struct sy_scan_run *r) { scan(r, SY_STATE_PAIR); }
