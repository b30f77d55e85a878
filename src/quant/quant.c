#include "quant/quant_int.h"

#include <strings.h>

const struct sy_quant *sy_quant_by_gguf(int type)
{
    for (const struct sy_quant *const *q = sy_quants; *q; q++)
        if (type >= 0 && (*q)->gguf_type == type) return *q;
    return NULL;
}

const struct sy_quant *sy_quant_by_st(const char *dtype)
{
    for (const struct sy_quant *const *q = sy_quants; *q; q++)
        if ((*q)->st_dtype && strcmp((*q)->st_dtype, dtype) == 0) return *q;
    return NULL;
}

const struct sy_quant *sy_quant_by_name(const char *name)
{
    for (const struct sy_quant *const *q = sy_quants; *q; q++)
        if (strcasecmp((*q)->name, name) == 0) return *q;
    return NULL;
}

float sy_f16_to_f32(uint16_t h)
{
    return sy_f16_widen(h);
}

uint16_t sy_f32_to_f16(float f)
{
    return sy_f16_narrow(f);
}

float sy_bf16_to_f32(uint16_t b)
{
    return sy_bf16_widen(b);
}

uint16_t sy_f32_to_bf16(float f)
{
    return sy_bf16_narrow(f);
}

/* 256 elements at a time: one block of the largest format, and whole blocks of every other. */
enum { CHUNK = 256, GROUP_MIN = 16 };

void sy_affine_dequant(const struct sy_quant *q, const void *src, float *dst, int64_t n)
{
    const struct sy_affine *a = &q->affine;
    uint8_t code[CHUNK];
    float scale[CHUNK / GROUP_MIN], min[CHUNK / GROUP_MIN];
    const unsigned char *from = src;
    while (n > 0) {
        int64_t part = n < CHUNK ? n : CHUNK;
        q->unpack(from, code, scale, a->has_min ? min : NULL, part);
        for (int64_t i = 0; i < part; i += a->group) {
            float s = scale[i / a->group], m = a->has_min ? min[i / a->group] : 0;
            for (int64_t k = i; k < i + a->group; k++) dst[k] = s * (float)(code[k] - a->zero);
            /* Not added when there is none: 0 would turn a negative zero into a positive one. */
            if (a->has_min)
                for (int64_t k = i; k < i + a->group; k++) dst[k] += m;
        }
        from += sy_quant_row_bytes(q, part);
        dst += part;
        n -= part;
    }
}
