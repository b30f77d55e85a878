/* weights.c - how weights lie on the device: numbers in the compute type, or a quantised format's integers with their
 * scales, from which the program itself makes numbers. */
#include <stdio.h>
#include <string.h>

#include "backend/pjrt/pjrt_int.h"
#include "graph/shard.h"

enum {
    USE_PRODUCT = 1, /* all rows at once */
    USE_ROWS = 2,    /* some of them, or by heads */
    USE_VECTOR = 4,
    GROUP_MIN = 16,
    LANES = 128 /* kernels of experts take groups of its multiples, by rows; a product from rows by groups that are
                 * no multiple of it takes eight times as long on a TPU */
};

struct planner {
    const struct sy_env *env;
    const struct sy_checkpoint *ckpt;
    struct pj_weights_opt opt;
    struct sy_weights *w;
    int cap_arg;
    struct sy_err *err;
};

/* Rows of each expert in a matrix of many; 0: in none. */
static int64_t stack_of(const struct sy_node *node, uint32_t n, uint32_t id)
{
    for (uint32_t i = 1; i < n; i++) {
        if (node[i].op != SY_OP_EXPERTS) continue;
        for (int k = 2; k < 4; k++)
            if (node[i].in[k].id == id) return node[id].dim[0] / node[i].attr.moe.n_expert;
    }
    return 0;
}

/* How the graph's ops read WEIGHT node id. */
static unsigned uses_of(const struct sy_node *node, uint32_t n, uint32_t id)
{
    unsigned u = 0;
    for (uint32_t i = 1; i < n; i++)
        for (size_t k = 0; k < SY_COUNT(node[i].in); k++) {
            if (node[i].in[k].id != id) continue;
            bool rows = node[i].op == SY_OP_EMBED || node[i].op == SY_OP_HEADS;
            bool product =
                (node[i].op == SY_OP_LINEAR && k == 1) || (node[i].op == SY_OP_EXPERTS && (k == 2 || k == 3));
            u |= rows ? USE_ROWS : product ? USE_PRODUCT : USE_VECTOR;
        }
    return u;
}

static const struct sy_tensor *find(const struct sy_checkpoint *ckpt, const char *name, struct sy_err *err)
{
    const struct sy_tensor *t = sy_checkpoint_find(ckpt, name);
    if (!t) {
        (void)sy_fail(err, SY_EFORMAT, "tensor '%s' is missing: the model's configuration asks for it", name);
        return NULL;
    }
    if (t->format) return t;
    (void)sy_fail(err, SY_ENOSUP, "tensor '%s' in '%s': data type '%s' is not supported", t->file_name, t->file,
                  t->dtype);
    return NULL;
}

static sy_status wrong_shape(const struct sy_tensor *t, int64_t rows, int64_t cols, struct sy_err *err)
{
    return sy_fail(err, SY_ESHAPE, "tensor '%s': expected [%lld, %lld], found %d dimensions, [%lld, %lld]",
                   t->file_name, (long long)rows, (long long)cols, t->n_dim, (long long)t->dim[0],
                   (long long)t->dim[1]);
}

/* ---- planning ------------------------------------------------------------------------------------------------- */

static int new_arg(struct planner *p, struct pj_type t)
{
    sy_assert(p->w->n_arg < p->cap_arg);
    p->w->type[p->w->n_arg] = t;
    p->w->bytes_held += pj_type_device_bytes(&t);
    return p->w->n_arg++;
}

/* The type of integer codes. */
static enum pj_elem integer_elem(const struct sy_affine *a)
{
    int lo = -a->zero, hi = (1 << a->bits) - 1 - a->zero;
    if (lo >= -8 && hi <= 7) return PJ_I4;
    if (lo >= 0) return hi <= 15 ? PJ_U4 : hi > 127 ? PJ_U8 : PJ_I8;
    return PJ_I8;
}

static int64_t common(int64_t a, int64_t b) /* greatest common divisor */
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Codes and their type, from how the format has its numbers; false: it has no codes, or rows are no whole groups. A
 * rank's columns are whole groups, or it gets numbers. */
static bool plan_codes(struct pj_wseg *s, enum pj_elem *e)
{
    const struct sy_quant *q = s->format;
    const struct sy_affine *a = &q->affine;
    if (q->f8 != SY_F8_NONE) {
        *e = PJ_U8;
        s->code = q->f8 == SY_F8_E4M3 ? PJ_CODE_E4M3 : PJ_CODE_E5M2;
        s->has_scale = q->f8_group > 0;
        s->group = s->cols;
        bool one_group = !s->has_scale || q->f8_group >= s->cols * (s->by_in ? s->n_rank : 1);
        if (!one_group) s->group = common(s->cols, q->f8_group);
        return one_group || s->group >= GROUP_MIN;
    }
    if (a->bits == 0 || s->cols % a->group) return false;
    *e = a->e2m1 || a->codebook ? PJ_U4 : integer_elem(a);
    s->code = a->e2m1 ? PJ_CODE_E2M1 : a->codebook ? PJ_CODE_BOOK : PJ_CODE_INT;
    s->group = a->group;
    s->has_scale = true;
    s->has_min = a->has_min;
    return true;
}

static void seg_args(struct planner *p, struct pj_wseg *s, unsigned uses)
{
    enum pj_elem e = PJ_F32;
    if (s->dense || !plan_codes(s, &e)) {
        bool f32 = s->exact || p->opt.compute == SY_COMPUTE_F32;
        s->kind = PJ_DENSE;
        s->arg = new_arg(p, PJ_TYPE(f32 ? PJ_F32 : PJ_BF16, s->rows, s->cols));
        return;
    }
    s->kind = PJ_CODED;
    int64_t n_group = s->cols / s->group, rows = pj_wseg_rows(s);
    bool by_rows = uses & USE_ROWS || (s->stack > 0 && s->group % LANES == 0);
    if (n_group > 1 && !by_rows) s->wide = (rows + LANES - 1) / LANES * LANES;
    struct pj_type code = PJ_TYPE(e, s->rows, s->cols), each = PJ_TYPE(PJ_F32, s->rows, n_group);
    if (s->stack > 0) each = PJ_TYPE(PJ_F32, s->rows / s->stack * n_group, 1, s->stack);
    if (s->wide > 0) {
        code = PJ_TYPE(e, s->rows / rows * n_group, s->group, s->wide);
        each = PJ_TYPE(PJ_F32, s->rows / rows * n_group, s->wide);
    }
    s->arg = new_arg(p, code);
    if (s->has_scale) (void)new_arg(p, each);
    if (s->has_min) (void)new_arg(p, each);
}

static int seg_n_arg(const struct pj_wseg *s) { return s->kind == PJ_DENSE ? 1 : 1 + s->has_scale + s->has_min; }

static bool alike(const struct sy_quant *a, const struct sy_quant *b)
{
    const struct sy_affine *p = &a->affine, *q = &b->affine;
    return p->bits == q->bits && p->group == q->group && p->zero == q->zero && p->has_min == q->has_min &&
           p->codebook == q->codebook && p->e2m1 == q->e2m1 && a->f8 == b->f8 && a->f8_group == b->f8_group;
}

/* What a node says of a rank's share. */
static struct pj_wseg share(const struct sy_node *n)
{
    /* Of experts a rank has whole parts. */
    bool whole = n->attr.weight.share.n == 0 || n->attr.weight.split == SY_BY_EXPERT;
    int32_t n_rank = whole ? 1 : n->attr.weight.share.n;
    return (struct pj_wseg){.cols = n->dim[1],
                            .n_rank = n_rank,
                            .share = n->attr.weight.share,
                            .n_own = n->dim[0],
                            .exact = n->attr.weight.exact,
                            .regroup = n->attr.weight.regroup,
                            .by_in = !whole && n->attr.weight.split == SY_BY_IN};
}

/* How many of a share's rows, from its row `own` on, lie below row `end` of the whole. */
static int64_t rows_below(const struct sy_share *s, int64_t n_own, int32_t share, int64_t own, int64_t end)
{
    int64_t n = 0;
    while (own + n < n_own && sy_share_row(s, n_own, share, own + n) < end) n++;
    return n;
}

/* Every share's rows of the part with these rows of the whole; -1: shares have unlike many. */
static int64_t part_rows(const struct pj_wseg *s, int64_t own, int64_t whole, int64_t rows)
{
    if (s->n_rank == 1 || s->by_in) return rows;
    int64_t n = rows_below(&s->share, s->n_own, 0, own, whole + rows);
    for (int32_t i = 1; i < s->n_rank; i++)
        if (rows_below(&s->share, s->n_own, i, own, whole + rows) != n) return -1;
    return n;
}

/* A rank's columns begin there. */
static int64_t first_col(const struct pj_wseg *s, int32_t rank)
{
    return s->by_in ? sy_share_of(&s->share, rank) * s->cols : 0;
}

/* The i-th tensor of a weight as a stage knows it. */
static bool part_name(const char *names, int32_t stage, int i, char *name, size_t n_name)
{
    char own[300];
    sy_weight_stage(names, stage, own, sizeof own);
    return sy_weight_part(own, i, name, n_name);
}

static int count_parts(const char *names)
{
    char name[300];
    int n = 0;
    while (part_name(names, 0, n, name, sizeof name)) n++;
    return n;
}

static int32_t stages_of(const struct sy_node *n)
{
    int32_t k = 1;
    for (const char *at = n->name; (at = strchr(at, '|')); at++) k++;
    return k;
}

/* Parts that ranks have in place of the planned ones, of other stages or other experts: numbers, where their formats
 * are not those. */
static sy_status check_others(struct planner *p, const struct sy_node *n, struct pj_wentry *e, int n_own)
{
    char name[300];
    int32_t n_share = n->attr.weight.split == SY_BY_EXPERT && n->attr.weight.share.n > 0 ? n->attr.weight.share.n : 1;
    for (int32_t stage = 0; stage < stages_of(n); stage++)
        for (int i = 0; i < n_own * n_share; i++) {
            struct pj_wseg *s = e->seg;
            while (i % n_own >= s->part0 + s->n_part) s++;
            (void)part_name(n->name, stage, i, name, sizeof name);
            const struct sy_tensor *t = find(p->ckpt, name, p->err);
            if (!t) return p->err->code;
            (void)part_name(n->name, 0, i % n_own, name, sizeof name);
            const struct sy_tensor *planned = find(p->ckpt, name, p->err);
            if (!planned) return p->err->code;
            if (t->n_dim != 2 || t->dim[0] != planned->dim[0] || t->dim[1] != planned->dim[1])
                return wrong_shape(t, planned->dim[0], planned->dim[1], p->err);
            if (!alike(s->format, t->format)) s->dense = true;
        }
    return SY_OK;
}

/* One segment for each run of parts in formats that lie alike. */
static sy_status plan_matrix(struct planner *p, const struct sy_node *n, int64_t stack, unsigned uses,
                             struct pj_wentry *e)
{
    char name[300];
    int n_part = count_parts(n->name);
    if (n->attr.weight.split == SY_BY_EXPERT && n->attr.weight.share.n > 0) n_part /= n->attr.weight.share.n;
    e->seg = sy_arena_array(&p->w->arena, (size_t)n_part, sizeof *e->seg);
    if (!e->seg) return sy_fail(p->err, SY_ENOMEM, "no memory for the table of weights");
    if (!p->ckpt) {
        e->seg[e->n_seg++] = share(n);
        e->seg->stack = stack;
        e->seg->rows = n->dim[0];
        e->seg->n_part = n_part;
        e->seg->format = p->opt.assume;
        seg_args(p, e->seg, uses);
        return SY_OK;
    }
    int64_t row = 0, whole = 0;
    for (int i = 0; i < n_part; i++) {
        (void)part_name(n->name, 0, i, name, sizeof name);
        const struct sy_tensor *t = find(p->ckpt, name, p->err);
        if (!t) return p->err->code;
        struct pj_wseg one = share(n);
        bool by_rows = one.n_rank > 1 && !one.by_in;
        int64_t rest = n->dim[0] - row, mine = part_rows(&one, row, whole, t->dim[0]);
        int64_t want = i + 1 < n_part ? mine : rest;
        if (n->attr.weight.split == SY_BY_EXPERT) want = n->dim[0] / n_part;
        if (mine < 0)
            return sy_fail(p->err, SY_ENOSUP, "tensor '%s': %d ranks cannot share it", t->file_name, one.n_rank);
        if (by_rows && i + 1 == n_part && whole + t->dim[0] != sy_share_whole(&one.share, n->dim[0]))
            return wrong_shape(t, sy_share_whole(&one.share, n->dim[0]) - whole, n->dim[1], p->err);
        int64_t cols = n->dim[1] * (one.by_in ? one.n_rank : 1);
        if (t->n_dim != 2 || t->dim[1] != cols || mine != want || mine > rest)
            return wrong_shape(t, want, cols, p->err);
        struct pj_wseg *s = e->n_seg ? &e->seg[e->n_seg - 1] : NULL;
        if (!s || !alike(s->format, t->format)) {
            s = &e->seg[e->n_seg++];
            *s = one;
            s->stack = stack;
            s->part0 = i;
            s->own0 = row;
            s->whole0 = whole;
            s->format = t->format;
        }
        s->rows += mine;
        s->n_part++;
        row += mine;
        whole += t->dim[0];
    }
    if (n->attr.weight.split == SY_BY_EXPERT && e->n_seg > 1) { /* experts are found by their place: one matrix */
        e->seg->rows = n->dim[0];
        e->seg->n_part = n_part;
        e->seg->dense = true;
        e->n_seg = 1;
    }
    sy_status st =
        n->attr.weight.share.stage || n->attr.weight.split == SY_BY_EXPERT ? check_others(p, n, e, n_part) : SY_OK;
    for (int i = 0; i < e->n_seg && !st; i++) seg_args(p, &e->seg[i], uses);
    return st;
}

static sy_status plan_entry(struct planner *p, const struct sy_node *node, uint32_t n_node, uint32_t id)
{
    const struct sy_node *n = &node[id];
    struct pj_wentry *e = &p->w->entry[p->w->n_entry++];
    *e = (struct pj_wentry){.rows = n->dim[0],
                            .cols = n->dim[1],
                            .map = n->attr.weight.map,
                            .flat = n->attr.weight.flat,
                            .repeat = n->attr.weight.repeat > 0 ? n->attr.weight.repeat : 1,
                            .vec = -1};
    struct pj_wseg one = share(n);
    e->n_rank = one.n_rank;
    e->share = one.share;
    e->name = sy_arena_text(&p->w->arena, n->name, strlen(n->name));
    if (!e->name) return sy_fail(p->err, SY_ENOMEM, "no memory for the table of weights");
    unsigned u = uses_of(node, n_node, id);
    bool matrix = u & (USE_PRODUCT | USE_ROWS);
    sy_status st = matrix ? plan_matrix(p, n, stack_of(node, n_node, id), u, e) : SY_OK;
    if (!st && (u & USE_VECTOR)) e->vec = new_arg(p, PJ_TYPE(PJ_F32, n->dim[1]));
    return st;
}

/* What a step reads of the weights: everything but a table that is only looked up, and of experts those
 * that one token chooses. */
static double entry_bytes(const struct sy_weights *w, const char *name)
{
    const struct pj_wentry *e = pj_weight(w, name);
    double sum = 0;
    for (int s = 0; s < e->n_seg; s++)
        for (int k = 0; k < seg_n_arg(&e->seg[s]); k++) sum += pj_type_device_bytes(&w->type[e->seg[s].arg + k]);
    return sum;
}

static void count_step(struct sy_weights *w, const struct sy_node *node, uint32_t n_node)
{
    for (uint32_t i = 1; i < n_node; i++) {
        const struct sy_moe_dim *d = &node[i].attr.moe;
        if (node[i].op == SY_OP_LINEAR || node[i].op == SY_OP_HEADS)
            w->bytes_step += entry_bytes(w, node[node[i].in[1].id].name);
        for (int k = 2; k < 4 && node[i].op == SY_OP_EXPERTS; k++) {
            double bytes = entry_bytes(w, node[node[i].in[k].id].name);
            w->bytes_experts += bytes;
            w->bytes_step += bytes * d->n_used / d->n_expert / (d->share.n > 0 ? d->share.n : 1);
        }
    }
}

sy_status pj_weights_plan(const struct sy_env *env, const struct sy_graph *g, const struct sy_checkpoint *ckpt,
                          const struct pj_weights_opt *opt, struct sy_weights **out, struct sy_err *err)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node);
    struct sy_err own = {0};
    struct planner p = {.env = env, .ckpt = ckpt, .opt = *opt, .err = err ? err : &own};
    sy_status st = pj_lower_check(g, err);
    if (st) return st;
    p.w = sy_new(env, sizeof *p.w);
    if (!p.w) return sy_fail(err, SY_ENOMEM, "no memory for the table of weights");
    sy_arena_init(&p.w->arena, env, 0);
    size_t n_weight = 0, n_part = 0;
    for (uint32_t i = 1; i < n_node; i++)
        if (node[i].op == SY_OP_WEIGHT) {
            n_weight++;
            n_part += (size_t)count_parts(node[i].name);
        }
    p.cap_arg = (int)(3 * n_part + n_weight);
    p.w->entry = sy_arena_array(&p.w->arena, n_weight + 1, sizeof *p.w->entry);
    p.w->type = sy_arena_array(&p.w->arena, (size_t)p.cap_arg + 1, sizeof *p.w->type);
    p.w->n_rank = opt->n_rank;
    p.w->buffer = sy_arena_array(&p.w->arena, ((size_t)p.cap_arg + 1) * (size_t)opt->n_rank, sizeof *p.w->buffer);
    st = p.w->entry && p.w->type && p.w->buffer ? SY_OK
                                                : sy_fail(err, SY_ENOMEM, "no memory for the table of weights");
    for (uint32_t i = 1; i < n_node && !st; i++)
        if (node[i].op == SY_OP_WEIGHT) st = plan_entry(&p, node, n_node, i);
    if (st) {
        pj_weights_free(p.w);
        return st;
    }
    count_step(p.w, node, n_node);
    *out = p.w;
    return SY_OK;
}

const struct pj_wentry *pj_weight(const struct sy_weights *w, const char *name)
{
    for (int i = 0; i < w->n_entry; i++)
        if (!strcmp(w->entry[i].name, name)) return &w->entry[i];
    sy_assert(!"a weight of another graph");
    return NULL;
}

void pj_weights_free(struct sy_weights *w)
{
    if (!w) return;
    const struct sy_env *env = w->arena.env;
    pj_buffers_free(w->b, w->buffer, w->n_arg * w->n_rank);
    sy_arena_release(&w->arena);
    sy_delete(env, w);
}

/* ---- loading ----------------------------------------------------------------------------------------------------
 */

struct loader {
    struct sy_backend *b;
    struct sy_weights *w;
    const struct sy_checkpoint *ckpt;
    bool *used;
    int32_t rank;
    unsigned char *stage[3];  /* data, scale, minimum of a segment, as the host holds them */
    float *row, *scale, *min; /* of a whole row */
    uint8_t *code;
    struct sy_err *err;
};

static const struct sy_tensor *tensor(struct loader *l, const char *name)
{
    const struct sy_tensor *t = find(l->ckpt, name, l->err);
    if (t) l->used[sy_checkpoint_index(l->ckpt, t)] = true;
    return t;
}

struct rows { /* of a part that a rank has */
    const struct sy_tensor *t;
    int64_t at, n;  /* in the segment */
    int64_t whole0; /* where the part begins in the whole weight */
};

/* The tensor's row that is the rank's row r of the part. */
static int64_t stored_row(const struct loader *l, const struct pj_wseg *s, const struct rows *x, int64_t r)
{
    bool whole = s->n_rank == 1 || s->by_in;
    if (!whole) {
        int32_t share = sy_share_of(&s->share, l->rank);
        r = sy_share_row(&s->share, s->n_own, share, s->own0 + x->at + r) - x->whole0;
    }
    return sy_regroup_row(&s->regroup, r);
}

/* The rank's rows of one part, as numbers. */
static void dense_part(struct loader *l, const struct pj_wseg *s, const struct rows *x)
{
    int64_t col = first_col(s, l->rank);
    bool f32 = l->w->type[s->arg].elem == PJ_F32;
    for (int64_t r = 0; r < x->n; r++) {
        size_t at = (size_t)((x->at + r) * s->cols);
        sy_tensor_floats(x->t, stored_row(l, s, x, r), l->row);
        float *full = (float *)(void *)l->stage[0] + at;
        uint16_t *half = (uint16_t *)(void *)l->stage[0] + at;
        if (f32) memcpy(full, l->row + col, (size_t)s->cols * sizeof *full);
        for (int64_t i = 0; !f32 && i < s->cols; i++) half[i] = sy_f32_to_bf16(l->row[col + i]);
    }
}

/* What is stored for each code byte of the format. */
static void code_table(const struct pj_wseg *s, uint8_t to[256])
{
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}; /* e2m1 by its bits */
    const int8_t *book = s->code == PJ_CODE_E2M1 ? twice : s->format->affine.codebook;
    for (int i = 0; i < 256; i++) to[i] = (uint8_t)(i - s->format->affine.zero);
    if (s->code == PJ_CODE_E4M3 || s->code == PJ_CODE_E5M2 || s->code == PJ_CODE_INT) return;
    for (int i = 15; i >= 0; i--) to[(uint8_t)(book[i] + s->format->affine.zero)] = (uint8_t)i;
}

/* Where group g of row r has its scale. */
static int64_t scale_place(const struct pj_wseg *s, int64_t r, int64_t g)
{
    int64_t n_group = s->cols / s->group, rows = pj_wseg_rows(s);
    int64_t wide = s->wide > 0 ? s->wide : s->stack;
    return wide > 0 ? (r / rows * n_group + g) * wide + r % rows : r * n_group + g;
}

static void put_codes(const struct pj_wseg *s, int64_t r, const uint8_t *code, const uint8_t to[256], uint8_t *out)
{
    if (s->wide == 0) {
        for (int64_t i = 0; i < s->cols; i++) out[r * s->cols + i] = to[code[i]];
        return;
    }
    out += r / pj_wseg_rows(s) * s->cols * s->wide + r % pj_wseg_rows(s);
    for (int64_t i = 0; i < s->cols; i++) out[i * s->wide] = to[code[i]];
}

static void coded_part(struct loader *l, const struct pj_wseg *s, const struct rows *x)
{
    int64_t n_group = s->cols / s->group, stored = s->format->f8_group ? s->format->f8_group : s->group;
    int64_t col = first_col(s, l->rank);
    float by = s->code == PJ_CODE_E2M1 ? 2 : 1; /* codes there are twice the numbers */
    uint8_t to[256];
    code_table(s, to);
    for (int64_t r = 0; r < x->n; r++) {
        int64_t from = stored_row(l, s, x, r);
        if (s->format->f8) sy_tensor_f8(x->t, from, l->code, l->scale);
        else sy_tensor_codes(x->t, from, l->code, l->scale, s->has_min ? l->min : NULL);
        put_codes(s, x->at + r, l->code + col, to, l->stage[0]);
        float *scale = (float *)(void *)l->stage[1], *min = (float *)(void *)l->stage[2];
        for (int64_t i = 0; i < n_group && s->has_scale; i++)
            scale[scale_place(s, x->at + r, i)] = by * l->scale[(col + i * s->group) / stored];
        for (int64_t i = 0; i < n_group && s->has_min; i++)
            min[scale_place(s, x->at + r, i)] = l->min[col / s->group + i];
    }
}

static void free_stage(struct loader *l)
{
    const struct sy_env *env = l->b->env;
    for (size_t k = 0; k < SY_COUNT(l->stage); k++) {
        sy_delete(env, l->stage[k]);
        l->stage[k] = NULL;
    }
    sy_delete(env, l->row);
    sy_delete(env, l->scale);
    sy_delete(env, l->min);
    sy_delete(env, l->code);
    l->row = l->scale = l->min = NULL;
    l->code = NULL;
}

static sy_status new_stage(struct loader *l, const struct pj_wentry *e, const struct pj_wseg *s, int n_arg)
{
    const struct sy_env *env = l->b->env;
    size_t cols = (size_t)(s->cols * (s->by_in ? s->n_rank : 1));
    bool ok = true;
    for (int k = 0; k < n_arg; k++) {
        l->stage[k] = sy_new(env, (size_t)pj_type_bytes(&l->w->type[s->arg + k]));
        ok = ok && l->stage[k];
    }
    l->row = sy_new_array(env, cols, sizeof *l->row);
    l->scale = sy_new_array(env, cols, sizeof *l->scale);
    l->min = sy_new_array(env, cols, sizeof *l->min);
    l->code = sy_new_array(env, cols, sizeof *l->code);
    ok = ok && l->row && l->scale && l->min && l->code;
    return ok ? SY_OK : sy_fail(l->err, SY_ENOMEM, "no memory to load '%s'", e->name);
}

static sy_status upload(struct loader *l, int arg, const void *data)
{
    struct sy_weights *w = l->w;
    return pj_upload(&l->b->client, l->rank, &w->type[arg], data, &w->buffer[l->rank * w->n_arg + arg], l->err);
}

/* The parts that a rank has, from the first on, of the n that each has; its stage. A rank without a share has none.
 */
struct own {
    int32_t share, stage;
    int first;
};
static struct own own_parts(const struct loader *l, const struct sy_share *s, int n, bool by_part)
{
    struct own o = {.share = sy_share_of(s, l->rank), .stage = s->stage > 0 ? l->rank / s->stage : 0};
    o.first = by_part && o.share > 0 ? o.share * n : 0;
    return o;
}

static sy_status load_parts(struct loader *l, const struct pj_wentry *e, const struct pj_wseg *s)
{
    char name[300];
    struct rows x = {.whole0 = s->whole0};
    struct own own = own_parts(l, &s->share, s->n_part, s->n_rank == 1 && s->share.n > 0);
    sy_status st = SY_OK;
    for (int k = 0; k < 3 && l->stage[k] && own.share < 0; k++)
        memset(l->stage[k], 0, (size_t)pj_type_bytes(&l->w->type[s->arg + k]));
    for (int i = 0; !st && i < s->n_part; i++) {
        (void)part_name(e->name, own.stage, s->part0 + own.first + i, name, sizeof name);
        x.t = tensor(l, name);
        if (!x.t) st = l->err->code;
        if (st || own.share < 0) continue;
        x.n = part_rows(s, s->own0 + x.at, x.whole0, x.t->dim[0]);
        if (s->kind == PJ_DENSE) dense_part(l, s, &x);
        else coded_part(l, s, &x);
        x.at += x.n;
        x.whole0 += x.t->dim[0];
    }
    return st;
}

static sy_status load_seg(struct loader *l, const struct pj_wentry *e, const struct pj_wseg *s)
{
    int n_arg = seg_n_arg(s);
    sy_status st = new_stage(l, e, s, n_arg);
    for (l->rank = 0; !st && l->rank < l->w->n_rank; l->rank++) {
        st = load_parts(l, e, s);
        for (int k = 0; !st && k < n_arg; k++) st = upload(l, s->arg + k, l->stage[k]);
    }
    free_stage(l);
    return st;
}

/* The rank's columns of one part; *at: where they begin, *whole: where the part begins in the whole. */
static sy_status vector_part(struct loader *l, const struct pj_wentry *e, const struct sy_tensor *t, float *raw,
                             float *vec, int64_t *at, int64_t *whole)
{
    int32_t share = sy_share_of(&e->share, l->rank);
    int64_t d = sy_tensor_flat_len(t, e->flat), n = d * e->repeat, mine = n;
    if (e->n_rank > 1) mine = rows_below(&e->share, e->cols, share, *at, *whole + n);
    if (d == 0 || mine > e->cols - *at || n > e->cols * e->n_rank || d % t->format->block_len)
        return wrong_shape(t, 1, (e->cols - *at) / e->repeat, l->err);
    int64_t cols = t->dim[t->n_dim - 1];
    for (int64_t r = 0; r < d / cols; r++) sy_tensor_floats(t, r, raw + r * cols);
    for (int64_t k = 0; k < mine; k++) {
        int64_t i = e->n_rank > 1 ? sy_share_row(&e->share, e->cols, share, *at + k) - *whole : k;
        i /= e->repeat;
        vec[*at + k] = sy_weight_value(e->map, t, raw[t->n_dim > 1 ? i : sy_tensor_row(t, i)]);
    }
    *at += mine;
    *whole += n;
    return SY_OK;
}

static sy_status load_vector(struct loader *l, const struct pj_wentry *e)
{
    char name[300];
    float *vec = sy_new_array(l->b->env, (size_t)e->cols, sizeof *vec);
    float *raw = sy_new_array(l->b->env, (size_t)e->cols * (size_t)e->n_rank, sizeof *raw); /* any part at most */
    sy_status st = vec && raw ? SY_OK : sy_fail(l->err, SY_ENOMEM, "no memory to load '%s'", e->name);
    int64_t at = 0, whole = 0;
    bool by_part = e->n_rank == 1 && e->share.n > 0;
    int n = count_parts(e->name) / (by_part ? e->share.n : 1);
    struct own own = own_parts(l, &e->share, n, by_part);
    for (int i = 0; !st && i < n; i++) {
        (void)part_name(e->name, own.stage, own.first + i, name, sizeof name);
        const struct sy_tensor *t = tensor(l, name);
        if (!t) st = l->err->code;
        else if (own.share >= 0) st = vector_part(l, e, t, raw, vec, &at, &whole);
    }
    if (own.share < 0) at = e->cols; /* zeros */
    else if (!st && e->n_rank > 1 && whole != sy_share_whole(&e->share, e->cols)) at = whole;
    if (!st && at != e->cols)
        st = sy_fail(l->err, SY_ESHAPE, "'%s': expected %lld values, found %lld", e->name,
                     (long long)(e->cols / e->repeat), (long long)(at / e->repeat));
    if (!st) st = upload(l, e->vec, vec);
    sy_delete(l->b->env, vec);
    sy_delete(l->b->env, raw);
    return st;
}

sy_status pj_weights_load(struct sy_backend *b, struct sy_weights *w, const struct sy_checkpoint *ckpt,
                          struct sy_err *err)
{
    struct sy_err own = {0};
    struct loader l = {.b = b, .w = w, .ckpt = ckpt, .err = err ? err : &own};
    w->b = b;
    l.used = sy_new_array(b->env, sy_checkpoint_count(ckpt) + 1, sizeof *l.used);
    if (!l.used) return sy_fail(err, SY_ENOMEM, "no memory for the table of weights");
    sy_status st = SY_OK;
    for (int i = 0; i < w->n_entry && !st; i++) {
        const struct pj_wentry *e = &w->entry[i];
        for (int s = 0; s < e->n_seg && !st; s++) st = load_seg(&l, e, &e->seg[s]);
        for (l.rank = 0; l.rank < w->n_rank && !st && e->vec >= 0; l.rank++) st = load_vector(&l, e);
        if (b->opt.progress) b->opt.progress(b->opt.progress_ctx, (double)(i + 1) / w->n_entry);
    }
    if (!st) st = sy_checkpoint_check_extra(ckpt, l.used, err);
    sy_delete(b->env, l.used);
    return st;
}
