/* convert_gguf.c - one GGUF, tensor after tensor, a few rows at a time: of another GGUF, whose metadata stays as it
 * is, or of a folder. Shards become one file. Format: ggml-org/ggml, docs/gguf.md, version 3. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/convert_int.h"

enum { ALIGN = 32, NAME_BYTES_MAX = 256 };

/* Of every `head` rows the n from `first` on; n 0: all rows. */
struct slice {
    int64_t head, first, n;
    bool turned; /* each head's matrix the other way round */
};
struct out { /* a tensor to write */
    const char *name;
    const struct sy_tensor *const *part; /* [n_part] experts, outermost; else one */
    size_t n_part;
    const struct sy_quant *to;
    int n_dim;
    int64_t dim[4], rows, cols; /* rows of a part */
    int64_t head_rows;          /* heads whose rows are stored as rope pairs; 0: none */
    struct sy_vheads order;     /* of value heads: the other way round than a tensor's */
    bool order_cols;
    struct slice slice;
    bool plus_one, neg_exp; /* 1 is added; -exp() is taken */
    uint64_t at;
};
static uint64_t bytes_of(const struct out *o)
{
    return o->n_part * (uint64_t)(o->rows * sy_quant_row_bytes(o->to, o->cols));
}

struct writer {
    struct sy_convert w;
    struct out *out; /* [n_out] */
    size_t n_out;
    struct sy_gguf_made made; /* of a folder; kv is empty of a GGUF */
    const struct sy_gguf_arch *arch;
    bool dense; /* the model has no experts */
    int64_t n_layer, n_next;
    struct sy_vheads order;
    float *row, *all;   /* [2][cols_max]: what was, what has become of it; a whole vector */
    float *head;        /* the rows of a head that is turned, one after the other */
    unsigned char *raw; /* a row in blocks */
    size_t align;
};

static void put(struct writer *w, const void *at, size_t n) { sy_convert_put(&w->w, at, n); }
static void put_u32(struct writer *w, uint32_t v) { put(w, &v, sizeof v); }
static void put_u64(struct writer *w, uint64_t v) { put(w, &v, sizeof v); }
static void put_text(struct writer *w, const char *s)
{
    put_u64(w, strlen(s));
    put(w, s, strlen(s));
}

/* ---- formats -------------------------------------------------------------------------------------------- */

/* The format's file type, as the ecosystem numbers them. */
static const struct {
    enum sy_convert_to to; /* STORED: what a folder's matrices are */
    const char *format;
    uint32_t file_type;
} kinds[] = {{SY_CONVERT_Q8_0, "q8_0", 7},    {SY_CONVERT_Q4_0, "q4_0", 2},    {SY_CONVERT_Q4_K, "q4_k", 14},
             {SY_CONVERT_Q6_K, "q6_k", 18},   {SY_CONVERT_MXFP4, "mxfp4", 38}, {SY_CONVERT_STORED, "f16", 1},
             {SY_CONVERT_STORED, "bf16", 32}, {SY_CONVERT_STORED, "f32", 0}};

static const struct sy_quant *format_of(enum sy_convert_to to, uint32_t *file_type)
{
    for (size_t i = 0; i < SY_COUNT(kinds); i++)
        if (kinds[i].to == to && to != SY_CONVERT_STORED) {
            *file_type = kinds[i].file_type;
            return sy_quant_by_name(kinds[i].format);
        }
    return NULL;
}

static bool ends(const char *s, const char *with)
{
    size_t n = strlen(s), m = strlen(with);
    return n >= m && !strcmp(s + n - m, with);
}

/* Matrices of the layers that are multiplied with; routers, convolutions and norms keep their precision. */
static bool is_linear(const struct out *o)
{
    return o->n_dim >= 2 && !strncmp(o->name, "blk.", 4) && ends(o->name, ".weight") && !strstr(o->name, "_inp") &&
           !strstr(o->name, "conv") && !strstr(o->name, "norm") && !strstr(o->name, "altup") &&
           !strstr(o->name, "nextn") && !strstr(o->name, "hc_") && !strstr(o->name, "_ape") &&
           !o->part[0]->format->whole;
}

/* The format, or q8_0 where its blocks are too long for the rows; NULL: as it is. */
static const struct sy_quant *choose(const struct out *o, const struct sy_quant *to)
{
    if (!to || !is_linear(o)) return NULL;
    if (o->cols % to->block_len) to = sy_quant_by_name("q8_0");
    return o->cols % to->block_len ? NULL : to;
}

/* What a folder's tensor becomes where it is not quantised. Readers expect vectors, routers and filters in f32, which
 * holds every bf16 and f16. */
static sy_status keep(struct writer *w, struct out *o)
{
    const struct sy_tensor *t = o->part[0];
    const struct sy_quant *f = t->format;
    bool small = o->n_dim == 1 || ends(o->name, ".bias") || !is_linear(o);
    bool table = o->n_dim >= 2 && strncmp(o->name, "blk.", 4) != 0;
    if (f && f->whole) o->to = &sy_quant_ids32;
    else if (f && f->st_dtype && f->exact != SY_EXACT_F32 && !f->f8)
        o->to = small && !table ? sy_quant_by_name("f32") : f;
    else if (f && f->st_dtype && f->gguf_type >= 0) o->to = f;
    else if (f && f->affine.e2m1 && f->affine.group == 32 && o->cols % 32 == 0) o->to = sy_quant_by_name("mxfp4");
    else if (f && w->w.opt->to != SY_CONVERT_STORED) o->to = sy_quant_by_name("bf16");
    else
        return sy_fail(w->w.err, SY_ENOSUP,
                       "tensor '%s': format %s has no equal in GGUF; --quant says what to make of it", t->file_name,
                       t->dtype);
    return SY_OK;
}

/* ---- the plan, of a GGUF -------------------------------------------------------------------------------- */

static sy_status plan_raw(struct writer *w, const struct sy_quant *to)
{
    const struct sy_checkpoint *c = w->w.c;
    const struct sy_tensor **part = sy_arena_array(&w->w.mem, c->n_raw + 1, sizeof *part);
    w->out = sy_arena_array(&w->w.mem, c->n_raw + 1, sizeof *w->out);
    if (!w->out || !part) return sy_convert_nomem(&w->w);
    w->n_out = c->n_raw;
    for (size_t i = 0; i < c->n_raw; i++) {
        const struct sy_tensor *t = part[i] = &c->raw[i];
        struct out *o = &w->out[i];
        *o = (struct out){.name = t->file_name, .part = &part[i], .n_part = 1, .n_dim = t->n_dim, .rows = 1};
        memcpy(o->dim, t->dim, sizeof o->dim);
        o->cols = t->dim[t->n_dim - 1];
        for (int d = 0; d + 1 < t->n_dim; d++) o->rows *= t->dim[d];
        o->to = choose(o, to);
        if (!o->to) o->to = t->format;
    }
    return SY_OK;
}

/* ---- the plan, of a folder ------------------------------------------------------------------------------ */

struct named {
    const struct sy_tensor *t;
    const struct sy_name_rule *rule;
    const char *name;
    int64_t layer, expert;
    enum { ALL, KEYS, VALUES } part; /* of what latents become */
};

static int by_name(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return order ? order : x->expert < y->expert ? -1 : x->expert > y->expert;
}

/* Whether a GGUF leaves it out: what need not be read, and heads for further tokens that it has no names for. */
static bool left_out(struct writer *w, const char *name)
{
    const struct sy_json *config = w->w.c->config;
    if (!sy_names_ignorable(name, config)) return false;
    if (!sy_names_spare(name, config)) return true;
    if (w->arch->next || sy_names_is_key(name)) return false;
    w->w.res->n_left_out++;
    return true;
}

/* What makes keys and values of latents is two tensors there. */
static sy_status name_latent(struct writer *w, struct named *x, size_t *n)
{
    const char *tail = strstr(x->name, "kv_b.");
    if (!tail) return SY_OK;
    x[1] = x[0];
    x[0].part = KEYS;
    x[1].part = VALUES;
    x[0].name = sy_arena_printf(&w->w.mem, "%.*sk_b.%s", (int)(tail - x->name), x->name, tail + 5);
    x[1].name = sy_arena_printf(&w->w.mem, "%.*sv_b.%s", (int)(tail - x[1].name), x[1].name, tail + 5);
    ++*n;
    return x[0].name && x[1].name ? SY_OK : sy_convert_nomem(&w->w);
}

/* Every tensor of the model under its GGUF name. */
static sy_status name_all(struct writer *w, struct named *named, size_t *n)
{
    const struct sy_checkpoint *c = w->w.c;
    for (size_t i = 0; i < c->n_tensor; i++) {
        struct named *x = &named[*n];
        char gguf[NAME_BYTES_MAX];
        x->t = &c->tensor[i];
        if (left_out(w, x->t->name)) continue;
        x->rule = sy_names_back(w->arch, w->dense, w->n_layer, x->t->name, gguf, sizeof gguf, &x->layer, &x->expert);
        if (!x->rule)
            return sy_fail(w->w.err, SY_ENOSUP, "tensor '%s': has no name in a GGUF of '%s'", x->t->file_name,
                           w->arch->name);
        x->name = sy_arena_text(&w->w.mem, gguf, strlen(gguf));
        if (!x->name) return sy_convert_nomem(&w->w);
        if (x->rule->flags & SY_NAME_HALVES) /* the second of two rules is of the second half */
            x->expert = 2 * x->expert + !(x->rule[1].gguf && !strcmp(x->rule[1].gguf, x->rule->gguf));
        if (x->layer >= w->n_layer + w->n_next) w->n_next = x->layer + 1 - w->n_layer;
        if (w->arch->latent && name_latent(w, x, n)) return w->w.err->code;
        ++*n;
    }
    if (*n) qsort(named, *n, sizeof *named, by_name);
    return SY_OK;
}

/* Shape of a part as GGUF has it: what names.c does to it, undone. */
static void shape(struct out *o, const struct sy_tensor *t, unsigned flags, int64_t n_group, int64_t n_head)
{
    o->n_dim = t->n_dim;
    memcpy(o->dim, t->dim, sizeof o->dim);
    if ((flags & SY_NAME_ROW) && o->n_dim == 2 && o->dim[0] == 1) {
        o->n_dim = 1;
        o->dim[0] = o->dim[1];
    }
    if ((flags & SY_NAME_FILTER) && o->n_dim == 3 && o->dim[1] == 1) {
        o->n_dim = 2;
        o->dim[1] = o->dim[2];
    }
    if (o->n_dim == 0) o->n_dim = 1;
    if ((flags & SY_NAME_COLUMN) && o->n_dim == 1) o->n_dim = 2; /* dim[1] is 1 */
    if ((flags & SY_NAME_GROUPS) && o->n_dim == 1 && n_group > 0 && o->dim[0] % n_group == 0) {
        o->n_dim = 2;
        o->dim[1] = o->dim[0] / n_group;
        o->dim[0] = n_group;
    }
    if ((flags & SY_NAME_FLAT) && o->n_dim == 2 && n_head > 0 && o->dim[0] % n_head == 0) {
        o->n_dim = 3;
        o->dim[2] = o->dim[1];
        o->dim[1] = o->dim[0] / n_head;
        o->dim[0] = n_head;
    }
    o->rows = 1;
    for (int d = 0; d + 1 < o->n_dim; d++) o->rows *= o->dim[d];
    o->cols = o->dim[o->n_dim - 1];
}

static int64_t config_int(const struct writer *w, const char *name)
{
    return sy_json_int(sy_json_get(w->w.c->config, name), 0);
}

/* One of the two: keys' parts turned, [head, rank, n], values' [head, n, rank]. */
static sy_status shape_latent(struct writer *w, const struct named *x, struct out *o)
{
    const struct sy_tensor *t = x->t;
    int64_t n_head = config_int(w, "num_attention_heads"), rank = config_int(w, "kv_lora_rank");
    int64_t d_key = config_int(w, "qk_nope_head_dim"), d_val = config_int(w, "v_head_dim");
    bool keys = x->part == KEYS, sane = n_head > 0 && n_head <= 1 << 16 && rank > 0 && d_key > 0 && d_val > 0 &&
                                        rank <= 1 << 16 && d_key <= 1 << 16 && d_val <= 1 << 16;
    if (!sane || t->n_dim != 2 || t->dim[0] != n_head * (d_key + d_val) || t->dim[1] != rank)
        return sy_fail(w->w.err, SY_ESHAPE, "tensor '%s': expected [%lld * (%lld + %lld), %lld], as config.json says",
                       t->file_name, (long long)n_head, (long long)d_key, (long long)d_val, (long long)rank);
    o->slice = (struct slice){d_key + d_val, keys ? 0 : d_key, keys ? d_key : d_val, keys};
    o->n_dim = 3;
    o->dim[0] = n_head;
    o->dim[1] = keys ? rank : d_val;
    o->dim[2] = o->cols = keys ? d_key : rank;
    o->rows = n_head * o->dim[1];
    return SY_OK;
}

/* The tensor of `n` parts that have one name. */
static sy_status plan_one(struct writer *w, const struct named *x, size_t n, struct out *o, const struct sy_quant *to)
{
    const struct sy_tensor **part = sy_arena_array(&w->w.mem, n, sizeof *part), *t = x->t;
    if (!part) return sy_convert_nomem(&w->w);
    *o = (struct out){.name = x->name, .part = part, .n_part = n};
    for (size_t i = 0; i < n; i++) {
        part[i] = x[i].t;
        if (x->expert >= 0 ? x[i].expert != (int64_t)i : i > 0)
            return sy_fail(w->w.err, SY_EFORMAT, "tensor '%s': expert %zu is missing", x->t->file_name, i);
        if (x[i].t->n_dim != t->n_dim || memcmp(x[i].t->dim, t->dim, sizeof t->dim) ||
            strcmp(x[i].t->dtype, t->dtype) != 0)
            return sy_fail(w->w.err, SY_ENOSUP, "tensor '%s': experts of different shapes or formats become no GGUF",
                           x[i].t->file_name);
    }
    shape(o, t, x->rule->flags, sy_gguf_ssm_groups(w->w.c->config), config_int(w, "num_attention_heads"));
    if (x->part != ALL && shape_latent(w, x, o)) return w->w.err->code;
    if (x->expert >= 0 && o->n_dim < 4) {
        memmove(o->dim + 1, o->dim, 3 * sizeof *o->dim);
        o->dim[0] = (int64_t)n;
        o->n_dim++;
    }
    if (x->rule->flags & SY_NAME_HALVES) {
        if (n % 2) return sy_fail(w->w.err, SY_EFORMAT, "tensor '%s': its other half is missing", t->file_name);
        o->dim[0] /= 2;
        o->dim[1] *= 2;
    }
    if (x->rule->flags & (SY_NAME_TILED | SY_NAME_TILED_COLS)) {
        o->order_cols = x->rule->flags & SY_NAME_TILED_COLS;
        o->order = sy_vheads_of(&w->order, t->dim[o->order_cols ? t->n_dim - 1 : 0]);
    }
    o->neg_exp = x->rule->flags & SY_NAME_NEG_EXP;
    o->plus_one = (x->rule->flags & SY_NAME_NORM) && w->arch->norm_plus_one && ends(x->name, ".weight");
    if ((x->rule->flags & SY_NAME_ROPE) && w->arch->rope_pairs) {
        int64_t hidden = sy_json_int(sy_json_get(w->w.c->config, "hidden_size"), 0);
        int64_t heads = sy_json_int(sy_json_get(w->w.c->config, "num_attention_heads"), 1);
        o->head_rows = sy_json_int(sy_json_get(w->w.c->config, "head_dim"), heads > 0 ? hidden / heads : 0);
        if (o->head_rows < 2 || o->head_rows % 2 || t->dim[0] % o->head_rows)
            return sy_fail(w->w.err, SY_ESHAPE, "tensor '%s': expected whole heads of %lld rows, found %lld rows",
                           t->file_name, (long long)o->head_rows, (long long)t->dim[0]);
    }
    o->to = choose(o, to);
    /* Numbers that share a scale must be of one head. */
    if (o->to && o->order_cols && o->order.n_key && o->order.len % o->to->affine.group) o->to = NULL;
    return o->to ? SY_OK : keep(w, o);
}

static sy_status plan_folder(struct writer *w, const struct sy_quant *to)
{
    size_t n = 0, room = 2 * w->w.c->n_tensor + 1;
    struct named *named = sy_arena_array(&w->w.mem, room, sizeof *named);
    w->out = sy_arena_array(&w->w.mem, room, sizeof *w->out);
    if (!named || !w->out) return sy_convert_nomem(&w->w);
    sy_status st = name_all(w, named, &n);
    for (size_t i = 0, end; i < n && !st; i = end) {
        for (end = i; end < n && !strcmp(named[end].name, named[i].name);) end++;
        st = plan_one(w, named + i, end - i, &w->out[w->n_out++], to);
    }
    return st;
}

/* What most bytes of the layers are: the file's type. */
static uint32_t stored_type(const struct writer *w)
{
    uint64_t most = 0;
    uint32_t type = 0;
    for (size_t k = 0; k < SY_COUNT(kinds); k++) {
        uint64_t n = 0;
        for (size_t i = 0; i < w->n_out; i++)
            if (is_linear(&w->out[i]) && !strcmp(w->out[i].to->name, kinds[k].format)) n += bytes_of(&w->out[i]);
        if (n > most) type = kinds[k].file_type;
        if (n > most) most = n;
    }
    return type;
}

/* ---- places --------------------------------------------------------------------------------------------- */

static sy_status place(struct writer *w)
{
    uint64_t at = 0;
    int64_t cols_max = 1, turned_max = 0;
    for (size_t i = 0; i < w->made.n_extra; i++) /* f32, first in the file */
        at += ((uint64_t)w->made.extra[i].n * sizeof(float) + w->align - 1) / w->align * w->align;
    for (size_t i = 0; i < w->n_out; i++) {
        struct out *o = &w->out[i];
        o->at = at;
        at += (bytes_of(o) + w->align - 1) / w->align * w->align;
        w->w.total += (double)bytes_of(o);
        w->w.res->n_quantised +=
            w->w.opt->to != SY_CONVERT_STORED && o->to->block_len > 1 && o->to != o->part[0]->format;
        if (o->cols > cols_max) cols_max = o->cols;
        if (o->slice.turned && o->cols * o->dim[1] > turned_max) turned_max = o->cols * o->dim[1];
        if (o->part[0]->n_dim == 1 && o->part[0]->dim[0] > cols_max) cols_max = o->part[0]->dim[0];
    }
    w->w.res->bytes = w->w.total;
    w->row = sy_arena_array(&w->w.mem, 3 * (size_t)cols_max, sizeof *w->row);
    w->all = w->row ? w->row + 2 * cols_max : NULL;
    w->raw = sy_arena_get(&w->w.mem, 4 * (size_t)cols_max + 512);
    w->head = sy_arena_array(&w->w.mem, (size_t)turned_max + 1, sizeof *w->head);
    return w->row && w->raw && w->head ? SY_OK : sy_convert_nomem(&w->w);
}

/* ---- writing -------------------------------------------------------------------------------------------- */

/* As another GGUF has it, but for the type of the file and what shards say of themselves. */
static void write_metadata(struct writer *w, uint32_t file_type)
{
    const struct sy_checkpoint *c = w->w.c;
    size_t n = 0;
    for (size_t i = 0; i < c->n_kv; i++) n += strncmp(c->kv[i].key, "split.", 6) != 0;
    put_u64(w, n);
    for (size_t i = 0; i < c->n_kv; i++) {
        const struct sy_gguf_kv *kv = &c->kv[i];
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

static void write_info(struct writer *w, const char *name, int n_dim, const int64_t *dim, int type, uint64_t at)
{
    put_text(w, name);
    put_u32(w, (uint32_t)n_dim);
    for (int d = n_dim - 1; d >= 0; d--) put_u64(w, (uint64_t)dim[d]);
    put_u32(w, (uint32_t)type);
    put_u64(w, at);
}

static void pad(struct writer *w, uint64_t n)
{
    static const unsigned char zero[64] = {0};
    for (n = (w->align - n % w->align) % w->align; n > 0; n -= n < sizeof zero ? n : sizeof zero)
        put(w, zero, n < sizeof zero ? (size_t)n : sizeof zero);
}

/* The logical row that is stored as row s. */
static int64_t row_of(const struct out *o, int64_t s)
{
    if (o->order.n_key && !o->order_cols) return sy_vhead_row(&o->order, s);
    if (o->slice.n) return s / o->slice.n * o->slice.head + o->slice.first + s % o->slice.n;
    if (!o->head_rows) return s;
    int64_t h = s / o->head_rows * o->head_rows, i = s % o->head_rows;
    return h + (i % 2 ? o->head_rows / 2 + i / 2 : i / 2);
}

/* Row r of heads that are turned: a column of the head, all of whose rows are read first. */
static void turned_row(struct writer *w, const struct out *o, const struct sy_tensor *t, int64_t r, float *x)
{
    int64_t n = o->slice.n, len = o->dim[1], at = r % len;
    for (int64_t i = 0; at == 0 && i < n; i++) sy_tensor_floats(t, row_of(o, r / len * n + i), w->head + i * len);
    for (int64_t i = 0; i < n; i++) x[i] = w->head[i * len + at];
}

static void write_row(struct writer *w, const struct out *o, const struct sy_tensor *t, int64_t r)
{
    int64_t k = o->cols;
    float *x = w->row, *y = x + k;
    if (o->slice.turned) turned_row(w, o, t, r, x);
    else if (t->n_dim > 1) sy_tensor_floats(t, row_of(o, r), x);
    else { /* of a vector the elements are the rows, or it becomes some */ sy_tensor_floats(t, 0, w->all);
        for (int64_t i = 0; i < k; i++) x[i] = w->all[row_of(o, r * k + i)];
    }
    if (o->order.n_key && o->order_cols) {
        memcpy(y, x, (size_t)k * sizeof *x);
        for (int64_t i = 0; i < k; i++) x[i] = y[sy_vhead_row(&o->order, i)];
    }
    for (int64_t i = 0; o->plus_one && i < k; i++) x[i] += 1;
    for (int64_t i = 0; o->neg_exp && i < k; i++) x[i] = -expf(x[i]);
    o->to->quantise(x, w->raw, k);
    if (o->to->block_len > 1 || o->to->whole) {
        o->to->dequant(w->raw, y, k);
        sy_convert_count_error(&w->w, x, y, k);
        bool same = true;
        for (int64_t i = 0; i < k; i++) same &= x[i] == y[i];
        if (!same && (o->to->whole || w->w.opt->to == SY_CONVERT_STORED) && !w->w.err->code)
            (void)sy_fail(w->w.err, SY_ENOSUP,
                          "tensor '%s': not all of its numbers of format %s are ones of GGUF's %s; --quant says what "
                          "to make of it",
                          t->file_name, t->dtype, o->to->name);
    }
    put(w, w->raw, (size_t)sy_quant_row_bytes(o->to, k));
}

static void write_tensor(struct writer *w, const struct out *o)
{
    for (size_t p = 0; p < o->n_part && !w->w.err->code; p++) {
        const struct sy_tensor *t = o->part[p];
        bool as_it_lies = o->to == t->format && t->data && !t->row_bytes && !t->col_bytes && !t->head_rows;
        if (as_it_lies && !o->head_rows && !o->slice.n && !o->plus_one && !o->neg_exp && !o->order.n_key) {
            put(w, t->data, t->n_bytes);
        } else {
            for (int64_t r = 0; r < o->rows && !w->w.err->code; r++) write_row(w, o, t, r);
        }
        sy_checkpoint_let_go(w->w.c, t, 0, o->slice.n ? t->dim[0] : o->rows);
    }
    pad(w, bytes_of(o));
    sy_convert_progress(&w->w, (double)bytes_of(o));
}

static sy_status write_all(struct writer *w, const char *path, uint32_t file_type)
{
    if (sy_convert_begin(&w->w, path)) return w->w.err->code;
    put(w, "GGUF", 4);
    put_u32(w, 3);
    put_u64(w, w->n_out + w->made.n_extra);
    if (w->arch) {
        put_u64(w, w->made.n_kv);
        put(w, w->made.kv.at, w->made.kv.len);
    } else {
        write_metadata(w, file_type);
    }
    uint64_t offset = 0;
    for (size_t i = 0; i < w->made.n_extra; i++) {
        write_info(w, w->made.extra[i].name, 1, &w->made.extra[i].n, 0, offset);
        offset += ((uint64_t)w->made.extra[i].n * sizeof(float) + w->align - 1) / w->align * w->align;
    }
    for (size_t i = 0; i < w->n_out; i++) {
        const struct out *o = &w->out[i];
        write_info(w, o->name, o->n_dim, o->dim, o->to->gguf_type, o->at);
    }
    long at = ftell(w->w.file);
    if (at < 0 && !w->w.err->code) (void)sy_fail(w->w.err, SY_EIO, "cannot write to '%s'", path);
    pad(w, (uint64_t)at);
    for (size_t i = 0; i < w->made.n_extra; i++) {
        put(w, w->made.extra[i].at, (size_t)w->made.extra[i].n * sizeof(float));
        pad(w, (uint64_t)w->made.extra[i].n * sizeof(float));
    }
    for (size_t i = 0; i < w->n_out && !w->w.err->code; i++) write_tensor(w, &w->out[i]);
    return sy_convert_end(&w->w);
}

static sy_status open_arch(struct writer *w)
{
    const struct sy_json *config = w->w.c->config;
    const char *name = sy_json_text(sy_json_at(sy_json_get(config, "architectures"), 0));
    w->dense = sy_gguf_experts(config) == 0;
    w->arch = name ? sy_gguf_arch_of_class(name, !w->dense) : NULL;
    if (!w->arch)
        return sy_fail(w->w.err, SY_ENOSUP,
                       "'%s': what a GGUF calls the tensors and keys of '%s' is not known here; name a folder, not a "
                       "file ending "
                       "in .gguf",
                       w->w.c->path, name ? name : "");
    w->n_layer = sy_json_int(sy_json_get(config, "num_hidden_layers"),
                             (int64_t)sy_json_len(sy_json_get(config, "layers_block_type")));
    int64_t n_key = sy_json_int(sy_json_get(config, "linear_num_key_heads"), 1);
    int64_t n_val = sy_json_int(sy_json_get(config, "linear_num_value_heads"), 1);
    int64_t d = sy_json_int(sy_json_get(config, "linear_value_head_dim"), 1);
    if (n_key > 1 && n_val > n_key && n_val % n_key == 0 && n_val <= 1 << 12 && d > 0 && d <= 1 << 13)
        w->order = (struct sy_vheads){(int32_t)(n_val / n_key), (int32_t)n_key, (int32_t)d, 0};
    return SY_OK;
}

static sy_status convert(struct writer *w, const char *path)
{
    const struct sy_checkpoint *c = w->w.c;
    uint32_t file_type = 0;
    const struct sy_quant *to = format_of(w->w.opt->to, &file_type);
    if (!to && w->w.opt->to != SY_CONVERT_STORED)
        return sy_fail(w->w.err, SY_ENOSUP, "GGUF has no format for fp8: name a folder, not a file ending in .gguf");
    if (!c->raw && open_arch(w)) return w->w.err->code;
    for (size_t i = 0; i < c->n_kv; i++)
        if (!strcmp(c->kv[i].key, "general.alignment") && c->kv[i].type == SY_GGUF_U32) {
            uint32_t align; /* a power of two: checked when the file was opened */
            memcpy(&align, c->kv[i].at, sizeof align);
            w->align = align;
        }
    sy_status st = c->raw ? plan_raw(w, to) : plan_folder(w, to);
    if (!st && !c->raw) {
        if (!to) file_type = stored_type(w);
        st = sy_gguf_make(c, w->arch, w->w.opt->vocab, file_type, w->n_next, &w->w.mem, &w->made, w->w.err);
    }
    if (!st) st = place(w);
    return st ? st : write_all(w, path, file_type);
}

sy_status sy_checkpoint_convert_gguf(const struct sy_env *env, const struct sy_checkpoint *c, const char *path,
                                     const struct sy_convert_opt *opt, struct sy_convert_result *res,
                                     struct sy_err *err)
{
    struct writer w = {.align = ALIGN};
    sy_convert_open(&w.w, env, c, opt, res, err);
    sy_buf_init(&w.made.kv, env, 0);
    res->n_shard = 1;
    sy_status st = convert(&w, path);
    sy_buf_release(&w.made.kv);
    sy_convert_close(&w.w);
    return st;
}
