/* compile.c - the step programs of a model, compiled ahead of time for chips that are not here. */
#include <stdio.h>

#include "app/aot/aot.h"
#include "bench/report.h"

static const char *const computes[] = {"bf16", "f32", NULL};
static const char *const kv_dtypes[] = {"f32", "bf16", "f16", "q8_0", NULL};
static const char *const accumulates[] = {"f32", "bf16", NULL};
static const char *const kernels[] = {"auto", "plain", "mosaic", NULL};
static const struct sy_flag flags[] = {
    {.name = "model",
     .letter = 'm',
     .kind = SY_FLAG_TEXT,
     .arg = "MODEL",
     .help = "a GGUF file (first shard of several), a Hugging Face folder, or hf:org/name[:file]"},
    {.name = "model-card",
     .kind = SY_FLAG_TEXT,
     .arg = "FILE",
     .help = "a config.json, or the name or file of a model card, instead of a model: no weights are needed"},
    {.name = "weights",
     .kind = SY_FLAG_TEXT,
     .arg = "FORMAT",
     .otherwise = "bf16",
     .help = "format of the matrices that --model-card does not tell: bf16, q8_0, q4_0, ..."},
    {.name = "target",
     .required = true,
     .kind = SY_FLAG_TEXT,
     .arg = "CHIPS",
     .help = "what to compile for: v5e-8, v6e-1, v7-8, h100, b200x8, cpu (the error for an unknown name lists all)"},
    {.name = "plugin",
     .kind = SY_FLAG_TEXT,
     .arg = "FILE",
     .otherwise = "TPU_LIBRARY_PATH, SYSTOLE_CUDA_PLUGIN or SYSTOLE_CPU_PLUGIN of the environment",
     .help =
         "the compiler: libtpu.so of 'pip install libtpu', or xla_cuda_plugin.so of 'pip install jax-cuda13-pjrt'"},
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
     .number = 512,
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
    {.name = "attention-accumulate",
     .kind = SY_FLAG_CHOICE,
     .choices = accumulates,
     .otherwise = "f32",
     .help = "type of attention's scores and sums"},
    {.name = "kernels",
     .kind = SY_FLAG_CHOICE,
     .choices = kernels,
     .otherwise = "auto",
     .help = "what attention, experts and the gated delta rule run by on a TPU; mosaic: hand-written kernels, as "
             "'systole serve' with the same flag; auto: these where estimates say that they are faster, without "
             "--output"},
    {.name = "bucket",
     .kind = SY_FLAG_TEXTS,
     .arg = "TOKENSxSEQUENCES",
     .otherwise = "all",
     .help = "compile only these static shapes; may be repeated"},
    {.name = "kv-memory",
     .kind = SY_FLAG_SIZE,
     .arg = "SIZE",
     .lo = 1 << 20,
     .hi = 1099511627776.0 * 64,
     .otherwise = "what max-seqs sequences of ctx-size need",
     .help = "hard cap of the KV cache, of all devices together"},
    {.name = "output",
     .letter = 'o',
     .kind = SY_FLAG_TEXT,
     .arg = "DIR",
     .help = "keep the programs there; 'systole serve --programs DIR' with the same sizes then compiles nothing"},
    {.name = "json", .kind = SY_FLAG_SWITCH, .help = "print a JSON object"},
    {.name = "report", .kind = SY_FLAG_TEXT, .arg = "FILE", .help = "write a page (HTML) of it"},
    {0},
};
static const struct sy_example examples[] = {
    {"systole compile --model-card llama-3.1-8b --target v5e-8 --ctx-size 8192 --max-seqs 64",
     "does it fit, and how fast"},
    {"systole compile -m model.gguf --target v6e-1 --bucket 4x4", "one decode step of four sequences"},
    {0},
};

static sy_status compile_all(struct aot_job *j, struct sy_err *err)
{
    struct sy_buckets b;
    sy_buckets_plan(j->max, j->plan.block_len, &b);
    bool json = sy_arg_on(j->a, "json");
    struct sy_buf out;
    sy_buf_init(&out, &j->a->app->env, 0);
    if (!json) aot_print_head(j, &out);
    sy_status st = SY_OK;
    for (int32_t i = 0; i < b.n && !st; i++) {
        if (!aot_is_wanted(j, b.shape[i])) continue;
        st = aot_bucket_compile(j, b.shape[i], err);
        if (st || json) continue;
        aot_print_bucket(j, &j->bucket[j->n_bucket - 1], &out);
        st = sy_report_write(&out, "-", err); /* a line when it is known */
        sy_buf_clear(&out);
    }
    if (!st && !json) {
        aot_kernels_print(j, &out);
        st = sy_report_write(&out, "-", err);
        sy_buf_clear(&out);
    }
    if (!st && j->store) st = aot_moves_compile(j, err);
    if (!st && json) {
        aot_print_json(j, &out);
        st = sy_report_write(&out, "-", err);
    }
    sy_buf_release(&out);
    return st;
}

static sy_status report(const struct aot_job *j, const char *path, struct sy_err *err)
{
    struct sy_buf out;
    sy_buf_init(&out, &j->a->app->env, 0);
    aot_print_html(j, &out);
    sy_status st = sy_report_write(&out, path, err);
    sy_buf_release(&out);
    return st;
}

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    struct aot_job j;
    const char *path = sy_arg_text(a, "report");
    sy_status st = aot_job_open(&j, a, err);
    if (!st && path) st = sy_report_check(path, err); /* compiles take minutes */
    if (!st) st = compile_all(&j, err);
    if (!st && path) st = report(&j, path, err);
    aot_job_release(&j);
    return st;
}

const struct sy_command sy_cmd_compile = {
    .name = "compile",
    .help = "compile a model's steps for chips that are not here: does it fit, how fast",
    .about =
        "Compiles the programs that serving would run, one for each static shape, with the vendor's own compiler for "
        "chips that need not be here. Prints for each what the compile took, the memory of one device by kind, the "
        "compiler's own estimate of the step's time (its cycles summed, at the chip's clock), and what memory and "
        "arithmetic allow at best. Times are estimates of a compiler, not measurements; attention loops over long "
        "prompts are counted by the runs that one prompt filling the step would need.",
    .flags = {flags, sy_flags_ctx, sy_flags_shard},
    .examples = examples,
    .run = run,
};
