#include "serve/jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { LINE_BYTES_MAX = 16 << 20, ID_BYTES_MAX = 512 };

struct job {
    struct job *next;
    struct sy_call *call;
    struct sy_json *id; /* custom_id */
};
struct run {
    const struct sy_jobs_opt *opt;
    struct sy_jobs_result *result;
    const struct sy_env *env;
    struct sy_map in;
    size_t at;
    int64_t line;
    int out;
    struct sy_json *seen; /* keys: custom_ids with a result, or read in this run */
    struct job *open;
    int32_t n_open;
    struct sy_buf buf;
};

/* ---- results ------------------------------------------------------------------------------------------- */

static sy_status append(struct run *r, struct sy_err *err)
{
    sy_buf_char(&r->buf, '\n');
    if (r->buf.failed) return sy_fail(err, SY_ENOMEM, "no memory for a result");
    /* One write for one line: whoever kills this process leaves whole lines, or half of one at the end. */
    for (size_t n = 0; n < r->buf.len;) {
        ssize_t w = write(r->out, r->buf.at + n, r->buf.len - n);
        if (w < 0 && errno == EINTR) continue;
        if (w < 0) return sy_fail(err, SY_EIO, "cannot write '%s': %s", r->opt->out, strerror(errno));
        n += (size_t)w;
    }
    return SY_OK;
}

static void add_json_text(struct sy_buf *b, const struct sy_json *text)
{
    size_t n;
    const char *s = sy_json_text_n(text, &n);
    if (s) sy_json_quote(b, s, n);
    else sy_buf_text(b, "null");
}

/* A line that holds no request. */
static sy_status refuse_line(struct run *r, const struct sy_json *id, const char *code, const char *message,
                             struct sy_err *err)
{
    sy_buf_clear(&r->buf);
    sy_buf_printf(&r->buf, "{\"id\":\"batch_req_%lld\",\"custom_id\":", (long long)r->line);
    add_json_text(&r->buf, id);
    sy_buf_printf(&r->buf, ",\"response\":null,\"error\":{\"code\":\"%s\",\"message\":", code);
    sy_json_quote(&r->buf, message, strlen(message));
    sy_buf_printf(&r->buf, ",\"line\":%lld}}", (long long)r->line);
    r->result->n_refused++;
    return append(r, err);
}

static sy_status write_result(struct run *r, struct sy_call *c, const struct sy_json *id, struct sy_err *err)
{
    struct sy_buf body;
    sy_buf_init(&body, r->env, 0);
    sy_call_body(c, &body);
    int status = c->problem.status ? c->problem.status : 200;
    sy_buf_clear(&r->buf);
    sy_buf_printf(&r->buf, "{\"id\":\"batch_req_%s\",\"custom_id\":", c->id);
    add_json_text(&r->buf, id);
    sy_buf_printf(&r->buf, ",\"response\":{\"status_code\":%d,\"request_id\":\"%s\",\"body\":", status, c->id);
    sy_buf_add(&r->buf, body.at ? body.at : "null", body.at ? body.len : 4);
    sy_buf_text(&r->buf, "},\"error\":null}");
    r->buf.failed |= body.failed;
    sy_buf_release(&body);
    if (status == 200) r->result->n_answered++;
    else r->result->n_refused++;
    struct sy_usage u = sy_call_usage(c);
    r->result->prompt_tok += u.prompt;
    r->result->gen_tok += u.completion;
    return append(r, err);
}

/* ---- what is there already ----------------------------------------------------------------------------- */

/* A line without a custom_id is known by its number: the file that is resumed is the same. */
static void key_of_line(int64_t line, struct sy_buf *key)
{
    sy_buf_clear(key);
    sy_buf_printf(key, "\n%lld", (long long)line); /* no custom_id: those have no line breaks here */
}

static sy_status mark(struct run *r, const char *key, struct sy_err *err)
{
    return sy_json_set_take(r->seen, key, sy_json_new_bool(true)) ? SY_OK
                                                                  : sy_fail(err, SY_ENOMEM, "no memory for the ids");
}

static sy_status take_result(struct run *r, const char *s, size_t n, int64_t line, struct sy_err *err)
{
    struct sy_json *j;
    sy_status st = sy_json_parse(r->env, s, n, false, &j, err);
    if (st) return sy_while(err, st, "'%s' line %lld", r->opt->out, (long long)line);
    const char *id = sy_json_text(sy_json_get(j, "custom_id"));
    struct sy_buf key;
    sy_buf_init(&key, r->env, 0);
    key_of_line(sy_json_int(sy_json_get(sy_json_get(j, "error"), "line"), -1), &key);
    if (!sy_json_is_object(j) || !sy_json_get(j, "custom_id"))
        st = sy_fail(err, SY_EFORMAT, "'%s' line %lld: expected a result with a custom_id; is this another file?",
                     r->opt->out, (long long)line);
    else st = key.failed ? sy_fail(err, SY_ENOMEM, "no memory for the ids") : mark(r, id ? id : key.at, err);
    sy_buf_release(&key);
    sy_json_free(j);
    return st;
}

/* Reads the results of an earlier run; cuts off half a line. */
static sy_status take_results(struct run *r, struct sy_err *err)
{
    off_t size = lseek(r->out, 0, SEEK_END);
    if (size <= 0) return SY_OK;
    struct sy_map m;
    sy_status st = sy_map_open(&m, r->opt->out, err);
    if (st) return st;
    size_t at = 0;
    for (int64_t line = 1; !st && at < m.n; line++) {
        const char *s = (const char *)m.at + at, *end = memchr(s, '\n', m.n - at);
        if (!end) break;
        st = take_result(r, s, (size_t)(end - s), line, err);
        at += (size_t)(end - s) + 1;
    }
    size_t n = m.n;
    sy_map_close(&m);
    if (!st && at < n && ftruncate(r->out, (off_t)at))
        st = sy_fail(err, SY_EIO, "cannot remove half a line at the end of '%s': %s", r->opt->out, strerror(errno));
    return st;
}

/* ---- requests ------------------------------------------------------------------------------------------ */

/* The next line that is not blank; false at the end. */
static bool next_line(struct run *r, const char **s, size_t *n)
{
    while (r->at < r->in.n) {
        *s = (const char *)r->in.at + r->at;
        const char *end = memchr(*s, '\n', r->in.n - r->at);
        size_t all = end ? (size_t)(end - *s) : r->in.n - r->at;
        r->at += all + (end != NULL);
        r->line++;
        *n = all;
        while (*n && strchr(" \t\r", (*s)[*n - 1])) --*n;
        if (*n) return true;
    }
    return false;
}

static enum sy_api api_of(const char *url)
{
    return !url                                   ? 0
           : !strcmp(url, "/v1/chat/completions") ? SY_API_CHAT
           : !strcmp(url, "/v1/completions")      ? SY_API_COMPLETION
           : !strcmp(url, "/v1/embeddings")       ? SY_API_EMBEDDING
                                                  : 0;
}

static sy_status open_job(struct run *r, struct sy_call *c, const struct sy_json *id, struct sy_err *err)
{
    struct job *job = sy_new(r->env, sizeof *job);
    if (!job) {
        sy_call_free(c);
        return sy_fail(err, SY_ENOMEM, "no memory for a request");
    }
    *job = (struct job){.next = r->open, .call = c, .id = sy_json_share(id)};
    c->owner = job;
    r->open = job;
    r->n_open++;
    return SY_OK;
}

static sy_status start_call(struct run *r, enum sy_api api, const struct sy_json *id, const struct sy_json *body,
                            struct sy_err *err)
{
    struct sy_buf text;
    sy_buf_init(&text, r->env, 0);
    sy_json_write(&text, body);
    struct sy_call *c = text.failed ? NULL : sy_call_new(r->opt->service, api, text.at, text.len, 0, 0, NULL);
    sy_buf_release(&text);
    if (!c) return sy_fail(err, SY_ENOMEM, "no memory for a request");
    if (!c->problem.status && c->ask.stream)
        sy_problem_set(&c->problem, 400, "invalid_value", "stream", "stream: results of a batch come whole");
    if (!c->problem.status && sy_call_submit(c)) return open_job(r, c, id, err);
    sy_status st = write_result(r, c, id, err);
    sy_call_free(c);
    return st;
}

static sy_status start_line(struct run *r, const char *s, size_t n, struct sy_err *err)
{
    struct sy_json *j = NULL;
    struct sy_err why = {0};
    struct sy_buf key;
    sy_buf_init(&key, r->env, 0);
    key_of_line(r->line, &key);
    bool read = n <= LINE_BYTES_MAX && !sy_json_parse(r->env, s, n, false, &j, &why);
    const struct sy_json *id = sy_json_get(j, "custom_id"), *body = sy_json_get(j, "body");
    const char *text = sy_json_text(id), *method = sy_json_text(sy_json_get(j, "method"));
    bool has_id = text && *text && strlen(text) <= ID_BYTES_MAX && !strchr(text, '\n');
    enum sy_api api = api_of(sy_json_text(sy_json_get(j, "url")));
    const char *known = has_id ? text : key.failed ? "" : key.at;
    sy_status st = SY_OK;
    if (sy_json_get(r->seen, known)) r->result->n_before++;
    else if (!read)
        st = refuse_line(r, NULL, "invalid_json_line", why.msg[0] ? why.msg : "the line is too long", err);
    else if (!has_id)
        st = refuse_line(r, NULL, "missing_custom_id", "expected a custom_id: a string of 1 to 512 bytes", err);
    else if (!method || strcmp(method, "POST"))
        st = refuse_line(r, id, "invalid_method", "expected method POST", err);
    else if (!api)
        st = refuse_line(r, id, "invalid_url",
                         "expected /v1/chat/completions, /v1/completions or /v1/embeddings as url", err);
    else if (!sy_json_is_object(body)) st = refuse_line(r, id, "invalid_body", "expected an object as body", err);
    else st = start_call(r, api, id, body, err);
    if (!st) st = mark(r, known, err);
    sy_buf_release(&key);
    sy_json_free(j);
    return st;
}

/* ---- the run ------------------------------------------------------------------------------------------- */

static void close_job(struct run *r, struct job *job)
{
    struct job **at = &r->open;
    while (*at != job) at = &(*at)->next;
    *at = job->next;
    r->n_open--;
    sy_call_detach(job->call);
    sy_call_free(job->call);
    sy_json_free(job->id);
    sy_delete(r->env, job);
}

static sy_status take_news(struct run *r, struct sy_err *err)
{
    struct sy_loop *loop = r->opt->service->loop;
    uint64_t n;
    sy_status st = SY_OK;
    (void)!read(sy_loop_fd(loop), &n, sizeof n);
    for (struct sy_stream *s; (s = sy_loop_next(loop)); sy_stream_unref(s)) {
        struct sy_call *c = s->owner;
        struct job *job = c ? c->owner : NULL;
        if (!job) continue;
        sy_call_feed(c, s);
        if (!sy_call_done(c)) continue;
        if (!st && !r->result->stopped) st = write_result(r, c, job->id, err);
        close_job(r, job);
    }
    for (struct job *job = r->open; job; job = job->next)
        if (sy_call_starved(job->call)) sy_call_submit(job->call);
    return st;
}

static void cancel_rest(struct run *r)
{
    for (struct job *job = r->open; job; job = job->next) sy_call_cancel(job->call);
}

static sy_status work(struct run *r, struct sy_err *err)
{
    struct pollfd p[] = {{.fd = sy_loop_fd(r->opt->service->loop), .events = POLLIN},
                         {.fd = r->opt->stop_fd, .events = POLLIN}};
    const char *s;
    size_t n;
    bool more = true;
    sy_status st = SY_OK;
    while (!st && (more || r->open)) {
        while (!st && more && !r->result->stopped && sy_loop_open(r->opt->service->loop) < r->opt->open_max &&
               r->n_open < r->opt->open_max) {
            more = next_line(r, &s, &n);
            if (more) st = start_line(r, s, n, err);
        }
        if (r->opt->progress && r->result->n_line) {
            int64_t done = r->result->n_before + r->result->n_answered + r->result->n_refused;
            r->opt->progress(r->opt->progress_ctx, (double)done / (double)r->result->n_line);
        }
        if (st || !r->open) continue;
        if (poll(p, 2, 100) > 0 && (p[1].revents & POLLIN) && !r->result->stopped) {
            r->result->stopped = true;
            more = false;
            cancel_rest(r);
            p[1].fd = -1;
        }
        if (!st) st = take_news(r, err);
    }
    /* After a failure: nothing of the open calls may outlive this function. */
    cancel_rest(r);
    while (r->open) {
        struct sy_err none;
        r->result->stopped = true;
        poll(p, 1, 100);
        if (take_news(r, &none)) break;
    }
    return st;
}

static void count_lines(struct run *r)
{
    const char *s;
    size_t n;
    while (next_line(r, &s, &n)) r->result->n_line++;
    r->at = 0;
    r->line = 0;
}

sy_status sy_jobs_run(const struct sy_jobs_opt *o, struct sy_jobs_result *result, struct sy_err *err)
{
    *result = (struct sy_jobs_result){0};
    struct run r = {.opt = o, .result = result, .env = o->service->env, .out = -1};
    sy_buf_init(&r.buf, r.env, 0);
    sy_status st = sy_map_open(&r.in, o->in, err);
    if (!st && !(r.seen = sy_json_new_object())) st = sy_fail(err, SY_ENOMEM, "no memory for the ids");
    if (!st && (r.out = open(o->out, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) < 0)
        st = sy_fail(err, SY_EIO, "cannot open '%s': %s", o->out, strerror(errno));
    if (!st && flock(r.out, LOCK_EX | LOCK_NB))
        st = sy_fail(err, SY_EIO, "'%s' is being written by another process", o->out);
    if (!st) st = take_results(&r, err);
    if (!st) {
        count_lines(&r);
        st = work(&r, err);
    }
    if (r.out >= 0) close(r.out);
    sy_map_close(&r.in);
    sy_json_free(r.seen);
    sy_buf_release(&r.buf);
    return st;
}
