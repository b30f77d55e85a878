/* editor.c - reading lines. */
#include "app/cli/editor.h"

#include <errno.h>
#include <histedit.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

enum { HISTORY_MAX = 1000, LINE_BYTES_MAX = 16 << 20 };

struct sy_editor {
    struct sy_app *app;
    EditLine *el; /* NULL: standard input is no terminal */
    History *history;
    const char *prompt;
    char *path;
    bool interrupted;
};

static struct sy_editor *self(EditLine *el)
{
    void *data = NULL;
    el_get(el, EL_CLIENTDATA, &data);
    return data;
}

static char *prompt_of(EditLine *el) { return (char *)(uintptr_t)self(el)->prompt; }

/* A character, or Ctrl-C: libedit's own reader would sleep through it, for SIGINT goes to a thread of its own. */
static int next_char(EditLine *el, wchar_t *out)
{
    struct sy_editor *e = self(el);
    struct pollfd p[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                          {.fd = sy_interrupt_fd(e->app->interrupt), .events = POLLIN}};
    mbstate_t state = {0};
    for (;;) {
        if (poll(p, 2, -1) < 0 && errno != EINTR) return -1;
        if (p[1].revents & POLLIN) {
            e->interrupted = true;
            return 0; /* ends el_gets() */
        }
        if (!(p[0].revents & (POLLIN | POLLHUP))) continue;
        char c;
        ssize_t n = read(STDIN_FILENO, &c, 1);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return (int)n;
        size_t got = mbrtowc(out, &c, 1, &state);
        if (got == (size_t)-2) continue; /* more bytes of one character */
        if (got != (size_t)-1) return 1;
        memset(&state, 0, sizeof state);
    }
}

sy_status sy_editor_new(struct sy_app *app, const char *history_path, struct sy_editor **out, struct sy_err *err)
{
    struct sy_editor *e = sy_new(&app->env, sizeof *e);
    if (!e) return sy_fail(err, SY_ENOMEM, "no memory to read lines");
    e->app = app;
    *out = e;
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) return SY_OK;
    e->el = el_init("systole", stdin, stdout, stderr);
    e->history = history_init();
    e->path = history_path ? strdup(history_path) : NULL;
    if (!e->el || !e->history) {
        sy_editor_free(e);
        *out = NULL;
        return sy_fail(err, SY_ENOMEM, "cannot start line editing on this terminal");
    }
    HistEvent ev;
    history(e->history, &ev, H_SETSIZE, HISTORY_MAX);
    history(e->history, &ev, H_SETUNIQUE, 1);
    if (e->path) history(e->history, &ev, H_LOAD, e->path);
    el_set(e->el, EL_CLIENTDATA, e);
    el_set(e->el, EL_PROMPT, prompt_of);
    el_set(e->el, EL_EDITOR, "emacs");
    el_set(e->el, EL_HIST, history, e->history);
    el_set(e->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(e->el, EL_GETCFN, next_char);
    el_source(e->el, NULL); /* the user's ~/.editrc */
    return SY_OK;
}

void sy_editor_free(struct sy_editor *e)
{
    if (!e) return;
    HistEvent ev;
    if (e->history && e->path) history(e->history, &ev, H_SAVE, e->path);
    if (e->el) el_end(e->el);
    if (e->history) history_end(e->history);
    free(e->path);
    sy_delete(&e->app->env, e);
}

bool sy_editor_terminal(const struct sy_editor *e) { return e->el != NULL; }

void sy_editor_remember(struct sy_editor *e, const char *text)
{
    HistEvent ev;
    if (e->history) history(e->history, &ev, H_ENTER, text);
}

static enum sy_line read_piped(struct sy_buf *line)
{
    int c = EOF;
    while (line->len < LINE_BYTES_MAX && (c = getchar()) != EOF && c != '\n') sy_buf_char(line, (char)c);
    if (line->len && line->at[line->len - 1] == '\r') line->at[--line->len] = 0;
    return c == EOF && !line->len ? SY_LINE_END : SY_LINE;
}

enum sy_line sy_editor_read(struct sy_editor *e, const char *prompt, struct sy_buf *line)
{
    sy_buf_clear(line);
    sy_buf_text(line, "");
    if (!e->el) return read_piped(line);
    e->prompt = prompt;
    e->interrupted = false;
    int n;
    const char *text = el_gets(e->el, &n);
    if (e->interrupted) {
        sy_interrupt_clear(e->app->interrupt);
        el_reset(e->el);
        fputc('\n', stdout);
        return SY_LINE_INTERRUPTED;
    }
    if (!text || n <= 0) return SY_LINE_END;
    sy_buf_add(line, text, (size_t)n - (text[n - 1] == '\n'));
    return SY_LINE;
}
