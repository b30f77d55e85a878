/* sse.h - answers as servers stream them: server-sent events, and what a completion's events say.
 *
 * HTML Living Standard, section 9.2.6 "Interpreting an event stream": lines end in LF, CR or CRLF, an empty line ends
 * an event, its "data" lines are joined by LF; other fields and comments are skipped. Bytes may be cut anywhere. */
#pragma once
#include "base/buf.h"

struct sy_sse {
    struct sy_buf line, data;
    bool has_data, after_cr, started;
};
enum { SY_SSE_EVENT_MAX = 4 << 20 };

void sy_sse_init(struct sy_sse *, const struct sy_env *);
void sy_sse_release(struct sy_sse *);
void sy_sse_clear(struct sy_sse *); /* ready for another stream */
/* Calls on_data for every event that n more bytes complete; stops when it fails. Fails when an event is longer than
 * SY_SSE_EVENT_MAX. */
SY_CHECK sy_status sy_sse_feed(struct sy_sse *, const char *bytes, size_t n,
                               sy_status (*on_data)(void *ctx, const char *data, size_t n, struct sy_err *),
                               void *ctx, struct sy_err *);

/* ---- events of a completion -------------------------------------------------------------------------------------
 */

/* One chunk of OpenAI's completions or chat completions (n = 1). Texts are borrowed from `json`. */
struct sy_chunk {
    struct sy_json *json;
    bool done;        /* "[DONE]" */
    bool has_token;   /* it brought text or token ids */
    const char *text; /* completions: text; chat: content of the delta, or its reasoning; NULL: none */
    size_t n_text;
    const struct sy_json *ids;  /* "token_ids", where the server returns them; NULL: none */
    const char *finish;         /* finish_reason, NULL while there may be more */
    int64_t n_prompt, n_output; /* "usage"; -1: not in this chunk */
    const char *error;          /* message of an error object in the stream; NULL: none */
};
SY_CHECK sy_status sy_chunk_read(const struct sy_env *, const char *data, size_t n, struct sy_chunk *,
                                 struct sy_err *);
void sy_chunk_release(struct sy_chunk *);
