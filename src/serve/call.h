/* call.h - one API call from body to answer, without HTTP: `systole batch` uses it as the server does.
 *
 * Life: sy_call_new (parse, render, tokenise: the long part, any thread), sy_call_submit, then
 * sy_call_feed with each stream of it that has news until sy_call_done, then sy_call_body; or, streaming,
 * sy_call_events as text comes. A call is used by one thread at a time: its owner locks around it. */
#pragma once
#include "engine/loop.h"
#include "serve/request.h"

struct sy_service { /* what calls share; immutable once made, but for the loop */
    const struct sy_env *env;
    const struct sy_engine *engine; /* its immutable parts */
    struct sy_loop *loop;
    struct sy_ask_limits limits;
    enum sy_pooling pooling;
    int64_t started;          /* seconds since 1970 */
    const char *const *names; /* [n_name] of the model; the first one is answered with */
    size_t n_name;
};
/* choices_max: n of a request. names borrowed. The loop may be NULL: then only texts are handled. */
void sy_service_init(struct sy_service *, const struct sy_env *, const struct sy_engine *, struct sy_loop *,
                     const char *const *names, size_t n_name, enum sy_pooling);

struct sy_choice {
    struct sy_output out;
    struct sy_buf text;
    uint32_t *text_end; /* [n_token] bytes of text that were certain after each token */
    int32_t n_token, cap;
    enum sy_finish finish;
    int stop;       /* the stop string that matched, or -1 */
    int32_t n_sent; /* streaming: tokens and bytes that went out, and which chunks did */
    size_t n_sent_bytes, n_sent_chars;
    bool opened, closed;
};
struct sy_call_item { /* a prompt */
    struct sy_ids prompt;
    struct sy_stream *stream;
    bool ended;
};
struct sy_call {
    const struct sy_service *service;
    struct sy_ask ask;
    struct sy_problem problem; /* status 0: none */
    char id[48];
    int64_t created;
    uint64_t arrival_ns, domain;
    struct sy_call_item *item; /* [ask.n_prompt] */
    struct sy_choice *choice;  /* [ask.n_prompt * ask.n] prompt by prompt */
    int32_t n_choice, n_submitted, n_ended;
    bool cancelled, tail_sent;
    struct sy_buf text; /* the rendered prompt of /apply-template */
    void *owner;
};
/* Always gives a call (but NULL when memory is out); look at call->problem. arrival_ns 0: now. */
struct sy_call *sy_call_new(const struct sy_service *, enum sy_api, const char *body, size_t n, uint64_t domain,
                            uint64_t arrival_ns, void *owner);
void sy_call_free(struct sy_call *); /* cancels what still runs; NULL is fine */

/* Submits as many prompts as the queue takes; those left follow as earlier ones end. False: the problem
 * says why none was. */
bool sy_call_submit(struct sy_call *);
bool sy_call_starved(const struct sy_call *); /* prompts are left and none runs: call sy_call_submit again later */
void sy_call_feed(struct sy_call *, struct sy_stream *); /* a stream whose owner is this call has news */
bool sy_call_started(const struct sy_call *);            /* there is a token, or it is done */
bool sy_call_done(const struct sy_call *);
/* Of a call that is done, by the thread that takes streams from the loop: what else comes of them is about
 * nothing. */
void sy_call_detach(struct sy_call *);
void sy_call_cancel(struct sy_call *);

/* The whole answer as JSON: of a call that is done and has no problem, or of one that has. */
void sy_call_body(struct sy_call *, struct sy_buf *);
/* Appends server-sent events for what is new; true once the last one ([DONE]) is out. */
bool sy_call_events(struct sy_call *, struct sy_buf *);

struct sy_usage {
    int64_t prompt, completion, cached;
};
struct sy_usage sy_call_usage(const struct sy_call *);
