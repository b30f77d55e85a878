/* shard_lay.c - how ranks share the columns of a product: what reads them, through ops that keep columns where they
 * are, says where parts begin and which columns are a head. */
#include "graph/shard_int.h"

enum { DEEP = 24, BOUNDS = 2 * SY_SHARE_PARTS + 2 };

struct reads {
    const struct pass *p;
    int32_t n_rank;
    int32_t bound[BOUNDS];
    int n_bound, n_head;
    struct {
        int32_t lo, hi, unit;
    } head[2 * SY_SHARE_PARTS];
    bool whole; /* cannot be shared */
};

int64_t sy_shard_rows(int64_t rows, int32_t n_rank, int32_t unit)
{
    int64_t each = rows / n_rank;
    return each > unit ? each : unit;
}

int64_t sy_shard_first(int64_t rows, int32_t n_rank, int32_t unit, int32_t rank)
{
    int64_t each = sy_shard_rows(rows, n_rank, unit), shares = rows / each;
    return rank * shares / n_rank * each;
}

int64_t sy_share_row(const struct sy_share *s, int64_t n_own, int32_t share, int64_t row)
{
    if (s->n_part == 0) return share * n_own + row;
    int64_t whole = 0;
    for (int32_t i = 0; i < s->n_part; i++) {
        int64_t own = sy_shard_rows(s->part[i].rows, s->n, s->part[i].unit);
        if (row < own) return whole + sy_shard_first(s->part[i].rows, s->n, s->part[i].unit, share) + row;
        row -= own;
        whole += s->part[i].rows;
    }
    return whole;
}

int64_t sy_share_whole(const struct sy_share *s, int64_t n_own)
{
    int64_t n = s->n_part == 0 && s->n > 0 ? n_own * s->n : s->n_part == 0 ? n_own : 0;
    for (int32_t i = 0; i < s->n_part; i++) n += s->part[i].rows;
    return n;
}

int32_t shard_part_columns(struct sy_share_part part, int32_t n_rank)
{
    return (int32_t)sy_shard_rows(part.rows, n_rank, part.unit);
}

int32_t shard_columns(const struct lay *l, int32_t n_rank)
{
    int32_t n = 0;
    for (int32_t i = 0; i < l->n; i++) n += shard_part_columns(l->part[i], n_rank);
    return n;
}

/* Rows can be given to ranks: evenly, or (fewer units than ranks) each to as many ranks. */
static bool divides(int64_t rows, int32_t n, int32_t unit)
{
    int64_t each = sy_shard_rows(rows, n, unit);
    return rows % each == 0 && each % unit == 0 && n % (rows / each) == 0 && (rows / each == n || each == unit);
}

static void add_bound(struct reads *r, int32_t at)
{
    int i = 0;
    while (i < r->n_bound && r->bound[i] < at) i++;
    if (i < r->n_bound && r->bound[i] == at) return;
    if (r->n_bound == BOUNDS) {
        r->whole = true;
        return;
    }
    for (int k = r->n_bound++; k > i; k--) r->bound[k] = r->bound[k - 1];
    r->bound[i] = at;
}

static void add_heads(struct reads *r, int32_t lo, int64_t columns, int32_t n)
{
    if (r->n_head == (int)SY_COUNT(r->head) || columns % n) {
        r->whole = true;
        return;
    }
    r->head[r->n_head].lo = lo;
    r->head[r->n_head].hi = lo + (int32_t)columns;
    r->head[r->n_head++].unit = (int32_t)(columns / n);
}

/* Heads are divided among ranks; groups that several heads share may be held by several ranks. */
static bool heads_divide(int32_t n_head, int32_t n_group, int32_t n_rank)
{
    return n_head % n_rank == 0 && (n_group % n_rank == 0 || n_rank % n_group == 0);
}

static bool is_constant(const struct pass *p, sy_val v) { return p->node[v.id].op == SY_OP_CONST; }

/* Operand k of node i is columns of the product from base on. True: what it gives has them in the same places. */
static bool read_by(struct reads *r, uint32_t i, int k, int32_t base)
{
    const struct pass *p = r->p;
    const struct sy_node *n = &p->node[i];
    int64_t columns = p->node[n->in[k].id].dim[1];
    bool ok = true;
    int32_t n_head = 0;
    switch (n->op) {
    case SY_OP_PART:
        add_bound(r, base + n->attr.part.lo);
        add_bound(r, base + n->attr.part.hi);
        return true;
    case SY_OP_NORM:
    case SY_OP_ROPE:
    case SY_OP_ACT:
    case SY_OP_SCALE:
    case SY_OP_SOFTCAP:
    case SY_OP_TEMPER:
    case SY_OP_CONV: return k == 0;
    case SY_OP_GLU:
    case SY_OP_ADD:
    case SY_OP_MUL: r->whole = r->whole || columns != n->dim[1]; return !r->whole;
    case SY_OP_ATTEND:
        ok = heads_divide(n->attr.attn.n_head, n->attr.attn.n_kv, r->n_rank);
        n_head = k == 0 ? n->attr.attn.n_head : k < 3 ? n->attr.attn.n_kv : 0;
        break;
    case SY_OP_HEADS:
        ok = n->attr.heads.n_head % r->n_rank == 0;
        n_head = k == 0 ? n->attr.heads.n_head : 0;
        break;
    case SY_OP_SCAN:
        ok = heads_divide(n->attr.scan.n_val, n->attr.scan.n_key, r->n_rank) && !is_constant(p, n->in[3]);
        n_head = k < 2 ? n->attr.scan.n_key : n->attr.scan.n_val;
        break;
    case SY_OP_INDEX: ok = false; break;
    default: return false;
    }
    if (n_head > 0) add_heads(r, base, columns, n_head);
    r->whole = r->whole || !ok;
    return false;
}

static void follow(struct reads *r, uint32_t id, int32_t base, int depth)
{
    const struct sy_node *node = r->p->node;
    for (uint32_t i = id + 1; i < r->p->n_node && !r->whole; i++) {
        if (node[id].layer >= 0 && node[i].layer > node[id].layer) return;
        for (int k = 0; k < (int)SY_COUNT(node[i].in); k++)
            if (node[i].in[k].id == id && read_by(r, i, k, base) && depth < DEEP)
                follow(r, i, node[i].op == SY_OP_PART ? base + node[i].attr.part.lo : base, depth + 1);
    }
}

/* The unit of columns [lo, hi): single ones unless they are heads. 0: heads lie across the bounds. */
static int32_t unit_of(const struct reads *r, int32_t lo, int32_t hi)
{
    int32_t unit = 1;
    for (int i = 0; i < r->n_head; i++) {
        if (hi <= r->head[i].lo || lo >= r->head[i].hi) continue;
        if ((lo - r->head[i].lo) % r->head[i].unit || (hi - lo) % r->head[i].unit) return 0;
        if (r->head[i].unit > unit) unit = r->head[i].unit;
    }
    return unit;
}

bool shard_lay_out(const struct pass *p, uint32_t id, int32_t n, struct lay *out)
{
    struct reads r = {.p = p, .n_rank = n};
    add_bound(&r, 0);
    add_bound(&r, (int32_t)p->node[id].dim[1]);
    follow(&r, id, 0, 0);
    if (r.whole || r.n_bound - 1 > SY_SHARE_PARTS) return false;
    *out = (struct lay){.n = r.n_bound - 1};
    for (int i = 0; i < out->n; i++) {
        int32_t rows = r.bound[i + 1] - r.bound[i], unit = unit_of(&r, r.bound[i], r.bound[i + 1]);
        if (unit == 0 || rows % unit || !divides(rows, n, unit)) return false;
        out->part[i] = (struct sy_share_part){rows, unit};
    }
    return true;
}

bool shard_is_read_by_heads(const struct pass *p, uint32_t id)
{
    struct reads r = {.p = p, .n_rank = 1};
    follow(&r, id, 0, 0);
    return r.n_head > 0 || r.whole;
}
