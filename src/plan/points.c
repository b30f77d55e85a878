#include "plan/points.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum { POINT_MAX = 100000, ROOT_MAX = 256, TOKENS_MAX = 1 << 24 };

const char *sy_metric_name(enum sy_metric m)
{
    static const char *const names[] = {"tok/s/chip", "out tok/s/chip", "TPOT ms", "TTFT s", "E2E s"};
    return (unsigned)m < SY_COUNT(names) ? names[m] : "?";
}

static double metric(struct sy_jread *m, const char *key)
{
    return sy_jread_has(m, key) ? sy_jread_num(m, key, 1e-9, 1e12) : 0;
}

static void either(struct sy_jread *m, struct sy_measured *p, enum sy_metric at, const char *median, const char *mean,
                   double unit)
{
    double v = metric(m, median);
    if (v <= 0 && mean) {
        v = metric(m, mean);
        p->mean[at] = v > 0;
    }
    if (v > 0) p->metric[at] = v * unit;
}

static void read_metrics(struct sy_measured *p, struct sy_jread *m)
{
    double in = p->isl * (1 + p->range) / 2, out = p->osl * (1 + p->range) / 2;
    p->metric[SY_METRIC_TPUT] = metric(m, "tput_per_gpu");
    p->metric[SY_METRIC_OUT] = metric(m, "output_tput_per_gpu");
    double total = metric(m, "total_tok_s"), answers = metric(m, "output_tok_s");
    double *tput = p->metric;
    if (tput[SY_METRIC_TPUT] <= 0 && total > 0 && p->chips > 0) tput[SY_METRIC_TPUT] = total / p->chips;
    if (tput[SY_METRIC_OUT] <= 0 && answers > 0 && p->chips > 0) tput[SY_METRIC_OUT] = answers / p->chips;
    if (tput[SY_METRIC_TPUT] <= 0 && tput[SY_METRIC_OUT] > 0 && out > 0 && p->kind == SY_LOAD_CLOSED)
        tput[SY_METRIC_TPUT] = tput[SY_METRIC_OUT] * (in + out) / out;
    double derived = metric(m, "tput_per_gpu_derived"), speed = metric(m, "interactivity"),
           e2e = metric(m, "median_e2el_s");
    if (!p->conc && derived > 0 && (speed > 0 || e2e > 0)) {
        p->kind = speed > 0 ? SY_LOAD_AT_TPOT : SY_LOAD_AT_E2E;
        p->target = speed > 0 ? 1 / speed : e2e;
        p->conc = 1;
        p->metric[SY_METRIC_TPUT] = derived;
        return;
    }
    either(m, p, SY_METRIC_TPOT, "median_tpot_ms", "mean_tpot_ms", 1e-3);
    if (p->metric[SY_METRIC_TPOT] <= 0) {
        double v = metric(m, "median_intvty");
        if (v > 0) p->metric[SY_METRIC_TPOT] = 1 / v;
    }
    either(m, p, SY_METRIC_TTFT, "median_ttft_s", "mean_ttft_s", 1);
    either(m, p, SY_METRIC_E2E, "median_e2el_s", "mean_e2el_s", 1);
}

static int32_t length(struct sy_jread *r, struct sy_measured *p, const char *key)
{
    const struct sy_json *v = sy_json_get(r->obj, key);
    const char *text = sy_json_text(v);
    if (sy_json_is_number(v)) return (int32_t)sy_jread_int(r, key, 1, TOKENS_MAX);
    if (!text) return 0;
    char *end; /* "32K context": decoding at that context */
    long n = strtol(text, &end, 10);
    if (n < 1 || n > 1 << 20 || *end != 'K') return 0;
    p->kind = SY_LOAD_DECODE;
    return (int32_t)n * 1024;
}

static const char *const loads[] = {[SY_LOAD_CLOSED] = "closed",
                                    [SY_LOAD_DECODE] = "decode",
                                    [SY_LOAD_AT_TPOT] = NULL,
                                    [SY_LOAD_AT_E2E] = NULL,
                                    [SY_LOAD_PREFILL] = "prefill"};

static void read_load(struct sy_jread *r, struct sy_measured *p)
{
    const char *name = sy_jread_text_or(r, "load", NULL);
    if (!name) return;
    for (size_t i = 0; i < SY_COUNT(loads); i++)
        if (loads[i] && !strcmp(name, loads[i])) {
            p->kind = (enum sy_load_kind)i;
            return;
        }
    sy_jread_refuse(r, SY_EFORMAT, "'load': expected closed, decode or prefill, found '%.40s'", name);
}

static void no(struct sy_measured *p, const char *why)
{
    if (!p->why_not[0]) snprintf(p->why_not, sizeof p->why_not, "%.95s", why);
}

static void read_parallel(struct sy_jread *r, struct sy_measured *p)
{
    struct sy_jread q = {.obj = sy_json_get(r->obj, "parallel"), .where = r->where, .err = r->err};
    p->parallel_name = "";
    if (!sy_json_is_object(q.obj)) return;
    p->tp = sy_jread_has(&q, "tp") ? (int32_t)sy_jread_int(&q, "tp", 1, 1 << 16) : 0;
    p->ep = (int32_t)sy_jread_int_or(&q, "ep", 1, 1, 1 << 16);
    int64_t dp = sy_jread_int_or(&q, "dp", 1, 1, 1 << 16);
    p->dp = (int32_t)sy_jread_int_or(&q, "dp_attn", dp, 1, 1 << 16);
    if (dp > 1 && p->dp == dp && p->tp % p->dp == 0 && !sy_jread_has(&q, "dp_attn")) p->tp /= p->dp;
    r->st = r->st ? r->st : q.st;
}

/* Tokens drafted a step: "mtp(3,1,4)" says 3; plain "mtp" is taken as 3, as the published recipes have it. */
static void read_spec(struct sy_measured *p, const struct sy_card *card)
{
    p->accepted = 1;
    if (!strncmp(p->spec, "none", 4)) return;
    p->drafted = 3;
    if (p->spec[3] == '(' && p->spec[4] >= '1' && p->spec[4] <= '8') p->drafted = p->spec[4] - '0';
    p->accepted = card->accepted[p->drafted];
    if (p->accepted <= 1) no(p, "the card has no acceptance length for its speculation");
}

/* known: the model's card where it is no name among the program's own; NULL: to be found by p->model. */
static sy_status read_card(const struct sy_env *env, const struct sy_card *known, struct sy_measured *p)
{
    struct sy_chip chip;
    struct sy_card card;
    struct sy_path path;
    struct sy_err err = {0};
    sy_status st = sy_chip_find(env, p->hw, &chip, &err);
    if (known) card = *known;
    else if (!st) st = sy_card_find(env, p->model, &card, &err);
    if (st == SY_ENOMEM) return st;
    if (st) return no(p, "no card for its chip or model"), SY_OK;
    struct sy_sharding l = {.chips = p->chips, .tp = p->tp, .dp = p->dp, .pp = 1, .expert_parallel = p->ep > 1};
    st = sy_path_named(p->precision, &chip, &path, &err);
    if (!st) st = sy_timer_init(&p->timer, &card.profile, &chip, &path, l, sy_consts_roofline, &err);
    if (st) no(p, err.msg);
    read_spec(p, &card);
    return SY_OK;
}

/* What engines are published to do where a point does not say: a TPU's recipe bounds a rank's step by 1024 tokens for
 * long prompts and 2048 for short ones, others by 8192. */
static int32_t usual_chunk(const struct sy_measured *p)
{
    return strncmp(p->hw, "tpu", 3) ? 8192 : p->isl >= 4096 ? 1024 : 2048;
}

static sy_status read_point(const struct sy_env *env, const struct sy_json *o, const char *where,
                            struct sy_measured *p, struct sy_err *err)
{
    struct sy_jread r = {.obj = o, .where = where, .err = err};
    *p = (struct sy_measured){.group = -1, .kind = SY_LOAD_CLOSED};
    p->id = sy_jread_text(&r, "id");
    p->hw = sy_jread_text(&r, "hw");
    p->model = sy_jread_text(&r, "model");
    p->precision = sy_jread_text(&r, "precision");
    p->framework = sy_jread_text_or(&r, "framework", "unknown");
    p->date = sy_jread_text_or(&r, "date", "");
    p->spec = sy_jread_text_or(&r, "spec_decoding", "none");
    p->source = sy_jread_text_or(&r, "source", "");
    p->disagg = sy_jread_bool_or(&r, "disagg", false);
    if (sy_jread_has(&r, "chips")) p->chips = (int32_t)sy_jread_int(&r, "chips", 1, 1 << 20);
    if (sy_jread_has(&r, "conc")) p->conc = (int32_t)sy_jread_int(&r, "conc", 1, 1 << 24);
    p->range = sy_jread_num_or(&r, "random_range_ratio", 1, 0, 1);
    p->isl = length(&r, p, "isl");
    p->osl = length(&r, p, "osl");
    read_load(&r, p);
    p->chunk = (int32_t)sy_jread_int_or(&r, "max_num_batched_tokens", 0, 1, 1 << 24);
    read_parallel(&r, p);
    struct sy_jread m = {.obj = sy_json_get(o, "metrics"), .where = where, .err = err};
    if (!r.st && !sy_json_is_object(m.obj))
        return sy_fail(err, SY_EFORMAT, "%s: expected an object 'metrics'", where);
    if (!r.st) read_metrics(p, &m);
    if (r.st || m.st) return r.st ? r.st : m.st;
    if (p->chunk == 0) p->chunk = usual_chunk(p);
    if (p->disagg) no(p, "prefill and decode run on chips of their own");
    if (!p->chips || !p->conc) no(p, "chips or concurrency are not published");
    if (!p->isl || (!p->osl && p->kind == SY_LOAD_CLOSED)) no(p, "lengths are those of a trace");
    if (!p->tp) no(p, "its parallel configuration is not published");
    if (p->metric[SY_METRIC_TPUT] <= 0 && p->metric[SY_METRIC_OUT] <= 0) no(p, "no throughput is published");
    return p->why_not[0] ? SY_OK : read_card(env, NULL, p);
}

struct compiled { /* what `compile --json` says of all its programs; 0: not said */
    double block_len;
    int32_t tp, dp;
};

/* ---- results of our own benchmarks -------------------------------------------------------------------------------
 */

static struct sy_measured own_point(const struct sy_machine *m, const char *kind, int32_t conc, double in, double out)
{
    struct sy_measured p = {
        .group = -1, .hw = m->hw, .model = m->card->name, .precision = m->precision, .source = "own"};
    p.framework = m->framework;
    p.date = "own";
    p.spec = "none";
    p.parallel_name = "";
    p.chips = m->chips;
    p.tp = m->tp;
    p.dp = p.ep = 1;
    p.range = 1;
    p.conc = conc;
    p.isl = (int32_t)(in + 0.5);
    p.osl = (int32_t)(out + 0.5);
    p.chunk = m->chunk > 0 ? m->chunk : 512;
    p.id = kind;
    p.accepted = 1;
    return p;
}

/* Of the user's own machine: what cannot be costed is a mistake in what was said of it. */
static sy_status push(struct sy_points *out, struct sy_jread *r, const struct sy_env *env, const struct sy_machine *m,
                      struct sy_measured *p)
{
    sy_status st = read_card(env, m->card, p);
    if (!st && p->why_not[0]) return sy_jread_refuse(r, SY_EARG, "%s", p->why_not);
    if (!st) out->at[out->n++] = *p;
    return st;
}

/* Lengths that were drawn from a share of the longest on, as a row's `isl` and `osl` say; of texts that had their own
 * only means are known. */
static void read_range(struct sy_jread *r, struct sy_measured *p, double in, double out)
{
    double isl = sy_jread_num_or(r, "isl", 0, 0, 1e7), osl = sy_jread_num_or(r, "osl", 0, 0, 1e7);
    if (r->st || isl < 1 || osl < 1) return;
    double range = (2 * in / isl - 1 + 2 * out / osl - 1) / 2;
    if (range < 0 || range > 1 || fabs(in / isl - out / osl) > 0.05) return;
    p->isl = (int32_t)isl;
    p->osl = (int32_t)osl;
    p->range = range;
}

/* A row of `bench serve`: lengths are the means of what was answered, percentiles are in seconds. */
static sy_status serve_row(const struct sy_env *env, struct sy_jread *r, const struct sy_machine *m,
                           struct sy_points *out)
{
    double done = sy_jread_num(r, "completed", 1, 1e9), conc = sy_jread_num(r, "conc", 0, 1e6);
    double in = sy_jread_num(r, "total_input_tokens", 1, 1e15),
           answers = sy_jread_num(r, "total_output_tokens", 1, 1e15);
    double tput = sy_jread_num(r, "tput_per_gpu", 1e-9, 1e12);
    if (r->st || conc < 1) return r->st; /* an open loop has no number of users to predict from */
    if (in > done * TOKENS_MAX || answers > done * TOKENS_MAX)
        return sy_jread_refuse(r, SY_EFORMAT, "expected at most %d tokens a request", TOKENS_MAX);
    struct sy_measured p = own_point(m, "serve", (int32_t)conc, in / done, answers / done);
    read_range(r, &p, in / done, answers / done);
    p.metric[SY_METRIC_TPUT] = tput;
    p.metric[SY_METRIC_OUT] = sy_jread_num_or(r, "output_tput_per_gpu", 0, 0, 1e12);
    p.metric[SY_METRIC_TPOT] = sy_jread_num_or(r, "median_tpot", 0, 0, 1e6);
    p.metric[SY_METRIC_TTFT] = sy_jread_num_or(r, "median_ttft", 0, 0, 1e6);
    p.metric[SY_METRIC_E2E] = sy_jread_num_or(r, "median_e2el", 0, 0, 1e6);
    return r->st ? r->st : push(out, r, env, m, &p);
}

/* A row of `bench offline` is two points: the prompts alone, then decoding in the middle of the answers. */
static sy_status offline_row(const struct sy_env *env, struct sy_jread *r, const struct sy_machine *m,
                             struct sy_points *out)
{
    double batch = sy_jread_num(r, "batch", 1, 1e6), in = sy_jread_num(r, "input_len", 1, 1e7);
    double n_out = sy_jread_num(r, "output_len", 1, 1e7), decode = sy_jread_num(r, "decode_tok_s", 0, 1e12);
    double prefill = sy_jread_num(r, "prefill_tok_s", 1e-9, 1e12);
    if (r->st) return r->st;
    struct sy_measured p = own_point(m, "prefill", (int32_t)batch, in, n_out);
    p.kind = SY_LOAD_PREFILL;
    p.metric[SY_METRIC_TPUT] = prefill / m->chips;
    sy_status st = push(out, r, env, m, &p);
    if (st || decode <= 0) return st;
    p = own_point(m, "decode", (int32_t)batch, in + n_out / 2, 0);
    p.kind = SY_LOAD_DECODE;
    p.metric[SY_METRIC_OUT] = decode / m->chips;
    return push(out, r, env, m, &p);
}

/* A program of `compile --json`: one step of so many tokens, as long as the compiler's cycles say. */
static sy_status compiled_row(const struct sy_env *env, struct sy_jread *r, const struct sy_machine *m,
                              const struct compiled *c, struct sy_points *out)
{
    double tok = sy_jread_num(r, "tokens", 1, 1e7), seq = sy_jread_num(r, "sequences", 1, 1e6);
    double blocks = sy_jread_num(r, "blocks", 1, TOKENS_MAX / c->block_len),
           step = sy_jread_num(r, "estimated_s", 0, 1e4);
    if (!r->st && step <= 0) /* compilers of GPUs tell no cycles */
        sy_jread_refuse(r, SY_EARG, "'estimated_s': this compiler estimates no time, so there is nothing to fit to");
    if (r->st) return r->st;
    bool decode = tok == seq;
    struct sy_measured p = own_point(m, decode ? "decode" : "prefill", decode ? (int32_t)seq : 1,
                                     decode ? blocks * c->block_len : tok, 0);
    p.date = "estimated";
    p.framework = p.source = "compiler";
    p.kind = decode ? SY_LOAD_DECODE : SY_LOAD_PREFILL;
    if (c->tp > 0) p.tp = c->tp;
    if (c->dp > 0) p.dp = c->dp;
    if (!decode) p.chunk = (int32_t)tok;
    p.metric[decode ? SY_METRIC_OUT : SY_METRIC_TPUT] = tok / step / m->chips;
    return push(out, r, env, m, &p);
}

static sy_status read_result(const struct sy_env *env, const struct sy_json *o, const char *where,
                             const struct sy_machine *m, const struct compiled *c, struct sy_points *out,
                             struct sy_err *err)
{
    struct sy_jread r = {.obj = o, .where = where, .err = err};
    if (!m)
        return sy_fail(err, SY_EARG,
                       "%s: a result of one's own needs --chip, --precision and --model-card or -m: what it ran on",
                       where);
    if (c) return compiled_row(env, &r, m, c, out);
    return sy_jread_has(&r, "batch") ? offline_row(env, &r, m, out) : serve_row(env, &r, m, out);
}

/* ---- files -------------------------------------------------------------------------------------------------------
 */

/* Room for `more` points behind those that are there; owns the root from here on. */
static sy_status make_room(const struct sy_env *env, struct sy_points *out, size_t more, struct sy_json *root,
                           struct sy_err *err)
{
    if (!out->root) {
        sy_arena_init(&out->arena, env, 0);
        out->root = sy_arena_array(&out->arena, ROOT_MAX, sizeof *out->root);
    }
    struct sy_measured *all = out->root ? sy_arena_array(&out->arena, out->n + more + 1, sizeof *all) : NULL;
    if (!all) {
        sy_json_free(root);
        return sy_fail(err, SY_ENOMEM, "no memory for %zu points", more);
    }
    if (out->n) memcpy(all, out->at, out->n * sizeof *all);
    out->at = all;
    out->root[out->n_root++] = root;
    return SY_OK;
}

sy_status sy_points_text(const struct sy_env *env, const char *where, const char *text, size_t n,
                         const struct sy_machine *machine, struct sy_points *out, struct sy_err *err)
{
    struct sy_json *root;
    sy_status st = sy_json_parse(env, text, n, false, &root, err);
    if (st) return sy_while(err, st, "%s", where);
    const struct sy_json *list = sy_json_get(root, "points"), *results = sy_json_get(root, "results");
    const struct sy_json *buckets = sy_json_get(root, "buckets");
    struct sy_jread top = {.obj = root, .where = where, .err = err};
    struct compiled compiled = {32, 0, 0};
    if (buckets)
        compiled = (struct compiled){.block_len = (double)sy_jread_int_or(&top, "block_size", 32, 1, 1 << 20),
                                     .tp = (int32_t)sy_jread_int_or(&top, "tp", 0, 0, 1 << 16),
                                     .dp = (int32_t)sy_jread_int_or(&top, "dp_attention", 0, 0, 1 << 16)};
    bool own = !list && (results || buckets);
    if (own) list = results ? results : buckets;
    size_t more = sy_json_len(list);
    if (!sy_json_is_array(list) || more > POINT_MAX || out->n_root == ROOT_MAX) {
        sy_json_free(root);
        return sy_fail(err, SY_EFORMAT,
                       "%s: expected an array 'points', 'results' or 'buckets' of at most %d objects", where,
                       POINT_MAX);
    }
    st = make_room(env, out, 2 * more, root, err);
    if (!st) st = top.st;
    for (size_t i = 0; i < more && !st; i++) {
        char here[160];
        const struct sy_json *o = sy_json_at(list, i);
        const char *id = sy_json_text(sy_json_get(o, "id"));
        snprintf(here, sizeof here, "%.80s: point %zu (%.24s)", where, i, id ? id : "no id");
        if (own) {
            st = read_result(env, o, here, machine, buckets ? &compiled : NULL, out, err);
            continue;
        }
        st = read_point(env, o, here, &out->at[out->n], err);
        out->n += !st;
    }
    return st;
}

sy_status sy_points_own(const struct sy_env *env, struct sy_points *out, struct sy_err *err)
{
    *out = (struct sy_points){0};
    for (const struct sy_data *d = sy_data_files; d->path; d++) {
        if (strncmp(d->path, "measurements/", 13) || strstr(d->path, "speedups")) continue;
        sy_status st = sy_points_text(env, d->path, d->at, d->n, NULL, out, err);
        if (!st) continue;
        sy_points_release(out);
        return st;
    }
    return SY_OK;
}

sy_status sy_points_file(const struct sy_env *env, const char *path, const struct sy_machine *machine,
                         struct sy_points *out, struct sy_err *err)
{
    char *text;
    size_t n;
    sy_status st = sy_file_read(env, path, 64 << 20, &text, &n, err);
    if (st) return st;
    st = sy_points_text(env, path, text, n, machine, out, err);
    sy_delete(env, text);
    return st;
}

static void put_metrics(struct sy_jout *j, const struct sy_measured *p)
{
    static const struct {
        enum sy_metric at;
        const char *name[2];
        double unit;
    } of[] = {{SY_METRIC_OUT, {"output_tput_per_gpu", "output_tput_per_gpu"}, 1},
              {SY_METRIC_TPOT, {"median_tpot_ms", "mean_tpot_ms"}, 1e3},
              {SY_METRIC_TTFT, {"median_ttft_s", "mean_ttft_s"}, 1},
              {SY_METRIC_E2E, {"median_e2el_s", "mean_e2el_s"}, 1}};
    bool read_off = p->kind == SY_LOAD_AT_TPOT || p->kind == SY_LOAD_AT_E2E;
    double tput = p->metric[SY_METRIC_TPUT];
    sy_jout_open(j, "metrics", '{');
    if (tput > 0) sy_jout_num(j, read_off ? "tput_per_gpu_derived" : "tput_per_gpu", tput);
    if (p->kind == SY_LOAD_AT_TPOT) sy_jout_num(j, "interactivity", 1 / p->target);
    if (p->kind == SY_LOAD_AT_E2E) sy_jout_num(j, "median_e2el_s", p->target);
    for (size_t i = 0; i < SY_COUNT(of) && !read_off; i++)
        if (p->metric[of[i].at] > 0) sy_jout_num(j, of[i].name[p->mean[of[i].at]], of[i].unit * p->metric[of[i].at]);
    sy_jout_close(j, '}');
}

void sy_point_put(struct sy_jout *j, const struct sy_measured *p)
{
    const struct {
        const char *name, *text;
    } said[] = {{"id", p->id},
                {"hw", p->timer.chip.id[0] ? p->timer.chip.id : p->hw},
                {"model", p->model},
                {"precision", p->precision},
                {"framework", p->framework},
                {"date", p->date},
                {"spec_decoding", p->spec},
                {"source", p->source}};
    sy_jout_open(j, NULL, '{');
    for (size_t i = 0; i < SY_COUNT(said); i++) sy_jout_text(j, said[i].name, said[i].text);
    if (loads[p->kind] && p->kind != SY_LOAD_CLOSED) sy_jout_text(j, "load", loads[p->kind]);
    sy_jout_int(j, "chips", p->chips);
    if (p->isl) sy_jout_int(j, "isl", p->isl);
    if (p->osl) sy_jout_int(j, "osl", p->osl);
    if (p->kind != SY_LOAD_AT_TPOT && p->kind != SY_LOAD_AT_E2E) sy_jout_int(j, "conc", p->conc);
    sy_jout_num(j, "random_range_ratio", p->range);
    sy_jout_int(j, "max_num_batched_tokens", p->chunk);
    sy_jout_open(j, "parallel", '{');
    sy_jout_int(j, "tp", p->tp);
    sy_jout_int(j, "ep", p->ep);
    sy_jout_int(j, "dp_attn", p->dp);
    sy_jout_close(j, '}');
    put_metrics(j, p);
    sy_jout_close(j, '}');
}

void sy_points_release(struct sy_points *p)
{
    for (size_t i = 0; i < p->n_root; i++) sy_json_free(p->root[i]);
    if (p->root) sy_arena_release(&p->arena);
    *p = (struct sy_points){0};
}
