/* What guessing from the text costs and gains, exactly: a backend on a clock of its own, whose steps take a fixed
 * time and a time for each row, and texts of which it is known how often a guess is right, or that were written. */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/rng.h"
#include "engine/engine.h"

enum { PROMPT = 64, ANSWER = 128, OUT = 64, VOCAB = 1 << 16, PIECE = 4 };

struct machine {
    double now, row; /* ns; a row's time, of a step's without rows */
    uint64_t seed, rows;
    int32_t n_kind, period; /* tokens are drawn from n_kind, independently; or repeat after `period` */
    double noise;           /* of a step's time, a part of it */
    const int32_t *text;    /* [PROMPT + ANSWER]; NULL: drawn */
    int32_t token[OUT];
    struct sy_result result;
};

static uint64_t clock_now(void *ctx) { return (uint64_t)((struct machine *)ctx)->now; }

static int32_t text_at(const struct machine *m, int32_t pos)
{
    if (m->text) return pos < PROMPT + ANSWER ? m->text[pos] : 0;
    if (m->period) pos %= m->period;
    return (int32_t)(sy_rng_u64(m->seed, (uint64_t)pos) % (uint64_t)m->n_kind);
}

static sy_status forward(struct sy_backend *b, struct sy_program *p, struct sy_kv_cache *kv,
                         const struct sy_batch *in)
{
    (void)p;
    (void)kv;
    struct machine *m = (struct machine *)(void *)b;
    for (int32_t i = 0; i < in->n_out; i++) m->token[i] = text_at(m, in->field[SY_POS][in->field[SY_OUT][i]] + 1);
    m->result = (struct sy_result){.token = m->token, .n = in->n_out, .n_vocab = VOCAB};
    double ns = 1e6 * (1 + m->row * in->n_tok);
    m->now += ns * (1 + m->noise * sy_rng_unit(m->seed + 1, m->rows));
    m->rows += (uint64_t)in->n_tok;
    return SY_OK;
}
static sy_status wait_result(struct sy_backend *b, struct sy_want want, struct sy_result *out, struct sy_err *err)
{
    (void)want;
    (void)err;
    *out = ((struct machine *)(void *)b)->result;
    return SY_OK;
}
static void device(struct sy_backend *b, struct sy_device *out, bool measure)
{
    (void)b;
    (void)measure;
    *out = (struct sy_device){.ragged = true};
}
static void close_it(struct sy_backend *b) { (void)b; }
static void free_cache(struct sy_kv_cache *kv) { (void)kv; }
static void free_program(struct sy_program *p) { (void)p; }
static void free_weights(struct sy_weights *w) { (void)w; }

static const struct sy_backend_ops ops = {.name = "clock",
                                          .forward = forward,
                                          .wait = wait_result,
                                          .device = device,
                                          .close = close_it,
                                          .free_kv_cache = free_cache,
                                          .program_free = free_program,
                                          .weights_free = free_weights};

static void on_event(void *ctx, const struct sy_event *ev) { (void)ctx, (void)ev; }

/* Time of n answers, one after the other. */
static double run(struct machine m, int32_t draft_max, int n, struct sy_engine_stats *stats)
{
    struct sy_clock clock = {clock_now, &m};
    struct sy_env env = *sy_env_default();
    env.clock = &clock;
    struct sy_engine_opt o = {
        .ctx_len = PROMPT + ANSWER, .draft_max = draft_max, .batch_tok_max = OUT, .no_prefix_cache = true};
    struct sy_engine_bare bare = {
        .ops = &ops, .backend = (struct sy_backend *)(void *)&m, .info = {.n_vocab = VOCAB, .n_ctx = 4096}};
    struct sy_engine *e;
    struct sy_err err;
    if (sy_engine_new_bare(&env, &o, &bare, &e, &err)) fail_msg("%s", err.msg);
    for (int i = 0; i < n; i++) {
        int32_t prompt[PROMPT];
        for (int32_t k = 0; k < PROMPT; k++) prompt[k] = text_at(&m, k);
        struct sy_request r = {.prompt = prompt,
                               .n_prompt = PROMPT,
                               .n_max = ANSWER,
                               .ignore_eos = true,
                               .on_event = on_event,
                               .sampling = {.n_logprob = -1}};
        if (sy_engine_submit(e, &r, NULL, &err)) fail_msg("%s", err.msg);
        for (bool worked = true; worked;) assert_int_equal(sy_engine_step(e, &worked, &err), SY_OK);
    }
    *stats = sy_engine_stats(e);
    sy_engine_free(e);
    return m.now;
}

static const double row_costs[] = {0.01, 0.05, 0.1, 0.2, 0.5, 1, 2};

/* Random texts: a guess is right once in n_kind times, however long the run that was looked up. */
static void never_costs_much(void **state)
{
    (void)state;
    static const int32_t kinds[] = {2, 3, 4, 6, 8, 12, 30, 200};
    double worst = 0;
    for (size_t c = 0; c < SY_COUNT(row_costs); c++)
        for (size_t k = 0; k < SY_COUNT(kinds); k++)
            for (int i = 0; i < 4; i++) {
                struct machine m = {.row = row_costs[c], .seed = 1 + k, .n_kind = kinds[k], .noise = i % 2 ? 0.3 : 0};
                int n = i < 2 ? 1 : 8;
                struct sy_engine_stats s;
                double plain = run(m, 0, n, &s), guessing = run(m, 12, n, &s), more = guessing / plain - 1;
                if (more > 0.01 || getenv("SYSTOLE_SAY"))
                    print_message(
                        "row %.2f of a step, right once in %d%s: %+.1f %%, %llu rows of guesses, %llu right\n",
                        row_costs[c], kinds[k], i % 2 ? ", noisy" : "", 100 * more, (unsigned long long)s.n_draft_tok,
                        (unsigned long long)s.n_draft_hit_tok);
                if (more > worst) worst = more;
            }
    print_message("random texts cost at most %.1f %%\n", 100 * worst);
    assert_true(worst <= 0.03);
}

/* A text that repeats itself is worth it where rows are cheap. */
static void repetition_gains(void **state)
{
    (void)state;
    for (size_t c = 0; c < SY_COUNT(row_costs); c++) {
        struct machine m = {.row = row_costs[c], .seed = 5, .n_kind = VOCAB, .period = 40};
        struct sy_engine_stats s;
        double plain = run(m, 0, 1, &s), guessing = run(m, 12, 1, &s), gain = plain / guessing;
        print_message("a row takes %.2f of a step: a text that repeats is %.2f times as fast\n", row_costs[c], gain);
        assert_true(gain > 0.97 && (row_costs[c] > 0.1 || gain > 2.5));
    }
}

/* Ids of what a tokenizer might make of a text: up to PIECE letters, with the space before them, or another
 * character.
 */
static int32_t pieces(const char *text, size_t n, int32_t *id, int32_t n_max)
{
    int32_t count = 0;
    for (size_t at = 0, end; at < n && count < n_max; at = end) {
        end = at + 1;
        bool word = text[at] == ' ' || isalpha((unsigned char)text[at]);
        while (word && end < n && end - at < PIECE && isalpha((unsigned char)text[end])) end++;
        uint64_t key = 0;
        for (size_t i = at; i < end; i++) key = key << 8 | (unsigned char)text[i];
        id[count++] = (int32_t)(sy_rng_u64(1, key) % VOCAB);
    }
    return count;
}

/* Prose and code, in windows: a fraction is the prompt, the rest the answer. */
static void written_texts_cost_little(void **state)
{
    (void)state;
    static const char *const files[] = {"test/data/text.txt", "test/unit/engine_guessing.c"};
    static int32_t id[1 << 14];
    for (size_t c = 0; c < SY_COUNT(row_costs); c++)
        for (size_t f = 0; f < SY_COUNT(files); f++) {
            struct sy_err err;
            char *text;
            size_t size;
            double worst = 0, sum = 0;
            if (sy_file_read(sy_env_default(), files[f], 1 << 20, &text, &size, &err)) fail_msg("%s", err.msg);
            int32_t n = pieces(text, size, id, (int32_t)SY_COUNT(id)), n_window = 0;
            sy_delete(sy_env_default(), text);
            for (int32_t at = 0; at + PROMPT + ANSWER <= n; at += ANSWER, n_window++) {
                struct machine m = {.row = row_costs[c], .seed = (uint64_t)at, .noise = 0.2, .text = &id[at]};
                struct sy_engine_stats s;
                double plain = run(m, 0, 1, &s), guessing = run(m, 12, 1, &s), more = guessing / plain - 1;
                if (more > worst) worst = more;
                sum += more;
            }
            print_message("row %.2f of a step, %s: %d windows, %+.1f %% on average, at most %+.1f %%\n", row_costs[c],
                          files[f], n_window, 100 * sum / n_window, 100 * worst);
            assert_true(n_window > 10 && worst <= 0.03);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(never_costs_much), cmocka_unit_test(repetition_gains),
                                       cmocka_unit_test(written_texts_cost_little)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
