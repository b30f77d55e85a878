/* interrupt.c - Ctrl-C. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "app/cli/term.h"

/* Presses that a command may leave unanswered before the process ends anyway. */
enum { PATIENCE = 3 };

struct sy_interrupt {
    atomic_bool held;
    atomic_int seen;
    int fd;
    sigset_t set;
    pthread_t thread;
};

static void *wait_for_it(void *ctx)
{
    struct sy_interrupt *in = ctx;
    sigset_t all; /* other signals are for threads that expect them */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    for (;;) {
        int sig;
        if (sigwait(&in->set, &sig)) continue;
        if (!atomic_load(&in->held) || atomic_fetch_add(&in->seen, 1) >= PATIENCE) {
            /* The shell's prompt should not stand behind "^C" or half a progress bar. */
            if (isatty(STDERR_FILENO)) (void)!write(STDERR_FILENO, "\n", 1);
            _exit(SY_EXIT_INTERRUPTED);
        }
        uint64_t one = 1;
        (void)!write(in->fd, &one, sizeof one);
    }
    return NULL;
}

/* Lives until the process ends: the thread is never joined, the struct never freed. */
sy_status sy_interrupt_new(const struct sy_env *env, struct sy_interrupt **out, struct sy_err *err)
{
    struct sy_interrupt *in = sy_new(env, sizeof *in);
    if (!in) return sy_fail(err, SY_ENOMEM, "no memory to start");
    sigemptyset(&in->set);
    sigaddset(&in->set, SIGINT);
    in->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (in->fd < 0) return sy_fail(err, SY_EIO, "cannot make an eventfd: %s", strerror(errno));
    pthread_sigmask(SIG_BLOCK, &in->set, NULL); /* threads made later inherit this */
    int failed = pthread_create(&in->thread, NULL, wait_for_it, in);
    if (failed) return sy_fail(err, SY_EIO, "cannot start a thread: %s", strerror(failed));
    *out = in;
    return SY_OK;
}

void sy_interrupt_hold(struct sy_interrupt *in)
{
    sy_interrupt_clear(in);
    atomic_store(&in->held, true);
}

void sy_interrupt_drop(struct sy_interrupt *in) { atomic_store(&in->held, false); }

bool sy_interrupt_seen(const struct sy_interrupt *in) { return atomic_load(&in->seen) > 0; }

void sy_interrupt_clear(struct sy_interrupt *in)
{
    uint64_t n;
    (void)!read(in->fd, &n, sizeof n);
    atomic_store(&in->seen, 0);
}

int sy_interrupt_fd(const struct sy_interrupt *in) { return in->fd; }

sy_status sy_terminate_fd(int *fd, struct sy_err *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGHUP, &ignore, NULL);
    *fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return *fd < 0 ? sy_fail(err, SY_EIO, "cannot make a signalfd: %s", strerror(errno)) : SY_OK;
}
