/* man.c - man pages, from the tables (man(7) macros). */
#include <string.h>

#include "app/cli/cli.h"

/* A line may not start with a control character; backslashes and hyphens are the text's own. */
static void add_text(struct sy_buf *b, const char *s)
{
    bool line_start = !b->len || b->at[b->len - 1] == '\n';
    for (; *s; s++) {
        if (line_start && (*s == '.' || *s == '\'')) sy_buf_text(b, "\\&");
        if (*s == '\\') sy_buf_text(b, "\\e");
        else if (*s == '-') sy_buf_text(b, "\\-");
        else if (*s == '"') sy_buf_text(b, "\\(dq");
        else sy_buf_char(b, *s);
        line_start = *s == '\n';
    }
}

static void add_line(struct sy_buf *b, const char *macro, const char *text)
{
    sy_buf_text(b, macro);
    add_text(b, text);
    sy_buf_char(b, '\n');
}

static void add_facts(struct sy_buf *b, const char *head, const struct sy_fact *f)
{
    sy_buf_printf(b, ".SH %s\n", head);
    for (; f->name; f++) {
        add_line(b, ".TP\n.B ", f->name);
        add_line(b, "", f->what);
    }
}

static void add_flag(void *ctx, const struct sy_flag *f)
{
    struct sy_buf *b = ctx, more;
    sy_buf_text(b, ".TP\n");
    if (f->letter) sy_buf_printf(b, "\\fB\\-%c\\fR, ", f->letter);
    sy_buf_text(b, "\\fB\\-\\-");
    add_text(b, f->name);
    sy_buf_text(b, "\\fR");
    if (f->arg || f->choices) sy_buf_printf(b, " \\fI%s\\fR", f->arg ? f->arg : "WORD");
    sy_buf_char(b, '\n');
    sy_buf_init(&more, b->env, 0);
    sy_buf_text(&more, f->help);
    sy_buf_char(&more, '.');
    if (f->required) sy_buf_text(&more, " Required.");
    if (f->kind != SY_FLAG_SWITCH && f->kind != SY_FLAG_TEXT && f->kind != SY_FLAG_TEXTS) {
        sy_buf_text(&more, " Expects ");
        sy_flag_expects(f, &more);
        sy_buf_char(&more, '.');
    }
    size_t before = more.len;
    sy_buf_text(&more, " Default: ");
    size_t head = more.len;
    sy_flag_default(f, &more);
    if (more.len == head && !more.failed) more.at[more.len = before] = 0;
    else sy_buf_char(&more, '.');
    if (more.failed) b->failed = true;
    else add_line(b, "", more.at);
    sy_buf_release(&more);
}

void sy_man_command(const struct sy_command *c, struct sy_buf *b)
{
    char name[64];
    size_t n = 0;
    for (const char *s = c->name; *s && n < sizeof name - 1; s++)
        name[n++] = (char)(*s >= 'a' && *s <= 'z' ? *s - 32 : *s);
    name[n] = 0;
    sy_buf_printf(b, ".TH SYSTOLE\\-%s 1 \"\" \"systole " SY_VERSION "\" \"Systole\"\n.SH NAME\nsystole\\-%s \\- ",
                  name, c->name);
    add_line(b, "", c->help);
    sy_buf_printf(b, ".SH SYNOPSIS\n.B systole %s\n[flags]\n", c->name);
    if (c->operands) add_line(b, ".I ", c->operands);
    sy_buf_text(b, ".SH DESCRIPTION\n");
    add_line(b, "", c->about);
    sy_buf_text(b, ".SH OPTIONS\n");
    sy_flags_each(c, add_flag, b);
    if (c->examples) sy_buf_text(b, ".SH EXAMPLES\n");
    for (const struct sy_example *e = c->examples; e && e->line; e++) {
        add_line(b, ".PP\n", e->what);
        add_line(b, ".PP\n.nf\n.RS\n", e->line);
        sy_buf_text(b, ".RE\n.fi\n");
    }
    add_facts(b, "ENVIRONMENT", sy_variables);
    add_facts(b, "EXIT STATUS", sy_exit_statuses);
    sy_buf_text(b, ".SH SEE ALSO\n.BR systole (1)\n");
}

void sy_man_main(struct sy_buf *b)
{
    sy_buf_text(b, ".TH SYSTOLE 1 \"\" \"systole " SY_VERSION "\" \"Systole\"\n.SH NAME\n"
                   "systole \\- runs large language models\n"
                   ".SH SYNOPSIS\n.B systole\n.I COMMAND\n[flags] ...\n"
                   ".SH DESCRIPTION\n"
                   "Runs large language models from GGUF files and Hugging Face folders.\n"
                   "The answer alone goes to standard output; errors are one line on standard error; progress and\n"
                   "statistics are drawn on standard error when it is a terminal, or with\n.BR \\-\\-progress .\n"
                   ".SH COMMANDS\n");
    for (size_t i = 0; sy_commands[i]; i++) {
        sy_buf_printf(b, ".TP\n.BR systole\\-%s (1)\n", sy_commands[i]->name);
        add_line(b, "", sy_commands[i]->help);
    }
    sy_buf_text(b, ".SH CONFIGURATION\nA flag\n.B \\-\\-max\\-seqs\nis also\n.B SYSTOLE_MAX_SEQS\n"
                   "in the environment and a line\n.B max\\-seqs = 4\nof the file that\n.B \\-\\-config\n"
                   "names; '#' starts a comment there. The command line wins over the environment, the environment\n"
                   "over the file.\n");
    add_facts(b, "ENVIRONMENT", sy_variables);
    add_facts(b, "EXIT STATUS", sy_exit_statuses);
}
