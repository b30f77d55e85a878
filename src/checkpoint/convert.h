/* convert.h - writes a checkpoint as a folder of safetensors, one shard a layer, or as one GGUF, so that neither
 * reading nor writing holds more than a few rows in memory.
 *
 * As stored, into a folder: of a folder every tensor's bytes, whatever its format, under its own name; of a GGUF
 * floats stay what they are, q8_0 and q4_0 become compressed-tensors' packed integers in groups of 32, mxfp4 its
 * MXFP4: the same numbers, bit for bit; norms that the file adds 1 to and exponentials become what they were, refused
 * where that would lose anything; what makes keys and values of latents becomes one matrix. Into a GGUF: floats stay
 * what they are (vectors, routers and filters become f32), MXFP4 becomes mxfp4. Any other format is refused by name.
 * Otherwise the matrices of the layers are quantised, with the rounding that makes the squared error least; all else
 * stays, or becomes bf16 where there is no such format. Tensors of other modalities are left out, and of heads for
 * further tokens where a GGUF has no names for them. Formats: huggingface/safetensors README; compressed-tensors
 * "pack-quantized", "mxfp4-pack-quantized"; transformers' "fp8" with blocks of 128 x 128; ggml-org/ggml,
 * docs/gguf.md. */
#pragma once
#include "checkpoint/checkpoint.h"

enum sy_convert_to {
    SY_CONVERT_STORED,
    SY_CONVERT_Q8_0,
    SY_CONVERT_Q4_0,
    SY_CONVERT_Q4_K, /* GGUF only, as the next */
    SY_CONVERT_Q6_K,
    SY_CONVERT_MXFP4,
    SY_CONVERT_FP8, /* safetensors only */
};
struct sy_convert_opt {
    enum sy_convert_to to;
    const struct sy_gguf_vocab *vocab; /* the tokenizer of a GGUF that is made of a folder; NULL: it has none */
    void (*progress)(void *ctx, double done); /* 0..1; NULL: none */
    void *progress_ctx;
};
struct sy_convert_result {
    size_t n_shard, n_quantised;
    size_t n_left_out; /* tensors of heads for further tokens that a GGUF has no names for */
    double bytes;      /* of all tensors written */
    double error;      /* squared error of what was quantised, by its squares; 0: none */
};
/* Writes weights, config.json and generation_config.json into an existing empty folder. */
SY_CHECK sy_status sy_checkpoint_convert(const struct sy_env *, const struct sy_checkpoint *, const char *folder,
                                         const struct sy_convert_opt *, struct sy_convert_result *, struct sy_err *);
/* Writes one GGUF: of another one, whose metadata stays as it is; or of a folder whose architecture's GGUF names are
 * known. Keys hold what GGUF has keys for: the caller compares the models of both. Rows that are no whole blocks of
 * the format become q8_0, or stay what they are. */
SY_CHECK sy_status sy_checkpoint_convert_gguf(const struct sy_env *, const struct sy_checkpoint *, const char *path,
                                              const struct sy_convert_opt *, struct sy_convert_result *,
                                              struct sy_err *);
