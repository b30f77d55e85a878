/* lower_move.c - programs that move whole blocks of the KV cache, all arrays at once. */
#include "backend/pjrt/pjrt_int.h"

int64_t pj_block_count(const struct pj_type *kv, int n_kv)
{
    int64_t n = 0;
    for (int i = 0; i < n_kv; i++) n += pj_type_count(&kv[i]) / kv[i].dim[0];
    return n;
}

static int scalar_at(struct pj_hlo *h, int pairs, int pair, int64_t side)
{
    int all = pj_dynamic_slice(h, pairs, 0, pair, 1);
    return pj_reshape(h, pj_slice(h, all, 1, side, side + 1), 0, NULL);
}

/* The number of a place, i32 [2], that array i goes by. */
static int number_of(struct pj_hlo *h, int place, bool apart)
{
    return pj_reshape(h, pj_slice(h, place, 0, apart, apart + 1), 0, NULL);
}

/* In order: a block that was written may be read by a later pair. */
static void write_copy(struct pj_hlo *h, int *kv, struct pj_arrays a, int pairs)
{
    for (int i = 0; i < a.n_block; i++) {
        bool apart = i >= a.n_plain;
        struct pj_loop loop;
        int zero = pj_const(h, pj_scalar(PJ_I32), 0);
        pj_while(h, &loop, (const int[]){zero, kv[i]}, 2);
        int end = pj_const(h, pj_scalar(PJ_I32), PJ_PAIRS);
        pj_while_do(h, &loop, pj_compare(h, "LT", loop.var[0], end));
        int block = pj_dynamic_slice(h, loop.var[1], 0, scalar_at(h, pairs, loop.var[0], apart), 1);
        int next = pj_dynamic_update(h, loop.var[1], block, 0, scalar_at(h, pairs, loop.var[0], 2 + apart));
        int step = pj_binary(h, "add", loop.var[0], pj_const(h, pj_scalar(PJ_I32), 1));
        pj_while_end(h, &loop, (const int[]){step, next});
        kv[i] = loop.var[1];
    }
}

static int write_save(struct pj_hlo *h, const int *kv, struct pj_arrays a, int place, int *flat)
{
    for (int i = 0; i < a.n_block; i++) {
        int x = pj_dynamic_slice(h, kv[i], 0, number_of(h, place, i >= a.n_plain), 1);
        flat[i] = PJ_RESHAPE(h, x, pj_type_count(pj_type_of(h, x)));
    }
    return pj_concat(h, flat, a.n_block, 0);
}

static void write_restore(struct pj_hlo *h, int *kv, struct pj_arrays a, int place, int bytes)
{
    int64_t from = 0;
    for (int i = 0; i < a.n_block; i++) {
        struct pj_type t = *pj_type_of(h, kv[i]);
        t.dim[0] = 1;
        int64_t n = pj_type_count(&t);
        int x = pj_reshape(h, pj_slice(h, bytes, 0, from, from + n), t.n_dim, t.dim);
        kv[i] = pj_dynamic_update(h, kv[i], x, 0, number_of(h, place, i >= a.n_plain));
        from += n;
    }
}

sy_status pj_lower_move(const struct sy_env *env, enum pj_move what, const struct pj_type *kv, struct pj_arrays a,
                        int32_t n_rank, struct sy_buf *text, struct sy_err *err)
{
    int n_kv = what == PJ_MOVE_ZERO ? a.n : a.n_block;
    struct pj_hlo h;
    pj_hlo_init(&h, env);
    int *val = sy_new_array(env, 2 * (size_t)n_kv + 2, sizeof *val), n_result = n_kv;
    sy_status st = val ? SY_OK : sy_fail(err, SY_ENOMEM, "no memory to lower a program");
    bool changes = what == PJ_MOVE_COPY || what == PJ_MOVE_RESTORE;
    for (int i = 0; !st && i < n_kv; i++)
        val[i] = what == PJ_MOVE_ZERO ? pj_const(&h, kv[i], 0) : pj_arg(&h, kv[i], changes ? i : -1);
    if (!st && what == PJ_MOVE_COPY) write_copy(&h, val, a, pj_arg(&h, PJ_TYPE(PJ_I32, PJ_PAIRS, 4), -1));
    if (!st && what == PJ_MOVE_SAVE) {
        int place = pj_arg(&h, PJ_TYPE(PJ_I32, 2), -1);
        val[0] = write_save(&h, val, a, place, val + n_kv);
        n_result = 1;
    }
    if (!st && what == PJ_MOVE_RESTORE) {
        int place = pj_arg(&h, PJ_TYPE(PJ_I32, 2), -1);
        int bytes = pj_arg(&h, PJ_TYPE(kv[0].elem, pj_block_count(kv, n_kv)), -1);
        write_restore(&h, val, a, place, bytes);
    }
    if (!st) st = pj_hlo_end(&h, n_rank, val, n_result, text, err);
    sy_delete(env, val);
    pj_hlo_release(&h);
    return st;
}
