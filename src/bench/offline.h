/* offline.h - how fast the engine is without a server in front of it.
 *
 * A batch of B random prompts is measured in two parts. Prefill: all B are submitted at once and each generates one
 * token, so no step holds anything but prompts. Decode: the same prompts again, now from the prefix cache, and the
 * steps in which exactly B sequences generate a token each are timed. Every figure is the median of the repeats,
 * which go round the batch sizes and the engines, so that a machine that changes its mind does so for all of them.
 *
 * Limits are those of a roofline: a step takes at least the time of its arithmetic at the machine's peak, and of
 * reading its weights, keys and values at the bandwidth measured in the same run. */
#pragma once
#include "bench/stats.h"
#include "bench/watch.h"
#include "engine/engine.h"

struct sy_offline_opt {
    const int32_t *batch;
    size_t n_batch;
    int32_t n_in, n_out, n_repeat;
    uint64_t seed;
    double ops_s; /* of the machine at most, sy_peaks_best(); 0: not known, only memory limits */
    struct sy_watch watch;
};
struct sy_offline_row {
    int32_t batch, n_in, n_out, n_thread;
    double prefill_tok_s, decode_tok_s;
    double prefill_limit_tok_s, decode_limit_tok_s; /* 0: not known */
    double prefill_ratio, decode_ratio; /* tokens/s of the first engine's: the median over repeats; 0: not measured */
    double ttft_ms;                     /* of the median request of the batch */
    double tpot_ms;                     /* one decode step */
    double prefill_ms;                  /* until the last request of the batch had its first token */
    double weight_bytes, kv_bytes;      /* read by one decode step; kv: the mean */
    double bytes_s;                     /* the memory bandwidth measured in this run */
    double bandwidth_share;             /* those bytes x steps/s, of bytes_s */
};
/* Completes the options: room for the largest batch, and for the steps in which a batch gathers. */
SY_CHECK sy_status sy_offline_plan(const struct sy_offline_opt *, struct sy_engine_opt *, struct sy_err *);
/* row: [n_engine][n_batch]. Engines are of sy_offline_plan's and of one model, and get the same prompts. */
SY_CHECK sy_status sy_offline_run(const struct sy_env *, struct sy_engine *const *, size_t n_engine,
                                  const struct sy_offline_opt *, struct sy_offline_row *row, struct sy_err *);

/* ---- requests of mixed lengths ----------------------------------------------------------------------------------
 */

struct sy_mixed_opt {
    int32_t n_request, seq_max;
    int32_t n_in, n_out; /* longest prompt and answer; lengths are uniform in [range * n, n] */
    double range;
    int32_t n_repeat;
    uint64_t seed;
    struct sy_watch watch;
};
struct sy_mixed { /* medians, of either engine */
    double out_tok_s[2], request_s[2], seconds[2];
    double mean_e2e_s[2];
    double gain; /* of the first over the second in output tokens/s, less 1: the median of the pairs */
};
/* The same requests through two engines, turn about; the options' sizes are filled in. */
SY_CHECK sy_status sy_mixed_run(const struct sy_env *, const struct sy_engine_opt opt[static 2],
                                const struct sy_mixed_opt *, struct sy_mixed *out, struct sy_err *);

/* ---- static shapes ------------------------------------------------------------------------------------------------
 */

struct sy_shapes_run {
    double start_s, seconds, out_tok_s; /* until the engine was ready; of the requests; their tokens over that */
    uint64_t n_ready, n_later;          /* programs compiled before the first step, and after */
    double live;                        /* of the tokens computed, those that were no padding */
};
/* The same requests through engines that take steps by enum sy_shapes. Refuses (SY_ENOSUP) backends that take steps
 * of any shape. n_repeat is not read: programs are compiled once. */
SY_CHECK sy_status sy_shapes_compare(const struct sy_env *, const struct sy_engine_opt *, const struct sy_mixed_opt *,
                                     struct sy_shapes_run out[3], struct sy_err *);
