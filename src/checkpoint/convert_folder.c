/* convert_folder.c - safetensors, one shard a layer: a plan of every tensor to write comes first, then the shards, a
 * few rows at a time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/convert_int.h"
#include "quant/quant_int.h"

enum { GROUP = 32, FP8_BLOCK = 128, ROWS = 128, COPY_BYTES = 4 << 20 };

/* How a tensor is written. */
enum kind {
    KIND_COPY,  /* the bytes as they lie in the folder it comes from, under their own name */
    KIND_F32,   /* what the file changed (1 was added, -exp() taken), undone */
    KIND_RAW,   /* rows of a float format as they are */
    KIND_IDS,   /* whole numbers */
    KIND_BF16,  /* rounded */
    KIND_INT8,  /* of blocks of q8_0: weight_packed, weight_scale, weight_shape */
    KIND_INT4,  /* the same of q4_0 */
    KIND_MXFP4, /* of blocks of mxfp4: weight_packed, weight_scale */
    KIND_FP8,   /* weight, weight_scale_inv */
};
struct item {
    const struct sy_tensor *t;
    const char *name; /* without ".weight" when it is written in parts */
    enum kind kind;
    int64_t shard; /* 0: outside the layers, else the layer plus 1 */
    int64_t rows, cols;
    /* Latents' [head, rank, n_key] and [head, n_val, rank], which t, that nobody stores, is made of; else NULL. */
    const struct sy_tensor *keys, *values;
    int64_t n_key, n_val;
};
struct writer {
    struct sy_convert w;
    struct item *item; /* [n_item] by shard */
    size_t n_item;
    const struct sy_quant *blocks; /* of the kind that is written in parts */
    const char *folder;
    float *row;          /* [ROWS][cols_max] */
    float *head;         /* [rank][n_key] of the head that latents are made of */
    unsigned char *raw;  /* a row in blocks, then in parts */
    struct sy_buf scale; /* scales of the tensor being written */
};

static sy_status no_memory(const struct writer *w) { return sy_convert_nomem(&w->w); }
static void put(struct writer *w, const void *at, size_t n) { sy_convert_put(&w->w, at, n); }

/* ---- the plan -------------------------------------------------------------------------------------------------- */

static bool ends(const char *s, const char *with)
{
    size_t n = strlen(s), m = strlen(with);
    return n >= m && !strcmp(s + n - m, with);
}

/* Matrices of the layers that are multiplied with; routers, embeddings and heads keep their precision. */
static bool is_linear(const struct sy_tensor *t)
{
    static const char *const tails[] = {"_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight", "_linear.weight"};
    if (t->n_dim != 2 || t->dim[1] % GROUP || !strstr(t->name, "layers.")) return false;
    if (ends(t->name, ".eh_proj.weight")) return false; /* of a head for further tokens */
    for (size_t i = 0; i < SY_COUNT(tails); i++)
        if (ends(t->name, tails[i])) return true;
    return false;
}

static enum kind kind_of(enum sy_convert_to to)
{
    return to == SY_CONVERT_Q8_0    ? KIND_INT8
           : to == SY_CONVERT_Q4_0  ? KIND_INT4
           : to == SY_CONVERT_MXFP4 ? KIND_MXFP4
                                    : KIND_FP8;
}

static void plan_place(const struct sy_tensor *t, struct item *it)
{
    *it = (struct item){.t = t, .name = t->name, .rows = 1, .cols = t->n_dim ? t->dim[t->n_dim - 1] : 1};
    for (int i = 0; i + 1 < t->n_dim; i++) it->rows *= t->dim[i];
    const char *layer = strstr(t->name, "layers.");
    if (layer) it->shard = 1 + strtoll(layer + 7, NULL, 10);
    if (it->shard < 0 || it->shard > SY_CKPT_LAYERS_MAX) it->shard = 0;
}

static sy_status plan_one(struct writer *w, const struct sy_tensor *t, struct item *it)
{
    plan_place(t, it);
    if (!t->format)
        return sy_fail(w->w.err, SY_ENOSUP, "tensor '%s': data type '%s' is not supported", t->file_name, t->dtype);
    if (t->norm_plus_one || t->neg_exp) {
        it->kind = KIND_F32;
        return SY_OK;
    }
    bool quantise = w->w.opt->to != SY_CONVERT_STORED && is_linear(t);
    const char *name = t->format->name;
    it->kind = quantise                 ? kind_of(w->w.opt->to)
               : t->format->st_dtype    ? KIND_RAW
               : t->format->whole       ? KIND_IDS
               : !strcmp(name, "q8_0")  ? KIND_INT8
               : !strcmp(name, "q4_0")  ? KIND_INT4
               : !strcmp(name, "mxfp4") ? KIND_MXFP4
                                        : KIND_BF16;
    bool lossless = it->kind == KIND_RAW || it->kind == KIND_IDS ||
                    (it->kind != KIND_BF16 && !t->parts && ends(t->name, ".weight"));
    if (w->w.opt->to == SY_CONVERT_STORED && !lossless)
        return sy_fail(w->w.err, SY_ENOSUP,
                       "tensor '%s': format %s has no equal in safetensors; --quant says what to make of it",
                       t->file_name, t->dtype);
    if (!quantise && w->w.opt->to != SY_CONVERT_STORED && it->kind > KIND_IDS) it->kind = KIND_BF16;
    if (it->kind <= KIND_BF16) return SY_OK;
    it->name = sy_arena_text(&w->w.mem, t->name, strlen(t->name) - strlen(".weight"));
    w->w.res->n_quantised++;
    return it->name ? SY_OK : no_memory(w);
}

static int by_shard(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->shard != y->shard) return x->shard < y->shard ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Keys' and values' parts of latents, where a GGUF has two, are one matrix here: the rows of both, head by head. */
static sy_status plan_latent(struct writer *w, const struct sy_tensor *k, struct item *it, bool *mine)
{
    const char *tail = strstr(k->name, ".k_b_proj.weight");
    *mine = tail != NULL;
    if (!tail) return SY_OK;
    int stem = (int)(tail - k->name);
    int64_t n_head = sy_json_int(sy_json_get(w->w.c->config, "num_attention_heads"), 0);
    const char *name = sy_arena_printf(&w->w.mem, "%.*s.v_b_proj.weight", stem, k->name);
    struct sy_tensor *t = sy_arena_get(&w->w.mem, sizeof *t);
    if (!name || !t) return no_memory(w);
    const struct sy_tensor *v = sy_checkpoint_find(w->w.c, name);
    t->name = sy_arena_printf(&w->w.mem, "%.*s.kv_b_proj.weight", stem, k->name);
    if (!t->name) return no_memory(w);
    int64_t rank = n_head > 0 && v ? k->dim[0] / n_head : 0;
    if (rank < 1 || k->n_dim != 2 || v->n_dim != 2 || k->dim[0] % n_head || v->dim[0] % n_head || v->dim[1] != rank)
        return sy_fail(w->w.err, SY_ESHAPE,
                       "tensor '%s': expected [%lld * rank, keys] next to values' [%lld * n, rank]", k->file_name,
                       (long long)n_head, (long long)n_head);
    bool floats = k->format && k->format == v->format && k->format->st_dtype;
    const struct sy_quant *format =
        floats ? k->format : sy_quant_by_name("f32"); /* which holds what blocks stand for */
    int64_t n_key = k->dim[1], n_val = v->dim[0] / n_head;
    t->file_name = k->file_name;
    t->format = k->format && v->format ? format : NULL;
    t->dtype = format->name;
    t->n_dim = 2;
    t->dim[0] = n_head * (n_key + n_val);
    t->dim[1] = rank;
    t->dim[2] = t->dim[3] = 1;
    sy_status st = plan_one(w, t, it);
    it->keys = k;
    it->values = v;
    it->n_key = n_key;
    it->n_val = n_val;
    return st;
}

/* A folder as stored: every tensor as it is, whatever it is a part of. */
static sy_status plan_copy(struct writer *w)
{
    const struct sy_checkpoint *c = w->w.c;
    w->item = sy_arena_array(&w->w.mem, c->n_stored + 1, sizeof *w->item);
    if (!w->item) return no_memory(w);
    for (size_t i = 0; i < c->n_stored; i++) {
        if (sy_names_foreign(c->stored[i].name)) continue;
        struct item *it = &w->item[w->n_item++];
        plan_place(&c->stored[i], it);
        it->kind = KIND_COPY;
        it->name = it->t->file_name;
        w->w.total += (double)it->rows * (double)it->cols;
    }
    qsort(w->item, w->n_item, sizeof *w->item, by_shard);
    return SY_OK;
}

static sy_status plan(struct writer *w)
{
    size_t n = sy_checkpoint_count(w->w.c);
    const struct sy_json *config = sy_checkpoint_config(w->w.c);
    int64_t cols_max = 1, head_max = 0;
    if (w->w.c->stored && w->w.opt->to == SY_CONVERT_STORED) return plan_copy(w);
    w->item = sy_arena_array(&w->w.mem, n + 1, sizeof *w->item);
    if (!w->item) return no_memory(w);
    enum kind parts = KIND_RAW;
    for (size_t i = 0; i < n; i++) {
        const struct sy_tensor *t = sy_checkpoint_at(w->w.c, i);
        if (sy_names_ignorable(t->name, config) && !sy_names_spare(t->name, config)) continue;
        if (strstr(t->name, ".v_b_proj.weight")) continue; /* comes with the keys */
        struct item *it = &w->item[w->n_item++];
        bool latent;
        sy_status st = plan_latent(w, t, it, &latent);
        if (!st && !latent) st = plan_one(w, t, it);
        if (st) return st;
        if (latent && it->cols * it->n_key > head_max) head_max = it->cols * it->n_key;
        if (latent && it->n_key > cols_max) cols_max = it->n_key;
        w->w.total += (double)it->rows * (double)it->cols;
        if (it->cols > cols_max) cols_max = it->cols;
        if (it->kind <= KIND_BF16) continue;
        if (parts != KIND_RAW && parts != it->kind)
            return sy_fail(w->w.err, SY_ENOSUP,
                           "tensor '%s': one folder cannot hold both %s and another quantised format; --quant says "
                           "what to make of all",
                           t->file_name, t->dtype);
        parts = it->kind;
    }
    const char *name = parts == KIND_INT8 ? "q8_0" : parts == KIND_INT4 ? "q4_0" : "mxfp4";
    w->blocks = sy_quant_by_name(name);
    qsort(w->item, w->n_item, sizeof *w->item, by_shard);
    w->row = sy_arena_array(&w->w.mem, (size_t)cols_max * ROWS, sizeof *w->row);
    w->raw = sy_arena_get(&w->w.mem, (size_t)cols_max * ROWS + 64);
    w->head = sy_arena_array(&w->w.mem, (size_t)head_max + 1, sizeof *w->head);
    return w->row && w->raw && w->head ? SY_OK : no_memory(w);
}

/* ---- headers --------------------------------------------------------------------------------------------------- */

struct piece { /* one tensor of a file */
    const char *tail, *dtype;
    int n_dim;
    int64_t dim[4], bytes;
};

/* The format of an item that stays one tensor of numbers. */
static const struct sy_quant *whole_as(const struct item *it)
{
    if (it->kind == KIND_RAW) return it->t->format;
    return it->kind == KIND_IDS ? &sy_quant_ids : sy_quant_by_name(it->kind == KIND_F32 ? "f32" : "bf16");
}

/* What an item is in the file: up to three tensors. */
static int pieces_of(const struct item *it, struct piece p[3])
{
    int64_t r = it->rows, k = it->cols;
    switch (it->kind) {
    case KIND_COPY:
        p[0] = (struct piece){.tail = "", .dtype = it->t->dtype, .n_dim = it->t->n_dim};
        memcpy(p[0].dim, it->t->dim, sizeof p[0].dim);
        p[0].bytes = (int64_t)it->t->n_bytes;
        return 1;
    case KIND_F32:
    case KIND_RAW:
    case KIND_IDS:
    case KIND_BF16:
        p[0] = (struct piece){.tail = "", .dtype = whole_as(it)->st_dtype, .n_dim = it->t->n_dim};
        memcpy(p[0].dim, it->t->dim, sizeof p[0].dim);
        p[0].bytes = r * k * whole_as(it)->block_bytes;
        return 1;
    case KIND_FP8:
        p[0] = (struct piece){".weight", "F8_E4M3", 2, {r, k}, r * k};
        r = (r + FP8_BLOCK - 1) / FP8_BLOCK;
        k = (k + FP8_BLOCK - 1) / FP8_BLOCK;
        p[1] = (struct piece){".weight_scale_inv", "F32", 2, {r, k}, 4 * r * k};
        return 2;
    case KIND_MXFP4:
        p[0] = (struct piece){".weight_packed", "U8", 2, {r, k / 2}, r * k / 2};
        p[1] = (struct piece){".weight_scale", "U8", 2, {r, k / GROUP}, r * k / GROUP};
        return 2;
    case KIND_INT8:
    case KIND_INT4: break;
    }
    int64_t bytes = it->kind == KIND_INT8 ? k : k / 2;
    p[0] = (struct piece){".weight_packed", "I32", 2, {r, bytes / 4}, r * bytes};
    p[1] = (struct piece){".weight_scale", "F16", 2, {r, k / GROUP}, 2 * r * k / GROUP};
    p[2] = (struct piece){".weight_shape", "I64", 1, {2}, 16};
    return 3;
}

/* The header of a shard, and its lines of the index. */
static sy_status write_header(struct writer *w, const struct item *it, size_t n, const char *shard,
                              struct sy_buf *index)
{
    struct sy_buf b;
    struct piece p[3];
    int64_t at = 0;
    sy_buf_init(&b, w->w.env, 0);
    sy_buf_text(&b, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < n; i++)
        for (int k = 0, m = pieces_of(&it[i], p); k < m; k++) {
            char *name = sy_arena_printf(&w->w.mem, "%s%s", it[i].name, p[k].tail);
            if (!name) b.failed = true;
            if (!name) break;
            sy_buf_char(&b, ',');
            sy_json_quote(&b, name, strlen(name));
            sy_buf_printf(&b, ":{\"dtype\":\"%s\",\"shape\":[", p[k].dtype);
            for (int d = 0; d < p[k].n_dim; d++) sy_buf_printf(&b, "%s%lld", d ? "," : "", (long long)p[k].dim[d]);
            sy_buf_printf(&b, "],\"data_offsets\":[%lld,%lld]}", (long long)at, (long long)(at + p[k].bytes));
            at += p[k].bytes;
            sy_buf_text(index, index->at && index->at[index->len - 1] == '"' ? ",\n    " : "\n    ");
            sy_json_quote(index, name, strlen(name));
            sy_buf_printf(index, ": \"%s\"", shard);
        }
    sy_buf_char(&b, '}');
    while (!b.failed && b.len % 8) sy_buf_char(&b, ' ');
    uint64_t len = b.len;
    bool failed = b.failed || index->failed;
    w->w.res->bytes += (double)at;
    if (!failed) put(w, &len, sizeof len);
    if (!failed) put(w, b.at, b.len);
    sy_buf_release(&b);
    return failed ? no_memory(w) : w->w.err->code;
}

/* ---- data ------------------------------------------------------------------------------------------------------ */

/* Row r of an item. */
static void floats(struct writer *w, const struct item *it, int64_t r, float *dst)
{
    if (!it->keys) {
        sy_tensor_floats(it->t, r, dst);
        return;
    }
    int64_t each = it->n_key + it->n_val, h = r / each, at = r % each, rank = it->cols;
    if (at >= it->n_key) sy_tensor_floats(it->values, h * it->n_val + at - it->n_key, dst);
    for (int64_t c = 0; at == 0 && c < rank; c++) sy_tensor_floats(it->keys, h * rank + c, w->head + c * it->n_key);
    for (int64_t c = 0; at < it->n_key && c < rank; c++) dst[c] = w->head[c * it->n_key + at];
}

static const unsigned char *stored(const struct item *it, int64_t r)
{
    return it->keys ? NULL : sy_tensor_stored(it->t, r);
}

/* w whose -exp() is y. */
static float undo_exp(float y)
{
    float w = logf(-y), up = w, down = w;
    for (int k = 0; k < 8 && -expf(w) != y; k++) {
        if (k % 2) w = up = nextafterf(up, HUGE_VALF);
        else w = down = nextafterf(down, -HUGE_VALF);
    }
    return w;
}

/* A vector that the file changed. As stored nothing may be lost: doing it again must give the file's numbers. */
static void write_undone(struct writer *w, const struct item *it)
{
    const struct sy_tensor *t = it->t;
    float *out = w->row + it->cols;
    bool same = true;
    for (int64_t r = 0; r < it->rows && !w->w.err->code; r++) {
        sy_tensor_floats(t, r, w->row);
        for (int64_t i = 0; i < it->cols; i++) {
            float y = w->row[t->n_dim > 1 ? i : sy_tensor_row(t, i)], x = t->neg_exp ? undo_exp(y) : y - 1;
            if (t->neg_exp && !isfinite(x) && !w->w.err->code)
                (void)sy_fail(w->w.err, SY_EFORMAT, "tensor '%s': expected numbers below 0, found %g", t->file_name,
                              (double)y);
            same &= (t->neg_exp ? -expf(x) : x + 1) == y;
            out[i] = x;
        }
        put(w, out, (size_t)it->cols * sizeof *out);
    }
    if (!same && w->w.opt->to == SY_CONVERT_STORED && !w->w.err->code)
        (void)sy_fail(w->w.err, SY_ENOSUP,
                      "tensor '%s': the file %s, which cannot be undone without loss; --quant allows for it",
                      t->file_name, t->neg_exp ? "holds its exponential" : "adds 1 to it");
}

static void write_floats(struct writer *w, const struct item *it)
{
    int64_t k = it->cols, size = it->t->format->block_bytes;
    bool moved = it->t->head_rows > 0 || (it->t->tiles.n_key > 0 && !it->t->tiled_cols);
    for (int64_t r = 0; r < it->rows && !w->w.err->code; r++) {
        const unsigned char *lies = stored(it, r);
        if (it->kind == KIND_RAW && (it->t->n_dim > 1 || it->t->col_bytes)) {
            if (!lies) { /* elements apart: one expert's of several */
                floats(w, it, r, w->row);
                it->t->format->quantise(w->row, w->raw, k);
            }
            put(w, lies ? lies : w->raw, (size_t)(k * size));
            continue;
        }
        if (it->kind == KIND_RAW) { /* the elements of a bias may be stored as rope pairs, or as tiled heads */
            if (!moved) put(w, it->t->data, (size_t)(k * size));
            for (int64_t i = 0; moved && i < k; i++)
                put(w, it->t->data + sy_tensor_row(it->t, i) * size, (size_t)size);
            continue;
        }
        floats(w, it, r, w->row);
        uint16_t *h = (uint16_t *)(void *)w->raw;
        for (int64_t i = 0; i < k; i++) h[i] = sy_bf16_narrow(w->row[it->t->n_dim > 1 ? i : sy_tensor_row(it->t, i)]);
        put(w, h, (size_t)(2 * k));
    }
}

static void write_ids(struct writer *w, const struct item *it)
{
    for (int64_t r = 0; r < it->rows && !w->w.err->code; r++) {
        floats(w, it, r, w->row);
        sy_quant_ids.quantise(w->row, w->raw, it->cols);
        put(w, w->raw, (size_t)(it->cols * sy_quant_ids.block_bytes));
    }
}

/* A block of the GGUF's layout into bytes of codes, low nibble first, and its scale. */
static void recode(struct writer *w, enum kind kind, const unsigned char *b, unsigned char *out)
{
    if (kind == KIND_INT8) {
        for (int i = 0; i < GROUP; i++) out[i] = b[2 + i] ^ 0x80;
    } else {
        uint8_t code[GROUP];
        sy_nibbles(b + (kind == KIND_INT4 ? 2 : 1), code, code + 16, 16);
        for (int i = 0; i < GROUP / 2; i++) out[i] = (unsigned char)(code[2 * i] | code[2 * i + 1] << 4);
    }
    sy_buf_add(&w->scale, b, kind == KIND_MXFP4 ? 1 : 2);
}

static void write_blocks(struct writer *w, const struct item *it)
{
    const struct sy_quant *q = w->blocks;
    int64_t k = it->cols, n_block = k / GROUP, code_bytes = it->kind == KIND_INT8 ? GROUP : GROUP / 2;
    bool same = it->t->format == q;
    unsigned char *codes = w->raw + k * 2;
    for (int64_t r = 0; r < it->rows && !w->w.err->code; r++) {
        const unsigned char *b = w->raw;
        if (same) {
            b = sy_tensor_stored(it->t, r);
        } else {
            floats(w, it, r, w->row);
            q->quantise(w->row, w->raw, k);
            q->dequant(w->raw, w->row + k, k);
            sy_convert_count_error(&w->w, w->row, w->row + k, k);
        }
        for (int64_t g = 0; g < n_block; g++) recode(w, it->kind, b + g * q->block_bytes, codes + g * code_bytes);
        put(w, codes, (size_t)(n_block * code_bytes));
    }
    if (w->scale.len) put(w, w->scale.at, w->scale.len);
    int64_t shape[2] = {it->rows, it->cols};
    if (it->kind != KIND_MXFP4) put(w, shape, sizeof shape);
}

/* The scale of a block of e4m3 that makes its squared error least, of a few that bring the largest value to the top
 * of the range or a little below; returns the error. */
static double fit_fp8(const float *x, int64_t ld, int64_t rows, int64_t cols, float *scale)
{
    static const float tops[] = {448, 416, 384, 352, 320, 288, 256};
    float max = 0;
    double best = HUGE_VAL;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++)
            if (fabsf(x[r * ld + i]) > max && isfinite(x[r * ld + i])) max = fabsf(x[r * ld + i]);
    *scale = 1;
    for (size_t t = 0; t < SY_COUNT(tops) && max > 0; t++) {
        float s = max / tops[t], inv = 1 / s;
        double error = 0;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < cols; i++) {
                double off = (double)x[r * ld + i] - (double)(sy_e4m3_widen(sy_e4m3_narrow(x[r * ld + i] * inv)) * s);
                error += off * off;
            }
        if (error < best && isfinite(inv)) {
            best = error;
            *scale = s;
        }
    }
    return max > 0 ? best : 0;
}

static void write_fp8(struct writer *w, const struct item *it)
{
    int64_t k = it->cols;
    for (int64_t r0 = 0; r0 < it->rows && !w->w.err->code; r0 += ROWS) {
        int64_t n = it->rows - r0 < ROWS ? it->rows - r0 : ROWS;
        for (int64_t r = 0; r < n; r++) floats(w, it, r0 + r, w->row + r * k);
        for (int64_t i = 0; i < n * k; i++) w->w.all += (double)w->row[i] * (double)w->row[i];
        for (int64_t c = 0; c < k; c += FP8_BLOCK) {
            int64_t m = k - c < FP8_BLOCK ? k - c : FP8_BLOCK;
            float s;
            w->w.off += fit_fp8(w->row + c, k, n, m, &s);
            sy_buf_add(&w->scale, &s, sizeof s);
            for (int64_t r = 0; r < n; r++)
                for (int64_t i = c; i < c + m; i++) w->raw[r * k + i] = sy_e4m3_narrow(w->row[r * k + i] * (1 / s));
        }
        put(w, w->raw, (size_t)(n * k));
    }
    if (w->scale.len) put(w, w->scale.at, w->scale.len);
}

/* Some rows at a time, so that pages can go again. */
static void write_copy(struct writer *w, const struct item *it)
{
    const struct sy_tensor *t = it->t;
    int64_t each = (int64_t)t->n_bytes / (it->rows > 0 ? it->rows : 1), some = COPY_BYTES / (each + 1) + 1;
    for (int64_t r = 0; r < it->rows && !w->w.err->code; r += some) {
        int64_t n = it->rows - r < some ? it->rows - r : some;
        put(w, t->data + r * each, (size_t)(n * each));
        sy_checkpoint_let_go(w->w.c, t, r, r + n);
    }
}

static sy_status write_item(struct writer *w, const struct item *it)
{
    sy_buf_clear(&w->scale);
    if (it->kind == KIND_COPY) write_copy(w, it);
    else if (it->kind == KIND_F32) write_undone(w, it);
    else if (it->kind == KIND_IDS) write_ids(w, it);
    else if (it->kind == KIND_RAW || it->kind == KIND_BF16) write_floats(w, it);
    else if (it->kind == KIND_FP8) write_fp8(w, it);
    else write_blocks(w, it);
    if (w->scale.failed) return no_memory(w);
    if (!it->keys) {
        sy_checkpoint_let_go(w->w.c, it->t, 0, it->rows);
    } else {
        sy_checkpoint_let_go(w->w.c, it->keys, 0, it->keys->dim[0]);
        sy_checkpoint_let_go(w->w.c, it->values, 0, it->values->dim[0]);
    }
    sy_convert_progress(&w->w, (double)it->rows * (double)it->cols);
    return w->w.err->code;
}

/* ---- files ----------------------------------------------------------------------------------------------------- */

static sy_status open_file(struct writer *w, const char *name)
{
    const char *path = sy_arena_printf(&w->w.mem, "%s/%s", w->folder, name);
    if (!path) return no_memory(w);
    return sy_convert_begin(&w->w, path);
}

static sy_status write_buf(struct writer *w, const char *name, struct sy_buf *b)
{
    sy_status st = b->failed ? no_memory(w) : open_file(w, name);
    if (!st) {
        put(w, b->at, b->len);
        st = sy_convert_end(&w->w);
    }
    sy_buf_release(b);
    return st;
}

static sy_status write_shards(struct writer *w)
{
    struct sy_buf index;
    size_t n_shard = 0, at = 0;
    sy_status st = SY_OK;
    for (size_t i = 0; i < w->n_item; i++) n_shard += i == 0 || w->item[i].shard != w->item[i - 1].shard;
    w->w.res->n_shard = n_shard;
    sy_buf_init(&index, w->w.env, 0);
    for (size_t k = 0; k < n_shard && !st; k++) {
        char name[64];
        size_t end = at;
        while (end < w->n_item && w->item[end].shard == w->item[at].shard) end++;
        snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", k + 1, n_shard);
        st = open_file(w, name);
        if (st) break;
        st = write_header(w, w->item + at, end - at, name, &index);
        for (; at < end && !st; at++) st = write_item(w, &w->item[at]);
        st = sy_convert_end(&w->w);
    }
    struct sy_buf b;
    sy_buf_init(&b, w->w.env, 0);
    sy_buf_printf(&b, "{\n  \"metadata\": {\"total_size\": %.0f},\n  \"weight_map\": {", w->w.res->bytes);
    if (index.len) sy_buf_add(&b, index.at, index.len);
    sy_buf_text(&b, "\n  }\n}\n");
    b.failed |= index.failed;
    sy_buf_release(&index);
    if (!st) return write_buf(w, "model.safetensors.index.json", &b);
    sy_buf_release(&b);
    return st;
}

/* Modules of matrices that stay as they are. */
static void add_ignored(struct writer *w, struct sy_buf *b)
{
    bool any = false;
    for (size_t i = 0; i < w->n_item; i++) {
        const struct item *it = &w->item[i];
        if (it->kind > KIND_BF16 || it->t->n_dim != 2 || !ends(it->name, ".weight")) continue;
        sy_buf_text(b, any ? "," : "");
        sy_json_quote(b, it->name, strlen(it->name) - strlen(".weight"));
        any = true;
    }
}

static sy_status write_config(struct writer *w)
{
    static const char *const group =
        "{\"quant_method\":\"compressed-tensors\",\"format\":\"%s\",\"quantization_status\":"
        "\"compressed\",\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],"
        "\"input_activations\":null,\"output_activations\":null,\"weights\":{\"num_bits\":"
        "%d,\"type\":\"%s\",\"symmetric\":true,\"strategy\":\"group\",\"group_size\":32,"
        "\"dynamic\":false,\"actorder\":null}}},\"ignore\":[";
    struct sy_buf b, own;
    const char *key;
    const struct sy_json *v;
    enum kind kind = KIND_RAW;
    bool first = true, copied = w->n_item && w->item[0].kind == KIND_COPY;
    for (size_t i = 0; i < w->n_item; i++)
        if (w->item[i].kind > KIND_BF16) kind = w->item[i].kind;
    sy_buf_init(&b, w->w.env, 0);
    sy_buf_init(&own, w->w.env, 0);
    sy_buf_char(&b, '{');
    for (void *it = NULL; (it = sy_json_next(sy_checkpoint_config(w->w.c), it, &key, &v)); first = false) {
        if (!copied && !strcmp(key, "kv_b_split")) continue;
        if (!copied && (!strcmp(key, "quantization_config") || !strcmp(key, "compression_config"))) continue;
        sy_buf_text(&b, first ? "\n  " : ",\n  ");
        sy_json_quote(&b, key, strlen(key));
        sy_buf_text(&b, ": ");
        sy_json_write(&b, v);
    }
    if (kind == KIND_FP8)
        sy_buf_text(&own, "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\","
                          "\"weight_block_size\":[128,128],\"modules_to_not_convert\":[");
    else if (kind != KIND_RAW)
        sy_buf_printf(&own, group, kind == KIND_MXFP4 ? "mxfp4-pack-quantized" : "pack-quantized",
                      kind == KIND_INT8 ? 8 : 4, kind == KIND_MXFP4 ? "float" : "int");
    if (kind != KIND_RAW) {
        add_ignored(w, &own);
        sy_buf_text(&own, "]}");
        sy_buf_text(&b, ",\n  \"quantization_config\": ");
        if (own.len) sy_buf_add(&b, own.at, own.len);
    }
    sy_buf_text(&b, "\n}\n");
    b.failed |= own.failed;
    sy_buf_release(&own);
    sy_status st = write_buf(w, "config.json", &b);
    const struct sy_json *g = sy_checkpoint_generation(w->w.c);
    if (st || !g) return st;
    sy_buf_init(&b, w->w.env, 0);
    sy_json_write(&b, g);
    sy_buf_char(&b, '\n');
    return write_buf(w, "generation_config.json", &b);
}

sy_status sy_checkpoint_convert(const struct sy_env *env, const struct sy_checkpoint *c, const char *folder,
                                const struct sy_convert_opt *opt, struct sy_convert_result *res, struct sy_err *err)
{
    struct writer w = {.folder = folder};
    if (opt->to == SY_CONVERT_Q4_K || opt->to == SY_CONVERT_Q6_K)
        return sy_fail(err, SY_ENOSUP, "safetensors has no such format: name a file ending in .gguf, not a folder");
    sy_convert_open(&w.w, env, c, opt, res, err);
    sy_buf_init(&w.scale, env, 0);
    sy_status st = plan(&w);
    if (!st) st = write_shards(&w);
    if (!st) st = write_config(&w);
    sy_buf_release(&w.scale);
    sy_convert_close(&w.w);
    return st;
}
