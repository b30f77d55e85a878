/* file.h - files from outside: mapped read-only, or read whole within a bound. */
#pragma once
#include "base/base.h"

/* A read-only mapping of a regular file. Caller's storage. Pages are shared with the page cache. */
struct sy_map {
    const unsigned char *at;
    size_t n;
};
SY_CHECK sy_status sy_map_open(struct sy_map *, const char *path, struct sy_err *); /* empty files are refused */
void sy_map_close(struct sy_map *);                                                 /* a zeroed struct is fine */

/* Reads a whole regular file (or "-": standard input) of at most n_max bytes; *text is NUL-terminated and the
 * caller's, to be freed with sy_delete(env). */
SY_CHECK sy_status sy_file_read(const struct sy_env *, const char *path, size_t n_max, char **text, size_t *n,
                                struct sy_err *);
bool sy_file_exists(const char *path); /* a regular file, links followed */
bool sy_dir_exists(const char *path);
