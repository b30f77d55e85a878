/* published.c - points and tables beside what the calibration says of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/plan/plan.h"
#include "bench/report.h"
#include "plan/published.h"
#include "plan/rerun.h"

/* What the user's own benchmarks ran on, from --chip, --precision and the model; *m NULL: not all is there. */
static sy_status machine_of(struct sy_args *a, struct sy_machine *own, const struct sy_machine **m,
                            struct sy_err *err)
{
    const char *chips = sy_arg_text(a, "chips");
    *m = NULL;
    if (!sy_arg_given(a, "chip") || (!sy_arg_given(a, "model-card") && !sy_arg_given(a, "model"))) return SY_OK;
    struct sy_chip chip;
    struct sy_card *card = sy_arena_get(&a->arena, sizeof *card);
    if (!card) return sy_fail(err, SY_ENOMEM, "no memory for the model's card");
    *own = (struct sy_machine){.hw = sy_arg_text(a, "chip"), .card = card, .chips = 1};
    sy_status st = sy_plan_card(a, card, &own->precision, err);
    if (!st) st = sy_chip_find(&a->app->env, own->hw, &chip, err);
    if (st) return st;
    if (sy_arg_given(a, "chips")) {
        char *end;
        own->chips = (int32_t)strtol(chips, &end, 10);
        if (*end || own->chips < 1)
            return sy_fail(err, SY_EARG, "--chips: expected how many chips the results are of, found '%.40s'", chips);
    }
    own->framework = sy_arg_given(a, "engine") ? sy_arg_text(a, "engine") : "systole";
    own->tp = own->chips * chip.devices;
    own->chunk = (int32_t)sy_arg_int(a, "chunk");
    *m = own;
    return SY_OK;
}

/* Points of several files, one after the other. */
static sy_status read_files(struct sy_args *a, const char *const *file, size_t n, struct sy_points *out,
                            struct sy_err *err)
{
    struct sy_machine own;
    const struct sy_machine *m;
    *out = (struct sy_points){0};
    sy_status st = machine_of(a, &own, &m, err);
    for (size_t i = 0; i < n && !st; i++) {
        size_t before = out->n;
        st = sy_points_file(&a->app->env, file[i], m, out, err);
        if (!st && out->n == before)
            st = sy_fail(err, SY_EFORMAT, "%s: expected a measurement at least, found none", file[i]);
    }
    if (st) sy_points_release(out);
    return st;
}

sy_status sy_plan_calibration(struct sy_args *a, struct sy_calibration *out, struct sy_err *err)
{
    const struct sy_env *env = &a->app->env;
    struct sy_points points;
    size_t n;
    const char *const *from = sy_arg_texts(a, "from", &n);
    if (sy_arg_given(a, "calibration")) {
        if (n) return sy_fail(err, SY_EARG, "expected --from or --calibration, found both");
        return sy_calibration_open(env, sy_arg_text(a, "calibration"), out, err);
    }
    sy_status st = n ? read_files(a, from, n, &points, err) : sy_points_own(env, &points, err);
    if (!st) st = sy_calibrate_take(env, &points, out, err);
    if (st || !n) return st;
    st = sy_rerun_gaps(env, out, err);
    if (st) sy_calibration_release(out);
    return st;
}

static sy_status finish(struct sy_buf *b, sy_status st, struct sy_err *err)
{
    if (!st) st = sy_report_write(b, "-", err);
    sy_buf_release(b);
    return st;
}

static bool simulates(struct sy_args *a) { return sy_arg_given(a, "simulate") && sy_arg_int(a, "simulate") > 0; }

sy_status sy_plan_published(struct sy_args *a, struct sy_err *err)
{
    const struct sy_env *env = &a->app->env;
    struct sy_calibration c;
    struct sy_cells cells = {0};
    struct sy_buf b;
    sy_status st = sy_plan_calibration(a, &c, err);
    if (st) return st;
    sy_buf_init(&b, env, 0);
    sy_buf_text(&b, "Ours are the closed form of the simulator with constants fitted to the points below.\n\n");
    st = sy_published_tables(env, &c, simulates(a), &b, &cells, err);
    sy_buf_text(&b, "\n");
    if (!st) st = sy_published_points(env, &c, NULL, false, &b, &cells, err);
    sy_published_bands(&c, &b);
    sy_buf_text(&b, "\n");
    if (!st) sy_published_total(&cells, &b);
    sy_calibration_release(&c);
    return finish(&b, st, err);
}

sy_status sy_plan_check(struct sy_args *a, struct sy_err *err)
{
    const struct sy_env *env = &a->app->env;
    struct sy_calibration c;
    struct sy_points asked;
    struct sy_cells cells = {0};
    struct sy_buf b;
    const char *against = sy_arg_text(a, "against");
    if (!against) return sy_fail(err, SY_EARG, "plan check: expected --against FILE, found none");
    sy_status st = read_files(a, &against, 1, &asked, err);
    if (st) return st;
    st = sy_plan_calibration(a, &c, err);
    if (st) {
        sy_points_release(&asked);
        return st;
    }
    sy_buf_init(&b, env, 0);
    st = sy_published_points(env, &c, &asked, simulates(a), &b, &cells, err);
    sy_buf_text(&b, "\n");
    sy_published_held(&c, &cells, &b);
    if (!st) sy_published_total(&cells, &b);
    sy_points_release(&asked);
    sy_calibration_release(&c);
    return finish(&b, st, err);
}

sy_status sy_plan_list(struct sy_args *a, struct sy_err *err)
{
    (void)a;
    (void)err;
    for (const struct sy_data *d = sy_data_files; d->path; d++)
        if (strncmp(d->path, "report/", 7)) puts(d->path);
    return SY_OK;
}
