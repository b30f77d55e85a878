/* The TPU kernel of the gated delta rule, run by the interpreter against a double precision reference: other read and
 * write slots, sequences without a state yet, padding, one sequence in place among others; and planted mistakes. */
#include "mosaic_util.h"

enum { SEQ_MAX = 8, D = 128, NEW = -1 };
struct case_of {
    struct mo_delta a;
    int32_t live, read[SEQ_MAX], write[SEQ_MAX];
};
struct data {
    struct mo_delta a;
    const struct case_of *of;
    int32_t n_unit, keys, rows, heads;
    float *read, *write, *live, *state, *window, *taps, *x;
};

static struct data data_of(const struct case_of *c)
{
    struct data d = {.a = c->a, .of = c};
    struct mo_delta *a = &d.a;
    a->eps = 1e-3f; /* one that shows */
    a->q_scale = 0.0078f;
    a->k_scale = 0.0884f;
    d.n_unit = mo_delta_units(a);
    d.keys = mo_delta_keys(a);
    d.rows = mo_delta_rows(a);
    d.heads = mo_delta_heads(a);
    int64_t units = (int64_t)a->n_slot * d.n_unit, token = d.rows + 2 * d.heads;
    d.read = numbers(a->n_seq, 1);
    d.write = numbers(a->n_seq, 1);
    d.live = numbers(1, 1);
    d.live[0] = (float)c->live;
    d.state = numbers((int64_t)a->n_slot * a->n_val * D * D, 2);
    d.window = numbers(units * (a->n_tap - 1) * d.rows * D, 3);
    d.taps = numbers((int64_t)d.n_unit * a->n_tap * d.rows * D, 4);
    d.x = numbers((int64_t)a->n_seq * d.n_unit * token * D, 5);
    for (int32_t s = 0; s < a->n_seq; s++) {
        d.read[s] = s < c->live ? (float)c->read[s] : -999;
        d.write[s] = s < c->live ? (float)c->write[s] : -999;
        for (int32_t u = 0; u < d.n_unit; u++)
            for (int32_t i = 0; i < token * D; i++) {
                float *x = &d.x[((int64_t)s * d.n_unit + u) * token * D + i];
                int32_t row = i / D, gate = (row - d.rows) % d.heads;
                if (row < d.rows && row >= 2 * d.keys + a->unit) *x = NAN; /* padding */
                if (row == 0 && s == 1) *x = 0; /* a query and a window of zeros: only eps keeps it finite */
                if (row >= d.rows)
                    *x = row < d.rows + d.heads ? 0.5f + 0.06f * (float)gate : 0.1f + 0.1f * (float)gate;
            }
    }
    return d;
}

static void data_free(struct data *d)
{
    float *all[] = {d->read, d->write, d->live, d->state, d->window, d->taps, d->x};
    for (size_t i = 0; i < SY_COUNT(all); i++) free(all[i]);
}

static void worse(double *worst, double want, float got)
{
    double e = fabs(want - (double)got) / (1 + fabs(want));
    *worst = e <= *worst ? *worst : isnan(e) ? (double)INFINITY : e;
}

/* A row of a unit behind convolution and silu; how far the window that is left is off. */
static void convolved(const struct data *d, int32_t s, int32_t u, int32_t row, const float *left, double y[D],
                      double *worst)
{
    int32_t back = d->a.n_tap - 1, rd = d->of->read[s], wr = d->of->write[s];
    for (int32_t i = 0; i < D; i++) {
        double sum = 0;
        for (int32_t t = 0; t <= back; t++) {
            const float *x = &d->x[(((int64_t)s * d->n_unit + u) * (d->rows + 2 * d->heads) + row) * D + i];
            if (t < back) x = &d->window[((((int64_t)rd * d->n_unit + u) * back + t) * d->rows + row) * D + i];
            double seen = t < back && rd < 0 ? 0 : (double)*x;
            sum += seen * (double)d->taps[(((int64_t)u * d->a.n_tap + t) * d->rows + row) * D + i];
            if (t > 0)
                worse(worst, seen, left[((((int64_t)wr * d->n_unit + u) * back + t - 1) * d->rows + row) * D + i]);
        }
        y[i] = sum / (1 + exp(-sum));
    }
}

static void normed(const struct data *d, double x[D], double scale)
{
    double sum = 0;
    for (int32_t i = 0; i < D; i++) sum += x[i] * x[i];
    for (int32_t i = 0; i < D; i++) x[i] *= scale / sqrt(sum / D + (double)d->a.eps);
}

/* One value head of one sequence, as the rule says it: the errors of its result and of its state. */
static void head_error(const struct data *d, int32_t s, int32_t head, const float *const left[3], double *worst)
{
    const struct mo_delta *a = &d->a;
    int32_t u = head / a->unit, h = head % a->unit, key = h / (a->unit / d->keys), rd = d->of->read[s];
    double q[D], k[D], v[D];
    convolved(d, s, u, key, left[1], q, worst);
    convolved(d, s, u, d->keys + key, left[1], k, worst);
    convolved(d, s, u, 2 * d->keys + h, left[1], v, worst);
    normed(d, q, (double)a->q_scale);
    normed(d, k, (double)a->k_scale);
    const float *gates = &d->x[(((int64_t)s * d->n_unit + u) * (d->rows + 2 * d->heads) + d->rows + h) * D];
    double e = (double)gates[0], beta = (double)gates[(int64_t)d->heads * D];
    const float *old = rd < 0 ? NULL : &d->state[((int64_t)rd * a->n_val + head) * D * D];
    const float *new = &left[0][((int64_t)d->of->write[s] * a->n_val + head) * D * D];
    for (int32_t i = 0; i < D; i++) {
        double kept = 0, y = 0;
        for (int32_t j = 0; j < D; j++) kept += old ? e * (double)old[j * D + i] * k[j] : 0;
        double add = beta * (v[i] - kept);
        for (int32_t j = 0; j < D; j++) {
            double state = (old ? e * (double)old[j * D + i] : 0) + k[j] * add;
            y += state * q[j];
            if (a->bf16) worse(worst, state, (float)(state + ((double)new[j * D + i] - state) / 4000)); /* rounded */
            else worse(worst, state, new[j * D + i]);
        }
        worse(worst, y, left[2][(((int64_t)s * d->n_unit + u) * d->heads + h) * D + i]);
    }
}

/* Slots that no sequence writes are as they were. */
static bool others_alike(const struct data *d, const float *left, const float *was, int64_t each)
{
    for (int32_t slot = 0; slot < d->a.n_slot; slot++) {
        bool written = false;
        for (int32_t s = 0; s < d->of->live; s++) written |= d->of->write[s] == slot;
        if (!written && memcmp(left + slot * each, was + slot * each, (size_t)each * sizeof *left)) return false;
    }
    return true;
}

static double error_of(const struct data *d, const float *const left[3])
{
    double worst = 0;
    int64_t window = (int64_t)d->n_unit * (d->a.n_tap - 1) * d->rows * D;
    for (int32_t s = 0; s < d->of->live; s++)
        for (int32_t h = 0; h < d->a.n_val; h++) head_error(d, s, h, left, &worst);
    bool alike = others_alike(d, left[0], d->state, (int64_t)d->a.n_val * D * D) &&
                 others_alike(d, left[1], d->window, window);
    return alike ? worst : (double)INFINITY;
}

static double bytes_of(const struct data *d)
{
    const struct mo_delta *a = &d->a;
    double state = (double)a->unit * D * D * (a->bf16 ? 2 : 4), window = 4.0 * (a->n_tap - 1) * d->rows * D, sum = 0;
    for (int32_t s = 0; s < d->of->live; s++) sum += (d->of->read[s] < 0 ? 1 : 2) * (state + window);
    int32_t at_once = a->side < d->n_unit ? 1 : a->side / d->n_unit;
    int32_t tokens = (d->of->live + at_once - 1) / at_once * at_once;
    return d->n_unit * (sum + tokens * 4.0 * D * (d->rows + 3 * d->heads) + 4.0 * a->n_tap * d->rows * D);
}

static void text_of(const struct mo_delta *a, struct sy_buf *text)
{
    struct mosaic m;
    sy_buf_init(text, sy_env_default(), 0);
    mo_init(&m, sy_env_default());
    mo_delta(&m, a);
    assert_int_equal(mo_end(&m, text, NULL), SY_OK);
    mo_release(&m);
}

static double run(const struct data *d, const struct sy_buf *text, bool *moved, char why[300])
{
    enum { STATE = 3, WINDOW = 4 };
    struct interp *m = malloc(sizeof *m);
    float *operand[] = {d->read, d->write, d->live, d->state, d->window, d->taps, d->x};
    bool ok = interp_in_place(m, text, operand, SY_COUNT(operand), (const int[]){STATE, WINDOW, -1}, 3);
    const float *left[] = {m->array[STATE].x, m->array[WINDOW].x, m->array[SY_COUNT(operand)].x};
    double e = ok ? error_of(d, left) : (double)INFINITY;
    snprintf(why, 300, "%s", m->error);
    *moved = m->copied == bytes_of(d);
    in_close(m);
    free(m);
    return e;
}

#define LIMIT 3e-6
#define SHAPE(seq, slot, key, val, at_once, side_by_side, ring, small)                                               \
    .n_seq = (seq), .n_slot = (slot), .n_key = (key), .n_val = (val), .n_tap = 4, .unit = (at_once),                 \
    .side = (side_by_side), .slots = (ring), .bf16 = (small)
static const struct case_of cases[] = {
    /* one unit a sequence, several at once: a tail, the same slot, another one, none yet, one read by two */
    {{SHAPE(8, 11, 1, 4, 4, 2, 4, false)}, 7, {1, 2, NEW, 4, 5, 5, 9}, {1, 6, 3, 4, 7, 8, 10}},
    /* several units a sequence, more than a round or less */
    {{SHAPE(3, 6, 2, 4, 2, 1, 3, false)}, 3, {1, NEW, 3}, {2, 4, 3}},
    {{SHAPE(4, 6, 2, 4, 2, 4, 4, true)}, 3, {1, 2, NEW}, {1, 3, 5}},
    {{SHAPE(2, 5, 4, 8, 8, 1, 5, true)}, 2, {1, 2}, {3, 2}},
    {{SHAPE(4, 9, 2, 2, 2, 2, 3, false)}, 4, {1, 2, 3, 4}, {5, 6, 7, 8}}, /* exactly full */
    {{SHAPE(4, 9, 1, 2, 2, 4, 4, false)}, 1, {2}, {2}},
    {{SHAPE(4, 9, 1, 2, 2, 2, 4, false)}, 0, {0}, {0}}, /* nothing to do */
};

static void test_delta(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT(cases); i++) {
        struct data d = data_of(&cases[i]);
        struct sy_buf text;
        char why[300];
        bool moved;
        text_of(&d.a, &text);
        double e = run(&d, &text, &moved, why);
        print_message("case %zu: error %g\n", i, e);
        if (!(e < LIMIT)) fail_msg("case %zu: error %g %s", i, e, why);
        if (!moved) fail_msg("case %zu: other bytes are moved than states, tokens and results", i);
        sy_buf_release(&text);
        data_free(&d);
    }
}

#define HBM  "xf32, #tpu.memory_space<hbm>>) dst"
#define VMEM "xf32, #tpu.memory_space<vmem>>) dst"
static const struct mistake mistakes[] = {
    {"a wait for taps is missing", "wait_dma2", "1x4x8x128" HBM, NULL, NULL, 0, NULL},
    {"a wait for tokens is missing", "wait_dma2", "2x1x24x128" HBM, NULL, NULL, 0, NULL},
    {"a wait for a state is missing", "wait_dma2", "4x128x128" HBM, NULL, NULL, 0, NULL},
    {"a wait for a window is missing", "wait_dma2", "1x3x8x128" HBM, NULL, NULL, 1, NULL},
    {"a state on its way back is not waited for", "wait_dma2", "4x128x128" VMEM, NULL, NULL, 0, NULL},
    {"nor a window", "wait_dma2", "1x3x8x128" VMEM, NULL, NULL, 1, NULL},
    {"the last states are not waited for", "wait_dma2", "4x128x128" VMEM, NULL, NULL, 4, NULL},
    {"results are not waited for", "wait_dma2", "2x1x8x128" VMEM, NULL, NULL, 0, NULL},
    {"the slot that was read is written", "memref.load %4[", "", "%4[", "%3[", -1, NULL},
    {"the slot to be written is read", "memref.load %3[", "", "%3[", "%4[", -1, NULL},
    {"a first state is not cleared", "vector_store", "1x1x1x128x128", NULL, NULL, 2, NULL},
    {"a first window is not cleared", "vector_store", "1x1x1x3x8x128", NULL, NULL, 2, NULL},
    {"a sequence too many is written", "arith.cmpi slt", ": i32", "slt", "sle", 20, NULL},
    {"states are read from a stale place of the ring", "arith.remsi", "", "arith.remsi", "arith.shrsi", 2, NULL},
    {"a place is taken before it is free", "arith.cmpi sge", "", "sge", "sgt", 4, NULL},
    {"a state does not decay", "arith.mulf", "vector<128x128xf32>", "mulf", "maximumf", 8, NULL},
    {"q in place of k", "sizes = [128, 1]", "offsets = [0, 1]", "[0, 1]", "[0, 0]", -1, NULL},
    {"what is kept is added to v", "arith.subf", "vector<1x128xf32>", "subf", "addf", 0, NULL},
    {"beta is left out", "arith.mulf", "vector<1x128xf32>", "mulf", "maximumf", 3, NULL},
    {"what is added has no part in the result", "arith.mulf", "vector<1x128xf32>", "mulf", "subf", 5, NULL},
    {"the value of another head", "sizes = [1, 128]", "offsets = [2, 0]", "[2, 0]", "[3, 0]", 0, NULL},
    {"no silu", "arith.divf", "", "divf", "maximumf", 0, NULL},
    {"eps has another sign", "arith.addf", "vector<8x1xf32>", "addf", "subf", 0, NULL},
    {"the window keeps a token too long", "vector_store", "1x1x1x1x8x128", NULL, NULL, 0, NULL},
};
static const struct mistake round_mistakes[] = {
    {"rounds of a sequence are those of others", "arith.divsi", "", "divsi", "remsi", 1, NULL},
    {"another unit's heads", "arith.muli", "", "muli", "andi", -1, NULL},
};

static double run_on(const void *data, const struct sy_buf *text, bool *moved, char why[300])
{
    return run(data, text, moved, why);
}

static void find(const struct case_of *c, const struct mistake *mistake, size_t n)
{
    struct data d = data_of(c);
    struct sy_buf text;
    text_of(&d.a, &text);
    all_found(&text, mistake, n, LIMIT, run_on, &d);
    sy_buf_release(&text);
    data_free(&d);
}

static void test_mistakes(void **state)
{
    (void)state;
    find(&cases[0], mistakes, SY_COUNT(mistakes));
    find(&cases[1], round_mistakes, SY_COUNT(round_mistakes));
}

static void write_one(struct mosaic *m, const void *shape) { mo_delta(m, shape); }
static void test_memory(void **state)
{
    (void)state;
    memory_is_told(write_one, &cases[1].a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_delta), cmocka_unit_test(test_mistakes),
                                       cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
