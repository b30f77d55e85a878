/* Opens bytes as a GGUF file and reads all that opening found. Input that does not start with "GGUF" is two
 * shards: 2 bytes with the length of the first one, and both. */
#include <string.h>

#include "checkpoint/internal.h"
#include "text/tokenizer.h"

enum { TOKENS_MAX = 4096 }; /* of a vocabulary that is worth the time to write anew */

static volatile unsigned sink; /* what was read must be used, or it is not read */

static void read_all(const struct sy_checkpoint *c)
{
    unsigned sum = 0;
    for (size_t i = 0; i < sy_checkpoint_count(c); i++) {
        const struct sy_tensor *t = sy_checkpoint_at(c, i);
        sy_assert(t->n_bytes > 0 && t->format && t->dtype && t->file && t->file_name);
        sy_assert(sy_checkpoint_find(c, t->name) == t);
        sum += t->data[0] + t->data[t->n_bytes - 1];
        int64_t rows = t->n_dim > 1 || t->head_rows ? t->dim[0] : 1;
        sy_assert(sy_tensor_row(t, rows - 1) >= 0 && sy_tensor_row(t, rows - 1) < rows);
    }
    const struct sy_gguf_vocab *v = sy_checkpoint_gguf_vocab(c);
    for (size_t i = 0; v && i < v->n_token; i++) {
        if (v->token[i].n) sum += (unsigned char)v->token[i].at[v->token[i].n - 1];
        if (v->score) sum += v->score[i] > 0;
        if (v->type) sum += (unsigned)v->type[i];
    }
    for (size_t i = 0; v && i < v->n_merge; i++)
        if (v->merge[i].n) sum += (unsigned char)v->merge[i].at[v->merge[i].n - 1];
    if (v && v->n_charsmap) sum += v->charsmap[v->n_charsmap - 1];
    size_t n;
    const char *text = sy_checkpoint_chat_template(c, &n);
    if (text && n) sum += (unsigned char)text[n - 1];
    bool *used = sy_new_array(sy_env_default(), sy_checkpoint_count(c) + 1, 1);
    struct sy_err err;
    if (used && sy_checkpoint_check_extra(c, used, &err)) sum += (unsigned)strlen(err.msg);
    sy_delete(sy_env_default(), used);
    sink = sum;
}

/* The tokenizer as a folder would have it, which is read back there. */
static void write_tokenizer(const struct sy_checkpoint *c)
{
    const struct sy_gguf_vocab *v = sy_checkpoint_gguf_vocab(c);
    struct sy_buf json, config;
    struct sy_err err = {0};
    size_t n;
    const char *template = sy_checkpoint_chat_template(c, &n);
    if (!v || v->n_token > TOKENS_MAX) return;
    sy_buf_init(&json, sy_env_default(), 0);
    sy_buf_init(&config, sy_env_default(), 0);
    sy_status st = sy_tokenizer_to_json(sy_env_default(), v, template, template ? n : 0, &json, &config, &err);
    sy_assert(st == SY_OK ? json.len && config.len : err.code == st && err.msg[0]);
    sy_buf_release(&json);
    sy_buf_release(&config);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct sy_bytes shard[2] = {{"a.gguf", data, n}, {"b.gguf", NULL, 0}};
    size_t n_shard = 1;
    if (n >= 4 && memcmp(data, "GGUF", 4)) {
        size_t first = data[0] | (size_t)data[1] << 8;
        if (first > n - 2) first = n - 2;
        shard[0].at = data + 2;
        shard[0].n = first;
        shard[1].at = data + 2 + first;
        shard[1].n = n - 2 - first;
        n_shard = 2;
    }
    struct sy_checkpoint *c = NULL;
    struct sy_err err = {0};
    sy_status st = sy_checkpoint_from_gguf(sy_env_default(), shard, n_shard, &c, &err);
    sy_assert((st == SY_OK) == (c != NULL) && (st == SY_OK || (err.code == st && err.msg[0])));
    if (c) read_all(c);
    if (c) write_tokenizer(c);
    sy_checkpoint_free(c);
    return 0;
}
