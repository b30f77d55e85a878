/* workload.h - what a load generator asks: sessions of one or more turns.
 *
 * A session's turns follow each other; each turn's prompt is all that was said before and something new. What is new
 * is text, or pieces of random tokens: a piece is a seed and a length, and the same seed gives the same tokens, so
 * prompts can share their beginnings as recorded ones did. Constructed once, then immutable. */
#pragma once
#include "base/arena.h"
#include "base/buf.h"

struct sy_piece {
    uint64_t seed;
    int32_t n_tok;
};
struct sy_turn {
    const char *text; /* NULL: pieces */
    size_t n_text;
    const struct sy_piece *piece;
    size_t n_piece;
    int32_t n_in, n_out; /* tokens that are new, and to generate; n_in of text is an estimate */
    uint64_t delay_ns;   /* after the answer before it */
};
struct sy_user_session {
    const struct sy_turn *turn;
    size_t n_turn;
    uint64_t start_ns; /* when it begins, where the file says so */
};
struct sy_workload {
    struct sy_arena arena;
    struct sy_json *json; /* owns texts */
    struct sy_user_session *session;
    size_t n;
    bool timed; /* sessions have their own start times, ascending */
};
void sy_workload_release(struct sy_workload *); /* a zeroed struct is fine */

/* n sessions of one turn: lengths uniform in [range * len, len], as InferenceX draws them. */
SY_CHECK sy_status sy_workload_random(const struct sy_env *, size_t n, int32_t n_in, int32_t n_out, double range,
                                      uint64_t seed, struct sy_workload *out, struct sy_err *);
/* A JSON array of {"conversations":[{"from":"human","value":text},{"from":"gpt","value":text},...]}, as ShareGPT's
 * published files are. The first question of each is asked; the answer has n_out tokens, or where that is 0 as many
 * as the recorded one has by the estimate of 4 bytes a token. Order is shuffled by the seed. */
SY_CHECK sy_status sy_workload_dataset(const struct sy_env *, const char *text, size_t n_text, int32_t n_out,
                                       uint64_t seed, struct sy_workload *out, struct sy_err *);
/* JSON objects, one a line. Of conversations:
 *   {"timestamp":ms, "turns":[{"input_length":n,"output_length":n,"delay_ms":ms},...]}
 * input_length is what is new in that turn, delay_ms the user's pause before it, timestamp (optional) the start. Of
 * single requests, as the published Mooncake traces have them:
 *   {"timestamp":ms, "input_length":n, "output_length":n, "hash_ids":[id,...]}
 * where each id stands for 512 tokens of the prompt, equal wherever the id is. */
SY_CHECK sy_status sy_workload_trace(const struct sy_env *, const char *text, size_t n_text, uint64_t seed,
                                     struct sy_workload *out, struct sy_err *);

/* Appends the new tokens of a turn: as ids below n_vocab with commas between, or as words, one word a token. */
void sy_turn_ids(const struct sy_turn *, int32_t n_vocab, struct sy_buf *);
void sy_turn_words(const struct sy_turn *, struct sy_buf *);
