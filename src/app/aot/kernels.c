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

/* Stored programs must be those that serving asks for, and serving uses no kernels: none ran on a TPU yet. */
static bool may(const struct aot_job *j)
{
    const struct sy_shard *s = &j->opt.shard;
    return j->target->kind == SY_AOT_TPU && !j->store && s->n_dp <= 1 && s->n_stage <= 1 && s->n_ffn == 0;
}

static sy_status weigh(struct aot_job *j, struct sy_err *err)
{
    struct weighed w = {.j = j};
    struct sy_graph *g = NULL;
    struct sy_attend_cost cost;
    struct sy_twin_cost plain;
    struct sy_shape s = {j->max.seq, j->max.seq, j->max.block, j->max.seq};
    struct sy_aot_opt with = j->opt;
    sy_status st = aot_graph(j, s, &g, err);
    with.kernels = true;
    int32_t n = st ? 0 : sy_attend_shape_of(g, &with, &w.shape);
    sy_graph_free(g);
    if (n == 0) return st;
    st = sy_child_run(kernel_in_child, &w, &cost, sizeof cost, err);
    if (!st) st = sy_child_run(plain_in_child, &w, &plain, sizeof plain, err);
    if (st) return st;
    j->kernel_s = n * cost.all / j->target->clock_hz;
    j->plain_s = n * (plain.estimate > plain.memory ? plain.estimate : plain.memory);
    j->n_kernel = n;
    return SY_OK;
}

/* Another libtpu may write no schedule that is known: then plain operations stay, and the reason is told. */
void aot_kernels_choose(struct aot_job *j)
{
    j->weighed = true;
    if (may(j) && !weigh(j, &j->not_weighed)) j->opt.kernels = j->n_kernel > 0 && j->kernel_s < j->plain_s;
}

/* Kernels have no cycles in the compiler's estimate of a program: those of their own schedule are added. */
sy_status aot_kernels_add(const struct aot_job *j, const struct sy_graph *g, struct sy_aot_result *r,
                          struct sy_err *err)
{
    struct weighed w = {.j = j};
    struct sy_attend_cost cost;
    struct sy_shape s = sy_graph_shape(g);
    int32_t n = s.tok == s.seq ? sy_attend_shape_of(g, &j->opt, &w.shape) : 0;
    if (n == 0) return SY_OK;
    sy_status st = sy_child_run(kernel_in_child, &w, &cost, sizeof cost, err);
    if (!st) r->cycles += n * cost.all;
    return st ? sy_while(err, st, "kernels") : SY_OK;
}

void aot_kernels_print(const struct aot_job *j, struct sy_buf *out)
{
    if (j->not_weighed.code)
        sy_buf_printf(out, "attention of decode steps: plain operations; the kernel was not weighed: %s\n",
                      j->not_weighed.msg);
    if (j->n_kernel == 0) return;
    sy_buf_printf(out,
                  "attention of decode steps: %s; of %d sequences with full contexts the kernel takes %.3f ms, plain "
                  "operations %.3f ms (compiler's estimates)\n",
                  j->opt.kernels ? "the kernel" : "plain operations", j->max.seq, j->kernel_s * 1e3,
                  j->plain_s * 1e3);
}
