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

static void put_fields(struct sy_jout *j, const struct sy_args *a, const char *model)
{
    static const struct {
        const char *name, *value;
    } fixed[] = {
        {"hw", "cpu"}, {"framework", "unknown"}, {"precision", "unknown"}, {"spec_decoding", "none"}, {"image", ""}};
    size_t n;
    const char *const *given = sy_arg_texts(a, "field", &n);
    for (size_t k = 0; k < SY_COUNT(fixed); k++) {
        size_t len = strlen(fixed[k].name);
        bool over = false;
        for (size_t i = 0; i < n; i++) over |= !strncmp(given[i], fixed[k].name, len) && given[i][len] == '=';
        if (!over) sy_jout_text(j, fixed[k].name, fixed[k].value);
    }
    for (size_t i = 0; i < n; i++) {
        const char *eq = strchr(given[i], '=');
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(eq - given[i]), given[i]);
        sy_jout_text(j, name, eq + 1);
    }
    sy_jout_text(j, "model", model);
    sy_jout_text(j, "infmax_model_prefix", model);
}

static void put_point(struct sy_jout *j, const struct sy_args *a, const struct sy_load_opt *o,
                      const struct sy_load_seen *s, const struct sy_point *p)
{
    double chips = (double)sy_arg_int(a, "chips"), d = s->duration_s > 0 ? s->duration_s : 1;
    sy_jout_open(j, NULL, '{');
    put_fields(j, a, o->model);
    sy_jout_num(j, "conc", s->concurrency);
    if (s->rate > 0) sy_jout_num(j, "request_rate", s->rate);
    else sy_jout_text(j, "request_rate", s->concurrency > 0 ? "inf" : "trace");
    sy_jout_int(j, "isl", sy_arg_int(a, "input-len"));
    sy_jout_int(j, "osl", sy_arg_int(a, "output-len"));
    sy_jout_bool(j, "disagg", false);
    sy_jout_bool(j, "is_multinode", false);
    /* Chips are tp * pp there; how a server uses them is not known here. */
    sy_jout_int(j, "tp", (int64_t)chips);
    sy_jout_int(j, "pp", 1);
    sy_jout_int(j, "ep", 1);
    sy_jout_text(j, "dp_attention", "false");
    sy_jout_num(j, "tput_per_gpu", (p->in_tok_s + p->out_tok_s) / chips);
    sy_jout_num(j, "output_tput_per_gpu", p->out_tok_s / chips);
    sy_jout_num(j, "input_tput_per_gpu", p->in_tok_s / chips);
    put_summary(j, "ttft", &s->ttft, false);
    put_summary(j, "tpot", &s->tpot, false);
    put_summary(j, "intvty", &s->tpot, true);
    put_summary(j, "itl", &s->itl, false);
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
    if (sy_arg_num(a, "price") > 0) sy_dollars_json(j, p);
    sy_jout_close(j, '}');
}

sy_status sy_serving_json(const struct sy_args *a, const struct sy_load_opt *o, const struct sy_load_seen *s,
                          const struct sy_point *p, size_t n, struct sy_err *err)
{
    struct sy_buf b;
    sy_buf_init(&b, &a->app->env, 0);
    struct sy_jout j = {&b, false};
    sy_jout_open(&j, NULL, '{');
    sy_jout_open(&j, "results", '[');
    for (size_t i = 0; i < n; i++) {
        sy_jout_line(&j);
        put_point(&j, a, o, &s[i], &p[i]);
    }
    sy_buf_char(&b, '\n');
    sy_jout_close(&j, ']');
    sy_jout_text(&j, "url", o->client.url);
    sy_jout_text(&j, "endpoint", o->client.chat ? "chat" : "completions");
    sy_jout_text(&j, "prompts", o->ids ? "token ids" : "text");
    sy_jout_int(&j, "seed", (int64_t)o->seed);
    sy_jout_text(&j, "version", SY_VERSION);
    sy_jout_close(&j, '}');
    sy_buf_char(&b, '\n');
    sy_status st = sy_report_write(&b, sy_arg_text(a, "json"), err);
    sy_buf_release(&b);
    return st;
}
