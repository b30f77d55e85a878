#include "engine/blocks.h"

sy_status sy_blocks_init(struct sy_blocks *b, const struct sy_env *env, int32_t n_block, struct sy_err *err)
{
    *b = (struct sy_blocks){.n_block = n_block};
    b->free_list = sy_new_array(env, (size_t)n_block, sizeof *b->free_list);
    if (!b->free_list) return sy_fail(err, SY_ENOMEM, "no memory for a table of %d blocks", n_block);
    for (int32_t i = n_block - 1; i > 0; i--) b->free_list[b->n_free++] = i;
    return SY_OK;
}

void sy_blocks_release(struct sy_blocks *b, const struct sy_env *env)
{
    sy_delete(env, b->free_list);
    *b = (struct sy_blocks){0};
}

sy_status sy_blocks_lease(struct sy_blocks *b, int32_t n, int32_t *out)
{
    if (n > b->n_free) return SY_FULL;
    for (int32_t i = 0; i < n; i++) out[i] = b->free_list[--b->n_free];
    return SY_OK;
}

void sy_blocks_return(struct sy_blocks *b, const int32_t *block, int32_t n)
{
    sy_assert(b->n_free + n < b->n_block);
    for (int32_t i = 0; i < n; i++) b->free_list[b->n_free++] = block[n - 1 - i];
}
