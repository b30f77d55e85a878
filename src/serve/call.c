#include "serve/call.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "engine/chat.h"

/* ---- the service --------------------------------------------------------------------------------------------- */

static float number_or(const struct sy_json *config, const char *key, double lo, double hi, float otherwise)
{
    double v = sy_json_number(sy_json_get(config, key), -1);
    return v >= lo && v <= hi ? (float)v : otherwise;
}

/* What a body leaves out: the model's generation_config.json, or OpenAI's defaults. */
static struct sy_sampling defaults_of(const struct sy_engine *e)
{
    const struct sy_json *g = sy_checkpoint_generation(sy_engine_checkpoint(e));
    struct sy_sampling s = {.temperature = number_or(g, "temperature", 0, 2, 1),
                            .top_p = number_or(g, "top_p", 1e-6, 1, 1),
                            .min_p = number_or(g, "min_p", 0, 1, 0),
                            .typical_p = number_or(g, "typical_p", 1e-6, 1, 1),
                            .repeat_penalty = number_or(g, "repetition_penalty", 1e-6, 10, 1)};
    int64_t k = sy_json_int(sy_json_get(g, "top_k"), 0);
    s.top_k = k > 0 && k < 1 << 24 ? (int32_t)k : 0;
    return s;
}

void sy_service_init(struct sy_service *s, const struct sy_env *env, const struct sy_engine *e, struct sy_loop *loop,
                     const char *const *names, size_t n_name, enum sy_pooling pooling)
{
    const struct sy_engine_plan *p = sy_engine_plan(e);
    size_t n = 0;
    const char *tpl = sy_checkpoint_chat_template(sy_engine_checkpoint(e), &n);
    *s = (struct sy_service){.env = env,
                             .engine = e,
                             .loop = loop,
                             .pooling = pooling,
                             .started = (int64_t)time(NULL),
                             .names = names,
                             .n_name = n_name};
    s->limits = (struct sy_ask_limits){.n_vocab = p->info.n_vocab,
                                       .ctx_len = p->ctx_len,
                                       .d_model = p->info.d_model,
                                       .choices_max = p->seq_max < SY_CHOICES_MAX ? p->seq_max : SY_CHOICES_MAX,
                                       .has_tokenizer = sy_engine_tokenizer(e) != NULL,
                                       .has_template = sy_engine_template(e) != NULL,
                                       .knows_developer = tpl && memmem(tpl, n, "developer", 9),
                                       .model = names,
                                       .n_model = n_name,
                                       .defaults = defaults_of(e)};
}

/* ---- prompts ------------------------------------------------------------------------------------------------- */

static bool generates(const struct sy_call *c)
{
    return c->ask.api == SY_API_CHAT || c->ask.api == SY_API_COMPLETION;
}

/* A library's failure as the client sees it: no file names of this machine. */
static bool pass_on(struct sy_call *c, const char *param, sy_status st, const struct sy_err *err)
{
    const char *path = sy_checkpoint_path(sy_engine_checkpoint(c->service->engine));
    char text[sizeof err->msg], *at;
    snprintf(text, sizeof text, "%s", err->msg);
    while (path && *path && (at = strstr(text, path))) memmove(at, at + strlen(path), strlen(at + strlen(path)) + 1);
    int status = st == SY_ENOMEM ? 503 : st == SY_FULL ? 429 : st == SY_EIO ? 503 : st == SY_ECOMM ? 500 : 400;
    const char *code = status == 429   ? "queue_full"
                       : status == 503 ? "unavailable"
                       : status == 500 ? "internal_error"
                                       : "invalid_value";
    sy_problem_set(&c->problem, status, code, status == 400 ? param : NULL, "%s", text);
    if (status == 429) c->problem.retry_s = 1;
    return false;
}

static void fill_render(struct sy_call *c, struct sy_render *r)
{
    struct tm local;
    time_t now = time(NULL);
    *r = (struct sy_render){.messages = c->ask.messages,
                            .tools = c->ask.tools,
                            .kwargs = c->ask.kwargs,
                            .add_generation_prompt = c->ask.generation_prompt,
                            .now = (int64_t)now + (localtime_r(&now, &local) ? local.tm_gmtoff : 0)};
    sy_chat_tokens(sy_engine_tokenizer(c->service->engine), r);
}

static bool render_text(struct sy_call *c)
{
    struct sy_render r;
    struct sy_rendered text = {0};
    struct sy_err err = {0};
    fill_render(c, &r);
    sy_status st = sy_template_render(sy_engine_template(c->service->engine), c->service->env, &r, &text, &err);
    if (st) return pass_on(c, "messages", st, &err);
    if (text.text.len) sy_buf_add(&c->text, text.text.at, text.text.len);
    sy_rendered_release(&text, c->service->env);
    return true;
}

static sy_status encode(struct sy_call *c, int32_t i, struct sy_err *err)
{
    const struct sy_tokenizer *tok = sy_engine_tokenizer(c->service->engine);
    struct sy_ids *out = &c->item[i].prompt;
    if (c->ask.api == SY_API_CHAT) {
        struct sy_render r;
        fill_render(c, &r);
        return sy_chat_encode(c->service->env, sy_engine_template(c->service->engine), tok, &r, out, err);
    }
    const struct sy_prompt *p = &c->ask.prompt[i];
    if (c->ask.api == SY_API_TOKENIZE) {
        unsigned flags = (c->ask.add_special ? SY_ENCODE_SPECIAL : 0) | (c->ask.parse_special ? 0 : SY_ENCODE_PLAIN);
        return sy_tokenizer_encode(tok, p->text, p->n_text, flags, out, err);
    }
    if (p->text) return sy_text_encode(tok, p->text, p->n_text, out, err);
    sy_status st = SY_OK;
    for (int32_t k = 0; !st && k < p->n_ids; k++) st = sy_ids_push(out, p->ids[k], err);
    return st;
}

static const char *prompt_name(const struct sy_call *c)
{
    return c->ask.api == SY_API_CHAT ? "messages" : c->ask.api == SY_API_EMBEDDING ? "input" : "prompt";
}

static bool check_length(struct sy_call *c, int32_t i)
{
    size_t n = c->item[i].prompt.n, ctx = (size_t)c->service->limits.ctx_len;
    const char *param = prompt_name(c);
    bool answer = generates(c) && c->ask.n_max != 0;
    if (n == 0)
        return sy_problem_set(&c->problem, 400, "invalid_value", param, "%s: expected at least one token, found none",
                              param);
    if (n < ctx || (n == ctx && !answer)) return true;
    return sy_problem_set(&c->problem, 400, "context_length_exceeded", param,
                          "this model's context is %zu tokens, and %s has %zu%s; shorten it", ctx, param, n,
                          n == ctx ? ", which leaves no room for an answer" : "");
}

static bool make_prompts(struct sy_call *c)
{
    struct sy_ask *a = &c->ask;
    if (a->api == SY_API_CHAT) a->n_prompt = 1;
    c->item = sy_arena_array(&a->arena, (size_t)a->n_prompt, sizeof *c->item);
    if (!c->item) return sy_problem_set(&c->problem, 503, "unavailable", NULL, "no memory for this request");
    for (int32_t i = 0; i < a->n_prompt; i++) sy_ids_init(&c->item[i].prompt, c->service->env);
    for (int32_t i = 0; i < a->n_prompt; i++) {
        struct sy_err err = {0};
        sy_status st = encode(c, i, &err);
        if (st) return pass_on(c, a->api == SY_API_CHAT ? "messages" : "prompt", st, &err);
        if ((generates(c) || a->api == SY_API_EMBEDDING) && !check_length(c, i)) return false;
    }
    return true;
}

/* ---- choices ------------------------------------------------------------------------------------------------- */

static bool make_choices(struct sy_call *c)
{
    struct sy_ask *a = &c->ask;
    const struct sy_tokenizer *tok = sy_engine_tokenizer(c->service->engine);
    c->choice = sy_arena_array(&a->arena, (size_t)(a->n_prompt * a->n), sizeof *c->choice);
    if (!c->choice) return sy_problem_set(&c->problem, 503, "unavailable", NULL, "no memory for this request");
    c->n_choice = (int32_t)(a->n_prompt * a->n);
    for (int32_t i = 0; i < c->n_choice; i++) {
        struct sy_choice *k = &c->choice[i];
        struct sy_err err = {0};
        k->stop = -1;
        sy_buf_init(&k->text, c->service->env, 0);
        if (!tok) continue;
        sy_status st =
            sy_output_init(&k->out, c->service->env, tok, a->skip_special, a->stop, a->stop_len, a->n_stop, &err);
        if (st) return pass_on(c, "stop", st, &err);
        k->out.include_stop = a->include_stop;
    }
    return true;
}

static bool note_token(struct sy_call *c, struct sy_choice *k)
{
    if (k->n_token == k->cap) {
        int32_t cap = k->cap ? 2 * k->cap : 64;
        uint32_t *p = sy_resize(c->service->env, k->text_end, (size_t)k->cap * sizeof *p, (size_t)cap * sizeof *p);
        if (!p) return false;
        k->text_end = p;
        k->cap = cap;
    }
    k->text_end[k->n_token++] = (uint32_t)k->text.len;
    return true;
}

static void fail_choice(struct sy_call *c, struct sy_choice *k)
{
    k->finish = SY_FINISH_ERROR;
    sy_problem_set(&c->problem, 503, "unavailable", NULL, "no memory for the answer");
}

/* Takes what the engine thread has published of one reply. */
static void feed_choice(struct sy_call *c, struct sy_choice *k, struct sy_reply *r)
{
    if (k->finish != SY_RUNNING) return;
    enum sy_finish finish = (enum sy_finish)atomic_load_explicit(&r->finish, memory_order_acquire);
    int32_t n = atomic_load_explicit(&r->n, memory_order_acquire);
    bool text = sy_engine_tokenizer(c->service->engine) != NULL;
    while (k->n_token < n) {
        /* The token that ended an answer is counted, but it is no text unless asked for. */
        bool end = k->n_token == atomic_load_explicit(&r->end, memory_order_relaxed) && !c->ask.include_stop;
        bool stopped = text && !end && sy_output_feed(&k->out, r->id[k->n_token], &k->text);
        if (!note_token(c, k) || k->text.failed) {
            fail_choice(c, k);
            return;
        }
        if (stopped) {
            k->finish = SY_FINISH_STOP;
            k->stop = k->out.which;
            return;
        }
    }
    if (finish == SY_RUNNING) return;
    if (text) sy_output_finish(&k->out, &k->text);
    if (text && k->out.stopped) k->stop = k->out.which;
    k->finish = text && k->out.stopped ? SY_FINISH_STOP : finish;
    if (k->text.failed) fail_choice(c, k);
}

/* ---- streams ------------------------------------------------------------------------------------------------- */

static uint64_t random_seed(void)
{
    uint64_t seed = 0;
    while (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
    }
    return seed;
}

static bool make_stream(struct sy_call *c, int32_t i)
{
    const struct sy_ask *a = &c->ask;
    const struct sy_ask_limits *l = &c->service->limits;
    const struct sy_ids *prompt = &c->item[i].prompt;
    int64_t room = l->ctx_len - (int64_t)prompt->n;
    bool embedding = a->api == SY_API_EMBEDDING;
    struct sy_stream_opt o = {
        .request = {.prompt = prompt->at,
                    .n_prompt = (int32_t)prompt->n,
                    .n_max = embedding ? 0 : (int32_t)(a->n_max < 0 || a->n_max > room ? room : a->n_max),
                    .n_min = (int32_t)(a->n_min < room ? a->n_min : room),
                    .n_sample = (int32_t)a->n,
                    .priority = (int32_t)a->priority,
                    .deadline_ns = a->deadline_ms ? c->arrival_ns + (uint64_t)a->deadline_ms * 1000000 : 0,
                    .cache_domain = c->domain,
                    .ignore_eos = a->ignore_eos,
                    .stop_id = a->stop_id,
                    .n_stop_id = a->n_stop_id,
                    .sampling = a->sampling},
        .score_prompt = a->echo && a->logprobs >= 0,
        .n_prompt_top = (int32_t)(a->logprobs > 0 ? a->logprobs : 0),
        .pooling = embedding ? (a->pooling ? (enum sy_pooling)a->pooling : c->service->pooling) : SY_POOL_NONE,
        .n_vocab = l->n_vocab,
        .d_model = l->d_model,
        .arrival_ns = c->arrival_ns,
        .owner = c};
    if (o.request.n_max == 0) o.request.n_sample = 1; /* n answers of nothing are the same nothing */
    if (!a->seed_given) o.request.sampling.seed = random_seed();
    struct sy_err err = {0};
    sy_status st = sy_stream_new(c->service->env, &o, &c->item[i].stream, &err);
    return st ? pass_on(c, NULL, st, &err) : true;
}

bool sy_call_submit(struct sy_call *c)
{
    while (c->n_submitted < c->ask.n_prompt && !c->cancelled && !c->problem.status) {
        struct sy_call_item *it = &c->item[c->n_submitted];
        struct sy_err err = {0};
        if (!it->stream && !make_stream(c, c->n_submitted)) return false;
        sy_status st = sy_loop_submit(c->service->loop, it->stream, &err);
        if (st == SY_FULL && c->n_submitted > 0) return true; /* the rest goes in as its own and others end */
        if (st) return pass_on(c, prompt_name(c), st, &err);
        c->n_submitted++;
    }
    return c->problem.status == 0;
}

bool sy_call_starved(const struct sy_call *c)
{
    return !c->cancelled && !c->problem.status && c->n_submitted < c->ask.n_prompt && c->n_ended == c->n_submitted;
}

static void end_item(struct sy_call *c, struct sy_call_item *it)
{
    it->ended = true;
    c->n_ended++;
    if (atomic_load(&it->stream->reply[0].finish) == SY_FINISH_ERROR) {
        pass_on(c, "prompt", it->stream->error.code ? it->stream->error.code : SY_ECOMM, &it->stream->error);
        sy_call_cancel(c);
    }
}

void sy_call_feed(struct sy_call *c, struct sy_stream *s)
{
    int32_t i = 0, n = (int32_t)c->ask.n, live = 0;
    while (i < c->n_submitted && c->item[i].stream != s) i++;
    if (i == c->n_submitted || c->item[i].ended) return;
    /* Before the replies are read: what ends while they are is news of its own. */
    for (int32_t k = 0; k < s->n_reply; k++)
        live += atomic_load_explicit(&s->reply[k].finish, memory_order_acquire) == SY_RUNNING;
    for (int32_t k = 0; k < n && generates(c); k++) {
        struct sy_choice *choice = &c->choice[i * n + k];
        feed_choice(c, choice, &s->reply[k < s->n_reply ? k : 0]);
        if (live && choice->stop >= 0 && k < s->n_reply)
            sy_loop_stop(s, k); /* a stop string: the engine need not go on */
    }
    if (live && c->problem.status) sy_call_cancel(c);
    if (live) return;
    end_item(c, &c->item[i]);
    if (!sy_call_submit(c)) sy_call_cancel(c);
}

bool sy_call_done(const struct sy_call *c)
{
    return c->n_ended == c->n_submitted && (c->n_submitted == c->ask.n_prompt || c->cancelled || c->problem.status);
}

bool sy_call_started(const struct sy_call *c)
{
    for (int32_t i = 0; i < c->n_choice; i++)
        if (c->choice[i].n_token > 0 || c->choice[i].finish != SY_RUNNING) return true;
    return sy_call_done(c);
}

void sy_call_detach(struct sy_call *c)
{
    for (int32_t i = 0; i < c->n_submitted; i++) c->item[i].stream->owner = NULL;
}

void sy_call_cancel(struct sy_call *c)
{
    c->cancelled = true;
    for (int32_t i = 0; i < c->n_submitted; i++)
        if (!c->item[i].ended) sy_loop_cancel(c->item[i].stream);
}

struct sy_usage sy_call_usage(const struct sy_call *c)
{
    struct sy_usage u = {0};
    for (int32_t i = 0; c->item && i < c->ask.n_prompt; i++) {
        u.prompt += (int64_t)c->item[i].prompt.n;
        if (c->item[i].stream) u.cached += atomic_load_explicit(&c->item[i].stream->n_cached, memory_order_relaxed);
    }
    for (int32_t i = 0; i < c->n_choice; i++) u.completion += c->choice[i].n_token;
    return u;
}

/* ---- life ---------------------------------------------------------------------------------------------------- */

static void make_id(struct sy_call *c)
{
    static const char *const prefix[] = {
        [SY_API_CHAT] = "chatcmpl-", [SY_API_COMPLETION] = "cmpl-", [SY_API_EMBEDDING] = "embd-"};
    const char *p = (size_t)c->ask.api < SY_COUNT(prefix) && prefix[c->ask.api] ? prefix[c->ask.api] : "";
    snprintf(c->id, sizeof c->id, "%s%016llx%016llx", p, (unsigned long long)random_seed(),
             (unsigned long long)random_seed());
}

struct sy_call *sy_call_new(const struct sy_service *s, enum sy_api api, const char *body, size_t n, uint64_t domain,
                            uint64_t arrival_ns, void *owner)
{
    struct sy_call *c = sy_new(s->env, sizeof *c);
    if (!c) return NULL;
    *c = (struct sy_call){.service = s,
                          .created = (int64_t)time(NULL),
                          .domain = domain,
                          .owner = owner,
                          .arrival_ns = arrival_ns ? arrival_ns : sy_now_ns(s->env)};
    sy_buf_init(&c->text, s->env, 0);
    bool ok = sy_ask_parse(s->env, api, body, n, &s->limits, &c->ask, &c->problem);
    make_id(c);
    switch (ok ? api : 0) {
    case SY_API_CHAT:
    case SY_API_COMPLETION:
        if (make_prompts(c)) make_choices(c);
        break;
    case SY_API_EMBEDDING:
    case SY_API_TOKENIZE: make_prompts(c); break;
    case SY_API_TEMPLATE: render_text(c); break;
    default: break;
    }
    return c;
}

void sy_call_free(struct sy_call *c)
{
    if (!c) return;
    sy_call_cancel(c);
    for (int32_t i = 0; c->item && i < c->ask.n_prompt; i++) {
        sy_ids_release(&c->item[i].prompt);
        sy_stream_unref(c->item[i].stream);
    }
    for (int32_t i = 0; i < c->n_choice; i++) {
        sy_output_release(&c->choice[i].out);
        sy_buf_release(&c->choice[i].text);
        sy_delete(c->service->env, c->choice[i].text_end);
    }
    sy_buf_release(&c->text);
    sy_ask_release(&c->ask);
    sy_delete(c->service->env, c);
}
