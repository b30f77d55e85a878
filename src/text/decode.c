/* From ids to text. What a token decodes to depends on the token alone, but for the first one, runs of byte tokens
 * and the ends of the text: so it is worked out once for each, and decoding is copying. */
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer_int.h"

static const char bad_char[] = "\xef\xbf\xbd"; /* U+FFFD */

/* ---- operations on one token's text ------------------------------------------------------------------ */

static void replace_text(struct sy_buf *to, const char *s, size_t n, const char *from, size_t n_from,
                         const char *with, size_t n_with)
{
    for (size_t i = 0; i < n;) {
        const char *at = memmem(s + i, n - i, from, n_from);
        size_t hi = at ? (size_t)(at - s) : n;
        sy_buf_add(to, s + i, hi - i);
        if (at) sy_buf_add(to, with, n_with);
        i = at ? hi + n_from : n;
    }
}

static void strip(const struct dec_op *op, const char **s, size_t *n)
{
    char u[4];
    size_t len = sy_char_put(u, op->ch);
    for (uint32_t i = 0; i < op->start && *n >= len && !memcmp(*s, u, len); i++) *s += len, *n -= len;
    for (uint32_t i = 0; i < op->stop && *n >= len && !memcmp(*s + *n - len, u, len); i++) *n -= len;
}

/* English that the WordPiece decoder tidies up. */
static void cleanup(struct sy_buf *text, struct sy_buf *side)
{
    static const char *const pairs[][2] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},    {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    for (size_t i = 0; i < SY_COUNT(pairs); i++) {
        sy_buf_clear(side);
        replace_text(side, text->at, text->len, pairs[i][0], strlen(pairs[i][0]), pairs[i][1], strlen(pairs[i][1]));
        struct sy_buf t = *text;
        *text = *side;
        *side = t;
    }
}

enum place { PLACE_INSIDE, PLACE_FIRST, PLACE_LAST };

/* Runs ops [lo, hi) over *text, with *side as the other buffer. */
static void run_ops(const struct decoder *d, size_t lo, size_t hi, enum place at, struct sy_buf *text,
                    struct sy_buf *side)
{
    bool first = at == PLACE_FIRST;
    for (size_t i = lo; i < hi; i++) {
        const struct dec_op *op = &d->op[i];
        const char *s = text->len ? text->at : "";
        size_t n = text->len;
        bool tidy = false;
        sy_buf_clear(side);
        switch (op->kind) {
        case DEC_REPLACE: replace_text(side, s, n, op->from, op->n_from, op->text, op->n_text); break;
        case DEC_METASPACE:
            replace_text(side, s, n, op->from, op->n_from, " ", first && op->drop_first ? 0 : 1);
            tidy = op->cleanup;
            break;
        case DEC_SUFFIX: replace_text(side, s, n, op->from, op->n_from, " ", at != PLACE_LAST); break;
        case DEC_STRIP:
            strip(op, &s, &n);
            sy_buf_add(side, s, n);
            break;
        case DEC_JOIN:
            if (!first) sy_buf_char(side, ' ');
            sy_buf_add(side, s, n);
            break;
        case DEC_WORDPIECE: {
            bool joined = n >= op->n_from && !memcmp(s, op->from, op->n_from);
            if (!first && !joined) sy_buf_char(side, ' ');
            size_t skip = !first && joined ? op->n_from : 0;
            sy_buf_add(side, s + skip, n - skip);
            tidy = op->cleanup;
            break;
        }
        }
        struct sy_buf t = *text;
        *text = *side;
        *side = t;
        if (tidy) cleanup(text, side);
    }
}

/* ---- once per token ---------------------------------------------------------------------------------- */

/* The bytes behind stand-in characters; any other character makes the whole token its own bytes. */
static void byte_level(struct sy_buf *text, const char *s, size_t n)
{
    char bytes[TOKEN_BYTES_MAX];
    size_t m = 0;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c = (unsigned char)s[i];
        len = c < 0x80 ? 1 : sy_utf8_next(s + i, n - i, &c);
        int b = sy_char_to_byte(c);
        if (b < 0) {
            sy_buf_add(text, s, n);
            return;
        }
        bytes[m++] = (char)b;
    }
    sy_buf_add(text, bytes, m);
}

static int hex_value(const char *s)
{
    int v = 0;
    for (int i = 0; i < 2; i++) {
        char c = s[i] >= 'a' && s[i] <= 'f' ? (char)(s[i] - 32) : s[i];
        if (c >= '0' && c <= '9') v = v * 16 + c - '0';
        else if (c >= 'A' && c <= 'F') v = v * 16 + c - 'A' + 10;
        else return -1;
    }
    return v;
}

static int byte_token(const char *s, size_t n)
{
    return n == 6 && !memcmp(s, "<0x", 3) && s[5] == '>' ? hex_value(s + 3) : -1;
}

static void write_piece(struct sy_tokenizer *t, int32_t id, struct sy_buf *text, struct sy_buf *side)
{
    struct decoder *d = &t->dec;
    size_t n;
    const char *s = vocab_text(&t->vocab, id, &n);
    if (d->bytes && !(d->plain_added && (t->vocab.flags[id] & TOKEN_ADDED))) {
        byte_level(&d->text, s, n);
        return;
    }
    if (d->n_op == 0 && !d->byte_fallback) {
        sy_buf_add(&d->text, s, n);
        return;
    }
    sy_buf_clear(text);
    sy_buf_add(text, s, n);
    run_ops(d, 0, d->n_before, PLACE_INSIDE, text, side);
    int byte = d->byte_fallback && text->len ? byte_token(text->at, text->len) : -1;
    if (byte >= 0) {
        t->vocab.flags[id] |= TOKEN_BYTE;
        sy_buf_char(&d->text, (char)byte);
        return;
    }
    run_ops(d, d->n_before, d->n_op, PLACE_INSIDE, text, side);
    d->text.failed |= text->failed | side->failed;
    sy_buf_add(&d->text, text->at, text->len);
}

sy_status sy_decoder_finish(struct sy_tokenizer *t, struct sy_err *err)
{
    struct decoder *d = &t->dec;
    struct sy_buf text, side;
    for (size_t i = 0; i < d->n_op; i++)
        if (d->op[i].kind == DEC_WORDPIECE || d->op[i].kind == DEC_JOIN || d->op[i].drop_first)
            d->first_differs = true;
    d->last_differs = d->n_op && d->op[0].kind == DEC_SUFFIX;
    sy_buf_init(&text, t->env, 0);
    sy_buf_init(&side, t->env, 0);
    sy_buf_init(&d->text, t->env, UINT32_MAX);
    d->piece = sy_new_array(t->env, (size_t)t->vocab.n, sizeof *d->piece);
    for (int32_t id = 0; d->piece && id < t->vocab.n; id++) {
        size_t lo = d->text.len;
        if (vocab_has(&t->vocab, id)) write_piece(t, id, &text, &side);
        d->piece[id] = (struct token_text){(uint32_t)lo, (uint32_t)(d->text.len - lo)};
    }
    sy_buf_release(&text);
    sy_buf_release(&side);
    return d->piece && !d->text.failed ? SY_OK : fail_memory(err, "the decoded tokens");
}

/* ---- a stream of text -------------------------------------------------------------------------------- */

/* Everything leaves here: Strip after Fuse works on the text as a whole. */
static void emit(struct sy_detok *k, const char *s, size_t n, struct sy_buf *out)
{
    const struct decoder *d = &k->tok->dec;
    if (d->strip_start == 0 && d->strip_stop == 0) {
        sy_buf_add(out, s, n);
        return;
    }
    char u[4];
    size_t len = sy_char_put(u, d->strip_ch);
    while (!k->lead_done && n && k->n_lead < d->strip_start) {
        if (n >= len && !memcmp(s, u, len)) s += len, n -= len, k->n_lead++;
        else k->lead_done = true;
    }
    if (n == 0) return;
    k->lead_done = true;
    size_t tail = 0;
    while (tail < d->strip_stop && n >= (tail + 1) * len && !memcmp(s + n - (tail + 1) * len, u, len)) tail++;
    size_t body = n - tail * len, due = k->n_tail; /* what was held back comes out before anything else */
    if (body == 0) due = tail + k->n_tail > d->strip_stop ? tail + k->n_tail - d->strip_stop : 0;
    for (size_t i = 0; i < due; i++) sy_buf_add(out, u, len);
    k->n_tail = (unsigned)(body == 0 ? tail + k->n_tail - due : tail);
    sy_buf_add(out, s, body);
}

/* Text of a token that the byte-fallback step made, for the steps after it. */
static void emit_made(struct sy_detok *k, const char *s, size_t n, struct sy_buf *out)
{
    const struct decoder *d = &k->tok->dec;
    if (d->n_op == d->n_before) {
        emit(k, s, n, out);
        k->started = true;
        return;
    }
    struct sy_buf text, side;
    sy_buf_init(&text, k->tok->env, 0);
    sy_buf_init(&side, k->tok->env, 0);
    sy_buf_add(&text, s, n);
    run_ops(d, d->n_before, d->n_op, k->started ? PLACE_INSIDE : PLACE_FIRST, &text, &side);
    out->failed |= text.failed | side.failed;
    emit(k, text.at, text.len, out);
    sy_buf_release(&text);
    sy_buf_release(&side);
    k->started = true;
}

static void emit_bad(struct sy_detok *k, size_t n, struct sy_buf *out)
{
    for (size_t i = 0; i < n; i++) emit_made(k, bad_char, 3, out);
}

/* A run of byte tokens has ended. */
static void end_bytes(struct sy_detok *k, struct sy_buf *out)
{
    if (k->n_held) {
        const char *s = (const char *)k->held;
        if (sy_utf8_valid(s, k->n_held)) emit_made(k, s, k->n_held, out);
        else emit_bad(k, k->n_held, out);
    }
    k->n_held = 0;
    k->bad_bytes = false;
}

static void add_byte(struct sy_detok *k, unsigned char b, struct sy_buf *out)
{
    if (k->bad_bytes) {
        emit_bad(k, 1, out);
        return;
    }
    k->held[k->n_held++] = b;
    const char *s = (const char *)k->held;
    size_t whole = sy_utf8_whole(s, k->n_held);
    size_t from = k->n_held < 4 ? 0 : k->n_held - 4; /* what stands before was found valid: skip to a character */
    while (from < whole && (k->held[from] & 0xc0) == 0x80 && from > 0) from++;
    if (from < whole && !sy_utf8_valid(s + from, whole - from)) {
        emit_bad(k, k->n_held, out);
        k->n_held = 0;
        k->bad_bytes = true;
    } else if (k->n_held == sizeof k->held) {
        emit_made(k, s, whole, out);
        memmove(k->held, k->held + whole, k->n_held - whole);
        k->n_held -= (unsigned)whole;
    }
}

static void emit_lossy(struct sy_detok *k, const char *s, size_t n, struct sy_buf *out)
{
    if (sy_utf8_valid(s, n)) {
        emit(k, s, n, out);
        return;
    }
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c;
        len = sy_utf8_next(s + i, n - i, &c);
        char u[4];
        emit(k, u, sy_char_put(u, c), out);
    }
}

/* Byte-level tokens: one stream of bytes, of which at most the start of a character is held. */
static void add_raw(struct sy_detok *k, const char *s, size_t n, struct sy_buf *out)
{
    char some[sizeof k->held];
    while (n) {
        size_t have = k->n_held, take = sizeof some - have;
        if (take > n) take = n;
        memcpy(some, k->held, have);
        memcpy(some + have, s, take);
        size_t whole = sy_utf8_whole(some, have + take);
        emit_lossy(k, some, whole, out);
        k->n_held = (unsigned)(have + take - whole);
        memcpy(k->held, some + whole, k->n_held);
        s += take;
        n -= take;
    }
}

/* A token at the start or at the end of the text. */
static void add_at(struct sy_detok *k, int32_t id, enum place at, struct sy_buf *out)
{
    const struct decoder *d = &k->tok->dec;
    struct sy_buf text, side;
    size_t n;
    const char *s = vocab_text(&k->tok->vocab, id, &n);
    sy_buf_init(&text, k->tok->env, 0);
    sy_buf_init(&side, k->tok->env, 0);
    sy_buf_add(&text, s, n);
    run_ops(d, 0, d->n_op, at, &text, &side);
    out->failed |= text.failed | side.failed;
    emit(k, text.at, text.len, out);
    sy_buf_release(&text);
    sy_buf_release(&side);
}

void sy_detok_init(struct sy_detok *k, const struct sy_tokenizer *t, bool skip_special)
{
    *k = (struct sy_detok){.tok = t, .skip_special = skip_special, .pending = -1};
}

void sy_detok_feed(struct sy_detok *k, int32_t id, struct sy_buf *out)
{
    const struct sy_tokenizer *t = k->tok;
    const struct decoder *d = &t->dec;
    if (id >= 0 && id < t->vocab.n) {
        if (!vocab_has(&t->vocab, id) || (k->skip_special && (t->vocab.flags[id] & TOKEN_SPECIAL))) return;
    }
    bool known = id >= 0 && id < t->vocab.n;
    const char *s = known ? (d->piece[id].len ? d->text.at + d->piece[id].off : "") : bad_char;
    size_t n = known ? d->piece[id].len : 3;
    if (d->bytes) {
        add_raw(k, s, n, out);
        return;
    }
    if (known && (t->vocab.flags[id] & TOKEN_BYTE)) {
        add_byte(k, (unsigned char)s[0], out);
        return;
    }
    end_bytes(k, out);
    if (k->pending >= 0) emit(k, d->text.at + d->piece[k->pending].off, d->piece[k->pending].len, out);
    k->pending = known && d->last_differs ? id : -1;
    if (k->pending >= 0) return;
    if (known && !k->started && d->first_differs) add_at(k, id, PLACE_FIRST, out);
    else emit(k, s, n, out);
    k->started = true;
}

void sy_detok_finish(struct sy_detok *k, struct sy_buf *out)
{
    if (k->tok->dec.bytes) {
        if (k->n_held) emit_lossy(k, (const char *)k->held, k->n_held, out);
        k->n_held = 0;
    } else {
        end_bytes(k, out);
    }
    if (k->pending >= 0) add_at(k, k->pending, PLACE_LAST, out);
    k->pending = -1;
}

/* The run of byte tokens at ids[i]: skipped special tokens do not end it. Returns the index after it. */
static size_t whole_run(struct sy_detok *k, const int32_t *ids, size_t i, size_t n, struct sy_buf *run)
{
    const struct vocab *v = &k->tok->vocab;
    for (; i < n; i++) {
        int32_t id = ids[i];
        if (!vocab_has(v, id) || (k->skip_special && (v->flags[id] & TOKEN_SPECIAL))) continue;
        if (!(v->flags[id] & TOKEN_BYTE)) break;
        sy_buf_char(run, k->tok->dec.text.at[k->tok->dec.piece[id].off]);
    }
    return i;
}

sy_status sy_tokenizer_decode(const struct sy_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                              struct sy_buf *out, struct sy_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= t->vocab.n)
            return sy_fail(err, SY_EARG, "token %d at position %zu: expected 0 to %d", ids[i], i, t->vocab.n - 1);
    struct sy_detok k;
    struct sy_buf run;
    sy_detok_init(&k, t, skip_special);
    sy_buf_init(&run, t->env, 0);
    for (size_t i = 0; i < n;) {
        if (!(t->vocab.flags[ids[i]] & TOKEN_BYTE) || (skip_special && (t->vocab.flags[ids[i]] & TOKEN_SPECIAL))) {
            sy_detok_feed(&k, ids[i++], out);
            continue;
        }
        sy_buf_clear(&run);
        i = whole_run(&k, ids, i, n, &run);
        if (sy_utf8_valid(run.at, run.len)) emit_made(&k, run.at, run.len, out);
        else emit_bad(&k, run.len, out);
    }
    sy_detok_finish(&k, out);
    bool failed = run.failed || out->failed;
    sy_buf_release(&run);
    return failed ? fail_memory(err, "decoded text") : SY_OK;
}

const char *sy_tokenizer_bytes(const struct sy_tokenizer *t, int32_t id, size_t *n)
{
    *n = 0;
    if (id < 0 || id >= t->vocab.n || !vocab_has(&t->vocab, id)) return NULL;
    *n = t->dec.piece[id].len;
    return *n ? t->dec.text.at + t->dec.piece[id].off : "";
}
