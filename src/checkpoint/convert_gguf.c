/* convert_gguf.c - a GGUF with other formats of its matrices: metadata as it is, tensor after tensor, a few rows at a
 * time. Shards become one file. Format: ggml-org/ggml, docs/gguf.md, version 3. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/convert.h"
#include "checkpoint/internal.h"

struct out { /* a tensor to write */
    const struct sy_tensor *t;
    const struct sy_quant *to;
    int64_t rows, cols;
    uint64_t at, n_bytes;
};
struct writer {
    const struct sy_env *env;
    const struct sy_checkpoint *c;
    const struct sy_convert_opt *opt;
    struct sy_convert_result *res;
    struct sy_arena mem;
    struct out *out; /* [c->n_raw] */
    FILE *file;
    const char *path;
    float *row;         /* [2][cols_max]: what was, what has become of it */
    unsigned char *raw; /* a row in blocks */
    double off, all, total, done;
    size_t align;
    struct sy_err *err;
};

static sy_status no_memory(const struct writer *w) { return sy_fail(w->err, SY_ENOMEM, "no memory to convert"); }

static void put(struct writer *w, const void *at, size_t n)
{
    if (n && fwrite(at, 1, n, w->file) != n && !w->err->code)
        (void)sy_fail(w->err, SY_EIO, "cannot write to '%s': %s", w->path, strerror(errno));
}
static void put_u32(struct writer *w, uint32_t v) { put(w, &v, sizeof v); }
static void put_u64(struct writer *w, uint64_t v) { put(w, &v, sizeof v); }
static void put_text(struct writer *w, const char *s)
{
    put_u64(w, strlen(s));
    put(w, s, strlen(s));
}

/* The format's file type, as the ecosystem numbers them. */
static const struct {
    enum sy_convert_to to;
    const char *format;
    uint32_t file_type;
} kinds[] = {{SY_CONVERT_Q8_0, "q8_0", 7},
             {SY_CONVERT_Q4_0, "q4_0", 2},
             {SY_CONVERT_Q4_K, "q4_k", 14},
             {SY_CONVERT_Q6_K, "q6_k", 18},
             {SY_CONVERT_MXFP4, "mxfp4", 38}};

static const struct sy_quant *format_of(enum sy_convert_to to, uint32_t *file_type)
{
    for (size_t i = 0; i < SY_COUNT(kinds); i++)
        if (kinds[i].to == to) {
            *file_type = kinds[i].file_type;
            return sy_quant_by_name(kinds[i].format);
        }
    return NULL;
}

/* Matrices of the layers that are multiplied with; routers, convolutions and norms keep their precision. */
static bool is_linear(const struct sy_tensor *t)
{
    size_t n = strlen(t->file_name);
    return t->n_dim >= 2 && !strncmp(t->file_name, "blk.", 4) && n > 7 && !strcmp(t->file_name + n - 7, ".weight") &&
           !strstr(t->file_name, "_inp") && !strstr(t->file_name, "conv") && !strstr(t->file_name, "norm");
}

/* The format, or q8_0 where its blocks are too long for the rows; NULL: as it is. */
static const struct sy_quant *choose(const struct sy_tensor *t, const struct sy_quant *to)
{
    int64_t cols = t->dim[t->n_dim - 1];
    if (!to || !is_linear(t)) return NULL;
    if (cols % to->block_len) to = sy_quant_by_name("q8_0");
    return cols % to->block_len ? NULL : to;
}

static sy_status plan(struct writer *w, const struct sy_quant *to)
{
    int64_t cols_max = 1;
    w->out = sy_arena_array(&w->mem, w->c->n_raw + 1, sizeof *w->out);
    if (!w->out) return no_memory(w);
    uint64_t at = 0;
    for (size_t i = 0; i < w->c->n_raw; i++) {
        const struct sy_tensor *t = &w->c->raw[i];
        struct out *o = &w->out[i];
        *o = (struct out){.t = t, .to = choose(t, to), .rows = 1, .cols = t->dim[t->n_dim - 1], .at = at};
        for (int d = 0; d + 1 < t->n_dim; d++) o->rows *= t->dim[d];
        if (o->to == t->format) o->to = NULL;
        o->n_bytes = o->to ? (uint64_t)(o->rows * sy_quant_row_bytes(o->to, o->cols)) : t->n_bytes;
        at += (o->n_bytes + w->align - 1) / w->align * w->align;
        w->total += (double)o->n_bytes;
        w->res->n_quantised += o->to != NULL;
        if (o->cols > cols_max) cols_max = o->cols;
    }
    w->res->bytes = w->total;
    w->row = sy_arena_array(&w->mem, 2 * (size_t)cols_max, sizeof *w->row);
    w->raw = sy_arena_get(&w->mem, 4 * (size_t)cols_max + 512);
    return w->row && w->raw ? SY_OK : no_memory(w);
}

static void write_metadata(struct writer *w, uint32_t file_type)
{
    size_t n = 0;
    for (size_t i = 0; i < w->c->n_kv; i++) n += strncmp(w->c->kv[i].key, "split.", 6) != 0;
    put(w, "GGUF", 4);
    put_u32(w, 3);
    put_u64(w, w->c->n_raw);
    put_u64(w, n);
    for (size_t i = 0; i < w->c->n_kv; i++) {
        const struct sy_gguf_kv *kv = &w->c->kv[i];
        if (!strncmp(kv->key, "split.", 6)) continue;
        put_text(w, kv->key);
        put_u32(w, kv->type);
        if (file_type && !strcmp(kv->key, "general.file_type") && kv->type == SY_GGUF_U32) {
            put_u32(w, file_type);
            continue;
        }
        if (kv->type == SY_GGUF_ARRAY) {
            put_u32(w, kv->elem);
            put_u64(w, kv->n);
        }
        put(w, kv->at, sy_gguf_value_bytes(kv));
    }
}

static void write_infos(struct writer *w)
{
    for (size_t i = 0; i < w->c->n_raw; i++) {
        const struct out *o = &w->out[i];
        put_text(w, o->t->file_name);
        put_u32(w, (uint32_t)o->t->n_dim);
        for (int d = o->t->n_dim - 1; d >= 0; d--) put_u64(w, (uint64_t)o->t->dim[d]);
        put_u32(w, (uint32_t)(o->to ? o->to : o->t->format)->gguf_type);
        put_u64(w, o->at);
    }
}

static void pad(struct writer *w, uint64_t n)
{
    static const unsigned char zero[64] = {0};
    for (n = (w->align - n % w->align) % w->align; n > 0; n -= n < sizeof zero ? n : sizeof zero)
        put(w, zero, n < sizeof zero ? (size_t)n : sizeof zero);
}

static void write_tensor(struct writer *w, const struct out *o)
{
    int64_t k = o->cols;
    if (!o->to) put(w, o->t->data, o->t->n_bytes);
    for (int64_t r = 0; o->to && r < o->rows && !w->err->code; r++) {
        float *x = w->row, *y = x + k;
        sy_tensor_floats(o->t, r, x);
        o->to->quantise(x, w->raw, k);
        o->to->dequant(w->raw, y, k);
        for (int64_t i = 0; i < k; i++) {
            double off = (double)x[i] - (double)y[i];
            w->off += off * off;
            w->all += (double)x[i] * (double)x[i];
        }
        put(w, w->raw, (size_t)sy_quant_row_bytes(o->to, k));
    }
    pad(w, o->n_bytes);
    w->done += (double)o->n_bytes;
    if (w->opt->progress) w->opt->progress(w->opt->progress_ctx, w->total > 0 ? w->done / w->total : 1);
}

static sy_status write_all(struct writer *w, uint32_t file_type)
{
    w->file = fopen(w->path, "wb");
    if (!w->file) return sy_fail(w->err, SY_EIO, "cannot write '%s': %s", w->path, strerror(errno));
    write_metadata(w, file_type);
    write_infos(w);
    long at = ftell(w->file);
    if (at < 0 && !w->err->code) (void)sy_fail(w->err, SY_EIO, "cannot write to '%s'", w->path);
    pad(w, (uint64_t)at);
    for (size_t i = 0; i < w->c->n_raw && !w->err->code; i++) write_tensor(w, &w->out[i]);
    if (fclose(w->file) && !w->err->code)
        (void)sy_fail(w->err, SY_EIO, "cannot write to '%s': %s", w->path, strerror(errno));
    return w->err->code;
}

sy_status sy_checkpoint_convert_gguf(const struct sy_env *env, const struct sy_checkpoint *c, const char *path,
                                     const struct sy_convert_opt *opt, struct sy_convert_result *res,
                                     struct sy_err *err)
{
    struct sy_err own = {0};
    struct writer w = {
        .env = env, .c = c, .opt = opt, .res = res, .path = path, .err = err ? err : &own, .align = 32};
    uint32_t file_type = 0;
    *res = (struct sy_convert_result){.n_shard = 1};
    w.err->code = SY_OK;
    if (!c->raw)
        return sy_fail(err, SY_ENOSUP, "'%s' is no GGUF: a GGUF is written only from another, with its metadata",
                       c->path);
    const struct sy_quant *to = format_of(opt->to, &file_type);
    if (!to && opt->to != SY_CONVERT_STORED)
        return sy_fail(err, SY_ENOSUP, "GGUF has no format for fp8: name a folder, not a file ending in .gguf");
    for (size_t i = 0; i < c->n_kv; i++)
        if (!strcmp(c->kv[i].key, "general.alignment") && c->kv[i].type == SY_GGUF_U32) {
            uint32_t align; /* a power of two: checked when the file was opened */
            memcpy(&align, c->kv[i].at, sizeof align);
            w.align = align;
        }
    sy_arena_init(&w.mem, env, 0);
    sy_status st = plan(&w, to);
    if (!st) st = write_all(&w, file_type);
    res->error = w.all > 0 ? w.off / w.all : 0;
    sy_arena_release(&w.mem);
    return st;
}
