#include "serve/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "base/file.h"

enum { FILE_BYTES_MAX = 1 << 20 };

/* Keyed, so that neither keys nor collisions can be prepared outside. RFC 2104. */
static void digest(const struct sy_auth *a, const void *bytes, size_t n, unsigned char out[static SY_DIGEST])
{
    unsigned len = SY_DIGEST;
    HMAC(EVP_sha256(), a->secret, sizeof a->secret, bytes, n, out, &len);
}

static sy_status add_key(struct sy_auth *a, const char *key, size_t n, int line, const char *path, struct sy_err *err)
{
    if (n > SY_KEY_BYTES_MAX)
        return sy_fail(err, SY_EARG, "'%s' line %d: a key has at most %d bytes, found %zu", path, line,
                       SY_KEY_BYTES_MAX, n);
    for (size_t i = 0; i < n; i++)
        if (key[i] <= ' ' || key[i] == 0x7f)
            return sy_fail(err, SY_EARG, "'%s' line %d: expected a key without spaces or control characters", path,
                           line);
    if (a->n_key == SY_KEYS_MAX) return sy_fail(err, SY_EARG, "'%s': at most %d keys", path, SY_KEYS_MAX);
    digest(a, key, n, a->digest[a->n_key++]);
    return SY_OK;
}

sy_status sy_auth_init(struct sy_auth *a, const struct sy_env *env, const char *path, struct sy_err *err)
{
    *a = (struct sy_auth){0};
    if (getrandom(a->secret, sizeof a->secret, 0) != sizeof a->secret)
        return sy_fail(err, SY_EIO, "the system gives no random numbers");
    if (!path) return SY_OK;
    char *text;
    size_t n;
    sy_status st = sy_file_read(env, path, FILE_BYTES_MAX, &text, &n, err);
    if (st) return sy_while(err, st, "--api-key-file");
    a->digest = sy_new_array(env, SY_KEYS_MAX, sizeof *a->digest);
    if (!a->digest) st = sy_fail(err, SY_ENOMEM, "no memory for the keys");
    int line = 0;
    for (char *s = text, *end; !st && s < text + n; s = end + 1) {
        end = memchr(s, '\n', (size_t)(text + n - s));
        if (!end) end = text + n;
        size_t len = (size_t)(end - s);
        line++;
        while (len && strchr(" \t\r", s[len - 1])) len--;
        while (len && strchr(" \t", *s)) s++, len--;
        if (len && *s != '#') st = add_key(a, s, len, line, path, err);
    }
    OPENSSL_cleanse(text, n);
    sy_delete(env, text);
    if (!st && !a->n_key) st = sy_fail(err, SY_EARG, "'%s': expected a key a line, found none", path);
    if (!st) return SY_OK;
    sy_auth_release(a, env);
    return sy_while(err, st, "--api-key-file");
}

void sy_auth_release(struct sy_auth *a, const struct sy_env *env)
{
    sy_delete(env, a->digest);
    a->digest = NULL;
    a->n_key = 0;
}

bool sy_auth_check(const struct sy_auth *a, const char *header, unsigned char who[static SY_DIGEST])
{
    memset(who, 0, SY_DIGEST);
    if (!a->n_key) return true;
    if (!header || strncasecmp(header, "Bearer ", 7)) return false;
    header += 7;
    while (*header == ' ') header++;
    size_t n = strnlen(header, SY_KEY_BYTES_MAX + 1);
    if (n > SY_KEY_BYTES_MAX) return false;
    digest(a, header, n, who);
    int found = 0; /* every key is compared, whatever the earlier ones said */
    for (int i = 0; i < a->n_key; i++) found |= CRYPTO_memcmp(a->digest[i], who, SY_DIGEST) == 0;
    return found;
}

uint64_t sy_auth_domain(const struct sy_auth *a, const unsigned char who[static SY_DIGEST], const char *salt,
                        size_t n)
{
    unsigned char in[SY_DIGEST + 1 + 256], out[SY_DIGEST];
    size_t len = SY_DIGEST + 1;
    memcpy(in, who, SY_DIGEST);
    in[SY_DIGEST] = salt != NULL;
    if (salt && n <= 256) {
        memcpy(in + len, salt, n);
        len += n;
    }
    digest(a, in, len, out);
    uint64_t domain;
    memcpy(&domain, out, sizeof domain);
    return domain;
}
