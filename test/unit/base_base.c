/* base/: errors, memory, buffers, JSON, UTF-8, files, random numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/utf8.h"

static void errors_chain_and_stay_printable(void **state)
{
    (void)state;
    struct sy_err e;
    assert_int_equal(sy_fail(&e, SY_EFORMAT, "tensor 'a\nb\x1b[0m'"), SY_EFORMAT);
    assert_string_equal(e.msg, "tensor 'a?b?[0m'");
    assert_int_equal(sy_while(&e, SY_EFORMAT, "loading '%s'", "m"), SY_EFORMAT);
    assert_string_equal(e.msg, "loading 'm': tensor 'a?b?[0m'");
    char big[2000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    (void)sy_fail(&e, SY_EIO, "%s", big);
    (void)sy_while(&e, SY_EIO, "%s", big);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    assert_int_equal(sy_fail(NULL, SY_EIO, "unheard"), SY_EIO);
}

static void arenas_keep_their_limit(void **state)
{
    (void)state;
    struct sy_arena a;
    sy_arena_init(&a, sy_env_default(), 1000);
    assert_non_null(sy_arena_get(&a, 900));
    assert_null(sy_arena_get(&a, 200));
    assert_null(sy_arena_array(&a, SIZE_MAX / 2, 3));
    assert_null(sy_arena_get(&a, SIZE_MAX));
    sy_arena_release(&a);
    char *t = sy_arena_printf(&a, "%d-%s", 7, "seven");
    assert_string_equal(t, "7-seven");
    for (int i = 1; i < 2000; i++) {
        unsigned char *p = sy_arena_get(&a, (size_t)i % 70);
        if (!p) break;
        assert_int_equal((uintptr_t)p % 16, 0);
    }
    sy_arena_release(&a);
}

static void buffers_fail_once_and_say_so(void **state)
{
    (void)state;
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 10);
    sy_buf_printf(&b, "%s", "0123456789");
    assert_false(b.failed);
    sy_buf_char(&b, 'x');
    assert_true(b.failed);
    assert_string_equal(b.at, "0123456789");
    sy_buf_clear(&b);
    sy_buf_utf8(&b, 0x20ac);
    assert_string_equal(b.at, "\xe2\x82\xac");
    sy_buf_release(&b);
}

static void utf8_is_read_as_unicode_says(void **state)
{
    (void)state;
    const struct {
        const char *text;
        int n;
        uint32_t want[4];
        int len[4];
    } t[] = {
        {"A", 1, {'A'}, {1}},
        {"\xc3\xa9", 2, {0xe9}, {2}},
        {"\xf0\x9f\x98\x80", 4, {0x1f600}, {4}},
        {"\xc0\x80", 2, {0xfffd, 0xfffd}, {1, 1}},
        {"\xed\xa0\x80", 3, {0xfffd, 0xfffd, 0xfffd}, {1, 1, 1}},
        {"\xe2\x82", 2, {0xfffd}, {2}},
        {"\xf0\x9f\x98"
         "A",
         4,
         {0xfffd, 'A'},
         {3, 1}},
        {"\xf4\x90\x80\x80", 4, {0xfffd, 0xfffd, 0xfffd, 0xfffd}, {1, 1, 1, 1}},
    };
    for (size_t i = 0; i < SY_COUNT(t); i++) {
        size_t at = 0;
        for (int k = 0; at < (size_t)t[i].n; k++) {
            uint32_t c;
            size_t n = sy_utf8_next(t[i].text + at, (size_t)t[i].n - at, &c);
            assert_int_equal(c, t[i].want[k]);
            assert_int_equal(n, t[i].len[k]);
            at += n;
        }
    }
    assert_true(sy_utf8_valid("gr\xc3\xbc\xc3\x9f", 6));
    assert_false(sy_utf8_valid("\xc3", 1));
    assert_int_equal(sy_utf8_whole("ab\xe2\x82", 4), 2);
    assert_int_equal(sy_utf8_whole("ab\xe2\x82\xac", 5), 5);
    assert_int_equal(sy_utf8_whole("ab\x80\x80", 4), 4); /* nothing can complete it */
    assert_int_equal(sy_utf8_whole("\xf0", 1), 0);
    for (uint32_t c = 1; c < 0x110000; c += c < 0x900 ? 1 : 37) {
        if (c >= 0xd800 && c < 0xe000) continue;
        struct sy_buf b;
        sy_buf_init(&b, sy_env_default(), 0);
        sy_buf_utf8(&b, c);
        uint32_t back;
        assert_int_equal(sy_utf8_next(b.at, b.len, &back), b.len);
        assert_int_equal(back, c);
        sy_buf_release(&b);
    }
}

static sy_status parse(const char *text, bool lax, struct sy_json **j, struct sy_err *err)
{
    return sy_json_parse(sy_env_default(), text, strlen(text), lax, j, err);
}

static void json_refuses_what_it_should(void **state)
{
    (void)state;
    struct sy_json *j;
    struct sy_err err;
    const char *bad[] = {"",      "{:",         "{\"a\":1,\"a\":2}", "[1,]",           "nul",      "\"\\ud83d\"",
                         "1e400", "[Infinity]", "{\"a\":NaN}",       "\xef\xbb\xbf{}", "\"\xff\"", "{}x"};
    for (size_t i = 0; i < SY_COUNT(bad); i++) {
        assert_int_equal(parse(bad[i], false, &j, &err), SY_EFORMAT);
        assert_non_null(strstr(err.msg, "JSON"));
    }
    char *deep = malloc(200001);
    memset(deep, '[', 200000);
    deep[200000] = 0;
    assert_int_equal(parse(deep, false, &j, &err), SY_EFORMAT);
    free(deep);
    assert_int_equal(parse("{\"a\":[-Infinity,NaN,\"Infinity\"]}", true, &j, &err), SY_OK);
    const struct sy_json *a = sy_json_get(j, "a");
    assert_true(sy_json_number(sy_json_at(a, 0), 0) < -1e308);
    assert_true(sy_json_is_null(sy_json_at(a, 1)));
    assert_string_equal(sy_json_text(sy_json_at(a, 2)), "Infinity");
    sy_json_free(j);
}

static void config_reader_names_key_and_range(void **state)
{
    (void)state;
    struct sy_json *j;
    struct sy_err err = {0};
    assert_int_equal(
        parse("{\"n\":5,\"x\":1.5,\"big\":99999,\"t\":\"s\",\"b\":true,\"z\":null,\"w\":7.0}", false, &j, &err),
        SY_OK);
    struct sy_jread r = {.obj = j, .where = "config.json", .err = &err};
    assert_int_equal(sy_jread_int(&r, "n", 0, 10), 5);
    assert_int_equal(sy_jread_int(&r, "w", 0, 10), 7);
    assert_int_equal(sy_jread_int_or(&r, "z", 3, 0, 10), 3);
    assert_true(sy_jread_bool_or(&r, "b", false));
    assert_string_equal(sy_jread_text_or(&r, "none", "d"), "d");
    assert_int_equal(r.st, SY_OK);
    assert_int_equal(sy_jread_int(&r, "big", 0, 10), 0);
    assert_int_equal(r.st, SY_EFORMAT);
    assert_string_equal(err.msg, "config.json: 'big': expected an integer from 0 to 10, found 99999");
    (void)sy_jread_int(&r, "missing", 1, 2); /* the first failure stands */
    assert_non_null(strstr(err.msg, "'big'"));
    r.st = SY_OK;
    (void)sy_jread_int(&r, "x", 0, 10);
    assert_non_null(strstr(err.msg, "'x'"));
    r.st = SY_OK;
    (void)sy_jread_text(&r, "n");
    assert_non_null(strstr(err.msg, "expected a string, found an integer"));
    sy_json_free(j);
}

static void quoted_text_reads_back(void **state)
{
    (void)state;
    const char text[] = "a\"b\\c\n\t\x01\x7f \xe2\x82\xac \xff z";
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    sy_json_quote(&b, text, sizeof text - 1);
    struct sy_json *j;
    assert_int_equal(parse(b.at, false, &j, NULL), SY_OK);
    assert_string_equal(sy_json_text(j), "a\"b\\c\n\t\x01\x7f \xe2\x82\xac \xef\xbf\xbd z");
    sy_json_free(j);
    sy_buf_release(&b);
}

static void files_are_regular_and_bounded(void **state)
{
    (void)state;
    struct sy_map m = {0};
    struct sy_err err;
    char *text;
    size_t n;
    assert_int_equal(sy_map_open(&m, "/dev/null", &err), SY_EIO);
    assert_int_equal(sy_map_open(&m, "test", &err), SY_EIO);
    assert_int_equal(sy_map_open(&m, "no such file", &err), SY_EIO);
    assert_non_null(strstr(err.msg, "no such file"));
    assert_int_equal(sy_file_read(sy_env_default(), "Makefile", 100, &text, &n, &err), SY_EFORMAT);
    assert_int_equal(sy_file_read(sy_env_default(), "Makefile", 1 << 20, &text, &n, &err), SY_OK);
    assert_int_equal(sy_map_open(&m, "Makefile", &err), SY_OK);
    assert_int_equal(m.n, n);
    assert_memory_equal(m.at, text, n);
    sy_map_close(&m);
    sy_delete(sy_env_default(), text);
}

static void random_numbers_are_philox(void **state)
{
    (void)state;
    /* The first two words of Philox4x32-10 for counter 0 and key 0 (the paper's known answers). */
    assert_true(sy_rng_u64(0, 0) == 0xe169c58d6627e8d5u);
    double sum = 0;
    for (uint64_t i = 0; i < 10000; i++) {
        double u = sy_rng_unit(42, i);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    assert_true(sum > 4800 && sum < 5200);
    assert_int_not_equal(sy_rng_u64(1, 0), sy_rng_u64(0, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_chain_and_stay_printable), cmocka_unit_test(arenas_keep_their_limit),
        cmocka_unit_test(buffers_fail_once_and_say_so),    cmocka_unit_test(utf8_is_read_as_unicode_says),
        cmocka_unit_test(json_refuses_what_it_should),     cmocka_unit_test(config_reader_names_key_and_range),
        cmocka_unit_test(quoted_text_reads_back),          cmocka_unit_test(files_are_regular_and_bounded),
        cmocka_unit_test(random_numbers_are_philox),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
