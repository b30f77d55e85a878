/* chat.c - a conversation in the terminal. */
#include <stdio.h>
#include <string.h>

#include "app/cli/editor.h"
#include "app/hub/hub.h"
#include "app/session/talk.h"

static const struct sy_flag flags[] = {
    {.name = "system", .letter = 's', .kind = SY_FLAG_TEXT, .arg = "TEXT", .help = "the system message"},
    {.name = "load", .kind = SY_FLAG_TEXT, .arg = "FILE", .help = "continue a conversation that /save wrote"},
    {0},
};
static const struct sy_example examples[] = {
    {"systole chat -m model.gguf -s 'Answer briefly.'", "talk to a model; /help lists the commands"},
    {"printf 'Hi!\\nAnd now in French.\\n' | systole chat -m model.gguf", "two turns from a pipe, a line each"},
    {0},
};

struct chat {
    struct sy_talk talk;
    struct sy_editor *editor;
    struct sy_buf line, text;
    bool over;
};

/* ---- /commands ------------------------------------------------------------------------------------------ */

struct command {
    const char *name, *arg, *help;
    sy_status (*run)(struct chat *, const char *arg, struct sy_err *);
};
static sy_status do_start(struct chat *c, const char *arg, struct sy_err *err)
{
    (void)err;
    sy_talk_reset(&c->talk, arg);
    return SY_OK;
}

static sy_status do_save(struct chat *c, const char *arg, struct sy_err *err)
{
    if (!*arg) return sy_fail(err, SY_EARG, "/save: expected a file name, found none");
    return sy_talk_save(&c->talk, arg, err);
}

static sy_status do_load(struct chat *c, const char *arg, struct sy_err *err)
{
    if (!*arg) return sy_fail(err, SY_EARG, "/load: expected a file name, found none");
    return sy_talk_load(&c->talk, arg, err);
}

static sy_status do_stats(struct chat *c, const char *arg, struct sy_err *err)
{
    (void)arg;
    if (!c->talk.n_turn) return sy_fail(err, SY_EARG, "/stats: nothing was answered yet");
    fflush(stdout);
    sy_answer_report(c->talk.engine, &c->talk.last);
    return SY_OK;
}

static sy_status do_quit(struct chat *c, const char *arg, struct sy_err *err)
{
    (void)arg, (void)err;
    c->over = true;
    return SY_OK;
}

static const struct command commands[] = {
    {"reset", "", "forget the conversation, the system message too", do_start},
    {"system", "[TEXT]", "start again with this system message", do_start},
    {"save", "FILE", "write the conversation as JSON", do_save},
    {"load", "FILE", "continue a saved conversation", do_load},
    {"stats", "", "speed of the last answer, beside its limit", do_stats},
    {"quit", "", "end", do_quit},
    {0},
};

static sy_status help(void)
{
    puts("  /help             this list");
    for (const struct command *k = commands; k->name; k++) printf("  /%-7s %-7s  %s\n", k->name, k->arg, k->help);
    puts("  A line that ends in \\ goes on; a message between lines of \"\"\" may hold anything.\n"
         "  Ctrl-C stops the answer, Ctrl-D ends the conversation.");
    return SY_OK;
}

static sy_status command(struct chat *c, char *text, struct sy_err *err)
{
    if (!strcmp(text, "/help")) return help();
    char *arg = text + 1 + strcspn(text + 1, " ");
    if (*arg) *arg++ = 0;
    while (*arg == ' ') arg++;
    for (const struct command *k = commands; k->name; k++)
        if (!strcmp(text + 1, k->name)) return k->run(c, arg, err);
    return sy_fail(err, SY_EARG, "unknown command '%.40s'; /help lists them", text);
}

/* ---- the conversation ----------------------------------------------------------------------------------- */

/* A message: a line, lines joined by \ at their ends, or all between two lines of """. */
static enum sy_line read_message(struct chat *c)
{
    bool block = false, more = true;
    sy_buf_clear(&c->text);
    sy_buf_text(&c->text, "");
    for (const char *prompt = "> "; more; prompt = ". ") {
        enum sy_line got = sy_editor_read(c->editor, prompt, &c->line);
        if (got == SY_LINE_INTERRUPTED || (got == SY_LINE_END && !c->text.len)) return got;
        if (got == SY_LINE_END) break;
        bool fence = !strcmp(c->line.at, "\"\"\"");
        if (fence && (block || !c->text.len)) {
            more = block = !block;
            continue;
        }
        size_t n = c->line.len;
        bool joined = !block && n && c->line.at[n - 1] == '\\';
        sy_buf_add(&c->text, c->line.at, n - joined);
        more = block || joined;
        if (more) sy_buf_char(&c->text, '\n');
    }
    return SY_LINE;
}

static sy_status turn(struct chat *c, struct sy_err *err)
{
    struct sy_interrupt *in = c->talk.app->interrupt;
    sy_interrupt_clear(in);
    sy_status st = sy_talk_say(&c->talk, c->text.at, c->text.len, err);
    if (!st) puts(c->talk.last.finish == SY_FINISH_CANCELLED ? " [stopped]" : "");
    sy_interrupt_clear(in);
    fflush(stdout);
    return st;
}

/* On a terminal a failure is told and the conversation goes on; a script ends with it. */
static sy_status converse(struct chat *c, struct sy_err *err)
{
    bool terminal = sy_editor_terminal(c->editor);
    while (!c->over) {
        enum sy_line got = read_message(c);
        if (got == SY_LINE_END) break;
        if (got == SY_LINE_INTERRUPTED || !c->text.len) continue;
        sy_editor_remember(c->editor, c->text.at);
        sy_status st = c->text.at[0] == '/' ? command(c, c->text.at, err) : turn(c, err);
        if (st && !terminal) return st;
        if (st) fprintf(stderr, "systole: %s\n", err->msg);
    }
    if (terminal && !c->over) putchar('\n');
    return SY_OK;
}

static sy_status open_chat(struct sy_args *a, struct chat *c, struct sy_err *err)
{
    const char *home, *history = NULL, *load = sy_arg_text(a, "load");
    if (!sy_cache_home(&a->arena, &home, NULL) && !sy_dir_make(home, NULL))
        history = sy_arena_printf(&a->arena, "%s/chat_history", home);
    sy_status st = sy_need_tokenizer(sy_engine_tokenizer(c->talk.engine), sy_arg_text(a, "model"), err);
    if (!st && !sy_engine_template(c->talk.engine))
        st = sy_fail(err, SY_ENOSUP, "'%s' has no chat template: use 'systole run --raw'", sy_arg_text(a, "model"));
    if (!st) st = sy_session_sampling(a, c->talk.engine, &c->talk.sampling, err);
    c->talk.opt.n_max = (int32_t)sy_arg_int(a, "max-tokens");
    c->talk.opt.stop = sy_arg_texts(a, "stop", &c->talk.opt.n_stop);
    sy_talk_reset(&c->talk, sy_arg_text(a, "system"));
    if (!st && load) st = sy_talk_load(&c->talk, load, err);
    return st ? st : sy_editor_new(a->app, history, &c->editor, err);
}

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    struct chat c = {0};
    struct sy_engine *e = NULL;
    sy_status st = sy_session_open(a, true, &e, err);
    if (st) return st;
    sy_talk_init(&c.talk, a->app, e);
    sy_buf_init(&c.line, &a->app->env, 0);
    sy_buf_init(&c.text, &a->app->env, 0);
    sy_interrupt_hold(a->app->interrupt);
    st = open_chat(a, &c, err);
    if (!st && sy_editor_terminal(c.editor) && !a->app->quiet) fputs("/help lists the commands\n", stderr);
    if (!st) st = converse(&c, err);
    sy_interrupt_clear(a->app->interrupt);
    sy_editor_free(c.editor);
    sy_buf_release(&c.line);
    sy_buf_release(&c.text);
    sy_talk_release(&c.talk);
    sy_engine_free(e);
    return st;
}

const struct sy_command sy_cmd_chat = {
    .name = "chat",
    .help = "a conversation in the terminal",
    .about = "Talks to a model. On a terminal lines are edited, with a history kept in the cache folder; from a pipe "
             "each line "
             "is a message. Ctrl-C stops the answer and keeps what was said; /help lists the commands.",
    .flags = {sy_flags_model, flags, sy_flags_sampling, sy_flags_ctx, sy_flags_engine},
    .examples = examples,
    .run = run,
};
