/* request.h - the JSON body of an API call, read and checked. Pure: no engine, no HTTP, so that tests and
 * fuzzers run it.
 *
 * Implements the request objects of OpenAI's API (openai-openapi, "createChatCompletion",
 * "createCompletion", "createEmbedding"), vLLM's extensions by the same names, and /tokenize, /detokenize,
 * /apply-template. A field that would change the answer and is not supported is refused; harmless metadata
 * is accepted; a field nobody knows is ignored and named in the response. Memory and time are bounded by
 * the size of the body; recursion by SY_JSON_DEPTH_MAX. */
#pragma once
#include "base/arena.h"
#include "base/json.h"
#include "engine/output.h"
#include "engine/sample.h"

enum sy_api {
    SY_API_CHAT = 1,
    SY_API_COMPLETION = 2,
    SY_API_EMBEDDING = 4,
    SY_API_TOKENIZE = 8,
    SY_API_DETOKENIZE = 16,
    SY_API_TEMPLATE = 32,
};
enum {
    SY_JSON_DEPTH_MAX = 128,
    SY_CHOICES_MAX = 128,
    SY_PROMPTS_MAX = 2048,
    SY_STOPS_MAX = 4,
    SY_BIASES_MAX = 1024,
    SY_SALT_BYTES_MAX = 256
};

/* What the client is told. status 0: no problem. */
struct sy_problem {
    int status;              /* of HTTP */
    const char *type, *code; /* literals; code may be NULL */
    char param[96];          /* empty: none */
    char message[512];
    int retry_s; /* Retry-After; 0: none */
};
/* Fill in a problem, unless there is one already. Returns false, so that a reader can `return
 * refuse(...)`. */
bool sy_problem_set(struct sy_problem *, int status, const char *code, const char *param, const char *fmt, ...)
    SY_PRINTF(5, 6);
void sy_problem_json(const struct sy_problem *, struct sy_buf *); /* {"error":{"message",...}} */

struct sy_ask_limits { /* what a body is checked against; borrowed */
    int32_t n_vocab, ctx_len, d_model;
    int32_t choices_max; /* n */
    bool has_tokenizer, has_template;
    bool knows_developer;     /* the chat template has that role; else it becomes "system" */
    const char *const *model; /* the names of the model; [0] is the one it answers with */
    size_t n_model;
    struct sy_sampling defaults; /* of what the body leaves out */
};
struct sy_prompt { /* text, or ids when text is NULL */
    const char *text;
    size_t n_text;
    const int32_t *ids;
    int32_t n_ids;
};
struct sy_ask {
    enum sy_api api;
    struct sy_arena arena;
    struct sy_json *root;
    struct sy_json *messages; /* normalised: parts joined, arguments parsed */
    const struct sy_json *kwargs, *tools;
    struct sy_prompt *prompt; /* of completions, embeddings, tokenize, detokenize */
    int32_t n_prompt;
    /* Scalars of the field table, in its three types. */
    bool stream, include_usage, usage_each, echo, ignore_eos, return_ids, include_stop, skip_special,
        generation_prompt, logprobs_on;
    bool add_special, parse_special, token_strings, add_special_given;
    int64_t n, n_max, n_max_new, n_min, top_logprobs, logprobs, seed, priority, deadline_ms, top_k, dimensions;
    double temperature, top_p, min_p, typical_p, repetition_penalty, presence_penalty, frequency_penalty;
    bool seed_given, base64;
    int pooling;                 /* enum sy_pooling; 0: the server's */
    struct sy_sampling sampling; /* made of the above; seed 0 unless given */
    const char *stop[SY_STOPS_MAX];
    size_t stop_len[SY_STOPS_MAX];
    int n_stop;
    int32_t *stop_id;
    int32_t n_stop_id;
    const char *salt; /* NULL: none */
    size_t n_salt;
    char ignored[256]; /* fields nobody knows, comma-separated */
};
/* Release in every case. True: ask holds a request. False: the problem says why not. */
bool sy_ask_parse(const struct sy_env *, enum sy_api, const char *body, size_t n, const struct sy_ask_limits *,
                  struct sy_ask *, struct sy_problem *);
void sy_ask_release(struct sy_ask *);

/* The properties of a request body as JSON Schema, for openapi.json: from the same table that reads them. */
void sy_ask_schema(enum sy_api, const struct sy_ask_limits *, struct sy_buf *);
