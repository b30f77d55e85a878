/* bench.c - how fast it is: one command, a mode per question. */
#include <string.h>

#include "app/bench/bench.h"
#include "app/session/session.h"

static const struct sy_example examples[] = {
    {"systole bench kernels --family gemm --isa avx2", "matrix products with AVX2, beside the machine's peaks"},
    {"systole bench offline -m model.gguf --batch 1,2,..,64 --input-len 128 --output-len 64",
     "tokens/s by batch size"},
    {"systole bench offline -m model.gguf --batch 1,8 --sweep-input 128,256,..,8192 --svg context.svg",
     "the same by length of context, drawn"},
    {"systole bench offline -m model.gguf --mixed --batch 32", "what continuous batching is worth"},
    {"systole bench offline -m model.gguf --backend pjrt:plugin.so --shapes --batch 8",
     "what static shapes are worth"},
    {"systole bench mosaic --plugin libtpu.so --target v5e-1", "kernels for TPUs by a compiler's schedule"},
    {"systole bench design -m model.gguf --input-len 512 --output-len 32 --repeat 5 -f text.txt",
     "what single design choices are worth here"},
    {"systole bench serve --url http://127.0.0.1:8080 --concurrency 1,4,16,64", "what users of a server see"},
    {"systole bench serve --url http://127.0.0.1:8080 --rate 2,4 --endpoint chat --json out.json", "open loop, chat"},
    {"systole bench sweep -m model.gguf --vary max-batched-tokens=64,256 --concurrency 1,4,16 --report r.html",
     "a server of each configuration under each load, as charts"},
    {"systole bench sweep --model-card qwen3.5-397b-a17b --backend sim:b200x8 --vary tp=8,4 --concurrency 16,64",
     "the same on chips that are not here"},
    {"systole bench compare before.json after.json", "two results beside each other"},
    {"systole bench replay --trace trace.jsonl -m model.gguf", "a recorded run again, step for step"},
    {0},
};

struct mode {
    const char *name, *needs, *flags; /* flags: names between spaces; needs: the ones without which it cannot start */
    sy_status (*run)(struct sy_args *, struct sy_err *);
};
static const struct mode modes[] = {
    {"compare", " ", " ", sy_bench_compare},
    {"design", " model ",
     " model input-len output-len batch repeat random-range num-prompts file seed json backend threads "
     "max-batched-tokens kv-dtype compute state-dtype ",
     sy_bench_design},
    {"kernels", " ", " isa family shape rows seconds threads json ", sy_bench_kernels},
    {"mosaic", " ", " plugin target table json ", sy_bench_mosaic},
    {"offline", " model ",
     " model input-len output-len batch sweep-input sweep-threads repeat svg scheduling mixed shapes random-range "
     "num-prompts seed json price chips "
     "backend threads"
     " block-size max-batched-tokens kv-dtype compute kv-memory draft-max draft-model state-dtype "
     "attention-accumulate tp ep dp-attention pp afd ",
     sy_bench_offline},
    {"replay", " model trace ",
     " model trace json scheduling ctx-size backend threads block-size max-seqs max-batched-tokens kv-dtype compute "
     "kv-memory ",
     sy_bench_replay},
    {"serve", " url ",
     " url model concurrency rate input-len output-len random-range dataset trace num-prompts warmups endpoint "
     "api-key text"
     " vocab-size timeout field seed json price chips report ",
     sy_bench_serve},
    {"sweep", " ",
     " url model concurrency rate input-len output-len random-range dataset trace num-prompts warmups endpoint "
     "api-key text vocab-size timeout field seed json price chips vary report model-card precision tco calibration "
     "ctx-size backend tp threads block-size max-seqs max-batched-tokens kv-dtype compute kv-memory draft-max "
     "state-dtype ",
     sy_bench_sweep},
};

static bool listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += n)
        if (at[-1] == ' ' && at[n] == ' ') return true;
    return false;
}

/* A flag of another mode on the command line is a mistake; in the environment or a file it may be meant for others.
 */
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
        if (!st && a->n_operand > 1 && modes[i].run != sy_bench_compare)
            return sy_fail(err, SY_EARG, "bench %s: takes no '%.40s'", modes[i].name, a->operand[1]);
        return st ? st : modes[i].run(a, err);
    }
    return sy_fail(err, SY_EARG,
                   "bench: expected kernels, mosaic, offline, design, serve, sweep, replay or compare, found '%.40s'",
                   a->operand[0]);
}

const struct sy_command sy_cmd_bench = {
    .name = "bench",
    .help = "measure speed: engine, kernels, servers; replay a trace",
    .about = "kernels  measures every kernel on every instruction set level, beside the machine's own peaks.\n"
             "mosaic   compiles the kernels for TPUs with libtpu's compiler and prints their costs by its schedule, "
             "beside those of the plain operations they stand for: estimates, no TPU is needed.\n"
             "offline  measures the engine without a server: prefill and decode by batch size, beside what the "
             "memory allows.\n"
             "design   compares the engine with ones that decide otherwise: KV blocks of other sizes or off their "
             "lines, ops not fused, static batching, padding to fixed shapes, sums of attention in bf16.\n"
             "serve    puts a load on a server that speaks OpenAI's API, in closed loop (--concurrency) or open loop "
             "(--rate).\n"
             "sweep    puts loads on servers of several configurations, started one after the other, or simulated.\n"
             "replay   runs a recorded trace again and compares every step.\n"
             "compare  sets two results of serve, of plan or of InferenceX beside each other at equal interactivity.",
    .operands = "MODE [FILE FILE]",
    .n_operand_min = 1,
    .n_operand_max = 3,
    .flags = {sy_flags_bench, sy_flags_ctx, sy_flags_engine},
    .examples = examples,
    .run = run,
};
