/* recur.c - convolutions, scans and means over runs: ops whose tokens depend on those before them in their sequence.
 *
 * Work is cut across columns (convolution) or heads (scan) and across sequences, never along one. A sequence may
 * stand in a step several times, each entry going on where the one before it stopped: such a chain is one item. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_int.h"

enum { CONV_COLUMNS = 256, COMPRESS_COLUMNS = 64 };

static int64_t line_up(int64_t bytes) { return (bytes + 63) & ~(int64_t)63; }

static int64_t panel_bytes(const struct sy_backend *b, const struct sy_scan_dim *d)
{
    return (int64_t)SY_SCAN_PANEL * d->d_key * (b->opt.state_dtype == SY_STATE_BF16 ? 2 : 4);
}

static int64_t panels_of(const struct sy_scan_dim *d) { return (d->d_val + SY_SCAN_PANEL - 1) / SY_SCAN_PANEL; }

int64_t cpu_state_bytes(const struct sy_backend *b, const struct sy_node *node, const struct sy_node *n)
{
    if (n->op == SY_OP_CONV || n->op == SY_OP_COMPRESS)
        return line_up(node[n->in[3].id].attr.state.elems * (int64_t)sizeof(float));
    if (n->op != SY_OP_SCAN) return 0;
    return line_up(n->attr.scan.n_val * panels_of(&n->attr.scan) * panel_bytes(b, &n->attr.scan));
}

int64_t cpu_slot_bytes(const struct sy_backend *b, const struct sy_graph *g)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node);
    int64_t sum = 0;
    for (uint32_t i = 1; i < n_node; i++) sum += cpu_state_bytes(b, node, &node[i]);
    return sum;
}

/* [n_tap][columns] of the file's [columns][n_tap]. */
const float *cpu_taps(struct sy_program *p, const float *w, int64_t d, int64_t n_tap)
{
    float *taps = sy_arena_array(&p->arena, (size_t)(d * n_tap), sizeof *taps);
    for (int64_t i = 0; taps && i < d * n_tap; i++) taps[i % n_tap * d + i / n_tap] = w[i];
    return taps;
}

void cpu_plan_chains(struct sy_program *p)
{
    const struct sy_batch *b = p->batch;
    const int32_t *rd = b->field[SY_SLOT_RD], *wr = b->field[SY_SLOT_WR];
    p->n_chain = 0;
    for (int32_t s = 0; s < b->n_seq; s++) {
        bool same = s > 0 && rd[s] == wr[s - 1] && b->field[SY_POS][b->field[SY_START][s]] > 0;
        if (same) p->chain[p->n_chain - 1].n_seq++;
        else p->chain[p->n_chain++] = (struct chain){s, 1};
    }
}

/* ---- one op, cut into items ----------------------------------------------------------------------------------- */

struct entry;
struct cut {
    struct sy_program *p;
    const struct op *o;
    int64_t n_piece;  /* of a chain */
    int64_t per_head; /* scan: pieces of a head */
    int64_t columns;  /* of a piece that is cut across columns, and what is done to them */
    void (*across)(const struct cut *, const struct entry *, int64_t lo, int64_t hi);
};
struct entry { /* of the step: its tokens, and the op's state in the slots it reads and writes */
    int64_t row;
    int32_t n_tok;
    const unsigned char *from; /* NULL: its sequence begins here */
    unsigned char *to;
};

static struct entry entry_of(const struct cut *c, int32_t seq)
{
    const struct sy_batch *b = c->p->batch;
    const struct sy_kv_cache *kv = c->p->kv;
    int32_t row = b->field[SY_START][seq];
    unsigned char *base = kv->mem.at + kv->slot_at + c->o->slot_offset;
    bool fresh = b->field[SY_POS][row] == 0;
    return (struct entry){.row = row,
                          .n_tok = b->field[SY_START][seq + 1] - row,
                          .from = fresh ? NULL : base + b->field[SY_SLOT_RD][seq] * kv->slot_bytes,
                          .to = base + b->field[SY_SLOT_WR][seq] * kv->slot_bytes};
}

static void conv_entry(const struct cut *c, const struct entry *e, int64_t lo, int64_t hi)
{
    const struct op *o = c->o;
    int64_t d = o->node->dim[1], n_tap = c->p->node[o->node->in[1].id].dim[1] / d;
    c->p->b->kern.scan.conv(&(struct sy_conv_run){
        .x = cpu_row(o->in[0], e->row) + lo,
        .w = o->taps + lo,
        .bias = o->vec ? o->vec + lo : NULL,
        .from = e->from ? (const float *)(const void *)e->from + lo : NULL,
        .to = (float *)(void *)e->to + lo,
        .y = cpu_row(o->out, e->row) + lo,
        .ldx = o->in[0]->ld,
        .ldw = d,
        .ld_state = d,
        .ldy = o->out->ld,
        .d = hi - lo,
        .n_tap = (int32_t)n_tap,
        .n_tok = e->n_tok,
    });
}

static void run_columns(void *ctx, int64_t item, int32_t thread)
{
    (void)thread;
    const struct cut *c = ctx;
    const struct chain *chain = &c->p->chain[item / c->n_piece];
    int64_t d = c->o->node->dim[1], lo = item % c->n_piece * c->columns, hi = lo + c->columns;
    for (int32_t i = 0; i < chain->n_seq; i++) {
        struct entry e = entry_of(c, chain->seq0 + i);
        c->across(c, &e, lo, hi < d ? hi : d);
    }
}

static void region_columns(struct cut c)
{
    c.n_piece = (c.o->node->dim[1] + c.columns - 1) / c.columns;
    sy_pool_run(c.p->b->pool, c.n_piece * c.p->n_chain, run_columns, &c);
}

void cpu_region_conv(struct sy_program *p, const struct op *o)
{
    region_columns((struct cut){.p = p, .o = o, .columns = CONV_COLUMNS, .across = conv_entry});
}

/* An operand's values for head columns starting at col, from the entry's first token. */
static const float *operand(const struct op *o, int i, int64_t row, int64_t col)
{
    return o->in[i] ? cpu_row(o->in[i], row) + col : NULL;
}

/* Panels [lo, hi) of value head j. */
static void scan_entry(const struct cut *c, const struct entry *e, int32_t j, int64_t lo, int64_t hi, float *scratch)
{
    const struct op *o = c->o;
    const struct sy_scan_dim *d = &o->node->attr.scan;
    const struct sy_backend *b = c->p->b;
    int64_t key = (int64_t)(j / (d->n_val / d->n_key)) * d->d_key, first = lo * SY_SCAN_PANEL,
            last = hi * SY_SCAN_PANEL;
    int64_t val = (int64_t)j * d->d_val + first, at = (j * panels_of(d) + lo) * panel_bytes(b, d);
    bool each = c->p->node[o->node->in[3].id].dim[1] != d->n_val;
    int64_t decay_col = each ? (int64_t)j * d->d_key : j;
    b->kern.scan.scan[b->opt.state_dtype](&(struct sy_scan_run){
        .q = operand(o, 0, e->row, key),
        .k = operand(o, 1, e->row, key),
        .v = operand(o, 2, e->row, val),
        .decay = o->vec ? o->vec + decay_col : operand(o, 3, e->row, decay_col),
        .beta = operand(o, 4, e->row, j),
        .ldq = o->in[0]->ld,
        .ldk = o->in[1]->ld,
        .ldv = o->in[2]->ld,
        .ld_decay = o->vec ? 0 : o->in[3]->ld,
        .ld_beta = o->in[4] ? o->in[4]->ld : 0,
        .from = e->from ? e->from + at : NULL,
        .to = e->to + at,
        .y = cpu_row(o->out, e->row) + val,
        .ldy = o->out->ld,
        .scratch = scratch,
        .d_key = d->d_key,
        .d_val = (int32_t)((last < d->d_val ? last : d->d_val) - first),
        .n_tok = e->n_tok,
        .delta = d->delta,
        .decay_each = each,
    });
}

static void run_scan(void *ctx, int64_t item, int32_t thread)
{
    const struct cut *c = ctx;
    const struct sy_scan_dim *d = &c->o->node->attr.scan;
    const struct chain *chain = &c->p->chain[item / c->n_piece];
    int64_t piece = item % c->n_piece, part = piece % c->per_head, panels = panels_of(d);
    for (int32_t i = 0; i < chain->n_seq; i++) {
        struct entry e = entry_of(c, chain->seq0 + i);
        scan_entry(c, &e, (int32_t)(piece / c->per_head), panels * part / c->per_head,
                   panels * (part + 1) / c->per_head, c->p->scan_scratch + thread * c->p->scan_slice);
    }
}

/* A head's panels stay together, for what is prepared once per head, unless heads are too few for the threads. */
void cpu_region_scan(struct sy_program *p, const struct op *o)
{
    const struct sy_scan_dim *d = &o->node->attr.scan;
    int64_t heads = (int64_t)d->n_val * p->n_chain, want = 4 * (int64_t)sy_pool_size(p->b->pool);
    struct cut c = {.p = p, .o = o, .per_head = (want + heads - 1) / heads};
    if (c.per_head > panels_of(d)) c.per_head = panels_of(d);
    c.n_piece = c.per_head * d->n_val;
    sy_pool_run(p->b->pool, c.n_piece * p->n_chain, run_scan, &c);
}

/* ---- COMPRESS ---------------------------------------------------------------------------------------------------
 */

/* The softmax-weighted mean of what came so far (Milakov and Gimelshein, arXiv:1805.02867): a state of d columns is
 * three rows [d], the largest gate, the sum of exp(gate - largest), and that of the weighted values. */
struct mean {
    float *top, *sum, *value;
};

static struct mean mean_at(float *state, int64_t d, int64_t col)
{
    return (struct mean){state + col, state + d + col, state + 2 * d + col};
}

static void mean_clear(const struct mean *m, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        m->top[i] = -INFINITY;
        m->sum[i] = m->value[i] = 0;
    }
}

static void mean_add(const struct mean *m, const float *value, const float *gate, const float *bias, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i] + bias[i], top = g > m->top[i] ? g : m->top[i];
        float keep = m->sum[i] > 0 ? expf(m->top[i] - top) : 0, add = expf(g - top);
        m->sum[i] = m->sum[i] * keep + add;
        m->value[i] = m->value[i] * keep + add * value[i];
        m->top[i] = top;
    }
}

/* Columns [lo, hi) of the result. With overlap the state of the next run's first half stands behind the one of this
 * run, and takes its place when the run ends. */
static void compress_entry(const struct cut *c, const struct entry *e, int64_t lo, int64_t hi)
{
    const struct op *o = c->o;
    const struct sy_compress_dim *k = &o->node->attr.compress;
    int64_t d = o->node->dim[1], n = hi - lo, cols = k->overlap ? 2 * d : d, second = k->overlap ? d : 0;
    float *state = (float *)(void *)e->to;
    const float *from = (const float *)(const void *)e->from;
    struct mean now = mean_at(state, d, lo), next = mean_at(state + 3 * d, d, lo);
    for (int64_t i = 0; from && from != state && i < 3 * cols / d; i++)
        memcpy(state + i * d + lo, from + i * d + lo, (size_t)n * sizeof *state);
    for (int32_t t = 0; t < e->n_tok; t++) {
        int32_t pos = c->p->batch->field[SY_POS][e->row + t], in_run = pos % k->every;
        const float *value = cpu_row(o->in[0], e->row + t), *gate = value + cols, *bias = o->vec + in_run * cols;
        if (in_run == 0 && (pos == 0 || !k->overlap)) mean_clear(&now, n);
        if (in_run == 0 && k->overlap) {
            for (int i = 0; pos > 0 && i < 3; i++)
                memcpy(state + i * d + lo, state + (3 + i) * d + lo, (size_t)n * sizeof *state);
            mean_clear(&next, n);
        }
        mean_add(&now, value + second + lo, gate + second + lo, bias + second + lo, n);
        if (k->overlap) mean_add(&next, value + lo, gate + lo, bias + lo, n);
        float *y = cpu_row(o->out, e->row + t) + lo;
        for (int64_t i = 0; i < n; i++) y[i] = now.value[i] / now.sum[i];
    }
}

void cpu_region_compress(struct sy_program *p, const struct op *o)
{
    region_columns((struct cut){.p = p, .o = o, .columns = COMPRESS_COLUMNS, .across = compress_entry});
}
