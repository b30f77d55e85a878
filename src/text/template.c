/* template.c - compiling and rendering: the outer frame of template_*.c. */
#include "text/template.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/template_int.h"

bool sy_tpl_error(struct compile *c, sy_status st, int line, const char *fmt, ...)
{
    if (c->st != SY_OK) return false;
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    msg[sy_utf8_whole(msg, strlen(msg))] = 0;
    c->st = sy_fail(c->err, st, "chat template, line %d: %s", line, msg);
    return false;
}

void *sy_tpl_alloc(struct compile *c, size_t n, size_t size)
{
    void *p = sy_arena_array(c->arena, n, size);
    if (!p)
        sy_tpl_error(c, SY_ENOMEM, 1, "no memory for the template, or more than the %zu bytes it may use",
                     c->arena->limit);
    return p;
}

const struct str *sy_tpl_literal(struct compile *c, const char *at, size_t n)
{
    struct str *s = sy_tpl_alloc(c, 1, sizeof *s);
    char *copy = s ? sy_tpl_alloc(c, n + 1, 1) : NULL;
    if (!copy) return NULL;
    if (n) memcpy(copy, at, n);
    size_t n_char = 0; /* counted now: threads share it later */
    for (size_t i = 0; i < n; i++) n_char += ((unsigned char)copy[i] & 0xc0) != 0x80;
    *s = (struct str){.at = copy, .n = n, .n_char = n_char, .trust = TRUSTED};
    return s;
}

static struct sy_template_limits with_defaults(const struct sy_template_limits *given)
{
    struct sy_template_limits l = given ? *given : (struct sy_template_limits){0};
    if (!l.source_bytes) l.source_bytes = 1 << 20;
    if (!l.output_bytes) l.output_bytes = 16 << 20;
    if (!l.heap_bytes) l.heap_bytes = 64 << 20;
    if (!l.steps) l.steps = 20000000;
    if (l.depth <= 0) l.depth = 200;
    return l;
}

static bool compile(struct compile *c, struct sy_template *t, const char *source, size_t n)
{
    const struct str *copy = sy_tpl_literal(c, source, n);
    if (!copy) return false;
    t->source = copy->at;
    t->n_source = n;
    return sy_tpl_lex(c, source, n) && (t->root = sy_tpl_parse(c)) && (t->scope = sy_tpl_analyse(c, t->root));
}

sy_status sy_template_compile(const struct sy_env *env, const char *source, size_t n,
                              const struct sy_template_limits *limits, struct sy_template **out, struct sy_err *err)
{
    struct sy_template_limits limit = with_defaults(limits);
    if (n > limit.source_bytes)
        return sy_fail(err, SY_EFORMAT, "the chat template has %zu bytes, more than the %zu it may have", n,
                       limit.source_bytes);
    if (!sy_utf8_valid(source, n)) return sy_fail(err, SY_EFORMAT, "the chat template is not valid UTF-8");
    struct sy_template *t = sy_new(env, sizeof *t);
    if (!t) return sy_fail(err, SY_ENOMEM, "no memory for a chat template");
    struct sy_arena scratch;
    sy_arena_init(&scratch, env, limit.heap_bytes);
    sy_arena_init(&t->arena, env, limit.heap_bytes);
    t->env = env;
    t->limit = limit;
    struct compile c = {.arena = &t->arena, .scratch = &scratch, .err = err};
    bool good = compile(&c, t, source, n);
    sy_arena_release(&scratch);
    sy_delete(env, c.tok);
    if (!good) {
        sy_template_free(t);
        return c.st;
    }
    *out = t;
    return SY_OK;
}

void sy_template_free(struct sy_template *t)
{
    if (!t) return;
    sy_arena_release(&t->arena);
    sy_delete(t->env, t);
}

static void clamp_generation(struct sy_rendered *o)
{
    for (size_t i = 0; i < o->n_generation; i++) {
        if (o->generation[i].hi > o->text.len) o->generation[i].hi = o->text.len;
        if (o->generation[i].lo > o->text.len) o->generation[i].lo = o->text.len;
    }
}

sy_status sy_template_render(const struct sy_template *t, const struct sy_env *env, const struct sy_render *in,
                             struct sy_rendered *out, struct sy_err *err)
{
    struct run r = {.t = t, .env = env, .steps_left = t->limit.steps, .now = in->now, .out = out, .line = 1};
    struct chat_end end;
    *out = (struct sy_rendered){0};
    sy_buf_init(&out->text, env, t->limit.output_bytes);
    sy_buf_add(&out->text, "", 0);
    sy_arena_init(&r.arena, env, t->limit.heap_bytes);
    if (out->text.failed) sy_tpl_fail(&r, SY_ENOMEM, "no memory for the output");
    else if (!(sy_tpl_chat(&r, in, &end) && sy_tpl_execute(&r) && (!end.on || sy_tpl_cut(&r, &end))))
        sy_tpl_fail(&r, SY_EARG, "rendering failed"); /* keeps the reason that is already there */
    clamp_generation(out);
    sy_arena_release(&r.arena);
    if (r.st != SY_OK) sy_rendered_release(out, env);
    if (r.st != SY_OK && err) *err = r.error;
    return r.st;
}

void sy_rendered_release(struct sy_rendered *out, const struct sy_env *env)
{
    sy_buf_release(&out->text);
    sy_delete(env, out->span);
    sy_delete(env, out->generation);
    out->span = NULL;
    out->generation = NULL;
    out->n_span = out->n_generation = 0;
}
