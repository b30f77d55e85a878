/* blocks.h - which KV blocks are free. Block 0 is padding and never leased. Owned by the engine thread; no allocation
 * after creation. Invariant: free + leased = all but block 0. */
#pragma once
#include "base/base.h"

struct sy_blocks {
    int32_t *free_list; /* a stack */
    int32_t n_free, n_block;
};
SY_CHECK sy_status sy_blocks_init(struct sy_blocks *, const struct sy_env *, int32_t n_block, struct sy_err *);
void sy_blocks_release(struct sy_blocks *, const struct sy_env *);
SY_CHECK sy_status sy_blocks_lease(struct sy_blocks *, int32_t n, int32_t *out); /* all or SY_FULL */
void sy_blocks_return(struct sy_blocks *, const int32_t *block, int32_t n);
