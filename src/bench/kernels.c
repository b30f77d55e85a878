#include "bench/kernels_int.h"

#include <string.h>

#include "bench/stats.h"

enum { SAMPLES = 512, FOOTPRINT = 256 << 20 };

double bench_time(const struct bench *b, int64_t n_item, void (*fn)(void *, int64_t, int32_t), void *ctx,
                  int64_t *turn)
{
    double v[SAMPLES], sum = 0;
    size_t n = 0;
    *turn = 0;
    do {
        uint64_t t = sy_now_ns(b->env);
        sy_pool_run(b->pool, n_item, fn, ctx);
        v[n] = (double)(sy_now_ns(b->env) - t) / 1e9;
        sum += v[n++];
        ++*turn;
    } while (n < SAMPLES && (n < 2 || sum < b->o->seconds) && sum < 1);
    /* The first call found caches and branch predictors cold. */
    return n > 2 ? sy_median(v + 1, n - 1) : v[n - 1];
}

void bench_tell(const struct bench *b, struct sy_kernel_result *r, double ops_peak, double bytes_peak)
{
    double by_ops = ops_peak > 0 ? r->ops / ops_peak : 0, by_bytes = bytes_peak > 0 ? r->bytes / bytes_peak : 0;
    if (r->seconds > 0) r->share = (by_ops > by_bytes ? by_ops : by_bytes) / r->seconds;
    b->o->on_result(b->o->ctx, r);
}

bool bench_wants(const struct bench *b, const char *shape) { return !b->o->shape || strstr(shape, b->o->shape); }

sy_status bench_next(struct bench *b, struct sy_err *err)
{
    const struct sy_watch *w = &b->o->watch;
    b->n_done++;
    if (w->progress) w->progress(w->ctx, (double)b->n_done / b->n_all);
    return w->stop && w->stop(w->ctx) ? sy_fail(err, SY_EIO, "the measurement was stopped") : SY_OK;
}

static double larger(double a, double b) { return a > b ? a : b; }

static sy_status measure_peaks(struct bench *b, struct sy_err *err)
{
    const struct sy_kernels_opt *o = b->o;
    const char *name[LEVELS];
    b->n_level = sy_isa_levels(name, LEVELS);
    bool found = false;
    for (int i = 0; i < b->n_level; i++) {
        struct level *l = &b->level[i];
        l->name = name[i];
        sy_status st = sy_kernels_pick(name[i], &l->k, err);
        if (st) return st;
        sy_peaks_compute(b->pool, &l->k, &l->peak);
        b->machine.f32 = larger(b->machine.f32, l->peak.f32);
        b->machine.bf16 = larger(b->machine.bf16, l->peak.bf16);
        b->machine.int8 = larger(b->machine.int8, l->peak.int8);
        found |= o->isa && !strcmp(o->isa, name[i]);
        if (o->on_peaks && (!o->isa || !strcmp(o->isa, name[i]))) o->on_peaks(o->ctx, l->name, &l->peak);
    }
    if (o->isa && !found) {
        struct sy_kernels none;
        sy_status st = sy_kernels_pick(o->isa, &none, err); /* says what there is */
        return st ? st : sy_fail(err, SY_EARG, "instruction set '%s' is an extension of another level", o->isa);
    }
    sy_status st = sy_peaks_read(b->pool, &b->level[b->n_level - 1].k, &b->machine, err);
    if (!st && o->on_peaks) o->on_peaks(o->ctx, NULL, &b->machine);
    return st;
}

static bool wanted(const struct bench *b, const char *family)
{
    return !b->o->family || !strcmp(b->o->family, family);
}

/* Levels that are not asked for were needed for the machine's peaks only. */
static void keep_wanted(struct bench *b)
{
    int n = 0;
    for (int i = 0; i < b->n_level; i++)
        if (!b->o->isa || !strcmp(b->o->isa, b->level[i].name)) b->level[n++] = b->level[i];
    b->n_level = n;
}

sy_status sy_kernels_measure(const struct sy_env *env, const struct sy_kernels_opt *o, struct sy_err *err)
{
    struct bench *b = sy_new(env, sizeof *b);
    if (!b) return sy_fail(err, SY_ENOMEM, "no memory for the benchmark");
    b->env = env;
    b->o = o;
    b->footprint = o->footprint ? o->footprint : FOOTPRINT;
    b->n_all = (wanted(b, "gemm") ? GEMM_GROUPS : 0) + (wanted(b, "attend") ? ATTEND_GROUPS : 0) +
               (wanted(b, "vec") ? VEC_GROUPS : 0);
    sy_status st = sy_pool_new(env, o->n_thread, &b->pool, err);
    if (!st) st = measure_peaks(b, err);
    keep_wanted(b);
    if (!st && wanted(b, "gemm")) st = bench_gemm(b, err);
    if (!st && wanted(b, "attend")) st = bench_attend(b, err);
    if (!st && wanted(b, "vec")) st = bench_vec(b, err);
    sy_pool_free(b->pool);
    sy_delete(env, b);
    return st;
}
