/* serving.h - how the results of a load are shown. */
#pragma once
#include "app/bench/bench.h"
#include "bench/load.h"

SY_CHECK sy_status sy_serving_check(const struct sy_args *, struct sy_err *); /* --field */
void sy_serving_print(FILE *, const struct sy_load_seen *);
struct sy_point sy_serving_point(const struct sy_load_seen *);
/* InferenceX's field names, an object a point; --field adds to each. */
SY_CHECK sy_status sy_serving_json(const struct sy_args *, const struct sy_load_opt *, const struct sy_load_seen *,
                                   const struct sy_point *, size_t n, struct sy_err *);
