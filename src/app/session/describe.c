/* describe.c - a checkpoint's contents and its needs. */
#include "app/session/describe.h"

#include <math.h>
#include <string.h>

const char *sy_format_name(const struct sy_tensor *t) { return t->format ? t->format->name : t->dtype; }

static void add_tensor(struct sy_description *d, const struct sy_tensor *t)
{
    double n = 1;
    for (int i = 0; i < t->n_dim; i++) n *= (double)t->dim[i];
    d->n_param += n;
    d->bytes += (double)t->n_bytes;
    const char *name = sy_format_name(t);
    size_t f = 0;
    while (f < d->n_format && strcmp(d->format[f].name, name)) f++;
    if (f == SY_FORMATS_MAX) return;
    if (f == d->n_format) d->format[d->n_format++].name = name;
    d->format[f].n++;
    d->format[f].bytes += (double)t->n_bytes;
}

/* The backend knows how its cache is laid out; it is opened for nothing else. */
static sy_status cache_bytes(struct sy_args *a, const struct sy_graph *g, int32_t block_len,
                             struct sy_engine_bytes *each, int64_t *slot, struct sy_err *err)
{
    const struct sy_backend_ops *ops = sy_backends[0];
    struct sy_backend_opt opt = {.n_thread = 1,
                                 .kv_dtype = (enum sy_kv_dtype)sy_arg_choice(a, "kv-dtype"),
                                 .state_dtype = (enum sy_state_dtype)sy_arg_choice(a, "state-dtype")};
    struct sy_backend *b;
    if (!ops) return sy_fail(err, SY_ENOSUP, "this build has no backend");
    sy_status st = ops->open(&a->app->env, &opt, &b, err);
    if (st) return st;
    each->window = sy_graph_window(g);
    each->block = ops->kv_block_bytes(b, g, block_len, &each->apart);
    *slot = ops->slot_bytes ? ops->slot_bytes(b, g) : 0;
    ops->close(b);
    return SY_OK;
}

/* The part of WEIGHT node id that a token reads. */
static double active_part(const struct sy_node *node, uint32_t n, uint32_t id)
{
    double most = 0;
    for (uint32_t i = 1; i < n; i++)
        for (size_t k = 0; k < SY_COUNT(node[i].in); k++) {
            if (node[i].in[k].id != id) continue;
            double part = 1;
            if (node[i].op == SY_OP_EMBED) part = 1 / (double)node[id].dim[0];
            if (node[i].op == SY_OP_EXPERTS) part = (double)node[i].attr.moe.n_used / node[i].attr.moe.n_expert;
            if (part > most) most = part;
        }
    return most;
}

/* What would stop the model from loading: a tensor that is missing, cannot be read, or has no place in it. */
static sy_status check_tensors(struct sy_args *a, struct sy_description *d, struct sy_err *err)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(d->graph, &n_node);
    bool *used = sy_arena_array(&a->arena, sy_checkpoint_count(d->ckpt) + 1, sizeof *used);
    if (!used) return sy_fail(err, SY_ENOMEM, "no memory for the description");
    for (uint32_t i = 1; i < n_node; i++) {
        if (node[i].op != SY_OP_WEIGHT) continue;
        d->n_active += active_part(node, n_node, i) * (double)node[i].dim[0] * (double)node[i].dim[1];
        char name[300];
        for (int k = 0; sy_weight_part(node[i].name, k, name, sizeof name); k++) {
            const struct sy_tensor *t = sy_checkpoint_find(d->ckpt, name);
            if (t) used[sy_checkpoint_index(d->ckpt, t)] = true;
            if (d->problem.code || (t && t->format)) continue;
            if (!t) (void)sy_fail(&d->problem, SY_EFORMAT, "tensor '%s' is missing", name);
            else
                (void)sy_fail(&d->problem, SY_ENOSUP, "tensor '%s': data type '%s' is not supported", t->file_name,
                              t->dtype);
        }
    }
    if (!d->problem.code) (void)!sy_checkpoint_check_extra(d->ckpt, used, &d->problem);
    return SY_OK;
}

/* Whole blocks for every sequence in what weights and states leave. */
static void fit(struct sy_args *a, struct sy_description *d, const struct sy_engine_bytes *each,
                const struct sy_engine_plan *p)
{
    if (!sy_arg_given(a, "memory")) return;
    d->memory = (double)sy_arg_int(a, "memory");
    double left = (d->memory - d->bytes) / d->seq_max - d->state_bytes, block = (double)each->block;
    if (p->n_apart) {
        block -= (double)each->apart;
        left -= (double)p->n_apart * (double)each->apart / d->seq_max;
    }
    double tokens = block > 0 ? floor(left / block) * p->block_len : d->model.info.n_ctx;
    if (left < 0) tokens = 0;
    d->ctx_fits = tokens < d->model.info.n_ctx ? (int64_t)tokens : d->model.info.n_ctx;
}

static sy_status plan(struct sy_args *a, struct sy_description *d, struct sy_err *err)
{
    int32_t block_len = (int32_t)sy_arg_int(a, "block-size"), own = d->model.info.n_ctx;
    d->seq_max = (int32_t)sy_arg_int(a, "max-seqs");
    d->ctx_len = sy_arg_given(a, "ctx-size") ? (int32_t)sy_arg_int(a, "ctx-size") : own < 8192 ? own : 8192;
    int32_t per_seq = (int32_t)sy_ceil_div(d->ctx_len, block_len), tok = (int32_t)sy_arg_int(a, "max-batched-tokens");
    struct sy_shape shape = {tok, d->seq_max, per_seq, d->seq_max, 0};
    sy_status st = sy_model_build(&a->app->env, &d->model, shape, &d->graph, err);
    int64_t slot = 0;
    struct sy_engine_bytes each = {0};
    struct sy_engine_opt o = {0};
    struct sy_engine_plan p = {.ctx_len = d->ctx_len,
                               .block_len = block_len,
                               .seq_max = d->seq_max,
                               .seq_group = d->seq_max,
                               .batch_tok_max = tok};
    if (!st) st = cache_bytes(a, d->graph, block_len, &each, &slot, err);
    if (!st) st = sy_engine_plan_blocks(&o, per_seq, &each, &p, err);
    d->state_bytes = (double)slot;
    d->kv_token_bytes = (double)each.block / block_len;
    d->kv_bytes = (double)p.kv_bytes;
    if (!st) fit(a, d, &each, &p);
    return st ? st : check_tensors(a, d, err);
}

sy_status sy_describe(struct sy_args *a, const struct sy_text_model *t, struct sy_description *d, struct sy_err *err)
{
    *d = (struct sy_description){.ckpt = t->ckpt, .tok = t->tok};
    for (size_t i = 0; i < sy_checkpoint_count(t->ckpt); i++) add_tensor(d, sy_checkpoint_at(t->ckpt, i));
    sy_status st = sy_model_open(&a->app->env, sy_checkpoint_config(t->ckpt), sy_checkpoint_path(t->ckpt), &d->model,
                                 &d->refusal);
    /* A model that cannot run can still be looked at. */
    if (st) {
        d->model.arch = NULL;
        return st == SY_ENOSUP ? SY_OK : sy_fail(err, st, "%s", d->refusal.msg);
    }
    return plan(a, d, err);
}

void sy_description_release(struct sy_description *d)
{
    sy_graph_free(d->graph);
    if (d->model.arch) sy_model_release(&d->model);
}
