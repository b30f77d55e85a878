/* chat.h - a conversation to prompt ids: the model's chat template rendered, then tokenised span by span, so that
 * text of a message never becomes a control token (sy_tokenizer_is_control), and with exactly one BOS. */
#pragma once
#include "text/template.h"
#include "text/tokenizer.h"

/* Renders and appends ids. The tokenizer's own BOS is added only if the rendered text does not start with it. */
SY_CHECK sy_status sy_chat_encode(const struct sy_env *, const struct sy_template *, const struct sy_tokenizer *,
                                  const struct sy_render *, struct sy_ids *out, struct sy_err *);
/* bos, eos, pad texts of the tokenizer for a rendering. */
void sy_chat_tokens(const struct sy_tokenizer *, struct sy_render *);
/* Plain text to prompt ids: special tokens are recognised, the tokenizer's BOS is added unless the text starts with
 * it. */
SY_CHECK sy_status sy_text_encode(const struct sy_tokenizer *, const char *text, size_t n, struct sy_ids *out,
                                  struct sy_err *);
