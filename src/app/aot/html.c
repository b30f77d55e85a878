/* html.c - what `systole compile` found as one file that needs nothing else: a bar of memory and a table. */
#include "app/aot/aot.h"
#include "base/data.h"

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
static const char *const colours[] = {"#0072B2", "#009E73", "#7F7F7F", "#D55E00", "#CC79A7"};
static const char *const parts[] = {"weights", "KV cache", "padding of layouts and inputs", "temporaries", "code"};

static void bar(const struct aot_job *j, const struct aot_bucket *k, struct sy_buf *b)
{
    double all = aot_peak(k), have = j->target->hbm_bytes, at = 0, scale = BAR / (have > all ? have : all);
    double rest = (double)k->r.argument - k->weight_bytes - k->kv_bytes;
    const double bytes[] = {k->weight_bytes, k->kv_bytes, rest > 0 ? rest : 0, (double)k->r.temp, (double)k->r.code};
    sy_buf_printf(b, "<svg viewBox=\"0 0 %d 20\" preserveAspectRatio=none role=img aria-label=\"%.1f of %.1f GB\">",
                  BAR + 2, all / 1e9, have / 1e9);
    for (size_t i = 0; i < SY_COUNT(parts); i++)
        if (bytes[i] > 0) piece(b, parts[i], colours[i], bytes[i], scale, &at);
    if (have > 0)
        sy_buf_printf(b, "<rect x=0.5 y=0.5 width=%.1f height=19 fill=none stroke=currentColor></rect>",
                      have * scale - 1);
    sy_buf_text(b, "</svg>");
}

static void name_of(const struct aot_job *j, const struct aot_bucket *k, struct sy_buf *b)
{
    sy_buf_printf(b, "<tr><td>%d x %d<td class=n>%d", k->shape.tok, k->shape.seq,
                  k->shape.block * j->opt.cache.block_len);
}

static void cell_ms(struct sy_buf *b, double s)
{
    if (s > 0) sy_buf_printf(b, "<td class=n>%.3f", s * 1e3);
    else sy_buf_text(b, "<td class=n>-");
}

static void memory_row(const struct aot_job *j, const struct aot_bucket *k, struct sy_buf *b)
{
    name_of(j, k, b);
    sy_buf_printf(b, "<td class=n>%.3f<td class=n>%.3f<td class=n>%.3f<td class=n>%.3f<td class=bar>",
                  k->weight_bytes / 1e9, k->kv_bytes / 1e9, (double)k->r.temp / 1e9, aot_peak(k) / 1e9);
    bar(j, k, b);
    sy_buf_char(b, '\n');
}

static void time_row(const struct aot_job *j, const struct aot_bucket *k, struct sy_buf *b)
{
    double step = aot_step_s(j, k);
    name_of(j, k, b);
    cell_ms(b, aot_estimate_s(j, k));
    cell_ms(b, k->memory_s);
    cell_ms(b, k->arithmetic_s);
    cell_ms(b, step);
    if (step > 0) sy_buf_printf(b, "<td class=n>%.0f\n", k->shape.tok / step);
    else sy_buf_text(b, "<td class=n>-\n");
}

static void count_row(const struct aot_job *j, const struct aot_bucket *k, struct sy_buf *b)
{
    name_of(j, k, b);
    sy_buf_printf(b, "<td class=n>%.1f<td class=n>%.3g<td class=n>%.3g<td class=n>%.4g<td>", k->r.compile_s, k->flops,
                  k->bytes, k->r.cycles);
    for (int c = 0; c < SY_AOT_COLLECTIVES; c++)
        if (k->r.n_collective[c])
            sy_buf_printf(b, "%d %s, %.2f MB<br>", k->r.n_collective[c],
                          sy_aot_collective_name((enum sy_aot_collective)c), k->r.collective_bytes[c] / 1e6);
    sy_buf_char(b, '\n');
}

static void table(const struct aot_job *j, const char *title, const char *about, const char *columns,
                  void (*row)(const struct aot_job *, const struct aot_bucket *, struct sy_buf *), struct sy_buf *b)
{
    sy_buf_printf(b,
                  "<section><div class=head><div><h2>%s</h2><p>%s</p></div></div><div class=w><table><thead><tr>"
                  "<th>tokens x sequences<th class=n>context%s<tbody>\n",
                  title, about, columns);
    for (int32_t i = 0; i < j->n_bucket; i++) row(j, &j->bucket[i], b);
    sy_buf_text(b, "</table></div></section>\n");
}

static void legend(struct sy_buf *b)
{
    sy_buf_text(b, "Parts of a bar, whose outline is the device's memory: ");
    for (size_t i = 0; i < SY_COUNT(parts); i++)
        sy_buf_printf(b, "%s<i style=\"background:%s\"></i> %s", i ? ", " : "", colours[i], parts[i]);
    sy_buf_char(b, '.');
}

static void kernels(const struct aot_job *j, struct sy_buf *b)
{
    struct sy_buf lines;
    sy_buf_init(&lines, b->env, 0);
    aot_kernels_print(j, &lines);
    sy_buf_text(b, "<section><h2>Kernels</h2><pre>");
    escape(b, lines.at ? lines.at : "");
    sy_buf_text(b, "</pre></section>\n");
    b->failed |= lines.failed;
    sy_buf_release(&lines);
}

void aot_print_html(const struct aot_job *j, struct sy_buf *b)
{
    const struct sy_aot_target *t = j->target;
    const struct sy_data *css = sy_data_find("report/report.css");
    struct sy_buf parts_of;
    char sharding[160];
    sy_buf_printf(
        b,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">"
        "<title>systole compile</title><style>%s\nth{cursor:auto}.bar{min-width:200px;width:40%%}"
        ".bar svg{width:100%%;height:20px;display:block}p i{display:inline-block;width:11px;height:11px;"
        "border-radius:3px}</style><script>document.documentElement.dataset.theme="
        "matchMedia(\"(prefers-color-scheme: dark)\").matches?\"dark\":\"light\"</script><main><header><div><h1>",
        css ? css->at : "");
    escape(b, j->name);
    aot_sharding(j, sharding, sizeof sharding);
    sy_buf_printf(b, " on %s</h1><p class=about>%d devices%s%s, %d used: %s; ", t->name, t->n_device,
                  *t->topology ? ", " : "", t->topology, sy_shard_ranks(&j->opt.shard), sharding);
    sy_buf_printf(b, "%d blocks of %d positions. ", j->opt.cache.n_block, j->opt.cache.block_len);
    if (t->hbm_bytes > 0)
        sy_buf_printf(b, "A device has %.1f GB at %.0f GB/s and %.0f Tflop/s in bf16, as published. ",
                      t->hbm_bytes / 1e9, t->hbm_bytes_s / 1e9, t->flops_s / 1e12);
    sy_buf_text(b, "All figures are of one device; nothing here was measured.</p></div></header>\n");
    sy_buf_init(&parts_of, b->env, 0);
    legend(&parts_of);
    table(j, "Memory", parts_of.at ? parts_of.at : "",
          "<th class=n>weights GB<th class=n>KV GB<th class=n>temp GB<th class=n>peak GB<th>memory", memory_row, b);
    b->failed |= parts_of.failed;
    sy_buf_release(&parts_of);
    table(j, "Time of a step",
          "The estimate is the compiler's own, its cycles summed at the chip's clock. Memory time: weights and keys "
          "read once; arithmetic time: the model's products; a step takes the longest of the three.",
          "<th class=n>estimate ms<th class=n>memory ms<th class=n>arithmetic ms<th class=n>step ms<th "
          "class=n>tokens/s",
          time_row, b);
    table(j, "What the compiler counted", "Of a program, once compiled.",
          "<th class=n>compile s<th class=n>flops<th class=n>bytes<th class=n>cycles<th>collectives", count_row, b);
    if (t->kind == SY_AOT_TPU) kernels(j, b);
    sy_buf_printf(b, "<footer>Made by systole %s.</footer></main></html>\n", SY_VERSION);
}
