/* loop.h - an engine on a thread of its own, and the streams through which other threads use it.
 *
 * An io thread makes a stream (all its memory at once), submits it and reads what the engine thread
 * appends. The engine thread takes no lock and allocates nothing in its callbacks: it writes an element,
 * publishes the new length and, after the step, signals one eventfd. A full queue is SY_FULL at the door.
 * Without requests the engine thread sleeps. */
#pragma once
#include <stdatomic.h>

#include "base/arena.h"
#include "engine/engine.h"
#include "engine/histogram.h"

struct sy_loop;

enum sy_pooling { SY_POOL_NONE, SY_POOL_MEAN, SY_POOL_LAST };

/* One of the n_sample answers of a stream. Read finish first, then n: once finish is not SY_RUNNING, n is
 * final. */
struct sy_reply {
    int32_t *id;            /* [n_max] */
    float *logprob;         /* [n_max], NULL: not asked for */
    struct sy_logprob *top; /* [n_max, n_top] */
    _Atomic int32_t n;
    _Atomic int finish;  /* enum sy_finish */
    _Atomic int32_t end; /* place of the token that ended it (an end token or stop id); -1: no such. Set before n */
    atomic_bool stopped; /* its reader needs no more */
    uint64_t t_last;     /* the engine thread's */
};
struct sy_stream_opt {
    struct sy_request request; /* everything borrowed for the call of new; on_* and ctx must be unset */
    bool score_prompt;         /* log probabilities of the prompt's own tokens */
    int32_t n_prompt_top;      /* and of that many most likely ones */
    enum sy_pooling pooling;   /* an embedding of the prompt */
    int32_t n_vocab, d_model;
    uint64_t arrival_ns; /* when the client's request came; for deadlines and metrics */
    void *owner;         /* for whoever reads */
};
struct sy_stream {
    void *owner;
    struct sy_request request;     /* copied into the arena */
    struct sy_reply *reply;        /* [n_reply] */
    int32_t n_reply, n_top;        /* n_top: of replies */
    _Atomic int32_t n_cached;      /* prompt tokens from the prefix cache */
    float *prompt_logprob;         /* [n_prompt], the first one unset; readable once every reply has finished */
    struct sy_logprob *prompt_top; /* [n_prompt, n_prompt_top] */
    int32_t n_prompt_top;
    double *pooled; /* [d_model], not normalised; readable as prompt_logprob */
    enum sy_pooling pooling;
    int32_t d_model;
    struct sy_err error; /* when a reply's finish is SY_FINISH_ERROR */
    uint64_t arrival_ns;
    /* ---- private --------------------------------------------------------------------------------------- */
    struct sy_loop *loop;
    struct sy_prepared *prepared; /* from submit to the engine thread */
    struct sy_arena arena;
    atomic_int refs;
    atomic_bool cancelled, in_cancel, ready;
    struct sy_stream *next_in, *next_cancel, *next_ready; /* links of the queues between threads */
    struct sy_stream *prev, *next;                        /* the engine thread's list of live streams */
    uint64_t id, t_started, t_first;
    int32_t n_running, n_token;
    bool live;
};
SY_CHECK sy_status sy_stream_new(const struct sy_env *, const struct sy_stream_opt *, struct sy_stream **out,
                                 struct sy_err *);
void sy_stream_ref(struct sy_stream *);
void sy_stream_unref(struct sy_stream *); /* NULL is fine; the last one frees it */

/* The engine is borrowed and belongs to the loop's thread until sy_loop_free(); its immutable parts stay
 * everybody's. open_max: streams submitted and not finished. */
SY_CHECK sy_status sy_loop_new(const struct sy_env *, struct sy_engine *, int32_t open_max, struct sy_loop **out,
                               struct sy_err *);
void sy_loop_free(struct sy_loop *); /* ends every stream as cancelled, then joins the thread */

/* Any thread. SY_FULL: try later; SY_EIO: the engine has failed. The loop keeps a reference until the
 * stream ends. */
SY_CHECK sy_status sy_loop_submit(struct sy_loop *, struct sy_stream *, struct sy_err *);
void sy_loop_cancel(struct sy_stream *); /* takes effect before the next step; one not submitted or ended is fine */
/* One reply, which has tokens, is complete as it is: it ends as SY_FINISH_STOP, the others go on. */
void sy_loop_stop(struct sy_stream *, int32_t reply);

/* Readable when streams have news. One thread drains it: reads the eventfd, then takes streams until NULL;
 * each comes with a reference, and comes again when there is more news after it was taken. */
int sy_loop_fd(const struct sy_loop *);
struct sy_stream *sy_loop_next(struct sy_loop *);

int32_t sy_loop_open(const struct sy_loop *);         /* streams submitted and not finished; any thread */
bool sy_loop_failed(const struct sy_loop *);          /* the backend failed; nothing will be answered any more */
uint64_t sy_loop_step_age_ns(const struct sy_loop *); /* how long the step in progress has run; 0: none */
struct sy_engine_stats sy_loop_stats(const struct sy_loop *); /* as of the last step; any thread */

struct sy_loop_metrics { /* read at any time, from any thread; seconds, tokens */
    struct sy_histogram ttft, itl, tpot, e2e, queue, prefill, decode, inference, step;
    struct sy_histogram prompt_tok, gen_tok, step_tok;
    _Atomic uint64_t n_decode_step;                 /* steps without prompt tokens */
    _Atomic uint64_t finished[SY_FINISH_ERROR + 1]; /* replies by enum sy_finish */
};
const struct sy_loop_metrics *sy_loop_metrics(const struct sy_loop *);
