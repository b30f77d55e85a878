/* flagset.c - the flags that several commands share. */
#include "app/cli/cli.h"

static const char *const log_levels[] = {"error", "warn", "info", "debug", NULL};
static const char *const computes[] = {"auto", "f32", "bf16", "int8", NULL};
static const char *const state_dtypes[] = {"f32", "bf16", "pair", NULL};
static const char *const kernels[] = {"plain", "mosaic", NULL};
static const char *const accumulates[] = {"f32", "bf16", NULL};
static const char *const kv_dtypes[] = {"f32", "bf16", "f16", "q8_0", NULL};

const struct sy_flag sy_flags_common[] = {
    {.name = "config", .kind = SY_FLAG_TEXT, .arg = "FILE", .help = "read flags from lines 'max-seqs = 4' of FILE"},
    {.name = "log-level",
     .kind = SY_FLAG_CHOICE,
     .choices = log_levels,
     .otherwise = "warn",
     .help = "what is logged to stderr"},
    {.name = "quiet", .letter = 'q', .kind = SY_FLAG_SWITCH, .help = "no progress, statistics or warnings"},
    {.name = "progress",
     .kind = SY_FLAG_SWITCH,
     .help = "progress and statistics on stderr even when it is not a terminal"},
    {.name = "help", .letter = 'h', .kind = SY_FLAG_SWITCH, .help = "print this help"},
    {.name = "version", .kind = SY_FLAG_SWITCH, .help = "print the version"},
    {0},
};

const struct sy_flag sy_flags_model[] = {
    {.name = "model",
     .letter = 'm',
     .required = true,
     .kind = SY_FLAG_TEXT,
     .arg = "MODEL",
     .help = "a GGUF file (first shard of several), a Hugging Face folder, or hf:org/name[:file]"},
    {0},
};

const struct sy_flag sy_flags_ctx[] = {
    {.name = "ctx-size",
     .letter = 'c',
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 16777216,
     .otherwise = "the model's, at most 8192",
     .help = "longest sequence in tokens, prompt and answer together"},
    {0},
};

/* How devices share a model; of commands that run one, and of those that only compile it. */
#define SHARD_FLAGS                                                                                                  \
    {.name = "tp",                                                                                                   \
     .kind = SY_FLAG_INT,                                                                                            \
     .arg = "N",                                                                                                     \
     .lo = 1,                                                                                                        \
     .hi = 64,                                                                                                       \
     .number = 1,                                                                                                    \
     .otherwise = "1, or what the target or --ep leaves",                                                            \
     .help = "devices that share heads and columns: tensor parallelism (pjrt)"},                                     \
        {.name = "ep",                                                                                               \
         .kind = SY_FLAG_INT,                                                                                        \
         .arg = "N",                                                                                                 \
         .lo = 1,                                                                                                    \
         .hi = 64,                                                                                                   \
         .number = 1,                                                                                                \
         .help = "devices that share the experts: those of --tp and --dp-attention (pjrt)"},                         \
        {.name = "dp-attention",                                                                                     \
         .kind = SY_FLAG_INT,                                                                                        \
         .arg = "N",                                                                                                 \
         .lo = 1,                                                                                                    \
         .hi = 64,                                                                                                   \
         .number = 1,                                                                                                \
         .help = "groups of devices that have sequences of their own (pjrt)"},                                       \
        {.name = "pp",                                                                                               \
         .kind = SY_FLAG_INT,                                                                                        \
         .arg = "N",                                                                                                 \
         .lo = 1,                                                                                                    \
         .hi = 64,                                                                                                   \
         .number = 1,                                                                                                \
         .help = "stages of layers, one after another (pjrt)"},                                                      \
    {                                                                                                                \
        .name = "afd", .kind = SY_FLAG_TEXT, .arg = "A+F",                                                           \
        .help = "attention on A devices, feed-forward on F others (pjrt)"                                            \
    }

const struct sy_flag sy_flags_shard[] = {SHARD_FLAGS, {0}};

const struct sy_flag sy_flags_engine[] = {
    {.name = "backend",
     .kind = SY_FLAG_TEXT,
     .arg = "NAME",
     .otherwise = "cpu",
     .help = "where the model runs: cpu, or pjrt:PLUGIN.so for a TPU or GPU through its PJRT plugin"},
    SHARD_FLAGS,
    {.name = "threads",
     .letter = 't',
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 1024,
     .otherwise = "all CPUs this process may use",
     .help = "threads of the backend"},
    {.name = "block-size",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 1024,
     .number = 32,
     .help = "positions in a block of the KV cache, a power of two"},
    {.name = "max-seqs",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 4096,
     .number = 1,
     .otherwise = "1, or 64 to serve",
     .help = "sequences that run at once"},
    {.name = "max-batched-tokens",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 1048576,
     .number = 512,
     .help = "tokens in one step: a longer prompt is processed in chunks"},
    {.name = "kv-dtype",
     .kind = SY_FLAG_CHOICE,
     .choices = kv_dtypes,
     .otherwise = "bf16",
     .help = "type of the KV cache; q8_0: bytes with a scale per 32, half of bf16's memory"},
    {.name = "compute",
     .kind = SY_FLAG_CHOICE,
     .choices = computes,
     .otherwise = "auto",
     .help = "arithmetic of the matrix products; auto: the fastest whose loss is documented"},
    {.name = "kv-memory",
     .kind = SY_FLAG_SIZE,
     .arg = "SIZE",
     .lo = 1 << 20,
     .hi = 1099511627776.0 * 64,
     .otherwise = "what max-seqs sequences of ctx-size need; to serve, a quarter of the memory at most",
     .help = "hard cap of the KV cache"},
    {.name = "state-dtype",
     .kind = SY_FLAG_CHOICE,
     .choices = state_dtypes,
     .otherwise = "f32",
     .help =
         "type of the recurrent states of hybrid models; bf16: half the memory and reading; pair: two bf16 numbers; "
         "see doc/numerics.md"},
    {.name = "attention-accumulate",
     .kind = SY_FLAG_CHOICE,
     .choices = accumulates,
     .otherwise = "f32",
     .help = "type of attention's scores and sums on a PJRT plugin; bf16: what it costs is in doc/tpu.md"},
    {.name = "kernels",
     .kind = SY_FLAG_CHOICE,
     .choices = kernels,
     .otherwise = "plain",
     .help = "what attention, experts and the gated delta rule run by on a TPU; mosaic: hand-written kernels, which "
             "no TPU ran yet"},
    {.name = "programs",
     .kind = SY_FLAG_TEXT,
     .arg = "DIR",
     .otherwise = "programs in $SYSTOLE_HOME",
     .help = "where compiled programs are looked for and kept (pjrt)"},
    {.name = "draft-max",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 0,
     .hi = 64,
     .otherwise = "0, or 4 with --draft-model",
     .help = "most tokens guessed ahead in a step, from the text so far unless --draft-model is given; answers stay "
             "the same"},
    {.name = "draft-model",
     .kind = SY_FLAG_TEXT,
     .arg = "MODEL",
     .help = "what guesses tokens ahead: a smaller model with the same tokens, or 'mtp', the model's own head for "
             "one token more"},
    {0},
};

const struct sy_flag sy_flags_sampling[] = {
    {.name = "max-tokens",
     .letter = 'n',
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 16777216,
     .number = 1024,
     .help = "most tokens to generate"},
    {.name = "temperature",
     .kind = SY_FLAG_NUM,
     .arg = "T",
     .lo = 0,
     .hi = 2,
     .otherwise = "the model's generation_config.json, else 0",
     .help = "0 takes the likeliest token always"},
    {.name = "top-k",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 0,
     .hi = 1000000,
     .otherwise = "as temperature, else off",
     .help = "draw among the N likeliest tokens; 0: all"},
    {.name = "top-p",
     .kind = SY_FLAG_NUM,
     .arg = "P",
     .lo = 0.000001,
     .hi = 1,
     .otherwise = "as temperature, else 1",
     .help = "draw among the likeliest tokens that make up probability P"},
    {.name = "min-p",
     .kind = SY_FLAG_NUM,
     .arg = "P",
     .lo = 0,
     .hi = 1,
     .otherwise = "as temperature, else 0",
     .help = "drop tokens less likely than P times the likeliest"},
    {.name = "seed",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 0,
     .hi = 9007199254740992.0,
     .otherwise = "a random one",
     .help = "the same seed and prompt give the same answer"},
    {.name = "repeat-penalty",
     .kind = SY_FLAG_NUM,
     .arg = "X",
     .lo = 0.01,
     .hi = 10,
     .number = 1,
     .help = "above 1: makes tokens of prompt and answer less likely"},
    {.name = "presence-penalty",
     .kind = SY_FLAG_NUM,
     .arg = "X",
     .lo = -2,
     .hi = 2,
     .help = "subtracted from the logits of tokens that the answer has"},
    {.name = "frequency-penalty",
     .kind = SY_FLAG_NUM,
     .arg = "X",
     .lo = -2,
     .hi = 2,
     .help = "the same, for every time the answer has the token"},
    {.name = "stop", .kind = SY_FLAG_TEXTS, .arg = "TEXT", .help = "end the answer before TEXT; may be repeated"},
    {0},
};
