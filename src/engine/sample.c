#include "engine/sample.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

struct cand {
    float logit, p;
    int32_t id;
};

sy_status sy_sampling_check(const struct sy_sampling *s, int32_t n_vocab, struct sy_err *err)
{
    const struct {
        const char *name;
        double v, lo, hi;
    } range[] = {
        {"temperature", (double)s->temperature, 0, 2},
        {"top_p", (double)s->top_p, 0, 1},
        {"min_p", (double)s->min_p, 0, 1},
        {"typical_p", (double)s->typical_p, 0, 1},
        {"top_k", s->top_k, 0, 1 << 24},
        {"repetition_penalty", (double)s->repeat_penalty, 0, 10},
        {"presence_penalty", (double)s->presence_penalty, -2, 2},
        {"frequency_penalty", (double)s->frequency_penalty, -2, 2},
        {"logprobs", s->n_logprob, -1, SY_LOGPROB_MAX},
    };
    for (size_t i = 0; i < SY_COUNT(range); i++)
        if (!(range[i].v >= range[i].lo && range[i].v <= range[i].hi))
            return sy_fail(err, SY_EARG, "%s: expected %g to %g, found %g", range[i].name, range[i].lo, range[i].hi,
                           range[i].v);
    for (int32_t i = 0; i < s->n_bias; i++) {
        if (s->bias[i].id < 0 || s->bias[i].id >= n_vocab)
            return sy_fail(err, SY_EARG, "logit_bias: token %d is outside the vocabulary of %d", s->bias[i].id,
                           n_vocab);
        if (!(s->bias[i].bias >= -100 && s->bias[i].bias <= 100))
            return sy_fail(err, SY_EARG, "logit_bias: expected -100 to 100, found %g", (double)s->bias[i].bias);
    }
    return SY_OK;
}

size_t sy_sample_scratch_bytes(int32_t n_vocab) { return (size_t)n_vocab * (sizeof(float) + sizeof(struct cand)); }

/* a before b: more likely, or as likely with the lower id. NaN counts as least likely. */
static bool before(const struct cand *a, const struct cand *b)
{
    if (a->logit != b->logit) return a->logit > b->logit;
    return a->id < b->id;
}

/* Heap whose root comes last in that order. */
static void sift(struct cand *h, int32_t n, int32_t i)
{
    for (;;) {
        int32_t worst = i, l = 2 * i + 1, r = l + 1;
        if (l < n && before(&h[worst], &h[l])) worst = l;
        if (r < n && before(&h[worst], &h[r])) worst = r;
        if (worst == i) return;
        struct cand t = h[i];
        h[i] = h[worst];
        h[worst] = t;
        i = worst;
    }
}

/* Leaves the k first candidates of c[n] in c[0..k), in order. O(n log k). */
static void top_k(struct cand *c, int32_t n, int32_t k)
{
    for (int32_t i = k / 2 - 1; i >= 0; i--) sift(c, k, i);
    for (int32_t i = k; i < n; i++)
        if (before(&c[i], &c[0])) {
            struct cand t = c[0];
            c[0] = c[i];
            c[i] = t;
            sift(c, k, 0);
        }
    for (int32_t m = k - 1; m > 0; m--) {
        struct cand t = c[0];
        c[0] = c[m];
        c[m] = t;
        sift(c, m, 0);
    }
}

static void penalise(const struct sy_sample_in *in, float *x)
{
    const struct sy_sampling *s = in->how;
    for (int32_t i = 0; i < s->n_bias; i++) x[s->bias[i].id] += s->bias[i].bias;
    for (int32_t i = 0; i < in->n_barred; i++) x[in->barred[i]] = -INFINITY;
    bool repeat = s->repeat_penalty > 0 && s->repeat_penalty != 1;
    if (!in->count_output || (!repeat && s->presence_penalty == 0 && s->frequency_penalty == 0)) return;
    for (int32_t i = 0; i < in->n_vocab; i++) {
        unsigned out = in->count_output[i], seen = out + (in->count_prompt ? in->count_prompt[i] : 0);
        if (repeat && seen) x[i] = x[i] > 0 ? x[i] / s->repeat_penalty : x[i] * s->repeat_penalty;
        if (out) x[i] -= s->presence_penalty + s->frequency_penalty * (float)out;
    }
}

static double log_sum_exp(const float *x, int32_t n, float max)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += exp((double)x[i] - (double)max);
    return (double)max + log(sum);
}

static void softmax(struct cand *c, int32_t n, float max, float temperature)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        double e = exp(((double)c[i].logit - (double)max) / (double)temperature);
        c[i].p = (float)e;
        sum += e;
    }
    for (int32_t i = 0; i < n; i++) c[i].p = (float)((double)c[i].p / sum);
}

/* Keeps the candidates whose surprise is nearest the entropy, up to mass p; restores the order by likelihood. */
static int32_t typical(struct cand *c, int32_t n, float p)
{
    double entropy = 0, mass = 0;
    for (int32_t i = 0; i < n; i++)
        if (c[i].p > 0) entropy -= (double)c[i].p * log((double)c[i].p);
    /* Order by distance, through the logit field; the surprise is -log p. */
    for (int32_t i = 0; i < n; i++)
        c[i].logit = c[i].p > 0 ? (float)-fabs(-log((double)c[i].p) - entropy) : -INFINITY;
    top_k(c, n, n);
    int32_t keep = 0;
    while (keep < n && (keep == 0 || mass < (double)p)) mass += (double)c[keep++].p;
    for (int32_t i = 0; i < keep; i++) c[i].logit = c[i].p;
    top_k(c, keep, keep);
    return keep;
}

static void swap(struct cand *c, int32_t i, int32_t j)
{
    struct cand t = c[i];
    c[i] = c[j];
    c[j] = t;
}

/* Splits c[lo, hi) by the middle one of three: those before it come first. Returns where it stands. */
static int32_t split(struct cand *c, int32_t lo, int32_t hi)
{
    int32_t mid = lo + (hi - lo) / 2, last = hi - 1, at = lo;
    if (before(&c[mid], &c[lo])) swap(c, mid, lo);
    if (before(&c[last], &c[lo])) swap(c, last, lo);
    if (before(&c[last], &c[mid])) swap(c, last, mid);
    swap(c, mid, last);
    for (int32_t i = lo; i < last; i++)
        if (before(&c[i], &c[last])) swap(c, i, at++);
    swap(c, at, last);
    return at;
}

/* The fewest candidates, most likely first, that hold `share` of the mass: moved to the front, their number returned.
 * A quickselect by mass, so the order within them is of no use to anybody. Rounds are bounded: what is left is
 * sorted. */
static int32_t nucleus(struct cand *c, int32_t n, double share)
{
    double want = 0, mass = 0;
    for (int32_t i = 0; i < n; i++) want += share * (double)c[i].p;
    int32_t lo = 0, hi = n;
    for (int round = 0; hi - lo > 32 && round < 60; round++) {
        int32_t at = split(c, lo, hi);
        double left = 0;
        for (int32_t i = lo; i <= at; i++) left += (double)c[i].p;
        if (mass + left >= want) {
            hi = at + 1;
            if (at + 1 - lo == 1) break;
        } else {
            mass += left;
            lo = at + 1;
        }
    }
    top_k(c + lo, hi - lo, hi - lo);
    while (lo < hi && (lo == 0 || mass < want)) mass += (double)c[lo++].p;
    return lo;
}

/* c[0..n) in any order on entry; what is left stands first. */
static int32_t truncate_tail(const struct sy_sampling *s, struct cand *c, int32_t n)
{
    if (s->typical_p > 0 && s->typical_p < 1) n = typical(c, n, s->typical_p);
    if (s->top_p > 0 && s->top_p < 1) n = nucleus(c, n, (double)s->top_p);
    if (s->min_p > 0) {
        float best = 0;
        int32_t keep = 0;
        for (int32_t i = 0; i < n; i++) best = c[i].p > best ? c[i].p : best;
        for (int32_t i = 0; i < n; i++)
            if (c[i].p >= s->min_p * best) c[keep++] = c[i];
        n = keep;
    }
    return n;
}

static int32_t draw(const struct cand *c, int32_t n, uint64_t seed, uint64_t counter)
{
    double total = 0, at = 0;
    for (int32_t i = 0; i < n; i++) total += (double)c[i].p;
    double u = sy_rng_unit(seed, counter) * total;
    for (int32_t i = 0; i < n; i++) {
        at += (double)c[i].p;
        if (u < at) return c[i].id;
    }
    return c[0].id; /* rounding left u at the very end */
}

/* Log probabilities of out->id and of the k most likely ones, of the logits x. */
static void logprobs(const float *x, int32_t n, int32_t k, struct cand *c, float max, struct sy_sample_out *out)
{
    double z = log_sum_exp(x, n, max);
    out->logprob = (float)((double)x[out->id] - z);
    if (k > n) k = n;
    if (k <= 0) return;
    for (int32_t i = 0; i < n; i++) c[i] = (struct cand){x[i], 0, i};
    top_k(c, n, k);
    out->n_top = k;
    for (int32_t i = 0; i < k; i++) out->top[i] = (struct sy_logprob){c[i].id, (float)((double)c[i].logit - z)};
}

void sy_sample_score(const float *logits, int32_t n_vocab, int32_t id, int32_t n_top, void *scratch,
                     struct sy_sample_out *out)
{
    float *x = scratch, max = -INFINITY;
    for (int32_t i = 0; i < n_vocab; i++) {
        x[i] = logits[i] == logits[i] ? logits[i] : -INFINITY;
        if (x[i] > max) max = x[i];
    }
    *out = (struct sy_sample_out){.id = id};
    logprobs(x, n_vocab, n_top, (struct cand *)(void *)(x + n_vocab), max > -INFINITY ? max : 0, out);
}

void sy_sample_draw(const struct sy_sample_in *in, void *scratch, struct sy_sample_out *out)
{
    const struct sy_sampling *s = in->how;
    int32_t n = in->n_vocab;
    float *x = scratch;
    struct cand *c = (struct cand *)(void *)(x + n);
    memcpy(x, in->logits, (size_t)n * sizeof *x);
    penalise(in, x);
    int32_t best = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!(x[i] == x[i])) x[i] = -INFINITY; /* a broken model must not break the sampler */
        if (x[i] > x[best]) best = i;
    }
    float max = x[best] > -INFINITY ? x[best] : 0;
    *out = (struct sy_sample_out){.id = best};
    /* Below this the most likely token's share rounds to 1: greedy, without dividing by almost nothing. */
    if (s->temperature > 1e-5f && x[best] > -INFINITY) {
        int32_t live = 0;
        for (int32_t i = 0; i < n; i++)
            if (x[i] > -INFINITY) c[live++] = (struct cand){x[i], 0, i};
        /* Beyond 40 temperatures below the best a token's share is under 1e-17: dropping it changes no draw that
         * float64 could tell, and leaves far fewer candidates to order. */
        float floor_at = max - 40 * s->temperature;
        int32_t near = 0;
        for (int32_t i = 0; i < live; i++)
            if (c[i].logit >= floor_at) c[near++] = c[i];
        int32_t k = s->top_k > 0 && s->top_k < near ? s->top_k : near;
        if (k < near) top_k(c, near, k);
        softmax(c, k, max, s->temperature);
        out->id = draw(c, truncate_tail(s, c, k), s->seed, in->draw);
    }
    if (s->n_logprob >= 0) logprobs(x, n, s->n_logprob, c, max, out);
}
