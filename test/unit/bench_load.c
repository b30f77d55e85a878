/* The load generator against a small server in this process, which answers well, badly, late or not at all. */
#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/json.h"
#include "bench/load.h"
#include "checkpoint_util.h"

/* ---- the server ---------------------------------------------------------------------------------------------- */

enum manner { WELL, NO_USAGE, BUSY, FAILING, BROKEN, TOLD_ERROR, GARBAGE, EMPTY, SILENT };
enum { BODIES = 64, CONNECTIONS = 256 };

struct server {
    int fd, port;
    pthread_t thread, worker[CONNECTIONS];
    atomic_int n_worker, n_flying, most_flying, n_request;
    atomic_bool over;
    enum manner manner;
    int delay_ms; /* before the first token */
    int piece;    /* bytes of a write */
    bool chat;
    const char *key;    /* wanted; NULL: none */
    const char *models; /* answer to GET /v1/models */
    pthread_mutex_t lock;
    char *body[BODIES]; /* what was asked, in order */
    int n_body;
};
struct connection {
    struct server *s;
    int fd;
};

static void nap(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL); }

static bool put(const struct connection *c, const char *text, size_t n)
{
    size_t piece = c->s->piece ? (size_t)c->s->piece : n;
    for (size_t at = 0; at < n; at += piece)
        if (send(c->fd, text + at, at + piece < n ? piece : n - at, MSG_NOSIGNAL) < 0) return false;
    return true;
}

static bool chunk(const struct connection *c, const char *text)
{
    char b[4200];
    int n = snprintf(b, sizeof b, "%zx\r\n%s\r\n", strlen(text), text);
    return put(c, b, (size_t)n);
}

/* Reads a request; *body is the caller's. False: the connection ended. */
static bool take(const struct connection *c, char *head, size_t n_head, char **body)
{
    size_t n = 0;
    *body = NULL;
    char *end = NULL;
    while (!end) {
        ssize_t got = n + 1 < n_head ? recv(c->fd, head + n, 1, 0) : 0;
        if (got <= 0) return false;
        head[++n] = 0;
        end = n >= 4 && !memcmp(head + n - 4, "\r\n\r\n", 4) ? head + n : NULL;
    }
    const char *length = strcasestr(head, "\r\ncontent-length:");
    size_t want = length ? strtoul(length + 17, NULL, 10) : 0;
    *body = calloc(1, want + 1);
    for (size_t at = 0; *body && at < want;) {
        ssize_t got = recv(c->fd, *body + at, want - at, 0);
        if (got <= 0) return false;
        at += (size_t)got;
    }
    return true;
}

static void refuse(const struct connection *c, int status, const char *body)
{
    char b[600];
    int n = snprintf(b, sizeof b, "HTTP/1.1 %d No\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     status, strlen(body), body);
    put(c, b, (size_t)n);
}

/* Streams an answer; false: the connection is to be closed. */
static bool stream(const struct connection *c, const struct sy_json *ask)
{
    struct server *s = c->s;
    const char *const head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    int n = (int)sy_json_int(sy_json_get(ask, "max_tokens"), 0);
    bool ids = sy_json_bool(sy_json_get(ask, "return_token_ids"), false);
    char b[300];
    nap(s->delay_ms);
    put(c, head, strlen(head));
    if (s->manner == EMPTY) return chunk(c, "data: [DONE]\n\n") && chunk(c, "");
    if (s->manner == GARBAGE) return chunk(c, "data: {\"choices\":[{\"text\":\n\n") && chunk(c, "");
    if (s->manner == TOLD_ERROR)
        return chunk(c, "data: {\"error\":{\"message\":\"out of luck\"}}\n\n") && chunk(c, "");
    if (s->chat)
        chunk(c, "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n");
    for (int i = 0; i < n; i++) {
        if (i == 2 && s->manner == BROKEN) return false;
        if (i) nap(1);
        if (s->chat) snprintf(b, sizeof b, "data: {\"choices\":[{\"delta\":{\"content\":\"w%d \"}}]}\n\n", i);
        else if (ids)
            snprintf(b, sizeof b, "data: {\"choices\":[{\"text\":\"w%d \",\"token_ids\":[%d]}]}\n\n", i, 1000 + i);
        else
            snprintf(b, sizeof b,
                     "data: {\"choices\":[{\"text\":\"w%d \",\"finish_reason\":null}],\"usage\":null}\n\n", i);
        if (!chunk(c, b)) return false;
    }
    snprintf(b, sizeof b, "data: {\"choices\":[{\"%s,\"finish_reason\":\"length\"}]}\n\n",
             s->chat ? "delta\":{}" : "text\":\"\"");
    chunk(c, b);
    snprintf(b, sizeof b, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":%d}}\n\n", n);
    if (s->manner != NO_USAGE) chunk(c, b);
    return chunk(c, "data: [DONE]\n\n") && chunk(c, "");
}

static bool complete(const struct connection *c, const char *body)
{
    struct server *s = c->s;
    struct sy_json *ask;
    if (sy_json_parse(sy_env_default(), body, strlen(body), false, &ask, NULL)) {
        refuse(c, 400, "{\"error\":{\"message\":\"no JSON\"}}");
        return true;
    }
    int flying = atomic_fetch_add(&s->n_flying, 1) + 1, most = atomic_load(&s->most_flying);
    while (flying > most && !atomic_compare_exchange_weak(&s->most_flying, &most, flying)) continue;
    atomic_fetch_add(&s->n_request, 1);
    bool goes_on = true;
    if (s->manner == BUSY) refuse(c, 429, "{\"error\":{\"message\":\"queue is full\"}}");
    else if (s->manner == FAILING) refuse(c, 500, "not even JSON");
    else if (s->manner == SILENT)
        while (!atomic_load(&s->over)) nap(2);
    else goes_on = stream(c, ask);
    atomic_fetch_sub(&s->n_flying, 1);
    sy_json_free(ask);
    return goes_on;
}

static void *serve(void *ctx)
{
    struct connection *c = ctx;
    struct server *s = c->s;
    char head[4096], *body, want[100];
    bool goes_on = true;
    while (goes_on && !atomic_load(&s->over) && take(c, head, sizeof head, &body)) {
        snprintf(want, sizeof want, "Authorization: Bearer %s\r\n", s->key ? s->key : "");
        if (s->key && !strstr(head, want)) refuse(c, 401, "{\"error\":{\"message\":\"no key\"}}");
        else if (!strncmp(head, "GET /v1/models ", 15)) refuse(c, 200, s->models);
        else if (!strncmp(head, s->chat ? "POST /v1/chat/completions " : "POST /v1/completions ",
                          s->chat ? 26 : 21)) {
            pthread_mutex_lock(&s->lock);
            if (s->n_body < BODIES) s->body[s->n_body++] = strdup(body);
            pthread_mutex_unlock(&s->lock);
            goes_on = complete(c, body);
        } else {
            refuse(c, 404, "{\"error\":{\"message\":\"no such route\"}}");
        }
        free(body);
        body = NULL;
    }
    close(c->fd);
    free(c);
    return NULL;
}

static void *listen_to(void *ctx)
{
    struct server *s = ctx;
    for (;;) {
        int fd = accept(s->fd, NULL, NULL);
        if (fd < 0 || atomic_load(&s->over)) {
            if (fd >= 0) close(fd);
            return NULL;
        }
        struct timeval limit = {.tv_usec = 300000}; /* of a connection that nobody uses */
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        struct connection *c = malloc(sizeof *c);
        int i = atomic_load(&s->n_worker);
        *c = (struct connection){s, fd};
        if (i == CONNECTIONS || pthread_create(&s->worker[i], NULL, serve, c)) {
            close(fd);
            free(c);
        } else {
            atomic_store(&s->n_worker, i + 1);
        }
    }
}

static void start(struct server *s)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    if (!s->models) s->models = "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"meta\":{\"n_vocab\":777}}]}";
    pthread_mutex_init(&s->lock, NULL);
    s->fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(s->fd >= 0 && !bind(s->fd, (struct sockaddr *)&a, sizeof a) && !listen(s->fd, 64));
    assert_int_equal(getsockname(s->fd, (struct sockaddr *)&a, &n), 0);
    s->port = ntohs(a.sin_port);
    assert_int_equal(pthread_create(&s->thread, NULL, listen_to, s), 0);
}

static void stop(struct server *s)
{
    atomic_store(&s->over, true);
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    for (int i = 0; i < atomic_load(&s->n_worker); i++) pthread_join(s->worker[i], NULL);
    close(s->fd);
    for (int i = 0; i < s->n_body; i++) free(s->body[i]);
    pthread_mutex_destroy(&s->lock);
}

/* ---- loads --------------------------------------------------------------------------------------------------- */

static struct sy_load_opt options(const struct server *s, char url[static 64])
{
    snprintf(url, 64, "http://127.0.0.1:%d%s", s->port, s->chat ? "/v1/" : "");
    return (struct sy_load_opt){.client = {.url = url, .chat = s->chat, .timeout_s = 20, .api_key = s->key},
                                .model = "mo\"del",
                                .ids = !s->chat,
                                .n_vocab = 500};
}

static sy_status load_with(const struct sy_env *env, const struct sy_load_opt *o, size_t n, double users, double rate,
                           struct sy_load_seen *seen, struct sy_err *err)
{
    struct sy_workload w;
    sy_status st = sy_workload_random(env, n, 10, 5, 0.5, 1, &w, err);
    if (st) return st;
    st = sy_load_run(env, o, &w, n, users, rate, seen, err);
    sy_workload_release(&w);
    return st;
}

static void load(struct server *s, size_t n, double users, double rate, struct sy_load_seen *seen)
{
    char url[64];
    struct sy_load_opt o = options(s, url);
    struct sy_err err;
    if (load_with(sy_env_default(), &o, n, users, rate, seen, &err)) fail_msg("%s", err.msg);
}

static void closed_loop(void **state)
{
    (void)state;
    for (int chat = 0; chat < 2; chat++) {
        struct server s = {.chat = chat, .delay_ms = 5, .piece = chat ? 0 : 7};
        struct sy_load_seen seen;
        start(&s);
        load(&s, 20, 4, 0, &seen);
        assert_int_equal(seen.n_request, 20);
        assert_int_equal(seen.n_done, 20);
        assert_int_equal(seen.n_error, 0);
        assert_int_equal(seen.n_short, 0);
        assert_int_equal(seen.n_in, 20 * 11);
        assert_in_range(atomic_load(&s.most_flying), 2, 4);
        assert_in_range(atomic_load(&s.n_worker), 4, 8); /* connections are kept */
        assert_int_equal(seen.ttft.n, 20);
        assert_int_equal(seen.itl.n, seen.n_out - 20);
        assert_true(seen.ttft.min >= 0.005 && seen.e2e.median > seen.ttft.median && seen.tpot.min > 0);
        assert_true(seen.duration_s >= seen.e2e.max && seen.cpu_share >= 0);
        stop(&s);
    }
}

static void request_bodies(void **state)
{
    (void)state;
    struct server s = {.key = "secret"};
    struct sy_load_seen seen;
    start(&s);
    load(&s, 3, 1, 0, &seen);
    assert_int_equal(s.n_body, 3);
    for (int i = 0; i < s.n_body; i++) {
        struct sy_json *o;
        assert_int_equal(sy_json_parse(sy_env_default(), s.body[i], strlen(s.body[i]), false, &o, NULL), SY_OK);
        const struct sy_json *prompt = sy_json_get(o, "prompt");
        assert_string_equal(sy_json_text(sy_json_get(o, "model")), "mo\"del");
        assert_in_range(sy_json_len(prompt), 5, 10);
        for (size_t k = 0; k < sy_json_len(prompt); k++)
            assert_in_range(sy_json_int(sy_json_at(prompt, k), -1), 0, 499);
        assert_in_range(sy_json_int(sy_json_get(o, "max_tokens"), -1), 2, 5);
        assert_true(sy_json_bool(sy_json_get(o, "stream"), false) &&
                    sy_json_bool(sy_json_get(o, "ignore_eos"), false));
        assert_true(sy_json_bool(sy_json_get(sy_json_get(o, "stream_options"), "include_usage"), false));
        assert_null(sy_json_get(o, "return_token_ids"));
        sy_json_free(o);
    }
    stop(&s);
}

static void open_loop(void **state)
{
    (void)state;
    struct server s = {.delay_ms = 40};
    struct sy_load_seen seen;
    start(&s);
    load(&s, 40, 0, 400, &seen);
    assert_int_equal(seen.n_done, 40);
    assert_true(atomic_load(&s.most_flying) > 4); /* nobody waited for an answer before */
    assert_true(seen.ttft.min >= 0.04);
    assert_true(seen.duration_s > 0.04);
    stop(&s);
}

static void errors(void **state)
{
    (void)state;
    static const struct {
        enum manner manner;
        const char *kind, *example;
    } cases[] = {
        {BUSY, "HTTP 429", "queue is full"},
        {FAILING, "HTTP 500", "not even JSON"},
        {BROKEN, "broken off", ""},
        {TOLD_ERROR, "error in the stream", "out of luck"},
        {GARBAGE, "malformed stream", "an event"},
        {EMPTY, "empty answer", ""},
        {SILENT, "timeout", ""},
    };
    for (size_t i = 0; i < SY_COUNT(cases); i++) {
        struct server s = {.manner = cases[i].manner};
        struct sy_load_seen seen;
        struct sy_err err;
        char url[64];
        start(&s);
        struct sy_load_opt o = options(&s, url);
        if (s.manner == SILENT) o.client.timeout_s = 0.05;
        if (load_with(sy_env_default(), &o, 6, 2, 0, &seen, &err)) fail_msg("%s", err.msg);
        assert_int_equal(seen.n_request, 6);
        assert_int_equal(seen.n_error, seen.n_done < 6);
        if (s.manner == BROKEN) assert_true(seen.n_done < 6); /* an answer of two tokens is whole */
        else assert_int_equal(seen.n_done, 0);
        assert_string_equal(seen.error[0].kind, cases[i].kind);
        if (!strstr(seen.error[0].example, cases[i].example)) fail_msg("%s", seen.error[0].example);
        assert_int_equal(seen.error[0].n, 6 - seen.n_done);
        assert_int_equal(seen.ttft.n, seen.n_done);
        stop(&s);
    }
}

static void nobody_there(void **state)
{
    (void)state;
    struct server s = {0};
    struct sy_load_seen seen;
    start(&s);
    stop(&s);
    load(&s, 3, 1, 0, &seen);
    assert_int_equal(seen.n_done, 0);
    assert_string_equal(seen.error[0].kind, "cannot connect");
    assert_int_equal(seen.error[0].n, 3);
}

static void without_usage(void **state)
{
    (void)state;
    struct server s = {.manner = NO_USAGE};
    struct sy_load_seen seen;
    start(&s);
    load(&s, 5, 1, 0, &seen);
    assert_int_equal(seen.n_done, 5);
    assert_int_equal(seen.n_short, 0);
    assert_in_range(seen.n_in, 25, 50); /* as many as were sent, and tokens as chunks came */
    assert_in_range(seen.n_out, 10, 25);
    stop(&s);
}

/* The second prompt begins with the first one and its answer. */
static void conversations(void **state)
{
    (void)state;
    const char trace[] = "{\"turns\":[{\"input_length\":4,\"output_length\":3},{\"input_length\":2,\"output_length\":"
                         "2,\"delay_ms\":30}]}\n";
    for (int kind = 0; kind < 3; kind++) {
        struct server s = {.chat = kind == 2};
        struct sy_workload w;
        struct sy_load_seen seen;
        struct sy_err err;
        char url[64];
        start(&s);
        struct sy_load_opt o = options(&s, url);
        o.ids = kind == 0;
        assert_int_equal(sy_workload_trace(sy_env_default(), trace, sizeof trace - 1, 1, &w, &err), SY_OK);
        if (sy_load_run(sy_env_default(), &o, &w, 1, 1, 0, &seen, &err)) fail_msg("%s", err.msg);
        assert_int_equal(seen.n_done, 2);
        assert_true(seen.duration_s >= 0.03);
        assert_int_equal(s.n_body, 2);
        struct sy_json *a, *b;
        assert_int_equal(sy_json_parse(sy_env_default(), s.body[0], strlen(s.body[0]), false, &a, NULL), SY_OK);
        assert_int_equal(sy_json_parse(sy_env_default(), s.body[1], strlen(s.body[1]), false, &b, NULL), SY_OK);
        const struct sy_json *pa = sy_json_get(a, "prompt"), *pb = sy_json_get(b, "prompt");
        if (kind == 0) {
            assert_int_equal(sy_json_len(pa), 4);
            assert_int_equal(sy_json_len(pb), 4 + 3 + 2);
            for (size_t i = 0; i < 4; i++)
                assert_int_equal(sy_json_int(sy_json_at(pa, i), -1), sy_json_int(sy_json_at(pb, i), -2));
            for (size_t i = 0; i < 3; i++) assert_int_equal(sy_json_int(sy_json_at(pb, 4 + i), -1), 1000 + i);
        } else if (kind == 1) {
            char want[200];
            snprintf(want, sizeof want, "%sw0 w1 w2 ", sy_json_text(pa));
            assert_int_equal(strncmp(sy_json_text(pb), want, strlen(want)), 0);
        } else {
            const struct sy_json *m = sy_json_get(b, "messages");
            assert_int_equal(sy_json_len(m), 3);
            assert_string_equal(sy_json_text(sy_json_get(sy_json_at(m, 1), "role")), "assistant");
            assert_string_equal(sy_json_text(sy_json_get(sy_json_at(m, 1), "content")), "w0 w1 w2 ");
            assert_string_equal(sy_json_text(sy_json_get(sy_json_at(m, 2), "role")), "user");
        }
        sy_json_free(a);
        sy_json_free(b);
        sy_workload_release(&w);
        stop(&s);
    }
}

static void probes(void **state)
{
    (void)state;
    struct server s = {0};
    struct sy_client *c;
    struct sy_server_says says;
    struct sy_err err;
    char url[64];
    start(&s);
    struct sy_client_opt o = options(&s, url).client;
    o.parallel = 1;
    assert_int_equal(sy_client_new(sy_env_default(), &o, &c, &err), SY_OK);
    if (sy_client_probe(c, &says, &err)) fail_msg("%s", err.msg);
    assert_string_equal(says.model, "mock");
    assert_int_equal(says.n_vocab, 777);
    s.models = "{\"data\":[{\"id\":\"other\"}]}";
    assert_int_equal(sy_client_probe(c, &says, &err), SY_OK);
    assert_int_equal(says.n_vocab, 0);
    s.models = "{\"data\":[]}";
    assert_int_equal(sy_client_probe(c, &says, &err), SY_EFORMAT);
    s.models = "<html>";
    assert_int_equal(sy_client_probe(c, &says, &err), SY_EFORMAT);
    s.key = "k";
    assert_int_equal(sy_client_probe(c, &says, &err), SY_EIO);
    assert_non_null(strstr(err.msg, "--api-key"));
    sy_client_free(c);
    stop(&s);

    assert_int_equal(sy_client_new(sy_env_default(), &o, &c, &err), SY_OK);
    assert_int_equal(sy_client_probe(c, &says, &err), SY_EIO);
    sy_client_free(c);
    o.url = "ftp://x";
    assert_int_equal(sy_client_new(sy_env_default(), &o, &c, &err), SY_EARG);
    assert_non_null(strstr(err.msg, "--url"));
}

static bool at_once(void *ctx)
{
    int *left = ctx;
    return --*left < 0;
}

static void is_stopped(void **state)
{
    (void)state;
    struct server s = {.manner = SILENT};
    struct sy_load_seen seen;
    struct sy_err err;
    char url[64];
    int left = 1;
    start(&s);
    struct sy_load_opt o = options(&s, url);
    o.watch = (struct sy_watch){.stop = at_once, .ctx = &left};
    assert_int_equal(load_with(sy_env_default(), &o, 4, 2, 0, &seen, &err), SY_EIO);
    stop(&s);
}

static void each_allocation_fails(void **state)
{
    (void)state;
    struct server s = {0};
    start(&s);
    for (long i = 1;; i++) {
        struct counted c;
        struct sy_load_seen seen;
        struct sy_err err = {0};
        char url[64];
        counted_init(&c, i);
        struct sy_load_opt o = options(&s, url);
        sy_status st = load_with(&c.env, &o, 2, 1, 0, &seen, &err);
        assert_int_equal(c.live, 0);
        if (st) assert_int_equal(st, SY_ENOMEM);
        if (c.n < i) {
            assert_int_equal(st, SY_OK);
            assert_int_equal(seen.n_done, 2);
            break;
        }
    }
    stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_loop),   cmocka_unit_test(request_bodies),
        cmocka_unit_test(open_loop),     cmocka_unit_test(errors),
        cmocka_unit_test(nobody_there),  cmocka_unit_test(without_usage),
        cmocka_unit_test(conversations), cmocka_unit_test(probes),
        cmocka_unit_test(is_stopped),    cmocka_unit_test(each_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
