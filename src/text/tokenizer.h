/* tokenizer.h - text to token ids and back. Immutable after creation: any number of threads may use one.
 *
 * Kinds: byte-level BPE, SentencePiece-style BPE with byte fallback, Unigram, WordPiece; built from Hugging Face's
 * tokenizer.json or from GGUF metadata. Encoding time is linear in the text (bounded merges and regex work).
 *
 * Ids and texts are those of Hugging Face's tokenizers 0.23 but for this: no merge and no look-up of the model makes
 * a control token, even in plain text; an added token decodes to its own content, not to its normalized form; and
 * characters newer than a library's Unicode tables (utf8proc and PCRE2 here) may be classed differently. */
#pragma once
#include "base/arena.h"
#include "base/buf.h"
#include "checkpoint/checkpoint.h"

struct sy_tokenizer;

/* config may be NULL (tokenizer_config.json: bos/eos tokens). what: the file, for messages. */
SY_CHECK sy_status sy_tokenizer_from_json(const struct sy_env *, const struct sy_json *tokenizer,
                                          const struct sy_json *config, const char *what, struct sy_tokenizer **out,
                                          struct sy_err *);
SY_CHECK sy_status sy_tokenizer_from_gguf(const struct sy_env *, const struct sy_gguf_vocab *, const char *what,
                                          struct sy_tokenizer **out, struct sy_err *);
/* A folder's tokenizer as a GGUF holds it: *out, in mem and in *source, the tokenizer of tokenizer.json, which is
 * there and which the caller frees afterwards. Refused when no tokenizer that GGUF can name cuts texts the same way.
 */
SY_CHECK sy_status sy_tokenizer_to_gguf(const struct sy_env *, const struct sy_checkpoint *, struct sy_arena *mem,
                                        struct sy_tokenizer **source, struct sy_gguf_vocab *out, struct sy_err *);
/* A GGUF's tokenizer as a folder holds it: the texts of tokenizer.json and tokenizer_config.json, which replace what
 * the two hold. template may be NULL. SY_ENOSUP when no tokenizer.json is known that cuts texts the same way. */
SY_CHECK sy_status sy_tokenizer_to_json(const struct sy_env *, const struct sy_gguf_vocab *, const char *template,
                                        size_t n_template, struct sy_buf *json, struct sy_buf *config,
                                        struct sy_err *);
/* Either of the first two, by what the checkpoint has; *out = NULL and SY_OK when it has none. */
SY_CHECK sy_status sy_tokenizer_open(const struct sy_env *, const struct sy_checkpoint *, struct sy_tokenizer **out,
                                     struct sy_err *);
void sy_tokenizer_free(struct sy_tokenizer *);

struct sy_ids { /* a growing array; release with sy_ids_release; zeroed is empty */
    const struct sy_env *env;
    int32_t *at;
    size_t n, cap;
};
void sy_ids_init(struct sy_ids *, const struct sy_env *);
void sy_ids_release(struct sy_ids *);
SY_CHECK sy_status sy_ids_push(struct sy_ids *, int32_t id, struct sy_err *);

enum sy_encode_flags {
    SY_ENCODE_SPECIAL = 1, /* add what the post-processor adds (BOS and the like)                    */
    SY_ENCODE_PLAIN = 2,   /* control tokens written in the text stay plain text                      */
};
/* Appends ids. Invalid UTF-8 is replaced by U+FFFD per ill-formed sequence, as Python's errors="replace". */
SY_CHECK sy_status sy_tokenizer_encode(const struct sy_tokenizer *, const char *text, size_t n, unsigned flags,
                                       struct sy_ids *out, struct sy_err *);
/* A rendered chat prompt: control tokens are recognised in trusted spans (the template's own text) only, each wholly
 * inside one; text that came from messages never becomes one. Spans partition the text in order. */
struct sy_span {
    size_t lo, hi; /* bytes [lo, hi) */
    bool trusted;
};
SY_CHECK sy_status sy_tokenizer_encode_spans(const struct sy_tokenizer *, const char *text, const struct sy_span *,
                                             size_t n_span, unsigned flags, struct sy_ids *out, struct sy_err *);
/* Whole decode, appended to out; skip_special leaves special tokens out. Ids out of range are refused by number. */
SY_CHECK sy_status sy_tokenizer_decode(const struct sy_tokenizer *, const int32_t *ids, size_t n, bool skip_special,
                                       struct sy_buf *out, struct sy_err *);
/* Incremental decode: text comes out as soon as it is certain, never half a character. Feeding all ids and then
 * finishing gives exactly what sy_tokenizer_decode gives, but for one case: a run of byte-fallback tokens ("<0xE2>")
 * is valid UTF-8 as a whole or becomes one U+FFFD per byte, so it is held until it ends; of a run that grows beyond
 * `held` the complete characters are let go. Caller's storage, fixed size, no allocation per id. */
struct sy_detok {
    const struct sy_tokenizer *tok;
    bool skip_special, started, bad_bytes, lead_done;
    int32_t pending; /* a token whose text depends on whether it is the last; -1: none */
    unsigned n_held, n_lead, n_tail;
    unsigned char held[256];
};
void sy_detok_init(struct sy_detok *, const struct sy_tokenizer *, bool skip_special);
void sy_detok_feed(struct sy_detok *, int32_t id, struct sy_buf *out); /* an unknown id gives U+FFFD */
void sy_detok_finish(struct sy_detok *, struct sy_buf *out);

int32_t sy_tokenizer_size(const struct sy_tokenizer *);
int32_t sy_tokenizer_bos(const struct sy_tokenizer *); /* -1: none */
int32_t sy_tokenizer_eos(const struct sy_tokenizer *);
int32_t sy_tokenizer_pad(const struct sy_tokenizer *);
bool sy_tokenizer_is_special(const struct sy_tokenizer *, int32_t id); /* left out by skip_special */
/* Does the token steer a model rather than stand for text? Special tokens do, and added tokens in angle or square
 * brackets ("<think>", "<tool_call>", "[TOOL_CALLS]"), which many vocabularies do not call special; but not elements
 * of a page's text ("<table>", "</h1>") nor other added tokens (runs of spaces and line breaks, words). Where
 * everything is trusted, non-special ones are matched as by Hugging Face's tokenizers. */
bool sy_tokenizer_is_control(const struct sy_tokenizer *, int32_t id);
/* The token's own text (no decoding): "<|im_end|>", "\u0120the"; borrowed; NULL out of range. */
const char *sy_tokenizer_token(const struct sy_tokenizer *, int32_t id, size_t *n);
/* The bytes it stands for inside a text: " the", the single byte of "<0xE2>"; not always valid UTF-8. Borrowed;
 * NULL out of range. */
const char *sy_tokenizer_bytes(const struct sy_tokenizer *, int32_t id, size_t *n);
int32_t sy_tokenizer_find(const struct sy_tokenizer *, const char *token, size_t n); /* -1: none */
