#include "plan/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/sim/sim.h"
#include "base/rng.h"
#include "serve/router.h"

enum { N_VOCAB = 1 << 16, RANK_MAX = 1024, COAST_MAX = 256, COAST_LEAST = 8 };

struct sim;
enum stage {
    ASKS,     /* its next turn, when it wakes */
    LOADS,    /* what it waits for comes over a link */
    PREFILLS, /* its prompt is computed, to be decoded elsewhere */
    RUNS
};
struct user { /* a session on its way, and the request it waits for */
    struct sim *s;
    enum stage stage;
    int32_t n_given; /* tokens of its prompt whose keys are there */
    const struct sy_user_session *session;
    size_t turn;
    int32_t rank; /* of all replicas */
    double asked_s, first_s, last_s;
    int32_t n_out, n_prompt;
    uint64_t wake_ns;  /* when its next turn is asked */
    int64_t n_said;    /* tokens that were said before and are kept */
    bool waits;        /* it can wait: the router's backends for batches take it */
    struct user *next; /* of the free ones; of those whose turn ended in this step */
};
struct rank {
    struct sy_engine *engine;
    struct sy_backend *backend;
    int64_t pending; /* prompt tokens of requests without a first token */
    int32_t n_open;
    bool began; /* it takes part in its replica's step */
};
struct coast { /* decode steps that are alike: when they end, and what they take */
    uint64_t began_ns, end_ns[COAST_MAX];
    double s[COAST_MAX];
    double live, run; /* tokens of each step, wanted and computed */
    int32_t n, seq;   /* steps, 0: none; sequences in each */
    int32_t most;     /* to try: the more, the longer it was not cut short */
};
struct replica {
    uint64_t now;       /* when its step in progress ends, or it last did */
    uint64_t link_free; /* when all that was asked of its link has passed */
    bool busy, listed;
    double busy_s, live_tok, run_tok;
    struct coast coast;
};
struct sim {
    const struct sy_env *outer;
    struct sy_env env; /* the engines': its clock is `now` */
    struct sy_clock clock;
    uint64_t now;
    const struct sy_sim_opt *o;
    const struct sy_workload *w;
    struct rank *rank;
    struct replica *replica;
    struct sy_route_backend *backend; /* replicas as the router sees them */
    int32_t n_rank;                   /* of a replica at most: where the next one's begin */
    size_t next_session, n_done, n_waking, n_user;
    uint64_t start_ns; /* of the next session, where they have times */
    struct user *user, *free_user, *finished;
    struct user **waking; /* a heap by wake_ns */
    int32_t *ending;      /* replicas whose steps are in progress: a heap by when they end */
    int32_t n_ending;
    int32_t *idle; /* replicas without a step that may have something to do now */
    int32_t n_idle;
    int32_t *prompt;
    bool prefix_cache;           /* it is on, and could find something */
    double tok_bytes, seq_bytes; /* that go over a link: keys of a token, states of a sequence */
    int32_t next_rank[2];        /* of those that take requests, of those that take what was prefilled */
    struct sy_samples ttft, tpot, e2e;
    struct sy_sim_seen seen;
    int32_t event_of; /* what happens now comes after the steps that end now of replicas below this */
    sy_status st;
    struct sy_err *err;
};

static bool is_batch(const struct sim *s, int32_t replica) { return replica >= s->o->n_replica - s->o->n_batch; }

static const struct sy_timer *timer_of(const struct sim *s, int32_t replica)
{
    return is_batch(s, replica) && s->o->batch_timer ? s->o->batch_timer : s->o->timer;
}

static int32_t ranks_of(const struct sim *s, int32_t replica) { return timer_of(s, replica)->layout.dp; }

static uint64_t clock_now(void *ctx) { return ((struct sim *)ctx)->now; }

/* ---- sessions that wait for their time ----------------------------------------------------------------------- */

static void wake_later(struct sim *s, struct user *u)
{
    size_t i = s->n_waking++;
    for (; i > 0 && s->waking[(i - 1) / 2]->wake_ns > u->wake_ns; i = (i - 1) / 2)
        s->waking[i] = s->waking[(i - 1) / 2];
    s->waking[i] = u;
}

static struct user *wake_first(struct sim *s)
{
    struct user *first = s->waking[0], *last = s->waking[--s->n_waking];
    size_t i = 0;
    for (size_t k; (k = 2 * i + 1) < s->n_waking; i = k) {
        if (k + 1 < s->n_waking && s->waking[k + 1]->wake_ns < s->waking[k]->wake_ns) k++;
        if (s->waking[k]->wake_ns >= last->wake_ns) break;
        s->waking[i] = s->waking[k];
    }
    s->waking[i] = last;
    return first;
}

/* Of steps that end at the same time the one of the first replica comes first. */
static bool ends_before(const struct sim *s, int32_t a, int32_t b)
{
    uint64_t x = s->replica[a].now, y = s->replica[b].now;
    return x < y || (x == y && a < b);
}

static void sift_up(struct sim *s, int32_t i, int32_t replica)
{
    for (; i > 0 && ends_before(s, replica, s->ending[(i - 1) / 2]); i = (i - 1) / 2)
        s->ending[i] = s->ending[(i - 1) / 2];
    s->ending[i] = replica;
}

static void end_later(struct sim *s, int32_t replica) { sift_up(s, s->n_ending++, replica); }

static int32_t end_first(struct sim *s)
{
    int32_t first = s->ending[0], last = s->ending[--s->n_ending], i = 0;
    for (int32_t k; (k = 2 * i + 1) < s->n_ending; i = k) {
        if (k + 1 < s->n_ending && ends_before(s, s->ending[k + 1], s->ending[k])) k++;
        if (!ends_before(s, s->ending[k], last)) break;
        s->ending[i] = s->ending[k];
    }
    s->ending[i] = last;
    return first;
}

/* ---- requests ------------------------------------------------------------------------------------------------ */

static int32_t steps_of(const struct sim *s, int32_t n_out)
{
    double n = s->o->accepted > 1 ? ceil(n_out / s->o->accepted) : n_out;
    return n < 1 ? 1 : (int32_t)n;
}

/* A replica that is not in a step may begin one, once all that happens now has happened. */
static void look_at(struct sim *s, int32_t replica)
{
    struct replica *r = &s->replica[replica];
    if (r->busy || r->listed) return;
    r->listed = true;
    s->idle[s->n_idle++] = replica;
}

/* decodes: for a prompt that was computed elsewhere. */
static int32_t choose_rank(struct sim *s, const struct user *u, bool decodes)
{
    int32_t apart = s->n_rank * s->o->n_prefill, first = decodes ? apart : 0, *next = &s->next_rank[decodes];
    int32_t n = apart && !decodes ? apart : s->n_rank * s->o->n_replica - first;
    if (s->o->routed) {
        const struct sy_turn *t = u->session->turn;
        uint64_t prefix = t->n_piece ? t->piece[0].seed : (uint64_t)(u->session - s->w->session);
        int32_t i = sy_route_pick(s->backend, s->o->n_replica, u->waits ? SY_ROUTE_BATCH : SY_ROUTE_ONLINE, prefix);
        first = i * s->n_rank;
        n = ranks_of(s, i);
    }
    int32_t best = first + *next % n;
    if (s->o->balance != SY_BALANCE_PINNED)
        for (int32_t k = 1; k < n; k++) {
            int32_t i = first + (*next + k) % n;
            const struct rank *a = &s->rank[i], *b = &s->rank[best];
            if (a->n_open < b->n_open || (a->n_open == b->n_open && a->pending < b->pending)) best = i;
        }
    *next = (*next + 1) % (s->o->routed ? RANK_MAX : n);
    return best;
}

static void on_event(void *ctx, const struct sy_event *ev)
{
    struct user *u = ctx;
    struct sim *s = u->s;
    struct rank *r = &s->rank[u->rank];
    double now = 1e-9 * (double)s->now;
    if (u->stage == PREFILLS) {
        r->pending -= u->n_prompt;
    } else if (ev->id >= 0) {
        if (u->n_out++ == 0) {
            u->first_s = now;
            r->pending -= u->n_prompt;
            s->seen.cached_tok += ev->n_cached;
            if (!u->waits) sy_samples_add(&s->ttft, now - u->asked_s);
        }
        u->last_s = now;
    }
    if (ev->finish == SY_RUNNING) return;
    r->n_open--;
    s->backend[u->rank / s->n_rank].n_open--;
    u->next = s->finished;
    s->finished = u;
}

/* The last n_keep tokens of what a session said before its turn, answers being token 0 as the backend has them, and
 * what is new in it. Without a prefix cache nobody looks at them. */
static void write_prompt(struct sim *s, const struct user *u, int64_t n_keep)
{
    if (!s->prefix_cache) return;
    int64_t at = n_keep;
    for (size_t k = 0; k < u->turn; k++) at -= (int64_t)u->session->turn[k].n_in + u->session->turn[k].n_out;
    for (size_t k = 0; k <= u->turn; k++) {
        const struct sy_turn *t = &u->session->turn[k];
        for (size_t p = 0; p < t->n_piece; p++)
            for (int32_t i = 0; i < t->piece[p].n_tok; i++, at++)
                if (at >= 0) s->prompt[at] = (int32_t)(sy_rng_u64(t->piece[p].seed, (uint64_t)i) % N_VOCAB);
        for (int32_t i = 0; i < t->n_out && k < u->turn; i++, at++)
            if (at >= 0) s->prompt[at] = 0;
    }
}

/* Somebody comes: of the steps that a replica was to take alike only those that began before are left. */
static void cut_short(struct sim *s, int32_t replica)
{
    struct replica *r = &s->replica[replica];
    struct coast *c = &r->coast;
    int32_t lo = 0, hi = c->n - 1; /* the last one is in progress, or its end would have happened */
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        bool ended = c->end_ns[mid] < s->now || (c->end_ns[mid] == s->now && replica < s->event_of);
        if (ended) lo = mid + 1;
        else hi = mid;
    }
    if (lo + 1 >= c->n) return;
    c->n = lo + 1;
    c->most = c->n > COAST_LEAST ? c->n : COAST_LEAST;
    r->now = c->end_ns[lo];
    int32_t at = 0;
    while (s->ending[at] != replica) at++;
    sift_up(s, at, replica);
}

/* To the engine of its rank. */
static void enter(struct sim *s, struct user *u)
{
    const struct sy_turn *t = &u->session->turn[u->turn];
    struct rank *r = &s->rank[u->rank];
    u->stage = u->rank < s->n_rank * s->o->n_prefill ? PREFILLS : RUNS;
    write_prompt(s, u, u->n_said);
    struct sy_request q = {.prompt = s->prompt,
                           .n_prompt = u->n_prompt,
                           .n_given = u->n_given,
                           .n_max = u->stage == PREFILLS ? 1 : steps_of(s, t->n_out),
                           .ignore_eos = true,
                           .no_cache_read = !s->prefix_cache,
                           .sampling = {.n_logprob = -1},
                           .on_event = on_event,
                           .ctx = u};
    uint64_t id;
    sy_status st = sy_engine_submit(r->engine, &q, &id, s->err);
    if (st) s->st = sy_while(s->err, st, "request of %d tokens in, %d out", u->n_prompt, t->n_out);
    int32_t i = u->rank / s->n_rank;
    if (s->replica[i].coast.n) cut_short(s, i);
    look_at(s, i);
}

/* To a rank, whose queue counts it from now on, once n_tok tokens' keys have come over a replica's link. */
static void send(struct sim *s, struct user *u, int32_t rank, int32_t replica, double n_tok)
{
    struct replica *r = &s->replica[replica];
    double bytes = n_tok > 0 ? n_tok * s->tok_bytes + s->seq_bytes : 0;
    uint64_t ns = s->o->link_bytes_s > 0 ? (uint64_t)(1e9 * bytes / s->o->link_bytes_s) : 0;
    uint64_t begins = r->link_free > s->now ? r->link_free : s->now;
    u->rank = rank;
    s->rank[rank].pending += u->n_prompt;
    s->rank[rank].n_open++;
    s->backend[rank / s->n_rank].n_open++;
    if (ns == 0) {
        enter(s, u);
        return;
    }
    s->seen.link_wait_s += 1e-9 * (double)(begins - s->now);
    s->seen.link_busy_s += 1e-9 * (double)ns;
    r->link_free = begins + ns;
    u->stage = LOADS;
    u->wake_ns = r->link_free;
    wake_later(s, u);
}

static void ask(struct sim *s, struct user *u)
{
    const struct sy_turn *t = &u->session->turn[u->turn];
    int64_t n_prompt = u->n_said + t->n_in;
    if (n_prompt < 1) n_prompt = 1;
    if (n_prompt + t->n_out > s->o->ctx_len) { /* the oldest of what was said is forgotten */
        int64_t keep = s->o->ctx_len - t->n_out - t->n_in;
        u->n_said = keep > 0 ? keep : 0;
        n_prompt = u->n_said + t->n_in;
    }
    u->n_prompt = (int32_t)n_prompt;
    int32_t fresh = (int32_t)ceil((double)n_prompt * (1 - s->o->hit - s->o->tier_hit));
    u->n_given = u->n_prompt - (fresh < 1 ? 1 : fresh);
    u->n_out = 0;
    u->asked_s = 1e-9 * (double)s->now;
    int32_t rank = choose_rank(s, u, false);
    send(s, u, rank, rank / s->n_rank, s->o->tier_hit * u->n_given / (s->o->hit + s->o->tier_hit + 1e-30));
}

/* Its prompt is computed: the keys of all but the last token go to where it is decoded. */
static void hand_over(struct sim *s, struct user *u)
{
    u->n_given = u->n_prompt - 1;
    send(s, u, choose_rank(s, u, true), u->rank / s->n_rank, u->n_given);
}

static bool start_session(struct sim *s, bool waits)
{
    if (s->next_session == s->w->n) return false;
    struct user *u = s->free_user;
    s->free_user = u->next;
    *u = (struct user){.s = s, .waits = waits, .session = &s->w->session[s->next_session++]};
    ask(s, u);
    return true;
}

static void finish_turn(struct sim *s, struct user *u)
{
    const struct sy_turn *t = &u->session->turn[u->turn];
    double e2e = u->last_s - u->asked_s;
    if (!u->waits) sy_samples_add(&s->e2e, e2e);
    if (t->n_out > 1 && !u->waits) sy_samples_add(&s->tpot, (u->last_s - u->first_s) / (t->n_out - 1));
    s->seen.in_tok += u->n_prompt;
    s->seen.out_tok += t->n_out;
    s->seen.n_request++;
    u->n_said = u->n_prompt + t->n_out;
    if (++u->turn < u->session->n_turn) {
        u->stage = ASKS;
        u->wake_ns = s->now + u->session->turn[u->turn].delay_ns;
        wake_later(s, u);
        return;
    }
    s->n_done++;
    u->next = s->free_user;
    s->free_user = u;
    if (s->o->users > 0 && !s->st) start_session(s, u->waits);
}

/* ---- steps --------------------------------------------------------------------------------------------------- */

static struct sy_rank_load speculated(const struct sim *s, struct sy_rank_load l)
{
    double more = s->o->drafted, decode = l.tok - l.prompt;
    if (more <= 0) return l;
    l.keys += more * (l.keys - l.prompt_keys);
    l.tok += more * decode;
    l.out += more * decode;
    return l;
}

/* Every rank gets its share of the step's prompts. */
static void spread(struct sy_rank_load *load, int32_t n)
{
    double tok = 0, keys = 0;
    for (int32_t k = 0; k < n; k++) {
        tok += load[k].prompt / n;
        keys += load[k].prompt_keys / n;
    }
    for (int32_t k = 0; k < n; k++) {
        load[k].tok += tok - load[k].prompt;
        load[k].keys += keys - load[k].prompt_keys;
        load[k].prompt = tok;
        load[k].prompt_keys = keys;
    }
}

static bool has_work(const struct sim *s, int32_t i)
{
    for (int32_t k = 0; k < ranks_of(s, i); k++)
        if (s->rank[i * s->n_rank + k].n_open > 0) return true;
    return false;
}

/* What a step of these loads takes, and the tokens that are wanted and computed in it. */
static double step_time(const struct sim *s, int32_t i, struct sy_rank_load *load, double *live, double *run)
{
    const struct sy_timer *t = timer_of(s, i);
    int32_t n = t->layout.dp;
    double widest = 0;
    *live = 0;
    if (s->o->balance == SY_BALANCE_SPREAD) spread(load, n);
    for (int32_t k = 0; k < n; k++) {
        if (load[k].tok > widest) widest = load[k].tok;
        *live += load[k].tok;
    }
    *run = sy_timer_padded(t, widest) * n;
    return sy_timer_step(t, load, n);
}

/* Steps that are alike on all ranks, two at least: they are timed, and taken when the last one ends. */
static bool coast(struct sim *s, int32_t i)
{
    struct replica *r = &s->replica[i];
    struct coast *c = &r->coast;
    struct sy_alike a[RANK_MAX];
    struct sy_rank_load load[RANK_MAX];
    int32_t n = c->most, seq = 0;
    if (s->o->each_step) return false;
    for (int32_t k = 0; k < ranks_of(s, i) && n > 1; k++) {
        a[k] = sy_engine_alike(s->rank[i * s->n_rank + k].engine, n);
        n = a[k].n;
        seq += a[k].seq;
    }
    if (n < 2 || seq == 0) return false;
    c->began_ns = r->now = s->now;
    c->seq = seq;
    for (c->n = 0; c->n < n; c->n++) {
        for (int32_t k = 0; k < ranks_of(s, i); k++) {
            double each = a[k].seq, ctx = (double)(a[k].ctx + (int64_t)a[k].seq * c->n);
            load[k] =
                speculated(s, (struct sy_rank_load){.tok = each, .out = each, .seq = each, .keys = ctx, .ctx = ctx});
        }
        c->s[c->n] = step_time(s, i, load, &c->live, &c->run);
        c->end_ns[c->n] = r->now += (uint64_t)(1e9 * c->s[c->n]) + 1;
    }
    r->busy = true;
    end_later(s, i);
    return true;
}

static void coasted(struct sim *s, int32_t i)
{
    struct replica *r = &s->replica[i];
    struct coast *c = &r->coast;
    for (int32_t k = 0; k < ranks_of(s, i); k++)
        sy_engine_skip(s->rank[i * s->n_rank + k].engine, c->began_ns, c->end_ns, c->n, 0);
    for (int32_t k = 0; k < c->n; k++) {
        r->busy_s += c->s[k];
        r->live_tok += c->live;
        r->run_tok += c->run;
    }
    s->seen.n_step += (uint64_t)c->n;
    s->seen.n_seq_step += (uint64_t)c->n * (uint64_t)c->seq;
    if (c->n == c->most && c->most < COAST_MAX) c->most *= 2;
    if (c->most > COAST_MAX) c->most = COAST_MAX;
    c->n = 0;
}

static void begin(struct sim *s, int32_t i)
{
    if (coast(s, i)) return;
    struct sy_rank_load load[RANK_MAX];
    struct replica *at = &s->replica[i];
    bool any = false;
    for (int32_t k = 0; k < ranks_of(s, i) && !s->st; k++) {
        struct rank *r = &s->rank[i * s->n_rank + k];
        load[k] = (struct sy_rank_load){0};
        s->st = sy_engine_step_begin(r->engine, &r->began, s->err);
        if (s->st || !r->began) continue;
        any = true;
        load[k] = speculated(s, sy_sim_rank_load(r->backend));
        s->seen.n_seq_step += (uint64_t)load[k].seq;
    }
    if (!any || s->st) return;
    double live, run, t = step_time(s, i, load, &live, &run);
    at->live_tok += live;
    at->run_tok += run;
    at->busy_s += t;
    s->seen.n_step++;
    at->busy = true;
    at->now = s->now + (uint64_t)(1e9 * t) + 1;
    end_later(s, i);
}

static void begin_idle(struct sim *s)
{
    for (int32_t k = 0; k < s->n_idle; k++) {
        int32_t i = s->idle[k];
        s->replica[i].listed = false;
        if (!s->st && has_work(s, i)) begin(s, i);
    }
    s->n_idle = 0;
}

static void end(struct sim *s, int32_t i)
{
    s->replica[i].busy = false;
    if (s->replica[i].coast.n) {
        coasted(s, i);
        return;
    }
    for (int32_t k = 0; k < ranks_of(s, i) && !s->st; k++) {
        struct rank *r = &s->rank[i * s->n_rank + k];
        if (r->began) s->st = sy_engine_step_end(r->engine, s->err);
    }
    while (s->finished && !s->st) {
        struct user *u = s->finished;
        s->finished = u->next;
        if (u->stage == PREFILLS) hand_over(s, u);
        else finish_turn(s, u);
    }
}

/* What happens next: the end of a step, somebody's next question or what a link brought, or a session's start. */
enum event { NOTHING, STEP, WAKE, SESSION };

static enum event next_event(const struct sim *s, uint64_t *at)
{
    enum event e = NOTHING;
    *at = UINT64_MAX;
    if (s->n_ending) {
        *at = s->replica[s->ending[0]].now;
        e = STEP;
    }
    if (s->n_waking && s->waking[0]->wake_ns < *at) {
        *at = s->waking[0]->wake_ns;
        e = WAKE;
    }
    if (s->o->users <= 0 && s->next_session < s->w->n && s->start_ns <= *at) {
        *at = s->start_ns;
        e = SESSION;
    }
    return e;
}

static void plan_start(struct sim *s)
{
    size_t i = s->next_session;
    if (i == s->w->n) return;
    if (s->o->rate > 0) s->start_ns += (uint64_t)(1e9 * sy_poisson_gap(s->o->seed, i, s->o->rate));
    else s->start_ns = s->w->session[i].start_ns;
}

static void run(struct sim *s)
{
    plan_start(s);
    for (int64_t i = 0, n = s->o->users, w = s->o->n_waits; i < n && !s->st; i++)
        if (!start_session(s, (i + 1) * w / n > i * w / n)) break;
    while (!s->st) {
        begin_idle(s);
        uint64_t at;
        enum event e = next_event(s, &at);
        if (e == NOTHING) return;
        if (at > s->now) s->now = at;
        s->event_of = e == SESSION ? -1 : INT32_MAX; /* as next_event() has them */
        if (e == STEP) {
            int32_t i = s->event_of = end_first(s);
            end(s, i);
            look_at(s, i);
        } else if (e == WAKE) {
            struct user *u = wake_first(s);
            if (u->stage == LOADS) enter(s, u);
            else ask(s, u);
        } else {
            if (!start_session(s, false)) return;
            plan_start(s);
        }
    }
}

/* ---- opening and closing ------------------------------------------------------------------------------------- */

static sy_status open_rank(struct sim *s, int32_t replica, struct rank *r)
{
    const struct sy_sim_opt *o = s->o;
    const struct sy_timer *t = timer_of(s, replica);
    bool other = t == o->batch_timer;
    int32_t seq_max = other ? o->batch_seq_max : o->seq_max;
    struct sy_fit fit = sy_timer_fit(t, o->memory_share > 0 ? o->memory_share : 1, o->ctx_len);
    double per_token = fit.per_token * t->layout.tp + fit.per_seq * t->layout.tp / o->ctx_len;
    int64_t block_bytes = (int64_t)(per_token * o->block_len) + 1;
    struct sy_engine_opt eo = {.ctx_len = o->ctx_len,
                               .block_len = o->block_len,
                               .seq_max = seq_max,
                               .batch_tok_max = other ? o->batch_chunk : o->chunk,
                               .score_row_max = 1,
                               .gap_ms_max = o->gap_ms_max,
                               .wait_max = INT32_MAX,
                               .scheduling = o->scheduling,
                               .no_prefix_cache = !s->prefix_cache};
    if (o->memory_share > 0) {
        if (fit.room <= 0)
            return sy_fail(s->err, SY_ENOMEM, "%.1f GB of weights do not fit a device of %.1f GB", fit.weights / 1e9,
                           t->chip.memory_bytes / t->chip.devices / 1e9);
        eo.kv_bytes_max = (int64_t)(fit.room * t->layout.tp);
    }
    struct sy_engine_bare b = {.ops = &sy_backend_sim,
                               .info = {.n_vocab = N_VOCAB, .n_ctx = o->ctx_len, .n_layer = 1, .d_model = 1},
                               .block_bytes = block_bytes};
    sy_status st = sy_sim_rank_new(&s->env, seq_max, N_VOCAB, &b.backend, s->err);
    r->backend = b.backend;
    return st ? st : sy_engine_new_bare(&s->env, &eo, &b, &r->engine, s->err);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Whether any two prompts can begin alike: turns of a session do, and those whose first pieces are the same. Where
 * none do, a prefix cache changes nothing but the time that it takes to fill it. */
static sy_status look_for_prefixes(struct sim *s)
{
    const struct sy_workload *w = s->w;
    s->prefix_cache = s->o->prefix_cache;
    if (!s->prefix_cache || w->n == 0) return SY_OK;
    uint64_t *first = sy_new_array(s->outer, w->n, sizeof *first);
    if (!first) return sy_fail(s->err, SY_ENOMEM, "no memory to simulate %zu sessions", w->n);
    bool alike = false;
    for (size_t i = 0; i < w->n; i++) {
        const struct sy_turn *t = w->session[i].turn;
        first[i] = t->n_piece ? t->piece[0].seed : 0;
        alike |= w->session[i].n_turn > 1;
    }
    if (!alike) qsort(first, w->n, sizeof *first, by_value);
    for (size_t i = 1; i < w->n && !alike; i++) alike = first[i] == first[i - 1];
    sy_delete(s->outer, first);
    s->prefix_cache = alike;
    return SY_OK;
}

static sy_status open_all(struct sim *s)
{
    const struct sy_env *env = s->outer;
    const struct sy_sim_opt *o = s->o;
    bool kinds = o->batch_timer && (o->batch_chunk < 1 || o->batch_seq_max < 1);
    s->n_rank = o->timer->layout.dp;
    if (o->batch_timer && o->batch_timer->layout.dp > s->n_rank) s->n_rank = o->batch_timer->layout.dp;
    if (kinds || o->n_batch < 0 || o->n_batch >= o->n_replica || o->n_waits < 0 || o->n_waits > o->users ||
        ((o->n_batch || o->n_waits) && !o->routed) || (o->routed && o->n_prefill) || s->n_rank > RANK_MAX ||
        o->n_replica < 1 || o->ctx_len < 2 || o->seq_max < 1 || o->chunk < 1 ||
        !(o->hit >= 0 && o->tier_hit >= 0 && o->hit + o->tier_hit < 1) || o->n_prefill < 0 ||
        o->n_prefill >= o->n_replica)
        return sy_fail(s->err, SY_EARG,
                       "simulation: expected 1 to %d ranks, at least one of everything, and one that decodes",
                       RANK_MAX);
    struct sy_fit fit = sy_timer_fit(o->timer, 1, o->ctx_len);
    s->tok_bytes = fit.per_token * o->timer->layout.tp;
    s->seq_bytes = fit.per_seq * o->timer->layout.tp;
    s->n_user = o->users > 0 ? (size_t)o->users : s->w->n;
    size_t n_rank = (size_t)s->n_rank * (size_t)o->n_replica;
    s->rank = sy_new_array(env, n_rank, sizeof *s->rank);
    s->replica = sy_new_array(env, (size_t)o->n_replica, sizeof *s->replica);
    s->backend = sy_new_array(env, (size_t)o->n_replica, sizeof *s->backend);
    s->user = sy_new_array(env, s->n_user + 1, sizeof *s->user);
    s->waking = sy_new_array(env, s->n_user + 1, sizeof *s->waking);
    s->ending = sy_new_array(env, (size_t)o->n_replica, sizeof *s->ending);
    s->idle = sy_new_array(env, (size_t)o->n_replica, sizeof *s->idle);
    s->prompt = sy_new_array(env, (size_t)o->ctx_len, sizeof *s->prompt);
    for (int32_t i = 0; s->replica && i < o->n_replica; i++) s->replica[i].coast.most = COAST_LEAST;
    if (!s->rank || !s->replica || !s->user || !s->waking || !s->prompt || !s->ending || !s->idle || !s->backend)
        return sy_fail(s->err, SY_ENOMEM, "no memory to simulate %zu sessions", s->n_user);
    for (size_t i = s->n_user; i-- > 0;) {
        s->user[i].next = s->free_user;
        s->free_user = &s->user[i];
    }
    sy_status st = look_for_prefixes(s);
    for (int32_t i = 0; i < o->n_replica && !st; i++) {
        s->backend[i] =
            (struct sy_route_backend){.role = is_batch(s, i) ? SY_ROUTE_BATCH : SY_ROUTE_ONLINE, .healthy = true};
        for (int32_t k = 0; k < ranks_of(s, i) && !st; k++) st = open_rank(s, i, &s->rank[i * s->n_rank + k]);
    }
    return st;
}

static void close_all(struct sim *s)
{
    size_t n_rank = s->rank ? (size_t)s->n_rank * (size_t)s->o->n_replica : 0;
    for (size_t i = 0; i < n_rank; i++) {
        struct rank *r = &s->rank[i];
        if (r->engine) s->seen.n_preempted += sy_engine_stats(r->engine).n_preempt_recompute;
        sy_engine_free(r->engine);
    }
    sy_delete(s->outer, s->rank);
    sy_delete(s->outer, s->replica);
    sy_delete(s->outer, s->backend);
    sy_delete(s->outer, s->user);
    sy_delete(s->outer, s->waking);
    sy_delete(s->outer, s->prompt);
    sy_delete(s->outer, s->ending);
    sy_delete(s->outer, s->idle);
    sy_samples_release(&s->ttft);
    sy_samples_release(&s->tpot);
    sy_samples_release(&s->e2e);
}

sy_status sy_simulate(const struct sy_env *env, const struct sy_sim_opt *o, const struct sy_workload *w,
                      struct sy_sim_seen *out, struct sy_err *err)
{
    struct sim s = {.outer = env, .o = o, .w = w, .err = err, .env = *env};
    s.clock = (struct sy_clock){clock_now, &s};
    s.env.clock = &s.clock;
    sy_samples_init(&s.ttft, env);
    sy_samples_init(&s.tpot, env);
    sy_samples_init(&s.e2e, env);
    s.st = open_all(&s);
    if (!s.st) run(&s);
    if (!s.st && (s.ttft.failed || s.tpot.failed || s.e2e.failed))
        s.st = sy_fail(err, SY_ENOMEM, "no memory for the samples of %zu requests", w->n);
    if (!s.st) {
        s.seen.seconds = 1e-9 * (double)s.now;
        s.seen.ttft = sy_summary_of(s.ttft.at, s.ttft.n);
        s.seen.tpot = sy_summary_of(s.tpot.at, s.tpot.n);
        s.seen.e2e = sy_summary_of(s.e2e.at, s.e2e.n);
        double live = 0, run = 0;
        for (int32_t i = 0; i < o->n_replica; i++) {
            live += s.replica[i].live_tok;
            run += s.replica[i].run_tok;
            s.seen.busy_s += s.replica[i].busy_s;
        }
        s.seen.fill = run > 0 ? live / run : 1;
    }
    close_all(&s);
    if (!s.st) *out = s.seen;
    return s.st;
}
