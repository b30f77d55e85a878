/* bucket.c - devices whose programs have static shapes: one program for each bucket, and the step's batch in the
 * shape of the smallest bucket that holds it. */
#include <string.h>

#include "engine/engine_int.h"

sy_status buckets_compile(struct sy_engine *e, struct sy_shape max, struct sy_cache_dim dim, struct sy_err *err)
{
    struct sy_buckets plan;
    sy_buckets_plan(max, dim.block_len, &plan);
    e->bucket = sy_new_array(e->env, (size_t)plan.n, sizeof *e->bucket);
    if (!e->bucket) return sy_fail(err, SY_ENOMEM, "no memory for the table of programs");
    e->buckets = plan;
    for (int32_t i = 0; i < plan.n; i++) {
        struct sy_graph *g = NULL;
        struct bucket *b = &e->bucket[i];
        sy_status st = engine_graph(e, plan.shape[i], &g, err);
        if (!st) st = e->ops->compile(e->backend, g, e->weights, dim, &b->program, err);
        sy_graph_free(g);
        if (!st) st = sy_batch_new(e->env, plan.shape[i], &b->batch, err);
        if (st) return st;
    }
    return SY_OK;
}

void buckets_free(struct sy_engine *e)
{
    for (int32_t i = 0; e->bucket && i < e->buckets.n; i++) {
        e->ops->program_free(e->bucket[i].program);
        sy_batch_release(e->env, &e->bucket[i].batch);
    }
    sy_delete(e->env, e->bucket);
}

/* n of `from`, then `rest` to the field's end. */
static void fill(struct sy_batch *to, const struct sy_batch *from, enum sy_field f, int32_t n, int32_t rest)
{
    int64_t len = sy_field_len(f, to->shape);
    memcpy(to->field[f], from->field[f], (size_t)n * sizeof(int32_t));
    for (int64_t i = n; i < len; i++) to->field[f][i] = rest;
}

/* An entry goes on from the state that the one before it leaves: in decode buckets each is on its own. */
static bool has_chain(const struct sy_batch *b)
{
    for (int32_t s = 1; s < b->n_seq; s++)
        if (b->field[SY_SLOT_RD][s] && b->field[SY_SLOT_RD][s] == b->field[SY_SLOT_WR][s - 1] &&
            b->field[SY_POS][b->field[SY_START][s]] > 0)
            return true;
    return false;
}

struct bucket *buckets_fit(struct sy_engine *e)
{
    const struct sy_batch *from = &e->batch;
    int32_t blocks = 1, len = e->plan.block_len;
    for (int32_t s = 0; s < from->n_seq; s++) {
        int32_t n = (from->field[SY_CTX][s] + len - 1) / len;
        if (n > blocks) blocks = n;
    }
    int32_t tok = from->n_tok == from->n_seq && has_chain(from) ? from->n_tok + 1 : from->n_tok;
    int32_t i = sy_buckets_pick(&e->buckets, (struct sy_shape){tok, from->n_seq, blocks, from->n_out});
    sy_assert(i >= 0); /* the last one holds whatever the scheduler may fill */
    struct bucket *b = &e->bucket[i];
    struct sy_batch *to = &b->batch;
    to->n_tok = from->n_tok;
    to->n_seq = from->n_seq;
    to->n_out = from->n_out;
    fill(to, from, SY_TOK, to->n_tok, 0);
    fill(to, from, SY_SPAN, from->n_tok, 0);
    fill(to, from, SY_POS, to->n_tok, 0);
    fill(to, from, SY_ROW, to->n_tok, 0); /* block 0, which nobody reads */
    fill(to, from, SY_START, to->n_seq + 1, to->n_tok);
    fill(to, from, SY_CTX, to->n_seq, 0);
    fill(to, from, SY_SLOT_RD, to->n_seq, 0);
    fill(to, from, SY_SLOT_WR, to->n_seq, 0);
    fill(to, from, SY_OUT, to->n_out, 0);
    memset(to->field[SY_BLOCK_TABLE], 0, (size_t)sy_field_len(SY_BLOCK_TABLE, to->shape) * sizeof(int32_t));
    for (int32_t s = 0; s < to->n_seq; s++) {
        int32_t n = (from->field[SY_CTX][s] + len - 1) / len;
        memcpy(to->field[SY_BLOCK_TABLE] + (int64_t)s * to->shape.block,
               from->field[SY_BLOCK_TABLE] + (int64_t)s * from->shape.block, (size_t)n * sizeof(int32_t));
    }
    b->n_step++;
    b->n_tok += (uint64_t)to->n_tok;
    return b;
}
