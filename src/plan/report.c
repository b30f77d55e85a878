#include "plan/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDE = 760, HIGH = 430, LEFT = 74, RIGHT = 20, TOP = 26, BOTTOM = 52, SERIES_MAX = 12, FRONT_MAX = 4096 };

/* Colours that those who see no red or green tell apart: Okabe and Ito, "Color universal design", 2008. */
static const char *const colour[SERIES_MAX] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
                                               "#7F7F7F", "#8C510A", "#35978F", "#762A83", "#1B7837", "#C51B7D"};
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
        if (k == n && n < SERIES_MAX) name[n++] = r->point[i].series;
    }
    return n;
}

static void escape(struct sy_buf *b, const char *s)
{
    for (; *s; s++) {
        if (*s == '<') sy_buf_text(b, "&lt;");
        else if (*s == '>') sy_buf_text(b, "&gt;");
        else if (*s == '&') sy_buf_text(b, "&amp;");
        else if (*s == '"') sy_buf_text(b, "&quot;");
        else sy_buf_char(b, *s);
    }
}

/* ---- a chart ----------------------------------------------------------------------------------------------------
 */

struct axes { /* logarithmic both ways: costs and speeds span decades */
    double x0, x1, y0, y1;
};

static struct axes axes_of(const struct sy_report *r, enum sy_chart c)
{
    struct axes a = {INFINITY, 0, INFINITY, 0};
    for (size_t i = 0; i < r->n; i++) {
        if (!drawn(&r->point[i], c)) continue;
        a.x0 = fmin(a.x0, x_of(&r->point[i], c));
        a.x1 = fmax(a.x1, x_of(&r->point[i], c));
        a.y0 = fmin(a.y0, y_of(&r->point[i], c));
        a.y1 = fmax(a.y1, y_of(&r->point[i], c));
    }
    double px = pow(a.x1 / a.x0, 0.04) + 0.02, py = pow(a.y1 / a.y0, 0.06) + 0.02;
    return (struct axes){a.x0 / px, a.x1 * px, a.y0 / py, a.y1 * py};
}

static double px(const struct axes *a, double x)
{
    return LEFT + (WIDE - LEFT - RIGHT) * log(x / a->x0) / log(a->x1 / a->x0);
}

static double py(const struct axes *a, double y)
{
    return HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * log(y / a->y0) / log(a->y1 / a->y0);
}

static void number(struct sy_buf *b, double v)
{
    if (v >= 1e6) sy_buf_printf(b, "%gM", v / 1e6);
    else if (v >= 1e4) sy_buf_printf(b, "%gk", v / 1e3);
    else sy_buf_printf(b, "%g", v);
}

/* Ticks at 1, 2, 5 of each decade, or only at 1 where there are many decades. */
static void ticks(struct sy_buf *b, const struct axes *a, bool x)
{
    double lo = x ? a->x0 : a->y0, hi = x ? a->x1 : a->y1;
    static const double steps[] = {1, 1.5, 2, 3, 5, 7};
    for (double d = pow(10, floor(log10(lo))); d <= hi; d *= 10)
        for (size_t i = 0; i < SY_COUNT(steps); i++) {
            double v = d * steps[i];
            bool few = hi / lo < 8, some = hi / lo < 200;
            if (v < lo || v > hi || (!few && (i == 1 || i == 3 || i == 5)) || (!some && i != 0)) continue;
            if (x)
                sy_buf_printf(
                    b,
                    "<line class=g x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/><text class=t x=\"%.1f\" y=\"%d\" "
                    "text-anchor=middle>",
                    px(a, v), px(a, v), TOP, HIGH - BOTTOM, px(a, v), HIGH - BOTTOM + 18);
            else
                sy_buf_printf(
                    b,
                    "<line class=g x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text class=t x=\"%d\" y=\"%.1f\" "
                    "text-anchor=end>",
                    LEFT, WIDE - RIGHT, py(a, v), py(a, v), LEFT - 8, py(a, v) + 4);
            number(b, v);
            sy_buf_text(b, "</text>");
        }
}

static void front_line(const struct sy_report *r, enum sy_chart c, const struct axes *a, const char *name, size_t s,
                       struct sy_buf *b)
{
    double last = 0;
    bool first = true;
    sy_buf_printf(b, "<path class=l data-s=\"%zu\" fill=none stroke=\"%s\" d=\"", s, colour[s]);
    for (size_t done = 0; done < r->n && done < FRONT_MAX; done++) {
        const struct sy_report_point *next = NULL;
        for (size_t i = 0; i < r->n; i++)
            if (!strcmp(r->point[i].series, name) && drawn(&r->point[i], c) &&
                (first || x_of(&r->point[i], c) > last) && on_front(r, i, c) &&
                (!next || x_of(&r->point[i], c) < x_of(next, c)))
                next = &r->point[i];
        if (!next) break;
        last = x_of(next, c);
        sy_buf_printf(b, "%c%.1f %.1f", first ? 'M' : 'L', px(a, last), py(a, y_of(next, c)));
        first = false;
    }
    sy_buf_text(b, "\"/>");
}

static void dot(const struct sy_report *r, size_t i, enum sy_chart c, const struct axes *a, size_t s,
                struct sy_buf *b)
{
    const struct sy_report_point *p = &r->point[i];
    bool best = on_front(r, i, c);
    sy_buf_printf(b, "<circle class=\"d%s\" data-s=\"%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\" fill=\"%s\"><title>",
                  best ? "" : " p", s, px(a, x_of(p, c)), py(a, y_of(p, c)), best ? "4.2" : "2.6", colour[s]);
    escape(b, p->series);
    sy_buf_text(b, ", ");
    escape(b, p->label);
    sy_buf_printf(b, "\n%.4g $/M tokens, %.0f tokens/s/chip, %.1f tokens/s/user, E2E %.2f s\n", p->usd_mtok,
                  p->tok_s_chip, p->tok_s_user, p->e2e_s);
    escape(b, p->figures);
    sy_buf_text(b, "</title></circle>");
}

void sy_report_svg(const struct sy_report *r, enum sy_chart c, struct sy_buf *b)
{
    const char *name[SERIES_MAX];
    size_t n = series_of(r, name), any = 0;
    struct axes a = axes_of(r, c);
    for (size_t i = 0; i < r->n; i++) any += drawn(&r->point[i], c);
    sy_buf_printf(
        b,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=img "
        "font-family=\"system-ui,sans-serif\" "
        "font-size=\"12\"><style>.g{stroke:#8884;stroke-width:1}.t{fill:#777}.l{stroke-width:2}.p{opacity:.28}"
        ".x{fill:#777;font-size:13px}</style><title>",
        WIDE, HIGH);
    escape(b, charts[c].name);
    sy_buf_text(b, "</title>");
    if (any) {
        ticks(b, &a, true);
        ticks(b, &a, false);
    }
    for (size_t s = 0; s < n && any; s++) front_line(r, c, &a, name[s], s, b);
    for (size_t i = 0; i < r->n; i++)
        for (size_t s = 0; s < n; s++)
            if (!strcmp(name[s], r->point[i].series) && drawn(&r->point[i], c)) dot(r, i, c, &a, s, b);
    sy_buf_printf(
        b,
        "<text class=x x=\"%d\" y=\"%d\" text-anchor=middle>%s</text><text class=x transform=\"translate(16 %d) "
        "rotate(-90)\" text-anchor=middle>%s</text>",
        (LEFT + WIDE - RIGHT) / 2, HIGH - 10, charts[c].x, (TOP + HIGH - BOTTOM) / 2, charts[c].y);
    double at = LEFT + 4;
    for (size_t s = 0; s < n; s++) {
        sy_buf_printf(
            b,
            "<g class=k data-s=\"%zu\"><circle cx=\"%.0f\" cy=\"12\" r=\"5\" fill=\"%s\"/><text class=x x=\"%.0f\" "
            "y=\"16\">",
            s, at + 5, colour[s], at + 14);
        escape(b, name[s]);
        sy_buf_text(b, "</text></g>");
        at += 26 + 7.5 * (double)strlen(name[s]);
    }
    sy_buf_text(b, "</svg>");
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

static void table(const struct sy_report *r, struct sy_buf *b)
{
    sy_buf_text(b, "<section><h2>Points <button type=button id=copy>Copy as CSV</button></h2><div class=w><table "
                   "id=points><thead>"
                   "<tr>");
    for (size_t i = 0; i < SY_COUNT(columns); i++) {
        sy_buf_text(b, "<th scope=col>");
        escape(b, columns[i]);
    }
    sy_buf_text(b, "<tbody>");
    for (size_t i = 0; i < r->n; i++) {
        const struct sy_report_point *p = &r->point[i];
        double v[7];
        numbers_of(p, v);
        sy_buf_printf(b, "<tr%s><td>", on_front(r, i, SY_CHART_COST_USER) ? " class=best" : "");
        escape(b, p->series);
        sy_buf_text(b, "<td>");
        escape(b, p->label);
        for (int k = 0; k < 7; k++)
            if (isfinite(v[k])) sy_buf_printf(b, "<td class=n>%.4g", v[k]);
            else sy_buf_text(b, "<td class=n>");
        sy_buf_text(b, "<td>");
        escape(b, p->figures);
    }
    sy_buf_text(b, "</table></div></section>");
}

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fff;--fg:#16181d;--mute:#5c6370;--line:#d8dce3;--card:#f6f7f9}"
    "@media(prefers-color-scheme:dark){:root{--bg:#14161a;--fg:#e6e8ec;--mute:#9aa2b1;--line:#2c313a;--card:#1b1e24}}"
    "body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}"
    "main{max-width:1180px;margin:0 auto;padding:32px 20px 64px}h1{font-size:26px;margin:0 0 "
    "6px}h2{font-size:17px;margin:0 0 10px}"
    ".about{color:var(--mute);margin:0 0 "
    "22px;max-width:80ch}.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax("
    "min(100%,520px),1fr));gap:18px}section,figure{background:var(--card);border:1px solid "
    "var(--line);border-radius:10px;"
    "padding:16px;margin:0 0 "
    "18px}figure{margin:0}figcaption{font-weight:600;margin-bottom:6px}svg{width:100%;height:auto;display:block}"
    ".k{cursor:pointer}.off{opacity:.12}.d{cursor:crosshair}.d:hover{stroke:var(--fg);stroke-width:2}"
    ".w{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13px}th,td{padding:5px "
    "9px;text-align:left;"
    "border-bottom:1px solid "
    "var(--line);white-space:nowrap}th{position:sticky;top:0;background:var(--card);cursor:pointer}"
    ".n{text-align:right;font-variant-numeric:tabular-nums}.best "
    "td:first-child{font-weight:600}button{font:inherit;font-size:13px;"
    "padding:3px 10px;border:1px solid "
    "var(--line);border-radius:6px;background:var(--bg);color:var(--fg);cursor:pointer;float:right}"
    "#tip{position:fixed;pointer-events:none;background:var(--fg);color:var(--bg);padding:7px "
    "10px;border-radius:6px;font-size:12.5px;"
    "white-space:pre-line;max-width:340px;display:none;z-index:9}"
    "@media "
    "print{button,#tip{display:none}figure,section{break-inside:avoid;background:none}main{max-width:none;padding:0}"
    "}";

/* Hovering shows a point's figures, a click on a name hides its series everywhere, a click on a head sorts. */
static const char script[] =
    "const q=(s,e=document)=>[...e.querySelectorAll(s)],tip=document.getElementById('tip');"
    "q('.d').forEach(d=>{const t=d.querySelector('title'),s=t.textContent;t.remove();d.setAttribute('aria-label',s);"
    "d.onpointermove=e=>{tip.textContent=s;tip.style.display='block';const w=tip.offsetWidth,h=tip.offsetHeight;"
    "tip.style.left=Math.min(e.clientX+14,innerWidth-w-8)+'px';tip.style.top=Math.min(e.clientY+14,innerHeight-h-8)+'"
    "px'};"
    "d.onpointerleave=()=>tip.style.display='none'});"
    "q('.k').forEach(k=>k.onclick=()=>q('[data-s=\"'+k.dataset.s+'\"]').forEach(e=>e.classList.toggle('off')));"
    "const T=document.getElementById('points');q('th',T).forEach((h,i)=>{let up=false;h.onclick=()=>{up=!up;const "
    "B=T.tBodies[0];"
    "[...B.rows].sort((a,b)=>{const x=a.cells[i].textContent,y=b.cells[i].textContent,d=x!==''&&y!==''?x-y:NaN;"
    "return(isNaN(d)?x.localeCompare(y):d)*(up?1:-1)}).forEach(r=>B.append(r))}});"
    "document.getElementById('copy').onclick=e=>{navigator.clipboard.writeText([...T.rows].map(r=>[...r.cells].map(c="
    ">"
    "'\"'+c.textContent.replaceAll('\"','\"\"')+'\"').join(',')).join('\\n'));e.target.textContent='Copied'};";

void sy_report_html(const struct sy_report *r, struct sy_buf *b)
{
    sy_buf_text(b, "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
                   "content=\"width=device-width\"><title>");
    escape(b, r->title);
    sy_buf_printf(b, "</title><style>%s</style><main><h1>", style);
    escape(b, r->title);
    sy_buf_text(b, "</h1><p class=about>");
    for (const char *s = r->about; *s;) {
        size_t n = strcspn(s, "\n");
        char line[512];
        snprintf(line, sizeof line, "%.*s", (int)(n < 500 ? n : 500), s);
        escape(b, line);
        s += n + (s[n] == '\n');
        if (*s) sy_buf_text(b, "<br>");
    }
    sy_buf_text(b, "</p><div class=charts>");
    for (int c = 0; c < SY_CHART_COUNT; c++) {
        size_t any = 0;
        for (size_t i = 0; i < r->n; i++) any += drawn(&r->point[i], (enum sy_chart)c);
        if (!any) continue;
        sy_buf_printf(b, "<figure><figcaption>%s</figcaption>", charts[c].name);
        sy_report_svg(r, (enum sy_chart)c, b);
        sy_buf_text(b, "</figure>");
    }
    sy_buf_text(b, "</div><p></p>");
    table(r, b);
    sy_buf_printf(b, "</main><div id=tip role=status></div><script>%s</script></html>\n", script);
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
