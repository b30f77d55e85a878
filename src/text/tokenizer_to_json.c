/* tokenizer_to_json.c - a GGUF's tokenizer as a folder holds it: tokenizer.json of Hugging Face's tokenizers 0.20 and
 * later, and tokenizer_config.json. What a GGUF's kind means is spelled in steps; merges are its own, or, where it
 * has scores, every way to cut a token, best score first. What is written is read back, and must cut texts that tell
 * tokenizers apart as the GGUF's does; else nothing is written. */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_int.h"

#define MARK "\xe2\x96\x81" /* U+2581, sentencepiece's space */

enum {
    JSON_BYTES_MAX = 256 << 20, /* what a folder's is read up to */
    CUTS_MAX = 1 << 22,         /* merges made of scores */
};

struct maker {
    const struct sy_env *env;
    const struct sy_gguf_vocab *g;
    struct sy_tokenizer *t; /* the GGUF's */
    struct sy_arena mem;
    struct sy_buf *out;
    struct sy_err *err;
};

/* Kinds that can be written in several ways try one after the other. */
struct kind {
    const char *name;
    int ways;
    sy_status (*steps)(struct maker *, int way); /* normalizer, pre-tokenizer, decoder: members of the root */
    sy_status (*model)(struct maker *, int way); /* the model's members */
};

static sy_status no_memory(const struct maker *m) { return fail_memory(m->err, "the tokenizer"); }
static void text(struct maker *m, const char *s) { sy_buf_text(m->out, s); }
static void quote(struct maker *m, const char *s, size_t n) { sy_json_quote(m->out, s, n); }

static sy_status refuse(const struct maker *m, const char *why) { return sy_fail(m->err, SY_ENOSUP, "%s", why); }

static void quote_token(struct maker *m, int32_t id)
{
    size_t n;
    const char *s = vocab_text(&m->t->vocab, id, &n);
    quote(m, s, n);
}

/* Tokens of embedding rows that stand for nothing are left out, as in the files that GGUFs are made of. */
static bool is_written(const struct vocab *v, int32_t id)
{
    return vocab_has(v, id) && v->flags[id] & (TOKEN_MODEL | TOKEN_ADDED);
}

/* ---- vocabularies ------------------------------------------------------------------------------------------ */

static void put_added(struct maker *m)
{
    const struct vocab *v = &m->t->vocab;
    const char *comma = "";
    text(m, "\"added_tokens\":[");
    for (int32_t i = 0; i < v->n; i++) {
        if (!is_written(v, i) || !(v->flags[i] & TOKEN_ADDED) || !v->token[i].len) continue;
        sy_buf_printf(m->out, "%s\n{\"id\":%d,\"content\":", comma, i);
        quote_token(m, i);
        sy_buf_printf(m->out,
                      ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}",
                      v->flags[i] & TOKEN_SPECIAL ? "true" : "false");
        comma = ",";
    }
    text(m, "],\n");
}

/* The text of token id in the model's vocabulary. */
static sy_status word_of(struct maker *m, int32_t id, const char **s, size_t *n)
{
    const struct vocab *v = &m->t->vocab;
    *s = vocab_text(v, id, n);
    if (sy_vocab_find(v, *s, *n) != id) return refuse(m, "two tokens have the same text");
    if (m->t->kind != MODEL_WORDPIECE || v->flags[id] & TOKEN_ADDED) return SY_OK;
    /* A GGUF marks the beginning of words, a tokenizer.json their other parts. */
    size_t n_mark = strlen(MARK);
    bool first = *n >= n_mark && !memcmp(*s, MARK, n_mark);
    const char *other = first ? *s + n_mark : sy_arena_printf(&m->mem, "##%s", *s);
    *n = first ? *n - n_mark : *n + 2;
    *s = other;
    return other ? SY_OK : no_memory(m);
}

static sy_status put_vocab(struct maker *m)
{
    const struct vocab *v = &m->t->vocab;
    const char *comma = "", *s;
    size_t n;
    text(m, "\"vocab\":{");
    for (int32_t i = 0; i < v->n; i++) {
        if (!is_written(v, i)) continue;
        sy_status st = word_of(m, i, &s, &n);
        if (st) return st;
        sy_buf_printf(m->out, "%s\n", comma);
        quote(m, s, n);
        sy_buf_printf(m->out, ":%d", i);
        comma = ",";
    }
    text(m, "}");
    return SY_OK;
}

static void put_unknown(struct maker *m)
{
    int32_t unk = tokenizer_unknown(m->t);
    text(m, "\"unk_token\":");
    if (unk < 0) text(m, "null");
    else quote_token(m, unk);
}

/* ---- merges ------------------------------------------------------------------------------------------------ */

static void put_merge(struct maker *m, bool first, const char *a, size_t n_a, const char *b, size_t n_b)
{
    text(m, first ? "\n[" : ",\n[");
    quote(m, a, n_a);
    text(m, ",");
    quote(m, b, n_b);
    text(m, "]");
}

static bool is_part(const struct vocab *v, const char *s, size_t n)
{
    int32_t id = sy_vocab_find(v, s, n);
    return id >= 0 && is_written(v, id);
}

/* The GGUF's own, but for those that could never apply. */
static sy_status put_given_merges(struct maker *m)
{
    const struct vocab *v = &m->t->vocab;
    char *joined = sy_arena_get(&m->mem, 2 * TOKEN_BYTES_MAX + 1);
    bool first = true;
    if (!joined) return no_memory(m);
    text(m, "\"merges\":[");
    for (size_t i = 0; i < m->g->n_merge; i++) {
        const char *a = m->g->merge[i].at, *space = sy_merge_space(m->g->merge[i]);
        size_t n_a = (size_t)(space - a), n_b = m->g->merge[i].n - n_a - 1;
        if (!is_part(v, a, n_a) || !is_part(v, space + 1, n_b)) continue; /* so both are short */
        memcpy(joined, a, n_a);
        memcpy(joined + n_a, space + 1, n_b);
        if (sy_vocab_find_model(v, joined, n_a + n_b) < 0) continue;
        put_merge(m, first, a, n_a, space + 1, n_b);
        first = false;
    }
    text(m, "]");
    return SY_OK;
}

struct scored {
    float score;
    int32_t id;
};

static int best_first(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Whether token s[0..n) can be made of a character that is no token, and what is left: of merges both are tokens. */
static bool made_of_text(const struct vocab *v, const char *s, size_t n)
{
    size_t first = 1, last = n - 1;
    while (first < n && ((unsigned char)s[first] & 0xc0) == 0x80) first++;
    while (last > 0 && ((unsigned char)s[last] & 0xc0) == 0x80) last--;
    if (first >= n) return false;
    bool head = sy_vocab_find_model(v, s, first) >= 0, tail = sy_vocab_find_model(v, s + last, n - last) >= 0;
    if (!head && (sy_vocab_find_model(v, s + first, n - first) >= 0 || (first == last && !tail))) return true;
    return !tail && sy_vocab_find_model(v, s, last) >= 0;
}

/* Of sentencepiece any two neighbours merge that make a token, best score first. */
static sy_status put_scored_merges(struct maker *m)
{
    const struct vocab *v = &m->t->vocab;
    struct scored *all = sy_arena_array(&m->mem, (size_t)v->n, sizeof *all);
    size_t n_all = 0, n_cut = 0, n;
    if (!all) return no_memory(m);
    if (!sy_vocab_cuts_cheap(v)) return refuse(m, "its tokens are too long to be cut everywhere");
    for (int32_t i = 0; i < v->n; i++)
        if (vocab_has(v, i) && flags_usable(v->flags[i])) all[n_all++] = (struct scored){m->t->bpe.score[i], i};
    if (n_all) qsort(all, n_all, sizeof *all, best_first);
    text(m, "\"merges\":[");
    for (size_t i = 0; i < n_all; i++) {
        const char *s = vocab_text(v, all[i].id, &n);
        if (!n || sy_vocab_find_model(v, s, n) != all[i].id) continue;
        if (memchr(s, ' ', n)) continue; /* of no use: spaces have become marks by now */
        if (made_of_text(v, s, n)) return refuse(m, "it has tokens of characters that are none");
        for (size_t at = 0; sy_token_next_cut(v, s, n, &at); n_cut++) put_merge(m, n_cut == 0, s, at, s + at, n - at);
        if (n_cut > CUTS_MAX || m->out->failed) return refuse(m, "its scores stand for too many merges");
    }
    text(m, "]");
    return SY_OK;
}

/* ---- byte-level BPE ---------------------------------------------------------------------------------------- */

static sy_status bytes_steps(struct maker *m, int way)
{
    (void)way;
    const struct pre_name *name = sy_pre_name_find(m->g->pre);
    sy_buf_printf(m->out, "\"normalizer\":%s,\n", name->flags & PRE_NFC ? "{\"type\":\"NFC\"}" : "null");
    text(m, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (size_t i = 0; i < PRE_PATTERNS_MAX && name->pattern[i]; i++) {
        text(m, "\n{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        quote(m, name->pattern[i], strlen(name->pattern[i]));
        text(m, "},\"behavior\":\"Isolated\",\"invert\":false},");
    }
    text(m, "\n{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]},\n"
            "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
            "\n");
    return SY_OK;
}

static sy_status put_bpe(struct maker *m, bool fuse_unk, bool byte_fallback, bool whole, bool scored)
{
    text(m, "\"type\":\"BPE\",\"dropout\":null,");
    put_unknown(m);
    sy_buf_printf(m->out,
                  ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":%s,"
                  "\"byte_fallback\":%s,\"ignore_merges\":%s,\n",
                  fuse_unk ? "true" : "false", byte_fallback ? "true" : "false", whole ? "true" : "false");
    sy_status st = put_vocab(m);
    text(m, ",\n");
    return st ? st : scored ? put_scored_merges(m) : put_given_merges(m);
}

static sy_status bytes_model(struct maker *m, int way)
{
    (void)way;
    return put_bpe(m, false, false, m->t->bpe.ignore_merges, false);
}

/* ---- what sentencepiece does with spaces ------------------------------------------------------------------- */

static void put_spaces_norm(struct maker *m, bool prefix)
{
    if (prefix) text(m, "{\"type\":\"Prepend\",\"prepend\":\"" MARK "\"},");
    text(m, "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}");
}

static void put_spaces_decoder(struct maker *m, bool prefix)
{
    text(m, "\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
            "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" MARK "\"},\"content\":\" \"},"
            "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
    if (prefix) text(m, ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
    text(m, "]},\n");
}

static bool has_prefix(const struct maker *m) { return m->t->dec.strip_start > 0; }

static sy_status llama_steps(struct maker *m, int way)
{
    (void)way;
    text(m, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    put_spaces_norm(m, has_prefix(m));
    text(m, "]},\n\"pre_tokenizer\":null,\n");
    put_spaces_decoder(m, has_prefix(m));
    return SY_OK;
}

static sy_status llama_model(struct maker *m, int way)
{
    (void)way;
    return put_bpe(m, false, true, false, true);
}

/* Runs of line breaks are looked up as a whole. No tokenizer.json says so of them alone: either merges make them too,
 * or whole lines may be looked up as well. */
static sy_status gemma4_steps(struct maker *m, int way)
{
    (void)way;
    text(m, "\"normalizer\":");
    put_spaces_norm(m, false);
    text(m, ",\n\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[^\\\\n]+|\\\\n+\"},"
            "\"behavior\":\"Isolated\",\"invert\":false},\n");
    put_spaces_decoder(m, false);
    return SY_OK;
}

static sy_status gemma4_model(struct maker *m, int way) { return put_bpe(m, true, true, way == 1, false); }

/* ---- Unigram ----------------------------------------------------------------------------------------------- */

static sy_status unigram_steps(struct maker *m, int way)
{
    (void)way;
    text(m, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    if (m->g->charsmap) {
        text(m, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
        sy_buf_base64(m->out, m->g->charsmap, m->g->n_charsmap);
        text(m, "\"},");
    }
    if (m->g->remove_extra_whitespaces > 0)
        text(m, "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\A +|[ " MARK "]+\\\\z\"},\"content\":\"\"},"
                "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"},");
    put_spaces_norm(m, has_prefix(m));
    text(m, "]},\n\"pre_tokenizer\":null,\n");
    put_spaces_decoder(m, has_prefix(m));
    return SY_OK;
}

/* All ids in their order; only at the end can tokens be left out. */
static sy_status unigram_model(struct maker *m, int way)
{
    (void)way;
    const struct vocab *v = &m->t->vocab;
    int32_t n = v->n;
    while (n > 0 && !is_written(v, n - 1)) n--;
    text(m, "\"type\":\"Unigram\",\"unk_id\":");
    if (m->t->unigram.unk < 0) text(m, "null");
    else sy_buf_printf(m->out, "%d", m->t->unigram.unk);
    text(m, ",\"byte_fallback\":false,\n\"vocab\":[");
    for (int32_t i = 0; i < n; i++) {
        if (!vocab_has(v, i)) return refuse(m, "a Unigram model with gaps between its tokens");
        text(m, i ? ",\n[" : "\n[");
        quote_token(m, i);
        sy_buf_printf(m->out, ",%.9g]", m->t->unigram.score[i]);
    }
    text(m, "]");
    return SY_OK;
}

/* ---- WordPiece --------------------------------------------------------------------------------------------- */

static sy_status bert_steps(struct maker *m, int way)
{
    (void)way;
    text(m, "\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true,"
            "\"strip_accents\":null,\"lowercase\":true},\n"
            "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\n"
            "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true},\n");
    return SY_OK;
}

static sy_status bert_model(struct maker *m, int way)
{
    (void)way;
    text(m, "\"type\":\"WordPiece\",");
    put_unknown(m);
    sy_buf_printf(m->out, ",\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":%lld,\n",
                  (long long)m->t->wordpiece.chars_max);
    return put_vocab(m);
}

/* ---- together ---------------------------------------------------------------------------------------------- */

static const struct kind kinds[] = {
    {"gpt2", 1, bytes_steps, bytes_model},     {"llama", 1, llama_steps, llama_model},
    {"gemma4", 2, gemma4_steps, gemma4_model}, {"t5", 1, unigram_steps, unigram_model},
    {"bert", 1, bert_steps, bert_model},
};

/* Tokens of one side of a template, each after a comma unless it is the first of all. */
static void put_wrapped(struct maker *m, const int32_t *id, size_t n, int side, bool first)
{
    for (size_t i = 0; i < n; i++) {
        text(m, first && i == 0 ? "{\"SpecialToken\":{\"id\":" : ",{\"SpecialToken\":{\"id\":");
        quote_token(m, id[i]);
        sy_buf_printf(m->out, ",\"type_id\":%d}}", side);
    }
}

/* What goes around a text, and around both of a pair. */
static void put_post(struct maker *m)
{
    const struct sy_tokenizer *t = m->t;
    text(m, "\"post_processor\":");
    if (t->n_head + t->n_tail == 0) {
        text(m, "null,\n");
        return;
    }
    text(m, "{\"type\":\"TemplateProcessing\"");
    for (int pair = 0; pair < 2; pair++) {
        text(m, pair ? "],\"pair\":[" : ",\"single\":[");
        for (int side = 0; side <= pair; side++) {
            put_wrapped(m, t->head, t->n_head, side, side == 0);
            sy_buf_printf(m->out, "%s{\"Sequence\":{\"id\":\"%c\",\"type_id\":%d}}", side || t->n_head ? "," : "",
                          "AB"[side], side);
            put_wrapped(m, t->tail, t->n_tail, side, false);
        }
    }
    text(m, "],\"special_tokens\":{");
    for (size_t i = 0; i < t->n_head + t->n_tail; i++) {
        int32_t id = t->head[i]; /* the tail lies behind it */
        if (i && id == t->head[0]) continue;
        if (i) text(m, ",");
        quote_token(m, id);
        text(m, ":{\"id\":");
        quote_token(m, id);
        sy_buf_printf(m->out, ",\"ids\":[%d],\"tokens\":[", id);
        quote_token(m, id);
        text(m, "]}");
    }
    text(m, "}},\n");
}

static void put_config(struct maker *m, const char *template, size_t n_template)
{
    const struct sy_tokenizer *t = m->t;
    const struct {
        const char *name;
        int64_t id;
    } ids[] = {{"bos_token", t->bos},     {"eos_token", t->eos},    {"unk_token", tokenizer_unknown(t)},
               {"pad_token", t->pad},     {"sep_token", m->g->sep}, {"cls_token", m->g->cls},
               {"mask_token", m->g->mask}};
    sy_buf_printf(m->out, "{\n\"tokenizer_class\":\"PreTrainedTokenizerFast\",\n\"add_bos_token\":%s,\n",
                  t->n_head == 1 && t->head[0] == t->bos ? "true" : "false");
    sy_buf_printf(m->out, "\"add_eos_token\":%s,\n", t->n_tail == 1 && t->tail[0] == t->eos ? "true" : "false");
    for (size_t i = 0; i < SY_COUNT(ids); i++) {
        if (!vocab_has(&t->vocab, ids[i].id)) continue;
        sy_buf_printf(m->out, "\"%s\":", ids[i].name);
        quote_token(m, (int32_t)ids[i].id);
        text(m, ",\n");
    }
    if (template) {
        text(m, "\"chat_template\":");
        quote(m, template, n_template);
        text(m, ",\n");
    }
    text(m, "\"clean_up_tokenization_spaces\":false\n}\n");
}

static sy_status put_json(struct maker *m, const struct kind *k, int way)
{
    text(m, "{\n\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
    put_added(m);
    sy_status st = k->steps(m, way);
    put_post(m);
    text(m, "\"model\":{");
    if (!st) st = k->model(m, way);
    text(m, "}}\n");
    if (!st && m->out->len > JSON_BYTES_MAX) st = refuse(m, "its tokenizer.json would be too large");
    return st || !m->out->failed ? st : no_memory(m);
}

/* Whether what was written reads as the GGUF's tokenizer. */
static sy_status same(const struct maker *m, const struct sy_buf *config, bool *yes)
{
    struct sy_json *j = NULL, *c = NULL;
    struct sy_tokenizer *back = NULL;
    *yes = false;
    sy_status st = sy_json_parse(m->env, m->out->at, m->out->len, false, &j, m->err);
    if (!st) st = sy_json_parse(m->env, config->at, config->len, false, &c, m->err);
    if (!st) st = sy_tokenizer_from_json(m->env, j, c, "the tokenizer.json", &back, m->err);
    sy_json_free(j);
    sy_json_free(c);
    if (!st && m->t->bos == back->bos && m->t->eos == back->eos && m->t->pad == back->pad)
        st = sy_tokenizer_same(m->t, back, yes, m->err);
    sy_tokenizer_free(back);
    return st;
}

static sy_status make(struct maker *m, const struct sy_buf *config)
{
    const struct kind *k = kinds;
    while (strcmp(k->name, m->g->model) != 0) k++; /* one of them: it was read */
    bool yes = false;
    sy_status st = SY_OK;
    for (int way = 0; way < k->ways && !st && !yes; way++) {
        sy_buf_clear(m->out);
        st = put_json(m, k, way);
        if (!st) st = same(m, config, &yes);
    }
    return st || yes
               ? st
               : refuse(m, "no tokenizer.json is known that cuts and decodes texts as this GGUF's tokenizer does");
}

sy_status sy_tokenizer_to_json(const struct sy_env *env, const struct sy_gguf_vocab *g, const char *template,
                               size_t n_template, struct sy_buf *json, struct sy_buf *config, struct sy_err *err)
{
    struct sy_err own = {0};
    struct maker m = {.env = env, .g = g, .out = config, .err = err ? err : &own};
    sy_status st = sy_tokenizer_from_gguf(env, g, "the GGUF's tokenizer", &m.t, m.err);
    if (st) return st;
    sy_arena_init(&m.mem, env, 0);
    sy_buf_clear(config);
    put_config(&m, template, n_template);
    m.out = json;
    st = config->failed ? no_memory(&m) : make(&m, config);
    sy_arena_release(&m.mem);
    sy_tokenizer_free(m.t);
    return st;
}
