#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"

static sy_status open_regular(const char *path, int *fd, struct stat *st, struct sy_err *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return sy_fail(err, SY_EIO, "cannot open '%s': %s", path, strerror(errno));
    if (fstat(*fd, st) == 0 && S_ISREG(st->st_mode)) return SY_OK;
    close(*fd);
    return sy_fail(err, SY_EIO, "cannot read '%s': not a regular file", path);
}

sy_status sy_map_open(struct sy_map *m, const char *path, struct sy_err *err)
{
    int fd;
    struct stat s;
    sy_status st = open_regular(path, &fd, &s, err);
    if (st) return st;
    if (s.st_size == 0) {
        close(fd);
        return sy_fail(err, SY_EFORMAT, "'%s' is empty", path);
    }
    void *p = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_SHARED, fd, 0);
    int why = errno;
    close(fd);
    if (p == MAP_FAILED) return sy_fail(err, SY_EIO, "cannot map '%s': %s", path, strerror(why));
    *m = (struct sy_map){p, (size_t)s.st_size};
    return SY_OK;
}

void sy_map_close(struct sy_map *m)
{
    if (m->at) munmap((void *)(uintptr_t)m->at, m->n);
    *m = (struct sy_map){0};
}

sy_status sy_file_read(const struct sy_env *env, const char *path, size_t n_max, char **text, size_t *n,
                       struct sy_err *err)
{
    int fd = STDIN_FILENO;
    bool std_in = !strcmp(path, "-");
    struct stat s;
    sy_status st = std_in ? SY_OK : open_regular(path, &fd, &s, err);
    if (st) return st;
    struct sy_buf b;
    sy_buf_init(&b, env, n_max);
    sy_buf_add(&b, "", 0);
    char chunk[1 << 16];
    ssize_t got;
    while ((got = read(fd, chunk, sizeof chunk)) > 0 || (got < 0 && errno == EINTR)) {
        if (got < 0) continue;
        sy_buf_add(&b, chunk, (size_t)got);
        if (b.failed) break;
    }
    if (got < 0) st = sy_fail(err, SY_EIO, "cannot read '%s': %s", path, strerror(errno));
    else if (b.failed && b.len + sizeof chunk > n_max)
        st = sy_fail(err, SY_EFORMAT, "'%s' is larger than the %zu bytes allowed here", path, n_max);
    else if (b.failed) st = sy_fail(err, SY_ENOMEM, "no memory to read '%s'", path);
    if (!std_in) close(fd);
    if (st) {
        sy_buf_release(&b);
        return st;
    }
    *text = b.at;
    *n = b.len;
    return SY_OK;
}

bool sy_file_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

bool sy_dir_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}
