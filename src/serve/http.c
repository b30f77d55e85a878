/* http.c - one request over libmicrohttpd, on its thread: headers checked, body collected, answer sent.
 * Everything long is handed to a worker while the connection is suspended. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

#include "serve/server_int.h"

/* What is read of a refused body, so that the client is still there to read why: a close with unread data
 * resets it. */
static size_t drain_max(const struct sy_server *s) { return 4 * s->opt.body_bytes_max + (64u << 20); }

static const char *header(const struct req *r, const char *name)
{
    return MHD_lookup_connection_value(r->conn, MHD_HEADER_KIND, name);
}

/* ---- life ---------------------------------------------------------------------------------------------- */

void req_ref(struct req *r) { atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed); }

void req_unref(struct req *r)
{
    if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1) return;
    sy_call_free(r->call);
    atomic_fetch_sub(&r->srv->body_bytes, (int64_t)r->body.cap);
    sy_buf_release(&r->body);
    sy_buf_release(&r->out);
    pthread_mutex_destroy(&r->lock);
    sy_delete(r->srv->env, r);
}

void req_wake(struct req *r)
{
    if (!r->suspended || !r->conn) return;
    r->suspended = false;
    MHD_resume_connection(r->conn);
}

static void take_id(struct req *r)
{
    const char *own = header(r, "X-Request-Id");
    size_t n = own ? strlen(own) : 0;
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-";
    if (n && n <= REQUEST_ID_BYTES && strspn(own, plain) == n) {
        memcpy(r->id, own, n + 1);
        return;
    }
    uint64_t v[2] = {0};
    (void)!getrandom(v, sizeof v, 0);
    snprintf(r->id, sizeof r->id, "req-%016llx%016llx", (unsigned long long)v[0], (unsigned long long)v[1]);
}

static void take_remote(struct req *r)
{
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(r->conn, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = i ? i->client_addr : NULL;
    const struct sockaddr_in *v4 = (const void *)a;
    const struct sockaddr_in6 *v6 = (const void *)a;
    snprintf(r->remote, sizeof r->remote, "unix");
    if (a && a->sa_family == AF_INET) inet_ntop(AF_INET, &v4->sin_addr, r->remote, sizeof r->remote);
    if (a && a->sa_family == AF_INET6) inet_ntop(AF_INET6, &v6->sin6_addr, r->remote, sizeof r->remote);
}

/* ---- headers ------------------------------------------------------------------------------------------- */

static bool own_host(const struct req *r, const char *origin)
{
    const char *host = header(r, "Host"), *at = strstr(origin, "://");
    return host && at && !strcasecmp(at + 3, host);
}

/* A page of another origin may not even send: what a browser lets it send unasked would run on the user's
 * machine. */
static bool check_origin(struct req *r)
{
    const char *origin = header(r, "Origin");
    if (!origin || own_host(r, origin)) return true;
    for (size_t i = 0; i < r->srv->opt.n_cors; i++) {
        const char *own = r->srv->opt.cors[i];
        if (strcmp(own, "*") && strcasecmp(own, origin)) continue;
        r->origin = strcmp(own, "*") ? origin : "*";
        return true;
    }
    return sy_problem_set(&r->problem, 403, "origin_not_allowed", NULL,
                          "pages of this origin are not allowed; see --cors-origin");
}

static bool check_key(struct req *r)
{
    bool open = r->route && (r->route->kind == ROUTE_HEALTH || r->route->kind == ROUTE_READY);
    if (sy_auth_check(&r->srv->auth, header(r, "Authorization"), r->who) || open) return true;
    return sy_problem_set(&r->problem, 401, "invalid_api_key", NULL,
                          "expected 'Authorization: Bearer KEY' with a key of this server");
}

static bool check_route(struct req *r)
{
    if (!r->route)
        return sy_problem_set(&r->problem, 404, "not_found", NULL, "there is nothing at '%.100s'", r->path);
    bool call = r->route->kind == ROUTE_CALL, get = !strcmp(r->method, "GET") || !strcmp(r->method, "HEAD");
    if (call ? !strcmp(r->method, "POST") : get) return true;
    return sy_problem_set(&r->problem, 405, "method_not_allowed", NULL, "expected %s, found %s",
                          call ? "POST" : "GET", r->method);
}

static enum MHD_Result add_size(void *ctx, enum MHD_ValueKind kind, const char *key, const char *value)
{
    (void)kind;
    *(size_t *)ctx += strlen(key) + (value ? strlen(value) : 0) + 4;
    return MHD_YES;
}

static bool check_headers(struct req *r)
{
    size_t n = 0;
    MHD_get_connection_values(r->conn, MHD_HEADER_KIND, add_size, &n);
    if (n <= HEADER_BYTES_MAX) return true;
    r->close = true;
    return sy_problem_set(&r->problem, 431, "headers_too_large", NULL, "at most %d bytes of headers, found %zu",
                          HEADER_BYTES_MAX, n);
}

static bool check_length(struct req *r)
{
    const char *length = header(r, "Content-Length");
    unsigned long long bytes = length ? strtoull(length, NULL, 10) : 0;
    r->expects = r->expects || bytes > drain_max(r->srv); /* too much to read it only to be polite */
    if (bytes <= r->srv->opt.body_bytes_max) return true;
    return sy_problem_set(&r->problem, 413, "body_too_large", NULL,
                          "at most %zu bytes of body (--max-body), found %llu", r->srv->opt.body_bytes_max, bytes);
}

static bool check_room(struct req *r, bool over)
{
    bool open = r->route &&
                (r->route->kind == ROUTE_HEALTH || r->route->kind == ROUTE_READY || r->route->kind == ROUTE_METRICS);
    if (over && !open) {
        r->close = true;
        r->problem.retry_s = 1;
        return sy_problem_set(&r->problem, 503, "too_many_connections", NULL,
                              "at most %d connections (--max-connections)", r->srv->opt.connections_max);
    }
    if (!atomic_load(&r->srv->draining) || open) return true;
    r->close = true;
    r->problem.retry_s = 5;
    return sy_problem_set(&r->problem, 503, "stopping", NULL, "the server is stopping");
}

static void mark_connection(struct req *r, bool body)
{
    struct sy_server *s = r->srv;
    pthread_mutex_lock(&s->lock);
    struct conn *c = &s->conn[r->slot];
    c->busy = !body;
    c->in_body = body;
    c->in_header = false;
    c->since = sy_now_ns(s->env);
    c->req = r;
    pthread_mutex_unlock(&s->lock);
}

static struct req *begin(struct sy_server *s, struct MHD_Connection *conn, const char *url, const char *method)
{
    struct req *r = sy_new(s->env, sizeof *r);
    if (!r) return NULL;
    *r = (struct req){.srv = s, .conn = conn, .t_start = sy_now_ns(s->env), .type = "application/json"};
    atomic_init(&r->refs, 1);
    pthread_mutex_init(&r->lock, NULL);
    sy_buf_init(&r->body, s->env, s->opt.body_bytes_max);
    sy_buf_init(&r->out, s->env, 0);
    snprintf(r->method, sizeof r->method, "%s", method);
    snprintf(r->path, sizeof r->path, "%s", url);
    r->route = route_find(url, &r->tail);
    /* tail points into url, which libmicrohttpd keeps as long as the request. */
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    r->slot = (uint32_t)((uintptr_t)i->socket_context - 1);
    const char *expect = header(r, "Expect");
    r->expects = expect && !strcasecmp(expect, "100-continue");
    take_id(r);
    take_remote(r);
    pthread_mutex_lock(&s->lock);
    bool over = s->conn[r->slot].over;
    r->next = s->reqs;
    if (s->reqs) s->reqs->prev = r;
    s->reqs = r;
    pthread_mutex_unlock(&s->lock);
    bool preflight = !strcmp(method, "OPTIONS") && header(r, "Access-Control-Request-Method");
    bool mine = check_headers(r) && check_origin(r) && !(preflight && r->origin) && check_key(r) && check_route(r);
    if (check_length(r) && mine) check_room(r, over);
    r->counted = !r->problem.status && r->route && r->route->kind == ROUTE_CALL;
    if (r->counted) atomic_fetch_add(&s->n_busy, 1);
    mark_connection(r, true);
    return r;
}

/* ---- body ---------------------------------------------------------------------------------------------- */

static void take_body(struct req *r, const char *bytes, size_t n)
{
    r->discarded += n;
    if (r->problem.status || !r->counted) return;
    /* All bodies together: many clients may each be within the limit. */
    if (atomic_load(&r->srv->body_bytes) + (int64_t)n > 16 * (int64_t)r->srv->opt.body_bytes_max) {
        r->problem.retry_s = 1;
        sy_problem_set(&r->problem, 503, "unavailable", NULL, "too many large requests at once");
    } else {
        size_t before = r->body.cap;
        sy_buf_add(&r->body, bytes, n);
        atomic_fetch_add(&r->srv->body_bytes, (int64_t)(r->body.cap - before));
        if (!r->body.failed) return;
        bool large = r->discarded > r->srv->opt.body_bytes_max;
        sy_problem_set(&r->problem, large ? 413 : 503, large ? "body_too_large" : "unavailable", NULL,
                       large ? "at most %zu bytes of body (--max-body)" : "no memory for a body of up to %zu bytes",
                       r->srv->opt.body_bytes_max);
    }
    atomic_fetch_sub(&r->srv->body_bytes, (int64_t)r->body.cap);
    sy_buf_release(&r->body);
}

/* ---- answer -------------------------------------------------------------------------------------------- */

static void add_headers(struct req *r, struct MHD_Response *m, int status)
{
    char number[16];
    MHD_add_response_header(m, "Content-Type", r->type);
    MHD_add_response_header(m, "X-Request-Id", r->id);
    MHD_add_response_header(m, "X-Content-Type-Options", "nosniff");
    if (status == 401) MHD_add_response_header(m, "WWW-Authenticate", "Bearer");
    if (status == 405 && r->route)
        MHD_add_response_header(m, "Allow", r->route->kind == ROUTE_CALL ? "POST" : "GET, HEAD");
    if (r->origin) {
        MHD_add_response_header(m, "Access-Control-Allow-Origin", r->origin);
        MHD_add_response_header(m, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
        if (strcmp(r->origin, "*")) MHD_add_response_header(m, "Vary", "Origin");
    }
    const struct sy_problem *p = r->call && r->call->problem.status ? &r->call->problem : &r->problem;
    if (p->retry_s) {
        snprintf(number, sizeof number, "%d", p->retry_s);
        MHD_add_response_header(m, "Retry-After", number);
    }
    if (r->call && r->call->ask.ignored[0]) MHD_add_response_header(m, "X-Ignored-Fields", r->call->ask.ignored);
    if (r->close || atomic_load(&r->srv->draining)) MHD_add_response_header(m, "Connection", "close");
}

static enum MHD_Result send_response(struct req *r, struct MHD_Response *m, int status)
{
    if (!m) return MHD_NO;
    r->status = status;
    add_headers(r, m, status);
    enum MHD_Result ok = MHD_queue_response(r->conn, (unsigned)status, m);
    MHD_destroy_response(m);
    return ok;
}

/* out stays where it is until the request is completed. */
static enum MHD_Result send_out(struct req *r)
{
    if (r->out.failed) return MHD_NO;
    r->phase = PHASE_SENT;
    return send_response(
        r, MHD_create_response_from_buffer(r->out.len, r->out.at ? r->out.at : "", MHD_RESPMEM_PERSISTENT),
        r->status);
}

static enum MHD_Result send_problem(struct req *r)
{
    sy_buf_clear(&r->out);
    sy_problem_json(&r->problem, &r->out);
    r->status = r->problem.status;
    r->type = "application/json";
    return send_out(r);
}

static enum MHD_Result send_preflight(struct req *r)
{
    struct MHD_Response *m = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    if (!m) return MHD_NO;
    MHD_add_response_header(m, "Access-Control-Allow-Methods", "GET, POST");
    /* Clients of every maker have headers of their own; the origin is what is checked. */
    const char *wanted = header(r, "Access-Control-Request-Headers");
    MHD_add_response_header(m, "Access-Control-Allow-Headers", wanted ? wanted : "Authorization, Content-Type");
    MHD_add_response_header(m, "Access-Control-Max-Age", "600");
    r->phase = PHASE_SENT;
    return send_response(r, m, 204);
}

static ssize_t next_events(void *ctx, uint64_t pos, char *to, size_t max)
{
    struct req *r = ctx;
    (void)pos;
    pthread_mutex_lock(&r->lock);
    if (r->out_at == r->out.len && !r->out_last) {
        sy_buf_clear(&r->out);
        r->out_at = 0;
        r->out_last = sy_call_events(r->call, &r->out);
    }
    size_t n = r->out.len - r->out_at;
    ssize_t got = (ssize_t)(n < max ? n : max);
    if (r->out.failed || (r->gone && !n)) {
        got = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (n) {
        memcpy(to, r->out.at + r->out_at, (size_t)got);
        r->out_at += (size_t)got;
    } else if (r->out_last) {
        got = MHD_CONTENT_READER_END_OF_STREAM;
    } else if (atomic_load(&r->srv->closing)) {
        got = MHD_CONTENT_READER_END_WITH_ERROR;
    } else {
        r->suspended = true;
        MHD_suspend_connection(r->conn);
    }
    pthread_mutex_unlock(&r->lock);
    return got;
}

static enum MHD_Result send_stream(struct req *r)
{
    struct MHD_Response *m = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, next_events, r, NULL);
    if (!m) return MHD_NO;
    r->type = "text/event-stream; charset=utf-8";
    MHD_add_response_header(m, "Cache-Control", "no-cache");
    MHD_add_response_header(m, "X-Accel-Buffering", "no"); /* nginx would hold events back */
    return send_response(r, m, 200);
}

/* ---- libmicrohttpd calls ------------------------------------------------------------------------------- */

enum act { ACT_CLOSE, ACT_WAIT, ACT_PROBLEM, ACT_PREFLIGHT, ACT_OUT, ACT_STREAM };

static enum act wait_suspended(struct req *r)
{
    if (atomic_load(&r->srv->closing)) return ACT_CLOSE;
    r->suspended = true;
    MHD_suspend_connection(r->conn);
    return ACT_WAIT;
}

/* Under the lock: the body is here, or a worker or the pump has woken the connection. What follows is done
 * without the lock: responses have one of their own, which is held while next_events() is called. */
static enum act decide(struct req *r)
{
    if (r->gone) return ACT_CLOSE;
    switch (r->phase) {
    case PHASE_BODY:
        mark_connection(r, false);
        if (r->problem.status) return ACT_PROBLEM;
        if (r->origin && !strcmp(r->method, "OPTIONS")) return ACT_PREFLIGHT;
        if (r->route->kind != ROUTE_CALL) {
            route_answer(r);
            return r->problem.status ? ACT_PROBLEM : ACT_OUT;
        }
        if (wait_suspended(r) == ACT_CLOSE) return ACT_CLOSE;
        r->phase = PHASE_START;
        work_watch(r);
        req_push_work(r);
        return ACT_WAIT;
    case PHASE_READY: return ACT_OUT;
    case PHASE_STREAM: return ACT_STREAM;
    case PHASE_START:
    case PHASE_RUN:
    case PHASE_FORMAT: return wait_suspended(r); /* woken for nothing */
    case PHASE_SENT: break;
    }
    return ACT_CLOSE;
}

static enum MHD_Result go_on(struct req *r)
{
    pthread_mutex_lock(&r->lock);
    enum act act = decide(r);
    pthread_mutex_unlock(&r->lock);
    switch (act) {
    case ACT_CLOSE: return MHD_NO;
    case ACT_WAIT: return MHD_YES;
    case ACT_PROBLEM: return send_problem(r);
    case ACT_PREFLIGHT: return send_preflight(r);
    case ACT_OUT: return send_out(r);
    case ACT_STREAM: return send_stream(r);
    }
    return MHD_NO;
}

enum MHD_Result http_request(void *server, struct MHD_Connection *conn, const char *url, const char *method,
                             const char *version, const char *upload, size_t *n_upload, void **req)
{
    (void)version;
    struct req *r = *req;
    if (!r) {
        *req = r = begin(server, conn, url, method);
        if (!r) return MHD_NO;
        bool at_once = r->problem.status && (r->expects || r->close);
        if (!at_once) return MHD_YES;
        mark_connection(r, false);
        r->close = true;
        return send_problem(r);
    }
    if (*n_upload) {
        take_body(r, upload, *n_upload);
        *n_upload = 0;
        return r->discarded > drain_max(r->srv) ? MHD_NO : MHD_YES;
    }
    return go_on(r);
}

static void write_log(struct req *r, enum MHD_RequestTerminationCode why)
{
    if (!r->srv->log) return;
    struct sy_buf b;
    char when[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    sy_buf_init(&b, r->srv->env, 0);
    sy_buf_printf(&b, "{\"time\":\"%s\",\"request_id\":\"%s\",\"remote\":\"%s\",\"method\":", when, r->id, r->remote);
    sy_json_quote(&b, r->method, strlen(r->method));
    sy_buf_text(&b, ",\"path\":");
    sy_json_quote(&b, r->path, strlen(r->path));
    sy_buf_printf(&b, ",\"status\":%d,\"complete\":%s,\"ms\":%.3f", r->status,
                  why == MHD_REQUEST_TERMINATED_COMPLETED_OK ? "true" : "false",
                  (double)(sy_now_ns(r->srv->env) - r->t_start) / 1e6);
    if (r->call && r->call->item) {
        struct sy_usage u = sy_call_usage(r->call);
        sy_buf_printf(&b, ",\"stream\":%s,\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"cached_tokens\":%lld",
                      r->call->ask.stream ? "true" : "false", (long long)u.prompt, (long long)u.completion,
                      (long long)u.cached);
    }
    sy_buf_char(&b, '}');
    if (!b.failed) sy_accesslog_add(r->srv->log, b.at, b.len);
    sy_buf_release(&b);
}

void http_completed(void *server, struct MHD_Connection *conn, void **req, enum MHD_RequestTerminationCode why)
{
    (void)conn;
    struct sy_server *s = server;
    struct req *r = *req;
    if (!r) return;
    pthread_mutex_lock(&s->lock);
    struct conn *c = &s->conn[r->slot];
    c->busy = c->in_body = c->in_header = false;
    c->since = sy_now_ns(s->env);
    c->bytes_idle = work_received(c->fd);
    c->req = NULL;
    c->generation++;
    if (r->prev) r->prev->next = r->next;
    else s->reqs = r->next;
    if (r->next) r->next->prev = r->prev;
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&r->lock);
    r->conn = NULL;
    r->gone = true;
    if (r->call && r->in_engine) sy_call_cancel(r->call);
    write_log(r, why);
    int status = r->status;
    pthread_mutex_unlock(&r->lock);
    if (status >= 100 && status < 600) atomic_fetch_add(&s->n_status[status / 100], 1);
    if (r->counted) atomic_fetch_sub(&s->n_busy, 1);
    req_unref(r);
    *req = NULL;
}

/* The connection's place in the table is its context, plus one. */
void http_connection(void *server, struct MHD_Connection *conn, void **context,
                     enum MHD_ConnectionNotificationCode code)
{
    struct sy_server *s = server;
    pthread_mutex_lock(&s->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        uint32_t slot = s->free_slot;
        sy_assert(slot < s->n_slot); /* there are as many as connections that libmicrohttpd lets in */
        s->free_slot = s->next_free[slot];
        int32_t n = atomic_fetch_add(&s->n_conn, 1);
        struct conn *c = &s->conn[slot];
        *c = (struct conn){.mhd = conn,
                           .fd = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd,
                           .since = sy_now_ns(s->env),
                           .generation = c->generation + 1,
                           .tls = s->cert != NULL,
                           .over = n >= s->opt.connections_max};
        *context = (void *)((uintptr_t)slot + 1);
        if (n == 0) work_wake(s);
    } else {
        uint32_t slot = (uint32_t)((uintptr_t)*context - 1);
        s->conn[slot].mhd = NULL;
        s->conn[slot].generation++;
        s->next_free[slot] = s->free_slot;
        s->free_slot = slot;
        atomic_fetch_sub(&s->n_conn, 1);
    }
    pthread_mutex_unlock(&s->lock);
}
