/* Convolution and scan kernels of every instruction set of this machine: against double precision over odd shapes,
 * and bit for bit against themselves over every way to cut a sequence, in place and from slot to slot, among columns
 * or alone. What must not be read is NaN. */
#include "backend/cpu/kernel.h"
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOK = 37, D_MAX = 96, LD = D_MAX + 3 };

static const char *const isas[] = {"generic", "avx2", "avx512"};
static uint64_t dice;

static float draw(float size) { return (float)(2 * sy_rng_unit(11, dice++) - 1) * size; }

static void fill(float *x, size_t n, float size)
{
    for (size_t i = 0; i < n; i++) x[i] = draw(size);
}

/* ---- convolution --------------------------------------------------------------------------------------------- */

struct conv_case {
    int32_t n_tap;
    int64_t d;
    bool bias, fresh;
};

static void run_conv(const struct sy_kernels *k, const struct conv_case *c, const float *x, const float *w,
                     const float *bias, float *state, const int32_t *cut, float *y)
{
    int32_t at = 0;
    for (int i = 0; at < TOK; i++) {
        int32_t n = cut[i] < TOK - at ? cut[i] : TOK - at;
        k->scan.conv(&(struct sy_conv_run){.x = x + at * LD,
                                           .w = w,
                                           .bias = c->bias ? bias : NULL,
                                           .from = c->fresh && at == 0 ? NULL : state,
                                           .to = state,
                                           .y = y + at * LD,
                                           .ldx = LD,
                                           .ldw = LD,
                                           .ld_state = LD,
                                           .ldy = LD,
                                           .d = c->d,
                                           .n_tap = c->n_tap,
                                           .n_tok = n});
        at += n;
    }
}

static double conv_at(const struct conv_case *c, const float *x, const float *w, const float *bias,
                      const float *state, int32_t t, int64_t col)
{
    double sum = c->bias ? (double)bias[col] : 0;
    for (int32_t i = 0; i < c->n_tap; i++) {
        int32_t at = t - (c->n_tap - 1) + i;
        double in = at >= 0 ? (double)x[at * LD + col] : c->fresh ? 0 : (double)state[(c->n_tap - 1 + at) * LD + col];
        sum += (double)w[i * LD + col] * in;
    }
    return sum;
}

static void check_conv(const struct sy_kernels *k, const struct conv_case *c)
{
    static const int32_t cuts[][TOK + 1] = {{TOK}, {1, TOK}, {5, 2, 1, 7, 3, TOK}, {16, 16, TOK}};
    static float x[TOK * LD], w[8 * LD], bias[LD], start[8 * LD], first[TOK * LD], y[TOK * LD], state[8 * LD];
    static float last[8 * LD];
    fill(x, SY_COUNT(x), 2);
    fill(w, SY_COUNT(w), 1);
    fill(bias, SY_COUNT(bias), 1);
    fill(start, SY_COUNT(start), 2);
    int32_t each[TOK + 1];
    for (int i = 0; i <= TOK; i++) each[i] = 1;
    for (size_t i = 0; i <= SY_COUNT(cuts); i++) {
        memcpy(state, start, sizeof state);
        for (size_t j = 0; c->fresh && j < SY_COUNT(state); j++) state[j] = NAN;
        run_conv(k, c, x, w, bias, state, i < SY_COUNT(cuts) ? cuts[i] : each, y);
        if (i == 0) {
            memcpy(first, y, sizeof y);
            memcpy(last, state, sizeof last);
        }
        for (int32_t t = 0; t < TOK; t++) {
            assert_memory_equal(y + t * LD, first + t * LD, (size_t)c->d * sizeof *y);
            for (int64_t col = 0; col < c->d && i == 0; col++)
                assert_true(fabs((double)y[t * LD + col] - conv_at(c, x, w, bias, start, t, col)) < 1e-5);
        }
        for (int32_t r = 0; r < c->n_tap - 1; r++)
            assert_memory_equal(state + r * LD, last + r * LD, (size_t)c->d * sizeof *state);
    }
}

static void convolutions(void **unused)
{
    (void)unused;
    static const int64_t width[] = {1, 7, 8, 15, 16, 17, 40, 96};
    struct sy_kernels k;
    for (size_t isa = 0; isa < SY_COUNT(isas); isa++) {
        if (sy_kernels_pick(isas[isa], &k, NULL)) continue;
        for (size_t i = 0; i < SY_COUNT(width); i++)
            for (int32_t tap = 2; tap <= 5; tap++) {
                check_conv(&k, &(struct conv_case){tap, width[i], tap % 2, i % 2});
                check_conv(&k, &(struct conv_case){tap, width[i], !(tap % 2), !(i % 2)});
            }
    }
}

/* ---- scan ---------------------------------------------------------------------------------------------------- */

struct scan_case {
    int32_t d_key, d_val;
    bool delta, each, beta, fresh;
    enum sy_state_dtype dtype;
};
struct scan_data {
    float q[TOK * LD], k[TOK * LD], v[TOK * LD], decay[TOK * LD], beta[TOK];
    float start[D_MAX * D_MAX]; /* [d_key][d_val] */
};

static int64_t place(const struct scan_case *c, int32_t i, int32_t col)
{
    return ((int64_t)(col / SY_SCAN_PANEL) * c->d_key + i) * SY_SCAN_PANEL + col % SY_SCAN_PANEL;
}

static size_t state_bytes(const struct scan_case *c)
{
    size_t panels = ((size_t)c->d_val + SY_SCAN_PANEL - 1) / SY_SCAN_PANEL;
    return panels * SY_SCAN_PANEL * (size_t)c->d_key * (c->dtype == SY_STATE_BF16 ? 2 : 4);
}

static void write_state(const struct scan_case *c, const float *s, unsigned char *to)
{
    memset(to, 0, state_bytes(c));
    for (int32_t i = 0; i < c->d_key; i++)
        for (int32_t j = 0; j < c->d_val; j++) {
            float x = s[i * c->d_val + j];
            if (c->dtype == SY_STATE_F32) memcpy(to + 4 * place(c, i, j), &x, 4);
            else if (c->dtype == SY_STATE_PAIR) memcpy(to + SY_SCAN_PAIR(place(c, i, j)), (unsigned char *)&x + 2, 2);
            else memcpy(to + 2 * place(c, i, j), (unsigned char *)&x + 2, 2); /* start values are whole bf16 */
        }
}

/* Two slots: each call reads one and writes the other, or the same one when `in_place`. */
static void run_scan(const struct sy_kernels *k, const struct scan_case *c, const struct scan_data *d,
                     const int32_t *cut, bool in_place, float *y, unsigned char *end)
{
    unsigned char *slot[2] = {aligned_alloc(64, 64 + (state_bytes(c) + 63) / 64 * 64),
                              aligned_alloc(64, 64 + (state_bytes(c) + 63) / 64 * 64)};
    float *scratch = malloc(SY_SCAN_SCRATCH(c->d_key) * sizeof *scratch);
    for (int i = 0; i < 2; i++) memset(slot[i], 0xff, state_bytes(c)); /* NaN */
    if (!c->fresh) write_state(c, d->start, slot[0]);
    int32_t at = 0, side = 0;
    for (int i = 0; at < TOK; i++) {
        int32_t n = cut[i] < TOK - at ? cut[i] : TOK - at;
        const unsigned char *from = c->fresh && at == 0 ? NULL : slot[side];
        if (!in_place) side = !side;
        k->scan.scan[c->dtype](&(struct sy_scan_run){.q = d->q + at * LD,
                                                     .k = d->k + at * LD,
                                                     .v = d->v + at * LD,
                                                     .decay = d->decay + at * LD,
                                                     .beta = c->beta ? d->beta + at : NULL,
                                                     .ldq = LD,
                                                     .ldk = LD,
                                                     .ldv = LD,
                                                     .ld_decay = LD,
                                                     .ld_beta = 1,
                                                     .from = from,
                                                     .to = slot[side],
                                                     .y = y + at * LD,
                                                     .ldy = LD,
                                                     .scratch = scratch,
                                                     .d_key = c->d_key,
                                                     .d_val = c->d_val,
                                                     .n_tok = n,
                                                     .delta = c->delta,
                                                     .decay_each = c->each});
        at += n;
    }
    memcpy(end, slot[side], state_bytes(c));
    free(slot[0]);
    free(slot[1]);
    free(scratch);
}

/* As the papers write it, not as the kernels do. */
static void reference(const struct scan_case *c, const struct scan_data *d, double *y)
{
    static double s[D_MAX * D_MAX];
    for (int32_t i = 0; i < c->d_key * c->d_val; i++) s[i] = c->fresh ? 0 : (double)d->start[i];
    for (int32_t t = 0; t < TOK; t++)
        for (int32_t j = 0; j < c->d_val; j++) {
            double dot = 0, u = (double)d->v[t * LD + j], out = 0;
            for (int32_t i = 0; i < c->d_key; i++) {
                s[i * c->d_val + j] *= exp((double)d->decay[t * LD + (c->each ? i : 0)]);
                dot += s[i * c->d_val + j] * (double)d->k[t * LD + i];
            }
            if (c->delta) u -= dot;
            if (c->beta) u *= (double)d->beta[t];
            for (int32_t i = 0; i < c->d_key; i++) {
                s[i * c->d_val + j] += (double)d->k[t * LD + i] * u;
                out += s[i * c->d_val + j] * (double)d->q[t * LD + i];
            }
            y[t * LD + j] = out;
        }
}

static void check_scan(const struct sy_kernels *k, const struct scan_case *c)
{
    static const int32_t cuts[][TOK + 1] = {{TOK}, {1, TOK}, {5, 2, 1, 7, 3, TOK}, {16, 16, TOK}, {17, TOK}};
    static struct scan_data d;
    static double want[TOK * LD];
    static float first[TOK * LD], y[TOK * LD];
    static unsigned char last[4 * D_MAX * (D_MAX + SY_SCAN_PANEL)], end[sizeof last];
    float unit = 1 / sqrtf((float)c->d_key);
    fill(d.q, SY_COUNT(d.q), unit);
    fill(d.k, SY_COUNT(d.k), 1.7f * unit); /* of length about 1, as models norm it */
    fill(d.v, SY_COUNT(d.v), 1);
    for (size_t i = 0; i < SY_COUNT(d.decay); i++) d.decay[i] = draw(0.5f) - 0.5f;
    for (size_t i = 0; i < SY_COUNT(d.beta); i++) d.beta[i] = 0.5f + draw(0.5f);
    for (size_t i = 0; i < SY_COUNT(d.start); i++) d.start[i] = (float)(int)draw(8) / 4;
    reference(c, &d, want);
    int32_t each[TOK + 1];
    for (int i = 0; i <= TOK; i++) each[i] = 1;
    double worst = c->dtype == SY_STATE_F32 ? 2e-5 : c->dtype == SY_STATE_PAIR ? 5e-4 : 0.08;
    for (size_t i = 0; i <= 2 * SY_COUNT(cuts) + 1; i++) {
        const int32_t *cut = i / 2 < SY_COUNT(cuts) ? cuts[i / 2] : each;
        memcpy(y, d.v, sizeof y);
        run_scan(k, c, &d, cut, i % 2, y, end);
        if (i == 0) {
            memcpy(first, y, sizeof y);
            memcpy(last, end, state_bytes(c));
        }
        assert_memory_equal(end, last, state_bytes(c));
        for (int32_t t = 0; t < TOK; t++) {
            assert_memory_equal(y + t * LD, first + t * LD, (size_t)c->d_val * sizeof *y);
            for (int32_t j = 0; j < c->d_val && i == 0; j++)
                assert_true(fabs((double)y[t * LD + j] - want[t * LD + j]) < worst);
        }
    }
}

static void scans(void **unused)
{
    (void)unused;
    static const int32_t size[] = {1, 7, 16, 33, 96};
    struct sy_kernels k;
    for (size_t isa = 0; isa < SY_COUNT(isas); isa++) {
        if (sy_kernels_pick(isas[isa], &k, NULL)) continue;
        for (size_t i = 0; i < SY_COUNT(size) * SY_COUNT(size); i++)
            for (int kind = 0; kind < 4; kind++) {
                struct scan_case c = {.d_key = size[i % SY_COUNT(size)],
                                      .d_val = size[i / SY_COUNT(size)],
                                      .delta = kind < 2,
                                      .each = kind == 1,
                                      .beta = kind != 3,
                                      .fresh = (i + (size_t)kind) % 2,
                                      .dtype = (enum sy_state_dtype)((i / 3 + (size_t)kind) % SY_STATE_DTYPES)};
                check_scan(&k, &c);
            }
    }
}

/* ---- what rounding a state loses ------------------------------------------------------------------------------- */

enum { D = 128, CHUNK = 128, N_DECAY = 6, N_HEAD = 4 };
static const char *const head_names[N_HEAD] = {"delta rule", "keys alike", "varying decay", "no delta rule"};
static const double decays[N_DECAY] = {0.5, 0.9, 0.99, 0.997, 0.9995, 1};

struct rounding {
    float q[2][CHUNK * D], k[2][CHUNK * D], v[CHUNK * D], beta[CHUNK]; /* [1]: of keys alike */
    float common[D], vary[CHUNK], decay[CHUNK], y[SY_STATE_DTYPES][CHUNK * D];
    unsigned char state[N_HEAD][N_DECAY][SY_STATE_DTYPES][4 * D * D];
    double lost[N_HEAD][N_DECAY][SY_STATE_DTYPES], all[N_HEAD][N_DECAY]; /* squares */
};

static float normal(void)
{
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += sy_rng_unit(5, dice++);
    return (float)sum;
}

static void make_heads(struct rounding *r)
{
    for (int t = 0; t < CHUNK; t++) {
        for (int alike = 0; alike < 2; alike++) {
            float *q = r->q[alike] + (ptrdiff_t)t * D, *k = r->k[alike] + (ptrdiff_t)t * D;
            double qq = 0, kk = 0;
            for (int i = 0; i < D; i++) {
                q[i] = normal() + (float)alike * r->common[i];
                k[i] = normal() + (float)alike * r->common[i];
                qq += (double)q[i] * (double)q[i];
                kk += (double)k[i] * (double)k[i];
            }
            for (int i = 0; i < D; i++) {
                q[i] /= (float)sqrt(qq / D);
                k[i] /= (float)sqrt(kk);
            }
        }
        for (int i = 0; i < D; i++) r->v[t * D + i] = normal();
        r->beta[t] = 1 / (1 + expf(-normal()));
        r->vary[t] = log1pf(expf(normal())) / logf(2); /* as Gated DeltaNet makes decays; the median is 1 */
    }
}

static void run_heads(const struct sy_kernels *k, struct rounding *r, bool first, bool counts)
{
    static float scratch[SY_SCAN_SCRATCH(D)];
    for (int head = 0; head < N_HEAD; head++)
        for (int c = 0; c < N_DECAY; c++) {
            for (int t = 0; t < CHUNK; t++) r->decay[t] = logf((float)decays[c]) * (head == 2 ? r->vary[t] : 1);
            for (int type = 0; type < SY_STATE_DTYPES; type++) {
                unsigned char *s = r->state[head][c][type];
                k->scan.scan[type](&(struct sy_scan_run){.q = r->q[head == 1],
                                                         .k = r->k[head == 1],
                                                         .v = r->v,
                                                         .decay = r->decay,
                                                         .beta = r->beta,
                                                         .ldq = D,
                                                         .ldk = D,
                                                         .ldv = D,
                                                         .ld_decay = 1,
                                                         .ld_beta = 1,
                                                         .from = first ? NULL : s,
                                                         .to = s,
                                                         .y = r->y[type],
                                                         .ldy = D,
                                                         .scratch = scratch,
                                                         .d_key = D,
                                                         .d_val = D,
                                                         .n_tok = CHUNK,
                                                         .delta = head < 3});
            }
            for (int i = 0; i < CHUNK * D && counts; i++) {
                double y = (double)r->y[SY_STATE_F32][i];
                r->all[head][c] += y * y;
                for (int type = 0; type < SY_STATE_DTYPES; type++) {
                    double d = (double)r->y[type][i] - y;
                    r->lost[head][c][type] += d * d;
                }
            }
        }
}

/* The table of doc/numerics.md: SYSTOLE_STATE_TOKENS=32768 prints it. The error is that of the last sixteenth. */
static void states_lose_little(void **unused)
{
    (void)unused;
    const char *asked = getenv("SYSTOLE_STATE_TOKENS");
    int n = (asked ? atoi(asked) : 256) / CHUNK;
    struct sy_kernels k;
    struct rounding *r = aligned_alloc(64, (sizeof *r + 63) / 64 * 64);
    assert_non_null(r);
    memset(r, 0, sizeof *r);
    assert_int_equal(sy_kernels_pick(NULL, &k, NULL), SY_OK);
    for (int i = 0; i < D; i++) r->common[i] = normal();
    for (int i = 0; i < n; i++) {
        make_heads(r);
        run_heads(&k, r, i == 0, i >= n - (n + 15) / 16);
    }
    for (int head = 0; head < N_HEAD; head++)
        for (int c = 0; c < N_DECAY; c++) {
            double bf16 = sqrt(r->lost[head][c][SY_STATE_BF16] / r->all[head][c]);
            double pair = sqrt(r->lost[head][c][SY_STATE_PAIR] / r->all[head][c]);
            if (asked)
                print_message("%-13s decay %.4f: bf16 %.2f %%, pair %.5f %%\n", head_names[head], decays[c],
                              100 * bf16, 100 * pair);
            assert_true(r->lost[head][c][SY_STATE_F32] == 0);
            assert_true(pair < 5e-4 && bf16 < 0.25 && bf16 > 20 * pair);
        }
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(convolutions), cmocka_unit_test(scans),
                                       cmocka_unit_test(states_lose_little)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
