/* cli.h - what is made of the tables of commands: a parser, help, man pages, completions. */
#pragma once
#include "app/app.h"
#include "base/buf.h"

/* Parses argv[1..] after the command's name, then the environment, then --config FILE. On failure (SY_EARG) the
 * message names the flag, what was expected and what was found. Release in every case. */
SY_CHECK sy_status sy_args_parse(struct sy_args *, struct sy_app *, const struct sy_command *, int argc, char **argv,
                                 struct sy_err *);
void sy_args_release(struct sy_args *);

/* Between flags.c and config.c. where: how the user wrote the flag, for messages. */
struct sy_arg *sy_arg_find(const struct sy_args *, const char *name, size_t n);
SY_CHECK sy_status sy_arg_assign(struct sy_args *, struct sy_arg *, const char *text, enum sy_source,
                                 const char *where, struct sy_err *);
SY_CHECK sy_status sy_args_environment(struct sy_args *, struct sy_err *);
SY_CHECK sy_status sy_args_config(struct sy_args *, const char *path, struct sy_err *);

/* Calls each(ctx, flag) for every flag of a command, shared ones last. */
void sy_flags_each(const struct sy_command *, void (*each)(void *ctx, const struct sy_flag *), void *ctx);
const struct sy_command *sy_command_find(const char *name); /* NULL: unknown */
bool sy_flag_takes_value(const struct sy_flag *);
/* "an integer from 1 to 4096", "f32, bf16 or f16": what the flag expects. */
void sy_flag_expects(const struct sy_flag *, struct sy_buf *);
void sy_flag_default(const struct sy_flag *, struct sy_buf *); /* nothing when there is none */

/* The nearest of the candidates by edits (Damerau, 1964), or NULL when none is near. */
struct sy_suggest {
    const char *wanted, *best;
    size_t best_edits;
};
void sy_suggest_init(struct sy_suggest *, const char *wanted);
void sy_suggest_offer(struct sy_suggest *, const char *candidate);
const char *sy_suggest_best(const struct sy_suggest *);

void sy_usage_all(struct sy_buf *);                                /* systole --help */
void sy_usage_command(const struct sy_command *, struct sy_buf *); /* systole run --help */
void sy_man_main(struct sy_buf *);                                 /* systole.1 */
void sy_man_command(const struct sy_command *, struct sy_buf *);   /* systole-run.1 */
void sy_complete_bash(struct sy_buf *);
void sy_complete_zsh(struct sy_buf *);

/* What every command's documentation ends with: the exit statuses, the variables. */
struct sy_fact {
    const char *name, *what; /* name NULL ends a table */
};
extern const struct sy_fact sy_exit_statuses[], sy_variables[];
