/* print.c - what `systole compile` found, as lines and as JSON. */
#include <stdio.h>

#include "app/aot/aot.h"
#include "bench/report.h"

static int32_t collectives(const struct aot_bucket *b, double *bytes)
{
    int32_t n = 0;
    *bytes = 0;
    for (int k = 0; k < SY_AOT_COLLECTIVES; k++) {
        n += b->r.n_collective[k];
        *bytes += b->r.collective_bytes[k];
    }
    return n;
}

void aot_sharding(const struct aot_job *j, char *text, size_t n)
{
    const struct sy_shard *s = &j->opt.shard;
    char stages[40] = "", groups[60] = "", experts[40] = "";
    if (s->n_stage > 1) snprintf(stages, sizeof stages, ", %d stages", s->n_stage);
    if (s->n_dp > 1) snprintf(groups, sizeof groups, ", %d groups of sequences", s->n_dp);
    if (s->experts && !s->n_ffn) snprintf(experts, sizeof experts, ", experts over %d", s->n_tp * s->n_dp);
    if (s->n_ffn) snprintf(text, n, "attention over %d, feed-forward over %d", s->n_tp, s->n_ffn);
    else snprintf(text, n, "tensor parallel over %d%s%s%s", s->n_tp, groups, experts, stages);
}

void aot_print_head(const struct aot_job *j, struct sy_buf *out)
{
    const struct sy_aot_target *t = j->target;
    char sharding[160];
    aot_sharding(j, sharding, sizeof sharding);
    sy_buf_printf(out, "%s on %s, %s: %d devices", j->name, t->name, sharding, t->n_device);
    if (sy_shard_ranks(&j->opt.shard) < t->n_device)
        sy_buf_printf(out, " (%d of them used)", sy_shard_ranks(&j->opt.shard));
    if (t->hbm_bytes > 0)
        sy_buf_printf(out, " of %.1f GB at %.0f GB/s and %.0f Tflop/s", t->hbm_bytes / 1e9, t->hbm_bytes_s / 1e9,
                      t->flops_s / 1e12);
    sy_buf_printf(out, "; bytes are of one device, times are a compiler's estimates, not measured\n");
    sy_buf_printf(out, "%18s %8s %9s %9s %9s %9s %10s %10s %6s %s\n", "tokens x sequences", "compile", "weights",
                  "KV", "temp", "peak", "estimate", "roofline", "ratio", "collectives");
}

static void ms(struct sy_buf *out, double s)
{
    if (s > 0) sy_buf_printf(out, " %7.2f ms", s * 1e3);
    else sy_buf_printf(out, " %10s", "-");
}

void aot_print_bucket(const struct aot_job *j, const struct aot_bucket *b, struct sy_buf *out)
{
    double gb = 1e9, roof = aot_roof_s(b), estimate = aot_estimate_s(j, b), bytes;
    int32_t n = collectives(b, &bytes);
    sy_buf_printf(out, "%5d x %4d @%5d %6.1f s %6.2f GB %6.2f GB %6.2f GB %6.2f GB", b->shape.tok, b->shape.seq,
                  b->shape.block * j->opt.cache.block_len, b->r.compile_s, b->weight_bytes / gb, b->kv_bytes / gb,
                  (double)b->r.temp / gb, aot_peak(b) / gb);
    ms(out, estimate);
    ms(out, roof);
    if (roof > 0 && estimate > 0) sy_buf_printf(out, " %6.2f", estimate / roof);
    else sy_buf_printf(out, " %6s", "-");
    sy_buf_printf(out, " %d", n);
    const char *sep = ":";
    for (int k = 0; k < SY_AOT_COLLECTIVES; k++) {
        if (b->r.n_collective[k] == 0) continue;
        sy_buf_printf(out, "%s %d %s %.1f MB", sep, b->r.n_collective[k],
                      sy_aot_collective_name((enum sy_aot_collective)k), b->r.collective_bytes[k] / 1e6);
        sep = ",";
    }
    sy_buf_char(out, '\n');
}

static void json_bucket(const struct aot_job *j, const struct aot_bucket *b, struct sy_jout *o)
{
    double bytes;
    int32_t n = collectives(b, &bytes);
    const struct sy_aot_result *r = &b->r;
    sy_jout_line(o);
    sy_jout_open(o, NULL, '{');
    sy_jout_int(o, "tokens", b->shape.tok);
    sy_jout_int(o, "sequences", b->shape.seq);
    sy_jout_int(o, "blocks", b->shape.block);
    sy_jout_num(o, "compile_s", r->compile_s);
    sy_jout_open(o, "hbm", '{');
    sy_jout_num(o, "capacity", j->target->hbm_bytes);
    sy_jout_num(o, "weights", b->weight_bytes);
    sy_jout_num(o, "kv", b->kv_bytes);
    sy_jout_int(o, "arguments", r->argument);
    sy_jout_int(o, "outputs", r->output);
    sy_jout_int(o, "aliased", r->alias);
    sy_jout_int(o, "temporaries", r->temp);
    sy_jout_int(o, "code", r->code);
    sy_jout_num(o, "peak", aot_peak(b));
    sy_jout_close(o, '}');
    sy_jout_num(o, "flops", r->flops);
    sy_jout_num(o, "bytes", r->bytes);
    sy_jout_num(o, "model_flops", b->flops);
    sy_jout_num(o, "model_bytes", b->bytes);
    sy_jout_num(o, "estimated_cycles", r->cycles);
    sy_jout_num(o, "estimated_s", aot_estimate_s(j, b));
    sy_jout_num(o, "memory_s", b->memory_s);
    sy_jout_num(o, "arithmetic_s", b->arithmetic_s);
    sy_jout_num(o, "roofline_s", aot_roof_s(b));
    sy_jout_num(o, "step_s", aot_step_s(j, b));
    sy_jout_int(o, "collectives", n);
    sy_jout_num(o, "collective_bytes", bytes);
    sy_jout_open(o, "collectives_by_kind", '{');
    for (int k = 0; k < SY_AOT_COLLECTIVES; k++) {
        if (r->n_collective[k] == 0) continue;
        sy_jout_open(o, sy_aot_collective_name((enum sy_aot_collective)k), '{');
        sy_jout_int(o, "count", r->n_collective[k]);
        sy_jout_num(o, "bytes", r->collective_bytes[k]);
        sy_jout_close(o, '}');
    }
    sy_jout_close(o, '}');
    sy_jout_int(o, "program_bytes", (int64_t)b->text_bytes);
    sy_jout_close(o, '}');
}

void aot_print_json(const struct aot_job *j, struct sy_buf *out)
{
    struct sy_jout o = {.b = out};
    const struct sy_aot_target *t = j->target;
    sy_jout_open(&o, NULL, '{');
    sy_jout_text(&o, "model", j->name);
    sy_jout_text(&o, "target", t->name);
    sy_jout_text(&o, "topology", t->topology);
    sy_jout_int(&o, "devices", t->n_device);
    sy_jout_int(&o, "devices_used", sy_shard_ranks(&j->opt.shard));
    sy_jout_int(&o, "tp", j->opt.shard.n_tp);
    sy_jout_int(&o, "dp_attention", j->opt.shard.n_dp);
    sy_jout_int(&o, "pp", j->opt.shard.n_stage);
    sy_jout_int(&o, "ffn", j->opt.shard.n_ffn);
    sy_jout_bool(&o, "experts", j->opt.shard.experts);
    sy_jout_num(&o, "hbm_bytes", t->hbm_bytes);
    sy_jout_int(&o, "kv_blocks", j->opt.cache.n_block);
    sy_jout_int(&o, "block_size", j->opt.cache.block_len);
    sy_jout_text(&o, "figures", "estimates of a compiler, not measured");
    sy_jout_text(&o, "stored", j->store);
    static const char *const kind[AOT_KERNELS] = {"attention_of_decode", "attention_of_prompts", "experts",
                                                  "delta_of_decode", "delta_of_prompts"};
    for (int i = 0; i < AOT_KERNELS; i++) {
        const struct aot_weighed *w = &j->weighed[i];
        sy_jout_open(&o, kind[i], '{');
        sy_jout_bool(&o, "kernel", (j->opt.kernels & 1U << i) != 0);
        sy_jout_num(&o, "kernel_s", w->kernel_s);
        sy_jout_num(&o, "plain_s", w->plain_s);
        sy_jout_text(&o, "plain_because", w->err.code ? w->err.msg : w->why);
        sy_jout_close(&o, '}');
    }
    sy_jout_open(&o, "buckets", '[');
    for (int32_t i = 0; i < j->n_bucket; i++) json_bucket(j, &j->bucket[i], &o);
    sy_jout_close(&o, ']');
    sy_jout_close(&o, '}');
    sy_buf_char(out, '\n');
}
