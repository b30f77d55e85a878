#include "bench/replay.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/json.h"

enum { LINE_MAX_BYTES = 64 << 20, SAMPLE_MAX = 128, PART_MAX = 1 << 20 };

struct asked {    /* what is kept of a request between the two readings */
    uint64_t id;  /* in the record */
    uint64_t now; /* in this run */
    int32_t n_prompt, n_max, n_sample;
    int32_t *n_tok; /* [n_sample] final lengths; 0: it was still running, or left early */
};
struct sy_trace {
    const struct sy_env *env;
    FILE *file;
    struct sy_buf line;
    size_t line_no;
    struct sy_arena arena;
    struct sy_engine_opt opt;
    struct asked *asked; /* ascending ids */
    size_t n_asked, cap_asked;
    uint64_t n_step;
};

/* ---- one line -----------------------------------------------------------------------------------------------------
 */

static sy_status bad(const struct sy_trace *t, struct sy_err *err, const char *what)
{
    return sy_fail(err, SY_EFORMAT, "trace line %zu: %s", t->line_no, what);
}

/* The next line as JSON; *out NULL at the end. A last line that a kill cut off is left out. */
static sy_status next_line(struct sy_trace *t, struct sy_json **out, struct sy_err *err)
{
    *out = NULL;
    sy_buf_clear(&t->line);
    int c;
    while ((c = getc_unlocked(t->file)) != EOF && c != '\n') sy_buf_char(&t->line, (char)c);
    if (c == EOF) return ferror(t->file) ? sy_fail(err, SY_EIO, "reading the trace: %s", strerror(errno)) : SY_OK;
    t->line_no++;
    if (t->line.failed)
        return sy_fail(err, SY_ENOMEM, "trace line %zu: no memory for it, or longer than 64 MiB", t->line_no);
    sy_status st = sy_json_parse(t->env, t->line.len ? t->line.at : "", t->line.len, false, out, err);
    if (st) return sy_while(err, st, "trace line %zu", t->line_no);
    if (sy_json_is_object(*out)) return SY_OK;
    sy_json_free(*out);
    *out = NULL;
    return bad(t, err, "expected an object");
}

static struct asked *find(const struct sy_trace *t, uint64_t id)
{
    size_t lo = 0, hi = t->n_asked;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (t->asked[mid].id < id) lo = mid + 1;
        else hi = mid;
    }
    return lo < t->n_asked && t->asked[lo].id == id ? &t->asked[lo] : NULL;
}

static sy_status read_ids(const struct sy_trace *t, const struct sy_json *a, int32_t *out, struct sy_err *err)
{
    for (size_t i = 0; i < sy_json_len(a); i++) {
        const struct sy_json *v = sy_json_at(a, i);
        int64_t id = sy_json_int(v, -1);
        if (!sy_json_is_int(v) || id < 0 || id > INT32_MAX) return bad(t, err, "'prompt': expected token ids");
        out[i] = (int32_t)id;
    }
    return SY_OK;
}

/* ---- the first reading --------------------------------------------------------------------------------------- */

static sy_status read_head(struct sy_trace *t, const struct sy_json *o, struct sy_err *err)
{
    struct sy_jread r = {.obj = o, .where = "trace line 1", .err = err};
    (void)sy_jread_int(&r, "trace", 1, 1); /* the format's version */
    t->opt = (struct sy_engine_opt){
        .ctx_len = (int32_t)sy_jread_int(&r, "ctx_len", 1, INT32_MAX),
        .block_len = (int32_t)sy_jread_int(&r, "block_len", 1, 1 << 20),
        .seq_max = (int32_t)sy_jread_int(&r, "seq_max", 1, 1 << 20),
        .batch_tok_max = (int32_t)sy_jread_int(&r, "batch_tok_max", 1, 1 << 24),
        .score_row_max = (int32_t)sy_jread_int(&r, "score_row_max", 0, 1 << 20),
        .wait_max = (int32_t)sy_jread_int(&r, "wait_max", 0, INT32_MAX),
        .kv_bytes_max = sy_jread_int(&r, "kv_bytes_max", 0, INT64_MAX / 2),
        .swap_bytes = sy_jread_int(&r, "swap_bytes", 0, INT64_MAX / 2),
        .gap_ms_max = sy_jread_num(&r, "gap_ms_max", 0, 1e15),
        .scheduling = sy_jread_bool_or(&r, "static", false) ? SY_STATIC : SY_CONTINUOUS,
        .no_prefix_cache = !sy_jread_bool_or(&r, "prefix_cache", true),
        .snapshot_bytes = sy_jread_int_or(&r, "snapshot_bytes", 0, 0, INT64_MAX / 2),
        .draft_max = (int32_t)sy_jread_int_or(&r, "draft_max", 0, 0, 1 << 10),
    };
    const char *draft = sy_jread_text_or(&r, "draft_model", "");
    if (!r.st && *draft) {
        t->opt.draft_model = sy_arena_text(&t->arena, draft, strlen(draft));
        if (!t->opt.draft_model) return sy_fail(err, SY_ENOMEM, "no memory for the trace");
    }
    return r.st;
}

static sy_status note_arrival(struct sy_trace *t, const struct sy_json *o, struct sy_err *err)
{
    char where[48];
    snprintf(where, sizeof where, "trace line %zu", t->line_no);
    struct sy_jread r = {.obj = o, .where = where, .err = err};
    struct asked q = {
        .id = (uint64_t)sy_jread_int(&r, "arrive", 0, INT64_MAX),
        .n_max = (int32_t)sy_jread_int(&r, "n_max", 0, INT32_MAX),
        .n_sample = (int32_t)sy_jread_int_or(&r, "n_sample", 1, 1, SAMPLE_MAX),
        .n_prompt = (int32_t)sy_json_len(sy_json_get(o, "prompt")),
    };
    if (r.st) return r.st;
    if (!sy_json_is_array(sy_json_get(o, "prompt")) || q.n_prompt < 1)
        return bad(t, err, "'prompt': expected token ids");
    if (t->n_asked && q.id <= t->asked[t->n_asked - 1].id) return bad(t, err, "'arrive': ids must ascend");
    q.n_tok = sy_arena_array(&t->arena, (size_t)q.n_sample, sizeof *q.n_tok);
    if (t->n_asked == t->cap_asked) {
        size_t cap = t->cap_asked ? t->cap_asked * 2 : 256;
        struct asked *grown = sy_resize(t->env, t->asked, t->cap_asked * sizeof q, cap * sizeof q);
        if (grown) {
            t->asked = grown;
            t->cap_asked = cap;
        }
    }
    if (!q.n_tok || t->n_asked == t->cap_asked) return sy_fail(err, SY_ENOMEM, "no memory for the trace");
    t->asked[t->n_asked++] = q;
    return SY_OK;
}

static bool left_early(const struct sy_json *o)
{
    const char *why = sy_json_text(sy_json_get(o, "reason"));
    return why && (!strcmp(why, "cancelled") || !strcmp(why, "deadline") || !strcmp(why, "stopped"));
}

static sy_status note_end(struct sy_trace *t, const struct sy_json *o, struct sy_err *err)
{
    char where[48];
    snprintf(where, sizeof where, "trace line %zu", t->line_no);
    struct sy_jread r = {.obj = o, .where = where, .err = err};
    struct asked *q = find(t, (uint64_t)sy_jread_int(&r, "end", 0, INT64_MAX));
    if (r.st) return r.st;
    if (!q) return bad(t, err, "'end': no such request has arrived");
    int64_t sample = sy_jread_int_or(&r, "sample", 0, 0, q->n_sample - 1);
    int64_t n_tok = sy_jread_int(&r, "n_tok", q->n_prompt, (int64_t)q->n_prompt + q->n_max);
    if (!r.st && !left_early(o)) q->n_tok[sample] = (int32_t)n_tok;
    return r.st;
}

static sy_status check_step(struct sy_trace *t, const struct sy_json *o, struct sy_err *err)
{
    char where[48];
    snprintf(where, sizeof where, "trace line %zu", t->line_no);
    struct sy_jread r = {.obj = o, .where = where, .err = err};
    int64_t from = sy_jread_int(&r, "t", 0, INT64_MAX);
    (void)sy_jread_int(&r, "end", from, INT64_MAX);
    (void)sy_jread_int(&r, "step", 0, INT64_MAX);
    const struct sy_json *seq = sy_json_get(o, "seq");
    if (r.st) return r.st;
    if (!sy_json_is_array(seq) || sy_json_len(seq) < 1 || sy_json_len(seq) > PART_MAX)
        return bad(t, err, "'seq': expected an array");
    for (size_t i = 0; i < sy_json_len(seq); i++) {
        const struct sy_json *part = sy_json_at(seq, i);
        const struct asked *q = find(t, (uint64_t)sy_json_int(sy_json_at(part, 0), -1));
        int64_t sample = sy_json_int(sy_json_at(part, 1), -1), n = sy_json_int(sy_json_at(part, 2), -1);
        if (!q || sample < 0 || sample >= q->n_sample || n < 1 || n > INT32_MAX)
            return bad(t, err, "'seq': expected [request, sample, tokens] of requests that have arrived");
    }
    t->n_step++;
    return SY_OK;
}

static sy_status check_idle(struct sy_trace *t, const struct sy_json *o, struct sy_err *err)
{
    char where[48];
    snprintf(where, sizeof where, "trace line %zu", t->line_no);
    struct sy_jread r = {.obj = o, .where = where, .err = err};
    (void)sy_jread_int(&r, "idle", 0, INT64_MAX);
    return r.st;
}

static sy_status read_all(struct sy_trace *t, struct sy_err *err)
{
    struct sy_json *o;
    sy_status st = next_line(t, &o, err);
    if (!st && !o) return sy_fail(err, SY_EFORMAT, "the trace is empty");
    if (!st) st = read_head(t, o, err);
    while (!st && o) {
        sy_json_free(o);
        st = next_line(t, &o, err);
        if (st || !o) break;
        if (sy_json_get(o, "step")) st = check_step(t, o, err);
        else if (sy_json_get(o, "arrive")) st = note_arrival(t, o, err);
        else if (sy_json_get(o, "end")) st = note_end(t, o, err);
        else if (sy_json_get(o, "idle")) st = check_idle(t, o, err);
        else st = bad(t, err, "expected \"arrive\", \"step\", \"end\" or \"idle\"");
    }
    sy_json_free(o);
    return st;
}

static sy_status open_stream(const struct sy_env *env, FILE *f, struct sy_trace **out, struct sy_err *err)
{
    struct sy_trace *t = sy_new(env, sizeof *t);
    if (!t) {
        fclose(f);
        return sy_fail(err, SY_ENOMEM, "no memory for the trace");
    }
    t->env = env;
    t->file = f;
    sy_buf_init(&t->line, env, LINE_MAX_BYTES);
    sy_arena_init(&t->arena, env, 0);
    sy_status st = read_all(t, err);
    if (st) sy_trace_close(t);
    else *out = t;
    return st;
}

sy_status sy_trace_open(const struct sy_env *env, const char *path, struct sy_trace **out, struct sy_err *err)
{
    FILE *f = fopen(path, "re");
    if (!f) return sy_fail(err, SY_EIO, "cannot read '%s': %s", path, strerror(errno));
    sy_status st = open_stream(env, f, out, err);
    return st ? sy_while(err, st, "'%s'", path) : SY_OK;
}

sy_status sy_trace_check(const struct sy_env *env, const char *text, size_t n, struct sy_err *err)
{
    struct sy_trace *t = NULL;
    FILE *f = n ? fmemopen((void *)(uintptr_t)text, n, "r") : NULL; /* only read from */
    if (!f) return sy_fail(err, SY_EFORMAT, "the trace is empty");
    sy_status st = open_stream(env, f, &t, err);
    if (!st) sy_trace_close(t);
    return st;
}

void sy_trace_close(struct sy_trace *t)
{
    if (!t) return;
    fclose(t->file);
    sy_buf_release(&t->line);
    sy_delete(t->env, t->asked);
    sy_arena_release(&t->arena);
    sy_delete(t->env, t);
}

void sy_trace_options(const struct sy_trace *t, struct sy_engine_opt *o)
{
    struct sy_engine_opt rec = t->opt;
    rec.model = o->model;
    rec.backend = o->backend;
    rec.backend_opt = o->backend_opt;
    rec.trace = o->trace;
    *o = rec;
}

/* ---- the second reading: the run ----------------------------------------------------------------------------- */

struct part {
    uint64_t request;
    int32_t sample, n_tok;
};
struct replay {
    struct sy_trace *t;
    struct sy_engine *e;
    struct sy_replay *out;
    struct sy_clock clock;
    struct sy_env env;
    uint64_t at, end; /* what the clock reads: `at` once, then `end` */
    int n_read;
    struct part *now; /* the step that ran; ids of this run */
    size_t n_now, cap_now;
};

static uint64_t recorded_now(void *ctx)
{
    struct replay *r = ctx;
    return r->n_read++ == 0 ? r->at : r->end;
}

static void on_batch(void *ctx, uint64_t request, int32_t sample, int32_t n_tok)
{
    struct replay *r = ctx;
    if (r->n_now < r->cap_now) r->now[r->n_now] = (struct part){request, sample, n_tok};
    r->n_now++;
}

static void ignore_row(void *ctx, int32_t pos, const float *row, int32_t n)
{
    (void)ctx, (void)pos, (void)row, (void)n;
}

static double number(const struct sy_json *o, const char *key) { return sy_json_number(sy_json_get(o, key), 0); }

static sy_status read_sampling(const struct sy_trace *t, const struct sy_json *o, struct sy_arena *a,
                               struct sy_sampling *s, struct sy_err *err)
{
    *s = (struct sy_sampling){.n_logprob = -1};
    if (!o) return SY_OK;
    const struct sy_json *bias = sy_json_get(o, "bias");
    size_t n = sy_json_len(bias);
    struct sy_bias *b = sy_arena_array(a, n + 1, sizeof *b);
    if (!b) return sy_fail(err, SY_ENOMEM, "no memory for a logit bias");
    for (size_t i = 0; i < n; i++) {
        int64_t id = sy_json_int(sy_json_at(sy_json_at(bias, i), 0), -1);
        if (id < 0 || id > INT32_MAX) return bad(t, err, "'bias': expected [token, number]");
        b[i] = (struct sy_bias){(int32_t)id, (float)sy_json_number(sy_json_at(sy_json_at(bias, i), 1), 0)};
    }
    *s = (struct sy_sampling){
        .temperature = (float)number(o, "temperature"),
        .top_k = (int32_t)sy_json_int(sy_json_get(o, "top_k"), 0),
        .top_p = (float)number(o, "top_p"),
        .min_p = (float)number(o, "min_p"),
        .typical_p = (float)number(o, "typical_p"),
        .repeat_penalty = (float)number(o, "repeat_penalty"),
        .presence_penalty = (float)number(o, "presence_penalty"),
        .frequency_penalty = (float)number(o, "frequency_penalty"),
        .seed = (uint64_t)sy_json_int(sy_json_get(o, "seed"), 0),
        .bias = b,
        .n_bias = (int32_t)n,
        .n_logprob = -1,
    };
    return SY_OK;
}

/* The lengths at which answers ended; one that never did, or left early, keeps its limit. */
static void lengths(const struct asked *q, int32_t *each)
{
    for (int32_t i = 0; i < q->n_sample; i++) {
        int32_t n = q->n_tok[i] - q->n_prompt;
        each[i] = q->n_tok[i] && n > 0 ? n : q->n_max;
    }
}

static sy_status arrive(struct replay *r, const struct sy_json *o, struct sy_err *err)
{
    struct asked *q = find(r->t, (uint64_t)sy_json_int(sy_json_get(o, "arrive"), -1));
    if (!q) return bad(r->t, err, "the file changed while it was read");
    struct sy_arena a;
    sy_arena_init(&a, r->t->env, 0);
    const struct sy_json *prompt = sy_json_get(o, "prompt"), *rows = sy_json_get(o, "rows_from");
    int32_t *id = sy_arena_array(&a, (size_t)q->n_prompt, sizeof *id), each[SAMPLE_MAX];
    sy_status st = id ? SY_OK : sy_fail(err, SY_ENOMEM, "no memory for a prompt");
    if (!st && sy_json_len(prompt) != (size_t)q->n_prompt) st = bad(r->t, err, "the file changed while it was read");
    if (!st) st = read_ids(r->t, prompt, id, err);
    struct sy_request req = {.prompt = id,
                             .n_prompt = q->n_prompt,
                             .n_max = q->n_max,
                             .n_sample = q->n_sample,
                             .priority = (int32_t)sy_json_int(sy_json_get(o, "priority"), 0),
                             .cache_domain = (uint64_t)sy_json_int(sy_json_get(o, "domain"), 0),
                             .no_cache_read = sy_json_bool(sy_json_get(o, "no_cache_read"), false),
                             .n_min = (int32_t)sy_json_int(sy_json_get(o, "n_min"), 0),
                             .ignore_eos = true,
                             .on_logits = rows ? ignore_row : NULL,
                             .logits_from = (int32_t)sy_json_int(rows, 0)};
    lengths(q, each);
    if (q->n_max > 0) req.n_stop_each = each;
    if (!st) st = read_sampling(r->t, sy_json_get(o, "sampling"), &a, &req.sampling, err);
    if (!st) {
        st = sy_engine_submit(r->e, &req, &q->now, err);
        if (st) st = sy_while(err, st, "trace line %zu", r->t->line_no);
    }
    r->out->n_request += !st;
    sy_arena_release(&a);
    return st;
}

static void put_part(char *text, size_t n_text, const char *when, const struct part *p)
{
    size_t at = strlen(text);
    if (!p) snprintf(text + at, n_text - at, "%s nobody", when);
    else if (p->request == 0) snprintf(text + at, n_text - at, "%s a request unknown to the trace", when);
    else
        snprintf(text + at, n_text - at, "%s request %" PRIu64 ", answer %d, %d tokens", when, p->request, p->sample,
                 p->n_tok);
}

static uint64_t recorded_id(const struct replay *r, uint64_t now)
{
    for (size_t i = 0; i < r->t->n_asked; i++)
        if (r->t->asked[i].now == now) return r->t->asked[i].id;
    return 0;
}

static void compare(struct replay *r, const struct sy_json *o)
{
    const struct sy_json *seq = sy_json_get(o, "seq");
    size_t n = sy_json_len(seq), most = n > r->n_now ? n : r->n_now;
    for (size_t i = 0; i < most; i++) {
        const struct sy_json *rec = i < n ? sy_json_at(seq, i) : NULL;
        struct part was = {(uint64_t)sy_json_int(sy_json_at(rec, 0), 0), (int32_t)sy_json_int(sy_json_at(rec, 1), 0),
                           (int32_t)sy_json_int(sy_json_at(rec, 2), 0)};
        bool here = i < r->n_now && i < r->cap_now;
        struct part is = here ? r->now[i] : (struct part){0};
        const struct asked *q = rec ? find(r->t, was.request) : NULL;
        if (q && here && q->now == is.request && was.sample == is.sample && was.n_tok == is.n_tok) continue;
        if (here) is.request = recorded_id(r, is.request);
        struct sy_replay *out = r->out;
        out->same = false;
        out->step = (uint64_t)sy_json_int(sy_json_get(o, "step"), 0);
        snprintf(out->difference, sizeof out->difference, "place %zu of %zu:", i + 1, n);
        put_part(out->difference, sizeof out->difference, " recorded", rec ? &was : NULL);
        put_part(out->difference, sizeof out->difference, "; now", here ? &is : NULL);
        return;
    }
}

static sy_status step(struct replay *r, const struct sy_json *o, struct sy_err *err)
{
    r->at = (uint64_t)sy_json_int(sy_json_get(o, "t"), 0);
    r->end = (uint64_t)sy_json_int(sy_json_get(o, "end"), 0);
    r->n_read = 0;
    r->n_now = 0;
    bool worked;
    uint64_t t0 = sy_now_ns(r->t->env);
    sy_status st = sy_engine_step(r->e, &worked, err);
    if (st) return st;
    r->out->now_s += (double)(sy_now_ns(r->t->env) - t0) / 1e9;
    r->out->recorded_s += (double)(r->end - r->at) / 1e9;
    compare(r, o);
    r->out->n_step++;
    if (worked) r->out->n_token += (uint64_t)sy_engine_stats(r->e).last_batch_tok;
    return SY_OK;
}

static sy_status idle(struct replay *r, const struct sy_json *o, struct sy_err *err)
{
    r->at = r->end = (uint64_t)sy_json_int(sy_json_get(o, "idle"), 0);
    r->n_read = 0;
    bool worked;
    sy_status st = sy_engine_step(r->e, &worked, err);
    if (st || !worked) return st;
    r->out->same = false;
    r->out->step = r->out->n_step;
    snprintf(r->out->difference, sizeof r->out->difference, "recorded nothing to do; now a step");
    return SY_OK;
}

static sy_status one_line(struct replay *r, const struct sy_json *o, struct sy_err *err)
{
    if (sy_json_get(o, "step")) return step(r, o, err);
    if (sy_json_get(o, "idle")) return idle(r, o, err);
    if (sy_json_get(o, "arrive")) {
        r->at = r->end = (uint64_t)sy_json_int(sy_json_get(o, "t"), 0);
        return arrive(r, o, err);
    }
    const struct asked *q = left_early(o) ? find(r->t, (uint64_t)sy_json_int(sy_json_get(o, "end"), -1)) : NULL;
    const char *why = sy_json_text(sy_json_get(o, "reason"));
    if (q && !strcmp(why, "stopped")) sy_engine_stop(r->e, q->now, (int32_t)sy_json_int(sy_json_get(o, "sample"), 0));
    else if (q) sy_engine_cancel(r->e, q->now);
    return SY_OK;
}

static sy_status run_lines(struct replay *r, const struct sy_watch *w, struct sy_err *err)
{
    struct sy_json *o;
    rewind(r->t->file);
    r->t->line_no = 0;
    sy_status st = next_line(r->t, &o, err); /* the head, which was read */
    while (!st && o && r->out->same) {
        sy_json_free(o);
        st = next_line(r->t, &o, err);
        if (!st && o) st = one_line(r, o, err);
        if (!st && w && w->stop && w->stop(w->ctx)) st = sy_fail(err, SY_EIO, "the replay was stopped");
        if (w && w->progress && r->t->n_step) w->progress(w->ctx, (double)r->out->n_step / (double)r->t->n_step);
    }
    sy_json_free(o);
    return st;
}

sy_status sy_replay_run(const struct sy_env *env, struct sy_trace *t, const struct sy_engine_opt *opt,
                        const struct sy_watch *w, struct sy_replay *out, struct sy_err *err)
{
    struct replay r = {.t = t, .out = out};
    struct sy_engine_opt o = *opt;
    *out = (struct sy_replay){.same = true};
    r.clock = (struct sy_clock){recorded_now, &r};
    r.env = *env;
    r.env.clock = &r.clock;
    o.on_batch = on_batch;
    o.on_batch_ctx = &r;
    r.cap_now = (size_t)(o.seq_max > 0 ? o.seq_max : 1);
    r.now = sy_new_array(env, r.cap_now, sizeof *r.now);
    sy_status st = r.now ? SY_OK : sy_fail(err, SY_ENOMEM, "no memory for a step");
    if (!st) st = sy_engine_new(&r.env, &o, &r.e, err);
    if (!st) st = run_lines(&r, w, err);
    sy_engine_free(r.e);
    sy_delete(env, r.now);
    return st;
}
