#include "bench/report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"

/* ---- JSON -------------------------------------------------------------------------------------------------------
 */

static void begin(struct sy_jout *j, const char *name)
{
    if (j->more) sy_buf_char(j->b, ',');
    j->more = true;
    if (!name) return;
    sy_json_quote(j->b, name, strlen(name));
    sy_buf_char(j->b, ':');
}

void sy_jout_open(struct sy_jout *j, const char *name, char bracket)
{
    begin(j, name);
    sy_buf_char(j->b, bracket);
    j->more = false;
}

void sy_jout_close(struct sy_jout *j, char bracket)
{
    sy_buf_char(j->b, bracket);
    j->more = true;
}

void sy_jout_line(struct sy_jout *j)
{
    if (j->more) sy_buf_char(j->b, ',');
    sy_buf_char(j->b, '\n');
    j->more = false;
}

void sy_jout_num(struct sy_jout *j, const char *name, double v)
{
    begin(j, name);
    if (isfinite(v)) sy_buf_printf(j->b, "%.9g", v);
    else sy_buf_text(j->b, "null");
}

void sy_jout_int(struct sy_jout *j, const char *name, int64_t v)
{
    begin(j, name);
    sy_buf_printf(j->b, "%lld", (long long)v);
}

void sy_jout_bool(struct sy_jout *j, const char *name, bool v)
{
    begin(j, name);
    sy_buf_text(j->b, v ? "true" : "false");
}

void sy_jout_text(struct sy_jout *j, const char *name, const char *v)
{
    begin(j, name);
    if (v) sy_json_quote(j->b, v, strlen(v));
    else sy_buf_text(j->b, "null");
}

sy_status sy_report_check(const char *path, struct sy_err *err)
{
    if (!strcmp(path, "-")) return SY_OK;
    bool there = access(path, F_OK) == 0;
    FILE *f = fopen(path, "a");
    if (!f) return sy_fail(err, SY_EIO, "cannot write '%s': %s", path, strerror(errno));
    fclose(f);
    if (!there) unlink(path);
    return SY_OK;
}

sy_status sy_report_write(const struct sy_buf *b, const char *path, struct sy_err *err)
{
    if (b->failed) return sy_fail(err, SY_ENOMEM, "no memory for the report");
    bool std = !strcmp(path, "-");
    FILE *f = std ? stdout : fopen(path, "w");
    if (!f) return sy_fail(err, SY_EIO, "cannot write '%s': %s", path, strerror(errno));
    bool ok = fwrite(b->at, 1, b->len, f) == b->len && fflush(f) == 0;
    if (!std && fclose(f)) ok = false;
    if (ok) return SY_OK;
    sy_status st = sy_fail(err, SY_EIO, "cannot write '%s': %s", path, strerror(errno));
    if (!std && sy_file_exists(path)) unlink(path);
    return st;
}

/* ---- money ------------------------------------------------------------------------------------------------------
 */

static double per_million(struct sy_price p, double tok_s)
{
    return tok_s > 0 ? p.chip_hour * p.chips / (3600 * tok_s / 1e6) : INFINITY;
}

struct sy_dollars sy_dollars_of(struct sy_price p, double in_tok_s, double out_tok_s)
{
    return (struct sy_dollars){
        .total = per_million(p, in_tok_s + out_tok_s),
        .input = per_million(p, in_tok_s),
        .output = per_million(p, out_tok_s),
        .tok_per_dollar = p.chip_hour > 0 ? (in_tok_s + out_tok_s) * 3600 / (p.chip_hour * p.chips) : 0,
    };
}

void sy_dollars_json(struct sy_jout *j, const struct sy_point *p)
{
    sy_jout_num(j, "usd_per_mtok_total", p->cost.total);
    sy_jout_num(j, "usd_per_mtok_input", p->cost.input);
    sy_jout_num(j, "usd_per_mtok_output", p->cost.output);
    sy_jout_num(j, "tokens_per_usd", p->cost.tok_per_dollar);
    sy_jout_bool(j, "pareto_interactivity", p->best_interactivity);
    sy_jout_bool(j, "pareto_e2e", p->best_e2e);
}

/* ---- a sweep ----------------------------------------------------------------------------------------------------
 */

/* How good a point is for a user: more is better. */
static double by_interactivity(const struct sy_point *p) { return p->interactivity; }
static double by_e2e(const struct sy_point *p) { return -p->e2e_s; }

static bool beats(double cost, double good, double than_cost, double than_good)
{
    return cost <= than_cost && good >= than_good && (cost < than_cost || good > than_good);
}

void sy_pareto(struct sy_point *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        p[i].best_interactivity = p[i].best_e2e = isfinite(p[i].cost.total);
        for (size_t k = 0; k < n; k++) {
            double a = p[k].cost.total, b = p[i].cost.total;
            if (beats(a, by_interactivity(&p[k]), b, by_interactivity(&p[i]))) p[i].best_interactivity = false;
            if (beats(a, by_e2e(&p[k]), b, by_e2e(&p[i]))) p[i].best_e2e = false;
        }
    }
}

/* The unprinted frontier point that is best for a user; NULL: none is left. limit: what the last one had. */
static const struct sy_point *next_best(const struct sy_point *p, size_t n, bool e2e, double limit,
                                        const struct sy_point *last)
{
    const struct sy_point *best = NULL;
    double (*good)(const struct sy_point *) = e2e ? by_e2e : by_interactivity;
    for (size_t i = 0; i < n; i++) {
        if (!(e2e ? p[i].best_e2e : p[i].best_interactivity)) continue;
        /* Equal points are all on the frontier; they are told apart by where they stand. */
        bool left = !last || good(&p[i]) < limit || (good(&p[i]) == limit && &p[i] > last);
        if (left && (!best || good(&p[i]) > good(best))) best = &p[i];
    }
    return best;
}

static void print_frontier(const struct sy_point *p, size_t n, const char *what, bool e2e, struct sy_buf *b)
{
    sy_buf_printf(b, "\ncost against %s, where no other %s is better in both:\n", e2e ? "E2E" : "interactivity",
                  what);
    sy_buf_printf(b, "%12s %14s %12s %12s %12s %14s\n", what, e2e ? "E2E s" : "tok/s/user", "$/M total", "$/M input",
                  "$/M output", "tokens/$");
    const struct sy_point *at = NULL;
    double limit = 0;
    while ((at = next_best(p, n, e2e, limit, at))) {
        limit = e2e ? by_e2e(at) : by_interactivity(at);
        sy_buf_printf(b, "%12g %14.3f %12.4f %12.4f %12.4f %14.0f\n", at->load, e2e ? at->e2e_s : at->interactivity,
                      at->cost.total, at->cost.input, at->cost.output, at->cost.tok_per_dollar);
    }
}

void sy_pareto_print(const struct sy_point *p, size_t n, const char *what, struct sy_buf *b)
{
    print_frontier(p, n, what, false, b);
    print_frontier(p, n, what, true, b);
}
