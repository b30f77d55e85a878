/* rx.h - regular expressions of tokenizer files: Oniguruma's syntax (Ruby flavour, UTF-8), run by PCRE2.
 *
 * tokenizer.json patterns are written for Oniguruma. sy_rx_compile() rewrites what PCRE2 reads differently (\s, \w,
 * \h, \uHHHH, class intersection, {n,m}+, (?m)) and refuses what it cannot express. A compiled expression is
 * immutable and shared by threads; each call brings its own rx_work. Work is bounded: one match by PCRE2's match
 * limit, all matches of one text by a deadline. */
#pragma once
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/base.h"

struct rx_env { /* PCRE2 with our allocator */
    const struct sy_env *env;
    pcre2_general_context *general;
    pcre2_compile_context *compile;
};
SY_CHECK sy_status sy_rx_env_init(struct rx_env *, const struct sy_env *, struct sy_err *);
void sy_rx_env_release(struct rx_env *);

struct rx {
    pcre2_code *code; /* NULL: the literal text instead */
    const char *text; /* owned by the caller's arena */
    size_t n_text;
    bool jit;
};
SY_CHECK sy_status sy_rx_compile(struct rx_env *, const char *pattern, size_t n, struct rx *out, struct sy_err *);
/* Matches text itself. text must outlive the rx and must not be empty. */
void sy_rx_literal(struct rx *, const char *text, size_t n);
void sy_rx_release(struct rx *);

struct rx_work {
    const struct rx_env *env;
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    uint64_t deadline_ns;
    uint32_t calls;
};
SY_CHECK sy_status sy_rx_work_init(struct rx_work *, const struct rx_env *, size_t n_text, struct sy_err *);
void sy_rx_work_release(struct rx_work *);

/* A walk over all matches of valid UTF-8 text s[0..n), as Oniguruma's find_iter: an empty match right after the
 * previous match does not count. */
struct rx_walk {
    const struct rx *rx;
    const char *s;
    size_t n, at, last_end;
    bool any;
};
static inline struct rx_walk rx_walk_over(const struct rx *rx, const char *s, size_t n)
{
    return (struct rx_walk){.rx = rx, .s = s, .n = n};
}
/* found false: no more matches. */
SY_CHECK sy_status sy_rx_next(struct rx_work *, struct rx_walk *, bool *found, size_t *lo, size_t *hi,
                              struct sy_err *);
