/* replay.h - a recorded run again, step for step (the format: engine/trace.c).
 *
 * Requests arrive, and those that were cancelled or out of time leave, between the same steps as in the record; the
 * engine's clock reads what it read then, so that every decision that depends on measured times comes out the same.
 * Answers end at their recorded lengths. Each step is compared with its record: who was in it, in which order, with
 * how many tokens. Thread: the caller's. */
#pragma once
#include "bench/watch.h"
#include "engine/engine.h"

struct sy_trace; /* an open record */
/* Reads the whole file once: it must be well-formed, every number in its range. */
SY_CHECK sy_status sy_trace_open(const struct sy_env *, const char *path, struct sy_trace **out, struct sy_err *);
void sy_trace_close(struct sy_trace *);
/* What the recorded engine was opened with: sets all fields of the options that decide about steps, and no others. */
void sy_trace_options(const struct sy_trace *, struct sy_engine_opt *);

struct sy_replay {
    uint64_t n_step, n_request, n_token; /* replayed; tokens computed */
    double recorded_s, now_s;            /* time in steps: then, and now */
    bool same;
    uint64_t step; /* first step that differs */
    char difference[400];
};
/* Opens an engine with these options and runs the record. A difference is a result, not an error. */
SY_CHECK sy_status sy_replay_run(const struct sy_env *, struct sy_trace *, const struct sy_engine_opt *,
                                 const struct sy_watch *, struct sy_replay *out, struct sy_err *);

/* For tests and fuzzing: the reader alone, over bytes in memory. */
SY_CHECK sy_status sy_trace_check(const struct sy_env *, const char *text, size_t n, struct sy_err *);
