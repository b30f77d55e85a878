/* server_int.h - the parts of the server: server.c life, http.c one request over libmicrohttpd, work.c the
 * threads beside it, route.c what answers where, metrics.c and openapi.c two of those answers. Private to
 * this folder.
 *
 * Locks: a request's lock, and inside it perhaps server.lock (tables of connections and requests), never
 * the other way round. The engine thread takes neither. libmicrohttpd's thread never waits for a long job:
 * those are the workers'. */
#pragma once
#include <microhttpd.h>
#include <pthread.h>

#include "serve/accesslog.h"
#include "serve/auth.h"
#include "serve/call.h"
#include "serve/server.h"

enum {
    WORKERS = 2,
    REQUEST_ID_BYTES = 64,
    HEADER_BYTES_MAX = 32 << 10,
    POOL_BYTES = 64 << 10,
    SPARE_CONNECTIONS = 32
};

enum route_kind { ROUTE_HEALTH, ROUTE_READY, ROUTE_METRICS, ROUTE_MODELS, ROUTE_MODEL, ROUTE_OPENAPI, ROUTE_CALL };
struct route {
    const char *path;
    enum route_kind kind;
    enum sy_api api;     /* ROUTE_CALL: POST with a body */
    const char *summary; /* for openapi.json */
};
extern const struct route routes[];                                  /* path NULL ends it */
const struct route *route_find(const char *path, const char **tail); /* tail: what follows /v1/models/ */

struct conn { /* of a socket, in the server's table */
    struct MHD_Connection *mhd;
    int fd;
    bool tls, busy, over; /* busy: between a request's headers and its answer; over: beyond the limit */
    bool in_body, in_header;
    uint64_t since;      /* when it began to be idle, or its headers, or its body */
    uint64_t bytes_idle; /* received when it began to be idle */
    uint32_t generation;
    struct req *req;
};
enum phase {
    PHASE_BODY,   /* being received */
    PHASE_START,  /* a worker parses and submits */
    PHASE_RUN,    /* the engine has it */
    PHASE_FORMAT, /* a worker writes the answer */
    PHASE_READY,  /* the answer lies in out */
    PHASE_STREAM, /* events go out as they come */
    PHASE_SENT,
};
struct req {
    struct sy_server *srv;
    struct MHD_Connection *conn; /* NULL once libmicrohttpd is done with it */
    uint32_t slot;               /* of its connection */
    pthread_mutex_t lock;
    atomic_int refs;
    const struct route *route;
    const char *tail;
    char method[16], path[128], id[REQUEST_ID_BYTES + 1], remote[64];
    const char *origin; /* the allowed origin it came from, for CORS; in the connection's memory */
    enum phase phase;
    bool suspended, gone, counted, in_engine, starved, expects, close;
    struct sy_problem problem;
    struct sy_buf body, out;
    size_t out_at, discarded;
    bool out_last;
    unsigned char who[SY_DIGEST];
    int status;
    const char *type; /* of out */
    uint64_t t_start;
    struct sy_call *call;
    bool to_format; /* which of its two jobs a worker is to do */
    struct req *next_work, *next_starved, *prev, *next;
};
struct sy_server {
    const struct sy_env *env;
    struct sy_server_opt opt;
    char address[256];
    int listen_fd;
    bool unlink_path;
    struct MHD_Daemon *daemon;
    char *cert, *key;
    struct sy_auth auth;
    struct sy_accesslog *log;
    struct sy_engine *engine;
    struct sy_loop *loop;
    double bytes_s; /* memory bandwidth, measured at start */
    struct sy_service service;
    atomic_bool draining, closing, stuck, pump_quit;
    _Atomic int32_t n_busy, n_conn;
    _Atomic int64_t body_bytes; /* of all bodies being held */
    _Atomic uint64_t n_status[6], n_rejected;

    pthread_mutex_t lock;
    struct conn *conn; /* [n_slot] */
    uint32_t n_slot, free_slot;
    uint32_t *next_free;
    struct req *reqs;

    pthread_t worker[WORKERS], pump;
    int n_worker;
    bool has_pump, work_quit;
    pthread_mutex_t work_lock;
    pthread_cond_t work_news;
    struct req *work_first, *work_last;
    struct req *starved; /* the pump's: prompts are left, and the queue was full */
    int epoll_fd, wake_fd;
};

void req_ref(struct req *);
void req_unref(struct req *);
void req_wake(struct req *);      /* under its lock: libmicrohttpd goes on with it */
void req_push_work(struct req *); /* takes a reference for the worker */

/* http.c: callbacks of libmicrohttpd */
enum MHD_Result http_request(void *server, struct MHD_Connection *, const char *url, const char *method,
                             const char *version, const char *upload, size_t *n_upload, void **req);
void http_completed(void *server, struct MHD_Connection *, void **req, enum MHD_RequestTerminationCode);
void http_connection(void *server, struct MHD_Connection *, void **slot, enum MHD_ConnectionNotificationCode);

/* route.c: fills out, type and status of a request that needs no worker */
void route_answer(struct req *);
void route_openapi(const struct sy_server *, struct sy_buf *);
void route_metrics(struct sy_server *, struct sy_buf *);

/* work.c */
SY_CHECK sy_status work_start(struct sy_server *, struct sy_err *);
void work_stop(struct sy_server *);
void work_wake(struct sy_server *); /* the pump sleeps while there is no connection */
void work_watch(struct req *);      /* its connection is looked at for hanging up */
uint64_t work_received(int fd);     /* bytes that have come over a TCP connection; 0: not known */
