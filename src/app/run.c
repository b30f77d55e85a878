/* run.c - one prompt, one answer. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "app/session/session.h"
#include "base/file.h"

enum { OUT_TEXT, OUT_IDS, OUT_JSON, PROMPT_BYTES_MAX = 64 << 20, TEXT_PER_TOKEN = 4 };

static const char *const outputs[] = {"text", "ids", "json", NULL};
static const struct sy_flag flags[] = {
    {.name = "raw", .kind = SY_FLAG_SWITCH, .help = "the prompt as it is, without the model's chat template"},
    {.name = "system",
     .letter = 's',
     .kind = SY_FLAG_TEXT,
     .arg = "TEXT",
     .help = "the system message of the chat template"},
    {.name = "output",
     .kind = SY_FLAG_CHOICE,
     .choices = outputs,
     .otherwise = "text",
     .help = "text streams the answer; ids streams token ids; json prints all of it at the end"},
    {.name = "ignore-eos", .kind = SY_FLAG_SWITCH, .help = "go on after an end-of-text token"},
    {0},
};
static const struct sy_example examples[] = {
    {"systole run -m model.gguf 'What is the capital of France?'", "an answer, streamed to stdout"},
    {"systole run -m model.gguf --raw -n 50 'Once upon a time' > story.txt", "continue a text"},
    {"git diff | systole run -m model.gguf -s 'Write a commit message.'", "the prompt from standard input"},
    {"systole run -m model.gguf --ids 1,2,3 -n 8 --output ids", "token ids in, token ids out"},
    {0},
};

struct out {
    int form;
    bool any_id;
    char last;               /* of the text: decides about a closing newline */
    struct sy_buf text, ids; /* OUT_JSON */
};

static void on_text(void *ctx, const char *text, size_t n)
{
    struct out *o = ctx;
    if (o->form == OUT_JSON) {
        sy_buf_add(&o->text, text, n);
    } else if (o->form == OUT_TEXT) {
        sy_text_print(text, n);
        fflush(stdout);
        o->last = text[n - 1];
    }
}

static void on_id(void *ctx, int32_t id)
{
    struct out *o = ctx;
    if (o->form == OUT_JSON) sy_buf_printf(&o->ids, "%s%d", o->ids.len ? "," : "", id);
    if (o->form != OUT_IDS) return;
    printf("%s%d", o->any_id ? "," : "", id);
    fflush(stdout);
    o->any_id = true;
}

/* The words of the command line, or standard input when there are none. */
static sy_status read_prompt(struct sy_args *a, struct sy_buf *text, struct sy_err *err)
{
    for (size_t i = 0; i < a->n_operand; i++) {
        if (i) sy_buf_char(text, ' ');
        sy_buf_text(text, a->operand[i]);
    }
    if (a->n_operand == 0) {
        if (isatty(STDIN_FILENO))
            return sy_fail(
                err, SY_EARG,
                "run: expected PROMPT, --ids or text on standard input, found none; see 'systole run --help'");
        char *in;
        size_t n;
        sy_status st = sy_file_read(&a->app->env, "-", PROMPT_BYTES_MAX, &in, &n, err);
        if (st) return st;
        sy_buf_add(text, in, n);
        sy_delete(&a->app->env, in);
    }
    if (text->failed) return sy_fail(err, SY_ENOMEM, "no memory for the prompt");
    return text->len ? SY_OK : sy_fail(err, SY_EARG, "PROMPT: expected some text, found none");
}

static sy_status make_prompt(struct sy_args *a, const struct sy_engine *e, const struct sy_buf *text,
                             struct sy_ids *ids, struct sy_err *err)
{
    const char *system = sy_arg_text(a, "system");
    bool raw = sy_arg_on(a, "raw") || !sy_engine_template(e);
    if (raw && system)
        return sy_fail(err, SY_EARG,
                       "--system: expected a model with a chat template and no --raw; write it into the prompt");
    if (raw) return sy_prompt_raw(e, text->at, text->len, ids, err);
    struct sy_buf messages;
    sy_buf_init(&messages, &a->app->env, 0);
    if (system) sy_message_add(&messages, "system", system, strlen(system));
    sy_message_add(&messages, "user", text->at, text->len);
    sy_status st = sy_prompt_chat(e, &a->app->env, &messages, ids, err);
    sy_buf_release(&messages);
    return st;
}

static sy_status close_output(struct out *o, const struct sy_answer *w, uint64_t seed, struct sy_err *err)
{
    if (o->form == OUT_IDS) putchar('\n');
    /* A terminal's prompt, and whatever reads lines, wants the last one ended. */
    if (o->form == OUT_TEXT && o->last && o->last != '\n') putchar('\n');
    if (o->form != OUT_JSON) return SY_OK;
    struct sy_buf quoted;
    sy_buf_init(&quoted, o->text.env, 0);
    sy_json_quote(&quoted, o->text.len ? o->text.at : "", o->text.len);
    if (o->text.failed || o->ids.failed || quoted.failed) {
        sy_buf_release(&quoted);
        return sy_fail(err, SY_ENOMEM, "no memory for the answer's text");
    }
    printf("{\"text\":%s,\"ids\":[%s],\"finish_reason\":\"%s\",\"seed\":%llu,"
           "\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d},"
           "\"timings\":{\"ttft_ms\":%.3f,\"prefill_tok_s\":%.3f,\"decode_tok_s\":%.3f}}\n",
           quoted.at, o->ids.len ? o->ids.at : "", sy_finish_name(w->finish), (unsigned long long)seed, w->n_prompt,
           w->n_gen, w->first_s * 1e3, w->prefill_tok_s, w->decode_tok_s);
    sy_buf_release(&quoted);
    return SY_OK;
}

static sy_status answer(struct sy_args *a, struct sy_engine *e, const struct sy_ids *ids, struct sy_err *err)
{
    struct out o = {.form = sy_arg_choice(a, "output")};
    const struct sy_tokenizer *tok = sy_engine_tokenizer(e);
    if (!tok && !sy_arg_given(a, "output")) o.form = OUT_IDS;
    struct sy_answer_opt opt = {.prompt = ids,
                                .n_max = (int32_t)sy_arg_int(a, "max-tokens"),
                                .ctx = &o,
                                .ignore_eos = sy_arg_on(a, "ignore-eos"),
                                .on_text = on_text,
                                .on_id = on_id};
    opt.stop = sy_arg_texts(a, "stop", &opt.n_stop);
    opt.wants_text = o.form == OUT_TEXT || opt.n_stop || (o.form == OUT_JSON && tok);
    sy_status st = sy_session_sampling(a, e, &opt.sampling, err);
    if (!st && opt.wants_text) st = sy_need_tokenizer(tok, sy_arg_text(a, "model"), err);
    if (st) return st;
    sy_buf_init(&o.text, &a->app->env, 0);
    sy_buf_init(&o.ids, &a->app->env, 0);
    struct sy_answer w;
    sy_interrupt_hold(a->app->interrupt);
    st = sy_answer(a->app, e, &opt, &w, err);
    if (!st) st = close_output(&o, &w, opt.sampling.seed, err);
    fflush(stdout);
    if (!st && a->app->progress) sy_answer_report(e, &w);
    sy_buf_release(&o.text);
    sy_buf_release(&o.ids);
    return st;
}

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    struct sy_engine *e = NULL;
    struct sy_ids ids;
    struct sy_buf text;
    bool given;
    sy_ids_init(&ids, &a->app->env);
    sy_buf_init(&text, &a->app->env, 0);
    sy_status st = sy_ids_from_flags(a, &ids, &given, err);
    if (!st && given && a->n_operand) st = sy_fail(err, SY_EARG, "run: expected PROMPT or --ids, found both");
    if (!st && !given) st = read_prompt(a, &text, err);
    int64_t n_prompt = (int64_t)(given ? ids.n : text.len / TEXT_PER_TOKEN);
    if (!st) st = sy_session_open(a, sy_answer_outweighs(n_prompt, sy_arg_int(a, "max-tokens")), &e, err);
    if (!st && !given) st = make_prompt(a, e, &text, &ids, err);
    if (!st) st = answer(a, e, &ids, err);
    sy_engine_free(e);
    sy_buf_release(&text);
    sy_ids_release(&ids);
    return st;
}

const struct sy_command sy_cmd_run = {
    .name = "run",
    .help = "answer one prompt, streaming to stdout",
    .about =
        "Answers one prompt and streams the answer to standard output. A model with a chat template gets the prompt "
        "as "
        "the user's message; --raw continues it as plain text, with the tokenizer's BOS in front unless the text "
        "starts with it. Control tokens written in a message stay plain text; in a raw prompt they are recognised.\n"
        "On a terminal the speed is printed last, beside what the memory allows.",
    .operands = "[PROMPT...]",
    .n_operand_max = 1 << 20,
    .flags = {sy_flags_model, flags, sy_flags_ids, sy_flags_sampling, sy_flags_ctx, sy_flags_engine},
    .examples = examples,
    .run = run,
};
