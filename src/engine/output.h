/* output.h - the text of one answer: incremental detokenising and stop strings.
 *
 * Text comes out as soon as it can no longer be part of a stop string: a stop string never leaks its first half, and
 * text held back is given out when the answer ends otherwise. The earliest match wins; of two that start together,
 * the one listed first. Caller's storage: init / release. */
#pragma once
#include "text/tokenizer.h"

enum { SY_STOP_MAX = 16, SY_STOP_BYTES_MAX = 4096 };
struct sy_output {
    struct sy_detok detok;
    struct sy_buf pending;         /* detokenised, not yet given out */
    const char *stop[SY_STOP_MAX]; /* borrowed */
    size_t stop_len[SY_STOP_MAX];
    int n_stop;
    bool include_stop, stopped;
    bool lost; /* memory ran out and text is missing: what came out must not pass for the answer */
    int which; /* the stop string that matched */
};
/* Refuses an empty stop string, too many or too long ones (SY_EARG). */
SY_CHECK sy_status sy_output_init(struct sy_output *, const struct sy_env *, const struct sy_tokenizer *,
                                  bool skip_special, const char *const *stop, const size_t *stop_len, int n_stop,
                                  struct sy_err *);
void sy_output_release(struct sy_output *);
/* Appends the text that became certain to out. True: a stop string matched; nothing more will come. */
bool sy_output_feed(struct sy_output *, int32_t id, struct sy_buf *out);
void sy_output_finish(struct sy_output *, struct sy_buf *out);
