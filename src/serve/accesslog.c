#include "serve/accesslog.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WAITING_BYTES_MAX = 1 << 20, LAST_WORDS_MS = 500 };

struct sy_accesslog {
    const struct sy_env *env;
    int fd;
    bool own_fd, quit;
    uint64_t lost;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t news;
    struct sy_buf waiting, going;
};

/* Waits for room before each write, so that ending the server is not up to whoever reads the log. */
static bool put(struct sy_accesslog *l, const char *s, size_t n, bool quit)
{
    while (n) {
        struct pollfd p = {.fd = l->fd, .events = POLLOUT};
        int ready = poll(&p, 1, LAST_WORDS_MS);
        if (ready == 0 && quit) return false;
        if (ready == 0) {
            pthread_mutex_lock(&l->lock);
            quit = l->quit;
            pthread_mutex_unlock(&l->lock);
            continue;
        }
        ssize_t w = write(l->fd, s, n < 4096 ? n : 4096);
        if (w < 0 && errno != EINTR && errno != EAGAIN) return false;
        if (w > 0) s += w, n -= (size_t)w;
    }
    return true;
}

static void *run(void *ctx)
{
    struct sy_accesslog *l = ctx;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (!l->waiting.len && !l->quit) pthread_cond_wait(&l->news, &l->lock);
        if (!l->waiting.len) break;
        struct sy_buf swap = l->going;
        l->going = l->waiting;
        l->waiting = swap;
        bool quit = l->quit;
        pthread_mutex_unlock(&l->lock);
        bool ok = put(l, l->going.at, l->going.len, quit);
        pthread_mutex_lock(&l->lock);
        l->lost += !ok;
        sy_buf_clear(&l->going);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

sy_status sy_accesslog_new(const struct sy_env *env, const char *path, struct sy_accesslog **out, struct sy_err *err)
{
    struct sy_accesslog *l = sy_new(env, sizeof *l);
    if (!l) return sy_fail(err, SY_ENOMEM, "no memory for the access log");
    bool std = !strcmp(path, "-");
    *l = (struct sy_accesslog){.env = env, .own_fd = !std};
    l->fd = std ? STDOUT_FILENO : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    sy_status st = SY_OK;
    if (l->fd < 0) st = sy_fail(err, SY_EIO, "--access-log: cannot open '%s': %s", path, strerror(errno));
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->news, NULL);
    sy_buf_init(&l->waiting, env, WAITING_BYTES_MAX);
    sy_buf_init(&l->going, env, WAITING_BYTES_MAX);
    int failed = st ? 0 : pthread_create(&l->thread, NULL, run, l);
    if (failed) st = sy_fail(err, SY_EIO, "cannot start a thread: %s", strerror(failed));
    if (!st) {
        *out = l;
        return SY_OK;
    }
    if (l->own_fd && l->fd >= 0) close(l->fd);
    sy_delete(env, l);
    return st;
}

void sy_accesslog_free(struct sy_accesslog *l)
{
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->quit = true;
    pthread_cond_signal(&l->news);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    if (l->own_fd) close(l->fd);
    sy_buf_release(&l->waiting);
    sy_buf_release(&l->going);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->news);
    sy_delete(l->env, l);
}

void sy_accesslog_add(struct sy_accesslog *l, const char *line, size_t n)
{
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    if (l->waiting.len + n + 1 >= WAITING_BYTES_MAX) {
        l->lost++;
    } else {
        sy_buf_add(&l->waiting, line, n);
        sy_buf_char(&l->waiting, '\n');
    }
    if (l->waiting.failed) { /* out of memory: these lines are lost, the next ones may not be */
        sy_buf_clear(&l->waiting);
        l->lost++;
    }
    pthread_cond_signal(&l->news);
    pthread_mutex_unlock(&l->lock);
}

uint64_t sy_accesslog_lost(struct sy_accesslog *l)
{
    if (!l) return 0;
    pthread_mutex_lock(&l->lock);
    uint64_t n = l->lost;
    pthread_mutex_unlock(&l->lock);
    return n;
}
