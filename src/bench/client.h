/* client.h - many streamed completions at once, over libcurl's multi interface on epoll: one thread, which is woken
 * only for sockets that have something. Owned by one thread; nothing here blocks but sy_client_wait(). */
#pragma once
#include "base/buf.h"
#include "bench/sse.h"
#include "bench/stats.h"

struct sy_client;
struct sy_client_opt {
    const char *url;     /* "http://127.0.0.1:8080", with or without "/v1" */
    const char *api_key; /* NULL: none */
    bool chat;           /* /v1/chat/completions instead of /v1/completions */
    double timeout_s;    /* for a whole answer */
    int32_t parallel;    /* answers at once, at most */
};
SY_CHECK sy_status sy_client_new(const struct sy_env *, const struct sy_client_opt *, struct sy_client **out,
                                 struct sy_err *);
void sy_client_free(struct sy_client *); /* drops what is in flight */

struct sy_server_says { /* of GET /v1/models */
    char model[200];
    int64_t n_vocab; /* 0: not told */
};
/* Asks once, blocking: fails when nobody answers, or not as OpenAI's API does. */
SY_CHECK sy_status sy_client_probe(struct sy_client *, struct sy_server_says *, struct sy_err *);

struct sy_heard {     /* an answer; times are the clock's, 0: it never came to that */
    char error[64];   /* kind of failure: "HTTP 429", "connection refused", ...; "" none */
    char detail[200]; /* what the server or libcurl said about it */
    uint64_t t_start, t_first, t_last;
    int64_t n_chunk;            /* chunks that brought tokens */
    int64_t n_prompt, n_output; /* by the server's usage; -1: it did not say */
    const struct sy_buf *text;  /* of the answer, when kept */
    const struct sy_buf *ids;   /* "1,2,3", when kept and returned */
    const double *gap;          /* [n_gap] seconds from chunk to chunk */
    size_t n_gap;
    void *ctx;
};
/* Sends one request. t_start: when it was due, from which times count. keep: text and ids are wanted. SY_FULL:
 * `parallel` are in flight already. */
SY_CHECK sy_status sy_client_send(struct sy_client *, const char *body, size_t n_body, uint64_t t_start, bool keep,
                                  void *ctx, struct sy_err *);
int32_t sy_client_in_flight(const struct sy_client *);
/* Waits until something happened or `until_ns` of the clock has come (0: no such moment), and calls on_end for every
 * answer that ended; what it gets is borrowed for the call. on_end must not send. */
SY_CHECK sy_status sy_client_wait(struct sy_client *, uint64_t until_ns,
                                  void (*on_end)(void *ctx, const struct sy_heard *), void *ctx, struct sy_err *);
