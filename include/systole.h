/* systole.h - Systole as a library: load a model, ask it, get text as it is made.
 *
 *     struct systole *m;
 *     char why[512];
 *     if (systole_open(&(struct systole_options){.model = "model.gguf"}, &m, why, sizeof why)) puts(why);
 *
 * Two nouns: `struct systole`, a loaded model, and `struct systole_chat`, one conversation with it. Every function
 * that can fail returns 0 or one of the codes below and, then, writes one sentence to `err` (NULL: not wanted). A
 * model and its conversations belong to one thread at a time. Strings are UTF-8 and borrowed for the call; what is
 * given out by pointer-to-pointer is the caller's to free by the function named. */
#ifndef SYSTOLE_H
#define SYSTOLE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum systole_code {
    SYSTOLE_OK = 0,
    SYSTOLE_EFAILED = 1, /* the operating system refused, or the backend failed */
    SYSTOLE_EARG = 2,    /* an argument is out of range */
    SYSTOLE_EFORMAT = 3, /* a file is malformed */
    SYSTOLE_ENOSUP = 4,  /* the model or feature is not supported */
    SYSTOLE_ENOMEM = 5,  /* not enough memory */
    SYSTOLE_STOPPED = 6  /* the text callback asked to stop; what came before it stands */
};

const char *systole_version(void);

struct systole;
struct systole_chat;

struct systole_options {  /* zero means the default */
    const char *model;    /* a .gguf file, or a folder with config.json and *.safetensors */
    const char *backend;  /* "cpu" */
    const char *compute;  /* "auto", "f32", "bf16" or "int8" */
    const char *kv_dtype; /* "f32", "bf16", "f16" or "q8_0"; default "bf16" */
    int32_t threads, ctx_size, max_batched_tokens;
};
struct systole_sampling { /* zero means greedy, to the end of the context */
    float temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int32_t top_k, max_tokens;
    uint64_t seed;
    const char *const *stop; /* NULL-terminated, or NULL */
};
struct systole_answer {
    int32_t prompt_tokens, cached_tokens, tokens;
    const char *finish; /* "stop", "length", "cancelled"; static */
};
/* Called with each piece of text, whole characters only; n bytes, NUL-terminated. Non-zero stops the answer. */
typedef int systole_text_fn(void *ctx, const char *text, size_t n);

int systole_open(const struct systole_options *, struct systole **out, char *err, size_t err_len);
void systole_close(struct systole *); /* NULL is fine; its conversations must be freed before */

/* Continues plain text. `answer` may be NULL. */
int systole_complete(struct systole *, const char *prompt, const struct systole_sampling *, systole_text_fn *,
                     void *ctx, struct systole_answer *answer, char *err, size_t err_len);

/* A conversation by the model's chat template. `system` may be NULL. What was said before is not computed again. */
int systole_chat_new(struct systole *, const char *system, struct systole_chat **out, char *err, size_t err_len);
void systole_chat_free(struct systole_chat *);
int systole_chat_ask(struct systole_chat *, const char *message, const struct systole_sampling *, systole_text_fn *,
                     void *ctx, struct systole_answer *answer, char *err, size_t err_len);

/* Token ids of text: writes at most n_max of them, returns how many there are, or -1. */
int32_t systole_tokenize(const struct systole *, const char *text, int add_special, int32_t *ids, int32_t n_max,
                         char *err, size_t err_len);

#ifdef __cplusplus
}
#endif
#endif
