/* Opens bytes as config.json and one safetensors file, separated by a zero byte, and reads all tensors. */
#include <string.h>

#include "checkpoint/internal.h"

static volatile unsigned sink; /* what was read must be used, or it is not read */

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    const unsigned char *end = n ? memchr(data, 0, n) : NULL;
    if (!end) return 0;
    size_t n_config = (size_t)(end - data);
    struct sy_bytes config = {"config.json", data, n_config};
    struct sy_bytes shard = {"m.safetensors", end + 1, n - n_config - 1};
    struct sy_checkpoint *c = NULL;
    struct sy_err err = {0};
    sy_status st = sy_checkpoint_from_safetensors(sy_env_default(), &config, &shard, 1, &c, &err);
    sy_assert((st == SY_OK) == (c != NULL) && (st == SY_OK || (err.code == st && err.msg[0])));
    if (!c) return 0;
    unsigned sum = 0;
    size_t total = 0;
    for (size_t i = 0; i < sy_checkpoint_count(c); i++) {
        const struct sy_tensor *t = sy_checkpoint_at(c, i);
        sy_assert(t->data >= shard.at && t->data + t->n_bytes <= shard.at + shard.n);
        sy_assert(sy_checkpoint_find(c, t->name) == t);
        for (size_t k = 0; k < t->n_bytes; k++) sum += t->data[k];
        total += t->n_bytes;
    }
    sy_assert(total < shard.n); /* each byte belongs to one tensor at most */
    bool *used = sy_new_array(sy_env_default(), sy_checkpoint_count(c) + 1, 1);
    if (used && sy_checkpoint_check_extra(c, used, &err)) sum += (unsigned)strlen(err.msg);
    sy_delete(sy_env_default(), used);
    sink = sum;
    sy_checkpoint_free(c);
    return 0;
}
