/* internal.h - what the files of checkpoint/ share. Only they and their tests include it. */
#pragma once
#include "base/arena.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "both file formats store little-endian numbers");

enum {
    SY_CKPT_TENSORS_MAX = 1 << 20, /* the largest published models have some 10^5 */
    SY_CKPT_LAYERS_MAX = 1 << 14,
    SY_CKPT_EXPERTS_MAX = 1 << 14,
};

/* One file in memory; name is for messages. */
struct sy_bytes {
    const char *name;
    const unsigned char *at;
    size_t n;
};

struct sy_gguf_kv;
struct sy_checkpoint {
    const struct sy_env *env;
    struct sy_arena mem; /* names, vocabulary arrays */
    const char *path, *kind;
    struct sy_map *map; /* [n_map] what to unmap at the end */
    size_t n_map;
    struct sy_tensor *tensor; /* [n_tensor] of cap_tensor, in file order */
    size_t n_tensor, cap_tensor;
    uint32_t *by_name; /* [n_name] indices into tensor, sorted by name */
    size_t n_name;
    struct sy_json *config, *generation, *tokenizer, *tokenizer_config;
    struct sy_gguf_vocab *vocab; /* in mem, or NULL */
    const char *chat_template;   /* in mem or in a JSON value, or NULL */
    size_t n_chat_template;
    /* What a GGUF holds as it is, for convert_gguf.c; NULL otherwise. */
    const struct sy_gguf_kv *kv;
    struct sy_tensor *raw;
    size_t n_kv, n_raw;
    const struct sy_tensor *stored; /* [n_stored] the same of a folder, for convert_folder.c: no parts are joined */
    size_t n_stored;
};

/* ---- checkpoint.c -------------------------------------------------------------------------------------- */

/* Maps a file that lives as long as the checkpoint. name is copied. */
sy_status sy_ckpt_map(struct sy_checkpoint *, const char *path, struct sy_bytes *out, struct sy_err *);
sy_status sy_ckpt_add(struct sy_checkpoint *, const struct sy_tensor *, struct sy_err *);
sy_status sy_ckpt_nomem(const struct sy_checkpoint *, struct sy_err *);

/* Opening from memory: what the path version does once its files are mapped, and what fuzzing starts from.
 * The bytes are borrowed until the checkpoint is freed. */
sy_status sy_checkpoint_from_gguf(const struct sy_env *, const struct sy_bytes *shard, size_t n,
                                  struct sy_checkpoint **out, struct sy_err *);
sy_status sy_checkpoint_from_safetensors(const struct sy_env *, const struct sy_bytes *config,
                                         const struct sy_bytes *shard, size_t n, struct sy_checkpoint **out,
                                         struct sy_err *);

/* ---- safetensors.c, folder.c --------------------------------------------------------------------------- */

/* Adds the tensors of one file to the checkpoint. */
sy_status sy_safetensors_read(struct sy_checkpoint *, const struct sy_bytes *, struct sy_err *);
sy_status sy_folder_open(struct sy_checkpoint *, struct sy_err *);
/* Checks a parsed config.json, flattens a composite one and gives it to the checkpoint; takes config. */
sy_status sy_folder_config_take(struct sy_checkpoint *, struct sy_json *config, const char *where, struct sy_err *);

/* ---- parts.c ------------------------------------------------------------------------------------------- */

/* Joins the parts of quantised weights. The index by name must be there; it is out of date afterwards. */
sy_status sy_parts_bind(struct sy_checkpoint *, struct sy_err *);

/* ---- gguf.c: the container ----------------------------------------------------------------------------- */

enum sy_gguf_type { /* numbers of the GGUF specification */
                    SY_GGUF_U8,
                    SY_GGUF_I8,
                    SY_GGUF_U16,
                    SY_GGUF_I16,
                    SY_GGUF_U32,
                    SY_GGUF_I32,
                    SY_GGUF_F32,
                    SY_GGUF_BOOL,
                    SY_GGUF_STRING,
                    SY_GGUF_ARRAY,
                    SY_GGUF_U64,
                    SY_GGUF_I64,
                    SY_GGUF_F64,
                    SY_GGUF_N_TYPE,
};
struct sy_gguf_kv {
    const char *key;
    uint32_t type, elem;     /* elem: of an array */
    uint64_t n;              /* elements; 1 unless an array */
    const unsigned char *at; /* the value in the file, unaligned; a string's length comes first */
};
struct sy_gguf {           /* all shards together; arrays are the checkpoint arena's */
    const char *file;      /* of the first shard, for messages */
    struct sy_gguf_kv *kv; /* of the first shard */
    size_t n_kv;
    struct sy_tensor *raw; /* [n_raw] under the file's own names */
    size_t n_raw, cap_raw;
    int64_t n_split, n_split_tensor; /* as the first shard declares; n_split_tensor is -1 when it does not */
};
sy_status sy_gguf_open(struct sy_checkpoint *, struct sy_err *); /* files, from path */
sy_status sy_gguf_read(struct sy_checkpoint *, const struct sy_bytes *shard, size_t n, struct sy_err *);
const struct sy_tensor *sy_gguf_raw(const struct sy_gguf *, const char *file_name); /* NULL: absent */
size_t sy_gguf_value_bytes(const struct sy_gguf_kv *);                              /* from `at` on */

/* ---- gguf_meta.c --------------------------------------------------------------------------------------- */

/* Reading metadata: the first failure sticks in err and st; later calls return an in-range value. */
struct sy_gguf_meta {
    const struct sy_gguf *g;
    struct sy_err *err;
    sy_status st;
};
const struct sy_gguf_kv *sy_gguf_find(const struct sy_gguf_meta *, const char *key); /* NULL: absent */
const char *sy_gguf_type_name(uint32_t type);
int64_t sy_gguf_int(struct sy_gguf_meta *, const char *key, int64_t lo, int64_t hi); /* required */
int64_t sy_gguf_int_or(struct sy_gguf_meta *, const char *key, int64_t otherwise, int64_t lo, int64_t hi);
/* One number, or an array of n_layer equal ones; layers that differ are refused. */
int64_t sy_gguf_int_layers(struct sy_gguf_meta *, const char *key, int64_t n_layer, int64_t lo, int64_t hi);
double sy_gguf_num(struct sy_gguf_meta *, const char *key, double lo, double hi); /* required */
double sy_gguf_num_or(struct sy_gguf_meta *, const char *key, double otherwise, double lo, double hi);
int sy_gguf_bool_or(struct sy_gguf_meta *, const char *key, int otherwise);
bool sy_gguf_text(struct sy_gguf_meta *, const char *key, struct sy_text *out); /* false: absent or refused */
/* The array, or NULL when absent or refused for not being an array of that type. */
const struct sy_gguf_kv *sy_gguf_array(struct sy_gguf_meta *, const char *key, uint32_t elem);
int64_t sy_gguf_elem_int(const struct sy_gguf_kv *, uint64_t i); /* of integers or bools */
double sy_gguf_meant(float); /* the shortest decimal that is stored so: 0.1, not 0.100000001 */
sy_status sy_gguf_refuse(struct sy_gguf_meta *, sy_status, const char *fmt, ...) SY_PRINTF(3, 4);

/* ---- gguf_config.c, gguf_vocab.c: metadata to config, generation config, vocabulary -------------------- */

/* Keys that only change their name. */
struct sy_key_rule {
    const char *gguf, *hf; /* gguf NULL ends a table */
    enum {
        SY_KEY_INT,
        SY_KEY_COUNT,
        SY_KEY_LAYERS,
        SY_KEY_NUM
    } type; /* COUNT: may be 0; LAYERS: one integer, or an
              array of equal ones */
    bool required;
};
enum { SY_KEY_TABLES = 4 };
struct sy_gguf_arch;
/* The tables of an architecture, NULL behind the last. */
void sy_gguf_keys(const struct sy_gguf_arch *, const struct sy_key_rule *table[SY_KEY_TABLES + 1]);
struct sy_gguf_dims { /* what mapping names needs to know */
    const struct sy_gguf_arch *arch;
    int64_t n_layer, n_next, n_expert, head_dim; /* n_next: layers behind the last */
    struct sy_vheads tiles;                      /* of value heads; n_key 0: they stand in order */
};
sy_status sy_gguf_config(struct sy_checkpoint *, const struct sy_gguf *, struct sy_gguf_dims *, struct sy_err *);
sy_status sy_gguf_tokenizer(struct sy_checkpoint *, const struct sy_gguf *, struct sy_err *);

/* ---- gguf_make.c: the other way round ------------------------------------------------------------------- */

/* Metadata as it stands in a file, and the tensors that hold hyper-parameters. */
struct sy_gguf_made {
    struct sy_buf kv;
    size_t n_kv, n_extra;
    struct {
        const char *name;
        float *at; /* [n] in the arena */
        int64_t n;
    } extra[2];
};
/* Of a folder's config, its tokenizer (NULL: none) and how many layers for further tokens come along. What GGUF has
 * no keys for is left out: whoever calls this compares the models that the two describe. The buffer is the caller's
 * to release. */
sy_status sy_gguf_make(const struct sy_checkpoint *, const struct sy_gguf_arch *, const struct sy_gguf_vocab *,
                       uint32_t file_type, int64_t n_next, struct sy_arena *, struct sy_gguf_made *, struct sy_err *);

/* By whatever key the config says it; 0: none. */
int64_t sy_gguf_experts(const struct sy_json *config);
int64_t sy_gguf_ssm_groups(const struct sy_json *config);

/* ---- gguf_archs.c, names.c ------------------------------------------------------------------------------ */

struct sy_name_rule {
    const char *gguf; /* "attn_q": of blk.N.attn_q.weight; NULL ends a table */
    const char *hf;   /* "self_attn.q_proj": of model.layers.N.self_attn.q_proj.weight */
    unsigned flags;
};
enum {
    SY_NAME_ROPE = 1, /* q or k: rows may be stored as rope pairs */
    SY_NAME_NORM = 2,
    SY_NAME_EXPERTS = 4,   /* [n_expert, rows, cols], one tensor each; '#' in hf is the number */
    SY_NAME_ROW = 8,       /* a vector here, a matrix of one row there */
    SY_NAME_BARE = 16,     /* hf is the whole name, without ".weight" */
    SY_NAME_FLAT = 32,     /* [n, rows, cols] here, [n * rows, cols] there */
    SY_NAME_FILTER = 64,   /* [channels, taps] here, [channels, 1, taps] there */
    SY_NAME_WHOLE = 128,   /* both names are whole, without ".weight" */
    SY_NAME_NEG_EXP = 256, /* here -exp() of what is there */
    SY_NAME_COLUMN = 512,  /* [n, 1] here, [n] there */
    SY_NAME_GROUPS = 1024, /* [groups of a state-space mixer, n / groups] here, [n] there */
    SY_NAME_HALVES = 2048, /* experts': two rules in a row are the first and the second half of each one's rows */
    SY_NAME_WIDE = 4096,   /* a filter, which may be [1, channels, 1, taps] here */
    SY_NAME_TILED =
        8192, /* value heads, the last rows, stand here as struct sy_vheads says; with _COLS the columns */
    SY_NAME_TILED_COLS = 16384,
    SY_NAME_LINEAR = 32768, /* only of layers that the config's "layer_types" calls "linear_attention" */
};
struct sy_gguf_arch {
    const char *name; /* general.architecture */
    const char *hf_class, *model_type, *act;
    bool rope_pairs;                  /* the converter interleaves the rope pairs of q and k */
    bool norm_plus_one;               /* the converter adds the 1 of (1+w) norms */
    bool part_rope;                   /* fewer dims than a head's may turn */
    bool hybrid;                      /* keys that layers have one each of may differ */
    bool patterned;                   /* which layers slide is always said */
    bool latent;                      /* latent attention: a head is what turns of it */
    bool kv_by_layer;                 /* numbers of KV heads say what a layer is: a function of the architecture's */
    bool wide_global;                 /* layers that see everything have longer heads and a rope of their own */
    int32_t pattern;                  /* every so-manieth layer sees beyond the window; 1: none does; 0: no windows */
    const struct sy_name_rule *names; /* looked up before the common ones */
    const struct sy_name_rule *dense; /* looked up before those when a model without experts is written; or NULL */
    const struct sy_name_rule *whole; /* names outside of layers, looked up before the common ones; or NULL */
    const struct sy_name_rule *next;  /* looked up first in layers behind the last, which predict further tokens; or
                                       * NULL: there are no names for them */
    const char *next_at;              /* what stands before the number of such a layer, counted anew, and .next has
                                       * whole names; NULL: `layers` */
    const char *layers;               /* what stands before a layer's number; NULL: "model.layers." */
    const char *sparse;               /* name of the architecture where the model has experts; NULL: the same */
};
extern const struct sy_name_rule sy_gguf_whole[], sy_gguf_block[]; /* what all have, outside of layers and in them */
const struct sy_gguf_arch *sy_gguf_arch_find(const struct sy_text *name); /* NULL: unknown */
/* Of a class, with experts or without; NULL: has none that is known. */
const struct sy_gguf_arch *sy_gguf_arch_of_class(const char *hf_class, bool sparse);
/* Of a tensor whose last rows are those value heads, or one number for each; n_key 0: it has not as many. */
struct sy_vheads sy_vheads_of(const struct sy_vheads *heads, int64_t rows);
/* The GGUF name (in gguf[n]), layer (-1: none) and expert (-1: no expert's) of a Hugging Face name; NULL: has none.
 */
const struct sy_name_rule *sy_names_back(const struct sy_gguf_arch *, bool dense, int64_t n_layer, const char *name,
                                         char *gguf, size_t n, int64_t *layer, int64_t *expert);
/* Adds every raw tensor to the checkpoint under its Hugging Face name; ones without a rule keep their own. */
sy_status sy_names_map(struct sy_checkpoint *, const struct sy_gguf *, const struct sy_gguf_dims *, struct sy_err *);
/* ---- stacked.c ------------------------------------------------------------------------------------------ */

/* Replaces every tensor that holds the matrices (or biases) of all experts of a layer by one for each of them, under
 * the names that models with one tensor per expert have: "experts.gate_up_proj" becomes "experts.0.gate_proj.weight",
 * "experts.0.up_proj.weight", ... Nothing is copied. */
sy_status sy_stacked_split(struct sy_checkpoint *, struct sy_err *);

/* ---- names.c: composite models --------------------------------------------------------------------------- */

/* The name of the text model's tensor inside a composite model; name itself otherwise. */
const char *sy_names_text(struct sy_checkpoint *, const char *name);
/* Whether a tensor that nobody asked for is known not to be needed: */
bool sy_names_ignorable(const char *name, const struct sy_json *config);
bool sy_names_foreign(const char *name); /* for another modality; */
/* or is of the text model but not always read: heads for further tokens, projections of keys that are shared. */
bool sy_names_spare(const char *name, const struct sy_json *config);
bool sy_names_is_key(const char *name); /* a layer's projection or norm of keys, or of values */
