/* grid.c - what a sweep varies. */
#include <stdio.h>
#include <string.h>

#include "app/bench/serving.h"

enum { VALUE_MAX = 64, POINT_MAX = 4096 };

static sy_status read_axis(struct sy_args *a, struct sy_grid *g, const char *text, struct sy_err *err)
{
    size_t name = strcspn(text, "="), i = g->n;
    const char *at = text + name + 1;
    if (i == SY_GRID_AXES) return sy_fail(err, SY_EARG, "--vary: at most %d of them", SY_GRID_AXES);
    if (name == 0 || name >= sizeof g->axis[i].name || !text[name] || !*at)
        return sy_fail(err, SY_EARG, "--vary: expected NAME=A,B,.., found '%.60s'", text);
    snprintf(g->axis[i].name, sizeof g->axis[i].name, "%.*s", (int)name, text);
    for (size_t k = 0; k < i; k++)
        if (!strcmp(g->axis[k].name, g->axis[i].name))
            return sy_fail(err, SY_EARG, "--vary %s: given twice", g->axis[i].name);
    g->axis[i].value = sy_arena_array(&a->arena, VALUE_MAX, sizeof *g->axis[i].value);
    if (!g->axis[i].value) return sy_fail(err, SY_ENOMEM, "no memory for --vary");
    while (*at) {
        size_t n = strcspn(at, ",");
        if (n == 0 || g->axis[i].n == VALUE_MAX)
            return sy_fail(err, SY_EARG, "--vary %s: expected 1 to %d values with commas between, found '%.60s'",
                           g->axis[i].name, VALUE_MAX, text + name + 1);
        const char *v = sy_arena_text(&a->arena, at, n);
        if (!v) return sy_fail(err, SY_ENOMEM, "no memory for --vary");
        g->axis[i].value[g->axis[i].n++] = v;
        at += n + (at[n] == ',');
    }
    g->n_point *= g->axis[i].n;
    g->n++;
    if (g->n_point > POINT_MAX)
        return sy_fail(err, SY_EARG, "--vary: more than %d configurations: vary less", POINT_MAX);
    return SY_OK;
}

sy_status sy_grid_read(struct sy_args *a, struct sy_grid *g, struct sy_err *err)
{
    size_t n;
    const char *const *given = sy_arg_texts(a, "vary", &n);
    sy_status st = SY_OK;
    *g = (struct sy_grid){.n_point = 1};
    for (size_t i = 0; i < n && !st; i++) st = read_axis(a, g, given[i], err);
    return st;
}

/* The last axis turns fastest. */
const char *sy_grid_value(const struct sy_grid *g, size_t point, size_t axis)
{
    for (size_t k = g->n; k-- > axis + 1;) point /= g->axis[k].n;
    return g->axis[axis].value[point % g->axis[axis].n];
}

const char *sy_grid_label(struct sy_arena *arena, const struct sy_grid *g, size_t point)
{
    char text[256] = "";
    size_t at = 0;
    for (size_t k = 0; k < g->n && at < sizeof text; k++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s %s", k ? ", " : "", g->axis[k].name,
                               sy_grid_value(g, point, k));
    return sy_arena_text(arena, text, strlen(text));
}
