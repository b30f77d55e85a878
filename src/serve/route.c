/* route.c - what answers where. */
#include <stdio.h>
#include <string.h>

#include "serve/server_int.h"

const struct route routes[] = {
    {"/health", ROUTE_HEALTH, 0, "is the process alive"},
    {"/ready", ROUTE_READY, 0, "does it take work"},
    {"/v1/chat/completions", ROUTE_CALL, SY_API_CHAT, "answer a conversation"},
    {"/v1/completions", ROUTE_CALL, SY_API_COMPLETION, "continue a text, or score it"},
    {"/v1/embeddings", ROUTE_CALL, SY_API_EMBEDDING, "a vector for each text"},
    {"/v1/models", ROUTE_MODELS, 0, "the model"},
    {"/v1/models/", ROUTE_MODEL, 0, "the model by name"},
    {"/tokenize", ROUTE_CALL, SY_API_TOKENIZE, "text to token ids"},
    {"/detokenize", ROUTE_CALL, SY_API_DETOKENIZE, "token ids to text"},
    {"/apply-template", ROUTE_CALL, SY_API_TEMPLATE, "a conversation as the prompt the model gets"},
    {"/metrics", ROUTE_METRICS, 0, "Prometheus metrics"},
    {"/openapi.json", ROUTE_OPENAPI, 0, "this description"},
    {0},
};

const struct route *route_find(const char *path, const char **tail)
{
    for (const struct route *r = routes; r->path; r++) {
        size_t n = strlen(r->path);
        bool found = r->kind == ROUTE_MODEL ? !strncmp(path, r->path, n) && path[n] : !strcmp(path, r->path);
        *tail = path + n;
        if (found) return r;
    }
    return NULL;
}

/* llama-server's names. */
static void add_meta(const struct sy_engine *e, struct sy_buf *b)
{
    const struct sy_checkpoint *c = sy_engine_checkpoint(e);
    const struct sy_info *info = &sy_engine_plan(e)->info;
    double params = 0, bytes = 0;
    for (size_t i = 0; i < sy_checkpoint_count(c); i++) {
        const struct sy_tensor *t = sy_checkpoint_at(c, i);
        params += (double)t->dim[0] * (double)t->dim[1] * (double)t->dim[2] * (double)t->dim[3];
        bytes += (double)t->n_bytes;
    }
    sy_buf_printf(b, ",\"meta\":{\"n_vocab\":%d,\"n_ctx_train\":%d,\"n_embd\":%d,\"n_params\":%.0f,\"size\":%.0f}}",
                  info->n_vocab, info->n_ctx, info->d_model, params, bytes);
}

static void add_model(const struct sy_server *srv, struct sy_buf *b)
{
    const char *id = srv->opt.names[0];
    sy_buf_text(b, "{\"id\":");
    sy_json_quote(b, id, strlen(id));
    sy_buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"systole\",\"max_model_len\":%d",
                  (long long)srv->service.started, srv->service.limits.ctx_len);
    add_meta(srv->engine, b);
}

static bool is_name(const struct sy_server *srv, const char *name)
{
    for (size_t i = 0; i < srv->opt.n_name; i++)
        if (!strcmp(name, srv->opt.names[i])) return true;
    return false;
}

static void status(struct req *r, int code, const char *what)
{
    r->status = code;
    sy_buf_printf(&r->out, "{\"status\":\"%s\"}", what);
}

void route_answer(struct req *r)
{
    struct sy_server *srv = r->srv;
    bool failed = sy_loop_failed(srv->loop), stuck = atomic_load(&srv->stuck);
    r->status = 200;
    r->type = "application/json";
    switch (r->route->kind) {
    case ROUTE_HEALTH: status(r, failed || stuck ? 503 : 200, failed ? "failed" : stuck ? "stuck" : "ok"); break;
    case ROUTE_READY: {
        bool draining = atomic_load(&srv->draining);
        status(r, failed || stuck || draining ? 503 : 200,
               failed     ? "failed"
               : stuck    ? "stuck"
               : draining ? "draining"
                          : "ready");
        break;
    }
    case ROUTE_MODELS:
        sy_buf_text(&r->out, "{\"object\":\"list\",\"data\":[");
        add_model(srv, &r->out);
        sy_buf_text(&r->out, "]}");
        break;
    case ROUTE_MODEL:
        if (is_name(srv, r->tail)) add_model(srv, &r->out);
        else
            sy_problem_set(&r->problem, 404, "model_not_found", "model",
                           "the model '%.80s' does not exist; this server has '%.200s'", r->tail, srv->opt.names[0]);
        break;
    case ROUTE_METRICS:
        r->type = "text/plain; version=0.0.4; charset=utf-8";
        route_metrics(srv, &r->out);
        break;
    case ROUTE_OPENAPI: route_openapi(srv, &r->out); break;
    case ROUTE_CALL: break;
    }
}
