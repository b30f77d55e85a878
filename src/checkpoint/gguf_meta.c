/* Reading GGUF metadata by key and type: the first failure sticks, as with sy_jread. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/internal.h"

sy_status sy_gguf_refuse(struct sy_gguf_meta *m, sy_status st, const char *fmt, ...)
{
    if (m->st) return m->st;
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return m->st = sy_fail(m->err, st, "'%s': %s", m->g->file, msg);
}

static int by_key(const void *key, const void *kv) { return strcmp(key, ((const struct sy_gguf_kv *)kv)->key); }

const struct sy_gguf_kv *sy_gguf_find(const struct sy_gguf_meta *m, const char *key)
{
    return m->g->n_kv ? bsearch(key, m->g->kv, m->g->n_kv, sizeof *m->g->kv, by_key) : NULL;
}

/* What a message calls the value that was found. */
static const char *found(const struct sy_gguf_kv *kv, char *text, size_t n)
{
    if (!kv) return "nothing";
    if (kv->type == SY_GGUF_ARRAY)
        snprintf(text, n, "an array of %llu %s", (unsigned long long)kv->n, sy_gguf_type_name(kv->elem));
    else snprintf(text, n, "a %s", sy_gguf_type_name(kv->type));
    return text;
}

static bool integer(uint32_t type)
{
    return type <= SY_GGUF_I32 || type == SY_GGUF_U64 || type == SY_GGUF_I64 || type == SY_GGUF_BOOL;
}

int64_t sy_gguf_elem_int(const struct sy_gguf_kv *kv, uint64_t i)
{
    const unsigned char *p = kv->at;
    union {
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } v = {0};
    switch (kv->elem) {
    case SY_GGUF_U8:
    case SY_GGUF_BOOL: return p[i];
    case SY_GGUF_I8: memcpy(&v.i8, p + i, 1); return v.i8;
    case SY_GGUF_U16: memcpy(&v.u16, p + 2 * i, 2); return v.u16;
    case SY_GGUF_I16: memcpy(&v.i16, p + 2 * i, 2); return v.i16;
    case SY_GGUF_U32: memcpy(&v.u32, p + 4 * i, 4); return v.u32;
    case SY_GGUF_I32: memcpy(&v.i32, p + 4 * i, 4); return v.i32;
    case SY_GGUF_U64: memcpy(&v.u64, p + 8 * i, 8); return v.u64 > INT64_MAX ? INT64_MAX : (int64_t)v.u64;
    default: memcpy(&v.i64, p + 8 * i, 8); return v.i64;
    }
}

int64_t sy_gguf_int(struct sy_gguf_meta *m, const char *key, int64_t lo, int64_t hi)
{
    const struct sy_gguf_kv *kv = sy_gguf_find(m, key);
    char text[80];
    if (!kv || kv->type == SY_GGUF_ARRAY || kv->type == SY_GGUF_BOOL || !integer(kv->type)) {
        sy_gguf_refuse(m, SY_EFORMAT, "key '%s': expected an integer from %lld to %lld, found %s", key, (long long)lo,
                       (long long)hi, found(kv, text, sizeof text));
        return lo;
    }
    int64_t v = sy_gguf_elem_int(kv, 0);
    if (v >= lo && v <= hi) return v;
    sy_gguf_refuse(m, SY_EFORMAT, "key '%s': expected an integer from %lld to %lld, found %lld", key, (long long)lo,
                   (long long)hi, (long long)v);
    return lo;
}

int64_t sy_gguf_int_or(struct sy_gguf_meta *m, const char *key, int64_t otherwise, int64_t lo, int64_t hi)
{
    return sy_gguf_find(m, key) ? sy_gguf_int(m, key, lo, hi) : otherwise;
}

int64_t sy_gguf_int_layers(struct sy_gguf_meta *m, const char *key, int64_t n_layer, int64_t lo, int64_t hi)
{
    const struct sy_gguf_kv *kv = sy_gguf_find(m, key);
    if (!kv || kv->type != SY_GGUF_ARRAY) return sy_gguf_int(m, key, lo, hi);
    char text[80];
    if (!integer(kv->elem) || kv->elem == SY_GGUF_BOOL || kv->n != (uint64_t)n_layer || n_layer < 1) {
        sy_gguf_refuse(m, SY_EFORMAT, "key '%s': expected one integer, or one for each of %lld layers, found %s", key,
                       (long long)n_layer, found(kv, text, sizeof text));
        return lo;
    }
    int64_t v = sy_gguf_elem_int(kv, 0);
    for (uint64_t i = 1; i < kv->n; i++) {
        int64_t other = sy_gguf_elem_int(kv, i);
        if (other == v) continue;
        sy_gguf_refuse(m, SY_ENOSUP,
                       "key '%s': layers that differ are not supported for this architecture: expected "
                       "%lld in every layer, found %lld in layer %llu",
                       key, (long long)v, (long long)other, (unsigned long long)i);
        return lo;
    }
    if (v >= lo && v <= hi) return v;
    sy_gguf_refuse(m, SY_EFORMAT, "key '%s': expected integers from %lld to %lld, found %lld", key, (long long)lo,
                   (long long)hi, (long long)v);
    return lo;
}

double sy_gguf_meant(float f)
{
    char text[32];
    for (int digits = 6; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)f);
        double v = strtod(text, NULL);
        if ((float)v == f) return v;
    }
    return (double)f;
}

double sy_gguf_num(struct sy_gguf_meta *m, const char *key, double lo, double hi)
{
    const struct sy_gguf_kv *kv = sy_gguf_find(m, key);
    char text[80];
    double v = NAN;
    float f;
    if (kv && kv->type == SY_GGUF_F32) v = (memcpy(&f, kv->at, 4), sy_gguf_meant(f));
    else if (kv && kv->type == SY_GGUF_F64) memcpy(&v, kv->at, 8);
    else if (kv && kv->type != SY_GGUF_BOOL && integer(kv->type)) v = (double)sy_gguf_elem_int(kv, 0);
    else {
        sy_gguf_refuse(m, SY_EFORMAT, "key '%s': expected a number from %g to %g, found %s", key, lo, hi,
                       found(kv, text, sizeof text));
        return lo;
    }
    if (v >= lo && v <= hi) return v;
    sy_gguf_refuse(m, SY_EFORMAT, "key '%s': expected a number from %g to %g, found %g", key, lo, hi,
                   isnan(v) ? (double)NAN : v);
    return lo;
}

double sy_gguf_num_or(struct sy_gguf_meta *m, const char *key, double otherwise, double lo, double hi)
{
    return sy_gguf_find(m, key) ? sy_gguf_num(m, key, lo, hi) : otherwise;
}

int sy_gguf_bool_or(struct sy_gguf_meta *m, const char *key, int otherwise)
{
    const struct sy_gguf_kv *kv = sy_gguf_find(m, key);
    char text[80];
    if (!kv) return otherwise;
    if (kv->type == SY_GGUF_BOOL) return kv->at[0];
    sy_gguf_refuse(m, SY_EFORMAT, "key '%s': expected a bool, found %s", key, found(kv, text, sizeof text));
    return otherwise;
}

bool sy_gguf_text(struct sy_gguf_meta *m, const char *key, struct sy_text *out)
{
    const struct sy_gguf_kv *kv = sy_gguf_find(m, key);
    char text[80];
    if (!kv) return false;
    if (kv->type != SY_GGUF_STRING) {
        sy_gguf_refuse(m, SY_EFORMAT, "key '%s': expected a string, found %s", key, found(kv, text, sizeof text));
        return false;
    }
    uint64_t n;
    memcpy(&n, kv->at, 8); /* within the file: checked when the value was read */
    *out = (struct sy_text){(const char *)kv->at + 8, (size_t)n};
    return true;
}

const struct sy_gguf_kv *sy_gguf_array(struct sy_gguf_meta *m, const char *key, uint32_t elem)
{
    const struct sy_gguf_kv *kv = sy_gguf_find(m, key);
    char text[80];
    if (!kv || (kv->type == SY_GGUF_ARRAY && kv->elem == elem)) return kv;
    sy_gguf_refuse(m, SY_EFORMAT, "key '%s': expected an array of %s, found %s", key, sy_gguf_type_name(elem),
                   found(kv, text, sizeof text));
    return NULL;
}
