/* WordPiece (Schuster, Nakajima 2012; BERT): greedy longest match, a word is known whole or not at all. And the
 * plain word list. */
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer_int.h"

#define NOWHERE UINT32_MAX

static uint32_t walk(const struct trie *t, const char *s)
{
    uint32_t node = 0;
    for (; *s; s++)
        if ((node = sy_trie_step(t, node, (unsigned char)*s)) == 0) return NOWHERE;
    return node;
}

sy_status sy_wordpiece_finish(struct sy_tokenizer *t, const char *start, const char *next, struct sy_err *err)
{
    struct wordpiece *p = &t->wordpiece;
    const struct vocab *v = &t->vocab;
    struct vocab_entry e;
    size_t n_bytes = 0;
    for (uint32_t at = 0; sy_vocab_next(v, &at, &e);) n_bytes += flags_usable(e.flags) ? e.n : 0;
    sy_status st = sy_trie_init(&p->trie, t->env, n_bytes, err);
    for (uint32_t at = 0; st == SY_OK && sy_vocab_next(v, &at, &e);)
        if (flags_usable(e.flags) && e.n) st = sy_trie_add(&p->trie, e.s, e.n, e.id, false, err);
    if (st != SY_OK) return st;
    p->start = walk(&p->trie, start);
    p->next = walk(&p->trie, next);
    return st;
}

static bool longer_than(const char *s, size_t n, int64_t chars)
{
    if (n <= (size_t)chars) return false;
    int64_t count = 0;
    for (size_t i = 0; i < n && count <= chars; i++) count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count > chars;
}

sy_status sy_wordpiece_encode(struct work *w, const char *s, size_t n, struct sy_err *err)
{
    const struct wordpiece *p = &w->tok->wordpiece;
    size_t n_before = w->out->n;
    bool bad = longer_than(s, n, p->chars_max);
    for (size_t lo = 0, hi; lo < n && !bad; lo = hi) {
        uint32_t node = lo ? p->next : p->start;
        int32_t id = -1;
        hi = lo;
        for (size_t i = lo; i < n && node != NOWHERE; i++) {
            node = sy_trie_step(&p->trie, node, (unsigned char)s[i]);
            if (node == 0) break;
            if (p->trie.value[node] < 0) continue;
            id = p->trie.value[node];
            hi = i + 1;
        }
        bad = id < 0;
        sy_status st = bad ? SY_OK : sy_ids_push(w->out, id, err);
        if (st != SY_OK) return st;
    }
    if (!bad) return SY_OK;
    w->out->n = n_before;
    return sy_ids_push(w->out, p->unk, err);
}

sy_status sy_wordlevel_encode(struct work *w, const char *s, size_t n, struct sy_err *err)
{
    int32_t id = sy_vocab_find_model(&w->tok->vocab, s, n);
    if (id < 0) id = w->tok->wordpiece.unk;
    if (id < 0) return sy_fail(err, SY_EARG, "the text has a word that the tokenizer has no token for");
    return sy_ids_push(w->out, id, err);
}
