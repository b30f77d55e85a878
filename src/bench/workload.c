#include "bench/workload.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/rng.h"
#include "bench/stats.h"

enum { HASH_TOKENS = 512, BYTES_PER_TOKEN = 4, LEN_MAX = 1 << 24, TURN_MAX = 100000 };

void sy_workload_release(struct sy_workload *w)
{
    if (w->arena.env) sy_arena_release(&w->arena);
    sy_json_free(w->json);
    *w = (struct sy_workload){0};
}

static sy_status no_memory(struct sy_err *err) { return sy_fail(err, SY_ENOMEM, "no memory for the workload"); }

static int32_t at_least_one(double v) { return v < 1 ? 1 : (int32_t)v; }

sy_status sy_workload_random(const struct sy_env *env, size_t n, int32_t n_in, int32_t n_out, double range,
                             uint64_t seed, struct sy_workload *out, struct sy_err *err)
{
    struct sy_workload w = {0};
    sy_arena_init(&w.arena, env, 0);
    struct sy_turn *turn = sy_arena_array(&w.arena, n, sizeof *turn);
    struct sy_piece *piece = sy_arena_array(&w.arena, n, sizeof *piece);
    w.session = sy_arena_array(&w.arena, n, sizeof *w.session);
    if (!turn || !piece || !w.session) {
        sy_workload_release(&w);
        return no_memory(err);
    }
    int32_t in_lo = at_least_one(range * n_in), out_lo = at_least_one(range * n_out);
    for (size_t i = 0; i < n; i++) {
        uint64_t own = sy_rng_u64(seed, i);
        int32_t in = (int32_t)sy_uniform(own, 0, in_lo, n_in);
        piece[i] = (struct sy_piece){sy_rng_u64(own, 2), in};
        turn[i] = (struct sy_turn){
            .piece = &piece[i], .n_piece = 1, .n_in = in, .n_out = (int32_t)sy_uniform(own, 1, out_lo, n_out)};
        w.session[i] = (struct sy_user_session){&turn[i], 1, 0};
    }
    w.n = n;
    *out = w;
    return SY_OK;
}

/* ---- ShareGPT -----------------------------------------------------------------------------------------------------
 */

static int32_t estimate(size_t bytes)
{
    size_t n = (bytes + BYTES_PER_TOKEN - 1) / BYTES_PER_TOKEN;
    return n > LEN_MAX ? LEN_MAX : n < 1 ? 1 : (int32_t)n;
}

static const char *said_by(const struct sy_json *message, const char *who, const char * or, size_t *n)
{
    const char *from = sy_json_text(sy_json_get(message, "from"));
    if (!from || (strcmp(from, who) && strcmp(from, or))) return NULL;
    return sy_json_text_n(sy_json_get(message, "value"), n);
}

/* The first question with an answer after it; false: there is none. */
static bool first_turn(const struct sy_json *entry, int32_t n_out, struct sy_turn *t)
{
    const struct sy_json *talk = sy_json_get(entry, "conversations");
    for (size_t i = 0; i + 1 < sy_json_len(talk); i++) {
        size_t n_answer = 0;
        const char *answer = said_by(sy_json_at(talk, i + 1), "gpt", "assistant", &n_answer);
        size_t n_text = 0;
        const char *text = said_by(sy_json_at(talk, i), "human", "user", &n_text);
        if (!text || !n_text || !answer || !n_answer) continue;
        *t = (struct sy_turn){.text = text,
                              .n_text = n_text,
                              .n_in = estimate(n_text),
                              .n_out = n_out > 0 ? n_out : estimate(n_answer)};
        return true;
    }
    return false;
}

sy_status sy_workload_dataset(const struct sy_env *env, const char *text, size_t n_text, int32_t n_out, uint64_t seed,
                              struct sy_workload *out, struct sy_err *err)
{
    struct sy_workload w = {0};
    sy_arena_init(&w.arena, env, 0);
    sy_status st = sy_json_parse(env, text, n_text, false, &w.json, err);
    if (!st && !sy_json_is_array(w.json)) st = sy_fail(err, SY_EFORMAT, "expected an array of conversations");
    size_t n = sy_json_len(w.json);
    struct sy_turn *turn = st ? NULL : sy_arena_array(&w.arena, n + 1, sizeof *turn);
    w.session = st ? NULL : sy_arena_array(&w.arena, n + 1, sizeof *w.session);
    if (!st && (!turn || !w.session)) st = no_memory(err);
    for (size_t i = 0; !st && i < n; i++) {
        if (!first_turn(sy_json_at(w.json, i), n_out, &turn[w.n])) continue;
        w.session[w.n] = (struct sy_user_session){&turn[w.n], 1, 0};
        w.n++;
    }
    if (!st && w.n == 0)
        st = sy_fail(err, SY_EFORMAT,
                     "expected conversations [{\"from\":\"human\",\"value\":..},{\"from\":\"gpt\",..}], found none");
    for (size_t i = w.n; !st && i > 1; i--) { /* Fisher and Yates */
        size_t k = (size_t)sy_uniform(seed, i, 0, (int64_t)i - 1);
        struct sy_user_session swap = w.session[i - 1];
        w.session[i - 1] = w.session[k];
        w.session[k] = swap;
    }
    if (st) sy_workload_release(&w);
    else *out = w;
    return st;
}

/* ---- traces of lengths --------------------------------------------------------------------------------------- */

static sy_status read_hashes(struct sy_workload *w, struct sy_jread *r, uint64_t seed, struct sy_turn *t)
{
    const struct sy_json *ids = sy_json_get(r->obj, "hash_ids");
    size_t n = sy_json_len(ids), most = ((size_t)t->n_in + HASH_TOKENS - 1) / HASH_TOKENS;
    if (n > most) n = most;
    struct sy_piece *p = sy_arena_array(&w->arena, n + 1, sizeof *p);
    if (!p) return sy_jread_refuse(r, SY_ENOMEM, "no memory for the trace");
    int32_t left = t->n_in;
    for (size_t i = 0; i < n; i++) {
        int64_t id = sy_json_int(sy_json_at(ids, i), -1);
        if (!sy_json_is_int(sy_json_at(ids, i)))
            return sy_jread_refuse(r, SY_EFORMAT, "'hash_ids': expected integers");
        p[i] = (struct sy_piece){sy_rng_u64(seed, (uint64_t)id), left < HASH_TOKENS ? left : HASH_TOKENS};
        left -= p[i].n_tok;
    }
    t->piece = p;
    t->n_piece = n;
    if (left > 0) p[t->n_piece++] = (struct sy_piece){sy_rng_u64(~seed, w->n), left};
    return SY_OK;
}

static sy_status read_turn(struct sy_workload *w, struct sy_jread *r, uint64_t seed, size_t i, struct sy_turn *t)
{
    *t = (struct sy_turn){.n_in = (int32_t)sy_jread_int(r, "input_length", 1, LEN_MAX),
                          .n_out = (int32_t)sy_jread_int(r, "output_length", 1, LEN_MAX),
                          .delay_ns = (uint64_t)(sy_jread_num_or(r, "delay_ms", 0, 0, 1e9) * 1e6)};
    struct sy_piece *p = sy_arena_get(&w->arena, sizeof *p);
    if (!p) return sy_jread_refuse(r, SY_ENOMEM, "no memory for the trace");
    *p = (struct sy_piece){sy_rng_u64(sy_rng_u64(~seed, w->n), i), t->n_in};
    t->piece = p;
    t->n_piece = 1;
    return r->st;
}

static sy_status read_session(struct sy_workload *w, const struct sy_json *o, const char *where, uint64_t seed,
                              struct sy_user_session *s, struct sy_err *err)
{
    struct sy_jread r = {.obj = o, .where = where, .err = err};
    const struct sy_json *turns = sy_json_get(o, "turns");
    bool several = turns != NULL;
    s->n_turn = several ? sy_json_len(turns) : 1;
    if (several && (!sy_json_is_array(turns) || s->n_turn < 1 || s->n_turn > TURN_MAX))
        return sy_fail(err, SY_EFORMAT, "%s: 'turns': expected an array of 1 to %d", where, TURN_MAX);
    struct sy_turn *turn = sy_arena_array(&w->arena, s->n_turn, sizeof *turn);
    if (!turn) return no_memory(err);
    s->turn = turn;
    s->start_ns = (uint64_t)(sy_jread_num_or(&r, "timestamp", 0, 0, 1e12) * 1e6);
    w->timed |= sy_jread_has(&r, "timestamp");
    sy_status st = r.st;
    for (size_t i = 0; !st && i < s->n_turn; i++) {
        struct sy_jread one = {.obj = several ? sy_json_at(turns, i) : o, .where = where, .err = err};
        if (!sy_json_is_object(one.obj)) return sy_fail(err, SY_EFORMAT, "%s: 'turns': expected objects", where);
        st = read_turn(w, &one, seed, i, &turn[i]);
        if (!st && !several && sy_jread_has(&one, "hash_ids")) st = read_hashes(w, &one, seed, &turn[i]);
    }
    return st;
}

static size_t count_lines(const char *text, size_t n)
{
    size_t lines = 1;
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    return lines;
}

static sy_status read_line(struct sy_workload *w, const struct sy_env *env, const char *line, size_t n, size_t number,
                           uint64_t seed, struct sy_err *err)
{
    char where[48];
    snprintf(where, sizeof where, "line %zu", number);
    struct sy_json *o;
    sy_status st = sy_json_parse(env, line, n, false, &o, err);
    if (st) return sy_while(err, st, "%s", where);
    if (!sy_json_is_object(o)) st = sy_fail(err, SY_EFORMAT, "%s: expected an object", where);
    struct sy_user_session s = {0};
    if (!st) st = read_session(w, o, where, seed, &s, err);
    sy_json_free(o);
    if (!st && w->n && s.start_ns < w->session[w->n - 1].start_ns)
        return sy_fail(err, SY_EFORMAT, "%s: 'timestamp': must not be before the line above", where);
    if (!st) w->session[w->n++] = s;
    return st;
}

static bool is_blank(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r') return false;
    return true;
}

sy_status sy_workload_trace(const struct sy_env *env, const char *text, size_t n_text, uint64_t seed,
                            struct sy_workload *out, struct sy_err *err)
{
    struct sy_workload w = {0};
    sy_arena_init(&w.arena, env, 0);
    w.session = sy_arena_array(&w.arena, count_lines(text, n_text), sizeof *w.session);
    sy_status st = w.session ? SY_OK : no_memory(err);
    size_t number = 0;
    for (size_t at = 0; !st && at < n_text;) {
        const char *end = memchr(text + at, '\n', n_text - at);
        size_t n = end ? (size_t)(end - (text + at)) : n_text - at;
        number++;
        if (!is_blank(text + at, n)) st = read_line(&w, env, text + at, n, number, seed, err);
        at += n + 1;
    }
    if (!st && w.n == 0) st = sy_fail(err, SY_EFORMAT, "expected a JSON object a line, found none");
    if (st) sy_workload_release(&w);
    else *out = w;
    return st;
}

/* ---- tokens -------------------------------------------------------------------------------------------------- */

void sy_turn_ids(const struct sy_turn *t, int32_t n_vocab, struct sy_buf *b)
{
    for (size_t p = 0; p < t->n_piece; p++)
        for (int32_t i = 0; i < t->piece[p].n_tok; i++)
            sy_buf_printf(b, "%s%d", b->len ? "," : "",
                          (int)sy_uniform(t->piece[p].seed, (uint64_t)i, 0, n_vocab - 1));
}

/* Words that, with a blank before them, are one token in the vocabularies in use. */
static const char *const words[] = {
    "time",    "year",    "people", "way",      "day",      "man",     "thing", "woman",   "life",   "child",
    "world",   "school",  "state",  "family",   "group",    "country", "hand",  "part",    "place",  "case",
    "week",    "company", "system", "program",  "work",     "number",  "night", "point",   "home",   "water",
    "room",    "mother",  "area",   "money",    "story",    "fact",    "month", "lot",     "right",  "study",
    "book",    "eye",     "job",    "word",     "business", "issue",   "side",  "kind",    "head",   "house",
    "service", "friend",  "father", "power",    "hour",     "game",    "line",  "end",     "member", "law",
    "car",     "city",    "name",   "team",     "minute",   "idea",    "body",  "back",    "parent", "face",
    "level",   "office",  "door",   "health",   "person",   "art",     "war",   "history", "party",  "result",
    "change",  "morning", "reason", "research", "girl",     "moment",  "air",   "teacher", "force",  "food",
};

void sy_turn_words(const struct sy_turn *t, struct sy_buf *b)
{
    if (t->text) {
        sy_buf_add(b, t->text, t->n_text);
        return;
    }
    for (size_t p = 0; p < t->n_piece; p++)
        for (int32_t i = 0; i < t->piece[p].n_tok; i++) {
            if (b->len) sy_buf_char(b, ' ');
            sy_buf_text(b, words[sy_uniform(t->piece[p].seed, (uint64_t)i, 0, SY_COUNT(words) - 1)]);
        }
}
