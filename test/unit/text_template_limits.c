/* Hostile templates and odd conversations: one clear error, in bounded time and memory; and allocations that fail. */
#include <pthread.h>
#include <time.h>

#include "text_template_util.h"

/* ---- hostile templates: refused or stopped, with bounded memory, within seconds even in a slow build ------- */

struct hostile {
    const char *source;
    sy_status st;
    const char *says;
};

static void check_bounded(const char *source, sy_status want, const char *says)
{
    struct counting c = {.left = -1};
    struct sy_alloc alloc = {counting_get, counting_resize, counting_free, &c};
    struct sy_env env = *sy_env_default();
    env.alloc = &alloc;
    struct sy_rendered o;
    struct sy_err err = {0};
    clock_t start = clock(); /* of the processor: a loaded machine changes nothing */
    sy_status st = render_with(&env, source, one_message, NULL, NULL, &o, &err);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    if (st == SY_OK) sy_rendered_release(&o, &env);
    if (st != want || (says && !strstr(err.msg, says)))
        fail_msg("%.200s: %s: %s, expected %s: ...%s...", source, sy_status_name(st), err.msg, sy_status_name(want),
                 says ? says : "");
    assert_int_equal(c.live, 0);
    assert_true(c.max <= (64u << 20));
    if (seconds > 20) fail_msg("%.200s: %.1f s", source, seconds);
}

static void test_hostile_templates(void **state)
{
    (void)state;
    static const struct hostile cases[] = {
        {"{% for i in range(10**9) %}x{% endfor %}", SY_EARG, "range: more than 100000"},
        {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", SY_EARG, "steps"},
        {"{% for i in range(100000) %}{% for j in range(99999) %}{{ j }}{% endfor %}{% endfor %}", SY_ENOMEM,
         "memory"},
        {"{{ 'x' * 10000000 }}", SY_ENOMEM, "repeated"},
        {"{% set x = 'x' * 1000000 %}{% for i in range(99) %}{{ x }}{% endfor %}", SY_ENOMEM, "output is larger"},
        {"{% set ns = namespace(s='xx') %}{% for i in range(99) %}{% set ns.s = ns.s * 2 %}{% endfor %}", SY_ENOMEM,
         ""},
        {"{% set ns = namespace(s='xx') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
         SY_ENOMEM, ""},
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", SY_EARG, "nest deeper than 200 in 'f'"},
        {"{% macro f(n=f()) %}{% endmacro %}{{ f() }}", SY_EARG, "nest too deeply"},
        {"{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}", SY_EARG,
         "nest deeper"},
        {"{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n else 'x' }}{% endmacro %}{{ f(150) }}", SY_ENOMEM, "memory"},
        {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", SY_EARG, "nest deeper"},
        {"{% set ns = namespace(a=[]) %}{% for i in range(99999) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}",
         SY_EARG, "nest too deeply"},
        {"{% set ns = namespace(a=[]) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a | "
         "tojson }}",
         SY_EARG, "nest too deeply"},
        {"{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
         SY_ENOMEM, "memory"},
        {"{% set n = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, "
         "n.b] %}"
         "{% endfor %}{{ n.a == n.b }}",
         SY_EARG, "steps"},
        {"{{ [1] * 1000000 }}", SY_ENOMEM, "100000 items"},
        {"{{ 10 ** 1000000000 }}", SY_ENOSUP, "128 bits"},
        {"{{ 'x' | center(1000000000) }}", SY_ENOMEM, "padded"},
        {"{{ '%1000000000d' % 1 }}", SY_ENOMEM, "padded"},
        {"{{ '%.1000000000f' % 1.5 }}", SY_EARG, "precision"},
        {"{{ '{:1000000000}'.format(1) }}", SY_ENOMEM, "padded"},
        {"{{ 'a\nb' | indent(1000000000) }}", SY_ENOMEM, "padded"},
        {"{{ [1] | tojson(indent=1000000000) }}", SY_ENOMEM, "padded"},
        {"{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}", SY_ENOMEM, "memory"},
        {"{{ ('a' * 100000) | join('b' * 100000) }}", SY_ENOMEM, "memory"},
        {"{{ [1] | batch(10**9, 1) | list }}", SY_ENOMEM, "batch"},
        {"{{ [1] | slice(10**9) | list }}", SY_ENOMEM, "slice"},
        {"{% set l = range(9999) | list %}{% for i in range(99999) %}{{ -1 in l }}{% endfor %}", SY_EARG, "steps"},
        {"{% set s = 'x' * 1000000 %}{% for i in range(99999) %}{% if 'z' in s %}{% endif %}{% endfor %}", SY_EARG,
         "steps"},
        {"{% set s = 'x' * 1000000 %}{% for i in range(99999) %}{% set t = s.rfind('y') %}{% endfor %}", SY_EARG,
         "steps"},
        {"{% set s = 'x' * 1000000 %}{% for i in range(99999) %}{% set t = s | upper %}{% endfor %}", SY_ENOMEM,
         "memory"},
        {"{% set s = '.' * 1000000 %}{% for i in range(99999) %}{% set t = s.strip('.') %}{% endfor %}", SY_EARG,
         "steps"},
        {"{% include 'x' %}", SY_ENOSUP, "line 1: {% include %} is not supported"},
        {"\n{% import 'x' as y %}", SY_ENOSUP, "line 2: {% import %}"},
        {"{% from 'x' import y %}", SY_ENOSUP, "{% from %}"},
        {"{% extends 'x' %}", SY_ENOSUP, "{% extends %}"},
        {"{{ ''.__class__.__mro__ }}", SY_EARG, "unsafe"},
        {"{{ messages.append(1) }}", SY_EARG, "unsafe"},
        {"{{ messages[0].update({}) }}", SY_EARG, "unsafe"},
        {"{{ [].__class__.__base__.__subclasses__() }}", SY_EARG, "unsafe"},
        {"{{ raise_exception.__globals__.x }}", SY_EARG, ""},
        {"{{ '{0.__class__.__mro__}'.format('') }}", SY_EARG, "unsafe"},
    };
    for (size_t i = 0; i < SY_COUNT(cases); i++) check_bounded(cases[i].source, cases[i].st, cases[i].says);
    check_text("{{ ''.__class__ }}|{{ messages.__len__ is defined }}|{{ messages[0]['__class__'] }}", one_message,
               NULL, "|False|");
}

/* open repeated n times, then middle, then close repeated n times. */
static void check_nested(const char *open, const char *middle, const char *close, size_t n, sy_status want)
{
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    for (size_t i = 0; i < n; i++) sy_buf_text(&b, open);
    sy_buf_text(&b, middle);
    for (size_t i = 0; i < n; i++) sy_buf_text(&b, close);
    check_bounded(b.at, want, NULL);
    sy_buf_release(&b);
}

static void test_deep_sources(void **state)
{
    (void)state;
    check_nested("{% if 1 %}", "", "{% endif %}", 150, SY_OK);
    check_nested("{% if 1 %}", "", "{% endif %}", 50000, SY_EFORMAT);
    check_nested("{% for a in [1] %}", "x", "{% endfor %}", 150, SY_OK);
    check_nested("{% macro f() %}", "x", "{% endmacro %}", 50000, SY_EFORMAT);
    static const char *const pairs[][2] = {{"(", ")"},   {"[", "]"},  {"{1:", "}"},         {"not ", ""},
                                           {"-", ""},    {"1+", ""},  {"1 if 0 else ", ""}, {"1 and ", ""},
                                           {"(1,", ")"}, {"f(", ")"}, {"1<(", ")"}};
    for (size_t i = 0; i < SY_COUNT(pairs); i++) {
        struct sy_buf b;
        sy_buf_init(&b, sy_env_default(), 0);
        sy_buf_text(&b, "{{ ");
        for (size_t k = 0; k < 50000; k++) sy_buf_text(&b, pairs[i][0]);
        sy_buf_text(&b, "1");
        for (size_t k = 0; k < 50000; k++) sy_buf_text(&b, pairs[i][1]);
        sy_buf_text(&b, " }}");
        check_bounded(b.at, SY_EFORMAT, NULL);
        sy_buf_release(&b);
    }
    check_nested("{{ ((((((((((1)))))))))) }}", "", "", 20000, SY_OK);
    check_nested("{% if 0 %}{% elif 0 %}{% endif %}", "", "", 10000, SY_OK);
    check_nested("a", "", "", (1 << 20) + 1, SY_EFORMAT); /* too long */
}

static void test_syntax_errors(void **state)
{
    (void)state;
    static const struct hostile cases[] = {
        {"a\n{% foo %}", SY_EFORMAT, "line 2: unknown tag 'foo'"},
        {"\n\n{{ x | nofilter }}", SY_EFORMAT, "line 3: no filter named 'nofilter'"},
        {"{{ x is notest }}", SY_EFORMAT, "line 1: no test named 'notest'"},
        {"{% if x %}{{ x | nofilter }}{% endif %}{% if 1 %}\n{{ x | nofilter }}{% endif %}", SY_EARG,
         "line 2: no filter named 'nofilter'"},
        {"{{ x | random }}", SY_ENOSUP, "'random' is not supported"},
        {"{% if x %}", SY_EFORMAT, "no end: expected {% elif %}"},
        {"{% for x in y %}{% endif %}", SY_EFORMAT, "unknown tag 'endif'; the block it stands in ends with 'endfor'"},
        {"{{ x", SY_EFORMAT, "expected '}}', found the end of the template"},
        {"{{ }}", SY_EFORMAT, "expected an expression, found '}}'"},
        {"{{ 'abc }}", SY_EFORMAT, "the string that starts here has no end"},
        {"{# abc", SY_EFORMAT, "the comment that starts here has no end"},
        {"{% raw %}", SY_EFORMAT, "{% endraw %}"},
        {"{{ (1] }}", SY_EFORMAT, "unexpected ']', expected ')'"},
        {"{{ a ! b }}", SY_EFORMAT, "unexpected character '!'"},
        {"{% break %}", SY_EFORMAT, "'break' outside a loop"},
        {"{% set 1 = 2 %}", SY_EFORMAT, "cannot assign to a constant"},
        {"{% for a in b %}{% set loop = 1 %}{% endfor %}", SY_EFORMAT, "cannot assign to 'loop'"},
        {"{% macro f(a=1, b) %}{% endmacro %}", SY_EFORMAT, "needs a default"},
        {"{{ '\\ud800' }}", SY_EFORMAT, "escape"},
        {"{{ 999999999999999999999999999999999999999999 }}", SY_ENOSUP, "128 bits"},
        {"x\n{{ raise_exception('no such role') }}", SY_EARG, "line 2: no such role"},
        {"{{ undefined_name.x }}", SY_EARG, "'undefined_name' is undefined"},
        {"{{ messages[0].foo.bar }}", SY_EARG, "'dict object' has no attribute or element 'foo'"},
        {"{{ 1 + 'a' }}", SY_EARG, "unsupported operand types for +: 'int' and 'str'"},
        {"{{ 'a' < 1 }}", SY_EARG, "'<' not supported between 'str' and 'int'"},
        {"{{ 5() }}", SY_EARG, "a int cannot be called"},
        {"{{ messages | tojson(foo=1) }}", SY_EARG, "no argument named 'foo'"},
    };
    for (size_t i = 0; i < SY_COUNT(cases); i++)
        check_error(cases[i].source, one_message, NULL, cases[i].st, cases[i].says);
    struct sy_template *t = NULL;
    struct sy_err err = {0};
    assert_int_equal(sy_template_compile(sy_env_default(), "a\xff", 2, NULL, &t, &err), SY_EFORMAT);
    assert_non_null(strstr(err.msg, "UTF-8"));
    assert_int_equal(sy_template_compile(sy_env_default(), "{% if", 5, NULL, &t, NULL), SY_EFORMAT); /* no err */
}

static void test_own_limits(void **state)
{
    (void)state;
    struct sy_template_limits l = {
        .source_bytes = 100, .output_bytes = 50, .heap_bytes = 1 << 16, .steps = 5000, .depth = 5};
    struct sy_rendered o;
    struct sy_err err = {0};
    const struct sy_env *env = sy_env_default();
    assert_int_equal(render_with(env, "{{ 'x' * 51 }}", one_message, NULL, &l, &o, &err), SY_ENOMEM);
    assert_int_equal(render_with(env, "{% for i in range(9999) %}{% endfor %}", one_message, NULL, &l, &o, &err),
                     SY_EARG);
    assert_int_equal(render_with(env, "{% set x = 'x' * 70000 %}", one_message, NULL, &l, &o, &err), SY_ENOMEM);
    assert_int_equal(render_with(env, "{% macro f(n) %}{% if n %}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(5) }}",
                                 one_message, NULL, &l, &o, &err),
                     SY_EARG);
    assert_int_equal(render_with(env, "{{ 'x' * 50 }}", one_message, NULL, &l, &o, &err), SY_OK);
    sy_rendered_release(&o, env);
}

/* ---- conversations ------------------------------------------------------------------------------------------ */

static void test_conversations(void **state)
{
    (void)state;
    static const char t[] = "{% for m in messages %}{{ m }};{% endfor %}";
    /* Keys of messages that are null are gone; deeper ones stay. */
    check_text(t, "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":null}]}]", NULL,
               "{'role': 'assistant', 'tool_calls': [{'id': None}]};");
    /* Reasoning is there under each of its names, in the order transformers gives them. */
    check_text(t, "[{\"role\":\"a\",\"reasoning\":\"r\"}]", NULL,
               "{'thinking': 'r', 'role': 'a', 'reasoning': 'r', 'reasoning_content': 'r'};");
    check_text(t, "[{\"thinking\":\"t\",\"role\":\"a\",\"reasoning_content\":\"r\",\"reasoning\":null}]", NULL,
               "{'thinking': 't', 'role': 'a', 'reasoning_content': 'r'};");
    check_text(t, "[{\"role\":\"a\",\"thinking\":\"t\"}]", NULL,
               "{'thinking': 't', 'role': 'a', 'reasoning_content': 't'};");
    check_text("{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ pad_token is defined }}{{ bos_token }}",
               one_message, NULL, "NoneNoneFalseFalse<s>");
    check_text("{{ tools | length }}{{ add_generation_prompt }}{{ bos_token }}", one_message,
               "{\"tools\":[1,2],\"add_generation_prompt\":true,\"bos_token\":\"B\"}", "2TrueB");
    check_text("{{ messages[0].content | length }}", "[{\"content\":\"a\\u0000b\\ud83d\\ude00\"}]", NULL, "4");
    check_error("{{ x }}", "[]", NULL, SY_EARG, "at least one message");
    check_error("{{ x }}", "{}", NULL, SY_EARG, "expected an array");
    check_error("{{ x }}", "[{\"role\":\"u\"},5]", NULL, SY_EARG, "messages[1]: expected an object");
    check_error("{{ x }}", one_message, "{\"messages\":[]}", SY_EARG, "'messages'");
    check_error("{{ x", one_message, "{\"messages\":[]}", SY_EFORMAT, "");
    /* Data nested as deep as JSON may be: an error, not a crash. */
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    sy_buf_text(&b, "[{\"content\":");
    for (int i = 0; i < 2000; i++) sy_buf_char(&b, '[');
    for (int i = 0; i < 2000; i++) sy_buf_char(&b, ']');
    sy_buf_text(&b, "}]");
    check_error("{{ messages }}", b.at, NULL, SY_EARG, "nest deeper");
    sy_buf_release(&b);
}

static void test_continue_final(void **state)
{
    (void)state;
    static const char t[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}";
    static const char trimmed[] = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>{% endfor %}";
    static const char thinks[] = "{% for m in messages %}<{{ m.role }}>{{ m.thinking }}<end>{% endfor %}";
    static const char parts[] =
        "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}<end>{% endfor %}";
    static const char m[] =
        "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\" so far \"}]";
    static const char on[] = "{\"continue_final_message\":true}";
    check_text(t, m, on, "<user>q<end><assistant> so far ");
    check_text(trimmed, m, on, "<user>q<end><assistant>so far");
    check_text(t, m, "{\"continue_final_message\":false}", "<user>q<end><assistant> so far <end>");
    check_text(thinks, "[{\"role\":\"a\",\"reasoning\":\"hm\"}]", "{\"continue_final_message\":\"reasoning\"}",
               "<a>hm");
    check_text(parts, "[{\"content\":[{\"text\":\"a\"},{\"text\":\"b\"},{\"image\":1}]}]", on, "ab");
    check_error(t, m, "{\"continue_final_message\":true,\"add_generation_prompt\":true}", SY_EARG,
                "exclude each other");
    check_error(t, "[{\"role\":\"a\"}]", on, SY_EARG, "no 'content' to continue");
    check_error(t, "[{\"role\":\"a\",\"content\":5}]", on, SY_EARG, "not a text");
    check_error(t, "[{\"role\":\"a\",\"content\":[{\"image\":1}]}]", on, SY_EARG, "no text to continue");
    check_error("{{ messages[0].role }}", m, on, SY_EARG, "does not read 'content'");
    check_error("{{ messages[0].content }}", m, on, SY_EARG, "does not appear");
    struct sy_json *j = parse(m);
    struct sy_template *tpl = compile(t);
    struct sy_render in = {.messages = j, .continue_final_message = true};
    struct sy_rendered o;
    assert_int_equal(sy_template_render(tpl, sy_env_default(), &in, &o, NULL), SY_OK);
    assert_string_equal(o.text.at, "<user>q<end><assistant> so far ");
    check_spans(&o);
    sy_rendered_release(&o, sy_env_default());
    sy_template_free(tpl);
    sy_json_free(j);
}

/* What clients send around tool calls: accepted, or refused with a reason; nothing else. */
static void test_tool_turns(void **state)
{
    (void)state;
    static const char *const files[] = {"t1_chatml_namespace_tools.jinja", "t2_headers_date_builtin.jinja",
                                        "t4_macros_typescript_tools.jinja", "t6_generation_blocks.jinja",
                                        "t7_xml_tools_glm.jinja"};
    static const char *const turns[] = {
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":"
        "{\"name\":\"f\",\"arguments\":{\"a\":1}}}]}",
        "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}",
        "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}",
        "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":{}}}]}",
        "{\"role\":\"assistant\",\"tool_calls\":[{}]}",
        "{\"role\":\"assistant\",\"tool_calls\":[]}",
        "{\"role\":\"assistant\",\"tool_calls\":[null]}",
        "{\"role\":\"assistant\",\"tool_calls\":{}}",
        "{\"role\":\"assistant\",\"tool_calls\":5}",
        "{\"role\":\"assistant\",\"content\":\"x\",\"thinking\":\"y\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}"
        "]}",
        "{\"role\":\"tool\",\"tool_call_id\":null,\"content\":\"r\"}",
        "{\"role\":\"tool\",\"tool_call_id\":\"\",\"content\":null}",
        "{\"role\":\"tool\",\"content\":{\"a\":1}}",
        "{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"r\"}]}",
        "{\"role\":5,\"content\":[[]]}",
        "{}",
    };
    static const char *const tools[] = {
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":null}}]",
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]",
        "[{}]",
        "[null]",
        "{}",
        "[]",
        "null",
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"x\":{}},\"required\":null}}}]",
    };
    for (size_t f = 0; f < SY_COUNT(files); f++) {
        size_t n;
        char *source = load_text(files[f], &n);
        for (size_t i = 0; i < SY_COUNT(turns); i++)
            for (size_t k = 0; k < SY_COUNT(tools); k++) {
                char messages[1024], kwargs[512];
                struct sy_rendered o;
                struct sy_err err = {0};
                snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"q\"},%s]", turns[i]);
                snprintf(kwargs, sizeof kwargs, "{\"tools\":%s,\"add_generation_prompt\":true}", tools[k]);
                sy_status st = render_with(sy_env_default(), source, messages, kwargs, NULL, &o, &err);
                assert_true(st == SY_OK || (st == SY_EARG && err.msg[0]));
                if (!st) check_spans(&o);
                if (!st) sy_rendered_release(&o, sy_env_default());
            }
        sy_delete(sy_env_default(), source);
    }
    /* A template that wants ids of nine characters says so. */
    check_error(
        "{% if messages[0].tool_call_id | length != 9 %}{{ raise_exception('Tool call IDs should be alphanumeric "
        "strings with length 9!') }}{% endif %}",
        "[{\"role\":\"tool\",\"tool_call_id\":\"call_123456\"}]", NULL, SY_EARG, "length 9");
}

/* ---- allocations that fail, threads, speed ------------------------------------------------------------------ */

static void test_allocation_failures(void **state)
{
    (void)state;
    static const char *const sources[] = {
        ("{%- macro f(a, b=1) %}{{ a ~ b }}{{ kwargs }}{{ varargs }}{% endmacro %}{% set ns = namespace(s='') %}"
         "{% for m in messages if m.role %}{% set ns.s = ns.s + m.content %}{{ loop.length }}{{ f(m.content, 2, 3, "
         "x=4) }}"
         "{% endfor %}{{ ns.s | upper | replace('H', 'xyz') }}{{ messages | tojson(indent=2) }}{{ '%s-%5d' % ('a', "
         "3) "
         "}}"
         "{{ '{:>5}'.format(1) }}{{ [3,1,2] | sort | join(',') }}{{ {'b':1,'a':2} | dictsort }}"
         "{% generation %}{{ messages[0].content[::-1] }}{% endgeneration %}{{ 'a b'.split() }}{{ range(3) | list }}"
         "{{ messages | map(attribute='role') | unique | list }}{{ strftime_now('%d %b') }}{{ 1.5 | round(1) }}"
         "{% filter indent %}a\nb{% endfilter %}{% call f(1) %}{% endcall %}"),
        "{% for i in range(300) %}{{ i }}{{ messages[0].content }}{% generation %}{{ i }}{% endgeneration %}{% "
        "endfor %}",
        "{{ 'é\\n\\x41' }}{{ {1:2} }}{{ 1 if x else 2 }}{% set a, b = 1, 2 %}{% with c = 3 %}{{ c }}{% endwith %}",
    };
    for (size_t i = 0; i < SY_COUNT(sources); i++) {
        bool done = false;
        for (long n = 0; !done; n++) {
            struct counting c = {.left = n};
            struct sy_alloc alloc = {counting_get, counting_resize, counting_free, &c};
            struct sy_env env = *sy_env_default();
            env.alloc = &alloc;
            struct sy_rendered o;
            struct sy_err err = {0};
            sy_status st =
                render_with(&env, sources[i], one_message, "{\"continue_final_message\":false}", NULL, &o, &err);
            done = c.left >= 0;
            if (st == SY_OK) sy_rendered_release(&o, &env);
            else if (!done) assert_int_equal(st, SY_ENOMEM);
            assert_int_equal(c.live, 0);
            assert_true(n < 10000);
        }
    }
}

static void *render_many(void *arg)
{
    struct sy_json *m =
        parse("[{\"role\":\"user\",\"content\":\"h\xc3\xa9\"},{\"role\":\"assistant\",\"content\":\"b\"}]");
    struct sy_render in = {.messages = m, .add_generation_prompt = true};
    size_t good = 0;
    for (int i = 0; i < 200; i++) {
        struct sy_rendered o;
        if (sy_template_render(arg, sy_env_default(), &in, &o, NULL)) continue;
        good += !strcmp(o.text.at, "<user>H\xc3\x89-4<assistant>B-4é");
        sy_rendered_release(&o, sy_env_default());
    }
    sy_json_free(m);
    return (void *)(uintptr_t)good;
}

static void test_threads(void **state)
{
    (void)state;
    struct sy_template *t =
        compile("{% macro up(x) %}{{ x | upper }}{% endmacro %}{% for m in messages %}<{{ m.role }}>"
                "{{ up(m.content) }}-{{ 'éa' | length + 2 }}{% endfor %}{{ 'aé'[1] }}");
    pthread_t id[4];
    for (size_t i = 0; i < SY_COUNT(id); i++) assert_int_equal(pthread_create(&id[i], NULL, render_many, t), 0);
    for (size_t i = 0; i < SY_COUNT(id); i++) {
        void *good;
        assert_int_equal(pthread_join(id[i], &good), 0);
        assert_int_equal((uintptr_t)good, 200);
    }
    sy_template_free(t);
}

/* A long conversation, and a template that builds its prompt by repeated concatenation: linear time and memory. */
static void test_long_conversation(void **state)
{
    (void)state;
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    sy_buf_char(&b, '[');
    for (int i = 0; i < 1000; i++) {
        sy_buf_printf(&b, "%s{\"role\":\"%s\",\"content\":\"", i ? "," : "", i % 2 ? "assistant" : "user");
        for (int k = 0; k < 100; k++) sy_buf_text(&b, "words and more, ");
        sy_buf_text(&b, "\"}");
    }
    sy_buf_char(&b, ']');
    static const char *const sources[] = {
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}",
        "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s + '<' + m.role + '>' + m.content %}"
        "{% endfor %}{{ ns.s }}",
        "{% for m in messages %}{% set c = m.content.split('</think>')[-1].lstrip('\n') | trim %}{{ m | tojson }}"
        "{{ c if '<think>' not in c else '' }}{% endfor %}",
    };
    for (size_t i = 0; i < SY_COUNT(sources); i++) {
        struct sy_rendered o;
        struct sy_err err = {0};
        clock_t start = clock();
        if (render_with(sy_env_default(), sources[i], b.at, NULL, NULL, &o, &err)) fail_msg("%s", err.msg);
        double ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC;
        printf("1.6 MB conversation, template %zu: %.1f ms with reading the JSON, %zu bytes\n", i, ms, o.text.len);
        assert_true(o.text.len > 1600000 && ms < 20000);
        check_spans(&o);
        sy_rendered_release(&o, sy_env_default());
    }
    sy_buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile_templates), cmocka_unit_test(test_deep_sources),
        cmocka_unit_test(test_syntax_errors),     cmocka_unit_test(test_own_limits),
        cmocka_unit_test(test_conversations),     cmocka_unit_test(test_continue_final),
        cmocka_unit_test(test_tool_turns),        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_threads),           cmocka_unit_test(test_long_conversation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
