/* tokenizer_same.c - whether two tokenizers are one: they must cut a long text of all kinds of characters, their
 * tokens' own texts in no order, and their added tokens among other text the same way, and read it back the same. */
#include <string.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "text/tokenizer_int.h"

enum { PROBE_PIECES = 16384, ADDED_BYTES_MAX = 1 << 18, TOKENS_BYTES_MAX = 1 << 22 };

void sy_tokenizer_probe(struct sy_buf *b)
{
    static const char *const piece[] = {
        "a",      "b",      "Z",      "Q",
        "\u00e9", "\u00c9", "\u00df", "\u01c5",
        "\u02b0", "\u4f60", "\u597d", "\u3072",
        "\u30ab", "\ud55c", "\u0e01", "\u093e",
        "\u0301", "\u0410", "\u0431", "\u03a9",
        "\u05d0", "\u0639", "0",      "7",
        "12",     "345",    "\u0663", "\u00b2",
        "\u2167", "'",      "\"",     "\u2019",
        "-",      "_",      "/",      "(",
        ")",      "!",      "?",      ".",
        ",",      "\u3002", "\u3001", "\uff0c",
        "$",      "+",      "<",      ">",
        "=",      "^",      "~",      "|",
        "`",      "\\",     "@",      "#",
        "%",      "&",      "*",      ":",
        ";",      "[",      "]",      "{",
        "}",      "\u20ac", "\u00b0", "\u2014",
        " ",      " ",      "  ",     "    ",
        "\t",     "\n",     "\n\n",   "\r\n",
        "\u00a0", "\u3000", "'s",     "'S",
        "'re",    "'LL",    "'ve",    "'d",
        "n't",    "don",    "the",    " the",
        "ing",    "\u200d", "\ufe0f", "\xf0\x9f\x98\x80",
    };
    sy_buf_text(b, "Hello world, it's 2024-05-17: \"we'll\" see aaaaaaa ======= 1234567890 times.\n\n  x  ");
    for (uint64_t i = 0; i < PROBE_PIECES; i++) sy_buf_text(b, piece[sy_rng_u64(7, i) % SY_COUNT(piece)]);
}

/* Added tokens among other text, as many as are worth the time. */
static void put_added(const struct vocab *v, struct sy_buf *b)
{
    static const char *const between[] = {"x", " ", " y ", "", "\n"};
    for (int32_t i = 0; i < v->n && b->len < ADDED_BYTES_MAX; i++) {
        size_t n;
        if (!vocab_has(v, i) || !(v->flags[i] & TOKEN_ADDED)) continue;
        const char *s = vocab_text(v, i, &n);
        sy_buf_text(b, between[(unsigned)i % SY_COUNT(between)]);
        sy_buf_add(b, s, n);
        sy_buf_text(b, between[((unsigned)i + 3) % SY_COUNT(between)]);
    }
}

/* What tokens that are no added ones stand for, far ones next to each other: merges inside them and across. */
static void put_tokens(const struct sy_tokenizer *t, struct sy_buf *b)
{
    const uint64_t n = (uint64_t)t->vocab.n, step = 7919; /* a prime: all ids are met unless n is a multiple */
    for (uint64_t i = 0, id = 0; i < n && b->len < TOKENS_BYTES_MAX; i++, id = (id + step) % n) {
        size_t len;
        const char *s = t->vocab.flags[id] & TOKEN_ADDED ? NULL : sy_tokenizer_bytes(t, (int32_t)id, &len);
        if (!s || !sy_utf8_valid(s, len)) continue;
        sy_buf_add(b, s, len);
        if (i % 3 == 0) sy_buf_char(b, ' ');
    }
}

static sy_status same_on(const struct sy_tokenizer *t, const struct sy_tokenizer *g, const char *s, size_t n,
                         bool *same, struct sy_err *err)
{
    struct sy_ids a, b;
    struct sy_buf x, y;
    sy_ids_init(&a, t->env);
    sy_ids_init(&b, t->env);
    sy_buf_init(&x, t->env, 0);
    sy_buf_init(&y, t->env, 0);
    sy_status st = sy_tokenizer_encode(t, s, n, SY_ENCODE_SPECIAL, &a, err);
    if (!st) st = sy_tokenizer_encode(g, s, n, SY_ENCODE_SPECIAL, &b, err);
    if (!st && (a.n != b.n || (a.n && memcmp(a.at, b.at, a.n * sizeof *a.at) != 0))) *same = false;
    if (!st && *same) st = sy_tokenizer_decode(t, a.at, a.n, true, &x, err);
    if (!st && *same) st = sy_tokenizer_decode(g, b.at, b.n, true, &y, err);
    if (!st && (x.len != y.len || (x.len && memcmp(x.at, y.at, x.len) != 0))) *same = false;
    if (!st && (x.failed || y.failed)) st = fail_memory(err, "the tokenizer");
    sy_ids_release(&a);
    sy_ids_release(&b);
    sy_buf_release(&x);
    sy_buf_release(&y);
    return st;
}

sy_status sy_tokenizer_same(const struct sy_tokenizer *t, const struct sy_tokenizer *g, bool *yes, struct sy_err *err)
{
    static const char *const some[] = {"", "a", " a", "a ", "\n", "  two  spaces "};
    struct sy_buf text[3];
    sy_status st = SY_OK;
    for (size_t i = 0; i < SY_COUNT(text); i++) sy_buf_init(&text[i], t->env, 0);
    sy_tokenizer_probe(&text[0]);
    put_added(&t->vocab, &text[1]);
    put_tokens(t, &text[2]);
    *yes = true;
    for (size_t i = 0; i < SY_COUNT(some) && !st && *yes; i++) st = same_on(t, g, some[i], strlen(some[i]), yes, err);
    for (size_t i = 0; i < SY_COUNT(text) && !st && *yes; i++) {
        if (text[i].failed) st = fail_memory(err, "the tokenizer");
        else if (text[i].len) st = same_on(t, g, text[i].at, text[i].len, yes, err);
    }
    for (size_t i = 0; i < SY_COUNT(text); i++) sy_buf_release(&text[i]);
    return st;
}

/* ---- cuts ----------------------------------------------------------------------------------------------- */

bool sy_token_next_cut(const struct vocab *v, const char *s, size_t n, size_t *at)
{
    for (size_t i = *at + 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) == 0x80) continue;
        if (sy_vocab_find_model(v, s, i) < 0 || sy_vocab_find_model(v, s + i, n - i) < 0) continue;
        *at = i;
        return true;
    }
    return false;
}

bool sy_vocab_cuts_cheap(const struct vocab *v)
{
    uint64_t work = 0;
    for (int32_t i = 0; i < v->n; i++)
        if (vocab_has(v, i)) work += (uint64_t)v->token[i].len * v->token[i].len;
    return work <= CUT_WORK_MAX;
}
