/* template_unicode.c - what Python's str knows of Unicode, on top of utf8proc: classes and full case mapping
 * (Unicode SpecialCasing.txt, the unconditional part, and the final sigma). */
#include <string.h>
#include <utf8proc.h>

#include "text/template_int.h"

static utf8proc_category_t category(uint32_t c) { return utf8proc_category((utf8proc_int32_t)c); }

bool sy_tpl_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static bool is_alpha(uint32_t c)
{
    utf8proc_category_t g = category(c);
    return g >= UTF8PROC_CATEGORY_LU && g <= UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

struct range32 {
    uint32_t lo, hi;
};

static bool in_ranges(const struct range32 *r, size_t n, uint32_t c)
{
    size_t i = 0;
    while (i < n && r[i].hi < c) i++;
    return i < n && r[i].lo <= c;
}

/* Superscripts, circled digits and the like (Numeric_Type=Digit): digits to Python, not decimals. */
static bool is_digit(uint32_t c)
{
    static const struct range32 more[] = {
        {0xb2, 0xb3},     {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},   {0x2070, 0x2070},
        {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247c},   {0x2488, 0x2490},
        {0x24ea, 0x24ea}, {0x24f5, 0x24fd},   {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},
        {0x278a, 0x2792}, {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a},
    };
    return is_decimal(c) || in_ranges(more, SY_COUNT(more), c);
}

static bool is_numeric(uint32_t c)
{
    utf8proc_category_t g = category(c);
    return g == UTF8PROC_CATEGORY_ND || g == UTF8PROC_CATEGORY_NL || g == UTF8PROC_CATEGORY_NO;
}

bool sy_tpl_is_word(uint32_t c)
{
    if (c < 0x80) return (c >= '0' && c <= '9') || c == '_' || ((c | 32) >= 'a' && (c | 32) <= 'z');
    return is_alpha(c) || is_numeric(c);
}

bool sy_tpl_is_printable(uint32_t c)
{
    if (c < 0x7f) return c >= 32;
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

static uint32_t simple(uint32_t c, enum case_op op)
{
    if (c < 0x80) {
        bool upper = c >= 'A' && c <= 'Z', lower = c >= 'a' && c <= 'z';
        return op == CASE_LOWER ? (upper ? c | 32 : c) : lower ? c & ~32u : c;
    }
    utf8proc_int32_t v = (utf8proc_int32_t)c;
    return (uint32_t)(op == CASE_LOWER   ? utf8proc_tolower(v)
                      : op == CASE_TITLE ? utf8proc_totitle(v)
                                         : utf8proc_toupper(v));
}

static bool is_upper(uint32_t c) /* with Other_Uppercase */
{
    static const struct range32 more[] = {
        {0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189},
    };
    return category(c) == UTF8PROC_CATEGORY_LU || in_ranges(more, SY_COUNT(more), c);
}

static bool is_lower(uint32_t c) /* with Other_Lowercase */
{
    static const struct range32 more[] = {
        {0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},     {0x2e0, 0x2e4},
        {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},   {0x1d78, 0x1d78},   {0x1d9b, 0x1dbf},
        {0x2071, 0x2071},   {0x207f, 0x207f},   {0x2090, 0x209c},   {0x2170, 0x217f},   {0x24d0, 0x24e9},
        {0x2c7c, 0x2c7d},   {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},   {0xab5c, 0xab5f},
        {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba},
    };
    return category(c) == UTF8PROC_CATEGORY_LL || in_ranges(more, SY_COUNT(more), c);
}

static bool is_cased(uint32_t c) { return is_upper(c) || is_lower(c) || category(c) == UTF8PROC_CATEGORY_LT; }

/* Letters that become several: upper case, then title case where that differs. In order of `from`. */
static const struct {
    uint16_t from, upper[3], title[3];
} special[] = {
    {0xdf, {'S', 'S'}, {'S', 's'}},
    {0x149, {0x2bc, 'N'}, {0}},
    {0x1f0, {'J', 0x30c}, {0}},
    {0x390, {0x399, 0x308, 0x301}, {0}},
    {0x3b0, {0x3a5, 0x308, 0x301}, {0}},
    {0x587, {0x535, 0x552}, {0x535, 0x582}},
    {0x1e96, {'H', 0x331}, {0}},
    {0x1e97, {'T', 0x308}, {0}},
    {0x1e98, {'W', 0x30a}, {0}},
    {0x1e99, {'Y', 0x30a}, {0}},
    {0x1e9a, {'A', 0x2be}, {0}},
    {0x1f50, {0x3a5, 0x313}, {0}},
    {0x1f52, {0x3a5, 0x313, 0x300}, {0}},
    {0x1f54, {0x3a5, 0x313, 0x301}, {0}},
    {0x1f56, {0x3a5, 0x313, 0x342}, {0}},
    {0x1fb2, {0x1fba, 0x399}, {0x1fba, 0x345}},
    {0x1fb3, {0x391, 0x399}, {0x1fbc}},
    {0x1fb4, {0x386, 0x399}, {0x386, 0x345}},
    {0x1fb6, {0x391, 0x342}, {0}},
    {0x1fb7, {0x391, 0x342, 0x399}, {0x391, 0x342, 0x345}},
    {0x1fbc, {0x391, 0x399}, {0x1fbc}},
    {0x1fc2, {0x1fca, 0x399}, {0x1fca, 0x345}},
    {0x1fc3, {0x397, 0x399}, {0x1fcc}},
    {0x1fc4, {0x389, 0x399}, {0x389, 0x345}},
    {0x1fc6, {0x397, 0x342}, {0}},
    {0x1fc7, {0x397, 0x342, 0x399}, {0x397, 0x342, 0x345}},
    {0x1fcc, {0x397, 0x399}, {0x1fcc}},
    {0x1fd2, {0x399, 0x308, 0x300}, {0}},
    {0x1fd3, {0x399, 0x308, 0x301}, {0}},
    {0x1fd6, {0x399, 0x342}, {0}},
    {0x1fd7, {0x399, 0x308, 0x342}, {0}},
    {0x1fe2, {0x3a5, 0x308, 0x300}, {0}},
    {0x1fe3, {0x3a5, 0x308, 0x301}, {0}},
    {0x1fe4, {0x3a1, 0x313}, {0}},
    {0x1fe6, {0x3a5, 0x342}, {0}},
    {0x1fe7, {0x3a5, 0x308, 0x342}, {0}},
    {0x1ff2, {0x1ffa, 0x399}, {0x1ffa, 0x345}},
    {0x1ff3, {0x3a9, 0x399}, {0x1ffc}},
    {0x1ff4, {0x38f, 0x399}, {0x38f, 0x345}},
    {0x1ff6, {0x3a9, 0x342}, {0}},
    {0x1ff7, {0x3a9, 0x342, 0x399}, {0x3a9, 0x342, 0x345}},
    {0x1ffc, {0x3a9, 0x399}, {0x1ffc}},
    {0xfb00, {'F', 'F'}, {'F', 'f'}},
    {0xfb01, {'F', 'I'}, {'F', 'i'}},
    {0xfb02, {'F', 'L'}, {'F', 'l'}},
    {0xfb03, {'F', 'F', 'I'}, {'F', 'f', 'i'}},
    {0xfb04, {'F', 'F', 'L'}, {'F', 'f', 'l'}},
    {0xfb05, {'S', 'T'}, {'S', 't'}},
    {0xfb06, {'S', 'T'}, {'S', 't'}},
    {0xfb13, {0x544, 0x546}, {0x544, 0x576}},
    {0xfb14, {0x544, 0x535}, {0x544, 0x565}},
    {0xfb15, {0x544, 0x53b}, {0x544, 0x56b}},
    {0xfb16, {0x54e, 0x546}, {0x54e, 0x576}},
    {0xfb17, {0x544, 0x53d}, {0x544, 0x56d}},
};

/* Appends c in another case, one letter or several. */
static bool put(struct run *r, struct store *st, uint32_t c, enum case_op op, bool trusted)
{
    if (op == CASE_LOWER && c == 0x130) return sy_tpl_add(r, st, "i\xcc\x87", 3, trusted);
    if (op != CASE_LOWER && c >= 0x1f80 && c <= 0x1faf) { /* iota subscript: the same pattern three times */
        static const uint16_t plain[] = {0x1f08, 0x1f28, 0x1f68};
        uint32_t base = plain[(c - 0x1f80) / 16] + (c & 7);
        if (op == CASE_TITLE) return sy_tpl_add_char(r, st, (c & ~15u) + 8 + (c & 7), trusted);
        return sy_tpl_add_char(r, st, base, trusted) && sy_tpl_add_char(r, st, 0x399, trusted);
    }
    size_t lo = 0, hi = op == CASE_LOWER ? 0 : SY_COUNT(special);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (special[mid].from < c) lo = mid + 1;
        else hi = mid;
    }
    if (op != CASE_LOWER && lo < SY_COUNT(special) && special[lo].from == c) {
        const uint16_t *to = op == CASE_TITLE && special[lo].title[0] ? special[lo].title : special[lo].upper;
        for (size_t k = 0; k < 3 && to[k]; k++)
            if (!sy_tpl_add_char(r, st, to[k], trusted)) return false;
        return true;
    }
    return sy_tpl_add_char(r, st, simple(c, op), trusted);
}

/* Case folding for Python's casefold(): utf8proc knows it, several letters included. */
static bool fold(struct run *r, struct store *st, uint32_t c, bool trusted)
{
    utf8proc_int32_t to[8];
    int boundary = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, to, 8, UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t i = 0; i < n && i < 8; i++)
        if (!sy_tpl_add_char(r, st, (uint32_t)to[i], trusted)) return false;
    return true;
}

static bool ignorable(uint32_t c)
{
    utf8proc_category_t g = category(c);
    return g == UTF8PROC_CATEGORY_MN || g == UTF8PROC_CATEGORY_ME || g == UTF8PROC_CATEGORY_CF ||
           g == UTF8PROC_CATEGORY_LM || g == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' || c == 0xb7 ||
           c == 0x2019 || c == 0x2018 || c == 0x2024 || c == 0x2027;
}

/* Is the capital sigma at s[at] the last letter of a word? */
static bool final_sigma(const struct str *s, size_t at)
{
    uint32_t c = 0;
    size_t i = at;
    bool before = false;
    while (i > 0 && !before) {
        do i--;
        while (i > 0 && ((unsigned char)s->at[i] & 0xc0) == 0x80);
        sy_utf8_next(s->at + i, s->n - i, &c);
        if (ignorable(c)) continue;
        if (!is_cased(c)) return false;
        before = true;
    }
    for (i = at + 2; before && i < s->n;) {
        i += sy_utf8_next(s->at + i, s->n - i, &c);
        if (!ignorable(c)) return !is_cased(c);
    }
    return before;
}

/* ASCII at s[at..end), one origin: copied whole, then changed in place. */
static bool ascii_case(struct run *r, struct store *st, const struct str *s, size_t at, size_t end, enum case_op op,
                       bool trusted, bool *in_word)
{
    size_t from = st->used;
    if (!sy_tpl_add(r, st, s->at + at, end - at, trusted)) return false;
    for (size_t i = at; i < end; i++) {
        char *c = &st->at[from + i - at];
        bool upper = *c >= 'A' && *c <= 'Z', lower = *c >= 'a' && *c <= 'z', up = op == CASE_UPPER;
        if (op == CASE_CAPITALIZE) up = i == 0;
        if (op == CASE_TITLE) up = !*in_word;
        if (op == CASE_SWAP) up = lower;
        if (up ? lower : upper) *c ^= 32;
        *in_word = upper || lower;
    }
    return true;
}

static bool char_case(struct run *r, struct store *st, const struct str *s, size_t at, uint32_t c, enum case_op op,
                      bool trusted, bool *in_word)
{
    bool word = *in_word;
    *in_word = is_cased(c);
    if (op == CASE_FOLD) return fold(r, st, c, trusted);
    if (op == CASE_CAPITALIZE) op = at == 0 ? CASE_TITLE : CASE_LOWER;
    if (op == CASE_TITLE && word) op = CASE_LOWER;
    if (op == CASE_SWAP && !is_upper(c) && !is_lower(c)) return sy_tpl_add_char(r, st, c, trusted);
    if (op == CASE_SWAP) op = is_upper(c) ? CASE_LOWER : CASE_UPPER;
    if (op == CASE_LOWER && c == 0x3a3) return sy_tpl_add_char(r, st, final_sigma(s, at) ? 0x3c2 : 0x3c3, trusted);
    return put(r, st, c, op, trusted);
}

bool sy_tpl_case(struct run *r, const struct str *s, enum case_op op, struct val *out)
{
    struct store *st = sy_tpl_store(r, s->n);
    if (!st) return false;
    bool in_word = false, trusted;
    for (size_t i = 0, end, k; i < s->n; i = k) {
        end = sy_tpl_piece(s, i, &trusted);
        for (k = i; k < end && (unsigned char)s->at[k] < 0x80; k++) continue;
        sy_tpl_cost(r, (k - i) / 16 + 1);
        if (k > i) {
            if (!ascii_case(r, st, s, i, k, op, trusted, &in_word)) return false;
            continue;
        }
        uint32_t c;
        k = i + sy_utf8_next(s->at + i, s->n - i, &c);
        sy_tpl_cost(r, 4);
        if (!char_case(r, st, s, i, c, op, trusted, &in_word)) return false;
    }
    return sy_tpl_took(r, st, out);
}

static bool in_class(uint32_t c, const char *which)
{
    if (!strcmp(which, "isalpha")) return is_alpha(c);
    if (!strcmp(which, "isdecimal")) return is_decimal(c);
    if (!strcmp(which, "isdigit")) return is_digit(c);
    if (!strcmp(which, "isnumeric")) return is_numeric(c);
    if (!strcmp(which, "isalnum")) return is_alpha(c) || is_numeric(c);
    if (!strcmp(which, "isspace")) return sy_tpl_is_space(c);
    if (!strcmp(which, "isascii")) return c < 0x80;
    if (!strcmp(which, "isidentifier")) return sy_tpl_is_word(c);
    return sy_tpl_is_printable(c); /* isprintable */
}

static bool is_title(const struct str *s)
{
    bool in_word = false, any = false;
    for (size_t i = 0; i < s->n;) {
        uint32_t c;
        i += sy_utf8_next(s->at + i, s->n - i, &c);
        bool upper = is_upper(c) || category(c) == UTF8PROC_CATEGORY_LT;
        if ((upper && in_word) || (is_lower(c) && !in_word)) return false;
        in_word = upper || is_lower(c);
        any |= in_word;
    }
    return any;
}

bool sy_tpl_is_class(const struct str *s, const char *which)
{
    bool upper = !strcmp(which, "isupper"), lower = !strcmp(which, "islower"), any = false;
    if (!strcmp(which, "istitle")) return is_title(s);
    for (size_t i = 0; i < s->n;) {
        uint32_t c;
        bool first = i == 0;
        i += sy_utf8_next(s->at + i, s->n - i, &c);
        if (upper || lower) {
            if (upper ? is_lower(c) : is_upper(c)) return false;
            if (category(c) == UTF8PROC_CATEGORY_LT) return false;
            any |= upper ? is_upper(c) : is_lower(c);
        } else if (!in_class(c, which)) {
            return false;
        } else if (first && !strcmp(which, "isidentifier") && is_numeric(c)) {
            return false;
        }
    }
    if (upper || lower) return any;
    return s->n > 0 || !strcmp(which, "isascii") || !strcmp(which, "isprintable");
}
