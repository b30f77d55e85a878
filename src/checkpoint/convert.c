/* convert.c - see convert.h: what both writers need, a file and the count of the error. */
#include "checkpoint/convert.h"

#include <errno.h>
#include <string.h>

#include "checkpoint/convert_int.h"

sy_status sy_convert_nomem(const struct sy_convert *w) { return sy_fail(w->err, SY_ENOMEM, "no memory to convert"); }

void sy_convert_put(struct sy_convert *w, const void *at, size_t n)
{
    if (n && fwrite(at, 1, n, w->file) != n && !w->err->code)
        (void)sy_fail(w->err, SY_EIO, "cannot write to '%s': %s", w->path, strerror(errno));
}

sy_status sy_convert_begin(struct sy_convert *w, const char *path)
{
    w->path = path;
    w->file = fopen(path, "wb");
    return w->file ? SY_OK : sy_fail(w->err, SY_EIO, "cannot write '%s': %s", path, strerror(errno));
}

sy_status sy_convert_end(struct sy_convert *w)
{
    if (fclose(w->file) && !w->err->code)
        (void)sy_fail(w->err, SY_EIO, "cannot write to '%s': %s", w->path, strerror(errno));
    w->file = NULL;
    return w->err->code;
}

void sy_convert_count_error(struct sy_convert *w, const float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double off = (double)x[i] - (double)y[i];
        w->off += off * off;
        w->all += (double)x[i] * (double)x[i];
    }
}

void sy_convert_progress(struct sy_convert *w, double done)
{
    w->done += done;
    if (w->opt->progress) w->opt->progress(w->opt->progress_ctx, w->total > 0 ? w->done / w->total : 1);
}

void sy_convert_open(struct sy_convert *w, const struct sy_env *env, const struct sy_checkpoint *c,
                     const struct sy_convert_opt *opt, struct sy_convert_result *res, struct sy_err *err)
{
    *res = (struct sy_convert_result){0};
    *w = (struct sy_convert){.env = env, .c = c, .opt = opt, .res = res};
    w->err = err ? err : &w->own_err;
    w->err->code = SY_OK;
    sy_arena_init(&w->mem, env, 0);
}

void sy_convert_close(struct sy_convert *w)
{
    w->res->error = w->all > 0 ? w->off / w->all : 0;
    sy_arena_release(&w->mem);
}
