#include "backend/sim/chip.h"

#include <stdio.h>
#include <string.h>

static const char *const arith_names[SY_ARITH_COUNT] = {"fp32", "bf16", "int8", "fp8", "fp4"};

/* {"value": v, "source": text}: a figure without a source is refused. */
static double figure(struct sy_jread *r, const struct sy_json *at, const char *key, double lo, double hi)
{
    const struct sy_json *o = sy_json_get(at, key);
    if (!o || r->st) return 0;
    const char *source = sy_json_text(sy_json_get(o, "source"));
    const struct sy_json *v = sy_json_get(o, "value");
    if (!source || !*source)
        return sy_jread_refuse(r, SY_EFORMAT, "'%s': expected {\"value\": number, \"source\": text}", key), 0;
    double x = sy_json_number(v, -1);
    if (!sy_json_is_number(v) || !(x >= lo && x <= hi))
        return sy_jread_refuse(r, SY_EFORMAT, "'%s': expected %g to %g, found %g", key, lo, hi, x), 0;
    return x;
}

static void copy_text(struct sy_jread *r, const char *key, char *out, size_t n)
{
    const char *s = sy_jread_text(r, key);
    if (!r->st && (!s || !*s || strlen(s) >= n))
        sy_jread_refuse(r, SY_EFORMAT, "'%s': expected 1 to %zu bytes of text", key, n - 1);
    snprintf(out, n, "%s", s ? s : "");
}

static void read_link(struct sy_jread *r, struct sy_chip *c)
{
    static const char *const names[] = {"none", "switch", "mesh", "torus"};
    const struct sy_json *o = sy_json_get(r->obj, "link");
    if (!o || r->st) return;
    struct sy_jread l = {.obj = o, .where = r->where, .err = r->err};
    const char *t = sy_jread_text(&l, "topology");
    for (size_t i = 0; t && i < SY_COUNT(names); i++)
        if (!strcmp(t, names[i])) c->topology = (enum sy_topology)i;
    if (!l.st && c->topology == SY_LINK_NONE)
        sy_jread_refuse(&l, SY_EFORMAT, "'topology': expected switch, mesh or torus, found '%.40s'", t ? t : "");
    bool grid = c->topology == SY_LINK_MESH || c->topology == SY_LINK_TORUS;
    c->dims = grid ? (int32_t)sy_jread_int(&l, "dims", 1, 3) : 1;
    c->world = (int32_t)sy_jread_int(&l, "world", 2, 1 << 20);
    c->link_bytes_s = figure(&l, o, "bytes_s", 1e6, 1e15);
    if (!l.st && c->link_bytes_s <= 0) sy_jread_refuse(&l, SY_EFORMAT, "'link': expected 'bytes_s', found none");
    if (!r->st) r->st = l.st;
}

sy_status sy_chip_read(const struct sy_env *env, const char *id, const char *text, size_t n, struct sy_chip *out,
                       struct sy_err *err)
{
    char where[80];
    struct sy_json *root;
    snprintf(where, sizeof where, "chip '%.40s'", id);
    sy_status st = sy_json_parse(env, text, n, false, &root, err);
    if (st) return sy_while(err, st, "%s", where);
    struct sy_jread r = {.obj = root, .where = where, .err = err};
    struct sy_chip c = {0};
    if (!sy_json_is_object(root)) sy_jread_refuse(&r, SY_EFORMAT, "expected an object");
    snprintf(c.id, sizeof c.id, "%s", id);
    copy_text(&r, "name", c.name, sizeof c.name);
    copy_text(&r, "vendor", c.vendor, sizeof c.vendor);
    c.devices = (int32_t)sy_jread_int_or(&r, "devices", 1, 1, 64);
    c.static_shapes = sy_jread_bool_or(&r, "static_shapes", false);
    c.unit_peaks = sy_jread_bool_or(&r, "unit_peaks", false);
    const struct sy_json *flops = sy_json_get(root, "flops");
    for (int i = 0; i < SY_ARITH_COUNT; i++) c.flops[i] = figure(&r, flops, arith_names[i], 1e6, 1e19);
    c.memory_bytes = figure(&r, root, "memory_bytes", 1e6, 1e15);
    c.memory_bytes_s = figure(&r, root, "memory_bytes_s", 1e6, 1e17);
    c.scale_out_bytes_s = figure(&r, root, "scale_out_bytes_s", 1e3, 1e15);
    c.chip_w = figure(&r, root, "chip_w", 0.1, 1e6);
    c.all_in_w = figure(&r, root, "all_in_w", 0.1, 1e6);
    read_link(&r, &c);
    sy_json_free(root);
    if (!r.st) *out = c;
    return r.st;
}

const char *sy_arith_name(enum sy_arith a) { return (unsigned)a < SY_ARITH_COUNT ? arith_names[a] : "?"; }

enum sy_arith sy_chip_arith(const struct sy_chip *c, enum sy_arith a)
{
    static const enum sy_arith wider[SY_ARITH_COUNT] = {[SY_ARITH_FP4] = SY_ARITH_FP8,
                                                        [SY_ARITH_FP8] = SY_ARITH_BF16,
                                                        [SY_ARITH_INT8] = SY_ARITH_BF16,
                                                        [SY_ARITH_BF16] = SY_ARITH_F32,
                                                        [SY_ARITH_F32] = SY_ARITH_F32};
    for (int i = 0; i < SY_ARITH_COUNT && c->flops[a] <= 0; i++) a = wider[a];
    return a;
}

double sy_chip_flops(const struct sy_chip *c, enum sy_arith a) { return c->flops[sy_chip_arith(c, a)]; }

sy_status sy_path_named(const char *name, const struct sy_chip *chip, struct sy_path *out, struct sy_err *err)
{
    static const struct {
        const char *name;
        struct sy_path path;
    } known[] = {
        /* 4-bit formats carry a scale for each 16 or 32 elements; their attention stays 16 bits wide. */
        {"fp4", {SY_ARITH_FP4, 0.5625, 2, 2, 1}}, {"int4", {SY_ARITH_BF16, 0.5625, 2, 2, 1}},
        {"fp8", {SY_ARITH_FP8, 1, 1, 2, 1}},      {"int8", {SY_ARITH_INT8, 1, 1, 2, 1}},
        {"bf16", {SY_ARITH_BF16, 2, 2, 2, 2}},    {"fp16", {SY_ARITH_BF16, 2, 2, 2, 2}},
        {"f32", {SY_ARITH_F32, 4, 4, 4, 4}},
    };
    size_t n = strcspn(name, "(");
    for (size_t i = 0; i < SY_COUNT(known); i++) {
        if (strlen(known[i].name) != n || memcmp(known[i].name, name, n)) continue;
        *out = known[i].path;
        /* 4-bit weights are widened to what activations are multiplied in: 16 bits where a chip has them, or 8. */
        if (out->b_weight < 1 && out->arith == SY_ARITH_BF16 && chip->flops[SY_ARITH_BF16] <= 0 &&
            chip->flops[SY_ARITH_INT8] > 0)
            out->arith = SY_ARITH_INT8;
        if (sy_chip_flops(chip, out->arith) > 0) return SY_OK;
        return sy_fail(err, SY_EARG, "chip '%s': its card has no peak for '%s' arithmetic or a wider one", chip->id,
                       name);
    }
    return sy_fail(err, SY_EARG, "precision: expected fp4, int4, fp8, int8, bf16, fp16 or f32, found '%.40s'", name);
}
