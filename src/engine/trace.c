/* trace.c - what happened, one JSON object a line, so that it can be run again step for step (bench/replay.h).
 *
 *   {"trace":1,"model":path,"ctx_len":..,"block_len":..,"seq_max":..,"batch_tok_max":..,"score_row_max":..,
 *    "wait_max":..,"kv_bytes_max":..,"swap_bytes":..,"gap_ms_max":..,"static":false,"prefix_cache":true,
 *    "snapshot_bytes":..,"draft_max":..,"draft_model":path or ""}
 *   {"arrive":id,"t":ns,"n_max":..,"n_sample":..,"priority":..,"domain":..,"prompt":[ids]}
 *        and, where they are not the usual, "rows_from": first prompt position whose row was wanted,
 *        "no_cache_read", "n_min", and "sampling" {...} with the fields of struct sy_sampling
 *   {"step":n,"t":ns,"end":ns,"seq":[[id,sample,tokens],...]}
 *   {"end":id,"sample":i,"n_tok":length,"reason":"stop"}
 *   {"idle":ns}  nothing was left to do after the step before: its cost was measured then
 *
 * The first line is what the engine was opened with, as decided. Lines stand in the order in which things happened: a
 * request that ends "cancelled" or "deadline", and an answer that ends "stopped" (its reader's doing), left before
 * the step that follows. domain and seed are 64 bits printed as signed numbers, which is what JSON readers take;
 * times are the engine's clock. Written by the engine thread through stdio's buffer. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "engine/engine_int.h"

static void put_text(FILE *f, const char *text)
{
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    sy_json_quote(&b, text, strlen(text));
    fputs(b.failed ? "\"\"" : b.at, f);
    sy_buf_release(&b);
}

sy_status trace_open(struct sy_engine *e, struct sy_err *err)
{
    const struct sy_engine_opt *o = &e->opt;
    const struct sy_engine_plan *p = &e->plan;
    if (!o->trace) return SY_OK;
    e->trace = fopen(o->trace, "we");
    if (!e->trace) return sy_fail(err, SY_EIO, "--trace: cannot write '%s': %s", o->trace, strerror(errno));
    fputs("{\"trace\":1,\"model\":", e->trace);
    put_text(e->trace, o->model ? o->model : "");
    fprintf(
        e->trace,
        ",\"ctx_len\":%d,\"block_len\":%d,\"seq_max\":%d,\"batch_tok_max\":%d,\"score_row_max\":%d,\"wait_max\":%d,"
        "\"kv_bytes_max\":%" PRId64 ",\"swap_bytes\":%" PRId64
        ",\"gap_ms_max\":%.17g,\"static\":%s,\"prefix_cache\":%s,\"snapshot_bytes\":%" PRId64
        ",\"draft_max\":%d,\"draft_model\":",
        p->ctx_len, p->block_len, p->seq_max, p->batch_tok_max, o->score_row_max, o->wait_max, o->kv_bytes_max,
        o->swap_bytes, o->gap_ms_max, o->scheduling == SY_STATIC ? "true" : "false",
        o->no_prefix_cache ? "false" : "true", o->snapshot_bytes, o->draft_max);
    put_text(e->trace, o->draft_model ? o->draft_model : "");
    fputs("}\n", e->trace);
    return SY_OK;
}

static void put_sampling(FILE *f, const struct sy_sampling *s)
{
    fprintf(f,
            ",\"sampling\":{\"temperature\":%.9g,\"top_k\":%d,\"top_p\":%.9g,\"min_p\":%.9g,\"typical_p\":%.9g,"
            "\"repeat_penalty\":%.9g,\"presence_penalty\":%.9g,\"frequency_penalty\":%.9g,\"seed\":%" PRId64
            ",\"bias\":[",
            (double)s->temperature, s->top_k, (double)s->top_p, (double)s->min_p, (double)s->typical_p,
            (double)s->repeat_penalty, (double)s->presence_penalty, (double)s->frequency_penalty, (int64_t)s->seed);
    for (int32_t i = 0; i < s->n_bias; i++)
        fprintf(f, "%s[%d,%.9g]", i ? "," : "", s->bias[i].id, (double)s->bias[i].bias);
    fputs("]}", f);
}

void trace_arrive(struct sy_engine *e, const struct seq_request *q, const struct seq *s, bool scored)
{
    if (!e->trace) return;
    int32_t n_sample = 1;
    for (const struct seq *x = q->siblings; x; x = x->next) n_sample++;
    fprintf(e->trace,
            "{\"arrive\":%" PRIu64 ",\"t\":%" PRIu64
            ",\"n_max\":%d,\"n_sample\":%d,\"priority\":%d,\"domain\":%" PRId64,
            q->id, sy_now_ns(e->env), s->n_end - q->n_prompt, n_sample, q->priority, (int64_t)q->domain);
    if (scored) fprintf(e->trace, ",\"rows_from\":%d", s->score_from);
    if (q->no_cache_read) fputs(",\"no_cache_read\":true", e->trace);
    if (q->n_min > 0) fprintf(e->trace, ",\"n_min\":%d", q->n_min);
    if (!q->plain) put_sampling(e->trace, &q->how);
    fputs(",\"prompt\":[", e->trace);
    for (int32_t i = 0; i < q->n_prompt; i++) fprintf(e->trace, "%s%d", i ? "," : "", s->tok[i]);
    fputs("]}\n", e->trace);
}

void trace_step(struct sy_engine *e, uint64_t end_ns)
{
    const int32_t *start = e->batch.field[SY_START];
    for (int32_t i = 0; e->opt.on_batch && i < e->batch.n_seq; i++)
        e->opt.on_batch(e->opt.on_batch_ctx, e->entry[i].seq->of->id, e->entry[i].seq->sample,
                        start[i + 1] - start[i]);
    if (!e->trace) return;
    fprintf(e->trace, "{\"step\":%" PRIu64 ",\"t\":%" PRIu64 ",\"end\":%" PRIu64 ",\"seq\":[", e->stats.n_step,
            e->now, end_ns);
    for (int32_t i = 0; i < e->batch.n_seq; i++)
        fprintf(e->trace, "%s[%" PRIu64 ",%d,%d]", i ? "," : "", e->entry[i].seq->of->id, e->entry[i].seq->sample,
                start[i + 1] - start[i]);
    fputs("]}\n", e->trace);
}

void trace_idle(const struct sy_engine *e)
{
    if (e->trace) fprintf(e->trace, "{\"idle\":%" PRIu64 "}\n", e->now);
}

void trace_end(struct sy_engine *e, const struct seq *s, enum sy_finish why, bool early)
{
    if (!e->trace) return;
    fprintf(e->trace, "{\"end\":%" PRIu64 ",\"sample\":%d,\"n_tok\":%d,\"reason\":\"%s\"}\n", s->of->id, s->sample,
            s->n_tok, early && why == SY_FINISH_STOP ? "stopped" : sy_finish_name(why));
}
