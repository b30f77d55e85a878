/* ask.h - a question to the planner, read from the flags, and what is made of its answer. */
#pragma once
#include "app/plan/plan.h"
#include "plan/search.h"

struct sy_asked { /* zeroed at first; release in every case */
    struct sy_args *a;
    struct sy_plan_opt o;
    struct sy_card card;
    struct sy_prices prices;
    struct sy_calibration calibration;
    struct sy_plan_found found;
    struct sy_workload trace;
    char *trace_text;
};
SY_CHECK sy_status sy_asked_read(struct sy_asked *, struct sy_err *); /* .a is set */
void sy_asked_release(struct sy_asked *);

void sy_sharding_name(const struct sy_sharding *, char *s, size_t n); /* "tp2 dp4 ep" */
/* The report that --report names, its CSV and its SVG beside it. */
SY_CHECK sy_status sy_plan_chart(const struct sy_asked *, struct sy_err *);
