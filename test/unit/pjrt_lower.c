/* Graphs as programs, without a plugin: the same text every time, nothing lost when memory runs out, shares of ranks;
 * and the reader of a compiler's estimates on programs made by hand. */
#include "checkpoint_util.h"

#include "backend/pjrt/aot.h"
#include "graph/shard.h"
#include "model/model.h"

static const char *const fixtures[] = {"llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma3"};
/* Experts, states, latents, sinks, several ropes. */
static const char *const others[] = {"deepseek_v32", "falcon_h1", "gemma3n", "glm_moe_dsa", "gpt_oss", "lfm2",
                                     "mamba2",       "minimax",   "mixtral", "nemotron_h",  "phi3",    "qwen3_5"};
static const struct sy_shape decode = {4, 4, 8, 4, 0}, mixed = {64, 4, 8, 8, 0};

static void open_model(const char *name, struct sy_model *m)
{
    char path[200];
    struct sy_checkpoint *c;
    snprintf(path, sizeof path, "test/golden/models/%s", name);
    assert_int_equal(sy_checkpoint_open(sy_env_default(), path, &c, NULL), SY_OK);
    assert_int_equal(sy_model_open(sy_env_default(), sy_checkpoint_config(c), path, m, NULL), SY_OK);
    sy_checkpoint_free(c);
}

static struct sy_aot_opt options(const char *format, struct sy_shard shard)
{
    return (struct sy_aot_opt){.compute = SY_COMPUTE_BF16,
                               .kv_dtype = SY_KV_BF16,
                               .assume = sy_quant_by_name(format),
                               .cache = {32, 33, 5, 0},
                               .shard = shard};
}

static sy_status lower(const struct sy_env *env, const struct sy_model *m, struct sy_shape shape,
                       const struct sy_aot_opt *opt, struct sy_aot_program *p, struct sy_err *err)
{
    struct sy_graph *whole = NULL, *g = NULL;
    sy_status st = sy_model_build(env, m, shape, &whole, err);
    if (!st && sy_shard_ranks(&opt->shard) > 1) st = sy_graph_shard(env, whole, &opt->shard, &g, err);
    if (!st) st = sy_aot_lower(env, g ? g : whole, NULL, opt, p, err);
    sy_graph_free(whole);
    sy_graph_free(g);
    return st;
}

static bool says(const struct sy_buf *b, const char *text) { return memmem(b->at, b->len, text, strlen(text)); }

static void test_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT(fixtures); i++)
        for (int k = 0; k < 4; k++) {
            struct sy_model m;
            struct sy_aot_program a, b;
            struct sy_aot_opt opt = options(k & 1 ? "q4_0" : "bf16", (struct sy_shard){0});
            open_model(fixtures[i], &m);
            assert_int_equal(lower(sy_env_default(), &m, k & 2 ? mixed : decode, &opt, &a, NULL), SY_OK);
            assert_int_equal(lower(sy_env_default(), &m, k & 2 ? mixed : decode, &opt, &b, NULL), SY_OK);
            assert_int_equal(a.text.len, b.text.len);
            assert_memory_equal(a.text.at, b.text.at, a.text.len);
            assert_true(says(&a.text, "tf.aliasing_output = 0 : i32") && !says(&a.text, "all_reduce"));
            assert_int_equal(says(&a.text, "xi4>"), k & 1);             /* quantised weights stay so */
            assert_int_equal(says(&a.text, "stablehlo.while"), k >> 1); /* decoding at one run of keys has no loop */
            sy_aot_program_release(&a);
            sy_aot_program_release(&b);
            sy_model_release(&m);
        }
}

static int count(const struct sy_buf *b, const char *text)
{
    int n = 0;
    for (const char *at = b->at, *end = b->at + b->len; (at = memmem(at, (size_t)(end - at), text, strlen(text)));)
        n++, at++;
    return n;
}

/* Every op has a lowering; what sequences leave is donated and comes back, array by array. */
static void test_all_ops(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT(others); i++)
        for (int k = 0; k < 2; k++) {
            struct sy_model m;
            struct sy_aot_program a, b;
            struct sy_aot_opt opt = options("bf16", (struct sy_shard){0});
            open_model(others[i], &m);
            assert_int_equal(lower(sy_env_default(), &m, k ? mixed : decode, &opt, &a, NULL), SY_OK);
            assert_int_equal(lower(sy_env_default(), &m, k ? mixed : decode, &opt, &b, NULL), SY_OK);
            assert_int_equal(a.text.len, b.text.len);
            assert_memory_equal(a.text.at, b.text.at, a.text.len);
            struct sy_graph *g;
            uint32_t n_node;
            int want = 0;
            assert_int_equal(sy_model_build(sy_env_default(), &m, decode, &g, NULL), SY_OK);
            const struct sy_node *node = sy_graph_nodes(g, &n_node);
            for (uint32_t id = 1; id < n_node; id++) {
                want += node[id].op == SY_OP_CONV || node[id].op == SY_OP_SCAN || node[id].op == SY_OP_INDEX;
                if (node[id].op == SY_OP_ATTEND && node[id].in[1].id) want += node[id].attr.attn.shared ? 1 : 2;
            }
            sy_graph_free(g);
            assert_true(want > 0);
            assert_int_equal(count(&a.text, "tf.aliasing_output"), want);
            sy_aot_program_release(&a);
            sy_aot_program_release(&b);
            sy_model_release(&m);
        }
}

/* Weights lie on the device in as many bits as the format's numbers take, and become numbers in the program. */
static void test_formats(void **state)
{
    (void)state;
    static const struct {
        const char *format, *holds, *makes;
        double bits; /* of a weight, its scale included */
    } cases[] = {
        {"bf16", "xbf16>", NULL, 16},
        {"q4_0", "xi4>", NULL, 5},
        {"q8_0", "xi8>", NULL, 9},
        {"iq4_nl", "xui4>", "stablehlo.and", 5},
        {"mxfp4", "xui4>", "xf4E2M1FN>", 5},
        {"nvfp4", "xui4>", "xf4E2M1FN>", 6},
        {"f8_e4m3", "xui8>", "xf8E4M3FN>", 8},
        {"f8_e5m2", "xui8>", "xf8E5M2>", 8},
    };
    static const char config[] =
        "{\"architectures\": [\"Qwen3ForCausalLM\"], \"vocab_size\": 384, \"hidden_size\": 256, \"head_dim\": 64,"
        " \"intermediate_size\": 384, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": "
        "2,"
        " \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-6, \"tie_word_embeddings\": false}";
    struct sy_json *c;
    assert_int_equal(sy_json_parse(sy_env_default(), config, sizeof config - 1, false, &c, NULL), SY_OK);
    double bf16 = 0;
    for (size_t i = 0; i < SY_COUNT(cases); i++) {
        struct sy_model m;
        struct sy_aot_program p;
        struct sy_aot_opt opt = options(cases[i].format, (struct sy_shard){0});
        assert_int_equal(sy_model_open(sy_env_default(), c, "config.json", &m, NULL), SY_OK);
        assert_int_equal(lower(sy_env_default(), &m, decode, &opt, &p, NULL), SY_OK);
        assert_true(says(&p.text, cases[i].holds));
        if (cases[i].makes) assert_true(says(&p.text, cases[i].makes));
        if (i == 0) bf16 = p.step_bytes;
        assert_true(p.step_bytes <= bf16 * cases[i].bits / 16 * 1.001);
        sy_aot_program_release(&p);
        sy_model_release(&m);
    }
    sy_json_free(c);
}

/* Ranks together hold every row once, or a KV head as often as ranks share it. */
static void test_shares(void **state)
{
    (void)state;
    for (int32_t n = 1; n <= 16; n *= 2)
        for (int64_t heads = 1; heads <= 16; heads *= 2) {
            int64_t rows = heads * 16, each = sy_shard_rows(rows, n, 16), held[256] = {0};
            for (int32_t r = 0; r < n; r++)
                for (int64_t i = 0; i < each; i++) held[sy_shard_first(rows, n, 16, r) + i]++;
            for (int64_t i = 0; i < rows; i++) assert_int_equal(held[i], heads >= n ? 1 : n / heads);
        }
    struct sy_model m;
    struct sy_aot_program one, eight;
    struct sy_aot_opt opt = options("bf16", (struct sy_shard){0});
    open_model("llama", &m);
    assert_int_equal(lower(sy_env_default(), &m, decode, &opt, &one, NULL), SY_OK);
    opt.shard.n_tp = 8;
    assert_int_equal(lower(sy_env_default(), &m, decode, &opt, &eight, NULL), SY_OK);
    assert_true(says(&eight.text, "mhlo.num_replicas = 8") && says(&eight.text, "stablehlo.all_reduce"));
    assert_true(says(&eight.text, "[0, 1, 2, 3, 4, 5, 6, 7]"));
    assert_true(eight.weight_bytes < one.weight_bytes / 2 && eight.kv_bytes == one.kv_bytes / 2); /* 2 KV heads */
    sy_aot_program_release(&one);
    sy_aot_program_release(&eight);
    sy_model_release(&m);
}

/* Shares of parts hold every row of the whole once. */
static void test_parts(void **state)
{
    (void)state;
    struct sy_share s = {.n = 4, .n_part = 3, .part = {{64, 16}, {32, 16}, {12, 1}}};
    int held[108] = {0};
    for (int32_t r = 0; r < 4; r++)
        for (int64_t i = 0; i < 16 + 16 + 3; i++) {
            int64_t row = sy_share_row(&s, 35, r, i);
            assert_in_range(row, 0, 107);
            held[row]++;
        }
    for (int i = 0; i < 108; i++) assert_int_equal(held[i], i >= 64 && i < 96 ? 2 : 1); /* two units, four ranks */
    assert_int_equal(sy_share_whole(&s, 35), 108);
    assert_int_equal(sy_share_row(&(struct sy_share){.n = 4}, 8, 3, 5), 29);
}

/* What ranks exchange, and how much less each holds, by the way they share a mixture of experts (4 heads, 2 KV heads,
 * 8 experts, 3 layers) or a dense model of 3 layers. */
static void test_sharing(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        struct sy_shard shard;
        const char *has[3], *has_not;
        double weights, kv; /* at most that share of what one device holds */
    } ways[] = {
        {"mixtral",
         {.n_tp = 8, .experts = true},
         {"all_reduce", "replica_id", "[0, 1, 2, 3, 4, 5, 6, 7]"},
         "reduce_scatter",
         0.3,
         1},
        {"mixtral",
         {.n_dp = 8, .experts = true},
         {"all_gather_dim = 0", "reduce_scatter", "[0, 1, 2, 3, 4, 5, 6, 7]"},
         "all_reduce",
         0.37,
         1},
        {"mixtral",
         {.n_tp = 2, .n_dp = 2, .experts = true},
         {"[0, 1], [2, 3]", "[0, 2], [1, 3]", "reduce_scatter"},
         "collective_permute",
         0.4,
         0.5},
        {"mixtral",
         {.n_tp = 4, .n_ffn = 4},
         {"[0, 1, 2, 3, 4, 5, 6, 7]", "replica_id", "all_reduce"},
         "collective_permute",
         0.5,
         0.5},
        {"llama", {.n_stage = 3}, {"collective_permute", "[0, 1], [1, 2]", "replica_id"}, "all_gather", 0.8, 0.34},
        {"llama",
         {.n_stage = 3, .n_tp = 2},
         {"[0, 2], [1, 3]", "[0, 1], [2, 3]", "collective_permute"},
         "reduce_scatter",
         0.6,
         0.17},
        /* heads of queries alone; the sinks' vector; states by heads, keys' and convolutions' parts each by itself */
        {"deepseek_v32", {.n_tp = 2}, {"all_reduce", "replica_id", "[0, 1]"}, "reduce_scatter", 0.9, 1},
        {"gpt_oss",
         {.n_tp = 8, .experts = true},
         {"all_reduce", "replica_id", "all_gather"},
         "reduce_scatter",
         0.3,
         0.5},
        {"qwen3_5", {.n_tp = 2}, {"all_reduce", "replica_id", "[0, 1]"}, "all_gather_dim = 0", 0.6, 0.5},
    };
    for (size_t i = 0; i < SY_COUNT(ways); i++) {
        struct sy_model m;
        struct sy_aot_program one, many;
        struct sy_aot_opt opt = options("bf16", (struct sy_shard){0});
        open_model(ways[i].model, &m);
        assert_int_equal(lower(sy_env_default(), &m, decode, &opt, &one, NULL), SY_OK);
        opt.shard = ways[i].shard;
        assert_int_equal(lower(sy_env_default(), &m, decode, &opt, &many, NULL), SY_OK);
        for (int k = 0; k < 3; k++) assert_true(says(&many.text, ways[i].has[k]));
        assert_false(says(&many.text, ways[i].has_not));
        if (many.weight_bytes > ways[i].weights * one.weight_bytes || many.kv_bytes > ways[i].kv * one.kv_bytes)
            print_error("way %zu: weights %.3f, KV %.3f\n", i, many.weight_bytes / one.weight_bytes,
                        many.kv_bytes / one.kv_bytes);
        assert_true(many.weight_bytes <= ways[i].weights * one.weight_bytes);
        assert_true(many.kv_bytes <= ways[i].kv * one.kv_bytes);
        sy_aot_program_release(&one);
        sy_aot_program_release(&many);
        sy_model_release(&m);
    }
}

static void test_memory_of(const char *model, struct sy_shard shard)
{
    struct sy_model m;
    struct sy_aot_opt opt = options("q4_k", shard);
    open_model(model, &m);
    for (long n = 1;; n++) {
        struct counted c;
        struct sy_aot_program p;
        struct sy_err err = {0};
        counted_init(&c, n);
        sy_status st = lower(&c.env, &m, mixed, &opt, &p, &err);
        if (!st) sy_aot_program_release(&p);
        assert_int_equal(c.live, 0);
        if (!st) break;
        assert_int_equal(st, SY_ENOMEM);
        assert_true(err.msg[0]);
    }
    sy_model_release(&m);
}

static void test_memory(void **state)
{
    (void)state;
    test_memory_of("qwen3", (struct sy_shard){.n_tp = 2});
    test_memory_of("mixtral", (struct sy_shard){.n_tp = 2, .n_dp = 2, .experts = true});
    test_memory_of("llama", (struct sy_shard){.n_stage = 3});
    test_memory_of("qwen3_5", (struct sy_shard){.n_tp = 2});
}

/* ---- estimates ------------------------------------------------------------------------------------------------ */

static void put_field(struct sy_buf *b, int tag, const void *bytes, size_t n)
{
    assert_true(n < 16384);
    unsigned key = (unsigned)tag << 3 | 2;
    if (key > 127) sy_buf_char(b, (char)(key | 128));
    sy_buf_char(b, (char)(key > 127 ? key >> 7 : key));
    sy_buf_char(b, (char)((n & 127) | 128));
    sy_buf_char(b, (char)(n >> 7));
    sy_buf_add(b, bytes, n);
}

static void put_number(struct sy_buf *b, int tag, int v)
{
    unsigned key = (unsigned)tag << 3;
    if (key > 127) sy_buf_char(b, (char)(key | 128));
    sy_buf_char(b, (char)(key > 127 ? key >> 7 : key));
    sy_buf_char(b, (char)v);
}

static void put_instruction(struct sy_buf *comp, const char *opcode, const char *config, int called, const char *name)
{
    static const char shape[] = {0x10, 11, 0x1a, 2, 8, 16}; /* f32 [8, 16] */
    struct sy_buf i;
    sy_buf_init(&i, sy_env_default(), 0);
    put_field(&i, 2, opcode, strlen(opcode));
    put_field(&i, 3, shape, sizeof shape);
    if (name) {
        struct sy_buf m;
        sy_buf_init(&m, sy_env_default(), 0);
        put_field(&m, 2, name, strlen(name));
        put_field(&i, 7, m.at, m.len);
        sy_buf_release(&m);
    }
    if (called) put_number(&i, 38, called);
    if (config) put_field(&i, 43, config, strlen(config));
    put_field(comp, 2, i.at, i.len);
    sy_buf_release(&i);
}

/* Entry 1: a fusion, one without an estimate, an all-reduce, a loop over 2 whose trips are not known and which holds
 * a loop over 3 of 5 trips, and a loop over 3 that is one over experts' tiles.
 */
static void make_module(struct sy_buf *m)
{
    struct sy_buf c;
    sy_buf_init(&c, sy_env_default(), 0);
    for (int id = 1; id <= 3; id++) {
        sy_buf_clear(&c);
        put_instruction(&c, "fusion", id == 1 ? "{\"estimated_cycles\":\"100\"}" : "{\"estimated_cycles\":\"7\"}", 0,
                        NULL);
        if (id == 1) {
            put_instruction(&c, "fusion", "{\"estimated_cycles\":\"18446744073709551615\"}", 0, NULL); /* unknown */
            put_instruction(&c, "all-reduce-start", NULL, 0, NULL);
            put_instruction(&c, "all-reduce-done", NULL, 0, NULL);
            put_instruction(&c, "while", NULL, 2, NULL);
            put_instruction(&c, "while", NULL, 3, "step/experts");
        }
        if (id == 2) put_instruction(&c, "while", "{\"known_trip_count\":{\"n\":\"5\"}}", 3, NULL);
        put_number(&c, 5, id);
        put_field(m, 3, c.at, c.len);
    }
    put_number(m, 6, 1);
    sy_buf_release(&c);
}

static void test_estimate(void **state)
{
    (void)state;
    struct sy_buf m;
    struct sy_aot_result r = {0};
    const double trips[SY_AOT_LOOPS] = {3, 1, 2};
    sy_buf_init(&m, sy_env_default(), 0);
    make_module(&m);
    assert_true(sy_aot_estimate(m.at, m.len, trips, &r));
    assert_true(r.cycles == 100 + 3 * (7 + 5 * 7) + 2 * 7 && r.n_estimated == 4);
    assert_true(r.n_collective[SY_ALL_REDUCE] == 1 && r.collective_bytes[SY_ALL_REDUCE] == 8 * 16 * 4);
    for (size_t n = 0; n < m.len; n++) { /* cut anywhere, or with any byte changed: no more than a refusal */
        char *copy = malloc(n + 1);
        memcpy(copy, m.at, n);
        r = (struct sy_aot_result){0};
        (void)sy_aot_estimate(copy, n, trips, &r);
        free(copy);
        char kept = m.at[n];
        m.at[n] = (char)(kept ^ 0x55);
        r = (struct sy_aot_result){0};
        (void)sy_aot_estimate(m.at, m.len, trips, &r);
        m.at[n] = kept;
    }
    sy_buf_release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_text),    cmocka_unit_test(test_all_ops),
                                       cmocka_unit_test(test_formats), cmocka_unit_test(test_shares),
                                       cmocka_unit_test(test_parts),   cmocka_unit_test(test_sharing),
                                       cmocka_unit_test(test_memory),  cmocka_unit_test(test_estimate)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
