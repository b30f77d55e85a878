/* Tables: token texts with their hash, and the trie. Both are flat arrays: no allocation per token. */
#include <string.h>

#include "text/tokenizer_int.h"

bool sy_vec_room(const struct sy_env *env, struct vec *v, size_t more, size_t size)
{
    size_t need = v->n + more;
    if (need < more) return false;
    if (need <= v->cap) return true;
    size_t cap = v->cap ? v->cap : 64;
    while (cap < need)
        if (__builtin_mul_overflow(cap, 2, &cap)) return false;
    size_t bytes;
    if (__builtin_mul_overflow(cap, size, &bytes)) return false;
    void *p = sy_resize(env, v->at, v->cap * size, bytes);
    if (!p) return false;
    v->at = p;
    v->cap = cap;
    return true;
}

/* ---- vocabulary -------------------------------------------------------------------------------------- */

struct vocab_slot {
    uint32_t hash, id_plus_one, off; /* id_plus_one 0: empty */
    uint16_t len;
    unsigned char flags;
};
_Static_assert(TOKEN_BYTES_MAX < 1 << 16, "a token's length fits a slot");

static uint64_t mix(uint64_t a, uint64_t b)
{
    __uint128_t p = (__uint128_t)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

static uint64_t word_of(const char *s, size_t n) /* up to 8 bytes, little end first */
{
    uint64_t w = 0;
    memcpy(&w, s, n);
    return w;
}

/* Eight bytes per multiplication, as wyhash: tokens are short, most take one round. */
static uint32_t hash_text(const char *s, size_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ n;
    for (; n > 8; s += 8, n -= 8) h = mix(h ^ word_of(s, 8), 0xa0761d6478bd642fu);
    h = mix(h ^ word_of(s, n), 0xe7037ed1a0b428dbu);
    return (uint32_t)(h ^ h >> 32);
}

sy_status sy_vocab_init(struct vocab *v, const struct sy_env *env, int64_t n_id, size_t n_string, size_t n_text,
                        struct sy_err *err)
{
    *v = (struct vocab){.env = env};
    if (n_id <= 0) return sy_fail(err, SY_EFORMAT, "the vocabulary is empty");
    if (n_id > TOKEN_ID_MAX)
        return sy_fail(err, SY_ENOSUP, "token ids up to %d are supported, found %lld", TOKEN_ID_MAX - 1,
                       (long long)n_id - 1);
    size_t cap = n_text + n_string + 1; /* a NUL after each */
    if (cap < n_text || cap >= UINT32_MAX || n_string > 2 * TOKEN_ID_MAX)
        return sy_fail(err, SY_ENOSUP, "the vocabulary's texts take %zu bytes, more than 4 GiB", n_text);
    uint32_t slots = 16;
    while (slots < n_string + n_string / 2) slots *= 2;
    v->n = (int32_t)n_id;
    v->mask = slots - 1;
    v->cap_text = cap;
    v->text = sy_new(env, cap);
    v->token = sy_new_array(env, (size_t)n_id, sizeof *v->token);
    v->flags = sy_new(env, (size_t)n_id);
    v->slot = sy_new_array(env, slots, sizeof *v->slot);
    if (!v->text || !v->token || !v->flags || !v->slot) {
        sy_vocab_release(v);
        return fail_memory(err, "the vocabulary");
    }
    for (int32_t i = 0; i < v->n; i++) v->token[i].off = UINT32_MAX;
    return SY_OK;
}

void sy_vocab_release(struct vocab *v)
{
    if (!v->env) return;
    sy_delete(v->env, v->text);
    sy_delete(v->env, v->token);
    sy_delete(v->env, v->flags);
    sy_delete(v->env, v->slot);
    *v = (struct vocab){0};
}

/* The slot of this text, or the empty one where it would go; NULL: the probe limit was met. */
static struct vocab_slot *slot_of(const struct vocab *v, const char *s, size_t n, uint32_t h)
{
    for (uint32_t i = h & v->mask, probe = 0; probe < PROBE_MAX; i = (i + 1) & v->mask, probe++) {
        struct vocab_slot *at = &v->slot[i];
        if (at->id_plus_one == 0) return at;
        if (at->hash == h && at->len == n && !memcmp(v->text + at->off, s, n)) return at;
    }
    return NULL;
}

void sy_vocab_prefetch(const struct vocab *v, const char *s, size_t n)
{
    __builtin_prefetch(&v->slot[hash_text(s, n) & v->mask]);
}

/* Elements of a page's text: some vocabularies (Gemma's) hold them so that pages take fewer tokens. */
static bool is_page_element(const char *s, size_t n)
{
    static const char names[] = " a b blockquote body br caption code div em h1 h2 h3 h4 h5 h6 hr html i li ol p pre "
                                "span strong sub sup table tbody td tfoot th thead tr u ul ";
    char key[16] = " ";
    if (n && *s == '/') s++, n--;
    if (!n || n > sizeof key - 3 || memchr(s, ' ', n)) return false;
    memcpy(key + 1, s, n);
    key[n + 1] = ' ';
    return memmem(names, sizeof names - 1, key, n + 2) != NULL;
}

bool sy_token_looks_control(const char *s, size_t n)
{
    static const char mark[] = "\xe2\x96\x81"; /* sentencepiece's space */
    const size_t n_mark = sizeof mark - 1;
    for (; n >= n_mark && !memcmp(s, mark, n_mark); s += n_mark) n -= n_mark;
    if (n < 3) return false;
    if (s[0] == '[') return s[n - 1] == ']';
    return s[0] == '<' && s[n - 1] == '>' && !is_page_element(s + 1, n - 2);
}

static unsigned with_control(unsigned flags, const char *s, size_t n)
{
    bool control = flags & TOKEN_SPECIAL || (flags & TOKEN_ADDED && sy_token_looks_control(s, n));
    return flags | (control ? TOKEN_CONTROL : 0);
}

sy_status sy_vocab_add(struct vocab *v, int64_t id, const char *s, size_t n, unsigned flags, struct sy_err *err)
{
    if (id < 0 || id >= v->n)
        return sy_fail(err, SY_EFORMAT, "token id %lld: expected 0 to %d", (long long)id, v->n - 1);
    if (n > TOKEN_BYTES_MAX)
        return sy_fail(err, SY_EFORMAT, "token %lld is %zu bytes long, expected at most %d", (long long)id, n,
                       TOKEN_BYTES_MAX);
    flags = with_control(flags, s, n);
    bool taken = v->token[id].off != UINT32_MAX;
    if (taken && (flags & TOKEN_MODEL || v->flags[id] & TOKEN_ADDED))
        return sy_fail(err, SY_EFORMAT, "token id %lld is given to '%.60s' and to '%.60s'", (long long)id,
                       v->text + v->token[id].off, s);
    if (n + 1 > v->cap_text - v->n_text) return sy_fail(err, SY_EFORMAT, "the vocabulary changed while it was read");
    uint32_t h = hash_text(s, n);
    struct vocab_slot *at = slot_of(v, s, n, h);
    if (!at) return sy_fail(err, SY_EFORMAT, "the vocabulary's texts collide in a hash table beyond reason");
    v->token[id] = (struct token_text){(uint32_t)v->n_text, (uint32_t)n};
    memcpy(v->text + v->n_text, s, n);
    v->n_text += n + 1;
    v->flags[id] |= (unsigned char)(flags | (taken ? TOKEN_TWO : 0));
    *at = (struct vocab_slot){h, (uint32_t)id + 1, v->token[id].off, (uint16_t)n, (unsigned char)flags};
    return SY_OK;
}

void sy_vocab_mark(struct vocab *v, const char *s, size_t n, unsigned flags)
{
    struct vocab_slot *at = slot_of(v, s, n, hash_text(s, n));
    if (!at || !at->id_plus_one) return;
    flags = with_control(flags, s, n);
    at->flags |= (unsigned char)flags;
    v->flags[at->id_plus_one - 1] |= (unsigned char)flags;
}

static struct vocab_entry entry_of(const struct vocab *v, const struct vocab_slot *at)
{
    return (struct vocab_entry){v->text + at->off, at->len, (int32_t)at->id_plus_one - 1, at->flags};
}

struct vocab_entry sy_vocab_entry(const struct vocab *v, const char *s, size_t n)
{
    const struct vocab_slot *at = n <= TOKEN_BYTES_MAX ? slot_of(v, s, n, hash_text(s, n)) : NULL;
    return at ? entry_of(v, at) : (struct vocab_entry){.id = -1};
}

bool sy_vocab_next(const struct vocab *v, uint32_t *at, struct vocab_entry *out)
{
    for (; *at <= v->mask; ++*at) {
        if (!v->slot[*at].id_plus_one) continue;
        *out = entry_of(v, &v->slot[(*at)++]);
        return true;
    }
    return false;
}

int32_t sy_vocab_find(const struct vocab *v, const char *s, size_t n) { return sy_vocab_entry(v, s, n).id; }

int32_t sy_vocab_find_model(const struct vocab *v, const char *s, size_t n)
{
    struct vocab_entry e = sy_vocab_entry(v, s, n);
    return flags_usable(e.flags) ? e.id : -1;
}

int32_t sy_vocab_byte_token(const struct vocab *v, unsigned char b)
{
    static const char hex[] = "0123456789ABCDEF";
    const char name[6] = {'<', '0', 'x', hex[b >> 4], hex[b & 15], '>'};
    return sy_vocab_find_model(v, name, sizeof name);
}

/* ---- trie -------------------------------------------------------------------------------------------- */

struct trie_edge {
    uint32_t key; /* node << 8 | byte */
    uint32_t to;  /* 0: empty; the root is nobody's child */
};

sy_status sy_trie_init(struct trie *t, const struct sy_env *env, size_t n_bytes, struct sy_err *err)
{
    *t = (struct trie){.env = env};
    if (n_bytes >= (1u << 24) - 1)
        return sy_fail(err, SY_ENOSUP, "tokens of %zu bytes together, more than 16 MiB", n_bytes);
    uint32_t slots = 16;
    while (slots < n_bytes + n_bytes / 2) slots *= 2;
    t->mask = slots - 1;
    t->cap_node = (uint32_t)n_bytes + 1;
    t->n_node = 1;
    t->edge = sy_new_array(env, slots, sizeof *t->edge);
    t->value = sy_new_array(env, t->cap_node, sizeof *t->value);
    if (!t->edge || !t->value) {
        sy_trie_release(t);
        return fail_memory(err, "a token trie");
    }
    t->value[0] = -1;
    return SY_OK;
}

void sy_trie_release(struct trie *t)
{
    if (!t->env) return;
    sy_delete(t->env, t->edge);
    sy_delete(t->env, t->value);
    *t = (struct trie){0};
}

static struct trie_edge *edge_of(const struct trie *t, uint32_t key)
{
    uint32_t i = (uint32_t)(key * 0x9e3779b97f4a7c15u >> 32) & t->mask;
    for (uint32_t probe = 0; probe < PROBE_MAX; i = (i + 1) & t->mask, probe++)
        if (t->edge[i].to == 0 || t->edge[i].key == key) return &t->edge[i];
    return NULL;
}

sy_status sy_trie_add(struct trie *t, const char *s, size_t n, int32_t value, bool keep_first, struct sy_err *err)
{
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t key = node << 8 | (unsigned char)s[i];
        struct trie_edge *e = edge_of(t, key);
        if (!e) return sy_fail(err, SY_EFORMAT, "the tokens collide in a hash table beyond reason");
        if (e->to == 0) {
            if (t->n_node == t->cap_node) return sy_fail(err, SY_EFORMAT, "the tokens changed while they were read");
            t->value[t->n_node] = -1;
            *e = (struct trie_edge){key, t->n_node++};
        }
        node = e->to;
    }
    if (!keep_first || t->value[node] < 0) t->value[node] = value;
    return SY_OK;
}

uint32_t sy_trie_step(const struct trie *t, uint32_t node, unsigned char byte)
{
    const struct trie_edge *e = edge_of(t, node << 8 | byte);
    return e ? e->to : 0;
}
