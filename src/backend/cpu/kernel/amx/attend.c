/* attend.c - attention on matrix units (Intel AMX): queries, keys, weights and values in bf16, sums in f32.
 *
 * A tile of SY_KEY_TILE keys is brought into the order that products want, pairs of elements of k side by side: a
 * permutation of each 64 bytes of the cache. Then up to 32 rows at a time meet it in scores = q K, and, once the
 * scores are weights, in sums += P V. A row of a product does not depend on the rows beside it, and 0 added for a key
 * that a row does not see changes no bit; but 0 times what is not finite is NaN, so keys that only some rows see are
 * looked at first, and rows go one by one where one of them is not finite. */
#include "backend/cpu/kernel/amx/tiles.h"
#include "backend/cpu/kernel/avx512/simd.h"

#include "backend/cpu/kernel/attend_rows_simd.h"

enum {
    PANELS = SY_KEY_TILE / SY_TILE,
    STEPS = SY_KEY_TILE / SY_TILE_K,
    ROWS = 2 * SY_TILE,
    KEY_MAX = 576, /* d_key, d_val: what the buffers below hold */
    VALUE_MAX = 512,
};
_Static_assert((int)SY_TILE == (int)SY_KV_PANEL, "a panel of the cache is a row of tiles");
typedef uint16_t tile[SY_TILE_K * SY_TILE]; /* [SY_TILE_K / 2][SY_TILE][2] */

/* The next tile's panels, keys and values, which come into the second cache beside the work on this one: a few lines
 * of each at a time, as hardware looks ahead within a page only, and as many waits at once are what a core allows. */
struct ahead {
    const unsigned char *key[PANELS], *value[PANELS];
    int32_t n;                      /* panels */
    int64_t at, key_end, value_end; /* bytes of a panel */
};

struct work {
    struct rows s;
    struct ahead ahead;
    struct sy_tiles tiles;
    int32_t d_pad; /* d_key up to a multiple of SY_TILE_K, elements of zero behind it */
    _Alignas(64) tile key[KEY_MAX / SY_TILE_K][PANELS];
    _Alignas(64) tile value[VALUE_MAX / SY_TILE][STEPS];
    _Alignas(64) uint16_t weight[SY_ROW_TILE][SY_KEY_TILE];
    _Alignas(64) uint16_t q[SY_ROW_TILE * KEY_MAX];             /* [row][d_pad] */
    uint16_t gathered[PANELS][SY_TILE * (KEY_MAX + VALUE_MAX)]; /* panels of blocks that are no multiple of one */
};

/* n lines of each panel. */
SY_INLINE void fetch(struct ahead *h, int64_t n)
{
    for (; n > 0 && (h->at < h->key_end || h->at < h->value_end); n--, h->at += 64)
        for (int32_t i = 0; i < h->n; i++) {
            if (h->at < h->key_end) _mm_prefetch((const char *)h->key[i] + h->at, _MM_HINT_T1);
            if (h->at < h->value_end) _mm_prefetch((const char *)h->value[i] + h->at, _MM_HINT_T1);
        }
}

/* One operand of a product: tiles `step` bytes apart along k. */
struct operand {
    const void *at;
    int64_t ld, step;
};

/* c[n][32] = or += a b, 1 to 32 rows; b: two columns of tiles. */
SY_INLINE void multiply(struct sy_tiles *t, int64_t n, struct operand a, struct operand b0, struct operand b1,
                        int64_t n_step, float *c, int64_t ldc, bool fresh)
{
    const bool two = n > SY_TILE;
    const char *x = a.at, *y0 = b0.at, *y1 = b1.at;
    sy_tiles_configure(t, n);
    sy_tiles_settle();
    if (fresh) {
        _tile_zero(0);
        _tile_zero(1);
        if (two) _tile_zero(2);
        if (two) _tile_zero(3);
    } else {
        _tile_loadd(0, c, ldc * 4);
        _tile_loadd(1, c + SY_TILE, ldc * 4);
        if (two) _tile_loadd(2, c + SY_TILE * ldc, ldc * 4);
        if (two) _tile_loadd(3, c + SY_TILE * ldc + SY_TILE, ldc * 4);
    }
    for (int64_t i = 0; i < n_step; i++, x += a.step, y0 += b0.step, y1 += b1.step) {
        _tile_loadd(4, x, a.ld);
        _tile_loadd(6, y0, 64);
        _tile_loadd(7, y1, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (!two) continue;
        _tile_loadd(5, x + SY_TILE * a.ld, a.ld);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, ldc * 4);
    _tile_stored(1, c + SY_TILE, ldc * 4);
    if (two) _tile_stored(2, c + SY_TILE * ldc, ldc * 4);
    if (two) _tile_stored(3, c + SY_TILE * ldc + SY_TILE, ldc * 4);
    sy_tiles_settle();
}

/* Two rows of 16 to 16 pairs. */
SY_INLINE __m512i pairs(__m512i rows)
{
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, rows);
}

/* Panels are read side by side: while one of them waits the others do not. */
struct panels {
    const unsigned char *key[PANELS], *value[PANELS]; /* NULL: no row sees one of its positions */
};

static void pack_keys(struct work *w, const struct panels *at)
{
    int64_t n_pair = w->s.a->kv->d_key / 2;
    for (int64_t i = 0; i < n_pair; i++) {
        if (i % 4 == 0) fetch(&w->ahead, 1);
        for (int p = 0; p < PANELS; p++) {
            if (!at->key[p]) continue;
            _mm512_store_si512(w->key[i / SY_TILE][p] + i % SY_TILE * SY_TILE_K,
                               pairs(_mm512_loadu_si512(at->key[p] + i * 64)));
        }
    }
}

/* Zero for positions outside [lo, hi) of the tile; true when one that is inside is not finite. */
static bool pack_values(struct work *w, const struct panels *at, int32_t lo, int32_t hi)
{
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    const int32_t d_val = w->s.a->kv->d_val;
    __mmask32 bad = 0;
    for (int32_t i = 0; i < SY_TILE; i += 2) {
        fetch(&w->ahead, (d_val + 63) / 64);
        for (int32_t p = 0; p < PANELS; p++) {
            int32_t j = p * SY_TILE + i;
            bool first = j >= lo && j < hi, second = j + 1 >= lo && j + 1 < hi;
            const unsigned char *from = at->value[p];
            if (from) from += (int64_t)i * d_val * 2;
            uint16_t *to = w->value[0][j / SY_TILE_K] + j % SY_TILE_K / 2 * SY_TILE_K;
            for (int32_t d = 0; d < d_val; d += SY_TILE) {
                __m512i v = _mm512_setzero_si512();
                if (first) v = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)(from + 2 * d)));
                if (second) v = _mm512_inserti64x4(v, _mm256_loadu_si256((const void *)(from + 2 * (d_val + d))), 1);
                v = pairs(v);
                bad |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(v, exponent), exponent);
                _mm512_store_si512(to + d / SY_TILE * (STEPS * SY_TILE_K * SY_TILE), v);
            }
        }
    }
    return bad != 0;
}

/* Positions [lo, hi) of the panel at j as one block of SY_TILE of them would hold them. */
static struct sy_kv_panel gather(struct work *w, uint16_t *to, int32_t j, int32_t lo, int32_t hi)
{
    const struct sy_attend *a = w->s.a;
    const struct sy_kv_dim *kv = a->kv;
    memset(to, 0, sizeof w->gathered[0]);
    for (int32_t i = lo > j ? lo : j; i < hi && i < j + SY_TILE; i++) {
        int32_t off = i % kv->block_len, width;
        const unsigned char *head = sy_kv_block(a, i) + sy_kv_head(kv, a->kv_head) * 2;
        const unsigned char *key = head + sy_kv_key(kv, off, &width) * 2;
        for (int32_t d = 0; d < kv->d_key; d++) memcpy(to + d * SY_TILE + i - j, key + (int64_t)d * width * 2, 2);
        memcpy(to + SY_TILE * kv->d_key + (int64_t)(i - j) * kv->d_val,
               head + ((int64_t)kv->block_len * kv->d_key + (int64_t)off * kv->d_val) * 2, (size_t)kv->d_val * 2);
    }
    return (struct sy_kv_panel){.key = (const unsigned char *)to,
                                .value = (const unsigned char *)(to + SY_TILE * kv->d_key)};
}

static struct panels locate(struct work *w, int32_t t, struct sy_span keys)
{
    const struct sy_attend *a = w->s.a;
    struct panels at = {0};
    w->ahead = (struct ahead){.key_end = (int64_t)SY_TILE * a->kv->d_key * 2,
                              .value_end = (int64_t)SY_TILE * a->kv->d_val * 2};
    for (int32_t i = 0; i < PANELS; i++) {
        int32_t j = t + i * SY_TILE, next = j + SY_KEY_TILE;
        if (j + SY_TILE <= keys.lo || j >= keys.hi) continue;
        bool whole = a->kv->block_len % SY_TILE == 0;
        struct sy_kv_panel p =
            whole ? sy_kv_panel_at(a, SY_KV_BF16, j) : gather(w, w->gathered[i], j, keys.lo, keys.hi);
        at.key[i] = p.key;
        at.value[i] = p.value;
        if (!whole || next >= a->pos0 + a->n_q) continue;
        p = sy_kv_panel_at(a, SY_KV_BF16, next);
        w->ahead.key[w->ahead.n] = p.key;
        w->ahead.value[w->ahead.n++] = p.value;
    }
    return at;
}

static void scores(struct work *w, int32_t t, struct sy_span keys)
{
    int64_t n_step = w->d_pad / SY_TILE_K;
    int32_t lo = (keys.lo - t) / ROWS * 2, hi = (keys.hi - t + SY_TILE - 1) / SY_TILE;
    for (int32_t r = 0; r < w->s.n_row; r += ROWS) {
        int32_t n = w->s.n_row - r < ROWS ? w->s.n_row - r : ROWS;
        struct operand q = {w->q + (int64_t)r * w->d_pad, w->d_pad * 2, 2 * SY_TILE_K};
        for (int32_t p = lo; p < hi; p += 2) {
            fetch(&w->ahead, w->d_pad / 16);
            multiply(&w->tiles, n, q, (struct operand){w->key[0][p], 64, sizeof w->key[0]},
                     (struct operand){w->key[0][p + 1], 64, sizeof w->key[0]}, n_step, w->s.score[r] + p * SY_TILE,
                     SY_KEY_TILE, true);
        }
    }
}

/* Rows [r, r + n), all at once. */
static void add_values(struct work *w, int32_t r, int32_t n)
{
    int32_t d_val = w->s.a->kv->d_val;
    struct operand p = {w->weight[r], SY_KEY_TILE * 2, 2 * SY_TILE_K};
    for (int32_t d = 0; d < d_val; d += 2 * SY_TILE) {
        fetch(&w->ahead, 4);
        multiply(&w->tiles, n, p, (struct operand){w->value[d / SY_TILE], 64, sizeof(tile)},
                 (struct operand){w->value[d / SY_TILE + 1], 64, sizeof(tile)}, STEPS, w->s.sum[r] + d, d_val + 2,
                 false);
    }
}

static void values(struct work *w, const struct panels *at, int32_t t, struct sy_span keys)
{
    for (int32_t r = 0; r < w->s.n_row; r++) {
        const float *p = w->s.score[r];
        bool none = w->s.now[r].lo >= w->s.now[r].hi;
        for (int i = 0; i < SY_KEY_TILE; i += 32) {
            __m512i v = (__m512i)_mm512_cvtne2ps_pbh(_mm512_load_ps(p + i + 16), _mm512_load_ps(p + i));
            _mm512_store_si512(w->weight[r] + i, none ? _mm512_setzero_si512() : v);
        }
    }
    bool bad = pack_values(w, at, keys.lo - t, keys.hi - t);
    if (!bad || rows_same(&w->s, keys)) {
        for (int32_t r = 0; r < w->s.n_row; r += ROWS)
            add_values(w, r, w->s.n_row - r < ROWS ? w->s.n_row - r : ROWS);
        return;
    }
    for (int32_t r = 0; r < w->s.n_row; r++) {
        pack_values(w, at, w->s.now[r].lo - t, w->s.now[r].hi - t);
        add_values(w, r, 1);
    }
}

static void prepare(struct work *w, int32_t row0)
{
    int32_t d_key = w->s.a->kv->d_key;
    for (int32_t r = 0; r < w->s.n_row; r++) {
        const float *from = sy_attend_q(w->s.a, row0 + r);
        uint16_t *to = w->q + (int64_t)r * w->d_pad;
        for (int32_t d = 0, n; d < w->d_pad; d += LANES) {
            n = d_key - d < LANES ? d_key - d : LANES;
            __m256i v = (__m256i)_mm512_cvtneps_pbh(n > 0 ? v_load_n(from + d, n) : v_set(0));
            _mm256_storeu_si256((void *)(to + d), v);
        }
    }
    for (int32_t i = d_key / 2; i < w->d_pad / 2; i++)
        for (int p = 0; p < PANELS; p++)
            _mm512_store_si512(w->key[i / SY_TILE][p] + i % SY_TILE * SY_TILE_K, _mm512_setzero_si512());
}

static bool part_bf16(const struct sy_attend *a)
{
    const struct sy_kv_dim *kv = a->kv;
    if (kv->shared || kv->d_key % 2 || kv->d_val % ROWS || kv->d_key > KEY_MAX || kv->d_val > VALUE_MAX) return false;
    struct work w;
    w.tiles = (struct sy_tiles){{0, 0}};
    w.d_pad = (kv->d_key + SY_TILE_K - 1) / SY_TILE_K * SY_TILE_K;
    int32_t all = a->n_q * a->n_group;
    for (int32_t row0 = 0; row0 < all; row0 += SY_ROW_TILE) {
        struct sy_span seen = rows_begin(&w.s, a, row0, all - row0 < SY_ROW_TILE ? all - row0 : SY_ROW_TILE);
        prepare(&w, row0);
        for (int32_t t = seen.lo / SY_KEY_TILE * SY_KEY_TILE; t < seen.hi; t += SY_KEY_TILE) {
            struct sy_span keys = sy_span_cut(seen, t, t + SY_KEY_TILE);
            struct panels at = locate(&w, t, keys);
            pack_keys(&w, &at);
            scores(&w, t, keys);
            rows_soften(&w.s, t, keys);
            values(&w, &at, t, keys);
        }
        rows_end(&w.s);
    }
    _tile_release();
    return true;
}

extern const struct sy_kernels_attend sy_attend_amx;
const struct sy_kernels_attend sy_attend_amx = {.part_bf16 = {[SY_KV_BF16] = part_bf16}};
