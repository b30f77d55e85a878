/* parts.c - weights that a folder stores as several tensors become one tensor each: see quant/scheme/scheme.h. */
#include <stdio.h>
#include <string.h>

#include "checkpoint/internal.h"
#include "quant/scheme/scheme.h"

enum { MODULE_BYTES_MAX = 1100 };

struct binder {
    struct sy_checkpoint *c;
    struct sy_scheme_list list;
    bool *gone; /* [n_tensor] part of a weight that was made */
    size_t n_tensor;
    struct sy_err *err;
};

/* The tensor MODULE + suffix, or NULL; module has n bytes. */
static const struct sy_tensor *part_at(const struct binder *b, const char *module, size_t n, const char *suffix)
{
    char name[MODULE_BYTES_MAX];
    if (!suffix || n + strlen(suffix) >= sizeof name) return NULL;
    memcpy(name, module, n);
    memcpy(name + n, suffix, strlen(suffix) + 1);
    return sy_checkpoint_find(b->c, name);
}

static void gather(const struct binder *b, const struct sy_scheme *s, int names, const char *module, size_t n,
                   struct sy_parts *p, const struct sy_tensor *from[SY_PARTS_MAX])
{
    *p = (struct sy_parts){.names = names};
    for (int i = 0; i < SY_PARTS_MAX; i++) {
        const struct sy_tensor *t = part_at(b, module, n, s->names[names].suffix[i]);
        from[i] = t;
        if (!t) continue;
        p->part[i] = (struct sy_part){.name = t->file_name,
                                      .dtype = t->dtype,
                                      .type = sy_part_type_of(t->dtype),
                                      .n_dim = t->n_dim,
                                      .at = t->data,
                                      .n_bytes = t->n_bytes};
        memcpy(p->part[i].dim, t->dim, sizeof t->dim);
    }
}

/* A weight made of parts takes their place in the checkpoint. */
static sy_status put(struct binder *b, const struct sy_scheme *s, const struct sy_parts *p,
                     const struct sy_tensor *const from[SY_PARTS_MAX], const char *module, size_t n)
{
    struct sy_parts *own = sy_arena_get(&b->c->mem, sizeof *own);
    struct sy_tensor t = {
        .file = from[0]->file, .n_dim = p->n_dim, .file_name = from[0]->file_name, .parts = own, .part_step = 1};
    t.name = sy_arena_printf(&b->c->mem, "%.*s%s", (int)n, module, s->names[p->names].weight);
    if (!own || !t.name) return sy_ckpt_nomem(b->c, b->err);
    *own = *p;
    t.format = &own->format;
    t.dtype = own->format.name;
    memcpy(t.dim, p->dim, sizeof t.dim);
    for (int i = p->n_dim; i < 4; i++) t.dim[i] = 1;
    for (int i = 0; i < SY_PARTS_MAX; i++) {
        if (!from[i]) continue;
        t.n_bytes += from[i]->n_bytes;
        b->gone[sy_checkpoint_index(b->c, from[i])] = true;
    }
    return sy_ckpt_add(b->c, &t, b->err);
}

/* Tries one scheme and one set of names for the module; *done when it made a weight. */
static sy_status try_names(struct binder *b, const struct sy_scheme *s, int names, const char *module, size_t n,
                           bool *done)
{
    struct sy_parts p;
    const struct sy_tensor *from[SY_PARTS_MAX];
    struct sy_err first = {0};
    for (int i = 0; i < b->list.n; i++) {
        if (!s->claims(&b->list.conf[i])) continue;
        struct sy_err err = {0};
        bool mine = false;
        gather(b, s, names, module, n, &p, from);
        sy_status st = s->bind(&b->c->mem, &b->list.conf[i], &p, &mine, &err);
        if (!st && !mine) return SY_OK;
        if (st == SY_ENOMEM) return sy_fail(b->err, st, "%s", err.msg);
        if (!st) {
            *done = true;
            return put(b, s, &p, from, module, n);
        }
        if (!first.code) first = err;
    }
    return first.code ? sy_fail(b->err, first.code, "'%s': %s", b->c->path, first.msg) : SY_OK;
}

/* Of two sets of names that begin alike the one with more of its parts there is meant. */
static int names_of(const struct binder *b, const struct sy_scheme *s, const char *module, size_t n,
                    const char *suffix)
{
    int best = -1, most = 0;
    for (int k = 0; k < (int)SY_COUNT(s->names) && s->names[k].weight; k++) {
        int found = 0;
        if (strcmp(s->names[k].suffix[0], suffix)) continue;
        for (int i = 0; i < SY_PARTS_MAX; i++) found += part_at(b, module, n, s->names[k].suffix[i]) != NULL;
        if (found > most) best = k;
        if (found > most) most = found;
    }
    return best;
}

static sy_status bind_one(struct binder *b, size_t i)
{
    const struct sy_tensor t = b->c->tensor[i]; /* a copy: the array may move */
    size_t n = strlen(t.name);
    bool done = false;
    for (const struct sy_scheme *const *s = sy_schemes; *s && !done; s++)
        for (int k = 0; k < (int)SY_COUNT((*s)->names) && (*s)->names[k].weight && !done; k++) {
            const char *suffix = (*s)->names[k].suffix[0];
            size_t m = strlen(suffix);
            if (n <= m || strcmp(t.name + n - m, suffix) || names_of(b, *s, t.name, n - m, suffix) != k) continue;
            sy_status st = t.n_bytes ? try_names(b, *s, k, t.name, n - m, &done) : SY_OK;
            if (st) return st;
            char module[MODULE_BYTES_MAX];
            snprintf(module, sizeof module, "%.*s", (int)(strlen(t.file_name) - m), t.file_name);
            if (done && sy_scheme_ignores(&b->list, module))
                return sy_fail(b->err, SY_EFORMAT,
                               "'%s': tensor '%s' is quantised, but %s says that its module is not", t.file,
                               t.file_name, b->list.where);
        }
    return SY_OK;
}

/* Takes the parts out; what was made stands at the end, in the order of its codes. */
static void drop_parts(struct binder *b)
{
    struct sy_checkpoint *c = b->c;
    size_t n = 0;
    for (size_t i = 0; i < c->n_tensor; i++)
        if (i >= b->n_tensor || !b->gone[i]) c->tensor[n++] = c->tensor[i];
    c->n_tensor = n;
}

sy_status sy_parts_bind(struct sy_checkpoint *c, struct sy_err *err)
{
    struct binder b = {.c = c, .err = err, .n_tensor = c->n_tensor};
    const char *where = sy_arena_printf(&c->mem, "%s: 'quantization_config'", c->path);
    const struct sy_json *config = sy_json_get(c->config, "quantization_config");
    if (!where) return sy_ckpt_nomem(c, err);
    if (!config) config = sy_json_get(c->config, "compression_config");
    sy_status st = sy_scheme_open(config, where, &b.list, err);
    if (st || !b.list.n) return st;
    b.gone = sy_new_array(c->env, c->n_tensor + 1, sizeof *b.gone);
    if (!b.gone) return sy_ckpt_nomem(c, err);
    for (size_t i = 0; i < b.n_tensor && !st; i++) st = bind_one(&b, i);
    if (!st) drop_parts(&b);
    sy_delete(c->env, b.gone);
    return st;
}

/* ---- reading any tensor ---------------------------------------------------------------------------------------- */

static const unsigned char *row_at(const struct sy_tensor *t, int64_t row, int64_t cols)
{
    return t->data + row * (t->row_bytes ? t->row_bytes : sy_quant_row_bytes(t->format, cols));
}

/* Elements that do not lie side by side, a few at a time. */
static void floats_apart(const struct sy_tensor *t, const unsigned char *at, float *dst, int64_t n)
{
    enum { SOME = 128, ELEM_BYTES_MAX = 4 };
    unsigned char near[SOME * ELEM_BYTES_MAX];
    size_t size = (size_t)t->format->block_bytes;
    sy_assert(size <= ELEM_BYTES_MAX); /* stacked.c cuts columns of formats of one element a block only */
    for (int64_t i = 0; i < n; i += SOME) {
        int64_t some = n - i < SOME ? n - i : SOME;
        for (int64_t k = 0; k < some; k++) memcpy(near + (size_t)k * size, at + (i + k) * t->col_bytes, size);
        t->format->dequant(near, dst + i, some);
    }
}

/* Columns of value heads that stand tiled, put in order: heads are `len` elements of `size` bytes each. */
static void untile(const struct sy_vheads *s, void *row, int64_t first, int64_t len, size_t size)
{
    unsigned char *at = (unsigned char *)row + (size_t)first * size;
    struct sy_vheads each = {s->n_key, s->per_key, 1, 0};
    size_t n = (size_t)len * size;
    for (int64_t h = 0; h < (int64_t)s->n_key * s->per_key; h++) {
        int64_t from = sy_vhead_row(&each, h);
        while (from < h) from = sy_vhead_row(&each, from); /* what stood there has been moved */
        unsigned char *x = at + (size_t)h * n, *y = at + (size_t)from * n;
        for (size_t i = 0; from > h && i < n; i++) {
            unsigned char byte = x[i];
            x[i] = y[i];
            y[i] = byte;
        }
    }
}

void sy_tensor_floats(const struct sy_tensor *t, int64_t r, float *dst)
{
    int64_t cols = t->n_dim ? t->dim[t->n_dim - 1] : 1, row = t->n_dim > 1 ? sy_tensor_row(t, r) : r;
    if (t->parts) t->format->row(t->parts, t->part_row0 + t->part_step * row, dst);
    else if (t->col_bytes) floats_apart(t, row_at(t, row, cols), dst, cols);
    else t->format->dequant(row_at(t, row, cols), dst, cols);
    if (t->tiled_cols) untile(&t->tiles, dst, t->tiles.first, t->tiles.len, sizeof *dst);
}

const unsigned char *sy_tensor_stored(const struct sy_tensor *t, int64_t r)
{
    int64_t cols = t->n_dim ? t->dim[t->n_dim - 1] : 1, row = t->n_dim > 1 ? sy_tensor_row(t, r) : r;
    return t->parts || t->col_bytes || t->tiled_cols ? NULL : row_at(t, row, cols);
}

void sy_tensor_codes(const struct sy_tensor *t, int64_t r, uint8_t *code, float *scale, float *min)
{
    int64_t cols = t->n_dim ? t->dim[t->n_dim - 1] : 1, row = t->n_dim > 1 ? sy_tensor_row(t, r) : r;
    if (t->parts) t->format->row_codes(t->parts, t->part_row0 + t->part_step * row, code, scale, min);
    else t->format->unpack(row_at(t, row, cols), code, scale, min, cols);
    if (!t->tiled_cols) return;
    int64_t first = t->tiles.first, len = t->tiles.len, group = t->format->affine.group;
    untile(&t->tiles, code, first, len, 1);
    untile(&t->tiles, scale, first / group, len / group, sizeof *scale);
    if (min) untile(&t->tiles, min, first / group, len / group, sizeof *min);
}

void sy_tensor_f8(const struct sy_tensor *t, int64_t r, uint8_t *code, float *scale)
{
    int64_t cols = t->n_dim ? t->dim[t->n_dim - 1] : 1, row = t->n_dim > 1 ? sy_tensor_row(t, r) : r;
    if (t->parts) {
        t->format->row_f8(t->parts, t->part_row0 + t->part_step * row, code, scale);
        return;
    }
    const unsigned char *from = row_at(t, row, cols);
    int64_t step = t->col_bytes ? t->col_bytes : 1;
    for (int64_t i = 0; i < cols; i++) code[i] = from[i * step];
}
