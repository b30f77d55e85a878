/* auth.h - who asks: keys from a file, and the prefix-cache domain that follows from key and salt. */
#pragma once
#include "base/base.h"

enum { SY_KEYS_MAX = 1024, SY_KEY_BYTES_MAX = 512, SY_DIGEST = 32 };
struct sy_auth {
    unsigned char secret[SY_DIGEST]; /* of this process */
    unsigned char (*digest)[SY_DIGEST];
    int n_key; /* 0: everybody may */
};
/* path NULL: no keys. One key a line; '#' begins a comment line. */
SY_CHECK sy_status sy_auth_init(struct sy_auth *, const struct sy_env *, const char *path, struct sy_err *);
void sy_auth_release(struct sy_auth *, const struct sy_env *);
/* header: the Authorization header's value, or NULL. On true who is the caller's digest. Takes the same
 * time for every wrong key of one length. */
bool sy_auth_check(const struct sy_auth *, const char *header, unsigned char who[static SY_DIGEST]);
/* Entries of the prefix cache are shared within a domain only; salt NULL: none. */
uint64_t sy_auth_domain(const struct sy_auth *, const unsigned char who[static SY_DIGEST], const char *salt,
                        size_t n_salt);
