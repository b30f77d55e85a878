#include "checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/internal.h"

sy_status sy_ckpt_nomem(const struct sy_checkpoint *c, struct sy_err *err)
{
    return sy_fail(err, SY_ENOMEM, "'%s': no memory to describe the checkpoint", c->path ? c->path : "");
}

static sy_status new_checkpoint(const struct sy_env *env, const char *path, struct sy_checkpoint **out,
                                struct sy_err *err)
{
    struct sy_checkpoint *c = sy_new(env, sizeof *c);
    if (!c) return sy_fail(err, SY_ENOMEM, "'%s': no memory to describe the checkpoint", path);
    c->env = env;
    sy_arena_init(&c->mem, env, 0);
    c->path = sy_arena_text(&c->mem, path, strlen(path));
    if (!c->path) {
        sy_checkpoint_free(c);
        return sy_fail(err, SY_ENOMEM, "'%s': no memory to describe the checkpoint", path);
    }
    *out = c;
    return SY_OK;
}

void sy_checkpoint_free(struct sy_checkpoint *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->n_map; i++) sy_map_close(&c->map[i]);
    sy_json_free(c->config);
    sy_json_free(c->generation);
    sy_json_free(c->tokenizer);
    sy_json_free(c->tokenizer_config);
    sy_delete(c->env, c->map);
    sy_delete(c->env, c->tensor);
    sy_delete(c->env, c->by_name);
    sy_arena_release(&c->mem);
    sy_delete(c->env, c);
}

/* Room for one more element in an array that doubles. */
static bool grow(const struct sy_env *env, void **at, size_t n, size_t *cap, size_t size)
{
    if (n < *cap) return true;
    size_t more = *cap ? 2 * *cap : 16;
    void *p = sy_resize(env, *at, *cap * size, more * size);
    if (!p) return false;
    *at = p;
    *cap = more;
    return true;
}

sy_status sy_ckpt_map(struct sy_checkpoint *c, const char *path, struct sy_bytes *out, struct sy_err *err)
{
    struct sy_map *more = sy_resize(c->env, c->map, c->n_map * sizeof *more, (c->n_map + 1) * sizeof *more);
    if (!more) return sy_ckpt_nomem(c, err);
    c->map = more;
    const char *name = sy_arena_text(&c->mem, path, strlen(path));
    if (!name) return sy_ckpt_nomem(c, err);
    struct sy_map *m = &c->map[c->n_map];
    sy_status st = sy_map_open(m, path, err);
    if (st) return st;
    c->n_map++;
    *out = (struct sy_bytes){name, m->at, m->n};
    return SY_OK;
}

sy_status sy_ckpt_add(struct sy_checkpoint *c, const struct sy_tensor *t, struct sy_err *err)
{
    if (c->n_tensor >= SY_CKPT_TENSORS_MAX)
        return sy_fail(err, SY_EFORMAT, "'%s': more than %d tensors", c->path, SY_CKPT_TENSORS_MAX);
    void *at = c->tensor;
    if (!grow(c->env, &at, c->n_tensor, &c->cap_tensor, sizeof *t)) return sy_ckpt_nomem(c, err);
    c->tensor = at;
    c->tensor[c->n_tensor++] = *t;
    return SY_OK;
}

/* ---- the index by name: sorted, so that no choice of names makes it slow ------------------------------- */

static int by_name(const void *a, const void *b, void *ctx)
{
    const struct sy_checkpoint *c = ctx;
    return strcmp(c->tensor[*(const uint32_t *)a].name, c->tensor[*(const uint32_t *)b].name);
}

static sy_status index_names(struct sy_checkpoint *c, struct sy_err *err)
{
    sy_delete(c->env, c->by_name);
    c->n_name = c->n_tensor;
    c->by_name = sy_new_array(c->env, c->n_tensor ? c->n_tensor : 1, sizeof *c->by_name);
    if (!c->by_name) return sy_ckpt_nomem(c, err);
    for (size_t i = 0; i < c->n_tensor; i++) c->by_name[i] = (uint32_t)i;
    qsort_r(c->by_name, c->n_tensor, sizeof *c->by_name, by_name, c);
    for (size_t i = 1; i < c->n_tensor; i++) {
        const struct sy_tensor *a = &c->tensor[c->by_name[i - 1]], *b = &c->tensor[c->by_name[i]];
        if (strcmp(a->name, b->name)) continue;
        bool same = !strcmp(a->file_name, b->file_name);
        return sy_fail(err, SY_EFORMAT, "'%s': tensor '%s' is there twice, expected once%s%s%s%s%s", b->file,
                       b->file_name, same ? "" : " (also as '", same ? "" : a->file_name, same ? "" : "')",
                       a->file != b->file ? "; the other is in " : "", a->file != b->file ? a->file : "");
    }
    return SY_OK;
}

const struct sy_tensor *sy_checkpoint_find(const struct sy_checkpoint *c, const char *name)
{
    size_t lo = 0, hi = c->n_name;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct sy_tensor *t = &c->tensor[c->by_name[mid]];
        int order = strcmp(name, t->name);
        if (order == 0) return t;
        if (order < 0) hi = mid;
        else lo = mid + 1;
    }
    return NULL;
}

sy_status sy_checkpoint_check_extra(const struct sy_checkpoint *c, const bool *used, struct sy_err *err)
{
    for (size_t i = 0; i < c->n_tensor; i++) {
        const struct sy_tensor *t = &c->tensor[i];
        if (used[i] || sy_names_ignorable(t->name, c->config)) continue;
        return sy_fail(err, SY_ENOSUP,
                       "'%s': tensor '%s' is no part of the architecture as its config describes it; "
                       "leaving it out would change the model",
                       t->file, t->file_name);
    }
    return SY_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static sy_status keep_stored(struct sy_checkpoint *c, struct sy_err *err)
{
    struct sy_tensor *t = sy_arena_array(&c->mem, c->n_tensor + 1, sizeof *t);
    if (!t) return sy_ckpt_nomem(c, err);
    if (c->n_tensor) memcpy(t, c->tensor, c->n_tensor * sizeof *t);
    c->stored = t;
    c->n_stored = c->n_tensor;
    return SY_OK;
}

static sy_status finish(struct sy_checkpoint *c, sy_status st, struct sy_checkpoint **out, struct sy_err *err)
{
    if (st == SY_OK && !strcmp(c->kind, "safetensors")) {
        st = index_names(c, err);
        if (st == SY_OK) st = keep_stored(c, err);
        if (st == SY_OK) st = sy_parts_bind(c, err);
    }
    if (st == SY_OK) st = sy_stacked_split(c, err);
    if (st == SY_OK) st = index_names(c, err);
    if (st) {
        sy_checkpoint_free(c);
        return st;
    }
    *out = c;
    return SY_OK;
}

sy_status sy_checkpoint_open(const struct sy_env *env, const char *path, struct sy_checkpoint **out,
                             struct sy_err *err)
{
    struct sy_checkpoint *c = NULL;
    sy_status st = new_checkpoint(env, path, &c, err);
    if (st) return st;
    return finish(c, sy_dir_exists(path) ? sy_folder_open(c, err) : sy_gguf_open(c, err), out, err);
}

sy_status sy_checkpoint_from_gguf(const struct sy_env *env, const struct sy_bytes *shard, size_t n,
                                  struct sy_checkpoint **out, struct sy_err *err)
{
    struct sy_checkpoint *c = NULL;
    sy_status st = new_checkpoint(env, n ? shard[0].name : "", &c, err);
    if (st) return st;
    return finish(c, sy_gguf_read(c, shard, n, err), out, err);
}

sy_status sy_checkpoint_from_safetensors(const struct sy_env *env, const struct sy_bytes *config,
                                         const struct sy_bytes *shard, size_t n, struct sy_checkpoint **out,
                                         struct sy_err *err)
{
    struct sy_checkpoint *c = NULL;
    sy_status st = new_checkpoint(env, config->name, &c, err);
    if (st) return st;
    c->kind = "safetensors";
    struct sy_json *j = NULL;
    st = sy_json_parse(env, (const char *)config->at, config->n, true, &j, err);
    if (st) st = sy_while(err, st, "'%s'", config->name);
    else st = sy_folder_config_take(c, j, config->name, err);
    for (size_t i = 0; st == SY_OK && i < n; i++) st = sy_safetensors_read(c, &shard[i], err);
    return finish(c, st, out, err);
}

/* ---- what it holds ------------------------------------------------------------------------------------- */

const char *sy_checkpoint_path(const struct sy_checkpoint *c) { return c->path; }
const char *sy_checkpoint_kind(const struct sy_checkpoint *c) { return c->kind; }
const struct sy_json *sy_checkpoint_config(const struct sy_checkpoint *c) { return c->config; }
const struct sy_json *sy_checkpoint_generation(const struct sy_checkpoint *c) { return c->generation; }
const struct sy_json *sy_checkpoint_tokenizer_json(const struct sy_checkpoint *c) { return c->tokenizer; }
const struct sy_json *sy_checkpoint_tokenizer_config(const struct sy_checkpoint *c) { return c->tokenizer_config; }
const struct sy_gguf_vocab *sy_checkpoint_gguf_vocab(const struct sy_checkpoint *c) { return c->vocab; }
const char *sy_checkpoint_chat_template(const struct sy_checkpoint *c, size_t *n)
{
    *n = c->n_chat_template;
    return c->chat_template;
}

size_t sy_checkpoint_count(const struct sy_checkpoint *c) { return c->n_tensor; }

const struct sy_tensor *sy_checkpoint_at(const struct sy_checkpoint *c, size_t i)
{
    sy_assert(i < c->n_tensor);
    return &c->tensor[i];
}

size_t sy_checkpoint_index(const struct sy_checkpoint *c, const struct sy_tensor *t)
{
    sy_assert(t >= c->tensor && t < c->tensor + c->n_tensor);
    return (size_t)(t - c->tensor);
}

int64_t sy_tensor_flat_len(const struct sy_tensor *t, bool matrix)
{
    int64_t n = 1, wide = 0;
    for (int i = 0; i < t->n_dim; i++) {
        n *= t->dim[i];
        wide += t->dim[i] > 1;
    }
    bool filters = t->n_dim == 3 && t->dim[1] == 1;
    return t->n_dim > 0 && (wide <= 1 || filters || matrix) ? n : 0;
}
