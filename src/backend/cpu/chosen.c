/* chosen.c - sparse attention: INDEX scores all keys of a token and chooses the best; ATTEND to the chosen, or to a
 * window and to keys that stand for runs of tokens.
 *
 * A token that has no more keys than are chosen sees them all, by the ordinary kernels. Any other gathers its keys, a
 * partition of the list at a time, in f32, and the ordinary kernel runs over what was gathered. Which of the two it
 * is and what is computed depend on the token's position and its sequence alone, never on the batch. */
#include <string.h>

#include "backend/cpu/cpu_int.h"

struct span {
    const struct sy_program *p;
    const struct op *o;
    int64_t row0, n_row; /* of the rows done together */
    int64_t n_part, n_group;
    int32_t n_top, every; /* keys chosen at most; tokens to a key */
    int64_t keys;         /* INDEX: of the longest sequence the shape allows */
};

static int32_t position(const struct span *s, int64_t row) { return s->p->batch->field[SY_POS][row]; }

/* Keys that a token sees in a cache of a key every so many tokens. */
static int32_t keys_of(const struct span *s, int64_t row, int32_t every) { return (position(s, row) + 1) / every; }

static const int32_t *table_of(const struct sy_program *p, int64_t row)
{
    return p->batch->field[SY_BLOCK_TABLE] + (int64_t)p->row_seq[row] * p->shape.block;
}

/* Key number w of a cache of a key every so many tokens, as number i of those gathered. */
static void gather_run(const struct sy_program *p, const struct sy_kv_dim *kv, int32_t state, int32_t every,
                       const int32_t *table, int32_t w, int32_t i, float *to)
{
    int32_t block = ((w + 1) * every - 1) / p->block_len, off = w - block * p->block_len / every;
    const unsigned char *layer = p->kv->mem.at + p->kv->layer_bytes[state];
    sy_attend_gather_one(kv, 0, layer + table[block] * kv->block_bytes, off, i, to);
}

/* The cache that gathered keys are: one block, in f32. */
static struct sy_kv_dim gathered_dim(const struct sy_kv_dim *kv)
{
    struct sy_kv_dim one = *kv;
    one.dtype = SY_KV_F32;
    one.block_len = SY_PARTITION;
    return one;
}

/* Part of an item's attention, over keys that were gathered. */
static void attend_gathered(const struct sy_program *p, struct sy_attend *a, const struct sy_kv_dim *kv, int32_t part,
                            const float *keys)
{
    a->kv = kv;
    a->layer = (const unsigned char *)keys;
    a->table = p->one_block;
    a->part = part;
    p->b->attend_part(&p->b->kern.attend, kv->dtype, a, false);
}

/* ---- INDEX ----------------------------------------------------------------------------------------------------- */

static void score_part(void *ctx, int64_t item, int32_t thread)
{
    const struct span *s = ctx;
    const struct sy_program *p = s->p;
    const struct op *o = s->o;
    int64_t i = item % s->n_row, row = s->row0 + i;
    int32_t n = keys_of(s, row, s->every), lo = (int32_t)(item / s->n_row) * SY_PARTITION, hi = lo + SY_PARTITION;
    if (n <= s->n_top || lo >= n) return;
    if (hi > n) hi = n;
    struct sy_attend_index a = {
        .kv = &o->kv,
        .layer = p->kv->mem.at + p->kv->layer_bytes[o->state],
        .table = table_of(p, row),
        .n_head = o->node->attr.index.n_head,
        .lo = lo,
        .hi = hi,
        .q = cpu_row(o->in[0], row),
        .w = cpu_row(o->in[2], row),
        .score = p->score + i * s->keys + lo,
    };
    struct sy_kv_dim one = gathered_dim(&o->kv);
    if (p->block_len % s->every) { /* blocks hold now more keys, now fewer */
        float *to = p->gathered + thread * p->gathered_each;
        for (int32_t w = lo; w < hi; w++) gather_run(p, &o->kv, o->state, s->every, a.table, w, w - lo, to);
        a.kv = &one;
        a.layer = (const unsigned char *)to;
        a.table = p->one_block;
        a.lo = 0;
        a.hi = hi - lo;
    }
    p->b->kern.attend.index(&a);
}

/* Unsigned numbers in the order of the floats; NaN counts as the least. */
static uint32_t order_of(float x)
{
    uint32_t u;
    x = x + 0.0f; /* -0 is 0 */
    memcpy(&u, &x, sizeof u);
    if (x != x) return 0;
    return u >> 31 ? ~u : u | 1u << 31;
}

/* The k-th largest of n orders (n >= k >= 1) by eight bits at a time; *equal: how many of that value are among the k
 * largest. */
static uint32_t kth_largest(const float *x, int32_t n, int32_t k, int32_t *equal)
{
    uint32_t found = 0, known = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int32_t count[256] = {0}, digit = 255;
        for (int32_t i = 0; i < n; i++) {
            uint32_t u = order_of(x[i]);
            if ((u & known) == found) count[u >> shift & 255]++;
        }
        while (count[digit] < k) k -= count[digit--];
        found |= (uint32_t)digit << shift;
        known |= 255u << shift;
    }
    *equal = k;
    return found;
}

static void choose(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    const struct span *s = ctx;
    int64_t row = s->row0 + item;
    int32_t n = keys_of(s, row, s->every), equal, at = 0;
    if (n <= s->n_top) return;
    const float *score = s->p->score + item * s->keys;
    float *out = cpu_row(s->o->out, row);
    uint32_t least = kth_largest(score, n, s->n_top, &equal);
    for (int32_t i = 0; i < n; i++) {
        uint32_t u = order_of(score[i]);
        if (u > least || (u == least && equal-- > 0)) out[at++] = (float)i;
    }
}

/* Whether some row of [lo, hi) has more keys than are chosen; the most keys of one. */
static bool any_chooses(const struct span *s, int64_t lo, int64_t hi, int32_t *most)
{
    *most = 0;
    for (int64_t r = lo; r < hi; r++)
        if (keys_of(s, r, s->every) > *most) *most = keys_of(s, r, s->every);
    return *most > s->n_top;
}

void cpu_region_index(const struct sy_program *p, const struct op *o, int64_t rows)
{
    struct span s = {.p = p, .o = o, .n_top = o->node->attr.index.n_top, .every = cpu_keeps_every(o->node)};
    s.keys = (int64_t)p->shape.block * p->block_len;
    for (; s.row0 < rows; s.row0 += CPU_INDEX_ROWS) {
        int32_t most;
        s.n_row = rows - s.row0 < CPU_INDEX_ROWS ? rows - s.row0 : CPU_INDEX_ROWS;
        if (!any_chooses(&s, s.row0, s.row0 + s.n_row, &most)) continue;
        sy_pool_run(p->b->pool, s.n_row * sy_ceil_div(most, SY_PARTITION), score_part, &s);
        sy_pool_run(p->b->pool, s.n_row, choose, &s);
    }
}

/* ---- ATTEND ------------------------------------------------------------------------------------------------------
 */

/* The tokens of a work item that see all their keys. */
static void attend_all(void *ctx, int64_t item, int32_t thread)
{
    const struct span *s = ctx;
    const struct sy_program *p = s->p;
    struct work w = p->work[item / s->n_group];
    if (w.pos0 >= s->n_top) return;
    if (w.n_q > s->n_top - w.pos0) w.n_q = s->n_top - w.pos0;
    struct sy_attend a = cpu_attend_item(p, s->o, &w, (int32_t)(item % s->n_group));
    a.partial = p->partial + thread * p->partial_slice;
    for (int32_t i = 0; i < a.n_part; i++, a.part++)
        p->b->attend_part(&p->b->kern.attend, s->o->kv.dtype, &a, p->b->opt.compute != SY_COMPUTE_F32);
    p->b->kern.attend.merge(&a);
}

/* One token's attention over the list of its keys as if they were positions 0 .. n_top - 1. */
static struct sy_attend list_item(const struct span *s, int64_t item, struct sy_kv_dim *kv, int64_t *row)
{
    const struct sy_program *p = s->p;
    int64_t i = item / s->n_group % s->n_row;
    *row = s->row0 + i;
    struct work w = {p->row_seq[*row], (int32_t)*row, 1, s->n_top - 1, (int32_t)s->n_part};
    struct sy_attend a = cpu_attend_item(p, s->o, &w, (int32_t)(item % s->n_group));
    *kv = gathered_dim(&s->o->kv);
    a.partial = p->partial + item % (s->n_row * s->n_group) * p->partial_slice;
    return a;
}

static void attend_list(void *ctx, int64_t item, int32_t thread)
{
    const struct span *s = ctx;
    const struct sy_program *p = s->p;
    struct sy_kv_dim kv;
    int64_t row;
    struct sy_attend a = list_item(s, item, &kv, &row);
    if (position(s, row) < s->n_top) return;
    int32_t part = (int32_t)(item / (s->n_row * s->n_group)), lo = part * SY_PARTITION;
    float *to = p->gathered + thread * p->gathered_each;
    sy_attend_gather(&a, cpu_row(s->o->in[1], row) + lo, s->n_top - lo < SY_PARTITION ? s->n_top - lo : SY_PARTITION,
                     to);
    attend_gathered(p, &a, &kv, part, to);
}

static void merge_list(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    const struct span *s = ctx;
    struct sy_kv_dim kv;
    int64_t row;
    struct sy_attend a = list_item(s, item, &kv, &row);
    if (position(s, row) >= s->n_top) s->p->b->kern.attend.merge(&a);
}

void cpu_region_chosen(const struct sy_program *p, const struct op *o, int64_t rows)
{
    struct span s = {.p = p, .o = o, .n_top = (int32_t)p->node[o->node->in[5].id].dim[1], .every = 1};
    const struct sy_attn_dim *d = &o->node->attr.attn;
    s.n_group = d->n_head / cpu_attend_group(d);
    s.n_part = sy_ceil_div(s.n_top, SY_PARTITION);
    int32_t most;
    int64_t together = 4 * (int64_t)sy_pool_size(p->b->pool) / s.n_group;
    if (together == 0) together = 1;
    sy_pool_run(p->b->pool, p->n_work * s.n_group, attend_all, &s);
    for (; s.row0 < rows; s.row0 += together) {
        s.n_row = rows - s.row0 < together ? rows - s.row0 : together;
        if (!any_chooses(&s, s.row0, s.row0 + s.n_row, &most)) continue;
        sy_pool_run(p->b->pool, s.n_part * s.n_row * s.n_group, attend_list, &s);
        sy_pool_run(p->b->pool, s.n_row * s.n_group, merge_list, &s);
    }
}

/* ---- ATTEND to a window and to kept keys ---------------------------------------------------------------------- */

/* A token's list: the keys of its window, then the runs it sees. */
struct list {
    int32_t first, n_window, n_run; /* position of the window's first key */
    bool all;                       /* runs 0 .. n_run - 1, else the chosen ones */
};

static struct list list_of(const struct span *s, int64_t row)
{
    int32_t pos = position(s, row), window = s->o->node->attr.attn.window, n = keys_of(s, row, s->every);
    struct list l = {.first = pos >= window ? pos - window + 1 : 0, .n_run = n, .all = true};
    l.n_window = pos + 1 - l.first;
    if (s->o->in[1] && n > s->n_top) {
        l.n_run = s->n_top;
        l.all = false;
    }
    return l;
}

/* Attention of one token and group of heads over its list, as if it were positions 0 .. n - 1. */
static struct sy_attend kept_item(const struct span *s, int64_t item, struct list *l, int64_t *row)
{
    const struct sy_program *p = s->p;
    *row = s->row0 + item / s->n_group % s->n_row;
    *l = list_of(s, *row);
    int32_t n = l->n_window + l->n_run;
    struct work w = {p->row_seq[*row], (int32_t)*row, 1, n - 1, 0};
    struct sy_attend a = cpu_attend_item(p, s->o, &w, (int32_t)(item % s->n_group));
    a.window = 0;
    a.part = 0;
    a.n_part = (n + SY_PARTITION - 1) / SY_PARTITION;
    a.partial = p->partial + item % (s->n_row * s->n_group) * p->partial_slice;
    return a;
}

static void attend_kept(void *ctx, int64_t item, int32_t thread)
{
    const struct span *s = ctx;
    const struct sy_program *p = s->p;
    const struct op *o = s->o;
    struct list l;
    int64_t row;
    struct sy_attend a = kept_item(s, item, &l, &row);
    int32_t part = (int32_t)(item / (s->n_row * s->n_group)), lo = part * SY_PARTITION, n = l.n_window + l.n_run;
    if (part >= a.n_part) return;
    float *to = p->gathered + thread * p->gathered_each;
    memset(to, 0, (size_t)SY_PARTITION * (size_t)o->kv.d_key * sizeof *to);
    for (int32_t i = lo; i < n && i < lo + SY_PARTITION; i++) {
        int32_t run = i - l.n_window, pos = l.first + i;
        if (run >= 0)
            gather_run(p, &o->kept, o->kept_state, s->every, table_of(p, row),
                       l.all ? run : (int32_t)cpu_row(o->in[1], row)[run], i - lo, to);
        else
            sy_attend_gather_one(&o->kv, 0, a.layer + a.table[pos / p->block_len] * o->kv.block_bytes,
                                 pos % p->block_len, i - lo, to);
    }
    struct sy_kv_dim kv = gathered_dim(&o->kv);
    attend_gathered(p, &a, &kv, part, to);
}

static void merge_kept(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    const struct span *s = ctx;
    struct list l;
    int64_t row;
    struct sy_attend a = kept_item(s, item, &l, &row);
    s->p->b->kern.attend.merge(&a);
}

void cpu_region_kept(const struct sy_program *p, const struct op *o, int64_t rows)
{
    const struct sy_node *chosen = &p->node[o->node->in[5].id], *kept = &p->node[o->node->in[6].id];
    struct span s = {.p = p, .o = o, .n_top = (int32_t)chosen->dim[1], .every = kept->attr.every};
    s.n_group = o->node->attr.attn.n_head / cpu_attend_group(&o->node->attr.attn);
    int64_t together = 4 * (int64_t)sy_pool_size(p->b->pool) / s.n_group;
    if (together == 0) together = 1;
    for (; s.row0 < rows; s.row0 += together) {
        s.n_row = rows - s.row0 < together ? rows - s.row0 : together;
        s.n_part = 1;
        for (int64_t r = s.row0; r < s.row0 + s.n_row; r++) {
            struct list l = list_of(&s, r);
            int64_t n = sy_ceil_div(l.n_window + l.n_run, SY_PARTITION);
            if (n > s.n_part) s.n_part = n;
        }
        sy_pool_run(p->b->pool, s.n_part * s.n_row * s.n_group, attend_kept, &s);
        sy_pool_run(p->b->pool, s.n_row * s.n_group, merge_kept, &s);
    }
}
