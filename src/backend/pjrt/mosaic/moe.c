/* moe.c - experts of a mixture: gate and up, the activation and down in one, a tile of inner columns after the other.
 * The tiles of all experts that have rows form one sequence, through which a ring of buffers runs ahead: an expert's
 * first tile is on its way while the one before is worked on. */
#include "backend/pjrt/mosaic/kernels.h"

enum { ROWS = 16 }; /* of one transfer: a tile of bf16 memory */

struct moe {
    struct mosaic *m;
    const struct mo_experts *a;
    int sizes, x, up, up_scale, down, down_scale, out;                                            /* operands */
    int xbuf, upbuf, up_scales, downbuf, down_scales, acc, outbuf, item_expert, item_row, item_n; /* scratch */
    int wsem[6], xsem, osem;
    bool coded, scaled;
    int32_t n_step, hold;        /* tiles of inner columns; ROWS that an item has at most */
    int32_t n_up, n_down, width; /* groups of gate and up, of a tile of down; columns of these */
    struct mo_type whole;        /* a result of `rows` rows */
};
struct ring { /* the next tile to ask for, its slot, and the slot of the one in work: i32 values */
    int item, step, ahead, now;
};

static int num(struct moe *x, int32_t n) { return mo_i32(x->m, n); }

static void declare(struct moe *x)
{
    struct mosaic *m = x->m;
    const struct mo_experts *a = x->a;
    x->n_step = a->d_ff / a->tile;
    x->hold = a->hold / ROWS;
    x->coded = a->weight != MO_BF16;
    x->scaled = x->coded && a->group_up > 0;
    x->n_up = x->scaled ? a->d / a->group_up : 1;
    x->width = x->scaled && a->group_down < a->tile ? a->group_down : a->tile;
    x->n_down = a->tile / x->width;
    enum mo_elem w = x->coded ? MO_I8 : MO_BF16;
    int32_t n_item = a->n_expert + (a->n_row / ROWS + x->hold - 1) / x->hold;
    x->sizes = mo_prefetch(m, a->n_expert);
    x->x = mo_input(m, MO_TYPE(MO_HBM, MO_BF16, a->n_row / ROWS, ROWS, a->d));
    x->up = mo_input(m, MO_TYPE(MO_HBM, w, a->n_expert, 2, x->n_step, a->tile, a->d));
    if (x->scaled) x->up_scale = mo_input(m, MO_TYPE(MO_HBM, MO_F32, a->n_expert, x->n_up, 1, 2 * a->d_ff));
    x->down = mo_input(m, MO_TYPE(MO_HBM, w, a->n_expert, a->d, a->d_ff));
    if (x->scaled)
        x->down_scale = mo_input(m, MO_TYPE(MO_HBM, MO_F32, a->n_expert, a->d_ff / a->group_down, 1, a->d));
    x->out = mo_output(m, MO_TYPE(MO_HBM, MO_BF16, a->n_row / ROWS, ROWS, a->d));
    x->xbuf = mo_scratch(m, MO_TYPE(MO_VMEM, MO_BF16, 2, x->hold, ROWS, a->d));
    x->upbuf = mo_scratch(m, MO_TYPE(MO_VMEM, w, a->slots, 2, a->tile, a->d));
    x->downbuf = mo_scratch(m, MO_TYPE(MO_VMEM, w, a->slots, a->d, a->tile));
    if (x->scaled) {
        x->up_scales = mo_scratch(m, MO_TYPE(MO_VMEM, MO_F32, a->slots, 2, x->n_up, 1, a->tile));
        x->down_scales = mo_scratch(m, MO_TYPE(MO_VMEM, MO_F32, a->slots, x->n_down, 1, a->d));
    }
    x->acc = mo_scratch(m, MO_TYPE(MO_VMEM, MO_F32, a->hold / a->rows, a->rows, a->d));
    x->outbuf = mo_scratch(m, MO_TYPE(MO_VMEM, MO_BF16, 2, x->hold, ROWS, a->d));
    x->item_expert = mo_scratch(m, MO_TYPE(MO_SMEM, MO_I32, n_item));
    x->item_row = mo_scratch(m, MO_TYPE(MO_SMEM, MO_I32, n_item));
    x->item_n = mo_scratch(m, MO_TYPE(MO_SMEM, MO_I32, n_item));
    for (int k = 0; k < (x->scaled ? 6 : 3); k++)
        x->wsem[k] = mo_scratch(m, MO_TYPE(MO_SEMAPHORES, MO_SEM, a->slots));
    x->xsem = mo_scratch(m, MO_TYPE(MO_SEMAPHORES, MO_SEM, 2));
    x->osem = mo_scratch(m, MO_TYPE(MO_SEMAPHORES, MO_SEM, 2));
    x->whole = MO_VEC(MO_F32, a->rows, a->d);
}

/* ---- what there is to do ----------------------------------------------------------------------------------------
 */

/* Writes the items: an expert's rows, `hold` at most. Experts without rows have none. Returns how many. */
static int make_items(struct moe *x)
{
    struct mosaic *m = x->m;
    int carry[2] = {num(x, 0), num(x, 0)}; /* items, ROWS */
    int e = mo_for(m, num(x, 0), num(x, x->a->n_expert), carry, 2);
    int n = mo_over_up(m, mo_get(m, x->sizes, e), ROWS), parts = mo_over_up(m, n, x->hold);
    int i = mo_for(m, num(x, 0), parts, NULL, 0), at = mo_add(m, carry[0], i), from = mo_times(m, i, x->hold);
    mo_put(m, x->item_expert, at, e);
    mo_put(m, x->item_row, at, mo_add(m, carry[1], from));
    mo_put(m, x->item_n, at, mo_min(m, mo_sub(m, n, from), num(x, x->hold)));
    mo_for_end(m, NULL, NULL, 0);
    mo_for_end(m, (const int[]){mo_add(m, carry[0], parts), mo_add(m, carry[1], n)}, carry, 2);
    return carry[0];
}

/* ---- transfers --------------------------------------------------------------------------------------------------
 */

/* A tile of an expert into a slot, or the wait for one, for which expert and step do not count. */
static void weights(struct moe *x, bool start, int expert, int step, int slot)
{
    struct mosaic *m = x->m;
    const struct mo_experts *a = x->a;
    int column = x->n_step > 1 ? mo_multiple(m, mo_times(m, step, a->tile), a->tile) : num(x, 0);
    int part[6], to[6], n = 3;
    for (int k = 0; k < 2; k++) {
        part[k] = MO_AT(m, x->up, expert, num(x, k), step);
        to[k] = MO_AT(m, x->upbuf, slot, num(x, k));
    }
    const int from[] = {expert, -1, column};
    part[2] = mo_part(m, x->down, from, MO_TYPE(MO_HBM, mo_type_of(m, x->down).elem, 1, a->d, a->tile), 1);
    to[2] = MO_AT(m, x->downbuf, slot);
    if (x->scaled) {
        int group = a->group_down <= a->tile ? mo_times(m, step, x->n_down) : num(x, 0);
        for (int k = 0; k < 2; k++, n++) {
            int at = k ? mo_multiple(m, mo_add(m, column, num(x, a->d_ff)), 128) : column;
            const int scale[] = {expert, -1, -1, at};
            part[n] = mo_part(m, x->up_scale, scale, MO_TYPE(MO_HBM, MO_F32, 1, x->n_up, 1, a->tile), 1);
            to[n] = MO_AT(m, x->up_scales, slot, num(x, k));
        }
        const int scale[] = {expert, group, -1, -1};
        part[n] = mo_part(m, x->down_scale, scale, MO_TYPE(MO_HBM, MO_F32, 1, x->n_down, 1, a->d), 1);
        to[n++] = MO_AT(m, x->down_scales, slot);
    }
    for (int k = 0; k < n; k++) {
        int sem = MO_AT(m, x->wsem[k], slot);
        if (start) mo_copy_start(m, part[k], to[k], sem);
        else mo_copy_wait(m, part[k], to[k], sem);
    }
}

/* Asks for the ring's next tile, if there is one, and moves on. */
static struct ring ask(struct moe *x, struct ring r, int n_item)
{
    struct mosaic *m = x->m;
    int one = num(x, 1), zero = num(x, 0);
    mo_if(m, mo_compare(m, "slt", r.item, n_item));
    weights(x, true, mo_get(m, x->item_expert, r.item), r.step, r.ahead);
    mo_if_end(m);
    int step = mo_add(m, r.step, one), slot = mo_add(m, r.ahead, one);
    int last = mo_compare(m, "eq", step, num(x, x->n_step));
    r.item = mo_select(m, last, mo_add(m, r.item, one), r.item);
    r.step = mo_select(m, last, zero, step);
    r.ahead = mo_select(m, mo_compare(m, "eq", slot, num(x, x->a->slots)), zero, slot);
    return r;
}

/* An item's rows in, or its results out: ROWS at a time, as many as it has; or one wait for all of them. */
static void rows(struct moe *x, bool start, bool in, int item, int slot)
{
    struct mosaic *m = x->m;
    int sem = MO_AT(m, in ? x->xsem : x->osem, slot), n = mo_get(m, x->item_n, item), zero = num(x, 0);
    int hbm = in ? x->x : x->out, vmem = MO_AT(m, in ? x->xbuf : x->outbuf, slot);
    if (!start) {
        int far = mo_span_of(m, hbm, zero, n), near = mo_span_of(m, vmem, zero, n);
        mo_copy_wait(m, in ? far : near, in ? near : far, sem);
        return;
    }
    int first = mo_get(m, x->item_row, item), i = mo_for(m, zero, n, NULL, 0);
    int far = MO_AT(m, hbm, mo_add(m, first, i)), near = MO_AT(m, vmem, i);
    mo_copy_start(m, in ? far : near, in ? near : far, sem);
    mo_for_end(m, NULL, NULL, 0);
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------
 */

static int op(struct moe *x, const char *name, int a, int b) { return mo_binary(x->m, name, a, b); }

/* silu(gate) * up of y [rows, gate | up] */
static int activation(struct moe *x, int gate, int up)
{
    struct mosaic *m = x->m;
    struct mo_type half = mo_type_of(m, gate);
    int minus = op(x, "arith.subf", mo_splat(m, half, 0), gate);
    int below = op(x, "arith.addf", mo_unary(m, "math.exp", minus), mo_splat(m, half, 1));
    return op(x, "arith.divf", op(x, "arith.mulf", gate, up), below);
}

/* A matrix of weights in memory: numbers[at] [n, groups * width], scales[scale_at] [groups, 1, n]. */
struct matrix {
    int numbers, at[4], n_at, scales, scale_at[2], n_scale_at;
    int32_t n, groups, width;
};

static int matrix_part(struct moe *x, const struct matrix *w, int32_t group)
{
    struct mosaic *m = x->m;
    enum mo_elem e = x->a->weight == MO_BF16 ? MO_BF16 : MO_I8;
    int at[MO_DIM_MAX], n = w->n_at;
    struct mo_type t = {.elem = e, .n_dim = n + 2};
    for (int i = 0; i < n; i++) {
        at[i] = w->at[i];
        t.dim[i] = 1;
    }
    at[n] = -1;
    at[n + 1] = num(x, group * w->width);
    t.dim[n] = w->n;
    t.dim[n + 1] = w->width;
    int v = MO_RESHAPE(m, mo_load(m, w->numbers, at, t), w->n, w->width);
    return x->a->weight == MO_I8 ? mo_convert(m, v, MO_BF16) : x->coded ? mo_bitcast(m, v, x->a->weight) : v;
}

/* v [rows, groups * width] times the matrix: f32 [rows, n]. */
static int product(struct moe *x, int v, const struct matrix *w)
{
    struct mosaic *m = x->m;
    struct mo_type t = MO_VEC(MO_F32, x->a->rows, w->n);
    int sum = -1;
    for (int32_t g = 0; g < w->groups; g++) {
        int some = mo_columns(m, v, g * w->width, w->width);
        int y = mo_product(m, some, matrix_part(x, w, g), true, mo_splat(m, t, 0));
        if (x->scaled) {
            int at[MO_DIM_MAX] = {0}, n = w->n_scale_at;
            struct mo_type one = {.elem = MO_F32, .n_dim = n + 3, .dim = {1, 1, 1, 1, 1, 1}};
            for (int i = 0; i < n; i++) at[i] = w->scale_at[i];
            at[n] = num(x, g);
            at[n + 1] = at[n + 2] = -1;
            one.dim[n + 2] = w->n;
            int scale = MO_RESHAPE(m, mo_load(m, w->scales, at, one), 1, w->n);
            y = op(x, "arith.mulf", y, mo_broadcast(m, scale, t));
        }
        sum = sum < 0 ? y : op(x, "arith.addf", sum, y);
    }
    return sum;
}

/* A step of `rows` rows, number r of the item's. */
static void one_step(struct moe *x, int r, int slot, int held, int is_first)
{
    struct mosaic *m = x->m;
    const struct mo_experts *a = x->a;
    const int place[] = {held, mo_times(m, r, a->rows / ROWS), -1, -1}, sum[] = {r, -1, -1};
    int v = mo_load(m, x->xbuf, place, MO_VEC(MO_BF16, 1, a->rows / ROWS, ROWS, a->d)), half[2];
    v = MO_RESHAPE(m, v, a->rows, a->d);
    for (int k = 0; k < 2; k++) {
        const struct matrix w = {.numbers = x->upbuf,
                                 .at = {slot, num(x, k)},
                                 .n_at = 2,
                                 .scales = x->up_scales,
                                 .scale_at = {slot, num(x, k)},
                                 .n_scale_at = 2,
                                 .n = a->tile,
                                 .groups = x->n_up,
                                 .width = a->d / x->n_up};
        half[k] = product(x, v, &w);
    }
    const struct matrix w = {.numbers = x->downbuf,
                             .at = {slot},
                             .n_at = 1,
                             .scales = x->down_scales,
                             .scale_at = {slot},
                             .n_scale_at = 1,
                             .n = a->d,
                             .groups = x->n_down,
                             .width = x->width};
    int y = product(x, mo_convert(m, activation(x, half[0], half[1]), MO_BF16), &w);
    if (x->n_step > 1) {
        int old = MO_RESHAPE(m, mo_load(m, x->acc, sum, MO_VEC(MO_F32, 1, a->rows, a->d)), a->rows, a->d);
        y = op(x, "arith.addf", y, mo_select(m, is_first, mo_splat(m, x->whole, 0), old));
    }
    mo_store(m, x->acc, sum, MO_RESHAPE(m, y, 1, a->rows, a->d));
}

static void round_results(struct moe *x, int held, int n_part)
{
    struct mosaic *m = x->m;
    const struct mo_experts *a = x->a;
    int r = mo_for(m, num(x, 0), n_part, NULL, 0);
    int y = mo_convert(m, mo_load(m, x->acc, (const int[]){r, -1, -1}, MO_VEC(MO_F32, 1, a->rows, a->d)), MO_BF16);
    const int place[] = {held, mo_times(m, r, a->rows / ROWS), -1, -1};
    mo_store(m, x->outbuf, place, MO_RESHAPE(m, y, 1, a->rows / ROWS, ROWS, a->d));
    mo_for_end(m, NULL, NULL, 0);
}

/* ---- loops ------------------------------------------------------------------------------------------------------
 */

static struct ring one_item(struct moe *x, int item, int n_item, struct ring r)
{
    struct mosaic *m = x->m;
    int held = op(x, "arith.andi", item, num(x, 1)), next = mo_add(m, item, num(x, 1));
    mo_if(m, mo_compare(m, "slt", next, n_item));
    rows(x, true, true, next, op(x, "arith.andi", next, num(x, 1)));
    mo_if_end(m);
    rows(x, false, true, item, held);
    int n_part = mo_over_up(m, mo_get(m, x->item_n, item), x->a->rows / ROWS);
    int carry[4] = {r.item, r.step, r.ahead, r.now}, zero = num(x, 0);
    int step = mo_for(m, zero, num(x, x->n_step), carry, 4);
    struct ring at = ask(x, (struct ring){carry[0], carry[1], carry[2], carry[3]}, n_item);
    weights(x, false, zero, zero, at.now);
    int is_first = mo_compare(m, "eq", step, zero);
    int part = mo_for(m, zero, n_part, NULL, 0);
    one_step(x, part, at.now, held, is_first);
    mo_for_end(m, NULL, NULL, 0);
    int slot = mo_add(m, at.now, num(x, 1));
    slot = mo_select(m, mo_compare(m, "eq", slot, num(x, x->a->slots)), zero, slot);
    mo_for_end(m, (const int[]){at.item, at.step, at.ahead, slot}, carry, 4);
    mo_if(m, mo_compare(m, "sgt", item, num(x, 1)));
    rows(x, false, false, mo_sub(m, item, num(x, 2)), held);
    mo_if_end(m);
    round_results(x, held, n_part);
    rows(x, true, false, item, held);
    return (struct ring){carry[0], carry[1], carry[2], carry[3]};
}

void mo_experts(struct mosaic *m, const struct mo_experts *a)
{
    struct moe x = {.m = m, .a = a};
    sy_assert(a->rows % ROWS == 0 && a->hold % a->rows == 0 && a->d_ff % a->tile == 0 && a->slots >= 2);
    sy_assert(a->group_up == 0 || (a->d % a->group_up == 0 && a->group_up % 128 == 0));
    sy_assert(a->group_up == 0 || a->group_down == a->d_ff ||
              (a->group_down % 128 == 0 && a->tile % a->group_down == 0));
    declare(&x);
    int n_item = make_items(&x), zero = num(&x, 0);
    struct ring r = {zero, zero, zero, zero};
    for (int32_t i = 0; i + 1 < a->slots; i++) r = ask(&x, r, n_item);
    mo_if(m, mo_compare(m, "sgt", n_item, zero));
    rows(&x, true, true, zero, zero);
    mo_if_end(m);
    int carry[4] = {r.item, r.step, r.ahead, r.now}, item = mo_for(m, zero, n_item, carry, 4);
    r = one_item(&x, item, n_item, (struct ring){carry[0], carry[1], carry[2], carry[3]});
    mo_for_end(m, (const int[]){r.item, r.step, r.ahead, r.now}, carry, 4);
    for (int32_t back = 2; back > 0; back--) {
        int last = mo_sub(m, n_item, num(&x, back));
        mo_if(m, mo_compare(m, "sge", last, zero));
        rows(&x, false, false, last, op(&x, "arith.andi", last, num(&x, 1)));
        mo_if_end(m);
    }
}
