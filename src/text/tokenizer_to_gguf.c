/* tokenizer_to_gguf.c - a folder's tokenizer as GGUF has it. GGUF names a tokenizer's kind and, of byte-level BPE,
 * its pre-tokenizer; it has no place for anything else. So what it would say is built, read back, and must cut a long
 * text of all kinds of characters as tokenizer.json does; else there is no such GGUF. */
#include <stdio.h>
#include <string.h>

#include "text/tokenizer_int.h"

struct maker {
    const struct sy_env *env;
    const struct sy_checkpoint *c;
    struct sy_tokenizer *t;
    struct sy_arena *mem;
    struct sy_gguf_vocab *out;
    struct sy_buf probe;
    struct sy_err *err;
};

static sy_status no_memory(const struct maker *m) { return fail_memory(m->err, "the tokenizer"); }

/* Whether what stands in *out reads as the same tokenizer. */
static sy_status same(const struct maker *m, bool *yes)
{
    struct sy_tokenizer *g = NULL;
    *yes = true;
    sy_status st = sy_tokenizer_from_gguf(m->env, m->out, "the GGUF's tokenizer", &g, m->err);
    if (st == SY_EFORMAT || st == SY_ENOSUP) {
        m->err->code = SY_OK;
        *yes = false;
        return SY_OK;
    }
    if (!st) st = sy_tokenizer_same(m->t, g, yes, m->err);
    sy_tokenizer_free(g);
    return st;
}

/* ---- tokens --------------------------------------------------------------------------------------------- */

static int32_t type_of(const struct maker *m, int32_t id, bool bytes)
{
    enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE };
    const struct vocab *v = &m->t->vocab;
    if (!vocab_has(v, id)) return UNUSED;
    unsigned flags = v->flags[id];
    if (!bytes && id == tokenizer_unknown(m->t)) return UNKNOWN;
    if (flags & TOKEN_SPECIAL) return CONTROL;
    if (flags & TOKEN_ADDED) return USER;
    size_t n;
    const char *s = vocab_text(v, id, &n);
    unsigned byte;
    char back[8];
    if (bytes || n != 6 || sscanf(s, "<0x%2X>", &byte) != 1) return NORMAL;
    snprintf(back, sizeof back, "<0x%02X>", byte);
    return memcmp(back, s, 6) ? NORMAL : BYTE;
}

/* The text of token id there. Of WordPiece a GGUF marks the beginning of words, a tokenizer.json their other parts.
 */
static sy_status text_of(struct maker *m, int32_t id, struct sy_text *out)
{
    const struct sy_tokenizer *t = m->t;
    out->at = vocab_text(&t->vocab, id, &out->n);
    if (t->kind != MODEL_WORDPIECE || t->vocab.flags[id] & TOKEN_ADDED) return SY_OK;
    bool first = out->n < 2 || memcmp(out->at, "##", 2) != 0;
    if (first) out->at = sy_arena_printf(m->mem, "\u2581%s", out->at);
    else out->at += 2;
    out->n = first ? out->n + strlen("\u2581") : out->n - 2;
    return out->at ? SY_OK : no_memory(m);
}

/* Every row of the embedding has a token; those that tokenizer.json does not name are unused. */
static sy_status put_tokens(struct maker *m, size_t n_row, bool bytes)
{
    const struct vocab *v = &m->t->vocab;
    struct sy_text *token = sy_arena_array(m->mem, n_row, sizeof *token);
    int32_t *type = sy_arena_array(m->mem, n_row, sizeof *type);
    if (!token || !type) return no_memory(m);
    for (size_t i = 0; i < n_row; i++) {
        type[i] = type_of(m, (int32_t)i, bytes);
        if (vocab_has(v, (int64_t)i)) {
            sy_status st = text_of(m, (int32_t)i, &token[i]);
            if (st) return st;
            continue;
        }
        char name[40];
        snprintf(name, sizeof name, "[PAD%zu]", i);
        if (sy_vocab_find(v, name, strlen(name)) >= 0) snprintf(name, sizeof name, "[PAD%zu of the GGUF]", i);
        token[i] = (struct sy_text){sy_arena_text(m->mem, name, strlen(name)), strlen(name)};
        if (!token[i].at) return no_memory(m);
    }
    m->out->n_token = n_row;
    m->out->token = token;
    m->out->type = type;
    return SY_OK;
}

struct pair {
    const char *a, *b;
    size_t n_a, n_b;
};

/* Entry i of tokenizer.json's merges; false: its parts cannot stand in one text with a space between. */
static bool merge_at(const struct sy_json *merges, size_t i, struct pair *p)
{
    const struct sy_json *entry = sy_json_at(merges, i);
    size_t n;
    const char *s = sy_json_text_n(entry, &n), *space = s ? memchr(s, ' ', n) : NULL;
    *p = (struct pair){0};
    if (space) {
        *p = (struct pair){s, space + 1, (size_t)(space - s), n - (size_t)(space + 1 - s)};
    } else {
        p->a = sy_json_text_n(sy_json_at(entry, 0), &p->n_a);
        p->b = sy_json_text_n(sy_json_at(entry, 1), &p->n_b);
    }
    return p->a && p->b && p->n_a && p->n_b && !memchr(p->a, ' ', p->n_a) && !memchr(p->b, ' ', p->n_b);
}

static const struct sy_json *merges_of(const struct maker *m)
{
    return sy_json_get(sy_json_get(sy_checkpoint_tokenizer_json(m->c), "model"), "merges");
}

static sy_status put_merges(struct maker *m, bool *yes)
{
    const struct sy_json *merges = merges_of(m);
    size_t n = sy_json_len(merges);
    struct sy_text *merge = sy_arena_array(m->mem, n + 1, sizeof *merge);
    if (!merge) return no_memory(m);
    *yes = n > 0;
    for (size_t i = 0; i < n && *yes; i++) {
        struct pair p;
        if (!(*yes = merge_at(merges, i, &p))) break;
        merge[i].at = sy_arena_printf(m->mem, "%.*s %.*s", (int)p.n_a, p.a, (int)p.n_b, p.b);
        merge[i].n = p.n_a + p.n_b + 1;
        if (!merge[i].at) return no_memory(m);
    }
    m->out->merge = merge;
    m->out->n_merge = n;
    return SY_OK;
}

/* ---- SentencePiece: scores ------------------------------------------------------------------------------ */

/* Ways to cut a token into two of the model's. */
static int32_t count_cuts(const struct vocab *v, int32_t id)
{
    size_t n;
    const char *s = vocab_text(v, id, &n);
    int32_t cuts = 0;
    for (size_t at = 0; sy_token_next_cut(v, s, n, &at);) cuts++;
    return cuts;
}

/* Of sentencepiece any two neighbours merge that make a token, best score first. Merges by rank are the same when
 * every cut of every token is among them, those of one token together: its score is their place. */
static sy_status put_scores(struct maker *m, size_t n_row, bool *yes)
{
    const struct sy_json *merges = merges_of(m);
    const struct vocab *v = &m->t->vocab;
    float *score = sy_arena_array(m->mem, n_row, sizeof *score);
    int32_t *cuts = sy_arena_array(m->mem, n_row, sizeof *cuts), last = -1, place = 0;
    char *text = sy_arena_get(m->mem, 2 * TOKEN_BYTES_MAX + 1);
    if (!score || !cuts || !text) return no_memory(m);
    *yes = false;
    if (!sy_vocab_cuts_cheap(v)) return SY_OK;
    for (size_t i = 0; i < sy_json_len(merges); i++) {
        struct pair p;
        if (!merge_at(merges, i, &p) || p.n_a + p.n_b > 2 * TOKEN_BYTES_MAX) return SY_OK;
        memcpy(text, p.a, p.n_a);
        memcpy(text + p.n_a, p.b, p.n_b);
        int32_t id = sy_vocab_find_model(v, text, p.n_a + p.n_b);
        if (id < 0 || (size_t)id >= n_row || (id != last && cuts[id])) return SY_OK;
        if (id != last) score[id] = (float)-++place;
        last = id;
        cuts[id]++;
    }
    for (int32_t i = 0; i < v->n && (size_t)i < n_row; i++) {
        if (!vocab_has(v, i) || type_of(m, i, false) != 1) continue; /* a normal token */
        if (cuts[i] != count_cuts(v, i)) return SY_OK;
        if (!cuts[i]) score[i] = (float)-(place + 1 + i); /* never made by merging */
    }
    m->out->score = score;
    *yes = true;
    return SY_OK;
}

static sy_status try_sentencepiece(struct maker *m, size_t n_row, bool *yes)
{
    bool scored = false, merged = false;
    sy_status st = put_tokens(m, n_row, false);
    if (!st) st = put_scores(m, n_row, &scored);
    m->out->model = "llama";
    m->out->pre = "default";
    for (int prefix = 1; !st && scored && prefix >= 0; prefix--) {
        m->out->add_space_prefix = prefix;
        st = same(m, yes);
        if (st || *yes) return st;
    }
    m->out->score = NULL;
    m->out->model = m->out->pre = "gemma4";
    m->out->add_space_prefix = 0;
    if (!st) st = put_merges(m, &merged);
    return st || !merged ? st : same(m, yes);
}

/* ---- Unigram: scores, and what sentencepiece does to a text first --------------------------------------- */

/* The map of characters as sentencepiece stores it: the size of its table in bytes, then both parts. */
static sy_status put_charsmap(struct maker *m)
{
    const struct norm *from = m->t->norm;
    if (m->t->n_norm == 0 || from->kind != NORM_PRECOMPILED) return SY_OK;
    unsigned char *map = sy_arena_get(m->mem, from->n_map + 4);
    if (!map) return no_memory(m);
    for (int i = 0; i < 4; i++) map[i] = (unsigned char)(from->n_unit * 4 >> 8 * i);
    memcpy(map + 4, from->map, from->n_map);
    m->out->charsmap = map;
    m->out->n_charsmap = from->n_map + 4;
    return SY_OK;
}

static sy_status try_unigram(struct maker *m, size_t n_row, bool *yes)
{
    float *score = sy_arena_array(m->mem, n_row, sizeof *score);
    if (!score) return no_memory(m);
    for (int32_t i = 0; i < m->t->vocab.n; i++) score[i] = (float)m->t->unigram.score[i];
    sy_status st = put_tokens(m, n_row, false);
    if (!st) st = put_charsmap(m);
    m->out->model = "t5";
    m->out->pre = "default";
    m->out->score = score;
    for (int k = 0; k < 4 && !st && !*yes; k++) {
        m->out->add_space_prefix = !(k & 1);
        m->out->remove_extra_whitespaces = k >> 1;
        st = same(m, yes);
    }
    return st;
}

static sy_status try_wordpiece(struct maker *m, size_t n_row, bool *yes)
{
    sy_status st = put_tokens(m, n_row, false);
    m->out->model = "bert";
    m->out->pre = "default";
    m->out->cls = m->t->n_head == 1 ? m->t->head[0] : -1;
    m->out->sep = m->t->n_tail == 1 ? m->t->tail[0] : -1;
    return st ? st : same(m, yes);
}

/* ---- byte-level BPE: the name of the pre-tokenizer ------------------------------------------------------ */

/* Cuts the probe; the pieces lie one after the other in *out, each followed by a zero byte. */
static sy_status cut(struct maker *m, const struct sy_tokenizer *t, struct sy_buf *out)
{
    struct work w = {0};
    const char *s = m->probe.at;
    sy_status st = sy_tokwork_init(&w, t, m->probe.len, NULL, m->err);
    if (!st) st = sy_pretokenize(&w, &s, m->probe.len, true, m->err);
    const struct piece *p = w.piece[0].at;
    for (size_t i = 0; !st && i < w.piece[0].n; i++) {
        sy_buf_add(out, s + p[i].lo, p[i].hi - p[i].lo);
        sy_buf_char(out, 0);
    }
    sy_tokwork_release(&w);
    return st || !out->failed ? st : no_memory(m);
}

static sy_status cuts_so(struct maker *m, const struct pre_name *name, const struct sy_buf *want, bool *yes)
{
    struct sy_tokenizer *t;
    struct sy_buf have;
    sy_status st = sy_tokenizer_new(m->env, &t, m->err);
    if (st) return st;
    sy_buf_init(&have, m->env, 0);
    st = sy_pre_name_use(t, name, m->err);
    /* Bytes are compared as the one that was finished has them. */
    if (!st && m->t->n_pre) t->pre[t->n_pre - 1].map_bytes = m->t->pre[m->t->n_pre - 1].map_bytes;
    if (!st) st = cut(m, t, &have);
    *yes = !st && have.len == want->len && have.len && !memcmp(have.at, want->at, have.len);
    sy_buf_release(&have);
    sy_tokenizer_free(t);
    return st;
}

static sy_status try_bytes(struct maker *m, size_t n_row, bool *yes)
{
    const struct pre_name *name;
    const struct sy_tokenizer *t = m->t;
    bool nfc = t->n_norm == 1 && t->norm[0].kind == NORM_NFC;
    struct sy_buf want;
    if (t->n_norm > (nfc ? 1 : 0)) return SY_OK;
    sy_buf_init(&want, m->env, 0);
    sy_status st = cut(m, t, &want);
    m->out->model = "gpt2";
    m->out->pre = NULL;
    for (size_t i = 0; !st && !m->out->pre && (name = sy_pre_name_at(i)); i++) {
        bool cuts;
        if (nfc != !!(name->flags & PRE_NFC) || t->bpe.ignore_merges != !!(name->flags & PRE_IGNORE_MERGES)) continue;
        st = cuts_so(m, name, &want, &cuts);
        if (!st && cuts) m->out->pre = name->name;
    }
    sy_buf_release(&want);
    if (st || !m->out->pre) return st;
    bool merged;
    st = put_tokens(m, n_row, true);
    if (!st) st = put_merges(m, &merged);
    return st || !merged ? st : same(m, yes);
}

/* ---- together ------------------------------------------------------------------------------------------- */

/* What ends an answer: the tokenizer's token, then what the generation's config has more. */
static void put_ends(struct maker *m)
{
    const struct sy_json *ends = sy_json_get(sy_checkpoint_generation(m->c), "eos_token_id");
    if (!ends) ends = sy_json_get(sy_checkpoint_config(m->c), "eos_token_id");
    int64_t *slot[] = {&m->out->eos, &m->out->eot, &m->out->eom};
    size_t at = m->out->eos >= 0, n = sy_json_is_array(ends) ? sy_json_len(ends) : 1;
    for (size_t i = 0; ends && i < n; i++) {
        int64_t id = sy_json_int(sy_json_is_array(ends) ? sy_json_at(ends, i) : ends, -1);
        if (id < 0 || id == m->out->eos || id == m->out->eot || id == m->out->eom) continue;
        if (at < SY_COUNT(slot)) *slot[at++] = id;
        else
            sy_log_at(m->env, SY_LOG_WARN, "a GGUF names three ends of an answer: token %lld is left out",
                      (long long)id);
    }
}

static sy_status make(struct maker *m)
{
    const struct sy_tensor *embed = sy_checkpoint_find(m->c, "model.embed_tokens.weight");
    size_t n_row = embed ? (size_t)embed->dim[0] : (size_t)m->t->vocab.n;
    struct sy_gguf_vocab *g = m->out;
    if (n_row < (size_t)m->t->vocab.n || n_row > TOKEN_ID_MAX)
        return sy_fail(m->err, SY_ENOSUP, "tokenizer.json has ids up to %d, the embedding only %zu rows",
                       m->t->vocab.n, n_row);
    g->bos = m->t->bos >= 0 ? m->t->bos : m->t->n_head == 1 ? m->t->head[0] : -1;
    g->eos = m->t->eos;
    g->pad = m->t->pad;
    put_ends(m);
    g->add_bos = m->t->n_head > 0;
    g->add_eos = m->t->n_tail > 0;
    sy_tokenizer_probe(&m->probe);
    if (m->probe.failed) return no_memory(m);
    bool yes = false;
    sy_status st = SY_OK;
    if (!m->t->dec.bytes) g->unk = tokenizer_unknown(m->t);
    if (m->t->kind == MODEL_BPE) st = m->t->dec.bytes ? try_bytes(m, n_row, &yes) : try_sentencepiece(m, n_row, &yes);
    if (m->t->kind == MODEL_UNIGRAM) st = try_unigram(m, n_row, &yes);
    if (m->t->kind == MODEL_WORDPIECE) st = try_wordpiece(m, n_row, &yes);
    return st || yes ? st
                     : sy_fail(m->err, SY_ENOSUP,
                               "no tokenizer that a GGUF can name cuts texts as this tokenizer.json does; "
                               "--no-tokenizer leaves it out");
}

sy_status sy_tokenizer_to_gguf(const struct sy_env *env, const struct sy_checkpoint *c, struct sy_arena *mem,
                               struct sy_tokenizer **source, struct sy_gguf_vocab *out, struct sy_err *err)
{
    struct sy_err own = {0};
    struct maker m = {.env = env, .c = c, .mem = mem, .out = out, .err = err ? err : &own};
    *out = (struct sy_gguf_vocab){.bos = -1, .eos = -1, .eot = -1, .eom = -1, .unk = -1, .pad = -1, .sep = -1};
    out->cls = out->mask = out->add_bos = out->add_eos = out->add_space_prefix = out->remove_extra_whitespaces = -1;
    *source = NULL;
    sy_status st = sy_tokenizer_from_json(env, sy_checkpoint_tokenizer_json(c), sy_checkpoint_tokenizer_config(c),
                                          "tokenizer.json", &m.t, m.err);
    if (st) return st;
    sy_buf_init(&m.probe, env, 0);
    st = make(&m);
    sy_buf_release(&m.probe);
    if (st) sy_tokenizer_free(m.t);
    else *source = m.t;
    return st;
}
