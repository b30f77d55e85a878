/* One safetensors file (huggingface/safetensors, README "Format"): 8 bytes of header length, a JSON header,
 * and the bytes of the tensors, which cover the rest of the file without overlap or gap. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/internal.h"

enum {
    HEADER_BYTES_MAX = 100000000, /* the reference implementation's */
    HEADER_VALUES_MAX = 8000000,  /* bounds the memory that parsing takes */
    NAME_BYTES_MAX = 1024,
    N_DIM_MAX = 16,
};

static const struct {
    const char *name;
    unsigned bits;
} dtypes[] = {
    {"BF16", 16},   {"BOOL", 8},    {"C64", 64},    {"F16", 16},    {"F32", 32},        {"F4", 4},
    {"F64", 64},    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E4M3", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
    {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"I16", 16},    {"I32", 32},    {"I64", 64},        {"I8", 8},
    {"U16", 16},    {"U32", 32},    {"U64", 64},    {"U8", 8},
};

/* What a message says was found where something else was expected. */
static const char *kind(const struct sy_json *j)
{
    return !j                     ? "nothing"
           : sy_json_is_array(j)  ? "an array"
           : sy_json_is_object(j) ? "an object"
           : sy_json_is_text(j)   ? "a string"
           : sy_json_is_int(j)    ? "an integer"
                                  : "another value";
}

static sy_status read_dtype(const char *file, const struct sy_json *j, struct sy_tensor *t, unsigned *bits,
                            struct sy_err *err)
{
    const char *name = sy_json_text(sy_json_get(j, "dtype"));
    if (!name)
        return sy_fail(err, SY_EFORMAT, "'%s': tensor '%s': 'dtype': expected a string, found %s", file, t->file_name,
                       kind(sy_json_get(j, "dtype")));
    for (size_t i = 0; i < SY_COUNT(dtypes); i++) {
        if (strcmp(name, dtypes[i].name)) continue;
        t->dtype = dtypes[i].name;
        t->format = sy_quant_by_st(t->dtype);
        *bits = dtypes[i].bits;
        return SY_OK;
    }
    return sy_fail(err, SY_ENOSUP, "'%s': tensor '%s': dtype '%.40s' is not one that safetensors defines", file,
                   t->file_name, name);
}

/* The shape, and the number of bits that it takes. */
static sy_status read_shape(const char *file, const struct sy_json *shape, struct sy_tensor *t, unsigned bits,
                            uint64_t *n_bit, struct sy_err *err)
{
    size_t n = sy_json_len(shape);
    if (!sy_json_is_array(shape) || n > N_DIM_MAX)
        return sy_fail(err, SY_EFORMAT,
                       "'%s': tensor '%s': 'shape': expected an array of up to %d integers, found %s", file,
                       t->file_name, N_DIM_MAX, sy_json_is_array(shape) ? "more" : kind(shape));
    *n_bit = bits;
    for (size_t i = 0; i < n; i++) {
        int64_t d = sy_json_int(sy_json_at(shape, i), -1);
        if (d < 0)
            return sy_fail(err, SY_EFORMAT, "'%s': tensor '%s': 'shape': expected integers >= 0, found %s at %zu",
                           file, t->file_name,
                           sy_json_is_int(sy_json_at(shape, i)) ? "a negative one" : kind(sy_json_at(shape, i)), i);
        if (__builtin_mul_overflow(*n_bit, (uint64_t)d, n_bit) || *n_bit > INT64_MAX)
            return sy_fail(err, SY_EFORMAT, "'%s': tensor '%s': 'shape': its size overflows", file, t->file_name);
        /* n_bit bounds the product, unless a dimension is 0: then nothing is stored, and 0 is what folds. */
        size_t at = n > 4 ? (i < n - 3 ? 0 : i - (n - 4)) : i;
        if (__builtin_mul_overflow(t->dim[at], d, &t->dim[at])) t->dim[at] = 0;
    }
    t->n_dim = n > 4 ? 4 : (int)n;
    return SY_OK;
}

static sy_status read_tensor(struct sy_checkpoint *c, const struct sy_bytes *f, const unsigned char *data,
                             size_t n_data, const char *name, const struct sy_json *j, struct sy_err *err)
{
    struct sy_tensor t = {.dim = {1, 1, 1, 1}, .file = f->name};
    if (strlen(name) > NAME_BYTES_MAX)
        return sy_fail(err, SY_EFORMAT, "'%s': tensor '%.80s...': expected a name of up to %d bytes, found %zu",
                       f->name, name, NAME_BYTES_MAX, strlen(name));
    t.file_name = sy_arena_text(&c->mem, name, strlen(name));
    t.name = t.file_name ? sy_names_text(c, t.file_name) : NULL;
    if (!t.name) return sy_ckpt_nomem(c, err);
    if (!sy_json_is_object(j))
        return sy_fail(err, SY_EFORMAT, "'%s': tensor '%s': expected an object, found %s", f->name, name, kind(j));
    unsigned bits = 0;
    uint64_t n_bit = 0;
    sy_status st = read_dtype(f->name, j, &t, &bits, err);
    if (st == SY_OK) st = read_shape(f->name, sy_json_get(j, "shape"), &t, bits, &n_bit, err);
    if (st) return st;
    const struct sy_json *range = sy_json_get(j, "data_offsets");
    int64_t lo = sy_json_int(sy_json_at(range, 0), -1), hi = sy_json_int(sy_json_at(range, 1), -1);
    if (!sy_json_is_array(range) || sy_json_len(range) != 2 || lo < 0 || hi < lo)
        return sy_fail(err, SY_EFORMAT,
                       "'%s': tensor '%s': 'data_offsets': expected [begin, end] with 0 <= begin <= "
                       "end, found %s of %zu with %lld and %lld",
                       f->name, name, kind(range), sy_json_len(range), (long long)lo, (long long)hi);
    if ((uint64_t)hi > n_data)
        return sy_fail(err, SY_EFORMAT,
                       "'%s': tensor '%s': 'data_offsets': end %lld is beyond the %zu bytes of data in "
                       "the file",
                       f->name, name, (long long)hi, n_data);
    t.n_bytes = (size_t)(hi - lo);
    if (n_bit % 8 || n_bit / 8 != t.n_bytes)
        return sy_fail(err, SY_EFORMAT,
                       "'%s': tensor '%s': its shape as %s takes %llu bits, expected the same of "
                       "'data_offsets', found %zu bytes",
                       f->name, name, t.dtype, (unsigned long long)n_bit, t.n_bytes);
    t.data = data + lo;
    return sy_ckpt_add(c, &t, err);
}

static int by_place(const void *a, const void *b)
{
    const struct sy_tensor *s = a, *t = b;
    if (s->data != t->data) return s->data < t->data ? -1 : 1;
    return s->n_bytes < t->n_bytes ? -1 : s->n_bytes > t->n_bytes;
}

/* The specification: the bytes are entirely indexed; no holes, no overlap, nothing left at the end. */
static sy_status check_cover(const struct sy_bytes *f, struct sy_tensor *t, size_t n, const unsigned char *data,
                             struct sy_err *err)
{
    if (n) qsort(t, n, sizeof *t, by_place);
    const unsigned char *at = data, *end = f->at + f->n;
    for (size_t i = 0; i < n; i++) {
        if (t[i].data < at)
            return sy_fail(err, SY_EFORMAT, "'%s': tensors '%s' and '%s' overlap at data offset %zu", f->name,
                           t[i - 1].file_name, t[i].file_name, (size_t)(t[i].data - data));
        if (t[i].data > at)
            return sy_fail(err, SY_EFORMAT,
                           "'%s': tensor '%s': expected it at data offset %zu, found %zu: a gap that "
                           "belongs to no tensor",
                           f->name, t[i].file_name, (size_t)(at - data), (size_t)(t[i].data - data));
        at += t[i].n_bytes;
    }
    if (at != end)
        return sy_fail(err, SY_EFORMAT,
                       "'%s': expected the file to end with its last tensor at data offset %zu, found "
                       "%zu bytes more",
                       f->name, (size_t)(at - data), (size_t)(end - at));
    return SY_OK;
}

static sy_status read_header(struct sy_checkpoint *c, const struct sy_bytes *f, struct sy_json **out,
                             const unsigned char **data, struct sy_err *err)
{
    uint64_t n;
    if (f->n < 8)
        return sy_fail(err, SY_EFORMAT, "'%s': expected 8 bytes of header length, found a file of %zu", f->name,
                       f->n);
    memcpy(&n, f->at, 8);
    if (n > HEADER_BYTES_MAX || n > f->n - 8)
        return sy_fail(err, SY_EFORMAT, "'%s': expected a header of at most %zu bytes, found a length of %llu",
                       f->name, f->n - 8 < HEADER_BYTES_MAX ? f->n - 8 : (size_t)HEADER_BYTES_MAX,
                       (unsigned long long)n);
    const char *text = (const char *)f->at + 8;
    if (n < 2 || text[0] != '{')
        return sy_fail(err, SY_EFORMAT, "'%s': expected a header that begins with '{'", f->name);
    size_t n_value = 0;
    for (size_t i = 0; i < n; i++) n_value += text[i] == ',' || text[i] == ':';
    if (n_value > HEADER_VALUES_MAX)
        return sy_fail(err, SY_EFORMAT, "'%s': expected a header of at most %d values, found %zu", f->name,
                       HEADER_VALUES_MAX, n_value);
    sy_status st = sy_json_parse(c->env, text, (size_t)n, false, out, err);
    if (st) return sy_while(err, st, "'%s': header", f->name);
    *data = f->at + 8 + n;
    return SY_OK;
}

sy_status sy_safetensors_read(struct sy_checkpoint *c, const struct sy_bytes *f, struct sy_err *err)
{
    struct sy_json *header = NULL;
    const unsigned char *data = NULL;
    sy_status st = read_header(c, f, &header, &data, err);
    if (st) return st;
    size_t first = c->n_tensor, n_data = (size_t)(f->at + f->n - data);
    const char *name;
    const struct sy_json *value;
    for (void *it = NULL; st == SY_OK && (it = sy_json_next(header, it, &name, &value));) {
        if (strcmp(name, "__metadata__")) st = read_tensor(c, f, data, n_data, name, value, err);
        else if (!sy_json_is_object(value))
            st = sy_fail(err, SY_EFORMAT, "'%s': '__metadata__': expected an object of strings, found %s", f->name,
                         kind(value));
    }
    sy_json_free(header);
    if (st) return st;
    return check_cover(f, c->tensor ? c->tensor + first : NULL, c->n_tensor - first, data, err);
}
