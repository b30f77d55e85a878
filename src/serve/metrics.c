/* metrics.c - Prometheus's text format: the names of vLLM's metrics, so that its dashboards work, and our
 * own beside them. */
#include <string.h>

#include "serve/server_int.h"

struct writer {
    struct sy_buf *b;
    struct sy_buf label; /* model_name="...",engine="0" */
};

static void head(struct writer *w, const char *name, const char *kind, const char *help)
{
    sy_buf_printf(w->b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

static void number(struct writer *w, const char *name, const char *kind, const char *help, double v)
{
    head(w, name, kind, help);
    sy_buf_printf(w->b, "%s{%s} %.15g\n", name, w->label.at, v);
}

static void histogram(struct writer *w, const char *name, const char *help, const struct sy_histogram *h)
{
    uint64_t sum = 0;
    head(w, name, "histogram", help);
    for (int i = 0; i <= h->n; i++) {
        sum += atomic_load_explicit(&h->count[i], memory_order_relaxed);
        sy_buf_printf(w->b, "%s_bucket{%s,le=\"", name, w->label.at);
        if (i < h->n) sy_buf_printf(w->b, "%.15g", h->bound[i]);
        else sy_buf_text(w->b, "+Inf");
        sy_buf_printf(w->b, "\"} %llu\n", (unsigned long long)sum);
    }
    sy_buf_printf(w->b, "%s_sum{%s} %.15g\n%s_count{%s} %llu\n", name, w->label.at,
                  atomic_load_explicit(&h->sum, memory_order_relaxed), name, w->label.at, (unsigned long long)sum);
}

/* A label's value: backslash, quote and line break are written with a backslash. */
static void add_label(struct sy_buf *b, const char *name, const char *value)
{
    sy_buf_printf(b, "%s%s=\"", b->len ? "," : "", name);
    for (; *value; value++) {
        if (*value == '\n') {
            sy_buf_text(b, "\\n");
            continue;
        }
        if (*value == '"' || *value == '\\') sy_buf_char(b, '\\');
        sy_buf_char(b, *value);
    }
    sy_buf_char(b, '"');
}

static void scheduler(struct writer *w, const struct sy_engine_stats *s)
{
    double usable = s->block_total > 0 ? s->block_total : 1, used = s->block_leased / usable;
    int32_t n_apart = s->apart_free + s->apart_kept + s->apart_leased;
    if (n_apart > 0 && (double)s->apart_leased / n_apart > used) used = (double)s->apart_leased / n_apart;
    number(w, "vllm:num_requests_running", "gauge", "Sequences that run.", s->n_running);
    number(w, "vllm:num_requests_waiting", "gauge", "Requests that wait.", s->n_waiting);
    number(w, "vllm:kv_cache_usage_perc", "gauge", "Share of KV blocks in use; 1 means all.", used);
    number(w, "vllm:spec_decode_num_drafts_total", "counter", "Times that tokens were guessed.", (double)s->n_draft);
    number(w, "vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens that were guessed.",
           (double)s->n_draft_tok);
    number(w, "vllm:spec_decode_num_accepted_tokens_total", "counter", "Guessed tokens that were right.",
           (double)s->n_draft_hit_tok);
    number(w, "systole:spec_decode_acceptance", "gauge", "Share of guessed tokens that were right.",
           s->n_draft_tok ? (double)s->n_draft_hit_tok / (double)s->n_draft_tok : 0);
    number(w, "systole:spec_decode_speedup", "gauge",
           "Time of plain decoding, by costs of steps and rows as measured, over what decode steps took.",
           s->spec_real_ns > 0 ? s->spec_plain_ns / s->spec_real_ns : 1);
    number(w, "vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
           (double)s->n_cache_query_tok);
    number(w, "vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.",
           (double)s->n_cache_hit_tok);
    if (s->slot_free + s->slot_kept + s->slot_leased > 0) {
        number(w, "systole:state_slots_running", "gauge", "Slots of recurrent states that sequences run in.",
               s->slot_leased);
        number(w, "systole:state_snapshots", "gauge", "Slots that are snapshots.", s->slot_kept);
        number(w, "systole:state_slots_free", "gauge", "Slots that hold nothing.", s->slot_free);
    }
    number(w, "vllm:num_preemptions_total", "counter", "Sequences that were put back to make room.",
           (double)(s->n_preempt_recompute + s->n_preempt_swap));
    number(w, "vllm:prompt_tokens_total", "counter", "Prompt tokens processed.", (double)s->n_prompt_tok);
    number(w, "vllm:generation_tokens_total", "counter", "Tokens generated.", (double)s->n_gen_tok);
}

static void requests(struct writer *w, const struct sy_loop_metrics *m)
{
    head(w, "vllm:request_success_total", "counter", "Answers that ended, by reason.");
    for (int f = SY_FINISH_STOP; f <= SY_FINISH_ERROR; f++)
        sy_buf_printf(w->b, "vllm:request_success_total{%s,finished_reason=\"%s\"} %llu\n", w->label.at,
                      f == SY_FINISH_CANCELLED ? "abort" : sy_finish_name((enum sy_finish)f),
                      (unsigned long long)atomic_load(&m->finished[f]));
    histogram(w, "vllm:time_to_first_token_seconds", "From a request's arrival to its first token.", &m->ttft);
    histogram(w, "vllm:inter_token_latency_seconds", "Between two tokens of an answer.", &m->itl);
    histogram(w, "vllm:request_time_per_output_token_seconds", "Mean time per token after the first, by request.",
              &m->tpot);
    histogram(w, "vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", &m->e2e);
    histogram(w, "vllm:request_queue_time_seconds", "From a request's arrival to its first step.", &m->queue);
    histogram(w, "vllm:request_prefill_time_seconds", "From a request's first step to its first token.", &m->prefill);
    histogram(w, "vllm:request_decode_time_seconds", "From a request's first token to its end.", &m->decode);
    histogram(w, "vllm:request_inference_time_seconds", "From a request's first step to its end.", &m->inference);
    histogram(w, "vllm:request_prompt_tokens", "Prompt tokens of a request.", &m->prompt_tok);
    histogram(w, "vllm:request_generation_tokens", "Tokens generated for a request.", &m->gen_tok);
    histogram(w, "vllm:iteration_tokens_total", "Tokens in a step.", &m->step_tok);
}

/* What static shapes cost: padded tokens are computed and thrown away. */
static void buckets(struct writer *w, const struct sy_engine_stats *s)
{
    if (s->n_bucket == 0) return;
    head(w, "systole_bucket_steps_total", "counter", "Steps run, by the static shape they ran in.");
    for (int32_t i = 0; i < s->n_bucket; i++) {
        const struct sy_bucket_stats *b = &s->bucket[i];
        sy_buf_printf(w->b, "systole_bucket_steps_total{%s,tokens=\"%d\",sequences=\"%d\",blocks=\"%d\"} %llu\n",
                      w->label.at, b->shape.tok, b->shape.seq, b->shape.block, (unsigned long long)b->n_step);
    }
    head(w, "systole_bucket_padding_tokens_total", "counter", "Tokens computed for nothing, by static shape.");
    for (int32_t i = 0; i < s->n_bucket; i++) {
        const struct sy_bucket_stats *b = &s->bucket[i];
        unsigned long long n = (unsigned long long)((uint64_t)b->shape.tok * b->n_step - b->n_tok);
        sy_buf_printf(w->b,
                      "systole_bucket_padding_tokens_total{%s,tokens=\"%d\",sequences=\"%d\",blocks=\"%d\"} %llu\n",
                      w->label.at, b->shape.tok, b->shape.seq, b->shape.block, n);
    }
}

static void own(struct writer *w, struct sy_server *srv, const struct sy_engine_stats *s,
                const struct sy_loop_metrics *m)
{
    static const char *const states[] = {"free", "cached", "leased"};
    const int32_t blocks[] = {s->block_free, s->block_cached, s->block_leased};
    histogram(w, "systole_step_seconds", "Time of a step.", &m->step);
    number(w, "systole_steps_total", "counter", "Steps run.", (double)s->n_step);
    number(w, "systole_decode_gap_max_seconds", "gauge", "Longest time between two tokens of a running sequence.",
           (double)s->gap_ns_max / 1e9);
    number(w, "systole_compiles_total", "counter", "Programs compiled after start-up.", (double)s->n_compile);
    buckets(w, s);
    head(w, "systole_blocks", "gauge", "KV blocks by state.");
    for (size_t i = 0; i < SY_COUNT(states); i++)
        sy_buf_printf(w->b, "systole_blocks{%s,state=\"%s\"} %d\n", w->label.at, states[i], blocks[i]);
    number(w, "systole_blocks_total", "gauge", "KV blocks in all.", s->block_total);
    const int32_t apart[] = {s->apart_free, s->apart_kept, s->apart_leased};
    head(w, "systole_blocks_apart", "gauge", "Blocks of layers with a window, where these have blocks of their own.");
    for (size_t i = 0; i < SY_COUNT(apart); i++)
        sy_buf_printf(w->b, "systole_blocks_apart{%s,state=\"%s\"} %d\n", w->label.at, states[i], apart[i]);
    head(w, "systole_preemptions_total", "counter", "Sequences put back, by how they come back.");
    sy_buf_printf(
        w->b,
        "systole_preemptions_total{%s,how=\"recompute\"} %llu\nsystole_preemptions_total{%s,how=\"swap\"} %llu\n",
        w->label.at, (unsigned long long)s->n_preempt_recompute, w->label.at, (unsigned long long)s->n_preempt_swap);
    double decode_s = (double)s->decode_ns / 1e9, steps = (double)atomic_load(&m->n_decode_step);
    double bytes = steps * sy_engine_plan(srv->engine)->weight_bytes_step + s->kv_bytes_read_decode,
           peak = srv->bytes_s;
    number(w, "systole_decode_bandwidth_share", "gauge",
           "Bytes read per second of decoding, over what memory can give.",
           decode_s > 0 && peak > 0 ? bytes / decode_s / peak : 0);
    number(w, "systole_engine_stuck", "gauge", "1 while a step takes longer than --stuck-after.",
           atomic_load(&srv->stuck));
    number(w, "systole_open_requests", "gauge", "Prompts submitted and not answered.", sy_loop_open(srv->loop));
}

static void http(struct writer *w, struct sy_server *srv)
{
    head(w, "systole_http_responses_total", "counter", "Responses by class of status.");
    for (int i = 1; i < 6; i++)
        sy_buf_printf(w->b, "systole_http_responses_total{%s,class=\"%dxx\"} %llu\n", w->label.at, i,
                      (unsigned long long)atomic_load(&srv->n_status[i]));
    number(w, "systole_http_connections", "gauge", "Open connections.", atomic_load(&srv->n_conn));
    number(w, "systole_http_busy", "gauge", "Calls that are not answered yet.", atomic_load(&srv->n_busy));
    number(w, "systole_access_log_lost_total", "counter", "Lines of the access log that nobody took in time.",
           (double)sy_accesslog_lost(srv->log));
}

void route_metrics(struct sy_server *srv, struct sy_buf *b)
{
    struct writer w = {.b = b};
    sy_buf_init(&w.label, srv->env, 0);
    add_label(&w.label, "model_name", srv->opt.names[0]);
    add_label(&w.label, "engine", "0");
    struct sy_engine_stats s = sy_loop_stats(srv->loop);
    const struct sy_loop_metrics *m = sy_loop_metrics(srv->loop);
    if (w.label.failed) {
        b->failed = true;
    } else {
        scheduler(&w, &s);
        requests(&w, m);
        own(&w, srv, &s, m);
        http(&w, srv);
    }
    sy_buf_release(&w.label);
}
