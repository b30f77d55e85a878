/* chosen.c - sparse attention: INDEX scores all keys of a token and chooses the best; ATTEND to the chosen.
 *
 * A token that has no more keys than are chosen sees them all, by the ordinary kernels. Any other gathers its keys, a
 * partition of the list at a time, in f32, and the ordinary kernel runs over what was gathered. Which of the two it
 * is and what is computed depend on the token's position and its sequence alone, never on the batch. */
#include <string.h>

#include "backend/cpu/cpu_int.h"

static float *row_of(const struct value *v, int64_t r) { return v->at + r * v->ld; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct span {
    const struct sy_program *p;
    const struct op *o;
    int64_t row0, n_row; /* of the rows done together */
    int64_t n_part, n_group;
    int32_t n_top;
    int64_t keys; /* INDEX: of the longest sequence the shape allows */
};

static int32_t position(const struct span *s, int64_t row) { return s->p->batch->field[SY_POS][row]; }

/* ---- INDEX ----------------------------------------------------------------------------------------------------- */

static void score_part(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    const struct span *s = ctx;
    const struct sy_program *p = s->p;
    const struct op *o = s->o;
    int64_t i = item % s->n_row, row = s->row0 + i;
    int32_t pos = position(s, row), lo = (int32_t)(item / s->n_row) * SY_PARTITION, hi = lo + SY_PARTITION;
    if (pos < s->n_top || lo > pos) return;
    struct sy_attend_index a = {
        .kv = &o->kv,
        .layer = p->kv->mem.at + p->kv->layer_bytes[o->state],
        .table = p->batch->field[SY_BLOCK_TABLE] + (int64_t)p->row_seq[row] * p->shape.block,
        .n_head = o->node->attr.index.n_head,
        .lo = lo,
        .hi = hi <= pos ? hi : pos + 1,
        .q = row_of(o->in[0], row),
        .w = row_of(o->in[2], row),
        .score = p->score + i * s->keys + lo,
    };
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
    int32_t n = position(s, row) + 1, equal, at = 0;
    if (n <= s->n_top) return;
    const float *score = s->p->score + item * s->keys;
    float *out = row_of(s->o->out, row);
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
        if (position(s, r) + 1 > *most) *most = position(s, r) + 1;
    return *most > s->n_top;
}

void cpu_region_index(const struct sy_program *p, const struct op *o, int64_t rows)
{
    struct span s = {.p = p, .o = o, .n_top = o->node->attr.index.n_top};
    s.keys = (int64_t)p->shape.block * p->block_len;
    for (; s.row0 < rows; s.row0 += CPU_INDEX_ROWS) {
        int32_t most;
        s.n_row = rows - s.row0 < CPU_INDEX_ROWS ? rows - s.row0 : CPU_INDEX_ROWS;
        if (!any_chooses(&s, s.row0, s.row0 + s.n_row, &most)) continue;
        sy_pool_run(p->b->pool, s.n_row * ceil_div(most, SY_PARTITION), score_part, &s);
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
    *kv = s->o->kv;
    kv->dtype = SY_KV_F32;
    kv->block_len = SY_PARTITION;
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
    sy_attend_gather(&a, row_of(s->o->in[1], row) + lo, s->n_top - lo < SY_PARTITION ? s->n_top - lo : SY_PARTITION,
                     to);
    a.kv = &kv;
    a.layer = (const unsigned char *)to;
    a.table = p->one_block;
    a.part = part;
    p->b->attend_part(&p->b->kern.attend, kv.dtype, &a, false);
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
    struct span s = {.p = p, .o = o, .n_top = (int32_t)p->node[o->node->in[5].id].dim[1]};
    const struct sy_attn_dim *d = &o->node->attr.attn;
    s.n_group = d->n_head / cpu_attend_group(d);
    s.n_part = ceil_div(s.n_top, SY_PARTITION);
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
