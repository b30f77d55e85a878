/* pjrt.c - the backend that runs the same graph on a TPU, a GPU or whatever else has a PJRT plugin: a program of
 * static shape for each bucket, weights and KV cache in the device's memory, one copy to it and one back per step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/pjrt/pjrt_int.h"

/* What a program takes and gives on each device: arg [n_rank][n_arg], out [n_rank][n_out]. */
struct lists {
    void **arg, **out;
    void *const *args[PJ_RANK_MAX];
    void **outs[PJ_RANK_MAX];
    int n_arg, n_out, n_rank;
};
struct sy_program {
    struct sy_backend *b;
    const struct sy_weights *w;
    struct sy_shape shape;
    void *executable;
    struct pj_results res;
    struct lists io; /* step, KV arrays, weights, given rows; KV arrays, tokens, logits, hidden states */
    struct pj_type step_type, given_type;
    int32_t *token; /* [n_out] on the host, as the next two */
    float *logits, *hidden;
    float *all; /* [tok] the same of every token; NULL: the program does not tell */
};
struct sy_kv_cache {
    struct sy_backend *b;
    struct pj_type *type; /* [n_kv] of one rank */
    void **buffer;        /* [n_rank][n_kv] as the last step left them */
    struct pj_arrays n;
    void *move[PJ_MOVE_COUNT]; /* programs */
    struct lists io;           /* arrays and two more; arrays */
    int32_t *pair;             /* [n_group][PJ_PAIRS][4] */
    struct sy_spot group;      /* blocks of a group: they are numbered through all groups */
    struct pj_type block_type;
};

static sy_status lists_new(const struct sy_env *env, struct lists *l, int n_rank, int n_arg, int n_out,
                           struct sy_err *err)
{
    *l = (struct lists){.n_arg = n_arg, .n_out = n_out, .n_rank = n_rank};
    l->arg = sy_new_array(env, (size_t)n_rank * (size_t)n_arg, sizeof *l->arg);
    l->out = sy_new_array(env, (size_t)n_rank * (size_t)n_out, sizeof *l->out);
    if (!l->arg || !l->out) return sy_fail(err, SY_ENOMEM, "no memory for a program's tables");
    for (int r = 0; r < n_rank; r++) {
        l->args[r] = l->arg + r * n_arg;
        l->outs[r] = l->out + r * n_out;
    }
    return SY_OK;
}

static void lists_release(struct sy_backend *b, struct lists *l)
{
    pj_buffers_free(b, l->out, l->n_rank * l->n_out);
    sy_delete(b->env, l->arg);
    sy_delete(b->env, l->out);
}

/* The same data to every device, as argument `at`. */
static sy_status give_all(struct sy_backend *b, struct lists *l, int at, const struct pj_type *t, const void *data,
                          struct sy_err *err)
{
    sy_status st = SY_OK;
    for (int r = 0; r < l->n_rank && !st; r++)
        st = pj_upload(&b->client, r, t, data, &l->arg[r * l->n_arg + at], err);
    return st;
}

/* The group of sequences that a rank works for; the i-th rank of a group. */
static int32_t group_of(const struct sy_backend *b, int32_t rank)
{
    return rank / (b->opt.shard.n_tp > 1 ? b->opt.shard.n_tp : 1) % b->n_group;
}
static int32_t group_rank(const struct sy_backend *b, int32_t group, int32_t i)
{
    int32_t rank = 0;
    while (group_of(b, rank) != group || i-- > 0) rank++;
    return rank;
}

/* To each device its group's data, of n bytes each, as argument `at`. */
static sy_status give_groups(struct sy_backend *b, struct lists *l, int at, const struct pj_type *t, const void *data,
                             struct sy_err *err)
{
    sy_status st = SY_OK;
    size_t n = (size_t)pj_type_bytes(t);
    for (int r = 0; r < l->n_rank && !st; r++)
        st = pj_upload(&b->client, r, t, (const char *)data + (size_t)group_of(b, r) * n, &l->arg[r * l->n_arg + at],
                       err);
    return st;
}

static void drop_all(struct sy_backend *b, struct lists *l, int at)
{
    for (int r = 0; r < l->n_rank; r++) pj_buffers_free(b, &l->arg[r * l->n_arg + at], 1);
}

/* ---- the device --------------------------------------------------------------------------------------------- */

static void close_backend(struct sy_backend *b)
{
    if (!b) return;
    pj_client_close(&b->client);
    sy_delete(b->env, b);
}

static sy_status check_ranks(const struct sy_backend_opt *opt, struct sy_err *err)
{
    int32_t n = sy_shard_ranks(&opt->shard);
    return n <= PJ_RANK_MAX ? SY_OK
                            : sy_fail(err, SY_ENOSUP, "--tp: expected at most %d devices, found %d", PJ_RANK_MAX, n);
}

static sy_status check_opt(const struct sy_backend_opt *opt, struct sy_err *err)
{
    if (!opt->device || !*opt->device)
        return sy_fail(err, SY_EARG, "--backend pjrt needs a plugin: expected pjrt:/path/of/plugin.so");
    if (opt->n_thread > 0)
        return sy_fail(err, SY_EARG,
                       "--threads does not reach a PJRT plugin; leave it out (PJRT_NPROC=%d bounds XLA's CPU plugin)",
                       opt->n_thread);
    if (opt->compute == SY_COMPUTE_INT8)
        return sy_fail(err, SY_ENOSUP, "--compute int8 is not supported by the pjrt backend; use auto, f32 or bf16");
    if (opt->state_dtype == SY_STATE_PAIR)
        return sy_fail(err, SY_ENOSUP, "--state-dtype pair is not supported by the pjrt backend; use f32 or bf16");
    return SY_OK;
}

static sy_status check_kernels(const struct sy_backend *b, struct sy_err *err)
{
    if (strcmp(b->client.platform, "tpu") != 0)
        return sy_fail(err, SY_ENOSUP,
                       "--kernels mosaic: these are for TPUs, and plugin '%s' is for '%s'; leave it out",
                       b->client.plugin.path, b->client.platform);
    return SY_OK;
}

static sy_status open_backend(const struct sy_env *env, const struct sy_backend_opt *opt, struct sy_backend **out,
                              struct sy_err *err)
{
    sy_status st = check_opt(opt, err);
    if (!st) st = check_ranks(opt, err);
    if (st) return st;
    struct sy_backend *b = sy_new(env, sizeof *b);
    if (!b) return sy_fail(err, SY_ENOMEM, "no memory for the pjrt backend");
    b->env = env;
    b->opt = *opt;
    b->n_rank = sy_shard_ranks(&opt->shard);
    b->n_group = sy_shard_groups(&opt->shard);
    st = pj_client_open(env, opt->device, b->n_rank, &b->client, err);
    if (!st && opt->own_kernels) st = check_kernels(b, err);
    if (st) {
        close_backend(b);
        return st;
    }
    b->client.cache_dir = opt->cache_dir;
    /* XLA multiplies bf16 on a CPU far more slowly than f32; elsewhere it is what the units are made for. */
    bool cpu = !strcmp(b->client.platform, "cpu");
    b->compute = opt->compute != SY_COMPUTE_AUTO ? opt->compute : cpu ? SY_COMPUTE_F32 : SY_COMPUTE_BF16;
    *out = b;
    return SY_OK;
}

static void device(struct sy_backend *b, struct sy_device *d, bool measure)
{
    (void)measure;
    *d = (struct sy_device){.bytes = pj_client_memory(&b->client), .n_compiled = b->client.n_compiled};
    snprintf(d->name, sizeof d->name, "pjrt %s", b->client.platform);
    snprintf(d->isa, sizeof d->isa, "%s", b->client.kind);
}

void pj_buffers_free(struct sy_backend *b, void **buffer, int n)
{
    for (int i = 0; b && buffer && i < n; i++) {
        pj_buffer_free(&b->client, buffer[i]);
        buffer[i] = NULL;
    }
}

/* ---- weights and programs ------------------------------------------------------------------------------------- */

static sy_status load(struct sy_backend *b, const struct sy_graph *g, const struct sy_checkpoint *ckpt,
                      struct sy_weights **out, struct sy_err *err)
{
    struct pj_weights_opt opt = {.compute = b->compute, .n_rank = b->n_rank};
    struct sy_weights *w;
    sy_status st = pj_weights_plan(b->env, g, ckpt, &opt, &w, err);
    if (!st) {
        st = pj_weights_load(b, w, ckpt, err);
        if (st) pj_weights_free(w);
        else *out = w;
    }
    return st ? sy_while(err, st, "loading '%s'", sy_checkpoint_path(ckpt)) : SY_OK;
}

static void weights_bytes(const struct sy_weights *w, double *read_per_step, double *held)
{
    *read_per_step = w->bytes_step * w->n_rank;
    *held = w->bytes_held * w->n_rank;
}

static struct pj_lower_opt lower_opt(const struct sy_backend *b, struct sy_cache_dim dim)
{
    static const enum pj_elem elem[] = {
        [SY_KV_F32] = PJ_F32, [SY_KV_BF16] = PJ_BF16, [SY_KV_F16] = PJ_F16, [SY_KV_Q8_0] = PJ_I8};
    return (struct pj_lower_opt){.compute = b->compute,
                                 .kv_elem = elem[b->opt.kv_dtype],
                                 .state_elem = b->opt.state_dtype == SY_STATE_BF16 ? PJ_BF16 : PJ_F32,
                                 .attend_bf16 = b->opt.attend_bf16,
                                 .kernels = b->opt.own_kernels ? SY_KERNELS_ALL : 0,
                                 .cache = dim,
                                 .n_rank = b->n_rank};
}

static void program_free(struct sy_program *p)
{
    if (!p) return;
    struct sy_backend *b = p->b;
    lists_release(b, &p->io);
    pj_executable_free(&b->client, p->executable);
    sy_delete(b->env, p->token);
    sy_delete(b->env, p->logits);
    sy_delete(b->env, p->hidden);
    sy_delete(b->env, p->all);
    sy_delete(b->env, p);
}

static sy_status program_tables(struct sy_program *p, struct sy_err *err)
{
    const struct sy_env *env = p->b->env;
    size_t out = (size_t)p->res.n_out * (size_t)p->b->n_group;
    int64_t n_step = 0;
    for (int f = 0; f < SY_FIELD_COUNT; f++) n_step += sy_field_len((enum sy_field)f, p->shape);
    p->step_type = PJ_TYPE(PJ_I32, n_step);
    p->given_type = PJ_TYPE(PJ_F32, p->shape.tok, p->res.d_given);
    p->token = sy_new_array(env, out, sizeof *p->token);
    p->logits = sy_new_array(env, out * (size_t)p->res.n_vocab, sizeof *p->logits);
    p->hidden = sy_new_array(env, out * (size_t)p->res.d_model, sizeof *p->hidden);
    size_t n_all = p->res.all ? (size_t)p->shape.tok * (size_t)p->b->n_group : 0;
    if (n_all) p->all = sy_new_array(env, n_all * (size_t)p->res.d_model, sizeof *p->all);
    if (!p->token || !p->logits || !p->hidden || (n_all && !p->all))
        return sy_fail(err, SY_ENOMEM, "no memory for a program's tables");
    int n_arg = 1 + p->res.n_kv + p->w->n_arg + (p->res.d_given > 0);
    sy_status st = lists_new(env, &p->io, p->b->n_rank, n_arg, p->res.n_kv + 3 + p->res.all, err);
    for (int r = 0; r < p->b->n_rank && !st; r++)
        memcpy(p->io.arg + r * p->io.n_arg + 1 + p->res.n_kv, p->w->buffer + r * p->w->n_arg,
               (size_t)p->w->n_arg * sizeof *p->io.arg);
    return st;
}

static sy_status compile(struct sy_backend *b, const struct sy_graph *g, const struct sy_weights *w,
                         struct sy_cache_dim dim, struct sy_program **out, struct sy_err *err)
{
    struct sy_program *p = sy_new(b->env, sizeof *p);
    if (!p) return sy_fail(err, SY_ENOMEM, "no memory for a program");
    p->b = b;
    p->w = w;
    p->shape = sy_graph_shape(g);
    struct pj_lower_opt opt = lower_opt(b, dim);
    struct sy_buf text;
    sy_buf_init(&text, b->env, 0);
    sy_status st = pj_lower(b->env, g, w, &opt, &text, &p->res, err);
    if (!st) st = pj_compile(&b->client, text.at, text.len, b->n_rank, &p->executable, err);
    if (!st) st = program_tables(p, err);
    sy_buf_release(&text);
    if (st) {
        program_free(p);
        return sy_while(err, st, "program of %d tokens, %d sequences", sy_graph_shape(g).tok, sy_graph_shape(g).seq);
    }
    *out = p;
    return SY_OK;
}

/* ---- KV cache ------------------------------------------------------------------------------------------------- */

static int64_t kv_block_bytes(struct sy_backend *b, const struct sy_graph *g, int32_t block_len, int64_t *apart)
{
    struct pj_lower_opt opt = lower_opt(b, (struct sy_cache_dim){block_len, 1, 1, 1});
    struct pj_bytes each = pj_state_bytes(g, &opt);
    *apart = (int64_t)each.window * b->n_rank / b->n_group;
    return (int64_t)each.blocks * b->n_rank / b->n_group;
}

static int64_t slot_bytes(struct sy_backend *b, const struct sy_graph *g)
{
    struct pj_lower_opt opt = lower_opt(b, (struct sy_cache_dim){1, 1, 1, 1});
    return (int64_t)pj_state_bytes(g, &opt).slots * b->n_rank / b->n_group;
}

static void free_kv_cache(struct sy_kv_cache *c)
{
    if (!c) return;
    struct sy_backend *b = c->b;
    pj_buffers_free(b, c->buffer, b->n_rank * c->n.n);
    lists_release(b, &c->io);
    for (int i = 0; i < PJ_MOVE_COUNT; i++) pj_executable_free(&b->client, c->move[i]);
    sy_delete(b->env, c->type);
    sy_delete(b->env, c->buffer);
    sy_delete(b->env, c->pair);
    sy_delete(b->env, c);
}

static sy_status compile_moves(struct sy_kv_cache *c, struct sy_err *err)
{
    struct sy_backend *b = c->b;
    sy_status st = SY_OK;
    for (int i = 0; i < PJ_MOVE_COUNT && !st; i++) {
        struct sy_buf text;
        if ((i == PJ_MOVE_ZERO ? c->n.n : c->n.n_block) == 0) continue;
        sy_buf_init(&text, b->env, 0);
        st = pj_lower_move(b->env, (enum pj_move)i, c->type, c->n, b->n_rank, &text, err);
        if (!st) st = pj_compile(&b->client, text.at, text.len, b->n_rank, &c->move[i], err);
        sy_buf_release(&text);
    }
    return st;
}

/* Runs a move over the arrays of blocks and the further arguments already given; its results are left in c->io.out.
 */
static sy_status run_move(struct sy_kv_cache *c, enum pj_move what, int n_arg, struct sy_err *err)
{
    struct lists *l = &c->io;
    for (int r = 0; r < l->n_rank && n_arg; r++)
        memcpy(l->arg + r * l->n_arg, c->buffer + r * c->n.n, (size_t)c->n.n_block * sizeof *l->arg);
    return pj_execute(&c->b->client, c->move[what], l->n_rank, l->args, (size_t)n_arg, l->outs, err);
}

/* The first n arrays, which a program left, take the place of those it consumed. */
static void take_arrays(struct sy_kv_cache *c, struct lists *l, int n)
{
    for (int r = 0; r < l->n_rank; r++)
        for (int i = 0; i < n; i++) {
            pj_buffers_free(c->b, &c->buffer[r * c->n.n + i], 1);
            c->buffer[r * c->n.n + i] = l->outs[r][i];
            l->outs[r][i] = NULL;
        }
}

static sy_status allocate_kv_cache(struct sy_backend *b, const struct sy_graph *g, struct sy_cache_dim dim,
                                   struct sy_kv_cache **out, struct sy_err *err)
{
    struct sy_kv_cache *c = sy_new(b->env, sizeof *c);
    if (!c) return sy_fail(err, SY_ENOMEM, "no memory for the KV cache");
    c->b = b;
    struct pj_lower_opt lo = lower_opt(b, dim);
    c->n = pj_state_arrays(g, &lo, NULL, NULL);
    size_t n = (size_t)c->n.n + 2;
    c->type = sy_new_array(b->env, n, sizeof *c->type);
    c->buffer = sy_new_array(b->env, n * (size_t)b->n_rank, sizeof *c->buffer);
    c->pair = sy_new_array(b->env, (size_t)PJ_PAIRS * 4 * (size_t)b->n_group, sizeof *c->pair);
    c->group = (struct sy_spot){dim.n_block, dim.n_apart};
    bool ok = c->type && c->buffer && c->pair;
    sy_status st = ok ? SY_OK : sy_fail(err, SY_ENOMEM, "no memory for the KV cache");
    if (!st) st = lists_new(b->env, &c->io, b->n_rank, c->n.n + 2, c->n.n + 1, err);
    if (!st && c->n.n) {
        (void)pj_state_arrays(g, &lo, c->type, NULL);
        c->block_type = PJ_TYPE(c->type[0].elem, pj_block_count(c->type, c->n.n_block));
        st = compile_moves(c, err);
        if (!st) st = run_move(c, PJ_MOVE_ZERO, 0, err);
        if (!st) take_arrays(c, &c->io, c->n.n);
    }
    if (st) {
        free_kv_cache(c);
        return sy_while(err, st, "KV cache of %d blocks and %d slots", dim.n_block, dim.n_slot);
    }
    *out = c;
    return SY_OK;
}

/* These three cannot fail towards their caller: the next step tells. */
static void note(struct sy_backend *b, sy_status st, const struct sy_err *err)
{
    if (st && !b->failed.code) b->failed = *err;
}

/* The place within its group, whose number is returned. */
static int32_t within_group(const struct sy_kv_cache *c, struct sy_spot *p)
{
    int32_t group = p->block / c->group.block;
    p->block -= group * c->group.block;
    if (c->group.apart) p->apart %= c->group.apart;
    return group;
}

static void copy_blocks(struct sy_backend *b, struct sy_kv_cache *c, const struct sy_copy *copy, int32_t n)
{
    struct pj_type t = PJ_TYPE(PJ_I32, PJ_PAIRS, 4);
    struct sy_err err = {0};
    sy_status st = SY_OK;
    for (int32_t at = 0; at < n && !st; at += PJ_PAIRS) {
        memset(c->pair, 0, (size_t)PJ_PAIRS * 4 * (size_t)b->n_group * sizeof *c->pair); /* block 0 onto itself */
        for (int32_t i = 0; i < PJ_PAIRS && at + i < n; i++) {
            struct sy_copy one = copy[at + i];
            int32_t group = within_group(c, &one.from), *pair = c->pair + 4 * (group * PJ_PAIRS + i);
            (void)within_group(c, &one.to);
            pair[0] = one.from.block;
            pair[1] = one.from.apart;
            pair[2] = one.to.block;
            pair[3] = one.to.apart;
        }
        st = give_groups(b, &c->io, c->n.n_block, &t, c->pair, &err);
        if (!st) st = run_move(c, PJ_MOVE_COPY, c->n.n_block + 1, &err);
        if (!st) take_arrays(c, &c->io, c->n.n_block);
        drop_all(b, &c->io, c->n.n_block);
    }
    note(b, st, &err);
}

static void save_block(struct sy_backend *b, struct sy_kv_cache *c, struct sy_spot place, void *host)
{
    struct pj_type t = PJ_TYPE(PJ_I32, 2);
    struct sy_err err = {0};
    size_t n = (size_t)pj_type_bytes(&c->block_type);
    int32_t group = within_group(c, &place), own[2] = {place.block, place.apart};
    sy_status st = give_all(b, &c->io, c->n.n_block, &t, own, &err);
    if (!st) st = run_move(c, PJ_MOVE_SAVE, c->n.n_block + 1, &err);
    for (int i = 0; i < b->n_rank / b->n_group && !st; i++)
        st = pj_download(&b->client, c->io.outs[group_rank(b, group, i)][0], (char *)host + (size_t)i * n, n, &err);
    for (int r = 0; r < b->n_rank; r++) pj_buffers_free(b, c->io.outs[r], 1);
    drop_all(b, &c->io, c->n.n_block);
    note(b, st, &err);
}

static void restore_block(struct sy_backend *b, struct sy_kv_cache *c, struct sy_spot place, const void *host)
{
    struct pj_type t = PJ_TYPE(PJ_I32, 2);
    struct sy_err err = {0};
    size_t n = (size_t)pj_type_bytes(&c->block_type);
    int32_t group = within_group(c, &place), own[2] = {place.block, place.apart}, zero[2] = {0};
    sy_status st = SY_OK;
    /* Ranks of other groups write their block 0, which nobody reads. */
    for (int r = 0, i = 0; r < b->n_rank && !st; r++) {
        bool is_own = group_of(b, r) == group;
        void **arg = c->io.arg + r * c->io.n_arg + c->n.n_block;
        st = pj_upload(&b->client, r, &t, is_own ? own : zero, &arg[0], &err);
        if (!st) st = pj_upload(&b->client, r, &c->block_type, (const char *)host + (size_t)i * n, &arg[1], &err);
        i = is_own && i + 1 < b->n_rank / b->n_group ? i + 1 : i;
    }
    if (!st) st = run_move(c, PJ_MOVE_RESTORE, c->n.n_block + 2, &err);
    if (!st) take_arrays(c, &c->io, c->n.n_block);
    drop_all(b, &c->io, c->n.n_block);
    drop_all(b, &c->io, c->n.n_block + 1);
    note(b, st, &err);
}

/* ---- steps ------------------------------------------------------------------------------------------------------
 */

static sy_status run_step(struct sy_backend *b, struct sy_program *p, struct sy_kv_cache *c,
                          const struct sy_batch *batch, struct sy_err *err)
{
    struct lists *l = &p->io;
    pj_buffers_free(b, l->out, l->n_rank * l->n_out); /* of its last step */
    sy_status st = SY_OK;
    for (int r = 0; r < l->n_rank && !st; r++)
        st = pj_upload(&b->client, r, &p->step_type, batch[group_of(b, r)].mem, &l->arg[r * l->n_arg], err);
    for (int r = 0; r < l->n_rank && p->res.d_given && !st; r++) {
        const struct sy_batch *own = &batch[group_of(b, r)];
        sy_assert(own->given && own->ld_given == p->res.d_given);
        st = pj_upload(&b->client, r, &p->given_type, own->given, &l->arg[(r + 1) * l->n_arg - 1], err);
    }
    for (int r = 0; r < l->n_rank && !st; r++)
        memcpy(l->arg + r * l->n_arg + 1, c->buffer + r * c->n.n, (size_t)c->n.n * sizeof *l->arg);
    if (!st) st = pj_execute(&b->client, p->executable, l->n_rank, l->args, (size_t)l->n_arg, l->outs, err);
    drop_all(b, l, 0);
    if (p->res.d_given) drop_all(b, l, l->n_arg - 1);
    if (!st) take_arrays(c, l, c->n.n);
    return st;
}

static sy_status forward(struct sy_backend *b, struct sy_program *p, struct sy_kv_cache *kv,
                         const struct sy_batch *batch)
{
    struct sy_err err = {0};
    b->running = p;
    b->n_out = 0;
    for (int32_t g = 0; g < b->n_group; g++) b->n_out += batch[g].n_out;
    if (!b->failed.code) note(b, run_step(b, p, kv, batch, &err), &err);
    return SY_OK;
}

static sy_status wait_result(struct sy_backend *b, struct sy_want want, struct sy_result *out, struct sy_err *err)
{
    struct sy_program *p = b->running;
    if (b->failed.code) {
        if (err) *err = b->failed;
        return b->failed.code;
    }
    const struct pj_results *r = &p->res;
    size_t n = (size_t)r->n_out, f = sizeof(float), vocab = (size_t)r->n_vocab, model = (size_t)r->d_model;
    sy_status st = SY_OK;
    for (int32_t g = 0; g < b->n_group && !st; g++) { /* every device of a group has the same */
        size_t at = (size_t)g * n;
        void **o = p->io.outs[group_rank(b, g, 0)] + r->n_kv;
        st = pj_download(&b->client, o[0], p->token + at, n * sizeof *p->token, err);
        if (!st && want.logits) st = pj_download(&b->client, o[1], p->logits + at * vocab, n * vocab * f, err);
        if (!st && want.hidden) st = pj_download(&b->client, o[2], p->hidden + at * model, n * model * f, err);
        size_t n_tok = (size_t)p->shape.tok;
        if (!st && want.all && r->all)
            st = pj_download(&b->client, o[3], p->all + (size_t)g * n_tok * model, n_tok * model * f, err);
    }
    *out = (struct sy_result){.token = p->token,
                              .logits = p->logits,
                              .ld = r->n_vocab,
                              .hidden = p->hidden,
                              .ld_hidden = r->d_model,
                              .all = p->all,
                              .ld_all = r->d_model,
                              .n = b->n_out,
                              .n_vocab = r->n_vocab,
                              .d_model = r->d_model};
    return st;
}

const struct sy_backend_ops sy_backend_pjrt = {
    .name = "pjrt",
    .open = open_backend,
    .close = close_backend,
    .device = device,
    .load = load,
    .weights_bytes = weights_bytes,
    .compile = compile,
    .allocate_kv_cache = allocate_kv_cache,
    .copy_blocks = copy_blocks,
    .save_block = save_block,
    .restore_block = restore_block,
    .kv_block_bytes = kv_block_bytes,
    .slot_bytes = slot_bytes,
    .forward = forward,
    .wait = wait_result,
    .weights_free = pj_weights_free,
    .program_free = program_free,
    .free_kv_cache = free_kv_cache,
};
