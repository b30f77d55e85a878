/* svg.h - charts with logarithmic axes as SVG (W3C, "Scalable Vector Graphics 1.1"), which stands alone or inside of
 * HTML. Colours are those of axes and text in any light; classes g (grid), t (ticks), x (text), l (lines), d (dots),
 * p (pale dots), k (names) are the page's to style further. Thread: any. */
#pragma once
#include "base/buf.h"

/* Colours that those who see no red or green tell apart: Okabe and Ito, "Color universal design", 2008. */
enum { SY_SVG_COLOURS = 12 };
extern const char *const sy_svg_colour[SY_SVG_COLOURS];

struct sy_svg_plot {                 /* where a plot stands in the picture, in pixels, and what its axes span */
    double left, right, top, bottom; /* right and bottom edges, y grows downwards */
    double x0, x1, y0, y1;           /* above 0; start with sy_svg_clear() */
};
void sy_svg_escape(struct sy_buf *, const char *text); /* also what HTML wants */
void sy_svg_open(struct sy_buf *, int wide, int high, const char *title);
void sy_svg_close(struct sy_buf *);

void sy_svg_clear(struct sy_svg_plot *);
void sy_svg_hold(struct sy_svg_plot *, double x, double y); /* the axes reach a point */
void sy_svg_pad(struct sy_svg_plot *);                      /* and a little more than all of them */
double sy_svg_x(const struct sy_svg_plot *, double x);
double sy_svg_y(const struct sy_svg_plot *, double y);
/* Grid, ticks and titles. x_at: [n_x] where ticks of x are wanted; n_x 0: at round numbers. */
void sy_svg_axes(struct sy_buf *, const struct sy_svg_plot *, const char *x, const char *y, const double *x_at,
                 size_t n_x);
/* A series' name at (x, y), "data-s" its number; returns how wide it is. */
double sy_svg_name(struct sy_buf *, double x, double y, size_t series, const char *name);
