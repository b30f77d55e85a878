/* trace.c - what happened, one JSON object a line, so that it can be run again step for step.
 *
 *   {"arrive":id,"t":ns,"n_max":..,"n_sample":..,"priority":..,"domain":..,"prompt":[ids]}
 *   {"step":n,"t":ns,"end":ns,"seq":[[id,sample,tokens],...]}
 *   {"end":id,"sample":i,"n_tok":length,"reason":"stop"}
 *
 * Written by the engine thread through stdio's buffer; times are the engine's clock. */
#include <inttypes.h>

#include "engine/engine_int.h"

void trace_arrive(struct sy_engine *e, const struct seq_request *q, const struct seq *s)
{
    if (!e->trace) return;
    int32_t n_sample = 1;
    for (const struct seq *x = q->siblings; x; x = x->next) n_sample++;
    fprintf(e->trace, "{\"arrive\":%" PRIu64 ",\"t\":%" PRIu64 ",\"n_max\":%d,\"n_sample\":%d,\"priority\":%d,\"domain\":%" PRIu64 ",\"prompt\":[",
            q->id, sy_now_ns(e->env), s->n_end - q->n_prompt, n_sample, q->priority, q->domain);
    for (int32_t i = 0; i < q->n_prompt; i++) fprintf(e->trace, "%s%d", i ? "," : "", s->tok[i]);
    fprintf(e->trace, "]}\n");
}

void trace_step(struct sy_engine *e, uint64_t end_ns)
{
    if (!e->trace) return;
    fprintf(e->trace, "{\"step\":%" PRIu64 ",\"t\":%" PRIu64 ",\"end\":%" PRIu64 ",\"seq\":[", e->stats.n_step, e->now, end_ns);
    for (int32_t i = 0; i < e->batch.n_seq; i++)
        fprintf(e->trace, "%s[%" PRIu64 ",%d,%d]", i ? "," : "", e->batch_seq[i]->of->id, e->batch_seq[i]->sample,
                e->batch.field[SY_START][i + 1] - e->batch.field[SY_START][i]);
    fprintf(e->trace, "]}\n");
}

void trace_end(struct sy_engine *e, const struct seq *s, enum sy_finish why)
{
    if (!e->trace) return;
    fprintf(e->trace, "{\"end\":%" PRIu64 ",\"sample\":%d,\"n_tok\":%d,\"reason\":\"%s\"}\n", s->of->id, s->sample, s->n_tok,
            sy_finish_name(why));
}
