/* plan.h - the modes of `systole plan`. */
#pragma once
#include "app/app.h"
#include "plan/calibrate.h"

sy_status sy_plan_search(struct sy_args *, struct sy_err *);
sy_status sy_plan_calibrate(struct sy_args *, struct sy_err *);
sy_status sy_plan_check(struct sy_args *, struct sy_err *);
sy_status sy_plan_published(struct sy_args *, struct sy_err *);
sy_status sy_plan_study(struct sy_args *, struct sy_err *);
sy_status sy_plan_list(struct sy_args *, struct sy_err *);
extern const struct sy_flag sy_flags_plan[];

/* What --calibration names; or fitted to what --from names, or else to the program's own measurements. */
SY_CHECK sy_status sy_plan_calibration(struct sy_args *, struct sy_calibration *out, struct sy_err *);
/* Of --model-card or -m. precision: --precision, or what the model's own weights are stored in, or fp8. */
SY_CHECK sy_status sy_plan_card(struct sy_args *, struct sy_card *, const char **precision, struct sy_err *);
