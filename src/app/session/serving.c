#include "app/session/serving.h"

#include <string.h>
#include <unistd.h>

#include "app/hub/hub.h"

static const char *const schedulings[] = {"continuous", "static", NULL};
const struct sy_flag sy_flags_serving[] = {
    {.name = "served-model-name",
     .kind = SY_FLAG_TEXTS,
     .arg = "NAME",
     .otherwise = "the file's or folder's name",
     .help = "what the model is called; may be repeated, answers carry the first"},
    {.name = "max-queue",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 1000000,
     .number = 1024,
     .help = "requests that wait; one more is refused"},
    {.name = "max-decode-gap-ms",
     .kind = SY_FLAG_NUM,
     .arg = "MS",
     .lo = 0,
     .hi = 600000,
     .number = 200,
     .help = "bound on the time between two tokens of a running request, kept by smaller prefill chunks; 0: none"},
    {.name = "scheduling",
     .kind = SY_FLAG_CHOICE,
     .choices = schedulings,
     .otherwise = "continuous",
     .help = "static fills a batch and runs it to its end, for comparison"},
    {.name = "no-prefix-cache", .kind = SY_FLAG_SWITCH, .help = "compute every prompt anew"},
    {.name = "swap-memory",
     .kind = SY_FLAG_SIZE,
     .arg = "SIZE",
     .lo = 0,
     .hi = 1099511627776.0 * 64,
     .otherwise = "0",
     .help = "memory for blocks of sequences that had to make room; without it they are computed again"},
    {.name = "snapshot-memory",
     .kind = SY_FLAG_SIZE,
     .arg = "SIZE",
     .lo = 0,
     .hi = 1099511627776.0 * 64,
     .otherwise = "8 states and 4 for each of max-seqs",
     .help = "memory for snapshots of recurrent states, which prefix caching of hybrid models needs"},
    {.name = "trace", .kind = SY_FLAG_TEXT, .arg = "FILE", .help = "record arrivals and steps"},
    {0},
};

static void on_load(void *ctx, double done) { sy_progress_share(ctx, done); }

sy_status sy_serving_open(struct sy_args *a, struct sy_engine **out, struct sy_err *err)
{
    struct sy_engine_opt opt;
    sy_status st = sy_session_opt(a, &opt, err);
    if (!st) st = sy_session_models(a, &opt, err);
    if (st) return st;
    struct sy_progress bar;
    sy_progress_init(&bar, &a->app->env, a->app->progress, "loading");
    opt.backend_opt.progress = on_load;
    opt.backend_opt.progress_ctx = &bar;
    if (!sy_arg_given(a, "max-seqs")) opt.seq_max = 64;
    if (!sy_arg_given(a, "kv-memory"))
        opt.kv_bytes_max = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / 4;
    opt.wait_max = opt.seq_max + (int32_t)sy_arg_int(a, "max-queue");
    opt.gap_ms_max = sy_arg_num(a, "max-decode-gap-ms");
    opt.scheduling = (enum sy_scheduling)sy_arg_choice(a, "scheduling");
    opt.no_prefix_cache = sy_arg_on(a, "no-prefix-cache");
    opt.swap_bytes = sy_arg_int(a, "swap-memory");
    opt.snapshot_bytes = sy_arg_int(a, "snapshot-memory");
    if (sy_arg_given(a, "snapshot-memory") && opt.snapshot_bytes == 0) opt.snapshot_bytes = 1; /* not the default */
    opt.trace = sy_arg_text(a, "trace");
    st = sy_engine_new(&a->app->env, &opt, out, err);
    sy_progress_end(&bar);
    return st;
}

/* "/models/Qwen3-0.6B-Q8_0.gguf/" -> "Qwen3-0.6B-Q8_0" */
static const char *base_name(struct sy_arena *arena, const char *path, bool keep_suffix)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t at = n;
    while (at > 0 && path[at - 1] != '/') at--;
    if (!keep_suffix && n - at > 5 && !memcmp(path + n - 5, ".gguf", 5)) n -= 5;
    return sy_arena_text(arena, path + at, n - at);
}

sy_status sy_serving_names(struct sy_args *a, const char *const **names, size_t *n, struct sy_err *err)
{
    const char *model = sy_arg_text(a, "model");
    const char *const *given = sy_arg_texts(a, "served-model-name", n);
    for (size_t i = 0; i < *n; i++)
        if (!*given[i] || strlen(given[i]) > 200)
            return sy_fail(err, SY_EARG, "--served-model-name: expected 1 to 200 bytes, found '%.20s'", given[i]);
    *names = given;
    if (*n) return SY_OK;
    const char **own = sy_arena_array(&a->arena, 3, sizeof *own);
    if (own) own[0] = base_name(&a->arena, model, false);
    if (own) own[1] = base_name(&a->arena, model, true);
    if (!own || !own[0] || !own[1]) return sy_fail(err, SY_ENOMEM, "no memory for the model's name");
    own[2] = model;
    *names = own;
    *n = 3;
    return SY_OK;
}
