/* gguf_build.h - what the files share that make a config of GGUF metadata. */
#pragma once
#include <stdio.h>
#include <string.h>

#include "checkpoint/internal.h"

struct build {
    struct sy_gguf_meta m;
    struct sy_json *o; /* the config */
    const struct sy_gguf_arch *arch;
    struct sy_gguf_dims *d;
    int64_t n_head;
    bool nomem;
    char key[160];
};

/* "rope.freq_base" to "llama.rope.freq_base"; valid until the next call. */
static inline const char *own(struct build *b, const char *tail)
{
    snprintf(b->key, sizeof b->key, "%s.%s", b->arch->name, tail);
    return b->key;
}

static inline void put(struct build *b, struct sy_json *o, const char *name, struct sy_json *v)
{
    if (!sy_json_set_take(o, name, v)) b->nomem = true;
}
static inline void put_int(struct build *b, const char *name, int64_t v) { put(b, b->o, name, sy_json_new_int(v)); }
static inline void put_num(struct build *b, const char *name, double v) { put(b, b->o, name, sy_json_new_number(v)); }
static inline void put_bool(struct build *b, const char *name, bool v) { put(b, b->o, name, sy_json_new_bool(v)); }
static inline void put_text(struct build *b, const char *name, const char *v)
{
    put(b, b->o, name, sy_json_new_text(v, strlen(v)));
}

/* gguf_config.c: whether layer t's name says is one of the model's, and has it as its `tail`; else -1. */
int64_t sy_gguf_layer_with(const struct build *, const struct sy_tensor *t, const char *tail);

/* gguf_gemma.c */
void sy_gguf_pattern(struct build *); /* which layers slide: "layer_types", or "sliding_window_pattern" */
void sy_gguf_gemma2(struct build *);
void sy_gguf_gemma3(struct build *);
void sy_gguf_gemma3n(struct build *);
void sy_gguf_gemma4(struct build *);
