#include "bench/client.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/json.h"

enum { URL_MAX = 1000, BODY_KEPT = 16384, EVENTS = 256 };

struct slot {          /* an answer in flight, or one that waits to be */
    struct slot *next; /* among the free ones */
    struct sy_client *c;
    CURL *easy;
    struct sy_sse sse;
    struct sy_buf request, refusal, text, ids;
    struct sy_samples gap;
    struct sy_heard h;
    struct sy_err err;     /* of the stream; code SY_OK: none */
    long status;           /* HTTP; 0: not known yet */
    bool busy, keep, done; /* done: the stream said [DONE] or why it ended */
};
struct sy_client {
    const struct sy_env *env;
    CURLM *multi;
    struct curl_slist *headers;
    int epoll, timer;
    uint64_t curl_due; /* when libcurl wants to be called; 0: never */
    char url[URL_MAX]; /* ends in /v1 */
    bool chat;
    double timeout_s;
    struct slot *slot, *free;
    int32_t n_slot, n_slot_max, n_busy; /* slots are made when they are first needed */
    void (*on_end)(void *, const struct sy_heard *);
    void *ctx;
};

/* ---- what libcurl calls -------------------------------------------------------------------------------------- */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *known)
{
    (void)easy;
    struct sy_client *c = ctx;
    struct epoll_event ev = {.data.fd = fd};
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(c->epoll, EPOLL_CTL_DEL, fd, NULL);
        curl_multi_assign(c->multi, fd, NULL);
        return 0;
    }
    if (what & CURL_POLL_IN) ev.events |= EPOLLIN;
    if (what & CURL_POLL_OUT) ev.events |= EPOLLOUT;
    int op = known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(c->epoll, op, fd, &ev) && errno == EEXIST) epoll_ctl(c->epoll, EPOLL_CTL_MOD, fd, &ev);
    if (!known) curl_multi_assign(c->multi, fd, c);
    return 0;
}

static int on_timer(CURLM *multi, long ms, void *ctx)
{
    (void)multi;
    struct sy_client *c = ctx;
    c->curl_due = ms < 0 ? 0 : sy_now_ns(c->env) + (uint64_t)ms * 1000000 + 1; /* never 0 */
    return 0;
}

static sy_status on_event(void *ctx, const char *data, size_t n, struct sy_err *err)
{
    struct slot *s = ctx;
    uint64_t now = sy_now_ns(s->c->env);
    struct sy_chunk c;
    sy_status st = sy_chunk_read(s->c->env, data, n, &c, err);
    if (st) return st;
    if (c.error) st = sy_fail(err, SY_ECOMM, "%s", c.error);
    if (c.done || c.finish) s->done = true;
    if (c.n_prompt >= 0) s->h.n_prompt = c.n_prompt;
    if (c.n_output >= 0) s->h.n_output = c.n_output;
    if (c.has_token) {
        if (s->h.t_first) sy_samples_add(&s->gap, (double)(now - s->h.t_last) / 1e9);
        else s->h.t_first = now;
        s->h.t_last = now;
        s->h.n_chunk++;
    }
    if (s->keep && c.text) sy_buf_add(&s->text, c.text, c.n_text);
    for (size_t i = 0; s->keep && i < sy_json_len(c.ids); i++)
        sy_buf_printf(&s->ids, "%s%lld", s->ids.len ? "," : "", (long long)sy_json_int(sy_json_at(c.ids, i), 0));
    sy_chunk_release(&c);
    return st;
}

static size_t on_bytes(char *bytes, size_t size, size_t n, void *ctx)
{
    struct slot *s = ctx;
    n *= size;
    if (!s->status) curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &s->status);
    if (s->status != 200) {
        size_t room = BODY_KEPT - s->refusal.len;
        sy_buf_add(&s->refusal, bytes, n < room ? n : room);
        return n;
    }
    sy_status st = sy_sse_feed(&s->sse, bytes, n, on_event, s, &s->err);
    if (!st) return n;
    s->err.code = st;
    return CURL_WRITEFUNC_ERROR;
}

/* ---- opening ------------------------------------------------------------------------------------------------- */

static void free_slot(struct slot *s)
{
    if (s->easy) curl_easy_cleanup(s->easy);
    sy_sse_release(&s->sse);
    sy_buf_release(&s->request);
    sy_buf_release(&s->refusal);
    sy_buf_release(&s->text);
    sy_buf_release(&s->ids);
    sy_samples_release(&s->gap);
}

static bool set_common(const struct sy_client *c, CURL *e, const char *path, char url[static URL_MAX + 40])
{
    snprintf(url, URL_MAX + 40, "%s%s", c->url, path);
    /* Never through a proxy: it would be measured too. */
    return !curl_easy_setopt(e, CURLOPT_URL, url) && !curl_easy_setopt(e, CURLOPT_PROXY, "") &&
           !curl_easy_setopt(e, CURLOPT_HTTPHEADER, c->headers) && !curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L) &&
           !curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https") &&
           !curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) &&
           !curl_easy_setopt(e, CURLOPT_USERAGENT, "systole/" SY_VERSION) &&
           !curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, 20000L) &&
           !curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)(c->timeout_s * 1e3));
}

static bool make_slot(struct sy_client *c)
{
    char url[URL_MAX + 40];
    struct slot *s = &c->slot[c->n_slot++];
    s->c = c;
    sy_sse_init(&s->sse, c->env);
    sy_buf_init(&s->request, c->env, 0);
    sy_buf_init(&s->refusal, c->env, 0);
    sy_buf_init(&s->text, c->env, 0);
    sy_buf_init(&s->ids, c->env, 0);
    sy_samples_init(&s->gap, c->env);
    s->easy = curl_easy_init();
    if (!s->easy || !set_common(c, s->easy, c->chat ? "/chat/completions" : "/completions", url) ||
        curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, on_bytes) ||
        curl_easy_setopt(s->easy, CURLOPT_WRITEDATA, s) || curl_easy_setopt(s->easy, CURLOPT_PRIVATE, s) ||
        curl_easy_setopt(s->easy, CURLOPT_POST, 1L))
        return false;
    s->next = c->free;
    c->free = s;
    return true;
}

static sy_status read_url(struct sy_client *c, const char *url, struct sy_err *err)
{
    if (strncmp(url, "http://", 7) && strncmp(url, "https://", 8))
        return sy_fail(err, SY_EARG, "--url: expected http://host:port or https://host:port, found '%.60s'", url);
    size_t n = strlen(url);
    while (n && url[n - 1] == '/') n--;
    bool versioned = n > 3 && !memcmp(url + n - 3, "/v1", 3);
    if (n + 4 > sizeof c->url) return sy_fail(err, SY_EARG, "--url: expected at most %zu bytes", sizeof c->url - 4);
    snprintf(c->url, sizeof c->url, "%.*s%s", (int)n, url, versioned ? "" : "/v1");
    return SY_OK;
}

static bool add_header(struct sy_client *c, const char *line)
{
    struct curl_slist *more = curl_slist_append(c->headers, line);
    if (more) c->headers = more;
    return more != NULL;
}

static bool make_headers(struct sy_client *c, const struct sy_client_opt *o)
{
    if (!add_header(c, "Content-Type: application/json") || !add_header(c, "Expect:")) return false;
    if (!o->api_key) return true;
    struct sy_buf line;
    sy_buf_init(&line, c->env, 0);
    sy_buf_printf(&line, "Authorization: Bearer %s", o->api_key);
    bool ok = !line.failed && add_header(c, line.at);
    sy_buf_release(&line);
    return ok;
}

static bool set_multi(struct sy_client *c, int32_t parallel)
{
    return !curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, on_socket) &&
           !curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c) &&
           !curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, on_timer) &&
           !curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c) &&
           !curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, (long)parallel + 1);
}

sy_status sy_client_new(const struct sy_env *env, const struct sy_client_opt *o, struct sy_client **out,
                        struct sy_err *err)
{
    struct sy_client *c = sy_new(env, sizeof *c);
    if (!c) return sy_fail(err, SY_ENOMEM, "no memory for the client");
    c->env = env;
    c->chat = o->chat;
    c->timeout_s = o->timeout_s;
    c->n_slot_max = o->parallel;
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    c->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = c->timer};
    sy_status st = read_url(c, o->url, err);
    if (!st && (c->epoll < 0 || c->timer < 0 || epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->timer, &ev)))
        st = sy_fail(err, SY_EIO, "cannot wait for sockets: %s", strerror(errno));
    if (!st) c->slot = sy_new_array(env, (size_t)o->parallel, sizeof *c->slot);
    bool ok = !st && c->slot && !curl_global_init(CURL_GLOBAL_DEFAULT) && (c->multi = curl_multi_init()) &&
              set_multi(c, o->parallel) && make_headers(c, o);
    if (!st && !ok) st = sy_fail(err, SY_ENOMEM, "no memory for %d connections", o->parallel);
    if (st) sy_client_free(c);
    else *out = c;
    return st;
}

void sy_client_free(struct sy_client *c)
{
    if (!c) return;
    for (int32_t i = 0; i < c->n_slot; i++) {
        if (c->slot[i].busy) curl_multi_remove_handle(c->multi, c->slot[i].easy);
        free_slot(&c->slot[i]);
    }
    if (c->multi) curl_multi_cleanup(c->multi);
    curl_slist_free_all(c->headers);
    if (c->epoll >= 0) close(c->epoll);
    if (c->timer >= 0) close(c->timer);
    sy_delete(c->env, c->slot);
    sy_delete(c->env, c);
}

/* ---- who is there -------------------------------------------------------------------------------------------- */

static size_t keep_bytes(char *bytes, size_t size, size_t n, void *ctx)
{
    sy_buf_add(ctx, bytes, size * n);
    return ((struct sy_buf *)ctx)->failed ? 0 : size * n;
}

static sy_status read_models(const struct sy_buf *body, const struct sy_env *env, struct sy_server_says *out,
                             struct sy_err *err)
{
    struct sy_json *root;
    sy_status st = sy_json_parse(env, body->len ? body->at : "", body->len, false, &root, err);
    if (st) return st;
    const struct sy_json *first = sy_json_at(sy_json_get(root, "data"), 0), *meta = sy_json_get(first, "meta");
    const char *id = sy_json_text(sy_json_get(first, "id"));
    snprintf(out->model, sizeof out->model, "%s", id ? id : "");
    out->n_vocab = sy_json_int(sy_json_get(meta, "n_vocab"), 0);
    if (out->n_vocab < 1 || out->n_vocab > INT32_MAX) out->n_vocab = 0;
    if (!id) st = sy_fail(err, SY_EFORMAT, "expected {\"data\":[{\"id\":...}]}");
    sy_json_free(root);
    return st;
}

sy_status sy_client_probe(struct sy_client *c, struct sy_server_says *out, struct sy_err *err)
{
    char url[URL_MAX + 40];
    struct sy_buf body;
    sy_buf_init(&body, c->env, 4 << 20);
    CURL *e = curl_easy_init();
    sy_status st = SY_OK;
    if (!e || !set_common(c, e, "/models", url) || curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, keep_bytes) ||
        curl_easy_setopt(e, CURLOPT_WRITEDATA, &body))
        st = sy_fail(err, SY_ENOMEM, "no memory for a request");
    CURLcode code = st ? CURLE_OK : curl_easy_perform(e);
    long status = 0;
    if (!st) curl_easy_getinfo(e, CURLINFO_RESPONSE_CODE, &status);
    if (!st && code) st = sy_fail(err, SY_EIO, "%s: %s", url, curl_easy_strerror(code));
    else if (!st && status == 401) st = sy_fail(err, SY_EIO, "%s: the server wants a key (--api-key)", url);
    else if (!st && status != 200)
        st = sy_fail(err, SY_EIO, "%s: HTTP %ld; expected a server with OpenAI's API", url, status);
    if (!st && (st = read_models(&body, c->env, out, err))) st = sy_while(err, st, "%s", url);
    if (e) curl_easy_cleanup(e);
    sy_buf_release(&body);
    return st;
}

/* ---- answers ------------------------------------------------------------------------------------------------- */

sy_status sy_client_send(struct sy_client *c, const char *body, size_t n_body, uint64_t t_start, bool keep, void *ctx,
                         struct sy_err *err)
{
    if (!c->free && c->n_slot == c->n_slot_max)
        return sy_fail(err, SY_FULL, "%d requests are in flight already", c->n_slot);
    if (!c->free && !make_slot(c)) return sy_fail(err, SY_ENOMEM, "no memory for a connection");
    struct slot *s = c->free;
    sy_sse_clear(&s->sse);
    sy_buf_clear(&s->request);
    sy_buf_clear(&s->refusal);
    sy_buf_clear(&s->text);
    sy_buf_clear(&s->ids);
    s->gap.n = 0;
    s->err = (struct sy_err){0};
    s->status = 0;
    s->done = false;
    s->keep = keep;
    s->h = (struct sy_heard){.t_start = t_start, .n_prompt = -1, .n_output = -1, .ctx = ctx};
    sy_buf_add(&s->request, body, n_body);
    if (s->request.failed || curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, s->request.at) ||
        curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)n_body) ||
        curl_multi_add_handle(c->multi, s->easy))
        return sy_fail(err, SY_ENOMEM, "no memory for a request of %zu bytes", n_body);
    c->free = s->next;
    s->busy = true;
    c->n_busy++;
    return SY_OK;
}

int32_t sy_client_in_flight(const struct sy_client *c) { return c->n_busy; }

/* The message of an OpenAI error object, else the beginning of what came. */
static void read_refusal(const struct slot *s, char *out, size_t n)
{
    struct sy_json *root = NULL;
    const char *text = NULL;
    if (s->refusal.len && !sy_json_parse(s->c->env, s->refusal.at, s->refusal.len, false, &root, NULL))
        text = sy_json_text(sy_json_get(sy_json_get(root, "error"), "message"));
    snprintf(out, n, "%s", text ? text : s->refusal.len ? s->refusal.at : "");
    sy_json_free(root);
}

static void judge(struct slot *s, CURLcode code)
{
    struct sy_heard *h = &s->h;
    if (!s->status) curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &s->status);
    if (s->err.code) {
        snprintf(h->error, sizeof h->error, s->err.code == SY_ECOMM ? "error in the stream" : "malformed stream");
        snprintf(h->detail, sizeof h->detail, "%.190s", s->err.msg);
    } else if (code == CURLE_OPERATION_TIMEDOUT) {
        snprintf(h->error, sizeof h->error, "timeout");
    } else if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST) {
        snprintf(h->error, sizeof h->error, "cannot connect");
        snprintf(h->detail, sizeof h->detail, "%s", curl_easy_strerror(code));
    } else if (!code && s->status != 200) {
        snprintf(h->error, sizeof h->error, "HTTP %ld", s->status);
        read_refusal(s, h->detail, sizeof h->detail);
    } else if (code || !s->done) {
        snprintf(h->error, sizeof h->error, "broken off");
        snprintf(h->detail, sizeof h->detail, "%s",
                 code ? curl_easy_strerror(code) : "the stream ended before the answer did");
    } else if (h->n_chunk == 0) {
        snprintf(h->error, sizeof h->error, "empty answer");
    } else if (s->gap.failed || s->text.failed || s->ids.failed) {
        snprintf(h->error, sizeof h->error, "no memory");
    }
}

static void end(struct sy_client *c, struct slot *s, CURLcode code)
{
    curl_multi_remove_handle(c->multi, s->easy);
    judge(s, code);
    s->h.text = &s->text;
    s->h.ids = &s->ids;
    s->h.gap = s->gap.at;
    s->h.n_gap = s->gap.n;
    s->busy = false;
    c->n_busy--;
    c->on_end(c->ctx, &s->h);
    s->next = c->free;
    c->free = s;
}

static void collect(struct sy_client *c)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(c->multi, &left));) {
        if (m->msg != CURLMSG_DONE) continue;
        struct slot *s;
        CURLcode code = m->data.result; /* the message is gone once its handle is removed */
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &s);
        end(c, s, code);
    }
}

static void arm(struct sy_client *c, uint64_t until_ns)
{
    uint64_t due = until_ns;
    if (c->curl_due && (!due || c->curl_due < due)) due = c->curl_due;
    struct itimerspec t = {.it_value = {(time_t)(due / 1000000000), (long)(due % 1000000000)}};
    timerfd_settime(c->timer, TFD_TIMER_ABSTIME, &t, NULL); /* due 0: never */
}

sy_status sy_client_wait(struct sy_client *c, uint64_t until_ns, void (*on_end)(void *, const struct sy_heard *),
                         void *ctx, struct sy_err *err)
{
    struct epoll_event ev[EVENTS];
    int running;
    c->on_end = on_end;
    c->ctx = ctx;
    arm(c, until_ns);
    int n = epoll_wait(c->epoll, ev, EVENTS, -1);
    if (n < 0 && errno != EINTR) return sy_fail(err, SY_EIO, "cannot wait for sockets: %s", strerror(errno));
    for (int i = 0; i < n; i++) {
        if (ev[i].data.fd == c->timer) {
            uint64_t fired;
            (void)!read(c->timer, &fired, sizeof fired);
            continue;
        }
        int what = (ev[i].events & (EPOLLIN | EPOLLHUP) ? CURL_CSELECT_IN : 0) |
                   (ev[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                   (ev[i].events & EPOLLERR ? CURL_CSELECT_ERR : 0);
        curl_multi_socket_action(c->multi, ev[i].data.fd, what, &running);
    }
    if (c->curl_due && sy_now_ns(c->env) >= c->curl_due) {
        c->curl_due = 0; /* libcurl sets it again when it wants to */
        curl_multi_socket_action(c->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    collect(c);
    return SY_OK;
}
