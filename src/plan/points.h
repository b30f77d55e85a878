/* points.h - published or own serving measurements, one JSON object each (data/measurements/, or a file of the
 * user's):
 *
 *   {"points":[{"id":..,"source":..,"date":..,"hw":chip,"chips":n,"model":card,"precision":..,"framework":..,
 *     "spec_decoding":"none","disagg":false,"isl":n,"osl":n,"random_range_ratio":r,"conc":n,
 *     "parallel":{"tp":n,"ep":n,"dp_attn":n},"metrics":{"tput_per_gpu":..,"median_tpot_ms":..,...}},...]}
 *
 * Throughputs are per physical chip. "load" may say "decode" (a batch that only generates, at a context of isl) or
 * "prefill" (prompts alone). A point that lacks what a simulation needs stays in the list and says why. */
#pragma once
#include "backend/sim/timer.h"
#include "base/arena.h"
#include "base/json.h"
#include "bench/report.h"
#include "plan/card.h"

enum sy_metric {
    SY_METRIC_TPUT, /* tokens/s of both kinds per chip */
    SY_METRIC_OUT,  /* of answers only */
    SY_METRIC_TPOT, /* seconds; the median where there is one, else the mean */
    SY_METRIC_TTFT,
    SY_METRIC_E2E,
    SY_METRIC_COUNT
};
const char *sy_metric_name(enum sy_metric);

enum sy_load_kind {
    SY_LOAD_CLOSED,  /* `conc` users, each asking again when it was answered */
    SY_LOAD_DECODE,  /* a batch that only generates, at a given context */
    SY_LOAD_AT_TPOT, /* the closed loop whose TPOT, or E2E, is `target`: read off a published frontier */
    SY_LOAD_AT_E2E,
    SY_LOAD_PREFILL, /* `conc` prompts at once and nothing else: throughput is of prompt tokens */
};
struct sy_measured {
    const char *id, *hw, *model, *precision, *framework, *date, *spec, *source, *parallel_name;
    int32_t chips, tp, dp, ep, isl, osl, conc, chunk;
    double range, target;
    enum sy_load_kind kind;
    double metric[SY_METRIC_COUNT]; /* 0: not published */
    bool mean[SY_METRIC_COUNT];     /* it is a mean, not a median */
    bool disagg;
    char why_not[96];      /* why it cannot be simulated; "": it can */
    int32_t group;         /* index of its constants; -1: none */
    struct sy_timer timer; /* with roofline constants */
    double accepted;
    int32_t drafted;
};
struct sy_points {
    struct sy_arena arena;
    struct sy_json **root;
    size_t n_root, n;
    struct sy_measured *at;
};
struct sy_machine { /* what a benchmark's result does not say of itself */
    const char *hw, *precision, *framework;
    const struct sy_card *card;
    int32_t chips, tp, chunk; /* chunk: tokens of a step, 0: the usual */
};
/* All files of the program's own data; or a file of points, or (machine not NULL) of rows of `bench serve --json`,
 * `bench offline --json` or `compile --json`, whose steps are a compiler's estimates. */
SY_CHECK sy_status sy_points_own(const struct sy_env *, struct sy_points *out, struct sy_err *);
SY_CHECK sy_status sy_points_file(const struct sy_env *, const char *path, const struct sy_machine *,
                                  struct sy_points *, struct sy_err *); /* appends, to a zeroed struct at first */
void sy_point_put(struct sy_jout *, const struct sy_measured *);        /* as it would be read again */
SY_CHECK sy_status sy_points_text(const struct sy_env *, const char *where, const char *text, size_t n,
                                  const struct sy_machine *, struct sy_points *, struct sy_err *); /* appends */
void sy_points_release(struct sy_points *); /* a zeroed struct is fine */
