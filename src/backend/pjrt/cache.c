/* cache.c - the compile cache's files: magic, lengths of key and executable, a sum of the executable, both. */
#include "backend/pjrt/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

struct head {
    char magic[8];
    uint64_t n_target, n_text, n_bytes, sum;
};
static const char magic[8] = "SYPJRT1";

/* FNV-1a (Fowler, Noll, Vo), 64 bits. */
static uint64_t mix(uint64_t h, const void *bytes, size_t n)
{
    const unsigned char *b = bytes;
    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3u;
    return h;
}

static void entry_path(const char *dir, const struct pj_key *k, char *path, size_t n_path)
{
    uint64_t h = mix(0xcbf29ce484222325u, k->target, strlen(k->target) + 1);
    snprintf(path, n_path, "%s/%016llx.program", dir, (unsigned long long)mix(h, k->text, k->n_text));
}

bool pj_cache_read(const struct sy_env *env, const char *dir, const struct pj_key *k, struct sy_buf *out)
{
    char path[4200];
    struct sy_map m = {0};
    struct head h;
    (void)env;
    if (!dir) return false;
    entry_path(dir, k, path, sizeof path);
    if (!sy_file_exists(path) || sy_map_open(&m, path, NULL)) return false;
    size_t n_target = strlen(k->target);
    bool ok = m.n >= sizeof h;
    if (ok) memcpy(&h, m.at, sizeof h);
    ok = ok && !memcmp(h.magic, magic, sizeof magic) && h.n_target == n_target && h.n_text == k->n_text &&
         h.n_bytes > 0 && h.n_bytes < m.n && m.n == sizeof h + n_target + k->n_text + h.n_bytes;
    const unsigned char *at = m.at + sizeof h;
    ok = ok && !memcmp(at, k->target, n_target) && !memcmp(at + n_target, k->text, k->n_text);
    at += n_target + k->n_text;
    ok = ok && mix(0, at, h.n_bytes) == h.sum;
    if (ok) sy_buf_add(out, at, h.n_bytes);
    sy_map_close(&m);
    return ok && !out->failed;
}

static bool put(FILE *f, const void *bytes, size_t n) { return fwrite(bytes, 1, n, f) == n; }

bool pj_cache_write(const struct sy_env *env, const char *dir, const struct pj_key *k, const void *bytes, size_t n)
{
    char path[4200], part[4240];
    if (!dir || n == 0) return false;
    entry_path(dir, k, path, sizeof path);
    snprintf(part, sizeof part, "%s.%d", path, (int)getpid()); /* whole or not there, however many write it */
    struct head h = {.n_target = strlen(k->target), .n_text = k->n_text, .n_bytes = n, .sum = mix(0, bytes, n)};
    memcpy(h.magic, magic, sizeof magic);
    FILE *f = fopen(part, "wbe");
    bool ok =
        f && put(f, &h, sizeof h) && put(f, k->target, h.n_target) && put(f, k->text, k->n_text) && put(f, bytes, n);
    if (f && fclose(f)) ok = false;
    if (ok && rename(part, path) == 0) return true;
    if (f) unlink(part);
    sy_log_at(env, SY_LOG_WARN, "the compile cache '%s' cannot be written", dir);
    return false;
}
