#include "engine/output.h"

#include <string.h>

sy_status sy_output_init(struct sy_output *o, const struct sy_env *env, const struct sy_tokenizer *tok,
                         bool skip_special, const char *const *stop, const size_t *stop_len, int n_stop,
                         struct sy_err *err)
{
    *o = (struct sy_output){.n_stop = n_stop, .which = -1};
    if (n_stop > SY_STOP_MAX) return sy_fail(err, SY_EARG, "stop: at most %d strings, found %d", SY_STOP_MAX, n_stop);
    for (int i = 0; i < n_stop; i++) {
        if (stop_len[i] == 0) return sy_fail(err, SY_EARG, "stop: an empty string would end every answer");
        if (stop_len[i] > SY_STOP_BYTES_MAX)
            return sy_fail(err, SY_EARG, "stop: at most %d bytes, found %zu", SY_STOP_BYTES_MAX, stop_len[i]);
        o->stop[i] = stop[i];
        o->stop_len[i] = stop_len[i];
    }
    sy_detok_init(&o->detok, tok, skip_special);
    sy_buf_init(&o->pending, env, 0);
    return SY_OK;
}

void sy_output_release(struct sy_output *o)
{
    if (o->pending.env) sy_buf_release(&o->pending);
}

/* Where the earliest stop string starts in the pending text, or its length; *which is -1 if none is whole. */
static size_t find_stop(const struct sy_output *o, int *which)
{
    const struct sy_buf *b = &o->pending;
    *which = -1;
    for (size_t i = 0; i < b->len; i++)
        for (int s = 0; s < o->n_stop; s++)
            if (b->len - i >= o->stop_len[s] && !memcmp(b->at + i, o->stop[s], o->stop_len[s])) {
                *which = s;
                return i;
            }
    return b->len;
}

/* Length of the pending text that no stop string can still begin in. */
static size_t certain(const struct sy_output *o)
{
    const struct sy_buf *b = &o->pending;
    for (size_t i = 0; i < b->len; i++)
        for (int s = 0; s < o->n_stop; s++)
            if (b->len - i < o->stop_len[s] && !memcmp(b->at + i, o->stop[s], b->len - i)) return i;
    return b->len;
}

static void give(struct sy_output *o, size_t n, struct sy_buf *out)
{
    if (n) sy_buf_add(out, o->pending.at, n);
    memmove(o->pending.at, o->pending.at + n, o->pending.len - n);
    o->pending.len -= n;
}

static bool settle(struct sy_output *o, struct sy_buf *out)
{
    out->failed |= o->pending.failed;
    if (o->pending.len == 0) return false;
    size_t at = find_stop(o, &o->which);
    if (o->which >= 0) {
        o->stopped = true;
        give(o, at + (o->include_stop ? o->stop_len[o->which] : 0), out);
        sy_buf_clear(&o->pending);
        return true;
    }
    give(o, certain(o), out);
    return false;
}

bool sy_output_feed(struct sy_output *o, int32_t id, struct sy_buf *out)
{
    if (o->stopped) return true;
    sy_detok_feed(&o->detok, id, &o->pending);
    bool stopped = settle(o, out);
    o->lost |= out->failed;
    return stopped;
}

void sy_output_finish(struct sy_output *o, struct sy_buf *out)
{
    if (o->stopped) return;
    sy_detok_finish(&o->detok, &o->pending);
    if (!settle(o, out) && o->pending.len) give(o, o->pending.len, out);
    o->lost |= out->failed;
}
