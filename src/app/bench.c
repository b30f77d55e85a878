/* bench.c - how fast it is: one command, a mode per question. */
#include <string.h>

#include "app/bench/bench.h"
#include "app/session/session.h"

static const char *const schedulings[] = {"continuous", "static", NULL};
static const struct sy_flag flags[] = {
    {.name = "model",
     .letter = 'm',
     .kind = SY_FLAG_TEXT,
     .arg = "MODEL",
     .help = "offline, replay: the model, as for 'systole run'"},
    {.name = "input-len",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 16777216,
     .number = 128,
     .help = "tokens of a prompt"},
    {.name = "output-len",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 16777216,
     .number = 128,
     .help = "tokens of an answer"},
    {.name = "batch",
     .kind = SY_FLAG_TEXT,
     .arg = "LIST",
     .otherwise = "1,2,4,8,16,32,64",
     .help = "offline: batch sizes; 1,2,..,64 doubles"},
    {.name = "repeat",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 1000,
     .number = 3,
     .help = "offline: runs, of which the median counts"},
    {.name = "scheduling",
     .kind = SY_FLAG_CHOICE,
     .choices = schedulings,
     .otherwise = "continuous",
     .help = "offline, replay: static fills a batch and waits until its last request ends"},
    {.name = "mixed",
     .kind = SY_FLAG_SWITCH,
     .help = "offline: compare continuous with static batching on requests of mixed lengths"},
    {.name = "random-range",
     .kind = SY_FLAG_NUM,
     .arg = "R",
     .lo = 0,
     .hi = 1,
     .otherwise = "0.8; with --mixed 0.1",
     .help = "lengths are drawn from R * N to N"},
    {.name = "num-prompts",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 10000000,
     .otherwise = "with --mixed 4 times the batch",
     .help = "requests"},
    {.name = "trace", .kind = SY_FLAG_TEXT, .arg = "FILE", .help = "replay: what 'systole serve --trace' recorded"},
    {.name = "seed",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 0,
     .hi = 9007199254740992.0,
     .help = "of everything that is random"},
    {.name = "json", .kind = SY_FLAG_TEXT, .arg = "FILE", .help = "write the results as JSON ('-': standard output)"},
    {.name = "price",
     .kind = SY_FLAG_NUM,
     .arg = "DOLLARS",
     .lo = 0,
     .hi = 1e6,
     .help =
         "offline, serve: dollars a chip costs an hour: prints what tokens cost, and which points no other beats"},
    {.name = "chips",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 1e6,
     .number = 1,
     .help = "chips that the price is paid for"},
    {0},
};
static const struct sy_example examples[] = {
    {"systole bench offline -m model.gguf --batch 1,2,..,64 --input-len 128 --output-len 64",
     "tokens/s by batch size"},
    {"systole bench offline -m model.gguf --mixed --batch 32", "what continuous batching is worth"},
    {"systole bench replay --trace trace.jsonl -m model.gguf", "a recorded run again, step for step"},
    {0},
};

struct mode {
    const char *name, *needs, *flags; /* flags: names between spaces; needs: the ones without which it cannot start */
    sy_status (*run)(struct sy_args *, struct sy_err *);
};
static const struct mode modes[] = {
    {"offline", " model ",
     " model input-len output-len batch repeat scheduling mixed random-range num-prompts seed json price chips "
     "backend threads"
     " block-size max-batched-tokens kv-dtype compute kv-memory ",
     sy_bench_offline},
    {"replay", " model trace ",
     " model trace json scheduling ctx-size backend threads block-size max-seqs max-batched-tokens kv-dtype compute "
     "kv-memory ",
     sy_bench_replay},
};

static bool listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += n)
        if (at[-1] == ' ' && at[n] == ' ') return true;
    return false;
}

/* A flag of another mode on the command line is a mistake; in the environment or a file it may be meant for others. */
static sy_status check_flags(const struct sy_args *a, const struct mode *m, struct sy_err *err)
{
    for (size_t i = 0; i < a->n_arg; i++) {
        const struct sy_arg *v = &a->arg[i];
        bool common = false;
        for (const struct sy_flag *f = sy_flags_common; f->name; f++) common |= f == v->flag;
        if (v->source == SY_FROM_LINE && !common && !listed(m->flags, v->flag->name))
            return sy_fail(err, SY_EARG, "bench %s: --%s means nothing here; see 'systole bench --help'", m->name,
                           v->flag->name);
        if (v->source == SY_FROM_DEFAULT && listed(m->needs, v->flag->name))
            return sy_fail(err, SY_EARG, "bench %s: expected --%s %s, found none; see 'systole bench --help'",
                           m->name, v->flag->name, v->flag->arg);
    }
    return SY_OK;
}

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    for (size_t i = 0; i < SY_COUNT(modes); i++) {
        if (strcmp(modes[i].name, a->operand[0])) continue;
        sy_status st = check_flags(a, &modes[i], err);
        return st ? st : modes[i].run(a, err);
    }
    return sy_fail(err, SY_EARG, "bench: expected kernels, offline, serve or replay, found '%.40s'", a->operand[0]);
}

const struct sy_command sy_cmd_bench = {
    .name = "bench",
    .help = "measure speed: engine, kernels, servers; replay a trace",
    .about = "offline  measures the engine without a server: prefill and decode by batch size, beside what the "
             "memory allows.\n"
             "replay   runs a recorded trace again and compares every step.",
    .operands = "MODE",
    .n_operand_min = 1,
    .n_operand_max = 1,
    .flags = {flags, sy_flags_ctx, sy_flags_engine},
    .examples = examples,
    .run = run,
};
