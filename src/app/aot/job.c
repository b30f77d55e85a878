/* job.c - what `systole compile` is to compile: the target, the compiler, the model and the sizes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/aot/aot.h"
#include "app/hub/hub.h"
#include "base/file.h"
#include "graph/shard.h"
#include "plan/card.h"

/* "a, b, c" of n names. */
static void list_names(struct sy_buf *b, const char *name) { sy_buf_printf(b, "%s%s", b->len ? ", " : "", name); }

static sy_status unknown_target(const struct aot_job *j, const char *name, struct sy_err *err)
{
    int32_t n;
    struct sy_buf list;
    sy_buf_init(&list, &j->a->app->env, 0);
    const struct sy_aot_target *t = sy_aot_targets(&n);
    for (int32_t i = 0; i < n; i++) list_names(&list, t[i].name);
    sy_status st =
        sy_fail(err, SY_EARG, "--target '%.40s' is not known; expected one of %s", name, list.at ? list.at : "");
    sy_buf_release(&list);
    return st;
}

static sy_status unknown_format(const struct aot_job *j, const char *name, struct sy_err *err)
{
    struct sy_buf list;
    sy_buf_init(&list, &j->a->app->env, 0);
    for (const struct sy_quant *const *q = sy_quants; *q; q++) list_names(&list, (*q)->name);
    sy_status st =
        sy_fail(err, SY_EARG, "--weights '%.40s' is not known; expected one of %s", name, list.at ? list.at : "");
    sy_buf_release(&list);
    return st;
}

static sy_status find_plugin(struct aot_job *j, struct sy_err *err)
{
    static const struct {
        const char *variable, *what;
    } way[] = {
        [SY_AOT_TPU] = {"TPU_LIBRARY_PATH", "/path/of/libtpu.so ('pip install libtpu' brings it)"},
        [SY_AOT_GPU] = {"SYSTOLE_CUDA_PLUGIN",
                        "/path/of/xla_cuda_plugin.so ('pip install jax-cuda13-pjrt' brings it)"},
        [SY_AOT_CPU] = {"SYSTOLE_CPU_PLUGIN", "the path of a PJRT plugin for CPUs"},
    };
    bool given = sy_arg_given(j->a, "plugin");
    j->plugin = given ? sy_arg_text(j->a, "plugin") : getenv(way[j->target->kind].variable);
    if (j->plugin && *j->plugin) return SY_OK;
    return sy_fail(err, SY_EARG, "a compiler for %s is needed: give --plugin %s or set %s", j->target->name,
                   way[j->target->kind].what, way[j->target->kind].variable);
}

static sy_status find_target(struct aot_job *j, struct sy_err *err)
{
    const char *name = sy_arg_text(j->a, "target");
    j->target = sy_aot_target(name);
    if (!j->target) return unknown_target(j, name, err);
    sy_status st = find_plugin(j, err);
    if (st) return st;
    st = sy_session_shard(j->a, j->target->n_device, &j->opt.shard, err);
    if (st) return sy_while(err, st, "--target %s", name);
    j->store = sy_arg_text(j->a, "output");
    if (j->store) st = sy_dir_make(j->store, err);
    return st ? sy_while(err, st, "--output") : SY_OK;
}

static sy_status find_model(struct aot_job *j, struct sy_err *err)
{
    const struct sy_env *env = &j->a->app->env;
    const char *card = sy_arg_text(j->a, "model-card"), *path = sy_arg_text(j->a, "model");
    if (!card == !path) return sy_fail(err, SY_EARG, "expected either --model or --model-card");
    const char *format = sy_arg_text(j->a, "weights");
    if (!card && sy_arg_given(j->a, "weights"))
        return sy_fail(err, SY_EARG, "--weights goes with --model-card; --model has weights of its own");
    j->name = card ? card : path;
    j->opt.assume = sy_quant_by_name(format);
    if (!j->opt.assume) return unknown_format(j, format, err);
    if (card) {
        sy_status st = sy_card_config(env, card, &j->card, err);
        return st ? st : sy_model_open(env, j->card, card, &j->model, err);
    }
    sy_status st = sy_model_path(j->a, path, &path, err);
    if (!st) st = sy_checkpoint_open(env, path, &j->ckpt, err);
    return st ? st : sy_model_open(env, sy_checkpoint_config(j->ckpt), path, &j->model, err);
}

sy_status aot_graph(const struct aot_job *j, struct sy_shape shape, struct sy_graph **out, struct sy_err *err)
{
    const struct sy_env *env = &j->a->app->env;
    struct sy_graph *whole = NULL;
    sy_status st = sy_model_build(env, &j->model, shape, &whole, err);
    if (!st && sy_shard_ranks(&j->opt.shard) == 1) {
        *out = whole;
        return SY_OK;
    }
    if (!st) st = sy_graph_shard(env, whole, &j->opt.shard, out, err);
    sy_graph_free(whole);
    return st;
}

/* As the engine decides them, so that the programs are the ones that serving looks for. */
static sy_status find_sizes(struct aot_job *j, struct sy_err *err)
{
    static const enum sy_kv_dtype kv[] = {SY_KV_F32, SY_KV_BF16, SY_KV_F16, SY_KV_Q8_0};
    const struct sy_args *a = j->a;
    struct sy_engine_opt o = {.ctx_len = (int32_t)sy_arg_int(a, "ctx-size"),
                              .block_len = (int32_t)sy_arg_int(a, "block-size"),
                              .seq_max = (int32_t)sy_arg_int(a, "max-seqs"),
                              .batch_tok_max = (int32_t)sy_arg_int(a, "max-batched-tokens"),
                              .kv_bytes_max = sy_arg_int(a, "kv-memory")};
    struct sy_graph *g = NULL;
    struct sy_aot_bytes each = {0};
    int32_t ranks = sy_shard_ranks(&j->opt.shard) / sy_shard_groups(&j->opt.shard);
    o.backend_opt.shard = j->opt.shard;
    j->plan.info = j->model.info;
    sy_status st = sy_engine_plan_shape(&o, &j->plan, &j->max, err);
    if (st) return st;
    j->opt.compute = sy_arg_choice(a, "compute") == 0 ? SY_COMPUTE_BF16 : SY_COMPUTE_F32;
    j->opt.kv_dtype = kv[sy_arg_choice(a, "kv-dtype")];
    j->opt.attend_bf16 = sy_arg_choice(a, "attention-accumulate") == 1;
    j->opt.cache = (struct sy_cache_dim){j->plan.block_len, 1, 1, 1};
    st = aot_graph(j, j->max, &g, err);
    if (!st) st = sy_shard_check(g, &j->opt.shard, err);
    if (!st) each = sy_aot_state_bytes(g, &j->opt);
    struct sy_engine_bytes bytes = {.block = each.block * ranks, .apart = each.window * ranks};
    if (!st) bytes.window = sy_graph_window(g);
    sy_graph_free(g);
    if (!st) st = sy_engine_plan_slots(&o, each.slot * ranks, &j->plan, &j->max, err);
    if (!st) st = sy_engine_plan_blocks(&o, j->max.block, &bytes, &j->plan, err);
    j->max.apart = j->plan.n_apart > 0;
    if (sy_shard_groups(&j->opt.shard) > 1) j->max.seq = sy_engine_group_seqs(&j->plan);
    j->opt.cache.n_block = j->plan.n_block;
    j->opt.cache.n_apart = j->plan.n_apart;
    if (j->plan.n_slot > 0) j->opt.cache.n_slot = j->plan.n_slot;
    return st;
}

bool aot_is_wanted(const struct aot_job *j, struct sy_shape s)
{
    size_t n;
    const char *const *given = sy_arg_texts(j->a, "bucket", &n);
    char name[40];
    snprintf(name, sizeof name, "%dx%d", s.tok, s.seq);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(given[i], name)) return true;
    return n == 0;
}

/* Each --bucket names a shape there is. */
static sy_status check_wanted(const struct aot_job *j, struct sy_err *err)
{
    size_t n;
    const char *const *given = sy_arg_texts(j->a, "bucket", &n);
    struct sy_buckets b;
    sy_buckets_plan(j->max, j->plan.block_len, &b);
    sy_status st = SY_OK;
    for (size_t i = 0; i < n && !st; i++) {
        struct sy_buf list;
        bool found = false;
        sy_buf_init(&list, &j->a->app->env, 0);
        for (int32_t k = 0; k < b.n; k++) {
            char name[40];
            snprintf(name, sizeof name, "%dx%d", b.shape[k].tok, b.shape[k].seq);
            found |= !strcmp(given[i], name);
            if (!list.at || !strstr(list.at, name)) list_names(&list, name);
        }
        if (!found)
            st = sy_fail(err, SY_EARG, "--bucket '%.20s': expected one of %s", given[i], list.at ? list.at : "");
        sy_buf_release(&list);
    }
    return st;
}

sy_status aot_job_open(struct aot_job *j, struct sy_args *a, struct sy_err *err)
{
    *j = (struct aot_job){.a = a};
    sy_status st = find_target(j, err);
    if (!st) st = find_model(j, err);
    if (!st) st = find_sizes(j, err);
    return st ? st : check_wanted(j, err);
}

void aot_job_release(struct aot_job *j)
{
    sy_model_release(&j->model);
    sy_json_free(j->card);
    sy_checkpoint_free(j->ckpt);
}
