/* checkpoint.h - a model's files, opened read-only: GGUF v2/v3 (possibly sharded) or a Hugging Face folder
 * (config.json, *.safetensors with or without an index, tokenizer files).
 *
 * Both kinds give the same description. Names are the Hugging Face names of the architecture
 * ("model.layers.0.self_attn.q_proj.weight"); a GGUF's names and metadata are mapped once, here, onto those
 * names and onto a config in the Hugging Face dialect, so models know one dialect. Everything is checked when
 * opened: sizes, offsets, counts, types, alignment, overlap. Weights that a folder's quantization_config spreads over
 * several tensors come as one. Owned by one thread while opening; afterwards
 * immutable and shared.
 *
 * Formats: GGUF (ggml-org/ggml, docs/gguf.md), safetensors (huggingface/safetensors, README "Format"),
 * Hugging Face model folders and snapshots of the hub's cache. */
#pragma once
#include "base/json.h"
#include "quant/quant.h"

struct sy_checkpoint;

/* Value heads of a delta rule where several share a key head, as GGUF has them: head v of key k, k * per_key + v in
 * order, is stored as head v * n_key + k. */
struct sy_vheads {
    int32_t n_key, per_key, len; /* rows (or columns) of a head; n_key 0: all stand in order */
    int64_t first;               /* the first row that is a value head's */
};
static inline int64_t sy_vhead_row(const struct sy_vheads *s, int64_t i)
{
    if (i < s->first) return i;
    int64_t h = (i - s->first) / s->len, at = (i - s->first) % s->len;
    return s->first + (h % s->per_key * s->n_key + h / s->per_key) * s->len + at;
}

/* One tensor as stored. shape is [rows, cols] for matrices (cols contiguous); outer dimensions first. */
struct sy_tensor {
    const char *name;              /* mapped (Hugging Face) name, borrowed from the checkpoint */
    const char *file_name;         /* as the file calls it, for messages */
    const char *file;              /* the file it is in, for messages */
    const struct sy_quant *format; /* NULL: nothing in quant/ reads this dtype; whoever needs it refuses it */
    const char *dtype;             /* "BF16", or a GGUF's format by our name ("q4_k"), for messages */
    int n_dim;                     /* 0 (a single number) to 4; of more than 4 the outer ones are folded */
    int64_t dim[4];                /* dim[n_dim-1] is contiguous; unused ones are 1 */
    const unsigned char *data;     /* mapped, read-only, until the checkpoint is freed; of any alignment */
    size_t n_bytes;                /* of all its parts */
    const struct sy_parts *parts;  /* stored as several tensors: data is NULL, only the functions below read it */
    /* With parts: row r here is row part_row0 + part_step * r of the weight they make. */
    int64_t part_row0, part_step;
    /* GGUF's Llama family stores q and k rows of each head as interleaved rope pairs. head_rows > 0: logical
     * row r of a head of head_rows rows is stored at row sy_tensor_row(); bit-exact, rows are only reordered.
     * Of a bias (n_dim 1) the elements are the rows. */
    int32_t head_rows;
    struct sy_vheads tiles; /* of rows, or of columns: sy_tensor_floats() and its like put those in order */
    bool tiled_cols;
    bool norm_plus_one; /* the (1+w) offset of Gemma-like norms is already added in the file */
    bool neg_exp;       /* the file holds -exp(w) */
    /* A part of a stored tensor, where it lies: bytes from row to row and from element to element. 0: rows follow
     * each other, elements too; col_bytes only of formats of one element a block. */
    int64_t row_bytes, col_bytes;
};
/* Stored row of logical row r: identity, or the undone q/k permutation. */
static inline int64_t sy_tensor_row(const struct sy_tensor *t, int64_t r)
{
    if (t->tiles.n_key > 0 && !t->tiled_cols) return sy_vhead_row(&t->tiles, r);
    if (t->head_rows <= 0) return r;
    int64_t h = r / t->head_rows, i = r % t->head_rows, half = t->head_rows / 2;
    return h * t->head_rows + (i < half ? 2 * i : 2 * (i - half) + 1);
}

/* Row r as floats, as integer codes with scales (of a format that has them: see struct sy_quant). r is logical, and
 * counts rows of all outer dimensions together; a vector is one row, whose head_rows the caller minds. */
void sy_tensor_floats(const struct sy_tensor *, int64_t r, float *dst);
void sy_tensor_codes(const struct sy_tensor *, int64_t r, uint8_t *code, float *scale, float *min);
/* Row r where it lies, in the blocks of its format; NULL: it is no run of bytes. */
const unsigned char *sy_tensor_stored(const struct sy_tensor *, int64_t r);
/* Of a format whose elements are floats of 8 bits. */
void sy_tensor_f8(const struct sy_tensor *, int64_t r, uint8_t *code, float *scale);

/* Values of a tensor that is a vector, one filter per channel [channels, 1, taps], or a matrix where that is asked
 * for; else 0. */
int64_t sy_tensor_flat_len(const struct sy_tensor *, bool matrix);

/* path: a GGUF file (of several shards the first), or a folder. */
SY_CHECK sy_status sy_checkpoint_open(const struct sy_env *, const char *path, struct sy_checkpoint **out,
                                      struct sy_err *);
void sy_checkpoint_free(struct sy_checkpoint *);

const char *sy_checkpoint_path(const struct sy_checkpoint *);
const char *sy_checkpoint_kind(const struct sy_checkpoint *); /* "gguf" or "safetensors" */
/* config.json's root object (or the one made from GGUF metadata); "architectures" (a list of names) and
 * "model_type" are always there. A composite config's text_config is flattened: its keys win, but
 * "architectures" stays the root's. GGUF's Llama 3 rope comes as rope_scaling {"rope_type": "factors",
 * "factors": [head_dim / 2 numbers]}, by which the angles are divided. */
const struct sy_json *sy_checkpoint_config(const struct sy_checkpoint *);
/* The same of a config.json alone: *config is replaced, if it fails by what is of no use but to be freed. */
SY_CHECK sy_status sy_config_flatten(struct sy_json **config, struct sy_err *);
/* generation_config.json, or token ids from GGUF metadata; NULL: none. */
const struct sy_json *sy_checkpoint_generation(const struct sy_checkpoint *);
size_t sy_checkpoint_count(const struct sy_checkpoint *);
const struct sy_tensor *sy_checkpoint_at(const struct sy_checkpoint *, size_t i);
const struct sy_tensor *sy_checkpoint_find(const struct sy_checkpoint *, const char *name); /* NULL: absent */
/* The i of sy_checkpoint_at() for a tensor of this checkpoint. */
size_t sy_checkpoint_index(const struct sy_checkpoint *, const struct sy_tensor *);
/* Fails unless used[i] is set for each tensor i of [count], or it is known to be no part of the text model
 * (vision towers, rotary tables, heads for multi-token prediction, a stored copy of tied embeddings): names
 * the first extra one. */
SY_CHECK sy_status sy_checkpoint_check_extra(const struct sy_checkpoint *, const bool *used, struct sy_err *);

struct sy_text {
    const char *at;
    size_t n;
};
/* What a tokenizer is made of. One of json (tokenizer.json, parsed) and gguf is there, or neither. */
struct sy_gguf_vocab {       /* GGUF tokenizer.ggml.*; strings are borrowed, not NUL-terminated */
    const char *model, *pre; /* "llama", "gpt2", "bert", "t5", ...; pre may be NULL */
    size_t n_token, n_merge;
    const struct sy_text *token, *merge;
    const float *score;  /* [n_token] or NULL */
    const int32_t *type; /* or NULL: 1 normal 2 unknown 3 control 4 user 5 unused 6 byte */
    int64_t bos, eos, eot, eom, unk, pad, sep, cls, mask;             /* -1: absent */
    int add_bos, add_eos, add_space_prefix, remove_extra_whitespaces; /* -1: absent */
    const unsigned char *charsmap;                                    /* precompiled_charsmap or NULL */
    size_t n_charsmap;
};
const struct sy_json *sy_checkpoint_tokenizer_json(const struct sy_checkpoint *);   /* NULL: none */
const struct sy_json *sy_checkpoint_tokenizer_config(const struct sy_checkpoint *); /* NULL: none */
const struct sy_gguf_vocab *sy_checkpoint_gguf_vocab(const struct sy_checkpoint *); /* NULL: none */
/* The chat template's source (n bytes, no NUL at the end), or NULL: GGUF tokenizer.chat_template; of a folder
 * chat_template.jinja, or else "chat_template" of tokenizer_config.json (a string, or a list of {name,
 * template}: "default"). */
const char *sy_checkpoint_chat_template(const struct sy_checkpoint *, size_t *n);
/* "general.architecture" of the i-th kind of GGUFs that can be read; NULL: there are no more. */
const char *sy_gguf_arch_name(size_t i);
