/* tokenizer_int.h - what the parts of the tokenizer share; nobody else includes it.
 *
 * Text flows through: added tokens -> normalizer -> added tokens (normalized ones) -> pre-tokenizer -> model ->
 * post-processor. Every part is filled by a loader (tokenizer_json.c, tokenizer_gguf.c), checked there, and immutable
 * afterwards. The meaning of each step is that of Hugging Face's tokenizers 0.2x, whose files these are. */
#pragma once
#include "base/arena.h"
#include "text/rx.h"
#include "text/tokenizer.h"

enum {
    TOKEN_ID_MAX = 1 << 24,    /* ids above are refused: they would only buy empty table rows   */
    TOKEN_BYTES_MAX = 1 << 13, /* of one token's text                                           */
    TEXT_BYTES_MAX = 1 << 30,  /* of one text to encode: offsets are 32 bits wide               */
    STEP_DEPTH_MAX = 16,       /* nesting of "Sequence" steps                                   */
    STEP_COUNT_MAX = 64,       /* steps of one kind after flattening                            */
    PROBE_MAX = 1 << 12,       /* hash probes; reached by a file made to collide only           */
    CUT_WORK_MAX = 1 << 28,    /* squared lengths of all tokens, where they are cut everywhere  */
};

/* ---- tables (vocab.c) -------------------------------------------------------------------------------- */

/* Of a text, and of an id. */
enum token_flags {
    TOKEN_MODEL = 1,   /* the model may produce it */
    TOKEN_SPECIAL = 2, /* left out by skip_special */
    TOKEN_ADDED = 4,
    TOKEN_BYTE = 8,     /* decodes to the single byte in its piece */
    TOKEN_TWO = 16,     /* the id belongs to a text of the model and to an added token's */
    TOKEN_CONTROL = 32, /* sy_tokenizer_is_control: never produced by the model, nor found in untrusted text. The
                         * tables set it, of TOKEN_SPECIAL and of TOKEN_ADDED with such a text. */
};
struct token_text {
    uint32_t off, len; /* of vocab.text; off == UINT32_MAX: there is no such id */
};
struct vocab {
    const struct sy_env *env;
    int32_t n;  /* ids are 0 .. n-1, with gaps        */
    char *text; /* all token texts, NUL after each    */
    size_t n_text, cap_text;
    struct token_text *token; /* [n] */
    unsigned char *flags;     /* [n] token_flags */
    struct vocab_slot *slot;  /* open addressing, power of two */
    uint32_t mask;
};
SY_CHECK sy_status sy_vocab_init(struct vocab *, const struct sy_env *, int64_t n_id, size_t n_string, size_t n_text,
                                 struct sy_err *);
void sy_vocab_release(struct vocab *);
/* Adds text as id. An id already taken is refused, unless an added token (no TOKEN_MODEL) takes it over: then both
 * texts encode to it, as in Hugging Face's two tables. A text already there is found as its newest id from now on. */
SY_CHECK sy_status sy_vocab_add(struct vocab *, int64_t id, const char *s, size_t n, unsigned flags, struct sy_err *);
/* Tables do not fit a cache: loaders announce a look-up a few steps ahead. */
enum { PREFETCH_AHEAD = 8 };
void sy_vocab_prefetch(const struct vocab *, const char *s, size_t n);
void sy_vocab_mark(struct vocab *, const char *s, size_t n, unsigned flags); /* more flags for a text and its id */
struct vocab_entry {
    const char *s;
    size_t n;
    int32_t id; /* -1: no such text */
    unsigned flags;
};
struct vocab_entry sy_vocab_entry(const struct vocab *, const char *s, size_t n);
int32_t sy_vocab_find(const struct vocab *, const char *s, size_t n);       /* any token; -1: none */
int32_t sy_vocab_find_model(const struct vocab *, const char *s, size_t n); /* one the model may produce */
/* Walks all texts: for (uint32_t at = 0; sy_vocab_next(v, &at, &entry);) */
bool sy_vocab_next(const struct vocab *, uint32_t *at, struct vocab_entry *out);
static inline bool flags_usable(unsigned flags) { return (flags & (TOKEN_MODEL | TOKEN_CONTROL)) == TOKEN_MODEL; }
static inline bool vocab_has(const struct vocab *v, int64_t id)
{
    return id >= 0 && id < v->n && v->token[id].off != UINT32_MAX;
}
static inline const char *vocab_text(const struct vocab *v, int32_t id, size_t *n)
{
    *n = v->token[id].len;
    return v->text + v->token[id].off;
}
/* Is this the text of an added token that steers a model, by its looks? See sy_tokenizer_is_control. */
bool sy_token_looks_control(const char *s, size_t n);
int32_t sy_vocab_byte_token(const struct vocab *, unsigned char byte); /* "<0x0A>"; -1: none */

/* A trie over bytes in one hash table of (node, byte) -> node; node 0 is the root. */
struct trie {
    const struct sy_env *env;
    struct trie_edge *edge;
    uint32_t mask;
    int32_t *value; /* [node] -1: no key ends here */
    uint32_t n_node, cap_node;
};
SY_CHECK sy_status sy_trie_init(struct trie *, const struct sy_env *, size_t n_bytes,
                                struct sy_err *); /* of all keys */
void sy_trie_release(struct trie *);
SY_CHECK sy_status sy_trie_add(struct trie *, const char *s, size_t n, int32_t value, bool keep_first,
                               struct sy_err *);
uint32_t sy_trie_step(const struct trie *, uint32_t node, unsigned char byte); /* 0: no such edge */

/* ---- characters (chars.c) ---------------------------------------------------------------------------- */

bool sy_char_is_space(uint32_t c);       /* White_Space */
bool sy_char_is_number(uint32_t c);      /* general category N */
bool sy_char_is_punctuation(uint32_t c); /* category P, or ASCII punctuation */
bool sy_char_is_mark(uint32_t c);        /* category M */
bool sy_char_is_nonspacing(uint32_t c);  /* category Mn */
bool sy_char_is_other(uint32_t c);       /* category C, but for the unassigned */
bool sy_char_is_cjk(uint32_t c);         /* the ideograph blocks that BERT isolates */
bool sy_char_is_word(uint32_t c);        /* \w of a Unicode regular expression, approximated by L, M, N, Pc */
uint32_t sy_char_lower(uint32_t c);
size_t sy_char_put(char *out, uint32_t c); /* UTF-8, returns 1..4 */
/* GPT-2's printable stand-in of each byte: code points below 0x144. */
uint32_t sy_byte_to_char(unsigned char b);
int sy_char_to_byte(uint32_t c); /* -1: not in the alphabet */

/* ---- one call's working memory ----------------------------------------------------------------------- */

struct vec { /* a growing array of 32- or 64-bit things */
    void *at;
    size_t n, cap; /* in elements */
};
SY_CHECK bool sy_vec_room(const struct sy_env *, struct vec *, size_t more, size_t size); /* false: out of memory */

struct piece {
    uint32_t lo, hi;
};
/* Text with the original byte offset of every byte, when somebody asks for it. */
struct traced {
    struct sy_buf text;
    struct vec origin; /* uint32_t, empty unless tracing */
};
struct work {
    const struct sy_env *env;
    const struct sy_tokenizer *tok;
    struct rx_work rx;
    struct sy_ids *out;
    const struct sy_span *span; /* NULL: everything is trusted, or nothing is when plain */
    size_t n_span;
    bool plain, trace;
    struct traced norm[2];   /* the normalizer's two sides */
    struct vec chars, order; /* uint32_t: decomposition and canonical ordering */
    struct sy_buf side[2];   /* the pre-tokenizer's two sides */
    struct vec piece[2];     /* struct piece */
    struct vec match;        /* struct split_match */
    struct sy_buf word;      /* a model's rewritten word */
    struct vec sym, heap, node;
};

/* ---- normalizers (normalize.c) ----------------------------------------------------------------------- */

enum norm_kind {
    NORM_NFC,
    NORM_NFD,
    NORM_NFKC,
    NORM_NFKD,
    NORM_NMT,
    NORM_LOWERCASE,
    NORM_STRIP,
    NORM_STRIP_ACCENTS,
    NORM_STRIP_NONSPACING,
    NORM_CLEAN,
    NORM_CJK,
    NORM_PREPEND,
    NORM_REPLACE,
    NORM_PRECOMPILED,
    NORM_BYTE_LEVEL,
};
struct norm {
    enum norm_kind kind;
    struct rx rx;     /* REPLACE */
    const char *text; /* PREPEND, REPLACE: the new text */
    size_t n_text;
    bool left, right;         /* STRIP */
    const unsigned char *map; /* PRECOMPILED: double-array units, then NUL-terminated texts */
    size_t n_unit, n_map;
    bool longest; /* PRECOMPILED: longest match, as sentencepiece itself does */
};
/* What comes out: borrowed from the input or from w. lead: its first character still stands at the text's start. */
struct normed {
    const char *at;
    size_t n;
    const uint32_t *origin; /* [n] offsets into the input, NULL when not traced or unchanged */
    bool lead;
};
SY_CHECK sy_status sy_normalize(struct work *, const struct norm *, size_t n_norm, const char *s, size_t n,
                                struct normed *out, struct sy_err *);

/* ---- pre-tokenizers (pretokenize.c) ------------------------------------------------------------------ */

enum split_behavior { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_PREVIOUS, SPLIT_NEXT, SPLIT_CONTIGUOUS };
enum pre_kind { PRE_SPLIT, PRE_CLASS, PRE_BYTE_LEVEL, PRE_METASPACE, PRE_FIXED };
enum char_class { CLASS_SPACE, CLASS_PUNCTUATION, CLASS_NUMBER, CLASS_CHAR };
enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };
struct pre {
    enum pre_kind kind;
    enum split_behavior behavior;
    struct rx rx; /* SPLIT; BYTE_LEVEL with use_regex */
    bool invert, has_rx;
    enum char_class cls;          /* CLASS: every such character is a match */
    uint32_t ch;                  /* CLASS_CHAR */
    bool prefix_space, map_bytes; /* BYTE_LEVEL; map_bytes false: the model reads raw bytes */
    char mark[5];                 /* METASPACE: the replacement, usually U+2581 */
    size_t n_mark;
    enum prepend_scheme scheme;
    bool split;
    size_t length; /* FIXED: characters per piece */
};
/* A name of GGUF's "tokenizer.ggml.pre" (pre_names.c). */
enum { PRE_PATTERNS_MAX = 6, PRE_IGNORE_MERGES = 1, PRE_BOS = 2, PRE_NFC = 4 };
struct pre_name {
    const char *name, *pattern[PRE_PATTERNS_MAX]; /* applied in order, matches isolated; NULL ends them */
    unsigned flags;
};
const struct pre_name *sy_pre_name_find(const char *name); /* NULL: unknown */
const struct pre_name *sy_pre_name_at(size_t i);           /* NULL: there are no more */
/* Its steps, and the bytes' stand-ins. */
SY_CHECK sy_status sy_pre_name_use(struct sy_tokenizer *, const struct pre_name *, struct sy_err *);
/* Fills w->piece[0] with the pieces of *text, which may be moved into w->side[]. */
SY_CHECK sy_status sy_pretokenize(struct work *, const char **text, size_t n, bool at_start, struct sy_err *);

/* ---- models ------------------------------------------------------------------------------------------ */

enum model_kind { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE, MODEL_WORDLEVEL };

struct bpe {
    struct bpe_merge *merge; /* hash of (left, right); NULL: pairs are found by text and score */
    uint32_t mask;
    int32_t last_id;  /* while loading: what the last merge made */
    float *score;     /* [vocab.n] SentencePiece scores, or NULL */
    uint32_t max_len; /* longest token in bytes, for look-ups by text */
    bool raw_bytes;   /* words are bytes; byte b starts as the tokenizer's byte_id[b] */
    int32_t unk;      /* -1: unknown characters vanish */
    bool fuse_unk, byte_fallback, ignore_merges, whole_newlines;
    const char *prefix, *suffix; /* continuing_subword_prefix, end_of_word_suffix, or NULL */
    size_t n_prefix, n_suffix;
    unsigned char *joins; /* bit [256][256]: may tokens ending/starting in these classes merge? */
};
void sy_bpe_finish(struct sy_tokenizer *); /* after merges and flags */
SY_CHECK sy_status sy_bpe_merges_init(struct bpe *, const struct sy_env *, size_t n, struct sy_err *);
SY_CHECK sy_status sy_bpe_merge_add(struct bpe *, const struct vocab *, uint32_t rank, const char *a, size_t n_a,
                                    const char *b, size_t n_b, struct sy_err *);
/* tokenizer_gguf.c. Between the two parts of a GGUF's merge, the left one of which may be a space itself; NULL: none.
 */
const char *sy_merge_space(struct sy_text merge);
void sy_bpe_release(struct bpe *, const struct sy_env *);
SY_CHECK sy_status sy_bpe_encode(struct work *, const char *s, size_t n, struct sy_err *);

struct unigram {
    struct trie trie;
    double *score; /* [vocab.n] */
    double unk_score;
    int32_t unk; /* -1: none */
    bool byte_fallback;
    bool single; /* add up in single precision, as sentencepiece: it decides between equals */
};
SY_CHECK sy_status sy_unigram_finish(struct sy_tokenizer *, struct sy_err *);
SY_CHECK sy_status sy_unigram_encode(struct work *, const char *s, size_t n, struct sy_err *);

struct wordpiece {
    struct trie trie;
    uint32_t start, next; /* trie nodes where a word and its continuation begin; 0xffffffff: nothing does */
    int32_t unk;
    int64_t chars_max;
};
SY_CHECK sy_status sy_wordpiece_finish(struct sy_tokenizer *, const char *start, const char *next, struct sy_err *);
SY_CHECK sy_status sy_wordpiece_encode(struct work *, const char *s, size_t n, struct sy_err *);
SY_CHECK sy_status sy_wordlevel_encode(struct work *, const char *s, size_t n, struct sy_err *);

/* ---- added tokens, decoder, the whole ---------------------------------------------------------------- */

struct added_token {
    int32_t id;
    bool lstrip, rstrip, single_word, normalized, special;
    bool control; /* sy_tokenizer_finish sets it */
};
struct added {
    struct trie trie; /* value: index into token */
    struct added_token *token;
    size_t n;
    bool first[256]; /* bytes a token can begin with */
    int only;        /* the one such byte, or -1 */
};

enum dec_kind { DEC_REPLACE, DEC_STRIP, DEC_METASPACE, DEC_WORDPIECE, DEC_SUFFIX, DEC_JOIN };
struct dec_op {
    enum dec_kind kind;
    const char *from, *text; /* REPLACE: both; METASPACE's replacement, WORDPIECE's prefix, SUFFIX's suffix: from */
    size_t n_from, n_text;
    uint32_t ch; /* STRIP */
    uint32_t start, stop;
    bool cleanup, drop_first; /* WORDPIECE, METASPACE; METASPACE: the first token loses its marks */
};
struct decoder {
    bool bytes; /* ByteLevel: tokens are bytes of one UTF-8 text */
    bool byte_fallback;
    bool plain_added;  /* with bytes: added tokens are plain text, not stand-ins (GGUF) */
    struct dec_op *op; /* per token: n_before run before ByteFallback, the others after it */
    size_t n_op, n_before;
    bool first_differs;                         /* some op treats the first token otherwise */
    bool last_differs;                          /* SUFFIX, alone, does so with the last */
    uint32_t strip_ch, strip_start, strip_stop; /* Strip after Fuse */
    struct token_text *piece;                   /* [vocab.n] what a token that is not the first decodes to */
    struct sy_buf text;
};
SY_CHECK sy_status sy_decoder_finish(struct sy_tokenizer *, struct sy_err *);

struct sy_tokenizer {
    const struct sy_env *env;
    struct sy_arena arena; /* small texts and step arrays */
    struct rx_env rx;
    struct vocab vocab;
    enum model_kind kind;
    struct bpe bpe;
    struct unigram unigram;
    struct wordpiece wordpiece;
    struct norm *norm;
    size_t n_norm;
    struct pre *pre;
    size_t n_pre;
    struct added added[2]; /* [0] matched in the text as given, [1] in normalized text */
    struct decoder dec;
    int32_t byte_id[256]; /* the token of a byte: its stand-in with raw_bytes, else "<0xNN>"; -1: none */
    int32_t *head, *tail; /* what SY_ENCODE_SPECIAL puts around the text */
    size_t n_head, n_tail;
    int32_t bos, eos, pad;
};
/* The parts of tokenizer.json other than the model (tokenizer_steps.c). */
SY_CHECK sy_status sy_tokenizer_read_steps(struct sy_tokenizer *, const struct sy_json *root, struct sy_err *);
SY_CHECK sy_status sy_tokenizer_new(const struct sy_env *, struct sy_tokenizer **out, struct sy_err *);
/* Builds what depends on all parts: raw bytes, added-token tries, decoded pieces. token[n]: all added tokens. */
SY_CHECK sy_status sy_tokenizer_finish(struct sy_tokenizer *, const struct added_token *token, size_t n,
                                       struct sy_err *);
SY_CHECK sy_status sy_tokwork_init(struct work *, const struct sy_tokenizer *, size_t n, struct sy_ids *out,
                                   struct sy_err *);
void sy_tokwork_release(struct work *);
/* One more step, owned by the tokenizer, its rx too. */
SY_CHECK sy_status sy_tokenizer_add_norm(struct sy_tokenizer *, enum norm_kind, struct norm **out, struct sy_err *);
SY_CHECK sy_status sy_tokenizer_add_pre(struct sy_tokenizer *, enum pre_kind, struct pre **out, struct sy_err *);
SY_CHECK sy_status sy_tokenizer_add_op(struct sy_tokenizer *, enum dec_kind, struct dec_op **out, struct sy_err *);
/* GPT-2's pattern into a BYTE_LEVEL step; sentencepiece's precompiled_charsmap into a PRECOMPILED one (copied). */
SY_CHECK sy_status sy_pre_use_gpt2(struct sy_tokenizer *, struct pre *, struct sy_err *);
SY_CHECK sy_status sy_norm_use_charsmap(struct sy_tokenizer *, struct norm *, const unsigned char *bytes, size_t n,
                                        struct sy_err *);
/* What goes around the text; once. */
SY_CHECK sy_status sy_tokenizer_wrap(struct sy_tokenizer *, const int32_t *head, size_t n_head, const int32_t *tail,
                                     size_t n_tail, struct sy_err *);
/* tokenizer_same.c. Characters of every class that pre-tokenizers tell apart, in an order that has no order. */
void sy_tokenizer_probe(struct sy_buf *);
/* Whether both cut texts that tell tokenizers apart, t's tokens among them, the same way, and decode them so. */
SY_CHECK sy_status sy_tokenizer_same(const struct sy_tokenizer *t, const struct sy_tokenizer *, bool *yes,
                                     struct sy_err *);
/* Walks the ways to cut s[0..n) into two tokens that the model may produce: for (size_t at = 0; ...(v, s, n, &at);).
 * Of all tokens that takes their squared lengths: within reason? */
bool sy_token_next_cut(const struct vocab *, const char *s, size_t n, size_t *at);
bool sy_vocab_cuts_cheap(const struct vocab *);
/* The token of what no token stands for; -1: none. */
static inline int32_t tokenizer_unknown(const struct sy_tokenizer *t)
{
    return t->kind == MODEL_UNIGRAM ? t->unigram.unk : t->kind == MODEL_BPE ? t->bpe.unk : t->wordpiece.unk;
}
#define fail_memory(err, what) sy_fail(err, SY_ENOMEM, "no memory for %s", what)
