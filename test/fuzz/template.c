/* Compiles bytes as a chat template and renders it over a fixed conversation, twice: the same bytes must come out, in
 * valid UTF-8, partitioned by its spans; whatever fails must say why. Small limits keep every run short. */
#include <string.h>

#include "base/utf8.h"
#include "text/template.h"

static const char conversation[] =
    "[{\"role\":\"system\",\"content\":\" Be \\u00e9 <b>\\n\"},{\"role\":\"user\",\"content\":\"a,B \\ud83d\\ude00\","
    "\"n\":3,\"f\":2.5,\"l\":[1,\"a\",null,true,{\"k\":\"v\"}],\"items\":\"it\"},{\"role\":\"assistant\","
    "\"thinking\":"
    "\"hm\",\"content\":\"<think>x</"
    "think>y\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":"
    "{\"a\":1,\"b\":[1,2]}}}]},{\"role\":\"tool\",\"content\":\"r\"}]";
static const char variables[] =
    "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},"
    "\"required\":[\"a\"]}}}],\"add_generation_prompt\":true,\"x\":{\"b\":1,\"a\":\"q\"}}";

static struct sy_json *parse(const char *text)
{
    struct sy_json *j = NULL;
    sy_assert(sy_json_parse(sy_env_default(), text, strlen(text), false, &j, NULL) == SY_OK);
    return j;
}

static void check(const struct sy_rendered *o)
{
    size_t at = 0;
    sy_assert(sy_utf8_valid(o->text.at, o->text.len));
    for (size_t i = 0; i < o->n_span; i++) {
        sy_assert(o->span[i].lo == at && o->span[i].hi > at);
        at = o->span[i].hi;
    }
    sy_assert(at == o->text.len);
    for (size_t i = 0; i < o->n_generation; i++)
        sy_assert(o->generation[i].lo <= o->generation[i].hi && o->generation[i].hi <= o->text.len);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    const struct sy_env *env = sy_env_default();
    struct sy_template_limits limit = {.output_bytes = 1 << 20, .heap_bytes = 8 << 20, .steps = 100000};
    struct sy_template *t = NULL;
    struct sy_err err = {0};
    sy_status st = sy_template_compile(env, (const char *)data, n, &limit, &t, &err);
    sy_assert((st == SY_OK) == (t != NULL) && (st == SY_OK || err.msg[0]));
    if (st) return 0;
    struct sy_json *messages = parse(conversation), *kwargs = parse(variables);
    struct sy_render in = {.messages = messages, .kwargs = kwargs, .bos = "<s>", .eos = "</s>", .now = 1741529107};
    struct sy_rendered a, b;
    st = sy_template_render(t, env, &in, &a, &err);
    sy_assert(st == SY_OK || err.msg[0]);
    sy_assert(sy_template_render(t, env, &in, &b, NULL) == st);
    if (st == SY_OK) {
        check(&a);
        sy_assert(a.text.len == b.text.len && !memcmp(a.text.at, b.text.at, a.text.len));
        sy_rendered_release(&a, env);
        sy_rendered_release(&b, env);
    }
    sy_json_free(messages);
    sy_json_free(kwargs);
    sy_template_free(t);
    return 0;
}
