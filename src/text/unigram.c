/* Unigram language model (Kudo 2018): the segmentation of highest total log probability, by Viterbi over the trie of
 * pieces. Time is the text's length times the longest piece's. */
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer_int.h"

#define UNK_PENALTY 10.0 /* below the worst piece, as sentencepiece */

struct best { /* the best path that ends here */
    double score;
    uint32_t from;
    int32_t id; /* -1: none yet */
};
struct span {
    uint32_t lo, hi;
    bool unk;
};

sy_status sy_unigram_finish(struct sy_tokenizer *t, struct sy_err *err)
{
    struct unigram *u = &t->unigram;
    const struct vocab *v = &t->vocab;
    struct vocab_entry e;
    size_t n_bytes = 0;
    double least = 0;
    bool any = false;
    for (int32_t id = 0; id < v->n; id++) {
        if (!(v->flags[id] & TOKEN_MODEL)) continue;
        if (!any || u->score[id] < least) least = u->score[id];
        any = true;
    }
    u->unk_score = u->single ? (float)(least - UNK_PENALTY) : least - UNK_PENALTY;
    for (uint32_t at = 0; sy_vocab_next(v, &at, &e);) n_bytes += flags_usable(e.flags) ? e.n : 0;
    sy_status st = sy_trie_init(&u->trie, t->env, n_bytes, err);
    for (uint32_t at = 0; st == SY_OK && sy_vocab_next(v, &at, &e);)
        if (flags_usable(e.flags) && e.n && e.id != u->unk) st = sy_trie_add(&u->trie, e.s, e.n, e.id, false, err);
    return st;
}

static void reach(const struct unigram *u, struct best *b, double score, size_t from, int32_t id)
{
    if (u->single) score = (float)score;
    if (b->id < 0 || score > b->score) *b = (struct best){score, (uint32_t)from, id};
}

static bool viterbi(const struct unigram *u, const char *s, size_t n, struct best *best)
{
    for (size_t i = 0; i <= n; i++) best[i].id = -1;
    best[0] = (struct best){0, 0, 0};
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c, node = 0;
        bool single = false;
        len = sy_utf8_next(s + i, n - i, &c);
        for (size_t k = i; k < n && (node = sy_trie_step(&u->trie, node, (unsigned char)s[k])) != 0; k++) {
            int32_t id = u->trie.value[node];
            if (id < 0) continue;
            reach(u, &best[k + 1], best[i].score + u->score[id], i, id);
            if (k + 1 == i + len) single = true;
        }
        if (single) continue;
        if (u->unk < 0) return false;
        reach(u, &best[i + len], best[i].score + u->unk_score, i, u->unk);
    }
    return true;
}

/* A stretch of unknown characters, taken together: a token after all, or bytes, or <unk>. */
static sy_status put_unknown(struct work *w, const char *s, size_t n, struct sy_err *err)
{
    const struct unigram *u = &w->tok->unigram;
    int32_t id = sy_vocab_find_model(&w->tok->vocab, s, n);
    if (id >= 0) return sy_ids_push(w->out, id, err);
    const int32_t *byte = w->tok->byte_id;
    bool bytes = u->byte_fallback;
    for (size_t i = 0; i < n && bytes; i++) bytes = byte[(unsigned char)s[i]] >= 0;
    if (!bytes) return sy_ids_push(w->out, u->unk, err);
    sy_status st = SY_OK;
    for (size_t i = 0; i < n && st == SY_OK; i++) st = sy_ids_push(w->out, byte[(unsigned char)s[i]], err);
    return st;
}

sy_status sy_unigram_encode(struct work *w, const char *s, size_t n, struct sy_err *err)
{
    const struct unigram *u = &w->tok->unigram;
    w->node.n = w->sym.n = 0;
    if (!sy_vec_room(w->env, &w->node, n + 1, sizeof(struct best))) return fail_memory(err, "a text's segmentation");
    struct best *best = w->node.at;
    if (!viterbi(u, s, n, best))
        return sy_fail(err, SY_EARG, "the text has a character that the tokenizer has no token for");
    for (size_t at = n; at > 0; at = best[at].from) {
        if (!sy_vec_room(w->env, &w->sym, 1, sizeof(struct span))) return fail_memory(err, "a text's segmentation");
        ((struct span *)w->sym.at)[w->sym.n++] = (struct span){best[at].from, (uint32_t)at, best[at].id == u->unk};
    }
    const struct span *span = w->sym.at;
    sy_status st = SY_OK;
    for (size_t i = w->sym.n; i-- > 0 && st == SY_OK;) {
        if (!span[i].unk) {
            st = sy_ids_push(w->out, best[span[i].hi].id, err);
            continue;
        }
        uint32_t lo = span[i].lo;
        while (i > 0 && span[i - 1].unk) i--;
        st = put_unknown(w, s + lo, span[i].hi - lo, err);
    }
    return st;
}
