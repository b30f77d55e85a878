/* convert.c - a model in another format. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/hub/hub.h"
#include "app/session/compare.h"
#include "app/session/session.h"
#include "base/file.h"
#include "checkpoint/convert.h"
#include "model/model.h"
#include "text/tokenizer.h"

enum { COPY_BYTES_MAX = 256 << 20, TOKENS_MAX = 512, ROWS = 64 };

static const char *const formats[] = {"stored", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "MXFP4", "fp8", NULL};
static const struct sy_flag flags[] = {
    {.name = "out",
     .letter = 'o',
     .required = true,
     .kind = SY_FLAG_TEXT,
     .arg = "PATH",
     .help = "the folder to make, or a GGUF file when it ends in .gguf; it must not exist"},
    {.name = "quant",
     .kind = SY_FLAG_CHOICE,
     .arg = "FORMAT",
     .choices = formats,
     .otherwise = "stored",
     .help = "what the layers' matrices become; stored: the same numbers, bit for bit"},
    {.name = "no-tokenizer",
     .kind = SY_FLAG_SWITCH,
     .help = "leave the tokenizer out, but of a GGUF that is made of another one"},
    {.name = "skip-check",
     .kind = SY_FLAG_SWITCH,
     .help = "do not run both models to print how far the new one is from the old"},
    {0},
};
static const struct sy_example examples[] = {
    {"systole convert -m Qwen3-8B -o Qwen3-8B-fp8 --quant fp8", "8-bit floats with a scale for 128 x 128"},
    {"systole convert -m model-f16.gguf -o model-q4_k.gguf --quant Q4_K", "a smaller GGUF"},
    {"systole convert -m Qwen3-8B -o Qwen3-8B.gguf", "a folder as a GGUF, without loss"},
    {"systole convert -m Qwen3-8B-NVFP4 -o layers", "the same bytes, a file a layer"},
    {"systole convert -m model.gguf -o model", "a GGUF of Q8_0 or Q4_0 as safetensors, without loss"},
    {0},
};

/* What the divergence is measured on: read by both models, so that a format's loss is seen on running text. */
static const char sample[] =
    "The lighthouse keeper kept two books. In the first he wrote what the sea did: the hour of the tide, the colour "
    "of "
    "the water, which ships went by and whether they answered his flag. In the second he wrote what he had thought "
    "about while he watched, and this one he showed to nobody. When the engineers came to replace the lamp, they "
    "found "
    "12 volumes of the first kind and 31 of the second. \"You had time,\" said one of them. He answered that it was "
    "the "
    "other way round: time had had him, and these were the receipts.\n\n"
    "A heart pumps in two strokes. During systole the muscle contracts and blood leaves; during diastole it relaxes "
    "and "
    "fills. At 70 beats a minute one cycle takes about 0.86 seconds, of which the contraction is roughly a third. "
    "for i in range(10): total += i * i  # 285\n"
    "To measure how much a change of format costs, compare what the two models expect to come next, word by word, "
    "and "
    "average. If they agree everywhere the number is zero; it grows with every word that one of them finds more "
    "surprising than the other.\n";

static void on_progress(void *ctx, double done) { sy_progress_share(ctx, done); }

/* ---- files that go along --------------------------------------------------------------------------------------- */

static sy_status write_file(const char *path, const char *text, size_t n, struct sy_err *err)
{
    FILE *f = fopen(path, "wb");
    bool bad = !f || fwrite(text, 1, n, f) != n;
    if (f && fclose(f)) bad = true;
    return bad ? sy_fail(err, SY_EIO, "cannot write '%s': %s", path, strerror(errno)) : SY_OK;
}

static sy_status copy_file(struct sy_args *a, const char *from, const char *to, struct sy_err *err)
{
    char *text;
    size_t n;
    if (!sy_file_exists(from)) return SY_OK;
    sy_status st = sy_file_read(&a->app->env, from, COPY_BYTES_MAX, &text, &n, err);
    if (st) return st;
    st = write_file(to, text, n, err);
    sy_delete(&a->app->env, text);
    return st;
}

static sy_status copy_tokenizer(struct sy_args *a, const char *from, const char *to, struct sy_err *err)
{
    static const char *const names[] = {
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
        "merges.txt",     "chat_template.jinja",
    };
    sy_status st = SY_OK;
    for (size_t i = 0; i < SY_COUNT(names) && !st; i++) {
        const char *x = sy_arena_printf(&a->arena, "%s/%s", from, names[i]);
        const char *y = sy_arena_printf(&a->arena, "%s/%s", to, names[i]);
        st = x && y ? copy_file(a, x, y, err) : sy_fail(err, SY_ENOMEM, "no memory for the name of a file");
    }
    return st;
}

static sy_status write_text(struct sy_args *a, const char *folder, const char *name, const struct sy_buf *text,
                            struct sy_err *err)
{
    const char *path = sy_arena_printf(&a->arena, "%s/%s", folder, name);
    if (!path) return sy_fail(err, SY_ENOMEM, "no memory for the name of a file");
    return write_file(path, text->at, text->len, err);
}

/* A GGUF's tokenizer into a folder; where it has no form there, it is said. */
static sy_status write_tokenizer(struct sy_args *a, const struct sy_checkpoint *c, const char *folder,
                                 struct sy_err *err)
{
    const struct sy_gguf_vocab *vocab = sy_checkpoint_gguf_vocab(c);
    struct sy_buf json, config;
    size_t n = 0;
    if (!vocab) return SY_OK;
    const char *template = sy_checkpoint_chat_template(c, &n);
    sy_buf_init(&json, &a->app->env, 0);
    sy_buf_init(&config, &a->app->env, 0);
    sy_status st = sy_tokenizer_to_json(&a->app->env, vocab, template, n, &json, &config, err);
    if (st == SY_ENOSUP || st == SY_EFORMAT) {
        if (!a->app->quiet)
            fprintf(stderr, "the tokenizer stays in '%s': put the model's tokenizer.json into the folder (%s)\n",
                    sy_checkpoint_path(c), err->msg);
        err->code = st = SY_OK;
    } else {
        if (!st) st = write_text(a, folder, "tokenizer.json", &json, err);
        if (!st) st = write_text(a, folder, "tokenizer_config.json", &config, err);
    }
    sy_buf_release(&json);
    sy_buf_release(&config);
    return st;
}

static bool names_gguf(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".gguf");
}

/* Half a model must not be left behind. */
static void remove_folder(struct sy_args *a, const char *path)
{
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        const char *file = sy_arena_printf(&a->arena, "%s/%s", path, e->d_name);
        if (file && strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) unlink(file);
    }
    if (d) closedir(d);
    rmdir(path);
}

/* ---- whether a GGUF's keys say all that the config says ---------------------------------------------------------
 */

/* The config, but for that what makes keys and values of latents is two matrices in a GGUF and one in a folder. */
static struct sy_json *config_of(const struct sy_checkpoint *c)
{
    struct sy_json *config = sy_json_new_object();
    const char *key;
    const struct sy_json *value;
    bool ok = config != NULL;
    for (void *it = NULL; (it = sy_json_next(sy_checkpoint_config(c), it, &key, &value));)
        if (strcmp(key, "kv_b_split") != 0) ok = ok && sy_json_set_take(config, key, sy_json_share(value));
    if (ok) return config;
    sy_json_free(config);
    return NULL;
}

static sy_status print_model(struct sy_args *a, const struct sy_checkpoint *c, struct sy_buf *b, struct sy_err *err)
{
    static const struct sy_shape shape = {.tok = 8, .seq = 2, .block = 4, .out = 2};
    const struct sy_env *env = &a->app->env;
    struct sy_model m;
    struct sy_graph *g = NULL;
    struct sy_json *config = config_of(c);
    if (!config) return sy_fail(err, SY_ENOMEM, "no memory to compare two models");
    sy_status st = sy_model_open(env, config, sy_checkpoint_path(c), &m, err);
    if (!st) {
        st = sy_model_build(env, &m, shape, &g, err);
        if (!st) sy_graph_print(g, true, b);
        if (!st) sy_buf_printf(b, "context of %d, vocabulary of %d\n", m.info.n_ctx, m.info.n_vocab);
        sy_graph_free(g);
        sy_model_release(&m);
    }
    sy_json_free(config);
    return st || !b->failed ? st : sy_fail(err, SY_ENOMEM, "no memory to compare two models");
}

/* The first line that differs, or NULL. */
static const char *first_other(const char *x, const char *y, const char **other)
{
    size_t line = 0;
    for (size_t i = 0; x[i] && x[i] == y[i]; i++)
        if (x[i] == '\n') line = i + 1;
    *other = y + line;
    return strcmp(x, y) ? x + line : NULL;
}

static sy_status check_same(struct sy_args *a, const struct sy_checkpoint *old, const char *path, struct sy_err *err)
{
    struct sy_checkpoint *new = NULL;
    struct sy_buf x, y;
    const char *other, *line;
    sy_buf_init(&x, &a->app->env, 0);
    sy_buf_init(&y, &a->app->env, 0);
    sy_status st = sy_checkpoint_open(&a->app->env, path, &new, err);
    if (!st) st = print_model(a, old, &x, err);
    if (!st) st = print_model(a, new, &y, err);
    if (!st && (line = first_other(x.at, y.at, &other)))
        st =
            sy_fail(err, SY_ENOSUP,
                    "the keys of a GGUF cannot say all that config.json says; its model would have '%.*s' where this "
                    "one has '%.*s'",
                    (int)strcspn(other, "\n"), other, (int)strcspn(line, "\n"), line);
    sy_buf_release(&x);
    sy_buf_release(&y);
    sy_checkpoint_free(new);
    return st;
}

/* ---- how far the new model is from the old --------------------------------------------------------------------- */

static sy_status open_engine(struct sy_args *a, const char *path, struct sy_engine **out, struct sy_err *err)
{
    struct sy_engine_opt o;
    sy_status st = sy_session_opt(a, &o, err);
    if (st) return st;
    o.model = path;
    o.ctx_len = TOKENS_MAX;
    o.score_row_max = ROWS;
    return sy_engine_new(&a->app->env, &o, out, err);
}

static sy_status compare(struct sy_args *a, const char *old, const char *new, struct sy_compare *c,
                         struct sy_err *err)
{
    struct sy_engine *e = NULL;
    struct sy_ids ids;
    sy_ids_init(&ids, &a->app->env);
    sy_status st = open_engine(a, old, &c->ref, err);
    const struct sy_tokenizer *t = st ? NULL : sy_engine_tokenizer(c->ref);
    if (t) st = sy_prompt_raw(c->ref, sample, strlen(sample), &ids, err);
    if (!st && ids.n) st = open_engine(a, new, &e, err);
    if (!st && ids.n) {
        int32_t n_vocab = sy_engine_plan(e)->info.n_vocab, n = ids.n < TOKENS_MAX ? (int32_t)ids.n : TOKENS_MAX;
        c->row = sy_arena_array(&a->arena, (size_t)ROWS * (size_t)n_vocab, sizeof *c->row);
        st = c->row ? sy_compare_window(c, e, ids.at, n, err)
                    : sy_fail(err, SY_ENOMEM, "no memory for rows of logits");
    }
    sy_engine_free(e);
    sy_engine_free(c->ref);
    sy_ids_release(&ids);
    return st;
}

/* ---- the command ----------------------------------------------------------------------------------------------- */

static sy_status convert(struct sy_args *a, const char *model, const char *temp, struct sy_convert_result *res,
                         struct sy_err *err)
{
    struct sy_checkpoint *ckpt;
    struct sy_progress bar;
    struct sy_convert_opt opt = {
        .to = (enum sy_convert_to)sy_arg_choice(a, "quant"), .progress = on_progress, .progress_ctx = &bar};
    struct sy_tokenizer *source = NULL;
    struct sy_gguf_vocab vocab;
    sy_status st = sy_checkpoint_open(&a->app->env, model, &ckpt, err);
    if (st) return st;
    sy_progress_init(&bar, &a->app->env, a->app->progress, "converting");
    bool gguf = names_gguf(sy_arg_text(a, "out")), folder = !strcmp(sy_checkpoint_kind(ckpt), "safetensors");
    bool with_tokenizer = !sy_arg_on(a, "no-tokenizer");
    if (gguf && folder && sy_checkpoint_tokenizer_json(ckpt) && with_tokenizer) {
        st = sy_tokenizer_to_gguf(&a->app->env, ckpt, &a->arena, &source, &vocab, err);
        opt.vocab = &vocab;
    }
    if (!st)
        st = (gguf ? sy_checkpoint_convert_gguf : sy_checkpoint_convert)(&a->app->env, ckpt, temp, &opt, res, err);
    sy_progress_end(&bar);
    if (!st && folder && gguf) st = check_same(a, ckpt, temp, err);
    if (!st && !gguf && with_tokenizer)
        st = folder ? copy_tokenizer(a, model, temp, err) : write_tokenizer(a, ckpt, temp, err);
    sy_tokenizer_free(source);
    sy_checkpoint_free(ckpt);
    return sy_while(err, st, "converting '%s'", model);
}

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    const char *out = sy_arg_text(a, "out"), *model;
    struct sy_convert_result res;
    struct stat s;
    sy_status st = sy_model_path(a, sy_arg_text(a, "model"), &model, err);
    if (st) return st;
    if (lstat(out, &s) == 0)
        return sy_fail(err, SY_EARG, "--out: '%s' is already there; name a folder that is not", out);
    const char *temp = sy_arena_printf(&a->arena, "%s.partial-%ld", out, (long)getpid());
    if (!temp) return sy_fail(err, SY_ENOMEM, "no memory for the name of a folder");
    bool gguf = names_gguf(out);
    if (!gguf && mkdir(temp, 0777)) return sy_fail(err, SY_EIO, "cannot make folder '%s': %s", temp, strerror(errno));
    st = convert(a, model, temp, &res, err);
    if (!st && rename(temp, out))
        st = sy_fail(err, SY_EIO, "cannot rename '%s' to '%s': %s", temp, out, strerror(errno));
    if (st && gguf) unlink(temp);
    else if (st) remove_folder(a, temp);
    if (st) return st;
    if (res.n_left_out)
        fprintf(stderr,
                "the head that predicts further tokens is left out (%zu tensors): a GGUF has no names for it\n",
                res.n_left_out);
    char size[16];
    sy_size_text(res.bytes, size);
    printf("%s in %zu file%s, %zu matrices quantised", size, res.n_shard, res.n_shard == 1 ? "" : "s",
           res.n_quantised);
    if (res.error > 0) printf(", squared error %.3g of their squares", res.error);
    putchar('\n');
    if (sy_arg_on(a, "skip-check")) return SY_OK;
    struct sy_compare c = {0};
    st = compare(a, model, out, &c, err);
    if (st) return sy_while(err, st, "'%s' is written; comparing it with '%s'", out, model);
    if (c.n)
        printf("KL divergence from the old model: mean %.5f, largest %.4f; same first token %.2f %% of %lld\n",
               c.kl_sum / (double)c.n, c.kl_max, 100 * (double)c.n_same / (double)c.n, (long long)c.n);
    else puts("no tokenizer that knows the text: not compared with the old model");
    return SY_OK;
}

const struct sy_command sy_cmd_convert = {
    .name = "convert",
    .help = "write a model in another format, as a folder of safetensors or a GGUF",
    .about =
        "Writes a folder of safetensors, a file a layer, or one GGUF file, from a model folder or a GGUF file. A "
        "folder as stored becomes a folder of the same bytes, whatever its formats. It "
        "becomes a GGUF where the names and keys of its architecture there are known, and only when they say "
        "all that its config.json says. In a folder Q8_0 and Q4_0 are "
        "stored as compressed-tensors' packed integers with a scale for 32, MXFP4 as its MXFP4, fp8 as e4m3 "
        "with a scale for 128 x 128; Q4_K and Q6_K are for GGUF alone. Scales are chosen for the least squared "
        "error. Embeddings, heads, routers "
        "and norms keep their precision. Both models are then run over a short text to print the divergence. "
        "What is made appears when it is complete, or not at all. Parts of a model that are not its text model "
        "are left out.",
    .flags = {sy_flags_model, flags, sy_flags_ctx, sy_flags_engine},
    .examples = examples,
    .run = run,
};
