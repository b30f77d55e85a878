/* server.h - the HTTP server: OpenAI's API over an engine. libmicrohttpd moves the bytes on one thread;
 * workers parse, render and tokenise; the pump thread takes what the engine's loop has made, and watches
 * connections and the engine.
 *
 * RFC 9110 and 9112 (HTTP), RFC 6750 (bearer keys), Fetch standard (CORS), Prometheus text format 0.0.4. */
#pragma once
#include "engine/loop.h"

struct sy_server;
struct sy_server_opt {              /* all borrowed for the server's life */
    const char *host;               /* "127.0.0.1" */
    int port;                       /* 0: any free one */
    const char *unix_path;          /* a socket file instead */
    const char *tls_cert, *tls_key; /* PEM files; both or neither */
    const char *key_file;           /* a key a line; NULL: no key is asked for */
    const char *const *cors;        /* origins, "*" for all */
    size_t n_cors;
    const char *access_log;   /* a file, "-" for standard output; NULL: none */
    const char *const *names; /* of the model; the first is its id */
    size_t n_name;
    enum sy_pooling pooling; /* of embeddings */
    size_t body_bytes_max;
    int32_t connections_max, queue_max;
    double header_s, body_s, idle_s; /* time limits */
    double stuck_s;                  /* a step that takes longer is reported */
};
/* Takes the address, before a model is loaded: nobody is answered yet. */
SY_CHECK sy_status sy_server_new(const struct sy_env *, const struct sy_server_opt *, struct sy_server **out,
                                 struct sy_err *);
/* Begins to answer. The engine is borrowed until sy_server_free(). */
SY_CHECK sy_status sy_server_start(struct sy_server *, struct sy_engine *, struct sy_err *);
const char *sy_server_address(const struct sy_server *); /* "http://127.0.0.1:8080", as clients write it */
/* From now on /ready says 503 and new work is refused; what runs goes on. */
void sy_server_drain(struct sy_server *);
int32_t sy_server_busy(const struct sy_server *); /* calls that are not answered yet */
bool sy_server_failed(const struct sy_server *);  /* the engine failed: nothing will be answered any more */
void sy_server_free(struct sy_server *);          /* ends what still runs; NULL is fine */
