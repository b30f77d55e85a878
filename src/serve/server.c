#include "serve/server.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "serve/server_int.h"

enum { PEM_BYTES_MAX = 1 << 20, BACKLOG = 1024, OWN_FDS = 64 };

/* ---- the address --------------------------------------------------------------------------------------- */

static sy_status bind_unix(struct sy_server *s, struct sy_err *err)
{
    const char *path = s->opt.unix_path;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    if (strlen(path) >= sizeof a.sun_path)
        return sy_fail(err, SY_EARG, "--unix: '%s' is longer than the %zu bytes a socket's path may have", path,
                       sizeof a.sun_path - 1);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    s->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listen_fd < 0) return sy_fail(err, SY_EIO, "cannot make a socket: %s", strerror(errno));
    /* A socket file stays behind a killed server; one that somebody listens on is not ours to remove. */
    if (stat(path, &st) == 0 && S_ISSOCK(st.st_mode) && connect(s->listen_fd, (struct sockaddr *)&a, sizeof a) &&
        errno == ECONNREFUSED)
        unlink(path);
    if (bind(s->listen_fd, (struct sockaddr *)&a, sizeof a))
        return sy_fail(err, SY_EIO, "--unix: cannot bind '%s': %s", path, strerror(errno));
    s->unlink_path = true;
    snprintf(s->address, sizeof s->address, "unix:%s", path);
    return SY_OK;
}

static void name_address(struct sy_server *s)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    if (getsockname(s->listen_fd, (struct sockaddr *)&a, &n) == 0)
        getnameinfo((struct sockaddr *)&a, n, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    bool v6 = a.ss_family == AF_INET6;
    snprintf(s->address, sizeof s->address, "http%s://%s%.120s%s:%s", s->cert ? "s" : "", v6 ? "[" : "", host,
             v6 ? "]" : "", port);
}

static sy_status bind_tcp(struct sy_server *s, struct sy_err *err)
{
    char port[16];
    snprintf(port, sizeof port, "%d", s->opt.port);
    struct addrinfo hint = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
    int failed = getaddrinfo(s->opt.host, port, &hint, &found);
    if (failed) return sy_fail(err, SY_EARG, "--host: '%s': %s", s->opt.host, gai_strerror(failed));
    s->listen_fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int on = 1;
    sy_status st = SY_OK;
    if (s->listen_fd < 0) st = sy_fail(err, SY_EIO, "cannot make a socket: %s", strerror(errno));
    /* So that a server started right after another's end gets the port. */
    if (!st) setsockopt(s->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!st && bind(s->listen_fd, found->ai_addr, found->ai_addrlen))
        st = sy_fail(err, SY_EIO, "--port: cannot bind %s port %d: %s", s->opt.host, s->opt.port, strerror(errno));
    freeaddrinfo(found);
    if (!st) name_address(s);
    return st;
}

/* Every connection is a file descriptor: the limit is raised as far as it goes, and more connections are
 * not promised. */
static sy_status reserve_fds(struct sy_server *s, struct sy_err *err)
{
    struct rlimit l;
    int32_t want = s->opt.connections_max + SPARE_CONNECTIONS + OWN_FDS;
    if (getrlimit(RLIMIT_NOFILE, &l)) return SY_OK;
    if (l.rlim_cur < (rlim_t)want) {
        struct rlimit more = {.rlim_cur = l.rlim_max < (rlim_t)want ? l.rlim_max : (rlim_t)want,
                              .rlim_max = l.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &more) == 0) l = more;
    }
    if (l.rlim_cur >= (rlim_t)want) return SY_OK;
    int64_t room = (int64_t)l.rlim_cur - SPARE_CONNECTIONS - OWN_FDS;
    if (room < 1)
        return sy_fail(err, SY_EIO, "the system allows %lld open files, too few to serve; raise 'ulimit -n'",
                       (long long)l.rlim_cur);
    sy_log_at(s->env, SY_LOG_WARN,
              "--max-connections lowered to %lld: the system allows %lld open files ('ulimit -n')", (long long)room,
              (long long)l.rlim_cur);
    s->opt.connections_max = (int32_t)room;
    return SY_OK;
}

static sy_status read_tls(struct sy_server *s, struct sy_err *err)
{
    size_t n;
    if (!s->opt.tls_cert && !s->opt.tls_key) return SY_OK;
    if (!s->opt.tls_cert || !s->opt.tls_key)
        return sy_fail(err, SY_EARG, "--tls-cert and --tls-key: expected both, found one");
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return sy_fail(err, SY_ENOSUP, "--tls-cert: this system's libmicrohttpd was built without TLS");
    sy_status st = sy_file_read(s->env, s->opt.tls_cert, PEM_BYTES_MAX, &s->cert, &n, err);
    if (st) return sy_while(err, st, "--tls-cert");
    st = sy_file_read(s->env, s->opt.tls_key, PEM_BYTES_MAX, &s->key, &n, err);
    return st ? sy_while(err, st, "--tls-key") : SY_OK;
}

static sy_status make_tables(struct sy_server *s, struct sy_err *err)
{
    s->n_slot = (uint32_t)(s->opt.connections_max + SPARE_CONNECTIONS);
    s->conn = sy_new_array(s->env, s->n_slot, sizeof *s->conn);
    s->next_free = sy_new_array(s->env, s->n_slot, sizeof *s->next_free);
    if (!s->conn || !s->next_free)
        return sy_fail(err, SY_ENOMEM, "no memory for %d connections", s->opt.connections_max);
    for (uint32_t i = 0; i < s->n_slot; i++) s->next_free[i] = i + 1;
    return SY_OK;
}

sy_status sy_server_new(const struct sy_env *env, const struct sy_server_opt *o, struct sy_server **out,
                        struct sy_err *err)
{
    struct sy_server *s = sy_new(env, sizeof *s);
    if (!s) return sy_fail(err, SY_ENOMEM, "no memory for the server");
    *s = (struct sy_server){.env = env, .opt = *o, .listen_fd = -1, .epoll_fd = -1, .wake_fd = -1};
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->work_lock, NULL);
    pthread_cond_init(&s->work_news, NULL);
    sy_status st = read_tls(s, err);
    if (!st) st = reserve_fds(s, err);
    if (!st) st = make_tables(s, err);
    if (!st) st = sy_auth_init(&s->auth, env, o->key_file, err);
    if (!st && o->access_log) st = sy_accesslog_new(env, o->access_log, &s->log, err);
    if (!st) st = o->unix_path ? bind_unix(s, err) : bind_tcp(s, err);
    if (st) {
        sy_server_free(s);
        return st;
    }
    *out = s;
    return SY_OK;
}

/* ---- answering ----------------------------------------------------------------------------------------- */

static void log_line(void *ctx, const char *fmt, va_list ap)
{
    struct sy_server *s = ctx;
    char line[512];
    if (s->env->log->level < SY_LOG_DEBUG) return;
    vsnprintf(line, sizeof line, fmt, ap);
    line[strcspn(line, "\r\n")] = 0;
    sy_log_at(s->env, SY_LOG_DEBUG, "http: %s", line);
}

static sy_status start_http(struct sy_server *s, struct sy_err *err)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_ERROR_LOG |
                     (s->cert ? MHD_USE_TLS : 0);
    struct MHD_OptionItem o[16];
    int n = 0;
    o[n++] = (struct MHD_OptionItem){MHD_OPTION_EXTERNAL_LOGGER, (intptr_t)log_line, s};
    o[n++] = (struct MHD_OptionItem){MHD_OPTION_LISTEN_SOCKET, s->listen_fd, NULL};
    o[n++] = (struct MHD_OptionItem){MHD_OPTION_CONNECTION_LIMIT, (intptr_t)s->n_slot, NULL};
    o[n++] = (struct MHD_OptionItem){MHD_OPTION_CONNECTION_MEMORY_LIMIT, POOL_BYTES, NULL};
    /* Of a client that does not read its answer, too; the shorter limits are the pump's. */
    o[n++] = (struct MHD_OptionItem){MHD_OPTION_CONNECTION_TIMEOUT, (intptr_t)(s->opt.idle_s + 1), NULL};
    o[n++] = (struct MHD_OptionItem){MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)http_completed, s};
    o[n++] = (struct MHD_OptionItem){MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)http_connection, s};
    o[n++] = (struct MHD_OptionItem){MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, NULL};
    if (s->cert) {
        o[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_CERT, 0, s->cert};
        o[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_KEY, 0, s->key};
    }
    o[n++] = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
    s->daemon = MHD_start_daemon(flags, 0, NULL, NULL, http_request, s, MHD_OPTION_ARRAY, o, MHD_OPTION_END);
    if (s->daemon) return SY_OK;
    return s->cert ? sy_fail(err, SY_EARG, "--tls-cert: '%s' and '%s' are not a certificate and its key in PEM",
                             s->opt.tls_cert, s->opt.tls_key)
                   : sy_fail(err, SY_EIO, "cannot start answering HTTP at %s", s->address);
}

sy_status sy_server_start(struct sy_server *s, struct sy_engine *e, struct sy_err *err)
{
    s->engine = e;
    s->bytes_s = sy_engine_bandwidth(e);
    int64_t open = (int64_t)sy_engine_plan(e)->seq_max + s->opt.queue_max;
    sy_status st = sy_loop_new(s->env, e, open > INT32_MAX ? INT32_MAX : (int32_t)open, &s->loop, err);
    if (st) return st;
    sy_service_init(&s->service, s->env, e, s->loop, s->opt.names, s->opt.n_name, s->opt.pooling);
    st = work_start(s, err);
    if (!st && listen(s->listen_fd, BACKLOG))
        st = sy_fail(err, SY_EIO, "cannot listen at %s: %s", s->address, strerror(errno));
    return st ? st : start_http(s, err);
}

const char *sy_server_address(const struct sy_server *s) { return s->address; }
void sy_server_drain(struct sy_server *s) { atomic_store(&s->draining, true); }
int32_t sy_server_busy(const struct sy_server *s) { return atomic_load(&s->n_busy); }
bool sy_server_failed(const struct sy_server *s) { return s->loop && sy_loop_failed(s->loop); }

/* ---- the end ------------------------------------------------------------------------------------------- */

/* Requests in turn, each with a reference: none may be locked under the server's lock. */
static size_t all_requests(struct sy_server *s, struct req **out)
{
    size_t n = 0;
    pthread_mutex_lock(&s->lock);
    for (struct req *r = s->reqs; r && n < s->n_slot; r = r->next) {
        req_ref(r);
        out[n++] = r;
    }
    pthread_mutex_unlock(&s->lock);
    return n;
}

static void cancel_all(struct sy_server *s, struct req **all, bool wake)
{
    size_t n = all_requests(s, all);
    for (size_t i = 0; i < n; i++) {
        pthread_mutex_lock(&all[i]->lock);
        if (all[i]->call && all[i]->in_engine) sy_call_cancel(all[i]->call);
        if (wake) req_wake(all[i]);
        pthread_mutex_unlock(&all[i]->lock);
        req_unref(all[i]);
    }
}

static void wait_ms(int ms)
{
    struct timespec t = {.tv_nsec = ms * 1000000L};
    nanosleep(&t, NULL);
}

/* Ends what runs, lets the last words out, then takes the connections away. libmicrohttpd must not be
 * stopped while it has a connection suspended: from `closing` on none is suspended any more. */
static void stop_http(struct sy_server *s)
{
    struct req **all = sy_new_array(s->env, s->n_slot, sizeof *all);
    int fd = MHD_quiesce_daemon(s->daemon);
    if (fd >= 0) s->listen_fd = fd; /* it is ours again */
    if (all) cancel_all(s, all, false);
    for (int i = 0; i < 100 && atomic_load(&s->n_busy) > 0; i++) wait_ms(10);
    atomic_store(&s->closing, true);
    if (all) cancel_all(s, all, true);
    sy_delete(s->env, all);
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}

void sy_server_free(struct sy_server *s)
{
    if (!s) return;
    atomic_store(&s->draining, true);
    if (s->daemon) stop_http(s);
    /* The pump takes the last news of what was cancelled, so that the requests' references end. */
    for (int i = 0; i < 500 && s->loop && s->has_pump && sy_loop_open(s->loop) > 0; i++) wait_ms(10);
    if (s->loop) work_stop(s);
    sy_loop_free(s->loop);
    if (s->listen_fd >= 0) close(s->listen_fd);
    if (s->unlink_path) unlink(s->opt.unix_path);
    sy_auth_release(&s->auth, s->env);
    sy_accesslog_free(s->log);
    sy_delete(s->env, s->cert);
    sy_delete(s->env, s->key);
    sy_delete(s->env, s->conn);
    sy_delete(s->env, s->next_free);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->work_lock);
    pthread_cond_destroy(&s->work_news);
    sy_delete(s->env, s);
}
