/* engine.h - a loaded model that answers requests: continuous batches of token ids in, token ids out.
 *
 * One thread owns an engine and calls everything here but the accessors of immutable parts (tokenizer, template,
 * info), which any thread may use. After sy_engine_new() a step allocates nothing. Text (chat templates,
 * detokenising, stop strings) is the caller's side of the engine: see output.h and chat.h. */
#pragma once
#include "backend/backend.h"
#include "engine/sample.h"
#include "graph/buckets.h"
#include "model/model.h"
#include "text/template.h"
#include "text/tokenizer.h"

struct sy_engine;

enum sy_scheduling {
    SY_CONTINUOUS, /* requests join and leave between any two steps */
    SY_STATIC,     /* a batch is filled, runs until its last request ends, then the next: for comparison */
};
enum sy_shapes {                    /* of steps, on devices whose programs have static ones */
                 SY_SHAPES_BUCKETS, /* graph/buckets.h: the smallest of a few that holds the step; all compiled before
                                       the first */
                 SY_SHAPES_ONE,     /* everything is padded to the largest: for comparison */
                 SY_SHAPES_EXACT, /* a program for each shape that comes up, compiled when it does: for comparison */
                 SY_SHAPES_LATER, /* as BUCKETS, each compiled when a step first needs it: for a few answers */
};
struct sy_engine_opt {   /* zero everywhere is a sensible default */
    const char *model;   /* path of a .gguf file or a folder */
    const char *backend; /* "cpu" (default), or "name:device" */
    struct sy_backend_opt backend_opt;
    int32_t ctx_len;        /* longest sequence in tokens; 0: the model's, at most 8192 */
    int32_t block_len;      /* positions in a KV block, a power of two; 0: 32 */
    int32_t seq_max;        /* sequences that run at once; 0: 1 */
    int32_t batch_tok_max;  /* tokens in a step; 0: 512 */
    int32_t score_row_max;  /* prompt rows of logits in a step; 0: 64 */
    int32_t wait_max;       /* requests that wait; 0: 4096 */
    int64_t kv_bytes_max;   /* hard cap of the KV cache; 0: what seq_max sequences of ctx_len need */
    int64_t snapshot_bytes; /* for snapshots of recurrent states beside slots for those that run, less than a state:
                               none; 0: 8 and 4 per sequence */
    int64_t swap_bytes;     /* host memory for blocks of preempted sequences; 0: they are recomputed */
    double gap_ms_max;      /* bound on the time between two tokens of a running request, kept by shrinking
                               prefill chunks; 0: none */
    enum sy_scheduling scheduling;
    enum sy_shapes shapes;
    bool fixed_shapes; /* a device that takes steps of any shape gets `shapes` all the same: for comparison */
    bool no_prefix_cache;
    int32_t draft_max; /* tokens guessed in a step for each sequence at most; 0: none, or 4 with a draft model */
    const char *draft_model; /* what guesses: a smaller model's path, or "mtp": the model's own head for one token
                                more; NULL: the sequence's own text */
    bool draft_always;       /* draft_max guesses every time, whether they pay or not: for measuring */
    const char *trace;       /* file that records arrivals and steps; NULL: none */
    /* Told of each sequence of a step that ran, before the step's events; NULL: not wanted. */
    void (*on_batch)(void *ctx, uint64_t request, int32_t sample, int32_t n_tok);
    void *on_batch_ctx;
};
SY_CHECK sy_status sy_engine_new(const struct sy_env *, const struct sy_engine_opt *, struct sy_engine **out,
                                 struct sy_err *);
/* An engine of a backend that needs no model, only its sizes: a simulator's. Scheduler, blocks and queues are the
 * same; there is no tokenizer, template, graph or checkpoint. opt->model and opt->backend are not read. */
struct sy_engine_bare {
    const struct sy_backend_ops *ops;
    struct sy_backend *backend; /* taken, even on failure */
    struct sy_info info;
    int64_t block_bytes; /* of block_len tokens */
};
SY_CHECK sy_status sy_engine_new_bare(const struct sy_env *, const struct sy_engine_opt *,
                                      const struct sy_engine_bare *, struct sy_engine **out, struct sy_err *);
void sy_engine_free(struct sy_engine *);

/* ---- immutable parts ------------------------------------------------------------------------------------------ */
struct sy_engine_plan { /* what was decided; filled before memory is taken */
    struct sy_info info;
    const char *arch;
    int32_t ctx_len, block_len, seq_max, batch_tok_max;
    int32_t seq_group;       /* of seq_max, those that one group of ranks has at most */
    int32_t n_block;         /* of each group of ranks that has sequences of its own */
    int32_t n_apart, window; /* blocks of layers with a window beside them, and the longest window; 0: not apart */
    int64_t block_bytes, apart_bytes; /* of one */
    int64_t kv_bytes, draft_kv_bytes; /* of all; of the draft model, 0: none */
    int32_t n_slot;                   /* slots of recurrent states of each group, 0: the model has none */
    int64_t slot_bytes;
    double weight_bytes_step; /* weights one decode step reads */
    double weight_bytes_held;
    struct sy_device device;
};
const struct sy_engine_plan *sy_engine_plan(const struct sy_engine *);
/* The decisions themselves, for whoever asks what an engine would do: the most of everything in a step, of
 * plan->info; how many slots there are, and sequences in a step therefore; how many blocks. Refuse sizes that cannot
 * be. */
SY_CHECK sy_status sy_engine_plan_shape(const struct sy_engine_opt *, struct sy_engine_plan *, struct sy_shape *,
                                        struct sy_err *);
SY_CHECK sy_status sy_engine_plan_slots(const struct sy_engine_opt *, int64_t slot_bytes, struct sy_engine_plan *,
                                        struct sy_shape *, struct sy_err *);
int32_t sy_engine_group_seqs(const struct sy_engine_plan *); /* entries of a step in one group of ranks, at most */
struct sy_engine_bytes {
    int64_t block;  /* of all layers */
    int64_t apart;  /* of those with a window among them */
    int32_t window; /* the longest; 0: none, or their blocks may not be apart */
    int64_t draft;  /* of the draft model's beside them */
};
SY_CHECK sy_status sy_engine_plan_blocks(const struct sy_engine_opt *, int32_t blocks_per_seq,
                                         const struct sy_engine_bytes *, struct sy_engine_plan *, struct sy_err *);
const struct sy_checkpoint *sy_engine_checkpoint(const struct sy_engine *);
const struct sy_tokenizer *sy_engine_tokenizer(const struct sy_engine *); /* NULL: the model has none */
const struct sy_template *sy_engine_template(const struct sy_engine *);   /* NULL: none */
const struct sy_graph *sy_engine_graph(const struct sy_engine *);
bool sy_engine_is_end(const struct sy_engine *, int32_t id); /* an end-of-generation token */
/* Memory bandwidth in bytes/s, measured on first call (about 0.2 s), 0 when the backend cannot. Engine thread. */
double sy_engine_bandwidth(struct sy_engine *);

/* ---- requests ---------------------------------------------------------------------------------------------------
 */
enum sy_finish {
    SY_RUNNING,
    SY_FINISH_STOP, /* an end token or a stop id */
    SY_FINISH_LENGTH,
    SY_FINISH_CANCELLED,
    SY_FINISH_DEADLINE,
    SY_FINISH_ERROR,
};
const char *sy_finish_name(enum sy_finish); /* "stop", "length", ... as OpenAI's finish_reason */

struct sy_event { /* borrowed for the callback */
    uint64_t request;
    int32_t sample;               /* which of the request's n_sample answers */
    int32_t n_cached;             /* prompt tokens that came from the prefix cache */
    int32_t id;                   /* the token generated, or -1 when this only ends the request */
    enum sy_finish finish;        /* SY_RUNNING while more may come */
    uint64_t started_ns;          /* when its first step began; 0: it never ran */
    float logprob;                /* of id; 0 unless asked for */
    const struct sy_logprob *top; /* [n_top], most likely first */
    int32_t n_top;
    const struct sy_err *error; /* with SY_FINISH_ERROR */
};
struct sy_request { /* all borrowed for the call of submit, but for on_* and ctx */
    const int32_t *prompt;
    int32_t n_prompt; /* >= 1 */
    int32_t n_max;    /* tokens to generate; 0 only with on_logits */
    /* [n_sample] answer i ends after that many tokens as if an end token had come, 1..n_max; NULL: not. For replay:
     * what is set aside for an answer still follows n_max, as it did when its end was not known. */
    const int32_t *n_stop_each;
    int32_t n_min;         /* end tokens are barred before that many */
    int32_t n_sample;      /* answers to the one prompt, computed once; 0: 1. Answer i draws with seed + i */
    int32_t priority;      /* lower runs first; then by arrival */
    uint64_t deadline_ns;  /* of the engine's clock; what is there by then is the answer; 0: none */
    uint64_t cache_domain; /* prefix cache entries are shared within a domain only */
    bool no_cache_read;    /* computes the whole prompt itself */
    int32_t n_given; /* engines of a simulator: so many first tokens of the prompt come with their keys and values,
                        from a tier or another engine; they take blocks and are attended to, not computed */
    bool ignore_eos;
    const int32_t *stop_id; /* further ids that end the request */
    int32_t n_stop_id;
    struct sy_sampling sampling;
    void (*on_event)(void *ctx, const struct sy_event *);
    /* logits after prompt position pos, for pos >= logits_from, ascending; NULL: not wanted */
    void (*on_logits)(void *ctx, int32_t pos, const float *logits, int32_t n_vocab);
    /* the same for the normed last hidden state [d_model]: embeddings */
    void (*on_hidden)(void *ctx, int32_t pos, const float *hidden, int32_t d_model);
    int32_t logits_from; /* of both */
    void *ctx;
};
/* Queues it. Refuses (SY_EARG) ids out of range, a prompt that can never fit, parameters out of range; SY_FULL when
 * the queue is full. Events come from sy_engine_step() only. */
SY_CHECK sy_status sy_engine_submit(struct sy_engine *, const struct sy_request *, uint64_t *id, struct sy_err *);
/* The same in two steps: what takes memory and time, on any thread and at any time, and what only links it in. */
struct sy_prepared;
SY_CHECK sy_status sy_engine_prepare(const struct sy_engine *, const struct sy_request *, struct sy_prepared **out,
                                     struct sy_err *);
SY_CHECK sy_status sy_engine_submit_take(struct sy_engine *, struct sy_prepared *, uint64_t *id, struct sy_err *);
void sy_prepared_free(struct sy_prepared *);            /* of one that is not submitted; NULL is fine */
void sy_engine_cancel(struct sy_engine *, uint64_t id); /* an unknown id is fine; its last event says CANCELLED */
/* One answer is complete, as its reader found a stop string in its text: its last event says STOP. Unknown is fine.
 */
void sy_engine_stop(struct sy_engine *, uint64_t id, int32_t sample);
/* Runs one step; false when there was nothing to do. An error here is the backend's and final. */
SY_CHECK sy_status sy_engine_step(struct sy_engine *, bool *worked, struct sy_err *);
/* The same in two halves, for engines that run in lock-step: what is computed is decided, then its results are taken.
 * Nothing else may be called between them. */
SY_CHECK sy_status sy_engine_step_begin(struct sy_engine *, bool *worked, struct sy_err *);
SY_CHECK sy_status sy_engine_step_end(struct sy_engine *, struct sy_err *);

/* For a simulator, between two steps. The next n steps, n_max at most, take one token of each of seq sequences whose
 * lengths add up to ctx before the first, and nothing else happens in them, even if requests are submitted; n 0: who
 * knows. Exact, not an estimate. */
struct sy_alike {
    int32_t n, seq;
    int64_t ctx;
};
struct sy_alike sy_engine_alike(const struct sy_engine *, int32_t n_max);
/* n of them have run: they began one after the other at began_ns, ended at end_ns[n], and gave token id every time.
 * Everything is as if they had been run by sy_engine_step(), but that nobody is told of their tokens. */
void sy_engine_skip(struct sy_engine *, uint64_t began_ns, const uint64_t *end_ns, int32_t n, int32_t id);

struct sy_engine_stats { /* since the engine started, but for the gauges */
    uint64_t n_step, n_prompt_tok, n_gen_tok;
    uint64_t prefill_ns, decode_ns; /* time of steps that held prompt tokens, and of those that did not */
    uint64_t prefill_tok, decode_tok;
    double kv_bytes_read_decode;
    uint64_t n_cache_query_tok, n_cache_hit_tok;    /* prompt tokens looked up, and found, in the prefix cache */
    uint64_t n_draft, n_draft_tok, n_draft_hit_tok; /* times that was guessed; tokens guessed, and right */
    /* Decode steps with what guessing cost, and what plain decoding of their tokens would have taken by the costs of
     * rows and steps as measured: their ratio is the speed-up. */
    double spec_real_ns, spec_plain_ns;
    uint64_t n_preempt_recompute, n_preempt_swap;
    uint64_t gap_ns_max; /* longest time between two tokens of a running sequence */
    uint64_t step_ns_last;
    int32_t n_running, n_waiting;                                /* gauges, sequences and requests */
    int32_t block_free, block_cached, block_leased, block_total; /* free + cached + leased = total */
    int32_t slot_free, slot_kept, slot_leased;                   /* of recurrent states; kept: snapshots */
    int32_t apart_free, apart_kept, apart_leased;                /* blocks of layers with a window, where apart */
    int32_t last_batch_tok, last_batch_seq;
    uint64_t n_compile; /* programs compiled since the engine was ready: none, that is the point of buckets */
    int32_t n_bucket;   /* 0: the backend takes steps of any shape */
    struct sy_bucket_stats {
        struct sy_shape shape;
        uint64_t n_step, n_tok; /* n_tok: live ones; shape.tok * n_step were computed */
    } bucket[SY_BUCKET_MAX];
};
struct sy_engine_stats sy_engine_stats(const struct sy_engine *);
/* Checks every invariant of blocks, cache and queues; asserts. For tests and debug builds. */
void sy_engine_verify(const struct sy_engine *);
