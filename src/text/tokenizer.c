/* The tokenizer as a whole: construction, added tokens, encoding, look-ups. */
#include "text/tokenizer.h"

#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer_int.h"

/* ---- ids --------------------------------------------------------------------------------------------- */

void sy_ids_init(struct sy_ids *ids, const struct sy_env *env) { *ids = (struct sy_ids){.env = env}; }

void sy_ids_release(struct sy_ids *ids)
{
    if (ids->env) sy_delete(ids->env, ids->at);
    *ids = (struct sy_ids){.env = ids->env};
}

static sy_status grow(struct sy_ids *ids, struct sy_err *err)
{
    struct vec v = {ids->at, ids->n, ids->cap};
    const struct sy_env *env = ids->env ? ids->env : sy_env_default();
    if (!sy_vec_room(env, &v, 1, sizeof *ids->at)) return fail_memory(err, "token ids");
    *ids = (struct sy_ids){env, v.at, v.n, v.cap};
    return SY_OK;
}

sy_status sy_ids_push(struct sy_ids *ids, int32_t id, struct sy_err *err)
{
    if (ids->n == ids->cap) {
        sy_status st = grow(ids, err);
        if (st != SY_OK) return st;
    }
    ids->at[ids->n++] = id;
    return SY_OK;
}

/* ---- construction ------------------------------------------------------------------------------------ */

sy_status sy_tokenizer_new(const struct sy_env *env, struct sy_tokenizer **out, struct sy_err *err)
{
    struct sy_tokenizer *t = sy_new(env, sizeof *t);
    if (!t) return fail_memory(err, "the tokenizer");
    t->env = env;
    t->bos = t->eos = t->pad = -1;
    t->bpe.unk = t->unigram.unk = t->wordpiece.unk = -1;
    sy_arena_init(&t->arena, env, 0);
    sy_buf_init(&t->dec.text, env, 0);
    sy_status st = sy_rx_env_init(&t->rx, env, err);
    if (st == SY_OK) *out = t;
    else sy_tokenizer_free(t);
    return st;
}

void sy_tokenizer_free(struct sy_tokenizer *t)
{
    if (!t) return;
    const struct sy_env *env = t->env;
    for (size_t i = 0; i < t->n_norm; i++) sy_rx_release(&t->norm[i].rx);
    for (size_t i = 0; i < t->n_pre; i++) sy_rx_release(&t->pre[i].rx);
    for (int i = 0; i < 2; i++) {
        sy_trie_release(&t->added[i].trie);
        sy_delete(env, t->added[i].token);
    }
    sy_bpe_release(&t->bpe, env);
    sy_trie_release(&t->unigram.trie);
    sy_delete(env, t->unigram.score);
    sy_trie_release(&t->wordpiece.trie);
    sy_delete(env, t->dec.piece);
    sy_buf_release(&t->dec.text);
    sy_vocab_release(&t->vocab);
    sy_rx_env_release(&t->rx);
    sy_arena_release(&t->arena);
    sy_delete(env, t);
}

sy_status sy_tokenizer_wrap(struct sy_tokenizer *t, const int32_t *head, size_t n_head, const int32_t *tail,
                            size_t n_tail, struct sy_err *err)
{
    if (t->n_head + t->n_tail) return sy_fail(err, SY_ENOSUP, "a second step that adds tokens around the text");
    t->head = sy_arena_array(&t->arena, n_head + n_tail, sizeof *t->head);
    if (!t->head) return fail_memory(err, "the post-processor");
    t->tail = t->head + n_head;
    if (n_head) memcpy(t->head, head, n_head * sizeof *head);
    if (n_tail) memcpy(t->tail, tail, n_tail * sizeof *tail);
    t->n_head = n_head;
    t->n_tail = n_tail;
    return SY_OK;
}

/* Room for element *n of an array in the arena, made when first used. */
static sy_status next_step(struct sy_tokenizer *t, void **all, size_t n, size_t size, struct sy_err *err)
{
    if (n == STEP_COUNT_MAX) return sy_fail(err, SY_ENOSUP, "more than %d steps of one kind", STEP_COUNT_MAX);
    if (!*all) *all = sy_arena_array(&t->arena, STEP_COUNT_MAX, size);
    return *all ? SY_OK : fail_memory(err, "the tokenizer's steps");
}

sy_status sy_tokenizer_add_norm(struct sy_tokenizer *t, enum norm_kind kind, struct norm **out, struct sy_err *err)
{
    void *all = t->norm;
    sy_status st = next_step(t, &all, t->n_norm, sizeof *t->norm, err);
    if (st != SY_OK) return st;
    t->norm = all;
    *out = &t->norm[t->n_norm++];
    **out = (struct norm){.kind = kind};
    return SY_OK;
}

sy_status sy_tokenizer_add_pre(struct sy_tokenizer *t, enum pre_kind kind, struct pre **out, struct sy_err *err)
{
    void *all = t->pre;
    sy_status st = next_step(t, &all, t->n_pre, sizeof *t->pre, err);
    if (st != SY_OK) return st;
    t->pre = all;
    *out = &t->pre[t->n_pre++];
    **out = (struct pre){.kind = kind, .map_bytes = kind == PRE_BYTE_LEVEL};
    return SY_OK;
}

sy_status sy_tokenizer_add_op(struct sy_tokenizer *t, enum dec_kind kind, struct dec_op **out, struct sy_err *err)
{
    void *all = t->dec.op;
    sy_status st = next_step(t, &all, t->dec.n_op, sizeof *t->dec.op, err);
    if (st != SY_OK) return st;
    t->dec.op = all;
    *out = &t->dec.op[t->dec.n_op++];
    **out = (struct dec_op){.kind = kind};
    return SY_OK;
}

sy_status sy_pre_use_gpt2(struct sy_tokenizer *t, struct pre *p, struct sy_err *err)
{
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    p->has_rx = true;
    return sy_rx_compile(&t->rx, gpt2, sizeof gpt2 - 1, &p->rx, err);
}

sy_status sy_norm_use_charsmap(struct sy_tokenizer *t, struct norm *m, const unsigned char *b, size_t n,
                               struct sy_err *err)
{
    size_t trie = n < 4 ? 0 : (size_t)b[0] | (size_t)b[1] << 8 | (size_t)b[2] << 16 | (size_t)b[3] << 24;
    if (trie < 4 || trie % 4 || trie > n - 4)
        return sy_fail(err, SY_EFORMAT, "precompiled_charsmap: a table of %zu bytes in a map of %zu", trie, n);
    unsigned char *copy = sy_arena_get(&t->arena, n - 4);
    if (!copy) return fail_memory(err, "precompiled_charsmap");
    memcpy(copy, b + 4, n - 4);
    m->map = copy;
    m->n_map = n - 4;
    m->n_unit = trie / 4;
    return SY_OK;
}

/* Byte-level BPE skips writing bytes as stand-in characters when nothing looks at them in between. */
static void find_raw_bytes(struct sy_tokenizer *t)
{
    struct pre *last = t->n_pre ? &t->pre[t->n_pre - 1] : NULL;
    t->bpe.raw_bytes = t->kind == MODEL_BPE && last && last->kind == PRE_BYTE_LEVEL && !t->bpe.n_prefix &&
                       !t->bpe.n_suffix && !t->bpe.byte_fallback && !t->bpe.score;
    if (t->bpe.raw_bytes) last->map_bytes = false;
    for (unsigned c = 0; c < 256; c++) {
        char u[4];
        t->byte_id[c] = t->bpe.raw_bytes
                            ? sy_vocab_find_model(&t->vocab, u, sy_char_put(u, sy_byte_to_char((unsigned char)c)))
                            : sy_vocab_byte_token(&t->vocab, (unsigned char)c);
    }
}

static bool control_text(const struct sy_tokenizer *t, int32_t id)
{
    size_t n;
    const char *s = vocab_text(&t->vocab, id, &n);
    return sy_token_looks_control(s, n);
}

/* The trie of one kind of added tokens: special ones first, as ties go to the first. */
static sy_status fill_added(struct sy_tokenizer *t, struct work *w, const struct added_token *token, size_t n,
                            bool normalized, struct sy_err *err)
{
    struct added *a = &t->added[normalized];
    struct sy_buf all; /* the texts to match, each led by its length */
    sy_buf_init(&all, t->env, 0);
    a->token = sy_new_array(t->env, n + 1, sizeof *a->token);
    sy_status st = a->token ? SY_OK : fail_memory(err, "the added tokens");
    for (size_t i = 0; i < 2 * n && st == SY_OK; i++) {
        const struct added_token *k = &token[i % n];
        if (k->normalized != normalized || k->special != (i < n)) continue;
        struct normed text = {0};
        text.at = vocab_text(&t->vocab, k->id, &text.n);
        if (normalized) st = sy_normalize(w, t->norm, t->n_norm, text.at, text.n, &text, err);
        if (st != SY_OK || !text.n) continue;
        a->token[a->n] = *k;
        a->token[a->n++].control = k->special || control_text(t, k->id);
        a->first[(unsigned char)text.at[0]] = true;
        uint32_t len = (uint32_t)text.n;
        sy_buf_add(&all, &len, sizeof len);
        sy_buf_add(&all, text.at, text.n);
    }
    if (st == SY_OK && all.failed) st = fail_memory(err, "the added tokens");
    if (st == SY_OK) st = sy_trie_init(&a->trie, t->env, all.len, err);
    const char *p = all.at;
    for (size_t i = 0; i < a->n && st == SY_OK; i++) {
        uint32_t len;
        memcpy(&len, p, sizeof len);
        st = sy_trie_add(&a->trie, p + sizeof len, len, (int32_t)i, true, err);
        p += sizeof len + len;
    }
    a->only = -1;
    for (int c = 0, count = 0; c < 256; c++)
        if (a->first[c]) a->only = count++ ? -1 : c;
    sy_buf_release(&all);
    return st;
}

sy_status sy_tokenizer_finish(struct sy_tokenizer *t, const struct added_token *token, size_t n, struct sy_err *err)
{
    find_raw_bytes(t);
    sy_status st = SY_OK;
    if (t->kind == MODEL_BPE) sy_bpe_finish(t);
    if (t->kind == MODEL_UNIGRAM) st = sy_unigram_finish(t, err);
    if (st == SY_OK) st = sy_decoder_finish(t, err);
    struct work w = {0};
    if (st == SY_OK) st = sy_tokwork_init(&w, t, TOKEN_BYTES_MAX, NULL, err);
    if (st == SY_OK) st = fill_added(t, &w, token, n, false, err);
    if (st == SY_OK) st = fill_added(t, &w, token, n, true, err);
    sy_tokwork_release(&w);
    return st;
}

/* ---- working memory ---------------------------------------------------------------------------------- */

sy_status sy_tokwork_init(struct work *w, const struct sy_tokenizer *t, size_t n, struct sy_ids *out,
                          struct sy_err *err)
{
    *w = (struct work){.env = t->env, .tok = t, .out = out};
    for (int i = 0; i < 2; i++) {
        sy_buf_init(&w->norm[i].text, t->env, TEXT_BYTES_MAX);
        sy_buf_init(&w->side[i], t->env, UINT32_MAX - 1);
    }
    sy_buf_init(&w->word, t->env, 0);
    return sy_rx_work_init(&w->rx, &t->rx, n, err);
}

void sy_tokwork_release(struct work *w)
{
    if (!w->env) return;
    struct vec *const all[] = {&w->norm[0].origin, &w->norm[1].origin, &w->chars, &w->order, &w->piece[0],
                               &w->piece[1],       &w->match,          &w->sym,   &w->heap,  &w->node};
    for (size_t i = 0; i < SY_COUNT(all); i++) sy_delete(w->env, all[i]->at);
    for (int i = 0; i < 2; i++) {
        sy_buf_release(&w->norm[i].text);
        sy_buf_release(&w->side[i]);
    }
    sy_buf_release(&w->word);
    sy_rx_work_release(&w->rx);
}

/* ---- added tokens in text ---------------------------------------------------------------------------- */

/* A search for added tokens in s[0..n), which is (part of) the original text from `base` on, maybe normalized. */
struct hunt {
    struct work *w;
    const struct added *a;
    const char *s;
    size_t n, base, at, done; /* at: where to look next; done: end of the last match */
    const uint32_t *origin;
};
struct hit {
    size_t lo, hi;
    int32_t id;
};

static size_t origin_of(const struct hunt *h, size_t i) { return h->base + (h->origin ? h->origin[i] : i); }

/* Control tokens count only where they are wanted: not in plain text, and wholly inside one trusted span. */
static bool allowed(const struct hunt *h, const struct added_token *k, size_t lo, size_t hi)
{
    const struct work *w = h->w;
    if (!k->control) return true;
    if (w->plain) return false;
    if (!w->span) return true;
    size_t first = origin_of(h, lo), last = origin_of(h, hi - 1), a = 0, b = w->n_span;
    while (b - a > 1) {
        size_t mid = a + (b - a) / 2;
        if (w->span[mid].lo <= first) a = mid;
        else b = mid;
    }
    return w->span[a].trusted && first >= w->span[a].lo && last < w->span[a].hi;
}

/* The longest allowed token that starts at lo. */
static const struct added_token *longest(const struct hunt *h, size_t lo, size_t *hi)
{
    const struct added_token *best = NULL;
    uint32_t node = 0;
    for (size_t i = lo; i < h->n && (node = sy_trie_step(&h->a->trie, node, (unsigned char)h->s[i])) != 0; i++) {
        int32_t at = h->a->trie.value[node];
        if (at < 0 || !allowed(h, &h->a->token[at], lo, i + 1)) continue;
        best = &h->a->token[at];
        *hi = i + 1;
    }
    return best;
}

static size_t char_before(const char *s, size_t i, uint32_t *c) /* i > 0 */
{
    size_t at = i - 1;
    while (at > 0 && ((unsigned char)s[at] & 0xc0) == 0x80) at--;
    sy_utf8_next(s + at, i - at, c);
    return at;
}

static bool is_single_word(const struct hunt *h, size_t lo, size_t hi)
{
    uint32_t c;
    if (lo > 0 && (char_before(h->s, lo, &c), sy_char_is_word(c))) return false;
    if (hi < h->n && (sy_utf8_next(h->s + hi, h->n - hi, &c), sy_char_is_word(c))) return false;
    return true;
}

/* Takes the spaces next to the token that it strips, but nothing that an earlier match took. */
static void widen(const struct hunt *h, const struct added_token *k, size_t *lo, size_t *hi)
{
    uint32_t c;
    while (k->lstrip && *lo > h->done) {
        size_t before = char_before(h->s, *lo, &c);
        if (!sy_char_is_space(c)) break;
        *lo = before;
    }
    if (k->lstrip && *lo < h->done) *lo = h->done;
    while (k->rstrip && *hi < h->n) {
        size_t len = sy_utf8_next(h->s + *hi, h->n - *hi, &c);
        if (!sy_char_is_space(c)) break;
        *hi += len;
    }
}

static bool next_hit(struct hunt *h, struct hit *out)
{
    while (h->a->n && h->at < h->n) {
        if (h->a->only >= 0) {
            const char *p = memchr(h->s + h->at, h->a->only, h->n - h->at);
            h->at = p ? (size_t)(p - h->s) : h->n;
        } else {
            while (h->at < h->n && !h->a->first[(unsigned char)h->s[h->at]]) h->at++;
        }
        size_t lo = h->at, hi = lo;
        const struct added_token *k = lo < h->n ? longest(h, lo, &hi) : NULL;
        h->at = k ? hi : lo + 1;
        if (!k || (k->single_word && !is_single_word(h, lo, hi))) continue;
        widen(h, k, &lo, &hi);
        if (lo >= hi) continue;
        /* The search goes on right after the token itself, so that a token made of spaces may be found once more in
         * those taken here: Hugging Face has it so. */
        *out = (struct hit){lo, hi, k->id};
        h->done = hi;
        return true;
    }
    return false;
}

/* ---- encoding ---------------------------------------------------------------------------------------- */

static sy_status encode_piece(struct work *w, const char *s, size_t n, struct sy_err *err)
{
    switch (w->tok->kind) {
    case MODEL_BPE: return sy_bpe_encode(w, s, n, err);
    case MODEL_UNIGRAM: return sy_unigram_encode(w, s, n, err);
    case MODEL_WORDPIECE: return sy_wordpiece_encode(w, s, n, err);
    case MODEL_WORDLEVEL: return sy_wordlevel_encode(w, s, n, err);
    }
    return SY_OK;
}

/* Text without added tokens. */
static sy_status encode_words(struct work *w, const char *s, size_t n, bool at_start, struct sy_err *err)
{
    if (n == 0) return SY_OK;
    sy_status st = sy_pretokenize(w, &s, n, at_start, err);
    const struct piece *p = w->piece[0].at;
    for (size_t i = 0; i < w->piece[0].n && st == SY_OK; i++)
        st = encode_piece(w, s + p[i].lo, p[i].hi - p[i].lo, err);
    return st;
}

/* Text between tokens that were found before normalization. */
static sy_status encode_part(struct work *w, const char *s, size_t n, size_t base, struct sy_err *err)
{
    if (n == 0) return SY_OK;
    struct normed text;
    sy_status st = sy_normalize(w, w->tok->norm, w->tok->n_norm, s, n, &text, err);
    if (st != SY_OK) return st;
    struct hunt h = {.w = w, .a = &w->tok->added[1], .s = text.at, .n = text.n, .base = base, .origin = text.origin};
    struct hit hit;
    for (size_t done = 0;; done = hit.hi) {
        bool found = next_hit(&h, &hit);
        size_t to = found ? hit.lo : text.n;
        if (to < done) to = done;
        st = encode_words(w, text.at + done, to - done, base == 0 && done == 0 && text.lead, err);
        if (st != SY_OK || !found) return st;
        if ((st = sy_ids_push(w->out, hit.id, err)) != SY_OK) return st;
    }
}

static sy_status encode_all(struct work *w, const char *s, size_t n, struct sy_err *err)
{
    struct hunt h = {.w = w, .a = &w->tok->added[0], .s = s, .n = n};
    struct hit hit;
    for (size_t done = 0;; done = hit.hi) {
        bool found = next_hit(&h, &hit);
        size_t to = found ? hit.lo : n;
        if (to < done) to = done;
        sy_status st = encode_part(w, s + done, to - done, done, err);
        if (st != SY_OK || !found) return st;
        if ((st = sy_ids_push(w->out, hit.id, err)) != SY_OK) return st;
    }
}

/* Copies text with ill-formed sequences replaced, and moves span boundaries along. */
static void sanitise(struct sy_buf *to, const char *s, size_t n, struct sy_span *span, size_t n_span)
{
    size_t k = 0;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c;
        for (; k < n_span && span[k].hi <= i; k++) span[k].hi = to->len;
        len = sy_utf8_next(s + i, n - i, &c);
        sy_buf_utf8(to, c);
    }
    for (; k < n_span; k++) span[k].hi = to->len;
    for (k = 0; k < n_span; k++) span[k].lo = k ? span[k - 1].hi : 0;
}

static sy_status push_all(struct sy_ids *out, const int32_t *ids, size_t n, struct sy_err *err)
{
    sy_status st = SY_OK;
    for (size_t i = 0; i < n && st == SY_OK; i++) st = sy_ids_push(out, ids[i], err);
    return st;
}

static sy_status encode(const struct sy_tokenizer *t, const char *s, size_t n, const struct sy_span *span,
                        size_t n_span, unsigned flags, struct sy_ids *out, struct sy_err *err)
{
    if (n > TEXT_BYTES_MAX)
        return sy_fail(err, SY_EARG, "a text of %zu bytes, expected at most %d", n, TEXT_BYTES_MAX);
    size_t n_before = out->n;
    struct work w;
    struct sy_buf clean;
    struct sy_span *moved = NULL;
    sy_buf_init(&clean, t->env, 0);
    sy_status st = sy_tokwork_init(&w, t, n, out, err);
    if (st == SY_OK && !sy_utf8_valid(s, n)) {
        moved = sy_new_array(t->env, n_span + 1, sizeof *moved);
        if (moved && n_span) memcpy(moved, span, n_span * sizeof *moved);
        if (moved) sanitise(&clean, s, n, moved, n_span);
        if (!moved || clean.failed) st = fail_memory(err, "the text");
        s = clean.at;
        n = clean.len;
        span = span ? moved : NULL;
    }
    w.span = span;
    w.n_span = n_span;
    w.plain = flags & SY_ENCODE_PLAIN;
    for (size_t i = 0; i < t->added[1].n; i++) w.trace |= span && t->n_norm && t->added[1].token[i].control;
    if (st == SY_OK && (flags & SY_ENCODE_SPECIAL)) st = push_all(out, t->head, t->n_head, err);
    if (st == SY_OK) st = encode_all(&w, s, n, err);
    if (st == SY_OK && (flags & SY_ENCODE_SPECIAL)) st = push_all(out, t->tail, t->n_tail, err);
    if (st != SY_OK) out->n = n_before;
    sy_tokwork_release(&w);
    sy_buf_release(&clean);
    sy_delete(t->env, moved);
    return st;
}

sy_status sy_tokenizer_encode(const struct sy_tokenizer *t, const char *text, size_t n, unsigned flags,
                              struct sy_ids *out, struct sy_err *err)
{
    return encode(t, text, n, NULL, 0, flags, out, err);
}

sy_status sy_tokenizer_encode_spans(const struct sy_tokenizer *t, const char *text, const struct sy_span *span,
                                    size_t n_span, unsigned flags, struct sy_ids *out, struct sy_err *err)
{
    for (size_t i = 0, at = 0; i < n_span; at = span[i++].hi)
        if (span[i].lo != at || span[i].hi < at)
            return sy_fail(err, SY_EARG, "span %zu is [%zu, %zu), expected it to begin at %zu", i, span[i].lo,
                           span[i].hi, at);
    return encode(t, text, n_span ? span[n_span - 1].hi : 0, span, n_span, flags, out, err);
}

/* ---- look-ups ---------------------------------------------------------------------------------------- */

int32_t sy_tokenizer_size(const struct sy_tokenizer *t) { return t->vocab.n; }
int32_t sy_tokenizer_bos(const struct sy_tokenizer *t) { return t->bos; }
int32_t sy_tokenizer_eos(const struct sy_tokenizer *t) { return t->eos; }
int32_t sy_tokenizer_pad(const struct sy_tokenizer *t) { return t->pad; }

bool sy_tokenizer_is_special(const struct sy_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocab.n && (t->vocab.flags[id] & TOKEN_SPECIAL);
}

bool sy_tokenizer_is_control(const struct sy_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocab.n && (t->vocab.flags[id] & TOKEN_CONTROL);
}

const char *sy_tokenizer_token(const struct sy_tokenizer *t, int32_t id, size_t *n)
{
    if (!vocab_has(&t->vocab, id)) return NULL;
    size_t len;
    return vocab_text(&t->vocab, id, n ? n : &len);
}

int32_t sy_tokenizer_find(const struct sy_tokenizer *t, const char *token, size_t n)
{
    return sy_vocab_find(&t->vocab, token, n);
}
