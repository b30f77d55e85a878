#include "serve/router.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/rng.h"

enum { BACKEND_MAX = 64, CHUNK = 64 << 10, WAIT_MS = 250 };

/* ---- the policy -------------------------------------------------------------------------------------------------
 */

static bool usable(const struct sy_route_backend *b, enum sy_route_role role)
{
    return b->healthy && !b->draining && b->role == role;
}

int32_t sy_route_pick(const struct sy_route_backend *b, int32_t n, enum sy_route_role wanted, uint64_t prefix)
{
    int32_t count = 0, best = -1;
    int64_t open = 0;
    for (int32_t i = 0; i < n; i++)
        if (usable(&b[i], wanted)) {
            count++;
            open += b[i].n_open;
        }
    if (count == 0) {
        enum sy_route_role other = wanted == SY_ROUTE_ONLINE ? SY_ROUTE_BATCH : SY_ROUTE_ONLINE;
        for (int32_t i = 0; i < n; i++)
            if (usable(&b[i], other)) return sy_route_pick(b, n, other, prefix);
        return -1;
    }
    /* Nobody may hold more than a quarter above the mean, and one. */
    int64_t bound = (open + 1) * 5 / 4 / count + 1;
    uint64_t most = 0;
    for (int32_t i = 0; i < n; i++) {
        uint64_t score = sy_rng_u64(prefix, (uint64_t)i);
        if (!usable(&b[i], wanted) || b[i].n_open >= bound || (best >= 0 && score <= most)) continue;
        best = i;
        most = score;
    }
    return best;
}

static uint64_t absorb(uint64_t h, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u; /* FNV-1a */
    return h;
}

enum sy_route_role sy_route_classify(const struct sy_env *env, const char *body, size_t n, size_t n_prefix,
                                     uint64_t *prefix)
{
    struct sy_json *root;
    *prefix = absorb(0xcbf29ce484222325u, body, n < n_prefix ? n : n_prefix);
    if (sy_json_parse(env, body, n, false, &root, NULL)) return SY_ROUTE_ONLINE;
    static const char *const asked[] = {"messages", "prompt", "input"};
    const char *tier = sy_json_text(sy_json_get(root, "service_tier"));
    bool waits = (tier && (!strcmp(tier, "flex") || !strcmp(tier, "batch"))) ||
                 sy_json_int(sy_json_get(root, "priority"), 0) > 0;
    for (size_t i = 0; i < SY_COUNT(asked); i++) {
        const struct sy_json *v = sy_json_get(root, asked[i]);
        struct sy_buf b;
        if (!v) continue;
        sy_buf_init(&b, env, 0);
        sy_json_write(&b, v);
        if (!b.failed) *prefix = absorb(0xcbf29ce484222325u, b.at, b.len < n_prefix ? b.len : n_prefix);
        sy_buf_release(&b);
        break;
    }
    sy_json_free(root);
    return waits ? SY_ROUTE_BATCH : SY_ROUTE_ONLINE;
}

/* ---- state -------------------------------------------------------------------------------------------------------
 */

struct sy_router {
    const struct sy_env *env;
    struct sy_router_opt opt;
    struct MHD_Daemon *daemon;
    pthread_t health;
    bool health_runs;
    atomic_bool stop;
    pthread_mutex_t lock; /* of backends */
    struct sy_route_backend backend[BACKEND_MAX];
    const char *url[BACKEND_MAX];
    int32_t n;
    atomic_uint_fast64_t n_request, n_failed;
};

struct pass { /* a request on its way through; one thread's */
    struct sy_router *r;
    struct sy_buf body, answer;
    size_t answer_at;
    bool too_long;
    int32_t backend; /* -1: none yet */
    CURL *easy;
    CURLM *multi;
    struct curl_slist *header;
    long status;
    char type[128];
    bool begun, done, broken;
};

static void let_go(struct pass *p)
{
    if (p->multi && p->easy) curl_multi_remove_handle(p->multi, p->easy);
    if (p->easy) curl_easy_cleanup(p->easy);
    if (p->multi) curl_multi_cleanup(p->multi);
    curl_slist_free_all(p->header);
    p->easy = NULL;
    p->multi = NULL;
    p->header = NULL;
    if (p->backend < 0) return;
    pthread_mutex_lock(&p->r->lock);
    p->r->backend[p->backend].n_open--;
    pthread_mutex_unlock(&p->r->lock);
    p->backend = -1;
}

static void pass_free(struct pass *p)
{
    let_go(p);
    sy_buf_release(&p->body);
    sy_buf_release(&p->answer);
    sy_delete(p->r->env, p);
}

/* ---- to the backend ----------------------------------------------------------------------------------------------
 */

static size_t on_body(char *at, size_t size, size_t n, void *ctx)
{
    struct pass *p = ctx;
    p->begun = true;
    sy_buf_add(&p->answer, at, size * n);
    return p->answer.failed ? 0 : size * n;
}

static size_t on_header(char *at, size_t size, size_t n, void *ctx)
{
    struct pass *p = ctx;
    static const char name[] = "content-type:";
    size_t len = size * n;
    if (len > sizeof name && !strncasecmp(at, name, sizeof name - 1)) {
        const char *v = at + sizeof name - 1;
        while (*v == ' ') v++;
        int room = (int)(len - (size_t)(v - at));
        snprintf(p->type, sizeof p->type, "%.*s", room, v);
        p->type[strcspn(p->type, "\r\n")] = 0;
    }
    return len;
}

static enum MHD_Result pass_header(void *ctx, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct pass *p = ctx;
    char line[8192];
    static const char *const own[] = {"host",   "content-length", "connection", "transfer-encoding",
                                      "expect", "accept-encoding"};
    (void)kind;
    for (size_t i = 0; i < SY_COUNT(own); i++)
        if (!strcasecmp(key, own[i])) return MHD_YES;
    if (value && snprintf(line, sizeof line, "%s: %s", key, value) < (int)sizeof line) {
        struct curl_slist *more = curl_slist_append(p->header, line);
        if (more) p->header = more;
    }
    return MHD_YES;
}

static bool open_backend(struct pass *p, struct MHD_Connection *conn, const char *path, const char *method,
                         int32_t backend)
{
    char url[4096];
    p->backend = backend;
    p->status = 0;
    p->begun = p->done = p->broken = false;
    if (snprintf(url, sizeof url, "%s%s", p->r->url[backend], path) >= (int)sizeof url) return false;
    p->easy = curl_easy_init();
    p->multi = curl_multi_init();
    MHD_get_connection_values(conn, MHD_HEADER_KIND, pass_header, p);
    struct curl_slist *more = curl_slist_append(p->header, "Expect:");
    if (!p->easy || !p->multi || !more) return false;
    p->header = more;
    curl_easy_setopt(p->easy, CURLOPT_URL, url);
    curl_easy_setopt(p->easy, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(p->easy, CURLOPT_HTTPHEADER, p->header);
    curl_easy_setopt(p->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(p->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(p->easy, CURLOPT_CONNECTTIMEOUT_MS, 3000L);
    curl_easy_setopt(p->easy, CURLOPT_PROXY, "");
    if (p->body.len || !strcmp(method, "POST")) {
        curl_easy_setopt(p->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)p->body.len);
        curl_easy_setopt(p->easy, CURLOPT_POSTFIELDS, p->body.at ? p->body.at : "");
    }
    curl_easy_setopt(p->easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(p->easy, CURLOPT_WRITEDATA, p);
    curl_easy_setopt(p->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(p->easy, CURLOPT_HEADERDATA, p);
    return curl_multi_add_handle(p->multi, p->easy) == CURLM_OK;
}

/* Moves the transfer until there is something to pass on or it ended. */
static void pump(struct pass *p)
{
    int running = 1, left;
    while (running && p->answer.len == p->answer_at && !p->done) {
        if (curl_multi_perform(p->multi, &running) != CURLM_OK || atomic_load(&p->r->stop)) {
            p->broken = p->done = true;
            return;
        }
        for (CURLMsg *m; (m = curl_multi_info_read(p->multi, &left));)
            if (m->msg == CURLMSG_DONE) {
                p->done = true;
                p->broken = m->data.result != CURLE_OK;
            }
        if (running && p->answer.len == p->answer_at) curl_multi_poll(p->multi, NULL, 0, WAIT_MS, NULL);
    }
    curl_easy_getinfo(p->easy, CURLINFO_RESPONSE_CODE, &p->status);
}

static void mark(struct sy_router *r, int32_t i, bool healthy)
{
    pthread_mutex_lock(&r->lock);
    r->backend[i].healthy = healthy;
    pthread_mutex_unlock(&r->lock);
}

static int32_t take_backend(struct sy_router *r, enum sy_route_role role, uint64_t prefix)
{
    pthread_mutex_lock(&r->lock);
    int32_t i = sy_route_pick(r->backend, r->n, role, prefix);
    if (i >= 0) r->backend[i].n_open++;
    pthread_mutex_unlock(&r->lock);
    return i;
}

/* ---- to the client -----------------------------------------------------------------------------------------------
 */

static enum MHD_Result say(struct MHD_Connection *conn, unsigned status, const char *type, const char *text)
{
    struct MHD_Response *m =
        MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
    if (!m) return MHD_NO;
    MHD_add_response_header(m, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    enum MHD_Result ok = MHD_queue_response(conn, status, m);
    MHD_destroy_response(m);
    return ok;
}

static enum MHD_Result refuse(struct MHD_Connection *conn, unsigned status, const char *kind, const char *why)
{
    char text[400];
    snprintf(text, sizeof text, "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,\"code\":%u}}\n", why,
             kind, status);
    return say(conn, status, "application/json", text);
}

static ssize_t read_answer(void *ctx, uint64_t pos, char *out, size_t n_max)
{
    struct pass *p = ctx;
    (void)pos;
    if (p->answer.len == p->answer_at && !p->done) pump(p);
    size_t n = p->answer.len - p->answer_at;
    if (n == 0) return p->broken ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    if (n > n_max) n = n_max;
    memcpy(out, p->answer.at + p->answer_at, n);
    p->answer_at += n;
    if (p->answer_at == p->answer.len) {
        sy_buf_clear(&p->answer);
        p->answer_at = 0;
    }
    return (ssize_t)n;
}

/* A backend that fails before it said anything is taken for ill, and the request goes to another. */
static enum MHD_Result forward(struct pass *p, struct MHD_Connection *conn, const char *path, const char *method)
{
    struct sy_router *r = p->r;
    uint64_t prefix;
    enum sy_route_role role =
        sy_route_classify(r->env, p->body.at ? p->body.at : "", p->body.len, r->opt.n_prefix, &prefix);
    for (int32_t attempt = 0; attempt < r->n; attempt++) {
        int32_t i = take_backend(r, role, prefix);
        if (i < 0) break;
        bool open = open_backend(p, conn, path, method, i);
        if (open) pump(p);
        if (open && (p->begun || (p->done && !p->broken))) break;
        mark(r, i, false);
        let_go(p);
        sy_buf_clear(&p->answer);
        p->answer_at = 0;
    }
    if (p->backend < 0) {
        atomic_fetch_add(&r->n_failed, 1);
        return refuse(conn, MHD_HTTP_SERVICE_UNAVAILABLE, "server_error", "no engine behind this address is healthy");
    }
    struct MHD_Response *m = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, CHUNK, read_answer, p, NULL);
    if (!m) return MHD_NO;
    if (p->type[0]) MHD_add_response_header(m, MHD_HTTP_HEADER_CONTENT_TYPE, p->type);
    MHD_add_response_header(m, "X-Systole-Backend", r->url[p->backend]);
    enum MHD_Result ok = MHD_queue_response(conn, (unsigned)p->status, m);
    MHD_destroy_response(m);
    return ok;
}

static enum MHD_Result drain(struct sy_router *r, struct MHD_Connection *conn, bool draining)
{
    const char *key = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, "Authorization");
    const char *which = MHD_lookup_connection_value(conn, MHD_GET_ARGUMENT_KIND, "backend");
    if (!r->opt.admin_key || !key || strncmp(key, "Bearer ", 7) || strcmp(key + 7, r->opt.admin_key))
        return refuse(conn, MHD_HTTP_UNAUTHORIZED, "invalid_request_error", "draining needs the router's admin key");
    for (int32_t i = 0; which && i < r->n; i++) {
        if (strcmp(which, r->url[i])) continue;
        pthread_mutex_lock(&r->lock);
        r->backend[i].draining = draining;
        pthread_mutex_unlock(&r->lock);
        return say(conn, MHD_HTTP_OK, "application/json",
                   draining ? "{\"draining\":true}\n" : "{\"draining\":false}\n");
    }
    return refuse(conn, MHD_HTTP_NOT_FOUND, "invalid_request_error",
                  "backend: expected the URL of one behind this address");
}

static enum MHD_Result metrics(struct sy_router *r, struct MHD_Connection *conn)
{
    struct sy_buf b;
    sy_buf_init(&b, r->env, 0);
    sy_buf_printf(&b, "systole_router_requests_total %llu\nsystole_router_failed_total %llu\n",
                  (unsigned long long)atomic_load(&r->n_request), (unsigned long long)atomic_load(&r->n_failed));
    pthread_mutex_lock(&r->lock);
    for (int32_t i = 0; i < r->n; i++)
        sy_buf_printf(
            &b, "systole_router_backend_up{url=\"%s\",role=\"%s\"} %d\nsystole_router_backend_open{url=\"%s\"} %d\n",
            r->url[i], r->backend[i].role == SY_ROUTE_BATCH ? "batch" : "online",
            r->backend[i].healthy && !r->backend[i].draining, r->url[i], r->backend[i].n_open);
    pthread_mutex_unlock(&r->lock);
    enum MHD_Result ok = b.failed ? MHD_NO : say(conn, MHD_HTTP_OK, "text/plain; version=0.0.4", b.at);
    sy_buf_release(&b);
    return ok;
}

static enum MHD_Result handle(void *ctx, struct MHD_Connection *conn, const char *path, const char *method,
                              const char *version, const char *upload, size_t *n_upload, void **state)
{
    struct sy_router *r = ctx;
    struct pass *p = *state;
    (void)version;
    if (!p) {
        p = sy_new(r->env, sizeof *p);
        if (!p) return MHD_NO;
        p->r = r;
        p->backend = -1;
        sy_buf_init(&p->body, r->env, 0);
        sy_buf_init(&p->answer, r->env, 0);
        *state = p;
        return MHD_YES;
    }
    if (*n_upload) {
        if (p->body.len + *n_upload > r->opt.body_bytes_max) p->too_long = true;
        else sy_buf_add(&p->body, upload, *n_upload);
        *n_upload = 0;
        return MHD_YES;
    }
    atomic_fetch_add(&r->n_request, 1);
    if (p->too_long || p->body.failed)
        return refuse(conn, MHD_HTTP_CONTENT_TOO_LARGE, "invalid_request_error",
                      "the body is larger than --max-body");
    if (!strcmp(path, "/health")) return say(conn, MHD_HTTP_OK, "application/json", "{\"status\":\"ok\"}\n");
    if (!strcmp(path, "/router/metrics")) return metrics(r, conn);
    if (!strcmp(path, "/router/drain")) return drain(r, conn, true);
    if (!strcmp(path, "/router/undrain")) return drain(r, conn, false);
    return forward(p, conn, path, method);
}

static void completed(void *ctx, struct MHD_Connection *conn, void **state, enum MHD_RequestTerminationCode why)
{
    (void)ctx;
    (void)conn;
    (void)why;
    if (*state) pass_free(*state);
    *state = NULL;
}

/* ---- health ------------------------------------------------------------------------------------------------------
 */

static size_t ignore(char *at, size_t size, size_t n, void *ctx)
{
    (void)at;
    (void)ctx;
    return size * n;
}

static bool answers(const char *base)
{
    char url[4096];
    long status = 0;
    CURL *c = curl_easy_init();
    if (!c) return false;
    snprintf(url, sizeof url, "%s/health", base);
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_PROXY, "");
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, 3000L);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, ignore);
    bool ok = curl_easy_perform(c) == CURLE_OK && curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status) == CURLE_OK;
    curl_easy_cleanup(c);
    return ok && status == 200;
}

static void *watch(void *ctx)
{
    struct sy_router *r = ctx;
    while (!atomic_load(&r->stop)) {
        for (int32_t i = 0; i < r->n && !atomic_load(&r->stop); i++) mark(r, i, answers(r->url[i]));
        for (double s = 0; s < r->opt.health_s && !atomic_load(&r->stop); s += 0.05)
            nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    return NULL;
}

/* ---- life --------------------------------------------------------------------------------------------------------
 */

static sy_status add_backends(struct sy_router *r, struct sy_err *err)
{
    for (int role = 0; role < 2; role++)
        for (size_t i = 0; i < r->opt.n_url[role]; i++) {
            const char *url = r->opt.url[role][i];
            size_t n = strlen(url);
            if ((strncmp(url, "http://", 7) && strncmp(url, "https://", 8)) || n > 2000 || url[n - 1] == '/')
                return sy_fail(err, SY_EARG, "--%s: expected a URL as http://host:port, found '%.100s'",
                               role ? "batch" : "online", url);
            if (r->n == BACKEND_MAX) return sy_fail(err, SY_EARG, "expected at most %d backends", BACKEND_MAX);
            r->backend[r->n] = (struct sy_route_backend){.role = (enum sy_route_role)role, .healthy = answers(url)};
            r->url[r->n++] = url;
        }
    if (r->n == 0) return sy_fail(err, SY_EARG, "expected --online URL or --batch URL, found none");
    return SY_OK;
}

static sy_status listen_at(struct sy_router *r, struct sy_err *err)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)r->opt.port)};
    if (inet_pton(AF_INET, r->opt.host, &a.sin_addr) != 1)
        return sy_fail(err, SY_EARG, "--host: expected an IPv4 address, found '%.60s'", r->opt.host);
    r->daemon = MHD_start_daemon(MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD, 0, NULL, NULL,
                                 handle, r, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&a, MHD_OPTION_NOTIFY_COMPLETED,
                                 completed, r, MHD_OPTION_CONNECTION_TIMEOUT, 600u, MHD_OPTION_END);
    if (!r->daemon)
        return sy_fail(err, SY_EIO, "cannot listen at %s:%d; is the port taken?", r->opt.host, r->opt.port);
    return SY_OK;
}

sy_status sy_router_new(const struct sy_env *env, const struct sy_router_opt *opt, struct sy_router **out,
                        struct sy_err *err)
{
    struct sy_router *r = sy_new(env, sizeof *r);
    if (!r) return sy_fail(err, SY_ENOMEM, "no memory for the router");
    r->env = env;
    r->opt = *opt;
    pthread_mutex_init(&r->lock, NULL);
    sy_status st = curl_global_init(CURL_GLOBAL_DEFAULT) ? sy_fail(err, SY_ENOMEM, "libcurl does not start") : SY_OK;
    if (!st) st = add_backends(r, err);
    if (!st) st = listen_at(r, err);
    if (!st && pthread_create(&r->health, NULL, watch, r))
        st = sy_fail(err, SY_ENOMEM, "no thread for health checks");
    else if (!st) r->health_runs = true;
    if (st) sy_router_free(r);
    else *out = r;
    return st;
}

int sy_router_port(const struct sy_router *r)
{
    const union MHD_DaemonInfo *i = MHD_get_daemon_info(r->daemon, MHD_DAEMON_INFO_BIND_PORT);
    return i ? i->port : 0;
}

void sy_router_free(struct sy_router *r)
{
    if (!r) return;
    atomic_store(&r->stop, true);
    if (r->daemon) MHD_stop_daemon(r->daemon);
    if (r->health_runs) pthread_join(r->health, NULL);
    pthread_mutex_destroy(&r->lock);
    sy_delete(r->env, r);
}
