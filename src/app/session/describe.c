/* describe.c - a checkpoint's contents and its needs. */
#include "app/session/describe.h"

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
static sy_status cache_bytes(struct sy_args *a, const struct sy_graph *g, int32_t block_len, int64_t *block,
                             int64_t *slot, struct sy_err *err)
{
    const struct sy_backend_ops *ops = sy_backends[0];
    struct sy_backend_opt opt = {.n_thread = 1,
                                 .kv_dtype = (enum sy_kv_dtype)sy_arg_choice(a, "kv-dtype"),
                                 .state_dtype = (enum sy_state_dtype)sy_arg_choice(a, "state-dtype")};
    struct sy_backend *b;
    if (!ops) return sy_fail(err, SY_ENOSUP, "this build has no backend");
    sy_status st = ops->open(&a->app->env, &opt, &b, err);
    if (st) return st;
    *block = ops->kv_block_bytes(b, g, block_len);
    *slot = ops->slot_bytes ? ops->slot_bytes(b, g) : 0;
    ops->close(b);
    return SY_OK;
}

static sy_status plan(struct sy_args *a, struct sy_description *d, struct sy_err *err)
{
    int32_t block_len = (int32_t)sy_arg_int(a, "block-size"), own = d->model.info.n_ctx;
    d->seq_max = (int32_t)sy_arg_int(a, "max-seqs");
    d->ctx_len = sy_arg_given(a, "ctx-size") ? (int32_t)sy_arg_int(a, "ctx-size") : own < 8192 ? own : 8192;
    int32_t per_seq = (d->ctx_len + block_len - 1) / block_len, tok = (int32_t)sy_arg_int(a, "max-batched-tokens");
    struct sy_shape shape = {tok, d->seq_max, per_seq, d->seq_max};
    sy_status st = sy_model_build(&a->app->env, &d->model, shape, &d->graph, err);
    int64_t bytes = 0, slot = 0;
    if (!st) st = cache_bytes(a, d->graph, block_len, &bytes, &slot, err);
    d->state_bytes = (double)slot;
    d->kv_token_bytes = (double)bytes / block_len;
    d->kv_bytes = (double)bytes * per_seq * d->seq_max;
    return st;
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
