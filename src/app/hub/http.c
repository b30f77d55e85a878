/* http.c - GET with retries, over libcurl. */
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "app/hub/hub.h"

enum { TRIES = 5, REDIRECTS_MAX = 10, WAIT_MAX_S = 30 };

struct sy_http {
    const struct sy_env *env;
    CURL *curl;
    char endpoint[512];
    char message[CURL_ERROR_SIZE];
};

sy_status sy_http_new(const struct sy_env *env, struct sy_http **out, struct sy_err *err)
{
    const char *endpoint = getenv("HF_ENDPOINT"), *token = getenv("HF_TOKEN");
    if (!endpoint || !*endpoint) endpoint = "https://huggingface.co";
    if (strncmp(endpoint, "http://", 7) && strncmp(endpoint, "https://", 8))
        return sy_fail(err, SY_EARG, "HF_ENDPOINT: expected http:// or https://, found '%.100s'", endpoint);
    struct sy_http *h = sy_new(env, sizeof *h);
    CURL *c = h && curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? curl_easy_init() : NULL;
    if (!c) {
        sy_delete(env, h);
        return sy_fail(err, SY_ENOMEM, "cannot start libcurl");
    }
    *h = (struct sy_http){.env = env, .curl = c};
    int n = snprintf(h->endpoint, sizeof h->endpoint, "%s", endpoint);
    while (n > 0 && n < (int)sizeof h->endpoint && h->endpoint[n - 1] == '/') h->endpoint[--n] = 0;
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, h->message);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "systole/" SY_VERSION);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(c, CURLOPT_MAXREDIRS, (long)REDIRECTS_MAX);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, strncmp(endpoint, "https", 5) ? "http,https" : "https");
    curl_easy_setopt(c, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, 30L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, 60L);
    if (token && *token) { /* curl keeps it from other hosts that a redirect leads to */
        curl_easy_setopt(c, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
        curl_easy_setopt(c, CURLOPT_XOAUTH2_BEARER, token);
    }
    *out = h;
    return SY_OK;
}

void sy_http_free(struct sy_http *h)
{
    if (!h) return;
    curl_easy_cleanup(h->curl);
    curl_global_cleanup();
    sy_delete(h->env, h);
}

void sy_url_path(struct sy_buf *b, const char *path)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";
    for (; *path; path++) {
        if (strchr(plain, *path)) sy_buf_char(b, *path);
        else sy_buf_printf(b, "%%%02X", (unsigned char)*path);
    }
}

/* ---- one request, and whether to try again -------------------------------------------------------------- */

static void set_url(struct sy_http *h, const char *url)
{
    char whole[4096];
    snprintf(whole, sizeof whole, "%s%s", *url == '/' ? h->endpoint : "", url);
    curl_easy_setopt(h->curl, CURLOPT_URL, whole);
    h->message[0] = 0;
}

static long http_status(struct sy_http *h)
{
    long code = 0;
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &code);
    return code;
}

/* A hub that cannot be reached at all is told at once; in the middle of a download it is waited for. */
static bool worth_retrying(CURLcode c, long status)
{
    switch (c) {
    case CURLE_HTTP_RETURNED_ERROR: return status == 408 || status == 429 || status >= 500;
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_HTTP3:
    case CURLE_SSL_CONNECT_ERROR: return true;
    default: return false;
    }
}

static void wait_before(struct sy_http *h, int tried)
{
    curl_off_t asked = 0; /* seconds of the Retry-After header */
    curl_easy_getinfo(h->curl, CURLINFO_RETRY_AFTER, &asked);
    double s = asked > 0 ? (double)(asked < WAIT_MAX_S ? asked : WAIT_MAX_S) : 0.25 * (double)(1 << tried);
    struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

static sy_status explain(struct sy_http *h, CURLcode c, const char *url, const char *repo, struct sy_err *err)
{
    long status = http_status(h);
    if (c != CURLE_HTTP_RETURNED_ERROR)
        return sy_fail(err, SY_EIO, "hf:%.80s: cannot fetch '%.120s' from %.60s: %s", repo, url, h->endpoint,
                       h->message[0] ? h->message : curl_easy_strerror(c));
    if (status == 401 || status == 403)
        return sy_fail(err, SY_EIO, "hf:%.80s: %.60s answered %ld: %s", repo, h->endpoint, status,
                       getenv("HF_TOKEN")
                           ? "HF_TOKEN may not read this model; accept its terms or use another token"
                           : "a private, gated or unknown model; set HF_TOKEN to a token that may read it");
    if (status == 404)
        return sy_fail(err, SY_EIO, "hf:%.80s: %.60s has no '%.120s' (404); check the name", repo, h->endpoint, url);
    return sy_fail(err, SY_EIO, "hf:%.80s: %.60s answered %ld for '%.120s'; try again later", repo, h->endpoint,
                   status, url);
}

/* ---- text ----------------------------------------------------------------------------------------------- */

struct text {
    struct sy_buf *out;
    char *next;
    size_t n_next;
};

static size_t take_text(char *bytes, size_t size, size_t n, void *ctx)
{
    struct text *t = ctx;
    sy_buf_add(t->out, bytes, size * n);
    return t->out->failed ? 0 : n;
}

/* Link: <https://.../tree/main?cursor=...>; rel="next" (RFC 8288) */
static size_t take_header(char *line, size_t size, size_t n, void *ctx)
{
    struct text *t = ctx;
    size_t len = size * n;
    if (len < 5 || strncasecmp(line, "link:", 5)) return n;
    const char *lo = memchr(line, '<', len), *hi = lo ? memchr(lo, '>', len - (size_t)(lo - line)) : NULL;
    if (!hi || !memmem(hi, len - (size_t)(hi - line), "rel=\"next\"", 10)) return n;
    size_t m = (size_t)(hi - lo - 1);
    if (m >= t->n_next) return n;
    memcpy(t->next, lo + 1, m);
    t->next[m] = 0;
    return n;
}

sy_status sy_http_text(struct sy_http *h, const char *url, const char *repo, struct sy_buf *out, char *next,
                       size_t n_next, struct sy_err *err)
{
    struct text t = {out, next, n_next};
    curl_easy_setopt(h->curl, CURLOPT_WRITEFUNCTION, take_text);
    curl_easy_setopt(h->curl, CURLOPT_WRITEDATA, &t);
    curl_easy_setopt(h->curl, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(h->curl, CURLOPT_HEADERDATA, &t);
    curl_easy_setopt(h->curl, CURLOPT_RESUME_FROM_LARGE, (curl_off_t)0);
    CURLcode c = CURLE_OK;
    for (int tried = 0; tried < TRIES; tried++) {
        if (tried) wait_before(h, tried);
        sy_buf_clear(out);
        next[0] = 0;
        set_url(h, url);
        c = curl_easy_perform(h->curl);
        if (out->failed)
            return sy_fail(err, SY_ENOMEM, "hf:%.80s: the hub's answer is larger than %zu bytes", repo, out->limit);
        if (!worth_retrying(c, http_status(h))) break;
    }
    return c == CURLE_OK ? SY_OK : explain(h, c, url, repo, err);
}

/* ---- downloads ------------------------------------------------------------------------------------------ */

struct flow {
    struct sy_sink *sink;
    bool too_long;
};

static size_t take_bytes(char *bytes, size_t size, size_t n, void *ctx)
{
    struct flow *f = ctx;
    size_t len = size * n;
    if ((int64_t)len > f->sink->total - f->sink->have) {
        f->too_long = true;
        return 0;
    }
    if (len && !f->sink->write(f->sink->ctx, bytes, len)) return 0;
    f->sink->have += (int64_t)len;
    return n;
}

static size_t drop_header(char *line, size_t size, size_t n, void *ctx)
{
    (void)line, (void)size, (void)ctx;
    return n;
}

sy_status sy_http_download(struct sy_http *h, const char *url, const char *repo, struct sy_sink *sink,
                           struct sy_err *err)
{
    struct flow f = {.sink = sink};
    curl_easy_setopt(h->curl, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(h->curl, CURLOPT_WRITEDATA, &f);
    curl_easy_setopt(h->curl, CURLOPT_HEADERFUNCTION, drop_header);
    int tried = 0;
    while (sink->have < sink->total) {
        int64_t before = sink->have;
        set_url(h, url);
        curl_easy_setopt(h->curl, CURLOPT_RESUME_FROM_LARGE, (curl_off_t)before);
        CURLcode c = curl_easy_perform(h->curl);
        if (sink->err_no)
            return sy_fail(err, SY_EIO, "hf:%.80s: cannot write '%.120s': %s", repo, url, strerror(sink->err_no));
        if (f.too_long)
            return sy_fail(err, SY_EIO, "hf:%.80s: '%.120s': expected %lld bytes, the server sends more", repo, url,
                           (long long)sink->total);
        if (sink->have > before) tried = 0; /* what counts are tries without any progress */
        bool no_range = c == CURLE_RANGE_ERROR || (c == CURLE_HTTP_RETURNED_ERROR && http_status(h) == 416);
        if (no_range && before > 0) {
            if (!sink->restart(sink->ctx)) continue; /* its err_no ends the next round */
            sink->have = 0;
        } else if (c != CURLE_OK && c != CURLE_COULDNT_CONNECT && !worth_retrying(c, http_status(h))) {
            return explain(h, c, url, repo, err);
        } else if (sink->have < sink->total) {
            if (++tried == TRIES && c != CURLE_OK) return explain(h, c, url, repo, err);
            if (tried == TRIES)
                return sy_fail(err, SY_EIO, "hf:%.80s: '%.120s': expected %lld bytes, the server stops at %lld", repo,
                               url, (long long)sink->total, (long long)sink->have);
            wait_before(h, tried);
        }
    }
    return SY_OK;
}
