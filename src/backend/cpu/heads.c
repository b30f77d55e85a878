/* heads.c - HEADS: each head's columns by a matrix of its own. Every head's operand is prepared by itself, then heads
 * and tiles of rows are spread over the threads; what a head does not multiply is copied behind its result. */
#include <string.h>

#include "backend/cpu/cpu_int.h"

enum { ROW_CHUNK = 16, ROW_TILE = 96 };

struct span {
    const struct sy_program *p;
    const struct op *o;
    int64_t rows, chunk, n_tile;
    int64_t each_in, each_out; /* columns of a head */
    enum sy_xkind kind;
};

static struct sy_xmat operand(const struct span *s, int64_t head)
{
    const struct sy_xmat *all = s->o->x[s->kind];
    struct sy_xmat x;
    sy_xmat_init(&x, s->kind, all->m, all->k, all->data + (size_t)head * sy_xmat_bytes(s->kind, all->m, all->k));
    return x;
}

static void prepare(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    const struct span *s = ctx;
    const struct sy_heads_dim *d = &s->o->node->attr.heads;
    int64_t lo = item * s->chunk, hi = lo + s->chunk < s->rows ? lo + s->chunk : s->rows;
    size_t tail = (size_t)(s->each_in - d->d_in) * sizeof(float);
    for (int64_t h = 0; h < d->n_head; h++) {
        const struct value *in = s->o->in[0], *out = s->o->out;
        struct sy_xmat x = operand(s, h);
        s->p->b->kern.gemm.prepare[s->kind](in->at + h * s->each_in, in->ld, lo, hi, &x);
        for (int64_t r = lo; tail && r < hi; r++)
            memcpy(out->at + r * out->ld + h * s->each_out + d->d_out, in->at + r * in->ld + h * s->each_in + d->d_in,
                   tail);
    }
}

static void multiply(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    const struct span *s = ctx;
    int64_t h = item / s->n_tile, lo = item % s->n_tile * ROW_TILE, hi = lo + ROW_TILE;
    const struct sy_panels *w = &s->o->w->seg[h].p;
    struct sy_xmat x = operand(s, h);
    struct sy_epilogue none = {0};
    s->p->b->kern.gemm.mul[w->layout](w, &x, lo, hi < s->rows ? hi : s->rows, 0, sy_ceil_div(w->n, SY_PANEL),
                                      s->o->out->at + h * s->each_out, s->o->out->ld, &none);
}

void cpu_region_heads(const struct sy_program *p, const struct op *o, int64_t rows)
{
    const struct sy_heads_dim *d = &o->node->attr.heads;
    struct span s = {.p = p, .o = o, .rows = rows, .n_tile = sy_ceil_div(rows, ROW_TILE)};
    s.each_in = p->node[o->node->in[0].id].dim[1] / d->n_head;
    s.each_out = o->node->dim[1] / d->n_head;
    s.kind = sy_layout_xkind(o->w->seg[0].p.layout);
    s.chunk = sy_ceil_div(rows, sy_pool_size(p->b->pool));
    if (s.chunk > ROW_CHUNK) s.chunk = ROW_CHUNK;
    sy_pool_run(p->b->pool, sy_ceil_div(rows, s.chunk), prepare, &s);
    sy_pool_run(p->b->pool, d->n_head * s.n_tile, multiply, &s);
}
