#include "bench/svg.h"

#include <math.h>
#include <string.h>

const char *const sy_svg_colour[SY_SVG_COLOURS] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
                                                   "#7F7F7F", "#8C510A", "#35978F", "#762A83", "#1B7837", "#C51B7D"};

void sy_svg_escape(struct sy_buf *b, const char *s)
{
    for (; *s; s++) {
        if (*s == '<') sy_buf_text(b, "&lt;");
        else if (*s == '>') sy_buf_text(b, "&gt;");
        else if (*s == '&') sy_buf_text(b, "&amp;");
        else if (*s == '"') sy_buf_text(b, "&quot;");
        else sy_buf_char(b, *s);
    }
}

void sy_svg_open(struct sy_buf *b, int wide, int high, const char *title)
{
    sy_buf_printf(b,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\" "
                  "font-family=\"system-ui,sans-serif\" font-size=\"12\"><style>.g{stroke:#888;stroke-opacity:.27}"
                  ".t,.x{fill:#777}.x{font-size:13px}.l{fill:none;stroke-width:2}.p{opacity:.28}</style><title>",
                  wide, high);
    sy_svg_escape(b, title);
    sy_buf_text(b, "</title>");
}

void sy_svg_close(struct sy_buf *b) { sy_buf_text(b, "</svg>"); }

/* ---- axes --------------------------------------------------------------------------------------------------------
 */

void sy_svg_clear(struct sy_svg_plot *p)
{
    p->x0 = p->y0 = INFINITY;
    p->x1 = p->y1 = 0;
}

void sy_svg_hold(struct sy_svg_plot *p, double x, double y)
{
    p->x0 = fmin(p->x0, x);
    p->x1 = fmax(p->x1, x);
    p->y0 = fmin(p->y0, y);
    p->y1 = fmax(p->y1, y);
}

void sy_svg_pad(struct sy_svg_plot *p)
{
    double x = pow(p->x1 / p->x0, 0.04) + 0.02, y = pow(p->y1 / p->y0, 0.06) + 0.02;
    p->x0 /= x;
    p->x1 *= x;
    p->y0 /= y;
    p->y1 *= y;
}

double sy_svg_x(const struct sy_svg_plot *p, double x)
{
    return p->left + (p->right - p->left) * log(x / p->x0) / log(p->x1 / p->x0);
}

double sy_svg_y(const struct sy_svg_plot *p, double y)
{
    return p->bottom - (p->bottom - p->top) * log(y / p->y0) / log(p->y1 / p->y0);
}

static void number(struct sy_buf *b, double v)
{
    if (v >= 1e6) sy_buf_printf(b, "%gM", v / 1e6);
    else if (v >= 1e4) sy_buf_printf(b, "%gk", v / 1e3);
    else sy_buf_printf(b, "%g", v);
}

static void tick_x(struct sy_buf *b, const struct sy_svg_plot *p, double v)
{
    double x = sy_svg_x(p, v);
    sy_buf_printf(b,
                  "<line class=\"g\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%g\" y2=\"%g\"/><text class=\"t\" x=\"%.1f\" "
                  "y=\"%g\" text-anchor=\"middle\">",
                  x, x, p->top, p->bottom, x, p->bottom + 18);
    number(b, v);
    sy_buf_text(b, "</text>");
}

static void tick_y(struct sy_buf *b, const struct sy_svg_plot *p, double v)
{
    double y = sy_svg_y(p, v);
    sy_buf_printf(b,
                  "<line class=\"g\" x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\"/><text class=\"t\" x=\"%g\" "
                  "y=\"%.1f\" text-anchor=\"end\">",
                  p->left, p->right, y, y, p->left - 8, y + 4);
    number(b, v);
    sy_buf_text(b, "</text>");
}

/* Ticks at round numbers of each decade, or only at its start where there are many decades. */
static void ticks(struct sy_buf *b, const struct sy_svg_plot *p, double lo, double hi,
                  void (*tick)(struct sy_buf *, const struct sy_svg_plot *, double))
{
    static const double steps[] = {1, 1.5, 2, 3, 5, 7};
    bool few = hi / lo < 8, some = hi / lo < 200;
    for (double d = pow(10, floor(log10(lo))); d <= hi; d *= 10)
        for (size_t i = 0; i < SY_COUNT(steps); i++) {
            double v = d * steps[i];
            if (v < lo || v > hi || (!few && (i == 1 || i == 3 || i == 5)) || (!some && i != 0)) continue;
            tick(b, p, v);
        }
}

void sy_svg_axes(struct sy_buf *b, const struct sy_svg_plot *p, const char *x, const char *y, const double *x_at,
                 size_t n_x)
{
    if (p->x1 > 0) {
        for (size_t i = 0; i < n_x; i++) tick_x(b, p, x_at[i]);
        if (!n_x) ticks(b, p, p->x0, p->x1, tick_x);
        ticks(b, p, p->y0, p->y1, tick_y);
    }
    sy_buf_printf(b, "<text class=\"x\" x=\"%g\" y=\"%g\" text-anchor=\"middle\">", (p->left + p->right) / 2,
                  p->bottom + 42);
    sy_svg_escape(b, x);
    sy_buf_printf(b, "</text><text class=\"x\" transform=\"translate(%g %g) rotate(-90)\" text-anchor=\"middle\">",
                  p->left - 58, (p->top + p->bottom) / 2);
    sy_svg_escape(b, y);
    sy_buf_text(b, "</text>");
}

double sy_svg_name(struct sy_buf *b, double x, double y, size_t series, const char *name)
{
    sy_buf_printf(b,
                  "<g class=\"k\" data-s=\"%zu\"><circle cx=\"%.0f\" cy=\"%g\" r=\"5\" fill=\"%s\"/>"
                  "<text class=\"x\" x=\"%.0f\" y=\"%g\">",
                  series, x + 5, y - 4, sy_svg_colour[series % SY_SVG_COLOURS], x + 14, y);
    sy_svg_escape(b, name);
    sy_buf_text(b, "</text></g>");
    return 26 + 7.5 * (double)strlen(name);
}
