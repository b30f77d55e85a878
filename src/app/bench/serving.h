/* serving.h - how the results of a load are shown. */
#pragma once
#include "app/bench/bench.h"
#include "bench/load.h"

/* What a result is of. A text NULL or a number 0: not known here; --field says more. */
struct sy_serving_says {
    const char *model, *hw, *framework, *precision, *configuration, *figures;
    int32_t chips, tp, ep, dp, pp; /* chips: what throughputs are divided by, and money paid for */
    struct sy_price price;
};
/* The results of one server under every load of the flags; all in the arguments' arena. */
struct sy_serving_set {
    const struct sy_load_opt *o;
    struct sy_load_seen *seen;
    struct sy_point *point;
    size_t n;
    bool by_rate;
};

SY_CHECK sy_status sy_serving_check(const struct sy_args *, struct sy_err *); /* --field */
/* Puts every load of the flags on the server at url, and prints each result. */
SY_CHECK sy_status sy_serving_load(struct sy_args *, const char *url, struct sy_serving_set *out, struct sy_err *);
struct sy_serving_says sy_serving_usual(const struct sy_args *, const char *model);
void sy_serving_print(FILE *, const struct sy_load_seen *);
struct sy_point sy_serving_point(const struct sy_load_seen *);
/* One point as an object with InferenceX's field names; --field adds to it. */
void sy_serving_put(struct sy_jout *, const struct sy_args *, const struct sy_serving_says *,
                    const struct sy_load_seen *, const struct sy_point *);
SY_CHECK sy_status sy_serving_answered(const struct sy_serving_set *, struct sy_err *); /* fails when nothing was */

/* ---- sweeps ---------------------------------------------------------------------------------------------- */

struct sy_sweep_row {
    struct sy_serving_says says;
    struct sy_load_seen seen;
    struct sy_point point;
    const char *series; /* rows of one name make a line of the report */
    double watts;       /* of a chip, with all that it needs; NAN: not known */
};
/* --vary NAME=A,B,..: a grid over all of them. */
enum { SY_GRID_AXES = 8 };
struct sy_grid {
    struct {
        char name[32];
        const char **value;
        size_t n;
    } axis[SY_GRID_AXES];
    size_t n, n_point;
};
SY_CHECK sy_status sy_grid_read(struct sy_args *, struct sy_grid *, struct sy_err *);
const char *sy_grid_value(const struct sy_grid *, size_t point, size_t axis);
const char *sy_grid_label(struct sy_arena *, const struct sy_grid *, size_t point); /* "block-size 16, tp 2" */

SY_CHECK sy_status sy_sweep_simulated(struct sy_args *, const struct sy_grid *, struct sy_sweep_row **, size_t *n,
                                      struct sy_err *);
/* --report: the page, its CSV and its SVG. about: a sentence on where it was measured. */
SY_CHECK sy_status sy_sweep_report(struct sy_args *, const char *about, const struct sy_sweep_row *, size_t n,
                                   struct sy_err *);
