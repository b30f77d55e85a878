/* serving.c - the results of a load: a table, and JSON as InferenceX names things. */
#include "app/bench/serving.h"

#include <stdio.h>
#include <string.h>

sy_status sy_serving_check(const struct sy_args *a, struct sy_err *err)
{
    size_t n;
    const char *const *given = sy_arg_texts(a, "field", &n);
    for (size_t i = 0; i < n; i++) {
        size_t name = strcspn(given[i], "=");
        if (name == 0 || name > 60 || !given[i][name])
            return sy_fail(err, SY_EARG, "--field: expected NAME=VALUE, found '%.60s'", given[i]);
    }
    return SY_OK;
}

static void print_row(FILE *f, const char *name, const struct sy_summary *v)
{
    fprintf(f, "  %-5s %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, v->mean * 1e3, v->median * 1e3, v->p90 * 1e3,
            v->p99 * 1e3, v->p999 * 1e3);
}

void sy_serving_print(FILE *f, const struct sy_load_seen *s)
{
    double d = s->duration_s > 0 ? s->duration_s : 1;
    int64_t failed = s->n_request - s->n_done;
    if (s->concurrency > 0) fprintf(f, "concurrency %g: ", s->concurrency);
    else if (s->rate > 0) fprintf(f, "rate %g/s: ", s->rate);
    else fprintf(f, "as recorded: ");
    fprintf(f,
            "%lld requests, %lld failed, %.2f s; %.2f req/s, %.1f in + %.1f out = %.1f tok/s; client at %.1f %% of a "
            "CPU\n",
            (long long)s->n_request, (long long)failed, s->duration_s, (double)s->n_done / d, (double)s->n_in / d,
            (double)s->n_out / d, (double)(s->n_in + s->n_out) / d, s->cpu_share * 100);
    for (int i = 0; i < s->n_error; i++)
        fprintf(f, "  %lld x %s%s%s\n", (long long)s->error[i].n, s->error[i].kind,
                s->error[i].example[0] ? ": " : "", s->error[i].example);
    if (s->n_short) fprintf(f, "  %lld answers have fewer tokens than were asked for\n", (long long)s->n_short);
    if (s->n_done == 0) return;
    fprintf(f, "  %-5s %10s %10s %10s %10s %10s\n", "ms", "mean", "median", "p90", "p99", "p99.9");
    print_row(f, "TTFT", &s->ttft);
    print_row(f, "TPOT", &s->tpot);
    print_row(f, "ITL", &s->itl);
    print_row(f, "E2E", &s->e2e);
    fflush(f);
}

struct sy_point sy_serving_point(const struct sy_load_seen *s)
{
    double d = s->duration_s > 0 ? s->duration_s : 1;
    return (struct sy_point){.load = s->concurrency > 0 ? s->concurrency : s->rate,
                             .in_tok_s = (double)s->n_in / d,
                             .out_tok_s = (double)s->n_out / d,
                             .interactivity = s->tpot.median > 0 ? 1 / s->tpot.median : 0,
                             .e2e_s = s->e2e.median};
}

/* mean_ttft and so on, in seconds; of TPOT also its inverse, the interactivity, under each statistic's name. */
static void put_summary(struct sy_jout *j, const char *name, const struct sy_summary *v, bool inverse)
{
    const struct {
        const char *name;
        double v;
    } stat[] = {{"mean", v->mean}, {"median", v->median}, {"std", v->std},
                {"p90", v->p90},   {"p99", v->p99},       {"p99.9", v->p999}};
    for (size_t i = 0; i < SY_COUNT(stat); i++) {
        char key[32];
        snprintf(key, sizeof key, "%s_%s", stat[i].name, name);
        if (!inverse) sy_jout_num(j, key, stat[i].v);
        else sy_jout_num(j, key, stat[i].v > 0 ? 1 / stat[i].v : 0);
    }
}

struct sy_serving_says sy_serving_usual(const struct sy_args *a, const char *model)
{
    int32_t chips = (int32_t)sy_arg_int(a, "chips");
    /* Chips are tp * pp there; how a server uses them is not known here. */
    return (struct sy_serving_says){
        .model = model, .hw = "cpu", .figures = "measured", .chips = chips, .tp = chips, .price = sy_bench_price(a)};
}

static void put_fields(struct sy_jout *j, const struct sy_args *a, const struct sy_serving_says *says)
{
    const struct {
        const char *name, *value;
    } known[] = {{"hw", says->hw ? says->hw : "unknown"},
                 {"framework", says->framework ? says->framework : "unknown"},
                 {"precision", says->precision ? says->precision : "unknown"},
                 {"spec_decoding", "none"},
                 {"image", ""}};
    size_t n;
    const char *const *given = sy_arg_texts(a, "field", &n);
    for (size_t k = 0; k < SY_COUNT(known); k++) {
        size_t len = strlen(known[k].name);
        bool over = false;
        for (size_t i = 0; i < n; i++) over |= !strncmp(given[i], known[k].name, len) && given[i][len] == '=';
        if (!over) sy_jout_text(j, known[k].name, known[k].value);
    }
    for (size_t i = 0; i < n; i++) {
        const char *eq = strchr(given[i], '=');
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(eq - given[i]), given[i]);
        sy_jout_text(j, name, eq + 1);
    }
    sy_jout_text(j, "model", says->model);
    sy_jout_text(j, "infmax_model_prefix", says->model);
    if (says->configuration) sy_jout_text(j, "configuration", says->configuration);
    if (says->figures) sy_jout_text(j, "figures", says->figures);
}

static void put_layout(struct sy_jout *j, const struct sy_serving_says *says)
{
    sy_jout_bool(j, "disagg", false);
    sy_jout_bool(j, "is_multinode", false);
    sy_jout_int(j, "physicalChips", says->chips);
    sy_jout_int(j, "tp", says->tp > 0 ? says->tp : 1);
    sy_jout_int(j, "pp", says->pp > 0 ? says->pp : 1);
    sy_jout_int(j, "ep", says->ep > 0 ? says->ep : 1);
    sy_jout_int(j, "dp", says->dp > 0 ? says->dp : 1);
    sy_jout_text(j, "dp_attention", says->dp > 1 ? "true" : "false");
}

void sy_serving_put(struct sy_jout *j, const struct sy_args *a, const struct sy_serving_says *says,
                    const struct sy_load_seen *s, const struct sy_point *p)
{
    double chips = says->chips, d = s->duration_s > 0 ? s->duration_s : 1;
    sy_jout_open(j, NULL, '{');
    put_fields(j, a, says);
    sy_jout_num(j, "conc", s->concurrency);
    if (s->rate > 0) sy_jout_num(j, "request_rate", s->rate);
    else sy_jout_text(j, "request_rate", s->concurrency > 0 ? "inf" : "trace");
    sy_jout_int(j, "isl", sy_arg_int(a, "input-len"));
    sy_jout_int(j, "osl", sy_arg_int(a, "output-len"));
    put_layout(j, says);
    sy_jout_num(j, "tput_per_gpu", (p->in_tok_s + p->out_tok_s) / chips);
    sy_jout_num(j, "output_tput_per_gpu", p->out_tok_s / chips);
    sy_jout_num(j, "input_tput_per_gpu", p->in_tok_s / chips);
    put_summary(j, "ttft", &s->ttft, false);
    put_summary(j, "tpot", &s->tpot, false);
    put_summary(j, "intvty", &s->tpot, true);
    if (s->itl.n) put_summary(j, "itl", &s->itl, false);
    put_summary(j, "e2el", &s->e2e, false);
    sy_jout_num(j, "duration", s->duration_s);
    sy_jout_int(j, "num_prompts", s->n_request);
    sy_jout_int(j, "completed", s->n_done);
    sy_jout_int(j, "failed", s->n_request - s->n_done);
    sy_jout_int(j, "short_answers", s->n_short);
    sy_jout_int(j, "total_input_tokens", s->n_in);
    sy_jout_int(j, "total_output_tokens", s->n_out);
    sy_jout_num(j, "request_throughput", (double)s->n_done / d);
    sy_jout_num(j, "output_throughput", p->out_tok_s);
    sy_jout_num(j, "total_token_throughput", p->in_tok_s + p->out_tok_s);
    sy_jout_num(j, "client_cpu_share", s->cpu_share);
    sy_jout_open(j, "errors", '{');
    for (int i = 0; i < s->n_error; i++) sy_jout_int(j, s->error[i].kind, s->error[i].n);
    sy_jout_close(j, '}');
    if (says->price.chip_hour > 0) sy_dollars_json(j, p);
    sy_jout_close(j, '}');
}
