#include "graph/buckets.h"

enum {
    FACTOR = 4,
    TOK_MIN = 16,    /* of buckets that are not for decoding */
    KEYS_MIN = 1024, /* fewer keys than these are not worth a bucket of their own */
    CONTEXTS = 3,    /* lengths of context of a decode bucket */
};

static void put(struct sy_buckets *b, struct sy_shape s)
{
    if (b->n < SY_BUCKET_MAX) b->shape[b->n++] = s;
}

/* The next step of a ladder that ends at max exactly. */
static int32_t next(int32_t at, int32_t max) { return at > max / FACTOR ? max : at * FACTOR; }

static void plan_decode(struct sy_shape max, int32_t block_len, struct sy_buckets *b)
{
    int32_t context[CONTEXTS], n = 0;
    for (int32_t blocks = max.block; n < CONTEXTS; blocks /= FACTOR) {
        if (n > 0 && (int64_t)blocks * block_len < KEYS_MIN) break;
        context[n++] = blocks;
    }
    for (int32_t seq = 1;; seq = next(seq, max.seq)) {
        for (int32_t i = n; i-- > 0;) put(b, (struct sy_shape){seq, seq, context[i], seq, max.apart});
        if (seq == max.seq) break;
    }
}

void sy_buckets_plan(struct sy_shape max, int32_t block_len, struct sy_buckets *b)
{
    b->n = 0;
    plan_decode(max, block_len, b);
    int32_t tok_max = max.tok > max.seq ? max.tok : max.seq + 1;
    for (int32_t tok = TOK_MIN < tok_max ? TOK_MIN : tok_max;; tok = next(tok, tok_max)) {
        int32_t seq = max.seq < tok ? max.seq : tok - 1, out = max.out < tok ? max.out : tok;
        put(b, (struct sy_shape){tok, seq, max.block, out, max.apart});
        if (tok == tok_max) break;
    }
}

int32_t sy_buckets_pick(const struct sy_buckets *b, struct sy_shape need)
{
    for (int32_t i = 0; i < b->n; i++) {
        const struct sy_shape *s = &b->shape[i];
        if (s->tok == s->seq && need.tok != need.seq) continue;
        if (need.tok <= s->tok && need.seq <= s->seq && need.block <= s->block && need.out <= s->out) return i;
    }
    return -1;
}
