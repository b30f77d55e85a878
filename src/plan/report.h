/* report.h - a sweep as something to put before people: one HTML file that needs nothing else, a chart as SVG, a
 * table as CSV. The HTML carries Chart.js (data/report/, MIT licence) and draws from the points in it; what is best
 * and what lies between points is worked out here. */
#pragma once
#include "base/buf.h"

struct sy_report_point { /* all text is borrowed */
    const char *series;  /* points of one name are joined, in order of their interactivity */
    const char *label;   /* how it is configured */
    const char *figures; /* "measured", "estimated", "simulated", and from what */
    double users, tok_s_chip, tok_s_user, ttft_s, e2e_s, usd_mtok, tok_s_mw; /* NAN: not known */
    bool kept;                                                               /* the promise */
};
struct sy_report {
    const char *title, *about; /* about: sentences, a line each */
    const char *promise;       /* what the cheapest were to keep; NULL: nothing */
    const struct sy_report_point *point;
    size_t n;
};
enum sy_chart {
    SY_CHART_COST_USER,
    SY_CHART_COST_E2E,
    SY_CHART_TPUT_USER,
    SY_CHART_DOLLAR_USER,
    SY_CHART_WATT_USER,
    SY_CHART_COUNT
};
/* Frontiers: of each series the points that no other of it beats in both axes; the rest are drawn pale. */
SY_CHECK sy_status sy_report_html(const struct sy_report *, struct sy_buf *, struct sy_err *);
void sy_report_svg(const struct sy_report *, enum sy_chart, struct sy_buf *);
void sy_report_csv(const struct sy_report *, struct sy_buf *);
const char *sy_chart_name(enum sy_chart);
/* The three as files: path, and beside it .csv and .svg (cost against interactivity; without costs, throughput). */
SY_CHECK sy_status sy_report_files(const struct sy_env *, const struct sy_report *, const char *path,
                                   struct sy_err *);
/* y at x on the frontier of points sorted by x, monotone between them (Fritsch and Carlson, "Monotone piecewise cubic
 * interpolation", SIAM J. Numer. Anal. 17, 1980); NAN outside of what was measured. */
double sy_monotone_at(const double *x, const double *y, size_t n, double at);
