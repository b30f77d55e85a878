/* batch.c - a file of requests to a file of results. */
#include <stdio.h>
#include <string.h>

#include "app/session/serving.h"
#include "serve/jobs.h"

static const struct sy_flag flags[] = {
    {.name = "input",
     .letter = 'i',
     .required = true,
     .kind = SY_FLAG_TEXT,
     .arg = "FILE",
     .help = "requests, a line of JSON each"},
    {.name = "output",
     .letter = 'o',
     .required = true,
     .kind = SY_FLAG_TEXT,
     .arg = "FILE",
     .help = "results, appended as they come; a file that is there is gone on with"},
    {0},
};
static const struct sy_example examples[] = {
    {"systole batch -m model.gguf -i requests.jsonl -o results.jsonl",
     "run it; run it again to go on after an interruption"},
    {0},
};

static void on_progress(void *ctx, double done) { sy_progress_share(ctx, done); }

static void report(const struct sy_jobs_result *w, double s)
{
    fprintf(stderr, "%lld requests: %lld answered, %lld refused", (long long)w->n_line, (long long)w->n_answered,
            (long long)w->n_refused);
    if (w->n_before) fprintf(stderr, ", %lld were there already", (long long)w->n_before);
    fprintf(stderr, "; %lld prompt and %lld answer tokens in %.1f s, %.0f tok/s%s\n", (long long)w->prompt_tok,
            (long long)w->gen_tok, s, s > 0 ? (double)(w->prompt_tok + w->gen_tok) / s : 0,
            w->stopped ? "; stopped: run it again to go on" : "");
}

static sy_status work(struct sy_args *a, struct sy_engine *e, struct sy_err *err)
{
    const char *const *names;
    size_t n_name;
    struct sy_loop *loop = NULL;
    struct sy_service service;
    struct sy_progress bar;
    struct sy_jobs_result w;
    int32_t seqs = sy_engine_plan(e)->seq_max, open = 2 * seqs + 16;
    sy_status st = sy_serving_names(a, &names, &n_name, err);
    if (!st) st = sy_loop_new(&a->app->env, e, seqs + (int32_t)sy_arg_int(a, "max-queue"), &loop, err);
    if (st) return st;
    sy_service_init(&service, &a->app->env, e, loop, names, n_name, SY_POOL_MEAN);
    sy_progress_init(&bar, &a->app->env, a->app->progress, "batch");
    struct sy_jobs_opt o = {.service = &service,
                            .in = sy_arg_text(a, "input"),
                            .out = sy_arg_text(a, "output"),
                            .open_max =
                                open < sy_arg_int(a, "max-queue") ? open : (int32_t)sy_arg_int(a, "max-queue"),
                            .stop_fd = sy_interrupt_fd(a->app->interrupt),
                            .progress = on_progress,
                            .progress_ctx = &bar};
    uint64_t t0 = sy_now_ns(&a->app->env);
    sy_interrupt_hold(a->app->interrupt);
    st = sy_jobs_run(&o, &w, err);
    sy_progress_end(&bar);
    if (!st && a->app->progress) report(&w, (double)(sy_now_ns(&a->app->env) - t0) / 1e9);
    sy_loop_free(loop);
    return st;
}

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    struct sy_engine *e = NULL;
    if (!strcmp(sy_arg_text(a, "input"), sy_arg_text(a, "output")))
        return sy_fail(err, SY_EARG, "--output: expected another file than --input, found '%s'",
                       sy_arg_text(a, "output"));
    if (!sy_file_exists(sy_arg_text(a, "input")))
        return sy_fail(err, SY_EIO, "--input: '%s' is not a file", sy_arg_text(a, "input"));
    sy_status st = sy_serving_open(a, &e, err);
    if (!st) st = work(a, e, err);
    sy_engine_free(e);
    return st;
}

const struct sy_command sy_cmd_batch = {
    .name = "batch",
    .help = "answer a file of requests",
    .about = "Answers requests in OpenAI's batch format, a line of JSON each: {\"custom_id\", \"method\": \"POST\", "
             "\"url\", \"body\"}, "
             "where url is /v1/chat/completions, /v1/completions or /v1/embeddings. As many run at once as the "
             "engine takes; "
             "results are appended as they come, in no particular order, and name their custom_id.\n"
             "A run that was interrupted or killed goes on where it stopped: requests with a result are skipped. A "
             "request that is "
             "malformed or refused gets a result that says so and stops nothing.",
    .flags = {sy_flags_model, flags, sy_flags_serving, sy_flags_ctx, sy_flags_engine},
    .examples = examples,
    .run = run,
};
