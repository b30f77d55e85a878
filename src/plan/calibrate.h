/* calibrate.h - constants from measured points, and how far they can be trusted.
 *
 * Constants belong to a group: (chip, engine build, precision path, model). They are fitted to the group's points in
 * the logarithm, held towards what its kin (same chip, vendor, engine, precision, model) were fitted to; a group
 * without points is its kin. Error bands are earned: every point is predicted from fits that have not seen it, by how
 * far the prediction reaches, and the band is the quantile of those errors that its claim asks for.
 * The prior and its weights: empirical Bayes as in Efron and Morris, "Stein's estimation rule and its competitors",
 * JASA 1973; the quantile's small-sample correction: Vovk et al., "Algorithmic learning in a random world", 2005. */
#pragma once
#include "plan/fluid.h"

enum sy_reach {
    SY_REACH_FITTED,   /* the point was used */
    SY_REACH_BETWEEN,  /* same curve, between points that were used */
    SY_REACH_BEYOND,   /* same curve, outside of them */
    SY_REACH_WORKLOAD, /* same build and model, other lengths or sharding */
    SY_REACH_CHIP,     /* same build, precision and model on another chip of the vendor */
    SY_REACH_KIN,      /* whatever is nearest: another model or build */
    SY_REACH_ROOFLINE, /* no calibration */
    SY_REACH_COUNT
};
const char *sy_reach_name(enum sy_reach);

struct sy_calibration;
/* "predicted, same curve, +-4 %"; without points enough for a band, or without a calibration, it says that. */
void sy_reach_say(const struct sy_calibration *, enum sy_reach, char *out, size_t n);

enum { SY_BAND_CLAIM = 80 }; /* percent of predictions that a band is to hold */
struct sy_band {
    double width;   /* in the logarithm: predictions lie within a factor e^width */
    double covered; /* share of points that a band made without them held; cross-validated */
    double median, largest;
    int32_t n; /* points it was earned on; 0: none */
};
struct sy_group {
    char hw[32], framework[40], precision[24], date[24], spec[24], model[48], vendor[24];
    struct sy_consts consts;
    double peak[SY_CONST_COUNT]; /* what shares are of: bytes/s and flop/s of a chip; 1 elsewhere */
    bool unit_peaks;             /* comparable with its own chip only */
    double gap_ms;               /* what Systole's server kept between two tokens at most (rerun.h); 0: not known */
    int32_t n_point;
};
struct sy_calibration {
    struct sy_arena arena;
    struct sy_group *group;
    size_t n_group;
    struct sy_band band[SY_REACH_COUNT];
    struct sy_points points; /* those it was fitted on */
};
void sy_calibration_release(struct sy_calibration *); /* a zeroed struct is fine */
/* Takes the points. */
SY_CHECK sy_status sy_calibrate_take(const struct sy_env *, struct sy_points *, struct sy_calibration *out,
                                     struct sy_err *);
/* Constants for a point, the points used for them, and how far they reach. */
struct sy_consts sy_calibration_for(const struct sy_calibration *, const struct sy_measured *, enum sy_reach *reach,
                                    const struct sy_group **nearest);
/* The bound on the gap where a group's server runs on that chip; g NULL: 0. */
double sy_group_gap_ms(const struct sy_group *, const char *chip);
/* The group whose build a point is of; NULL: none. */
const struct sy_group *sy_calibration_group(const struct sy_calibration *, const struct sy_measured *);
/* As a JSON file: constants, bands, and the points both came from, which read as points again. */
void sy_calibration_put(const struct sy_calibration *, struct sy_buf *);
SY_CHECK sy_status sy_calibration_read(const struct sy_env *, const char *path, const char *text, size_t n,
                                       struct sy_calibration *out, struct sy_err *); /* path: for messages */
SY_CHECK sy_status sy_calibration_open(const struct sy_env *, const char *path, struct sy_calibration *out,
                                       struct sy_err *);
/* Points that a fit has not seen, by cross-validation: metric as sy_fluid; false: it could not be left out. */
struct sy_left_out {
    size_t point;
    enum sy_reach reach;
    double tput, tpot; /* predicted over measured, in the logarithm; NAN: not measured */
};
size_t sy_calibration_cross(const struct sy_calibration *, struct sy_left_out *out, size_t n_max);
