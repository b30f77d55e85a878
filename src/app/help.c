/* help.c - help of a command, and the files that installing makes of the tables. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "app/cli/cli.h"

static const char *const shells[] = {"bash", "zsh", NULL};
static const struct sy_flag flags[] = {
    {.name = "man",
     .kind = SY_FLAG_TEXT,
     .arg = "DIR",
     .help = "write the man pages systole.1, systole-run.1, ... into DIR"},
    {.name = "completion", .kind = SY_FLAG_CHOICE, .choices = shells, .help = "print completion for a shell"},
    {0},
};
static const struct sy_example examples[] = {
    {"systole help run", "what 'run' takes"},
    {"source <(systole help --completion bash)", "completion in this shell"},
    {0},
};

static sy_status print(struct sy_buf *b, struct sy_err *err)
{
    if (b->failed) return sy_fail(err, SY_ENOMEM, "no memory for the text");
    fwrite(b->at, 1, b->len, stdout);
    return SY_OK;
}

static sy_status write_file(const char *dir, const char *name, const struct sy_buf *b, struct sy_err *err)
{
    if (b->failed) return sy_fail(err, SY_ENOMEM, "no memory for '%s'", name);
    char path[4200];
    snprintf(path, sizeof path, "%.4000s/%.100s.1", dir, name);
    FILE *f = fopen(path, "w");
    if (!f) return sy_fail(err, SY_EIO, "cannot write '%s': %s", path, strerror(errno));
    bool ok = fwrite(b->at, 1, b->len, f) == b->len;
    if (fclose(f) || !ok) return sy_fail(err, SY_EIO, "cannot write '%s': %s", path, strerror(errno));
    return SY_OK;
}

static sy_status write_man(const char *dir, struct sy_buf *b, struct sy_err *err)
{
    sy_man_main(b);
    sy_status st = write_file(dir, "systole", b, err);
    for (size_t i = 0; sy_commands[i] && !st; i++) {
        char name[100];
        snprintf(name, sizeof name, "systole-%s", sy_commands[i]->name);
        sy_buf_clear(b);
        sy_man_command(sy_commands[i], b);
        st = write_file(dir, name, b, err);
    }
    return st;
}

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    struct sy_buf b;
    sy_buf_init(&b, &a->app->env, 0);
    sy_status st = SY_OK;
    if (sy_arg_given(a, "man")) {
        st = write_man(sy_arg_text(a, "man"), &b, err);
    } else if (sy_arg_given(a, "completion")) {
        if (sy_arg_choice(a, "completion") == 0) sy_complete_bash(&b);
        else sy_complete_zsh(&b);
        st = print(&b, err);
    } else {
        const struct sy_command *c = a->n_operand ? sy_command_find(a->operand[0]) : NULL;
        if (a->n_operand && !c)
            st = sy_fail(err, SY_EARG, "help: expected a command, found '%.40s'; 'systole help' lists them",
                         a->operand[0]);
        else if (c) sy_usage_command(c, &b);
        else sy_usage_all(&b);
        if (!st) st = print(&b, err);
    }
    sy_buf_release(&b);
    return st;
}

const struct sy_command sy_cmd_help = {
    .name = "help",
    .help = "help of a command; man pages; shell completion",
    .about = "Prints the commands, or what one command does and takes.",
    .operands = "[COMMAND]",
    .n_operand_max = 1,
    .flags = {flags},
    .examples = examples,
    .run = run,
};
