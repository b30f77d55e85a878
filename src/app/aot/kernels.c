/* kernels.c - whether hand-written kernels pay, by the estimates of the target's compiler, and what they take. */
#include <stdio.h>

#include "app/aot/aot.h"
#include "app/aot/weigh.h"

static struct sy_weighing weighing_of(const struct aot_job *j)
{
    return (struct sy_weighing){.env = &j->a->app->env, .plugin = j->plugin, .target = j->target};
}

enum { AUTO, PLAIN, MOSAIC }; /* --kernels */

/* Why no kernel stands in any program of the job. */
static const char *none_at_all(const struct aot_job *j)
{
    int choice = sy_arg_choice(j->a, "kernels");
    return j->target->kind != SY_AOT_TPU ? "chips that are not TPUs"
           : choice == PLAIN             ? "--kernels plain"
           : j->store && choice == AUTO  ? "programs that are kept must be those that serving asks for, which uses "
                                           "kernels with --kernels mosaic alone"
                                         : NULL;
}

/* Seconds that a step's attention takes by kernels; with plain, also what stands around them, and in *plain what the
 * operations they stand for take. */
static sy_status costs(const struct aot_job *j, const struct sy_attend_use *u, double *kernel, double *plain,
                       struct sy_err *err)
{
    sy_status st = SY_OK;
    *kernel = 0;
    for (int32_t i = 0; i < u->n_kind && !st; i++) {
        struct sy_weighing w = weighing_of(j);
        struct sy_attend_cost cost;
        struct sy_weighed v;
        w.shape = u->shape[i];
        st = sy_weigh_attend(&w, plain, &cost, &v, err);
        if (st) continue;
        *kernel += u->n[i] * (v.kernel + v.around);
        if (plain) *plain += u->n[i] * v.plain;
    }
    return st;
}

static sy_status weigh(struct aot_job *j, unsigned kind, struct aot_weighed *w, struct sy_err *err)
{
    struct sy_graph *g = NULL;
    struct sy_shape s = {j->max.seq, j->max.seq, j->max.block, j->max.seq, j->max.apart};
    struct sy_aot_opt with = j->opt;
    if (kind == SY_KERNELS_PROMPT) s.tok = j->max.tok;
    sy_status st = aot_graph(j, s, &g, err);
    if (st) return st;
    with.kernels = kind;
    struct sy_attend_use u = sy_attend_use_of(g, &with);
    sy_graph_free(g);
    w->n_plain = u.n_plain;
    w->why = u.why;
    st = costs(j, &u, &w->kernel_s, &w->plain_s, err);
    if (!st) w->n_kernel = u.n_kernel;
    return st;
}

/* How many of a program's EXPERTS kernels take, which the lowering knows. */
static sy_status weigh_experts(struct aot_job *j, struct aot_weighed *w, struct sy_err *err)
{
    struct sy_weighing one = weighing_of(j);
    struct sy_graph *g = NULL;
    struct sy_aot_program p;
    struct sy_experts_cost cost;
    struct sy_weighed v;
    struct sy_aot_opt with = j->opt;
    sy_status st =
        aot_graph(j, (struct sy_shape){j->max.seq, j->max.seq, j->max.block, j->max.seq, j->max.apart}, &g, err);
    if (st) return st;
    with.kernels |= SY_KERNELS_EXPERTS;
    if (sy_experts_shape_of(g, &one.experts) > 0) {
        st = sy_aot_lower(&j->a->app->env, g, j->ckpt, &with, &p, err);
        if (!st) {
            w->n_plain = p.experts.n_plain;
            w->why = p.experts.why;
            w->n_kernel = p.experts.n_kernel;
            one.experts.weight = p.experts.weight;
            sy_aot_program_release(&p);
        }
    }
    sy_graph_free(g);
    if (st || w->n_kernel == 0) return st;
    st = sy_weigh_experts(&one, true, &cost, &v, err);
    if (st) return st;
    w->kernel_s = w->n_kernel * (v.kernel + v.around);
    w->plain_s = w->n_kernel * v.plain;
    return SY_OK;
}

static sy_status weigh_delta(struct aot_job *j, bool prompt, struct aot_weighed *w, struct sy_err *err)
{
    struct sy_weighing one = weighing_of(j);
    struct sy_graph *g = NULL;
    struct sy_delta_cost cost;
    struct sy_weighed v;
    struct sy_shape s = {j->max.seq, j->max.seq, j->max.block, j->max.seq, j->max.apart};
    if (prompt) s.tok = j->max.tok;
    sy_status st = aot_graph(j, s, &g, err);
    if (st) return st;
    struct sy_delta_use u = sy_delta_use_of(g, &j->opt);
    sy_graph_free(g);
    w->n_plain = u.n_plain;
    w->why = u.why;
    one.delta = u.shape;
    if (u.n_kernel > 0) st = sy_weigh_delta(&one, true, &cost, &v, err);
    if (st || u.n_kernel == 0) return st;
    w->n_kernel = u.n_kernel;
    w->kernel_s = u.n_kernel * (v.kernel + v.around);
    w->plain_s = u.n_kernel * v.plain;
    return SY_OK;
}

static sy_status weigh_one(struct aot_job *j, int i, struct sy_err *err)
{
    struct aot_weighed *w = &j->weighed[i];
    return i < AOT_STEPS      ? weigh(j, 1U << i, w, err)
           : i == AOT_EXPERTS ? weigh_experts(j, w, err)
                              : weigh_delta(j, i == AOT_CHUNK, w, err);
}

/* Another libtpu may write no schedule that is known: then plain operations stay, and the reason is told. Kernels for
 * prompts alone are not used: they cost decode steps the layout of keys that plain operations read best. */
sy_status aot_kernels_choose(struct aot_job *j, struct sy_err *err)
{
    const char *none = none_at_all(j);
    bool all = sy_arg_choice(j->a, "kernels") == MOSAIC;
    if (all && none) return sy_fail(err, SY_EARG, "--kernels mosaic: not with %s; leave it out", none);
    for (int i = 0; i < AOT_KERNELS; i++) {
        struct aot_weighed *w = &j->weighed[i];
        w->done = true;
        w->why = none;
        if (none || (i == 1 && (!j->opt.kernels || j->max.tok <= j->max.seq))) continue;
        if ((i == AOT_CHUNK && j->max.tok <= j->max.seq) || weigh_one(j, i, &w->err)) continue;
        if (w->n_kernel > 0 && w->kernel_s < w->plain_s) j->opt.kernels |= 1U << i;
    }
    if (all) j->opt.kernels = SY_KERNELS_ALL;
    return SY_OK;
}

/* Kernels have no cycles in the compiler's estimate of a program: those of their own schedule are added. */
sy_status aot_kernels_add(const struct aot_job *j, const struct sy_graph *g, const struct sy_aot_program *p,
                          struct sy_aot_result *r, struct sy_err *err)
{
    struct sy_shape s = sy_graph_shape(g);
    struct sy_weighing one = weighing_of(j);
    struct sy_experts_cost cost;
    struct sy_weighed v;
    sy_status st = SY_OK;
    if (j->opt.kernels & (s.tok == s.seq ? SY_KERNELS_DECODE : SY_KERNELS_PROMPT)) {
        struct sy_attend_use u = sy_attend_use_of(g, &j->opt);
        double seconds;
        st = costs(j, &u, &seconds, NULL, err);
        if (!st) r->cycles += seconds * j->target->clock_hz;
    }
    if (!st && p->experts.n_kernel > 0 && sy_experts_shape_of(g, &one.experts) > 0) {
        one.experts.weight = p->experts.weight;
        st = sy_weigh_experts(&one, false, &cost, &v, err);
        if (!st) r->cycles += p->experts.n_kernel * cost.all;
    }
    if (!st && j->opt.kernels & (s.tok == s.seq ? SY_KERNELS_DELTA : SY_KERNELS_CHUNK)) {
        struct sy_delta_use u = sy_delta_use_of(g, &j->opt);
        struct sy_delta_cost delta;
        one.delta = u.shape;
        if (u.n_kernel > 0) st = sy_weigh_delta(&one, false, &delta, &v, err);
        if (!st && u.n_kernel > 0) r->cycles += u.n_kernel * delta.all;
    }
    return st ? sy_while(err, st, "kernels") : SY_OK;
}

/* One line for layers that a kernel takes, one for others. */
void aot_kernels_print(const struct aot_job *j, struct sy_buf *out)
{
    static const char *const kind[AOT_KERNELS] = {"attention of decode steps", "attention of steps with prompts",
                                                  "experts of decode steps", "gated delta rule of decode steps",
                                                  "gated delta rule of steps with prompts"};
    if (j->target->kind != SY_AOT_TPU) return;
    for (int i = 0; i < AOT_KERNELS; i++) {
        const struct aot_weighed *w = &j->weighed[i];
        if (w->err.code)
            sy_buf_printf(out, "%s: plain operations; the kernel was not weighed: %s\n", kind[i], w->err.msg);
        if (w->n_kernel)
            sy_buf_printf(out,
                          "%s, %d layers: %s; of the largest step the kernel takes %.3f ms, plain operations %.3f ms "
                          "(compiler's estimates)\n",
                          kind[i], w->n_kernel, j->opt.kernels & 1U << i ? "the kernel" : "plain operations",
                          w->kernel_s * 1e3, w->plain_s * 1e3);
        if (w->n_plain)
            sy_buf_printf(out, "%s, %d layers: plain operations; no kernel has %s\n", kind[i], w->n_plain, w->why);
        else if (w->why && i == 0) sy_buf_printf(out, "plain operations in place of kernels: %s\n", w->why);
    }
}
