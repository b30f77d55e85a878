/* The engine in thousands of small random worlds: tiny pools, a clock of its own and a backend whose logits depend on
 * every key and value it finds through the block tables, so that one wrong block, copy or cached prefix changes an
 * answer. SYSTOLE_WORLD=seed replays one world; each failure prints its seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/engine_int.h"

enum { VOCAB = 40, N_REQUEST = 14, CTX = 24 };

/* ---- a world's clock and dice ------------------------------------------------------------------------------------
 */

struct world {
    uint64_t seed, dice, now;
    struct sy_engine e;
    uint64_t n_copy;
    int64_t *row;   /* the fake KV cache: what each row holds */
    int64_t *apart; /* the same of layers with a window, in blocks of their own; NULL: a model without */
    int32_t window;
    uint64_t *slot; /* fake recurrent states: a hash of all tokens so far; NULL: a model without */
    float logits[64 * VOCAB];
    int32_t token[64];
    struct sy_result result;
};

static uint64_t clock_now(void *ctx) { return ((struct world *)ctx)->now; }

static int roll(struct world *w, int n) { return (int)(sy_rng_u64(w->seed, w->dice++) % (uint64_t)n); }

/* ---- the fake backend: state of a sequence is a hash of all its (token, position) ---------------------------- */

static struct world *world_of(struct sy_backend *b) { return (struct world *)(void *)b; }

static uint64_t absorb(uint64_t h, int64_t row) { return sy_rng_u64(h, (uint64_t)row); }

static int64_t row_value(int32_t tok, int32_t pos) { return (int64_t)pos << 32 | (uint32_t)tok; }

/* Mostly the other one of a pair of tokens, back and forth: guesses are often right. */
static void logits_of(uint64_t h, int32_t last, float *x)
{
    for (int i = 0; i < VOCAB; i++) x[i] = (float)(4 * sy_rng_unit(h, (uint64_t)i));
    if (h % 4) x[last ^ 1] += 6;
}

static int32_t best_of(const float *x)
{
    int32_t best = 0;
    for (int32_t i = 1; i < VOCAB; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* Each entry goes on from the slot it reads, or from the beginning. Returns the state behind token `at` of entry seq.
 */
static uint64_t run_entry(struct world *w, const struct sy_batch *b, int32_t seq, int32_t at)
{
    int32_t lo = b->field[SY_START][seq], rd = b->field[SY_SLOT_RD][seq];
    uint64_t h = 1;
    if (b->field[SY_POS][lo] > 0) {
        assert_true(rd > 0 && rd < w->e.plan.n_slot && w->slot[rd] != 0);
        h = w->slot[rd];
    }
    for (int32_t i = lo; i <= at; i++) h = absorb(h, row_value(b->field[SY_TOK][i], b->field[SY_POS][i]));
    return h;
}

/* What a token sees in its window is what the other blocks have of it. */
static void check_window(const struct world *w, const struct sy_batch *b, int32_t seq, int32_t pos)
{
    int32_t len = w->e.plan.block_len, lo = pos < w->window ? 0 : pos - w->window + 1;
    const int32_t *table = b->field[SY_BLOCK_TABLE] + seq * b->shape.block,
                  *apart = b->field[SY_TABLE_APART] + seq * b->shape.block;
    for (int32_t i = lo; i <= pos; i++) {
        assert_true(apart[i / len] > 0 && apart[i / len] < w->e.plan.n_apart);
        assert_true(w->apart[apart[i / len] * len + i % len] == w->row[table[i / len] * len + i % len]);
    }
}

static sy_status fake_forward(struct sy_backend *bk, struct sy_program *p, struct sy_kv_cache *kv,
                              const struct sy_batch *b)
{
    (void)p;
    (void)kv;
    struct world *w = world_of(bk);
    int32_t len = w->e.plan.block_len, seq = 0;
    for (int32_t i = 0; i < b->n_tok; i++) {
        assert_true(b->field[SY_ROW][i] >= len); /* block 0 is never written */
        w->row[b->field[SY_ROW][i]] = row_value(b->field[SY_TOK][i], b->field[SY_POS][i]);
    }
    for (int32_t i = 0; i < b->n_tok && w->apart; i++) {
        assert_true(b->field[SY_ROW_APART][i] >= len && b->field[SY_ROW_APART][i] < len * w->e.plan.n_apart);
        w->apart[b->field[SY_ROW_APART][i]] = row_value(b->field[SY_TOK][i], b->field[SY_POS][i]);
    }
    uint64_t state[64] = {0};
    for (int32_t s = 0, o = 0; w->slot && s < b->n_seq; s++) {
        int32_t end = b->field[SY_START][s + 1];
        for (; o < b->n_out && b->field[SY_OUT][o] < end; o++) state[o] = run_entry(w, b, s, b->field[SY_OUT][o]);
        uint64_t last = run_entry(w, b, s, end - 1);
        assert_true(b->field[SY_SLOT_WR][s] > 0 && b->field[SY_SLOT_WR][s] < w->e.plan.n_slot);
        w->slot[b->field[SY_SLOT_WR][s]] = last;
    }
    for (int32_t o = 0; o < b->n_out; o++) {
        int32_t at = b->field[SY_OUT][o];
        for (seq = 0; b->field[SY_START][seq + 1] <= at; seq++) continue;
        const int32_t *table = b->field[SY_BLOCK_TABLE] + seq * b->shape.block;
        uint64_t h = 1;
        for (int32_t pos = 0; pos <= b->field[SY_POS][at]; pos++)
            h = absorb(h, w->row[table[pos / len] * len + pos % len]);
        if (w->slot) assert_true(h == state[o]); /* blocks and slot tell the same story */
        if (w->apart) check_window(w, b, seq, b->field[SY_POS][at]);
        logits_of(h, b->field[SY_TOK][at], w->logits + o * VOCAB);
        w->token[o] = best_of(w->logits + o * VOCAB);
    }
    w->result =
        (struct sy_result){.token = w->token, .logits = w->logits, .ld = VOCAB, .n = b->n_out, .n_vocab = VOCAB};
    w->now += 1000 + 100 * (uint64_t)b->n_tok;
    return SY_OK;
}

static sy_status fake_wait(struct sy_backend *b, struct sy_want want, struct sy_result *out, struct sy_err *err)
{
    (void)want;
    (void)err;
    *out = world_of(b)->result;
    return SY_OK;
}

static size_t block_bytes(const struct world *w) { return (size_t)w->e.plan.block_len * sizeof(int64_t); }

/* Both kinds of blocks of a run of positions. */
static void move(struct world *w, struct sy_spot at, int64_t *host, bool save)
{
    int64_t *part[2] = {w->row + (int64_t)at.block * w->e.plan.block_len,
                        w->apart ? w->apart + (int64_t)at.apart * w->e.plan.block_len : NULL};
    for (int i = 0; i < 2; i++, host += w->e.plan.block_len)
        if (part[i]) memcpy(save ? host : part[i], save ? part[i] : host, block_bytes(w));
}

static void fake_copy(struct sy_backend *b, struct sy_kv_cache *kv, const struct sy_copy *c, int32_t n)
{
    (void)kv;
    int64_t host[2 * CTX];
    world_of(b)->n_copy += (uint64_t)n;
    for (int32_t i = 0; i < n; i++) {
        move(world_of(b), c[i].from, host, true);
        move(world_of(b), c[i].to, host, false);
    }
}
static void fake_save(struct sy_backend *b, struct sy_kv_cache *kv, struct sy_spot at, void *host)
{
    (void)kv;
    move(world_of(b), at, host, true);
}
static void fake_restore(struct sy_backend *b, struct sy_kv_cache *kv, struct sy_spot at, const void *host)
{
    (void)kv;
    int64_t copy[2 * CTX];
    memcpy(copy, host, (1 + (world_of(b)->apart != NULL)) * block_bytes(world_of(b)));
    move(world_of(b), at, copy, false);
}

static const struct sy_backend_ops fake = {.name = "fake",
                                           .copy_blocks = fake_copy,
                                           .save_block = fake_save,
                                           .restore_block = fake_restore,
                                           .forward = fake_forward,
                                           .wait = fake_wait};

/* ---- requests and what they must answer ---------------------------------------------------------------------- */

struct ask {
    struct world *w;
    uint64_t id;
    int32_t prompt[CTX], n_prompt, n_max, n_sample, got[4][CTX], n_got[4], n_row, from;
    enum sy_finish finish[4];
    struct sy_sampling how;
    bool score, done, stopped[4];
};

static void on_event(void *ctx, const struct sy_event *ev)
{
    struct ask *a = ctx;
    assert_int_equal(a->finish[ev->sample], SY_RUNNING);
    if (ev->id >= 0) a->got[ev->sample][a->n_got[ev->sample]++] = ev->id;
    a->finish[ev->sample] = ev->finish;
    assert_true(ev->n_cached < a->n_prompt);
}

static void on_logits(void *ctx, int32_t pos, const float *logits, int32_t n)
{
    struct ask *a = ctx;
    float want[VOCAB];
    uint64_t h = 1;
    assert_int_equal(n, VOCAB);
    for (int32_t i = 0; i <= pos; i++) h = absorb(h, row_value(a->prompt[i], i));
    logits_of(h, a->prompt[pos], want);
    assert_memory_equal(logits, want, sizeof want);
    a->n_row++;
}

/* The answer computed alone, without engine, blocks or cache. */
static void check_answer(const struct ask *a, int32_t sample)
{
    int32_t tok[2 * CTX], n = a->n_prompt;
    static char scratch[VOCAB * 64];
    uint64_t h = 1;
    memcpy(tok, a->prompt, sizeof(int32_t) * (size_t)n);
    for (int32_t i = 0; i < n; i++) h = absorb(h, row_value(tok[i], i));
    for (int32_t k = 0; k < a->n_got[sample]; k++) {
        float x[VOCAB];
        logits_of(h, tok[n - 1], x);
        struct sy_sampling how = a->how;
        how.seed += (uint64_t)sample;
        struct sy_sample_in in = {.logits = x, .n_vocab = VOCAB, .how = &how, .draw = (uint64_t)k};
        struct sy_sample_out out;
        sy_sample_draw(&in, scratch, &out);
        assert_int_equal(a->got[sample][k], out.id);
        tok[n] = out.id;
        h = absorb(h, row_value(out.id, n++));
    }
}

static void make_ask(struct world *w, struct ask *a)
{
    *a = (struct ask){.w = w, .n_prompt = 1 + roll(w, CTX - 1), .n_sample = 1 + (roll(w, 4) == 0) * roll(w, 3)};
    int family = roll(w, 3); /* prompts of a family share a prefix */
    int32_t same = roll(w, a->n_prompt + 1);
    for (int32_t i = 0; i < a->n_prompt; i++) a->prompt[i] = i < same ? (family * 7 + i) % VOCAB : roll(w, VOCAB);
    a->score = roll(w, 6) == 0;
    a->n_max = a->score && roll(w, 2) ? 0 : 1 + roll(w, 8);
    if (a->n_max == 0) a->n_sample = 1;
    a->how = (struct sy_sampling){.n_logprob = -1, .seed = (uint64_t)roll(w, 1000)};
    if (roll(w, 2)) a->how.temperature = 1;
    struct sy_request r = {.prompt = a->prompt,
                           .n_prompt = a->n_prompt,
                           .n_max = a->n_max,
                           .n_sample = a->n_sample,
                           .ignore_eos = true,
                           .sampling = a->how,
                           .priority = roll(w, 3) - 1,
                           .cache_domain = (uint64_t)roll(w, 2),
                           .on_event = on_event,
                           .ctx = a};
    if (roll(w, 10) == 0) r.deadline_ns = w->now + (uint64_t)roll(w, 20000);
    if (a->score) {
        r.on_logits = on_logits;
        r.logits_from = a->from = roll(w, a->n_prompt);
    }
    struct sy_err err;
    sy_status st = sy_engine_submit(&w->e, &r, &a->id, &err);
    if (!st) return;
    assert_true(st == SY_EARG || st == SY_FULL); /* can never fit, or the queue is full: refused at the door */
    a->done = true;
}

/* One answer's reader has found a stop string; the request's other answers go on. */
static void stop_one(struct world *w, struct ask *a)
{
    int32_t i = roll(w, a->n_sample);
    if (a->done || a->n_got[i] == 0 || a->finish[i] != SY_RUNNING) return;
    sy_engine_stop(&w->e, a->id, i);
    a->stopped[i] = true;
}

/* What the worlds went through, so that a test of nothing is noticed. */
struct seen {
    uint64_t recompute, swap, hit, token, copy, stopped, hit_slots, hit_apart, swap_apart, draft, draft_hit;
};

/* Room for one sequence and a step of it, up to what all may hold and more. */
static void choose_windows(struct world *w)
{
    struct sy_engine *e = &w->e;
    int32_t len = e->plan.block_len, step = (e->plan.batch_tok_max + len - 1) / len;
    w->window = e->plan.window = 1 + roll(w, 12);
    int32_t most = (w->window + e->opt.draft_max) / len + 3, all = (CTX + len - 1) / len;
    int32_t least = most + step < all ? most + step : all;
    e->plan.n_apart = 1 + least + roll(w, e->plan.seq_max * most + 4);
}

static void run_world(uint64_t seed, struct seen *all)
{
    static struct world w;
    static struct ask ask[N_REQUEST];
    w = (struct world){.seed = seed};
    struct sy_clock clock = {clock_now, &w};
    struct sy_env env = *sy_env_default();
    env.clock = &clock;
    struct sy_engine *e = &w.e;
    e->env = &env;
    e->ops = &fake;
    e->backend = (struct sy_backend *)(void *)&w;
    e->plan.block_len = 1 << roll(&w, 3);
    e->plan.n_block = 1 + 3 + roll(&w, 16);
    e->plan.ctx_len = CTX;
    e->plan.seq_max = e->plan.seq_group = 1 + roll(&w, 5);
    e->plan.batch_tok_max = e->plan.seq_max + roll(&w, 10);
    e->plan.info.n_vocab = VOCAB;
    bool states = roll(&w, 2);
    if (states) e->plan.n_slot = 1 + 2 * e->plan.seq_max + roll(&w, 10);
    bool apart = roll(&w, 2);
    e->block_bytes = (1 + apart) * (int64_t)block_bytes(&w);
    e->opt.wait_max = 2 + roll(&w, 12);
    e->opt.swap_bytes = roll(&w, 2) ? e->block_bytes * roll(&w, 12) : 0;
    e->opt.gap_ms_max = roll(&w, 2) ? 0.002 : 0;
    e->opt.no_prefix_cache = roll(&w, 4) == 0;
    e->opt.draft_max = roll(&w, 2) ? roll(&w, 6) : 0;
    e->opt.scheduling = roll(&w, 5) == 0 ? SY_STATIC : SY_CONTINUOUS;
    struct sy_shape shape = {e->plan.batch_tok_max, states ? 2 * e->plan.seq_max + 2 : e->plan.seq_max, CTX,
                             e->plan.seq_max + roll(&w, 6), apart};
    if (apart) choose_windows(&w);
    w.apart = apart ? calloc((size_t)e->plan.n_apart * (size_t)e->plan.block_len, sizeof *w.apart) : NULL;
    w.slot = states ? calloc((size_t)e->plan.n_slot, sizeof *w.slot) : NULL;
    w.row = calloc((size_t)e->plan.n_block * (size_t)e->plan.block_len, sizeof *w.row);
    assert_non_null(w.row);
    struct sy_err err;
    assert_int_equal(engine_tables_new(e, shape, &err), SY_OK);

    int n_ask = 0, idle = 0;
    for (int step = 0; idle < 2; step++) {
        assert_true(step < 5000); /* every request ends: no live-lock */
        while (n_ask < N_REQUEST && roll(&w, 3) == 0) make_ask(&w, &ask[n_ask++]);
        if (n_ask && roll(&w, 25) == 0) sy_engine_cancel(e, ask[roll(&w, n_ask)].id);
        if (n_ask && roll(&w, 15) == 0) stop_one(&w, &ask[roll(&w, n_ask)]);
        bool worked;
        assert_int_equal(sy_engine_step(e, &worked, &err), SY_OK);
        sy_engine_verify(e);
        idle = worked || n_ask < N_REQUEST ? 0 : idle + 1;
    }
    for (int i = 0; i < N_REQUEST; i++)
        for (int32_t s = 0; s < ask[i].n_sample && !ask[i].done; s++) {
            enum sy_finish f = ask[i].finish[s];
            assert_int_not_equal(f, SY_RUNNING);
            if (f == SY_FINISH_STOP) assert_true(ask[i].stopped[s]);
            if (ask[i].stopped[s])
                assert_true(f == SY_FINISH_STOP || f == SY_FINISH_CANCELLED || f == SY_FINISH_DEADLINE);
            all->stopped += f == SY_FINISH_STOP;
            if (f == SY_FINISH_LENGTH && ask[i].n_prompt + ask[i].n_max <= CTX)
                assert_int_equal(ask[i].n_got[s], ask[i].n_max);
            check_answer(&ask[i], s);
            if (ask[i].score && f == SY_FINISH_LENGTH) assert_int_equal(ask[i].n_row, ask[i].n_prompt - ask[i].from);
        }
    struct sy_engine_stats st = sy_engine_stats(e);
    all->recompute += st.n_preempt_recompute;
    all->swap += st.n_preempt_swap;
    all->hit += st.n_cache_hit_tok;
    all->draft += st.n_draft_tok;
    all->draft_hit += st.n_draft_hit_tok;
    all->hit_slots += states ? st.n_cache_hit_tok : 0;
    all->token += st.n_gen_tok;
    all->copy += w.n_copy;
    all->hit_apart += apart ? st.n_cache_hit_tok : 0;
    all->swap_apart += apart ? st.n_preempt_swap : 0;
    assert_int_equal(st.apart_free + st.apart_kept, apart ? e->plan.n_apart - 1 : 0);
    assert_int_equal(st.block_leased, 0);
    assert_int_equal(st.block_free + st.block_cached, st.block_total);
    engine_tables_free(e);
    free(w.row);
    free(w.slot);
    free(w.apart);
}

static void worlds(void **state)
{
    (void)state;
    const char *one = getenv("SYSTOLE_WORLD");
    struct seen all = {0};
    uint64_t lo = one ? strtoull(one, NULL, 10) : 1, hi = one ? lo : 4000;
    for (uint64_t seed = lo; seed <= hi; seed++) {
        char name[32];
        snprintf(name, sizeof name, "%llu", (unsigned long long)seed);
        setenv("SYSTOLE_WORLD_NOW", name, 1); /* printed when an assertion of cmocka ends the test */
        run_world(seed, &all);
    }
    unsetenv("SYSTOLE_WORLD_NOW");
    print_message("%llu tokens, %llu from the prefix cache (%llu with states, %llu with windows), %llu blocks "
                  "copied, preempted %llu by "
                  "recompute, %llu by swap, %llu stopped by their readers, %llu of %llu guesses right\n",
                  (unsigned long long)all.token, (unsigned long long)all.hit, (unsigned long long)all.hit_slots,
                  (unsigned long long)all.hit_apart, (unsigned long long)all.copy, (unsigned long long)all.recompute,
                  (unsigned long long)all.swap, (unsigned long long)all.stopped, (unsigned long long)all.draft_hit,
                  (unsigned long long)all.draft);
    if (one) return;
    assert_true(all.token > 10000 && all.hit > 1000 && all.hit_slots > 1000 && all.hit_apart > 1000 &&
                all.swap_apart > 50 && all.copy > 100 && all.recompute > 1000 && all.swap > 200 &&
                all.stopped > 500 && all.draft_hit > 500 && all.draft > all.draft_hit + 500);
}

static int say_seed(void **state)
{
    (void)state;
    if (getenv("SYSTOLE_WORLD_NOW")) fprintf(stderr, "replay with SYSTOLE_WORLD=%s\n", getenv("SYSTOLE_WORLD_NOW"));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(worlds, say_seed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
