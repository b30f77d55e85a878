/* gemm.c - matrix units (Intel AMX): bf16 products of 16 rows by 16 columns by 32 elements, summed in f32.
 *
 * Two panels and up to 32 rows are 2 x 2 sums in tile registers, so that each tile loaded is used twice: one product
 * takes 16 cycles, one load of a tile from the L1 cache 8. Panels of codes are widened to tiles of bf16 first, 40 to
 * 50 cycles a tile in f16 arithmetic (layout.h), while the first block of rows is multiplied; further blocks find the
 * tiles in the caches. A single block needs only a ring of them. What blocks have in common is to stay in the first
 * cache: rows pass it by (TILELOADDT1: 25 in place of 30 ns for four products), and k is cut so that two panels fit.
 * Sums stay in registers over a chunk: storing a tile costs as much as a product and does not overlap with one.
 *
 * The unit's own order of additions defines the result: it sums the even and the odd elements of a tile apart (Intel
 * SDM, TDPBF16PS), and a sum that goes through memory between chunks comes back as it was. One row takes the unit
 * too. */
#include "backend/cpu/kernel/amx/tiles.h"
#include "backend/cpu/kernel/avx512/tile.h"

enum {
    TILE = SY_TILE,
    TILE_K = SY_TILE_K,
    TILE_BYTES = TILE * TILE_K * 2,
    ROWS = 2 * TILE,
    ROWS_MAX = 512,
    CHUNK = 18, /* tiles: of two panels 36 kB, which stay in the first cache while rows pass */
    EVEN = 16,  /* the same when sums go through memory between chunks */
    RING = 4,
    RETIRE = 2,
};

/* Finished sums on their way to y. Storing them waits for the last product, so it is done by and by while the
 * products of the next block run. */
struct pending {
    const float *sums; /* of the next row: two panels side by side */
    float *y;          /* NULL add: not */
    const float *add;
    int64_t n; /* rows that are still to be stored */
    __m512 factor[2], bias[2];
    __mmask16 columns[2]; /* 0: no such panel */
    bool has_bias;
};

struct job {
    struct sy_job j;
    struct pending out;
    struct sy_tiles tiles;
    uint16_t (*wide)[2][TILE * TILE_K]; /* [CHUNK] tiles of two panels, side by side */
    float (*sums)[2 * TILE];            /* [ROWS_MAX] of two panels, between chunks */
};

/* h of |h| < 2 from f16 to bf16: MULHRS shifts by three bits with rounding; see layout.h. */
SY_INLINE __m512i narrow(__m512h h)
{
    const __m512i keep = _mm512_set1_epi16((short)0x87ff), exponent = _mm512_set1_epi16(0x3800);
    __m512i shifted = _mm512_mulhrs_epi16(_mm512_castph_si512(h), _mm512_set1_epi16(1 << 12));
    return _mm512_ternarylogic_epi32(shifted, keep, exponent, 0xea); /* (a & b) | c */
}

/* Sixteen f16, each twice: for the two elements of a pair. */
SY_INLINE __m512h pairs(const void *p)
{
    const __m512i twice = _mm512_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 6, 6, 5,
                                           5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    __m512i v = _mm512_castsi256_si512(_mm256_load_si256(p));
    return _mm512_castsi512_ph(_mm512_permutexvar_epi16(twice, v));
}

/* 1 + n/16 of the nibbles n in bits 6 to 9. */
SY_INLINE __m512h nibbles(__m512i v)
{
    const __m512i mask = _mm512_set1_epi16(0x3c0), one = _mm512_set1_epi16(0x3c00);
    return _mm512_castsi512_ph(_mm512_ternarylogic_epi32(v, mask, one, 0xea));
}

/* Asks for n lines of the panel that comes after this one's neighbours. */
SY_INLINE void ask(const unsigned char *p, const int n)
{
    SY_UNROLL
    for (int i = 0; i < n; i++) _mm_prefetch((const char *)p + i * 64, _MM_HINT_T1);
}

/* Tile number i of a panel. What is ahead bytes behind it is asked for line by line between the conversions: a burst
 * of requests would fill the core's buffers for outstanding lines, and the conversions would wait for memory instead
 * of running beside it. */
SY_INLINE void widen(const struct sy_panels *w, enum sy_layout layout, const int group, const unsigned char *panel,
                     int64_t i, size_t ahead, uint16_t *to)
{
    const unsigned char *code = panel + w->code_at + i * (layout == SY_LAYOUT_B4 ? 256 : 512);
    const unsigned char *later = code + ahead;
    __asm__("" : "+r"(later)); /* one pointer, not one register for each sum of ahead and an offset */
    const int n_group = group == 16 ? 2 : 1;
    __m512h scale[2], min[2];
    SY_UNROLL
    for (int g = 0; g < n_group; g++) {
        int64_t at = (i * n_group + g) * 32;
        if (at % 64 == 0) ask(panel + w->scale_at + at + ahead, 1);
        if (at % 64 == 0 && w->has_min) ask(panel + w->min_at + at + ahead, 1);
        scale[g] = pairs(panel + w->scale_at + at);
        if (w->has_min) min[g] = pairs(panel + w->min_at + at);
        else
            min[g] = layout == SY_LAYOUT_B4 ? _mm512_mul_ph(scale[g], _mm512_set1_ph((_Float16)-1.5))
                                            : _mm512_setzero_ph();
    }
    SY_UNROLL
    for (int q = 0; q < 4; q++) {
        const int g = n_group * q / 4;
        __m512h v[4];
        if (layout == SY_LAYOUT_B4) ask(later + q * 64, 1);
        else ask(later + q * 128, 2);
        if (layout == SY_LAYOUT_B4) {
            __m512i four = _mm512_load_si512(code + q * 64);
            v[0] = nibbles(_mm512_slli_epi16(four, 6));
            v[1] = nibbles(_mm512_slli_epi16(four, 2));
            v[2] = nibbles(_mm512_srli_epi16(four, 2));
            v[3] = nibbles(_mm512_srli_epi16(four, 6));
        } else {
            SY_UNROLL
            for (int r = 0; r < 4; r++)
                v[r] = _mm512_cvtepi16_ph(
                    _mm512_cvtepi8_epi16(_mm256_load_si256((const void *)(code + q * 128 + r * 32))));
        }
        SY_UNROLL
        for (int r = 0; r < 4; r++)
            _mm512_store_si512(to + (q * 4 + r) * 32, narrow(_mm512_fmadd_ph(v[r], scale[g], min[g])));
    }
}

/* One chunk of a block of rows: n tiles from tile number i on. */
struct chunk {
    const unsigned char *panel[2], *x; /* x: the chunk's first element of the first row */
    int64_t i, n;
    bool first;    /* chunk: sums start at zero */
    bool fresh;    /* rows: the first that see this chunk */
    int64_t slots; /* places for widened tiles: a ring of few when no other rows come */
    size_t ahead;  /* bytes from a panel to the one to ask for */
};

/* Stores up to n rows of what is pending. */
SY_INLINE void retire(struct job *t, int64_t n)
{
    struct pending *o = &t->out;
    if (n > o->n) n = o->n;
    o->n -= n;
    for (; n > 0; n--) {
        for (int p = 0; p < 2 && o->columns[p]; p++) {
            __m512 v = _mm512_mul_ps(_mm512_load_ps(o->sums + p * TILE), o->factor[p]);
            if (o->has_bias) v = _mm512_add_ps(v, o->bias[p]);
            if (o->add) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(o->columns[p], o->add + p * TILE));
            _mm512_mask_storeu_ps(o->y + p * TILE, o->columns[p], v);
        }
        o->sums += 2 * TILE;
        o->y += t->j.ldy;
        if (o->add) o->add += t->j.e->ld_add;
    }
}

/* What block() left of rows [row, row + n) of n_panel panels is to be stored. */
SY_INLINE void leave(struct job *t, const float *sums, int64_t row, int64_t n, int64_t panel, int n_panel)
{
    const struct sy_job *j = &t->j;
    int64_t c = panel * TILE;
    struct pending *o = &t->out;
    o->sums = sums;
    o->n = n;
    o->y = j->y + row * j->ldy + c;
    o->add = j->e && j->e->add ? j->e->add + row * j->e->ld_add + c : NULL;
    o->has_bias = j->e && j->e->bias;
    for (int p = 0; p < 2; p++) {
        bool on = p < n_panel;
        o->columns[p] = on ? sy_columns(j, panel + p) : 0;
        o->factor[p] = on && j->w->group ? _mm512_load_ps(sy_panel_at(j, panel + p)) : _mm512_set1_ps(1);
        if (o->has_bias) o->bias[p] = _mm512_maskz_loadu_ps(o->columns[p], j->e->bias + c + p * TILE);
    }
}

SY_INLINE void block(struct job *t, enum sy_layout layout, const int group, const int R, const int P, struct chunk *c,
                     float (*sums)[2 * TILE])
{
    const struct sy_panels *w = t->j.w;
    const bool codes = layout != SY_LAYOUT_BF16;
    int64_t ld = t->j.x->ld;
    if (c->first) {
        _tile_zero(0);
        if (P > 1) _tile_zero(1);
        if (R > 1) _tile_zero(2);
        if (R > 1 && P > 1) _tile_zero(3);
    } else {
        _tile_loadd(0, sums[0], 8 * TILE);
        if (P > 1) _tile_loadd(1, sums[0] + TILE, 8 * TILE);
        if (R > 1) _tile_loadd(2, sums[TILE], 8 * TILE);
        if (R > 1 && P > 1) _tile_loadd(3, sums[TILE] + TILE, 8 * TILE);
    }
    if (codes && c->fresh) {
        SY_UNROLL
        for (int p = 0; p < P; p++) widen(w, layout, group, c->panel[p], c->i, c->ahead, t->wide[0][p]);
    }
    const unsigned char *x = c->x;
    for (int64_t i = 0, slot = 0; i < c->n; i++, x += 64) {
        const void *b[2];
        int64_t after = slot + 1 == c->slots ? 0 : slot + 1;
        SY_UNROLL
        for (int p = 0; p < P; p++) {
            b[p] = codes ? (const void *)t->wide[slot][p] : c->panel[p] + (c->i + i) * TILE_BYTES;
            /* A tile ahead: its stores are done before they are loaded as a tile. */
            if (codes && c->fresh && i + 1 < c->n)
                widen(w, layout, group, c->panel[p], c->i + i + 1, c->ahead, t->wide[after][p]);
        }
        slot = after;
        if (!codes && c->fresh) {
            SY_UNROLL
            for (int p = 0; p < P; p++) ask((const unsigned char *)b[p] + c->ahead, TILE_BYTES / 64);
        }
        retire(t, RETIRE);
        sy_tiles_settle();
        _tile_stream_loadd(4, x, ld);
        _tile_loadd(6, b[0], 64);
        if (P > 1) _tile_loadd(7, b[1], 64);
        if (R > 1) _tile_stream_loadd(5, x + TILE * ld, ld);
        _tile_dpbf16ps(0, 4, 6);
        if (P > 1) _tile_dpbf16ps(1, 4, 7);
        if (R > 1) _tile_dpbf16ps(2, 5, 6);
        if (R > 1 && P > 1) _tile_dpbf16ps(3, 5, 7);
    }
    retire(t, ROWS);
    _tile_stored(0, sums[0], 8 * TILE);
    if (P > 1) _tile_stored(1, sums[0] + TILE, 8 * TILE);
    if (R > 1) _tile_stored(2, sums[TILE], 8 * TILE);
    if (R > 1 && P > 1) _tile_stored(3, sums[TILE] + TILE, 8 * TILE);
}

/* Rows [lo, hi), at most ROWS_MAX, of P panels. */
SY_INLINE void panels(struct job *t, enum sy_layout layout, const int group, const int P, int64_t lo, int64_t hi,
                      int64_t panel)
{
    const struct sy_panels *w = t->j.w;
    struct chunk c = {.panel = {sy_panel_at(&t->j, panel), sy_panel_at(&t->j, panel + P - 1)}};
    int64_t n_tile = (w->k + TILE_K - 1) / TILE_K, n_block = (hi - lo + ROWS - 1) / ROWS;
    int64_t n_chunk = n_block > 1 && n_tile > CHUNK ? (n_tile + EVEN - 1) / EVEN : 1;
    int64_t n_most = (n_tile + n_chunk - 1) / n_chunk;
    c.slots = n_block > 1 ? CHUNK : RING;
    c.ahead = (size_t)P * w->panel_bytes;
    for (; c.i < n_tile; c.i += c.n) {
        c.n = n_tile - c.i < n_most ? n_tile - c.i : n_most;
        c.first = c.i == 0;
        bool last = c.i + c.n == n_tile;
        for (int64_t r = lo; r < hi; r += ROWS) {
            /* Sums that no other chunk waits for need no place of their own. */
            float(*sums)[2 * TILE] = c.first && last ? t->sums : t->sums + (r - lo);
            int64_t n = hi - r < ROWS ? hi - r : ROWS;
            c.fresh = r == lo;
            c.x = t->j.x->data + r * t->j.x->ld + c.i * 64;
            sy_tiles_configure(&t->tiles, n < TILE ? (int)n : TILE, n > TILE ? (int)n - TILE : 0);
            if (n > TILE) block(t, layout, group, 2, P, &c, sums);
            else block(t, layout, group, 1, P, &c, sums);
            if (last) leave(t, *sums, r, n, panel, P);
        }
    }
}

#define MUL(name, layout, group)                                                                                     \
    static void name(const struct sy_panels *w, const struct sy_xmat *x, int64_t row_lo, int64_t row_hi,             \
                     int64_t panel_lo, int64_t panel_hi, float *y, int64_t ldy, const struct sy_epilogue *e)         \
    {                                                                                                                \
        uint16_t wide[CHUNK][2][TILE * TILE_K] __attribute__((aligned(64)));                                         \
        float sums[ROWS_MAX][2 * TILE] __attribute__((aligned(64)));                                                 \
        struct job t = {.j = {w, x, y, ldy, e}, .wide = wide, .sums = sums};                                         \
        for (int64_t hi, lo = row_lo; lo < row_hi; lo = hi) {                                                        \
            hi = row_hi - lo < ROWS_MAX ? row_hi : lo + ROWS_MAX;                                                    \
            int64_t p = panel_lo;                                                                                    \
            for (; p + 2 <= panel_hi; p += 2) panels(&t, layout, group, 2, lo, hi, p);                               \
            if (p < panel_hi) panels(&t, layout, group, 1, lo, hi, p);                                               \
        }                                                                                                            \
        retire(&t, ROWS);                                                                                            \
        _tile_release();                                                                                             \
    }
MUL(mul_bf16, SY_LAYOUT_BF16, 0)
MUL(mul_b8_groups, SY_LAYOUT_B8, 32)
MUL(mul_b8_halves, SY_LAYOUT_B8, 16)
MUL(mul_b4_groups, SY_LAYOUT_B4, 32)
MUL(mul_b4_halves, SY_LAYOUT_B4, 16)

static void mul_codes(const struct sy_panels *w, const struct sy_xmat *x, int64_t row_lo, int64_t row_hi,
                      int64_t panel_lo, int64_t panel_hi, float *y, int64_t ldy, const struct sy_epilogue *e)
{
    bool halves = w->group == 16;
    if (w->layout == SY_LAYOUT_B8)
        (halves ? mul_b8_halves : mul_b8_groups)(w, x, row_lo, row_hi, panel_lo, panel_hi, y, ldy, e);
    else (halves ? mul_b4_halves : mul_b4_groups)(w, x, row_lo, row_hi, panel_lo, panel_hi, y, ldy, e);
}

extern const struct sy_kernels_gemm sy_gemm_amx;
const struct sy_kernels_gemm sy_gemm_amx = {
    .mul = {[SY_LAYOUT_BF16] = mul_bf16, [SY_LAYOUT_B8] = mul_codes, [SY_LAYOUT_B4] = mul_codes}};
