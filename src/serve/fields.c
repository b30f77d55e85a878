/* fields.c - the table of what bodies may hold: what request.c reads and openapi.json says. */
#include <stdio.h>
#include <string.h>

#include "engine/loop.h"
#include "serve/request_int.h"

enum {
    CHAT = SY_API_CHAT,
    COMP = SY_API_COMPLETION,
    EMB = SY_API_EMBEDDING,
    TOK = SY_API_TOKENIZE,
    DETOK = SY_API_DETOKENIZE,
    TPL = SY_API_TEMPLATE,
    GEN = CHAT | COMP,
    ALL = CHAT | COMP | EMB | TOK | DETOK | TPL,
};

static const char *own_param(const char *name, size_t i, char out[static 96])
{
    snprintf(out, 96, "%s[%zu]", name, i);
    return out;
}

/* ---- prompts ----------------------------------------------------------------------------------------------------
 */

static bool read_ids(struct reader *r, const char *name, const struct sy_json *v, struct sy_prompt *p)
{
    size_t n = sy_json_len(v);
    int32_t *ids = n < INT32_MAX ? sy_arena_array(&r->ask->arena, n + 1, sizeof *ids) : NULL;
    if (!ids) return request_no_memory(r);
    char at[96];
    for (size_t i = 0; i < n; i++)
        if (!request_id(r, own_param(name, i, at), sy_json_at(v, i), &ids[i])) return false;
    *p = (struct sy_prompt){.ids = ids, .n_ids = (int32_t)n};
    return n ? true : request_refuse(r, name, "expected at least one token, found none");
}

static bool read_text(struct reader *r, const char *name, const struct sy_json *v, struct sy_prompt *p)
{
    if (!r->limits->has_tokenizer)
        return request_refuse(r, name, "this model has no tokenizer: expected token ids, found text");
    p->text = sy_json_text_n(v, &p->n_text);
    if (p->n_text == 0 && r->ask->api == SY_API_EMBEDDING)
        return request_refuse(r, name, "expected some text, found none");
    return true;
}

static bool read_prompts(struct reader *r, const char *name, const struct sy_json *v)
{
    const struct sy_json *first = sy_json_at(v, 0);
    bool many = sy_json_is_array(v) && !sy_json_is_number(first);
    size_t n = many ? sy_json_len(v) : 1;
    if (!sy_json_is_array(v) && !sy_json_is_text(v))
        return request_refuse(
            r, name, "expected a string, an array of strings, of token ids, or of arrays of token ids, found %s",
            request_kind(v));
    if (n == 0) return request_refuse(r, name, "expected at least one prompt, found none");
    if (n > SY_PROMPTS_MAX) return request_refuse(r, name, "at most %d prompts, found %zu", SY_PROMPTS_MAX, n);
    r->ask->prompt = sy_arena_array(&r->ask->arena, n, sizeof *r->ask->prompt);
    if (!r->ask->prompt) return request_no_memory(r);
    r->ask->n_prompt = (int32_t)n;
    if (!many)
        return sy_json_is_text(v) ? read_text(r, name, v, r->ask->prompt) : read_ids(r, name, v, r->ask->prompt);
    char at[96];
    for (size_t i = 0; i < n; i++) {
        const struct sy_json *p = sy_json_at(v, i);
        own_param(name, i, at);
        bool ok =
            sy_json_is_text(p) ? read_text(r, at, p, &r->ask->prompt[i])
            : sy_json_is_array(p)
                ? read_ids(r, at, p, &r->ask->prompt[i])
                : request_refuse(r, at, "expected a string or an array of token ids, found %s", request_kind(p));
        if (!ok) return false;
    }
    return true;
}

static bool read_prompt(struct reader *r, const struct sy_json *v) { return read_prompts(r, "prompt", v); }
static bool read_input(struct reader *r, const struct sy_json *v) { return read_prompts(r, "input", v); }

static bool read_one_text(struct reader *r, const char *name, const struct sy_json *v)
{
    if (!sy_json_is_text(v)) return request_refuse(r, name, "expected a string, found %s", request_kind(v));
    r->ask->prompt = sy_arena_get(&r->ask->arena, sizeof *r->ask->prompt);
    if (!r->ask->prompt) return request_no_memory(r);
    r->ask->n_prompt = 1;
    return read_text(r, name, v, r->ask->prompt);
}

static bool read_content(struct reader *r, const struct sy_json *v) { return read_one_text(r, "content", v); }

/* vLLM's name for /tokenize, where BOS is added unless told otherwise. */
static bool read_tokenize_prompt(struct reader *r, const struct sy_json *v)
{
    if (r->ask->n_prompt) return request_refuse(r, "prompt", "expected 'content' or 'prompt', found both");
    if (!r->ask->add_special_given) r->ask->add_special = true;
    return read_one_text(r, "prompt", v);
}

static bool read_tokens(struct reader *r, const struct sy_json *v)
{
    if (!sy_json_is_array(v))
        return request_refuse(r, "tokens", "expected an array of token ids, found %s", request_kind(v));
    r->ask->prompt = sy_arena_get(&r->ask->arena, sizeof *r->ask->prompt);
    if (!r->ask->prompt) return request_no_memory(r);
    r->ask->n_prompt = 1;
    if (sy_json_len(v) == 0) return true;
    return read_ids(r, "tokens", v, r->ask->prompt);
}

static bool read_add_special(struct reader *r, const struct sy_json *v)
{
    if (!sy_json_is_bool(v))
        return request_refuse(r, "add_special", "expected true or false, found %s", request_kind(v));
    r->ask->add_special = sy_json_bool(v, false);
    r->ask->add_special_given = true;
    return true;
}

/* ---- what is generated --------------------------------------------------------------------------------------------
 */

static bool read_model(struct reader *r, const struct sy_json *v)
{
    const char *name = sy_json_text(v);
    if (!name) return request_refuse(r, "model", "expected a string, found %s", request_kind(v));
    for (size_t i = 0; i < r->limits->n_model; i++)
        if (!strcmp(name, r->limits->model[i])) return true;
    return sy_problem_set(r->problem, 404, "model_not_found", "model",
                          "the model '%.80s' does not exist; this server has '%.200s'", name, r->limits->model[0]);
}

static bool read_stop(struct reader *r, const struct sy_json *v)
{
    struct sy_ask *a = r->ask;
    size_t n = sy_json_is_array(v) ? sy_json_len(v) : 1;
    if (!sy_json_is_array(v) && !sy_json_is_text(v))
        return request_refuse(r, "stop", "expected a string or an array of strings, found %s", request_kind(v));
    if (n > SY_STOPS_MAX) return request_refuse(r, "stop", "at most %d strings, found %zu", SY_STOPS_MAX, n);
    if (n && !r->limits->has_tokenizer)
        return request_refuse(r, "stop", "this model has no tokenizer: use 'stop_token_ids'");
    for (size_t i = 0; i < n; i++) {
        const struct sy_json *s = sy_json_is_array(v) ? sy_json_at(v, i) : v;
        if (!sy_json_is_text(s)) return request_refuse(r, "stop", "expected strings, found %s", request_kind(s));
        a->stop[i] = sy_json_text_n(s, &a->stop_len[i]);
        if (a->stop_len[i] == 0) return request_refuse(r, "stop", "an empty string would end every answer at once");
        if (a->stop_len[i] > SY_STOP_BYTES_MAX)
            return request_refuse(r, "stop", "at most %d bytes a string, found %zu", SY_STOP_BYTES_MAX,
                                  a->stop_len[i]);
    }
    a->n_stop = (int)n;
    return true;
}

static bool read_stop_ids(struct reader *r, const struct sy_json *v)
{
    struct sy_ask *a = r->ask;
    size_t n = sy_json_len(v);
    if (!sy_json_is_array(v))
        return request_refuse(r, "stop_token_ids", "expected an array of token ids, found %s", request_kind(v));
    if (n > 256) return request_refuse(r, "stop_token_ids", "at most 256 ids, found %zu", n);
    if (!(a->stop_id = sy_arena_array(&a->arena, n + 1, sizeof *a->stop_id))) return request_no_memory(r);
    char at[96];
    for (size_t i = 0; i < n; i++)
        if (!request_id(r, own_param("stop_token_ids", i, at), sy_json_at(v, i), &a->stop_id[i])) return false;
    a->n_stop_id = (int32_t)n;
    return true;
}

static bool read_bias(struct reader *r, const struct sy_json *v)
{
    size_t n = sy_json_len(v), i = 0;
    if (!sy_json_is_object(v))
        return request_refuse(r, "logit_bias", "expected an object, found %s", request_kind(v));
    if (n > SY_BIASES_MAX) return request_refuse(r, "logit_bias", "at most %d tokens, found %zu", SY_BIASES_MAX, n);
    struct sy_bias *b = sy_arena_array(&r->ask->arena, n + 1, sizeof *b);
    if (!b) return request_no_memory(r);
    const char *key;
    const struct sy_json *value;
    for (void *it = NULL; (it = sy_json_next(v, it, &key, &value)); i++) {
        long id = 0;
        size_t digits = 0;
        while (key[digits] >= '0' && key[digits] <= '9' && digits < 10) id = 10 * id + (key[digits++] - '0');
        if (!digits || key[digits] || id >= r->limits->n_vocab)
            return request_refuse(r, "logit_bias", "expected token ids below %d as keys, found '%.40s'",
                                  r->limits->n_vocab, key);
        double bias = sy_json_number(value, 1e9);
        if (!(bias >= -100 && bias <= 100))
            return request_refuse(r, "logit_bias", "expected numbers from -100 to 100, found %s of token %ld",
                                  request_kind(value), id);
        b[i] = (struct sy_bias){(int32_t)id, (float)bias};
    }
    r->ask->sampling.bias = b;
    r->ask->sampling.n_bias = (int32_t)n;
    return true;
}

static bool read_seed(struct reader *r, const struct sy_json *v)
{
    r->ask->seed_given = true;
    return request_int(r, "seed", v, INT64_MIN, INT64_MAX, &r->ask->seed);
}

static bool read_chat_logprobs(struct reader *r, const struct sy_json *v)
{
    if (!sy_json_is_bool(v))
        return request_refuse(r, "logprobs", "expected true or false, found %s", request_kind(v));
    r->ask->logprobs_on = sy_json_bool(v, false);
    return true;
}

/* The old form is a number; false stands for "none" in clients that share code with chat. */
static bool read_completion_logprobs(struct reader *r, const struct sy_json *v)
{
    if (sy_json_is_bool(v)) {
        if (sy_json_bool(v, false))
            return request_refuse(r, "logprobs", "expected an integer from 0 to %d, found true", SY_LOGPROB_MAX);
        return true;
    }
    return request_int(r, "logprobs", v, 0, SY_LOGPROB_MAX, &r->ask->logprobs);
}

static bool read_stream_options(struct reader *r, const struct sy_json *v)
{
    if (!sy_json_is_object(v))
        return request_refuse(r, "stream_options", "expected an object, found %s", request_kind(v));
    const struct sy_json *u = sy_json_get(v, "include_usage");
    if (u && !sy_json_is_null(u) && !sy_json_is_bool(u))
        return request_refuse(r, "stream_options.include_usage", "expected true or false, found %s", request_kind(u));
    const struct sy_json *c = sy_json_get(v, "continuous_usage_stats");
    if (c && !sy_json_is_null(c) && !sy_json_is_bool(c))
        return request_refuse(r, "stream_options.continuous_usage_stats", "expected true or false, found %s",
                              request_kind(c));
    r->ask->include_usage = sy_json_bool(u, false);
    r->ask->usage_each = sy_json_bool(c, false);
    return true;
}

static bool read_salt(struct reader *r, const struct sy_json *v)
{
    r->ask->salt = sy_json_text_n(v, &r->ask->n_salt);
    if (!r->ask->salt || !r->ask->n_salt || r->ask->n_salt > SY_SALT_BYTES_MAX)
        return request_refuse(r, "cache_salt", "expected a string of 1 to %d bytes, found %s", SY_SALT_BYTES_MAX,
                              request_kind(v));
    return true;
}

static bool read_encoding(struct reader *r, const struct sy_json *v)
{
    const char *t = sy_json_text(v);
    if (!t || (strcmp(t, "float") && strcmp(t, "base64")))
        return request_refuse(r, "encoding_format", "expected float or base64, found %s", t ? t : request_kind(v));
    r->ask->base64 = !strcmp(t, "base64");
    return true;
}

static bool read_pooling(struct reader *r, const struct sy_json *v)
{
    const char *t = sy_json_text(v);
    if (!t || (strcmp(t, "mean") && strcmp(t, "last")))
        return request_refuse(r, "pooling", "expected mean or last, found %s", t ? t : request_kind(v));
    r->ask->pooling = strcmp(t, "mean") ? SY_POOL_LAST : SY_POOL_MEAN;
    return true;
}

/* ---- chat ---------------------------------------------------------------------------------------------------------
 */

static bool read_kwargs(struct reader *r, const struct sy_json *v)
{
    if (!sy_json_is_object(v))
        return request_refuse(r, "chat_template_kwargs", "expected an object, found %s", request_kind(v));
    r->ask->kwargs = v;
    return true;
}

/* Templates show tools to the model; the calls it would then make cannot be parsed yet. */
static bool read_tools(struct reader *r, const struct sy_json *v)
{
    const char *choice = sy_json_text(sy_json_get(r->ask->root, "tool_choice"));
    if (!sy_json_is_array(v)) return request_refuse(r, "tools", "expected an array, found %s", request_kind(v));
    if (r->ask->api == SY_API_TEMPLATE) {
        r->ask->tools = v;
        return true;
    }
    if (sy_json_len(v) && (!choice || strcmp(choice, "none")))
        return request_refuse(
            r, "tools",
            "tool calls are not supported by this version; leave 'tools' out or set tool_choice to 'none'");
    return true;
}

static bool read_tool_choice(struct reader *r, const struct sy_json *v)
{
    const char *t = sy_json_text(v);
    if (t && (!strcmp(t, "none") || !strcmp(t, "auto"))) return true; /* auto without tools is none */
    return request_refuse(r, "tool_choice", "tool calls are not supported by this version; expected none, found %s",
                          t ? t : request_kind(v));
}

static bool read_format(struct reader *r, const struct sy_json *v)
{
    const char *t = sy_json_text(sy_json_get(v, "type"));
    if (t && !strcmp(t, "text")) return true;
    return request_refuse(
        r, "response_format",
        "structured output is not supported by this version; expected {\"type\":\"text\"}, found %.40s",
        t ? t : request_kind(v));
}

static bool read_modalities(struct reader *r, const struct sy_json *v)
{
    const char *t = sy_json_text(sy_json_at(v, 0));
    if (sy_json_is_array(v) && sy_json_len(v) == 1 && t && !strcmp(t, "text")) return true;
    return request_refuse(r, "modalities", "only [\"text\"] is supported");
}

static bool read_best_of(struct reader *r, const struct sy_json *v)
{
    int64_t n = 0;
    if (!request_int(r, "best_of", v, 1, SY_CHOICES_MAX, &n)) return false;
    return n == 1 ? true
                  : request_refuse(r, "best_of", "only 1 is supported, found %lld; 'n' gives several answers",
                                   (long long)n);
}

#define PLAIN(k, n, api, member, l, h, open, text)                                                                   \
    {                                                                                                                \
        .name = n, .apis = api, .kind = k, .at = offsetof(struct sy_ask, member), .lo = l, .hi = h, .above = open,   \
        .help = text                                                                                                 \
    }
#define INT(n, api, member, l, h, text)   PLAIN(FIELD_INT, n, api, member, l, h, false, text)
#define NUM(n, api, member, l, h, text)   PLAIN(FIELD_NUM, n, api, member, l, h, false, text)
#define ABOVE(n, api, member, l, h, text) PLAIN(FIELD_NUM, n, api, member, l, h, true, text)
#define BOOL(n, api, member, text)        PLAIN(FIELD_BOOL, n, api, member, 0, 1, false, text)
#define OTHER(n, api, fn, json, text)                                                                                \
    {                                                                                                                \
        .name = n, .apis = api, .kind = FIELD_OTHER, .read = fn, .schema = json, .help = text                        \
    }
#define REFUSED(n, api)                                                                                              \
    {                                                                                                                \
        .name = n, .apis = api, .kind = FIELD_REFUSED                                                                \
    }
#define NEUTRAL(n, api)                                                                                              \
    {                                                                                                                \
        .name = n, .apis = api, .kind = FIELD_NEUTRAL                                                                \
    }

#define IDS  "\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":~}"
#define TEXT "\"type\":\"string\",\"minLength\":1"
#define PROMPTS                                                                                                      \
    "\"oneOf\":[{" TEXT "},{\"type\":\"array\",\"minItems\":1,\"items\":{" TEXT "}},"                                \
    "{" IDS ",\"minItems\":1},{\"type\":\"array\",\"minItems\":1,\"items\":{" IDS ",\"minItems\":1}}]"

/* Order matters once: what read_tokenize_prompt and read_tools look at. request.c walks this table, not
 * the body. */
/* clang-format off */
const struct field request_fields[] = {
    OTHER("model", CHAT | COMP | EMB | TOK | DETOK | TPL, read_model, "\"type\":\"string\"",
          "a name that /v1/models lists; may be left out"),
    OTHER("messages", CHAT | TPL, request_messages,
          "\"type\":\"array\",\"minItems\":1,\"items\":{\"$ref\":\"#/components/schemas/Message\"}",
          "the conversation so far"),
    OTHER("prompt", COMP, read_prompt, PROMPTS, "text or token ids, one prompt or several"),
    OTHER("input", EMB, read_input, PROMPTS, "text or token ids, one input or several"),
    OTHER("add_special", TOK, read_add_special, "\"type\":\"boolean\"",
          "add BOS and the like; default false, with 'prompt' true"),
    OTHER("add_special_tokens", TOK, read_add_special, "\"type\":\"boolean\"", "vLLM's name of add_special"),
    OTHER("content", TOK, read_content, "\"type\":\"string\"", "the text"),
    OTHER("prompt", TOK, read_tokenize_prompt, "\"type\":\"string\"", "vLLM's name of content"),
    BOOL("parse_special", TOK, parse_special, "recognise control tokens written in the text; default true"),
    BOOL("return_token_strs", TOK, token_strings, "answer the tokens' texts too"),
    OTHER("tokens", DETOK, read_tokens, IDS, "token ids"),
    BOOL("skip_special", DETOK, skip_special, "leave special tokens out of the text; default false"),

    INT("max_tokens", CHAT, n_max, 1, 1 << 30, "most tokens to generate; what fits the context when left out"),
    INT("max_tokens", COMP, n_max, 0, 1 << 30, "most tokens to generate; 16 when left out, 0 only scores the prompt"),
    INT("max_completion_tokens", CHAT, n_max_new, 1, 1 << 30, "the same; wins over max_tokens"),
    INT("min_tokens", GEN, n_min, 0, 1 << 30, "end tokens are barred before that many"),
    INT("n", GEN, n, 1, SY_CHOICES_MAX, "answers to each prompt"),
    BOOL("stream", GEN, stream, "answer as server-sent events"),
    OTHER("stream_options", GEN, read_stream_options,
          "\"type\":\"object\",\"properties\":{\"include_usage\":{\"type\":\"boolean\"},"
          "\"continuous_usage_stats\":{\"type\":\"boolean\"}}",
          "include_usage: one last chunk holds the token counts; with continuous_usage_stats too, each holds "
          "those so far"),
    NUM("temperature", GEN, temperature, 0, 2, "0 takes the likeliest token always"),
    ABOVE("top_p", GEN, top_p, 0, 1, "draw among the likeliest tokens that make up this probability"),
    NUM("min_p", GEN, min_p, 0, 1, "drop tokens less likely than this share of the likeliest one's probability"),
    ABOVE("typical_p", GEN, typical_p, 0, 1, "locally typical sampling; 1: off"),
    INT("top_k", GEN, top_k, -1, 1 << 24, "draw among that many likeliest tokens; 0 and -1: all"),
    NUM("presence_penalty", GEN, presence_penalty, -2, 2, "subtracted from the logits of tokens that the answer has"),
    NUM("frequency_penalty", GEN, frequency_penalty, -2, 2, "the same, for every time the answer has the token"),
    ABOVE("repetition_penalty", GEN, repetition_penalty, 0, 10,
          "above 1: makes tokens of prompt and answer less likely"),
    OTHER("seed", GEN, read_seed, "\"type\":\"integer\"", "the same seed and request give the same answer"),
    OTHER("stop", GEN, read_stop,
          "\"oneOf\":[{\"type\":\"string\",\"minLength\":1},{\"type\":\"array\",\"maxItems\":4,\"items\":{\"type\":"
          "\"string\",\"minLength\":1}}]",
          "end the answer before any of these; the tokens that held them count in usage"),
    OTHER("stop_token_ids", GEN, read_stop_ids, IDS ",\"maxItems\":256", "further tokens that end the answer"),
    BOOL("include_stop_str_in_output", GEN, include_stop, "keep what ended the answer in its text"),
    BOOL("ignore_eos", GEN, ignore_eos, "go on after an end token"),
    BOOL("skip_special_tokens", GEN, skip_special, "leave special tokens out of the text; default true"),
    OTHER("logit_bias", GEN, read_bias,
          "\"type\":\"object\",\"additionalProperties\":{\"type\":\"number\",\"minimum\":-100,\"maximum\":100}",
          "added to the logits of these token ids"),
    OTHER("logprobs", CHAT, read_chat_logprobs, "\"type\":\"boolean\"", "log probabilities of the answer's tokens"),
    INT("top_logprobs", CHAT, top_logprobs, 0, SY_LOGPROB_MAX, "and of that many most likely ones; needs logprobs"),
    OTHER("logprobs", COMP, read_completion_logprobs,
          "\"anyOf\":[{\"type\":\"integer\",\"minimum\":0,\"maximum\":20},{\"const\":false}]",
          "log probabilities of the tokens and of that many most likely ones"),
    BOOL("echo", COMP, echo, "the prompt stands before the answer; with logprobs its tokens are scored too"),
    BOOL("return_token_ids", GEN, return_ids, "answer token ids beside the text"),
    INT("deadline_ms", GEN | EMB, deadline_ms, 1, 86400000,
        "what is there after that time is the answer; finish_reason is 'deadline'"),
    INT("priority", GEN | EMB, priority, -1000000, 1000000, "lower runs first"),
    OTHER("cache_salt", GEN | EMB, read_salt, "\"type\":\"string\",\"minLength\":1,\"maxLength\":256",
          "prefixes are shared only between requests of the same salt and key"),
    OTHER("encoding_format", EMB, read_encoding, "\"enum\":[\"float\",\"base64\"]", "how vectors are written"),
    INT("dimensions", EMB, dimensions, 1, 1 << 20, "keep the first components, normalised again"),
    OTHER("pooling", EMB, read_pooling, "\"enum\":[\"mean\",\"last\"]",
          "the mean of all tokens' vectors, or the last one's"),
    BOOL("add_generation_prompt", CHAT | TPL, generation_prompt,
         "end the prompt where the assistant's turn begins; default true"),
    OTHER("chat_template_kwargs", CHAT | TPL, read_kwargs, "\"type\":\"object\"",
          "further variables of the chat template"),
    OTHER("tools", CHAT | TPL, read_tools, "\"type\":\"array\",\"items\":{\"type\":\"object\"}",
          "only with tool_choice 'none' in this version"),
    OTHER("tool_choice", CHAT, read_tool_choice, "\"type\":\"string\",\"enum\":[\"none\",\"auto\"]",
          "only 'none' in this version"),
    OTHER("response_format", GEN, read_format,
          "\"type\":\"object\",\"properties\":{\"type\":{\"enum\":[\"text\"]}},\"required\":[\"type\"]",
          "only text in this version"),
    OTHER("modalities", CHAT, read_modalities,
          "\"type\":\"array\",\"items\":{\"enum\":[\"text\"]},\"minItems\":1,\"maxItems\":1", "only text"),
    OTHER("best_of", COMP, read_best_of, "\"type\":\"integer\",\"minimum\":1,\"maximum\":1", "only 1"),

    REFUSED("functions", CHAT), REFUSED("function_call", CHAT), REFUSED("audio", CHAT), REFUSED("prediction", CHAT),
    REFUSED("web_search_options", CHAT), REFUSED("verbosity", CHAT), REFUSED("documents", CHAT),
    REFUSED("continue_final_message", CHAT | TPL), REFUSED("chat_template", CHAT | TPL), REFUSED("suffix", COMP),
    REFUSED("mm_processor_kwargs", CHAT), REFUSED("use_beam_search", GEN), REFUSED("length_penalty", GEN),
    REFUSED("truncate_prompt_tokens", GEN | EMB), REFUSED("prompt_logprobs", GEN), REFUSED("logits_processors", GEN),
    REFUSED("structured_outputs", GEN), REFUSED("guided_json", GEN), REFUSED("guided_regex", GEN),
    REFUSED("guided_choice", GEN), REFUSED("guided_grammar", GEN), REFUSED("grammar", GEN),
    REFUSED("json_schema", GEN), REFUSED("bad_words", GEN),
    REFUSED("allowed_token_ids", GEN), REFUSED("prompt_embeds", COMP), REFUSED("mirostat", GEN),
    REFUSED("dry_multiplier", GEN), REFUSED("xtc_probability", GEN), REFUSED("dynatemp_range", GEN),

    NEUTRAL("user", ALL), NEUTRAL("store", GEN), NEUTRAL("metadata", GEN), NEUTRAL("service_tier", GEN),
    NEUTRAL("safety_identifier", GEN), NEUTRAL("prompt_cache_key", GEN), NEUTRAL("prompt_cache_retention", GEN),
    NEUTRAL("parallel_tool_calls", CHAT), NEUTRAL("request_id", ALL), NEUTRAL("cache_prompt", GEN),
    {0},
};
/* clang-format on */

static void add_type(const struct field *f, const struct sy_ask_limits *l, bool required, struct sy_buf *b)
{
    static const char *const kinds[] = {[FIELD_BOOL] = "boolean", [FIELD_INT] = "integer", [FIELD_NUM] = "number"};
    if (f->kind == FIELD_OTHER) {
        if (!required) sy_buf_text(b, "\"anyOf\":[{\"type\":\"null\"},{");
        for (const char *s = f->schema; *s; s++) {
            if (*s == '~') sy_buf_printf(b, "%d", l->n_vocab - 1);
            else sy_buf_char(b, *s);
        }
        if (!required) sy_buf_text(b, "}]");
        return;
    }
    sy_buf_printf(b, "\"type\":[\"%s\",\"null\"]", kinds[f->kind]);
    if (f->kind == FIELD_BOOL) return;
    double hi = !strcmp(f->name, "n") ? l->choices_max : !strcmp(f->name, "dimensions") ? l->d_model : f->hi;
    sy_buf_printf(b, ",\"%s\":%.15g,\"maximum\":%.15g", f->above ? "exclusiveMinimum" : "minimum", f->lo, hi);
}

#define RULE(field, value, other)                                                                                    \
    "{\"if\":{\"required\":[\"" field "\"],\"properties\":{\"" field "\":" value "}},"                               \
    "\"then\":{\"required\":[\"" other "\"],\"properties\":{\"" other "\":{\"const\":true}}}}"
#define TOP_RULE RULE("top_logprobs", "{\"type\":\"integer\"}", "logprobs")
#define USAGE_RULE                                                                                                   \
    RULE("stream_options",                                                                                           \
         "{\"type\":\"object\",\"required\":[\"include_usage\"],\"properties\":{\"include_usage\":{\"const\":true}}" \
         "}",                                                                                                        \
         "stream")

void sy_ask_schema(enum sy_api api, const struct sy_ask_limits *l, struct sy_buf *b)
{
    static const char *const required[] = {[SY_API_CHAT] = "messages",
                                           [SY_API_COMPLETION] = "prompt",
                                           [SY_API_EMBEDDING] = "input",
                                           [SY_API_DETOKENIZE] = "tokens",
                                           [SY_API_TEMPLATE] = "messages"};
    /* What fields ask of each other. */
    static const char *const rules[] = {
        [SY_API_TOKENIZE] =
            ",\"oneOf\":[{\"required\":[\"content\"],\"properties\":{\"content\":{\"type\":\"string\"}}},"
            "{\"required\":[\"prompt\"],\"properties\":{\"prompt\":{\"type\":\"string\"}}}]",
        [SY_API_COMPLETION] = ",\"allOf\":[" USAGE_RULE "]",
        [SY_API_CHAT] = ",\"allOf\":[" USAGE_RULE "," TOP_RULE "]",
    };
    sy_buf_text(b, "{\"type\":\"object\"");
    const char *must = (size_t)api < SY_COUNT(required) ? required[api] : NULL;
    if (must) sy_buf_printf(b, ",\"required\":[\"%s\"]", must);
    if ((size_t)api < SY_COUNT(rules) && rules[api]) sy_buf_text(b, rules[api]);
    sy_buf_text(b, ",\"properties\":{");
    bool first = true;
    for (const struct field *f = request_fields; f->name; f++) {
        if (!(f->apis & api) || !f->help) continue;
        bool needed = must && !strcmp(f->name, must);
        sy_buf_printf(b, "%s\"%s\":{", first ? "" : ",", f->name);
        first = false;
        add_type(f, l, needed, b);
        sy_buf_text(b, ",\"description\":");
        sy_json_quote(b, f->help, strlen(f->help));
        sy_buf_char(b, '}');
    }
    sy_buf_text(b, "}}");
}
