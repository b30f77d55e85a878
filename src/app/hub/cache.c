/* cache.c - where models lie on disk, and what -m means. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "app/hub/hub.h"
#include "base/file.h"

sy_status sy_cache_home(struct sy_arena *arena, const char **dir, struct sy_err *err)
{
    const char *set = getenv("SYSTOLE_HOME"), *home = getenv("HOME");
    if (set && *set) *dir = sy_arena_text(arena, set, strlen(set));
    else if (home && *home) *dir = sy_arena_printf(arena, "%s/.cache/systole", home);
    else
        return sy_fail(err, SY_EARG,
                       "expected SYSTOLE_HOME or HOME in the environment, found neither: no place for models");
    return *dir ? SY_OK : sy_fail(err, SY_ENOMEM, "no memory for the cache's path");
}

sy_status sy_dir_make(const char *path, struct sy_err *err)
{
    char part[4096];
    size_t n = strlen(path);
    if (n == 0) return sy_fail(err, SY_EARG, "expected a folder, found an empty name");
    if (n >= sizeof part) return sy_fail(err, SY_EARG, "the path '%.100s...' is too long", path);
    for (size_t i = 1; i <= n; i++) {
        if (i < n && path[i] != '/') continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0777) && errno != EEXIST)
            return sy_fail(err, SY_EIO, "cannot make the folder '%s': %s", part, strerror(errno));
    }
    return sy_dir_exists(path) ? SY_OK : sy_fail(err, SY_EIO, "cannot make the folder '%s': it is a file", path);
}

bool sy_repo_named(const char *model) { return !strncmp(model, "hf:", 3); }

/* One component of a repository's name: what the hub allows, and nothing that means something in a path. */
static size_t name_len(const char *s)
{
    size_t n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return n > 96 || *s == '.' ? 0 : n;
}

sy_status sy_repo_parse(struct sy_arena *arena, const char *model, struct sy_repo *r, struct sy_err *err)
{
    const char *s = model + 3;
    size_t org = sy_repo_named(model) ? name_len(s) : 0;
    size_t name = org && s[org] == '/' ? name_len(s + org + 1) : 0;
    size_t n = org + 1 + name;
    if (!name || (s[n] && (s[n] != ':' || !s[n + 1])))
        return sy_fail(err, SY_EARG, "expected hf:org/name or hf:org/name:file, found '%.100s'", model);
    *r = (struct sy_repo){.file = s[n] ? s + n + 1 : NULL};
    memcpy(r->id, s, n);
    const char *home;
    sy_status st = sy_cache_home(arena, &home, err);
    if (st) return st;
    r->dir = sy_arena_printf(arena, "%s/hub/%s", home, r->id);
    return r->dir ? SY_OK : sy_fail(err, SY_ENOMEM, "no memory for the cache's path");
}

bool sy_shard_name(const char *path, int *number, int *count, size_t *n_stem)
{
    size_t n = strlen(path);
    if (n < 20) return false;
    const char *tail = path + n - 20; /* -00002-of-00005.gguf */
    int used = 0;
    if (sscanf(tail, "-%5d-of-%5d.gguf%n", number, count, &used) != 2 || used != 20) return false;
    *n_stem = n - 20;
    return *number >= 1 && *count >= *number;
}

static bool all_there(struct sy_arena *arena, const char *dir, const char *file)
{
    int number, count;
    size_t stem = 0;
    if (!sy_shard_name(file, &number, &count, &stem)) count = 0;
    for (int i = count ? 1 : 0; i <= count; i++) {
        const char *path = count ? sy_arena_printf(arena, "%s/%.*s-%05d-of-%05d.gguf", dir, (int)stem, file, i, count)
                                 : sy_arena_printf(arena, "%s/%s", dir, file);
        if (!path || !sy_file_exists(path)) return false;
    }
    return true;
}

sy_status sy_repo_cached(struct sy_arena *arena, const struct sy_repo *r, const char **path, struct sy_err *err)
{
    *path = NULL;
    const char *file = r->file, *mark = sy_arena_printf(arena, "%s/.complete", r->dir);
    if (!mark) return sy_fail(err, SY_ENOMEM, "no memory for the cache's path");
    if (!file && sy_file_exists(mark)) {
        char *text;
        size_t n;
        sy_status st = sy_file_read(sy_env_default(), mark, 4096, &text, &n, err);
        if (st) return st;
        while (n && text[n - 1] == '\n') n--;
        file = sy_arena_text(arena, text, n);
        sy_delete(sy_env_default(), text);
    }
    if (!file) return SY_OK;
    bool folder = !strcmp(file, ".");
    if (folder || all_there(arena, r->dir, file))
        *path = folder ? r->dir : sy_arena_printf(arena, "%s/%s", r->dir, file);
    return SY_OK;
}

sy_status sy_model_path(struct sy_args *a, const char *model, const char **path, struct sy_err *err)
{
    if (!sy_repo_named(model)) {
        if (!sy_file_exists(model) && !sy_dir_exists(model))
            return sy_fail(err, SY_EIO, "--model: expected a .gguf file, a folder or hf:org/name, found no '%s'",
                           model);
        *path = model;
        return SY_OK;
    }
    struct sy_arena *arena = &a->arena;
    struct sy_repo r;
    sy_status st = sy_repo_parse(arena, model, &r, err);
    if (st) return sy_while(err, st, "--model");
    if ((st = sy_repo_cached(arena, &r, path, err)) || *path) return st;
    return sy_repo_pull(a, &r, path, err);
}
