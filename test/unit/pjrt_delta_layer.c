/* A layer of the gated delta rule with its convolution, as it is lowered for the kernel and by plain operations, in
 * one step of each kind. A PJRT plugin for CPUs computes the kernel's operands and the plain operations, the
 * interpreter the kernel; both must leave the same. SYSTOLE_CPU_PLUGIN names the plugin;
 * test/e2e/pjrt_attention.py does. */
#include "mosaic_util.h"
#include "pjrt_util.h"

#include "backend/pjrt/lower_int.h"
#include "backend/pjrt/mosaic/schedule.h"

enum { D = 128, TAPS = 4, ARGS = 7, OPERANDS = 8, N_SEQ = 4, STEP_MAX = 4000, PIECE = 64 };
static const int32_t before[] = {5, 0, 70}; /* tokens of each sequence */
struct layer {
    struct sy_delta_shape s;
    int32_t n_tok, n_slot, step[STEP_MAX], n_step;
    int64_t columns;
    float *window, *state, *x, *decay, *beta, *taps;
    struct mo_delta a; /* how units lie */
};

static float *fill(int64_t n, uint64_t seed, float scale, float add)
{
    float *x = numbers(n, seed);
    for (int64_t i = 0; i < n; i++) x[i] = x[i] * scale + add;
    return x;
}

/* Three sequences, of which the second begins, then padding; several tokens each where n_tok is larger. */
static struct layer layer_of(int32_t n_key, int32_t n_val, int32_t n_tok)
{
    struct layer y = {
        .s = {{n_key, n_val, D, D, true}, N_SEQ, TAPS, false, 0}, .n_tok = n_tok, .n_slot = 2 * N_SEQ + 1};
    struct sy_shape shape = {n_tok, N_SEQ, 1, N_SEQ, 0};
    const int32_t rd[] = {1, 0, 2}, wr[] = {1, 3, 4}, each = n_tok > N_SEQ ? n_tok / N_SEQ : 1;
    int64_t at[SY_FIELD_COUNT];
    for (int f = 0; f < SY_FIELD_COUNT; f++) {
        at[f] = y.n_step;
        y.n_step += (int32_t)sy_field_len((enum sy_field)f, shape);
    }
    assert_true(y.n_step <= STEP_MAX);
    for (int32_t s = 0; s <= N_SEQ; s++) y.step[at[SY_START] + s] = each * (s < 3 ? s : 3);
    for (int32_t s = 0; s < 3; s++) {
        y.step[at[SY_SLOT_RD] + s] = rd[s];
        y.step[at[SY_SLOT_WR] + s] = wr[s];
        for (int32_t i = 0; i < each; i++) y.step[at[SY_POS] + s * each + i] = before[s] + i;
    }
    y.columns = (2 * n_key + n_val) * (int64_t)D;
    y.window = fill(y.n_slot * (TAPS - 1) * y.columns, 1, 1, 0);
    y.state = fill((int64_t)y.n_slot * n_val * D * D, 2, 1, 0);
    y.x = fill(n_tok * y.columns, 3, 1, 0);
    y.decay = fill((int64_t)n_tok * n_val, 4, 0.4f, -0.5f);
    y.beta = fill((int64_t)n_tok * n_val, 5, 0.4f, 0.5f);
    y.taps = fill(TAPS * y.columns, 6, 1, 0);
    y.a = mo_delta_of(&y.s.dim, TAPS, false, N_SEQ, y.n_slot);
    return y;
}

/* Where a column of a window in units lies: of slot, tap and column. */
static int64_t in_units(const struct layer *y, int64_t slot, int64_t tap, int64_t column)
{
    const struct mo_delta *a = &y->a;
    int64_t head = column / D, keys = mo_delta_keys(a), row;
    int64_t each = head < 2 * a->n_key ? keys : a->unit;
    int64_t i = head < a->n_key ? head : head < 2 * a->n_key ? head - a->n_key : head - 2 * a->n_key;
    row = i % each + (head < a->n_key ? 0 : head < 2 * a->n_key ? keys : 2 * keys);
    return (((slot * mo_delta_units(a) + i / each) * (TAPS - 1) + tap) * mo_delta_rows(a) + row) * D + column % D;
}

static int64_t units_size(const struct layer *y)
{
    return (int64_t)y->n_slot * mo_delta_units(&y->a) * (TAPS - 1) * mo_delta_rows(&y->a) * D;
}

/* A window to units, or back. */
static float *turned(const struct layer *y, const float *from, bool to_units)
{
    float *x = calloc((size_t)units_size(y), sizeof *x);
    for (int64_t i = 0; i < y->n_slot * (TAPS - 1) * y->columns; i++) {
        int64_t row = i / y->columns, at = in_units(y, row / (TAPS - 1), row % (TAPS - 1), i % y->columns);
        if (to_units) x[at] = from[i];
        else x[i] = from[at];
    }
    return x;
}

/* ---- running ----------------------------------------------------------------------------------------------------
 */

/* A program that computes the operands of the kernel that the text calls. */
static void cut(struct sy_buf *text)
{
    char *call = strstr(text->at, " = stablehlo.custom_call"), *begin = strstr(text->at, ") -> ("), operands[300];
    assert_true(call && begin);
    char *first = strchr(call, '('), *type = strstr(call, "]} : (") + 6, *end = strstr(type, ") -> ");
    snprintf(operands, sizeof operands, "%.*s", (int)(strchr(first, ')') - first - 1), first + 1);
    char *body = strchr(begin, '\n'), *line = call;
    while (line[-1] != '\n') line--;
    struct sy_buf out;
    sy_buf_init(&out, sy_env_default(), 0);
    sy_buf_add(&out, text->at, (size_t)(begin - text->at) + 6);
    sy_buf_printf(&out, "%.*s) {", (int)(end - type), type);
    sy_buf_add(&out, body, (size_t)(line - body));
    sy_buf_printf(&out, "return %s : %.*s\n}\n}\n", operands, (int)(end - type), type);
    /* What is donated comes back as another result. */
    for (char *at; (at = strstr(out.at, "{tf.aliasing_output"));) memset(at, ' ', (size_t)(strchr(at, '}') - at) + 1);
    sy_buf_release(text);
    *text = out;
}

static void run_it(struct pj_client *c, const struct sy_buf *text, const struct pj_type *type,
                   const void *const *data, int n_out, float *const *out, const size_t *bytes)
{
    struct sy_err err = {0};
    void *program, *arg[ARGS], *left[OPERANDS];
    if (pj_compile(c, text->at, text->len, 1, &program, &err)) fail_msg("%s", err.msg);
    for (int i = 0; i < ARGS; i++) assert_int_equal(pj_upload(c, 0, &type[i], data[i], &arg[i], &err), SY_OK);
    void *const *args = arg;
    void **outs = left;
    if (pj_execute(c, program, 1, &args, ARGS, &outs, &err)) fail_msg("%s", err.msg);
    for (int i = 0; i < n_out; i++) {
        if (pj_download(c, left[i], out[i], bytes[i], &err)) fail_msg("%s", err.msg);
        pj_buffer_free(c, left[i]);
    }
    for (int i = 0; i < ARGS; i++) pj_buffer_free(c, arg[i]);
    pj_executable_free(c, program);
}

static void types_of(const struct layer *y, bool units, struct pj_type t[ARGS])
{
    const struct sy_scan_dim *d = &y->s.dim;
    t[0] = PJ_TYPE(PJ_I32, y->n_step);
    t[1] = units ? PJ_TYPE(PJ_F32, y->n_slot, mo_delta_units(&y->a), TAPS - 1, mo_delta_rows(&y->a), D)
                 : PJ_TYPE(PJ_F32, y->n_slot, TAPS - 1, y->columns);
    t[2] = PJ_TYPE(PJ_F32, y->n_slot, d->n_val, D, D);
    t[3] = PJ_TYPE(PJ_F32, y->n_tok, y->columns);
    t[4] = t[5] = PJ_TYPE(PJ_F32, y->n_tok, d->n_val);
    t[6] = PJ_TYPE(PJ_F32, TAPS * y->columns);
}

/* Window, state and results of the program without a kernel's call. */
static void plain(struct pj_client *c, const struct layer *y, bool units, float *const out[3])
{
    struct sy_buf text;
    struct pj_type t[ARGS];
    float *window = units ? turned(y, y->window, true) : y->window;
    const void *data[] = {y->step, window, y->state, y->x, y->decay, y->beta, y->taps};
    size_t bytes[] = {(units ? (size_t)units_size(y) : (size_t)(y->n_slot * (TAPS - 1) * y->columns)) * sizeof(float),
                      (size_t)y->n_slot * (size_t)y->s.dim.n_val * D * D * sizeof(float),
                      (size_t)y->n_tok * (size_t)y->s.dim.n_val * D * sizeof(float)};
    sy_buf_init(&text, sy_env_default(), 0);
    assert_int_equal(mo_delta_program(sy_env_default(), &y->s, y->n_tok, units ? SY_KERNELS_DELTA : 0, &text, NULL),
                     SY_OK);
    types_of(y, units, t);
    run_it(c, &text, t, data, 3, out, bytes);
    if (units) free(window);
    sy_buf_release(&text);
}

/* The kernel that a program calls, run on operands that the plugin computes: memory of arguments `state` and
 * `window`, and the results. */
static void call(struct pj_client *c, const struct layer *y, unsigned kernels, struct mosaic *m, const int *alias,
                 struct interp *in)
{
    struct sy_buf text, kernel;
    struct pj_type t[ARGS];
    bool units = kernels & SY_KERNELS_DELTA;
    float *window = units ? turned(y, y->window, true) : NULL, *operand[OPERANDS] = {NULL};
    const void *data[] = {y->step, units ? window : y->window, y->state, y->x, y->decay, y->beta, y->taps};
    size_t bytes[OPERANDS] = {0};
    int n = m->n_prefetch + m->n_operand, n_out = m->n_result;
    sy_buf_init(&text, sy_env_default(), 0);
    sy_buf_init(&kernel, sy_env_default(), 0);
    assert_int_equal(mo_delta_program(sy_env_default(), &y->s, y->n_tok, kernels, &text, NULL), SY_OK);
    cut(&text);
    for (int i = 0; i < n; i++) {
        struct mo_type of = mo_type_of(m, m->arg[i]);
        bytes[i] = of.elem == MO_BF16 ? 2 : 4;
        for (int k = 0; k < of.n_dim; k++) bytes[i] *= (size_t)of.dim[k];
        operand[i] = malloc(2 * bytes[i]);
    }
    types_of(y, units, t);
    run_it(c, &text, t, data, n, operand, bytes);
    for (int i = 0; i < n; i++) { /* to numbers, as the interpreter has them, from the last on */
        struct mo_type of = mo_type_of(m, m->arg[i]);
        size_t size = of.elem == MO_BF16 ? 2 : 4;
        for (size_t k = bytes[i] / size; k-- > 0;) {
            uint32_t x = 0;
            memcpy((char *)&x + 4 - size, (char *)operand[i] + k * size, size);
            if (i < m->n_prefetch) operand[i][k] = (float)(int32_t)x;
            else memcpy(&operand[i][k], &x, sizeof x);
        }
    }
    assert_int_equal(mo_end(m, &kernel, NULL), SY_OK);
    mo_release(m);
    if (!interp_in_place(in, &kernel, operand, n, alias, n_out)) fail_msg("%s", in->error);
    free(window);
    for (int i = 0; i < n; i++) free(operand[i]);
    sy_buf_release(&text);
    sy_buf_release(&kernel);
}

/* Window, state and results of a decode step by the kernel. */
static void by_kernel(struct pj_client *c, const struct layer *y, float *const out[3])
{
    struct mosaic m;
    struct mo_delta a = y->a;
    struct interp *in = malloc(sizeof *in);
    a.eps = 1e-6f; /* as the layer's are */
    a.q_scale = a.k_scale = 0.1f;
    mo_init(&m, sy_env_default());
    mo_delta(&m, &a);
    call(c, y, SY_KERNELS_DELTA, &m, (const int[]){3, 4, -1}, in);
    memcpy(out[0], in->array[4].x, (size_t)in->array[4].n * sizeof(float));
    memcpy(out[1], in->array[3].x, (size_t)in->array[3].n * sizeof(float));
    for (int64_t i = 0; i < (int64_t)y->n_tok * y->s.dim.n_val * D; i++) {
        int64_t head = i / D % y->s.dim.n_val, row = i / D / y->s.dim.n_val;
        int64_t at = (row * mo_delta_units(&a) + head / a.unit) * mo_delta_heads(&a) + head % a.unit;
        out[2][i] = in->array[7].x[at * D + i % D];
    }
    in_close(in);
    free(in);
}

/* State and results of a step with prompts. */
static void by_pieces(struct pj_client *c, const struct layer *y, float *const out[3])
{
    struct mosaic m;
    struct mo_chunk a = mo_chunk_of(&y->s.dim, false, y->n_tok, N_SEQ, y->n_slot);
    struct interp *in = malloc(sizeof *in);
    a.norm = true;
    a.eps = 1e-6f; /* as the layer's are */
    a.q_scale = a.k_scale = 0.1f;
    mo_init(&m, sy_env_default());
    mo_chunk(&m, &a);
    call(c, y, SY_KERNELS_CHUNK, &m, (const int[]){3, -1}, in);
    memcpy(out[1], in->array[3].x, (size_t)in->array[3].n * sizeof(float));
    int32_t piece = -1, each = y->n_tok / N_SEQ;
    for (int32_t t = 0; t < 3 * each; t++) {
        int32_t pos = before[t / each] + t % each;
        piece += t % each == 0 || pos % PIECE == 0;
        for (int32_t h = 0; h < y->s.dim.n_val; h++) {
            int64_t row = ((int64_t)piece * PIECE + pos % PIECE) * y->s.dim.n_val + h;
            memcpy(out[2] + ((int64_t)t * y->s.dim.n_val + h) * D, in->array[6].x + row * D, D * sizeof(float));
        }
    }
    in_close(in);
    free(in);
}

static void alike(const char *what, const float *a, const float *b, int64_t n, double limit)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)a[i] - (double)b[i]) / (1 + fabs((double)a[i]));
        worst = e <= worst ? worst : isnan(e) ? (double)INFINITY : e;
    }
    print_message("%s: differs by %g\n", what, worst);
    if (!(worst < limit)) fail_msg("%s differs by %g", what, worst);
}

enum way { BY_DELTA, BY_PIECES, BESIDE }; /* BESIDE: plain operations on windows as the kernel has them */
static void compare(struct pj_client *c, enum way way, int32_t n_key, int32_t n_val, int32_t n_tok)
{
    struct layer y = layer_of(n_key, n_val, n_tok);
    int64_t n = y.n_slot * (TAPS - 1) * y.columns, each = (int64_t)n_val * D;
    float *want[3], *got[3];
    for (int i = 0; i < 3; i++) {
        size_t bytes = (size_t)(i == 0   ? units_size(&y)
                                : i == 1 ? y.n_slot * each * D
                                         : n_tok * each) *
                       sizeof(float);
        want[i] = malloc(bytes);
        got[i] = malloc(bytes);
    }
    print_message("%d key heads, %d value heads, %d tokens\n", n_key, n_val, n_tok);
    plain(c, &y, false, want);
    if (way == BY_DELTA) by_kernel(c, &y, got);
    else if (way == BY_PIECES) by_pieces(c, &y, got);
    else plain(c, &y, true, got);
    int64_t skip = (TAPS - 1) * y.columns;         /* slot 0 is padding's */
    double limit = way == BY_PIECES ? 3e-2 : 2e-5; /* products of bf16 */
    if (way != BY_PIECES) {
        float *window = turned(&y, got[0], false);
        alike("window", want[0] + skip, window + skip, n - skip, limit);
        free(window);
    }
    alike("state", want[1] + each * D, got[1] + each * D, (y.n_slot - 1) * each * D, limit);
    alike("results", want[2], got[2], 3 * (n_tok > N_SEQ ? n_tok / N_SEQ : 1) * each, limit);
    for (int i = 0; i < 3; i++) {
        free(want[i]);
        free(got[i]);
    }
    float *all[] = {y.window, y.state, y.x, y.decay, y.beta, y.taps};
    for (size_t i = 0; i < SY_COUNT(all); i++) free(all[i]);
}

static void test_layer(void **state)
{
    (void)state;
    struct pj_client c;
    open_cpu_plugin(&c, 1);
    compare(&c, BY_DELTA, 1, 4, N_SEQ);
    compare(&c, BY_DELTA, 4, 12, N_SEQ); /* two units of six heads */
    compare(&c, BESIDE, 2, 4, 3 * N_SEQ);
    compare(&c, BESIDE, 4, 12, 3 * N_SEQ);
    compare(&c, BY_PIECES, 2, 4, 70 * N_SEQ);
    compare(&c, BY_PIECES, 2, 16, 10 * N_SEQ); /* two units */
    pj_client_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
