#include "app/aot/child.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct reply {
    sy_status st;
    struct sy_err err;
};

static bool put(int fd, const void *bytes, size_t n)
{
    for (const char *at = bytes; n > 0;) {
        ssize_t k = write(fd, at, n);
        if (k <= 0) return false;
        at += k;
        n -= (size_t)k;
    }
    return true;
}

static bool take(int fd, void *bytes, size_t n)
{
    for (char *at = bytes; n > 0;) {
        ssize_t k = read(fd, at, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        at += k;
        n -= (size_t)k;
    }
    return true;
}

/* What libtpu and XLA read: no metadata server, several processes, no log. */
static void set_environment(void)
{
    setenv("TPU_SKIP_MDS_QUERY", "1", 0);
    setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1", 0);
    setenv("TF_CPP_MIN_LOG_LEVEL", "3", 0);
}

static _Noreturn void be_child(sy_status (*work)(void *, void *, struct sy_err *), void *ctx, void *result, size_t n,
                               int out, int log)
{
    struct reply r = {0};
    set_environment();
    dup2(log, STDERR_FILENO);
    r.st = work(ctx, result, &r.err);
    bool ok = put(out, &r, sizeof r) && put(out, result, n);
    _exit(ok ? 0 : 1);
}

/* The last line of what the child wrote. */
static void last_line(int log, char *line, size_t n_line)
{
    char text[4096];
    off_t end = lseek(log, 0, SEEK_END), from = end > (off_t)sizeof text ? end - (off_t)sizeof text : 0;
    ssize_t n = pread(log, text, sizeof text - 1, from);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' ')) n--;
    ssize_t at = n > 0 ? n : 0;
    while (at > 0 && text[at - 1] != '\n') at--;
    snprintf(line, n_line, "%.*s", n > at ? (int)(n - at < 200 ? n - at : 200) : 0, text + at);
}

sy_status sy_child_run(sy_status (*work)(void *, void *, struct sy_err *), void *ctx, void *result, size_t n,
                       struct sy_err *err)
{
    int pipe_fd[2], status = 0, log = memfd_create("log", MFD_CLOEXEC);
    if (log < 0 || pipe(pipe_fd)) {
        if (log >= 0) close(log);
        return sy_fail(err, SY_EIO, "cannot start a process to compile in: %s", strerror(errno));
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        close(pipe_fd[0]);
        be_child(work, ctx, result, n, pipe_fd[1], log);
    }
    close(pipe_fd[1]);
    struct reply r;
    bool got = pid > 0 && take(pipe_fd[0], &r, sizeof r) && take(pipe_fd[0], result, n);
    close(pipe_fd[0]);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    char line[256];
    last_line(log, line, sizeof line);
    close(log);
    if (pid < 0) return sy_fail(err, SY_EIO, "cannot start a process to compile in");
    if (!got && WIFSIGNALED(status))
        return sy_fail(err, SY_ENOSUP, "the plugin's process was killed by signal %d (%s); its last words: %s",
                       WTERMSIG(status), strsignal(WTERMSIG(status)), line[0] ? line : "none");
    if (!got)
        return sy_fail(err, SY_ENOSUP, "the plugin ended its process; its last words: %s", line[0] ? line : "none");
    if (r.st && err) *err = r.err;
    return r.st;
}
