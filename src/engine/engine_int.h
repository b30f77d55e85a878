/* engine_int.h - what the engine's files share: engine.c opens, submit.c takes requests, sched.c decides a step,
 * step.c runs it, trace.c records. Private to this folder. */
#pragma once
#include <stdio.h>

#include "base/buf.h"
#include "base/rng.h"
#include "engine/cache.h"
#include "engine/engine.h"
#include "engine/pace.h"

struct hits {       /* of guesses of one kind: the draft model's, or by the length of the run that was looked up */
    float right, n; /* decayed counts: right ones, and those that were right or the first wrong one */
    int32_t wait, rest; /* while they do not pay: steps between trials, and left before the next */
    int32_t most;       /* that are made at once: twice as many after as many right ones, half after none */
};
struct spec {
    double n, x, xx, y, xy; /* decayed sums over decode steps: rows x, ns y */
    double draft_ns;        /* a step of the draft model, for each sequence in it */
    struct hits hits[3];    /* of all sequences */
    double last;            /* ns of the last step, without what held it up */
    double passed, behind;  /* decayed sums of decode steps' ns: of all; lost by those with guesses, not below 0 */
    bool guessed;           /* the step had guesses */
};
struct seq_draft { /* how far the draft model is with a sequence; positions of MTP are those of its hidden states */
    int32_t n_done, base;            /* positions [base, n_done) are in its cache */
    int32_t slot;                    /* behind them; behind its guesses: the next one. 0: none */
    int32_t n_noted;                 /* whole blocks that were noted in draft.fill */
    int32_t want;                    /* guesses wanted */
    int32_t fed_row, fed_pos, fed_n; /* rows of the last step: first one, its position, how many */
};
enum seq_state { SEQ_WAITING, SEQ_RUNNING, SEQ_ENDED };
struct seq {          /* one answer, from submit to its last event; lives in its request's arena */
    struct seq *next; /* in the waiting list; of the siblings that wait for the first one's prompt */
    struct seq_request *of;
    enum seq_state state;
    int32_t sample;
    int32_t *tok;         /* prompt and output, room for all */
    int32_t n_tok, n_end; /* n_end: length at which it is complete */
    int32_t n_stop;       /* length at which it ends as if by an end token; INT32_MAX: no such */
    int32_t n_done;       /* tokens whose keys and values are in the cache */
    int32_t home;         /* the group of ranks that has its blocks and slots */
    int32_t *block;
    int32_t n_block;
    int32_t *apart;                 /* those of layers with a window; NULL: they are not apart */
    int32_t apart_first, apart_end; /* of them held; others are 0 */
    int32_t n_promised;             /* of them, while it runs */
    int32_t n_learned;              /* full blocks that were offered to the prefix cache */
    uint64_t key;                   /* of the last of those */
    int32_t n_cached;
    int32_t slot;       /* that holds its states behind n_done tokens; 0: none yet, or the model has none */
    bool slot_owed;     /* the slot is about to become a snapshot: the next step writes another */
    int32_t cut[2];     /* positions at which a snapshot is wanted, ascending; 0: none */
    int32_t kept;       /* position of the last snapshot on its way */
    int32_t tail_block; /* whose snapshot follows the growing answer, and the slot; 0: none */
    int32_t tail_slot;
    int32_t n_draft;             /* guesses in the step, at tok[n_sure ..]; 0: none, or it ran */
    int32_t n_sure;              /* n_tok when the step was decided */
    int32_t fed_end;             /* tokens before it that the step was fed are known to be right */
    int32_t draft_slot;          /* that holds the states behind the guesses; 0: none */
    int32_t guess_kind, n_guess; /* n_guess: of the draft model, at tok[n_tok ..], for the next step */
    struct hits hits[3];         /* by kind of guess */
    struct seq_draft draft;
    int32_t score_from; /* first prompt position whose row is still wanted; n_prompt: none */
    int32_t *swap;      /* host slots of its blocks; n_swap 0: none */
    int32_t n_swap;
    bool stopped;             /* its reader found a stop string: it ends before the next step */
    uint16_t *count_output;   /* NULL: no penalties */
    uint64_t n_draw, last_ns; /* last_ns: when its last token came; 0: none yet */
};
struct seq_request {
    struct sy_arena arena;    /* everything of the request; freed when its last answer ended */
    uint64_t id, started_ns;  /* started_ns: its first step; 0: waits */
    int32_t n_prompt, n_open; /* answers that have not ended */
    int32_t n_given;          /* tokens whose keys and values came with it */
    int32_t n_min, n_stop_id, priority;
    const int32_t *stop_id;
    bool ignore_eos, cancelled, plain, no_cache_read; /* plain: greedy, nothing else asked for */
    uint64_t deadline_ns, domain;
    struct sy_sampling how;
    uint16_t *count_prompt; /* NULL: no penalties */
    struct seq *siblings;   /* answers 1.. until the prompt is done */
    void (*on_event)(void *, const struct sy_event *);
    void (*on_logits)(void *, int32_t, const float *, int32_t);
    void (*on_hidden)(void *, int32_t, const float *, int32_t);
    void *ctx;
};
struct out_row { /* a row of logits of the step */
    struct seq *seq;
    int32_t pos;
    bool sample; /* the next token comes from it */
    bool draft;  /* if the guesses up to pos were right */
    int32_t row; /* of the step's result */
};
enum keep { KEEP_NOT, KEEP_CUT, KEEP_GUESS, KEEP_TAIL };
struct entry { /* of the step: tokens of one sequence that end in one slot; more than one when a snapshot is taken */
    struct seq *seq;
    int32_t end, slot; /* position behind it; slot written */
    enum keep keep;
};
struct kv_window { /* attention layers that see at most `window` keys (0: all), and their share of a block's bytes */
    int32_t window;
    double share;
};
struct group_put {
    int32_t n_put, n_entry; /* sequences in the step, and their entries */
};
struct slot_drop {
    int32_t home, slot;
};
struct bucket { /* a static shape */
    struct sy_program *program;
    struct sy_batch *batch; /* [n_group] */
    uint64_t n_step, n_tok; /* that ran in it; n_tok: without padding */
};
struct ladder { /* the static shapes of a graph's programs */
    struct sy_buckets plan;
    struct bucket *bucket; /* [plan.n], room for SY_BUCKET_MAX; NULL: steps have any shape */
    const struct sy_weights *weights;
    struct sy_cache_dim dim;
    bool draft;          /* of the draft's graph, else of the model's */
    int32_t next;        /* SY_SHAPES_EXACT: whose place a new one takes when all are taken */
    uint64_t compile_ns; /* SY_SHAPES_LATER: what compiling between steps took */
};
struct ladder_step { /* a step as it was decided, and where its rows come to lie in that of a bucket */
    const struct sy_batch *batch;
    const int32_t *home; /* [n_seq] group of each entry */
    int32_t *first;      /* [n_seq] row of an entry's first token among those of all groups */
    int32_t *row;        /* [n_out] row of each that is wanted among those of all groups */
};
struct draft {
    bool mtp, recurrent;
    struct sy_checkpoint *ckpt; /* these three: NULL for mtp, whose are the model's */
    struct sy_model model;
    struct sy_weights *weights;
    struct sy_graph *graph;
    struct sy_program *program; /* of a ragged device; NULL: those of the ladder */
    struct ladder ladder;
    struct sy_kv_cache *kv; /* blocks of the same numbers as the model's */
    struct sy_batch batch;
    struct ladder_step step; /* of batch */
    int32_t *home;           /* the step's */
    float *given;            /* [shape.tok][d_model] */
    float *given_own;        /* [n_group][shape.tok][d_model] as the groups' entries are; NULL: no ladder */
    int32_t d_model, n_ctx;
    int64_t block_bytes;
    uint64_t *fill;                  /* [n_group][n_block] key of the content that it has been through; 0: none */
    struct seq **who;                /* [shape.out] whose row it is */
    int32_t *slot_free, n_slot_free; /* first ones of pairs */
};

struct sy_engine {
    const struct sy_env *env;
    struct sy_engine_opt opt;
    const struct sy_backend_ops *ops;
    struct sy_backend *backend;
    struct sy_checkpoint *ckpt;
    struct sy_tokenizer *tok;
    struct sy_template *tpl;
    struct sy_model model;
    struct sy_graph *graph;
    struct sy_weights *weights;
    struct sy_program *program; /* of a ragged device; NULL: one in each bucket */
    struct ladder ladder;
    int64_t n_compiled; /* programs, when the engine was ready */
    struct sy_kv_cache *kv;
    struct sy_engine_plan plan;
    int32_t end_id[32], n_end_id;

    struct draft *draft; /* NULL: none */
    struct spec spec;
    int32_t n_group;         /* of ranks that have sequences of their own */
    struct sy_cache *cache;  /* [n_group] */
    unsigned char *swap_mem; /* n_swap_slot blocks */
    int64_t block_bytes;
    struct kv_window kv_window[8];
    int32_t n_kv_window;
    int32_t *swap_free, n_swap_free, n_swap_slot;
    int32_t n_wait;       /* sequences */
    struct seq *wait;     /* by (priority, id) */
    struct seq **running; /* [seq_max], by (priority, id) */
    int32_t n_running;
    int32_t n_batch_left; /* static scheduling: waiting ones that belong to the batch that runs */
    uint64_t next_id;

    struct sy_batch batch;
    struct entry *entry;         /* [shape.seq] whose tokens they are */
    struct group_put *group_put; /* [n_group] what of it is a group's */
    struct slot_drop *slot_drop; /* [shape.seq] slots that the step reads and nobody holds afterwards */
    int32_t n_slot_drop;
    int32_t n_prefill; /* prompt tokens in it */
    bool has_decode;
    struct sy_pace_load load; /* what it costs */
    bool unmeasured;          /* the last step's time has not been noted */
    struct sy_copy *copy;     /* owed before the step */
    int32_t n_copy;
    struct out_row *out;         /* [shape.out] */
    int32_t *home, *first, *row; /* of a struct ladder_step */
    void *scratch;               /* of sampling */
    struct sy_pace pace;
    uint64_t now; /* at the start of the step */
    struct sy_engine_stats stats;
    FILE *trace;
    int32_t n_ctx_short; /* a longer prompt has other ropes: see SY_SPAN; 0: all are alike */
};

static inline int32_t blocks_of(int64_t n_tok, int32_t block_len) { return (int32_t)sy_ceil_div(n_tok, block_len); }

/* Where the prefix cache may look: keys of a prompt that is long for the model's rope are not those of a short one.
 */
static inline uint64_t seq_domain(const struct sy_engine *e, const struct seq *s)
{
    bool far = e->n_ctx_short > 0 && s->of->n_prompt > e->n_ctx_short;
    return far ? sy_rng_u64(s->of->domain, 1) : s->of->domain;
}

static inline struct sy_cache *cache_of(const struct sy_engine *e, const struct seq *s) { return &e->cache[s->home]; }
/* Numbers of blocks among those of all groups, as the backend knows them. */
static inline struct sy_spot place_of(const struct sy_engine *e, const struct seq *s, int32_t block, int32_t apart)
{
    return (struct sy_spot){s->home * e->plan.n_block + block, s->home * e->plan.n_apart + apart};
}
static inline bool has_slots(const struct sy_engine *e) { return e->plan.n_slot > 0; }

/* Everything but the model: the tables for a backend that is open, compiled and has its cache. */
SY_CHECK sy_status engine_tables_new(struct sy_engine *, struct sy_shape, struct sy_err *);
void engine_tables_free(struct sy_engine *);

/* A graph of a shape, of one rank: of a part of a model; of what steps run. */
SY_CHECK sy_status engine_graph_part(struct sy_engine *, const struct sy_model *, enum sy_model_part, struct sy_shape,
                                     struct sy_graph **out, struct sy_err *);
SY_CHECK sy_status engine_graph(struct sy_engine *, struct sy_shape, struct sy_graph **out, struct sy_err *);
/* bucket.c */
SY_CHECK sy_status buckets_compile(struct sy_engine *, struct sy_shape max, struct ladder *, struct sy_err *);
void buckets_free(struct sy_engine *, struct ladder *);
/* The smallest that holds the step, its batches filled. Compiles, and so may fail, with SY_SHAPES_EXACT alone. */
SY_CHECK sy_status buckets_fit(struct sy_engine *, struct ladder *, const struct ladder_step *, struct bucket **,
                               struct sy_err *);
/* sched.c */
void sched_wait(struct sy_engine *, struct seq *);                           /* into the waiting list, at its place */
void sched_end(struct sy_engine *, struct seq *, enum sy_finish, bool tell); /* out of wherever it is */
void sched_drop(struct sy_engine *);                                         /* cancelled ones, passed deadlines */
void sched_fill(struct sy_engine *);               /* decides the step and writes the batch */
void sched_fork(struct sy_engine *, struct seq *); /* its prompt is done: the siblings start from it */
void sched_learn(struct sy_engine *); /* the step ran: full blocks and snapshots are offered to the prefix cache */
/* window.c; each does nothing for a sequence without blocks apart */
SY_CHECK sy_status window_plan(const struct sy_engine_opt *, int32_t blocks_per_seq, const struct sy_engine_bytes *,
                               struct sy_engine_plan *, struct sy_err *); /* decides n_apart, and all else if it is */
bool window_fits(const struct sy_engine *, const struct seq *);           /* what one more runner may hold is there */
void window_promise(struct sy_engine *, struct seq *);                    /* it runs from now on */
void window_forget(struct sy_engine *, struct seq *);                     /* it does not any more */
void window_grow(struct sy_engine *, struct seq *, int32_t n_tok);        /* leases room for the first n tokens */
void window_shed(struct sy_engine *, struct seq *);                       /* keeps what its next token sees */
void window_give(struct sy_engine *, struct seq *);                       /* all of it */
void window_restore(struct sy_engine *, struct seq *); /* leases what it had when it was swapped out */
void window_share(struct sy_engine *, const struct seq *, struct seq *to);
void window_keep(struct sy_engine *, struct seq *, int32_t i, int32_t known); /* its i-th block is known as `known` */
void window_own(struct sy_engine *, struct seq *,
                int32_t i); /* if its i-th block is shared, another; the copy is owed */
void window_verify(const struct sy_engine *, const struct seq *);
/* spec.c */
void spec_draft(struct sy_engine *, struct seq *, int32_t n_max); /* decides n_draft, n_max at most */
void spec_settle(struct sy_engine *); /* rows were sampled: sequences go back to their last right token */
int32_t spec_len(struct sy_engine *, struct seq *, int kind, int32_t most); /* guesses that are worth a try now */
bool spec_pays(struct sy_engine *, struct seq *, int kind);
/* Leases blocks for up to k guesses behind the tokens; how many have room. */
int32_t spec_lease(struct sy_engine *, struct seq *, int32_t k, int32_t block_len);
void spec_step_cost(struct sy_engine *, uint64_t ns); /* of the step that ran */
void spec_draft_cost(struct sy_engine *, uint64_t ns, int32_t n_run, int32_t n_guessing, int32_t n_tok);
void spec_account(struct sy_engine *, uint64_t n_gen); /* of that step: for the speed-up */
/* draft.c */
enum sy_model_part draft_part(const struct sy_engine *); /* of the model that steps run */
SY_CHECK sy_status draft_graph(struct sy_engine *, struct sy_shape, struct sy_graph **out, struct sy_err *);
SY_CHECK sy_status draft_open(struct sy_engine *, struct sy_shape, struct sy_err *);
SY_CHECK sy_status draft_load(struct sy_engine *, struct sy_err *); /* for mtp, the model's weights too */
void draft_free(struct sy_engine *);
void draft_forget(struct sy_engine *, struct seq *); /* its blocks are given back */
void draft_adopt(struct sy_engine *, struct seq *);  /* its blocks are from the prefix cache */
void draft_fork(const struct sy_engine *, const struct seq *, struct seq *to); /* `to` shares the blocks */
/* The step ran and its rows were taken: takes what is new and guesses what the next step verifies. */
SY_CHECK sy_status draft_run(struct sy_engine *, const struct sy_result *step, struct sy_err *);
/* trace.c */
SY_CHECK sy_status trace_open(struct sy_engine *, struct sy_err *);
void trace_arrive(struct sy_engine *, const struct seq_request *, const struct seq *, bool scored);
void trace_step(struct sy_engine *, uint64_t end_ns);
void trace_idle(const struct sy_engine *); /* the first call that had nothing to do */
void trace_end(struct sy_engine *, const struct seq *, enum sy_finish, bool early); /* early: not by its last token */
