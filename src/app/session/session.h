/* session.h - what commands that run a model share: the engine as the flags describe it, prompts, one answer at a
 * time. Thread: main, which owns the engine. */
#pragma once
#include "app/app.h"
#include "engine/engine.h"

/* What the flags of sy_flags_ctx and sy_flags_engine say; the model is left to be filled in. */
SY_CHECK sy_status sy_session_opt(struct sy_args *, struct sy_engine_opt *, struct sy_err *);
/* The paths of the models that -m and --draft-model name. */
SY_CHECK sy_status sy_session_models(struct sy_args *, struct sy_engine_opt *, struct sy_err *);
/* What sy_flags_shard say. n_device: those there are, which --tp takes unless told otherwise; 0: as many as asked. */
SY_CHECK sy_status sy_session_shard(const struct sy_args *, int32_t n_device, struct sy_shard *, struct sy_err *);
/* Loads the model that -m names, with the flags of sy_flags_engine; draws progress. one_sequence: of the backend. */
SY_CHECK sy_status sy_session_open(struct sy_args *, bool one_sequence, struct sy_engine **out, struct sy_err *);
/* Whether one sequence's answer is most of its work: what one_sequence gains on it is more than it costs on a prompt
 * of up to twice as many tokens (doc/numerics.md). */
static inline bool sy_answer_outweighs(int64_t n_prompt, int64_t n_answer) { return n_prompt <= 2 * n_answer; }
/* sy_flags_sampling over the model's generation_config.json over "greedy". Draws a seed when none is given. */
SY_CHECK sy_status sy_session_sampling(const struct sy_args *, const struct sy_engine *, struct sy_sampling *out,
                                       struct sy_err *);

/* ---- prompts -------------------------------------------------------------------------------------------- */

/* "1,2,3", "[1, 2, 3]" or whitespace between; what: the flag or file, for messages. */
SY_CHECK sy_status sy_ids_parse(const char *text, size_t n, const char *what, struct sy_ids *out, struct sy_err *);
/* --ids and --ids-file; given = false when neither is there. */
extern const struct sy_flag sy_flags_ids[];
SY_CHECK sy_status sy_ids_from_flags(struct sy_args *, struct sy_ids *out, bool *given, struct sy_err *);
SY_CHECK sy_status sy_need_tokenizer(const struct sy_tokenizer *, const char *path, struct sy_err *);
/* Plain text: the tokenizer's BOS is added unless the text starts with it. */
SY_CHECK sy_status sy_prompt_raw(const struct sy_engine *, const char *text, size_t n, struct sy_ids *out,
                                 struct sy_err *);
/* Appends {"role":...,"content":...} to the inside of a JSON array; invalid UTF-8 becomes U+FFFD. */
void sy_message_add(struct sy_buf *array, const char *role, const char *text, size_t n);
/* A conversation (the inside of a JSON array of messages) through the model's chat template. */
SY_CHECK sy_status sy_prompt_chat(const struct sy_engine *, const struct sy_env *, const struct sy_buf *array,
                                  struct sy_ids *out, struct sy_err *);

int64_t sy_wall_clock(void); /* seconds since 1970 of the local clock's reading, as templates print dates */

/* ---- text without an engine ----------------------------------------------------------------------------- */

/* The text side of a model: of a GGUF file, of a model folder, or of a folder with only a tokenizer.json. Caller's
 * storage; release in every case. */
struct sy_text_model {
    struct sy_checkpoint *ckpt; /* NULL: only a tokenizer */
    struct sy_json *json, *config;
    struct sy_tokenizer *tok; /* NULL: none */
};
SY_CHECK sy_status sy_text_model_open(struct sy_args *, struct sy_text_model *, struct sy_err *);
void sy_text_model_release(struct sy_text_model *);
SY_CHECK sy_status sy_json_file(const struct sy_env *, const char *path, struct sy_json **out, struct sy_err *);

/* ---- an answer ------------------------------------------------------------------------------------------ */

struct sy_answer_opt {
    const struct sy_ids *prompt;
    struct sy_sampling sampling;
    int32_t n_max;
    bool ignore_eos;
    const char *const *stop; /* [n_stop]; needs a tokenizer */
    size_t n_stop;
    bool wants_text; /* needs a tokenizer */
    void (*on_text)(void *ctx, const char *text, size_t n);
    void (*on_id)(void *ctx, int32_t id); /* every generated token, the one that ended it too; NULL: not wanted */
    void *ctx;
};
struct sy_answer {
    int32_t n_prompt, n_gen;
    enum sy_finish finish; /* CANCELLED: Ctrl-C */
    double first_s;        /* until the first token */
    double prefill_tok_s, decode_tok_s;
    double bytes_s; /* read from memory while decoding; 0: nothing was decoded */
};
/* Runs until the answer ends or Ctrl-C is seen (hold the interrupt around it). */
SY_CHECK sy_status sy_answer(struct sy_app *, struct sy_engine *, const struct sy_answer_opt *, struct sy_answer *,
                             struct sy_err *);
/* One line to stderr, every speed beside its limit; measures the memory's bandwidth. */
void sy_answer_report(struct sy_engine *, const struct sy_answer *);
