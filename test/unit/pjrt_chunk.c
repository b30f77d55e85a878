/* The TPU kernel of the gated delta rule over pieces, run by the interpreter against a double precision recurrence:
 * sequences of any length that begin within a piece or at one, lengths that are whole pieces, single tokens, other
 * read and write slots, none yet, one that goes on where the one before it stopped, keys that are alike; and planted
 * mistakes. */
#include "mosaic_util.h"

enum { SEQ_MAX = 8, D = 128, C = 64, CHUNK_MAX = 16, NEW = -1, ON = -2 };
struct seq {
    int32_t pos, n, read, write; /* n 0: none more */
};
struct case_of {
    struct mo_chunk a;
    float alike; /* of keys */
    struct seq seq[SEQ_MAX];
};
struct data {
    struct mo_chunk a;
    const struct case_of *of;
    int32_t n_unit, keys, n, token[CHUNK_MAX][C]; /* by piece and place: the token, -1: none; n pieces */
    int32_t n_token, pieces;
    float *raw_q, *raw_k, *q, *k, *v, *g, *beta; /* raw: what a norm leaves q and k of; of tokens: [n_token, n_key,
                                                    D], the same, [n_token, n_val, D], [n_token, n_val] */
    float *read, *write, *live, *state, *x, *gates;
};

/* Rows of D with a sum of squares of 1. */
static float *unit_rows(int64_t n, uint64_t seed, float alike, float scale)
{
    float *x = numbers(n * D, seed), *all = numbers(D, 99);
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int32_t j = 0; j < D; j++) {
            x[i * D + j] += alike * all[j];
            sum += (double)x[i * D + j] * (double)x[i * D + j];
        }
        for (int32_t j = 0; j < D; j++)
            x[i * D + j] = in_round(IN_BF16, scale * (float)((double)x[i * D + j] / sqrt(sum)));
    }
    free(all);
    return x;
}

/* Rows divided by the root of their mean square, and scaled. */
static float *normed(const float *x, int64_t n, float eps, float scale)
{
    float *y = malloc((size_t)(n * D) * sizeof *y);
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int32_t j = 0; j < D; j++) sum += (double)x[i * D + j] * (double)x[i * D + j];
        for (int32_t j = 0; j < D; j++)
            y[i * D + j] = (float)((double)scale * (double)x[i * D + j] / sqrt(sum / D + (double)eps));
    }
    return y;
}

static void cut(struct data *d)
{
    int32_t token = 0;
    memset(d->token, -1, sizeof d->token);
    for (const struct seq *s = d->of->seq; s < d->of->seq + SEQ_MAX && s->n; s++) {
        for (int32_t i = 0; i < s->n; i++, token++) {
            bool begins = i == 0 || (s->pos + i) % C == 0;
            if (begins) {
                d->read[d->n] = (float)(i == 0 ? s->read : ON);
                d->write[d->n++] = -1;
            }
            assert_true(d->n <= d->a.n_chunk);
            d->token[d->n - 1][(s->pos + i) % C] = token;
        }
        d->write[d->n - 1] = (float)s->write;
    }
    d->live[0] = (float)d->n;
}

/* A piece's gates of one unit. */
static void lay_gates(struct data *d, int32_t u, int32_t piece)
{
    const struct mo_chunk *a = &d->a;
    for (int64_t i = 0; i < C; i++) {
        float *to = d->gates + (((int64_t)piece * C + i) * d->n_unit + u) * D;
        int32_t t = d->token[piece][i];
        for (int32_t h = 0; h < a->unit; h++) {
            int64_t at = (int64_t)t * a->n_val + u * a->unit + h;
            to[h] = t < 0 ? 0 : d->g[at];
            to[8 + h] = t < 0 ? 0 : d->beta[at];
        }
    }
}

/* A piece's queries, keys and values; where no token is, anything. */
static void lay_x(struct data *d, int32_t piece)
{
    const struct mo_chunk *a = &d->a;
    int64_t key = (int64_t)a->n_key * D, val = (int64_t)a->n_val * D;
    for (int64_t i = 0; i < C; i++) {
        float *to = d->x + ((int64_t)piece * C + i) * (2 * key + val);
        int32_t t = d->token[piece][i];
        if (t < 0) continue;
        memcpy(to, (a->norm ? d->raw_q : d->q) + t * key, (size_t)key * sizeof *to);
        memcpy(to + key, (a->norm ? d->raw_k : d->k) + t * key, (size_t)key * sizeof *to);
        memcpy(to + 2 * key, d->v + t * val, (size_t)val * sizeof *to);
    }
}

static struct data data_of(const struct case_of *c)
{
    struct data d = {.a = c->a, .of = c, .n_unit = c->a.n_val / c->a.unit};
    const struct mo_chunk *a = &d.a;
    d.keys = a->n_key / d.n_unit;
    for (int32_t s = 0; s < SEQ_MAX && c->seq[s].n; s++) d.n_token += c->seq[s].n;
    int64_t rows = (int64_t)d.n_token * a->n_key;
    d.raw_q = unit_rows(rows, 1, 0, 3);
    d.raw_k = unit_rows(rows, 2, c->alike, 2);
    d.q = a->norm ? normed(d.raw_q, rows, a->eps, a->q_scale) : unit_rows(rows, 1, 0, 0.3f);
    d.k = a->norm ? normed(d.raw_k, rows, a->eps, a->k_scale) : unit_rows(rows, 2, c->alike, 1);
    d.v = numbers((int64_t)d.n_token * a->n_val * D, 3);
    d.g = numbers((int64_t)d.n_token * a->n_val, 4);
    d.beta = numbers((int64_t)d.n_token * a->n_val, 5);
    for (int64_t i = 0; i < (int64_t)d.n_token * a->n_val; i++) {
        d.g[i] = -0.05f * (1 + d.g[i]);
        d.beta[i] = 0.5f + 0.4f * d.beta[i];
    }
    d.read = numbers(a->n_chunk, 6);
    d.write = numbers(a->n_chunk, 7);
    d.live = numbers(1, 8);
    for (int32_t i = 0; i < a->n_chunk; i++) d.read[i] = d.write[i] = -2;
    d.state = numbers((int64_t)a->n_slot * a->n_val * D * D, 9);
    for (int64_t i = 0; i < (int64_t)a->n_slot * a->n_val * D * D; i++) d.state[i] /= 8;
    d.x = numbers((int64_t)a->n_chunk * C * (2 * a->n_key + a->n_val) * D, 10);
    d.gates = numbers((int64_t)a->n_chunk * C * d.n_unit * D, 11);
    cut(&d);
    d.pieces = (d.n + a->side - 1) / a->side * a->side;
    for (int32_t u = 0; u < d.n_unit; u++)
        for (int32_t i = 0; i < d.n; i++) lay_gates(&d, u, i);
    for (int32_t i = 0; i < d.n; i++) lay_x(&d, i);
    return d;
}

static void data_free(struct data *d)
{
    float *all[] = {d->raw_q, d->raw_k, d->q,    d->k,     d->v, d->g,    d->beta,
                    d->read,  d->write, d->live, d->state, d->x, d->gates};
    for (size_t i = 0; i < SY_COUNT(all); i++) free(all[i]);
}

struct sums {
    double error, size; /* squares */
};
static void more(struct sums *s, double want, float got)
{
    s->error += (want - (double)got) * (want - (double)got);
    s->size += want * want;
}

/* One head of one sequence, a token after the other; the state it leaves in s. */
static void recur(const struct data *d, int32_t head, int32_t token, const struct seq *of, double s[D][D],
                  const float *y, struct sums *sums)
{
    const struct mo_chunk *a = &d->a;
    int32_t piece = 0, key = head / (a->n_val / a->n_key);
    for (int32_t t = token; t < token + of->n; t++) {
        const float *q = d->q + ((int64_t)t * a->n_key + key) * D, *k = d->k + ((int64_t)t * a->n_key + key) * D;
        double keep = exp((double)d->g[(int64_t)t * a->n_val + head]);
        int32_t at = (of->pos + t - token) % C;
        while (d->token[piece][at] != t) piece++;
        const float *got = y + (((int64_t)piece * C + at) * a->n_val + head) * D;
        for (int32_t j = 0; j < D; j++) {
            double held = 0, out = 0;
            for (int32_t i = 0; i < D; i++) held += (s[i][j] *= keep) * (double)k[i];
            double add = (double)d->beta[(int64_t)t * a->n_val + head] *
                         ((double)d->v[((int64_t)t * a->n_val + head) * D + j] - held);
            for (int32_t i = 0; i < D; i++) out += (s[i][j] += (double)k[i] * add) * (double)q[i];
            more(sums, out, got[j]);
        }
    }
}

/* The largest of the relative errors of results and of states, of a head; infinite where another slot changed. */
static double error_of(const struct data *d, const float *state, const float *y)
{
    const struct mo_chunk *a = &d->a;
    double worst = 0, (*s)[D] = malloc(sizeof(double[D][D]));
    int64_t each = (int64_t)a->n_val * D * D;
    bool written[64] = {false};
    for (int32_t head = 0; head < a->n_val; head++) {
        int32_t token = 0;
        for (const struct seq *of = d->of->seq; of < d->of->seq + SEQ_MAX && of->n; token += of->n, of++) {
            struct sums out = {0}, left = {0};
            bool goes_on = of > d->of->seq && of->read == of[-1].write; /* s is what that one left */
            const float *from = of->read < 0 ? NULL : d->state + of->read * each + (int64_t)head * D * D;
            for (int64_t i = 0; i < D * D && !goes_on; i++) s[i / D][i % D] = from ? (double)from[i] : 0;
            recur(d, head, token, of, s, y, &out);
            const float *to = state + of->write * each + (int64_t)head * D * D;
            bool over = of[1].n && of + 1 < d->of->seq + SEQ_MAX && of[1].write == of->write; /* written again */
            for (int64_t i = 0; i < D * D && !over; i++) more(&left, s[i / D][i % D], to[i]);
            double e = fmax(sqrt(out.error / out.size), over ? 0 : sqrt(left.error / left.size));
            worst = e <= worst ? worst : isnan(e) ? (double)INFINITY : e;
            written[of->write] = true;
        }
    }
    free(s);
    for (int32_t slot = 0; slot < a->n_slot; slot++)
        if (!written[slot] && memcmp(state + slot * each, d->state + slot * each, (size_t)each * sizeof *state))
            return (double)INFINITY;
    return worst;
}

static double bytes_of(const struct data *d)
{
    const struct mo_chunk *a = &d->a;
    double states = 0, each = 2.0 * (2 * d->keys + a->unit) * C * D + 4.0 * C * D + 4.0 * a->unit * C * D;
    for (const struct seq *s = d->of->seq; s < d->of->seq + SEQ_MAX && s->n; s++) states += s->read < 0 ? 1 : 2;
    return d->n_unit * (d->pieces * each + states * a->unit * D * D * (a->bf16 ? 2 : 4));
}

static void text_of(const struct mo_chunk *a, struct sy_buf *text)
{
    struct mosaic m;
    sy_buf_init(text, sy_env_default(), 0);
    mo_init(&m, sy_env_default());
    mo_chunk(&m, a);
    assert_int_equal(mo_end(&m, text, NULL), SY_OK);
    mo_release(&m);
}

static double run(const struct data *d, const struct sy_buf *text, bool *moved, char why[300])
{
    enum { STATE = 3, N = 6 };
    struct interp *m = malloc(sizeof *m);
    float *operand[N] = {d->read, d->write, d->live, d->state, d->x, d->gates};
    bool ok = interp_in_place(m, text, operand, N, (const int[]){STATE, -1}, 2);
    double e = ok ? error_of(d, m->array[STATE].x, m->array[N].x) : (double)INFINITY;
    snprintf(why, 300, "%s", m->error);
    *moved = m->copied == bytes_of(d);
    in_close(m);
    free(m);
    return e;
}

#define LIMIT 1.2e-2
#define SHAPE(chunk, slot, key, val, at_once, pieces, small)                                                         \
    .n_chunk = (chunk), .n_slot = (slot), .n_key = (key), .n_val = (val), .unit = (at_once), .side = (pieces),       \
    .bf16 = (small)
#define NORM .norm = true, .eps = 0.02f, .q_scale = 0.03f, .k_scale = 0.08f /* eps: as large as to be missed */
static const struct case_of cases[] = {
    /* position, tokens, read, write: within pieces and at them, whole ones, one token, none yet; one of two parts */
    {{SHAPE(10, 9, 1, 2, 2, 1, false)},
     1,
     {{0, 64, NEW, 1}, {70, 130, 2, 3}, {127, 1, 4, 4}, {128, 64, 5, 6}, {0, 5, NEW, 7}}},
    {{SHAPE(8, 9, 2, 4, 4, 2, false), NORM}, 3, {{5, 59, 7, 7}, {63, 66, 8, 1}, {129, 40, 1, 2}}},
    {{SHAPE(4, 6, 2, 4, 2, 2, true), NORM}, 0, {{0, 100, NEW, 2}, {64, 10, 1, 3}}}, /* two units; a tail of a round */
    {{SHAPE(8, 6, 1, 2, 2, 4, false), NORM},
     0,
     {{60, 140, 1, 2}, {64, 64, 3, 4}, {0, 30, NEW, 5}}},  /* a tail of four */
    {{SHAPE(4, 6, 1, 2, 2, 2, false)}, 0, {{0, 0, 0, 0}}}, /* nothing to do */
};

static void test_chunk(void **state)
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
        if (!moved) fail_msg("case %zu: other bytes are moved than pieces and states", i);
        sy_buf_release(&text);
        data_free(&d);
    }
}

#define HBM    ", #tpu.memory_space<hbm>>) dst"
#define VMEM   ", #tpu.memory_space<vmem>>) dst"
#define MATRIX "vector<128x128xf32>"
static const struct mistake mistakes[] = {
    {"a wait for keys is missing", "wait_dma2", "1x64x128xbf16" HBM, NULL, NULL, 1, NULL},
    {"a wait for queries is missing", "wait_dma2", "1x64x128xbf16" HBM, NULL, NULL, 0, NULL},
    {"a wait for values is missing", "wait_dma2", "1x64x256xbf16" HBM, NULL, NULL, 0, NULL},
    {"a wait for gates is missing", "wait_dma2", "1x64x128xf32" HBM, NULL, NULL, 0, NULL},
    {"a wait for states is missing", "wait_dma2", "2x128x128xf32" HBM, NULL, NULL, 0, NULL},
    {"states on their way back are not waited for", "wait_dma2", "2x128x128xf32" VMEM, NULL, NULL, 1, NULL},
    {"the last states are not waited for", "wait_dma2", "2x128x128xf32" VMEM, NULL, NULL, 2, NULL},
    {"results are not waited for", "wait_dma2", "1x64x256xf32" VMEM, NULL, NULL, 0, NULL},
    {"one level of the inverse is left out", "arith.constant dense<8>", "", "dense<8>", "dense<16>", 1, NULL},
    {"the inverse begins wrongly", "arith.subf", MATRIX, "subf", "addf", 1, NULL},
    {"a token does not see itself", "arith.cmpi sge", "vector<128x128xi32>", "sge", "sgt", 0, NULL},
    {"a token sees what is to come", "arith.cmpi sge", "vector<128x128xi32>", "sge", "ne", 0, NULL},
    {"the halves of a pair are exchanged", "arith.cmpi slt", "vector<128x128xi32>", "slt", "sge", 1, NULL},
    {"beta is left out", "arith.mulf", MATRIX, "mulf", "maximumf", 1, NULL},
    {"queries do not see what they begin with decay", "arith.mulf", MATRIX, "mulf", "maximumf", 6, NULL},
    {"states do not decay", "arith.mulf", MATRIX, "mulf", "maximumf", 8, NULL},
    {"what is known is added", "arith.subf", MATRIX, "subf", "addf", 7, NULL},
    {"states are not taken over", "vector_store", "memref<2x128x128xf32", NULL, NULL, 0, NULL},
    {"states without a beginning are not cleared", "vector_store", "memref<2x128x128xf32", NULL, NULL, 1, NULL},
    {"a piece that goes on begins anew", "arith.cmpi eq", ": i32", "eq", "slt", 0, NULL},
    {"the slot that was read is written", "memref.load %4[", "", "%4[", "%3[", -1, NULL},
    {"the slot to be written is read", "memref.load %3[", "", "%3[", "%4[", -1, NULL},
    {"pieces that are not the last are written", "arith.cmpi sge", ": i32", "sge", "ne", 3, NULL},
    {"sums of decays are of the tokens before", "arith.cmpi sge", "vector<64x64xi32>", "sge", "sgt", 0, NULL},
    {"the rows of a pair are exchanged", "arith.cmpi slt", "vector<1x128xi32>", "slt", "sge", 0, NULL},
    {"a stale buffer", "arith.andi", ": i32", "arith.andi", "arith.shrsi", 2, NULL},
};

#define COLUMN "vector<64x1xf32>"
static const struct mistake norm_mistakes[] = {
    {"a mean square is a sum", "arith.mulf", COLUMN, "mulf", "maximumf", 0, NULL},
    {"eps is left out", "arith.addf", COLUMN, "addf", "maximumf", -1, NULL},
    {"queries are not scaled", "arith.mulf", COLUMN, "mulf", "minimumf", 1, NULL},
    {"a root is not taken", "math.rsqrt", "", "rsqrt", "exp2", 0, NULL},
    {"queries are not divided", "arith.mulf", "vector<64x128xf32>", "mulf", "addf", 1, NULL},
    {"keys are not divided", "arith.mulf", "vector<64x128xf32>", "mulf", "addf", 3, NULL},
};

static double run_on(const void *data, const struct sy_buf *text, bool *moved, char why[300])
{
    return run(data, text, moved, why);
}

static void find(const struct case_of *c, const struct mistake *list, size_t n)
{
    struct data d = data_of(c);
    struct sy_buf text;
    text_of(&d.a, &text);
    all_found(&text, list, n, LIMIT, run_on, &d);
    sy_buf_release(&text);
    data_free(&d);
}

static void test_mistakes(void **state)
{
    (void)state;
    find(&cases[0], mistakes, SY_COUNT(mistakes));
    find(&cases[2], norm_mistakes, SY_COUNT(norm_mistakes));
}

static void write_one(struct mosaic *m, const void *shape) { mo_chunk(m, shape); }
static void test_memory(void **state)
{
    (void)state;
    memory_is_told(write_one, &cases[0].a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_chunk), cmocka_unit_test(test_mistakes),
                                       cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
