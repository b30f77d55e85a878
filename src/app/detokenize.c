/* detokenize.c - token ids to text. */
#include <stdio.h>
#include <unistd.h>

#include "app/session/session.h"

static const struct sy_flag flags[] = {
    {.name = "skip-special", .kind = SY_FLAG_SWITCH, .help = "leave special tokens out"},
    {0},
};
static const struct sy_example examples[] = {
    {"systole detokenize -m model.gguf --ids 9906,1917", "the text of two tokens"},
    {"systole tokenize -m model.gguf < a.txt | systole detokenize -m model.gguf --ids-file -", "there and back"},
    {0},
};

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    struct sy_text_model t = {0};
    struct sy_ids ids;
    struct sy_buf text;
    bool given;
    sy_ids_init(&ids, &a->app->env);
    sy_buf_init(&text, &a->app->env, 0);
    sy_status st = sy_ids_from_flags(a, &ids, &given, err);
    if (!st && !given) st = sy_fail(err, SY_EARG, "detokenize: expected --ids or --ids-file, found neither");
    if (!st) st = sy_text_model_open(a, &t, err);
    if (!st) st = sy_need_tokenizer(t.tok, sy_arg_text(a, "model"), err);
    if (!st) st = sy_tokenizer_decode(t.tok, ids.at, ids.n, sy_arg_on(a, "skip-special"), &text, err);
    if (!st && text.len) sy_text_print(text.at, text.len);
    /* Exactly the text for a pipe; a terminal's prompt wants a line of its own. */
    if (!st && isatty(STDOUT_FILENO)) putchar('\n');
    sy_text_model_release(&t);
    sy_buf_release(&text);
    sy_ids_release(&ids);
    return st;
}

const struct sy_command sy_cmd_detokenize = {
    .name = "detokenize",
    .help = "token ids to text",
    .about = "Prints the text of token ids, and nothing else.",
    .flags = {sy_flags_model, sy_flags_ids, flags},
    .examples = examples,
    .run = run,
};
