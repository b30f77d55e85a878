/* pull.c - a repository into the cache. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "app/hub/hub.h"
#include "base/file.h"

enum { LISTING_BYTES_MAX = 64 << 20, PAGES_MAX = 1000 };

struct pull {
    const struct sy_args *args;
    struct sy_arena *arena;
    const struct sy_repo *repo;
    struct sy_http *http;
    struct sy_listing list;
    struct sy_progress bar;
    double done, total; /* bytes of all wanted files */
};

struct part { /* one file on its way */
    struct pull *p;
    struct sy_digest *digest;
    struct sy_sink sink;
    int fd;
};

/* ---- one file ------------------------------------------------------------------------------------------- */

static bool part_write(void *ctx, const void *bytes, size_t n)
{
    struct part *t = ctx;
    for (size_t at = 0; at < n;) {
        ssize_t got = write(t->fd, (const char *)bytes + at, n - at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            t->sink.err_no = errno;
            return false;
        }
        at += (size_t)got;
    }
    sy_digest_feed(t->digest, bytes, n);
    sy_progress_bytes(&t->p->bar, t->p->done + (double)t->sink.have + (double)n, t->p->total);
    return true;
}

static bool part_restart(void *ctx)
{
    struct part *t = ctx;
    if (ftruncate(t->fd, 0) || lseek(t->fd, 0, SEEK_SET) < 0) t->sink.err_no = errno;
    sy_digest_restart(t->digest);
    return !t->sink.err_no;
}

/* Feeds what an earlier run left to the digest. */
static sy_status part_resume(struct part *t, const char *path, int64_t bytes, struct sy_err *err)
{
    struct stat s;
    if (fstat(t->fd, &s)) return sy_fail(err, SY_EIO, "cannot read '%s': %s", path, strerror(errno));
    if (s.st_size > bytes) return part_restart(t) ? SY_OK : sy_fail(err, SY_EIO, "cannot empty '%s'", path);
    char chunk[1 << 16];
    ssize_t got;
    while ((got = read(t->fd, chunk, sizeof chunk)) > 0) {
        sy_digest_feed(t->digest, chunk, (size_t)got);
        t->sink.have += got;
    }
    return got < 0 ? sy_fail(err, SY_EIO, "cannot read '%s': %s", path, strerror(errno)) : SY_OK;
}

static sy_status fetch_part(struct part *t, const struct sy_hub_file *f, const char *path, struct sy_err *err)
{
    struct sy_buf url;
    sy_buf_init(&url, t->p->arena->env, 4000);
    sy_buf_printf(&url, "/%s/resolve/main/", t->p->repo->id);
    sy_url_path(&url, f->path);
    sy_status st = url.failed ? sy_fail(err, SY_ENOMEM, "no memory to fetch '%.100s'", f->path) : SY_OK;
    char found[65];
    for (bool resumed = !st && t->sink.have > 0;; resumed = false) {
        if (!st) st = sy_http_download(t->p->http, url.at, t->p->repo->id, &t->sink, err);
        if (st || sy_digest_matches(t->digest, found)) break;
        /* The part may stem from another revision, or a page that a proxy put in: once more from the start. */
        bool clean = part_restart(t);
        t->sink.have = 0;
        if (resumed && clean) continue;
        unlink(path);
        st =
            sy_fail(err, SY_EIO, "hf:%.80s: '%.80s': expected digest %.64s, found %.64s; what was fetched is deleted",
                    t->p->repo->id, f->path, f->digest, found);
        break;
    }
    sy_buf_release(&url);
    return st;
}

static sy_status fetch(struct pull *p, const struct sy_hub_file *f, const char *final, struct sy_err *err)
{
    const char *path = sy_arena_printf(p->arena, "%s.part", final);
    struct part t = {.p = p, .digest = sy_digest_new(f), .fd = -1};
    if (!path || !t.digest) {
        sy_digest_free(t.digest);
        return sy_fail(err, SY_ENOMEM, "no memory to fetch '%.100s'", f->path);
    }
    t.sink = (struct sy_sink){.total = f->bytes, .write = part_write, .restart = part_restart, .ctx = &t};
    t.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    sy_status st = t.fd < 0 ? sy_fail(err, SY_EIO, "cannot write '%s': %s", path, strerror(errno)) : SY_OK;
    if (!st) st = part_resume(&t, path, f->bytes, err);
    if (!st) st = fetch_part(&t, f, path, err);
    if (!st && (fsync(t.fd) || rename(path, final)))
        st = sy_fail(err, SY_EIO, "cannot write '%s': %s", final, strerror(errno));
    if (t.fd >= 0) close(t.fd);
    sy_digest_free(t.digest);
    return st;
}

/* Whether the file of an earlier pull is still what the hub has. */
static bool up_to_date(const struct sy_hub_file *f, const char *path)
{
    struct sy_map m = {0};
    if (!sy_file_exists(path) || sy_map_open(&m, path, NULL)) return f->bytes == 0 && sy_file_exists(path);
    struct sy_digest *d = (int64_t)m.n == f->bytes ? sy_digest_new(f) : NULL;
    char found[65];
    if (d) sy_digest_feed(d, m.at, m.n);
    bool same = d && sy_digest_matches(d, found);
    sy_digest_free(d);
    sy_map_close(&m);
    return same;
}

static sy_status take_file(struct pull *p, const struct sy_hub_file *f, struct sy_err *err)
{
    char *path = sy_arena_printf(p->arena, "%s/%s", p->repo->dir, f->path);
    if (!path) return sy_fail(err, SY_ENOMEM, "no memory to fetch '%.100s'", f->path);
    char *slash = strrchr(path, '/');
    *slash = 0;
    sy_status st = sy_dir_make(path, err);
    *slash = '/';
    if (!st && !up_to_date(f, path)) st = fetch(p, f, path, err);
    p->done += (double)f->bytes;
    return st;
}

/* ---- the repository ------------------------------------------------------------------------------------- */

static sy_status list(struct pull *p, struct sy_err *err)
{
    char url[2048], next[2048];
    snprintf(url, sizeof url, "/api/models/%s/tree/main?recursive=true", p->repo->id);
    struct sy_buf text;
    sy_buf_init(&text, p->arena->env, LISTING_BYTES_MAX);
    sy_status st = SY_OK;
    for (int page = 0; !st && url[0]; page++) {
        if (page == PAGES_MAX)
            st = sy_fail(err, SY_ENOSUP, "hf:%s: the listing has more than %d pages", p->repo->id, PAGES_MAX);
        if (!st) st = sy_http_text(p->http, url, p->repo->id, &text, next, sizeof next, err);
        if (!st) st = sy_listing_add(p->arena, p->arena->env, text.at ? text.at : "", text.len, &p->list, err);
        memcpy(url, next, sizeof url);
    }
    sy_buf_release(&text);
    return st;
}

static sy_status check_space(struct pull *p, struct sy_err *err)
{
    double need = 0;
    for (size_t i = 0; i < p->list.n; i++) {
        const struct sy_hub_file *f = &p->list.file[i];
        if (!f->wanted) continue;
        p->total += (double)f->bytes;
        struct stat s;
        const char *path = sy_arena_printf(p->arena, "%s/%s.part", p->repo->dir, f->path);
        const char *final = sy_arena_printf(p->arena, "%s/%s", p->repo->dir, f->path);
        if (!path || !final) return sy_fail(err, SY_ENOMEM, "no memory to pull");
        if (stat(final, &s) && stat(path, &s)) s.st_size = 0;
        need += (double)f->bytes - (double)s.st_size;
    }
    struct statvfs v;
    if (statvfs(p->repo->dir, &v)) return SY_OK;
    double room = (double)v.f_bavail * (double)v.f_frsize;
    char a[16], b[16];
    sy_size_text(need, a);
    sy_size_text(room, b);
    if (need <= room) return SY_OK;
    return sy_fail(err, SY_EIO, "hf:%s: %s are needed in '%.150s', %s are free; make room or set SYSTOLE_HOME",
                   p->repo->id, a, p->repo->dir, b);
}

/* One pull per repository at a time: a second one waits, then finds the work done. */
static sy_status lock(struct pull *p, int *fd, struct sy_err *err)
{
    sy_status st = sy_dir_make(p->repo->dir, err);
    if (st) return st;
    const char *path = sy_arena_printf(p->arena, "%s/.lock", p->repo->dir);
    *fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (*fd < 0) return sy_fail(err, SY_EIO, "cannot write in '%s': %s", p->repo->dir, strerror(errno));
    if (!flock(*fd, LOCK_EX | LOCK_NB)) return SY_OK;
    if (!p->args->app->quiet)
        fprintf(stderr, "systole: hf:%s is being pulled by another process; waiting\n", p->repo->id);
    return flock(*fd, LOCK_EX) ? sy_fail(err, SY_EIO, "cannot lock '%s': %s", path, strerror(errno)) : SY_OK;
}

static sy_status mark_complete(struct pull *p, const char *what, struct sy_err *err)
{
    const char *path = sy_arena_printf(p->arena, "%s/.complete", p->repo->dir);
    const char *new = sy_arena_printf(p->arena, "%s/.complete.new", p->repo->dir);
    FILE *f = path && new ? fopen(new, "w") : NULL;
    if (!f) return sy_fail(err, SY_EIO, "cannot write in '%s': %s", p->repo->dir, strerror(errno));
    bool ok = fprintf(f, "%s\n", what) > 0;
    if (fclose(f) || !ok || rename(new, path))
        return sy_fail(err, SY_EIO, "cannot write in '%s': %s", p->repo->dir, strerror(errno));
    return SY_OK;
}

static sy_status pull_all(struct pull *p, struct sy_err *err)
{
    const char *what = NULL;
    sy_status st = list(p, err);
    if (!st) st = sy_listing_choose(&p->list, p->repo, &what, err);
    if (!st) st = check_space(p, err);
    char label[64];
    snprintf(label, sizeof label, "pulling %.50s", p->repo->id);
    sy_progress_init(&p->bar, p->arena->env, p->args->app->progress, label);
    for (size_t i = 0; i < p->list.n && !st; i++)
        if (p->list.file[i].wanted) st = take_file(p, &p->list.file[i], err);
    sy_progress_end(&p->bar);
    if (!st && !p->repo->file) st = mark_complete(p, what, err);
    return st;
}

sy_status sy_repo_pull(struct sy_args *a, const struct sy_repo *r, const char **path, struct sy_err *err)
{
    struct pull p = {.args = a, .arena = &a->arena, .repo = r};
    int fd = -1;
    sy_status st = sy_http_new(p.arena->env, &p.http, err);
    if (!st) st = lock(&p, &fd, err);
    if (!st) st = pull_all(&p, err);
    if (fd >= 0) close(fd);
    sy_http_free(p.http);
    if (st) return st;
    st = sy_repo_cached(p.arena, r, path, err);
    if (!st && !*path) st = sy_fail(err, SY_EIO, "hf:%s: pulled, but not found in '%s'", r->id, r->dir);
    return st;
}
