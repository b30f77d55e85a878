/* Models read configs strictly and build what the configs say. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "model/model.h"

static const char *const fixtures[] = {"llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma3"};
static const struct sy_shape shape = {32, 4, 8, 6, 0};

/* Not inlined: gcc 12 takes the buffer for the pointer that holds it, and warns of a dangling one. */
__attribute__((noinline)) static char *read_config(const char *name)
{
    char path[200], *text;
    size_t n;
    snprintf(path, sizeof path, "test/golden/models/%s/config.json", name);
    assert_int_equal(sy_file_read(sy_env_default(), path, 1 << 20, &text, &n, NULL), SY_OK);
    return text;
}

static sy_status open_text(const char *text, struct sy_model *m, struct sy_err *err)
{
    struct sy_json *j;
    sy_status st = sy_json_parse(sy_env_default(), text, strlen(text), true, &j, err);
    if (st) return st;
    st = sy_model_open(sy_env_default(), j, "config.json", m, err);
    sy_json_free(j);
    return st;
}

/* text with the first `from` replaced by `to` */
static char *edited(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (!at) fail_msg("no '%s' in the config", from);
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    sy_buf_add(&b, text, (size_t)(at - text));
    sy_buf_text(&b, to);
    sy_buf_text(&b, at + strlen(from));
    return b.at;
}

static void refused(const char *model, const char *from, const char *to, sy_status want, const char *word)
{
    char *text = read_config(model), *bad = edited(text, from, to);
    struct sy_model m;
    struct sy_err err = {0};
    sy_status st = open_text(bad, &m, &err);
    if (st != want || !strstr(err.msg, word) || !strstr(err.msg, "config.json"))
        fail_msg("%s: %d '%s'", to, st, err.msg);
    sy_delete(sy_env_default(), bad);
    sy_delete(sy_env_default(), text);
}

static void bad_configs_are_refused_by_key(void **state)
{
    (void)state;
    refused("llama", "LlamaForCausalLM", "LlamaForImages", SY_ENOSUP, "'LlamaForImages'");
    refused("llama", "\"silu\"", "\"relu7\"", SY_ENOSUP, "'relu7'");
    refused("llama", "\"llama3\"", "\"spiral\"", SY_ENOSUP, "'spiral'");
    refused("llama", "\"hidden_size\"", "\"hidden_sizes\"", SY_EFORMAT, "'hidden_size'");
    refused("llama", "\"num_attention_heads\": 8", "\"num_attention_heads\": -8", SY_EFORMAT,
            "'num_attention_heads'");
    refused("llama", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", SY_EFORMAT, "multiple");
    refused("llama", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": \"small\"", SY_EFORMAT, "'rms_norm_eps'");
    refused("llama", "\"high_freq_factor\": 4.0", "\"high_freq_factor\": 0.5", SY_EFORMAT, "'high_freq_factor'");
    refused("llama", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 100000", SY_EFORMAT, "'num_hidden_layers'");
    refused("llama", "\"head_dim\": 16", "\"head_dim\": 15", SY_EFORMAT, "rope");
    refused("llama", "\"architectures\"", "\"architecture\"", SY_EFORMAT, "'architectures'");
    refused("gemma3", "\"sliding_window\": 16", "\"sliding_window\": 0", SY_EFORMAT, "'sliding_window'");
    refused("gpt_oss", "\"silu\"", "\"gelu\"", SY_ENOSUP, "'hidden_act'");
    refused("gpt_oss", "\"full_attention\"", "\"sparse_attention\"", SY_ENOSUP, "'sparse_attention'");
    refused("mixtral", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9", SY_EFORMAT,
            "'num_experts_per_tok'");
    refused("phi3", "\"longrope\"", "\"longestrope\"", SY_ENOSUP, "'longestrope'");
    refused("phi3", "1.77", "-1.77", SY_EFORMAT, "'short_factor'");
    refused("gemma3n", "\"num_kv_shared_layers\": 3", "\"num_kv_shared_layers\": 5", SY_EFORMAT,
            "'num_kv_shared_layers'");
    refused("deepseek_v32", "\"noaux_tc\"", "\"greedy\"", SY_ENOSUP, "'topk_method'");
    refused("deepseek_v32", "\"scoring_func\": \"sigmoid\"", "\"scoring_func\": \"softmax\"", SY_ENOSUP,
            "'scoring_func'");
    refused("deepseek_v32", "\"moe_layer_freq\": 1", "\"moe_layer_freq\": 2", SY_ENOSUP, "'moe_layer_freq'");
    refused("deepseek_v32", "\"index_head_dim\": 32", "\"index_head_dim\": 8", SY_EFORMAT, "'index_head_dim'");
    refused("deepseek_v32", "\"q_lora_rank\": 48", "\"q_lora_rank\": null", SY_ENOSUP, "'q_lora_rank'");
    refused("deepseek_v32", "\"index_topk\": 12", "\"index_topk\": 12, \"index_topk_freq\": 0", SY_EFORMAT,
            "'index_topk_freq'");
    refused("glm_moe_dsa", "\"kv_lora_rank\": 32", "\"kv_lora_rank\": 0", SY_EFORMAT, "'kv_lora_rank'");
    refused("glm_moe_dsa", "\"index_topk\": 12", "\"index_topk\": 12, \"index_topk_pattern\": \"SFF\"", SY_EFORMAT,
            "an indexer");
    refused("smollm3", "\"use_sliding_window\": false", "\"use_sliding_window\": true", SY_ENOSUP,
            "'use_sliding_window'");
}

static void count_ops(const struct sy_graph *g, int *n)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node);
    for (uint32_t i = 1; i < n_node; i++) n[node[i].op]++;
}

static struct sy_graph *build(const char *text)
{
    struct sy_model m;
    struct sy_graph *g;
    struct sy_err err;
    if (open_text(text, &m, &err)) fail_msg("%s", err.msg);
    if (sy_model_build(sy_env_default(), &m, shape, &g, &err)) fail_msg("%s", err.msg);
    /* The graph refers to the model's rope tables; nothing here reads them after this. */
    sy_model_release(&m);
    return g;
}

static void graphs_hold_what_the_config_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT(fixtures); i++) {
        char *text = read_config(fixtures[i]);
        struct sy_graph *g = build(text), *again = build(text);
        int n[SY_OP_COUNT] = {0};
        count_ops(g, n);
        int layers = n[SY_OP_ATTEND];
        assert_true(layers >= 3 && n[SY_OP_STATE] == layers && n[SY_OP_SAMPLE] == 1 && n[SY_OP_EMBED] == 1);
        assert_int_equal(n[SY_OP_LINEAR], 4 * layers + 1);
        struct sy_buf a, b;
        sy_buf_init(&a, sy_env_default(), 0);
        sy_buf_init(&b, sy_env_default(), 0);
        sy_graph_print(g, false, &a);
        sy_graph_print(again, false, &b);
        assert_string_equal(a.at, b.at); /* building is pure */
        sy_buf_release(&a);
        sy_buf_release(&b);
        sy_graph_free(g);
        sy_graph_free(again);
        sy_delete(sy_env_default(), text);
    }
}

/* Ops of a kind in the graph of a config, edited. */
static int count_of(enum sy_op op, const char *model, const char *from, const char *to)
{
    char *text = read_config(model), *changed = edited(text, from, to);
    struct sy_graph *g = build(changed);
    int n[SY_OP_COUNT] = {0};
    count_ops(g, n);
    sy_graph_free(g);
    sy_delete(sy_env_default(), changed);
    sy_delete(sy_env_default(), text);
    return n[op];
}

static void latent_attention_follows_the_config(void **state)
{
    (void)state;
    const char *top = "\"index_topk\": 12";
    assert_int_equal(count_of(SY_OP_ATTEND, "glm_moe_dsa", top, top), 3);
    assert_int_equal(count_of(SY_OP_HEADS, "glm_moe_dsa", top, top), 6);
    assert_int_equal(count_of(SY_OP_INDEX, "glm_moe_dsa", top, top), 3);
    assert_int_equal(count_of(SY_OP_INDEX, "glm_moe_dsa", top, "\"index_topk\": null"), 0);
    assert_int_equal(count_of(SY_OP_INDEX, "glm_moe_dsa", top, "\"index_topk\": 12, \"index_topk_pattern\": \"FSF\""),
                     2);
}

static int windows(const char *model, const char *from, const char *to)
{
    char *text = read_config(model), *changed = edited(text, from, to);
    struct sy_graph *g = build(changed);
    uint32_t n;
    const struct sy_node *node = sy_graph_nodes(g, &n);
    int found = 0;
    for (uint32_t i = 1; i < n; i++) found += node[i].op == SY_OP_ATTEND && node[i].attr.attn.window > 0;
    sy_graph_free(g);
    sy_delete(sy_env_default(), changed);
    sy_delete(sy_env_default(), text);
    return found;
}

static void windows_and_missing_ropes_follow_the_config(void **state)
{
    (void)state;
    assert_int_equal(windows("qwen2", "\"use_sliding_window\": false", "\"use_sliding_window\": false"), 0);
    assert_int_equal(windows("qwen2", "\"max_window_layers\": 21,\n  \"use_sliding_window\": false",
                             "\"max_window_layers\": 1, \"use_sliding_window\": true"),
                     2);
    assert_int_equal(windows("mistral", "\"sliding_window\": 24", "\"sliding_window\": null"), 0);
    assert_int_equal(windows("gemma3", "\"sliding_window_pattern\": 3", "\"sliding_window_pattern\": 2"), 2);
}

static double one_byte(void *ctx, const struct sy_node *n)
{
    (void)ctx;
    (void)n;
    return 1;
}

static void cost_counts_every_weight_once(void **state)
{
    (void)state;
    char *text = read_config("llama");
    struct sy_graph *g = build(text);
    struct sy_load load = {.tok = 1, .out = 1, .keys = 10, .ctx = 10, .kv_elem_bytes = 2, .weight_bytes = one_byte};
    struct sy_cost c = sy_graph_cost(g, &load);
    double matrices = 3 * (64. * (128 + 64) + 64. * 128 + 3 * 64. * 176) + 320. * 64;
    assert_true(fabs(c.b_weight - (matrices + 64)) < 1); /* and one row of the table of embeddings */
    double state_bytes = 3 * (10 + 1) * 2. * (16 + 16) * 2;
    assert_true(fabs(c.b_state - state_bytes) < 1);
    assert_true(c.flops > 2 * matrices && c.flops < 2.2 * matrices);
    sy_graph_free(g);
    sy_delete(sy_env_default(), text);
}

static void joined_names_come_apart(void **state)
{
    (void)state;
    char buf[100];
    assert_true(sy_weight_part("a.{q,k,v}_proj.w", 1, buf, sizeof buf));
    assert_string_equal(buf, "a.k_proj.w");
    assert_true(sy_weight_part("a.{q,k,v}_proj.w", 2, buf, sizeof buf));
    assert_string_equal(buf, "a.v_proj.w");
    assert_false(sy_weight_part("a.{q,k,v}_proj.w", 3, buf, sizeof buf));
    assert_true(sy_weight_part("plain", 0, buf, sizeof buf));
    assert_false(sy_weight_part("plain", 1, buf, sizeof buf));
    assert_true(sy_weight_part("e.{0..3}.{a,b}.w", 5, buf, sizeof buf));
    assert_string_equal(buf, "e.2.b.w");
    assert_false(sy_weight_part("e.{0..3}.{a,b}.w", 8, buf, sizeof buf));
    assert_true(sy_weight_part("e.{0..11}.w", 11, buf, sizeof buf));
    assert_string_equal(buf, "e.11.w");
    assert_false(sy_weight_part("e.{0..11}.w", 12, buf, sizeof buf));
}

static void experts_cost_what_is_chosen(void **state)
{
    (void)state;
    char *text = read_config("mixtral"); /* 2 of 8 experts of 48, width 64 */
    struct sy_graph *g = build(text);
    uint32_t n, id = 1;
    const struct sy_node *node = sy_graph_nodes(g, &n);
    while (id < n && node[id].op != SY_OP_EXPERTS) id++;
    assert_true(id < n);
    struct sy_load load = {.tok = 1, .out = 1, .weight_bytes = one_byte};
    struct sy_cost c = sy_node_cost(g, id, &load);
    double each = 3. * 48 * 64;
    assert_true(fabs(c.b_weight - 2 * each) < 1e-6 * each);
    assert_true(c.flops >= 2 * 2 * each && c.flops < 2.2 * 2 * each);
    load.tok = 1000; /* then every expert is somebody's choice */
    assert_true(fabs(sy_node_cost(g, id, &load).b_weight - 8 * each) < 1e-6 * each);
    sy_graph_free(g);
    sy_delete(sy_env_default(), text);
}

static void wrong_graphs_are_refused(void **state)
{
    (void)state;
    struct sy_graph *g;
    struct sy_err err;
    assert_int_equal(sy_graph_new(sy_env_default(), shape, &g, &err), SY_OK);
    sy_val x = sy_embed(g, sy_weight(g, SY_WHOLE, "table", -1, 10, 8), sy_input(g, SY_TOK));
    sy_val y = sy_linear(g, x, sy_weight(g, SY_BY_OUT, "w", -1, 4, 9), SY_NONE); /* 9 columns on 8 */
    assert_int_equal(y.id, 0);
    assert_int_equal(sy_add(g, x, x).id, 0); /* errors stick */
    assert_int_equal(sy_graph_finish(g, y, &err), SY_ESHAPE);
    assert_non_null(strstr(err.msg, "'w'"));
    sy_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_configs_are_refused_by_key),
        cmocka_unit_test(graphs_hold_what_the_config_says),
        cmocka_unit_test(latent_attention_follows_the_config),
        cmocka_unit_test(windows_and_missing_ropes_follow_the_config),
        cmocka_unit_test(cost_counts_every_weight_once),
        cmocka_unit_test(joined_names_come_apart),
        cmocka_unit_test(experts_cost_what_is_chosen),
        cmocka_unit_test(wrong_graphs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
