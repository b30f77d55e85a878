/* Programs with kernels of several devices: groups of sequences, stages, attention and feed-forward apart. A PJRT
 * plugin for CPUs computes what lies between kernels, all devices together, and the interpreter each kernel of each
 * device on what it was given; the same program by plain operations must leave the same. SYSTOLE_CPU_PLUGIN names the
 * plugin; test/e2e/pjrt_shard.py does. */
#include "mosaic_util.h"
#include "pjrt_util.h"

#include "backend/pjrt/pjrt_int.h"
#include "graph/shard.h"
#include "model/model.h"

enum { RANKS = 4, ARGS = 220, KERNELS = 8, OPERANDS = 10, LINE = 1 << 20 };
enum { N_BLOCK = 24, BLOCK_LEN = 8, N_SLOT = 6, TABLE = 4 };

static const char mixture[] =
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"hidden_size\":256,"
    "\"intermediate_size\":256,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"head_dim\":128,\"vocab_size\":64,\"hidden_act\":\"silu\",\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,"
    "\"rope_theta\":10000.0,\"tie_word_embeddings\":false,\"num_experts\":8,\"num_experts_per_tok\":2,"
    "\"moe_intermediate_size\":128,\"norm_topk_prob\":true,\"decoder_sparse_step\":1,\"mlp_only_layers\":[]}";
static const char hybrid[] =
    "{\"architectures\":[\"Qwen3_5MoeForCausalLM\"],\"model_type\":\"qwen3_5_moe_text\",\"hidden_size\":256,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":128,\"vocab_size\":64,"
    "\"hidden_act\":\"silu\",\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,\"attn_output_gate\":true,"
    "\"layer_types\":[\"linear_attention\",\"full_attention\"],\"full_attention_interval\":2,"
    "\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,"
    "\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,\"num_experts\":8,\"num_experts_per_tok\":2,"
    "\"moe_intermediate_size\":128,\"shared_expert_intermediate_size\":128,\"tie_word_embeddings\":false,"
    "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000,\"partial_rotary_factor\":0.5}}";

/* Tokens of each sequence of a group, and how many it has before them; the rest is padding. */
struct group {
    int32_t n_new[4], past[4];
};
struct case_of {
    const char *name, *config, *format;
    struct sy_shard shard;
    struct sy_shape shape;
    struct group group[2];
    int kernels; /* calls in the program */
};
static const struct case_of cases[] = {
    {"groups of two, one with less",
     mixture,
     "bf16",
     {2, 2, 1, 0, true},
     {4, 4, TABLE, 4, 0},
     {{{1, 1, 1}, {9, 0, 31}}, {{1}, {16}}},
     4},
    {"a group without sequences",
     mixture,
     "f8_e4m3",
     {1, 4, 1, 0, true},
     {4, 4, TABLE, 4, 0},
     {{{1, 1, 1, 1}, {3, 8, 0, 15}}, {{0}, {0}}},
     4},
    {"groups with prompts",
     mixture,
     "bf16",
     {2, 2, 1, 0, true},
     {24, 4, TABLE, 4, 0},
     {{{11, 1, 7}, {3, 20, 0}}, {{24}, {0}}},
     4},
    {"groups of a hybrid",
     hybrid,
     "bf16",
     {2, 2, 1, 0, true},
     {4, 4, TABLE, 4, 0},
     {{{1, 1}, {7, 0}}, {{1, 1, 1}, {0, 30, 12}}},
     4},
    {"groups of a hybrid, prompts and none",
     hybrid,
     "bf16",
     {2, 2, 1, 0, true},
     {16, 2, TABLE, 2, 0},
     {{{9, 5}, {0, 20}}, {{0}, {0}}},
     4},
    {"stages", mixture, "bf16", {2, 1, 2, 0, true}, {4, 4, TABLE, 4, 0}, {{{1, 1, 1}, {9, 0, 31}}, {{0}, {0}}}, 4},
    {"attention and feed-forward apart",
     mixture,
     "bf16",
     {2, 1, 1, 2, false},
     {4, 4, TABLE, 4, 0},
     {{{1, 1, 1}, {9, 0, 31}}, {{0}, {0}}},
     4},
};

/* ---- what goes in ------------------------------------------------------------------------------------------------
 */

struct arg { /* of the program, or a kernel's result */
    struct pj_type t;
    void *data[RANKS];
};
struct run {
    struct pj_client *c;
    struct sy_buf text; /* aliases gone */
    int n_arg, n_out, n_kv;
    struct arg arg[ARGS];
    void *out[RANKS][ARGS];
    struct pj_type out_type[ARGS];
};

static int32_t group_of(const struct case_of *c, int r)
{
    return r / c->shard.n_tp % (c->shard.n_dp > 1 ? c->shard.n_dp : 1);
}

/* The step of a group; padding is of zeros, as the engine leaves it. */
static void step_of(const struct case_of *c, const struct group *g, int32_t *mem)
{
    int32_t *field[SY_FIELD_COUNT], tok = 0, n = c->shape.seq;
    for (int f = 0; f < SY_FIELD_COUNT; f++) {
        field[f] = mem;
        mem += sy_field_len((enum sy_field)f, c->shape);
    }
    for (int32_t s = 0; s < n; s++) {
        field[SY_START][s] = tok;
        if (s >= 4 || g->n_new[s] == 0) continue;
        for (int32_t b = 0; b < TABLE; b++) field[SY_BLOCK_TABLE][s * TABLE + b] = 1 + (s * TABLE + b) * 7 % 17;
        for (int32_t i = 0; i < g->n_new[s]; i++, tok++) {
            int32_t pos = g->past[s] + i;
            field[SY_TOK][tok] = (s * 31 + pos * 7) % 64;
            field[SY_POS][tok] = pos;
            field[SY_ROW][tok] = field[SY_BLOCK_TABLE][s * TABLE + pos / BLOCK_LEN] * BLOCK_LEN + pos % BLOCK_LEN;
            field[SY_SPAN][tok] = g->past[s] + g->n_new[s];
        }
        field[SY_CTX][s] = g->past[s] + g->n_new[s];
        field[SY_SLOT_RD][s] = field[SY_SLOT_WR][s] = s + 1;
        field[SY_OUT][s] = tok - 1;
    }
    field[SY_START][n] = tok;
}

static void put(void *data, enum pj_elem e, int64_t i, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    switch (e) {
    case PJ_F32: ((float *)data)[i] = x; break;
    case PJ_BF16: ((uint16_t *)data)[i] = (uint16_t)(bits >> 16); break;
    case PJ_I32: ((int32_t *)data)[i] = (int32_t)x; break;
    default: ((unsigned char *)data)[i] = (unsigned char)(int)x; break;
    }
}

static float get(const void *data, enum pj_elem e, int64_t i)
{
    uint32_t bits;
    float x;
    switch (e) {
    case PJ_F32: return ((const float *)data)[i];
    case PJ_BF16: bits = (uint32_t)((const uint16_t *)data)[i] << 16; break;
    case PJ_I32: return (float)((const int32_t *)data)[i];
    default: return (float)((const signed char *)data)[i];
    }
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Matrices keep the size of what they multiply; state lies in one way or another, its numbers are the same; vectors
 * are near 1, codes small numbers. */
enum what { STATE, MATRIX, VECTOR };
static void *numbers_of(const struct pj_type *t, uint64_t seed, enum what what)
{
    int64_t n = pj_type_count(t), last = t->dim[t->n_dim - 1];
    void *data = calloc((size_t)n + 1, 4);
    double scale = what == MATRIX ? 1.7 / sqrt((double)last) : 0.2;
    for (int64_t i = 0; i < n; i++) {
        float x = dice(&seed);
        bool byte = t->elem == PJ_U8 || t->elem == PJ_I8;
        int code = 0x30 | (int)(seed >> 20 & 0x8f); /* as fp8: of 0.5 to 1.9 */
        put(data, t->elem, i, byte ? (float)code : (float)((what == VECTOR) + (double)x * scale));
    }
    return data;
}

/* ---- texts -------------------------------------------------------------------------------------------------------
 */

struct call {
    char *line;
    int result[4], operand[OPERANDS], n_result, n_operand, alias[4];
    struct pj_type type[OPERANDS], result_type[4];
    char *type_text, *result_text;
};

static const char *type_at(const char *at, struct pj_type *t)
{
    *t = (struct pj_type){0};
    assert_memory_equal(at, "tensor<", 7);
    for (at += 7; *at >= '0' && *at <= '9'; at++) t->dim[t->n_dim++] = strtoll(at, (char **)&at, 10);
    size_t n = strcspn(at, ">");
    for (int e = 0; e < PJ_ELEM_COUNT; e++)
        if (strlen(pj_elem_name((enum pj_elem)e)) == n && !strncmp(pj_elem_name((enum pj_elem)e), at, n))
            t->elem = (enum pj_elem)e;
    return at + n + 1;
}

static int types_at(const char *at, struct pj_type *t)
{
    int n = 0;
    while ((at = strstr(at, "tensor<"))) at = type_at(at, &t[n++]);
    return n;
}

static int values_at(const char *at, const char *end, int *v)
{
    int n = 0;
    while ((at = memchr(at, '%', (size_t)(end - at)))) v[n++] = atoi(++at);
    return n;
}

/* The line of the nth kernel; its parts are copies, freed by call_free(). */
static bool call_at(const struct sy_buf *text, int nth, struct call *c)
{
    *c = (struct call){.alias = {-1, -1, -1, -1}};
    char *at = text->at;
    for (int i = 0; i <= nth; i++, at += i <= nth)
        if (!(at = strstr(at, " = stablehlo.custom_call @tpu_custom_call("))) return false;
    c->line = at;
    while (c->line[-1] != '\n') c->line--;
    c->n_result = values_at(c->line, at, c->result);
    char *first = strchr(at, '('), *types = strstr(at, "]} : (") + 6, *arrow = strstr(types, ") -> ");
    c->n_operand = values_at(first, strchr(first, ')'), c->operand);
    c->type_text = strndup(types, (size_t)(arrow - types));
    c->result_text = strndup(arrow + 5, strcspn(arrow + 5, "\n"));
    assert_int_equal(types_at(c->type_text, c->type), c->n_operand);
    assert_int_equal(types_at(c->result_text, c->result_type), c->n_result);
    for (char *a = strstr(at, "output_tuple_indices = ["); a && a < types;
         a = strstr(a + 1, "output_tuple_indices = ["))
        c->alias[a[24] == ']' ? 0 : atoi(a + 24)] = atoi(strstr(a, "operand_index = ") + 16);
    return true;
}

static void call_free(struct call *c)
{
    free(c->type_text);
    free(c->result_text);
}

static void operands_text(const struct call *c, struct sy_buf *out)
{
    for (int i = 0; i < c->n_operand; i++) sy_buf_printf(out, "%s%%%d", i ? ", " : "return ", c->operand[i]);
    sy_buf_printf(out, " : %s\n}\n}\n", c->type_text);
}

/* The program with the results of the first n kernels as further arguments, up to the operands of the next. */
static void cut(const struct sy_buf *text, int n, struct sy_buf *out)
{
    char *begin = strstr(text->at, ") -> ("), *body = strchr(begin, '\n') + 1, *at = body;
    struct call c;
    sy_buf_init(out, sy_env_default(), 0);
    sy_buf_add(out, text->at, (size_t)(begin - text->at));
    for (int i = 0; i < n; i++, call_free(&c)) {
        assert_true(call_at(text, i, &c));
        const char *t = c.result_text;
        for (int k = 0; k < c.n_result; k++) {
            t = strstr(t, "tensor<");
            sy_buf_printf(out, ", %%%d: %.*s", c.result[k], (int)strcspn(t, ">") + 1, t);
            t++;
        }
    }
    bool more = call_at(text, n, &c);
    if (more) sy_buf_printf(out, ") -> (%s) {\n", c.type_text);
    else sy_buf_add(out, begin, (size_t)(body - begin));
    char *end = more ? c.line : text->at + text->len;
    for (int i = 0; i < n; i++) {
        struct call gone;
        assert_true(call_at(text, i, &gone));
        sy_buf_add(out, at, (size_t)(gone.line - at));
        at = strchr(gone.line, '\n') + 1;
        call_free(&gone);
    }
    sy_buf_add(out, at, (size_t)(end - at));
    if (more) operands_text(&c, out);
    if (more) call_free(&c);
}

/* ---- running -----------------------------------------------------------------------------------------------------
 */

/* All devices run the program; what it leaves, on the host. */
static void execute(struct run *r, const struct sy_buf *text, const struct pj_type *type, int n_out,
                    void *out[][ARGS])
{
    struct sy_err err = {0};
    static void *arg[RANKS][ARGS], *left[RANKS][ARGS];
    void *const *args[RANKS], **outs[RANKS], *program;
    if (pj_compile(r->c, text->at, text->len, RANKS, &program, &err)) fail_msg("%s", err.msg);
    for (int k = 0; k < RANKS; k++) {
        for (int i = 0; i < r->n_arg; i++)
            assert_int_equal(pj_upload(r->c, k, &r->arg[i].t, r->arg[i].data[k], &arg[k][i], &err), SY_OK);
        args[k] = arg[k];
        outs[k] = left[k];
    }
    if (pj_execute(r->c, program, RANKS, args, (size_t)r->n_arg, outs, &err)) fail_msg("%s", err.msg);
    for (int k = 0; k < RANKS; k++) {
        for (int i = 0; i < n_out; i++) {
            size_t bytes = (size_t)pj_type_bytes(&type[i]);
            out[k][i] = malloc(bytes + 1);
            if (pj_download(r->c, left[k][i], out[k][i], bytes, &err)) fail_msg("%s", err.msg);
            pj_buffer_free(r->c, left[k][i]);
        }
        for (int i = 0; i < r->n_arg; i++) pj_buffer_free(r->c, arg[k][i]);
    }
    pj_executable_free(r->c, program);
}

static void kernel_text(const struct call *c, struct sy_buf *out)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = strstr(c->line, "body\\22:\\22") + 11;
    uint32_t bits = 0;
    sy_buf_init(out, sy_env_default(), 0);
    for (int n = 0; strchr(digit, *at); at++) {
        bits = bits << 6 | (uint32_t)(strchr(digit, *at) - digit);
        n += 6;
        if (n < 8) continue;
        n -= 8;
        sy_buf_char(out, (char)(bits >> n & 255));
    }
}

/* One device's kernel: its results as further arguments. */
static void interpret(struct run *r, const struct call *c, int rank, void *const *operand)
{
    struct sy_buf text;
    struct interp *in = malloc(sizeof *in);
    float *array[OPERANDS];
    kernel_text(c, &text);
    for (int i = 0; i < c->n_operand; i++) {
        int64_t n = pj_type_count(&c->type[i]);
        array[i] = malloc((size_t)n * sizeof(float) + 1);
        for (int64_t k = 0; k < n; k++) array[i][k] = get(operand[i], c->type[i].elem, k);
    }
    if (!interp_in_place(in, &text, array, c->n_operand, c->alias, c->n_result)) fail_msg("%s", in->error);
    for (int i = 0, at = c->n_operand; i < c->n_result; i++) {
        const float *x = in->array[c->alias[i] >= 0 ? c->alias[i] : at++].x;
        struct arg *a = &r->arg[r->n_arg + i];
        int64_t n = pj_type_count(&c->result_type[i]);
        a->t = c->result_type[i];
        a->data[rank] = malloc((size_t)pj_type_bytes(&a->t) + 1);
        for (int64_t k = 0; k < n; k++) put(a->data[rank], a->t.elem, k, x[k]);
    }
    for (int i = 0; i < c->n_operand; i++) free(array[i]);
    in_close(in);
    free(in);
    sy_buf_release(&text);
}

/* The whole program; how many kernels it has. */
static int run_all(struct run *r)
{
    struct call c;
    struct sy_buf text;
    int n = 0, own = r->n_arg;
    for (; call_at(&r->text, n, &c); n++, r->n_arg += c.n_result, call_free(&c)) {
        static void *operand[RANKS][ARGS];
        cut(&r->text, n, &text);
        execute(r, &text, c.type, c.n_operand, operand);
        for (int k = 0; k < RANKS; k++) {
            interpret(r, &c, k, operand[k]);
            for (int i = 0; i < c.n_operand; i++) free(operand[k][i]);
        }
        sy_buf_release(&text);
    }
    cut(&r->text, n, &text);
    execute(r, &text, r->out_type, r->n_out, r->out);
    sy_buf_release(&text);
    for (int i = own; i < r->n_arg; i++)
        for (int k = 0; k < RANKS; k++) free(r->arg[i].data[k]);
    r->n_arg = own;
    return n;
}

/* ---- comparing ---------------------------------------------------------------------------------------------------
 */

/* What the graph looks at is the model's. */
static struct sy_graph *graph_of(const struct case_of *c, struct sy_model *m)
{
    struct sy_json *json;
    struct sy_graph *whole, *g;
    struct sy_err err = {0};
    const struct sy_env *env = sy_env_default();
    assert_int_equal(sy_json_parse(env, c->config, strlen(c->config), false, &json, NULL), SY_OK);
    if (sy_model_open(env, json, "test", m, &err)) fail_msg("%s", err.msg);
    if (sy_model_build(env, m, c->shape, &whole, &err)) fail_msg("%s", err.msg);
    if (sy_graph_shard(env, whole, &c->shard, &g, &err)) fail_msg("%s", err.msg);
    sy_graph_free(whole);
    sy_json_free(json);
    return g;
}

/* The types of a program's results, and its text without donations. */
static void read_text(struct run *r)
{
    for (char *at; (at = strstr(r->text.at, "{tf.aliasing_output"));)
        memset(at, ' ', (size_t)(strchr(at, '}') - at) + 1);
    char *begin = strstr(r->text.at, ") -> (") + 6, *types = strndup(begin, strcspn(begin, "\n"));
    r->n_out = types_at(types, r->out_type);
    free(types);
}

static void lower(const struct case_of *c, unsigned kernels, struct run *r)
{
    const struct sy_env *env = sy_env_default();
    struct sy_model m;
    struct sy_graph *g = graph_of(c, &m);
    struct sy_weights *w;
    struct sy_err err = {0};
    struct pj_results res;
    struct pj_type kv[ARGS], step = PJ_TYPE(PJ_I32, 0);
    struct pj_weights_opt wo = {SY_COMPUTE_BF16, sy_quant_by_name(c->format), RANKS};
    struct pj_lower_opt o = {.compute = SY_COMPUTE_BF16,
                             .kv_elem = PJ_BF16,
                             .state_elem = PJ_F32,
                             .cache = {BLOCK_LEN, N_BLOCK, N_SLOT, 0},
                             .kernels = kernels,
                             .n_rank = RANKS};
    if (pj_weights_plan(env, g, NULL, &wo, &w, &err)) fail_msg("%s", err.msg);
    sy_buf_init(&r->text, env, 0);
    if (pj_lower(env, g, w, &o, &r->text, &res, &err)) fail_msg("%s", err.msg);
    read_text(r);
    r->n_kv = res.n_kv;
    (void)pj_state_arrays(g, &o, kv, NULL);
    for (int f = 0; f < SY_FIELD_COUNT; f++) step.dim[0] += sy_field_len((enum sy_field)f, c->shape);
    r->n_arg = 1 + res.n_kv + w->n_arg;
    assert_true(r->n_arg + 3 * KERNELS < ARGS);
    for (int i = 0; i < r->n_arg; i++) {
        struct arg *a = &r->arg[i];
        a->t = i == 0 ? step : i <= res.n_kv ? kv[i - 1] : w->type[i - 1 - res.n_kv];
        bool window = i > 0 && i <= res.n_kv && (a->t.n_dim == 3 || a->t.n_dim == 5) && a->t.elem == PJ_F32;
        for (int k = 0; k < RANKS; k++) {
            uint64_t seed = (uint64_t)(i * RANKS + k + 1);
            if (i == 0) {
                a->data[k] = calloc((size_t)step.dim[0], sizeof(int32_t));
                step_of(c, &c->group[group_of(c, k) % 2], a->data[k]);
            } else if (window) { /* its layout differs: zeros lie alike */
                a->data[k] = calloc(1, (size_t)pj_type_bytes(&a->t));
            } else {
                a->data[k] = numbers_of(&a->t, seed, i <= res.n_kv ? STATE : a->t.n_dim == 1 ? VECTOR : MATRIX);
            }
        }
    }
    pj_weights_free(w);
    sy_graph_free(g);
    sy_model_release(&m);
}

static void release(struct run *r)
{
    for (int k = 0; k < RANKS; k++) {
        for (int i = 0; i < r->n_arg; i++) free(r->arg[i].data[k]);
        for (int i = 0; i < r->n_out; i++) free(r->out[k][i]);
    }
    sy_buf_release(&r->text);
}

/* The largest difference in parts of the largest number, from element lo to hi. */
static double differs(const struct pj_type *t, const void *a, const void *b, int64_t lo, int64_t hi)
{
    double worst = 0, largest = 1e-30;
    for (int64_t i = lo; i < hi; i++) {
        double x = (double)get(a, t->elem, i), e = fabs(x - (double)get(b, t->elem, i));
        worst = e <= worst ? worst : isnan(e) ? (double)INFINITY : e;
        largest = fabs(x) > largest ? fabs(x) : largest;
    }
    return worst / largest;
}

/* Logits of the rows that a rank's group wants, and blocks and slots but the first, which are padding's. */
static void compare(const struct case_of *c, const struct run *a, const struct run *b)
{
    double worst = 0, kept = 0;
    for (int k = 0; k < RANKS; k++) {
        const struct group *g = &c->group[group_of(c, k) % 2];
        int n = 0;
        while (n < 4 && n < c->shape.seq && g->n_new[n]) n++;
        const struct pj_type *t = &a->out_type[a->n_kv + 1];
        double e = n ? differs(t, a->out[k][a->n_kv + 1], b->out[k][a->n_kv + 1], 0, n * t->dim[1]) : 0;
        worst = e > worst ? e : worst;
        for (int i = 0; i < a->n_kv; i++) {
            t = &a->out_type[i];
            if (pj_type_count(t) != pj_type_count(&b->out_type[i])) continue; /* windows */
            if (t->n_dim == 3 && t->elem == PJ_F32) continue;
            e = differs(t, a->out[k][i], b->out[k][i], pj_type_count(t) / t->dim[0], pj_type_count(t));
            kept = e > kept ? e : kept;
        }
    }
    print_message("%s: logits differ by %g, what is kept by %g\n", c->name, worst, kept);
    if (!(worst < 3e-2 && kept < 3e-2)) fail_msg("%s: differs by %g and %g", c->name, worst, kept);
}

static void test_groups(void **state)
{
    (void)state;
    static struct run plain, kernel;
    struct pj_client c;
    open_cpu_plugin(&c, RANKS);
    for (size_t i = 0; i < SY_COUNT(cases); i++) {
        plain = (struct run){.c = &c};
        kernel = (struct run){.c = &c};
        lower(&cases[i], 0, &plain);
        lower(&cases[i], SY_KERNELS_ALL, &kernel);
        assert_int_equal(run_all(&plain), 0);
        assert_int_equal(run_all(&kernel), cases[i].kernels);
        compare(&cases[i], &plain, &kernel);
        release(&plain);
        release(&kernel);
    }
    pj_client_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_groups)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
