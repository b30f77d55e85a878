/* jobs.h - a file of requests to a file of results, in OpenAI's batch format (API reference, "Batch": the
 * request input object and the request output object), a line each.
 *
 * Results are appended as they come. A run that was cut short goes on where it stopped: lines whose
 * custom_id has a result are skipped, and half a line at the end of the results is removed. A line that is
 * malformed or refused gets a result that says so. Thread: one, beside the loop's. */
#pragma once
#include "base/file.h"
#include "serve/call.h"

struct sy_jobs_opt {
    const struct sy_service *service;
    const char *in, *out; /* paths; out is made when it is not there */
    int32_t open_max;     /* calls in the engine at once: enough that it never waits for this thread */
    int stop_fd;          /* readable: end early; -1: none */
    void (*progress)(void *ctx, double done); /* 0..1; NULL: none */
    void *progress_ctx;
};
struct sy_jobs_result {
    int64_t n_line, n_before, n_answered, n_refused; /* lines with a request; with a result already; of this run */
    int64_t prompt_tok, gen_tok;
    bool stopped;
};
SY_CHECK sy_status sy_jobs_run(const struct sy_jobs_opt *, struct sy_jobs_result *, struct sy_err *);
