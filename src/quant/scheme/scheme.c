/* scheme.c - quantization_config in its dialects, and what schemes share. */
#include "quant/scheme/scheme_int.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>

/* ---- quantization_config --------------------------------------------------------------------------------------- */

struct reader {
    struct sy_jread j;
    struct sy_scheme_list *list;
};

static void add(struct reader *r, struct sy_scheme_conf c)
{
    if (r->j.st) return;
    if (r->list->n == SY_SCHEME_GROUPS_MAX) {
        sy_jread_refuse(&r->j, SY_ENOSUP, "more than %d groups", SY_SCHEME_GROUPS_MAX);
        return;
    }
    for (const struct sy_scheme *const *s = sy_schemes; *s; s++)
        if ((*s)->claims(&c)) {
            r->list->conf[r->list->n++] = c;
            return;
        }
    sy_jread_refuse(&r->j, SY_ENOSUP, "weights in format '%.60s' of %d bits%s are not supported", c.format, c.bits,
                    c.is_float ? " (floats)" : "");
}

/* [rows, columns] under a key; zeros when absent or null. */
static void read_block(struct reader *r, const char *key, int64_t block[2])
{
    const struct sy_json *a = sy_json_get(r->j.obj, key);
    if (!a || sy_json_is_null(a)) return;
    for (size_t i = 0; i < 2; i++) {
        block[i] = sy_json_int(sy_json_at(a, i), 0);
        if (sy_json_len(a) != 2 || block[i] < 1 || block[i] > 1 << 20)
            sy_jread_refuse(&r->j, SY_EFORMAT, "'%s': expected two positive numbers", key);
    }
}

static void set_ignore(struct reader *r, const char *const *keys)
{
    for (; *keys; keys++) {
        const struct sy_json *a = sy_json_get(r->j.obj, *keys);
        if (!a || sy_json_is_null(a)) continue;
        if (!sy_json_is_array(a)) sy_jread_refuse(&r->j, SY_EFORMAT, "'%s': expected a list of modules", *keys);
        else r->list->ignore = a;
    }
}

/* One of the values known for a text key, or refused by name. */
static void expect(struct reader *r, const char *key, const char *otherwise, const char *const *known)
{
    const char *v = sy_jread_text_or(&r->j, key, otherwise);
    for (const char *const *k = known; *k; k++)
        if (!strcmp(v, *k)) return;
    sy_jread_refuse(&r->j, SY_ENOSUP, "'%s': '%.60s' is not supported", key, v);
}

static void open_fp8(struct reader *r)
{
    struct sy_scheme_conf c = {.format = "fp8", .bits = 8, .is_float = true, .symmetric = true, .json = r->j.obj};
    expect(r, "fmt", "e4m3", (const char *const[]){"e4m3", "e5m2", "float8_e4m3fn", "float8_e5m2", NULL});
    expect(r, "scale_fmt", "float", (const char *const[]){"float", "ue8m0", NULL});
    read_block(r, "weight_block_size", c.block);
    set_ignore(r, (const char *const[]){"modules_to_not_convert", "ignored_layers", NULL});
    add(r, c);
}

static void open_mxfp4(struct reader *r)
{
    set_ignore(r, (const char *const[]){"modules_to_not_convert", NULL});
    add(r, (struct sy_scheme_conf){
               .format = "mxfp4", .bits = 4, .group = 32, .is_float = true, .symmetric = true, .json = r->j.obj});
}

static void open_bitsandbytes(struct reader *r)
{
    const char *name = sy_jread_bool_or(&r->j, "load_in_8bit", false) ? "bitsandbytes int8" : "bitsandbytes";
    struct sy_scheme_conf c = {.format = name, .bits = 4, .is_float = true, .symmetric = true, .json = r->j.obj};
    expect(r, "bnb_4bit_quant_type", "fp4", (const char *const[]){"nf4", "fp4", NULL});
    set_ignore(r, (const char *const[]){"llm_int8_skip_modules", NULL});
    add(r, c);
}

static void open_awq(struct reader *r)
{
    struct sy_scheme_conf c = {.format = "awq", .json = r->j.obj};
    c.bits = (int)sy_jread_int_or(&r->j, "bits", sy_jread_int_or(&r->j, "w_bit", 4, 1, 32), 1, 32);
    c.group =
        sy_jread_int_or(&r->j, "group_size", sy_jread_int_or(&r->j, "q_group_size", 128, -1, 1 << 20), -1, 1 << 20);
    if (c.group < 0) c.group = 0;
    c.symmetric = !sy_jread_bool_or(&r->j, "zero_point", true);
    expect(r, "version", "gemm", (const char *const[]){"gemm", "GEMM", NULL});
    set_ignore(r, (const char *const[]){"modules_to_not_convert", NULL});
    add(r, c);
}

static void open_gptq(struct reader *r)
{
    struct sy_scheme_conf c = {.format = "gptq", .json = r->j.obj};
    c.bits = (int)sy_jread_int(&r->j, "bits", 1, 32);
    c.group = sy_jread_int_or(&r->j, "group_size", -1, -1, 1 << 20);
    if (c.group < 0) c.group = 0;
    c.symmetric = sy_jread_bool_or(&r->j, "sym", true);
    c.ordered = sy_jread_bool_or(&r->j, "desc_act", false);
    expect(r, "checkpoint_format", "gptq", (const char *const[]){"gptq", "gptq_v2", NULL});
    if (sy_json_len(sy_json_get(r->j.obj, "dynamic")))
        sy_jread_refuse(&r->j, SY_ENOSUP, "'dynamic': settings per module are not supported");
    add(r, c);
}

/* A "weights" object of compressed-tensors. */
static void open_group(struct reader *r, const struct sy_json *group, const char *format)
{
    const struct sy_json *w = sy_json_get(group, "weights");
    struct sy_jread own = r->j;
    if (!w || sy_json_is_null(w)) return; /* activations only */
    r->j.obj = group;
    struct sy_scheme_conf c = {.format = sy_jread_text_or(&r->j, "format", format), .json = w};
    r->j.obj = w;
    c.bits = (int)sy_jread_int_or(&r->j, "num_bits", 8, 1, 32);
    c.is_float = !strcmp(sy_jread_text_or(&r->j, "type", "int"), "float");
    c.symmetric = sy_jread_bool_or(&r->j, "symmetric", true);
    c.ordered =
        sy_json_is_text(sy_json_get(w, "actorder")) && !strcmp(sy_json_text(sy_json_get(w, "actorder")), "group");
    expect(r, "type", "int", (const char *const[]){"int", "float", NULL});
    const char *strategy = sy_jread_text_or(&r->j, "strategy", "tensor");
    if (!strcmp(strategy, "group") || !strcmp(strategy, "tensor_group"))
        c.group = sy_jread_int(&r->j, "group_size", 1, 1 << 20);
    else if (!strcmp(strategy, "block")) read_block(r, "block_structure", c.block);
    else if (strcmp(strategy, "tensor") && strcmp(strategy, "channel"))
        sy_jread_refuse(&r->j, SY_ENOSUP, "'strategy': '%.60s' is not supported", strategy);
    add(r, c);
    own.st = r->j.st;
    r->j = own;
}

static void open_compressed(struct reader *r)
{
    const char *format = sy_jread_text_or(&r->j, "format", "dense"), *key;
    const struct sy_json *groups = sy_json_get(r->j.obj, "config_groups"), *g;
    const struct sy_json *sparse = sy_json_get(sy_json_get(r->j.obj, "sparsity_config"), "format");
    if (sy_json_is_text(sparse) && strcmp(sy_json_text(sparse), "dense"))
        sy_jread_refuse(&r->j, SY_ENOSUP, "'sparsity_config': format '%.60s' is not supported", sy_json_text(sparse));
    if (sy_json_len(sy_json_get(sy_json_get(r->j.obj, "transform_config"), "config_groups")))
        sy_jread_refuse(&r->j, SY_ENOSUP, "'transform_config': transforms of weights are not supported");
    set_ignore(r, (const char *const[]){"ignore", NULL});
    if (!strcmp(format, "dense")) return;
    for (void *it = NULL; (it = sy_json_next(groups, it, &key, &g));) open_group(r, g, format);
}

static void open_modelopt(struct reader *r)
{
    struct sy_scheme_conf c = {.is_float = true, .symmetric = true, .json = r->j.obj};
    const char *algo = sy_jread_text(&r->j, "quant_algo");
    r->list->ignore_glob = true;
    set_ignore(r, (const char *const[]){"ignore", "exclude_modules", NULL});
    if (r->j.st) return;
    if (!strcmp(algo, "NVFP4")) {
        c.format = "nvfp4-pack-quantized";
        c.bits = 4;
        c.group = sy_jread_int_or(&r->j, "group_size", 16, 1, 1 << 20);
    } else if (!strcmp(algo, "FP8")) {
        c.format = "float-quantized";
        c.bits = 8;
    } else {
        sy_jread_refuse(&r->j, SY_ENOSUP, "'quant_algo': '%.60s' is not supported", algo);
    }
    add(r, c);
}

sy_status sy_scheme_open(const struct sy_json *config, const char *where, struct sy_scheme_list *list,
                         struct sy_err *err)
{
    static const struct {
        const char *name;
        void (*open)(struct reader *);
    } methods[] = {
        {"fp8", open_fp8},
        {"mxfp4", open_mxfp4},
        {"compressed-tensors", open_compressed},
        {"modelopt", open_modelopt},
        {"bitsandbytes", open_bitsandbytes},
        {"awq", open_awq},
        {"gptq", open_gptq},
    };
    *list = (struct sy_scheme_list){.where = where};
    if (!config || sy_json_is_null(config)) return SY_OK;
    struct reader r = {.j = {.obj = config, .where = where, .err = err}, .list = list};
    if (!sy_json_is_object(config)) return sy_fail(err, SY_EFORMAT, "%s: expected an object", where);
    const char *method = sy_jread_text(&r.j, "quant_method");
    if (r.j.st) return r.j.st;
    for (size_t i = 0; i < SY_COUNT(methods); i++)
        if (!strcmp(method, methods[i].name)) {
            methods[i].open(&r);
            return r.j.st;
        }
    return sy_jread_refuse(&r.j, SY_ENOSUP,
                           "'quant_method': '%.60s' is not supported; fp8, mxfp4, compressed-tensors, modelopt, "
                           "bitsandbytes, awq and gptq are",
                           method);
}

bool sy_scheme_ignores(const struct sy_scheme_list *l, const char *module)
{
    for (size_t i = 0; i < sy_json_len(l->ignore); i++) {
        const char *s = sy_json_text(sy_json_at(l->ignore, i));
        if (!s) continue;
        if (l->ignore_glob ? !fnmatch(s, module, 0) : !strcmp(s, module)) return true;
    }
    return false;
}

/* ---- parts ----------------------------------------------------------------------------------------------------- */

static const struct {
    const char *dtype;
    int bytes;
} types[] = {
    [SY_PART_F32] = {"F32", 4},      [SY_PART_F16] = {"F16", 2},      [SY_PART_BF16] = {"BF16", 2},
    [SY_PART_E4M3] = {"F8_E4M3", 1}, [SY_PART_E5M2] = {"F8_E5M2", 1}, [SY_PART_E8M0] = {"F8_E8M0", 1},
    [SY_PART_I8] = {"I8", 1},        [SY_PART_U8] = {"U8", 1},        [SY_PART_I32] = {"I32", 4},
    [SY_PART_I64] = {"I64", 8},
};

enum sy_part_type sy_part_type_of(const char *dtype)
{
    for (size_t i = 1; i < SY_COUNT(types); i++)
        if (!strcmp(types[i].dtype, dtype)) return (enum sy_part_type)i;
    return SY_PART_NONE;
}

float sy_part_float(const struct sy_part *p, int64_t i)
{
    const unsigned char *at = p->at;
    switch (p->type) {
    case SY_PART_F32: return sy_f32_of_bits(sy_u32_at(at + 4 * i));
    case SY_PART_F16: return sy_f16_at(at + 2 * i);
    case SY_PART_BF16: return sy_bf16_widen(sy_u16_at(at + 2 * i));
    case SY_PART_E4M3: return sy_e4m3_widen(at[i]);
    case SY_PART_E5M2: return sy_e5m2_widen(at[i]);
    case SY_PART_E8M0: return sy_e8m0_widen(at[i]);
    case SY_PART_I8: return (float)(int8_t)at[i];
    default: return NAN;
    }
}

sy_status sy_part_shape(const struct sy_part *p, int n_dim, int64_t d0, int64_t d1, struct sy_err *err)
{
    if (p->n_dim == n_dim && (n_dim < 1 || d0 < 0 || p->dim[0] == d0) && (n_dim < 2 || d1 < 0 || p->dim[1] == d1))
        return SY_OK;
    char want[64] = "a single number";
    if (n_dim == 1) snprintf(want, sizeof want, "[%lld]", (long long)d0);
    if (n_dim == 2) snprintf(want, sizeof want, "[%lld, %lld]", (long long)d0, (long long)d1);
    return sy_fail(err, SY_ESHAPE,
                   "tensor '%s': expected %s as its quantisation implies, found %d dimensions, [%lld, %lld]", p->name,
                   want, p->n_dim, (long long)p->dim[0], (long long)p->dim[1]);
}

sy_status sy_part_need(const struct sy_parts *p, int i, unsigned mask, const char *what, struct sy_err *err)
{
    const struct sy_part *t = &p->part[i];
    if (!t->name)
        return sy_fail(err, SY_EFORMAT, "tensor '%s': its %s %s missing", p->part[0].name, what,
                       what[strlen(what) - 1] == 's' ? "are" : "is");
    if (t->type != SY_PART_NONE && mask >> t->type & 1) return SY_OK;
    return sy_fail(err, SY_ENOSUP, "tensor '%s': data type %s is not supported for %s", t->name, t->dtype, what);
}

sy_status sy_part_order(const struct sy_parts *p, int i, int64_t *odd, struct sy_err *err)
{
    const struct sy_part *o = &p->part[i];
    int64_t n_group = sy_ceil_div(p->cols, p->group);
    sy_status st = sy_part_need(p, i, SY_TYPE(I32), "order", err);
    if (!st) st = sy_part_shape(o, 1, p->cols, 0, err);
    *odd = -1;
    for (int64_t k = 0; !st && k < p->cols; k++) {
        uint32_t g = sy_u32_at(o->at + 4 * k);
        if (g >= n_group)
            st = sy_fail(err, SY_EFORMAT, "tensor '%s': group %u of column %lld: expected below %lld", o->name, g,
                         (long long)k, (long long)n_group);
        if (*odd < 0 && g != k / p->group) *odd = k;
    }
    return st;
}

void sy_parts_affine(struct sy_parts *p, const char *name, struct sy_affine a)
{
    p->format.name = name;
    p->format.gguf_type = -1;
    p->format.block_len = 1;
    /* Layouts take groups of 16 or 32 and rows of whole 32s. */
    if (p->cols % 32 || (p->group % 32 && p->group != 16)) return;
    a.group = p->group == 16 ? 16 : 32;
    p->format.affine = a;
    p->format.block_len = 32;
}
