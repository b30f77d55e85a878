/* models.c - what the cache holds. */
#include <stdio.h>
#include <string.h>

#include "app/hub/hub.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "model/model.h"

static const struct sy_flag flags[] = {
    {.name = "json", .kind = SY_FLAG_SWITCH, .help = "print a JSON array"},
    {0},
};
static const struct sy_example examples[] = {
    {"systole models", "names as -m takes them, kinds and sizes"},
    {0},
};

struct out {
    struct sy_buf text;
    bool json;
    size_t n;
};

static void add(void *ctx, const struct sy_cached *m)
{
    struct out *o = ctx;
    if (!o->json) {
        char size[16];
        sy_size_text((double)m->bytes, size);
        sy_buf_printf(&o->text, "%-60s %-12s %8s%s\n", m->model, m->kind, size, m->incomplete ? "  incomplete" : "");
        o->n++;
        return;
    }
    sy_buf_printf(&o->text, "%s\n  {\"model\":", o->n++ ? "," : "");
    sy_json_quote(&o->text, m->model, strlen(m->model));
    sy_buf_printf(&o->text, ",\"kind\":\"%s\",\"bytes\":%lld,\"complete\":%s,\"path\":", m->kind, (long long)m->bytes,
                  m->incomplete ? "false" : "true");
    sy_json_quote(&o->text, m->path, strlen(m->path));
    sy_buf_char(&o->text, '}');
}

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    struct out o = {.json = sy_arg_on(a, "json")};
    sy_buf_init(&o.text, &a->app->env, 0);
    if (o.json) sy_buf_char(&o.text, '[');
    sy_status st = sy_cache_each(&a->arena, add, &o, err);
    if (o.json) sy_buf_text(&o.text, o.n ? "\n]\n" : "]\n");
    if (!st && o.text.failed) st = sy_fail(err, SY_ENOMEM, "no memory to list the cache");
    if (!st && o.text.len) sy_text_print(o.text.at, o.text.len);
    sy_buf_release(&o.text);
    return st;
}

enum { NAMES_FROM = 19, LINE_MAX_COLUMNS = 110 };

/* A word after what stands in the line, or in the next one where there is no room. */
static void add_word(struct sy_buf *b, size_t *used, size_t indent, const char *word)
{
    if (*used + 1 + strlen(word) > LINE_MAX_COLUMNS) {
        sy_buf_printf(b, "\n%*s", (int)indent, "");
        *used = indent;
    }
    sy_buf_printf(b, " %s", word);
    *used += 1 + strlen(word);
}

static void list_architectures(struct sy_buf *b)
{
    size_t column = 1;
    const char *gguf;
    sy_buf_text(b, "\nsupported architectures (config.json \"architectures\"):\n");
    for (size_t i = 0; sy_archs[i]; i++) {
        size_t used = NAMES_FROM;
        sy_buf_printf(b, "  %-*s", NAMES_FROM - 2, sy_archs[i]->name);
        for (const char *const *c = sy_archs[i]->claims; *c; c++) add_word(b, &used, NAMES_FROM, *c);
        sy_buf_char(b, '\n');
    }
    sy_buf_text(b, "\nof GGUF files (\"general.architecture\"):\n ");
    for (size_t i = 0; (gguf = sy_gguf_arch_name(i)); i++) add_word(b, &column, 1, gguf);
    sy_buf_char(b, '\n');
}

const struct sy_command sy_cmd_models = {
    .name = "models",
    .help = "list the models in the cache",
    .about = "Lists what was pulled (hf:org/name, or hf:org/name:file for GGUF files) and what lies in the cache's "
             "models/ "
             "folder, with kind and size on disk.",
    .flags = {flags},
    .examples = examples,
    .more = list_architectures,
    .run = run,
};
