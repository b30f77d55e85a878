#include "bench/load.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/json.h"
#include "base/rng.h"

enum { WAKE_NS = 200000000, PARALLEL_MAX = 65536 }; /* WAKE_NS: how soon a Ctrl-C is noticed */

struct live { /* a session that has begun */
    struct run *r;
    const struct sy_user_session *s;
    size_t turn;
    struct sy_buf history; /* what was said, in the form of the prompt */
    uint64_t due, seed;
    int64_t n_tok;    /* of the history, by our count */
    bool used, ready; /* ready: its next turn waits until `due` */
};
struct run {
    const struct sy_env *env;
    const struct sy_load_opt *o;
    const struct sy_workload *w;
    struct sy_client *c;
    struct live *live;
    size_t n_live_max, n_live, n_ready, n_session, n_begun, n_ended;
    double rate;
    bool closed;
    uint64_t t0, next_due, t_end;
    struct sy_buf body;
    struct sy_samples ttft, tpot, itl, e2e;
    struct sy_load_seen *out;
};

/* ---- requests ------------------------------------------------------------------------------------------------ */

static void add_turn(struct live *l, const struct sy_turn *t)
{
    const struct sy_load_opt *o = l->r->o;
    l->n_tok += t->n_in;
    if (o->ids) {
        sy_turn_ids(t, o->n_vocab, &l->history);
        return;
    }
    if (!o->client.chat) {
        sy_turn_words(t, &l->history);
        return;
    }
    struct sy_buf said;
    sy_buf_init(&said, l->r->env, 0);
    sy_turn_words(t, &said);
    sy_buf_printf(&l->history, "%s{\"role\":\"user\",\"content\":", l->history.len ? "," : "");
    sy_json_quote(&l->history, said.len ? said.at : "", said.len);
    sy_buf_char(&l->history, '}');
    l->history.failed |= said.failed;
    sy_buf_release(&said);
}

/* Ids that the server did not return are made up: as many, and not what it has in its cache. */
static void add_answer(struct live *l, const struct sy_heard *h)
{
    const struct sy_load_opt *o = l->r->o;
    struct sy_buf *b = &l->history;
    int64_t n = h->n_output >= 0 ? h->n_output : h->n_chunk;
    l->n_tok += n;
    if (o->ids && h->ids->len) {
        sy_buf_printf(b, ",%s", h->ids->at);
    } else if (o->ids) {
        struct sy_piece p = {sy_rng_u64(l->seed, l->turn), (int32_t)n};
        sy_turn_ids(&(struct sy_turn){.piece = &p, .n_piece = 1}, o->n_vocab, b);
    } else if (o->client.chat) {
        sy_buf_text(b, ",{\"role\":\"assistant\",\"content\":");
        sy_json_quote(b, h->text->len ? h->text->at : "", h->text->len);
        sy_buf_char(b, '}');
    } else {
        sy_buf_add(b, h->text->len ? h->text->at : "", h->text->len);
    }
}

static void write_body(struct run *r, const struct live *l, const struct sy_turn *t, bool keep)
{
    const struct sy_load_opt *o = r->o;
    struct sy_buf *b = &r->body;
    sy_buf_clear(b);
    sy_buf_text(b, "{\"model\":");
    sy_json_quote(b, o->model, strlen(o->model));
    sy_buf_text(b, o->client.chat ? ",\"messages\":" : ",\"prompt\":");
    if (o->client.chat || o->ids) {
        sy_buf_char(b, '[');
        sy_buf_add(b, l->history.at, l->history.len);
        sy_buf_char(b, ']');
    } else {
        sy_json_quote(b, l->history.at, l->history.len);
    }
    sy_buf_printf(b,
                  ",\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true,\"stream\":true,"
                  "\"stream_options\":{\"include_usage\":true}",
                  t->n_out);
    if (keep && o->ids) sy_buf_text(b, ",\"return_token_ids\":true");
    if (o->cache_salt) {
        sy_buf_text(b, ",\"cache_salt\":");
        sy_json_quote(b, o->cache_salt, strlen(o->cache_salt));
    }
    sy_buf_char(b, '}');
    b->failed |= l->history.failed;
}

static sy_status send(struct run *r, struct live *l, struct sy_err *err)
{
    const struct sy_turn *t = &l->s->turn[l->turn];
    bool keep = l->turn + 1 < l->s->n_turn;
    add_turn(l, t);
    write_body(r, l, t, keep);
    if (r->body.failed) return sy_fail(err, SY_ENOMEM, "no memory for a request");
    l->ready = false;
    r->n_ready--;
    r->out->n_request++;
    return sy_client_send(r->c, r->body.at, r->body.len, l->due, keep, l, err);
}

/* ---- answers ------------------------------------------------------------------------------------------------- */

static void count_error(struct sy_load_seen *o, const struct sy_heard *h)
{
    int i = 0;
    while (i < o->n_error && strcmp(o->error[i].kind, h->error)) i++;
    if (i == SY_LOAD_ERRORS) i--;
    if (i == o->n_error) {
        o->n_error++;
        snprintf(o->error[i].kind, sizeof o->error[i].kind, "%s", i == SY_LOAD_ERRORS - 1 ? "others" : h->error);
        snprintf(o->error[i].example, sizeof o->error[i].example, "%s", h->detail);
    }
    o->error[i].n++;
}

static void count_answer(struct run *r, const struct live *l, const struct sy_heard *h)
{
    struct sy_load_seen *o = r->out;
    int64_t n_out = h->n_output >= 0 ? h->n_output : h->n_chunk;
    double ttft = (double)(h->t_first - h->t_start) / 1e9, e2e = (double)(h->t_last - h->t_start) / 1e9;
    o->n_done++;
    o->n_short += n_out < l->s->turn[l->turn].n_out;
    o->n_in += h->n_prompt >= 0 ? h->n_prompt : l->n_tok;
    o->n_out += n_out;
    sy_samples_add(&r->ttft, ttft);
    sy_samples_add(&r->e2e, e2e);
    if (n_out > 1) sy_samples_add(&r->tpot, (e2e - ttft) / (double)(n_out - 1));
    for (size_t i = 0; i < h->n_gap; i++) sy_samples_add(&r->itl, h->gap[i]);
}

static void end_session(struct run *r, struct live *l)
{
    sy_buf_release(&l->history);
    l->used = false;
    r->n_live--;
    r->n_ended++;
    const struct sy_watch *w = &r->o->watch;
    if (w->progress) w->progress(w->ctx, (double)r->n_ended / (double)r->n_session);
}

static void on_end(void *ctx, const struct sy_heard *h)
{
    struct run *r = ctx;
    struct live *l = h->ctx;
    r->t_end = sy_now_ns(r->env);
    if (h->error[0]) count_error(r->out, h);
    else count_answer(r, l, h);
    if (h->error[0] || l->turn + 1 == l->s->n_turn) {
        end_session(r, l);
        return;
    }
    add_answer(l, h);
    l->turn++;
    l->due = r->t_end + l->s->turn[l->turn].delay_ns;
    l->ready = true;
    r->n_ready++;
}

/* ---- time ---------------------------------------------------------------------------------------------------- */

static const struct sy_user_session *session_at(const struct run *r, size_t i) { return &r->w->session[i % r->w->n]; }

static void begin(struct run *r, uint64_t due)
{
    size_t i = 0;
    while (r->live[i].used) i++;
    struct live *l = &r->live[i];
    *l = (struct live){.r = r,
                       .s = session_at(r, r->n_begun),
                       .used = true,
                       .ready = true,
                       .due = due,
                       .seed = sy_rng_u64(r->o->seed, r->n_begun)};
    sy_buf_init(&l->history, r->env, 0);
    r->n_begun++;
    r->n_live++;
    r->n_ready++;
    if (r->closed || r->n_begun == r->n_session) return;
    if (r->rate > 0) r->next_due += (uint64_t)(sy_poisson_gap(r->o->seed, r->n_begun, r->rate) * 1e9);
    else r->next_due = r->t0 + session_at(r, r->n_begun)->start_ns - r->w->session[0].start_ns;
}

static void begin_due(struct run *r)
{
    uint64_t now = sy_now_ns(r->env);
    while (r->n_begun < r->n_session && r->n_live < r->n_live_max && (r->closed || now >= r->next_due))
        begin(r, r->closed ? now : r->next_due);
}

/* Sends what is due; *until: when the next thing will be. */
static sy_status send_due(struct run *r, uint64_t *until, struct sy_err *err)
{
    sy_status st = SY_OK;
    uint64_t now = sy_now_ns(r->env);
    *until = now + WAKE_NS;
    if (!r->closed && r->n_begun < r->n_session && r->n_live < r->n_live_max && r->next_due < *until)
        *until = r->next_due;
    for (size_t i = 0; !st && r->n_ready && i < r->n_live_max; i++) {
        struct live *l = &r->live[i];
        if (!l->used || !l->ready) continue;
        if (l->due <= now) st = send(r, l, err);
        else if (l->due < *until) *until = l->due;
    }
    return st;
}

static sy_status run_sessions(struct run *r, struct sy_err *err)
{
    const struct sy_watch *w = &r->o->watch;
    sy_status st = SY_OK;
    r->t0 = r->next_due = r->t_end = sy_now_ns(r->env);
    while (!st && r->n_ended < r->n_session) {
        uint64_t until;
        begin_due(r);
        st = send_due(r, &until, err);
        if (!st) st = sy_client_wait(r->c, until, on_end, r, err);
        if (!st && w->stop && w->stop(w->ctx)) st = sy_fail(err, SY_EIO, "the benchmark was stopped");
    }
    return st;
}

static double cpu_seconds(void)
{
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u)) return 0;
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static sy_status open_run(struct run *r, double concurrency, struct sy_err *err)
{
    size_t most = r->closed ? (size_t)concurrency : PARALLEL_MAX;
    r->n_live_max = most < r->n_session ? most : r->n_session;
    struct sy_client_opt o = r->o->client;
    o.parallel = (int32_t)r->n_live_max;
    sy_buf_init(&r->body, r->env, 0);
    sy_samples_init(&r->ttft, r->env);
    sy_samples_init(&r->tpot, r->env);
    sy_samples_init(&r->itl, r->env);
    sy_samples_init(&r->e2e, r->env);
    r->live = sy_new_array(r->env, r->n_live_max, sizeof *r->live);
    if (!r->live) return sy_fail(err, SY_ENOMEM, "no memory for %zu sessions", r->n_live_max);
    return sy_client_new(r->env, &o, &r->c, err);
}

static void close_run(struct run *r)
{
    sy_client_free(r->c);
    for (size_t i = 0; r->live && i < r->n_live_max; i++)
        if (r->live[i].used) sy_buf_release(&r->live[i].history);
    sy_delete(r->env, r->live);
    sy_buf_release(&r->body);
    sy_samples_release(&r->ttft);
    sy_samples_release(&r->tpot);
    sy_samples_release(&r->itl);
    sy_samples_release(&r->e2e);
}

sy_status sy_load_run(const struct sy_env *env, const struct sy_load_opt *o, const struct sy_workload *w,
                      size_t n_session, double concurrency, double rate, struct sy_load_seen *out, struct sy_err *err)
{
    struct run r = {
        .env = env, .o = o, .w = w, .out = out, .n_session = n_session, .rate = rate, .closed = concurrency > 0};
    *out = (struct sy_load_seen){.concurrency = concurrency, .rate = rate};
    double cpu = cpu_seconds();
    sy_status st = open_run(&r, concurrency, err);
    if (!st) st = run_sessions(&r, err);
    if (!st && (r.ttft.failed || r.tpot.failed || r.itl.failed || r.e2e.failed))
        st = sy_fail(err, SY_ENOMEM, "no memory for the times");
    if (!st) {
        out->duration_s = (double)(r.t_end - r.t0) / 1e9;
        out->cpu_share = out->duration_s > 0 ? (cpu_seconds() - cpu) / out->duration_s : 0;
        out->ttft = sy_summary_of(r.ttft.at, r.ttft.n);
        out->tpot = sy_summary_of(r.tpot.at, r.tpot.n);
        out->itl = sy_summary_of(r.itl.at, r.itl.n);
        out->e2e = sy_summary_of(r.e2e.at, r.e2e.n);
    }
    close_run(&r);
    return st;
}
