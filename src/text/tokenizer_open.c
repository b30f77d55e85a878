#include "text/tokenizer.h"

sy_status sy_tokenizer_open(const struct sy_env *env, const struct sy_checkpoint *c, struct sy_tokenizer **out,
                            struct sy_err *err)
{
    *out = NULL;
    const struct sy_json *json = sy_checkpoint_tokenizer_json(c);
    const struct sy_gguf_vocab *gguf = sy_checkpoint_gguf_vocab(c);
    if (json) return sy_tokenizer_from_json(env, json, sy_checkpoint_tokenizer_config(c), "tokenizer.json", out, err);
    return gguf ? sy_tokenizer_from_gguf(env, gguf, sy_checkpoint_path(c), out, err) : SY_OK;
}
