/* Options that exist so that design choices can be compared: ops not fused, KV blocks off their lines and steps
 * padded to fixed shapes change no bit of an answer, and do what they say. Sums in bf16 change it a little. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/cpu_int.h"
#include "base/rng.h"
#include "bench/sums.h"
#include "engine/engine_int.h"

enum { N_REQUEST = 4, N_GEN = 6, VOCAB_MAX = 4096, OFFSET = 20 };

struct answer {
    int32_t id[N_GEN], n, n_vocab;
    float logprob[N_GEN];
    float row[VOCAB_MAX]; /* logits behind the prompt */
};

static void on_event(void *ctx, const struct sy_event *ev)
{
    struct answer *a = ctx;
    if (ev->id < 0) return;
    a->id[a->n] = ev->id;
    a->logprob[a->n++] = ev->logprob;
}

static void on_logits(void *ctx, int32_t pos, const float *logits, int32_t n)
{
    struct answer *a = ctx;
    (void)pos;
    assert_true(n <= VOCAB_MAX);
    a->n_vocab = n;
    memcpy(a->row, logits, (size_t)n * sizeof *logits);
}

static struct sy_engine_opt base_of(const char *model)
{
    struct sy_engine_opt o = {
        .model = model, .ctx_len = 160, .block_len = 16, .seq_max = N_REQUEST, .batch_tok_max = 64};
    o.backend_opt.n_thread = 1;
    o.backend_opt.kv_dtype = SY_KV_BF16;
    return o;
}

static struct sy_engine *run(const struct sy_engine_opt *o, struct answer *a)
{
    struct sy_engine *e;
    struct sy_err err;
    if (sy_engine_new(sy_env_default(), o, &e, &err)) fail_msg("%s: %s", o->model, err.msg);
    for (int k = 0; k < N_REQUEST; k++) {
        int32_t prompt[160], n = 1 + k * 37 % 120, n_vocab = sy_engine_plan(e)->info.n_vocab;
        for (int32_t i = 0; i < n; i++) prompt[i] = (int32_t)sy_rng_u64((uint64_t)k, (uint64_t)i) & 0x7fffffff;
        for (int32_t i = 0; i < n; i++) prompt[i] %= n_vocab;
        memset(&a[k], 0, sizeof a[k]);
        struct sy_request r = {.prompt = prompt,
                               .n_prompt = n,
                               .n_max = N_GEN,
                               .ignore_eos = true,
                               .on_event = on_event,
                               .on_logits = on_logits,
                               .logits_from = n - 1,
                               .ctx = &a[k],
                               .sampling = {.temperature = k % 2 ? 1 : 0, .seed = (uint64_t)k, .n_logprob = 0}};
        if (sy_engine_submit(e, &r, NULL, &err)) fail_msg("%s", err.msg);
    }
    for (bool worked = true; worked;) assert_int_equal(sy_engine_step(e, &worked, &err), SY_OK);
    sy_engine_verify(e);
    return e;
}

static void same(const char *model, const char *what, const struct answer *a, const struct answer *b)
{
    for (int k = 0; k < N_REQUEST; k++) {
        assert_int_equal(a[k].n, N_GEN);
        if (memcmp(&a[k], &b[k], sizeof a[k])) fail_msg("%s: request %d differs when %s", model, k, what);
    }
}

static const char *const models[] = {"test/golden/models/llama",
                                     "test/golden/models/gemma3",
                                     "test/golden/models/gpt_oss",
                                     "test/golden/models/mixtral",
                                     "test/golden/models/qwen3_5",
                                     "test/golden/quant/gguf_llama_q4_0/model.gguf",
                                     "test/golden/quant/gguf_qwen3_q4_k/model.gguf"};

static struct answer answer[2][N_REQUEST]; /* large; of one test at a time */

static void not_fused(void **state)
{
    (void)state;
    bool added = false; /* ops that were in epilogues; a model with norms behind its products has none */
    for (size_t i = 0; i < SY_COUNT(models); i++) {
        struct sy_engine_opt o = base_of(models[i]);
        struct sy_engine *fused = run(&o, answer[0]);
        o.backend_opt.unfused = true;
        o.backend_opt.n_thread = 2;
        struct sy_engine *e = run(&o, answer[1]);
        same(models[i], "ops are not fused", answer[0], answer[1]);
        assert_int_equal(e->program->n_region, e->program->n_op); /* a barrier after each */
        assert_true(fused->program->n_region < e->program->n_region);
        added |= fused->program->n_op < e->program->n_op;
        sy_engine_free(fused);
        sy_engine_free(e);
    }
    assert_true(added);
}

static void blocks_off_their_lines(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT(models); i++) {
        struct sy_engine_opt o = base_of(models[i]);
        sy_engine_free(run(&o, answer[0]));
        o.backend_opt.kv_offset = OFFSET;
        struct sy_engine *e = run(&o, answer[1]);
        same(models[i], "KV blocks are off their lines", answer[0], answer[1]);
        assert_int_equal(e->kv->layer_bytes[0], OFFSET);
        assert_int_equal(e->kv->slot_at % 256, 0);
        sy_engine_free(e);
    }
}

static void fixed_shapes(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT(models); i++) {
        struct sy_engine_opt o = base_of(models[i]);
        sy_engine_free(run(&o, answer[0]));
        o.fixed_shapes = true;
        struct sy_engine *e = run(&o, answer[1]);
        same(models[i], "steps are padded", answer[0], answer[1]);
        struct sy_engine_stats s = sy_engine_stats(e);
        uint64_t live = 0, computed = 0;
        for (int32_t b = 0; b < s.n_bucket; b++) {
            live += s.bucket[b].n_tok;
            computed += s.bucket[b].n_step * (uint64_t)s.bucket[b].shape.tok;
        }
        assert_true(live > 0 && computed > live);
        sy_engine_free(e);
    }
}

/* Blocks of two positions and of more than a tile: where tiles begin within a block differs. The bound is wide: a
 * router that was close to a draw chooses another expert. */
static void sums_in_bf16(void **state)
{
    (void)state;
    static const int32_t block_len[] = {2, 16, 128};
    for (size_t i = 0; i < SY_COUNT(models) * SY_COUNT(block_len); i++) {
        struct sy_engine_opt o = base_of(models[i / SY_COUNT(block_len)]);
        o.block_len = block_len[i % SY_COUNT(block_len)];
        sy_engine_free(run(&o, answer[0]));
        o.backend_opt.attend_part = sy_attend_part_bf16_sums;
        sy_engine_free(run(&o, answer[1]));
        bool differs = false;
        for (int k = 0; k < N_REQUEST; k++) {
            double square = 0, off = 0;
            for (int32_t t = 0; t < answer[0][k].n_vocab; t++) {
                double d = answer[1][k].row[t] - answer[0][k].row[t];
                square += pow(answer[0][k].row[t], 2);
                off += d * d;
            }
            differs |= off > 0;
            if (!(off < 0.1 * square)) fail_msg("%s: request %d is off by %g", o.model, k, sqrt(off / square));
        }
        assert_true(differs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(not_fused),
        cmocka_unit_test(blocks_off_their_lines),
        cmocka_unit_test(fixed_shapes),
        cmocka_unit_test(sums_in_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
