#include "app/aot/weigh.h"

#include "app/aot/child.h"

struct side { /* of a comparison */
    const struct sy_weighing *w;
    bool around;
};

static sy_status attend_kernel(void *ctx, void *out, struct sy_err *err)
{
    const struct sy_weighing *w = ((const struct side *)ctx)->w;
    return sy_attend_cost(w->env, w->plugin, w->target, &w->shape, out, err);
}

static sy_status attend_twin(void *ctx, void *out, struct sy_err *err)
{
    const struct side *s = ctx;
    return sy_attend_twin_cost(s->w->env, s->w->plugin, s->w->target, &s->w->shape, s->around, out, err);
}

static sy_status experts_kernel(void *ctx, void *out, struct sy_err *err)
{
    const struct sy_weighing *w = ((const struct side *)ctx)->w;
    return sy_experts_cost(w->env, w->plugin, w->target, &w->experts, out, err);
}

static sy_status experts_twin(void *ctx, void *out, struct sy_err *err)
{
    const struct side *s = ctx;
    return sy_experts_twin_cost(s->w->env, s->w->plugin, s->w->target, &s->w->experts, s->around, out, err);
}

static sy_status delta_kernel(void *ctx, void *out, struct sy_err *err)
{
    const struct sy_weighing *w = ((const struct side *)ctx)->w;
    return sy_delta_cost(w->env, w->plugin, w->target, &w->delta, out, err);
}

static sy_status delta_twin(void *ctx, void *out, struct sy_err *err)
{
    const struct side *s = ctx;
    return sy_delta_twin_cost(s->w->env, s->w->plugin, s->w->target, &s->w->delta, s->around, out, err);
}

static sy_status weigh_twins(const struct sy_weighing *w, sy_status (*twin)(void *, void *, struct sy_err *),
                             struct sy_weighed *out, struct sy_err *err)
{
    struct sy_twin_cost cost[2]; /* the op without kernels, what stands around one */
    sy_status st = SY_OK;
    for (int i = 0; i < 2 && !st; i++) {
        struct side s = {w, i > 0};
        st = sy_child_run(twin, &s, &cost[i], sizeof cost[i], err);
    }
    if (st) return st;
    out->estimate = cost[0].estimate;
    out->memory = cost[0].memory;
    out->plain = out->estimate > out->memory ? out->estimate : out->memory;
    out->around = cost[1].estimate;
    return SY_OK;
}

sy_status sy_weigh_attend(const struct sy_weighing *w, bool plain, struct sy_attend_cost *cost,
                          struct sy_weighed *out, struct sy_err *err)
{
    struct side s = {w, false};
    *out = (struct sy_weighed){0};
    sy_status st = sy_child_run(attend_kernel, &s, cost, sizeof *cost, err);
    if (st) return st;
    out->kernel = cost->all / w->target->clock_hz;
    return plain ? weigh_twins(w, attend_twin, out, err) : SY_OK;
}

sy_status sy_weigh_experts(const struct sy_weighing *w, bool plain, struct sy_experts_cost *cost,
                           struct sy_weighed *out, struct sy_err *err)
{
    struct side s = {w, false};
    *out = (struct sy_weighed){0};
    sy_status st = sy_child_run(experts_kernel, &s, cost, sizeof *cost, err);
    if (st) return st;
    out->kernel = cost->all / w->target->clock_hz;
    return plain ? weigh_twins(w, experts_twin, out, err) : SY_OK;
}

sy_status sy_weigh_delta(const struct sy_weighing *w, bool plain, struct sy_delta_cost *cost, struct sy_weighed *out,
                         struct sy_err *err)
{
    struct side s = {w, false};
    *out = (struct sy_weighed){0};
    sy_status st = sy_child_run(delta_kernel, &s, cost, sizeof *cost, err);
    if (st) return st;
    out->kernel = cost->all / w->target->clock_hz;
    return plain ? weigh_twins(w, delta_twin, out, err) : SY_OK;
}
