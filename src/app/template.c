/* template.c - a chat template, rendered. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "app/session/session.h"
#include "base/file.h"
#include "engine/chat.h"

enum { TEMPLATE_BYTES_MAX = 1 << 20 };

static const struct sy_flag flags[] = {
    {.name = "model",
     .letter = 'm',
     .kind = SY_FLAG_TEXT,
     .arg = "MODEL",
     .help = "take its template and special tokens"},
    {.name = "template", .kind = SY_FLAG_TEXT, .arg = "FILE", .help = "a template in a file of its own"},
    {.name = "messages",
     .required = true,
     .kind = SY_FLAG_TEXT,
     .arg = "FILE",
     .help = "JSON array of messages {\"role\", \"content\", ...} ('-': standard input)"},
    {.name = "tools", .kind = SY_FLAG_TEXT, .arg = "FILE", .help = "JSON array of tools"},
    {.name = "kwargs", .kind = SY_FLAG_TEXT, .arg = "JSON", .help = "JSON object of further variables"},
    {.name = "add-generation-prompt", .kind = SY_FLAG_SWITCH, .help = "end with the start of the assistant's turn"},
    {.name = "bos-token", .kind = SY_FLAG_TEXT, .arg = "TEXT", .help = "value of bos_token"},
    {.name = "eos-token", .kind = SY_FLAG_TEXT, .arg = "TEXT", .help = "value of eos_token"},
    {.name = "pad-token", .kind = SY_FLAG_TEXT, .arg = "TEXT", .help = "value of pad_token"},
    {.name = "now",
     .kind = SY_FLAG_TEXT,
     .arg = "TIME",
     .help = "the time strftime_now tells, as 2025-03-09T14:05:07"},
    {0},
};
static const struct sy_example examples[] = {
    {"echo '[{\"role\":\"user\",\"content\":\"Hi\"}]' | systole template -m model.gguf --messages - "
     "--add-generation-prompt",
     "the prompt a chat sends to the model"},
    {0},
};

struct input {
    struct sy_text_model model;
    char *file;
    struct sy_json *messages, *tools, *kwargs;
    struct sy_template *tpl;
};

static sy_status source(struct sy_args *a, struct input *in, const char **text, size_t *n, struct sy_err *err)
{
    const char *path = sy_arg_text(a, "template");
    if (path) {
        sy_status st = sy_file_read(&a->app->env, path, TEMPLATE_BYTES_MAX, &in->file, n, err);
        *text = in->file;
        return st;
    }
    *text = in->model.ckpt ? sy_checkpoint_chat_template(in->model.ckpt, n) : NULL;
    return *text ? SY_OK
                 : sy_fail(err, SY_ENOSUP, "'%s' has no chat template; give one with --template",
                           sy_arg_text(a, "model"));
}

static sy_status read_all(struct sy_args *a, struct input *in, struct sy_render *r, struct sy_err *err)
{
    const struct sy_env *env = &a->app->env;
    const char *tools = sy_arg_text(a, "tools"), *kwargs = sy_arg_text(a, "kwargs"), *now = sy_arg_text(a, "now");
    sy_status st = sy_json_file(env, sy_arg_text(a, "messages"), &in->messages, err);
    if (!st && tools) st = sy_json_file(env, tools, &in->tools, err);
    if (!st && kwargs) {
        st = sy_json_parse(env, kwargs, strlen(kwargs), true, &in->kwargs, err);
        if (st) st = sy_while(err, SY_EARG, "--kwargs");
    }
    if (st) return st;
    if (!sy_json_is_array(in->messages))
        return sy_fail(err, SY_EFORMAT, "--messages: expected a JSON array of messages");
    if (tools && !sy_json_is_array(in->tools))
        return sy_fail(err, SY_EFORMAT, "--tools: expected a JSON array of tools");
    if (kwargs && !sy_json_is_object(in->kwargs)) return sy_fail(err, SY_EARG, "--kwargs: expected a JSON object");
    *r = (struct sy_render){
        .messages = in->messages, .tools = in->tools, .kwargs = in->kwargs, .now = sy_wall_clock()};
    if (!now) return SY_OK;
    struct tm tm = {0};
    const char *end = strptime(now, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!end || *end)
        return sy_fail(err, SY_EARG, "--now: expected a time such as 2025-03-09T14:05:07, found '%.40s'", now);
    r->now = (int64_t)timegm(&tm);
    return SY_OK;
}

static sy_status render(struct sy_args *a, struct input *in, struct sy_err *err)
{
    const struct sy_env *env = &a->app->env;
    struct sy_render r;
    const char *text;
    size_t n;
    sy_status st = read_all(a, in, &r, err);
    if (!st && sy_arg_text(a, "model")) st = sy_text_model_open(a, &in->model, err);
    if (!st) st = source(a, in, &text, &n, err);
    if (!st) st = sy_template_compile(env, text, n, NULL, &in->tpl, err);
    if (st) return st;
    if (in->model.tok) sy_chat_tokens(in->model.tok, &r);
    r.add_generation_prompt = sy_arg_on(a, "add-generation-prompt");
    if (sy_arg_given(a, "bos-token")) r.bos = sy_arg_text(a, "bos-token");
    if (sy_arg_given(a, "eos-token")) r.eos = sy_arg_text(a, "eos-token");
    if (sy_arg_given(a, "pad-token")) r.pad = sy_arg_text(a, "pad-token");
    struct sy_rendered out = {0};
    st = sy_template_render(in->tpl, env, &r, &out, err);
    if (st) return st;
    if (out.text.len) sy_text_print(out.text.at, out.text.len);
    sy_rendered_release(&out, env);
    return SY_OK;
}

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    struct input in = {0};
    if (!sy_arg_text(a, "model") && !sy_arg_text(a, "template"))
        return sy_fail(err, SY_EARG, "template: expected -m MODEL or --template FILE, found neither");
    sy_status st = render(a, &in, err);
    sy_template_free(in.tpl);
    sy_json_free(in.messages);
    sy_json_free(in.tools);
    sy_json_free(in.kwargs);
    sy_delete(&a->app->env, in.file);
    sy_text_model_release(&in.model);
    return st;
}

const struct sy_command sy_cmd_template = {
    .name = "template",
    .help = "render a chat template",
    .about = "Renders a conversation through a model's chat template, or one in a file, and prints the prompt with "
             "nothing "
             "added. Templates are the Jinja subset of published models, rendered as the transformers library does.",
    .flags = {flags},
    .examples = examples,
    .run = run,
};
