/* mosaic.c - kernels for TPUs by the compiler's schedule, beside the plain operations they stand for. */
#include <stdio.h>
#include <stdlib.h>

#include "app/aot/child.h"
#include "app/bench/bench.h"
#include "backend/pjrt/mosaic/measure.h"

struct one {
    const struct sy_env *env;
    const char *plugin;
    const struct sy_aot_target *target;
    struct sy_attend_shape shape;
};

static sy_status kernel_in_child(void *ctx, void *out, struct sy_err *err)
{
    const struct one *o = ctx;
    return sy_attend_cost(o->env, o->plugin, o->target, &o->shape, out, err);
}

static sy_status twin_in_child(void *ctx, void *out, struct sy_err *err)
{
    const struct one *o = ctx;
    return sy_attend_twin_cost(o->env, o->plugin, o->target, &o->shape, out, err);
}

/* Heads of a whole model with grouped queries, and what tensor parallelism leaves a device; keys fetched at once. */
static const struct {
    int32_t n_kv, n_group, block_len, fetch;
} cases[] = {{8, 4, 32, 256},  {8, 4, 32, 512},  {8, 4, 128, 1024},
             {2, 4, 32, 1024}, {1, 8, 32, 1024}, {1, 8, 128, 2048}};
enum { SEQUENCES = 16, KEYS = 4096, HEAD = 128 };

static void print_case(const struct one *o, const struct sy_attend_cost *c, const struct sy_twin_cost *t, FILE *table,
                       struct sy_jout *j)
{
    const struct sy_attend_shape *s = &o->shape;
    double kernel = c->all / o->target->clock_hz, twin = t->estimate > t->memory ? t->estimate : t->memory;
    fprintf(table, "%-6s %4d %6d %6d %6d %9.0f %9.0f %6.2f %10.1f %10.1f %10.1f  %s\n", o->target->name, s->n_kv,
            s->n_group, s->block_len, s->fetch, c->fetch, c->memory, c->fetch / c->memory, kernel * 1e6,
            t->estimate * 1e6, t->memory * 1e6, kernel < twin ? "kernel" : "plain");
    fflush(table);
    sy_jout_line(j);
    sy_jout_open(j, NULL, '{');
    sy_jout_text(j, "target", o->target->name);
    sy_jout_int(j, "kv_heads", s->n_kv);
    sy_jout_int(j, "group", s->n_group);
    sy_jout_int(j, "block", s->block_len);
    sy_jout_int(j, "fetch", s->fetch);
    sy_jout_num(j, "fetch_cycles", c->fetch);
    sy_jout_num(j, "memory_cycles", c->memory);
    sy_jout_num(j, "sequence_cycles", c->sequence);
    sy_jout_num(j, "kernel_estimated_s", kernel);
    sy_jout_num(j, "plain_estimated_s", t->estimate);
    sy_jout_num(j, "plain_memory_s", t->memory);
    sy_jout_close(j, '}');
}

static sy_status run_target(struct one *o, FILE *table, struct sy_jout *j, struct sy_err *err)
{
    sy_status st = SY_OK;
    for (size_t i = 0; i < SY_COUNT(cases) && !st; i++) {
        struct sy_attend_cost cost;
        struct sy_twin_cost twin;
        o->shape = (struct sy_attend_shape){SEQUENCES,          KEYS,          cases[i].n_kv, cases[i].n_group, HEAD,
                                            cases[i].block_len, cases[i].fetch};
        st = sy_child_run(kernel_in_child, o, &cost, sizeof cost, err);
        if (!st) st = sy_child_run(twin_in_child, o, &twin, sizeof twin, err);
        if (!st) print_case(o, &cost, &twin, table, j);
    }
    return st ? sy_while(err, st, "%s", o->target->name) : SY_OK;
}

static sy_status write_json(const struct sy_args *a, const struct sy_buf *list, struct sy_err *err)
{
    struct sy_buf b;
    sy_buf_init(&b, &a->app->env, 0);
    b.failed = list->failed;
    sy_buf_printf(&b, "{\"version\":\"%s\",\"kind\":\"compiler's estimate\",\"results\":[%s\n]}\n", SY_VERSION,
                  list->at);
    sy_status st = sy_report_write(&b, sy_arg_text(a, "json"), err);
    sy_buf_release(&b);
    return st;
}

sy_status sy_bench_mosaic(struct sy_args *a, struct sy_err *err)
{
    static const char *const all[] = {"v5e-1", "v6e-1", "v7-2"};
    const char *given = sy_arg_text(a, "plugin"), *only = sy_arg_text(a, "target");
    struct one o = {.env = &a->app->env, .plugin = given ? given : getenv("TPU_LIBRARY_PATH")};
    if (!o.plugin || !*o.plugin)
        return sy_fail(err, SY_EARG,
                       "bench mosaic: expected --plugin /path/of/libtpu.so or TPU_LIBRARY_PATH, found none");
    if (only && !sy_aot_target(only)) return sy_fail(err, SY_EARG, "--target '%.40s' is not known", only);
    FILE *table = sy_bench_table(a);
    struct sy_buf list;
    sy_buf_init(&list, o.env, 0);
    struct sy_jout j = {&list, false};
    fprintf(table,
            "attention of %d sequences of %d keys, heads of %d, bf16; a compiler's estimates, nothing is measured\n"
            "%-6s %4s %6s %6s %6s %9s %9s %6s %10s %10s %10s  %s\n",
            SEQUENCES, KEYS, HEAD, "target", "KV", "group", "block", "fetch", "cycles", "memory", "ratio",
            "kernel us", "plain us", "its bytes", "faster");
    sy_status st = SY_OK;
    for (size_t i = 0; i < SY_COUNT(all) && !st; i++) {
        if (only && i > 0) break;
        o.target = sy_aot_target(only ? only : all[i]);
        st = run_target(&o, table, &j, err);
    }
    if (!st && sy_arg_given(a, "json")) st = write_json(a, &list, err);
    sy_buf_release(&list);
    return st;
}
