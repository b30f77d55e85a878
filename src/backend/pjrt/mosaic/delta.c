/* delta.c - one token of each sequence through convolution and gated delta rule. A round is `side` units: several of
 * one sequence, or all of several. Rounds go through a ring: round i + ahead is asked for when what stood in its
 * place before, round i - 2, has been written back. States stay f32: k and q lie along rows as their state's keys do,
 * so that products with it are sums over rows of the vector unit, of which a round takes less time than its bytes. */
#include "backend/pjrt/mosaic/kernels.h"

enum { D = 128, BACK = 2 }; /* width of a head; rounds that may be on their way back */

struct delta {
    struct mosaic *m;
    const struct mo_delta *a;
    int32_t n_unit, keys, rows, heads, n_seq, units, rounds; /* seq, units: of a round; rounds: of a sequence */
    int read, write, live, state, window, taps, x, state_out, window_out, y; /* operands */
    int sbuf, wbuf, xbuf, ybuf, tbuf;                                        /* scratch */
    int sin, win, xin, sout, wout, yout, tin;                                /* semaphores */
    int unit_scale;                                                          /* f32 [rows, D]: of q, of k */
    enum mo_elem elem;
};
struct round { /* i32 values */
    int seq, unit, slot;
};
struct unit { /* of a round: f32 values */
    int32_t seq, unit;
    int v;           /* [rows, D] */
    int dot, column; /* k . q [keys, 1]; q and k along rows: [D, 8 or more] */
    int e, beta;     /* [heads, D] */
};

static int op(struct delta *x, const char *name, int a, int b) { return mo_binary(x->m, name, a, b); }
static int num(struct delta *x, int32_t n) { return mo_i32(x->m, n); }

static void declare(struct delta *x)
{
    struct mosaic *m = x->m;
    const struct mo_delta *a = x->a;
    int32_t back = a->n_tap - 1;
    x->read = mo_prefetch(m, a->n_seq);
    x->write = mo_prefetch(m, a->n_seq);
    x->live = mo_prefetch(m, 1);
    x->state = mo_input(m, MO_TYPE(MO_HBM, x->elem, a->n_slot, a->n_val, D, D));
    x->window = mo_input(m, MO_TYPE(MO_HBM, MO_F32, a->n_slot, x->n_unit, back, x->rows, D));
    x->taps = mo_input(m, MO_TYPE(MO_HBM, MO_F32, x->n_unit, a->n_tap, x->rows, D));
    x->x = mo_input(m, MO_TYPE(MO_HBM, MO_F32, a->n_seq, x->n_unit, x->rows + 2 * x->heads, D));
    x->state_out = mo_output_in(m, x->state);
    x->window_out = mo_output_in(m, x->window);
    x->y = mo_output(m, MO_TYPE(MO_HBM, MO_F32, a->n_seq, x->n_unit, x->heads, D));
    x->sbuf = mo_scratch(m, MO_TYPE(MO_VMEM, x->elem, a->slots, x->n_seq, x->units * a->unit, D, D));
    x->wbuf = mo_scratch(m, MO_TYPE(MO_VMEM, MO_F32, a->slots, x->n_seq, x->units, back, x->rows, D));
    x->xbuf = mo_scratch(m, MO_TYPE(MO_VMEM, MO_F32, a->slots, x->n_seq, x->units, x->rows + 2 * x->heads, D));
    x->ybuf = mo_scratch(m, MO_TYPE(MO_VMEM, MO_F32, a->slots, x->n_seq, x->units, x->heads, D));
    x->tbuf = mo_scratch(m, MO_TYPE(MO_VMEM, MO_F32, x->n_unit, a->n_tap, x->rows, D));
    int *const each[] = {&x->sin, &x->win, &x->sout, &x->wout}, *const all[] = {&x->xin, &x->yout};
    for (size_t i = 0; i < SY_COUNT(each); i++)
        *each[i] = mo_scratch(m, MO_TYPE(MO_SEMAPHORES, MO_SEM, a->slots, x->n_seq));
    for (size_t i = 0; i < SY_COUNT(all); i++) *all[i] = mo_scratch(m, MO_TYPE(MO_SEMAPHORES, MO_SEM, a->slots));
    x->tin = mo_scratch(m, MO_TYPE(MO_SEMAPHORES, MO_SEM, 1));
    struct mo_type t = MO_VEC(MO_F32, x->rows, D), places = MO_VEC(MO_I32, x->rows, D);
    int is_q = mo_compare(m, "slt", mo_iota(m, places, 0), mo_splat(m, places, x->keys));
    x->unit_scale = mo_select(m, is_q, mo_splat(m, t, (double)a->q_scale), mo_splat(m, t, (double)a->k_scale));
}

/* ---- transfers --------------------------------------------------------------------------------------------------
 */

static struct round round_of(struct delta *x, int i)
{
    struct round r = {.slot = op(x, "arith.remsi", i, num(x, x->a->slots)), .unit = num(x, 0)};
    r.seq = mo_times(x->m, i, x->n_seq);
    if (x->rounds == 1) return r;
    r.seq = op(x, "arith.divsi", i, num(x, x->rounds));
    r.unit = mo_times(x->m, op(x, "arith.remsi", i, num(x, x->rounds)), x->units);
    return r;
}

static void move(struct delta *x, bool start, bool in, int far, int near, int sem)
{
    (start ? mo_copy_start : mo_copy_wait)(x->m, in ? far : near, in ? near : far, sem);
}

/* What a slot has for the round's sequence j, in or out. */
static void move_slot(struct delta *x, bool start, bool in, const struct round *r, int32_t j, int slot)
{
    struct mosaic *m = x->m;
    const struct mo_delta *a = x->a;
    int first = x->rounds > 1 ? mo_times(m, r->unit, a->unit) : num(x, 0), at = num(x, j);
    struct mo_type heads = MO_TYPE(MO_HBM, x->elem, 1, x->units * a->unit, D, D);
    struct mo_type units = MO_TYPE(MO_HBM, MO_F32, 1, x->units, a->n_tap - 1, x->rows, D);
    const int head_at[] = {slot, first, -1, -1}, unit_at[] = {slot, r->unit, -1, -1, -1};
    move(x, start, in, mo_part(m, in ? x->state : x->state_out, head_at, heads, 1), MO_AT(m, x->sbuf, r->slot, at),
         MO_AT(m, in ? x->sin : x->sout, r->slot, at));
    move(x, start, in, mo_part(m, in ? x->window : x->window_out, unit_at, units, 1), MO_AT(m, x->wbuf, r->slot, at),
         MO_AT(m, in ? x->win : x->wout, r->slot, at));
}

static void move_tokens(struct delta *x, bool start, bool in, const struct round *r)
{
    struct mosaic *m = x->m;
    int32_t rows = in ? x->rows + 2 * x->heads : x->heads;
    const int at[] = {r->seq, r->unit, -1, -1};
    int far = mo_part(m, in ? x->x : x->y, at, MO_TYPE(MO_HBM, MO_F32, x->n_seq, x->units, rows, D), 0);
    move(x, start, in, far, MO_AT(m, in ? x->xbuf : x->ybuf, r->slot), MO_AT(m, in ? x->xin : x->yout, r->slot));
}

/* A sequence without a state yet begins with zeros. */
static void clear(struct delta *x, const struct round *r, int32_t j)
{
    struct mosaic *m = x->m;
    const struct mo_delta *a = x->a;
    int at = num(x, j), i = mo_for(m, num(x, 0), num(x, x->units * a->unit), NULL, 0);
    mo_store(m, x->sbuf, (const int[]){r->slot, at, i, -1, -1}, mo_splat(m, MO_VEC(x->elem, 1, 1, 1, D, D), 0));
    mo_for_end(m, NULL, NULL, 0);
    i = mo_for(m, num(x, 0), num(x, x->units), NULL, 0);
    int none = mo_splat(m, MO_VEC(MO_F32, 1, 1, 1, a->n_tap - 1, x->rows, D), 0);
    mo_store(m, x->wbuf, (const int[]){r->slot, at, i, -1, -1, -1}, none);
    mo_for_end(m, NULL, NULL, 0);
}

/* A round's way in: asks for it, or waits until it is there. */
static void come(struct delta *x, bool start, const struct round *r)
{
    struct mosaic *m = x->m;
    move_tokens(x, start, true, r);
    for (int32_t j = 0; j < x->n_seq; j++) {
        int seq = mo_add(m, r->seq, num(x, j));
        if (x->n_seq > 1) mo_if(m, mo_compare(m, "slt", seq, mo_get(m, x->live, num(x, 0))));
        int from = mo_get(m, x->read, seq);
        mo_if(m, mo_compare(m, "sge", from, num(x, 0)));
        move_slot(x, start, true, r, j, from);
        mo_if_end(m);
        if (start) {
            mo_if(m, mo_compare(m, "slt", from, num(x, 0)));
            clear(x, r, j);
            mo_if_end(m);
        }
        if (x->n_seq > 1) mo_if_end(m);
    }
}

/* Its way out. */
static void leave(struct delta *x, bool start, const struct round *r)
{
    struct mosaic *m = x->m;
    move_tokens(x, start, false, r);
    for (int32_t j = 0; j < x->n_seq; j++) {
        int seq = mo_add(m, r->seq, num(x, j));
        if (x->n_seq > 1) mo_if(m, mo_compare(m, "slt", seq, mo_get(m, x->live, num(x, 0))));
        move_slot(x, start, false, r, j, mo_get(m, x->write, seq));
        if (x->n_seq > 1) mo_if_end(m);
    }
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------
 */

/* The token's rows behind convolution and silu; leaves what the next one looks back at. */
static int convolve(struct delta *x, const struct round *r, const struct unit *k)
{
    struct mosaic *m = x->m;
    struct mo_type t = MO_VEC(MO_F32, x->rows, D);
    int32_t back = x->a->n_tap - 1;
    int seq = num(x, k->seq), at = num(x, k->unit), sum = -1, seen[8];
    for (int32_t i = 0; i <= back; i++) {
        const int then[] = {r->slot, seq, at, num(x, i), -1, -1}, now[] = {r->slot, seq, at, -1, -1};
        const int tap[] = {mo_add(m, r->unit, at), num(x, i), -1, -1};
        seen[i] = i < back ? mo_load(m, x->wbuf, then, MO_VEC(MO_F32, 1, 1, 1, 1, x->rows, D))
                           : mo_load(m, x->xbuf, now, MO_VEC(MO_F32, 1, 1, 1, x->rows, D));
        int w = MO_RESHAPE(m, mo_load(m, x->tbuf, tap, MO_VEC(MO_F32, 1, 1, x->rows, D)), x->rows, D);
        seen[i] = MO_RESHAPE(m, seen[i], x->rows, D);
        w = op(x, "arith.mulf", seen[i], w);
        sum = sum < 0 ? w : op(x, "arith.addf", sum, w);
    }
    for (int32_t i = 0; i < back; i++) {
        const int then[] = {r->slot, seq, at, num(x, i), -1, -1};
        mo_store(m, x->wbuf, then, MO_RESHAPE(m, seen[i + 1], 1, 1, 1, 1, x->rows, D));
    }
    int down = mo_unary(m, "math.exp", op(x, "arith.subf", mo_splat(m, t, 0), sum));
    return op(x, "arith.divf", sum, op(x, "arith.addf", down, mo_splat(m, t, 1)));
}

static int gate(struct delta *x, const struct round *r, const struct unit *k, int32_t which)
{
    const int at[] = {r->slot, num(x, k->seq), num(x, k->unit), num(x, x->rows + which * x->heads), -1};
    return MO_RESHAPE(x->m, mo_load(x->m, x->xbuf, at, MO_VEC(MO_F32, 1, 1, 1, x->heads, D)), x->heads, D);
}

static void prepare(struct delta *x, const struct round *r, struct unit *k)
{
    struct mosaic *m = x->m;
    struct mo_type column = MO_VEC(MO_F32, x->rows, 1);
    k->v = convolve(x, r, k);
    int square = mo_reduce(m, "add", op(x, "arith.mulf", k->v, k->v), 1);
    square = op(x, "arith.mulf", square, mo_splat(m, column, 1.0 / D));
    square = mo_unary(m, "math.rsqrt", op(x, "arith.addf", square, mo_splat(m, column, (double)x->a->eps)));
    int unit = op(x, "arith.mulf", k->v, mo_broadcast(m, square, MO_VEC(MO_F32, x->rows, D)));
    unit = op(x, "arith.mulf", unit, x->unit_scale);
    int q = mo_rows(m, unit, 0, x->keys), key = mo_rows(m, unit, x->keys, x->keys);
    k->dot = mo_reduce(m, "add", op(x, "arith.mulf", q, key), 1);
    k->column = mo_transpose(m, mo_rows(m, unit, 0, (2 * x->keys + 7) / 8 * 8));
    k->e = gate(x, r, k, 0);
    k->beta = gate(x, r, k, 1);
}

static int state_of(struct delta *x, const struct round *r, const struct unit *k, int32_t head)
{
    const int at[] = {r->slot, num(x, k->seq), num(x, k->unit * x->a->unit + head), -1, -1};
    int s = MO_RESHAPE(x->m, mo_load(x->m, x->sbuf, at, MO_VEC(x->elem, 1, 1, 1, D, D)), D, D);
    return mo_convert(x->m, s, MO_F32);
}

/* All heads of a unit that share a key head: reads, then what is added, then states. */
static void one_key(struct delta *x, const struct round *r, const struct unit *k, int32_t key)
{
    struct mosaic *m = x->m;
    struct mo_type matrix = MO_VEC(MO_F32, D, D), row = MO_VEC(MO_F32, 1, D);
    int32_t n = x->a->unit / x->keys;
    int kept[8], asked[8], add[8], keep[8];
    int kc = mo_broadcast(m, mo_columns(m, k->column, x->keys + key, 1), matrix);
    int qc = mo_broadcast(m, mo_columns(m, k->column, key, 1), matrix);
    int dot = mo_broadcast(m, mo_rows(m, k->dot, key, 1), row);
    for (int32_t h = 0; h < n; h++) {
        int s = state_of(x, r, k, key * n + h);
        kept[h] = mo_reduce(m, "add", op(x, "arith.mulf", s, kc), 0);
        asked[h] = mo_reduce(m, "add", op(x, "arith.mulf", s, qc), 0);
    }
    for (int32_t h = 0; h < n; h++) {
        int32_t head = key * n + h;
        int v = mo_rows(m, k->v, 2 * x->keys + head, 1), beta = mo_rows(m, k->beta, head, 1);
        keep[h] = mo_rows(m, k->e, head, 1);
        add[h] = op(x, "arith.mulf", beta, op(x, "arith.subf", v, op(x, "arith.mulf", keep[h], kept[h])));
        int y = op(x, "arith.mulf", keep[h], asked[h]);
        y = op(x, "arith.addf", y, op(x, "arith.mulf", add[h], dot));
        const int at[] = {r->slot, num(x, k->seq), num(x, k->unit), num(x, head), -1};
        mo_store(m, x->ybuf, at, MO_RESHAPE(m, y, 1, 1, 1, 1, D));
    }
    for (int32_t h = 0; h < n; h++) {
        int32_t head = k->unit * x->a->unit + key * n + h;
        int s = op(x, "arith.mulf", state_of(x, r, k, key * n + h), mo_broadcast(m, keep[h], matrix));
        s = op(x, "arith.addf", s, op(x, "arith.mulf", kc, mo_broadcast(m, add[h], matrix)));
        const int at[] = {r->slot, num(x, k->seq), num(x, head), -1, -1};
        mo_store(m, x->sbuf, at, MO_RESHAPE(m, mo_convert(m, s, x->elem), 1, 1, 1, D, D));
    }
}

static void one_round(struct delta *x, const struct round *r)
{
    struct unit k[MO_DELTA_SIDE];
    for (int32_t i = 0; i < x->a->side; i++) {
        k[i] = (struct unit){.seq = i / x->units, .unit = i % x->units};
        prepare(x, r, &k[i]);
    }
    for (int32_t i = 0; i < x->a->side; i++)
        for (int32_t key = 0; key < x->keys; key++) one_key(x, r, &k[i], key);
}

/* ---- the loop --------------------------------------------------------------------------------------------------
 */

static void guarded(struct delta *x, const char *how, int a, int b, int i,
                    void (*f)(struct delta *, bool, const struct round *), bool start)
{
    mo_if(x->m, mo_compare(x->m, how, a, b));
    struct round r = round_of(x, i);
    f(x, start, &r);
    mo_if_end(x->m);
}

void mo_delta(struct mosaic *m, const struct mo_delta *a)
{
    struct delta x = {.m = m, .a = a, .n_unit = mo_delta_units(a), .keys = mo_delta_keys(a)};
    x.rows = mo_delta_rows(a);
    x.heads = mo_delta_heads(a);
    x.units = a->side < x.n_unit ? a->side : x.n_unit;
    x.n_seq = a->side / x.units;
    x.rounds = x.n_unit / x.units;
    x.elem = a->bf16 ? MO_BF16 : MO_F32;
    sy_assert(a->unit <= 8 && a->slots > BACK && a->side <= MO_DELTA_SIDE && x.rounds * x.units == x.n_unit &&
              a->n_seq % x.n_seq == 0 && a->n_tap <= 8);
    declare(&x);
    int zero = num(&x, 0), one = num(&x, 1), ahead = num(&x, a->slots - BACK);
    int n = mo_get(m, x.live, zero);
    n = x.rounds > 1 ? mo_times(m, n, x.rounds) : mo_over_up(m, n, x.n_seq);
    mo_copy_start(m, x.taps, x.tbuf, MO_AT(m, x.tin, zero));
    for (int32_t i = 0; i < a->slots - BACK; i++) guarded(&x, "slt", num(&x, i), n, num(&x, i), come, true);
    mo_copy_wait(m, x.taps, x.tbuf, MO_AT(m, x.tin, zero));
    int i = mo_for(m, zero, n, NULL, 0);
    struct round now = round_of(&x, i);
    guarded(&x, "sge", i, num(&x, BACK), mo_sub(m, i, num(&x, BACK)), leave, false);
    int next = mo_add(m, i, ahead);
    guarded(&x, "slt", next, n, next, come, true);
    come(&x, false, &now);
    one_round(&x, &now);
    leave(&x, true, &now);
    mo_for_end(m, NULL, NULL, 0);
    for (int32_t back = BACK; back > 0; back--) {
        int last = mo_sub(m, n, num(&x, back));
        guarded(&x, "sgt", mo_add(m, last, one), zero, last, leave, false);
    }
}
