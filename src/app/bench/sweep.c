/* sweep.c - every configuration under every load: real servers, each started anew, or the simulator in their place.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "app/bench/serving.h"
#include "plan/report.h"

enum { ARGV_MAX = 96, START_S = 600, SAID_MAX = 4096 };
extern char **environ;

struct server {
    pid_t pid;
    int err_fd; /* what it says on stderr, in memory */
    char url[128];
};

static bool in_table(const struct sy_flag *table, const struct sy_flag *f)
{
    for (; table->name; table++)
        if (table == f) return true;
    return false;
}

/* The engine's flags of this command line go to the server as they are; then what is varied. */
static sy_status arguments(struct sy_args *a, const struct sy_grid *g, size_t point, const char **argv,
                           struct sy_err *err)
{
    size_t n = 0;
    static const char *const fixed[] = {"systole", "serve", "--host", "127.0.0.1", "--port", "0", "-m"};
    for (size_t i = 0; i < SY_COUNT(fixed); i++) argv[n++] = fixed[i];
    argv[n++] = sy_arg_text(a, "model");
    for (size_t i = 0; i < a->n_arg && n + 2 * SY_GRID_AXES + 2 < ARGV_MAX; i++) {
        const struct sy_arg *v = &a->arg[i];
        bool engine = in_table(sy_flags_engine, v->flag) || in_table(sy_flags_ctx, v->flag);
        if (v->source != SY_FROM_LINE || !engine) continue;
        char text[512];
        if (v->text) snprintf(text, sizeof text, "--%s=%s", v->flag->name, v->text);
        else if (v->flag->kind == SY_FLAG_NUM) snprintf(text, sizeof text, "--%s=%.17g", v->flag->name, v->number);
        else snprintf(text, sizeof text, "--%s=%lld", v->flag->name, (long long)v->integer);
        if (!(argv[n++] = sy_arena_text(&a->arena, text, strlen(text))))
            return sy_fail(err, SY_ENOMEM, "no memory for the server's flags");
    }
    for (size_t k = 0; k < g->n; k++) {
        char text[256];
        snprintf(text, sizeof text, "--%s=%s", g->axis[k].name, sy_grid_value(g, point, k));
        if (!(argv[n++] = sy_arena_text(&a->arena, text, strlen(text))))
            return sy_fail(err, SY_ENOMEM, "no memory for the server's flags");
    }
    argv[n] = NULL;
    return SY_OK;
}

static void stop(struct server *s)
{
    if (s->pid > 0) {
        kill(s->pid, SIGTERM);
        while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR) continue;
    }
    if (s->err_fd >= 0) close(s->err_fd);
    *s = (struct server){.err_fd = -1};
}

/* Its last line, without the program's name. */
static const char *last_line(char *said)
{
    size_t n = strlen(said);
    while (n && said[n - 1] == '\n') said[--n] = 0;
    char *line = strrchr(said, '\n') ? strrchr(said, '\n') + 1 : said;
    return !strncmp(line, "systole: ", 9) ? line + 9 : line;
}

static sy_status wait_up(struct sy_args *a, struct server *s, struct sy_err *err)
{
    char said[SAID_MAX + 1];
    uint64_t end = sy_now_ns(&a->app->env) + (uint64_t)START_S * 1000000000;
    for (;;) {
        ssize_t n = pread(s->err_fd, said, SAID_MAX, 0);
        said[n > 0 ? n : 0] = 0;
        const char *at = strstr(said, "systole: serving '"), *url = at ? strstr(at, "' at ") : NULL;
        if (url && strchr(url, '\n')) {
            snprintf(s->url, sizeof s->url, "%.*s", (int)strcspn(url + 5, "\n"), url + 5);
            return SY_OK;
        }
        int status;
        if (waitpid(s->pid, &status, WNOHANG) == s->pid) {
            s->pid = 0;
            sy_status st = WIFEXITED(status) && WEXITSTATUS(status) == 2   ? SY_EARG
                           : WIFEXITED(status) && WEXITSTATUS(status) == 5 ? SY_ENOMEM
                                                                           : SY_EIO;
            return sy_fail(err, st, "the server ended: %.400s", last_line(said));
        }
        if (sy_interrupt_seen(a->app->interrupt)) return sy_fail(err, SY_EIO, "interrupted");
        if (sy_now_ns(&a->app->env) > end) return sy_fail(err, SY_EIO, "the server did not start in %d s", START_S);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}

static sy_status start(struct sy_args *a, const struct sy_grid *g, size_t point, struct server *s, struct sy_err *err)
{
    const char *argv[ARGV_MAX];
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    sy_status st = arguments(a, g, point, argv, err);
    if (st) return st;
    if (n < 0) return sy_fail(err, SY_EIO, "cannot tell where this program is: %s", strerror(errno));
    path[n] = 0;
    s->err_fd = memfd_create("stderr", MFD_CLOEXEC);
    if (s->err_fd < 0) return sy_fail(err, SY_EIO, "no memory for the server's messages: %s", strerror(errno));
    posix_spawn_file_actions_t to;
    posix_spawnattr_t how;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&to);
    posix_spawn_file_actions_addopen(&to, 0, "/dev/null", 0, 0);
    posix_spawn_file_actions_adddup2(&to, s->err_fd, 1);
    posix_spawn_file_actions_adddup2(&to, s->err_fd, 2);
    posix_spawnattr_init(&how);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setpgroup(&how, 0); /* Ctrl-C is for this process, which ends the server itself */
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    int failed = posix_spawn(&s->pid, path, &to, &how, (char *const *)argv, environ);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&to);
    if (failed) return sy_fail(err, SY_EIO, "cannot start '%s': %s", path, strerror(failed));
    return wait_up(a, s, err);
}

static sy_status measure(struct sy_args *a, const char *url, const char *series, struct sy_sweep_row **row, size_t *n,
                         struct sy_err *err)
{
    struct sy_serving_set v;
    sy_status st = sy_serving_load(a, url, &v, err);
    if (!st) st = sy_serving_answered(&v, err);
    if (st) return st;
    struct sy_sweep_row *all = sy_arena_array(&a->arena, *n + v.n, sizeof *all);
    if (!all) return sy_fail(err, SY_ENOMEM, "no memory for %zu points", *n + v.n);
    if (*n) memcpy(all, *row, *n * sizeof *all);
    for (size_t i = 0; i < v.n; i++) {
        all[*n + i] = (struct sy_sweep_row){sy_serving_usual(a, v.o->model), v.seen[i], v.point[i], series, NAN};
        all[*n + i].says.configuration = series;
    }
    *row = all;
    *n += v.n;
    return SY_OK;
}

static sy_status real(struct sy_args *a, const struct sy_grid *g, struct sy_sweep_row **row, size_t *n,
                      struct sy_err *err)
{
    if (sy_arg_given(a, "url")) {
        if (g->n)
            return sy_fail(err, SY_EARG, "--vary: a server that runs cannot be varied; give -m instead of --url");
        return measure(a, sy_arg_text(a, "url"), sy_arg_text(a, "url"), row, n, err);
    }
    sy_status st = SY_OK;
    for (size_t i = 0; i < g->n_point && !st; i++) {
        struct server s = {.err_fd = -1};
        const char *label = g->n ? sy_grid_label(&a->arena, g, i) : "server";
        if (!label) return sy_fail(err, SY_ENOMEM, "no memory for %zu configurations", g->n_point);
        sy_interrupt_hold(a->app->interrupt);
        st = start(a, g, i, &s, err);
        sy_interrupt_drop(a->app->interrupt);
        if (!st) {
            fprintf(sy_bench_table(a), "%s%s\n", i ? "\n" : "", label);
            st = measure(a, s.url, label, row, n, err);
        }
        stop(&s);
        if (st) st = sy_while(err, st, "%s", label);
    }
    return st;
}

static sy_status write_json(struct sy_args *a, const struct sy_sweep_row *row, size_t n, struct sy_err *err)
{
    struct sy_buf b;
    sy_buf_init(&b, &a->app->env, 0);
    struct sy_jout j = {&b, false};
    sy_jout_open(&j, NULL, '{');
    sy_jout_open(&j, "results", '[');
    for (size_t i = 0; i < n; i++) {
        sy_jout_line(&j);
        sy_serving_put(&j, a, &row[i].says, &row[i].seen, &row[i].point);
    }
    sy_buf_char(&b, '\n');
    sy_jout_close(&j, ']');
    sy_jout_int(&j, "seed", sy_arg_int(a, "seed"));
    sy_jout_text(&j, "version", SY_VERSION);
    sy_jout_close(&j, '}');
    return sy_bench_write_json(a, &b, err);
}

/* Costs, and what no other point of the sweep beats in both: money (without prices chips), and what a user feels. */
static sy_status mark(struct sy_args *a, struct sy_sweep_row *row, size_t n, struct sy_err *err)
{
    struct sy_point *all = sy_arena_array(&a->arena, n + 1, sizeof *all);
    if (!all) return sy_fail(err, SY_ENOMEM, "no memory for %zu points", n);
    for (size_t i = 0; i < n; i++) {
        struct sy_price p = row[i].says.price;
        if (p.chip_hour <= 0) p.chip_hour = 1;
        all[i] = row[i].point;
        all[i].cost = sy_dollars_of(p, all[i].in_tok_s, all[i].out_tok_s);
    }
    sy_pareto(all, n);
    for (size_t i = 0; i < n; i++) {
        row[i].point = all[i];
        if (row[i].says.price.chip_hour <= 0) row[i].point.cost = (struct sy_dollars){0};
    }
    return SY_OK;
}

static double per_chip(const struct sy_sweep_row *r)
{
    return (r->point.in_tok_s + r->point.out_tok_s) / r->says.chips;
}

static void put_frontier(struct sy_args *a, const struct sy_sweep_row *row, size_t n, bool e2e)
{
    FILE *f = sy_bench_table(a);
    fprintf(f, "\nfrontier against %s:\n%10s %12s %10s  %s\n", e2e ? "time to the whole answer" : "interactivity",
            "$/M tok", "tok/s/chip", e2e ? "E2E s" : "tok/s/user", "configuration");
    double last = -INFINITY;
    for (size_t done = 0; done < n; done++) {
        const struct sy_sweep_row *next = NULL;
        double least = 0;
        for (size_t i = 0; i < n; i++) {
            const struct sy_point *p = &row[i].point;
            double at = e2e ? p->e2e_s : p->interactivity;
            if (!(e2e ? p->best_e2e : p->best_interactivity) || at <= last || (next && at >= least)) continue;
            next = &row[i];
            least = at;
        }
        if (!next) break;
        last = least;
        if (next->point.cost.total > 0) fprintf(f, "%10.4f", next->point.cost.total);
        else fprintf(f, "%10s", "-");
        fprintf(f, " %12.1f %10.2f  %s, %g users\n", per_chip(next), least,
                next->says.configuration ? next->says.configuration : next->series, next->seen.concurrency);
    }
    fflush(f);
}

sy_status sy_sweep_report(struct sy_args *a, const char *about, const struct sy_sweep_row *row, size_t n,
                          struct sy_err *err)
{
    char title[200], text[900];
    struct sy_report_point *p = sy_arena_array(&a->arena, n + 1, sizeof *p);
    if (!p) return sy_fail(err, SY_ENOMEM, "no memory for the report");
    snprintf(title, sizeof title, "%.100s: speed and cost", n && row[0].says.model ? row[0].says.model : "model");
    snprintf(
        text, sizeof text,
        "%.300s\nup to %lld tokens in, %lld out; throughputs and costs are of prompt and answer tokens together, "
        "per physical chip.\nLines join what no other point of the same name beats in both axes.",
        about, (long long)sy_arg_int(a, "input-len"), (long long)sy_arg_int(a, "output-len"));
    for (size_t i = 0; i < n; i++) {
        const struct sy_sweep_row *r = &row[i];
        double tput = per_chip(r);
        char label[200];
        snprintf(label, sizeof label, "%s%s%g %s", r->says.configuration ? r->says.configuration : "",
                 r->says.configuration ? ", " : "", r->seen.concurrency > 0 ? r->seen.concurrency : r->seen.rate,
                 r->seen.concurrency > 0 ? "users" : "requests/s");
        const char *own = sy_arena_text(&a->arena, label, strlen(label));
        p[i] = (struct sy_report_point){.series = r->series,
                                        .label = own ? own : "",
                                        .figures = r->says.figures,
                                        .users = r->seen.concurrency > 0 ? r->seen.concurrency : NAN,
                                        .tok_s_chip = tput,
                                        .tok_s_user = r->point.interactivity,
                                        .ttft_s = r->seen.ttft.median,
                                        .e2e_s = r->seen.e2e.median,
                                        .usd_mtok = r->point.cost.total > 0 ? r->point.cost.total : NAN,
                                        .tok_s_mw = tput / r->watts * 1e6,
                                        .kept = true};
    }
    struct sy_report out = {.title = title, .about = text, .point = p, .n = n};
    return sy_report_files(&a->app->env, &out, sy_arg_text(a, "report"), err);
}

sy_status sy_bench_sweep(struct sy_args *a, struct sy_err *err)
{
    struct sy_grid g;
    struct sy_sweep_row *row = NULL;
    size_t n = 0;
    bool simulated = sy_arg_given(a, "model-card") || !strncmp(sy_arg_text(a, "backend"), "sim:", 4);
    sy_status st = sy_serving_check(a, err);
    if (!st && !sy_arg_given(a, "url") && !sy_arg_given(a, "model") && !sy_arg_given(a, "model-card"))
        st = sy_fail(
            err, SY_EARG,
            "bench sweep: expected --url of a server, -m MODEL to start servers of, or --backend sim:CHIP with "
            "-m or --model-card");
    if (!st) st = sy_grid_read(a, &g, err);
    if (!st) st = simulated ? sy_sweep_simulated(a, &g, &row, &n, err) : real(a, &g, &row, &n, err);
    if (!st) st = mark(a, row, n, err);
    if (st) return st;
    put_frontier(a, row, n, false);
    put_frontier(a, row, n, true);
    if (sy_arg_given(a, "json")) st = write_json(a, row, n, err);
    if (!st && sy_arg_given(a, "report"))
        st = sy_sweep_report(a,
                             simulated ? "Nothing here is measured: the production scheduler on a virtual clock"
                                       : "Measured on this machine with closed or open loops of requests",
                             row, n, err);
    return st;
}
