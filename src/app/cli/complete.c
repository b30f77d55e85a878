/* complete.c - completion for bash and zsh, from the tables. */
#include <stdio.h>
#include <string.h>

#include "app/cli/cli.h"

static bool is_path(const struct sy_flag *f)
{
    return f->arg && (!strcmp(f->arg, "FILE") || !strcmp(f->arg, "DIR") || !strcmp(f->arg, "MODEL"));
}

static void bash_name(void *ctx, const struct sy_flag *f) { sy_buf_printf(ctx, " --%s", f->name); }

/* How each flag's value completes, as a case of the shell. Flags of the same name complete alike everywhere. */
static void bash_value(void *ctx, const struct sy_flag *f)
{
    if (!sy_flag_takes_value(f)) return;
    sy_buf_printf(ctx, "    %s:--%s", "*", f->name);
    if (f->letter) sy_buf_printf(ctx, "|*:-%c", f->letter);
    sy_buf_text(ctx, ") ");
    if (f->choices) {
        sy_buf_text(ctx, "COMPREPLY=($(compgen -W '");
        for (size_t i = 0; f->choices[i]; i++) sy_buf_printf(ctx, "%s%s", i ? " " : "", f->choices[i]);
        sy_buf_text(ctx, "' -- \"$cur\"))");
    } else if (is_path(f)) {
        sy_buf_text(ctx, "COMPREPLY=($(compgen -f -- \"$cur\")); compopt -o filenames");
    } else {
        sy_buf_char(ctx, ':');
    }
    sy_buf_text(ctx, "; return ;;\n");
}

static void bash_command(struct sy_buf *b, const struct sy_command *c)
{
    sy_buf_printf(b, "  %s)\n    words='", c->name);
    sy_flags_each(c, bash_name, b);
    sy_buf_text(b, "'\n    case \"x:$prev\" in\n");
    sy_flags_each(c, bash_value, b);
    sy_buf_text(b, "    esac ;;\n");
}

void sy_complete_bash(struct sy_buf *b)
{
    sy_buf_text(b, "# bash completion for systole; made by 'systole help --completion bash'\n"
                   "_systole() {\n"
                   "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words\n"
                   "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen -W '--help --version");
    for (size_t i = 0; sy_commands[i]; i++) sy_buf_printf(b, " %s", sy_commands[i]->name);
    sy_buf_text(b, "' -- \"$cur\"))\n    return\n  fi\n  case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; sy_commands[i]; i++) bash_command(b, sy_commands[i]);
    sy_buf_text(b, "  esac\n"
                   "  case $cur in\n"
                   "  -*) COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")) ;;\n"
                   "  *) COMPREPLY=($(compgen -f -- \"$cur\")); compopt -o filenames ;;\n"
                   "  esac\n}\n"
                   "complete -F _systole systole\n");
}

/* Inside single quotes and brackets of a zsh spec. */
static void zsh_text(struct sy_buf *b, const char *s)
{
    for (; *s; s++) {
        if (*s == '\'') sy_buf_text(b, "'\\''");
        else if (strchr("[]:\\", *s)) sy_buf_printf(b, "\\%c", *s);
        else sy_buf_char(b, *s);
    }
}

static void zsh_spec(struct sy_buf *b, const struct sy_flag *f, const char *dashed)
{
    sy_buf_printf(b, "    '%s%s%s[", f->kind == SY_FLAG_TEXTS ? "*" : "", dashed,
                  sy_flag_takes_value(f) && dashed[1] == '-' ? "=" : "");
    zsh_text(b, f->help);
    sy_buf_char(b, ']');
    if (sy_flag_takes_value(f)) {
        sy_buf_char(b, ':');
        zsh_text(b, f->arg ? f->arg : f->name);
        sy_buf_char(b, ':');
        if (is_path(f)) sy_buf_text(b, "_files");
        for (size_t i = 0; f->choices && f->choices[i]; i++)
            sy_buf_printf(b, "%s%s%s", i ? " " : "(", f->choices[i], f->choices[i + 1] ? "" : ")");
    }
    sy_buf_text(b, "' \\\n");
}

static void zsh_flag(void *ctx, const struct sy_flag *f)
{
    char dashed[72];
    if (f->letter) {
        snprintf(dashed, sizeof dashed, "-%c", f->letter);
        zsh_spec(ctx, f, dashed);
    }
    snprintf(dashed, sizeof dashed, "--%s", f->name);
    zsh_spec(ctx, f, dashed);
}

void sy_complete_zsh(struct sy_buf *b)
{
    sy_buf_text(b, "#compdef systole\n# made by 'systole help --completion zsh'\n"
                   "if (( CURRENT == 2 )); then\n  local -a commands=(\n");
    for (size_t i = 0; sy_commands[i]; i++) {
        sy_buf_printf(b, "    '%s:", sy_commands[i]->name);
        zsh_text(b, sy_commands[i]->help);
        sy_buf_text(b, "'\n");
    }
    sy_buf_text(
        b, "  )\n  _describe command commands\n  return\nfi\nlocal command=$words[2]\n(( CURRENT-- ))\nshift words\n"
           "case $command in\n");
    for (size_t i = 0; sy_commands[i]; i++) {
        sy_buf_printf(b, "  %s) _arguments -s \\\n", sy_commands[i]->name);
        sy_flags_each(sy_commands[i], zsh_flag, b);
        sy_buf_text(b, "    '*:argument:_files' ;;\n");
    }
    sy_buf_text(b, "esac\n");
}
