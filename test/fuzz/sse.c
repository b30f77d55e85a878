/* Bytes as a server might stream them, cut at places that the first two bytes choose: whatever the cut, the same
 * events come out, and each is read as a chunk of a completion. */
#include <string.h>

#include "base/json.h"
#include "base/rng.h"
#include "bench/sse.h"

struct heard {
    uint64_t sum;
    size_t n;
};

static sy_status on_data(void *ctx, const char *data, size_t n, struct sy_err *err)
{
    struct heard *h = ctx;
    h->n++;
    h->sum = sy_rng_u64(h->sum, n);
    for (size_t i = 0; i < n; i++) h->sum = sy_rng_u64(h->sum, (unsigned char)data[i]);
    struct sy_chunk c;
    sy_status st = sy_chunk_read(sy_env_default(), data, n, &c, err);
    if (st) {
        sy_assert(err->msg[0]);
        return SY_OK; /* the reader goes on, so that later events are tried too */
    }
    sy_assert(c.text || c.n_text == 0);
    sy_assert(!c.text || c.text[c.n_text] == 0);
    sy_assert(c.n_prompt >= -1 && c.n_output >= -1);
    sy_chunk_release(&c);
    return SY_OK;
}

static struct heard hear(const char *text, size_t n, size_t piece)
{
    struct sy_sse s;
    struct sy_err err;
    struct heard h = {0};
    sy_sse_init(&s, sy_env_default());
    for (size_t at = 0; at < n; at += piece)
        if (sy_sse_feed(&s, text + at, n - at < piece ? n - at : piece, on_data, &h, &err)) break;
    sy_sse_release(&s);
    return h;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    if (n < 2) return 0;
    const char *text = (const char *)data + 2;
    struct heard whole = hear(text, n - 2, n), one = hear(text, n - 2, (size_t)data[0] + 1),
                 other = hear(text, n - 2, (size_t)data[1] % 7 + 1);
    sy_assert(whole.n == one.n && whole.n == other.n && whole.sum == one.sum && whole.sum == other.sum);
    return 0;
}
