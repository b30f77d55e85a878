/* run.c - one step through a lowered graph: regions in order, each spread over the pool's threads. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_int.h"

static const struct sy_kernels_vec *vec(const struct sy_program *p) { return &p->b->kern.vec; }

/* ---- row ops: rows [lo, hi) ----------------------------------------------------------------------------------- */

static void row_embed(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    const struct sy_tensor *t = o->w->table;
    for (int64_t r = lo; r < hi; r++) {
        int64_t id = p->batch->field[SY_TOK][r] < t->dim[0] ? p->batch->field[SY_TOK][r] : 0;
        sy_tensor_floats(t, id, cpu_row(o->out, r));
    }
}

static void row_given(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    for (int64_t r = lo; r < hi; r++)
        memcpy(cpu_row(o->out, r), p->batch->given + r * p->batch->ld_given, (size_t)o->node->dim[1] * sizeof(float));
}

/* The result, less the mean of each run of d. */
static void centre(const struct op *o, int64_t d, int64_t lo, int64_t hi)
{
    for (int64_t r = lo; r < hi; r++) {
        for (int64_t at = 0; at < o->node->dim[1]; at += d) {
            const float *x = cpu_row(o->in[0], r) + at;
            float *y = cpu_row(o->out, r) + at;
            double sum = 0;
            for (int64_t i = 0; i < d; i++) sum += x[i];
            float mean = (float)(sum / (double)d);
            for (int64_t i = 0; i < d; i++) y[i] = x[i] - mean;
        }
    }
}

static void row_norm(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    const struct sy_norm_dim *n = &o->node->attr.norm;
    const float *x = cpu_row(o->in[0], lo);
    int64_t ldx = o->in[0]->ld, group = o->node->dim[1] / n->d;
    if (n->centred) {
        centre(o, n->d, lo, hi);
        x = cpu_row(o->out, lo);
        ldx = o->out->ld;
    }
    vec(p)->norm(x, ldx, o->vec, n->eps, hi - lo, group, n->d, cpu_row(o->out, lo), o->out->ld);
}

static void row_rope(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    const struct sy_rope_dim *d = &o->node->attr.rope;
    vec(p)->rope(cpu_row(o->in[0], lo), o->in[0]->ld, hi - lo, o->node->dim[1] / d->d_head, d,
                 o->rope_cs + lo * o->rope_n * 2, cpu_row(o->out, lo), o->out->ld);
}

static void row_act(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    vec(p)->act(o->node->attr.fn, cpu_row(o->in[0], lo), o->in[0]->ld, hi - lo, o->node->dim[1], cpu_row(o->out, lo),
                o->out->ld);
}

/* The second operand's first row and row distance: a weight is one row for all. */
static const float *second(const struct op *o, int64_t lo, int64_t *ld)
{
    *ld = o->vec ? 0 : o->in[1]->ld;
    return o->vec ? o->vec : cpu_row(o->in[1], lo);
}

enum { GLU_RUN = 256 };

static void row_glu(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    int64_t ldb;
    const float *b = second(o, lo, &ldb);
    const struct sy_glu_dim *d = &o->node->attr.glu;
    if (d->limit <= 0) {
        vec(p)->glu(d->fn, cpu_row(o->in[0], lo), o->in[0]->ld, b, ldb, hi - lo, o->node->dim[1], cpu_row(o->out, lo),
                    o->out->ld);
        return;
    }
    for (int64_t r = lo; r < hi; r++, b += ldb) {
        const float *a = cpu_row(o->in[0], r);
        float *y = cpu_row(o->out, r), gate[GLU_RUN], up[GLU_RUN];
        for (int64_t at = 0, n; at < o->node->dim[1]; at += n) {
            n = o->node->dim[1] - at < GLU_RUN ? o->node->dim[1] - at : GLU_RUN;
            for (int64_t i = 0; i < n; i++) {
                gate[i] = a[at + i] > d->limit ? d->limit : a[at + i];
                up[i] = (b[at + i] > d->limit ? d->limit : b[at + i] < -d->limit ? -d->limit : b[at + i]) + d->up_add;
            }
            vec(p)->glu(d->fn, gate, GLU_RUN, up, GLU_RUN, 1, n, y + at, o->out->ld);
        }
    }
}

static void row_add(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    int64_t ldb;
    const float *b = second(o, lo, &ldb);
    vec(p)->add(cpu_row(o->in[0], lo), o->in[0]->ld, b, ldb, hi - lo, o->node->dim[1], cpu_row(o->out, lo),
                o->out->ld);
}

static void row_mul(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    int64_t ldb;
    if (o->by_column) {
        for (int64_t r = lo; r < hi; r++)
            vec(p)->scale(cpu_row(o->in[0], r), o->in[0]->ld, o->vec ? *o->vec : *cpu_row(o->in[1], r), 1,
                          o->node->dim[1], cpu_row(o->out, r), o->out->ld);
        return;
    }
    const float *b = second(o, lo, &ldb);
    vec(p)->mul(cpu_row(o->in[0], lo), o->in[0]->ld, b, ldb, hi - lo, o->node->dim[1], cpu_row(o->out, lo),
                o->out->ld);
}

static void row_scale(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    vec(p)->scale(cpu_row(o->in[0], lo), o->in[0]->ld, o->node->attr.c, hi - lo, o->node->dim[1], cpu_row(o->out, lo),
                  o->out->ld);
}

static void row_softcap(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    vec(p)->softcap(cpu_row(o->in[0], lo), o->in[0]->ld, o->node->attr.c, hi - lo, o->node->dim[1],
                    cpu_row(o->out, lo), o->out->ld);
}

static void row_temper(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    const struct sy_temper_dim *d = &o->node->attr.temper;
    for (int64_t r = lo; r < hi; r++) {
        double n = floor(((double)p->batch->field[SY_POS][r] + d->offset) / d->every);
        vec(p)->scale(cpu_row(o->in[0], r), o->in[0]->ld, (float)(1 + d->beta * log1p(n)), 1, o->node->dim[1],
                      cpu_row(o->out, r), o->out->ld);
    }
}

static void row_sparsify(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    int64_t d = o->node->dim[1];
    (void)p;
    for (int64_t r = lo; r < hi; r++) {
        const float *x = cpu_row(o->in[0], r);
        float *y = cpu_row(o->out, r);
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < d; i++) sum += x[i];
        double mean = sum / (double)d;
        for (int64_t i = 0; i < d; i++) squares += (x[i] - mean) * (x[i] - mean);
        float bound = (float)(mean + o->node->attr.c * sqrt(squares / (double)d));
        for (int64_t i = 0; i < d; i++) y[i] = x[i] < bound ? 0 : x[i] - bound;
    }
}

static double mean_square(const float *x, int64_t d)
{
    double sum = 0;
    for (int64_t i = 0; i < d; i++) sum += (double)x[i] * x[i];
    return sum / (double)d;
}

static void row_match(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    int64_t d = o->node->dim[1];
    for (int64_t r = lo; r < hi; r++) {
        double have = mean_square(cpu_row(o->in[0], r), d), want = mean_square(cpu_row(o->in[1], r), d);
        if (have < o->node->attr.c) have = o->node->attr.c;
        vec(p)->scale(cpu_row(o->in[0], r), o->in[0]->ld, (float)sqrt(want / have), 1, d, cpu_row(o->out, r),
                      o->out->ld);
    }
}

static void row_rows(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    for (int64_t r = lo; r < hi; r++)
        memcpy(cpu_row(o->out, r), cpu_row(o->in[0], p->batch->field[SY_OUT][r]),
               (size_t)o->node->dim[1] * sizeof(float));
}

static void row_join(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    size_t a = (size_t)p->node[o->node->in[0].id].dim[1], b = (size_t)o->node->dim[1] - a;
    for (int64_t r = lo; r < hi; r++) {
        memcpy(cpu_row(o->out, r), cpu_row(o->in[0], r), a * sizeof(float));
        memcpy(cpu_row(o->out, r) + a, cpu_row(o->in[1], r), b * sizeof(float));
    }
}

static float logistic(float x) { return 1 / (1 + expf(-x)); }

/* Divides the n numbers that are `step` apart by their sum. */
static void share(float *x, int32_t n, int32_t step, float eps)
{
    float sum = eps;
    for (int32_t i = 0; i < n; i++) sum += x[i * step];
    for (int32_t i = 0; i < n; i++) x[i * step] /= sum;
}

static void gates(const struct sy_gates_dim *d, const float *x, const float *scale, const float *base, float *y)
{
    int32_t n = d->n;
    for (int32_t i = 0; i < n; i++) {
        y[i] = logistic(x[i] * scale[0] + base[i]) + d->eps;
        y[n + i] = 2 * logistic(x[n + i] * scale[1] + base[n + i]);
    }
    float *m = y + 2 * n;
    for (int32_t i = 0; i < n; i++) {
        float top = -INFINITY;
        for (int32_t j = i * n; j < (i + 1) * n; j++) {
            m[j] = x[2 * n + j] * scale[2] + base[2 * n + j];
            top = m[j] > top ? m[j] : top;
        }
        for (int32_t j = i * n; j < (i + 1) * n; j++) m[j] = expf(m[j] - top);
        share(m + i * n, n, 1, 0);
        for (int32_t j = i * n; j < (i + 1) * n; j++) m[j] += d->eps;
    }
    for (int32_t k = 0; k < d->n_round; k++) {
        for (int32_t i = 0; k > 0 && i < n; i++) share(m + i * n, n, 1, d->eps);
        for (int32_t i = 0; i < n; i++) share(m + i, n, n, d->eps);
    }
}

static void row_gates(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    (void)p;
    for (int64_t r = lo; r < hi; r++)
        gates(&o->node->attr.gates, cpu_row(o->in[0], r), o->vec, o->vec2, cpu_row(o->out, r));
}

static void row_blend(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    const struct sy_blend_dim *b = &o->node->attr.blend;
    int64_t d = o->node->dim[1] / b->n_out;
    (void)p;
    for (int64_t r = lo; r < hi; r++) {
        const float *x = cpu_row(o->in[0], r), *w = cpu_row(o->in[1], r), *y = o->in[2] ? cpu_row(o->in[2], r) : NULL;
        for (int32_t m = 0; m < b->n_out; m++) {
            float *to = cpu_row(o->out, r) + m * d, gain = y ? cpu_row(o->in[3], r)[m] : 0;
            for (int64_t i = 0; i < d; i++) to[i] = y ? gain * y[i] : 0;
            for (int32_t n = 0; n < b->n_in; n++)
                for (int64_t i = 0; i < d; i++) to[i] += w[n * b->n_out + m] * x[n * d + i];
        }
    }
}

static void row_sample(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    for (int64_t r = lo; r < hi; r++) p->token[r] = vec(p)->argmax(cpu_row(o->in[0], r), p->n_vocab);
}

void cpu_row_prepare(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    for (int k = 0; k < SY_X_COUNT; k++)
        if (o->x[k]) p->b->kern.gemm.prepare[k](o->in[0]->at, o->in[0]->ld, lo, hi, o->x[k]);
}

/* Of tokens that end a run. */
static void write_runs(const struct sy_program *p, const struct op *o, int32_t every, unsigned char *layer,
                       int64_t lo, int64_t hi)
{
    for (int64_t r = lo; r < hi; r++) {
        int32_t pos = p->batch->field[SY_POS][r], row = p->batch->field[o->rows][r], off = row % p->block_len;
        if ((pos + 1) % every) continue;
        int32_t to = row / p->block_len * o->kv.block_len + pos / every - (pos - off) / every;
        p->b->kern.attend.write[o->kv.dtype](&o->kv, layer, cpu_row(o->in[1], r), o->in[1]->ld, NULL, 0, &to, 1);
    }
}

void cpu_row_kv_write(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    unsigned char *layer = p->kv->mem.at + p->kv->layer_bytes[o->state];
    int32_t every = cpu_keeps_every(o->node);
    if (every > 1) {
        write_runs(p, o, every, layer, lo, hi);
        return;
    }
    p->b->kern.attend.write[o->kv.dtype](&o->kv, layer, cpu_row(o->in[1], lo), o->in[1]->ld,
                                         o->in[2] ? cpu_row(o->in[2], lo) : NULL, o->in[2] ? o->in[2]->ld : 0,
                                         p->batch->field[o->rows] + lo, (int32_t)(hi - lo));
}

const row_fn cpu_row_fns[SY_OP_COUNT] = {
    [SY_OP_TEMPER] = row_temper, [SY_OP_SPARSIFY] = row_sparsify, [SY_OP_MATCH] = row_match,
    [SY_OP_EMBED] = row_embed,   [SY_OP_NORM] = row_norm,         [SY_OP_ROPE] = row_rope,
    [SY_OP_ACT] = row_act,       [SY_OP_GLU] = row_glu,           [SY_OP_ADD] = row_add,
    [SY_OP_MUL] = row_mul,       [SY_OP_SCALE] = row_scale,       [SY_OP_ROUTE] = cpu_row_route,
    [SY_OP_ROWS] = row_rows,     [SY_OP_SOFTCAP] = row_softcap,   [SY_OP_SAMPLE] = row_sample,
    [SY_OP_JOIN] = row_join,     [SY_OP_GIVEN] = row_given,       [SY_OP_GATES] = row_gates,
    [SY_OP_BLEND] = row_blend,
};

/* ---- regions ------------------------------------------------------------------------------------------------------
 */

struct span {
    struct sy_program *p;
    const struct region *r;
    int64_t rows, chunk;      /* row regions */
    int64_t row_chunk, n_row; /* products: tiles of rows by runs of panels */
    int64_t panel_chunk, n_panel;
};

static void run_rows(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    const struct span *s = ctx;
    int64_t lo = item * s->chunk, hi = lo + s->chunk < s->rows ? lo + s->chunk : s->rows;
    for (int i = 0; i < s->r->n_op; i++) {
        const struct op *o = &s->p->op[s->r->op0 + i];
        o->run(s->p, o, lo, hi);
    }
}

void cpu_multiply(const struct sy_kernels_gemm *kern, const struct product *m, int64_t row_lo, int64_t row_hi,
                  int64_t lo, int64_t hi, float *y, int64_t ldy, int64_t first)
{
    int64_t panel = 0, rows = row_hi - row_lo;
    for (int i = 0; i < m->n_seg; i++) {
        const struct wseg *g = &m->seg[i];
        int64_t n = sy_ceil_div(g->p.n, SY_PANEL), a = lo > panel ? lo - panel : 0,
                b = hi - panel < n ? hi - panel : n;
        panel += n;
        if (a >= b) continue;
        int64_t col = g->col0 + a * SY_PANEL;
        struct sy_panels w = g->p;
        w.data += (size_t)a * w.panel_bytes;
        w.n -= a * SY_PANEL;
        struct sy_xmat x = sy_xmat_view(m->x[sy_layout_xkind(w.layout)], row_lo, rows, 0, w.k);
        struct sy_epilogue e = m->epi;
        if (e.bias) e.bias += col;
        if (e.add) e.add += row_lo * e.ld_add + col;
        kern->mul[w.layout](&w, &x, 0, rows, 0, b - a, y + (col - first), ldy, &e);
    }
}

static void run_product(void *ctx, int64_t item, int32_t thread)
{
    const struct span *s = ctx;
    const struct op *o = &s->p->op[s->r->op0];
    int64_t row_lo = item % s->n_row * s->row_chunk, row_hi = row_lo + s->row_chunk;
    if (row_hi > s->rows) row_hi = s->rows;
    int64_t lo = item / s->n_row * s->panel_chunk, hi = lo + s->panel_chunk;
    const struct sy_kernels_gemm *kern = &s->p->b->kern.gemm;
    struct product m = {o->w->seg, o->w->n_seg, o->x, o->epi};
    if (!o->glu) {
        cpu_multiply(kern, &m, row_lo, row_hi, lo, hi, cpu_row(o->out, row_lo), o->out->ld, 0);
        return;
    }
    /* Columns of both halves meet in this core's cache. */
    if (hi > o->glu->dim[1] / SY_PANEL) hi = o->glu->dim[1] / SY_PANEL;
    int64_t n = (hi - lo) * SY_PANEL, rows = row_hi - row_lo, ld = 2 * n;
    float *gate = o->scratch->at + thread * CPU_GLU_FLOATS, *up = gate + n;
    for (int half = 0; half < 2; half++) {
        int64_t col = half ? o->up : o->gate, panel = col / SY_PANEL;
        cpu_multiply(kern, &m, row_lo, row_hi, panel + lo, panel + hi, half ? up : gate, ld, col + lo * SY_PANEL);
    }
    vec(s->p)->glu(o->glu->attr.glu.fn, gate, ld, up, ld, rows, n, gate, ld);
    for (int k = 0; k < SY_X_COUNT; k++) {
        if (!o->h[k]) continue;
        struct sy_xmat to = sy_xmat_view(o->h[k], row_lo, rows, lo * SY_PANEL, n);
        kern->prepare[k](gate, ld, 0, rows, &to);
    }
}

enum { ITEMS_PER_THREAD = 6, ROW_CHUNK_MAX = 16, ROW_STEP = 32 };

/* Rows of a product's operand that one item takes. All panels of the item meet them, so they should stay in the
 * second cache; the more they are, the more rows share what is done to bring a panel into registers. */
static int64_t row_tile(const struct op *o)
{
    enum { BYTES = 512 << 10, LEAST = 96 };
    int64_t rows = CPU_PRODUCT_ROWS;
    for (int k = 0; k < SY_X_COUNT; k++)
        if (o->x[k] && rows > BYTES / o->x[k]->ld) rows = BYTES / o->x[k]->ld;
    return rows < LEAST ? LEAST : rows / ROW_STEP * ROW_STEP;
}

static void region_product(struct span *s)
{
    const struct op *o = &s->p->op[s->r->op0];
    int64_t panels = o->glu ? o->glu->dim[1] / SY_PANEL : 0, threads = sy_pool_size(s->p->b->pool);
    for (int i = 0; !o->glu && i < o->w->n_seg; i++) panels += sy_ceil_div(o->w->seg[i].p.n, SY_PANEL);
    s->n_row = sy_ceil_div(s->rows, row_tile(o));
    s->row_chunk = sy_ceil_div(sy_ceil_div(s->rows, s->n_row), ROW_STEP) * ROW_STEP;
    int64_t want = sy_ceil_div(ITEMS_PER_THREAD * threads, s->n_row);
    s->panel_chunk = sy_ceil_div(panels, want);
    if (o->glu) { /* whole groups of the operand to come, and what the scratch holds */
        int64_t most = CPU_GLU_FLOATS / (2 * SY_XGROUP * (s->rows < s->row_chunk ? s->rows : s->row_chunk));
        int64_t groups = sy_ceil_div(s->panel_chunk * SY_PANEL, SY_XGROUP);
        s->panel_chunk = (groups < most ? groups : most) * (SY_XGROUP / SY_PANEL);
    }
    s->n_panel = sy_ceil_div(panels, s->panel_chunk);
    sy_pool_run(s->p->b->pool, s->n_row * s->n_panel, run_product, s);
}

/* ---- attention ----------------------------------------------------------------------------------------------- */

struct sy_attend cpu_attend_item(const struct sy_program *p, const struct op *o, const struct work *w, int32_t index)
{
    const struct sy_attn_dim *a = &o->node->attr.attn;
    int32_t group = cpu_attend_group(a), seq = w->seq, kv_head = index / (a->n_head / a->n_kv / group);
    struct sy_attend item = {
        .kv = &o->kv,
        .layer = p->kv->mem.at + p->kv->layer_bytes[o->state],
        .table = p->batch->field[o->table] + (int64_t)seq * p->shape.block,
        .kv_head = kv_head,
        .n_group = group,
        .n_q = w->n_q,
        .pos0 = w->pos0,
        .window = a->window,
        .chunk = a->chunk,
        .sink = o->vec ? o->vec + (int64_t)index * group : NULL,
        .scale = a->scale,
        .softcap = a->softcap,
        .q = cpu_row(o->in[0], w->q0) + (int64_t)index * group * a->d_key,
        .ldq = o->in[0]->ld,
        .out = cpu_row(o->out, w->q0) + (int64_t)index * group * a->d_val,
        .ldo = o->out->ld,
    };
    int32_t lo, hi;
    sy_attend_range(&item, &lo, &hi);
    item.part = lo;
    item.n_part = hi - lo;
    return item;
}

static void attend_part(const struct sy_program *p, const struct op *o, const struct sy_attend *a)
{
    p->b->attend_part(&p->b->kern.attend, o->kv.dtype, a, p->b->opt.compute != SY_COMPUTE_F32);
}

/* Work items of one run of queries. */
static int32_t n_group(const struct op *o)
{
    return o->node->attr.attn.n_head / cpu_attend_group(&o->node->attr.attn);
}

/* Enough items: each runs its partitions and merges them. */
static void run_attend(void *ctx, int64_t item, int32_t thread)
{
    const struct span *s = ctx;
    const struct sy_program *p = s->p;
    const struct op *o = &p->op[s->r->op0];
    int32_t n = n_group(o);
    struct sy_attend a = cpu_attend_item(p, o, &p->work[item / n], (int32_t)(item % n));
    a.partial = p->partial + thread * p->partial_slice;
    struct sy_attend next;
    if (++item < (int64_t)p->n_work * n) {
        next = cpu_attend_item(p, o, &p->work[item / n], (int32_t)(item % n));
        a.next = &next;
    }
    for (int32_t i = 0; i < a.n_part; i++, a.part++) attend_part(p, o, &a);
    p->b->kern.attend.merge(&a);
}

/* Few items (one sequence decodes): partitions of all items are spread over the threads first. */
static void run_attend_part(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    const struct span *s = ctx;
    const struct sy_program *p = s->p;
    const struct op *o = &p->op[s->r->op0];
    int32_t n = n_group(o);
    int64_t n_item = (int64_t)p->n_work * n, which = item % n_item;
    struct sy_attend a = cpu_attend_item(p, o, &p->work[which / n], (int32_t)(which % n));
    a.partial = p->partial + which * p->partial_slice;
    a.part += (int32_t)(item / n_item);
    if (item / n_item < a.n_part) attend_part(p, o, &a);
}

static void run_attend_merge(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    const struct span *s = ctx;
    const struct sy_program *p = s->p;
    const struct op *o = &p->op[s->r->op0];
    int32_t n = n_group(o);
    struct sy_attend a = cpu_attend_item(p, o, &p->work[item / n], (int32_t)(item % n));
    a.partial = p->partial + item * p->partial_slice;
    p->b->kern.attend.merge(&a);
}

static void region_attend(struct span *s)
{
    struct sy_program *p = s->p;
    const struct op *o = &p->op[s->r->op0];
    int64_t n_item = (int64_t)p->n_work * n_group(o), threads = sy_pool_size(p->b->pool);
    int32_t n_part = 1;
    for (int32_t i = 0; i < p->n_work; i++)
        if (p->work[i].n_part > n_part) n_part = p->work[i].n_part;
    if (n_part == 1 || n_item >= 4 * threads) {
        sy_pool_run(p->b->pool, n_item, run_attend, s);
        return;
    }
    sy_pool_run(p->b->pool, n_item * n_part, run_attend_part, s);
    sy_pool_run(p->b->pool, n_item, run_attend_merge, s);
}

/* Cuts each sequence's tokens in runs of attend_q queries. */
static void plan_work(struct sy_program *p)
{
    const struct sy_batch *b = p->batch;
    p->n_work = 0;
    for (int32_t s = 0; s < b->n_seq; s++) {
        int32_t lo = b->field[SY_START][s], hi = b->field[SY_START][s + 1];
        if (p->row_seq)
            for (int32_t q = lo; q < hi; q++) p->row_seq[q] = s;
        for (int32_t q = lo; q < hi; q += p->attend_q) {
            int32_t n = hi - q < p->attend_q ? hi - q : p->attend_q, pos0 = b->field[SY_POS][q];
            p->work[p->n_work++] = (struct work){s, q, n, pos0, (pos0 + n + SY_PARTITION - 1) / SY_PARTITION};
        }
    }
}

static void run_rope_tables(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    struct span *s = ctx;
    struct rope_table *t = &s->p->rope[item % s->p->n_rope];
    int64_t lo = item / s->p->n_rope * s->chunk, hi = lo + s->chunk < s->rows ? lo + s->chunk : s->rows;
    const int32_t *pos = s->p->batch->field[SY_POS], *span = s->p->batch->field[SY_SPAN];
    for (int64_t r = lo; t->pos && r < hi; r++) t->pos[r] = pos[r] - pos[r] % t->dim.every;
    if (t->pos) pos = t->pos;
    for (int64_t n; lo < hi; lo += n) { /* runs of tokens with the same frequencies */
        bool far = t->dim.inv_freq_long && span[lo] > t->dim.n_short;
        n = hi - lo;
        for (int64_t i = 1; t->dim.inv_freq_long && i < n; i++)
            if ((span[lo + i] > t->dim.n_short) != far) n = i;
        vec(s->p)->rope_table(far ? t->dim.inv_freq_long : t->dim.inv_freq, t->dim.d_rot / 2, t->dim.mscale, pos + lo,
                              n, t->cs + lo * t->dim.d_rot);
    }
}

void cpu_run(struct sy_program *p)
{
    const struct sy_batch *b = p->batch;
    struct sy_pool *pool = p->b->pool;
    struct span s = {.p = p, .rows = b->n_tok, .chunk = ROW_CHUNK_MAX};
    plan_work(p);
    cpu_plan_chains(p);
    if (p->n_rope) sy_pool_run(pool, p->n_rope * sy_ceil_div(s.rows, s.chunk), run_rope_tables, &s);
    for (int i = 0; i < p->n_region; i++) {
        s.r = &p->region[i];
        s.rows = s.r->on_out ? b->n_out : b->n_tok;
        if (s.rows == 0) continue;
        switch (s.r->kind) {
        case REGION_ROWS:
            s.chunk = sy_ceil_div(s.rows, sy_pool_size(pool));
            if (s.chunk > ROW_CHUNK_MAX) s.chunk = ROW_CHUNK_MAX;
            sy_pool_run(pool, sy_ceil_div(s.rows, s.chunk), run_rows, &s);
            break;
        case REGION_PRODUCT: region_product(&s); break;
        case REGION_ATTEND: region_attend(&s); break;
        case REGION_HEADS: cpu_region_heads(p, &p->op[s.r->op0], s.rows); break;
        case REGION_INDEX: cpu_region_index(p, &p->op[s.r->op0], s.rows); break;
        case REGION_KEPT: cpu_region_kept(p, &p->op[s.r->op0], s.rows); break;
        case REGION_COMPRESS: cpu_region_compress(p, &p->op[s.r->op0]); break;
        case REGION_CHOSEN: cpu_region_chosen(p, &p->op[s.r->op0], s.rows); break;
        case REGION_EXPERTS: cpu_region_experts(p, &p->op[s.r->op0], s.rows); break;
        case REGION_CONV: cpu_region_conv(p, &p->op[s.r->op0]); break;
        case REGION_SCAN: cpu_region_scan(p, &p->op[s.r->op0]); break;
        }
    }
}
