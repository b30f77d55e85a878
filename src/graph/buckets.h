/* buckets.h - the static shapes for devices whose programs have one: this module alone decides them. Pure.
 *
 * Two kinds. In a decode bucket (tok == seq) every sequence has one token. In the others sequences have any number of
 * tokens together, tok > seq. Ladders go by factors of four from small ones: what a step costs follows the requests
 * that are active, not the most there may ever be. */
#pragma once
#include "graph/step.h"

enum { SY_BUCKET_MAX = 64 };
struct sy_buckets { /* the cheapest first */
    struct sy_shape shape[SY_BUCKET_MAX];
    int32_t n;
};
/* max: the most of everything in one step; the last bucket of each kind holds it. */
void sy_buckets_plan(struct sy_shape max, int32_t block_len, struct sy_buckets *);
/* The first bucket that holds a step of so many tokens, sequences, blocks per sequence and rows of logits; -1: none
 * does. */
int32_t sy_buckets_pick(const struct sy_buckets *, struct sy_shape need);
