/* convert_int.h - what the two writers of converted checkpoints share. */
#pragma once
#include <stdio.h>

#include "checkpoint/convert.h"
#include "checkpoint/internal.h"
#include "checkpoint/pages.h"

/* A conversion under way. The first failure sticks in err; later writes do nothing. */
struct sy_convert {
    const struct sy_env *env;
    const struct sy_checkpoint *c;
    const struct sy_convert_opt *opt;
    struct sy_convert_result *res;
    struct sy_arena mem;
    FILE *file;
    const char *path;             /* of the file, for messages */
    double off, all, done, total; /* squared error, squares; work */
    struct sy_err *err, own_err;
};
void sy_convert_open(struct sy_convert *, const struct sy_env *, const struct sy_checkpoint *,
                     const struct sy_convert_opt *, struct sy_convert_result *, struct sy_err *);
void sy_convert_close(struct sy_convert *);
sy_status sy_convert_nomem(const struct sy_convert *);
sy_status sy_convert_begin(struct sy_convert *, const char *path); /* path outlives the file */
sy_status sy_convert_end(struct sy_convert *);                     /* after a successful begin */
void sy_convert_put(struct sy_convert *, const void *at, size_t n);
void sy_convert_count_error(struct sy_convert *, const float *was, const float *is, int64_t n);
void sy_convert_progress(struct sy_convert *, double done);
