#include "bench/plot.h"

#include <stdio.h>
#include <string.h>

#include "bench/svg.h"

enum { WIDE = 860, HIGH = 400, LEFT = 74, RIGHT = 10, TOP = 54, BOTTOM = 56, BETWEEN = 84, TICKS_MAX = 64 };
enum { BATCH, PROMPT, THREADS, DIMS };
static const char *const axis[DIMS] = {"sequences at once", "tokens of the prompt", "threads"};

static int32_t dim_of(const struct sy_offline_row *r, int dim)
{
    return dim == BATCH ? r->batch : dim == PROMPT ? r->n_in : r->n_thread;
}

struct picture {
    const struct sy_offline_row *row;
    size_t n;
    int x; /* dimension */
    bool varies[DIMS];
    double tick[TICKS_MAX];
    size_t n_tick;
    char name[SY_SVG_COLOURS][48];
    const struct sy_offline_row *first[SY_SVG_COLOURS]; /* row of each series */
    size_t n_series;
};

/* Different values of a dimension. */
static size_t count(const struct picture *p, int dim)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        size_t k = 0;
        while (k < i && dim_of(&p->row[k], dim) != dim_of(&p->row[i], dim)) k++;
        n += k == i;
    }
    return n;
}

static bool same_series(const struct picture *p, const struct sy_offline_row *a, const struct sy_offline_row *b)
{
    for (int d = 0; d < DIMS; d++)
        if (d != p->x && dim_of(a, d) != dim_of(b, d)) return false;
    return true;
}

static void name_series(struct picture *p, const struct sy_offline_row *r, char name[static 48])
{
    static const char *const before[DIMS] = {"batch ", "prompts of ", ""};
    size_t n = 0;
    name[0] = 0;
    for (int d = 0; d < DIMS; d++) {
        if (d == p->x || !p->varies[d]) continue;
        const char *after = d != THREADS ? "" : r->n_thread == 1 ? " thread" : " threads";
        n += (size_t)snprintf(name + n, 48 - n, "%s%s%d%s", n ? ", " : "", before[d], dim_of(r, d), after);
        if (n >= 48) return;
    }
}

static void look(struct picture *p)
{
    size_t most = 1;
    for (int d = DIMS; d-- > 0;) {
        size_t n = count(p, d);
        p->varies[d] = n > 1;
        if (n <= most) continue;
        most = n;
        p->x = d;
    }
    for (size_t i = 0; i < p->n; i++) {
        const struct sy_offline_row *r = &p->row[i];
        double x = dim_of(r, p->x);
        size_t k = 0;
        while (k < p->n_tick && p->tick[k] != x) k++;
        if (k == p->n_tick && k < TICKS_MAX) p->tick[p->n_tick++] = x;
        for (k = 0; k < p->n_series && !same_series(p, p->first[k], r);) k++;
        if (k < p->n_series || k == SY_SVG_COLOURS) continue;
        p->first[k] = r;
        name_series(p, r, p->name[p->n_series++]);
    }
}

static double speed(const struct sy_offline_row *r, bool decode, bool limit)
{
    if (decode) return limit ? r->decode_limit_tok_s : r->decode_tok_s;
    return limit ? r->prefill_limit_tok_s : r->prefill_tok_s;
}

/* Points of a series from left to right, joined. */
static void line(const struct picture *p, const struct sy_svg_plot *at, size_t series, bool decode, bool limit,
                 struct sy_buf *b)
{
    double last = 0;
    char how = 'M';
    sy_buf_printf(b, "<path class=\"l\" data-s=\"%zu\" stroke=\"%s\"%s d=\"", series, sy_svg_colour[series],
                  limit ? " stroke-dasharray=\"5 4\" opacity=\".7\"" : "");
    for (;;) {
        const struct sy_offline_row *next = NULL;
        for (size_t i = 0; i < p->n; i++) {
            const struct sy_offline_row *r = &p->row[i];
            int32_t x = dim_of(r, p->x);
            if (!same_series(p, p->first[series], r) || x <= last || speed(r, decode, limit) <= 0) continue;
            if (!next || x < dim_of(next, p->x)) next = r;
        }
        if (!next) break;
        last = dim_of(next, p->x);
        sy_buf_printf(b, "%c%.1f %.1f", how, sy_svg_x(at, last), sy_svg_y(at, speed(next, decode, limit)));
        how = 'L';
    }
    sy_buf_text(b, "\"/>");
}

static void dots(const struct picture *p, const struct sy_svg_plot *at, size_t series, bool decode, struct sy_buf *b)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct sy_offline_row *r = &p->row[i];
        double v = speed(r, decode, false), limit = speed(r, decode, true);
        if (!same_series(p, p->first[series], r) || v <= 0) continue;
        sy_buf_printf(b,
                      "<circle class=\"d\" data-s=\"%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.6\" fill=\"%s\"><title>"
                      "batch %d, prompt %d, %d threads: %.4g tokens/s",
                      series, sy_svg_x(at, dim_of(r, p->x)), sy_svg_y(at, v), sy_svg_colour[series], r->batch,
                      r->n_in, r->n_thread, v);
        if (limit > 0) sy_buf_printf(b, ", %.0f %% of %.4g", 100 * v / limit, limit);
        sy_buf_text(b, "</title></circle>");
    }
}

static void plot(const struct picture *p, bool decode, double left, double right, struct sy_buf *b)
{
    struct sy_svg_plot at = {.left = left, .right = right, .top = TOP, .bottom = HIGH - BOTTOM};
    sy_svg_clear(&at);
    for (size_t i = 0; i < p->n; i++)
        for (int limit = 0; limit < 2; limit++)
            if (speed(&p->row[i], decode, limit) > 0)
                sy_svg_hold(&at, dim_of(&p->row[i], p->x), speed(&p->row[i], decode, limit));
    sy_svg_pad(&at);
    sy_svg_axes(b, &at, axis[p->x], decode ? "tokens/s, decode" : "tokens/s, prompts", p->tick, p->n_tick);
    for (size_t s = 0; s < p->n_series; s++) {
        line(p, &at, s, decode, true, b);
        line(p, &at, s, decode, false, b);
        dots(p, &at, s, decode, b);
    }
}

void sy_offline_svg(const struct sy_offline_row *row, size_t n, const char *title, struct sy_buf *b)
{
    const double middle = (LEFT + WIDE - RIGHT + BETWEEN) / 2.0;
    struct picture p = {.row = row, .n = n};
    look(&p);
    sy_svg_open(b, WIDE, HIGH, title);
    sy_buf_printf(b, "<text class=\"x\" x=\"%d\" y=\"18\">", LEFT);
    sy_svg_escape(b, title);
    sy_buf_printf(b,
                  "</text><path class=\"l\" stroke=\"#777\" stroke-dasharray=\"5 4\" d=\"M%d 14h28\"/>"
                  "<text class=\"x\" x=\"%d\" y=\"18\">limit</text>",
                  WIDE - RIGHT - 66, WIDE - RIGHT - 32);
    double x = LEFT;
    for (size_t s = 0; p.n_series > 1 && s < p.n_series; s++) x += sy_svg_name(b, x, 40, s, p.name[s]);
    plot(&p, true, LEFT, middle - BETWEEN, b);
    plot(&p, false, middle, WIDE - RIGHT, b);
    sy_svg_close(b);
}
