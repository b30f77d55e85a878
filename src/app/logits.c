/* logits.c - the model's logits for a sequence, as a safetensors file. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "app/session/session.h"
#include "base/file.h"

static const struct sy_flag flags[] = {
    {.name = "last",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 16777216,
     .otherwise = "all",
     .help = "only the last N positions"},
    {.name = "out",
     .letter = 'o',
     .required = true,
     .kind = SY_FLAG_TEXT,
     .arg = "FILE",
     .help = "the file to write: one tensor 'logits', f32 [positions, vocabulary]"},
    {0},
};
static const struct sy_example examples[] = {
    {"systole logits -m model.gguf --compute f32 --ids 1,2,3 -o logits.safetensors", "three rows of logits"},
    {0},
};

struct out {
    FILE *file;
    bool done, failed;
};

static void on_logits(void *ctx, int32_t pos, const float *logits, int32_t n_vocab)
{
    struct out *o = ctx;
    (void)pos; /* they come in order */
    if (fwrite(logits, sizeof *logits, (size_t)n_vocab, o->file) != (size_t)n_vocab) o->failed = true;
}

static void on_event(void *ctx, const struct sy_event *ev)
{
    struct out *o = ctx;
    if (ev->finish != SY_RUNNING) o->done = true;
}

/* https://github.com/huggingface/safetensors#format: u64 length, JSON padded with spaces, little-endian data. */
static void write_header(FILE *f, int64_t rows, int64_t cols)
{
    char head[256];
    int n = snprintf(head, sizeof head,
                     "{\"logits\":{\"dtype\":\"F32\",\"shape\":[%lld,%lld],\"data_offsets\":[0,%lld]}}",
                     (long long)rows, (long long)cols, (long long)(rows * cols * 4));
    while (n % 8) head[n++] = ' ';
    for (int i = 0; i < 8; i++) fputc(i < 4 ? n >> (8 * i) & 255 : 0, f);
    fwrite(head, 1, (size_t)n, f);
}

static sy_status score(struct sy_args *a, struct sy_engine *e, const struct sy_ids *ids, struct out *o,
                       struct sy_err *err)
{
    int64_t last = sy_arg_given(a, "last") ? sy_arg_int(a, "last") : (int64_t)ids->n;
    if (last > (int64_t)ids->n)
        return sy_fail(err, SY_EARG, "--last: expected at most the %zu token ids, found %lld", ids->n,
                       (long long)last);
    struct sy_request q = {.prompt = ids->at,
                           .n_prompt = (int32_t)ids->n,
                           .sampling = {.n_logprob = -1},
                           .on_event = on_event,
                           .on_logits = on_logits,
                           .logits_from = (int32_t)((int64_t)ids->n - last),
                           .ctx = o};
    sy_status st = sy_engine_submit(e, &q, NULL, err);
    if (!st) write_header(o->file, last, sy_engine_plan(e)->info.n_vocab);
    bool worked = true;
    while (!st && !o->done && worked) st = sy_engine_step(e, &worked, err);
    return st;
}

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    struct sy_engine *e = NULL;
    struct sy_ids ids;
    struct out o = {0};
    bool given;
    const char *path = sy_arg_text(a, "out");
    sy_ids_init(&ids, &a->app->env);
    sy_status st = sy_ids_from_flags(a, &ids, &given, err);
    if (!st && !given) st = sy_fail(err, SY_EARG, "logits: expected --ids or --ids-file, found neither");
    if (!st) st = sy_session_open(a, false, &e, err);
    if (!st && !(o.file = fopen(path, "wb")))
        st = sy_fail(err, SY_EIO, "cannot write '%s': %s", path, strerror(errno));
    if (!st) st = score(a, e, &ids, &o, err);
    if (o.file) {
        bool bad = fflush(o.file) || ferror(o.file) || o.failed;
        if (fclose(o.file)) bad = true;
        if (!st && bad) st = sy_fail(err, SY_EIO, "cannot write '%s': %s", path, strerror(errno));
        /* Half a file would read as a whole one; a pipe or a device is not ours to remove. */
        if (st && sy_file_exists(path)) unlink(path);
    }
    sy_engine_free(e);
    sy_ids_release(&ids);
    return st;
}

const struct sy_command sy_cmd_logits = {
    .name = "logits",
    .help = "write the logits of a token sequence to a file",
    .about = "Runs the model over token ids and writes the logits after each position as a safetensors file, for "
             "comparing "
             "numbers with other implementations. --compute f32 --kv-dtype f32 is exact enough for that.",
    .flags = {sy_flags_model, flags, sy_flags_ids, sy_flags_ctx, sy_flags_engine},
    .examples = examples,
    .run = run,
};
