/* embed.c - the public C interface, include/systole.h, over the engine. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/chat.h"
#include "engine/engine.h"
#include "engine/output.h"
#include "systole.h"

struct systole {
    const struct sy_env *env;
    struct sy_engine *engine;
};
struct systole_chat {
    struct systole *model;
    struct sy_json *messages;
};

const char *systole_version(void) { return SY_VERSION; }

static int tell(sy_status st, const struct sy_err *e, char *err, size_t n)
{
    static const int code[] = {
        [SY_OK] = SYSTOLE_OK,           [SY_FULL] = SYSTOLE_EFAILED,   [SY_EIO] = SYSTOLE_EFAILED,
        [SY_EFORMAT] = SYSTOLE_EFORMAT, [SY_ESHAPE] = SYSTOLE_EFORMAT, [SY_ENOSUP] = SYSTOLE_ENOSUP,
        [SY_ENOMEM] = SYSTOLE_ENOMEM,   [SY_ECOMM] = SYSTOLE_EFAILED,  [SY_EARG] = SYSTOLE_EARG};
    if (st && err && n) snprintf(err, n, "%s", e->msg);
    return code[st];
}

static sy_status choice(const char *what, const char *value, const char *const *names, int n, int otherwise, int *out,
                        struct sy_err *err)
{
    *out = otherwise;
    if (!value) return SY_OK;
    for (int i = 0; i < n; i++)
        if (!strcmp(names[i], value)) {
            *out = i;
            return SY_OK;
        }
    char list[64];
    int at = 0;
    for (int i = 0; i < n; i++)
        at += snprintf(list + at, sizeof list - (size_t)at, "%s'%s'", i ? ", " : "", names[i]);
    return sy_fail(err, SY_EARG, "%s: '%s' is not one of %s", what, value, list);
}

int systole_open(const struct systole_options *o, struct systole **out, char *err, size_t err_len)
{
    static const char *const computes[] = {"auto", "f32", "bf16", "int8"}, *const dtypes[] = {"f32", "bf16", "f16",
                                                                                              "q8_0"};
    const struct sy_env *env = sy_env_default();
    struct sy_err e = {0};
    int compute, dtype;
    sy_status st = choice("compute", o->compute, computes, 4, SY_COMPUTE_AUTO, &compute, &e);
    if (!st) st = choice("kv_dtype", o->kv_dtype, dtypes, SY_KV_COUNT, SY_KV_BF16, &dtype, &e);
    if (!st && !o->model) st = sy_fail(&e, SY_EARG, "model: no path given");
    struct systole *m = st ? NULL : sy_new(env, sizeof *m);
    if (!st && !m) st = sy_fail(&e, SY_ENOMEM, "no memory for a model");
    if (!st) {
        struct sy_engine_opt opt = {
            .model = o->model, .backend = o->backend, .ctx_len = o->ctx_size, .batch_tok_max = o->max_batched_tokens};
        opt.backend_opt.n_thread = o->threads;
        opt.backend_opt.compute = (enum sy_compute)compute;
        opt.backend_opt.kv_dtype = (enum sy_kv_dtype)dtype;
        m->env = env;
        st = sy_engine_new(env, &opt, &m->engine, &e);
    }
    if (st) sy_delete(env, m);
    else *out = m;
    return tell(st, &e, err, err_len);
}

void systole_close(struct systole *m)
{
    if (!m) return;
    sy_engine_free(m->engine);
    sy_delete(m->env, m);
}

/* ---- one answer ---------------------------------------------------------------------------------------------- */

struct answering {
    struct sy_engine *engine;
    uint64_t id;
    struct sy_output text;
    struct sy_buf piece;  /* what is given out now */
    struct sy_buf *whole; /* all of it; NULL: not wanted */
    systole_text_fn *on_text;
    void *ctx;
    bool stopped_by_caller, done;
    struct systole_answer a;
};

static void give(struct answering *w)
{
    if (w->piece.len == 0) return;
    if (w->whole) sy_buf_add(w->whole, w->piece.at, w->piece.len);
    if (w->on_text && !w->stopped_by_caller && w->on_text(w->ctx, w->piece.at, w->piece.len))
        w->stopped_by_caller = true;
    sy_buf_clear(&w->piece);
}

static void on_event(void *ctx, const struct sy_event *ev)
{
    struct answering *w = ctx;
    if (w->done) return;
    w->a.cached_tokens = ev->n_cached;
    bool end_token = ev->finish == SY_FINISH_STOP && sy_engine_is_end(w->engine, ev->id);
    w->a.tokens += ev->id >= 0;
    bool matched = ev->id >= 0 && !end_token && sy_output_feed(&w->text, ev->id, &w->piece);
    if (!matched && ev->finish != SY_RUNNING) sy_output_finish(&w->text, &w->piece);
    give(w);
    if (matched || w->stopped_by_caller || ev->finish != SY_RUNNING) {
        w->done = true;
        w->a.finish = matched ? "stop" : w->stopped_by_caller ? "cancelled" : sy_finish_name(ev->finish);
        sy_engine_cancel(w->engine, w->id);
    }
}

static sy_status answer(struct systole *m, const struct sy_ids *ids, const struct systole_sampling *how,
                        struct answering *w, struct sy_err *e)
{
    size_t len[SY_STOP_MAX + 1];
    int n_stop = 0;
    for (; how->stop && how->stop[n_stop] && n_stop <= SY_STOP_MAX; n_stop++) len[n_stop] = strlen(how->stop[n_stop]);
    w->engine = m->engine;
    sy_buf_init(&w->piece, m->env, 0);
    sy_status st = sy_output_init(&w->text, m->env, sy_engine_tokenizer(m->engine), true, how->stop, len, n_stop, e);
    struct sy_request r = {.prompt = ids->at,
                           .n_prompt = (int32_t)ids->n,
                           .n_max = how->max_tokens > 0 ? how->max_tokens : INT32_MAX,
                           .sampling = {.temperature = how->temperature,
                                        .top_k = how->top_k,
                                        .top_p = how->top_p,
                                        .min_p = how->min_p,
                                        .repeat_penalty = how->repeat_penalty,
                                        .presence_penalty = how->presence_penalty,
                                        .frequency_penalty = how->frequency_penalty,
                                        .seed = how->seed,
                                        .n_logprob = -1},
                           .on_event = on_event,
                           .ctx = w};
    w->a.prompt_tokens = r.n_prompt;
    if (!st) st = sy_engine_submit(m->engine, &r, &w->id, e);
    for (bool worked = true; !st && worked;) st = sy_engine_step(m->engine, &worked, e);
    if (!st && w->text.lost) st = sy_fail(e, SY_ENOMEM, "no memory for the answer's text");
    sy_output_release(&w->text);
    sy_buf_release(&w->piece);
    return st;
}

static int finish(sy_status st, const struct answering *w, struct systole_answer *a, const struct sy_err *e,
                  char *err, size_t n)
{
    if (!st && a) *a = w->a;
    return !st && w->stopped_by_caller ? SYSTOLE_STOPPED : tell(st, e, err, n);
}

static sy_status need_text(const struct systole *m, struct sy_err *e)
{
    return sy_engine_tokenizer(m->engine)
               ? SY_OK
               : sy_fail(e, SY_ENOSUP, "the model has no tokenizer: it takes token ids only");
}

int systole_complete(struct systole *m, const char *prompt, const struct systole_sampling *how, systole_text_fn *fn,
                     void *ctx, struct systole_answer *a, char *err, size_t err_len)
{
    struct sy_err e = {0};
    struct sy_ids ids;
    struct answering w = {.on_text = fn, .ctx = ctx};
    sy_ids_init(&ids, m->env);
    sy_status st = need_text(m, &e);
    if (!st)
        st = sy_tokenizer_encode(sy_engine_tokenizer(m->engine), prompt, strlen(prompt), SY_ENCODE_SPECIAL, &ids, &e);
    if (!st) st = answer(m, &ids, how, &w, &e);
    sy_ids_release(&ids);
    return finish(st, &w, a, &e, err, err_len);
}

/* ---- conversations ------------------------------------------------------------------------------------------- */

static sy_status say(struct systole_chat *c, const char *role, const char *text, size_t n, struct sy_err *e)
{
    struct sy_json *m = sy_json_new_object(), *content = sy_json_new_text(text, n);
    if (m && !content) {
        sy_json_free(m);
        return sy_fail(e, SY_EARG, "the message is not valid UTF-8");
    }
    bool ok = m && sy_json_set_take(m, "role", sy_json_new_text(role, strlen(role))) &&
              sy_json_set_take(m, "content", content);
    if (ok && sy_json_push_take(c->messages, m)) return SY_OK;
    if (!ok) sy_json_free(m);
    return sy_fail(e, SY_ENOMEM, "no memory for a message");
}

int systole_chat_new(struct systole *m, const char *system, struct systole_chat **out, char *err, size_t err_len)
{
    struct sy_err e = {0};
    sy_status st = need_text(m, &e);
    if (!st && !sy_engine_template(m->engine)) st = sy_fail(&e, SY_ENOSUP, "the model has no chat template");
    struct systole_chat *c = st ? NULL : sy_new(m->env, sizeof *c);
    if (c) *c = (struct systole_chat){m, sy_json_new_array()};
    if (!st && (!c || !c->messages)) st = sy_fail(&e, SY_ENOMEM, "no memory for a conversation");
    if (!st && system) st = say(c, "system", system, strlen(system), &e);
    if (st) systole_chat_free(c);
    else *out = c;
    return tell(st, &e, err, err_len);
}

void systole_chat_free(struct systole_chat *c)
{
    if (!c) return;
    sy_json_free(c->messages);
    sy_delete(c->model->env, c);
}

int systole_chat_ask(struct systole_chat *c, const char *message, const struct systole_sampling *how,
                     systole_text_fn *fn, void *ctx, struct systole_answer *a, char *err, size_t err_len)
{
    struct systole *m = c->model;
    struct sy_err e = {0};
    struct sy_ids ids;
    struct sy_buf whole;
    struct answering w = {.on_text = fn, .ctx = ctx, .whole = &whole};
    sy_ids_init(&ids, m->env);
    sy_buf_init(&whole, m->env, 0);
    size_t n_before = sy_json_len(c->messages);
    sy_status st = say(c, "user", message, strlen(message), &e);
    struct sy_render r = {.messages = c->messages, .add_generation_prompt = true, .now = (int64_t)time(NULL)};
    sy_chat_tokens(sy_engine_tokenizer(m->engine), &r);
    if (!st) st = sy_chat_encode(m->env, sy_engine_template(m->engine), sy_engine_tokenizer(m->engine), &r, &ids, &e);
    if (!st) st = answer(m, &ids, how, &w, &e);
    if (!st && whole.failed) st = sy_fail(&e, SY_ENOMEM, "no memory for the answer's text");
    if (!st) st = say(c, "assistant", whole.len ? whole.at : "", whole.len, &e);
    if (st) sy_json_truncate(c->messages, n_before); /* the conversation stands as it was before the question */
    sy_buf_release(&whole);
    sy_ids_release(&ids);
    return finish(st, &w, a, &e, err, err_len);
}

int32_t systole_tokenize(const struct systole *m, const char *text, int add_special, int32_t *out, int32_t n_max,
                         char *err, size_t err_len)
{
    struct sy_err e = {0};
    struct sy_ids ids;
    sy_ids_init(&ids, m->env);
    sy_status st = need_text(m, &e);
    if (!st)
        st = sy_tokenizer_encode(sy_engine_tokenizer(m->engine), text, strlen(text),
                                 add_special ? SY_ENCODE_SPECIAL : 0, &ids, &e);
    for (size_t i = 0; !st && i < ids.n && i < (size_t)(n_max > 0 ? n_max : 0); i++) out[i] = ids.at[i];
    int32_t n = st ? -1 : (int32_t)ids.n;
    sy_ids_release(&ids);
    (void)tell(st, &e, err, err_len);
    return n;
}
