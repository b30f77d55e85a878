/* talk.c - a conversation. */
#include "app/session/talk.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { TALK_BYTES_MAX = 64 << 20 };

static void on_text(void *ctx, const char *text, size_t n)
{
    struct sy_talk *t = ctx;
    sy_buf_add(&t->answer, text, n);
    sy_text_print(text, n);
    fflush(stdout);
}

void sy_talk_init(struct sy_talk *t, struct sy_app *app, struct sy_engine *e)
{
    *t = (struct sy_talk){.app = app, .engine = e};
    sy_buf_init(&t->messages, &app->env, TALK_BYTES_MAX);
    sy_buf_init(&t->answer, &app->env, TALK_BYTES_MAX);
}

void sy_talk_release(struct sy_talk *t)
{
    sy_buf_release(&t->messages);
    sy_buf_release(&t->answer);
}

void sy_talk_reset(struct sy_talk *t, const char *system)
{
    sy_buf_clear(&t->messages);
    t->n_turn = 0;
    if (system && *system) sy_message_add(&t->messages, "system", system, strlen(system));
}

static void forget_from(struct sy_talk *t, size_t len)
{
    t->messages.failed = false;
    if (t->messages.at) t->messages.at[t->messages.len = len] = 0;
}

sy_status sy_talk_say(struct sy_talk *t, const char *text, size_t n, struct sy_err *err)
{
    size_t before = t->messages.len;
    struct sy_ids ids;
    sy_ids_init(&ids, &t->app->env);
    sy_message_add(&t->messages, "user", text, n);
    sy_status st = sy_prompt_chat(t->engine, &t->app->env, &t->messages, &ids, err);
    struct sy_answer_opt opt = t->opt;
    opt.prompt = &ids;
    opt.sampling = t->sampling;
    opt.wants_text = true;
    opt.on_text = on_text;
    opt.ctx = t;
    sy_buf_clear(&t->answer);
    if (!st) st = sy_answer(t->app, t->engine, &opt, &t->last, err);
    sy_ids_release(&ids);
    if (!st && t->answer.failed) st = sy_fail(err, SY_ENOMEM, "no memory for the answer's text");
    if (st) {
        forget_from(t, before);
        return st;
    }
    sy_message_add(&t->messages, "assistant", t->answer.len ? t->answer.at : "", t->answer.len);
    t->sampling.seed++; /* the next answer is another draw, and still reproducible */
    t->n_turn++;
    return SY_OK;
}

sy_status sy_talk_save(const struct sy_talk *t, const char *path, struct sy_err *err)
{
    FILE *f = fopen(path, "w");
    if (!f) return sy_fail(err, SY_EIO, "cannot write '%s': %s", path, strerror(errno));
    fprintf(f, "[%s]\n", t->messages.len ? t->messages.at : "");
    return fclose(f) ? sy_fail(err, SY_EIO, "cannot write '%s': %s", path, strerror(errno)) : SY_OK;
}

sy_status sy_talk_load(struct sy_talk *t, const char *path, struct sy_err *err)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    struct sy_json *root;
    struct sy_buf new;
    size_t turns = 0;
    sy_status st = sy_json_file(&t->app->env, path, &root, err);
    if (st) return st;
    sy_buf_init(&new, &t->app->env, TALK_BYTES_MAX);
    if (!sy_json_is_array(root)) st = sy_fail(err, SY_EFORMAT, "'%s': expected a JSON array of messages", path);
    for (size_t i = 0; !st && i < sy_json_len(root); i++) {
        const struct sy_json *m = sy_json_at(root, i);
        const char *role = sy_json_text(sy_json_get(m, "role"));
        size_t n = 0, r = 0;
        const char *text = sy_json_text_n(sy_json_get(m, "content"), &n);
        while (role && r < SY_COUNT(roles) && strcmp(role, roles[r])) r++;
        if (!role || !text || r == SY_COUNT(roles))
            st = sy_fail(err, SY_EFORMAT,
                         "'%s': message %zu: expected \"role\" (system, user or assistant) and \"content\"", path, i);
        else sy_message_add(&new, role, text, n);
        turns += r == 2;
    }
    if (!st && new.failed) st = sy_fail(err, SY_ENOMEM, "'%s': the conversation is too large", path);
    if (!st) {
        sy_buf_clear(&t->messages);
        if (new.len) sy_buf_add(&t->messages, new.at, new.len);
        t->n_turn = turns;
    }
    sy_buf_release(&new);
    sy_json_free(root);
    return st;
}
