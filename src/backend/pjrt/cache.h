/* cache.h - compiled programs kept on disk between runs. An entry is found by the whole key (the program's text, and
 * what compiled it for what), which is stored in it and compared, so nothing rests on a hash. A cache only saves
 * time: whatever is wrong with an entry or the folder makes it a miss. */
#pragma once
#include "base/buf.h"

struct pj_key {         /* borrowed */
    const char *target; /* platform, device kind, plugin's version, options */
    const char *text;
    size_t n_text;
};
/* The executable as the plugin serialised it, appended to out; false: not there. dir NULL: no cache. */
bool pj_cache_read(const struct sy_env *, const char *dir, const struct pj_key *, struct sy_buf *out);
/* False, and a line in the log: it cannot be written. */
bool pj_cache_write(const struct sy_env *, const char *dir, const struct pj_key *, const void *bytes, size_t n);
