/* openapi.c - what this server answers, as OpenAPI 3.1: from the tables of routes and of request fields. */
#include <string.h>

#include "serve/server_int.h"

static const char *schema_of(const struct route *r)
{
    switch (r->kind) {
    case ROUTE_HEALTH:
    case ROUTE_READY: return "Status";
    case ROUTE_MODELS: return "ModelList";
    case ROUTE_MODEL: return "Model";
    case ROUTE_OPENAPI: return "Any";
    case ROUTE_METRICS: return NULL;
    case ROUTE_CALL: break;
    }
    switch (r->api) {
    case SY_API_CHAT: return "Chat";
    case SY_API_COMPLETION: return "Completion";
    case SY_API_EMBEDDING: return "Embeddings";
    case SY_API_TOKENIZE: return "Tokens";
    case SY_API_DETOKENIZE: return "Content";
    case SY_API_TEMPLATE: return "Prompt";
    }
    return NULL;
}

static const char components[] =
    "\"Any\":{\"type\":\"object\"},"
    "\"Status\":{\"type\":\"object\",\"required\":[\"status\"],\"properties\":{\"status\":{\"type\":\"string\"}}},"
    "\"Error\":{\"type\":\"object\",\"required\":[\"error\"],\"properties\":{\"error\":{\"type\":\"object\","
    "\"required\":[\"message\",\"type\",\"param\",\"code\"],\"properties\":{\"message\":{\"type\":\"string\"},"
    "\"type\":{\"type\":\"string\"},"
    "\"param\":{\"type\":[\"string\",\"null\"]},\"code\":{\"type\":[\"string\",\"null\"]}}}}},"
    "\"Message\":{\"type\":\"object\",\"required\":[\"role\",\"content\"],\"properties\":{\"role\":{\"enum\":["
    "\"system\",\"developer\","
    "\"user\",\"assistant\"]},\"content\":{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"minItems\":1,"
    "\"items\":"
    "{\"type\":\"object\",\"required\":[\"type\",\"text\"],\"properties\":{\"type\":{\"enum\":[\"text\"]},\"text\":{"
    "\"type\":\"string\"}}}}]}}},"
    "\"Model\":{\"type\":\"object\",\"required\":[\"id\",\"object\",\"created\",\"owned_by\"],\"properties\":{\"id\":"
    "{\"type\":\"string\"},"
    "\"object\":{\"const\":\"model\"},\"created\":{\"type\":\"integer\"},\"owned_by\":{\"type\":\"string\"},\"max_"
    "model_len\":{\"type\":\"integer\"},\"meta\":{\"type\":\"object\",\"required\":[\"n_vocab\",\"n_ctx_train\",\"n_"
    "embd\","
    "\"n_params\",\"size\"],\"additionalProperties\":{\"type\":\"integer\"}}}},"
    "\"ModelList\":{\"type\":\"object\",\"required\":[\"object\",\"data\"],\"properties\":{\"object\":{\"const\":"
    "\"list\"},\"data\":"
    "{\"type\":\"array\",\"items\":{\"$ref\":\"#/components/schemas/Model\"}}}},"
    "\"Usage\":{\"type\":\"object\",\"required\":[\"prompt_tokens\",\"total_tokens\"],\"properties\":{\"prompt_"
    "tokens\":{\"type\":\"integer\"},"
    "\"completion_tokens\":{\"type\":\"integer\"},\"total_tokens\":{\"type\":\"integer\"},\"prompt_tokens_details\":{"
    "\"type\":\"object\","
    "\"properties\":{\"cached_tokens\":{\"type\":\"integer\"}}}}},"
    "\"Finish\":{\"enum\":[\"stop\",\"length\",\"deadline\",\"cancelled\",null]},"
    "\"Chat\":{\"type\":\"object\",\"required\":[\"id\",\"object\",\"created\",\"model\",\"choices\",\"usage\"],"
    "\"properties\":{"
    "\"id\":{\"type\":\"string\"},\"object\":{\"const\":\"chat.completion\"},\"created\":{\"type\":\"integer\"},"
    "\"model\":{\"type\":\"string\"},"
    "\"choices\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"required\":[\"index\",\"message\",\"logprobs\","
    "\"finish_reason\"],"
    "\"properties\":{\"index\":{\"type\":\"integer\"},\"message\":{\"type\":\"object\",\"required\":[\"role\","
    "\"content\"]},"
    "\"logprobs\":{\"type\":[\"object\",\"null\"]},\"finish_reason\":{\"$ref\":\"#/components/schemas/Finish\"}}}},"
    "\"usage\":{\"$ref\":\"#/components/schemas/Usage\"}}},"
    "\"Completion\":{\"type\":\"object\",\"required\":[\"id\",\"object\",\"created\",\"model\",\"choices\",\"usage\"]"
    ",\"properties\":{"
    "\"id\":{\"type\":\"string\"},\"object\":{\"const\":\"text_completion\"},\"created\":{\"type\":\"integer\"},"
    "\"model\":{\"type\":\"string\"},"
    "\"choices\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"required\":[\"index\",\"text\",\"logprobs\","
    "\"finish_reason\"],"
    "\"properties\":{\"index\":{\"type\":\"integer\"},\"text\":{\"type\":\"string\"},\"logprobs\":{\"type\":["
    "\"object\",\"null\"]},"
    "\"finish_reason\":{\"$ref\":\"#/components/schemas/Finish\"}}}},\"usage\":{\"$ref\":\"#/components/schemas/"
    "Usage\"}}},"
    "\"Embeddings\":{\"type\":\"object\",\"required\":[\"object\",\"data\",\"model\",\"usage\"],\"properties\":{"
    "\"object\":{\"const\":\"list\"},"
    "\"data\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"required\":[\"object\",\"index\",\"embedding\"],"
    "\"properties\":{"
    "\"object\":{\"const\":\"embedding\"},\"index\":{\"type\":\"integer\"},\"embedding\":{\"oneOf\":[{\"type\":"
    "\"string\"},{\"type\":\"array\","
    "\"items\":{\"type\":\"number\"}}]}}}},\"model\":{\"type\":\"string\"},\"usage\":{\"$ref\":\"#/components/"
    "schemas/Usage\"}}},"
    "\"Tokens\":{\"type\":\"object\",\"required\":[\"tokens\",\"count\",\"max_model_len\"],\"properties\":{"
    "\"tokens\":{\"type\":\"array\","
    "\"items\":{\"type\":\"integer\"}},\"count\":{\"type\":\"integer\"},\"max_model_len\":{\"type\":\"integer\"}}},"
    "\"Content\":{\"type\":\"object\",\"required\":[\"content\"],\"properties\":{\"content\":{\"type\":\"string\"}}},"
    "\"Prompt\":{\"type\":\"object\",\"required\":[\"prompt\"],\"properties\":{\"prompt\":{\"type\":\"string\"}}}";

static void add_errors(const int *status, const char *const *what, size_t n, struct sy_buf *b)
{
    for (size_t i = 0; i < n; i++)
        sy_buf_printf(b,
                      ",\"%d\":{\"description\":\"%s\",\"content\":{\"application/json\":{\"schema\":"
                      "{\"$ref\":\"#/components/schemas/Error\"}}}}",
                      status[i], what[i]);
}

static void add_responses(const struct route *r, struct sy_buf *b)
{
    static const int call_status[] = {400, 401, 403, 404, 408, 413, 429, 431, 503};
    static const char *const call_what[] = {"the request is malformed or asks for what is not supported",
                                            "no valid key",
                                            "a web page of a foreign origin asks",
                                            "no such model",
                                            "the body came too slowly",
                                            "the body is too large",
                                            "the queue is full; Retry-After says when to come back",
                                            "the headers are too large",
                                            "the server is stopping or out of memory"};
    static const int get_status[] = {401, 403, 404, 431, 503};
    static const char *const get_what[] = {"no valid key", "a web page of a foreign origin asks", "there is none",
                                           "the headers are too large",
                                           "the server is stopping or has too many connections"};
    const char *schema = schema_of(r);
    sy_buf_text(b, "\"responses\":{\"200\":{\"description\":\"the answer\",\"content\":{");
    if (schema) sy_buf_printf(b, "\"application/json\":{\"schema\":{\"$ref\":\"#/components/schemas/%s\"}}", schema);
    else sy_buf_text(b, "\"text/plain\":{\"schema\":{\"type\":\"string\"}}");
    if (r->api == SY_API_CHAT || r->api == SY_API_COMPLETION) sy_buf_text(b, ",\"text/event-stream\":{}");
    sy_buf_text(b, "}}");
    if (r->kind == ROUTE_READY)
        sy_buf_text(b,
                    ",\"503\":{\"description\":\"draining or failed\",\"content\":{\"application/json\":{\"schema\":"
                    "{\"$ref\":\"#/components/schemas/Status\"}}}}");
    else if (r->kind == ROUTE_HEALTH)
        sy_buf_text(b, ",\"503\":{\"description\":\"the engine has failed or is "
                       "stuck\",\"content\":{\"application/json\":{\"schema\":"
                       "{\"$ref\":\"#/components/schemas/Status\"}}}}");
    else if (r->kind == ROUTE_CALL) add_errors(call_status, call_what, SY_COUNT(call_status), b);
    else add_errors(get_status, get_what, SY_COUNT(get_status), b);
    sy_buf_char(b, '}');
}

static void add_path(const struct route *r, const struct sy_ask_limits *l, struct sy_buf *b)
{
    bool call = r->kind == ROUTE_CALL, open = r->kind == ROUTE_HEALTH || r->kind == ROUTE_READY;
    sy_buf_printf(b, "\"%s%s\":{\"%s\":{\"summary\":\"%s\",", r->path, r->kind == ROUTE_MODEL ? "{model}" : "",
                  call ? "post" : "get", r->summary);
    if (!open) sy_buf_text(b, "\"security\":[{},{\"key\":[]}],");
    if (r->kind == ROUTE_MODEL)
        sy_buf_text(b, "\"parameters\":[{\"name\":\"model\",\"in\":\"path\",\"required\":true,\"schema\":{\"type\":"
                       "\"string\"}}],");
    if (call) {
        sy_buf_text(b, "\"requestBody\":{\"required\":true,\"content\":{\"application/json\":{\"schema\":");
        sy_ask_schema(r->api, l, b);
        sy_buf_text(b, "}}},");
    }
    add_responses(r, b);
    sy_buf_text(b, "}}");
}

void route_openapi(const struct sy_server *srv, struct sy_buf *b)
{
    sy_buf_text(
        b,
        "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"Systole\",\"version\":\"" SY_VERSION "\",\"description\":"
        "\"OpenAI's API and what engines add to it. A field that is null counts as left out; fields nobody knows are "
        "ignored and named in the response header X-Ignored-Fields.\"},\"paths\":{");
    for (const struct route *r = routes; r->path; r++) {
        if (r != routes) sy_buf_char(b, ',');
        add_path(r, &srv->service.limits, b);
    }
    sy_buf_text(
        b, "},\"components\":{\"securitySchemes\":{\"key\":{\"type\":\"http\",\"scheme\":\"bearer\"}},\"schemas\":{");
    sy_buf_text(b, components);
    sy_buf_text(b, "}}}");
}
