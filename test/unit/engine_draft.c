/* Draft models: the head for one token more computes what its reference does; guesses, right or wrong, change no bit
 * of an answer, nor the distribution of sampled ones; and where they do not pay they are not made.
 * With arguments: the folders of models whose head is compared with golden "mtp.s33.logits", on the PJRT plugin that
 * SYSTOLE_CPU_PLUGIN names if it does. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/rng.h"
#include "engine/engine.h"

extern const struct sy_backend_ops sy_backend_cpu, sy_backend_pjrt; /* of the registry */

static const char *folders_own[] = {"test/golden/models/qwen3_5", NULL};
static const char *const *folders = folders_own;
static const char *plugin; /* that runs them; NULL: the cpu backend does */

/* ---- the head against its reference ---------------------------------------------------------------------------- */

struct golden {
    char *at;
    size_t n;
    struct sy_json *head;
};

static void golden_open(const char *folder, struct golden *g)
{
    char path[512];
    snprintf(path, sizeof path, "%s/golden.safetensors", folder);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("no %s", path);
    fseek(f, 0, SEEK_END);
    g->n = (size_t)ftell(f);
    rewind(f);
    g->at = malloc(g->n);
    assert_true(g->at && fread(g->at, 1, g->n, f) == g->n);
    fclose(f);
    uint64_t len;
    memcpy(&len, g->at, 8);
    struct sy_err err;
    if (sy_json_parse(sy_env_default(), g->at + 8, (size_t)len, false, &g->head, &err)) fail_msg("%s", err.msg);
}

static const void *golden_get(const struct golden *g, const char *name, int64_t *rows)
{
    const struct sy_json *t = sy_json_get(g->head, name);
    uint64_t len;
    memcpy(&len, g->at, 8);
    assert_non_null(t);
    *rows = sy_json_int(sy_json_at(sy_json_get(t, "shape"), 0), 0);
    return g->at + 8 + len + sy_json_int(sy_json_at(sy_json_get(t, "data_offsets"), 0), 0);
}

struct runner {
    const struct sy_backend_ops *ops;
    struct sy_backend *b;
    struct sy_weights *w;
    struct sy_graph *graph;
    struct sy_program *program;
    struct sy_kv_cache *kv;
    struct sy_batch batch;
};

enum { TOK = 40, LEN = 16 };

static void runner_open(struct runner *r, const struct sy_model *m, enum sy_model_part part)
{
    struct sy_err err;
    struct sy_shape shape = {TOK, 1, 3, TOK, 0};
    struct sy_cache_dim dim = {LEN, 4, 2, 0};
    sy_status st = sy_model_build_part(sy_env_default(), m, part, shape, &r->graph, &err);
    if (!st) st = r->ops->compile(r->b, r->graph, r->w, dim, &r->program, &err);
    if (!st) st = r->ops->allocate_kv_cache(r->b, r->graph, dim, &r->kv, &err);
    if (!st) st = sy_batch_new(sy_env_default(), shape, &r->batch, &err);
    if (st) fail_msg("%s", err.msg);
}

static struct sy_result runner_run(struct runner *r, const int32_t *id, int32_t n, const float *given, int64_t ld)
{
    struct sy_batch *b = &r->batch;
    b->n_tok = b->n_out = n;
    b->n_seq = 1;
    b->given = given;
    b->ld_given = ld;
    for (int32_t i = 0; i < n; i++) {
        b->field[SY_TOK][i] = id[i];
        b->field[SY_POS][i] = b->field[SY_OUT][i] = i;
        b->field[SY_ROW][i] = LEN + i;
        b->field[SY_SPAN][i] = n;
    }
    for (int32_t i = 0; i < 3; i++) b->field[SY_BLOCK_TABLE][i] = 1 + i;
    b->field[SY_START][0] = 0;
    b->field[SY_START][1] = b->field[SY_CTX][0] = n;
    b->field[SY_SLOT_RD][0] = b->field[SY_SLOT_WR][0] = 1;
    struct sy_result out;
    struct sy_err err;
    if (r->ops->forward(r->b, r->program, r->kv, b)) fail_msg("a step was refused");
    if (r->ops->wait(r->b, (struct sy_want){true, true, true}, &out, &err)) fail_msg("%s", err.msg);
    return out;
}

static void runner_close(struct runner *r)
{
    sy_batch_release(sy_env_default(), &r->batch);
    r->ops->free_kv_cache(r->kv);
    r->ops->program_free(r->program);
    sy_graph_free(r->graph);
}

static double worst(const struct sy_result *r, const float *want, int64_t rows)
{
    double most = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int32_t k = 0; k < r->n_vocab; k++) {
            double d = fabs((double)r->logits[i * r->ld + k] - (double)want[i * r->n_vocab + k]);
            if (!(d <= most)) most = d;
        }
    return most;
}

static void check_head(const char *folder)
{
    const struct sy_env *env = sy_env_default();
    struct golden g;
    struct sy_checkpoint *ckpt;
    struct sy_model m;
    struct sy_err err;
    struct runner model = {0}, head = {0};
    struct sy_backend_opt opt = {.n_thread = 1, .compute = SY_COMPUTE_F32, .kv_dtype = SY_KV_F32};
    const struct sy_backend_ops *ops = &sy_backend_cpu;
    struct sy_graph *both;
    if (plugin) {
        ops = &sy_backend_pjrt;
        opt.n_thread = 0;
        opt.device = plugin;
    }
    model.ops = ops;
    golden_open(folder, &g);
    sy_status st = sy_checkpoint_open(env, folder, &ckpt, &err);
    if (!st) st = sy_model_open(env, sy_checkpoint_config(ckpt), folder, &m, &err);
    if (!st) st = ops->open(env, &opt, &model.b, &err);
    if (!st) st = sy_model_build_part(env, &m, SY_MODEL_BOTH, (struct sy_shape){TOK, 1, 3, TOK, 0}, &both, &err);
    if (!st) st = ops->load(model.b, both, ckpt, &model.w, &err);
    if (st) fail_msg("%s: %s", folder, err.msg);
    head = model;
    runner_open(&model, &m, SY_MODEL_KEEP);
    runner_open(&head, &m, SY_MODEL_HEAD);
    int64_t n, rows;
    const int32_t *id = golden_get(&g, "s33.ids", &n);
    struct sy_result r = runner_run(&model, id, (int32_t)n, NULL, 0);
    double main = worst(&r, golden_get(&g, "s33.logits", &rows), n);
    assert_non_null(r.all);
    float *all = calloc(TOK, (size_t)r.d_model * sizeof *all);
    assert_non_null(all);
    for (int64_t i = 0; i < n; i++)
        memcpy(all + i * r.d_model, r.all + i * r.ld_all, (size_t)r.d_model * sizeof *all);
    r = runner_run(&head, id + 1, (int32_t)n - 1, all, r.d_model);
    double mtp = worst(&r, golden_get(&g, "mtp.s33.logits", &rows), n - 1);
    assert_int_equal(rows, n - 1);
    if (folders != folders_own) printf("%s: logits differ by %.1e, those of the head by %.1e\n", folder, main, mtp);
    if (main > 7e-3 || mtp > 7e-3) fail_msg("%s: logits differ by %g, those of the head by %g", folder, main, mtp);
    free(all);
    runner_close(&model);
    runner_close(&head);
    ops->weights_free(model.w);
    ops->close(model.b);
    sy_graph_free(both);
    sy_model_release(&m);
    sy_checkpoint_free(ckpt);
    sy_json_free(g.head);
    free(g.at);
}

static void head_is_the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; folders[i]; i++) check_head(folders[i]);
}

/* ---- answers with and without ---------------------------------------------------------------------------------- */

enum { N_REQUEST = 5, N_GEN = 40 };

struct answer {
    int32_t id[N_GEN], n, n_cached;
    float logprob[N_GEN];
};

static void on_event(void *ctx, const struct sy_event *ev)
{
    struct answer *a = ctx;
    if (ev->id < 0) return;
    a->id[a->n] = ev->id;
    a->logprob[a->n++] = ev->logprob;
    a->n_cached = ev->n_cached;
}

static struct sy_engine *open_engine(struct sy_engine_opt o)
{
    o.ctx_len = 200;
    o.block_len = 8;
    o.backend_opt.n_thread = 1;
    struct sy_engine *e;
    struct sy_err err;
    if (sy_engine_new(sy_env_default(), &o, &e, &err)) fail_msg("%s", err.msg);
    return e;
}

static void run_all(struct sy_engine *e)
{
    struct sy_err err;
    for (bool worked = true; worked;)
        if (sy_engine_step(e, &worked, &err)) fail_msg("%s", err.msg);
    sy_engine_verify(e);
}

static void submit(struct sy_engine *e, int k, struct answer *a)
{
    int32_t prompt[160], n = 2 + k * 29 % 120;
    for (int32_t i = 0; i < n; i++) prompt[i] = (int32_t)(sy_rng_u64(i < n / 2 ? 7 : (uint64_t)k, (uint64_t)i) % 320);
    struct sy_request r = {.prompt = prompt,
                           .n_prompt = n,
                           .n_max = N_GEN,
                           .ignore_eos = true,
                           .on_event = on_event,
                           .ctx = a,
                           .sampling = {.temperature = k % 2 ? 0.8f : 0, .seed = (uint64_t)k, .n_logprob = 0}};
    struct sy_err err;
    *a = (struct answer){0};
    if (sy_engine_submit(e, &r, NULL, &err)) fail_msg("%s", err.msg);
}

static struct sy_engine_stats answers(struct sy_engine_opt o, bool together, bool twice, struct answer *a)
{
    struct sy_engine *e = open_engine(o);
    for (int turn = 0; turn <= twice; turn++) {
        for (int k = 0; k < N_REQUEST; k++) {
            submit(e, k, &a[k]);
            if (!together) run_all(e);
        }
        run_all(e);
    }
    struct sy_engine_stats st = sy_engine_stats(e);
    sy_engine_free(e);
    return st;
}

static void same(const char *model, const char *draft, const char *what, const struct answer *a,
                 const struct answer *b)
{
    for (int k = 0; k < N_REQUEST; k++)
        if (a[k].n != N_GEN || b[k].n != N_GEN || memcmp(a[k].id, b[k].id, sizeof a->id) != 0 ||
            memcmp(a[k].logprob, b[k].logprob, sizeof a->logprob) != 0)
            fail_msg("%s with %s: answer %d differs %s", model, draft, k, what);
}

/* Alone, together, in chunks, preempted and from the cache; the draft always guesses, or when it pays. */
static struct sy_engine_stats check_draft(const char *model, const char *draft, int32_t draft_max)
{
    struct answer plain[N_REQUEST], other[N_REQUEST];
    struct sy_engine_opt o = {.model = model, .seq_max = 1};
    answers(o, false, false, plain);
    o.draft_model = draft;
    o.draft_max = draft_max;
    answers(o, false, true, other);
    same(model, draft, "when guesses are made where they pay", plain, other);
    o.draft_always = true;
    struct sy_engine_stats st = answers(o, false, false, other);
    same(model, draft, "when guesses are always made", plain, other);
    o.seq_max = N_REQUEST;
    o.batch_tok_max = 37;
    answers(o, true, true, other);
    same(model, draft, "together with others, in chunks and from the cache", plain, other);
    o.batch_tok_max = 0;
    struct sy_engine *e = open_engine(o);
    const struct sy_engine_plan *p = sy_engine_plan(e);
    o.kv_bytes_max = (p->kv_bytes + p->draft_kv_bytes) / p->n_block * (200 / 8 + 4);
    bool blocks = p->kv_bytes > 0;
    sy_engine_free(e);
    struct sy_engine_stats tight = answers(o, true, false, other);
    same(model, draft, "when it is preempted", plain, other);
    if (blocks) assert_true(tight.n_preempt_recompute > 0);
    return st;
}

static void any_draft_same_answers(void **state)
{
    (void)state;
    static const char *const dir = "test/golden/models/";
    static const struct {
        const char *model, *draft;
    } pair[] = {{"llama", "llama"},     {"llama", "qwen3"},     {"qwen3_5", "mtp"},      {"qwen3_5", "qwen3_5"},
                {"qwen3_5", "qwen3"},   {"lfm2", "lfm2"},       {"mamba2", "falcon_h1"}, {"falcon_h1", "llama"},
                {"nemotron_h", "lfm2"}, {"minimax", "minimax"}, {"gemma3", "mamba2"}};
    uint64_t wrong = 0;
    for (size_t i = 0; i < SY_COUNT(pair); i++) {
        char model[128], draft[128];
        snprintf(model, sizeof model, "%s%s", dir, pair[i].model);
        bool mtp = !strcmp(pair[i].draft, "mtp"), self = !strcmp(pair[i].draft, pair[i].model);
        snprintf(draft, sizeof draft, "%s%s", mtp ? "" : dir, pair[i].draft);
        struct sy_engine_stats st = check_draft(model, draft, 3);
        assert_true(st.n_draft > 40);
        /* A model that guesses for itself, by the same random numbers, is always right. */
        if (self) assert_int_equal(st.n_draft_hit_tok, st.n_draft_tok);
        wrong += st.n_draft_tok - st.n_draft_hit_tok;
    }
    assert_true(wrong > 1000);
}

/* A draft that is never right stops being asked. */
static void bad_draft_is_left_alone(void **state)
{
    (void)state;
    struct answer a[N_REQUEST];
    struct sy_engine_opt o = {.model = "test/golden/models/qwen3_5", .seq_max = 1, .draft_model = "mtp"};
    struct sy_engine *e = open_engine(o);
    uint64_t before = 0;
    for (int turn = 0; turn < 12; turn++) {
        if (turn == 4) before = sy_engine_stats(e).n_draft;
        for (int k = 0; k < N_REQUEST; k++) {
            submit(e, k, &a[k]);
            run_all(e);
        }
    }
    uint64_t later = sy_engine_stats(e).n_draft - before, tok = 8 * (uint64_t)N_REQUEST * N_GEN;
    if (later * 10 > tok)
        fail_msg("%llu guesses for %llu tokens", (unsigned long long)later, (unsigned long long)tok);
    sy_engine_free(e);
}

/* ---- sampling ----------------------------------------------------------------------------------------------------
 */

enum { KINDS = 4, CELLS = KINDS * KINDS, SAMPLES = 1500 };
static const struct sy_bias tiny[KINDS] = {{10, 100}, {77, 100}, {150, 100}, {303, 100}}; /* the vocabulary */

struct tail {
    int32_t id[3], n;
};

static void on_tail(void *ctx, const struct sy_event *ev)
{
    struct tail *t = ctx;
    if (ev->id >= 0 && t->n < 3) t->id[t->n++] = ev->id;
}

static void on_row(void *ctx, int32_t pos, const float *x, int32_t n_vocab)
{
    double *p = ctx, sum = 0;
    (void)pos;
    (void)n_vocab;
    for (int k = 0; k < KINDS; k++) sum += p[k] = exp((double)(x[tiny[k].id] - x[tiny[0].id]) / 2);
    for (int k = 0; k < KINDS; k++) p[k] /= sum;
}

static void shares_of(struct sy_engine *e, const int32_t *prompt, int32_t n, double *p)
{
    struct sy_err err;
    struct sy_request r = {.prompt = prompt,
                           .n_prompt = n,
                           .on_logits = on_row,
                           .logits_from = n - 1,
                           .ctx = p,
                           .sampling.n_logprob = -1};
    if (sy_engine_submit(e, &r, NULL, &err)) fail_msg("%s", err.msg);
    run_all(e);
}

static int kind_of(int32_t id)
{
    int k = 0;
    while (k < KINDS && tiny[k].id != id) k++;
    assert_true(k < KINDS);
    return k;
}

/* The second and third token of answers over a vocabulary of four whose first one is the first of them (it has no
 * guess before it). Chi-square with 15 degrees of freedom is above 44.3 once in 10,000 times. */
static void check_distribution(const char *draft)
{
    struct sy_engine_opt o = {.model = "test/golden/models/qwen3_5",
                              .seq_max = 8,
                              .draft_model = draft,
                              .draft_max = 2,
                              .draft_always = true};
    struct sy_engine *e = open_engine(o);
    int32_t prompt[12] = {3, 1, 4, 1, 5, 9, 2, 6, 5, tiny[0].id};
    double first[KINDS], second[KINDS][KINDS], chi = 0;
    shares_of(e, prompt, 10, first);
    for (int i = 0; i < KINDS; i++) {
        prompt[10] = tiny[i].id;
        shares_of(e, prompt, 11, second[i]);
    }
    int count[CELLS] = {0}, n = 0, free_cells = -1;
    for (int s = 0; s < SAMPLES; s++) {
        struct tail t = {0};
        struct sy_request r = {
            .prompt = prompt,
            .n_prompt = 9,
            .n_max = 5,
            .ignore_eos = true,
            .on_event = on_tail,
            .ctx = &t,
            .sampling = {.temperature = 2, .bias = tiny, .n_bias = KINDS, .seed = (uint64_t)s, .n_logprob = -1}};
        struct sy_err err;
        if (sy_engine_submit(e, &r, NULL, &err)) fail_msg("%s", err.msg);
        run_all(e);
        if (kind_of(t.id[0]) != 0) continue;
        count[kind_of(t.id[1]) * KINDS + kind_of(t.id[2])]++;
        n++;
    }
    assert_true(n > SAMPLES / 10);
    struct sy_engine_stats st = sy_engine_stats(e);
    double hit = (double)st.n_draft_hit_tok / (double)st.n_draft_tok;
    if (!(hit > 0.05 && hit < 0.9)) fail_msg("%s: %g of the guesses were right: no test", draft, hit);
    double few_want = 0, few_count = 0; /* cells too small for the approximation, taken together */
    for (int c = 0; c < CELLS; c++) {
        double want = n * first[c / KINDS] * second[c / KINDS][c % KINDS], d = (double)count[c] - want;
        if (want < 5) {
            few_want += want;
            few_count += (double)count[c];
            continue;
        }
        free_cells++;
        chi += d * d / want;
    }
    if (few_want > 1) chi += (few_count - few_want) * (few_count - few_want) / few_want;
    assert_true(free_cells >= 4);
    if (chi > 44.3) fail_msg("%s: chi-square is %g", draft, chi);
    sy_engine_free(e);
}

static void sampling_keeps_its_distribution(void **state)
{
    (void)state;
    check_distribution("mtp");
    check_distribution("test/golden/models/qwen3");
}

int main(int argc, char **argv)
{
    if (argc > 1) folders = (const char *const *)(argv + 1);
    if (argc > 1) plugin = getenv("SYSTOLE_CPU_PLUGIN");
    const struct CMUnitTest all[] = {
        cmocka_unit_test(head_is_the_reference), cmocka_unit_test(any_draft_same_answers),
        cmocka_unit_test(bad_draft_is_left_alone), cmocka_unit_test(sampling_keeps_its_distribution)};
    if (argc > 1) {
        const struct CMUnitTest one[] = {cmocka_unit_test(head_is_the_reference)};
        return cmocka_run_group_tests(one, NULL, NULL);
    }
    return cmocka_run_group_tests(all, NULL, NULL);
}
