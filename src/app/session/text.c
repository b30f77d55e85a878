/* text.c - the tokenizer of a model, without its weights. */
#include <string.h>

#include "app/hub/hub.h"
#include "app/session/session.h"
#include "base/file.h"

enum { JSON_BYTES_MAX = 256 << 20 };

sy_status sy_json_file(const struct sy_env *env, const char *path, struct sy_json **out, struct sy_err *err)
{
    char *text;
    size_t n;
    sy_status st = sy_file_read(env, path, JSON_BYTES_MAX, &text, &n, err);
    if (st) return st;
    st = sy_json_parse(env, text, n, true, out, err);
    sy_delete(env, text);
    return st ? sy_while(err, st, "'%s'", path) : SY_OK;
}

/* A folder may hold a tokenizer and no model. */
static sy_status open_files(struct sy_args *a, const char *dir, struct sy_text_model *t, struct sy_err *err)
{
    const struct sy_env *env = &a->app->env;
    const char *json = sy_arena_printf(&a->arena, "%s/tokenizer.json", dir);
    const char *config = sy_arena_printf(&a->arena, "%s/tokenizer_config.json", dir);
    if (!json || !config) return sy_fail(err, SY_ENOMEM, "no memory to open '%s'", dir);
    sy_status st = sy_json_file(env, json, &t->json, err);
    if (!st && sy_file_exists(config)) st = sy_json_file(env, config, &t->config, err);
    return st ? st : sy_tokenizer_from_json(env, t->json, t->config, json, &t->tok, err);
}

sy_status sy_text_model_open(struct sy_args *a, struct sy_text_model *t, struct sy_err *err)
{
    *t = (struct sy_text_model){0};
    const char *path;
    sy_status st = sy_model_path(a, sy_arg_text(a, "model"), &path, err);
    if (st) return st;
    const char *config = sy_arena_printf(&a->arena, "%s/config.json", path);
    if (!config) return sy_fail(err, SY_ENOMEM, "no memory to open '%s'", path);
    if (sy_dir_exists(path) && !sy_file_exists(config)) return open_files(a, path, t, err);
    st = sy_checkpoint_open(&a->app->env, path, &t->ckpt, err);
    return st ? st : sy_tokenizer_open(&a->app->env, t->ckpt, &t->tok, err);
}

void sy_text_model_release(struct sy_text_model *t)
{
    sy_tokenizer_free(t->tok);
    sy_checkpoint_free(t->ckpt);
    sy_json_free(t->json);
    sy_json_free(t->config);
}
