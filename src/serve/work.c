/* work.c - the threads beside libmicrohttpd's: workers parse bodies and write answers; the pump hands on
 * what the engine has made, notices clients that hang up, ends connections that dawdle, and watches the
 * engine. */
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/server_int.h"

enum { EVENTS = 64, TICK_MS = 250 };
static const uint64_t loop_event = UINT64_MAX, wake_event = UINT64_MAX - 1; /* no slot and generation */

/* ---- workers ------------------------------------------------------------------------------------------- */

void req_push_work(struct req *r)
{
    struct sy_server *s = r->srv;
    req_ref(r);
    pthread_mutex_lock(&s->work_lock);
    r->next_work = NULL;
    if (s->work_last) s->work_last->next_work = r;
    else s->work_first = r;
    s->work_last = r;
    pthread_cond_signal(&s->work_news);
    pthread_mutex_unlock(&s->work_lock);
}

/* Under the lock. */
static void answer_ready(struct req *r)
{
    r->phase = PHASE_READY;
    r->status = r->call->problem.status ? r->call->problem.status : 200;
    r->type = "application/json";
    req_wake(r);
}

static void refuse(struct req *r, const char *why)
{
    sy_problem_set(&r->problem, 503, "unavailable", NULL, "%s", why);
    sy_buf_clear(&r->out);
    sy_problem_json(&r->problem, &r->out);
    r->phase = PHASE_READY;
    r->status = 503;
    req_wake(r);
}

static void start(struct req *r)
{
    struct sy_server *s = r->srv;
    enum sy_api api = r->route->api;
    struct sy_call *c = sy_call_new(&s->service, api, r->body.at ? r->body.at : "", r->body.len, 0, r->t_start, r);
    pthread_mutex_lock(&r->lock);
    atomic_fetch_sub(&s->body_bytes, (int64_t)r->body.cap);
    sy_buf_release(&r->body); /* what is kept of it lies in the call */
    r->call = c;
    if (!c) {
        refuse(r, "no memory for this request");
    } else if (r->gone) {
        req_wake(r);
    } else if (c->problem.status || !(api & (SY_API_CHAT | SY_API_COMPLETION | SY_API_EMBEDDING))) {
        sy_call_body(c, &r->out);
        answer_ready(r);
    } else {
        c->domain = sy_auth_domain(&s->auth, r->who, c->ask.salt, c->ask.n_salt);
        r->phase = PHASE_RUN;
        r->in_engine = true;
        req_ref(r); /* until the pump has seen the last of its streams */
        if (!sy_call_submit(c) && c->n_submitted == 0) {
            r->in_engine = false;
            req_unref(r);
            sy_call_body(c, &r->out);
            answer_ready(r);
        }
    }
    pthread_mutex_unlock(&r->lock);
}

/* No lock: the call is done, nobody else touches it. */
static void format(struct req *r)
{
    sy_call_body(r->call, &r->out);
    pthread_mutex_lock(&r->lock);
    answer_ready(r);
    pthread_mutex_unlock(&r->lock);
}

static void *worker(void *ctx)
{
    struct sy_server *s = ctx;
    pthread_mutex_lock(&s->work_lock);
    for (;;) {
        while (!s->work_first && !s->work_quit) pthread_cond_wait(&s->work_news, &s->work_lock);
        struct req *r = s->work_first;
        if (!r) break;
        s->work_first = r->next_work;
        if (!s->work_first) s->work_last = NULL;
        pthread_mutex_unlock(&s->work_lock);
        if (r->to_format) format(r);
        else start(r);
        req_unref(r);
        pthread_mutex_lock(&s->work_lock);
    }
    pthread_mutex_unlock(&s->work_lock);
    return NULL;
}

/* ---- the pump: news of streams ------------------------------------------------------------------------- */

/* Under the lock: what the news mean for the client. */
static void advance(struct req *r)
{
    struct sy_call *c = r->call;
    bool done = sy_call_done(c), events = c->ask.stream && !(c->problem.status && r->phase == PHASE_RUN);
    if (r->phase == PHASE_STREAM) {
        req_wake(r);
    } else if (r->phase == PHASE_RUN && events && sy_call_started(c)) {
        r->phase = PHASE_STREAM;
        r->status = 200;
        req_wake(r);
    } else if (r->phase == PHASE_RUN && done && !r->gone) {
        r->phase = PHASE_FORMAT;
        r->to_format = true;
        req_push_work(r);
    }
    if (!done) return;
    sy_call_detach(c);
    r->in_engine = false;
}

static void note_starved(struct req *r)
{
    struct sy_server *s = r->srv;
    if (r->starved || !sy_call_starved(r->call)) return;
    r->starved = true;
    req_ref(r);
    r->next_starved = s->starved;
    s->starved = r;
}

static void take_news(struct sy_server *s)
{
    uint64_t n;
    (void)!read(sy_loop_fd(s->loop), &n, sizeof n);
    for (struct sy_stream *st; (st = sy_loop_next(s->loop));) {
        struct sy_call *c = st->owner;
        struct req *r = c ? c->owner : NULL;
        if (r) {
            pthread_mutex_lock(&r->lock);
            sy_call_feed(c, st);
            advance(r);
            note_starved(r);
            bool last = !r->in_engine;
            pthread_mutex_unlock(&r->lock);
            if (last) req_unref(r);
        }
        sy_stream_unref(st);
    }
}

/* Others took the places of the prompts that ended: ask again. */
static void feed_starved(struct sy_server *s)
{
    struct req *r = s->starved, *next;
    s->starved = NULL;
    for (; r; r = next) {
        next = r->next_starved;
        r->starved = false;
        pthread_mutex_lock(&r->lock);
        bool was = r->in_engine;
        if (was && sy_call_starved(r->call)) sy_call_submit(r->call);
        if (was) advance(r);
        note_starved(r);
        bool last = was && !r->in_engine;
        pthread_mutex_unlock(&r->lock);
        if (last) req_unref(r);
        req_unref(r);
    }
}

/* ---- the pump: connections ----------------------------------------------------------------------------- */

/* While libmicrohttpd has a connection suspended it does not look at it. */
void work_watch(struct req *r)
{
    struct sy_server *s = r->srv;
    pthread_mutex_lock(&s->lock);
    struct conn *c = &s->conn[r->slot];
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLONESHOT,
                            .data.u64 = (uint64_t)c->generation << 32 | r->slot};
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, c->fd, &e)) (void)!epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, c->fd, &e);
    pthread_mutex_unlock(&s->lock);
}

static void hung_up(struct sy_server *s, uint64_t what)
{
    uint32_t slot = (uint32_t)what, generation = (uint32_t)(what >> 32);
    pthread_mutex_lock(&s->lock);
    struct conn *c = slot < s->n_slot ? &s->conn[slot] : NULL;
    struct req *r = c && c->mhd && c->generation == generation ? c->req : NULL;
    if (r) req_ref(r);
    pthread_mutex_unlock(&s->lock);
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->gone = true;
    if (r->call && r->in_engine) sy_call_cancel(r->call);
    req_wake(r);
    pthread_mutex_unlock(&r->lock);
    req_unref(r);
}

uint64_t work_received(int fd)
{
    struct tcp_info i = {0};
    socklen_t n = sizeof i;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &n) ? 0 : i.tcpi_bytes_received;
}

/* libmicrohttpd has no answer of its own for this. Nothing else is being written: the request is not
 * complete. */
static void say_late(struct conn *c, const char *what)
{
    char body[256], all[512];
    int n = snprintf(
        body, sizeof body,
        "{\"error\":{\"message\":\"%s\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":\"timeout\"}}",
        what);
    n = snprintf(all, sizeof all,
                 "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                 "Connection: close\r\n\r\n%s",
                 n, body);
    if (!c->tls) (void)!send(c->fd, all, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void end_late(struct sy_server *s, struct conn *c, uint64_t now)
{
    uint64_t age = now > c->since ? now - c->since : 0;
    double limit_s = c->in_body ? s->opt.body_s : c->in_header ? s->opt.header_s : s->opt.idle_s;
    if (c->over && limit_s > 2) limit_s = 2;
    /* Idle until the first byte of the next request's headers, which only the kernel tells of. */
    if (!c->in_body && !c->in_header && work_received(c->fd) > c->bytes_idle) {
        c->in_header = true;
        c->since = now;
        return;
    }
    if ((double)age < limit_s * 1e9) return;
    /* What has come and is not read yet is this server's delay, not the client's. */
    int unread = 0;
    if ((c->in_body || c->in_header) && !ioctl(c->fd, FIONREAD, &unread) && unread > 0) return;
    if (c->in_body) say_late(c, "the body came too slowly");
    else if (c->in_header) say_late(c, "the headers came too slowly");
    shutdown(c->fd, SHUT_RDWR); /* libmicrohttpd sees the end and closes it */
}

static void end_late_ones(struct sy_server *s)
{
    uint64_t now = sy_now_ns(s->env);
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_slot; i++)
        if (s->conn[i].mhd && !s->conn[i].busy) end_late(s, &s->conn[i], now);
    pthread_mutex_unlock(&s->lock);
}

static void watch_engine(struct sy_server *s)
{
    double age = (double)sy_loop_step_age_ns(s->loop) / 1e9;
    bool stuck = age > s->opt.stuck_s;
    if (stuck && !atomic_exchange(&s->stuck, true))
        sy_log_at(s->env, SY_LOG_ERROR,
                  "the engine's step has run for %.0f s and is not done; /health says 503 until it is", age);
    if (!stuck && atomic_exchange(&s->stuck, false)) sy_log_at(s->env, SY_LOG_WARN, "the engine's long step is done");
}

static void *pump(void *ctx)
{
    struct sy_server *s = ctx;
    uint64_t last = 0;
    while (!atomic_load(&s->pump_quit)) {
        struct epoll_event e[EVENTS];
        bool watch = atomic_load(&s->n_conn) > 0 || s->starved || sy_loop_open(s->loop) > 0;
        int n = epoll_wait(s->epoll_fd, e, EVENTS, watch ? TICK_MS : -1);
        for (int i = 0; i < n; i++) {
            uint64_t count;
            if (e[i].data.u64 == wake_event) (void)!read(s->wake_fd, &count, sizeof count);
            else if (e[i].data.u64 != loop_event) hung_up(s, e[i].data.u64);
        }
        take_news(s);
        if (s->starved) feed_starved(s);
        uint64_t now = sy_now_ns(s->env);
        if (now - last < TICK_MS * 1000000ull) continue;
        last = now;
        end_late_ones(s);
        watch_engine(s);
    }
    take_news(s);
    return NULL;
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static bool add_fd(struct sy_server *s, int fd, uint64_t what)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = what};
    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &e) == 0;
}

sy_status work_start(struct sy_server *s, struct sy_err *err)
{
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->epoll_fd < 0 || s->wake_fd < 0 || !add_fd(s, s->wake_fd, wake_event) ||
        !add_fd(s, sy_loop_fd(s->loop), loop_event))
        return sy_fail(err, SY_EIO, "cannot watch the engine: %s", strerror(errno));
    int failed = 0;
    while (!failed && s->n_worker < WORKERS) {
        failed = pthread_create(&s->worker[s->n_worker], NULL, worker, s);
        s->n_worker += !failed;
    }
    if (!failed) failed = pthread_create(&s->pump, NULL, pump, s);
    s->has_pump = !failed;
    return failed ? sy_fail(err, SY_EIO, "cannot start a thread: %s", strerror(failed)) : SY_OK;
}

void work_wake(struct sy_server *s)
{
    uint64_t one = 1;
    (void)!write(s->wake_fd, &one, sizeof one);
}

void work_stop(struct sy_server *s)
{
    atomic_store(&s->pump_quit, true);
    if (s->wake_fd >= 0) work_wake(s);
    if (s->has_pump) pthread_join(s->pump, NULL);
    pthread_mutex_lock(&s->work_lock);
    s->work_quit = true;
    pthread_cond_broadcast(&s->work_news);
    pthread_mutex_unlock(&s->work_lock);
    for (int i = 0; i < s->n_worker; i++) pthread_join(s->worker[i], NULL);
    if (s->epoll_fd >= 0) close(s->epoll_fd);
    if (s->wake_fd >= 0) close(s->wake_fd);
}
