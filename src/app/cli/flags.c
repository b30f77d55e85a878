/* flags.c - argv to values. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "app/cli/cli.h"

bool sy_flag_takes_value(const struct sy_flag *f) { return f->kind != SY_FLAG_SWITCH; }

void sy_flags_each(const struct sy_command *cmd, void (*each)(void *, const struct sy_flag *), void *ctx)
{
    for (int t = 0; t < SY_FLAG_TABLES && cmd->flags[t]; t++)
        for (const struct sy_flag *f = cmd->flags[t]; f->name; f++) each(ctx, f);
    for (const struct sy_flag *f = sy_flags_common; f->name; f++) each(ctx, f);
}

const struct sy_command *sy_command_find(const char *name)
{
    for (size_t i = 0; sy_commands[i]; i++)
        if (!strcmp(sy_commands[i]->name, name)) return sy_commands[i];
    return NULL;
}

/* 536870912 as 512M where that is exact, as the user would write it. */
static void add_size(struct sy_buf *b, double v)
{
    static const char unit[] = "\0KMGT";
    int u = 0;
    while (u < 4 && v >= 1024 && fmod(v, 1024) == 0) {
        v /= 1024;
        u++;
    }
    sy_buf_printf(b, "%.15g", v);
    if (u) sy_buf_char(b, unit[u]);
}

static void add_choices(struct sy_buf *b, const char *const *choices)
{
    for (size_t i = 0; choices[i]; i++)
        sy_buf_printf(b, "%s%s", !i ? "" : choices[i + 1] ? ", " : " or ", choices[i]);
}

void sy_flag_expects(const struct sy_flag *f, struct sy_buf *b)
{
    switch (f->kind) {
    case SY_FLAG_SWITCH: sy_buf_text(b, "true or false"); break;
    case SY_FLAG_INT: sy_buf_printf(b, "an integer from %.15g to %.16g", f->lo, f->hi); break;
    case SY_FLAG_NUM: sy_buf_printf(b, "a number from %g to %g", f->lo, f->hi); break;
    case SY_FLAG_SIZE:
        sy_buf_text(b, "a size such as 512M or 4G, from ");
        add_size(b, f->lo);
        sy_buf_text(b, " to ");
        add_size(b, f->hi);
        break;
    case SY_FLAG_TEXT:
    case SY_FLAG_TEXTS: sy_buf_text(b, f->arg); break;
    case SY_FLAG_CHOICE: add_choices(b, f->choices); break;
    }
}

void sy_flag_default(const struct sy_flag *f, struct sy_buf *b)
{
    if (f->otherwise) sy_buf_text(b, f->otherwise);
    else if (f->kind == SY_FLAG_SIZE && f->number != 0) add_size(b, f->number);
    else if ((f->kind == SY_FLAG_INT || f->kind == SY_FLAG_NUM) && f->number != 0)
        sy_buf_printf(b, "%.15g", f->number);
}

/* ---- values --------------------------------------------------------------------------------------------- */

static sy_status refuse(const struct sy_flag *f, const char *text, const char *where, struct sy_err *err)
{
    struct sy_buf want;
    sy_buf_init(&want, sy_env_default(), 0);
    sy_flag_expects(f, &want);
    sy_status st =
        sy_fail(err, SY_EARG, "%s: expected %s, found '%.60s'", where, want.at ? want.at : "another value", text);
    sy_buf_release(&want);
    return st;
}

static bool read_int(const char *text, const struct sy_flag *f, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || (double)v < f->lo || (double)v > f->hi) return false;
    *out = v;
    return true;
}

static bool read_num(const char *text, const struct sy_flag *f, double *out)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v >= f->lo && v <= f->hi)) return false;
    *out = v;
    return true;
}

static bool read_size(const char *text, const struct sy_flag *f, int64_t *out)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || !isfinite(v)) return false;
    const char *units = "KMGT", *u = *end ? strchr(units, *end & ~0x20) : NULL;
    if (u) {
        v *= pow(1024, (double)(u - units + 1));
        end++;
        if (*end == 'i') end++;
    }
    if (*end == 'B') end++;
    if (*end || v < f->lo || v > f->hi) return false;
    *out = (int64_t)v;
    return true;
}

static bool read_switch(const char *text, int64_t *out)
{
    static const char *const words[] = {"false", "true", "0", "1", "no", "yes", "off", "on"};
    for (size_t i = 0; i < SY_COUNT(words); i++)
        if (!strcasecmp(text, words[i])) {
            *out = i & 1;
            return true;
        }
    return false;
}

static bool read_choice(const char *text, const struct sy_flag *f, int64_t *out)
{
    for (size_t i = 0; f->choices[i]; i++)
        if (!strcmp(text, f->choices[i])) {
            *out = (int64_t)i;
            return true;
        }
    return false;
}

static sy_status add_text(struct sy_args *a, struct sy_arg *v, const char *text, struct sy_err *err)
{
    const char **grown = sy_arena_array(&a->arena, v->n_text + 1, sizeof *grown);
    if (!grown) return sy_fail(err, SY_ENOMEM, "no memory for the arguments");
    if (v->n_text) memcpy(grown, v->texts, v->n_text * sizeof *grown);
    grown[v->n_text++] = text;
    v->texts = grown;
    return SY_OK;
}

/* A value of a lower source is checked all the same, and then not used. */
sy_status sy_arg_assign(struct sy_args *a, struct sy_arg *v, const char *text, enum sy_source source,
                        const char *where, struct sy_err *err)
{
    const struct sy_flag *f = v->flag;
    struct sy_arg new = {.flag = f, .source = source, .text = text};
    bool ok = true;
    switch (f->kind) {
    case SY_FLAG_SWITCH: ok = read_switch(text, &new.integer); break;
    case SY_FLAG_INT: ok = read_int(text, f, &new.integer); break;
    case SY_FLAG_NUM: ok = read_num(text, f, &new.number); break;
    case SY_FLAG_SIZE: ok = read_size(text, f, &new.integer); break;
    case SY_FLAG_CHOICE: ok = read_choice(text, f, &new.integer); break;
    case SY_FLAG_TEXT: break;
    case SY_FLAG_TEXTS:
        if (v->source == source) {
            new.texts = v->texts;
            new.n_text = v->n_text;
        }
        sy_status st = add_text(a, &new, text, err);
        if (st) return st;
        break;
    }
    if (!ok) return refuse(f, text, where, err);
    if (source >= v->source) *v = new;
    return SY_OK;
}

static void set_default(struct sy_arg *v, const struct sy_flag *f)
{
    *v = (struct sy_arg){.flag = f, .number = f->number, .integer = (int64_t)f->number};
    if (f->kind == SY_FLAG_TEXT) v->text = f->otherwise;
    if (f->kind == SY_FLAG_CHOICE && f->otherwise) {
        v->text = f->otherwise;
        if (!read_choice(f->otherwise, f, &v->integer)) sy_assert(!"a default is one of the choices");
    }
}

struct sy_arg *sy_arg_find(const struct sy_args *a, const char *name, size_t n)
{
    for (size_t i = 0; i < a->n_arg; i++) {
        const char *own = a->arg[i].flag->name;
        if (strlen(own) == n && !memcmp(own, name, n)) return &a->arg[i];
    }
    return NULL;
}

static struct sy_arg *find_letter(const struct sy_args *a, char letter)
{
    for (size_t i = 0; i < a->n_arg; i++)
        if (a->arg[i].flag->letter == letter) return &a->arg[i];
    return NULL;
}

/* ---- argv ----------------------------------------------------------------------------------------------- */

static sy_status unknown_flag(const struct sy_args *a, const char *text, size_t n, struct sy_err *err)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(n < 63 ? n : 63), text);
    struct sy_suggest s;
    sy_suggest_init(&s, name);
    for (size_t i = 0; i < a->n_arg; i++) sy_suggest_offer(&s, a->arg[i].flag->name);
    const char *best = sy_suggest_best(&s);
    if (best) return sy_fail(err, SY_EARG, "%s: unknown flag '--%s'; did you mean '--%s'?", a->cmd->name, name, best);
    return sy_fail(err, SY_EARG, "%s: unknown flag '--%s'; 'systole %s --help' lists them", a->cmd->name, name,
                   a->cmd->name);
}

static sy_status take_value(struct sy_args *a, struct sy_arg *v, const char *inl, int argc, char **argv, int *i,
                            const char *where, struct sy_err *err)
{
    if (!inl && !sy_flag_takes_value(v->flag)) inl = "true";
    if (!inl && *i + 1 >= argc) {
        struct sy_buf want;
        sy_buf_init(&want, sy_env_default(), 0);
        sy_flag_expects(v->flag, &want);
        sy_status st = sy_fail(err, SY_EARG, "%s: expected %s after it, found the end of the command line", where,
                               want.at ? want.at : "a value");
        sy_buf_release(&want);
        return st;
    }
    return sy_arg_assign(a, v, inl ? inl : argv[++*i], SY_FROM_LINE, where, err);
}

static sy_status parse_long(struct sy_args *a, int argc, char **argv, int *i, struct sy_err *err)
{
    const char *name = argv[*i] + 2, *eq = strchr(name, '=');
    size_t n = eq ? (size_t)(eq - name) : strlen(name);
    struct sy_arg *v = sy_arg_find(a, name, n);
    if (!v) return unknown_flag(a, name, n, err);
    char where[72];
    snprintf(where, sizeof where, "--%s", v->flag->name);
    return take_value(a, v, eq ? eq + 1 : NULL, argc, argv, i, where, err);
}

/* -n 5, -n5, -n=5 */
static sy_status parse_letter(struct sy_args *a, int argc, char **argv, int *i, struct sy_err *err)
{
    const char *text = argv[*i] + 1;
    struct sy_arg *v = find_letter(a, *text);
    if (!v)
        return sy_fail(err, SY_EARG, "%s: unknown flag '-%.20s'; 'systole %s --help' lists them", a->cmd->name, text,
                       a->cmd->name);
    char where[72];
    snprintf(where, sizeof where, "-%c, --%s", *text, v->flag->name);
    const char *inl = text[1] ? text + 1 + (text[1] == '=') : NULL;
    if (inl && !sy_flag_takes_value(v->flag) && text[1] != '=')
        return sy_fail(err, SY_EARG, "%s: takes no value, found '%.20s'", where, inl);
    return take_value(a, v, inl, argc, argv, i, where, err);
}

static sy_status parse_line(struct sy_args *a, int argc, char **argv, struct sy_err *err)
{
    bool flags = true;
    sy_status st = SY_OK;
    for (int i = 0; i < argc && !st; i++) {
        if (flags && !strcmp(argv[i], "--")) flags = false;
        else if (flags && !strncmp(argv[i], "--", 2)) st = parse_long(a, argc, argv, &i, err);
        else if (flags && argv[i][0] == '-' && argv[i][1]) st = parse_letter(a, argc, argv, &i, err);
        else a->operand[a->n_operand++] = argv[i];
    }
    return st;
}

static sy_status check_operands(const struct sy_args *a, struct sy_err *err)
{
    const struct sy_command *c = a->cmd;
    if (!c->operands && a->n_operand)
        return sy_fail(err, SY_EARG, "%s: expected flags only, found '%.60s'; see 'systole %s --help'", c->name,
                       a->operand[0], c->name);
    if (a->n_operand < (size_t)c->n_operand_min)
        return sy_fail(err, SY_EARG, "%s: expected %s, found nothing; see 'systole %s --help'", c->name, c->operands,
                       c->name);
    if (c->operands && a->n_operand > (size_t)c->n_operand_max)
        return sy_fail(err, SY_EARG, "%s: expected at most %d of %s, found '%.60s' too", c->name, c->n_operand_max,
                       c->operands, a->operand[c->n_operand_max]);
    for (size_t i = 0; i < a->n_arg; i++) {
        const struct sy_flag *f = a->arg[i].flag;
        if (!f->required || a->arg[i].source != SY_FROM_DEFAULT) continue;
        char letter[8] = "";
        if (f->letter) snprintf(letter, sizeof letter, "-%c, ", f->letter);
        return sy_fail(err, SY_EARG, "%s: expected %s--%s %s, found none; see 'systole %s --help'", c->name, letter,
                       f->name, f->arg, c->name);
    }
    return SY_OK;
}

static void count_flag(void *ctx, const struct sy_flag *f)
{
    (void)f;
    ++*(size_t *)ctx;
}

static void add_flag(void *ctx, const struct sy_flag *f)
{
    struct sy_args *a = ctx;
    set_default(&a->arg[a->n_arg++], f);
}

sy_status sy_args_parse(struct sy_args *a, struct sy_app *app, const struct sy_command *cmd, int argc, char **argv,
                        struct sy_err *err)
{
    *a = (struct sy_args){.app = app, .cmd = cmd};
    sy_arena_init(&a->arena, &app->env, 0);
    size_t n = 0;
    sy_flags_each(cmd, count_flag, &n);
    a->arg = sy_arena_array(&a->arena, n, sizeof *a->arg);
    a->operand = sy_arena_array(&a->arena, (size_t)argc + 1, sizeof *a->operand);
    if (!a->arg || !a->operand) return sy_fail(err, SY_ENOMEM, "no memory for the arguments");
    sy_flags_each(cmd, add_flag, a);
    sy_status st = parse_line(a, argc, argv, err);
    if (st || sy_arg_on(a, "help") || sy_arg_on(a, "version")) return st;
    if ((st = sy_args_environment(a, err))) return st;
    const char *config = sy_arg_text(a, "config");
    if (config && (st = sy_args_config(a, config, err))) return st;
    return check_operands(a, err);
}

void sy_args_release(struct sy_args *a) { sy_arena_release(&a->arena); }

/* ---- reading values ------------------------------------------------------------------------------------- */

static const struct sy_arg *must_find(const struct sy_args *a, const char *name)
{
    const struct sy_arg *v = sy_arg_find(a, name, strlen(name));
    sy_assert(v != NULL);
    return v;
}

int64_t sy_arg_int(const struct sy_args *a, const char *name) { return must_find(a, name)->integer; }
double sy_arg_num(const struct sy_args *a, const char *name) { return must_find(a, name)->number; }
bool sy_arg_on(const struct sy_args *a, const char *name) { return must_find(a, name)->integer != 0; }
const char *sy_arg_text(const struct sy_args *a, const char *name) { return must_find(a, name)->text; }
int sy_arg_choice(const struct sy_args *a, const char *name) { return (int)must_find(a, name)->integer; }
bool sy_arg_given(const struct sy_args *a, const char *name) { return must_find(a, name)->source != SY_FROM_DEFAULT; }
const char *const *sy_arg_texts(const struct sy_args *a, const char *name, size_t *n)
{
    const struct sy_arg *v = must_find(a, name);
    *n = v->n_text;
    return v->texts;
}
