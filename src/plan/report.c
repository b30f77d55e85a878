#include "plan/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/data.h"
#include "bench/report.h"
#include "bench/svg.h"

enum { WIDE = 760, HIGH = 430, LEFT = 74, RIGHT = 20, TOP = 26, BOTTOM = 52, FRONT_MAX = 4096 };

static const struct {
    const char *name, *x, *y;
    bool x_more, y_more; /* more is better */
} charts[SY_CHART_COUNT] = {
    {"Cost against interactivity", "tokens/s a user sees", "$ per million tokens", true, false},
    {"Cost against time to the whole answer", "E2E, seconds", "$ per million tokens", false, false},
    {"Throughput against interactivity", "tokens/s a user sees", "tokens/s per chip", true, true},
    {"Tokens per dollar against interactivity", "tokens/s a user sees", "million tokens per $", true, true},
    {"Tokens per megawatt against interactivity", "tokens/s a user sees", "tokens/s per MW", true, true},
};

const char *sy_chart_name(enum sy_chart c) { return (unsigned)c < SY_CHART_COUNT ? charts[c].name : "?"; }

static double x_of(const struct sy_report_point *p, enum sy_chart c)
{
    return c == SY_CHART_COST_E2E ? p->e2e_s : p->tok_s_user;
}

static double y_of(const struct sy_report_point *p, enum sy_chart c)
{
    switch (c) {
    case SY_CHART_COST_USER:
    case SY_CHART_COST_E2E: return p->usd_mtok;
    case SY_CHART_TPUT_USER: return p->tok_s_chip;
    case SY_CHART_DOLLAR_USER: return 1 / p->usd_mtok;
    case SY_CHART_WATT_USER: return p->tok_s_mw;
    case SY_CHART_COUNT: break;
    }
    return NAN;
}

static bool drawn(const struct sy_report_point *p, enum sy_chart c)
{
    double x = x_of(p, c), y = y_of(p, c);
    return isfinite(x) && isfinite(y) && x > 0 && y > 0;
}

static bool on_front(const struct sy_report *r, size_t i, enum sy_chart c)
{
    double sx = charts[c].x_more ? 1 : -1, sy = charts[c].y_more ? 1 : -1;
    double x = sx * x_of(&r->point[i], c), y = sy * y_of(&r->point[i], c);
    for (size_t k = 0; k < r->n; k++) {
        if (k == i || strcmp(r->point[k].series, r->point[i].series) || !drawn(&r->point[k], c)) continue;
        double a = sx * x_of(&r->point[k], c), b = sy * y_of(&r->point[k], c);
        if (a >= x && b >= y && (a > x || b > y || k < i)) return false;
    }
    return true;
}

static size_t series_of(const struct sy_report *r, const char **name)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) {
        size_t k = 0;
        while (k < n && strcmp(name[k], r->point[i].series)) k++;
        if (k == n && n < SY_SVG_COLOURS) name[n++] = r->point[i].series;
    }
    return n;
}

/* ---- a chart ----------------------------------------------------------------------------------------------------
 */

static struct sy_svg_plot plot_of(const struct sy_report *r, enum sy_chart c)
{
    struct sy_svg_plot p = {.left = LEFT, .right = WIDE - RIGHT, .top = TOP, .bottom = HIGH - BOTTOM};
    sy_svg_clear(&p);
    for (size_t i = 0; i < r->n; i++)
        if (drawn(&r->point[i], c)) sy_svg_hold(&p, x_of(&r->point[i], c), y_of(&r->point[i], c));
    sy_svg_pad(&p);
    return p;
}

static void front_line(const struct sy_report *r, enum sy_chart c, const struct sy_svg_plot *a, const char *name,
                       size_t s, struct sy_buf *b)
{
    double last = 0;
    bool first = true;
    sy_buf_printf(b, "<path class=\"l\" data-s=\"%zu\" stroke=\"%s\" d=\"", s, sy_svg_colour[s]);
    for (size_t done = 0; done < r->n && done < FRONT_MAX; done++) {
        const struct sy_report_point *next = NULL;
        for (size_t i = 0; i < r->n; i++)
            if (!strcmp(r->point[i].series, name) && drawn(&r->point[i], c) &&
                (first || x_of(&r->point[i], c) > last) && on_front(r, i, c) &&
                (!next || x_of(&r->point[i], c) < x_of(next, c)))
                next = &r->point[i];
        if (!next) break;
        last = x_of(next, c);
        sy_buf_printf(b, "%c%.1f %.1f", first ? 'M' : 'L', sy_svg_x(a, last), sy_svg_y(a, y_of(next, c)));
        first = false;
    }
    sy_buf_text(b, "\"/>");
}

static void dot(const struct sy_report *r, size_t i, enum sy_chart c, const struct sy_svg_plot *a, size_t s,
                struct sy_buf *b)
{
    const struct sy_report_point *p = &r->point[i];
    bool best = on_front(r, i, c);
    sy_buf_printf(b, "<circle class=\"d%s\" data-s=\"%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\" fill=\"%s\"><title>",
                  best ? "" : " p", s, sy_svg_x(a, x_of(p, c)), sy_svg_y(a, y_of(p, c)), best ? "4.2" : "2.6",
                  sy_svg_colour[s]);
    sy_svg_escape(b, p->series);
    sy_buf_text(b, ", ");
    sy_svg_escape(b, p->label);
    sy_buf_printf(b, "\n%.4g $/M tokens, %.0f tokens/s/chip, %.1f tokens/s/user, E2E %.2f s\n", p->usd_mtok,
                  p->tok_s_chip, p->tok_s_user, p->e2e_s);
    sy_svg_escape(b, p->figures);
    sy_buf_text(b, "</title></circle>");
}

void sy_report_svg(const struct sy_report *r, enum sy_chart c, struct sy_buf *b)
{
    const char *name[SY_SVG_COLOURS];
    size_t n = series_of(r, name);
    struct sy_svg_plot a = plot_of(r, c);
    sy_svg_open(b, WIDE, HIGH, charts[c].name);
    sy_svg_axes(b, &a, charts[c].x, charts[c].y, NULL, 0);
    for (size_t s = 0; s < n; s++) front_line(r, c, &a, name[s], s, b);
    for (size_t i = 0; i < r->n; i++)
        for (size_t s = 0; s < n; s++)
            if (!strcmp(name[s], r->point[i].series) && drawn(&r->point[i], c)) dot(r, i, c, &a, s, b);
    double at = LEFT + 4;
    for (size_t s = 0; s < n; s++) at += sy_svg_name(b, at, 16, s, name[s]);
    sy_svg_close(b);
}

/* ---- tables ------------------------------------------------------------------------------------------------------
 */

static const char *const columns[] = {"series", "configuration", "users",      "tokens/s/chip", "tokens/s/user",
                                      "TTFT s", "E2E s",         "$/M tokens", "tokens/s/MW",   "figures"};

static void numbers_of(const struct sy_report_point *p, double *v)
{
    v[0] = p->users;
    v[1] = p->tok_s_chip;
    v[2] = p->tok_s_user;
    v[3] = p->ttft_s;
    v[4] = p->e2e_s;
    v[5] = p->usd_mtok;
    v[6] = p->tok_s_mw;
}

/* RFC 4180. */
static void csv_text(struct sy_buf *b, const char *s)
{
    sy_buf_char(b, '"');
    for (; *s; s++) {
        if (*s == '"') sy_buf_char(b, '"');
        sy_buf_char(b, *s);
    }
    sy_buf_char(b, '"');
}

void sy_report_csv(const struct sy_report *r, struct sy_buf *b)
{
    for (size_t i = 0; i < SY_COUNT(columns); i++) {
        if (i) sy_buf_char(b, ',');
        csv_text(b, columns[i]);
    }
    sy_buf_text(b, "\r\n");
    for (size_t i = 0; i < r->n; i++) {
        double v[7];
        numbers_of(&r->point[i], v);
        csv_text(b, r->point[i].series);
        sy_buf_char(b, ',');
        csv_text(b, r->point[i].label);
        for (int k = 0; k < 7; k++)
            if (isfinite(v[k])) sy_buf_printf(b, ",%.6g", v[k]);
            else sy_buf_char(b, ',');
        sy_buf_char(b, ',');
        csv_text(b, r->point[i].figures);
        sy_buf_text(b, "\r\n");
    }
}

/* ---- the page ----------------------------------------------------------------------------------------------------
 */

static const char *const axis_keys[SY_CHART_COUNT][2] = {
    {"user", "usd"}, {"e2e", "usd"}, {"user", "tput"}, {"user", "per_usd"}, {"user", "mw"}};

static size_t n_drawn(const struct sy_report *r, enum sy_chart c)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) n += drawn(&r->point[i], c);
    return n;
}

static size_t index_of(const char *const *name, size_t n, const char *s)
{
    size_t k = 0;
    while (k < n && strcmp(name[k], s)) k++;
    return k;
}

static void put_points(const struct sy_report *r, const char *const *name, size_t n, struct sy_jout *j)
{
    sy_jout_open(j, "points", '[');
    for (size_t i = 0; i < r->n; i++) {
        const struct sy_report_point *p = &r->point[i];
        int64_t front = 0;
        for (int c = 0; c < SY_CHART_COUNT; c++)
            if (drawn(p, (enum sy_chart)c) && on_front(r, i, (enum sy_chart)c)) front |= 1 << c;
        sy_jout_line(j);
        sy_jout_open(j, NULL, '{');
        sy_jout_int(j, "s", (int64_t)index_of(name, n, p->series));
        sy_jout_text(j, "label", p->label);
        sy_jout_text(j, "figures", p->figures);
        sy_jout_int(j, "front", front);
        sy_jout_num(j, "user", p->tok_s_user);
        sy_jout_num(j, "tput", p->tok_s_chip);
        sy_jout_num(j, "usd", p->usd_mtok);
        sy_jout_num(j, "per_usd", 1 / p->usd_mtok);
        sy_jout_num(j, "mw", p->tok_s_mw);
        sy_jout_num(j, "ttft", p->ttft_s);
        sy_jout_num(j, "e2e", p->e2e_s);
        sy_jout_close(j, '}');
    }
    sy_jout_close(j, ']');
}

static void put_data(const struct sy_report *r, const char *const *name, size_t n, struct sy_buf *b)
{
    struct sy_jout j = {.b = b};
    sy_jout_open(&j, NULL, '{');
    sy_jout_open(&j, "series", '[');
    for (size_t s = 0; s < n; s++) sy_jout_text(&j, NULL, name[s]);
    sy_jout_close(&j, ']');
    sy_jout_open(&j, "charts", '[');
    for (int c = 0; c < SY_CHART_COUNT; c++) {
        char id[16];
        if (!n_drawn(r, (enum sy_chart)c)) continue;
        snprintf(id, sizeof id, "c%d", c);
        sy_jout_open(&j, NULL, '{');
        sy_jout_text(&j, "id", id);
        sy_jout_int(&j, "bit", 1 << c);
        sy_jout_text(&j, "x", axis_keys[c][0]);
        sy_jout_text(&j, "y", axis_keys[c][1]);
        sy_jout_text(&j, "xname", charts[c].x);
        sy_jout_text(&j, "yname", charts[c].y);
        sy_jout_close(&j, '}');
    }
    sy_jout_close(&j, ']');
    put_points(r, name, n, &j);
    sy_jout_close(&j, '}');
}

/* The cheapest of each series; with a promise, among those that keep it. */
static void put_cards(const struct sy_report *r, const char *const *name, size_t n, struct sy_buf *b)
{
    sy_buf_text(b, "<div class=cards>");
    for (size_t s = 0; s < n; s++) {
        const struct sy_report_point *best = NULL;
        bool money = n_drawn(r, SY_CHART_COST_USER) > 0;
        for (size_t i = 0; i < r->n; i++) {
            const struct sy_report_point *p = &r->point[i];
            if (strcmp(p->series, name[s]) || (r->promise && !p->kept) || !(p->tok_s_chip > 0)) continue;
            if (!best || (money ? p->usd_mtok < best->usd_mtok : p->tok_s_chip > best->tok_s_chip)) best = p;
        }
        sy_buf_printf(b, "<div class=card data-s=%zu><span>", s);
        sy_svg_escape(b, name[s]);
        if (!best) {
            sy_buf_text(b, "</span><b>keeps no promise</b><span>no configuration tried is fast enough</span></div>");
            continue;
        }
        sy_buf_text(b, "</span><b>");
        if (money)
            sy_buf_printf(b, "$%.3g</b><span>per million tokens</span><span>%.0f tokens/s/chip, ", best->usd_mtok,
                          best->tok_s_chip);
        else sy_buf_printf(b, "%.0f</b><span>tokens/s/chip</span><span>", best->tok_s_chip);
        sy_buf_printf(b, "%.1f tokens/s a user</span><span>", best->tok_s_user);
        sy_svg_escape(b, best->label);
        sy_buf_text(b, "</span><span>");
        sy_svg_escape(b, best->figures);
        sy_buf_text(b, "</span></div>");
    }
    sy_buf_text(b, "</div>");
}

struct curve {
    double x[FRONT_MAX], y[FRONT_MAX];
    size_t n;
};

/* A series' frontier, ascending in x. */
static void curve_of(const struct sy_report *r, const char *series, enum sy_chart c, struct curve *v)
{
    v->n = 0;
    for (size_t i = 0; i < r->n && v->n < FRONT_MAX; i++) {
        const struct sy_report_point *p = &r->point[i];
        if (strcmp(p->series, series) || !drawn(p, c) || !on_front(r, i, c)) continue;
        size_t at = v->n++;
        for (; at > 0 && v->x[at - 1] > x_of(p, c); at--) {
            v->x[at] = v->x[at - 1];
            v->y[at] = v->y[at - 1];
        }
        v->x[at] = x_of(p, c);
        v->y[at] = y_of(p, c);
    }
}

/* Four digits, no exponent, and as many decimals as the figures above and below have. */
static void figure(struct sy_buf *b, double v)
{
    double a = fabs(v), unit = a >= 1e4 ? pow(10, floor(log10(a)) - 3) : 0;
    if (unit > 0) v = round(v / unit) * unit;
    if (a > 0 && a < 0.001) sy_buf_printf(b, "%.4g", v);
    else sy_buf_printf(b, "%.*f", a >= 100 ? 0 : a >= 10 ? 2 : a >= 1 ? 3 : 4, v);
}

static void put_row(const struct curve *v, size_t n, double at, bool low, struct sy_buf *b)
{
    double y[SY_SVG_COLOURS];
    size_t best = n;
    for (size_t s = 0; s < n; s++) {
        y[s] = sy_monotone_at(v[s].x, v[s].y, v[s].n, at);
        if (isfinite(y[s]) && (best == n || (low ? y[s] < y[best] : y[s] > y[best]))) best = s;
    }
    if (best == n) return;
    sy_buf_printf(b, "<tr><td class=n>%g", at);
    for (size_t s = 0; s < n; s++) {
        if (isfinite(y[s])) {
            sy_buf_printf(b, "<td class=\"n%s\">", s == best && n > 1 ? " low" : "");
            figure(b, y[s]);
        } else {
            sy_buf_text(b, "<td class=n>unreachable");
        }
    }
}

static void section(struct sy_buf *b, const char *title, const char *about, const char *id)
{
    sy_buf_printf(b,
                  "<section><div class=head><div><h2>%s</h2><p>%s</p></div><button type=button data-copy=%s>copy as "
                  "CSV</button>"
                  "</div><div class=w><table id=%s><thead><tr>",
                  title, about, id, id);
}

/* What each series gives when users are served alike: between its points, never outside of them. */
static sy_status put_equal(const struct sy_report *r, const char *const *name, size_t n, enum sy_chart c,
                           const char *id, struct sy_buf *b)
{
    static const double at[] = {5, 10, 15, 20, 30, 40, 50, 75, 100, 125, 150, 200, 250, 300, 400, 500};
    if (!n_drawn(r, c)) return SY_OK;
    struct curve *v = sy_new_array(b->env, n, sizeof *v);
    if (!v) return SY_ENOMEM;
    for (size_t s = 0; s < n; s++) curve_of(r, name[s], c, &v[s]);
    section(b, c == SY_CHART_COST_USER ? "Cost at equal interactivity" : "Throughput at equal interactivity",
            c == SY_CHART_COST_USER
                ? "$ per million tokens of both kinds, along each frontier, monotone between its points"
                : "tokens/s of both kinds per physical chip, along each frontier, monotone between its points",
            id);
    sy_buf_text(b, "<th scope=col class=n>tokens/s a user");
    for (size_t s = 0; s < n; s++) {
        sy_buf_text(b, "<th scope=col class=n>");
        sy_svg_escape(b, name[s]);
    }
    sy_buf_text(b, "<tbody>");
    for (size_t i = 0; i < SY_COUNT(at); i++) put_row(v, n, at[i], c == SY_CHART_COST_USER, b);
    sy_buf_text(b, "</table></div></section>");
    sy_delete(b->env, v);
    return SY_OK;
}

static void put_table(const struct sy_report *r, struct sy_buf *b)
{
    section(
        b, "All points",
        "a click on a head sorts; those that no other of their series beats in cost and speed come in strong type",
        "points");
    for (size_t i = 0; i < SY_COUNT(columns); i++) {
        sy_buf_printf(b, "<th scope=col%s>", i >= 2 && i + 1 < SY_COUNT(columns) ? " class=n" : "");
        sy_svg_escape(b, columns[i]);
    }
    sy_buf_text(b, "<tbody>");
    for (size_t i = 0; i < r->n; i++) {
        const struct sy_report_point *p = &r->point[i];
        double v[7];
        numbers_of(p, v);
        bool best = drawn(p, SY_CHART_COST_USER) && on_front(r, i, SY_CHART_COST_USER);
        sy_buf_printf(b, "<tr%s><td>", best ? " class=best" : "");
        sy_svg_escape(b, p->series);
        sy_buf_text(b, "<td>");
        sy_svg_escape(b, p->label);
        for (int k = 0; k < 7; k++) {
            sy_buf_text(b, "<td class=n>");
            if (isfinite(v[k])) figure(b, v[k]);
        }
        sy_buf_text(b, "<td>");
        sy_svg_escape(b, p->figures);
    }
    sy_buf_text(b, "</table></div></section>");
}

static void put_head(const struct sy_report *r, const char *css, struct sy_buf *b)
{
    sy_buf_text(b, "<!doctype html><html lang=en data-theme=light><meta charset=utf-8><meta name=viewport "
                   "content=\"width=device-width\"><title>");
    sy_svg_escape(b, r->title);
    sy_buf_printf(b, "</title><style>%s</style><main><header><div><h1>", css);
    sy_svg_escape(b, r->title);
    sy_buf_text(b, "</h1><p class=about>");
    for (const char *s = r->about; *s;) {
        size_t n = strcspn(s, "\n");
        char line[640];
        snprintf(line, sizeof line, "%.*s", (int)(n < sizeof line ? n : sizeof line - 1), s);
        sy_svg_escape(b, line);
        s += n + (s[n] == '\n');
        if (*s) sy_buf_text(b, "<br>");
    }
    sy_buf_text(b, "</p></div><button type=button id=theme>light / dark</button></header>");
    if (!r->promise) return;
    sy_buf_text(b, "<p class=about>Cheapest within the promise: ");
    sy_svg_escape(b, r->promise);
    sy_buf_text(b, "</p>");
}

static void put_charts(const struct sy_report *r, const char *const *name, size_t n, struct sy_buf *b)
{
    sy_buf_text(b, "<div class=legend>");
    for (size_t s = 0; s < n; s++) {
        sy_buf_printf(b, "<button type=button data-s=%zu aria-pressed=true><i></i>", s);
        sy_svg_escape(b, name[s]);
        sy_buf_text(b, "</button>");
    }
    sy_buf_text(b, "</div><div class=charts>");
    for (int c = 0; c < SY_CHART_COUNT; c++)
        if (n_drawn(r, (enum sy_chart)c))
            sy_buf_printf(b,
                          "<figure><figcaption>%s <button type=button id=c%d-axes>linear axes</button></figcaption>"
                          "<div class=plot><canvas id=c%d role=img aria-label=\"%s\"></canvas></div></figure>",
                          charts[c].name, c, c, charts[c].name);
    sy_buf_text(b, "</div>");
}

sy_status sy_report_html(const struct sy_report *r, struct sy_buf *b, struct sy_err *err)
{
    const struct sy_data *css = sy_data_find("report/report.css"), *js = sy_data_find("report/report.js"),
                         *lib = sy_data_find("report/chart.min.js");
    const char *name[SY_SVG_COLOURS];
    struct sy_buf data;
    size_t n = series_of(r, name);
    if (!css || !js || !lib) return sy_fail(err, SY_ENOSUP, "this build carries no report/ files");
    put_head(r, css->at, b);
    put_cards(r, name, n, b);
    put_charts(r, name, n, b);
    sy_status st = put_equal(r, name, n, SY_CHART_COST_USER, "cost", b);
    if (!st) st = put_equal(r, name, n, SY_CHART_TPUT_USER, "throughput", b);
    put_table(r, b);
    sy_buf_printf(
        b, "<footer>Made by systole %s. Charts: Chart.js, MIT License.</footer></main><script>const R=", SY_VERSION);
    sy_buf_init(&data, b->env, 0);
    put_data(r, name, n, &data);
    for (size_t i = 0; i < data.len; i++) { /* no text in it may end the script */
        if (data.at[i] == '<') sy_buf_text(b, "\\u003c");
        else sy_buf_char(b, data.at[i]);
    }
    b->failed |= data.failed;
    sy_buf_release(&data);
    sy_buf_text(b, "</script><script>");
    sy_buf_add(b, lib->at, lib->n);
    sy_buf_text(b, "</script><script>");
    sy_buf_add(b, js->at, js->n);
    sy_buf_text(b, "</script></html>\n");
    return st ? sy_fail(err, st, "no memory for the report") : SY_OK;
}

/* ---- files -------------------------------------------------------------------------------------------------------
 */

static sy_status one_file(const char *path, const char *suffix, const struct sy_report *r, int kind,
                          const struct sy_env *env, struct sy_err *err)
{
    struct sy_buf b;
    char name[4096];
    size_t n = strlen(path);
    if (*suffix && n > 5 && !strcmp(path + n - 5, ".html")) n -= 5;
    if (snprintf(name, sizeof name, "%.*s%s", (int)n, path, suffix) >= (int)sizeof name)
        return sy_fail(err, SY_EARG, "--report: the path is too long");
    sy_buf_init(&b, env, 0);
    sy_status st = SY_OK;
    if (kind < 0) st = sy_report_html(r, &b, err);
    else if (kind == SY_CHART_COUNT) sy_report_csv(r, &b);
    else sy_report_svg(r, (enum sy_chart)kind, &b);
    if (!st) st = sy_report_write(&b, name, err);
    sy_buf_release(&b);
    return st;
}

sy_status sy_report_files(const struct sy_env *env, const struct sy_report *r, const char *path, struct sy_err *err)
{
    enum sy_chart chart = n_drawn(r, SY_CHART_COST_USER) ? SY_CHART_COST_USER : SY_CHART_TPUT_USER;
    sy_status st = one_file(path, "", r, -1, env, err);
    if (!st) st = one_file(path, ".csv", r, SY_CHART_COUNT, env, err);
    return st ? st : one_file(path, ".svg", r, chart, env, err);
}

/* ---- interpolation -----------------------------------------------------------------------------------------------
 */

static double slope_at(const double *x, const double *y, size_t n, size_t i)
{
    if (n < 2) return 0;
    if (i == 0) return (y[1] - y[0]) / (x[1] - x[0]);
    if (i == n - 1) return (y[n - 1] - y[n - 2]) / (x[n - 1] - x[n - 2]);
    double h0 = x[i] - x[i - 1], h1 = x[i + 1] - x[i], d0 = (y[i] - y[i - 1]) / h0, d1 = (y[i + 1] - y[i]) / h1;
    if (d0 * d1 <= 0) return 0;
    double w0 = 2 * h1 + h0, w1 = h1 + 2 * h0;
    return (w0 + w1) / (w0 / d0 + w1 / d1);
}

double sy_monotone_at(const double *x, const double *y, size_t n, double at)
{
    if (n == 0 || at < x[0] || at > x[n - 1]) return NAN;
    size_t i = 0;
    while (i + 2 < n && at > x[i + 1]) i++;
    if (n == 1) return y[0];
    double h = x[i + 1] - x[i], t = (at - x[i]) / h, m0 = slope_at(x, y, n, i), m1 = slope_at(x, y, n, i + 1);
    double d = (y[i + 1] - y[i]) / h;
    /* End slopes steeper than three chords would overshoot. */
    if (fabs(m0) > 3 * fabs(d)) m0 = 3 * d;
    if (fabs(m1) > 3 * fabs(d)) m1 = 3 * d;
    double a = t * t * t, s = t * t;
    return (2 * a - 3 * s + 1) * y[i] + (a - 2 * s + t) * h * m0 + (3 * s - 2 * a) * y[i + 1] + (a - s) * h * m1;
}
