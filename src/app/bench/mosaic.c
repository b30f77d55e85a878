/* mosaic.c - kernels for TPUs by the compiler's schedule, beside the plain operations they stand for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/aot/weigh.h"
#include "app/bench/bench.h"

/* Heads of a whole model with grouped queries, and what tensor parallelism leaves a device; keys fetched at once;
 * decode steps of several sequences, of a bf16 cache and one of bytes, then a prompt. */
static const struct sy_attend_shape cases[] = {
#define DECODE(kv, group, block, at_once, bytes)                                                                     \
    .n_seq = 16, .n_new = 1, .n_keys = 4096, .n_kv = (kv), .n_group = (group), .d = 128, .block_len = (block),       \
    .tile = 1, .fetch = (at_once), .elem_bytes = (bytes)
#define PROMPT(kv, group, block, queries, at_once)                                                                   \
    .n_seq = 1, .n_new = 1024, .n_keys = 1024, .n_kv = (kv), .n_group = (group), .d = 128, .block_len = (block),     \
    .tile = (queries), .fetch = (at_once), .elem_bytes = 2
    {DECODE(8, 4, 32, 256, 2)},   {DECODE(8, 4, 32, 512, 2)},  {DECODE(8, 4, 32, 1024, 2)},
    {DECODE(8, 4, 128, 1024, 2)}, {DECODE(2, 4, 32, 1024, 2)}, {DECODE(2, 4, 32, 4096, 2)},
    {DECODE(1, 8, 32, 1024, 2)},  {DECODE(1, 8, 32, 4096, 2)}, {DECODE(8, 4, 32, 1024, 1)},
    {DECODE(1, 8, 32, 4096, 1)},  {PROMPT(8, 4, 32, 32, 512)}, {PROMPT(8, 4, 32, 64, 256)},
    {PROMPT(1, 8, 32, 16, 512)},  {PROMPT(1, 8, 32, 32, 512)},
#undef DECODE
#undef PROMPT
};

/* What stands for a kernel is the same whatever that takes at once. */
static bool same_plain(const struct sy_attend_shape *a, const struct sy_attend_shape *b)
{
    struct sy_attend_shape like = *a;
    like.tile = b->tile;
    like.fetch = b->fetch;
    return memcmp(&like, b, sizeof like) == 0;
}

/* Both tables' rows begin with the target and end with the times. */
static void begin_row(const struct sy_weighing *o, FILE *table, struct sy_jout *j)
{
    fprintf(table, "%-6s", o->target->name);
    sy_jout_line(j);
    sy_jout_open(j, NULL, '{');
    sy_jout_text(j, "target", o->target->name);
}

static void end_row(const struct sy_weighed *v, FILE *table, struct sy_jout *j)
{
    fprintf(table, " %10.1f %8.1f %10.1f %10.1f  %s\n", v->kernel * 1e6, v->around * 1e6, v->estimate * 1e6,
            v->memory * 1e6, v->kernel + v->around < v->plain ? "kernel" : "plain");
    fflush(table);
    sy_jout_num(j, "kernel_estimated_s", v->kernel);
    sy_jout_num(j, "around_estimated_s", v->around);
    sy_jout_num(j, "plain_estimated_s", v->estimate);
    sy_jout_num(j, "plain_memory_s", v->memory);
    sy_jout_close(j, '}');
}

static void print_case(const struct sy_weighing *o, const struct sy_attend_cost *c, const struct sy_weighed *v,
                       FILE *table, struct sy_jout *j)
{
    const struct sy_attend_shape *s = &o->shape;
    begin_row(o, table, j);
    fprintf(table, " %4dx%-4d %5d %5s %3d %5d %5d %5d %5d %9.0f %9.0f %6.2f", s->n_seq, s->n_new, s->n_keys,
            s->elem_bytes == 1 ? "q8_0" : "bf16", s->n_kv, s->n_group, s->block_len, s->tile, s->fetch, c->fetch,
            c->memory, c->fetch / c->memory);
    sy_jout_int(j, "sequences", s->n_seq);
    sy_jout_int(j, "tokens", s->n_new);
    sy_jout_int(j, "keys", s->n_keys);
    sy_jout_int(j, "kv_heads", s->n_kv);
    sy_jout_int(j, "group", s->n_group);
    sy_jout_int(j, "block", s->block_len);
    sy_jout_int(j, "queries_at_once", s->tile);
    sy_jout_int(j, "fetch", s->fetch);
    sy_jout_text(j, "cache", s->elem_bytes == 1 ? "q8_0" : "bf16");
    sy_jout_num(j, "fetch_cycles", c->fetch);
    sy_jout_num(j, "memory_cycles", c->memory);
    sy_jout_num(j, "tile_cycles", c->tile);
    end_row(v, table, j);
}

static sy_status run_target(struct sy_weighing *o, FILE *table, struct sy_jout *j, struct sy_err *err)
{
    sy_status st = SY_OK;
    struct sy_weighed v = {0};
    for (size_t i = 0; i < SY_COUNT(cases) && !st; i++) {
        struct sy_attend_cost cost;
        bool again = i > 0 && same_plain(&cases[i], &cases[i - 1]);
        struct sy_weighed last = v;
        o->shape = cases[i];
        st = sy_weigh_attend(o, !again, &cost, &v, err);
        if (again) {
            last.kernel = v.kernel;
            v = last;
        }
        if (!st) print_case(o, &cost, &v, table, j);
    }
    return st ? sy_while(err, st, "%s", o->target->name) : SY_OK;
}

/* Experts of Qwen3-30B-A3B: all on a device, and an eighth of them, which rows of eight devices choose; and an eighth
 * of Qwen3.5-397B-A17B's. */
static const struct {
    int32_t own, shares, used, inner, width, rows;
    struct sy_experts_weight weight;
} experts_cases[] = {
    {128, 0, 8, 768, 2048, 4, {SY_EXPERTS_BF16, 0}},
    {128, 0, 8, 768, 2048, 64, {SY_EXPERTS_BF16, 0}},
    {128, 0, 8, 768, 2048, 256, {SY_EXPERTS_BF16, 0}},
    {16, 8, 8, 768, 2048, 512, {SY_EXPERTS_BF16, 0}},
    {64, 8, 10, 1024, 4096, 32, {SY_EXPERTS_BF16, 0}},
    {64, 8, 10, 1024, 4096, 512, {SY_EXPERTS_BF16, 0}},
    {128, 0, 8, 768, 2048, 4, {SY_EXPERTS_FP8, 128}},
    {16, 8, 8, 768, 2048, 512, {SY_EXPERTS_FP8, 128}},
    {64, 8, 10, 1024, 4096, 512, {SY_EXPERTS_FP8, 128}},
    {16, 8, 8, 768, 2048, 512, {SY_EXPERTS_FP8, SY_EXPERTS_ROW}},
    {16, 8, 8, 768, 2048, 512, {SY_EXPERTS_INT8, 128}},
    {16, 8, 8, 768, 2048, 512, {SY_EXPERTS_INT8, SY_EXPERTS_ROW}},
};

/* How the experts are stored, with the columns to a scale. */
static void name_weight(struct sy_experts_weight w, char *text, size_t n)
{
    static const char *const format[] = {
        [SY_EXPERTS_BF16] = "bf16", [SY_EXPERTS_INT8] = "int8", [SY_EXPERTS_FP8] = "fp8"};
    if (w.group == 0) snprintf(text, n, "%s", format[w.format]);
    else if (w.group == SY_EXPERTS_ROW) snprintf(text, n, "%s row", format[w.format]);
    else snprintf(text, n, "%s %d", format[w.format], w.group);
}

/* A row up to what the case is. */
static void begin_experts(const struct sy_weighing *o, FILE *table, struct sy_jout *j)
{
    const struct sy_experts_shape *s = &o->experts;
    int32_t all = s->dim.n_expert * (s->dim.share.n > 0 ? s->dim.share.n : 1);
    char weight[24];
    name_weight(s->weight, weight, sizeof weight);
    begin_row(o, table, j);
    fprintf(table, " %8s %5d %3d of %-4d %5d %5d", weight, s->rows, s->dim.n_expert, all, s->d_model, s->dim.d_ff);
    sy_jout_text(j, "weights", weight);
    sy_jout_int(j, "rows", s->rows);
    sy_jout_int(j, "experts", s->dim.n_expert);
    sy_jout_int(j, "experts_in_all", all);
    sy_jout_int(j, "experts_used", s->dim.n_used);
    sy_jout_int(j, "width", s->d_model);
    sy_jout_int(j, "inner", s->dim.d_ff);
}

static void print_experts(const struct sy_weighing *o, const struct sy_experts_cost *c, const struct sy_weighed *v,
                          FILE *table, struct sy_jout *j)
{
    begin_experts(o, table, j);
    fprintf(table, " %5d %9.0f %9.0f %6.2f %9.0f", c->tile, c->step, c->memory, c->step / c->memory, c->item);
    sy_jout_int(j, "tile", c->tile);
    sy_jout_num(j, "step_cycles", c->step);
    sy_jout_num(j, "memory_cycles", c->memory);
    sy_jout_num(j, "item_cycles", c->item);
    end_row(v, table, j);
}

/* A compiler that took other cases refuses this one: that is its answer. */
static void print_refused(const struct sy_weighing *o, const struct sy_err *why, FILE *table, struct sy_jout *j)
{
    begin_experts(o, table, j);
    fprintf(table, " refused: %s\n", why->msg);
    sy_jout_text(j, "refused", why->msg);
    sy_jout_close(j, '}');
}

static sy_status run_experts(struct sy_weighing *o, FILE *table, struct sy_jout *j, struct sy_err *err)
{
    for (size_t i = 0; i < SY_COUNT(experts_cases); i++) {
        struct sy_experts_cost cost;
        struct sy_weighed v;
        o->experts = (struct sy_experts_shape){.d_model = experts_cases[i].width, .rows = experts_cases[i].rows};
        o->experts.weight = experts_cases[i].weight;
        o->experts.dim.n_expert = experts_cases[i].own;
        o->experts.dim.n_used = experts_cases[i].used;
        o->experts.dim.d_ff = experts_cases[i].inner;
        o->experts.dim.gated = true;
        o->experts.dim.share.n = experts_cases[i].shares;
        struct sy_err why = {0};
        sy_status st = sy_weigh_experts(o, true, &cost, &v, &why);
        if (!st) print_experts(o, &cost, &v, table, j);
        else if (i > 0) print_refused(o, &why, table, j);
        else return sy_fail(err, st, "%s: %s", o->target->name, why.msg);
    }
    return SY_OK;
}

/* Layers of Qwen3-Next-80B-A3B and Qwen3.5-397B-A17B, whole and an eighth of one. */
static const struct {
    int32_t key, val, seq, tok;
    bool bf16;
} delta_cases[] = {
    {16, 32, 8, 0, false},  {16, 32, 64, 0, false}, {16, 32, 64, 0, true},  {2, 8, 8, 0, false},
    {2, 8, 64, 0, false},   {2, 8, 64, 0, true},    {16, 64, 64, 0, false}, {16, 32, 8, 1024, false},
    {2, 8, 8, 1024, false}, {2, 8, 8, 8192, false},
};

static void print_delta(const struct sy_weighing *o, const struct sy_delta_cost *c, const struct sy_weighed *v,
                        FILE *table, struct sy_jout *j)
{
    const struct sy_delta_shape *s = &o->delta;
    begin_row(o, table, j);
    fprintf(table, " %5d %5d %4d %4d %5s %5dx%-3d %9.0f %9.0f %6.2f", s->n_seq, s->n_tok, s->dim.n_key, s->dim.n_val,
            s->bf16 ? "bf16" : "f32", c->side, c->unit, c->round, c->memory, c->round / c->memory);
    sy_jout_int(j, "sequences", s->n_seq);
    sy_jout_int(j, "prompt_tokens", s->n_tok);
    sy_jout_int(j, "key_heads", s->dim.n_key);
    sy_jout_int(j, "value_heads", s->dim.n_val);
    sy_jout_text(j, "state", s->bf16 ? "bf16" : "f32");
    sy_jout_num(j, "round_cycles", c->round);
    sy_jout_num(j, "memory_cycles", c->memory);
    end_row(v, table, j);
}

static sy_status run_delta(struct sy_weighing *o, FILE *table, struct sy_jout *j, struct sy_err *err)
{
    sy_status st = SY_OK;
    for (size_t i = 0; i < SY_COUNT(delta_cases) && !st; i++) {
        struct sy_delta_cost cost;
        struct sy_weighed v;
        o->delta = (struct sy_delta_shape){.dim = {delta_cases[i].key, delta_cases[i].val, 128, 128, true},
                                           .n_seq = delta_cases[i].seq,
                                           .n_tap = 4,
                                           .n_tok = delta_cases[i].tok,
                                           .bf16 = delta_cases[i].bf16};
        st = sy_weigh_delta(o, true, &cost, &v, err);
        if (!st) print_delta(o, &cost, &v, table, j);
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

static const struct {
    const char *title, *head, *read;
    sy_status (*run)(struct sy_weighing *, FILE *, struct sy_jout *, struct sy_err *);
} tables[] = {
    /* clang-format off */
    {"attention, heads of 128; a compiler's estimates, nothing is measured",
     "seq x new  keys cache  KV group block  tile fetch    cycles    memory  ratio", "its bytes", run_target},
    {"experts, even choices",
     " weights  rows     experts width inner  tile    cycles    memory  ratio   besides", "its weights", run_experts},
    {"gated delta rule, heads of 128, with the convolution before it: a token of each sequence, or a prompt",
     "  seq   tok  key  val state   at once    cycles    memory  ratio", "its states", run_delta},
    /* clang-format on */
};

sy_status sy_bench_mosaic(struct sy_args *a, struct sy_err *err)
{
    static const char *const all[] = {"v5e-1", "v6e-1", "v7-2"};
    const char *given = sy_arg_text(a, "plugin"), *only = sy_arg_text(a, "target");
    struct sy_weighing o = {.env = &a->app->env, .plugin = given ? given : getenv("TPU_LIBRARY_PATH")};
    if (!o.plugin || !*o.plugin)
        return sy_fail(err, SY_EARG,
                       "bench mosaic: expected --plugin /path/of/libtpu.so or TPU_LIBRARY_PATH, found none");
    if (only && !sy_aot_target(only)) return sy_fail(err, SY_EARG, "--target '%.40s' is not known", only);
    FILE *table = sy_bench_table(a);
    struct sy_buf list;
    sy_buf_init(&list, o.env, 0);
    struct sy_jout j = {&list, false};
    sy_status st = SY_OK;
    for (size_t k = 0; k < SY_COUNT(tables) && !st; k++) {
        if (sy_arg_given(a, "table") && sy_arg_choice(a, "table") != (int)k) continue;
        fprintf(table, "%s\n%-6s ", tables[k].title, "target");
        fprintf(table, "%s %10s %8s %10s %10s  %s\n", tables[k].head, "kernel us", "around", "plain us",
                tables[k].read, "faster");
        for (int i = 0, n = only ? 1 : (int)SY_COUNT(all); i < n && !st; i++) {
            o.target = sy_aot_target(only ? only : all[i]);
            st = tables[k].run(&o, table, &j, err);
        }
    }
    if (!st && sy_arg_given(a, "json")) st = write_json(a, &list, err);
    sy_buf_release(&list);
    return st;
}
