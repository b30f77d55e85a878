/* conv.h - the state that a convolution leaves, which every instruction set's kernel keeps alike. */
#pragma once
#include "backend/cpu/kernel.h"

#include <string.h>

/* The state of the next call: the last n_tap - 1 of the inputs before and those of this call. Rows move towards the
 * front only, so they may move in place. */
static inline void sy_conv_keep(const struct sy_conv_run *r)
{
    int32_t rows = r->n_tap - 1;
    size_t bytes = (size_t)r->d * sizeof(float);
    for (int32_t i = 0; i < rows; i++) {
        float *to = r->to + i * r->ld_state;
        int32_t t = r->n_tok - rows + i;
        if (t >= 0) memcpy(to, r->x + t * r->ldx, bytes);
        else if (r->from) memmove(to, r->from + (rows + t) * r->ld_state, bytes);
        else memset(to, 0, bytes);
    }
}
