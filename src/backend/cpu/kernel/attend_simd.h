/* attend_simd.h - attention for the names of a simd.h: included once by each instruction set's attend.c.
 *
 * A row is one query head of one query. A tile of SY_KEY_TILE keys is widened to f32 once into a scratch tile that
 * stays in the first cache, and all rows of the item meet it there: scores = q K and sums += P V are then the same
 * small matrix product, C[row][col] += sum over k of A[row][k] B[k][col], in registers of REG_ROWS x REG_COLS
 * vectors. An element of C is one chain of fused multiply-adds over ascending k, whatever the shape of the registers'
 * tile around it: therefore nothing depends on which rows are handled together. Chains that are cut (at D_CHUNK, at
 * the edges of what a row sees) go on from the value in memory, which changes no bit either.
 *
 * With up to FEW_ROWS rows, as in decoding, time goes into reading the cache: then the products widen the cache's own
 * bytes on the way, and fetch meanwhile what the next product reads (the values of the same keys; the next tile's
 * keys), since blocks lie anywhere and hardware does not look ahead across pages. */
#include "backend/cpu/kernel/attend_rows_simd.h"
#include "backend/cpu/kernel/index.h"

enum {
    D_CHUNK = 128,  /* of d_key: [128][SY_KEY_TILE] of f32 is 32 KiB */
    V_CHUNK = 64,   /* of d_val: [SY_KEY_TILE][64] is 16 KiB */
    GROUPS_MAX = 8, /* of a q8_0 cache that products read themselves: */
    DIRECT_MAX = GROUPS_MAX * SY_KV_GROUP,
};

/* ---- the product ----------------------------------------------------------------------------------------- */

enum source {
    TILE,   /* b + k * ldb: a scratch tile, widened */
    KEYS,   /* at[col] + k * SY_KV_PANEL elements: panels of the cache, widened on the way */
    VALUES, /* at[k] + col elements: rows of the cache, widened on the way */
};
struct product {
    const float *const *a; /* rows of A, of C, and where in them the product starts */
    float *const *c;
    int64_t a_at, c_at;
    const float *b;
    int64_t ldb;
    const unsigned char *const *at;
    const unsigned char *const *next; /* what is read after this product, to be fetched: as at */
    int64_t col, next_step;           /* bytes */
    const float *scale;               /* q8_0: KEYS [group][SY_KEY_TILE] from col on, VALUES [k][groups] */
    int32_t n_scale;                  /* groups */
    int32_t k_lo, k_hi;
    int32_t n_last; /* lanes of the last vector of columns */
    bool fresh;     /* C starts at 0 */
};

INLINE VF widen_n(enum sy_kv_dtype dtype, const unsigned char *p, int n)
{
    if (dtype == SY_KV_BF16) return n == LANES ? v_load_bf16(p) : v_load_bf16_n(p, n);
    if (dtype == SY_KV_F16) return n == LANES ? v_load_f16(p) : v_load_f16_n(p, n);
    if (dtype == SY_KV_Q8_0) return n == LANES ? v_load_i8(p) : v_load_i8_n(p, n);
    return n == LANES ? v_load((const float *)p) : v_load_n((const float *)p, n);
}

/* In the loops over registers no index may be left: hence the pragmas. */
INLINE void load_c(const struct product *m, const int rows, const int cols, VF c[REG_ROWS][REG_COLS])
{
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int j = 0; j < cols; j++)
            c[r][j] = j < cols - 1 ? v_load(m->c[r] + m->c_at + j * LANES)
                                   : v_load_n(m->c[r] + m->c_at + j * LANES, m->n_last);
    }
}

INLINE void load_b(const struct product *m, const enum source source, const enum sy_kv_dtype dtype, const int cols,
                   int64_t k, VF b[REG_COLS])
{
    const int64_t es = sy_kv_elem_bytes(dtype);
    const bool q8 = dtype == SY_KV_Q8_0;
#pragma GCC unroll 8
    for (int j = 0; j < cols; j++) {
        if (source == TILE) {
            b[j] = v_load(m->b + k * m->ldb + j * LANES);
        } else if (source == KEYS) {
            __builtin_prefetch(m->next[j] + k * m->next_step);
            b[j] = widen_n(dtype, m->at[j] + k * (SY_KV_PANEL * es), LANES);
            if (q8) b[j] = b[j] * v_load(m->scale + k / SY_KV_GROUP * SY_KEY_TILE + j * LANES);
        } else {
            const unsigned char *p = m->at[k] + m->col + j * (LANES * es);
            __builtin_prefetch(m->next[k] + m->col + j * (LANES * es));
            b[j] = j == cols - 1 && m->n_last < LANES ? widen_n(dtype, p, m->n_last) : widen_n(dtype, p, LANES);
            if (q8) b[j] = b[j] * v_set(m->scale[k * m->n_scale + (m->col + j * LANES) / SY_KV_GROUP]);
        }
    }
}

INLINE void multiply(const struct product *m, const enum source source, const enum sy_kv_dtype dtype, const int rows,
                     const int cols)
{
    VF c[REG_ROWS][REG_COLS], b[REG_COLS];
    const float *a[REG_ROWS];
    const int64_t k_hi = m->k_hi;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        a[r] = m->a[r] + m->a_at;
#pragma GCC unroll 8
        for (int j = 0; j < cols; j++) c[r][j] = v_set(0);
    }
    if (!m->fresh) load_c(m, rows, cols, c);
    for (int64_t k = m->k_lo; k < k_hi; k++) {
        load_b(m, source, dtype, cols, k, b);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            VF one = v_set(a[r][k]);
#pragma GCC unroll 8
            for (int j = 0; j < cols; j++) c[r][j] = v_fma(one, b[j], c[r][j]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int j = 0; j < cols; j++) {
            if (j < cols - 1) v_store(m->c[r] + m->c_at + j * LANES, c[r][j]);
            else v_store_n(m->c[r] + m->c_at + j * LANES, c[r][j], m->n_last);
        }
    }
}

/* By rows, and by how many vectors of columns: one, or as many as the registers hold. */
#define PRODUCT(name, source, dtype, rows)                                                                           \
    static void name##_thin_##rows(const struct product *m) { multiply(m, source, dtype, rows, 1); }                 \
    static void name##_wide_##rows(const struct product *m) { multiply(m, source, dtype, rows, REG_COLS); }
#define TABLE(name, source, dtype)                                                                                   \
    PRODUCT(name, source, dtype, 1)                                                                                  \
    PRODUCT(name, source, dtype, 2)                                                                                  \
    PRODUCT(name, source, dtype, 3)                                                                                  \
    PRODUCT(name, source, dtype, 4)                                                                                  \
    PRODUCT(name, source, dtype, 5)                                                                                  \
    PRODUCT(name, source, dtype, 6)                                                                                  \
    static void (*const name[2][REG_ROWS])(const struct product *) = {                                               \
        {name##_thin_1, name##_thin_2, name##_thin_3, name##_thin_4, name##_thin_5, name##_thin_6},                  \
        {name##_wide_1, name##_wide_2, name##_wide_3, name##_wide_4, name##_wide_5, name##_wide_6},                  \
    };
_Static_assert(REG_ROWS == 6, "the lists above");
TABLE(from_tile, TILE, SY_KV_F32)
TABLE(from_keys_f32, KEYS, SY_KV_F32)
TABLE(from_keys_bf16, KEYS, SY_KV_BF16)
TABLE(from_keys_f16, KEYS, SY_KV_F16)
TABLE(from_keys_q8_0, KEYS, SY_KV_Q8_0)
TABLE(from_values_f32, VALUES, SY_KV_F32)
TABLE(from_values_bf16, VALUES, SY_KV_BF16)
TABLE(from_values_f16, VALUES, SY_KV_F16)
TABLE(from_values_q8_0, VALUES, SY_KV_Q8_0)

/* Columns [0, n) of rows [0, n_row). Moves m. */
INLINE void multiply_all(struct product *m, const enum source source, const enum sy_kv_dtype dtype, int32_t n_row,
                         int32_t n)
{
    for (;;) {
        bool wide = n > (REG_COLS - 1) * LANES;
        int32_t vecs = wide ? REG_COLS : 1, lanes = vecs * LANES;
        m->n_last = n < lanes ? n - (lanes - LANES) : LANES;
        if (source == TILE) from_tile[wide][n_row - 1](m);
        else if (source == KEYS && dtype == SY_KV_F32) from_keys_f32[wide][n_row - 1](m);
        else if (source == KEYS && dtype == SY_KV_BF16) from_keys_bf16[wide][n_row - 1](m);
        else if (source == KEYS && dtype == SY_KV_F16) from_keys_f16[wide][n_row - 1](m);
        else if (source == KEYS) from_keys_q8_0[wide][n_row - 1](m);
        else if (dtype == SY_KV_F32) from_values_f32[wide][n_row - 1](m);
        else if (dtype == SY_KV_BF16) from_values_bf16[wide][n_row - 1](m);
        else if (dtype == SY_KV_F16) from_values_f16[wide][n_row - 1](m);
        else from_values_q8_0[wide][n_row - 1](m);
        n -= lanes;
        if (n <= 0) return;
        m->c_at += lanes;
        if (source == TILE) m->b += lanes;
        if (source == VALUES) m->col += lanes * sy_kv_elem_bytes(dtype);
        if (source == KEYS) {
            m->at += vecs;
            m->next += vecs;
            if (dtype == SY_KV_Q8_0) m->scale += lanes;
        }
    }
}

/* ---- tiles of the cache ---------------------------------------------------------------------------------- */

#include "backend/cpu/kernel/attend_q8_simd.h"

/* to[d][j - t] = element d0 + d of key j, d < n, for the keys of a tile; 0 for what is not among them. */
INLINE void tile_keys(const struct sy_attend *a, enum sy_kv_dtype dtype, int32_t t, struct sy_span keys, int32_t d0,
                      int32_t n, float *to)
{
    const struct sy_kv_dim *kv = a->kv;
    const int64_t es = sy_kv_elem_bytes(dtype), head = sy_kv_head(kv, a->kv_head);
    if (keys.hi - keys.lo < SY_KEY_TILE) memset(to, 0, (size_t)n * SY_KEY_TILE * sizeof *to);
    for (int32_t j = keys.lo, run; j < keys.hi; j += run) {
        int32_t off = j % kv->block_len, stride;
        int64_t at = head + sy_kv_key(kv, off, &stride);
        run = stride - off % SY_KV_PANEL;
        if (run > keys.hi - j) run = keys.hi - j;
        const unsigned char *from = sy_kv_block(a, j) + (at + (int64_t)d0 * stride) * es;
        float *col = to + (j - t);
        if (run == SY_KV_PANEL) {
            for (int32_t d = 0; d < n; d++)
                for (int32_t i = 0; i < SY_KV_PANEL; i += LANES)
                    v_store(col + d * SY_KEY_TILE + i, widen_n(dtype, from + (d * SY_KV_PANEL + i) * es, LANES));
            continue;
        }
        for (int32_t d = 0; d < n; d++, from += stride * es) {
            for (int32_t i = 0, lanes; i < run; i += lanes) {
                lanes = run - i < LANES ? run - i : LANES;
                v_store_n(col + d * SY_KEY_TILE + i, widen_n(dtype, from + i * es, lanes), lanes);
            }
        }
    }
}

/* to[j - t][d] = element d0 + d of value j, d < n; up to the next whole vector 0. */
INLINE void tile_values(const struct sy_attend *a, enum sy_kv_dtype dtype, int32_t t, struct sy_span keys, int32_t d0,
                        int32_t n, float *to)
{
    const struct sy_kv_dim *kv = a->kv;
    const int64_t es = sy_kv_elem_bytes(dtype);
    const int64_t head = sy_kv_head(kv, a->kv_head) + (int64_t)kv->block_len * kv->d_key + d0;
    for (int32_t j = keys.lo, run; j < keys.hi; j += run) {
        int32_t off = j % kv->block_len;
        run = kv->block_len - off < keys.hi - j ? kv->block_len - off : keys.hi - j;
        const unsigned char *from = sy_kv_block(a, j) + (head + (int64_t)off * kv->d_val) * es;
        for (int32_t i = j - t; i < j - t + run; i++, from += kv->d_val * es) {
            int32_t d = 0;
            for (; d + LANES <= n; d += LANES) v_store(to + i * V_CHUNK + d, widen_n(dtype, from + d * es, LANES));
            if (d < n) v_store(to + i * V_CHUNK + d, widen_n(dtype, from + d * es, n - d));
        }
    }
}

/* ---- rows ------------------------------------------------------------------------------------------------ */

struct work {
    struct rows s;
    bool direct; /* few rows: the products read the cache themselves */
    const float *q[SY_ROW_TILE];
    float *p[SY_ROW_TILE]; /* rows of score */
    const unsigned char *key[SY_KEY_TILE / LANES], *key_next[SY_KEY_TILE / LANES];
    const unsigned char *value[SY_KEY_TILE], *value_next[SY_KEY_TILE];
    _Alignas(64) float key_scale[GROUPS_MAX][SY_KEY_TILE], value_scale[SY_KEY_TILE * GROUPS_MAX];
    _Alignas(64) float tile[D_CHUNK * SY_KEY_TILE], turned[V_CHUNK * SY_KEY_TILE];
};
_Static_assert(V_CHUNK % SY_KV_GROUP == 0 && V_CHUNK <= D_CHUNK && SY_KV_PANEL % LANES == 0,
               "one buffer for both tiles; panels of whole vectors");

/* As tile_values() of values that are the first elements of keys. */
INLINE void tile_values_shared(struct work *w, enum sy_kv_dtype dtype, int32_t t, struct sy_span keys, int32_t d0,
                               int32_t n)
{
    if (dtype == SY_KV_Q8_0) tile_keys_q8(w->s.a, t, keys, d0, n, w->turned);
    else tile_keys(w->s.a, dtype, t, keys, d0, n, w->turned);
    int32_t whole = (n + LANES - 1) / LANES * LANES;
    for (int32_t j = keys.lo - t; j < keys.hi - t; j++) {
        float *to = w->tile + j * V_CHUNK;
        for (int32_t d = 0; d < n; d++) to[d] = w->turned[d * SY_KEY_TILE + j];
        for (int32_t d = n; d < whole; d++) to[d] = 0;
    }
}

INLINE void scores(struct work *w, enum sy_kv_dtype dtype, int32_t t, struct sy_span keys)
{
    int32_t d_key = w->s.a->kv->d_key, lo = (keys.lo - t) / LANES * LANES;
    for (int32_t d = 0; d < d_key; d += D_CHUNK) {
        int32_t n = d_key - d < D_CHUNK ? d_key - d : D_CHUNK;
        if (dtype == SY_KV_Q8_0) tile_keys_q8(w->s.a, t, keys, d, n, w->tile);
        else tile_keys(w->s.a, dtype, t, keys, d, n, w->tile);
        for (int32_t r = 0, rows; r < w->s.n_row; r += rows) {
            rows = w->s.n_row - r < REG_ROWS ? w->s.n_row - r : REG_ROWS;
            struct product m = {.a = w->q + r,
                                .a_at = d,
                                .c = w->p + r,
                                .c_at = lo,
                                .b = w->tile + lo,
                                .ldb = SY_KEY_TILE,
                                .k_hi = n,
                                .fresh = d == 0};
            multiply_all(&m, TILE, dtype, rows, (keys.hi - t - lo + LANES - 1) / LANES * LANES);
        }
    }
}

/* The scales of the panel at position j of the tile in f32; those of the panel that comes a tile later are fetched.
 */
INLINE void widen_scales(struct work *w, struct sy_kv_panel p, struct sy_kv_panel next, int32_t j)
{
    const struct sy_kv_dim *kv = w->s.a->kv;
    int32_t n_key = sy_kv_groups(kv->d_key), n_val = sy_kv_groups(kv->d_val);
    __builtin_prefetch(next.key_scale);
    __builtin_prefetch(next.value_scale);
    for (int32_t g = 0; g < n_key; g++)
        for (int32_t i = 0; i < SY_KV_PANEL; i += LANES)
            v_store(w->key_scale[g] + j + i, v_load_f16(p.key_scale + 2 * (g * SY_KV_PANEL + i)));
    for (int32_t i = 0; i < SY_KV_PANEL * n_val; i += LANES)
        v_store(w->value_scale + j * n_val + i, v_load_f16(p.value_scale + 2 * i));
}

/* Where the panels of keys and the rows of values of a tile lie. */
INLINE void locate(struct work *w, enum sy_kv_dtype dtype, int32_t t, struct sy_span keys)
{
    const struct sy_attend *a = w->s.a;
    const int64_t es = sy_kv_elem_bytes(dtype), k_row = a->kv->d_key * es, v_row = a->kv->d_val * es;
    for (int32_t j = keys.lo / SY_KV_PANEL * SY_KV_PANEL; j < keys.hi; j += SY_KV_PANEL) {
        bool last = j + SY_KEY_TILE >= a->pos0 + a->n_q;
        struct sy_kv_panel p = sy_kv_panel_at(a, dtype, j),
                           next = last ? p : sy_kv_panel_at(a, dtype, j + SY_KEY_TILE);
        const unsigned char *k = p.key, *v = p.value, *k_next = last ? v : next.key;
        if (dtype == SY_KV_Q8_0) widen_scales(w, p, next, j - t);
        for (int32_t i = 0; i < SY_KV_PANEL; i++) {
            w->value[j - t + i] = v + i * v_row;
            w->value_next[j - t + i] = k_next + i * k_row;
        }
        for (int32_t i = 0; i < SY_KV_PANEL; i += LANES) {
            w->key[(j - t + i) / LANES] = k + i * es;
            w->key_next[(j - t + i) / LANES] = v + i * v_row;
        }
    }
}

INLINE void scores_direct(struct work *w, enum sy_kv_dtype dtype, int32_t t, struct sy_span keys)
{
    const struct sy_kv_dim *kv = w->s.a->kv;
    int32_t lo = (keys.lo - t) / LANES * LANES;
    locate(w, dtype, t, keys);
    for (int32_t r = 0, rows; r < w->s.n_row; r += rows) {
        rows = w->s.n_row - r < REG_ROWS ? w->s.n_row - r : REG_ROWS;
        struct product m = {.a = w->q + r,
                            .c = w->p + r,
                            .c_at = lo,
                            .at = w->key + lo / LANES,
                            .next = w->key_next + lo / LANES,
                            .scale = w->key_scale[0] + lo,
                            .k_hi = kv->d_key,
                            .fresh = true};
        m.next_step = (int64_t)LANES * kv->d_val * sy_kv_elem_bytes(dtype) / kv->d_key;
        multiply_all(&m, KEYS, dtype, rows, (keys.hi - t - lo + LANES - 1) / LANES * LANES);
    }
}

/* Rows [r, r + n) times values [lo, hi) relative to the tile. */
INLINE void add_values(struct work *w, enum sy_kv_dtype dtype, int32_t r, int32_t n, int32_t lo, int32_t hi,
                       int32_t d, int32_t n_d)
{
    if (lo >= hi) return;
    struct product m = {.a = (const float *const *)w->p + r,
                        .c = w->s.sum + r,
                        .c_at = d,
                        .b = w->tile,
                        .ldb = V_CHUNK,
                        .at = w->value,
                        .next = w->value_next,
                        .scale = w->value_scale,
                        .n_scale = sy_kv_groups(w->s.a->kv->d_val),
                        .k_lo = lo,
                        .k_hi = hi};
    if (w->direct) multiply_all(&m, VALUES, dtype, n, n_d);
    else multiply_all(&m, TILE, dtype, n, n_d);
}

/* Keys that all rows of a group see are multiplied together; those at the edges row by row, as what lies at a key
 * that a row does not see may be infinite and 0 times it no way to leave it out. */
INLINE void add_rows(struct work *w, enum sy_kv_dtype dtype, int32_t t, int32_t r, int32_t n, int32_t d, int32_t n_d)
{
    struct sy_span all = {t, t + SY_KEY_TILE};
    for (int32_t i = r; i < r + n; i++) all = sy_span_cut(all, w->s.now[i].lo, w->s.now[i].hi);
    if (all.hi < all.lo) all.hi = all.lo;
    for (int32_t i = r; i < r + n; i++) {
        struct sy_span now = w->s.now[i];
        add_values(w, dtype, i, 1, now.lo - t, (now.hi < all.lo ? now.hi : all.lo) - t, d, n_d);
    }
    add_values(w, dtype, r, n, all.lo - t, all.hi - t, d, n_d);
    for (int32_t i = r; i < r + n; i++) {
        struct sy_span now = w->s.now[i];
        add_values(w, dtype, i, 1, (now.lo > all.hi ? now.lo : all.hi) - t, now.hi - t, d, n_d);
    }
}

INLINE void values(struct work *w, enum sy_kv_dtype dtype, int32_t t, struct sy_span keys)
{
    int32_t d_val = w->s.a->kv->d_val, chunk = w->direct ? d_val : V_CHUNK;
    bool same = rows_same(&w->s, keys);
    for (int32_t d = 0; d < d_val; d += chunk) {
        int32_t n_d = d_val - d < chunk ? d_val - d : chunk;
        if (w->s.a->kv->shared) tile_values_shared(w, dtype, t, keys, d, n_d);
        else if (dtype == SY_KV_Q8_0 && !w->direct) tile_values_q8(w->s.a, t, keys, d, n_d, w->tile);
        else if (!w->direct) tile_values(w->s.a, dtype, t, keys, d, n_d, w->tile);
        for (int32_t r = 0, n; r < w->s.n_row; r += n) {
            n = w->s.n_row - r < REG_ROWS ? w->s.n_row - r : REG_ROWS;
            if (same) add_values(w, dtype, r, n, keys.lo - t, keys.hi - t, d, n_d);
            else add_rows(w, dtype, t, r, n, d, n_d);
        }
    }
}

INLINE void part(const struct sy_attend *a, enum sy_kv_dtype dtype)
{
    struct work w;
    int32_t all = a->n_q * a->n_group;
    w.direct = !a->kv->shared && all <= FEW_ROWS && a->kv->block_len % SY_KV_PANEL == 0;
    if (dtype == SY_KV_Q8_0) w.direct &= a->kv->d_key <= DIRECT_MAX && a->kv->d_val <= DIRECT_MAX;
    for (int32_t row0 = 0; row0 < all; row0 += SY_ROW_TILE) {
        struct sy_span seen = rows_begin(&w.s, a, row0, all - row0 < SY_ROW_TILE ? all - row0 : SY_ROW_TILE);
        for (int32_t r = 0; r < w.s.n_row; r++) {
            w.q[r] = sy_attend_q(a, row0 + r);
            w.p[r] = w.s.score[r];
        }
        for (int32_t t = seen.lo / SY_KEY_TILE * SY_KEY_TILE; t < seen.hi; t += SY_KEY_TILE) {
            struct sy_span keys = sy_span_cut(seen, t, t + SY_KEY_TILE);
            if (w.direct) scores_direct(&w, dtype, t, keys);
            else scores(&w, dtype, t, keys);
            rows_soften(&w.s, t, keys);
            values(&w, dtype, t, keys);
        }
        rows_end(&w.s);
    }
}

static void part_f32(const struct sy_attend *a) { part(a, SY_KV_F32); }
static void part_bf16(const struct sy_attend *a) { part(a, SY_KV_BF16); }
static void part_f16(const struct sy_attend *a) { part(a, SY_KV_F16); }
static void part_q8_0(const struct sy_attend *a) { part(a, SY_KV_Q8_0); }

/* Folds the partitions in ascending order, as generic/attend.c does. */
static void merge(const struct sy_attend *a)
{
    int32_t d_val = a->kv->d_val, lo, hi;
    sy_attend_range(a, &lo, &hi);
    for (int32_t r = 0; r < a->n_q * a->n_group; r++) {
        float *out = a->out + r / a->n_group * a->ldo + (int64_t)(r % a->n_group) * d_val;
        float max = -__builtin_inff(), total = 0;
        for (int32_t p = lo; p < hi; p++) {
            const float *sum = sy_attend_partial(a, p, r);
            if (sum[d_val] == -__builtin_inff() && !(sum[d_val + 1] != 0)) continue;
            if (max == -__builtin_inff() && total == 0) { /* the first: what 0 * 0 + 1 * x would give */
                memcpy(out, sum, (size_t)d_val * sizeof *out);
                total = sum[d_val + 1];
                max = sum[d_val];
                continue;
            }
            float both = sum[d_val] > max ? sum[d_val] : max, ref = both == -__builtin_inff() ? 0 : both;
            VF old = v_exp2(v_set(max - ref)), add = v_exp2(v_set(sum[d_val] - ref));
            for (int32_t d = 0, n; d < d_val; d += n) {
                n = d_val - d < LANES ? d_val - d : LANES;
                v_store_n(out + d, v_fma(v_load_n(out + d, n), old, v_load_n(sum + d, n) * add), n);
            }
            total = total * old[0] + sum[d_val + 1] * add[0];
            max = both;
        }
        if (max == -__builtin_inff() && total == 0) memset(out, 0, (size_t)d_val * sizeof *out);
        float old = 1;
        if (a->sink) {
            float sink = a->sink[r % a->n_group] * LOG2E, both = sink > max ? sink : max;
            VF less = v_exp2(v_set(max - both)), more = v_exp2(v_set(sink - both));
            old = less[0];
            total = total * old + more[0];
        }
        VF share = v_set(old / total);
        for (int32_t d = 0, n; d < d_val; d += n) {
            n = d_val - d < LANES ? d_val - d : LANES;
            v_store_n(out + d, v_load_n(out + d, n) * share, n);
        }
    }
}

/* ---- writing --------------------------------------------------------------------------------------------- */

INLINE void narrow_n(enum sy_kv_dtype dtype, unsigned char *to, VF x, int n)
{
    if (dtype == SY_KV_BF16) v_store_bf16_n(to, x, n);
    else if (dtype == SY_KV_F16) v_store_f16_n(to, x, n);
    else v_store_n((float *)to, x, n);
}

INLINE void write(const struct sy_kv_dim *kv, enum sy_kv_dtype dtype, unsigned char *layer, const float *k,
                  int64_t ldk, const float *v, int64_t ldv, const int32_t *row, int32_t n)
{
    const int64_t es = sy_kv_elem_bytes(dtype);
    unsigned char some[LANES * sizeof(float)];
    for (int32_t i = 0; i < n; i++, k += ldk, v += ldv) {
        unsigned char *block = layer + row[i] / kv->block_len * kv->block_bytes;
        int32_t off = row[i] % kv->block_len, stride, lanes;
        for (int32_t h = 0; h < kv->n_kv; h++) {
            const float *from = k + (int64_t)h * kv->d_key;
            unsigned char *to = block + (sy_kv_head(kv, h) + sy_kv_key(kv, off, &stride)) * es;
            for (int32_t d = 0; d < kv->d_key; d += lanes) {
                lanes = kv->d_key - d < LANES ? kv->d_key - d : LANES;
                narrow_n(dtype, some, v_load_n(from + d, lanes), lanes);
                for (int32_t e = 0; e < lanes; e++, to += stride * es) memcpy(to, some + e * es, (size_t)es);
            }
            if (kv->shared) continue;
            from = v + (int64_t)h * kv->d_val;
            to = block + (sy_kv_head(kv, h) + (int64_t)kv->block_len * kv->d_key + (int64_t)off * kv->d_val) * es;
            for (int32_t d = 0; d < kv->d_val; d += lanes) {
                lanes = kv->d_val - d < LANES ? kv->d_val - d : LANES;
                narrow_n(dtype, to + d * es, v_load_n(from + d, lanes), lanes);
            }
        }
    }
}

#define WRITE(name, dtype)                                                                                           \
    static void name(const struct sy_kv_dim *kv, unsigned char *layer, const float *k, int64_t ldk, const float *v,  \
                     int64_t ldv, const int32_t *row, int32_t n)                                                     \
    {                                                                                                                \
        write(kv, dtype, layer, k, ldk, v, ldv, row, n);                                                             \
    }
WRITE(write_f32, SY_KV_F32)
WRITE(write_bf16, SY_KV_BF16)
WRITE(write_f16, SY_KV_F16)
