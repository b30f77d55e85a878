/* tokenize.c - text to token ids. */
#include <stdio.h>

#include "app/session/session.h"
#include "base/file.h"

enum { TEXT_BYTES_MAX = 1 << 30 };

static const struct sy_flag flags[] = {
    {.name = "special",
     .kind = SY_FLAG_SWITCH,
     .help = "add what the tokenizer's post-processor adds: BOS and the like"},
    {.name = "plain", .kind = SY_FLAG_SWITCH, .help = "control tokens written in the text stay plain text"},
    {.name = "json", .kind = SY_FLAG_SWITCH, .help = "print [1,2,3]"},
    {.name = "pieces",
     .kind = SY_FLAG_SWITCH,
     .help = "print a line per token: its id, and its text in the vocabulary as JSON has it"},
    {0},
};
static const struct sy_example examples[] = {
    {"echo -n 'Hello world' | systole tokenize -m model.gguf", "ids, as --ids takes them"},
    {"systole tokenize -m model.gguf --pieces < text.txt", "how a text is cut"},
    {0},
};

static sy_status print(const struct sy_args *a, const struct sy_tokenizer *t, const struct sy_ids *ids,
                       struct sy_err *err)
{
    bool json = sy_arg_on(a, "json"), pieces = sy_arg_on(a, "pieces") && !json;
    struct sy_buf b;
    sy_buf_init(&b, &a->app->env, 0);
    if (json) sy_buf_char(&b, '[');
    for (size_t i = 0; i < ids->n; i++) {
        size_t n = 0;
        const char *piece = pieces ? sy_tokenizer_token(t, ids->at[i], &n) : NULL;
        sy_buf_printf(&b, "%s%d", i && !pieces ? "," : "", ids->at[i]);
        if (!pieces) continue;
        sy_buf_char(&b, '\t');
        sy_json_quote(&b, piece ? piece : "", n);
        sy_buf_char(&b, '\n');
    }
    if (json) sy_buf_char(&b, ']');
    if (!pieces) sy_buf_char(&b, '\n');
    sy_status st = b.failed ? sy_fail(err, SY_ENOMEM, "no memory to print %zu token ids", ids->n) : SY_OK;
    if (!st && b.len) fwrite(b.at, 1, b.len, stdout);
    sy_buf_release(&b);
    return st;
}

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    struct sy_text_model t;
    struct sy_ids ids;
    char *text = NULL;
    size_t n;
    sy_ids_init(&ids, &a->app->env);
    sy_status st = sy_text_model_open(a, &t, err);
    if (!st) st = sy_need_tokenizer(t.tok, sy_arg_text(a, "model"), err);
    if (!st) st = sy_file_read(&a->app->env, "-", TEXT_BYTES_MAX, &text, &n, err);
    unsigned how =
        (sy_arg_on(a, "special") ? SY_ENCODE_SPECIAL : 0u) | (sy_arg_on(a, "plain") ? SY_ENCODE_PLAIN : 0u);
    if (!st) st = sy_tokenizer_encode(t.tok, text, n, how, &ids, err);
    if (!st) st = print(a, t.tok, &ids, err);
    sy_delete(&a->app->env, text);
    sy_ids_release(&ids);
    sy_text_model_release(&t);
    return st;
}

const struct sy_command sy_cmd_tokenize = {
    .name = "tokenize",
    .help = "text on standard input to token ids",
    .about =
        "Reads text from standard input and prints its token ids. Control tokens written in the text are recognised "
        "unless --plain is given; bytes that are not UTF-8 are read as U+FFFD.",
    .flags = {sy_flags_model, flags},
    .examples = examples,
    .run = run,
};
