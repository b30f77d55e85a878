/* delta_chunk.c - the gated delta rule over pieces of 64 tokens. A round is `side` pieces of one unit's heads,
 * through two buffers each way. What does not depend on the state is done for all of a round before what does, and
 * the text takes all pairs of heads through each step before the next one: products wait for one another. */
#include "backend/pjrt/mosaic/kernels.h"

enum { D = 128, C = 64, SIDE_MAX = 4, PAIRS_MAX = 4, BETA = 8 };
enum { Q, K, V, GATES, INPUTS };
#define NEVER (-1.0e30) /* a decay to what is yet to come */

struct pair { /* values of two heads of a piece, [D, D] */
    int beta, a, p, x, xb, u, w, q, vn, qs, s[2], left, kept[2];
};
struct key {
    int kk, qk, k, q, kt; /* products of keys with keys and queries; keys and queries, twice each; keys in columns */
};
struct gates { /* of a piece, [C, D] but for the last: log decays and beta, their sums, e to these, sums in rows */
    int all, sum, grown, turned;
};
struct chunk {
    struct mosaic *m;
    const struct mo_chunk *a;
    int32_t n_unit, keys, pairs;
    int read, write, live, state, in[INPUTS], state_out, y; /* operands; queries, keys and values lie in one */
    int buf[INPUTS], ybuf, now, sbuf, wbuf;                 /* scratch; now: the states in work */
    int insem[INPUTS], ysem, ssem, wsem;
    int rounds;                                         /* i32: of a unit */
    int zero, never, upto, below, eye, first, level[6]; /* [D, D]; first: columns of the first head */
    enum mo_elem elem;
    int ones, first_line; /* [C, C] bf16, up to each token; [1, D]: the first head's */
    struct mo_type whole, half, line;
    struct gates gates[SIDE_MAX];
    struct pair pair[SIDE_MAX][PAIRS_MAX];
    struct key key[SIDE_MAX][8];
};
struct place { /* i32 values */
    int unit, chunk, slot;
};

static int op(struct chunk *x, const char *name, int a, int b) { return mo_binary(x->m, name, a, b); }
static int num(struct chunk *x, int32_t n) { return mo_i32(x->m, n); }
static int times(struct chunk *x, int a, int b) { return op(x, "arith.mulf", a, b); }
static int small(struct chunk *x, int a) { return mo_convert(x->m, a, MO_BF16); }
static int where(struct chunk *x, int mask, int a) { return mo_select(x->m, mask, a, x->zero); }
static int product(struct chunk *x, int a, int b) { return mo_product(x->m, a, b, false, x->zero); }

static void declare(struct chunk *x)
{
    struct mosaic *m = x->m;
    const struct mo_chunk *a = x->a;
    x->read = mo_prefetch(m, a->n_chunk);
    x->write = mo_prefetch(m, a->n_chunk);
    x->live = mo_prefetch(m, 1);
    x->state = mo_input(m, MO_TYPE(MO_HBM, x->elem, a->n_slot, a->n_val, D, D));
    x->in[Q] = x->in[K] = x->in[V] =
        mo_input(m, MO_TYPE(MO_HBM, MO_BF16, a->n_chunk, C, (2 * a->n_key + a->n_val) * D));
    x->in[GATES] = mo_input(m, MO_TYPE(MO_HBM, MO_F32, a->n_chunk, C, x->n_unit * D));
    x->state_out = mo_output_in(m, x->state);
    x->y = mo_output(m, MO_TYPE(MO_HBM, MO_F32, a->n_chunk, C, a->n_val * D));
    for (int i = 0; i < GATES; i++)
        x->buf[i] = mo_scratch(m, MO_TYPE(MO_VMEM, MO_BF16, 2, a->side, C, (i == V ? a->unit : x->keys) * D));
    x->buf[GATES] = mo_scratch(m, MO_TYPE(MO_VMEM, MO_F32, 2, a->side, C, D));
    x->ybuf = mo_scratch(m, MO_TYPE(MO_VMEM, MO_F32, 2, a->side, C, a->unit * D));
    x->now = mo_scratch(m, MO_TYPE(MO_VMEM, MO_F32, a->unit, D, D));
    x->sbuf = mo_scratch(m, MO_TYPE(MO_VMEM, x->elem, a->unit, D, D));
    x->wbuf = mo_scratch(m, MO_TYPE(MO_VMEM, x->elem, a->unit, D, D));
    for (int i = 0; i < INPUTS; i++) x->insem[i] = mo_scratch(m, MO_TYPE(MO_SEMAPHORES, MO_SEM, 2));
    x->ysem = mo_scratch(m, MO_TYPE(MO_SEMAPHORES, MO_SEM, 2));
    x->ssem = mo_scratch(m, MO_TYPE(MO_SEMAPHORES, MO_SEM, 1));
    x->wsem = mo_scratch(m, MO_TYPE(MO_SEMAPHORES, MO_SEM, 1));
}

static void masks(struct chunk *x)
{
    struct mosaic *m = x->m;
    struct mo_type places = MO_VEC(MO_I32, D, D);
    int row = mo_iota(m, places, 0), column = mo_iota(m, places, 1), far = op(x, "arith.xori", row, column);
    int same = mo_compare(m, "slt", far, mo_splat(m, places, C)); /* of one head */
    x->zero = mo_splat(m, x->whole, 0);
    x->never = mo_splat(m, x->whole, NEVER);
    x->upto = op(x, "arith.andi", same, mo_compare(m, "sge", row, column));
    x->below = op(x, "arith.andi", same, mo_compare(m, "sgt", row, column));
    x->eye = mo_compare(m, "eq", row, column);
    x->first = mo_compare(m, "slt", column, mo_splat(m, places, C));
    struct mo_type square = MO_VEC(MO_I32, C, C), line = MO_VEC(MO_I32, 1, D), one = MO_VEC(MO_F32, C, C);
    int upto = mo_compare(m, "sge", mo_iota(m, square, 0), mo_iota(m, square, 1));
    x->ones = small(x, mo_select(m, upto, mo_splat(m, one, 1), mo_splat(m, one, 0)));
    x->first_line = mo_compare(m, "slt", mo_iota(m, line, 1), mo_splat(m, line, C));
    for (int i = 0; i < 6; i++) { /* blocks of 2^i meet */
        int from = mo_compare(m, "sge", far, mo_splat(m, places, 1 << i));
        x->level[i] = op(x, "arith.andi", from, mo_compare(m, "slt", far, mo_splat(m, places, 2 << i)));
    }
}

/* ---- transfers --------------------------------------------------------------------------------------------------
 */

static struct place place_of(struct chunk *x, int round)
{
    struct place p = {.unit = num(x, 0), .slot = op(x, "arith.andi", round, num(x, 1))};
    if (x->n_unit > 1) {
        p.unit = op(x, "arith.divsi", round, x->rounds);
        round = op(x, "arith.remsi", round, x->rounds);
    }
    p.chunk = mo_times(x->m, round, x->a->side);
    return p;
}

/* `heads` heads of a round's pieces from head `first` (of unit 0) on: a unit's columns of an array by token. */
static int columns_of(struct chunk *x, int array, const struct place *p, int32_t first, int32_t heads,
                      enum mo_elem elem)
{
    struct mosaic *m = x->m;
    int from = mo_add(m, mo_times(m, p->unit, heads * D), num(x, first * D));
    const int at[] = {p->chunk, -1, mo_multiple(m, from, D)};
    return mo_part(m, array, at, MO_TYPE(MO_HBM, elem, x->a->side, C, heads * D), 0);
}

static void come(struct chunk *x, bool start, const struct place *p)
{
    struct mosaic *m = x->m;
    const int32_t first[] = {0, x->a->n_key, 2 * x->a->n_key, 0}, heads[] = {x->keys, x->keys, x->a->unit, 1};
    for (int i = 0; i < INPUTS; i++) {
        int far = columns_of(x, x->in[i], p, first[i], heads[i], i < GATES ? MO_BF16 : MO_F32);
        (start ? mo_copy_start : mo_copy_wait)(m, far, MO_AT(m, x->buf[i], p->slot), MO_AT(m, x->insem[i], p->slot));
    }
}

static void leave(struct chunk *x, bool start, const struct place *p)
{
    struct mosaic *m = x->m;
    int far = columns_of(x, x->y, p, 0, x->a->unit, MO_F32);
    (start ? mo_copy_start : mo_copy_wait)(m, MO_AT(m, x->ybuf, p->slot), far, MO_AT(m, x->ysem, p->slot));
}

static int heads_of(struct chunk *x, int array, int slot, int unit)
{
    struct mo_type t = MO_TYPE(MO_HBM, x->elem, 1, x->a->unit, D, D);
    const int at[] = {slot, mo_times(x->m, unit, x->a->unit), -1, -1};
    return mo_part(x->m, array, at, t, 1);
}

static void written(struct chunk *x)
{
    int zero = num(x, 0);
    mo_copy_wait(x->m, x->wbuf, heads_of(x, x->state_out, zero, zero), MO_AT(x->m, x->wsem, zero));
}

/* One array of states to another, head by head. */
static void take_over(struct chunk *x, int from, int to, enum mo_elem elem)
{
    struct mosaic *m = x->m;
    enum mo_elem was = from == x->now ? MO_F32 : x->elem;
    int h = mo_for(m, num(x, 0), num(x, x->a->unit), NULL, 0);
    int s = from < 0 ? mo_splat(m, MO_VEC(elem, 1, D, D), 0)
                     : mo_convert(m, mo_load(m, from, (const int[]){h, -1, -1}, MO_VEC(was, 1, D, D)), elem);
    mo_store(m, to, (const int[]){h, -1, -1}, s);
    mo_for_end(m, NULL, NULL, 0);
}

/* The state that a piece begins with, where it is not the one in work. */
static void begin(struct chunk *x, int chunk, int unit, int pending)
{
    struct mosaic *m = x->m;
    int from = mo_get(m, x->read, chunk), zero = num(x, 0), sem = MO_AT(m, x->ssem, zero);
    mo_if(m, mo_compare(m, "sge", from, zero));
    mo_if(m, mo_compare(m, "sgt", pending, zero)); /* it may be what the sequence before leaves */
    written(x);
    mo_if_end(m);
    mo_copy_start(m, heads_of(x, x->state, from, unit), x->sbuf, sem);
    mo_copy_wait(m, heads_of(x, x->state, from, unit), x->sbuf, sem);
    take_over(x, x->sbuf, x->now, MO_F32);
    mo_if_end(m);
    mo_if(m, mo_compare(m, "eq", from, num(x, -1)));
    take_over(x, -1, x->now, MO_F32);
    mo_if_end(m);
}

/* Whether states are on their way back, after begin(). */
static int still(struct chunk *x, int chunk, int pending)
{
    int from = mo_get(x->m, x->read, chunk), zero = num(x, 0);
    return mo_select(x->m, mo_compare(x->m, "sge", from, zero), zero, pending);
}

/* Sends the states back behind a sequence's last piece; whether they are on their way then. */
static int end(struct chunk *x, int chunk, int unit, int pending)
{
    struct mosaic *m = x->m;
    int to = mo_get(m, x->write, chunk), zero = num(x, 0), last = mo_compare(m, "sge", to, zero);
    mo_if(m, last);
    mo_if(m, mo_compare(m, "sgt", pending, zero));
    written(x);
    mo_if_end(m);
    take_over(x, x->now, x->wbuf, x->elem);
    mo_copy_start(m, x->wbuf, heads_of(x, x->state_out, to, unit), MO_AT(m, x->wsem, zero));
    mo_if_end(m);
    return mo_select(m, last, num(x, 1), pending);
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------
 */

/* A head's queries, keys or values of a piece, or (head 0) its gates: [C, D]. */
static int load(struct chunk *x, int i, const struct place *p, int32_t piece, int32_t head)
{
    const int at[] = {p->slot, num(x, piece), -1, num(x, head * D)};
    enum mo_elem e = i < GATES ? MO_BF16 : MO_F32;
    return MO_RESHAPE(x->m, mo_load(x->m, x->buf[i], at, MO_VEC(e, 1, 1, C, D)), C, D);
}

/* Sums of log decays up to each token, in f32: of three bf16 parts, which hold all digits, in products with
 * ones. Heads lie in columns, and once turned in rows, twice. */
static void gates(struct chunk *x, const struct place *p, int32_t piece)
{
    struct mosaic *m = x->m;
    struct gates *g = &x->gates[piece];
    int rest = g->all = load(x, GATES, p, piece, 0);
    g->sum = mo_splat(m, x->half, 0);
    for (int i = 0; i < 3; i++) {
        int part = small(x, rest);
        g->sum = mo_product(m, x->ones, part, false, g->sum);
        rest = op(x, "arith.subf", rest, mo_convert(m, part, MO_F32));
    }
    g->grown = mo_unary(m, "math.exp", g->sum);
    g->turned = mo_transpose(m, mo_concat(m, g->sum, g->sum, 0));
}

/* A column for each head of a pair, the first at `at`, everywhere. */
static int column(struct chunk *x, int of, int32_t at)
{
    int side[2];
    for (int i = 0; i < 2; i++) side[i] = mo_broadcast(x->m, mo_columns(x->m, of, at + i, 1), x->half);
    return mo_concat(x->m, side[0], side[1], 0);
}

/* A row of sums for each head of a pair, 64 each; in last the last of each, everywhere. */
static int sums_of(struct chunk *x, int32_t piece, int32_t pair, int last[2])
{
    struct mosaic *m = x->m;
    int r[2];
    for (int32_t k = 0; k < 2; k++) {
        r[k] = mo_rows(m, x->gates[piece].turned, 2 * pair + k, 1);
        last[k] = mo_broadcast(m, mo_columns(m, r[k], C - 1, 1), x->line);
    }
    return mo_select(m, x->first_line, r[0], r[1]);
}

/* Queries or keys [C, D] divided by the root of their mean square, and scaled. */
static int normed(struct chunk *x, int v, float scale)
{
    struct mosaic *m = x->m;
    struct mo_type column = MO_VEC(MO_F32, C, 1);
    if (!x->a->norm) return v;
    v = mo_convert(m, v, MO_F32);
    int mean = times(x, mo_reduce(m, "add", times(x, v, v), 1), mo_splat(m, column, 1.0 / D));
    int root = mo_unary(m, "math.rsqrt", op(x, "arith.addf", mean, mo_splat(m, column, (double)x->a->eps)));
    root = times(x, root, mo_splat(m, column, (double)scale));
    return small(x, times(x, v, mo_broadcast(m, root, x->half)));
}

static void keys(struct chunk *x, const struct place *p, int32_t piece)
{
    struct mosaic *m = x->m;
    for (int32_t j = 0; j < x->keys; j++) {
        struct key *k = &x->key[piece][j];
        int q = normed(x, load(x, Q, p, piece, j), x->a->q_scale);
        int key = normed(x, load(x, K, p, piece, j), x->a->k_scale);
        q = mo_concat(m, q, q, 0);
        key = mo_concat(m, key, key, 0);
        k->kk = mo_product(m, key, key, true, x->zero);
        k->qk = mo_product(m, q, key, true, x->zero);
        k->k = mo_convert(m, key, MO_F32);
        k->q = mo_convert(m, q, MO_F32);
        k->kt = mo_transpose(m, k->k);
    }
}

static const struct key *key_of(const struct chunk *x, int32_t piece, int32_t pair)
{
    return &x->key[piece][2 * pair / (x->a->unit / x->keys)];
}

static void weights(struct chunk *x, int32_t piece, int32_t i)
{
    struct pair *p = &x->pair[piece][i];
    const struct key *k = key_of(x, piece, i);
    const struct gates *g = &x->gates[piece];
    int last[2], row = sums_of(x, piece, i, last);
    int d = op(x, "arith.subf", column(x, g->sum, 2 * i), mo_broadcast(x->m, row, x->whole));
    d = mo_unary(x->m, "math.exp", mo_select(x->m, x->upto, d, x->never));
    p->beta = column(x, g->all, BETA + 2 * i);
    p->a = where(x, x->below, times(x, times(x, k->kk, d), p->beta));
    p->p = small(x, times(x, k->qk, d));
    int one = mo_select(x->m, x->eye, mo_splat(x->m, x->whole, 1), x->zero);
    p->x = op(x, "arith.subf", one, where(x, x->level[0], p->a));
    int to_last = op(x, "arith.subf", mo_select(x->m, x->first_line, last[0], last[1]), row);
    p->left = mo_broadcast(x->m, mo_unary(x->m, "math.exp", to_last), x->whole);
    for (int h = 0; h < 2; h++) p->kept[h] = mo_broadcast(x->m, mo_unary(x->m, "math.exp", last[h]), x->whole);
}

static void apply(struct chunk *x, const struct place *at, int32_t piece, int32_t i)
{
    struct pair *p = &x->pair[piece][i];
    const struct key *k = key_of(x, piece, i);
    int grown = column(x, x->gates[piece].grown, 2 * i), inverse = small(x, p->x);
    int v = mo_concat(x->m, load(x, V, at, piece, 2 * i), load(x, V, at, piece, 2 * i + 1), 0);
    v = mo_convert(x->m, v, MO_F32);
    p->u = product(x, inverse, small(x, times(x, v, p->beta)));
    p->w = product(x, inverse, small(x, times(x, k->k, times(x, p->beta, grown))));
    p->q = times(x, k->q, grown);
}

/* What a pair's states hold already. */
static void ask(struct chunk *x, int32_t piece, int32_t i)
{
    struct mosaic *m = x->m;
    struct pair *p = &x->pair[piece][i];
    int part[2];
    for (int32_t k = 0; k < 2; k++) {
        int both = mo_concat(m, mo_rows(m, p->w, C * k, C), mo_rows(m, p->q, C * k, C), 0);
        const int at[] = {num(x, 2 * i + k), -1, -1};
        p->s[k] = MO_RESHAPE(m, mo_load(m, x->now, at, MO_VEC(MO_F32, 1, D, D)), D, D);
        part[k] = product(x, small(x, both), small(x, p->s[k]));
    }
    int known = mo_concat(m, mo_rows(m, part[0], 0, C), mo_rows(m, part[1], 0, C), 0);
    p->qs = mo_concat(m, mo_rows(m, part[0], C, C), mo_rows(m, part[1], C, C), 0);
    p->vn = small(x, op(x, "arith.subf", p->u, known));
}

static void add(struct chunk *x, const struct place *at, int32_t piece, int32_t i)
{
    struct mosaic *m = x->m;
    struct pair *p = &x->pair[piece][i];
    int y = mo_product(m, p->p, p->vn, false, p->qs);
    for (int32_t k = 0; k < 2; k++) {
        const int to[] = {at->slot, num(x, piece), -1, num(x, (2 * i + k) * D)};
        mo_store(m, x->ybuf, to, MO_RESHAPE(m, mo_rows(m, y, C * k, C), 1, 1, C, D));
    }
    int left = times(x, key_of(x, piece, i)->kt, p->left);
    for (int32_t k = 0; k < 2; k++) {
        int own = k ? mo_select(m, x->first, x->zero, left) : where(x, x->first, left);
        int kept = times(x, p->s[k], p->kept[k]);
        int s = mo_product(m, small(x, own), p->vn, false, kept);
        mo_store(m, x->now, (const int[]){num(x, 2 * i + k), -1, -1}, MO_RESHAPE(m, s, 1, D, D));
    }
}

static void invert(struct chunk *x, int level)
{
    int32_t n = x->a->side * x->pairs;
    for (int32_t k = 0; k < n; k++) {
        struct pair *p = &x->pair[k / x->pairs][k % x->pairs];
        p->xb = small(x, p->x);
        p->qs = small(x, product(x, small(x, where(x, x->level[level], p->a)), p->xb));
    }
    for (int32_t k = 0; k < n; k++) {
        struct pair *p = &x->pair[k / x->pairs][k % x->pairs];
        p->x = op(x, "arith.subf", p->x, product(x, p->xb, p->qs));
    }
}

static int one_round(struct chunk *x, const struct place *p, int pending)
{
    int32_t side = x->a->side, n = side * x->pairs;
    for (int32_t i = 0; i < side; i++) keys(x, p, i);
    for (int32_t i = 0; i < side; i++) gates(x, p, i);
    for (int32_t k = 0; k < n; k++) weights(x, k / x->pairs, k % x->pairs);
    for (int level = 1; level < 6; level++) invert(x, level);
    for (int32_t k = 0; k < n; k++) apply(x, p, k / x->pairs, k % x->pairs);
    for (int32_t i = 0; i < side; i++) {
        int chunk = mo_add(x->m, p->chunk, num(x, i));
        begin(x, chunk, p->unit, pending);
        pending = still(x, chunk, pending);
        for (int32_t k = 0; k < x->pairs; k++) ask(x, i, k);
        for (int32_t k = 0; k < x->pairs; k++) add(x, p, i, k);
        pending = end(x, chunk, p->unit, pending);
    }
    return pending;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------
 */

static void guarded(struct chunk *x, const char *how, int a, int b, int round,
                    void (*f)(struct chunk *, bool, const struct place *), bool start)
{
    mo_if(x->m, mo_compare(x->m, how, a, b));
    struct place p = place_of(x, round);
    f(x, start, &p);
    mo_if_end(x->m);
}

void mo_chunk(struct mosaic *m, const struct mo_chunk *a)
{
    struct chunk x = {.m = m, .a = a, .n_unit = a->n_val / a->unit, .elem = a->bf16 ? MO_BF16 : MO_F32};
    x.keys = a->n_key / x.n_unit;
    x.pairs = a->unit / 2;
    x.whole = MO_VEC(MO_F32, D, D);
    x.half = MO_VEC(MO_F32, C, D);
    x.line = MO_VEC(MO_F32, 1, D);
    sy_assert(a->unit <= 8 && a->unit / x.keys % 2 == 0 && a->n_chunk % a->side == 0 && a->side <= SIDE_MAX);
    declare(&x);
    masks(&x);
    int zero = num(&x, 0), one = num(&x, 1), two = num(&x, 2);
    x.rounds = mo_over_up(m, mo_get(m, x.live, zero), a->side);
    int n = mo_times(m, x.rounds, x.n_unit), pending = zero;
    guarded(&x, "sgt", n, zero, zero, come, true);
    int i = mo_for(m, zero, n, &pending, 1);
    guarded(&x, "sge", i, two, mo_sub(m, i, two), leave, false);
    int next = mo_add(m, i, one);
    guarded(&x, "slt", next, n, next, come, true);
    struct place p = place_of(&x, i);
    come(&x, false, &p);
    int after = one_round(&x, &p, pending);
    leave(&x, true, &p);
    mo_for_end(m, &after, &pending, 1);
    for (int32_t back = 2; back > 0; back--) {
        int last = mo_sub(m, n, num(&x, back));
        guarded(&x, "sge", last, zero, last, leave, false);
    }
    mo_if(m, mo_compare(m, "sgt", pending, zero));
    written(&x);
    mo_if_end(m);
}
