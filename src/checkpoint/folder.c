/* A Hugging Face model folder, or one snapshot of the hub's cache (snapshots/REVISION, whose files are links
 * to ../../blobs/HASH). Only plain names inside the folder are opened; a link must lead into the folder or
 * into the blobs. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint/internal.h"

enum {
    CONFIG_BYTES_MAX = 16 << 20,
    INDEX_BYTES_MAX = 64 << 20,
    TOKENIZER_BYTES_MAX = 256 << 20,
    TEMPLATE_BYTES_MAX = 4 << 20,
    SHARDS_MAX = 4096,
};

struct folder {
    struct sy_checkpoint *c;
    struct sy_err *err;
    char root[PATH_MAX];  /* the folder, resolved */
    char blobs[PATH_MAX]; /* the hub cache's blobs, resolved; "" when it is no snapshot */
};

/* ---- which files may be opened ------------------------------------------------------------------------- */

static bool inside(const char *path, const char *root)
{
    size_t n = strlen(root);
    return n > 0 && !strncmp(path, root, n) && (path[n] == '/' || (n == 1 && root[0] == '/'));
}

static sy_status find_roots(struct folder *f)
{
    if (!realpath(f->c->path, f->root))
        return sy_fail(f->err, SY_EIO, "cannot open '%s': %s", f->c->path, strerror(errno));
    char parent[PATH_MAX];
    memcpy(parent, f->root, strlen(f->root) + 1);
    char *revision = strrchr(parent, '/');
    if (revision > parent) *revision = 0;
    char *snapshots = strrchr(parent, '/');
    if (!snapshots || strcmp(snapshots, "/snapshots") || snapshots == parent) return SY_OK;
    if (strlen(parent) + 8 > sizeof parent) return SY_OK;
    memcpy(snapshots, "/blobs", 7);
    if (!realpath(parent, f->blobs)) f->blobs[0] = 0;
    return SY_OK;
}

/* The file behind a name, resolved, in path[PATH_MAX]. *there is false when it does not exist. */
static sy_status resolve(struct folder *f, const char *name, char *path, bool *there)
{
    *there = false;
    if (!name[0] || strchr(name, '/') || !strcmp(name, ".") || !strcmp(name, ".."))
        return sy_fail(f->err, SY_EFORMAT, "'%s': file name '%.100s': expected a plain name inside the folder",
                       f->c->path, name);
    char *joined = sy_arena_printf(&f->c->mem, "%s/%s", f->root, name);
    if (!joined) return sy_ckpt_nomem(f->c, f->err);
    if (!realpath(joined, path)) {
        if (errno == ENOENT) return SY_OK;
        return sy_fail(f->err, SY_EIO, "cannot open '%s/%.100s': %s", f->c->path, name, strerror(errno));
    }
    if (!inside(path, f->root) && !inside(path, f->blobs))
        return sy_fail(f->err, SY_EFORMAT, "'%s': file '%.100s' is a link that leads out of the folder%s; refused",
                       f->c->path, name, f->blobs[0] ? " and the cache's blobs" : "");
    struct stat s;
    if (stat(path, &s) || !S_ISREG(s.st_mode))
        return sy_fail(f->err, SY_EFORMAT, "'%s': file '%.100s': expected a regular file", f->c->path, name);
    *there = true;
    return SY_OK;
}

/* Reads a file whole; *text NULL when it does not exist. */
static sy_status read_text(struct folder *f, const char *name, size_t n_max, char **text, size_t *n)
{
    char path[PATH_MAX];
    bool there;
    *text = NULL;
    sy_status st = resolve(f, name, path, &there);
    if (st || !there) return st;
    st = sy_file_read(f->c->env, path, n_max, text, n, f->err);
    return sy_while(f->err, st, "'%s': file '%s'", f->c->path, name);
}

/* Parses a file that must hold an object; *out NULL when it does not exist. */
static sy_status read_json(struct folder *f, const char *name, size_t n_max, bool lax, struct sy_json **out)
{
    char *text;
    size_t n = 0;
    *out = NULL;
    sy_status st = read_text(f, name, n_max, &text, &n);
    if (st || !text) return st;
    st = sy_json_parse(f->c->env, text, n, lax, out, f->err);
    sy_delete(f->c->env, text);
    if (st) return sy_while(f->err, st, "'%s': file '%s'", f->c->path, name);
    if (sy_json_is_object(*out)) return SY_OK;
    sy_json_free(*out);
    *out = NULL;
    return sy_fail(f->err, SY_EFORMAT, "'%s': file '%s': expected a JSON object", f->c->path, name);
}

/* ---- config.json --------------------------------------------------------------------------------------- */

sy_status sy_config_flatten(struct sy_json **config, struct sy_err *err)
{
    const struct sy_json *text = sy_json_get(*config, "text_config"), *v;
    if (!sy_json_is_object(text)) return SY_OK;
    struct sy_json *flat = sy_json_new_object();
    const char *key;
    bool ok = flat != NULL;
    for (void *it = NULL; ok && (it = sy_json_next(*config, it, &key, &v));)
        if (v != text) ok = sy_json_set_take(flat, key, sy_json_share(v));
    for (void *it = NULL; ok && (it = sy_json_next(text, it, &key, &v));)
        if (strcmp(key, "architectures")) ok = sy_json_set_take(flat, key, sy_json_share(v));
    sy_json_free(*config);
    *config = flat;
    return ok ? SY_OK : sy_fail(err, SY_ENOMEM, "no memory for a model's configuration");
}

sy_status sy_folder_config_take(struct sy_checkpoint *c, struct sy_json *config, const char *where,
                                struct sy_err *err)
{
    c->config = config;
    const struct sy_json *archs = sy_json_get(config, "architectures");
    if (!sy_json_is_object(config) || !sy_json_is_array(archs) || !sy_json_is_text(sy_json_at(archs, 0)))
        return sy_fail(err, SY_EFORMAT,
                       "'%s': 'architectures': expected a list with the name of the model's class, "
                       "found %s",
                       where, archs ? "something else" : "nothing");
    sy_status st = sy_config_flatten(&c->config, err);
    if (st) return st;
    if (!sy_json_is_text(sy_json_get(c->config, "model_type")))
        return sy_fail(err, SY_EFORMAT, "'%s': 'model_type': expected a string, found %s", where,
                       sy_json_get(c->config, "model_type") ? "something else" : "nothing");
    return SY_OK;
}

/* ---- weights ------------------------------------------------------------------------------------------- */

static sy_status read_weights(struct folder *f, const char *name, bool *there)
{
    char path[PATH_MAX];
    struct sy_bytes b;
    sy_status st = resolve(f, name, path, there);
    if (st || !*there) return st;
    st = sy_ckpt_map(f->c, path, &b, f->err);
    if (st) return sy_while(f->err, st, "'%s': file '%s'", f->c->path, name);
    /* Messages name the file as the folder does, not the blob behind it. */
    b.name = sy_arena_printf(&f->c->mem, "%s/%s", f->c->path, name);
    if (!b.name) return sy_ckpt_nomem(f->c, f->err);
    return sy_safetensors_read(f->c, &b, f->err);
}

struct entry {
    const char *tensor, *shard;
};

static int by_shard(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int order = strcmp(x->shard, y->shard);
    return order ? order : strcmp(x->tensor, y->tensor);
}

static int by_file_name(const void *a, const void *b)
{
    return strcmp((*(const struct sy_tensor *const *)a)->file_name, (*(const struct sy_tensor *const *)b)->file_name);
}

/* The tensors of one shard are those that the map says, all and only. */
static sy_status check_shard(struct folder *f, const struct entry *e, size_t n, size_t first)
{
    struct sy_checkpoint *c = f->c;
    size_t n_here = c->n_tensor - first;
    const struct sy_tensor **here = sy_new_array(c->env, n_here ? n_here : 1, sizeof *here);
    if (!here) return sy_ckpt_nomem(c, f->err);
    for (size_t i = 0; i < n_here; i++) here[i] = &c->tensor[first + i];
    qsort(here, n_here, sizeof *here, by_file_name);
    sy_status st = SY_OK;
    for (size_t i = 0, j = 0; st == SY_OK && (i < n || j < n_here);) {
        int order = i == n ? 1 : j == n_here ? -1 : strcmp(e[i].tensor, here[j]->file_name);
        if (order < 0)
            st = sy_fail(f->err, SY_EFORMAT,
                         "'%s': file 'model.safetensors.index.json': expected tensor '%.100s' in "
                         "file '%.100s', found no such tensor there",
                         c->path, e[i].tensor, e[i].shard);
        else if (order > 0)
            st = sy_fail(f->err, SY_EFORMAT,
                         "'%s': file '%.100s': tensor '%.100s' is not one that "
                         "'model.safetensors.index.json' places in it",
                         c->path, e[0].shard, here[j]->file_name);
        i++;
        j++;
    }
    sy_delete(c->env, here);
    return st;
}

static sy_status read_shards(struct folder *f, struct entry *e, size_t n)
{
    qsort(e, n, sizeof *e, by_shard);
    size_t n_shard = 0;
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i; end < n && !strcmp(e[end].shard, e[i].shard);) end++;
        if (++n_shard > SHARDS_MAX)
            return sy_fail(f->err, SY_EFORMAT, "'%s': file 'model.safetensors.index.json': more than %d shards",
                           f->c->path, SHARDS_MAX);
        size_t first = f->c->n_tensor;
        bool there;
        sy_status st = read_weights(f, e[i].shard, &there);
        if (st) return st;
        if (!there)
            return sy_fail(f->err, SY_EFORMAT,
                           "'%s': file '%.100s', which 'model.safetensors.index.json' names, is "
                           "missing; download it or the whole model again",
                           f->c->path, e[i].shard);
        if ((st = check_shard(f, e + i, end - i, first))) return st;
    }
    return SY_OK;
}

static sy_status read_index(struct folder *f, const struct sy_json *index)
{
    const struct sy_json *map = sy_json_get(index, "weight_map"), *v;
    size_t n = sy_json_len(map), i = 0;
    const char *tensor;
    if (!sy_json_is_object(map) || n == 0 || n > SY_CKPT_TENSORS_MAX)
        return sy_fail(f->err, SY_EFORMAT,
                       "'%s': file 'model.safetensors.index.json': 'weight_map': expected an object "
                       "of 1 to %d tensors, found %zu",
                       f->c->path, SY_CKPT_TENSORS_MAX, n);
    struct entry *e = sy_new_array(f->c->env, n, sizeof *e);
    if (!e) return sy_ckpt_nomem(f->c, f->err);
    sy_status st = SY_OK;
    for (void *it = NULL; st == SY_OK && (it = sy_json_next(map, it, &tensor, &v)); i++) {
        e[i] = (struct entry){tensor, sy_json_text(v)};
        size_t n_text = 0;
        (void)sy_json_text_n(v, &n_text);
        if (!e[i].shard || strlen(e[i].shard) != n_text)
            st = sy_fail(f->err, SY_EFORMAT,
                         "'%s': file 'model.safetensors.index.json': tensor '%.100s': expected a "
                         "file name",
                         f->c->path, tensor);
    }
    if (st == SY_OK) st = read_shards(f, e, n);
    sy_delete(f->c->env, e);
    return st;
}

static sy_status open_weights(struct folder *f)
{
    bool there;
    sy_status st = read_weights(f, "model.safetensors", &there);
    if (st || there) return st;
    struct sy_json *index;
    st = read_json(f, "model.safetensors.index.json", INDEX_BYTES_MAX, false, &index);
    if (st) return st;
    if (!index)
        return sy_fail(f->err, SY_EIO,
                       "'%s': found neither 'model.safetensors' nor 'model.safetensors.index.json'; only "
                       "safetensors weights are read, not PyTorch's .bin",
                       f->c->path);
    st = read_index(f, index);
    sy_json_free(index);
    return st;
}

/* ---- chat template ------------------------------------------------------------------------------------- */

static const struct sy_json *template_in(const struct sy_json *config)
{
    const struct sy_json *t = sy_json_get(config, "chat_template");
    for (size_t i = 0; sy_json_is_array(t) && i < sy_json_len(t); i++) {
        const struct sy_json *one = sy_json_at(t, i);
        const char *name = sy_json_text(sy_json_get(one, "name"));
        if (name && !strcmp(name, "default")) return sy_json_get(one, "template");
    }
    return sy_json_is_text(t) ? t : NULL;
}

static sy_status open_template(struct folder *f)
{
    struct sy_checkpoint *c = f->c;
    char *text;
    size_t n = 0;
    sy_status st = read_text(f, "chat_template.jinja", TEMPLATE_BYTES_MAX, &text, &n);
    if (st) return st;
    if (text) {
        c->chat_template = sy_arena_text(&c->mem, text, n);
        c->n_chat_template = n;
        sy_delete(c->env, text);
        return c->chat_template ? SY_OK : sy_ckpt_nomem(c, f->err);
    }
    c->chat_template = sy_json_text_n(template_in(c->tokenizer_config), &c->n_chat_template);
    return SY_OK;
}

sy_status sy_folder_open(struct sy_checkpoint *c, struct sy_err *err)
{
    struct folder f = {.c = c, .err = err};
    c->kind = "safetensors";
    sy_status st = find_roots(&f);
    if (st) return st;
    struct sy_json *config;
    if ((st = read_json(&f, "config.json", CONFIG_BYTES_MAX, true, &config))) return st;
    if (!config)
        return sy_fail(err, SY_EIO,
                       "'%s': found no 'config.json'; expected a Hugging Face model folder, or name a .gguf "
                       "file",
                       c->path);
    const char *where = sy_arena_printf(&c->mem, "%s/config.json", c->path);
    if (!where) {
        sy_json_free(config);
        return sy_ckpt_nomem(c, err);
    }
    st = sy_folder_config_take(c, config, where, err);
    if (st == SY_OK) st = read_json(&f, "generation_config.json", CONFIG_BYTES_MAX, true, &c->generation);
    if (st == SY_OK) st = read_json(&f, "tokenizer.json", TOKENIZER_BYTES_MAX, false, &c->tokenizer);
    if (st == SY_OK) st = read_json(&f, "tokenizer_config.json", CONFIG_BYTES_MAX, true, &c->tokenizer_config);
    if (st == SY_OK) st = open_template(&f);
    if (st == SY_OK) st = open_weights(&f);
    return st;
}
