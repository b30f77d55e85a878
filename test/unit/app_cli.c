/* Flags, configs, suggestions, and the names of models, without the program around them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "app/cli/cli.h"
#include "app/hub/hub.h"

static const char *const colours[] = {"red", "green", NULL};
static const struct sy_flag flags[] = {
    {.name = "count", .letter = 'n', .kind = SY_FLAG_INT, .arg = "N", .lo = -3, .hi = 10, .number = 4, .help = "x"},
    {.name = "share", .kind = SY_FLAG_NUM, .arg = "X", .lo = 0, .hi = 1, .number = 0.5, .help = "x"},
    {.name = "room", .kind = SY_FLAG_SIZE, .arg = "SIZE", .lo = 1, .hi = 1 << 30, .help = "x"},
    {.name = "name", .kind = SY_FLAG_TEXT, .arg = "TEXT", .otherwise = "none", .help = "x"},
    {.name = "word", .kind = SY_FLAG_TEXTS, .arg = "TEXT", .help = "x"},
    {.name = "colour", .kind = SY_FLAG_CHOICE, .choices = colours, .otherwise = "green", .help = "x"},
    {.name = "loud", .letter = 'l', .kind = SY_FLAG_SWITCH, .help = "x"},
    {0},
};
static const struct sy_command command = {
    .name = "test", .help = "x", .about = "x", .operands = "[X...]", .n_operand_max = 3, .flags = {flags}};

struct counting { /* fails the n-th allocation */
    long n, fail_at, live;
};
static void *get(void *ctx, size_t n)
{
    struct counting *c = ctx;
    if (++c->n == c->fail_at) return NULL;
    c->live++;
    return sy_new(sy_env_default(), n);
}
static void *resize(void *ctx, void *old, size_t n_old, size_t n)
{
    struct counting *c = ctx;
    if (++c->n == c->fail_at) return NULL;
    if (!old) c->live++;
    return sy_resize(sy_env_default(), old, n_old, n);
}
static void drop(void *ctx, void *p)
{
    struct counting *c = ctx;
    if (p) c->live--;
    sy_delete(sy_env_default(), p);
}

static sy_status parse_in(const struct sy_env *env, struct sy_args *a, char **argv, struct sy_err *err)
{
    static struct sy_app app; /* outlives the arguments that point at it */
    app = (struct sy_app){.env = *env};
    int argc = 0;
    while (argv[argc]) argc++;
    return sy_args_parse(a, &app, &command, argc, argv, err);
}

static sy_status parse(struct sy_args *a, char **argv, struct sy_err *err)
{
    return parse_in(sy_env_default(), a, argv, err);
}

#define ARGV(...) ((char *[]){__VA_ARGS__, NULL})

static void defaults(void **state)
{
    (void)state;
    struct sy_args a;
    size_t n;
    assert_int_equal(parse(&a, (char *[]){NULL}, NULL), SY_OK);
    assert_int_equal(sy_arg_int(&a, "count"), 4);
    assert_true(sy_arg_num(&a, "share") == 0.5);
    assert_string_equal(sy_arg_text(&a, "name"), "none");
    assert_int_equal(sy_arg_choice(&a, "colour"), 1);
    assert_false(sy_arg_on(&a, "loud") || sy_arg_given(&a, "count"));
    assert_null(sy_arg_texts(&a, "word", &n));
    assert_int_equal(n, 0);
    sy_args_release(&a);
}

static void values(void **state)
{
    (void)state;
    struct sy_args a;
    size_t n;
    char **argv = ARGV("--count=-3", "one", "--share", "1e-1", "--room", "1.5M", "--word", "a", "--word=b", "-l",
                       "--colour", "red", "--name", "", "--", "--loud");
    assert_int_equal(parse(&a, argv, NULL), SY_OK);
    assert_int_equal(sy_arg_int(&a, "count"), -3);
    assert_true(sy_arg_num(&a, "share") == 0.1);
    assert_int_equal(sy_arg_int(&a, "room"), 3 << 19);
    assert_string_equal(sy_arg_text(&a, "name"), "");
    const char *const *words = sy_arg_texts(&a, "word", &n);
    assert_int_equal(n, 2);
    assert_string_equal(words[0], "a");
    assert_string_equal(words[1], "b");
    assert_true(sy_arg_on(&a, "loud"));
    assert_int_equal(sy_arg_choice(&a, "colour"), 0);
    assert_int_equal(a.n_operand, 2);
    assert_string_equal(a.operand[0], "one");
    assert_string_equal(a.operand[1], "--loud");
    sy_args_release(&a);
}

static void refused(char **argv, const char *says)
{
    struct sy_args a;
    struct sy_err err = {0};
    assert_int_equal(parse(&a, argv, &err), SY_EARG);
    if (!strstr(err.msg, says)) fail_msg("'%s' is not in '%s'", says, err.msg);
    sy_args_release(&a);
}

static void refusals(void **state)
{
    (void)state;
    refused(ARGV("--count", "11"), "--count: expected an integer from -3 to 10, found '11'");
    refused(ARGV("-n", "x"), "-n, --count: expected an integer");
    refused(ARGV("--count"), "the end of the command line");
    refused(ARGV("--share", "nan"), "a number from 0 to 1");
    refused(ARGV("--room", "2G"), "from 1 to 1G");
    refused(ARGV("--room", "-1M"), "found '-1M'");
    refused(ARGV("--colour", "blue"), "red or green");
    refused(ARGV("--loud=so"), "true or false");
    refused(ARGV("--lout"), "did you mean '--loud'?");
    refused(ARGV("-lx"), "takes no value");
    refused(ARGV("-x"), "unknown flag '-x'");
    refused(ARGV("a", "b", "c", "d"), "at most 3");
}

static void config(void **state)
{
    (void)state;
    char path[] = "/tmp/systole-config-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char text[] =
        "# comment\ncount = 7\r\n\n  name = \" # kept \"  # not\nword = a\nword=b\nmax-seqs = 3\n";
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    struct sy_args a;
    size_t n;
    assert_int_equal(parse(&a, ARGV("--config", path, "--count", "8"), NULL), SY_OK);
    assert_int_equal(sy_arg_int(&a, "count"), 8);
    assert_string_equal(sy_arg_text(&a, "name"), " # kept ");
    sy_arg_texts(&a, "word", &n);
    assert_int_equal(n, 2);
    sy_args_release(&a);
    unlink(path);
}

static void failing_allocations(void **state)
{
    (void)state;
    for (long at = 1;; at++) {
        struct counting c = {.fail_at = at};
        struct sy_alloc alloc = {get, resize, drop, &c};
        struct sy_env env = *sy_env_default();
        env.alloc = &alloc;
        struct sy_args a;
        sy_status st = parse_in(&env, &a, ARGV("--word", "a", "--word", "b", "--count", "3", "x"), NULL);
        sy_args_release(&a);
        assert_int_equal(c.live, 0);
        if (c.n < at) {
            assert_int_equal(st, SY_OK);
            break;
        }
        assert_int_equal(st, SY_ENOMEM);
    }
}

static const char *nearest(const char *wanted)
{
    struct sy_suggest s;
    sy_suggest_init(&s, wanted);
    sy_suggest_offer(&s, "max-seqs");
    sy_suggest_offer(&s, "max-tokens");
    sy_suggest_offer(&s, "seed");
    return sy_suggest_best(&s);
}

static void suggestions(void **state)
{
    (void)state;
    assert_string_equal(nearest("max-sesq"), "max-seqs");
    assert_string_equal(nearest("maxtokens"), "max-tokens");
    assert_string_equal(nearest("sed"), "seed");
    assert_null(nearest("zzz"));
    assert_null(nearest(""));
    assert_null(nearest("a-word-that-is-longer-than-any-flag-of-any-command"));
}

static void repositories(void **state)
{
    (void)state;
    static const char *const bad[] = {"hf:",     "hf:a",    "hf:a/",    "hf:/b",    "hf:a/b/c", "hf:../b",
                                      "hf:a/..", "hf:a/b:", "hf:a b/c", "hf:a/b\n", "x/y",      ""};
    struct sy_arena arena;
    struct sy_repo r;
    sy_arena_init(&arena, sy_env_default(), 0);
    setenv("SYSTOLE_HOME", "/home/x", 1);
    for (size_t i = 0; i < SY_COUNT(bad); i++) assert_int_equal(sy_repo_parse(&arena, bad[i], &r, NULL), SY_EARG);
    assert_int_equal(sy_repo_parse(&arena, "hf:Org-1/na.me_2:q/x.gguf", &r, NULL), SY_OK);
    assert_string_equal(r.id, "Org-1/na.me_2");
    assert_string_equal(r.file, "q/x.gguf");
    assert_string_equal(r.dir, "/home/x/hub/Org-1/na.me_2");
    unsetenv("SYSTOLE_HOME");
    sy_arena_release(&arena);
}

static void shards(void **state)
{
    (void)state;
    int number, count;
    size_t stem;
    assert_true(sy_shard_name("a/x-00002-of-00005.gguf", &number, &count, &stem));
    assert_int_equal(number, 2);
    assert_int_equal(count, 5);
    assert_int_equal(stem, 3);
    static const char *const not [] = {"x.gguf",
                                       "x-00006-of-00005.gguf",
                                       "x-00000-of-00005.gguf",
                                       "x-1-of-2.gguf",
                                       "x-00001-of-00002.ggug",
                                       "-00001-of-00002",
                                       ""};
    for (size_t i = 0; i < SY_COUNT(not ); i++) assert_false(sy_shard_name(not [i], &number, &count, &stem));
}

static void sizes(void **state)
{
    (void)state;
    static const struct {
        double bytes;
        const char *text;
    } known[] = {{0, "0 B"},        {999, "999 B"}, {1000, "1.0 kB"}, {98362432, "98.4 MB"}, {999600000, "1.0 GB"},
                 {4.2e12, "4.2 TB"}};
    for (size_t i = 0; i < SY_COUNT(known); i++) {
        char text[16];
        sy_size_text(known[i].bytes, text);
        assert_string_equal(text, known[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),     cmocka_unit_test(values),      cmocka_unit_test(refusals),
        cmocka_unit_test(config),       cmocka_unit_test(suggestions), cmocka_unit_test(failing_allocations),
        cmocka_unit_test(repositories), cmocka_unit_test(shards),      cmocka_unit_test(sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
