/* search.h - which chips, how many, sharded how, and how many users on them: the cheapest that keeps a promise.
 *
 * Every sharding of every count of every chip on the list is costed in closed form over a range of users; those that
 * keep the promise are simulated, cheapest first, because percentiles exist only there. */
#pragma once
#include "plan/calibrate.h"
#include "plan/prices.h"
#include "plan/simulate.h"

enum sy_slo_kind { SY_SLO_TTFT, SY_SLO_TPOT, SY_SLO_E2E, SY_SLO_COUNT };
struct sy_slo { /* bounds in seconds; 0: none. [kind][0]: median, [1]: p90, [2]: p99 */
    double bound[SY_SLO_COUNT][3];
};
/* "ttft_p99<2s,tpot_p50<50ms" */
SY_CHECK sy_status sy_slo_parse(const char *text, struct sy_slo *out, struct sy_err *);

struct sy_plan_opt {
    const struct sy_card *card;
    const struct sy_calibration *calibration;
    const struct sy_prices *prices;
    const char *const *chip; /* [n_chip] names */
    size_t n_chip;
    const double *count; /* [n_count] chips of a replica */
    size_t n_count;
    const double *users; /* [n_users] at once, of a replica */
    size_t n_users;
    const char *precision, *framework, *build; /* whose constants, of which date; NULL: the chip's latest */
    /* 0: searched; chunk 0: the usual one. tp may count a rank's devices, or with dp all of them, as engines have it;
     * ep: 1, or as many devices as hold experts. */
    int32_t tp, ep, dp, pp, chunk;
    int32_t afd[2];                  /* chips of attention and of everything else, apart; 0: together */
    double in, out, range, hit;      /* lengths are uniform in [range * n, n] */
    const struct sy_workload *trace; /* NULL: none; in and out are then its means, users those of a replica at most */
    double trace_s;                  /* from its first arrival to its last */
    int32_t trace_ctx;               /* its longest conversation */
    int32_t n_replica;               /* that share the trace; 0: as many as its mean rate fills to four fifths */
    struct sy_slo slo;
    double memory_share;
    int32_t n_simulate; /* candidates to simulate; 0: none */
    uint64_t seed;
};
struct sy_candidate {
    char chip[32];
    struct sy_timer timer;
    int32_t users, chunk;
    enum sy_reach reach;
    const struct sy_group *group;    /* whose constants, or whose were nearest; NULL: nobody's */
    double metric[SY_METRIC_COUNT];  /* means, closed form */
    double ttft[3], tpot[3], e2e[3]; /* simulated: median, p90, p99 */
    double tput;                     /* tokens/s/chip: simulated where it was */
    double usd;                      /* per million tokens of both kinds */
    double missed;                   /* largest ratio to a bound; <= 1: kept */
    bool simulated;
    int32_t n_replica; /* of a trace: how many were needed; else 1 */
};
struct sy_refused { /* what was not considered, and why */
    char chip[32], why[160];
    int32_t chips;
    double lacks; /* times the memory of a device that it would need; 0: memory is not why */
};
struct sy_plan_found {
    /* Best first; those that keep the promise, or else the nearest. The first n_simulated were simulated, and are not
     * compared with those behind them. */
    struct sy_candidate *at;
    size_t n, n_simulated;
    bool kept;
    struct sy_refused *refused;
    size_t n_refused;
    const struct sy_refused *nearest; /* where nothing fits: what lacks least memory; NULL: memory is not why */
};
/* Tokens of a rank's step as engines are known to bound them, by the chip and the length of prompts. */
int32_t sy_plan_chunk(const struct sy_chip *, double in);
/* Everything is in the arena. */
SY_CHECK sy_status sy_plan_find(const struct sy_env *, struct sy_arena *, const struct sy_plan_opt *,
                                struct sy_plan_found *out, struct sy_err *);
/* The mean load of a candidate. */
struct sy_load_spec sy_candidate_load(const struct sy_candidate *, const struct sy_plan_opt *);
/* Dollars per million tokens of a candidate when the load or its price changes, closed form. */
double sy_candidate_usd(const struct sy_candidate *, const struct sy_plan_opt *, double in, double out, double hit,
                        double price);
/* A configuration with the constants of the build that sy_plan_build() names: what prediction is made with. */
struct sy_placed {
    struct sy_timer timer;
    enum sy_reach reach;
    const struct sy_group *group; /* whose constants, or whose were nearest; NULL: nobody's */
};
struct sy_place {
    const struct sy_calibration *calibration;
    const struct sy_card *card;
    const struct sy_chip *chip;
    const char *precision, *framework, *build; /* framework, build: how they must begin; NULL: the newest */
    struct sy_sharding layout;
    int32_t in, out;
};
SY_CHECK sy_status sy_plan_place(const struct sy_place *, struct sy_placed *out, struct sy_err *);
/* Names the newest measured build of a point's chip, nearest in model and precision, so that a plan speaks of what
 * one would run today. framework, date: how they must begin, or NULL. */
void sy_plan_build(const struct sy_calibration *, const char *framework, const char *date, struct sy_measured *);
