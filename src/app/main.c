/* main.c - finds the command, runs it, turns what happened into a line and an exit status. */
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "app/cli/cli.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_FILE = 3, EXIT_UNSUPPORTED = 4, EXIT_MEMORY = 5 };

static int exit_status(sy_status st)
{
    switch (st) {
    case SY_OK: return EXIT_OK;
    case SY_EARG: return EXIT_USAGE;
    case SY_EFORMAT:
    case SY_ESHAPE: return EXIT_FILE;
    case SY_ENOSUP: return EXIT_UNSUPPORTED;
    case SY_ENOMEM: return EXIT_MEMORY;
    case SY_FULL:
    case SY_EIO:
    case SY_ECOMM: return EXIT_FAILED;
    }
    return EXIT_FAILED;
}

/* What was printed must have arrived: a full disk or a closed pipe is a failure, not a short answer. */
static int finish(int code)
{
    bool lost = fflush(stdout) != 0 || ferror(stdout);
    if (!lost || code) return code;
    fprintf(stderr, "systole: cannot write to standard output: %s\n", strerror(errno));
    return EXIT_FAILED;
}

static int complain(const struct sy_err *err, sy_status st)
{
    fflush(stdout);
    fprintf(stderr, "systole: %s\n", err->msg[0] ? err->msg : sy_status_name(st));
    return exit_status(st);
}

static int unknown_command(const char *name)
{
    struct sy_suggest s;
    sy_suggest_init(&s, name);
    for (size_t i = 0; sy_commands[i]; i++) sy_suggest_offer(&s, sy_commands[i]->name);
    const char *best = sy_suggest_best(&s);
    if (best) fprintf(stderr, "systole: unknown command '%.40s'; did you mean '%s'?\n", name, best);
    else fprintf(stderr, "systole: unknown command '%.40s'; 'systole --help' lists them\n", name);
    return EXIT_USAGE;
}

static int print_usage(const struct sy_command *c)
{
    struct sy_buf b;
    struct sy_err err;
    sy_buf_init(&b, sy_env_default(), 0);
    if (c) sy_usage_command(c, &b);
    else sy_usage_all(&b);
    int code = b.failed ? complain(&err, sy_fail(&err, SY_ENOMEM, "no memory for the help text")) : EXIT_OK;
    if (!code) fwrite(b.at, 1, b.len, stdout);
    sy_buf_release(&b);
    return finish(code);
}

static int run(struct sy_app *app, const struct sy_command *c, int argc, char **argv)
{
    struct sy_err err = {0};
    struct sy_args a;
    sy_status st = sy_args_parse(&a, app, c, argc, argv, &err);
    int code = EXIT_OK;
    if (st) {
        code = complain(&err, st);
    } else if (sy_arg_on(&a, "help")) {
        code = print_usage(c);
    } else if (sy_arg_on(&a, "version")) {
        puts("systole " SY_VERSION);
    } else {
        app->quiet = sy_arg_on(&a, "quiet");
        app->progress = !app->quiet && (sy_arg_on(&a, "progress") || isatty(STDERR_FILENO));
        app->log.level = app->quiet ? SY_LOG_ERROR : (enum sy_log_level)sy_arg_choice(&a, "log-level");
        st = c->run(&a, &err);
        if (sy_interrupt_seen(app->interrupt)) code = SY_EXIT_INTERRUPTED;
        else if (st) code = complain(&err, st);
    }
    sy_args_release(&a);
    return finish(code);
}

int main(int argc, char **argv)
{
    setlocale(LC_CTYPE, "");
    if (argc < 2) {
        fputs("systole: expected a command; 'systole --help' lists them\n", stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) return print_usage(NULL);
    if (!strcmp(argv[1], "--version")) {
        puts("systole " SY_VERSION);
        return finish(EXIT_OK);
    }
    if (argv[1][0] == '-') {
        fprintf(stderr, "systole: expected a command first, found '%.40s'; 'systole --help' lists them\n", argv[1]);
        return EXIT_USAGE;
    }
    const struct sy_command *c = sy_command_find(argv[1]);
    if (!c) return unknown_command(argv[1]);
    struct sy_err err = {0};
    struct sy_app app = {.env = *sy_env_default()};
    app.log = *app.env.log;
    app.env.log = &app.log;
    sy_status st = sy_interrupt_new(&app.env, &app.interrupt, &err);
    return st ? complain(&err, st) : run(&app, c, argc - 2, argv + 2);
}
