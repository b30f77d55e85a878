/* loop_int.h - what loop.c and stream.c share. Private to this folder. */
#pragma once
#include <pthread.h>

#include "engine/loop.h"

/* Fills in the callbacks of the stream's request; scratch: sy_sample_scratch_bytes(), the loop's. */
void stream_on_event(void *stream, const struct sy_event *);
void stream_on_logits(void *stream, int32_t pos, const float *logits, int32_t n_vocab);
void stream_on_hidden(void *stream, int32_t pos, const float *hidden, int32_t d_model);

struct sy_loop {
    const struct sy_env *env;
    struct sy_engine *engine;
    pthread_t thread;
    int fd; /* eventfd: streams have news */
    int32_t open_max;
    _Atomic int32_t n_open;
    _Atomic(struct sy_stream *) in, cancel,
        ready;               /* stacks; many push in and cancel, the engine thread pushes ready */
    struct sy_stream *taken; /* the reader's: taken from ready, oldest first */
    _Atomic uint32_t asleep; /* a futex */
    atomic_bool quit, failed;
    _Atomic uint64_t step_since; /* 0: between steps */
    /* the engine thread's */
    struct sy_stream *live;
    bool news;
    void *scratch;
    struct sy_loop_metrics metrics;
    /* stats, published under an even version */
    _Atomic uint64_t version;
    _Atomic uint64_t stats[sizeof(struct sy_engine_stats) / 8];
};
void loop_news(struct sy_stream *);                       /* puts it on the ready stack */
void loop_ended(struct sy_stream *, enum sy_finish last); /* every reply has finished */
