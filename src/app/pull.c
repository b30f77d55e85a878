/* pull.c - fetches a model into the cache. */
#include <stdio.h>

#include "app/hub/hub.h"

static const struct sy_example examples[] = {
    {"systole pull hf:HuggingFaceTB/SmolLM2-135M-Instruct", "a folder of safetensors, about 270 MB"},
    {"systole pull hf:ggml-org/gemma-3-270m-GGUF:gemma-3-270m-Q8_0.gguf", "one file of a repository"},
    {"systole run -m hf:HuggingFaceTB/SmolLM2-135M-Instruct 'Hello'", "pulled once, then from the cache"},
    {0},
};

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    struct sy_arena *arena = &a->arena;
    struct sy_repo r;
    const char *path;
    sy_status st = sy_repo_parse(arena, a->operand[0], &r, err);
    if (!st) st = sy_repo_pull(a, &r, &path, err);
    if (!st) puts(path);
    return st;
}

const struct sy_command sy_cmd_pull = {
    .name = "pull",
    .help = "fetch a model from the hub into the cache",
    .about =
        "Fetches a model from a hub that speaks Hugging Face's protocol, checks every file's digest, and prints "
        "where it lies. An interrupted pull continues where it stopped; what is already there and unchanged is "
        "not fetched again.\nWithout a file name, the folder of config.json and *.safetensors is fetched, or the "
        "only GGUF file.",
    .operands = "hf:org/name[:file]",
    .n_operand_min = 1,
    .n_operand_max = 1,
    .examples = examples,
    .run = run,
};
