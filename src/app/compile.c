/* compile.c - the step programs of a model, compiled ahead of time for a TPU that is not here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/aot/child.h"
#include "app/hub/hub.h"
#include "app/session/session.h"
#include "backend/pjrt/aot.h"
#include "graph/buckets.h"
#include "graph/shard.h"
#include "model/model.h"

static const char *const computes[] = {"bf16", "f32", NULL};
static const char *const kv_dtypes[] = {"f32", "bf16", "f16", NULL};
static const struct sy_flag flags[] = {
    {.name = "model",
     .letter = 'm',
     .kind = SY_FLAG_TEXT,
     .arg = "MODEL",
     .help = "a GGUF file (first shard of several), a Hugging Face folder, or hf:org/name[:file]"},
    {.name = "model-card",
     .kind = SY_FLAG_TEXT,
     .arg = "FILE",
     .help = "a config.json instead of a model: no weights are needed"},
    {.name = "weights",
     .kind = SY_FLAG_TEXT,
     .arg = "FORMAT",
     .otherwise = "bf16",
     .help = "format of the matrices that --model-card does not tell: bf16, q8_0, q4_0, ..."},
    {.name = "target",
     .required = true,
     .kind = SY_FLAG_TEXT,
     .arg = "CHIPS",
     .help = "what to compile for: v5e-8, v6e-1, v7-8, ... (the error for an unknown name lists them)"},
    {.name = "plugin",
     .kind = SY_FLAG_TEXT,
     .arg = "FILE",
     .help = "the compiler: libtpu.so, as 'pip install libtpu' brings it; else TPU_LIBRARY_PATH of the environment"},
    {.name = "tp",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 64,
     .otherwise = "all devices of the target",
     .help = "devices that share the model by tensor parallelism"},
    {.name = "max-seqs",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 4096,
     .number = 64,
     .help = "sequences at once"},
    {.name = "max-batched-tokens",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 1048576,
     .number = 1024,
     .help = "tokens in one step"},
    {.name = "block-size",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 1024,
     .number = 32,
     .help = "positions in a block of the KV cache, a power of two"},
    {.name = "kv-dtype",
     .kind = SY_FLAG_CHOICE,
     .choices = kv_dtypes,
     .otherwise = "bf16",
     .help = "type of the KV cache"},
    {.name = "compute",
     .kind = SY_FLAG_CHOICE,
     .choices = computes,
     .otherwise = "bf16",
     .help = "operands of the matrix products"},
    {.name = "bucket",
     .kind = SY_FLAG_TEXTS,
     .arg = "TOKENSxSEQUENCES",
     .otherwise = "all",
     .help = "compile only these static shapes; may be repeated"},
    {.name = "json", .kind = SY_FLAG_SWITCH, .help = "print a JSON object"},
    {0},
};
static const struct sy_example examples[] = {
    {"systole compile --model-card config.json --target v5e-8 --ctx-size 8192 --max-seqs 64",
     "does it fit, and how fast"},
    {"systole compile -m model.gguf --target v6e-1 --bucket 4x4", "one decode step of four sequences"},
    {0},
};

struct job {
    struct sy_args *a;
    const struct sy_aot_target *target;
    const char *plugin;
    struct sy_model model;
    struct sy_checkpoint *ckpt; /* NULL: a card */
    struct sy_json *card;
    struct sy_aot_opt opt;
    int32_t ctx_len;
    struct sy_shape max;
    struct sy_buf out;
    int32_t n_done;
    double trips[SY_AOT_LOOPS];
    const struct sy_aot_program *program;
};

/* ---- what to compile --------------------------------------------------------------------------------------------
 */

static sy_status find_target(struct job *j, struct sy_err *err)
{
    const char *name = sy_arg_text(j->a, "target");
    j->target = sy_aot_target(name);
    if (!j->target) {
        int32_t n;
        char list[300] = "";
        const struct sy_aot_target *t = sy_aot_targets(&n);
        for (int32_t i = 0; i < n; i++) {
            size_t at = strlen(list);
            snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", t[i].name);
        }
        return sy_fail(err, SY_EARG, "--target '%.40s' is not known; expected one of %s", name, list);
    }
    const char *given = sy_arg_text(j->a, "plugin");
    j->plugin = given ? given : getenv("TPU_LIBRARY_PATH");
    if (!j->plugin || !*j->plugin)
        return sy_fail(err, SY_EARG,
                       "a compiler is needed: give --plugin /path/of/libtpu.so ('pip install libtpu' brings it) or "
                       "set TPU_LIBRARY_PATH");
    int32_t tp = sy_arg_given(j->a, "tp") ? (int32_t)sy_arg_int(j->a, "tp") : j->target->n_device;
    if (tp > j->target->n_device)
        return sy_fail(err, SY_EARG, "--tp %d: %s has %d devices", tp, name, j->target->n_device);
    j->opt.n_rank = tp;
    return SY_OK;
}

static sy_status find_model(struct job *j, struct sy_err *err)
{
    const struct sy_env *env = &j->a->app->env;
    const char *card = sy_arg_text(j->a, "model-card"), *path = sy_arg_text(j->a, "model");
    if (!card == !path) return sy_fail(err, SY_EARG, "expected either --model or --model-card");
    const char *format = sy_arg_text(j->a, "weights");
    j->opt.assume = sy_quant_by_name(format);
    if (!j->opt.assume) return sy_fail(err, SY_EARG, "--weights '%.40s' is no format that is known", format);
    if (card) {
        sy_status st = sy_json_file(env, card, &j->card, err);
        return st ? st : sy_model_open(env, j->card, card, &j->model, err);
    }
    sy_status st = sy_model_path(j->a, path, &path, err);
    if (!st) st = sy_checkpoint_open(env, path, &j->ckpt, err);
    return st ? st : sy_model_open(env, sy_checkpoint_config(j->ckpt), path, &j->model, err);
}

static sy_status find_sizes(struct job *j, struct sy_err *err)
{
    const struct sy_info *info = &j->model.info;
    int32_t len = (int32_t)sy_arg_int(j->a, "block-size"), seq = (int32_t)sy_arg_int(j->a, "max-seqs");
    j->ctx_len = sy_arg_given(j->a, "ctx-size") ? (int32_t)sy_arg_int(j->a, "ctx-size")
                 : info->n_ctx < 8192           ? info->n_ctx
                                                : 8192;
    if (j->ctx_len > info->n_ctx)
        return sy_fail(err, SY_EARG, "--ctx-size %d is more than the %d tokens the model was made for", j->ctx_len,
                       info->n_ctx);
    int32_t blocks = (j->ctx_len + len - 1) / len, tok = (int32_t)sy_arg_int(j->a, "max-batched-tokens");
    int64_t n_block = 1 + (int64_t)seq * blocks;
    if (n_block > INT32_MAX / len)
        return sy_fail(err, SY_EARG, "%d sequences of %d tokens are too many", seq, j->ctx_len);
    j->max = (struct sy_shape){tok > seq ? tok : seq, seq, blocks, seq};
    j->opt.cache = (struct sy_cache_dim){len, (int32_t)n_block, 1};
    j->opt.compute = sy_arg_choice(j->a, "compute") == 0 ? SY_COMPUTE_BF16 : SY_COMPUTE_F32;
    static const enum sy_kv_dtype kv[] = {SY_KV_F32, SY_KV_BF16, SY_KV_F16};
    j->opt.kv_dtype = kv[sy_arg_choice(j->a, "kv-dtype")];
    return SY_OK;
}

/* ---- one bucket ---------------------------------------------------------------------------------------------------
 */

static sy_status compile_in_child(void *ctx, void *result, struct sy_err *err)
{
    const struct job *j = ctx;
    return sy_aot_compile(&j->a->app->env, j->plugin, j->target, &j->program->text, j->opt.n_rank, j->trips, result,
                          err);
}

/* What memory and arithmetic allow at best, in seconds: weights and keys read once, every device alike. */
static double roofline(const struct job *j, const struct sy_graph *g, const struct sy_aot_program *p)
{
    struct sy_shape s = p->shape;
    double keys = (double)s.block * j->opt.cache.block_len, n = s.tok;
    bool decode = s.tok == s.seq;
    struct sy_load load = {.tok = n,
                           .out = decode ? n : 1,
                           .keys = decode ? n * keys : n * (n + 1) / 2,
                           .ctx = decode ? n * keys : n,
                           .kv_elem_bytes = j->opt.kv_dtype == SY_KV_F32 ? 4 : 2};
    struct sy_cost c = sy_graph_cost(g, &load);
    double memory = (p->step_bytes + c.b_state) / j->target->hbm_bytes_s, flops = c.flops / j->target->flops_s;
    return memory > flops ? memory : flops;
}

static void print_line(struct job *j, const struct sy_aot_program *p, const struct sy_aot_result *r, double roof)
{
    double step = r->cycles / j->target->clock_hz, gb = 1e9;
    if (sy_arg_on(j->a, "json")) {
        sy_buf_printf(
            &j->out,
            "%s\n  {\"tokens\":%d,\"sequences\":%d,\"blocks\":%d,\"compile_s\":%.2f,\"hbm\":{\"weights\":%.0f,"
            "\"kv\":%.0f,\"arguments\":%lld,\"temporaries\":%lld,\"code\":%lld,\"peak\":%lld},"
            "\"flops\":%.6g,\"bytes\":%.6g,\"estimated_cycles\":%.6g,\"estimated_s\":%.6g,\"roofline_s\":%.6g,"
            "\"collectives\":%d,\"collective_bytes\":%.6g,\"program_bytes\":%zu}",
            j->n_done++ ? "," : "", p->shape.tok, p->shape.seq, p->shape.block, r->compile_s, p->weight_bytes,
            p->kv_bytes, (long long)r->argument, (long long)r->temp, (long long)r->code, (long long)r->peak, r->flops,
            r->bytes, r->cycles, step, roof, r->n_collective, r->collective_bytes, p->text.len);
        return;
    }
    if (j->n_done++ == 0)
        sy_buf_printf(&j->out, "%18s %8s %8s %8s %8s %8s %9s %9s %6s %s\n", "tokens x sequences", "compile",
                      "weights", "KV", "temp", "peak", "estimate", "roofline", "ratio", "collectives");
    double peak = (double)(r->argument + r->temp + r->code + r->output - r->alias);
    sy_buf_printf(&j->out,
                  "%8d x %4d @%4d %6.1f s %5.2f GB %5.2f GB %5.2f GB %5.2f GB %6.2f ms %6.2f ms %6.2f %d, %.1f MB\n",
                  p->shape.tok, p->shape.seq, p->shape.block * j->opt.cache.block_len, r->compile_s,
                  p->weight_bytes / gb, p->kv_bytes / gb, (double)r->temp / gb, peak / gb, step * 1e3, roof * 1e3,
                  roof > 0 ? step / roof : 0, r->n_collective, r->collective_bytes / 1e6);
}

/* What is known before any compiler runs: say by how much it does not fit, and what would. */
static sy_status check_memory(const struct job *j, const struct sy_aot_program *p, struct sy_err *err)
{
    double need = p->weight_bytes + p->kv_bytes, have = j->target->hbm_bytes, room = have * 0.9 - p->weight_bytes;
    if (need <= have) return SY_OK;
    if (room <= 0)
        return sy_fail(err, SY_ENOMEM,
                       "weights of %.1f GB a device do not fit in the %.1f GB of %s; take more chips (a larger "
                       "--target) or smaller weights",
                       p->weight_bytes / 1e9, have / 1e9, j->target->name);
    return sy_fail(err, SY_ENOMEM,
                   "weights of %.1f GB and a KV cache of %.1f GB a device exceed the %.1f GB of %s by %.1f GB; about "
                   "%.0f sequences of %d tokens would fit (--max-seqs), or take more chips or a smaller --kv-dtype",
                   p->weight_bytes / 1e9, p->kv_bytes / 1e9, have / 1e9, j->target->name, (need - have) / 1e9,
                   (double)j->max.seq * room / p->kv_bytes, j->ctx_len);
}

static sy_status compile_bucket(struct job *j, struct sy_shape shape, struct sy_err *err)
{
    const struct sy_env *env = &j->a->app->env;
    struct sy_graph *whole = NULL, *g = NULL;
    struct sy_aot_program p = {0};
    struct sy_aot_result r;
    sy_status st = sy_model_build(env, &j->model, shape, &whole, err);
    if (!st) st = sy_graph_shard(env, whole, j->opt.n_rank, &g, err);
    if (!st) st = sy_aot_lower(env, g, j->ckpt, &j->opt, &p, err);
    if (!st) {
        j->program = &p;
        sy_aot_trips(shape, j->opt.cache.block_len, j->trips);
        st = check_memory(j, &p, err);
        if (!st) st = sy_child_run(compile_in_child, j, &r, sizeof r, err);
        if (!st) print_line(j, &p, &r, roofline(j, g, &p));
        sy_aot_program_release(&p);
    }
    sy_graph_free(whole);
    sy_graph_free(g);
    return st ? sy_while(err, st, "%d tokens of %d sequences", shape.tok, shape.seq) : SY_OK;
}

static bool wanted(const struct job *j, struct sy_shape s)
{
    size_t n;
    const char *const *given = sy_arg_texts(j->a, "bucket", &n);
    char name[40];
    snprintf(name, sizeof name, "%dx%d", s.tok, s.seq);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(given[i], name)) return true;
    return n == 0;
}

static sy_status compile_all(struct job *j, struct sy_err *err)
{
    struct sy_buckets b;
    sy_buckets_plan(j->max, j->opt.cache.block_len, &b);
    bool json = sy_arg_on(j->a, "json"), any = false;
    const struct sy_aot_target *t = j->target;
    if (json)
        sy_buf_printf(
            &j->out,
            "{\"target\":\"%s\",\"topology\":\"%s\",\"devices\":%d,\"tp\":%d,\"hbm_bytes\":%.0f,\"buckets\":[",
            t->name, t->topology, t->n_device, j->opt.n_rank, t->hbm_bytes);
    sy_status st = SY_OK;
    for (int32_t i = 0; i < b.n && !st; i++) {
        if (!wanted(j, b.shape[i])) continue;
        any = true;
        st = compile_bucket(j, b.shape[i], err);
        if (st || json) continue;
        sy_text_print(j->out.at, j->out.len); /* a line when it is known */
        fflush(stdout);
        sy_buf_clear(&j->out);
    }
    if (!st && !any) {
        char list[300] = "";
        for (int32_t i = 0; i < b.n; i++) {
            size_t at = strlen(list);
            snprintf(list + at, sizeof list - at, "%s%dx%d", i ? ", " : "", b.shape[i].tok, b.shape[i].seq);
        }
        return sy_fail(err, SY_EARG, "--bucket: expected one of %s", list);
    }
    if (!st && json) {
        sy_buf_text(&j->out, "\n]}\n");
        sy_text_print(j->out.at, j->out.len);
    }
    return st;
}

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    struct job j = {.a = a};
    sy_buf_init(&j.out, &a->app->env, 0);
    sy_status st = find_target(&j, err);
    if (!st) st = find_model(&j, err);
    if (!st) st = find_sizes(&j, err);
    if (!st) st = compile_all(&j, err);
    sy_buf_release(&j.out);
    sy_model_release(&j.model);
    sy_json_free(j.card);
    sy_checkpoint_free(j.ckpt);
    return st;
}

const struct sy_command sy_cmd_compile = {
    .name = "compile",
    .help = "compile a model's steps for a TPU that is not here: does it fit, how fast",
    .about =
        "Compiles the programs that serving would run, one for each static shape, with the vendor's own compiler "
        "for "
        "chips that need not be here. Prints for each what the compile took, the memory of one device by kind, the "
        "compiler's own estimate of the step's time (its cycles summed, at the chip's clock), and what memory and "
        "arithmetic allow at best. Times are estimates of a compiler, not measurements; attention loops over long "
        "prompts are counted by the runs that one prompt filling the step would need.",
    .flags = {flags, sy_flags_ctx},
    .examples = examples,
    .run = run,
};
