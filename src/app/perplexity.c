/* perplexity.c - how well a model predicts a text. */
#include <math.h>
#include <stdio.h>

#include "app/session/compare.h"
#include "app/session/nll.h"
#include "app/session/session.h"
#include "base/file.h"

enum { TEXT_BYTES_MAX = 1 << 30 };

static const struct sy_flag flags[] = {
    {.name = "file",
     .letter = 'f',
     .required = true,
     .kind = SY_FLAG_TEXT,
     .arg = "FILE",
     .help = "the text ('-': standard input)"},
    {.name = "ctx-size",
     .letter = 'c',
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 2,
     .hi = 16777216,
     .number = 512,
     .help = "tokens of a window, BOS included"},
    {.name = "chunks",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 1e9,
     .otherwise = "all",
     .help = "at most N windows"},
    {.name = "against-f32",
     .kind = SY_FLAG_SWITCH,
     .help = "also run in float32 and print how far this arithmetic is from it"},
    {.name = "json", .kind = SY_FLAG_SWITCH, .help = "print a JSON object"},
    {0},
};
static const struct sy_example examples[] = {
    {"systole perplexity -m model.gguf -f wiki.txt --ctx-size 512", "one number, lower is better"},
    {"systole perplexity -m model.gguf -f wiki.txt --against-f32", "what int8 or bf16 arithmetic costs"},
    {0},
};

static sy_status open_reference(struct sy_args *a, struct sy_engine *e, struct sy_compare *c, struct sy_err *err)
{
    enum { ROWS = 64 };
    struct sy_engine_opt o;
    sy_status st = sy_session_opt(a, &o, err);
    if (st) return st;
    o.model = sy_checkpoint_path(sy_engine_checkpoint(e));
    o.score_row_max = ROWS;
    o.backend_opt.compute = SY_COMPUTE_F32;
    o.backend_opt.kv_dtype = SY_KV_F32;
    c->row = sy_arena_array(&a->arena, (size_t)ROWS * (size_t)sy_engine_plan(e)->info.n_vocab, sizeof *c->row);
    if (!c->row) return sy_fail(err, SY_ENOMEM, "no memory for rows of logits");
    return sy_engine_new(&a->app->env, &o, &c->ref, err);
}

static sy_status score_text(struct sy_args *a, struct sy_engine *e, const struct sy_ids *ids, int64_t *windows,
                            struct sy_nll *s, struct sy_compare *c, struct sy_err *err)
{
    int32_t ctx = sy_engine_plan(e)->ctx_len, *window = sy_arena_array(&a->arena, (size_t)ctx, sizeof *window);
    int64_t most = sy_arg_given(a, "chunks") ? sy_arg_int(a, "chunks") : INT64_MAX;
    if (!window) return sy_fail(err, SY_ENOMEM, "no memory for a window of %d tokens", ctx);
    struct sy_windows w;
    struct sy_progress bar;
    sy_status st = sy_windows_init(&w, &a->app->env, sy_engine_tokenizer(e), ids, window, ctx, err);
    sy_progress_init(&bar, &a->app->env, a->app->progress, "perplexity");
    s->window = window;
    while (!st && *windows < most && (s->n = sy_windows_next(&w)) > 0) {
        st = sy_nll_window(e, s, err);
        if (!st && c->ref) st = sy_compare_window(c, e, window, s->n, err);
        ++*windows;
        sy_progress_share(&bar, (double)w.at / (double)ids->n);
    }
    sy_progress_end(&bar);
    return st;
}

static sy_status measure(struct sy_args *a, struct sy_engine *e, const char *text, size_t n, struct sy_err *err)
{
    const struct sy_tokenizer *t = sy_engine_tokenizer(e);
    struct sy_ids ids;
    sy_ids_init(&ids, &a->app->env);
    struct sy_nll s = {0};
    struct sy_compare compare = {0};
    int64_t windows = 0;
    sy_status st = sy_need_tokenizer(t, sy_arg_text(a, "model"), err);
    if (!st) st = sy_tokenizer_encode(t, text, n, 0, &ids, err);
    if (!st && sy_arg_on(a, "against-f32")) st = open_reference(a, e, &compare, err);
    if (!st) st = score_text(a, e, &ids, &windows, &s, &compare, err);
    sy_engine_free(compare.ref);
    if (!st && s.count < 2) st = sy_fail(err, SY_EARG, "--file: expected a text of a few tokens, found %zu", ids.n);
    sy_ids_release(&ids);
    if (st) return st;
    double count = (double)s.count, mean = s.sum / count;
    double error =
        exp(mean) * sqrt((s.sum2 / count - mean * mean) / (count - 1)); /* standard error, by the delta method */
    const struct sy_compare *c = &compare;
    double kl = c->n ? c->kl_sum / (double)c->n : 0, same = c->n ? (double)c->n_same / (double)c->n : 0;
    if (!sy_arg_on(a, "json")) {
        printf("%.4f +- %.4f over %lld tokens\n", exp(mean), error, (long long)s.count);
        if (c->n)
            printf("against f32: KL divergence mean %.5f, largest %.4f; same first token %.2f %%\n", kl, c->kl_max,
                   100 * same);
        return SY_OK;
    }
    printf("{\"perplexity\":%.6f,\"error\":%.6f,\"nll\":%.8f,\"tokens\":%lld,\"windows\":%lld,\"ctx_size\":%d",
           exp(mean), error, mean, (long long)s.count, (long long)windows, sy_engine_plan(e)->ctx_len);
    if (c->n) printf(",\"kl_mean\":%.6e,\"kl_max\":%.6e,\"same_top\":%.6f", kl, c->kl_max, same);
    puts("}");
    return SY_OK;
}

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    struct sy_engine *e = NULL;
    char *text = NULL;
    size_t n;
    sy_status st = sy_file_read(&a->app->env, sy_arg_text(a, "file"), TEXT_BYTES_MAX, &text, &n, err);
    if (!st) st = sy_session_open(a, false, &e, err);
    if (!st) st = measure(a, e, text, n, err);
    sy_engine_free(e);
    sy_delete(&a->app->env, text);
    return st;
}

const struct sy_command sy_cmd_perplexity = {
    .name = "perplexity",
    .help = "how well a model predicts a text",
    .about =
        "Cuts a text into windows that do not overlap and prints exp of the mean negative log probability of their "
        "tokens, with its standard error. A window starts with BOS where the tokenizer adds one; its first token is "
        "given, every other one is scored.",
    .flags = {sy_flags_model, flags, sy_flags_engine},
    .examples = examples,
    .run = run,
};
