/* From GGUF metadata (tokenizer.ggml.*, as llama.cpp's converters write it). Every id is checked against the
 * vocabulary, every text is copied. What GGUF leaves unsaid follows the kinds' defaults there: "llama" is
 * SentencePiece BPE by score, "gpt2" byte-level BPE whose pre-tokenizer has a name, "t5" Unigram, "bert" WordPiece
 * (uncased), "gemma4" BPE over characters with U+2581 for spaces. */
#include <math.h>
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer_int.h"

enum token_type { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };
#define MARK "\xe2\x96\x81" /* U+2581, SentencePiece's space */

struct load {
    struct sy_tokenizer *t;
    const struct sy_gguf_vocab *g;
    struct added_token *added;
    size_t n_added;
    int32_t bos, eos, unk, sep, cls;
    struct sy_err *err;
};

/* A tri-state flag of the file. */
static bool flag_or(int value, bool otherwise) { return value < 0 ? otherwise : value != 0; }

static sy_status id_of(struct load *l, const char *key, int64_t value, int64_t otherwise, int32_t *out)
{
    int64_t n = (int64_t)l->g->n_token;
    if (value < 0) value = otherwise < n ? otherwise : -1;
    if (value >= n)
        return sy_fail(l->err, SY_EFORMAT, "tokenizer.ggml.%s_token_id: %lld, expected a token from 0 to %lld", key,
                       (long long)value, (long long)n - 1);
    *out = (int32_t)value;
    return SY_OK;
}

static bool is_added(int32_t type) { return type == TYPE_UNKNOWN || type == TYPE_CONTROL || type == TYPE_USER; }
static bool is_special(int32_t type) { return type == TYPE_UNKNOWN || type == TYPE_CONTROL; }

static int32_t type_of(const struct load *l, size_t i)
{
    if (l->g->type) return l->g->type[i];
    int32_t id = (int32_t)i;
    return id == l->bos || id == l->eos || id == l->unk || id == l->sep || id == l->cls ? TYPE_CONTROL : TYPE_NORMAL;
}

static sy_status read_vocab(struct load *l)
{
    const struct sy_gguf_vocab *g = l->g;
    struct vocab *v = &l->t->vocab;
    size_t n_text = 0;
    if (!g->token || g->n_token > TOKEN_ID_MAX)
        return sy_fail(l->err, SY_EFORMAT, "tokenizer.ggml.tokens: expected 1 to %d tokens, found %zu", TOKEN_ID_MAX,
                       g->n_token);
    for (size_t i = 0; i < g->n_token; i++) {
        if (g->token[i].n > TOKEN_BYTES_MAX || !sy_utf8_valid(g->token[i].at, g->token[i].n))
            return sy_fail(l->err, SY_EFORMAT, "tokenizer.ggml.tokens: token %zu: expected at most %d bytes of UTF-8",
                           i, TOKEN_BYTES_MAX);
        n_text += g->token[i].n;
        if (type_of(l, i) < TYPE_NORMAL || type_of(l, i) > TYPE_BYTE)
            return sy_fail(l->err, SY_EFORMAT, "tokenizer.ggml.token_type: token %zu has type %d, expected 1 to 6", i,
                           type_of(l, i));
        if (g->score && !isfinite(g->score[i]))
            return sy_fail(l->err, SY_EFORMAT, "tokenizer.ggml.scores: token %zu has no finite score", i);
    }
    sy_status st = sy_vocab_init(v, l->t->env, (int64_t)g->n_token, g->n_token, n_text, l->err);
    if (st != SY_OK) return st;
    l->added = sy_new_array(l->t->env, g->n_token, sizeof *l->added);
    if (!l->added) return fail_memory(l->err, "the vocabulary");
    for (size_t i = 0; i < g->n_token && st == SY_OK; i++) {
        int32_t type = type_of(l, i);
        unsigned flags = is_added(type) ? TOKEN_ADDED : 0;
        if (is_special(type)) flags |= TOKEN_SPECIAL;
        if (type != TYPE_UNUSED) flags |= TOKEN_MODEL;
        const struct sy_text *ahead = i + PREFETCH_AHEAD < g->n_token ? &g->token[i + PREFETCH_AHEAD] : NULL;
        if (ahead) sy_vocab_prefetch(v, ahead->at, ahead->n);
        st = sy_vocab_add(v, (int64_t)i, g->token[i].at, g->token[i].n, flags, l->err);
        if (is_added(type) && g->token[i].n)
            l->added[l->n_added++] = (struct added_token){.id = (int32_t)i, .special = is_special(type)};
    }
    return st;
}

/* ---- steps ------------------------------------------------------------------------------------------- */

static sy_status add_replace(struct load *l, const char *from, const char *to, bool regex)
{
    struct norm *m;
    sy_status st = sy_tokenizer_add_norm(l->t, NORM_REPLACE, &m, l->err);
    if (st != SY_OK) return st;
    m->text = to;
    m->n_text = strlen(to);
    if (regex) return sy_rx_compile(&l->t->rx, from, strlen(from), &m->rx, l->err);
    sy_rx_literal(&m->rx, from, strlen(from));
    return SY_OK;
}

static sy_status add_prepend(struct load *l)
{
    struct norm *m;
    sy_status st = sy_tokenizer_add_norm(l->t, NORM_PREPEND, &m, l->err);
    if (st != SY_OK) return st;
    m->text = MARK;
    m->n_text = strlen(MARK);
    return SY_OK;
}

static sy_status add_split(struct sy_tokenizer *t, const char *pattern, struct sy_err *err)
{
    struct pre *p;
    sy_status st = sy_tokenizer_add_pre(t, PRE_SPLIT, &p, err);
    if (st != SY_OK) return st;
    p->behavior = SPLIT_ISOLATED;
    return sy_rx_compile(&t->rx, pattern, strlen(pattern), &p->rx, err);
}

sy_status sy_pre_name_use(struct sy_tokenizer *t, const struct pre_name *name, struct sy_err *err)
{
    struct pre *p;
    sy_status st = SY_OK;
    for (size_t i = 0; i < PRE_PATTERNS_MAX && name->pattern[i] && st == SY_OK; i++)
        st = add_split(t, name->pattern[i], err);
    return st == SY_OK ? sy_tokenizer_add_pre(t, PRE_BYTE_LEVEL, &p, err) : st;
}

/* U+2581 becomes a space, and the text loses the one that a prefix put there. */
static sy_status spaces_decoder(struct load *l, bool prefix)
{
    struct decoder *d = &l->t->dec;
    struct dec_op *o;
    sy_status st = sy_tokenizer_add_op(l->t, DEC_REPLACE, &o, l->err);
    if (st != SY_OK) return st;
    *o = (struct dec_op){.kind = DEC_REPLACE, .from = MARK, .n_from = strlen(MARK), .text = " ", .n_text = 1};
    d->n_before = 1;
    d->byte_fallback = true;
    d->strip_ch = ' ';
    d->strip_start = prefix;
    return SY_OK;
}

static sy_status wrap(struct load *l, bool add_bos, bool add_eos)
{
    if (add_bos && l->bos < 0)
        return sy_fail(l->err, SY_EFORMAT, "tokenizer.ggml.add_bos_token is set, but there is no bos_token_id");
    if (add_eos && l->eos < 0)
        return sy_fail(l->err, SY_EFORMAT, "tokenizer.ggml.add_eos_token is set, but there is no eos_token_id");
    return sy_tokenizer_wrap(l->t, &l->bos, add_bos, &l->eos, add_eos, l->err);
}

/* ---- kinds ------------------------------------------------------------------------------------------- */

const char *sy_merge_space(struct sy_text merge)
{
    return merge.n > 1 ? memchr(merge.at + 1, ' ', merge.n - 1) : NULL;
}

static void prefetch(const struct load *l, struct sy_text merge)
{
    const char *space = sy_merge_space(merge);
    if (!space) return;
    sy_vocab_prefetch(&l->t->vocab, merge.at, (size_t)(space - merge.at));
    sy_vocab_prefetch(&l->t->vocab, space + 1, merge.n - (size_t)(space + 1 - merge.at));
}

static sy_status read_merges(struct load *l)
{
    const struct sy_gguf_vocab *g = l->g;
    if (!g->merge) return sy_fail(l->err, SY_EFORMAT, "tokenizer.ggml.merges: missing");
    size_t n_unknown = 0;
    sy_status st = sy_bpe_merges_init(&l->t->bpe, l->t->env, g->n_merge, l->err);
    for (size_t i = 0; i < g->n_merge && st == SY_OK; i++) {
        const char *a = g->merge[i].at, *space = sy_merge_space(g->merge[i]);
        size_t n = g->merge[i].n;
        if (i + PREFETCH_AHEAD < g->n_merge) prefetch(l, g->merge[i + PREFETCH_AHEAD]);
        if (!space) return sy_fail(l->err, SY_EFORMAT, "tokenizer.ggml.merges: merge %zu: expected two tokens", i);
        size_t n_a = (size_t)(space - a);
        st = sy_bpe_merge_add(&l->t->bpe, &l->t->vocab, (uint32_t)i, a, n_a, space + 1, n - n_a - 1, l->err);
        if (st != SY_EFORMAT) continue;
        n_unknown++; /* its tokens are not in the vocabulary: it could never apply */
        st = SY_OK;
    }
    if (n_unknown)
        sy_log_at(l->t->env, SY_LOG_WARN,
                  "tokenizer.ggml.merges: %zu of %zu name tokens that are not in the vocabulary and are left out",
                  n_unknown, g->n_merge);
    return sy_while(l->err, st, "tokenizer.ggml.merges");
}

static sy_status copy_scores(struct load *l)
{
    if (!l->g->score) return sy_fail(l->err, SY_EFORMAT, "tokenizer.ggml.scores: missing");
    size_t n = l->g->n_token;
    if (l->t->kind == MODEL_BPE) {
        l->t->bpe.score = sy_new_array(l->t->env, n, sizeof *l->t->bpe.score);
        l->t->bpe.joins = sy_new(l->t->env, 256 * 256 / 8);
        if (!l->t->bpe.score || !l->t->bpe.joins) return fail_memory(l->err, "the scores");
        memcpy(l->t->bpe.score, l->g->score, n * sizeof *l->g->score);
        return SY_OK;
    }
    l->t->unigram.score = sy_new_array(l->t->env, n, sizeof *l->t->unigram.score);
    if (!l->t->unigram.score) return fail_memory(l->err, "the scores");
    for (size_t i = 0; i < n; i++) l->t->unigram.score[i] = l->g->score[i];
    return SY_OK;
}

static sy_status load_llama(struct load *l)
{
    bool prefix = flag_or(l->g->add_space_prefix, true);
    l->t->kind = MODEL_BPE;
    l->t->bpe.unk = l->unk;
    l->t->bpe.byte_fallback = true;
    sy_status st = copy_scores(l);
    if (st == SY_OK && prefix) st = add_prepend(l);
    if (st == SY_OK) st = add_replace(l, " ", MARK, false);
    if (st == SY_OK) st = spaces_decoder(l, prefix);
    return st == SY_OK ? wrap(l, flag_or(l->g->add_bos, true), flag_or(l->g->add_eos, false)) : st;
}

static sy_status load_gpt2(struct load *l)
{
    if (!l->g->pre)
        return sy_fail(l->err, SY_ENOSUP,
                       "tokenizer.ggml.pre: missing, so the pre-tokenizer is unknown; convert the model again");
    const struct pre_name *name = sy_pre_name_find(l->g->pre);
    if (!name)
        return sy_fail(l->err, SY_ENOSUP, "tokenizer.ggml.pre: the pre-tokenizer '%.60s' is not known", l->g->pre);
    l->t->kind = MODEL_BPE;
    l->t->bpe.unk = -1;
    l->t->bpe.ignore_merges = name->flags & PRE_IGNORE_MERGES;
    l->t->dec.bytes = l->t->dec.plain_added = true;
    sy_status st = read_merges(l);
    struct norm *m;
    if (st == SY_OK && (name->flags & PRE_NFC)) st = sy_tokenizer_add_norm(l->t, NORM_NFC, &m, l->err);
    if (st == SY_OK) st = sy_pre_name_use(l->t, name, l->err);
    return st == SY_OK ? wrap(l, flag_or(l->g->add_bos, name->flags & PRE_BOS), flag_or(l->g->add_eos, false)) : st;
}

static sy_status load_gemma4(struct load *l)
{
    l->t->kind = MODEL_BPE;
    l->t->bpe.unk = l->unk;
    l->t->bpe.fuse_unk = l->t->bpe.byte_fallback = l->t->bpe.whole_newlines = true;
    sy_status st = read_merges(l);
    if (st == SY_OK) st = add_replace(l, " ", MARK, false);
    if (st == SY_OK) st = add_split(l->t, "[^\\n]+|\\n+", l->err);
    if (st == SY_OK) st = spaces_decoder(l, false);
    return st == SY_OK ? wrap(l, flag_or(l->g->add_bos, true), flag_or(l->g->add_eos, false)) : st;
}

static sy_status load_t5(struct load *l)
{
    bool prefix = flag_or(l->g->add_space_prefix, true);
    struct norm *m;
    l->t->kind = MODEL_UNIGRAM;
    l->t->unigram.unk = l->unk;
    l->t->unigram.single = true;
    sy_status st = copy_scores(l);
    if (st == SY_OK && l->g->charsmap) {
        st = sy_tokenizer_add_norm(l->t, NORM_PRECOMPILED, &m, l->err);
        if (st == SY_OK) m->longest = true;
        if (st == SY_OK) st = sy_norm_use_charsmap(l->t, m, l->g->charsmap, l->g->n_charsmap, l->err);
    }
    if (st == SY_OK && flag_or(l->g->remove_extra_whitespaces, false)) { /* U+0020 alone is white space here */
        st = add_replace(l, "\\A +|[ \\u2581]+\\z", "", true);
        if (st == SY_OK) st = add_replace(l, " {2,}", " ", true);
    }
    if (st == SY_OK && prefix) st = add_prepend(l);
    if (st == SY_OK) st = add_replace(l, " ", MARK, false);
    if (st == SY_OK) st = spaces_decoder(l, prefix);
    return st == SY_OK ? wrap(l, flag_or(l->g->add_bos, false), flag_or(l->g->add_eos, true)) : st;
}

static sy_status load_bert(struct load *l)
{
    static const enum norm_kind norms[] = {NORM_CLEAN, NORM_CJK, NORM_NFD, NORM_STRIP_NONSPACING, NORM_LOWERCASE};
    if (l->unk < 0 || l->cls < 0 || l->sep < 0)
        return sy_fail(l->err, SY_EFORMAT, "a 'bert' tokenizer needs unknown_, cls_ and seperator_token_id");
    l->t->kind = MODEL_WORDPIECE;
    l->t->wordpiece.unk = l->unk;
    l->t->wordpiece.chars_max = 100;
    struct norm *m;
    struct pre *p;
    struct dec_op *o;
    sy_status st = SY_OK;
    for (size_t i = 0; i < SY_COUNT(norms) && st == SY_OK; i++)
        st = sy_tokenizer_add_norm(l->t, norms[i], &m, l->err);
    for (int i = 0; i < 2 && st == SY_OK; i++) {
        st = sy_tokenizer_add_pre(l->t, PRE_CLASS, &p, l->err);
        if (st != SY_OK) return st;
        p->cls = i ? CLASS_PUNCTUATION : CLASS_SPACE;
        p->behavior = i ? SPLIT_ISOLATED : SPLIT_REMOVED;
    }
    if (st == SY_OK) st = sy_tokenizer_add_op(l->t, DEC_METASPACE, &o, l->err);
    if (st != SY_OK) return st;
    /* The converter turned "word" into U+2581 "word", and "##ing" into "ing". */
    *o = (struct dec_op){
        .kind = DEC_METASPACE, .from = MARK, .n_from = strlen(MARK), .cleanup = true, .drop_first = true};
    l->t->dec.n_before = 1;
    st = sy_wordpiece_finish(l->t, MARK, "", l->err);
    return st == SY_OK ? sy_tokenizer_wrap(l->t, &l->cls, 1, &l->sep, 1, l->err) : st;
}

static const struct kind {
    const char *name;
    sy_status (*load)(struct load *);
    int bos, eos, unk, sep, cls; /* where the file names none; -1: none */
} kinds[] = {
    {"llama", load_llama, 1, 2, 0, -1, -1},      {"gpt2", load_gpt2, -1, -1, -1, -1, -1},
    {"gemma4", load_gemma4, -1, -1, -1, -1, -1}, {"t5", load_t5, -1, 1, 2, -1, -1},
    {"bert", load_bert, -1, -1, 100, 102, 101},
};

static sy_status read_all(struct load *l)
{
    const struct sy_gguf_vocab *g = l->g;
    const struct kind *k = NULL;
    for (size_t i = 0; i < SY_COUNT(kinds); i++)
        if (g->model && !strcmp(kinds[i].name, g->model)) k = &kinds[i];
    if (!k)
        return sy_fail(l->err, SY_ENOSUP,
                       "tokenizer.ggml.model: '%.60s' is not supported (llama, gpt2, gemma4, t5 and bert are)",
                       g->model ? g->model : "(missing)");
    int32_t eot, mask;
    sy_status st = id_of(l, "bos", g->bos, k->bos, &l->bos);
    if (st == SY_OK) st = id_of(l, "eos", g->eos, k->eos, &l->eos);
    if (st == SY_OK) st = id_of(l, "eot", g->eot, -1, &eot);
    if (st == SY_OK) st = id_of(l, "unknown", g->unk, k->unk, &l->unk);
    if (st == SY_OK) st = id_of(l, "padding", g->pad, -1, &l->t->pad);
    if (st == SY_OK) st = id_of(l, "seperator", g->sep, k->sep, &l->sep);
    if (st == SY_OK) st = id_of(l, "cls", g->cls, k->cls, &l->cls);
    if (st == SY_OK) st = id_of(l, "mask", g->mask, -1, &mask);
    if (st == SY_OK) st = read_vocab(l);
    if (st == SY_OK) st = k->load(l);
    if (st == SY_OK) st = sy_tokenizer_finish(l->t, l->added, l->n_added, l->err);
    l->t->bos = l->bos;
    l->t->eos = l->eos;
    return st;
}

sy_status sy_tokenizer_from_gguf(const struct sy_env *env, const struct sy_gguf_vocab *g, const char *what,
                                 struct sy_tokenizer **out, struct sy_err *err)
{
    struct load l = {.g = g, .bos = -1, .eos = -1, .unk = -1, .sep = -1, .cls = -1, .err = err};
    sy_status st = sy_tokenizer_new(env, &l.t, err);
    if (st == SY_OK) st = read_all(&l);
    sy_delete(env, l.added);
    if (st == SY_OK) {
        *out = l.t;
        return SY_OK;
    }
    sy_tokenizer_free(l.t);
    return sy_while(err, st, "%s", what);
}
