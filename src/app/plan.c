/* plan.c - what a million tokens will cost: one command, a mode per question. */
#include <string.h>

#include "app/plan/plan.h"

static const struct sy_example examples[] = {
    {"systole plan --model-card qwen3.5-397b-a17b --chips tpu_v7,b200,b300 --workload 8k1k --slo 'tpot_p50<50ms'",
     "the cheapest configuration of three chips that keeps a promise"},
    {"systole plan --model-card llama-3.1-8b --chip h200 --chips 1,2 --precision bf16 --workload 1k1k --tco rental",
     "one chip or two, at rental prices"},
    {"systole plan published", "published tables beside ours"},
    {"systole plan calibrate --from mine.json -o calibration.json", "constants fitted to measurements of your own"},
    {"systole plan check --against more.json", "how far off predictions are on points not used"},
    {0},
};

static const struct {
    const char *name;
    sy_status (*run)(struct sy_args *, struct sy_err *);
} modes[] = {
    {"search", sy_plan_search},       {"calibrate", sy_plan_calibrate}, {"check", sy_plan_check},
    {"published", sy_plan_published}, {"study", sy_plan_study},         {"list", sy_plan_list},
};

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    const char *mode = a->n_operand ? a->operand[0] : "search";
    for (size_t i = 0; i < SY_COUNT(modes); i++) {
        if (strcmp(modes[i].name, mode)) continue;
        if (a->n_operand > 1 && modes[i].run != sy_plan_study)
            return sy_fail(err, SY_EARG, "plan %s: takes no '%.40s'", mode, a->operand[1]);
        return modes[i].run(a, err);
    }
    return sy_fail(err, SY_EARG, "plan: expected search, calibrate, check, published, study or list, found '%.40s'",
                   mode);
}

const struct sy_command sy_cmd_plan = {
    .name = "plan",
    .help = "what tokens will cost on chips you have not rented yet",
    .about = "search     (the default) tries chips, counts and shardings and ranks them by cost within a promise.\n"
             "calibrate  fits constants to measured points and says how far they can be trusted.\n"
             "check      compares predictions with points that were not used.\n"
             "published  prints published tables beside ours.\n"
             "study      answers questions of scheduling: study balance, batching, chunks, speculation, "
             "disaggregation, tiers, hybrid.\n"
             "list       names the chips, model cards, price lists and measurements that the program carries.\n"
             "All figures are simulated or estimated; each says from what, and how far off such figures were.",
    .operands = "[MODE [NAME]]",
    .n_operand_min = 0,
    .n_operand_max = 2,
    .flags = {sy_flags_plan},
    .examples = examples,
    .run = run,
};
