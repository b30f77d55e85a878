/* moe.c - mixture of experts: ROUTE as a row op, EXPERTS as a region of its own.
 *
 * A step's (row, choice) pairs are sorted by expert (a counting sort: stable, so the rows of an expert are in order),
 * the rows of x are prepared in that order, and each expert's run of rows is one small matrix product: only pairs
 * that exist are computed, and an expert's weights are read once for all of its rows (in tiles of CPU_EXPERT_ROWS).
 * The two products of all runs are spread over the threads by their cost; the first leaves the second's
 * operand: gate and up of a tile meet in the core's cache. A row's results are then added in the order
 * of its choices, so neither the batch nor the threads change a bit. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_int.h"

/* ---- ROUTE -------------------------------------------------------------------------------------------------------
 */

static void softmax(float *x, int64_t n)
{
    float top = x[0];
    double sum = 0;
    for (int64_t i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int64_t i = 0; i < n; i++) sum += x[i] = expf(x[i] - top);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(x[i] / sum);
}

static void scores(enum sy_score kind, const float *x, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++) {
        switch (kind) {
        case SY_SCORE_SIGMOID: y[i] = 1 / (1 + expf(-x[i])); break;
        case SY_SCORE_SQRT_SOFTPLUS: y[i] = sqrtf(x[i] > 20 ? x[i] : log1pf(expf(x[i]))); break;
        case SY_SCORE_SOFTMAX:
        case SY_SCORE_LOGIT: y[i] = x[i]; break;
        }
    }
    if (kind == SY_SCORE_SOFTMAX) softmax(y, n);
}

/* The index of the largest x that is not taken yet, the lowest of equal ones; never fails while one is left. */
static int32_t take_best(const float *x, bool *taken, int32_t n)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (!taken[i] && (best < 0 || x[i] > x[best])) best = i;
    taken[best] = true;
    return best;
}

/* Experts outside the best groups count as taken. */
static void keep_groups(const struct sy_route_dim *d, const float *choice, bool *taken)
{
    int32_t n = d->n_expert / d->n_group;
    float sum[SY_EXPERTS_MAX];
    bool out[SY_EXPERTS_MAX] = {false};
    for (int32_t g = 0; g < d->n_group; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (int32_t i = g * n; i < (g + 1) * n; i++) {
            if (choice[i] > first) {
                second = first;
                first = choice[i];
            } else if (choice[i] > second) {
                second = choice[i];
            }
        }
        sum[g] = first + second;
    }
    for (int32_t k = 0; k < d->n_group_used; k++) (void)take_best(sum, out, d->n_group);
    for (int32_t i = 0; i < d->n_expert; i++) taken[i] = !out[i / n];
}

/* given: the experts' numbers; NULL: the best by score. */
static void route_row(const struct sy_route_dim *d, const float *logits, const float *bias, const float *gain,
                      const float *given, float *out)
{
    float score[SY_EXPERTS_MAX], choice[SY_EXPERTS_MAX], *weight = out + d->n_used;
    bool taken[SY_EXPERTS_MAX];
    memset(taken, 0, (size_t)d->n_expert);
    scores(d->score, logits, d->n_expert, score);
    /* Without a bias the order of scores is that of the logits, which rounding does not make equal. */
    bool by_logit = !bias && d->n_group <= 1;
    for (int32_t i = 0; i < d->n_expert; i++) choice[i] = bias ? score[i] + bias[i] : by_logit ? logits[i] : score[i];
    if (d->n_group > 1) keep_groups(d, choice, taken);
    float sum = d->eps;
    for (int32_t k = 0; k < d->n_used; k++) {
        int32_t e = given ? (int32_t)given[k] : take_best(choice, taken, d->n_expert);
        out[k] = (float)e;
        weight[k] = score[e];
        sum += score[e];
    }
    if (d->weighting == SY_WEIGHT_SOFTMAX) softmax(weight, d->n_used);
    for (int32_t k = 0; k < d->n_used; k++) {
        if (d->weighting == SY_WEIGHT_NORMED) weight[k] /= sum;
        weight[k] *= d->scale;
        if (gain) weight[k] *= gain[(int32_t)out[k]];
    }
}

void cpu_row_route(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    (void)p;
    for (int64_t r = lo; r < hi; r++)
        route_row(&o->node->attr.route, cpu_row(o->in[0], r), o->vec, o->vec2, o->in[3] ? cpu_row(o->in[3], r) : NULL,
                  cpu_row(o->out, r));
}

/* ---- EXPERTS ------------------------------------------------------------------------------------------------------
 */

enum { PAIR_CHUNK = 16, ITEMS_PER_THREAD = 8, ROWS_FREE = 8 };
/* Columns that panels hold beside those of a gate and of an up. */
enum { GLU_PAD = 2 * SY_XGROUP };

struct span {
    const struct sy_program *p;
    const struct op *o;
    struct moe *m;
    int64_t n_pair;
    bool second; /* which of the two products */
};

/* Fills pair[], place[] and run[] from the routes of all rows. */
static void sort_pairs(struct span *s, int64_t rows)
{
    struct moe *m = s->m;
    int32_t used = m->dim->n_used, *next = m->next;
    memset(next, 0, ((size_t)m->dim->n_expert + 1) * sizeof *next);
    for (int64_t i = 0; i < s->n_pair; i++) next[(int32_t)cpu_row(s->o->in[1], i / used)[i % used] + 1]++;
    m->n_run = 0;
    for (int32_t e = 0; e < m->dim->n_expert; e++) {
        int32_t n = next[e + 1], lo = next[e], n_tile = (int32_t)sy_ceil_div(n, CPU_EXPERT_ROWS);
        for (int32_t t = 0; t < n_tile; t++) {
            int32_t from = lo + (int32_t)((int64_t)n * t / n_tile),
                    to = lo + (int32_t)((int64_t)n * (t + 1) / n_tile);
            m->run[m->n_run++] = (struct moe_run){.expert = e, .lo = from, .hi = to};
        }
        next[e + 1] += lo;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int32_t k = 0; k < used; k++) {
            int32_t to = next[(int32_t)cpu_row(s->o->in[1], r)[k]]++;
            m->pair[to] = (int32_t)(r * used + k);
            m->place[r * used + k] = to;
        }
}

/* A chunk of pairs: their rows of x, prepared. */
static void prepare_pairs(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    struct span *s = ctx;
    const struct moe *m = s->m;
    const struct sy_kernels *k = &s->p->b->kern;
    int32_t used = m->dim->n_used;
    int64_t lo = item * PAIR_CHUNK, hi = lo + PAIR_CHUNK < s->n_pair ? lo + PAIR_CHUNK : s->n_pair;
    for (int64_t i = lo; i < hi; i++) {
        int64_t row = m->pair[i] / used, slot = m->pair[i] % used;
        const float *x = cpu_row(s->o->in[0], row);
        if (m->dim->weigh_input) { /* y2 is free until the second product */
            k->vec.scale(x, 0, cpu_row(s->o->in[1], row)[used + slot], 1, m->d_model, cpu_row(&m->y2, i), 0);
            x = cpu_row(&m->y2, i);
        }
        for (int j = 0; j < SY_X_COUNT; j++) /* ld 0: every row number is this row */
            if (m->x[j]) k->gemm.prepare[j](x, 0, i, i + 1, m->x[j]);
    }
}

/* What a product is cut in, of one expert's matrix: groups of columns of gate and up, or panels. */
static int64_t cuts(const struct span *s)
{
    const struct wentry *w = s->m->w_out;
    if (!s->second) return sy_ceil_div(s->m->dim->d_ff, SY_XGROUP);
    int64_t n = 0;
    for (int i = 0; i < w->n_seg / s->m->dim->n_expert; i++) n += sy_ceil_div(w->seg[i].p.n, SY_PANEL);
    return n;
}

/* Cuts every run so that items cost about the same (a product of few rows costs its weights), and gate and up of one
 * stay in the second cache. */
static int64_t cut_runs(struct span *s)
{
    struct moe *m = s->m;
    int64_t work = 0, n_item = 0, all = cuts(s);
    for (int32_t i = 0; i < m->n_run; i++) work += ROWS_FREE + m->run[i].hi - m->run[i].lo;
    int64_t want = ITEMS_PER_THREAD * (int64_t)sy_pool_size(s->p->b->pool), each = sy_ceil_div(work * all, want);
    for (int32_t i = 0; i < m->n_run; i++) {
        struct moe_run *r = &m->run[i];
        int64_t n = sy_ceil_div((ROWS_FREE + r->hi - r->lo) * all, each);
        int64_t most = s->second ? all : (CPU_GLU_FLOATS / (r->hi - r->lo) - GLU_PAD) / (2 * SY_XGROUP);
        r->item0 = n_item;
        r->chunk = (int32_t)sy_ceil_div(all, n < all ? n : all);
        if (r->chunk > most) r->chunk = (int32_t)most;
        n_item += sy_ceil_div(all, r->chunk);
    }
    return n_item;
}

static const struct moe_run *run_of(const struct moe *m, int64_t item)
{
    int32_t lo = 0, hi = m->n_run;
    while (hi - lo > 1) {
        int32_t mid = (lo + hi) / 2;
        if (m->run[mid].item0 <= item) lo = mid;
        else hi = mid;
    }
    return &m->run[lo];
}

/* Columns [col, col + n) of an expert's first matrix on a run of its rows, by the panels that hold them. Returns
 * where the first of them came to lie. */
static float *half(const struct span *s, const struct moe_run *r, int64_t col, int64_t n, float *y, int64_t ld)
{
    const struct moe *m = s->m;
    int n_seg = m->w_in->n_seg / m->dim->n_expert;
    const struct wseg *seg = &m->w_in->seg[r->expert * n_seg], *first = seg;
    while (col - (seg->col0 - first->col0) >= seg->p.n) seg++;
    col -= seg->col0 - first->col0;
    int64_t lo = col / SY_PANEL;
    struct product of = {seg, 1, m->x, {.bias = m->bias_in}};
    cpu_multiply(&s->p->b->kern.gemm, &of, r->lo, r->hi, lo, sy_ceil_div(col + n, SY_PANEL), y, ld,
                 seg->col0 + lo * SY_PANEL);
    return y + (col - lo * SY_PANEL);
}

static void bound(float *x, int64_t n, float lo, float hi, float add)
{
    for (int64_t i = 0; i < n; i++) x[i] = (x[i] < lo ? lo : x[i] > hi ? hi : x[i]) + add;
}

/* Some columns of gate and up of one expert on a run of its rows, and the operand that they become. */
static void multiply_in(void *ctx, int64_t item, int32_t thread)
{
    struct span *s = ctx;
    const struct moe *m = s->m;
    const struct sy_glu_dim *glu = &m->dim->glu;
    const struct sy_kernels *k = &s->p->b->kern;
    const struct moe_run *r = run_of(m, item);
    int64_t lo = (item - r->item0) * r->chunk * SY_XGROUP, d = m->dim->d_ff, rows = r->hi - r->lo;
    int64_t n = r->chunk * SY_XGROUP < d - lo ? r->chunk * SY_XGROUP : d - lo, ld = 2 * n + GLU_PAD;
    float *y = m->scratch.at + thread * CPU_GLU_FLOATS, *gate = half(s, r, lo, n, y, ld);
    if (!m->dim->gated) {
        k->vec.act(glu->fn, gate, ld, rows, n, gate, ld);
    } else {
        float *up = half(s, r, d + lo, n, y + n + GLU_PAD / 2, ld), limit = glu->limit > 0 ? glu->limit : INFINITY;
        for (int64_t i = 0; (glu->limit > 0 || glu->up_add != 0) && i < rows; i++) {
            bound(gate + i * ld, n, -INFINITY, limit, 0);
            bound(up + i * ld, n, -limit, limit, glu->up_add);
        }
        k->vec.glu(glu->fn, gate, ld, up, ld, rows, n, gate, ld);
    }
    for (int j = 0; j < SY_X_COUNT; j++) {
        if (!m->h[j]) continue;
        struct sy_xmat to = sy_xmat_view(m->h[j], r->lo, rows, lo, n);
        k->gemm.prepare[j](gate, ld, 0, rows, &to);
    }
}

/* Some panels of one expert's second matrix on a run of its rows. */
static void multiply_out(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    struct span *s = ctx;
    const struct moe *m = s->m;
    const struct moe_run *r = run_of(m, item);
    int n_seg = m->w_out->n_seg / m->dim->n_expert;
    struct product of = {&m->w_out->seg[r->expert * n_seg], n_seg, m->h, {.bias = m->bias_out}};
    int64_t lo = (item - r->item0) * r->chunk;
    cpu_multiply(&s->p->b->kern.gemm, &of, r->lo, r->hi, lo, lo + r->chunk, cpu_row(&m->y2, r->lo), m->y2.ld,
                 of.seg->col0);
}

void cpu_region_experts(const struct sy_program *p, const struct op *o, int64_t rows)
{
    struct span s = {.p = p, .o = o, .m = o->moe, .n_pair = rows * o->moe->dim->n_used};
    int64_t n_chunk = sy_ceil_div(s.n_pair, PAIR_CHUNK);
    sort_pairs(&s, rows);
    sy_pool_run(p->b->pool, n_chunk, prepare_pairs, &s);
    sy_pool_run(p->b->pool, cut_runs(&s), multiply_in, &s);
    s.second = true;
    sy_pool_run(p->b->pool, cut_runs(&s), multiply_out, &s);
}

/* The results of a row's experts, in the order of its choices. */
void cpu_row_experts(const struct sy_program *p, const struct op *o, int64_t lo, int64_t hi)
{
    const struct moe *m = o->moe;
    int32_t used = m->dim->n_used;
    (void)p;
    for (int64_t r = lo; r < hi; r++) {
        float *out = cpu_row(o->out, r);
        const float *weight = cpu_row(o->in[1], r) + used;
        for (int32_t k = 0; k < used; k++) {
            const float *y = cpu_row(&m->y2, m->place[r * used + k]);
            float w = m->dim->weigh_input ? 1 : weight[k];
            for (int64_t i = 0; i < m->d_model; i++) out[i] = k ? out[i] + w * y[i] : w * y[i];
        }
    }
}
