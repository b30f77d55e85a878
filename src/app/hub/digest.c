/* digest.c - what a hub says of a file's bytes: SHA-256 of a large file, git's blob id of a small one. */
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/hub/hub.h"

struct sy_digest {
    const struct sy_hub_file *file;
    EVP_MD_CTX *md;
};

struct sy_digest *sy_digest_new(const struct sy_hub_file *file)
{
    struct sy_digest *d = sy_new(sy_env_default(), sizeof *d);
    if (!d) return NULL;
    d->file = file;
    d->md = EVP_MD_CTX_new();
    if (d->md) {
        sy_digest_restart(d);
        return d;
    }
    sy_digest_free(d);
    return NULL;
}

void sy_digest_free(struct sy_digest *d)
{
    if (!d) return;
    EVP_MD_CTX_free(d->md);
    sy_delete(sy_env_default(), d);
}

void sy_digest_restart(struct sy_digest *d)
{
    EVP_DigestInit_ex(d->md, d->file->lfs ? EVP_sha256() : EVP_sha1(), NULL);
    if (d->file->lfs) return;
    /* git hash-object: the blob's header, with its NUL, is part of what is hashed */
    char head[40];
    int n = snprintf(head, sizeof head, "blob %lld", (long long)d->file->bytes);
    EVP_DigestUpdate(d->md, head, (size_t)n + 1);
}

void sy_digest_feed(struct sy_digest *d, const void *bytes, size_t n) { EVP_DigestUpdate(d->md, bytes, n); }

bool sy_digest_matches(struct sy_digest *d, char found[static 65])
{
    unsigned char raw[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    EVP_DigestFinal_ex(d->md, raw, &n);
    for (unsigned i = 0; i < n && i < 32; i++) snprintf(found + 2 * i, 3, "%02x", raw[i]);
    return !strcmp(found, d->file->digest);
}
