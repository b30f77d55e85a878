/* describe.h - what a checkpoint is and what it needs, without loading it. */
#pragma once
#include "app/session/session.h"

enum { SY_FORMATS_MAX = 64 };
struct sy_description {
    const struct sy_checkpoint *ckpt;
    const struct sy_tokenizer *tok; /* NULL: none */
    struct sy_model model;          /* arch NULL: not supported, `refusal` says why */
    struct sy_graph *graph;         /* NULL with it */
    struct sy_err refusal;
    struct sy_err problem; /* code 0: every tensor is there, can be read and is used */
    double n_param, bytes; /* elements and stored bytes of all tensors */
    double n_active;       /* elements that one token is computed with: of experts the chosen ones, of tables a row */
    struct {
        const char *name;
        size_t n;
        double bytes;
    } format[SY_FORMATS_MAX];
    size_t n_format;
    int32_t ctx_len, seq_max;
    double kv_token_bytes, kv_bytes; /* of one token; of seq_max sequences of ctx_len */
    double state_bytes;              /* recurrent states of one sequence */
    double memory;                   /* bytes that weights and caches may take; 0: not asked */
    int64_t ctx_fits;                /* longest context of seq_max sequences within it, at most the model's */
};
const char *sy_format_name(const struct sy_tensor *); /* "q4_k"; the file's own word for what nothing here reads */
SY_CHECK sy_status sy_describe(struct sy_args *, const struct sy_text_model *, struct sy_description *,
                               struct sy_err *);
void sy_description_release(struct sy_description *);
