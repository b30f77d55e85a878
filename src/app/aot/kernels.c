/* kernels.c - whether hand-written kernels pay, by the estimates of the target's compiler, and what they take. */
#include <stdio.h>

#include "app/aot/aot.h"
#include "app/aot/child.h"
#include "backend/pjrt/mosaic/measure.h"

struct weighed {
    const struct aot_job *j;
    struct sy_attend_shape shape;
};

static sy_status kernel_in_child(void *ctx, void *out, struct sy_err *err)
{
    const struct weighed *w = ctx;
    return sy_attend_cost(&w->j->a->app->env, w->j->plugin, w->j->target, &w->shape, out, err);
}

static sy_status plain_in_child(void *ctx, void *out, struct sy_err *err)
{
    const struct weighed *w = ctx;
    return sy_attend_twin_cost(&w->j->a->app->env, w->j->plugin, w->j->target, &w->shape, out, err);
}

/* Why no kernel stands in any program of the job. */
static const char *none_at_all(const struct aot_job *j)
{
    const struct sy_shard *s = &j->opt.shard;
    return j->target->kind != SY_AOT_TPU ? "kernels are for TPUs"
           : j->store                    ? "programs that are kept must be those that serving asks for, which uses "
                                           "no kernels: none ran on a TPU yet"
           : s->n_dp > 1                 ? "groups with sequences of their own"
           : s->n_stage > 1              ? "stages of layers"
           : s->n_ffn > 0                ? "devices for attention alone"
                                         : NULL;
}

/* What a step's attention takes by kernels, cycles, and (plain not NULL) by the operations they stand for, seconds.
 */
static sy_status costs(const struct aot_job *j, const struct sy_attend_use *u, double *kernel, double *plain,
                       struct sy_err *err)
{
    sy_status st = SY_OK;
    *kernel = 0;
    for (int32_t i = 0; i < u->n_kind && !st; i++) {
        struct weighed w = {j, u->shape[i]};
        struct sy_attend_cost cost;
        struct sy_twin_cost twin;
        st = sy_child_run(kernel_in_child, &w, &cost, sizeof cost, err);
        if (!st) *kernel += u->n[i] * cost.all;
        if (st || !plain) continue;
        st = sy_child_run(plain_in_child, &w, &twin, sizeof twin, err);
        if (!st) *plain += u->n[i] * (twin.estimate > twin.memory ? twin.estimate : twin.memory);
    }
    return st;
}

static sy_status weigh(struct aot_job *j, struct sy_err *err)
{
    struct sy_graph *g = NULL;
    struct sy_shape s = {j->max.seq, j->max.seq, j->max.block, j->max.seq};
    struct sy_aot_opt with = j->opt;
    sy_status st = aot_graph(j, s, &g, err);
    if (st) return st;
    with.kernels = true;
    struct sy_attend_use u = sy_attend_use_of(g, &with);
    sy_graph_free(g);
    j->n_plain = u.n_plain;
    j->why_plain = u.why;
    double cycles = 0, plain = 0;
    st = costs(j, &u, &cycles, &plain, err);
    if (st) return st;
    j->kernel_s = cycles / j->target->clock_hz;
    j->plain_s = plain;
    j->n_kernel = u.n_kernel;
    return SY_OK;
}

/* Another libtpu may write no schedule that is known: then plain operations stay, and the reason is told. */
void aot_kernels_choose(struct aot_job *j)
{
    j->weighed = true;
    j->why_plain = none_at_all(j);
    if (j->why_plain) return;
    if (!weigh(j, &j->not_weighed)) j->opt.kernels = j->n_kernel > 0 && j->kernel_s < j->plain_s;
}

/* Kernels have no cycles in the compiler's estimate of a program: those of their own schedule are added. */
sy_status aot_kernels_add(const struct aot_job *j, const struct sy_graph *g, struct sy_aot_result *r,
                          struct sy_err *err)
{
    struct sy_shape s = sy_graph_shape(g);
    if (s.tok != s.seq || !j->opt.kernels) return SY_OK;
    struct sy_attend_use u = sy_attend_use_of(g, &j->opt);
    double cycles;
    sy_status st = costs(j, &u, &cycles, NULL, err);
    if (!st) r->cycles += cycles;
    return st ? sy_while(err, st, "kernels") : SY_OK;
}

/* One line for layers that a kernel takes, one for others. */
void aot_kernels_print(const struct aot_job *j, struct sy_buf *out)
{
    static const char what[] = "attention of decode steps";
    if (j->target->kind != SY_AOT_TPU) return;
    if (j->not_weighed.code)
        sy_buf_printf(out, "%s: plain operations; the kernel was not weighed: %s\n", what, j->not_weighed.msg);
    if (j->n_kernel)
        sy_buf_printf(out,
                      "%s, %d layers: %s; of %d sequences with full contexts the kernel takes %.3f ms, plain "
                      "operations %.3f ms (compiler's estimates)\n",
                      what, j->n_kernel, j->opt.kernels ? "the kernel" : "plain operations", j->max.seq,
                      j->kernel_s * 1e3, j->plain_s * 1e3);
    if (j->n_plain)
        sy_buf_printf(out, "%s, %d layers: plain operations; no kernel has %s\n", what, j->n_plain, j->why_plain);
    else if (j->why_plain) sy_buf_printf(out, "%s: plain operations: %s\n", what, j->why_plain);
}
