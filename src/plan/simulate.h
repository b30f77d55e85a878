/* simulate.h - a replica, or many, serving a workload on a virtual clock.
 *
 * Each rank is a production engine (scheduler, blocks, prefix cache) on the sim backend; ranks of a replica step
 * together and wait for the fullest. A step's time comes from backend/sim/timer.h. Nothing here decides who runs: the
 * engine does. Decode steps that are known to be alike are not run one by one (sy_engine_alike()): their times are
 * added up, and a request that arrives cuts them short. Time grows with (sequences in a step) x (steps), that is with
 * tokens generated, and with tokens of prompts; memory with requests that are open. One thread. */
#pragma once
#include "backend/sim/timer.h"
#include "bench/stats.h"
#include "bench/workload.h"
#include "engine/engine.h"

/* Which rank gets a request: the one with least to do; or in turn, whatever they hold. SPREAD: least to do, and every
 * step's prompts are cut evenly over the ranks, as context parallelism would: what the best balance could give. */
enum sy_balance { SY_BALANCE_LEAST, SY_BALANCE_PINNED, SY_BALANCE_SPREAD };
struct sy_sim_opt {
    const struct sy_timer *timer;
    int32_t n_replica;
    int32_t chunk;   /* tokens of a rank's step */
    int32_t seq_max; /* sequences of a rank */
    int32_t ctx_len, block_len;
    double gap_ms_max;   /* bound on the time between two tokens of an answer, kept by smaller chunks; 0: none */
    double memory_share; /* of a device's memory, weights included; 0: cache as large as it is ever wanted */
    double accepted;     /* tokens a decode step yields; 1: no speculation */
    int32_t drafted;     /* tokens verified beside the one */
    enum sy_balance balance;
    enum sy_scheduling scheduling;
    bool prefix_cache;
    double hit; /* share of every prompt whose keys are there already */
    /* Prefill apart: the first n_prefill replicas compute prompts, whose keys then go to the others, over a link that
     * each of the first has; the last token of a prompt is computed where it is decoded. 0: all do both. */
    int32_t n_prefill;
    /* A tier behind the cache: this share of every prompt, beyond `hit`, is loaded over a link that each replica has.
     */
    double tier_hit;
    /* The router's policy (serve/router.h) chooses the replica, by how a session begins, and `balance` the rank in
     * it. The last n_batch replicas are its backends for what can wait, the others those for users; they may be of
     * another kind (NULL: the same, and chunk and sequences too). Of the users of a closed loop n_waits can wait. */
    bool routed;
    int32_t n_batch, n_waits;
    const struct sy_timer *batch_timer;
    int32_t batch_chunk, batch_seq_max;
    double link_bytes_s; /* of either link, which serves one after the other; 0: takes no time */
    /* Closed loop: so many sessions at once. 0: sessions start at their own times, or at `rate` a second. */
    int32_t users;
    double rate;
    uint64_t seed;
    bool each_step; /* runs every step, even those that are known to be like the one before: for comparison */
};
struct sy_sim_seen {
    size_t n_request;
    double seconds, in_tok, out_tok;   /* the run's length in virtual time; tokens of finished requests */
    struct sy_summary ttft, tpot, e2e; /* seconds; of users who cannot wait */
    uint64_t n_step, n_seq_step, n_preempted;
    double cached_tok;               /* prompt tokens found in the prefix cache */
    double fill;                     /* live tokens over tokens computed, of all ranks */
    double busy_s;                   /* of replicas, summed */
    double link_busy_s, link_wait_s; /* links: time that they moved bytes, summed; that requests waited for one */
};
SY_CHECK sy_status sy_simulate(const struct sy_env *, const struct sy_sim_opt *, const struct sy_workload *,
                               struct sy_sim_seen *out, struct sy_err *);
