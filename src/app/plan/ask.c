/* ask.c - a question as the flags put it. */
#include "app/plan/ask.h"

#include <stdlib.h>
#include <string.h>

#include "app/bench/bench.h"
#include "app/hub/hub.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"

enum { CHIP_MAX = 64 };

static sy_status read_trace(struct sy_asked *p, const char *path, struct sy_err *err)
{
    const struct sy_env *env = &p->a->app->env;
    size_t n, n_turn = 0;
    sy_status st = sy_file_read(env, path, 1 << 30, &p->trace_text, &n, err);
    if (!st) st = sy_workload_trace(env, p->trace_text, n, (uint64_t)sy_arg_int(p->a, "seed"), &p->trace, err);
    if (st) return sy_while(err, st, "'%s'", path);
    double in = 0, out = 0, last = 0;
    int64_t longest = 0;
    for (size_t i = 0; i < p->trace.n; i++) {
        const struct sy_user_session *u = &p->trace.session[i];
        int64_t said = 0;
        for (size_t k = 0; k < u->n_turn; k++, n_turn++) {
            said += u->turn[k].n_in;
            in += (double)said; /* a turn's prompt is all that was said before */
            out += u->turn[k].n_out;
            said += u->turn[k].n_out;
        }
        if (said > longest) longest = said;
        last = 1e-9 * (double)u->start_ns;
    }
    if (n_turn == 0 || longest > 1 << 24)
        return sy_fail(err, SY_EFORMAT, "'%s': expected conversations of at most %d tokens", path, 1 << 24);
    p->o.trace = &p->trace;
    p->o.trace_s = last - 1e-9 * (double)p->trace.session[0].start_ns;
    p->o.trace_ctx = (int32_t)longest;
    p->o.in = in / (double)n_turn;
    p->o.out = out / (double)n_turn;
    p->o.range = 1;
    return SY_OK;
}

static sy_status read_workload(struct sy_asked *p, struct sy_err *err)
{
    static const struct {
        const char *name;
        double in, out;
    } known[] = {{"8k1k", 8192, 1024}, {"1k1k", 1024, 1024}, {"1k8k", 1024, 8192}};
    const char *w = sy_arg_text(p->a, "workload");
    p->o.range = sy_arg_num(p->a, "random-range");
    p->o.hit = sy_arg_num(p->a, "hit-rate");
    if (!strncmp(w, "trace:", 6)) return read_trace(p, w + 6, err);
    for (size_t i = 0; i < SY_COUNT(known); i++)
        if (!strcmp(w, known[i].name)) {
            p->o.in = known[i].in;
            p->o.out = known[i].out;
            return SY_OK;
        }
    char *end;
    p->o.in = strtod(w, &end);
    p->o.out = *end == '/' ? strtod(end + 1, &end) : 0;
    if (!*end && p->o.in >= 1 && p->o.out >= 1 && p->o.in + p->o.out < 1e7) return SY_OK;
    return sy_fail(err, SY_EARG, "--workload: expected 8k1k, 1k1k, 1k8k, IN/OUT tokens or trace:FILE, found '%.40s'",
                   w);
}

/* What the weights' own storage comes nearest to. */
static const char *precision_of(const struct sy_checkpoint *c)
{
    double bits = 0, n = 0;
    for (size_t i = 0; i < sy_checkpoint_count(c); i++) {
        const struct sy_tensor *t = sy_checkpoint_at(c, i);
        double elems = 1;
        for (int k = 0; k < t->n_dim; k++) elems *= (double)t->dim[k];
        bits += 8.0 * (double)t->n_bytes;
        n += elems;
    }
    return n <= 0 || bits / n > 20 ? "f32" : bits / n > 9 ? "bf16" : bits / n > 6 ? "int8" : "int4";
}

static sy_status read_checkpoint(struct sy_args *a, const char *model, struct sy_card *card, const char **precision,
                                 struct sy_err *err)
{
    const char *path;
    struct sy_checkpoint *c = NULL;
    sy_status st = sy_model_path(a, model, &path, err);
    if (!st) st = sy_checkpoint_open(&a->app->env, path, &c, err);
    if (st) return st;
    const char *base = strrchr(path, '/') && strrchr(path, '/')[1] ? strrchr(path, '/') + 1 : path;
    *precision = precision_of(c);
    st = sy_card_of_config(&a->app->env, sy_checkpoint_config(c), base, card, err);
    sy_checkpoint_free(c);
    return st;
}

sy_status sy_plan_card(struct sy_args *a, struct sy_card *card, const char **precision, struct sy_err *err)
{
    const char *name = sy_arg_text(a, "model-card"), *model = sy_arg_text(a, "model");
    if (!name == !model)
        return sy_fail(err, SY_EARG,
                       "plan: expected --model-card NAME or -m MODEL, found %s; 'systole plan list' shows cards",
                       name ? "both" : "none");
    *precision = "fp8";
    *card = (struct sy_card){0};
    sy_status st =
        model ? read_checkpoint(a, model, card, precision, err) : sy_card_find(&a->app->env, name, card, err);
    if (sy_arg_given(a, "precision")) *precision = sy_arg_text(a, "precision");
    return st;
}

/* "A+F": chips of attention, and of everything else. */
static sy_status read_afd(struct sy_asked *p, struct sy_err *err)
{
    const char *text = sy_arg_text(p->a, "afd");
    if (!text) return SY_OK;
    char *end;
    long n[2] = {strtol(text, &end, 10), 0};
    if (end != text && *end == '+') n[1] = strtol(end + 1, &end, 10);
    if (*end || n[0] < 1 || n[1] < 1 || n[0] + n[1] > 65536)
        return sy_fail(err, SY_EARG, "--afd: expected A+F, chips of attention and of the rest, found '%.40s'", text);
    double *count = sy_arena_array(&p->a->arena, 1, sizeof *count);
    if (!count) return sy_fail(err, SY_ENOMEM, "no memory for --afd");
    count[0] = (double)(n[0] + n[1]);
    if (sy_arg_given(p->a, "chips") && (p->o.n_count != 1 || p->o.count[0] != count[0]) && sy_arg_given(p->a, "chip"))
        return sy_fail(err, SY_EARG, "--afd %s: makes %g chips, but --chips says '%.40s'", text, count[0],
                       sy_arg_text(p->a, "chips"));
    for (int i = 0; i < 2; i++) p->o.afd[i] = (int32_t)n[i];
    p->o.count = count;
    p->o.n_count = 1;
    return SY_OK;
}

/* Names with commas between, each once; into the arguments' arena. */
static sy_status read_names(struct sy_asked *p, const char *text, struct sy_err *err)
{
    const char **list = sy_arena_array(&p->a->arena, CHIP_MAX, sizeof *list);
    if (!list) return sy_fail(err, SY_ENOMEM, "no memory for --chip");
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, ",");
        if (n == 0 || p->o.n_chip == CHIP_MAX)
            return sy_fail(err, SY_EARG, "--chip: expected 1 to %d names with commas between, found '%.60s'",
                           CHIP_MAX, text);
        if (!(list[p->o.n_chip] = sy_arena_text(&p->a->arena, at, n)))
            return sy_fail(err, SY_ENOMEM, "no memory for --chip");
        size_t k = 0;
        while (strcmp(list[k], list[p->o.n_chip])) k++;
        p->o.n_chip += k == p->o.n_chip;
        at += n + (at[n] == ',');
    }
    p->o.chip = list;
    return SY_OK;
}

static sy_status read_chips(struct sy_asked *p, struct sy_err *err)
{
    struct sy_args *a = p->a;
    const char *names = sy_arg_text(a, "chip"), *counts = sy_arg_text(a, "chips");
    double *list;
    if (counts[0] < '0' || counts[0] > '9') {
        if (names) return sy_fail(err, SY_EARG, "--chips: expected numbers beside --chip, found '%.60s'", counts);
        names = counts;
        counts = "1,2,4,8";
    }
    if (!names)
        return sy_fail(err, SY_EARG, "plan: expected --chip NAMES, found none; 'systole plan list' shows them");
    sy_status st = read_names(p, names, err);
    if (!st) st = sy_bench_list(a, "chips", counts, 1, 65536, true, &list, &p->o.n_count, err);
    p->o.count = st ? NULL : list;
    return st;
}

sy_status sy_asked_read(struct sy_asked *p, struct sy_err *err)
{
    struct sy_args *a = p->a;
    const struct sy_env *env = &a->app->env;
    double *users;
    sy_status st = sy_plan_card(a, &p->card, &p->o.precision, err);
    if (!st) st = sy_prices_open(env, sy_arg_text(a, "tco"), &p->prices, err);
    if (!st) st = read_workload(p, err);
    if (!st) st = read_chips(p, err);
    if (!st) st = read_afd(p, err);
    if (!st && !p->o.trace && sy_arg_given(a, "replicas"))
        st = sy_fail(err, SY_EARG, "--replicas: expected --workload trace:FILE, which they share, found '%.40s'",
                     sy_arg_text(a, "workload"));
    if (!st) st = sy_slo_parse(sy_arg_text(a, "slo"), &p->o.slo, err);
    if (!st)
        st = sy_bench_list(a, "concurrency", sy_arg_text(a, "concurrency"), 1, 1 << 20, true, &users, &p->o.n_users,
                           err);
    if (!st) st = sy_plan_calibration(a, &p->calibration, err);
    if (st) return st;
    p->o.users = users;
    p->o.card = &p->card;
    p->o.prices = &p->prices;
    p->o.calibration = &p->calibration;
    p->o.framework = sy_arg_text(a, "engine");
    p->o.build = sy_arg_text(a, "build");
    p->o.tp = (int32_t)sy_arg_int(a, "tp");
    p->o.ep = (int32_t)sy_arg_int(a, "ep");
    p->o.dp = (int32_t)sy_arg_int(a, "dp-attention");
    p->o.pp = (int32_t)sy_arg_int(a, "pp");
    p->o.chunk = (int32_t)sy_arg_int(a, "chunk");
    p->o.n_replica = (int32_t)sy_arg_int(a, "replicas");
    p->o.memory_share = sy_arg_num(a, "memory-share");
    p->o.n_simulate = (int32_t)sy_arg_int(a, "simulate");
    p->o.seed = (uint64_t)sy_arg_int(a, "seed");
    return SY_OK;
}

void sy_asked_release(struct sy_asked *p)
{
    sy_calibration_release(&p->calibration);
    sy_workload_release(&p->trace);
    sy_delete(&p->a->app->env, p->trace_text);
}
