/* design.c - what single design choices are worth: the engine as it is beside one that decides otherwise, turn about.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "app/bench/bench.h"
#include "app/session/nll.h"
#include "app/session/session.h"
#include "base/file.h"
#include "bench/kernels.h"
#include "bench/sums.h"

enum { LINES_MAX = 64, CTX = 512, TEXT_BYTES_MAX = 1 << 30, BLOCK_LEN = 32 };

struct line {
    char choice[56], measure[40];
    double is, other, ratio; /* ratio: other over is, the median of the pairs */
};
struct design {
    struct sy_args *a;
    struct sy_engine_opt engine;
    struct sy_offline_opt o;
    int32_t batch_max;
    double range;
    int32_t n_request, ctx; /* ctx: of windows of text */
    struct line line[LINES_MAX];
    size_t n;
};

static const struct choice { /* what the other engine does */
    const char *name;
    int32_t block_len, kv_offset;
    bool unfused;
} choices[] = {
    {.name = "KV blocks of 8 positions, not 32", .block_len = 8},
    {.name = "KV blocks of 16, not 32", .block_len = 16},
    {.name = "KV blocks of 64, not 32", .block_len = 64},
    {.name = "KV blocks of 128, not 32", .block_len = 128},
    {.name = "KV blocks 32 bytes off 256-byte lines", .kv_offset = 32},
    {.name = "ops not fused", .unfused = true},
};

/* Told at once: the whole takes minutes. */
static void put(struct design *d, const char *choice, const char *measure, double is, double other, double ratio)
{
    FILE *to = sy_bench_table(d->a);
    if (d->n == 0) fprintf(to, "%-40s %-34s %10s %10s %8s\n", "choice", "measure", "as it is", "other", "ratio");
    fprintf(to, "%-40s %-34s %10.4g %10.4g %8.3f\n", choice, measure, is, other, ratio);
    fflush(to);
    if (d->n == LINES_MAX) return;
    struct line *l = &d->line[d->n++];
    snprintf(l->choice, sizeof l->choice, "%s", choice);
    snprintf(l->measure, sizeof l->measure, "%s", measure);
    l->is = is;
    l->other = other;
    l->ratio = ratio;
}

static sy_status open_one(struct design *d, const struct choice *c, struct sy_engine **out, struct sy_err *err)
{
    struct sy_engine_opt opt = d->engine;
    if (c && c->block_len) opt.block_len = c->block_len;
    opt.backend_opt.kv_offset = c ? c->kv_offset : 0;
    opt.backend_opt.unfused = c && c->unfused;
    sy_status st = sy_offline_plan(&d->o, &opt, err);
    return st ? st : sy_engine_new(&d->a->app->env, &opt, out, err);
}

static sy_status compare_pair(struct design *d, struct sy_engine *base, const struct choice *c,
                              struct sy_offline_row *row, struct sy_err *err)
{
    struct sy_engine *e[2] = {base};
    struct sy_bench_watcher w;
    size_t n = d->o.n_batch;
    sy_status st = open_one(d, c, &e[1], err);
    if (st) return st;
    d->o.watch = sy_bench_watch(&w, d->a->app, c->name);
    st = sy_offline_run(&d->a->app->env, e, 2, &d->o, row, err);
    sy_progress_end(&w.bar);
    sy_engine_free(e[1]);
    for (size_t i = 0; !st && i < n; i++) {
        char measure[40];
        const struct sy_offline_row *is = &row[i], *other = &row[n + i];
        if (i == 0) {
            snprintf(measure, sizeof measure, "prompt tokens/s, batch %d", is->batch);
            put(d, c->name, measure, is->prefill_tok_s, other->prefill_tok_s, other->prefill_ratio);
        }
        snprintf(measure, sizeof measure, "decode tokens/s, batch %d", is->batch);
        put(d, c->name, measure, is->decode_tok_s, other->decode_tok_s, other->decode_ratio);
    }
    return st;
}

static sy_status compare_pairs(struct design *d, struct sy_err *err)
{
    struct sy_offline_row *row = sy_arena_array(&d->a->arena, 2 * d->o.n_batch, sizeof *row);
    struct sy_engine *base;
    if (!row) return sy_fail(err, SY_ENOMEM, "no memory for --batch");
    sy_status st = open_one(d, NULL, &base, err);
    if (st) return st;
    for (size_t i = 0; !st && i < SY_COUNT(choices); i++) st = compare_pair(d, base, &choices[i], row, err);
    sy_engine_free(base);
    return st;
}

/* ---- requests of mixed lengths ----------------------------------------------------------------------------------
 */

static sy_status compare_mixed(struct design *d, const char *name, const struct sy_engine_opt *other,
                               struct sy_err *err)
{
    struct sy_engine_opt pair[2] = {d->engine, *other};
    struct sy_bench_watcher w;
    struct sy_mixed m;
    struct sy_mixed_opt o = {.n_request = d->n_request,
                             .seq_max = d->batch_max,
                             .n_in = d->o.n_in,
                             .n_out = d->o.n_out,
                             .range = d->range,
                             .n_repeat = d->o.n_repeat,
                             .seed = d->o.seed,
                             .watch = sy_bench_watch(&w, d->a->app, name)};
    sy_status st = sy_mixed_run(&d->a->app->env, pair, &o, &m, err);
    sy_progress_end(&w.bar);
    if (st) return st;
    put(d, name, "output tokens/s, mixed requests", m.out_tok_s[0], m.out_tok_s[1], 1 / (1 + m.gain));
    put(d, name, "1 / mean E2E seconds", 1 / m.mean_e2e_s[0], 1 / m.mean_e2e_s[1], m.mean_e2e_s[0] / m.mean_e2e_s[1]);
    return SY_OK;
}

static sy_status compare_batchings(struct design *d, struct sy_err *err)
{
    struct sy_engine_opt other = d->engine;
    other.scheduling = SY_STATIC;
    sy_status st = compare_mixed(d, "static batching, not continuous", &other, err);
    other = d->engine;
    other.fixed_shapes = true;
    return st ? st : compare_mixed(d, "steps padded to fixed shapes", &other, err);
}

/* ---- attention's sums -------------------------------------------------------------------------------------------
 */

struct speeds {
    double s[2]; /* of the best level, which comes last */
};

static void on_result(void *ctx, const struct sy_kernel_result *r)
{
    struct speeds *s = ctx;
    s->s[!strcmp(r->kernel, "sums in bf16")] = r->ops / r->seconds / 1e9;
}

static const char sums_name[] = "attention sums in bf16, not f32";

static sy_status compare_sums(struct design *d, struct sy_err *err)
{
    struct speeds s = {{0}};
    struct sy_kernels_opt o = {.family = "attend",
                               .shape = SY_BENCH_SUMS,
                               .n_thread = d->engine.backend_opt.n_thread,
                               .seconds = 0.2,
                               .on_result = on_result,
                               .ctx = &s};
    sy_status st = sy_kernels_measure(&d->a->app->env, &o, err);
    if (!st) put(d, sums_name, "GOP/s of the sums alone", s.s[0], s.s[1], s.s[1] / s.s[0]);
    return st;
}

static sy_status perplexity(struct design *d, const struct sy_ids *ids, bool bf16, double *out, struct sy_err *err)
{
    struct sy_engine_opt opt = d->engine;
    struct sy_engine *e;
    struct sy_nll s = {0};
    struct sy_windows w;
    int32_t window[CTX];
    opt.ctx_len = d->ctx;
    if (bf16) opt.backend_opt.attend_part = sy_attend_part_bf16_sums;
    sy_status st = sy_engine_new(&d->a->app->env, &opt, &e, err);
    if (st) return st;
    st = sy_windows_init(&w, &d->a->app->env, sy_engine_tokenizer(e), ids, window, d->ctx, err);
    s.window = window;
    while (!st && (s.n = sy_windows_next(&w)) > 0) {
        st = sy_nll_window(e, &s, err);
        if (!st && sy_interrupt_seen(d->a->app->interrupt)) st = sy_fail(err, SY_EIO, "the measurement was stopped");
    }
    sy_engine_free(e);
    if (!st && s.count < 2)
        return sy_fail(err, SY_EARG, "--file: expected a text of a few tokens, found %zu", ids->n);
    if (!st) *out = exp(s.sum / (double)s.count);
    return st;
}

static sy_status values_fit(const struct sy_engine *e, struct sy_err *err)
{
    uint32_t n;
    const struct sy_node *node = sy_graph_nodes(sy_engine_graph(e), &n);
    for (uint32_t i = 1; i < n; i++)
        if (node[i].op == SY_OP_ATTEND && node[i].attr.attn.d_val > SY_SUM_VALUES)
            return sy_fail(err, SY_ENOSUP, "--file: attention heads of %d values, %d at most",
                           node[i].attr.attn.d_val, SY_SUM_VALUES);
    return SY_OK;
}

static sy_status compare_perplexity(struct design *d, struct sy_err *err)
{
    const struct sy_env *env = &d->a->app->env;
    struct sy_engine *e = NULL;
    struct sy_ids ids;
    char *text = NULL;
    size_t n;
    double v[2];
    sy_ids_init(&ids, env);
    sy_status st = sy_file_read(env, sy_arg_text(d->a, "file"), TEXT_BYTES_MAX, &text, &n, err);
    if (!st) st = sy_engine_new(env, &d->engine, &e, err);
    if (!st) st = values_fit(e, err);
    if (!st) st = sy_need_tokenizer(sy_engine_tokenizer(e), sy_arg_text(d->a, "model"), err);
    if (!st) st = sy_tokenizer_encode(sy_engine_tokenizer(e), text, n, 0, &ids, err);
    if (!st) d->ctx = sy_engine_plan(e)->info.n_ctx < CTX ? sy_engine_plan(e)->info.n_ctx : CTX;
    sy_engine_free(e);
    for (int i = 0; !st && i < 2; i++) st = perplexity(d, &ids, i, &v[i], err);
    if (!st) put(d, sums_name, "perplexity (less is better)", v[0], v[1], v[1] / v[0]);
    sy_ids_release(&ids);
    sy_delete(env, text);
    return st;
}

/* ---- what is told ------------------------------------------------------------------------------------------------
 */

static sy_status tell(struct design *d, struct sy_err *err)
{
    fprintf(sy_bench_table(d->a), "measured, prompts of %d, answers of %d, medians of %d\n", d->o.n_in, d->o.n_out,
            d->o.n_repeat);
    if (!sy_arg_given(d->a, "json")) return SY_OK;
    struct sy_buf b;
    sy_buf_init(&b, &d->a->app->env, 0);
    struct sy_jout j = {&b, false};
    sy_jout_open(&j, NULL, '[');
    for (size_t i = 0; i < d->n; i++) {
        const struct line *l = &d->line[i];
        sy_jout_line(&j);
        sy_jout_open(&j, NULL, '{');
        sy_jout_text(&j, "choice", l->choice);
        sy_jout_text(&j, "measure", l->measure);
        sy_jout_num(&j, "as_is", l->is);
        sy_jout_num(&j, "other", l->other);
        sy_jout_num(&j, "ratio", l->ratio);
        sy_jout_close(&j, '}');
    }
    sy_jout_close(&j, ']');
    return sy_bench_write_json(d->a, &b, err);
}

sy_status sy_bench_design(struct sy_args *a, struct sy_err *err)
{
    double *batch;
    struct design d = {.a = a,
                       .o = {.n_in = (int32_t)sy_arg_int(a, "input-len"),
                             .n_out = (int32_t)sy_arg_int(a, "output-len"),
                             .n_repeat = (int32_t)sy_arg_int(a, "repeat"),
                             .seed = (uint64_t)sy_arg_int(a, "seed")},
                       .batch_max = 1,
                       .range = sy_arg_given(a, "random-range") ? sy_arg_num(a, "random-range") : 0.1};
    const char *text = sy_arg_given(a, "batch") ? sy_arg_text(a, "batch") : "1,16";
    sy_status st = sy_session_opt(a, &d.engine, err);
    if (!st) st = sy_bench_list(a, "batch", text, 1, 4096, true, &batch, &d.o.n_batch, err);
    if (!st) st = sy_session_models(a, &d.engine, err);
    if (st) return st;
    if (d.o.n_batch > 4) return sy_fail(err, SY_EARG, "bench design: --batch: expected up to 4 numbers, found more");
    int32_t whole[4];
    for (size_t i = 0; i < d.o.n_batch; i++) {
        whole[i] = (int32_t)batch[i];
        d.batch_max = whole[i] > d.batch_max ? whole[i] : d.batch_max;
    }
    d.o.batch = whole;
    d.engine.block_len = BLOCK_LEN;
    d.n_request = sy_arg_given(a, "num-prompts") ? (int32_t)sy_arg_int(a, "num-prompts") : 4 * d.batch_max;
    sy_interrupt_hold(a->app->interrupt);
    st = compare_pairs(&d, err);
    if (!st) st = compare_batchings(&d, err);
    if (!st) st = compare_sums(&d, err);
    if (!st && sy_arg_given(a, "file")) st = compare_perplexity(&d, err);
    sy_interrupt_drop(a->app->interrupt);
    return st ? st : tell(&d, err);
}
