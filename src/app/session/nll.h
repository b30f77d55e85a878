/* nll.h - how well a model predicts the tokens of a window of text. Thread: main. */
#pragma once
#include "engine/engine.h"

struct sy_nll {
    const int32_t *window; /* [n] */
    int32_t n;
    double sum, sum2; /* of -log p and its square, of all windows so far */
    int64_t count;    /* tokens that were predicted */
    bool done;
};
/* Every token of the window but its first is scored. */
SY_CHECK sy_status sy_nll_window(struct sy_engine *, struct sy_nll *, struct sy_err *);

/* The windows of a text: they do not overlap, and each starts with BOS where the tokenizer adds one. */
struct sy_windows {
    const struct sy_tokenizer *tok;
    const int32_t *ids;
    int64_t n_id, at;
    int32_t *window; /* [ctx], the caller's */
    int32_t ctx;
    bool bos;
};
SY_CHECK sy_status sy_windows_init(struct sy_windows *, const struct sy_env *, const struct sy_tokenizer *,
                                   const struct sy_ids *, int32_t *window, int32_t ctx, struct sy_err *);
int32_t sy_windows_next(struct sy_windows *); /* tokens of the next window, 0: the text is over */
