/* bucket.c - static shapes, for devices whose programs have them and for who asks what they cost: one program for
 * each bucket, and the step's batch in the shape of the smallest bucket that holds it. */
#include <string.h>

#include "engine/engine_int.h"

static void free_bucket(struct sy_engine *e, struct bucket *b)
{
    e->ops->program_free(b->program);
    for (int32_t g = 0; b->batch && g < sy_shard_groups(&e->opt.backend_opt.shard); g++)
        sy_batch_release(e->env, &b->batch[g]);
    sy_delete(e->env, b->batch);
    *b = (struct bucket){0};
}

static sy_status compile_bucket(struct sy_engine *e, const struct ladder *l, struct sy_shape shape, struct bucket *b,
                                struct sy_err *err)
{
    struct sy_graph *g = NULL;
    int32_t n_group = sy_shard_groups(&e->opt.backend_opt.shard);
    sy_status st = l->draft ? draft_graph(e, shape, &g, err) : engine_graph(e, shape, &g, err);
    if (!st) st = e->ops->compile(e->backend, g, l->weights, l->dim, &b->program, err);
    sy_graph_free(g);
    b->batch = sy_new_array(e->env, (size_t)n_group, sizeof *b->batch);
    if (!st && !b->batch) st = sy_fail(err, SY_ENOMEM, "no memory for the table of programs");
    for (int32_t k = 0; k < n_group && !st; k++) st = sy_batch_new(e->env, shape, &b->batch[k], err);
    return st;
}

sy_status buckets_compile(struct sy_engine *e, struct sy_shape max, struct ladder *l, struct sy_err *err)
{
    l->bucket = sy_new_array(e->env, SY_BUCKET_MAX, sizeof *l->bucket);
    if (!l->bucket) return sy_fail(err, SY_ENOMEM, "no memory for the table of programs");
    if (e->opt.shapes == SY_SHAPES_EXACT) return SY_OK;
    if (sy_shard_groups(&e->opt.backend_opt.shard) > 1) max.seq = sy_engine_group_seqs(&e->plan);
    sy_buckets_plan(max, l->dim.block_len, &l->plan);
    if (e->opt.shapes == SY_SHAPES_LATER) return SY_OK;
    if (e->opt.shapes == SY_SHAPES_ONE) {
        l->plan.shape[0] = l->plan.shape[l->plan.n - 1];
        l->plan.n = 1;
    }
    sy_status st = SY_OK;
    for (int32_t i = 0; i < l->plan.n && !st; i++) st = compile_bucket(e, l, l->plan.shape[i], &l->bucket[i], err);
    return st;
}

void buckets_free(struct sy_engine *e, struct ladder *l)
{
    for (int32_t i = 0; l->bucket && i < SY_BUCKET_MAX; i++) free_bucket(e, &l->bucket[i]);
    sy_delete(e->env, l->bucket);
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

/* What a group's entries of the step need. */
static struct sy_shape group_need(const struct sy_engine *e, const struct ladder_step *step, int32_t group)
{
    const struct sy_batch *b = step->batch;
    struct sy_shape need = {.block = 1, .apart = b->shape.apart};
    int32_t len = e->plan.block_len, out = 0;
    for (int32_t s = 0; s < b->n_seq; s++) {
        int32_t end = b->field[SY_START][s + 1], n_out = out;
        while (out < b->n_out && b->field[SY_OUT][out] < end) out++;
        if (step->home[s] != group) continue;
        int32_t n = blocks_of(b->field[SY_CTX][s], len);
        if (n > need.block) need.block = n;
        need.seq++;
        need.tok += end - b->field[SY_START][s];
        need.out += out - n_out;
    }
    if (need.tok == need.seq && has_chain(b)) need.tok++;
    return need;
}

/* What the step needs of a bucket for all groups: where one has prompts it is one with prompts for all. */
static struct sy_shape step_need(const struct sy_engine *e, const struct ladder_step *step)
{
    struct sy_shape all = {.apart = step->batch->shape.apart};
    bool decode = true;
    for (int32_t g = 0; g < e->n_group; g++) {
        struct sy_shape n = group_need(e, step, g);
        decode = decode && n.tok == n.seq;
        if (n.tok > all.tok) all.tok = n.tok;
        if (n.seq > all.seq) all.seq = n.seq;
        if (n.block > all.block) all.block = n.block;
        if (n.out > all.out) all.out = n.out;
    }
    if (!decode && all.tok == all.seq) all.tok++;
    return all;
}

/* The bucket of exactly that shape, made if there is none yet. */
static sy_status exact_bucket(struct sy_engine *e, struct ladder *l, struct sy_shape need, int32_t *out,
                              struct sy_err *err)
{
    struct sy_buckets *have = &l->plan;
    if (need.out < 1) need.out = 1;
    for (*out = 0; *out < have->n; ++*out)
        if (!memcmp(&have->shape[*out], &need, sizeof need)) return SY_OK;
    if (have->n < SY_BUCKET_MAX) have->n++;
    else *out = l->next++ % SY_BUCKET_MAX;
    free_bucket(e, &l->bucket[*out]);
    have->shape[*out] = need;
    return compile_bucket(e, l, need, &l->bucket[*out], err);
}

/* An entry of the step, as the next one of a group's batch. */
static void add_entry(const struct sy_engine *e, const struct sy_batch *from, int32_t s, struct sy_batch *to)
{
    static const enum sy_field by_token[] = {SY_TOK, SY_POS, SY_ROW, SY_SPAN, SY_ROW_APART},
                               by_seq[] = {SY_CTX, SY_SLOT_RD, SY_SLOT_WR},
                               table[] = {SY_BLOCK_TABLE, SY_TABLE_APART};
    int32_t at = from->field[SY_START][s], n_tok = from->field[SY_START][s + 1] - at, len = e->plan.block_len;
    for (size_t f = 0; f < SY_COUNT(by_token) - !from->shape.apart; f++)
        memcpy(to->field[by_token[f]] + to->n_tok, from->field[by_token[f]] + at, (size_t)n_tok * sizeof(int32_t));
    for (size_t f = 0; f < SY_COUNT(by_seq); f++) to->field[by_seq[f]][to->n_seq] = from->field[by_seq[f]][s];
    int32_t n = blocks_of(from->field[SY_CTX][s], len);
    for (int f = 0; f < 1 + from->shape.apart; f++)
        memcpy(to->field[table[f]] + (int64_t)to->n_seq * to->shape.block,
               from->field[table[f]] + (int64_t)s * from->shape.block, (size_t)n * sizeof(int32_t));
    to->field[SY_START][to->n_seq++] = to->n_tok;
    to->n_tok += n_tok;
}

/* Padding: token 0 at position 0, written to block 0, which nobody reads. */
static void fill_batch(struct sy_engine *e, const struct ladder_step *step, int32_t group, struct sy_batch *to)
{
    const struct sy_batch *from = step->batch;
    memset(to->mem, 0, to->n_mem * sizeof *to->mem);
    to->n_tok = to->n_seq = to->n_out = 0;
    int32_t s = 0, out = 0, shift;
    for (; s < from->n_seq; s++) {
        if (step->home[s] != group) continue;
        shift = to->n_tok - from->field[SY_START][s];
        step->first[s] = group * to->shape.tok + to->n_tok;
        add_entry(e, from, s, to);
        while (out < from->n_out && from->field[SY_OUT][out] < from->field[SY_START][s]) out++;
        for (; out < from->n_out && from->field[SY_OUT][out] < from->field[SY_START][s + 1]; out++) {
            step->row[out] = group * to->shape.out + to->n_out;
            to->field[SY_OUT][to->n_out++] = from->field[SY_OUT][out] + shift;
        }
    }
    for (int64_t i = to->n_seq; i <= to->shape.seq; i++) to->field[SY_START][i] = to->n_tok;
}

/* A bucket that a step needs for the first time. What that takes is no step's time. */
static sy_status compile_late(struct sy_engine *e, struct ladder *l, int32_t i, struct sy_err *err)
{
    uint64_t began = sy_now_ns(e->env);
    sy_status st = compile_bucket(e, l, l->plan.shape[i], &l->bucket[i], err);
    l->compile_ns += sy_now_ns(e->env) - began;
    return st;
}

sy_status buckets_fit(struct sy_engine *e, struct ladder *l, const struct ladder_step *step, struct bucket **out,
                      struct sy_err *err)
{
    struct sy_shape need = step_need(e, step);
    int32_t i = -1;
    if (e->opt.shapes == SY_SHAPES_EXACT) {
        sy_status st = exact_bucket(e, l, need, &i, err);
        if (st) return st;
    } else {
        i = sy_buckets_pick(&l->plan, need);
        sy_assert(i >= 0); /* the last one holds whatever the scheduler may fill */
        sy_status st = l->bucket[i].program ? SY_OK : compile_late(e, l, i, err);
        if (st) return st;
    }
    struct bucket *b = *out = &l->bucket[i];
    for (int32_t g = 0; g < e->n_group; g++) {
        struct sy_batch *to = &b->batch[g];
        fill_batch(e, step, g, to);
        if (!e->plan.device.ragged) continue;
        to->n_tok = to->shape.tok; /* or it would leave padding out */
        to->n_out = to->shape.out;
    }
    b->n_step++;
    b->n_tok += (uint64_t)step->batch->n_tok;
    return SY_OK;
}
