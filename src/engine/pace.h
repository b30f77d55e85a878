/* pace.h - what a step costs, learned from the steps that ran. Owned by the engine thread; no locks, no allocation.
 *
 * A step's time is taken to be a sum of non-negative costs times what the step holds (struct sy_pace_load). The costs
 * are a least-squares fit of relative errors over the last steps of either kind, with and without prompt tokens, so
 * that long stretches of one kind do not wash out what is known of the other, and one step that the system held up
 * does not turn the fit. Predictions are raised by how far measured steps overran theirs: on a busy machine they get
 * cautious. */
#pragma once
#include "base/base.h"

enum sy_pace_term {
    SY_PACE_FIXED, /* 1: weights are read once, threads meet */
    SY_PACE_TOK,
    SY_PACE_ROW,  /* rows of logits, and sampling from them */
    SY_PACE_KEY,  /* keys that tokens of running answers attend to */
    SY_PACE_PAIR, /* (token, key) pairs of prompt chunks */
    SY_PACE_TERMS
};
struct sy_pace_load {
    double x[SY_PACE_TERMS];
};

enum { SY_PACE_STEPS = 48 }; /* remembered of each kind */
struct sy_pace {
    struct {
        struct sy_pace_load load[SY_PACE_STEPS];
        double ns[SY_PACE_STEPS], overrun[SY_PACE_STEPS]; /* overrun: measured / what the fit before it said */
        int32_t n, at;                                    /* at: the oldest, once it is full */
    } kind[2];                                            /* [1]: with prompt tokens */
    double cost[SY_PACE_TERMS];                           /* ns */
    double overrun;                                       /* nearly the largest of these steps', at least 1 */
    struct sy_pace_load most;                             /* of these steps with prompt tokens */
};
void sy_pace_add(struct sy_pace *, const struct sy_pace_load *, bool prompts, uint64_t ns);
/* ns; 0: nothing has been measured. */
double sy_pace_predict(const struct sy_pace *, const struct sy_pace_load *);
/* Not more than twice the tokens and pairs of a step that was measured: beyond that a prediction is a guess. */
bool sy_pace_knows(const struct sy_pace *, const struct sy_pace_load *);
