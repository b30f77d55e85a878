/* From tokenizer.json (Hugging Face tokenizers 0.13 to 0.2x): vocabulary, added tokens and model. What a file asks
 * for and we do not have is refused by name. `dropout` (a training-time regularizer), `truncation` and `padding` (a
 * caller's business) do not take part in encoding here. */
#include <math.h>
#include <string.h>

#include "text/tokenizer_int.h"

/* What is being loaded, and the added tokens found so far. */
struct load {
    struct sy_tokenizer *t;
    const struct sy_json *root, *model;
    struct added_token *added;
    size_t n_added;
    struct sy_err *err;
};

/* ---- vocabulary -------------------------------------------------------------------------------------- */

/* One pass over all token texts: either measures or adds. */
struct measure {
    int64_t id_max;
    size_t n_text;
};

static sy_status bad_entry(struct load *l, const char *key, const char *want)
{
    return sy_fail(l->err, SY_EFORMAT, "model.vocab: '%.80s': expected %s", key, want);
}

static sy_status walk_object(struct load *l, const struct sy_json *vocab, struct measure *m)
{
    const char *key;
    const struct sy_json *value;
    for (void *it = NULL; (it = sy_json_next(vocab, it, &key, &value));) {
        int64_t id = sy_json_int(value, -1);
        if (!sy_json_is_int(value) || id < 0 || id >= TOKEN_ID_MAX)
            return bad_entry(l, key, "a token id from 0 to 16777215");
        size_t n = strlen(key);
        if (m) {
            if (id > m->id_max) m->id_max = id;
            m->n_text += n;
            continue;
        }
        sy_status st = sy_vocab_add(&l->t->vocab, id, key, n, TOKEN_MODEL, l->err);
        if (st != SY_OK) return sy_while(l->err, st, "model.vocab");
    }
    return SY_OK;
}

static sy_status walk_array(struct load *l, const struct sy_json *vocab, struct measure *m)
{
    size_t count = sy_json_len(vocab);
    if (count > TOKEN_ID_MAX) return sy_fail(l->err, SY_ENOSUP, "model.vocab: %zu tokens", count);
    for (size_t i = 0; i < count; i++) {
        size_t n;
        const struct sy_json *entry = sy_json_at(vocab, i), *score = sy_json_at(entry, 1);
        const char *s = sy_json_text_n(sy_json_at(entry, 0), &n);
        if (!s || !sy_json_is_number(score))
            return sy_fail(l->err, SY_EFORMAT, "model.vocab: entry %zu: expected [\"token\", score]", i);
        if (m) {
            m->n_text += n;
            continue;
        }
        sy_status st = sy_vocab_add(&l->t->vocab, (int64_t)i, s, n, TOKEN_MODEL, l->err);
        if (st != SY_OK) return sy_while(l->err, st, "model.vocab");
        l->t->unigram.score[i] = sy_json_number(score, 0);
    }
    if (m && (int64_t)count - 1 > m->id_max) m->id_max = (int64_t)count - 1;
    return SY_OK;
}

static sy_status walk_vocab(struct load *l, struct measure *m)
{
    const struct sy_json *vocab = sy_json_get(l->model, "vocab");
    if (l->t->kind == MODEL_UNIGRAM) {
        if (!sy_json_is_array(vocab)) return sy_fail(l->err, SY_EFORMAT, "model.vocab: expected an array");
        return walk_array(l, vocab, m);
    }
    if (!sy_json_is_object(vocab)) return sy_fail(l->err, SY_EFORMAT, "model.vocab: expected an object");
    return walk_object(l, vocab, m);
}

/* One entry of added_tokens; text NULL after an error or when there is nothing to add. */
static const char *added_text(struct load *l, size_t i, struct added_token *k, size_t *n, sy_status *st)
{
    const struct sy_json *entry = sy_json_at(sy_json_get(l->root, "added_tokens"), i);
    struct sy_jread r = {entry, "added_tokens", l->err, SY_OK};
    const char *s = sy_json_text_n(sy_json_get(entry, "content"), n);
    *k = (struct added_token){.id = (int32_t)sy_jread_int(&r, "id", 0, TOKEN_ID_MAX - 1),
                              .lstrip = sy_jread_bool_or(&r, "lstrip", false),
                              .rstrip = sy_jread_bool_or(&r, "rstrip", false),
                              .single_word = sy_jread_bool_or(&r, "single_word", false),
                              .special = sy_jread_bool_or(&r, "special", false)};
    k->normalized = sy_jread_bool_or(&r, "normalized", !k->special);
    if (!s && r.st == SY_OK) (void)sy_jread_refuse(&r, SY_EFORMAT, "entry %zu: 'content': expected a string", i);
    *st = r.st;
    return r.st == SY_OK && *n ? s : NULL;
}

/* A token that the model has keeps the model's id, as Hugging Face has it. */
static sy_status add_token(struct load *l, const char *s, size_t n, struct added_token k)
{
    struct vocab *v = &l->t->vocab;
    struct vocab_entry have = sy_vocab_entry(v, s, n);
    if (have.flags & TOKEN_ADDED) return SY_OK; /* named twice: the first counts */
    if (have.id < 0) {
        sy_status st = sy_vocab_add(v, k.id, s, n, 0, l->err);
        if (st != SY_OK) return sy_while(l->err, st, "added_tokens");
    } else if (have.id != k.id) {
        sy_log_at(l->t->env, SY_LOG_WARN, "tokenizer: the added token '%.60s' says id %d, the vocabulary %d", s, k.id,
                  have.id);
        k.id = have.id;
    }
    sy_vocab_mark(v, s, n, TOKEN_ADDED | (k.special ? TOKEN_SPECIAL : 0));
    l->added[l->n_added++] = k;
    return SY_OK;
}

static sy_status read_vocab(struct load *l)
{
    struct measure m = {.id_max = -1};
    struct added_token k;
    size_t n, n_added = sy_json_len(sy_json_get(l->root, "added_tokens"));
    size_t n_string = sy_json_len(sy_json_get(l->model, "vocab")) + n_added;
    sy_status st = walk_vocab(l, &m);
    for (size_t i = 0; i < n_added && st == SY_OK; i++) {
        const char *s = added_text(l, i, &k, &n, &st);
        if (s && k.id > m.id_max) m.id_max = k.id;
        m.n_text += s ? n : 0;
    }
    if (st == SY_OK) st = sy_vocab_init(&l->t->vocab, l->t->env, m.id_max + 1, n_string, m.n_text, l->err);
    if (st != SY_OK) return st;
    l->added = sy_new_array(l->t->env, n_added + 1, sizeof *l->added);
    if (l->t->kind == MODEL_UNIGRAM)
        l->t->unigram.score = sy_new_array(l->t->env, (size_t)l->t->vocab.n, sizeof(double));
    if (!l->added || (l->t->kind == MODEL_UNIGRAM && !l->t->unigram.score))
        return fail_memory(l->err, "the vocabulary");
    st = walk_vocab(l, NULL);
    for (size_t i = 0; i < n_added && st == SY_OK; i++) {
        const char *s = added_text(l, i, &k, &n, &st);
        if (s) st = add_token(l, s, n, k);
    }
    return st;
}

/* ---- models ------------------------------------------------------------------------------------------ */

/* The token that stands for the unknown; -1 when none is named. */
static int32_t unk_token(struct load *l)
{
    size_t n;
    const char *s = sy_json_text_n(sy_json_get(l->model, "unk_token"), &n);
    int32_t id = s ? sy_vocab_find(&l->t->vocab, s, n) : -1;
    if (s && id < 0) sy_log_at(l->t->env, SY_LOG_WARN, "tokenizer: unk_token '%.60s' is not in the vocabulary", s);
    return id;
}

static sy_status copy_text(struct load *l, struct sy_jread *r, const char *key, const char **to, size_t *n)
{
    const char *s = sy_jread_text_or(r, key, "");
    *n = strlen(s);
    *to = sy_arena_text(&l->t->arena, s, *n);
    return r->st != SY_OK ? r->st : *to ? SY_OK : fail_memory(l->err, key);
}

struct pair {
    const char *a, *b; /* NULL: not two tokens */
    size_t n_a, n_b;
};

/* A merge: ["a", "b"], or "a b" in files from before 0.20. */
static struct pair merge_parts(const struct sy_json *entry)
{
    struct pair p = {0};
    if (!sy_json_is_text(entry)) {
        p.a = sy_json_text_n(sy_json_at(entry, 0), &p.n_a);
        p.b = sy_json_text_n(sy_json_at(entry, 1), &p.n_b);
        return p;
    }
    size_t n;
    p.a = sy_json_text_n(entry, &n);
    const char *space = memchr(p.a, ' ', n);
    if (!space) return p;
    p.n_a = (size_t)(space - p.a);
    p.n_b = n - p.n_a - 1;
    p.b = memchr(space + 1, ' ', p.n_b) ? NULL : space + 1;
    return p;
}

static sy_status read_merges(struct load *l, const struct sy_json *merges)
{
    size_t n = sy_json_len(merges);
    struct pair ahead[PREFETCH_AHEAD] = {0};
    sy_status st = sy_bpe_merges_init(&l->t->bpe, l->t->env, n, l->err);
    for (size_t i = 0; i < n + PREFETCH_AHEAD && st == SY_OK; i++) {
        struct pair *slot = &ahead[i % PREFETCH_AHEAD], p = *slot; /* read PREFETCH_AHEAD steps ago */
        if (i >= PREFETCH_AHEAD) {
            size_t rank = i - PREFETCH_AHEAD;
            st = p.a && p.b
                     ? sy_bpe_merge_add(&l->t->bpe, &l->t->vocab, (uint32_t)rank, p.a, p.n_a, p.b, p.n_b, l->err)
                     : sy_fail(l->err, SY_EFORMAT, "merge %zu: expected two tokens", rank);
        }
        if (i >= n) continue;
        *slot = merge_parts(sy_json_at(merges, i));
        if (!slot->a || !slot->b) continue;
        sy_vocab_prefetch(&l->t->vocab, slot->a, slot->n_a);
        sy_vocab_prefetch(&l->t->vocab, slot->b, slot->n_b);
    }
    return st;
}

static sy_status read_bpe(struct load *l)
{
    struct bpe *b = &l->t->bpe;
    struct sy_jread r = {l->model, "model", l->err, SY_OK};
    b->fuse_unk = sy_jread_bool_or(&r, "fuse_unk", false);
    b->byte_fallback = sy_jread_bool_or(&r, "byte_fallback", false);
    b->ignore_merges = sy_jread_bool_or(&r, "ignore_merges", false);
    sy_status st = copy_text(l, &r, "continuing_subword_prefix", &b->prefix, &b->n_prefix);
    if (st == SY_OK) st = copy_text(l, &r, "end_of_word_suffix", &b->suffix, &b->n_suffix);
    if (st != SY_OK) return st;
    b->unk = unk_token(l);
    const struct sy_json *merges = sy_json_get(l->model, "merges");
    if (!sy_json_is_array(merges)) return sy_fail(l->err, SY_EFORMAT, "model.merges: expected an array");
    return sy_while(l->err, read_merges(l, merges), "model.merges");
}

static sy_status read_unigram(struct load *l)
{
    struct sy_jread r = {l->model, "model", l->err, SY_OK};
    int64_t n = (int64_t)sy_json_len(sy_json_get(l->model, "vocab"));
    l->t->unigram.unk = (int32_t)sy_jread_int_or(&r, "unk_id", -1, 0, n - 1);
    l->t->unigram.byte_fallback = sy_jread_bool_or(&r, "byte_fallback", false);
    return r.st;
}

static sy_status read_wordpiece(struct load *l)
{
    struct sy_jread r = {l->model, "model", l->err, SY_OK};
    l->t->wordpiece.unk = unk_token(l);
    l->t->wordpiece.chars_max = sy_jread_int_or(&r, "max_input_chars_per_word", 100, 0, 1 << 20);
    const char *next = sy_jread_text_or(&r, "continuing_subword_prefix", "##");
    if (r.st != SY_OK) return r.st;
    if (l->t->wordpiece.unk < 0)
        return sy_fail(l->err, SY_EFORMAT, "model.unk_token: expected a token of the vocabulary");
    return sy_wordpiece_finish(l->t, "", next, l->err);
}

/* The model's kind by its "type", or, in files older than that key, by its parts. */
static sy_status find_kind(struct load *l)
{
    static const struct {
        const char *name;
        enum model_kind kind;
    } kinds[] = {{"BPE", MODEL_BPE},
                 {"Unigram", MODEL_UNIGRAM},
                 {"WordPiece", MODEL_WORDPIECE},
                 {"WordLevel", MODEL_WORDLEVEL}};
    if (!sy_json_is_object(l->model)) return sy_fail(l->err, SY_EFORMAT, "'model': expected an object");
    const char *type = sy_json_text(sy_json_get(l->model, "type"));
    if (!type)
        type = sy_json_get(l->model, "merges")                     ? "BPE"
               : sy_json_is_array(sy_json_get(l->model, "vocab"))  ? "Unigram"
               : sy_json_get(l->model, "max_input_chars_per_word") ? "WordPiece"
                                                                   : "WordLevel";
    for (size_t i = 0; i < SY_COUNT(kinds); i++) {
        if (strcmp(kinds[i].name, type)) continue;
        l->t->kind = kinds[i].kind;
        return SY_OK;
    }
    return sy_fail(l->err, SY_ENOSUP,
                   "model type '%.60s' is not supported (BPE, Unigram, WordPiece and WordLevel are)", type);
}

static sy_status read_model(struct load *l)
{
    switch (l->t->kind) {
    case MODEL_BPE: return read_bpe(l);
    case MODEL_UNIGRAM: return read_unigram(l);
    case MODEL_WORDPIECE: return read_wordpiece(l);
    case MODEL_WORDLEVEL: l->t->wordpiece.unk = unk_token(l); break;
    }
    return SY_OK;
}

/* tokenizer_config.json names a token by its text, or as an object with "content". */
static int32_t config_token(struct load *l, const struct sy_json *config, const char *key)
{
    const struct sy_json *j = sy_json_get(config, key);
    size_t n;
    const char *s = sy_json_text_n(sy_json_is_object(j) ? sy_json_get(j, "content") : j, &n);
    return s ? sy_vocab_find(&l->t->vocab, s, n) : -1;
}

static sy_status read_all(struct load *l, const struct sy_json *config)
{
    if (!sy_json_is_object(l->root)) return sy_fail(l->err, SY_EFORMAT, "expected an object");
    sy_status st = find_kind(l);
    if (st == SY_OK) st = read_vocab(l);
    if (st == SY_OK) st = read_model(l);
    if (st == SY_OK) st = sy_tokenizer_read_steps(l->t, l->root, l->err);
    if (st == SY_OK) st = sy_tokenizer_finish(l->t, l->added, l->n_added, l->err);
    if (st != SY_OK) return st;
    l->t->bos = config_token(l, config, "bos_token");
    l->t->eos = config_token(l, config, "eos_token");
    l->t->pad = config_token(l, config, "pad_token");
    return SY_OK;
}

sy_status sy_tokenizer_from_json(const struct sy_env *env, const struct sy_json *root, const struct sy_json *config,
                                 const char *what, struct sy_tokenizer **out, struct sy_err *err)
{
    struct load l = {.root = root, .model = sy_json_get(root, "model"), .err = err};
    sy_status st = sy_tokenizer_new(env, &l.t, err);
    if (st == SY_OK) st = read_all(&l, config);
    sy_delete(env, l.added);
    if (st == SY_OK) {
        *out = l.t;
        return SY_OK;
    }
    sy_tokenizer_free(l.t);
    return sy_while(err, st, "%s", what);
}
