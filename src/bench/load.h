/* load.h - a load on a server and what its users see.
 *
 * Closed loop: `concurrency` sessions are alive, and when one ends the next begins. Open loop: sessions begin when
 * they are due (a Poisson process of `rate` per second, or the workload's own times), however many are alive; times
 * then count from when a request was due, so a client or server that falls behind is not flattered.
 *
 * Definitions, as InferenceX and vLLM's benchmark have them: TTFT from request to first chunk with a token; E2E to
 * the last one; TPOT (E2E - TTFT) / (output tokens - 1), of answers of two tokens and more; ITL each time between two
 * chunks. Requests that failed count in none of them. Thread: the caller's. */
#pragma once
#include "bench/client.h"
#include "bench/watch.h"
#include "bench/workload.h"

struct sy_load_opt {
    struct sy_client_opt client; /* parallel is filled in */
    const char *model;
    bool ids; /* prompts as token ids below n_vocab; else text */
    int32_t n_vocab;
    const char *cache_salt; /* sent along: prefix caches are shared within it; NULL: none */
    uint64_t seed;
    struct sy_watch watch;
};
enum { SY_LOAD_ERRORS = 12 };
struct sy_load_error {
    char kind[64], example[200];
    int64_t n;
};
struct sy_load_seen {
    double concurrency, rate; /* as asked; 0: not */
    double duration_s;
    int64_t n_request, n_done, n_short;         /* sent; answered; of those with fewer tokens than asked for */
    int64_t n_in, n_out;                        /* tokens of what was answered */
    struct sy_summary ttft, tpot, itl, e2e;     /* seconds */
    struct sy_load_error error[SY_LOAD_ERRORS]; /* by kind; the last one gathers what does not fit */
    int n_error;
    double cpu_share; /* of one CPU that this client used */
};
/* rate 0: closed loop. Both 0: the workload's times. At most n_session sessions run (from the first, going round). */
SY_CHECK sy_status sy_load_run(const struct sy_env *, const struct sy_load_opt *, const struct sy_workload *,
                               size_t n_session, double concurrency, double rate, struct sy_load_seen *out,
                               struct sy_err *);
