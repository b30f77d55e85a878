/* From tokenizer.json: normalizer, pre-tokenizer, post-processor and decoder, flattened into arrays of steps. */
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer_int.h"

struct steps {
    struct sy_tokenizer *t;
    const char *part; /* "normalizer", ... for messages */
    bool fused;       /* decoder: everything is one text from here on */
    struct sy_err *err;
};

static sy_status unknown(struct steps *s, const char *type)
{
    return sy_fail(s->err, SY_ENOSUP, "%s '%.60s' is not supported", s->part, type);
}

/* Visits a step, or all steps of a "Sequence". */
static sy_status each(struct steps *s, const struct sy_json *j, const char *list,
                      sy_status (*read)(struct steps *, const struct sy_json *, const char *type), int depth)
{
    if (!j || sy_json_is_null(j)) return SY_OK;
    const char *type = sy_json_text(sy_json_get(j, "type"));
    if (!type) return sy_fail(s->err, SY_EFORMAT, "%s: expected an object with a 'type'", s->part);
    if (strcmp(type, "Sequence")) return sy_while(s->err, read(s, j, type), "%s '%.60s'", s->part, type);
    const struct sy_json *all = sy_json_get(j, list);
    if (!sy_json_is_array(all))
        return sy_fail(s->err, SY_EFORMAT, "%s 'Sequence': '%s': expected an array", s->part, list);
    if (depth == STEP_DEPTH_MAX)
        return sy_fail(s->err, SY_ENOSUP, "%s: 'Sequence' nested beyond %d", s->part, STEP_DEPTH_MAX);
    sy_status st = SY_OK;
    for (size_t i = 0; i < sy_json_len(all) && st == SY_OK; i++)
        st = each(s, sy_json_at(all, i), list, read, depth + 1);
    return st;
}

static sy_status text_of(struct steps *s, const struct sy_json *j, const char *key, const char **out, size_t *n)
{
    const char *text = sy_json_text_n(sy_json_get(j, key), n);
    if (!text) return sy_fail(s->err, SY_EFORMAT, "'%s': expected a string", key);
    *out = sy_arena_text(&s->t->arena, text, *n);
    return *out ? SY_OK : fail_memory(s->err, key);
}

static sy_status char_of(struct steps *s, const struct sy_json *j, const char *key, uint32_t *c)
{
    size_t n;
    const char *text = sy_json_text_n(sy_json_get(j, key), &n);
    if (!text || n == 0 || sy_utf8_next(text, n, c) != n)
        return sy_fail(s->err, SY_EFORMAT, "'%s': expected a single character", key);
    return SY_OK;
}

/* "pattern": {"String": s} or {"Regex": r}. */
static sy_status pattern_of(struct steps *s, const struct sy_json *j, struct rx *rx)
{
    const struct sy_json *pattern = sy_json_get(j, "pattern");
    size_t n;
    const char *text = sy_json_text_n(sy_json_get(pattern, "Regex"), &n);
    if (text) return sy_rx_compile(&s->t->rx, text, n, rx, s->err);
    sy_status st = text_of(s, pattern, "String", &text, &n);
    if (st == SY_OK && n == 0) st = sy_fail(s->err, SY_ENOSUP, "'pattern': an empty string");
    if (st == SY_OK) sy_rx_literal(rx, text, n);
    return st;
}

/* Metaspace's options, spelled in two generations of files. */
static sy_status scheme_of(struct steps *s, const struct sy_json *j, enum prepend_scheme *out)
{
    const char *scheme = sy_json_text(sy_json_get(j, "prepend_scheme"));
    *out = PREPEND_ALWAYS;
    if (scheme && !strcmp(scheme, "first")) *out = PREPEND_FIRST;
    else if (scheme && !strcmp(scheme, "never")) *out = PREPEND_NEVER;
    else if (scheme && strcmp(scheme, "always"))
        return sy_fail(s->err, SY_ENOSUP, "'prepend_scheme' '%.60s' is not supported", scheme);
    if (!sy_json_bool(sy_json_get(j, "add_prefix_space"), true)) *out = PREPEND_NEVER;
    return SY_OK;
}

/* ---- normalizers ------------------------------------------------------------------------------------- */

static int base64_value(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

static sy_status precompiled(struct steps *s, const struct sy_json *j)
{
    size_t n;
    const char *text = sy_json_text_n(sy_json_get(j, "precompiled_charsmap"), &n);
    if (!text) return sy_fail(s->err, SY_EFORMAT, "'precompiled_charsmap': expected a string");
    struct norm *m;
    sy_status st = sy_tokenizer_add_norm(s->t, NORM_PRECOMPILED, &m, s->err);
    struct sy_buf bytes;
    sy_buf_init(&bytes, s->t->env, 0);
    while (n && text[n - 1] == '=') n--;
    uint32_t bits = 0;
    for (size_t i = 0; i < n && st == SY_OK; i++) {
        int v = base64_value(text[i]);
        if (v < 0) st = sy_fail(s->err, SY_EFORMAT, "'precompiled_charsmap': byte %zu is not base64", i);
        bits = bits << 6 | (uint32_t)(v & 63);
        if (i % 4) sy_buf_char(&bytes, (char)(bits >> (6 - 2 * (i % 4))));
    }
    if (st == SY_OK && bytes.failed) st = fail_memory(s->err, "precompiled_charsmap");
    if (st == SY_OK) st = sy_norm_use_charsmap(s->t, m, (const unsigned char *)bytes.at, bytes.len, s->err);
    sy_buf_release(&bytes);
    return st;
}

static sy_status bert_normalizer(struct steps *s, const struct sy_json *j)
{
    struct sy_jread r = {j, "options", s->err, SY_OK};
    bool clean = sy_jread_bool_or(&r, "clean_text", true), cjk = sy_jread_bool_or(&r, "handle_chinese_chars", true);
    bool lower = sy_jread_bool_or(&r, "lowercase", true), accents = sy_jread_bool_or(&r, "strip_accents", lower);
    const struct {
        bool want;
        enum norm_kind kind;
    } kinds[] = {{clean, NORM_CLEAN},
                 {cjk, NORM_CJK},
                 {accents, NORM_NFD},
                 {accents, NORM_STRIP_NONSPACING},
                 {lower, NORM_LOWERCASE}};
    struct norm *m;
    for (size_t i = 0; i < SY_COUNT(kinds) && r.st == SY_OK; i++)
        if (kinds[i].want) r.st = sy_tokenizer_add_norm(s->t, kinds[i].kind, &m, s->err);
    return r.st;
}

static sy_status normalizer(struct steps *s, const struct sy_json *j, const char *type)
{
    static const struct {
        const char *name;
        enum norm_kind kind;
    } kinds[] = {
        {"NFC", NORM_NFC},
        {"NFD", NORM_NFD},
        {"NFKC", NORM_NFKC},
        {"NFKD", NORM_NFKD},
        {"Nmt", NORM_NMT},
        {"Lowercase", NORM_LOWERCASE},
        {"Strip", NORM_STRIP},
        {"StripAccents", NORM_STRIP_ACCENTS},
        {"Prepend", NORM_PREPEND},
        {"Replace", NORM_REPLACE},
        {"ByteLevel", NORM_BYTE_LEVEL},
    };
    if (!strcmp(type, "Precompiled")) return precompiled(s, j);
    if (!strcmp(type, "BertNormalizer")) return bert_normalizer(s, j);
    size_t k = 0;
    while (k < SY_COUNT(kinds) && strcmp(kinds[k].name, type)) k++;
    if (k == SY_COUNT(kinds)) return unknown(s, type);
    struct norm *m;
    sy_status st = sy_tokenizer_add_norm(s->t, kinds[k].kind, &m, s->err);
    if (st != SY_OK) return st;
    struct sy_jread r = {j, "options", s->err, SY_OK};
    if (m->kind == NORM_STRIP) {
        m->left = sy_jread_bool_or(&r, "strip_left", true);
        m->right = sy_jread_bool_or(&r, "strip_right", true);
        st = r.st;
    } else if (m->kind == NORM_PREPEND) {
        st = text_of(s, j, "prepend", &m->text, &m->n_text);
    } else if (m->kind == NORM_REPLACE) {
        st = pattern_of(s, j, &m->rx);
        if (st == SY_OK) st = text_of(s, j, "content", &m->text, &m->n_text);
    }
    return st;
}

/* ---- pre-tokenizers ---------------------------------------------------------------------------------- */

static sy_status behavior_of(struct steps *s, const struct sy_json *j, enum split_behavior *out)
{
    static const char *const names[] = {[SPLIT_REMOVED] = "Removed",
                                        [SPLIT_ISOLATED] = "Isolated",
                                        [SPLIT_PREVIOUS] = "MergedWithPrevious",
                                        [SPLIT_NEXT] = "MergedWithNext",
                                        [SPLIT_CONTIGUOUS] = "Contiguous"};
    const char *name = sy_json_text(sy_json_get(j, "behavior"));
    for (size_t i = 0; name && i < SY_COUNT(names); i++) {
        if (strcmp(names[i], name)) continue;
        *out = (enum split_behavior)i;
        return SY_OK;
    }
    return sy_fail(s->err, SY_ENOSUP, "'behavior' '%.60s' is not supported", name ? name : "(none)");
}

static sy_status add_class(struct steps *s, enum char_class cls, enum split_behavior how, uint32_t c)
{
    struct pre *p;
    sy_status st = sy_tokenizer_add_pre(s->t, PRE_CLASS, &p, s->err);
    if (st != SY_OK) return st;
    p->cls = cls;
    p->behavior = how;
    p->ch = c;
    return SY_OK;
}

static sy_status add_metaspace(struct steps *s, const struct sy_json *j)
{
    struct pre *p;
    sy_status st = sy_tokenizer_add_pre(s->t, PRE_METASPACE, &p, s->err);
    if (st != SY_OK) return st;
    uint32_t c;
    st = char_of(s, j, "replacement", &c);
    if (st == SY_OK) st = scheme_of(s, j, &p->scheme);
    if (st != SY_OK) return st;
    p->n_mark = sy_char_put(p->mark, c);
    p->split = sy_json_bool(sy_json_get(j, "split"), true);
    p->behavior = SPLIT_NEXT;
    sy_rx_literal(&p->rx, p->mark, p->n_mark);
    return SY_OK;
}

static sy_status add_byte_level(struct steps *s, const struct sy_json *j)
{
    struct pre *p;
    sy_status st = sy_tokenizer_add_pre(s->t, PRE_BYTE_LEVEL, &p, s->err);
    if (st != SY_OK) return st;
    struct sy_jread r = {j, "options", s->err, SY_OK};
    p->prefix_space = sy_jread_bool_or(&r, "add_prefix_space", true);
    bool regex = sy_jread_bool_or(&r, "use_regex", true);
    return r.st == SY_OK && regex ? sy_pre_use_gpt2(s->t, p, s->err) : r.st;
}

static sy_status add_split(struct steps *s, const struct sy_json *j)
{
    struct pre *p;
    sy_status st = sy_tokenizer_add_pre(s->t, PRE_SPLIT, &p, s->err);
    if (st != SY_OK) return st;
    struct sy_jread r = {j, "options", s->err, SY_OK};
    p->invert = sy_jread_bool_or(&r, "invert", false);
    st = r.st == SY_OK ? behavior_of(s, j, &p->behavior) : r.st;
    return st == SY_OK ? pattern_of(s, j, &p->rx) : st;
}

static sy_status add_whitespace(struct steps *s)
{
    static const char pattern[] = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\u200c\\u200d]+|"
                                  "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\u200c\\u200d\\s]+";
    struct pre *p;
    sy_status st = sy_tokenizer_add_pre(s->t, PRE_SPLIT, &p, s->err);
    if (st != SY_OK) return st;
    p->invert = true;
    p->behavior = SPLIT_REMOVED;
    return sy_rx_compile(&s->t->rx, pattern, sizeof pattern - 1, &p->rx, s->err);
}

static sy_status add_fixed(struct steps *s, const struct sy_json *j)
{
    struct pre *p;
    sy_status st = sy_tokenizer_add_pre(s->t, PRE_FIXED, &p, s->err);
    if (st != SY_OK) return st;
    struct sy_jread r = {j, "options", s->err, SY_OK};
    p->length = (size_t)sy_jread_int_or(&r, "length", 5, 1, TEXT_BYTES_MAX);
    return r.st;
}

static sy_status pre_tokenizer(struct steps *s, const struct sy_json *j, const char *type)
{
    uint32_t c = 0;
    sy_status st;
    enum split_behavior how = SPLIT_ISOLATED;
    if (!strcmp(type, "ByteLevel")) return add_byte_level(s, j);
    if (!strcmp(type, "Split")) return add_split(s, j);
    if (!strcmp(type, "Metaspace")) return add_metaspace(s, j);
    if (!strcmp(type, "Whitespace")) return add_whitespace(s);
    if (!strcmp(type, "WhitespaceSplit")) return add_class(s, CLASS_SPACE, SPLIT_REMOVED, 0);
    if (!strcmp(type, "FixedLength")) return add_fixed(s, j);
    if (!strcmp(type, "Digits")) {
        bool single = sy_json_bool(sy_json_get(j, "individual_digits"), false);
        return add_class(s, CLASS_NUMBER, single ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, 0);
    }
    if (!strcmp(type, "Punctuation")) {
        st = sy_json_get(j, "behavior") ? behavior_of(s, j, &how) : SY_OK;
        return st == SY_OK ? add_class(s, CLASS_PUNCTUATION, how, 0) : st;
    }
    if (!strcmp(type, "CharDelimiterSplit")) {
        st = char_of(s, j, "delimiter", &c);
        return st == SY_OK ? add_class(s, CLASS_CHAR, SPLIT_REMOVED, c) : st;
    }
    if (!strcmp(type, "BertPreTokenizer")) {
        st = add_class(s, CLASS_SPACE, SPLIT_REMOVED, 0);
        return st == SY_OK ? add_class(s, CLASS_PUNCTUATION, SPLIT_ISOLATED, 0) : st;
    }
    return unknown(s, type);
}

/* ---- post-processors --------------------------------------------------------------------------------- */

static sy_status id_of(struct steps *s, const struct sy_json *j, int32_t *id)
{
    int64_t v = sy_json_int(j, -1);
    if (!sy_json_is_int(j) || !vocab_has(&s->t->vocab, v))
        return sy_fail(s->err, SY_EFORMAT, "%lld is not a token of the vocabulary", (long long)v);
    *id = (int32_t)v;
    return SY_OK;
}

static sy_status template_ids(struct steps *s, const struct sy_json *j, const char *name, struct sy_ids *to)
{
    const struct sy_json *ids = sy_json_get(sy_json_get(sy_json_get(j, "special_tokens"), name), "ids");
    if (!sy_json_is_array(ids)) return sy_fail(s->err, SY_EFORMAT, "'special_tokens': '%.60s' is missing", name);
    sy_status st = SY_OK;
    int32_t id = 0;
    for (size_t i = 0; i < sy_json_len(ids) && st == SY_OK; i++) {
        st = id_of(s, sy_json_at(ids, i), &id);
        if (st == SY_OK) st = sy_ids_push(to, id, s->err);
    }
    return st;
}

static sy_status template_processing(struct steps *s, const struct sy_json *j)
{
    const struct sy_json *single = sy_json_get(j, "single");
    struct sy_ids side[2];
    sy_ids_init(&side[0], s->t->env);
    sy_ids_init(&side[1], s->t->env);
    int at = 0;
    sy_status st = sy_json_is_array(single) ? SY_OK : sy_fail(s->err, SY_EFORMAT, "'single': expected an array");
    for (size_t i = 0; i < sy_json_len(single) && st == SY_OK; i++) {
        const struct sy_json *item = sy_json_at(single, i), *sequence = sy_json_get(item, "Sequence");
        const char *name = sy_json_text(sy_json_get(sequence ? sequence : sy_json_get(item, "SpecialToken"), "id"));
        if (!name) st = sy_fail(s->err, SY_EFORMAT, "'single': item %zu: expected a SpecialToken or a Sequence", i);
        else if (!sequence) st = template_ids(s, j, name, &side[at]);
        else if (strcmp(name, "A") || at++) st = sy_fail(s->err, SY_ENOSUP, "'single': expected Sequence A once");
    }
    if (st == SY_OK && at != 1) st = sy_fail(s->err, SY_ENOSUP, "'single': expected Sequence A once");
    if (st == SY_OK) st = sy_tokenizer_wrap(s->t, side[0].at, side[0].n, side[1].at, side[1].n, s->err);
    sy_ids_release(&side[0]);
    sy_ids_release(&side[1]);
    return st;
}

static sy_status post_processor(struct steps *s, const struct sy_json *j, const char *type)
{
    if (!strcmp(type, "ByteLevel")) return SY_OK; /* trims offsets only */
    if (!strcmp(type, "TemplateProcessing")) return template_processing(s, j);
    if (strcmp(type, "BertProcessing") && strcmp(type, "RobertaProcessing")) return unknown(s, type);
    int32_t cls = 0, sep = 0; /* each is [text, id] */
    sy_status st = id_of(s, sy_json_at(sy_json_get(j, "cls"), 1), &cls);
    if (st == SY_OK) st = id_of(s, sy_json_at(sy_json_get(j, "sep"), 1), &sep);
    return st == SY_OK ? sy_tokenizer_wrap(s->t, &cls, 1, &sep, 1, s->err) : st;
}

/* ---- decoders ---------------------------------------------------------------------------------------- */

static sy_status strip_decoder(struct steps *s, const struct sy_json *j)
{
    struct decoder *d = &s->t->dec;
    struct sy_jread r = {j, "options", s->err, SY_OK};
    struct dec_op op = {.kind = DEC_STRIP,
                        .start = (uint32_t)sy_jread_int_or(&r, "start", 0, 0, 1 << 20),
                        .stop = (uint32_t)sy_jread_int_or(&r, "stop", 0, 0, 1 << 20)};
    sy_status st = r.st == SY_OK ? char_of(s, j, "content", &op.ch) : r.st;
    if (st != SY_OK) return st;
    if (!s->fused) {
        struct dec_op *to;
        st = sy_tokenizer_add_op(s->t, DEC_STRIP, &to, s->err);
        if (st == SY_OK) *to = op;
        return st;
    }
    if (d->strip_start || d->strip_stop) return sy_fail(s->err, SY_ENOSUP, "a second Strip after Fuse");
    d->strip_ch = op.ch;
    d->strip_start = op.start;
    d->strip_stop = op.stop;
    return SY_OK;
}

static sy_status token_decoder(struct steps *s, const struct sy_json *j, enum dec_kind kind)
{
    struct dec_op *o;
    sy_status st = sy_tokenizer_add_op(s->t, kind, &o, s->err);
    if (st != SY_OK) return st;
    if (kind == DEC_REPLACE) {
        st = text_of(s, sy_json_get(j, "pattern"), "String", &o->from, &o->n_from);
        if (st == SY_OK) st = text_of(s, j, "content", &o->text, &o->n_text);
    } else if (kind == DEC_METASPACE) {
        enum prepend_scheme scheme = PREPEND_ALWAYS;
        st = text_of(s, j, "replacement", &o->from, &o->n_from);
        if (st == SY_OK) st = scheme_of(s, j, &scheme);
        o->drop_first = scheme != PREPEND_NEVER;
    } else if (kind == DEC_WORDPIECE) {
        st = text_of(s, j, "prefix", &o->from, &o->n_from);
        o->cleanup = sy_json_bool(sy_json_get(j, "cleanup"), true);
    } else if (kind == DEC_SUFFIX) {
        st = text_of(s, j, "suffix", &o->from, &o->n_from);
        if (st == SY_OK && s->t->dec.n_op > 1) st = sy_fail(s->err, SY_ENOSUP, "not the only decoder");
    }
    if (st == SY_OK && kind != DEC_JOIN && o->n_from == 0) st = sy_fail(s->err, SY_ENOSUP, "an empty pattern");
    return st;
}

static sy_status decoder(struct steps *s, const struct sy_json *j, const char *type)
{
    struct decoder *d = &s->t->dec;
    static const struct {
        const char *name;
        enum dec_kind kind;
    } kinds[] = {{"Replace", DEC_REPLACE},
                 {"Metaspace", DEC_METASPACE},
                 {"WordPiece", DEC_WORDPIECE},
                 {"BPEDecoder", DEC_SUFFIX}};
    if (!strcmp(type, "Strip")) return strip_decoder(s, j);
    if (!strcmp(type, "Fuse")) {
        s->fused = true;
        return SY_OK;
    }
    if (d->n_op && d->op[0].kind == DEC_SUFFIX) return sy_fail(s->err, SY_ENOSUP, "not supported after BPEDecoder");
    for (size_t i = 0; i < SY_COUNT(kinds); i++)
        if (!strcmp(kinds[i].name, type))
            return s->fused ? sy_fail(s->err, SY_ENOSUP, "not supported after Fuse or ByteLevel")
                            : token_decoder(s, j, kinds[i].kind);
    if (!strcmp(type, "ByteLevel")) {
        if (s->fused || d->n_op || d->byte_fallback) return sy_fail(s->err, SY_ENOSUP, "not the first decoder");
        d->bytes = s->fused = true;
        return SY_OK;
    }
    if (strcmp(type, "ByteFallback")) return unknown(s, type);
    if (s->fused || d->byte_fallback) return sy_fail(s->err, SY_ENOSUP, "not supported after Fuse or ByteFallback");
    d->byte_fallback = true;
    d->n_before = d->n_op;
    return SY_OK;
}

sy_status sy_tokenizer_read_steps(struct sy_tokenizer *t, const struct sy_json *root, struct sy_err *err)
{
    struct steps s = {.t = t, .err = err};
    s.part = "normalizer";
    sy_status st = each(&s, sy_json_get(root, s.part), "normalizers", normalizer, 0);
    s.part = "pre_tokenizer";
    if (st == SY_OK) st = each(&s, sy_json_get(root, s.part), "pretokenizers", pre_tokenizer, 0);
    s.part = "post_processor";
    if (st == SY_OK) st = each(&s, sy_json_get(root, s.part), "processors", post_processor, 0);
    s.part = "decoder";
    const struct sy_json *dec = sy_json_get(root, s.part);
    if (st == SY_OK) st = each(&s, dec, "decoders", decoder, 0);
    if (st == SY_OK && (!dec || sy_json_is_null(dec))) st = token_decoder(&s, NULL, DEC_JOIN);
    if (!t->dec.byte_fallback) t->dec.n_before = t->dec.n_op;
    return st;
}
