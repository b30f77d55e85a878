/* Renders arbitrary JSON as a chat request with two of the fixture templates: an array is the messages, an object has
 * "messages", "tools" and "kwargs". No message may leave a byte that passes as the template's own, but for roles. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/utf8.h"
#include "text/template.h"

static struct sy_template *load(const char *path)
{
    static const struct sy_template_limits limit = {.output_bytes = 1 << 20, .heap_bytes = 8 << 20, .steps = 200000};
    struct sy_template *t = NULL;
    struct sy_err err = {0};
    char *text;
    size_t n;
    if (sy_file_read(sy_env_default(), path, 1 << 20, &text, &n, &err) != SY_OK ||
        sy_template_compile(sy_env_default(), text, n, &limit, &t, &err) != SY_OK)
        fprintf(stderr, "%s\n", err.msg);
    sy_assert(t);
    sy_delete(sy_env_default(), text);
    return t;
}

static void render(const struct sy_template *t, const struct sy_render *in)
{
    struct sy_rendered o;
    struct sy_err err = {0};
    sy_status st = sy_template_render(t, sy_env_default(), in, &o, &err);
    sy_assert(st == SY_OK || err.msg[0]);
    if (st) return;
    size_t at = 0;
    sy_assert(sy_utf8_valid(o.text.at, o.text.len));
    for (size_t i = 0; i < o.n_span; i++) {
        sy_assert(o.span[i].lo == at && o.span[i].hi > at);
        at = o.span[i].hi;
        /* The templates are ASCII, and no origin is lost on the way. */
        for (size_t k = o.span[i].lo; k < at; k++)
            sy_assert(!o.span[i].trusted || (unsigned char)o.text.at[k] < 0x80);
    }
    sy_assert(at == o.text.len);
    sy_rendered_release(&o, sy_env_default());
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    static struct sy_template *t[2];
    static const char *const path[] = {"test/golden/templates/t1_chatml_namespace_tools.jinja",
                                       "test/golden/templates/t4_macros_typescript_tools.jinja"};
    struct sy_json *j = NULL;
    if (sy_json_parse(sy_env_default(), (const char *)data, n, false, &j, NULL) != SY_OK) return 0;
    bool whole = sy_json_is_object(j);
    for (size_t i = 0; i < SY_COUNT(t); i++) {
        if (!t[i]) t[i] = load(path[i]);
        struct sy_render in = {
            .messages = whole ? sy_json_get(j, "messages") : j,
            .tools = sy_json_get(j, "tools"),
            .kwargs = sy_json_get(j, "kwargs"),
            .add_generation_prompt = sy_json_bool(sy_json_get(j, "add_generation_prompt"), false),
            .continue_final_message = sy_json_bool(sy_json_get(j, "continue_final_message"), false),
            .bos = "<s>",
            .eos = "</s>",
            .now = 1741529107,
        };
        render(t[i], &in);
    }
    sy_json_free(j);
    return 0;
}
