/* listing.c - which files a repository has, and which of them make the model. */
#include <stdio.h>
#include <string.h>

#include "app/hub/hub.h"
#include "base/json.h"

enum { FILES_MAX = 100000, PATH_MAX_BYTES = 1024 };

/* A path of the hub becomes a path below our folder: nothing in it may lead out of there or hide a file of ours. */
static bool path_safe(const char *path)
{
    size_t n = strlen(path);
    if (!n || n > PATH_MAX_BYTES) return false;
    for (const char *part = path;;) {
        size_t len = strcspn(part, "/");
        bool dots = (len == 1 && part[0] == '.') || (len == 2 && part[0] == '.' && part[1] == '.');
        if (!len || dots) return false;
        for (size_t i = 0; i < len; i++)
            if ((unsigned char)part[i] < 0x20 || part[i] == '\\' || part[i] == 0x7f) return false;
        if (!part[len]) return true;
        part += len + 1;
    }
}

static bool is_hex(const char *s, size_t n) { return s && strlen(s) == n && strspn(s, "0123456789abcdef") == n; }

static sy_status add_file(struct sy_arena *arena, const struct sy_json *j, struct sy_listing *l, struct sy_err *err)
{
    const char *path = sy_json_text(sy_json_get(j, "path"));
    if (!path || !path_safe(path))
        return sy_fail(err, SY_EFORMAT,
                       "the hub's listing names the file '%.100s': expected a relative path inside the "
                       "repository; nothing was written",
                       path ? path : "");
    const struct sy_json *lfs = sy_json_get(j, "lfs");
    const char *digest = sy_json_text(sy_json_get(sy_json_is_object(lfs) ? lfs : j, "oid"));
    struct sy_hub_file f = {.lfs = sy_json_is_object(lfs), .bytes = sy_json_int(sy_json_get(j, "size"), -1)};
    if (f.lfs) f.bytes = sy_json_int(sy_json_get(lfs, "size"), f.bytes);
    if (f.bytes < 0 || !is_hex(digest, f.lfs ? 64 : 40))
        return sy_fail(err, SY_EFORMAT, "the hub's listing of '%.100s': expected a size and a digest, found none",
                       path);
    memcpy(f.digest, digest, strlen(digest) + 1);
    f.path = sy_arena_text(arena, path, strlen(path));
    if (l->n == FILES_MAX) return sy_fail(err, SY_ENOSUP, "the repository has more than %d files", FILES_MAX);
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        struct sy_hub_file *grown = sy_arena_array(arena, cap, sizeof *grown);
        if (!grown) return sy_fail(err, SY_ENOMEM, "no memory for the hub's listing");
        if (l->n) memcpy(grown, l->file, l->n * sizeof *grown);
        l->file = grown;
        l->cap = cap;
    }
    if (!f.path) return sy_fail(err, SY_ENOMEM, "no memory for the hub's listing");
    l->file[l->n++] = f;
    return SY_OK;
}

sy_status sy_listing_add(struct sy_arena *arena, const struct sy_env *env, const char *text, size_t n,
                         struct sy_listing *l, struct sy_err *err)
{
    struct sy_json *root;
    sy_status st = sy_json_parse(env, text, n, false, &root, err);
    if (st) return sy_while(err, st, "the hub's listing");
    if (!sy_json_is_array(root)) st = sy_fail(err, SY_EFORMAT, "the hub's listing: expected a JSON array of files");
    for (size_t i = 0; !st && i < sy_json_len(root); i++) {
        const struct sy_json *j = sy_json_at(root, i);
        const char *type = sy_json_text(sy_json_get(j, "type"));
        if (type && !strcmp(type, "file")) st = add_file(arena, j, l, err);
    }
    sy_json_free(root);
    return st;
}

/* ---- what makes the model ------------------------------------------------------------------------------- */

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && !strcmp(s + n - m, tail);
}

static bool top_level(const struct sy_hub_file *f, const char *tail)
{
    return !strchr(f->path, '/') && ends_with(f->path, tail);
}

static size_t count_top(const struct sy_listing *l, const char *head, const char *tail)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++)
        n += top_level(&l->file[i], tail) && !strncmp(l->file[i].path, head, strlen(head));
    return n;
}

/* Later shards belong to their first. */
static bool is_gguf_model(const struct sy_hub_file *f)
{
    int number, count;
    size_t stem;
    return ends_with(f->path, ".gguf") && (!sy_shard_name(f->path, &number, &count, &stem) || number == 1);
}

static sy_status refuse_with_choices(const struct sy_listing *l, const struct sy_repo *r, const char *why,
                                     struct sy_err *err)
{
    char names[300] = "";
    size_t at = 0, n = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (!is_gguf_model(&l->file[i])) continue;
        if (n++ < 8 && at < sizeof names - 1)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s%.60s", at ? ", " : "", l->file[i].path);
        if (at >= sizeof names) at = sizeof names - 1;
    }
    return sy_fail(err, SY_EARG, "hf:%.80s %s; its GGUF files: %s%s", r->id, why, n ? names : "none",
                   n > 8 ? ", ..." : "");
}

static sy_status want_gguf(struct sy_listing *l, const struct sy_repo *r, struct sy_hub_file *f, const char **open,
                           struct sy_err *err)
{
    f->wanted = true;
    *open = f->path;
    int number, count, found = 0;
    size_t stem, other;
    if (!sy_shard_name(f->path, &number, &count, &stem)) return SY_OK;
    if (number != 1) return refuse_with_choices(l, r, "is opened by the first of its shards", err);
    for (size_t i = 0; i < l->n; i++) {
        int k, of;
        struct sy_hub_file *g = &l->file[i];
        if (!sy_shard_name(g->path, &k, &of, &other) || of != count || other != stem ||
            memcmp(g->path, f->path, stem))
            continue;
        g->wanted = true;
        found++;
    }
    if (found == count) return SY_OK;
    return sy_fail(err, SY_EFORMAT, "hf:%s: expected %d shards of '%.100s', found %d", r->id, count, f->path, found);
}

static void want_folder(struct sy_listing *l)
{
    /* Some repositories carry the weights twice, in the original layout too. */
    bool model = count_top(l, "model", ".safetensors") > 0;
    for (size_t i = 0; i < l->n; i++) {
        struct sy_hub_file *f = &l->file[i];
        f->wanted = top_level(f, ".json") || top_level(f, ".jinja") ||
                    (top_level(f, ".safetensors") && (!model || !strncmp(f->path, "model", 5)));
    }
}

sy_status sy_listing_choose(struct sy_listing *l, const struct sy_repo *r, const char **open, struct sy_err *err)
{
    struct sy_hub_file *gguf = NULL;
    size_t n_gguf = 0;
    for (size_t i = 0; i < l->n; i++) {
        struct sy_hub_file *f = &l->file[i];
        if (r->file && !strcmp(f->path, r->file)) {
            if (ends_with(f->path, ".gguf")) return want_gguf(l, r, f, open, err);
            return refuse_with_choices(l, r, "is opened by a .gguf file, or as a whole", err);
        }
        if (!is_gguf_model(f)) continue;
        gguf = f;
        n_gguf++;
    }
    if (r->file) return refuse_with_choices(l, r, "has no such file", err);
    if (count_top(l, "config.json", "config.json") && count_top(l, "", ".safetensors")) {
        want_folder(l);
        *open = ".";
        return SY_OK;
    }
    if (n_gguf == 1) return want_gguf(l, r, gguf, open, err);
    if (n_gguf) return refuse_with_choices(l, r, "has several models: name one as hf:org/name:FILE", err);
    return sy_fail(err, SY_ENOSUP, "hf:%s holds neither config.json with *.safetensors nor a .gguf file", r->id);
}
