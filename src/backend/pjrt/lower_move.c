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
    int both = pj_dynamic_slice(h, pairs, 0, pair, 1);
    return pj_reshape(h, pj_slice(h, both, 1, side, side + 1), 0, NULL);
}

/* In order: a block that was written may be read by a later pair. */
static void write_copy(struct pj_hlo *h, int *kv, int n_kv, int pairs, int32_t n_pair)
{
    for (int i = 0; i < n_kv; i++) {
        struct pj_loop loop;
        int zero = pj_const(h, pj_scalar(PJ_I32), 0);
        pj_while(h, &loop, (const int[]){zero, kv[i]}, 2);
        int end = pj_const(h, pj_scalar(PJ_I32), n_pair);
        pj_while_do(h, &loop, pj_compare(h, "LT", loop.var[0], end));
        int block = pj_dynamic_slice(h, loop.var[1], 0, scalar_at(h, pairs, loop.var[0], 0), 1);
        int next = pj_dynamic_update(h, loop.var[1], block, 0, scalar_at(h, pairs, loop.var[0], 1));
        int step = pj_binary(h, "add", loop.var[0], pj_const(h, pj_scalar(PJ_I32), 1));
        pj_while_end(h, &loop, (const int[]){step, next});
        kv[i] = loop.var[1];
    }
}

static int write_save(struct pj_hlo *h, const int *kv, int n_kv, int block, int *flat)
{
    int at = pj_reshape(h, block, 0, NULL);
    for (int i = 0; i < n_kv; i++) {
        int x = pj_dynamic_slice(h, kv[i], 0, at, 1);
        flat[i] = PJ_RESHAPE(h, x, pj_type_count(pj_type_of(h, x)));
    }
    return pj_concat(h, flat, n_kv, 0);
}

static void write_restore(struct pj_hlo *h, int *kv, int n_kv, int block, int bytes)
{
    int at = pj_reshape(h, block, 0, NULL);
    int64_t from = 0;
    for (int i = 0; i < n_kv; i++) {
        struct pj_type t = *pj_type_of(h, kv[i]);
        t.dim[0] = 1;
        int64_t n = pj_type_count(&t);
        int x = pj_reshape(h, pj_slice(h, bytes, 0, from, from + n), t.n_dim, t.dim);
        kv[i] = pj_dynamic_update(h, kv[i], x, 0, at);
        from += n;
    }
}

sy_status pj_lower_move(const struct sy_env *env, enum pj_move what, const struct pj_type *kv, int n_kv,
                        int32_t n_pair, int32_t n_rank, struct sy_buf *text, struct sy_err *err)
{
    struct pj_hlo h;
    pj_hlo_init(&h, env);
    int *val = sy_new_array(env, 2 * (size_t)n_kv + 2, sizeof *val), n_result = n_kv;
    sy_status st = val ? SY_OK : sy_fail(err, SY_ENOMEM, "no memory to lower a program");
    bool changes = what == PJ_MOVE_COPY || what == PJ_MOVE_RESTORE;
    for (int i = 0; !st && i < n_kv; i++)
        val[i] = what == PJ_MOVE_ZERO ? pj_const(&h, kv[i], 0) : pj_arg(&h, kv[i], changes ? i : -1);
    if (!st && what == PJ_MOVE_COPY) write_copy(&h, val, n_kv, pj_arg(&h, PJ_TYPE(PJ_I32, n_pair, 2), -1), n_pair);
    if (!st && what == PJ_MOVE_SAVE) {
        int block = pj_arg(&h, PJ_TYPE(PJ_I32, 1), -1);
        val[0] = write_save(&h, val, n_kv, block, val + n_kv);
        n_result = 1;
    }
    if (!st && what == PJ_MOVE_RESTORE) {
        int block = pj_arg(&h, PJ_TYPE(PJ_I32, 1), -1);
        int bytes = pj_arg(&h, PJ_TYPE(kv[0].elem, pj_block_count(kv, n_kv)), -1);
        write_restore(&h, val, n_kv, block, bytes);
    }
    if (!st) st = pj_hlo_end(&h, n_rank, val, n_result, text, err);
    sy_delete(env, val);
    pj_hlo_release(&h);
    return st;
}
