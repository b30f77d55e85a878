/* Byte-pair encoding (Sennrich, Haddow, Birch 2016), in two dialects: merges listed by rank (tokenizer.json, GGUF
 * "gpt2"), and SentencePiece's, where any two neighbours whose joined text is a token may merge, best score first
 * (GGUF "llama"). Lowest rank first, then leftmost.
 *
 * Short words are merged by scanning; long ones with a heap, O(n log n). Before that, a word is cut where no merge
 * can ever reach across: a SentencePiece prompt is one word, but its merges stay between spaces. */
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer_int.h"

enum { SCAN_MAX = 32 }; /* symbols merged by scanning */
#define NO_PAIR UINT32_MAX

struct bpe_merge {
    uint64_t key; /* (left << 32 | right) + 1; 0: empty */
    uint32_t rank;
    int32_t id;
};

struct sym {
    int32_t id;      /* -1: text that is no token (by score only) */
    uint32_t lo, hi; /* of the word */
};
struct node { /* a symbol in the long way */
    uint32_t prev, next, rank;
    int32_t to;
};

/* ---- building ---------------------------------------------------------------------------------------- */

sy_status sy_bpe_merges_init(struct bpe *b, const struct sy_env *env, size_t n, struct sy_err *err)
{
    if (n > TOKEN_ID_MAX) return sy_fail(err, SY_ENOSUP, "%zu merges, expected at most %d", n, TOKEN_ID_MAX);
    uint32_t slots = 16;
    while (slots < n + n / 3) slots *= 2;
    b->mask = slots - 1;
    b->merge = sy_new_array(env, slots, sizeof *b->merge);
    b->joins = sy_new(env, 256 * 256 / 8);
    if (!b->merge || !b->joins) return fail_memory(err, "the merges");
    return SY_OK;
}

void sy_bpe_release(struct bpe *b, const struct sy_env *env)
{
    sy_delete(env, b->merge);
    sy_delete(env, b->joins);
    sy_delete(env, b->score);
}

static struct bpe_merge *merge_slot(const struct bpe *b, uint64_t key)
{
    uint32_t i = (uint32_t)(key * 0x9e3779b97f4a7c15u >> 32) & b->mask;
    for (uint32_t probe = 0; probe < PROBE_MAX; i = (i + 1) & b->mask, probe++)
        if (b->merge[i].key == key || b->merge[i].key == 0) return &b->merge[i];
    return NULL;
}

static uint64_t pair_key(int32_t a, int32_t b) { return ((uint64_t)(uint32_t)a << 32 | (uint32_t)b) + 1; }

/* A character's class for `joins`: ASCII itself, U+2581 apart from its neighbours, the others by their lead byte. */
static unsigned first_class(const char *s, size_t n)
{
    if (n >= 3 && !memcmp(s, "\xe2\x96\x81", 3)) return 0x80;
    return n ? (unsigned char)s[0] : 0;
}

static unsigned last_class(const char *s, size_t n)
{
    size_t at = n ? n - 1 : 0;
    while (at > 0 && ((unsigned char)s[at] & 0xc0) == 0x80) at--;
    return first_class(s + at, n - at);
}

static void set_join(struct bpe *b, unsigned last, unsigned first)
{
    b->joins[last << 5 | first >> 3] |= 1u << (first & 7);
}
static bool can_join(const struct bpe *b, unsigned last, unsigned first)
{
    return b->joins[last << 5 | first >> 3] >> (first & 7) & 1;
}

static sy_status merge_refused(struct sy_err *err, uint32_t rank, const char *s, size_t n)
{
    return sy_fail(err, SY_EFORMAT, "merge %u: '%.*s' is not in the vocabulary", rank, (int)(n < 80 ? n : 80), s);
}

/* Vocabularies mostly list tokens in the order in which merges make them: looking there first saves a third of the
 * look-ups of loading. */
static struct vocab_entry next_token(const struct bpe *b, const struct vocab *v, const char *s, size_t n)
{
    int32_t id = b->last_id + 1;
    if (vocab_has(v, id) && (v->flags[id] & (TOKEN_MODEL | TOKEN_ADDED)) == TOKEN_MODEL && v->token[id].len == n &&
        !memcmp(v->text + v->token[id].off, s, n))
        return (struct vocab_entry){s, n, id, TOKEN_MODEL};
    return sy_vocab_entry(v, s, n);
}

sy_status sy_bpe_merge_add(struct bpe *b, const struct vocab *v, uint32_t rank, const char *a, size_t n_a,
                           const char *c, size_t n_c, struct sy_err *err)
{
    int32_t left = sy_vocab_find(v, a, n_a), right = sy_vocab_find(v, c, n_c);
    if (left < 0) return merge_refused(err, rank, a, n_a);
    if (right < 0 || n_c < b->n_prefix) return merge_refused(err, rank, c, n_c);
    char joined[2 * TOKEN_BYTES_MAX];
    memcpy(joined, a, n_a);
    memcpy(joined + n_a, c + b->n_prefix, n_c - b->n_prefix);
    struct vocab_entry to = next_token(b, v, joined, n_a + n_c - b->n_prefix);
    if (to.id < 0) return merge_refused(err, rank, joined, n_a + n_c - b->n_prefix);
    if (!flags_usable(to.flags)) return SY_OK; /* text never becomes a control token */
    struct bpe_merge *m = merge_slot(b, pair_key(left, right));
    if (!m) return sy_fail(err, SY_ENOSUP, "the merges collide in a hash table beyond reason");
    *m = (struct bpe_merge){pair_key(left, right), rank, to.id};
    b->last_id = to.id;
    set_join(b, last_class(a, n_a), first_class(c, n_c));
    return SY_OK;
}

void sy_bpe_finish(struct sy_tokenizer *t)
{
    struct bpe *b = &t->bpe;
    struct vocab_entry e;
    for (uint32_t at = 0; sy_vocab_next(&t->vocab, &at, &e);) {
        if (!flags_usable(e.flags)) continue;
        if (e.n > b->max_len) b->max_len = (uint32_t)e.n;
        uint32_t c;
        for (size_t i = 0, len; b->score && i < e.n; i += len) { /* any two neighbours in a token may have merged */
            len = sy_utf8_next(e.s + i, e.n - i, &c);
            if (i + len < e.n) set_join(b, first_class(e.s + i, e.n - i), first_class(e.s + i + len, e.n - i - len));
        }
    }
}

/* ---- merging ----------------------------------------------------------------------------------------- */

/* Ranks order scores downwards; the bits of a float, made monotone. */
static uint32_t score_rank(float score)
{
    uint32_t u;
    memcpy(&u, &score, 4);
    u = u >> 31 ? ~u : u | 0x80000000u;
    return ~u;
}

static inline uint32_t pair_rank(const struct sy_tokenizer *t, const char *s, struct sym l, struct sym r, int32_t *to)
{
    const struct bpe *b = &t->bpe;
    if (!b->score) {
        const struct bpe_merge *m = merge_slot(b, pair_key(l.id, r.id));
        if (!m || m->key == 0) return NO_PAIR;
        *to = m->id;
        return m->rank;
    }
    if (r.hi - l.lo > b->max_len) return NO_PAIR;
    int32_t id = sy_vocab_find_model(&t->vocab, s + l.lo, r.hi - l.lo);
    if (id < 0) return NO_PAIR;
    *to = id;
    return score_rank(b->score[id]);
}

static size_t merge_scan(const struct sy_tokenizer *t, const char *s, struct sym *y, size_t n)
{
    uint32_t rank[SCAN_MAX];
    int32_t to[SCAN_MAX];
    for (size_t i = 0; i + 1 < n; i++) rank[i] = pair_rank(t, s, y[i], y[i + 1], &to[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NO_PAIR) break;
        y[best].id = to[best];
        y[best].hi = y[best + 1].hi;
        n--;
        for (size_t i = best + 1; i < n; i++) {
            y[i] = y[i + 1];
            rank[i - 1] = rank[i];
            to[i - 1] = to[i];
        }
        if (best + 1 < n) rank[best] = pair_rank(t, s, y[best], y[best + 1], &to[best]);
        if (best > 0) rank[best - 1] = pair_rank(t, s, y[best - 1], y[best], &to[best - 1]);
    }
    return n;
}

/* A binary heap of rank << 32 | position. */
static void heap_down(uint64_t *h, size_t n, size_t i)
{
    uint64_t v = h[i];
    for (size_t kid; (kid = 2 * i + 1) < n; i = kid) {
        if (kid + 1 < n && h[kid + 1] < h[kid]) kid++;
        if (h[kid] >= v) break;
        h[i] = h[kid];
    }
    h[i] = v;
}

static void heap_push(struct vec *heap, uint64_t v)
{
    uint64_t *h = heap->at;
    size_t i = heap->n++;
    for (; i > 0 && h[(i - 1) / 2] > v; i = (i - 1) / 2) h[i] = h[(i - 1) / 2];
    h[i] = v;
}

static void rank_pair(struct work *w, const char *s, const struct sym *y, struct node *d, size_t n, uint32_t i)
{
    d[i].rank = d[i].next < n ? pair_rank(w->tok, s, y[i], y[d[i].next], &d[i].to) : NO_PAIR;
}

static sy_status merge_heap(struct work *w, const char *s, struct sym *y, size_t *n_sym, struct sy_err *err)
{
    size_t n = *n_sym;
    w->node.n = w->heap.n = 0;
    /* Each merge makes at most two new pairs and removes one symbol. */
    if (!sy_vec_room(w->env, &w->node, n, sizeof(struct node)) ||
        !sy_vec_room(w->env, &w->heap, 3 * n, sizeof(uint64_t)))
        return fail_memory(err, "a long word");
    struct node *d = w->node.at;
    uint64_t *h = w->heap.at;
    for (uint32_t i = 0; i < n; i++) {
        d[i] = (struct node){.prev = i - 1, .next = i + 1}; /* prev of 0 wraps: beyond n */
        rank_pair(w, s, y, d, n, i);
        if (d[i].rank != NO_PAIR) h[w->heap.n++] = (uint64_t)d[i].rank << 32 | i;
    }
    for (size_t i = w->heap.n / 2; i-- > 0;) heap_down(h, w->heap.n, i);
    while (w->heap.n) {
        uint32_t i = (uint32_t)h[0], rank = (uint32_t)(h[0] >> 32);
        h[0] = h[--w->heap.n];
        if (w->heap.n) heap_down(h, w->heap.n, 0);
        if (d[i].rank != rank) continue; /* the pair has changed since */
        uint32_t gone = d[i].next;
        y[i].id = d[i].to;
        y[i].hi = y[gone].hi;
        d[i].next = d[gone].next;
        d[gone].rank = NO_PAIR;
        if (d[i].next < n) d[d[i].next].prev = i;
        rank_pair(w, s, y, d, n, i);
        if (d[i].rank != NO_PAIR) heap_push(&w->heap, (uint64_t)d[i].rank << 32 | i);
        uint32_t before = d[i].prev;
        if (before >= n) continue;
        rank_pair(w, s, y, d, n, before);
        if (d[before].rank != NO_PAIR) heap_push(&w->heap, (uint64_t)d[before].rank << 32 | before);
    }
    size_t kept = 0;
    for (uint32_t i = 0; i < n; i = d[i].next) y[kept++] = y[i];
    *n_sym = kept;
    return SY_OK;
}

/* May symbols l and r ever merge, directly or inside larger ones? */
static bool joinable(const struct sy_tokenizer *t, const char *s, struct sym l, struct sym r)
{
    size_t n = l.hi - l.lo, m = r.hi - r.lo;
    const char *a = s + l.lo, *b = s + r.lo;
    if (!t->bpe.score) {
        if ((t->vocab.flags[l.id] | t->vocab.flags[r.id]) & TOKEN_TWO) return true; /* which text is meant? */
        a = vocab_text(&t->vocab, l.id, &n);
        b = vocab_text(&t->vocab, r.id, &m);
    }
    return can_join(&t->bpe, last_class(a, n), first_class(b, m));
}

static sy_status merge_long(struct work *w, const char *s, struct sym *y, size_t *n, struct sy_err *err)
{
    size_t kept = 0;
    for (size_t lo = 0, hi; lo < *n; lo = hi) {
        for (hi = lo + 1; hi < *n && joinable(w->tok, s, y[hi - 1], y[hi]);) hi++;
        size_t left = hi - lo;
        if (left <= SCAN_MAX) {
            left = merge_scan(w->tok, s, y + lo, left);
        } else {
            sy_status st = merge_heap(w, s, y + lo, &left, err);
            if (st != SY_OK) return st;
        }
        memmove(y + kept, y + lo, left * sizeof *y);
        kept += left;
    }
    *n = kept;
    return SY_OK;
}

/* ---- from text to symbols ---------------------------------------------------------------------------- */

/* The character s[0..len) with the model's affixes, looked up. */
static int32_t char_id(struct work *w, const char *s, size_t len, bool first, bool last)
{
    const struct bpe *b = &w->tok->bpe;
    bool prefix = !first && b->n_prefix, suffix = last && b->n_suffix;
    if (!prefix && !suffix) return sy_vocab_find_model(&w->tok->vocab, s, len);
    sy_buf_clear(&w->word);
    if (prefix) sy_buf_add(&w->word, b->prefix, b->n_prefix);
    sy_buf_add(&w->word, s, len);
    if (suffix) sy_buf_add(&w->word, b->suffix, b->n_suffix);
    return w->word.failed ? -1 : sy_vocab_find_model(&w->tok->vocab, w->word.at, w->word.len);
}

static bool all_bytes_known(const int32_t *byte_id, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (byte_id[(unsigned char)s[i]] < 0) return false;
    return true;
}

/* Fills y (room for n) with the word's first symbols. Unknown characters become their bytes, or <unk>, or nothing.
 * A pending <unk> waits, over bytes too, for the next known character, as Hugging Face has it. */
static size_t first_symbols(struct work *w, const char *s, size_t n, struct sym *y)
{
    const struct bpe *b = &w->tok->bpe;
    const int32_t *byte_id = w->tok->byte_id;
    size_t m = 0;
    bool pending = false;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c;
        len = b->raw_bytes ? 1 : sy_utf8_next(s + i, n - i, &c);
        uint32_t lo = (uint32_t)i, hi = (uint32_t)(i + len);
        int32_t id = b->raw_bytes ? byte_id[(unsigned char)s[i]] : char_id(w, s + i, len, i == 0, i + len == n);
        if (id >= 0 || b->score) {
            if (pending) y[m++].id = b->unk;
            pending = false;
            y[m++] = (struct sym){id, lo, hi};
        } else if (b->byte_fallback && all_bytes_known(byte_id, s + i, len)) {
            for (size_t k = 0; k < len; k++) y[m++] = (struct sym){byte_id[(unsigned char)s[i + k]], lo, hi};
        } else if (b->unk >= 0) {
            if (pending && !b->fuse_unk) y[m++].id = b->unk;
            pending = true;
        }
    }
    if (pending) y[m++].id = b->unk;
    return m;
}

static sy_status put_ids(struct work *w, const char *s, const struct sym *y, size_t n, struct sy_err *err)
{
    const struct bpe *b = &w->tok->bpe;
    sy_status st = SY_OK;
    for (size_t i = 0; i < n && st == SY_OK; i++) {
        if (y[i].id >= 0) {
            st = sy_ids_push(w->out, y[i].id, err);
            continue;
        }
        for (uint32_t k = y[i].lo; k < y[i].hi && st == SY_OK; k++) {
            int32_t id = w->tok->byte_id[(unsigned char)s[k]];
            if (id >= 0) st = sy_ids_push(w->out, id, err);
            else if (b->unk >= 0 && k == y[i].lo) st = sy_ids_push(w->out, b->unk, err);
        }
    }
    return st;
}

static bool only_newlines(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && s[i] == '\n') i++;
    return i == n;
}

/* The whole word as one token, where the model looks for that first. */
static int32_t whole_word(struct work *w, const char *s, size_t n)
{
    const struct bpe *b = &w->tok->bpe;
    if (b->whole_newlines && n <= b->max_len && only_newlines(s, n)) return sy_vocab_find_model(&w->tok->vocab, s, n);
    if (!b->ignore_merges || n > b->max_len) return -1;
    if (!b->raw_bytes) return sy_vocab_find_model(&w->tok->vocab, s, n);
    sy_buf_clear(&w->word);
    for (size_t i = 0; i < n; i++) sy_buf_utf8(&w->word, sy_byte_to_char((unsigned char)s[i]));
    return w->word.failed ? -1 : sy_vocab_find_model(&w->tok->vocab, w->word.at, w->word.len);
}

sy_status sy_bpe_encode(struct work *w, const char *s, size_t n, struct sy_err *err)
{
    int32_t whole = whole_word(w, s, n);
    if (whole >= 0) return sy_ids_push(w->out, whole, err);
    w->sym.n = 0;
    if (w->sym.cap < n && !sy_vec_room(w->env, &w->sym, n, sizeof(struct sym)))
        return fail_memory(err, "a long word");
    struct sym *y = w->sym.at;
    size_t m = first_symbols(w, s, n, y);
    if (w->word.failed) return fail_memory(err, "a long word");
    if (m <= SCAN_MAX) {
        m = merge_scan(w->tok, s, y, m);
    } else {
        sy_status st = merge_long(w, s, y, &m, err);
        if (st != SY_OK) return st;
    }
    return put_ids(w, s, y, m, err);
}
