/* pages.h - pages of mapped files leave the process once their tensors were read; the page cache keeps them. */
#pragma once
#include "checkpoint/checkpoint.h"

/* Rows [lo, hi) of a tensor of this checkpoint are not needed for now: later reads find them again, more slowly. */
void sy_checkpoint_let_go(const struct sy_checkpoint *, const struct sy_tensor *, int64_t lo, int64_t hi);
