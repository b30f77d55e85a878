/* The GGUF container, versions 2 and 3 (ggml-org/ggml, docs/gguf.md): header, metadata, tensor descriptions,
 * one file or several shards. Nothing is copied but names: strings and arrays are read where they lie. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/internal.h"

enum {
    KEYS_MAX = 1 << 16,    /* published files have some 50 */
    KEY_BYTES_MAX = 65535, /* the specification's */
    NAME_BYTES_MAX = 255,  /* the specification says 64 */
    ALIGNMENT_MAX = 1 << 20,
    KV_BYTES_MIN = 8 + 1 + 4 + 1,           /* key length, key, type, value */
    INFO_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8, /* name length, name, dimensions, one of them, type, offset */
};

static const struct {
    const char *name;
    unsigned size;
} types[SY_GGUF_N_TYPE] = {
    [SY_GGUF_U8] = {"uint8", 1},    [SY_GGUF_I8] = {"int8", 1},    [SY_GGUF_U16] = {"uint16", 2},
    [SY_GGUF_I16] = {"int16", 2},   [SY_GGUF_U32] = {"uint32", 4}, [SY_GGUF_I32] = {"int32", 4},
    [SY_GGUF_F32] = {"float32", 4}, [SY_GGUF_BOOL] = {"bool", 1},  [SY_GGUF_STRING] = {"string", 0},
    [SY_GGUF_ARRAY] = {"array", 0}, [SY_GGUF_U64] = {"uint64", 8}, [SY_GGUF_I64] = {"int64", 8},
    [SY_GGUF_F64] = {"float64", 8},
};

const char *sy_gguf_type_name(uint32_t type) { return type < SY_GGUF_N_TYPE ? types[type].name : "unknown type"; }

/* ---- reading one shard, front to back ------------------------------------------------------------------ */

struct cursor {
    const struct sy_bytes *f;
    size_t at;
    struct sy_err *err;
    sy_status st; /* of the first failure */
};
#define REFUSE(c, code, ...) ((c)->st = sy_fail((c)->err, code, __VA_ARGS__))

static size_t left(const struct cursor *c) { return c->f->n - c->at; }

/* n bytes for `what`, or NULL and the error. */
static const unsigned char *take(struct cursor *c, uint64_t n, const char *what)
{
    if (n > left(c)) {
        REFUSE(c, SY_EFORMAT,
               "'%s': %s: expected %llu bytes at offset %zu, found only %zu before the end "
               "of the file",
               c->f->name, what, (unsigned long long)n, c->at, left(c));
        return NULL;
    }
    const unsigned char *p = c->f->at + c->at;
    c->at += (size_t)n;
    return p;
}

static bool take_u32(struct cursor *c, const char *what, uint32_t *v)
{
    const unsigned char *p = take(c, 4, what);
    if (p) memcpy(v, p, 4);
    return p != NULL;
}

static bool take_u64(struct cursor *c, const char *what, uint64_t *v)
{
    const unsigned char *p = take(c, 8, what);
    if (p) memcpy(v, p, 8);
    return p != NULL;
}

/* A name of 1 to n_max bytes, as a C string in the arena; NULL and the error. */
static const char *take_name(struct sy_checkpoint *ck, struct cursor *c, const char *what, size_t n_max)
{
    uint64_t n;
    if (!take_u64(c, what, &n)) return NULL;
    if (n == 0 || n > n_max) {
        REFUSE(c, SY_EFORMAT, "'%s': %s at offset %zu: expected a length from 1 to %zu bytes, found %llu", c->f->name,
               what, c->at - 8, n_max, (unsigned long long)n);
        return NULL;
    }
    const unsigned char *p = take(c, n, what);
    if (!p) return NULL;
    if (memchr(p, 0, (size_t)n)) {
        REFUSE(c, SY_EFORMAT, "'%s': %s at offset %zu contains a zero byte", c->f->name, what, c->at - (size_t)n);
        return NULL;
    }
    const char *name = sy_arena_text(&ck->mem, (const char *)p, (size_t)n);
    if (!name) c->st = sy_ckpt_nomem(ck, c->err);
    return name;
}

/* Steps over n strings. */
static bool skip_strings(struct cursor *c, uint64_t n, const char *what)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t len;
        if (!take_u64(c, what, &len) || !take(c, len, what)) return false;
    }
    return true;
}

static sy_status read_value(struct cursor *c, struct sy_gguf_kv *kv, const char *what)
{
    kv->elem = kv->type;
    kv->n = 1;
    if (kv->type >= SY_GGUF_N_TYPE)
        return REFUSE(c, SY_EFORMAT, "'%s': %s: unknown value type %u, expected 0 to %d", c->f->name, what, kv->type,
                      SY_GGUF_N_TYPE - 1);
    if (kv->type == SY_GGUF_ARRAY) {
        if (!take_u32(c, what, &kv->elem) || !take_u64(c, what, &kv->n)) return c->st;
        if (kv->elem >= SY_GGUF_N_TYPE || kv->elem == SY_GGUF_ARRAY)
            return REFUSE(c, SY_EFORMAT, "'%s': %s: arrays of %s (element type %u) are not supported", c->f->name,
                          what, kv->elem == SY_GGUF_ARRAY ? "arrays" : "an unknown type", kv->elem);
    }
    kv->at = c->f->at + c->at;
    /* A count is believed only as far as the bytes behind it go. */
    uint64_t size = kv->elem == SY_GGUF_STRING ? 8 : types[kv->elem].size;
    if (kv->n > left(c) / size)
        return REFUSE(c, SY_EFORMAT, "'%s': %s: %llu elements of %s cannot fit in the %zu bytes left in the file",
                      c->f->name, what, (unsigned long long)kv->n, types[kv->elem].name, left(c));
    if (kv->elem == SY_GGUF_STRING) return skip_strings(c, kv->n, what) ? SY_OK : c->st;
    const unsigned char *p = take(c, kv->n * size, what);
    if (!p) return c->st;
    for (uint64_t i = 0; kv->elem == SY_GGUF_BOOL && i < kv->n; i++)
        if (p[i] > 1)
            return REFUSE(c, SY_EFORMAT, "'%s': %s: expected a bool of 0 or 1, found %u", c->f->name, what, p[i]);
    return SY_OK;
}

size_t sy_gguf_value_bytes(const struct sy_gguf_kv *kv)
{
    if (kv->elem != SY_GGUF_STRING) return (size_t)kv->n * types[kv->elem].size;
    size_t at = 0;
    for (uint64_t i = 0, len; i < kv->n; i++, at += 8 + (size_t)len) memcpy(&len, kv->at + at, 8);
    return at;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct sy_gguf_kv *)a)->key, ((const struct sy_gguf_kv *)b)->key);
}

/* All metadata of a shard, sorted by key. */
static sy_status read_metadata(struct sy_checkpoint *ck, struct cursor *c, struct sy_gguf_kv *kv, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char what[120];
        snprintf(what, sizeof what, "metadata key %zu of %zu", i + 1, n);
        if (!(kv[i].key = take_name(ck, c, what, KEY_BYTES_MAX))) return c->st;
        snprintf(what, sizeof what, "key '%.100s'", kv[i].key);
        if (!take_u32(c, what, &kv[i].type)) return c->st;
        sy_status st = read_value(c, &kv[i], what);
        if (st) return st;
    }
    qsort(kv, n, sizeof *kv, by_key);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(kv[i - 1].key, kv[i].key))
            return REFUSE(c, SY_EFORMAT, "'%s': key '%.100s' is there twice, expected once", c->f->name, kv[i].key);
    return SY_OK;
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

/* Shape, type and place of one tensor. *offset is from the start of the data, which is not known yet. */
static sy_status read_info(struct sy_checkpoint *ck, struct cursor *c, struct sy_tensor *t, uint64_t *offset)
{
    *t = (struct sy_tensor){.dim = {1, 1, 1, 1}, .file = c->f->name};
    if (!(t->name = t->file_name = take_name(ck, c, "tensor name", NAME_BYTES_MAX))) return c->st;
    char what[120];
    snprintf(what, sizeof what, "tensor '%.100s'", t->name);
    uint32_t n_dim, type;
    if (!take_u32(c, what, &n_dim)) return c->st;
    if (n_dim < 1 || n_dim > 4)
        return REFUSE(c, SY_EFORMAT, "'%s': %s: expected 1 to 4 dimensions, found %u", c->f->name, what, n_dim);
    t->n_dim = (int)n_dim;
    int64_t n_elem = 1;
    for (uint32_t i = 0; i < n_dim; i++) {
        uint64_t d;
        if (!take_u64(c, what, &d)) return c->st;
        if (d < 1 || d > INT64_MAX || __builtin_mul_overflow(n_elem, (int64_t)d, &n_elem))
            return REFUSE(c, SY_EFORMAT, "'%s': %s: dimension %u of size %llu makes an impossible number of elements",
                          c->f->name, what, i, (unsigned long long)d);
        t->dim[n_dim - 1 - i] = (int64_t)d; /* the file begins with the contiguous one */
    }
    if (!take_u32(c, what, &type) || !take_u64(c, what, offset)) return c->st;
    t->format = type <= INT32_MAX ? sy_quant_by_gguf((int)type) : NULL;
    if (!t->format)
        return REFUSE(c, SY_ENOSUP, "'%s': %s: stored as GGUF tensor type %u, which is not supported", c->f->name,
                      what, type);
    t->dtype = t->format->name;
    if (t->dim[n_dim - 1] % t->format->block_len)
        return REFUSE(c, SY_EFORMAT, "'%s': %s: rows of %lld elements are not whole blocks of %d, as %s needs",
                      c->f->name, what, (long long)t->dim[n_dim - 1], t->format->block_len, t->format->name);
    if (__builtin_mul_overflow(n_elem / t->format->block_len, t->format->block_bytes, &t->n_bytes))
        return REFUSE(c, SY_EFORMAT, "'%s': %s: its size in bytes overflows", c->f->name, what);
    return SY_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct sy_tensor *s = a, *t = b;
    return s->data < t->data ? -1 : s->data > t->data;
}

/* Resolves offsets from the start of the data, and refuses tensors that leave the file or share bytes. */
static sy_status place_tensors(struct cursor *c, struct sy_tensor *t, const uint64_t *offset, size_t n, size_t align)
{
    if (n == 0) return SY_OK;
    size_t pad = (align - c->at % align) % align;
    const char *name = c->f->name;
    if (pad > left(c))
        return REFUSE(c, SY_EFORMAT, "'%s': expected tensor data from offset %zu, found only %zu bytes in the file",
                      name, c->at + pad, c->f->n);
    const unsigned char *data = c->f->at + c->at + pad;
    size_t n_data = left(c) - pad;
    for (size_t i = 0; i < n; i++) {
        if (offset[i] % align)
            return REFUSE(c, SY_EFORMAT, "'%s': tensor '%.100s': offset %llu is not a multiple of the alignment %zu",
                          name, t[i].name, (unsigned long long)offset[i], align);
        if (offset[i] > n_data || t[i].n_bytes > n_data - offset[i])
            return REFUSE(c, SY_EFORMAT,
                          "'%s': tensor '%.100s': %zu bytes at data offset %llu reach beyond the end of "
                          "the file, which has %zu bytes of data",
                          name, t[i].name, t[i].n_bytes, (unsigned long long)offset[i], n_data);
        t[i].data = data + offset[i];
    }
    qsort(t, n, sizeof *t, by_place);
    for (size_t i = 1; i < n; i++)
        if (t[i].data < t[i - 1].data + t[i - 1].n_bytes)
            return REFUSE(c, SY_EFORMAT, "'%s': tensors '%.100s' and '%.100s' overlap at data offset %zu", name,
                          t[i - 1].name, t[i].name, (size_t)(t[i].data - data));
    return SY_OK;
}

const struct sy_tensor *sy_gguf_raw(const struct sy_gguf *g, const char *file_name)
{
    for (size_t i = 0; i < g->n_raw; i++)
        if (!strcmp(g->raw[i].name, file_name)) return &g->raw[i];
    return NULL;
}

/* ---- a shard ------------------------------------------------------------------------------------------- */

static sy_status read_header(struct cursor *c, uint64_t *n_tensor, uint64_t *n_kv)
{
    const unsigned char *magic = take(c, 4, "header");
    uint32_t version;
    if (!magic) return c->st;
    if (memcmp(magic, "GGUF", 4))
        return REFUSE(c, SY_EFORMAT,
                      "'%s': expected a GGUF file (it starts with 'GGUF') or the folder of a Hugging Face "
                      "model, found a file of another kind",
                      c->f->name);
    if (!take_u32(c, "header", &version)) return c->st;
    if (version == 0x02000000 || version == 0x03000000)
        return REFUSE(c, SY_ENOSUP,
                      "'%s': big-endian GGUF files are not supported; convert it anew on a "
                      "little-endian machine",
                      c->f->name);
    if (version != 2 && version != 3)
        return REFUSE(c, SY_ENOSUP, "'%s': expected GGUF version 2 or 3, found %u", c->f->name, version);
    if (!take_u64(c, "header", n_tensor) || !take_u64(c, "header", n_kv)) return c->st;
    size_t most = left(c) / INFO_BYTES_MIN;
    if (most > SY_CKPT_TENSORS_MAX) most = SY_CKPT_TENSORS_MAX;
    if (*n_tensor > most)
        return REFUSE(c, SY_EFORMAT,
                      "'%s': found a count of %llu tensors; the %zu bytes after the header can describe "
                      "at most %zu",
                      c->f->name, (unsigned long long)*n_tensor, left(c), most);
    most = left(c) / KV_BYTES_MIN;
    if (most > KEYS_MAX) most = KEYS_MAX;
    if (*n_kv > most)
        return REFUSE(c, SY_EFORMAT,
                      "'%s': found a count of %llu metadata keys; the %zu bytes after the header can "
                      "hold at most %zu",
                      c->f->name, (unsigned long long)*n_kv, left(c), most);
    return SY_OK;
}

/* Checks what a shard says of its place, and takes it over from the first one. */
static sy_status read_split(struct sy_gguf *g, struct sy_gguf_meta *m, size_t index)
{
    int64_t n = sy_gguf_int_or(m, "split.count", 1, 0, 65535);
    int64_t no = sy_gguf_int_or(m, "split.no", 0, 0, 65535);
    int64_t total = sy_gguf_int_or(m, "split.tensors.count", -1, 0, SY_CKPT_TENSORS_MAX);
    if (m->st) return m->st;
    if (n == 0) n = 1;
    if (index == 0) {
        g->n_split = n;
        g->n_split_tensor = total;
    }
    if (no != (int64_t)index && index == 0)
        return sy_gguf_refuse(m, SY_EARG, "this is shard %lld of %lld; name the first one (-00001-of-%05lld.gguf)",
                              (long long)no + 1, (long long)n, (long long)n);
    if (no != (int64_t)index || n != g->n_split)
        return sy_gguf_refuse(m, SY_EFORMAT,
                              "expected shard %zu of %lld (split.no %zu, split.count %lld), found shard "
                              "%lld of %lld",
                              index + 1, (long long)g->n_split, index, (long long)g->n_split, (long long)no + 1,
                              (long long)n);
    return SY_OK;
}

/* Adds one shard's tensors to g->raw; the first one's metadata becomes the model's. */
static sy_status read_shard(struct sy_checkpoint *ck, struct sy_gguf *g, const struct sy_bytes *f, size_t index,
                            struct sy_err *err)
{
    struct cursor c = {.f = f, .err = err};
    uint64_t n_tensor = 0, n_kv = 0;
    sy_status st = read_header(&c, &n_tensor, &n_kv);
    if (st) return st;
    struct sy_gguf_kv *kv = sy_arena_array(&ck->mem, n_kv, sizeof *kv);
    if (!kv) return sy_ckpt_nomem(ck, err);
    if ((st = read_metadata(ck, &c, kv, n_kv))) return st;

    struct sy_gguf here = {.file = f->name, .kv = kv, .n_kv = n_kv};
    struct sy_gguf_meta m = {&here, err, SY_OK};
    int64_t align = sy_gguf_int_or(&m, "general.alignment", 32, 8, ALIGNMENT_MAX);
    if (m.st == SY_OK && (align & (align - 1)))
        sy_gguf_refuse(&m, SY_EFORMAT, "key 'general.alignment': expected a power of two from 8 to %d, found %lld",
                       ALIGNMENT_MAX, (long long)align);
    if (m.st || (st = read_split(g, &m, index))) return m.st ? m.st : st;
    if (index == 0) {
        g->file = f->name;
        g->kv = kv;
        g->n_kv = n_kv;
    }
    if (n_tensor > SY_CKPT_TENSORS_MAX - g->n_raw)
        return sy_fail(err, SY_EFORMAT, "'%s': more than %d tensors in all shards", f->name, SY_CKPT_TENSORS_MAX);
    struct sy_tensor *raw = sy_resize(ck->env, g->raw, g->n_raw * sizeof *raw, (g->n_raw + n_tensor) * sizeof *raw);
    if (!raw) return sy_ckpt_nomem(ck, err);
    g->raw = raw;
    raw += g->n_raw;
    uint64_t *offset = sy_new_array(ck->env, n_tensor, sizeof *offset);
    if (!offset) return sy_ckpt_nomem(ck, err);
    for (size_t i = 0; i < n_tensor && st == SY_OK; i++) st = read_info(ck, &c, &raw[i], &offset[i]);
    if (st == SY_OK) st = place_tensors(&c, raw, offset, n_tensor, (size_t)align);
    sy_delete(ck->env, offset);
    g->n_raw += n_tensor;
    return st;
}

/* After the last shard: everything that is made of metadata and tensors together. */
static sy_status describe(struct sy_checkpoint *ck, const struct sy_gguf *g, struct sy_err *err)
{
    if (g->n_split_tensor >= 0 && (uint64_t)g->n_split_tensor != g->n_raw)
        return sy_fail(err, SY_EFORMAT,
                       "'%s': key 'split.tensors.count': expected the %zu tensors that its shards "
                       "have, found %lld",
                       g->file, g->n_raw, (long long)g->n_split_tensor);
    struct sy_gguf_dims dims;
    sy_status st = sy_gguf_config(ck, g, &dims, err);
    if (st == SY_OK) st = sy_gguf_tokenizer(ck, g, err);
    if (st == SY_OK) st = sy_names_map(ck, g, &dims, err);
    ck->kv = g->kv;
    ck->n_kv = g->n_kv;
    ck->raw = sy_arena_array(&ck->mem, g->n_raw + 1, sizeof *ck->raw);
    if (!ck->raw) return sy_ckpt_nomem(ck, err);
    if (g->n_raw) memcpy(ck->raw, g->raw, g->n_raw * sizeof *ck->raw);
    ck->n_raw = g->n_raw;
    return st;
}

sy_status sy_gguf_read(struct sy_checkpoint *ck, const struct sy_bytes *shard, size_t n, struct sy_err *err)
{
    struct sy_gguf g = {.n_split = 1};
    ck->kind = "gguf";
    sy_status st = SY_OK;
    for (size_t i = 0; i < n && st == SY_OK; i++) st = read_shard(ck, &g, &shard[i], i, err);
    if (st == SY_OK && (int64_t)n != g.n_split)
        st = sy_fail(err, SY_EFORMAT, "'%s': expected %lld shards, found %zu", ck->path, (long long)g.n_split, n);
    if (st == SY_OK) st = describe(ck, &g, err);
    sy_delete(ck->env, g.raw);
    return st;
}

/* ---- files: the shards of NAME-00001-of-0000N.gguf are beside it --------------------------------------- */

static sy_status open_shards(struct sy_checkpoint *ck, struct sy_gguf *g, struct sy_err *err)
{
    char tail[40];
    snprintf(tail, sizeof tail, "-00001-of-%05lld.gguf", (long long)g->n_split);
    size_t n = strlen(ck->path), n_tail = strlen(tail);
    if (n < n_tail || strcmp(ck->path + n - n_tail, tail))
        return sy_fail(err, SY_EFORMAT,
                       "'%s': key 'split.count' says %lld shards; expected a file name that ends in "
                       "'%s', so that the others can be found",
                       ck->path, (long long)g->n_split, tail);
    for (int64_t i = 1; i < g->n_split; i++) {
        char *path = sy_arena_printf(&ck->mem, "%.*s-%05lld-of-%05lld.gguf", (int)(n - n_tail), ck->path,
                                     (long long)i + 1, (long long)g->n_split);
        if (!path) return sy_ckpt_nomem(ck, err);
        struct sy_bytes f;
        sy_status st = sy_ckpt_map(ck, path, &f, err);
        if (st == SY_OK) st = read_shard(ck, g, &f, (size_t)i, err);
        if (st) return st;
    }
    return SY_OK;
}

sy_status sy_gguf_open(struct sy_checkpoint *ck, struct sy_err *err)
{
    struct sy_gguf g = {.n_split = 1};
    ck->kind = "gguf";
    struct sy_bytes f;
    sy_status st = sy_ckpt_map(ck, ck->path, &f, err);
    if (st == SY_OK) st = read_shard(ck, &g, &f, 0, err);
    if (st == SY_OK && g.n_split > 1) st = open_shards(ck, &g, err);
    if (st == SY_OK) st = describe(ck, &g, err);
    sy_delete(ck->env, g.raw);
    return st;
}
