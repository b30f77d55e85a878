/* session.c - flags to an engine. */
#include "app/session/session.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "app/hub/hub.h"

static void on_load(void *ctx, double done) { sy_progress_share(ctx, done); }

/* Where compiled programs are kept. NULL: nowhere, which costs start-up time only, so that a home that cannot be
 * written is no error; a folder that was asked for and cannot be had is one. */
static sy_status program_cache(struct sy_args *a, const char **out, struct sy_err *err)
{
    const char *backend = sy_arg_text(a, "backend"), *home, *dir;
    *out = NULL;
    if (!backend || strncmp(backend, "pjrt:", 5) != 0) return SY_OK;
    if (sy_arg_given(a, "programs")) {
        *out = sy_arg_text(a, "programs");
        sy_status st = sy_dir_make(*out, err);
        return st ? sy_while(err, st, "--programs") : SY_OK;
    }
    if (sy_cache_home(&a->arena, &home, NULL)) return SY_OK;
    dir = sy_arena_printf(&a->arena, "%s/programs", home);
    if (dir && !sy_dir_make(dir, NULL)) *out = dir;
    return SY_OK;
}

sy_status sy_session_opt(struct sy_args *a, struct sy_engine_opt *out, struct sy_err *err)
{
    *out = (struct sy_engine_opt){
        .backend = sy_arg_text(a, "backend"),
        .backend_opt = {.n_thread = (int32_t)sy_arg_int(a, "threads"),
                        .compute = (enum sy_compute)sy_arg_choice(a, "compute"),
                        .kv_dtype = (enum sy_kv_dtype)sy_arg_choice(a, "kv-dtype"),
                        .state_dtype = (enum sy_state_dtype)sy_arg_choice(a, "state-dtype"),
                        .attend_bf16 = sy_arg_choice(a, "attention-accumulate") == 1,
                        .own_kernels = sy_arg_choice(a, "kernels") == 1},
        .ctx_len = (int32_t)sy_arg_int(a, "ctx-size"),
        .block_len = (int32_t)sy_arg_int(a, "block-size"),
        .seq_max = (int32_t)sy_arg_int(a, "max-seqs"),
        .batch_tok_max = (int32_t)sy_arg_int(a, "max-batched-tokens"),
        .kv_bytes_max = sy_arg_int(a, "kv-memory"),
        .draft_max = (int32_t)sy_arg_int(a, "draft-max"),
        .draft_model = sy_arg_text(a, "draft-model"),
    };
    sy_status st = program_cache(a, &out->backend_opt.cache_dir, err);
    return st ? st : sy_session_shard(a, 0, &out->backend_opt.shard, err);
}

sy_status sy_session_models(struct sy_args *a, struct sy_engine_opt *o, struct sy_err *err)
{
    sy_status st = sy_model_path(a, sy_arg_text(a, "model"), &o->model, err);
    if (st || !o->draft_model || !strcmp(o->draft_model, "mtp")) return st;
    return sy_model_path(a, o->draft_model, &o->draft_model, err);
}

sy_status sy_session_open(struct sy_args *a, bool one_sequence, struct sy_engine **out, struct sy_err *err)
{
    struct sy_engine_opt opt;
    sy_status st = sy_session_opt(a, &opt, err);
    if (!st) st = sy_session_models(a, &opt, err);
    if (st) return st;
    struct sy_progress bar;
    sy_progress_init(&bar, &a->app->env, a->app->progress, "loading");
    opt.backend_opt.one_sequence = one_sequence;
    opt.shapes = SY_SHAPES_LATER; /* a few steps' programs are enough */
    opt.backend_opt.progress = on_load;
    opt.backend_opt.progress_ctx = &bar;
    st = sy_engine_new(&a->app->env, &opt, out, err);
    sy_progress_end(&bar);
    return st;
}

/* A flag that was given, else the model's own default, else the fallback. */
static double choose(const struct sy_args *a, const char *flag, double given, const struct sy_json *gen,
                     const char *key, double fallback)
{
    return sy_arg_given(a, flag) ? given : sy_json_number(sy_json_get(gen, key), fallback);
}

sy_status sy_session_sampling(const struct sy_args *a, const struct sy_engine *e, struct sy_sampling *out,
                              struct sy_err *err)
{
    const struct sy_json *gen = sy_checkpoint_generation(sy_engine_checkpoint(e));
    /* Without do_sample, transformers decodes greedily and ignores what else the file says. */
    bool sample = sy_json_bool(sy_json_get(gen, "do_sample"), false);
    if (!sample) gen = NULL;
    *out = (struct sy_sampling){
        .temperature =
            (float)choose(a, "temperature", sy_arg_num(a, "temperature"), gen, "temperature", sample ? 1 : 0),
        .top_k = (int32_t)choose(a, "top-k", (double)sy_arg_int(a, "top-k"), gen, "top_k", 0),
        .top_p = (float)choose(a, "top-p", sy_arg_num(a, "top-p"), gen, "top_p", 1),
        .min_p = (float)choose(a, "min-p", sy_arg_num(a, "min-p"), gen, "min_p", 0),
        .repeat_penalty =
            (float)choose(a, "repeat-penalty", sy_arg_num(a, "repeat-penalty"), gen, "repetition_penalty", 1),
        .presence_penalty = (float)sy_arg_num(a, "presence-penalty"),
        .frequency_penalty = (float)sy_arg_num(a, "frequency-penalty"),
        .seed = (uint64_t)sy_arg_int(a, "seed"),
        .n_logprob = -1,
    };
    if (out->temperature <= 0 || sy_arg_given(a, "seed")) return SY_OK;
    if (getrandom(&out->seed, sizeof out->seed, 0) != (ssize_t)sizeof out->seed)
        return sy_fail(err, SY_EIO, "cannot draw a seed: %s; give one with --seed", strerror(errno));
    out->seed >>= 11; /* what --seed takes, so that a report of it can be used */
    return SY_OK;
}
