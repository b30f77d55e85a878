/* calibration.c - a calibration as a file: constants, bands, and the points both came from. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "plan/calibrate.h"

enum { FILE_BYTES_MAX = 64 << 20, GROUP_MAX = 100000 };

/* Seconds are written as microseconds, as their name says. */
static double unit(int k) { return k == SY_CONST_LAYER_S || k == SY_CONST_SEQ_S ? 1e6 : 1; }

static void put_group(struct sy_jout *j, const struct sy_group *g)
{
    sy_jout_open(j, NULL, '{');
    sy_jout_text(j, "hw", g->hw);
    sy_jout_text(j, "vendor", g->vendor);
    sy_jout_text(j, "framework", g->framework);
    sy_jout_text(j, "date", g->date);
    sy_jout_text(j, "precision", g->precision);
    sy_jout_text(j, "spec_decoding", g->spec);
    sy_jout_text(j, "model", g->model);
    sy_jout_bool(j, "unit_peaks", g->unit_peaks);
    sy_jout_int(j, "points", g->n_point);
    if (g->gap_ms > 0) sy_jout_num(j, "gap_ms", g->gap_ms);
    sy_jout_open(j, "constants", '{');
    for (int k = 0; k < SY_CONST_COUNT; k++)
        sy_jout_num(j, sy_const_name((enum sy_const)k), unit(k) * g->consts.v[k]);
    sy_jout_close(j, '}');
    sy_jout_open(j, "peaks", '{');
    for (int k = 0; k < SY_CONST_COUNT; k++) sy_jout_num(j, sy_const_name((enum sy_const)k), g->peak[k]);
    sy_jout_close(j, '}');
    sy_jout_close(j, '}');
}

static void put_band(struct sy_jout *j, enum sy_reach r, const struct sy_band *d)
{
    sy_jout_open(j, NULL, '{');
    sy_jout_text(j, "reach", sy_reach_name(r));
    sy_jout_num(j, "claim", SY_BAND_CLAIM / 100.0);
    sy_jout_num(j, "error", expm1(d->width));
    sy_jout_num(j, "covered", d->covered);
    sy_jout_num(j, "median", expm1(d->median));
    sy_jout_num(j, "largest", expm1(d->largest));
    sy_jout_int(j, "points", d->n);
    sy_jout_close(j, '}');
}

void sy_calibration_put(const struct sy_calibration *c, struct sy_buf *b)
{
    struct sy_jout j = {.b = b};
    sy_jout_open(&j, NULL, '{');
    sy_jout_int(&j, "calibration", 1);
    sy_jout_open(&j, "groups", '[');
    for (size_t i = 0; i < c->n_group; i++) {
        sy_jout_line(&j);
        put_group(&j, &c->group[i]);
    }
    sy_jout_close(&j, ']');
    sy_jout_open(&j, "bands", '[');
    for (int r = 0; r < SY_REACH_COUNT; r++) {
        if (!c->band[r].n) continue;
        sy_jout_line(&j);
        put_band(&j, (enum sy_reach)r, &c->band[r]);
    }
    sy_jout_close(&j, ']');
    sy_jout_open(&j, "points", '[');
    for (size_t i = 0; i < c->points.n; i++) {
        if (c->points.at[i].group < 0) continue;
        sy_jout_line(&j);
        sy_point_put(&j, &c->points.at[i]);
    }
    sy_jout_close(&j, ']');
    sy_jout_close(&j, '}');
    sy_buf_char(b, '\n');
}

static void copy(struct sy_jread *r, const char *key, char *out, size_t n)
{
    const char *s = sy_jread_text(r, key);
    if (!r->st && strlen(s) >= n) sy_jread_refuse(r, SY_EFORMAT, "'%s': expected at most %zu bytes", key, n - 1);
    if (!r->st) snprintf(out, n, "%s", s);
}

static void read_group(struct sy_jread *r, struct sy_group *g)
{
    *g = (struct sy_group){0};
    copy(r, "hw", g->hw, sizeof g->hw);
    copy(r, "vendor", g->vendor, sizeof g->vendor);
    copy(r, "framework", g->framework, sizeof g->framework);
    copy(r, "date", g->date, sizeof g->date);
    copy(r, "precision", g->precision, sizeof g->precision);
    copy(r, "spec_decoding", g->spec, sizeof g->spec);
    copy(r, "model", g->model, sizeof g->model);
    g->unit_peaks = sy_jread_bool_or(r, "unit_peaks", false);
    g->n_point = (int32_t)sy_jread_int(r, "points", 1, 1 << 24);
    g->gap_ms = sy_jread_num_or(r, "gap_ms", 0, 0, 1e6);
    struct sy_jread c = {.obj = sy_json_get(r->obj, "constants"), .where = r->where, .err = r->err};
    struct sy_jread p = {.obj = sy_json_get(r->obj, "peaks"), .where = r->where, .err = r->err};
    for (int k = 0; k < SY_CONST_COUNT && !r->st; k++) {
        const char *name = sy_const_name((enum sy_const)k);
        g->consts.v[k] = sy_jread_num(&c, name, 1e-12, 1e12) / unit(k);
        g->peak[k] = sy_jread_num(&p, name, 1e-12, 1e24);
        r->st = c.st ? c.st : p.st;
    }
}

static void read_band(struct sy_jread *r, struct sy_calibration *c)
{
    const char *name = sy_jread_text(r, "reach");
    int at = 0;
    while (at < SY_REACH_COUNT && (r->st || strcmp(name, sy_reach_name((enum sy_reach)at)))) at++;
    double claim = sy_jread_num(r, "claim", 0, 1), width = sy_jread_num(r, "error", 0, 1e9);
    struct sy_band b = {.width = log1p(width),
                        .covered = sy_jread_num(r, "covered", 0, 1),
                        .median = log1p(sy_jread_num(r, "median", 0, 1e9)),
                        .largest = log1p(sy_jread_num(r, "largest", 0, 1e9)),
                        .n = (int32_t)sy_jread_int(r, "points", 1, 1 << 24)};
    if (!r->st && at == SY_REACH_COUNT) sy_jread_refuse(r, SY_EFORMAT, "'reach': '%.40s' is not known", name);
    if (!r->st && fabs(100 * claim - SY_BAND_CLAIM) > 1e-6)
        sy_jread_refuse(r, SY_EFORMAT, "'claim': expected %g, found %g", SY_BAND_CLAIM / 100.0, claim);
    if (!r->st) c->band[at] = b;
}

static sy_status read_parts(struct sy_calibration *c, const struct sy_json *root, const char *path,
                            struct sy_err *err)
{
    const struct sy_json *groups = sy_json_get(root, "groups"), *bands = sy_json_get(root, "bands");
    size_t n = sy_json_len(groups);
    char where[160];
    sy_status st = SY_OK;
    if (sy_json_int(sy_json_get(root, "calibration"), 0) != 1 || !sy_json_is_array(groups) ||
        !sy_json_is_array(bands) || n > GROUP_MAX)
        return sy_fail(err, SY_EFORMAT, "'%s': expected what 'plan calibrate -o' writes: calibration, groups, bands",
                       path);
    c->group = sy_arena_array(&c->arena, n + 1, sizeof *c->group);
    if (!c->group) return sy_fail(err, SY_ENOMEM, "no memory for %zu groups", n);
    for (; c->n_group < n && !st; c->n_group += !st) {
        snprintf(where, sizeof where, "'%.80s': group %zu", path, c->n_group);
        struct sy_jread r = {.obj = sy_json_at(groups, c->n_group), .where = where, .err = err};
        read_group(&r, &c->group[c->n_group]);
        st = r.st;
    }
    for (size_t i = 0; i < sy_json_len(bands) && !st; i++) {
        snprintf(where, sizeof where, "'%.80s': band %zu", path, i);
        struct sy_jread r = {.obj = sy_json_at(bands, i), .where = where, .err = err};
        read_band(&r, c);
        st = r.st;
    }
    return st;
}

static sy_status read_all(const struct sy_env *env, const char *path, const char *text, size_t n,
                          struct sy_calibration *c, struct sy_err *err)
{
    struct sy_json *root;
    sy_status st = sy_json_parse(env, text, n, false, &root, err);
    if (st) return sy_while(err, st, "'%s'", path);
    st = read_parts(c, root, path, err);
    sy_json_free(root);
    if (!st) st = sy_points_text(env, path, text, n, NULL, &c->points, err);
    for (size_t i = 0; i < c->points.n && !st; i++) {
        struct sy_measured *p = &c->points.at[i];
        const struct sy_group *g = sy_calibration_group(c, p);
        if (!g) return sy_fail(err, SY_EFORMAT, "'%s': point %.40s belongs to none of the groups", path, p->id);
        p->group = (int32_t)(g - c->group);
    }
    return st;
}

sy_status sy_calibration_read(const struct sy_env *env, const char *path, const char *text, size_t n,
                              struct sy_calibration *out, struct sy_err *err)
{
    struct sy_calibration c = {0};
    sy_arena_init(&c.arena, env, 0);
    sy_status st = read_all(env, path, text, n, &c, err);
    if (st) sy_calibration_release(&c);
    else *out = c;
    return st;
}

sy_status sy_calibration_open(const struct sy_env *env, const char *path, struct sy_calibration *out,
                              struct sy_err *err)
{
    char *text;
    size_t n;
    sy_status st = sy_file_read(env, path, FILE_BYTES_MAX, &text, &n, err);
    if (st) return st;
    st = sy_calibration_read(env, path, text, n, out, err);
    sy_delete(env, text);
    return st;
}
