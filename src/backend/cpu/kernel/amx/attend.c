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
    _Alignas(64) float sum[SY_ROW_TILE * VALUE_MAX];            /* [row][d_val] */
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

/* The left operand of a product: row tiles, ld bytes from row to row. */
struct left {
    const char *at;
    int64_t ld;
};

/* Sums of up to 16 rows of two columns of tiles, whose storing is put off until the next ones are under way: a tile
 * that is stored waits for its last product. */
struct sums {
    float *at; /* NULL: none */
    int64_t ld;
    bool second; /* in tiles 2 and 3, not 0 and 1 */
};

SY_INLINE void store(struct sums *s)
{
    if (!s->at) return;
    if (s->second) {
        _tile_stored(2, s->at, s->ld * 4);
        _tile_stored(3, s->at + SY_TILE, s->ld * 4);
    } else {
        _tile_stored(0, s->at, s->ld * 4);
        _tile_stored(1, s->at + SY_TILE, s->ld * 4);
    }
    s->at = NULL;
}

/* Ends a run of products: what they stored can be read. */
SY_INLINE void settle(struct sums *s)
{
    store(s);
    sy_tiles_settle();
}

#define MULTIPLY(C0, C1, A)                                                                                          \
    if (fresh) {                                                                                                     \
        _tile_zero(C0);                                                                                              \
        _tile_zero(C1);                                                                                              \
    } else {                                                                                                         \
        _tile_loadd(C0, c, ldc * 4);                                                                                 \
        _tile_loadd(C1, c + SY_TILE, ldc * 4);                                                                       \
    }                                                                                                                \
    for (int64_t i = 0; i < n_step; i++) {                                                                           \
        _tile_loadd(A, a.at + i * 2 * SY_TILE_K, a.ld);                                                              \
        _tile_loadd(6, b0 + i * step, 64);                                                                           \
        _tile_loadd(7, b1 + i * step, 64);                                                                           \
        _tile_dpbf16ps(C0, A, 6);                                                                                    \
        _tile_dpbf16ps(C1, A, 7);                                                                                    \
    }
/* c[16][32] = or += a b; b: two columns of tiles, `step` bytes apart along k. Rows are as many as are configured. */
SY_INLINE void multiply(struct sums *before, struct left a, const void *left_column, const void *right_column,
                        int64_t step, int64_t n_step, float *c, int64_t ldc, bool fresh)
{
    const char *b0 = left_column, *b1 = right_column;
    bool second = !before->second;
    if (second) {
        MULTIPLY(2, 3, 5)
    } else {
        MULTIPLY(0, 1, 4)
    }
    store(before);
    *before = (struct sums){c, ldc, second};
}
#undef MULTIPLY

/* Row tiles for n rows: where there are several, what follows the last row is computed too. */
SY_INLINE void configure(struct sy_tiles *t, int32_t n)
{
    int rows = n < SY_TILE ? n : SY_TILE;
    sy_tiles_configure(t, rows, rows);
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
        const struct sy_attend *b = a;
        if (next >= a->pos0 + a->n_q && a->next) {
            b = a->next;
            next = sy_attend_span(b, 0).lo / SY_TILE * SY_TILE + i * SY_TILE;
        }
        if (!whole || next >= b->pos0 + b->n_q) continue;
        p = sy_kv_panel_at(b, SY_KV_BF16, next);
        w->ahead.key[w->ahead.n] = p.key;
        w->ahead.value[w->ahead.n++] = p.value;
    }
    return at;
}

SY_INLINE void scores(struct work *w, int32_t t, struct sy_span keys)
{
    struct sums sums = {0};
    int32_t lo = (keys.lo - t) / ROWS * 2, hi = (keys.hi - t + SY_TILE - 1) / SY_TILE;
    configure(&w->tiles, w->s.n_row);
    for (int32_t p = lo; p < hi; p += 2)
        for (int32_t r = 0; r < w->s.n_row; r += SY_TILE) {
            fetch(&w->ahead, w->d_pad / 16);
            multiply(&sums, (struct left){(const char *)(w->q + (int64_t)r * w->d_pad), w->d_pad * 2}, w->key[0][p],
                     w->key[0][p + 1], sizeof w->key[0], w->d_pad / SY_TILE_K, w->s.score[r] + p * SY_TILE,
                     SY_KEY_TILE, true);
        }
    settle(&sums);
}

/* Rows [r, r + n). */
SY_INLINE void add_values(struct work *w, int32_t r0, int32_t n)
{
    struct sums sums = {0};
    int32_t d_val = w->s.a->kv->d_val;
    configure(&w->tiles, n);
    for (int32_t d = 0; d < d_val; d += 2 * SY_TILE)
        for (int32_t r = r0; r < r0 + n; r += SY_TILE) {
            fetch(&w->ahead, 4);
            multiply(&sums, (struct left){(const char *)w->weight[r], SY_KEY_TILE * 2}, w->value[d / SY_TILE],
                     w->value[d / SY_TILE + 1], sizeof(tile), STEPS, w->s.sum[r] + d, d_val, false);
        }
    settle(&sums);
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
        add_values(w, 0, w->s.n_row);
        return;
    }
    for (int32_t r = 0; r < w->s.n_row; r++) {
        pack_values(w, at, w->s.now[r].lo - t, w->s.now[r].hi - t);
        add_values(w, r, 1);
    }
}

static void prepare(struct work *w, int32_t row0)
{
    int32_t d_key = w->s.a->kv->d_key, d_val = w->s.a->kv->d_val;
    for (int32_t r = 0; r < w->s.n_row; r++) {
        w->s.sum[r] = w->sum + (int64_t)r * d_val; /* whole lines, which those of a partition's rows are not */
        memset(w->s.sum[r], 0, (size_t)d_val * sizeof(float));
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

static void finish(struct work *w, int32_t row0)
{
    const struct sy_attend *a = w->s.a;
    for (int32_t r = 0; r < w->s.n_row; r++) {
        float *to = sy_attend_partial(a, a->part, row0 + r);
        memcpy(to, w->s.sum[r], (size_t)a->kv->d_val * sizeof *to);
        w->s.sum[r] = to;
    }
    rows_end(&w->s);
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
        finish(&w, row0);
    }
    _tile_release();
    return true;
}

extern const struct sy_kernels_attend sy_attend_amx;
const struct sy_kernels_attend sy_attend_amx = {.part_bf16 = {[SY_KV_BF16] = part_bf16}};
