/* engine_int.h - what the engine's files share. Private to this folder. */
#pragma once
#include "engine/blocks.h"
#include "engine/engine.h"

struct seq { /* a request, from submit to its last event */
    struct seq *next;             /* in the waiting list */
    uint64_t id;
    struct sy_arena arena;        /* everything of the request; freed with it */
    int32_t *tok;                 /* prompt and output, room for all */
    int32_t n_prompt, n_tok, n_end; /* n_end: length at which it is complete */
    int32_t n_done;               /* tokens whose keys and values are in the cache */
    int32_t *block;
    int32_t n_block;
    int32_t n_min, logits_from, n_stop_id;
    const int32_t *stop_id;
    bool ignore_eos, cancelled, plain; /* plain: greedy, nothing else asked for */
    struct sy_sampling how;
    uint16_t *count_prompt, *count_output; /* NULL: no penalties */
    uint64_t n_draw;
    void (*on_event)(void *, const struct sy_event *);
    void (*on_logits)(void *, int32_t, const float *, int32_t);
    void *ctx;
};
struct out_row { /* a row of logits of the step */
    struct seq *seq;
    int32_t pos;
    bool sample; /* the next token comes from it */
};
struct sy_engine {
    const struct sy_env *env;
    const struct sy_backend_ops *ops;
    struct sy_backend *backend;
    struct sy_checkpoint *ckpt;
    struct sy_tokenizer *tok;
    struct sy_template *tpl;
    struct sy_model model;
    struct sy_graph *graph;
    struct sy_weights *weights;
    struct sy_program *program;
    struct sy_kv_cache *kv;
    struct sy_blocks blocks;
    struct sy_batch batch;
    int32_t n_prefill;            /* prompt tokens in it */
    struct sy_engine_plan plan;
    int32_t end_id[32], n_end_id;
    int32_t wait_max, n_wait;
    struct seq *wait_first, *wait_last;
    struct seq **running;         /* [seq_max], in order of admission */
    int32_t n_running;
    struct out_row *out;          /* [shape.out] */
    void *scratch;                /* of sampling */
    uint64_t next_id;
    struct sy_engine_stats stats;
    double bytes_s;
};
void engine_seq_free(struct seq *);
