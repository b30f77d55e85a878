/* sample.h - from a row of logits to a token id, on the host, reproducibly.
 *
 * The order is fixed and documented: bias, penalties (repetition: Keskar et al., arXiv:1909.05858; presence and
 * frequency: OpenAI's API reference), temperature, top-k, typical (Meister et al., arXiv:2202.00666), top-p (Holtzman
 * et al., arXiv:1904.09751), min-p (Nguyen et al., arXiv:2407.01082), draw. The n-th draw of a request depends on its
 * seed and n alone. Thread: any; scratch is the caller's. */
#pragma once
#include "base/base.h"

struct sy_bias {
    int32_t id;
    float bias;
};
struct sy_sampling {                           /* zeroed means greedy, nothing else applied */
    float temperature;                         /* 0: greedy */
    int32_t top_k;                             /* 0: off */
    float top_p;                               /* 0 or 1: off */
    float min_p;                               /* 0: off */
    float typical_p;                           /* 0 or 1: off */
    float repeat_penalty;                      /* 0 or 1: off; over prompt and output */
    float presence_penalty, frequency_penalty; /* over the output */
    uint64_t seed;
    const struct sy_bias *bias;
    int32_t n_bias;
    int32_t n_logprob; /* -1: none; 0..20: log probability of the token, and of that many most likely ones */
};
struct sy_logprob {
    int32_t id;
    float logprob;
};
enum { SY_LOGPROB_MAX = 20 };

/* Ranges as the API states them; the message names the parameter and the range. */
SY_CHECK sy_status sy_sampling_check(const struct sy_sampling *, int32_t n_vocab, struct sy_err *);

struct sy_sample_in {
    const float *logits; /* [n_vocab], unchanged */
    int32_t n_vocab;
    const struct sy_sampling *how;
    const uint16_t *count_prompt; /* [n_vocab] times each id stands in the prompt, saturating; NULL: penalties off */
    const uint16_t *count_output; /* [n_vocab] the same for the output so far */
    const int32_t *barred;        /* ids that must not come (end tokens before n_min) */
    int32_t n_barred;
    uint64_t draw; /* which draw of this request: 0, 1, ... */
};
struct sy_sample_out {
    int32_t id;
    float logprob; /* natural log, of the distribution before temperature and truncation */
    struct sy_logprob top[SY_LOGPROB_MAX];
    int32_t n_top;
};
size_t sy_sample_scratch_bytes(int32_t n_vocab);
void sy_sample_draw(const struct sy_sample_in *, void *scratch, struct sy_sample_out *);
/* What a row says of a token that was not drawn from it: its log probability, and the n_top most likely ones. */
void sy_sample_score(const float *logits, int32_t n_vocab, int32_t id, int32_t n_top, void *scratch,
                     struct sy_sample_out *out);
