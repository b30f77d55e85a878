/* html.c - what `systole compile` found as one file that needs nothing else: a bar of memory and a table. */
#include "app/aot/aot.h"

enum { BAR = 700 }; /* pixels that are a device's memory */

static void escape(struct sy_buf *b, const char *s)
{
    for (; *s; s++) {
        if (*s == '<') sy_buf_text(b, "&lt;");
        else if (*s == '&') sy_buf_text(b, "&amp;");
        else if (*s == '"') sy_buf_text(b, "&quot;");
        else sy_buf_char(b, *s);
    }
}

static void piece(struct sy_buf *b, const char *what, const char *colour, double bytes, double scale, double *at)
{
    sy_buf_printf(b, "<rect x=%.1f y=0 width=%.1f height=20 fill=\"%s\"><title>%s %.3f GB</title></rect>", *at,
                  bytes * scale, colour, what, bytes / 1e9);
    *at += bytes * scale;
}

/* Okabe and Ito's colours, told apart by those who see no red or green. */
static void bar(const struct aot_job *j, const struct aot_bucket *k, struct sy_buf *b)
{
    double all = aot_peak(k), have = j->target->hbm_bytes, at = 0, scale = BAR / (have > all ? have : all);
    double rest = (double)k->r.argument - k->weight_bytes - k->kv_bytes;
    sy_buf_printf(b, "<svg width=%d height=20 role=img><title>memory</title>", BAR + 2);
    piece(b, "weights", "#0072B2", k->weight_bytes, scale, &at);
    piece(b, "KV cache", "#009E73", k->kv_bytes, scale, &at);
    if (rest > 0) piece(b, "padding of layouts and inputs", "#7F7F7F", rest, scale, &at);
    piece(b, "temporaries", "#D55E00", (double)k->r.temp, scale, &at);
    piece(b, "code", "#CC79A7", (double)k->r.code, scale, &at);
    if (have > 0)
        sy_buf_printf(b, "<rect x=0.5 y=0.5 width=%.1f height=19 fill=none stroke=currentColor></rect>",
                      have * scale - 1);
    sy_buf_text(b, "</svg>");
}

static void cell_ms(struct sy_buf *b, double s)
{
    if (s > 0) sy_buf_printf(b, "<td>%.3f", s * 1e3);
    else sy_buf_text(b, "<td>-");
}

static void row(const struct aot_job *j, const struct aot_bucket *k, struct sy_buf *b)
{
    double step = aot_step_s(j, k);
    sy_buf_printf(b, "<tr><td>%d x %d<td>%d<td>%.1f<td>%.3f<td>%.3f<td>%.3f<td>%.3f<td>%.3g<td>%.3g<td>%.4g",
                  k->shape.tok, k->shape.seq, k->shape.block * j->opt.cache.block_len, k->r.compile_s,
                  k->weight_bytes / 1e9, k->kv_bytes / 1e9, (double)k->r.temp / 1e9, aot_peak(k) / 1e9, k->flops,
                  k->bytes, k->r.cycles);
    cell_ms(b, aot_estimate_s(j, k));
    cell_ms(b, k->memory_s);
    cell_ms(b, k->arithmetic_s);
    cell_ms(b, step);
    if (step > 0) sy_buf_printf(b, "<td>%.0f<td>", k->shape.tok / step);
    else sy_buf_text(b, "<td>-<td>");
    for (int c = 0; c < SY_AOT_COLLECTIVES; c++)
        if (k->r.n_collective[c])
            sy_buf_printf(b, "%d %s, %.2f MB<br>", k->r.n_collective[c],
                          sy_aot_collective_name((enum sy_aot_collective)c), k->r.collective_bytes[c] / 1e6);
    sy_buf_text(b, "<td>");
    bar(j, k, b);
    sy_buf_text(b, "\n");
}

void aot_print_html(const struct aot_job *j, struct sy_buf *b)
{
    const struct sy_aot_target *t = j->target;
    sy_buf_text(b, "<!doctype html><html lang=en><meta charset=utf-8><title>systole compile</title><style>"
                   "body{font:15px system-ui,sans-serif;margin:2em;color-scheme:light dark}"
                   "table{border-collapse:collapse}td,th{padding:.3em .7em;text-align:right;"
                   "border-bottom:1px solid #8884;vertical-align:top}th{text-align:right}</style><h1>");
    escape(b, j->name);
    char sharding[160];
    aot_sharding(j, sharding, sizeof sharding);
    sy_buf_printf(b, " on %s</h1><p>%d devices (%s), %s; %d blocks of %d positions. ", t->name, t->n_device,
                  t->topology, sharding, j->opt.cache.n_block, j->opt.cache.block_len);
    if (t->hbm_bytes > 0)
        sy_buf_printf(b, "A device has %.1f GB at %.0f GB/s and %.0f Tflop/s in bf16, as published. ",
                      t->hbm_bytes / 1e9, t->hbm_bytes_s / 1e9, t->flops_s / 1e12);
    sy_buf_text(
        b, "<p>All figures are of one device. The estimate is the compiler's own, its cycles summed at the chip's "
           "clock; nothing here was measured. Memory time: weights and keys read once; arithmetic time: the model's "
           "products; a step takes the longest of the three. In the bars the outline is the device's memory: "
           "<span style=\"color:#0072B2\">weights</span>, <span style=\"color:#009E73\">KV cache</span>, padding, "
           "<span style=\"color:#D55E00\">temporaries</span>, code.<table><tr><th>tokens x sequences<th>context"
           "<th>compile s<th>weights GB<th>KV GB<th>temp GB<th>peak GB<th>flops<th>bytes<th>cycles<th>estimate ms"
           "<th>memory ms<th>arithmetic ms<th>step ms<th>tokens/s<th>collectives<th>memory\n");
    for (int32_t i = 0; i < j->n_bucket; i++) row(j, &j->bucket[i], b);
    sy_buf_text(b, "</table>\n");
}
