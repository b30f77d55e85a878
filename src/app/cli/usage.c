/* usage.c - the text of --help. */
#include <stdio.h>
#include <string.h>

#include "app/cli/cli.h"

enum { COLUMNS = 100, FLAG_COLUMN = 28 };

const struct sy_fact sy_exit_statuses[] = {
    {"0", "done"},
    {"1", "failed while running: the operating system or the network refused"},
    {"2", "bad usage: a flag, a value or a request out of range"},
    {"3", "a file is malformed"},
    {"4", "the model or a feature is not supported"},
    {"5", "not enough memory"},
    {"130", "interrupted by Ctrl-C"},
    {NULL, NULL},
};
const struct sy_fact sy_variables[] = {
    {"SYSTOLE_<FLAG>", "the value of a flag that the command line does not give: --max-seqs is SYSTOLE_MAX_SEQS"},
    {"SYSTOLE_HOME", "the cache of pulled models and the chat history (default ~/.cache/systole)"},
    {"SYSTOLE_ISA", "the best instruction set the CPU backend may use: generic, avx2, avx512, amx"},
    {"HF_TOKEN", "access token sent to the model hub, for private and gated models"},
    {"HF_ENDPOINT", "the model hub (default https://huggingface.co)"},
    {"http_proxy, https_proxy, no_proxy", "proxies, as for curl(1)"},
    {NULL, NULL},
};

/* Appends words of text from column `at`, wrapped; continuation lines are indented. */
static void add_wrapped(struct sy_buf *b, const char *text, size_t at, size_t indent)
{
    bool first = true;
    while (*text) {
        size_t n = strcspn(text, " \n");
        if (!first && at + 1 + n > COLUMNS) {
            sy_buf_printf(b, "\n%*s", (int)indent, "");
            at = indent;
        } else if (!first) {
            sy_buf_char(b, ' ');
            at++;
        }
        sy_buf_add(b, text, n);
        at += n;
        text += n;
        first = *text == '\n';
        if (first) {
            sy_buf_printf(b, "\n%*s", (int)indent, "");
            at = indent;
        }
        if (*text) text++;
    }
    sy_buf_char(b, '\n');
}

static void add_facts(struct sy_buf *b, const char *head, const struct sy_fact *f)
{
    sy_buf_printf(b, "\n%s:\n", head);
    for (; f->name; f++) {
        size_t n = strlen(f->name);
        sy_buf_printf(b, "  %-16s  ", f->name);
        add_wrapped(b, f->what, n > 16 ? n + 4 : 20, 20);
    }
}

static void add_range(struct sy_buf *b, const struct sy_flag *f)
{
    struct sy_buf def;
    sy_buf_init(&def, b->env, 0);
    sy_flag_default(f, &def);
    bool ranged =
        f->kind == SY_FLAG_INT || f->kind == SY_FLAG_NUM || f->kind == SY_FLAG_SIZE || f->kind == SY_FLAG_CHOICE;
    if (ranged || def.len) sy_buf_text(b, " (");
    if (ranged) sy_flag_expects(f, b);
    if (def.len) sy_buf_printf(b, "%sdefault: %s", ranged ? "; " : "", def.at);
    if (ranged || def.len) sy_buf_char(b, ')');
    if (def.failed) b->failed = true;
    sy_buf_release(&def);
}

static void add_flag(void *ctx, const struct sy_flag *f)
{
    struct sy_buf *b = ctx, text;
    char left[80], letter[8] = "    ";
    if (f->letter) snprintf(letter, sizeof letter, "-%c, ", f->letter);
    int n = snprintf(left, sizeof left, "  %s--%s%s%s", letter, f->name, f->arg || f->choices ? " " : "",
                     f->arg       ? f->arg
                     : f->choices ? "WORD"
                                  : "");
    sy_buf_printf(b, "%-*s ", FLAG_COLUMN, left);
    if (n > FLAG_COLUMN - 1) sy_buf_printf(b, "\n%*s", FLAG_COLUMN + 1, "");
    sy_buf_init(&text, b->env, 0);
    sy_buf_text(&text, f->help);
    if (f->required) sy_buf_text(&text, " (required)");
    add_range(&text, f);
    if (text.failed) b->failed = true;
    else add_wrapped(b, text.at, FLAG_COLUMN + 1, FLAG_COLUMN + 1);
    sy_buf_release(&text);
}

static void add_examples(struct sy_buf *b, const struct sy_command *c)
{
    if (!c->examples) return;
    sy_buf_text(b, "\nexamples:\n");
    for (const struct sy_example *e = c->examples; e->line; e++) sy_buf_printf(b, "  # %s\n  %s\n", e->what, e->line);
}

void sy_usage_command(const struct sy_command *c, struct sy_buf *b)
{
    sy_buf_printf(b, "usage: systole %s [flags]%s%s\n\n", c->name, c->operands ? " " : "",
                  c->operands ? c->operands : "");
    add_wrapped(b, c->about, 0, 0);
    sy_buf_text(b, "\nflags:\n");
    sy_flags_each(c, add_flag, b);
    add_examples(b, c);
    if (c->more) c->more(b);
    sy_buf_text(b, "\nA flag --max-seqs is also SYSTOLE_MAX_SEQS and a line 'max-seqs = 4' of a --config file.\n");
}

void sy_usage_all(struct sy_buf *b)
{
    sy_buf_text(b, "systole " SY_VERSION
                   ": runs large language models.\n\nusage: systole COMMAND [flags] ...\n\ncommands:\n");
    for (size_t i = 0; sy_commands[i]; i++)
        sy_buf_printf(b, "  %-12s  %s\n", sy_commands[i]->name, sy_commands[i]->help);
    sy_buf_text(b, "\n'systole COMMAND --help' tells more, with examples; 'systole --version' prints the version.\n");
    add_facts(b, "environment", sy_variables);
    add_facts(b, "exit status", sy_exit_statuses);
}
