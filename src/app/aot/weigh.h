/* weigh.h - a kernel beside the plain operations in whose place it stands, by the schedule and the estimates of the
 * target's compiler (measure.h), each in a child (child.h). Nothing here is measured on a chip. */
#pragma once
#include "backend/pjrt/mosaic/measure.h"

struct sy_weighing {
    const struct sy_env *env;
    const char *plugin;
    const struct sy_aot_target *target;
    struct sy_attend_shape shape; /* which of the shapes counts the function says */
    struct sy_experts_shape experts;
    struct sy_delta_shape delta;
};
struct sy_weighed {        /* seconds; without `plain` of the kernel alone, the others 0 */
    double kernel, around; /* by its own schedule; what stands around it */
    double plain, estimate,
        memory; /* the operations without it: the larger of the compiler's estimate and their bytes */
};
SY_CHECK sy_status sy_weigh_attend(const struct sy_weighing *, bool plain, struct sy_attend_cost *,
                                   struct sy_weighed *, struct sy_err *);
SY_CHECK sy_status sy_weigh_experts(const struct sy_weighing *, bool plain, struct sy_experts_cost *,
                                    struct sy_weighed *, struct sy_err *);
SY_CHECK sy_status sy_weigh_delta(const struct sy_weighing *, bool plain, struct sy_delta_cost *, struct sy_weighed *,
                                  struct sy_err *);
