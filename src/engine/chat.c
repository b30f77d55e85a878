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

sy_status sy_text_encode(const struct sy_tokenizer *t, const char *text, size_t n, struct sy_ids *out,
                         struct sy_err *err)
{
    size_t n_bos = 0, before = out->n;
    int32_t bos = sy_tokenizer_bos(t);
    const char *own = sy_tokenizer_token(t, bos, &n_bos);
    sy_status st = sy_tokenizer_encode(t, text, n, SY_ENCODE_SPECIAL, out, err);
    /* A text that brings its own BOS would get two, which no model was trained on. */
    bool twice = !st && own && n_bos && n >= n_bos && !memcmp(text, own, n_bos) && out->n >= before + 2 &&
                 out->at[before] == bos && out->at[before + 1] == bos;
    if (twice) {
        memmove(out->at + before, out->at + before + 1, (out->n - before - 1) * sizeof *out->at);
        out->n--;
    }
    return st;
}
