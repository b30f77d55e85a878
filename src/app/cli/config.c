/* config.c - flags from the environment and from a file. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/cli/cli.h"
#include "base/file.h"

enum { CONFIG_BYTES_MAX = 1 << 20 };

/* These act at once, so only the command line may say them; config in a config file would be a loop. */
static bool line_only(const struct sy_flag *f) { return !strcmp(f->name, "help") || !strcmp(f->name, "version"); }

sy_status sy_args_environment(struct sy_args *a, struct sy_err *err)
{
    for (size_t i = 0; i < a->n_arg; i++) {
        const struct sy_flag *f = a->arg[i].flag;
        if (line_only(f)) continue;
        char name[80];
        int n = snprintf(name, sizeof name, "SYSTOLE_%s", f->name);
        for (int c = 0; c < n; c++) name[c] = name[c] == '-' ? '_' : (char)toupper((unsigned char)name[c]);
        const char *text = getenv(name);
        if (!text || !*text) continue; /* an empty variable is how shells unset one for a command */
        sy_status st = sy_arg_assign(a, &a->arg[i], text, SY_FROM_ENV, name, err);
        if (st) return st;
    }
    return SY_OK;
}

struct search {
    struct sy_suggest near;
    bool found;
};

static void offer(void *ctx, const struct sy_flag *f)
{
    struct search *s = ctx;
    if (line_only(f)) return;
    if (!strcmp(f->name, s->near.wanted)) s->found = true;
    sy_suggest_offer(&s->near, f->name);
}

/* One file may serve several commands: a key that some other command has is passed over, a key that none has is a
 * typo. */
static sy_status check_key(const char *key, const char *where, struct sy_err *err)
{
    struct search s = {0};
    sy_suggest_init(&s.near, key);
    for (size_t i = 0; sy_commands[i]; i++) sy_flags_each(sy_commands[i], offer, &s);
    if (s.found) return SY_OK;
    const char *best = sy_suggest_best(&s.near);
    return best ? sy_fail(err, SY_EARG, "%s: unknown key '%s'; did you mean '%s'?", where, key, best)
                : sy_fail(err, SY_EARG, "%s: unknown key '%s'; keys are the long flags without dashes", where, key);
}

static char *trim(char *s)
{
    while (isspace((unsigned char)*s)) s++;
    size_t n = strlen(s);
    while (n && isspace((unsigned char)s[n - 1])) s[--n] = 0;
    return s;
}

/* key = value; the value may stand in double quotes, which keep its spaces and a '#'. */
static sy_status take_line(struct sy_args *a, char *line, const char *path, int number, struct sy_err *err)
{
    char where[200];
    snprintf(where, sizeof where, "%.150s:%d", path, number);
    line = trim(line);
    if (!*line || *line == '#') return SY_OK;
    char *eq = strchr(line, '=');
    if (!eq) return sy_fail(err, SY_EARG, "%s: expected 'key = value', found '%.60s'", where, line);
    *eq = 0;
    char *key = trim(line), *value = trim(eq + 1);
    if (*value == '"') {
        char *end = strchr(++value, '"');
        if (!end) return sy_fail(err, SY_EARG, "%s: expected a closing '\"' after '%.60s'", where, value);
        *end = 0;
    } else {
        char *comment = strstr(value, " #");
        if (comment) *comment = 0;
        value = trim(value);
    }
    struct sy_arg *v = sy_arg_find(a, key, strlen(key));
    if (!strcmp(key, "config")) return sy_fail(err, SY_EARG, "%s: a config file cannot name another", where);
    if (!v || line_only(v->flag)) return check_key(key, where, err);
    char *copy = sy_arena_text(&a->arena, value, strlen(value));
    if (!copy) return sy_fail(err, SY_ENOMEM, "no memory for '%s'", path);
    char named[280];
    snprintf(named, sizeof named, "%s: %s", where, v->flag->name);
    return sy_arg_assign(a, v, copy, SY_FROM_CONFIG, named, err);
}

sy_status sy_args_config(struct sy_args *a, const char *path, struct sy_err *err)
{
    char *text;
    size_t n;
    sy_status st = sy_file_read(&a->app->env, path, CONFIG_BYTES_MAX, &text, &n, err);
    if (st) return sy_while(err, SY_EARG, "--config");
    if (memchr(text, 0, n))
        st = sy_fail(err, SY_EARG, "--config: '%s' is not a text file: it holds a NUL byte", path);
    int number = 0;
    for (char *line = text, *next; line && !st; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        st = take_line(a, line, path, ++number, err);
    }
    sy_delete(&a->app->env, text);
    return st;
}
