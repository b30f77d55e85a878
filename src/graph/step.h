/* step.h - one engine step: the shape it is padded to and what is in it.
 *
 * No prefill or decode phase: a sequence contributes 1..n tokens. All arrays sit in one int32 block, so a step is
 * one host-to-device copy, one broadcast, one trace record, one replay. */
#pragma once
#include "base/base.h"

struct sy_shape {
    int32_t tok, seq, block, out; /* tokens, sequences, blocks per sequence, rows of logits */
    int32_t apart;                /* 1: layers with a window have blocks of their own, with numbers of their own */
};

#define SY_FIELDS(X)                                                                                                 \
    X(TOK, "[tok] token id")                                                                                         \
    X(POS, "[tok] position in its sequence, from 0")                                                                 \
    X(ROW, "[tok] KV row to write: block * block_len + offset in the block")                                         \
    X(START, "[seq+1] first token of each sequence (ragged)")                                                        \
    X(CTX, "[seq] context length once the step has run")                                                             \
    X(BLOCK_TABLE, "[seq*block] block of each block_len positions")                                                  \
    X(SLOT_RD, "[seq] recurrent slot read")                                                                          \
    X(SLOT_WR, "[seq] recurrent slot written; differs when a snapshot is restored or taken")                         \
    X(OUT, "[out] rows of TOK whose logits are wanted")                                                              \
    X(SPAN, "[tok] tokens of its prompt, or position + 1 where that is more: a rope may go by it")                   \
    X(ROW_APART, "[tok] the same as ROW, of layers with a window; none unless the shape is apart")                   \
    X(TABLE_APART, "[seq*block] the same as BLOCK_TABLE; 0 behind the window. None unless the shape is apart")
enum sy_field {
#define X(name, doc) SY_##name,
    SY_FIELDS(X)
#undef X
        SY_FIELD_COUNT
};

struct sy_batch {
    struct sy_shape shape;       /* the bucket: each array has exactly this padded length */
    int32_t n_tok, n_seq, n_out; /* live part; padding points at block 0 and slot 0, which are never leased */
    int32_t *mem;                /* the block; its owner's, reused every step */
    size_t n_mem;
    int32_t *field[SY_FIELD_COUNT]; /* views into mem */
    /* [n_tok, ld_given] rows that GIVEN nodes read; NULL: there are none. Where shapes are static, shape.tok rows,
     * close together; those of padding are finite. */
    const float *given;
    int64_t ld_given;
};
int64_t sy_field_len(enum sy_field, struct sy_shape);
const char *sy_field_name(enum sy_field);
SY_CHECK sy_status sy_batch_new(const struct sy_env *, struct sy_shape, struct sy_batch *, struct sy_err *);
void sy_batch_release(const struct sy_env *, struct sy_batch *);

struct sy_result {        /* borrowed until the next forward() */
    const int32_t *token; /* [n] argmax of each row of logits (lowest id wins a tie) */
    const float *logits;  /* [n, n_vocab], rows ld apart */
    int64_t ld;
    const float *hidden; /* [n, d_model] what the last product read, rows ld_hidden apart */
    int64_t ld_hidden;
    const float *all; /* [n_tok, d_model] the same of every token, of a graph that keeps it; else NULL */
    int64_t ld_all;
    int32_t n, n_vocab, d_model;
};

/* What a layer remembers. Two allocators serve every model: blocks (per token), slots (per sequence). */
enum sy_state_kind { SY_BLOCKS, SY_SLOTS };
struct sy_state_spec {
    enum sy_state_kind kind;
    int32_t layer, window; /* window: keys that no reader sees more of, the last ones; 0: everything is kept */
    int64_t elems;         /* per token (BLOCKS) or per sequence (SLOTS) */
    int32_t every;         /* BLOCKS: above 1, elems are per so many tokens */
};
