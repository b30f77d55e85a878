#include "plan/fluid.h"

#include <math.h>

enum { RANK_MAX = 256 };

struct sy_load_spec sy_load_of(const struct sy_measured *p)
{
    double half = (1 + p->range) / 2;
    return (struct sy_load_spec){.kind = p->kind,
                                 .in = p->kind == SY_LOAD_DECODE ? p->isl : p->isl * half,
                                 .out = p->kind == SY_LOAD_DECODE ? 1 : p->osl * half,
                                 .conc = p->conc,
                                 .target = p->target,
                                 .chunk = p->chunk,
                                 .drafted = p->drafted,
                                 .accepted = p->accepted > 1 ? p->accepted : 1,
                                 .memory_share = p->timer.chip.unit_peaks || p->kind == SY_LOAD_DECODE ? 0 : 0.85};
}

static void add_decode(struct sy_rank_load *r, double n, double ctx, double each)
{
    r->seq += n;
    r->tok += n * each;
    r->out += n * each;
    r->ctx += n * ctx;
    r->keys += n * each * ctx;
}

/* ctx: what a token of the chunk sees on average. */
static void add_chunk(struct sy_rank_load *r, double n, double ctx)
{
    double keys = n * ctx;
    r->seq += 1;
    r->tok += n;
    r->prompt += n;
    r->ctx += ctx;
    r->keys += keys;
    r->prompt_keys += keys;
}

static struct sy_rank_load scaled(const struct sy_rank_load *r, double f)
{
    return (struct sy_rank_load){r->tok * f, r->out * f,    r->seq * f,        r->keys * f,
                                 r->ctx * f, r->prompt * f, r->prompt_keys * f};
}

static double max2(double a, double b) { return a > b ? a : b; }

/* Sequences that the cache holds at once; those beyond wait. */
static int32_t running(const struct sy_timer *t, const struct sy_load_spec *l)
{
    if (l->memory_share <= 0 || t->chip.memory_bytes <= 0) return l->conc;
    double ctx = l->in + l->out / 2, n = sy_timer_fit(t, l->memory_share, ctx).tokens / ctx;
    return n < t->layout.dp ? t->layout.dp : n < l->conc ? (int32_t)n : l->conc;
}

static void closed(const struct sy_timer *t, const struct sy_load_spec *asked, double *metric)
{
    struct sy_load_spec own = *asked, *l = &own;
    l->conc = running(t, asked);
    struct sy_rank_load rank[RANK_MAX], one[RANK_MAX];
    int32_t dp = t->layout.dp < RANK_MAX ? t->layout.dp : RANK_MAX, used = l->conc < dp ? l->conc : dp;
    double each = 1 + l->drafted, steps = l->out / l->accepted, ctx = l->in + l->out / 2;
    for (int32_t i = 0; i < dp; i++) {
        rank[i] = (struct sy_rank_load){0};
        double n = l->conc / dp + (i < l->conc % dp);
        if (n > 0) add_decode(&rank[i], n, l->kind == SY_LOAD_DECODE ? l->in : ctx, each);
    }
    double decode = sy_timer_step(t, rank, dp), chips = t->layout.chips;
    if (l->kind == SY_LOAD_DECODE) {
        metric[SY_METRIC_TPUT] = metric[SY_METRIC_OUT] = l->conc / decode / chips;
        metric[SY_METRIC_TPOT] = decode;
        metric[SY_METRIC_TTFT] = metric[SY_METRIC_E2E] = 0;
        return;
    }
    double room = l->chunk - rank[0].tok + each, fresh = l->in * (1 - l->hit);
    double n = ceil(fresh / (room < 16 ? 16 : room)), chunk = fresh / (n < 1 ? 1 : n);
    double seen = l->in - fresh / 2;
    if (n < 1) n = 1;
    /* How many of a rank's steps hold a chunk, and of its sequences those that decode; the others wait for theirs. */
    double due = (double)l->conc / used * n / (steps + n);
    for (int32_t i = 0; i < dp; i++) one[i] = rank[i] = scaled(&rank[i], steps / (steps + n) / max2(1, due));
    decode = sy_timer_step(t, rank, dp);
    add_chunk(&one[0], chunk, seen);
    double first = sy_timer_step(t, one, dp) - decode, all = first;
    for (int32_t i = 1; i < used; i++) add_chunk(&one[i], chunk, seen);
    if (used > 1) all = sy_timer_step(t, one, dp) - decode;
    double each_step; /* the chance that some rank's step holds a chunk; chunks beside the first */
    if (due < 1) {
        double any = 1 - pow(1 - due, used), more = used > 1 ? (due * used - any) / (used - 1) : 0;
        each_step = decode + any * first + (more > 0 ? more * (all - first) : 0);
    } else {
        each_step = due * (decode + all);
    }
    double e2e = (steps + n) * each_step, waits = e2e * ((double)asked->conc / l->conc - 1);
    /* Where more chunks are due than steps, prompts queue for their place in a step: every step holds one. */
    double ttft = due < 1 ? n * (decode + first) : e2e - steps * (decode + all);
    metric[SY_METRIC_TPUT] = l->conc * (l->in + l->out) / e2e / chips;
    metric[SY_METRIC_OUT] = l->conc * l->out / e2e / chips;
    if (ttft > e2e) ttft = e2e;
    metric[SY_METRIC_E2E] = e2e + waits;
    metric[SY_METRIC_TTFT] = ttft + waits;
    metric[SY_METRIC_TPOT] = l->out > 1 ? (e2e - ttft) / (l->out - 1) : decode;
}

/* Between the powers of two around the target, linear in the logarithms. */
static void at_target(const struct sy_timer *t, const struct sy_load_spec *asked, double *metric)
{
    enum sy_metric which = asked->kind == SY_LOAD_AT_TPOT ? SY_METRIC_TPOT : SY_METRIC_E2E;
    struct sy_load_spec l = *asked;
    double before[SY_METRIC_COUNT];
    l.kind = SY_LOAD_CLOSED;
    l.conc = 1;
    closed(t, &l, metric);
    while (metric[which] < l.target && l.conc < 1 << 16) {
        for (int k = 0; k < SY_METRIC_COUNT; k++) before[k] = metric[k];
        l.conc *= 2;
        closed(t, &l, metric);
    }
    if (l.conc == 1 || metric[which] < l.target || before[which] >= metric[which]) return;
    double part = log(l.target / before[which]) / log(metric[which] / before[which]);
    for (int k = 0; k < SY_METRIC_COUNT; k++) metric[k] = before[k] * pow(metric[k] / before[k], part);
}

/* Prompts alone, whole chunks of them, the way an engine takes a batch that arrives at once. */
static void prefill(const struct sy_timer *t, const struct sy_load_spec *l, double *metric)
{
    double total = l->conc * l->in, n = ceil(total / l->chunk), each = l->chunk / l->in;
    struct sy_rank_load r = {.tok = total / n, .prompt = total / n, .seq = each < 1 ? 1 : each};
    r.out = r.seq > l->conc ? l->conc : r.seq;
    if (r.seq > l->conc) r.seq = l->conc;
    r.keys = r.prompt_keys = r.tok * l->in / 2;
    r.ctx = r.seq * l->in * (each < 1 ? 0.5 : 1);
    double s = n * sy_timer_step(t, &r, 1);
    for (int k = 0; k < SY_METRIC_COUNT; k++) metric[k] = 0;
    metric[SY_METRIC_TPUT] = total / s / t->layout.chips;
    metric[SY_METRIC_TTFT] = s;
}

void sy_fluid(const struct sy_timer *t, const struct sy_load_spec *l, double *metric)
{
    if (l->kind == SY_LOAD_PREFILL) {
        prefill(t, l, metric);
        return;
    }
    if (l->kind == SY_LOAD_AT_TPOT || l->kind == SY_LOAD_AT_E2E) at_target(t, l, metric);
    else closed(t, l, metric);
}
