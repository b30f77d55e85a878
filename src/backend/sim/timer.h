/* timer.h - how long a step takes: a model's profile on chips of a kind, sharded, with fitted constants.
 *
 * A step costs, on the device that has most to do: a fixed time for each layer, the weights it reads (routed experts
 * by how many are met at all), keys, values and states it reads, its products, and the collectives. With all
 * constants at their ideal (sy_consts_roofline) this is the roofline, which real engines miss by 2 to 5 times.
 * Attention runs in dp ranks of tp devices each, everything else on all devices; ranks wait for the fullest. With
 * ffn_chips attention and the rest run on chips of their own and pass micro-batches to and fro (Zhu et al.,
 * "MegaScale-Infer", arXiv:2504.02263). Pure functions of plain data; thread: any. */
#pragma once
#include "backend/sim/chip.h"
#include "backend/sim/profile.h"

enum sy_const {
    SY_CONST_LAYER_S, /* seconds per layer and step, whatever its size */
    SY_CONST_SEQ_S,   /* seconds per layer and sequence of a rank, whatever its length */
    SY_CONST_WEIGHT,  /* share of the memory bandwidth reached on weights */
    SY_CONST_KV,      /* on keys, values and states */
    SY_CONST_FLOPS,   /* share of the peak reached */
    SY_CONST_CROWD,   /* how much slower a token's share of memory traffic gets for every 64 sequences of a rank */
    SY_CONST_COUNT
};
struct sy_consts {
    double v[SY_CONST_COUNT];
};
extern const struct sy_consts sy_consts_roofline;
const char *sy_const_name(enum sy_const);

struct sy_sharding {
    int32_t chips, tp, dp, pp; /* tp * dp * pp = the devices of `chips`, but for those of ffn_chips */
    bool expert_parallel;
    int32_t ffn_chips; /* of `chips`: those that hold no attention; 0: all hold everything */
};
struct sy_rank_load {
    double tok, out, seq;
    double keys, ctx; /* sum over tokens of keys seen; over sequences of context read */
    double prompt;    /* tokens of prompts among tok, and their part of keys */
    double prompt_keys;
};
struct sy_timer { /* everything a step's time needs, by device; filled by sy_timer_init() */
    struct sy_profile model;
    struct sy_chip chip;
    struct sy_path path;
    struct sy_sharding layout;
    struct sy_consts consts;
    double bytes_s, flops;  /* of a device */
    double reduce_s, moe_s; /* collectives: seconds per token of a rank, and of the whole step */
    double hop_s;           /* of every layer's collectives, whatever their size */
    double pass_s;          /* with ffn_chips: seconds per token, to the other chips and back, all layers */
    double no_expert;       /* log of the chance that a token misses a given expert */
};
/* Refuses layouts that do not multiply up or chips whose card lacks what is needed. */
SY_CHECK sy_status sy_timer_init(struct sy_timer *, const struct sy_profile *, const struct sy_chip *,
                                 const struct sy_path *, struct sy_sharding, struct sy_consts, struct sy_err *);
double sy_timer_step(const struct sy_timer *, const struct sy_rank_load *rank, int32_t n_rank);

double sy_timer_padded(const struct sy_timer *, double tok); /* what a rank computes for tok live tokens */

struct sy_fit {                               /* bytes on each device */
    double weights, per_token, per_seq, room; /* room: for keys, values and states at the given share of memory */
    double tokens;                            /* of context, whole layout, when each sequence has ctx of them */
};
struct sy_fit sy_timer_fit(const struct sy_timer *, double memory_share, double ctx);
