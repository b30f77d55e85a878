#include "engine/chat.h"

#include <string.h>

void sy_chat_tokens(const struct sy_tokenizer *t, struct sy_render *r)
{
    size_t n;
    r->bos = sy_tokenizer_token(t, sy_tokenizer_bos(t), &n);
    r->eos = sy_tokenizer_token(t, sy_tokenizer_eos(t), &n);
    r->pad = sy_tokenizer_token(t, sy_tokenizer_pad(t), &n);
}

sy_status sy_chat_encode(const struct sy_env *env, const struct sy_template *tpl, const struct sy_tokenizer *tok,
                         const struct sy_render *render, struct sy_ids *out, struct sy_err *err)
{
    struct sy_rendered text = {0};
    sy_status st = sy_template_render(tpl, env, render, &text, err);
    if (st) return st;
    /* Most templates write BOS themselves; the tokenizer's post-processor must not add a second one. */
    size_t n_bos = render->bos ? strlen(render->bos) : 0;
    bool has_bos = n_bos && text.text.len >= n_bos && !memcmp(text.text.at, render->bos, n_bos);
    struct sy_ids probe;
    sy_ids_init(&probe, env);
    st = sy_tokenizer_encode(tok, "", 0, SY_ENCODE_SPECIAL, &probe, err);
    bool adds_bos = !st && probe.n && probe.at[0] == sy_tokenizer_bos(tok);
    sy_ids_release(&probe);
    if (!st && adds_bos && !has_bos) st = sy_ids_push(out, sy_tokenizer_bos(tok), err);
    if (!st) st = sy_tokenizer_encode_spans(tok, text.text.at, text.span, text.n_span, 0, out, err);
    sy_rendered_release(&text, env);
    return st;
}
