/* models.c - what the cache holds. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "app/hub/hub.h"
#include "base/file.h"

enum { DEPTH_MAX = 8 };

struct walk {
    struct sy_arena *arena;
    bool hub; /* names are hf:org/name:file, not paths */
    void (*each)(void *ctx, const struct sy_cached *);
    void *ctx;
};

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && !strcmp(s + n - m, tail);
}

static int64_t file_bytes(const char *path)
{
    struct stat s;
    return stat(path, &s) || !S_ISREG(s.st_mode) ? 0 : (int64_t)s.st_size;
}

static int64_t shards_bytes(const char *path)
{
    int number, count;
    size_t stem;
    if (!sy_shard_name(path, &number, &count, &stem)) return file_bytes(path);
    int64_t sum = 0;
    char name[4200];
    for (int i = 1; i <= count; i++) {
        snprintf(name, sizeof name, "%.*s-%05d-of-%05d.gguf", (int)stem, path, i, count);
        sum += file_bytes(name);
    }
    return sum;
}

struct seen { /* of one folder */
    bool config, weights, part;
    int64_t bytes; /* but for GGUF files, which are models of their own */
};

static void walk_dir(struct walk *w, const char *dir, const char *name, int depth);

static void walk_entry(struct walk *w, const char *dir, const char *name, int depth, const char *entry,
                       struct seen *s)
{
    const char *sep = !w->hub ? "/" : depth == 0 ? "" : depth == 2 ? ":" : "/";
    char *path = sy_arena_printf(w->arena, "%s/%s", dir, entry),
         *full = sy_arena_printf(w->arena, "%s%s%s", name, sep, entry);
    int number, count;
    size_t stem;
    if (!path || !full || entry[0] == '.') return;
    if (sy_dir_exists(path)) {
        walk_dir(w, path, full, depth + 1);
    } else if (ends_with(entry, ".gguf")) {
        if (sy_shard_name(path, &number, &count, &stem) && number > 1) return;
        w->each(w->ctx, &(struct sy_cached){full, "gguf", path, shards_bytes(path), false});
    } else {
        s->part |= ends_with(entry, ".part");
        s->config |= !strcmp(entry, "config.json");
        s->weights |= ends_with(entry, ".safetensors");
        s->bytes += file_bytes(path);
    }
}

static void walk_dir(struct walk *w, const char *dir, const char *name, int depth)
{
    struct dirent **entry = NULL;
    struct seen s = {0};
    int n = depth < DEPTH_MAX ? scandir(dir, &entry, NULL, alphasort) : 0;
    for (int i = 0; i < n; i++) {
        walk_entry(w, dir, name, depth, entry[i]->d_name, &s);
        free(entry[i]);
    }
    free(entry);
    if ((s.config && s.weights) || s.part)
        w->each(w->ctx, &(struct sy_cached){name, s.config ? "safetensors" : "gguf", dir, s.bytes, s.part});
}

sy_status sy_cache_each(struct sy_arena *arena, void (*each)(void *ctx, const struct sy_cached *), void *ctx,
                        struct sy_err *err)
{
    const char *home;
    sy_status st = sy_cache_home(arena, &home, err);
    if (st) return st;
    const char *hub = sy_arena_printf(arena, "%s/hub", home), *own = sy_arena_printf(arena, "%s/models", home);
    if (!hub || !own) return sy_fail(err, SY_ENOMEM, "no memory to list the cache");
    struct walk w = {arena, false, each, ctx};
    walk_dir(&w, own, own, 0);
    w.hub = true;
    walk_dir(&w, hub, "hf:", 0);
    return SY_OK;
}
