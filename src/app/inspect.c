/* inspect.c - what a model is and what it needs. */
#include <stdio.h>
#include <string.h>

#include "app/session/describe.h"

static const struct sy_flag flags[] = {
    {.name = "json", .kind = SY_FLAG_SWITCH, .help = "print a JSON object, tensors included"},
    {.name = "tensors", .kind = SY_FLAG_SWITCH, .help = "list every tensor: format, shape, bytes, name"},
    {.name = "memory",
     .kind = SY_FLAG_SIZE,
     .arg = "SIZE",
     .lo = 1 << 20,
     .hi = 1099511627776.0 * 64,
     .help = "also the longest context for max-seqs sequences within so much memory"},
    {.name = "graph", .kind = SY_FLAG_SWITCH, .help = "print the op graph that a step of max-batched-tokens runs"},
    {0},
};
static const struct sy_example examples[] = {
    {"systole inspect -m model.gguf --ctx-size 4096 --max-seqs 8", "memory needed for 8 sequences of 4,096 tokens"},
    {"systole inspect -m model.gguf --memory 16G", "how long a context may be on a machine with 16 GB"},
    {"systole inspect -m model.gguf --graph", "the operations of a step, in order"},
    {0},
};

static void add_size(struct sy_buf *b, const char *head, double bytes)
{
    char size[16];
    sy_size_text(bytes, size);
    sy_buf_printf(b, "%s%s", head, size);
}

static void add_shape(struct sy_buf *b, const struct sy_tensor *t, const char *sep)
{
    for (int i = 0; i < t->n_dim; i++) sy_buf_printf(b, "%s%lld", i ? sep : "", (long long)t->dim[i]);
}

/* "config.json names it": the first of "architectures". */
static const char *class_name(const struct sy_description *d)
{
    const char *s = sy_json_text(sy_json_at(sy_json_get(sy_checkpoint_config(d->ckpt), "architectures"), 0));
    return s ? s : "?";
}

static void print_needs(struct sy_buf *b, const struct sy_description *d)
{
    if (!d->model.arch) {
        sy_buf_printf(b, "not supported: %s\n", d->refusal.msg);
        return;
    }
    const struct sy_info *i = &d->model.info;
    sy_buf_printf(b, "layers        %d, width %d, vocabulary %d, context %d\n", i->n_layer, i->d_model, i->n_vocab,
                  i->n_ctx);
    add_size(b, "KV cache      ", d->kv_token_bytes);
    sy_buf_printf(b, " a token\n");
    if (d->state_bytes > 0) {
        add_size(b, "states        ", d->state_bytes);
        sy_buf_printf(b, " a sequence\n");
    }
    add_size(b, "memory        ", d->bytes + d->kv_bytes);
    sy_buf_printf(b, " for %d sequence%s of %d tokens:", d->seq_max, d->seq_max == 1 ? "" : "s", d->ctx_len);
    add_size(b, " weights ", d->bytes);
    add_size(b, " as stored, KV cache ", d->kv_bytes);
    sy_buf_char(b, '\n');
    if (d->memory > 0) {
        sy_buf_printf(b, "longest       %lld tokens for %d sequence%s", (long long)d->ctx_fits, d->seq_max,
                      d->seq_max == 1 ? "" : "s");
        add_size(b, " within ", d->memory);
        sy_buf_char(b, '\n');
    }
    if (d->problem.code) sy_buf_printf(b, "cannot run    %s\n", d->problem.msg);
}

static void print_text(struct sy_buf *b, const struct sy_description *d, bool tensors)
{
    size_t n;
    sy_buf_printf(b, "model         %s (%s)\n", sy_checkpoint_path(d->ckpt), sy_checkpoint_kind(d->ckpt));
    sy_buf_printf(b, "architecture  %s\n", class_name(d));
    sy_buf_printf(b, "parameters    %.1f M in %zu tensors", d->n_param / 1e6, sy_checkpoint_count(d->ckpt));
    if (d->n_active > 0) sy_buf_printf(b, ", a token takes %.1f M", d->n_active / 1e6);
    add_size(b, ", ", d->bytes);
    sy_buf_printf(b, ", %.2f bits each\n", d->n_param > 0 ? 8 * d->bytes / d->n_param : 0);
    for (size_t i = 0; i < d->n_format; i++) {
        sy_buf_printf(b, "%s%zu %s", i ? ", " : "formats       ", d->format[i].n, d->format[i].name);
        add_size(b, " (", d->format[i].bytes);
        sy_buf_printf(b, ", %.0f %%)", d->bytes > 0 ? 100 * d->format[i].bytes / d->bytes : 0);
    }
    sy_buf_text(b, d->n_format ? "\n" : "");
    sy_buf_printf(b, "tokenizer     %s", d->tok ? "" : "none\n");
    if (d->tok)
        sy_buf_printf(b, "%d tokens, bos %d, eos %d%s\n", sy_tokenizer_size(d->tok), sy_tokenizer_bos(d->tok),
                      sy_tokenizer_eos(d->tok), sy_checkpoint_chat_template(d->ckpt, &n) ? ", chat template" : "");
    print_needs(b, d);
    for (size_t i = 0; tensors && i < sy_checkpoint_count(d->ckpt); i++) {
        const struct sy_tensor *t = sy_checkpoint_at(d->ckpt, i);
        struct sy_buf shape;
        sy_buf_init(&shape, b->env, 0);
        add_shape(&shape, t, " x ");
        sy_buf_printf(b, "%-7s %16s %12zu  %s\n", sy_format_name(t), shape.at ? shape.at : "", t->n_bytes, t->name);
        sy_buf_release(&shape);
    }
}

static void print_json(struct sy_buf *b, const struct sy_description *d)
{
    const char *path = sy_checkpoint_path(d->ckpt), *arch = class_name(d);
    size_t n;
    sy_buf_text(b, "{\"model\":");
    sy_json_quote(b, path, strlen(path));
    sy_buf_printf(b, ",\"kind\":\"%s\",\"architecture\":", sy_checkpoint_kind(d->ckpt));
    sy_json_quote(b, arch, strlen(arch));
    sy_buf_printf(b, ",\"supported\":%s,\"parameters\":%.0f,\"bytes\":%.0f,\"tokenizer\":%s,\"chat_template\":%s",
                  d->model.arch && !d->problem.code ? "true" : "false", d->n_param, d->bytes,
                  d->tok ? "true" : "false", sy_checkpoint_chat_template(d->ckpt, &n) ? "true" : "false");
    if (d->model.arch)
        sy_buf_printf(b,
                      ",\"layers\":%d,\"d_model\":%d,\"vocabulary\":%d,\"context\":%d,\"kv_token_bytes\":%.0f,"
                      "\"state_bytes\":%.0f,"
                      "\"memory\":{\"ctx_size\":%d,\"max_seqs\":%d,\"weight_bytes\":%.0f,\"kv_bytes\":%.0f}",
                      d->model.info.n_layer, d->model.info.d_model, d->model.info.n_vocab, d->model.info.n_ctx,
                      d->kv_token_bytes, d->state_bytes, d->ctx_len, d->seq_max, d->bytes, d->kv_bytes);
    const struct sy_err *why = d->model.arch ? &d->problem : &d->refusal;
    if (why->code) {
        sy_buf_text(b, ",\"problem\":");
        sy_json_quote(b, why->msg, strlen(why->msg));
    }
    if (d->n_active > 0) sy_buf_printf(b, ",\"active_parameters\":%.0f", d->n_active);
    if (d->memory > 0)
        sy_buf_printf(b, ",\"fits\":{\"memory\":%.0f,\"max_seqs\":%d,\"ctx_size\":%lld}", d->memory, d->seq_max,
                      (long long)d->ctx_fits);
    sy_buf_text(b, ",\"formats\":{");
    for (size_t i = 0; i < d->n_format; i++) {
        sy_buf_text(b, i ? "," : "");
        sy_json_quote(b, d->format[i].name, strlen(d->format[i].name));
        sy_buf_printf(b, ":{\"tensors\":%zu,\"bytes\":%.0f}", d->format[i].n, d->format[i].bytes);
    }
    sy_buf_text(b, "},\"tensors\":[");
    for (size_t i = 0; i < sy_checkpoint_count(d->ckpt); i++) {
        const struct sy_tensor *t = sy_checkpoint_at(d->ckpt, i);
        sy_buf_printf(b, "%s\n  {\"name\":", i ? "," : "");
        sy_json_quote(b, t->name, strlen(t->name));
        sy_buf_printf(b, ",\"format\":\"%s\",\"shape\":[", sy_format_name(t));
        add_shape(b, t, ",");
        sy_buf_printf(b, "],\"bytes\":%zu}", t->n_bytes);
    }
    sy_buf_text(b, "\n]}\n");
}

static sy_status show(struct sy_args *a, const struct sy_description *d, struct sy_err *err)
{
    struct sy_buf b;
    sy_buf_init(&b, &a->app->env, 0);
    if (!sy_arg_on(a, "graph")) {
        if (sy_arg_on(a, "json")) print_json(&b, d);
        else print_text(&b, d, sy_arg_on(a, "tensors"));
    } else if (d->graph) {
        sy_graph_print(d->graph, false, &b);
    }
    sy_status st = b.failed ? sy_fail(err, SY_ENOMEM, "no memory for the description") : SY_OK;
    if (!st && b.len) sy_text_print(b.at, b.len);
    sy_buf_release(&b);
    if (!st && sy_arg_on(a, "graph") && !d->graph) st = sy_fail(err, SY_ENOSUP, "%s", d->refusal.msg);
    return st;
}

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    struct sy_text_model t;
    struct sy_description d = {0};
    sy_status st = sy_text_model_open(a, &t, err);
    if (!st && !t.ckpt)
        st = sy_fail(err, SY_EFORMAT, "'%s' holds a tokenizer and no config.json: there is no model to describe",
                     sy_arg_text(a, "model"));
    if (!st) st = sy_describe(a, &t, &d, err);
    if (!st) st = show(a, &d, err);
    sy_description_release(&d);
    sy_text_model_release(&t);
    return st;
}

const struct sy_command sy_cmd_inspect = {
    .name = "inspect",
    .help = "what a model is, its tensors, the memory it needs",
    .about = "Describes a model without loading it: architecture, parameters, storage formats, tokenizer, and the "
             "memory for a context length (--ctx-size) and a number of sequences (--max-seqs), and whether every "
             "tensor can be used. --memory turns that round: the longest context that fits.",
    .flags = {sy_flags_model, flags, sy_flags_ctx, sy_flags_engine},
    .examples = examples,
    .run = run,
};
