/* progress.c - progress bars on stderr. */
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "app/cli/term.h"

enum { BAR = 24 };
static const uint64_t redraw_ns = 80000000;

void sy_size_text(double bytes, char out[static 16])
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    size_t u = 0;
    while (bytes >= 999.5 && u + 1 < SY_COUNT(unit)) {
        bytes /= 1000;
        u++;
    }
    snprintf(out, 16, u && bytes < 99.5 ? "%.1f %s" : "%.0f %s", bytes, unit[u]);
}

void sy_progress_init(struct sy_progress *p, const struct sy_env *env, bool on, const char *label)
{
    *p = (struct sy_progress){.env = env, .on = on, .terminal = isatty(STDERR_FILENO), .tenth = -1, .done_start = -1};
    snprintf(p->label, sizeof p->label, "%s", label);
    p->t_start = sy_now_ns(env);
}

static bool due(struct sy_progress *p, double share)
{
    if (!p->on) return false;
    uint64_t now = sy_now_ns(p->env);
    if (p->terminal) {
        if (p->drawn && now - p->t_drawn < redraw_ns && share < 1) return false;
        p->t_drawn = now;
        p->drawn = true;
        return true;
    }
    if ((int)(share * 10) <= p->tenth) return false;
    p->tenth = (int)(share * 10);
    return true;
}

static void draw(const struct sy_progress *p, double share, const char *tail)
{
    if (!p->terminal) {
        fprintf(stderr, "%s: %3.0f %%%s\n", p->label, share * 100, tail);
        return;
    }
    struct winsize w;
    int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : 80;
    char line[256], bar[BAR + 1];
    for (int i = 0; i < BAR; i++) bar[i] = (i + 0.5) / BAR <= share ? '#' : '.';
    bar[BAR] = 0;
    snprintf(line, sizeof line, "%s [%s] %3.0f %%%s", p->label, bar, share * 100, tail);
    fprintf(stderr, "\r\x1b[K%.*s", columns - 1, line);
}

void sy_progress_bytes(struct sy_progress *p, double done, double total)
{
    if (p->done_start < 0) p->done_start = done;
    double share = total > 0 ? done / total : 1;
    if (!due(p, share)) return;
    double s = (double)(sy_now_ns(p->env) - p->t_start) / 1e9;
    double speed = s > 0.2 ? (done - p->done_start) / s : 0;
    char a[16], b[16], c[16], tail[96], left[32] = "";
    sy_size_text(done, a);
    sy_size_text(total, b);
    sy_size_text(speed, c);
    if (speed > 0 && done < total) snprintf(left, sizeof left, ", %.0f s left", (total - done) / speed);
    snprintf(tail, sizeof tail, "  %s of %s, %s/s%s", a, b, c, left);
    draw(p, share, tail);
}

void sy_progress_share(struct sy_progress *p, double done)
{
    if (due(p, done)) draw(p, done, "");
}

void sy_progress_end(struct sy_progress *p)
{
    if (p->drawn) fputs("\r\x1b[K", stderr);
    p->drawn = false;
}
